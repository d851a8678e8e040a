//! Schedulers: distribution of work among cores.
//!
//! Run to completion: a batch stays on the core that received it. The [`Pipeline`]: a batch goes
//! from core to core by the tags of a work queue (`queue.rs`). The functions of the path are the
//! same.

mod pipeline;
mod queue;
mod sync;

pub use pipeline::{After, CipherTag, Pipeline, PipelineConfig, Sink};
pub use queue::MAX_SLOTS;

/// Scheduler of the workers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Scheduler {
    /// A batch stays with the worker that received it; packets of SAs that another owns are handed
    /// over.
    #[default]
    RunToCompletion,
    /// A batch goes to whichever worker is free; see [`Pipeline`].
    Pipeline,
}

impl Scheduler {
    /// Every scheduler.
    pub const ALL: [Self; 2] = [Self::RunToCompletion, Self::Pipeline];

    /// Name in configurations and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RunToCompletion => "run-to-completion",
            Self::Pipeline => "pipeline",
        }
    }
}
