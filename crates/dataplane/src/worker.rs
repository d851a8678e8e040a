//! Worker: the state of one core and both directions of the packet path.

use std::sync::Arc;

use crypto::Engine;

use crate::inbound::{Inbound, InboundPath, Opened};
use crate::outbound::{Outbound, OutboundPath, Planned, Submitted, SubmittedSeal};
use crate::scheduler::Groups;
use crate::shared::Shared;
use crate::{Acquire, Audit, Batch, CoreCounters, Snapshot};

/// Configuration of a worker.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Index of the worker; selects the lane of an SA.
    pub core: usize,
    /// No other worker uses the same tables, so that sequence numbers and counters of SAs need no
    /// locked instructions. With a second worker, two packets could get the same number.
    pub alone: bool,
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
    /// Time in milliseconds after which packets of a standing queue before the worker are dropped
    /// early (AQM); 0: never.
    pub aqm_interval_ms: u64,
    /// CPU to pin the thread to; `None` leaves the choice to the operating system.
    pub pin: Option<usize>,
    /// Crypto threads of the worker, with the scheduler `async`.
    pub crypto_threads: usize,
    /// CPUs to pin them to, in turn; empty leaves the choice to the operating system.
    pub crypto_pins: Vec<usize>,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            core: 0,
            alone: false,
            engine: Engine::best(),
            batch: 256,
            packet_bytes: 2048,
            flow_cache: 8192,
            derived_keys: 1024,
            reassembly: 16,
            audit_ring: 1024,
            held: 64,
            aqm_interval_ms: 0,
            pin: None,
            crypto_threads: 1,
            crypto_pins: Vec::new(),
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

/// State of one core.
pub struct Worker {
    pub(crate) shared: Shared,
    pub(crate) outbound: Outbound,
    pub(crate) inbound: Inbound,
}

impl Worker {
    /// Creates a worker and the consumers of its reports.
    pub fn new(config: WorkerConfig) -> (Self, Reports) {
        let (audit, audits) = rtrb::RingBuffer::new(config.audit_ring);
        // At least 1, because SAs are requested even if no packet can be held.
        let (acquire, acquires) = rtrb::RingBuffer::new(config.held.max(1));
        let (outbound, inbound) = (Outbound::new(&config, acquire), Inbound::new(&config));
        (Self { outbound, inbound, shared: Shared::new(config, audit) }, Reports { audits, acquires })
    }

    /// Returns the counters of this core.
    pub fn counters(&self) -> Arc<CoreCounters> {
        Arc::clone(self.shared.counters())
    }

    /// Sets the worker's clock, in milliseconds of any monotonic clock, once per batch.
    pub fn tick(&mut self, now_ms: u64) {
        self.shared.set_now_ms(now_ms);
    }

    /// Moves held packets that have an SA in `tables` into `batch`, for [`Worker::outbound`], and
    /// drops those that timed out. Should be called between batches.
    #[inline]
    pub fn release(&mut self, tables: &Snapshot, batch: &mut Batch) {
        self.outbound_path(tables).release(batch);
    }

    /// Takes clear packets from the inner side. Afterwards `batch` holds what is to be sent on the
    /// outer side (protected, or bypassed by policy), in order; `replies` got ICMP errors for the
    /// inner side. Everything else was dropped and counted. Fragments of packets that had to be cut
    /// come last.
    pub fn outbound(&mut self, tables: &Snapshot, batch: &mut Batch, replies: &mut Batch) {
        self.inbound_path(tables).age();
        self.outbound_path(tables).run(batch, replies);
        self.publish_lookups();
    }

    /// The first half of [`Worker::outbound`].
    pub(crate) fn plan(&mut self, tables: &Snapshot, batch: &mut Batch, replies: &mut Batch, plan: &mut Vec<Planned>) {
        self.inbound_path(tables).age();
        self.outbound_path(tables).plan(batch, replies, plan);
        self.publish_lookups();
    }

    /// The second half of [`Worker::outbound`], for packets that any worker planned.
    pub(crate) fn seal_planned(&mut self, tables: &Snapshot, batch: &mut Batch, plan: &[Planned]) {
        self.outbound_path(tables).seal_planned(batch, plan);
    }

    /// The second half of [`Worker::outbound`] up to the engine.
    pub(crate) fn submit_planned(
        &mut self,
        tables: &Snapshot,
        batch: &mut Batch,
        plan: &[Planned],
        submitted: &mut Submitted<'_>,
    ) {
        self.outbound_path(tables).submit_planned(batch, plan, submitted);
    }

    /// The second half of [`Worker::outbound`] after the engine; `lost` packets did not return.
    pub(crate) fn finish_submitted(
        &mut self,
        tables: &Snapshot,
        batch: &mut Batch,
        states: &[SubmittedSeal],
        lost: usize,
    ) {
        self.outbound_path(tables).finish_submitted(batch, states, lost);
    }

    /// Takes packets from the outer side. Afterwards `batch` holds what is to be delivered on the
    /// inner side, in order. Everything else was dropped and counted, or is to be taken with
    /// [`Worker::unpack`].
    pub fn inbound(&mut self, tables: &Snapshot, batch: &mut Batch) {
        let mut path = self.inbound_path(tables);
        path.age();
        path.run(batch);
        path.unpack(batch);
        self.publish_lookups();
    }

    /// Appends inner packets of AGGFRAG payloads for which an earlier batch had no room, and those
    /// that waited for missing outer packets. Returns true if others remain. Should be called until
    /// it returns false, each time after the packets of `batch` were delivered, and whenever
    /// [`Worker::awaits_time`] returns true.
    pub fn unpack(&mut self, tables: &Snapshot, batch: &mut Batch) -> bool {
        let more = self.inbound_path(tables).unpack(batch);
        self.publish_lookups();
        more
    }

    /// The first half of [`Worker::inbound`].
    pub(crate) fn open(&mut self, tables: &Snapshot, batch: &mut Batch, opened: &mut Opened) {
        let mut path = self.inbound_path(tables);
        path.age();
        path.open(batch, opened);
    }

    /// The first half of [`Worker::inbound`] up to the engine.
    pub(crate) fn submit_open(
        &mut self,
        tables: &Snapshot,
        batch: &mut Batch,
        opened: &mut Opened,
        groups: &mut Groups,
    ) {
        let mut path = self.inbound_path(tables);
        path.age();
        path.submit(batch, opened, groups);
    }

    /// Drops packets between the halves of [`Worker::inbound`]: those that did not return from the
    /// engine, and those of SAs that `current` no longer has.
    #[cold]
    pub(crate) fn discard(
        &mut self,
        tables: &Snapshot,
        batch: &mut Batch,
        opened: &mut Opened,
        current: Option<&Snapshot>,
    ) {
        let is_removed = |slot, sa: &_| current.is_some_and(|current| !current.sad.still_has(slot, sa));
        self.inbound_path(tables).discard(batch, opened, is_removed);
    }

    /// The second half of [`Worker::inbound`], for packets that any worker opened.
    pub(crate) fn admit(&mut self, tables: &Snapshot, batch: &mut Batch, opened: &mut Opened) {
        self.inbound_path(tables).admit(batch, opened);
        self.publish_lookups();
    }

    pub(crate) fn outbound_path<'t>(&mut self, tables: &'t Snapshot) -> OutboundPath<'_, 't> {
        OutboundPath::new(&mut self.outbound, &mut self.shared, tables)
    }

    pub(crate) fn inbound_path<'t>(&mut self, tables: &'t Snapshot) -> InboundPath<'_, 't> {
        InboundPath::new(&mut self.inbound, &mut self.shared, tables)
    }

    /// Publishes the look-up statistics of the flow caches.
    fn publish_lookups(&self) {
        self.shared.counters().flows[0].set(self.outbound.lookups());
        self.shared.counters().flows[1].set(self.inbound.lookups());
    }

    /// Capacities of what a batch fills, none of which it may exceed.
    #[cfg(test)]
    pub(crate) fn capacities(&self) -> [usize; 3] {
        let [oversized, fragments] = self.outbound.capacities();
        [self.shared.capacity(), oversized, fragments]
    }
}
