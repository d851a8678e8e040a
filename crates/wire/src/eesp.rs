//! EESP version 0 (draft-ietf-ipsecme-eesp-03): base header, options, payload info header.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ip::{IPV4_HEADER, IPV6_HEADER};
use crate::{IpProto, ParseError, emit_prefix};

/// First byte of every EESPv0 packet: marker bit, version 0, reserved bits zero.
pub const FIRST_BYTE: u8 = 0x80;
/// The bit of the first byte that distinguishes EESP from ESP in UDP.
pub const MARKER: u8 = 0x80;

/// The fixed base header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EespHeader {
    /// Marker (1 bit), version (4), reserved (3).
    pub first: u8,
    /// Bytes of options that follow.
    pub opt_len: u8,
    /// Session ID: the Sub SA when a Sub SA function is in use.
    pub session: U16,
    /// Security Parameters Index.
    pub spi: U32,
}
const _: () = assert!(size_of::<EespHeader>() == EespHeader::LEN);

impl EespHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Splits `packet` into the header and the rest. The first byte is not validated.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 8 bytes.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        Self::ref_from_prefix(packet).map_err(|_| ParseError::Truncated {
            what: "EESP header",
            need: Self::LEN,
            have: packet.len(),
        })
    }

    /// Splits `packet` into the header, its options and the rest, and validates the first byte. The
    /// options are not parsed: see [`Options::parse`].
    ///
    /// # Errors
    /// [`ParseError`] below 8 bytes, for a first byte other than [`FIRST_BYTE`], and for options
    /// that do not fit.
    #[inline]
    pub fn parse_v0(packet: &[u8]) -> Result<(&Self, &[u8], &[u8]), ParseError> {
        let (header, rest) = Self::parse(packet)?;
        if header.first != FIRST_BYTE {
            return Err(ParseError::Malformed { what: "EESP header", why: "first byte is not 0x80 (version 0)" });
        }
        let (options, rest) = rest.split_at_checked(usize::from(header.opt_len)).ok_or(ParseError::Truncated {
            what: "EESP options",
            need: Self::LEN + usize::from(header.opt_len),
            have: packet.len(),
        })?;
        Ok((header, options, rest))
    }

    /// A version 0 header.
    #[inline]
    pub fn new(opt_len: u8, session: u16, spi: u32) -> Self {
        Self { first: FIRST_BYTE, opt_len, session: session.into(), spi: spi.into() }
    }

    /// Writes the header to the start of `out`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the buffer `out` is shorter than 8 bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<(), ParseError> {
        emit_prefix("EESP header", self, out)
    }
}

/// Option type: one byte of padding without a length byte.
pub const OPT_PAD1: u8 = 0;
/// Option type: two or more bytes of padding.
pub const OPT_PADN: u8 = 1;
/// Option type: Crypt Offset.
pub const OPT_CRYPT_OFFSET: u8 = 2;

/// Value of the Crypt Offset option: payload offset (6 bits), crypt offset (6), reserved (4).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CryptOffset(pub u16);

impl CryptOffset {
    /// Bytes of the whole option.
    pub const LEN: usize = 4;
    /// Largest value of either offset, in 4-byte words.
    pub const MAX_WORDS: u8 = 63;

    /// The value for a payload that starts `payload_words` after the base header's start and stays
    /// clear for `crypt_words`, both in 4-byte words; `None` above [`Self::MAX_WORDS`].
    pub fn new(payload_words: u8, crypt_words: u8) -> Option<Self> {
        (payload_words <= Self::MAX_WORDS && crypt_words <= Self::MAX_WORDS)
            .then(|| Self(u16::from(payload_words) << 10 | u16::from(crypt_words) << 4))
    }

    /// Offset of the payload in 4-byte words from the start of the base header.
    #[inline]
    pub const fn payload_words(self) -> u8 {
        (self.0 >> 10) as u8
    }

    /// Unencrypted part of the payload, in 4-byte words.
    #[inline]
    pub const fn crypt_words(self) -> u8 {
        (self.0 >> 4) as u8 & 63
    }

    /// [`Self::payload_words`] in bytes.
    #[inline]
    pub const fn payload_bytes(self) -> usize {
        self.payload_words() as usize * 4
    }

    /// [`Self::crypt_words`] in bytes.
    #[inline]
    pub const fn crypt_bytes(self) -> usize {
        self.crypt_words() as usize * 4
    }

    /// The option as on the wire.
    #[inline]
    pub const fn emit(self) -> [u8; Self::LEN] {
        let value = self.0.to_be_bytes();
        [OPT_CRYPT_OFFSET, 2, value[0], value[1]]
    }
}

/// Options of a packet.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Options {
    /// The Crypt Offset option, if there is one.
    pub crypt_offset: Option<CryptOffset>,
    /// Number of options of unknown type, which are ignored. At most 127.
    pub unknown: u8,
}

impl Options {
    /// Parses the options field. Receivers should do this before any cryptographic operation,
    /// because it is cheaper. The content of padding is not checked.
    ///
    /// # Errors
    /// [`ParseError`] if an option exceeds the field, or if a Crypt Offset has a length other than
    /// 2 or is duplicate.
    pub fn parse(field: &[u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "EESP options";
        let mut options = Self::default();
        let mut at = 0;
        while let Some(&kind) = field.get(at) {
            // Pad1 has no length byte. The type of the next option would be read as its length.
            if kind == OPT_PAD1 {
                at += 1;
                continue;
            }
            let cut = |need| ParseError::Truncated { what: WHAT, need, have: field.len() };
            let len = usize::from(*field.get(at + 1).ok_or(cut(at + 2))?);
            // The length byte counts the data only, without type and length.
            let end = at + 2 + len;
            let data = field.get(at + 2..end).ok_or(cut(end))?;
            match (kind, data) {
                (OPT_PADN, _) => {}
                (OPT_CRYPT_OFFSET, &[hi, lo]) => {
                    if options.crypt_offset.replace(CryptOffset(u16::from_be_bytes([hi, lo]))).is_some() {
                        return Err(ParseError::Malformed { what: WHAT, why: "two Crypt Offset options" });
                    }
                }
                (OPT_CRYPT_OFFSET, _) => {
                    return Err(ParseError::Malformed { what: WHAT, why: "Crypt Offset is not 2 bytes long" });
                }
                _ => options.unknown = options.unknown.saturating_add(1),
            }
            at = end;
        }
        Ok(options)
    }
}

/// Fills the buffer `out` with padding: nothing, one Pad1, or one PadN.
///
/// # Errors
/// [`ParseError::Malformed`] above 257 bytes, which is more than an options field can hold anyway.
pub fn emit_pad(out: &mut [u8]) -> Result<(), ParseError> {
    match out {
        [] => {}
        [one] => *one = OPT_PAD1,
        [kind, len, data @ ..] => {
            *len = u8::try_from(data.len())
                .map_err(|_| ParseError::Malformed { what: "EESP padding", why: "longer than 257 bytes" })?;
            *kind = OPT_PADN;
            data.fill(0);
        }
    }
    Ok(())
}

/// The header before the payload in the full format.
#[derive(Clone, Copy, Debug, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, PartialEq, Unaligned)]
#[repr(C)]
pub struct PayloadInfo {
    /// Four zero bits, which distinguish it from an IP packet, and 12 reserved bits.
    pub reserved: U16,
    /// Protocol of the payload.
    pub next_header: u8,
    /// Bytes of padding after the payload.
    pub pad_len: u8,
}
const _: () = assert!(size_of::<PayloadInfo>() == PayloadInfo::LEN);

impl PayloadInfo {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// A header with its reserved bits zero.
    #[inline]
    pub fn new(next_header: IpProto, pad_len: u8) -> Self {
        Self { reserved: U16::ZERO, next_header: next_header.0, pad_len }
    }

    /// Splits the decrypted `plaintext` of the full format into the header and the payload, padding
    /// removed.
    ///
    /// # Errors
    /// [`ParseError`] below 4 bytes, when the zero nibble or the reserved bits are not zero, or if
    /// the padding length exceeds the plaintext.
    #[inline]
    pub fn parse(plaintext: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        // The length of the padding is in this header; unlike in ESP there is no trailer.
        let (info, rest) = Self::ref_from_prefix(plaintext).map_err(|_| ParseError::Truncated {
            what: "EESP payload info",
            need: Self::LEN,
            have: plaintext.len(),
        })?;
        // A first nibble of 4 or 6 is an IP packet, that is, the optimized format.
        if info.reserved != U16::ZERO {
            return Err(ParseError::Malformed { what: "EESP payload info", why: "reserved bits are not zero" });
        }
        let len = rest
            .len()
            .checked_sub(usize::from(info.pad_len))
            .ok_or(ParseError::Malformed { what: "EESP payload info", why: "more padding than payload" })?;
        Ok((info, &rest[..len]))
    }

    /// Writes the header to the start of `out`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the buffer `out` is shorter than 4 bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<(), ParseError> {
        emit_prefix("EESP payload info", self, out)
    }
}

/// The two layouts of the plaintext; a property of the SA; an SA that negotiated a Crypt Offset
/// determines it by the first byte of the payload.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// [`PayloadInfo`], payload, padding.
    Full,
    /// An IP packet and padding; protocol and length are those of the packet.
    Optimized,
}

impl Format {
    /// The format of a payload that starts with `first`, `None` where it is neither.
    #[inline]
    pub const fn of(first: u8) -> Option<Self> {
        match first >> 4 {
            0 => Some(Self::Full),
            4 | 6 => Some(Self::Optimized),
            _ => None,
        }
    }
}

/// Most padding after the inner packet of the optimized format, in bytes.
pub const MAX_TAIL_PADDING: usize = 255;

/// Infers the protocol and the length in bytes of the IP packet that starts the `plaintext` of the
/// optimized format; the bytes after it are padding.
///
/// # Errors
/// [`ParseError`] when the first nibble is neither 4 nor 6, the packet's length does not fit, or
/// more than [`MAX_TAIL_PADDING`] bytes follow it.
#[inline]
pub fn infer_inner(plaintext: &[u8]) -> Result<(IpProto, usize), ParseError> {
    const WHAT: &str = "EESP inner packet";
    let have = plaintext.len();
    let cut = |need| ParseError::Truncated { what: WHAT, need, have };
    let (proto, total) = match plaintext.first().map(|first| first >> 4) {
        Some(4) => {
            let header: &[u8; IPV4_HEADER] = plaintext.first_chunk().ok_or(cut(IPV4_HEADER))?;
            let (ihl, total) =
                (usize::from(header[0] & 15) * 4, usize::from(u16::from_be_bytes([header[2], header[3]])));
            // Such a packet would end within its own header.
            if ihl < IPV4_HEADER || total < ihl {
                return Err(ParseError::Malformed { what: WHAT, why: "header length and total length disagree" });
            }
            (IpProto::IPV4, total)
        }
        Some(6) => {
            let header: &[u8; IPV6_HEADER] = plaintext.first_chunk().ok_or(cut(IPV6_HEADER))?;
            let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
            // A jumbogram has its length in a hop-by-hop option (RFC 2675 §2), which is not parsed
            // here: the end of the packet would be unknown. Length 0 is valid without that header,
            // as in a packet with No Next Header (RFC 8200 §4.7).
            if payload == 0 && header[6] == IpProto::HOP_BY_HOP.0 {
                return Err(ParseError::Malformed { what: WHAT, why: "payload length 0 (jumbogram)" });
            }
            (IpProto::IPV6, IPV6_HEADER + payload)
        }
        Some(_) => return Err(ParseError::Malformed { what: WHAT, why: "version is neither 4 nor 6" }),
        None => return Err(cut(IPV4_HEADER)),
    };
    match have.checked_sub(total) {
        // The optimized format has no Pad Length. The bound is what that byte can express in the
        // full format.
        Some(padding) if padding <= MAX_TAIL_PADDING => Ok((proto, total)),
        Some(_) => Err(ParseError::Malformed { what: WHAT, why: "more than 255 bytes of padding" }),
        None => Err(cut(total)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ip::tests::{v4, v6};

    #[test]
    fn only_0x80_starts_a_version_0_packet() {
        let mut packet = [0x80, 4, 0x12, 0x34, 0x11, 0x22, 0x33, 0x66, 2, 2, 0x1c, 0x80, 9];
        let (header, options, rest) = EespHeader::parse_v0(&packet).unwrap();
        assert_eq!((header.session.get(), header.spi.get()), (0x1234, 0x1122_3366));
        assert_eq!((options, rest), (&[2, 2, 0x1c, 0x80][..], &[9][..]));
        for first in [0x00, 0x81, 0x88, 0xc0] {
            packet[0] = first;
            assert!(matches!(EespHeader::parse_v0(&packet), Err(ParseError::Malformed { .. })), "{first:#x}");
        }
        packet[0] = 0x80;
        packet[1] = 6;
        assert_eq!(
            EespHeader::parse_v0(&packet).unwrap_err(),
            ParseError::Truncated { what: "EESP options", need: 14, have: 13 }
        );
        (0..8).for_each(|len| assert!(EespHeader::parse_v0(&packet[..len]).is_err()));
    }

    #[test]
    fn emitted_headers_read_back() {
        let mut out = [0; 8];
        EespHeader::new(4, 5, 0x1122_3344).emit(&mut out).unwrap();
        assert_eq!(out, [0x80, 4, 0, 5, 0x11, 0x22, 0x33, 0x44]);
        assert!(EespHeader::new(4, 5, 0x1122_3344).emit(&mut out[..7]).is_err());
        PayloadInfo::new(IpProto::UDP, 2).emit(&mut out).unwrap();
        assert_eq!(out[..4], [0, 0, 0x11, 2]);
    }

    #[test]
    fn crypt_offset_has_the_bits_of_the_draft() {
        let value = CryptOffset::new(7, 8).unwrap();
        assert_eq!(value.emit(), [2, 2, 0x1c, 0x80]);
        assert_eq!((value.payload_bytes(), value.crypt_bytes()), (28, 32));
        assert_eq!(CryptOffset::new(63, 63), Some(CryptOffset(0xfff0)));
        assert_eq!((CryptOffset::new(64, 0), CryptOffset::new(0, 64)), (None, None));
        let noisy = CryptOffset(0x1c8f); // reserved bits are ignored
        assert_eq!((noisy.payload_words(), noisy.crypt_words()), (7, 8));
    }

    #[test]
    fn options_are_walked_as_the_draft_says() {
        let some = |value, unknown| Ok(Options { crypt_offset: Some(CryptOffset(value)), unknown });
        let none = |unknown| Ok(Options { crypt_offset: None, unknown });
        assert_eq!(Options::parse(&[]), none(0));
        assert_eq!(Options::parse(&[0, 0, 0]), none(0));
        assert_eq!(Options::parse(&[1, 0]), none(0));
        assert_eq!(Options::parse(&[1, 2, 9, 9]), none(0));
        assert_eq!(Options::parse(&[2, 2, 0x1c, 0x80]), some(0x1c80, 0));
        assert_eq!(Options::parse(&[0, 224, 1, 7, 2, 2, 0x1c, 0x80, 3, 0, 0]), some(0x1c80, 2));
    }

    #[test]
    fn broken_options_are_refused() {
        for field in [
            &[1u8][..],                // no length byte
            &[1, 1],                   // data runs over the end
            &[1, 3, 0, 0],             // likewise
            &[224, 255, 0],            // likewise, unknown
            &[2, 0],                   // Crypt Offset of wrong length
            &[2, 1, 0],                // likewise
            &[2, 4, 0x1c, 0x80, 0, 0], // likewise: the length is that of the data
            &[2, 2, 0x1c],             // cut off
            &[2, 2, 0, 0, 2, 2, 0, 0], // twice
        ] {
            assert!(Options::parse(field).is_err(), "{field:02x?}");
        }
    }

    #[test]
    fn padding_is_one_option() {
        for len in 0..=257 {
            let mut out = vec![0xee; len];
            emit_pad(&mut out).unwrap();
            assert_eq!(Options::parse(&out), Ok(Options::default()), "{len}");
        }
        let mut four = [9; 4];
        emit_pad(&mut four).unwrap();
        assert_eq!(four, [1, 2, 0, 0]);
        assert!(emit_pad(&mut [0; 258]).is_err());
    }

    #[test]
    fn payload_info_strips_its_padding() {
        let (info, payload) = PayloadInfo::parse(&[0, 0, 17, 2, 1, 2, 3, 0, 0]).unwrap();
        assert_eq!((info.next_header, payload), (17, &[1, 2, 3][..]));
        assert_eq!(PayloadInfo::parse(&[0, 0, 59, 1, 0]).unwrap().1, &[]);
        for bad in [&[0u8, 0, 17][..], &[0, 0, 17, 1], &[0, 0, 17, 255, 0], &[0x10, 0, 17, 0], &[0, 1, 17, 0]] {
            assert!(PayloadInfo::parse(bad).is_err(), "{bad:02x?}");
        }
    }

    #[test]
    fn formats_are_told_by_the_first_nibble() {
        for first in 0..=255u8 {
            let expected = match first {
                0..0x10 => Some(Format::Full),
                0x40..0x50 | 0x60..0x70 => Some(Format::Optimized),
                _ => None,
            };
            assert_eq!(Format::of(first), expected);
        }
    }

    #[test]
    fn the_inner_packet_says_how_long_it_is() {
        for (packet, proto) in [(v4(IpProto::UDP, &[0; 9]), IpProto::IPV4), (v6(IpProto::UDP, &[0; 9]), IpProto::IPV6)]
        {
            for padding in [0, 1, 255] {
                let padded = [&packet[..], &vec![0; padding]].concat();
                assert_eq!(infer_inner(&padded), Ok((proto, packet.len())));
            }
            assert!(infer_inner(&[&packet[..], &[0; 256]].concat()).is_err());
            (0..packet.len()).for_each(|len| assert!(infer_inner(&packet[..len]).is_err(), "{len}"));
            let mut five = packet.clone();
            five[0] = 0x55;
            assert!(infer_inner(&five).is_err());
        }
        let mut low = v4(IpProto::UDP, &[]);
        low[3] = 19;
        assert!(infer_inner(&low).is_err());
        low[3] = 20;
        low[0] = 0x44;
        assert!(infer_inner(&low).is_err());
        for empty in [IpProto::NONE, IpProto::UDP] {
            assert_eq!(infer_inner(&[&v6(empty, &[])[..], &[0; 3]].concat()), Ok((IpProto::IPV6, 40)));
        }
        // A jumbogram, or an error (RFC 2675 §3).
        assert!(infer_inner(&v6(IpProto::HOP_BY_HOP, &[])).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in proptest::collection::vec(0u8..8, 0..64)) {
            let _ = EespHeader::parse_v0(&bytes);
            let _ = PayloadInfo::parse(&bytes);
            let _ = infer_inner(&bytes);
            if let Ok(options) = Options::parse(&bytes) {
                prop_assert!(usize::from(options.unknown) * 2 <= bytes.len());
            }
        }
    }
}
