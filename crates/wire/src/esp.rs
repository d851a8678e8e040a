//! ESP (RFC 4303 §2).

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{ParseError, SeqNo, Spi, emit_prefix};

/// The clear part of an ESP packet, before IV and payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EspHeader {
    /// Security Parameters Index.
    pub spi: U32,
    /// Low half of the sequence number.
    pub seq_lo: U32,
}
const _: () = assert!(size_of::<EspHeader>() == EspHeader::LEN);

impl EspHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Splits `packet` into the header and what follows it.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 8 bytes.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        Self::ref_from_prefix(packet).map_err(|_| ParseError::Truncated {
            what: "ESP header",
            need: Self::LEN,
            have: packet.len(),
        })
    }

    /// A header for the packet `seq` of the SA `spi`.
    #[inline]
    pub fn new(spi: Spi, seq: SeqNo) -> Self {
        Self { spi: spi.get().into(), seq_lo: seq.lo().into() }
    }

    /// Writes the header to the start of `out`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the buffer `out` is shorter than 8 bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<(), ParseError> {
        emit_prefix("ESP header", self, out)
    }
}

/// Pad Length and Next Header, the last two bytes of the plaintext.
pub const TRAILER_LEN: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emitted_header_reads_back() {
        let mut out = [0; 9];
        let spi = Spi::try_from(0x1122_3344).unwrap();
        EspHeader::new(spi, SeqNo(0xa_0000_0007)).emit(&mut out).unwrap();
        assert_eq!(out, [0x11, 0x22, 0x33, 0x44, 0, 0, 0, 7, 0]);
        let (header, rest) = EspHeader::parse(&out).unwrap();
        assert_eq!((header.spi.get(), header.seq_lo.get(), rest), (0x1122_3344, 7, &[0][..]));
        assert!(EspHeader::parse(&out[..7]).is_err());
        assert!(EspHeader::new(spi, SeqNo(1)).emit(&mut out[..7]).is_err());
    }
}
