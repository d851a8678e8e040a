//! From protected packets to clear ones.
//!
//! The same shape as outbound, in chunks: find the SA of each packet and check what is cheap, one
//! engine call, and only with its proof move windows, strip headers and check the policy.

use arrayvec::ArrayVec;
use crypto::{CryptoOp, IcvOk, Job, Keys};
use ipsec::{Action, Delivered, Drop, InboundSa, PendingIn, Protocol, Reassembled, finish_in, pmtu};
use ipsec::{finish_in_usual, finishes_usual, prepare_in_any, prepare_in_usual};
use wire::encap::NatT;
use wire::ip::{DONT_FRAGMENT, IPV4_HEADER};
use wire::udp::UdpHeader;
use wire::{FlowKey, IpPacket, IpProto};

use crate::counters::bump;
use crate::outbound::{Aligned, CHUNK};
use crate::{Batch, Packet, Snapshot, Worker};

/// A protocol header found in an outer packet.
#[derive(Clone, Copy)]
struct Found {
    protocol: Protocol,
    /// Offset of the protocol header.
    at: usize,
    spi: u32,
}

/// A packet whose SA is known.
struct Opening<'t> {
    /// Index within the chunk.
    i: u8,
    slot: u32,
    sa: &'t InboundSa,
    pending: PendingIn,
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
}

/// The bytes that tell an unfragmented IPv4 packet without options, and without a UDP checksum.
#[derive(Clone, Copy)]
struct Same {
    proto: u8,
    addresses: [u8; 8],
    /// Destination port, for packets in UDP.
    port: Option<u16>,
    /// Offset of the protocol header, whose first eight bytes are `first` where `mask` has ones.
    at: usize,
    first: u64,
    mask: u64,
}

/// Bytes that [`Same`] looks at.
const SAME_LEN: usize = IPV4_HEADER + UdpHeader::LEN + 8;

impl<'t> Last<'t> {
    fn new(outer: IpPacket, found: Found, slot: u32, sa: &'t InboundSa, bytes: &[u8]) -> Self {
        let udp = outer.upper == IpProto::UDP;
        let plain = outer.upper_at == IPV4_HEADER && found.at == IPV4_HEADER + if udp { UdpHeader::LEN } else { 0 };
        // The SPI. In UDP the first bit tells EESP from ESP.
        let mask = match found.protocol {
            Protocol::Esp => !0 << 32,
            Protocol::Eesp if udp => 1 << 63 | u64::from(u32::MAX),
            Protocol::Ah | Protocol::Eesp | Protocol::Psp => u64::from(u32::MAX),
        };
        let same = bytes.first_chunk::<SAME_LEN>().filter(|_| plain).map(|head| Same {
            proto: outer.upper.0,
            addresses: *head[12..].first_chunk().unwrap_or(&[0; 8]),
            port: udp.then(|| (word(head, IPV4_HEADER) >> 32) as u16),
            at: found.at,
            first: word(head, found.at) & mask,
            mask,
        });
        Self { outer, found, slot, sa, same }
    }

    /// Whether `bytes` are the next packet of the same SA; if so `outer` is now theirs.
    #[inline]
    fn covers(&mut self, bytes: &[u8]) -> bool {
        let (Some(same), Some(head)) = (&self.same, bytes.first_chunk::<SAME_LEN>()) else { return false };
        let flags = u16::from_be_bytes([head[6], head[7]]);
        let total_len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let alike = head[0] == 0x45
            && flags & !DONT_FRAGMENT == 0
            && head[9] == same.proto
            && head[12..20] == same.addresses
            && word(head, same.at) & same.mask == same.first
            && same.port.is_none_or(|port| word(head, IPV4_HEADER) << 16 == udp_header(port, total_len) << 16)
            && (SAME_LEN..=bytes.len()).contains(&total_len);
        if alike {
            let outer = &mut self.outer;
            (outer.total_len, outer.tos, outer.hop_limit) = (total_len, head[1], head[8]);
            outer.dont_fragment = flags != 0;
        }
        alike
    }
}

/// The eight bytes at `at`; zero beyond the end.
#[inline]
fn word(head: &[u8; SAME_LEN], at: usize) -> u64 {
    head.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// The UDP header of an IPv4 packet of `total_len` bytes without options, but for its source port:
/// no checksum, and nothing behind the datagram.
#[inline]
fn udp_header(dst_port: u16, total_len: usize) -> u64 {
    u64::from(dst_port) << 32 | (total_len.wrapping_sub(IPV4_HEADER) as u64) << 16
}

impl Worker {
    /// Takes packets from the outer side. Afterwards `batch` holds what is to be delivered on the
    /// inner side, in order. Everything else was dropped and counted.
    pub fn inbound(&mut self, tables: &Snapshot, batch: &mut Batch) {
        self.counters.outer_rx.bump(batch.len() as u64, batch.bytes());
        self.keep_all(batch.len());
        self.derived.begin_batch();
        self.age(tables);
        let mut last: Option<Last<'_>> = None;
        for (n, chunk) in batch.packets_mut().chunks_mut(CHUNK).enumerate() {
            self.open(tables, n * CHUNK, chunk, &mut last);
        }
        if !self.all_kept {
            let keep = &self.keep;
            batch.retain(|i, _| keep[i]);
        }
        self.counters.inner_tx.bump(batch.len() as u64, batch.bytes());
        bump(&self.counters.batches, 1);
    }

    /// Opens one chunk, which starts at packet `first` of the batch, in place.
    fn open<'t>(&mut self, tables: &'t Snapshot, first: usize, packets: &mut [Packet], last: &mut Option<Last<'t>>) {
        let mut jobs: Aligned<ArrayVec<Job<'_>, CHUNK>> = Aligned(ArrayVec::new());
        let mut openings: ArrayVec<Opening<'t>, CHUNK> = ArrayVec::new();
        if last.as_ref().is_some_and(|last| last.sa.common.check_lifetime().is_err()) {
            *last = None; // found again, and refused with its reason
        }
        packets.iter().for_each(Packet::prefetch_head);
        for (i, packet) in packets.iter_mut().enumerate() {
            if let Err(Refused) = self.prepare_inbound(tables, i, packet, last, &mut jobs.0, &mut openings) {
                self.refuse(first + i);
            }
        }
        self.config.engine.open(Keys { table: &tables.keys, derived: &self.derived }, &mut jobs.0);
        let proofs: ArrayVec<Option<IcvOk>, CHUNK> = jobs.0.iter_mut().map(Job::take_ok).collect();
        drop(jobs);
        let mut run = (u32::MAX, 0u64, 0u64);
        for (opening, proof) in openings.iter().zip(proofs) {
            let i = usize::from(opening.i);
            match self.finish_inbound(tables, opening.sa, opening, &mut packets[i], proof) {
                Ok(bytes) => {
                    if run.0 != opening.slot {
                        count_run(tables, run);
                        run = (opening.slot, 0, 0);
                    }
                    run.1 += 1;
                    run.2 += bytes as u64;
                }
                Err(Refused) => self.refuse(first + i),
            }
        }
        count_run(tables, run);
    }

    /// Finds the SA of packet `i` of the chunk and appends what the engine is to do, unless it is in
    /// the clear and a policy says that is right.
    #[inline]
    fn prepare_inbound<'p, 't>(
        &mut self,
        tables: &'t Snapshot,
        i: usize,
        packet: &'p mut Packet,
        last: &mut Option<Last<'t>>,
        jobs: &mut ArrayVec<Job<'p>, CHUNK>,
        openings: &mut ArrayVec<Opening<'t>, CHUNK>,
    ) -> Result<(), Refused> {
        let known = last.as_mut().is_some_and(|last| last.covers(packet.bytes()));
        if !known {
            self.look_up(tables, packet, last)?;
        }
        let Some(Last { outer, found, slot, sa, .. }) = last else { return Ok(()) };
        let (slot, sa) = (*slot, *sa);
        packet.truncate(outer.total_len);
        let mut put = |op, pending| {
            jobs.push(Job::new(op, &mut []));
            openings.push(Opening { i: i as u8, slot, sa, pending });
        };
        let lifetime = if known { Ok(()) } else { sa.common.check_lifetime() };
        let prepared = lifetime.and_then(|()| prepare_in_usual(sa, outer, found.at, packet.bytes(), &mut put));
        let prepared = match prepared {
            Ok(false) => {
                let (mut op, mut pending) = (CryptoOp::EMPTY, PendingIn::EMPTY);
                let mut frame = packet.frame();
                let prepared =
                    prepare_in_any(sa, outer, found.at, &mut frame, &mut self.derived, &mut op, &mut pending);
                let range = frame.range();
                packet.set_range(range);
                prepared.map(|()| put(op, pending))
            }
            usual => usual.map(|_| ()),
        };
        if prepared.is_ok()
            && let Some(job) = jobs.last_mut()
        {
            job.packet = packet.bytes_mut();
        }
        prepared.map_err(|why| self.gone_inbound(Some(sa), why, Some(found.spi), Some(outer)))
    }

    /// Reads the outer headers of a packet and finds its SA. `None`: bypassed.
    ///
    /// Never inlined, so that `last` has an address: the usual way would carry all of it in registers,
    /// which there are not enough of.
    #[inline(never)]
    fn look_up<'t>(
        &mut self,
        tables: &'t Snapshot,
        packet: &mut Packet,
        last: &mut Option<Last<'t>>,
    ) -> Result<(), Refused> {
        *last = None;
        let mut outer = match IpPacket::parse(packet.bytes()) {
            Ok(ip) => ip,
            Err(fault) => return Err(self.gone_inbound(None, fault.into(), None, None)),
        };
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
                *last = Some(Last::new(outer, found, slot, sa, packet.bytes()));
                Ok(())
            }
            None => Err(self.gone_inbound(None, Drop::NoSa, Some(found.spi), Some(&outer))),
        }
    }

    /// Where the protocol header is; `None` for a packet that is in the clear.
    fn find(&mut self, tables: &Snapshot, outer: &IpPacket, bytes: &[u8]) -> Result<Option<Found>, Drop> {
        let rest = &bytes[outer.upper_at..];
        let spi = |at: usize| {
            rest.get(at..at + 4).map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]])).ok_or(Drop::Truncated)
        };
        let found = |protocol, offset, spi| Ok(Some(Found { protocol, at: outer.upper_at + offset, spi }));
        match outer.upper {
            IpProto::ESP => found(Protocol::Esp, 0, spi(0)?),
            IpProto::AH => found(Protocol::Ah, 0, spi(4)?),
            IpProto::UDP => self.find_in_udp(tables, outer, rest),
            proto if proto == tables.code_points.eesp_protocol && tables.eesp => found(Protocol::Eesp, 0, spi(4)?),
            IpProto::ICMP | IpProto::ICMPV6 => {
                self.learn_path_mtu(tables, outer, bytes);
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn find_in_udp(&mut self, tables: &Snapshot, outer: &IpPacket, datagram: &[u8]) -> Result<Option<Found>, Drop> {
        let (udp, _) = UdpHeader::parse(datagram)?;
        let port = udp.dst_port.get();
        let ours = port == tables.code_points.nat_t_port || port == tables.code_points.psp_port;
        if !ours {
            return Ok(None);
        }
        let (udp, payload) = UdpHeader::parse_exact(datagram)?;
        if udp.checksum.get() != 0 && !wire::udp::is_valid(outer.src, outer.dst, datagram) {
            return Err(Drop::BadChecksum);
        }
        let at = outer.upper_at + UdpHeader::LEN;
        let spi = |at: usize| {
            payload.get(at..at + 4).map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]])).ok_or(Drop::Truncated)
        };
        if port == tables.code_points.psp_port {
            return Ok(Some(Found { protocol: Protocol::Psp, at, spi: spi(4)? }));
        }
        match wire::encap::classify(payload, tables.eesp) {
            NatT::Esp => Ok(Some(Found { protocol: Protocol::Esp, at, spi: spi(0)? })),
            NatT::Eesp => Ok(Some(Found { protocol: Protocol::Eesp, at, spi: spi(4)? })),
            NatT::Keepalive => Err(Drop::Keepalive),
            NatT::Ike => Err(Drop::IkeMessage),
            NatT::Unknown => Err(Drop::NotIpsec),
        }
    }

    /// A packet in the clear: allowed only where a policy says bypass. Routers, and hosts that are
    /// just being started, send ICMP errors about the outer packets: that breaks no policy.
    fn plain(&mut self, tables: &Snapshot, packet: &mut Packet, ip: &IpPacket) -> Result<(), Refused> {
        let ask = |key: &FlowKey| tables.spd.inbound(key).map(|(_, action)| action);
        let bytes = &packet.bytes()[..ip.total_len];
        let decision = self.inbound_flows.decide(tables.generation, bytes, ask).unwrap_or(None);
        let Err(why) = Action::admit_clear(decision) else {
            bump(&self.counters.bypassed, 1);
            return Ok(());
        };
        let why = if wire::icmp::is_error(ip, bytes) { Drop::OuterIcmp } else { why };
        Err(self.gone_inbound(None, why, None, Some(ip)))
    }

    /// What remains once the engine has spoken. Returns the bytes delivered.
    fn finish_inbound(
        &mut self,
        tables: &Snapshot,
        sa: &InboundSa,
        opening: &Opening<'_>,
        packet: &mut Packet,
        proof: Option<IcvOk>,
    ) -> Result<usize, Refused> {
        let Some(ok) = proof else {
            return Err(self.gone_opening(sa, opening, Drop::BadIcv));
        };
        let delivered = if finishes_usual(sa, &opening.pending) {
            finish_in_usual(sa, packet.bytes_mut(), &opening.pending, ok).map(|inner| {
                packet.cut(inner);
                Delivered { sample: false }
            })
        } else {
            let mut frame = packet.frame();
            let delivered = finish_in(sa, &mut frame, &opening.pending, ok);
            let range = frame.range();
            packet.set_range(range);
            delivered
        };
        let delivered = match delivered {
            Ok(delivered) => delivered,
            Err(why) => return Err(self.gone_opening(sa, opening, why)),
        };
        let ask = |key: &FlowKey| tables.spd.inbound(key).map(|(_, action)| action);
        let decision = self.inbound_flows.decide(tables.generation, packet.bytes(), ask);
        match decision.map_or(Err(Drop::BadInner), |decision| Action::admit(decision, tables.group(opening.slot))) {
            Ok(()) => {
                if delivered.sample {
                    bump(&self.counters.sampled, 1);
                }
                Ok(packet.len())
            }
            Err(_) if tables.ends_with(opening.slot, packet.bytes()) => Ok(packet.len()),
            Err(why) => Err(self.gone_opening(sa, opening, why)),
        }
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
            Ok(Reassembled::Whole(_)) => Drop::NoRoom,
            Err(why) => why,
        };
        Err(self.gone_inbound(None, why, None, Some(ip)))
    }

    /// An ICMP error about one of our own packets may tell a smaller path MTU.
    #[cold]
    fn learn_path_mtu(&mut self, tables: &Snapshot, outer: &IpPacket, bytes: &[u8]) {
        if let Some(report) = pmtu::Report::parse(outer, bytes, &tables.code_points) {
            self.path_mtus.learn(self.now_ms, &report, tables);
        }
    }

    /// Once a second, what has aged: learned path MTUs, fragments whose rest never came.
    pub(crate) fn age(&mut self, tables: &Snapshot) {
        if self.now_ms < self.next_age_ms {
            return;
        }
        self.next_age_ms = self.now_ms + 1000;
        self.path_mtus.expire(self.now_ms, tables);
        self.reassembler.expire(self.now_ms);
        let lost = self.reassembler.lost();
        let before = std::mem::replace(&mut self.fragments_lost, lost);
        let drops = &self.counters.drops;
        bump(&drops[Drop::ReassemblyTimeout as usize], lost.timed_out - before.timed_out);
        bump(&drops[Drop::ReassemblyFull as usize], lost.evicted - before.evicted);
    }

    #[cold]
    fn gone_opening(&mut self, sa: &InboundSa, opening: &Opening<'_>, why: Drop) -> Refused {
        self.count_drop(why, Some(&sa.common));
        self.report(why, false, sa.spi, opening.pending.lane, opening.pending.seq.lo(), None);
        Refused
    }

    #[cold]
    fn gone_inbound(&mut self, sa: Option<&InboundSa>, why: Drop, spi: Option<u32>, ip: Option<&IpPacket>) -> Refused {
        self.count_drop(why, sa.map(|sa| &sa.common));
        self.report(why, false, spi.unwrap_or(0), 0, 0, ip);
        Refused
    }
}

/// A packet that goes no further and was counted (or waits for its other fragments).
struct Refused;

fn count_run(tables: &Snapshot, (slot, packets, bytes): (u32, u64, u64)) {
    if let Some(sa) = tables.sad.get(slot)
        && packets > 0
    {
        sa.common.counters.add_owned(packets, bytes);
    }
}
