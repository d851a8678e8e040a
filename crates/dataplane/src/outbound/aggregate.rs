//! Packing of inner packets into AGGFRAG payloads (RFC 9347), between the two halves.
//!
//! Packets of SAs in AGGFRAG mode leave the batch, and payloads with their bytes are appended. A
//! payload uses the buffer of the packet that it starts with, so that its bytes are not copied. All
//! payloads of an SA get consecutive sequence numbers in one reservation, so that no other core has
//! a number between the pieces of a cut packet. Nothing is kept for the next batch: a packet never
//! waits for others, and its pieces are all of one SA.

use std::ops::Range;
use std::sync::atomic::Ordering;

use ipsec::aggfrag::{Packer, Payloads, Rest, Settings};
use ipsec::{DropReason, OutboundSa, fragment_v4};
use wire::IpPacket;
use wire::aggfrag::BasicHeader;

use super::{Appended, OutboundPath, Planned, tell_sender};
use crate::pacing::{self, Writer};
use crate::{Batch, Packet};

/// Consecutive packets of a batch for one SA in AGGFRAG mode.
#[derive(Clone, Copy)]
pub(super) struct Aggregated {
    first: u32,
    end: u32,
    /// Slot of the SA.
    slot: u32,
}

impl Aggregated {
    fn range(self) -> Range<usize> {
        self.first as usize..self.end as usize
    }
}

impl Payloads for Appended<'_> {
    fn begin(&mut self, header: &[u8]) -> bool {
        self.push(header)
    }

    #[inline]
    fn append(&mut self, bytes: &[u8]) {
        let appended = self.batch.last_mut().is_some_and(|packet| packet.append(bytes));
        debug_assert!(appended, "payloads are limited to the size of a buffer");
    }
}

impl OutboundPath<'_, '_> {
    /// Marks packets of the batch for packing into payloads of the SA in `slot`.
    #[inline]
    pub(super) fn aggregate(&mut self, packets: Range<usize>, slot: u32) {
        let (first, end) = (packets.start as u32, packets.end as u32);
        match self.own.aggregated.last_mut().filter(|last| (last.slot, last.end) == (slot, first)) {
            Some(last) => last.end = end,
            None => self.own.aggregated.push(Aggregated { first, end, slot }),
        }
        self.shared.refuse_all(packets);
    }

    /// Appends the payloads of a batch and plans them. Returns their range in the batch.
    #[inline]
    pub(super) fn pack(&mut self, batch: &mut Batch, replies: &mut Batch) -> Range<usize> {
        let first = batch.len();
        if !self.own.aggregated.is_empty() {
            self.pack_aggregated(batch, replies);
            self.shared.extend_batch(batch.len());
            self.plan_payloads(batch, first);
        }
        first..batch.len()
    }

    #[inline(never)] // leaves the registers to packets of other SAs
    fn pack_aggregated(&mut self, batch: &mut Batch, replies: &mut Batch) {
        let tables = self.tables;
        let mut aggregated = std::mem::take(&mut self.own.aggregated);
        if aggregated.iter().any(|packets| packets.slot != aggregated[0].slot) {
            // By SA, in their order of arrival.
            aggregated.sort_unstable_by_key(|packets| (packets.slot, packets.first));
        }
        for packets in aggregated.chunk_by(|a, b| a.slot == b.slot) {
            let slot = packets[0].slot;
            let Some((sa, settings)) =
                tables.outbound.get(slot as usize).and_then(|sa| Some((sa, sa.common.aggfrag()?)))
            else {
                continue;
            };
            if settings.rate_kbps > 0 {
                self.queue_paced((sa, settings), packets, batch, replies);
                continue;
            }
            // A payload must fit a buffer, too.
            let room = (sa.inner_mtu.load(Ordering::Relaxed) as usize).min(self.shared.config().packet_bytes);
            let mut packer = Packer::new(room, settings);
            for packets in packets {
                let mut rest = packets.range();
                loop {
                    let joined = batch.join(rest.clone(), |len| packer.takes(len));
                    rest.start += joined.unwrap_or_else(|before| before);
                    let Some(i) = rest.next() else { break };
                    let packed = if joined.is_ok() {
                        self.pack_one(&mut packer, (i, slot), batch, replies)
                    } else {
                        // The packer counts bytes that the payload does not contain.
                        packer.give_up_payload();
                        Err(DropReason::NoRoom)
                    };
                    if let Err(why) = packed {
                        self.gone_outbound(i, Some(sa), None, why);
                    }
                }
            }
        }
        self.own.aggregated = aggregated;
    }

    /// Packs packet `i` of the batch, which does not fit the last payload.
    fn pack_one(
        &mut self,
        packer: &mut Packer,
        (i, slot): (usize, u32),
        batch: &mut Batch,
        replies: &mut Batch,
    ) -> Result<(), DropReason> {
        let mut packet = batch.swap_out(i, Packet::absent());
        let mut out = Appended { batch: &mut *batch, slots: &mut self.own.fragment_slots, slot };
        let (mut own, mut begun, mut packed) = (false, true, Ok(()));
        match packer.pack_but_rest(packet.bytes(), &mut out) {
            Ok(None) => {}
            Ok(Some(Rest { from, header })) => {
                own = packet.begin_payload(from, &header, packer.payload_len());
                if !own {
                    begun = out.push(&header);
                    if begun {
                        out.append(&packet.bytes()[from..]);
                    }
                }
            }
            Err(DropReason::TooBig) => packed = self.pack_oversized(packer, &packet, (&mut *batch, slot), replies),
            Err(why) => packed = Err(why),
        }
        batch.swap_out(i, packet);
        if own {
            let slots = &mut self.own.fragment_slots;
            // The vector must not grow: the packet path allocates nothing.
            begun = slots.len() < slots.capacity() && batch.move_to_end(i);
            if begun {
                slots.push(slot);
            }
        }
        if !begun {
            packer.give_up_payload();
            packed = Err(DropReason::QueueFull);
        }
        packed
    }

    /// Appends packets of the batch to the queue of an SA with a constant rate. Nothing else sends
    /// them: without the stream they are dropped.
    #[inline(never)] // as above
    fn queue_paced(
        &mut self,
        (sa, settings): (&OutboundSa, &Settings),
        packets: &[Aggregated],
        batch: &Batch,
        replies: &mut Batch,
    ) {
        let (tables, core) = (self.tables, self.shared.core());
        let stream = packets.first().and_then(|packets| tables.paced_stream(packets.slot));
        let mut queue = stream.and_then(|stream| stream.queue.writer(core));
        let usable = pacing::usable(sa, settings);
        let whole = sa.payload_len().saturating_sub(BasicHeader::LEN);
        for i in packets.iter().copied().flat_map(Aggregated::range) {
            let packet = &batch.packets()[i];
            let queued = usable.and_then(|()| match &mut queue {
                None => Err(DropReason::Inconsistent),
                Some(queue) if settings.dont_fragment && packet.len() > whole => {
                    queue_oversized(queue, packet, whole, &mut self.own.fragment, replies)
                }
                Some(queue) => queue.push(packet.bytes()),
            });
            if let Err(why) = queued {
                self.gone_outbound(i, Some(sa), None, why);
            }
        }
    }

    /// Packs the fragments of a packet that must not be cut by AGGFRAG, all or none, or reports the
    /// largest length to its sender.
    #[cold]
    fn pack_oversized(
        &mut self,
        packer: &mut Packer,
        packet: &Packet,
        (batch, slot): (&mut Batch, u32),
        replies: &mut Batch,
    ) -> Result<(), DropReason> {
        let (ip, mtu) = (IpPacket::parse(packet.bytes())?, packer.whole_len());
        if ip.dont_fragment || mtu == 0 {
            tell_sender(&ip, packet, mtu, replies);
            return Err(DropReason::TooBig);
        }
        let (slots, piece) = (&mut self.own.fragment_slots, &mut self.own.fragment);
        let mut out = Appended { batch, slots, slot };
        let (before, mut packed) = ((out.mark(), *packer), Ok(()));
        fragment_v4(&ip, packet.bytes(), mtu, piece, &mut |fragment| {
            packed = packed.and_then(|()| packer.pack(fragment, &mut out));
        })?;
        if packed.is_err() {
            // The receiver cannot use an incomplete set. Each fragment but the last fills a
            // payload, so that none went into one that was there before.
            out.take_back(before.0);
            *packer = before.1;
        }
        packed
    }

    /// Reserves the numbers of payloads, which are the packets of `batch` from `first` on.
    pub(super) fn plan_payloads(&mut self, batch: &Batch, first: usize) {
        let tables = self.tables;
        let (mut plan, slots) =
            (std::mem::take(&mut self.own.payload_plan), std::mem::take(&mut self.own.fragment_slots));
        plan.clear();
        // Fragments of packets of other SAs come before them.
        let own = &slots[slots.len() - (batch.len() - first)..];
        let mut at = first;
        for run in own.chunk_by(|a, b| a == b) {
            let packets = &batch.packets()[at..at + run.len()];
            if let Some(sa) = tables.outbound.get(run[0] as usize) {
                let put = |entry, count| extend(&mut plan, entry, count);
                self.number_packets(sa, (run[0], false), (at, packets), put);
            }
            at += run.len();
        }
        (self.own.payload_plan, self.own.fragment_slots) = (plan, slots);
    }
}

/// Queues the fragments of a packet that must not be cut by AGGFRAG, all or none, or reports the
/// largest length to its sender.
#[cold]
fn queue_oversized(
    queue: &mut Writer<'_>,
    packet: &Packet,
    mtu: usize,
    piece: &mut [u8],
    replies: &mut Batch,
) -> Result<(), DropReason> {
    let ip = IpPacket::parse(packet.bytes())?;
    if ip.dont_fragment || mtu == 0 {
        tell_sender(&ip, packet, mtu, replies);
        return Err(DropReason::TooBig);
    }
    // The receiver cannot use an incomplete set.
    let mut bytes = 0;
    fragment_v4(&ip, packet.bytes(), mtu, piece, &mut |fragment| bytes += fragment.len())?;
    queue.reserve(bytes)?;
    let mut queued = Ok(());
    let made = fragment_v4(&ip, packet.bytes(), mtu, piece, &mut |fragment| {
        queued = queued.and(queue.push_reserved(fragment));
    });
    made.and(queued)
}

/// Appends entries like `entry` for `count` packets, of which one entry has at most 255.
fn extend(plan: &mut Vec<Planned>, entry: Planned, count: usize) {
    let most = usize::from(u8::MAX);
    plan.extend((0..count).step_by(most).map(|done| Planned {
        packets: (count - done).min(most) as u8,
        first: entry.first + done as u64,
        ..entry
    }));
}
