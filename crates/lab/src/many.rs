//! Many SAs at once, in memory: cost of a packet when other SAs fill the caches, and memory per SA.
//!
//! Packets use all SAs in turn, in an order without adjacent SAs, so that their SA is cold in the
//! caches. The sender has a policy for each SA, because the inner address selects the SA; the
//! receiver has one policy for all, because the SPI selects it. ESP, AH and EESP store a key for
//! each SA at both endpoints. A receiver of PSP stores none: it derives the key from its master key
//! and the SPI, and keeps some in a bounded cache.

use std::time::{Duration, Instant};

use dataplane::{Batch, Snapshot, Worker, WorkerConfig};
use ipsec::Protocol;
use ports::clock::ticks;
use wire::IpProto;

use crate::derive::derive_ns;
use crate::host::clock::{chain_ticks, thread_ns};
use crate::host::{self, Observer, at_depth};
use crate::meter::{lost, store_ticks};
use crate::metric::Metric;
use crate::trial::{Direction, Lost, Measurement};
use stats::RatedTimes;
use testbed::packet;
use testbed::pair::{PairError, Subject};

/// Most SAs.
pub const MAX_SAS: u32 = 1_000_000;
/// Upper bound of the memory of an SA at both endpoints together, in bytes; checked before
/// allocation.
const EACH_BYTES: u64 = 8 << 10;
/// Minimum number of SAs for the memory per SA: resident memory is counted in pages, some of which
/// may have been free before.
pub const FEWEST_FOR_MEMORY: u32 = 10_000;
/// A trial ends at the latest after so many times its duration, preparation included.
const MAX_WALL: u32 = 20;
/// A batch is checked whole whenever fewer than one in so many packets were.
const CHECK_EVERY: u64 = 64;
/// Time of preemption, in nanoseconds, that exceeds the resolution of the clocks.
const PREEMPTED_NS: u64 = 3_000;

/// Memory that `count` SAs may take at both ends together, in bytes.
pub fn need_bytes(count: u32) -> u64 {
    u64::from(count) * EACH_BYTES
}

/// Reason why the SAs could not be created, or lost packets.
#[derive(Debug, thiserror::Error)]
pub enum ManyError {
    /// They cannot be built.
    #[error(transparent)]
    Pair(#[from] PairError),
    /// They do not fit.
    #[error("{count} SAs may need {need_mib} MiB at both endpoints and {have_mib} MiB are free: use fewer")]
    Memory {
        /// SAs.
        count: u32,
        /// Required memory, in MiB.
        need_mib: u64,
        /// Free memory, in MiB.
        have_mib: u64,
    },
    /// None, or more than [`MAX_SAS`].
    #[error("{0} SAs: use 1 to 1000000")]
    Count(u32),
    /// Packets of a batch did not come out.
    #[error("{came} of {sent} packets came out: {lost:?} lost")]
    Missing {
        /// Packets that came out.
        came: usize,
        /// Packets in the batch.
        sent: usize,
        /// Losses by cause, since the start.
        lost: Lost,
    },
    /// A packet of a batch differs from the original. Its number, from 0.
    #[error("packet {0} of a batch came out other than it went in")]
    Altered(usize),
}

/// Checks that there may be `count` SAs and that they fit into memory.
///
/// # Errors
/// [`ManyError::Count`], [`ManyError::Memory`].
pub fn check(count: u32) -> Result<(), ManyError> {
    if !(1..=MAX_SAS).contains(&count) {
        return Err(ManyError::Count(count));
    }
    let (need_mib, have_mib) = (need_bytes(count) >> 20, host::available_bytes() >> 20);
    if need_mib > have_mib { Err(ManyError::Memory { count, need_mib, have_mib }) } else { Ok(()) }
}

/// So many SAs, with both ends.
pub struct Many {
    subject: Subject,
    count: u32,
    ends: [Worker; 2],
    tables: [Snapshot; 2],
    replies: Batch,
    batch: Batch,
    /// Plaintext of the current batch, to compare with the output.
    clear: Vec<Vec<u8>>,
    observer: Observer,
    /// SA of the next packet, and how far the one after is from it.
    next: u32,
    stride: u32,
    /// Bytes that an SA, or a Sub SA, takes at sender and receiver.
    each_bytes: Option<[f64; 2]>,
}

impl Many {
    /// Sets them up, with batches of `batch` packets of at most 2048 bytes. PSP has no replay
    /// windows here: it keeps them for fewer SPIs only.
    ///
    /// # Errors
    /// [`ManyError`].
    pub fn new(subject: &Subject, count: u32, batch: usize) -> Result<Self, ManyError> {
        let keys = count.saturating_mul(subject.lanes.sub_sas(1).max(1));
        check(keys)?;
        let mut subject = subject.clone();
        if subject.protocol == Protocol::Psp {
            subject.window = 0;
        }
        let before = host::resident_bytes();
        let receiver = subject.many_inbound(count)?;
        let between = host::resident_bytes();
        let sender = subject.many_outbound(count)?;
        let after = host::resident_bytes();
        let each = |from: u64, to: u64| to.saturating_sub(from) as f64 / f64::from(keys);
        let config = WorkerConfig { alone: true, batch, engine: subject.engine, ..WorkerConfig::default() };
        Ok(Self {
            each_bytes: (keys >= FEWEST_FOR_MEMORY).then(|| [each(between, after), each(before, between)]),
            ends: [Worker::new(config.clone()).0, Worker::new(config).0],
            tables: [sender, receiver],
            replies: Batch::new(8, 2048),
            batch: Batch::new(batch, 2048),
            clear: Vec::new(),
            observer: Observer::open(),
            next: 0,
            stride: stride(count),
            subject,
            count,
        })
    }

    /// Bytes of memory that an SA, or a Sub SA, takes at the sender, its policy included, and at
    /// the receiver; `None` for too few SAs.
    pub fn each_bytes(&self) -> Option<[f64; 2]> {
        self.each_bytes
    }

    /// As many packets of `size` bytes as go, for `duration` of the subject's time.
    ///
    /// # Errors
    /// A packet came out other than it went in, or not at all.
    pub fn trial(&mut self, direction: Direction, size: usize, duration: Duration) -> Result<Measurement, ManyError> {
        let window = self.observer.start();
        let target = self.observer.ticks.ticks(duration.as_nanos() as u64);
        let limit = Instant::now() + duration * MAX_WALL;
        let mut measured = Measurement::default();
        let (mut spent, mut cpu_ns, mut others_ns) = (0, 0, 0);
        let (mut samples, mut preempted) = (RatedTimes::new(chain_ticks), None);
        let before = self.lost();
        while spent < target && (samples.is_empty() || Instant::now() < limit) {
            self.fill(size);
            let sent = self.batch.len() as u64;
            let took = at_depth(samples.len(), || self.pass(direction));
            let received = self.batch.len() as u64;
            measured.sent += sent;
            measured.received += received;
            measured.received_bytes += received * size as u64;
            spent += took.ticks;
            cpu_ns += took.cpu_ns;
            others_ns += took.others_ns;
            if took.others_ns == 0 {
                samples.add([took.ticks as f64 / sent as f64]);
            } else {
                preempted = Some(took.ticks as f64 / sent as f64);
            }
            if measured.verified * CHECK_EVERY < measured.sent {
                measured.verified += self.verify(direction)?;
            }
        }
        if let Some(each) = preempted.filter(|_| samples.is_empty()) {
            samples.add([each]);
        }
        let after = self.lost();
        measured.lost = Lost {
            ring: after.ring - before.ring,
            replay: after.replay - before.replay,
            auth: after.auth - before.auth,
            other: after.other - before.other,
        };
        measured.tsc = Some(spent);
        measured.cpu_ns = Some(cpu_ns);
        measured.dur_ns = self.observer.ticks.ns(spent);
        store_ticks(&samples.finish(), &self.observer.ticks, &mut measured);
        measured.values.set(Metric::PreemptedNs, others_ns as f64);
        if let Some([sender, receiver]) = self.each_bytes {
            measured.values.set(Metric::SaBytesSender, sender);
            measured.values.set(Metric::SaBytesReceiver, receiver);
        }
        measured.values.extend(derive_ns(&self.subject).map(|ns| (Metric::DeriveNs, ns)));
        self.observer.finish(&window, &mut measured);
        Ok(measured)
    }

    /// A batch of clear packets, each for another SA.
    fn fill(&mut self, size: usize) {
        let [src, _] = self.subject.packet_addresses();
        self.batch.clear();
        self.clear.clear();
        while self.batch.room() > 0 {
            let dst = Subject::address_of(self.next);
            self.next = ((u64::from(self.next) + u64::from(self.stride)) % u64::from(self.count)) as u32;
            let packet = packet::udp(src, dst, 4000, 4001, size, IpProto::UDP);
            if !self.batch.push_with(|buffer| buffer.set(&packet)) {
                break;
            }
            self.clear.push(packet);
        }
    }

    /// Processes the batch at one endpoint or both. Preparation is not timed.
    fn pass(&mut self, direction: Direction) -> BatchCost {
        if direction == Direction::In {
            self.protect();
        }
        let cpu = thread_ns();
        self.observer.resume();
        let out = if direction == Direction::In { 0 } else { self.protect() };
        let back = if direction == Direction::Out { 0 } else { self.open() };
        self.observer.pause();
        let cpu_ns = thread_ns() - cpu;
        let ticks = (out + back).saturating_sub(self.observer.ticks.read_ticks as u64);
        let ns = self.observer.ticks.ns(ticks);
        if ns > cpu_ns + cpu_ns / 50 + PREEMPTED_NS {
            return BatchCost { ticks: self.observer.ticks.ticks(cpu_ns), cpu_ns, others_ns: ns - cpu_ns };
        }
        BatchCost { ticks, cpu_ns: cpu_ns.min(ns), others_ns: 0 }
    }

    fn protect(&mut self) -> u64 {
        let start = ticks();
        self.ends[0].outbound(&self.tables[0], &mut self.batch, &mut self.replies);
        let took = ticks() - start;
        self.replies.clear();
        took
    }

    fn open(&mut self) -> u64 {
        let start = ticks();
        self.ends[1].inbound(&self.tables[1], &mut self.batch);
        ticks() - start
    }

    /// Compares every packet of the batch with the original; packets that were only protected are
    /// opened first.
    fn verify(&mut self, direction: Direction) -> Result<u64, ManyError> {
        if direction == Direction::Out {
            self.open();
        }
        let came = self.batch.packets();
        if came.len() != self.clear.len() {
            return Err(ManyError::Missing { came: came.len(), sent: self.clear.len(), lost: self.lost() });
        }
        match came.iter().zip(&self.clear).position(|(came, clear)| came.bytes() != clear.as_slice()) {
            Some(at) => Err(ManyError::Altered(at)),
            None => Ok(came.len() as u64),
        }
    }

    fn lost(&self) -> Lost {
        let counters = self.ends.each_ref().map(Worker::counters);
        lost(counters.iter().map(AsRef::as_ref))
    }
}

/// Cost of one batch.
struct BatchCost {
    ticks: u64,
    cpu_ns: u64,
    others_ns: u64,
}

/// A step that visits all of `count` and separates adjacent SAs: near the golden ratio of it,
/// without a common divisor.
pub(crate) fn stride(count: u32) -> u32 {
    let wanted = (f64::from(count) * 0.618) as u32;
    (wanted.max(1)..).find(|step| gcd(*step, count) == 1).expect("count + 1 at the latest")
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use crypto::Engine;

    use super::*;
    use testbed::pair::Shape;

    fn subject(protocol: Protocol) -> Subject {
        Subject::new(protocol, Shape::Tunnel, "aes128gcm16", Engine::AwsLc)
    }

    #[test]
    fn every_sa_has_its_turn() {
        for count in [1, 2, 3, 10, 64, 1000, 65_536] {
            let (step, mut at, mut seen) = (stride(count), 0, vec![false; count as usize]);
            for _ in 0..count {
                seen[at as usize] = true;
                at = (at + step) % count;
            }
            assert!(seen.iter().all(|seen| *seen), "{count}");
        }
    }

    #[test]
    fn packets_of_many_sas_go_through_both_ends_whole() {
        for protocol in [Protocol::Esp, Protocol::Eesp, Protocol::Psp] {
            let mut many = Many::new(&subject(protocol), 1500, 64).unwrap();
            for direction in [Direction::Out, Direction::In, Direction::Both] {
                let measured = many.trial(direction, 100, Duration::from_millis(2)).unwrap();
                assert_eq!((measured.sent, measured.lost), (measured.received, Lost::default()), "{protocol:?}");
                assert!(measured.verified > 0 && measured.values.get(Metric::TicksMedian).unwrap() > 0.0);
            }
            assert_eq!(many.each_bytes(), None, "too few SAs");
        }
    }

    #[test]
    fn too_many_are_refused_before_they_take_anything() {
        assert!(matches!(Many::new(&subject(Protocol::Esp), 0, 64), Err(ManyError::Count(0))));
        assert!(matches!(Many::new(&subject(Protocol::Esp), MAX_SAS + 1, 64), Err(ManyError::Count(_))));
        let transport = Subject { shape: Shape::Transport, ..subject(Protocol::Esp) };
        let error = Many::new(&transport, 2, 64).err().unwrap().to_string();
        assert!(error.contains("tunnel mode"), "{error}");
    }
}
