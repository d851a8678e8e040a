//! Traffic selectors (RFC 4301 §4.4.1.1).
//!
//! A person writes the two sides of a policy as text ([`TrafficSelector`], in `selector/text.rs`);
//! together they make a [`Selector`], which is what packets are held against.

mod text;

use std::net::IpAddr;

use crate::{FlowKey, IpProto};

pub use text::SelectorError;

/// An inclusive range of addresses of one family.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct AddrRange {
    /// First address.
    pub start: IpAddr,
    /// Last address, of the same family and not below `start`.
    pub end: IpAddr,
}

/// An inclusive range of ports. For ICMP the value is type × 256 + code (RFC 7296 §3.13.1).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PortRange {
    /// First port.
    pub start: u16,
    /// Last port; `start > end` never holds except for [`PortRange::OPAQUE`].
    pub end: u16,
}

/// One side of a policy (RFC 7296 §3.13.1): addresses, protocol, ports.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct TrafficSelector {
    /// Addresses of this side.
    pub addrs: AddrRange,
    /// Upper-layer protocol; `None` is any.
    pub proto: Option<IpProto>,
    /// Ports of this side, or ICMP type and code.
    pub ports: PortRange,
}

/// Packets that a policy matches.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
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

impl AddrRange {
    /// All IPv4 addresses.
    pub const ANY_V4: Self = Self {
        start: IpAddr::V4(std::net::Ipv4Addr::from_bits(0)),
        end: IpAddr::V4(std::net::Ipv4Addr::from_bits(u32::MAX)),
    };
    /// All IPv6 addresses.
    pub const ANY_V6: Self = Self {
        start: IpAddr::V6(std::net::Ipv6Addr::from_bits(0)),
        end: IpAddr::V6(std::net::Ipv6Addr::from_bits(u128::MAX)),
    };

    /// The range from `start` to `end`; `None` when they are of two families or in the wrong order.
    pub fn new(start: IpAddr, end: IpAddr) -> Option<Self> {
        // `IpAddr` orders every IPv4 address before every IPv6 one, so that the order alone would
        // permit a range over both families.
        (start.is_ipv4() == end.is_ipv4() && start <= end).then_some(Self { start, end })
    }

    /// The network of `prefix` bits around `addr`, ignoring its other bits; `None` if the family
    /// has fewer bits.
    pub fn from_cidr(addr: IpAddr, prefix: u8) -> Option<Self> {
        Some(match addr {
            IpAddr::V4(v4) => {
                // A shift by the full width is an overflow, which `checked_shl` reports. It occurs
                // for prefix 0, whose mask has no bits.
                let host = !(!0u32).checked_shl(32u32.checked_sub(prefix.into())?).unwrap_or(0);
                let bits = v4.to_bits();
                Self {
                    start: std::net::Ipv4Addr::from_bits(bits & !host).into(),
                    end: std::net::Ipv4Addr::from_bits(bits | host).into(),
                }
            }
            IpAddr::V6(v6) => {
                let host = !(!0u128).checked_shl(128u32.checked_sub(prefix.into())?).unwrap_or(0);
                let bits = v6.to_bits();
                Self {
                    start: std::net::Ipv6Addr::from_bits(bits & !host).into(),
                    end: std::net::Ipv6Addr::from_bits(bits | host).into(),
                }
            }
        })
    }

    /// The prefix length when the range is one network, otherwise `None`.
    pub fn prefix(&self) -> Option<u8> {
        let (start, end, width) = (bits(self.start), bits(self.end), if self.is_v6() { 128 } else { 32 });
        let host = start ^ end;
        // One network: the differing bits are a block of low bits, all of which are 0 in `start`.
        (host & host.wrapping_add(1) == 0 && start & host == 0)
            .then(|| (width - (u128::BITS - host.leading_zeros())) as u8)
    }

    /// True for IPv6.
    #[inline]
    pub fn is_v6(&self) -> bool {
        self.start.is_ipv6()
    }

    /// True when `addr` is of the family and in the range.
    #[inline]
    pub fn contains(&self, addr: IpAddr) -> bool {
        self.start.is_ipv4() == addr.is_ipv4() && self.start <= addr && addr <= self.end
    }

    /// Likewise for an address as [`FlowKey`] holds it.
    #[inline]
    fn contains_mapped(&self, addr: &[u8; 16], v6: bool) -> bool {
        match (self.start, self.end) {
            (IpAddr::V4(start), IpAddr::V4(end)) => {
                // The low 32 bits of a mapped address are the IPv4 address. `v6` excludes IPv6
                // packets with mapped addresses.
                let addr = u128::from_be_bytes(*addr) as u32;
                !v6 && start.to_bits() <= addr && addr <= end.to_bits()
            }
            (IpAddr::V6(start), IpAddr::V6(end)) => {
                let addr = u128::from_be_bytes(*addr);
                v6 && start.to_bits() <= addr && addr <= end.to_bits()
            }
            _ => false,
        }
    }
}

fn bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

impl PortRange {
    /// Any port, and packets with opaque ports.
    pub const ANY: Self = Self { start: 0, end: u16::MAX };
    /// Only packets with opaque ports (RFC 4301 OPAQUE; start 65535, end 0 on the wire).
    pub const OPAQUE: Self = Self { start: u16::MAX, end: 0 };

    /// The range of one port.
    #[inline]
    pub const fn single(port: u16) -> Self {
        Self { start: port, end: port }
    }

    /// True when a port that can be seen is in the range; never for [`Self::OPAQUE`].
    #[inline]
    pub const fn contains(&self, port: u16) -> bool {
        self.start <= port && port <= self.end
    }

    /// True when a packet with this port, or with a port that cannot be seen, is meant.
    #[inline]
    pub fn matches(&self, port: u16, opaque: bool) -> bool {
        // ANY includes OPAQUE (RFC 4301). A narrower range must not match a fragment, whose ports
        // could be any.
        if opaque { *self == Self::ANY || *self == Self::OPAQUE } else { self.contains(port) }
    }
}

impl TrafficSelector {
    /// Every packet with an address in `addrs`.
    pub const fn any(addrs: AddrRange) -> Self {
        Self { addrs, proto: None, ports: PortRange::ANY }
    }
}

impl Selector {
    /// Every packet between two ranges of addresses.
    pub const fn between(src: AddrRange, dst: AddrRange) -> Self {
        Self { src, dst, proto: None, src_ports: PortRange::ANY, dst_ports: PortRange::ANY }
    }

    /// Joins the two sides of a policy. One of them may leave the protocol, or the type of an ICMP
    /// message, to the other.
    ///
    /// # Errors
    /// [`SelectorError`] when the sides are of two address families, name two protocols or two
    /// message types.
    pub fn from_sides(src: TrafficSelector, dst: TrafficSelector) -> Result<Self, SelectorError> {
        if src.addrs.is_v6() != dst.addrs.is_v6() {
            return Err(SelectorError::SideFamilies { src, dst });
        }
        let proto = match (src.proto, dst.proto) {
            (Some(a), Some(b)) if a != b => return Err(SelectorError::SideProtocols { src, dst }),
            (a, b) => a.or(b),
        };
        let (src_ports, dst_ports) = match proto {
            Some(proto) if proto.has_message_type() => {
                let kinds = match (src.ports, dst.ports) {
                    (PortRange::ANY, kinds) | (kinds, PortRange::ANY) => kinds,
                    (a, b) if a == b => a,
                    _ => return Err(SelectorError::SideTypes { src, dst }),
                };
                // Flow keys have the type as source port and 0 as destination port.
                (kinds, PortRange::ANY)
            }
            _ => (src.ports, dst.ports),
        };
        Ok(Self { src: src.addrs, dst: dst.addrs, proto, src_ports, dst_ports })
    }

    /// The two sides, source first. The type of an ICMP message is in both, as in RFC 7296 §3.13.1.
    pub fn sides(&self) -> (TrafficSelector, TrafficSelector) {
        let dst_ports = if self.has_message_type() { self.src_ports } else { self.dst_ports };
        let src = TrafficSelector { addrs: self.src, proto: self.proto, ports: self.src_ports };
        (src, TrafficSelector { addrs: self.dst, proto: self.proto, ports: dst_ports })
    }

    /// True when a packet with this key is meant.
    #[inline]
    pub fn matches(&self, key: &FlowKey) -> bool {
        self.dst.contains_mapped(&key.dst, key.v6)
            && self.src.contains_mapped(&key.src, key.v6)
            && self.proto.is_none_or(|proto| proto == key.proto)
            && self.dst_ports.matches(key.dst_port, key.opaque_ports)
            && self.src_ports.matches(key.src_port, key.opaque_ports)
    }

    /// The selector of packets in the reverse direction. The type of an ICMP message is not
    /// reversed, so a selector for echo requests stays one for echo requests.
    pub fn reversed(&self) -> Self {
        let mut reversed = Self { src: self.dst, dst: self.src, ..*self };
        if !self.has_message_type() {
            (reversed.src_ports, reversed.dst_ports) = (self.dst_ports, self.src_ports);
        }
        reversed
    }

    fn has_message_type(&self) -> bool {
        self.proto.is_some_and(IpProto::has_message_type)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn side(text: &str) -> TrafficSelector {
        text.parse().expect("a good selector")
    }

    fn selector(src: &str, dst: &str) -> Selector {
        Selector::from_sides(side(src), side(dst)).expect("sides that agree")
    }

    fn key(src: &str, dst: &str, proto: IpProto, src_port: u16, dst_port: u16) -> FlowKey {
        FlowKey::new(src.parse().unwrap(), dst.parse().unwrap(), proto, src_port, dst_port)
    }

    #[test]
    fn addresses_protocol_and_ports_all_count() {
        let web = selector("10.1.0.0/16[tcp]", "10.2.0.5[tcp/80-90]");
        let good = key("10.1.2.3", "10.2.0.5", IpProto::TCP, 5, 80);
        assert!(web.matches(&good));
        assert!(web.matches(&key("10.1.255.255", "10.2.0.5", IpProto::TCP, 5, 90)));
        assert!(!web.matches(&key("10.2.0.0", "10.2.0.5", IpProto::TCP, 5, 80)));
        assert!(!web.matches(&key("10.1.2.3", "10.2.0.6", IpProto::TCP, 5, 80)));
        assert!(!web.matches(&key("10.1.2.3", "10.2.0.5", IpProto::UDP, 5, 80)));
        assert!(!web.matches(&key("10.1.2.3", "10.2.0.5", IpProto::TCP, 5, 91)));
        assert!(!web.matches(&FlowKey { opaque_ports: true, ..good }));
        assert!(web.reversed().matches(&good.reversed()));
        assert!(!web.reversed().matches(&good));
    }

    #[test]
    fn opaque_and_any_are_told_apart() {
        let seen = key("10.0.0.1", "10.0.0.2", IpProto::UDP, 0, 0);
        let opaque = FlowKey { opaque_ports: true, ..seen };
        let holds = |range: PortRange| (range.matches(0, false), range.matches(0, true));
        assert_eq!(holds(PortRange::ANY), (true, true));
        assert_eq!(holds(PortRange::OPAQUE), (false, true));
        assert_eq!(holds(PortRange::single(0)), (true, false));
        assert_eq!(holds(PortRange { start: 0, end: 65534 }), (true, false));
        assert!(!PortRange::OPAQUE.matches(u16::MAX, false));
        let later = selector("0.0.0.0/0[udp/opaque]", "0.0.0.0/0[udp/opaque]");
        assert_eq!((later.matches(&seen), later.matches(&opaque)), (false, true));
    }

    #[test]
    fn families_do_not_mix() {
        let v4 = Selector::between(AddrRange::ANY_V4, AddrRange::ANY_V4);
        let v6 = Selector::between(AddrRange::ANY_V6, AddrRange::ANY_V6);
        let four = key("1.2.3.4", "5.6.7.8", IpProto::UDP, 1, 2);
        let mapped = key("::ffff:1.2.3.4", "::ffff:5.6.7.8", IpProto::UDP, 1, 2);
        assert_eq!((v4.matches(&four), v6.matches(&four)), (true, false));
        assert_eq!((v4.matches(&mapped), v6.matches(&mapped)), (false, true));
        assert!(!AddrRange::ANY_V4.contains("::1".parse().unwrap()));
        assert!(AddrRange::new([1, 2, 3, 4].into(), "::1".parse().unwrap()).is_none());
        assert!(AddrRange::new([1, 2, 3, 4].into(), [1, 2, 3, 3].into()).is_none());
        assert!(matches!(
            Selector::from_sides(side("10.0.0.0/8"), side("::/0")),
            Err(SelectorError::SideFamilies { .. })
        ));
    }

    #[test]
    fn a_message_type_stays_where_it_is() {
        let echo = selector("10.1.0.0/16[icmp/8]", "10.2.0.0/16");
        assert_eq!(echo, selector("10.1.0.0/16", "10.2.0.0/16[icmp/8]"));
        assert_eq!(echo, selector("10.1.0.0/16[icmp/8]", "10.2.0.0/16[icmp/8]"));
        let request = key("10.1.0.1", "10.2.0.1", IpProto::ICMP, 0x0800, 0);
        assert!(echo.matches(&request));
        assert!(!echo.matches(&key("10.1.0.1", "10.2.0.1", IpProto::ICMP, 0, 0)));
        assert!(echo.reversed().matches(&request.reversed()));
        assert!(matches!(
            Selector::from_sides(side("10.1.0.0/16[icmp/8]"), side("10.2.0.0/16[icmp/0]")),
            Err(SelectorError::SideTypes { .. })
        ));
        assert!(matches!(
            Selector::from_sides(side("10.1.0.0/16[icmp]"), side("10.2.0.0/16[tcp]")),
            Err(SelectorError::SideProtocols { .. })
        ));
    }

    #[test]
    fn networks_have_their_prefix() {
        let prefix = |text: &str| side(text).addrs.prefix();
        assert_eq!(prefix("10.0.0.0-10.255.255.255"), Some(8));
        assert_eq!(prefix("10.0.0.1-10.0.0.2"), None);
        assert_eq!(prefix("10.0.0.1-10.0.0.1"), Some(32));
        assert_eq!((AddrRange::ANY_V4.prefix(), AddrRange::ANY_V6.prefix()), (Some(0), Some(0)));
        assert_eq!(AddrRange::from_cidr([1, 2, 3, 4].into(), 33), None);
        assert_eq!(AddrRange::from_cidr([9; 16].into(), 129), None);
    }

    proptest! {
        #[test]
        fn a_network_holds_what_shares_its_prefix(addr: u32, other: u32, prefix in 0u8..=32) {
            let net = AddrRange::from_cidr(std::net::Ipv4Addr::from(addr).into(), prefix).unwrap();
            let same = (0..prefix).all(|bit| (addr ^ other) >> (31 - bit) & 1 == 0);
            prop_assert_eq!(net.contains(std::net::Ipv4Addr::from(other).into()), same);
            prop_assert_eq!(net.prefix(), Some(prefix));
        }

        #[test]
        fn matching_is_membership_on_every_field(
            a: u128, b: u128, addr: u128, v6: bool, start: u16, end: u16, port: u16,
        ) {
            let ip = |bits: u128| if v6 { IpAddr::from(bits.to_be_bytes()) } else { IpAddr::from((bits as u32).to_be_bytes()) };
            let (lo, hi) = (ip(a).min(ip(b)), ip(a).max(ip(b)));
            let range = AddrRange::new(lo, hi).unwrap();
            let ports = PortRange { start: start.min(end), end: start.max(end) };
            let selector = Selector { src: range, dst: range, proto: None, src_ports: ports, dst_ports: PortRange::ANY };
            for addr in [addr, a, b, a.wrapping_add(1), b.wrapping_sub(1)].map(ip) {
                let inside = lo <= addr && addr <= hi;
                prop_assert_eq!(range.contains(addr), inside);
                let key = FlowKey::new(addr, lo, IpProto::UDP, port, 0);
                prop_assert_eq!(selector.matches(&key), inside && ports.start <= port && port <= ports.end);
                prop_assert_eq!(selector.reversed().matches(&key.reversed()), selector.matches(&key));
            }
        }
    }
}
