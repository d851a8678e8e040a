//! Traffic selectors (RFC 4301 §4.4.1.1).

use std::net::IpAddr;

use crate::{FlowKey, IpProto};

/// An inclusive range of addresses of one family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AddrRange {
    /// First address.
    pub start: IpAddr,
    /// Last address, of the same family and not below `start`.
    pub end: IpAddr,
}

/// An inclusive range of ports. For ICMP the value is type × 256 + code (RFC 7296 §3.13.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortRange {
    /// First port.
    pub start: u16,
    /// Last port; `start > end` never holds except for [`PortRange::OPAQUE`].
    pub end: u16,
}

/// Which packets a policy speaks of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Selector {
    /// Source addresses.
    pub src: AddrRange,
    /// Destination addresses.
    pub dst: AddrRange,
    /// Upper-layer protocol; `None` is any.
    pub proto: Option<IpProto>,
    /// Source ports, or ICMP type and code.
    pub src_ports: PortRange,
    /// Destination ports.
    pub dst_ports: PortRange,
}

impl PortRange {
    /// Any port, and packets whose ports cannot be seen.
    pub const ANY: Self = Self { start: 0, end: u16::MAX };
    /// Only packets whose ports cannot be seen (RFC 4301 OPAQUE; start 65535, end 0 on the wire).
    pub const OPAQUE: Self = Self { start: u16::MAX, end: 0 };
}

impl Selector {
    /// True when a packet with this key is meant.
    pub fn matches(&self, key: &FlowKey) -> bool {
        let _ = key;
        todo!("wire helper")
    }
}
