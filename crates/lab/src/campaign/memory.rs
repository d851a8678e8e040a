//! Studies that run in buffers of this process.

use std::collections::BTreeMap;
use std::time::Duration;

use dataplane::{Batch, Snapshot, Worker, WorkerConfig};
use wire::IpProto;

use super::runner::{Missing, Runner, one_size, sizes};
use super::schedule::Cell;
use super::subject::Subject;
use super::{Kind, Study};
use crate::keying;
use crate::meter::{Load, Memory, MemoryMeter, MemoryOptions, Meter, MeterError};
use crate::metric::{Figures, Metric};
use crate::model;
use crate::overhead;
use crate::traffic::{Rate, Traffic};
use crate::trial::{Direction, Measurement};
use testbed::MemorySubject;
use testbed::child::Interrupt;
use testbed::pair;

/// Largest packet of a study in memory, in bytes.
const LARGEST: usize = 9216;

pub(super) fn own(subject: &Subject) -> Result<&MemorySubject, Missing> {
    match subject {
        Subject::Own(subject) => Ok(subject),
        Subject::Rival(name) => Err(Missing(format!("{name} is a separate program and cannot be measured in memory"))),
    }
}

/// Both ends in memory: packets go from buffer to buffer.
pub(super) fn path(study: &Study, subject: &Subject, cell: &Cell, interrupt: &Interrupt) -> Result<Loaded, Missing> {
    let mut subject = own(subject)?.clone();
    if let MemorySubject::Path(pair) | MemorySubject::Cipher(pair) = &mut subject {
        // In every other study the window is that of all subjects.
        if study.kind == Kind::Replay || !pair.esn {
            pair.window = cell.replay;
        }
    }
    let large = study.traffic.iter().filter_map(|text| one_size(text)).any(|size| size > 1900);
    let packet_bytes = if large { LARGEST } else { 2048 };
    let stop = interrupt.flag();
    let memory = if cell.memory_mib == 0 { Memory::Hot } else { Memory::Bytes((cell.memory_mib as usize) << 20) };
    let batch = cell.batch as usize;
    let real_time = study.real_time;
    let options = MemoryOptions { batch, packet_bytes, memory, real_time, stop, ..MemoryOptions::default() };
    let meter = MemoryMeter::new(subject, options).map_err(|error| Missing(error.to_string()))?;
    Ok(Loaded::over(Box::new(meter), study.flows[0]))
}

/// A meter that packets of the generator go through, as many as go or at a share of that.
pub(super) struct Loaded {
    meter: Box<dyn Meter>,
    flows: u32,
    /// Packets per second that the subject takes, by traffic and direction, as this process found
    /// out.
    capacity: BTreeMap<(String, Direction), f64>,
}

impl Loaded {
    pub(super) fn over(meter: Box<dyn Meter>, flows: u32) -> Self {
        Self { meter, flows, capacity: BTreeMap::new() }
    }

    /// The meter itself.
    pub(super) fn meter(&mut self) -> &mut dyn Meter {
        self.meter.as_mut()
    }

    pub(super) fn load(&self, cell: &Cell, rate: Rate, duration: Duration, seed: u64) -> Result<Load, MeterError> {
        let sizes = sizes(&cell.traffic).map_err(|error| MeterError::Unsupported(error.to_string()))?;
        let traffic = Traffic { sizes, flows: self.flows, rate };
        Ok(Load { traffic, direction: cell.direction, duration, seed })
    }

    fn capacity(&mut self, cell: &Cell, duration: Duration, seed: u64) -> Result<f64, MeterError> {
        let key = (cell.traffic.clone(), cell.direction);
        if let Some(known) = self.capacity.get(&key) {
            return Ok(*known);
        }
        let load = self.load(cell, Rate::Saturate, duration, seed)?;
        let rate = self.meter.trial(&load)?.pps();
        self.capacity.insert(key, rate);
        Ok(rate)
    }
}

impl Runner for Loaded {
    fn trial(&mut self, cell: &Cell, duration: Duration, seed: u64) -> Result<Measurement, MeterError> {
        let Some(share) = cell.load else {
            let load = self.load(cell, Rate::Saturate, duration, seed)?;
            return self.meter.trial(&load);
        };
        let capacity = self.capacity(cell, duration, seed)?;
        let offered = capacity * share;
        let load = self.load(cell, Rate::Poisson(offered), duration, seed)?;
        let mut measured = self.meter.trial(&load)?;
        measured.values.extend([(Metric::CapacityPps, capacity), (Metric::OfferedPps, offered)]);
        Ok(measured)
    }
}

/// Bytes that a packet has on the wire.
pub(super) struct Wire {
    pair: pair::Subject,
    ends: [Snapshot; 2],
    worker: Worker,
    batch: Batch,
    replies: Batch,
}

impl Wire {
    pub(super) fn open(subject: &Subject) -> Result<Box<dyn Runner>, Missing> {
        let MemorySubject::Path(pair) = own(subject)? else {
            return Err(Missing("adds no bytes".into()));
        };
        let ends = pair.tables().map_err(|error| Missing(error.to_string()))?;
        let config = WorkerConfig { batch: 4, packet_bytes: LARGEST, engine: pair.engine, ..WorkerConfig::default() };
        let (batch, replies) = (Batch::new(4, LARGEST), Batch::new(4, LARGEST));
        Ok(Box::new(Self { pair: pair.clone(), ends, worker: Worker::new(config).0, batch, replies }))
    }
}

impl Runner for Wire {
    fn trial(&mut self, cell: &Cell, _: Duration, _: u64) -> Result<Measurement, MeterError> {
        let size = one_size(&cell.traffic).ok_or_else(|| MeterError::Unsupported("it needs one size".into()))?;
        let [src, dst] = self.pair.packet_addresses();
        let packet = testbed::packet::udp(src, dst, 4000, 4001, size as usize, IpProto::UDP);
        self.batch.clear();
        self.batch.push_with(|buffer| buffer.set(&packet));
        self.worker.outbound(&self.ends[0], &mut self.batch, &mut self.replies);
        let [sealed] = self.batch.packets() else {
            return Err(MeterError::Unsupported(format!("a packet of {size} bytes is fragmented")));
        };
        let values = [(Metric::WireBytes, sealed.len() as f64)].into();
        Ok(Measurement {
            sent: 1,
            received: 1,
            received_bytes: size.into(),
            verified: 1,
            values,
            ..Measurement::default()
        })
    }
}

/// The path taken apart; in both directions together, one ping through it.
pub(super) struct Overheads {
    pair: pair::Subject,
    batch: usize,
    /// Both directions are measured at once; results that were not requested yet.
    ready: Vec<overhead::SubjectCost>,
}

/// Pings of a trial in both directions: a ping takes about 10 µs in each of four variants.
const PINGS_PER_MS: u64 = 20;
/// A round of an overhead study takes about this long in an optimised build.
const OVERHEAD_ROUND: Duration = Duration::from_millis(15);

impl Overheads {
    pub(super) fn open(cell: &Cell, subject: &Subject) -> Result<Box<dyn Runner>, Missing> {
        let MemorySubject::Path(pair) = own(subject)? else {
            return Err(Missing("has no stages to measure".into()));
        };
        Ok(Box::new(Self { pair: pair.clone(), batch: cell.batch as usize, ready: Vec::new() }))
    }
}

impl Runner for Overheads {
    fn trial(&mut self, cell: &Cell, duration: Duration, seed: u64) -> Result<Measurement, MeterError> {
        let size = one_size(&cell.traffic).and_then(|size| u16::try_from(size).ok());
        let size = size.ok_or_else(|| MeterError::Unsupported("it needs one size".into()))?;
        let wanted =
            |row: &overhead::SubjectCost| u32::from(size) == u32::from(row.size) && row.direction == cell.direction;
        if cell.direction == Direction::Both {
            if self.pair.v6 {
                return Err(MeterError::Unsupported("a ping of this study is over IPv4".into()));
            }
            let pings = (duration.as_millis() as u64 * PINGS_PER_MS).max(15);
            let ping = overhead::ping(&self.pair, size, pings as usize, seed);
            return Ok(ping.map_err(|error| MeterError::Unsupported(error.to_string()))?.measurement(pings));
        }
        if !self.ready.iter().any(wanted) {
            let rounds = (duration.as_nanos() / OVERHEAD_ROUND.as_nanos()).clamp(3, 101) as usize;
            let options = overhead::Options { sizes: vec![size], rounds, batch: self.batch, seed };
            let rows = overhead::measure(&self.pair, &options, &mut || true);
            self.ready = rows.map_err(|error| MeterError::Unsupported(error.to_string()))?;
        }
        let at = self.ready.iter().position(wanted);
        let at = at.expect("a study measures both directions at once");
        Ok(self.ready.swap_remove(at).measurement(self.batch as u64))
    }
}

/// The cipher alone at every few bytes.
pub(super) struct Cipher {
    suite: String,
}

/// Rounds over all lengths in a trial.
const CIPHER_ROUNDS: usize = 9;

/// Lengths of [`Cipher`] in bytes: ESP encrypts multiples of 4, and the cost of larger lengths is
/// linear.
fn cipher_lengths() -> Vec<usize> {
    (4..=1600).step_by(4).chain((1664..=9216).step_by(128)).collect()
}

impl Cipher {
    pub(super) fn open(subject: &Subject) -> Result<Box<dyn Runner>, Missing> {
        match own(subject)? {
            MemorySubject::Cipher(pair) => Ok(Box::new(Self { suite: pair.suite.clone() })),
            _ => Err(Missing("is more than a cipher: use cipher-PROTOCOL-MODE-SUITE".into())),
        }
    }
}

impl Runner for Cipher {
    fn trial(&mut self, cell: &Cell, _: Duration, _: u64) -> Result<Measurement, MeterError> {
        let start = std::time::Instant::now();
        let opens = cell.direction == Direction::In;
        let lengths = cipher_lengths();
        let plan = model::CostPlan { suite: &self.suite, opens, lengths: &lengths, rounds: CIPHER_ROUNDS };
        let (table, mhz) =
            model::measure_cost(plan, &mut |_, _| {}).map_err(|error| MeterError::Unsupported(error.to_string()))?;
        let costs = table.points().iter().map(|(bytes, ns)| (Metric::Cipher(*bytes as u32), *ns));
        let values = costs.chain([(Metric::CoreMhz, mhz)]).collect();
        Ok(Measurement { dur_ns: start.elapsed().as_nanos() as u64, values, ..Measurement::default() })
    }
}

/// IKE between two ends in memory. With several SAs the first trial of a process also measures the
/// memory of so many, and a flood.
#[derive(Default)]
pub(super) struct Keying {
    begun: bool,
}

/// Exchanges of each kind in a trial.
const EXCHANGES: usize = 50;

impl Runner for Keying {
    fn trial(&mut self, cell: &Cell, _: Duration, _: u64) -> Result<Measurement, MeterError> {
        let start = std::time::Instant::now();
        let mut values = Figures::default();
        if cell.sas > 1 && !std::mem::replace(&mut self.begun, true) {
            values.set(Metric::IkeSaBytes, keying::bytes_of_each(cell.sas as usize));
            values.extend(keying::flood(keying::FLOOD_PPS).values());
        }
        let rates = [Metric::IkeSasPerS, Metric::ChildRekeysPerS, Metric::IkeRekeysPerS];
        values.extend(rates.into_iter().zip(keying::rates(EXCHANGES)));
        Ok(Measurement { dur_ns: start.elapsed().as_nanos() as u64, values, ..Measurement::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::format;
    use crate::campaign::runner::{Setting, open};
    use crate::campaign::schedule::cells;

    fn first_trial(text: &str) -> Measurement {
        let text =
            format!("name = \"t\"\n[[study]]\nsubjects = [\"weir-esp-tunnel-aes128gcm16\"]\nduration_ms = 2\n{text}");
        let study = format::parse("t.toml", &text).unwrap().studies.remove(0);
        let cell = &cells(&study)[0];
        let mut runner = open(&study, cell, &Setting::default()).map_err(|why| format!("{why:?}")).unwrap();
        runner.trial(cell, study.duration, 1).unwrap()
    }

    /// 20 bytes of outer IPv4, 8 of ESP, 8 of IV, 2 of trailer, 16 of ICV, and padding to 4 bytes:
    /// 1400 + 2 needs 2 more.
    #[test]
    fn wire_bytes_are_those_of_a_real_packet() {
        let measured = first_trial("kind = \"wire\"\ntraffic = [1400]\n");
        assert_eq!(measured.values.get(Metric::WireBytes).unwrap(), 1400.0 + 20.0 + 8.0 + 8.0 + 2.0 + 2.0 + 16.0);
    }

    #[test]
    fn a_load_is_a_share_of_the_capacity() {
        let measured = first_trial("kind = \"loss\"\ntraffic = [512]\ndirections = [\"out\"]\nloads = [0.25]\n");
        let share =
            measured.values.get(Metric::OfferedPps).unwrap() / measured.values.get(Metric::CapacityPps).unwrap();
        assert!((share - 0.25).abs() < 1e-9 && measured.latency.is_some());
    }

    #[test]
    fn a_saturating_trial_has_ticks_and_checked_contents() {
        let measured = first_trial("kind = \"sizes\"\ntraffic = [64]\ndirections = [\"in\"]\n");
        assert!(measured.received > 0 && measured.verified > 0 && measured.tsc.is_some());
    }
}
