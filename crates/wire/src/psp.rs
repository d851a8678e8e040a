//! PSP (PSP Architecture Specification, November 2022).

use std::fmt;

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{IpProto, ParseError, emit_prefix};

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

/// Sample at the receiver.
const S: u8 = 0x80;
/// Drop after sampling.
const D: u8 = 0x40;
/// A virtualisation cookie is there.
const V: u8 = 0x02;
/// Always set.
const ONE: u8 = 0x01;

impl PspHeader {
    /// Bytes of the fixed part.
    pub const LEN: usize = 16;
    /// Bytes of the virtualisation cookie.
    pub const COOKIE_LEN: usize = 8;
    /// Largest crypt offset, in 4-byte units.
    pub const MAX_CRYPT_OFFSET: u8 = 63;

    /// Splits `packet` into the fixed part and what follows it. Nothing is judged here.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 16 bytes.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        Self::ref_from_prefix(packet).map_err(|_| ParseError::Truncated {
            what: "PSP header",
            need: Self::LEN,
            have: packet.len(),
        })
    }

    /// Splits `packet` into the fixed part, the cookie and extensions by the header's own length,
    /// and what follows them. Whether version and SPI are acceptable is not judged here.
    ///
    /// # Errors
    /// [`ParseError`] below 16 bytes, when the bit that is always 1 is not, when Hdr Ext Len cuts
    /// into the fixed part or the cookie, or when it runs over the end.
    #[inline]
    pub fn parse_full(packet: &[u8]) -> Result<(&Self, &[u8], &[u8]), ParseError> {
        let (header, rest) = Self::parse(packet)?;
        if !header.always_one() {
            return Err(ParseError::Malformed { what: "PSP header", why: "the bit that is always 1 is 0" });
        }
        let len = header.total_len();
        // Hdr Ext Len counts the cookie, so that it must be large enough if the V bit is set.
        let extensions = len.checked_sub(Self::LEN + usize::from(header.has_cookie()) * Self::COOKIE_LEN);
        if extensions.is_none() {
            return Err(ParseError::Malformed { what: "PSP header", why: "Hdr Ext Len is too small" });
        }
        let (extensions, rest) = rest.split_at_checked(len - Self::LEN).ok_or(ParseError::Truncated {
            what: "PSP header",
            need: len,
            have: packet.len(),
        })?;
        Ok((header, extensions, rest))
    }

    /// A header without cookie, crypt offset, S and D.
    #[inline]
    pub fn new(next_header: IpProto, version: PspVersion, spi: PspSpi, iv: u64) -> Self {
        Self {
            next_header: next_header.0,
            ext_len: 1,
            crypt_offset: 0,
            flags: version.0 << 2 | ONE,
            spi: spi.get().into(),
            iv: iv.into(),
        }
    }

    /// The header of a packet with a cookie; the 8 bytes of the cookie follow it.
    #[inline]
    #[must_use]
    pub fn with_cookie(mut self) -> Self {
        if !self.has_cookie() {
            self.flags |= V;
            self.ext_len = self.ext_len.saturating_add(1);
        }
        self
    }

    /// The header with a crypt offset of `words` 4-byte units; `None` above
    /// [`Self::MAX_CRYPT_OFFSET`].
    #[inline]
    pub fn with_crypt_offset(mut self, words: u8) -> Option<Self> {
        self.crypt_offset = words;
        (words <= Self::MAX_CRYPT_OFFSET).then_some(self)
    }

    /// The header with its S (sample at the receiver) and D (drop after sampling) bits as given.
    #[inline]
    #[must_use]
    pub fn with_sampling(mut self, sample: bool, drop: bool) -> Self {
        self.flags = self.flags & !(S | D) | if sample { S } else { 0 } | if drop { D } else { 0 };
        self
    }

    /// Writes the fixed part to the start of `out`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the buffer `out` is shorter than 16 bytes.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<(), ParseError> {
        emit_prefix("PSP header", self, out)
    }

    /// The version, 0 to 15; 4 and above are not assigned.
    #[inline]
    pub const fn version(&self) -> PspVersion {
        PspVersion(self.flags >> 2 & 15)
    }

    /// S: the receiver shall sample the packet.
    #[inline]
    pub const fn sample(&self) -> bool {
        self.flags & S != 0
    }

    /// D: the receiver shall drop the packet after sampling.
    #[inline]
    pub const fn drop_after_sampling(&self) -> bool {
        self.flags & D != 0
    }

    /// V: a cookie follows the fixed part.
    #[inline]
    pub const fn has_cookie(&self) -> bool {
        self.flags & V != 0
    }

    /// The bit that is always 1, which sets PSP apart.
    #[inline]
    pub const fn always_one(&self) -> bool {
        self.flags & ONE != 0
    }

    /// Bytes of the header with cookie and extensions, by its own length field; 8 (which is wrong)
    /// to 2048.
    #[inline]
    pub const fn total_len(&self) -> usize {
        (self.ext_len as usize + 1) * 8
    }

    /// Bytes between the end of the IV and the first encrypted byte, 0 to 252. A cookie is
    /// included.
    #[inline]
    pub const fn crypt_offset_bytes(&self) -> usize {
        // The two reserved bits share the byte and must not enlarge the offset.
        (self.crypt_offset & Self::MAX_CRYPT_OFFSET) as usize * 4
    }
}

/// The virtualisation cookie, 8 opaque bytes after the fixed part when V is set.
#[derive(Clone, Copy, Debug, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, PartialEq, Unaligned)]
#[repr(C)]
pub struct PspCookie(pub U64);
const _: () = assert!(size_of::<PspCookie>() == PspHeader::COOKIE_LEN);

impl PspCookie {
    /// The cookie that starts `extensions`, the second part that [`PspHeader::parse_full`] gives;
    /// present only if [`PspHeader::has_cookie`] returns true.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 8 bytes.
    pub fn parse(extensions: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        Self::ref_from_prefix(extensions).map_err(|_| ParseError::Truncated {
            what: "PSP cookie",
            need: PspHeader::COOKIE_LEN,
            have: extensions.len(),
        })
    }
}

/// Version of a PSP packet, which names its algorithm. Open: 4 to 15 may arrive and are not known.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PspVersion(u8);

/// A number that does not fit the four bits of the version field.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("PSP version {0} does not exist; choose 0 (AES-128-GCM), 1 (AES-256-GCM), 2 or 3 (AES-GMAC)")]
pub struct BadPspVersion(pub u8);

impl PspVersion {
    /// AES-128-GCM.
    pub const AES_128_GCM: Self = Self(0);
    /// AES-256-GCM.
    pub const AES_256_GCM: Self = Self(1);
    /// AES-128-GMAC: integrity alone.
    pub const AES_128_GMAC: Self = Self(2);
    /// AES-256-GMAC: integrity alone.
    pub const AES_256_GMAC: Self = Self(3);

    /// The number in the header, 0 to 15.
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Bytes of the key, `None` for a version that is not assigned.
    #[inline]
    pub const fn key_len(self) -> Option<usize> {
        match self {
            Self::AES_128_GCM | Self::AES_128_GMAC => Some(16),
            Self::AES_256_GCM | Self::AES_256_GMAC => Some(32),
            _ => None,
        }
    }

    /// True for the versions that do not encrypt.
    #[inline]
    pub const fn is_gmac(self) -> bool {
        matches!(self, Self::AES_128_GMAC | Self::AES_256_GMAC)
    }
}

impl TryFrom<u8> for PspVersion {
    type Error = BadPspVersion;

    fn try_from(raw: u8) -> Result<Self, BadPspVersion> {
        if raw < 16 { Ok(Self(raw)) } else { Err(BadPspVersion(raw)) }
    }
}

impl fmt::Display for PspVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// SPI of a PSP association: bit 31 names the receiver's master key, the low 31 bits are not zero.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PspSpi(u32);

/// A PSP SPI with 31 low bits of zero.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("PSP SPI {0:#010x} has only zeros below its top bit; choose another number")]
pub struct ZeroPspSpi(pub u32);

impl PspSpi {
    /// The bit that names the master key.
    pub const MASTER_KEY_BIT: u32 = 1 << 31;

    /// The SPI as a number in host order.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The SPI as on the wire and in the key derivation.
    #[inline]
    pub const fn to_be_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }

    /// Index of the master key: 0 or 1.
    #[inline]
    pub const fn master_key(self) -> usize {
        (self.0 >> 31) as usize
    }
}

impl TryFrom<u32> for PspSpi {
    type Error = ZeroPspSpi;

    #[inline]
    fn try_from(raw: u32) -> Result<Self, ZeroPspSpi> {
        if raw & !Self::MASTER_KEY_BIT != 0 { Ok(Self(raw)) } else { Err(ZeroPspSpi(raw)) }
    }
}

impl fmt::Display for PspSpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Bytes of the ICV after the last payload byte.
pub const ICV_LEN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u8) -> PspHeader {
        PspHeader::new(IpProto::UDP, PspVersion(version), PspSpi(0x9a34_5678), 0x0102_0304_0506_0708)
    }

    #[test]
    fn flag_bytes_are_those_of_the_specification() {
        for (version, plain, with_cookie) in [(0, 0x01, 0x03), (1, 0x05, 0x07), (2, 0x09, 0x0b), (3, 0x0d, 0x0f)] {
            assert_eq!(header(version).flags, plain);
            assert_eq!(header(version).with_cookie().flags, with_cookie);
            assert_eq!(header(version).with_cookie().version().get(), version);
        }
        let sampled = header(1).with_sampling(true, false);
        assert_eq!((sampled.flags, sampled.sample(), sampled.drop_after_sampling()), (0x85, true, false));
        let dropped = sampled.with_sampling(false, true);
        assert_eq!((dropped.flags, dropped.sample(), dropped.drop_after_sampling()), (0x45, false, true));
    }

    #[test]
    fn a_header_reads_back() {
        let mut packet = [0xaa; 27];
        header(1).with_cookie().with_crypt_offset(63).unwrap().emit(&mut packet).unwrap();
        assert_eq!(packet[..8], [17, 2, 63, 7, 0x9a, 0x34, 0x56, 0x78]);
        let (read, extensions, rest) = PspHeader::parse_full(&packet).unwrap();
        assert_eq!((read.iv.get(), read.crypt_offset_bytes(), read.total_len()), (0x0102_0304_0506_0708, 252, 24));
        assert_eq!((extensions.len(), rest.len()), (8, 3));
        assert_eq!(PspCookie::parse(extensions).unwrap().0.0.get(), 0xaaaa_aaaa_aaaa_aaaa);
        assert!(PspCookie::parse(rest).is_err());
        assert!(header(0).with_crypt_offset(64).is_none());
        assert!(header(0).emit(&mut [0; 15]).is_err());
        // Reserved bits next to the crypt offset are ignored.
        packet[2] |= 0xc0;
        assert_eq!(PspHeader::parse(&packet).unwrap().0.crypt_offset_bytes(), 252);
        (0..24).for_each(|len| assert!(PspHeader::parse_full(&packet[..len]).is_err()));
    }

    #[test]
    fn lengths_and_the_constant_bit_are_judged() {
        let parse = |ext_len, flags| {
            let mut packet = [0; 2048];
            (packet[1], packet[3]) = (ext_len, flags);
            PspHeader::parse_full(&packet).map(|(_, extensions, _)| extensions.len())
        };
        assert_eq!(parse(1, 1), Ok(0));
        assert_eq!(parse(255, 1), Ok(2032));
        assert_eq!(parse(2, 3), Ok(8));
        assert!(parse(0, 1).is_err());
        assert!(parse(1, 3).is_err());
        assert!(parse(1, 0).is_err());
    }

    #[test]
    fn an_spi_needs_more_than_its_top_bit() {
        assert_eq!(PspSpi::try_from(0), Err(ZeroPspSpi(0)));
        assert_eq!(PspSpi::try_from(0x8000_0000), Err(ZeroPspSpi(0x8000_0000)));
        assert_eq!(PspSpi::try_from(1).map(PspSpi::master_key), Ok(0));
        assert_eq!(PspSpi::try_from(0x8000_0001).map(PspSpi::master_key), Ok(1));
    }

    #[test]
    fn versions_name_algorithms() {
        let of = |raw| PspVersion::try_from(raw).map(|version| (version.key_len(), version.is_gmac()));
        assert_eq!(of(0), Ok((Some(16), false)));
        assert_eq!(of(1), Ok((Some(32), false)));
        assert_eq!(of(2), Ok((Some(16), true)));
        assert_eq!(of(3), Ok((Some(32), true)));
        assert_eq!(of(4), Ok((None, false)));
        assert_eq!(of(16), Err(BadPspVersion(16)));
    }
}
