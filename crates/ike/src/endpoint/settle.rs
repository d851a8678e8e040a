//! Effects of a step of an IKE SA on the endpoint.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_core::CryptoRng;

use super::{Endpoint, IkeSpi, OTHER_VERSION, Slot, best_local};
use crate::child::Child;
use crate::config::{Unique, Version};
use crate::handshake::{Ended, Handshake, Initiator, Outcome, Redirects, Up, counters};
use crate::nat::NAT_PORT;
use crate::output::{CommandError, Event, IkeId, Level, Output, Path};
use crate::sa::{ChildRequest, Ending, Established, IkeSa, Initiation, NewSa, Role};
use crate::task::Predecessor;

/// Time for the peer to delete a duplicate itself, if it was a reauthentication.
const REAUTH_GRACE: Duration = Duration::from_secs(10);
/// First wait before another attempt; it doubles.
const BACK_OFF: Duration = Duration::from_secs(2);
/// The longest.
const BACK_OFF_MAX: Duration = Duration::from_secs(300);
/// Attempts that wait for their time; as many as there are connections is usual.
pub(super) const LATER_MAX: usize = 16_384;

/// The SPI that this host chose.
fn own_spi(sa: &Established) -> IkeSpi {
    match sa.role {
        Role::Initiator => sa.spis.initiator,
        Role::Responder => sa.spis.responder,
    }
}

impl<R: CryptoRng> Endpoint<R> {
    /// Applies the outcome of a step and sets the timer.
    pub(super) fn settle(&mut self, now: Instant, spi: &IkeSpi, outcome: Option<Outcome>) {
        match outcome {
            None | Some(Outcome::Waiting) => (),
            Some(Outcome::Refused(reason)) => self.log_refused(now, spi, &reason),
            Some(Outcome::Ended(over)) => return self.end(now, spi, *over),
            Some(Outcome::Up(up)) => self.up(now, spi, *up),
        }
        let Some(slot) = self.sas.get_mut(spi) else { return };
        let mut replaced = None;
        // One timer for each IKE SA: the earliest of retransmission, lifetime and liveness check.
        let due = match &mut slot.sa {
            IkeSa::Handshake(handshake) => handshake.deadline(),
            IkeSa::Established(sa) if sa.ending == Ending::Ended => return self.remove(spi),
            IkeSa::Established(sa) => {
                replaced = sa.took_over();
                let (exchange, sa) = (sa.exchanges.deadline(), sa.deadline());
                exchange.map_or(sa, |exchange| Some(sa.map_or(exchange, |sa| sa.min(exchange))))
            }
        };
        self.set_timer(spi, due);
        if let Some(old) = replaced {
            self.take_the_place(now, spi, old);
        }
    }

    /// Ends the predecessor: its Child SAs are on the IKE SA of `spi`. Those that it got while the
    /// new one came up, by a command or a packet, should be requested first. Requests that it has
    /// not finished continue on the new one.
    fn take_the_place(&mut self, now: Instant, spi: &IkeSpi, mut predecessor: Predecessor) {
        let old = predecessor.ike;
        let late = self.late_children(spi, &predecessor);
        if !late.is_empty() {
            predecessor.requested.extend(late.iter().map(|request| request.config.name.clone()));
            self.with(now, spi, |sa, ctx| {
                late.into_iter().for_each(|request| sa.request_child(ctx, request));
                sa.takes_over(predecessor);
            });
            return;
        }
        let unfinished = match self.by_id.get(&old).copied().and_then(|spi| self.sas.get_mut(&spi)) {
            Some(Slot { sa: IkeSa::Established(sa), .. }) if sa.ending == Ending::No && !sa.is_unwanted_ike() => {
                sa.take_requests()
            }
            _ => Vec::new(),
        };
        if !unfinished.is_empty() {
            self.with(now, spi, |sa, ctx| {
                for request in unfinished {
                    let config = sa.as_loaded(&request.config);
                    sa.request_child(ctx, ChildRequest { config, ..request });
                }
            });
        }
        self.supersede(now, old, false, "a new IKE SA takes its place");
    }

    /// Child SAs of the predecessor that the IKE SA of `spi` does not have.
    fn late_children(&self, spi: &IkeSpi, predecessor: &Predecessor) -> Vec<ChildRequest> {
        let established = |spi: &IkeSpi| match self.sas.get(spi).map(|slot| &slot.sa) {
            Some(IkeSa::Established(sa)) => Some(sa),
            _ => None,
        };
        let (Some(new), Some(old)) = (established(spi), self.by_id.get(&predecessor.ike).and_then(established)) else {
            return Vec::new();
        };
        if old.ending != Ending::No || old.is_unwanted_ike() {
            return Vec::new();
        }
        let mut here = self.sections_of(spi);
        here.extend_from_slice(&predecessor.requested);
        let stays = |child: &&Child| child.is_live() && child.cpu.is_none() && !old.is_unwanted(child.id);
        let late = old.children.iter().filter(stays);
        let late = late.filter(|child| !here.contains(&child.config.name));
        let request = |child: &Child| {
            let config = new.as_loaded(&child.config);
            ChildRequest { config, packet: None, cpu: None, command: None }
        };
        late.map(request).collect()
    }

    fn log_refused(&mut self, now: Instant, spi: &IkeSpi, reason: &str) {
        self.shared.count(counters::IKE_FAILED);
        let Some(Slot { sa: IkeSa::Handshake(handshake), .. }) = self.sas.get(spi) else { return };
        if self.lines.allows(now) {
            let (id, from) = (handshake.id(), handshake.path().remote);
            self.shared.log(Level::Warn, Some(id), format!("handshake with {from} refused: {reason}"));
        }
    }

    /// A handshake failed.
    pub(super) fn end(&mut self, now: Instant, spi: &IkeSpi, over: Ended) {
        let Some(Slot { sa: IkeSa::Handshake(handshake), .. }) = self.sas.get(spi) else { return };
        let (id, connection) = (handshake.id(), handshake.connection().map(|connection| connection.name.clone()));
        let initiator = matches!(**handshake, Handshake::Initiator(_));
        if let Some(request_id) = handshake.request_id() {
            self.shared.names.request_ids.remove(&request_id);
            self.shared.out.push_back(Output::CancelRequest(request_id));
        }
        if !over.reason.is_empty() && (initiator || self.lines.allows(now)) {
            let name = connection.map_or_else(String::new, |name| format!(" of '{name}'"));
            let level = if over.next.is_some() { Level::Warn } else { Level::Error };
            self.shared.log(level, Some(id), format!("the IKE SA{name} did not come up: {}", over.reason));
            self.shared.count(counters::IKE_FAILED);
        }
        // Before the next attempt starts: otherwise the failed one would still count against the
        // limit of IKE SAs.
        self.remove(spi);
        let waiting = over.commands.iter().copied().chain(over.children.iter().filter_map(|child| child.command));
        for command in waiting {
            self.shared
                .out
                .push_back(Output::Event(Event::CommandDone(command, Err(CommandError::new(over.reason.clone())))));
        }
        match over.next {
            Some((initiation, redirects, false)) => self.initiate_now(now, initiation, redirects),
            Some((initiation, redirects, true)) => self.initiate_later(now, initiation, redirects),
            None => (),
        }
    }

    /// Takes an IKE SA out of every table.
    pub(super) fn remove(&mut self, spi: &IkeSpi) {
        self.set_timer(spi, None);
        let Some(slot) = self.sas.remove(spi) else { return };
        self.towards.remove(spi);
        if let Some(key) = &slot.half_open {
            self.half_open.remove(key, spi);
        }
        let (id, connection) = match &slot.sa {
            IkeSa::Handshake(handshake) => (handshake.id(), handshake.connection().cloned()),
            IkeSa::Established(sa) => (sa.id, Some(sa.connection.clone())),
        };
        self.shared.names.end_contact(id);
        // A rekeyed IKE SA keeps its ID under a new SPI: the tables by ID then belong to the
        // successor.
        if self.by_id.get(&id) != Some(spi) {
            // A successor has the name.
            return;
        }
        self.by_id.remove(&id);
        if let Some(name) = connection.map(|connection| connection.name.clone())
            && let Some(ids) = self.by_connection.get_mut(&name)
        {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_connection.remove(&name);
            }
        }
        if let IkeSa::Established(sa) = &slot.sa {
            for child in &sa.children {
                self.children.remove(&child.id);
                self.shared.names.claims.leave(child.id);
            }
            self.shared.names.forget_peer(&sa.identities(), id);
        }
    }

    /// A handshake succeeded.
    fn up(&mut self, now: Instant, spi: &IkeSpi, up: Up) {
        let Some(slot) = self.sas.get_mut(spi) else { return };
        let Up { sa, children, commands, replaces, initial_contact } = up;
        let (id, key, remote) = (sa.id, sa.identities(), sa.path.remote);
        let (connection, responder) = (sa.connection.clone(), sa.role == Role::Responder);
        slot.sa = IkeSa::Established(sa);
        self.towards.remove(spi);
        if let Some(request) = slot.half_open.take() {
            // The limits for half-open IKE SAs concern unauthenticated initiators; this one has
            // authenticated.
            self.half_open.remove(&request, spi);
        }
        self.by_connection.entry(connection.name.clone()).or_default().insert(id);
        // Peers may share an identity, so this list can be as long as that of all IKE SAs.
        let is_unique = responder && connection.unique != Unique::Never;
        let others: Vec<IkeId> = match is_unique {
            true => self.shared.names.with_peer(&key.0, &key.1).filter(|other| *other != id).collect(),
            false => Vec::new(),
        };
        self.shared.names.peers.entry(key).or_default().push(id);
        self.shared.names.end_contact(id);
        for command in commands {
            self.shared.out.push_back(Output::Event(Event::CommandDone(command, Ok(()))));
        }
        let addresses = self.shared.names.local_addresses.clone();
        // The connection may have been loaded again during the handshake.
        let loaded = self.shared.connections.iter().find(|one| one.name == connection.name);
        let reloaded = loaded.filter(|one| !Arc::ptr_eq(one, &connection)).cloned();
        if let Some(old) = replaces.and_then(|old| self.by_id.get(&old).copied()) {
            self.with(now, &old, |sa, _| sa.inherited_by(id));
        }
        self.with(now, spi, |sa, ctx| {
            sa.announced_addresses(&addresses);
            match &reloaded {
                Some(connection) if connection.version != Version::V2 => {
                    return sa.terminate(ctx, false, OTHER_VERSION, None);
                }
                Some(connection) => sa.reloaded(ctx, connection),
                None => (),
            }
            for child in children {
                sa.request_child(ctx, child);
            }
            if let Some(old) = replaces {
                sa.takes_over(Predecessor::new(old));
            }
        });
        if !is_unique {
            return;
        }
        for other in others {
            let Some(other_spi) = self.by_id.get(&other).copied() else { continue };
            // INITIAL_CONTACT concerns IKE SAs that are older than the handshake. One that was
            // established during the handshake is still known to the peer.
            let is_older = |began: Instant| match self.sas.get(&other_spi).map(|slot| &slot.sa) {
                Some(IkeSa::Established(sa)) => sa.established < began,
                _ => true,
            };
            if initial_contact.is_some_and(is_older) {
                self.supersede(now, other, true, "the peer has forgotten it (INITIAL_CONTACT)");
            } else if connection.unique == Unique::Replace {
                let same = |sa: &Established| sa.path.remote == remote;
                let reauth =
                    matches!(&self.sas.get(&other_spi).map(|slot| &slot.sa), Some(IkeSa::Established(sa)) if same(sa));
                // The same address and port suggest a reauthentication: the peer deletes the old
                // IKE SA itself when the new Child SAs are installed.
                let at = if reauth { now + REAUTH_GRACE } else { now };
                // One entry for each: the peer may authenticate often within this time.
                let due = self.retiring.entry(other).or_insert(at);
                *due = at.min(*due);
            }
        }
        self.retire(now);
    }

    /// Runs a closure on an authenticated IKE SA.
    pub(super) fn with<T>(
        &mut self,
        now: Instant,
        spi: &IkeSpi,
        act: impl FnOnce(&mut Established, &mut crate::context::Context<'_>) -> T,
    ) -> Option<T> {
        let mut result = None;
        self.step(now, spi, |sa, ctx| {
            if let IkeSa::Established(sa) = sa {
                result = Some(act(sa, ctx));
            }
            None
        });
        result
    }

    /// Ends an IKE SA that another one with the same peer replaces. Traps are left for sections
    /// that the other one does not have.
    fn supersede(&mut self, now: Instant, old: IkeId, force: bool, reason: &str) {
        let Some(spi) = self.by_id.get(&old).copied() else { return };
        let Some(Slot { sa: IkeSa::Established(sa), .. }) = self.sas.get(&spi) else { return };
        let others = self.spis_of(&sa.connection.name).into_iter().filter(|other| *other != spi);
        let elsewhere: Vec<String> = others.flat_map(|other| self.sections_of(&other)).collect();
        self.with(now, &spi, |sa, ctx| {
            sa.leave_traps(ctx, &elsewhere);
            sa.terminate(ctx, force, reason, None);
        });
    }

    /// Sections of which an IKE SA has Child SAs.
    fn sections_of(&self, spi: &IkeSpi) -> Vec<String> {
        match self.sas.get(spi).map(|slot| &slot.sa) {
            Some(IkeSa::Established(sa)) => {
                let live = sa.children.iter().filter(|child| child.is_live() && child.cpu.is_none());
                live.map(|child| child.config.name.clone()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Ends expired duplicates.
    pub(super) fn retire(&mut self, now: Instant) {
        let due: Vec<IkeId> = self.retiring.extract_if(.., |_, at| *at <= now).map(|(id, _)| id).collect();
        for id in due {
            self.supersede(now, id, false, "a newer IKE SA with the same peer replaces it");
        }
    }

    /// Adds IKE SAs that other IKE SAs created by rekeying or request.
    pub(super) fn take_born(&mut self, now: Instant) {
        for birth in std::mem::take(&mut self.shared.born) {
            match birth {
                NewSa::Rekeyed(sa) => {
                    let (spi, id) = (own_spi(&sa), sa.id);
                    // The ID refers to the successor from here on. `remove` of the predecessor
                    // relies on that and leaves the shared tables unchanged.
                    self.by_id.insert(id, spi);
                    self.sas.insert(spi, Slot { sa: IkeSa::Established(sa), due: None, half_open: None });
                    // Sets its timer and starts its pending tasks.
                    self.with(now, &spi, |_, _| ());
                }
                NewSa::Initiate(initiation) if self.is_under_way(&initiation) => (),
                NewSa::Initiate(initiation) => self.initiate_now(now, initiation, Redirects::default()),
            }
        }
    }

    /// A requested attempt may already be in progress: one that replaces the same IKE SA, or any to
    /// the same peer if it replaces none. Both would be established, so the first takes over the
    /// requests of the second.
    fn is_under_way(&mut self, initiation: &Initiation) -> bool {
        let same = |other: &Initiation| {
            other.connection.name == initiation.connection.name
                && other.remote == initiation.remote
                && (initiation.replaces.is_none() || other.replaces == initiation.replaces)
        };
        if let Some((_, waiting, _)) = self.later.iter_mut().find(|(_, waiting, _)| same(waiting)) {
            for child in &initiation.children {
                if !waiting.children.iter().any(|other| other.config.name == child.config.name) {
                    waiting.children.push(child.clone());
                }
            }
            waiting.commands.extend(&initiation.commands);
            return true;
        }
        if let Some((waiting, _)) = self.awaiting.iter_mut().find(|(waiting, _)| same(waiting)) {
            return initiation.children.iter().all(|child| waiting.want(Some(child.clone()), None))
                && initiation.commands.iter().all(|command| waiting.want(None, Some(*command)));
        }
        if initiation.connection.version == Version::V1 {
            return self.v1.join(initiation);
        }
        for spi in self.spis_of(&initiation.connection.name) {
            if let Some(Slot { sa: IkeSa::Handshake(handshake), .. }) = self.sas.get_mut(&spi)
                && let Handshake::Initiator(initiator) = handshake.as_mut()
                && same(initiator.initiation())
            {
                let children = initiation.children.iter().all(|child| initiator.want(Some(child.clone()), None));
                return children && initiation.commands.iter().all(|command| initiator.want(None, Some(*command)));
            }
        }
        false
    }

    /// Starts attempts that are due.
    pub(super) fn start_later(&mut self, now: Instant) {
        while let Some(at) = self.later.iter().position(|(at, ..)| *at <= now) {
            let (_, mut initiation, redirects) = self.later.swap_remove(at);
            if !initiation.follow(&self.shared.connections) {
                self.fail_initiation(&initiation, "its connection is not loaded any more".to_owned());
                continue;
            }
            self.initiate_now(now, initiation, redirects);
        }
    }

    pub(super) fn initiate_later(&mut self, now: Instant, initiation: Initiation, redirects: Redirects) {
        // The second attempt waits BACK_OFF. 16 doublings already exceed BACK_OFF_MAX and fit in 32
        // bits.
        let doublings = initiation.attempt.saturating_sub(2).min(16);
        let wait = BACK_OFF.saturating_mul(1 << doublings).min(BACK_OFF_MAX);
        if let Some(reason) = self.admission.refusal() {
            return self.fail_initiation(&initiation, reason.to_owned());
        }
        if self.later.len() >= LATER_MAX {
            return self.fail_initiation(&initiation, "too many attempts wait already".to_owned());
        }
        self.later.push((now + wait, initiation, redirects));
    }

    /// Requests the resolution of the peer's host name.
    fn find_host(&mut self, host: String, initiation: Initiation, redirects: Redirects) {
        if self.naming.len() >= LATER_MAX {
            return self.fail_initiation(&initiation, "too many attempts wait already".to_owned());
        }
        let number = self.shared.names.hosts.number();
        self.naming.insert(number, (initiation, redirects));
        self.shared.out.push_back(Output::Resolve(number, host));
    }

    pub(super) fn fail_initiation(&mut self, initiation: &Initiation, reason: String) {
        let waiting = initiation.children.iter().filter_map(|child| child.command);
        for command in initiation.commands.iter().copied().chain(waiting) {
            self.shared
                .out
                .push_back(Output::Event(Event::CommandDone(command, Err(CommandError::new(reason.clone())))));
        }
        self.shared.log(Level::Error, None, format!("'{}' cannot be initiated: {reason}", initiation.connection.name));
    }

    /// Starts an IKE SA as initiator.
    pub(super) fn initiate_now(&mut self, now: Instant, mut initiation: Initiation, redirects: Redirects) {
        if let Some(reason) = self.admission.refusal() {
            return self.fail_initiation(&initiation, reason.to_owned());
        }
        if let Some(host) = initiation.host.take() {
            return self.find_host(host, initiation, redirects);
        }
        let Some((initiation, redirects)) = self.locate(now, initiation, redirects) else { return };
        if self.ike_sa_count() >= self.shared.settings.ike_sas_max {
            let reason = format!("there are {} IKE SAs, which is the limit", self.ike_sa_count());
            return self.fail_initiation(&initiation, reason);
        }
        // A responder with `remote_addrs = %any` has no address to which it could send a request.
        let Some(path) = self.path_of(&initiation) else {
            let reason = "no single remote address is known".to_owned();
            return self.fail_initiation(&initiation, reason);
        };
        if initiation.connection.version == Version::V1 {
            return self.initiate_v1(now, path, initiation);
        }
        self.refresh_authorities(now, &initiation.connection);
        let id = self.fresh_name();
        let spi = self.shared.ike_spi(|spi| self.sas.contains_key(spi));
        let (name, by_packet) = (initiation.connection.name.clone(), initiation.by_packet);
        let mut ctx = self.shared.context(now);
        match Initiator::start(&mut ctx, id, spi, path, initiation, redirects) {
            Ok(initiator) => {
                let due = initiator.deadline();
                let sa = IkeSa::Handshake(Box::new(Handshake::Initiator(initiator)));
                self.sas.insert(spi, Slot { sa, due: None, half_open: None });
                if by_packet {
                    self.towards.insert(spi);
                }
                self.by_id.insert(id, spi);
                self.by_connection.entry(name).or_default().insert(id);
                self.set_timer(&spi, due);
            }
            Err(failed) => {
                let (error, initiation) = *failed;
                ctx.note_internal(id, &error);
                self.fail_initiation(&initiation, error.to_string());
            }
        }
    }

    fn initiate_v1(&mut self, now: Instant, path: Path, initiation: Initiation) {
        let id = self.fresh_name();
        if let Err(failed) = self.with_v1(now, |v1, ctx| v1.initiate(ctx, id, path, initiation)) {
            self.fail_initiation(&failed.1, failed.0);
        }
    }

    /// Source and destination: the port that a peer moves to with a NAT is the first when it is
    /// configured (`remote_port = 4500`).
    pub(super) fn path_of(&self, initiation: &Initiation) -> Option<Path> {
        let connection = &initiation.connection;
        let single = |range: &&wire::AddrRange| range.start == range.end;
        let ranges = |hosts: &[crate::config::Host]| self.shared.names.hosts.ranges(hosts);
        let (local_addrs, remote_addrs) = (ranges(&connection.local_addrs), ranges(&connection.remote_addrs));
        let mut remote = match initiation.remote {
            Some(remote) => remote,
            None => {
                let addr = remote_addrs.iter().flatten().find(single)?.start;
                (addr, connection.remote_port).into()
            }
        };
        if remote.port() == 0 {
            remote.set_port(connection.remote_port);
        }
        let family = |addr: &std::net::IpAddr| addr.is_ipv4() == remote.is_ipv4();
        let configured = local_addrs.iter().flatten().filter(single).map(|range| range.start).find(family);
        let allowed = |addr: &std::net::IpAddr| {
            local_addrs.as_ref().is_none_or(|ranges| ranges.iter().any(|range| range.contains(*addr)))
        };
        let known: Vec<std::net::IpAddr> = self.shared.names.local_addresses.iter().copied().filter(allowed).collect();
        let unspecified = match remote {
            std::net::SocketAddr::V4(_) => std::net::IpAddr::from([0u8; 4]),
            std::net::SocketAddr::V6(_) => std::net::IpAddr::from([0u8; 16]),
        };
        let routed = || (self.shared.sources)(remote.ip()).filter(|addr| family(addr) && allowed(addr));
        // The packet that chose the peer needs a Child SA with its own source.
        let source = || initiation.children.iter().find_map(|child| Some(child.packet?.0.addrs.start));
        let asked = initiation.by_packet.then(source).flatten().filter(|addr| family(addr) && allowed(addr));
        // A single address of `local_addrs` precedes the routing table, because the operator chose
        // it for this peer.
        let local =
            asked.or(configured).or_else(routed).or_else(|| best_local(&known, remote.ip())).unwrap_or(unspecified);
        // A peer's port 4500 expects the marker, which only port 4500 of this host writes.
        let floated = remote.port() == NAT_PORT && connection.local_port == crate::nat::IKE_PORT;
        let port = if floated { NAT_PORT } else { connection.local_port };
        Some(Path { local: (local, port).into(), remote, encap: false })
    }
}
