//! `weir bench`: what the path costs, against the bare engine on the same buffers.

mod path;
mod report;

pub use path::{Case, Options, Outcome, Progress, run};
pub use report::{json, table};
