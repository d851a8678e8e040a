//! IPv4 and IPv6 headers, read once per packet.
//!
//! [`IpPacket`] is the parsed form used by the data path; `ip/walk.rs` iterates over options and
//! extension headers, `ip/edit.rs` modifies a packet in place.

mod edit;
mod walk;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum;
use crate::{IpProto, ParseError, emit_prefix};

pub use edit::{set_ecn, set_proto, set_tos, set_total_len, update_checksum_v4};
pub use walk::{Extension, Extensions, IpOption, Ipv4Options, Ipv6Options, OPT_END, OPT_NOP};

/// Smallest IPv4 header in bytes.
pub const IPV4_HEADER: usize = 20;
/// IPv6 header in bytes, without extension headers.
pub const IPV6_HEADER: usize = 40;

/// The fixed part of an IPv4 header (RFC 791 §3.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv4Header {
    /// Version in the high nibble, header length in 4-byte units in the low one.
    pub version_ihl: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Header and payload in bytes.
    pub total_len: U16,
    /// Identification.
    pub id: U16,
    /// Flags in the top three bits, fragment offset in 8-byte units below.
    pub flags_fragment: U16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Header checksum.
    pub checksum: U16,
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
}
const _: () = assert!(size_of::<Ipv4Header>() == IPV4_HEADER);

/// DF in [`Ipv4Header::flags_fragment`].
pub const DONT_FRAGMENT: u16 = 0x4000;
/// MF in [`Ipv4Header::flags_fragment`].
pub const MORE_FRAGMENTS: u16 = 0x2000;

impl Ipv4Header {
    /// A header without options before `payload_len` bytes; TTL 64, other fields zero, the checksum
    /// correct. `None` when the packet would be longer than 65,535 bytes.
    #[inline]
    pub fn new(src: Ipv4Addr, dst: Ipv4Addr, proto: IpProto, payload_len: usize) -> Option<Self> {
        let total_len = u16::try_from(IPV4_HEADER + payload_len).ok()?;
        let header = Self {
            version_ihl: 0x45,
            tos: 0,
            total_len: total_len.into(),
            id: U16::ZERO,
            flags_fragment: U16::ZERO,
            ttl: 64,
            protocol: proto.0,
            checksum: U16::ZERO,
            src: src.octets(),
            dst: dst.octets(),
        };
        Some(header.with_checksum())
    }

    /// The header with the checksum of a header without options.
    #[inline]
    #[must_use]
    pub fn with_checksum(mut self) -> Self {
        self.checksum = U16::ZERO;
        self.checksum = checksum::checksum(self.as_bytes()).into();
        self
    }

    /// Writes the header, its checksum made correct, to the start of `out`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the buffer `out` is shorter than 20 bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<(), ParseError> {
        emit_prefix("IPv4 header", &self.with_checksum(), out)
    }
}

/// The IPv6 header (RFC 8200 §3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv6Header {
    /// Version (4 bits), traffic class (8), flow label (20).
    pub version_class_flow: U32,
    /// Bytes after this header.
    pub payload_len: U16,
    /// Protocol of what follows.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
}
const _: () = assert!(size_of::<Ipv6Header>() == IPV6_HEADER);

impl Ipv6Header {
    /// A header before `payload_len` bytes, extension headers among them; hop limit 64, traffic
    /// class and flow label zero. `None` when there are more than 65,535.
    #[inline]
    pub fn new(src: Ipv6Addr, dst: Ipv6Addr, next_header: IpProto, payload_len: usize) -> Option<Self> {
        Some(Self {
            version_class_flow: U32::new(6 << 28),
            payload_len: u16::try_from(payload_len).ok()?.into(),
            next_header: next_header.0,
            hop_limit: 64,
            src: src.octets(),
            dst: dst.octets(),
        })
    }

    /// The header with this traffic class and flow label, of which 20 bits count.
    #[inline]
    #[must_use]
    pub fn with_class_and_flow(mut self, class: u8, flow: u32) -> Self {
        self.version_class_flow = U32::new(6 << 28 | u32::from(class) << 20 | flow & 0xf_ffff);
        self
    }

    /// Traffic class: DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.version_class_flow.get() >> 20) as u8
    }

    /// Flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        self.version_class_flow.get() & 0xf_ffff
    }

    /// Writes the header to the start of `out`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the buffer `out` is shorter than 40 bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<(), ParseError> {
        emit_prefix("IPv6 header", self, out)
    }
}

/// Position of a fragment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fragment {
    /// Identification (16 bits in IPv4, 32 in IPv6).
    pub id: u32,
    /// Byte offset of this fragment's payload in the original payload.
    pub offset: usize,
    /// More fragments follow.
    pub more: bool,
}

/// Parsed fields of one IP packet. A value proves that the headers it describes are inside the
/// bytes it was parsed from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IpPacket {
    /// Source address.
    pub src: IpAddr,
    /// Destination address. With an IPv6 routing header: the one in the IPv6 header.
    pub dst: IpAddr,
    /// Bytes of the packet by its own header; at most the bytes parsed.
    pub total_len: usize,
    /// Offset of the upper-layer header: after IPv4 options or IPv6 extension headers. For a
    /// fragment: of the fragment's payload.
    pub upper_at: usize,
    /// Offset of the byte that names `upper`: 9 in IPv4, the last Next Header in IPv6.
    pub proto_at: usize,
    /// The upper-layer protocol.
    pub upper: IpProto,
    /// Set for fragments only; an unfragmented packet (or an IPv6 atomic fragment) has `None`.
    pub fragment: Option<Fragment>,
    /// DSCP and ECN (IPv4 TOS, IPv6 traffic class).
    pub tos: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv4 DF; always true for IPv6.
    pub dont_fragment: bool,
    /// Number of IPv6 extension headers walked over, 0 for IPv4.
    pub extensions: u8,
}

/// Longest payload that fragments may make in bytes (with its header even less in IPv4).
const MAX_PAYLOAD: usize = 65_535;

impl IpPacket {
    /// True for IPv6.
    #[inline]
    pub fn is_v6(&self) -> bool {
        self.dst.is_ipv6()
    }

    /// The protocol number that an IP-in-IP header uses for this packet.
    #[inline]
    pub fn ip_in_ip(&self) -> IpProto {
        if self.is_v6() { IpProto::IPV6 } else { IpProto::IPV4 }
    }

    /// Reads the headers of the packet that starts `bytes`; bytes after the packet (link-layer
    /// padding) are allowed and excluded by `total_len`.
    ///
    /// On the hot path keep the `Result` and borrow from it (`let Ok(ip) = &parsed`): moving the
    /// packet out copies 80 bytes that were only just written, which costs more than a third of the
    /// parse.
    ///
    /// # Errors
    /// [`ParseError`] when the version is neither 4 nor 6, a length does not fit the bytes, IPv6
    /// extension headers are cut off or more than [`MAX_EXTENSIONS`], a fragment ends above 65,535
    /// bytes, or the packet is an IPv6 jumbogram.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        Self::read::<false>(bytes)
    }

    /// Reads the headers of a packet of which only the start is there, as ICMP errors quote it.
    /// `total_len` is what is there of the packet.
    ///
    /// # Errors
    /// As [`IpPacket::parse`], except that only headers must be complete.
    pub fn parse_quoted(bytes: &[u8]) -> Result<Self, ParseError> {
        Self::read::<true>(bytes)
    }

    #[inline]
    fn read<const QUOTED: bool>(bytes: &[u8]) -> Result<Self, ParseError> {
        match bytes.first().map(|b| b >> 4) {
            Some(4) => Self::read_v4::<QUOTED>(bytes),
            Some(6) => Self::read_v6::<QUOTED>(bytes),
            Some(_) => Err(ParseError::Malformed { what: "IP packet", why: "version is neither 4 nor 6" }),
            None => Err(ParseError::Truncated { what: "IP packet", need: 1, have: 0 }),
        }
    }

    #[inline]
    fn read_v4<const QUOTED: bool>(bytes: &[u8]) -> Result<Self, ParseError> {
        let (header, _) = Ipv4Header::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated {
            what: "IPv4 header",
            need: IPV4_HEADER,
            have: bytes.len(),
        })?;
        let header_len = usize::from(header.version_ihl & 15) * 4;
        let mut total_len = usize::from(header.total_len.get());
        // Both fields come from the network: every later slice relies on this check.
        if header_len < IPV4_HEADER || total_len < header_len {
            return Err(ParseError::Malformed { what: "IPv4 header", why: "header length and total length disagree" });
        }
        // An ICMP error quotes only the start of a packet (RFC 792), so that the payload may be
        // missing.
        let need = if QUOTED { header_len } else { total_len };
        if need > bytes.len() {
            return Err(ParseError::Truncated { what: "IPv4 packet", need, have: bytes.len() });
        }
        if QUOTED {
            total_len = total_len.min(bytes.len());
        }
        let flags = header.flags_fragment.get();
        let mut fragment = None;
        // The first fragment has offset 0 but More Fragments; the last one has an offset but no
        // flag.
        if flags & (MORE_FRAGMENTS | 0x1fff) != 0 {
            let offset = usize::from(flags & 0x1fff) * 8;
            fragment = Some(Fragment::new(
                header.id.get().into(),
                offset,
                flags & MORE_FRAGMENTS != 0,
                total_len - header_len,
            )?);
        }
        Ok(Self {
            src: IpAddr::V4(Ipv4Addr::from(header.src)),
            dst: IpAddr::V4(Ipv4Addr::from(header.dst)),
            total_len,
            upper_at: header_len,
            proto_at: 9,
            upper: IpProto(header.protocol),
            fragment,
            tos: header.tos,
            hop_limit: header.ttl,
            dont_fragment: flags & DONT_FRAGMENT != 0,
            extensions: 0,
        })
    }

    #[inline]
    fn read_v6<const QUOTED: bool>(bytes: &[u8]) -> Result<Self, ParseError> {
        let (header, _) = Ipv6Header::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated {
            what: "IPv6 header",
            need: IPV6_HEADER,
            have: bytes.len(),
        })?;
        let payload_len = usize::from(header.payload_len.get());
        let mut total_len = IPV6_HEADER + payload_len;
        // A Hop-by-Hop header could carry the real length (RFC 2675). Without this check, such a
        // packet would be parsed with the wrong length.
        if payload_len == 0 && header.next_header == IpProto::HOP_BY_HOP.0 {
            return Err(ParseError::Malformed { what: "IPv6 packet", why: "jumbograms are not supported" });
        }
        if QUOTED {
            total_len = total_len.min(bytes.len());
        } else if total_len > bytes.len() {
            return Err(ParseError::Truncated { what: "IPv6 packet", need: total_len, have: bytes.len() });
        }
        let packet = Self {
            src: IpAddr::V6(Ipv6Addr::from(header.src)),
            dst: IpAddr::V6(Ipv6Addr::from(header.dst)),
            total_len,
            upper_at: IPV6_HEADER,
            proto_at: 6,
            upper: IpProto(header.next_header),
            fragment: None,
            tos: header.traffic_class(),
            hop_limit: header.hop_limit,
            // IPv6 routers never fragment (RFC 8200 §5).
            dont_fragment: true,
            extensions: 0,
        };
        // Few packets have extension headers, so their walk should not be inlined here.
        if is_extension(packet.upper) {
            return packet.walk_extensions(&bytes[..total_len]);
        }
        Ok(packet)
    }

    #[cold]
    fn walk_extensions(mut self, bytes: &[u8]) -> Result<Self, ParseError> {
        // The iterator limits the number of headers to MAX_EXTENSIONS, so that a crafted packet
        // cannot cause a long walk.
        for extension in Extensions::after(bytes, self.upper, self.upper_at) {
            let extension = extension?;
            self.extensions += 1;
            self.proto_at = extension.at;
            self.upper_at = extension.at + extension.len;
            self.upper = extension.next;
            if let Some((id, offset, more)) = extension.fragment {
                self.fragment = Some(Fragment::new(id, offset, more, bytes.len() - self.upper_at)?);
                break; // what follows is a piece of a payload, not a header
            }
        }
        Ok(self)
    }
}

impl Fragment {
    /// `len` is that of the fragment's payload.
    fn new(id: u32, offset: usize, more: bool, len: usize) -> Result<Self, ParseError> {
        // A reassembled packet above 65,535 bytes would overflow the buffers of many hosts ("ping
        // of death").
        if offset + len > MAX_PAYLOAD {
            return Err(ParseError::Malformed { what: "IP fragment", why: "ends above 65,535 bytes" });
        }
        Ok(Self { id, offset, more })
    }
}

/// Summary of a packet from its first header only; a fraction of the cost of [`IpPacket::parse`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Brief {
    /// True for IPv6.
    pub v6: bool,
    /// Bytes of the packet by its own header; at most the bytes read.
    pub total_len: usize,
    /// DSCP and ECN.
    pub tos: u8,
}

impl Brief {
    /// Reads the first header of the packet that starts `bytes`. Extension headers are not looked
    /// at.
    ///
    /// # Errors
    /// [`ParseError`] when the version is neither 4 nor 6 or a length does not fit the bytes.
    // Inlined because a call passes the result through memory, and its reader waits for the store.
    #[inline(always)]
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let need = IPV4_HEADER;
        let head: &[u8; IPV4_HEADER] =
            bytes.first_chunk().ok_or(ParseError::Truncated { what: "IP packet", need, have: bytes.len() })?;
        let (first, field) = (head[0], |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]])));
        let brief = match first >> 4 {
            4 => Self { v6: false, total_len: field(2), tos: head[1] },
            // The traffic class crosses a byte boundary: four bits after the version, four in the
            // next byte.
            6 => Self { v6: true, total_len: IPV6_HEADER + field(4), tos: first << 4 | head[1] >> 4 },
            _ => return Err(ParseError::Malformed { what: "IP packet", why: "version is neither 4 nor 6" }),
        };
        let header_len = if brief.v6 { IPV6_HEADER } else { usize::from(first & 15) * 4 };
        if header_len < IPV4_HEADER || brief.total_len < header_len {
            return Err(ParseError::Malformed { what: "IP packet", why: "header length and total length disagree" });
        }
        if brief.total_len > bytes.len() {
            return Err(ParseError::Truncated { what: "IP packet", need: brief.total_len, have: bytes.len() });
        }
        Ok(brief)
    }

    /// The protocol number that an IP-in-IP header uses for this packet.
    #[inline]
    pub fn ip_in_ip(&self) -> IpProto {
        if self.v6 { IpProto::IPV6 } else { IpProto::IPV4 }
    }
}

/// Bound on IPv6 extension headers per packet: more is an attack on the parser, not traffic.
pub const MAX_EXTENSIONS: u8 = 8;

/// True for the IPv6 extension headers that [`IpPacket::parse`] walks over. ESP, AH and the
/// mobility header count as upper layers.
#[inline]
pub const fn is_extension(proto: IpProto) -> bool {
    matches!(proto, IpProto::HOP_BY_HOP | IpProto::ROUTING | IpProto::FRAGMENT | IpProto::DEST_OPTIONS)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An IPv4 packet from 10.0.0.1 to 10.0.0.2.
    pub(crate) fn v4(proto: IpProto, payload: &[u8]) -> Vec<u8> {
        let header = Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), proto, payload.len()).unwrap();
        [header.as_bytes(), payload].concat()
    }

    /// An IPv6 packet from 2001:db8::1 to 2001:db8::2.
    pub(crate) fn v6(proto: IpProto, payload: &[u8]) -> Vec<u8> {
        let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let header = Ipv6Header::new(src, dst, proto, payload.len()).unwrap();
        [header.as_bytes(), payload].concat()
    }

    /// An IPv4 packet with options, a multiple of 4 bytes.
    pub(crate) fn v4_with_options(options: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut packet = v4(IpProto::UDP, &[options, payload].concat());
        packet[0] += (options.len() / 4) as u8;
        update_checksum_v4(&mut packet).unwrap();
        packet
    }

    #[test]
    fn an_ipv4_packet_reads_back() {
        let mut packet = v4(IpProto::UDP, &[1, 2, 3]);
        assert!(checksum::is_valid(&packet[..20]));
        packet[1] = 0xb9;
        packet[6] = 0x40;
        packet.push(0); // link-layer padding
        let ip = IpPacket::parse(&packet).unwrap();
        assert_eq!((ip.total_len, ip.upper_at, ip.proto_at, ip.upper), (23, 20, 9, IpProto::UDP));
        assert_eq!((ip.tos, ip.hop_limit, ip.dont_fragment, ip.fragment), (0xb9, 64, true, None));
        assert_eq!((ip.src, ip.dst), ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()));
        assert_eq!((ip.is_v6(), ip.ip_in_ip()), (false, IpProto::IPV4));
        (0..23).for_each(|len| assert!(IpPacket::parse(&packet[..len]).is_err(), "{len}"));
    }

    #[test]
    fn ipv4_options_move_the_payload() {
        let packet = v4_with_options(&[148, 4, 0, 0, 1, 1, 1, 0], &[9]);
        let ip = IpPacket::parse(&packet).unwrap();
        assert_eq!((ip.upper_at, ip.total_len), (28, 29));
        let longest = v4_with_options(&[1; 40], &[]);
        assert_eq!(IpPacket::parse(&longest).unwrap().upper_at, 60);
    }

    #[test]
    fn ipv4_lengths_must_agree() {
        for (at, value) in [(0, 0x44), (0, 0x40), (0, 0x46), (3, 19), (3, 24), (0, 0x55), (0, 0)] {
            let mut packet = v4(IpProto::UDP, &[1, 2, 3]);
            packet[at] = value;
            assert!(IpPacket::parse(&packet).is_err(), "{at} {value:#x}");
        }
    }

    #[test]
    fn ipv4_fragments_are_recognised() {
        let with_flags = |flags: u16, payload: &[u8]| {
            let mut packet = v4(IpProto::UDP, payload);
            packet[4..6].copy_from_slice(&[0xab, 0xcd]);
            packet[6..8].copy_from_slice(&flags.to_be_bytes());
            IpPacket::parse(&packet).map(|ip| ip.fragment)
        };
        assert_eq!(with_flags(DONT_FRAGMENT, &[0; 8]), Ok(None));
        assert_eq!(with_flags(0x8000, &[0; 8]), Ok(None));
        assert_eq!(with_flags(MORE_FRAGMENTS, &[0; 8]), Ok(Some(Fragment { id: 0xabcd, offset: 0, more: true })));
        assert_eq!(with_flags(3, &[0; 8]), Ok(Some(Fragment { id: 0xabcd, offset: 24, more: false })));
        assert!(with_flags(0x1fff, &[0; 7]).is_ok());
        assert!(with_flags(0x1fff, &[0; 8]).is_err(), "65,536 bytes");
    }

    #[test]
    fn ipv6_extension_headers_are_walked() {
        let chain = [
            [43, 0, 0, 0, 0, 0, 0, 0], // hop-by-hop, then
            [60, 0, 0, 0, 0, 0, 0, 0], // routing, then
            [44, 1, 0, 0, 0, 0, 0, 0], // destination options of 16 bytes, then
            [0; 8],                    //
            [17, 0, 0, 0, 1, 2, 3, 4], // an atomic fragment, then UDP
            [0, 1, 0, 2, 0, 8, 0, 0],
        ];
        let packet = v6(IpProto::HOP_BY_HOP, chain.as_flattened());
        let ip = IpPacket::parse(&packet).unwrap();
        assert_eq!((ip.upper, ip.upper_at, ip.proto_at, ip.extensions), (IpProto::UDP, 80, 72, 4));
        assert_eq!((ip.fragment, ip.dont_fragment, ip.ip_in_ip()), (None, true, IpProto::IPV6));
        (0..packet.len()).for_each(|len| assert!(IpPacket::parse(&packet[..len]).is_err(), "{len}"));
        // The same packet with a length that truncates the chain.
        for len in 1..40 {
            let cut = v6(IpProto::HOP_BY_HOP, &chain.as_flattened()[..len]);
            assert!(IpPacket::parse(&cut).is_err(), "{len}");
        }
    }

    #[test]
    fn ipv6_fragments_are_recognised() {
        let fragment = |field: u16| {
            let field = field.to_be_bytes();
            let mut payload = vec![60, 0, field[0], field[1], 0xde, 0xad, 0xbe, 0xef];
            payload.extend_from_slice(&[17, 255, 0, 0, 0, 0, 0, 0]);
            IpPacket::parse(&v6(IpProto::FRAGMENT, &payload))
        };
        let later = fragment(0x19).unwrap(); // offset 24, more
        assert_eq!(later.fragment, Some(Fragment { id: 0xdead_beef, offset: 24, more: true }));
        // What follows is not read as a header, though it is called destination options.
        assert_eq!((later.upper, later.upper_at, later.extensions), (IpProto::DEST_OPTIONS, 48, 1));
        assert_eq!(
            fragment(0xfff8).unwrap_err(),
            ParseError::Malformed { what: "IP fragment", why: "ends above 65,535 bytes" }
        );
    }

    #[test]
    fn the_number_of_extension_headers_is_bounded() {
        let chain = |n: u8| {
            let mut payload = vec![[60, 0, 0, 0, 0, 0, 0, 0]; n.into()];
            payload.last_mut().unwrap()[0] = 17;
            IpPacket::parse(&v6(IpProto::DEST_OPTIONS, payload.as_flattened())).map(|ip| ip.extensions)
        };
        assert_eq!(chain(MAX_EXTENSIONS), Ok(MAX_EXTENSIONS));
        assert!(chain(MAX_EXTENSIONS + 1).is_err());
    }

    #[test]
    fn jumbograms_are_refused() {
        assert!(IpPacket::parse(&v6(IpProto::HOP_BY_HOP, &[])).is_err());
        assert!(IpPacket::parse(&v6(IpProto::NONE, &[])).is_ok());
    }

    #[test]
    fn a_quoted_packet_needs_its_headers_alone() {
        let packet = v4_with_options(&[1; 4], &[7; 100]);
        let ip = IpPacket::parse_quoted(&packet[..32]).unwrap();
        assert_eq!((ip.upper_at, ip.total_len), (24, 32));
        (0..24).for_each(|len| assert!(IpPacket::parse_quoted(&packet[..len]).is_err(), "{len}"));
        let packet = v6(IpProto::DEST_OPTIONS, &[[50, 0, 1, 4, 0, 0, 0, 0], [7; 8]].concat());
        let ip = IpPacket::parse_quoted(&packet[..48]).unwrap();
        assert_eq!((ip.upper, ip.upper_at, ip.total_len), (IpProto::ESP, 48, 48));
        (0..48).for_each(|len| assert!(IpPacket::parse_quoted(&packet[..len]).is_err(), "{len}"));
    }

    #[test]
    fn headers_do_not_outgrow_their_length_field() {
        let (a, b) = ([1, 2, 3, 4].into(), [5, 6, 7, 8].into());
        assert!(Ipv4Header::new(a, b, IpProto::UDP, 65_515).is_some());
        assert!(Ipv4Header::new(a, b, IpProto::UDP, 65_516).is_none());
        let (a, b) = ([1; 16].into(), [2; 16].into());
        assert!(Ipv6Header::new(a, b, IpProto::UDP, 65_536).is_none());
        let header = Ipv6Header::new(a, b, IpProto::UDP, 65_535).unwrap().with_class_and_flow(0xb9, 0xfff_ffff);
        assert_eq!((header.traffic_class(), header.flow_label()), (0xb9, 0xf_ffff));
        let mut out = [0; 40];
        header.emit(&mut out).unwrap();
        assert_eq!((out[0], out[1]), (0x6b, 0x9f));
        assert!(header.emit(&mut out[..39]).is_err());
    }

    /// Bytes that often look like packets: a version, small lengths, known protocols.
    pub(crate) fn packet_like() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            Just(0u8),
            Just(1),
            Just(17),
            Just(43),
            Just(44),
            Just(58),
            Just(60),
            Just(135),
            0u8..64,
            any::<u8>()
        ];
        (
            prop_oneof![Just(0x45u8), Just(0x46), Just(0x4f), Just(0x60), any::<u8>()],
            proptest::collection::vec(byte, 0..120),
            any::<bool>(),
        )
            .prop_map(|(first, mut bytes, fix)| {
                if let Some(b) = bytes.first_mut() {
                    *b = first;
                }
                // Half of them get valid lengths, otherwise the walks would hardly be reached.
                let len = bytes.len() as u16;
                if fix && bytes.len() >= 40 {
                    let (at, len) = if first >> 4 == 6 { (4, len - 40) } else { (2, len) };
                    bytes[at..at + 2].copy_from_slice(&len.to_be_bytes());
                }
                bytes
            })
    }

    proptest! {
        /// Whatever the full parse accepts, the brief one reads the same.
        #[test]
        fn the_brief_reading_agrees_with_the_full_one(mut bytes in proptest::collection::vec(any::<u8>(), 0..90), v6: bool) {
            if let Some(first) = bytes.first_mut() {
                *first = if v6 { 0x60 | *first & 15 } else { 0x45 };
            }
            if let (false, Some(high)) = (v6, bytes.get_mut(2)) {
                *high = 0;
            }
            let brief = Brief::read(&bytes);
            if let Ok(full) = IpPacket::parse(&bytes) {
                prop_assert_eq!(brief, Ok(Brief { v6: full.is_v6(), total_len: full.total_len, tos: full.tos }));
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_parses_lies_inside_the_bytes(bytes in packet_like()) {
            for ip in [IpPacket::parse(&bytes), IpPacket::parse_quoted(&bytes)].into_iter().flatten() {
                prop_assert!(ip.upper_at <= ip.total_len && ip.total_len <= bytes.len());
                prop_assert!(ip.proto_at < ip.upper_at && ip.extensions <= MAX_EXTENSIONS);
                prop_assert_eq!(IpProto(bytes[ip.proto_at]), ip.upper);
                prop_assert_eq!(ip.src.is_ipv6(), ip.dst.is_ipv6());
                let key = crate::FlowKey::of(&ip, &bytes);
                prop_assert_eq!(key.v6, ip.is_v6());
            }
            if let Ok(ip) = IpPacket::parse(&bytes) {
                prop_assert_eq!(IpPacket::parse_quoted(&bytes), Ok(ip));
            }
        }
    }
}
