//! Keys, expanded once and read by every packet.

use std::ops::Range;
use std::sync::Arc;

use crate::accelerator::DeviceKey;
use crate::engine::{Engine, State};
use crate::{DerivedKeys, KeyId, Suite};

/// Keying material from the configuration or a key exchange. Its owner must zero it on drop.
#[derive(Clone, Copy)]
pub struct KeyMaterial<'a> {
    /// Cipher key followed by its salt or nonce (KEYMAT of RFC 4106 §8.1); empty for AH.
    pub enc: &'a [u8],
    /// MAC key; empty for an AEAD.
    pub integ: &'a [u8],
}

/// Reason why a key could not be created.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The material has the wrong length.
    #[error("{algorithm} needs {need} bytes of {what}, not {have}")]
    Length {
        /// Algorithm name.
        algorithm: &'static str,
        /// "key and salt" or "key".
        what: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes given.
        have: usize,
    },
    /// The engine does not support the algorithm; reported here, never on a packet.
    #[error("engine {engine} cannot run {algorithm}")]
    Unsupported {
        /// Engine name.
        engine: &'static str,
        /// Algorithm name.
        algorithm: &'static str,
    },
    /// The engine cannot run at all in this build or on this processor.
    #[error("engine {engine} cannot be used: {why}")]
    Unavailable {
        /// Engine name.
        engine: &'static str,
        /// Missing feature.
        why: &'static str,
    },
}

/// An expanded key of one suite for one engine. Zeroed on drop; has no `Debug`.
///
/// A move copies the bytes and leaves the old ones on the stack until they are overwritten: a key
/// should be created directly in its [`Arc`] or cache slot.
#[repr(align(64))]
pub struct Key {
    pub(crate) suite: Suite,
    pub(crate) icv_len: usize,
    pub(crate) state: State,
    /// `None` unless a device may use the key. In a box, because few keys have one.
    pub(crate) device: Option<Box<DeviceKey>>,
}

// CBC's two schedules and HMAC-SHA512's two states are the largest, or intel-ipsec-mb's powers of
// the hash key (more of them after its version 1.3); a cache of 4096 keys is 4 to 6.5 MiB.
const _: () = assert!(size_of::<Key>() <= if cfg!(ipsec_mb_large) { 1664 } else { 1088 });

impl Key {
    /// Purpose of the key.
    pub fn suite(&self) -> &Suite {
        &self.suite
    }

    /// Returns what a device needs of the key; `None` unless it was made with
    /// [`crate::Engine::expand_for_device`] for AES-GCM.
    pub fn device_key(&self) -> Option<&DeviceKey> {
        self.device.as_deref()
    }

    /// Cache lines of a key that `engine` needs for a packet of a few hundred bytes, to be
    /// prefetched. With [`Engine::Vaes`] those for a packet of up to 80 bytes; keys of more than
    /// 128 bits need one more.
    #[doc(hidden)]
    #[inline]
    pub const fn hot_lines(engine: Engine) -> Range<usize> {
        match engine {
            Engine::Vaes => 0..5,
            _ => 0..10,
        }
    }

    /// Returns true if the engine runs packets of this key in lanes, many at once. Lanes that have
    /// no packet cost as much as those that have one, so calls should have [`crate::Jobs::MOST`]
    /// jobs.
    #[inline]
    pub fn is_multi_buffer(&self) -> bool {
        self.state.is_multi_buffer()
    }
}

/// The keys of one published snapshot. A copy shares the keys.
#[derive(Clone, Default)]
pub struct KeyTable {
    slots: Vec<Option<Arc<Key>>>,
    /// Slots that [`KeyTable::remove`] freed.
    vacant: Vec<u32>,
}

impl KeyTable {
    /// Adds a key and returns its identifier. The limit of 2³¹ keys exceeds any memory.
    pub fn insert(&mut self, key: Arc<Key>) -> KeyId {
        if let Some(place) = self.vacant.pop() {
            self.slots[place as usize] = Some(key);
            return KeyId(place);
        }
        self.slots.push(Some(key));
        KeyId(self.slots.len() as u32 - 1)
    }

    /// Removes a key. Copies of the table still contain it; the key is zeroed when the last copy is
    /// dropped. The identifier is reused.
    pub fn remove(&mut self, id: KeyId) {
        if self.slots.get_mut(id.0 as usize).and_then(Option::take).is_some() {
            self.vacant.push(id.0);
        }
    }

    /// Makes this table, an earlier copy of `other`, equal to it. Keys that are in both keep their
    /// reference: it is counted beside the key, so that a copy of a large table reads the memory of
    /// every key, and this only that of the two tables. Returns the number of references taken.
    pub fn follow(&mut self, other: &Self) -> usize {
        let mut taken = 0;
        self.slots.truncate(other.slots.len());
        self.slots.resize(other.slots.len(), None);
        for (slot, wanted) in self.slots.iter_mut().zip(&other.slots) {
            if slot.as_ref().map(Arc::as_ptr) != wanted.as_ref().map(Arc::as_ptr) {
                slot.clone_from(wanted);
                taken += usize::from(slot.is_some());
            }
        }
        self.vacant.clone_from(&other.vacant);
        taken
    }

    /// Returns a key by the identifier that [`KeyTable::insert`] returned.
    #[inline]
    pub fn get(&self, id: KeyId) -> Option<&Key> {
        self.slots.get(id.0 as usize)?.as_deref()
    }

    /// Address of what [`KeyTable::get`] reads of the table, to be prefetched.
    #[doc(hidden)]
    #[inline]
    pub fn slot_address(&self, id: KeyId) -> *const u8 {
        self.slots.get(id.0 as usize).map_or(std::ptr::null(), |slot| std::ptr::from_ref(slot).cast())
    }

    /// Returns another reference to a key, for a successor of this table.
    pub fn shared(&self, id: KeyId) -> Option<Arc<Key>> {
        self.slots.get(id.0 as usize)?.clone()
    }

    /// Returns the number of slots: identifiers are below it.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of keys.
    pub fn count(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// Returns true if no key was ever inserted.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

/// Look-up of the key of an operation.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    /// Keys published by the control side.
    pub table: &'a KeyTable,
    /// Keys this core derived.
    pub derived: &'a DerivedKeys,
}

impl<'a> Keys<'a> {
    /// Returns a key by its identifier, from the table or the derived keys.
    #[inline]
    pub fn get(&self, id: KeyId) -> Option<&'a Key> {
        if id.0 & KeyId::DERIVED == 0 { self.table.get(id) } else { self.derived.get(id) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;

    #[test]
    fn a_removed_key_stays_in_copies_and_leaves_its_place() {
        let suite = Suite::parse_esp("aes128gcm16").unwrap();
        let key = |byte| Arc::new(Engine::AwsLc.expand(&suite, KeyMaterial { enc: &[byte; 20], integ: &[] }).unwrap());
        let mut table = KeyTable::default();
        let (first, second) = (table.insert(key(1)), table.insert(key(2)));
        let published = table.clone();
        table.remove(first);
        table.remove(first);
        table.remove(KeyId(77));
        assert!(table.get(first).is_none() && table.get(second).is_some());
        assert!(published.get(first).is_some());
        assert_eq!((table.insert(key(3)), table.insert(key(4))), (first, KeyId(2)));
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn a_copy_that_follows_takes_references_to_new_keys_only() {
        let suite = Suite::parse_esp("aes128gcm16").unwrap();
        let key = |byte| Arc::new(Engine::AwsLc.expand(&suite, KeyMaterial { enc: &[byte; 20], integ: &[] }).unwrap());
        let (first, last) = (key(1), key(3));
        let (mut table, mut copy) = (KeyTable::default(), KeyTable::default());
        let ids = [table.insert(Arc::clone(&first)), table.insert(key(2))];
        assert_eq!((copy.follow(&table), copy.follow(&table)), (2, 0));
        table.remove(ids[0]);
        assert_eq!((copy.follow(&table), copy.count(), copy.get(ids[0]).is_none()), (0, 1, true));
        assert_eq!(Arc::strong_count(&first), 1, "the copy has no key that is gone");
        // The slot of the first, and a new one, which goes again.
        assert_eq!((table.insert(Arc::clone(&last)), table.insert(key(4))), (ids[0], KeyId(2)));
        assert_eq!((copy.follow(&table), copy.count()), (2, 3));
        assert!(copy.get(ids[0]).is_some_and(|key| std::ptr::eq(key, &*last)));
        let mut fewer = KeyTable::default();
        fewer.insert(last);
        assert_eq!((copy.follow(&fewer), copy.len(), copy.count()), (0, 1, 1));
    }
}
