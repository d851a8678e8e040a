//! Traffic as data: which sizes, how many flows, how fast.

use serde::{Deserialize, Serialize};

/// Sizes of inner packets.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
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
    Genome(String),
    /// The sizes, and times where the rate says so, of a capture file.
    Pcap(std::path::PathBuf),
}

/// When packets are meant to leave.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    /// As many as go: what a subject can take.
    Saturate,
    /// Evenly, in packets per second.
    Constant(f64),
    /// With exponential gaps, in packets per second on average.
    Poisson(f64),
}

/// What is sent.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Traffic {
    /// Sizes.
    pub sizes: Sizes,
    /// Flows (5-tuples) that packets belong to in turn; at least 1.
    pub flows: u32,
    /// Rate over all flows.
    pub rate: Rate,
}

impl Traffic {
    /// One flow of packets of one size, as many as go.
    pub fn fixed(size: u16) -> Self {
        Self { sizes: Sizes::Fixed(size), flows: 1, rate: Rate::Saturate }
    }
}
