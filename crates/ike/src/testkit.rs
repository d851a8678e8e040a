#![allow(clippy::disallowed_methods)] // simulated time begins at some time
//! Endpoints in memory, a wire between them and simulated time: for tests here and simulations
//! elsewhere.
//!
//! A [`Net`] is made of [`Host`]s; [`Net::run`] delivers datagrams, answers credential requests
//! from each host's [`Credentials`] and advances the time until no timer is pending. [`Net::wire`]
//! decides the fate of a datagram: loss, delay, duplication, translation of addresses. Everything
//! random comes from one seed, so that a run repeats exactly.

mod answers;
mod fuzz;
mod fuzz_v1;
mod pair_v1;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use wire::{AddrRange, PortRange};

pub use self::answers::{Credentials, EapFake};
pub use self::fuzz::drive;
pub use self::fuzz_v1::drive_v1;
pub use self::pair_v1::VariantV1;
use crate::config::*;
use crate::hosts::ResolveError;
use crate::identity::{IdPattern, Identity};
use crate::output::{
    ChildId, ChildSa, CommandError, CredentialRequest, CredentialResponse, Event, IkeId, Level, Output, RequestId,
    Transmit, VirtualIp,
};
use crate::proposal::{ChildProposal, ChildProtocol, IkeProposal};
use crate::{Endpoint, Settings};

/// Delivery of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Delivery {
    /// It arrives after this time.
    After(Duration),
    /// It arrives twice, after these times.
    Twice(Duration, Duration),
    /// It is lost.
    Lost,
}

/// A Child SA as the data plane has it.
pub struct Installed {
    /// As configured.
    pub sa: Box<ChildSa>,
    /// Its outbound half is in use.
    pub outbound: bool,
    /// Since when it is over; its inbound half receives on for a while.
    pub removed: Option<Instant>,
}

/// One host.
pub struct Host {
    /// The endpoint.
    pub endpoint: Endpoint<ChaCha8Rng>,
    /// Identity and trust anchors.
    pub credentials: Credentials,
    /// Addresses at which it receives, the first is the usual one.
    pub addrs: Vec<IpAddr>,
    /// Everything that happened.
    pub events: Vec<Event>,
    /// The data plane.
    pub plane: BTreeMap<ChildId, Installed>,
    /// Virtual addresses that it has.
    pub virtuals: Vec<(IkeId, VirtualIp)>,
    /// Trap policies, by connection and child.
    pub traps: BTreeSet<(String, String)>,
    /// Keepalives sent.
    pub keepalives: usize,
    /// Keys of IKE SAs, with `log_secrets`.
    pub secrets: Vec<crate::output::IkeSecrets>,
    /// Questions that wait because `hold` is set.
    pub held: Vec<(RequestId, CredentialRequest)>,
    /// Collect credential requests in `held` instead of responding to them.
    pub hold: bool,
    /// Addresses of names, in its resolver: last octets of the net. `gwN` is host N unless it is
    /// here.
    pub names: BTreeMap<String, Vec<u8>>,
    /// Requests of its resolver that are unanswered because `slow` is set.
    pub resolving: Vec<(u64, String)>,
    /// The resolver does not answer.
    pub slow: bool,
    /// Datagrams sent and their bytes.
    pub sent: (usize, usize),
}

/// A datagram in flight.
#[derive(Clone)]
struct InFlight {
    at: Instant,
    order: u64,
    datagram: Transmit,
}

/// Decides about each datagram and may change it.
pub type Wire = Box<dyn FnMut(&mut Transmit) -> Delivery>;

/// Hosts and the wire between them.
pub struct Net {
    /// Simulated time.
    pub now: Instant,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// Behaviour of the link; by default it delivers everything after 5 ms.
    pub wire: Wire,
    flying: Vec<InFlight>,
    order: u64,
}

impl Net {
    /// `count` hosts with the addresses 10.0.0.1, 10.0.0.2, … .
    pub fn new(seed: u64, count: u8) -> Self {
        Self::with_settings(seed, count, &Settings::default())
    }

    /// Likewise with other limits.
    pub fn with_settings(seed: u64, count: u8, settings: &Settings) -> Self {
        let now = Instant::now();
        let host = |number: u8| {
            let rng = ChaCha8Rng::seed_from_u64(seed.wrapping_mul(251).wrapping_add(number.into()));
            let mut host = Host {
                endpoint: Endpoint::new(settings.clone(), rng),
                names: BTreeMap::new(),
                resolving: Vec::new(),
                slow: false,
                credentials: Credentials::default(),
                addrs: vec![addr(number)],
                events: Vec::new(),
                plane: BTreeMap::new(),
                virtuals: Vec::new(),
                traps: BTreeSet::new(),
                keepalives: 0,
                secrets: Vec::new(),
                held: Vec::new(),
                hold: false,
                sent: (0, 0),
            };
            host.endpoint.local_addresses(now, &host.addrs);
            host
        };
        let wire = Box::new(|_: &mut Transmit| Delivery::After(Duration::from_millis(5)));
        Self { now, hosts: (1..=count).map(host).collect(), wire, flying: Vec::new(), order: 0 }
    }

    /// Loads connections into a host.
    pub fn load(&mut self, host: usize, connections: Vec<Connection>) {
        let connections = connections.into_iter().map(Arc::new).collect();
        self.hosts[host].endpoint.load(self.now, connections);
        self.pump();
    }

    /// Sends a datagram unchanged.
    pub fn inject(&mut self, datagram: Transmit) {
        self.order += 1;
        self.flying.push(InFlight { at: self.now, order: self.order, datagram });
    }

    /// Executes all pending outputs of the hosts.
    pub fn pump(&mut self) {
        for at in 0..self.hosts.len() {
            while let Some(output) = self.hosts[at].endpoint.poll() {
                if let Some(transmit) = self.hosts[at].take(self.now, output) {
                    self.send(transmit);
                }
            }
        }
    }

    fn send(&mut self, mut datagram: Transmit) {
        let fate = (self.wire)(&mut datagram);
        let delays = match fate {
            Delivery::After(delay) => vec![delay],
            Delivery::Twice(first, second) => vec![first, second],
            Delivery::Lost => Vec::new(),
        };
        for delay in delays {
            self.order += 1;
            self.flying.push(InFlight { at: self.now + delay, order: self.order, datagram: datagram.clone() });
        }
    }

    /// Time of the next event.
    pub fn next_due(&self) -> Option<Instant> {
        let timers = self.hosts.iter().filter_map(|host| host.endpoint.deadline());
        self.flying.iter().map(|flying| flying.at).chain(timers).min()
    }

    /// Lets time pass, at most `limit`; stops early only if no timer is pending.
    pub fn run(&mut self, limit: Duration) {
        let end = self.now + limit;
        self.pump();
        while let Some(due) = self.next_due().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.deliver();
            for host in &mut self.hosts {
                if host.endpoint.deadline().is_some_and(|at| at <= self.now) {
                    host.endpoint.handle_timeout(self.now);
                }
            }
            self.pump();
        }
        self.now = end;
    }

    /// Delivers the datagrams that have arrived, in order of arrival.
    fn deliver(&mut self) {
        while let Some(next) = self.earliest() {
            let InFlight { datagram, .. } = self.flying.swap_remove(next);
            let Some(host) = self.hosts.iter_mut().find(|host| host.addrs.contains(&datagram.remote.ip())) else {
                continue;
            };
            host.endpoint.handle_datagram(self.now, datagram.remote, datagram.local, &datagram.datagram);
            self.pump();
        }
    }

    fn earliest(&self) -> Option<usize> {
        let arrived = self.flying.iter().enumerate().filter(|(_, flying)| flying.at <= self.now);
        arrived.min_by_key(|(_, flying)| (flying.at, flying.order)).map(|(at, _)| at)
    }

    /// Responds to the credential requests in `held`.
    pub fn release(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        for (request_id, request) in std::mem::take(&mut host.held) {
            let answer = host.credentials.answer(&request);
            host.endpoint.handle_credentials(self.now, request_id, answer);
        }
        self.pump();
    }
}

impl Host {
    /// Does one thing; returns the datagrams to send.
    fn take(&mut self, now: Instant, output: Output) -> Option<Transmit> {
        match output {
            Output::Transmit(mut transmit) => {
                if transmit.local.ip().is_unspecified() {
                    let family = |addr: &&IpAddr| addr.is_ipv4() == transmit.remote.is_ipv4();
                    transmit.local.set_ip(*self.addrs.iter().find(family)?);
                }
                self.sent.0 += 1;
                self.sent.1 += transmit.datagram.len();
                return Some(transmit);
            }
            Output::RequestCredentials(request_id, request) if self.hold => self.held.push((request_id, request)),
            Output::RequestCredentials(request_id, request) => {
                let answer = self.credentials.answer(&request);
                self.endpoint.handle_credentials(now, request_id, answer);
            }
            Output::CancelRequest(request_id) => self.held.retain(|(held, _)| *held != request_id),
            Output::Install(sa) => {
                let outbound = sa.outbound_now;
                if let Some(old) = sa.replaces.filter(|_| outbound).and_then(|old| self.plane.get_mut(&old)) {
                    old.outbound = false;
                }
                self.plane.insert(sa.id, Installed { sa, outbound, removed: None });
            }
            Output::UseOutbound(id) => {
                let new = self.plane.get_mut(&id)?;
                new.outbound = true;
                let old = new.sa.replaces;
                if let Some(old) = old.and_then(|old| self.plane.get_mut(&old)) {
                    old.outbound = false;
                }
            }
            Output::Remove(id, _) => {
                if let Some(child) = self.plane.get_mut(&id) {
                    (child.outbound, child.removed) = (false, Some(now));
                }
            }
            Output::Move(id, path) => {
                if let Some(child) = self.plane.get_mut(&id) {
                    child.sa.path = path;
                }
            }
            Output::VirtualAddress(ike, address, true) => self.virtuals.push((ike, address)),
            Output::VirtualAddress(_, address, false) => self.virtuals.retain(|(_, have)| have.addr != address.addr),
            Output::Trap(connection, child, true) => {
                self.traps.insert((connection.name.clone(), child.name.clone()));
            }
            Output::Trap(connection, child, false) => {
                self.traps.remove(&(connection.name.clone(), child.name.clone()));
            }
            Output::Keepalive(_) => self.keepalives += 1,
            Output::Resolve(number, host) if self.slow => self.resolving.push((number, host)),
            Output::Resolve(number, host) => self.resolve(now, number, &host),
            Output::Resolved(_) => (),
            Output::Secrets(secrets) => self.secrets.push(*secrets),
            Output::Event(event) => self.events.push(event),
        }
        None
    }

    /// Answers a request of the resolver.
    pub fn resolve(&mut self, now: Instant, number: u64, host: &str) {
        let of_net = || host.strip_prefix("gw").and_then(|last| last.parse().ok()).map(|last| vec![last]);
        let found = self
            .names
            .get(host)
            .cloned()
            .or_else(of_net)
            .ok_or_else(|| ResolveError::Resolver(format!("there is no {host}")));
        let found = found.map(|found| found.into_iter().map(addr).collect());
        self.endpoint.resolved(now, number, found);
    }

    /// Authenticated IKE SAs.
    pub fn up(&self) -> Vec<IkeId> {
        self.endpoint.ike_sas().filter(|sa| sa.established.is_some()).map(|sa| sa.id).collect()
    }

    /// Child SAs that are not over.
    pub fn live(&self) -> impl Iterator<Item = &Installed> {
        self.plane.values().filter(|child| child.removed.is_none())
    }

    /// Value of a counter.
    pub fn count(&self, what: &str) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Count(counted) if *counted == what)).count()
    }

    /// Log lines down to a level, one per line.
    pub fn log(&self, least: Level) -> String {
        let mut lines = String::new();
        for event in &self.events {
            if let Event::Log { level, text, .. } = event
                && *level <= least
            {
                lines.push_str(text);
                lines.push('\n');
            }
        }
        lines
    }

    /// Result of a command.
    pub fn command(&self, number: u64) -> Option<&Result<(), CommandError>> {
        self.events.iter().find_map(|event| match event {
            Event::CommandDone(command, result) if *command == number => Some(result),
            _ => None,
        })
    }
}

/// Address of a host, counted from 1.
pub fn addr(number: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, number])
}

/// An identity from words.
///
/// # Panics
/// When it is none.
pub fn id(text: &str) -> Identity {
    Identity::parse(text).expect("an identity")
}

/// A range from words: an address or a network.
///
/// # Panics
/// When it is none.
pub fn range(text: &str) -> AddrRange {
    let (addr, prefix) = text.split_once('/').map_or((text, None), |(addr, prefix)| (addr, Some(prefix)));
    let addr: IpAddr = addr.parse().expect("an address");
    let all = if addr.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.map_or(all, |prefix| prefix.parse().expect("a prefix length"));
    AddrRange::from_cidr(addr, prefix).expect("a network")
}

/// One round of authentication.
pub fn auth(method: AuthMethod, pattern: &str) -> Auth {
    let pattern = if pattern == "%any" { IdPattern::Any } else { IdPattern::Like(id(pattern)) };
    Auth::new(method, pattern)
}

/// Selectors from words; `dynamic` is the address itself.
pub fn ts(text: &str) -> TsConfig {
    let addrs = (text != "dynamic").then(|| range(text));
    TsConfig { addrs, proto: None, ports: PortRange::ANY }
}

/// A Child SA between two networks.
///
/// # Panics
/// When the built-in proposal does not parse: a bug.
pub fn child(name: &str, local: &str, remote: &str) -> ChildConfig {
    ChildConfig {
        proposals: vec![ChildProposal::parse(ChildProtocol::Esp, "aes128gcm16-x25519-none").expect("a proposal")],
        local_ts: vec![ts(local)],
        remote_ts: vec![ts(remote)],
        ..ChildConfig::new(name)
    }
}

/// A connection from one host to another, with PSK and the identities `hostN.test`.
///
/// # Panics
/// When the built-in proposal does not parse: a bug.
pub fn connection(local: u8, remote: u8) -> Connection {
    Connection {
        local_addrs: vec![range(&addr(local).to_string()).into()],
        remote_addrs: vec![range(&addr(remote).to_string()).into()],
        proposals: vec![IkeProposal::parse("aes128gcm16-prfsha256-x25519-ecp256").expect("a proposal")],
        mobike: false,
        local: vec![auth(AuthMethod::Psk, &format!("host{local}.test"))],
        remote: vec![auth(AuthMethod::Psk, &format!("host{remote}.test"))],
        children: vec![Arc::new(child("net", &network(local), &network(remote)))],
        ..Connection::new(format!("{local}-{remote}"))
    }
}

/// The same by IKEv1: main mode with PSK, quick mode without PFS.
///
/// # Panics
/// When the built-in proposal does not parse: a bug.
pub fn connection_v1(local: u8, remote: u8) -> Connection {
    Connection {
        version: Version::V1,
        proposals: vec![IkeProposal::parse("aes128-sha256-ecp256").expect("a proposal")],
        ..connection(local, remote)
    }
}

/// Inner network of a host.
pub fn network(number: u8) -> String {
    format!("10.{number}.0.0/16")
}

/// Port 500 of a host.
pub fn port_500(number: u8) -> SocketAddr {
    (addr(number), 500).into()
}

/// Responses to credential requests, for hosts outside of a [`Net`].
pub fn answer(credentials: &mut Credentials, request: &CredentialRequest) -> CredentialResponse {
    credentials.answer(request)
}

#[cfg(test)]
mod tests;
