//! Certificates and public keys that a configuration names, and the folders beside it.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use ike::identity::Identity;

use super::gateway::Gateway;
use super::outside::Outside;
use super::problem::Problem;
use super::schema::CERT;
use super::value::{Fields, ValueError, from_base64, from_hex, items};

/// A certificate, as passed to the credential store.
#[derive(Clone, Eq, PartialEq)]
pub struct Certificate {
    /// DER.
    pub der: Vec<u8>,
    /// Origin, for messages: a path, or the name of a message.
    pub from: String,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[certificate of {} bytes from {}]", self.der.len(), self.from)
    }
}

impl Certificate {
    /// SHA-256 of the DER: the part of it that a connection keeps.
    pub fn fingerprint(&self) -> [u8; 32] {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &self.der);
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(digest.as_ref());
        fingerprint
    }
}

/// Certificates that connections and authorities name; the credential store must have them all.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Certificates {
    /// Of this host and of peers.
    pub end_entities: Vec<Certificate>,
    /// Of CAs, which are trusted by being named.
    pub authorities: Vec<Certificate>,
}

/// Files in the folders beside a configuration, sorted by name. Reading them is up to the
/// credential store.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[allow(missing_docs)] // each is named as its folder
pub struct CertDirs {
    pub x509: Vec<PathBuf>,
    pub x509ca: Vec<PathBuf>,
    pub x509aa: Vec<PathBuf>,
    pub x509ocsp: Vec<PathBuf>,
    pub x509crl: Vec<PathBuf>,
    pub x509ac: Vec<PathBuf>,
    pub pubkey: Vec<PathBuf>,
    pub private: Vec<PathBuf>,
    pub rsa: Vec<PathBuf>,
    pub ecdsa: Vec<PathBuf>,
    pub pkcs8: Vec<PathBuf>,
    pub pkcs12: Vec<PathBuf>,
}

impl CertDirs {
    /// Lists the files in the directories below `folder`; a missing directory counts as empty.
    pub fn collect(folder: &Path) -> Self {
        let list = |name: &str| {
            let entries = std::fs::read_dir(folder.join(name)).into_iter().flatten().flatten();
            let visible = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
            let mut files: Vec<PathBuf> = visible.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
            files.sort();
            files
        };
        Self {
            x509: list("x509"),
            x509ca: list("x509ca"),
            x509aa: list("x509aa"),
            x509ocsp: list("x509ocsp"),
            x509crl: list("x509crl"),
            x509ac: list("x509ac"),
            pubkey: list("pubkey"),
            private: list("private"),
            rsa: list("rsa"),
            ecdsa: list("ecdsa"),
            pkcs8: list("pkcs8"),
            pkcs12: list("pkcs12"),
        }
    }

    /// The files of the folder of that name.
    pub fn of(&self, folder: &str) -> &[PathBuf] {
        match folder {
            "x509" => &self.x509,
            "x509ca" => &self.x509ca,
            "x509aa" => &self.x509aa,
            "x509ocsp" => &self.x509ocsp,
            "x509crl" => &self.x509crl,
            "x509ac" => &self.x509ac,
            "pubkey" => &self.pubkey,
            "private" => &self.private,
            "rsa" => &self.rsa,
            "ecdsa" => &self.ecdsa,
            "pkcs8" => &self.pkcs8,
            "pkcs12" => &self.pkcs12,
            _ => &[],
        }
    }
}

/// Context shared by the readers of the sections of IKE and of the PSP key service.
pub(crate) struct Context<'a> {
    pub(crate) outside: &'a Outside<'a>,
    pub(crate) gateway: &'a Gateway,
    pub(crate) certificates: RefCell<Certificates>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(outside: &'a Outside<'a>, gateway: &'a Gateway) -> Self {
        Self { outside, gateway, certificates: RefCell::default() }
    }

    /// Contents of the files, literals or octets of `key`, DER, with where each came from.
    pub(crate) fn files(&self, fields: &Fields<'_>, key: &'static str, folder: &str) -> Vec<Certificate> {
        let Some(setting) = fields.setting(key) else { return Vec::new() };
        let mut found = Vec::new();
        for item in items(setting) {
            let read = if setting.items.is_some() {
                der(&item).map(|der| Certificate { der, from: setting.at.to_string() })
            } else {
                self.named(&String::from_utf8_lossy(&item), folder, &setting.at.to_string())
            };
            match read {
                Ok(certificate) => found.push(certificate),
                Err(Unread { what, help }) => {
                    let message = format!("{}.{key}: {what}", fields.path());
                    fields.sink().push(Problem::at(&setting.value_at, message).help(help));
                }
            }
        }
        found
    }

    /// Subject of a certificate that was named, by its fingerprint; `None` if it cannot be read or
    /// has no subject.
    pub(crate) fn subject_of(&self, fingerprint: &[u8; 32]) -> Option<Identity> {
        let known = self.certificates.borrow();
        let named = known.end_entities.iter().find(|there| there.fingerprint() == *fingerprint)?;
        let subject = credentials::Certificate::from_der(&named.der).ok()?.subject().to_vec();
        // An empty SEQUENCE is not a name.
        (subject.len() > 2).then(|| Identity::of_dn(subject))
    }

    fn named(&self, text: &str, folder: &str, from: &str) -> Result<Certificate, Unread> {
        let literal = match (text.get(..2), text.get(2..)) {
            (Some("0x" | "0X"), Some(hex)) => Some(from_hex(hex)),
            (Some("0s" | "0S"), Some(base64)) => Some(from_base64(base64)),
            _ => None,
        };
        if let Some(octets) = literal {
            let octets = octets.ok_or_else(|| Unread {
                what: "invalid octets".into(),
                help: "write 0x and hexadecimal digits, 0s and base64, or the name of a file".into(),
            })?;
            return der(&octets).map(|der| Certificate { der, from: from.to_owned() });
        }
        let path = self.outside.folder.join(folder).join(text);
        let bytes = (self.outside.read)(&path).map_err(|why| Unread {
            what: format!("cannot read {}: {why}", path.display()),
            help: format!(
                "put the file into {}, or write its absolute path",
                self.outside.folder.join(folder).display()
            ),
        })?;
        der(&bytes)
            .map(|der| Certificate { der, from: path.display().to_string() })
            .map_err(|unread| Unread { what: format!("{}: {}", path.display(), unread.what), ..unread })
    }

    /// As [`Self::files`], with the subsections `cert…` or `cacert…`; remembered for the credential
    /// store.
    pub(crate) fn certificates(&self, fields: &Fields<'_>, ca: bool) -> Vec<[u8; 32]> {
        let (key, prefix, folder) = if ca { ("cacerts", "cacert", "x509ca") } else { ("certs", "cert", "x509") };
        let mut found = self.files(fields, key, folder);
        for section in fields.section().sections.iter().filter(|section| section.name.starts_with(prefix)) {
            let path = format!("{}.{}", fields.path(), section.name);
            let inner = Fields::of(section, path, CERT, fields.sink());
            let file = inner.get("file", absolute).is_some();
            if file {
                found.extend(self.files(&inner, "file", folder));
            } else if section.setting("file").is_none() && section.setting("handle").is_none() {
                inner.fault("'file' is missing", "add 'file = /absolute/path/of/the/certificate'");
            }
            inner.finish(&[], |_| None);
        }
        let fingerprints = found.iter().map(Certificate::fingerprint).collect();
        let mut wanted = self.certificates.borrow_mut();
        if ca { &mut wanted.authorities } else { &mut wanted.end_entities }.extend(found);
        fingerprints
    }
}

pub(crate) fn absolute(text: &str) -> Result<PathBuf, ValueError> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("write an absolute path".into()) }
}

struct Unread {
    what: String,
    help: String,
}

/// The DER in `bytes`, which are DER or the first block of PEM.
fn der(bytes: &[u8]) -> Result<Vec<u8>, Unread> {
    let found = if bytes.first() == Some(&0x30) { Some(bytes.to_vec()) } else { from_pem(bytes) };
    found.filter(|der| is_one_sequence(der)).ok_or_else(|| Unread {
        what: "neither DER nor PEM".into(),
        help: "write the output of 'openssl x509' or 'openssl pkey -pubout'".into(),
    })
}

/// The octets of the first block (RFC 7468).
fn from_pem(bytes: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (_, rest) = text.split_once("-----BEGIN ")?;
    let (_label, rest) = rest.split_once("-----")?;
    let (body, _) = rest.split_once("-----END ")?;
    let body: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    from_base64(&body)
}

/// Returns whether `der` is a SEQUENCE and nothing after it.
fn is_one_sequence(der: &[u8]) -> bool {
    let (Some(0x30), Some(&first)) = (der.first(), der.get(1)) else { return false };
    let (length, header) = match first {
        short @ ..=0x7f => (usize::from(short), 2),
        0x81..=0x84 => {
            let count = usize::from(first & 0x7f);
            let Some(octets) = der.get(2..2 + count) else { return false };
            (octets.iter().fold(0usize, |n, octet| n << 8 | usize::from(*octet)), 2 + count)
        }
        _ => return false,
    };
    der.len() == header + length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pem_and_der_are_told_apart() {
        let whole = [0x30, 3, 2, 1, 5];
        let pem = b"comment\n-----BEGIN CERTIFICATE-----\nMAMC\nAQU=\n-----END CERTIFICATE-----\nmore";
        assert_eq!(der(&whole).ok(), Some(whole.to_vec()));
        assert_eq!(der(pem).ok(), Some(whole.to_vec()));
        let mut long = vec![0x30, 0x81, 0x80];
        long.extend([0; 0x80]);
        assert!(der(&long).is_ok() && der(&long[..100]).is_err());
        for bad in [&b""[..], b"0", b"-----BEGIN X-----", b"hello", &whole[..4], &[0x30, 0x85, 0, 0, 0, 0, 0]] {
            assert!(der(bad).is_err());
        }
    }
}
