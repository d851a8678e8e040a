//! What turns traffic and a subject into a measurement.

mod device;
mod latency;
mod memory;
mod ports;
mod sockets;

use std::time::Duration;

use crate::host::clock::TickRate;
use crate::metric::Metric;
use crate::traffic::{Traffic, TrafficError};
use crate::trial::{Direction, Measurement};
use stats::{Rated, mean, quantile_sorted};

pub(crate) use device::{Device, lost, shape_of};
pub use latency::PERCENTILES;
pub(crate) use latency::store as store_latency;
pub use memory::{Memory, MemoryMeter, MemoryOptions};
pub use ports::{LiveDevice, PortMeter, PortOptions};
pub use sockets::{MAX_SOCKETS, Place, ReceivePort, SendPort};

/// Ticks per packet of the batches of a trial, at its median clock rate.
pub const TICKS: [Metric<'static>; 4] = [Metric::TicksMin, Metric::TicksP10, Metric::TicksMedian, Metric::TicksMean];

/// Stores [`TICKS`] of the first of all times, and the clock rate.
pub(crate) fn store_ticks<const N: usize>(rated: &Rated<N>, rate: &TickRate, measured: &mut Measurement) {
    let mut ticks: Vec<f64> = rated.times.iter().flatten().map(|times| times[0]).collect();
    ticks.sort_by(f64::total_cmp);
    let figures = [0.0, 0.1, 0.5].map(|quantile| quantile_sorted(&ticks, quantile));
    measured.values.extend(TICKS.into_iter().zip(figures.into_iter().chain([mean(&ticks)])));
    measured.values.set(Metric::Batches, rated.times.len() as f64);
    measured.values.set(Metric::CoreMhz, rate.mhz(rated.reading));
}

/// Load of one trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Packets.
    pub traffic: Traffic,
    /// Direction through the subject.
    pub direction: Direction,
    /// Duration.
    pub duration: Duration,
    /// Seed of sizes, gaps and contents.
    pub seed: u64,
}

/// A subject that is set up and can be offered a load again and again: in memory, between network
/// namespaces, or between two interfaces of the user.
pub trait Meter {
    /// Runs one trial. Losses are a result, not an error.
    ///
    /// # Errors
    /// The subject died, an interface went down, or the load is one that this meter cannot offer.
    fn trial(&mut self, load: &Load) -> Result<Measurement, MeterError>;
}

/// Reason why a trial failed.
#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    /// This meter cannot offer such a load.
    #[error("{0}")]
    Unsupported(String),
    /// The requested traffic is not available.
    #[error(transparent)]
    Traffic(#[from] TrafficError),
    /// The subject is not there any more, or never came up.
    #[error("{subject}: {why}")]
    Subject {
        /// Its name.
        subject: String,
        /// Description, with the last lines of output.
        why: String,
    },
    /// Error of the operating system.
    #[error("{what}: {source}")]
    Io {
        /// Operation.
        what: String,
        /// Its answer.
        source: std::io::Error,
    },
    /// A packet came out other than it went in: no figure of such a subject means anything.
    #[error("{subject}: packet {seq} came out wrong: {fault}")]
    Wrong {
        /// Its name.
        subject: String,
        /// Sequence number of the packet, `?` if unknown.
        seq: String,
        /// Fault.
        fault: crate::traffic::Fault,
    },
    /// The user requested a stop.
    #[error("interrupted")]
    Interrupted,
}
