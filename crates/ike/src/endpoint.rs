//! One host that speaks IKE: all IKE SAs by SPI, and their shared state.
//!
//! The IKE SA of a datagram is looked up by the SPI of this host; a step of that SA runs with the
//! shared state borrowed ([`Context`]); its results (an SA that was established, ended, or created)
//! are processed here, and its timer is reset.

mod commands;
#[cfg(any(test, feature = "testkit"))]
mod forge;
mod half_open;
pub(crate) mod limit;
mod locate;
mod settings;
mod settle;
#[cfg(any(test, feature = "testkit"))]
mod tables;
mod towards;
mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use rand_core::CryptoRng;
use wire::AddrRange;
use wire::ike::{ExchangeType, Header, NotifyType};

pub(crate) use self::commands::OTHER_VERSION;
use self::half_open::HalfOpen;
use self::limit::Limit;
pub use self::settings::{InitiateError, Settings};
pub use self::view::{ChildView, IkeState, IkeView};
use crate::config::{Connection, Version};
use crate::context::{Context, Names, Owned, Sources};
use crate::cookie::Cookies;
use crate::exchange::{Arrival, Timeout};
use crate::handshake::{Outcome, Redirects, counters, init};
use crate::output::{
    ChildId, CredentialResponse, Event, IkeId, IkeSpi, IkeSpis, Level, Output, Path, RequestId, Subsystem, Transmit,
};
use crate::pool::Pools;
use crate::sa::{Established, IkeSa, Initiation, NewSa};

/// An IKE endpoint: every IKE SA of one host.
pub struct Endpoint<R> {
    shared: Shared<R>,
    /// By the SPI that this host chose.
    sas: HashMap<IkeSpi, Slot>,
    /// The newest IKE SA of each name.
    by_id: HashMap<IkeId, IkeSpi>,
    /// IKE SAs of each connection that this host started or that came up.
    by_connection: HashMap<String, BTreeSet<IkeId>>,
    children: HashMap<ChildId, IkeId>,
    /// Installed trap policies, by connection and child.
    traps: BTreeSet<(String, String)>,
    half_open: HalfOpen,
    /// Handshakes with peers that packets chose.
    towards: BTreeSet<IkeSpi>,
    cookies: Cookies,
    /// IKE SAs of version 1, which share no state with the others.
    v1: crate::v1::Table,
    timers: BTreeSet<(Instant, IkeSpi)>,
    /// Attempts that wait for their time.
    later: Vec<(Instant, Initiation, Redirects)>,
    /// Attempts that wait for a host name to be resolved, by number of the resolution.
    naming: BTreeMap<u64, (Initiation, Redirects)>,
    /// Attempts that wait for the addresses of their connection's hosts.
    awaiting: Vec<(Initiation, Redirects)>,
    /// First messages of peers that wait for the same, or for trust anchors.
    held: VecDeque<locate::Held>,
    asked_by_peers: Limit,
    /// Duplicates that end unless their peer ends them first.
    retiring: BTreeMap<IkeId, Instant>,
    /// Questions about trusted authorities, by connection.
    asked: HashMap<RequestId, String>,
    authorities_at: HashMap<String, Instant>,
    replies: Limit,
    lines: Limit,
    admission: Admission,
}

/// Whether IKE SAs may begin.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Admission {
    Open,
    /// Those that exist end in order ([`Endpoint::drain`]).
    Draining,
    /// The end of the process ([`Endpoint::shutdown`]).
    Closing,
}

impl Admission {
    /// Why no IKE SA is initiated; `None`: they may be.
    fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Open => None,
            Self::Draining => Some("the gateway is being drained"),
            Self::Closing => Some("weir is stopping"),
        }
    }
}

/// State that steps borrow.
struct Shared<R> {
    rng: R,
    settings: Settings,
    connections: Vec<Arc<Connection>>,
    pools: Pools,
    out: VecDeque<Output>,
    names: Names,
    sources: Sources,
    owned: Owned,
    born: Vec<NewSa>,
}

/// One IKE SA in the table.
struct Slot {
    sa: IkeSa,
    due: Option<Instant>,
    /// It counts as half open: where it came from and the SPI of the initiator.
    half_open: Option<(SocketAddr, IkeSpi)>,
}

impl<R: CryptoRng> Shared<R> {
    fn context(&mut self, now: Instant) -> Context<'_> {
        Context {
            now,
            rng: &mut self.rng,
            settings: &self.settings,
            connections: &self.connections,
            pools: &mut self.pools,
            out: &mut self.out,
            names: &mut self.names,
            sources: &self.sources,
            owned: &self.owned,
            born: &mut self.born,
        }
    }

    fn log(&mut self, level: Level, ike: Option<IkeId>, text: String) {
        self.out.push_back(Output::Event(Event::Log { level, subsystem: Subsystem::Ike, ike, text }));
    }

    fn count(&mut self, what: &'static str) {
        self.out.push_back(Output::Event(Event::Count(what)));
    }

    /// A random SPI for an IKE SA that `taken` does not know.
    fn ike_spi(&mut self, taken: impl Fn(&IkeSpi) -> bool) -> IkeSpi {
        loop {
            let spi = IkeSpi(self.rng.next_u64().to_be_bytes());
            if !spi.is_zero() && !taken(&spi) {
                return spi;
            }
        }
    }
}

impl<R: CryptoRng> Endpoint<R> {
    /// An endpoint without connections.
    pub fn new(settings: Settings, rng: R) -> Self {
        Self {
            shared: Shared {
                rng,
                settings,
                connections: Vec::new(),
                pools: Pools::default(),
                out: VecDeque::new(),
                names: Names::default(),
                sources: Box::new(|_| None),
                owned: Box::new(|_| None),
                born: Vec::new(),
            },
            sas: HashMap::new(),
            by_id: HashMap::new(),
            by_connection: HashMap::new(),
            children: HashMap::new(),
            traps: BTreeSet::new(),
            half_open: HalfOpen::default(),
            towards: BTreeSet::new(),
            cookies: Cookies::default(),
            v1: crate::v1::Table::default(),
            timers: BTreeSet::new(),
            later: Vec::new(),
            naming: BTreeMap::new(),
            awaiting: Vec::new(),
            held: VecDeque::new(),
            asked_by_peers: Limit::new(locate::ASKED_BY_PEERS_PER_S),
            retiring: BTreeMap::new(),
            asked: HashMap::new(),
            authorities_at: HashMap::new(),
            replies: Limit::new(10),
            lines: Limit::new(5),
            admission: Admission::Open,
        }
    }

    /// Takes the look-up in the routing table: the address from which this host sends to another
    /// one. It must ignore what Child SAs protect, as the datagrams of IKE do.
    pub fn look_up_sources(&mut self, look_up: impl Fn(IpAddr) -> Option<IpAddr> + Send + 'static) {
        self.shared.sources = Box::new(look_up);
    }

    /// Takes the look-up of this host's own networks: the one that contains an address. Virtual
    /// addresses are in none.
    pub fn look_up_networks(&mut self, look_up: impl Fn(IpAddr) -> Option<AddrRange> + Send + 'static) {
        self.shared.owned = Box::new(look_up);
    }

    /// Takes one UDP payload, without non-ESP marker. `local` is where it arrived, `from` its
    /// sender. Nothing that can arrive makes this panic.
    pub fn handle_datagram(&mut self, now: Instant, local: SocketAddr, from: SocketAddr, datagram: &[u8]) {
        let path = Path::of_datagram(local, from);
        let Ok((header, body)) = Header::parse(datagram) else {
            return self.shared.count(counters::MALFORMED);
        };
        // The first decision about a message, so that each version only sees its own.
        if header.major() != Header::VERSION_2 >> 4 {
            return match header.major() == Header::VERSION_1 >> 4 && self.speaks_v1() {
                true => self.handle_v1(now, &path, header, datagram),
                false => self.refuse_version(now, &path, header),
            };
        }
        // The SPI of the responder is zero in this request, so that the look-up below cannot find
        // it.
        if header.exchange == ExchangeType::IKE_SA_INIT && !header.is_response() {
            return self.handle_init(now, &path, header, body, datagram);
        }
        // The SPI that this host chose.
        let spi = IkeSpi(if header.from_initiator() { header.spi_r } else { header.spi_i });
        match self.sas.get(&spi) {
            Some(_) => self.step(now, &spi, |sa, ctx| handle(sa, ctx, &path, header, datagram)),
            None => self.refuse_spi(now, &path, header, datagram.len()),
        }
    }

    /// IKEv1 is spoken with the peers of connections with `version = 1` alone.
    fn speaks_v1(&self) -> bool {
        self.v1.len() > 0 || self.shared.connections.iter().any(|connection| connection.version == Version::V1)
    }

    fn handle_v1(&mut self, now: Instant, path: &Path, header: &Header, datagram: &[u8]) {
        // Only a message without the responder's cookie makes an IKE SA.
        let first = header.spi_r == [0; 8];
        match self.admission {
            Admission::Closing => return,
            Admission::Draining if first => return self.shared.count(counters::INIT_BLOCKED),
            Admission::Draining | Admission::Open => (),
        }
        if first && self.hold_for_anchors(now, Version::V1, path, IkeSpi(header.spi_i), datagram) {
            return;
        }
        // Names are for IKE SAs.
        let id = if first { self.fresh_name() } else { IkeId(0) };
        self.with_v1(now, |v1, ctx| v1.handle(ctx, id, path, header, datagram));
    }

    /// Runs a step of IKEv1 and takes in what it starts.
    fn with_v1<T>(&mut self, now: Instant, act: impl FnOnce(&mut crate::v1::Table, &mut Context<'_>) -> T) -> T {
        let seen = self.shared.out.len();
        let result = act(&mut self.v1, &mut self.shared.context(now));
        self.note_children(seen);
        for initiation in self.v1.take_retries() {
            self.initiate_later(now, initiation, Redirects::default());
        }
        for connection in self.v1.take_questions() {
            self.refresh_authorities(now, &connection);
        }
        self.take_born(now);
        result
    }

    /// RFC 7296 §2.5: a higher major version receives the supported one.
    fn refuse_version(&mut self, now: Instant, path: &Path, header: &Header) {
        self.shared.count(counters::VERSION);
        // An IKEv1 peer could not parse a version 2 notify, so its messages are only counted.
        if header.major() > 2 && !header.is_response() && self.replies.allows(now) {
            self.reply(path, header, NotifyType::INVALID_MAJOR_VERSION);
        }
    }

    /// RFC 7296 §2.21.4: a request for an unknown IKE SA receives a notify, a response never does.
    fn refuse_spi(&mut self, now: Instant, path: &Path, header: &Header, len: usize) {
        const REPLY_LEN: usize = Header::LEN + 8;
        self.shared.count(counters::UNKNOWN_SPI);
        // A reply longer than the request would make this host an amplifier for spoofed source
        // addresses.
        if !header.is_response() && len >= REPLY_LEN && self.replies.allows(now) {
            self.reply(path, header, NotifyType::INVALID_IKE_SPI);
        }
    }

    fn reply(&mut self, path: &Path, header: &Header, kind: NotifyType) {
        let (spis, message_id) = (IkeSpis::of(header), header.message_id.get());
        // The reply has the opposite direction, and the flag depends on the role of the sender (RFC
        // 7296 §3.1).
        let role = if header.from_initiator() { 0 } else { Header::FLAG_INITIATOR };
        let flags = role | Header::FLAG_RESPONSE;
        let datagram = init::unprotected(header.exchange, spis, flags, message_id, |chain| {
            chain.notify(wire::ike::ProtocolId::NONE, &[], kind, &[]);
        });
        let Path { local, remote, .. } = *path;
        self.shared.out.push_back(Output::Transmit(Transmit { local, remote, datagram, dscp: 0 }));
    }

    /// Processes expired timers: retransmissions, lifetimes, further attempts. Harmless when early.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((due, spi)) = self.timers.first().copied().filter(|(due, _)| *due <= now) {
            self.timers.remove(&(due, spi));
            if let Some(slot) = self.sas.get_mut(&spi) {
                slot.due = None;
            }
            self.step(now, &spi, handle_timeout);
            // A timer that expires again at once should be processed by the next call, because this
            // loop could otherwise run forever.
            if self.sas.get(&spi).and_then(|slot| slot.due).is_some_and(|due| due <= now) {
                let soon = now + std::time::Duration::from_millis(1);
                self.set_timer(&spi, Some(soon));
            }
        }
        self.with_v1(now, |v1, ctx| v1.handle_timeout(ctx));
        self.start_later(now);
        self.retry_hosts(now);
        self.retire(now);
    }

    /// Time of the next [`Endpoint::handle_timeout`].
    pub fn deadline(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(due, _)| *due);
        let later = self.later.iter().map(|(at, ..)| *at);
        let retiring = self.retiring.values().copied();
        let later = later.chain(self.v1.deadline());
        later.chain(retiring).chain(timer).chain(self.shared.names.hosts.deadline()).min()
    }

    /// Delivers a credential response. An unexpected response is ignored.
    pub fn handle_credentials(&mut self, now: Instant, request_id: RequestId, response: CredentialResponse) {
        if let Some(connection) = self.asked.remove(&request_id) {
            match response {
                CredentialResponse::TrustedAuthorities(authorities) => {
                    self.shared.names.authorities.insert(connection.clone(), authorities);
                }
                CredentialResponse::KeysV1(keys) => {
                    self.shared.names.keys_v1.insert(connection.clone(), keys);
                }
                _ => (),
            }
            return self.anchors_arrived(now, &connection);
        }
        // The handshake may have ended while the request was pending, so a missing entry is not an
        // error.
        let Some(ike) = self.shared.names.request_ids.remove(&request_id) else { return };
        let Some(spi) = self.by_id.get(&ike).copied() else {
            return self.with_v1(now, |v1, ctx| v1.answer(ctx, ike, request_id, response));
        };
        self.step(now, &spi, |sa, ctx| match sa {
            IkeSa::Handshake(handshake) => Some(handshake.answer(ctx, request_id, response)),
            IkeSa::Established(sa) => {
                ctx.internal_error(sa.id, "a credential response for an established IKE SA");
                None
            }
        });
    }

    /// Returns the next output; `None` if there is none.
    pub fn poll(&mut self) -> Option<Output> {
        self.shared.out.pop_front()
    }

    /// Runs one step of an IKE SA and applies its outcome. An established IKE SA has none: its
    /// tasks change it in place.
    fn step(&mut self, now: Instant, spi: &IkeSpi, act: impl FnOnce(&mut IkeSa, &mut Context<'_>) -> Option<Outcome>) {
        let seen = self.shared.out.len();
        let Some(slot) = self.sas.get_mut(spi) else { return };
        let mut ctx = self.shared.context(now);
        let outcome = act(&mut slot.sa, &mut ctx);
        // Any step may free the request window or queue a task. Without this call the task would
        // wait for the next event of this IKE SA.
        if let IkeSa::Established(sa) = &mut slot.sa {
            sa.start_next(&mut ctx);
        }
        // Before `settle`: it may remove the IKE SA, and entries that are added after that would
        // never be removed.
        self.note_children(seen);
        self.settle(now, spi, outcome);
        self.take_born(now);
    }

    /// Tracks the owners of Child SAs, and the installed trap policies.
    fn note_children(&mut self, seen: usize) {
        for output in self.shared.out.iter().skip(seen) {
            match output {
                Output::Install(child) => {
                    self.children.insert(child.id, child.ike);
                    self.shared.names.claims.enter(child);
                }
                Output::Remove(child, _) => {
                    self.children.remove(child);
                    self.shared.names.claims.leave(*child);
                }
                Output::Trap(connection, child, true) => {
                    self.traps.insert((connection.name.clone(), child.name.clone()));
                }
                _ => (),
            }
        }
    }

    /// A name that no IKE SA has: names come round again after 2³².
    fn fresh_name(&mut self) -> IkeId {
        loop {
            let id = self.shared.names.ike();
            if !self.by_id.contains_key(&id) && !self.v1.has(id) {
                return id;
            }
        }
    }

    fn set_timer(&mut self, spi: &IkeSpi, due: Option<Instant>) {
        let Some(slot) = self.sas.get_mut(spi) else { return };
        if slot.due == due {
            return;
        }
        if let Some(old) = slot.due {
            self.timers.remove(&(old, *spi));
        }
        slot.due = due;
        if let Some(due) = due {
            self.timers.insert((due, *spi));
        }
    }
}

/// A datagram for an IKE SA.
fn handle(sa: &mut IkeSa, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) -> Option<Outcome> {
    match sa {
        IkeSa::Handshake(handshake) => Some(handshake.handle(ctx, from, header, datagram)),
        IkeSa::Established(sa) => {
            handle_established(sa, ctx, from, header, datagram);
            None
        }
    }
}

fn handle_established(sa: &mut Established, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) {
    let accepts = |exchange| {
        matches!(exchange, ExchangeType::CREATE_CHILD_SA | ExchangeType::INFORMATIONAL | ExchangeType::IKE_FOLLOWUP_KE)
    };
    match sa.exchanges.receive(ctx, from, header, datagram, accepts) {
        Arrival::Nothing => (),
        Arrival::Request(request) => {
            let inner = sa.handle_request(ctx, from, &request);
            sa.exchanges.respond(ctx, from, (request.exchange, request.message_id), &inner);
        }
        Arrival::Response(response) => sa.handle_response(ctx, from, &response),
    }
}

fn handle_timeout(sa: &mut IkeSa, ctx: &mut Context<'_>) -> Option<Outcome> {
    match sa {
        IkeSa::Handshake(handshake) => Some(handshake.handle_timeout(ctx)),
        IkeSa::Established(sa) => {
            if sa.exchanges.handle_timeout(ctx, &sa.path) == Timeout::GaveUp {
                sa.gave_up(ctx);
            }
            sa.handle_timeout(ctx);
            None
        }
    }
}

/// An address of this host from which `remote` may be reached, where the routing table names none
/// that is allowed: of its family, and the one that has most leading bits in common with it.
fn best_local(addresses: &[IpAddr], remote: IpAddr) -> Option<IpAddr> {
    let common = |addr: &IpAddr| match (addr, remote) {
        (IpAddr::V4(a), IpAddr::V4(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
        (IpAddr::V6(a), IpAddr::V6(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
        _ => None,
    };
    // A datagram with a loopback source does not leave the host.
    let usable = |addr: &&IpAddr| addr.is_loopback() == remote.is_loopback() && !addr.is_multicast();
    let ranked = addresses.iter().filter(usable).filter_map(|addr| Some((common(addr)?, addr)));
    ranked.max_by_key(|(common, _)| *common).map(|(_, addr)| *addr)
}
