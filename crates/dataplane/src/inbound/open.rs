//! Second step of opening: cheap checks, and one engine call for a chunk.

use std::slice::{Iter, IterMut};

use std::sync::Arc;

use crypto::accelerator::Direction;
use crypto::{CryptoOp, IcvOk, Jobs, Keys};
use ipsec::{
    DropReason, InLayout, InOwn, InPacket, InResult, InboundSa, InnerFormat, OuterLayout, PendingIn, prepare_in_slow,
};
use wire::{IpPacket, SeqNo};

use super::find::{Arrivals, Arrived, OuterRun};
use super::{InboundPath, Refused};
use crate::outbound::chunk_for;
use crate::scheduler::Groups;
use crate::{Batch, Packet};

/// Packets that the engine has seen, in order: their SAs, and for each packet that has one, its
/// state and the proof.
#[derive(Default)]
pub(crate) struct Opened {
    runs: Vec<OpenedRun>,
    packets: Vec<OpenedPacket>,
}

/// Consecutive packets with one state.
#[derive(Clone, Copy)]
pub(super) struct OpenedRun {
    /// Slot of the SA, or [`Arrived::CLEAR`] or [`Arrived::GONE`].
    pub(super) slot: u32,
    pub(super) packets: u32,
    /// Format of the payloads; `None` if the packets must use the slow path.
    pub(super) format: Option<InnerFormat>,
    /// State of the packets, except for what is in [`InOwn`].
    pub(super) common: PendingIn,
}

/// State of a single packet: [`InOwn`] and the proof, in 16 bytes.
pub(super) struct OpenedPacket {
    seq: SeqNo,
    end: u32,
    outer_tos: u8,
    /// `None` if the ICV is wrong.
    pub(super) proof: Option<IcvOk>,
}
const _: () = assert!(size_of::<OpenedPacket>() == 16);

impl OpenedPacket {
    #[inline]
    fn new(InOwn { seq, end, outer_tos }: InOwn) -> Self {
        Self { seq, end, outer_tos, proof: None }
    }

    #[inline]
    pub(super) fn own(&self) -> InOwn {
        InOwn { seq: self.seq, end: self.end, outer_tos: self.outer_tos }
    }
}

impl Opened {
    /// Room for batches of `packets`.
    pub(crate) fn with_capacity(packets: usize) -> Self {
        Self { runs: Vec::with_capacity(packets), packets: Vec::with_capacity(packets) }
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.packets.clear();
    }

    /// Forgets dropped packets, which leave the batch.
    pub(super) fn retain_kept(&mut self) {
        self.runs.retain(|run| run.slot != Arrived::GONE);
    }

    /// Appends `packets` with the state of `layout`, if there are any; their own states are there.
    #[inline]
    fn push_run(&mut self, slot: u32, layout: &InLayout<'_>, packets: usize) {
        if packets > 0 {
            let (packets, format, common) = (packets as u32, layout.format(), *layout.common());
            self.runs.push(OpenedRun { slot, packets, format, common });
        }
    }

    /// Appends packets without an SA.
    fn push_without_sa(&mut self, slot: u32, packets: usize) {
        self.runs.push(OpenedRun { slot, packets: packets as u32, format: None, common: PendingIn::EMPTY });
    }

    /// Sets the result of the engine for the packet with state `i`.
    #[inline]
    pub(crate) fn set_proof(&mut self, i: usize, proof: Option<IcvOk>) {
        if let Some(packet) = self.packets.get_mut(i) {
            packet.proof = proof;
        }
    }

    /// The results, in order.
    pub(super) fn iter(&mut self) -> OpenedIter<'_> {
        const NONE: OpenedRun = OpenedRun { slot: Arrived::GONE, packets: 0, format: None, common: PendingIn::EMPTY };
        OpenedIter { runs: self.runs.iter(), current: &NONE, left: 0, packets: self.packets.iter_mut() }
    }
}

/// Results that are still to be used.
pub(super) struct OpenedIter<'o> {
    runs: Iter<'o, OpenedRun>,
    current: &'o OpenedRun,
    /// Packets of the current run that are still to come.
    left: usize,
    packets: IterMut<'o, OpenedPacket>,
}

impl<'o> OpenedIter<'o> {
    /// Returns the next run, how many of its packets follow, at most `most`, and their states if
    /// they have an SA. `None` if there are no results for further packets.
    #[inline]
    pub(super) fn next(&mut self, most: usize) -> Option<(&'o OpenedRun, usize, &'o mut [OpenedPacket])> {
        if self.left == 0 {
            self.current = self.runs.next()?;
            self.left = self.current.packets as usize;
        }
        let (run, share) = (self.current, self.left.min(most));
        self.left -= share;
        if run.slot == Arrived::CLEAR || run.slot == Arrived::GONE {
            return Some((run, share, &mut []));
        }
        let (ours, others) = std::mem::take(&mut self.packets).into_slice().split_at_mut_checked(share)?;
        self.packets = others.iter_mut();
        Some((run, share, ours))
    }
}

/// State from one chunk of a batch to the next.
pub(super) struct OpenRun<'t> {
    outer: OuterRun,
    current: Option<Current<'t>>,
}

/// An SA with an outer header, and what was prepared for them.
#[derive(Clone, Copy)]
struct Current<'t> {
    slot: u32,
    outer: OuterLayout,
    exact: bool,
    sa: &'t InboundSa,
    layout: Option<InLayout<'t>>,
}

impl<'t> OpenRun<'t> {
    pub(super) fn new() -> Self {
        Self { outer: OuterRun::new(), current: None }
    }

    /// Makes the SA and the outer header of `arrived` the current ones.
    #[inline]
    fn select(&mut self, sa: &'t InboundSa, arrived: &Arrived) -> &mut Current<'t> {
        let Arrived { slot, outer, exact, .. } = *arrived;
        if !self.current.as_ref().is_some_and(|current| current.is_of(arrived)) {
            self.current = None;
        }
        self.current.get_or_insert_with(|| {
            let layout = if exact { InLayout::of(sa, outer) } else { None };
            Current { slot, outer, exact, sa, layout }
        })
    }
}

impl Current<'_> {
    #[inline]
    fn is_of(&self, arrived: &Arrived) -> bool {
        (self.slot, self.outer, self.exact) == (arrived.slot, arrived.outer, arrived.exact)
    }

    /// [`Current::prepare`] with the parameter for the layout.
    #[inline]
    fn prepare_by<'p>(
        layout: &InLayout<'_>,
        fits: impl Fn(&[u8]) -> Option<(usize, u8)>,
        rest: &mut &'p mut [Packet],
        jobs: &mut Jobs<'p>,
        opened: &mut Vec<OpenedPacket>,
    ) -> (usize, Option<(DropReason, &'p Packet)>) {
        if layout.has_mac() {
            Self::prepare::<true>(layout, fits, rest, jobs, opened)
        } else {
            Self::prepare::<false>(layout, fits, rest, jobs, opened)
        }
    }

    /// [`Current::prepare`] for a single packet of an AEAD, as if most packets have another SA than
    /// the one before: reads each field of the template once, and keeps nothing for a next packet.
    /// Leaves a packet that does not fit in `rest`, and one that is to be dropped.
    #[inline(never)] // as below
    fn prepare_one<'p>(
        sa: &InboundSa,
        arrived: &Arrived,
        rest: &mut &'p mut [Packet],
        jobs: &mut Jobs<'p>,
        opened: &mut Opened,
    ) {
        let Some(layout) = InLayout::of(sa, arrived.outer).filter(|layout| !layout.has_mac()) else { return };
        let Some(bytes) = rest.first().map(Packet::bytes) else { return };
        let Some(outer_tos) = layout.fits(bytes) else { return };
        let Ok(numbers) = layout.check_as::<false>(bytes) else { return };
        let Some((packet, others)) = std::mem::take(rest).split_first_mut() else { return };
        *rest = others;
        let own = layout.prepare_as::<false>(packet.bytes_mut(), outer_tos, numbers, jobs);
        opened.packets.push(OpenedPacket::new(own));
        opened.push_run(arrived.slot, &layout, 1);
    }

    /// Prepares the packets that start `rest` as far as they fit the layout: `fits` returns the
    /// length of one that does, and the TOS of its outer header. Appends what the engine is to do.
    /// Returns their number, and the next one if it is to be dropped.
    #[inline(never)] // all registers are for this loop
    fn prepare<'p, const MAC: bool>(
        layout: &InLayout<'_>,
        fits: impl Fn(&[u8]) -> Option<(usize, u8)>,
        rest: &mut &'p mut [Packet],
        jobs: &mut Jobs<'p>,
        opened: &mut Vec<OpenedPacket>,
    ) -> (usize, Option<(DropReason, &'p Packet)>) {
        let (mut count, mut refused) = (0, None);
        // A copy that no store to a packet can change.
        let layout = *layout;
        // The jobs borrow the packet buffers beyond this call. Hence the slice is taken out of
        // `rest`, and its unread part is put back below.
        let mut packets = std::mem::take(rest).iter_mut();
        while let Some(packet) = packets.as_slice().first()
            && let Some((len, outer_tos)) = fits(packet.bytes())
            && (!MAC || layout.is_whole(len))
        {
            let checked = layout.check_as::<MAC>(packet.bytes());
            let Some(packet) = packets.next() else { break };
            // Bytes after the IP packet, such as Ethernet padding: the ICV is at its end.
            packet.truncate(len);
            match checked {
                Ok(numbers) => {
                    let own = layout.prepare_as::<MAC>(packet.bytes_mut(), outer_tos, numbers, jobs);
                    opened.push(OpenedPacket::new(own));
                }
                Err(why) => {
                    // The iterator is already past the dropped packet, so that the caller resumes
                    // after it.
                    refused = Some((why, &*packet));
                    break;
                }
            }
            count += 1;
        }
        *rest = packets.into_slice();
        (count, refused)
    }
}

impl<'t> InboundPath<'_, 't> {
    /// Verifies and decrypts one chunk, which starts at packet `first` of the batch, and appends
    /// the results to `opened`. Dropped packets are marked for removal. `behind` it are the packets
    /// that come next.
    pub(super) fn open_chunk(
        &mut self,
        first: usize,
        (packets, behind): (&mut [Packet], &[Packet]),
        run: &mut OpenRun<'t>,
        opened: &mut Opened,
    ) {
        let (tables, before) = (self.tables, opened.packets.len());
        let mut jobs = Jobs::new();
        self.prepare_chunk(first, (packets, behind), run, opened, &mut jobs);
        self.shared.engine().open(Keys { table: &tables.keys, derived: self.shared.derived() }, &mut jobs);
        // One job per state, in the same order.
        for (job, packet) in jobs.iter_mut().zip(&mut opened.packets[before..]) {
            packet.proof = job.take_ok();
        }
    }

    /// As [`InboundPath::open_chunk`] up to the engine. Packets with an operation move to a group;
    /// absent ones remain in their places.
    pub(super) fn submit_chunk(
        &mut self,
        first: usize,
        (packets, behind): (&mut [Packet], &[Packet]),
        run: &mut OpenRun<'t>,
        opened: &mut Opened,
        groups: &mut Groups,
    ) {
        let (tables, runs) = (self.tables, opened.runs.len());
        let mut jobs = Jobs::new();
        self.prepare_chunk(first, (&mut *packets, behind), run, opened, &mut jobs);
        if jobs.is_empty() {
            return;
        }
        let mut tasks = groups.begin(&jobs);
        drop(jobs);
        // One task per packet with an SA, in the same order.
        let (mut next, mut rest) = (tasks.iter_mut(), packets);
        for run in &opened.runs[runs..] {
            let Some((ours, others)) = rest.split_at_mut_checked(run.packets as usize) else { break };
            rest = others;
            if run.slot != Arrived::CLEAR && run.slot != Arrived::GONE {
                for (packet, task) in ours.iter_mut().zip(&mut next) {
                    task.packet.attach(std::mem::replace(packet, Packet::absent()));
                }
            }
        }
        groups.add((Direction::Open, &tables.keys), tasks, (self.shared.engine(), self.shared.derived()));
    }

    /// Prepares one chunk, and adds its operations to `jobs` and its states to `opened`, one of
    /// each per packet with an SA.
    #[inline]
    fn prepare_chunk<'p>(
        &mut self,
        first: usize,
        (packets, behind): (&'p mut [Packet], &[Packet]),
        run: &mut OpenRun<'t>,
        opened: &mut Opened,
        jobs: &mut Jobs<'p>,
    ) {
        let tables = self.tables;
        let end = first + packets.len();
        let mut rest = packets;
        self.continue_run(end, &mut rest, run, (&mut *jobs, &mut *opened));
        if !rest.is_empty() {
            let (mut arrivals, mut first) = (Arrivals::new(), end - rest.len());
            self.find_chunk(first, rest, &mut run.outer, &mut arrivals);
            for arrived in &arrivals {
                let count = usize::from(arrived.packets);
                let (ours, others) = rest.split_at_mut(count);
                rest = others;
                match tables.sad.get(arrived.slot) {
                    Some(sa) => self.open_run(first, (sa, arrived), ours, run, (&mut *jobs, &mut *opened)),
                    None => opened.push_without_sa(arrived.slot, count),
                }
                first += count;
            }
        }
        // Before the engine call, because its computation hides the memory latency of the buffers.
        if let Some(job) = jobs.last() {
            self.own.chunk = chunk_for(tables.keys.get(job.op.key), self.own.long_chunks);
        }
        behind.iter().take(self.own.chunk).for_each(Packet::prefetch_head);
    }

    /// Drops packets of the first half for which `decide` returns a reason; it is called with the
    /// slot and the SA of each packet that has one. Absent packets get new buffers.
    #[cold]
    pub(crate) fn discard(
        &mut self,
        batch: &mut Batch,
        opened: &mut Opened,
        is_removed: impl Fn(u32, &Arc<InboundSa>) -> bool,
    ) {
        let tables = self.tables;
        self.shared.start_batch(batch.len());
        // States up to `kept` remain; the next one to look at is `state`.
        let (mut first, mut state, mut kept) = (0, 0, 0);
        for run in &mut opened.runs {
            let range = first..first + run.packets as usize;
            first = range.end;
            let Some(sa) = tables.sad.get(run.slot) else { continue };
            let removed = is_removed(run.slot, sa).then_some(DropReason::NoSa);
            for i in range {
                let is_lost = batch.packets().get(i).is_some_and(Packet::is_absent);
                if let Some(why) = is_lost.then_some(DropReason::EngineGone).or(removed) {
                    self.shared.count_drop(why, Some(&sa.common));
                    self.shared.refuse(i);
                    run.packets -= 1;
                } else if state < opened.packets.len() {
                    opened.packets.swap(kept, state);
                    kept += 1;
                }
                state += 1;
            }
        }
        opened.packets.truncate(kept);
        opened.runs.retain(|run| run.packets > 0);
        batch.replace_absent(self.shared.config().packet_bytes);
        self.shared.retain_kept(batch);
    }

    /// Prepares the packets that start `rest`, of a chunk that ends before packet `end` of the
    /// batch, as far as they have the SA of the packet before: these need no look-up.
    #[inline]
    fn continue_run<'p>(
        &mut self,
        end: usize,
        rest: &mut &'p mut [Packet],
        run: &mut OpenRun<'t>,
        (jobs, opened): (&mut Jobs<'p>, &mut Opened),
    ) {
        let (Some((arrived, same)), Some(current)) = (run.outer.next(), &run.current) else { return };
        let Some(layout) = current.layout.as_ref().filter(|_| current.is_of(arrived)) else { return };
        // Once per chunk: packets that are like the previous one have no check of their own. The
        // look-up that follows finds the SA again, and the packets are dropped with the reason.
        if current.sa.common.check_lifetime().is_err() {
            return;
        }
        let (value, mask, least) = layout.head();
        let same = same.with(value, mask);
        let fits = |packet: &[u8]| same.next(packet).filter(|(len, _)| *len >= least);
        loop {
            let (count, refused) = Current::prepare_by(layout, fits, rest, jobs, &mut opened.packets);
            opened.push_run(arrived.slot, layout, count);
            let Some((why, packet)) = refused else { return };
            self.drop_prepared(end - rest.len() - 1, (current.sa, arrived), packet, why, opened);
        }
    }

    /// Prepares packets of one SA, which start at packet `first` of the batch.
    #[inline]
    fn open_run<'p>(
        &mut self,
        first: usize,
        (sa, arrived): (&'t InboundSa, &Arrived),
        packets: &'p mut [Packet],
        run: &mut OpenRun<'t>,
        (jobs, opened): (&mut Jobs<'p>, &mut Opened),
    ) {
        let mut rest = packets;
        // Once per chunk: packets that are like the previous one have no check of their own.
        if let Err(why) = sa.common.check_lifetime() {
            run.outer.stop();
            for (i, packet) in rest.iter().enumerate() {
                self.drop_prepared(first + i, (sa, arrived), packet, why, opened);
            }
            return;
        }
        if rest.len() == 1 && arrived.exact {
            Current::prepare_one(sa, arrived, &mut rest, jobs, opened);
            if rest.is_empty() {
                return;
            }
        }
        let current = run.select(sa, arrived);
        let end = first + rest.len();
        loop {
            if let Some(layout) = &current.layout {
                let fits = |packet: &[u8]| layout.fits(packet).map(|outer_tos| (packet.len(), outer_tos));
                let (count, refused) = Current::prepare_by(layout, fits, &mut rest, jobs, &mut opened.packets);
                opened.push_run(arrived.slot, layout, count);
                if let Some((why, packet)) = refused {
                    self.drop_prepared(end - rest.len() - 1, (sa, arrived), packet, why, opened);
                    continue;
                }
            }
            let i = end - rest.len();
            let Some((packet, others)) = std::mem::take(&mut rest).split_first_mut() else { return };
            rest = others;
            match self.prepare_any(current, packet, &mut opened.runs) {
                Ok((op, own, layout)) => {
                    if !rest.is_empty() {
                        // Others follow, which may be like it.
                        current.layout = layout;
                    }
                    jobs.add(&op, packet.bytes_mut());
                    opened.packets.push(OpenedPacket::new(own));
                }
                Err(why) => self.drop_prepared(i, (sa, arrived), packet, why, opened),
            }
        }
    }

    /// Prepares one packet of any kind.
    fn prepare_any(
        &mut self,
        current: &Current<'t>,
        packet: &mut Packet,
        runs: &mut Vec<OpenedRun>,
    ) -> Result<(CryptoOp, InOwn, Option<InLayout<'t>>), DropReason> {
        let Current { slot, outer: OuterLayout { at, .. }, sa, exact, .. } = *current;
        let outer = IpPacket::parse(packet.bytes())?;
        let (mut op, mut pending) = (CryptoOp::EMPTY, PendingIn::EMPTY);
        let mut frame = packet.frame();
        let result = InResult { op: &mut op, pending: &mut pending };
        let whole = InPacket { outer: &outer, at: at.into(), frame: &mut frame };
        let prepared = prepare_in_slow(sa, whole, self.shared.derived_mut(), result);
        let range = frame.range();
        packet.set_range(range);
        prepared?;
        let layout = if exact { InLayout::learn(sa, at, packet.bytes(), op.key, &pending) } else { None };
        let own = InOwn { seq: pending.seq, end: pending.payload.end, outer_tos: pending.outer_tos };
        runs.push(OpenedRun { slot, packets: 1, format: None, common: pending });
        Ok((op, own, layout))
    }

    /// Drops packet `i` of the batch, which did not pass the checks of its SA.
    #[cold]
    fn drop_prepared(
        &mut self,
        i: usize,
        (sa, arrived): (&InboundSa, &Arrived),
        packet: &Packet,
        why: DropReason,
        opened: &mut Opened,
    ) {
        let header = packet.bytes().get(usize::from(arrived.outer.at)..).unwrap_or(&[]);
        let (spi, outer) = (sa.protocol().spi(header), IpPacket::parse(packet.bytes()).ok());
        let Refused = self.gone_inbound(Some(sa), why, spi, outer.as_ref());
        self.shared.refuse(i);
        opened.push_without_sa(Arrived::GONE, 1);
    }
}
