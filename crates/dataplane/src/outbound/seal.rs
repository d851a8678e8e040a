//! Second half of the outbound path: packets are laid out with the numbers that they were given,
//! and encrypted.

use std::ops::Range;
use std::slice::Iter;

use arrayvec::ArrayVec;
use crypto::accelerator::Direction;
use crypto::{CryptoOp, Engine, Jobs, Keys};
use ipsec::{
    DropReason, Frame, LaneTraffic, OutLane, OutLayout, OutPacket, OutStamp, OutTemplate, OutboundSa, PendingOut,
    prepare_out_slow,
};
use wire::{IpPacket, SeqNo};

use super::plan::bytes;
use super::{CHUNK_MAX, OutboundPath, Planned, chunk_for};
use crate::prefetch::{prefetch_at, prefetch_key};
use crate::scheduler::Groups;
use crate::{Batch, Packet, Snapshot};

/// Packets between the one that is laid out and the one with the SA that is prefetched.
const AHEAD: usize = 1;

/// In-flight encryption, packed into one word: slot of the SA, length of the plaintext packet, and
/// pending state.
#[derive(Clone, Copy)]
struct InFlightEncryption(u64);

impl InFlightEncryption {
    /// No packet.
    const NONE: Self = Self(u64::MAX);

    #[inline]
    fn new(slot: u32, len: usize, pending: PendingOut) -> Self {
        Self(u64::from(slot) | (len as u64 & 0xffff) << 32 | u64::from(pending.saved) << 48)
    }

    fn slot(self) -> u32 {
        self.0 as u32
    }

    fn len(self) -> u64 {
        self.0 >> 32 & 0xffff
    }

    fn pending(self) -> PendingOut {
        PendingOut { saved: (self.0 >> 48) as u16 }
    }
}

/// In-flight encryptions of a chunk, indexed by position.
type InFlightEncryptions = [InFlightEncryption; CHUNK_MAX];

/// State of an encryption that was submitted to an asynchronous engine.
#[derive(Clone, Copy)]
pub(crate) struct SubmittedSeal {
    sealing: InFlightEncryption,
    /// Index of the packet in its batch, once it has returned.
    pub(crate) at: u32,
    lane: u16,
    /// The packet has to go through `ipsec::finish_out`.
    finish: bool,
    /// Result of the engine.
    pub(crate) sealed: bool,
}
const _: () = assert!(size_of::<SubmittedSeal>() == 16);

/// Groups for an asynchronous engine, and the states of their packets in order.
pub(crate) struct Submitted<'g> {
    pub(crate) groups: &'g mut Groups,
    pub(crate) states: &'g mut Vec<SubmittedSeal>,
}

/// Where the packets of a batch are in their plan, and the SA of the current ones.
pub(super) struct SealRun<'t> {
    /// Packets of the current entry that are still to come, and number of the first of them.
    left: usize,
    first: u64,
    equal: bool,
    slot: u32,
    lane: u16,
    /// `None` for packets that stay as they are.
    current: Option<Current<'t>>,
    /// In-flight encryptions of the current chunk, and lanes of their numbers. Kept across the
    /// chunks of a batch, because clearing room for 64 packets for each short chunk is slow.
    sealings: InFlightEncryptions,
    lanes: [u16; CHUNK_MAX],
}

/// An SA, and what was prepared for it.
struct Current<'t> {
    sa: &'t OutboundSa,
    lane: &'t OutLane,
    /// Packets of the SA have to go through `ipsec::finish_out`.
    finish: bool,
    /// Of the last packet, and of all that were like it.
    layout: Option<OutLayout>,
    stamp: Option<OutStamp>,
}

impl<'t> SealRun<'t> {
    pub(super) fn new() -> Self {
        Self {
            left: 0,
            first: 0,
            equal: false,
            slot: u32::MAX,
            lane: 0,
            current: None,
            sealings: [InFlightEncryption::NONE; CHUNK_MAX],
            lanes: [0; CHUNK_MAX],
        }
    }

    /// Returns how many of the next `most` packets are of one entry of the plan, which is then the
    /// current one; 0 when the plan has no entry for them.
    #[inline]
    fn share(&mut self, tables: &'t Snapshot, plan: &mut Iter<'_, Planned>, most: usize) -> usize {
        if self.left == 0 {
            let Some(&Planned { slot, lane, packets, equal, first }) = plan.next() else { return 0 };
            (self.left, self.first, self.equal) = (packets.into(), first, equal);
            if (slot, lane) != (self.slot, self.lane) || self.current.is_none() {
                (self.slot, self.lane) = (slot, lane);
                match (&mut self.current, tables.outbound.get(slot as usize)) {
                    (Some(current), Some(sa)) => current.select(sa, lane.into()),
                    (current, sa) => *current = sa.map(|sa| Current::new(sa, lane.into())),
                }
            }
        }
        let share = self.left.min(most);
        self.left -= share;
        share
    }
}

impl<'t> Current<'t> {
    fn new(sa: &'t OutboundSa, lane: usize) -> Self {
        Self { sa, lane: &sa.lanes[lane], finish: ipsec::needs_finish(sa), layout: None, stamp: None }
    }

    /// Replaces the SA. In place, because a copy of layout and stamp takes longer than the rest.
    #[inline]
    fn select(&mut self, sa: &'t OutboundSa, lane: usize) {
        (self.sa, self.lane, self.finish) = (sa, &sa.lanes[lane], ipsec::needs_finish(sa));
        (self.layout, self.stamp) = (None, None);
    }
}

/// Packets that were laid out for one lane and are not counted yet. They are added at once, because
/// workers that share a lane need locked instructions.
pub(super) struct Tally<'t> {
    traffic: Option<&'t LaneTraffic>,
    packets: u64,
    bytes: u64,
    /// There is no other worker.
    alone: bool,
}

impl<'t> Tally<'t> {
    /// No packets, of the only worker or one of several.
    pub(super) fn new(alone: bool) -> Self {
        Self { traffic: None, packets: 0, bytes: 0, alone }
    }

    #[inline]
    fn add(&mut self, traffic: &'t LaneTraffic, packets: u64, bytes: u64) {
        if !self.traffic.is_some_and(|before| std::ptr::eq(before, traffic)) {
            self.count();
            self.traffic = Some(traffic);
        }
        (self.packets, self.bytes) = (self.packets + packets, self.bytes + bytes);
    }

    /// Counts the packets.
    fn count(&mut self) {
        if let Some(traffic) = self.traffic.take() {
            if self.alone {
                traffic.add_owned(self.packets, self.bytes);
            } else {
                traffic.add(self.packets, self.bytes);
            }
        }
        (self.packets, self.bytes) = (0, 0);
    }
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        self.count();
    }
}

/// Packets of one entry of the plan that are in one chunk.
struct Share<'p> {
    slot: u32,
    lane: u16,
    /// They have the same length, TOS and DF.
    equal: bool,
    /// Those that are still to be laid out, and number of the first of them.
    packets: &'p mut [Packet],
    number: u64,
    /// Where they end in the chunk.
    end: usize,
}

impl Share<'_> {
    /// Index of the next one within the chunk.
    #[inline]
    fn at(&self) -> usize {
        self.end - self.packets.len()
    }
}

impl<'t> OutboundPath<'_, 't> {
    /// Protects one chunk, which starts at packet `first` of the batch, in place; `behind` it are
    /// the packets that come next.
    pub(super) fn seal_chunk(
        &mut self,
        first: usize,
        (packets, behind): (&mut [Packet], &[Packet]),
        plan: &mut Iter<'_, Planned>,
        run: &mut SealRun<'t>,
    ) {
        let (tables, count) = (self.tables, packets.len());
        let mut jobs = Jobs::new();
        let finish = self.lay_out_chunk(first, (&mut *packets, behind), plan, run, &mut jobs);
        self.shared.engine().seal(Keys { table: &tables.keys, derived: self.shared.derived() }, &mut jobs);
        if finish || !jobs.iter().all(crypto::Job::sealed) {
            let sealed: ArrayVec<bool, CHUNK_MAX> = jobs.iter().map(crypto::Job::sealed).collect();
            drop(jobs);
            self.finish(first, packets, (&run.sealings[..count], &run.lanes[..count]), &sealed);
        }
    }

    /// As [`OutboundPath::seal_chunk`] up to the engine. Packets with an operation move to a group;
    /// absent ones remain in their places.
    pub(super) fn submit_chunk(
        &mut self,
        first: usize,
        (packets, behind): (&mut [Packet], &[Packet]),
        plan: &mut Iter<'_, Planned>,
        run: &mut SealRun<'t>,
        submitted: &mut Submitted<'_>,
    ) {
        let (tables, count) = (self.tables, packets.len());
        let mut jobs = Jobs::new();
        let finish = self.lay_out_chunk(first, (&mut *packets, behind), plan, run, &mut jobs);
        if jobs.is_empty() {
            return;
        }
        let mut tasks = submitted.groups.begin(&jobs);
        drop(jobs);
        let states = run.sealings[..count].iter().zip(&run.lanes).enumerate();
        let states = states.filter(|(_, (sealing, _))| sealing.0 != InFlightEncryption::NONE.0);
        for (task, (i, (sealing, lane))) in tasks.iter_mut().zip(states) {
            task.packet.attach(std::mem::replace(&mut packets[i], Packet::absent()));
            let (sealing, lane) = (*sealing, *lane);
            submitted.states.push(SubmittedSeal { sealing, at: u32::MAX, lane, finish, sealed: false });
        }
        submitted.groups.add((Direction::Seal, &tables.keys), tasks, (self.shared.engine(), self.shared.derived()));
    }

    /// Lays out one chunk, and adds its operations to `jobs`. Returns whether packets have to go
    /// through [`OutboundPath::finish`] even if all are sealed.
    #[inline]
    fn lay_out_chunk<'p>(
        &mut self,
        first: usize,
        (packets, behind): (&'p mut [Packet], &[Packet]),
        plan: &mut Iter<'_, Planned>,
        run: &mut SealRun<'t>,
        jobs: &mut Jobs<'p>,
    ) -> bool {
        let tables = self.tables;
        if tables.many_sas && plan.len() > 1 {
            prefetch_keys(tables, self.shared.engine(), &plan.as_slice()[..plan.len().min(packets.len())]);
        }
        let (mut finish, count) = (false, packets.len());
        run.sealings[..count].fill(InFlightEncryption::NONE);
        run.lanes[..count].fill(0);
        let mut rest = packets;
        while !rest.is_empty() {
            if run.left == 0 && plan.as_slice().first().is_some_and(|planned| planned.packets == 1) {
                finish |= self.lay_out_singles((first, count), &mut rest, plan, run, jobs);
                if rest.is_empty() {
                    break;
                }
            }
            let share = run.share(tables, plan, rest.len());
            if share == 0 {
                self.drop_unplanned(first + count - rest.len()..first + count);
                break;
            }
            let (ours, others) = rest.split_at_mut(share);
            rest = others;
            let end = count - rest.len();
            let Some(current) = &mut run.current else {
                if run.slot != Planned::CLEAR {
                    self.drop_unplanned(first + end - share..first + end);
                }
                continue;
            };
            if run.lane != 0 {
                run.lanes[end - share..end].fill(run.lane);
            }
            let mut share =
                Share { slot: run.slot, lane: run.lane, equal: run.equal, packets: ours, number: run.first, end };
            run.first += share.packets.len() as u64;
            finish |= current.finish;
            if !self.counts_numbers {
                self.count_share(current.sa, &share);
            }
            self.seal_share(first, current, &mut share, jobs, &mut run.sealings);
        }
        if let Some(last) = jobs.last() {
            self.own.chunk = chunk_for(tables.keys.get(last.op.key), self.own.long_chunks);
        }
        behind.iter().take(self.own.chunk).for_each(Packet::prefetch);
        finish
    }

    /// Lays out packets of entries of one packet each, of AEADs in tunnel mode, until one does not
    /// fit the template of its SA, and removes them from `packets`, the rest of a chunk of `count`.
    /// As if most packets have another SA than the one before: reads each field of a template once,
    /// and keeps nothing. Returns whether packets have to go through [`OutboundPath::finish`].
    #[inline(never)] // as below
    fn lay_out_singles<'p>(
        &mut self,
        (first, count): (usize, usize),
        packets: &mut &'p mut [Packet],
        plan: &mut Iter<'_, Planned>,
        run: &mut SealRun<'t>,
        jobs: &mut Jobs<'p>,
    ) -> bool {
        let (tables, mut finish) = (self.tables, false);
        while let [Planned { packets: 1, slot, lane: lane_at, first: number, .. }, ..] = *plan.as_slice()
            && let Some(sa) = tables.outbound.get(slot as usize)
            && let Some(template) = sa.template().filter(|template| !template.is_transport() && !template.has_mac())
            && let Some(packet) = packets.first().filter(|packet| packet.has_room(OutTemplate::MARGIN, packet.len()))
            && !sa.exceeds_path(packet.len())
            && let Some(lane) = sa.lanes.get(usize::from(lane_at))
            && let Some(layout) = template.single_layout(lane, packet.bytes())
            && let at = count - packets.len()
            && let Some((packet, rest)) = std::mem::take(packets).split_first_mut()
        {
            plan.next();
            *packets = rest;
            // Of many SAs this was requested before.
            if !tables.many_sas
                && let Some(ahead) =
                    plan.as_slice().get(AHEAD).and_then(|ahead| tables.outbound.get(ahead.slot as usize))
            {
                ahead.hot_lines().for_each(prefetch_at);
            }
            let len = packet.len();
            finish |= ipsec::needs_finish(sa);
            if !self.counts_numbers {
                self.tally.add(sa.traffic(lane_at.into()), 1, len as u64);
            }
            if lay_out::<false, false>(template, &layout, None, SeqNo(number), (packet, jobs)).is_err() {
                self.take_back(sa, lane_at, len as u64);
                self.gone_outbound(first + at, Some(sa), None, DropReason::Inconsistent);
                continue;
            }
            run.sealings[at % CHUNK_MAX] = InFlightEncryption::new(slot, len, PendingOut::default());
            run.lanes[at % CHUNK_MAX] = lane_at;
        }
        finish
    }

    /// Counts packets that are laid out next. Should be called once for each of them, and not if
    /// they were counted with their numbers.
    #[inline(never)] // with one worker it is not called
    fn count_share(&mut self, sa: &'t OutboundSa, share: &Share<'_>) {
        let bytes = bytes(share.packets, share.equal);
        self.tally.add(sa.traffic(share.lane.into()), share.packets.len() as u64, bytes);
    }

    /// Corrects the counters for a packet of `len` bytes with a number of a lane that is not sent.
    #[cold]
    fn take_back(&mut self, sa: &OutboundSa, lane: u16, len: u64) {
        // First; otherwise the counters of a new SA would wrap for a moment.
        self.tally.count();
        sa.traffic(lane.into()).take_back(1, len);
        if sa.common.is_limited() {
            sa.common.give_back(1, len);
        }
    }

    /// Drops packets of the batch without an SA that no policy bypasses, unless they were dropped
    /// before: nothing else may leave in the clear.
    #[cold]
    fn drop_unplanned(&mut self, range: Range<usize>) {
        for i in range {
            if self.shared.is_kept(i) {
                self.gone_outbound(i, None, None, DropReason::Inconsistent);
            }
        }
    }

    /// Lays out packets of one SA.
    #[inline]
    fn seal_share<'p>(
        &mut self,
        first: usize,
        current: &mut Current<'t>,
        share: &mut Share<'p>,
        jobs: &mut Jobs<'p>,
        sealings: &mut InFlightEncryptions,
    ) {
        loop {
            if let Some(template) = current.sa.template() {
                let laid_out = match (template.is_transport(), template.has_mac()) {
                    (false, false) => current.lay_out::<false, false>(template, share, jobs, sealings),
                    (false, true) => current.lay_out::<false, true>(template, share, jobs, sealings),
                    (true, false) => current.lay_out::<true, false>(template, share, jobs, sealings),
                    (true, true) => current.lay_out::<true, true>(template, share, jobs, sealings),
                };
                if let Err(len) = laid_out {
                    self.take_back(current.sa, share.lane, len as u64);
                    self.gone_outbound(first + share.at() - 1, Some(current.sa), None, DropReason::Inconsistent);
                    continue;
                }
            }
            if share.packets.is_empty() {
                return;
            }
            let (i, len) = (share.at(), share.packets[0].len());
            if let Err(why) = current.prepare(share, jobs, sealings) {
                self.take_back(current.sa, share.lane, len as u64);
                self.gone_outbound(first + i, Some(current.sa), None, why);
            }
        }
    }

    /// The part after the engine that only some packets need. The results of the engine for
    /// `sealings` are in `sealed`; they are counted already, in the lanes `lanes`.
    fn finish(
        &mut self,
        first: usize,
        packets: &mut [Packet],
        (sealings, lanes): (&[InFlightEncryption], &[u16]),
        sealed: &[bool],
    ) {
        let sealings = sealings.iter().enumerate().filter(|(_, sealing)| sealing.0 != InFlightEncryption::NONE.0);
        for ((i, sealing), sealed) in sealings.zip(sealed) {
            let sealed = if *sealed { Ok(()) } else { Err(DropReason::NoKey) };
            self.finish_packet(first + i, &mut packets[i], (*sealing, lanes[i]), sealed);
        }
    }

    /// The part after the engine for packet `i` of the batch.
    fn finish_packet(
        &mut self,
        i: usize,
        packet: &mut Packet,
        (sealing, lane): (InFlightEncryption, u16),
        sealed: Result<(), DropReason>,
    ) {
        let tables = self.tables;
        let sa = &tables.outbound[sealing.slot() as usize];
        let done = sealed.and_then(|()| {
            let mut frame = packet.frame();
            let done = ipsec::finish_out(sa, &mut frame, sealing.pending());
            let range = frame.range();
            packet.set_range(range);
            done
        });
        if let Err(why) = done {
            self.take_back(sa, lane, sealing.len());
            self.gone_outbound(i, Some(sa), None, why);
        }
    }

    /// The part of [`OutboundPath::seal_planned`] after the engine. `lost` packets of the batch are
    /// absent: they did not return from the engine. Afterwards `batch` holds what is to be sent, in
    /// order.
    pub(crate) fn finish_submitted(&mut self, batch: &mut Batch, states: &[SubmittedSeal], lost: usize) {
        self.shared.start_batch(batch.len());
        for state in states.iter().filter(|state| state.finish || !state.sealed) {
            let i = state.at as usize;
            let Some(packet) = batch.packets_mut().get_mut(i) else { continue };
            let sealed = match state.sealed {
                true => Ok(()),
                false if packet.is_absent() => Err(DropReason::EngineGone),
                false => Err(DropReason::NoKey),
            };
            self.finish_packet(i, packet, (state.sealing, state.lane), sealed);
        }
        if lost > 0 {
            batch.replace_absent(self.shared.config().packet_bytes);
        }
        self.shared.retain_kept(batch);
        self.shared.counters().outer_tx.bump(batch.len() as u64, batch.bytes());
    }
}

impl Current<'_> {
    /// Lays out packets that start `share` by the template of the SA, until one does not fit it.
    ///
    /// # Errors
    /// The last one, of so many bytes, must not go on.
    #[inline(never)] // all registers are for this loop
    fn lay_out<'p, const TRANSPORT: bool, const MAC: bool>(
        &mut self,
        template: &OutTemplate,
        share: &mut Share<'p>,
        jobs: &mut Jobs<'p>,
        sealings: &mut InFlightEncryptions,
    ) -> Result<(), usize> {
        let (begin, all, all_equal) = (share.at(), share.packets.len(), share.equal);
        let mut packets = std::mem::take(&mut share.packets).iter_mut();
        let (mut number, mut done) = (share.number, Ok(()));
        while done.is_ok()
            && let Some(packet) = packets.as_slice().first()
        {
            let (len, before) = (packet.len(), packets.len());
            if let Some(layout) = self.layout.as_ref().filter(|layout| layout.fits(packet.bytes())) {
                let stamp = &*self.stamp.get_or_insert_with(|| template.stamp(layout));
                while let Some(packet) = packets.as_slice().first()
                    && packet.has_room(OutTemplate::MARGIN, len)
                    && (all_equal || packets.len() == before || layout.fits(packet.bytes()))
                    && let Some(packet) = packets.next()
                {
                    done = lay_out::<TRANSPORT, MAC>(template, layout, Some(stamp), SeqNo(number), (packet, jobs))
                        .map_err(|_| len);
                    number += 1;
                    if done.is_err() {
                        break;
                    }
                }
            } else if !self.sa.exceeds_path(len)
                && let Some(layout) = template.layout(self.lane, packet.bytes())
                && packet.has_room(OutTemplate::MARGIN, len)
                && let Some(packet) = packets.next()
            {
                done =
                    lay_out::<TRANSPORT, MAC>(template, &layout, None, SeqNo(number), (packet, jobs)).map_err(|_| len);
                number += 1;
                if all > 1 {
                    (self.layout, self.stamp) = (Some(layout), None);
                }
            }
            let laid_out = before - packets.len();
            if laid_out == 0 {
                break;
            }
            let good = laid_out - usize::from(done.is_err());
            let from = begin + all - before;
            sealings[from..from + good].fill(InFlightEncryption::new(share.slot, len, PendingOut::default()));
        }
        (share.packets, share.number) = (packets.into_slice(), number);
        done
    }

    /// Lays out the first packet of `share` as its SA says, without a template.
    fn prepare<'p>(
        &mut self,
        share: &mut Share<'p>,
        jobs: &mut Jobs<'p>,
        sealings: &mut InFlightEncryptions,
    ) -> Result<(), DropReason> {
        let i = share.at();
        let Some((packet, rest)) = std::mem::take(&mut share.packets).split_first_mut() else { return Ok(()) };
        let seq = SeqNo(share.number);
        (share.packets, share.number) = (rest, share.number + 1);
        let len = packet.len();
        let ip = match self.sa.common.aggfrag() {
            Some(_) => ipsec::aggfrag::payload_header(&self.sa.common, len),
            None => IpPacket::parse(packet.bytes())?,
        };
        let (buffer, start, end) = packet.parts();
        let mut frame = Frame::new(buffer, *start as usize..*end as usize)?;
        // Written where it stays: a copy of what was only just written would wait for it.
        jobs.add(&CryptoOp::EMPTY, &mut []);
        let Some(job) = jobs.last_mut() else { return Err(DropReason::Inconsistent) };
        let packet = OutPacket { lane: self.lane, seq, ip: &ip, frame: &mut frame, op: &mut job.op };
        let pending = match prepare_out_slow(self.sa, packet) {
            Ok(pending) => pending,
            Err(why) => {
                jobs.pop();
                return Err(why);
            }
        };
        let range = frame.range();
        (*start, *end) = (range.start as u32, range.end as u32);
        job.packet = frame.into_bytes();
        sealings[i % CHUNK_MAX] = InFlightEncryption::new(share.slot, len, pending);
        Ok(())
    }
}

/// Prefetches the keys of the next packets: the engine needs them after all are laid out.
#[inline(never)] // with few SAs it is not called
fn prefetch_keys(tables: &Snapshot, engine: Engine, plan: &[Planned]) {
    for planned in plan {
        let sa = tables.outbound.get(planned.slot as usize);
        let lane = sa.and_then(|sa| sa.lanes.get(usize::from(planned.lane)));
        if let Some(key) = lane.and_then(|lane| tables.keys.get(lane.key)) {
            prefetch_key(key, engine);
        }
    }
}

/// Lays out one packet, which has room for it.
#[inline(always)] // as above
fn lay_out<'p, const TRANSPORT: bool, const MAC: bool>(
    template: &OutTemplate,
    layout: &OutLayout,
    stamp: Option<&OutStamp>,
    seq: SeqNo,
    (packet, jobs): (&'p mut Packet, &mut Jobs<'p>),
) -> Result<(), DropReason> {
    let len = packet.len();
    let (area, start, end) = packet.with_margins(OutTemplate::MARGIN, len).ok_or(DropReason::Inconsistent)?;
    let place = template.place::<TRANSPORT>(layout, *start);
    (*start, *end) = (place.start, place.end);
    template.prepare_as::<TRANSPORT, MAC>(layout, stamp, seq, area, jobs)
}
