//! Outbound path: from plaintext to protected packets.
//!
//! Two halves, so that one SA can use several cores: [`Worker::plan_chunk`] finds the SA of each
//! packet and hands out the sequence numbers, in order; [`Worker::seal_chunk`] lays the packets out
//! with the numbers that they were given and encrypts them. [`Worker::outbound`] runs both on one
//! core, chunk by chunk: a chunk is small enough to stay in the L1 cache between them. In the
//! pipeline [`Worker::plan`] is for the core that received a batch and [`Worker::seal_planned`] for
//! any.

mod plan;
mod seal;

use std::ops::Range;
use std::sync::atomic::Ordering;

use crypto::Jobs;
use ipsec::{DropReason, OutboundSa, fragment_v4, pmtu};
use wire::IpPacket;

use crate::counters::bump;
use crate::worker::Subject;
use crate::{Batch, Packet, Snapshot, Worker};
pub(crate) use plan::Planned;
use plan::{ChunkPlan, FlowRun};
use seal::SealRun;

/// Packets per engine call.
pub(crate) const CHUNK: usize = Jobs::MOST;

impl Worker {
    /// Takes clear packets from the inner side. Afterwards `batch` holds what is to be sent on the
    /// outer side (protected, or bypassed by policy), in order; `replies` got ICMP errors for the
    /// inner side. Everything else was dropped and counted. Fragments of packets that had to be cut
    /// come last.
    pub fn outbound(&mut self, tables: &Snapshot, batch: &mut Batch, replies: &mut Batch) {
        let arrived = self.begin_outbound(tables, batch);
        let mut run = SealRun::new();
        self.protect(tables, batch, 0..arrived, &mut run);
        if self.cut_oversized(tables, batch, replies) {
            self.protect(tables, batch, arrived..batch.len(), &mut run);
        }
        run.end();
        self.retain_kept(batch);
        self.counters.outer_tx.bump(batch.len() as u64, batch.bytes());
        bump(&self.counters.batches, 1);
        self.publish_lookups();
    }

    /// Plans and protects the packets of `range` in place.
    fn protect<'t>(&mut self, tables: &'t Snapshot, batch: &mut Batch, range: Range<usize>, run: &mut SealRun<'t>) {
        let (mut flows, mut plan) = (self.flow_run(&range), ChunkPlan::new());
        let (mut rest, mut first) = (&mut batch.packets_mut()[range.clone()], range.start);
        rest.iter().take(CHUNK).for_each(Packet::prefetch);
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at_mut(rest.len().min(CHUNK));
            self.plan_chunk(tables, first, chunk, &mut flows, &mut plan);
            self.seal_chunk(tables, first, (chunk, behind), &mut plan.iter(), run);
            (rest, first) = (behind, first + CHUNK);
        }
    }

    /// The first half of [`Worker::outbound`]. Afterwards `batch` holds the packets that go on, as
    /// `plan` says of them. `plan` has room for one entry for each packet of a batch.
    pub(crate) fn plan(&mut self, tables: &Snapshot, batch: &mut Batch, replies: &mut Batch, plan: &mut Vec<Planned>) {
        let arrived = self.begin_outbound(tables, batch);
        plan.clear();
        self.plan_range(tables, batch, 0..arrived, plan);
        if self.cut_oversized(tables, batch, replies) {
            self.plan_range(tables, batch, arrived..batch.len(), plan);
        }
        // Their packets leave the batch.
        plan.retain(|planned| !planned.is_gone());
        self.retain_kept(batch);
        bump(&self.counters.batches, 1);
        self.publish_lookups();
    }

    fn plan_range(&mut self, tables: &Snapshot, batch: &mut Batch, range: Range<usize>, plan: &mut Vec<Planned>) {
        let (mut flows, mut part) = (self.flow_run(&range), ChunkPlan::new());
        let first = range.start;
        for (i, chunk) in batch.packets_mut()[range].chunks_mut(CHUNK).enumerate() {
            self.plan_chunk(tables, first + i * CHUNK, chunk, &mut flows, &mut part);
            plan.extend(part.iter().copied());
        }
    }

    /// The second half of [`Worker::outbound`], for packets that any worker planned. Afterwards
    /// `batch` holds what is to be sent, in order.
    pub(crate) fn seal_planned(&mut self, tables: &Snapshot, batch: &mut Batch, plan: &[Planned]) {
        self.start_batch(batch.len());
        let (mut run, mut plan) = (SealRun::new(), plan.iter());
        let (mut rest, mut first) = (batch.packets_mut(), 0);
        rest.iter().take(CHUNK).for_each(Packet::prefetch);
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at_mut(rest.len().min(CHUNK));
            self.seal_chunk(tables, first, (chunk, behind), &mut plan, &mut run);
            (rest, first) = (behind, first + CHUNK);
        }
        run.end();
        self.retain_kept(batch);
        self.counters.outer_tx.bump(batch.len() as u64, batch.bytes());
    }

    /// Begins a batch; returns its number of packets.
    fn begin_outbound(&mut self, tables: &Snapshot, batch: &Batch) -> usize {
        let arrived = batch.len();
        self.counters.inner_rx.bump(arrived as u64, batch.bytes());
        self.start_batch(arrived);
        self.age(tables);
        self.oversized.clear();
        self.fragment_slots.clear();
        arrived
    }

    /// State at the start of a range of a batch: of all that arrived, or of the fragments after it.
    fn flow_run(&self, range: &Range<usize>) -> FlowRun {
        FlowRun::new(if range.start == 0 { range.end } else { range.start })
    }

    /// Deals with the oversized packets of a batch. Returns whether fragments were appended.
    #[inline]
    fn cut_oversized(&mut self, tables: &Snapshot, batch: &mut Batch, replies: &mut Batch) -> bool {
        if self.oversized.is_empty() {
            return false;
        }
        self.cut_to_size(tables, batch, replies);
        self.keep.resize(batch.len(), true);
        true
    }

    /// Appends the fragments of oversized packets to the batch, or reports the path MTU to their
    /// senders.
    #[cold]
    fn cut_to_size(&mut self, tables: &Snapshot, batch: &mut Batch, replies: &mut Batch) {
        for n in 0..self.oversized.len() {
            let (i, slot) = self.oversized[n];
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
        self.scratch.clear();
        self.scratch.extend_from_slice(&batch.packets()[i].bytes()[..len]);
        let (packet, slots) = (&self.scratch, &mut self.fragment_slots);
        if slots.len() == slots.capacity() || !batch.push_with(|to| to.set(packet)) {
            return Err(DropReason::QueueFull);
        }
        slots.push(slot);
        Ok(())
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
        self.scratch.clear();
        self.scratch.extend_from_slice(&batch.packets()[i].bytes()[..ip.total_len]);
        let (original, piece) = (&self.scratch, &mut self.fragment);
        let slots = &mut self.fragment_slots;
        let before = (batch.len(), slots.len());
        let mut room = true;
        fragment_v4(ip, original, mtu, piece, &mut |fragment| {
            room = room && slots.len() < slots.capacity() && batch.push_with(|packet| packet.set(fragment));
            if room {
                slots.push(slot);
            }
        })?;
        if room {
            return Ok(());
        }
        batch.truncate(before.0);
        slots.truncate(before.1);
        Err(DropReason::QueueFull)
    }

    /// Drops packet `i` and counts it.
    #[cold]
    fn gone_outbound(&mut self, i: usize, sa: Option<&OutboundSa>, ip: Option<&IpPacket>, why: DropReason) {
        self.count_drop(why, sa.map(|sa| &sa.common));
        let subject = Subject { outbound: true, spi: sa.map_or(0, |sa| sa.spi), ..Subject::default() };
        self.report(why, subject, ip);
        self.refuse(i);
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
