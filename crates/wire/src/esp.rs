//! ESP (RFC 4303 §2).

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;

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
    pub fn parse(packet: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        Self::ref_from_prefix(packet).map_err(|_| ParseError::Truncated {
            what: "ESP header",
            need: Self::LEN,
            have: packet.len(),
        })
    }
}

/// Pad Length and Next Header, the last two bytes of the plaintext.
pub const TRAILER_LEN: usize = 2;
