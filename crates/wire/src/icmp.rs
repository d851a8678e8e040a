//! ICMP and ICMPv6, as far as path MTU discovery needs them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::Sum;
use crate::ip::{IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header};
use crate::{IpPacket, IpProto, ParseError, emit_prefix};

/// Header of ICMP and ICMPv6 errors; the quoted packet follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IcmpHeader {
    /// Type of the message.
    pub kind: u8,
    /// Code, which refines the type.
    pub code: u8,
    /// Checksum; of ICMPv6 with a pseudo header.
    pub checksum: U16,
    /// Type-specific field: the next-hop MTU.
    pub rest: U32,
}
const _: () = assert!(size_of::<IcmpHeader>() == IcmpHeader::LEN);

impl IcmpHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 8;
}

/// ICMP: destination unreachable.
pub const UNREACHABLE_V4: u8 = 3;
/// Code of [`UNREACHABLE_V4`]: fragmentation needed and DF set (RFC 1191).
pub const FRAGMENTATION_NEEDED: u8 = 4;
/// ICMPv6: packet too big (RFC 4443 §3.2).
pub const PACKET_TOO_BIG_V6: u8 = 2;

/// Longest ICMP error with its IPv4 header in bytes (RFC 1812 §4.3.2.3).
pub const MAX_ERROR_V4: usize = 576;
/// Longest ICMPv6 error with its IPv6 header in bytes: the smallest MTU (RFC 4443 §2.4 c).
pub const MAX_ERROR_V6: usize = 1280;

/// Writes to `out` the ICMP error to the sender of `original`, which states that the path from
/// `from` on has an MTU of `mtu` bytes, and returns its length, at most [`MAX_ERROR_V6`]. Call
/// [`may_answer_too_big`] first. Over IPv4 an `mtu` above 65,535 is sent as 65,535.
///
/// # Errors
/// [`ParseError`] when `out` is too short for the headers and the quote, or `from` is of another
/// family than the packet.
pub fn emit_too_big(
    out: &mut [u8],
    ip: &IpPacket,
    original: &[u8],
    from: IpAddr,
    mtu: u32,
) -> Result<usize, ParseError> {
    let original = original.get(..ip.total_len).unwrap_or(original);
    match (from, ip.src) {
        (IpAddr::V4(from), IpAddr::V4(to)) => emit_fragmentation_needed(out, original, from, to, mtu),
        (IpAddr::V6(from), IpAddr::V6(to)) => emit_packet_too_big(out, original, from, to, mtu),
        _ => Err(ParseError::Malformed { what: "ICMP error", why: "sender and receiver are of two families" }),
    }
}

fn emit_fragmentation_needed(
    out: &mut [u8],
    original: &[u8],
    from: Ipv4Addr,
    to: Ipv4Addr,
    mtu: u32,
) -> Result<usize, ParseError> {
    // As much of the packet as fits, so that the sender also finds the headers of a tunnel in it
    // (RFC 1812 §4.3.2.3).
    let quote = &original[..original.len().min(MAX_ERROR_V4 - IPV4_HEADER - IcmpHeader::LEN)];
    let len = IcmpHeader::LEN + quote.len();
    let header = Ipv4Header::new(from, to, IpProto::ICMP, len).map(|h| Ipv4Header { tos: TOS, ..h });
    let message = place(out, header.map(|header| header.with_checksum()), len)?;
    let head = IcmpHeader {
        kind: UNREACHABLE_V4,
        code: FRAGMENTATION_NEEDED,
        checksum: U16::ZERO,
        rest: mtu.min(u16::MAX.into()).into(),
    };
    fill(message, head, quote, Sum::default())?;
    Ok(IPV4_HEADER + len)
}

fn emit_packet_too_big(
    out: &mut [u8],
    original: &[u8],
    from: Ipv6Addr,
    to: Ipv6Addr,
    mtu: u32,
) -> Result<usize, ParseError> {
    let quote = &original[..original.len().min(MAX_ERROR_V6 - IPV6_HEADER - IcmpHeader::LEN)];
    let len = IcmpHeader::LEN + quote.len();
    let header = Ipv6Header::new(from, to, IpProto::ICMPV6, len).map(|h| h.with_class_and_flow(TOS, 0));
    let message = place(out, header, len)?;
    let head = IcmpHeader { kind: PACKET_TOO_BIG_V6, code: 0, checksum: U16::ZERO, rest: mtu.into() };
    fill(message, head, quote, Sum::default().pseudo_v6(from, to, IpProto::ICMPV6, len))?;
    Ok(IPV6_HEADER + len)
}

/// DSCP of errors: CS6, as RFC 1812 §5.3.2 and RFC 4594 §3.1 give control traffic precedence.
const TOS: u8 = 0xc0;

/// Writes the IP `header` and returns the `len` bytes after it.
fn place<T: IntoBytes + Immutable>(out: &mut [u8], header: Option<T>, len: usize) -> Result<&mut [u8], ParseError> {
    let (what, have, need) = ("ICMP error", out.len(), size_of::<T>() + len);
    let header = header.ok_or(ParseError::Malformed { what, why: "longer than an IP packet" })?;
    let packet = out.get_mut(..need).ok_or(ParseError::Truncated { what, need, have })?;
    emit_prefix(what, &header, packet)?;
    Ok(&mut packet[size_of::<T>()..])
}

/// Fills the buffer `message`, which must have exactly the right length, and sets the checksum.
fn fill(message: &mut [u8], head: IcmpHeader, quote: &[u8], pseudo: Sum) -> Result<(), ParseError> {
    message[IcmpHeader::LEN..].copy_from_slice(quote);
    emit_prefix("ICMP error", &head, message)?;
    let sum = pseudo.add(message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

/// A "fragmentation needed" or "packet too big" error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TooBig<'a> {
    /// MTU of the path in bytes. Over IPv4 0 if an old router does not report it (RFC 1191 §5). It
    /// is unauthenticated: the user must apply a lower bound.
    pub mtu: u32,
    /// The start of the packet that was too big, for
    /// [`IpPacket::parse_quoted`](crate::IpPacket::parse_quoted).
    pub quoted: &'a [u8],
}

impl<'a> TooBig<'a> {
    /// Parses `packet`, with its headers already parsed into `ip`; `None` unless it is a complete
    /// "fragmentation needed" or "packet too big".
    ///
    /// # Errors
    /// [`ParseError`] when the message is cut off or its checksum is wrong.
    pub fn parse(ip: &IpPacket, packet: &'a [u8]) -> Result<Option<Self>, ParseError> {
        if ip.fragment.is_some() {
            return Ok(None);
        }
        let pseudo = match (ip.upper, ip.is_v6()) {
            // ICMP has no pseudo header, ICMPv6 has one (RFC 4443 §2.3).
            (IpProto::ICMP, false) => Sum::default(),
            (IpProto::ICMPV6, true) => {
                Sum::default().pseudo(ip.src, ip.dst, ip.upper, ip.total_len.saturating_sub(ip.upper_at))
            }
            _ => return Ok(None),
        };
        let message = packet.get(ip.upper_at..ip.total_len).unwrap_or_default();
        let (head, quoted) = IcmpHeader::ref_from_prefix(message).map_err(|_| ParseError::Truncated {
            what: "ICMP error",
            need: IcmpHeader::LEN,
            have: message.len(),
        })?;
        let mtu = match (ip.upper, head.kind, head.code) {
            // The next-hop MTU is the lower half of the field (RFC 1191 §4).
            (IpProto::ICMP, UNREACHABLE_V4, FRAGMENTATION_NEEDED) => head.rest.get() & 0xffff,
            (IpProto::ICMPV6, PACKET_TOO_BIG_V6, _) => head.rest.get(),
            _ => return Ok(None),
        };
        if !pseudo.add(message).is_valid() {
            return Err(ParseError::Malformed { what: "ICMP error", why: "checksum is wrong" });
        }
        Ok(Some(Self { mtu, quoted }))
    }
}

/// True when an ICMP error may be sent about this packet (RFC 1122 §3.2.2, RFC 4443 §2.4 e): not
/// about an ICMP error or redirect, a non-first fragment, a packet to many receivers, or one with a
/// source that is not a single host.
pub fn may_answer(ip: &IpPacket, packet: &[u8]) -> bool {
    may_answer_too_big(ip, packet) && !is_many(ip.dst)
}

/// Likewise for "too big", which ICMPv6 also sends about multicasts (RFC 4443 §2.4 e.3).
pub fn may_answer_too_big(ip: &IpPacket, packet: &[u8]) -> bool {
    ip.fragment.is_none_or(|fragment| fragment.offset == 0)
        // An error to a multicast or broadcast source would amplify an attack.
        && is_single_host(ip.src)
        && (ip.is_v6() || !is_many(ip.dst))
        && !is_error(ip, packet)
}

fn is_many(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_multicast(),
    }
}

fn is_single_host(addr: IpAddr) -> bool {
    match addr {
        // 0/8 and 240/4 contain no hosts; the latter includes broadcast.
        IpAddr::V4(v4) => !(v4.octets()[0] == 0 || v4.is_loopback() || v4.is_multicast() || v4.octets()[0] >= 240),
        IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_loopback() || v6.is_multicast()),
    }
}

/// True for ICMP errors and redirects, and where the type cannot be seen.
pub fn is_error(ip: &IpPacket, packet: &[u8]) -> bool {
    let key = crate::FlowKey::of(ip, packet);
    // For ICMP, a flow key has the type in the high byte of the source port.
    let kind = key.src_port >> 8;
    match key.proto {
        IpProto::ICMP => key.opaque_ports || matches!(kind, 3 | 4 | 5 | 11 | 12),
        IpProto::ICMPV6 => key.opaque_ports || kind < 128 || kind == 137,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::checksum;
    use crate::ip::tests::{packet_like, v4, v6};

    fn emitted(original: &[u8], from: &str, mtu: u32) -> Vec<u8> {
        let mut out = [0xee; 1500];
        let ip = IpPacket::parse(original).unwrap();
        let len = emit_too_big(&mut out, &ip, original, from.parse().unwrap(), mtu).unwrap();
        assert!(emit_too_big(&mut out[..len - 1], &ip, original, from.parse().unwrap(), mtu).is_err());
        assert!(out[len..].iter().all(|&b| b == 0xee));
        out[..len].to_vec()
    }

    #[test]
    fn fragmentation_needed_has_the_layout_of_rfc_1191() {
        let original = v4(IpProto::UDP, &[7; 9]);
        let packet = emitted(&original, "192.0.2.1", 1400);
        assert_eq!((packet.len(), packet[9]), (20 + 8 + 29, 1));
        assert_eq!(packet[12..20], [192, 0, 2, 1, 10, 0, 0, 1]);
        assert_eq!((&packet[20..22], &packet[24..28]), (&[3, 4][..], &[0, 0, 0x05, 0x78][..]));
        assert!(checksum::is_valid(&packet[..20]) && checksum::is_valid(&packet[20..]));
        assert_eq!(packet[28..], original);
        assert_eq!(emitted(&original, "192.0.2.1", 70_000)[24..28], [0, 0, 0xff, 0xff]);
    }

    #[test]
    fn quotes_are_as_long_as_allowed() {
        assert_eq!(emitted(&v4(IpProto::UDP, &[7; 1400]), "192.0.2.1", 1300).len(), MAX_ERROR_V4);
        assert_eq!(emitted(&v6(IpProto::UDP, &[7; 1400]), "2001:db8::9", 1300).len(), MAX_ERROR_V6);
        // Link-layer padding is not quoted.
        let padded = [v4(IpProto::UDP, &[7; 9]), vec![0; 30]].concat();
        assert_eq!(emitted(&padded, "192.0.2.1", 1300).len(), 20 + 8 + 29);
    }

    #[test]
    fn what_was_emitted_reads_back() {
        for (original, from) in
            [(v4(IpProto::ESP, &[7; 900]), "192.0.2.1"), (v6(IpProto::ESP, &[7; 1400]), "2001:db8::9")]
        {
            let mut packet = emitted(&original, from, 1280);
            let ip = IpPacket::parse(&packet).unwrap();
            let too_big = TooBig::parse(&ip, &packet).unwrap().unwrap();
            assert_eq!(too_big.mtu, 1280);
            assert!(original.starts_with(too_big.quoted));
            let quoted = IpPacket::parse_quoted(too_big.quoted).unwrap();
            assert_eq!((quoted.upper, quoted.dst), (IpProto::ESP, IpPacket::parse(&original).unwrap().dst));
            assert!(!may_answer(&ip, &packet) && !may_answer_too_big(&ip, &packet));

            let last = packet.len() - 1;
            packet[last] ^= 1;
            assert!(TooBig::parse(&ip, &packet).is_err(), "checksum");
        }
    }

    #[test]
    fn other_messages_are_not_too_big() {
        let read = |packet: &[u8]| TooBig::parse(&IpPacket::parse(packet).unwrap(), packet).map(|t| t.is_some());
        assert_eq!(read(&v4(IpProto::UDP, &[3, 4, 0, 0, 0, 0, 0, 0])), Ok(false));
        assert_eq!(read(&v4(IpProto::ICMP, &[8, 0, 0, 0, 0, 0, 0, 0])), Ok(false));
        assert_eq!(read(&v4(IpProto::ICMP, &[3, 3, 0, 0, 0, 0, 0, 0])), Ok(false));
        assert_eq!(read(&v6(IpProto::ICMP, &[3, 4, 0, 0, 0, 0, 0, 0])), Ok(false));
        assert_eq!(read(&v4(IpProto::ICMPV6, &[2, 0, 0, 0, 0, 0, 0, 0])), Ok(false));
        assert!(read(&v4(IpProto::ICMP, &[3, 4, 0, 0, 0, 0, 0])).is_err());
        let mut fragment = v4(IpProto::ICMP, &[3, 4, 0, 0, 0, 0, 0, 0]);
        fragment[7] = 1;
        assert_eq!(read(&fragment), Ok(false));
    }

    #[test]
    fn errors_answer_only_what_they_may() {
        let judged = |packet: &[u8]| {
            let ip = IpPacket::parse(packet).unwrap();
            (may_answer(&ip, packet), may_answer_too_big(&ip, packet))
        };
        let edited = |packet: &[u8], at: usize, with: &[u8]| {
            let mut packet = packet.to_vec();
            packet[at..at + with.len()].copy_from_slice(with);
            judged(&packet)
        };
        let (yes, no) = ((true, true), (false, false));
        let (udp4, udp6) = (v4(IpProto::UDP, &[0; 8]), v6(IpProto::UDP, &[0; 8]));
        assert_eq!((judged(&udp4), judged(&udp6)), (yes, yes));
        for src in [[0, 0, 0, 0], [0, 1, 2, 3], [127, 0, 0, 1], [224, 0, 0, 1], [240, 0, 0, 1], [255; 4]] {
            assert_eq!(edited(&udp4, 12, &src), no, "{src:?}");
        }
        for dst in [[224, 0, 0, 1], [255; 4]] {
            assert_eq!(edited(&udp4, 16, &dst), no, "{dst:?}");
        }
        assert_eq!(edited(&udp4, 6, &[0x20, 0]), yes);
        assert_eq!(edited(&udp4, 6, &[0, 1]), no);
        for src in ["::", "::1", "ff02::1"] {
            assert_eq!(edited(&udp6, 8, &src.parse::<Ipv6Addr>().unwrap().octets()), no, "{src}");
        }
        assert_eq!(edited(&udp6, 24, &"ff02::1".parse::<Ipv6Addr>().unwrap().octets()), (false, true));
        for kind in 0..=255u8 {
            let expected = if matches!(kind, 3 | 4 | 5 | 11 | 12) { no } else { yes };
            assert_eq!(judged(&v4(IpProto::ICMP, &[kind, 0, 0, 0])), expected, "{kind}");
            let expected = if kind < 128 || kind == 137 { no } else { yes };
            assert_eq!(judged(&v6(IpProto::ICMPV6, &[kind, 0, 0, 0])), expected, "{kind}");
        }
        assert_eq!(judged(&v4(IpProto::ICMP, &[])), no);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in packet_like(), mtu: u32, room in 0usize..200) {
            if let Ok(ip) = IpPacket::parse(&bytes) {
                let _ = TooBig::parse(&ip, &bytes);
                let _ = may_answer(&ip, &bytes);
                let mut out = vec![0; room];
                if let Ok(len) = emit_too_big(&mut out, &ip, &bytes, ip.dst, mtu) {
                    let packet = &out[..len];
                    let read = TooBig::parse(&IpPacket::parse(packet).unwrap(), packet).unwrap().unwrap();
                    prop_assert_eq!(read.quoted, &bytes[..ip.total_len]);
                }
            }
        }
    }
}
