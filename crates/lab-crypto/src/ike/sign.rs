//! Signatures: a private key with its public one, for both ends of a measurement.

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rsa::{KeyPair, KeySize};

use super::{HashId, KeyFault, PublicKeyKind, SignatureFault, SignatureScheme, repeat};
use crate::meter::{Operation, is_null, timed};

/// A private key.
pub struct PrivateKey(crypto::ike::PrivateKey);

impl PrivateKey {
    /// A new RSA key of 2048, 3072 or 4096 bits.
    ///
    /// # Errors
    /// [`KeyFault::RsaLength`] for other lengths, [`KeyFault::Malformed`] when the library has no
    /// key.
    pub fn rsa(bits: usize) -> Result<Self, KeyFault> {
        let size = match bits {
            2048 => KeySize::Rsa2048,
            3072 => KeySize::Rsa3072,
            4096 => KeySize::Rsa4096,
            _ => return Err(KeyFault::RsaLength { bits }),
        };
        let pair = KeyPair::generate(size).map_err(|_| KeyFault::Malformed)?;
        Self::from_der(pair.as_der().map_err(|_| KeyFault::Malformed)?.as_ref())
    }

    /// As that of weir-crypto.
    ///
    /// # Errors
    /// [`KeyFault`].
    pub fn from_der(der: &[u8]) -> Result<Self, KeyFault> {
        crypto::ike::PrivateKey::from_der(der).map(Self)
    }

    /// Kind of the key.
    pub fn kind(&self) -> PublicKeyKind {
        self.0.kind()
    }

    /// As that of weir-crypto.
    pub fn best_scheme(&self, peer_hashes: &[HashId]) -> Option<SignatureScheme> {
        self.0.best_scheme(peer_hashes)
    }

    /// Signs the concatenated data; with the null provider the data are repeated.
    ///
    /// # Errors
    /// [`SignatureFault`].
    #[track_caller]
    pub fn sign(&self, scheme: SignatureScheme, data: &[&[u8]]) -> Result<Vec<u8>, SignatureFault> {
        timed(Operation::Sign, || {
            if is_null() {
                let mut signature = vec![0; self.signature_len(scheme)];
                repeat(data, &mut signature);
                return Ok(signature);
            }
            self.0.sign(scheme, data)
        })
    }

    /// Verifies a signature of this key.
    ///
    /// # Errors
    /// [`SignatureFault`].
    #[track_caller]
    pub fn verify(&self, scheme: SignatureScheme, data: &[&[u8]], signature: &[u8]) -> Result<(), SignatureFault> {
        timed(Operation::Verify, || {
            if is_null() {
                let mut own = vec![0; self.signature_len(scheme)];
                repeat(data, &mut own);
                return if own == signature { Ok(()) } else { Err(SignatureFault::Wrong) };
            }
            self.0.public().verify(scheme, data, signature)
        })
    }

    fn signature_len(&self, scheme: SignatureScheme) -> usize {
        match (self.kind(), scheme) {
            (PublicKeyKind::Rsa { bits }, _) => bits / 8,
            (PublicKeyKind::Ed25519, _) => 64,
            // A sequence of two integers, half of which have a leading zero: 71 ± 1 bytes for
            // P-256.
            (PublicKeyKind::Ecdsa(curve), SignatureScheme::Ecdsa(_)) => 2 * curve.coordinate_len() + 7,
            (PublicKeyKind::Ecdsa(curve), _) => 2 * curve.coordinate_len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ike::Hash;
    use crate::meter::{Provider, begin};

    #[test]
    fn signatures_of_both_providers_have_one_length_and_cover_the_data() {
        let key = PrivateKey::rsa(2048).expect("a key");
        let scheme = SignatureScheme::RsaPkcs1(Hash::Sha256.real());
        let signed = || {
            let signature = key.sign(scheme, &[b"data"]).expect("a signature");
            key.verify(scheme, &[b"da", b"ta"], &signature).expect("it is right");
            assert_eq!(key.verify(scheme, &[b"dada"], &signature), Err(SignatureFault::Wrong));
            signature.len()
        };
        let real = signed();
        let measuring = begin(Provider::Null, None);
        assert_eq!(signed(), real);
        drop(measuring);
        assert!(PrivateKey::rsa(1000).is_err());
    }
}
