//! Testbed: systems under test, two hosts on one machine, and the programs that send traffic
//! between them.
//!
//! A process enters a [`sandbox`] of namespaces and builds hosts there ([`world`]), which a cable
//! connects, with a delay if one is requested ([`relay`]). Programs run on the hosts as children
//! ([`child`]); `ping` and `iperf` send traffic ([`ping`], [`transfer`]), and counters of the
//! kernel account for it ([`counters`]). Everything ends with the process.
//!
//! Between the hosts runs a [`subject`]: Weir, plain forwarding, or a program by others. Weir is
//! also measured in memory, by the same names ([`memory`]), with the tables of both ends ([`pair`])
//! and packets to send ([`packet`]).

pub mod child;
pub mod counters;
pub mod exchange;
pub mod iperf;
pub mod memory;
pub mod packet;
pub mod pair;
pub mod ping;
pub mod pki;
pub mod probe;
pub mod relay;
pub mod sandbox;
pub mod subject;
pub mod transfer;
pub mod world;

pub use memory::MemorySubject;

/// Exit status after a signal, as shells have it for SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Reason why a measurement between hosts failed or ended early.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// A requirement is missing; the text has the remedy.
    #[error("{0}")]
    Unable(String),
    /// One row cannot be measured.
    #[error("{0}")]
    Failed(String),
    /// A stop was requested.
    #[error("interrupted; everything is cleaned up")]
    Interrupted,
}

/// Kernel release.
pub fn kernel() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    read.map_or_else(|_| "unknown".to_owned(), |release| release.trim().to_owned())
}

/// Random octets.
pub fn random(bytes: usize) -> Vec<u8> {
    let mut key = vec![0; bytes];
    crypto::random(&mut key);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ() {
        assert_ne!(random(32), random(32));
        assert_eq!(random(48).len(), 48);
    }
}
