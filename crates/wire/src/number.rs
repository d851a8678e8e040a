//! The numbers of IPsec, each with a separate type.

use std::fmt;

/// Security Parameters Index of an SA (RFC 4303 §2.1). Never 0–255: those are reserved.
///
/// PSP uses the same field with other rules (bit 31 names the master key, the low 31 bits are not
/// zero); see [`crate::psp`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Spi(u32);

/// An SPI in the range that RFC 4303 §2.1 reserves.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("SPI {0:#010x} is reserved; choose one above 0xff")]
pub struct ReservedSpi(pub u32);

impl Spi {
    /// The SPI as a number in host order.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The SPI as on the wire.
    pub const fn to_be_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }
}

impl TryFrom<u32> for Spi {
    type Error = ReservedSpi;

    fn try_from(raw: u32) -> Result<Self, ReservedSpi> {
        if raw > 0xff { Ok(Self(raw)) } else { Err(ReservedSpi(raw)) }
    }
}

impl fmt::Display for Spi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Sequence number of a packet within its SA, always 64 bits wide inside (RFC 4303 §2.2, EESP).
/// An SA without extended numbers never goes above 2³² − 1.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SeqNo(pub u64);

impl SeqNo {
    /// The half that ESP and AH put on the wire.
    pub const fn lo(self) -> u32 {
        self.0 as u32
    }

    /// The half that RFC 4303 §2.2.1 leaves to inference.
    pub const fn hi(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Session ID of an EESP packet: the Sub SA when a Sub SA function is in use, otherwise 0.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SessionId(pub u16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserved_range_ends_at_255() {
        assert_eq!(Spi::try_from(0xff), Err(ReservedSpi(0xff)));
        assert_eq!(Spi::try_from(0x100).map(Spi::get), Ok(0x100));
    }

    #[test]
    fn sequence_halves_join_again() {
        let n = SeqNo(0x0123_4567_89ab_cdef);
        assert_eq!((u64::from(n.hi()) << 32) | u64::from(n.lo()), n.0);
    }
}
