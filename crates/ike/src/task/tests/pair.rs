#![allow(clippy::disallowed_methods)] // a test begins at some time
//! Two hosts with an authenticated IKE SA between them, made without a handshake, and the wire
//! between.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::EncAlg;
use crypto::ike::{KeMethod, Prf, Secret, SkKey, SkSuite};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use wire::ike::{Header, PayloadType};
use wire::{AddrRange, PortRange, TrafficSelector};

use crate::child::{Child, ChildState};
use crate::config::*;
use crate::context::{Context, Names};
use crate::endpoint::Settings;
use crate::exchange::{Arrival, Exchanges, Inner, SaIds, Timeout};
use crate::identity::Identity;
use crate::output::{ChildId, Event, IkeId, IkeSpi, IkeSpis, Output, Path};
use crate::pool::Pools;
use crate::proposal::{ChildProposal, ChildProtocol, ChildSuite, IkeProposal, IkeSuite, SequenceNumbers};
use crate::sa::{DeriveKeys, Ending, Established, Initiation, NewSa, PeerSupport, Role, SkKeys};
use crate::task::Tasks;

pub(super) const A: usize = 0;
pub(super) const B: usize = 1;

/// A Child SA as the data plane has it.
pub(super) struct Installed {
    pub(super) spi_in: u32,
    pub(super) spi_out: u32,
    key_in: Secret,
    key_out: Secret,
    pub(super) cpu: Option<u32>,
    pub(super) original: Option<(IpAddr, IpAddr)>,
    pub(super) mode: ChildMode,
    pub(super) suite: ChildSuite,
    pub(super) ts: (Vec<TrafficSelector>, Vec<TrafficSelector>),
    pub(super) limits: (Option<u16>, Option<u8>),
    /// The peer does not receive cut inner packets.
    pub(super) whole_only: bool,
    /// Packets go out through it.
    pub(super) used: bool,
    replaces: Option<ChildId>,
    /// Requested by the peer, which may not have it yet.
    fresh: bool,
    /// Its outbound half is gone; the inbound half goes then.
    removed: Option<Instant>,
}

/// A datagram on the wire.
#[derive(Clone)]
pub(super) struct InFlight {
    pub(super) to: usize,
    from: SocketAddr,
    at: SocketAddr,
    pub(super) bytes: Vec<u8>,
}

impl InFlight {
    /// Destination.
    pub(super) fn at(&self) -> SocketAddr {
        self.at
    }

    /// The same with another source.
    pub(super) fn from(self, from: SocketAddr) -> Self {
        Self { from, ..self }
    }
}

/// One host.
pub(super) struct Host {
    settings: Settings,
    names: Names,
    pools: Pools,
    rng: ChaCha8Rng,
    connections: Vec<Arc<Connection>>,
    pub(super) sas: Vec<Established>,
    pub(super) plane: BTreeMap<ChildId, Installed>,
    pub(super) events: Vec<Event>,
    pub(super) initiations: Vec<Initiation>,
    pub(super) traps: Vec<String>,
    pub(super) moves: usize,
    /// Outer addresses of Child SAs that moved.
    pub(super) paths: BTreeMap<ChildId, Path>,
    pub(super) keepalives: usize,
    out: VecDeque<Output>,
}

/// Both, and the wire.
pub(super) struct Pair {
    pub(super) now: Instant,
    pub(super) hosts: [Host; 2],
    pub(super) wire: Vec<InFlight>,
    /// Every outbound SA in use should always have its counterpart at the peer.
    pub(super) strict: bool,
}

pub(super) fn ts(text: &str) -> TrafficSelector {
    let (addr, bits) = text.split_once('/').expect("a network");
    let addrs = AddrRange::from_cidr(addr.parse().expect("an address"), bits.parse().expect("bits")).expect("fits");
    TrafficSelector { addrs, proto: None, ports: PortRange::ANY }
}

fn ts_config(text: &str) -> TsConfig {
    if text == "dynamic" {
        return TsConfig { addrs: None, proto: None, ports: PortRange::ANY };
    }
    TsConfig { addrs: Some(ts(text).addrs), proto: None, ports: PortRange::ANY }
}

pub(super) fn aes() -> &'static EncAlg {
    EncAlg::by_name("aes128gcm16").expect("in the table")
}

pub(super) fn esp() -> ChildProposal {
    ChildProposal {
        protocol: ChildProtocol::Esp,
        enc: vec![aes()],
        integ: vec![],
        ke: vec![],
        additional: Default::default(),
        sn: vec![SequenceNumbers::Bits32],
        sskdf: vec![],
    }
}

pub(super) fn child_config(name: &str, local: &str, remote: &str) -> ChildConfig {
    ChildConfig {
        proposals: vec![esp()],
        local_ts: vec![ts_config(local)],
        remote_ts: vec![ts_config(remote)],
        ..ChildConfig::new(name)
    }
}

pub(super) fn connection(children: Vec<ChildConfig>) -> Connection {
    Connection {
        proposals: vec![IkeProposal {
            enc: vec![aes()],
            integ: vec![],
            prf: vec![Prf::from_name("prfsha256").expect("in the table")],
            ke: vec![KeMethod::from_name("x25519").expect("in the table")],
            additional: Default::default(),
        }],
        children: children.into_iter().map(Arc::new).collect(),
        ..Connection::new("t")
    }
}

fn settings() -> Settings {
    Settings {
        cookie_threshold: 30,
        cookie_threshold_per_address: 3,
        block_threshold: 5,
        half_open_max: 1000,
        half_open_timeout: Duration::from_secs(30),
        ike_sas_max: 1000,
        ike_sas_per_identity_max: 1000,
        keepalive: Duration::from_secs(20),
        fragment_size: 1280,
        reassembly_max: 65536,
        old_inbound: Duration::from_secs(5),
        aggressive_mode_psk: false,
        cisco_unity: false,
        allow_legacy: false,
        log_secrets: false,
        code_points: Default::default(),
    }
}

fn address(host: usize) -> SocketAddr {
    SocketAddr::new(format!("192.0.2.{}", host + 1).parse().expect("an address"), 500)
}

impl Host {
    fn new(index: usize, seed: u64, connection: Connection) -> Self {
        Self {
            settings: settings(),
            names: Names::default(),
            pools: Pools::default(),
            rng: ChaCha8Rng::seed_from_u64(seed * 2 + index as u64),
            connections: vec![Arc::new(connection)],
            sas: Vec::new(),
            plane: BTreeMap::new(),
            events: Vec::new(),
            initiations: Vec::new(),
            traps: Vec::new(),
            moves: 0,
            paths: BTreeMap::new(),
            keepalives: 0,
            out: VecDeque::new(),
        }
    }

    /// One step on every IKE SA, and what follows of it.
    fn step(&mut self, now: Instant, run: impl FnOnce(&mut Context<'_>, &mut Vec<Established>)) {
        let mut born = Vec::new();
        let no_routes: crate::context::Sources = Box::new(|_| None);
        let no_networks: crate::context::Owned = Box::new(|_| None);
        let mut ctx = Context {
            now,
            rng: &mut self.rng,
            settings: &self.settings,
            connections: &self.connections,
            pools: &mut self.pools,
            out: &mut self.out,
            names: &mut self.names,
            sources: &no_routes,
            owned: &no_networks,
            born: &mut born,
        };
        run(&mut ctx, &mut self.sas);
        loop {
            for sa in &mut self.sas {
                sa.start_next(&mut ctx);
            }
            if ctx.born.is_empty() {
                break;
            }
            for birth in std::mem::take(ctx.born) {
                match birth {
                    NewSa::Rekeyed(sa) => self.sas.push(*sa),
                    NewSa::Initiate(initiation) => self.initiations.push(initiation),
                }
            }
        }
        self.sas.retain(|sa| sa.ending != Ending::Ended);
    }

    /// Carries outputs out; returns the datagrams that it would send.
    fn drain(&mut self, now: Instant) -> Vec<(SocketAddr, SocketAddr, Vec<u8>)> {
        let mut sent = Vec::new();
        for output in self.out.drain(..) {
            match output {
                Output::Transmit(transmit) => sent.push((transmit.local, transmit.remote, transmit.datagram)),
                Output::Install(sa) => {
                    if let Some(old) = sa.replaces.filter(|_| sa.outbound_now) {
                        self.plane.entry(old).and_modify(|old| old.used = false);
                    }
                    let installed = Installed {
                        spi_in: sa.inbound.spi.get(),
                        spi_out: sa.outbound.spi.get(),
                        key_in: sa.inbound.enc,
                        key_out: sa.outbound.enc,
                        cpu: sa.cpu,
                        original: sa.original,
                        mode: sa.mode,
                        suite: sa.suite,
                        ts: (sa.local_ts, sa.remote_ts),
                        limits: (sa.peer_max_sub_sa_id, sa.peer_max_crypt_offset),
                        whole_only: sa.peer_refuses_fragments,
                        used: sa.outbound_now,
                        replaces: sa.replaces,
                        fresh: sa.replaces.is_none() && !sa.initiator,
                        removed: None,
                    };
                    assert!(self.plane.insert(sa.id, installed).is_none(), "installed twice");
                }
                Output::UseOutbound(id) => {
                    let sa = self.plane.get_mut(&id).expect("installed before");
                    assert!(sa.removed.is_none() && !sa.used, "used once, while it is there");
                    sa.used = true;
                    if let Some(old) = sa.replaces {
                        self.plane.entry(old).and_modify(|old| old.used = false);
                    }
                }
                Output::Remove(id, after) => {
                    let sa = self.plane.get_mut(&id).expect("installed before");
                    assert!(sa.removed.is_none(), "removed once");
                    (sa.removed, sa.used) = (Some(now + after), false);
                }
                Output::Move(id, path) => {
                    self.moves += 1;
                    self.paths.insert(id, path);
                }
                Output::Keepalive(_) => self.keepalives += 1,
                Output::Trap(_, child, on) => self.traps.push(format!("{} {on}", child.name)),
                Output::Event(event) => self.events.push(event),
                _ => (),
            }
        }
        self.plane.retain(|_, sa| sa.removed.is_none_or(|at| at > now));
        sent
    }

    /// The IKE SA that goes on.
    pub(super) fn live(&self) -> Option<&Established> {
        self.sas.iter().find(|sa| sa.ending == Ending::No)
    }

    /// Inbound SPIs of Child SAs through which packets go out, in order.
    pub(super) fn used(&self) -> Vec<(u32, u32)> {
        let mut used: Vec<(u32, u32)> =
            self.plane.values().filter(|sa| sa.used).map(|sa| (sa.spi_in, sa.spi_out)).collect();
        used.sort_unstable();
        used
    }

    pub(super) fn count(&self, counter: &str) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Count(name) if *name == counter)).count()
    }
}

impl Pair {
    /// Two hosts, an IKE SA and, for each section of A's connection, a Child SA. B's sections
    /// mirror A's.
    pub(super) fn new(seed: u64, connection: Connection) -> Self {
        let mut mirrored = connection.clone();
        for child in &mut mirrored.children {
            let child = Arc::make_mut(child);
            std::mem::swap(&mut child.local_ts, &mut child.remote_ts);
        }
        Self::between(seed, connection, mirrored)
    }

    /// Likewise with a separate configuration for each.
    pub(super) fn between(seed: u64, a: Connection, b: Connection) -> Self {
        let now = Instant::now();
        let hosts = [Host::new(A, seed, a), Host::new(B, seed, b)];
        let mut pair = Self { now, hosts, wire: Vec::new(), strict: true };
        for host in [A, B] {
            pair.establish(host);
        }
        pair
    }

    fn establish(&mut self, index: usize) {
        let (now, host) = (self.now, &mut self.hosts[index]);
        let connection = host.connections[0].clone();
        let (role, peer) = if index == A { (Role::Initiator, B) } else { (Role::Responder, A) };
        let sk = |byte: u8| SkKey::new(SkSuite::new(aes(), None).expect("AEAD"), &[byte; 20], &[]).expect("key");
        let (seal, open) = if index == A { (sk(1), sk(2)) } else { (sk(2), sk(1)) };
        let spis = IkeSpis::new(IkeSpi([0xa; 8]), IkeSpi([0xb; 8]));
        let support = PeerSupport {
            fragmentation: true,
            intermediate: true,
            mobike: connection.mobike,
            ..PeerSupport::default()
        };
        let proposal = &connection.proposals[0];
        let identity = |host: usize| Identity {
            kind: wire::ike::IdType::FQDN,
            data: if host == A { b"a.example".to_vec() } else { b"b.example".to_vec() },
        };
        let keys = SkKeys { seal, open };
        let mut sa = Established {
            id: IkeId(1),
            connection: connection.clone(),
            role,
            spis,
            path: Path { local: address(index), remote: address(peer), encap: false },
            suite: IkeSuite {
                enc: aes(),
                integ: None,
                prf: proposal.prf[0],
                ke: proposal.ke[0],
                additional: Vec::new(),
                slots: Vec::new(),
            },
            keys: DeriveKeys {
                sk_d: Secret::new(vec![3; 32]),
                sk_pi: Secret::new(vec![4; 32]),
                sk_pr: Secret::new(vec![5; 32]),
            },
            exchanges: Exchanges::new(SaIds { id: IkeId(1), role, spis }, &connection, &support, keys, 2),
            local_id: identity(index),
            remote_id: identity(peer),
            eap_name: None,
            peer: support,
            virtual_local: Vec::new(),
            virtual_remote: Vec::new(),
            children: Vec::new(),
            tasks: Tasks::new(role),
            established: now,
            rekey_at: None,
            reauth_at: None,
            certificates_end: None,
            over_at: None,
            last_received: now,
            keepalive_at: None,
            nat: (false, false),
            ppk: false,
            ending: Ending::No,
        };
        for (number, config) in connection.children.iter().enumerate() {
            sa.children.push(first_child(host, config, index, number as u32, now));
        }
        host.step(now, |ctx, sas| {
            sa.begin(ctx);
            sas.push(sa);
        });
    }

    /// A step of a host, then its datagrams on the wire and the invariant checked.
    pub(super) fn act(&mut self, host: usize, run: impl FnOnce(&mut Context<'_>, &mut Established)) {
        self.step(host, |ctx, sas| {
            if let Some(sa) = sas.iter_mut().find(|sa| sa.ending == Ending::No) {
                run(ctx, sa);
            }
        });
    }

    fn step(&mut self, host: usize, run: impl FnOnce(&mut Context<'_>, &mut Vec<Established>)) {
        self.hosts[host].step(self.now, run);
        for (from, at, bytes) in self.hosts[host].drain(self.now) {
            assert!(Header::parse(&bytes).is_ok(), "what goes out parses");
            self.wire.push(InFlight { to: 1 - host, from, at, bytes });
        }
        if self.strict {
            self.check_twins();
        }
    }

    /// Delivers datagram `index` of the wire.
    pub(super) fn deliver(&mut self, index: usize) {
        let flying = self.wire.remove(index);
        self.receive(&flying);
    }

    pub(super) fn receive(&mut self, flying: &InFlight) {
        let (from, bytes) = (Path::of_datagram(flying.at, flying.from), &flying.bytes);
        self.step(flying.to, |ctx, sas| {
            let (header, _) = Header::parse(bytes).expect("sent by us");
            let spis = IkeSpis::of(header);
            let Some(sa) = sas.iter_mut().find(|sa| sa.spis == spis) else { return };
            match sa.exchanges.receive(ctx, &from, header, bytes, |_| true) {
                Arrival::Nothing => (),
                Arrival::Request(plain) => {
                    let inner: Inner = sa.handle_request(ctx, &from, &plain);
                    assert_ne!(inner.first, PayloadType::SK);
                    sa.exchanges.respond(ctx, &from, (plain.exchange, plain.message_id), &inner);
                }
                Arrival::Response(plain) => sa.handle_response(ctx, &from, &plain),
            }
        });
    }

    /// The next time at which a host has something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let of = |sa: &Established| [sa.deadline(), sa.exchanges.deadline()].into_iter().flatten().min();
        self.hosts.iter().flat_map(|host| &host.sas).filter_map(of).min()
    }

    /// Lets time pass until then.
    pub(super) fn sleep_until(&mut self, at: Instant) {
        self.now = self.now.max(at);
        for host in [A, B] {
            self.step(host, |ctx, sas| {
                for sa in sas.iter_mut() {
                    let path = sa.path;
                    if sa.exchanges.handle_timeout(ctx, &path) == Timeout::GaveUp {
                        sa.gave_up(ctx);
                    }
                    sa.handle_timeout(ctx);
                }
            });
        }
    }

    /// Delivers everything in order, without loss, until nothing happens for `quiet`.
    pub(super) fn run(&mut self, quiet: Duration) {
        let end = self.now + quiet;
        for _ in 0..100_000 {
            if !self.wire.is_empty() {
                self.deliver(0);
                continue;
            }
            match self.next_deadline().filter(|at| *at <= end) {
                Some(at) => self.sleep_until(at),
                None => return self.sleep_until(end),
            }
        }
        panic!("it does not come to rest");
    }

    fn check_twins(&self) {
        for (host, peer) in [(A, B), (B, A)] {
            for (id, sa) in self.hosts[host].plane.iter().filter(|(_, sa)| sa.used) {
                let twin = self.hosts[peer].plane.values().find(|twin| twin.spi_in == sa.spi_out);
                if sa.fresh && twin.is_none() {
                    continue;
                }
                let twin = twin.unwrap_or_else(|| panic!("host {host}: no inbound twin of {id:?} {:08x}", sa.spi_out));
                assert!(twin.key_in == sa.key_out, "host {host}: another key at the twin of {id:?}");
            }
        }
    }

    /// At rest both ends have the same: one IKE SA, and these Child SAs, each used in both
    /// directions.
    pub(super) fn check_at_rest(&self, children: usize) {
        let [a, b] = &self.hosts;
        assert_eq!(a.live().map(|sa| sa.spis), b.live().map(|sa| sa.spis), "one IKE SA at both ends");
        let twins: Vec<(u32, u32)> = {
            let mut twins: Vec<_> = b.used().into_iter().map(|(spi_in, spi_out)| (spi_out, spi_in)).collect();
            twins.sort_unstable();
            twins
        };
        assert_eq!(a.used(), twins, "the same Child SAs at both ends");
        assert_eq!(a.used().len(), children, "as many as there should be");
        for host in &self.hosts {
            let known = host.live().map_or(0, |sa| sa.children.len());
            assert_eq!((known, host.plane.len()), (children, children), "no Child SA is left over");
            assert_eq!(host.names.spis_in_use(), children, "every SPI that is not used was given back");
            assert!(host.live().is_none_or(|sa| sa.children.iter().all(|child| child.state == ChildState::Installed)));
            assert!(host.live().is_none_or(|sa| sa.tasks.is_empty()));
        }
    }
}

fn first_child(host: &mut Host, config: &Arc<ChildConfig>, index: usize, number: u32, now: Instant) -> Child {
    let id = host.names.child();
    let spis = [0x1000 + number, 0x2000 + number].map(|spi| wire::Spi::try_from(spi).expect("not reserved"));
    let (spi_in, spi_out) = if index == A { (spis[0], spis[1]) } else { (spis[1], spis[0]) };
    host.names.claim_spi(spi_in, id);
    let key = |spi: wire::Spi| Secret::new(spi.get().to_be_bytes().to_vec());
    let suite = ChildSuite {
        protocol: config.proposals[0].protocol,
        enc: Some(aes()),
        integ: None,
        ke: None,
        additional: vec![],
        slots: vec![],
        sn: config.proposals[0].sn[0],
        sskdf: None,
    };
    let outer = |host: usize| address(host).ip();
    let resolve = |ts: &TsConfig, dynamic: IpAddr| ts.resolve(dynamic);
    let local_ts: Vec<_> = config.local_ts.iter().map(|ts| resolve(ts, outer(index))).collect();
    let remote_ts: Vec<_> = config.remote_ts.iter().map(|ts| resolve(ts, outer(1 - index))).collect();
    let installed = Installed {
        spi_in: spi_in.get(),
        spi_out: spi_out.get(),
        key_in: key(spi_in),
        key_out: key(spi_out),
        cpu: None,
        original: None,
        mode: config.mode,
        suite: suite.clone(),
        ts: (local_ts.clone(), remote_ts.clone()),
        limits: (None, None),
        whole_only: false,
        used: true,
        replaces: None,
        fresh: false,
        removed: None,
    };
    host.plane.insert(id, installed);
    Child {
        id,
        config: config.clone(),
        suite,
        mode: config.mode,
        spi_in,
        spi_out,
        local_ts,
        remote_ts,
        cpu: None,
        per_cpu: config.per_cpu_sas != PerCpuSas::No,
        installed: now,
        rekey_at: None,
        expire_at: None,
        used: now,
        outbound: true,
        removed: false,
        state: ChildState::Installed,
        replaces: None,
    }
}

/// Random numbers for schedules, apart from those of the hosts.
pub(super) fn chance(seed: u64) -> impl FnMut(u32) -> u32 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
    move |below| rng.next_u32() % below
}
