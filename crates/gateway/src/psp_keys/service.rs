//! The key service in the daemon: peers, control connections and the packet side brought together.
//!
//! The control thread owns it and calls [`PspService::turn`]; the sockets run on a separate thread
//! ([`super::link`]). Changes that a message announces are published to the data plane before the
//! message is sent.

pub(crate) mod fuzzing;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use crypto::KeyTable;
use ike::config::{StartAction, TsConfig};
use ike::hosts::{Hosts, ResolveError};
use ike::identity::{IdPattern, Identity};
use rustix::event::{EventfdFlags, eventfd};
use wire::{AddrRange, TrafficSelector};
use zeroize::Zeroizing;

use super::associations::{Associations, ChildKey, Closed, Shape, Traffic};
use super::fizz::Short;
use super::issuer::{Issuer, Seed};
use super::link::{Links, Order, Report};
use super::message::{Code, MAX_SELECTORS, Mode};
use super::peer::{Action, ChildSpec, Event, Line, Link, Peer, PeerSpec, State};
use super::tls::Entry;
use crate::audit::LineLimit;
use crate::config::{PspChild, PspConfig, PspMode};
use crate::host::source_towards;
use crate::negotiated::pairs;
use credentials::tls::Identities;

/// Time between rotations of the master keys: a key that is handed out lives for one to two of
/// them.
pub(crate) const ROTATION: Duration = Duration::from_secs(12 * 3600);
/// Peers at a time, those with an address in the configuration included; some 8 KiB each without
/// traffic.
const MAX_PEERS: usize = 4096;
/// Peers of one identity, at different addresses, besides those in the configuration: one that
/// moves has two for a while.
pub(super) const MAX_PER_IDENTITY: usize = 4;
/// Reports that wait; the thread with the sockets waits when there are more. Some 200 bytes each,
/// 1.5 KiB at most.
const MAX_REPORTS: usize = 4096;
/// Reports taken per turn.
const REPORTS_PER_TURN: usize = 1024;
/// Log lines per second about hosts that are refused.
const REFUSED_LINES: u32 = 5;
/// For the last words at the end.
const FAREWELL: Duration = Duration::from_secs(1);
/// For the answer of the thread with the sockets.
const PATIENCE: Duration = Duration::from_secs(5);
/// Age from which an address is resolved again at a reload.
const FRESH: Duration = Duration::from_secs(1);
/// The same for a peer that is not reached: it may have moved.
const UNREACHED: Duration = Duration::from_secs(60);
/// Interval at which packet counters are read.
const LOOK: Duration = Duration::from_millis(500);

/// The packet side, as far as the key service changes it.
pub(crate) trait DataPlane {
    /// Associations and the keys they name, to be changed; `routes` when policies come or go.
    /// Packets see it with [`DataPlane::commit`].
    fn psp(&mut self, routes: bool) -> (&mut Associations, &mut KeyTable);
    /// Associations, to be looked at.
    fn associations(&self) -> &Associations;
    /// Path MTU to a host, in bytes.
    fn path_mtu(&mut self, now: Instant, to: IpAddr) -> u32;
    /// Makes everything visible to packets.
    ///
    /// # Errors
    /// Routes that could not be set.
    fn commit(&mut self, now: Instant) -> anyhow::Result<()>;
}

/// Parameters of the service.
pub(crate) struct Setup {
    /// UDP port of PSP on this host.
    pub(crate) port: u16,
    /// Mark of the gateway's own packets.
    pub(crate) mark: u32,
    /// Time between rotations of the master keys.
    pub(crate) rotation: Duration,
    /// Certificates, keys, trust.
    pub(crate) identities: Arc<dyn Identities>,
    /// Rings where the control thread waits.
    pub(crate) waker: Box<dyn Fn() + Send>,
    /// Workers that send.
    pub(crate) workers: u8,
}

/// A connection that is loaded.
struct Connection {
    config: PspConfig,
    entry: Arc<Entry>,
}

impl Connection {
    /// Returns whether associations of `old` may continue with these settings until there are new
    /// keys: the same peers, children, modes, versions and selectors, and no check that the old
    /// ones lack.
    fn continues(&self, old: &Self) -> bool {
        let child = |child: &PspChild| PspChild {
            crypt_offset: 0,
            cookie: None,
            replay_window: child.replay_window.min(1),
            rekey_time: Duration::ZERO,
            rekey_packets: 0,
            start_action: StartAction::default(),
            copy_df: false,
            copy_ecn: false,
            copy_dscp: false,
            ..child.clone()
        };
        let settled = |config: &PspConfig| PspConfig {
            dpd_delay: Duration::ZERO,
            keyingtries: 0,
            children: config.children.iter().map(child).collect(),
            ..config.clone()
        };
        self.entry == old.entry && settled(&self.config) == settled(&old.config)
    }
}

/// A peer and where it is.
struct Known {
    peer: Peer,
    connection: String,
    children: Vec<PspChild>,
    /// Use of each child.
    used: Vec<Use>,
    local: IpAddr,
    remote: IpAddr,
    /// Identity of its certificate, from the first control connection on.
    who: Option<Identity>,
    ports: (u16, u16),
    ids: (String, String),
    fault: Option<String>,
    /// True if the configuration contains the peer's address; other peers are added and removed at
    /// run time.
    configured: bool,
}

/// Packets of a child at the last look, and when there were more than before: the packet path keeps
/// no time.
#[derive(Clone, Copy, Default)]
struct Use {
    packets: (u64, u64),
    at: (Option<Instant>, Option<Instant>),
}

impl Use {
    fn look(&mut self, now: Instant, traffic: &Traffic) {
        let packets = (traffic.packets_in, traffic.packets_out);
        if packets.0 > self.packets.0 {
            self.at.0 = Some(now);
        }
        if packets.1 > self.packets.1 {
            self.at.1 = Some(now);
        }
        self.packets = packets;
    }

    fn idle_s(&self, now: Instant) -> (Option<u64>, Option<u64>) {
        let since = |at: Option<Instant>| at.map(|at| now.saturating_duration_since(at).as_secs());
        (since(self.at.0), since(self.at.1))
    }
}

/// The service.
pub(crate) struct PspService {
    issuer: Issuer,
    boot: u64,
    port: u16,
    port_key: u64,
    /// Number of sending workers; each has a separate IV space.
    workers: u8,
    /// Connections of the file, and the resolved addresses of names.
    configs: Vec<PspConfig>,
    hosts: Hosts,
    /// Names to resolve.
    requests: Vec<(u64, String)>,
    connections: Vec<Connection>,
    peers: BTreeMap<u64, Known>,
    links: HashMap<Link, Used>,
    tickets: HashMap<u64, u64>,
    next: u64,
    /// Takes orders for the thread with the sockets.
    send: SendOrder,
    reports: Receiver<Report>,
    /// Limit of lines about hosts that are refused: most of them are not authenticated.
    refused: LineLimit,
    look_at: Instant,
    /// Source of randomness.
    random: fn(&mut [u8]),
    /// Orders that must not be sent before the announced keys are published.
    outbox: Vec<Order>,
    changed: bool,
    /// Nothing begins any more ([`Self::drain`]).
    draining: bool,
}

/// Takes orders.
type SendOrder = Box<dyn Fn(Order) + Send>;

/// Channel to the socket thread.
struct Sockets {
    orders: Sender<Order>,
    wake: OwnedFd,
}

/// A link that was authenticated.
struct Opened {
    link: Link,
    /// By this host.
    initiated: bool,
    /// For one short exchange.
    short: bool,
}

/// User of a control connection.
#[derive(Clone, Copy)]
struct Used {
    peer: u64,
    /// `None` for the long form.
    short: Option<ShortForm>,
}

/// State of a control connection of the short form.
#[derive(Clone, Copy, Eq, PartialEq)]
enum ShortForm {
    /// The message of the peer is awaited.
    Awaited,
    /// The message has come, or this end has refused; no other one counts.
    Ended,
    /// Both ends have switched.
    Switched,
}

/// A child of a peer, for listings and metrics.
#[derive(Clone, Debug)]
pub(crate) struct ChildState {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) sending: Option<Line>,
    pub(crate) receiving: Vec<Line>,
    /// For how long it has been sending with that SPI.
    pub(crate) since: Option<Duration>,
    pub(crate) traffic: Traffic,
    /// Seconds since the last packet in and out, as of the last look.
    pub(crate) idle_s: (Option<u64>, Option<u64>),
    /// Local and remote.
    pub(crate) selectors: (Vec<String>, Vec<String>),
    pub(crate) fault: Option<String>,
}

/// A peer, for listings and metrics.
#[derive(Clone, Debug)]
pub(crate) struct PeerListing {
    pub(crate) number: u64,
    pub(crate) connection: String,
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    /// TCP ports of the key service, local and remote.
    pub(crate) ports: (u16, u16),
    /// Identities or patterns in the configuration, local and remote.
    pub(crate) ids: (String, String),
    /// This host connects.
    pub(crate) configured: bool,
    pub(crate) state: State,
    /// Age of its key channel.
    pub(crate) reached_for: Option<Duration>,
    pub(crate) children: Vec<ChildState>,
    /// Last error.
    pub(crate) fault: Option<String>,
}

impl PspService {
    /// Draws master keys and starts the thread with the sockets; nothing is loaded yet.
    ///
    /// # Errors
    /// The operating system has no descriptor or thread left.
    pub(crate) fn start(setup: Setup) -> io::Result<Self> {
        let (orders, waiting) = channel();
        let (report_sender, reports) = sync_channel(MAX_REPORTS);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let links = Links {
            identities: setup.identities,
            orders: waiting,
            reports: report_sender,
            waker: setup.waker,
            wake: rustix::io::fcntl_dupfd_cloexec(&wake, 0)?,
            mark: setup.mark,
        };
        std::thread::Builder::new().name("psp-keys".into()).spawn(move || links.run())?;
        let sockets = Sockets { orders, wake };
        let send: SendOrder = Box::new(move |order| sockets.order(order));
        let shape = (setup.port, setup.workers, setup.rotation);
        Ok(Self::new(Instant::now(), shape, (send, reports), crypto::random))
    }

    /// A service with UDP port, workers and time between rotations, and the channel to the socket
    /// thread.
    fn new(
        now: Instant,
        (port, workers, rotation): (u16, u8, Duration),
        (send, reports): (SendOrder, Receiver<Report>),
        random: fn(&mut [u8]),
    ) -> Self {
        Self {
            issuer: Issuer::new(now, rotation, &seed(random)),
            boot: random_u64(random),
            port,
            port_key: random_u64(random),
            workers,
            configs: Vec::new(),
            hosts: Hosts::default(),
            requests: Vec::new(),
            connections: Vec::new(),
            peers: BTreeMap::new(),
            links: HashMap::new(),
            tickets: HashMap::new(),
            next: 1,
            send,
            reports,
            refused: LineLimit::new(now, REFUSED_LINES),
            look_at: now,
            random,
            outbox: Vec::new(),
            changed: false,
            draining: false,
        }
    }

    /// Applies connections; unchanged ones continue. Returns errors, one line each.
    pub(crate) fn load(&mut self, now: Instant, configs: &[PspConfig], plane: &mut dyn DataPlane) -> Vec<String> {
        self.configs = configs.to_vec();
        self.hosts.keep(configs.iter().flat_map(PspConfig::host_names));
        self.ask_hosts(now, configs.iter().flat_map(PspConfig::host_names), FRESH);
        self.put(now, plane)
    }

    /// Applies connections with resolved names; the others stay blocked.
    fn put(&mut self, now: Instant, plane: &mut dyn DataPlane) -> Vec<String> {
        let mut faults = Vec::new();
        let (mut next, mut closed) = (Vec::new(), Vec::new());
        for config in &self.configs {
            let ranges = [&config.local, &config.remote].map(|hosts| self.hosts.ranges(hosts));
            if ranges.iter().flatten().any(Vec::is_empty) {
                closed.extend(closed_policies(config));
                continue;
            }
            let [local, remote] = ranges.map(Option::unwrap_or_default);
            next.push(Connection {
                entry: Arc::new(Entry {
                    name: config.name.clone(),
                    local,
                    remote,
                    local_auth: config.local_auth.clone(),
                    remote_auth: config.remote_auth.clone(),
                }),
                config: config.clone(),
            });
        }
        // Both hosts start at once until the peers are reachable: packets find no gap.
        let (associations, _) = plane.psp(true);
        let before = associations.closed().to_vec();
        associations.close(before.into_iter().chain(closed.iter().cloned()).collect());
        self.changed = true;
        let same = |a: &Connection, b: &Connection| a.config == b.config && a.entry == b.entry;
        let gone = self.connections.iter().filter(|old| !next.iter().any(|new| new.continues(old)));
        let gone: Vec<String> = gone.map(|old| old.config.name.clone()).collect();
        let fresh: Vec<bool> = next.iter().map(|new| !self.connections.iter().any(|old| new.continues(old))).collect();
        let changed: Vec<bool> = next.iter().map(|new| !self.connections.iter().any(|old| same(old, new))).collect();
        let of_gone = |known: &Known| gone.contains(&known.connection);
        let ended: Vec<u64> =
            self.peers.iter().filter(|(_, known)| of_gone(known)).map(|(number, _)| *number).collect();
        let mut again: Vec<Wanted> = Vec::new();
        for number in ended {
            let stays = |known: &&Known| next.iter().any(|new| new.config.name == known.connection);
            match self.peers.get(&number).filter(stays) {
                Some(known) => {
                    again.push(known.wanted());
                    self.end_peer(now, number, Peer::end_for_another, plane);
                }
                None => self.end_peer(now, number, Peer::end, plane),
            }
        }
        // The peers hear of it before their connections are closed.
        self.settle(now, plane);
        self.connections = next;
        match self.listen() {
            Ok(_) => {}
            Err(why) => faults.push(format!("the PSP key service cannot listen: {why}")),
        }
        self.order(Order::Admit(self.connections.iter().map(|connection| Arc::clone(&connection.entry)).collect()));
        for at in (0..fresh.len()).filter(|at| fresh[*at]) {
            if let Err(why) = self.begin(now, at, plane) {
                let config = &self.connections[at].config;
                faults.push(format!("connections.{}: {why}", config.name));
                closed.extend(closed_policies(config));
            }
        }
        for at in (0..fresh.len()).filter(|at| changed[*at] && !fresh[*at]) {
            self.update(now, at, plane);
        }
        for wanted in &again {
            self.want_again(now, wanted, plane);
        }
        // Those that wait for peers stay closed when a peer is gone.
        let single = |range: &AddrRange| range.start == range.end;
        let waiting = self.connections.iter().filter(|there| !there.entry.remote.iter().any(single));
        closed.extend(waiting.flat_map(|there| closed_policies(&there.config)));
        plane.psp(true).0.close(closed);
        self.changed = true;
        self.settle(now, plane);
        faults
    }

    /// Applies other settings to the peers of a connection: their associations continue until new
    /// keys are agreed.
    fn update(&mut self, now: Instant, at: usize, plane: &mut dyn DataPlane) {
        let config = self.connections[at].config.clone();
        let of_connection = |known: &Known| known.connection == config.name;
        let numbers: Vec<u64> =
            self.peers.iter().filter(|(_, known)| of_connection(known)).map(|(number, _)| *number).collect();
        for number in numbers {
            let Some(known) = self.peers.get_mut(&number) else { continue };
            let (local, remote, configured) = (known.local, known.remote, known.configured);
            let before = std::mem::replace(&mut known.children, config.children.clone());
            let specs = config.children.iter().map(|child| child_spec(child, local, remote)).collect();
            known.peer.update(config.dpd_delay, config.keyingtries, specs);
            for (child, section) in config.children.iter().enumerate().filter(|(i, section)| before[*i] != **section) {
                let name = format!("{}.{}", config.name, section.name);
                let shape = shape(section, name, local, remote, (self.port_key, self.workers));
                plane.psp(false).0.reshape((number, child), shape);
                let starts = configured && (section.start_action.start || section.start_action.trap);
                self.with_peer(number, |peer, issuer| {
                    peer.renew(now, child, issuer);
                    if starts {
                        peer.want(now, child);
                    }
                });
            }
            self.drive(now, number, plane);
        }
        self.changed = true;
    }

    /// Wants keys for children that had them, or were to have them, before their connection
    /// changed.
    fn want_again(&mut self, now: Instant, wanted: &Wanted, plane: &mut dyn DataPlane) {
        let is = |known: &Known| known.connection == wanted.connection && known.remote == wanted.remote;
        let Some((number, known)) = self.peers.iter().find(|(_, known)| is(known)) else { return };
        let names = known.children.iter().enumerate().filter(|(_, child)| wanted.children.contains(&child.name));
        let (number, children): (u64, Vec<usize>) = (*number, names.map(|(child, _)| child).collect());
        for child in children {
            self.with_peer(number, |peer, _| peer.want(now, child));
        }
        self.drive(now, number, plane);
    }

    /// Takes the answer of the resolver to one of [`PspService::requests`]. What could not be done
    /// is returned, one line each.
    pub(crate) fn resolved(
        &mut self,
        now: Instant,
        number: u64,
        found: Result<Vec<IpAddr>, ResolveError>,
        plane: &mut dyn DataPlane,
    ) -> Vec<String> {
        let Some(answered) = self.hosts.answer(now, number, found) else { return Vec::new() };
        match answered.failure {
            Some((why, true)) => vec![why],
            Some((why, false)) => {
                tracing::info!(target: "psp", "{why}");
                Vec::new()
            }
            None if answered.changed => {
                tracing::info!(target: "psp", "'{}' has other addresses now", answered.name);
                self.put(now, plane)
            }
            None => Vec::new(),
        }
    }

    /// Names to resolve since the last call, each with the number for [`PspService::resolved`].
    pub(crate) fn requests(&mut self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.requests)
    }

    fn ask_hosts<'a>(&mut self, now: Instant, names: impl Iterator<Item = &'a str>, age: Duration) {
        for name in names {
            self.requests.extend(self.hosts.ask(now, name, age).map(|number| (number, name.to_owned())));
        }
    }

    /// Resolves names again: those without addresses, and those of peers that are not reached.
    fn retry_hosts(&mut self, now: Instant) {
        for name in self.hosts.due(now) {
            self.ask_hosts(now, std::iter::once(&*name), Duration::ZERO);
        }
        let reached = |name: &str| {
            self.peers.values().any(|known| known.connection == name && known.peer.state() == State::Reached)
        };
        let lost: Vec<String> = self
            .configs
            .iter()
            .filter(|config| !reached(&config.name))
            .flat_map(|config| config.host_names().map(str::to_owned))
            .collect();
        self.ask_hosts(now, lost.iter().map(String::as_str), UNREACHED);
    }

    /// Listening addresses.
    fn listen(&self) -> io::Result<Vec<SocketAddr>> {
        let mut at: Vec<SocketAddr> = Vec::new();
        for connection in &self.connections {
            let port = connection.config.local_port;
            let ranges = &connection.entry.local;
            let everywhere = ranges.is_empty() || ranges.iter().any(|range| range.start != range.end);
            if everywhere {
                at.push((Ipv4Addr::UNSPECIFIED, port).into());
                if has_v6() {
                    at.push((Ipv6Addr::UNSPECIFIED, port).into());
                }
            } else {
                at.extend(ranges.iter().map(|range| SocketAddr::new(range.start, port)));
            }
        }
        // One address less where all of them are listened to.
        let all = at.clone();
        let covered = |addr: &SocketAddr| {
            let is_any = |any: &&SocketAddr| any.ip().is_unspecified() && any.is_ipv6() == addr.is_ipv6();
            !addr.ip().is_unspecified() && all.iter().filter(is_any).any(|any| any.port() == addr.port())
        };
        at.retain(|addr| !covered(addr));
        at.sort();
        at.dedup();
        let (answer, answered) = sync_channel(1);
        self.order(Order::Listen(at, answer));
        // The thread answers at once, unless it waits for this one to take its reports.
        answered.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Makes the peer of a connection that names its address.
    fn begin(&mut self, now: Instant, at: usize, plane: &mut dyn DataPlane) -> anyhow::Result<()> {
        let connection = &self.connections[at];
        let most = connection.config.children.iter().map(|child| child.local_ts.len().max(child.remote_ts.len())).max();
        if most.is_some_and(|most| most > MAX_SELECTORS) {
            bail!("a child of the key service has at most {MAX_SELECTORS} selectors on each side");
        }
        let single = |range: &&AddrRange| range.start == range.end;
        let Some(remote) = connection.entry.remote.iter().find(single).map(|range| range.start) else {
            return Ok(());
        };
        let ours = connection.entry.local.iter().find(|range| single(range) && range.is_v6() == remote.is_ipv6());
        let local = ours.map(|range| range.start).or_else(|| source_towards(remote, 0));
        let local = local.with_context(|| format!("no route to {remote}: set 'local_addrs'"))?;
        let number = self.make(at, local, remote, true, plane)?;
        let wanted: Vec<usize> = {
            let children = self.connections[at].config.children.iter().enumerate();
            // No packet can trigger it, because a policy without keys drops packets.
            children.filter(|(_, child)| child.start_action.start || child.start_action.trap).map(|(i, _)| i).collect()
        };
        for child in wanted {
            self.with_peer(number, |peer, _| peer.want(now, child));
        }
        self.drive(now, number, plane);
        Ok(())
    }

    fn make(
        &mut self,
        at: usize,
        local: IpAddr,
        remote: IpAddr,
        configured: bool,
        plane: &mut dyn DataPlane,
    ) -> anyhow::Result<u64> {
        if self.peers.len() >= MAX_PEERS {
            bail!("limit of {MAX_PEERS} peers reached");
        }
        let config = &self.connections[at].config;
        let number = self.next;
        self.next += 1;
        let spec = PeerSpec {
            boot: self.boot,
            port: self.port,
            dials: configured,
            dpd_delay: config.dpd_delay,
            tries: config.keyingtries,
            chance: random_u64(self.random),
            children: config.children.iter().map(|child| child_spec(child, local, remote)).collect(),
        };
        let (associations, _) = plane.psp(true);
        for (child, (section, spec)) in config.children.iter().zip(&spec.children).enumerate() {
            let name = format!("{}.{}", config.name, section.name);
            let shape = shape(section, name, local, remote, (self.port_key, self.workers));
            associations.stand((number, child), shape, pairs(&spec.local, &spec.remote));
        }
        self.changed = true;
        let known = Known {
            peer: Peer::new(spec),
            connection: config.name.clone(),
            children: config.children.clone(),
            used: vec![Use::default(); config.children.len()],
            local,
            remote,
            who: None,
            ports: (config.local_port, config.remote_port),
            ids: (show(&config.local_auth.id), show(&config.remote_auth.id)),
            fault: None,
            configured,
        };
        self.peers.insert(number, known);
        Ok(number)
    }

    /// Requests keys for a child, or for all children of a connection. Returns the number of
    /// children with a known peer.
    pub(crate) fn initiate(
        &mut self,
        now: Instant,
        connection: &str,
        child: Option<&str>,
        plane: &mut dyn DataPlane,
    ) -> usize {
        self.each(now, connection, child, plane, |peer, at, _| peer.want(now, at))
    }

    /// Ends a child, or all children of a connection, and notifies the peers. Their policies
    /// continue to drop. Returns their number.
    pub(crate) fn terminate(
        &mut self,
        now: Instant,
        connection: &str,
        child: Option<&str>,
        plane: &mut dyn DataPlane,
    ) -> usize {
        self.each(now, connection, child, plane, |peer, at, _| peer.end(at))
    }

    /// Renews the keys of a child, or of all children of a connection, in both directions; how many
    /// there are.
    pub(crate) fn rekey(
        &mut self,
        now: Instant,
        connection: &str,
        child: Option<&str>,
        plane: &mut dyn DataPlane,
    ) -> usize {
        self.each(now, connection, child, plane, |peer, at, issuer| peer.renew(now, at, issuer))
    }

    fn each(
        &mut self,
        now: Instant,
        connection: &str,
        child: Option<&str>,
        plane: &mut dyn DataPlane,
        mut act: impl FnMut(&mut Peer, usize, &mut Issuer),
    ) -> usize {
        let (mut found, mut count) = (Vec::new(), 0);
        for (number, known) in self.peers.iter_mut().filter(|(_, known)| known.connection == connection) {
            for at in 0..known.children.len() {
                if child.is_none_or(|name| known.children[at].name == name) {
                    act(&mut known.peer, at, &mut self.issuer);
                    found.push(*number);
                    count += 1;
                }
            }
        }
        found.dedup();
        for number in &found {
            self.drive(now, *number, plane);
        }
        self.settle(now, plane);
        count
    }

    /// Processes input and timers. Can be called at any time.
    pub(crate) fn turn(&mut self, now: Instant, plane: &mut dyn DataPlane) {
        for _ in 0..REPORTS_PER_TURN {
            let Ok(report) = self.reports.try_recv() else { break };
            self.take(now, report, plane);
        }
        let numbers: Vec<u64> = self.peers.keys().copied().collect();
        let look = now >= self.look_at;
        if look {
            self.look_at = now + LOOK;
            self.retry_hosts(now);
        }
        for number in &numbers {
            if look {
                self.count(now, *number, plane);
            }
            self.with_peer(*number, |peer, _| {
                if peer.deadline().is_some_and(|at| now >= at) {
                    peer.timeout(now);
                }
            });
            self.drive(now, *number, plane);
        }
        if now >= self.issuer.rotates_at() {
            self.issuer.rotate(now, &seed(self.random));
            tracing::info!(target: "psp", "new master key; {} peers get new SPIs", self.peers.len());
            for number in numbers {
                self.with_peer(number, |peer, issuer| peer.rotated(now, issuer));
                self.drive(now, number, plane);
            }
        }
        self.forget_spent(now, plane);
        self.report_refused(now);
        self.settle(now, plane);
    }

    /// Removes peers that are not in the configuration when they have ended their associations, or
    /// the deadline of their last key has passed without a control connection. Otherwise addresses
    /// that peers had would add up, and their policies would stay before those of the addresses
    /// that they have.
    fn forget_spent(&mut self, now: Instant, plane: &mut dyn DataPlane) {
        let linked = |number: u64| self.links.values().any(|used| used.peer == number);
        let spent = |(number, known): &(&u64, &Known)| !known.configured && known.peer.is_spent() && !linked(**number);
        let spent: Vec<u64> = self.peers.iter().filter(spent).map(|(number, _)| *number).collect();
        for number in spent {
            if let Some(known) = self.peers.get(&number) {
                tracing::info!(target: "psp", "{} {}: removed: no associations left", known.connection, known.remote);
            }
            self.end_peer(now, number, Peer::end, plane);
        }
    }

    /// The connection that is meant by name, or by the name of a child.
    pub(crate) fn named(&self, connection: Option<&str>, child: Option<&str>) -> Option<String> {
        let has = |there: &&Connection| child.is_none_or(|name| there.config.children.iter().any(|c| c.name == name));
        let is = |there: &&Connection| match connection {
            Some(name) => there.config.name == name,
            None => child.is_some(),
        };
        self.connections.iter().find(|there| is(there) && has(there)).map(|there| there.config.name.clone())
    }

    /// Ends all associations and notifies the peers.
    pub(crate) fn shutdown(&mut self, now: Instant, plane: &mut dyn DataPlane) {
        let numbers: Vec<u64> = self.peers.keys().copied().collect();
        for number in numbers {
            for child in 0..self.peers.get(&number).map_or(0, |known| known.children.len()) {
                self.with_peer(number, |peer, _| peer.end(child));
            }
            self.drive(now, number, plane);
        }
        self.settle(now, plane);
        // The answer comes when the last messages are written.
        let (answer, answered) = sync_channel(1);
        self.order(Order::Listen(Vec::new(), answer));
        let _ = answered.recv_timeout(FAREWELL);
    }

    /// Ends all associations and notifies the peers, closes the connections to them, and begins
    /// none until a restart. Policies stay, so that their traffic is dropped.
    pub(crate) fn drain(&mut self, now: Instant, plane: &mut dyn DataPlane) {
        if !self.draining {
            self.shutdown(now, plane);
            self.order(Order::Admit(Vec::new()));
            self.draining = true;
        }
    }

    /// Returns whether no association begins any more.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining
    }

    /// Peers and their associations.
    pub(crate) fn listing(&self, now: Instant, associations: &Associations) -> Vec<PeerListing> {
        let child = |number: u64, known: &Known, at: usize| {
            let section = &known.children[at];
            let (sending, receiving, fault) = known.peer.lines(at);
            ChildState {
                name: section.name.clone(),
                mode: mode(section),
                sending,
                receiving,
                since: known.peer.sending_since(at).map(|since| now.saturating_duration_since(since)),
                traffic: associations.traffic((number, at)),
                idle_s: known.used.get(at).map(|used| used.idle_s(now)).unwrap_or_default(),
                selectors: known.peer.selectors(at),
                fault: fault.map(str::to_owned),
            }
        };
        let peer = |(number, known): (&u64, &Known)| PeerListing {
            number: *number,
            connection: known.connection.clone(),
            local: known.local,
            remote: known.remote,
            ports: known.ports,
            ids: known.ids.clone(),
            configured: known.configured,
            state: known.peer.state(),
            reached_for: known.peer.reached_since().map(|since| now.saturating_duration_since(since)),
            children: (0..known.children.len()).map(|at| child(*number, known, at)).collect(),
            fault: known.fault.clone(),
        };
        self.peers.iter().map(peer).collect()
    }

    fn with_peer(&mut self, number: u64, act: impl FnOnce(&mut Peer, &mut Issuer)) {
        if let Some(known) = self.peers.get_mut(&number) {
            act(&mut known.peer, &mut self.issuer);
        }
    }

    fn take(&mut self, now: Instant, report: Report, plane: &mut dyn DataPlane) {
        match report {
            // Its handshake was under way when the draining began.
            Report::Up { link, ticket, .. } if self.draining => {
                ticket.and_then(|ticket| self.tickets.remove(&ticket));
                self.outbox.push(Order::Close(link));
            }
            Report::Up { link, ticket, entry, who, local, remote, short } => {
                let number = match ticket {
                    Some(ticket) => self.tickets.remove(&ticket).filter(|number| self.is_at(*number, local)),
                    None => None,
                };
                let number = match number {
                    Some(number) => self.recognize(now, number, &who, plane),
                    None => self.find(now, &entry, &who, (local, remote), plane),
                };
                match number {
                    Ok(number) => self.up(now, number, Opened { link, initiated: ticket.is_some(), short }, plane),
                    Err(why) => {
                        self.log_refused(now, format_args!("{remote}: {why}"));
                        self.outbox.push(Order::Close(link));
                    }
                }
            }
            Report::NotUp { ticket, why } => {
                let Some(number) = self.tickets.remove(&ticket) else { return };
                self.with_peer(number, |peer, _| peer.closed(now, None, &why));
                self.drive(now, number, plane);
            }
            Report::Stranger { from, why } => {
                self.log_refused(now, format_args!("{from} refused: {why}"));
            }
            Report::Message(link, message) => {
                let Some(used) = self.links.get(&link).copied() else { return };
                self.with_peer(used.peer, |peer, issuer| peer.received(now, link, message, issuer));
                self.drive(now, used.peer, plane);
            }
            Report::Short(link, spi, version, key) => {
                let Some(used) = self.links.get_mut(&link) else { return };
                // Another one may be under way when this end refuses.
                if used.short != Some(ShortForm::Awaited) {
                    return;
                }
                used.short = Some(ShortForm::Ended);
                let used = *used;
                let mut outcome = Ok(());
                self.with_peer(used.peer, |peer, _| outcome = peer.short_granted(now, spi, version, key));
                self.drive(now, used.peer, plane);
                match outcome {
                    Ok(()) => self.outbox.push(Order::Switch(link)),
                    Err(code) => {
                        self.note(used.peer, code.meaning().to_owned());
                        self.outbox.push(Order::Close(link));
                    }
                }
            }
            Report::Switched(link) => {
                if let Some(used) = self.links.get_mut(&link) {
                    used.short = Some(ShortForm::Switched);
                    let number = used.peer;
                    let known = self.peers.get(&number);
                    let name = known.map(|known| format!("{} {}", known.connection, known.remote)).unwrap_or_default();
                    tracing::info!(target: "psp", "{name}: both hosts have switched to PSP");
                }
            }
            Report::Down(link, why) => {
                let Some(used) = self.links.remove(&link) else { return };
                match used.short {
                    None => self.with_peer(used.peer, |peer, _| peer.closed(now, Some(link), &why)),
                    Some(ShortForm::Switched) => {}
                    Some(ShortForm::Awaited | ShortForm::Ended) => {
                        self.note(used.peer, why);
                        self.with_peer(used.peer, |peer, _| peer.short_failed());
                    }
                }
                self.drive(now, used.peer, plane);
            }
        }
    }

    /// Logs that a host is refused. A host without credentials can cause any number of these lines.
    fn log_refused(&mut self, now: Instant, line: fmt::Arguments<'_>) {
        self.report_refused(now);
        if self.refused.admit() {
            tracing::warn!(target: "psp", "{line}");
        }
    }

    /// Reports how many hosts were refused without a line.
    fn report_refused(&mut self, now: Instant) {
        if let Some(count) = self.refused.settle(now) {
            tracing::warn!(target: "psp", "{count} more refused control connections were not logged");
        }
    }

    fn up(&mut self, now: Instant, number: u64, opened: Opened, plane: &mut dyn DataPlane) {
        let Opened { link, initiated, short } = opened;
        self.links.insert(link, Used { peer: number, short: short.then_some(ShortForm::Awaited) });
        if !short {
            self.with_peer(number, |peer, _| peer.connected(now, link, initiated));
            return self.drive(now, number, plane);
        }
        let mut offer = Err((Code::NOT_ADMITTED, String::new()));
        self.with_peer(number, |peer, issuer| offer = peer.short_offer(now, issuer));
        self.drive(now, number, plane);
        match offer {
            Ok(issued) => {
                let message = Short::Sa(issued.spi, issued.version, issued.key.clone());
                self.outbox.push(Order::Short(link, message));
            }
            Err((code, text)) => {
                self.note(number, format!("{} {text}", code.meaning()));
                if let Some(used) = self.links.get_mut(&link) {
                    used.short = Some(ShortForm::Ended);
                }
                self.outbox.push(Order::Short(link, Short::Error(code.0 as u8)));
                self.outbox.push(Order::Close(link));
            }
        }
    }

    /// Returns whether this host still has the local address of a peer's policies.
    fn is_at(&self, number: u64, local: IpAddr) -> bool {
        self.peers.get(&number).is_some_and(|known| known.local == local)
    }

    /// The peer that this host connected to has proven its identity. Another one than before takes
    /// its place: the associations with the other one end.
    fn recognize(
        &mut self,
        now: Instant,
        number: u64,
        who: &Identity,
        plane: &mut dyn DataPlane,
    ) -> anyhow::Result<u64> {
        let Some(known) = self.peers.get_mut(&number) else { bail!("the connection was unloaded") };
        let before = known.who.replace(who.clone());
        if before.is_none_or(|before| before.is_same(who)) {
            return Ok(number);
        }
        let (name, local, remote) = (known.connection.clone(), known.local, known.remote);
        let at = self.connections.iter().position(|there| there.config.name == name);
        let number =
            self.renew_peer(now, number, at.context("the connection was unloaded")?, (local, remote), plane)?;
        self.peers.entry(number).and_modify(|known| known.who = Some(who.clone()));
        Ok(number)
    }

    /// The peer at the other end of a control connection, by the identity of its certificate and
    /// its address; a new one where a connection admits it.
    fn find(
        &mut self,
        now: Instant,
        entry: &Arc<Entry>,
        who: &Identity,
        (local, remote): (IpAddr, IpAddr),
        plane: &mut dyn DataPlane,
    ) -> anyhow::Result<u64> {
        let at = self.connections.iter().position(|connection| connection.entry == *entry);
        let at = at.context("the connection was unloaded")?;
        let name = self.connections[at].config.name.clone();
        let is_same = |known: &Known| known.who.as_ref().is_none_or(|there| there.is_same(who));
        let of_peer =
            |known: &Known| known.connection == name && known.remote == remote && (known.configured || is_same(known));
        let found = self.peers.iter().find(|(_, known)| of_peer(known)).map(|(number, known)| (*number, known.local));
        let number = match found {
            Some((number, there)) if there == local => self.recognize(now, number, who, plane)?,
            // This host has moved; the SPIs of before are bound to where it was.
            Some((number, _)) => {
                self.check_selectors(at, who, (local, remote), plane)?;
                self.renew_peer(now, number, at, (local, remote), plane)?
            }
            None => {
                self.check_selectors(at, who, (local, remote), plane)?;
                self.make_room_for(now, &name, who, plane);
                self.make(at, local, remote, false, plane)?
            }
        };
        self.peers.entry(number).and_modify(|known| known.who = Some(who.clone()));
        Ok(number)
    }

    /// Ends a peer and makes it again, with the same children wanted.
    fn renew_peer(
        &mut self,
        now: Instant,
        number: u64,
        at: usize,
        (local, remote): (IpAddr, IpAddr),
        plane: &mut dyn DataPlane,
    ) -> anyhow::Result<u64> {
        let known = self.peers.get(&number);
        let configured = known.is_some_and(|known| known.configured);
        let wanted: Vec<usize> = known.map_or_else(Vec::new, |known| known.peer.wanted_children());
        self.end_peer(now, number, Peer::end, plane);
        let number = self.make(at, local, remote, configured, plane)?;
        for child in wanted {
            self.with_peer(number, |peer, _| peer.want(now, child));
        }
        Ok(number)
    }

    /// Refuses a peer if another identity uses its selectors: it would receive the packets of that
    /// peer.
    fn check_selectors(
        &self,
        at: usize,
        who: &Identity,
        (local, remote): (IpAddr, IpAddr),
        plane: &dyn DataPlane,
    ) -> anyhow::Result<()> {
        for child in &self.connections[at].config.children {
            let spec = child_spec(child, local, remote);
            let selectors = pairs(&spec.local, &spec.remote);
            let others = plane.associations().peers_with(&selectors).filter_map(|number| self.peers.get(&number));
            for other in others {
                if let Some(there) = other.who.as_ref().filter(|there| !there.is_same(who)) {
                    bail!(
                        "[{who}] is refused: [{there}] at {} uses the selectors of '{}'; write a connection with other \
                         selectors for it",
                        other.remote,
                        child.name
                    );
                }
            }
        }
        Ok(())
    }

    /// Ends the oldest peer of an identity that comes from one address too many.
    fn make_room_for(&mut self, now: Instant, connection: &str, who: &Identity, plane: &mut dyn DataPlane) {
        let is_same = |known: &Known| known.who.as_ref().is_some_and(|there| there.is_same(who));
        let of_identity = |known: &Known| !known.configured && known.connection == connection && is_same(known);
        let same: Vec<u64> =
            self.peers.iter().filter(|(_, known)| of_identity(known)).map(|(number, _)| *number).collect();
        if same.len() >= MAX_PER_IDENTITY
            && let Some(oldest) = same.first()
        {
            self.end_peer(now, *oldest, Peer::end, plane);
        }
    }

    /// Requests a new key after the configured number of packets.
    fn count(&mut self, now: Instant, number: u64, plane: &mut dyn DataPlane) {
        let Some(known) = self.peers.get_mut(&number) else { return };
        let associations = plane.associations();
        for (child, section) in known.children.iter().enumerate() {
            if associations.sent((number, child)) >= section.rekey_packets {
                known.peer.worn(now, child);
            }
            if let Some(used) = known.used.get_mut(child) {
                used.look(now, &associations.traffic((number, child)));
            }
        }
    }

    fn end_peer(&mut self, now: Instant, number: u64, end: fn(&mut Peer, usize), plane: &mut dyn DataPlane) {
        let children = self.peers.get(&number).map_or(0, |known| known.children.len());
        for child in 0..children {
            self.with_peer(number, |peer, _| end(peer, child));
        }
        self.drive(now, number, plane);
        let (associations, keys) = plane.psp(true);
        (0..children).for_each(|child| associations.fall((number, child), keys));
        self.changed = true;
        self.peers.remove(&number);
        for (link, _) in self.links.iter().filter(|(_, used)| used.peer == number) {
            self.outbox.push(Order::Close(*link));
        }
        self.links.retain(|_, used| used.peer != number);
        self.tickets.retain(|_, peer| *peer != number);
    }

    /// Executes the requests of a peer.
    fn drive(&mut self, now: Instant, number: u64, plane: &mut dyn DataPlane) {
        let Some(mut known) = self.peers.remove(&number) else { return };
        while let Some(action) = known.peer.poll() {
            self.carry_out(now, number, &mut known, action, plane);
        }
        self.peers.insert(number, known);
    }

    fn carry_out(&mut self, now: Instant, number: u64, known: &mut Known, action: Action, plane: &mut dyn DataPlane) {
        let place = |child: usize| -> ChildKey { (number, child) };
        match action {
            Action::Connect => {
                let of_name = |connection: &&Connection| connection.config.name == known.connection;
                let Some(connection) = self.connections.iter().find(of_name) else { return };
                let ticket = self.next;
                self.next += 1;
                self.tickets.insert(ticket, number);
                let to = SocketAddr::new(known.remote, connection.config.remote_port);
                let from = Some(known.local).filter(|_| !connection.entry.local.is_empty());
                self.outbox.push(Order::Connect { ticket, entry: Arc::clone(&connection.entry), from, to });
            }
            Action::Send(link, message) => self.outbox.push(Order::Send(link, message)),
            Action::Close(link, why) => {
                tracing::debug!(target: "psp", "{} {}: closing: {why}", known.connection, known.remote);
                self.links.remove(&link);
                self.outbox.push(Order::Close(link));
            }
            Action::InstallRx(child, issued, window) => {
                let (associations, keys) = plane.psp(false);
                if let Err(why) = associations.install_rx(place(child), &issued, window, keys) {
                    known.report(child, &why.to_string());
                }
                self.changed = true;
            }
            Action::RemoveRx(child, spi) => {
                plane.psp(false).0.remove_rx(place(child), spi);
                self.changed = true;
            }
            Action::InstallTx(child, grant) => {
                let mtu = plane.path_mtu(now, known.remote);
                let (associations, keys) = plane.psp(false);
                if let Err(why) = associations.install_tx(place(child), &grant, mtu, keys) {
                    known.report(child, &why.to_string());
                }
                self.changed = true;
            }
            Action::RemoveTx(child) => {
                let (associations, keys) = plane.psp(false);
                associations.remove_tx(place(child), keys);
                self.changed = true;
            }
            Action::Event(event) => known.event(now, &event),
        }
    }

    fn note(&mut self, number: u64, why: String) {
        if let Some(known) = self.peers.get_mut(&number) {
            tracing::warn!(target: "psp", "{} {}: {why}", known.connection, known.remote);
            known.fault = Some(why);
        }
    }

    /// Publishes changes to the data plane, then sends the messages.
    fn settle(&mut self, now: Instant, plane: &mut dyn DataPlane) {
        if std::mem::take(&mut self.changed)
            && let Err(error) = plane.commit(now)
        {
            tracing::error!(target: "psp", "{error:#}");
        }
        for order in std::mem::take(&mut self.outbox) {
            self.order(order);
        }
    }

    fn order(&self, order: Order) {
        match order {
            // What listens closes with the process, and a reload opens nothing.
            Order::Connect { .. } | Order::Admit(_) if self.draining => (),
            Order::Listen(_, answer) if self.draining => drop(answer.send(Ok(Vec::new()))),
            order => (self.send)(order),
        }
    }
}

impl Sockets {
    fn order(&self, order: Order) {
        // The socket thread has ended, so there is no receiver.
        let _ = self.orders.send(order);
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Sockets {
    /// Closing the channel ends the socket thread.
    fn drop(&mut self) {
        let (unconnected, _) = channel();
        self.orders = unconnected;
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// Children of a peer for which keys are wanted.
struct Wanted {
    connection: String,
    remote: IpAddr,
    children: Vec<String>,
}

impl Known {
    fn wanted(&self) -> Wanted {
        let named = |child: usize| self.children.get(child).map(|section| section.name.clone());
        let children = self.peer.wanted_children().into_iter().filter_map(named).collect();
        Wanted { connection: self.connection.clone(), remote: self.remote, children }
    }

    fn report(&mut self, child: usize, why: &str) {
        let name = self.children.get(child).map_or("", |section| &section.name);
        tracing::error!(target: "psp", "{}.{name} {}: {why}", self.connection, self.remote);
        self.fault = Some(why.to_owned());
    }

    fn event(&mut self, _now: Instant, event: &Event) {
        let name = |child: &usize| self.children.get(*child).map_or("", |section| &section.name);
        let (connection, remote) = (&self.connection, self.remote);
        let mut fault = None;
        match event {
            Event::Reached => tracing::info!(target: "psp", "{connection} {remote}: connected"),
            Event::Lost(why) => {
                tracing::warn!(target: "psp", "{connection} {remote}: {why}; keys stay until they expire");
                fault = Some(why.clone());
            }
            Event::Restarted => {
                tracing::warn!(target: "psp", "{connection} {remote}: the peer restarted; negotiating again");
            }
            Event::Sending(child, spi) => {
                tracing::info!(target: "psp", "{connection}.{} {remote}: sending with SPI {:#010x}", name(child), spi.get());
            }
            Event::Receiving(child, spi) => {
                tracing::info!(target: "psp", "{connection}.{} {remote}: receiving with SPI {:#010x}", name(child), spi.get());
            }
            Event::Expired(child) => {
                let why = "the last key expired: packets are dropped until there is a new one";
                tracing::error!(target: "psp", "{connection}.{} {remote}: {why}", name(child));
                fault = Some(why.to_owned());
            }
            Event::Refused(child, why) => {
                tracing::warn!(target: "psp", "{connection}.{} {remote}: the peer refused: {why}", name(child));
                fault = Some(why.clone());
            }
            Event::Asked(why) => {
                tracing::warn!(target: "psp", "{connection} {remote}: refused the peer's request: {why}");
                fault = Some(why.clone());
            }
            Event::Fault(why) => {
                tracing::warn!(target: "psp", "{connection} {remote}: {why}");
                fault = Some(why.clone());
            }
            Event::GivenUp(tries) => {
                let tried = if *tries == 1 { "1 attempt".to_owned() } else { format!("{tries} attempts") };
                let why = format!(
                    "no connection after {tried}, no further attempts: set 'keyingtries = 0' to retry without limit, or run 'weir initiate'"
                );
                tracing::error!(target: "psp", "{connection} {remote}: {why}");
                fault = Some(why);
            }
        }
        if fault.is_some() || matches!(event, Event::Sending(..)) {
            self.fault = fault;
        }
    }
}

fn show(id: &IdPattern) -> String {
    match id {
        IdPattern::Any => "%any".to_owned(),
        IdPattern::Like(id) => id.to_string(),
    }
}

fn mode(child: &PspChild) -> Mode {
    match child.mode {
        PspMode::Tunnel => Mode::Tunnel,
        PspMode::Transport => Mode::Transport,
    }
}

/// Policies that drop the traffic of a connection while its peer has no address, one for each
/// child.
fn closed_policies(config: &PspConfig) -> Vec<Closed> {
    let any = |ts: &TsConfig| {
        let ranges = ts.addrs.map_or(vec![AddrRange::ANY_V4, AddrRange::ANY_V6], |range| vec![range]);
        let ts = *ts;
        ranges.into_iter().map(move |range| TrafficSelector { addrs: range, ..ts.resolve(range.start) })
    };
    let of = |child: &PspChild| {
        let local: Vec<TrafficSelector> = child.local_ts.iter().flat_map(any).collect();
        let fixed = child.remote_ts.iter().filter_map(|ts| ts.addrs.map(|range| ts.resolve(range.start)));
        let selectors = pairs(&local, &fixed.collect::<Vec<_>>());
        Closed { name: format!("{}.{}", config.name, child.name), mode: mode(child), selectors }
    };
    config.children.iter().map(of).filter(|closed| !closed.selectors.is_empty()).collect()
}

fn child_spec(child: &PspChild, local: IpAddr, remote: IpAddr) -> ChildSpec {
    let resolved =
        |list: &[TsConfig], addr| -> Vec<TrafficSelector> { list.iter().map(|ts| ts.resolve(addr)).collect() };
    ChildSpec {
        mode: mode(child),
        versions: child.versions.clone(),
        local: resolved(&child.local_ts, local),
        remote: resolved(&child.remote_ts, remote),
        max_crypt_offset: child.max_crypt_offset,
        window: child.replay_window > 0,
        rekey: child.rekey_time,
    }
}

fn shape(child: &PspChild, name: String, local: IpAddr, remote: IpAddr, (port_key, workers): (u64, u8)) -> Shape {
    Shape {
        name,
        mode: mode(child),
        local,
        remote,
        crypt_offset: child.crypt_offset,
        max_crypt_offset: child.max_crypt_offset,
        cookie: child.cookie,
        window: child.replay_window,
        copy_df: child.copy_df,
        copy_ecn: child.copy_ecn,
        copy_dscp: child.copy_dscp,
        port_key,
        workers,
    }
}

fn seed(random: fn(&mut [u8])) -> Seed {
    let mut key = Zeroizing::new([0; 32]);
    random(&mut *key);
    Seed { key, start: random_u64(random) as u32 }
}

fn random_u64(random: fn(&mut [u8])) -> u64 {
    let mut bytes = [0; 8];
    random(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// The host speaks IPv6.
fn has_v6() -> bool {
    socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, None).is_ok()
}

impl DataPlane for crate::plane::Plane {
    fn psp(&mut self, routes: bool) -> (&mut Associations, &mut KeyTable) {
        Self::psp(self, routes)
    }

    fn associations(&self) -> &Associations {
        &self.negotiated.psp
    }

    fn path_mtu(&mut self, now: Instant, to: IpAddr) -> u32 {
        Self::path_mtu(self, now, to)
    }

    fn commit(&mut self, now: Instant) -> anyhow::Result<()> {
        Self::commit(self, now)
    }
}
