//! UDP (RFC 768).

use std::net::IpAddr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::Sum;
use crate::{IpProto, ParseError, emit_prefix};

/// A UDP header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct UdpHeader {
    /// Source port.
    pub src_port: U16,
    /// Destination port.
    pub dst_port: U16,
    /// Header and payload in bytes.
    pub len: U16,
    /// Checksum over the pseudo header, this header and the payload; 0 means none, as in ESP in UDP
    /// over IPv4 (RFC 3948 §2.1).
    pub checksum: U16,
}
const _: () = assert!(size_of::<UdpHeader>() == UdpHeader::LEN);

impl UdpHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Splits `datagram` into the header and what follows it.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 8 bytes.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        Self::ref_from_prefix(datagram).map_err(|_| ParseError::Truncated {
            what: "UDP header",
            need: Self::LEN,
            have: datagram.len(),
        })
    }

    /// A header without a checksum for `payload_len` bytes; `None` when they exceed the length
    /// field.
    #[inline]
    pub fn new(src_port: u16, dst_port: u16, payload_len: usize) -> Option<Self> {
        let len = u16::try_from(Self::LEN + payload_len).ok()?;
        Some(Self { src_port: src_port.into(), dst_port: dst_port.into(), len: len.into(), checksum: U16::ZERO })
    }

    /// Writes the header to the start of `out`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the buffer `out` is shorter than 8 bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<(), ParseError> {
        emit_prefix("UDP header", self, out)
    }

    /// Splits `datagram` into the header and the payload by the header's length, without padding
    /// after it.
    ///
    /// # Errors
    /// [`ParseError`] below 8 bytes, when the length is below 8 (also 0, an IPv6 jumbogram of
    /// RFC 2675), or when it exceeds `datagram`.
    #[inline]
    pub fn parse_exact(datagram: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        let (header, rest) = Self::parse(datagram)?;
        let len = usize::from(header.len.get());
        let payload_len =
            // The UDP length may be shorter than the IP payload, but must not be longer.
            len.checked_sub(Self::LEN).ok_or(ParseError::Malformed { what: "UDP header", why: "length is below 8" })?;
        let have = datagram.len();
        let cut = ParseError::Truncated { what: "UDP datagram", need: len, have };
        Ok((header, rest.get(..payload_len).ok_or(cut)?))
    }
}

/// The checksum field for `datagram`, a UDP header and its payload without padding, with the field
/// set to zero. Never 0, which would mean "no checksum" (RFC 768).
#[inline]
pub fn checksum(src: IpAddr, dst: IpAddr, datagram: &[u8]) -> u16 {
    match sum(src, dst, datagram).finish() {
        // All ones is the same number in one's complement arithmetic.
        0 => 0xffff,
        sum => sum,
    }
}

/// True when the checksum of `datagram` is correct, or 0, which means "no checksum". The caller
/// must decide whether 0 is acceptable over IPv6 (RFC 6935 §5), and must cut off padding, which
/// would count. False below 8 bytes.
#[inline]
pub fn is_valid(src: IpAddr, dst: IpAddr, datagram: &[u8]) -> bool {
    UdpHeader::parse(datagram)
        .is_ok_and(|(header, _)| header.checksum == U16::ZERO || sum(src, dst, datagram).is_valid())
}

#[inline]
fn sum(src: IpAddr, dst: IpAddr, datagram: &[u8]) -> Sum {
    Sum::default().pseudo(src, dst, IpProto::UDP, datagram.len()).add(datagram)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The IPv4 and IPv6 datagrams inside the EESP test packets, with checksums from an independent
    /// implementation.
    const V4: [u8; 14] = [0x03, 0xe8, 0x07, 0xd0, 0, 0x0e, 0x42, 0x0c, 0x45, 0x45, 0x53, 0x50, 0x2d, 0x41];
    const V6: [u8; 15] = [0x03, 0xe8, 0x07, 0xd0, 0, 0x0f, 0xa2, 0xc8, 0x45, 0x45, 0x53, 0x50, 0x2d, 0x42, 0x30];

    fn v4() -> (IpAddr, IpAddr) {
        ([192, 0, 2, 1].into(), [198, 51, 100, 2].into())
    }

    fn v6() -> (IpAddr, IpAddr) {
        ("2001:db8:0:1::1".parse().unwrap(), "2001:db8:0:2::2".parse().unwrap())
    }

    #[test]
    fn checksums_agree_with_known_datagrams() {
        for ((src, dst), datagram, expected) in [(v4(), &V4[..], 0x420c), (v6(), &V6[..], 0xa2c8)] {
            assert!(is_valid(src, dst, datagram));
            let mut blank = datagram.to_vec();
            blank[6..8].fill(0);
            assert_eq!(checksum(src, dst, &blank), expected);
            assert!(is_valid(src, dst, &blank), "0 means that there is no checksum");
            blank[6..8].fill(1);
            assert!(!is_valid(src, dst, &blank));
            assert!(!is_valid(src, dst, &datagram[..7]));
        }
    }

    #[test]
    fn a_sum_of_zero_is_sent_as_all_ones() {
        let (src, dst) = v4();
        let mut datagram = V4.to_vec();
        datagram[6..8].fill(0);
        let sum = checksum(src, dst, &datagram);
        datagram[8..10].copy_from_slice(&(0x4545 + sum).to_be_bytes());
        assert_eq!(checksum(src, dst, &datagram), 0xffff);
        datagram[6..8].fill(0xff);
        assert!(is_valid(src, dst, &datagram));
    }

    #[test]
    fn the_length_field_bounds_the_payload() {
        let padded = [&V4[..], &[0; 4]].concat();
        assert_eq!(UdpHeader::parse_exact(&padded).unwrap().1, b"EESP-A");
        (0..14).for_each(|len| assert!(UdpHeader::parse_exact(&V4[..len]).is_err()));
        let mut short = V4;
        short[5] = 7;
        assert!(UdpHeader::parse_exact(&short).is_err());
        let mut out = [0; 8];
        UdpHeader::new(1000, 2000, 6).unwrap().emit(&mut out).unwrap();
        assert_eq!(out[..6], V4[..6]);
        assert!(UdpHeader::new(1, 2, 65_527).is_some() && UdpHeader::new(1, 2, 65_528).is_none());
    }
}
