//! Credential store: private keys, certificates, revocation lists, raw public keys and shared
//! secrets.
//!
//! Filled from the folders beside swanctl.conf and over vici, through the same functions; each
//! entry records its origin, so that one source can be reloaded without the other.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use crypto::ike::{PrivateKey, PublicKey};
use ike::identity::Identity;

use super::pem;
use super::pkcs8;
use super::revocation::Source;
use super::revocation::fetched::Fetched;
use super::revocation::ocsp::Response;
use super::shared::Shared;
use super::x509::{Certificate, Crl};

/// Bytes of a file beyond which it is not read.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Certificates that are sent with one's own.
const MAX_CHAIN: usize = super::path::MAX_PATH;

/// Origin of an entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Origin {
    /// The configuration and the folders beside it.
    File,
    /// A command of vici.
    Vici,
}

/// Purpose of a certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CertificateUse {
    /// Of this host, or of a peer that is trusted without a CA.
    EndEntity,
    /// A CA: a trust anchor if it is self-signed, otherwise part of paths that end in one.
    Authority,
    /// Part of paths only; trusted for nothing.
    Intermediate,
}

struct From<T> {
    origin: Origin,
    what: T,
}

/// The store.
#[derive(Default)]
pub struct Store {
    keys: Vec<From<Arc<PrivateKey>>>,
    end_entities: Vec<From<Certificate>>,
    intermediates: Vec<From<Certificate>>,
    authorities: Vec<From<Certificate>>,
    crls: Vec<From<Crl>>,
    public_keys: Vec<From<PublicKey>>,
    shared: Vec<(Origin, Shared)>,
    sources: Vec<Source>,
    fetched: Arc<Fetched>,
    trust: Arc<Trust>,
}

/// Immutable snapshot of the trust anchors and revocation data: a TLS handshake continues with the
/// snapshot from its start.
#[derive(Default)]
pub(super) struct Trust {
    /// CAs that were loaded: trust anchors and intermediates.
    pub(super) authorities: Vec<Certificate>,
    /// Trust anchors: the self-signed ones among them.
    pub(super) anchors: Vec<Certificate>,
    /// The other ones, each valid only as far as a path leads from it to an anchor.
    pub(super) intermediates: Vec<Certificate>,
    /// Certificates that may be part of a path; end entities too, because a certificate may be in
    /// the wrong directory.
    pub(super) others: Vec<Certificate>,
    /// Certificates of this host, and of peers that are trusted without a CA.
    pub(super) end_entities: Vec<Certificate>,
    pub(super) crls: Vec<Crl>,
    /// URIs that the configuration names.
    pub(super) sources: Vec<Source>,
    /// Fetched CRLs and OCSP responses.
    pub(super) fetched: Arc<Fetched>,
}

/// A passphrase of a key file.
pub struct Passphrase<'a> {
    /// Folder: `private`, `rsa`, `ecdsa`, `pkcs8`, `pkcs12`.
    pub folder: &'a str,
    /// Name of the file in it; case does not matter.
    pub file: &'a str,
    /// The passphrase.
    pub secret: &'a [u8],
}

/// One line of a listing of certificates (`list-certs` of vici).
pub struct Listed {
    /// `X509`, `X509_CRL`, `OCSP_RESPONSE` or `PUBKEY`.
    pub kind: &'static str,
    /// `NONE` or `CA`.
    pub flag: &'static str,
    /// DER.
    pub der: Vec<u8>,
    /// The private key is available.
    pub has_private_key: bool,
    /// Name of the subject, or of the issuer of a revocation list.
    pub subject: String,
    /// Identities that it proves; of a revocation list its issuer.
    pub identities: Vec<Identity>,
    /// Since 1970.
    pub not_before: Option<Duration>,
    /// Since 1970.
    pub not_after: Option<Duration>,
}

impl Store {
    /// Adds the certificates of a file: DER or PEM. Returns their SHA-256.
    ///
    /// # Errors
    /// Reason why it is invalid, in words for its owner; then nothing was added.
    pub fn add_certificates(
        &mut self,
        bytes: &[u8],
        usage: CertificateUse,
        origin: Origin,
    ) -> anyhow::Result<Vec<[u8; 32]>> {
        let mut found = Vec::new();
        for block in pem::blocks(bytes)? {
            if !matches!(&*block.label, "" | "CERTIFICATE" | "X509 CERTIFICATE" | "TRUSTED CERTIFICATE") {
                continue;
            }
            let certificate = Certificate::from_der(&block.der)?;
            if usage == CertificateUse::Authority && certificate.extensions().v3 && !certificate.is_ca() {
                bail!("{certificate:?} is not a CA according to its basic constraints; put it into x509");
            }
            found.push(certificate);
        }
        if found.is_empty() {
            bail!("contains no certificate");
        }
        let list = match usage {
            CertificateUse::EndEntity => &mut self.end_entities,
            CertificateUse::Authority => &mut self.authorities,
            CertificateUse::Intermediate => &mut self.intermediates,
        };
        let fingerprints = found.iter().map(Certificate::fingerprint).collect();
        for what in found {
            if !list.iter().any(|there| there.what == what && there.origin == origin) {
                list.push(From { origin, what });
            }
        }
        self.renew_trust();
        Ok(fingerprints)
    }

    /// Adds the revocation lists of a file. A newer list takes the place of an older one of the
    /// same issuer.
    ///
    /// # Errors
    /// Reason why it is invalid.
    pub fn add_crls(&mut self, bytes: &[u8], origin: Origin) -> anyhow::Result<()> {
        for block in pem::blocks(bytes)? {
            let what = Crl::from_der(&block.der)?;
            if self.crls.iter().any(|there| there.what.replaces(&what)) {
                continue;
            }
            self.crls.retain(|there| !what.replaces(&there.what));
            self.crls.push(From { origin, what });
        }
        self.renew_trust();
        Ok(())
    }

    /// Replaces the URIs that the configuration names for CAs.
    pub fn set_sources(&mut self, sources: Vec<Source>) {
        self.fetched.set_sources(sources.clone());
        self.sources = sources;
        self.renew_trust();
    }

    /// Adds a raw public key: SubjectPublicKeyInfo.
    ///
    /// # Errors
    /// Reason why it is invalid.
    pub fn add_public_key(&mut self, bytes: &[u8], origin: Origin) -> anyhow::Result<()> {
        for block in pem::blocks(bytes)? {
            let what = PublicKey::from_spki(&block.der)?;
            if !self.public_keys.iter().any(|there| there.what == what && there.origin == origin) {
                self.public_keys.push(From { origin, what });
            }
        }
        Ok(())
    }

    /// Raw public keys of peers.
    pub(super) fn public_keys(&self) -> impl Iterator<Item = &PublicKey> {
        self.public_keys.iter().map(|there| &there.what)
    }

    /// Adds a private key: DER or PEM, PKCS #8 (also encrypted), PKCS #1 or SEC 1. Returns the
    /// SHA-1 key ID by which it is listed and unloaded. The caller zeroes its own copy.
    ///
    /// # Errors
    /// Reason why it is invalid.
    pub fn add_private_key(&mut self, bytes: &[u8], passphrases: &[&[u8]], origin: Origin) -> anyhow::Result<[u8; 20]> {
        let key = pkcs8::private_key(bytes, passphrases)?;
        let id = key.public().key_id();
        self.keys.retain(|there| there.origin != origin || there.what.public().key_id() != id);
        self.keys.push(From { origin, what: Arc::new(key) });
        Ok(id)
    }

    /// Adds what a PKCS #12 file contains: the private key, end entity certificates, and CAs as
    /// [`CertificateUse::Authority`]: its MAC proves that it is the file whose passphrase the owner
    /// of the configuration wrote down.
    ///
    /// # Errors
    /// Reason why it is invalid; then nothing was added.
    pub fn add_pkcs12(&mut self, bytes: &[u8], passphrases: &[&[u8]], origin: Origin) -> anyhow::Result<()> {
        let found = super::pkcs12::open(bytes, passphrases)?;
        let certificates: Vec<Certificate> =
            found.certificates.iter().map(|der| Certificate::from_der(der)).collect::<Result<_, _>>()?;
        if let Some(key) = &found.key {
            self.add_private_key(key, &[], origin)?;
        }
        for what in certificates {
            let list = if what.is_ca() { &mut self.authorities } else { &mut self.end_entities };
            if !list.iter().any(|there| there.what == what && there.origin == origin) {
                list.push(From { origin, what });
            }
        }
        self.renew_trust();
        Ok(())
    }

    /// Adds a shared secret; one of the same kind of origin with the same identifier is replaced.
    pub fn add_shared(&mut self, shared: Shared, origin: Origin) {
        let same = |(from, there): &(Origin, Shared)| *from == origin && !shared.id.is_empty() && there.id == shared.id;
        self.shared.retain(|there| !same(there));
        self.shared.push((origin, shared));
    }

    /// Removes a private key that came over vici. Returns false if there is none.
    pub fn unload_key(&mut self, id: &[u8; 20]) -> bool {
        let before = self.keys.len();
        self.keys.retain(|there| there.origin != Origin::Vici || there.what.public().key_id() != *id);
        self.keys.len() < before
    }

    /// Removes a shared secret that came over vici. Returns false if there is none.
    pub fn unload_shared(&mut self, id: &str) -> bool {
        let before = self.shared.len();
        self.shared.retain(|(origin, there)| *origin != Origin::Vici || there.id != id);
        self.shared.len() < before
    }

    /// True when there is a post-quantum preshared key.
    pub fn has_ppks(&self) -> bool {
        self.shared().any(|shared| shared.kind == super::SharedKind::Ppk)
    }

    /// Key IDs of the private keys that came over vici.
    pub fn key_ids(&self) -> impl Iterator<Item = [u8; 20]> {
        self.keys.iter().filter(|there| there.origin == Origin::Vici).map(|there| there.what.public().key_id())
    }

    /// Identifiers of the shared secrets that came over vici.
    pub fn shared_ids(&self) -> impl Iterator<Item = &str> {
        self.shared
            .iter()
            .filter(|(origin, there)| *origin == Origin::Vici && !there.id.is_empty())
            .map(|(_, there)| &*there.id)
    }

    /// Forgets everything from one place.
    pub fn clear(&mut self, origin: Origin) {
        self.keys.retain(|there| there.origin != origin);
        self.end_entities.retain(|there| there.origin != origin);
        self.intermediates.retain(|there| there.origin != origin);
        self.authorities.retain(|there| there.origin != origin);
        self.crls.retain(|there| there.origin != origin);
        self.public_keys.retain(|there| there.origin != origin);
        self.shared.retain(|(from, _)| *from != origin);
        self.renew_trust();
    }

    /// Loads the folders `x509`, `x509ca`, `private`, … below `folder`. What cannot be used is left
    /// out and named in the result, one line each; a folder that is absent is empty.
    pub fn load_folders(&mut self, folder: &FilePath, passphrases: &[Passphrase<'_>]) -> Vec<String> {
        let mut faults = Vec::new();
        for name in ["x509", "x509ca", "x509aa", "x509crl", "pubkey", "private", "rsa", "ecdsa", "pkcs8", "pkcs12"] {
            for (path, file) in files(&folder.join(name)) {
                let loaded = read(&path).and_then(|bytes| {
                    let fitting =
                        |entry: &&Passphrase<'_>| entry.folder == name && entry.file.eq_ignore_ascii_case(&file);
                    let secrets: Vec<&[u8]> = passphrases.iter().filter(fitting).map(|entry| entry.secret).collect();
                    self.load(name, &bytes, &secrets)
                });
                if let Err(why) = loaded {
                    faults.push(format!("{}: {why}", path.display()));
                }
            }
        }
        faults
    }

    fn load(&mut self, folder: &str, bytes: &[u8], passphrases: &[&[u8]]) -> anyhow::Result<()> {
        let origin = Origin::File;
        match folder {
            "x509" => self.add_certificates(bytes, CertificateUse::EndEntity, origin).map(drop),
            "x509ca" => self.add_certificates(bytes, CertificateUse::Authority, origin).map(drop),
            "x509aa" => self.add_certificates(bytes, CertificateUse::Intermediate, origin).map(drop),
            "x509crl" => self.add_crls(bytes, origin),
            "pubkey" => self.add_public_key(bytes, origin),
            "pkcs12" => self.add_pkcs12(bytes, passphrases, origin),
            _ => self.add_private_key(bytes, passphrases, origin).map(drop),
        }
    }

    /// Everything of which vici lists certificates.
    pub fn list(&self) -> Vec<Listed> {
        let certificate = |flag| move |there: &From<Certificate>| self.listed(&there.what, flag);
        let crl = |there: &From<Crl>| Listed {
            kind: "X509_CRL",
            flag: "NONE",
            der: there.what.der().to_vec(),
            has_private_key: false,
            subject: super::name::show(there.what.issuer()),
            identities: Identity::parse(&super::name::show(there.what.issuer())).into_iter().collect(),
            not_before: Some(there.what.updates().0),
            not_after: there.what.updates().1,
        };
        let key = |there: &From<PublicKey>| Listed {
            kind: "PUBKEY",
            flag: "NONE",
            der: there.what.spki().to_vec(),
            has_private_key: self.key_of(&there.what).is_some(),
            subject: String::new(),
            identities: Vec::new(),
            not_before: None,
            not_after: None,
        };
        let plain = self.end_entities.iter().chain(&self.intermediates).map(certificate("NONE"));
        let authorities = self.authorities.iter().map(certificate("CA"));
        let (fetched, responses) = self.fetched.list();
        let fetched: Vec<From<Crl>> = fetched.into_iter().map(|what| From { origin: Origin::File, what }).collect();
        let response = |response: &Response| Listed {
            kind: "OCSP_RESPONSE",
            flag: "NONE",
            der: response.der().to_vec(),
            has_private_key: false,
            subject: String::new(),
            identities: Vec::new(),
            not_before: None,
            not_after: None,
        };
        let crls = self.crls.iter().chain(&fetched).map(crl);
        let keys = self.public_keys.iter().map(key);
        plain.chain(authorities).chain(crls).chain(responses.iter().map(response)).chain(keys).collect()
    }

    /// A certificate as a listing shows it.
    pub(super) fn listed(&self, certificate: &Certificate, flag: &'static str) -> Listed {
        let (from, until) = certificate.validity();
        Listed {
            kind: "X509",
            flag,
            der: certificate.der().to_vec(),
            has_private_key: self.key_of(certificate.key()).is_some(),
            subject: super::name::show(certificate.subject()),
            identities: super::name::identities_of(certificate),
            not_before: Some(from),
            not_after: Some(until),
        }
    }

    /// Returns true when the certificate is loaded.
    pub(super) fn has_certificate(&self, certificate: &Certificate) -> bool {
        let loaded = self.end_entities.iter().chain(&self.intermediates).chain(&self.authorities);
        loaded.into_iter().any(|there| there.what == *certificate)
    }

    fn renew_trust(&mut self) {
        fn copies<T: Clone>(list: &[From<T>]) -> impl Iterator<Item = T> {
            list.iter().map(|there| there.what.clone())
        }
        let (anchors, intermediates) =
            copies(&self.authorities).partition(|authority: &Certificate| authority.is_self_signed());
        self.trust = Arc::new(Trust {
            anchors,
            intermediates,
            authorities: copies(&self.authorities).collect(),
            others: copies(&self.intermediates).chain(copies(&self.end_entities)).collect(),
            end_entities: copies(&self.end_entities).collect(),
            crls: copies(&self.crls).collect(),
            sources: self.sources.clone(),
            fetched: Arc::clone(&self.fetched),
        });
    }

    /// Intermediate CAs that lead to no trust anchor: nothing that they issued is accepted. One
    /// line each.
    pub fn incomplete_authorities(&self) -> Vec<String> {
        let trust = &self.trust;
        let anchored = |certificate: &Certificate| {
            let chain = self.chain(certificate);
            chain.last().is_some_and(|last| trust.anchors.contains(last))
        };
        let text = |intermediate: &Certificate| {
            let issuer = super::name::show(intermediate.issuer());
            format!(
                "{intermediate:?} in x509ca is not self-signed and its issuer is missing ({issuer}): nothing that it \
                 issued is accepted; load the certificates above it up to the root CA into x509ca"
            )
        };
        trust.intermediates.iter().filter(|intermediate| !anchored(intermediate)).map(text).collect()
    }

    pub(super) fn fetched(&self) -> &Arc<Fetched> {
        &self.fetched
    }

    pub(super) fn trust(&self) -> &Arc<Trust> {
        &self.trust
    }

    pub(super) fn shared(&self) -> impl Iterator<Item = &Shared> + Clone {
        self.shared.iter().map(|(_, shared)| shared)
    }

    /// The private half of a public key.
    pub(super) fn key_of(&self, public: &PublicKey) -> Option<&Arc<PrivateKey>> {
        self.keys.iter().map(|there| &there.what).find(|key| key.public() == public)
    }

    /// Returns the certificate and its available issuers.
    pub(super) fn chain(&self, leaf: &Certificate) -> Vec<Certificate> {
        let mut chain = vec![leaf.clone()];
        while chain.len() < MAX_CHAIN {
            let last = &chain[chain.len() - 1];
            let all = self.trust.authorities.iter().chain(&self.trust.others);
            let issues = |issuer: &&Certificate| {
                !chain.contains(issuer) && last.names_as_issuer(issuer) && last.is_signed_by(issuer.key())
            };
            let Some(issuer) = all.clone().find(issues).cloned() else { break };
            chain.push(issuer);
        }
        chain
    }
}

fn files(folder: &FilePath) -> Vec<(std::path::PathBuf, String)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.map(|entry| (entry.path(), entry.file_name().to_string_lossy().into_owned()));
    let mut files: Vec<_> = named.filter(|(path, name)| !name.starts_with('.') && path.is_file()).collect();
    files.sort();
    files
}

fn read(path: &FilePath) -> anyhow::Result<zeroize::Zeroizing<Vec<u8>>> {
    let size = std::fs::metadata(path)?.len();
    if size > MAX_FILE_BYTES {
        bail!("{size} bytes exceed the limit");
    }
    Ok(std::fs::read(path).map(zeroize::Zeroizing::new)?)
}
