//! Where packets come from and go to. Every port speaks whole IP packets: where the kernel strips
//! a header on receive the port puts it back, and on send the kernel is given what it wants.

mod address;
#[cfg(test)]
mod kernel;
mod memory;
mod mmsg;
mod pcap;
mod raw;
mod rebuild;
mod tun;
mod udp;

use std::io;
use std::os::fd::BorrowedFd;

pub use memory::{MemoryPort, memory_pair};
pub use pcap::{CapturedPacket, LinkType, MAX_FILE_BYTES, PcapFormat, PcapReader, PcapWriter};
pub use raw::{RawPort, RawProtocols};
pub use tun::{TunConfig, TunPort};
pub use udp::{UdpPort, keep_ike, share_with_esp};

use crate::Batch;

/// A source and sink of IP packets.
pub trait Port {
    /// Receives what is there, at most `into.room()` packets, without waiting. An empty batch
    /// afterwards means there was nothing.
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
    /// Not sent: the queue was full.
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
