//! Checksums inside a transport-mode SA that came through a NAT (RFC 3948 §3.1.2, RFC 7296
//! §2.23.1).
//!
//! TCP and UDP checksums cover the addresses of the IP header. The peer used the addresses before
//! the NAT; the NAT changed the header but cannot change the encrypted checksum. The difference of
//! both sums is a constant of the SA, so the checksum is corrected without reading the data: a
//! valid checksum stays valid, and an invalid one stays invalid.

use std::net::IpAddr;

use wire::checksum::{Sum, of_sum};
use wire::{IpPacket, IpProto};

use crate::Peer;

/// Difference to add to the checksums of an SA's packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ChecksumFixup(u16);

impl ChecksumFixup {
    /// Computes the difference between the addresses that the peer used and those that packets have
    /// at this host. `None` if they are equal.
    pub(crate) fn new(original: Peer, seen: Peer) -> Option<Self> {
        if original == seen {
            return None;
        }
        let sum = [original.local, original.remote].into_iter().fold(Sum::default(), without);
        Some(Self([seen.local, seen.remote].into_iter().fold(sum, with).fold()))
    }

    /// Corrects the checksum of the IP packet `packet`, if its protocol has one with a pseudo
    /// header. Fragments are not changed, because only the first one has the field; nor is a UDP
    /// checksum of zero, which means "no checksum".
    pub(crate) fn apply(self, packet: &mut [u8]) {
        let Ok(ip) = IpPacket::parse(packet) else { return };
        let (Some(at), None) = (checksum_at(ip.upper), ip.fragment) else { return };
        let Some(field) = packet.get_mut(ip.upper_at + at..).and_then(<[u8]>::first_chunk_mut::<2>) else { return };
        let old = u16::from_be_bytes(*field);
        let udp = ip.upper == IpProto::UDP;
        if udp && old == 0 {
            return;
        }
        // RFC 1624 §3, equation 3, for all words of the addresses at once.
        let new = of_sum(u32::from(!old) + u32::from(self.0));
        *field = if udp && new == 0 { [0xff; 2] } else { new.to_be_bytes() };
    }
}

/// Offset of a checksum over the pseudo header in the header of a protocol.
fn checksum_at(proto: IpProto) -> Option<usize> {
    match proto {
        IpProto::TCP => Some(16),
        IpProto::UDP => Some(6),
        IpProto::ICMPV6 => Some(2),
        _ => None,
    }
}

fn with(sum: Sum, addr: IpAddr) -> Sum {
    match addr {
        IpAddr::V4(addr) => sum.add(&addr.octets()),
        IpAddr::V6(addr) => sum.add(&addr.octets()),
    }
}

/// In one's complement, a word is subtracted by adding its inverse.
fn without(sum: Sum, addr: IpAddr) -> Sum {
    match addr {
        IpAddr::V4(addr) => sum.add(&addr.octets().map(|octet| !octet)),
        IpAddr::V6(addr) => sum.add(&addr.octets().map(|octet| !octet)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::ip;

    use super::*;
    use crate::testkit::ones_complement_sum;

    /// A packet of the protocol between two addresses, with `data` after the header and a checksum
    /// computed from scratch.
    fn packet(src: IpAddr, dst: IpAddr, proto: IpProto, data: &[u8]) -> Vec<u8> {
        let upper_len = header_len(proto) + data.len();
        let mut upper = [vec![0; header_len(proto)], data.to_vec()].concat();
        if proto == IpProto::UDP {
            upper[4..6].copy_from_slice(&(upper_len as u16).to_be_bytes());
        }
        let sum = slow(src, dst, proto, &upper);
        let at = checksum_at(proto).unwrap();
        upper[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        let mut packet = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut header = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, proto.0, 0, 0];
                header.extend([src.octets(), dst.octets()].concat());
                header
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let mut header = vec![0x60, 0, 0, 0, 0, 0, proto.0, 64];
                header.extend([src.octets(), dst.octets()].concat());
                header
            }
            _ => panic!("two families"),
        };
        packet.extend(upper);
        let len = packet.len();
        ip::set_total_len(&mut packet, len).unwrap();
        packet
    }

    fn header_len(proto: IpProto) -> usize {
        match proto {
            IpProto::TCP => 20,
            _ => 8,
        }
    }

    /// The checksum field by the book: everything summed, as if the field were zero.
    fn slow(src: IpAddr, dst: IpAddr, proto: IpProto, upper: &[u8]) -> u16 {
        let octets = |addr: IpAddr| match addr {
            IpAddr::V4(addr) => addr.octets().to_vec(),
            IpAddr::V6(addr) => addr.octets().to_vec(),
        };
        let mut upper = upper.to_vec();
        let at = checksum_at(proto).unwrap();
        upper[at..at + 2].fill(0);
        let pseudo = [octets(src), octets(dst), vec![0, proto.0], (upper.len() as u16).to_be_bytes().to_vec()].concat();
        let sum = !ones_complement_sum(&[pseudo, upper].concat(), 0);
        if sum == 0 && proto == IpProto::UDP { 0xffff } else { sum }
    }

    /// The packet after a NAT: other addresses, nothing else.
    fn moved(packet: &[u8], src: IpAddr, dst: IpAddr) -> Vec<u8> {
        let mut moved = packet.to_vec();
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => moved[12..20].copy_from_slice(&[src.octets(), dst.octets()].concat()),
            (IpAddr::V6(src), IpAddr::V6(dst)) => moved[8..40].copy_from_slice(&[src.octets(), dst.octets()].concat()),
            _ => panic!("two families"),
        }
        moved
    }

    fn addr(v6: bool, bits: u128) -> IpAddr {
        if v6 { IpAddr::from(bits.to_be_bytes()) } else { IpAddr::from((bits as u32).to_be_bytes()) }
    }

    fn upper(packet: &[u8]) -> &[u8] {
        &packet[if packet[0] >> 4 == 4 { 20 } else { 40 }..]
    }

    proptest! {
        #[test]
        fn a_repaired_checksum_is_the_one_computed_anew(
            v6: bool, kind in 0..3usize, original: [u128; 2], seen: [u128; 2], same: bool,
            data in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..40),
        ) {
            let proto = [IpProto::TCP, IpProto::UDP, IpProto::ICMPV6][kind];
            let [from, to] = original.map(|bits| addr(v6, bits));
            let [src, dst] = if same { [addr(v6, seen[0]), to] } else { seen.map(|bits| addr(v6, bits)) };
            let mut packet = moved(&packet(from, to, proto, &data), src, dst);
            let want = slow(src, dst, proto, upper(&packet));
            let fixup = ChecksumFixup::new(Peer { local: to, remote: from }, Peer { local: dst, remote: src });
            if let Some(fixup) = fixup {
                fixup.apply(&mut packet);
            }
            let at = checksum_at(proto).unwrap();
            let field = u16::from_be_bytes([upper(&packet)[at], upper(&packet)[at + 1]]);
            // Both zeros of one's complement are the same sum; TCP and ICMPv6 may carry either.
            let canonical = |sum: u16| if sum == 0xffff { 0 } else { sum };
            prop_assert_eq!(canonical(field), canonical(want));
            prop_assert!(proto != IpProto::UDP || field != 0);
        }

        #[test]
        fn any_bytes_are_left_whole(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), first in 0..4usize) {
            if let Some(byte) = bytes.first_mut() {
                *byte = [0x45, 0x46, 0x60, 0][first];
            }
            let before = bytes.clone();
            ChecksumFixup(0x1234).apply(&mut bytes);
            let changed = bytes.iter().zip(&before).filter(|(a, b)| a != b).count();
            prop_assert!(bytes.len() == before.len() && changed <= 2);
        }
    }

    #[test]
    fn what_has_no_checksum_of_its_own_stays() {
        let [inside, outside, here]: [IpAddr; 3] =
            [[10, 0, 0, 2].into(), [192, 0, 2, 7].into(), [198, 51, 100, 1].into()];
        let seen = Peer { local: here, remote: outside };
        let fixup = ChecksumFixup::new(Peer { local: here, remote: inside }, seen).unwrap();
        let unchanged = |packet: &[u8]| {
            let mut repaired = packet.to_vec();
            fixup.apply(&mut repaired);
            repaired == packet
        };
        let sent = packet(inside, here, IpProto::UDP, b"data");
        let received = moved(&sent, outside, here);
        assert!(!unchanged(&received), "this one is repaired");
        let mut without = received.clone();
        without[26..28].fill(0);
        assert!(unchanged(&without), "UDP without a checksum");
        let mut fragment = received.clone();
        fragment[6] = 0x20;
        assert!(unchanged(&fragment), "a first fragment");
        let mut other = received.clone();
        other[9] = 1;
        assert!(unchanged(&other), "ICMP does not sum addresses");
        assert!(unchanged(&received[..24]), "a header that is cut");
        assert_eq!(ChecksumFixup::new(seen, seen), None);
    }
}
