//! Steering of protected packets to cores by their first bytes.
//!
//! A replay window is written by one core, so all packets of a lane (an SA, or a Sub SA of EESP) go to the same one: the
//! SPI plus the Session ID ([`ipsec::home`]), modulo the number of workers. The kernel can compute that too, so that most packets arrive
//! where they belong; the others are handed over.

use wire::encap::NatT;
use wire::udp::UdpHeader;
use wire::{IpPacket, IpProto, SessionId};

use crate::Snapshot;

/// Destination of a packet from the outer side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Arrival {
    /// To the worker with this number, modulo the number of workers.
    Of(u32),
    /// Wherever it is: it is no packet of an SA with a replay window.
    Any,
    /// That is not known before it is whole.
    Fragment,
}

/// Reads it from the headers of `packet`; packets that are wrong are dropped wherever they are.
#[inline]
pub(crate) fn arrival(tables: &Snapshot, packet: &[u8]) -> Arrival {
    // The usual kind, without walking the headers: IPv4 without options, whole.
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

/// The same from what follows the IP headers.
#[inline]
fn owner(tables: &Snapshot, proto: IpProto, rest: &[u8]) -> Arrival {
    match proto {
        IpProto::ESP => word(rest, 0),
        IpProto::AH => word(rest, 4),
        IpProto::UDP => in_udp(tables, rest),
        proto if proto == tables.code_points.eesp_protocol => eesp(rest),
        _ => Arrival::Any,
    }
}

fn in_udp(tables: &Snapshot, datagram: &[u8]) -> Arrival {
    let Ok((udp, payload)) = UdpHeader::parse(datagram) else { return Arrival::Any };
    let port = udp.dst_port.get();
    if port == tables.code_points.psp_port {
        return if tables.psp_windows { word(payload, 4) } else { Arrival::Any };
    }
    if port != tables.code_points.nat_t_port {
        return Arrival::Any;
    }
    in_nat_t(payload, tables.eesp)
}

/// Number of the worker that a datagram on the NAT-T port belongs to, by its payload, modulo the number of workers; `None`
/// where any worker can take it. Sockets are steered by programs in the kernel that agree with this.
pub fn nat_t_owner(payload: &[u8], has_eesp: bool) -> Option<u32> {
    match in_nat_t(payload, has_eesp) {
        Arrival::Of(owner) => Some(owner),
        Arrival::Any | Arrival::Fragment => None,
    }
}

/// The same from the payload of a datagram on the NAT-T port. `has_eesp`: a first bit of 1 means EESP.
fn in_nat_t(payload: &[u8], has_eesp: bool) -> Arrival {
    match wire::encap::classify(payload, has_eesp) {
        NatT::Esp => word(payload, 0),
        NatT::Eesp => eesp(payload),
        _ => Arrival::Any,
    }
}

/// By SPI and Session ID, so that Sub SAs spread and neighbouring ones go to different workers.
fn eesp(header: &[u8]) -> Arrival {
    let Some(&[_, _, a, b, c, d, e, f]) = header.first_chunk() else { return Arrival::Any };
    Arrival::Of(ipsec::home(u32::from_be_bytes([c, d, e, f]), SessionId(u16::from_be_bytes([a, b]))))
}

fn word(bytes: &[u8], at: usize) -> Arrival {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(Arrival::Any, |spi| Arrival::Of(u32::from_be_bytes(*spi)))
}
