//! The scheduler `async`: the core that owns an SA prepares and finishes its packets, and an
//! asynchronous engine seals and opens them.
//!
//! | step | where |
//! |---|---|
//! | look up, sequence numbers; replay check | owner |
//! | lay out packets, create groups, submit | owner |
//! | seal, open | accelerator, or owner |
//! | replay window again, policy; output | owner, in the order of submission |
//!
//! Groups are dispatched, collected and completed in one order for both directions, so that the
//! order of every SA is kept. The window is bounded by the batches in flight and by the capacity of
//! the accelerator: without room no input is accepted, and nothing is dropped. With
//! [`AsyncConfig::owner_computes`] the owner runs prepared groups for which the accelerator has no
//! room instead of waiting, one at a time, and a lone group while the accelerator is idle, because
//! a round trip takes longer than one group.
//!
//! A batch keeps the tables that it was planned with. Outbound packets of an SA that is removed
//! meanwhile are sent, inbound ones are dropped. Two copies of one packet may be in flight at the
//! same time: both pass the replay check at the start, and the one at the end drops the second.
//!
//! When the accelerator fails, or returns nothing for too long, the packets in it are dropped as
//! `engine_gone`, with their sequence numbers spent. The owner runs all further groups itself until
//! the process ends.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crypto::accelerator::{Accelerator, Direction, GROUP, Gone, Group};

use super::groups::{EnginePacket, Groups, Prepared};
use super::{After, Sink, Staged};
use crate::counters::bump;
use crate::inbound::Opened;
use crate::outbound::{Planned, Submitted, SubmittedSeal};
use crate::{Batch, Packet, Snapshot, Worker};

/// Longest time between two polls that counts for the watchdog. A worker that did not run itself
/// (a suspended host) cannot blame the accelerator.
const LONGEST_POLL_MS: u64 = 10;
/// Batches after which references to key tables are given up, also to one that packets of the other
/// direction alone still use.
const KEEP_KEYS: u32 = 64;

/// Configuration of [`Asynchronous`].
#[derive(Clone, Copy, Debug)]
pub struct AsyncConfig {
    /// Batches in flight, at least 2.
    pub batches: usize,
    /// Packets of a batch.
    pub batch: usize,
    /// Largest packet in bytes.
    pub packet_bytes: usize,
    /// The owner runs groups itself when it would wait for a full accelerator, or while that is
    /// idle.
    pub owner_computes: bool,
    /// Time without a result after which the accelerator counts as failed.
    pub patience_ms: u64,
}

impl AsyncConfig {
    /// Groups in flight per crypto thread: so many that a thread has work while the owner prepares
    /// a batch or runs a group itself, and few enough that their packets stay in the caches.
    pub const GROUPS_PER_THREAD: usize = 8;

    /// Window for a number of crypto threads: two batches of 64 packets fill the ring of a thread,
    /// and two are with the owner. A larger one only exceeds the caches.
    pub fn for_threads(threads: usize) -> Self {
        // Above that, the memory in flight would be out of proportion.
        Self { batches: (2 + 2 * threads.max(1)).min(36), ..Self::default() }
    }
}

impl Default for AsyncConfig {
    fn default() -> Self {
        Self { batches: 8, batch: 64, packet_bytes: 2048, owner_computes: true, patience_ms: 100 }
    }
}

/// A batch in flight.
struct InFlight {
    direction: Direction,
    /// Tables of the plan; `None` in a free slot, so that old keys are released.
    tables: Option<Arc<Snapshot>>,
    batch: Batch,
    plan: Vec<Planned>,
    sealing: Vec<SubmittedSeal>,
    opened: Opened,
    /// Groups that have not returned.
    groups: usize,
    /// Packets that have returned or are lost, and index in the batch after the last of them.
    returned: usize,
    next: usize,
    /// Packets that will not return.
    lost: usize,
}

/// A dispatched group.
enum Dispatched {
    /// The accelerator has it, with so many packets.
    Elsewhere(usize),
    /// The owner has run it.
    Here(Group<EnginePacket>),
}

/// Asynchronous processing of the packets of one worker.
pub struct Asynchronous {
    config: AsyncConfig,
    /// `None` without one and after a failure.
    accelerator: Option<Box<dyn Accelerator<EnginePacket>>>,
    slots: Vec<InFlight>,
    /// Free slots, and those in flight in order.
    free: Vec<usize>,
    in_flight: VecDeque<usize>,
    groups: Groups,
    dispatched: VecDeque<Dispatched>,
    /// Slots that were released.
    released: u32,
    /// Time of the last poll without a result, and how long there has been none.
    polled_ms: u64,
    quiet_ms: u64,
    failure: Option<Gone>,
}

impl Asynchronous {
    /// Creates the scheduler of one worker and allocates all of its memory; `prepare` is called
    /// with every batch. Without an accelerator the owner runs all groups.
    pub fn new(
        config: AsyncConfig,
        accelerator: Option<Box<dyn Accelerator<EnginePacket>>>,
        prepare: impl Fn(&Batch),
    ) -> Self {
        let slots = config.batches.max(2);
        let slot = || {
            // Two fragments for each packet of a full batch.
            let batch = Batch::with_reserve(config.batch, 2 * config.batch, config.packet_bytes);
            prepare(&batch);
            InFlight {
                direction: Direction::Seal,
                tables: None,
                batch,
                plan: Vec::with_capacity(3 * config.batch),
                sealing: Vec::with_capacity(3 * config.batch),
                opened: Opened::with_capacity(config.batch),
                groups: 0,
                returned: 0,
                next: 0,
                lost: 0,
            }
        };
        // A chunk of a full batch and of its fragments makes one group.
        let groups = slots * (3 * config.batch.div_ceil(GROUP) + 1);
        Self {
            config,
            accelerator,
            slots: (0..slots).map(|_| slot()).collect(),
            free: (0..slots).rev().collect(),
            in_flight: VecDeque::with_capacity(slots),
            groups: Groups::new(groups),
            dispatched: VecDeque::with_capacity(groups),
            released: 0,
            polled_ms: 0,
            quiet_ms: 0,
            failure: None,
        }
    }

    /// Returns the failure of the accelerator, once.
    pub fn take_failure(&mut self) -> Option<Gone> {
        self.failure.take()
    }

    /// Returns true if [`Staged::work`] would make progress without the accelerator, or if that has
    /// a result. Otherwise the worker may sleep until the accelerator wakes it.
    pub fn has_work(&self) -> bool {
        match self.dispatched.front() {
            Some(Dispatched::Elsewhere(_)) => {
                let computes = self.config.owner_computes && !self.groups.is_empty();
                computes || self.accelerator.as_ref().is_none_or(|one| one.ready())
            }
            Some(Dispatched::Here(_)) => true,
            None => !self.in_flight.is_empty(),
        }
    }

    /// Returns true if nothing is in flight and every buffer and every group is there.
    #[cfg(test)]
    pub(crate) fn has_all_memory(&self, batch: usize) -> bool {
        let whole = |slot: &InFlight| {
            let absent = slot.batch.packets().iter().any(Packet::is_absent);
            let all = slot.batch.len() + slot.batch.room() + 2 * batch;
            slot.tables.is_none() && !absent && all >= 3 * batch
        };
        let groups = self.slots.len() * (3 * self.config.batch.div_ceil(GROUP) + 1);
        self.free.len() == self.slots.len()
            && self.slots.iter().all(whole)
            && self.dispatched.is_empty()
            && self.groups.is_empty()
            && self.groups.free() == groups
    }

    /// Submits prepared groups as far as the accelerator takes them.
    fn dispatch(&mut self, worker: &Worker) {
        while self.dispatch_next(worker, false) {}
    }

    /// Submits the next prepared group, or runs it `here`. Returns false if there is none, or if
    /// the accelerator has no room.
    fn dispatch_next(&mut self, worker: &Worker, here: bool) -> bool {
        let group = match self.groups.next() {
            None => return false,
            Some(Prepared::Done(group)) => {
                self.dispatched.push_back(Dispatched::Here(group));
                return true;
            }
            Some(Prepared::Ready(group)) => group,
        };
        let packets = group.tasks.len();
        let lone = self.config.owner_computes && self.dispatched.is_empty() && self.groups.is_empty();
        let submitted = match self.accelerator.as_mut().filter(|_| !lone && !here) {
            Some(accelerator) => accelerator.submit(group),
            None => Err(group),
        };
        match submitted {
            Ok(()) => {
                bump(&worker.shared.counters().offloaded, packets as u64);
                self.dispatched.push_back(Dispatched::Elsewhere(packets));
                true
            }
            // With nothing in flight no later poll would make room.
            Err(mut group) if here || self.accelerator.is_none() || self.dispatched.is_empty() => {
                group.run(worker.shared.engine(), worker.shared.derived());
                self.dispatched.push_back(Dispatched::Here(group));
                true
            }
            Err(group) => {
                self.groups.put_back(group);
                // Results that were not polled take up room.
                self.collect(worker)
            }
        }
    }

    /// Takes the next dispatched group, if it is complete, back into its batch.
    fn collect(&mut self, worker: &Worker) -> bool {
        match self.dispatched.front() {
            None => return false,
            Some(Dispatched::Here(_)) => {
                if let Some(Dispatched::Here(group)) = self.dispatched.pop_front() {
                    self.take_back(group);
                }
                return true;
            }
            Some(&Dispatched::Elsewhere(packets)) => {
                let Some(accelerator) = &mut self.accelerator else {
                    self.dispatched.pop_front();
                    self.lose(packets);
                    return true;
                };
                match accelerator.poll() {
                    Ok(Some(group)) if group.tasks.len() == packets => {
                        self.quiet_ms = 0;
                        self.dispatched.pop_front();
                        self.take_back(group);
                    }
                    Ok(Some(_)) => self.fail(worker, Gone::DeviceFailed),
                    Ok(None) if self.is_overdue(worker.shared.now_ms()) => {
                        self.fail(worker, Gone::TimedOut { ms: self.quiet_ms });
                    }
                    Ok(None) => return false,
                    Err(gone) => self.fail(worker, gone),
                }
            }
        }
        true
    }

    /// Watchdog: returns true if the accelerator has returned nothing for too long.
    fn is_overdue(&mut self, now_ms: u64) -> bool {
        let since_ms = now_ms.saturating_sub(self.polled_ms).min(LONGEST_POLL_MS);
        self.polled_ms = now_ms;
        self.quiet_ms += since_ms;
        self.quiet_ms >= self.config.patience_ms
    }

    #[cold]
    fn fail(&mut self, worker: &Worker, gone: Gone) {
        if let Some(accelerator) = self.accelerator.take() {
            // Without a drop, which would wait for its threads.
            accelerator.abandon();
        }
        self.failure = Some(gone);
        bump(&worker.shared.counters().engines_gone, 1);
    }

    /// Returns the oldest batch with groups that have not returned.
    fn oldest(&mut self) -> Option<&mut InFlight> {
        let Self { slots, in_flight, .. } = self;
        let at = in_flight.iter().find(|at| slots[**at].groups > 0)?;
        slots.get_mut(*at)
    }

    fn take_back(&mut self, mut group: Group<EnginePacket>) {
        if let Some(oldest) = self.oldest() {
            oldest.take_back(&mut group);
        }
        self.groups.reuse(group);
    }

    /// Counts a group of so many packets as lost.
    #[cold]
    fn lose(&mut self, packets: usize) {
        if let Some(oldest) = self.oldest() {
            oldest.lose(packets);
        }
        self.groups.refill(1);
    }

    /// Submits the packets of a slot.
    fn submit(&mut self, worker: &mut Worker, at: usize, direction: Direction, tables: Arc<Snapshot>) {
        let before = self.groups.len();
        let slot = &mut self.slots[at];
        slot.start(direction);
        let InFlight { batch, plan, sealing, opened, .. } = slot;
        match direction {
            Direction::Seal => {
                let mut submitted = Submitted { groups: &mut self.groups, states: sealing };
                worker.submit_planned(&tables, batch, plan, &mut submitted);
            }
            Direction::Open => worker.submit_open(&tables, batch, opened, &mut self.groups),
        }
        slot.tables = Some(tables);
        slot.groups = self.groups.len() - before;
        self.in_flight.push_back(at);
        self.dispatch(worker);
    }

    /// Releases a slot. Packets that were not sent may remain in its batch.
    fn release(&mut self, at: usize) {
        self.slots[at].tables = None;
        self.free.push(at);
        self.released = self.released.wrapping_add(1);
        if self.in_flight.is_empty() || self.released.is_multiple_of(KEEP_KEYS) {
            self.groups.release_keys();
        }
    }
}

impl InFlight {
    fn start(&mut self, direction: Direction) {
        self.direction = direction;
        (self.groups, self.returned, self.next, self.lost) = (0, 0, 0, 0);
        self.sealing.clear();
    }

    /// Index of the next packet that the engine has.
    fn next_absent(&mut self) -> Option<usize> {
        let found = self.batch.packets().get(self.next..)?.iter().position(Packet::is_absent)?;
        let at = self.next + found;
        self.next = at + 1;
        Some(at)
    }

    fn take_back(&mut self, group: &mut Group<EnginePacket>) {
        let (tasks, results) = group.parts();
        // By value, because another core has the cache lines of the tasks: nothing is written to
        // them until they are used again.
        for (i, task) in tasks.drain(..).enumerate() {
            let Some(at) = self.next_absent() else { break };
            match self.direction {
                Direction::Seal => self.set_sealed(at, results.sealed(i)),
                Direction::Open => self.opened.set_proof(self.returned, results.take_ok(i)),
            }
            let packet = task.packet.into_packet();
            // The header and the trailer that are read next are in the caches of the other core.
            packet.prefetch_ends();
            self.batch.packets_mut()[at] = packet;
            self.returned += 1;
        }
        self.groups -= 1;
    }

    fn lose(&mut self, packets: usize) {
        for _ in 0..packets {
            let Some(at) = self.next_absent() else { break };
            if self.direction == Direction::Seal {
                self.set_sealed(at, false);
            }
            self.returned += 1;
            self.lost += 1;
        }
        self.groups -= 1;
    }

    fn set_sealed(&mut self, at: usize, sealed: bool) {
        if let Some(state) = self.sealing.get_mut(self.returned) {
            (state.at, state.sealed) = (at as u32, sealed);
        }
    }
}

impl Staged for Asynchronous {
    fn wants_input(&self) -> bool {
        self.has_room()
    }

    fn has_room(&self) -> bool {
        !self.free.is_empty() && self.groups.is_empty()
    }

    fn in_use(&self) -> usize {
        self.in_flight.len()
    }

    fn take_inner<E>(
        &mut self,
        worker: &mut Worker,
        tables: &Arc<Snapshot>,
        replies: &mut Batch,
        fill: impl FnOnce(&mut Batch) -> Result<(), E>,
    ) -> Result<Option<bool>, E> {
        let Some(at) = self.free.pop_if(|_| self.groups.is_empty()) else { return Ok(None) };
        let slot = &mut self.slots[at];
        if let Err(error) = fill(&mut slot.batch) {
            slot.batch.clear();
            self.release(at);
            return Err(error);
        }
        let any = !slot.batch.is_empty();
        if any {
            worker.plan(tables, &mut slot.batch, replies, &mut slot.plan);
        }
        if slot.batch.is_empty() {
            self.release(at);
        } else {
            self.submit(worker, at, Direction::Seal, Arc::clone(tables));
        }
        Ok(Some(any))
    }

    fn take_outer(&mut self, worker: &mut Worker, tables: &Arc<Snapshot>, batch: &mut Batch) {
        let Some(at) = self.free.pop_if(|_| self.groups.is_empty()) else { return };
        let slot = &mut self.slots[at];
        // The slot may still contain the packets that it held when it left.
        slot.batch.clear();
        std::mem::swap(&mut slot.batch, batch);
        self.submit(worker, at, Direction::Open, Arc::clone(tables));
    }

    fn work(&mut self, worker: &mut Worker, current: Option<&Snapshot>, sink: &mut impl Sink) -> io::Result<bool> {
        self.dispatch(worker);
        let oldest_is_complete = |own: &Self| own.in_flight.front().is_some_and(|at| own.slots[*at].groups == 0);
        while !oldest_is_complete(self) {
            if !self.collect(worker) {
                // No input may follow for a while.
                self.accelerator.iter_mut().for_each(|one| one.flush());
                // Only instead of waiting: as long as there is other work, that of the engine is
                // left to the accelerator.
                if !self.config.owner_computes || !self.dispatch_next(worker, true) {
                    return Ok(false);
                }
            }
            self.dispatch(worker);
        }
        let Some(at) = self.in_flight.pop_front() else { return Ok(false) };
        let outcome = self.complete(worker, at, current, sink);
        if outcome.is_err() {
            self.slots[at].batch.clear();
            self.release(at);
        }
        outcome.map(|()| true)
    }
}

impl Asynchronous {
    /// Finishes and sends a batch, once its packets have returned.
    fn complete(
        &mut self,
        worker: &mut Worker,
        at: usize,
        current: Option<&Snapshot>,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let InFlight { direction, tables, batch, sealing, opened, lost, .. } = &mut self.slots[at];
        let Some(own) = tables.as_ref() else {
            self.release(at);
            return Ok(());
        };
        if *direction == Direction::Seal {
            worker.finish_submitted(own, batch, sealing, *lost);
            match sink.outer(batch)? {
                After::Done => self.release(at),
                After::Arrive(there) => {
                    worker.shared.counters().outer_rx.bump(batch.len() as u64, batch.bytes());
                    self.submit(worker, at, Direction::Open, there);
                }
            }
            return Ok(());
        }
        let changed = current.filter(|current| current.generation != own.generation);
        if *lost > 0 || changed.is_some() {
            worker.discard(own, batch, opened, changed);
        }
        worker.admit(own, batch, opened);
        while worker.unpack(own, batch) {
            sink.inner(batch)?;
            batch.clear();
        }
        sink.inner(batch)?;
        self.release(at);
        Ok(())
    }
}
