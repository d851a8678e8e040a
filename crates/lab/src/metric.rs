//! Figures of a trial beyond its counters: key in `trials.jsonl`, label and unit, in one table.
//!
//! Studies write figures by [`Metric`], and statistics, reports and claims read them by it. A trial
//! keeps them by their keys ([`Figures`]), so that figures of other versions survive reading and
//! writing.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stats::Estimate;

use crate::meter::TICKS;

/// Properties of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Properties {
    /// For people, without the unit.
    pub label: &'static str,
    /// Unit; empty for ratios and codes.
    pub unit: &'static str,
}

/// Makes the enum of metrics with fixed keys, and its table.
macro_rules! metrics {
    ($($name:ident = $key:literal, $label:literal, $unit:literal;)*) => {
        /// A figure of a trial. Parts of keys that vary are borrowed, e.g. the name of a stage.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum Metric<'a> {
            $(#[doc = $label] $name,)*
            /// Ticks of a part of a packet's time, e.g. `stage.cipher`, `path`.
            Ticks(&'a str),
            /// Lower end of the interval of [`Metric::Ticks`].
            TicksLow(&'a str),
            /// Upper end of it.
            TicksHigh(&'a str),
            /// Time of the cipher alone for so many bytes.
            Cipher(u32),
            /// Time of a session's set-up over a link with a round trip of so many ms.
            ElapsedAt(u32),
            /// Rate of a flow.
            Flow(&'a str),
            /// Share of a processor's time, by kind, e.g. `busy`.
            Processor(usize, &'a str),
            /// Packets of a core.
            CorePackets(usize),
            /// Lateness of a delaying cable at a percentile, e.g. `p99`.
            CableLate(&'a str),
            /// Bytes of a subject by host and direction.
            SubjectBytes(&'a str, &'a str),
            /// Packets of a subject by host and direction.
            SubjectPackets(&'a str, &'a str),
            /// Packets that a subject dropped, by host and reason.
            SubjectDropped(&'a str, &'a str),
        }

        #[cfg(test)]
        impl Metric<'static> {
            /// Metrics with a fixed key.
            pub(crate) const FIXED: &'static [Self] = &[$(Self::$name),*];
        }

        impl Metric<'_> {
            /// Key in `trials.jsonl`.
            pub fn key(&self) -> Cow<'static, str> {
                match self {
                    $(Self::$name => Cow::Borrowed($key),)*
                    Self::Ticks(part) => format!("{part}_ticks").into(),
                    Self::TicksLow(part) => format!("{part}_ticks_low").into(),
                    Self::TicksHigh(part) => format!("{part}_ticks_high").into(),
                    Self::Cipher(bytes) => format!("cipher_{bytes:05}_ns").into(),
                    Self::ElapsedAt(round_trip_ms) => format!("elapsed_ms_at_{round_trip_ms}_ms").into(),
                    Self::Flow(id) => format!("flow.{id}_gbit_per_s").into(),
                    Self::Processor(number, kind) => format!("cpu{number}_{kind}_percent").into(),
                    Self::CorePackets(core) => format!("core{core}_packets").into(),
                    Self::CableLate(percentile) => format!("cable_late_{percentile}_us").into(),
                    Self::SubjectBytes(host, direction) => format!("subject.{host}_{direction}_bytes").into(),
                    Self::SubjectPackets(host, direction) => format!("subject.{host}_{direction}_packets").into(),
                    Self::SubjectDropped(host, reason) => format!("subject.{host}_dropped_{reason}").into(),
                }
            }

            /// Label and unit.
            pub fn properties(&self) -> Properties {
                let of = |label, unit| Properties { label, unit };
                match self {
                    $(Self::$name => of($label, $unit),)*
                    Self::Ticks(_) | Self::TicksLow(_) | Self::TicksHigh(_) => of("time of a part", "ticks"),
                    Self::Cipher(_) => of("cipher alone", "ns"),
                    Self::ElapsedAt(_) => of("set-up over a link with a round trip", "ms"),
                    Self::Flow(_) => of("flow", "Gbit/s"),
                    Self::Processor(..) => of("processor", "%"),
                    Self::CorePackets(_) => of("packets of a core", "packets"),
                    Self::CableLate(_) => of("lateness of the cable", "µs"),
                    Self::SubjectBytes(..) => of("bytes of the subject", "bytes"),
                    Self::SubjectPackets(..) => of("packets of the subject", "packets"),
                    Self::SubjectDropped(..) => of("drops of the subject", "packets"),
                }
            }
        }
    };
}

metrics! {
    TicksMin = "ticks_min", "least of the batches", "ticks/packet";
    TicksP10 = "ticks_p10", "tenth percentile of the batches", "ticks/packet";
    TicksMedian = "ticks_median", "median of the batches", "ticks/packet";
    TicksMean = "ticks_mean", "mean of the batches", "ticks/packet";
    CoreMhz = "core_mhz", "clock rate of the core", "MHz";
    BlockCycles = "cycles", "tenth percentile of a block", "cycles/packet";
    Batches = "batches", "timed batches", "batches";
    ContendedPercent = "contended_percent", "batches beside a busy SMT sibling", "%";
    ContendedSlower = "contended_slower", "these over the others", "";
    PreemptedNs = "preempted_ns", "time of other programs", "ns";
    WallNs = "wall_ns", "time that passed", "ns";
    VirtualTime = "virtual_time", "time does not pass between packets", "";
    SubjectBusyPercent = "subject_busy_percent", "busy share of the subject", "%";
    MemoryMib = "memory_mib", "memory of all packets", "MiB";
    Flows = "flows", "interleaved flows", "flows";
    OverEngine = "over_engine", "whole path over the engine alone", "";
    CapacityPps = "capacity_pps", "throughput of a saturating trial", "packets/s";
    OfferedPps = "offered_pps", "offered load", "packets/s";
    Load = "load", "offered load as a share of the capacity", "";
    Arm = "arm", "label in a comparison with itself", "";
    DelayMs = "delay_ms", "delay of the cable", "ms";
    LatencyMin = "latency_min_ns", "least latency", "ns";
    LatencyP50 = "latency_p50_ns", "median latency", "ns";
    LatencyP90 = "latency_p90_ns", "90th percentile of the latency", "ns";
    LatencyP99 = "latency_p99_ns", "99th percentile of the latency", "ns";
    LatencyP999 = "latency_p99.9_ns", "99.9th percentile of the latency", "ns";
    LatencyP9999 = "latency_p99.99_ns", "99.99th percentile of the latency", "ns";
    LatencyMax = "latency_max_ns", "largest latency", "ns";
    LatencyPdv = "latency_pdv_ns", "variation of the latency", "ns";
    RttP50 = "rtt_p50_us", "median round trip", "µs";
    RttP99 = "rtt_p99_us", "99th percentile of the round trip", "µs";
    PingsLost = "pings_lost_percent", "pings without a response", "%";
    GeneratorShortfall = "generator_shortfall", "packets that the generator did not send", "packets";
    GeneratorLateNs = "generator_late_ns", "lateness of the generator", "ns";
    Reordered = "reordered", "packets out of order", "packets";
    Foreign = "foreign", "packets of others", "packets";
    WireBytes = "wire_bytes", "bytes on the wire", "bytes";
    FirstMessages = "first_messages", "messages of the first exchanges", "messages";
    QuickMessages = "quick_messages", "messages of quick mode", "messages";
    CableDropped = "cable_dropped", "frames dropped by the cable", "frames";
    SearchPart = "search_part", "kind of a row of a search", "";
    LowerPps = "lower_pps", "lower bound of the throughput", "packets/s";
    UpperPps = "upper_pps", "upper bound of the throughput", "packets/s";
    ConditionalPps = "conditional_pps", "conditional throughput", "packets/s";
    Regular = "regular", "result of a regular search", "";
    SpentS = "spent_s", "time of the search", "s";
    UsedQueues = "used_queues", "cores with packets", "cores";
    WrongCore = "wrong_core", "packets on another core than their flow's", "packets";
    Blocked = "blocked", "attempts on a full ring", "attempts";
    Disordered = "disordered", "packets out of order within a flow", "packets";
    Jain = "jain", "fairness of the cores (Jain)", "";
    SaBytesSender = "sa_bytes_sender", "memory of an SA at the sender", "bytes";
    SaBytesReceiver = "sa_bytes_receiver", "memory of an SA at the receiver", "bytes";
    DeriveNs = "derive_ns", "key derivation", "ns";
    IkeSasPerS = "ike_sas_per_s", "IKE SA with a Child SA", "per s";
    IkeSasPerSSlowest = "ike_sas_per_s_slowest", "the slowest tenth of them", "per s";
    IkeSasPerCpuS = "ike_sas_per_cpu_s", "per second of the daemon's processor", "per s";
    ChildRekeysPerS = "child_rekeys_per_s", "rekeyed Child SA, with a key exchange", "per s";
    IkeRekeysPerS = "ike_rekeys_per_s", "rekeyed IKE SA", "per s";
    IkeSaBytes = "ike_sa_bytes", "memory of an IKE SA and its Child SA", "bytes";
    DaemonBytes = "daemon_bytes", "memory of the daemon without them", "bytes";
    FloodPps = "flood_pps", "rate of the flood", "packets/s";
    FloodUpMs = "flood_up_ms", "flood: an honest peer is up after", "ms";
    FloodHonestMissing = "flood_honest_missing", "flood: honest peers that do not come up", "peers";
    FloodCorePercent = "flood_core_percent", "flood: its cost", "% of a core";
    FloodHalfOpenMax = "flood_half_open_max", "flood: half-open IKE SAs at most", "SAs";
    FloodBytes = "flood_bytes", "flood: memory", "bytes";
    FloodAmplification = "flood_amplification", "flood: bytes sent for each received", "bytes";
    MachineSPerGbit = "machine_s_per_gbit", "time of all cores for a Gbit", "s";
    CpuSPerGbit = "cpu_s_per_gbit", "time of the subject's programs for a Gbit", "s";
    SasUsed = "sas_used", "SAs that carried packets", "SAs";
    SetupFirstPacketMs = "setup_first_packet_ms", "first packet, set-up included", "ms";
    SetupMessages = "setup_messages", "messages of the key exchange", "messages";
    SetupSas = "setup_sas", "outbound SAs", "SAs";
    SetupResidentMib = "setup_resident_mib", "memory of the programs", "MiB";
    ProbeCostTicks = "probe_cost_ticks", "cost of all time stamps of a packet", "ticks";
    StampTicks = "stamp_ticks", "cost of a time stamp", "ticks";
    PingCryptoShare = "ping.crypto_share", "share of cryptography in a ping", "";
    ComparePair = "pair", "ABBA round of a comparison", "";
    CompareBlock = "block", "place within the ABBA round", "";
    CompareRounds = "rounds", "rounds of a block", "rounds";
}

/// Figures of a trial by their keys. Values with an unknown key are kept as they are.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Figures(BTreeMap<String, f64>);

impl Figures {
    /// Returns a figure; `None` if it was not measured.
    pub fn get(&self, metric: Metric<'_>) -> Option<f64> {
        self.0.get(&*metric.key()).copied()
    }

    /// Stores a figure.
    pub fn set(&mut self, metric: Metric<'_>, value: f64) {
        self.0.insert(metric.key().into_owned(), value);
    }

    /// Changes the times of packets in the caches to those at a clock rate in MHz, if that of their
    /// trial is known.
    pub fn at_rate(&mut self, mhz: f64) {
        let Some(own) = self.get(Metric::CoreMhz).filter(|own| *own > 0.0) else { return };
        let fixed = TICKS.map(|metric| metric.key());
        let timed = |key: &str| {
            let part = key.trim_end_matches("_low").trim_end_matches("_high");
            fixed.iter().any(|fixed| fixed == key) || part.ends_with("_ticks") || cipher_bytes(key).is_some()
        };
        self.0.iter_mut().filter(|(key, _)| timed(key)).for_each(|(_, time)| *time *= own / mhz);
        self.set(Metric::CoreMhz, mhz);
    }

    /// Stores the ticks of a part with the ends of their interval.
    pub fn set_ticks(&mut self, part: &str, ticks: &Estimate) {
        self.set(Metric::Ticks(part), ticks.value);
        self.set(Metric::TicksLow(part), ticks.low);
        self.set(Metric::TicksHigh(part), ticks.high);
    }

    /// Removes a figure and returns it.
    pub fn take(&mut self, metric: Metric<'_>) -> Option<f64> {
        self.0.remove(&*metric.key())
    }

    /// Ticks of all parts with names that begin with `prefix`, by name.
    pub fn parts(&self, prefix: &str) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().filter_map(move |(key, ticks)| {
            let part = key.strip_suffix("_ticks")?;
            part.starts_with(prefix).then_some((part, *ticks))
        })
    }

    /// Cost of the cipher alone: bytes and nanoseconds.
    pub fn cipher(&self) -> impl Iterator<Item = (u32, f64)> {
        self.0.iter().filter_map(|(key, ns)| Some((cipher_bytes(key)?, *ns)))
    }

    /// Multiplies figures by `factor`, chosen by their keys.
    #[cfg(test)]
    pub(crate) fn scale(&mut self, pick: impl Fn(&str) -> bool, factor: f64) {
        self.0.iter_mut().filter(|(key, _)| pick(key)).for_each(|(_, value)| *value *= factor);
    }

    /// Returns whether there is no figure.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All keys with their values, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(key, value)| (key.as_str(), *value))
    }
}

/// Bytes of [`Metric::Cipher`].
fn cipher_bytes(key: &str) -> Option<u32> {
    key.strip_prefix("cipher_")?.strip_suffix("_ns")?.parse().ok()
}

impl<'a> Extend<(Metric<'a>, f64)> for Figures {
    fn extend<I: IntoIterator<Item = (Metric<'a>, f64)>>(&mut self, figures: I) {
        figures.into_iter().for_each(|(metric, value)| self.set(metric, value));
    }
}

impl<'a> FromIterator<(Metric<'a>, f64)> for Figures {
    fn from_iter<I: IntoIterator<Item = (Metric<'a>, f64)>>(figures: I) -> Self {
        let mut all = Self::default();
        all.extend(figures);
        all
    }
}

impl<const N: usize> From<[(Metric<'_>, f64); N]> for Figures {
    fn from(figures: [(Metric<'_>, f64); N]) -> Self {
        figures.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of figures with a variable part, as they were written before and must stay.
    #[test]
    fn keys_stay_as_they_are_on_disk() {
        let keys = [
            (Metric::TicksLow("stage.cipher"), "stage.cipher_ticks_low"),
            (Metric::Cipher(64), "cipher_00064_ns"),
            (Metric::ElapsedAt(20), "elapsed_ms_at_20_ms"),
            (Metric::Flow("3"), "flow.3_gbit_per_s"),
            (Metric::Processor(1, "busy"), "cpu1_busy_percent"),
            (Metric::CorePackets(0), "core0_packets"),
            (Metric::CableLate("p99"), "cable_late_p99_us"),
            (Metric::SubjectBytes("sun", "sent"), "subject.sun_sent_bytes"),
            (Metric::SubjectPackets("moon", "received"), "subject.moon_received_packets"),
            (Metric::SubjectDropped("moon", "replay"), "subject.moon_dropped_replay"),
        ];
        for (metric, key) in keys {
            assert_eq!(metric.key(), key);
        }
    }

    #[test]
    fn every_fixed_metric_has_a_key_of_its_own_and_a_label() {
        let keys: std::collections::BTreeSet<_> = Metric::FIXED.iter().map(Metric::key).collect();
        assert_eq!(keys.len(), Metric::FIXED.len());
        assert!(Metric::FIXED.iter().all(|metric| !metric.properties().label.is_empty()));
    }

    /// The runs of the documentation were written before the keys had a table.
    #[test]
    fn figures_of_the_documentation_are_known() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results");
        let fixed: std::collections::BTreeSet<_> = Metric::FIXED.iter().map(Metric::key).collect();
        for run in ["engines", "path", "sas"] {
            let text =
                std::fs::read_to_string(format!("{folder}/{run}/trials.jsonl")).expect("it is in the repository");
            for line in text.lines() {
                let trial: crate::trial::Trial = serde_json::from_str(line).expect("a trial");
                let known = |key: &str| fixed.contains(key) || key.ends_with("_ticks") || key.starts_with("cpu");
                let unknown: Vec<&str> =
                    trial.measured.values.iter().map(|(key, _)| key).filter(|k| !known(k)).collect();
                assert!(unknown.is_empty(), "{unknown:?}");
            }
        }
    }

    #[test]
    fn times_of_a_slow_clock_become_shorter_at_a_fast_one_and_nothing_else_changes() {
        let all = |ticks: f64, ns: f64, mhz: f64| -> Figures {
            let rest = [(Metric::WallNs, 9.0), (Metric::Batches, 3.0), (Metric::CoreMhz, mhz)];
            rest.into_iter()
                .chain([(Metric::TicksP10, ticks), (Metric::Ticks("engine"), ticks), (Metric::Cipher(64), ns)])
                .collect()
        };
        let mut figures = all(100.0, 40.0, 4000.0);
        figures.at_rate(5000.0);
        assert_eq!(figures, all(80.0, 32.0, 5000.0));
        let mut unrated: Figures = [(Metric::TicksP10, 100.0)].into();
        unrated.at_rate(5000.0);
        assert_eq!(unrated.get(Metric::TicksP10), Some(100.0));
    }

    #[test]
    fn parts_and_unknown_keys_are_read_from_their_keys() {
        let text = r#"{"cipher_00064_ns":7.5,"new_figure":1.0,"stage.auth_ticks":2.0,"stage.auth_ticks_low":1.0}"#;
        let figures: Figures = serde_json::from_str(text).unwrap();
        assert_eq!(figures.parts("stage.").collect::<Vec<_>>(), [("stage.auth", 2.0)]);
        assert_eq!(figures.cipher().collect::<Vec<_>>(), [(64, 7.5)]);
        assert_eq!(figures.get(Metric::Ticks("stage.auth")), Some(2.0));
        assert_eq!(serde_json::to_string(&figures).unwrap(), text);
    }
}
