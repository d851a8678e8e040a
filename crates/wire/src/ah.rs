//! AH (RFC 4302 §2).

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;

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
    pub fn parse(packet: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        Self::ref_from_prefix(packet).map_err(|_| ParseError::Truncated {
            what: "AH header",
            need: Self::LEN,
            have: packet.len(),
        })
    }

    /// Bytes of the whole header, ICV and padding included, by its own length field.
    pub fn total_len(&self) -> usize {
        (usize::from(self.payload_len) + 2) * 4
    }
}
