//! A whole gateway under simulated time: configuration text, datagrams and packets in, datagrams
//! and packets out. For `testing/sim`.
//!
//! Everything above the system calls is that of the daemon: the parser, credentials, IKE, the
//! control socket, the data-plane manager, the packet path of one worker and the rules of
//! the guard. Sockets, kernel, threads and clock are models; [`Gateway`] is made by
//! [`Gateway::start`] and changes only when one of its functions is called.

mod models;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use credentials::Credentials;
use dataplane::{Batch, Publisher, Reader, Worker, WorkerConfig, bump};
use ike::IkeState;
use ike::hosts::ResolveError;
use ports::Runner;
use vici::ClientId;
use vici::message::Message;
use vici::names::Command;
use vici::packet::{Kind, Packet as ViciPacket};
use vici::server::Detached;
use wire::IpPacket;
use zeroize::Zeroizing;

use crate::config::problem::{Problems, SourceFile};
use crate::config::{Config, Outside, Purpose, check, syntax};
use crate::control::{Control, ControlBackend, Loaded};
use crate::keyed::KeyedSide;
use crate::keying::names::Names;
use crate::keying::{Keying, Random, Surroundings};
use crate::plane::{Plane, PlaneBuilder};
use crate::resolver::Servers;
use crate::scheduling::Scheduling;
use crate::state::Store;
use crate::up::Attached;
use crate::updown::Updown;
use crate::waker::Waker;
pub use models::Kernel;
use models::{ModelGuard, ModelHost, ModelRoutes, ModelTransport};

/// Time since 1970 for certificates; secrets have no end.
const WALL_CLOCK: Duration = Duration::from_secs(1_800_000_000);
/// Largest packet of a simulation, in bytes.
const PACKET_BYTES: usize = 2048;
/// Packets of a batch.
const BATCH: usize = 16;
/// Interval of the control loop while something happens, and when nothing does.
const TICK: Duration = Duration::from_millis(50);
const IDLE_TICK: Duration = Duration::from_secs(5);
/// Time after an event during which the control loop runs at [`TICK`].
const BUSY: Duration = Duration::from_millis(600);

/// What leaves a gateway on its protected side.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outgoing {
    /// A datagram of IKE, without the non-ESP marker.
    Ike {
        /// Source.
        from: SocketAddr,
        /// Destination.
        to: SocketAddr,
        /// Message.
        message: Vec<u8>,
        /// Inbound SAs in the snapshot that packets met when the message was sent.
        inbound_sas: usize,
    },
    /// An IP packet of the packet path.
    Packet(Vec<u8>),
}

/// Way of a packet from this side of the gateway.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RouteDecision {
    /// Routes led it into the TUN device: protected, held or dropped.
    Device,
    /// It left in clear text, past the gateway.
    Clear,
    /// The guard dropped it.
    Guarded,
}

/// One Child SA.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ChildState {
    /// Section.
    pub name: String,
    /// SPIs in and out.
    pub spis: (u32, u32),
    /// State as vici names it.
    pub state: &'static str,
}

/// One IKE SA.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct IkeSaState {
    /// Connection.
    pub connection: String,
    /// SPIs of initiator and responder.
    pub spis: String,
    /// It is established, and nothing is under way.
    pub rests: bool,
    /// Its Child SAs.
    pub children: Vec<ChildState>,
}

/// Table sizes with the number of Child SAs and of keys.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Sizes {
    /// Tables of the endpoint of IKE.
    pub endpoint: Vec<(&'static str, usize)>,
    /// Child SAs in the data plane, those that only receive included.
    pub children: usize,
    /// Keys of packets.
    pub keys: usize,
    /// Of them, keys that no SA names.
    pub orphaned_keys: usize,
    /// Policies.
    pub policies: usize,
}

/// A gateway.
pub struct Gateway {
    control: Control,
    server: Detached,
    client: ClientId,
    keyed: KeyedSide,
    plane: Plane,
    worker: Worker,
    tables: Reader,
    batch: Batch,
    replies: Batch,
    kernel: Kernel,
    /// Time 0 of the worker's clock.
    start: Instant,
    /// The control loop runs often until then.
    busy_until: Instant,
}

impl Gateway {
    /// Starts a gateway with the text of a swanctl.conf, on a host with that kernel. `seed` decides
    /// everything random.
    ///
    /// # Errors
    /// Problems of the configuration.
    pub fn start(now: Instant, text: &str, kernel: &Kernel, seed: u64) -> anyhow::Result<Self> {
        let config = read(text)?;
        let host = Arc::new(ModelHost(kernel.clone()));
        let random = Random::of(models::random(seed));
        let worker_config = WorkerConfig {
            engine: config.gateway.engine(),
            batch: BATCH,
            packet_bytes: PACKET_BYTES,
            flow_cache: 16,
            derived_keys: 2 * BATCH,
            reassembly: 1,
            audit_ring: 64,
            held: 16,
            ..WorkerConfig::default()
        };
        let builder = PlaneBuilder::build(now, &config, &*host, Store::unused())?;
        let publisher: Publisher = builder.publisher(&config)?;
        let prepared = builder.keep_numbers(now, &config)?;
        let (worker, reports) = Worker::new(worker_config);
        let runner = Runner::detached(vec![(worker.counters(), reports)], publisher.clone());
        let attached = Attached {
            host: host.clone(),
            runner: runner?,
            scheduling: Scheduling::default(),
            routes: Some(Box::new(ModelRoutes::new(kernel.clone()))),
            guard: Some(Box::new(ModelGuard::new(kernel.clone(), &config))),
            supers: Vec::new(),
        };
        let (tables, publisher_tables) = (publisher.reader(), publisher.reader());
        let mut plane = Plane::new(now, prepared, publisher, attached, config.clone());
        let credentials = Credentials::immediate(Arc::new(|| WALL_CLOCK));
        let surroundings = Surroundings {
            host: host.clone(),
            transport: Box::new(ModelTransport { kernel: kernel.clone(), tables: Mutex::new(publisher_tables) }),
            credentials,
            names: Names::immediate(|_| Err(ResolveError::Busy)),
            servers: Servers::start(None, &config.gateway.tun)?,
            updown: Updown::start(Path::new("sim.conf"), &config)?,
            waker: Waker::new()?,
            random,
        };
        let keying = Keying::new(now, &config, surroundings)?;
        let psp = crate::psp_keys::service::fuzzing::detached(now);
        let loaded = Loaded::new(config.keyed, PathBuf::from("/nonexistent"));
        let mut keyed = KeyedSide::new(now, host, (keying, psp), loaded);
        let (mut server, requests) = Detached::new()?;
        let client = server.connect();
        let mut control = Control::with((now, SystemTime::UNIX_EPOCH), None, requests, server.handle());
        keyed.apply(now, &mut plane);
        keyed.work(now, &mut plane, &mut control, None);
        plane.set_routes(now)?;
        Ok(Self {
            control,
            server,
            client,
            keyed,
            plane,
            worker,
            tables,
            batch: Batch::with_reserve(BATCH, 2 * BATCH, PACKET_BYTES),
            replies: Batch::new(BATCH, PACKET_BYTES),
            kernel: kernel.clone(),
            start: now,
            busy_until: now + BUSY,
        })
    }

    /// Reads another configuration, as after SIGHUP.
    ///
    /// # Errors
    /// Problems of the configuration; the one before stays in force.
    pub fn reload(&mut self, now: Instant, text: &str) -> anyhow::Result<()> {
        self.reload_with(now, text, |_| ())
    }

    /// [`Gateway::reload`] with `meanwhile` before IKE processes what was loaded: packets do not
    /// wait for the control thread.
    ///
    /// # Errors
    /// As of [`Gateway::reload`].
    pub fn reload_with(&mut self, now: Instant, text: &str, meanwhile: impl FnOnce(&mut Self)) -> anyhow::Result<()> {
        let config = read(text)?;
        let sections = config.keyed.clone();
        self.plane.reload(now, config)?;
        self.keyed.begin_reload(now, sections, &mut self.plane);
        meanwhile(self);
        self.keyed.work(now, &mut self.plane, &mut self.control, None);
        self.busy_until = now + BUSY;
        Ok(())
    }

    /// A datagram of IKE arrives, without the non-ESP marker. [`Gateway::turn`] has to follow.
    pub fn receive_ike(&mut self, now: Instant, local: SocketAddr, from: SocketAddr, message: Vec<u8>) {
        self.kernel.push(local, from, message);
        self.busy_until = now + BUSY;
    }

    /// An IP packet arrives that the packet path receives; returns the packets that leave for this
    /// side.
    pub fn receive_packet(&mut self, now: Instant, packet: &[u8]) -> Vec<Vec<u8>> {
        self.tick(now);
        self.busy_until = now + BUSY;
        self.batch.push_with(|slot| slot.set(packet));
        let tables = self.tables.load();
        self.worker.inbound(tables, &mut self.batch);
        // One packet has fewer inner packets than the batch has room.
        self.worker.unpack(tables, &mut self.batch);
        let delivered = self.batch.packets().iter().map(|packet| packet.bytes().to_vec()).collect();
        self.batch.clear();
        delivered
    }

    /// A packet from this side that leaves for elsewhere.
    pub fn send_inner(&mut self, now: Instant, packet: &[u8]) -> RouteDecision {
        let Ok(ip) = IpPacket::parse(packet) else { return RouteDecision::Guarded };
        if self.kernel.leads_into_device(ip.dst) {
            self.tick(now);
            self.busy_until = now + BUSY;
            self.batch.push_with(|slot| slot.set(packet));
            self.outbound();
            return RouteDecision::Device;
        }
        let transport = packet.get(ip.upper_at..).unwrap_or_default();
        let passes = self.kernel.lets_clear_out(ip.src, ip.dst, ip.upper.0, transport);
        if passes { RouteDecision::Clear } else { RouteDecision::Guarded }
    }

    fn outbound(&mut self) {
        self.worker.outbound(self.tables.load(), &mut self.batch, &mut self.replies);
        for packet in self.batch.packets() {
            self.kernel.send(packet.bytes().to_vec());
        }
        self.batch.clear();
        self.replies.clear();
    }

    /// Sets the clock of the worker.
    fn tick(&mut self, now: Instant) {
        self.worker.tick((now - self.start).as_millis() as u64);
        bump(&self.worker.counters().turns, 1);
    }

    /// One iteration of the control loop, and of the worker. To be called when
    /// [`Gateway::deadline`] has come.
    pub fn turn(&mut self, now: Instant) {
        self.discard_events();
        let Self { control, keyed, plane, .. } = self;
        plane.tick(now);
        plane.audits(usize::MAX);
        control.turn(now, ControlBackend::Keyed(keyed.context(now, plane)));
        keyed.work(now, plane, control, None);
        control.release();
        self.tick(now);
        self.worker.release(self.tables.load(), &mut self.batch);
        if !self.batch.is_empty() {
            self.outbound();
        }
        if self.plane.negotiated.children().any(|child| child.until.is_some()) || self.worker.awaits_peer_traffic() {
            self.busy_until = self.busy_until.max(now + TICK);
        }
    }

    /// Time of the next turn, `now` at the earliest.
    pub fn deadline(&mut self, now: Instant) -> Instant {
        if self.kernel.has_input() || self.worker.take_requested() {
            return now;
        }
        let tick = if now < self.busy_until { TICK } else { IDLE_TICK };
        self.keyed.keying.endpoint.deadline().map_or(now + tick, |at| at.min(now + tick)).max(now)
    }

    /// Executes a command of the control socket; its elements are texts. Returns why it was
    /// refused, if it was at once.
    pub fn command(&mut self, now: Instant, command: Command, elements: &[(&str, &str)]) -> Option<String> {
        let mut message = Message::new();
        for (key, value) in elements {
            message.set(key, *value);
        }
        // A client has one command at a time.
        if self.server.is_busy(self.client) {
            self.server.leave(self.client);
            self.client = self.server.connect();
        }
        self.server.request(self.client, command, message);
        self.turn(now);
        let mut refused = None;
        for segment in self.server.read(self.client) {
            let packet = ViciPacket::parse(&segment[4..]).ok().filter(|packet| packet.kind == Kind::Response);
            let reply = packet.and_then(|packet| Message::parse(packet.body).ok());
            refused = refused.or(reply.filter(|reply| reply.text("success") == Some("no")));
        }
        self.busy_until = now + BUSY;
        refused.map(|reply| reply.text("errmsg").unwrap_or_default().to_owned())
    }

    /// Discards events of the control socket that nothing reads.
    fn discard_events(&mut self) {
        let _ = self.server.read(self.client);
    }

    /// Ends the gateway in order: its peers receive a notice, and what is protected stays closed if
    /// the configuration requires it.
    pub fn stop(mut self, now: Instant) {
        if self.plane.config.gateway.stays_closed {
            self.plane.freeze(now);
        }
        self.keyed.shutdown(now, &mut self.plane);
        self.kernel.close_sockets();
        // A runner without threads cannot fail.
        let _ = self.plane.stop(now);
    }

    /// Ends the process without any notice or clean-up.
    pub fn kill(self) {
        let kernel = self.kernel.clone();
        kernel.set_killed(true);
        drop(self);
        kernel.set_killed(false);
        kernel.close_sockets();
    }

    /// IKE SAs that are established, in the order of their names.
    pub fn ike_sas(&self) -> Vec<IkeSaState> {
        let views = self.keyed.keying.endpoint.ike_sas().filter(|view| view.established.is_some());
        let of = |view: ike::IkeView<'_>| IkeSaState {
            connection: view.connection.map(|connection| connection.name.clone()).unwrap_or_default(),
            spis: format!("{:?}", view.spis),
            rests: view.state == IkeState::Established && view.tasks_active.is_none() && view.tasks_queued.is_empty(),
            children: view
                .children
                .iter()
                .map(|child| ChildState {
                    name: child.config.name.clone(),
                    spis: (child.spi_in.get(), child.spi_out.get()),
                    state: child.state,
                })
                .collect(),
        };
        views.map(of).collect()
    }

    /// Child SAs of the data plane that send: connection, section, SPIs in and out.
    pub fn installed(&self) -> Vec<(String, ChildState)> {
        let sending = self.plane.negotiated.children().filter(|child| child.until.is_none());
        let of = |child: &crate::negotiated::Child| {
            let spis = (child.inbound.spi, child.outbound.spi);
            let state = if child.sending { "sends" } else { "receives" };
            (child.connection.name.clone(), ChildState { name: child.config.name.clone(), spis, state })
        };
        sending.map(of).collect()
    }

    /// Child SAs that only receive.
    pub fn ending(&self) -> usize {
        self.plane.negotiated.children().filter(|child| child.until.is_some()).count()
    }

    /// Sizes of tables.
    pub fn sizes(&self) -> Sizes {
        let children = || self.plane.negotiated.children();
        let named = children().map(crate::negotiated::Child::keys).sum();
        let keys = self.plane.key_count();
        Sizes {
            endpoint: self.keyed.keying.endpoint.tables(),
            children: children().count(),
            keys,
            orphaned_keys: keys.saturating_sub(named),
            policies: self.plane.negotiated.policies().len(),
        }
    }

    /// Steps that only a defect can cause, since the start.
    pub fn internal_errors(&self) -> u64 {
        self.control.counter("ike_internal_errors")
    }

    /// Packets dropped by reason, for reports.
    pub fn drops(&self) -> Vec<(&'static str, u64)> {
        let counters = self.worker.counters();
        let counts = ipsec::DropReason::ALL
            .iter()
            .map(|drop| (drop.key(), counters.drops[*drop as usize].load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

/// Reads and checks a configuration. Files that it names are absent.
fn read(text: &str) -> Result<Config, Problems> {
    let file = SourceFile { name: "sim.conf".into(), text: Zeroizing::new(text.to_owned()) };
    let root = syntax::parse(file, Path::new("."))?;
    check(&root, Purpose::Gateway, &Outside::nothing())
}
