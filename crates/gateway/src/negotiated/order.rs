//! Which policy of a connection comes first: `priority`, then the narrower selectors, then the SA before its trap.

use std::net::IpAddr;

use ike::config::ChildConfig;
use wire::{AddrRange, PortRange, Selector};

/// Order of a policy without `priority` and with the widest selectors; each bit of a narrower one counts 1.
const AUTOMATIC_PRIORITY: u32 = 1 << 20;

/// Which of policies with the same selectors comes first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Order {
    /// What protects.
    Sa,
    /// What stands where nothing protects.
    Standing,
}

/// Place of a policy: less is first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Rank(u32, Order);

impl Rank {
    pub(super) fn new(config: &ChildConfig, selectors: &[Selector], order: Order) -> Self {
        let narrowest = selectors.iter().map(narrowness).max().unwrap_or(0);
        let automatic = AUTOMATIC_PRIORITY - narrowest.min(AUTOMATIC_PRIORITY - 1);
        Self(if config.priority == 0 { automatic } else { config.priority }, order)
    }
}

/// Bits that a selector fixes, those of an IPv4 address counted as of an IPv6 one.
pub(crate) fn narrowness(selector: &Selector) -> u32 {
    let addresses = |range: &AddrRange| {
        let bits = |addr: IpAddr| match addr {
            IpAddr::V4(addr) => u128::from(addr.to_bits()),
            IpAddr::V6(addr) => addr.to_bits(),
        };
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
