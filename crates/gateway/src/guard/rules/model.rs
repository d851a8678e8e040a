//! Rules of the guard applied to packets, as nf_tables does it: for tests and simulations.

#[cfg(feature = "simulation")]
mod table;

use std::net::IpAddr;

use super::super::nft::{Expr, Family, Field};
#[cfg(feature = "simulation")]
pub(crate) use table::Table;

/// A packet that arrives or leaves outside of the TUN device.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) proto: u8,
    /// Bytes of the transport header; none in a later fragment.
    pub(crate) transport: Vec<u8>,
    pub(crate) fragment: bool,
    pub(crate) hop_limit: u8,
    /// The destination is an address of this host.
    pub(crate) for_host: bool,
}

impl Packet {
    fn family(&self) -> Family {
        if self.dst.is_ipv6() { Family::V6 } else { Family::V4 }
    }
}

/// Returns whether a packet meets an expression of a rule; panics on one that this model does not
/// know.
pub(super) fn is_met(expression: &Expr, packet: &Packet) -> bool {
    let transport = |offset: u32, length: usize| {
        let whole = Some(&packet.transport).filter(|_| !packet.fragment);
        whole.and_then(|bytes| bytes.get(offset as usize..offset as usize + length))
    };
    let port = |offset| transport(offset, 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    match expression {
        Expr::Is(of) => *of == packet.family(),
        Expr::Protocol(proto) => *proto == packet.proto,
        Expr::Addresses(Field::Source(_), range) => range.contains(packet.src),
        Expr::Addresses(_, range) => range.contains(packet.dst),
        Expr::Ports(field, range) => {
            let port = port(if *field == Field::SourcePort { 0 } else { 2 });
            port.is_some_and(|port| (range.start..=range.end).contains(&port))
        }
        Expr::Transport { offset, mask, value } => transport(*offset, mask.len())
            .is_some_and(|bytes| bytes.iter().zip(mask).map(|(byte, mask)| byte & mask).eq(value.iter().copied())),
        Expr::MessageType(first, last) => transport(0, 1).is_some_and(|bytes| (*first..=*last).contains(&bytes[0])),
        Expr::HopLimit255 => packet.hop_limit == 255,
        Expr::LaterFragment(_) => packet.fragment,
        Expr::FragmentOf(proto) => packet.fragment && packet.proto == *proto,
        Expr::ForThisHost => packet.for_host,
        // Every packet arrives from outside.
        Expr::NoRouteBack | Expr::Count(_) => true,
        other => panic!("{other:?} is unknown to this model"),
    }
}

/// The verdict of the first rule that a packet meets.
#[cfg(test)]
pub(super) fn verdict(rules: &[Vec<Expr>], packet: &Packet) -> Option<Expr> {
    let met = rules.iter().find(|rule| {
        let (_, matches) = rule.split_last().expect("a verdict");
        matches.iter().all(|expression| is_met(expression, packet))
    });
    met.and_then(|rule| rule.last().cloned())
}
