//! EESP version 0 (draft-ietf-ipsecme-eesp-03): base header, options, payload info header.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;

/// First byte of every EESPv0 packet: marker bit, version 0, reserved bits zero.
pub const FIRST_BYTE: u8 = 0x80;

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

    /// Splits `packet` into the header and what follows it. The first byte is not judged here.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 8 bytes.
    pub fn parse(packet: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        Self::ref_from_prefix(packet).map_err(|_| ParseError::Truncated {
            what: "EESP header",
            need: Self::LEN,
            have: packet.len(),
        })
    }
}
