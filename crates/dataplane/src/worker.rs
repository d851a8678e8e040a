//! Worker: the state of one core and both directions of the packet path.

use std::sync::Arc;

use crypto::{DerivedKeys, Engine};
use ipsec::{DropReason, Reassembler, ReassemblyDrops, SaCommon};
use wire::{FlowKey, IpPacket};

use crate::cache::{FlowCache, Side};
use crate::counters::bump;
use crate::hold::Hold;
use crate::inbound::Opened;
use crate::outbound::CHUNK;
use crate::path_mtu::PathMtus;
use crate::{Acquire, Audit, Batch, CoreCounters, Snapshot};

/// Configuration of a worker.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Index of the worker; selects the lane of an SA.
    pub core: usize,
    /// Engine. Keys must belong to the same engine or to AWS-LC, whose keys every engine accepts.
    pub engine: Engine,
    /// Packets per batch. Should be a multiple of 16, the chunk size of the path.
    pub batch: usize,
    /// Largest packet in bytes. Should be at least the MTU of the ports; longer packets are
    /// dropped.
    pub packet_bytes: usize,
    /// Entries of each flow cache, a power of two (16 bytes each), for TCP and UDP over IPv4; a
    /// quarter as many (64 bytes each) are for other packets. Should exceed the number of
    /// concurrent flows several times, because every packet without an entry is a search of the
    /// SPD.
    pub flow_cache: usize,
    /// Cached derived keys (about 1 KiB each). Should be at least twice `batch`, because a batch
    /// may need that many at once.
    pub derived_keys: usize,
    /// Reassembly buffers for outer fragments (64 KiB each).
    pub reassembly: usize,
    /// Capacity of the ring of audit records.
    pub audit_ring: usize,
    /// Buffers for packets that wait for the negotiation of an SA (`packet_bytes` each).
    pub held: usize,
    /// CPU to pin the thread to; `None` leaves the choice to the operating system.
    pub pin: Option<usize>,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            core: 0,
            engine: Engine::best(),
            batch: 256,
            packet_bytes: 2048,
            flow_cache: 8192,
            derived_keys: 1024,
            reassembly: 16,
            audit_ring: 1024,
            held: 64,
            pin: None,
        }
    }
}

/// Reports of a worker to the control side, in bounded rings.
pub struct Reports {
    /// Auditable events.
    pub audits: rtrb::Consumer<Audit>,
    /// Requests for SAs.
    pub acquires: rtrb::Consumer<Acquire>,
}

/// SA and number of a packet in an audit record; 0 where they are unknown.
#[derive(Default)]
pub(crate) struct Subject {
    pub(crate) outbound: bool,
    pub(crate) spi: u32,
    pub(crate) session: u16,
    /// Sequence number, low half.
    pub(crate) seq: u32,
}

/// State of one core.
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
    /// Time of the next expiry check.
    pub(crate) next_age_ms: u64,
    pub(crate) path_mtus: PathMtus,
    /// Reassembly drops at the last update of the counters.
    pub(crate) fragments_lost: ReassemblyDrops,
    /// One flag per packet of the current batch: false if it was dropped or held.
    pub(crate) keep: Vec<bool>,
    /// True if all flags of `keep` are true.
    pub(crate) all_kept: bool,
    /// Index and SA slot of packets of the current batch that exceed the MTU of their SA.
    pub(crate) oversized: Vec<(usize, u32)>,
    /// Outbound SA slot of each fragment that was appended to the current batch.
    pub(crate) fragment_slots: Vec<u32>,
    /// Group of each packet of the current batch.
    pub(crate) groups: Vec<u32>,
    /// Results of the engine for the current chunk.
    pub(crate) opened: Opened,
    /// Buffers for the packet that is being fragmented and for its current fragment.
    pub(crate) scratch: Vec<u8>,
    pub(crate) fragment: Box<[u8]>,
}

impl Worker {
    /// Creates a worker and the consumers of its reports.
    pub fn new(config: WorkerConfig) -> (Self, Reports) {
        let (audit, audits) = rtrb::RingBuffer::new(config.audit_ring);
        // At least 1, because SAs are requested even if no packet can be held.
        let (acquire, acquires) = rtrb::RingBuffer::new(config.held.max(1));
        let worker = Self {
            counters: Arc::new(CoreCounters::default()),
            derived: DerivedKeys::new(config.derived_keys.max(2 * config.batch)),
            outbound_flows: FlowCache::new(Side::Outbound, config.flow_cache),
            inbound_flows: FlowCache::new(Side::Inbound, config.flow_cache),
            reassembler: Reassembler::new(config.reassembly, 65_535, 15_000),
            audit,
            hold: Hold::new(config.held, config.packet_bytes, acquire),
            now_ms: 0,
            next_age_ms: 0,
            path_mtus: PathMtus::new(),
            fragments_lost: ReassemblyDrops::default(),
            // A batch of the port, and its reserve for fragments.
            keep: Vec::with_capacity(3 * config.batch),
            all_kept: true,
            oversized: Vec::with_capacity(config.batch),
            fragment_slots: Vec::with_capacity(2 * config.batch),
            groups: Vec::with_capacity(config.batch),
            opened: Opened::with_capacity(CHUNK),
            scratch: Vec::with_capacity(config.packet_bytes),
            fragment: vec![0; config.packet_bytes].into_boxed_slice(),
            config,
        };
        (worker, Reports { audits, acquires })
    }

    /// Returns the counters of this core.
    pub fn counters(&self) -> Arc<CoreCounters> {
        Arc::clone(&self.counters)
    }

    /// Sets the worker's clock, in milliseconds of any monotonic clock, once per batch.
    pub fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Moves held packets that have an SA in `tables` into `batch`, for [`Worker::outbound`], and
    /// drops those that timed out. Should be called between batches.
    #[inline]
    pub fn release(&mut self, tables: &Snapshot, batch: &mut Batch) {
        if self.hold.is_empty() {
            return;
        }
        // First, so that no packet leaves after its timeout.
        let given_up = self.hold.age(self.now_ms);
        bump(&self.counters.drops[DropReason::NotNegotiated as usize], given_up);
        if self.hold.needs_release(tables.generation) {
            let core = self.config.core;
            self.hold.release(self.now_ms, tables.generation, |key| tables.hold_reason(key, core), batch);
        }
    }

    /// Holds packet `bytes`, which matched a trap, and requests an SA.
    #[cold]
    pub(crate) fn trapped(
        &mut self,
        tables: &Snapshot,
        trap: u32,
        ip: &IpPacket,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let held = self.hold.keep(self.now_ms, tables.generation, trap, &bytes[..ip.total_len]);
        // Even without a free buffer, because later packets need the SA as well.
        self.hold.report(self.now_ms, Acquire { trap, core: None, key: FlowKey::of(ip, bytes) });
        if held { Ok(()) } else { Err(DropReason::NotNegotiated) }
    }

    /// Holds packet `bytes` until the peer has proved that it has the SA. Returns false without a
    /// free buffer; the packet should then be sent, because the peer may already have the SA.
    #[cold]
    pub(crate) fn hold_for_peer(&mut self, tables: &Snapshot, trap: u32, ip: &IpPacket, bytes: &[u8]) -> bool {
        self.hold.keep_for_peer(self.now_ms, tables.generation, trap, &bytes[..ip.total_len])
    }

    /// Requests an SA for this core; the fallback SA carries its packets until then.
    #[cold]
    pub(crate) fn request_own_sa(&mut self, trap: u32, ip: &IpPacket, bytes: &[u8]) {
        let core = Some(self.config.core as u32);
        self.hold.report(self.now_ms, Acquire { trap, core, key: FlowKey::of(ip, bytes) });
    }

    /// Publishes the look-up statistics of the flow caches.
    pub(crate) fn publish_lookups(&self) {
        self.counters.flows[0].set(self.outbound_flows.asked());
        self.counters.flows[1].set(self.inbound_flows.asked());
    }

    /// Resets the flags for a batch of `packets` packets.
    pub(crate) fn start_batch(&mut self, packets: usize) {
        self.keep.clear();
        self.keep.resize(packets, true);
        self.all_kept = true;
    }

    /// Removes the dropped and held packets from `batch`, the current one.
    #[inline]
    pub(crate) fn retain_kept(&self, batch: &mut Batch) {
        if !self.all_kept {
            batch.retain(|i, _| self.keep[i]);
        }
    }

    /// Marks packet `i` of the current batch for removal.
    #[cold]
    pub(crate) fn refuse(&mut self, i: usize) {
        self.keep[i] = false;
        self.all_kept = false;
    }

    /// Counts a dropped packet, in total and for its SA.
    pub(crate) fn count_drop(&mut self, why: DropReason, sa: Option<&SaCommon>) {
        bump(&self.counters.drops[why as usize], 1);
        if let Some(sa) = sa {
            sa.counters.count_drop(why);
        }
    }

    /// Reports an auditable event to the control side. If the ring is full, the record is lost and
    /// counted: the packet path must never wait for the log.
    pub(crate) fn report(&mut self, drop: DropReason, subject: Subject, ip: Option<&IpPacket>) {
        if !drop.is_auditable() {
            return;
        }
        let Subject { outbound, spi, session, seq } = subject;
        let (src, dst) = (ip.map(|ip| ip.src), ip.map(|ip| ip.dst));
        let record = Audit { at_ms: self.now_ms, drop, outbound, spi, session, seq, src, dst };
        if self.audit.push(record).is_err() {
            bump(&self.counters.audit_lost, 1);
        }
    }
}
