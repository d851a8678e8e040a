//! Traffic as data: which sizes, how many flows, how fast.
//!
//! [`Traffic`] is the specification in a campaign, [`Generator`] creates the packets, and
//! [`Checker`] verifies received packets.

mod content;
mod generator;
mod notation;

pub use content::{Checker, Content, DST_PORT, FIRST_SRC_PORT, Fault, Seen};
pub use generator::{Addresses, Due, Generator, TrafficError, is_generated};
pub use notation::NotationError;
pub use throughput::{Genome, GenomeError, MIN_SIZE, Z_DEFAULT};

use serde::{Deserialize, Serialize};

/// Sizes of inner packets, IP header included.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// All the same, in bytes.
    Fixed(u16),
    /// Drawn evenly from a range in bytes, both ends included.
    Random {
        /// Smallest.
        min: u16,
        /// Largest.
        max: u16,
    },
    /// An IMIX genome (RFC 6985), e.g. `aaaaaaaddddg`.
    Genome(Genome),
    /// The sizes of a capture file, and its times where the rate is [`Rate::Recorded`].
    Pcap(std::path::PathBuf),
}

/// Departure times of packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// As many as go: the maximum load of a subject.
    Saturate,
    /// Evenly, in packets per second.
    Constant(f64),
    /// With exponential gaps, in packets per second on average.
    Poisson(f64),
    /// At the times of the capture file, again and again.
    Recorded,
}

impl Rate {
    /// Packets per second on average; `None` for [`Rate::Saturate`] and [`Rate::Recorded`].
    pub fn pps(self) -> Option<f64> {
        match self {
            Self::Constant(pps) | Self::Poisson(pps) => Some(pps),
            Self::Saturate | Self::Recorded => None,
        }
    }
}

/// Traffic specification. Written as text (in campaigns, on the command line, in trials):
///
/// ```text
/// 1400                         all packets have 1400 bytes, as many as go
/// 64..1500                     sizes drawn evenly
/// imix:aaaaaaaddddg            an IMIX genome
/// imix:AAB:A=40:B=1420         with sizes of one's own
/// pcap:FILE                    sizes of a capture
/// 1400,flows=8,rate=200k       8 flows, 200 000 packets per second, evenly
/// 1400,poisson=1.5M            with exponential gaps
/// pcap:FILE,rate=recorded      at the times of the capture
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Traffic {
    /// Sizes.
    pub sizes: Sizes,
    /// Flows (5-tuples) that packets belong to in turn; at least 1.
    pub flows: u32,
    /// Rate over all flows.
    pub rate: Rate,
}

/// Maximum number of flows: the source port distinguishes them.
pub const MAX_FLOWS: u32 = 50_000;

impl Traffic {
    /// One flow of packets of one size, as many as go.
    pub fn fixed(size: u16) -> Self {
        Self { sizes: Sizes::Fixed(size), flows: 1, rate: Rate::Saturate }
    }

    /// The same at another rate.
    #[must_use]
    pub fn at(&self, rate: Rate) -> Self {
        Self { rate, ..self.clone() }
    }

    /// Size of all packets, where they have one, in bytes.
    pub fn size(&self) -> Option<u32> {
        match &self.sizes {
            Sizes::Fixed(size) => Some(u32::from(*size)),
            Sizes::Random { min, max } if min == max => Some(u32::from(*min)),
            Sizes::Genome(genome) => {
                let mut sizes = genome.sizes().iter();
                let first = *sizes.next()?;
                sizes.all(|size| *size == first).then_some(u32::from(first))
            }
            Sizes::Random { .. } | Sizes::Pcap(_) => None,
        }
    }
}
