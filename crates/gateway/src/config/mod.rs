//! The configuration: from a file to specifications that are known to be consistent.
//!
//! [`load`] reads, checks everything and reports everything that is wrong. A returned configuration
//! can only fail later for reasons outside of the file: privileges, devices, addresses.

mod auth;
mod authority;
mod cert;
mod child;
mod connection;
mod gateway;
mod keyed;
mod message;
mod outside;
mod policy;
mod pool;
pub mod problem;
mod proposal;
mod psp;
mod sa;
pub mod schema;
mod secret;
pub mod syntax;
mod trust;
pub(crate) mod ts;
pub(crate) mod value;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use crypto::Engine;
use ipsec::{Mode, Protocol};
use wire::psp::PspSpi;
use wire::{AddrRange, Selector, Spi};

pub use authority::Authority;
pub use cert::{CertDirs, Certificate, Certificates};
pub use connection::Keyed;
pub use gateway::{Gateway, Interface, Mss};
pub use keyed::{KeyedSections, LoadedConnection, load_authority, load_connection, load_pool};
pub use outside::{Outside, ReadFile, resolve_name};
pub use policy::{Policy, PolicyAction};
use problem::{Origin, Problem, Problems};
pub use psp::{PspChild, PspConfig, PspMode};
pub(crate) use sa::psp_versions;
pub use sa::{Half, HalfProto, Sa};
pub use secret::{SecretEntry, SecretKind, load_shared};
use syntax::Section;
pub(crate) use value::Secret;
use value::{Fields, Sink};

/// A configuration without contradictions.
#[derive(Clone)]
pub struct Config {
    /// Settings of the daemon.
    pub gateway: Gateway,
    /// SAs in the order of the file.
    pub sas: Vec<Sa>,
    /// Policies in the order of the file.
    pub policies: Vec<Policy>,
    /// Connections, secrets, pools and authorities: what keys are agreed with.
    pub keyed: KeyedSections,
    /// Warnings: valid, but worth reporting.
    pub warnings: Vec<String>,
}

impl Config {
    /// Returns whether keys should be negotiated: by IKE, or by the key service of PSP.
    pub fn ike_wanted(&self) -> bool {
        let keyed = !self.keyed.connections.is_empty();
        self.gateway.ike.unwrap_or(keyed) || !self.keyed.psp.is_empty()
    }
}

/// Purpose of the file: some settings are valid for one purpose only.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// `weir up`.
    Gateway,
    /// `weir pcap`.
    Offline,
}

/// Reads and checks a configuration.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load(path: &Path, purpose: Purpose) -> Result<Config, Problems> {
    let root = syntax::read(path)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut config = check(&root, purpose, &Outside::host(folder))?;
    if purpose == Purpose::Gateway {
        config.gateway.metrics_files(folder, &root)?;
        config.keyed.collect(folder, &mut config.warnings);
        let user = config.gateway.future_user()?;
        trust::check(
            path,
            &root,
            &config.keyed.cert_dirs,
            &config.keyed.certificates,
            config.gateway.metrics_tls.as_ref(),
            user.as_ref(),
        )?;
    }
    Ok(config)
}

/// Settings that name what a gateway leaves on its host, and the user that may own the file.
const TRACES: [&str; 4] = ["tun", "route_table", "socket", "user"];

/// Reads the settings of the section `gateway` that name what a gateway leaves on its host: `tun`,
/// `route_table` and `socket`. All other settings have their defaults, and faults elsewhere in the
/// file are none: a certificate that expired must not prevent the removal.
///
/// # Errors
/// The file cannot be parsed, one of these settings is invalid, or other users may change them.
pub fn load_traces(path: &Path) -> Result<Gateway, Problems> {
    let mut root = syntax::read(path)?;
    root.sections.retain(|section| section.name == "gateway");
    let Some(section) = root.sections.first_mut() else { return Ok(Gateway::default()) };
    section.settings.retain(|setting| TRACES.contains(&setting.name.as_str()));
    section.sections.clear();
    let sink = Sink::default();
    let gateway = Gateway::read(&Fields::new(section, "gateway".into(), &sink));
    let problems = sink.take();
    if !problems.is_empty() {
        return Err(Problems(problems));
    }
    // A user that is gone owns no file.
    trust::check_sources(section, gateway.future_user().unwrap_or_default().as_ref())?;
    Ok(gateway)
}

/// Checks a tree; files are read `outside`.
///
/// # Errors
/// Everything that is wrong with it.
pub fn check(root: &Section, purpose: Purpose, outside: &Outside<'_>) -> Result<Config, Problems> {
    let sink = Sink::default();
    root.notes.iter().for_each(|note| sink.warn(note.clone()));
    top_level(root, &sink);
    let gateway = match root.section("gateway") {
        Some(section) => Gateway::read(&Fields::new(section, "gateway".into(), &sink)),
        None => Gateway::default(),
    };
    let sections = |name: &str| root.section(name).map(|s| s.sections.as_slice()).unwrap_or_default();
    for name in ["sas", "policies"] {
        if let Some(section) = root.section(name) {
            let names: Vec<&str> = section.sections.iter().map(|s| s.name.as_str()).collect();
            Fields::new(section, name.into(), &sink).finish(&names, |key| {
                Some(format!("settings of '{name}' belong into a subsection: '{name} {{ NAME {{ {key} = … }} }}'"))
            });
        }
    }
    let sas: Vec<Sa> = sections("sas")
        .iter()
        .filter_map(|s| Sa::read(&s.name, &Fields::new(s, format!("sas.{}", s.name), &sink), &gateway))
        .collect();
    let sa_names: Vec<&str> = sections("sas").iter().map(|s| s.name.as_str()).collect();
    let mut policies: Vec<Policy> = sections("policies")
        .iter()
        .filter_map(|s| Policy::read(&s.name, &Fields::new(s, format!("policies.{}", s.name), &sink), &sas, &sa_names))
        .collect();

    let keyed = match purpose {
        Purpose::Gateway => KeyedSections::read(root, &gateway, outside, &sink),
        Purpose::Offline => KeyedSections::default(),
    };
    unlike_spis(&sas, &sink);
    spis_below_eesp(&sas, &sink);
    unlike_keys(&sas, &sink);
    if sink.is_empty() {
        match purpose {
            Purpose::Gateway => for_gateway(root, &gateway, &sas, &policies, &keyed, &sink),
            Purpose::Offline => policies.extend(implied_policy(root, &sas, &sink, policies.is_empty())),
        }
    }
    let mut problems = sink.take();
    problems.sort_by_cached_key(Problem::order);
    if !problems.is_empty() {
        return Err(Problems(problems));
    }
    let mut warnings = sink.take_warnings();
    if purpose == Purpose::Gateway && policies.is_empty() && keyed.is_empty() {
        warnings.push("no connection and no policy: all traffic is dropped until one is loaded".into());
    }
    for sa in &sas {
        if policies.iter().all(|p| p.action != PolicyAction::Protect(sa.name.clone())) {
            warnings.push(format!("no policy uses SA '{}'", sa.name));
        }
    }
    Ok(Config { gateway, sas, policies, keyed, warnings })
}

/// Sections at the top: those that are read, and those that others refer to.
fn top_level(root: &Section, sink: &Sink) {
    let mut sections = vec!["gateway", "sas", "policies", "templates"];
    sections.extend(keyed::SECTIONS);
    let read = sections.clone();
    sections.extend(root.templates.iter().map(String::as_str));
    Fields::new(root, "top of the file".into(), sink).finish(&sections, |key| {
        if problem::nearest(key, read.iter().copied()).is_some() {
            return None;
        }
        match root.section(key) {
            Some(_) => Some(format!(
                "remove it, or reference it: 'NAME : {key} {{ … }}'; known sections are {}",
                read.join(", ")
            )),
            None => Some(format!("'{key}' must be in one of the sections {}", read.join(", "))),
        }
    });
}

fn problem(at: &Origin, path: &str, message: impl std::fmt::Display, help: impl Into<String>) -> Problem {
    Problem::at(at, format!("{path}: {message}")).help(help)
}

/// No two inbound SAs that a packet could mean, no two outbound ones that a peer could not tell
/// apart.
fn unlike_spis(sas: &[Sa], sink: &Sink) {
    let mut seen: HashMap<(bool, Protocol, u32, IpAddr), &str> = HashMap::new();
    let mut ranges: Vec<(IpAddr, PspSpi, PspSpi, &str)> = Vec::new();
    for sa in sas {
        let halves = [(false, &sa.outbound, sa.peer.remote), (true, &sa.inbound, sa.peer.local)];
        for (inbound, half, dst) in halves {
            let Some(half) = half else { continue };
            let direction = if inbound { "in" } else { "out" };
            if let HalfProto::PspIn { issued, .. } = &half.proto {
                for &(first, last) in issued {
                    let other =
                        ranges.iter().find(|(addr, f, l, _)| *addr == sa.peer.local && first <= *l && *f <= last);
                    if let Some((.., name)) = other {
                        let message =
                            format!("SPIs {:#x} to {:#x} overlap with those of SA '{name}'", first.get(), last.get());
                        sink.push(problem(
                            &sa.at,
                            &format!("sas.{}.in.issued", sa.name),
                            message,
                            "SPI ranges of peers must not overlap; choose other ranges",
                        ));
                    }
                    ranges.push((sa.peer.local, first, last, &sa.name));
                }
                continue;
            }
            let spi = match half.proto {
                HalfProto::PspOut { spi, .. } => Some(spi.get()),
                _ => half.proto.spi().map(Spi::get),
            };
            let Some(spi) = spi else { continue };
            if let Some(other) = seen.insert((inbound, sa.protocol, spi, dst), &sa.name) {
                let message =
                    format!("SPI {spi:#x} is also used by SA '{other}' with the same protocol and destination {dst}");
                sink.push(problem(
                    &sa.at,
                    &format!("sas.{}.{direction}.spi", sa.name),
                    message,
                    "give one of them another SPI",
                ));
            }
        }
    }
}

/// On the NAT-T port the first bit distinguishes ESP from EESP if this host receives EESP.
fn spis_below_eesp(sas: &[Sa], sink: &Sink) {
    if !sas.iter().any(|sa| sa.protocol == Protocol::Eesp && sa.inbound.is_some()) {
        return;
    }
    for sa in sas.iter().filter(|sa| sa.protocol == Protocol::Esp) {
        let encapsulated = sa.inbound.as_ref().filter(|half| half.outer.udp.is_some());
        let spi = encapsulated.and_then(|half| half.proto.spi()).map(Spi::get);
        let Some(spi) = spi.filter(|spi| spi >> 31 == 1) else { continue };
        let message = format!("SPI {spi:#x} in UDP is ambiguous: another SA receives EESP");
        let help = "use one below 0x80000000, or 'encap = no'";
        sink.push(problem(&sa.at, &format!("sas.{}.in.spi", sa.name), message, help));
    }
}

/// One key, one sender: with counters for nonces anything else repeats them. A key that PSP derives
/// is named by its master key and SPI; any other has no SPI.
fn unlike_keys(sas: &[Sa], sink: &Sink) {
    let mut seen: HashMap<(&[u8], Option<PspSpi>), String> = HashMap::new();
    for sa in sas {
        for (direction, half) in [("out", &sa.outbound), ("in", &sa.inbound)] {
            let Some(half) = half else { continue };
            let secrets: Vec<(&Secret, Option<PspSpi>)> = match &half.proto {
                HalfProto::PspOut { spi, key: None, masters, .. } => {
                    masters[spi.master_key()].iter().map(|master| (master, Some(*spi))).collect()
                }
                HalfProto::PspOut { key, .. } => key.iter().map(|key| (key, None)).collect(),
                HalfProto::PspIn { .. } => Vec::new(), // peers share master keys by design
                HalfProto::Esp { enc, integ, .. } if enc.len() == 0 => vec![(integ, None)],
                HalfProto::Esp { enc, .. } => vec![(enc, None)],
                other => other.secrets().into_iter().map(|secret| (secret, None)).collect(),
            };
            let path = format!("sas.{}.{direction}", sa.name);
            for (secret, spi) in secrets {
                let other = seen.insert((secret.octets(), spi), path.clone()).or_else(|| {
                    let spi = spi?;
                    let receiver = sas.iter().find(|receiver| hands_out(receiver, secret, spi))?;
                    Some(format!("sas.{}.in", receiver.name))
                });
                if let Some(other) = other {
                    let message = format!("the key is also used by {other}: nonces would repeat");
                    sink.push(problem(&sa.at, &path, message, "use a different key for every SA and direction"));
                }
            }
        }
    }
}

/// Returns whether this host, receiving on `sa`, gave `spi` under `master` to its peer.
fn hands_out(sa: &Sa, master: &Secret, spi: PspSpi) -> bool {
    match sa.inbound.as_ref().map(|half| &half.proto) {
        Some(HalfProto::PspIn { masters, issued, .. }) => {
            masters[spi.master_key()].as_ref() == Some(master)
                && issued.iter().any(|&(first, last)| (first..=last).contains(&spi))
        }
        _ => false,
    }
}

/// Settings that a running gateway must not have.
fn for_gateway(root: &Section, gateway: &Gateway, sas: &[Sa], policies: &[Policy], keyed: &KeyedSections, sink: &Sink) {
    let place = |name: &str| root.section(name).map_or(&root.at, |section| &section.at);
    if gateway.engine == Some(Engine::Null) {
        let help = "use 'engine = auto'; subjects 'skeleton-…' of 'weir bench path' measure with the null engine";
        sink.push(problem(place("gateway"), "gateway.engine", "the null engine does not encrypt", help));
    }
    if let Some(why) = gateway.engine.and_then(Engine::unavailable) {
        let help = "use 'engine = auto', which selects the fastest available";
        sink.push(problem(place("gateway"), "gateway.engine", why, help));
    }
    if policies.is_empty() && keyed.is_empty() && !sas.is_empty() {
        let help = "add 'policies { NAME { local_ts = …  remote_ts = …  sa = … } }', one setting per line; everything else is dropped";
        sink.push(problem(place("policies"), "policies", "no policy", help));
    }
    for sa in sas {
        if let Some(HalfProto::Esp { iv: Some(_), .. }) = sa.outbound.as_ref().map(|half| &half.proto) {
            let message = "a constant IV is for test vectors only";
            sink.push(problem(&sa.at, &format!("sas.{}.out.iv", sa.name), message, "remove it"));
        }
    }
    for policy in policies {
        let PolicyAction::Protect(name) = &policy.action else { continue };
        let Some(sa) = sas.iter().find(|sa| sa.name == *name) else { continue };
        for (direction, half) in [("out", &sa.outbound), ("in", &sa.inbound)] {
            if half.is_none() {
                let message = format!("SA '{name}' has no '{direction}'");
                let help = format!("a running gateway needs both directions: add '{direction} {{ … }}' to sas.{name}");
                sink.push(problem(
                    policy.at.as_ref().unwrap_or(&sa.at),
                    &format!("policies.{}.sa", policy.name),
                    message,
                    help,
                ));
            }
        }
    }
}

/// Offline a file with one SA needs no policy.
fn implied_policy(root: &Section, sas: &[Sa], sink: &Sink, missing: bool) -> Option<Policy> {
    if !missing {
        return None;
    }
    match sas {
        [] => {
            sink.push(Problem::at(&root.at, "no SA in the file").help("add 'sas { NAME { … } }'"));
            None
        }
        [sa] => Some(policy_for(sa)),
        _ => {
            let message = format!("the file has {} SAs and no policy", sas.len());
            let help = "add policies that map packets to SAs, or choose an SA with --name";
            sink.push(Problem::at(&root.at, message).help(help));
            None
        }
    }
}

/// The policy that protects everything an SA can carry.
pub fn policy_for(sa: &Sa) -> Policy {
    let one = |addr| AddrRange { start: addr, end: addr };
    let selectors = match sa.mode {
        Mode::Tunnel | Mode::Aggfrag(_) => {
            [AddrRange::ANY_V4, AddrRange::ANY_V6].map(|any| Selector::between(any, any)).to_vec()
        }
        Mode::Transport => vec![Selector::between(one(sa.peer.local), one(sa.peer.remote))],
        Mode::Beet(beet) => vec![Selector::between(one(beet.local), one(beet.remote))],
    };
    Policy { name: sa.name.clone(), selectors, action: PolicyAction::Protect(sa.name.clone()), at: None }
}

/// Reads a configuration for `weir pcap`: with `name` only that SA counts, with `mirror` everything
/// is seen from the other end.
///
/// # Errors
/// As [`load`]; an unknown name.
pub fn load_offline(path: &Path, name: Option<&str>, mirror: bool) -> Result<Config, Problems> {
    let mut config = match name {
        None => load(path, Purpose::Offline)?,
        Some(name) => {
            let mut root = syntax::read(path)?;
            root.sections.retain(|section| section.name != "policies");
            let Some(sas) = root.sections.iter_mut().find(|section| section.name == "sas") else {
                return Err(Problem::whole(format!("{}: no section 'sas'", path.display())).into());
            };
            if sas.section(name).is_none() {
                let names = sas.sections.iter().map(|s| s.name.as_str());
                let help = value::suggestion(name, names);
                return Err(Problem::whole(format!("{}: unknown SA '{name}'", path.display())).help(help).into());
            }
            sas.sections.retain(|section| section.name == name);
            check(&root, Purpose::Offline, &Outside::nothing())?
        }
    };
    if mirror {
        config.sas = config.sas.iter().map(Sa::mirrored).collect();
        for policy in &mut config.policies {
            policy.selectors = policy.selectors.iter().map(Selector::reversed).collect();
        }
    }
    Ok(config)
}

#[cfg(test)]
pub(crate) mod tests;
