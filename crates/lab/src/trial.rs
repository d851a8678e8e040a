//! One row of measurement: parameters, results and conditions.
//!
//! `trials.jsonl` holds one [`Trial`] a line and is the source of truth of a run: every table, plot
//! and verdict is computed from it again by `weir lab verify`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cores::{self, Scheduler, Set, Spreading};
use crate::metric::{Figures, Metric};

/// Version of [`Trial`] as written to disk. A reader refuses a newer one.
pub const SCHEMA: u32 = 1;

/// Direction of packets through a subject.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Clear packets in, protected packets out.
    Out,
    /// Protected packets in, clear packets out; the generator seals them in advance.
    In,
    /// Through both ends.
    #[default]
    Both,
}

/// Place of a measurement.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Buffers of one process: no sockets, no kernel.
    #[default]
    Memory,
    /// Two network namespaces with a cable between them.
    Namespaces,
    /// Two addresses given by the user, with an external path.
    Interfaces,
}

/// Packets that were sent and did not arrive, by cause.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Deserialize, Serialize)]
pub struct Lost {
    /// A ring, queue or socket buffer was full.
    pub ring: u64,
    /// The replay window refused them.
    pub replay: u64,
    /// Their ICV was wrong.
    pub auth: u64,
    /// Any other reason, or unknown.
    pub other: u64,
}

impl Lost {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.ring + self.replay + self.auth + self.other
    }
}

/// Results of one trial. Counters that this machine does not have are `None`, never 0.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Measurement {
    /// Packets handed to the subject.
    pub sent: u64,
    /// Packets that came out as intended.
    pub received: u64,
    /// Bytes of inner packets that came out.
    pub received_bytes: u64,
    /// Packets with verified content.
    pub verified: u64,
    /// Losses by cause.
    pub lost: Lost,
    /// Duration in nanoseconds.
    pub dur_ns: u64,
    /// Duration in ticks of the time-stamp counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tsc: Option<u64>,
    /// Time that processors spent for us, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<u64>,
    /// Time that the hypervisor gave to others, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal_ns: Option<u64>,
    /// Time in soft interrupts, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softirq_ns: Option<u64>,
    /// Core cycles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<u64>,
    /// Instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<u64>,
    /// Energy of the package in joules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// One-way or round-trip times in nanoseconds, an HdrHistogram (V2 deflate, base64).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<String>,
    /// Further figures of a study.
    #[serde(default, skip_serializing_if = "Figures::is_empty")]
    pub values: Figures,
}

impl Measurement {
    /// Packets per second that came out; `NaN` for a trial that took no time.
    pub fn pps(&self) -> f64 {
        self.received as f64 * 1e9 / self.dur_ns as f64
    }

    /// Bits per second of inner packets that came out; `NaN` for a trial that took no time.
    pub fn bps(&self) -> f64 {
        self.received_bytes as f64 * 8e9 / self.dur_ns as f64
    }

    /// The share of sent packets that did not come out, 0 to 1; 0 when none was sent.
    pub fn loss_ratio(&self) -> f64 {
        if self.sent == 0 { 0.0 } else { self.sent.saturating_sub(self.received) as f64 / self.sent as f64 }
    }

    /// Ticks of the time-stamp counter per packet that came out.
    pub fn ticks_per_packet(&self) -> Option<f64> {
        (self.received > 0).then_some(self.tsc? as f64 / self.received as f64)
    }
}

/// Scheduler, in a study of cores.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Deserialize, Serialize)]
pub struct CoreSetup {
    /// Scheduler.
    pub scheduler: Scheduler,
    /// Kind of SAs of the outbound policy.
    pub set: Set,
    /// Distribution of flows to cores.
    pub spread: Spreading,
    /// Flows.
    pub flows: u32,
}

impl CoreSetup {
    /// Upper bound of the speed-up of `cores` cores without contention.
    pub fn ceiling(&self, cores: u32) -> f64 {
        cores::ceiling(self.scheduler, self.set, self.spread, self.flows as usize, cores as usize)
    }
}

impl fmt::Display for CoreSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheduler, set, spread, flows } = self;
        write!(f, "{} {} {} {flows} flows", scheduler.name(), set.name(), spread.name())
    }
}

/// One trial of a run.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Trial {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// Name of the run, the same in all its trials.
    pub run: String,
    /// Process that measured it, counted from 0: each has a new memory layout.
    pub session: u32,
    /// Round within the session: trials of one round belong together and are compared with each
    /// other.
    pub round: u32,
    /// Position in time within the session, from 0.
    pub order: u32,
    /// Seed that its traffic was drawn from.
    pub seed: u64,
    /// Start, in milliseconds since 1970.
    pub at_ms: u64,
    /// Study of the trial, e.g. `sizes`, `overheads`, `modes`, `series`.
    pub study: String,
    /// Name of the subject, e.g. `weir-esp-tunnel-aes128gcm16`, `wireguard-go`.
    pub subject: String,
    /// Protocol: `esp`, `ah`, `eesp`, `psp`, `wireguard`, `plain`, `cipher`.
    pub protocol: String,
    /// `tunnel`, `transport`, `beet`; empty where it means nothing.
    pub mode: String,
    /// Suite as a strongSwan proposal; empty for none.
    pub suite: String,
    /// Place; rows without it are from versions that measured in memory only.
    #[serde(default)]
    pub place: Place,
    /// Direction.
    pub direction: Direction,
    /// Traffic, as written in a campaign ([`crate::traffic::Traffic`]), e.g. `1400`,
    /// `imix:aaaaaaaddddg`.
    pub traffic: String,
    /// Size of inner packets in bytes where all have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// Cores that carry packets.
    pub cores: u32,
    /// SAs in each direction.
    pub sas: u32,
    /// Replay window in packets, 0 for none.
    pub replay: u32,
    /// Packets per batch, 0 where the subject decides.
    pub batch: u32,
    /// Offered load in packets per second; `None`: as many as go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_pps: Option<f64>,
    /// Goal of the search that requested it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<String>,
    /// Scheduling variant, in a study of cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<CoreSetup>,
    /// Results.
    #[serde(flatten)]
    pub measured: Measurement,
    /// Hash of the environment record that it belongs to.
    pub env: String,
}

/// Brings the times of all trials of a run to one clock rate, the median of all trials that
/// recorded theirs: a machine changes it while it measures.
pub fn at_one_rate(trials: &mut [Trial]) {
    let rates: Vec<f64> = trials.iter().filter_map(|trial| trial.measured.values.get(Metric::CoreMhz)).collect();
    if !rates.is_empty() {
        let usual = stats::median(&rates);
        trials.iter_mut().for_each(|trial| trial.measured.values.at_rate(usual));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial() -> Trial {
        Trial {
            schema: SCHEMA,
            run: "r".into(),
            session: 0,
            round: 3,
            order: 7,
            seed: 1,
            at_ms: 1,
            study: "sizes".into(),
            subject: "weir-esp-tunnel-aes128gcm16".into(),
            protocol: "esp".into(),
            mode: "tunnel".into(),
            suite: "aes128gcm16".into(),
            place: Place::Memory,
            direction: Direction::Out,
            traffic: "1400".into(),
            size: Some(1400),
            cores: 1,
            sas: 1,
            replay: 1024,
            batch: 256,
            offered_pps: None,
            goal: None,
            way: None,
            measured: Measurement {
                sent: 1000,
                received: 990,
                received_bytes: 990 * 1400,
                dur_ns: 1_000_000,
                tsc: Some(2_475_000),
                ..Measurement::default()
            },
            env: "e".into(),
        }
    }

    #[test]
    fn a_line_reads_back_as_it_was_and_leaves_out_what_was_not_measured() {
        let line = serde_json::to_string(&trial()).unwrap();
        assert_eq!(serde_json::from_str::<Trial>(&line).unwrap(), trial());
        assert!(!line.contains("joules"), "{line}");
        assert!(line.contains(r#""direction":"out""#), "{line}");
        let old = line.replace(r#""place":"memory","#, "");
        assert_ne!(old, line);
        assert_eq!(serde_json::from_str::<Trial>(&old).unwrap(), trial());
        let way = CoreSetup { scheduler: Scheduler::Pipeline, set: Set::PerCpu, spread: Spreading::Ideal, flows: 64 };
        let on_cores = Trial { way: Some(way), ..trial() };
        let line = serde_json::to_string(&on_cores).unwrap();
        assert!(
            line.contains(r#""way":{"scheduler":"pipeline","set":"per-cpu","spread":"ideal","flows":64}"#),
            "{line}"
        );
        assert_eq!(serde_json::from_str::<Trial>(&line).unwrap(), on_cores);
        assert_eq!((way.to_string().as_str(), way.ceiling(4)), ("pipeline per-cpu ideal 64 flows", 4.0));
    }

    #[test]
    fn trials_of_a_run_are_compared_at_their_median_clock_rate() {
        let rated = |mhz: f64| {
            let mut trial = trial();
            trial.measured.values.extend([(Metric::TicksP10, 1e6 / mhz), (Metric::CoreMhz, mhz)]);
            trial
        };
        let mut trials = [rated(4000.0), trial(), rated(3900.0), rated(4200.0)];
        at_one_rate(&mut trials);
        let ticks = trials.map(|trial| trial.measured.values.get(Metric::TicksP10).map(f64::round));
        assert_eq!(ticks, [Some(250.0), None, Some(250.0), Some(250.0)]);
    }

    #[test]
    fn rates_are_of_what_came_out() {
        let measured = trial().measured;
        assert_eq!(measured.pps(), 990_000.0);
        assert_eq!(measured.bps(), 990e3 * 1400.0 * 8.0);
        assert_eq!(measured.loss_ratio(), 0.01);
        assert_eq!(measured.ticks_per_packet(), Some(2500.0));
    }
}
