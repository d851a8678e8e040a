//! The throughput model: the time per packet as a function of its size, fitted to measurements, and
//! what follows from it for mixes, queues and several cores.
//!
//! A measurement is a size and a time ([`Sample`]). [`Form`]s turn samples into a [`Curve`], a
//! [`Mix`] weighs it by the packets of a link, [`Service`] gives waiting times and loss.
//! [`search`] decides which loads a throughput search measures. [`verify_paper()`] recomputes the
//! tables of the paper that the model comes from. Everything here is arithmetic: nothing is
//! measured and no file is read.

mod cost;
mod engine;
mod equation;
mod fit;
mod form;
mod genome;
mod linear;
mod mix;
mod paper;
mod plan;
mod quantile;
mod queue;
mod scaling;
pub mod search;
pub mod simulate;
mod size;
mod spline;
mod two_point;
mod vector;
mod verify;

pub use cost::*;
pub use engine::*;
pub use equation::*;
pub use fit::*;
pub use form::*;
pub use genome::*;
pub use mix::*;
pub use plan::*;
pub use quantile::*;
pub use queue::*;
pub use scaling::*;
pub use size::*;
pub use spline::*;
pub use two_point::*;
pub use vector::*;
pub use verify::*;
