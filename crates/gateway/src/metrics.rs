//! Metrics for Prometheus: counters of the control side, and values that it samples once a second.
//!
//! The control thread owns [`Metrics`]: it processes [events](Metrics::events) as they arrive and
//! [collects](Metrics::look) a snapshot once a second. The [`service`] renders the newest snapshot
//! on each request. Names, units and meanings are in one table, which docs/metrics.md repeats.

mod service;
mod table;
mod text;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dataplane::Totals;
use ike::config::Connection as IkeConnection;
use ike::output::{ChildId, Event, IkeId};
use ike::{Endpoint, IkeState};
use ipsec::SaCounters;
use ports::GsoCounts;
use rand_core::CryptoRng;
use rustls::ServerConfig;

use crate::config::Gateway;
use crate::http::tls::TlsFiles;
use crate::http::{Server, Tls, Token};
use crate::negotiated::{Child, Negotiated};
use crate::plane::Plane;
use crate::status::XdpStatus;
use crate::tables::Tables;
use crate::up::GsoSources;
use crate::waker::Waker;
use credentials::FetchCounts;

/// Limit of connections with separate series, and of children in total. Further ones are counted
/// under [`REST`]. At most about 2 MB of text.
const NAMES_MAX: usize = 1024;
/// Name of all connections beyond [`NAMES_MAX`].
const REST: &str = "(others)";
/// Name of the token's file in `state_dir`.
pub(crate) const TOKEN_FILE: &str = "metrics-token";
/// A snapshot is at most this old.
const PERIOD: Duration = Duration::from_secs(1);
/// States of IKE SAs, in the order of [`Snapshot::ike_sas`].
const STATES: [IkeState; 5] =
    [IkeState::Connecting, IkeState::Established, IkeState::Rekeying, IkeState::Rekeyed, IkeState::Deleting];

/// Cause of an IKE SA or Child SA that failed or ended unexpectedly, classified by the words of its
/// message.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Cause {
    /// The peer does not answer.
    Timeout,
    /// No algorithms in common.
    Proposal,
    /// No selectors in common.
    Selectors,
    /// A post-quantum preshared key is missing or another one.
    Ppk,
    /// EAP.
    Eap,
    /// A certificate that is not trusted, expired, revoked, missing.
    Certificate,
    /// The peer could not authenticate.
    Authentication,
    /// A message that breaks a rule.
    Protocol,
    /// Anything else; the log has the reason.
    Other,
}

impl Cause {
    const ALL: [Self; 9] = [
        Self::Timeout,
        Self::Proposal,
        Self::Selectors,
        Self::Ppk,
        Self::Eap,
        Self::Certificate,
        Self::Authentication,
        Self::Protocol,
        Self::Other,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Proposal => "no_proposal",
            Self::Selectors => "no_selectors",
            Self::Ppk => "ppk",
            Self::Eap => "eap",
            Self::Certificate => "certificate",
            Self::Authentication => "authentication",
            Self::Protocol => "protocol",
            Self::Other => "other",
        }
    }

    /// Classifies a reason. The first matching row decides, so specific rows precede general ones.
    fn of(reason: &str) -> Self {
        const WORDS: [(&[&str], Cause); 8] = [
            (&["not answer", "timed out", "no answer", "no response"], Cause::Timeout),
            (&["proposal", "invalid_ke"], Cause::Proposal),
            (&["ts_unacceptable", "selector"], Cause::Selectors),
            (&["post-quantum", "ppk"], Cause::Ppk),
            (&["eap"], Cause::Eap),
            (&["certificate", "revoked", "crl"], Cause::Certificate),
            (&["authenticat", "signature", "shared key", "identity"], Cause::Authentication),
            (&["syntax", "malformed", "invalid", "does not fit", "missing"], Cause::Protocol),
        ];
        let reason = reason.to_lowercase();
        let row = WORDS.iter().find(|(words, _)| words.iter().any(|word| reason.contains(word)));
        row.map_or(Self::Other, |(_, cause)| *cause)
    }
}

/// Packets and bytes of both directions.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Traffic {
    inbound: (u64, u64),
    outbound: (u64, u64),
}

impl Traffic {
    fn of(inbound: Option<&SaCounters>, outbound: Option<&SaCounters>) -> Self {
        let read = |counters: &SaCounters| (counters.packets(), counters.bytes());
        Self { inbound: inbound.map_or((0, 0), read), outbound: outbound.map_or((0, 0), read) }
    }

    /// Adds the difference since `before`.
    fn add(&mut self, now: Self, before: Self) {
        let pairs =
            [(&mut self.inbound, now.inbound, before.inbound), (&mut self.outbound, now.outbound, before.outbound)];
        for (sum, now, before) in pairs {
            sum.0 += now.0.saturating_sub(before.0);
            sum.1 += now.1.saturating_sub(before.1);
        }
    }
}

/// A connection, as its series show it.
#[derive(Clone, Debug, Default)]
struct Connection {
    /// It is in the configuration, and comes up by itself.
    configured: Option<bool>,
    ike_sas: u64,
    failures: BTreeMap<Cause, u64>,
    rekeyed: Option<Instant>,
    children: BTreeMap<String, ChildFigures>,
}

/// A child section, or a manual SA.
#[derive(Clone, Copy, Debug, Default)]
struct ChildFigures {
    sas: u64,
    traffic: Traffic,
}

/// GSO and GRO packets of the inner and the outer side.
type SuperCounts = (GsoCounts, GsoCounts);

/// Everything that is shown, at one time.
#[derive(Clone)]
struct Snapshot {
    taken: Instant,
    started: Instant,
    healthy: bool,
    ike_sas: [u64; STATES.len()],
    half_open: u64,
    events: BTreeMap<&'static str, u64>,
    totals: Totals,
    supers: SuperCounts,
    xdp: Vec<XdpStatus>,
    fetches: FetchCounts,
    guard: Option<crate::guard::Counters>,
    connections: BTreeMap<String, Connection>,
    /// Number of names without separate series.
    folded: u64,
}

/// The newest snapshot, shared with the server.
#[derive(Clone)]
struct SharedSnapshot(Arc<Mutex<Arc<Snapshot>>>);

impl SharedSnapshot {
    fn newest(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A new certificate for scrapes cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the metrics keep their certificate: {0}")]
pub(crate) struct TlsFault(String);

/// Counters of the control side.
pub(crate) struct Metrics {
    now: Snapshot,
    board: SharedSnapshot,
    children: usize,
    beyond: BTreeSet<String>,
    /// Connections of established IKE SAs: when one ends, the endpoint no longer has it.
    owners: HashMap<IkeId, Arc<IkeConnection>>,
    /// Counters of the Child SAs at the last snapshot: a sum must not decrease when one of them
    /// ends.
    seen: HashMap<ChildId, Traffic>,
    manual: HashMap<String, Traffic>,
    due: Instant,
    /// Certificate of the endpoint, if other hosts can connect.
    tls: Option<Tls>,
}

impl Metrics {
    /// Nothing has happened yet.
    fn new(now: Instant) -> Self {
        let snapshot = Snapshot {
            taken: now,
            started: now,
            healthy: true,
            ike_sas: [0; STATES.len()],
            half_open: 0,
            events: ike::counters().map(|(name, _)| (name, 0)).collect(),
            totals: Totals::of([]),
            supers: SuperCounts::default(),
            xdp: Vec::new(),
            fetches: FetchCounts::default(),
            guard: None,
            connections: BTreeMap::new(),
            folded: 0,
        };
        let board = SharedSnapshot(Arc::new(Mutex::new(Arc::new(snapshot.clone()))));
        Self {
            now: snapshot,
            board,
            children: 0,
            beyond: BTreeSet::new(),
            owners: HashMap::new(),
            seen: HashMap::new(),
            manual: HashMap::new(),
            due: now,
            tls: None,
        }
    }

    /// Counters that are served at `address`.
    ///
    /// # Errors
    /// If another process listens there, or the token can neither be read nor made.
    pub(crate) fn serve(gateway: &Gateway) -> io::Result<Option<(Self, Server)>> {
        let Some(address) = gateway.metrics else { return Ok(None) };
        let mut metrics = Self::new(Instant::now());
        metrics.tls = gateway
            .metrics_tls
            .as_ref()
            .map(TlsFiles::read)
            .transpose()
            .map_err(|(_, why)| io::Error::other(why))?
            .map(Tls::new);
        let token = metrics.tls.is_some().then(|| Token::open(&gateway.state_dir.join(TOKEN_FILE))).transpose()?;
        let scheme = if token.is_some() { "https" } else { "http" };
        let service = service::Scrapes { snapshot: metrics.board(), token };
        let server = Server::start("metrics", address, metrics.tls.clone(), Waker::new()?, service)?;
        tracing::info!(target: "control", "metrics at {scheme}://{}/metrics", server.address());
        Ok(Some((metrics, server)))
    }

    /// Reads certificate and key again; `None` without TLS.
    ///
    /// # Errors
    /// A file cannot be read, or the key is that of another certificate.
    pub(crate) fn read_tls(&self, gateway: &Gateway) -> Result<Option<Arc<ServerConfig>>, TlsFault> {
        let files = gateway.metrics_tls.as_ref().filter(|_| self.tls.is_some());
        files.map(TlsFiles::read).transpose().map_err(|(_, why)| TlsFault(why))
    }

    /// Uses what [`Metrics::read_tls`] returned for later scrapes.
    pub(crate) fn replace_tls(&self, config: Option<Arc<ServerConfig>>) {
        if let (Some(tls), Some(config)) = (&self.tls, config) {
            tls.replace(config);
        }
    }

    /// The shared snapshot.
    fn board(&self) -> SharedSnapshot {
        self.board.clone()
    }

    /// Processes the events of IKE.
    pub(crate) fn events<R: CryptoRng>(&mut self, events: &[Event], endpoint: &Endpoint<R>, plane: &Plane) {
        let now = Instant::now();
        for event in events {
            self.event(now, event, endpoint, &plane.negotiated);
        }
    }

    fn event<R: CryptoRng>(&mut self, now: Instant, event: &Event, endpoint: &Endpoint<R>, negotiated: &Negotiated) {
        let of_child = |id| negotiated.child(id).map(|child: &Child| Arc::clone(&child.connection));
        match event {
            Event::Count(name) => self.count(name),
            Event::IkeUp(id) => {
                let connection = endpoint.ike_sa(*id).and_then(|view| view.connection.cloned());
                self.owners.extend(connection.map(|connection| (*id, connection)));
            }
            Event::IkeDown(id, reason) => {
                if let Some(connection) = self.owners.remove(id) {
                    self.failed(&connection.name, reason);
                }
            }
            Event::IkeRekeyed(id) => {
                if let Some(connection) = self.owners.get(id).cloned() {
                    self.rekeyed(&connection.name, now);
                }
            }
            Event::ChildDown(id, reason) => {
                if let Some(connection) = of_child(*id) {
                    self.failed(&connection.name, reason);
                }
            }
            Event::ChildRekeyed(_, new) => {
                if let Some(connection) = of_child(*new) {
                    self.rekeyed(&connection.name, now);
                }
            }
            Event::Log { text, ike, .. } => {
                let owner = ike.and_then(|ike| self.owners.get(&ike).cloned());
                if let Some((connection, reason)) = failure(text, owner.as_ref().map(|owner| owner.name.as_str())) {
                    self.failed(connection, reason);
                }
            }
            Event::IkeMoved(_) | Event::ChildUp(_) | Event::CommandDone(..) => (),
        }
    }

    /// An event of IKE by its name ([`ike::counters`]).
    fn count(&mut self, name: &'static str) {
        *self.now.events.entry(name).or_default() += 1;
    }

    /// An IKE SA or Child SA of `connection` did not come up or went, for this reason; an empty one
    /// is as wanted.
    fn failed(&mut self, connection: &str, reason: &str) {
        if !reason.is_empty() {
            *self.connection(connection).failures.entry(Cause::of(reason)).or_default() += 1;
        }
    }

    /// Keys of `connection` were replaced.
    fn rekeyed(&mut self, connection: &str, now: Instant) {
        self.connection(connection).rekeyed = Some(now);
    }

    /// CRLs and OCSP responses that were fetched so far.
    pub(crate) fn fetches(&mut self, counts: FetchCounts) {
        self.now.fetches = counts;
    }

    /// Looks at everything and hands a snapshot over, unless the last one is new enough. `endpoint`
    /// exists if IKE is enabled.
    pub(crate) fn look<R: CryptoRng>(&mut self, now: Instant, endpoint: Option<&Endpoint<R>>, plane: &mut Plane) {
        if !self.due(now) {
            return;
        }
        let runner = plane.runner();
        let healthy = runner.healthy() && !runner.hangs();
        let totals = Totals::of(runner.all_counters().map(|core| &**core));
        let supers = plane.supers.iter().map(GsoSources::read);
        self.now.supers = supers.fold(SuperCounts::default(), |a, b| (a.0 + b.0, a.1 + b.1));
        self.now.xdp = plane.bypass.status();
        self.now.guard = plane.guard_counters();
        let children = plane.negotiated.children_mut().map(|child| &*child);
        self.publish(now, endpoint, children, &plane.tables, (totals, healthy));
    }

    fn due(&self, now: Instant) -> bool {
        now >= self.due
    }

    fn publish<'a, R: CryptoRng>(
        &mut self,
        now: Instant,
        endpoint: Option<&Endpoint<R>>,
        children: impl Iterator<Item = &'a Child>,
        tables: &Tables,
        (totals, healthy): (Totals, bool),
    ) {
        (self.due, self.now.taken) = (now + PERIOD, now);
        (self.now.totals, self.now.healthy) = (totals, healthy);
        for connection in self.now.connections.values_mut() {
            (connection.ike_sas, connection.configured) = (0, None);
            connection.children.values_mut().for_each(|child| child.sas = 0);
        }
        if let Some(endpoint) = endpoint {
            self.look_at_ike(endpoint);
        }
        self.look_at_children(children);
        for entry in &tables.entries {
            let inbound = entry.inbound.as_ref().map(|half| &*half.sa.common.counters);
            let outbound = entry.outbound.as_ref().map(|half| &*half.sa.common.counters);
            self.look_at_manual(&entry.sa.name, Traffic::of(inbound, outbound));
        }
        self.now.folded = self.beyond.len() as u64;
        *self.board.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(self.now.clone());
    }

    fn look_at_ike<R: CryptoRng>(&mut self, endpoint: &Endpoint<R>) {
        for connection in endpoint.connections() {
            let starts = connection.children.iter().any(|child| child.start_action.start);
            self.connection(&connection.name).configured = Some(starts);
        }
        self.now.half_open = endpoint.half_open_count() as u64;
        self.now.ike_sas = [0; STATES.len()];
        for view in endpoint.ike_sas() {
            if let Some(at) = STATES.iter().position(|state| *state == view.state) {
                self.now.ike_sas[at] += 1;
            }
            if let (Some(connection), IkeState::Established | IkeState::Rekeying) = (view.connection, view.state) {
                self.connection(&connection.name).ike_sas += 1;
            }
        }
    }

    fn look_at_children<'a>(&mut self, children: impl Iterator<Item = &'a Child>) {
        let mut there = BTreeSet::new();
        for child in children {
            there.insert(child.id);
            self.take_in(child);
            if child.sending {
                self.child(&child.connection.name, &child.config.name).sas += 1;
            }
        }
        self.seen.retain(|id, _| there.contains(id));
    }

    fn take_in(&mut self, child: &Child) {
        let now = Traffic::of(Some(&child.inbound.common.counters), Some(&child.outbound.common.counters));
        let before = self.seen.insert(child.id, now).unwrap_or_default();
        self.child(&child.connection.name, &child.config.name).traffic.add(now, before);
    }

    /// The counters of a manual SA restart from zero when a reload replaces it.
    fn look_at_manual(&mut self, name: &str, now: Traffic) {
        let before = self.manual.insert(name.to_owned(), now).unwrap_or_default();
        let anew = now.inbound.0 < before.inbound.0 || now.outbound.0 < before.outbound.0;
        let figures = self.child(name, "");
        figures.sas = 1;
        figures.traffic.add(now, if anew { Traffic::default() } else { before });
    }

    fn connection(&mut self, name: &str) -> &mut Connection {
        let known = self.now.connections.contains_key(name) || self.now.connections.len() < NAMES_MAX;
        if !known {
            self.fold(name);
        }
        self.now.connections.entry(if known { name } else { REST }.to_owned()).or_default()
    }

    fn child(&mut self, connection: &str, name: &str) -> &mut ChildFigures {
        let known = self.connection(connection).children.contains_key(name);
        if !known && self.children >= NAMES_MAX {
            self.fold(connection);
            // The series of its connection, or at worst of the rest: at most twice as many.
            return self.connection(connection).children.entry(REST.to_owned()).or_default();
        }
        self.children += usize::from(!known);
        self.connection(connection).children.entry(name.to_owned()).or_default()
    }

    /// Records that a name has no series, up to a limit.
    fn fold(&mut self, name: &str) {
        if self.beyond.len() < NAMES_MAX && !self.beyond.contains(name) {
            self.beyond.insert(name.to_owned());
        }
    }
}

/// Connection and reason of a failed attempt, parsed from the log line: `the IKE SA of 'NAME' did
/// not come up: REASON`, `child 'NAME' failed: REASON`.
pub(crate) fn failure<'a>(line: &'a str, owner: Option<&'a str>) -> Option<(&'a str, &'a str)> {
    if let Some((_, reason)) = line.strip_prefix("child '").and_then(|rest| rest.split_once("' failed: ")) {
        return Some((owner?, reason));
    }
    let (what, reason) = line.split_once(" did not come up: ")?;
    let (_, name) = what.split_once('\'')?;
    Some((name.strip_suffix('\'')?, reason))
}

#[cfg(test)]
mod tests;
