//! Border between the packet path and the outside: a [`Port`] delivers and accepts whole IP
//! packets.
//!
//! The implementations are in the crate `ports`, with the system calls and the `unsafe` that they
//! need.

use std::io;
use std::os::fd::BorrowedFd;

use crate::Batch;

/// A source and sink of IP packets.
pub trait Port {
    /// Receives the packets that are available, at most `into.room()`, without waiting. An empty
    /// batch afterwards means that there was none, or that all were refused: then there may be
    /// more.
    ///
    /// # Errors
    /// Errors of the port itself, not of single packets; a closed peer is `UnexpectedEof`.
    fn rx(&mut self, into: &mut Batch) -> io::Result<()>;

    /// Sends every packet of `from` and leaves it empty. Packets that the port refuses are counted
    /// in [`Port::drops`], never retried.
    ///
    /// # Errors
    /// Errors of the port itself.
    fn tx(&mut self, from: &mut Batch) -> io::Result<()>;

    /// Descriptor that is readable when there is input; `None` for a port that must be polled.
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Packets that this port dropped since it was opened, by cause.
    fn drops(&self) -> PortDrops {
        PortDrops::default()
    }
}

/// Packets dropped at a port. Each packet is counted once.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PortDrops {
    /// Not sent, or not passed on: the queue was full.
    pub full: u64,
    /// Not sent: larger than the MTU of the interface or of the route.
    pub too_big: u64,
    /// Not sent for another reason: no route, interface down, not an IP packet.
    pub other: u64,
    /// Received, but longer than the packets of the batch or than the space for its headers.
    pub cut_off: u64,
    /// Received without the information that is needed to rebuild its headers, or with more headers
    /// than fit.
    pub unreadable: u64,
    /// No drop: received and passed on within this host, e.g. IKE in a GRO packet of ESP in UDP.
    pub passed_on: u64,
}

impl PortDrops {
    /// Packets that were received, but not into the batch.
    pub fn not_in_batch(&self) -> u64 {
        self.cut_off + self.unreadable + self.passed_on
    }
}
