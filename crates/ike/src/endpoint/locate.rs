//! What attempts and first messages of peers wait for: addresses of named hosts, trust anchors.
//!
//! Names of hosts in connections are resolved again for every attempt, and when an IKE_SA_INIT
//! finds no connection.
//!
//! An attempt waits in `awaiting` until the names of its connection are resolved. If a name does
//! not resolve, commands fail and the attempt is kept as long as a child must start:
//! [`Hosts`](crate::hosts::Hosts) schedules the retry. An IKE_SA_INIT from an unknown address waits
//! in `held`, because its peer may have moved to it (dynamic DNS).
//!
//! The first trust anchors of a new connection arrive some milliseconds after it was loaded. A
//! response to IKE_SA_INIT without CERTREQ in this time would make a peer with `send_cert =
//! ifasked` omit its certificate, and its authentication would fail: the request waits in `held`,
//! too. An initiator needs them for IKE_AUTH, and its own keys, requested later, take longer.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_core::CryptoRng;
use wire::AddrRange;

use super::{Endpoint, IkeSpi};
use crate::config::{Connection, Host, Version};
use crate::handshake::init::INIT_MAX;
use crate::handshake::{Redirects, candidates};
use crate::hosts::ResolveError;
use crate::nat::IKE_PORT;
use crate::output::{CommandError, Event, Level, Output, Path};
use crate::sa::Initiation;

/// Age from which an address is resolved again for a new attempt.
const FRESH: Duration = Duration::from_secs(1);
/// Age from which names are resolved again for an IKE_SA_INIT that finds no connection.
const UNKNOWN_PEER: Duration = Duration::from_secs(10);
/// The same for one that finds a connection: a narrower one may fit by now.
const KNOWN_PEER: Duration = Duration::from_secs(60);
/// Names that IKE_SA_INIT messages have resolved per second: senders are not authenticated.
pub(super) const ASKED_BY_PEERS_PER_S: u32 = 16;
/// First messages of IKE SAs that wait, 4 KiB each at most.
const HELD_MAX: usize = 16;
/// Time after which a repeated message no longer waits for trust anchors: a token that does not
/// answer must not keep out peers that need no certificate.
const ANCHORS_TIMEOUT: Duration = Duration::from_secs(1);

/// The first message of an IKE SA that waits for names or trust anchors.
pub(super) struct Held {
    path: Path,
    spi_i: IkeSpi,
    datagram: Vec<u8>,
    /// Connection with the trust anchors that it waits for; `None`: it waits for names.
    anchors: Option<String>,
    since: Instant,
}

impl<R: CryptoRng> Endpoint<R> {
    /// Answers [`Output::Resolve`]: addresses of the host, or why there are none.
    pub fn resolved(&mut self, now: Instant, number: u64, found: Result<Vec<IpAddr>, ResolveError>) {
        if let Some((initiation, redirects)) = self.naming.remove(&number) {
            return self.resolved_gateway(now, initiation, redirects, found);
        }
        let Some(answered) = self.shared.names.hosts.answer(now, number, found) else { return };
        if let Some((why, first)) = answered.failure {
            self.shared.log(if first { Level::Warn } else { Level::Info }, None, why);
        }
        if answered.changed {
            self.shared.log(Level::Info, None, format!("'{}' has other addresses now", answered.name));
            self.shared.out.push_back(Output::Resolved(answered.name));
        }
        self.resume(now);
        self.release(now);
    }

    /// A peer named the host as the gateway to go to (RFC 5685).
    fn resolved_gateway(
        &mut self,
        now: Instant,
        mut initiation: Initiation,
        redirects: Redirects,
        found: Result<Vec<IpAddr>, ResolveError>,
    ) {
        match found.map(|found| found.first().copied()) {
            Ok(Some(addr)) => {
                initiation.remote = Some((addr, IKE_PORT).into());
                self.initiate_now(now, initiation, redirects);
            }
            Ok(None) => self.fail_initiation(&initiation, "the gateway has no address".to_owned()),
            Err(error) => self.fail_initiation(&initiation, error.to_string()),
        }
    }

    /// Current addresses of `local_addrs` or `remote_addrs`; `None` for any.
    pub fn addresses(&self, hosts: &[Host]) -> Option<Vec<AddrRange>> {
        self.shared.names.hosts.ranges(hosts)
    }

    /// Reason why a host of a connection has no address; `None` if all have one.
    pub fn unresolved_host(&self, connection: &Connection) -> Option<String> {
        let hosts = &self.shared.names.hosts;
        hosts.why(&connection.remote_addrs).or_else(|| hosts.why(&connection.local_addrs))
    }

    /// Takes over the names of the loaded connections; those without addresses are resolved.
    pub(super) fn load_hosts(&mut self, now: Instant) {
        let connections = self.shared.connections.clone();
        self.shared.names.hosts.keep(connections.iter().flat_map(|connection| connection.host_names()));
        for (mut initiation, redirects) in std::mem::take(&mut self.awaiting) {
            if initiation.follow(&connections) {
                self.awaiting.push((initiation, redirects));
            } else {
                self.fail_initiation(&initiation, "its connection is not loaded any more".to_owned());
            }
        }
        for connection in &connections {
            if self.unresolved_host(connection).is_some() {
                self.ask_hosts(now, connection.host_names(), FRESH);
            }
        }
    }

    /// Resolves names that were not resolved lately.
    fn ask_hosts<'a>(&mut self, now: Instant, names: impl Iterator<Item = &'a str>, age: Duration) {
        for name in names {
            if let Some(number) = self.shared.names.hosts.ask(now, name, age) {
                self.shared.out.push_back(Output::Resolve(number, name.to_owned()));
            }
        }
    }

    /// Returns the attempt when its connection has addresses that were resolved just now; keeps it
    /// otherwise.
    pub(super) fn locate(
        &mut self,
        now: Instant,
        initiation: Initiation,
        redirects: Redirects,
    ) -> Option<(Initiation, Redirects)> {
        let connection = Arc::clone(&initiation.connection);
        if connection.host_names().next().is_none() {
            return Some((initiation, redirects));
        }
        self.ask_hosts(now, connection.host_names(), FRESH);
        if self.is_pending(&connection) {
            if self.awaiting.len() >= super::settle::LATER_MAX {
                self.fail_initiation(&initiation, "too many attempts wait already".to_owned());
            } else {
                self.awaiting.push((initiation, redirects));
            }
            return None;
        }
        if self.unresolved(&initiation).is_none() {
            return Some((initiation, redirects));
        }
        self.park(initiation, redirects);
        None
    }

    fn is_pending(&self, connection: &Connection) -> bool {
        let hosts = &self.shared.names.hosts;
        hosts.is_pending(&connection.remote_addrs) || hosts.is_pending(&connection.local_addrs)
    }

    /// Returns whether the first trust anchors of a connection were requested and are not here yet.
    fn lacks_anchors(&self, connection: &Connection) -> bool {
        let (name, names) = (&connection.name, &self.shared.names);
        let known = match connection.version {
            Version::V1 => names.keys_v1.contains_key(name),
            Version::V2 => names.authorities.contains_key(name),
        };
        !known && self.asked.values().any(|pending| pending == name)
    }

    /// Reason why an attempt has no destination or source address because of a name.
    fn unresolved(&self, initiation: &Initiation) -> Option<String> {
        let (hosts, connection) = (&self.shared.names.hosts, &initiation.connection);
        let none = |list: &[Host]| hosts.ranges(list).is_some_and(|ranges| ranges.is_empty());
        let remote =
            initiation.remote.is_none() && (none(&connection.remote_addrs) || self.path_of(initiation).is_none());
        let why = |list: &[Host], applies: bool| hosts.why(list).filter(|_| applies);
        why(&connection.remote_addrs, remote).or_else(|| why(&connection.local_addrs, none(&connection.local_addrs)))
    }

    /// Keeps an attempt without addresses for its children that are to start; the others hear of
    /// the failure.
    fn park(&mut self, mut initiation: Initiation, redirects: Redirects) {
        let why = self.unresolved(&initiation).unwrap_or_else(|| "its host has no address".to_owned());
        let waiting = initiation.children.iter().filter_map(|child| child.command);
        let commands: Vec<u64> = initiation.commands.drain(..).chain(waiting).collect();
        for command in commands {
            self.shared.out.push_back(Output::Event(Event::CommandDone(command, Err(CommandError::new(why.clone())))));
        }
        // A packet comes again.
        initiation.children.retain(|child| child.command.is_none() && child.packet.is_none());
        if !initiation.children.is_empty() || initiation.replaces.is_some() {
            self.awaiting.push((initiation, redirects));
        }
    }

    /// Starts attempts with resolved names.
    fn resume(&mut self, now: Instant) {
        // Taken out first, because `initiate_now` may append to the list again.
        for (initiation, redirects) in std::mem::take(&mut self.awaiting) {
            if self.is_pending(&initiation.connection) {
                self.awaiting.push((initiation, redirects));
            } else if self.unresolved(&initiation).is_some() {
                self.park(initiation, redirects);
            } else {
                self.initiate_now(now, initiation, redirects);
            }
        }
    }

    /// Resolves names again that had no address.
    pub(super) fn retry_hosts(&mut self, now: Instant) {
        for name in self.shared.names.hosts.due(now) {
            self.ask_hosts(now, std::iter::once(&*name), Duration::ZERO);
        }
    }

    /// Resolves names again for an IKE_SA_INIT. True when it waits for them, because no connection
    /// fits so far.
    pub(super) fn hold_for_names(&mut self, now: Instant, path: &Path, spi_i: IkeSpi, datagram: &[u8]) -> bool {
        if self.shared.names.hosts.is_empty() {
            return false;
        }
        let fits = self.fits(path);
        let age = if fits { KNOWN_PEER } else { UNKNOWN_PEER };
        let mut pending = false;
        for connection in self.shared.connections.clone() {
            for name in connection.host_names() {
                // `is_due` comes first: a name that needs no resolution must not use up the rate
                // limit.
                if self.shared.names.hosts.is_due(now, name, age) && self.asked_by_peers.allows(now) {
                    self.ask_hosts(now, std::iter::once(name), age);
                }
            }
            pending |= self.is_pending(&connection);
        }
        if fits || !pending {
            return false;
        }
        self.hold(Held { path: *path, spi_i, datagram: datagram.to_vec(), anchors: None, since: now });
        true
    }

    /// True when the first message of an IKE SA waits for the trust anchors of a connection that
    /// fits.
    pub(super) fn hold_for_anchors(
        &mut self,
        now: Instant,
        version: Version,
        path: &Path,
        spi_i: IkeSpi,
        datagram: &[u8],
    ) -> bool {
        // Without a request there is nothing to wait for: this is the case of nearly every message.
        if self.asked.is_empty() || datagram.len() > INIT_MAX {
            return false;
        }
        let fitting = candidates(&self.shared.connections, &self.shared.names.hosts, path, version);
        // The last one, because answers come in the order of connections: the message waits once.
        let Some(lacking) = fitting.iter().rfind(|connection| self.lacks_anchors(connection)) else { return false };
        let anchors = Some(lacking.name.clone());
        let before = self.held.iter().position(|held| (held.path.remote, held.spi_i) == (path.remote, spi_i));
        let since = before.map_or(now, |at| self.held[at].since);
        if now.saturating_duration_since(since) >= ANCHORS_TIMEOUT {
            before.map(|at| self.held.remove(at));
            return false;
        }
        self.hold(Held { path: *path, spi_i, datagram: datagram.to_vec(), anchors, since });
        true
    }

    fn hold(&mut self, new: Held) {
        // A retransmission replaces the earlier copy. Otherwise one initiator would fill the queue.
        self.held.retain(|held| (held.path.remote, held.spi_i) != (new.path.remote, new.spi_i));
        if self.held.len() >= HELD_MAX {
            self.held.pop_front();
        }
        self.held.push_back(new);
    }

    /// Returns whether a connection is between these addresses.
    fn fits(&self, path: &Path) -> bool {
        !candidates(&self.shared.connections, &self.shared.names.hosts, path, Version::V2).is_empty()
    }

    /// Handles IKE_SA_INIT messages that need not wait for names any more.
    fn release(&mut self, now: Instant) {
        let pending = self.shared.connections.iter().any(|connection| self.is_pending(connection));
        self.handle_held(now, |endpoint, held| held.anchors.is_none() && (!pending || endpoint.fits(&held.path)));
    }

    /// The credentials answered the request for the trust anchors of a connection.
    pub(super) fn anchors_arrived(&mut self, now: Instant, connection: &str) {
        self.handle_held(now, |_, held| held.anchors.as_deref() == Some(connection));
    }

    fn handle_held(&mut self, now: Instant, ready: impl Fn(&Self, &Held) -> bool) {
        for held in std::mem::take(&mut self.held) {
            if ready(self, &held) {
                // From the start, with cookie and limits: the load may have changed while it
                // waited.
                self.handle_datagram(now, held.path.local, held.path.remote, &held.datagram);
            } else {
                self.held.push_back(held);
            }
        }
    }
}
