//! IKE at work: sockets, credentials and the packet side around one [`ike::Endpoint`].
//!
//! One thread, the control side, owns all of it. Each [`Keying::turn`] receives messages, passes
//! them to the endpoint, and executes its outputs; changes of the tables are published once at the
//! end, or with many SAs for several turns together. Messages and events wait for that.

pub(crate) mod names;
pub(crate) mod sockets;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ike::config::{Action, ChildConfig, ChildMode, Connection, Host, PoolConfig};
use ike::hosts::ResolveError;
use ike::output::{Event, Level, Output, RequestId, Subsystem, Transmit};
use ike::{Endpoint, Settings};
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

use crate::config::Config;
use crate::host::HostNetwork;
use crate::keylog::KeyLog;
use crate::lookup::Lookup;
use crate::negotiated::Dynamic;
use crate::plane::Plane;
use crate::resolver::Servers;
use crate::updown::Updown;
use crate::waker::Waker;
use credentials::Credentials;
use names::{Client, Names};
use sockets::{Sockets, Transport};
use wire::ike::{ExchangeType, Header};

/// Polling interval of the data plane's counters.
const LOOK: Duration = Duration::from_millis(500);
/// Messages that wait for the tables; with more of them, the tables do not wait for more Child SAs.
const WITHHELD_MAX: usize = 4096;

/// Helper processes, which are started before the confinement.
pub(crate) struct Helpers {
    /// Name servers of peers.
    pub(crate) servers: Servers,
    /// Commands on up and down.
    pub(crate) updown: Updown,
    /// Host names.
    pub(crate) lookup: Lookup,
}

impl Helpers {
    /// Starts the threads that read the output of the helpers.
    ///
    /// # Errors
    /// The operating system has no thread left.
    pub(crate) fn listen(&mut self) -> io::Result<()> {
        self.servers.listen()?;
        self.updown.listen()?;
        self.lookup.listen()
    }
}

/// Fills a buffer with random bytes.
type Fill = dyn Fn(&mut [u8]) + Send + Sync;

/// Source of random bytes.
#[derive(Clone)]
pub(crate) struct Random(Arc<Fill>);

impl Random {
    /// Randomness of the operating system.
    pub(crate) fn of_system() -> Self {
        Self(Arc::new(crypto::random))
    }

    /// Bytes of `fill`, so that a simulation repeats.
    #[cfg(feature = "simulation")]
    pub(crate) fn of(fill: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(fill))
    }

    /// A number in 0..=1.
    fn share(&self) -> f64 {
        let mut bytes = [0; 4];
        (self.0)(&mut bytes);
        f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
    }
}

impl rand_core::RngCore for Random {
    fn next_u32(&mut self) -> u32 {
        rand_core::impls::next_u32_via_fill(self)
    }

    fn next_u64(&mut self) -> u64 {
        rand_core::impls::next_u64_via_fill(self)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        (self.0)(bytes);
    }
}

impl rand_core::CryptoRng for Random {}

/// IKE endpoint, sockets and credentials.
pub(crate) struct Keying {
    pub(crate) endpoint: Endpoint<Random>,
    pub(crate) credentials: Credentials,
    random: Random,
    transport: Box<dyn Transport>,
    waker: Waker,
    look_at: Instant,
    /// Datagrams that could not be sent since the last report.
    unsent: u64,
    unsent_report_at: Instant,
    /// Wireshark key tables.
    key_log: Option<KeyLog>,
    /// Name servers that peers gave.
    servers: Servers,
    /// Commands of the administrator.
    updown: Updown,
    host: Arc<dyn HostNetwork>,
    /// Addresses of this host at the last report.
    addresses: Vec<IpAddr>,
    names: Names,
    /// `unprotected = drop` when connections were loaded.
    unprotected_drops: bool,
    /// Answers about names that the key service of PSP requested.
    pub(crate) found: Vec<(u64, Result<Vec<IpAddr>, ResolveError>)>,
    /// Messages and events that wait until the tables are published, at most for
    /// [`Plane::commit_children`]'s pause, in which a flood makes [`WITHHELD_MAX`].
    withheld: (Vec<Transmit>, Vec<Event>),
    /// Credential requests without a response yet.
    unanswered: HashSet<RequestId>,
}

/// Everything around the endpoint that does I/O or supplies randomness.
pub(crate) struct Surroundings {
    pub(crate) host: Arc<dyn HostNetwork>,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) credentials: Credentials,
    pub(crate) names: Names,
    pub(crate) servers: Servers,
    pub(crate) updown: Updown,
    pub(crate) waker: Waker,
    pub(crate) random: Random,
}

impl Surroundings {
    /// Opens the sockets of IKE and starts the threads that resolve names.
    ///
    /// # Errors
    /// A port that is taken, a missing privilege.
    pub(crate) fn open(
        config: &Config,
        host: Arc<dyn HostNetwork>,
        credentials: Credentials,
        waker: Waker,
        Helpers { servers, updown, lookup }: Helpers,
    ) -> io::Result<Self> {
        let gateway = &config.gateway;
        let sockets = Sockets::open(gateway.ike_port, gateway.code_points.nat_t_port, gateway.fwmark)?;
        let names_waker = waker.clone();
        let names = Names::spawn(move |name| lookup.resolve(name), move || names_waker.wake())?;
        let (transport, random) = (Box::new(sockets), Random::of_system());
        Ok(Self { host, transport, credentials, names, servers, updown, waker, random })
    }
}

impl Keying {
    /// Nothing is loaded yet.
    ///
    /// # Errors
    /// The file for secrets cannot be opened.
    pub(crate) fn new(now: Instant, config: &Config, surroundings: Surroundings) -> io::Result<Self> {
        let Surroundings { host, transport, credentials, names, servers, updown, waker, random } = surroundings;
        let gateway = &config.gateway;
        let key_log = gateway.log_secrets.as_deref().map(KeyLog::open).transpose()?;
        let settings = Settings {
            allow_legacy: gateway.allow_legacy,
            aggressive_mode_psk: gateway.aggressive_mode_psk,
            cisco_unity: gateway.cisco_unity,
            log_secrets: key_log.is_some(),
            code_points: gateway.code_points,
            ..Settings::default()
        };
        let mut endpoint = Endpoint::new(settings, random.clone());
        let (sources, networks) = (Arc::clone(&host), Arc::clone(&host));
        endpoint.look_up_sources(move |remote| sources.source_towards(remote));
        endpoint.look_up_networks(move |addr| networks.network_of(addr));
        Ok(Self {
            endpoint,
            credentials,
            random,
            transport,
            waker,
            look_at: now,
            unsent: 0,
            unsent_report_at: now,
            key_log,
            servers,
            updown,
            host,
            addresses: Vec::new(),
            names,
            unprotected_drops: gateway.unprotected_drops,
            found: Vec::new(),
            withheld: Default::default(),
            unanswered: HashSet::new(),
        })
    }

    /// Applies connections and pools. Unchanged connections keep running.
    pub(crate) fn load(
        &mut self,
        now: Instant,
        connections: Vec<Arc<Connection>>,
        pools: Vec<PoolConfig>,
        plane: &mut Plane,
    ) {
        plane.set_pools(&pools);
        self.endpoint.load_pools(pools);
        let before: Vec<Arc<Connection>> = self.endpoint.connections().to_vec();
        // Connections that are the same object keep their policies: one that is loaded over the
        // control socket must not cost work for all others.
        let by_name = |list: &[Arc<Connection>]| -> HashMap<String, Arc<Connection>> {
            list.iter().map(|connection| (connection.name.clone(), Arc::clone(connection))).collect()
        };
        let (old, new) = (by_name(&before), by_name(&connections));
        let is_kept = |list: &HashMap<String, Arc<Connection>>, connection: &Arc<Connection>| {
            list.get(&connection.name).is_some_and(|other| Arc::ptr_eq(other, connection))
        };
        let trapped = plane.negotiated.trapped();
        let drops = plane.config.gateway.unprotected_drops;
        let is_other_setting = std::mem::replace(&mut self.unprotected_drops, drops) != drops;
        for (connection, child) in sections(&before).filter(|(connection, _)| !is_kept(&new, connection)) {
            let stays = new.get(&connection.name).is_some_and(|other| other.children.iter().any(|s| s == child));
            if !stays {
                plane.stand(connection, child, false, false, (None, None));
            }
        }
        let is_same = |one: &Arc<Connection>| old.get(&one.name).is_some_and(|other| other == one);
        let concerned = connections.iter().filter(|connection| is_other_setting || !is_kept(&old, connection));
        for connection in concerned {
            let is_same = is_same(connection);
            for child in &connection.children {
                let trapped = trapped.contains(&(connection.name.clone(), child.name.clone()));
                self.close(connection, child, (trapped, is_same), plane);
            }
        }
        self.endpoint.load(now, connections);
    }

    /// Puts one connection in force, in place of that of the same name. The others are not looked
    /// at.
    pub(crate) fn load_one(&mut self, now: Instant, connection: Arc<Connection>, plane: &mut Plane) {
        let old = self.endpoint.connections().iter().find(|one| one.name == connection.name).cloned();
        let is_trapped = |child: &&Arc<ChildConfig>| plane.negotiated.is_trapped(&connection, child);
        let trapped: Vec<Arc<ChildConfig>> = connection.children.iter().filter(is_trapped).cloned().collect();
        for child in old.iter().flat_map(|old| &old.children) {
            if !connection.children.contains(child) {
                plane.stand(&connection, child, false, false, (None, None));
            }
        }
        let is_same = old.is_some_and(|old| old == connection);
        for child in &connection.children {
            self.close(&connection, child, (trapped.contains(child), is_same), plane);
        }
        self.endpoint.load_one(now, connection);
    }

    /// Takes out the connection of that name. The others are not looked at.
    pub(crate) fn unload_one(&mut self, now: Instant, name: &str, plane: &mut Plane) {
        let Some(old) = self.endpoint.connections().iter().find(|one| one.name == name).cloned() else { return };
        for child in &old.children {
            plane.stand(&old, child, false, false, (None, None));
        }
        self.endpoint.unload_one(now, name);
    }

    /// Installs the policy of a section that needs neither an SA nor a packet: traffic that should
    /// pass or be dropped, and traffic that should have an SA. Until there is one, and when it is
    /// lost, nothing leaves in the clear. A policy that only closed the section is removed where
    /// the section is closed no longer.
    ///
    /// A trap comes with the outputs of the endpoint. One that changed, of `start_action` or, when
    /// it is `trapped`, of another action, is closed until then: the tables may be published
    /// before, and a policy that passes packets must not get its own. The endpoint reports no trap
    /// of a connection that `is_same` as before, so that this one stays.
    fn close(
        &self,
        connection: &Arc<Connection>,
        child: &Arc<ChildConfig>,
        (trapped, is_same): (bool, bool),
        plane: &mut Plane,
    ) {
        if trapped && is_same {
            return;
        }
        let always = matches!(child.mode, ChildMode::Pass | ChildMode::Drop);
        let closed = (child.start_action.start && !child.start_action.trap)
            || (plane.config.gateway.unprotected_drops && !child.start_action.trap && names_peer(connection, child));
        let left_behind = trapped && [child.dpd_action, child.close_action].contains(&Action::Trap);
        let becomes_trap = (child.start_action.trap || left_behind) && !plane.negotiated.has_policy(connection, child);
        if always || closed || becomes_trap {
            plane.stand(connection, child, true, false, self.dynamic(connection));
        } else if !child.start_action.trap && plane.negotiated.only_closes(connection, child) {
            plane.stand(connection, child, false, false, (None, None));
        }
    }

    /// SPIs that SAs of the file receive with now are not for Child SAs.
    pub(crate) fn reserve_spis(&mut self, config: &Config) {
        let received = config.sas.iter().filter_map(|sa| sa.inbound.as_ref());
        self.endpoint.reserve_spis(received.filter_map(|half| half.proto.spi()));
    }

    /// Resolves a name for the key service of PSP; the answer is in `found` later.
    pub(crate) fn find(&mut self, number: u64, host: String) {
        if let Err(why) = self.names.find(Client::Psp, number, host) {
            self.found.push((number, Err(why)));
        }
    }

    /// Addresses that `dynamic` denotes before negotiation: those of this host, and that of the
    /// peer if it is a single host with an address.
    pub(crate) fn dynamic(&self, connection: &Connection) -> Dynamic {
        let single = |hosts: &[Host]| {
            let first = self.endpoint.addresses(hosts)?.first().copied()?;
            (first.start == first.end).then_some(first.start)
        };
        let remote = single(&connection.remote_addrs);
        let local = single(&connection.local_addrs).or_else(|| self.host.source_towards(remote?));
        (local, remote)
    }

    /// A name has new addresses: so has `dynamic` in installed policies.
    fn resolved(&mut self, name: &str, plane: &mut Plane) {
        for connection in self.endpoint.connections() {
            if connection.host_names().any(|host| host == name) {
                plane.stand_again(connection, self.dynamic(connection));
            }
        }
    }

    /// Certificates changed: trust of connections is evaluated again.
    pub(crate) fn credentials_changed(&mut self, now: Instant) {
        self.endpoint.credentials_changed(now);
        self.secrets_changed();
    }

    /// Shared secrets changed: with a post-quantum preshared key USE_PPK is answered.
    pub(crate) fn secrets_changed(&mut self) {
        self.endpoint.set_has_ppks(self.credentials.with_store(|store| store.has_ppks()));
    }

    /// Passes the addresses of this host to IKE.
    pub(crate) fn local_addresses(&mut self, now: Instant, addresses: &[IpAddr], plane: &mut Plane) {
        self.endpoint.local_addresses(now, addresses);
        if self.addresses != addresses {
            self.addresses = addresses.to_vec();
            plane.addresses_changed();
            // The addresses of `dynamic` may have changed with them.
            for connection in self.endpoint.connections() {
                plane.stand_again(connection, self.dynamic(connection));
            }
        }
    }

    /// Ends every IKE SA; each peer receives a DELETE.
    pub(crate) fn shutdown(&mut self, now: Instant, plane: &mut Plane, mut tell: impl FnMut(Event)) {
        self.endpoint.shutdown(now);
        self.carry_out(now, plane, false, &mut tell);
    }

    /// Waits until a socket here or in `others` is readable, for a wake-up, for a timer of IKE, or
    /// for at most `longest`.
    pub(crate) fn wait(&self, now: Instant, others: &[BorrowedFd<'_>], longest: Duration) {
        let until = self.endpoint.deadline().map_or(longest, |at| at.saturating_duration_since(now).min(longest));
        let timeout = Timespec { tv_sec: until.as_secs() as i64, tv_nsec: until.subsec_nanos().into() };
        // Interrupted or refused: the next turn looks anyway.
        let _ = rustix::event::poll(&mut self.watched(others), Some(&timeout));
        self.waker.clear();
    }

    fn watched<'a>(&'a self, others: &[BorrowedFd<'a>]) -> Vec<PollFd<'a>> {
        let own = self.transport.readable().into_iter().chain([self.waker.as_fd()]);
        own.chain(others.iter().copied()).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect()
    }

    /// Returns whether there is nothing to do before a peer, a client or a timer acts: nothing to
    /// read here or in `others`, and no credential request, whose thread may need this core. A peer
    /// in the middle of its handshake acts soon.
    pub(crate) fn is_idle(&self, others: &[BorrowedFd<'_>]) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (endpoint, withheld) = (&self.endpoint, &self.withheld.0);
        self.unanswered.is_empty()
            && !is_peer_active(endpoint.half_open_count(), withheld, |addr| endpoint.has_half_open(addr))
            && rustix::event::poll(&mut self.watched(others), Some(&at_once)) == Ok(0)
    }

    /// Processes received messages and executes the outputs. Events are passed to `tell`.
    pub(crate) fn turn(&mut self, now: Instant, plane: &mut Plane, mut tell: impl FnMut(Event)) {
        let endpoint = &mut self.endpoint;
        self.transport.receive(&mut |local, from, message| endpoint.handle_datagram(now, local, from, message));
        for (request_id, answer) in self.credentials.answers() {
            self.unanswered.remove(&request_id);
            self.endpoint.handle_credentials(now, request_id, answer);
        }
        for (client, number, found) in self.names.found() {
            match client {
                Client::Ike => self.endpoint.resolved(now, number, found),
                Client::Psp => self.found.push((number, found)),
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
            for child in plane.with_traffic(now) {
                self.endpoint.traffic(now, child, None);
            }
        }
        self.endpoint.handle_timeout(now);
        self.carry_out(now, plane, true, &mut tell);
    }

    /// Executes all outputs of the endpoint. Messages to peers are sent after the tables are
    /// published, because a peer may use an SA as soon as it has the message. Events wait for the
    /// same. With `may_wait`, all of that may be left to a later turn.
    fn carry_out(&mut self, now: Instant, plane: &mut Plane, may_wait: bool, tell: &mut impl FnMut(Event)) {
        while let Some(output) = self.endpoint.poll() {
            match output {
                Output::Transmit(transmit) if is_before_child(&transmit.datagram) => self.transmit(now, &transmit),
                Output::Transmit(transmit) => self.withheld.0.push(transmit),
                Output::Keepalive(path) => drop(self.transport.keep_alive(path.local, path.remote)),
                Output::RequestCredentials(request_id, question) => {
                    self.unanswered.insert(request_id);
                    self.credentials.ask(request_id, question);
                }
                Output::CancelRequest(request_id) => {
                    self.unanswered.remove(&request_id);
                    self.credentials.forget(request_id);
                }
                Output::Install(child) => {
                    if let Some(log) = &mut self.key_log {
                        log.child(&child);
                    }
                    match plane.install(now, &child, self.random.share()) {
                        Ok(()) => self.updown.installed(&child),
                        Err(why) => {
                            tracing::error!(target: "child", "{}.{}: {why}", child.connection.name, child.config.name);
                            self.endpoint.child_expired(now, child.id, true);
                        }
                    }
                }
                Output::UseOutbound(child) => plane.use_outbound(child),
                Output::Remove(child, after) => {
                    self.updown.removed(child);
                    plane.remove(child, now + after);
                }
                Output::Move(child, path) => plane.go(now, child, path),
                Output::Trap(connection, child, on) => {
                    plane.stand(&connection, &child, on, true, self.dynamic(&connection));
                }
                Output::VirtualAddress(ike, address, on) => {
                    self.servers.given(ike, address.addr, &address.dns, on);
                    let view = self.endpoint.ike_sa(ike);
                    let connection = view.and_then(|view| view.connection.map(|connection| connection.name.clone()));
                    if let Err(error) = plane.virtual_address(connection.as_deref(), address.addr, on) {
                        tracing::error!(target: "ike", "virtual address {}: {error}", address.addr);
                    }
                }
                Output::Resolve(number, host) => {
                    if let Err(why) = self.names.find(Client::Ike, number, host) {
                        self.endpoint.resolved(now, number, Err(why));
                    }
                }
                Output::Resolved(name) => self.resolved(&name, plane),
                Output::Secrets(secrets) => {
                    if let Some(log) = &mut self.key_log {
                        log.ike(&secrets);
                    }
                }
                Output::Event(event) => {
                    if let Event::IkeDown(ike, _) = &event {
                        plane.negotiated.totals.end(*ike);
                    }
                    log(&event);
                    self.withheld.1.push(event);
                }
            }
        }
        let committed = match may_wait && self.withheld.0.len() < WITHHELD_MAX {
            true => plane.commit_children(now),
            false => plane.commit(now).map(|()| true),
        };
        // A failed change of routes or guard is logged and tried again; their traffic stays closed.
        if !committed.unwrap_or_else(|error| {
            tracing::error!(target: "control", "{error:#}");
            true
        }) {
            return;
        }
        self.updown.turn(&self.endpoint);
        let (messages, events) = std::mem::take(&mut self.withheld);
        events.into_iter().for_each(tell);
        for message in &messages {
            self.transmit(now, message);
        }
    }

    fn transmit(&mut self, now: Instant, transmit: &Transmit) {
        let Err(error) = self.transport.send(transmit.local, transmit.remote, &transmit.datagram) else { return };
        self.unsent += 1;
        if now >= self.unsent_report_at {
            tracing::warn!(
                target: "net",
                "cannot send to {} from {}: {error} ({} datagrams so far)", transmit.remote, transmit.local, self.unsent
            );
            self.unsent_report_at = now + Duration::from_secs(10);
        }
    }
}

/// Every child section with its connection.
fn sections(connections: &[Arc<Connection>]) -> impl Iterator<Item = (&Arc<Connection>, &Arc<ChildConfig>)> {
    connections.iter().flat_map(|connection| connection.children.iter().map(move |child| (connection, child)))
}

/// Returns whether the traffic of a child is known without a negotiation. A catch-all of a
/// connection that only answers is not: there it means that the peer chooses, and it would take all
/// traffic of this host.
fn names_peer(connection: &Connection, child: &ChildConfig) -> bool {
    let is_fixed = |host: &Host| match host {
        Host::Range(range) => range.start == range.end,
        Host::Name(_) => true,
    };
    let answers_only = !connection.remote_addrs.iter().any(is_fixed);
    let catch_all = |ts: &ike::config::TsConfig| ts.addrs.is_some_and(|range| range.prefix() == Some(0));
    !(answers_only && child.remote_ts.iter().any(catch_all))
}

/// Returns whether a message is of an exchange before the first Child SA: it needs no snapshot.
fn is_before_child(message: &[u8]) -> bool {
    let exchanges =
        [ExchangeType::IKE_SA_INIT, ExchangeType::IKE_INTERMEDIATE, ExchangeType::ID_PROT, ExchangeType::AGGRESSIVE];
    Header::parse(message).is_ok_and(|(header, _)| exchanges.contains(&header.exchange))
}

/// Returns whether one of the peers with `half_open` IKE SAs does not wait for this host: its Child
/// SA, which follows soon, can share the snapshot of those that wait. A peer waits if a message for
/// it is `withheld`.
fn is_peer_active(half_open: usize, withheld: &[Transmit], has_half_open: impl Fn(IpAddr) -> bool) -> bool {
    half_open > withheld.iter().filter(|message| has_half_open(message.remote.ip())).count()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_waits_for_peers_in_a_handshake_unless_they_wait_for_it() {
        let to = |host: u8| Transmit {
            local: ([192, 0, 2, 1], 500).into(),
            remote: ([198, 51, 100, host], 500).into(),
            datagram: Vec::new(),
            dscp: 0,
        };
        let of_first = |addr: IpAddr| addr == IpAddr::from([198, 51, 100, 1]);
        let of_all = |_: IpAddr| true;
        let withheld = [to(1), to(2)];
        for (half_open, withheld, active) in [(0, &withheld[..], false), (0, &[], false), (1, &[], true)] {
            assert_eq!(is_peer_active(half_open, withheld, of_all), active, "{half_open}");
        }
        assert!(is_peer_active(2, &withheld, of_first), "the message to the second one ends its handshake");
        assert!(!is_peer_active(1, &withheld, of_first), "authentication of several messages");
        assert!(!is_peer_active(2, &withheld, of_all));
        assert!(is_peer_active(3, &withheld, of_all));
    }

    #[test]
    fn messages_before_a_child_sa_need_no_snapshot() {
        let of = |exchange: u8| {
            let mut message = [0; 28];
            (message[17], message[18], message[27]) = (0x20, exchange, 28);
            message
        };
        for (exchange, expected) in [(2, true), (4, true), (5, false), (6, false), (32, false), (34, true), (35, false)]
        {
            assert_eq!(is_before_child(&of(exchange)), expected, "{exchange}");
        }
        assert!(is_before_child(&of(43)) && !is_before_child(&of(36)) && !is_before_child(&of(37)));
        assert!(!is_before_child(&[0; 27]));
    }
}
