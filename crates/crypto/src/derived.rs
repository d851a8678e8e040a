//! A bounded per-core cache of keys derived from packet fields.
//!
//! A key must be derived before its packet can be authenticated, so an attacker controls the
//! look-ups: the cache has a fixed size and never allocates after its creation. Keys that were used
//! only once are evicted first (second-chance eviction), so that a flood of invalid labels cannot
//! evict the keys in use.

use std::hash::BuildHasher;

use crate::{Key, KeyId};

/// Input of the key derivation.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct DerivedName {
    /// Distinguishes owners: an SA or a master key generation. Never reused while cached.
    pub owner: u64,
    /// SPI (PSP, with version in the high half) or Session ID (EESP).
    pub label: u64,
}

/// Statistics of the cache.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DerivedStats {
    /// Keys found.
    pub hits: u64,
    /// Keys not found, whether or not one could then be derived.
    pub misses: u64,
    /// Evicted keys.
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

/// The cache. A slot used since [`DerivedKeys::begin_batch`] is never evicted within that batch, so
/// that a [`KeyId`] stays valid until the engine has processed the batch.
pub struct DerivedKeys {
    slots: Vec<Slot>,
    /// First slot of each chain; a power of two, so that a hash is masked.
    buckets: Vec<u32>,
    /// Seeded at random, because labels come from the network: an attacker must not be able to
    /// choose labels that share a chain.
    hasher: foldhash::quality::RandomState,
    /// The slot of the last look-up: packets of one key arrive in bursts.
    last: usize,
    /// Clock hand: the position of the next search for a slot to evict.
    hand: usize,
    batch: u64,
    stats: DerivedStats,
}

impl DerivedKeys {
    /// Creates a cache of `capacity` keys (about 1 KiB each), which should be at least twice the
    /// largest batch. A capacity of 0 is valid for cores that derive no keys.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity < KeyId::DERIVED as usize, "a cache of 2³¹ keys fits no memory");
        let free = || Slot { name: DerivedName { owner: 0, label: 0 }, key: None, batch: 0, again: false, next: NONE };
        Self {
            slots: std::iter::repeat_with(free).take(capacity).collect(),
            buckets: vec![NONE; (capacity * 2).next_power_of_two()],
            hasher: foldhash::quality::RandomState::default(),
            last: 0,
            hand: 0,
            batch: 1,
            stats: DerivedStats::default(),
        }
    }

    /// Marks the start of a batch: slots become evictable again.
    pub fn begin_batch(&mut self) {
        self.batch += 1;
    }

    /// Returns the cached key of `name`, or derives it. `None` if `derive` fails or if the current
    /// batch uses every slot.
    #[inline]
    pub fn get_or_derive(&mut self, name: DerivedName, derive: impl FnOnce() -> Option<Key>) -> Option<KeyId> {
        if self.slots.get(self.last).is_some_and(|slot| slot.name == name && slot.key.is_some()) {
            return Some(self.hit(self.last));
        }
        self.get_or_derive_other(name, derive)
    }

    /// [`DerivedKeys::get_or_derive`] for another key than the last one.
    fn get_or_derive_other(&mut self, name: DerivedName, derive: impl FnOnce() -> Option<Key>) -> Option<KeyId> {
        let bucket = self.bucket(name);
        if let Some(index) = self.find(bucket, name) {
            self.last = index;
            return Some(self.hit(index));
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
        self.last = index;
        Some(id(index))
    }

    /// Marks the key in a slot as used.
    #[inline]
    fn hit(&mut self, index: usize) -> KeyId {
        self.stats.hits += 1;
        let slot = &mut self.slots[index];
        // A second packet in the same batch does not confirm the key: an attacker can send two
        // forged packets at once.
        slot.again |= slot.batch != self.batch;
        slot.batch = self.batch;
        id(index)
    }

    /// Removes every key of `owner` (its SA ended, or its master key was rotated out). Must not be
    /// called between [`DerivedKeys::get_or_derive`] and the engine: a job without its key fails.
    pub fn forget(&mut self, owner: u64) {
        for index in 0..self.slots.len() {
            if self.slots[index].key.is_some() && self.slots[index].name.owner == owner {
                self.remove(index);
            }
        }
    }

    /// Returns a key by the identifier that [`DerivedKeys::get_or_derive`] returned in this batch.
    #[inline]
    pub fn get(&self, id: KeyId) -> Option<&Key> {
        self.slots.get((id.0 & !KeyId::DERIVED) as usize)?.key.as_ref()
    }

    /// Statistics of the cache.
    pub fn stats(&self) -> DerivedStats {
        self.stats
    }

    /// Returns the capacity.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of cached keys. Takes linear time, so the packet path should not call it.
    pub fn len(&self) -> usize {
        self.slots.iter().filter(|slot| slot.key.is_some()).count()
    }

    /// Returns true if the cache is empty. Linear time, as [`DerivedKeys::len`].
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

    /// Returns the next slot that is free or may be evicted (clock algorithm). Two rounds suffice,
    /// because the first one clears the second chance of every slot.
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{Engine, KeyMaterial, Suite};

    fn key() -> Option<Key> {
        let suite = Suite::parse_ah("sha256").expect("a suite");
        Engine::Null.expand(&suite, KeyMaterial { enc: &[], integ: &[0; 32] }).ok()
    }

    fn name(label: u64) -> DerivedName {
        DerivedName { owner: label % 3, label }
    }

    /// Label of the key with an id.
    fn label(cache: &DerivedKeys, id: KeyId) -> u64 {
        assert_eq!(id.0 & KeyId::DERIVED, KeyId::DERIVED);
        assert!(cache.get(id).is_some());
        cache.slots[(id.0 & !KeyId::DERIVED) as usize].name.label
    }

    #[test]
    fn finds_what_it_derived() {
        let mut cache = DerivedKeys::new(4);
        let first = cache.get_or_derive(name(7), key).expect("room");
        cache.begin_batch();
        assert_eq!(cache.get_or_derive(name(7), || panic!("cached")), Some(first));
        assert_eq!(cache.get_or_derive(name(8), || None), None);
        assert_eq!(cache.stats(), DerivedStats { hits: 1, misses: 2, evictions: 0, full: 0 });
        assert_eq!((cache.len(), cache.capacity()), (1, 4));
        cache.forget(7 % 3);
        assert!(cache.is_empty() && cache.get(first).is_none());
        assert!(cache.get(KeyId(KeyId::DERIVED | 4)).is_none());
    }

    #[test]
    fn a_batch_keeps_what_it_uses() {
        let mut cache = DerivedKeys::new(3);
        for n in [1, 2, 3] {
            assert!(cache.get_or_derive(name(n), key).is_some());
        }
        assert_eq!(cache.get_or_derive(name(4), || panic!("no room, no work")), None);
        assert_eq!(cache.stats().full, 1);
        cache.begin_batch();
        let kept = cache.get_or_derive(name(2), key).expect("cached");
        assert!(cache.get_or_derive(name(4), key).is_some());
        assert!(cache.get_or_derive(name(5), key).is_some());
        assert_eq!(cache.get_or_derive(name(6), key), None);
        assert_eq!(label(&cache, kept), 2);
    }

    #[test]
    fn a_flood_of_labels_leaves_keys_in_use_alone() {
        let mut cache = DerivedKeys::new(64);
        let derived = std::cell::Cell::new(0);
        for round in 0..1000 {
            cache.begin_batch();
            for in_use in 0..8 {
                let counted = || {
                    derived.set(derived.get() + 1);
                    key()
                };
                assert!(cache.get_or_derive(name(in_use), counted).is_some());
            }
            for forged in 0..24 {
                assert!(cache.get_or_derive(name(1000 + round * 24 + forged), key).is_some());
            }
        }
        assert_eq!(derived.get(), 8, "each key in use was derived once");
    }

    #[test]
    fn holds_nothing_when_it_has_no_room() {
        let mut cache = DerivedKeys::new(0);
        assert_eq!(cache.get_or_derive(name(1), key), None);
        cache.forget(1);
        cache.begin_batch();
        assert!(cache.get(KeyId(KeyId::DERIVED)).is_none());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Batch,
        Get(u64),
        Refuse(u64),
        Forget(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            2 => Just(Step::Batch),
            8 => (0..12u64).prop_map(Step::Get),
            1 => (0..12u64).prop_map(Step::Refuse),
            1 => (0..3u64).prop_map(Step::Forget),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        /// Against a model of the promises alone: what is found was put in and not forgotten; what
        /// the batch uses stays; a miss is refused only when the batch uses all.
        #[test]
        fn keeps_its_promises(capacity in 1..10usize, steps in steps()) {
            let mut cache = DerivedKeys::new(capacity);
            // Labels the cache may hold, and those this batch got, with their ids.
            let (mut known, mut batch) = (HashMap::<u64, KeyId>::new(), HashMap::<u64, KeyId>::new());
            for step in steps {
                match step {
                    Step::Batch => {
                        cache.begin_batch();
                        batch.clear();
                    }
                    Step::Get(n) => {
                        let (mut derived, before) = (false, cache.len());
                        let got = cache.get_or_derive(name(n), || { derived = true; key() });
                        match got {
                            Some(id) if derived => {
                                prop_assert!(!batch.contains_key(&n));
                                // The slot was free, or lost the label it had.
                                known.retain(|_, held| *held != id);
                                prop_assert!(before < capacity || cache.len() == capacity);
                                known.insert(n, id);
                            }
                            Some(id) => prop_assert_eq!(known.get(&n), Some(&id)),
                            None => {
                                prop_assert!(!derived && !known.contains_key(&n));
                                prop_assert_eq!(batch.len(), capacity);
                            }
                        }
                        batch.extend(got.map(|id| (n, id)));
                    }
                    Step::Refuse(n) => {
                        let got = cache.get_or_derive(name(n), || None);
                        prop_assert_eq!(got, known.get(&n).copied());
                        batch.extend(got.map(|id| (n, id)));
                    }
                    Step::Forget(owner) => {
                        cache.forget(owner);
                        known.retain(|n, _| n % 3 != owner);
                        batch.retain(|n, _| n % 3 != owner);
                    }
                }
                prop_assert_eq!(cache.len(), known.len());
                for (n, id) in batch.iter().chain(&known) {
                    prop_assert_eq!(label(&cache, *id), *n);
                }
                let stats = cache.stats();
                prop_assert!(stats.evictions <= stats.misses);
            }
        }
    }
}
