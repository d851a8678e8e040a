//! IKE at work: sockets, credentials and the packet side around one [`ike::Endpoint`].
//!
//! One thread, the control side, owns all of it. Each [`Keying::turn`] takes what has arrived, lets the
//! endpoint think, and carries out what it wants; what packets are to see becomes visible once at the end.

mod names;
mod sockets;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ike::config::{ChildConfig, ChildMode, Connection, PoolConfig};
use ike::output::{Event, Level, Output, Subsystem, Transmit};
use ike::{Endpoint, Settings};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::time::Timespec;

use crate::config::{self, Config, Named};
use crate::credentials::Credentials;
use crate::keylog::KeyLog;
use crate::plane::Plane;
use crate::resolver::Servers;
use names::{Found, Names};
use sockets::Sockets;

/// How often the packet side is asked what it has seen.
const LOOK: Duration = Duration::from_millis(500);

/// Randomness of the operating system.
pub(crate) struct SystemRandom;

impl rand_core::RngCore for SystemRandom {
    fn next_u32(&mut self) -> u32 {
        rand_core::impls::next_u32_via_fill(self)
    }

    fn next_u64(&mut self) -> u64 {
        rand_core::impls::next_u64_via_fill(self)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        crypto::random(bytes);
    }
}

impl rand_core::CryptoRng for SystemRandom {}

/// Wakes the control thread from another one.
#[derive(Clone)]
pub(crate) struct Bell(Arc<OwnedFd>);

impl Bell {
    /// A bell that nobody has rung.
    ///
    /// # Errors
    /// The operating system has no descriptor left.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Rings; never blocks.
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}

/// IKE and what it needs.
pub(crate) struct Keying {
    pub(crate) endpoint: Endpoint<SystemRandom>,
    pub(crate) credentials: Credentials,
    sockets: Sockets,
    bell: Bell,
    look_at: Instant,
    /// Datagrams that could not be sent since it was last told.
    unsent: u64,
    unsent_told: Instant,
    /// Where keys are written for Wireshark.
    key_log: Option<KeyLog>,
    /// Name servers that peers gave.
    servers: Servers,
    names: Names,
    /// Connections whose names have addresses now, for whoever loads them.
    pub(crate) resolved: Vec<(Box<Named>, Arc<Connection>)>,
}

impl Keying {
    /// Opens the sockets; nothing is loaded yet.
    ///
    /// # Errors
    /// A port that is taken, a missing privilege.
    pub(crate) fn open(config: &Config, credentials: Credentials, bell: Bell, servers: Servers) -> io::Result<Self> {
        let gateway = &config.gateway;
        let sockets = Sockets::open(gateway.ike_port, gateway.code_points.nat_t_port, gateway.fwmark)?;
        let key_log = gateway.log_secrets.as_deref().map(KeyLog::open).transpose()?;
        let settings = Settings {
            allow_legacy: gateway.allow_legacy,
            log_secrets: key_log.is_some(),
            code_points: gateway.code_points,
            ..Settings::default()
        };
        let now = Instant::now();
        let ring = bell.clone();
        let names = Names::spawn(config::resolve_name, move || ring.ring())?;
        let endpoint = Endpoint::new(settings, SystemRandom);
        Ok(Self {
            endpoint,
            credentials,
            sockets,
            bell,
            look_at: now,
            unsent: 0,
            unsent_told: now,
            key_log,
            servers,
            names,
            resolved: Vec::new(),
        })
    }

    /// Puts connections and pools in force: what did not change goes on.
    pub(crate) fn load(&mut self, connections: Vec<Arc<Connection>>, pools: Vec<PoolConfig>, plane: &mut Plane) {
        let now = Instant::now();
        self.endpoint.load_pools(pools);
        let before: Vec<Arc<Connection>> = self.endpoint.connections().to_vec();
        for (connection, child) in sections(&before) {
            let stays = sections(&connections).any(|(c, s)| c.name == connection.name && s == child);
            if !stays {
                plane.stand(connection, child, false, false, None);
            }
        }
        for (connection, child) in sections(&connections) {
            let always = matches!(child.mode, ChildMode::Pass | ChildMode::Drop);
            // There is to be an SA: until there is, and when it is lost, nothing leaves in the clear.
            let closed = child.start_action.start && !child.start_action.trap;
            if always || closed {
                plane.stand(connection, child, true, false, dynamic(connection));
            }
        }
        self.endpoint.load(now, connections);
    }

    /// SPIs that SAs of the file receive with now are not for Child SAs.
    pub(crate) fn reserve_spis(&mut self, config: &Config) {
        let received = config.sas.iter().filter_map(|sa| sa.inbound.as_ref());
        self.endpoint.reserve_spis(received.filter_map(|half| half.spi.try_into().ok()));
    }

    /// These connections wait for an address of their peer, or of this host.
    pub(crate) fn want_addresses(&mut self, connections: &[Named]) {
        self.names.want(Instant::now(), connections);
    }

    /// Certificates changed: what connections trust is asked for anew.
    pub(crate) fn credentials_changed(&mut self) {
        self.endpoint.credentials_changed(Instant::now());
    }

    /// Tells IKE of the addresses of this host.
    pub(crate) fn local_addresses(&mut self, addresses: &[IpAddr]) {
        self.endpoint.local_addresses(Instant::now(), addresses);
    }

    /// Ends every IKE SA; each peer is told.
    pub(crate) fn shutdown(&mut self, plane: &mut Plane, mut tell: impl FnMut(Event)) {
        self.endpoint.shutdown(Instant::now());
        self.carry_out(plane, &mut tell);
    }

    /// Waits until something arrives here or at `others`, the bell rings, a time of IKE comes or `longest` has passed.
    pub(crate) fn wait(&self, others: &[BorrowedFd<'_>], longest: Duration) {
        let until =
            self.endpoint.deadline().map_or(longest, |at| at.saturating_duration_since(Instant::now()).min(longest));
        let timeout = Timespec { tv_sec: until.as_secs() as i64, tv_nsec: until.subsec_nanos().into() };
        let mut fds: Vec<PollFd<'_>> =
            self.sockets.readable().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        fds.push(PollFd::from_borrowed_fd(self.bell.0.as_fd(), PollFlags::IN));
        fds.extend(others.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        // Interrupted or refused: the next turn looks anyway.
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
        self.bell.silence();
    }

    /// Takes what has arrived and carries out what follows. What others want to know goes to `tell`.
    pub(crate) fn turn(&mut self, plane: &mut Plane, mut tell: impl FnMut(Event)) {
        let now = Instant::now();
        let endpoint = &mut self.endpoint;
        self.sockets.receive(|local, from, message| endpoint.handle_datagram(now, local, from, message));
        for (ticket, answer) in self.credentials.answers() {
            self.endpoint.answer(now, ticket, answer);
        }
        for found in self.names.turn(now) {
            match found {
                Found::Host(number, outcome) => self.endpoint.resolved(now, number, outcome),
                Found::Connection(named, Ok(connection)) => self.resolved.push((named, connection)),
                Found::Connection(_, Err(_)) => (),
            }
        }
        for wanted in plane.wanted() {
            let (connection, child) = (&wanted.connection.name, &wanted.config.name);
            self.endpoint.acquire(now, connection, child, Some(wanted.packet), wanted.cpu);
        }
        if now >= self.look_at {
            self.look_at = now + LOOK;
            for (child, hard) in plane.worn() {
                self.endpoint.child_expired(now, child, hard);
            }
            for child in plane.heard() {
                self.endpoint.traffic(now, child, None);
            }
        }
        self.endpoint.handle_timeout(now);
        self.carry_out(plane, &mut tell);
    }

    /// Carries out everything that the endpoint wants. Peers are told last: as soon as one knows of an SA it
    /// may use it.
    fn carry_out(&mut self, plane: &mut Plane, tell: &mut impl FnMut(Event)) {
        let now = Instant::now();
        let mut messages = Vec::new();
        while let Some(output) = self.endpoint.poll() {
            match output {
                Output::Transmit(transmit) => messages.push(transmit),
                Output::Keepalive(path) => drop(self.sockets.keep_alive(path.local, path.remote)),
                Output::Ask(ticket, question) => self.credentials.ask(ticket, question),
                Output::Forget(ticket) => self.credentials.forget(ticket),
                Output::Install(child) => {
                    if let Some(log) = &mut self.key_log {
                        log.child(&child);
                    }
                    if let Err(why) = plane.install(&child, jitter()) {
                        tracing::error!(target: "child", "{}.{}: {why}", child.connection.name, child.config.name);
                        self.endpoint.child_expired(now, child.id, true);
                    }
                }
                Output::UseOutbound(child) => plane.use_outbound(child),
                Output::Remove(child, after) => plane.remove(child, now + after),
                Output::Move(child, path) => plane.go(child, path),
                Output::Trap(connection, child, on) => {
                    plane.stand(&connection, &child, on, true, dynamic(&connection));
                }
                Output::VirtualAddress(ike, address, on) => {
                    self.servers.given(ike, address.addr, &address.dns, on);
                    if let Err(error) = plane.virtual_address(address.addr, on) {
                        tracing::error!(target: "ike", "virtual address {}: {error}", address.addr);
                    }
                }
                Output::Resolve(number, host) => {
                    if let Err(why) = self.names.find(number, host) {
                        self.endpoint.resolved(now, number, Err(why));
                    }
                }
                Output::Secrets(secrets) => {
                    if let Some(log) = &mut self.key_log {
                        log.ike(&secrets);
                    }
                }
                Output::Event(event) => {
                    log(&event);
                    tell(event);
                }
            }
        }
        if let Err(error) = plane.commit() {
            tracing::error!(target: "control", "{error:#}");
        }
        for message in &messages {
            self.transmit(now, message);
        }
    }

    fn transmit(&mut self, now: Instant, transmit: &Transmit) {
        let Err(error) = self.sockets.send(transmit.local, transmit.remote, &transmit.datagram) else { return };
        self.unsent += 1;
        if now >= self.unsent_told {
            tracing::warn!(
                target: "net",
                "cannot send to {} from {}: {error} ({} datagrams so far)", transmit.remote, transmit.local, self.unsent
            );
            self.unsent_told = now + Duration::from_secs(10);
        }
    }
}

/// Every child section with its connection.
fn sections(connections: &[Arc<Connection>]) -> impl Iterator<Item = (&Arc<Connection>, &Arc<ChildConfig>)> {
    connections.iter().flat_map(|connection| connection.children.iter().map(move |child| (connection, child)))
}

/// What `dynamic` stands for before anything is negotiated: this host and the peer, where the peer is one
/// host.
pub(crate) fn dynamic(connection: &Connection) -> Option<(IpAddr, IpAddr)> {
    let single =
        |ranges: &[wire::AddrRange]| ranges.first().filter(|range| range.start == range.end).map(|range| range.start);
    let remote = single(&connection.remote_addrs)?;
    let local = single(&connection.local_addrs).or_else(|| source_towards(remote))?;
    Some((local, remote))
}

/// The address from which this host would send to `remote`. Nothing is sent.
pub(crate) fn source_towards(remote: IpAddr) -> Option<IpAddr> {
    let any: SocketAddr = if remote.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }.parse().ok()?;
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((remote, wire::registry::PORT_IKE)).ok()?;
    socket.local_addr().ok().map(|addr| addr.ip())
}

fn jitter() -> f64 {
    let mut bytes = [0; 4];
    crypto::random(&mut bytes);
    f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
}

fn log(event: &Event) {
    let Event::Log { level, subsystem, ike, text } = event else { return };
    let about = ike.map(|ike| format!("[{}] ", ike.0)).unwrap_or_default();
    macro_rules! line {
        ($target:literal) => {
            match level {
                Level::Error => tracing::error!(target: $target, "{about}{text}"),
                Level::Warn => tracing::warn!(target: $target, "{about}{text}"),
                Level::Info => tracing::info!(target: $target, "{about}{text}"),
                Level::Debug => tracing::debug!(target: $target, "{about}{text}"),
                Level::Trace => tracing::trace!(target: $target, "{about}{text}"),
            }
        };
    }
    match subsystem {
        Subsystem::Ike => line!("ike"),
        Subsystem::Child => line!("child"),
        Subsystem::Config => line!("cfg"),
        Subsystem::Enc => line!("enc"),
        Subsystem::Net => line!("net"),
    }
}
