//! Reassembly of outer fragments within a bound (RFC 815, RFC 8200 §4.5).

use wire::IpPacket;

use crate::Drop;

/// What a fragment led to.
pub enum Reassembled<'a> {
    /// Kept; more are missing.
    Waiting,
    /// The whole packet, with an unfragmented header.
    Whole(&'a [u8]),
}

/// Fragments that wait for the rest of their packet.
pub struct Reassembler {}

impl Reassembler {
    /// Room for `packets` packets at a time, of at most `packet_bytes` each: `packets *
    /// packet_bytes` bytes in all, allocated now. Given up after `timeout_ms`.
    pub fn new(packets: usize, packet_bytes: usize, timeout_ms: u64) -> Self {
        let _ = (packets, packet_bytes, timeout_ms);
        todo!("tables helper")
    }

    /// Takes a fragment that arrived at `now_ms` (any monotonic clock).
    ///
    /// # Errors
    /// [`Drop::ReassemblyFull`] on overlap (RFC 5722: the whole packet is given up), on a packet
    /// beyond the bound, or when no room can be made.
    pub fn push(&mut self, now_ms: u64, ip: &IpPacket, packet: &[u8]) -> Result<Reassembled<'_>, Drop> {
        let _ = (now_ms, ip, packet);
        todo!("tables helper")
    }
}
