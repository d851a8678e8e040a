//! Every metric, in one table: the text that is served and docs/metrics.md both come from here.

/// Type of a metric for Prometheus.
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
    HEALTHY = Gauge "weir_healthy" "0, 1" [], "1 unless a worker has stopped or hangs";
    IKE_SAS = Gauge "weir_ike_sas" "IKE SAs" ["state"], "IKE SAs by state; both SAs during a rekey";
    HALF_OPEN = Gauge "weir_ike_half_open" "IKE SAs" [], "Half-open IKE SAs: responder, initiator not yet authenticated";
    EVENTS = Counter "weir_ike_events_total" "events" ["event"], "IKE exchanges and failures by cause, see below";
    DOWN = Gauge "weir_connections_down" "connections" [], "Connections that should be up and have no IKE SA";
    CONNECTION_IKE = Gauge "weir_connection_ike_sas" "IKE SAs" ["connection"], "Established IKE SAs of a configured connection";
    CONNECTION_CHILD = Gauge "weir_connection_child_sas" "Child SAs" ["connection", "child"], "Outbound Child SAs; 1 for a manual SA, with its name as connection and an empty child";
    FAILURES = Counter "weir_connection_failures_total" "SAs" ["connection", "cause"], "IKE and Child SAs that failed to come up or ended unexpectedly, by cause, see below";
    REKEY_AGE = Gauge "weir_connection_rekey_age_seconds" "s" ["connection"], "Time since the last rekey of a connection";
    PACKETS = Counter "weir_connection_packets_total" "packets" ["connection", "child", "direction"], "Packets protected (out) or delivered (in)";
    BYTES = Counter "weir_connection_bytes_total" "bytes" ["connection", "child", "direction"], "Plaintext bytes of these packets";
    PATH_PACKETS = Counter "weir_path_packets_total" "packets" ["side", "direction"], "Packets that workers received (rx) or sent (tx) on the plaintext side (inner) and on the ciphertext side (outer)";
    PATH_BYTES = Counter "weir_path_bytes_total" "bytes" ["side", "direction"], "Bytes of these packets";
    GSO_PACKETS = Counter "weir_gso_packets_total" "packets" ["side", "direction"], "GRO packets received (rx) and GSO packets sent (tx): buffers with several segments of one flow";
    GSO_SEGMENTS = Counter "weir_gso_segments_total" "packets" ["side", "direction"], "Segments in GRO (rx) and GSO (tx) packets";
    XDP_PACKETS = Counter "weir_xdp_packets_total" "packets" ["interface", "direction"], "Packets received (rx) or sent (tx) past the kernel's stack at an interface of `xdp`";
    XDP_LOST = Counter "weir_xdp_lost_packets_total" "packets" ["interface"], "Packets lost in an AF_XDP receive queue, or in the ring of a packet socket, before a worker read them";
    UPDOWN = Counter "weir_updown_runs_total" "runs" ["outcome"], "Runs of the updown command: ok, failed (exit status), timeout, refused (not run), dropped (no room in the queue)";
    BYPASSED = Counter "weir_bypassed_packets_total" "packets" [], "Packets passed in clear text by a policy";
    OFFLOADED = Counter "weir_offloaded_packets_total" "packets" [], "Packets that crypto threads encrypted or decrypted (`scheduler = async`)";
    ENGINES_GONE = Counter "weir_crypto_threads_failed_total" "workers" [], "Workers that encrypt by themselves until a restart, because their crypto threads failed";
    PACED = Counter "weir_paced_packets_total" "packets" ["content"], "Outer packets of Child SAs with a constant rate (`iptfs_rate`): with inner packets (data), or none (padding); includes those that the kernel refused, which `weir_drops_total` counts too";
    PACED_LATE = Counter "weir_paced_late_packets_total" "packets" [], "Outer packets with a constant rate that were sent after the next ones were due";
    DROPS = Counter "weir_drops_total" "packets" ["reason"], "Packets dropped, by reason, as in `weir status`";
    FETCHES = Counter "weir_revocation_fetches_total" "fetches" ["kind", "result"], "CRLs (crl) and OCSP responses (ocsp) fetched (ok) or not available (failed)";
    GUARD_DROPS = Counter "weir_guard_dropped_packets_total" "packets" ["kind"], "Packets dropped by the nftables guard: clear-in and clear-out are clear text that a policy protects, spoofed-in has a source of this side but arrives from outside";
    AUDIT_LOST = Counter "weir_audit_lost_total" "events" [], "Auditable events lost because the queue to the log was full";
    FOLDED = Gauge "weir_metrics_folded_names" "connections" [], "Connections counted under `(others)`, beyond the first 1024";
}
