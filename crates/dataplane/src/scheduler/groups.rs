//! Groups of operations for an asynchronous engine, with the packets that they work on.
//!
//! A chunk becomes a group: its packets leave the batch, so that their owner may be another thread,
//! and an absent packet remains at the index of each. The memory of groups is reused.

use std::collections::VecDeque;
use std::sync::Arc;

use crypto::accelerator::{Direction, Group, Task, Tasks};
use crypto::{DerivedKeys, Engine, Jobs, KeyId, KeyTable};

use crate::Packet;

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

    /// Removes the packet.
    pub(crate) fn take(&mut self) -> Packet {
        std::mem::replace(&mut self.packet, Packet::absent())
    }
}

impl AsMut<[u8]> for EnginePacket {
    /// Empty if the packet does not have these bytes: its operation then fails.
    fn as_mut(&mut self) -> &mut [u8] {
        let to = self.from.saturating_add(self.len);
        self.packet.buffer_mut().get_mut(self.from..to).unwrap_or_default()
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
    prepared: VecDeque<Prepared>,
}

impl Groups {
    /// Creates memory for `most` groups at the same time.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            free: std::iter::repeat_with(Tasks::default).take(most).collect(),
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
        let mut group = Group::new(direction, Arc::clone(keys), tasks);
        self.prepared.push_back(if group.tasks.iter().any(|task| task.op.key.0 & KeyId::DERIVED != 0) {
            group.run(engine, derived);
            Prepared::Done(group)
        } else {
            Prepared::Ready(group)
        });
    }

    /// Returns the next group.
    pub(crate) fn next(&mut self) -> Option<Prepared> {
        self.prepared.pop_front()
    }

    /// Puts back a group that [`Groups::next`] returned.
    pub(crate) fn put_back(&mut self, group: Group<EnginePacket>) {
        self.prepared.push_front(Prepared::Ready(group));
    }

    /// Takes back the memory of a group.
    pub(crate) fn reuse(&mut self, mut tasks: Tasks<EnginePacket>) {
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
            self.reuse(Tasks::default());
        }
    }
}
