//! Certificates for both hosts, created in each run: a CA, and a leaf certificate for each.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

use super::world::End;

/// PEM texts, in folders as swanctl has them.
pub(crate) struct Pki {
    authority: String,
    /// By end: certificate and private key.
    leaves: [(String, String); 2],
}

impl Pki {
    /// Makes keys (ECDSA P-256) and certificates. The CA's key is gone afterwards.
    ///
    /// # Errors
    /// Errors of the certificate library.
    pub(crate) fn make() -> Result<Self, rcgen::Error> {
        let mut params = params("Weir demonstration CA", Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let authority = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        let leaf = |end| -> Result<_, rcgen::Error> {
            let name = Self::name(end);
            let key = KeyPair::generate()?;
            let mut params = self::params(&name, vec![name.clone()])?;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.use_authority_key_identifier_extension = true;
            Ok((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
        };
        Ok(Self { authority, leaves: [leaf(End::Sun)?, leaf(End::Moon)?] })
    }

    /// Certificate and private key of a host, PEM.
    pub(crate) fn leaf(&self, end: End) -> (&str, &str) {
        let (certificate, key) = match end {
            End::Sun => &self.leaves[0],
            End::Moon => &self.leaves[1],
        };
        (certificate, key)
    }

    /// Identity of a host: the DNS name in its certificate.
    pub(crate) fn name(end: End) -> String {
        format!("{end}.example")
    }

    /// Writes the credentials of a host into the folders beside its configuration.
    ///
    /// # Errors
    /// What cannot be written.
    pub(crate) fn write(&self, end: End, beside: &Path) -> io::Result<()> {
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

/// Valid for any clock of this machine.
fn params(name: &str, sans: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(sans)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(2100, 1, 1);
    Ok(params)
}

/// Writes a file that only its owner can read.
///
/// # Errors
/// What cannot be written.
pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
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
