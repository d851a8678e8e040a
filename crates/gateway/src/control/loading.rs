//! Connections, credentials, authorities and pools: from the file and over vici.
//!
//! Both sources coexist. A section loaded by vici overrides the section of the same name in the
//! file, and survives a reload of the file.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use crypto::ike::Secret;
use ike::config::{Connection, PoolConfig};
use ike::identity::IdPattern;
use vici::listing::{AuthorityListing, CertListing};
use vici::message::Message;
use vici::names::{CertFlag, CertKind, Command, transform_name};

use super::listings::Subjects;
use super::{ControlContext, listing};
use crate::config::problem::Problems;
use crate::config::syntax::Section;
use crate::config::{self, Authority, Certificates, Gateway, Keyed, KeyedSections, Outside, SecretEntry};
use credentials::{Certificate, CertificateUse, Listed, Origin, Passphrase, Shared, SharedKind, Source, Store};

/// Connections, pools and authorities that vici may load; each is some KiB.
const LOADED_MAX: usize = 10_000;

/// Configuration in force: the file, and sections loaded since.
pub(crate) struct Loaded {
    file: KeyedSections,
    folder: PathBuf,
    connections: Vec<Arc<Connection>>,
    pools: Vec<PoolConfig>,
    authorities: Vec<Authority>,
}

impl Loaded {
    /// Starts from the file in `folder`.
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

    /// Puts the credentials of the file into the store, in place of those of before. What cannot be
    /// used is left out and named, one line each.
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
            faults.extend(add_secret(store, entry, Origin::File).err().map(|why| why.to_string()));
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

fn add_secret(store: &mut Store, entry: &SecretEntry, origin: Origin) -> anyhow::Result<()> {
    let Some(kind) = SharedKind::from_name(entry.kind.name()) else { return Ok(()) };
    let owners: Result<Vec<IdPattern>, _> = entry.ids.iter().map(|id| IdPattern::parse(id)).collect();
    let owners = owners.map_err(|why| anyhow!("secrets.{}: {why}", entry.name))?;
    store.add_shared(Shared::new(&entry.name, kind, owners, Secret::new(entry.octets().to_vec())), origin);
    Ok(())
}

/// Executes a command that loads, unloads or lists an object.
pub(super) fn carry_out(context: &mut ControlContext<'_>, command: Command, request: &Message) -> Message {
    let outcome = match command {
        Command::LoadConn => load_conn(context, request),
        Command::UnloadConn => unload_conn(context, request),
        Command::LoadPool => load_pool(context, request),
        Command::UnloadPool => {
            unload(context, request, |loaded, name| drop_named(&mut loaded.pools, name, |pool| &pool.name))
        }
        Command::LoadAuthority => load_authority(context, request),
        Command::UnloadAuthority => {
            let outcome = unload(context, request, |loaded, name| {
                drop_named(&mut loaded.authorities, name, |authority| &authority.name)
            });
            renew_sources(context);
            outcome
        }
        Command::GetAuthorities => {
            return listing::names(
                "authorities",
                context.loaded.authorities().map(|authority| authority.name.as_str()),
            );
        }
        Command::LoadCert => load_cert(context, request),
        Command::LoadKey => return load_key(context, request),
        Command::UnloadKey => unload_key(context, request),
        Command::GetKeys => return get_keys(context),
        Command::LoadShared => load_shared(context, request),
        Command::UnloadShared => {
            let id = request.text("id").unwrap_or_default();
            let gone = context.keying.credentials.with_store(|store| store.unload_shared(id));
            context.keying.secrets_changed();
            if gone { Ok(()) } else { Err(anyhow!("unknown secret '{id}'")) }
        }
        Command::GetShared => {
            return context.keying.credentials.with_store(|store| listing::names("keys", store.shared_ids()));
        }
        Command::ClearCreds => {
            context.keying.credentials.with_store(|store| store.clear(Origin::Vici));
            context.keying.credentials_changed(context.now);
            Ok(())
        }
        _ => Err(anyhow!("tokens are not supported: load the key from a file")),
    };
    outcome.map_or_else(|why| listing::failure(&why.to_string()), |()| listing::success())
}

/// Everything that is wrong, as one text.
fn refusal(problems: &Problems) -> anyhow::Error {
    anyhow!("{}", problems.to_string().trim().replace('\n', "; "))
}

fn section(name: &str, request: &Message) -> Section {
    Section::of_message(name, request)
}

fn load_conn(context: &mut ControlContext<'_>, request: &Message) -> anyhow::Result<()> {
    let (outside, gateway): (Outside<'_>, &Gateway) =
        (Outside::host(&context.loaded.folder), &context.plane.config.gateway);
    let loaded =
        config::load_connection(&section("load-conn", request), &outside, gateway).map_err(|why| refusal(&why))?;
    for warning in &loaded.warnings {
        tracing::warn!(target: "cfg", "{warning}");
    }
    let connection = match loaded.connection {
        Keyed::Ike(connection) => Arc::new(*connection),
        Keyed::Psp(_) => bail!("peers of the PSP key service must be in the configuration file"),
    };
    let faults =
        context.keying.credentials.with_store(|store| add_certificates(store, &loaded.certificates, Origin::Vici));
    if !faults.is_empty() {
        bail!("{}", faults.join("; "));
    }
    put(&mut context.loaded.connections, Arc::clone(&connection), |connection| &connection.name)?;
    if !loaded.certificates.end_entities.is_empty() || !loaded.certificates.authorities.is_empty() {
        context.keying.credentials_changed(context.now);
    }
    context.keying.load_one(context.now, connection, context.plane);
    Ok(())
}

fn unload_conn(context: &mut ControlContext<'_>, request: &Message) -> anyhow::Result<()> {
    let name = request.text("name").unwrap_or_default();
    if !drop_named(&mut context.loaded.connections, name, |connection| &connection.name) {
        return Err(not_loaded(name));
    }
    // The section of the file with that name is active again.
    match context.loaded.file.connections.iter().find(|connection| connection.name == name) {
        Some(of_file) => context.keying.load_one(context.now, Arc::clone(of_file), context.plane),
        None => context.keying.unload_one(context.now, name, context.plane),
    }
    Ok(())
}

fn not_loaded(name: &str) -> anyhow::Error {
    anyhow!("'{name}' was not loaded over this socket")
}

fn load_pool(context: &mut ControlContext<'_>, request: &Message) -> anyhow::Result<()> {
    let pool = config::load_pool(&section("load-pool", request)).map_err(|why| refusal(&why))?;
    put(&mut context.loaded.pools, pool, |pool| &pool.name)?;
    context.apply();
    Ok(())
}

fn load_authority(context: &mut ControlContext<'_>, request: &Message) -> anyhow::Result<()> {
    let (outside, gateway) = (Outside::host(&context.loaded.folder), &context.plane.config.gateway);
    let authority =
        config::load_authority(&section("load-authority", request), &outside, gateway).map_err(|why| refusal(&why))?;
    context
        .keying
        .credentials
        .with_store(|store| store.add_certificates(&authority.cacert.der, CertificateUse::Authority, Origin::Vici))?;
    put(&mut context.loaded.authorities, authority, |authority| &authority.name)?;
    renew_sources(context);
    context.keying.credentials_changed(context.now);
    Ok(())
}

fn renew_sources(context: &ControlContext<'_>) {
    context.keying.credentials.with_store(|store| store.set_sources(context.loaded.sources()));
}

/// Adds an item, in place of one of the same name.
fn put<T>(list: &mut Vec<T>, item: T, name: impl Fn(&T) -> &String) -> anyhow::Result<()> {
    list.retain(|there| name(there) != name(&item));
    if list.len() >= LOADED_MAX {
        bail!("limit of {LOADED_MAX} loaded entries reached");
    }
    list.push(item);
    Ok(())
}

/// Takes out the item of that name; returns false if there is none.
fn drop_named<T>(list: &mut Vec<T>, name: &str, of: impl Fn(&T) -> &String) -> bool {
    let before = list.len();
    list.retain(|there| of(there) != name);
    list.len() < before
}

fn unload(
    context: &mut ControlContext<'_>,
    request: &Message,
    take_out: impl Fn(&mut Loaded, &str) -> bool,
) -> anyhow::Result<()> {
    let name = request.text("name").unwrap_or_default();
    if !take_out(context.loaded, name) {
        return Err(not_loaded(name));
    }
    context.apply();
    Ok(())
}

fn load_cert(context: &mut ControlContext<'_>, request: &Message) -> anyhow::Result<()> {
    let bytes = request.bytes("data").context("no data")?;
    let kind = request.text("type").unwrap_or("X509");
    let ca = request.text("flag").is_some_and(|flag| flag.eq_ignore_ascii_case("CA"));
    context.keying.credentials.with_store(|store| match kind.to_ascii_uppercase().as_str() {
        "X509" if ca => store.add_certificates(bytes, CertificateUse::Authority, Origin::Vici).map(drop),
        "X509" => store.add_certificates(bytes, CertificateUse::EndEntity, Origin::Vici).map(drop),
        "X509_CRL" => store.add_crls(bytes, Origin::Vici),
        "PUBKEY" => store.add_public_key(bytes, Origin::Vici),
        other => Err(anyhow!("unsupported certificate type {other}")),
    })?;
    context.keying.credentials_changed(context.now);
    Ok(())
}

fn load_key(context: &mut ControlContext<'_>, request: &Message) -> Message {
    let Some(bytes) = request.bytes("data") else { return listing::failure("no data") };
    match context.keying.credentials.with_store(|store| store.add_private_key(bytes, &[], Origin::Vici)) {
        Ok(id) => listing::loaded_key(&id),
        Err(why) => listing::failure(&why.to_string()),
    }
}

fn unload_key(context: &mut ControlContext<'_>, request: &Message) -> anyhow::Result<()> {
    let text = request.text("id").unwrap_or_default();
    let octets: Option<Vec<u8>> =
        (0..text.len() / 2).map(|i| u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()).collect();
    let id: [u8; 20] = octets.and_then(|octets| octets.try_into().ok()).context("'id' is 40 hex digits")?;
    let gone = context.keying.credentials.with_store(|store| store.unload_key(&id));
    if gone { Ok(()) } else { Err(anyhow!("unknown key {text}")) }
}

fn get_keys(context: &ControlContext<'_>) -> Message {
    let hex = |id: [u8; 20]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let ids: Vec<String> = context.keying.credentials.with_store(|store| store.key_ids().map(hex).collect());
    listing::names("keys", ids.iter().map(String::as_str))
}

fn load_shared(context: &mut ControlContext<'_>, request: &Message) -> anyhow::Result<()> {
    let entry = config::load_shared(&section("load-shared", request)).map_err(|why| refusal(&why))?;
    let added = context.keying.credentials.with_store(|store| add_secret(store, &entry, Origin::Vici));
    context.keying.secrets_changed();
    added
}

/// Returns whether one of the identities of a certificate equals or matches the subject requested
/// by `list-certs`.
fn has_subject(certificate: &Listed, subject: &str) -> bool {
    let Ok(wanted) = IdPattern::parse(subject) else { return false };
    certificate.identities.iter().any(|id| wanted.matches(id).is_some())
}

/// Subjects of all certificates, by fingerprint.
pub(super) fn subjects(store: &Store) -> Subjects {
    let certificates = store.list().into_iter().filter(|listed| listed.kind == "X509");
    certificates.map(|listed| (credentials::sha256(&listed.der), listed.subject)).collect()
}

/// The events of `list-certs`.
pub(super) fn list_certs(context: &ControlContext<'_>, request: &Message) -> Vec<Message> {
    let credentials = &context.keying.credentials;
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
pub(super) fn flush_certs(context: &ControlContext<'_>, request: &Message) {
    let asked = |kind: CertKind| {
        let listing =
            CertListing { kind, flag: CertFlag::None, has_private_key: false, der: Vec::new(), subject: None };
        listing.is_asked_for(request)
    };
    let credentials = &context.keying.credentials;
    credentials.flush_fetched(asked(CertKind::Crl), asked(CertKind::OcspResponse));
    if asked(CertKind::X509) {
        credentials.flush_received();
    }
}

/// The events of `list-authorities`.
pub(super) fn list_authorities(context: &ControlContext<'_>, request: &Message) -> Vec<Message> {
    let wanted = request.text("name");
    let listing = |authority: &Authority| AuthorityListing {
        name: authority.name.clone(),
        cacert: authority.cacert.from.clone(),
        crl_uris: authority.crl_uris.clone(),
        ocsp_uris: authority.ocsp_uris.clone(),
        cert_uri_base: None,
    };
    let asked = context.loaded.authorities().filter(|authority| wanted.is_none_or(|name| name == authority.name));
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
