//! The receiver's master keys, and the SPIs and keys given out under them.
//!
//! Made at the start from random bytes, rotated every period; a key that is given out lives until
//! the rotation after the next. Nothing of it leaves the process or outlives it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::kdf::PspMasterKey;
use ipsec::psp::{MasterKeys, SpiAllocator, SpisExhausted};
use wire::psp::{PspSpi, PspVersion};
use zeroize::Zeroizing;

use super::message::TrafficKey;

/// Random bytes for one master key.
pub(crate) struct Seed {
    /// The key.
    pub(crate) key: Zeroizing<[u8; 32]>,
    /// Number that the SPIs start from.
    pub(crate) start: u32,
}

/// Gives out SPIs and keys.
pub(crate) struct Issuer {
    masters: MasterKeys,
    allocator: SpiAllocator,
    period: Duration,
    rotated_at: Instant,
}

/// An SPI that was given out.
#[derive(Clone)]
pub(crate) struct Issued {
    pub(crate) spi: PspSpi,
    pub(crate) version: PspVersion,
    pub(crate) key: TrafficKey,
    /// Only the master key of this SPI, so that earlier ones are not kept alive.
    pub(crate) masters: Arc<MasterKeys>,
    /// Expiry of that master key.
    pub(crate) until: Instant,
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[SPI {:#010x}]", self.spi.get())
    }
}

impl Issuer {
    /// Creates an issuer that replaces its master key every `period`.
    pub(crate) fn new(now: Instant, period: Duration, seed: &Seed) -> Self {
        let masters = MasterKeys::new([Some(PspMasterKey::new(&seed.key)), None]);
        let allocator = SpiAllocator::new(masters.active(), seed.start);
        Self { masters, allocator, period, rotated_at: now }
    }

    /// Time at which [`Issuer::rotate`] is due.
    pub(crate) fn rotates_at(&self) -> Instant {
        self.rotated_at + self.period
    }

    /// Puts a new master key in the place of the older one. No key issued under that may remain.
    pub(crate) fn rotate(&mut self, now: Instant, seed: &Seed) {
        self.masters = self.masters.rotate(PspMasterKey::new(&seed.key));
        self.allocator = SpiAllocator::new(self.masters.active(), seed.start);
        self.rotated_at = now;
    }

    /// Gives out an SPI that was never given out under this master key.
    ///
    /// # Errors
    /// All of them were; there are new ones after the next rotation.
    pub(crate) fn issue(&mut self, version: PspVersion) -> Result<Issued, SpisExhausted> {
        let (spi, _) = self.allocator.allocate(1)?;
        let key = self.masters.traffic_key(spi, version).and_then(|key| TrafficKey::new(key.key()));
        let masters = Arc::new(self.masters.only(self.masters.active()));
        let until = self.rotated_at + 2 * self.period;
        Ok(Issued { spi, version, key: key.ok_or(SpisExhausted)?, masters, until })
    }

    /// Returns whether an SPI was given out under the newest master key.
    pub(crate) fn is_fresh(&self, spi: PspSpi) -> bool {
        spi.master_key() == self.masters.active() && self.allocator.was_issued(spi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(byte: u8) -> Seed {
        Seed { key: Zeroizing::new([byte; 32]), start: u32::from(byte) }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_key_lives_for_one_to_two_periods() {
        let t0 = Instant::now();
        let mut issuer = Issuer::new(t0, HOUR, &seed(1));
        let first = issuer.issue(PspVersion::AES_128_GCM).unwrap();
        assert_eq!((first.until, issuer.rotates_at()), (t0 + 2 * HOUR, t0 + HOUR));
        issuer.rotate(t0 + HOUR, &seed(2));
        let second = issuer.issue(PspVersion::AES_128_GCM).unwrap();
        assert_ne!(first.spi.master_key(), second.spi.master_key());
        assert_eq!(second.until, t0 + 3 * HOUR);
        assert!(!issuer.is_fresh(first.spi) && issuer.is_fresh(second.spi));
        // Issued SPIs keep their key.
        assert_eq!(first.masters.traffic_key(first.spi, first.version).unwrap().key(), first.key.octets(first.version));
        assert!(second.masters.traffic_key(first.spi, first.version).is_none());
        issuer.rotate(t0 + 2 * HOUR, &seed(3));
        let third = issuer.issue(PspVersion::AES_256_GCM).unwrap();
        assert_eq!(third.spi.master_key(), first.spi.master_key());
        assert_ne!(third.masters.traffic_key(first.spi, first.version).unwrap().key(), first.key.octets(first.version));
    }

    #[test]
    fn no_spi_comes_twice() {
        let mut issuer = Issuer::new(Instant::now(), HOUR, &seed(9));
        let mut spis: Vec<u32> = (0..100).map(|_| issuer.issue(PspVersion::AES_128_GCM).unwrap().spi.get()).collect();
        spis.sort_unstable();
        spis.dedup();
        assert_eq!(spis.len(), 100);
    }
}
