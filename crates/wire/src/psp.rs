//! PSP (PSP Architecture Specification, November 2022).

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;

/// The fixed 16 bytes of a PSP header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PspHeader {
    /// Protocol of the payload.
    pub next_header: u8,
    /// Header length in 8-byte units, minus 1.
    pub ext_len: u8,
    /// Reserved (2 bits), crypt offset in 4-byte units (6 bits).
    pub crypt_offset: u8,
    /// S (1 bit), D (1), version (4), V (1), always 1 (1).
    pub flags: u8,
    /// SPI: bit 31 names the master key, the low 31 bits are not zero.
    pub spi: U32,
    /// Initialisation vector.
    pub iv: U64,
}
const _: () = assert!(size_of::<PspHeader>() == PspHeader::LEN);

impl PspHeader {
    /// Bytes of the fixed part.
    pub const LEN: usize = 16;

    /// Splits `packet` into the fixed part and what follows it. Nothing is judged here.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 16 bytes.
    pub fn parse(packet: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        Self::ref_from_prefix(packet).map_err(|_| ParseError::Truncated {
            what: "PSP header",
            need: Self::LEN,
            have: packet.len(),
        })
    }
}

/// Bytes of the ICV after the last payload byte.
pub const ICV_LEN: usize = 16;
