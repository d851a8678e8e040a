//! One host: an endpoint, its credentials, its packet side, its clock.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ike::config::{Connection, PoolConfig};
use ike::output::{ChildId, Event, IkeId, Level, Output, Transmit};
use ike::testkit::{self, Credentials};
use ike::{Endpoint, IkeState, Settings};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use crate::Plane;
use crate::net::Nat;

/// One host.
pub struct Host {
    /// Its endpoint.
    pub endpoint: Endpoint<ChaCha8Rng>,
    /// Identity and trust anchors; survive a crash.
    pub credentials: Credentials,
    /// Its configuration; survives a crash.
    pub connections: Vec<Connection>,
    /// Virtual addresses that it gives to others.
    pub pools: Vec<PoolConfig>,
    /// Its limits.
    pub settings: Settings,
    /// Its own addresses.
    pub addrs: Vec<IpAddr>,
    /// A translator in front of it.
    pub nat: Option<Nat>,
    /// Offset of its clock to the simulation.
    pub ahead: Duration,
    /// Its packet side.
    pub plane: Plane,
    pub(crate) seed: u64,
    pub(crate) crashes: u64,
}

impl Host {
    /// A host that has just been switched on, without configuration.
    pub(crate) fn new(seed: u64, number: u8, settings: Settings, now: Instant) -> Self {
        let seed = seed.wrapping_mul(251).wrapping_add(number.into());
        let mut host = Self {
            endpoint: Endpoint::new(settings.clone(), ChaCha8Rng::seed_from_u64(seed)),
            credentials: Credentials::default(),
            connections: Vec::new(),
            pools: Vec::new(),
            settings,
            addrs: vec![testkit::addr(number)],
            nat: None,
            ahead: Duration::ZERO,
            plane: Plane::default(),
            seed,
            crashes: 0,
        };
        host.endpoint.local_addresses(now, &host.addrs);
        host
    }

    /// Its own time.
    pub(crate) fn now(&self, now: Instant) -> Instant {
        now + self.ahead
    }

    /// Time of the next action, in simulated time.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        // A clock that jumped may be past it already.
        self.endpoint.deadline().map(|at| at.checked_sub(self.ahead).unwrap_or(at))
    }

    /// Loads its configuration; configured traps should exist from now on.
    pub(crate) fn load(&mut self, now: Instant) {
        let now = self.now(now);
        self.plane.load(&self.connections);
        self.endpoint.load_pools(self.pools.clone());
        self.endpoint.load(now, self.connections.iter().cloned().map(Arc::new).collect());
    }

    /// Loses its state and restarts.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.crashes += 1;
        let rng = ChaCha8Rng::seed_from_u64(self.seed ^ (self.crashes << 32));
        self.endpoint = Endpoint::new(self.settings.clone(), rng);
        self.plane.crash();
        self.endpoint.local_addresses(self.now(now), &self.addrs);
        self.load(now);
    }

    /// Executes the outputs of the endpoint; datagrams and lines of the log come back.
    pub(crate) fn pump(&mut self, now: Instant) -> Result<(Vec<Transmit>, Vec<String>), String> {
        let (mut sent, mut lines) = (Vec::new(), Vec::new());
        while let Some(output) = self.endpoint.poll() {
            match output {
                Output::Transmit(mut transmit) => {
                    if transmit.local.ip().is_unspecified() {
                        transmit.local.set_ip(self.addrs[0]);
                    }
                    // From an address that is not there any more nothing can be sent.
                    if self.addrs.contains(&transmit.local.ip()) {
                        sent.push(transmit);
                    }
                }
                Output::RequestCredentials(request_id, question) => {
                    let answer = self.credentials.answer(&question);
                    self.endpoint.handle_credentials(self.now(now), request_id, answer);
                }
                Output::Event(Event::Log { level, text, .. }) if level <= Level::Debug => lines.push(text),
                Output::Event(Event::Log { .. } | Event::Count(_)) => (),
                output => self.plane.take(self.now(now), output)?,
            }
        }
        Ok((sent, lines))
    }

    /// Identifiers of its active IKE SAs with another host.
    pub fn ikes(&self, peer: usize) -> Vec<IkeId> {
        let with = |sa: &ike::IkeView<'_>| {
            sa.established.is_some()
                && matches!(sa.state, IkeState::Established | IkeState::Rekeying)
                && sa.connection.is_some_and(|connection| crate::plane::peer_of(connection) == peer)
        };
        self.endpoint.ike_sas().filter(with).map(|sa| sa.id).collect()
    }

    /// Names of its Child SAs with another host that are in use.
    pub fn children(&self, peer: usize) -> Vec<ChildId> {
        self.plane.used().filter(|(_, sa)| sa.peer == peer).map(|(id, _)| *id).collect()
    }

    /// Local address of a datagram to `at`; `None` if it is not for this host.
    pub(crate) fn receives(&self, at: SocketAddr) -> Option<SocketAddr> {
        match &self.nat {
            Some(nat) => nat.back(at),
            None => self.addrs.contains(&at.ip()).then_some(at),
        }
    }
}
