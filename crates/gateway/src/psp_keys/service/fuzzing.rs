//! Fuzz target of the key service of one host, above its control connections: arbitrary reports of
//! the socket thread, commands and time.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crypto::KeyTable;
use dataplane::{Batch, Snapshot, Worker, WorkerConfig};
use ike::config::{Auth, AuthMethod, Host, StartAction, TsConfig};
use ike::identity::{IdPattern, Identity};
use ipsec::Spd;
use wire::AddrRange;
use wire::psp::{PspSpi, PspVersion};

use super::super::associations::Associations;
use super::super::link::{Order, Report};
use super::super::message::{Code, Grant, Message, TrafficKey, Want};
use super::super::peer::Link;
use super::super::tls::Entry;
use super::{DataPlane, MAX_PER_IDENTITY, PspService, SendOrder, child_spec, pairs};
use crate::config::{PspChild, PspConfig, PspMode};
use crate::negotiated::Assembly;

const HOUR: Duration = Duration::from_secs(3600);
/// Limits of control connections per peer and of receiving SPIs per child (`peer::MAX_LINKS`,
/// `peer::MAX_RECEIVING`).
const MAX_LINKS: usize = 4;
const MAX_RECEIVING: usize = 8;
/// Most orders to the socket thread that one event may cause.
const MAX_ORDERS: usize = 1000;
const EVENTS: usize = 400;
const LOCAL: [&str; 2] = ["203.0.113.1", "203.0.113.2"];
const FIXED: &str = "198.51.100.1";
const NAMED: [&str; 2] = ["198.51.100.2", "198.51.100.3"];
const IDENTITIES: [&str; 4] = ["a.test", "b.test", "c.test", "d.test"];

thread_local! {
    static COUNTER: Cell<u64> = const { Cell::new(0) };
}

/// Replaces random bytes by a sequence that is the same in every run.
fn deterministic_bytes(bytes: &mut [u8]) {
    COUNTER.set(COUNTER.get().wrapping_add(1));
    let mut state = COUNTER.get();
    for byte in bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (state >> 56) as u8;
    }
}

/// Model of the socket thread.
#[derive(Default)]
struct Sockets {
    admitted: Vec<Arc<Entry>>,
    /// Pending connection attempts.
    connects: Vec<(u64, Arc<Entry>, SocketAddr)>,
    /// Control connections that the service may use.
    open: BTreeSet<u64>,
    /// SPIs in the published tables.
    published: BTreeSet<u32>,
    /// Last grant.
    granted: Option<PspSpi>,
    orders: usize,
}

impl Sockets {
    fn handle(&mut self, order: Order) {
        self.orders += 1;
        assert!(self.orders <= MAX_ORDERS, "one event leads to more than {MAX_ORDERS} orders");
        match order {
            Order::Listen(at, answer) => drop(answer.send(Ok(at))),
            Order::Admit(entries) => self.admitted = entries,
            Order::Connect { ticket, entry, to, .. } => self.connects.push((ticket, entry, to)),
            Order::Send(link, message) => {
                assert!(self.open.contains(&link.0), "a message for a control connection that is down");
                assert_eq!(Message::parse(&message.emit()).as_ref(), Ok(&message), "a sent message can be parsed");
                if let Message::Grant(grant) = &message {
                    assert!(self.published.contains(&grant.spi.get()), "granted before its SPI is published");
                    self.granted = Some(grant.spi);
                }
            }
            Order::Short(link, _) | Order::Switch(link) => assert!(self.open.contains(&link.0)),
            Order::Close(link) => drop(self.open.remove(&link.0)),
        }
    }
}

type Shared = Arc<Mutex<Sockets>>;

fn lock(sockets: &Shared) -> MutexGuard<'_, Sockets> {
    sockets.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Data plane with one worker.
struct Packets {
    associations: Associations,
    keys: KeyTable,
    tables: Arc<Snapshot>,
    worker: Worker,
    sockets: Shared,
}

fn assemble(associations: &Associations, keys: &KeyTable) -> Snapshot {
    let mut all = Assembly::default();
    associations.assemble(&mut all);
    let Assembly { outbound, inbound, groups, policies, .. } = all;
    let points = wire::registry::CodePoints::default();
    let snapshot = Snapshot::new(inbound.finish(), outbound.finish(), Spd::new(policies), keys.clone(), points);
    let mut snapshot = snapshot.unwrap_or_else(|why| panic!("ambiguous associations: {why:?}"));
    snapshot.groups = groups;
    snapshot
}

impl Packets {
    fn new(sockets: Shared) -> Self {
        let (associations, keys) = (Associations::default(), KeyTable::default());
        let tables = Arc::new(assemble(&associations, &keys));
        let config = WorkerConfig {
            batch: 4,
            packet_bytes: 512,
            flow_cache: 4,
            derived_keys: 8,
            reassembly: 1,
            audit_ring: 4,
            ..WorkerConfig::default()
        };
        Self { associations, keys, tables, worker: Worker::new(config).0, sockets }
    }

    /// Returns the packets that a worker makes of one packet.
    fn process(&mut self, packet: &[u8], outbound: bool) -> Vec<Vec<u8>> {
        let (mut batch, mut replies) = (Batch::with_reserve(4, 8, 512), Batch::new(4, 512));
        batch.push_with(|slot| slot.set(packet));
        if outbound {
            self.worker.outbound(&self.tables, &mut batch, &mut replies);
        } else {
            self.worker.inbound(&self.tables, &mut batch);
        }
        batch.packets().iter().map(|packet| packet.bytes().to_vec()).collect()
    }
}

impl DataPlane for Packets {
    fn psp(&mut self, _: bool) -> (&mut Associations, &mut KeyTable) {
        (&mut self.associations, &mut self.keys)
    }

    fn associations(&self) -> &Associations {
        &self.associations
    }

    fn path_mtu(&mut self, _: Instant, _: IpAddr) -> u32 {
        1500
    }

    fn commit(&mut self, _: Instant) -> anyhow::Result<()> {
        let mut next = assemble(&self.associations, &self.keys);
        next.generation = self.tables.generation + 1;
        self.tables = Arc::new(next);
        lock(&self.sockets).published = self.associations.receiving().map(|(_, spi)| spi).collect();
        Ok(())
    }
}

fn addr(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn auth(id: &str) -> Auth {
    Auth::new(AuthMethod::PublicKey(Vec::new()), IdPattern::parse(id).expect("a pattern"))
}

fn child(name: &str, mode: PspMode, ts: Option<(&str, &str)>) -> PspChild {
    let dynamic = || TsConfig { addrs: None, proto: None, ports: wire::PortRange::ANY };
    let ts_of = |text: &str| {
        let ts: wire::TrafficSelector = text.parse().expect("a selector");
        TsConfig { addrs: Some(ts.addrs), proto: ts.proto, ports: ts.ports }
    };
    let (local, remote) = ts.map_or_else(|| (dynamic(), dynamic()), |(local, remote)| (ts_of(local), ts_of(remote)));
    PspChild {
        name: name.into(),
        versions: vec![1, 0],
        mode,
        local_ts: vec![local],
        remote_ts: vec![remote],
        crypt_offset: 0,
        max_crypt_offset: 0,
        cookie: None,
        replay_window: 64,
        rekey_time: Duration::ZERO,
        rekey_packets: 1 << 32,
        start_action: StartAction::default(),
        copy_df: true,
        copy_ecn: true,
        copy_dscp: true,
    }
}

fn config(name: &str, remote: Vec<Host>, remote_id: &str, children: Vec<PspChild>) -> PspConfig {
    PspConfig {
        name: name.into(),
        local: vec![Host::Range(AddrRange { start: addr(LOCAL[0]), end: addr(LOCAL[1]) })],
        remote,
        local_port: 4433,
        remote_port: 4433,
        local_auth: auth("hub.test"),
        remote_auth: auth(remote_id),
        dpd_delay: Duration::from_secs(30),
        keyingtries: 0,
        children,
    }
}

/// Connections to load: peers from a network, a peer with an address, a peer with a name.
fn configs(variant: u8) -> Vec<PspConfig> {
    let net = AddrRange::from_cidr(addr("192.0.2.0"), 28).expect("a network");
    let hub = |children| config("hub", vec![Host::Range(net)], "*.test", children);
    let tunnel = || child("net", PspMode::Tunnel, Some(("10.1.0.0/16", "10.2.0.0/16")));
    let host = || child("host", PspMode::Transport, None);
    let fixed_addr = addr(FIXED);
    let mut one = child("one", PspMode::Tunnel, Some(("10.1.0.0/16", "10.3.0.0/16")));
    one.start_action.start = true;
    let mut fixed =
        config("fixed", vec![Host::Range(AddrRange { start: fixed_addr, end: fixed_addr })], "d.test", vec![one]);
    fixed.local = vec![Host::Range(AddrRange { start: addr(LOCAL[0]), end: addr(LOCAL[0]) })];
    let two = child("two", PspMode::Tunnel, Some(("10.1.0.0/16", "10.4.0.0/16")));
    let mut named = config("named", vec![Host::Name("gw.test".into())], "c.test", vec![two]);
    named.local.clone_from(&fixed.local);
    match variant % 4 {
        0 => vec![hub(vec![tunnel()]), fixed, named],
        1 => vec![hub(vec![host(), tunnel()])],
        2 => vec![fixed, hub(vec![host()])],
        _ => Vec::new(),
    }
}

fn packet(src: &str, dst: &str) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0];
    for text in [src, dst] {
        let IpAddr::V4(v4) = addr(text) else { panic!("no IPv4 address") };
        bytes.extend(v4.octets());
    }
    let sum = wire::checksum::checksum(&bytes);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend([0x13, 0x88, 0x13, 0x89, 0, 16, 0, 0]);
    bytes.extend(b"contents");
    bytes
}

/// The service of one host, and the checks of its invariants.
struct Harness {
    service: PspService,
    packets: Packets,
    sockets: Shared,
    reports: SyncSender<Report>,
    now: Instant,
    /// Number of control connections so far.
    links: u64,
    /// Addresses and identities of authenticated peers.
    proven: BTreeSet<(IpAddr, String)>,
}

impl Harness {
    fn new() -> Self {
        COUNTER.set(0);
        let sockets = Shared::default();
        let (reports, waiting) = sync_channel(16);
        let to = Arc::clone(&sockets);
        let send: SendOrder = Box::new(move |order| lock(&to).handle(order));
        let now = Instant::now();
        let service = PspService::new(now, (1000, 1, HOUR), (send, waiting), deterministic_bytes);
        let packets = Packets::new(Arc::clone(&sockets));
        Self { service, packets, sockets, reports, now, links: 0, proven: BTreeSet::new() }
    }

    fn load(&mut self, variant: u8) {
        let faults = self.service.load(self.now, &configs(variant), &mut self.packets);
        assert!(faults.is_empty(), "{faults:?}");
    }

    fn turn(&mut self) {
        self.service.turn(self.now, &mut self.packets);
        lock(&self.sockets).orders = 0;
    }

    fn report(&mut self, report: Report) {
        assert!(self.reports.try_send(report).is_ok(), "there is room for one report");
        self.turn();
    }

    /// Reports a control connection with a peer that has proven its identity by TLS.
    fn up(&mut self, ticket: Option<(u64, Arc<Entry>)>, identity: u8, local: IpAddr, remote: IpAddr, short: bool) {
        let who = Identity::parse(IDENTITIES[usize::from(identity) % IDENTITIES.len()]).expect("an identity");
        let admits = |entry: &&Arc<Entry>| entry.remote_auth.id.matches(&who).is_some() && entry.fits(local, remote);
        let (ticket, entry) = match ticket {
            Some((ticket, entry)) if admits(&&entry) => (Some(ticket), entry),
            Some((ticket, _)) => return self.report(Report::NotUp { ticket, why: "another identity".into() }),
            None => match lock(&self.sockets).admitted.iter().find(admits) {
                Some(entry) => (None, Arc::clone(entry)),
                None => return,
            },
        };
        self.links += 1;
        lock(&self.sockets).open.insert(self.links);
        self.proven.insert((remote, who.to_string()));
        let link = Link(self.links);
        self.report(Report::Up { link, ticket, entry, who, local, remote, short });
    }

    /// Builds a message that fits the loaded connections and the last grant.
    fn plausible(&self, link: u64, kind: u8, number: u8) -> Option<Message> {
        let known = self.service.peers.get(&self.service.links.get(&Link(link))?.peer)?;
        let id = u32::from(number % 3);
        let granted = lock(&self.sockets).granted;
        Some(match kind % 8 {
            0 => Message::Hello { min: 1, max: 1, boot: u64::from(number) },
            1 => {
                let at = usize::from(number) % known.children.len();
                let spec = child_spec(&known.children[at], known.local, known.remote);
                Message::Want(Want {
                    id,
                    mode: spec.mode,
                    counts: number & 0x40 != 0,
                    versions: spec.versions,
                    have: granted.filter(|_| number & 0x80 != 0),
                    local: spec.remote,
                    remote: spec.local,
                })
            }
            2 => {
                let version = PspVersion::try_from(number >> 7).ok()?;
                Message::Grant(Grant {
                    id,
                    spi: PspSpi::try_from(1 + u32::from(number >> 2)).ok()?,
                    version,
                    max_crypt_offset: number & 3,
                    port: 1000,
                    remaining_s: u32::from(number) * 30,
                    window: number & 1 != 0,
                    key: TrafficKey::new(&[number; 32][..if version.get() == 0 { 16 } else { 32 }])?,
                })
            }
            3 => Message::Using { id, spi: granted? },
            4 => Message::Release { id },
            5 => Message::Ping,
            6 => Message::Pong,
            _ => Message::Refuse { id, code: Code(u16::from(number)), text: String::new() },
        })
    }

    /// State that a message without an open control connection must not change.
    fn negotiated(&self) -> (Vec<u32>, usize, usize) {
        let spis = self.packets.associations.receiving().map(|(_, spi)| spi).collect();
        (spis, self.packets.associations.sending().count(), self.service.peers.len())
    }

    fn message(&mut self, link: u64, message: Message) {
        self.turn();
        let (open, before) = (lock(&self.sockets).open.contains(&link), self.negotiated());
        self.report(Report::Message(Link(link), message));
        assert!(open || self.negotiated() == before, "a message without a control connection changed something");
    }

    /// Checks the limits, and that no peer has an association before it has proven its identity.
    fn check(&self) {
        let mut spis = BTreeSet::new();
        for peer in self.service.listing(self.now, &self.packets.associations) {
            let known = &self.service.peers[&peer.number];
            let links = self.service.links.values().filter(|used| used.peer == peer.number && used.short.is_none());
            assert!(links.count() <= MAX_LINKS, "more than {MAX_LINKS} control connections of one peer");
            let has_keys = peer.children.iter().any(|child| child.sending.is_some() || !child.receiving.is_empty());
            let who = known.who.as_ref().map(Identity::to_string);
            let proven = who.as_ref().is_some_and(|who| self.proven.contains(&(peer.remote, who.clone())));
            assert!(proven || !has_keys, "an association with a peer that has not proven its identity");
            for child in &peer.children {
                assert!(
                    child.receiving.len() <= MAX_RECEIVING,
                    "more than {MAX_RECEIVING} receiving SPIs of one child"
                );
                assert!(child.receiving.iter().all(|line| spis.insert(line.spi.get())), "an SPI was issued twice");
            }
            let same = |other: &&super::Known| {
                !other.configured && other.connection == known.connection && other.who == known.who
            };
            let count = self.service.peers.values().filter(same).count();
            assert!(known.configured || count <= MAX_PER_IDENTITY, "{count} peers of one identity");
        }
        let receiving: BTreeSet<u32> = self.packets.associations.receiving().map(|(_, spi)| spi).collect();
        assert_eq!(receiving, spis, "packets and the listing have different SPIs");
        self.check_selectors();
    }

    /// No two identities have the same selectors.
    fn check_selectors(&self) {
        let of = |known: &super::Known| {
            let specs = known.children.iter().map(|child| child_spec(child, known.local, known.remote));
            specs.flat_map(|spec| pairs(&spec.local, &spec.remote)).collect::<Vec<_>>()
        };
        let peers: Vec<_> = self.service.peers.values().filter(|known| known.who.is_some()).collect();
        for (i, one) in peers.iter().enumerate() {
            for other in peers[..i].iter().filter(|other| other.who != one.who) {
                assert!(
                    !of(one).iter().any(|selector| of(other).contains(selector)),
                    "two identities share a selector"
                );
            }
        }
    }

    /// Packets that match a policy must leave protected for an authenticated peer, or be dropped.
    fn check_packets(&mut self) {
        for (src, dst) in
            [("10.1.0.1", "10.2.0.1"), ("10.1.0.1", "10.3.0.1"), (LOCAL[0], "192.0.2.5"), ("10.1.0.1", NAMED[0])]
        {
            for sent in self.packets.process(&packet(src, dst), true) {
                let to = IpAddr::from([sent[16], sent[17], sent[18], sent[19]]);
                assert!(sent[9] == 17, "left under another protocol than UDP");
                assert!(
                    self.proven.iter().any(|(remote, _)| *remote == to),
                    "sent to {to}, which is not authenticated"
                );
                assert!(!sent.windows(8).any(|window| window == b"contents"), "contents left in clear text");
            }
            let back = packet(dst, src);
            assert!(self.packets.process(&back, false).is_empty(), "delivered a packet that arrived in clear text");
        }
    }

    fn event(&mut self, kind: u8, object: u8, rest: &mut &[u8]) {
        let link = u64::from(object) % (self.links + 1);
        match kind % 16 {
            0 | 1 => {
                let (local, remote) = (addr(LOCAL[usize::from(object >> 6 & 1)]), [192, 0, 2, object >> 2 & 15].into());
                self.up(None, object & 3, local, remote, object & 0x80 != 0);
            }
            2 => {
                let remote = [FIXED, NAMED[0], NAMED[1]][usize::from(object >> 2) % 3];
                self.up(None, object & 3, addr(LOCAL[0]), addr(remote), false);
            }
            3 => {
                let mut sockets = lock(&self.sockets);
                if sockets.connects.is_empty() {
                    return;
                }
                let at = usize::from(object >> 3) % sockets.connects.len();
                let (ticket, entry, to) = sockets.connects.remove(at);
                drop(sockets);
                if object & 4 != 0 {
                    return self.report(Report::NotUp { ticket, why: "refused".into() });
                }
                self.up(Some((ticket, entry)), object & 3, addr(LOCAL[0]), to.ip(), false);
            }
            4..=7 => {
                let [message, number, after @ ..] = *rest else { return };
                *rest = after;
                if let Some(message) = self.plausible(link, *message, *number) {
                    self.message(link, message);
                }
            }
            8 => {
                let [high, low, after @ ..] = *rest else { return };
                let len = usize::from(u16::from_be_bytes([*high, *low]));
                let (frame, after) = after.split_at(len.min(after.len()));
                *rest = after;
                if let Ok(message) = Message::parse(frame) {
                    self.message(link, message);
                }
            }
            9 => {
                let step = if object & 1 == 0 { Duration::from_secs(1) } else { Duration::from_secs(60) };
                self.now += step * u32::from(object >> 1);
                self.turn();
            }
            10 => {
                let connection = ["hub", "fixed", "named"][usize::from(object >> 2) % 3];
                match object & 3 {
                    0 => self.service.initiate(self.now, connection, None, &mut self.packets),
                    1 => self.service.terminate(self.now, connection, None, &mut self.packets),
                    _ => self.service.rekey(self.now, connection, None, &mut self.packets),
                };
            }
            11 if object & 0x70 == 0 => self.load(object),
            11 => self.check_packets(),
            12 => {
                for (number, _) in self.service.requests() {
                    let found = match object & 3 {
                        0 => Err(ike::hosts::ResolveError::TimedOut),
                        1 => Ok(NAMED.map(addr).to_vec()),
                        at => Ok(vec![addr(NAMED[usize::from(at & 1)])]),
                    };
                    self.service.resolved(self.now, number, found, &mut self.packets);
                }
                self.turn();
            }
            13 => {
                lock(&self.sockets).open.remove(&link);
                self.report(Report::Down(Link(link), "cut".into()));
            }
            14 => {
                let Some((number, after)) = rest.split_first() else { return };
                *rest = after;
                let (spi, key) = (PspSpi::try_from(1 + u32::from(*number)), TrafficKey::new(&[*number; 16]));
                let (Ok(spi), Some(key)) = (spi, key) else { return };
                // The short form ends with its only message, on a connection of that form.
                let short = self.service.links.get(&Link(link)).is_some_and(|used| used.short.is_some());
                if short {
                    self.report(Report::Short(Link(link), spi, PspVersion::AES_128_GCM, key));
                }
            }
            _ => {
                if self.service.links.get(&Link(link)).is_some_and(|used| used.short.is_some()) {
                    self.report(Report::Switched(Link(link)));
                }
            }
        }
    }
}

/// Returns a service without sockets, which discards its messages.
pub(crate) fn detached(now: Instant) -> PspService {
    let (_, reports) = sync_channel(1);
    let send = |order: Order| {
        if let Order::Listen(at, answer) = order {
            let _ = answer.send(Ok(at));
        }
    };
    PspService::new(now, (1000, 1, HOUR), (Box::new(send) as SendOrder, reports), deterministic_bytes)
}

/// Runs one input. Each event is a byte for the kind, a byte for the object, and its data.
///
/// # Panics
/// A peer has an association before it has proven its identity, a limit is exceeded, two identities
/// share selectors, or a packet leaves in clear text.
pub fn service(mut input: &[u8]) {
    let mut host = Harness::new();
    host.load(0);
    for _ in 0..EVENTS {
        let [kind, object, rest @ ..] = input else { break };
        input = rest;
        host.event(*kind, *object, &mut input);
        lock(&host.sockets).orders = 0;
        host.check();
    }
    host.check_packets();
    host.service.shutdown(host.now, &mut host.packets);
    assert!(host.packets.associations.receiving().next().is_none(), "an SPI receives after the end");
    assert!(host.packets.associations.sending().next().is_none(), "an association sends after the end");
}

#[cfg(test)]
mod tests {
    use super::super::REFUSED_LINES;
    use super::*;

    #[test]
    fn an_identity_that_reaches_another_address_of_this_host_takes_no_selectors_in_use() {
        // Transport mode between hosts: b.test at one address of this host, a.test at the other
        // one, and then b.test there.
        service(&[11, 2, 0, 0x41, 0, 0, 0, 1]);
    }

    #[test]
    fn a_connection_of_the_short_form_that_is_closed_is_not_switched() {
        service(&[
            0x0c, 0x01, 0x00, 0x14, 0x04, 0x01, 0x00, 0x14, 0x04, 0x01, 0x01, 0x01, 0x04, 0x01, 0x03, 0x01, 0x04, 0x01,
            0x02, 0x07, 0x0a, 0x02, 0x0a, 0x05, 0x0d, 0x01, 0x09, 0x79, 0x0b, 0x01, 0x00, 0x8c, 0x0b, 0x14, 0x04, 0x79,
            0x0b, 0x01, 0x00, 0x8c, 0x0b, 0x14, 0x04, 0x02, 0x01, 0x01, 0x04, 0x02, 0x03, 0x04, 0x02, 0x0a, 0x04, 0x02,
            0x05, 0x01, 0x04, 0x02, 0x04, 0x01, 0x00, 0x18, 0x00, 0x19, 0x04, 0x03, 0x00, 0x14, 0x6e, 0x03, 0x01, 0x01,
            0x04, 0x03, 0x03, 0x01, 0x04, 0x03, 0x02, 0x0a, 0x27, 0x8c, 0xf2, 0x03, 0xf6, 0x03, 0x04, 0x01, 0x00, 0x01,
            0x00, 0x02, 0x0a, 0x04, 0x02, 0x05, 0x01, 0x04, 0x02, 0x04, 0x01, 0x07, 0x0a, 0x02, 0x05, 0x0a, 0x0a, 0x01,
            0x09, 0x79,
        ]);
    }

    /// Events of the log that match, and what remains of them.
    fn lines(log: &str) -> (usize, Vec<&str>) {
        let refused = |line: &&str| line.contains("refused: ") || line.contains("is refused");
        (log.lines().filter(refused).count(), log.lines().filter(|line| line.contains("were not logged")).collect())
    }

    #[test]
    fn hosts_that_are_refused_do_not_flood_the_log() {
        let mut host = Harness::new();
        host.load(0);
        let log = crate::log::captured(|| {
            for port in 0..1000 {
                let from = SocketAddr::new(addr("198.51.100.9"), port);
                host.report(Report::Stranger { from, why: "the handshake timed out".into() });
            }
            host.now += Duration::from_secs(1);
            host.turn();
            // Authenticated, with the selectors of another peer.
            host.up(None, 0, addr(LOCAL[0]), addr("192.0.2.1"), false);
            for _ in 0..1000 {
                host.up(None, 1, addr(LOCAL[0]), addr("192.0.2.2"), false);
            }
            host.now += Duration::from_secs(1);
            host.turn();
            host.now += Duration::from_secs(1);
            host.turn();
        });
        let (refused, sums) = lines(&log);
        let sum = "<4>psp: 995 more refused control connections were not logged";
        assert_eq!((refused, sums), (2 * REFUSED_LINES as usize, vec![sum, sum]), "{log}");
    }

    #[test]
    fn a_handshake_under_way_brings_no_association_after_the_end_of_all() {
        let mut host = Harness::new();
        host.load(0);
        host.now += Duration::from_secs(1);
        host.turn();
        let entries = lock(&host.sockets).admitted.clone();
        let tickets: Vec<_> = std::mem::take(&mut lock(&host.sockets).connects);
        let (local, remote) = (addr(LOCAL[0]), addr("192.0.2.1"));
        host.service.drain(host.now, &mut host.packets);
        let up = |host: &mut Harness, ticket: Option<u64>, entry: &Arc<Entry>, who: &str, remote: IpAddr| {
            host.links += 1;
            let link = host.links;
            lock(&host.sockets).open.insert(link);
            let who = Identity::parse(who).expect("an identity");
            let entry = Arc::clone(entry);
            host.report(Report::Up { link: Link(link), ticket, entry, who, local, remote, short: false });
            assert!(!lock(&host.sockets).open.contains(&link), "the control connection stays");
            for kind in [0, 1] {
                if let Some(message) = host.plausible(link, kind, 0) {
                    host.message(link, message);
                }
            }
        };
        let hub = entries.iter().find(|entry| entry.name == "hub").expect("an entry");
        up(&mut host, None, hub, "a.test", remote);
        let (ticket, fixed, to) = tickets.first().expect("an attempt");
        up(&mut host, Some(*ticket), fixed, "d.test", to.ip());
        assert_eq!(host.packets.associations.receiving().count(), 0);
        assert!(host.service.links.is_empty() && host.service.tickets.is_empty());
    }
}
