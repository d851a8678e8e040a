//! How work is divided among cores.
//!
//! Run to completion ([`crate::Runner`] by itself): a batch stays on the core that received it. The [`Pipeline`]: a batch
//! goes from core to core by the tags of a [`WorkQueue`]. The functions of the path are the same.

mod pipeline;
mod queue;
mod sync;

pub use pipeline::{After, CipherTag, Pipeline, PipelineConfig, Sink};
pub use queue::{FlowId, Held, MAX_PLACES, Tag, WorkQueue};

/// How workers divide their work.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Scheduler {
    /// A batch stays with the worker that received it; packets of SAs that another owns are handed over.
    #[default]
    RunToCompletion,
    /// A batch goes to whichever worker is free; see [`Pipeline`].
    Pipeline,
}

/// The environment variable that names the scheduler where nothing else does, as a whole test-suite wants it.
const FORCE: &str = "WEIR_SCHEDULER";

impl Scheduler {
    /// Every scheduler.
    pub const ALL: [Self; 2] = [Self::RunToCompletion, Self::Pipeline];

    /// The scheduler that is used when none is named: run to completion, unless the environment variable
    /// `WEIR_SCHEDULER` names another.
    pub fn usual() -> Self {
        let forced = std::env::var(FORCE).ok();
        Self::ALL.into_iter().find(|one| forced.as_deref() == Some(one.name())).unwrap_or_default()
    }

    /// Name in configurations and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RunToCompletion => "run-to-completion",
            Self::Pipeline => "pipeline",
        }
    }
}
