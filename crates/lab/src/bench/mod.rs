//! `weir bench path` and `weir bench engines`: cost of the path, compared with the bare engine on
//! the same buffers, and the engines against each other.

mod alone;
mod blocks;
mod engines;
mod path;
mod report;

pub(crate) use blocks::FORMAT as BLOCK_FORMAT;
pub use blocks::{BlockHeader, BlockResult, serve};
pub use engines::{EngineOptions, EngineOutcome, EngineTime, engines_json, engines_table, run_engines};
pub use path::{Case, Options, PathResult, Progress, run};
pub use report::{json, table};
