//! A bounded per-core cache of keys derived from what a packet says.

use crate::{Key, KeyId};

/// What a derived key was made from.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct DerivedName {
    /// Distinguishes owners: an SA or a master key generation. Never reused while cached.
    pub owner: u64,
    /// SPI (PSP, with version in the high half) or Session ID (EESP).
    pub label: u64,
}

/// The cache. A slot used since [`DerivedKeys::begin_batch`] is never evicted within that batch,
/// so a [`KeyId`] stays good until the batch has been through the engine.
pub struct DerivedKeys {}

impl DerivedKeys {
    /// A cache of `capacity` keys (about 1 KiB each); at least twice the largest batch.
    pub fn new(capacity: usize) -> Self {
        let _ = capacity;
        todo!("crypto helper")
    }

    /// Marks the start of a batch: slots become evictable again.
    pub fn begin_batch(&mut self) {
        todo!("crypto helper")
    }

    /// The cached key of `name`, or the one that `derive` makes now. `None` when `derive` refuses.
    pub fn get_or_derive(&mut self, name: DerivedName, derive: impl FnOnce() -> Option<Key>) -> Option<KeyId> {
        let _ = (name, derive);
        todo!("crypto helper")
    }

    /// Forgets every key of `owner` (its SA ended, its master key rotated away).
    pub fn forget(&mut self, owner: u64) {
        let _ = owner;
        todo!("crypto helper")
    }
}
