//! The data plane's side to the operating system: ports, and the threads that workers run on.
//!
//! A [`Runner`] has one thread for each worker. The thread receives batches from ports, takes them
//! through the packet path of the crate `dataplane`, which does no I/O, and sends them to other
//! ports.
//!
//! Every port speaks whole IP packets: where the kernel strips a header on receive the port puts it
//! back, and on send the kernel is given what it wants.

mod address;
mod bpf;
pub mod clock;
pub mod cpus;
mod memory;
mod mmsg;
mod raw;
mod rebuild;
mod runner;
mod steer;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
mod trains;
mod tun;
mod udp;
pub mod xdp;

use std::sync::atomic::{AtomicU64, Ordering};

use dataplane::{Refused, bump};

pub(crate) use memory::NOBODY;
pub use memory::{MemoryPort, memory_pair};
pub use raw::{RawPort, RawProtocols};
pub use runner::{Links, MAX_WORKERS, Runner, RunnerError, usual_scheduler};
#[doc(hidden)]
pub use tun::fuzzing::SuperQueue;
pub use tun::{FlowSteering, TunConfig, TunPort};
pub use udp::{UdpPort, allow_ip_fragments, ip_fragments_allowed, keep_ike, share_with_esp};

/// Super-packets that a port has exchanged with the kernel. Written by the port with plain loads
/// and stores, read by anybody.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct SuperPackets {
    received: Joined,
    sent: Joined,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Joined {
    calls: AtomicU64,
    packets: AtomicU64,
}

/// Super-packets up to now, and the packets in them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SuperCount {
    /// Super-packets received, each with one system call.
    pub received: u64,
    /// Packets they were cut to.
    pub packets_received: u64,
    /// Super-packets sent.
    pub sent: u64,
    /// Packets that were joined in them.
    pub packets_sent: u64,
    /// Super-packets that the kernel refused: their packets were sent one by one.
    pub refused: u64,
}

impl SuperPackets {
    fn count_received(&self, packets: usize) {
        self.received.count(packets);
    }

    fn count_sent(&self, packets: usize) {
        self.sent.count(packets);
    }

    fn count_refused(&self) {
        bump(&self.refused, 1);
    }

    /// The counts up to now.
    pub fn read(&self) -> SuperCount {
        let of = |joined: &Joined| (joined.calls.load(Ordering::Relaxed), joined.packets.load(Ordering::Relaxed));
        let ((received, packets_received), (sent, packets_sent)) = (of(&self.received), of(&self.sent));
        let refused = self.refused.load(Ordering::Relaxed);
        SuperCount { received, packets_received, sent, packets_sent, refused }
    }
}

impl Joined {
    fn count(&self, packets: usize) {
        bump(&self.calls, 1);
        bump(&self.packets, packets as u64);
    }
}

impl std::ops::Add for SuperCount {
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
