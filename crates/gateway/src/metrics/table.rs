//! Every metric, in one table: the text that is served and docs/metrics.md both come from here.

/// What Prometheus is told about how a value moves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// Only grows while the daemon runs.
    Counter,
    /// Goes up and down.
    Gauge,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// One metric.
#[derive(Debug)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) unit: &'static str,
    /// Names of its labels, in order.
    pub(super) labels: &'static [&'static str],
    pub(super) meaning: &'static str,
}

macro_rules! metrics {
    ($($id:ident = $kind:ident $name:literal $unit:literal $labels:expr, $meaning:literal;)*) => {
        $(pub(super) static $id: Metric =
            Metric { name: $name, kind: Kind::$kind, unit: $unit, labels: &$labels, meaning: $meaning };)*

        /// All of them, in the order in which they are served.
        #[cfg(test)]
        pub(super) static ALL: &[&Metric] = &[$(&$id),*];
    };
}

metrics! {
    INFO = Gauge "weir_info" "1" ["version"], "Version of the daemon";
    UPTIME = Gauge "weir_uptime_seconds" "s" [], "Time since the start";
    HEALTHY = Gauge "weir_healthy" "0, 1" [], "1 unless a packet thread has ended or hangs";
    IKE_SAS = Gauge "weir_ike_sas" "IKE SAs" ["state"], "IKE SAs by state, old and new one during a rekeying";
    HALF_OPEN = Gauge "weir_ike_half_open" "IKE SAs" [], "Handshakes of initiators that have not authenticated themselves";
    EVENTS = Counter "weir_ike_events_total" "events" ["event"], "Exchanges and failures of IKE by cause, see below";
    DOWN = Gauge "weir_connections_down" "connections" [], "Connections that start by themselves and have no IKE SA";
    CONNECTION_IKE = Gauge "weir_connection_ike_sas" "IKE SAs" ["connection"], "Established IKE SAs of a configured connection";
    CONNECTION_CHILD = Gauge "weir_connection_child_sas" "Child SAs" ["connection", "child"], "Child SAs that send, or 1 for a manual SA, whose name is the connection and whose child is empty";
    FAILURES = Counter "weir_connection_failures_total" "SAs" ["connection", "cause"], "IKE and Child SAs that did not come up or ended unwanted, by cause, see below";
    REKEY_AGE = Gauge "weir_connection_rekey_age_seconds" "s" ["connection"], "Time since keys of a connection were last replaced";
    PACKETS = Counter "weir_connection_packets_total" "packets" ["connection", "child", "direction"], "Packets protected (out) or delivered (in)";
    BYTES = Counter "weir_connection_bytes_total" "bytes" ["connection", "child", "direction"], "Bytes of these packets without protection";
    PATH_PACKETS = Counter "weir_path_packets_total" "packets" ["side", "direction"], "Packets that packet threads took in (rx) or sent (tx) on the clear side (inner) and on the protected side (outer)";
    PATH_BYTES = Counter "weir_path_bytes_total" "bytes" ["side", "direction"], "Bytes of these packets";
    SUPERS = Counter "weir_super_packets_total" "super-packets" ["side", "direction"], "Calls by which the kernel handed over (rx) or took (tx) many packets of one flow at once";
    SUPERS_PACKETS = Counter "weir_super_packets_packets_total" "packets" ["side", "direction"], "Packets that came or went in super-packets";
    PAST_STACK = Counter "weir_past_stack_packets_total" "packets" ["interface", "direction"], "Packets that came (rx) or went (tx) past the kernel's stack (AF_XDP)";
    PAST_STACK_LOST = Counter "weir_past_stack_lost_packets_total" "packets" ["interface"], "Packets that arrived there and were lost before a packet thread took them off a queue";
    UPDOWN = Counter "weir_updown_runs_total" "runs" ["outcome"], "Runs of the updown command: ok, failed (exit status), timeout, refused (not run), dropped (no room in the queue)";
    BYPASSED = Counter "weir_bypassed_packets_total" "packets" [], "Packets passed in the clear because a policy says so";
    DROPS = Counter "weir_drops_total" "packets" ["reason"], "Packets that went no further, by reason, as in `weir status`";
    FETCHES = Counter "weir_revocation_fetches_total" "fetches" ["kind", "result"], "CRLs (crl) and OCSP responses (ocsp) that were fetched (ok) or could not be had (failed)";
    GUARD_DROPS = Counter "weir_guard_dropped_packets_total" "packets" ["kind"], "Clear text that the nftables guard dropped: clear-in and clear-out although a policy protects it, spoofed-in from outside with a source of this side";
    AUDIT_LOST = Counter "weir_audit_lost_total" "events" [], "Auditable events that found no room on their way to the log";
    FOLDED = Gauge "weir_metrics_folded_names" "connections" [], "Connections that are counted under `(others)`, because 1024 have series of their own";
}
