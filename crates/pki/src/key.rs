//! Private keys: created by AWS-LC, zeroed on drop.

use anyhow::Context as _;
use clap::ValueEnum;
use crypto::ike::{Curve, PrivateKey, PublicKeyKind};
use rcgen::{KeyPair, RsaKeySize};
use zeroize::{Zeroize as _, Zeroizing};

/// Kind and size of a private key.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum KeyKind {
    /// ECDSA with P-256
    EcdsaP256,
    /// ECDSA with P-384
    EcdsaP384,
    /// Ed25519: for Weir and strongSwan only
    Ed25519,
    /// RSA with 3072 bits
    #[value(name = "rsa-3072")]
    Rsa3072,
    /// RSA with 4096 bits
    #[value(name = "rsa-4096")]
    Rsa4096,
}

/// A private key.
pub(crate) struct Key {
    pair: KeyPair,
}

impl Drop for Key {
    fn drop(&mut self) {
        self.pair.zeroize();
    }
}

impl Key {
    /// A new key.
    ///
    /// # Errors
    /// The library's error.
    pub(crate) fn generate(kind: KeyKind) -> anyhow::Result<Self> {
        let pair = match kind {
            KeyKind::EcdsaP256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
            KeyKind::EcdsaP384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
            KeyKind::Ed25519 => KeyPair::generate_for(&rcgen::PKCS_ED25519),
            KeyKind::Rsa3072 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_3072),
            KeyKind::Rsa4096 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_4096),
        };
        // Zeroes the bytes of the first form, which for Ed25519 is version 2 of PKCS #8: OpenSSL
        // 3.0 does not read that.
        let first = Self { pair: pair.context("cannot create a key")? };
        Self::from_der(first.der())
    }

    fn from_der(der: &[u8]) -> anyhow::Result<Self> {
        let der = PrivateKey::from_der(der)?.to_pkcs8().context("cannot encode the key")?;
        Ok(Self { pair: KeyPair::try_from(&der[..]).context("a kind of key that cannot sign certificates")? })
    }

    /// A key from a file: PEM or DER, also encrypted.
    ///
    /// # Errors
    /// The error and the remedy.
    pub(crate) fn from_file(file: &[u8], passphrases: &[&[u8]]) -> anyhow::Result<Self> {
        Self::from_der(&credentials::pkcs8::open(file, passphrases)?)
    }

    pub(crate) fn pair(&self) -> &KeyPair {
        &self.pair
    }

    /// PKCS #8, DER.
    pub(crate) fn der(&self) -> &[u8] {
        self.pair.serialized_der()
    }

    /// PKCS #8, PEM.
    pub(crate) fn pem(&self) -> Zeroizing<String> {
        credentials::pem::encode("PRIVATE KEY", self.der())
    }

    /// Kind of the key.
    ///
    /// # Errors
    /// The key is invalid.
    pub(crate) fn kind(&self) -> anyhow::Result<PublicKeyKind> {
        Ok(PrivateKey::from_der(self.der())?.kind())
    }
}

/// Returns whether the file of a key is encrypted.
pub(crate) fn is_encrypted(file: &[u8]) -> bool {
    const MARK: &[u8] = b"-----BEGIN ENCRYPTED PRIVATE KEY-----";
    file.windows(MARK.len()).any(|window| window == MARK)
}

/// Name of a kind of key, as `--key` has it.
pub(crate) fn name(kind: PublicKeyKind) -> String {
    match kind {
        PublicKeyKind::Rsa { bits } => format!("rsa-{bits}"),
        PublicKeyKind::Ecdsa(Curve::P256) => "ecdsa-p256".to_owned(),
        PublicKeyKind::Ecdsa(Curve::P384) => "ecdsa-p384".to_owned(),
        PublicKeyKind::Ecdsa(Curve::P521) => "ecdsa-p521".to_owned(),
        PublicKeyKind::Ed25519 => "ed25519".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_each_kind_are_created_and_read_again() {
        for (kind, is) in [
            (KeyKind::EcdsaP256, "ecdsa-p256"),
            (KeyKind::EcdsaP384, "ecdsa-p384"),
            (KeyKind::Ed25519, "ed25519"),
            (KeyKind::Rsa3072, "rsa-3072"),
        ] {
            let key = Key::generate(kind).expect("a key");
            assert_eq!(name(key.kind().expect("a kind")), is);
            assert_eq!(kind.to_possible_value().expect("a name").get_name(), is);
            // PrivateKeyInfo of version 1: the INTEGER 0 after the header of the SEQUENCE.
            assert!(key.der()[2..8].windows(3).any(|window| window == [2, 1, 0]), "{is}");
            let again = Key::from_file(key.pem().as_bytes(), &[]).expect("a key");
            assert!(again.der() == key.der());
            let sealed = credentials::pkcs8::seal(key.der(), b"secret").expect("sealed");
            assert!(is_encrypted(sealed.as_bytes()) && !is_encrypted(key.pem().as_bytes()));
            assert!(Key::from_file(sealed.as_bytes(), &[b"other"]).is_err());
            assert!(Key::from_file(sealed.as_bytes(), &[b"secret"]).expect("a key").der() == key.der());
        }
    }
}
