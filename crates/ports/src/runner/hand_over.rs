//! Packets that one worker receives for SAs of another: rings between every two workers.
//!
//! Only the worker that owns an SA may write its replay window. The kernel steers most packets to
//! the right worker; the others travel through a bounded ring. Packets that find the ring full
//! become stuck, and the worker receives nothing more from the outer side until they are gone, so
//! that it is the kernel's receive queue that overflows.

use std::sync::Arc;

use dataplane::{Batch, CoreCounters, Port, Snapshot, Worker, bump};
use ipsec::DropReason;

use super::shared::Shared;
use crate::{MemoryPort, NO_OWNER};

/// Maximum time that packets wait for a worker that accepts none: it hangs, and the others must
/// continue.
const LONGEST_STUCK_MS: u64 = 1000;

/// Rings of one worker to and from the others, and packets that found them full.
pub(super) struct HandOver {
    /// Number of the worker.
    core: usize,
    shared: Arc<Shared>,
    counters: Arc<CoreCounters>,
    /// By the number of the other worker; `None` at the worker's own index. Empty when nothing is
    /// handed over.
    rings: Vec<Option<MemoryPort>>,
    /// Worker that owns the SA of each current packet; a buffer that is reused between batches.
    owners: Vec<u32>,
    /// Packets for workers with full rings, and the worker of each.
    stuck: Batch,
    stuck_for: Vec<u32>,
    /// Time of the last progress: when a stuck packet left, or the first one arrived.
    stuck_since_ms: u64,
    /// Workers that accepted no packet for [`LONGEST_STUCK_MS`], one bit each, until they accept
    /// one: their packets are dropped instead of kept.
    lost: u64,
}

impl HandOver {
    pub(super) fn new(worker: &Worker, rings: Vec<Option<MemoryPort>>, shared: Arc<Shared>) -> Self {
        let (packets, bytes) = (worker.config().batch, worker.config().packet_bytes);
        let stuck = if rings.iter().any(Option::is_some) { packets } else { 0 };
        Self {
            core: worker.config().core,
            counters: worker.counters(),
            shared,
            rings,
            owners: Vec::with_capacity(packets),
            stuck: Batch::new(stuck, bytes),
            stuck_for: Vec::with_capacity(stuck),
            stuck_since_ms: 0,
            lost: 0,
        }
    }

    /// True while packets wait for room in a ring.
    pub(super) fn is_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }

    /// True when other workers handed packets over to this one.
    pub(super) fn has_input(&self) -> bool {
        self.rings.iter().flatten().any(MemoryPort::has_input)
    }

    /// Moves the packets of `batch` that other workers own into their rings. The batch keeps those
    /// of this worker, reassembled.
    pub(super) fn send(&mut self, worker: &mut Worker, tables: &Snapshot, batch: &mut Batch, now_ms: u64) {
        let workers = self.rings.len() as u32;
        if workers <= 1 {
            return;
        }
        let own = self.core as u32;
        let mut owners = std::mem::take(&mut self.owners);
        let before = (batch.len(), batch.bytes());
        worker.group(tables, batch, workers, &mut owners);
        let whole = (batch.len(), batch.bytes());
        if whole != before {
            // Fragments of incomplete packets left the batch for the reassembler; no other code
            // counts them as received.
            self.counters.outer_rx.bump((before.0 - whole.0) as u64, before.1.saturating_sub(whole.1));
        }
        let foreign = owners.iter().filter(|owner| **owner != own).count();
        if foreign > 0 {
            bump(&self.counters.wrong_core, foreign as u64);
            self.pass(batch, &mut owners);
            let stays = |i: usize| owners[i] != own && owners[i] != NO_OWNER;
            batch.give(&mut self.stuck, stays);
            self.stuck_for.extend((0..owners.len()).filter(|i| stays(*i)).map(|i| owners[i]));
            batch.retain(|i, _| owners[i] == own);
            if self.is_stuck() {
                bump(&self.counters.input_waits, 1);
                self.stuck_since_ms = now_ms;
                self.send_stuck(now_ms);
            }
        }
        self.owners = owners;
    }

    /// Moves packets into the rings of their owners as far as there is room.
    fn pass(&mut self, batch: &mut Batch, owners: &mut [u32]) {
        let Self { rings, shared, lost, .. } = self;
        for (owner, ring) in rings.iter_mut().enumerate() {
            let Some(ring) = ring else { continue };
            if owners.contains(&(owner as u32)) && ring.pass(batch, owners, owner as u32) > 0 {
                *lost &= !(1 << owner);
                shared.wake_if_parked(owner);
            }
        }
    }

    /// Tries again to hand over stuck packets, and drops those for workers that hang.
    pub(super) fn send_stuck(&mut self, now_ms: u64) {
        let Self { rings, stuck, stuck_for, shared, lost, .. } = self;
        // Must precede the read of the rings: otherwise a slot that is freed in between would not
        // wake this worker.
        shared.wait_for_room(self.core);
        let mut moved = false;
        for (owner, ring) in rings.iter_mut().enumerate() {
            let (Some(ring), true) = (ring, stuck_for.contains(&(owner as u32))) else { continue };
            if ring.pass(stuck, stuck_for, owner as u32) > 0 {
                moved = true;
                *lost &= !(1 << owner);
                shared.wake_if_parked(owner);
            }
        }
        if moved {
            self.stuck_since_ms = now_ms;
        } else if now_ms.saturating_sub(self.stuck_since_ms) >= LONGEST_STUCK_MS {
            stuck_for.iter().filter(|owner| **owner != NO_OWNER).for_each(|owner| *lost |= 1 << owner);
        }
        let mut dropped = 0;
        for owner in stuck_for.iter_mut().filter(|owner| **owner != NO_OWNER && *lost >> **owner & 1 == 1) {
            *owner = NO_OWNER;
            dropped += 1;
        }
        if dropped > 0 {
            bump(&self.counters.drops[DropReason::QueueFull as usize], dropped);
        }
        self.stuck.retain(|i, _| self.stuck_for[i] != NO_OWNER);
        self.stuck_for.retain(|owner| *owner != NO_OWNER);
    }

    /// Number of workers, or 0 when nothing is handed over.
    pub(super) fn workers(&self) -> usize {
        self.rings.len()
    }

    /// Receives packets that worker `from` handed over; false when there are none.
    pub(super) fn receive(&mut self, from: usize, into: &mut Batch) -> bool {
        let Some(ring) = self.rings[from].as_mut().filter(|ring| ring.has_input()) else { return false };
        // Fails only when the other worker has ended; the runner stops all of them then.
        let _ = ring.rx(into);
        !into.is_empty()
    }
}
