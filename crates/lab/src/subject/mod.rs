//! Traffic through the systems under test of the testbed: packets ([`SubjectMeter`]) and pings
//! ([`Pings`]).

mod meter;
mod ping;

pub use meter::{Effort, SubjectMeter};
pub(crate) use meter::{Establishment, account};
pub(crate) use ping::Pings;
pub use testbed::subject::*;
