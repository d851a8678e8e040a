//! Groups of operations for an asynchronous engine, with the packets that they work on.
//!
//! A chunk becomes a group: its packets leave the batch, so that their owner may be another thread,
//! and an absent packet remains at the index of each. The memory of groups is reused.

use std::collections::VecDeque;
use std::sync::Arc;

use crypto::accelerator::{Direction, Group, Task, Tasks};
use crypto::{DerivedKeys, Engine, Jobs, KeyId, KeyTable};

use crate::Packet;
use crate::prefetch::prefetch;

/// A packet on its way through an asynchronous engine. The engine sees the bytes that the spans of
/// its operation count from.
pub struct EnginePacket {
    packet: Packet,
    /// Offset of these bytes in the buffer; until [`EnginePacket::attach`] their address.
    from: usize,
    len: usize,
}

impl EnginePacket {
    /// The place of a packet; its operation should work on `bytes`.
    fn of(bytes: &[u8]) -> Self {
        Self { packet: Packet::absent(), from: bytes.as_ptr().addr(), len: bytes.len() }
    }

    /// Adds the packet.
    pub(crate) fn attach(&mut self, packet: Packet) {
        self.from = self.from.wrapping_sub(packet.address());
        self.packet = packet;
    }

    /// Returns the packet.
    #[inline]
    pub(crate) fn into_packet(self) -> Packet {
        self.packet
    }
}

impl AsMut<[u8]> for EnginePacket {
    /// Empty if the packet does not have these bytes: its operation then fails.
    ///
    /// Called for all packets of a group before the engine works on the first of them, so that the
    /// lines of their headers, which the owner has written, arrive at the same time.
    fn as_mut(&mut self) -> &mut [u8] {
        let to = self.from.saturating_add(self.len);
        let bytes = self.packet.buffer_mut().get_mut(self.from..to).unwrap_or_default();
        prefetch(bytes, 0);
        prefetch(bytes, bytes.len().saturating_sub(1));
        bytes
    }
}

/// A group that was prepared and not dispatched yet.
pub(crate) enum Prepared {
    /// To be run.
    Ready(Group<EnginePacket>),
    /// Complete: it needed keys that only this core has.
    Done(Group<EnginePacket>),
}

/// Prepared groups in order, and memory for others.
pub(crate) struct Groups {
    free: Vec<Tasks<EnginePacket>>,
    /// References to the key table of the last groups of each direction, for the next ones. To
    /// count a reference is a locked instruction, which waits until the tasks of a group, still in
    /// the cache of another core, are written: a fifth of the time that the owner spends on a small
    /// packet.
    keys: [Vec<Arc<KeyTable>>; 2],
    prepared: VecDeque<Prepared>,
}

impl Groups {
    /// Creates memory for `most` groups at the same time.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            free: std::iter::repeat_with(Tasks::default).take(most).collect(),
            keys: std::array::from_fn(|_| Vec::with_capacity(most)),
            prepared: VecDeque::with_capacity(most),
        }
    }

    /// Number of prepared groups.
    pub(crate) fn len(&self) -> usize {
        self.prepared.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.prepared.is_empty()
    }

    /// Starts a group with the operations of `jobs`. The caller must attach the packets.
    pub(crate) fn begin(&mut self, jobs: &Jobs<'_>) -> Tasks<EnginePacket> {
        // Memory is allocated for the largest number of chunks of all batches in flight.
        let mut tasks = self.free.pop().unwrap_or_default();
        tasks.extend(jobs.iter().map(|job| Task { op: job.op, packet: EnginePacket::of(job.packet) }));
        tasks
    }

    /// Completes a group. One with derived keys runs now, because these belong to the core and to
    /// its current batch.
    pub(crate) fn add(
        &mut self,
        (direction, keys): (Direction, &Arc<KeyTable>),
        tasks: Tasks<EnginePacket>,
        (engine, derived): (Engine, &DerivedKeys),
    ) {
        let mut group = Group::new(direction, self.reference(direction, keys), tasks);
        self.prepared.push_back(if group.tasks.iter().any(|task| task.op.key.0 & KeyId::DERIVED != 0) {
            group.run(engine, derived);
            Prepared::Done(group)
        } else {
            Prepared::Ready(group)
        });
    }

    /// Returns another reference to `keys`.
    fn reference(&mut self, direction: Direction, keys: &Arc<KeyTable>) -> Arc<KeyTable> {
        let spare = &mut self.keys[direction as usize];
        match spare.pop() {
            Some(last) if Arc::ptr_eq(&last, keys) => last,
            // Another snapshot: no reference keeps the keys of the one before.
            last => {
                spare.clear();
                drop(last);
                Arc::clone(keys)
            }
        }
    }

    /// Gives up the references to key tables that are kept for further groups. Must be called when
    /// nothing is in flight, and once in a while, so that removed keys do not stay.
    pub(crate) fn release_keys(&mut self) {
        self.keys.iter_mut().for_each(Vec::clear);
    }

    /// Returns the next group.
    pub(crate) fn next(&mut self) -> Option<Prepared> {
        self.prepared.pop_front()
    }

    /// Puts back a group that [`Groups::next`] returned.
    pub(crate) fn put_back(&mut self, group: Group<EnginePacket>) {
        self.prepared.push_front(Prepared::Ready(group));
    }

    /// Takes back the memory of a group, and its reference to the keys. Those of one direction are
    /// all to the same table, except that groups of the snapshot before may return late.
    pub(crate) fn reuse(&mut self, group: Group<EnginePacket>) {
        let Group { direction, keys, tasks, .. } = group;
        let spare = &mut self.keys[direction as usize];
        if spare.len() < spare.capacity() && spare.last().is_none_or(|last| Arc::ptr_eq(last, &keys)) {
            spare.push(keys);
        }
        self.reuse_tasks(tasks);
    }

    fn reuse_tasks(&mut self, mut tasks: Tasks<EnginePacket>) {
        tasks.clear();
        if self.free.len() < self.free.capacity() {
            self.free.push(tasks);
        }
    }

    /// Number of groups for which there is memory.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Replaces memory that was lost with an accelerator.
    pub(crate) fn refill(&mut self, groups: usize) {
        for _ in 0..groups {
            self.reuse_tasks(Tasks::default());
        }
    }
}
