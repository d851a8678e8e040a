//! A certification authority in a folder.
//!
//! | file | contents |
//! |---|---|
//! | `ca.key` | private key, 0600; PKCS #8, optionally encrypted |
//! | `ca.crt` | certificate |
//! | `ca.crl` | the last CRL, DER |
//! | `index.toml` | every certificate, with its revocation |
//! | `certs/NAME.crt`, `private/NAME.key` | what was issued |
//!
//! One process at a time changes a folder: [`Authority`] holds a lock on it.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use credentials::{Certificate, Crl};
use rcgen::{
    CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType, DnValue, Issuer, KeyIdMethod,
    KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use rustix::fs::FlockOperation;
use x509_cert::der::oid::AssociatedOid as _;
use x509_cert::der::{Decode as _, Tag, Tagged as _};
use x509_cert::ext::pkix::{CrlNumber, SubjectKeyIdentifier};

use crate::date::{self, DAY_S};
use crate::file::{self, Existing, Mode};
use crate::index::{Entry, Index, Revoked};
use crate::key::{self, Key, KeyKind};
use crate::passphrase;
use crate::profile::{Draft, Name, Usage};
use crate::text::{hex, unhex};

pub use crate::index::Reason;

/// Names of the files.
const KEY: &str = "ca.key";
const CERTIFICATE: &str = "ca.crt";
const CRL: &str = "ca.crl";
const INDEX: &str = "index.toml";
const LOCK: &str = "lock";

/// The folder of an authority, locked.
pub struct Authority {
    folder: PathBuf,
    certificate: Certificate,
    index: Index,
    _lock: File,
}

/// A new authority.
#[derive(Clone, Debug)]
pub struct NewAuthority<'a> {
    /// Common name.
    pub name: &'a str,
    /// Days of validity.
    pub days: u32,
    /// Kind of the private key.
    pub key: KeyKind,
    /// Names that it may issue for; any if empty.
    pub permit: &'a [String],
    /// URIs of its CRL, which are written into each certificate.
    pub crl_uris: &'a [String],
    /// Passphrase that encrypts the private key.
    pub passphrase: Option<&'a str>,
}

/// A certificate to issue.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Role of the subject.
    pub usage: Usage,
    /// Names of the subject; the first is the common name, too.
    pub names: &'a [Name],
    /// Name of the files; that of the first name if `None`.
    pub file: Option<&'a str>,
    /// Days of validity, at most until that of the CA ends.
    pub days: u32,
    /// Kind of the private key.
    pub key: KeyKind,
    /// Replace the files of an earlier certificate.
    pub force: bool,
}

/// A certificate that was issued.
#[derive(Clone, Debug)]
pub struct Issued {
    /// Name of the files.
    pub name: String,
    /// Hexadecimal.
    pub serial: String,
    /// Seconds since 1970.
    pub not_after: i64,
    /// It ends with the certificate of the CA, before the days that were requested.
    pub cut_short: bool,
    /// Serial numbers of earlier certificates with the name, which stay valid.
    pub replaced: Vec<String>,
    /// File of the certificate.
    pub certificate: PathBuf,
    /// File of the private key.
    pub key: PathBuf,
}

/// A CRL that was written.
#[derive(Clone, Debug)]
pub struct Published {
    /// Number of the CRL.
    pub number: u64,
    /// Certificates that it revokes.
    pub revoked: usize,
    /// Seconds since 1970.
    pub next_update: i64,
    /// The file, DER.
    pub path: PathBuf,
}

impl Authority {
    /// Creates a key, a self-signed certificate and an empty index in a folder, which is created.
    ///
    /// # Errors
    /// The folder has an authority already, a setting is invalid, or the file system's error.
    pub fn create(folder: &Path, new: &NewAuthority<'_>) -> anyhow::Result<Self> {
        let permitted = new.permit.iter().map(|text| crate::profile::permitted(text)).collect::<Result<_, _>>()?;
        new.crl_uris.iter().try_for_each(|uri| check_uri(uri))?;
        let draft = Draft::authority(new.name, new.days, permitted)?;
        // Never replaced, whatever the options: everything that the old key issued would be lost.
        for name in [KEY, CERTIFICATE, INDEX] {
            let path = folder.join(name);
            ensure!(!path.exists(), "{} exists: this folder has a CA; use another folder", path.display());
        }
        file::folder(folder)?;
        let lock = lock(folder)?;
        let key = Key::generate(new.key)?;
        let der = draft.params.self_signed(key.pair()).context("cannot sign the certificate of the CA")?;
        let certificate = Certificate::from_der(der.der())?;
        credentials::check_issued(&certificate, &certificate)?;
        let pem = match new.passphrase {
            Some(passphrase) => credentials::pkcs8::seal(key.der(), passphrase.as_bytes())?,
            None => key.pem(),
        };
        let index = Index::new(new.crl_uris.to_vec());
        file::write(&folder.join(KEY), pem.as_bytes(), Mode::Secret, Existing::Refuse)?;
        let pem = credentials::pem::encode("CERTIFICATE", certificate.der());
        file::write(&folder.join(CERTIFICATE), pem.as_bytes(), Mode::Public, Existing::Refuse)?;
        index.write(&folder.join(INDEX))?;
        Ok(Self { folder: folder.to_owned(), certificate, index, _lock: lock })
    }

    /// Opens a folder that [`Self::create`] made.
    ///
    /// # Errors
    /// There is no authority, another process uses it, or a file is invalid.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        let index = folder.join(INDEX);
        if !index.exists() {
            bail!("no CA in {}: create one with 'weir pki ca', or name its folder with --ca", folder.display());
        }
        let lock = lock(folder)?;
        let path = folder.join(CERTIFICATE);
        let certificate = one_certificate(&path)?;
        ensure!(certificate.is_ca(), "{}: not a CA according to its basic constraints", path.display());
        Ok(Self { folder: folder.to_owned(), certificate, index: Index::read(&index)?, _lock: lock })
    }

    /// The certificate of the CA.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// File of the certificate.
    pub fn certificate_path(&self) -> PathBuf {
        self.folder.join(CERTIFICATE)
    }

    /// File of the private key.
    pub fn key_path(&self) -> PathBuf {
        self.folder.join(KEY)
    }

    /// Common name of the CA, or all of its name.
    pub fn name(&self) -> String {
        let all = credentials::show_name(self.certificate.subject());
        all.strip_prefix("CN=").filter(|name| !name.contains(',')).map_or(all.clone(), str::to_owned)
    }

    /// Seconds since 1970 until which the certificate of the CA is valid.
    pub fn until(&self) -> i64 {
        i64::try_from(self.certificate.validity().1.as_secs()).unwrap_or(i64::MAX)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.index.certificates
    }

    /// Private key of the CA. An encrypted key takes its passphrase from the file, or from the
    /// terminal.
    ///
    /// # Errors
    /// The key cannot be read or is not that of the certificate.
    pub fn unlock(&self, passphrase_file: Option<&Path>) -> anyhow::Result<Signer> {
        let path = self.key_path();
        let file = file::read(&path)?;
        let passphrase = match passphrase_file {
            Some(file) => Some(passphrase::from_file(file)?),
            None if key::is_encrypted(&file) => {
                Some(passphrase::ask(&format!("passphrase of {}", path.display()), "use --passphrase-file FILE")?)
            }
            None => None,
        };
        let passphrases: Vec<&[u8]> = passphrase.iter().map(|text| text.as_bytes()).collect();
        let key = Key::from_file(&file, &passphrases).with_context(|| path.display().to_string())?;
        let public = crypto::ike::PrivateKey::from_der(key.der())?;
        ensure!(
            public.public() == self.certificate.key(),
            "{} does not belong to {}",
            path.display(),
            self.certificate_path().display()
        );
        let mut params = CertificateParams::default();
        let parsed = x509_cert::Certificate::from_der(self.certificate.der())?.tbs_certificate;
        params.distinguished_name = same_name(&parsed.subject)?;
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key_id =
            parsed.extensions.iter().flatten().find(|extension| extension.extn_id == SubjectKeyIdentifier::OID);
        if let Some(extension) = key_id {
            let id = SubjectKeyIdentifier::from_der(extension.extn_value.as_bytes())?;
            params.key_identifier_method = KeyIdMethod::PreSpecified(id.0.as_bytes().to_vec());
        }
        Ok(Signer { key, params })
    }

    /// Issues a certificate and creates its private key.
    ///
    /// # Errors
    /// The name has a valid certificate already, a name is not permitted, or the file system's
    /// error.
    pub fn issue(&mut self, signer: &Signer, request: &Request<'_>) -> anyhow::Result<Issued> {
        let now = date::now();
        let until = self.until();
        ensure!(until > now, "the certificate of the CA expired on {}", date::day(until));
        let first = request.names.first().context("--id is missing: name of the subject")?;
        let name = match request.file {
            Some(name) => name.to_owned(),
            // A colon separates hosts from paths in scp.
            None => first.as_str().replace(':', "-"),
        };
        check_file_name(&name)?;
        let paths = self.paths(&name);
        let replaced: Vec<String> = self.index.valid(&name, now).map(|entry| entry.serial.clone()).collect();
        if !request.force {
            if let Some(serial) = replaced.first() {
                bail!(
                    "'{name}' has a valid certificate with the serial number {}; --force issues another one",
                    short(serial)
                );
            }
            if let Some(path) = [&paths.0, &paths.1].into_iter().find(|path| path.exists()) {
                bail!("{} exists; --force replaces it", path.display());
            }
        }
        let draft = Draft::end_entity(request.usage, request.names, request.days, until, &self.index.crl_uris)?;
        let cut_short = draft.not_after < now + i64::from(request.days) * DAY_S;
        let key = Key::generate(request.key)?;
        let signed = draft.params.signed_by(key.pair(), &signer.issuer()).context("cannot sign the certificate")?;
        let certificate = Certificate::from_der(signed.der())?;
        credentials::check_issued(&certificate, &self.certificate)?;
        for path in [&paths.0, &paths.1] {
            file::folder(path.parent().unwrap_or(&self.folder))?;
        }
        // The index first: a certificate that is not in it could not be revoked.
        self.index.certificates.push(Entry {
            serial: hex(&draft.serial),
            name: name.clone(),
            usage: request.usage,
            names: request.names.iter().map(|name| name.as_str().to_owned()).collect(),
            not_before: draft.not_before,
            not_after: draft.not_after,
            revoked: None,
        });
        self.index.write(&self.folder.join(INDEX))?;
        let existing = Existing::by(request.force);
        file::write(&paths.1, key.pem().as_bytes(), Mode::Secret, existing)?;
        let pem = credentials::pem::encode("CERTIFICATE", certificate.der());
        file::write(&paths.0, pem.as_bytes(), Mode::Public, existing)?;
        let (certificate, key) = paths;
        let serial = hex(&draft.serial);
        Ok(Issued { name, serial, not_after: draft.not_after, cut_short, replaced, certificate, key })
    }

    /// Revokes the certificate that a serial number, the beginning of one, or a name identifies.
    /// Returns its serial number, name and time; the next CRL contains it.
    ///
    /// # Errors
    /// There is no such certificate, or several, or it is revoked already.
    pub fn revoke(&mut self, which: &str, reason: Reason) -> anyhow::Result<(String, String)> {
        let now = date::now();
        let entry = self.index.find(which, now)?;
        if let Some(revoked) = entry.revoked {
            bail!("{} ({}) is revoked since {}", entry.name, short(&entry.serial), date::day(revoked.at));
        }
        entry.revoked = Some(Revoked { at: now, reason });
        let found = (entry.serial.clone(), entry.name.clone());
        self.index.write(&self.folder.join(INDEX))?;
        Ok(found)
    }

    /// Writes a CRL with all revoked certificates. Its number is higher than that of every one
    /// before.
    ///
    /// # Errors
    /// The clock is before the last CRL, or the file system's error.
    pub fn publish(&mut self, signer: &Signer, days: u32) -> anyhow::Result<Published> {
        ensure!((1..=3650).contains(&days), "--days {days} is invalid; use 1 to 3650");
        let path = self.folder.join(CRL);
        let now = date::now();
        let mut number = self.index.crl_number;
        if path.exists() {
            // The index may be an old copy.
            let (last, last_number) = last_crl(&path)?;
            let this_update = i64::try_from(last.updates().0.as_secs()).unwrap_or(i64::MAX);
            ensure!(
                this_update <= now,
                "the clock is before the last CRL, of {}; set the clock",
                date::text(this_update)
            );
            number = number.max(last_number);
        }
        let number = number.checked_add(1).context("CRL numbers are exhausted")?;
        let revoked = self
            .index
            .certificates
            .iter()
            .filter_map(|entry| entry.revoked.map(|revoked| (entry, revoked)))
            .map(|(entry, revoked)| {
                let serial = unhex(&entry.serial).context("index.toml: invalid serial number")?;
                Ok(RevokedCertParams {
                    serial_number: SerialNumber::from(serial),
                    revocation_time: date::at(revoked.at)?,
                    reason_code: Some(revoked.reason.code()),
                    invalidity_date: None,
                })
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let next_update = now + i64::from(days) * DAY_S;
        let count = revoked.len();
        let params = CertificateRevocationListParams {
            this_update: date::at(now)?,
            next_update: date::at(next_update)?,
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked,
            key_identifier_method: signer.params.key_identifier_method.clone(),
        };
        let signed = params.signed_by(&signer.issuer()).context("cannot sign the CRL")?;
        let crl = Crl::from_der(signed.der())?;
        ensure!(crl.revoked_count() == count, "the CRL is incomplete");
        // The number first: after a crash it is not used again.
        self.index.crl_number = number;
        self.index.write(&self.folder.join(INDEX))?;
        file::write(&path, crl.der(), Mode::Public, Existing::Replace)?;
        Ok(Published { number, revoked: count, next_update, path })
    }

    /// Files of a certificate and its private key.
    fn paths(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.folder.join("certs").join(format!("{name}.crt")), self.folder.join("private").join(format!("{name}.key")))
    }

    /// The certificate with this name, and its private key.
    ///
    /// # Errors
    /// It was not issued, is revoked or expired, or a file is missing.
    pub(crate) fn issued(&mut self, name: &str) -> anyhow::Result<(Entry, Certificate, Key)> {
        let entry = self.index.find(name, date::now())?.clone();
        ensure!(entry.revoked.is_none(), "'{name}' is revoked");
        let (path, key_path) = self.paths(&entry.name);
        let certificate = one_certificate(&path)?;
        ensure!(
            hex(certificate.serial()) == entry.serial,
            "{}: its serial number is not {}, which index.toml has",
            path.display(),
            short(&entry.serial)
        );
        let key = Key::from_file(&file::read(&key_path)?, &[]).with_context(|| key_path.display().to_string())?;
        Ok((entry, certificate, key))
    }
}

/// Private key of a CA with its name.
pub struct Signer {
    key: Key,
    params: CertificateParams,
}

impl Signer {
    fn issuer(&self) -> Issuer<'_, &rcgen::KeyPair> {
        Issuer::from_params(&self.params, self.key.pair())
    }
}

/// First digits of a serial number: what tables show and commands accept.
pub(crate) fn short(serial: &str) -> &str {
    serial.get(..12).unwrap_or(serial)
}

fn lock(folder: &Path) -> anyhow::Result<File> {
    let path = folder.join(LOCK);
    let file = File::options().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        .with_context(|| format!("another weir pki uses {}", folder.display()))?;
    Ok(file)
}

fn one_certificate(path: &Path) -> anyhow::Result<Certificate> {
    let fault = || path.display().to_string();
    let blocks = credentials::pem::blocks(&file::read(path)?).with_context(fault)?;
    let block = blocks.first().with_context(fault)?;
    Certificate::from_der(&block.der).with_context(fault)
}

fn last_crl(path: &Path) -> anyhow::Result<(Crl, u64)> {
    let fault = || format!("{}: move it away if it is not a CRL of this CA", path.display());
    let bytes = file::read(path)?;
    let crl = Crl::from_der(&bytes).with_context(fault)?;
    let parsed = x509_cert::crl::CertificateList::from_der(&bytes).with_context(fault)?;
    let extensions = parsed.tbs_cert_list.crl_extensions.unwrap_or_default();
    let number = extensions.iter().find(|extension| extension.extn_id == CrlNumber::OID);
    let number = match number {
        Some(extension) => CrlNumber::from_der(extension.extn_value.as_bytes()).with_context(fault)?,
        None => return Ok((crl, 0)),
    };
    let digits = number.0.as_bytes();
    let number = digits.iter().fold(0u64, |number, digit| number << 8 | u64::from(*digit));
    ensure!(digits.len() <= 8, fault());
    Ok((crl, number))
}

/// The same name with the same types of strings: an issuer must repeat the bytes of the subject of
/// its CA.
fn same_name(name: &x509_cert::name::Name) -> anyhow::Result<DistinguishedName> {
    let mut same = DistinguishedName::new();
    for rdn in &name.0 {
        let attributes: Vec<_> = rdn.0.iter().collect();
        let [attribute] = attributes[..] else {
            bail!("a name of the CA with several values in one part is not supported")
        };
        let text = std::str::from_utf8(attribute.value.value()).context("the name of the CA is not UTF-8")?;
        let value = match attribute.value.tag() {
            Tag::Utf8String => DnValue::Utf8String(text.to_owned()),
            Tag::PrintableString => DnValue::PrintableString(text.try_into().context("the name of the CA")?),
            Tag::Ia5String => DnValue::Ia5String(text.try_into().context("the name of the CA")?),
            other => bail!("the name of the CA contains {other}, which is not supported"),
        };
        let oid: Vec<u64> = attribute.oid.arcs().map(u64::from).collect();
        same.push(DnType::from_oid(&oid), value);
    }
    Ok(same)
}

fn check_uri(uri: &str) -> anyhow::Result<()> {
    let good = uri.strip_prefix("http://").is_some_and(|rest| !rest.is_empty());
    ensure!(good && uri.bytes().all(|c| c.is_ascii_graphic()), "--crl-uri '{uri}' is invalid; use http://HOST/PATH");
    Ok(())
}

fn check_file_name(name: &str) -> anyhow::Result<()> {
    let good = |c: u8| c.is_ascii_alphanumeric() || b"._@-+".contains(&c);
    let fits = matches!(name.len(), 1..=100) && !name.starts_with(['.', '-']) && name.bytes().all(good);
    ensure!(fits, "'{name}' is not a file name; choose one with --name, of letters, digits and . _ @ + -");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    pub(crate) fn new<'a>() -> NewAuthority<'a> {
        NewAuthority {
            name: "Test CA",
            days: 100,
            key: KeyKind::EcdsaP256,
            permit: &[],
            crl_uris: &[],
            passphrase: None,
        }
    }

    fn names(list: &[&str]) -> Vec<Name> {
        list.iter().map(|name| Name::parse(name).expect(name)).collect()
    }

    fn request(names: &[Name]) -> Request<'_> {
        Request { usage: Usage::Server, names, file: None, days: 10, key: KeyKind::EcdsaP256, force: false }
    }

    #[test]
    fn a_certificate_is_issued_revoked_and_listed() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("ca");
        let mut ca = Authority::create(&root, &new()).expect("a CA");
        let signer = ca.unlock(None).expect("its key");
        let own = names(&["vpn.example.org", "192.0.2.1"]);
        let issued = ca.issue(&signer, &request(&own)).expect("a certificate");
        let mode = |path: &Path| std::fs::metadata(path).expect("a file").permissions().mode() & 0o777;
        assert_eq!((mode(&issued.key), mode(&issued.certificate), mode(&root.join(KEY))), (0o600, 0o644, 0o600));
        assert_eq!(mode(&root), 0o700);
        let refusal = ca.issue(&signer, &request(&own)).map(drop).expect_err("again").to_string();
        assert!(refusal.contains("has a valid certificate") && refusal.contains("--force"), "{refusal}");
        let forced = ca.issue(&signer, &Request { force: true, ..request(&own) }).expect("another");
        assert_eq!(forced.replaced.concat(), issued.serial);
        assert!(Authority::open(&root).map(drop).expect_err("locked").to_string().contains("another weir pki"));
        drop(ca);

        let mut ca = Authority::open(&root).expect("the CA");
        let signer = ca.unlock(None).expect("its key");
        assert_eq!((ca.name(), ca.entries().len()), ("Test CA".to_owned(), 2));
        let (entry, certificate, key) = ca.issued(&forced.serial).expect("files");
        assert_eq!(
            (entry.names, hex(certificate.serial())),
            (vec!["vpn.example.org".into(), "192.0.2.1".into()], forced.serial.clone())
        );
        assert!(crypto::ike::PrivateKey::from_der(key.der()).expect("a key").public() == certificate.key());
        let first = ca.publish(&signer, 30).expect("a CRL");
        assert_eq!((first.number, first.revoked), (1, 0));
        ca.revoke(&forced.serial, Reason::KeyCompromise).expect("revoked");
        assert!(ca.revoke(&forced.serial, Reason::KeyCompromise).is_err(), "twice");
        assert!(ca.issued(&forced.serial).map(drop).is_err(), "revoked certificates are not bundled");
        let second = ca.publish(&signer, 30).expect("a CRL");
        assert_eq!((second.number, second.revoked), (2, 1));
        let crl = Crl::from_der(&std::fs::read(&second.path).expect("a file")).expect("a CRL");
        assert!(crl.revokes(&certificate));
        // An index from a backup does not take numbers back.
        ca.index.crl_number = 0;
        assert_eq!(ca.publish(&signer, 30).expect("a CRL").number, 3);
    }

    #[test]
    fn an_existing_authority_and_foreign_keys_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        drop(Authority::create(&one, &new()).expect("a CA"));
        let refusal = Authority::create(&one, &new()).map(drop).expect_err("again").to_string();
        assert!(refusal.contains("this folder has a CA"), "{refusal}");
        drop(Authority::create(&other, &new()).expect("a CA"));
        std::fs::copy(other.join(KEY), one.join(KEY)).expect("copied");
        let refusal = Authority::open(&one).expect("the CA").unlock(None).map(drop).expect_err("foreign").to_string();
        assert!(refusal.contains("does not belong to"), "{refusal}");
        assert!(Authority::open(folder.path()).map(drop).expect_err("none").to_string().contains("weir pki ca"));
    }

    #[test]
    fn a_passphrase_protects_the_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let pass = folder.path().join("pass");
        let ca = Authority::create(&folder.path().join("ca"), &NewAuthority { passphrase: Some("secret"), ..new() });
        let ca = ca.expect("a CA");
        assert!(key::is_encrypted(&std::fs::read(ca.key_path()).expect("a file")));
        std::fs::write(&pass, "wrong\n").expect("written");
        assert!(ca.unlock(Some(&pass)).is_err());
        std::fs::write(&pass, "secret\n").expect("written");
        assert!(ca.unlock(Some(&pass)).is_ok());
    }

    #[test]
    fn name_constraints_and_the_end_of_the_authority_bind_what_it_issues() {
        let folder = tempfile::tempdir().expect("a folder");
        let permit = ["example.org".to_owned(), "10.0.0.0/8".to_owned()];
        let settings = NewAuthority { permit: &permit, days: 5, ..new() };
        let mut ca = Authority::create(folder.path(), &settings).expect("a CA");
        let signer = ca.unlock(None).expect("its key");
        let issued = ca.issue(&signer, &request(&names(&["vpn.example.org", "10.1.2.3"]))).expect("a certificate");
        assert!(issued.cut_short && issued.not_after == ca.until());
        for outside in ["vpn.example.net", "192.0.2.1"] {
            let refusal = ca.issue(&signer, &request(&names(&[outside]))).map(drop).expect_err(outside).to_string();
            assert!(refusal.contains("do not permit") && refusal.contains(outside), "{refusal}");
        }
        assert_eq!(ca.entries().len(), 1, "what was refused is not in the index");
    }

    #[test]
    fn file_names_stay_in_their_folder() {
        for bad in ["", "../x", "a/b", ".x", "-x", "a b", "a:b"] {
            assert!(check_file_name(bad).is_err(), "{bad}");
        }
        assert!(check_file_name("alice@example.org").is_ok());
        assert!(check_uri("http://example.org/ca.crl").is_ok());
        assert!(check_uri("https://example.org/ca.crl").is_err() && check_uri("http://").is_err());
    }
}
