//! Where packets come from and go to. Every port speaks whole IP packets: where the kernel strips
//! a header on receive the port puts it back, and on send the kernel is given what it wants.

mod memory;
mod pcap;
mod raw;
mod tun;
mod udp;

use std::io;
use std::os::fd::BorrowedFd;

pub use memory::{MemoryPort, memory_pair};
pub use pcap::{PcapFormat, PcapReader, PcapWriter};
pub use raw::{RawPort, RawProtocols};
pub use tun::{TunConfig, TunPort};
pub use udp::UdpPort;

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

    /// Packets that [`Port::tx`] could not send, by cause.
    fn refused(&self) -> Refused {
        Refused::default()
    }
}

/// Packets that a port could not send.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Refused {
    /// The queue was full.
    pub full: u64,
    /// Larger than the interface or the route allows.
    pub too_big: u64,
    /// Everything else (no route, interface down).
    pub other: u64,
}
