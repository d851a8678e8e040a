//! rtnetlink messages for one routing table and the rule that leads to it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::AddrRange;

use crate::netlink::{Message, NLM_F_CREATE, NLM_F_REPLACE, Netlink, attribute, number};

/// Messages of rtnetlink.
const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWRULE: u16 = 32;
pub(super) const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;
const NLM_F_EXCL: u16 = 0x200;
/// Attributes of routes and rules.
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_TABLE: u16 = 15;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_FWMASK: u16 = 16;
const FRA_TABLE: u16 = 15;
/// Types of routes.
const RTN_UNICAST: u8 = 1;
const RTN_UNREACHABLE: u8 = 7;
const RTN_THROW: u8 = 9;
/// RTPROT_STATIC: routing daemons leave such routes alone.
const PROTOCOL: u8 = 4;
const SCOPE_LINK: u8 = 253;
/// The rule applies to packets that do not match (FIB_RULE_INVERT).
const INVERT: u32 = 0x2;
const TO_TABLE: u8 = 1;
/// Bytes of `rtmsg` and of `fib_rule_hdr`.
pub(super) const FIXED: usize = 12;

/// Metric of the route that is left when the device is gone. One better than the worst, which
/// `ip -6 route flush` spares for a default route.
const LAST_METRIC: u32 = u32::MAX - 1;
/// Networks that one range of addresses may be cut into: `::1` to the last but one needs as many.
pub(super) const MAX_NETWORKS: usize = 254;

/// An address with its prefix length.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Network {
    pub(crate) addr: IpAddr,
    pub(crate) prefix: u8,
}

impl Network {
    pub(crate) fn range(&self) -> Option<AddrRange> {
        AddrRange::from_cidr(self.addr, self.prefix)
    }

    pub(super) fn is_v6(&self) -> bool {
        self.addr.is_ipv6()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

/// Target of a route.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Target {
    /// Into the TUN device, from this source address; without the device the network is
    /// unreachable.
    Tunnel(Option<IpAddr>),
    /// To the tables after this one.
    Throw,
}

/// One route that the kernel has in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    pub(super) network: Network,
    /// Interface of a route that leads somewhere.
    pub(super) interface: Option<u32>,
}

pub(super) fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    }
}

pub(super) fn address(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(value).ok().map(|v6| Ipv6Addr::from(v6).into())
}

pub(super) const fn family(v6: bool) -> u8 {
    (if v6 { libc::AF_INET6 } else { libc::AF_INET }) as u8
}

fn route(message: u16, flags: u16, table: u32, network: Network, kind: u8, scope: u8) -> Message {
    let fixed = [family(network.is_v6()), network.prefix, 0, 0, 0, PROTOCOL, scope, kind, 0, 0, 0, 0];
    let mut request = Message::new(message, flags, &fixed);
    request.ne32(RTA_TABLE, table).attr(RTA_DST, &octets(network.addr));
    request
}

/// Makes a network unreachable where no other route of the table leads to it.
pub(super) fn add_unreachable(table: u32, network: Network) -> Message {
    let flags = NLM_F_CREATE | NLM_F_REPLACE;
    let mut request = route(RTM_NEWROUTE, flags, table, network, RTN_UNREACHABLE, 0);
    request.ne32(RTA_PRIORITY, LAST_METRIC);
    request
}

pub(super) fn remove_unreachable(table: u32, network: Network) -> Message {
    let mut request = route(RTM_DELROUTE, 0, table, network, RTN_UNREACHABLE, 0);
    request.ne32(RTA_PRIORITY, LAST_METRIC);
    request
}

/// Adds a route of a network to `target`.
pub(super) fn add(table: u32, device: u32, network: Network, target: Target) -> Message {
    let flags = NLM_F_CREATE | NLM_F_REPLACE;
    match target {
        Target::Throw => route(RTM_NEWROUTE, flags, table, network, RTN_THROW, 0),
        Target::Tunnel(source) => {
            let scope = if network.is_v6() { 0 } else { SCOPE_LINK };
            let mut request = route(RTM_NEWROUTE, flags, table, network, RTN_UNICAST, scope);
            request.ne32(RTA_OIF, device);
            if let Some(source) = source {
                request.attr(RTA_PREFSRC, &octets(source));
            }
            request
        }
    }
}

pub(super) fn remove(table: u32, device: u32, network: Network, target: Target) -> Message {
    match target {
        Target::Throw => route(RTM_DELROUTE, 0, table, network, RTN_THROW, 0),
        Target::Tunnel(_) => {
            // Scope "nowhere" matches every scope.
            let mut request = route(RTM_DELROUTE, 0, table, network, RTN_UNICAST, 255);
            request.ne32(RTA_OIF, device);
            request
        }
    }
}

/// A rule for packets without `mark`; its preference is the number of the table.
pub(super) fn rule(add: bool, v6: bool, table: u32, mark: u32) -> Message {
    let mut fixed = [0; FIXED];
    fixed[0] = family(v6);
    fixed[7] = TO_TABLE;
    fixed[8..].copy_from_slice(&INVERT.to_ne_bytes());
    let (message, flags) = if add { (RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL) } else { (RTM_DELRULE, 0) };
    let mut request = Message::new(message, flags, &fixed);
    request.ne32(FRA_PRIORITY, table).ne32(FRA_TABLE, table);
    request.ne32(FRA_FWMARK, mark).ne32(FRA_FWMASK, u32::MAX);
    request
}

/// Marks of the rules with the preference of the table.
pub(super) fn marks(netlink: &mut Netlink, v6: bool, table: u32) -> io::Result<Vec<u32>> {
    let mut fixed = [0; FIXED];
    fixed[0] = family(v6);
    let mut marks = Vec::new();
    netlink.dump(Message::new(RTM_GETRULE, 0, &fixed), |rule| {
        let Some(attributes) = rule.body.get(FIXED..) else { return };
        if attribute(attributes, FRA_PRIORITY).and_then(number) == Some(table) {
            marks.push(attribute(attributes, FRA_FWMARK).and_then(number).unwrap_or_default());
        }
    })?;
    Ok(marks)
}

/// Table that the body of a notification about a route names.
pub(super) fn table_of_route(body: &[u8]) -> Option<u32> {
    attribute(body.get(FIXED..)?, RTA_TABLE).and_then(number)
}

/// Preference of the rule in the body of a notification.
pub(super) fn preference_of_rule(body: &[u8]) -> Option<u32> {
    attribute(body.get(FIXED..)?, FRA_PRIORITY).and_then(number)
}

/// Routes of the table.
pub(super) fn list(netlink: &mut Netlink, v6: bool, table: u32) -> io::Result<Vec<Listed>> {
    let mut fixed = [0; FIXED];
    fixed[0] = family(v6);
    let mut routes = Vec::new();
    netlink.dump(Message::new(RTM_GETROUTE, 0, &fixed), |route| {
        let (Some(&prefix), Some(&kind), Some(attributes)) =
            (route.body.get(1), route.body.get(7), route.body.get(FIXED..))
        else {
            return;
        };
        if attribute(attributes, RTA_TABLE).and_then(number) != Some(table) {
            return;
        }
        let any: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let addr = attribute(attributes, RTA_DST).and_then(address).unwrap_or(any);
        let interface = attribute(attributes, RTA_OIF).and_then(number).filter(|_| kind == RTN_UNICAST);
        routes.push(Listed { network: Network { addr, prefix }, interface });
    })?;
    Ok(routes)
}

/// A range as networks, in ascending order.
pub(crate) fn networks(range: &AddrRange) -> Vec<Network> {
    let v6 = range.is_v6();
    let width: u32 = if v6 { 128 } else { 32 };
    let bits = |addr: IpAddr| match addr {
        IpAddr::V4(addr) => u128::from(addr.to_bits()),
        IpAddr::V6(addr) => addr.to_bits(),
    };
    let (mut start, end) = (bits(range.start), bits(range.end));
    let mut networks = Vec::new();
    while start <= end && networks.len() < MAX_NETWORKS {
        let aligned = if start == 0 { width } else { start.trailing_zeros().min(width) };
        let span = end - start;
        // Largest power of two that fits into the rest.
        let fits = if span == u128::MAX { width } else { (127 - (span + 1).leading_zeros()).min(width) };
        let host = aligned.min(fits);
        let addr =
            if v6 { IpAddr::from(Ipv6Addr::from_bits(start)) } else { IpAddr::from(Ipv4Addr::from_bits(start as u32)) };
        networks.push(Network { addr, prefix: (width - host) as u8 });
        if host == 128 {
            break;
        }
        match start.checked_add(1 << host) {
            Some(next) => start = next,
            None => break,
        }
    }
    networks
}
