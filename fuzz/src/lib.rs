//! What several fuzz targets and the seeds share: pairs of SAs with fixed keys, and the way of one
//! packet through the receiving half.

mod engines;
mod open;
mod pair;
mod supers;
mod worker;

pub use engines::engines;
pub use open::{open, open_with};
pub use pair::{Pair, Tables, ah, eesp, esp, inner_v4, inner_v6, psp};
pub use supers::gso_counters;
pub use worker::worker;
