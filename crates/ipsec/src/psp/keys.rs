//! What the control side of a receiver keeps: master keys and the SPIs handed out under them.

use std::sync::Arc;

use crypto::kdf::{DerivedKeyBytes, PspMasterKey, derive_psp_key};
use wire::psp::{PspSpi, PspVersion};

use crate::lane;

/// The two master keys of a receiver, by bit 31 of the SPI.
///
/// One is active: new SPIs come from it. [`MasterKeys::rotate`] puts a new key into the other slot
/// and makes that one active, so that a key handed out lives for one to two rotations. Two
/// rotations make everything handed out before useless.
pub struct MasterKeys {
    slots: [Option<Slot>; 2],
}

#[derive(Clone)]
struct Slot {
    key: Arc<PspMasterKey>,
    /// Owner of the keys that are derived from this one. Higher than that of every older key, and
    /// never used again, so that a cached key is not found once its master key is gone.
    generation: u64,
}

impl Slot {
    fn new(key: PspMasterKey) -> Self {
        Self { key: Arc::new(key), generation: lane::new_owner() }
    }
}

impl MasterKeys {
    /// Master keys by bit 31 of the SPI; `None` leaves a slot empty. Of two keys the first is
    /// active.
    pub fn new([first, second]: [Option<PspMasterKey>; 2]) -> Self {
        let second = second.map(Slot::new);
        Self { slots: [first.map(Slot::new), second] }
    }

    /// Active slot, 0 or 1: the one with the newer key.
    pub fn active(&self) -> usize {
        let [first, second] = self.slots.each_ref().map(|slot| slot.as_ref().map(|slot| slot.generation));
        usize::from(second > first)
    }

    /// The keys after a rotation: `fresh` takes the place of the older key and is active.
    #[must_use]
    pub fn rotate(&self, fresh: PspMasterKey) -> Self {
        let mut slots = self.slots.clone();
        slots[1 - self.active()] = Some(Slot::new(fresh));
        Self { slots }
    }

    /// The same keys without the one in the other slot: SPIs issued under `slot` (0 or 1) need only
    /// this key, and the other one expires on time.
    #[must_use]
    pub fn only(&self, slot: usize) -> Self {
        let mut slots = self.slots.clone();
        slots[1 - slot] = None;
        Self { slots }
    }

    /// The key to hand out with `spi`; `None` without a master key for it or for an unknown
    /// version.
    pub fn traffic_key(&self, spi: PspSpi, version: PspVersion) -> Option<DerivedKeyBytes> {
        version.key_len()?;
        let slot = self.slots[spi.master_key()].as_ref()?;
        Some(derive_psp_key(&slot.key, spi.get(), version.get()))
    }

    /// Owner of derived keys for `spi`; `None` without a master key for it.
    #[inline]
    pub(super) fn generation(&self, spi: PspSpi) -> Option<u64> {
        self.slots[spi.master_key()].as_ref().map(|slot| slot.generation)
    }
}

/// Every SPI of a master key has been given out: rotate, and start another allocator.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the SPIs of this PSP master key are spent; rotate the master keys")]
pub struct SpisExhausted;

/// Usable values of the low 31 bits: all but zero.
const SPIS: u32 = (1 << 31) - 1;

/// Gives out the SPIs of one master key, each once: rising from a random start, around the end.
#[derive(Clone, Debug)]
pub struct SpiAllocator {
    /// Slot of the master key, as bit 31.
    master_bit: u32,
    /// Start, 0..SPIS.
    start: u32,
    /// Number of issued SPIs, 0..=SPIS.
    used: u32,
}

impl SpiAllocator {
    /// An allocator for the master key in `slot` (0 or 1), with a random number to start from.
    pub fn new(slot: usize, random: u32) -> Self {
        let master_bit = if slot == 0 { 0 } else { PspSpi::MASTER_KEY_BIT };
        Self { master_bit, start: random % SPIS, used: 0 }
    }

    /// The next `count` SPIs (at least 1) as an inclusive range. A range does not go around the
    /// end: what is too short for it there is lost.
    ///
    /// # Errors
    /// [`SpisExhausted`] when there are not so many left.
    pub fn allocate(&mut self, count: u32) -> Result<(PspSpi, PspSpi), SpisExhausted> {
        let count = count.max(1);
        let next = self.place(self.used);
        let before_end = SPIS - next;
        let lost = if count > before_end { before_end } else { 0 };
        if u64::from(self.used) + u64::from(lost) + u64::from(count) > u64::from(SPIS) {
            return Err(SpisExhausted);
        }
        let first = self.place(self.used + lost);
        self.used += lost + count;
        Ok((self.spi(first)?, self.spi(first + count - 1)?))
    }

    /// Returns whether `spi` has been issued.
    pub fn was_issued(&self, spi: PspSpi) -> bool {
        let low = spi.get() & !PspSpi::MASTER_KEY_BIT;
        if spi.get() & PspSpi::MASTER_KEY_BIT != self.master_bit {
            return false;
        }
        let place = low - 1;
        let offset = if place >= self.start { place - self.start } else { place + SPIS - self.start };
        offset < self.used
    }

    /// Place of the `n`th SPI, 0..SPIS.
    fn place(&self, n: u32) -> u32 {
        ((u64::from(self.start) + u64::from(n)) % u64::from(SPIS)) as u32
    }

    /// The SPI at a place below `SPIS`; its low bits are not zero.
    fn spi(&self, place: u32) -> Result<PspSpi, SpisExhausted> {
        PspSpi::try_from(self.master_bit | (place + 1)).map_err(|_| SpisExhausted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> PspMasterKey {
        PspMasterKey::new(&[byte; 32])
    }

    fn spi(raw: u32) -> PspSpi {
        PspSpi::try_from(raw).unwrap()
    }

    #[test]
    fn a_rotation_replaces_the_older_key() {
        let first = MasterKeys::new([Some(key(1)), None]);
        let (old, other) = (spi(5), spi(0x8000_0005));
        assert_eq!((first.active(), first.generation(other)), (0, None));
        let second = first.rotate(key(2));
        assert_eq!((second.active(), second.generation(old)), (1, first.generation(old)));
        let third = second.rotate(key(3));
        assert_eq!((third.active(), third.generation(other)), (0, second.generation(other)));
        assert!(third.generation(old) > second.generation(other));
    }

    #[test]
    fn traffic_keys_are_those_of_the_specification() {
        let masters = MasterKeys::new(
            [
                "34448a064292601b11a0978f56a2d34cf3fc35ede1a6bc04f8db3e5243a2b0ca",
                "563952565d3a78ae773ec1b779f2f2d99f4a7f53a6fbb9b07d5b71f39364d739",
            ]
            .map(|digits| Some(PspMasterKey::new(&crate::testkit::hex(digits).try_into().unwrap()))),
        );
        for (raw, version, expected) in [
            (0x1234_5678, 0, "96c22dc799198090b74b70ae468e4e30"),
            (0x9a34_5678, 0, "3946da2554eae46ad1ef77a64372edc4"),
            (0x1234_5678, 1, "2b7d72074e42ca334487f2990e3f8c4037e436f38283449b76463e9b7fb2e3de"),
            (0x9a34_5678, 1, "fa00f609df6020289a1c93d6027081a637ad45b24a5576b36e6f49dd43114d80"),
        ] {
            let key = masters.traffic_key(spi(raw), PspVersion::try_from(version).unwrap()).unwrap();
            assert_eq!(key.key(), crate::testkit::hex(expected));
            assert_eq!(key.material()[key.key().len()..], raw.to_be_bytes());
        }
        assert!(masters.traffic_key(spi(1), PspVersion::try_from(4).unwrap()).is_none());
    }

    #[test]
    fn spis_rise_around_the_end_and_are_never_zero() {
        let mut spis = SpiAllocator::new(1, SPIS - 2);
        assert_eq!(spis.allocate(1), Ok((spi(0xffff_fffe), spi(0xffff_fffe))));
        assert!(!spis.was_issued(spi(0xffff_ffff)));
        assert_eq!(spis.allocate(2), Ok((spi(0x8000_0001), spi(0x8000_0002))), "the last one is lost");
        for (raw, issued) in [
            (0xffff_fffe, true),
            (0x8000_0001, true),
            (0x8000_0002, true),
            (0x8000_0003, false),
            (0x7fff_fffe, false),
            (1, false),
        ] {
            assert_eq!(spis.was_issued(spi(raw)), issued, "{raw:#x}");
        }
    }

    #[test]
    fn spent_spis_are_refused() {
        let mut spis = SpiAllocator::new(0, 0);
        assert_eq!(spis.allocate(SPIS - 1), Ok((spi(1), spi(SPIS - 1))));
        assert_eq!(spis.allocate(2), Err(SpisExhausted));
        assert_eq!(spis.allocate(1), Ok((spi(SPIS), spi(SPIS))));
        assert_eq!(spis.allocate(1), Err(SpisExhausted));
        assert!(spis.was_issued(spi(SPIS)) && spis.was_issued(spi(1)));
    }
}
