//! Negotiated traffic selectors as policies: the pairs of both sides, which policy comes first, and
//! which overlap.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::{AddrRange, PortRange, Selector, TrafficSelector};

use crate::config::ChildConfig;

/// Selectors that one policy may have: every local with every remote one. RFC 7296 allows 255 of
/// each, and the bound keeps one peer from filling the SPD.
pub const MAX_SELECTORS: usize = 1024;
/// Order of a policy without `priority` and with the widest selectors; each bit of a narrower one
/// counts 1.
const AUTOMATIC_PRIORITY: u32 = 1 << 20;

/// Every local selector with every remote one of the same family and protocol.
pub fn pairs(local: &[TrafficSelector], remote: &[TrafficSelector]) -> Vec<Selector> {
    let of_family = |ours: &TrafficSelector| {
        let ours = *ours;
        remote
            .iter()
            .filter(move |theirs| theirs.addrs.is_v6() == ours.addrs.is_v6())
            .filter_map(move |theirs| Selector::from_sides(ours, *theirs).ok())
    };
    local.iter().flat_map(of_family).take(MAX_SELECTORS).collect()
}

/// Order of a policy: less is first. `priority` of the section where it has one, otherwise the
/// narrower selectors.
pub fn precedence(config: &ChildConfig, selectors: &[Selector]) -> u32 {
    let narrowest = selectors.iter().map(specificity).max().unwrap_or(0);
    let automatic = AUTOMATIC_PRIORITY - narrowest.min(AUTOMATIC_PRIORITY - 1);
    if config.priority == 0 { automatic } else { config.priority }
}

/// Order of a section by its configured selectors; `dynamic` counts as one host.
pub(crate) fn section_precedence(config: &ChildConfig) -> u32 {
    let with = |dynamic: IpAddr| {
        let side = |list: &[crate::config::TsConfig]| list.iter().map(|ts| ts.resolve(dynamic)).collect::<Vec<_>>();
        pairs(&side(&config.local_ts), &side(&config.remote_ts))
    };
    let mut selectors = with(Ipv4Addr::UNSPECIFIED.into());
    // Explicit selectors occur in both lists. Only the narrowest one counts, so that duplicates
    // have no effect.
    selectors.extend(with(Ipv6Addr::UNSPECIFIED.into()));
    precedence(config, &selectors)
}

/// Bits that a selector fixes, those of an IPv4 address counted as of an IPv6 one.
pub fn specificity(selector: &Selector) -> u32 {
    let addresses = |range: &AddrRange| {
        let span = bits(range.end) - bits(range.start);
        let width = 128 - span.leading_zeros();
        if range.is_v6() { 128 - width } else { 4 * (32 - width.min(32)) }
    };
    let ports = |range: &PortRange| match range.end.checked_sub(range.start) {
        Some(span) => u16::BITS - (u16::BITS - span.leading_zeros()),
        None => u16::BITS,
    };
    let fixed = addresses(&selector.src) + addresses(&selector.dst);
    let ports = ports(&selector.src_ports) + ports(&selector.dst_ports);
    // Eight bits for the protocol, so that addresses decide before it and it before ports.
    fixed * 64 + if selector.proto.is_some() { 8 + ports } else { 0 }
}

/// True when some packet matches both.
pub(crate) fn overlap(a: &Selector, b: &Selector) -> bool {
    let addrs = |a: &AddrRange, b: &AddrRange| a.is_v6() == b.is_v6() && a.start <= b.end && b.start <= a.end;
    let opaque = |ports: &PortRange| [PortRange::ANY, PortRange::OPAQUE].contains(ports);
    // The start of OPAQUE is above its end, so the comparison of ranges never matches it.
    let ports = |a: &PortRange, b: &PortRange| (a.start.max(b.start) <= a.end.min(b.end)) || (opaque(a) && opaque(b));
    addrs(&a.src, &b.src)
        && addrs(&a.dst, &b.dst)
        && a.proto.zip(b.proto).is_none_or(|(a, b)| a == b)
        && ports(&a.src_ports, &b.src_ports)
        && ports(&a.dst_ports, &b.dst_ports)
}

/// An address as a number.
pub(crate) fn bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(addr) => u128::from(addr.to_bits()),
        IpAddr::V6(addr) => addr.to_bits(),
    }
}
