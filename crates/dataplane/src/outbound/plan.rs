//! First half of the outbound path: which SA protects each packet, and with which number.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use ipsec::aggfrag::MAX_INNER;
use ipsec::{Action, DropReason, OutboundSa, SearchStep, SeqRange};
use wire::{FlowKey, IpPacket, IpProto, PlainFlow, PlainHeader, PlainTemplate};

use super::{CHUNK_MAX, OutboundPath};
use crate::cache::Located;
use crate::counters::bump;
use crate::prefetch::{prefetch_at, prefetch_line};
use crate::{Acquire, Packet, Snapshot};

/// Consecutive packets of a batch that have one way to go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    /// Slot of their SA, or [`Planned::CLEAR`] or [`Planned::GONE`].
    pub(super) slot: u32,
    /// Lane of the SA whose number it is. Part of the plan, because a second look-up could find
    /// another one, and its numbers would then be used twice.
    pub(super) lane: u16,
    pub(super) packets: u8,
    /// They have the same length, TOS and DF.
    pub(super) equal: bool,
    /// Number of the first of them.
    pub(super) first: u64,
}
const _: () = assert!(size_of::<Planned>() == 16 && CHUNK_MAX <= u8::MAX as usize);

impl Planned {
    /// For packets that a policy bypasses: the only ones that may leave in the clear.
    pub(super) const CLEAR: u32 = u32::MAX;
    /// For packets that were dropped or are held, as long as they are in the batch.
    pub(super) const GONE: u32 = u32::MAX - 1;

    pub(crate) fn is_gone(&self) -> bool {
        self.slot == Self::GONE
    }
}

/// The plan of a chunk. It has at most one entry for each packet.
pub(super) type ChunkPlan = ArrayVec<Planned, CHUNK_MAX>;

/// What a look-up of several packets found.
struct Found {
    /// They have the same length, TOS and DF.
    equal: bool,
    /// The same holds for the SA, and they fit through it.
    one_sa: bool,
}

/// What goes from one chunk of a batch to the next: packets of one flow come in runs, and what was
/// found for one holds for the next.
pub(super) struct FlowRun {
    /// The flow of the packet before; [`PlainFlow::NONE`] when it does not tell where the next one
    /// goes.
    flow: PlainFlow,
    /// Packets like the last one.
    like: PlainTemplate,
    slot: u32,
    /// Largest packet in bytes that fits through the SA; 0 without one. In AGGFRAG mode any fits.
    mtu: usize,
    /// Packets of the batch from here on are fragments, whose SA is known.
    arrived: usize,
}

impl FlowRun {
    pub(super) fn new(arrived: usize) -> Self {
        Self { flow: PlainFlow::NONE, like: PlainTemplate::NONE, slot: Planned::GONE, mtu: 0, arrived }
    }

    /// The bytes of `packet`, if it is the next one of the flow and fits through the SA.
    fn next(&mut self, packet: &[u8]) -> Option<usize> {
        let head = self.flow.next(packet).filter(|head| head.total_len <= self.mtu)?;
        self.like = self.flow.like(head);
        Some(head.total_len)
    }

    fn set_sa(&mut self, tables: &Snapshot, slot: u32) {
        self.slot = slot;
        let sa = tables.outbound.get(slot as usize);
        self.mtu = sa.map_or(0, |sa| mtu(sa));
    }
}

impl OutboundPath<'_, '_> {
    /// Finds out where each packet of a chunk goes, which starts at packet `first` of the batch,
    /// and reserves its number. Packets that an SA protects are cut to what their headers say.
    pub(super) fn plan_chunk(&mut self, first: usize, packets: &mut [Packet], run: &mut FlowRun, plan: &mut ChunkPlan) {
        plan.clear();
        let (mut same, mut equal) = (0, true);
        loop {
            // In registers while packets are like the one before.
            let like = run.like;
            same += packets[same..].iter().take_while(|packet| like.is_of(packet.bytes())).count();
            let Some(packet) = packets.get_mut(same) else { break };
            if let Some(len) = run.next(packet.bytes()) {
                packet.truncate(len);
                (same, equal) = (same + 1, false);
            } else if same > 0 || !self.begin_run(first, packets, run) {
                break;
            }
        }
        let mut slot = run.slot;
        if same < packets.len() {
            let mut slots = [Planned::GONE; CHUNK_MAX];
            let slots = &mut slots[..packets.len()];
            slots[..same].fill(slot);
            let found = self.look_up_chunk(first + same, &mut packets[same..], run, &mut slots[same..]);
            if !found.one_sa || same > 0 {
                return self.number_runs(first, packets, (slots, found.equal && same == 0), plan);
            }
            (slot, equal) = (slots[0], true);
        }
        self.number((slot, equal), first, packets, plan);
    }

    /// Numbers packets, which start at packet `first` of the batch and have these slots, run by run
    /// of one slot. They may all be of one length, TOS and DF.
    fn number_runs(&mut self, first: usize, packets: &[Packet], (slots, equal): (&[u32], bool), plan: &mut ChunkPlan) {
        let mut begin = 0;
        for run in slots.chunk_by(|a, b| a == b) {
            let end = begin + run.len();
            self.number((run[0], equal), first + begin, &packets[begin..end], plan);
            begin = end;
        }
    }

    /// Looks up the first packet by itself if the second is of its flow: a run of packets of one
    /// flow needs no look-up of the others. Returns whether a run begins.
    #[inline(never)] // as below
    fn begin_run(&mut self, first: usize, packets: &mut [Packet], run: &mut FlowRun) -> bool {
        let tables = self.tables;
        let [packet, second, ..] = packets else { return false };
        let Some((flow, head)) = PlainFlow::read(packet.bytes()).filter(|_| first < run.arrived) else { return false };
        if flow.next(second.bytes()).is_none() {
            return false;
        }
        self.own.flows.renew(tables.generation);
        let located = self.own.flows.locate(flow);
        let mut slots = [Planned::GONE];
        self.known_slots([located].into_iter(), &mut slots);
        let [slot] = slots;
        if slot == Planned::GONE {
            return false;
        }
        run.set_sa(tables, slot);
        if head.total_len > run.mtu {
            // Of the flow before, which has another SA: the packets are looked up next, which sets
            // it again.
            run.flow = PlainFlow::NONE;
            return false;
        }
        packet.truncate(head.total_len);
        (run.flow, run.like) = (flow, flow.like(head));
        true
    }

    /// Looks up the flows of packets, which start at packet `first` of the batch. All are located
    /// before the first is read, so that their cache lines arrive at the same time.
    #[inline(never)] // leaves the registers to the packets of one flow
    fn look_up_chunk(&mut self, first: usize, packets: &mut [Packet], run: &mut FlowRun, slots: &mut [u32]) -> Found {
        let tables = self.tables;
        self.own.flows.renew(tables.generation);
        run.like = PlainTemplate::NONE;
        let mut places: ArrayVec<(Located, u16), CHUNK_MAX> = ArrayVec::new();
        let (flows, arrived) = (self.own.flows.locator(), first < run.arrived);
        // The first packet, and bits in which others differ from it.
        let one = packets.first().and_then(|packet| PlainHeader::read(packet.bytes()));
        let (one, mut differ) = one.map_or((PlainHeader::NONE, u64::MAX), |one| (one, 0));
        for packet in &*packets {
            let Some((flow, head)) = PlainFlow::read(packet.bytes()).filter(|_| arrived) else {
                differ = u64::MAX;
                places.push((Located::NONE, 0));
                continue;
            };
            differ |= head.differs_from(one) | (packet.len() ^ head.total_len) as u64;
            places.push((flows.locate(flow), head.total_len as u16));
        }
        self.known_slots(places.iter().map(|(located, _)| *located), slots);
        if tables.many_sas {
            slots.iter().filter_map(|slot| tables.outbound.get(*slot as usize)).for_each(prefetch_line);
            if slots.contains(&Planned::GONE) {
                self.decide_chunk(packets, &places, slots);
            }
        }
        let (slot, equal) = (slots[0], differ == 0);
        if equal && slot != Planned::GONE && slots.iter().fold(0, |differ, other| differ | (slot ^ other)) == 0 {
            if slot != run.slot {
                run.set_sa(tables, slot);
            }
            if one.total_len <= run.mtu {
                run.flow = packets.last().and_then(|packet| PlainFlow::of(packet.bytes())).unwrap_or(PlainFlow::NONE);
                return Found { equal, one_sa: true };
            }
        }
        self.look_up_each(first, packets, run, (&places, slots));
        Found { equal, one_sa: false }
    }

    /// The rest of [`OutboundPath::look_up_chunk`] for packets that do not all go through one SA,
    /// or are not all of one length.
    fn look_up_each(
        &mut self,
        first: usize,
        packets: &mut [Packet],
        run: &mut FlowRun,
        (places, slots): (&[(Located, u16)], &mut [u32]),
    ) {
        let tables = self.tables;
        if tables.many_sas {
            self.prefetch_sas(slots);
        }
        let mut known = None;
        for (i, ((_, total_len), packet)) in places.iter().zip(&mut *packets).enumerate() {
            let (slot, total_len) = (&mut slots[i], usize::from(*total_len));
            if *slot != run.slot {
                run.set_sa(tables, *slot);
            }
            if *slot != Planned::GONE && total_len <= run.mtu {
                packet.truncate(total_len);
                known = Some(i);
                continue;
            }
            known = None;
            *slot = self.classify(first + i, run.arrived, packet);
            run.set_sa(tables, *slot);
            let flow = PlainFlow::of(packet.bytes()).filter(|_| first < run.arrived && run.mtu > 0);
            run.flow = flow.unwrap_or(PlainFlow::NONE);
        }
        if let Some(flow) = known.and_then(|last| PlainFlow::of(packets.get(last)?.bytes())) {
            run.flow = flow;
        }
    }

    /// Prefetches what the next steps read of the SAs in `slots`: all of it arrives at the same
    /// time.
    #[inline]
    fn prefetch_sas(&self, slots: &[u32]) {
        let tables = self.tables;
        let sas = || slots.iter().filter_map(|slot| tables.outbound.get(*slot as usize));
        sas().for_each(|sa| sa.hot_lines().for_each(prefetch_at));
        for sa in sas() {
            prefetch_line(&sa.lanes[sa.lane_of(self.shared.core())]);
            prefetch_at(tables.keys.slot_address(sa.first_key()));
        }
    }

    /// Asks the SPD about flows of a chunk that are not in the flow cache, all at once. Of many SAs
    /// most have no entry there.
    #[inline(never)] // with few SAs it is not called
    fn decide_chunk(&mut self, packets: &[Packet], places: &[(Located, u16)], slots: &mut [u32]) {
        let tables = self.tables;
        let mut keys: ArrayVec<Option<FlowKey>, CHUNK_MAX> = ArrayVec::new();
        for ((packet, (located, total_len)), slot) in packets.iter().zip(places).zip(&*slots) {
            let unknown = *slot == Planned::GONE && located.is_some();
            let packet = packet.bytes().get(..usize::from(*total_len)).filter(|_| unknown);
            keys.push(packet.and_then(|packet| Some(FlowKey::of(&IpPacket::parse(packet).ok()?, packet))));
        }
        for step in [SearchStep::Host, SearchStep::List, SearchStep::Row] {
            for key in keys.iter().flatten() {
                let address = tables.spd.outbound_address(key, step);
                prefetch_at(address);
                if step == SearchStep::Row {
                    prefetch_at(address.wrapping_add(64));
                }
            }
        }
        for (i, key) in keys.iter().enumerate() {
            let (Some(_), Some(packet)) = (key, packets[i].bytes().get(..usize::from(places[i].1))) else { continue };
            let search = |key: &FlowKey| tables.spd.outbound(key).map(|(_, action)| action);
            if let Ok(Some(Action::Protect { outbound, .. })) = self.own.flows.decide(tables.generation, packet, search)
            {
                slots[i] = self.usable_slot(outbound);
                if let Some(sa) = tables.outbound.get(slots[i] as usize) {
                    prefetch_line(sa);
                }
            }
        }
    }

    /// Writes the slots of the SAs that protect packets of some flows, where these are in the flow
    /// cache and nothing is to be done besides; otherwise [`Planned::GONE`].
    #[inline]
    fn known_slots(&mut self, flows: impl Iterator<Item = Located>, slots: &mut [u32]) {
        self.own.flows.known_slots(flows, Planned::GONE, slots);
        if !self.tables.has_direct_slots() {
            let known = slots.iter_mut().filter(|slot| **slot != Planned::GONE);
            known.for_each(|slot| *slot = self.usable_slot(*slot));
        }
    }

    /// The slot that this core uses for a policy with the SA in `outbound`, if nothing is to be
    /// done besides; otherwise [`Planned::GONE`].
    #[inline]
    fn usable_slot(&self, outbound: u32) -> u32 {
        let tables = self.tables;
        match tables.on_core(outbound, self.shared.core()) {
            (slot, None) if tables.hold_trap(slot, self.own.hold.awaits_peer_traffic()).is_none() => slot,
            _ => Planned::GONE,
        }
    }

    /// Reads packet `i` of the batch and finds the slot of the SA that protects it; otherwise it
    /// has been dealt with.
    fn classify(&mut self, i: usize, arrived: usize, packet: &mut Packet) -> u32 {
        let tables = self.tables;
        let ip = match IpPacket::parse(packet.bytes()) {
            Ok(ip) => ip,
            Err(fault) => {
                self.gone_outbound(i, None, None, fault.into());
                return Planned::GONE;
            }
        };
        let slot = match i.checked_sub(arrived) {
            // A fragment's SA was found by the packet that it was cut from.
            Some(fragment) => self.own.fragment_slots.get(fragment).copied().unwrap_or_else(|| {
                self.gone_outbound(i, None, Some(&ip), DropReason::Inconsistent);
                Planned::GONE
            }),
            None => self.find_sa(i, &ip, packet),
        };
        if slot == Planned::CLEAR || slot == Planned::GONE {
            return slot;
        }
        let Some(sa) = tables.outbound.get(slot as usize) else {
            self.gone_outbound(i, None, Some(&ip), DropReason::NoSa);
            return Planned::GONE;
        };
        if ip.total_len > mtu(sa) {
            if i < arrived {
                self.own.oversized.push((i, slot));
                self.shared.refuse(i);
                return Planned::GONE;
            }
            if !sa.may_exceed_path(&ip) {
                // The path became narrower since this fragment was cut.
                self.gone_outbound(i, Some(sa), Some(&ip), DropReason::TooBig);
                return Planned::GONE;
            }
        }
        packet.truncate(ip.total_len);
        slot
    }

    /// The slot of the SA that protects packet `i`; otherwise it has been dealt with.
    fn find_sa(&mut self, i: usize, ip: &IpPacket, packet: &Packet) -> u32 {
        let tables = self.tables;
        let search = |key: &FlowKey| tables.spd.outbound(key).map(|(_, action)| action);
        let decision = self.own.flows.decide(tables.generation, &packet.bytes()[..ip.total_len], search);
        match decision.unwrap_or(None) {
            Some(Action::Protect { outbound, .. }) => {
                let (slot, trap) = tables.on_core(outbound, self.shared.core());
                if let Some(trap) = trap {
                    self.request_own_sa(trap, ip, packet.bytes());
                }
                if let Some(trap) = tables.hold_trap(slot, self.own.hold.awaits_peer_traffic())
                    && self.hold_for_peer(trap, ip, packet.bytes())
                {
                    self.shared.refuse(i);
                    return Planned::GONE;
                }
                return slot;
            }
            Some(Action::Trap(trap)) => match self.trapped(trap, ip, packet.bytes()) {
                Ok(()) => self.shared.refuse(i),
                Err(why) => self.gone_outbound(i, None, Some(ip), why),
            },
            Some(Action::Bypass) => {
                bump(&self.shared.counters().bypassed, 1);
                return Planned::CLEAR;
            }
            Some(Action::Drop) => self.gone_outbound(i, None, Some(ip), DropReason::PolicyDrop),
            None => self.gone_outbound(i, None, Some(ip), without_policy(ip)),
        }
        Planned::GONE
    }

    /// Holds packet `bytes`, which matched a trap, and requests an SA.
    #[cold]
    fn trapped(&mut self, trap: u32, ip: &IpPacket, bytes: &[u8]) -> Result<(), DropReason> {
        let (hold, now_ms) = (&mut self.own.hold, self.shared.now_ms());
        let held = hold.keep(now_ms, self.tables.generation, trap, &bytes[..ip.total_len]);
        // Even without a free buffer, because later packets need the SA as well.
        hold.report(now_ms, Acquire { trap, core: None, key: FlowKey::of(ip, bytes) });
        if held { Ok(()) } else { Err(DropReason::NotNegotiated) }
    }

    /// Holds packet `bytes` until the peer has proved that it has the SA. Returns false without a
    /// free buffer; the packet should then be sent, because the peer may already have the SA.
    #[cold]
    fn hold_for_peer(&mut self, trap: u32, ip: &IpPacket, bytes: &[u8]) -> bool {
        let (now_ms, generation) = (self.shared.now_ms(), self.tables.generation);
        self.own.hold.keep_for_peer(now_ms, generation, trap, &bytes[..ip.total_len])
    }

    /// Requests an SA for this core; the fallback SA carries its packets until then.
    #[cold]
    fn request_own_sa(&mut self, trap: u32, ip: &IpPacket, bytes: &[u8]) {
        let core = Some(self.shared.core() as u32);
        self.own.hold.report(self.shared.now_ms(), Acquire { trap, core, key: FlowKey::of(ip, bytes) });
    }

    /// Gives consecutive packets of one slot, which start at packet `first` of the batch and may be
    /// of one length, TOS and DF, their numbers; drops those that there are none for.
    #[inline]
    fn number(&mut self, (slot, equal): (u32, bool), first: usize, packets: &[Packet], plan: &mut ChunkPlan) {
        let tables = self.tables;
        let Some(sa) = tables.outbound.get(slot as usize) else {
            plan.push(Planned { slot, lane: 0, packets: packets.len() as u8, equal, first: 0 });
            return;
        };
        if sa.aggregates() {
            self.aggregate(first..first + packets.len(), slot);
            plan.push(Planned { slot: Planned::GONE, lane: 0, packets: packets.len() as u8, equal, first: 0 });
            return;
        }
        let lane = sa.lane_of(self.shared.core());
        if let Some(first) = self.take_all(sa, lane, (packets, equal)) {
            plan.push(Planned { slot, lane: lane as u16, packets: packets.len() as u8, equal, first });
            return;
        }
        let put = |entry, count: usize| plan.push(Planned { packets: count as u8, ..entry });
        self.number_packets(sa, (slot, equal), (first, packets), put);
    }

    /// Takes the numbers of all of some packets, which may be of one length, from a lane, and
    /// returns the first number. `None` if the SA has limits or not enough numbers, or if there are
    /// other workers.
    #[inline]
    fn take_all(&self, sa: &OutboundSa, lane: usize, (packets, equal): (&[Packet], bool)) -> Option<u64> {
        if !self.shared.is_alone() || sa.common.may_be_spent() {
            return None;
        }
        let first = sa.lanes.get(lane)?.seq.take_alone(packets.len() as u32)?;
        if self.counts_numbers {
            sa.traffic(lane).add_owned(packets.len() as u64, bytes(packets, equal));
        }
        Some(first)
    }

    /// Takes numbers for consecutive packets of `sa` in `slot`, which start at packet `first` of
    /// the batch, and calls `put` for each block with its entry, without the number of packets, and
    /// that number. Packets without a sequence number are dropped.
    pub(super) fn number_packets(
        &mut self,
        sa: &OutboundSa,
        (slot, equal): (u32, bool),
        (first, packets): (usize, &[Packet]),
        mut put: impl FnMut(Planned, usize),
    ) {
        let mut given = 0;
        while given < packets.len() {
            match self.reserve(sa, (&packets[given..], equal)) {
                Ok((range, lane)) => {
                    let count = range.count as usize;
                    put(Planned { slot, lane: lane as u16, packets: 0, equal, first: range.first }, count);
                    given += count;
                }
                Err(why) => {
                    self.drop_unnumbered(sa, first + given..first + packets.len(), why);
                    let gone = Planned { slot: Planned::GONE, lane: 0, packets: 0, equal, first: 0 };
                    return put(gone, packets.len() - given);
                }
            }
        }
    }

    /// Drops packets of the batch, for which `sa` has no number.
    #[cold]
    fn drop_unnumbered(&mut self, sa: &OutboundSa, range: Range<usize>, why: DropReason) {
        range.for_each(|i| self.gone_outbound(i, Some(sa), None, why));
    }

    /// Takes numbers for as many of some packets, which may be of one length, as possible, at least
    /// one, and returns the lane that the numbers are from. An SA with limits has to grant the
    /// packets first.
    fn reserve(&self, sa: &OutboundSa, (packets, equal): (&[Packet], bool)) -> Result<(SeqRange, usize), DropReason> {
        let (common, at) = (&sa.common, sa.lane_of(self.shared.core()));
        common.check_lifetime()?;
        let (granted, granted_bytes) = if common.is_limited() {
            common.grant(packets.iter().map(|packet| packet.len() as u64))?
        } else {
            (packets.len() as u32, 0)
        };
        let range = sa.lanes[at].seq.reserve(granted);
        let count = range.map_or(0, |range| range.count);
        if common.is_limited() || self.counts_numbers {
            let used = bytes(&packets[..count as usize], equal);
            if common.is_limited() {
                common.give_back((granted - count).into(), granted_bytes - used);
            }
            if self.counts_numbers {
                sa.traffic(at).add(count.into(), used);
            }
        }
        Ok((range?, at))
    }
}

/// Sum of the lengths of packets, which may be equal.
#[inline]
pub(super) fn bytes(packets: &[Packet], equal: bool) -> u64 {
    match packets {
        [packet, ..] if equal || packets.len() == 1 => (packet.len() * packets.len()) as u64,
        _ => packets.iter().map(|packet| packet.len() as u64).sum(),
    }
}

/// Largest packet in bytes that fits through an SA: any in AGGFRAG mode, where packets are packed
/// first.
fn mtu(sa: &OutboundSa) -> usize {
    if sa.aggregates() { MAX_INNER } else { sa.inner_mtu.load(Ordering::Relaxed) as usize }
}

/// Reason for dropping a packet that no policy matches. Services of this host join groups and look
/// for routers and names (mDNS, LLMNR) on every interface, which is no loss here. Routing protocols
/// are not among them: theirs is traffic that a policy should carry.
#[cold]
fn without_policy(ip: &IpPacket) -> DropReason {
    let of_link = match (ip.upper, ip.dst) {
        (IpProto::UDP, IpAddr::V4(dst)) => matches!(dst.octets(), [224, 0, 0, 251 | 252]),
        (IpProto::UDP, IpAddr::V6(dst)) => {
            matches!(dst.segments(), [0xff02, 0, 0, 0, 0, 0, 0, 0xfb] | [0xff02, 0, 0, 0, 0, 0, 1, 3])
        }
        (IpProto::ICMPV6 | IpProto::IGMP, IpAddr::V4(dst)) => dst.octets()[..3] == [224, 0, 0],
        (IpProto::ICMPV6 | IpProto::IGMP, IpAddr::V6(dst)) => dst.octets()[0] == 0xff && dst.octets()[1] & 0xf == 2,
        _ => false,
    };
    if of_link { DropReason::LinkLocal } else { DropReason::NoPolicy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, Worker, WorkerConfig};

    /// One IPv4 or IPv6 packet without payload.
    fn headers(proto: u8, dst: IpAddr) -> Vec<u8> {
        match dst {
            IpAddr::V4(dst) => {
                [&[0x45, 0, 0, 20, 0, 1, 0, 0, 1, proto, 0, 0, 192, 0, 2, 1][..], &dst.octets()].concat()
            }
            IpAddr::V6(dst) => [&[0x60, 0, 0, 0, 0, 0, proto, 1][..], &[0; 16], &dst.octets()].concat(),
        }
    }

    #[test]
    fn multicast_of_the_host_for_a_link_is_dropped_and_counted_apart() {
        let spd = ipsec::Spd::new(Vec::new());
        let tables = Snapshot::new(Vec::new(), Vec::new(), spd, Default::default(), Default::default()).unwrap();
        for (proto, dst, reason) in [
            // A router solicitation, a membership report, LLMNR.
            (58, "ff02::2", DropReason::LinkLocal),
            (58, "ff02::16", DropReason::LinkLocal),
            (2, "224.0.0.22", DropReason::LinkLocal),
            (17, "224.0.0.252", DropReason::LinkLocal),
            (17, "ff02::fb", DropReason::LinkLocal),
            // OSPF, RIP, other scopes, a host.
            (89, "224.0.0.5", DropReason::NoPolicy),
            (89, "ff02::5", DropReason::NoPolicy),
            (17, "224.0.0.9", DropReason::NoPolicy),
            (17, "ff02::9", DropReason::NoPolicy),
            (17, "224.0.1.1", DropReason::NoPolicy),
            (17, "ff05::2", DropReason::NoPolicy),
            (58, "2001:db8::2", DropReason::NoPolicy),
        ] {
            let (mut worker, _reports) =
                Worker::new(WorkerConfig { batch: 16, reassembly: 1, ..WorkerConfig::default() });
            let (mut batch, mut replies) = (Batch::new(1, 128), Batch::new(1, 2048));
            assert!(batch.push_with(|to| to.set(&headers(proto, dst.parse().unwrap()))));
            worker.outbound(&tables, &mut batch, &mut replies);
            assert!(batch.is_empty() && replies.is_empty(), "{dst} leaves");
            assert_eq!(worker.counters().drops[reason as usize].load(Ordering::Relaxed), 1, "{proto} to {dst}");
        }
    }

    #[test]
    fn a_fragment_whose_sa_is_unknown_is_dropped() {
        let spd = ipsec::Spd::new(Vec::new());
        let tables = Snapshot::new(Vec::new(), Vec::new(), spd, Default::default(), Default::default()).unwrap();
        let (mut worker, _reports) = Worker::new(WorkerConfig { batch: 16, reassembly: 1, ..WorkerConfig::default() });
        let mut batch = Batch::new(1, 128);
        let packet = [&[0x45, 0, 0, 28, 0, 1, 0, 0, 9, 17][..], &[0; 18]].concat();
        assert!(batch.push_with(|to| to.set(&packet)));
        worker.shared.start_batch(1);
        let mut plan = ChunkPlan::new();
        // No packet arrived: all are fragments.
        worker.outbound_path(&tables).plan_chunk(0, batch.packets_mut(), &mut FlowRun::new(0), &mut plan);
        assert!(plan.iter().all(Planned::is_gone) && !worker.shared.is_kept(0));
        assert_eq!(worker.counters().drops[DropReason::Inconsistent as usize].load(Ordering::Relaxed), 1);
    }
}
