//! Inputs of the daemon: connections, commands, events of the data plane and of the host.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_core::CryptoRng;
use wire::{Spi, TrafficSelector};

use super::{Admission, Endpoint, IkeSpi, InitiateError};
use crate::config::{Action, AuthMethod, ChildConfig, ChildMode, Connection, PoolConfig, Version};
use crate::handshake::{Handshake, Redirects};
use crate::output::{ChildId, CredentialRequest, Event, IkeId, Output};
use crate::pool::Pools;
use crate::sa::{ChildRequest, Ending, IkeSa, Initiation};
use crate::task::reload::same_negotiation;

/// Reason for the end of an IKE SA.
pub(crate) const OTHER_VERSION: &str = "its connection has another version now";
/// Maximum age of the trusted authorities of a connection.
const AUTHORITIES_FRESH: Duration = Duration::from_secs(10);

impl<R: CryptoRng> Endpoint<R> {
    /// Replaces the connections. Those that are the same stay untouched, IKE SAs of changed ones
    /// follow them, and those of removed ones live until they end; trap policies follow, and
    /// connections with `start_action = start` are initiated.
    pub fn load(&mut self, now: Instant, connections: Vec<Arc<Connection>>) {
        let old = std::mem::take(&mut self.shared.connections);
        // By name: a client may load thousands of connections, each with a call of this function.
        let (before, after) = (by_name(&old), by_name(&connections));
        let same = |list: &HashMap<&str, &Arc<Connection>>, one: &Arc<Connection>| {
            let other = *list.get(one.name.as_str())?;
            (Arc::ptr_eq(other, one) || other == one).then(|| Arc::clone(other))
        };
        let mut stood = Vec::new();
        for gone in old.iter().filter(|one| same(&after, one).is_none()) {
            stood.extend(self.forget(gone));
        }
        // Keeps the same allocation, because IKE SAs compare by pointer.
        let loaded: Vec<Arc<Connection>> =
            connections.iter().map(|one| same(&before, one).unwrap_or_else(|| Arc::clone(one))).collect();
        let is_new = |one: &&Arc<Connection>| !before.get(one.name.as_str()).is_some_and(|old| Arc::ptr_eq(old, one));
        let fresh: Vec<Arc<Connection>> = loaded.iter().filter(is_new).cloned().collect();
        // Connections and host names must be in place before the first attempt, because it reads
        // both.
        self.shared.connections = loaded;
        self.load_hosts(now);
        self.refresh_all_authorities(now);
        for connection in fresh {
            self.put_in_force(now, &connection, &stood);
        }
    }

    /// Replaces or adds one connection, like [`Endpoint::load`] with all others unchanged. The work
    /// does not grow with the number of the others, unless one contains names of hosts: clients
    /// load thousands one by one.
    pub fn load_one(&mut self, now: Instant, connection: Arc<Connection>) {
        let mut stood = Vec::new();
        let mut named = connection.host_names().next().is_some();
        if let Some(at) = self.shared.connections.iter().position(|one| one.name == connection.name) {
            let old = self.shared.connections.remove(at);
            if old == connection {
                // Keep the pointer that its IKE SAs have, because callers compare by pointer.
                return self.shared.connections.push(old);
            }
            named |= old.host_names().next().is_some();
            stood = self.forget(&old);
        }
        self.shared.connections.push(Arc::clone(&connection));
        if named {
            self.load_hosts(now);
        }
        self.refresh_authorities(now, &connection);
        self.put_in_force(now, &connection, &stood);
    }

    /// Removes one connection, like [`Endpoint::load`] with all others unchanged.
    pub fn unload_one(&mut self, now: Instant, name: &str) {
        let Some(at) = self.shared.connections.iter().position(|one| one.name == name) else { return };
        let old = self.shared.connections.remove(at);
        self.forget(&old);
        if old.host_names().next().is_some() {
            self.load_hosts(now);
        }
    }

    /// Removes the state of a connection that is removed or replaced; returns which of its traps
    /// stood.
    fn forget(&mut self, old: &Arc<Connection>) -> Vec<(String, String)> {
        self.shared.names.authorities.remove(&old.name);
        self.shared.names.keys_v1.remove(&old.name);
        self.authorities_at.remove(&old.name);
        self.remove_traps(old)
    }

    /// IKE SAs of a connection that is new or has changed follow it; traps are installed, and
    /// connections with `start_action = start` are initiated. `stood`: traps of before.
    fn put_in_force(&mut self, now: Instant, connection: &Arc<Connection>, stood: &[(String, String)]) {
        match connection.version {
            Version::V1 => self.with_v1(now, |v1, ctx| v1.reloaded(ctx, connection)),
            Version::V2 => {
                for spi in self.spis_of(&connection.name) {
                    self.with(now, &spi, |sa, ctx| sa.reloaded(ctx, connection));
                }
            }
        }
        for child in &connection.children {
            let key = (connection.name.clone(), child.name.clone());
            // A trap of `dpd_action` or `close_action` exists without `start_action`. A reload must
            // keep it, because it protects the traffic of a Child SA that has ended.
            let left_behind = [child.dpd_action, child.close_action].contains(&Action::Trap) && stood.contains(&key);
            if child.start_action.trap || left_behind {
                self.shared.out.push_back(Output::Trap(connection.clone(), child.clone(), true));
                self.traps.insert(key);
            }
        }
        // After the traps, so that packets of the Child SAs that end do not leave in clear text.
        self.end_other_version(now, connection);
        let starts = |child: &&Arc<ChildConfig>| child.start_action.start && has_sa(child);
        let children: Vec<Arc<ChildConfig>> = connection.children.iter().filter(starts).cloned().collect();
        for child in children {
            let request = ChildRequest { config: child, packet: None, cpu: None, command: None };
            if !self.has_child(connection, &request) {
                let _ = self.want(now, connection, Some(request), None);
            }
        }
    }

    /// Ends the IKE SAs of a connection that had another version before: they cannot follow it.
    fn end_other_version(&mut self, now: Instant, connection: &Arc<Connection>) {
        let name = &connection.name;
        if connection.version == Version::V2 {
            return self.with_v1(now, |v1, ctx| v1.end_connection(ctx, name, OTHER_VERSION));
        }
        for spi in self.spis_of(name) {
            let ended = self.with(now, &spi, |sa, ctx| {
                sa.leave_traps(ctx, &[]);
                sa.terminate(ctx, false, OTHER_VERSION, None);
            });
            if ended.is_none() {
                self.cancel(now, &spi, OTHER_VERSION);
            }
        }
        // A gateway that a peer of IKEv2 named.
        let redirected: Vec<u64> = self
            .naming
            .iter()
            .filter(|(_, (one, _))| one.connection.name == *name)
            .map(|(number, _)| *number)
            .collect();
        for (initiation, _) in redirected.iter().filter_map(|number| self.naming.remove(number)).collect::<Vec<_>>() {
            self.fail_initiation(&initiation, OTHER_VERSION.to_owned());
        }
    }

    /// Replaces the pools of virtual addresses; leases stay where their address does.
    pub fn load_pools(&mut self, pools: Vec<PoolConfig>) {
        self.shared.pools.load(pools);
    }

    /// The pools with their leases.
    pub fn pools(&self) -> &Pools {
        &self.shared.pools
    }

    /// The loaded connections.
    pub fn connections(&self) -> &[Arc<Connection>] {
        &self.shared.connections
    }

    /// Certificates of authorities changed: every connection requests its trust anchors again.
    pub fn credentials_changed(&mut self, now: Instant) {
        self.authorities_at.clear();
        self.refresh_all_authorities(now);
    }

    /// Returns whether this host has post-quantum preshared keys: with any, every connection
    /// responds to USE_PPK (RFC 8784).
    pub fn set_has_ppks(&mut self, there: bool) {
        self.shared.names.has_ppks = there;
    }

    /// Brings up a connection, or one Child SA of it. [`Event::CommandDone`] reports the result to
    /// `command`.
    ///
    /// # Errors
    /// [`InitiateError`]: no negotiation was started, and no event follows.
    pub fn initiate(
        &mut self,
        now: Instant,
        connection: &str,
        child: Option<&str>,
        command: u64,
    ) -> Result<(), InitiateError> {
        let (connection, config) = self.find(connection, child)?;
        let Some(config) = config else {
            return self.want(now, &connection, None, Some(command));
        };
        let request = ChildRequest { config, packet: None, cpu: None, command: Some(command) };
        self.want(now, &connection, Some(request), None)
    }

    /// A packet met a trap policy. Its selectors (local, remote) go first into the offer (RFC 7296
    /// §2.9); `cpu` is set when a Child SA for that CPU is wanted (RFC 9611).
    pub fn acquire(
        &mut self,
        now: Instant,
        connection: &str,
        child: &str,
        packet: Option<(TrafficSelector, TrafficSelector)>,
        cpu: Option<u32>,
    ) {
        if self.admission != Admission::Open {
            return;
        }
        let Ok((connection, Some(config))) = self.find(connection, Some(child)) else { return };
        if connection.peer_is_destination(&config) && connection.version == Version::V2 {
            return self.acquire_towards(now, &connection, ChildRequest { config, packet, cpu, command: None });
        }
        let request = ChildRequest { config, packet, cpu, command: None };
        // An unreachable peer is logged for a command only, because packets repeat the request.
        let _ = self.want(now, &connection, Some(request), None);
    }

    fn find(
        &self,
        connection: &str,
        child: Option<&str>,
    ) -> Result<(Arc<Connection>, Option<Arc<ChildConfig>>), InitiateError> {
        let found = self.shared.connections.iter().find(|one| one.name == connection);
        let connection = found.ok_or_else(|| InitiateError::NoSuchConnection(connection.to_owned()))?.clone();
        let config = match child {
            None => None,
            Some(name) => {
                let config = connection.children.iter().find(|one| one.name == name && has_sa(one));
                Some(config.ok_or_else(|| InitiateError::NoSuchChild(name.to_owned()))?.clone())
            }
        };
        Ok((connection, config))
    }

    /// A Child SA, or just an IKE SA: with an established IKE SA, one in negotiation, or a new one.
    fn want(
        &mut self,
        now: Instant,
        connection: &Arc<Connection>,
        child: Option<ChildRequest>,
        command: Option<u64>,
    ) -> Result<(), InitiateError> {
        if self.admission == Admission::Draining {
            return Err(InitiateError::Draining);
        }
        let full = || InitiateError::QueueFull(connection.name.clone());
        if connection.version == Version::V1 {
            let name = connection.name.as_str();
            if self.with_v1(now, |v1, ctx| v1.want(ctx, name, child.clone(), command)) {
                return Ok(());
            }
        }
        // IKE SAs of version 2 that are being deleted may be left from before a reload.
        let spis = if connection.version == Version::V2 { self.spis_of(&connection.name) } else { Vec::new() };
        let live = |spi: &&IkeSpi| matches!(self.sas.get(*spi).map(|slot| &slot.sa), Some(IkeSa::Established(sa)) if sa.ending == Ending::No);
        // The newest: an older one may be about to end for it.
        if let Some(spi) = spis.iter().rfind(live).copied() {
            if let Some(command) = command {
                self.shared.out.push_back(Output::Event(Event::CommandDone(command, Ok(()))));
            }
            if let Some(child) = child {
                self.with(now, &spi, |sa, ctx| sa.request_child(ctx, child));
            }
            return Ok(());
        }
        for spi in &spis {
            let Some(slot) = self.sas.get_mut(spi) else { continue };
            if let IkeSa::Handshake(handshake) = &mut slot.sa
                && let Handshake::Initiator(initiator) = handshake.as_mut()
                && initiator.want(child.clone(), command)
            {
                return Ok(());
            }
        }
        // A delayed attempt starts now, because it was requested.
        if let Some(at) = self.later.iter().position(|(_, waiting, _)| waiting.connection.name == connection.name) {
            let (_, mut initiation, redirects) = self.later.swap_remove(at);
            // The connection may have been loaded again, with another version.
            initiation.follow(&self.shared.connections);
            let queued = initiation.want(child, command);
            self.initiate_now(now, initiation, redirects);
            return queued.then_some(()).ok_or_else(full);
        }
        if let Some((waiting, _)) = self.naming.values_mut().find(|(one, _)| one.connection.name == connection.name) {
            return waiting.want(child, command).then_some(()).ok_or_else(full);
        }
        if let Some(at) = self.awaiting.iter().position(|(one, _)| one.connection.name == connection.name) {
            let (mut waiting, redirects) = self.awaiting.swap_remove(at);
            let queued = waiting.want(child, command);
            self.initiate_now(now, waiting, redirects);
            return queued.then_some(()).ok_or_else(full);
        }
        if self.ike_sa_count() >= self.shared.settings.ike_sas_max {
            return Err(InitiateError::TooMany(self.ike_sa_count()));
        }
        let initiation = Initiation {
            connection: connection.clone(),
            children: child.into_iter().collect(),
            remote: None,
            host: None,
            attempt: 1,
            replaces: None,
            addresses: Vec::new(),
            commands: command.into_iter().collect(),
            by_packet: false,
        };
        let named = connection.remote_addrs.iter().any(|host| host.name().is_some());
        if !named && self.path_of(&initiation).is_none() {
            return Err(InitiateError::NoRemoteAddress(connection.name.clone()));
        }
        self.initiate_now(now, initiation, Redirects::default());
        Ok(())
    }

    pub(super) fn spis_of(&self, connection: &str) -> Vec<IkeSpi> {
        let ids = self.by_connection.get(connection).into_iter().flatten();
        ids.filter_map(|id| self.by_id.get(id).copied()).collect()
    }

    /// Of every IKE SA, in an order that repeats.
    fn all_spis(&self) -> Vec<IkeSpi> {
        let mut spis: Vec<IkeSpi> = self.sas.keys().copied().collect();
        spis.sort_unstable();
        spis
    }

    fn has_child(&self, connection: &Connection, request: &ChildRequest) -> bool {
        if connection.version == Version::V1 {
            return self.v1.has_child(&connection.name, request);
        }
        self.spis_of(&connection.name).iter().any(|spi| match self.sas.get(spi).map(|slot| &slot.sa) {
            Some(IkeSa::Established(sa)) => sa.children.iter().any(|child| {
                child.config.name == request.config.name && same_negotiation(&child.config, &request.config)
            }),
            _ => false,
        })
    }

    /// Ends an IKE SA: with a Delete and its response, or at once with `force`. The result is
    /// reported to `command`. Returns false if it does not exist.
    pub fn terminate_ike(&mut self, now: Instant, ike: IkeId, force: bool, command: u64) -> bool {
        let Some(spi) = self.by_id.get(&ike).copied() else {
            return self.with_v1(now, |v1, ctx| v1.terminate(ctx, ike, "it was terminated", Some(command)));
        };
        let done = self.with(now, &spi, |sa, ctx| sa.terminate(ctx, force, "", Some(command)));
        if done.is_none() {
            self.cancel(now, &spi, "it was terminated");
            self.shared.out.push_back(Output::Event(Event::CommandDone(command, Ok(()))));
        }
        true
    }

    fn cancel(&mut self, now: Instant, spi: &IkeSpi, reason: &str) {
        self.step(now, spi, |sa, ctx| match sa {
            IkeSa::Handshake(handshake) => {
                Some(crate::handshake::Outcome::Ended(Box::new(handshake.cancel(ctx, reason))))
            }
            IkeSa::Established(sa) => {
                ctx.internal_error(sa.id, "an established IKE SA is cancelled like a handshake");
                None
            }
        });
    }

    /// Ends a Child SA with a Delete. False when there is none of that name.
    pub fn terminate_child(&mut self, now: Instant, child: ChildId, command: u64) -> bool {
        if let Some(ike) = self.v1_of(child) {
            return self.with_v1(now, |v1, ctx| v1.terminate_child(ctx, ike, child, command));
        }
        self.with_child(now, child, |sa, ctx| sa.terminate_child(ctx, child, "", Some(command))) == Some(true)
    }

    /// Rekeys an IKE SA, or reauthenticates with `reauth`. Returns false if no established one
    /// exists.
    pub fn rekey_ike(&mut self, now: Instant, ike: IkeId, reauth: bool, command: u64) -> bool {
        let Some(spi) = self.by_id.get(&ike).copied() else {
            return self.with_v1(now, |v1, ctx| v1.rekey(ctx, ike, command));
        };
        self.with(now, &spi, |sa, ctx| sa.rekey(ctx, reauth, Some(command))).is_some()
    }

    /// Rekeys a Child SA. False when there is none of that name.
    pub fn rekey_child(&mut self, now: Instant, child: ChildId, command: u64) -> bool {
        if let Some(ike) = self.v1_of(child) {
            return self.with_v1(now, |v1, ctx| v1.rekey_child(ctx, ike, child, command));
        }
        self.with_child(now, child, |sa, ctx| sa.rekey_child(ctx, child, Some(command))) == Some(true)
    }

    /// The data plane has counted as many bytes or packets as a Child SA may see before it is
    /// rekeyed, or (`hard`) at all.
    pub fn child_expired(&mut self, now: Instant, child: ChildId, hard: bool) {
        if let Some(ike) = self.v1_of(child) {
            return self.with_v1(now, |v1, ctx| v1.child_expired(ctx, ike, child, hard));
        }
        self.with_child(now, child, |sa, ctx| sa.child_expired(ctx, child, hard));
    }

    /// Authentic packets came on a Child SA, with their outer source where they came in UDP. Once a
    /// second is often enough.
    pub fn traffic(&mut self, now: Instant, child: ChildId, from: Option<SocketAddr>) {
        if let Some(ike) = self.v1_of(child) {
            return self.with_v1(now, |v1, ctx| v1.traffic(ctx, ike, child, from));
        }
        self.with_child(now, child, |sa, ctx| sa.traffic(ctx, child, from));
    }

    /// Name of the IKE SA of a Child SA when it came up, if that is not one of IKEv2.
    fn v1_of(&self, child: ChildId) -> Option<IkeId> {
        self.children.get(&child).copied().filter(|ike| !self.by_id.contains_key(ike))
    }

    fn with_child<T>(
        &mut self,
        now: Instant,
        child: ChildId,
        act: impl FnOnce(&mut crate::sa::Established, &mut crate::context::Context<'_>) -> T,
    ) -> Option<T> {
        let spi = self.by_id.get(self.children.get(&child)?).copied()?;
        self.with(now, &spi, act)
    }

    /// The addresses of this host: at the start, and whenever they change.
    pub fn local_addresses(&mut self, now: Instant, addresses: &[IpAddr]) {
        if self.shared.names.local_addresses == addresses {
            return;
        }
        self.shared.names.local_addresses = addresses.to_vec();
        for spi in self.all_spis() {
            self.with(now, &spi, |sa, ctx| sa.local_addresses(ctx, addresses));
        }
    }

    /// Replaces the SPIs that other key sources on this host receive with: no Child SA will use
    /// one.
    pub fn reserve_spis(&mut self, spis: impl IntoIterator<Item = Spi>) {
        self.shared.names.reserve_spis(spis);
    }

    /// Accepts and initiates no IKE SA from now on, whether a peer, a packet or a reload requests
    /// it. IKE SAs that exist continue until they are [terminated](Self::terminate_ike); traps
    /// stay, because their traffic should be dropped rather than leave in clear text.
    pub fn drain(&mut self) {
        if self.admission == Admission::Open {
            self.admission = Admission::Draining;
            self.held.clear();
        }
        let later = std::mem::take(&mut self.later).into_iter().map(|(_, one, _)| one);
        let awaiting = std::mem::take(&mut self.awaiting).into_iter().map(|(one, _)| one);
        let naming = std::mem::take(&mut self.naming).into_values().map(|(one, _)| one);
        // Each may have commands, whose clients wait for an answer.
        for initiation in later.chain(awaiting).chain(naming) {
            self.fail_initiation(&initiation, "the gateway is being drained".to_owned());
        }
    }

    /// Ends everything: sends a Delete to each peer without waiting for responses. To be polled
    /// until it is empty.
    pub fn shutdown(&mut self, now: Instant) {
        // Set first, so that no step below can start a new attempt.
        self.admission = Admission::Closing;
        self.later.clear();
        self.naming.clear();
        self.awaiting.clear();
        self.held.clear();
        for spi in self.all_spis() {
            if self.with(now, &spi, |sa, ctx| sa.terminate(ctx, true, "", None)).is_none() {
                self.cancel(now, &spi, "weir is stopping");
            }
        }
        self.with_v1(now, |v1, ctx| v1.shutdown(ctx));
        for connection in std::mem::take(&mut self.shared.connections) {
            self.remove_traps(&connection);
        }
    }

    /// Removes every trap policy of a connection, including those of `dpd_action` and
    /// `close_action`; returns the removed ones.
    fn remove_traps(&mut self, connection: &Arc<Connection>) -> Vec<(String, String)> {
        let mut stood = Vec::new();
        for child in &connection.children {
            if let Some(key) = self.traps.take(&(connection.name.clone(), child.name.clone())) {
                self.shared.out.push_back(Output::Trap(connection.clone(), child.clone(), false));
                stood.push(key);
            }
        }
        stood
    }

    /// Requests the trust anchors of a connection, unless they were requested recently: CERTREQ is
    /// part of messages that cannot wait for a response.
    pub(super) fn refresh_authorities(&mut self, now: Instant, connection: &Arc<Connection>) {
        let certs = |method: &AuthMethod| matches!(method, AuthMethod::Any | AuthMethod::PublicKey(_));
        // A responder of IKEv1 selects the method by the keys of this host.
        let v1 = connection.version == Version::V1;
        let wanted = (connection.send_certreq && connection.remote.iter().any(|auth| certs(&auth.method)))
            || (v1 && connection.local.iter().any(|auth| certs(&auth.method)));
        if !wanted {
            return;
        }
        let at = self.authorities_at.get(&connection.name);
        if at.is_some_and(|at| now.saturating_duration_since(*at) < AUTHORITIES_FRESH) {
            return;
        }
        // Time of the request, not of the response: handshakes that start meanwhile must not repeat
        // it.
        self.authorities_at.insert(connection.name.clone(), now);
        let request_id = self.shared.names.request_id();
        self.asked.insert(request_id, connection.name.clone());
        let request = match connection.version {
            Version::V1 => CredentialRequest::KeysV1(connection.clone()),
            Version::V2 => CredentialRequest::TrustedAuthorities(connection.clone()),
        };
        self.shared.out.push_back(Output::RequestCredentials(request_id, request));
    }

    fn refresh_all_authorities(&mut self, now: Instant) {
        for connection in self.shared.connections.clone() {
            self.refresh_authorities(now, &connection);
        }
    }
}

/// Connections by their names, which are unique.
fn by_name(connections: &[Arc<Connection>]) -> HashMap<&str, &Arc<Connection>> {
    connections.iter().map(|connection| (connection.name.as_str(), connection)).collect()
}

/// `pass` and `drop` are policies, not Child SAs.
fn has_sa(child: &ChildConfig) -> bool {
    !matches!(child.mode, ChildMode::Pass | ChildMode::Drop)
}
