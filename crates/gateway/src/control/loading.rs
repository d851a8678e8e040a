//! Connections, credentials, authorities and pools: from the file and over vici.
//!
//! Both stand side by side. What vici loads takes the place of what the file says under the same name, and
//! stays when the file is read again.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use crypto::ike::Secret;
use ike::config::{Connection, PoolConfig};
use ike::identity::IdPattern;
use vici::listing::{AuthorityListing, CertListing};
use vici::message::Message;
use vici::names::{CertFlag, CertKind, Command, transform_name};

use super::listings::Subjects;
use super::{Realm, listing};
use crate::config::problem::Problems;
use crate::config::syntax::Section;
use crate::config::{self, Authority, Certificates, Gateway, Keyed, KeyedSections, Outside, SecretEntry};
use crate::credentials::{Certificate, CertificateUse, Listed, Origin, Passphrase, Shared, SharedKind, Source, Store};

/// Connections, pools and authorities that vici may load; each is some KiB.
const LOADED_MAX: usize = 10_000;

/// What is in force: what the file says, and what was loaded since.
pub(crate) struct Loaded {
    file: KeyedSections,
    folder: PathBuf,
    connections: Vec<Arc<Connection>>,
    pools: Vec<PoolConfig>,
    authorities: Vec<Authority>,
}

impl Loaded {
    /// What the file in `folder` says.
    pub(crate) fn new(file: KeyedSections, folder: PathBuf) -> Self {
        Self { file, folder, connections: Vec::new(), pools: Vec::new(), authorities: Vec::new() }
    }

    /// The file was read again.
    pub(crate) fn reload(&mut self, file: KeyedSections) {
        self.file = file;
    }

    /// Connections in force.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        let named: HashSet<&str> = self.connections.iter().map(|connection| connection.name.as_str()).collect();
        let of_file = self.file.connections.iter().filter(|connection| !named.contains(connection.name.as_str()));
        of_file.chain(&self.connections).cloned().collect()
    }

    /// Pools in force.
    pub(crate) fn pools(&self) -> Vec<PoolConfig> {
        let named = |name: &str| self.pools.iter().any(|pool| pool.name == name);
        let of_file = self.file.pools.iter().filter(|pool| !named(&pool.name));
        of_file.chain(&self.pools).cloned().collect()
    }

    fn authorities(&self) -> impl Iterator<Item = &Authority> {
        self.file.authorities.iter().chain(&self.authorities)
    }

    /// URIs of revocation information in force.
    fn sources(&self) -> Vec<Source> {
        let source = |authority: &Authority| {
            Some(Source {
                authority: Certificate::from_der(&authority.cacert.der).ok()?,
                crl_uris: authority.crl_uris.clone(),
                ocsp_uris: authority.ocsp_uris.clone(),
            })
        };
        self.authorities().filter_map(source).collect()
    }

    /// Puts the credentials of the file into the store, in place of those of before. What cannot be used is
    /// left out and named, one line each.
    pub(crate) fn fill(&self, store: &mut Store) -> Vec<String> {
        store.clear(Origin::File);
        let secrets = self.file.secrets.iter();
        let passphrases: Vec<Passphrase<'_>> = secrets
            .filter_map(|entry| {
                let file = entry.file.as_deref().filter(|_| entry.kind.is_passphrase())?;
                Some(Passphrase { folder: entry.kind.name(), file, secret: entry.octets() })
            })
            .collect();
        let mut faults = store.load_folders(&self.folder, &passphrases);
        faults.extend(add_certificates(store, &self.file.certificates, Origin::File));
        for entry in self.file.secrets.iter().filter(|entry| !entry.kind.is_passphrase()) {
            faults.extend(add_secret(store, entry, Origin::File).err());
        }
        faults.extend(store.incomplete_authorities());
        store.set_sources(self.sources());
        faults
    }
}

fn add_certificates(store: &mut Store, certificates: &Certificates, origin: Origin) -> Vec<String> {
    let kinds = [
        (&certificates.end_entities, CertificateUse::EndEntity),
        (&certificates.authorities, CertificateUse::Authority),
    ];
    let mut faults = Vec::new();
    for (list, usage) in kinds {
        for certificate in list {
            let added = store.add_certificates(&certificate.der, usage, origin);
            faults.extend(added.err().map(|why| format!("{}: {why}", certificate.from)));
        }
    }
    faults
}

fn add_secret(store: &mut Store, entry: &SecretEntry, origin: Origin) -> Result<(), String> {
    let Some(kind) = SharedKind::from_name(entry.kind.name()) else { return Ok(()) };
    let owners: Result<Vec<IdPattern>, _> = entry.ids.iter().map(|id| IdPattern::parse(id)).collect();
    let owners = owners.map_err(|why| format!("secrets.{}: {why}", entry.name))?;
    store.add_shared(Shared::new(&entry.name, kind, owners, Secret::new(entry.octets().to_vec())), origin);
    Ok(())
}

/// Carries out a command that loads, unloads or names something.
pub(super) fn carry_out(realm: &mut Realm<'_>, command: Command, request: &Message) -> Message {
    let outcome = match command {
        Command::LoadConn => load_conn(realm, request),
        Command::UnloadConn => unload_conn(realm, request),
        Command::LoadPool => load_pool(realm, request),
        Command::UnloadPool => {
            unload(realm, request, |loaded, name| drop_named(&mut loaded.pools, name, |pool| &pool.name))
        }
        Command::LoadAuthority => load_authority(realm, request),
        Command::UnloadAuthority => {
            let outcome = unload(realm, request, |loaded, name| {
                drop_named(&mut loaded.authorities, name, |authority| &authority.name)
            });
            renew_sources(realm);
            outcome
        }
        Command::GetAuthorities => {
            return listing::names("authorities", realm.loaded.authorities().map(|authority| authority.name.as_str()));
        }
        Command::LoadCert => load_cert(realm, request),
        Command::LoadKey => return load_key(realm, request),
        Command::UnloadKey => unload_key(realm, request),
        Command::GetKeys => return get_keys(realm),
        Command::LoadShared => load_shared(realm, request),
        Command::UnloadShared => {
            let id = request.text("id").unwrap_or_default();
            let gone = realm.keying.credentials.with_store(|store| store.unload_shared(id));
            realm.keying.secrets_changed();
            if gone { Ok(()) } else { Err(format!("there is no secret '{id}'")) }
        }
        Command::GetShared => {
            return realm.keying.credentials.with_store(|store| listing::names("keys", store.shared_ids()));
        }
        Command::ClearCreds => {
            realm.keying.credentials.with_store(|store| store.clear(Origin::Vici));
            realm.keying.credentials_changed();
            Ok(())
        }
        _ => Err("weir has no tokens: load the key from a file".to_owned()),
    };
    outcome.map_or_else(|why| listing::failure(&why), |()| listing::success())
}

/// Everything that is wrong, as one text.
fn told(problems: &Problems) -> String {
    problems.to_string().trim().replace('\n', "; ")
}

fn section(name: &str, request: &Message) -> Section {
    Section::of_message(name, request)
}

fn load_conn(realm: &mut Realm<'_>, request: &Message) -> Result<(), String> {
    let (outside, gateway): (Outside<'_>, &Gateway) =
        (Outside::host(&realm.loaded.folder), &realm.plane.config.gateway);
    let loaded =
        config::load_connection(&section("load-conn", request), &outside, gateway).map_err(|why| told(&why))?;
    for warning in &loaded.warnings {
        tracing::warn!(target: "cfg", "{warning}");
    }
    let connection = match loaded.connection {
        Keyed::Ike(connection) => Arc::new(*connection),
        Keyed::Psp(_) => return Err("peers of the PSP key service stand in the configuration file".into()),
    };
    let faults =
        realm.keying.credentials.with_store(|store| add_certificates(store, &loaded.certificates, Origin::Vici));
    if !faults.is_empty() {
        return Err(faults.join("; "));
    }
    put(&mut realm.loaded.connections, Arc::clone(&connection), |connection| &connection.name)?;
    if !loaded.certificates.end_entities.is_empty() || !loaded.certificates.authorities.is_empty() {
        realm.keying.credentials_changed();
    }
    realm.keying.load_one(connection, realm.plane);
    Ok(())
}

fn unload_conn(realm: &mut Realm<'_>, request: &Message) -> Result<(), String> {
    let name = request.text("name").unwrap_or_default();
    if !drop_named(&mut realm.loaded.connections, name, |connection| &connection.name) {
        return Err(not_loaded(name));
    }
    // What the file says under that name is in force again.
    match realm.loaded.file.connections.iter().find(|connection| connection.name == name) {
        Some(of_file) => realm.keying.load_one(Arc::clone(of_file), realm.plane),
        None => realm.keying.unload_one(name, realm.plane),
    }
    Ok(())
}

fn not_loaded(name: &str) -> String {
    format!("nothing of the name '{name}' was loaded over this socket")
}

fn load_pool(realm: &mut Realm<'_>, request: &Message) -> Result<(), String> {
    let pool = config::load_pool(&section("load-pool", request)).map_err(|why| told(&why))?;
    put(&mut realm.loaded.pools, pool, |pool| &pool.name)?;
    realm.apply();
    Ok(())
}

fn load_authority(realm: &mut Realm<'_>, request: &Message) -> Result<(), String> {
    let (outside, gateway) = (Outside::host(&realm.loaded.folder), &realm.plane.config.gateway);
    let authority =
        config::load_authority(&section("load-authority", request), &outside, gateway).map_err(|why| told(&why))?;
    realm
        .keying
        .credentials
        .with_store(|store| store.add_certificates(&authority.cacert.der, CertificateUse::Authority, Origin::Vici))?;
    put(&mut realm.loaded.authorities, authority, |authority| &authority.name)?;
    renew_sources(realm);
    realm.keying.credentials_changed();
    Ok(())
}

fn renew_sources(realm: &Realm<'_>) {
    realm.keying.credentials.with_store(|store| store.set_sources(realm.loaded.sources()));
}

/// Adds an item, in place of one of the same name.
fn put<T>(list: &mut Vec<T>, item: T, name: impl Fn(&T) -> &String) -> Result<(), String> {
    list.retain(|there| name(there) != name(&item));
    if list.len() >= LOADED_MAX {
        return Err(format!("{LOADED_MAX} are loaded, which is the limit"));
    }
    list.push(item);
    Ok(())
}

/// Takes out the item of that name; false when there is none.
fn drop_named<T>(list: &mut Vec<T>, name: &str, of: impl Fn(&T) -> &String) -> bool {
    let before = list.len();
    list.retain(|there| of(there) != name);
    list.len() < before
}

fn unload(
    realm: &mut Realm<'_>,
    request: &Message,
    take_out: impl Fn(&mut Loaded, &str) -> bool,
) -> Result<(), String> {
    let name = request.text("name").unwrap_or_default();
    if !take_out(realm.loaded, name) {
        return Err(not_loaded(name));
    }
    realm.apply();
    Ok(())
}

fn load_cert(realm: &mut Realm<'_>, request: &Message) -> Result<(), String> {
    let bytes = request.bytes("data").ok_or("there is no data")?;
    let kind = request.text("type").unwrap_or("X509");
    let ca = request.text("flag").is_some_and(|flag| flag.eq_ignore_ascii_case("CA"));
    realm.keying.credentials.with_store(|store| match kind.to_ascii_uppercase().as_str() {
        "X509" if ca => store.add_certificates(bytes, CertificateUse::Authority, Origin::Vici).map(drop),
        "X509" => store.add_certificates(bytes, CertificateUse::EndEntity, Origin::Vici).map(drop),
        "X509_CRL" => store.add_crls(bytes, Origin::Vici),
        "PUBKEY" => store.add_public_key(bytes, Origin::Vici),
        other => Err(format!("weir has no use for a certificate of type {other}")),
    })?;
    realm.keying.credentials_changed();
    Ok(())
}

fn load_key(realm: &mut Realm<'_>, request: &Message) -> Message {
    let Some(bytes) = request.bytes("data") else { return listing::failure("there is no data") };
    match realm.keying.credentials.with_store(|store| store.add_private_key(bytes, &[], Origin::Vici)) {
        Ok(id) => listing::loaded_key(&id),
        Err(why) => listing::failure(&why),
    }
}

fn unload_key(realm: &mut Realm<'_>, request: &Message) -> Result<(), String> {
    let text = request.text("id").unwrap_or_default();
    let octets: Option<Vec<u8>> =
        (0..text.len() / 2).map(|i| u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()).collect();
    let id: [u8; 20] = octets.and_then(|octets| octets.try_into().ok()).ok_or("'id' is 40 hex digits")?;
    let gone = realm.keying.credentials.with_store(|store| store.unload_key(&id));
    if gone { Ok(()) } else { Err(format!("there is no key {text}")) }
}

fn get_keys(realm: &Realm<'_>) -> Message {
    let hex = |id: [u8; 20]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let ids: Vec<String> = realm.keying.credentials.with_store(|store| store.key_ids().map(hex).collect());
    listing::names("keys", ids.iter().map(String::as_str))
}

fn load_shared(realm: &mut Realm<'_>, request: &Message) -> Result<(), String> {
    let entry = config::load_shared(&section("load-shared", request)).map_err(|why| told(&why))?;
    let added = realm.keying.credentials.with_store(|store| add_secret(store, &entry, Origin::Vici));
    realm.keying.secrets_changed();
    added
}

/// Whether one of the identities of a certificate is the subject that `list-certs` asks for, or matches it.
fn has_subject(certificate: &Listed, subject: &str) -> bool {
    let Ok(wanted) = IdPattern::parse(subject) else { return false };
    certificate.identities.iter().any(|id| wanted.matches(id).is_some())
}

/// Subjects of all certificates, by fingerprint.
pub(super) fn subjects(store: &Store) -> Subjects {
    let certificates = store.list().into_iter().filter(|listed| listed.kind == "X509");
    certificates.map(|listed| (crate::credentials::sha256(&listed.der), listed.subject)).collect()
}

/// The events of `list-certs`.
pub(super) fn list_certs(realm: &Realm<'_>, request: &Message) -> Vec<Message> {
    let credentials = &realm.keying.credentials;
    let mut listed = credentials.with_store(|store| store.list());
    listed.extend(credentials.received());
    if let Some(subject) = request.text("subject") {
        listed.retain(|certificate| has_subject(certificate, subject));
    }
    let listing = |listed: Listed| CertListing {
        kind: CertKind::from_name(listed.kind).unwrap_or(CertKind::X509),
        flag: CertFlag::from_name(listed.flag).unwrap_or(CertFlag::None),
        has_private_key: listed.has_private_key,
        der: listed.der,
        subject: Some(listed.subject).filter(|subject| !subject.is_empty()),
    };
    listed.into_iter().map(listing).filter(|cert| cert.is_asked_for(request)).map(|cert| cert.list_cert()).collect()
}

/// Removes fetched CRLs and OCSP responses that a request of `flush-certs` names.
pub(super) fn flush_certs(realm: &Realm<'_>, request: &Message) {
    let asked = |kind: CertKind| {
        let listing =
            CertListing { kind, flag: CertFlag::None, has_private_key: false, der: Vec::new(), subject: None };
        listing.is_asked_for(request)
    };
    let credentials = &realm.keying.credentials;
    credentials.flush_fetched(asked(CertKind::Crl), asked(CertKind::OcspResponse));
    if asked(CertKind::X509) {
        credentials.flush_received();
    }
}

/// The events of `list-authorities`.
pub(super) fn list_authorities(realm: &Realm<'_>, request: &Message) -> Vec<Message> {
    let wanted = request.text("name");
    let listing = |authority: &Authority| AuthorityListing {
        name: authority.name.clone(),
        cacert: authority.cacert.from.clone(),
        crl_uris: authority.crl_uris.clone(),
        ocsp_uris: authority.ocsp_uris.clone(),
        cert_uri_base: None,
    };
    let asked = realm.loaded.authorities().filter(|authority| wanted.is_none_or(|name| name == authority.name));
    asked.map(|authority| listing(authority).list_authority()).collect()
}

/// Everything that can be negotiated.
pub(super) fn algorithms() -> Message {
    use crypto::ike::{KeMethod, Prf};
    let all = |kind: u8, ids: Vec<u16>| {
        let mut names: Vec<String> = ids.into_iter().map(|id| transform_name(kind, id)).collect();
        names.sort();
        names.dedup();
        names
    };
    let kinds = [
        ("encryption", all(1, crypto::EncAlg::all().map(|enc| enc.id).collect())),
        ("integrity", all(3, crypto::IntegAlg::all().map(|integ| integ.id).collect())),
        ("prf", all(2, Prf::all().map(Prf::id).collect())),
        ("ke", all(4, KeMethod::all().map(KeMethod::id).collect())),
    ];
    listing::get_algorithms(kinds.iter().map(|(kind, names)| (*kind, names.iter().map(|name| (name.clone(), "weir")))))
}

#[cfg(test)]
mod tests {
    use ike::identity::Identity;

    use super::*;

    #[test]
    fn certificates_are_selected_by_any_of_their_names() {
        let names = ["C=CH, O=Lake, CN=sun.example", "sun.example", "192.0.2.1"];
        let certificate = Listed {
            kind: "X509",
            flag: "NONE",
            der: Vec::new(),
            has_private_key: false,
            subject: names[0].to_owned(),
            identities: names.iter().map(|name| Identity::parse(name).unwrap()).collect(),
            not_before: None,
            not_after: None,
        };
        for subject in names.into_iter().chain(["C=CH, O=Lake, CN=*", "*.example"]) {
            assert!(has_subject(&certificate, subject), "{subject}");
        }
        for subject in ["C=CH, O=Lake, CN=moon.example", "moon.example", "192.0.2.2"] {
            assert!(!has_subject(&certificate, subject), "{subject}");
        }
    }
}
