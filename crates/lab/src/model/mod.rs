//! The throughput model: a model of the time per packet, with predictions for any size, mix, core
//! count and load.
//!
//! A measurement is a size and a time ([`Sample`]). [`Form`]s turn samples into a [`Profile`],
//! which a file keeps with a hash; [`validate()`] judges it by measurements it has not seen,
//! [`plan()`] sizes a gateway with it, [`explain()`] names what binds. [`verify`] recomputes the
//! tables of the paper that the model comes from.

mod beyond;
mod cost;
mod engine;
mod equation;
mod explain;
mod fit;
mod form;
mod input;
mod linear;
mod measure;
mod mix;
mod paper;
mod plan;
mod profile;
mod quantile;
mod queue;
mod run;
mod scaling;
pub mod simulate;
mod size;
mod spline;
mod two_point;
mod validate;
mod vector;
mod verify;

pub use beyond::*;
pub use cost::*;
pub use engine::*;
pub use equation::*;
pub use explain::*;
pub use fit::*;
pub use form::*;
pub use input::*;
pub use measure::*;
pub use mix::*;
pub use plan::*;
pub use profile::*;
pub use quantile::*;
pub use queue::*;
pub use run::*;
pub use scaling::*;
pub use size::*;
pub use spline::*;
pub use two_point::*;
pub use validate::*;
pub use vector::*;
pub use verify::*;
