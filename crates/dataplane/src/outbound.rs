//! Outbound path: from plaintext to protected packets.
//!
//! Two halves, so that one SA can use several cores: [`OutboundPath::plan_chunk`] finds the SA of
//! each packet and hands out the sequence numbers, in order; [`OutboundPath::seal_chunk`] lays the
//! packets out with the numbers that they were given and encrypts them. [`OutboundPath::run`] does
//! both on one core, chunk by chunk: a chunk is small enough to stay in the L1 cache between them.
//! In the pipeline [`OutboundPath::plan`] is for the core that received a batch and
//! [`OutboundPath::seal_planned`] for any. With an asynchronous engine the second half is cut once
//! more: [`OutboundPath::submit_planned`] before the engine, [`OutboundPath::finish_submitted`]
//! after it.

mod aggregate;
mod plan;
mod seal;

use std::ops::Range;
use std::sync::atomic::Ordering;

use crypto::{Jobs, Key};
use ipsec::{DropReason, OutboundSa, fragment_v4, pmtu};
use wire::IpPacket;

use crate::cache::{FlowCache, LookupStats, Side};
use crate::counters::bump;
use crate::hold::Hold;
use crate::shared::{Shared, Subject};
use crate::{Acquire, Batch, Packet, Snapshot, WorkerConfig};
use aggregate::Aggregated;
pub(crate) use plan::Planned;
use plan::{ChunkPlan, FlowRun};
use seal::{SealRun, Tally};
pub(crate) use seal::{Submitted, SubmittedSeal};

/// Packets per call of an engine that processes one packet at a time.
pub(crate) const CHUNK: usize = Jobs::SINGLE_BUFFER;

/// Most packets per engine call.
pub(crate) const CHUNK_MAX: usize = Jobs::MOST;

/// Mean length in bytes up to which packets fit the L1 cache in chunks of [`CHUNK_MAX`].
const SHORT: u64 = 256;

/// Returns whether a batch of `packets` packets with `bytes` bytes in all is to be processed in
/// chunks of [`CHUNK_MAX`], because each chunk has a fixed cost. What such a chunk needs of
/// many SAs would not fit the L1 cache.
pub(crate) fn has_long_chunks(tables: &Snapshot, packets: usize, bytes: u64) -> bool {
    tables.long_chunks && bytes <= SHORT * packets as u64
}

/// Packets of the next chunk, by the key of the last packets: the next ones probably have the same.
#[inline]
pub(crate) fn chunk_for(key: Option<&Key>, long: bool) -> usize {
    if long || key.is_some_and(Key::is_multi_buffer) { CHUNK_MAX } else { CHUNK }
}

/// Outbound state of a worker.
pub(crate) struct Outbound {
    flows: FlowCache,
    hold: Hold,
    /// Packets of the next chunk.
    chunk: usize,
    /// See [`has_long_chunks`].
    long_chunks: bool,
    /// Index and SA slot of packets of the current batch that exceed the MTU of their SA.
    oversized: Vec<(usize, u32)>,
    /// SA slot of each fragment that was appended to the current batch.
    fragment_slots: Vec<u32>,
    /// Packets of the current batch that are packed into AGGFRAG payloads.
    aggregated: Vec<Aggregated>,
    /// Plan of these payloads.
    payload_plan: Vec<Planned>,
    /// Buffers for the packet that is being fragmented and for its current fragment.
    scratch: Vec<u8>,
    fragment: Box<[u8]>,
}

impl Outbound {
    /// State of a worker that reports to `acquire`.
    pub(crate) fn new(config: &WorkerConfig, acquire: rtrb::Producer<Acquire>) -> Self {
        Self {
            flows: FlowCache::new(Side::Outbound, config.flow_cache),
            hold: Hold::new(config.held, config.packet_bytes, acquire),
            chunk: CHUNK,
            long_chunks: false,
            oversized: Vec::with_capacity(config.batch),
            // As many as a batch has in its reserve.
            fragment_slots: Vec::with_capacity(2 * config.batch),
            aggregated: Vec::with_capacity(config.batch),
            payload_plan: Vec::with_capacity(2 * config.batch),
            scratch: Vec::with_capacity(config.packet_bytes),
            fragment: vec![0; config.packet_bytes].into_boxed_slice(),
        }
    }

    /// Look-up statistics of the flow cache.
    pub(crate) fn lookups(&self) -> LookupStats {
        self.flows.stats()
    }

    /// Returns true if packets have requested an SA since the last call.
    pub(crate) fn take_requested(&mut self) -> bool {
        self.hold.take_requested()
    }

    /// Returns true while packets wait for the first inbound packet of an SA.
    pub(crate) fn awaits_peer_traffic(&self) -> bool {
        self.hold.awaits_peer_traffic()
    }

    /// Capacities that no batch may exceed.
    #[cfg(test)]
    pub(crate) fn capacities(&self) -> [usize; 2] {
        [self.oversized.capacity(), self.fragment_slots.capacity()]
    }
}

/// The outbound path of a worker, with the tables of a batch.
pub(crate) struct OutboundPath<'w, 't> {
    own: &'w mut Outbound,
    shared: &'w mut Shared,
    tables: &'t Snapshot,
    /// Packets are counted for their SA with their numbers; otherwise when they are laid out.
    counts_numbers: bool,
    /// The latter. Counted at the end at the latest.
    tally: Tally<'t>,
}

impl<'w, 't> OutboundPath<'w, 't> {
    pub(crate) fn new(own: &'w mut Outbound, shared: &'w mut Shared, tables: &'t Snapshot) -> Self {
        let tally = Tally::new(shared.is_alone());
        Self { own, shared, tables, counts_numbers: false, tally }
    }

    /// Moves held packets that have an SA into `batch`, and drops those that timed out.
    pub(crate) fn release(&mut self, batch: &mut Batch) {
        let (hold, tables, now_ms) = (&mut self.own.hold, self.tables, self.shared.now_ms());
        if hold.is_empty() {
            return;
        }
        // First, so that no packet leaves after its timeout.
        let given_up = hold.age(now_ms);
        bump(&self.shared.counters().drops[DropReason::NotNegotiated as usize], given_up);
        if hold.needs_release(tables.generation) {
            let core = self.shared.core();
            hold.release(now_ms, tables.generation, |key| tables.hold_reason(key, core), batch);
        }
    }

    /// Both halves on one core: see [`crate::Worker::outbound`].
    pub(crate) fn run(&mut self, batch: &mut Batch, replies: &mut Batch) {
        let (arrived, bytes) = self.begin(batch);
        // The lane is in the cache then, and the additions are not locked.
        self.counts_numbers = self.shared.is_alone();
        self.own.long_chunks = has_long_chunks(self.tables, arrived, bytes);
        if self.own.long_chunks {
            self.own.chunk = CHUNK_MAX;
        }
        let mut run = SealRun::new();
        self.protect(batch, 0..arrived, &mut run);
        if self.cut_oversized(batch, replies) {
            self.protect(batch, arrived..batch.len(), &mut run);
        }
        let payloads = self.pack(batch, replies);
        if !payloads.is_empty() {
            let plan = std::mem::take(&mut self.own.payload_plan);
            self.seal_range(batch, payloads, &plan, &mut run, None);
            self.own.payload_plan = plan;
        }
        self.shared.retain_kept(batch);
        self.shared.counters().outer_tx.bump(batch.len() as u64, batch.bytes());
        bump(&self.shared.counters().batches, 1);
    }

    /// Plans and protects the packets of `range` in place.
    fn protect(&mut self, batch: &mut Batch, range: Range<usize>, run: &mut SealRun<'t>) {
        let (mut flows, mut plan) = (self.flow_run(&range), ChunkPlan::new());
        let (mut rest, mut first) = (&mut batch.packets_mut()[range.clone()], range.start);
        rest.iter().take(self.own.chunk).for_each(Packet::prefetch);
        // Nothing is sealed of a chunk whose packets are all dropped, held, or packed into payloads
        // later. After such a chunk the next one should be long.
        let mut gone = false;
        while !rest.is_empty() {
            let count = rest.len().min(if gone { CHUNK_MAX } else { self.own.chunk });
            let (chunk, behind) = rest.split_at_mut(count);
            self.plan_chunk(first, chunk, &mut flows, &mut plan);
            gone = plan.iter().all(Planned::is_gone) && !self.shared.keeps_any(first..first + count);
            if gone {
                behind.iter().take(CHUNK_MAX).for_each(Packet::prefetch_head);
            } else {
                self.seal_chunk(first, (chunk, behind), &mut plan.iter(), run);
            }
            (rest, first) = (behind, first + count);
        }
    }

    /// The first half of [`OutboundPath::run`]. Afterwards `batch` holds the packets that go on, as
    /// `plan` says of them. `plan` has room for one entry for each packet of a batch.
    pub(crate) fn plan(&mut self, batch: &mut Batch, replies: &mut Batch, plan: &mut Vec<Planned>) {
        let (arrived, _) = self.begin(batch);
        plan.clear();
        self.plan_range(batch, 0..arrived, plan);
        if self.cut_oversized(batch, replies) {
            self.plan_range(batch, arrived..batch.len(), plan);
        }
        if !self.pack(batch, replies).is_empty() {
            plan.extend_from_slice(&self.own.payload_plan);
        }
        // Their packets leave the batch.
        plan.retain(|planned| !planned.is_gone());
        self.shared.retain_kept(batch);
        bump(&self.shared.counters().batches, 1);
    }

    fn plan_range(&mut self, batch: &mut Batch, range: Range<usize>, plan: &mut Vec<Planned>) {
        let (mut flows, mut part) = (self.flow_run(&range), ChunkPlan::new());
        let first = range.start;
        for (i, chunk) in batch.packets_mut()[range].chunks_mut(CHUNK).enumerate() {
            self.plan_chunk(first + i * CHUNK, chunk, &mut flows, &mut part);
            plan.extend(part.iter().copied());
        }
    }

    /// The second half of [`OutboundPath::run`], for packets that any worker planned. Afterwards
    /// `batch` holds what is to be sent, in order.
    pub(crate) fn seal_planned(&mut self, batch: &mut Batch, plan: &[Planned]) {
        self.shared.start_batch(batch.len());
        let mut run = SealRun::new();
        self.seal_range(batch, 0..batch.len(), plan, &mut run, None);
        self.shared.retain_kept(batch);
        self.shared.counters().outer_tx.bump(batch.len() as u64, batch.bytes());
    }

    /// The part of [`OutboundPath::seal_planned`] before the engine: packets with an operation move
    /// to the groups of `submitted`.
    pub(crate) fn submit_planned(&mut self, batch: &mut Batch, plan: &[Planned], submitted: &mut Submitted<'_>) {
        self.shared.start_batch(batch.len());
        let mut run = SealRun::new();
        self.seal_range(batch, 0..batch.len(), plan, &mut run, Some(submitted));
        self.shared.retain_kept(batch);
    }

    /// Counts `count` packets that were dropped after they had been queued for `sa`.
    pub(crate) fn count_queued(&mut self, sa: &OutboundSa, why: DropReason, count: usize) {
        (0..count).for_each(|_| self.shared.count_drop(why, Some(&sa.common)));
    }

    /// Numbers and seals the payloads of AGGFRAG mode in `batch` for the SA in `slot`. Afterwards
    /// `batch` holds what is to be sent, in order.
    pub(crate) fn seal_payloads(&mut self, batch: &mut Batch, slot: u32) {
        self.shared.start_batch(batch.len());
        self.own.fragment_slots.clear();
        self.own.fragment_slots.resize(batch.len(), slot);
        self.plan_payloads(batch, 0);
        let plan = std::mem::take(&mut self.own.payload_plan);
        let mut run = SealRun::new();
        self.seal_range(batch, 0..batch.len(), &plan, &mut run, None);
        self.own.payload_plan = plan;
        self.shared.retain_kept(batch);
        self.shared.counters().outer_tx.bump(batch.len() as u64, batch.bytes());
    }

    /// Protects the packets of `range` in place, as `plan` says of them, or submits them.
    fn seal_range(
        &mut self,
        batch: &mut Batch,
        range: Range<usize>,
        plan: &[Planned],
        run: &mut SealRun<'t>,
        mut submitted: Option<&mut Submitted<'_>>,
    ) {
        let mut plan = plan.iter();
        let (mut rest, mut first) = (&mut batch.packets_mut()[range.clone()], range.start);
        rest.iter().take(self.own.chunk).for_each(Packet::prefetch);
        while !rest.is_empty() {
            let count = rest.len().min(self.own.chunk);
            let (chunk, behind) = rest.split_at_mut(count);
            match &mut submitted {
                None => self.seal_chunk(first, (chunk, behind), &mut plan, run),
                Some(submitted) => self.submit_chunk(first, (chunk, behind), &mut plan, run, submitted),
            }
            (rest, first) = (behind, first + count);
        }
    }

    /// Begins a batch; returns its packets and their bytes.
    fn begin(&mut self, batch: &Batch) -> (usize, u64) {
        let (arrived, bytes) = (batch.len(), batch.bytes());
        self.shared.counters().inner_rx.bump(arrived as u64, bytes);
        self.shared.start_batch(arrived);
        self.own.oversized.clear();
        self.own.fragment_slots.clear();
        self.own.aggregated.clear();
        (arrived, bytes)
    }

    /// State at the start of a range of a batch: of all that arrived, or of the fragments after it.
    fn flow_run(&self, range: &Range<usize>) -> FlowRun {
        FlowRun::new(if range.start == 0 { range.end } else { range.start })
    }

    /// Deals with the oversized packets of a batch. Returns whether fragments were appended.
    #[inline]
    fn cut_oversized(&mut self, batch: &mut Batch, replies: &mut Batch) -> bool {
        if self.own.oversized.is_empty() {
            return false;
        }
        self.cut_to_size(batch, replies);
        self.shared.extend_batch(batch.len());
        true
    }

    /// Appends the fragments of oversized packets to the batch, or reports the path MTU to their
    /// senders.
    #[cold]
    fn cut_to_size(&mut self, batch: &mut Batch, replies: &mut Batch) {
        let tables = self.tables;
        for n in 0..self.own.oversized.len() {
            let (i, slot) = self.own.oversized[n];
            let (Some(sa), Ok(ip)) = (tables.outbound.get(slot as usize), IpPacket::parse(batch.packets()[i].bytes()))
            else {
                continue;
            };
            let mtu = sa.inner_mtu.load(Ordering::Relaxed) as usize;
            let whole_only = !matches!(sa.common.mode, ipsec::Mode::Tunnel);
            let outcome = if sa.may_exceed_path(&ip) {
                self.append_whole(batch, i, slot, ip.total_len)
            } else if ip.dont_fragment || whole_only {
                tell_sender(&ip, &batch.packets()[i], mtu, replies);
                Err(DropReason::TooBig)
            } else {
                self.fragment(batch, i, slot, &ip, mtu)
            };
            if let Err(why) = outcome {
                self.gone_outbound(i, Some(sa), Some(&ip), why);
            }
        }
    }

    /// Appends packet `i` as it is: it is sent whole, in fragments of the outer packet.
    fn append_whole(&mut self, batch: &mut Batch, i: usize, slot: u32, len: usize) -> Result<(), DropReason> {
        self.own.scratch.clear();
        self.own.scratch.extend_from_slice(&batch.packets()[i].bytes()[..len]);
        let mut out = Appended { batch, slots: &mut self.own.fragment_slots, slot };
        if out.push(&self.own.scratch) { Ok(()) } else { Err(DropReason::QueueFull) }
    }

    /// Appends the fragments of packet `i`, all or none: a receiver cannot use an incomplete set.
    fn fragment(
        &mut self,
        batch: &mut Batch,
        i: usize,
        slot: u32,
        ip: &IpPacket,
        mtu: usize,
    ) -> Result<(), DropReason> {
        self.own.scratch.clear();
        self.own.scratch.extend_from_slice(&batch.packets()[i].bytes()[..ip.total_len]);
        let (original, piece) = (&self.own.scratch, &mut self.own.fragment);
        let mut out = Appended { batch, slots: &mut self.own.fragment_slots, slot };
        let (before, mut room) = (out.mark(), true);
        fragment_v4(ip, original, mtu, piece, &mut |fragment| room = room && out.push(fragment))?;
        if room {
            return Ok(());
        }
        out.take_back(before);
        Err(DropReason::QueueFull)
    }

    /// Drops packet `i` and counts it.
    #[cold]
    fn gone_outbound(&mut self, i: usize, sa: Option<&OutboundSa>, ip: Option<&IpPacket>, why: DropReason) {
        self.shared.count_drop(why, sa.map(|sa| &sa.common));
        let subject = Subject { outbound: true, spi: sa.map_or(0, |sa| sa.spi), ..Subject::default() };
        self.shared.report(why, subject, ip);
        self.shared.refuse(i);
    }
}

/// The end of a batch as the place for packets that were made from others: fragments and AGGFRAG
/// payloads.
struct Appended<'b> {
    batch: &'b mut Batch,
    /// SA slot of each packet that was appended.
    slots: &'b mut Vec<u32>,
    slot: u32,
}

/// Numbers of packets in a batch, and of appended ones among them.
#[derive(Clone, Copy)]
struct Mark {
    packets: usize,
    appended: usize,
}

impl Appended<'_> {
    /// Appends a packet; false without room for it.
    #[inline]
    fn push(&mut self, bytes: &[u8]) -> bool {
        // The vector must not grow: the packet path allocates nothing.
        let room = self.slots.len() < self.slots.capacity() && self.batch.push_with(|packet| packet.set(bytes));
        if room {
            self.slots.push(self.slot);
        }
        room
    }

    fn mark(&self) -> Mark {
        Mark { packets: self.batch.len(), appended: self.slots.len() }
    }

    /// Removes the packets that were appended since `mark`.
    fn take_back(&mut self, mark: Mark) {
        self.batch.truncate(mark.packets);
        self.slots.truncate(mark.appended);
    }
}

/// Puts the ICMP error "too big" about `packet` into `replies`.
///
/// It comes from where the packet was to go: a host takes no packet from the device that claims to
/// be from itself, and no address of this host is known to be none of the sender's.
fn tell_sender(ip: &IpPacket, packet: &Packet, mtu: usize, replies: &mut Batch) {
    let router = ip.dst;
    replies.push_with(|reply| {
        let built = pmtu::too_big_reply(ip, packet.bytes(), mtu, router, reply.receive_area());
        built.is_some_and(|len| {
            reply.received(0, len);
            true
        })
    });
}
