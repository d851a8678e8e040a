//! Inbound path: from protected to plaintext packets.
//!
//! Packets are processed in chunks, as outbound: SA look-up and cheap checks of each packet, one
//! engine call for the chunk, then replay window, headers and policy. The last step requires the
//! engine's proof of the ICV, because a forged packet must not advance the window (RFC 4303
//! §3.4.3).

mod finish;
mod in_flight;
mod split;

use arrayvec::ArrayVec;
use crypto::{CryptoOp, IcvOk, Job, Jobs, KeyId, Keys};
use ipsec::{
    Action, Delivered, DropReason, InFlowTemplate, InboundSa, InnerTemplate, PendingIn, Protocol, Reassembled,
    finish_in, pmtu,
};
use ipsec::{InPacket, InResult, PutIn, PutInJob, finish_in_fast, finishes_fast, prepare_in_fast, prepare_in_slow};
use wire::ip::IPV4_HEADER;
use wire::udp::UdpHeader;
use wire::{FlowKey, IpPacket, IpProto, PlainFlow};

use crate::counters::bump;
use crate::outbound::CHUNK;
use crate::worker::Subject;
use crate::{Batch, Packet, Snapshot, Worker};
use in_flight::{InFlightDecryption, InFlightDecryptions, Kind, Own};
pub(crate) use split::Opened;

/// A protocol header found in an outer packet.
#[derive(Clone, Copy)]
struct Found {
    protocol: Protocol,
    /// Offset of the protocol header.
    at: usize,
    spi: u32,
}

impl Found {
    /// Reads the SPI of the protocol header `header` at `at`.
    fn new(protocol: Protocol, at: usize, header: &[u8]) -> Result<Self, DropReason> {
        Ok(Self { protocol, at, spi: protocol.spi(header).ok_or(DropReason::Truncated)? })
    }
}

/// The flow of a packet that was let in, and the slot of the SA that it came through: the next one
/// may come in, too.
struct Admitted {
    flow: PlainFlow,
    slot: u32,
    /// Another one of it came in right afterwards: its packets come in runs.
    again: bool,
    /// What is inside of the last of its packets that were alike.
    inside: Option<InnerTemplate>,
}

/// The packet before. Packets of one SA come in runs, and where the bytes that decided are the same
/// the answers are too: headers are not walked and tables not asked again.
struct Last<'t> {
    outer: IpPacket,
    found: Found,
    slot: u32,
    sa: &'t InboundSa,
    /// What has to be the same, when the packet is one that can be told by its first bytes.
    same: Option<Same>,
    /// How the next ones are read, when they are of the usual kind.
    next: Option<InFlowTemplate<'t>>,
}

/// The bytes that tell an unfragmented IPv4 packet without options, and without a UDP checksum.
/// Words have the first byte lowest.
#[derive(Clone, Copy)]
struct Same {
    /// The first three words where [`SAME`] has ones.
    words: [u64; 3],
    /// Destination port, for packets in UDP.
    port: Option<u16>,
    /// Offset of the protocol header, whose first eight bytes are `first` where `mask` has ones.
    at: usize,
    first: u64,
    mask: u64,
}

/// Version and header length, no fragment; protocol, source; destination.
const SAME: [u64; 3] = [
    u64::from_le_bytes([0xff, 0, 0, 0, 0, 0, 0xbf, 0xff]),
    u64::from_le_bytes([0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff]),
    u64::from_le_bytes([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]),
];

/// Bytes that [`Same`] looks at.
const SAME_LEN: usize = IPV4_HEADER + UdpHeader::LEN + 8;

/// What the next packet of an SA has of its own in its outer header.
#[derive(Clone, Copy)]
struct Differs {
    total_len: usize,
    tos: u8,
    hop_limit: u8,
    dont_fragment: bool,
}

impl Same {
    /// The next packet of the same SA, if `bytes` are one.
    #[inline(always)]
    fn next(&self, bytes: &[u8]) -> Option<Differs> {
        let head = bytes.first_chunk::<SAME_LEN>()?;
        let words: [u64; 3] = std::array::from_fn(|i| word(head, 8 * i));
        let differ = (0..3).fold(word(head, self.at) & self.mask ^ self.first, |differ, i| {
            differ | words[i] & SAME[i] ^ self.words[i]
        });
        let total_len = usize::from(((words[0] >> 16) as u16).swap_bytes());
        // One comparison for both bounds: a length below `SAME_LEN` wraps around to a large value.
        let whole = total_len.wrapping_sub(SAME_LEN) <= bytes.len() - SAME_LEN;
        if differ != 0 || !whole || self.port.is_some_and(|port| !is_udp(word(head, IPV4_HEADER), port, total_len)) {
            return None;
        }
        // The reserved flag is a bit of the same byte.
        let dont_fragment = words[0] >> 48 & 0x40 != 0;
        let (tos, hop_limit) = ((words[0] >> 8) as u8, words[1] as u8);
        Some(Differs { total_len, tos, hop_limit, dont_fragment })
    }
}

impl<'t> Last<'t> {
    fn new(outer: IpPacket, found: Found, slot: u32, sa: &'t InboundSa, bytes: &[u8]) -> Self {
        let udp = outer.upper == IpProto::UDP;
        let plain = outer.upper_at == IPV4_HEADER && found.at == IPV4_HEADER + if udp { UdpHeader::LEN } else { 0 };
        let mask = found.protocol.spi_mask(udp);
        // The comparison has fixed offsets, so that options, extension headers and IPv6 are
        // excluded.
        let same = bytes.first_chunk::<SAME_LEN>().filter(|_| plain && !outer.is_v6()).map(|head| Same {
            words: std::array::from_fn(|i| word(head, 8 * i) & SAME[i]),
            port: udp.then(|| (word(head, IPV4_HEADER) >> 16) as u16).map(u16::swap_bytes),
            at: found.at,
            first: word(head, found.at) & mask,
            mask,
        });
        Self { outer, found, slot, sa, same, next: None }
    }

    /// Learns how further packets are read, from one that was not read so: they come in runs, when
    /// it was not the first one. Packets of another Sub SA or SPI begin another run.
    #[inline]
    fn learn(&mut self, packet: &[u8], key: KeyId, pending: &PendingIn) {
        self.next = match self.next {
            None if self.same.is_some() => InFlowTemplate::of(self.sa, self.found.at, packet, key, pending),
            _ => None,
        };
    }

    /// Whether `bytes` are the next packet of the same SA; if so `outer` is now theirs.
    #[inline]
    fn covers(&mut self, bytes: &[u8]) -> bool {
        let Some(own) = self.same.and_then(|same| same.next(bytes)) else { return false };
        let outer = &mut self.outer;
        (outer.total_len, outer.tos, outer.hop_limit) = (own.total_len, own.tos, own.hop_limit);
        outer.dont_fragment = own.dont_fragment;
        true
    }

    /// Reads the packets that start `rest` as far as they are of the same SA and of the usual kind,
    /// and appends what the engine is to do. `count` packets are in the chunk. Returns the index of
    /// a packet that is to be dropped, with the reason.
    #[inline(never)] // all registers are for this loop
    fn prepare_burst<'p>(
        &self,
        rest: &mut &'p mut [Packet],
        count: usize,
        jobs: &mut Jobs<'p>,
        openings: &mut InFlightDecryptions<'t>,
    ) -> Option<(usize, DropReason)> {
        let (Some(same), Some(next), slot, sa) = (&self.same, &self.next, self.slot, self.sa) else { return None };
        let kind = Kind { slot, sa, pending: next.blank(), usual: next.finishes_fast(sa), alike: next.delivers() };
        // What both ask of the protocol header is asked in one go.
        let (first, mask) = next.head();
        let (same, least) = (Same { first: same.first | first, mask: same.mask | mask, ..*same }, next.least());
        let mut i = (count - rest.len()) as u8;
        // The jobs borrow the packets for longer than this call. Hence the slice is taken out of
        // `rest`, and its unread part is put back below.
        let mut packets = std::mem::take(rest).iter_mut();
        let mut refused = None;
        openings.push_burst(kind, |kind, openings| {
            while let Some(packet) = packets.as_slice().first()
                && let Some(own) = same.next(packet.bytes())
                && own.total_len >= least
                && let Some(packet) = packets.next()
            {
                let (buffer, start, end) = packet.parts();
                // Bytes after the IP packet, such as Ethernet padding, must be cut: the ICV is at
                // its end.
                *end = *start + own.total_len as u32;
                let bytes = &mut buffer[*start as usize..*end as usize];
                let put = AppendAlike { jobs: &mut *jobs, openings: &mut *openings, i, kind };
                if let Err(why) = next.prepare(bytes, put) {
                    // The iterator is already past the dropped packet, so that the caller resumes
                    // after it.
                    refused = Some((usize::from(i), why));
                    break;
                }
                i += 1;
            }
        });
        *rest = packets.into_slice();
        refused
    }
}

/// The eight bytes at `at`, first byte lowest; zero beyond the end.
#[inline(always)]
fn word(head: &[u8; SAME_LEN], at: usize) -> u64 {
    head.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Whether `header` is the UDP header of an IPv4 packet of `total_len` bytes without options, from
/// any source port: no checksum, and nothing behind the datagram.
#[inline]
fn is_udp(header: u64, dst_port: u16, total_len: usize) -> bool {
    // The checksum is part of the compared word and must be 0. A datagram with a checksum takes the
    // slow path, which verifies it.
    let len = total_len.wrapping_sub(IPV4_HEADER) as u16;
    header >> 16 == u64::from(dst_port.swap_bytes()) | u64::from(len.swap_bytes()) << 16
}

/// Appends the operation of a packet that is like the one before, and what it has of its own.
struct AppendAlike<'j, 'p> {
    jobs: &'j mut Jobs<'p>,
    openings: &'j mut ArrayVec<Own, CHUNK>,
    i: u8,
    kind: u8,
}

impl<'p> PutInJob<'p> for AppendAlike<'_, 'p> {
    #[inline(always)]
    fn put(self, op: CryptoOp, packet: &'p mut [u8], pending: PendingIn) {
        // One job per in-flight decryption, in the same order: proofs are matched by index.
        self.jobs.add(&op, packet);
        self.openings.push(Own::new(self.i, self.kind, &pending));
    }
}

/// Appends the operation of a packet, which is lent to it afterwards, and what is known of it.
struct Append<'j, 'p, 't> {
    jobs: &'j mut Jobs<'p>,
    openings: &'j mut InFlightDecryptions<'t>,
    of: (u8, u32, &'t InboundSa),
    usual: bool,
}

impl PutIn for Append<'_, '_, '_> {
    #[inline(always)]
    fn put(self, op: CryptoOp, pending: PendingIn) {
        let (i, slot, sa) = self.of;
        self.jobs.add(&op, &mut []);
        self.openings.push(InFlightDecryption { i, slot, sa, pending, usual: self.usual });
    }
}

impl Worker {
    /// Takes packets from the outer side. Afterwards `batch` holds what is to be delivered on the
    /// inner side, in order. Everything else was dropped and counted.
    pub fn inbound(&mut self, tables: &Snapshot, batch: &mut Batch) {
        self.counters.outer_rx.bump(batch.len() as u64, batch.bytes());
        self.start_batch(batch.len());
        // Keys derived for a batch must stay cached until the engine has used them. This call makes
        // those of the previous batch evictable.
        self.derived.begin_batch();
        self.age(tables);
        let mut pass = Pass { last: None, run: InBurst::new(tables, self.config.core), admitted: None };
        let (mut rest, mut first) = (batch.packets_mut(), 0);
        // Only for the first chunk; the others are prefetched while the one before is processed.
        rest.iter().take(CHUNK).for_each(Packet::prefetch_head);
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at_mut(rest.len().min(CHUNK));
            self.open(tables, first, (chunk, behind), &mut pass);
            (rest, first) = (behind, first + CHUNK);
        }
        pass.run.end();
        self.retain_kept(batch);
        self.counters.inner_tx.bump(batch.len() as u64, batch.bytes());
        bump(&self.counters.batches, 1);
        self.publish_lookups();
    }

    /// Opens one chunk, which starts at packet `first` of the batch, in place; `behind` it are the
    /// packets that come next.
    fn open<'t>(
        &mut self,
        tables: &'t Snapshot,
        first: usize,
        (packets, behind): (&mut [Packet], &[Packet]),
        Pass { last, run, admitted }: &mut Pass<'t>,
    ) {
        let mut openings = InFlightDecryptions::new();
        let mut proofs: ArrayVec<Option<IcvOk>, CHUNK> = {
            let mut jobs = Jobs::new();
            let mut chunk = Chunk { last, jobs: &mut jobs, openings: &mut openings };
            self.run_chunk(tables, first, (packets, behind), &mut chunk);
            jobs.iter_mut().map(Job::take_ok).collect()
        };
        let mut done = 0;
        // In order of arrival, because it is the order of delivery.
        while done < openings.len() {
            if let (Some(last), Some(admitted)) = (&*last, &mut *admitted)
                && let Some(next) = &last.next
                && admitted.slot == last.slot
                && admitted.again
            {
                let some = last.finish_burst(next, admitted, (&openings, done), &mut proofs[done..], packets);
                if some.count > 0 {
                    run.add((last.slot, next.lane()), some.count, some.bytes);
                }
                done += some.count;
                // The burst has used the proof of this packet. `finish_inbound` would therefore
                // count a replay as a bad ICV.
                if let (Some(why), Some(opening)) = (some.refused, openings.get(done)) {
                    let Refused = self.gone_opening(opening.sa, &opening, why);
                    self.refuse(first + usize::from(opening.i));
                    done += 1;
                    continue;
                }
            }
            let Some(opening) = openings.get(done) else { break };
            let (i, proof) = (usize::from(opening.i), proofs[done].take());
            match self.finish_inbound(tables, &opening, &mut packets[i], proof, admitted) {
                Ok(bytes) => run.add((opening.slot, opening.pending.lane), 1, bytes),
                Err(Refused) => self.refuse(first + i),
            }
            done += 1;
        }
        if last.as_ref().is_some_and(|last| last.sa.common.is_limited()) {
            // The next chunk asks how much went through.
            run.restart((u32::MAX, 0));
        }
    }

    /// Prepares one chunk, which starts at packet `first` of the batch, and has the engine open it.
    /// Dropped packets are marked for removal. `behind` it are the packets that come next.
    #[inline(always)] // as on the way out
    fn run_chunk<'p, 't>(
        &mut self,
        tables: &'t Snapshot,
        first: usize,
        (packets, behind): (&'p mut [Packet], &[Packet]),
        chunk: &mut Chunk<'_, 'p, 't>,
    ) {
        // Packets that are like the previous one skip the lifetime check, so that it must be done
        // here, once per chunk.
        if chunk.last.as_ref().is_some_and(|last| last.sa.common.check_lifetime().is_err()) {
            *chunk.last = None; // found again, and refused with its reason
        }
        let (count, mut rest) = (packets.len(), packets);
        loop {
            let usual = chunk.last.as_ref().filter(|last| last.next.is_some());
            let refused = usual.and_then(|last| last.prepare_burst(&mut rest, count, chunk.jobs, chunk.openings));
            if let (Some((i, why)), Some(last)) = (refused, chunk.last.as_ref()) {
                let Refused = self.gone_inbound(Some(last.sa), why, Some(last.found.spi), Some(&last.outer));
                self.refuse(first + i);
                continue;
            }
            let i = count - rest.len();
            let Some((packet, others)) = rest.split_first_mut() else { break };
            rest = others;
            if let Err(Refused) = self.prepare_inbound(tables, i, packet, chunk) {
                self.refuse(first + i);
            }
        }
        // Before the engine call, whose computation hides the memory latency.
        behind.iter().take(CHUNK).for_each(Packet::prefetch_head);
        self.config.engine.open(Keys { table: &tables.keys, derived: &self.derived }, chunk.jobs);
    }

    /// Finds the SA of packet `i` of the chunk and appends what the engine is to do, unless it is
    /// in the clear and a policy says that is right.
    #[inline(always)] // as on the way out
    fn prepare_inbound<'p, 't>(
        &mut self,
        tables: &'t Snapshot,
        i: usize,
        packet: &'p mut Packet,
        chunk: &mut Chunk<'_, 'p, 't>,
    ) -> Result<(), Refused> {
        let Chunk { last, jobs, openings } = chunk;
        let last = &mut **last;
        let known = last.as_mut().is_some_and(|last| last.covers(packet.bytes()));
        if !known {
            self.look_up(tables, packet, last)?;
        }
        let Some(last) = last else { return Ok(()) };
        let Last { outer, found, slot, sa, .. } = &*last;
        let (slot, sa) = (*slot, *sa);
        // Trailing bytes would move the ICV, which is found from the end of the packet.
        packet.truncate(outer.total_len);
        let usual = finishes_fast(sa, &PendingIn { ip_end: outer.upper_at as u16, ..PendingIn::EMPTY });
        let put = Append { jobs, openings, of: (i as u8, slot, sa), usual };
        let lifetime = if known { Ok(()) } else { sa.common.check_lifetime() };
        let prepared = lifetime.and_then(|()| prepare_in_fast(sa, outer, found.at, packet.bytes(), put));
        let prepared = match prepared {
            Ok(false) => {
                let (mut op, mut pending) = (CryptoOp::EMPTY, PendingIn::EMPTY);
                let mut frame = packet.frame();
                let result = InResult { op: &mut op, pending: &mut pending };
                let whole = InPacket { outer, at: found.at, frame: &mut frame };
                let prepared = prepare_in_slow(sa, whole, &mut self.derived, result);
                let range = frame.range();
                packet.set_range(range);
                prepared.map(|()| {
                    jobs.add(&op, &mut []);
                    let usual = finishes_fast(sa, &pending);
                    openings.push(InFlightDecryption { i: i as u8, slot, sa, pending, usual });
                })
            }
            usual => usual.map(|_| ()),
        };
        if prepared.is_ok()
            && let Some(job) = jobs.last_mut()
        {
            if known && let Some(opening) = openings.len().checked_sub(1).and_then(|last| openings.get(last)) {
                last.learn(packet.bytes(), job.op.key, &opening.pending);
            }
            job.packet = packet.bytes_mut();
            return Ok(());
        }
        prepared.map_err(|why| self.gone_inbound(Some(sa), why, Some(found.spi), Some(outer)))
    }

    /// Reads the outer headers of a packet and finds its SA. `None`: bypassed.
    ///
    /// Never inlined, so that `last` has an address: the usual way would carry all of it in
    /// registers, which there are not enough of.
    #[inline(never)]
    fn look_up<'t>(
        &mut self,
        tables: &'t Snapshot,
        packet: &mut Packet,
        last: &mut Option<Last<'t>>,
    ) -> Result<(), Refused> {
        // After success, callers treat `None` as a bypassed packet, so that no earlier SA may
        // remain.
        *last = None;
        let mut outer = match IpPacket::parse(packet.bytes()) {
            Ok(ip) => ip,
            Err(fault) => return Err(self.gone_inbound(None, fault.into(), None, None)),
        };
        // Before the SAD look-up: only the first fragment has the SPI, and the ICV covers the whole
        // packet (RFC 4303 §3.4.1).
        if outer.fragment.is_some() {
            outer = self.reassemble(packet, &outer)?;
        }
        let found = match self.find(tables, &outer, &packet.bytes()[..outer.total_len]) {
            Ok(Some(found)) => found,
            Ok(None) => return self.plain(tables, packet, &outer),
            Err(why) => return Err(self.gone_inbound(None, why, None, Some(&outer))),
        };
        let slot = tables.sad.lookup(found.protocol, found.spi, outer.src, outer.dst);
        match slot.and_then(|slot| Some((slot, tables.sad.get(slot)?))) {
            Some((slot, sa)) => {
                bump(&self.counters.sad.hits, 1);
                *last = Some(Last::new(outer, found, slot, sa, packet.bytes()));
                Ok(())
            }
            None => {
                bump(&self.counters.sad.misses, 1);
                Err(self.gone_inbound(None, DropReason::NoSa, Some(found.spi), Some(&outer)))
            }
        }
    }

    /// Where the protocol header is; `None` for a packet that is in the clear.
    fn find(&mut self, tables: &Snapshot, outer: &IpPacket, bytes: &[u8]) -> Result<Option<Found>, DropReason> {
        let rest = &bytes[outer.upper_at..];
        if outer.upper == IpProto::UDP {
            return self.find_in_udp(tables, outer, rest);
        }
        // Without an EESP SA its number may belong to other traffic: the policy decides.
        let protocol = Protocol::of_ip(outer.upper, &tables.code_points);
        if let Some(protocol) = protocol.filter(|protocol| tables.eesp || !protocol.sets_first_bit()) {
            return Found::new(protocol, outer.upper_at, rest).map(Some);
        }
        if matches!(outer.upper, IpProto::ICMP | IpProto::ICMPV6) {
            self.learn_path_mtu(tables, outer, bytes);
        }
        Ok(None)
    }

    fn find_in_udp(
        &mut self,
        tables: &Snapshot,
        outer: &IpPacket,
        datagram: &[u8],
    ) -> Result<Option<Found>, DropReason> {
        let (udp, _) = UdpHeader::parse(datagram)?;
        let port = udp.dst_port.get();
        let ours = port == tables.code_points.nat_t_port || port == tables.code_points.psp_port;
        if !ours {
            return Ok(None);
        }
        let (udp, payload) = UdpHeader::parse_exact(datagram)?;
        // Senders should use 0, but receivers must not depend on it (RFC 3948 §2.1).
        if udp.checksum.get() != 0 && !wire::udp::is_valid(outer.src, outer.dst, datagram) {
            return Err(DropReason::BadChecksum);
        }
        let at = outer.upper_at + UdpHeader::LEN;
        let protocol =
            if port == tables.code_points.psp_port { Protocol::Psp } else { Protocol::in_nat_t(payload, tables.eesp)? };
        Found::new(protocol, at, payload).map(Some)
    }

    /// Handles a plaintext packet, which only a bypass policy permits. ICMP errors about outer
    /// packets are not policy violations: routers, and hosts during their start, send them.
    fn plain(&mut self, tables: &Snapshot, packet: &mut Packet, ip: &IpPacket) -> Result<(), Refused> {
        let ask = |key: &FlowKey| tables.spd.inbound(key).map(|(_, action)| action);
        let bytes = &packet.bytes()[..ip.total_len];
        let decision = self.inbound_flows.decide(tables.generation, bytes, ask).unwrap_or(None);
        let Err(why) = Action::admit_clear(decision) else {
            bump(&self.counters.bypassed, 1);
            return Ok(());
        };
        // Only the reason changes; the packet is dropped in either case.
        let why = if wire::icmp::is_error(ip, bytes) { DropReason::OuterIcmp } else { why };
        Err(self.gone_inbound(None, why, None, Some(ip)))
    }

    /// What remains once the engine has spoken. Returns the bytes delivered.
    #[inline(always)] // as above
    fn finish_inbound(
        &mut self,
        tables: &Snapshot,
        opening: &InFlightDecryption<'_>,
        packet: &mut Packet,
        proof: Option<IcvOk>,
        admitted: &mut Option<Admitted>,
    ) -> Result<usize, Refused> {
        let (sa, Some(ok)) = (opening.sa, proof) else {
            return Err(self.gone_opening(opening.sa, opening, DropReason::BadIcv));
        };
        if !opening.usual {
            return self.finish_other(tables, opening, packet, ok, admitted);
        }
        match finish_in_fast(sa, packet.bytes_mut(), &opening.pending, ok) {
            Ok(inner) => packet.cut(inner),
            Err(why) => return Err(self.gone_opening(sa, opening, why)),
        }
        self.admit_inner(tables, opening, packet, admitted)
    }

    /// [`Worker::finish_inbound`] for packets of every kind.
    #[inline(always)] // as above
    fn finish_other(
        &mut self,
        tables: &Snapshot,
        opening: &InFlightDecryption<'_>,
        packet: &mut Packet,
        ok: IcvOk,
        admitted: &mut Option<Admitted>,
    ) -> Result<usize, Refused> {
        let mut frame = packet.frame();
        let delivered = finish_in(opening.sa, &mut frame, &opening.pending, ok);
        let range = frame.range();
        packet.set_range(range);
        let Delivered { sample } = match delivered {
            Ok(delivered) => delivered,
            Err(why) => return Err(self.gone_opening(opening.sa, opening, why)),
        };
        let bytes = self.admit_inner(tables, opening, packet, admitted)?;
        if sample {
            bump(&self.counters.sampled, 1);
        }
        Ok(bytes)
    }

    /// Lets an inner packet in when the policy that it meets names the SA through which it came.
    /// Returns its bytes.
    #[inline(always)] // as above
    fn admit_inner(
        &mut self,
        tables: &Snapshot,
        opening: &InFlightDecryption<'_>,
        packet: &Packet,
        admitted: &mut Option<Admitted>,
    ) -> Result<usize, Refused> {
        // The same flow through another SA must be checked again: its policy may name another SA
        // (RFC 4301 §5.2 step 4).
        if let Some(before) = admitted
            && before.slot == opening.slot
            && before.flow.next(packet.bytes()).is_some_and(|head| head.total_len == packet.len())
        {
            before.again = true;
            return Ok(packet.len());
        }
        self.admit_first(tables, opening, packet, admitted)
    }

    /// [`Worker::admit_inner`] for a packet of another flow than the one before.
    #[inline(never)] // as above
    fn admit_first(
        &mut self,
        tables: &Snapshot,
        opening: &InFlightDecryption<'_>,
        packet: &Packet,
        admitted: &mut Option<Admitted>,
    ) -> Result<usize, Refused> {
        *admitted = None;
        let ask = |key: &FlowKey| tables.spd.inbound(key).map(|(_, action)| action);
        let decision = self.inbound_flows.decide(tables.generation, packet.bytes(), ask);
        let verdict =
            decision.map_or(Err(DropReason::BadInner), |decision| Action::admit(decision, tables.group(opening.slot)));
        match verdict {
            Err(why) if !tables.in_grace_period(opening.slot, packet.bytes()) => {
                return Err(self.gone_opening(opening.sa, opening, why));
            }
            Ok(()) | Err(_) => {}
        }
        *admitted =
            PlainFlow::of(packet.bytes()).map(|flow| Admitted { flow, slot: opening.slot, again: false, inside: None });
        Ok(packet.len())
    }

    /// Outer fragments: kept until whole, then the packet holds the whole.
    #[cold]
    fn reassemble(&mut self, packet: &mut Packet, ip: &IpPacket) -> Result<IpPacket, Refused> {
        let why = match self.reassembler.push(self.now_ms, ip, &packet.bytes()[..ip.total_len]) {
            Ok(Reassembled::Waiting) => return Err(Refused),
            Ok(Reassembled::Whole(whole)) if packet.set(whole) => match IpPacket::parse(packet.bytes()) {
                Ok(ip) => return Ok(ip),
                Err(fault) => fault.into(),
            },
            Ok(Reassembled::Whole(_)) => DropReason::NoRoom,
            Err(why) => why,
        };
        Err(self.gone_inbound(None, why, None, Some(ip)))
    }

    /// Adds an outer fragment to its packet. Returns false while fragments are missing, or if the
    /// fragment is invalid.
    pub(crate) fn defragment(&mut self, packet: &mut Packet) -> bool {
        match IpPacket::parse(packet.bytes()) {
            Ok(ip) => self.reassemble(packet, &ip).is_ok(),
            Err(fault) => {
                self.gone_inbound(None, fault.into(), None, None);
                false
            }
        }
    }

    /// An ICMP error about one of our own packets may tell a smaller path MTU.
    #[cold]
    fn learn_path_mtu(&mut self, tables: &Snapshot, outer: &IpPacket, bytes: &[u8]) {
        if let Some(report) = pmtu::Report::parse(outer, bytes, &tables.code_points) {
            self.path_mtus.learn(self.now_ms, &report, tables);
        }
    }

    /// Expires learned path MTUs and incomplete fragments, once a second.
    pub(crate) fn age(&mut self, tables: &Snapshot) {
        if self.now_ms < self.next_age_ms {
            return;
        }
        self.next_age_ms = self.now_ms + 1000;
        self.path_mtus.expire(self.now_ms, tables);
        self.reassembler.expire(self.now_ms);
        let lost = self.reassembler.drops();
        // The reassembler reports totals; the counters get the difference.
        let before = std::mem::replace(&mut self.fragments_lost, lost);
        let drops = &self.counters.drops;
        bump(&drops[DropReason::ReassemblyTimeout as usize], lost.timed_out - before.timed_out);
        bump(&drops[DropReason::ReassemblyFull as usize], lost.evicted - before.evicted);
    }

    #[cold]
    fn gone_opening(&mut self, sa: &InboundSa, opening: &InFlightDecryption<'_>, why: DropReason) -> Refused {
        self.count_drop(why, Some(&sa.common));
        let PendingIn { lane: session, seq, .. } = opening.pending;
        self.report(why, Subject { outbound: false, spi: sa.spi, session, seq: seq.lo() }, None);
        Refused
    }

    #[cold]
    fn gone_inbound(
        &mut self,
        sa: Option<&InboundSa>,
        why: DropReason,
        spi: Option<u32>,
        ip: Option<&IpPacket>,
    ) -> Refused {
        self.count_drop(why, sa.map(|sa| &sa.common));
        self.report(why, Subject { spi: spi.unwrap_or(0), ..Subject::default() }, ip);
        Refused
    }
}

/// What goes from one chunk of a batch to the next.
struct Pass<'t> {
    last: Option<Last<'t>>,
    run: InBurst<'t>,
    admitted: Option<Admitted>,
}

/// State of the preparation of a chunk. References, because the jobs borrow the packets for longer
/// than the calls that add them.
struct Chunk<'c, 'p, 't> {
    last: &'c mut Option<Last<'t>>,
    jobs: &'c mut Jobs<'p>,
    openings: &'c mut InFlightDecryptions<'t>,
}

/// A packet that was dropped and counted, or that waits for further fragments.
struct Refused;

/// Consecutive packets that a core received through one lane of an SA.
struct InBurst<'t> {
    tables: &'t Snapshot,
    core: usize,
    /// Slot of the SA, and the lane.
    lane: (u32, u16),
    packets: u64,
    bytes: u64,
}

impl<'t> InBurst<'t> {
    fn new(tables: &'t Snapshot, core: usize) -> Self {
        Self { tables, core, lane: (u32::MAX, 0), packets: 0, bytes: 0 }
    }

    /// Counts packets of `bytes` bytes in all.
    #[inline]
    fn add(&mut self, lane: (u32, u16), packets: usize, bytes: usize) {
        if self.lane != lane {
            self.restart(lane);
        }
        self.packets += packets as u64;
        self.bytes += bytes as u64;
    }

    /// Ends the burst and begins one of another lane.
    fn restart(&mut self, lane: (u32, u16)) {
        self.end();
        *self = Self { lane, ..Self::new(self.tables, self.core) };
    }

    /// Counts the burst for its SA. A lane belongs to one core; only packets of PSP may be on any.
    fn end(&self) {
        let Some(sa) = self.tables.sad.get(self.lane.0).filter(|_| self.packets > 0) else { return };
        match (sa.protocol(), sa.lanes.len()) {
            (Protocol::Psp, _) => sa.common.counters.add(self.core, self.packets, self.bytes),
            (_, 1) => sa.common.counters.add_owned(0, self.packets, self.bytes),
            // With several lanes, two of them may share a counter, so that additions must be
            // atomic.
            _ => sa.common.counters.add(self.lane.1.into(), self.packets, self.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_path_reads_the_flags_as_the_parser_does() {
        let mut head = [0; SAME_LEN];
        (head[0], head[3], head[8], head[9], head[23]) = (0x45, SAME_LEN as u8, 64, 50, 9);
        for reserved in [0, 0x80] {
            head[6] = reserved;
            let words = std::array::from_fn(|i| word(&head, 8 * i) & SAME[i]);
            let same = Same { words, port: None, at: 20, first: word(&head, 20), mask: u64::MAX };
            for flags in [0, 0x20, 0x40, 0x60, 0x80, 0xc0] {
                let mut next = head;
                next[6] = flags;
                let own = same.next(&next).map(|own| own.dont_fragment);
                let alike = flags & !0x40 == reserved;
                let parsed = IpPacket::parse(&next).expect("a packet").dont_fragment;
                assert_eq!(own, alike.then_some(parsed), "{flags:#x} after {reserved:#x}");
            }
        }
    }
}
