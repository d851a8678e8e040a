//! Runs: consecutive packets of one SA.

use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use crypto::{CryptoOp, Job};
use ipsec::{DropReason, Frame, OutFlowTemplate, OutLane, OutLayout, OutboundSa, PendingOut, SeqRange};
use ipsec::{PutJob, PutOp, prepare_out_fast, prepare_out_slow};
use wire::{IpPacket, PlainFlow, SeqNo};

use super::{CHUNK, InFlightEncryption, InFlightEncryptions};
use crate::{Packet, Worker};

/// Appends the operation of a packet, which is lent to it afterwards.
struct Append<'j, 'p>(&'j mut ArrayVec<Job<'p>, CHUNK>);

impl<'p> PutJob<'p> for Append<'_, 'p> {
    #[inline(always)]
    fn put(self, op: CryptoOp, packet: &'p mut [u8]) {
        self.0.push(Job::new(op, packet));
    }
}

impl PutOp for Append<'_, '_> {
    #[inline(always)]
    fn put(self, op: CryptoOp) {
        self.0.push(Job::new(op, &mut []));
    }
}

/// The flow that the packets of a run are of, when its next packet can be told by its first bytes
/// and goes the usual way.
#[derive(Clone, Copy)]
pub(super) struct FlowState {
    flow: PlainFlow,
    next: OutFlowTemplate,
    /// What the last of its packets had in common with others.
    layout: Option<OutLayout>,
}

impl Worker {
    /// Whether the `lengths` of packets change so soon that each has to be looked at by itself, on
    /// the way out as on the way in.
    #[inline(always)]
    pub(crate) fn are_mixed<T: PartialEq>(lengths: impl Iterator<Item = T>) -> bool {
        const LOOKED_AT: usize = 4;
        let mut lengths = lengths.take(LOOKED_AT);
        let first = lengths.next();
        !lengths.all(|length| Some(length) == first)
    }
}

/// The length in an IPv4 header, its bytes as they come; 0 for a packet that has not even that.
#[inline(always)]
fn length(packet: &[u8]) -> u16 {
    packet.first_chunk().map_or(0, |&[_, _, high, low]| u16::from_le_bytes([high, low]))
}

impl FlowState {
    /// The flow of `packet`, whose headers were read into `ip`.
    pub(super) fn of(sa: &OutboundSa, lane: &OutLane, ip: &IpPacket, packet: &[u8]) -> Option<Self> {
        let packet = packet.get(..ip.total_len)?;
        Some(Self { next: OutFlowTemplate::of(sa, lane, ip, packet)?, flow: PlainFlow::of(packet)?, layout: None })
    }
}

/// Consecutive packets of one SA and the sequence numbers that were reserved for them.
pub(super) struct Burst<'t> {
    pub(super) sa: &'t OutboundSa,
    pub(super) lane: &'t OutLane,
    /// Its place among the lanes of the SA.
    lane_at: usize,
    pub(super) slot: u32,
    /// Largest packet that fits.
    pub(super) mtu: usize,
    /// Numbers not used yet.
    pub(super) numbers: SeqRange,
    /// Packets and bytes prepared, and not counted for the SA yet.
    packets: u64,
    bytes: u64,
    /// Packets of the SA have to go through `ipsec::finish_out`.
    pub(super) finish: bool,
}

impl<'t> Burst<'t> {
    pub(super) fn new(sa: &'t OutboundSa, slot: u32, core: usize) -> Self {
        let lane_at = sa.lane_of(core);
        Self {
            sa,
            lane: &sa.lanes[lane_at],
            lane_at,
            slot,
            mtu: sa.inner_mtu.load(Ordering::Relaxed) as usize,
            numbers: SeqRange { first: 0, count: 0 },
            packets: 0,
            bytes: 0,
            finish: ipsec::needs_finish(sa),
        }
    }

    /// Lays out the packets that start `rest` as far as they are of the flow `alike` and fit, and
    /// appends their operations. `count` packets are in the chunk. Returns the index of a packet
    /// that must not go on.
    pub(super) fn prepare_burst<'p>(
        &mut self,
        alike: &mut FlowState,
        rest: &mut &'p mut [Packet],
        count: usize,
        jobs: &mut ArrayVec<Job<'p>, CHUNK>,
        sealings: &mut InFlightEncryptions,
    ) -> Option<usize> {
        loop {
            let FlowState { flow, next, layout } = alike;
            let head = rest.first()?.bytes();
            if layout.is_none_or(|layout| layout.like.next(head).is_none()) {
                // A packet of another length.
                *layout = Some(next.layout(flow, flow.next(head)?, self.mtu)?);
            }
            // Why there are none the general way finds out.
            self.reserve(rest.len()).ok()?;
            let lengths = rest.iter().map(|packet| length(packet.bytes()));
            let (mixed, before) = (Worker::are_mixed(lengths), rest.len());
            let lost = match (mixed, alike.next.is_transport()) {
                (false, false) => self.lay_out::<false, false>(alike, rest, count, jobs, sealings),
                (false, true) => self.lay_out::<false, true>(alike, rest, count, jobs, sealings),
                (true, false) => self.lay_out::<true, false>(alike, rest, count, jobs, sealings),
                (true, true) => self.lay_out::<true, true>(alike, rest, count, jobs, sealings),
            };
            if lost.is_some() || rest.len() == before {
                return lost;
            }
        }
    }

    /// Those of them for which there are numbers, and which are of the shape of the first one, or
    /// with `MIXED` of any.
    #[inline(never)] // all registers are for this loop
    fn lay_out<'p, const MIXED: bool, const TRANSPORT: bool>(
        &mut self,
        FlowState { flow, next, layout }: &FlowState,
        rest: &mut &'p mut [Packet],
        count: usize,
        jobs: &mut ArrayVec<Job<'p>, CHUNK>,
        sealings: &mut InFlightEncryptions,
    ) -> Option<usize> {
        let known = layout.as_ref()?;
        let (first, most, slot, mtu) = (self.numbers.first, self.numbers.count as usize, self.slot, self.mtu);
        let begin = count - rest.len();
        let (mut used, mut bytes, mut lost) = (0, 0, None);
        let mut packets = std::mem::take(rest).iter_mut();
        while used < most
            && let Some(packet) = packets.as_slice().first()
            && let Some(head) = if MIXED { flow.next(packet.bytes()) } else { known.like.next(packet.bytes()) }
            && packet.has_room(OutFlowTemplate::MARGIN, head.total_len)
            && let Some(of_its_own) = if MIXED { next.layout(flow, head, mtu).map(Some) } else { Some(None) }
            && let Some(packet) = packets.next()
        {
            let layout = of_its_own.as_ref().unwrap_or(known);
            let (i, seq) = (begin + used, SeqNo(first + used as u64));
            used += 1;
            let Some((area, start, end)) = packet.with_margins(OutFlowTemplate::MARGIN, head.total_len) else {
                lost = Some(i);
                break;
            };
            let place = next.place::<TRANSPORT>(layout, *start);
            (*start, *end) = (place.start, place.end);
            if next.prepare::<TRANSPORT>(layout, seq, head, area, Append(&mut *jobs)).is_err() {
                lost = Some(i);
                break;
            }
            if MIXED {
                sealings[i % CHUNK] = InFlightEncryption::new(slot, head.total_len, PendingOut::default());
                bytes += head.total_len as u64;
            }
        }
        *rest = packets.into_slice();
        self.numbers = SeqRange { first: first + used as u64, count: (most - used) as u32 };
        let prepared = used - usize::from(lost.is_some());
        if !MIXED {
            let len = usize::from(known.like.total_len());
            if let Some(sealings) = sealings.get_mut(begin..begin + prepared) {
                sealings.fill(InFlightEncryption::new(slot, len, PendingOut::default()));
            }
            bytes = (prepared * len) as u64;
        }
        self.packets += prepared as u64;
        self.bytes += bytes;
        lost
    }

    /// Takes numbers for up to `most` packets, when there are none left.
    #[inline(always)]
    fn reserve(&mut self, most: usize) -> Result<(), DropReason> {
        if self.numbers.count > 0 {
            return Ok(());
        }
        let common = &self.sa.common;
        if common.is_limited() {
            self.count();
        }
        common.check_lifetime()?;
        let allowed = Some(common.packets_left(0)).filter(|n| *n > 0).ok_or(DropReason::Expired)?;
        self.numbers = self.lane.seq.reserve(allowed.min(most as u64) as u32)?;
        Ok(())
    }

    /// Lays out one packet and appends its operation to `jobs`. `left` packets of the chunk may
    /// follow, this one counted.
    ///
    /// Inlined at every call: a function of its own would be given all that is in registers through
    /// memory.
    #[inline(always)]
    pub(super) fn prepare<'p>(
        &mut self,
        ip: &IpPacket,
        packet: &'p mut Packet,
        jobs: &mut ArrayVec<Job<'p>, CHUNK>,
        left: usize,
    ) -> Result<PendingOut, DropReason> {
        self.reserve(left)?;
        let seq = SeqNo(self.numbers.first);
        self.numbers = SeqRange { first: seq.0 + 1, count: self.numbers.count - 1 };
        let (buffer, start, end) = packet.parts();
        let mut frame = Frame::new(buffer, *start as usize..*end as usize)?;
        let mut pending = PendingOut::default();
        if !prepare_out_fast(self.sa, self.lane, seq, ip, &mut frame, Append(&mut *jobs))? {
            // Written where it stays: a copy of what was only just written would wait for it.
            jobs.push(Job::new(CryptoOp::EMPTY, &mut []));
            let Some(job) = jobs.last_mut() else { return Err(DropReason::Inconsistent) };
            match prepare_out_slow(self.sa, self.lane, seq, ip, &mut frame, &mut job.op) {
                Ok(kept) => pending = kept,
                Err(why) => {
                    jobs.pop();
                    return Err(why);
                }
            }
        }
        let range = frame.range();
        (*start, *end) = (range.start as u32, range.end as u32);
        if let Some(job) = jobs.last_mut() {
            job.packet = frame.into_bytes();
        }
        self.packets += 1;
        self.bytes += ip.total_len as u64;
        Ok(pending)
    }

    /// Gives numbers that were not needed back and counts the packets that were prepared. Those
    /// which the engine then refuses are not counted in the end.
    pub(super) fn end(mut self) {
        self.lane.seq.give_back(self.numbers);
        self.count();
    }

    /// Counts the packets that were prepared for the SA.
    pub(super) fn count(&mut self) {
        if self.packets > 0 {
            self.sa.common.counters.add(self.lane_at, self.packets, self.bytes);
            (self.packets, self.bytes) = (0, 0);
        }
    }
}
