//! The scheduler of the workers and their crypto threads: as configured, or by the rule of
//! `scheduler = auto`.
//!
//! The rule is for one SA, the case in which the schedulers differ: with several SAs every worker
//! has its share. It needs only what is constant while the gateway runs (CPUs, workers), because a
//! scheduler cannot change while packets are in flight. The size of packets, which changes all the
//! time, is considered for each group of packets: with `async` the worker encrypts by itself
//! whenever its threads have no room. Figures: docs/performance.md.

use std::fmt;

use dataplane::Scheduler;

use crate::config::Gateway;
use crate::ready::counted;

/// Most crypto threads of a worker by the rule: more have no work, because the worker itself is the
/// bottleneck then.
const MOST_THREADS: usize = 3;

/// Scheduler and crypto threads of a running gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Scheduling {
    pub(crate) scheduler: Scheduler,
    /// Crypto threads of each worker; 0 without the scheduler `async`.
    pub(crate) crypto_threads: usize,
    /// Reason of the choice.
    pub(crate) why: String,
}

impl Scheduling {
    /// Chooses for a host on which the process may use `cpus`.
    pub(crate) fn of(gateway: &Gateway, cpus: usize) -> Self {
        let workers = gateway.workers.max(1);
        if let Some(scheduler) = gateway.scheduler {
            let crypto_threads = if scheduler == Scheduler::Async { gateway.crypto_threads } else { 0 };
            return Self { scheduler, crypto_threads, why: "required by the configuration".into() };
        }
        let here = format!("auto: {} for {}", counted(cpus, "CPU", "CPUs"), counted(workers, "worker", "workers"));
        match (cpus / workers).saturating_sub(1).min(MOST_THREADS) {
            0 => {
                let scheduler = Scheduler::RunToCompletion;
                Self { scheduler, crypto_threads: 0, why: format!("{here}, none for crypto threads") }
            }
            crypto_threads => {
                let threads = counted(crypto_threads, "crypto thread", "crypto threads");
                Self { scheduler: Scheduler::Async, crypto_threads, why: format!("{here}, {threads} each") }
            }
        }
    }
}

impl fmt::Display for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.scheduler.name(), self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_gives_each_worker_threads_as_far_as_there_are_cpus() {
        let of = |workers: usize, cpus: usize| {
            let gateway = Gateway { workers, scheduler: None, crypto_threads: 9, ..Gateway::default() };
            let Scheduling { scheduler, crypto_threads, why } = Scheduling::of(&gateway, cpus);
            assert_eq!(scheduler == Scheduler::Async, crypto_threads > 0);
            assert!(why.starts_with("auto: "), "{why}");
            assert!(workers * (1 + crypto_threads) <= cpus.max(workers), "no CPU is used twice");
            crypto_threads
        };
        assert_eq!([1, 2, 3, 4, 5, 64].map(|cpus| of(1, cpus)), [0, 1, 2, 3, 3, 3]);
        assert_eq!([1, 2, 3, 4, 6, 8, 16].map(|cpus| of(2, cpus)), [0, 0, 0, 1, 2, 3, 3]);
        // A container may have no CPU for itself, and more workers than CPUs.
        assert_eq!([of(1, 0), of(8, 4)], [0, 0]);
    }

    #[test]
    fn what_is_configured_is_used() {
        for scheduler in Scheduler::ALL {
            let gateway = Gateway { workers: 2, scheduler: Some(scheduler), crypto_threads: 5, ..Gateway::default() };
            for cpus in [1, 64] {
                let chosen = Scheduling::of(&gateway, cpus);
                let crypto_threads = if scheduler == Scheduler::Async { 5 } else { 0 };
                let why = "required by the configuration".to_owned();
                assert_eq!(chosen, Scheduling { scheduler, crypto_threads, why });
            }
        }
    }

    #[test]
    fn the_reason_has_the_numbers() {
        let gateway = Gateway { workers: 2, scheduler: None, ..Gateway::default() };
        assert_eq!(Scheduling::of(&gateway, 4).why, "auto: 4 CPUs for 2 workers, 1 crypto thread each");
        assert_eq!(Scheduling::of(&gateway, 2).why, "auto: 2 CPUs for 2 workers, none for crypto threads");
    }
}
