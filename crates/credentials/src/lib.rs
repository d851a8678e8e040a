//! Credentials of this host and of trusted peers: keys, certificates, shared secrets, passwords,
//! and the operations that IKE requests with them.
//!
//! [`Store`] holds them, [`Credentials`] is the task around it. The state machine of IKE, which
//! reads what strangers send, only ever sees answers: a signature, a verdict, a key that was
//! derived.

mod constraint;
mod der;
mod eap;
#[doc(hidden)]
pub mod fuzzing;
mod name;
mod path;
pub mod pem;
pub mod pkcs12;
pub mod pkcs8;
pub mod rehearsal;
mod revocation;
mod shared;
mod sign;
mod store;
mod task;
#[cfg(test)]
mod tests;
pub mod tls;
mod verify;
mod x509;
mod xauth;

pub use revocation::Source;
pub use revocation::fetched::{FetchCounts, FetchSettings, Resolve, ResolveName};
pub use shared::{Shared, SharedKind};
pub use store::{CertificateUse, Listed, Origin, Passphrase, Store};
pub use task::{Credentials, WallClock};
pub use x509::{Certificate, CertificateFault, Crl, sha256};

/// The identity under which a pattern admits a certificate, DER. Where the pattern admits any, all
/// names of the certificate together, because a CA may give one subject to several hosts.
pub fn identity_of(der: &[u8], pattern: &ike::identity::IdPattern) -> Option<ike::identity::Identity> {
    use ike::identity::{IdPattern, Identity};
    let mut all = name::identities_of(&Certificate::from_der(der).ok()?);
    if *pattern != IdPattern::Any
        && let Some(at) = all.iter().position(|id| pattern.matches(id).is_some())
    {
        return Some(all.swap_remove(at));
    }
    if all.len() <= 1 {
        return all.pop();
    }
    let names: Vec<String> = all.iter().map(ToString::to_string).collect();
    Some(Identity { kind: wire::ike::IdType::KEY_ID, data: names.join(", ").into_bytes() })
}

/// A distinguished name (DER) as people write it, at most 200 characters.
pub fn show_name(name: &[u8]) -> String {
    name::show(name)
}

/// Checks that this CA issued a certificate: name, signature, basic constraints, key usage and name
/// constraints, as a peer checks them (RFC 5280 §6.1). Times are not checked.
///
/// # Errors
/// The first thing that a peer would refuse.
pub fn check_issued(certificate: &Certificate, authority: &Certificate) -> anyhow::Result<()> {
    anyhow::ensure!(authority.is_ca(), "{authority:?} is not a CA according to its basic constraints");
    let may_issue = authority.extensions().key_usage.as_ref().is_none_or(|usage| usage.key_cert_sign());
    anyhow::ensure!(may_issue, "the key usage of {authority:?} does not permit certificates");
    anyhow::ensure!(certificate.names_as_issuer(authority), "{certificate:?} names another issuer");
    anyhow::ensure!(certificate.is_signed_by(authority.key()), "the signature of {certificate:?} is invalid");
    name::constrain(authority, certificate)
        .map_err(|name| anyhow::anyhow!("the name constraints of {authority:?} do not permit {}", name.0))
}

/// Reads bytes as everything that a stranger may send to this module. For fuzzing: there is nothing
/// to see but that it returns.
#[doc(hidden)]
pub fn parse_anything(bytes: &[u8]) {
    eap::parse_anything(bytes);
    let _ = x509::pkcs7_certificates(bytes);
    if let Ok(certificate) = Certificate::from_der(bytes) {
        let id = name::identity_of(&certificate);
        let _ = id.is_some_and(|id| name::is_of(&certificate, &id));
        let _ = name::constrain(&certificate, &certificate);
    }
    if let Ok(crl) = Crl::from_der(bytes) {
        let _ = crl.revoked_count();
    }
    let _ = revocation::ocsp::Response::from_der(bytes);
}
