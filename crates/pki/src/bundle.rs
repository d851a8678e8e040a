//! Files that other systems import: the key and the certificate of a client, the CA, and the
//! settings of a connection.

pub(crate) mod apple;
pub(crate) mod strongswan;
pub(crate) mod windows;

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use credentials::Certificate;
use credentials::pkcs12::{self, Protection};
use crypto::ike::{Curve, PublicKeyKind};
use zeroize::Zeroizing;

use crate::key::Key;

/// Encryption of the PKCS #12 file.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Cipher {
    /// AES-256 and SHA-256: OpenSSL 3, Windows 10 and later
    Aes256,
    /// Triple DES and SHA-1: Apple's systems, old Windows and Android
    #[value(name = "3des")]
    TripleDes,
}

impl Cipher {
    fn protection(self) -> Protection {
        match self {
            Self::Aes256 => Protection::Aes256,
            Self::TripleDes => Protection::TripleDes,
        }
    }
}

/// A client with its credentials.
pub(crate) struct Client<'a> {
    /// Name of its files, shown by the program that imports them.
    pub(crate) name: &'a str,
    /// Names in its certificate.
    pub(crate) names: &'a [String],
    pub(crate) key: &'a Key,
    pub(crate) certificate: &'a Certificate,
    pub(crate) authority: &'a Certificate,
    /// Common name of the CA.
    pub(crate) authority_name: &'a str,
}

/// The gateway that the client connects to.
#[derive(Clone, Debug)]
pub(crate) struct Gateway {
    /// DNS name or address.
    pub(crate) address: String,
    /// Identity: a name in its certificate.
    pub(crate) id: String,
    /// Networks behind it; all traffic if empty.
    pub(crate) networks: Vec<String>,
}

impl Client<'_> {
    /// Key, certificate and CA as PKCS #12.
    ///
    /// # Errors
    /// The password is unusable.
    pub(crate) fn pkcs12(&self, password: &str, cipher: Cipher) -> anyhow::Result<Zeroizing<Vec<u8>>> {
        let authorities = [self.authority.der()];
        let file = pkcs12::seal(
            self.key.der(),
            self.certificate.der(),
            &authorities,
            self.name,
            password,
            cipher.protection(),
        )?;
        // A wrong file would only be found on the machine of the client.
        let again = pkcs12::open(&file, &[password.as_bytes()]).context("the PKCS #12 file cannot be read again")?;
        ensure!(again.key.is_some() && again.certificates.len() == 2, "the PKCS #12 file is incomplete");
        Ok(Zeroizing::new(file))
    }

    /// Refuses kinds of keys that the system does not support.
    fn require_common_key(&self, system: &str) -> anyhow::Result<()> {
        match self.key.kind()? {
            PublicKeyKind::Rsa { .. } | PublicKeyKind::Ecdsa(Curve::P256 | Curve::P384) => Ok(()),
            _ => bail!(
                "{system} does not import this kind of key; issue the certificate with --key ecdsa-p256 or rsa-3072"
            ),
        }
    }

    /// Identity of the client: an e-mail address or a DNS name, else its first name.
    fn id(&self) -> &str {
        let mail = self.names.iter().find(|name| name.contains('@'));
        mail.or(self.names.first()).map_or("", String::as_str)
    }

    /// A UUID that is the same each time for one client, gateway and purpose, so that an import
    /// replaces the earlier one.
    fn uuid(&self, gateway: &Gateway, purpose: &str) -> String {
        let parts =
            [&self.authority.fingerprint()[..], self.name.as_bytes(), gateway.address.as_bytes(), purpose.as_bytes()];
        let mut id =
            credentials::sha256(&parts.map(|part| [&(part.len() as u32).to_be_bytes(), part].concat()).concat());
        // Version 8 (RFC 9562 §5.8).
        id[6] = id[6] & 0x0f | 0x80;
        id[8] = id[8] & 0x3f | 0x80;
        let hex = crate::text::hex(&id[..16]);
        [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::authority::{Authority, NewAuthority, Request};
    use crate::key::KeyKind;
    use crate::profile::{Name, Usage};

    pub(crate) fn gateway() -> Gateway {
        Gateway {
            address: "vpn.example.org".to_owned(),
            id: "vpn.example.org".to_owned(),
            networks: vec!["10.2.0.0/16".to_owned(), "2001:db8:2::/48".to_owned()],
        }
    }

    /// Runs `test` with a client whose key is of that kind.
    pub(crate) fn with_client(kind: KeyKind, test: impl FnOnce(&Client<'_>)) {
        let folder = tempfile::tempdir().expect("a folder");
        let new = NewAuthority {
            name: "Müller & <Söhne>",
            days: 9,
            key: KeyKind::EcdsaP256,
            permit: &[],
            crl_uris: &[],
            passphrase: None,
        };
        let mut ca = Authority::create(folder.path(), &new).expect("a CA");
        let signer = ca.unlock(None).expect("its key");
        let names = ["alice", "alice@example.org"].map(|name| Name::parse(name).expect("a name"));
        let request = Request { usage: Usage::Client, names: &names, file: None, days: 5, key: kind, force: false };
        ca.issue(&signer, &request).expect("a certificate");
        let (entry, certificate, key) = ca.issued("alice").expect("files");
        let authority_name = ca.name();
        test(&Client {
            name: &entry.name,
            names: &entry.names,
            key: &key,
            certificate: &certificate,
            authority: ca.certificate(),
            authority_name: &authority_name,
        });
    }

    #[test]
    fn identifiers_are_stable_and_differ_by_purpose() {
        with_client(KeyKind::EcdsaP256, |client| {
            let (one, other) = (client.uuid(&gateway(), "a"), client.uuid(&gateway(), "b"));
            assert_eq!(one, client.uuid(&gateway(), "a"));
            assert_ne!(one, other);
            assert_eq!(one.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
            assert_eq!(client.id(), "alice@example.org");
        });
    }
}
