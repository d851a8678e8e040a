//! Public and private keys, and what is signed with them.

use std::sync::Arc;

use zeroize::Zeroizing;

use super::foreign::{Encoding, PKey};
use super::hash::sha1;
use super::{Curve, Hash, HashId, SignatureScheme};

mod raw;

/// RSA keys shorter than this are refused: they are broken.
const RSA_MIN_BITS: usize = 1024;
/// RSA keys longer than this are refused: they add no security that the rest has, and a peer could
/// make us compute for nothing.
const RSA_MAX_BITS: usize = 8192;

/// Kind of a key.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum PublicKeyKind {
    /// RSA.
    Rsa {
        /// Bits of the modulus, 1024 to 8192.
        bits: usize,
    },
    /// ECDSA on a named curve.
    Ecdsa(Curve),
    /// Ed25519.
    Ed25519,
}

/// Reason why a key cannot be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFault {
    /// Not DER of a key, or a key that contradicts itself.
    #[error("not a key")]
    Malformed,
    /// A key of a kind or curve that is not used here.
    #[error("the key is neither RSA, ECDSA on P-256, P-384 or P-521, nor Ed25519")]
    Unsupported,
    /// An RSA key of a length that is refused.
    #[error("an RSA key of {bits} bits; use 1024 to 8192, better 3072 or more")]
    RsaLength {
        /// Bits of the modulus.
        bits: usize,
    },
}

/// Reason why signing or verification failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureFault {
    /// The key cannot be used with the scheme.
    #[error("the key does not fit the signature scheme")]
    Scheme,
    /// The signature is not one of these data by this key.
    #[error("the signature is wrong")]
    Wrong,
    /// The key is too short for the scheme.
    #[error("the key is too short for the signature scheme")]
    TooShort,
}

/// A public key. Cheap to clone.
#[derive(Clone)]
pub struct PublicKey(Arc<Public>);

struct Public {
    key: PKey,
    kind: PublicKeyKind,
    spki: Vec<u8>,
    key_bits_at: usize,
}

impl PublicKey {
    /// A key from SubjectPublicKeyInfo in DER, without trailing data.
    ///
    /// # Errors
    /// [`KeyFault`].
    pub fn from_spki(der: &[u8]) -> Result<Self, KeyFault> {
        let key_bits_at = raw::key_bits_at(der).ok_or(KeyFault::Malformed)?;
        let key = PKey::from_spki(der).ok_or(KeyFault::Malformed)?;
        let kind = usable(&key)?;
        Ok(Self(Arc::new(Public { key, kind, spki: der.to_vec(), key_bits_at })))
    }

    /// Kind of the key.
    pub fn kind(&self) -> PublicKeyKind {
        self.0.kind
    }

    /// SubjectPublicKeyInfo, as it was given.
    pub fn spki(&self) -> &[u8] {
        &self.0.spki
    }

    /// SHA-1 of the subjectPublicKey bits: the subjectKeyIdentifier of RFC 5280 §4.2.1.2, by which
    /// configurations name keys.
    pub fn key_id(&self) -> [u8; 20] {
        sha1(&self.0.spki[self.0.key_bits_at..])
    }

    /// SHA-1 of the SubjectPublicKeyInfo: what a CERTREQ payload lists (RFC 7296 §3.7).
    pub fn spki_id(&self) -> [u8; 20] {
        sha1(&self.0.spki)
    }

    /// Verifies a signature of the concatenated data. For [`SignatureScheme::RawRsaPkcs1`] and
    /// [`SignatureScheme::RawEcdsa`] the data are the hash.
    ///
    /// # Errors
    /// [`SignatureFault`].
    pub fn verify(&self, scheme: SignatureScheme, data: &[&[u8]], signature: &[u8]) -> Result<(), SignatureFault> {
        let key = &self.0.key;
        let right = match plan(self.0.kind, scheme)? {
            Plan::Message => key.verify_message(&data.concat(), signature),
            Plan::Bare => key.verify_digest(Encoding::Pkcs1Bare, &data.concat(), signature),
            Plan::Hashed(encoding, hash) => key.verify_digest(encoding, &hash.digest(data), signature),
            Plan::Classic(curve) => raw::to_der(signature, curve.coordinate_len())
                .is_some_and(|der| key.verify_digest(Encoding::Ecdsa, &curve.hash().digest(data), &der)),
            Plan::Digest(curve) => raw::to_der(signature, curve.coordinate_len())
                .is_some_and(|der| key.verify_digest(Encoding::Ecdsa, &data.concat(), &der)),
        };
        if right { Ok(()) } else { Err(SignatureFault::Wrong) }
    }
}

impl PartialEq for PublicKey {
    /// The same key, whatever its encoding.
    fn eq(&self, other: &Self) -> bool {
        self.0.key.same_public(&other.0.key)
    }
}

impl Eq for PublicKey {}

impl std::fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PublicKey").field("kind", &self.0.kind).field("key_id", &self.key_id()).finish()
    }
}

/// A private key with its public half. Zeroed on drop; has no `Debug`. May be used by several
/// threads at once.
pub struct PrivateKey {
    key: PKey,
    public: PublicKey,
}

impl PrivateKey {
    /// A key from DER: PKCS #8 (versions 1 and 2), PKCS #1 for RSA, or SEC 1 for ECDSA. The caller
    /// zeroes its own copy.
    ///
    /// # Errors
    /// [`KeyFault`].
    pub fn from_der(der: &[u8]) -> Result<Self, KeyFault> {
        let parsers = [PKey::from_pkcs8, PKey::from_rsa, PKey::from_sec1];
        let key = parsers.iter().find_map(|parse| parse(der)).ok_or(KeyFault::Malformed)?;
        usable(&key)?;
        let public = PublicKey::from_spki(&key.spki().ok_or(KeyFault::Malformed)?)?;
        Ok(Self { key, public })
    }

    /// PKCS #8 of version 1 (RFC 5208), which every program reads. `None` when memory is short.
    pub fn to_pkcs8(&self) -> Option<Zeroizing<Vec<u8>>> {
        self.key.pkcs8()
    }

    /// The public half.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Kind of the key.
    pub fn kind(&self) -> PublicKeyKind {
        self.public.kind()
    }

    /// Signs the concatenated data. For [`SignatureScheme::RawRsaPkcs1`] and
    /// [`SignatureScheme::RawEcdsa`] the data are the hash.
    ///
    /// # Errors
    /// [`SignatureFault::Scheme`] or [`SignatureFault::TooShort`].
    pub fn sign(&self, scheme: SignatureScheme, data: &[&[u8]]) -> Result<Vec<u8>, SignatureFault> {
        let made = match plan(self.kind(), scheme)? {
            Plan::Message => self.key.sign_message(&Zeroizing::new(data.concat())),
            Plan::Bare => self.key.sign_digest(Encoding::Pkcs1Bare, &data.concat()),
            Plan::Hashed(encoding, hash) => self.key.sign_digest(encoding, &hash.digest(data)),
            Plan::Classic(curve) => {
                let der = self.key.sign_digest(Encoding::Ecdsa, &curve.hash().digest(data));
                der.and_then(|der| raw::from_der(&der, curve.coordinate_len()))
            }
            Plan::Digest(curve) => {
                let der = self.key.sign_digest(Encoding::Ecdsa, &data.concat());
                der.and_then(|der| raw::from_der(&der, curve.coordinate_len()))
            }
        };
        made.ok_or(SignatureFault::TooShort)
    }

    /// The scheme to use with a peer that takes these hashes (RFC 7427 §4): the hash that matches
    /// the key's strength, else the next stronger, else the next weaker one; PSS for RSA, which RFC
    /// 8247 §3.2 prefers; never SHA-1. `None` when the peer takes none: then what is left are the
    /// authentication methods 1 and 9 to 11.
    pub fn best_scheme(&self, peer_hashes: &[HashId]) -> Option<SignatureScheme> {
        use Hash::{Sha256, Sha384, Sha512};
        let (order, scheme): (_, fn(Hash) -> SignatureScheme) = match self.kind() {
            PublicKeyKind::Ed25519 => {
                return peer_hashes.contains(&HashId::IDENTITY).then_some(SignatureScheme::Ed25519);
            }
            // PSS with SHA-512 does not fit 1024 bits; the library's answer would be a failure.
            PublicKeyKind::Rsa { bits } if bits < 2048 => ([Sha256, Sha384, Sha256], SignatureScheme::RsaPss),
            PublicKeyKind::Rsa { bits } if bits <= 3072 => ([Sha256, Sha384, Sha512], SignatureScheme::RsaPss),
            PublicKeyKind::Rsa { bits } if bits <= 7680 => ([Sha384, Sha512, Sha256], SignatureScheme::RsaPss),
            PublicKeyKind::Rsa { .. } => ([Sha512, Sha384, Sha256], SignatureScheme::RsaPss),
            PublicKeyKind::Ecdsa(Curve::P256) => ([Sha256, Sha384, Sha512], SignatureScheme::Ecdsa),
            PublicKeyKind::Ecdsa(Curve::P384) => ([Sha384, Sha512, Sha256], SignatureScheme::Ecdsa),
            PublicKeyKind::Ecdsa(Curve::P521) => ([Sha512, Sha384, Sha256], SignatureScheme::Ecdsa),
        };
        let taken = |hash: &Hash| hash.id().is_some_and(|id| peer_hashes.contains(&id));
        order.into_iter().find(taken).map(scheme)
    }
}

fn usable(key: &PKey) -> Result<PublicKeyKind, KeyFault> {
    match key.kind().ok_or(KeyFault::Unsupported)? {
        PublicKeyKind::Rsa { bits } if !(RSA_MIN_BITS..=RSA_MAX_BITS).contains(&bits) => {
            Err(KeyFault::RsaLength { bits })
        }
        kind => Ok(kind),
    }
}

/// Operation on the data and the key.
enum Plan {
    Message,
    Bare,
    Hashed(Encoding, Hash),
    Classic(Curve),
    Digest(Curve),
}

/// Schemes that a key supports.
fn plan(kind: PublicKeyKind, scheme: SignatureScheme) -> Result<Plan, SignatureFault> {
    use PublicKeyKind::{Ecdsa, Ed25519, Rsa};
    match (kind, scheme) {
        // No signature over MD5 has been worth anything for long.
        (
            _,
            SignatureScheme::RsaPkcs1(Hash::Md5)
            | SignatureScheme::RsaPss(Hash::Md5)
            | SignatureScheme::Ecdsa(Hash::Md5),
        ) => Err(SignatureFault::Scheme),
        (Rsa { .. }, SignatureScheme::RsaPkcs1(hash)) => Ok(Plan::Hashed(Encoding::Pkcs1(hash), hash)),
        (Rsa { .. }, SignatureScheme::RsaPss(hash)) => Ok(Plan::Hashed(Encoding::Pss(hash), hash)),
        (Rsa { .. }, SignatureScheme::RawRsaPkcs1) => Ok(Plan::Bare),
        (Ecdsa(_), SignatureScheme::Ecdsa(hash)) => Ok(Plan::Hashed(Encoding::Ecdsa, hash)),
        (Ecdsa(own), SignatureScheme::EcdsaClassic(curve)) if own == curve => Ok(Plan::Classic(curve)),
        (Ecdsa(own), SignatureScheme::RawEcdsa(curve)) if own == curve => Ok(Plan::Digest(curve)),
        (Ed25519, SignatureScheme::Ed25519) => Ok(Plan::Message),
        _ => Err(SignatureFault::Scheme),
    }
}

#[cfg(test)]
mod tests;
