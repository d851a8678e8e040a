//! Cores: how packets are spread over them, and one trial on several.
//!
//! Every packet circulates in memory: it is stamped with its flow and number, sealed by one
//! gateway, opened by another, and the stamp is checked. Only the cores under test take part.

mod trial;
mod world;

use crypto::Engine;
use serde::{Deserialize, Serialize};

pub(crate) use trial::{TrialCounts, run as run_trial};
pub(crate) use world::World;

/// Scheduler.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// A batch stays on the core that received it
    RunToCompletion,
    /// Batches go from core to core by the tags of a work queue
    Pipeline,
    /// The same, with one packet of an SA at a time encrypted, as the tags of the OCTEON scheduler
    /// have it
    PipelineAtomic,
    /// A batch stays on the first core, and the others seal and open its packets
    Async,
    /// The same, and the first core never encrypts, as the model of an asynchronous engine has it
    AsyncSplit,
}

impl Scheduler {
    /// All.
    pub const ALL: [Self; 5] =
        [Self::RunToCompletion, Self::Pipeline, Self::PipelineAtomic, Self::Async, Self::AsyncSplit];
    /// Those of a study that names none: without the tags of the paper, which no gateway has, and
    /// without crypto cores, which a study of one SA must request.
    pub const USUAL: [Self; 2] = [Self::RunToCompletion, Self::Pipeline];

    /// Its name in campaigns and trials.
    pub fn name(self) -> &'static str {
        match self {
            Self::RunToCompletion => "run-to-completion",
            Self::Pipeline => "pipeline",
            Self::PipelineAtomic => "pipeline-atomic",
            Self::Async => "async",
            Self::AsyncSplit => "async-split",
        }
    }
}

/// Kind of SAs of an outbound policy.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Set {
    /// One ESP SA
    One,
    /// One ESP SA per CPU (RFC 9611)
    PerCpu,
    /// One EESP SA with a Sub SA per CPU
    SubSas,
    /// One PSP association with a counter prefix per CPU
    Psp,
    /// Gateways that have nothing to do with each other, one per CPU: what the machine gives
    Apart,
}

impl Set {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::One, Self::PerCpu, Self::SubSas, Self::Psp, Self::Apart];

    /// Its name in campaigns and trials.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::PerCpu => "per-cpu",
            Self::SubSas => "sub-sas",
            Self::Psp => "psp",
            Self::Apart => "apart",
        }
    }

    /// Returns whether it can be had with a scheduler: where nothing is shared, nothing is
    /// scheduled; and one worker with crypto cores has one SA.
    pub(crate) fn runs_by(self, scheduler: Scheduler) -> bool {
        match scheduler {
            Scheduler::RunToCompletion => true,
            Scheduler::Pipeline | Scheduler::PipelineAtomic => self != Self::Apart,
            Scheduler::Async | Scheduler::AsyncSplit => self == Self::One,
        }
    }

    /// Returns whether it makes a difference which core gets a flow.
    pub(crate) fn spreads(self) -> bool {
        !matches!(self, Self::One | Self::Apart)
    }
}

/// Distribution of flows to cores.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spreading {
    /// Each as many as the next
    Ideal,
    /// By a hash
    Hashed,
    /// All to the first
    Worst,
}

impl Spreading {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ideal, Self::Hashed, Self::Worst];

    /// Its name in campaigns and trials.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ideal => "ideal",
            Self::Hashed => "hashed",
            Self::Worst => "worst",
        }
    }
}

/// Most flows of a trial: they have a port each.
pub const MAX_FLOWS: usize = 60_000;

/// One case.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) scheduler: Scheduler,
    pub(crate) set: Set,
    pub(crate) size: usize,
    pub(crate) flows: usize,
    pub(crate) cores: usize,
    pub(crate) spread: Spreading,
    pub(crate) engine: Engine,
}

/// Upper bound of the speed-up without contention: the number of cores that can have work at the
/// same time.
pub(crate) fn ceiling(scheduler: Scheduler, set: Set, spread: Spreading, flows: usize, cores: usize) -> f64 {
    match (scheduler, set, spread) {
        (Scheduler::RunToCompletion, Set::One, _) => 1.0,
        (Scheduler::Pipeline | Scheduler::PipelineAtomic, ..) | (_, Set::One, _) => cores as f64,
        (_, Set::Apart, _) | (_, _, Spreading::Ideal) => flows as f64 / flows.div_ceil(cores) as f64,
        (_, _, Spreading::Worst) => 1.0,
        (_, _, Spreading::Hashed) => throughput::spread_limit(cores as u32, flows as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cores_can_bring_at_most() {
        let of = |scheduler, set, flows, spread| ceiling(scheduler, set, spread, flows, 4);
        use Scheduler::{Pipeline, RunToCompletion};
        assert_eq!(of(RunToCompletion, Set::One, 64, Spreading::Ideal), 1.0);
        assert_eq!(of(Pipeline, Set::One, 1, Spreading::Ideal), 4.0);
        assert_eq!(of(RunToCompletion, Set::PerCpu, 1, Spreading::Ideal), 1.0);
        assert_eq!(of(RunToCompletion, Set::SubSas, 6, Spreading::Ideal), 3.0);
        assert_eq!(of(RunToCompletion, Set::Psp, 64, Spreading::Worst), 1.0);
        assert_eq!(of(RunToCompletion, Set::Apart, 64, Spreading::Worst), 4.0);
        assert!(!Set::Apart.runs_by(Pipeline));
        assert!(Set::One.runs_by(Scheduler::Async) && !Set::PerCpu.runs_by(Scheduler::Async));
        let hashed = of(RunToCompletion, Set::PerCpu, 4, Spreading::Hashed);
        assert!((1.5..3.0).contains(&hashed), "{hashed}");
    }
}
