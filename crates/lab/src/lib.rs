//! The lab: Weir and its rivals, measured by the same methods.

pub mod bench;
pub mod campaign;
pub mod cli;
pub mod compare;
pub mod cores;
pub mod demo;
mod derive;
pub mod host;
pub mod import;
mod keying;
pub mod many;
pub mod meter;
pub mod metric;
pub mod model;
pub mod overhead;
mod progress;
mod random;
pub mod report;
pub mod search;
pub mod sessions;
pub mod subject;
mod svg;
pub mod traffic;
pub mod trial;
