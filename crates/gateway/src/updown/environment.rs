//! Variables of an updown command: names and values of strongSwan's plugin of that name.

use std::net::IpAddr;

use ike::config::ChildMode;
use ike::proposal::ChildProtocol;
use ike::{ChildView, IkeView};
use wire::{IpProto, PortRange, TrafficSelector};

/// Pairs of selectors for which a command runs; a Child SA with more is reported by
/// `PLUTO_PAIRS_OMITTED`.
const PAIRS_MAX: usize = 256;
/// Length of a value in bytes. Identities of a peer may be longer.
const VALUE_MAX: usize = 1024;

/// Variables for each pair of selectors of a Child SA; `PLUTO_VERB` has the value for `up`.
pub(super) fn of(ike: &IkeView<'_>, child: &ChildView<'_>) -> Vec<Vec<(String, String)>> {
    let all: Vec<(&TrafficSelector, &TrafficSelector)> = child
        .local_ts
        .iter()
        .flat_map(|local| child.remote_ts.iter().map(move |remote| (local, remote)))
        .filter(|(local, remote)| belong(local, remote))
        .collect();
    let omitted = all.len().saturating_sub(PAIRS_MAX);
    let one = |(local, remote): &(&TrafficSelector, &TrafficSelector)| {
        let mut variables = variables(ike, child, local, remote);
        if omitted > 0 {
            variables.push(("PLUTO_PAIRS_OMITTED".into(), omitted.to_string()));
        }
        variables
    };
    all.iter().take(PAIRS_MAX).map(one).collect()
}

/// Both are of one family, and of one protocol unless a side has any.
fn belong(local: &TrafficSelector, remote: &TrafficSelector) -> bool {
    local.addrs.start.is_ipv6() == remote.addrs.start.is_ipv6()
        && (local.proto == remote.proto || local.proto.is_none() || remote.proto.is_none())
}

fn variables(
    ike: &IkeView<'_>,
    child: &ChildView<'_>,
    local: &TrafficSelector,
    remote: &TrafficSelector,
) -> Vec<(String, String)> {
    let config = child.config;
    let (me, peer) = (ike.path.local.ip(), ike.path.remote.ip());
    let host = local.addrs.start == me && local.addrs.end == me;
    let v6 = if local.addrs.start.is_ipv6() { "-v6" } else { "" };
    let id = |id: Option<&ike::identity::Identity>| id.map_or_else(|| "%any".to_owned(), ToString::to_string);
    let protocol = |selector: &TrafficSelector| selector.proto.map_or(0, |proto| proto.0).to_string();
    let reqid = if config.reqid == 0 { child.id.0 } else { config.reqid };
    let mut variables: Vec<(String, String)> = Vec::with_capacity(32);
    let mut set = |name: &str, value: String| variables.push((name.to_owned(), harmless(&value)));
    set("PLUTO_VERSION", "1.1".into());
    set("PLUTO_VERB", format!("up-{}{v6}", if host { "host" } else { "client" }));
    set("PLUTO_CONNECTION", config.name.clone());
    set("PLUTO_REQID", reqid.to_string());
    set(
        "PLUTO_PROTO",
        match child.suite.protocol {
            ChildProtocol::Esp => "esp",
            ChildProtocol::Ah => "ah",
            ChildProtocol::Eesp => "eesp",
        }
        .into(),
    );
    set("PLUTO_UNIQUEID", ike.id.0.to_string());
    set("PLUTO_ME", me.to_string());
    set("PLUTO_MY_ID", id(ike.local_id));
    set("PLUTO_MY_CLIENT", network(local));
    set("PLUTO_MY_PORT", port(local, remote, true));
    set("PLUTO_MY_PROTOCOL", protocol(local));
    set("PLUTO_PEER", peer.to_string());
    set("PLUTO_PEER_ID", id(ike.remote_id));
    set("PLUTO_PEER_CLIENT", network(remote));
    set("PLUTO_PEER_PORT", port(remote, local, false));
    set("PLUTO_PEER_PROTOCOL", protocol(remote));
    if let Some(name) = ike.eap_name {
        set("PLUTO_XAUTH_ID", name.to_owned());
    }
    let mine: Vec<IpAddr> = ike.virtual_local.iter().map(|address| address.addr).collect();
    let theirs: Vec<IpAddr> = ike.virtual_remote.iter().map(|leased| leased.addr).collect();
    for (side, addresses) in [("MY", &mine), ("PEER", &theirs)] {
        if let Some(first) = addresses.first() {
            set(&format!("PLUTO_{side}_SOURCEIP"), first.to_string());
        }
        numbered(&format!("PLUTO_{side}_SOURCEIP"), addresses, &mut set);
    }
    let servers: Vec<IpAddr> = ike.virtual_local.iter().flat_map(|address| &address.dns).copied().collect();
    numbered("PLUTO_DNS", &servers, &mut set);
    if child.encap {
        set("PLUTO_UDP_ENC", ike.path.remote.port().to_string());
    }
    if config.hostaccess {
        set("PLUTO_HOST_ACCESS", "1".into());
    }
    set(
        "WEIR_MODE",
        match child.mode {
            ChildMode::Transport => "transport",
            ChildMode::Beet => "beet",
            ChildMode::Iptfs => "iptfs",
            _ => "tunnel",
        }
        .into(),
    );
    variables
}

/// `NAME4_1`, `NAME4_2`, `NAME6_1`: addresses by family, counted from 1.
fn numbered(name: &str, addresses: &[IpAddr], set: &mut impl FnMut(&str, String)) {
    for (family, v6) in [("4", false), ("6", true)] {
        for (i, address) in addresses.iter().filter(|address| address.is_ipv6() == v6).enumerate() {
            set(&format!("{name}{family}_{}", i + 1), address.to_string());
        }
    }
}

/// The smallest network that contains the selector's addresses.
fn network(selector: &TrafficSelector) -> String {
    let bits = |addr: IpAddr| match addr {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    };
    let width = if selector.addrs.start.is_ipv6() { 128 } else { 32 };
    let (start, end) = (bits(selector.addrs.start), bits(selector.addrs.end));
    let prefix = (start ^ end).leading_zeros().min(width);
    let base = if prefix == 0 { 0 } else { start & (u128::MAX << (128 - prefix)) };
    let base = match selector.addrs.start {
        IpAddr::V4(_) => IpAddr::V4(((base >> 96) as u32).into()),
        IpAddr::V6(_) => IpAddr::V6(base.into()),
    };
    format!("{base}/{prefix}")
}

/// Port or range of ports as iptables takes it, 0 for any. For ICMP the type as the port of this
/// side and the code as the peer's.
fn port(of: &TrafficSelector, other: &TrafficSelector, local: bool) -> String {
    let icmp = [of.proto, other.proto].iter().flatten().any(|proto| matches!(*proto, IpProto::ICMP | IpProto::ICMPV6));
    if icmp {
        let ports = if of.ports == PortRange::ANY { other.ports } else { of.ports };
        let [kind, code] = ports.start.to_be_bytes();
        return if ports == PortRange::ANY { "0".into() } else { if local { kind } else { code }.to_string() };
    }
    match of.ports {
        PortRange::ANY | PortRange::OPAQUE => "0".into(),
        ports if ports.start == ports.end => ports.start.to_string(),
        ports => format!("{}:{}", ports.start, ports.end),
    }
}

/// A value without control characters, of bounded length: identities come from peers, and scripts
/// log them.
fn harmless(value: &str) -> String {
    let mut text: String = value.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    while text.len() > VALUE_MAX {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ts(addrs: &str) -> TrafficSelector {
        let (start, end) = addrs.split_once('-').unwrap_or((addrs, addrs));
        TrafficSelector::any(wire::AddrRange { start: start.parse().unwrap(), end: end.parse().unwrap() })
    }

    #[test]
    fn networks_contain_their_ranges() {
        for (range, there) in [
            ("10.1.0.0-10.1.0.255", "10.1.0.0/24"),
            ("10.1.0.7", "10.1.0.7/32"),
            ("0.0.0.0-255.255.255.255", "0.0.0.0/0"),
            ("10.0.0.3-10.0.0.4", "10.0.0.0/29"),
            ("::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::/0"),
            ("2001:db8::-2001:db8::ffff", "2001:db8::/112"),
        ] {
            assert_eq!(network(&ts(range)), there);
        }
    }

    #[test]
    fn ports_are_those_of_iptables() {
        let with = |proto, start, end| TrafficSelector {
            proto: Some(proto),
            ports: PortRange { start, end },
            ..ts("10.1.0.0-10.1.0.255")
        };
        let any = ts("10.2.0.0-10.2.0.255");
        assert_eq!(port(&any, &any, true), "0");
        assert_eq!(port(&with(IpProto::TCP, 22, 22), &any, true), "22");
        assert_eq!(port(&with(IpProto::UDP, 5000, 5010), &any, true), "5000:5010");
        let echo = with(IpProto::ICMP, 0x0800, 0x0800);
        assert_eq!((port(&echo, &any, true), port(&any, &echo, false)), ("8".into(), "0".into()));
    }

    #[test]
    fn what_a_peer_chose_cannot_end_a_line_or_fill_memory() {
        assert_eq!(harmless("CN=a\nPLUTO_VERB=up\0\u{1b}[2J"), "CN=a?PLUTO_VERB=up??[2J");
        assert_eq!(harmless("$(reboot) `id` ';'"), "$(reboot) `id` ';'", "quoting is not needed in an environment");
        assert!(harmless(&"ü".repeat(4000)).len() <= VALUE_MAX);
    }

    #[test]
    fn selectors_of_two_families_or_protocols_are_no_pair() {
        assert!(belong(&ts("10.1.0.1"), &ts("10.2.0.1")) && !belong(&ts("10.1.0.1"), &ts("2001:db8::1")));
        let of = |proto| TrafficSelector { proto: Some(proto), ..ts("10.1.0.1") };
        assert!(!belong(&of(IpProto::TCP), &of(IpProto::UDP)) && belong(&of(IpProto::TCP), &ts("10.1.0.1")));
    }
}
