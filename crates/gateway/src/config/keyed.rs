//! The sections of swanctl.conf together, and one at a time as vici loads them.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use ike::config::{Connection, PoolConfig};

use super::authority::Authority;
use super::cert::{CertDirs, Certificates, Context};
use super::connection::{self, Keyed};
use super::gateway::Gateway;
use super::outside::Outside;
use super::pool;
use super::problem::{Problem, Problems, nearest};
use super::psp::PspConfig;
use super::secret::{self, SecretEntry};
use super::syntax::Section;
use super::value::{Fields, Sink};

/// Contents of the sections `connections`, `secrets`, `pools` and `authorities`.
#[derive(Clone, Debug, Default)]
pub struct KeyedSections {
    /// Connections of IKE.
    pub connections: Vec<Arc<Connection>>,
    /// Connections with a name that has no address now; `weir check` alone looks.
    pub unresolved: Vec<String>,
    /// Peers of the PSP key service.
    pub psp: Vec<PspConfig>,
    /// Pools of virtual addresses.
    pub pools: Vec<PoolConfig>,
    /// Shared secrets and passphrases.
    pub secrets: Vec<SecretEntry>,
    /// Certification authorities.
    pub authorities: Vec<Authority>,
    /// Certificates that connections and authorities name.
    pub certificates: Certificates,
    /// Files in the folders beside the configuration.
    pub cert_dirs: CertDirs,
}

/// Sections that are read here.
pub(crate) const SECTIONS: &[&str] = &["connections", "secrets", "pools", "authorities"];

impl KeyedSections {
    pub(crate) fn read(root: &Section, gateway: &Gateway, outside: &Outside<'_>, sink: &Sink) -> Self {
        let context = Context::new(outside, gateway);
        let mut read = Self::default();
        let before = sink.count();
        for (section, path) in each(root, "connections", sink) {
            match connection::read(section, &path, &context, sink) {
                Keyed::Ike(connection) => read.connections.push(Arc::new(*connection)),
                Keyed::Psp(psp) => read.psp.push(*psp),
            }
        }
        read.secrets =
            each(root, "secrets", sink).flat_map(|(section, path)| secret::read(section, &path, sink)).collect();
        read.pools = each(root, "pools", sink).filter_map(|(section, path)| pool::read(section, &path, sink)).collect();
        read.authorities = each(root, "authorities", sink)
            .filter_map(|(section, path)| Authority::read(section, &path, &context, sink))
            .collect();
        read.certificates = context.certificates.into_inner();
        if sink.count() == before {
            read.check(root, sink);
        }
        read
    }

    /// Resolves every name, and notes connections with a name that has no address; one line each.
    pub(crate) fn resolve(&mut self, resolve: impl Fn(&str) -> io::Result<Vec<IpAddr>>) -> Vec<String> {
        let ike = self.connections.iter().flat_map(|one| one.host_names().map(|host| (&one.name, host)));
        let psp = self.psp.iter().flat_map(|one| one.host_names().map(|host| (&one.name, host)));
        let mut warnings = Vec::new();
        for (name, host) in ike.chain(psp) {
            let why = match resolve(host) {
                Ok(found) if !found.is_empty() => continue,
                Ok(_) => String::new(),
                Err(error) => format!(": {error}"),
            };
            warnings.push(format!(
                "connections.{name}: '{host}' does not resolve{why}; its traffic is dropped until it does"
            ));
            if !self.unresolved.contains(name) {
                self.unresolved.push(name.clone());
            }
        }
        warnings
    }

    /// Checks that need all sections together.
    fn check(&self, root: &Section, sink: &Sink) {
        let names: Vec<&str> = self.pools.iter().map(|pool| pool.name.as_str()).collect();
        for section in root.section("connections").map(|s| s.sections.as_slice()).unwrap_or_default() {
            let Some(setting) = section.setting("pools") else { continue };
            for pool in setting.value.split(',').map(str::trim).filter(|pool| !pool.is_empty() && !names.contains(pool))
            {
                let message = format!("connections.{}.pools: unknown pool '{pool}'", section.name);
                let help = match names.as_slice() {
                    // strongSwan's plugins, not pools of the file.
                    _ if ["dhcp", "radius"].contains(&pool) => format!(
                        "a pool of the kind '{}' is not supported; reserve a range for the tunnels and write it: \
                         'pools = clients' and a section 'pools {{ clients {{ addrs = FIRST-LAST }} }}'",
                        pool.to_ascii_uppercase()
                    ),
                    [] => format!("add 'pools {{ {pool} {{ addrs = 10.3.0.0/24 }} }}', one setting per line"),
                    _ => nearest(pool, names.iter().copied())
                        .map(|name| format!("did you mean '{name}'?"))
                        .unwrap_or_else(|| format!("write one of: {}", names.join(", "))),
                };
                sink.push(Problem::at(&setting.value_at, message).help(help));
            }
        }
        for (i, pool) in self.pools.iter().enumerate() {
            let overlaps =
                |other: &&PoolConfig| pool.addrs.start <= other.addrs.end && other.addrs.start <= pool.addrs.end;
            if let Some(other) = self.pools[..i].iter().find(overlaps) {
                let message = format!("pools.{}: its addresses are also those of pool '{}'", pool.name, other.name);
                let at = root.section("pools").and_then(|s| s.section(&pool.name)).map_or(&root.at, |s| &s.at);
                sink.push(Problem::at(at, message).help("ranges of pools must not overlap; choose other ranges"));
            }
        }
    }

    /// Returns whether there is anything to agree keys for.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.psp.is_empty()
    }

    /// Lists the folders beside the configuration, and reports passphrases without a file.
    pub(crate) fn collect(&mut self, folder: &Path, warnings: &mut Vec<String>) {
        self.cert_dirs = CertDirs::collect(folder);
        for entry in self.secrets.iter().filter(|entry| entry.kind.is_passphrase()) {
            let Some(file) = &entry.file else { continue };
            let is_it = |path: &std::path::PathBuf| {
                path.file_name().is_some_and(|name| name.to_string_lossy().eq_ignore_ascii_case(file))
            };
            if !self.cert_dirs.of(entry.kind.name()).iter().any(is_it) {
                let folder = folder.join(entry.kind.name());
                warnings.push(format!("secrets.{}: no file '{file}' in {}", entry.name, folder.display()));
            }
        }
    }
}

/// The sections below `name` with their paths; settings beside them are faults.
fn each<'a>(root: &'a Section, name: &'static str, sink: &'a Sink) -> impl Iterator<Item = (&'a Section, String)> {
    if let Some(section) = root.section(name) {
        let names: Vec<&str> = section.sections.iter().map(|s| s.name.as_str()).collect();
        let fields = match name {
            "secrets" => Fields::secret(section, name.into(), &[], sink),
            _ => Fields::new(section, name.into(), sink),
        };
        fields.finish(&names, |key| {
            Some(format!("settings of '{name}' belong into a subsection: '{name} {{ NAME {{ {key} = … }} }}'"))
        });
    }
    let sections = root.section(name).map(|section| section.sections.as_slice()).unwrap_or_default();
    sections.iter().map(move |section| (section, format!("{name}.{}", section.name)))
}

/// A connection that vici loads.
#[derive(Clone, Debug)]
pub struct LoadedConnection {
    /// The connection that was read.
    pub connection: Keyed,
    /// Certificates that came with it.
    pub certificates: Certificates,
    /// Warnings: valid, but worth reporting.
    pub warnings: Vec<String>,
}

/// Reads the message of `load-conn`: one section, named like the connection. Whether its pools
/// exist is not looked at.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load_connection(
    message: &Section,
    outside: &Outside<'_>,
    gateway: &Gateway,
) -> Result<LoadedConnection, Problems> {
    let section = only(message, "a connection")?;
    let (sink, context) = (Sink::default(), Context::new(outside, gateway));
    let connection = connection::read(section, &section.name, &context, &sink);
    finish(
        &sink,
        LoadedConnection {
            connection,
            certificates: context.certificates.into_inner(),
            warnings: sink.take_warnings(),
        },
    )
}

/// Reads the message of `load-pool`: one section, named like the pool.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load_pool(message: &Section) -> Result<PoolConfig, Problems> {
    let section = only(message, "a pool")?;
    let sink = Sink::default();
    let pool = pool::read(section, &section.name, &sink);
    finish(&sink, pool)?.ok_or_else(|| Problem::whole(format!("{}: not a pool", section.name)).into())
}

/// Reads the message of `load-authority`: one section, named like the authority.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load_authority(message: &Section, outside: &Outside<'_>, gateway: &Gateway) -> Result<Authority, Problems> {
    let section = only(message, "an authority")?;
    let sink = Sink::default();
    let authority = Authority::read(section, &section.name, &Context::new(outside, gateway), &sink);
    finish(&sink, authority)?.ok_or_else(|| Problem::whole(format!("{}: not an authority", section.name)).into())
}

fn only<'a>(message: &'a Section, what: &str) -> Result<&'a Section, Problems> {
    match (message.settings.as_slice(), message.sections.as_slice()) {
        ([], [section]) => Ok(section),
        _ => {
            let text = format!("the message is not {what}: expected one section with its name");
            Err(Problem::at(&message.at, text).help("send 'NAME { key = value … }'").into())
        }
    }
}

fn finish<T>(sink: &Sink, read: T) -> Result<T, Problems> {
    let problems = sink.take();
    if problems.is_empty() { Ok(read) } else { Err(Problems(problems)) }
}
