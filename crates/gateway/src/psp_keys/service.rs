//! The key service in the daemon: peers, control connections and the packet side brought together.
//!
//! The control thread owns it and calls [`PspService::turn`]; sockets have a thread of their own
//! ([`super::link`]). Whatever a message announces is visible to packets before the message goes out.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::{Duration, Instant};

use crypto::KeyTable;
use ike::config::TsConfig;
use ike::identity::IdPattern;
use rustix::event::{EventfdFlags, eventfd};
use wire::{AddrRange, TrafficSelector};
use zeroize::Zeroizing;

use super::associations::{Associations, Place, Shape, Traffic};
use super::fizz::Short;
use super::issuer::{Issuer, Seed};
use super::link::{Links, Order, Report};
use super::message::{Code, MAX_SELECTORS, Mode};
use super::peer::{Action, ChildSpec, Event, Line, Link, Peer, PeerSpec, State};
use super::tls::{Entry, Identities};
use crate::config::{PspChild, PspConfig, PspMode, Resolve};
use crate::keying::source_towards;
use crate::negotiated::pairs;

/// Time between rotations of the master keys: a key that is handed out lives for one to two of them.
pub(crate) const ROTATION: Duration = Duration::from_secs(12 * 3600);
/// Peers at a time, those with an address in the configuration included; some 8 KiB each without traffic.
const MAX_PEERS: usize = 4096;
/// Reports that wait; the thread with the sockets waits when there are more. Some 200 bytes each, 1.5 KiB at most.
const MAX_REPORTS: usize = 4096;
/// Reports taken per turn.
const REPORTS_PER_TURN: usize = 1024;
/// For the last words at the end.
const FAREWELL: Duration = Duration::from_secs(1);
/// For the answer of the thread with the sockets.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often packets are counted.
const LOOK: Duration = Duration::from_millis(500);

/// The packet side, as far as the key service changes it.
pub(crate) trait Fabric {
    /// Associations and the keys they name, to be changed; `routes` when policies come or go. Packets see it with
    /// [`Fabric::commit`].
    fn psp(&mut self, routes: bool) -> (&mut Associations, &mut KeyTable);
    /// Associations, to be looked at.
    fn associations(&self) -> &Associations;
    /// MTU of the way to a host, in bytes.
    fn path_mtu(&mut self, to: IpAddr) -> u32;
    /// Makes everything visible to packets.
    ///
    /// # Errors
    /// Routes that could not be set.
    fn commit(&mut self) -> anyhow::Result<()>;
}

/// What the service is started with.
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
    pub(crate) bell: Box<dyn Fn() + Send>,
    /// Workers that send.
    pub(crate) workers: u8,
}

/// A connection that is loaded.
struct Connection {
    config: PspConfig,
    entry: Arc<Entry>,
}

/// A peer and where it is.
struct Known {
    peer: Peer,
    connection: String,
    children: Vec<PspChild>,
    local: IpAddr,
    remote: IpAddr,
    ports: (u16, u16),
    ids: (String, String),
    fault: Option<String>,
    /// It stands in the configuration with its address; the others come and go.
    configured: bool,
}

/// The service.
pub(crate) struct PspService {
    issuer: Issuer,
    boot: u64,
    port: u16,
    port_key: u64,
    /// Workers that send, each with IVs of its own.
    workers: u8,
    connections: Vec<Connection>,
    peers: BTreeMap<u64, Known>,
    links: HashMap<Link, Used>,
    tickets: HashMap<u64, u64>,
    next: u64,
    orders: Sender<Order>,
    reports: Receiver<Report>,
    wake: Arc<OwnedFd>,
    look_at: Instant,
    /// Orders that go out once packets see what they announce.
    outbox: Vec<Order>,
    changed: bool,
}

/// By whom a control connection is used.
#[derive(Clone, Copy)]
struct Used {
    peer: u64,
    /// The short form; whether both ends have switched.
    short: Option<bool>,
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
    pub(crate) children: Vec<ChildState>,
    /// What went wrong last.
    pub(crate) fault: Option<String>,
}

impl PspService {
    /// Draws master keys and starts the thread with the sockets; nothing is loaded yet.
    ///
    /// # Errors
    /// The operating system has no descriptor or thread left.
    pub(crate) fn start(setup: Setup) -> io::Result<Self> {
        let (orders, waiting) = channel();
        let (told, reports) = sync_channel(MAX_REPORTS);
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let links = Links {
            identities: setup.identities,
            orders: waiting,
            reports: told,
            bell: setup.bell,
            wake: rustix::io::fcntl_dupfd_cloexec(&*wake, 0)?,
            mark: setup.mark,
        };
        std::thread::Builder::new().name("psp-keys".into()).spawn(move || links.run())?;
        let now = Instant::now();
        Ok(Self {
            issuer: Issuer::new(now, setup.rotation, &seed()),
            boot: random_u64(),
            port: setup.port,
            port_key: random_u64(),
            workers: setup.workers,
            connections: Vec::new(),
            peers: BTreeMap::new(),
            links: HashMap::new(),
            tickets: HashMap::new(),
            next: 1,
            orders,
            reports,
            wake,
            look_at: now,
            outbox: Vec::new(),
            changed: false,
        })
    }

    /// Puts connections in force: those that did not change go on. What could not be done is told, one line each.
    pub(crate) fn load(
        &mut self,
        now: Instant,
        configs: &[PspConfig],
        resolve: Resolve<'_>,
        fabric: &mut dyn Fabric,
    ) -> Vec<String> {
        let mut faults = Vec::new();
        let mut next = Vec::new();
        for config in configs {
            match config.resolve(resolve) {
                Ok((local, remote)) => next.push(Connection {
                    entry: Arc::new(Entry {
                        name: config.name.clone(),
                        local,
                        remote,
                        local_auth: config.local_auth.clone(),
                        remote_auth: config.remote_auth.clone(),
                    }),
                    config: config.clone(),
                }),
                Err(why) => faults.push(why),
            }
        }
        let same = |a: &Connection, b: &Connection| a.config == b.config && a.entry == b.entry;
        let gone = self.connections.iter().filter(|old| !next.iter().any(|new| same(old, new)));
        let gone: Vec<String> = gone.map(|old| old.config.name.clone()).collect();
        let fresh: Vec<bool> = next.iter().map(|new| !self.connections.iter().any(|old| same(old, new))).collect();
        let of_gone = |known: &Known| gone.contains(&known.connection);
        let ended: Vec<u64> =
            self.peers.iter().filter(|(_, known)| of_gone(known)).map(|(number, _)| *number).collect();
        for number in ended {
            self.end_peer(now, number, fabric);
        }
        // The peers hear of it before their connections are closed.
        self.settle(fabric);
        self.connections = next;
        match self.listen() {
            Ok(_) => {}
            Err(why) => faults.push(format!("the key service of PSP cannot listen: {why}")),
        }
        self.order(Order::Admit(self.connections.iter().map(|connection| Arc::clone(&connection.entry)).collect()));
        for at in (0..fresh.len()).filter(|at| fresh[*at]) {
            if let Err(why) = self.begin(now, at, fabric) {
                faults.push(format!("connections.{}: {why}", self.connections[at].config.name));
            }
        }
        self.settle(fabric);
        faults
    }

    /// Where the service listens.
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
    fn begin(&mut self, now: Instant, at: usize, fabric: &mut dyn Fabric) -> Result<(), String> {
        let connection = &self.connections[at];
        let most = connection.config.children.iter().map(|child| child.local_ts.len().max(child.remote_ts.len())).max();
        if most.is_some_and(|most| most > MAX_SELECTORS) {
            return Err(format!("a child of the key service has at most {MAX_SELECTORS} selectors on each side"));
        }
        let single = |range: &&AddrRange| range.start == range.end;
        let Some(remote) = connection.entry.remote.iter().find(single).map(|range| range.start) else {
            return Ok(());
        };
        let ours = connection.entry.local.iter().find(|range| single(range) && range.is_v6() == remote.is_ipv6());
        let local = ours.map(|range| range.start).or_else(|| source_towards(remote));
        let local = local.ok_or_else(|| format!("there is no way to {remote}: write 'local_addrs'"))?;
        let number = self.make(at, local, remote, true, fabric)?;
        let wanted: Vec<usize> = {
            let children = self.connections[at].config.children.iter().enumerate();
            // There is no packet that could start it, since a policy without keys drops.
            children.filter(|(_, child)| child.start_action.start || child.start_action.trap).map(|(i, _)| i).collect()
        };
        for child in wanted {
            self.with_peer(number, |peer, _| peer.want(now, child));
        }
        self.drive(now, number, fabric);
        Ok(())
    }

    fn make(
        &mut self,
        at: usize,
        local: IpAddr,
        remote: IpAddr,
        configured: bool,
        fabric: &mut dyn Fabric,
    ) -> Result<u64, String> {
        if self.peers.len() >= MAX_PEERS {
            return Err(format!("there are {MAX_PEERS} peers, which is the limit"));
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
            chance: random_u64(),
            children: config.children.iter().map(|child| child_spec(child, local, remote)).collect(),
        };
        let (associations, _) = fabric.psp(true);
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
            local,
            remote,
            ports: (config.local_port, config.remote_port),
            ids: (show(&config.local_auth.id), show(&config.remote_auth.id)),
            fault: None,
            configured,
        };
        self.peers.insert(number, known);
        Ok(number)
    }

    /// Wants keys for a child, or for all children of a connection. How many there are whose peer is known.
    pub(crate) fn initiate(
        &mut self,
        now: Instant,
        connection: &str,
        child: Option<&str>,
        fabric: &mut dyn Fabric,
    ) -> usize {
        self.each(now, connection, child, fabric, |peer, at, _| peer.want(now, at))
    }

    /// Ends a child, or all children of a connection, and tells the peers. Their policies go on
    /// dropping. How many there were.
    pub(crate) fn terminate(
        &mut self,
        now: Instant,
        connection: &str,
        child: Option<&str>,
        fabric: &mut dyn Fabric,
    ) -> usize {
        self.each(now, connection, child, fabric, |peer, at, _| peer.end(at))
    }

    /// Renews the keys of a child, or of all children of a connection, in both directions; how many there are.
    pub(crate) fn rekey(
        &mut self,
        now: Instant,
        connection: &str,
        child: Option<&str>,
        fabric: &mut dyn Fabric,
    ) -> usize {
        self.each(now, connection, child, fabric, |peer, at, issuer| peer.renew(now, at, issuer))
    }

    fn each(
        &mut self,
        now: Instant,
        connection: &str,
        child: Option<&str>,
        fabric: &mut dyn Fabric,
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
            self.drive(now, *number, fabric);
        }
        self.settle(fabric);
        count
    }

    /// Takes what has arrived, does what time asks for. Harmless at any time.
    pub(crate) fn turn(&mut self, now: Instant, fabric: &mut dyn Fabric) {
        for _ in 0..REPORTS_PER_TURN {
            let Ok(report) = self.reports.try_recv() else { break };
            self.take(now, report, fabric);
        }
        let numbers: Vec<u64> = self.peers.keys().copied().collect();
        let look = now >= self.look_at;
        if look {
            self.look_at = now + LOOK;
        }
        for number in &numbers {
            if look {
                self.count(now, *number, fabric);
            }
            self.with_peer(*number, |peer, _| {
                if peer.deadline().is_some_and(|at| now >= at) {
                    peer.timeout(now);
                }
            });
            self.drive(now, *number, fabric);
        }
        if now >= self.issuer.rotates_at() {
            self.issuer.rotate(now, &seed());
            tracing::info!(target: "psp", "new master key; {} peers get new SPIs", self.peers.len());
            for number in numbers {
                self.with_peer(number, |peer, issuer| peer.rotated(now, issuer));
                self.drive(now, number, fabric);
            }
        }
        self.settle(fabric);
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

    /// Ends everything and tells the peers.
    pub(crate) fn shutdown(&mut self, now: Instant, fabric: &mut dyn Fabric) {
        let numbers: Vec<u64> = self.peers.keys().copied().collect();
        for number in numbers {
            for child in 0..self.peers.get(&number).map_or(0, |known| known.children.len()) {
                self.with_peer(number, |peer, _| peer.end(child));
            }
            self.drive(now, number, fabric);
        }
        self.settle(fabric);
        // The first answer comes before the last words are written, the second after it.
        for _ in 0..2 {
            let (answer, answered) = sync_channel(1);
            self.order(Order::Listen(Vec::new(), answer));
            let _ = answered.recv_timeout(FAREWELL);
        }
    }

    /// Peers and their associations.
    pub(crate) fn listing(&self, associations: &Associations) -> Vec<PeerListing> {
        let child = |number: u64, known: &Known, at: usize| {
            let section = &known.children[at];
            let (sending, receiving, fault) = known.peer.lines(at);
            ChildState {
                name: section.name.clone(),
                mode: mode(section),
                sending,
                receiving,
                since: known.peer.sending_since(at).map(|since| since.elapsed()),
                traffic: associations.traffic((number, at)),
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

    fn take(&mut self, now: Instant, report: Report, fabric: &mut dyn Fabric) {
        match report {
            Report::Up { link, ticket, entry, local, remote, short } => {
                let number = match ticket {
                    Some(ticket) => self.tickets.remove(&ticket).filter(|number| self.is_at(*number, local)),
                    None => None,
                };
                let number = match number {
                    Some(number) => Ok(number),
                    None => self.find(now, &entry, local, remote, fabric),
                };
                match number {
                    Ok(number) => self.up(now, number, link, ticket.is_some(), short, fabric),
                    Err(why) => {
                        tracing::warn!(target: "psp", "{remote}: {why}");
                        self.outbox.push(Order::Close(link));
                    }
                }
            }
            Report::NotUp { ticket, why } => {
                let Some(number) = self.tickets.remove(&ticket) else { return };
                self.with_peer(number, |peer, _| peer.closed(now, None, &why));
                self.drive(now, number, fabric);
            }
            Report::Stranger { from, why } => tracing::warn!(target: "psp", "{from} is not admitted: {why}"),
            Report::Message(link, message) => {
                let Some(used) = self.links.get(&link).copied() else { return };
                self.with_peer(used.peer, |peer, issuer| peer.received(now, link, message, issuer));
                self.drive(now, used.peer, fabric);
            }
            Report::Short(link, spi, version, key) => {
                let Some(used) = self.links.get(&link).copied() else { return };
                let mut outcome = Ok(());
                self.with_peer(used.peer, |peer, _| outcome = peer.short_granted(now, spi, version, key));
                self.drive(now, used.peer, fabric);
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
                    used.short = Some(true);
                    let number = used.peer;
                    let known = self.peers.get(&number);
                    let name = known.map(|known| format!("{} {}", known.connection, known.remote)).unwrap_or_default();
                    tracing::info!(target: "psp", "{name}: both ends have switched to PSP");
                }
            }
            Report::Down(link, why) => {
                let Some(used) = self.links.remove(&link) else { return };
                match used.short {
                    None => self.with_peer(used.peer, |peer, _| peer.closed(now, Some(link), &why)),
                    Some(true) => {}
                    Some(false) => {
                        self.note(used.peer, why);
                        self.with_peer(used.peer, |peer, _| peer.short_failed());
                    }
                }
                self.drive(now, used.peer, fabric);
            }
        }
    }

    fn up(&mut self, now: Instant, number: u64, link: Link, initiated: bool, short: bool, fabric: &mut dyn Fabric) {
        self.links.insert(link, Used { peer: number, short: short.then_some(false) });
        if !short {
            self.with_peer(number, |peer, _| peer.connected(now, link, initiated));
            return self.drive(now, number, fabric);
        }
        let mut offer = Err((Code::NOT_ADMITTED, String::new()));
        self.with_peer(number, |peer, issuer| offer = peer.short_offer(now, issuer));
        self.drive(now, number, fabric);
        match offer {
            Ok(issued) => {
                let message = Short::Sa(issued.spi, issued.version, issued.key.clone());
                self.outbox.push(Order::Short(link, message));
            }
            Err((code, text)) => {
                self.note(number, format!("{} {text}", code.meaning()));
                self.outbox.push(Order::Short(link, Short::Error(code.0 as u8)));
                self.outbox.push(Order::Close(link));
            }
        }
    }

    /// This host still is at the address for which the policies of a peer stand.
    fn is_at(&self, number: u64, local: IpAddr) -> bool {
        self.peers.get(&number).is_some_and(|known| known.local == local)
    }

    /// The peer at the other end of a control connection; a new one where a connection admits it.
    fn find(
        &mut self,
        now: Instant,
        entry: &Arc<Entry>,
        local: IpAddr,
        remote: IpAddr,
        fabric: &mut dyn Fabric,
    ) -> Result<u64, String> {
        let at = self.connections.iter().position(|connection| connection.entry == *entry);
        let at = at.ok_or("the connection was unloaded")?;
        let name = &self.connections[at].config.name;
        let of_peer = |known: &Known| known.connection == *name && known.remote == remote;
        let found = self.peers.iter().find(|(_, known)| of_peer(known));
        match found.map(|(number, known)| (*number, known.local, known.configured)) {
            Some((number, there, _)) if there == local => Ok(number),
            // This host has moved; the SPIs of before are bound to where it was.
            Some((number, _, configured)) => {
                let wanted: Vec<usize> =
                    self.peers.get(&number).map_or_else(Vec::new, |known| known.peer.wanted_children());
                self.end_peer(now, number, fabric);
                let number = self.make(at, local, remote, configured, fabric)?;
                for child in wanted {
                    self.with_peer(number, |peer, _| peer.want(now, child));
                }
                Ok(number)
            }
            None => self.make(at, local, remote, false, fabric),
        }
    }

    /// Asks for a new key where enough packets went out.
    fn count(&mut self, now: Instant, number: u64, fabric: &mut dyn Fabric) {
        let Some(known) = self.peers.get_mut(&number) else { return };
        let associations = fabric.associations();
        for (child, section) in known.children.iter().enumerate() {
            if associations.sent((number, child)) >= section.rekey_packets {
                known.peer.worn(now, child);
            }
        }
    }

    fn end_peer(&mut self, now: Instant, number: u64, fabric: &mut dyn Fabric) {
        let children = self.peers.get(&number).map_or(0, |known| known.children.len());
        for child in 0..children {
            self.with_peer(number, |peer, _| peer.end(child));
        }
        self.drive(now, number, fabric);
        let (associations, keys) = fabric.psp(true);
        (0..children).for_each(|child| associations.fall((number, child), keys));
        self.changed = true;
        self.peers.remove(&number);
        for (link, _) in self.links.iter().filter(|(_, used)| used.peer == number) {
            self.outbox.push(Order::Close(*link));
        }
        self.links.retain(|_, used| used.peer != number);
        self.tickets.retain(|_, peer| *peer != number);
    }

    /// Carries out what a peer wants.
    fn drive(&mut self, now: Instant, number: u64, fabric: &mut dyn Fabric) {
        let Some(mut known) = self.peers.remove(&number) else { return };
        while let Some(action) = known.peer.poll() {
            self.carry_out(now, number, &mut known, action, fabric);
        }
        self.peers.insert(number, known);
    }

    fn carry_out(&mut self, now: Instant, number: u64, known: &mut Known, action: Action, fabric: &mut dyn Fabric) {
        let place = |child: usize| -> Place { (number, child) };
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
                let (associations, keys) = fabric.psp(false);
                if let Err(why) = associations.install_rx(place(child), &issued, window, keys) {
                    known.told(child, &why.to_string());
                }
                self.changed = true;
            }
            Action::RemoveRx(child, spi) => {
                fabric.psp(false).0.remove_rx(place(child), spi);
                self.changed = true;
            }
            Action::InstallTx(child, grant) => {
                let mtu = fabric.path_mtu(known.remote);
                let (associations, keys) = fabric.psp(false);
                if let Err(why) = associations.install_tx(place(child), &grant, mtu, keys) {
                    known.told(child, &why.to_string());
                }
                self.changed = true;
            }
            Action::RemoveTx(child) => {
                let (associations, keys) = fabric.psp(false);
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

    /// Shows packets what changed, then tells peers.
    fn settle(&mut self, fabric: &mut dyn Fabric) {
        if std::mem::take(&mut self.changed)
            && let Err(error) = fabric.commit()
        {
            tracing::error!(target: "psp", "{error:#}");
        }
        for order in std::mem::take(&mut self.outbox) {
            self.order(order);
        }
    }

    fn order(&self, order: Order) {
        // Without the thread there is nobody left to tell.
        let _ = self.orders.send(order);
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for PspService {
    /// The thread with the sockets sees that there are no more orders.
    fn drop(&mut self) {
        let (nobody, _) = channel();
        self.orders = nobody;
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Known {
    fn told(&mut self, child: usize, why: &str) {
        let name = self.children.get(child).map_or("", |section| &section.name);
        tracing::error!(target: "psp", "{}.{name} {}: {why}", self.connection, self.remote);
        self.fault = Some(why.to_owned());
    }

    fn event(&mut self, _now: Instant, event: &Event) {
        let name = |child: &usize| self.children.get(*child).map_or("", |section| &section.name);
        let (connection, remote) = (&self.connection, self.remote);
        let mut fault = None;
        match event {
            Event::Reached => tracing::info!(target: "psp", "{connection} {remote}: reached"),
            Event::Lost(why) => {
                tracing::warn!(target: "psp", "{connection} {remote}: {why}; keys stay until their deadlines");
                fault = Some(why.clone());
            }
            Event::Restarted => {
                tracing::warn!(target: "psp", "{connection} {remote}: the peer was started anew; agreeing again");
            }
            Event::Sending(child, spi) => {
                tracing::info!(target: "psp", "{connection}.{} {remote}: sending with SPI {:#010x}", name(child), spi.get());
            }
            Event::Receiving(child, spi) => {
                tracing::info!(target: "psp", "{connection}.{} {remote}: receiving with SPI {:#010x}", name(child), spi.get());
            }
            Event::Expired(child) => {
                let why = "the deadline of the last key has passed: packets are dropped until there is another";
                tracing::error!(target: "psp", "{connection}.{} {remote}: {why}", name(child));
                fault = Some(why.to_owned());
            }
            Event::Refused(child, why) => {
                tracing::warn!(target: "psp", "{connection}.{} {remote}: the peer refuses: {why}", name(child));
                fault = Some(why.clone());
            }
            Event::Asked(why) => {
                tracing::warn!(target: "psp", "{connection} {remote}: refused to the peer: {why}");
                fault = Some(why.clone());
            }
            Event::Fault(why) => {
                tracing::warn!(target: "psp", "{connection} {remote}: {why}");
                fault = Some(why.clone());
            }
            Event::GivenUp(tries) => {
                let why = format!("not reached after {tries} tries: raise 'keyingtries', or 0 for without end");
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

fn seed() -> Seed {
    let mut key = Zeroizing::new([0; 32]);
    crypto::random(&mut *key);
    Seed { key, first_spi: random_u64() as u32 }
}

fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    crypto::random(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// The host speaks IPv6.
fn has_v6() -> bool {
    socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, None).is_ok()
}

impl Fabric for crate::plane::Plane {
    fn psp(&mut self, routes: bool) -> (&mut Associations, &mut KeyTable) {
        Self::psp(self, routes)
    }

    fn associations(&self) -> &Associations {
        &self.negotiated.psp
    }

    fn path_mtu(&mut self, to: IpAddr) -> u32 {
        Self::path_mtu(self, to)
    }

    fn commit(&mut self) -> anyhow::Result<()> {
        Self::commit(self)
    }
}
