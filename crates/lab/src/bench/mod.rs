//! `weir bench`: cost of the path, compared with the bare engine on the same buffers; what keying
//! costs; what rivals carry.

mod alone;
mod blocks;
mod cores;
mod engines;
mod ike;
mod path;
mod report;
mod rivals;
mod sas;

pub(crate) use blocks::FORMAT as BLOCK_FORMAT;
pub use blocks::{BlockHeader, BlockResult, serve};
pub use cores::{
    BATCH as CORES_BATCH, Case as CoresCase, CoresOptions, CoresOutcome, CoresReport, MAX_FLOWS, OCTEON_FLOWS,
    OCTEON_SIZES, OCTEON_SUITES, Scheduler, Set, Spreading, cores_json, cores_table, run as run_cores,
};
pub(crate) use cores::{TrialCounts, World, run_trial};
pub use engines::{EngineOptions, EngineOutcome, EngineTime, engines_json, engines_table, run_engines};
pub use ike::{
    DaemonOptions, DaemonOutcome, Flood, IkeOptions, IkeOutcome, daemon_json, daemon_table, ike_json, ike_table,
    rates as ike_rates, run as run_ike, run_daemon,
};
pub use path::{Case, Options, PathResult, Progress, run};
#[cfg(test)]
pub(crate) use report::assert_narrow;
pub use report::{json, table};
pub(crate) use rivals::run as run_rivals;
pub use rivals::{Absent, GOALS, Lead, OWN, Reached, RivalOptions, RivalOutcome, RivalRow};
pub use sas::{SasOptions, SasOutcome, SasStep, run as run_sas, sas_crossover, sas_table};
