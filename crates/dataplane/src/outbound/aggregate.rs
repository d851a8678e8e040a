//! Packing of inner packets into AGGFRAG payloads (RFC 9347), between the two halves.
//!
//! Packets of SAs in AGGFRAG mode leave the batch, and payloads with their bytes are appended. All
//! payloads of an SA get consecutive sequence numbers in one reservation, so that no other core has
//! a number between the pieces of a cut packet. Nothing is kept for the next batch: a packet never
//! waits for others, and its pieces are all of one SA.

use std::ops::Range;
use std::sync::atomic::Ordering;

use ipsec::aggfrag::{Packer, Payloads, Settings};
use ipsec::{DropReason, OutboundSa, fragment_v4};
use wire::IpPacket;
use wire::aggfrag::BasicHeader;

use super::{Appended, OutboundPath, Planned, tell_sender};
use crate::pacing::{self, Writer};
use crate::{Batch, Packet};

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
    /// Marks packet `i` of the batch for packing into payloads of the SA in `slot`.
    #[inline]
    pub(super) fn aggregate(&mut self, i: usize, slot: u32) {
        self.own.aggregated.push((i, slot));
        self.shared.refuse(i);
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
        if aggregated.iter().any(|(_, slot)| *slot != aggregated[0].1) {
            // By SA, in their order of arrival.
            aggregated.sort_unstable_by_key(|&(i, slot)| (slot, i));
        }
        for packets in aggregated.chunk_by(|a, b| a.1 == b.1) {
            let slot = packets[0].1;
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
            for &(i, _) in packets {
                let packet = batch.swap_out(i, Packet::absent());
                let mut out = Appended { batch: &mut *batch, slots: &mut self.own.fragment_slots, slot };
                let packed = match packer.pack(packet.bytes(), &mut out) {
                    Err(DropReason::TooBig) => self.pack_oversized(&mut packer, &packet, (batch, slot), replies),
                    packed => packed,
                };
                batch.swap_out(i, packet);
                if let Err(why) = packed {
                    self.gone_outbound(i, Some(sa), None, why);
                }
            }
        }
        self.own.aggregated = aggregated;
    }

    /// Appends packets of the batch to the queue of an SA with a constant rate. Nothing else sends
    /// them: without the stream they are dropped.
    #[inline(never)] // as above
    fn queue_paced(
        &mut self,
        (sa, settings): (&OutboundSa, &Settings),
        packets: &[(usize, u32)],
        batch: &Batch,
        replies: &mut Batch,
    ) {
        let (tables, core) = (self.tables, self.shared.core());
        let stream = packets.first().and_then(|(_, slot)| tables.paced_stream(*slot));
        let mut queue = stream.and_then(|stream| stream.queue.writer(core));
        let usable = pacing::usable(sa, settings);
        let whole = sa.payload_len().saturating_sub(BasicHeader::LEN);
        for &(i, _) in packets {
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
