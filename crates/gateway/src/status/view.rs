//! State of a running gateway, for `weir status`.
//!
//! The control thread only collects the data; entries are written by the thread of the socket, each
//! when the client is about to read it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crypto::Engine;
use dataplane::{CoreCounters, PacedStream, Totals};
use ipsec::{DropReason, InboundSa, Mode, OutboundSa, SaCommon};
use ports::GsoCounts;
use vici::Message;
use wire::Selector;

use super::connection::ConnectionStatus;
use super::{
    CoreStatus, Count, Entry, GuardStatus, Head, Lane, LookupStatus, LookupsStatus, PacedStatus, PolicyStatus,
    SaStatus, Status, SuperStatus, SupersStatus, XdpStatus,
};
use crate::config::{self, PolicyAction};
use crate::plane::Plane;
use crate::scheduling::Scheduling;
use crate::state;
use crate::up::GsoSources;

/// Sub SAs listed per SA; the others are in its totals.
const MAX_LANES: usize = 64;

/// Snapshot of the gateway's state.
pub(crate) struct View {
    uptime: Duration,
    healthy: bool,
    engine: Engine,
    engine_why: String,
    scheduling: Scheduling,
    threads: Vec<String>,
    threads_cpu: Vec<Duration>,
    counters: Vec<Arc<CoreCounters>>,
    /// Of workers and pacer.
    totals: Totals,
    gso: Vec<GsoSources>,
    xdp: Vec<XdpStatus>,
    guard: Option<GuardStatus>,
    outbound: Vec<Outbound>,
    inbound: Vec<(Arc<InboundSa>, String, String)>,
    policies: Vec<Policy>,
    connections: Vec<ConnectionStatus>,
}

/// An SA that sends, its suite, and its stream if it has a constant rate.
type Outbound = (Arc<OutboundSa>, String, Option<Arc<PacedStream>>);

struct Policy {
    name: String,
    selectors: Vec<Selector>,
    action: &'static str,
    sa: Option<String>,
}

impl View {
    /// Takes the snapshot.
    pub(crate) fn of(plane: &Plane, uptime: Duration, connections: Vec<ConnectionStatus>) -> Self {
        let gateway = &plane.config.gateway;
        let why = if gateway.engine.is_some() { "required by the configuration" } else { &Engine::choice().why };
        let mut view = Self {
            engine: gateway.engine(),
            engine_why: format!("{}; {why}", gateway.engine().describe()),
            uptime,
            healthy: plane.runner().healthy() && !plane.runner().hangs(),
            scheduling: plane.scheduling.clone(),
            threads: plane.runner().threads().map(worker_list).collect(),
            threads_cpu: plane.runner().cpu_times(),
            counters: plane.runner().counters().to_vec(),
            totals: Totals::of(plane.runner().all_counters().map(|core| &**core)),
            gso: plane.supers.clone(),
            xdp: plane.bypass.status(),
            guard: plane.guard_counters().map(|counters| {
                let count = |(packets, bytes)| Count { packets, bytes };
                GuardStatus {
                    clear_in: count(counters.clear_in),
                    spoofed_in: count(counters.spoofed_in),
                    clear_out: count(counters.clear_out),
                }
            }),
            outbound: Vec::new(),
            inbound: Vec::new(),
            policies: Vec::new(),
            connections,
        };
        view.of_file(plane);
        view.of_connections(plane);
        view.of_psp(plane);
        view
    }

    /// Manual SAs and policies of the configuration file.
    fn of_file(&mut self, plane: &Plane) {
        for entry in &plane.tables.entries {
            if let (Some(live), Some(config)) = (&entry.outbound, &entry.sa.outbound) {
                self.outbound.push((Arc::clone(&live.sa), config.proto.suite_name(), None));
            }
            if let (Some(live), Some(config)) = (&entry.inbound, &entry.sa.inbound) {
                self.inbound.push((Arc::clone(&live.sa), config.proto.suite_name(), config.spi_text()));
            }
        }
        self.policies.extend(plane.config.policies.iter().map(|policy| Policy {
            name: policy.name.clone(),
            selectors: policy.selectors.clone(),
            action: policy.action.word(),
            sa: match &policy.action {
                PolicyAction::Protect(sa) => Some(sa.clone()),
                _ => None,
            },
        }));
    }

    /// Child SAs, and policies of connections.
    fn of_connections(&mut self, plane: &Plane) {
        for child in plane.negotiated.children() {
            let suite = child.suite.to_string();
            self.outbound.push((Arc::clone(&child.outbound), suite.clone(), child.paced.clone()));
            self.inbound.push((Arc::clone(&child.inbound), suite, format!("{:#010x}", child.inbound.spi)));
        }
        self.policies.extend(plane.negotiated.policies().into_iter().map(|line| Policy {
            name: format!("{}.{}", line.connection.name, line.config.name),
            selectors: line.selectors.to_vec(),
            action: line.action,
            sa: line.sa.map(str::to_owned),
        }));
    }

    /// Associations and policies of the PSP key service.
    fn of_psp(&mut self, plane: &Plane) {
        let psp = &plane.negotiated.psp;
        for sa in psp.sending() {
            if let ipsec::OutProto::Psp(proto) = &sa.proto {
                self.outbound.push((Arc::clone(sa), format!("psp v{}", proto.version().get()), None));
            }
        }
        for (sa, spi) in psp.receiving() {
            if let ipsec::InProto::Psp(proto) = &sa.proto {
                let suite = config::psp_versions(proto.versions());
                self.inbound.push((Arc::clone(sa), suite, format!("{spi:#010x}")));
            }
        }
        self.policies.extend(psp.policies().map(|(name, selectors, keyed)| Policy {
            name: name.to_owned(),
            selectors: selectors.to_vec(),
            action: if keyed { "protect" } else { "drop" },
            sa: keyed.then(|| name.to_owned()),
        }));
    }

    /// The final reply, sent after all entries.
    pub(crate) fn reply(&self) -> Message {
        Message::of(&self.head())
    }

    fn head(&self) -> Head {
        Head {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: (self.uptime.as_secs_f64() * 1000.0).round() / 1000.0,
            healthy: self.healthy,
            engine: self.engine.name().into(),
            engine_why: self.engine_why.clone(),
            scheduler: self.scheduling.scheduler.name().into(),
            scheduler_why: self.scheduling.why.clone(),
            crypto_threads: self.scheduling.crypto_threads,
            threads: self.threads.clone(),
            threads_cpu_s: self.threads_cpu.iter().map(Duration::as_secs_f64).collect(),
            xdp: self.xdp.clone(),
            guard: self.guard,
            total: core(
                &self.totals,
                self.gso.iter().map(GsoSources::read).fold(Default::default(), |a, b| (a.0 + b.0, a.1 + b.1)),
            ),
            cores: self
                .counters
                .iter()
                .zip(&self.gso)
                .map(|(counters, gso)| core(&Totals::of([&**counters]), gso.read()))
                .collect(),
        }
    }

    /// Returns the status that a client builds from [`Self::reply`] and [`Self::entries`].
    pub(crate) fn into_status(self) -> Status {
        let head = self.head();
        let outbound = self.outbound.iter().map(outbound);
        let inbound = self.inbound.iter().map(|(sa, suite, spi)| inbound(sa, suite, spi));
        let mut sas: Vec<SaStatus> = outbound.chain(inbound).collect();
        Status::sort(&mut sas);
        let policies = self.policies.into_iter().map(Policy::status).collect();
        Status { head, connections: self.connections, sas, policies }
    }

    /// Connections with their IKE SAs, SAs and policies, one after the other.
    pub(crate) fn entries(self) -> impl Iterator<Item = Message> + Send + 'static {
        let outbound = self.outbound.into_iter().map(|sa| Entry::Sa(outbound(&sa)));
        let inbound = self.inbound.into_iter().map(|(sa, suite, spi)| Entry::Sa(inbound(&sa, &suite, &spi)));
        let policies = self.policies.into_iter().map(|policy| Entry::Policy(policy.status()));
        let connections = self.connections.into_iter().flat_map(connection_entries);
        connections.chain(outbound).chain(inbound).chain(policies).map(|entry| Message::of(&entry))
    }
}

/// A connection, then its IKE SAs: each fits into a separate message.
pub(super) fn connection_entries(mut connection: ConnectionStatus) -> impl Iterator<Item = Entry> + Send {
    let sas = std::mem::take(&mut connection.ike_sas);
    std::iter::once(Entry::Connection(connection)).chain(sas.into_iter().map(Entry::Ike))
}

impl Policy {
    fn status(self) -> PolicyStatus {
        let Self { name, selectors, action, sa } = self;
        PolicyStatus { name, selectors: selector_pairs(&selectors), action: action.into(), sa }
    }
}

fn selector_pairs(selectors: &[Selector]) -> Vec<String> {
    let text = |selector: &Selector| {
        let (local, remote) = selector.sides();
        format!("{local} === {remote}")
    };
    selectors.iter().map(text).collect()
}

impl PolicyAction {
    fn word(&self) -> &'static str {
        match self {
            Self::Protect(_) => "protect",
            Self::Bypass => "bypass",
            Self::Drop => "drop",
        }
    }
}

fn core(totals: &Totals, (inner, outer): (GsoCounts, GsoCounts)) -> CoreStatus {
    let count = |(packets, bytes)| Count { packets, bytes };
    let gso = |calls, packets| SuperStatus { calls, packets };
    CoreStatus {
        inner_rx: count(totals.inner_rx),
        inner_tx: count(totals.inner_tx),
        outer_rx: count(totals.outer_rx),
        outer_tx: count(totals.outer_tx),
        bypassed: totals.bypassed,
        audit_lost: totals.audit_lost,
        batches: totals.batches,
        supers: SupersStatus {
            inner_rx: gso(inner.received, inner.packets_received),
            inner_tx: gso(inner.sent, inner.packets_sent),
            outer_rx: gso(outer.received, outer.packets_received),
            outer_tx: gso(outer.sent, outer.packets_sent),
        },
        wrong_core: totals.wrong_core,
        blocked: totals.blocked,
        input_waits: totals.input_waits,
        offloaded: totals.offloaded,
        engines_gone: totals.engines_gone,
        paced: totals.paced,
        paced_padding: totals.paced_padding,
        paced_late: totals.paced_late,
        look_ups: LookupsStatus {
            outbound_flows: look_ups(totals.look_ups[0]),
            inbound_flows: look_ups(totals.look_ups[1]),
            sad: look_ups(totals.look_ups[2]),
        },
        drops: drops(DropReason::ALL.iter().map(|reason| (*reason, totals.drops[*reason as usize]))),
    }
}

fn look_ups([hits, misses, collisions]: [u64; 3]) -> LookupStatus {
    LookupStatus { hits, misses, collisions }
}

/// Numbers of the workers of a thread.
fn worker_list(workers: &[usize]) -> String {
    workers.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
}

/// Counts of drops by name of the reason, without those that are 0.
fn drops(counts: impl Iterator<Item = (DropReason, u64)>) -> BTreeMap<String, u64> {
    counts.filter(|(_, count)| *count > 0).map(|(reason, count)| (reason.key().into(), count)).collect()
}

/// Fields that both directions share; the caller sets the others.
fn common_status(common: &SaCommon, direction: &str, protocol: &str, spi: String, suite: &str) -> SaStatus {
    let (packets, bytes) = state::packets(&common.counters);
    let count = |reason: &DropReason| common.counters.drops[*reason as usize].load(Ordering::Relaxed);
    SaStatus {
        name: common.name.to_string(),
        direction: direction.into(),
        protocol: protocol.into(),
        spi,
        mode: match common.mode {
            Mode::Tunnel => "tunnel".into(),
            Mode::Transport => "transport".into(),
            Mode::Beet(_) => "beet".into(),
            Mode::Aggfrag(_) => "iptfs".into(),
        },
        suite: suite.into(),
        local: common.outer.peer.local.to_string(),
        remote: common.outer.peer.remote.to_string(),
        packets,
        bytes,
        drops: drops(DropReason::ALL.iter().map(|reason| (*reason, count(reason)))),
        unknown_options: common.counters.unknown_options.load(Ordering::Relaxed),
        expired: common.check_lifetime().is_err(),
        inner_mtu: None,
        lanes: Vec::new(),
        paced: None,
    }
}

/// Status of the stream of an SA.
fn paced(sa: &OutboundSa, stream: &PacedStream) -> Option<PacedStatus> {
    let settings = sa.common.aggfrag()?;
    let (rate_kbps, packet_size, counts) = (settings.rate_kbps, settings.packet_size, stream.counts());
    let burst = dataplane::burst(packet_size.into(), rate_kbps);
    Some(PacedStatus {
        rate_kbps,
        packet_size,
        burst,
        interval_ns: dataplane::slot_ns(burst, packet_size.into(), rate_kbps),
        running: counts.running,
        packets: counts.packets,
        padding: counts.padding,
        late: counts.late,
        restarts: counts.restarts,
        queued_bytes: stream.queued_bytes() as u64,
    })
}

fn outbound((sa, suite, stream): &Outbound) -> SaStatus {
    let lanes = sa.lanes.iter().take(MAX_LANES).map(|lane| Lane {
        session: lane.session.0.into(),
        next: Some(lane.seq.next()),
        // Sequence numbers of negotiated SAs are not saved: these SAs do not survive a restart.
        saved: Some(lane.seq.saved()).filter(|saved| *saved != u64::MAX),
        top: None,
    });
    SaStatus {
        inner_mtu: Some(crate::device_mtu::inner(sa)),
        lanes: lanes.collect(),
        paced: stream.as_ref().and_then(|stream| paced(sa, stream)),
        ..common_status(&sa.common, "out", sa.protocol().name(), format!("{:#010x}", sa.spi), suite)
    }
}

fn inbound(sa: &InboundSa, suite: &str, spi: &str) -> SaStatus {
    let tops = state::window_tops(sa);
    let lanes = tops.iter().take(MAX_LANES).map(|(lane, top)| Lane {
        session: *lane,
        next: None,
        saved: None,
        top: Some(*top),
    });
    SaStatus { lanes: lanes.collect(), ..common_status(&sa.common, "in", sa.protocol().name(), spi.into(), suite) }
}
