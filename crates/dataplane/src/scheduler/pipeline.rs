//! The pipeline: any free core processes the next stage of a batch, and batches leave in order.
//!
//! | stage | outbound | inbound |
//! |---|---|---|
//! | defragment | | where the packet arrived |
//! | decrypt | | Ordered by SA |
//! | look up | where the packet arrived | Ordered by SA |
//! | process | where the packet arrived: cut to size, sequence numbers | Home of the SA: replay window, policy |
//! | encrypt | Ordered by port | |
//! | output | Home of the port | Home of the SA |
//!
//! Cheap stages that depend on order run on the core that received the batch: only this core reads
//! its port, so that these stages need no tag. There the batch takes its ticket, before any
//! concurrent stage. A batch whose packets were all dropped releases its ticket like any other.
//!
//! Home is Atomic on one core: the one that planned the batch, or that owns the SA. All packets of
//! a flow leave from there, through one port, so that the per-CPU queues of the kernel cannot
//! reorder them.
//!
//! Back-pressure is at the input alone: when all slots are taken, a core processes waiting work
//! instead of receiving.

use std::io;
use std::sync::Arc;

use super::queue::{Claim, FlowId, Tag, WorkQueue};
use crate::counters::bump;
use crate::inbound::Opened;
use crate::outbound::Planned;
use crate::steer::{self, Arrival};
use crate::{Batch, Snapshot, Worker};

/// Concurrency of encryption and decryption.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum CipherTag {
    /// Packets of one SA on several cores; the order is restored afterwards.
    #[default]
    Ordered,
    /// One batch of an SA at a time, as in the tables of the OCTEON scheduler: an SA never uses
    /// more than one core.
    Atomic,
}

/// Configuration of a pipeline.
#[derive(Clone, Copy, Debug)]
pub struct PipelineConfig {
    /// Workers that use it, at most 64.
    pub workers: usize,
    /// Batches in flight, at most 64. There should be at least two per worker to keep all workers
    /// busy.
    pub slots: usize,
    /// Packets of a batch.
    pub batch: usize,
    /// Largest packet in bytes.
    pub packet_bytes: usize,
    /// Concurrency of encryption and decryption.
    pub cipher: CipherTag,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        Self { workers: 1, slots: 6, batch: 64, packet_bytes: 2048, cipher: CipherTag::default() }
    }
}

/// Work in flight, shared by all workers.
pub struct Pipeline {
    queue: WorkQueue<Work>,
    /// Flow `w` is the outbound traffic of worker `w`, flow `workers + w` the inbound traffic of
    /// the SAs that it owns. Both have worker `w` as home.
    workers: u32,
    cipher: CipherTag,
}

/// Next stage of a batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    Encrypt,
    Output,
    Decrypt,
    Process,
}

struct Work {
    stage: Stage,
    flow: FlowId,
    /// Tables of the plan; `None` in a free slot, so that old keys are released.
    tables: Option<Arc<Snapshot>>,
    batch: Batch,
    plan: Vec<Planned>,
    opened: Opened,
}

/// Output of a pipeline.
pub trait Sink {
    /// Sends protected packets.
    ///
    /// # Errors
    /// The port's.
    fn outer(&mut self, batch: &mut Batch) -> io::Result<After>;

    /// Delivers clear packets. They may stay in the batch.
    ///
    /// # Errors
    /// The port's.
    fn inner(&mut self, batch: &mut Batch) -> io::Result<()>;
}

/// Next step of a batch that was sent.
pub enum After {
    /// The batch was sent.
    Done,
    /// The packets arrive at the outer side of a gateway with these tables: an in-memory loop for
    /// benchmarks.
    Arrive(Arc<Snapshot>),
}

enum Then {
    Switch(Tag),
    /// Switch the tag, and leave it to any free core.
    Offer(Tag),
    Leave,
}

impl Pipeline {
    /// Creates a pipeline and allocates all of its memory.
    pub fn new(config: &PipelineConfig) -> Self {
        Self::with_memory(config, |_| ())
    }

    /// Creates a pipeline and allocates all of its memory; `prepare` is called with every batch.
    pub fn with_memory(config: &PipelineConfig, prepare: impl Fn(&Batch)) -> Self {
        let work = || {
            // Two fragments for each packet of a full batch.
            let batch = Batch::with_reserve(config.batch, 2 * config.batch, config.packet_bytes);
            prepare(&batch);
            Work {
                stage: Stage::Encrypt,
                flow: FlowId(0),
                tables: None,
                batch,
                plan: Vec::with_capacity(3 * config.batch),
                opened: Opened::with_capacity(config.batch),
            }
        };
        let work = (0..config.slots).map(|_| work()).collect();
        Self {
            queue: WorkQueue::new(work, 2 * config.workers.max(1), config.workers.max(1)),
            workers: config.workers.max(1) as u32,
            cipher: config.cipher,
        }
    }

    /// Number of work items that any core could take now.
    pub fn waiting(&self) -> u32 {
        self.queue.waiting()
    }

    /// Number of work items that only worker `core` could take now.
    pub fn waiting_at(&self, core: usize) -> u32 {
        self.queue.waiting_at(core)
    }

    /// Returns whether a core should take its input now: there is a free slot, and the other cores
    /// have work.
    pub fn wants_input(&self) -> bool {
        self.queue.waiting() < self.workers && self.queue.has_room()
    }

    /// Returns whether there is a free slot for another batch.
    pub fn has_room(&self) -> bool {
        self.queue.has_room()
    }

    /// Batches in flight.
    pub fn in_use(&self) -> usize {
        self.queue.in_use()
    }

    /// Accepts plaintext packets, which `fill` puts into a batch. Returns `None` without a free
    /// slot, otherwise whether there were packets. The batch may still contain the buffers that it
    /// held when it left through [`Sink::inner`].
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn take_inner<E>(
        &self,
        worker: &mut Worker,
        tables: &Arc<Snapshot>,
        replies: &mut Batch,
        fill: impl FnOnce(&mut Batch) -> Result<(), E>,
    ) -> Result<Option<bool>, E> {
        let Some(mut held) = self.queue.claim() else { return Ok(None) };
        let filled = self.queue.with(&mut held, |work| {
            fill(&mut work.batch)?;
            if work.batch.is_empty() {
                return Ok((false, false));
            }
            work.stage = Stage::Encrypt;
            work.flow = FlowId(worker.shared.core() as u32);
            worker.plan(tables, &mut work.batch, replies, &mut work.plan);
            let goes_on = !work.batch.is_empty();
            // The plan contains slots of these tables, so that later stages must not use newer
            // ones.
            work.tables = goes_on.then(|| Arc::clone(tables));
            Ok((true, goes_on))
        });
        match filled {
            Ok((_, true)) => {
                self.enter(worker, held, FlowId(worker.shared.core() as u32));
                Ok(Some(true))
            }
            Ok((any, false)) => {
                self.queue.leave(held);
                Ok(Some(any))
            }
            Err(error) => {
                self.give_up(held);
                Err(error)
            }
        }
    }

    /// Releases the slot of failed work. The slot must be empty, because its next packets may
    /// belong to the other direction.
    fn give_up(&self, mut held: Claim) {
        self.queue.with(&mut held, |work| {
            work.batch.clear();
            work.tables = None;
        });
        self.queue.leave(held);
    }

    /// Accepts the protected packets of `batch`, until no slot is free. The others remain in
    /// `batch`; the caller must pass them again before later ones, to preserve order. Fragments are
    /// reassembled first.
    pub fn take_outer(&self, worker: &mut Worker, tables: &Arc<Snapshot>, batch: &mut Batch) {
        let mut groups = std::mem::take(worker.inbound.groups());
        worker.group(tables, batch, self.workers, &mut groups);
        // Groups from here on remain in the batch, because no slot was free.
        let mut left = self.workers;
        for group in 0..self.workers {
            let share = groups.iter().filter(|one| **one == group).count();
            if share == 0 {
                continue;
            }
            let Some(mut held) = self.queue.claim() else {
                left = group;
                break;
            };
            let flow = FlowId(self.workers + group);
            self.queue.with(&mut held, |work| {
                // The slot may still contain the buffers that it held when it left.
                work.batch.clear();
                if share == batch.len() {
                    std::mem::swap(&mut work.batch, batch);
                } else {
                    // Leaves an empty buffer at each index, so that `groups` still matches `batch`.
                    batch.give(&mut work.batch, |i| groups[i] == group);
                }
                (work.stage, work.flow, work.tables) = (Stage::Decrypt, flow, Some(Arc::clone(tables)));
            });
            self.enter(worker, held, flow);
            // After the exchange, `batch` holds the former buffers of the slot: `groups` no longer
            // applies.
            if share == groups.len() {
                break;
            }
        }
        if left == self.workers {
            batch.clear();
        } else {
            batch.retain(|i, _| groups[i] >= left);
        }
        *worker.inbound.groups() = groups;
    }

    /// Offers the cipher stage to any core.
    fn enter(&self, worker: &Worker, held: Claim, flow: FlowId) {
        match self.queue.switch(held, self.cipher_tag(flow)) {
            Some(held) => self.queue.publish(held),
            None => bump(&worker.shared.counters().blocked, 1),
        }
    }

    fn cipher_tag(&self, flow: FlowId) -> Tag {
        match self.cipher {
            CipherTag::Ordered => Tag::Ordered(flow),
            CipherTag::Atomic => Tag::Atomic(flow),
        }
    }

    /// Takes one work item and processes it until it is complete, blocked, or reserved for another
    /// core. Returns false if there is none.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn work(&self, worker: &mut Worker, sink: &mut impl Sink) -> io::Result<bool> {
        let core = worker.shared.core();
        let Some(mut held) = self.queue.take(core) else { return Ok(false) };
        loop {
            match self.queue.with(&mut held, |work| self.step(work, worker, sink)) {
                Ok(Then::Switch(tag)) => match self.queue.switch(held, tag) {
                    // The batch is in the caches of this core, so that the core should continue if
                    // it may.
                    Some(on) if self.queue.may_run(&on, core) => held = on,
                    Some(on) => {
                        self.queue.publish(on);
                        return Ok(true);
                    }
                    None => {
                        bump(&worker.shared.counters().blocked, 1);
                        return Ok(true);
                    }
                },
                Ok(Then::Offer(tag)) => {
                    match self.queue.switch(held, tag) {
                        Some(on) => self.queue.publish(on),
                        None => bump(&worker.shared.counters().blocked, 1),
                    }
                    return Ok(true);
                }
                Ok(Then::Leave) => {
                    self.queue.leave(held);
                    return Ok(true);
                }
                Err(error) => {
                    self.give_up(held);
                    return Err(error);
                }
            }
        }
    }

    fn step(&self, work: &mut Work, worker: &mut Worker, sink: &mut impl Sink) -> io::Result<Then> {
        let Work { stage, flow, tables, batch, plan, opened } = work;
        let Some(current) = tables.as_ref() else { return Ok(Then::Leave) };
        match *stage {
            Stage::Encrypt => {
                worker.seal_planned(current, batch, plan);
                *stage = Stage::Output;
                Ok(Then::Switch(Tag::Home(*flow)))
            }
            Stage::Output => match sink.outer(batch)? {
                After::Done => {
                    *tables = None;
                    Ok(Then::Leave)
                }
                After::Arrive(there) => {
                    worker.shared.counters().outer_rx.bump(batch.len() as u64, batch.bytes());
                    *flow = FlowId(self.workers + flow.0);
                    (*stage, *tables) = (Stage::Decrypt, Some(there));
                    Ok(Then::Offer(self.cipher_tag(*flow)))
                }
            },
            Stage::Decrypt => {
                worker.open(current, batch, opened);
                *stage = Stage::Process;
                Ok(Then::Switch(Tag::Home(*flow)))
            }
            Stage::Process => {
                worker.admit(current, batch, opened);
                while worker.unpack(current, batch) {
                    sink.inner(batch)?;
                    batch.clear();
                }
                *tables = None;
                sink.inner(batch)?;
                Ok(Then::Leave)
            }
        }
    }
}

impl Worker {
    /// Reassembles fragments and assigns each packet of `batch` to one of `groups`: one per SA.
    /// Incomplete fragments are removed.
    pub fn group(&mut self, tables: &Snapshot, batch: &mut Batch, groups: u32, of: &mut Vec<u32>) {
        of.clear();
        self.shared.start_batch(batch.len());
        for i in 0..batch.len() {
            let packet = &mut batch.packets_mut()[i];
            let mut arrival = steer::arrival(tables, packet.bytes());
            if arrival == Arrival::Fragment {
                if !self.inbound_path(tables).defragment(packet) {
                    self.shared.refuse(i);
                    // No entry in `of`, because the packet leaves the batch below. Indices must
                    // agree.
                    continue;
                }
                arrival = steer::arrival(tables, packet.bytes());
            }
            of.push(match arrival {
                Arrival::Of(owner) => owner % groups,
                Arrival::Any | Arrival::Fragment => self.shared.core() as u32 % groups,
            });
        }
        self.shared.retain_kept(batch);
    }
}
