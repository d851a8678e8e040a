//! Certificates for both hosts, created in each run by the CA of `weir pki`: a certificate and a
//! key for each.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use pki::KeyKind;
use pki::authority::{Authority, NewAuthority, Request};
use pki::profile::{DAYS, Name, Usage};

use crate::world::End;

/// PEM texts, in folders as swanctl has them.
pub struct Pki {
    authority: String,
    /// By end: certificate and private key.
    leaves: [(String, String); 2],
    /// Certificates and private keys of further peers ([`Pki::peer_name`]).
    pub peers: Vec<(String, String)>,
}

impl Pki {
    /// Makes keys (ECDSA P-256) and certificates. The CA's key is gone afterwards.
    ///
    /// # Errors
    /// Errors of the certificate library or of the folder for temporary files.
    pub fn make() -> anyhow::Result<Self> {
        Self::with_peers(0)
    }

    /// The same with certificates for so many further peers.
    ///
    /// # Errors
    /// As of [`Pki::make`].
    pub fn with_peers(peers: usize) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("weir-demo-pki-").tempdir()?;
        let new = NewAuthority {
            name: "Weir demonstration CA",
            days: DAYS,
            key: KeyKind::EcdsaP256,
            permit: &[],
            crl_uris: &[],
            passphrase: None,
        };
        let mut authority = Authority::create(&folder.path().join("ca"), &new)?;
        let signer = authority.unlock(None)?;
        let mut leaf = |name: &str| -> anyhow::Result<_> {
            let names = [Name::parse(name)?];
            let request = Request {
                usage: Usage::Peer,
                names: &names,
                file: None,
                days: DAYS,
                key: KeyKind::EcdsaP256,
                force: false,
            };
            let issued = authority.issue(&signer, &request)?;
            Ok((fs::read_to_string(issued.certificate)?, fs::read_to_string(issued.key)?))
        };
        let leaves = [leaf(&Self::name(End::Sun))?, leaf(&Self::name(End::Moon))?];
        let peers = (0..peers).map(|number| leaf(&Self::peer_name(number))).collect::<Result<_, _>>()?;
        Ok(Self { authority: fs::read_to_string(authority.certificate_path())?, leaves, peers })
    }

    /// Certificate and private key of a host, PEM.
    pub fn leaf(&self, end: End) -> (&str, &str) {
        let (certificate, key) = match end {
            End::Sun => &self.leaves[0],
            End::Moon => &self.leaves[1],
        };
        (certificate, key)
    }

    /// Identity of a host: the DNS name in its certificate.
    pub fn name(end: End) -> String {
        format!("{end}.example")
    }

    /// Identity of a further peer.
    pub fn peer_name(number: usize) -> String {
        format!("peer{number}.example")
    }

    /// Writes the credentials of a host into the folders beside its configuration.
    ///
    /// # Errors
    /// What cannot be written.
    pub fn write(&self, end: End, beside: &Path) -> io::Result<()> {
        let (certificate, key) = self.leaf(end);
        let leaf = format!("{end}.pem");
        for (folder, name, text) in
            [("x509ca", "ca.pem", &*self.authority), ("x509", &*leaf, certificate), ("private", &*leaf, key)]
        {
            let folder = beside.join(folder);
            fs::create_dir_all(&folder)?;
            write_private(&folder.join(name), text)?;
        }
        Ok(())
    }
}

/// Writes a file that only its owner can read.
///
/// # Errors
/// What cannot be written.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut open = fs::File::options();
    open.write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_finds_what_it_needs_and_nothing_of_the_other() {
        let dir = std::env::temp_dir().join(format!("weir-demo-pki-{}", std::process::id()));
        Pki::make().unwrap().write(End::Sun, &dir).unwrap();
        let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap();
        assert!(read("x509ca/ca.pem").starts_with("-----BEGIN CERTIFICATE"));
        assert!(read("x509/sun.pem").starts_with("-----BEGIN CERTIFICATE"));
        assert!(read("private/sun.pem").starts_with("-----BEGIN PRIVATE KEY"));
        assert!(!dir.join("private/moon.pem").exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}
