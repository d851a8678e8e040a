//! `weir bench`: what the path costs, against the bare engine on the same buffers, and what keying costs.

mod blocks;
mod ike;
mod path;
mod report;

pub(crate) use blocks::FORMAT as BLOCK_FORMAT;
pub use blocks::{BlockHeader, BlockResult, serve};
pub use ike::{
    DaemonOptions, DaemonOutcome, Flood, IkeOptions, IkeOutcome, daemon_json, daemon_table, ike_json, ike_table,
    rates as ike_rates, run as run_ike, run_daemon,
};
pub use path::{Case, Options, Outcome, Progress, run};
pub use report::{json, table};
