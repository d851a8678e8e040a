//! The pipeline: batches go through the stages on whichever core is free, and come out in order.
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
//! What needs little time and much order stays with the core that received the batch: it is the only one that looks at
//! its port, so these stages are one at a time without a tag. The batch takes its place in the order there, before
//! anything runs beside it, and a batch that lost all its packets gives the place up like any other.
//!
//! Home is Atomic on one core: the one that planned the batch, or that owns the SA. All packets of
//! a flow leave from there, through one port, so that the per-CPU queues of the kernel cannot
//! reorder them.
//!
//! Back-pressure is at the input alone: when all places are taken, a core does work that waits instead of receiving.

use std::io;
use std::sync::Arc;

use super::queue::{FlowId, Held, Tag, WorkQueue};
use crate::counters::bump;
use crate::inbound::Opened;
use crate::outbound::Planned;
use crate::steer::{self, Arrival};
use crate::{Batch, Snapshot, Worker};

/// Concurrency of encryption and decryption.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum CipherTag {
    /// Packets of one SA on several cores, order restored behind it.
    #[default]
    Ordered,
    /// One at a time, as the OCTEON scheduler's tables have it: an SA never uses more than one core for it.
    Atomic,
}

/// The shape of a pipeline.
#[derive(Clone, Copy, Debug)]
pub struct PipelineConfig {
    /// Workers that use it, at most 64.
    pub workers: usize,
    /// Batches in flight, at most 64; at least two for each worker keep them busy.
    pub places: usize,
    /// Packets of a batch.
    pub batch: usize,
    /// Largest packet in bytes.
    pub packet_bytes: usize,
    /// The tag of encrypt and decrypt.
    pub cipher: CipherTag,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        Self { workers: 1, places: 6, batch: 64, packet_bytes: 2048, cipher: CipherTag::default() }
    }
}

/// Work in flight, shared by all workers.
pub struct Pipeline {
    queue: WorkQueue<Work>,
    /// Flow `w` is what worker `w` sends, flow `workers + w` what arrives for SAs that it owns: both belong to it.
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
    /// Worker that planned it.
    planner: usize,
    /// The tables that it was planned by; none while the place is free, so that old keys end.
    tables: Option<Arc<Snapshot>>,
    batch: Batch,
    plan: Vec<Planned>,
    opened: Vec<Opened>,
}

/// Output of a pipeline.
pub trait Sink {
    /// Sends protected packets.
    ///
    /// # Errors
    /// The port's.
    fn outer(&mut self, batch: &mut Batch) -> io::Result<After>;

    /// Delivers clear packets.
    ///
    /// # Errors
    /// The port's.
    fn inner(&mut self, batch: &mut Batch) -> io::Result<()>;
}

/// Next step of a batch that was sent.
pub enum After {
    /// It is gone.
    Done,
    /// The packets in it arrive at the outer side of a gateway with these tables: a loop in memory, to measure with.
    Arrive(Arc<Snapshot>),
}

enum Then {
    Switch(Tag),
    /// Switch the tag, and leave it to any free core.
    Offer(Tag),
    Leave,
}

impl Pipeline {
    /// A pipeline; all of its memory is taken now.
    pub fn new(config: &PipelineConfig) -> Self {
        let work = || Work {
            stage: Stage::Encrypt,
            flow: FlowId(0),
            planner: 0,
            tables: None,
            // Two fragments for each packet of a full batch.
            batch: Batch::with_reserve(config.batch, 2 * config.batch, config.packet_bytes),
            plan: Vec::with_capacity(3 * config.batch),
            opened: Vec::with_capacity(config.batch),
        };
        let work = (0..config.places).map(|_| work()).collect();
        Self {
            queue: WorkQueue::new(work, 2 * config.workers.max(1), config.workers.max(1)),
            workers: config.workers.max(1) as u32,
            cipher: config.cipher,
        }
    }

    /// Pieces of work that any core could take up now.
    pub fn waiting(&self) -> u32 {
        self.queue.waiting()
    }

    /// Pieces of work that worker `core`, and no other, could take up now.
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

    /// Takes clear packets in, which `fill` puts into a batch. `None` when all places are taken; otherwise whether there
    /// were any packets. The packets that a batch held when it left through [`Sink::inner`] are still in it.
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
            work.planner = worker.config.core;
            work.flow = FlowId(work.planner as u32);
            worker.plan(tables, &mut work.batch, replies, &mut work.plan);
            let goes_on = !work.batch.is_empty();
            work.tables = goes_on.then(|| Arc::clone(tables));
            Ok((true, goes_on))
        });
        match filled {
            Ok((_, true)) => {
                self.enter(worker, held, FlowId(worker.config.core as u32));
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

    /// Gives the place of work back that failed. Nothing of it may be left there: the next packets in this place can be those
    /// of the other direction.
    fn give_up(&self, mut held: Held) {
        self.queue.with(&mut held, |work| {
            work.batch.clear();
            work.tables = None;
        });
        self.queue.leave(held);
    }

    /// Takes the protected packets of `batch` in, as far as there are places, and leaves the others in it: it is to be
    /// called with them again before the next ones. Fragments are put together first.
    pub fn take_outer(&self, worker: &mut Worker, tables: &Arc<Snapshot>, batch: &mut Batch) {
        let mut groups = std::mem::take(&mut worker.groups);
        worker.group(tables, batch, self.workers, &mut groups);
        // Groups from here on are left, because no place was free for them.
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
                if share == batch.len() {
                    std::mem::swap(&mut work.batch, batch);
                } else {
                    batch.give(&mut work.batch, |i| groups[i] == group);
                }
                (work.stage, work.flow, work.tables) = (Stage::Decrypt, flow, Some(Arc::clone(tables)));
            });
            self.enter(worker, held, flow);
            if share == groups.len() {
                break;
            }
        }
        if left == self.workers {
            batch.clear();
        } else {
            batch.retain(|i, _| groups[i] >= left);
        }
        worker.groups = groups;
    }

    /// Lets any core begin with the cipher.
    fn enter(&self, worker: &Worker, held: Held, flow: FlowId) {
        match self.queue.switch(held, self.cipher_tag(flow)) {
            Some(held) => self.queue.publish(held),
            None => bump(&worker.counters.blocked, 1),
        }
    }

    fn cipher_tag(&self, flow: FlowId) -> Tag {
        match self.cipher {
            CipherTag::Ordered => Tag::Ordered(flow),
            CipherTag::Atomic => Tag::Atomic(flow),
        }
    }

    /// Takes up one piece of work and goes on with it until it is done, blocked, or for another core; false when there is
    /// none.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn work(&self, worker: &mut Worker, sink: &mut impl Sink) -> io::Result<bool> {
        let core = worker.config.core;
        let Some(mut held) = self.queue.take(core) else { return Ok(false) };
        loop {
            match self.queue.with(&mut held, |work| self.step(work, worker, sink)) {
                Ok(Then::Switch(tag)) => match self.queue.switch(held, tag) {
                    Some(on) if self.queue.may_run(&on, core) => held = on,
                    Some(on) => {
                        self.queue.publish(on);
                        return Ok(true);
                    }
                    None => {
                        bump(&worker.counters.blocked, 1);
                        return Ok(true);
                    }
                },
                Ok(Then::Offer(tag)) => {
                    match self.queue.switch(held, tag) {
                        Some(on) => self.queue.publish(on),
                        None => bump(&worker.counters.blocked, 1),
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
        let Work { stage, flow, planner, tables, batch, plan, opened } = work;
        let Some(current) = tables.as_ref() else { return Ok(Then::Leave) };
        match *stage {
            Stage::Encrypt => {
                worker.seal_planned(current, batch, plan, *planner);
                *stage = Stage::Output;
                Ok(Then::Switch(Tag::Home(*flow)))
            }
            Stage::Output => match sink.outer(batch)? {
                After::Done => {
                    *tables = None;
                    Ok(Then::Leave)
                }
                After::Arrive(there) => {
                    worker.counters.outer_rx.bump(batch.len() as u64, batch.bytes());
                    *flow = FlowId(self.workers + flow.0);
                    (*stage, *tables) = (Stage::Decrypt, Some(there));
                    Ok(Then::Offer(self.cipher_tag(*flow)))
                }
            },
            Stage::Decrypt => {
                worker.open_any(current, batch, opened);
                *stage = Stage::Process;
                Ok(Then::Switch(Tag::Home(*flow)))
            }
            Stage::Process => {
                worker.admit(current, batch, opened);
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
        self.keep_all(batch.len());
        for i in 0..batch.len() {
            let packet = &mut batch.packets_mut()[i];
            let mut arrival = steer::arrival(tables, packet.bytes());
            if arrival == Arrival::Fragment {
                if !self.defragment(packet) {
                    self.refuse(i);
                    continue;
                }
                arrival = steer::arrival(tables, packet.bytes());
            }
            of.push(match arrival {
                Arrival::Of(owner) => owner % groups,
                Arrival::Any | Arrival::Fragment => self.config.core as u32 % groups,
            });
        }
        self.drop_refused(batch);
    }
}
