//! AH (RFC 4302 §2).

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{IpProto, ParseError, SeqNo, Spi, emit_prefix};

/// The fixed part of an AH header; the ICV follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AhHeader {
    /// Protocol of the payload.
    pub next_header: u8,
    /// Header with ICV and padding in 4-byte units, minus 2.
    pub payload_len: u8,
    /// Zero.
    pub reserved: U16,
    /// Security Parameters Index.
    pub spi: U32,
    /// Low half of the sequence number.
    pub seq_lo: U32,
}
const _: () = assert!(size_of::<AhHeader>() == AhHeader::LEN);

impl AhHeader {
    /// Bytes before the ICV.
    pub const LEN: usize = 12;

    /// Splits `packet` into the fixed part and what follows it (ICV, padding, payload).
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 12 bytes.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        Self::ref_from_prefix(packet).map_err(|_| ParseError::Truncated {
            what: "AH header",
            need: Self::LEN,
            have: packet.len(),
        })
    }

    /// Bytes of the whole header, ICV and padding included, by its own length field.
    #[inline]
    pub fn total_len(&self) -> usize {
        (usize::from(self.payload_len) + 2) * 4
    }

    /// The header of the packet `seq` of the SA `spi`, with an ICV and padding of `icv_len` bytes
    /// in all; `None` if that is not a multiple of 4 or exceeds the length field.
    #[inline]
    pub fn new(next_header: IpProto, spi: Spi, seq: SeqNo, icv_len: usize) -> Option<Self> {
        // In 4-byte units minus 2 (RFC 4302 §2.2), unlike the 8-byte units of IPv6 extension
        // headers.
        let words = u8::try_from((Self::LEN + icv_len) / 4 - 2).ok()?;
        icv_len.is_multiple_of(4).then(|| Self {
            next_header: next_header.0,
            payload_len: words,
            reserved: U16::ZERO,
            spi: spi.get().into(),
            seq_lo: seq.lo().into(),
        })
    }

    /// Writes the fixed part to the start of `out`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the buffer `out` is shorter than 12 bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<(), ParseError> {
        emit_prefix("AH header", self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emitted_header_reads_back() {
        let spi = Spi::try_from(0x1122_3344).unwrap();
        let header = AhHeader::new(IpProto::TCP, spi, SeqNo(0xa_0000_0007), 12).unwrap();
        assert_eq!((header.payload_len, header.total_len()), (4, 24)); // RFC 4302 §2.2
        let mut out = [0xee; 13];
        header.emit(&mut out).unwrap();
        assert_eq!(out, [6, 4, 0, 0, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 7, 0xee]);
        assert_eq!(AhHeader::parse(&out).unwrap().1, &[0xee]);
        assert!(AhHeader::parse(&out[..11]).is_err());
        assert!(header.emit(&mut out[..11]).is_err());
    }

    #[test]
    fn an_icv_has_whole_words() {
        let spi = Spi::try_from(0x100).unwrap();
        let len = |icv_len| AhHeader::new(IpProto::TCP, spi, SeqNo(1), icv_len).map(|h| h.total_len());
        assert_eq!((len(16), len(32), len(15)), (Some(28), Some(44), None));
        assert_eq!((len(1016), len(1020)), (Some(1028), None));
    }
}
