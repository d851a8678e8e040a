//! The data plane's side to the operating system: ports, and the threads that workers run on.
//!
//! A [`Runner`] has one thread for each worker. The thread receives batches from ports, takes them
//! through the packet path of the crate `dataplane`, which does no I/O, and sends them to other
//! ports.
//!
//! Every port speaks whole IP packets: where the kernel strips a header on receive the port puts it
//! back, and on send the port fills in what the kernel requires.

mod address;
mod bpf;
pub mod clock;
pub mod cpus;
mod gso;
mod huge_pages;
mod memory;
mod mmsg;
mod raw;
mod rebuild;
mod runner;
mod steer;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
mod tun;
mod udp;
pub mod xdp;

use std::sync::atomic::{AtomicU64, Ordering};

use dataplane::{PortDrops, bump};

pub use huge_pages::prefer_huge_pages;
pub(crate) use memory::NO_OWNER;
pub use memory::{MemoryPort, memory_pair};
pub use raw::{RawPort, RawProtocols};
pub use runner::{Links, MAX_WORKERS, Runner, RunnerError, usual_scheduler};
#[doc(hidden)]
pub use tun::fuzzing::SuperQueue;
pub use tun::{FlowSteering, TunConfig, TunPort};
pub use udp::{UdpPort, allow_ip_fragments, ip_fragments_allowed, keep_ike, share_with_esp};

/// Counters of GSO and GRO packets of a port. Written by the port with plain loads and stores, read
/// by any thread.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct GsoCounters {
    received: Joined,
    sent: Joined,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Joined {
    calls: AtomicU64,
    packets: AtomicU64,
}

/// Numbers of GSO and GRO packets, and of their segments.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct GsoCounts {
    /// GRO packets received, each with one system call.
    pub received: u64,
    /// Segments of the received GRO packets.
    pub packets_received: u64,
    /// GSO packets sent.
    pub sent: u64,
    /// Segments of the sent GSO packets.
    pub packets_sent: u64,
    /// GSO packets that the kernel rejected: their segments were sent one by one.
    pub refused: u64,
}

impl GsoCounters {
    fn count_received(&self, packets: usize) {
        self.received.count(packets);
    }

    fn count_sent(&self, packets: usize) {
        self.sent.count(packets);
    }

    fn count_refused(&self) {
        bump(&self.refused, 1);
    }

    /// Returns the current values.
    pub fn read(&self) -> GsoCounts {
        let of = |joined: &Joined| (joined.calls.load(Ordering::Relaxed), joined.packets.load(Ordering::Relaxed));
        let ((received, packets_received), (sent, packets_sent)) = (of(&self.received), of(&self.sent));
        let refused = self.refused.load(Ordering::Relaxed);
        GsoCounts { received, packets_received, sent, packets_sent, refused }
    }
}

impl Joined {
    fn count(&self, packets: usize) {
        bump(&self.calls, 1);
        bump(&self.packets, packets as u64);
    }
}

impl std::ops::Add for GsoCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            packets_received: self.packets_received + other.packets_received,
            sent: self.sent + other.sent,
            packets_sent: self.packets_sent + other.packets_sent,
            refused: self.refused + other.refused,
        }
    }
}
