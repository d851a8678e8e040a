//! Who this host is and whom it believes: keys, certificates, shared secrets, passwords, and the
//! answers that IKE needs from them.
//!
//! [`Store`] holds them, [`Credentials`] is the task around it. The state machine of IKE, which reads what
//! strangers send, only ever sees answers: a signature, a verdict, a key that was derived.

mod constraint;
mod der;
mod eap;
mod name;
mod path;
mod pem;
mod pkcs8;
mod shared;
mod sign;
mod store;
mod task;
#[cfg(test)]
mod tests;
mod verify;
mod x509;

pub use shared::{Shared, SharedKind};
pub use store::{CertificateUse, Listed, Origin, Passphrase, Store};
pub use task::{Credentials, WallClock};
pub use x509::{Certificate, CertificateFault, Crl, sha256};

/// Reads bytes as everything that a stranger may send to this module. For fuzzing: there is nothing to
/// see but that it returns.
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
}
