//! A worker: everything one core owns, and the two directions of the path.

use std::sync::Arc;

use crypto::{DerivedKeys, Engine};
use ipsec::{Drop, Lost, Reassembler, SaCommon};
use wire::{FlowKey, IpPacket};

use crate::cache::FlowCache;
use crate::counters::bump;
use crate::hold::Hold;
use crate::path_mtu::PathMtus;
use crate::{Acquire, Audit, Batch, CoreCounters, Snapshot};

/// What a worker is made of.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Number of the core among the workers; picks the lane of an SA.
    pub core: usize,
    /// Engine; keys are of the same, or of AWS-LC, which every engine can use.
    pub engine: Engine,
    /// Packets a batch may hold.
    pub batch: usize,
    /// Largest packet in bytes.
    pub packet_bytes: usize,
    /// Entries of each flow cache, a power of two (64 bytes each).
    pub flow_cache: usize,
    /// Derived keys to keep (about 1 KiB each); at least twice `batch`.
    pub derived_keys: usize,
    /// Packets that may wait for outer fragments (64 KiB each).
    pub reassembly: usize,
    /// Audit records that may wait for the control side.
    pub audit_ring: usize,
    /// Packets that may wait for an SA to be negotiated (`packet_bytes` each).
    pub held: usize,
    /// CPU to run on; `None` leaves that to the operating system.
    pub pin: Option<usize>,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            core: 0,
            engine: Engine::best(),
            batch: 256,
            packet_bytes: 2048,
            flow_cache: 1024,
            derived_keys: 1024,
            reassembly: 16,
            audit_ring: 1024,
            held: 64,
            pin: None,
        }
    }
}

/// What a worker has to tell the control side, in bounded rings.
pub struct Reports {
    /// Events that somebody may want to see.
    pub audits: rtrb::Consumer<Audit>,
    /// SAs that packets wait for.
    pub acquires: rtrb::Consumer<Acquire>,
}

/// Everything one core owns.
pub struct Worker {
    pub(crate) config: WorkerConfig,
    pub(crate) counters: Arc<CoreCounters>,
    pub(crate) derived: DerivedKeys,
    pub(crate) outbound_flows: FlowCache,
    pub(crate) inbound_flows: FlowCache,
    pub(crate) reassembler: Reassembler,
    pub(crate) audit: rtrb::Producer<Audit>,
    pub(crate) hold: Hold,
    pub(crate) now_ms: u64,
    /// When to look for what has aged.
    pub(crate) next_age_ms: u64,
    pub(crate) path_mtus: PathMtus,
    /// Fragments lost as far as they were counted.
    pub(crate) fragments_lost: Lost,
    /// Per packet of the batch in hand: whether it goes on.
    pub(crate) keep: Vec<bool>,
    /// Whether all of them do.
    pub(crate) all_kept: bool,
    /// Packets of the batch in hand that are larger than their SA takes, with its slot.
    pub(crate) oversized: Vec<(usize, u32)>,
    /// Outbound SA of each fragment that was appended to the batch in hand.
    pub(crate) fragment_slots: Vec<u32>,
    /// Which group each packet of the batch in hand belongs to.
    pub(crate) groups: Vec<u32>,
    /// A packet that is being cut to fragments, and the fragment in hand.
    pub(crate) scratch: Vec<u8>,
    pub(crate) fragment: Box<[u8]>,
}

impl Worker {
    /// A worker, and where its reports come out.
    pub fn new(config: WorkerConfig) -> (Self, Reports) {
        let (audit, audits) = rtrb::RingBuffer::new(config.audit_ring);
        let (acquire, acquires) = rtrb::RingBuffer::new(config.held.max(1));
        let worker = Self {
            counters: Arc::new(CoreCounters::default()),
            derived: DerivedKeys::new(config.derived_keys.max(2 * config.batch)),
            outbound_flows: FlowCache::new(config.flow_cache),
            inbound_flows: FlowCache::new(config.flow_cache),
            reassembler: Reassembler::new(config.reassembly, 65_535, 15_000),
            audit,
            hold: Hold::new(config.held, config.packet_bytes, acquire),
            now_ms: 0,
            next_age_ms: 0,
            path_mtus: PathMtus::new(),
            fragments_lost: Lost::default(),
            keep: Vec::with_capacity(2 * config.batch),
            all_kept: true,
            oversized: Vec::with_capacity(config.batch),
            fragment_slots: Vec::with_capacity(2 * config.batch),
            groups: Vec::with_capacity(config.batch),
            scratch: Vec::with_capacity(config.packet_bytes),
            fragment: vec![0; config.packet_bytes].into_boxed_slice(),
            config,
        };
        (worker, Reports { audits, acquires })
    }

    /// The counters of this core.
    pub fn counters(&self) -> Arc<CoreCounters> {
        Arc::clone(&self.counters)
    }

    /// Sets the worker's clock, in milliseconds of any monotonic clock, once per batch.
    pub fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Moves held packets that `tables` have an SA for by now into `batch`, for [`Worker::outbound`], and
    /// gives up those that waited too long. To be called between batches.
    #[inline]
    pub fn release(&mut self, tables: &Snapshot, batch: &mut Batch) {
        if self.hold.is_empty() {
            return;
        }
        let given_up = self.hold.age(self.now_ms);
        bump(&self.counters.drops[Drop::NotNegotiated as usize], given_up);
        if self.hold.stirs(tables.generation) {
            let core = self.config.core;
            self.hold.release(self.now_ms, tables.generation, |key| tables.stays(key, core), batch);
        }
    }

    /// Holds packet `bytes`, which met a trap, and asks for an SA.
    #[cold]
    pub(crate) fn trapped(&mut self, tables: &Snapshot, trap: u32, ip: &IpPacket, bytes: &[u8]) -> Result<(), Drop> {
        let held = self.hold.keep(self.now_ms, tables.generation, trap, &bytes[..ip.total_len]);
        self.hold.report(self.now_ms, Acquire { trap, core: None, key: FlowKey::of(ip, bytes) });
        if held { Ok(()) } else { Err(Drop::NotNegotiated) }
    }

    /// Holds packet `bytes` until the peer shows that it has the SA; false when there is no room: it goes out then,
    /// and arrives if the peer was quick.
    #[cold]
    pub(crate) fn wait_for_sign(&mut self, tables: &Snapshot, trap: u32, ip: &IpPacket, bytes: &[u8]) -> bool {
        self.hold.keep_for_sign(self.now_ms, tables.generation, trap, &bytes[..ip.total_len])
    }

    /// Asks for an SA of this core's own; another one takes its packets meanwhile.
    #[cold]
    pub(crate) fn wants_own(&mut self, trap: u32, ip: &IpPacket, bytes: &[u8]) {
        let core = Some(self.config.core as u32);
        self.hold.report(self.now_ms, Acquire { trap, core, key: FlowKey::of(ip, bytes) });
    }

    /// Makes known how often the tables were asked.
    pub(crate) fn tell_look_ups(&self) {
        self.counters.flows[0].set(self.outbound_flows.asked());
        self.counters.flows[1].set(self.inbound_flows.asked());
    }

    /// Starts a batch of `packets` packets, of which none is refused yet.
    pub(crate) fn keep_all(&mut self, packets: usize) {
        self.keep.clear();
        self.keep.resize(packets, true);
        self.all_kept = true;
    }

    /// Takes the packets that do not go on out of `batch`, the one in hand.
    #[inline]
    pub(crate) fn drop_refused(&self, batch: &mut Batch) {
        if !self.all_kept {
            batch.retain(|i, _| self.keep[i]);
        }
    }

    /// Packet `i` of the batch in hand does not go on.
    #[cold]
    pub(crate) fn refuse(&mut self, i: usize) {
        self.keep[i] = false;
        self.all_kept = false;
    }

    /// Counts a packet that goes no further, in total and for its SA.
    pub(crate) fn count_drop(&mut self, why: Drop, sa: Option<&SaCommon>) {
        bump(&self.counters.drops[why as usize], 1);
        if let Some(sa) = sa {
            sa.counters.drop(why);
        }
    }

    /// Tells the control side of an auditable event; when it does not keep up the record is lost
    /// and counted, and the packet path goes on.
    pub(crate) fn report(
        &mut self,
        drop: Drop,
        outbound: bool,
        spi: u32,
        session: u16,
        seq: u32,
        ip: Option<&IpPacket>,
    ) {
        if !drop.is_auditable() {
            return;
        }
        let (src, dst) = (ip.map(|ip| ip.src), ip.map(|ip| ip.dst));
        let record = Audit { at_ms: self.now_ms, drop, outbound, spi, session, seq, src, dst };
        if self.audit.push(record).is_err() {
            bump(&self.counters.audit_lost, 1);
        }
    }
}
