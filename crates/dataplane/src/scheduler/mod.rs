//! Schedulers: distribution of work among cores.
//!
//! Run to completion: a batch stays on the core that received it. The [`Pipeline`]: a batch goes
//! from core to core by the tags of a work queue (`queue.rs`). [`Asynchronous`]: a batch stays on
//! its core, and its operations go to an asynchronous engine. The functions of the path are the
//! same, and the last two have one driver ([`Staged`]).

mod asynchronous;
mod groups;
mod pipeline;
mod queue;
mod sync;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

pub use asynchronous::{AsyncConfig, Asynchronous};
pub use groups::EnginePacket;
pub(crate) use groups::Groups;
pub use pipeline::{After, CipherTag, Pipeline, PipelineConfig, Sink};
pub use queue::MAX_SLOTS;

use crate::{Batch, Snapshot, Worker};

/// Scheduler of the workers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Scheduler {
    /// A batch stays with the worker that received it; packets of SAs that another owns are handed
    /// over.
    #[default]
    RunToCompletion,
    /// A batch goes to whichever worker is free; see [`Pipeline`].
    Pipeline,
    /// A batch stays with its worker, and crypto cores seal and open its packets; see
    /// [`Asynchronous`].
    Async,
}

impl Scheduler {
    /// Every scheduler.
    pub const ALL: [Self; 3] = [Self::RunToCompletion, Self::Pipeline, Self::Async];

    /// Name in configurations and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RunToCompletion => "run-to-completion",
            Self::Pipeline => "pipeline",
            Self::Async => "async",
        }
    }
}

/// A scheduler that keeps batches in flight: its driver passes received batches to it, and lets it
/// work until they have left through a [`Sink`].
pub trait Staged {
    /// Returns whether a core that only has its input and this scheduler should take input now.
    fn wants_input(&self) -> bool;

    /// Returns whether another batch is accepted. Otherwise the driver must not receive.
    fn has_room(&self) -> bool;

    /// Batches in flight.
    fn in_use(&self) -> usize;

    /// Accepts plaintext packets, which `fill` puts into a batch. Returns `None` without room,
    /// otherwise whether there were packets. The batch may still contain the buffers that it held
    /// when it left through [`Sink::inner`].
    ///
    /// # Errors
    /// Those of `fill`.
    fn take_inner<E>(
        &mut self,
        worker: &mut Worker,
        tables: &Arc<Snapshot>,
        replies: &mut Batch,
        fill: impl FnOnce(&mut Batch) -> Result<(), E>,
    ) -> Result<Option<bool>, E>;

    /// Accepts the protected packets of `batch` as far as there is room. The others remain in
    /// `batch`; the driver must pass them again before later ones, to preserve order.
    fn take_outer(&mut self, worker: &mut Worker, tables: &Arc<Snapshot>, batch: &mut Batch);

    /// Processes a batch. Returns false if there is nothing to do. `current` are the tables in use
    /// now.
    ///
    /// # Errors
    /// Those of `sink`.
    fn work(&mut self, worker: &mut Worker, current: Option<&Snapshot>, sink: &mut impl Sink) -> io::Result<bool>;
}

impl Staged for &Pipeline {
    fn wants_input(&self) -> bool {
        Pipeline::wants_input(self)
    }

    fn has_room(&self) -> bool {
        Pipeline::has_room(self)
    }

    fn in_use(&self) -> usize {
        Pipeline::in_use(self)
    }

    fn take_inner<E>(
        &mut self,
        worker: &mut Worker,
        tables: &Arc<Snapshot>,
        replies: &mut Batch,
        fill: impl FnOnce(&mut Batch) -> Result<(), E>,
    ) -> Result<Option<bool>, E> {
        Pipeline::take_inner(self, worker, tables, replies, fill)
    }

    fn take_outer(&mut self, worker: &mut Worker, tables: &Arc<Snapshot>, batch: &mut Batch) {
        Pipeline::take_outer(self, worker, tables, batch);
    }

    /// Batches keep the tables that they were planned with.
    fn work(&mut self, worker: &mut Worker, _: Option<&Snapshot>, sink: &mut impl Sink) -> io::Result<bool> {
        Pipeline::work(self, worker, sink)
    }
}
