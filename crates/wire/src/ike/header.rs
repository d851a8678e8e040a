//! The IKE header (RFC 7296 §3.1, RFC 2408 §3.1) and the generic payload header that follows it.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ExchangeType, PayloadType};
use crate::ParseError;

/// The fixed header of every message of both versions.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// SPI of the initiator of the IKE SA; in IKEv1 its cookie.
    pub spi_i: [u8; 8],
    /// SPI of the responder, zero in the first message; in IKEv1 its cookie.
    pub spi_r: [u8; 8],
    /// First payload.
    pub next: PayloadType,
    /// Major version in the high four bits, minor in the low four.
    pub version: u8,
    /// Exchange.
    pub exchange: ExchangeType,
    /// `FLAG_*`, or `FLAG_V1_*` in IKEv1.
    pub flags: u8,
    /// Message ID.
    pub message_id: U32,
    /// Bytes of the message with this header.
    pub length: U32,
}
const _: () = assert!(size_of::<Header>() == Header::LEN);

impl Header {
    /// Bytes on the wire.
    pub const LEN: usize = 28;
    /// Version 2.0, the value that is sent.
    pub const VERSION_2: u8 = 0x20;
    /// Version 1.0, the value that is sent.
    pub const VERSION_1: u8 = 0x10;
    /// The sender is the initiator of the IKE SA.
    pub const FLAG_INITIATOR: u8 = 0x08;
    /// The sender supports a higher major version.
    pub const FLAG_VERSION: u8 = 0x10;
    /// This is a response.
    pub const FLAG_RESPONSE: u8 = 0x20;
    /// IKEv1: the payloads are encrypted.
    pub const FLAG_V1_ENCRYPTION: u8 = 0x01;
    /// IKEv1: wait for a CONNECTED notification.
    pub const FLAG_V1_COMMIT: u8 = 0x02;
    /// IKEv1: authenticated but not encrypted.
    pub const FLAG_V1_AUTH_ONLY: u8 = 0x04;

    /// Splits `datagram`, without a non-ESP marker, into the header and the payloads. Version and
    /// flags are not validated: a receiver should check the version first (RFC 7296 §2.5).
    ///
    /// # Errors
    /// [`ParseError`] below 28 bytes and when the length field is not the length of the datagram.
    pub fn parse(datagram: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        let (header, body) = Self::ref_from_prefix(datagram).map_err(|_| ParseError::Truncated {
            what: "IKE header",
            need: Self::LEN,
            have: datagram.len(),
        })?;
        let length = header.length.get() as usize;
        if length > datagram.len() {
            return Err(ParseError::Truncated { what: "IKE message", need: length, have: datagram.len() });
        }
        // Trailing bytes would be outside of the ICV (RFC 7296 §3.14).
        if length != datagram.len() {
            return Err(ParseError::Malformed { what: "IKE message", why: "bytes after its end" });
        }
        Ok((header, body))
    }

    /// Major version.
    pub const fn major(&self) -> u8 {
        self.version >> 4
    }

    /// True when the sender is the initiator of the IKE SA.
    pub const fn from_initiator(&self) -> bool {
        self.flags & Self::FLAG_INITIATOR != 0
    }

    /// True for a response.
    pub const fn is_response(&self) -> bool {
        self.flags & Self::FLAG_RESPONSE != 0
    }
}

/// Header fields that the sender sets; the rest follows from the payloads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HeaderFields {
    /// SPI of the initiator of the IKE SA.
    pub spi_i: [u8; 8],
    /// SPI of the responder of the IKE SA.
    pub spi_r: [u8; 8],
    /// [`Header::VERSION_2`] or [`Header::VERSION_1`].
    pub version: u8,
    /// Exchange.
    pub exchange: ExchangeType,
    /// `FLAG_*`.
    pub flags: u8,
    /// Message ID.
    pub message_id: u32,
}

/// Header of every payload (RFC 7296 §3.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct PayloadHeader {
    /// The payload after this one.
    pub(crate) next: PayloadType,
    /// Critical bit and seven reserved ones; all reserved in IKEv1.
    pub(crate) flags: u8,
    /// Bytes of the payload with this header.
    pub(crate) length: U16,
}
const _: () = assert!(size_of::<PayloadHeader>() == PayloadHeader::LEN);

impl PayloadHeader {
    pub(crate) const LEN: usize = 4;
    pub(crate) const CRITICAL: u8 = 0x80;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_that_of_the_datagram() {
        let mut message = vec![0; 30];
        message[..8].fill(1);
        message[16..20].copy_from_slice(&[33, 0x20, 34, Header::FLAG_INITIATOR]);
        message[27] = 30;
        let (header, body) = Header::parse(&message).expect("a message");
        assert_eq!((header.next, header.exchange, body.len()), (PayloadType::SA, ExchangeType::IKE_SA_INIT, 2));
        assert!(header.from_initiator() && !header.is_response() && header.major() == 2);
        for len in 0..message.len() {
            assert!(matches!(Header::parse(&message[..len]), Err(ParseError::Truncated { .. })), "{len}");
        }
        message.push(0);
        assert!(matches!(Header::parse(&message), Err(ParseError::Malformed { .. })));
        message[24] = 0xff;
        assert!(matches!(Header::parse(&message), Err(ParseError::Truncated { .. })));
    }
}
