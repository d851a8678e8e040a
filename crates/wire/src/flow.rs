//! The key by which packets of one flow are recognised.

use crate::{IpPacket, IpProto};

/// Addresses, protocol and ports of a packet. Comparable and hashable as plain bytes.
///
/// Ports are 0 for protocols without them and for non-first fragments; ICMP puts its type in the
/// high byte and its code in the low byte of `src_port` (as RFC 7296 §3.13.1 does).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(C)]
pub struct FlowKey {
    /// Source address, IPv4 mapped (`::ffff:a.b.c.d`).
    pub src: [u8; 16],
    /// Destination address, likewise.
    pub dst: [u8; 16],
    /// Source port in host order.
    pub src_port: u16,
    /// Destination port in host order.
    pub dst_port: u16,
    /// Upper-layer protocol.
    pub proto: IpProto,
    /// True for a fragment whose ports are not known (RFC 4301 OPAQUE).
    pub opaque_ports: bool,
}

impl FlowKey {
    /// The key of `packet`, whose headers were read into `ip`.
    pub fn of(ip: &IpPacket, packet: &[u8]) -> Self {
        let _ = (ip, packet);
        todo!("wire helper")
    }
}
