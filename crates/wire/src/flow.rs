//! The key by which packets of one flow are recognised.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use zerocopy::{Immutable, IntoBytes, KnownLayout};

use crate::ip::{DONT_FRAGMENT, Extensions, IPV4_HEADER};
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
    /// Upper-layer protocol. Of a non-first IPv6 fragment: what its fragment header names, which may
    /// be an extension header.
    pub proto: IpProto,
    /// True for a fragment whose ports are not known (RFC 4301 OPAQUE).
    pub opaque_ports: bool,
    /// True for IPv6. Tells an IPv6 packet that carries mapped addresses from an IPv4 one.
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

    /// The key of `packet`, whose headers were read into `ip`.
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

    /// The key of packets that go the other way. The type of a message is not turned round.
    #[inline]
    pub fn reversed(&self) -> Self {
        let mut key = *self;
        (key.src, key.dst) = (self.dst, self.src);
        if !self.proto.has_message_type() {
            (key.src_port, key.dst_port) = (self.dst_port, self.src_port);
        }
        key
    }

    /// A 64-bit hash of the whole key. With a `seed` that peers cannot guess they cannot aim at
    /// collisions either; the same seed gives the same hash on every machine of one byte order.
    #[inline]
    pub fn hash(&self, seed: u64) -> u64 {
        // Both factors of each product depend on the seed: a factor that a peer could force to zero
        // would hide the other one.
        let [a, b, c, d, e] = self.words();
        let addresses = mix(a ^ seed ^ K[0], b ^ seed.rotate_left(13) ^ K[1])
            ^ mix(c ^ seed.rotate_left(26) ^ K[2], d ^ seed.rotate_left(39) ^ K[3]);
        let all = mix(addresses ^ seed ^ K[4], e ^ seed.rotate_left(52) ^ K[5]);
        // Neighbouring ports would still lie on a lattice.
        let all = (all ^ all >> 32).wrapping_mul(K[0] | 1);
        all ^ all >> 32
    }

    #[inline]
    fn words(&self) -> [u64; 5] {
        zerocopy::transmute!(*self)
    }
}

/// What a key takes from the upper layer. By value, so that a key can be made in registers.
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
        let Some(&[a, b, c, d]) = packet.get(at..end).and_then(<[u8]>::first_chunk::<4>) else {
            return Self { opaque: true, ..ports(0, 0) };
        };
        match proto {
            IpProto::ICMP | IpProto::ICMPV6 => ports(u16::from_be_bytes([a, b]), 0),
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

/// The first bits of π after the point: numbers with nothing up their sleeve.
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
        // One 128-bit number: pieces written one by one would stall the wide reads that follow.
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

/// The flow of an unfragmented IPv4 TCP or UDP packet without options, as its bytes stand: what most
/// packets can be told by, at a fraction of the work of a [`FlowKey`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ShortKey {
    addresses: u64,
    ports: u32,
    proto: u32,
}

impl ShortKey {
    /// The key of no packet.
    pub const NONE: Self = Self { addresses: 0, ports: 0, proto: 0 };

    /// The key of `packet`, which is one whole packet, when it is of that kind.
    #[inline]
    pub fn of(packet: &[u8]) -> Option<Self> {
        let head: &[u8; IPV4_HEADER + 4] = packet.first_chunk()?;
        let (_, words) = head.as_chunks::<4>().0.split_at(3);
        let word = |i: usize| u32::from_ne_bytes(words[i]);
        let fragment = u16::from_be_bytes([head[6], head[7]]) & !DONT_FRAGMENT != 0;
        let plain = head[0] == 0x45 && !fragment && matches!(IpProto(head[9]), IpProto::TCP | IpProto::UDP);
        let addresses = u64::from(word(0)) << 32 | u64::from(word(1));
        plain.then(|| Self { addresses, ports: word(2), proto: head[9].into() })
    }

    /// A keyed hash of the flow in the low 32 bits; not that of its [`FlowKey`].
    #[inline]
    pub fn hash(&self, seed: u64) -> u64 {
        const MIX: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 / golden ratio: spreads every bit upwards
        let rest = u64::from(self.ports) << 8 | u64::from(self.proto);
        let mixed = ((self.addresses ^ seed).wrapping_mul(MIX).rotate_left(32) ^ rest).wrapping_mul(seed | 1);
        (mixed ^ mixed >> 32).wrapping_mul(MIX) >> 32
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
