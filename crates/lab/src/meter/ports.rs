//! Trials in real time between two ports: packets sent to one should arrive at the other.
//!
//! Open loop: packets leave at their intended times, regardless of losses before, and latencies
//! count from there. Packets that the generator could not send in time also count as lost (RFC 9971
//! §4.8.1 requires that) and are reported.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use dataplane::{Batch, Port};
use ports::{MemoryPort, memory_pair};

use super::device::Device;
use super::memory::append;
use super::{Load, Meter, MeterError};
use crate::host::Observer;
use crate::host::clock::raw_ns;
use crate::metric::Metric;
use crate::traffic::{Addresses, Fault, Generator, Rate};
use crate::trial::{Direction, Lost, Measurement};
use stats::Latency;
use testbed::MemorySubject;
use testbed::pair::PairError;

/// Options of a trial between ports.
#[derive(Clone, Debug)]
pub struct PortOptions {
    /// Packets per batch.
    pub batch: usize,
    /// Largest packet in bytes.
    pub packet_bytes: usize,
    /// Time to wait for late packets after the last one was sent (RFC 2544 §23 has two seconds).
    pub straggle: Duration,
    /// One packet in so many has its content compared.
    pub check_every: u64,
    /// Set to stop trials.
    pub stop: Arc<AtomicBool>,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self { batch: 64, packet_bytes: 2048, straggle: Duration::from_secs(1), check_every: 50, stop: Arc::default() }
    }
}

/// Ports of a measurement.
pub(crate) trait Ends {
    fn send(&mut self, batch: &mut Batch) -> io::Result<()>;
    fn receive(&mut self, batch: &mut Batch) -> io::Result<()>;
    /// Packets lost so far as far as the ends count them, by cause.
    fn lost(&self) -> Lost;
}

/// Measures the path between two ports: namespaces, devices, interfaces of the user.
pub struct PortMeter {
    name: String,
    ports: Pair,
    addresses: Addresses,
    options: PortOptions,
    observer: Observer,
}

struct Pair {
    tx: Box<dyn Port>,
    rx: Box<dyn Port>,
    lost: Box<dyn Fn() -> Lost>,
}

impl Ends for Pair {
    fn send(&mut self, batch: &mut Batch) -> io::Result<()> {
        self.tx.tx(batch)
    }

    fn receive(&mut self, batch: &mut Batch) -> io::Result<()> {
        self.rx.rx(batch)
    }

    fn lost(&self) -> Lost {
        let (sending, receiving, inside) = (self.tx.drops(), self.rx.drops(), (self.lost)());
        Lost {
            ring: inside.ring + sending.full,
            other: inside.other + sending.too_big + sending.other + receiving.cut_off + receiving.unreadable,
            ..inside
        }
    }
}

impl PortMeter {
    /// Packets between `addresses` go into `tx` and are expected from `rx`. `lost` reads the drop
    /// counters of the path, if there are any.
    pub fn new(
        name: &str,
        tx: Box<dyn Port>,
        rx: Box<dyn Port>,
        addresses: Addresses,
        lost: Box<dyn Fn() -> Lost>,
        options: PortOptions,
    ) -> Self {
        let ports = Pair { tx, rx, lost };
        Self { name: name.to_owned(), ports, addresses, options, observer: Observer::open() }
    }
}

impl Meter for PortMeter {
    /// `load.direction` concerns the subject only: this meter sends in one direction.
    fn trial(&mut self, load: &Load) -> Result<Measurement, MeterError> {
        let window = self.observer.start();
        let mut measured = run(&self.name, self.addresses, &mut self.ports, load, &self.options)?;
        self.observer.finish(&window, &mut measured);
        Ok(measured)
    }
}

/// Intended departure times of the packets in flight: 8 MiB, a second at 1 Mpps.
struct OnTheirWay(Vec<u64>);

impl OnTheirWay {
    const PLACES: usize = 1 << 20;

    fn put(&mut self, seq: u64, at_ns: u64) {
        let at = seq as usize & (Self::PLACES - 1);
        self.0.resize(self.0.len().max(at + 1), 0);
        self.0[at] = at_ns;
    }

    /// `None` for a packet that is too late.
    fn get(&self, seq: u64, sent: u64) -> Option<u64> {
        let known = seq < sent && sent - seq <= Self::PLACES as u64;
        known.then(|| self.0[seq as usize & (Self::PLACES - 1)])
    }
}

/// Runs one trial between `ends`.
pub(crate) fn run(
    name: &str,
    addresses: Addresses,
    ends: &mut dyn Ends,
    load: &Load,
    options: &PortOptions,
) -> Result<Measurement, MeterError> {
    let mut generator = Generator::new(&load.traffic, addresses, load.seed)?;
    let checker = generator.checker();
    let saturate = load.traffic.rate == Rate::Saturate;
    let io = |what: &str| {
        let what = format!("{name}: cannot {what}");
        move |source| MeterError::Io { what, source }
    };
    let (mut sending, mut receiving) =
        (Batch::new(options.batch, options.packet_bytes), Batch::new(options.batch, options.packet_bytes));
    drain(ends, &mut receiving).map_err(io("receive"))?;
    let before = ends.lost();
    let duration_ns = load.duration.as_nanos() as u64;
    let (mut measured, mut latency) = (Measurement::default(), Latency::default());
    let (mut on_their_way, mut highest, mut reordered, mut foreign) = (OnTheirWay(Vec::new()), 0, 0_u64, 0_u64);
    let (start, mut last_ns) = (raw_ns(), 0);
    let mut late_ns = 0;
    loop {
        let now = raw_ns() - start;
        while now < duration_ns && sending.room() > 0 && generator.peek().at_ns <= now.min(duration_ns - 1) {
            let due = generator.take();
            let intended = if saturate { now } else { due.at_ns };
            late_ns = late_ns.max(now.saturating_sub(intended));
            on_their_way.put(due.seq, intended);
            if !append(&generator, &due, &mut sending) {
                let why = format!("packets of {} bytes are larger than this meter's buffers", due.size);
                return Err(MeterError::Unsupported(why));
            }
            measured.sent += 1;
        }
        if !sending.is_empty() {
            ends.send(&mut sending).map_err(io("send"))?;
            last_ns = now;
        }
        receiving.clear();
        ends.receive(&mut receiving).map_err(io("receive"))?;
        let now = raw_ns() - start;
        for packet in receiving.packets() {
            let check = measured.received % options.check_every == 0;
            let seen = if check { checker.check(packet.bytes()) } else { checker.identify(packet.bytes()) };
            let seen = match seen {
                Ok(seen) => seen,
                Err(Fault::Foreign) => {
                    foreign += 1;
                    continue;
                }
                Err(fault) => {
                    let seq = checker.identify(packet.bytes()).map_or("?".into(), |seen| seen.seq.to_string());
                    return Err(MeterError::Wrong { subject: name.to_owned(), seq, fault });
                }
            };
            measured.verified += u64::from(check);
            measured.received += 1;
            measured.received_bytes += seen.size as u64;
            reordered += u64::from(seen.seq < highest);
            highest = highest.max(seen.seq);
            if let Some(intended) = on_their_way.get(seen.seq, measured.sent) {
                latency.record(intended, now);
            }
        }
        let done = now >= duration_ns
            && (measured.received >= measured.sent || now > last_ns + options.straggle.as_nanos() as u64);
        if done {
            break;
        }
        if options.stop.load(Ordering::Relaxed) {
            return Err(MeterError::Interrupted);
        }
        if receiving.is_empty() && !saturate && generator.peek().at_ns > now + 50_000 {
            std::thread::yield_now();
        }
    }
    let mut shortfall = 0;
    while !saturate && generator.peek().at_ns < duration_ns {
        generator.take();
        shortfall += 1;
    }
    measured.sent += shortfall;
    measured.dur_ns = duration_ns;
    let after = ends.lost();
    let known = Lost {
        ring: after.ring - before.ring,
        replay: after.replay - before.replay,
        auth: after.auth - before.auth,
        other: 0,
    };
    // Lost packets that no drop counter explains.
    let missing = measured.sent.saturating_sub(measured.received);
    measured.lost = Lost { other: missing.saturating_sub(known.total()), ..known };
    super::store_latency(&latency, &mut measured);
    let values = [
        (Metric::GeneratorShortfall, shortfall as f64),
        (Metric::GeneratorLateNs, late_ns as f64),
        (Metric::Reordered, reordered as f64),
        (Metric::Foreign, foreign as f64),
    ];
    measured.values.extend(values);
    Ok(measured)
}

/// Discards packets of an earlier trial.
fn drain(ends: &mut dyn Ends, batch: &mut Batch) -> io::Result<()> {
    for _ in 0..1000 {
        batch.clear();
        ends.receive(batch)?;
        if batch.is_empty() {
            break;
        }
    }
    batch.clear();
    Ok(())
}

/// A subject in memory on a separate thread, between two rings.
pub struct LiveDevice {
    to: MemoryPort,
    from: MemoryPort,
    /// Protects the sent packets if only opening is measured.
    seal: Option<Device>,
    lost: Arc<std::sync::Mutex<Lost>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LiveDevice {
    /// Starts the thread. It ends when this is dropped.
    ///
    /// # Errors
    /// A subject that cannot be built, or a thread that cannot be started.
    pub fn start(
        subject: &MemorySubject,
        direction: Direction,
        ring: usize,
        options: &PortOptions,
    ) -> Result<Self, MeterError> {
        let failed = |error: PairError| MeterError::Subject { subject: subject.to_string(), why: error.to_string() };
        let (batch, bytes) = (options.batch, options.packet_bytes);
        let mut device = Device::new(subject, batch, bytes).map_err(failed)?;
        let seal = match direction {
            Direction::In => Some(Device::new(subject, batch, bytes).map_err(failed)?),
            Direction::Out if subject.subject().is_some() => {
                let why = "in real time the meter must receive the output: use direction in or both";
                return Err(MeterError::Unsupported(why.into()));
            }
            Direction::Out | Direction::Both => None,
        };
        let (to, inside_rx) = memory_pair(ring, bytes + dataplane::HEADROOM);
        let (inside_tx, from) = memory_pair(ring, bytes + dataplane::HEADROOM);
        let (lost, stop) = (Arc::new(std::sync::Mutex::new(Lost::default())), Arc::new(AtomicBool::new(false)));
        let (shared, asked) = (Arc::clone(&lost), Arc::clone(&stop));
        let mut batch = Batch::new(batch, bytes + dataplane::HEADROOM);
        let (mut rx, mut tx) = (inside_rx, inside_tx);
        let thread = std::thread::Builder::new().name("subject".into()).spawn(move || {
            while !asked.load(Ordering::Acquire) {
                if rx.rx(&mut batch).is_err() {
                    return;
                }
                if batch.is_empty() {
                    std::thread::yield_now();
                    continue;
                }
                if direction != Direction::In {
                    device.expect(&batch);
                    device.protect(&mut batch);
                }
                if direction != Direction::Out {
                    device.open(&mut batch);
                    device.settle(&mut batch);
                }
                let ended = tx.tx(&mut batch).is_err();
                let full = tx.drops().full;
                if let Ok(mut lost) = shared.lock() {
                    *lost = device.lost();
                    lost.ring += full;
                }
                if ended {
                    return;
                }
            }
        });
        let thread = thread.map_err(|source| MeterError::Io { what: "cannot start a thread".into(), source })?;
        Ok(Self { to, from, seal, lost, stop, thread: Some(thread) })
    }
}

impl Ends for LiveDevice {
    fn send(&mut self, batch: &mut Batch) -> io::Result<()> {
        if let Some(seal) = &mut self.seal {
            seal.expect(batch);
            seal.protect(batch);
        }
        self.to.tx(batch)
    }

    fn receive(&mut self, batch: &mut Batch) -> io::Result<()> {
        self.from.rx(batch)
    }

    fn lost(&self) -> Lost {
        let inside = self.lost.lock().map(|lost| *lost).unwrap_or_default();
        Lost { ring: inside.ring + self.to.drops().full, ..inside }
    }
}

impl Drop for LiveDevice {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
