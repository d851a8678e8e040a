//! IPv4 and IPv6 headers, read once per packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{IpProto, ParseError};

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

/// Where a fragment belongs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fragment {
    /// Identification (16 bits in IPv4, 32 in IPv6).
    pub id: u32,
    /// Byte offset of this fragment's payload in the original payload.
    pub offset: usize,
    /// More fragments follow.
    pub more: bool,
}

/// What the path needs to know of one IP packet. Making one proves that the headers it speaks of
/// lie inside the bytes it was parsed from.
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

impl IpPacket {
    /// True for IPv6.
    pub fn is_v6(&self) -> bool {
        self.dst.is_ipv6()
    }

    /// The protocol number that an IP-in-IP header uses for this packet.
    pub fn ip_in_ip(&self) -> IpProto {
        if self.is_v6() { IpProto::IPV6 } else { IpProto::IPV4 }
    }

    /// Reads the headers of the packet that starts `bytes`; bytes after the packet (link-layer
    /// padding) are allowed and excluded by `total_len`.
    ///
    /// # Errors
    /// [`ParseError`] when the version is neither 4 nor 6, a length does not fit the bytes, IPv6
    /// extension headers are cut off or more than [`MAX_EXTENSIONS`], or the packet is an IPv6
    /// jumbogram.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match bytes.first().map(|b| b >> 4) {
            Some(4) => Self::parse_v4(bytes),
            Some(6) => Self::parse_v6(bytes),
            Some(_) => Err(ParseError::Malformed { what: "IP packet", why: "version is neither 4 nor 6" }),
            None => Err(ParseError::Truncated { what: "IP packet", need: 1, have: 0 }),
        }
    }

    fn parse_v4(bytes: &[u8]) -> Result<Self, ParseError> {
        let (header, _) = Ipv4Header::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated {
            what: "IPv4 header",
            need: IPV4_HEADER,
            have: bytes.len(),
        })?;
        let header_len = usize::from(header.version_ihl & 15) * 4;
        let total_len = usize::from(header.total_len.get());
        if header_len < IPV4_HEADER || total_len < header_len {
            return Err(ParseError::Malformed { what: "IPv4 header", why: "header length and total length disagree" });
        }
        if total_len > bytes.len() {
            return Err(ParseError::Truncated { what: "IPv4 packet", need: total_len, have: bytes.len() });
        }
        let flags = header.flags_fragment.get();
        let (offset, more) = (usize::from(flags & 0x1fff) * 8, flags & 0x2000 != 0);
        Ok(Self {
            src: IpAddr::V4(Ipv4Addr::from(header.src)),
            dst: IpAddr::V4(Ipv4Addr::from(header.dst)),
            total_len,
            upper_at: header_len,
            proto_at: 9,
            upper: IpProto(header.protocol),
            fragment: (offset != 0 || more).then(|| Fragment { id: u32::from(header.id.get()), offset, more }),
            tos: header.tos,
            hop_limit: header.ttl,
            dont_fragment: flags & 0x4000 != 0,
            extensions: 0,
        })
    }

    fn parse_v6(bytes: &[u8]) -> Result<Self, ParseError> {
        let (header, _) = Ipv6Header::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated {
            what: "IPv6 header",
            need: IPV6_HEADER,
            have: bytes.len(),
        })?;
        let payload_len = usize::from(header.payload_len.get());
        let total_len = IPV6_HEADER + payload_len;
        if payload_len == 0 && header.next_header == IpProto::HOP_BY_HOP.0 {
            return Err(ParseError::Malformed { what: "IPv6 packet", why: "jumbograms are not supported" });
        }
        if total_len > bytes.len() {
            return Err(ParseError::Truncated { what: "IPv6 packet", need: total_len, have: bytes.len() });
        }
        let mut packet = Self {
            src: IpAddr::V6(Ipv6Addr::from(header.src)),
            dst: IpAddr::V6(Ipv6Addr::from(header.dst)),
            total_len,
            upper_at: IPV6_HEADER,
            proto_at: 6,
            upper: IpProto(header.next_header),
            fragment: None,
            tos: (header.version_class_flow.get() >> 20) as u8,
            hop_limit: header.hop_limit,
            dont_fragment: true,
            extensions: 0,
        };
        packet.walk_extensions(&bytes[..total_len])?;
        Ok(packet)
    }

    fn walk_extensions(&mut self, bytes: &[u8]) -> Result<(), ParseError> {
        while is_extension(self.upper) {
            let cut = |need| ParseError::Truncated { what: "IPv6 extension header", need, have: bytes.len() };
            let header: &[u8; 8] =
                bytes.get(self.upper_at..).and_then(<[u8]>::first_chunk).ok_or(cut(self.upper_at + 8))?;
            let len = if self.upper == IpProto::FRAGMENT { 8 } else { (usize::from(header[1]) + 1) * 8 };
            if self.upper_at + len > bytes.len() {
                return Err(cut(self.upper_at + len));
            }
            if self.extensions == MAX_EXTENSIONS {
                return Err(ParseError::Malformed { what: "IPv6 packet", why: "too many extension headers" });
            }
            self.extensions += 1;
            let was_fragment = self.upper == IpProto::FRAGMENT;
            self.proto_at = self.upper_at;
            self.upper_at += len;
            self.upper = IpProto(header[0]);
            if was_fragment {
                let field = u16::from_be_bytes([header[2], header[3]]);
                let (offset, more) = (usize::from(field & 0xfff8), field & 1 != 0);
                if offset != 0 || more {
                    let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
                    self.fragment = Some(Fragment { id, offset, more });
                    return Ok(()); // what follows is a piece of a payload, not a header
                }
            }
        }
        Ok(())
    }
}

/// Bound on IPv6 extension headers per packet: more is an attack on the parser, not traffic.
pub const MAX_EXTENSIONS: u8 = 8;

/// True for the IPv6 extension headers that [`IpPacket::parse`] walks over. ESP, AH and the
/// mobility header count as upper layers.
pub fn is_extension(proto: IpProto) -> bool {
    matches!(proto, IpProto::HOP_BY_HOP | IpProto::ROUTING | IpProto::FRAGMENT | IpProto::DEST_OPTIONS)
}
