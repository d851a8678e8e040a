//! A bounded per-core cache of keys derived from what a packet says.
//!
//! A key is derived before its packet is authenticated, so anyone can make this cache work: it has a
//! fixed size, never allocates after it was made, and a key that was used but once is the first to
//! go (second-chance eviction), so a flood of invented labels passes by the keys in real use.

use std::hash::BuildHasher;

use crate::{Key, KeyId};

/// What a derived key was made from.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct DerivedName {
    /// Distinguishes owners: an SA or a master key generation. Never reused while cached.
    pub owner: u64,
    /// SPI (PSP, with version in the high half) or Session ID (EESP).
    pub label: u64,
}

/// What the cache did so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DerivedStats {
    /// Keys found.
    pub hits: u64,
    /// Keys not found, whether or not one could then be derived.
    pub misses: u64,
    /// Keys that gave way to others.
    pub evictions: u64,
    /// Misses that found every slot in use by the current batch.
    pub full: u64,
}

/// End of a chain, or no slot.
const NONE: u32 = u32::MAX;

struct Slot {
    name: DerivedName,
    /// `None` when free.
    key: Option<Key>,
    /// Number of the batch that used it last.
    batch: u64,
    /// Used again since it came in or since the hand last passed.
    again: bool,
    /// Next slot of the same bucket.
    next: u32,
}

/// The cache. A slot used since [`DerivedKeys::begin_batch`] is never evicted within that batch,
/// so a [`KeyId`] stays good until the batch has been through the engine.
pub struct DerivedKeys {
    slots: Vec<Slot>,
    /// First slot of each chain; a power of two, so that a hash is masked.
    buckets: Vec<u32>,
    /// Seeded at random: labels come from the network, and must not be chosen to share a chain.
    hasher: foldhash::quality::RandomState,
    /// Where the search for a slot to evict goes on.
    hand: usize,
    batch: u64,
    stats: DerivedStats,
}

impl DerivedKeys {
    /// A cache of `capacity` keys (about 1 KiB each); at least twice the largest batch. One of
    /// capacity 0 holds nothing, for cores that derive nothing.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity < KeyId::DERIVED as usize, "a cache of 2³¹ keys fits no memory");
        let free = || Slot { name: DerivedName { owner: 0, label: 0 }, key: None, batch: 0, again: false, next: NONE };
        Self {
            slots: std::iter::repeat_with(free).take(capacity).collect(),
            buckets: vec![NONE; (capacity * 2).next_power_of_two()],
            hasher: foldhash::quality::RandomState::default(),
            hand: 0,
            batch: 1,
            stats: DerivedStats::default(),
        }
    }

    /// Marks the start of a batch: slots become evictable again.
    pub fn begin_batch(&mut self) {
        self.batch += 1;
    }

    /// The cached key of `name`, or the one that `derive` makes now. `None` when `derive` refuses,
    /// or when the current batch uses every slot.
    pub fn get_or_derive(&mut self, name: DerivedName, derive: impl FnOnce() -> Option<Key>) -> Option<KeyId> {
        let bucket = self.bucket(name);
        if let Some(index) = self.find(bucket, name) {
            self.stats.hits += 1;
            let slot = &mut self.slots[index];
            // A second packet in the batch that brought the key in tells nothing: a forger too
            // can send two at once.
            slot.again |= slot.batch != self.batch;
            slot.batch = self.batch;
            return Some(id(index));
        }
        self.stats.misses += 1;
        let Some(index) = self.evictable() else {
            self.stats.full += 1;
            return None;
        };
        let key = derive()?;
        if self.slots[index].key.is_some() {
            self.stats.evictions += 1;
            self.remove(index);
        }
        self.slots[index] = Slot { name, key: Some(key), batch: self.batch, again: false, next: self.buckets[bucket] };
        self.buckets[bucket] = index as u32;
        self.hand = (index + 1) % self.slots.len();
        Some(id(index))
    }

    /// Forgets every key of `owner` (its SA ended, its master key rotated away). Not between
    /// [`DerivedKeys::get_or_derive`] and the engine: a job whose key is gone fails.
    pub fn forget(&mut self, owner: u64) {
        for index in 0..self.slots.len() {
            if self.slots[index].key.is_some() && self.slots[index].name.owner == owner {
                self.remove(index);
            }
        }
    }

    /// The key of a name that [`DerivedKeys::get_or_derive`] gave in this batch.
    #[inline]
    pub fn get(&self, id: KeyId) -> Option<&Key> {
        self.slots.get((id.0 & !KeyId::DERIVED) as usize)?.key.as_ref()
    }

    /// What the cache did so far.
    pub fn stats(&self) -> DerivedStats {
        self.stats
    }

    /// The most keys it holds.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Keys it holds now. Counts them: not for the packet path.
    pub fn len(&self) -> usize {
        self.slots.iter().filter(|slot| slot.key.is_some()).count()
    }

    /// True when it holds none. As [`DerivedKeys::len`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn bucket(&self, name: DerivedName) -> usize {
        self.hasher.hash_one(name) as usize & (self.buckets.len() - 1)
    }

    fn find(&self, bucket: usize, name: DerivedName) -> Option<usize> {
        let mut at = self.buckets[bucket];
        while at != NONE {
            let slot = &self.slots[at as usize];
            if slot.name == name {
                return Some(at as usize);
            }
            at = slot.next;
        }
        None
    }

    /// The next slot that is free or may be evicted. The hand passes at most twice: the first
    /// round takes the second chance from each slot that had one.
    fn evictable(&mut self) -> Option<usize> {
        for _ in 0..2 * self.slots.len() {
            let index = self.hand;
            let slot = &mut self.slots[index];
            let in_use = slot.key.is_some() && (slot.batch == self.batch || std::mem::take(&mut slot.again));
            if !in_use {
                return Some(index);
            }
            self.hand = (index + 1) % self.slots.len();
        }
        None
    }

    /// Takes a slot out of its chain and drops its key.
    fn remove(&mut self, index: usize) {
        let bucket = self.bucket(self.slots[index].name);
        let next = self.slots[index].next;
        if self.buckets[bucket] == index as u32 {
            self.buckets[bucket] = next;
        } else {
            let mut at = self.buckets[bucket] as usize;
            while self.slots[at].next != index as u32 {
                at = self.slots[at].next as usize;
            }
            self.slots[at].next = next;
        }
        self.slots[index].key = None;
        self.slots[index].next = NONE;
    }
}

fn id(index: usize) -> KeyId {
    KeyId(index as u32 | KeyId::DERIVED)
}
