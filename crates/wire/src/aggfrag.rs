//! AGGFRAG payload header of IP-TFS (RFC 9347 §6.1).

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{ParseError, emit_prefix};

/// Sub-type of the header without congestion control.
pub const SUB_TYPE_BASIC: u8 = 0;
/// Sub-type of the header with congestion control.
pub const SUB_TYPE_CONGESTION: u8 = 1;

/// The header without congestion control (RFC 9347 §6.1.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BasicHeader {
    /// [`SUB_TYPE_BASIC`].
    pub sub_type: u8,
    /// Zero; ignored on receipt.
    pub reserved: u8,
    /// Bytes of the data blocks before the next block starts.
    pub block_offset: U16,
}
const _: () = assert!(size_of::<BasicHeader>() == BasicHeader::LEN);

impl BasicHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// A header for data blocks of which the next one starts after `block_offset` bytes.
    pub fn new(block_offset: u16) -> Self {
        Self { sub_type: SUB_TYPE_BASIC, reserved: 0, block_offset: block_offset.into() }
    }

    /// Writes the header to the start of `out`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the buffer `out` is shorter than 4 bytes.
    pub fn emit(&self, out: &mut [u8]) -> Result<(), ParseError> {
        emit_prefix("AGGFRAG header", self, out)
    }
}

/// The header with congestion control (RFC 9347 §6.1.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CongestionHeader {
    /// [`SUB_TYPE_CONGESTION`].
    pub sub_type: u8,
    /// Reserved (6 bits), P (1), E (1).
    pub flags: u8,
    /// Bytes of the data blocks before the next block starts.
    pub block_offset: U16,
    /// Inverse of the loss event rate; 0 means no loss.
    pub loss_event_rate: U32,
    /// RTT (22 bits), echo delay (21), transmit delay (21), in µs.
    pub delays: U64,
    /// Opaque time of the sender, which the receiver echoes.
    pub t_val: U32,
    /// The peer's last `t_val`.
    pub t_echo: U32,
}
const _: () = assert!(size_of::<CongestionHeader>() == CongestionHeader::LEN);

impl CongestionHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 24;

    /// P: a path MTU probe is in flight, so lost packets need not mean congestion.
    pub const fn p(&self) -> bool {
        self.flags & 2 != 0
    }

    /// E: ECN marks went into the loss event rate.
    pub const fn e(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Estimate of the round-trip time in µs, below 2²².
    pub fn rtt_us(&self) -> u32 {
        (self.delays.get() >> 42) as u32
    }

    /// Time between receiving the value in `t_echo` and echoing it in µs, below 2²¹.
    pub fn echo_delay_us(&self) -> u32 {
        (self.delays.get() >> 21) as u32 & 0x1f_ffff
    }

    /// Time between two packets of the sender in µs, below 2²¹.
    pub fn transmit_delay_us(&self) -> u32 {
        self.delays.get() as u32 & 0x1f_ffff
    }

    /// Writes the header to the start of `out`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the buffer `out` is shorter than 24 bytes.
    pub fn emit(&self, out: &mut [u8]) -> Result<(), ParseError> {
        emit_prefix("AGGFRAG header", self, out)
    }
}

/// An AGGFRAG payload header of either kind.
#[derive(Clone, Copy, Debug)]
pub enum Header<'a> {
    /// Sub-type 0.
    Basic(&'a BasicHeader),
    /// Sub-type 1.
    Congestion(&'a CongestionHeader),
}

impl<'a> Header<'a> {
    /// Splits `payload` into the header and its data blocks.
    ///
    /// # Errors
    /// [`ParseError`] when the sub-type is not known or the header is cut off.
    pub fn parse(payload: &'a [u8]) -> Result<(Self, &'a [u8]), ParseError> {
        let cut = |need| ParseError::Truncated { what: "AGGFRAG header", need, have: payload.len() };
        match payload.first() {
            Some(&SUB_TYPE_BASIC) => BasicHeader::ref_from_prefix(payload)
                .map(|(header, blocks)| (Self::Basic(header), blocks))
                .map_err(|_| cut(BasicHeader::LEN)),
            Some(&SUB_TYPE_CONGESTION) => CongestionHeader::ref_from_prefix(payload)
                .map(|(header, blocks)| (Self::Congestion(header), blocks))
                .map_err(|_| cut(CongestionHeader::LEN)),
            // Another sub-type may have another header length, so that its data blocks cannot be
            // found.
            Some(_) => Err(ParseError::Malformed { what: "AGGFRAG header", why: "sub-type is neither 0 nor 1" }),
            None => Err(cut(BasicHeader::LEN)),
        }
    }

    /// Bytes of the data blocks before the next block starts; may be more than there are.
    pub fn block_offset(&self) -> usize {
        usize::from(match self {
            Self::Basic(header) => header.block_offset.get(),
            Self::Congestion(header) => header.block_offset.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_read() {
        let mut basic = [0; 6];
        BasicHeader::new(0x0203).emit(&mut basic).unwrap();
        let (header, blocks) = Header::parse(&basic).unwrap();
        assert_eq!((header.block_offset(), blocks.len()), (0x0203, 2));

        let mut bytes = [0xff; 25];
        bytes[..4].copy_from_slice(&[1, 3, 0, 9]);
        bytes[8..16].copy_from_slice(&((5u64 << 42) | (6 << 21) | 7).to_be_bytes());
        let (Header::Congestion(header), blocks) = Header::parse(&bytes).unwrap() else { panic!("sub-type 1") };
        assert_eq!((header.rtt_us(), header.echo_delay_us(), header.transmit_delay_us()), (5, 6, 7));
        assert_eq!((header.p(), header.e(), header.block_offset.get(), blocks.len()), (true, true, 9, 1));
        let mut out = [0; 24];
        header.emit(&mut out).unwrap();
        assert_eq!(out, bytes[..24]);
    }

    #[test]
    fn cut_off_and_unknown_headers_are_refused() {
        (0..4).for_each(|len| assert!(Header::parse(&[0; 4][..len]).is_err()));
        (0..24).for_each(|len| assert!(Header::parse(&[1; 24][..len]).is_err()));
        assert!(Header::parse(&[2; 64]).is_err());
    }
}
