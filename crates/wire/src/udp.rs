//! UDP (RFC 768).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;

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
    /// Checksum over the pseudo header, this header and the payload; 0 means none.
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
    pub fn parse(datagram: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        Self::ref_from_prefix(datagram).map_err(|_| ParseError::Truncated {
            what: "UDP header",
            need: Self::LEN,
            have: datagram.len(),
        })
    }
}
