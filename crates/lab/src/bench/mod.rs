//! The packet path beside the engine alone, engines by themselves, and blocks of the path on
//! request for `weir lab compare`.

mod blocks;
mod engines;
mod path;

pub(crate) use blocks::FORMAT as BLOCK_FORMAT;
pub use blocks::{BlockHeader, BlockResult, BlocksError, Options as BlockOptions, serve};
pub(crate) use engines::EngineBench;
pub(crate) use path::{Ends, Load, WARM_UP};
