//! `weir pki show`: contents of certificates, CRLs, keys and PKCS #12 files.

use anyhow::{Context as _, bail};
use credentials::{Certificate, CertificateUse, Crl, Origin, Store};
use crypto::ike::{PrivateKey, PublicKey};
use serde_json::{Map, Value, json};
use x509_cert::der::Decode as _;
use x509_cert::der::oid::AssociatedOid as _;
use x509_cert::ext::pkix::{BasicConstraints, CrlNumber, CrlReason, ExtendedKeyUsage, KeyUsage};

use crate::date;
use crate::key;
use crate::text::{self, hex};

/// Revoked certificates of a CRL that the text lists; JSON has all.
const LISTED: usize = 20;

/// One object of a file.
pub(crate) struct Described {
    fields: Vec<(&'static str, String)>,
    json: Map<String, Value>,
}

impl Described {
    fn new(kind: &'static str) -> Self {
        let mut described = Self { fields: Vec::new(), json: Map::new() };
        described.add("type", kind.to_owned());
        described
    }

    /// A field of the text and of the JSON object.
    fn add(&mut self, name: &'static str, value: String) {
        self.json.insert(name.replace(' ', "_").replace('-', ""), Value::String(value.clone()));
        self.fields.push((name, value));
    }

    fn list(&mut self, name: &'static str, values: Vec<String>) {
        if !values.is_empty() {
            self.fields.push((name, values.join(", ")));
        }
        self.json.insert(name.to_owned(), json!(values));
    }

    fn time(&mut self, name: &'static str, seconds: u64, remark: &str) {
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        self.json.insert(name.replace(' ', "_"), json!(date::text(seconds)));
        let remark = if remark.is_empty() { String::new() } else { format!(" ({remark})") };
        self.fields.push((name, format!("{}{remark}", date::text(seconds))));
    }

    /// Lines for a terminal.
    pub(crate) fn text(&self) -> String {
        text::fields(&self.fields)
    }

    pub(crate) fn json(&self) -> Value {
        Value::Object(self.json.clone())
    }
}

/// Describes every object of a file. `passphrases` open PKCS #12 files and encrypted keys.
///
/// # Errors
/// There is none, or one is malformed.
pub(crate) fn describe(file: &[u8], passphrases: &[&[u8]]) -> anyhow::Result<Vec<Described>> {
    let Ok(blocks) = credentials::pem::blocks(file) else { return pkcs12(file, passphrases) };
    let mut found = Vec::new();
    for block in &blocks {
        let described = match &*block.label {
            "CERTIFICATE" | "X509 CERTIFICATE" | "TRUSTED CERTIFICATE" => vec![certificate(&block.der)?],
            "X509 CRL" => vec![crl(&block.der)?],
            "PUBLIC KEY" => vec![public_key(&block.der)?],
            label if label.ends_with("PRIVATE KEY") => vec![private_key(file, passphrases)?],
            "" => der(&block.der, passphrases)?,
            _ => continue,
        };
        found.extend(described);
    }
    if found.is_empty() {
        bail!("contains no certificate, CRL or key");
    }
    Ok(found)
}

fn der(der: &[u8], passphrases: &[&[u8]]) -> anyhow::Result<Vec<Described>> {
    if x509_cert::Certificate::from_der(der).is_ok() {
        return Ok(vec![certificate(der)?]);
    }
    if x509_cert::crl::CertificateList::from_der(der).is_ok() {
        return Ok(vec![crl(der)?]);
    }
    if PublicKey::from_spki(der).is_ok() {
        return Ok(vec![public_key(der)?]);
    }
    if PrivateKey::from_der(der).is_ok() {
        return Ok(vec![private_key(der, passphrases)?]);
    }
    pkcs12(der, passphrases)
}

fn pkcs12(file: &[u8], passphrases: &[&[u8]]) -> anyhow::Result<Vec<Described>> {
    let found = credentials::pkcs12::open(file, passphrases)
        .context("not a certificate, CRL or key; a PKCS #12 file needs --password-file")?;
    let keys = found.key.iter().map(|key| private_key(key, &[]));
    keys.chain(found.certificates.iter().map(|der| certificate(der))).collect()
}

fn certificate(der: &[u8]) -> anyhow::Result<Described> {
    // Listed by the store of the daemon: the identities are those that it accepts.
    let mut store = Store::default();
    store.add_certificates(der, CertificateUse::EndEntity, Origin::File)?;
    let listed = store.list();
    let listed = listed.first().context("no certificate")?;
    let certificate = Certificate::from_der(der)?;
    let extensions = x509_cert::Certificate::from_der(der)?.tbs_certificate.extensions.unwrap_or_default();
    let mut out = Described::new(if certificate.is_ca() { "CA certificate" } else { "certificate" });
    out.add("subject", listed.subject.clone());
    let own = |name: &String| *name != listed.subject;
    out.list("names", listed.identities.iter().map(ToString::to_string).filter(own).collect());
    out.add("issuer", credentials::show_name(certificate.issuer()));
    out.add("serial", hex(certificate.serial()));
    let (from, until) = certificate.validity();
    let now = u64::try_from(date::now()).unwrap_or(0);
    out.time("not before", from.as_secs(), if from.as_secs() > now { "not yet valid" } else { "" });
    out.time("not after", until.as_secs(), if until.as_secs() < now { "expired" } else { "" });
    out.add("key", key::name(certificate.key().kind()));
    out.add("key id", hex(&certificate.key().key_id()));
    let (mut usage, mut purposes, mut path_len) = (Vec::new(), Vec::new(), None);
    for extension in &extensions {
        let value = extension.extn_value.as_bytes();
        match extension.extn_id {
            KeyUsage::OID => {
                usage = KeyUsage::from_der(value)?.0.into_iter().map(|flag| words(&format!("{flag:?}"))).collect()
            }
            ExtendedKeyUsage::OID => {
                purposes = ExtendedKeyUsage::from_der(value)?.0.iter().map(|oid| purpose(&oid.to_string())).collect();
            }
            BasicConstraints::OID => path_len = BasicConstraints::from_der(value)?.path_len_constraint,
            _ => {}
        }
    }
    out.list("usage", usage);
    out.list("purposes", purposes);
    if let Some(len) = path_len {
        out.add("path length", len.to_string());
    }
    out.add("sha-256", hex(&certificate.fingerprint()));
    Ok(out)
}

/// `DigitalSignature` as RFC 5280 writes it: `digitalSignature`.
fn words(name: &str) -> String {
    match name {
        "KeyCertSign" => "keyCertSign".to_owned(),
        "CRLSign" => "cRLSign".to_owned(),
        _ => {
            let mut chars = name.chars();
            chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
        }
    }
}

fn purpose(oid: &str) -> String {
    match oid {
        "1.3.6.1.5.5.7.3.1" => "serverAuth",
        "1.3.6.1.5.5.7.3.2" => "clientAuth",
        "1.3.6.1.5.5.7.3.17" => "ipsecIKE",
        "1.3.6.1.5.5.8.2.2" => "ikeIntermediate",
        other => other,
    }
    .to_owned()
}

fn crl(der: &[u8]) -> anyhow::Result<Described> {
    let crl = Crl::from_der(der)?;
    let parsed = x509_cert::crl::CertificateList::from_der(der)?.tbs_cert_list;
    let mut out = Described::new("CRL");
    out.add("issuer", credentials::show_name(crl.issuer()));
    for extension in parsed.crl_extensions.iter().flatten() {
        if extension.extn_id == CrlNumber::OID {
            out.add("number", decimal(CrlNumber::from_der(extension.extn_value.as_bytes())?.0.as_bytes()));
        }
    }
    let (this, next) = crl.updates();
    out.time("this update", this.as_secs(), "");
    if let Some(next) = next {
        let late = next.as_secs() < u64::try_from(date::now()).unwrap_or(0);
        out.time("next update", next.as_secs(), if late { "outdated" } else { "" });
    }
    let mut revoked = Vec::new();
    for entry in parsed.revoked_certificates.iter().flatten() {
        let reason = entry.crl_entry_extensions.iter().flatten().find(|extension| extension.extn_id == CrlReason::OID);
        let reason = match reason {
            Some(reason) => words(&format!("{:?}", CrlReason::from_der(reason.extn_value.as_bytes())?)),
            None => "unspecified".to_owned(),
        };
        let at = i64::try_from(entry.revocation_date.to_unix_duration().as_secs()).unwrap_or(i64::MAX);
        revoked.push((hex(entry.serial_number.as_bytes()), date::text(at), reason));
    }
    let lines = revoked.iter().take(LISTED);
    let mut shown: Vec<String> = lines.map(|(serial, at, reason)| format!("{serial} since {at} ({reason})")).collect();
    if revoked.len() > LISTED {
        shown.push(format!("and {} more", revoked.len() - LISTED));
    }
    out.fields.push(("revoked", if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }));
    let entries = revoked.iter().map(|(serial, at, reason)| json!({ "serial": serial, "at": at, "reason": reason }));
    out.json.insert("revoked".to_owned(), entries.collect());
    Ok(out)
}

/// A number of up to eight bytes; a longer one in hexadecimal digits.
fn decimal(digits: &[u8]) -> String {
    match digits.len() {
        0..=8 => digits.iter().fold(0u64, |number, digit| number << 8 | u64::from(*digit)).to_string(),
        _ => format!("0x{}", hex(digits)),
    }
}

fn private_key(file: &[u8], passphrases: &[&[u8]]) -> anyhow::Result<Described> {
    let der = credentials::pkcs8::open(file, passphrases)?;
    let private = PrivateKey::from_der(&der)?;
    let mut out = Described::new("private key");
    out.add("key", key::name(private.kind()));
    out.add("key id", hex(&private.public().key_id()));
    Ok(out)
}

fn public_key(der: &[u8]) -> anyhow::Result<Described> {
    let public = PublicKey::from_spki(der)?;
    let mut out = Described::new("public key");
    out.add("key", key::name(public.kind()));
    out.add("key id", hex(&public.key_id()));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::{Authority, NewAuthority, Reason, Request};
    use crate::key::{Key, KeyKind};
    use crate::profile::{Name, Usage};

    #[test]
    fn certificates_lists_and_keys_are_described() {
        let folder = tempfile::tempdir().expect("a folder");
        let new = NewAuthority {
            name: "Test CA",
            days: 9,
            key: KeyKind::EcdsaP256,
            permit: &[],
            crl_uris: &[],
            passphrase: None,
        };
        let mut ca = Authority::create(folder.path(), &new).expect("a CA");
        let signer = ca.unlock(None).expect("its key");
        let names = [Name::parse("vpn.example.org").expect("a name"), Name::parse("2001:db8::1").expect("an address")];
        let request =
            Request { usage: Usage::Peer, names: &names, file: None, days: 5, key: KeyKind::Ed25519, force: false };
        let issued = ca.issue(&signer, &request).expect("a certificate");
        let one = |path: &std::path::Path| {
            let found = describe(&std::fs::read(path).expect("a file"), &[]).expect("described");
            assert_eq!(found.len(), 1);
            let text = found[0].text();
            assert!(text.lines().all(|line| line.chars().count() <= text::WIDTH), "{text}");
            (text, found[0].json())
        };
        let (text, json) = one(&issued.certificate);
        for line in [
            "type:       certificate",
            "subject:    CN=vpn.example.org",
            "names:      vpn.example.org, 2001:db8::1",
            "issuer:     CN=Test CA",
            "key:        ed25519",
            "usage:      digitalSignature",
            "purposes:   serverAuth, ikeIntermediate, clientAuth",
        ] {
            assert!(text.lines().any(|there| there == line), "{line}\n{text}");
        }
        assert_eq!((&json["serial"], &json["names"][1]), (&json!(issued.serial), &json!("2001:db8::1")));
        let (text, json) = one(&ca.certificate_path());
        assert!(
            text.contains("type:        CA certificate") && text.contains("usage:       keyCertSign, cRLSign"),
            "{text}"
        );
        assert!(text.contains("path length: 0"), "{text}");
        assert_eq!(json["path_length"], "0");
        let (_, key) = one(&issued.key);
        assert_eq!((&key["type"], &key["key"]), (&json!("private key"), &json!("ed25519")));
        ca.revoke(&issued.serial, Reason::Superseded).expect("revoked");
        let (text, json) = one(&ca.publish(&signer, 3).expect("a CRL").path);
        assert!(text.contains("number:      1") && text.contains(&issued.serial), "{text}");
        assert_eq!(json["revoked"][0]["reason"], "superseded");
        assert!(describe(b"nonsense", &[]).is_err());
        let key = Key::generate(KeyKind::EcdsaP256).expect("a key");
        let spki = rcgen::PublicKeyData::subject_public_key_info(key.pair());
        assert_eq!(describe(&spki, &[]).expect("described")[0].json()["type"], "public key");
    }
}
