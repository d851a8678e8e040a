//! Steering of protected packets to cores by their first bytes.
//!
//! A replay window is written by one core, so all packets of a lane (an SA, or a Sub SA of EESP) go
//! to the same one: the SPI plus the Session ID ([`ipsec::owner_core`]), modulo the number of
//! workers. The kernel computes the same value, so that most packets arrive at the right core; the
//! others are handed over.

use ipsec::{Protocol, owner_of};
use wire::udp::UdpHeader;
use wire::{IpPacket, IpProto};

use crate::Snapshot;

/// Destination of a packet from the outer side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Arrival {
    /// To the worker with this number, modulo the number of workers.
    Of(u32),
    /// Any worker: the packet belongs to no SA with a replay window.
    Any,
    /// Unknown before reassembly.
    Fragment,
}

impl Arrival {
    fn of(owner: Option<u32>) -> Self {
        owner.map_or(Self::Any, Self::Of)
    }
}

/// Determines the destination from the headers of `packet`. Any worker may drop an invalid packet.
#[inline]
pub(crate) fn arrival(tables: &Snapshot, packet: &[u8]) -> Arrival {
    // Fast path without a walk over the headers: unfragmented IPv4 without options.
    // 36 bytes reach the SPI of EESP and PSP in UDP. The mask 0x3f leaves out DF.
    if let Some(head) = packet.first_chunk::<36>()
        && head[0] == 0x45
        && (head[6] & 0x3f, head[7]) == (0, 0)
    {
        return owner(tables, IpProto(head[9]), &packet[20..]);
    }
    match IpPacket::parse(packet) {
        Ok(ip) if ip.fragment.is_some() => Arrival::Fragment,
        Ok(ip) => owner(tables, ip.upper, &packet[ip.upper_at..]),
        Err(_) => Arrival::Any,
    }
}

/// Determines the destination from the bytes after the IP headers.
#[inline]
fn owner(tables: &Snapshot, proto: IpProto, rest: &[u8]) -> Arrival {
    if proto == IpProto::UDP {
        return in_udp(tables, rest);
    }
    Arrival::of(Protocol::of_ip(proto, &tables.code_points).and_then(|protocol| owner_of(protocol, rest)))
}

fn in_udp(tables: &Snapshot, datagram: &[u8]) -> Arrival {
    let Ok((udp, payload)) = UdpHeader::parse(datagram) else { return Arrival::Any };
    let port = udp.dst_port.get();
    if port == tables.code_points.psp_port {
        return if tables.psp_windows { Arrival::of(owner_of(Protocol::Psp, payload)) } else { Arrival::Any };
    }
    if port != tables.code_points.nat_t_port {
        return Arrival::Any;
    }
    Arrival::of(nat_t_owner(payload, tables.eesp))
}

/// Returns the number, modulo the number of workers, of the worker for a datagram on the NAT-T
/// port; `None` if any worker may process it. The BPF programs that select a socket must compute
/// the same value; otherwise each packet is handed over between workers. `has_eesp`: a first bit of
/// 1 means EESP.
#[inline]
pub fn nat_t_owner(payload: &[u8], has_eesp: bool) -> Option<u32> {
    owner_of(Protocol::in_nat_t(payload, has_eesp).ok()?, payload)
}
