//! Capture files as ports: pcap and pcapng, raw IP and Ethernet.

use std::io;
use std::path::Path;

use crate::Batch;

/// Format of a capture file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs)]
pub enum PcapFormat {
    Pcap,
    PcapNg,
}

/// Reads a capture file, one packet at a time.
pub struct PcapReader {}

/// Writes a capture file.
pub struct PcapWriter {}

impl PcapReader {
    /// Opens a capture.
    ///
    /// # Errors
    /// The file's, or `InvalidData` with what is wrong and at which byte.
    pub fn open(path: &Path) -> io::Result<Self> {
        let _ = path;
        todo!("ports helper")
    }

    /// Fills `into` with the IP packets that come next; link headers are stripped.
    ///
    /// # Errors
    /// As [`PcapReader::open`]; packets before the fault were delivered.
    pub fn rx(&mut self, into: &mut Batch) -> io::Result<()> {
        let _ = into;
        todo!("ports helper")
    }
}
