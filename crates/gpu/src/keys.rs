//! Key slots of the device, and which key has which.
//!
//! A key gets a slot with its first packet. Once no key table has it any more, the slot is zeroed
//! by a later check: nothing calls the ring when a table is dropped. A group that is in flight
//! holds its table, so that a key in use should never be removed.

use std::sync::{Arc, Weak};

use crypto::Key;
use hashbrown::HashMap;

use crate::{Device, DeviceError, KeyWords};

/// Key slots of one ring.
pub(crate) struct KeySlots {
    /// Slot of a key, by [`crypto::accelerator::DeviceKey::id`].
    by_id: HashMap<u64, u32, foldhash::fast::FixedState>,
    slots: Vec<Option<(u64, Weak<Key>)>>,
    free: Vec<u32>,
    /// The key of the last packet: most packets have the same.
    last: Option<(u64, u32)>,
    next_check: usize,
}

impl KeySlots {
    pub(crate) fn new(keys: usize) -> Self {
        Self {
            by_id: HashMap::with_capacity_and_hasher(keys, foldhash::fast::FixedState::default()),
            slots: vec![None; keys],
            free: (0..keys as u32).rev().collect(),
            last: None,
            next_check: 0,
        }
    }

    /// Returns the slot of a key that has one.
    #[inline]
    pub(crate) fn find(&mut self, id: u64) -> Option<u32> {
        if let Some((_, slot)) = self.last.filter(|(last, _)| *last == id) {
            return Some(slot);
        }
        let slot = *self.by_id.get(&id)?;
        self.last = Some((id, slot));
        Some(slot)
    }

    /// Gives a key a slot; `None` without a free one. Waits for the device once, or twice if
    /// `may_clear`: then, without a free slot, it clears that of one removed key, and takes the
    /// permission away.
    pub(crate) fn insert(
        &mut self,
        device: &mut impl Device,
        key: &Arc<Key>,
        may_clear: &mut bool,
    ) -> Result<Option<u32>, DeviceError> {
        if self.free.is_empty() && std::mem::take(may_clear) {
            for _ in 0..self.slots.len() {
                if self.check_next(device)? {
                    break;
                }
            }
        }
        let Some(device_key) = key.device_key() else { return Ok(None) };
        let Some(words) = KeyWords::new(device_key.aes_key()) else { return Ok(None) };
        let Some(slot) = self.free.pop() else { return Ok(None) };
        device.set_key(slot, &words)?;
        self.slots[slot as usize] = Some((device_key.id(), Arc::downgrade(key)));
        self.by_id.insert(device_key.id(), slot);
        Ok(Some(slot))
    }

    /// Checks one slot, and zeroes it if its key is gone. Returns true if it did so; it then has
    /// waited for the device.
    pub(crate) fn check_next(&mut self, device: &mut impl Device) -> Result<bool, DeviceError> {
        let at = self.next_check;
        self.next_check = (at + 1) % self.slots.len().max(1);
        let Some(Some((id, _))) =
            self.slots.get(at).map(|slot| slot.as_ref().filter(|(_, key)| key.strong_count() == 0))
        else {
            return Ok(false);
        };
        device.clear_key(at as u32)?;
        self.by_id.remove(id);
        self.last = None;
        self.slots[at] = None;
        self.free.push(at as u32);
        Ok(true)
    }

    /// Number of keys on the device.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Number of key slots.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }
}
