//! The outbound path in two halves, so that one SA can use several cores.
//!
//! [`Worker::plan`] is for one core at a time: it finds the SA of each packet, cuts what is too
//! large and hands out the sequence numbers, in order. [`Worker::seal_planned`] is for any core: it
//! lays the packets out with the numbers they were given and encrypts them. One after the other
//! they do what [`Worker::outbound`] does.

use arrayvec::ArrayVec;
use crypto::{Job, Keys};
use ipsec::{DropReason, SeqRange};
use wire::{IpPacket, ShortKey};

use super::{Aligned, Burst, CHUNK, FlowState, InFlightEncryption, InFlightEncryptions, Last};
use crate::counters::bump;
use crate::{Batch, Packet, Snapshot, Worker};

/// Consecutive packets of a batch that have one way to go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    /// Slot of their SA; [`Planned::CLEAR`] for packets that a policy bypasses.
    slot: u32,
    packets: u32,
    /// Number of the first of them.
    first: u64,
}

impl Planned {
    const CLEAR: u32 = u32::MAX;
}

impl Worker {
    /// Finds out where each packet of `batch` goes and reserves its number. Afterwards `batch`
    /// holds the packets that go on, as `plan` says of them; `replies` got ICMP errors. `plan` has
    /// room for one entry for each packet of a batch.
    pub(crate) fn plan(&mut self, tables: &Snapshot, batch: &mut Batch, replies: &mut Batch, plan: &mut Vec<Planned>) {
        let arrived = batch.len();
        self.counters.inner_rx.bump(arrived as u64, batch.bytes());
        self.start_batch(arrived);
        self.age(tables);
        self.oversized.clear();
        self.fragment_slots.clear();
        plan.clear();
        self.plan_from(tables, batch, 0, arrived, plan);
        if !self.oversized.is_empty() {
            self.cut_to_size(tables, batch, replies);
            self.keep.resize(batch.len(), true);
            self.plan_from(tables, batch, arrived, arrived, plan);
        }
        self.retain_kept(batch);
        bump(&self.counters.batches, 1);
        self.publish_lookups();
    }

    /// Plans the packets from `from` on; those from `arrived` on are fragments, whose SA is known.
    fn plan_from(&mut self, tables: &Snapshot, batch: &Batch, from: usize, arrived: usize, plan: &mut Vec<Planned>) {
        let mut last: Option<Last> = None;
        // Slot, place of the first packet, and how many of them are kept.
        let mut run = (Planned::CLEAR, from, 0);
        for (i, packet) in batch.packets().iter().enumerate().skip(from) {
            if !last.as_mut().is_some_and(|last| last.covers(packet.bytes())) {
                self.classify(tables, i, arrived, packet, &mut last);
            }
            let slot = match &last {
                Some(last) if self.fits(tables, last, i, arrived) => last.slot,
                None if self.keep[i] => Planned::CLEAR,
                _ => continue,
            };
            if slot != run.0 {
                self.number(tables, run, i, plan);
                run = (slot, i, 0);
            }
            run.2 += 1;
        }
        self.number(tables, run, batch.len(), plan);
    }

    /// Whether packet `i` fits through its SA; otherwise it has been dealt with.
    #[inline]
    fn fits(&mut self, tables: &Snapshot, last: &Last, i: usize, arrived: usize) -> bool {
        let Some(sa) = tables.outbound.get(last.slot as usize) else {
            self.gone_outbound(i, None, Some(&last.ip), DropReason::NoSa);
            return false;
        };
        if last.ip.total_len <= sa.inner_mtu.load(std::sync::atomic::Ordering::Relaxed) as usize {
            return true;
        }
        if i < arrived {
            self.oversized.push((i, last.slot));
            self.refuse(i);
        } else {
            self.gone_outbound(i, Some(sa), Some(&last.ip), DropReason::TooBig);
        }
        false
    }

    /// Gives the packets of a run that ends before packet `end` their numbers; drops those that
    /// there are none for.
    fn number(
        &mut self,
        tables: &Snapshot,
        (slot, start, mut left): (u32, usize, u32),
        end: usize,
        plan: &mut Vec<Planned>,
    ) {
        let Some(sa) = tables.outbound.get(slot as usize) else {
            if left > 0 {
                plan.push(Planned { slot, packets: left, first: 0 });
            }
            return;
        };
        let lane = &sa.lanes[sa.lane_of(self.config.core)];
        let mut given = 0;
        while left > 0 {
            let allowed = sa
                .common
                .check_lifetime()
                .and_then(|()| Some(sa.common.packets_left(given)).filter(|n| *n > 0).ok_or(DropReason::Expired));
            match allowed.and_then(|most| lane.seq.reserve(most.min(u64::from(left)) as u32)) {
                Ok(SeqRange { first, count }) => {
                    plan.push(Planned { slot, packets: count, first });
                    left -= count;
                    given += u64::from(count);
                }
                Err(why) => {
                    // The last of them.
                    for i in (start..end).rev() {
                        if left > 0 && self.keep[i] {
                            self.gone_outbound(i, Some(sa), None, why);
                            left -= 1;
                        }
                    }
                }
            }
        }
    }

    /// Protects the packets of `batch` as they were planned by worker `planner`, in place.
    /// Afterwards `batch` holds what is to be sent, in order.
    pub(crate) fn seal_planned(&mut self, tables: &Snapshot, batch: &mut Batch, plan: &[Planned], planner: usize) {
        self.start_batch(batch.len());
        let mut run = PlannedRun { rest: plan.iter(), left: 0, clear: false, current: None, last: None, alike: None };
        let (mut rest, mut first) = (batch.packets_mut(), 0);
        rest.iter().take(CHUNK).for_each(Packet::prefetch);
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at_mut(rest.len().min(CHUNK));
            behind.iter().take(CHUNK).for_each(Packet::prefetch);
            self.seal_chunk(tables, first, chunk, &mut run, planner);
            (rest, first) = (behind, first + CHUNK);
        }
        if let Some(ended) = run.current {
            ended.end();
        }
        self.retain_kept(batch);
        self.counters.outer_tx.bump(batch.len() as u64, batch.bytes());
    }

    fn seal_chunk<'t>(
        &mut self,
        tables: &'t Snapshot,
        first: usize,
        packets: &mut [Packet],
        run: &mut PlannedRun<'t, '_>,
        planner: usize,
    ) {
        let mut jobs: Aligned<ArrayVec<Job<'_>, CHUNK>> = Aligned(ArrayVec::new());
        let mut sealings = [InFlightEncryption::NONE; CHUNK];
        let (mut finish, count) = (false, packets.len());
        let mut rest = &mut *packets;
        while !rest.is_empty() {
            let (ours, behind) = rest.split_at_mut(run.share(tables, planner, rest.len()));
            rest = behind;
            if run.current.is_none() && !run.clear {
                // The plan says nothing of them: they do not leave in the clear for that.
                let end = first + count - rest.len();
                (end - ours.len()..end).for_each(|i| self.gone_outbound(i, None, None, DropReason::Inconsistent));
                continue;
            }
            finish |= self.seal_share(first, ours, count - rest.len(), run, &mut jobs.0, &mut sealings);
        }
        self.config.engine.seal(Keys { table: &tables.keys, derived: &self.derived }, &mut jobs.0);
        if finish || !jobs.0.iter().all(Job::sealed) {
            let sealed: ArrayVec<bool, CHUNK> = jobs.0.iter().map(Job::sealed).collect();
            drop(jobs);
            if let Some(current) = &mut run.current {
                current.count();
            }
            self.finish(tables, (first, planner), packets, &sealings, &sealed);
        }
    }

    /// Lays out packets of one entry of the plan, which end at place `end` of the chunk that starts
    /// at `first`. Returns whether packets of the SA have to be finished.
    fn seal_share<'p>(
        &mut self,
        first: usize,
        mut rest: &'p mut [Packet],
        end: usize,
        PlannedRun { current, last, alike, .. }: &mut PlannedRun<'_, '_>,
        jobs: &mut ArrayVec<Job<'p>, CHUNK>,
        sealings: &mut InFlightEncryptions,
    ) -> bool {
        // What a policy bypasses stays as it is.
        let Some(current) = current else { return false };
        loop {
            if let Some(alike) = alike
                && let Some(i) = current.prepare_burst(alike, &mut rest, end, jobs, sealings)
            {
                self.gone_outbound(first + i, Some(current.sa), None, DropReason::Inconsistent);
            }
            let (i, left) = (end - rest.len(), rest.len());
            let Some((packet, behind)) = rest.split_first_mut() else { return current.finish };
            rest = behind;
            let known = last.as_mut().is_some_and(|last| last.covers(packet.bytes()));
            if !known {
                (*last, *alike) = (Last::read(packet.bytes(), current.slot), None);
            }
            let Some(Last { ip, again, .. }) = last else {
                // It was read when it was planned.
                self.gone_outbound(first + i, Some(current.sa), None, DropReason::Inconsistent);
                continue;
            };
            if std::mem::replace(again, known) && known && alike.is_none() {
                *alike = FlowState::of(current.sa, current.lane, ip, packet.bytes());
            }
            match current.prepare(ip, packet, jobs, left) {
                Ok(pending) => sealings[i] = InFlightEncryption::new(current.slot, ip.total_len, pending),
                Err(why) => self.gone_outbound(first + i, Some(current.sa), Some(ip), why),
            }
        }
    }
}

impl Last {
    /// The packet as one that was seen before by others; `None` when it cannot be read.
    fn read(packet: &[u8], slot: u32) -> Option<Self> {
        let ip = IpPacket::parse(packet).ok()?;
        Some(Self { key: ShortKey::of(&packet[..ip.total_len]), ip, slot, again: false })
    }
}

/// Where the packets of a batch are in their plan.
struct PlannedRun<'t, 'p> {
    rest: std::slice::Iter<'p, Planned>,
    /// Packets of the entry in hand that are still to come.
    left: usize,
    /// They stay in the clear.
    clear: bool,
    /// Their SA and numbers otherwise.
    current: Option<Burst<'t>>,
    last: Option<Last>,
    alike: Option<FlowState>,
}

impl<'t> PlannedRun<'t, '_> {
    /// How many of the next `most` packets are of one entry, which is then the current one. At
    /// least one.
    fn share(&mut self, tables: &'t Snapshot, planner: usize, most: usize) -> usize {
        if self.left == 0 {
            self.begin(tables, planner);
        }
        let share = self.left.clamp(1, most);
        self.left = self.left.saturating_sub(share);
        share
    }

    fn begin(&mut self, tables: &'t Snapshot, planner: usize) {
        if let Some(ended) = self.current.take() {
            ended.end();
        }
        self.clear = false;
        let Some(&Planned { slot, packets, first }) = self.rest.next() else { return };
        (self.left, self.clear) = (packets as usize, slot == Planned::CLEAR);
        if self.last.as_ref().is_some_and(|last| last.slot != slot) {
            (self.last, self.alike) = (None, None);
        }
        self.current = tables.outbound.get(slot as usize).map(|sa| {
            let mut run = Burst::new(sa, slot, planner);
            run.numbers = SeqRange { first, count: packets };
            run
        });
    }
}
