//! Flow keys: identification of the packets of one flow.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use zerocopy::{Immutable, IntoBytes, KnownLayout};

use crate::ip::{Extensions, IPV4_HEADER};
use crate::{IpPacket, IpProto};

/// Addresses, protocol and ports of a packet: five 64-bit words without padding, which is how they
/// are compared and hashed.
///
/// Ports are 0 for protocols without them and where they cannot be seen; ICMP puts its type in the
/// high byte and its code in the low byte of `src_port`, Mobility puts its message type in the high
/// byte (as RFC 7296 §3.13.1 does).
#[derive(Clone, Copy, Debug, Eq, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(8))]
pub struct FlowKey {
    /// Source address, IPv4 mapped (`::ffff:a.b.c.d`).
    pub src: [u8; 16],
    /// Destination address, likewise.
    pub dst: [u8; 16],
    /// Source port in host order.
    pub src_port: u16,
    /// Destination port in host order.
    pub dst_port: u16,
    /// Upper-layer protocol. Of a non-first IPv6 fragment: what its fragment header names, which
    /// may be an extension header.
    pub proto: IpProto,
    /// True for a fragment with unknown ports (RFC 4301 OPAQUE).
    pub opaque_ports: bool,
    /// True for IPv6. Distinguishes an IPv6 packet with mapped addresses from an IPv4 one.
    pub v6: bool,
    /// Always 0: fills the last word.
    pub zero: u8,
}
const _: () = assert!(size_of::<FlowKey>() == 40);

impl FlowKey {
    /// The key of a packet with these properties, ports visible. `src` and `dst` are of one family.
    pub fn new(src: IpAddr, dst: IpAddr, proto: IpProto, src_port: u16, dst_port: u16) -> Self {
        let upper = Upper { proto, src_port, dst_port, opaque: false };
        Self::join(src, dst, upper)
    }

    /// The key of `packet`, with its headers already parsed into `ip`.
    #[inline]
    pub fn of(ip: &IpPacket, packet: &[u8]) -> Self {
        let upper = match ip.fragment {
            None => Upper::read(ip.upper, packet, ip.upper_at, ip.total_len),
            Some(fragment) => Upper::of_fragment(fragment.offset, ip, packet),
        };
        Self::join(ip.src, ip.dst, upper)
    }

    #[inline]
    fn join(src: IpAddr, dst: IpAddr, upper: Upper) -> Self {
        Self {
            src: mapped(src),
            dst: mapped(dst),
            src_port: upper.src_port,
            dst_port: upper.dst_port,
            proto: upper.proto,
            opaque_ports: upper.opaque,
            v6: dst.is_ipv6(),
            zero: 0,
        }
    }

    /// Source and destination.
    pub fn addresses(&self) -> (IpAddr, IpAddr) {
        let addr = |octets: [u8; 16]| {
            let addr = std::net::Ipv6Addr::from(octets);
            addr.to_ipv4_mapped().filter(|_| !self.v6).map_or(IpAddr::V6(addr), IpAddr::V4)
        };
        (addr(self.src), addr(self.dst))
    }

    /// The key of packets in the reverse direction. The type of a message is not reversed.
    #[inline]
    pub fn reversed(&self) -> Self {
        let mut key = *self;
        (key.src, key.dst) = (self.dst, self.src);
        if !self.proto.has_message_type() {
            (key.src_port, key.dst_port) = (self.dst_port, self.src_port);
        }
        key
    }

    /// A 64-bit hash of the whole key. The `seed` should be secret, because otherwise an attacker
    /// can construct collisions. The same seed returns the same hash on all machines of one byte
    /// order.
    #[inline]
    pub fn hash(&self, seed: u64) -> u64 {
        // Both factors of each product depend on the seed: a factor that a peer could force to zero
        // would hide the other one.
        let [a, b, c, d, e] = self.words();
        let addresses = mix(a ^ seed ^ K[0], b ^ seed.rotate_left(13) ^ K[1])
            ^ mix(c ^ seed.rotate_left(26) ^ K[2], d ^ seed.rotate_left(39) ^ K[3]);
        let all = mix(addresses ^ seed ^ K[4], e ^ seed.rotate_left(52) ^ K[5]);
        // Consecutive ports would still form a lattice.
        let all = (all ^ all >> 32).wrapping_mul(K[0] | 1);
        all ^ all >> 32
    }

    #[inline]
    fn words(&self) -> [u64; 5] {
        zerocopy::transmute!(*self)
    }
}

/// Upper-layer fields of a key. By value, so that a key can be made in registers.
#[derive(Clone, Copy)]
struct Upper {
    proto: IpProto,
    src_port: u16,
    dst_port: u16,
    opaque: bool,
}

impl Upper {
    /// Reads the upper-layer header at `at` of a packet that ends at `end`.
    #[inline]
    fn read(proto: IpProto, packet: &[u8], at: usize, end: usize) -> Self {
        let ports = |src_port, dst_port| Self { proto, src_port, dst_port, opaque: false };
        if !proto.has_ports() && !proto.has_message_type() {
            return ports(0, 0);
        }
        // A packet that ends before its ports counts as opaque. Port 0 instead could match a policy
        // for a range of ports.
        let Some(&[a, b, c, d]) = packet.get(at..end).and_then(<[u8]>::first_chunk::<4>) else {
            return Self { opaque: true, ..ports(0, 0) };
        };
        match proto {
            IpProto::ICMP | IpProto::ICMPV6 => ports(u16::from_be_bytes([a, b]), 0),
            // MH Type is the third byte of a Mobility Header (RFC 6275 §6.1.1).
            IpProto::MOBILITY => ports(u16::from_be_bytes([c, 0]), 0),
            _ => ports(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])),
        }
    }

    /// Out of line: fragments are rare, and a first IPv6 fragment may have extension headers left.
    #[cold]
    fn of_fragment(offset: usize, ip: &IpPacket, packet: &[u8]) -> Self {
        let mut opaque = Self { proto: ip.upper, src_port: 0, dst_port: 0, opaque: true };
        let Some(packet) = packet.get(..ip.total_len).filter(|_| offset == 0) else {
            return opaque;
        };
        let mut at = ip.upper_at;
        if ip.is_v6() {
            for extension in Extensions::after(packet, ip.upper, ip.upper_at) {
                let Ok(extension) = extension else {
                    return opaque;
                };
                opaque.proto = extension.next;
                at = extension.at + extension.len;
            }
        }
        Self::read(opaque.proto, packet, at, packet.len())
    }
}

/// The first fractional bits of π (nothing-up-my-sleeve numbers).
const K: [u64; 6] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7344,
    0xa409_3822_299f_31d0,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6c,
];

#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[inline]
fn mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        // Written as one 128-bit number, because the wide reads that follow would stall on narrower
        // stores.
        IpAddr::V4(v4) => (0xffff_0000_0000 | u128::from(v4.to_bits())).to_be_bytes(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl PartialEq for FlowKey {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (self.words(), other.words());
        (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) | (a[4] ^ b[4]) == 0
    }
}

impl Hash for FlowKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        for word in self.words() {
            state.write_u64(word);
        }
    }
}

/// The flow of an unfragmented IPv4 TCP or UDP packet without options: protocol and source, then
/// destination and ports, as they are in the second and third 64-bit word of the packet, first byte
/// lowest. It identifies most packets at a fraction of the cost of a [`FlowKey`]: the match of a
/// packet takes three comparisons without branches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PlainFlow([u64; 2]);

/// Fields that vary between packets of a flow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PlainHeader {
    /// Bytes of the packet by its own header; at most the bytes read.
    pub total_len: usize,
    /// The first eight bytes, the first one lowest: version, TOS, length, identification, DF.
    pub first: u64,
    /// The next eight, likewise: TTL, protocol, checksum, source.
    pub second: u64,
}

impl PlainHeader {
    /// Those of no packet.
    pub const NONE: Self = Self { total_len: 0, first: 0, second: 0 };

    /// Returns the fields of the IPv4 packet at the start of `bytes`, if it has at least a header
    /// and ports and is complete.
    #[inline(always)]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let [first, second, _] = PlainFlow::words(bytes)?;
        let total_len = usize::from(((first >> 16) as u16).swap_bytes());
        // One comparison for both bounds: a length below `LEN` wraps around to a large value.
        let whole = total_len.wrapping_sub(PlainFlow::LEN) <= bytes.len() - PlainFlow::LEN;
        whole.then_some(Self { total_len, first, second })
    }

    /// Returns 0 if both packets have the same length, TOS and DF.
    #[inline]
    pub fn differs_from(self, other: Self) -> u64 {
        (self.first ^ other.first) & !PlainTemplate::IDENTIFICATION
    }

    /// DSCP and ECN.
    #[inline]
    pub fn tos(self) -> u8 {
        (self.first >> 8) as u8
    }
}

impl PlainFlow {
    /// A flow that no packet has: `MASK` clears the lowest byte of the second word of a packet.
    pub const NONE: Self = Self([1, 0]);

    /// Bytes that are compared: the header and the ports.
    pub const LEN: usize = IPV4_HEADER + 4;

    /// Fields common to all packets of a flow: version and header length, no fragment; protocol,
    /// source. Destination and ports are the whole third word.
    const MASK: [u64; 2] = [
        u64::from_le_bytes([0xff, 0, 0, 0, 0, 0, 0xbf, 0xff]),
        u64::from_le_bytes([0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff]),
    ];

    /// The first word of every such packet, under its mask.
    const FIRST: u64 = 0x45;

    /// Returns the flow of `packet`, which must be one whole packet; `None` if it needs a
    /// [`FlowKey`].
    #[inline]
    pub fn of(packet: &[u8]) -> Option<Self> {
        let [a, b, c] = Self::words(packet)?;
        let flow = Self([b & Self::MASK[1], c]);
        let plain = a & Self::MASK[0] == Self::FIRST && matches!(flow.proto(), IpProto::TCP | IpProto::UDP);
        plain.then_some(flow)
    }

    /// Returns the flow and the header fields of the packet at the start of `bytes`, if it has a
    /// flow and is complete.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<(Self, PlainHeader)> {
        let flow = Self::of(bytes)?;
        Some((flow, PlainHeader::read(bytes)?))
    }

    /// TCP or UDP.
    #[inline]
    pub fn proto(self) -> IpProto {
        IpProto((self.0[0] >> 8) as u8)
    }

    /// Source and destination address and both ports, as the bytes are in the packet.
    #[inline]
    pub fn ends(self) -> (u64, u32) {
        let Self([b, c]) = self;
        (b >> 32 << 32 | c & u64::from(u32::MAX), (c >> 32) as u32)
    }

    /// A keyed hash of the flow in the low 32 bits; not that of its [`FlowKey`].
    #[inline]
    pub fn hash(self, seed: u64) -> u64 {
        const MIX: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 / golden ratio: spreads every bit upwards
        let (addresses, ports) = self.ends();
        let rest = u64::from(ports) << 8 | u64::from(self.proto().0);
        let mixed = ((addresses ^ seed).wrapping_mul(MIX).rotate_left(32) ^ rest).wrapping_mul(seed | 1);
        (mixed ^ mixed >> 32).wrapping_mul(MIX) >> 32
    }

    /// Returns the header fields of the packet at the start of `bytes`, if it belongs to this flow
    /// and is complete.
    #[inline(always)]
    pub fn next(&self, bytes: &[u8]) -> Option<PlainHeader> {
        let words = Self::words(bytes)?;
        PlainHeader::read(bytes).filter(|_| self.starts(words))
    }

    /// Returns whether packets of this flow start with these words, first byte lowest.
    #[inline(always)]
    pub fn starts(&self, [a, b, c]: [u64; 3]) -> bool {
        let [of_b, of_c] = self.0;
        (a & Self::MASK[0] ^ Self::FIRST) | (b & Self::MASK[1] ^ of_b) | (c ^ of_c) == 0
    }

    /// Returns the template of the packets of this flow with the length, TOS and DF of `head`.
    #[inline]
    pub fn like(&self, head: PlainHeader) -> PlainTemplate {
        let Self([b, c]) = *self;
        PlainTemplate { words: [head.first & !PlainTemplate::IDENTIFICATION, b, c], total_len: head.total_len as u16 }
    }

    /// The first words, first byte lowest.
    #[inline(always)]
    fn words(bytes: &[u8]) -> Option<[u64; 3]> {
        let head: &[u8; Self::LEN] = bytes.first_chunk()?;
        let (words, _) = head.as_chunks::<8>();
        Some([u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]), u64::from_le_bytes(words[2])])
    }
}

/// Packets of one [`PlainFlow`] that have the same length, TOS and DF, and differ in
/// identification, TTL and checksum only. In a bulk transfer, most packets match the template of
/// the previous one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PlainTemplate {
    words: [u64; 3],
    total_len: u16,
}

impl PlainTemplate {
    /// A template that no packet matches.
    pub const NONE: Self = Self { words: [u64::MAX; 3], total_len: u16::MAX };

    /// Ignored bits of the first word.
    const IDENTIFICATION: u64 = u64::from_le_bytes([0, 0, 0, 0, 0xff, 0xff, 0, 0]);

    /// Returns the packet length in bytes.
    #[inline]
    pub fn total_len(&self) -> u16 {
        self.total_len
    }

    /// Returns whether `packet` matches the template and nothing follows it.
    #[inline]
    pub fn is_of(&self, packet: &[u8]) -> bool {
        packet.len() == usize::from(self.total_len) && self.next(packet).is_some()
    }

    /// [`PlainFlow::next`] for packets that match the template.
    #[inline(always)]
    pub fn next(&self, bytes: &[u8]) -> Option<PlainHeader> {
        let ([a, b, c], total_len) = (PlainFlow::words(bytes)?, usize::from(self.total_len));
        let [of_a, of_b, of_c] = self.words;
        let differ = (a & !Self::IDENTIFICATION ^ of_a) | (b & PlainFlow::MASK[1] ^ of_b) | (c ^ of_c);
        (differ == 0 && total_len <= bytes.len()).then_some(PlainHeader { total_len, first: a, second: b })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::ip::tests::{v4, v6};

    fn key(packet: &[u8]) -> FlowKey {
        FlowKey::of(&IpPacket::parse(packet).expect("a good packet"), packet)
    }

    #[test]
    fn ports_come_from_protocols_that_have_them() {
        for (proto, expected) in [
            (IpProto::TCP, (0x0102, 0x0304)),
            (IpProto::UDP, (0x0102, 0x0304)),
            (IpProto::UDP_LITE, (0x0102, 0x0304)),
            (IpProto::SCTP, (0x0102, 0x0304)),
            (IpProto::DCCP, (0x0102, 0x0304)),
            (IpProto::ICMP, (0x0102, 0)),
            (IpProto::ICMPV6, (0x0102, 0)),
            (IpProto::MOBILITY, (0x0300, 0)),
            (IpProto::ESP, (0, 0)),
            (IpProto::GRE, (0, 0)),
        ] {
            for packet in [v4(proto, &[1, 2, 3, 4, 5]), v6(proto, &[1, 2, 3, 4, 5])] {
                let key = key(&packet);
                assert_eq!((key.src_port, key.dst_port), expected, "{proto}");
                assert_eq!((key.proto, key.opaque_ports), (proto, false));
            }
        }
    }

    #[test]
    fn ports_that_cannot_be_seen_are_opaque() {
        assert!(key(&v4(IpProto::TCP, &[1, 2, 3])).opaque_ports);
        // Bytes after the packet are not the packet's.
        let mut padded = v4(IpProto::UDP, &[1, 2]);
        padded.extend_from_slice(&[3, 4, 5, 6]);
        assert!(key(&padded).opaque_ports);

        let mut later = v4(IpProto::TCP, &[1, 2, 3, 4]);
        later[7] = 1;
        let key = key(&later);
        assert_eq!((key.opaque_ports, key.src_port, key.dst_port), (true, 0, 0));
    }

    #[test]
    fn a_first_fragment_shows_its_ports() {
        let mut first = v4(IpProto::TCP, &[1, 2, 3, 4, 0, 0, 0, 0]);
        first[6] = 0x20;
        assert_eq!((key(&first).dst_port, key(&first).opaque_ports), (0x0304, false));

        let fragment = |field: u16| {
            let field = field.to_be_bytes();
            [
                60, 0, field[0], field[1], 0, 0, 0, 1, /* destination options */ 17, 0, 1, 4, 0, 0, 0, 0, 0, 7, 0,
                8, 0, 8, 0, 0,
            ]
        };
        let first = key(&v6(IpProto::FRAGMENT, &fragment(1)));
        assert_eq!((first.proto, first.src_port, first.dst_port), (IpProto::UDP, 7, 8));
        let later = key(&v6(IpProto::FRAGMENT, &fragment(9)));
        assert_eq!((later.proto, later.src_port, later.opaque_ports), (IpProto::DEST_OPTIONS, 0, true));
        let cut = key(&v6(IpProto::FRAGMENT, &fragment(1)[..12]));
        assert_eq!((cut.proto, cut.opaque_ports), (IpProto::DEST_OPTIONS, true));
    }

    #[test]
    fn mapped_addresses_in_ipv6_are_not_ipv4() {
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let v4 = FlowKey::new(a, b, IpProto::UDP, 1, 2);
        let v6 = FlowKey::new(IpAddr::from(v4.src), IpAddr::from(v4.dst), IpProto::UDP, 1, 2);
        assert_eq!((v4.src, v4.dst), (v6.src, v6.dst));
        assert_ne!(v4, v6);
        assert_ne!(v4.hash(1), v6.hash(1));
    }

    #[test]
    fn no_packet_is_of_no_flow() {
        for fill in [0, 0xff] {
            let mut packet = [fill; 40];
            packet[..10].copy_from_slice(&[0x45, 0, 0, 40, 0, 0, 0, 0, fill, fill]);
            assert!(PlainHeader::read(&packet).is_some());
            assert_eq!(PlainFlow::NONE.next(&packet), None);
            assert_eq!(PlainTemplate::NONE.next(&packet), None);
        }
    }

    #[test]
    fn message_types_do_not_turn_round() {
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        assert_eq!(FlowKey::new(a, b, IpProto::TCP, 1, 2).reversed(), FlowKey::new(b, a, IpProto::TCP, 2, 1));
        assert_eq!(FlowKey::new(a, b, IpProto::ICMP, 9, 0).reversed(), FlowKey::new(b, a, IpProto::ICMP, 9, 0));
    }

    #[test]
    fn neighbouring_flows_spread_over_all_buckets() {
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        for seed in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            let hashes: Vec<u64> =
                (0..4096).map(|port| FlowKey::new(a, b, IpProto::UDP, port, 4500).hash(seed)).collect();
            assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), 4096);
            for shift in [0, 16, 48, 56] {
                let mut buckets = [0; 64];
                hashes.iter().for_each(|hash| buckets[(hash >> shift) as usize % 64] += 1);
                assert!(buckets.iter().all(|&n| (24..=112).contains(&n)), "{shift}: {buckets:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn the_next_packet_of_a_plain_flow_is_one_with_the_same_key(
            first in plain_head(), change in prop::option::of((0usize..24, 0u8..8)), len in 20usize..40, total in 18u8..44,
        ) {
            let mut next = first.clone();
            next[3] = total;
            if let Some((at, bit)) = change {
                next[at] ^= 1 << bit;
            }
            next.truncate(len);
            let Some(flow) = PlainFlow::of(&first) else {
                prop_assert!(first[6] & !0x40 != 0 || ![IpProto::TCP, IpProto::UDP].contains(&IpProto(first[9])));
                return Ok(());
            };
            let parsed = IpPacket::parse(&next).ok().filter(|ip| ip.total_len >= PlainFlow::LEN);
            let expected = parsed.filter(|_| PlainFlow::of(&next) == PlainFlow::of(&first));
            let found = flow.next(&next);
            let lengths = found.map(|head| (head.total_len, head.tos()));
            prop_assert_eq!(lengths, expected.map(|ip| (ip.total_len, ip.tos)));
            // Those that are like the first: of the flow, with its length, TOS and DF.
            let Some(head) = flow.next(&first) else { return Ok(()) };
            let same = |next: &PlainHeader| next.first << 32 == head.first << 32 && next.first >> 48 == head.first >> 48;
            prop_assert_eq!(flow.like(head).next(&next), found.filter(same));
        }
    }

    /// Forty bytes that are mostly an IPv4 packet, with ports.
    fn plain_head() -> impl Strategy<Value = Vec<u8>> {
        let proto = prop::sample::select(vec![6u8, 17, 17, 1]);
        (any::<[u8; 20]>(), proto, prop::sample::select(vec![0u8, 0x40, 0x40, 0x20, 0x80])).prop_map(
            |(bytes, proto, flags)| {
                let mut packet = bytes.repeat(2);
                packet[..4].copy_from_slice(&[0x45, bytes[1], 0, 40]);
                (packet[6], packet[7], packet[9]) = (flags, 0, proto);
                packet
            },
        )
    }

    proptest! {
        #[test]
        fn equal_means_every_field_is_equal(mut bytes: [u8; 37], at in 0usize..37, bit in 0u8..9) {
            let build = |b: &[u8; 37]| FlowKey::new(
                IpAddr::from(*b[..16].first_chunk::<16>().unwrap()),
                IpAddr::from(*b[16..32].first_chunk::<16>().unwrap()),
                IpProto(b[32]),
                u16::from_be_bytes([b[33], b[34]]),
                u16::from_be_bytes([b[35], b[36]]),
            );
            let one = build(&bytes);
            if bit < 8 {
                bytes[at] ^= 1 << bit;
            }
            let two = build(&bytes);
            prop_assert_eq!(one == two, bit == 8);
            prop_assert_eq!(one.hash(7) == two.hash(7), bit == 8);
            prop_assert_eq!(one.reversed().reversed(), one);
        }
    }
}
