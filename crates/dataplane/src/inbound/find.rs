//! First step of opening: the SA of each packet of a chunk.

use arrayvec::ArrayVec;
use crypto::Engine;
use ipsec::{Action, DropReason, OuterLayout, Protocol, Reassembled, SpiPlace, pmtu};
use wire::ip::IPV4_HEADER;
use wire::udp::UdpHeader;
use wire::{FlowKey, IpPacket, IpProto};

use super::{InboundPath, Refused};
use crate::counters::bump;
use crate::outbound::CHUNK_MAX;
use crate::prefetch::{prefetch_at, prefetch_key, prefetch_line};
use crate::{Packet, Snapshot};

/// Consecutive packets of a chunk that one SA opens. Their buffers are truncated to the length in
/// their headers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Arrived {
    /// Slot of the SA, or [`Arrived::CLEAR`] or [`Arrived::GONE`].
    pub(super) slot: u32,
    pub(super) outer: OuterLayout,
    /// Nothing is between the protocol and the end of the packets, so that templates apply.
    pub(super) exact: bool,
    pub(super) packets: u8,
}

/// SAs of a chunk. There is at most one entry for each packet.
pub(super) type Arrivals = ArrayVec<Arrived, CHUNK_MAX>;

impl Arrived {
    /// For packets in clear text that a policy bypasses.
    pub(super) const CLEAR: u32 = u32::MAX;
    /// For packets that were dropped or wait for fragments, as long as they are in the batch.
    pub(super) const GONE: u32 = u32::MAX - 1;

    /// One packet without an SA.
    const fn without_sa(slot: u32) -> Self {
        Self { slot, outer: OuterLayout { ip_end: 0, at: 0, proto_at: 0 }, exact: false, packets: 1 }
    }

    fn add_to(self, arrivals: &mut Arrivals) {
        match arrivals.last_mut() {
            Some(last) if Self { packets: last.packets, ..self } == *last => last.packets += self.packets,
            _ => arrivals.push(self),
        }
    }
}

/// State from one chunk of a batch to the next: packets of one SA come in runs, and if the bytes
/// that decide are the same, the SA is the same.
pub(super) struct OuterRun {
    /// `None` if the headers of the next packet must be parsed.
    same: Option<Same>,
    arrived: Arrived,
}

impl OuterRun {
    pub(super) const fn new() -> Self {
        Self { same: None, arrived: Arrived::without_sa(Arrived::GONE) }
    }

    /// Ends the run.
    pub(super) fn stop(&mut self) {
        self.same = None;
    }

    /// The SA of the run, and the bytes that its next packets share; `None` if there is no run.
    #[inline]
    pub(super) fn next(&self) -> Option<(&Arrived, Same)> {
        Some((&self.arrived, self.same?))
    }

    /// Returns how many of `packets` continue the run, and truncates their buffers to their length.
    #[inline]
    fn extend(&self, packets: &mut [Packet]) -> usize {
        let Some(same) = self.same else { return 0 };
        let mut count = 0;
        for packet in packets {
            let Some((total_len, _)) = same.next(packet.bytes()) else { break };
            packet.truncate(total_len);
            count += 1;
        }
        count
    }

    /// Begins a run with a packet `bytes` that `protocol` protects.
    fn begin(&mut self, arrived: Arrived, protocol: Protocol, bytes: &[u8]) {
        self.arrived = arrived;
        self.same = Same::of(arrived.outer, protocol, bytes).filter(|_| arrived.exact);
    }
}

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

/// The bytes that tell an unfragmented IPv4 packet without options, and without a UDP checksum.
/// Words have the first byte lowest.
#[derive(Clone, Copy)]
pub(super) struct Same {
    /// The first three words where [`SAME`] has ones.
    words: [u64; 3],
    /// Destination port, for packets in UDP.
    port: Option<u16>,
    /// Offset of the protocol header. Its first eight bytes are `first` where `mask` has ones.
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

/// Bytes that [`Same`] and [`PlainOuter`] look at.
const SAME_LEN: usize = IPV4_HEADER + UdpHeader::LEN + 8;

/// Offset of the byte that names the protocol in an IPv4 header.
const PROTO_AT: u16 = 9;

impl Same {
    /// What further packets have in common with `bytes`; the protocol header is at `outer.at`.
    fn of(outer: OuterLayout, protocol: Protocol, bytes: &[u8]) -> Option<Self> {
        let (at, udp) = (usize::from(outer.at), outer.at != outer.ip_end);
        let head: &[u8; SAME_LEN] = bytes.first_chunk()?;
        // The comparison has fixed offsets, so that options, extension headers and IPv6 are
        // excluded.
        let plain = head[0] == 0x45 && usize::from(outer.ip_end) == IPV4_HEADER;
        let mask = protocol.spi_mask(udp);
        plain.then(|| Self {
            words: std::array::from_fn(|i| word(head, 8 * i) & SAME[i]),
            port: udp.then(|| (word(head, IPV4_HEADER) >> 16) as u16).map(u16::swap_bytes),
            at,
            first: word(head, at) & mask,
            mask,
        })
    }

    /// The same with more bits of the first eight bytes of the protocol header.
    #[inline]
    pub(super) fn with(self, first: u64, mask: u64) -> Self {
        Self { first: self.first | first, mask: self.mask | mask, ..self }
    }

    /// Length of the next packet of the same SA, if `bytes` are one, and DSCP and ECN of its outer
    /// header.
    #[inline]
    pub(super) fn next(&self, bytes: &[u8]) -> Option<(usize, u8)> {
        let head = bytes.first_chunk::<SAME_LEN>()?;
        let words: [u64; 3] = std::array::from_fn(|i| word(head, 8 * i));
        let differ = (0..3).fold(word(head, self.at) & self.mask ^ self.first, |differ, i| {
            differ | words[i] & SAME[i] ^ self.words[i]
        });
        let total_len = usize::from(((words[0] >> 16) as u16).swap_bytes());
        // One comparison for both bounds: a length below `SAME_LEN` wraps around to a large value.
        let whole = total_len.wrapping_sub(SAME_LEN) <= bytes.len() - SAME_LEN;
        let in_udp = self.port.is_none_or(|port| is_udp(word(head, IPV4_HEADER), port, total_len));
        (differ == 0 && whole && in_udp).then_some((total_len, (words[0] >> 8) as u8))
    }
}

/// The eight bytes at `at`, first byte lowest; zero beyond the end.
#[inline]
fn word(head: &[u8; SAME_LEN], at: usize) -> u64 {
    head.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Whether `header` is the UDP header of an IPv4 packet of `total_len` bytes without options, from
/// any source port: no checksum, and nothing after the datagram.
#[inline]
fn is_udp(header: u64, dst_port: u16, total_len: usize) -> bool {
    // The checksum is part of the compared word and must be 0. A datagram with a checksum takes the
    // slow path, which verifies it.
    let len = total_len.wrapping_sub(IPV4_HEADER) as u16;
    header >> 16 == u64::from(dst_port.swap_bytes()) | u64::from(len.swap_bytes()) << 16
}

/// The outer headers of an unfragmented IPv4 packet without options and without a UDP checksum, in
/// a protocol with SAs that are found by SPI and destination.
#[derive(Clone, Copy)]
struct PlainOuter {
    protocol: Protocol,
    /// Offset of the protocol header.
    at: u16,
    total_len: u16,
    place: SpiPlace,
}

impl PlainOuter {
    #[inline]
    fn read(tables: &Snapshot, bytes: &[u8]) -> Option<Self> {
        let head = bytes.first_chunk::<SAME_LEN>()?;
        let total_len = u16::from_be_bytes([head[2], head[3]]);
        let whole = usize::from(total_len).wrapping_sub(SAME_LEN) <= bytes.len() - SAME_LEN;
        // Neither fragment nor reserved flag; DF may be set.
        if head[0] != 0x45 || head[6] & 0xbf != 0 || head[7] != 0 || !whole {
            return None;
        }
        let points = &tables.code_points;
        let (protocol, at) = match IpProto(head[9]) {
            IpProto::UDP => {
                let at = IPV4_HEADER + UdpHeader::LEN;
                let exact = is_udp(word(head, IPV4_HEADER), points.nat_t_port, total_len.into());
                (Protocol::in_nat_t(&head[at..], tables.eesp).ok().filter(|_| exact)?, at)
            }
            proto => {
                let protocol = Protocol::of_ip(proto, points);
                (protocol.filter(|protocol| tables.eesp || !protocol.sets_first_bit())?, IPV4_HEADER)
            }
        };
        let dst = [head[16], head[17], head[18], head[19]].into();
        let place = tables.sad.locate(protocol, protocol.spi(&head[at..])?, dst)?;
        Some(Self { protocol, at: at as u16, total_len, place })
    }

    fn arrived(&self, slot: u32) -> Arrived {
        let outer = OuterLayout { ip_end: IPV4_HEADER as u16, at: self.at, proto_at: PROTO_AT };
        Arrived { slot, outer, exact: true, packets: 1 }
    }
}

/// Whether two packets are likely to be of one SA: both have the same addresses, protocol and SPI.
fn share_sa(packet: &[u8], second: &[u8]) -> bool {
    let (Some(a), Some(b)) = (packet.first_chunk::<SAME_LEN>(), second.first_chunk::<SAME_LEN>()) else {
        return false;
    };
    let at = IPV4_HEADER + if a[9] == IpProto::UDP.0 { UdpHeader::LEN } else { 0 };
    // ESP starts with the SPI and goes on with the sequence number, in UDP with a first bit of 0.
    // The other protocols have the SPI after four bytes that packets of an SA share.
    let esp = a[9] == IpProto::ESP.0 || at != IPV4_HEADER && a[at] < 0x80;
    let spi = |head| word(head, at) & if esp { u64::from(u32::MAX) } else { u64::MAX };
    spi(a) == spi(b) && (1..3).all(|i| word(a, 8 * i) & SAME[i] == word(b, 8 * i) & SAME[i])
}

/// Prefetches what the next steps read of the SAs in `slots`: all of it arrives at the same time.
#[inline]
fn prefetch_sas(tables: &Snapshot, engine: Engine, slots: &[u32]) {
    let sas = || slots.iter().filter_map(|slot| tables.sad.get(*slot));
    if !tables.many_sas {
        return sas().for_each(|sa| sa.hot_lines().for_each(prefetch_at));
    }
    sas().for_each(|sa| sa.hot_lines().for_each(prefetch_at));
    slots.iter().filter_map(|slot| tables.groups.get(*slot as usize)).for_each(prefetch_line);
    for sa in sas() {
        sa.lanes.first().into_iter().for_each(prefetch_line);
        sa.only_key().into_iter().for_each(|key| prefetch_at(tables.keys.slot_address(key)));
    }
    for sa in sas() {
        if let Some(key) = sa.only_key().and_then(|key| tables.keys.get(key)) {
            prefetch_key(key, engine);
        }
        if let Some(window) = sa.lanes.first().and_then(|lane| lane.window.get()) {
            prefetch_line(window.top_word());
        }
    }
}

impl InboundPath<'_, '_> {
    /// Finds the SA of each packet of a chunk, which starts at packet `first` of the batch.
    pub(super) fn find_chunk(
        &mut self,
        first: usize,
        packets: &mut [Packet],
        run: &mut OuterRun,
        arrivals: &mut Arrivals,
    ) {
        arrivals.clear();
        let mut found = run.extend(packets);
        if found == 0
            && let [packet, second, ..] = packets
            && share_sa(packet.bytes(), second.bytes())
        {
            // A run of packets of one SA needs no look-up of the others.
            self.look_up(first, packet, run).add_to(arrivals);
            found = 1;
            if run.same.is_some() {
                let more = run.extend(&mut packets[1..]);
                Arrived { packets: more as u8, ..run.arrived }.add_to(arrivals);
                found += more;
            }
        } else if found > 0 {
            arrivals.push(Arrived { packets: found as u8, ..run.arrived });
        }
        if found < packets.len() {
            self.look_up_rest(first + found, &mut packets[found..], run, arrivals);
        }
    }

    /// Looks up packets, which start at packet `first` of the batch. All are located before the
    /// first is read, so that their cache lines arrive at the same time.
    #[inline(never)] // leaves the registers to the packets of one SA
    fn look_up_rest(&mut self, first: usize, packets: &mut [Packet], run: &mut OuterRun, arrivals: &mut Arrivals) {
        let tables = self.tables;
        run.stop();
        let mut places: ArrayVec<Option<PlainOuter>, CHUNK_MAX> = ArrayVec::new();
        for packet in &*packets {
            let plain = PlainOuter::read(tables, packet.bytes());
            if let Some(line) = plain.and_then(|plain| tables.sad.line(plain.place)) {
                prefetch_line(line);
            }
            places.push(plain);
        }
        let mut slots = [Arrived::GONE; CHUNK_MAX];
        for (plain, slot) in places.iter().zip(&mut slots) {
            *slot = plain.and_then(|plain| tables.sad.find(plain.place)).unwrap_or(Arrived::GONE);
            if let Some(sa) = tables.sad.get(*slot) {
                prefetch_line(sa);
            }
        }
        prefetch_sas(tables, self.shared.engine(), &slots[..packets.len()]);
        let (mut hits, last) = (0, packets.len() - 1);
        for (i, packet) in packets.iter_mut().enumerate() {
            match places[i] {
                Some(plain) if slots[i] != Arrived::GONE => {
                    hits += 1;
                    packet.truncate(plain.total_len.into());
                    let arrived = plain.arrived(slots[i]);
                    arrived.add_to(arrivals);
                    if i == last {
                        run.begin(arrived, plain.protocol, packet.bytes());
                    }
                }
                _ => self.look_up(first + i, packet, run).add_to(arrivals),
            }
        }
        bump(&self.shared.counters().sad.hits, hits);
    }

    /// Reads the outer headers of packet `i` of the batch and finds its SA; otherwise it has been
    /// dealt with. The run begins with it, or ends.
    #[inline(never)] // as above
    fn look_up(&mut self, i: usize, packet: &mut Packet, run: &mut OuterRun) -> Arrived {
        run.stop();
        match self.look_up_any(packet) {
            Ok(Some((arrived, protocol))) => {
                run.begin(arrived, protocol, packet.bytes());
                arrived
            }
            Ok(None) => Arrived::without_sa(Arrived::CLEAR),
            Err(Refused) => {
                self.shared.refuse(i);
                Arrived::without_sa(Arrived::GONE)
            }
        }
    }

    /// Reads the outer headers of a packet, of any kind, and finds its SA. `None`: bypassed.
    fn look_up_any(&mut self, packet: &mut Packet) -> Result<Option<(Arrived, Protocol)>, Refused> {
        let tables = self.tables;
        let mut outer = match IpPacket::parse(packet.bytes()) {
            Ok(ip) => ip,
            Err(fault) => return Err(self.gone_inbound(None, fault.into(), None, None)),
        };
        // Before the SAD look-up: only the first fragment has the SPI, and the ICV covers the whole
        // packet (RFC 4303 §3.4.1).
        if outer.fragment.is_some() {
            outer = self.reassemble(packet, &outer)?;
        }
        let found = match self.find(&outer, &packet.bytes()[..outer.total_len]) {
            Ok(Some(found)) => found,
            Ok(None) => return self.plain(packet, &outer).map(|()| None),
            Err(why) => return Err(self.gone_inbound(None, why, None, Some(&outer))),
        };
        let slot = tables.sad.lookup(found.protocol, found.spi, outer.src, outer.dst);
        let Some(slot) = slot.filter(|slot| tables.sad.get(*slot).is_some()) else {
            bump(&self.shared.counters().sad.misses, 1);
            return Err(self.gone_inbound(None, DropReason::NoSa, Some(found.spi), Some(&outer)));
        };
        bump(&self.shared.counters().sad.hits, 1);
        // Trailing bytes would move the ICV, which is found from the end of the packet.
        packet.truncate(outer.total_len);
        let (ip_end, at, proto_at) = (outer.upper_at as u16, found.at as u16, outer.proto_at as u16);
        let outer = OuterLayout { ip_end, at, proto_at };
        // A UDP datagram may end before its packet does.
        let in_udp = || Same::of(outer, found.protocol, packet.bytes());
        let exact = at == ip_end || in_udp().is_some_and(|same| same.next(packet.bytes()).is_some());
        Ok(Some((Arrived { slot, outer, exact, packets: 1 }, found.protocol)))
    }

    /// Where the protocol header is; `None` for a packet that is in the clear.
    fn find(&mut self, outer: &IpPacket, bytes: &[u8]) -> Result<Option<Found>, DropReason> {
        let tables = self.tables;
        let rest = &bytes[outer.upper_at..];
        if outer.upper == IpProto::UDP {
            return self.find_in_udp(outer, rest);
        }
        // Without an EESP SA its number may belong to other traffic: the policy decides.
        let protocol = Protocol::of_ip(outer.upper, &tables.code_points);
        if let Some(protocol) = protocol.filter(|protocol| tables.eesp || !protocol.sets_first_bit()) {
            return Found::new(protocol, outer.upper_at, rest).map(Some);
        }
        if matches!(outer.upper, IpProto::ICMP | IpProto::ICMPV6) {
            self.learn_path_mtu(outer, bytes);
        }
        Ok(None)
    }

    fn find_in_udp(&mut self, outer: &IpPacket, datagram: &[u8]) -> Result<Option<Found>, DropReason> {
        let tables = self.tables;
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
    fn plain(&mut self, packet: &mut Packet, ip: &IpPacket) -> Result<(), Refused> {
        let tables = self.tables;
        let search = |key: &FlowKey| tables.spd.inbound(key).map(|(_, action)| action);
        let bytes = &packet.bytes()[..ip.total_len];
        let decision = self.own.flows.decide(tables.generation, bytes, search).unwrap_or(None);
        let Err(why) = Action::admit_clear(decision) else {
            bump(&self.shared.counters().bypassed, 1);
            return Ok(());
        };
        // Only the reason changes; the packet is dropped in either case.
        let why = if wire::icmp::is_error(ip, bytes) { DropReason::OuterIcmp } else { why };
        Err(self.gone_inbound(None, why, None, Some(ip)))
    }

    /// Outer fragments: kept until whole, then the packet holds the whole.
    #[cold]
    fn reassemble(&mut self, packet: &mut Packet, ip: &IpPacket) -> Result<IpPacket, Refused> {
        let why = match self.own.reassembler.push(self.shared.now_ms(), ip, &packet.bytes()[..ip.total_len]) {
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
    fn learn_path_mtu(&mut self, outer: &IpPacket, bytes: &[u8]) {
        let tables = self.tables;
        if let Some(report) = pmtu::Report::parse(outer, bytes, &tables.code_points) {
            self.own.path_mtus.learn(self.shared.now_ms(), &report, tables);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_path_reads_the_flags_as_the_parser_does() {
        let mut head = [0; SAME_LEN];
        (head[0], head[1], head[3], head[8], head[9], head[23]) = (0x45, 0xb9, SAME_LEN as u8, 64, 50, 9);
        let outer = OuterLayout { ip_end: 20, at: 20, proto_at: PROTO_AT };
        for reserved in [0, 0x80] {
            head[6] = reserved;
            let same = Same::of(outer, Protocol::Esp, &head).unwrap();
            for flags in [0, 0x20, 0x40, 0x60, 0x80, 0xc0] {
                let mut next = head;
                next[6] = flags;
                let equal = flags & !0x40 == reserved;
                let parsed = IpPacket::parse(&next).expect("a packet");
                let expected = equal.then_some((parsed.total_len, parsed.tos));
                assert_eq!(same.next(&next), expected, "{flags:#x} after {reserved:#x}");
            }
        }
    }
}
