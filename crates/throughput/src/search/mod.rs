//! The logic of throughput searches (MLRsearch, RFC 9971): goals, the class of a load, and the next
//! trial. Nothing is measured here: a [`Controller`] requests trials and is given their results.

mod classify;
mod controller;
mod goal;

pub use classify::{Class, Point, classify, conditional_throughput};
pub use controller::{Ask, Controller, Found};
pub use goal::{Goal, GoalError};
