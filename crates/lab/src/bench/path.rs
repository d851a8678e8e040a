//! Cycles per packet of the whole in-memory path.
//!
//! One batch makes the round trip in place: clear, protected by the sender's worker, opened by the
//! receiver's. The same buffers then make the round trip through the engine alone, with
//! operations of the same shape. Both are timed in every round, in random order, so that drift of
//! the machine meets both alike; the ratio is taken per round.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use crypto::{CryptoOp, DerivedKeys, Engine, Job, Keys};
use dataplane::clock::{ticks, ticks_per_second};
use dataplane::{Batch, HEADROOM, Packet, Snapshot, TAILROOM, Worker, WorkerConfig};
use ipsec::{Frame, Protocol, prepare_out};
use wire::{IpPacket, IpProto, SeqNo};

use super::alone::{self, Alone};
use crate::pair::{PairError, Shape, Subject};
use crate::stats::{Estimate, Rng, median_with_interval};

/// Grid sizes first, then twelve that are no multiple of 16: engines differ in their tails.
pub(super) const SIZES: [usize; 15] = [64, 512, 1400, 65, 97, 131, 201, 257, 349, 449, 577, 731, 915, 1111, 1337];

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Protocols, all when empty.
    pub protocols: Vec<Protocol>,
    /// Suites, the default list when empty.
    pub suites: Vec<String>,
    /// Inner packet sizes in bytes, [`SIZES`] when empty.
    pub sizes: Vec<usize>,
    /// Rounds per case; at least 30 for an interval that means something.
    pub rounds: usize,
    /// Packets per batch.
    pub batch: usize,
    /// Sizes of batches to go through one after the other, only `batch` when empty.
    pub batches: Vec<usize>,
    /// Memory that the packets take in all, in MB, of which each round works on one batch; 0 is a batch that stays in
    /// the second-level cache. Only that when empty.
    pub working_sets: Vec<usize>,
    /// Seed of order and bootstrap.
    pub seed: u64,
    /// IPv6 inside and outside.
    pub v6: bool,
    /// Engine of the path and of the comparison.
    pub engine: Engine,
    /// Longest time that a case waits for a core that no neighbour shares; zero takes every round as it comes.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            protocols: vec![],
            suites: vec![],
            sizes: vec![],
            rounds: 41,
            batch: 256,
            batches: vec![],
            working_sets: vec![],
            seed: 1,
            v6: false,
            engine: Engine::best(),
            patience: alone::PATIENCE,
        }
    }
}

/// One row: a way of protecting and a size.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Case {
    /// Protocol.
    pub protocol: &'static str,
    /// Mode.
    pub mode: Shape,
    /// Suite.
    pub suite: String,
    /// Inner packet in bytes.
    pub size: usize,
    /// Packets per batch.
    pub batch: usize,
    /// Memory of all packets in MB, 0 for one batch.
    pub working_set_mb: usize,
}

/// One direction of a case. Times in ticks per packet.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Direction {
    /// The whole path.
    pub path: Estimate,
    /// The engine alone on the same buffers.
    pub engine: Estimate,
    /// Path over engine, per round.
    pub ratio: Estimate,
    /// Path minus engine, per round: what everything but the cipher costs.
    pub over: Estimate,
    /// Packets per second of one core.
    pub pps: f64,
}

/// A measured case.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Outcome {
    /// What.
    #[serde(flatten)]
    pub case: Case,
    /// Protecting.
    pub outbound: Direction,
    /// Opening.
    pub inbound: Direction,
    /// Rounds during which no neighbour shared the core.
    pub free_rounds: usize,
    /// Whether only these are counted: there were enough.
    pub alone: bool,
}

/// Called before each case with (done, total).
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// Measures every case.
///
/// # Errors
/// A suite that is none, or a combination that cannot be built.
pub fn run(options: &Options, progress: Progress<'_>) -> Result<(f64, Vec<Outcome>), PairError> {
    let hz = ticks_per_second();
    let subjects = subjects(options);
    let sizes = if options.sizes.is_empty() { SIZES.to_vec() } else { options.sizes.clone() };
    let batches = if options.batches.is_empty() { vec![options.batch] } else { options.batches.clone() };
    let sets = if options.working_sets.is_empty() { vec![0] } else { options.working_sets.clone() };
    let total = subjects.len() * sizes.len() * batches.len() * sets.len();
    let mut rng = Rng::new(options.seed);
    let mut alone = Alone::new(options.patience);
    let mut outcomes = Vec::with_capacity(total);
    for subject in &subjects {
        for (batch, set) in batches.iter().flat_map(|batch| sets.iter().map(|set| (*batch, *set))) {
            let options = Options { batch, ..options.clone() };
            let mut ends = Ends::with_set(subject, &options, set)?;
            for &size in &sizes {
                progress(outcomes.len(), total);
                outcomes.push(ends.measure(subject, size, &options, hz, &mut rng, &mut alone));
            }
        }
    }
    Ok((hz, outcomes))
}

/// The ways of protecting that `options` asks for.
pub(super) fn subjects(options: &Options) -> Vec<Subject> {
    const DEFAULT: [(Protocol, Shape, &str); 12] = [
        (Protocol::Esp, Shape::Tunnel, "aes128gcm16"),
        (Protocol::Esp, Shape::Tunnel, "aes256gcm16"),
        (Protocol::Esp, Shape::Tunnel, "chacha20poly1305"),
        (Protocol::Esp, Shape::Transport, "aes128gcm16"),
        (Protocol::Esp, Shape::Transport, "aes128-sha256"),
        (Protocol::Ah, Shape::Transport, "sha256"),
        (Protocol::Eesp, Shape::Tunnel, "aes128gcm16"),
        (Protocol::Eesp, Shape::Tunnel, "aes256gcm16"),
        (Protocol::Eesp, Shape::Transport, "aes128gcm16"),
        (Protocol::Psp, Shape::Tunnel, "aes128gcm16"),
        (Protocol::Psp, Shape::Tunnel, "aes256gcm16"),
        (Protocol::Psp, Shape::Transport, "aes128gcm16"),
    ];
    let wanted = |p: Protocol, s: &str| {
        (options.protocols.is_empty() || options.protocols.contains(&p))
            && (options.suites.is_empty() || options.suites.iter().any(|w| w == s))
    };
    let mut subjects: Vec<Subject> = DEFAULT
        .iter()
        .filter(|(p, _, s)| wanted(*p, s))
        .map(|(p, shape, s)| Subject::new(*p, *shape, s, Engine::best()))
        .collect();
    // A suite outside the default list is measured in tunnel mode with every protocol asked for.
    for suite in options.suites.iter().filter(|s| !DEFAULT.iter().any(|(_, _, d)| d == *s)) {
        for &p in &options.protocols {
            subjects.push(Subject::new(p, Shape::Tunnel, suite, Engine::best()));
        }
    }
    for subject in &mut subjects {
        subject.v6 = options.v6;
        subject.engine = options.engine;
    }
    subjects
}

/// Both ends of one subject, and the engine alone.
pub(super) struct Ends {
    sender: Worker,
    receiver: Worker,
    sending: Snapshot,
    receiving: Snapshot,
    /// The batch in hand is the first; the others wait for their turn.
    batches: VecDeque<Batch>,
    set_mb: usize,
    replies: Batch,
    bare: Bare,
    derived: DerivedKeys,
}

impl Ends {
    pub(super) fn new(subject: &Subject, options: &Options) -> Result<Self, PairError> {
        Self::with_set(subject, options, 0)
    }

    /// With packets that take `set_mb` MB in all.
    fn with_set(subject: &Subject, options: &Options, set_mb: usize) -> Result<Self, PairError> {
        let [sending, receiving] = subject.tables()?;
        let config = WorkerConfig { batch: options.batch, engine: subject.engine, ..WorkerConfig::default() };
        let packet_bytes = config.packet_bytes;
        let bytes = options.batch * (HEADROOM + packet_bytes + TAILROOM);
        let batches = (set_mb * 1_000_000).div_ceil(bytes).max(1);
        Ok(Self {
            sender: Worker::new(config.clone()).0,
            receiver: Worker::new(config).0,
            sending,
            receiving,
            batches: (0..batches).map(|_| Batch::new(options.batch, packet_bytes)).collect(),
            set_mb,
            replies: Batch::new(4, packet_bytes),
            bare: Bare::new(),
            derived: DerivedKeys::new(2),
        })
    }

    /// Fills the batch with clear packets of `size` bytes; returns one of them.
    pub(super) fn fill(&mut self, subject: &Subject, size: usize, packets: usize) -> Vec<u8> {
        let [src, dst] = subject.packet_addresses();
        let template = udp_packet(src, dst, size);
        for batch in &mut self.batches {
            batch.clear();
            for _ in 0..packets {
                batch.push_with(|packet| packet.set(&template));
            }
        }
        template
    }

    fn measure(
        &mut self,
        subject: &Subject,
        size: usize,
        options: &Options,
        hz: f64,
        rng: &mut Rng,
        alone: &mut Alone,
    ) -> Outcome {
        alone.case();
        let batch = options.batch;
        let template = self.fill(subject, size, batch);
        let n = batch as f64;
        let shape = Bare::shape(&self.sending, &template);
        let mut samples: [Vec<f64>; 4] = Default::default();
        for round in 0..options.rounds + WARM_UP {
            let path_first = rng.next_u64() & 1 == 0;
            alone.begin();
            let (path, bare) = if path_first {
                let path = self.path_round(0.0);
                self.turn();
                (path, self.bare_round(subject, &shape, &template))
            } else {
                let bare = self.bare_round(subject, &shape, &template);
                self.turn();
                (self.path_round(0.0), bare)
            };
            self.turn();
            assert_eq!(self.packets(), batch, "{subject:?} at {size} bytes lost packets");
            if round >= WARM_UP {
                alone.end();
                for (samples, ticks) in samples.iter_mut().zip([path[0], bare[0], path[1], bare[1]]) {
                    samples.push(ticks as f64 / n);
                }
            }
        }
        let samples = samples.map(|samples| alone.counted(&samples));
        let direction = |path: &[f64], engine: &[f64], rng: &mut Rng| {
            let ratios: Vec<f64> = path.iter().zip(engine).map(|(p, e)| p / e).collect();
            let over: Vec<f64> = path.iter().zip(engine).map(|(p, e)| p - e).collect();
            let path = median_with_interval(path, rng);
            Direction {
                path,
                engine: median_with_interval(engine, rng),
                ratio: median_with_interval(&ratios, rng),
                over: median_with_interval(&over, rng),
                pps: hz / path.value,
            }
        };
        Outcome {
            case: Case {
                protocol: subject.protocol.name(),
                mode: subject.shape,
                suite: subject.suite.clone(),
                size,
                batch,
                working_set_mb: self.set_mb,
            },
            outbound: direction(&samples[0], &samples[1], rng),
            inbound: direction(&samples[2], &samples[3], rng),
            free_rounds: alone.count(),
            alone: alone.enough(),
        }
    }

    /// The next batch of the working set.
    fn turn(&mut self) {
        self.batches.rotate_left(1);
    }

    /// The same buffers through the sender's key alone.
    fn bare_round(&mut self, subject: &Subject, shape: &(CryptoOp, usize), template: &[u8]) -> [u64; 2] {
        let keys = Keys { table: &self.sending.keys, derived: &self.derived };
        let ticks = self.bare.round(subject.engine, keys, self.batches[0].packets_mut(), &[], shape);
        if subject.protocol == Protocol::Ah {
            // AH's ICV stands where the IP header of the clear packet is.
            for packet in self.batches[0].packets_mut() {
                packet.bytes_mut()[..64.min(template.len())].copy_from_slice(&template[..64.min(template.len())]);
            }
        }
        ticks
    }

    /// One round trip of the batch; ticks of each direction, longer by the share `slow_down` of them.
    pub(super) fn path_round(&mut self, slow_down: f64) -> [u64; 2] {
        let t0 = ticks();
        self.sender.outbound(&self.sending, &mut self.batches[0], &mut self.replies);
        let t1 = stretched(t0, slow_down);
        self.receiver.inbound(&self.receiving, &mut self.batches[0]);
        let t2 = stretched(t1, slow_down);
        [t1 - t0, t2 - t1]
    }

    /// Packets that are in the batch.
    pub(super) fn packets(&self) -> usize {
        self.batches[0].len()
    }
}

/// The time now, after waiting for the share `slow_down` of what passed since `from`: a slow-down of known size.
fn stretched(from: u64, slow_down: f64) -> u64 {
    let now = ticks();
    if slow_down <= 0.0 {
        return now;
    }
    let until = now + ((now - from) as f64 * slow_down) as u64;
    loop {
        let now = ticks();
        if now >= until {
            return now;
        }
        std::hint::spin_loop();
    }
}

/// Rounds that are run and not counted: caches, branch predictors and clock settle.
pub(super) const WARM_UP: usize = 5;

/// The engine alone, on operations of exactly the shape that the path makes.
pub(super) struct Bare {
    next_iv: Cell<u64>,
}

impl Bare {
    pub(super) fn new() -> Self {
        Self { next_iv: Cell::new(1) }
    }

    /// The operation that the sender makes for the packets of the batch, and the bytes that stand in
    /// front of the packet then.
    pub(super) fn shape(sending: &Snapshot, template: &[u8]) -> (CryptoOp, usize) {
        let sa = &sending.outbound[0];
        let mut buffer = vec![0; HEADROOM + template.len() + TAILROOM];
        buffer[HEADROOM..HEADROOM + template.len()].copy_from_slice(template);
        let ip = IpPacket::parse(template).expect("the template is a packet");
        let mut frame = Frame::new(&mut buffer, HEADROOM..HEADROOM + template.len()).expect("it lies in its buffer");
        let (op, _) = prepare_out(sa, &sa.lanes[0], SeqNo(1), &ip, &mut frame).expect("the path takes it");
        (op, HEADROOM - frame.range().start)
    }

    /// Seals and opens every packet; ticks of each. What is sealed lies in `source`, one packet behind the other, unless
    /// that is empty.
    pub(super) fn round(
        &self,
        engine: Engine,
        keys: Keys<'_>,
        packets: &mut [Packet],
        source: &[u8],
        shape: &(CryptoOp, usize),
    ) -> [u64; 2] {
        let first_iv = self.next_iv.get();
        self.next_iv.set(first_iv + packets.len() as u64);
        let (op, before) = shape;
        let size = source.len() / packets.len();
        let mut jobs: Vec<Job<'_>> = packets
            .iter_mut()
            .zip(first_iv..)
            .map(|(packet, iv)| {
                let mut op = *op;
                op.iv[..8].copy_from_slice(&iv.to_be_bytes());
                Job::new(op, packet.around(*before, op.icv.end.max(op.body.end) as usize))
            })
            .collect();
        if size > 0 {
            jobs = jobs
                .into_iter()
                .zip(source.chunks_exact(size))
                .map(|(job, source)| Job::from_source(job.op, source, job.packet))
                .collect();
        }
        let t0 = ticks();
        engine.seal(keys, &mut jobs);
        let t1 = ticks();
        engine.open(keys, &mut jobs);
        let t2 = ticks();
        assert!(jobs.iter_mut().all(|job| job.take_ok().is_some()), "the bare engine refused its own packet");
        [t1 - t0, t2 - t1]
    }
}

/// A UDP packet of `size` bytes in all, with checksums.
pub(super) fn udp_packet(src: std::net::IpAddr, dst: std::net::IpAddr, size: usize) -> Vec<u8> {
    crate::packet::udp(src, dst, 4000, 4001, size, IpProto::UDP)
}
