//! TSC ticks per packet of the whole in-memory path.
//!
//! One batch makes the round trip in place: clear, protected by the sender's worker, opened by the
//! receiver's. The same buffers then make the round trip through the engine alone, with
//! operations of the same shape. Both are timed in every round, in random order, so that drift of
//! the machine meets both alike; the ratio is taken per round.
//!
//! Packets of several flows or SAs are interleaved: each packet belongs to another one than the
//! packet before. Ports and addresses are rewritten outside the timed part. With a working set
//! larger than one batch a protected batch waits until all other memory of the set was touched
//! before it is opened, so that both directions start from cold packets.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use crypto::{CryptoOp, DerivedKeys, Engine, Job, Keys};
use dataplane::{Batch, HEADROOM, Packet, Snapshot, TAILROOM, Worker, WorkerConfig};
use ipsec::{Frame, Protocol, prepare_out};
use ports::clock::{ticks, ticks_per_second};
use ports::prefer_huge_pages;
use wire::{IpPacket, IpProto, SeqNo};

use super::alone::{self, UncontendedRounds};
use crate::many::{ManyError, stride};
use crate::pair::{PairError, Shape, Subject};
use stats::{Estimate, Rng, median_with_interval};

/// Grid sizes first, then twelve that are not multiples of 16: engines differ in their tails.
pub(super) const SIZES: [usize; 15] = [64, 512, 1400, 65, 97, 131, 201, 257, 349, 449, 577, 731, 915, 1111, 1337];

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Options {
    /// Protocols, all when empty.
    pub protocols: Vec<Protocol>,
    /// Suites, the default list when empty.
    pub suites: Vec<String>,
    /// Inner packet sizes in bytes, [`SIZES`] when empty.
    pub sizes: Vec<usize>,
    /// Rounds per case; should be at least 30 for a meaningful interval.
    pub rounds: usize,
    /// Packets per batch.
    pub batch: usize,
    /// Sizes of batches to go through one after the other, only `batch` when empty.
    pub batches: Vec<usize>,
    /// Memory that the packets take in all, in MB, of which each round works on one batch; 0 is a
    /// batch that stays in the L2 cache. Only that when empty.
    pub working_sets: Vec<usize>,
    /// Numbers of interleaved inner flows, only one flow when empty.
    pub flows: Vec<u32>,
    /// Numbers of SAs that packets go through in turn, only one SA when empty. Several SAs: tunnel
    /// mode over IPv4 only.
    pub sas: Vec<u32>,
    /// Seed of order and bootstrap.
    pub seed: u64,
    /// IPv6 inside and outside.
    pub v6: bool,
    /// Engine of the path and of the comparison.
    pub engine: Engine,
    /// Limit of the time that a case waits for an idle SMT sibling; zero accepts every round.
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
            flows: vec![],
            sas: vec![],
            seed: 1,
            v6: false,
            engine: Engine::best(),
            patience: alone::PATIENCE,
        }
    }
}

/// One row: a configuration and a size.
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
    /// Interleaved inner flows.
    pub flows: u32,
    /// SAs that packets go through in turn.
    pub sas: u32,
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
pub struct PathResult {
    /// Case.
    #[serde(flatten)]
    pub case: Case,
    /// Protecting.
    pub outbound: Direction,
    /// Opening.
    pub inbound: Direction,
    /// Number of uncontended rounds.
    pub free_rounds: usize,
    /// True if only these are counted: there were enough.
    pub alone: bool,
}

/// Called before each case with (done, total).
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// Measures every case.
///
/// # Errors
/// An unknown suite, a combination that cannot be built, or more SAs than fit into memory.
pub fn run(options: &Options, progress: Progress<'_>) -> Result<(f64, Vec<PathResult>), ManyError> {
    let hz = ticks_per_second();
    let loads = loads(options);
    let mut subjects = subjects(options);
    if loads.iter().any(|load| load.sas > 1) {
        subjects.retain(|subject| subject.shape == Shape::Tunnel);
    }
    let sizes = if options.sizes.is_empty() { SIZES.to_vec() } else { options.sizes.clone() };
    let total = subjects.len() * sizes.len() * loads.len();
    let (rng, alone) = (Rng::new(options.seed), UncontendedRounds::new(options.patience));
    let mut measuring = Measuring { hz, rng, alone };
    let mut outcomes = Vec::with_capacity(total);
    for subject in &subjects {
        for load in &loads {
            let options = Options { batch: load.batch, ..options.clone() };
            let mut ends = Ends::with_load(subject, load)?;
            for &size in &sizes {
                progress(outcomes.len(), total);
                outcomes.push(ends.measure(subject, size, &options, &mut measuring));
            }
        }
    }
    Ok((hz, outcomes))
}

/// State that the measurements of a run share.
struct Measuring {
    /// Ticks per second.
    hz: f64,
    rng: Rng,
    alone: UncontendedRounds,
}

/// Properties of a case's packets, besides their size.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Packets per batch.
    batch: usize,
    /// Memory of all packets in MB, 0 for one batch.
    set_mb: usize,
    flows: u32,
    sas: u32,
}

/// Every combination of `options`.
fn loads(options: &Options) -> Vec<Load> {
    let or = |list: &[usize], one: usize| if list.is_empty() { vec![one] } else { list.to_vec() };
    let or_one = |list: &[u32]| if list.is_empty() { vec![1] } else { list.to_vec() };
    let (batches, sets) = (or(&options.batches, options.batch), or(&options.working_sets, 0));
    let (flows, sas) = (or_one(&options.flows), or_one(&options.sas));
    let mut loads = Vec::new();
    for &batch in &batches {
        for &set_mb in &sets {
            for &sas in &sas {
                loads.extend(flows.iter().map(|&flows| Load { batch, set_mb, flows, sas }));
            }
        }
    }
    loads
}

/// The configurations of `options`.
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
    // A suite outside the default list is measured in tunnel mode with every selected protocol.
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
    load: Load,
    /// Clear batches; the first is the next one.
    clear: VecDeque<Batch>,
    /// Batches that the path has protected and not opened yet. Empty between rounds unless there is
    /// a working set.
    protected: VecDeque<Batch>,
    /// Batches that the bare engine has sealed and not opened yet, with the number of their first
    /// IV.
    sealed: VecDeque<(Batch, u64)>,
    /// Packets that were stamped so far.
    stamped: u64,
    replies: Batch,
    bare: Bare,
    derived: DerivedKeys,
}

impl Ends {
    pub(super) fn new(subject: &Subject, options: &Options) -> Result<Self, PairError> {
        let load = Load { batch: options.batch, set_mb: 0, flows: 1, sas: 1 };
        Ok(Self::with_tables(subject.tables()?, subject.engine, &load))
    }

    fn with_load(subject: &Subject, load: &Load) -> Result<Self, ManyError> {
        let tables = if load.sas == 1 { subject.tables()? } else { many_tables(subject, load.sas)? };
        Ok(Self::with_tables(tables, subject.engine, load))
    }

    fn with_tables([sending, receiving]: [Snapshot; 2], engine: Engine, load: &Load) -> Self {
        let config = WorkerConfig { batch: load.batch, engine, ..WorkerConfig::default() };
        let packet_bytes = config.packet_bytes;
        let bytes = load.batch * (HEADROOM + packet_bytes + TAILROOM);
        let batches = (load.set_mb * 1_000_000).div_ceil(bytes).max(1);
        Self {
            sender: Worker::new(config.clone()).0,
            receiver: Worker::new(config).0,
            sending,
            receiving,
            load: *load,
            clear: (0..batches).map(|_| packet_memory(load.batch, packet_bytes)).collect(),
            protected: VecDeque::new(),
            sealed: VecDeque::new(),
            stamped: 0,
            replies: Batch::new(4, packet_bytes),
            bare: Bare::new(),
            derived: DerivedKeys::new(2),
        }
    }

    /// Fills the batches with clear packets of `size` bytes; returns one of them.
    pub(super) fn fill(&mut self, subject: &Subject, size: usize, packets: usize) -> Vec<u8> {
        let waiting = self.protected.drain(..).chain(self.sealed.drain(..).map(|(batch, _)| batch));
        self.clear.extend(waiting);
        let [src, dst] = subject.packet_addresses();
        let template = udp_packet(src, dst, size);
        for batch in &mut self.clear {
            batch.clear();
            for _ in 0..packets {
                batch.push_with(|packet| packet.set(&template));
            }
        }
        for _ in 0..self.clear.len() {
            self.clear.rotate_left(1);
            self.stamp(subject, size);
        }
        template
    }

    /// Gives the packets of the last clear batch, which have `size` bytes, their flows and SAs.
    fn stamp(&mut self, subject: &Subject, size: usize) {
        let Load { flows, sas, .. } = self.load;
        let (1.., Some(batch)) = (flows.max(sas) - 1, self.clear.back_mut()) else { return };
        let [src, one] = subject.packet_addresses();
        let stride = u64::from(stride(sas));
        for packet in batch.packets_mut() {
            let dst = if sas > 1 { Subject::address_of((self.stamped * stride % u64::from(sas)) as u32) } else { one };
            let port = FIRST_PORT + (self.stamped % u64::from(flows)) as u16;
            assert!(packet.set(&crate::packet::udp(src, dst, port, 4001, size, IpProto::UDP)));
            self.stamped += 1;
        }
    }

    /// Protects a third of the batches by the path and a third by the engine, so that the data to
    /// open is no longer in the cache.
    fn spread(&mut self, subject: &Subject, shape: &(CryptoOp, usize)) {
        let third = self.clear.len() / 3;
        for mut batch in self.clear.drain(..third) {
            self.sender.outbound(&self.sending, &mut batch, &mut self.replies);
            self.protected.push_back(batch);
        }
        let keys = Keys { table: &self.sending.keys, derived: &self.derived };
        for mut batch in self.clear.drain(..third) {
            let (first, _) = self.bare.seal(subject.engine, keys, batch.packets_mut(), &[], shape);
            self.sealed.push_back((batch, first));
        }
    }

    fn measure(
        &mut self,
        subject: &Subject,
        size: usize,
        options: &Options,
        Measuring { hz, rng, alone }: &mut Measuring,
    ) -> PathResult {
        alone.case();
        let batch = options.batch;
        let template = self.fill(subject, size, batch);
        let n = batch as f64;
        let shape = Bare::shape(&self.sending, &template);
        self.spread(subject, &shape);
        let mut samples: [Vec<f64>; 4] = Default::default();
        for round in 0..options.rounds + WARM_UP {
            let path_first = rng.next_u64() & 1 == 0;
            alone.begin();
            let (mut path, mut bare) = ([0; 2], [0; 2]);
            for is_path in [path_first, !path_first] {
                if is_path {
                    path = self.path_round(0.0);
                    assert_eq!(self.packets(), batch, "{subject:?} at {size} bytes lost packets");
                } else {
                    bare = self.bare_round(subject, &shape, &template);
                }
                self.stamp(subject, size);
            }
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
                pps: *hz / path.value,
            }
        };
        PathResult {
            case: Case {
                protocol: subject.protocol.name(),
                mode: subject.shape,
                suite: subject.suite.clone(),
                size,
                batch,
                working_set_mb: self.load.set_mb,
                flows: self.load.flows,
                sas: self.load.sas,
            },
            outbound: direction(&samples[0], &samples[1], rng),
            inbound: direction(&samples[2], &samples[3], rng),
            free_rounds: alone.count(),
            alone: alone.enough(),
        }
    }

    /// One batch sealed and one opened with the sender's key alone; ticks of each.
    fn bare_round(&mut self, subject: &Subject, shape: &(CryptoOp, usize), template: &[u8]) -> [u64; 2] {
        let keys = Keys { table: &self.sending.keys, derived: &self.derived };
        let Some(mut batch) = self.clear.pop_front() else { return [0; 2] };
        let (first, seal) = self.bare.seal(subject.engine, keys, batch.packets_mut(), &[], shape);
        self.sealed.push_back((batch, first));
        let Some((mut batch, first)) = self.sealed.pop_front() else { return [0; 2] };
        let open = Bare::open(subject.engine, keys, batch.packets_mut(), first, shape);
        if subject.protocol == Protocol::Ah {
            // AH's ICV overlaps the position of the inner IP header.
            for packet in batch.packets_mut() {
                packet.bytes_mut()[..64.min(template.len())].copy_from_slice(&template[..64.min(template.len())]);
            }
        }
        self.clear.push_back(batch);
        [seal, open]
    }

    /// One round trip of the batch; ticks of each direction, longer by the share `slow_down` of
    /// them.
    pub(super) fn path_round(&mut self, slow_down: f64) -> [u64; 2] {
        let Some(mut batch) = self.clear.pop_front() else { return [0; 2] };
        let t0 = ticks();
        self.sender.outbound(&self.sending, &mut batch, &mut self.replies);
        let out = stretched(t0, slow_down) - t0;
        self.protected.push_back(batch);
        let Some(mut batch) = self.protected.pop_front() else { return [0; 2] };
        let t1 = ticks();
        self.receiver.inbound(&self.receiving, &mut batch);
        let inbound = stretched(t1, slow_down) - t1;
        self.clear.push_back(batch);
        [out, inbound]
    }

    /// Packets in the batch that made the last round trip.
    pub(super) fn packets(&self) -> usize {
        self.clear.back().map_or(0, Batch::len)
    }
}

/// A batch in memory as that of the gateway's workers.
fn packet_memory(packets: usize, packet_bytes: usize) -> Batch {
    let batch = Batch::new(packets, packet_bytes);
    prefer_huge_pages(&batch);
    batch
}

/// Tables of a sender and a receiver with `sas` SAs.
fn many_tables(subject: &Subject, sas: u32) -> Result<[Snapshot; 2], ManyError> {
    let mut subject = subject.clone();
    if subject.protocol == Protocol::Psp {
        subject.window = 0; // PSP keeps replay windows for fewer SPIs only
    }
    crate::many::check(sas)?;
    Ok([subject.many_outbound(sas)?, subject.many_inbound(sas)?])
}

/// Source port of the first flow; the others follow.
const FIRST_PORT: u16 = 4000;

/// The time now, after waiting for the share `slow_down` of what passed since `from`: a slow-down
/// of known size.
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

    /// The operation that the sender makes for the packets of the batch, and the number of bytes
    /// that precede the packet.
    pub(super) fn shape(sending: &Snapshot, template: &[u8]) -> (CryptoOp, usize) {
        let sa = &sending.outbound[0];
        let mut buffer = vec![0; HEADROOM + template.len() + TAILROOM];
        buffer[HEADROOM..HEADROOM + template.len()].copy_from_slice(template);
        let ip = IpPacket::parse(template).expect("the template is a packet");
        let mut frame = Frame::new(&mut buffer, HEADROOM..HEADROOM + template.len()).expect("it lies in its buffer");
        let (op, _) = prepare_out(sa, &sa.lanes[0], SeqNo(1), &ip, &mut frame).expect("the path takes it");
        (op, HEADROOM - frame.range().start)
    }

    /// Seals and opens every packet; ticks of each. Packets to seal are contiguous in `source`,
    /// unless it is empty.
    pub(super) fn round(
        &self,
        engine: Engine,
        keys: Keys<'_>,
        packets: &mut [Packet],
        source: &[u8],
        shape: &(CryptoOp, usize),
    ) -> [u64; 2] {
        let (first, seal) = self.seal(engine, keys, packets, source, shape);
        [seal, Self::open(engine, keys, packets, first, shape)]
    }

    /// Seals every packet. Returns the number of the first IV, and ticks.
    fn seal(
        &self,
        engine: Engine,
        keys: Keys<'_>,
        packets: &mut [Packet],
        source: &[u8],
        shape: &(CryptoOp, usize),
    ) -> (u64, u64) {
        let first_iv = self.next_iv.get();
        self.next_iv.set(first_iv + packets.len() as u64);
        let mut jobs = jobs(packets, source, first_iv, shape);
        let start = ticks();
        engine.seal(keys, &mut jobs);
        (first_iv, ticks() - start)
    }

    /// Opens packets that were sealed with IVs from `first_iv` on; ticks.
    fn open(engine: Engine, keys: Keys<'_>, packets: &mut [Packet], first_iv: u64, shape: &(CryptoOp, usize)) -> u64 {
        let mut jobs = jobs(packets, &[], first_iv, shape);
        let start = ticks();
        engine.open(keys, &mut jobs);
        let took = ticks() - start;
        assert!(jobs.iter_mut().all(|job| job.take_ok().is_some()), "the bare engine failed to open its own packet");
        took
    }
}

/// One operation of the given shape for each packet.
fn jobs<'p>(
    packets: &'p mut [Packet],
    source: &'p [u8],
    first_iv: u64,
    (op, before): &(CryptoOp, usize),
) -> Vec<Job<'p>> {
    let size = source.len() / packets.len().max(1);
    let numbered = packets.iter_mut().zip(first_iv..).enumerate();
    let job = |(i, (packet, iv)): (usize, (&'p mut Packet, u64))| {
        let mut op = *op;
        op.iv[..8].copy_from_slice(&iv.to_be_bytes());
        let packet = packet.around(*before, op.icv.end.max(op.body.end) as usize);
        Job::from_source(op, &source[i * size..][..size], packet)
    };
    numbered.map(job).collect()
}

/// A UDP packet of `size` bytes in all, with checksums.
pub(super) fn udp_packet(src: std::net::IpAddr, dst: std::net::IpAddr, size: usize) -> Vec<u8> {
    crate::packet::udp(src, dst, FIRST_PORT, 4001, size, IpProto::UDP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_sas_and_a_cold_set_lose_no_packet() {
        let options = Options {
            protocols: vec![Protocol::Esp],
            suites: vec!["aes128gcm16".into()],
            sizes: vec![100],
            rounds: 3,
            batch: 32,
            working_sets: vec![0, 1],
            flows: vec![1, 48],
            sas: vec![1, 40],
            engine: Engine::AwsLc,
            patience: Duration::ZERO,
            ..Options::default()
        };
        // `measure` asserts that every packet of every round came out.
        let (_, outcomes) = run(&options, &mut |_, _| ()).unwrap();
        let loads: Vec<_> = outcomes.iter().map(|o| (o.case.working_set_mb, o.case.sas, o.case.flows)).collect();
        let expected = [(0, 1, 1), (0, 1, 48), (0, 40, 1), (0, 40, 48), (1, 1, 1), (1, 1, 48), (1, 40, 1), (1, 40, 48)];
        assert_eq!(loads, expected);
        assert!(outcomes.iter().all(|o| o.case.mode == Shape::Tunnel), "several SAs need tunnel mode");
    }

    #[test]
    fn packets_are_stamped_in_turn() {
        let subject = Subject::new(Protocol::Esp, Shape::Tunnel, "aes128gcm16", Engine::AwsLc);
        let mut ends = Ends::with_load(&subject, &Load { batch: 8, set_mb: 0, flows: 3, sas: 5 }).unwrap();
        ends.fill(&subject, 64, 8);
        let stamps = |ends: &Ends| -> Vec<(u16, u8)> {
            let bytes = ends.clear[0].packets().iter().map(Packet::bytes);
            bytes.map(|packet| (u16::from_be_bytes([packet[20], packet[21]]) - FIRST_PORT, packet[19])).collect()
        };
        let first = stamps(&ends);
        assert_eq!(first.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0, 1]);
        let mut sas: Vec<u8> = first.iter().take(5).map(|(_, sa)| *sa).collect();
        assert!(first.windows(2).all(|pair| pair[0].1 != pair[1].1), "no two packets in a row are of one SA");
        sas.sort_unstable();
        sas.dedup();
        assert_eq!(sas.len(), 5);
        ends.stamp(&subject, 64);
        assert_eq!(stamps(&ends)[0].0, 2, "the next batch continues where the last one ended");
    }
}
