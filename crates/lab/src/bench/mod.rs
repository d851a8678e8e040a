//! `weir bench`: cost of the path, compared with the bare engine on the same buffers; what keying
//! costs; what rivals carry.

mod alone;
mod blocks;
mod engines;
mod path;
mod report;

pub(crate) use blocks::FORMAT as BLOCK_FORMAT;
pub use blocks::{BlockHeader, BlockResult, serve};
pub use engines::{EngineOptions, EngineOutcome, EngineTime, engines_json, engines_table, run_engines};
pub use path::{Case, Options, PathResult, Progress, run};
#[cfg(test)]
pub(crate) use report::assert_narrow;
pub use report::{json, table};
