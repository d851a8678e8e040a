//! The cryptography of IKEv2 (RFC 7296) and IKEv1 (RFC 2409): pseudorandom functions, key exchange,
//! the protection of messages, signatures and the arithmetic of EAP-MSCHAPv2.
//!
//! This module does not interpret messages. Input from the peer (public values, ciphertext,
//! signatures, keys of certificates) is validated here completely: a returned value is valid, and
//! invalid input is an error of one of the fault types. What is secret is a [`Secret`] or a type
//! without `Debug` that overwrites its memory when dropped.

mod cipher;
mod foreign;
mod hash;
mod ke;
mod modp;
pub mod mschap;
mod prf;
mod scheme;
mod sign;
mod v1;

pub use cipher::{OpenFault, SkKey, SkSuite};
pub use foreign::pkcs12::Pkcs12;
pub use hash::{Hash, HashId};
pub use ke::{KeFault, KeInitiator, KeMethod};
pub use prf::Prf;
pub use scheme::{Curve, SignatureScheme};
pub use sign::{KeyFault, PrivateKey, PublicKey, PublicKeyKind, SignatureFault};
pub use v1::{NotWholeBlocks, V1Cipher};

use zeroize::Zeroizing;

/// Reads a PKCS #12 file (RFC 7292), after its MAC was verified with the password.
///
/// `None` when the password is wrong or contains a NUL, or when the file is malformed, has several
/// keys, or uses an unknown algorithm.
pub fn open_pkcs12(file: &[u8], password: &[u8]) -> Option<Pkcs12> {
    foreign::pkcs12::open(file, password)
}

/// Secret bytes: keys, shared secrets, passwords. Zeroed on drop, cannot be printed, compared in
/// time that depends on the lengths alone.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes ownership of the bytes. The caller should zero any buffer that they were copied from.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Copies the bytes.
    pub fn from_slice(bytes: &[u8]) -> Self {
        Self::new(bytes.to_vec())
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::ops::Deref for Secret {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Secret {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        crate::engine::equal(&self.0, &other.0)
    }
}

impl Eq for Secret {}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Bytes of a hexadecimal text; white space is skipped.
    pub(crate) fn unhex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        assert!(digits.len().is_multiple_of(2), "whole bytes");
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("digits");
        digits.chunks(2).map(pair).collect()
    }

    #[test]
    fn secrets_compare_by_their_bytes() {
        let secret = Secret::from_slice(b"abc");
        assert!(secret == Secret::new(b"abc".to_vec()) && secret == secret.clone());
        assert!(secret != Secret::from_slice(b"abd") && secret != Secret::from_slice(b"ab"));
        assert!(secret.len() == 3 && !secret.is_empty() && Secret::new(Vec::new()).is_empty());
        assert_eq!(&secret[1..], b"bc");
    }
}
