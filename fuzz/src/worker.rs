//! A whole worker with every engine and every scheduler, and the packets that it may send and
//! deliver.
//!
//! The first byte chooses engine and scheduler, the second the SAs; the rest are packets, each
//! behind its length. They come first from the outer side, then from the inner side; what leaves
//! then arrives from the outer side again.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crypto::Engine;
use crypto::accelerator::{Properties, Simulated};
use dataplane::{
    After, AsyncConfig, Asynchronous, Batch, Pipeline, PipelineConfig, Sink, Snapshot, Staged, Worker, WorkerConfig,
};
use ipsec::{Action, Policy, Spd};
use wire::registry::{CodePoints, PORT_IPSEC_NAT_T, PORT_PSP};
use wire::{AddrRange, IpPacket, IpProto, Selector};

use crate::pair::{SPI, addresses};
use crate::{Tables, open_with};

const BATCH: usize = 16;
const PACKET_BYTES: usize = 2048;

/// Tables in which every policy protects; what no policy covers is dropped. Policies are for the
/// hosts of the SAs: those of transport mode must be, as in configurations.
fn snapshot(choice: u8, engine: Engine) -> Snapshot {
    let Tables { keys, outbound, inbound } = Tables::new(choice, engine);
    let policies = (0..outbound.len()).map(|slot| Policy {
        name: "fuzz".into(),
        selectors: Tables::selectors(slot).into_iter().map(between_hosts).collect(),
        action: Action::Protect { outbound: slot as u32, inbound: slot as u32 },
    });
    let spd = Spd::new(policies.collect());
    let outbound = outbound.into_iter().map(Arc::new).collect();
    Snapshot::new(inbound.into_iter().map(Arc::new).collect(), outbound, spd, keys, CodePoints::default())
        .expect("tables")
}

fn between_hosts(selector: Selector) -> Selector {
    let (src, dst) = addresses(selector.src.is_v6());
    Selector { src: AddrRange { start: src, end: src }, dst: AddrRange { start: dst, end: dst }, ..selector }
}

fn packets(mut input: &[u8]) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while let Some((len, rest)) = input.split_first() {
        let (packet, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        input = rest;
        packets.push(packet.to_vec());
    }
    packets.truncate(BATCH);
    packets
}

fn fill(batch: &mut Batch, packets: &[Vec<u8>]) {
    for packet in packets {
        batch.push_with(|slot| slot.set(packet));
    }
}

fn bytes(batch: &Batch) -> Vec<Vec<u8>> {
    batch.packets().iter().map(|packet| packet.bytes().to_vec()).collect()
}

/// The form of a packet that an SA of [`Tables`] protects: protocol, addresses and SPI. A datagram
/// to the ports of protected packets is not necessarily a protected one.
fn is_protected(packet: &[u8]) -> bool {
    let Ok(ip) = IpPacket::parse(packet) else { return false };
    let between = [false, true].map(addresses).contains(&(ip.src, ip.dst));
    if !between || ip.fragment.is_some() {
        // A fragment may be one of a protected packet.
        return between;
    }
    let is_spi = |at: usize| packet.get(at..at + 4).is_some_and(|bytes| bytes == SPI.to_be_bytes());
    let port = packet.get(ip.upper_at + 2..ip.upper_at + 4).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    match ip.upper {
        IpProto::ESP => is_spi(ip.upper_at),
        IpProto::AH | IpProto::EESP_DEFAULT => is_spi(ip.upper_at + 4),
        IpProto::UDP if port == Some(PORT_IPSEC_NAT_T) => is_spi(ip.upper_at + 8) || is_spi(ip.upper_at + 12),
        IpProto::UDP if port == Some(PORT_PSP) => ip.upper_at + 24 <= packet.len(),
        _ => false,
    }
}

/// How many packets open with SAs that are fresh: they were protected with the keys of [`Tables`],
/// and are no replays.
fn authentic(choice: u8, packets: &[Vec<u8>]) -> usize {
    let tables = Tables::new(choice, Engine::AwsLc);
    let opens =
        |packet: &&Vec<u8>| tables.inbound.iter().any(|sa| open_with(Engine::AwsLc, &tables.keys, sa, packet).is_ok());
    packets.iter().filter(opens).count()
}

fn is_fragment(packet: &[u8]) -> bool {
    IpPacket::parse(packet).is_ok_and(|ip| ip.fragment.is_some())
}

/// Whether a policy covers a packet, other than by ports.
fn is_covered(packet: &[u8]) -> bool {
    let Ok(ip) = IpPacket::parse(packet) else { return false };
    [IpProto::UDP, IpProto::ICMP, IpProto::TCP, IpProto::SCTP].contains(&ip.upper)
}

/// Output of one run.
#[derive(Default)]
struct Seen {
    sent: Vec<Vec<u8>>,
    delivered: Vec<Vec<u8>>,
}

impl Sink for Seen {
    fn outer(&mut self, batch: &mut Batch) -> io::Result<After> {
        self.sent.extend(bytes(batch));
        batch.clear();
        Ok(After::Done)
    }

    fn inner(&mut self, batch: &mut Batch) -> io::Result<()> {
        self.delivered.extend(bytes(batch));
        batch.clear();
        Ok(())
    }
}

/// Scheduler of a worker.
enum Scheduler {
    RunToCompletion,
    Pipeline(Pipeline),
    Async(Box<Asynchronous>),
}

impl Scheduler {
    /// A device whose time passes with every look at its clock.
    fn asynchronous(engine: Engine) -> Self {
        let properties = Properties { overhead_ns: 1000, ns_per_byte: 1.0, batch: 2, capacity: 3, fault: None };
        let clock = AtomicU64::new(0);
        let device = Simulated::new(engine, properties, move || clock.fetch_add(200, Ordering::Relaxed));
        let config = AsyncConfig {
            batches: 2,
            batch: BATCH,
            packet_bytes: PACKET_BYTES,
            owner_computes: false,
            ..AsyncConfig::default()
        };
        Self::Async(Box::new(Asynchronous::new(config, Some(Box::new(device)), |_| ())))
    }
}

/// A worker with its scheduler.
struct Path {
    worker: Worker,
    scheduler: Scheduler,
    tables: Arc<Snapshot>,
    now_ms: u64,
}

impl Path {
    fn outer(&mut self, input: &[Vec<u8>]) -> Seen {
        let (mut seen, mut batch) = (Seen::default(), Batch::new(BATCH, PACKET_BYTES));
        fill(&mut batch, input);
        self.tick();
        match &mut self.scheduler {
            Scheduler::RunToCompletion => {
                self.worker.inbound(&self.tables, &mut batch);
                seen.delivered = bytes(&batch);
            }
            Scheduler::Pipeline(pipeline) => {
                outer(&mut &*pipeline, &mut self.worker, &self.tables, &mut batch, &mut seen);
            }
            Scheduler::Async(scheduler) => {
                let mut whole = Batch::with_reserve(BATCH, 2 * BATCH, PACKET_BYTES);
                fill(&mut whole, input);
                outer(&mut **scheduler, &mut self.worker, &self.tables, &mut whole, &mut seen);
            }
        }
        seen
    }

    fn inner(&mut self, input: &[Vec<u8>]) -> Seen {
        let (mut seen, mut replies) = (Seen::default(), Batch::new(BATCH, PACKET_BYTES));
        self.tick();
        match &mut self.scheduler {
            Scheduler::RunToCompletion => {
                let mut batch = Batch::with_reserve(BATCH, 2 * BATCH, PACKET_BYTES);
                fill(&mut batch, input);
                self.worker.outbound(&self.tables, &mut batch, &mut replies);
                seen.sent = bytes(&batch);
            }
            Scheduler::Pipeline(pipeline) => {
                inner(&mut &*pipeline, &mut self.worker, &self.tables, input, &mut seen);
            }
            Scheduler::Async(scheduler) => {
                inner(&mut **scheduler, &mut self.worker, &self.tables, input, &mut seen);
            }
        }
        seen
    }

    fn tick(&mut self) {
        self.now_ms += 1;
        self.worker.tick(self.now_ms);
    }
}

fn outer(staged: &mut impl Staged, worker: &mut Worker, tables: &Arc<Snapshot>, batch: &mut Batch, seen: &mut Seen) {
    staged.take_outer(worker, tables, batch);
    assert!(batch.is_empty(), "there is room for one batch");
    settle(staged, worker, seen);
}

fn inner(staged: &mut impl Staged, worker: &mut Worker, tables: &Arc<Snapshot>, input: &[Vec<u8>], seen: &mut Seen) {
    let mut replies = Batch::new(BATCH, PACKET_BYTES);
    let filled: Result<_, Infallible> = staged.take_inner(worker, tables, &mut replies, |batch| {
        batch.clear();
        fill(batch, input);
        Ok(())
    });
    assert!(filled.is_ok_and(|room| room.is_some()), "there is room for one batch");
    settle(staged, worker, seen);
}

fn settle(staged: &mut impl Staged, worker: &mut Worker, seen: &mut Seen) {
    let mut looks = 0;
    while staged.in_use() > 0 {
        while staged.work(worker, None, seen).expect("the sink takes all") {}
        looks += 1;
        assert!(looks < 100_000, "a batch was left in flight");
    }
}

/// Configuration of one input.
#[derive(Clone, Copy)]
struct Oracle {
    choice: u8,
    /// The engine computes ICVs: packets from elsewhere must not open.
    real: bool,
}

impl Oracle {
    /// Nothing leaves but protected packets, no more than policies cover, and each opens with the
    /// keys of the SAs.
    fn check_sent(self, input: &[Vec<u8>], seen: &Seen) {
        assert!(seen.delivered.is_empty(), "a packet of the inner side was delivered to it");
        for packet in &seen.sent {
            assert!(is_protected(packet), "left in the clear: {packet:02x?}");
        }
        let covered = input.iter().filter(|packet| is_covered(packet)).count();
        assert!(seen.sent.len() <= covered, "{} left of {covered} that a policy covers", seen.sent.len());
        if self.real && !seen.sent.iter().any(|packet| is_fragment(packet)) {
            let opened = authentic(self.choice, &seen.sent);
            assert_eq!(opened, seen.sent.len(), "left, and does not open with the keys: {:02x?}", seen.sent);
        }
    }

    /// Only protected packets that match the policies of their SAs may be delivered.
    fn check_delivered(self, input: &[Vec<u8>], seen: &Seen) {
        assert!(seen.sent.is_empty(), "a packet of the outer side was sent there");
        let protected = if self.real && !input.iter().any(|packet| is_fragment(packet)) {
            authentic(self.choice, input)
        } else {
            input.iter().filter(|packet| is_protected(packet)).count()
        };
        assert!(seen.delivered.len() <= protected, "{} delivered of {protected} protected", seen.delivered.len());
        for packet in &seen.delivered {
            assert!(is_covered(packet), "delivered without a policy: {packet:02x?}");
        }
    }
}

/// Runs one input.
///
/// # Panics
/// If a packet is sent or delivered in clear text.
pub fn worker(input: &[u8]) {
    let [how, choice, rest @ ..] = input else { return };
    let engines: Vec<Engine> = Engine::usable().collect();
    let engine = engines[usize::from(how >> 1) % engines.len()];
    let config = WorkerConfig {
        engine,
        batch: BATCH,
        packet_bytes: PACKET_BYTES,
        flow_cache: 4,
        derived_keys: 16,
        reassembly: 2,
        audit_ring: 4,
        ..WorkerConfig::default()
    };
    let shape = PipelineConfig { slots: 2, batch: BATCH, packet_bytes: PACKET_BYTES, ..PipelineConfig::default() };
    let mut path = Path {
        worker: Worker::new(config).0,
        scheduler: match (how & 1, how >> 7) {
            (0, _) => Scheduler::RunToCompletion,
            (_, 0) => Scheduler::Pipeline(Pipeline::new(&shape)),
            _ => Scheduler::asynchronous(engine),
        },
        tables: Arc::new(snapshot(*choice, engine)),
        now_ms: 0,
    };
    let oracle = Oracle { choice: *choice, real: engine != Engine::Null };
    let input = packets(rest);
    oracle.check_delivered(&input, &path.outer(&input));
    // Whatever is cached by now: packets that arrived in the clear should not be delivered.
    let clear: Vec<_> = input.iter().filter(|packet| !is_protected(packet)).cloned().collect();
    assert!(path.outer(&clear).delivered.is_empty(), "a packet was delivered that came in the clear");
    let sent = path.inner(&input);
    oracle.check_sent(&input, &sent);
    for group in sent.sent.chunks(BATCH) {
        oracle.check_delivered(group, &path.outer(group));
    }
}
