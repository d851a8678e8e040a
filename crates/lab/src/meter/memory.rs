//! Trials in memory on one thread.
//!
//! *Saturating*: batches are filled, taken through the subject and checked in turn; only the middle
//! is timed.
//!
//! *Paced*, in virtual time: packets arrive at their intended times at a ring; the subject takes at
//! most a batch of waiting packets, and the clock advances by the measured time. The generator
//! costs no time, as on a separate core, idle times are skipped, and on a shared machine the
//! subject is measured, not other processes.
//!
//! *Paced*, in real time ([`MemoryOptions::real_time`]): generator and subject on a thread each,
//! rings between them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dataplane::Batch;

use super::device::Device;
use super::ports::{self, LiveDevice, PortOptions};
use super::{Load, Meter, MeterError};
use crate::host::clock::{chain_ticks, thread_ns};
use crate::host::{Gauge, Observer, at_depth};
use crate::metric::Metric;
use crate::traffic::{Addresses, Checker, Due, Generator, Rate};
use crate::trial::{Direction, Lost, Measurement};
use stats::{Latency, RatedTimes};
use testbed::MemorySubject;
use testbed::pair::PairError;

/// A batch is checked whole whenever fewer than one in so many packets were: 1.6 %.
const CHECK_EVERY: u64 = 64;
/// Maximum number of stored batch times: 8 MiB.
const MAX_SAMPLES: usize = 1 << 20;
/// A trial that saturates ends at the latest after so many times its duration, preparation
/// included.
const MAX_WALL: u32 = 8;
/// Time of preemption, in nanoseconds, that exceeds the resolution of the clocks.
const PREEMPTED_NS: u64 = 3_000;

/// Memory footprint of the packets of a saturating trial.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Default)]
pub enum Memory {
    /// One batch, again and again: everything is in the caches.
    #[default]
    Hot,
    /// Batches of so many bytes in all, in turn: larger than a cache, they are not in it.
    Bytes(usize),
}

/// Options of a memory meter.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Packets per batch.
    pub batch: usize,
    /// Largest packet in bytes, outer headers not counted.
    pub packet_bytes: usize,
    /// Memory of saturating trials.
    pub memory: Memory,
    /// Places of the ring in front of the subject, in paced trials; at least `batch`.
    pub ring: usize,
    /// Paced trials in real time, with the subject on a separate thread.
    pub real_time: bool,
    /// True if preemption by other processes counts as time of the subject. Otherwise such a batch
    /// counts with its CPU time, and `preempted_ns` of a trial has the excluded time.
    pub count_preemption: bool,
    /// Set to stop trials.
    pub stop: Arc<AtomicBool>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            batch: 256,
            packet_bytes: 2048,
            memory: Memory::Hot,
            ring: 512,
            real_time: false,
            count_preemption: false,
            stop: Arc::default(),
        }
    }
}

/// Measures one subject in memory.
pub struct MemoryMeter {
    subject: MemorySubject,
    options: MemoryOptions,
    device: Device,
    /// Batches that saturating trials go through in turn; paced ones use the first.
    batches: Vec<Batch>,
    observer: Observer,
    gauge: Gauge,
}

impl MemoryMeter {
    /// Sets the subject up.
    ///
    /// # Errors
    /// An unknown suite, or a combination that cannot be built.
    pub fn new(subject: MemorySubject, options: MemoryOptions) -> Result<Self, PairError> {
        let device = Device::new(&subject, options.batch, options.packet_bytes)?;
        let bytes = options.batch * (options.packet_bytes + dataplane::HEADROOM + dataplane::TAILROOM);
        let count = match options.memory {
            Memory::Hot => 1,
            Memory::Bytes(all) => all.div_ceil(bytes).clamp(1, 4096),
        };
        // As in the gateway: outer packets are made while the batch has its inner ones.
        let reserve = if device.aggregates() { 2 * options.batch } else { 0 };
        let batches = (0..count).map(|_| Batch::with_reserve(options.batch, reserve, options.packet_bytes)).collect();
        Ok(Self { subject, options, device, batches, observer: Observer::open(), gauge: Gauge::default() })
    }

    /// The subject.
    pub fn subject(&self) -> &MemorySubject {
        &self.subject
    }

    fn saturate(&mut self, load: &Load, generator: &mut Generator) -> Result<Measurement, MeterError> {
        let checker = generator.checker();
        let target = self.observer.ticks.ticks(load.duration.as_nanos() as u64);
        let wall_limit = std::time::Instant::now() + load.duration * MAX_WALL;
        let mut tally = Tally::default();
        let (mut samples, mut preempted) = (RatedTimes::new(chain_ticks), None);
        let lost_before = self.device.lost();
        let mut turn = 0;
        let mut spent = 0;
        while spent < target {
            self.check_stop()?;
            if std::time::Instant::now() > wall_limit && turn > 0 {
                break;
            }
            for batch in &mut self.batches {
                batch.clear();
                while batch.room() > 0 {
                    put(generator, batch)?;
                }
            }
            for at in 0..self.batches.len() {
                let sent = self.batches[at].len() as u64;
                let bytes_in: u64 = self.batches[at].packets().iter().map(|packet| packet.len() as u64).sum();
                let share = Gauge::read(samples.last());
                let lost = self.device.lost();
                let took = at_depth(turn, || self.pass(at, load.direction));
                tally.add(sent, self.passed(at, sent, load.direction, lost), bytes_in, &took);
                spent += took.ticks;
                let each = took.ticks as f64 / sent as f64;
                // The CPU time of a preempted batch is coarse, and may be a third of its ticks.
                if took.others_ns > 0 {
                    preempted = Some(each);
                } else if samples.len() < MAX_SAMPLES {
                    samples.add([each]);
                    self.gauge.add(share, each);
                }
                if tally.verified * CHECK_EVERY < tally.sent {
                    tally.verified += self.verify(at, load.direction, &checker)?;
                }
                turn += 1;
            }
        }
        let mut measured = tally.measurement(&self.observer.ticks.hz, lost_between(lost_before, self.device.lost()));
        if let Some(each) = preempted.filter(|_| samples.is_empty()) {
            samples.add([each]);
        }
        super::store_ticks(&samples.finish(), &self.observer.ticks, &mut measured);
        if let Some(contention) = self.gauge.take() {
            measured.values.set(Metric::ContendedPercent, contention.percent);
            measured.values.extend(contention.slower.map(|slower| (Metric::ContendedSlower, slower)));
        }
        Ok(measured)
    }

    /// Processes batch `at` by the subject. Preparation for `direction` is not timed.
    fn pass(&mut self, at: usize, direction: Direction) -> BatchCost {
        let batch = &mut self.batches[at];
        self.device.expect(batch);
        if direction == Direction::In {
            self.device.protect(batch);
        }
        let cpu = thread_ns();
        self.observer.resume();
        let out = if direction == Direction::In { 0 } else { self.device.protect(batch) };
        let back = if direction == Direction::Out { 0 } else { self.device.open(batch) };
        self.observer.pause();
        let cpu_ns = thread_ns() - cpu;
        let ticks = (out + back).saturating_sub(self.observer.ticks.read_ticks as u64);
        let ns = self.observer.ticks.ns(ticks);
        let preempted = ns > cpu_ns + cpu_ns / 50 + PREEMPTED_NS;
        if preempted && !self.options.count_preemption {
            return BatchCost { ticks: self.observer.ticks.ticks(cpu_ns), ns: cpu_ns, cpu_ns, others_ns: ns - cpu_ns };
        }
        BatchCost { ticks, ns, cpu_ns: cpu_ns.min(ns), others_ns: 0 }
    }

    /// How many of `sent` packets passed with batch `at`, before which `lost` were lost.
    fn passed(&self, at: usize, sent: u64, direction: Direction, lost: Lost) -> u64 {
        if direction == Direction::Out && self.device.aggregates() {
            return sent - lost_between(lost, self.device.lost()).total().min(sent);
        }
        self.batches[at].len() as u64
    }

    /// Checks every packet of batch `at`; packets that were only protected are opened first.
    fn verify(&mut self, at: usize, direction: Direction, checker: &Checker) -> Result<u64, MeterError> {
        let batch = &mut self.batches[at];
        if direction == Direction::Out {
            self.device.open(batch);
        }
        self.device.settle(batch);
        let wrong = |seq: String, fault| MeterError::Wrong { subject: self.subject.to_string(), seq, fault };
        for packet in batch.packets() {
            checker.check(packet.bytes()).map_err(|fault| {
                let seq = checker.identify(packet.bytes()).map_or("?".into(), |seen| seen.seq.to_string());
                wrong(seq, fault)
            })?;
        }
        Ok(batch.len() as u64)
    }

    fn paced(&mut self, load: &Load, generator: &mut Generator) -> Result<Measurement, MeterError> {
        let checker = generator.checker();
        let end_ns = load.duration.as_nanos() as u64;
        let ring = self.options.ring.max(self.options.batch);
        let mut waiting: VecDeque<Due> = VecDeque::with_capacity(ring);
        let mut in_hand: Vec<Due> = Vec::with_capacity(self.options.batch);
        let (mut tally, mut latency, mut clock, mut ring_full) = (Tally::default(), Latency::default(), 0, 0);
        let lost_before = self.device.lost();
        loop {
            while generator.peek().at_ns <= clock && generator.peek().at_ns < end_ns {
                let due = generator.take();
                tally.sent += 1;
                if waiting.len() < ring {
                    waiting.push_back(due);
                } else {
                    ring_full += 1;
                }
            }
            if waiting.is_empty() {
                let next = generator.peek().at_ns;
                if next >= end_ns {
                    break;
                }
                clock = next;
                continue;
            }
            let batch = &mut self.batches[0];
            batch.clear();
            in_hand.clear();
            while batch.room() > 0
                && let Some(due) = waiting.pop_front()
            {
                write(generator, &due, batch)?;
                in_hand.push(due);
            }
            let lost = self.device.lost();
            let took = self.pass(0, load.direction);
            clock += took.ns;
            let passed = self.passed(0, in_hand.len() as u64, load.direction, lost) as usize;
            let came = &in_hand[..passed.min(in_hand.len())];
            let bytes: u64 = came.iter().map(|due| u64::from(due.size)).sum();
            tally.add(0, came.len() as u64, bytes, &took);
            came.iter().for_each(|due| latency.record(due.at_ns, clock));
            if tally.verified * CHECK_EVERY < tally.received {
                tally.verified += self.verify(0, load.direction, &checker)?;
                self.check_stop()?;
            }
        }
        let mut lost = lost_between(lost_before, self.device.lost());
        lost.ring += ring_full;
        let mut measured = tally.measurement(&self.observer.ticks.hz, lost);
        measured.dur_ns = end_ns;
        super::store_latency(&latency, &mut measured);
        let busy_ns = self.observer.ticks.ns(tally.ticks) as f64;
        measured.values.set(Metric::VirtualTime, 1.0);
        measured.values.set(Metric::SubjectBusyPercent, busy_ns * 100.0 / end_ns.max(1) as f64);
        Ok(measured)
    }

    fn real_time(&mut self, load: &Load) -> Result<Measurement, MeterError> {
        let options = PortOptions {
            batch: self.options.batch,
            packet_bytes: self.options.packet_bytes,
            stop: Arc::clone(&self.options.stop),
            ..PortOptions::default()
        };
        if self.device.aggregates() {
            return Err(MeterError::Unsupported("iptfs is measured without a ring: leave real time out".into()));
        }
        let mut live = LiveDevice::start(&self.subject, load.direction, self.options.ring, &options)?;
        ports::run(&self.subject.to_string(), Addresses::of(&self.subject), &mut live, load, &options)
    }

    fn check_stop(&self) -> Result<(), MeterError> {
        if self.options.stop.load(Ordering::Relaxed) { Err(MeterError::Interrupted) } else { Ok(()) }
    }
}

impl Meter for MemoryMeter {
    fn trial(&mut self, load: &Load) -> Result<Measurement, MeterError> {
        if load.duration.is_zero() {
            return Err(MeterError::Unsupported("a trial needs a duration of at least 1 ms".into()));
        }
        let mut generator = Generator::new(&load.traffic, Addresses::of(&self.subject), load.seed)?;
        let window = self.observer.start();
        let paced = load.traffic.rate != Rate::Saturate;
        let mut measured = match (paced, self.options.real_time) {
            (false, _) => self.saturate(load, &mut generator),
            (true, false) => self.paced(load, &mut generator),
            (true, true) => self.real_time(load),
        }?;
        self.observer.finish(&window, &mut measured);
        Ok(measured)
    }
}

/// Appends the next packet of the generator.
fn put(generator: &mut Generator, batch: &mut Batch) -> Result<(), MeterError> {
    let due = generator.take();
    write(generator, &due, batch)
}

fn write(generator: &Generator, due: &Due, batch: &mut Batch) -> Result<(), MeterError> {
    if append(generator, due, batch) {
        Ok(())
    } else {
        Err(MeterError::Unsupported(format!("packets of {} bytes are larger than this meter's buffers", due.size)))
    }
}

/// Appends `due`; false when it does not fit.
pub(super) fn append(generator: &Generator, due: &Due, batch: &mut Batch) -> bool {
    batch.push_with(|packet| match generator.write(due, packet.receive_area()) {
        Some(len) => {
            packet.received(0, len);
            true
        }
        None => false,
    })
}

/// Cost of one batch.
struct BatchCost {
    ticks: u64,
    ns: u64,
    /// Time that our thread ran.
    cpu_ns: u64,
    /// Time that others ran and that is not counted.
    others_ns: u64,
}

/// Sums of a trial.
#[derive(Default)]
struct Tally {
    sent: u64,
    received: u64,
    received_bytes: u64,
    verified: u64,
    ticks: u64,
    cpu_ns: u64,
    others_ns: u64,
}

impl Tally {
    /// Adds a batch of `bytes_in` bytes; those of lost packets are taken off by their share.
    fn add(&mut self, sent: u64, received: u64, bytes_in: u64, took: &BatchCost) {
        self.sent += sent;
        self.received += received;
        let all = sent.max(received);
        self.received_bytes += if received == all || all == 0 { bytes_in } else { bytes_in * received / all };
        self.ticks += took.ticks;
        self.cpu_ns += took.cpu_ns;
        self.others_ns += took.others_ns;
    }

    fn measurement(&self, hz: &f64, lost: Lost) -> Measurement {
        Measurement {
            sent: self.sent,
            received: self.received,
            received_bytes: self.received_bytes,
            verified: self.verified,
            lost,
            dur_ns: (self.ticks as f64 * 1e9 / hz) as u64,
            tsc: Some(self.ticks),
            cpu_ns: Some(self.cpu_ns),
            values: [(Metric::PreemptedNs, self.others_ns as f64)].into(),
            ..Measurement::default()
        }
    }
}

fn lost_between(before: Lost, after: Lost) -> Lost {
    Lost {
        ring: after.ring - before.ring,
        replay: after.replay - before.replay,
        auth: after.auth - before.auth,
        other: after.other - before.other,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::TICKS;
    use super::*;

    fn meter(subject: &str, options: MemoryOptions) -> MemoryMeter {
        MemoryMeter::new(subject.parse().unwrap(), options).unwrap()
    }

    fn load(traffic: &str, direction: Direction, ms: u64) -> Load {
        Load { traffic: traffic.parse().unwrap(), direction, duration: Duration::from_millis(ms), seed: 7 }
    }

    const SUBJECTS: [&str; 14] = [
        "plain",
        "weir-esp-tunnel-aes128gcm16",
        "weir-esp-transport-3des-md5",
        "weir-esp-tunnel-chacha20poly1305,v6",
        "weir-esp-tunnel-aes128gcm16,iptfs",
        "skeleton-esp-tunnel-aes128gcm16,v6,udp,iptfs",
        "weir-ah-transport-sha256",
        "weir-eesp-tunnel-aes256gcm16,udp",
        "weir-psp-transport-aes128gcm16",
        "skeleton-esp-tunnel-aes128gcm16",
        "cipher-esp-tunnel-aes128gcm16",
        "cipher-esp-tunnel-aes256-sha512",
        "cipher-ah-transport-sha1",
        "cipher-psp-tunnel-aes256gcm16",
    ];

    #[test]
    fn every_subject_takes_every_direction_and_nothing_is_lost_or_changed() {
        for subject in SUBJECTS {
            let mut meter = meter(subject, MemoryOptions { batch: 32, ..MemoryOptions::default() });
            for direction in [Direction::Out, Direction::In, Direction::Both] {
                for traffic in ["60..1400,flows=3", "imix:7a4d,poisson=50k"] {
                    let load = load(traffic, direction, 3);
                    let measured =
                        meter.trial(&load).unwrap_or_else(|error| panic!("{subject} {direction:?} {traffic}: {error}"));
                    let lost = (measured.lost, measured.sent - measured.received);
                    assert_eq!(lost, (Lost::default(), 0), "{subject} {direction:?} {traffic}");
                    assert!(measured.verified * 100 >= measured.sent && measured.verified > 0, "{subject}");
                    assert!(measured.received_bytes >= measured.received * 60);
                    assert!(measured.tsc > Some(0) && measured.cpu_ns > Some(0));
                    assert_eq!(measured.latency.is_some(), load.traffic.rate != Rate::Saturate);
                }
            }
        }
    }

    #[test]
    fn more_than_the_subject_can_take_is_lost_at_the_ring_and_waits_in_it() {
        let mut meter = meter("weir-esp-tunnel-aes128gcm16", MemoryOptions::default());
        let capacity = meter.trial(&load("1400", Direction::Out, 20)).unwrap().pps();
        // All packets of the trial fit the ring of 512, so that no interruption of this process can
        // lose one.
        let low = meter.trial(&load("1400,rate=5000", Direction::Out, 100)).unwrap();
        assert_eq!(low.lost.total(), 0);
        // An interruption makes the capacity look smaller, hence the factor.
        let high = meter.trial(&load(&format!("1400,rate={}", capacity * 16.0), Direction::Out, 100)).unwrap();
        assert!(high.loss_ratio() > 0.5, "{}", high.loss_ratio());
        assert_eq!(high.lost.ring, high.sent - high.received);
        let median = |measured: &Measurement| measured.values.get(Metric::LatencyP50).unwrap();
        assert!(median(&high) > 5.0 * median(&low), "{} {}", median(&high), median(&low));
    }

    #[test]
    fn memory_beyond_the_caches_goes_round() {
        let memory = Memory::Bytes(4 << 20);
        let mut meter = meter("weir-esp-tunnel-aes128gcm16", MemoryOptions { memory, ..MemoryOptions::default() });
        assert!(meter.batches.len() > 4);
        let measured = meter.trial(&load("1400", Direction::Both, 5)).unwrap();
        assert_eq!(measured.lost.total(), 0);
        assert!(measured.values.get(Metric::Batches).unwrap() >= meter.batches.len() as f64);
        let ticks = TICKS.map(|metric| measured.values.get(metric).unwrap());
        assert!(ticks[0] <= ticks[1] && ticks[1] <= ticks[2], "{ticks:?}");
    }

    #[test]
    fn a_trial_reports_its_contention() {
        let mut meter = meter("weir-esp-tunnel-aes128gcm16", MemoryOptions { batch: 16, ..MemoryOptions::default() });
        let measured = meter.trial(&load("512", Direction::Out, 20)).unwrap();
        let percent = measured.values.get(Metric::ContendedPercent).unwrap();
        assert!((0.0..=100.0).contains(&percent), "{percent}");
        assert!(measured.values.get(Metric::ContendedSlower).is_none_or(|slower| slower > 0.0));
    }

    #[test]
    fn in_real_time_a_thread_of_its_own_takes_the_packets() {
        for subject in ["plain", "weir-esp-tunnel-aes128gcm16"] {
            let mut meter = meter(subject, MemoryOptions { real_time: true, ..MemoryOptions::default() });
            for direction in [Direction::In, Direction::Both] {
                let measured = meter.trial(&load("200,rate=2000", direction, 50)).unwrap();
                assert_eq!(measured.sent, 100);
                assert_eq!(measured.sent, measured.received + measured.lost.total(), "{measured:?}");
                assert!(measured.verified > 0 && measured.latency.is_some());
                assert_eq!(measured.values.get(Metric::Foreign).unwrap(), 0.0);
            }
        }
        let mut meter = meter("weir-esp-tunnel-aes128gcm16", MemoryOptions { real_time: true, ..Default::default() });
        assert!(matches!(meter.trial(&load("200,rate=1k", Direction::Out, 5)), Err(MeterError::Unsupported(_))));
    }

    #[test]
    fn impossible_loads_are_refused_and_a_stop_is_obeyed() {
        let mut meter = meter("plain", MemoryOptions { packet_bytes: 1000, ..MemoryOptions::default() });
        assert!(matches!(meter.trial(&load("1400", Direction::Out, 5)), Err(MeterError::Unsupported(_))));
        assert!(matches!(meter.trial(&load("100", Direction::Out, 0)), Err(MeterError::Unsupported(_))));
        assert!(matches!(meter.trial(&load("pcap:/nonexistent", Direction::Out, 5)), Err(MeterError::Traffic(_))));
        meter.options.stop.store(true, Ordering::Relaxed);
        assert!(matches!(meter.trial(&load("100", Direction::Out, 5)), Err(MeterError::Interrupted)));
        assert!(MemoryMeter::new("weir-esp-tunnel-rot13".parse().unwrap(), MemoryOptions::default()).is_err());
    }

    #[test]
    fn a_subject_that_changes_packets_is_found_out() {
        let mut meter = meter("plain", MemoryOptions::default());
        let checker =
            Generator::new(&load("100", Direction::Out, 5).traffic, Addresses::of(&meter.subject), 8).unwrap();
        let mut other =
            Generator::new(&load("100", Direction::Out, 5).traffic, Addresses::of(&meter.subject), 9).unwrap();
        put(&mut other, &mut meter.batches[0]).unwrap();
        let error = meter.verify(0, Direction::In, &checker.checker()).unwrap_err();
        assert_eq!(error.to_string(), "plain: packet 0 came out wrong: its content is not what was sent");
    }
}
