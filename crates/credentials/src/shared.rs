//! Shared secrets and their owners.

use std::sync::atomic::{AtomicBool, Ordering};

use crypto::ike::Secret;
use ike::identity::{IdPattern, Identity, Match};

use super::name;

/// Warning of a secret that can be guessed.
pub(super) const WEAK: &str =
    "this shared key is short enough to be guessed; create a new one, for example with 'openssl rand -base64 32'";

/// Kind of a shared secret.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)] // named as in swanctl.conf
pub enum SharedKind {
    Ike,
    Eap,
    /// The NT hash of a password, 16 bytes.
    Ntlm,
    Ppk,
}

impl SharedKind {
    /// The kind of a word of vici or swanctl.conf, in either case.
    pub fn from_name(name: &str) -> Option<Self> {
        let known =
            [("ike", Self::Ike), ("eap", Self::Eap), ("xauth", Self::Eap), ("ntlm", Self::Ntlm), ("ppk", Self::Ppk)];
        known.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, kind)| kind)
    }
}

/// A shared secret. Zeroed on drop; has no `Debug`.
pub struct Shared {
    /// By which it is listed and unloaded; may be empty.
    pub id: String,
    /// Kind.
    pub kind: SharedKind,
    /// Identities of the owners; empty: any.
    pub owners: Vec<IdPattern>,
    /// The secret.
    pub secret: Secret,
    warned: AtomicBool,
}

impl Shared {
    /// A secret.
    pub fn new(id: impl Into<String>, kind: SharedKind, owners: Vec<IdPattern>, secret: Secret) -> Self {
        Self { id: id.into(), kind, owners, secret, warned: AtomicBool::new(false) }
    }

    /// Quality of the match between an owner and one of the identities.
    fn owned_by(&self, ids: &[Identity]) -> Option<Match> {
        if self.owners.is_empty() {
            return Some(Match::ANY);
        }
        ids.iter().flat_map(|id| self.owners.iter().filter_map(|owner| owner.matches(id))).max()
    }

    /// Quality of the match with two peers, the remote one first; `None` if the secret belongs to
    /// others.
    ///
    /// If the secret names an owner besides this host, only that owner may use it: otherwise any
    /// peer that shares a secret with this host could claim any identity.
    fn between(&self, local: &[Identity], remote: &[Identity]) -> Option<(Option<Match>, Option<Match>)> {
        let weights = (self.owned_by(remote), self.owned_by(local));
        let all_local = || self.owners.iter().all(|owner| local.iter().any(|id| owner.matches(id).is_some()));
        match weights {
            (None, None) => None,
            (None, _) if !all_local() => None,
            weights => Some(weights),
        }
    }

    /// Returns whether it can be guessed: after one exchange with this host an attacker can try
    /// secrets offline.
    pub(super) fn is_weak(&self) -> bool {
        let mut bytes: Vec<u8> = self.secret.as_slice().to_vec();
        bytes.sort_unstable();
        bytes.dedup();
        let weak = self.secret.len() < 16 || bytes.len() < 8;
        zeroize::Zeroize::zeroize(&mut bytes);
        weak
    }

    /// Warns once of a secret that can be guessed.
    fn warn_if_weak(&self) {
        if self.is_weak() && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                secret = %name::printable(&self.id),
                "{WEAK}"
            );
        }
    }
}

/// The keys of IKE that two peers may share, best first: exact owners before patterns before
/// anybody's, those that name the remote peer before those that name this host.
pub(super) fn keys<'a>(
    all: impl Iterator<Item = &'a Shared>,
    local: &[Identity],
    remote: &[Identity],
) -> Vec<&'a Shared> {
    let mut found: Vec<_> = all
        .filter(|shared| shared.kind == SharedKind::Ike)
        .filter_map(|shared| Some((shared.between(local, remote)?, shared)))
        .collect();
    found.sort_by_key(|(weights, _)| std::cmp::Reverse(*weights));
    found.iter().for_each(|(_, shared)| shared.warn_if_weak());
    found.into_iter().map(|(_, shared)| shared).collect()
}

/// The key of IKEv1 that two peers share. A key that names the identity of the peer precedes those
/// of its address and those without an owner. Otherwise a peer with a key of its address could
/// authenticate itself with that key under the identity of another peer.
pub(super) fn key_v1<'a>(
    all: impl Iterator<Item = &'a Shared> + Clone,
    local: &[Identity],
    remote_id: Option<&Identity>,
    remote_addr: &Identity,
) -> Option<&'a Shared> {
    let names = |id: &Identity, shared: &Shared| shared.owned_by(std::slice::from_ref(id)) > Some(Match::ANY);
    let named = remote_id.and_then(|id| {
        let found = keys(all.clone(), local, std::slice::from_ref(id));
        found.into_iter().find(|shared| names(id, shared))
    });
    named.or_else(|| keys(all, local, std::slice::from_ref(remote_addr)).first().copied())
}

/// The secret of these kinds for an identity; otherwise one without owners.
pub(super) fn of_user<'a>(
    all: impl Iterator<Item = &'a Shared>,
    kinds: &[SharedKind],
    user: &[Identity],
) -> Option<&'a Shared> {
    all.filter(|shared| kinds.contains(&shared.kind))
        .filter_map(|shared| Some((shared.owned_by(user)?, shared)))
        // The first of those that fit equally well.
        .min_by_key(|(weight, _)| std::cmp::Reverse(*weight))
        .map(|(_, shared)| shared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::ike::IdType;

    fn id(name: &str) -> Identity {
        Identity { kind: IdType::FQDN, data: name.as_bytes().to_vec() }
    }

    fn shared(name: &str, owners: &[&str]) -> Shared {
        let owners = owners.iter().map(|owner| IdPattern::Like(id(owner))).collect();
        Shared::new(name, SharedKind::Ike, owners, Secret::from_slice(b"k"))
    }

    #[test]
    fn the_best_owner_comes_first_and_strangers_get_nothing() {
        let all = [
            shared("any", &[]),
            shared("pattern", &["*.weir.test"]),
            shared("pair", &["moon.weir.test", "sun.weir.test"]),
            shared("moon", &["moon.weir.test"]),
            shared("other", &["mars.weir.test"]),
        ];
        let of = |local: &str, remote: &str| -> Vec<&str> {
            keys(all.iter(), &[id(local)], &[id(remote)]).iter().map(|shared| &*shared.id).collect()
        };
        assert_eq!(of("moon.weir.test", "SUN.weir.test"), ["pair", "pattern", "any", "moon"]);
        // "pair" is not eve's, although moon has it too.
        assert_eq!(of("moon.weir.test", "eve.test"), ["any", "moon", "pattern"]);
        assert_eq!(of("a.test", "b.test"), ["any"]);
        let user = |name: &str| of_user(all.iter(), &[SharedKind::Ike], &[id(name)]).map(|shared| &*shared.id);
        assert_eq!(
            (user("mars.weir.test"), user("x.weir.test"), user("x")),
            (Some("other"), Some("pattern"), Some("any"))
        );
        assert!(of_user(all.iter(), &[SharedKind::Ppk], &[id("x")]).is_none());
        assert_eq!(SharedKind::from_name("EAP"), Some(SharedKind::Eap));
    }
}
