//! The throughput model: a model of the time per packet, with predictions for any size, mix, core
//! count and load.
//!
//! A measurement is a size and a time ([`throughput::Sample`]). [`throughput::Form`]s turn samples
//! into a [`Profile`], which a file keeps with a hash; [`validate()`] judges it by measurements it
//! has not seen, [`throughput::plan()`] sizes a gateway with it, [`explain()`] names what binds.
//! [`throughput::verify_paper()`] recomputes the tables of the paper that the model comes from.

mod beyond;
mod explain;
mod input;
mod layout;
mod measure;
mod profile;
mod run;
mod validate;

pub use beyond::*;
pub use explain::*;
pub use input::*;
pub use layout::*;
pub use measure::*;
pub use profile::*;
pub use run::*;
pub use validate::*;
