//! Where packets come from and go to. Every port speaks whole IP packets: where the kernel strips
//! a header on receive the port puts it back, and on send the kernel is given what it wants.

mod address;
mod bpf;
#[cfg(test)]
mod kernel;
mod memory;
mod mmsg;
mod pcap;
mod raw;
mod rebuild;
mod steer;
mod trains;
mod tun;
mod udp;
pub mod xdp;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use memory::NOBODY;
pub use memory::{MemoryPort, memory_pair};
pub use pcap::{CapturedPacket, LinkType, MAX_FILE_BYTES, PcapFormat, PcapReader, PcapWriter};
pub use raw::{RawPort, RawProtocols};
pub use tun::{FlowSteering, TunConfig, TunPort};
pub use udp::{UdpPort, keep_ike, share_with_esp};

use crate::Batch;
use crate::counters::bump;

/// A source and sink of IP packets.
pub trait Port {
    /// Receives what is there, at most `into.room()` packets, without waiting. An empty batch
    /// afterwards means there was nothing, or nothing but what was refused: then there may be more.
    ///
    /// # Errors
    /// Errors of the port itself, not of single packets; a closed peer is `UnexpectedEof`.
    fn rx(&mut self, into: &mut Batch) -> io::Result<()>;

    /// Sends every packet of `from` and leaves it empty. Packets that the port refuses are
    /// counted in [`Port::refused`], never retried.
    ///
    /// # Errors
    /// Errors of the port itself.
    fn tx(&mut self, from: &mut Batch) -> io::Result<()>;

    /// What to wait on for input, when there is such a thing.
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Packets that went no further at this port, by cause.
    fn refused(&self) -> Refused {
        Refused::default()
    }
}

/// Packets that went no further at a port. Each packet is counted once.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Refused {
    /// Not sent, or not sent on: the queue was full.
    pub full: u64,
    /// Not sent: larger than the interface or the route allows.
    pub too_big: u64,
    /// Not sent: everything else (no route, interface down, not an IP packet).
    pub other: u64,
    /// Received, but longer than the packets of the batch or than the space for what belongs to it.
    pub cut_off: u64,
    /// Received without what is needed to put its headers back, or with more headers than fit.
    pub unreadable: u64,
}

/// Super-packets that a port has exchanged with the kernel. Written by the port with plain loads and stores, read
/// by anybody.
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
