//! Inbound path: from protected to plaintext packets.
//!
//! Two halves, so that one SA can use several cores: [`InboundPath::open_chunk`] finds the SA of
//! each packet, checks what is cheap and has the engine verify and decrypt, and changes nothing
//! that packets share; [`InboundPath::admit_chunk`] moves the replay window, strips headers and
//! checks the policy, in order. It requires the engine's proof of the ICV, because a forged packet
//! must not advance the window (RFC 4303 §3.4.3). [`InboundPath::run`] does both on one core, chunk
//! by chunk: a chunk is small enough to stay in the L1 cache between them. In the pipeline
//! [`InboundPath::open`] is for any core, and [`InboundPath::admit`] for one core at a time for
//! each SA. With an asynchronous engine [`InboundPath::submit`] is the first half up to the engine.

mod admit;
mod aggregates;
mod find;
mod open;

use ipsec::{DropReason, InboundSa, Reassembler, ReassemblyDrops};
use wire::IpPacket;

use crate::cache::{FlowCache, LookupStats, Side};
use crate::counters::bump;
use crate::outbound::{CHUNK, CHUNK_MAX, has_long_chunks};
use crate::path_mtu::PathMtus;
use crate::scheduler::Groups;
use crate::shared::{Shared, Subject};
use crate::{Batch, Packet, Snapshot, WorkerConfig};
use admit::AdmitRun;
use aggregates::{Aggregate, Aggregates};
use open::OpenRun;
pub(crate) use open::Opened;

/// A packet that was dropped and counted, or that waits for further fragments.
struct Refused;

/// Inbound state of a worker.
pub(crate) struct Inbound {
    flows: FlowCache,
    reassembler: Reassembler,
    /// Reassembly drops at the last update of the counters.
    fragments_lost: ReassemblyDrops,
    path_mtus: PathMtus,
    /// Time of the next expiry check.
    next_age_ms: u64,
    /// Packets of the next chunk.
    chunk: usize,
    /// See [`has_long_chunks`].
    long_chunks: bool,
    /// Results of the engine for the current chunk.
    opened: Opened,
    /// Group of each packet of the current batch.
    groups: Vec<u32>,
    aggregates: Aggregates,
}

impl Inbound {
    pub(crate) fn new(config: &WorkerConfig) -> Self {
        Self {
            flows: FlowCache::new(Side::Inbound, config.flow_cache),
            reassembler: Reassembler::new(config.reassembly, 65_535, 15_000),
            fragments_lost: ReassemblyDrops::default(),
            path_mtus: PathMtus::new(),
            next_age_ms: 0,
            chunk: CHUNK,
            long_chunks: false,
            opened: Opened::with_capacity(CHUNK_MAX),
            groups: Vec::with_capacity(config.batch),
            aggregates: Aggregates::default(),
        }
    }

    /// Look-up statistics of the flow cache.
    pub(crate) fn lookups(&self) -> LookupStats {
        self.flows.stats()
    }

    /// Buffer for the groups of the packets of a batch.
    pub(crate) fn groups(&mut self) -> &mut Vec<u32> {
        &mut self.groups
    }
}

/// The inbound path of a worker, with the tables of a batch.
pub(crate) struct InboundPath<'w, 't> {
    own: &'w mut Inbound,
    shared: &'w mut Shared,
    tables: &'t Snapshot,
}

impl<'w, 't> InboundPath<'w, 't> {
    pub(crate) fn new(own: &'w mut Inbound, shared: &'w mut Shared, tables: &'t Snapshot) -> Self {
        Self { own, shared, tables }
    }

    /// Both halves on one core: see [`crate::Worker::inbound`].
    pub(crate) fn run(&mut self, batch: &mut Batch) {
        let bytes = batch.bytes();
        self.shared.counters().outer_rx.bump(batch.len() as u64, bytes);
        self.own.long_chunks = has_long_chunks(self.tables, batch.len(), bytes);
        if self.own.long_chunks {
            self.own.chunk = CHUNK_MAX;
        }
        self.begin(batch);
        let mut opened = std::mem::take(&mut self.own.opened);
        let (mut open, mut admit) = (OpenRun::new(), AdmitRun::new(self.tables, self.shared.core()));
        let (mut rest, mut first) = (batch.packets_mut(), 0);
        while !rest.is_empty() {
            let count = rest.len().min(self.own.chunk);
            let (chunk, behind) = rest.split_at_mut(count);
            opened.clear();
            self.open_chunk(first, (&mut *chunk, behind), &mut open, &mut opened);
            self.admit_chunk(first, chunk, &mut opened.iter(), &mut admit);
            (rest, first) = (behind, first + count);
        }
        self.own.opened = opened;
        admit.end();
        self.shared.retain_kept(batch);
        self.shared.counters().inner_tx.bump(batch.len() as u64, batch.bytes());
        bump(&self.shared.counters().batches, 1);
    }

    /// The first half of [`InboundPath::run`]. Packets with a result in `opened`, and those that a
    /// policy passes in clear text, remain in `batch`.
    pub(crate) fn open(&mut self, batch: &mut Batch, opened: &mut Opened) {
        self.open_batch(batch, opened, None);
    }

    /// As [`InboundPath::open`] up to the engine: packets with an operation move to `groups`, and
    /// their states in `opened` have no proof yet.
    pub(crate) fn submit(&mut self, batch: &mut Batch, opened: &mut Opened, groups: &mut Groups) {
        self.open_batch(batch, opened, Some(groups));
    }

    fn open_batch(&mut self, batch: &mut Batch, opened: &mut Opened, mut groups: Option<&mut Groups>) {
        self.begin(batch);
        opened.clear();
        let mut run = OpenRun::new();
        let (mut rest, mut first) = (batch.packets_mut(), 0);
        while !rest.is_empty() {
            let count = rest.len().min(self.own.chunk);
            let (chunk, behind) = rest.split_at_mut(count);
            match &mut groups {
                None => self.open_chunk(first, (chunk, behind), &mut run, opened),
                Some(groups) => self.submit_chunk(first, (chunk, behind), &mut run, opened, groups),
            }
            (rest, first) = (behind, first + count);
        }
        opened.retain_kept();
        self.shared.retain_kept(batch);
        bump(&self.shared.counters().batches, 1);
    }

    /// The second half of [`InboundPath::run`], for packets that any worker opened. Windows are
    /// checked again with the proof, because other batches of the SA may have moved them.
    /// Afterwards `batch` holds what is to be delivered, in order.
    pub(crate) fn admit(&mut self, batch: &mut Batch, opened: &mut Opened) {
        let tables = self.tables;
        self.shared.start_batch(batch.len());
        self.own.flows.renew(tables.generation);
        let (mut run, mut opened, mut first) = (AdmitRun::new(tables, self.shared.core()), opened.iter(), 0);
        for chunk in batch.packets_mut().chunks_mut(CHUNK) {
            self.admit_chunk(first, chunk, &mut opened, &mut run);
            first += CHUNK;
        }
        run.end();
        self.shared.retain_kept(batch);
        self.shared.counters().inner_tx.bump(batch.len() as u64, batch.bytes());
    }

    fn begin(&mut self, batch: &Batch) {
        let tables = self.tables;
        self.shared.start_batch(batch.len());
        // Keys derived for a batch must stay cached until the engine has used them. This call makes
        // those of the previous batch evictable.
        self.shared.derived_mut().begin_batch();
        self.own.flows.renew(tables.generation);
        // Only for the first chunk; the others are prefetched while the one before is processed.
        batch.packets().iter().take(self.own.chunk).for_each(Packet::prefetch_head);
    }

    /// Expires learned path MTUs and incomplete fragments, once a second.
    pub(crate) fn age(&mut self) {
        let tables = self.tables;
        if self.shared.now_ms() < self.own.next_age_ms {
            return;
        }
        self.own.next_age_ms = self.shared.now_ms() + 1000;
        let ended = self.own.aggregates.end_streams();
        bump(&self.shared.counters().drops[DropReason::NoSa as usize], ended as u64);
        self.own.path_mtus.expire(self.shared.now_ms(), tables);
        self.own.reassembler.expire(self.shared.now_ms());
        let lost = self.own.reassembler.drops();
        // The reassembler reports totals; the counters get the difference.
        let before = std::mem::replace(&mut self.own.fragments_lost, lost);
        let drops = &self.shared.counters().drops;
        bump(&drops[DropReason::ReassemblyTimeout as usize], lost.timed_out - before.timed_out);
        bump(&drops[DropReason::ReassemblyFull as usize], lost.evicted - before.evicted);
    }

    #[cold]
    fn gone_inbound(
        &mut self,
        sa: Option<&InboundSa>,
        why: DropReason,
        spi: Option<u32>,
        ip: Option<&IpPacket>,
    ) -> Refused {
        self.shared.count_drop(why, sa.map(|sa| &sa.common));
        self.shared.report(why, Subject { spi: spi.unwrap_or(0), ..Subject::default() }, ip);
        Refused
    }
}
