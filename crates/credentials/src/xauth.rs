//! Passwords of XAuth (draft-beaulieu-ike-xauth-02), the extended authentication of IKEv1: those of
//! EAP, of sections `xauth…` and `eap…`.

use crypto::ike::Secret;
use ike::config::AuthMethod;
use ike::identity::Identity;
use ike::output::{CredentialError, XAuthQuery};
use wire::ike::IdType;

use super::name;
use super::shared::{self, SharedKind};
use super::sign::refuse;
use super::store::Store;

/// The password of a user, for a client.
pub(super) fn password(store: &Store, user: &Identity) -> Result<Secret, CredentialError> {
    match shared::of_user(store.shared(), &[SharedKind::Eap], std::slice::from_ref(user)) {
        Some(found) => Ok(found.secret.clone()),
        None => {
            let user = name::show_id(user);
            refuse(format!("no password for '{user}'; add a section 'xauth' to 'secrets' with 'id = {user}'"))
        }
    }
}

/// The name of a user with the right password, for a server.
pub(super) fn check(store: &Store, query: &XAuthQuery) -> Result<String, CredentialError> {
    let raw = Identity { kind: IdType::KEY_ID, data: query.user.clone() };
    let parsed = std::str::from_utf8(&query.user).ok().and_then(|text| Identity::parse(text).ok());
    let shown = parsed.as_ref().unwrap_or(&raw).clone();
    let ids: Vec<Identity> = parsed.into_iter().chain([raw]).collect();
    let round = query.connection.remote.iter().find(|auth| auth.method == AuthMethod::XAuth);
    let wanted = round.and_then(|auth| auth.eap_id.as_ref());
    let text = name::show_id(&shown);
    if wanted.is_some_and(|wanted| ids.iter().all(|id| wanted.matches(id).is_none())) {
        return refuse(format!("the user '{text}' does not match 'xauth_id'"));
    }
    let found = shared::of_user(store.shared(), &[SharedKind::Eap], &ids);
    // Some clients end the password with a zero byte.
    let sent = query.password.strip_suffix(&[0]).unwrap_or(&query.password);
    let right = found.is_some_and(|found| found.secret == Secret::from_slice(sent));
    match (right, found) {
        (true, _) => Ok(shown.to_string()),
        (false, Some(_)) => refuse(format!("the password of '{text}' is wrong")),
        (false, None) => refuse(format!("the user '{text}' has no password in 'secrets'")),
    }
}
