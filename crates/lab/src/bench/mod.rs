//! `weir bench`: what the path costs, against the bare engine on the same buffers, and what keying costs.

mod ike;
mod path;
mod report;

pub use ike::{Flood, IkeOptions, IkeOutcome, ike_json, ike_table, run as run_ike};
pub use path::{Case, Options, Outcome, Progress, run};
pub use report::{json, table};
