//! Settings that are allowed and seldom meant.

use std::net::IpAddr;

use ike::config::{ChildMode, Connection, Host, TsConfig};
use wire::AddrRange;

use crate::config::Config;
use crate::routes;

/// Local addresses that this host does not have.
pub(super) fn addresses(config: &Config) -> Vec<String> {
    match routes::host_addresses() {
        Ok(there) => foreign_addresses(config, &there),
        // Without a list nothing is known of the host.
        Err(_) => Vec::new(),
    }
}

fn foreign_addresses(config: &Config, there: &[IpAddr]) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut look = |path: String, addr: IpAddr| {
        if !addr.is_unspecified() && !addr.is_loopback() && !there.contains(&addr) {
            warnings.push(format!("{path}: {addr} is not an address of this host"));
        }
    };
    for connection in &config.keyed.connections {
        // Of several, one for each place where a laptop may be, some may be absent.
        if let [Host::Range(range)] = connection.local_addrs.as_slice()
            && range.start == range.end
        {
            look(format!("connections.{}.local_addrs", connection.name), range.start);
        }
    }
    for sa in &config.sas {
        look(format!("sas.{}.local", sa.name), sa.peer.local);
    }
    warnings
}

/// IP versions with protected networks behind this host while forwarding is off in the kernel.
pub(crate) fn forwarding(config: &Config) -> Vec<String> {
    let on = |path: &str| std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "1");
    let (v4, v6) = (on("/proc/sys/net/ipv4/ip_forward"), on("/proc/sys/net/ipv6/conf/all/forwarding"));
    unforwarded(config, v4, v6)
}

fn unforwarded(config: &Config, v4: bool, v6: bool) -> Vec<String> {
    let tunnels =
        |child: &&std::sync::Arc<ike::config::ChildConfig>| matches!(child.mode, ChildMode::Tunnel | ChildMode::Iptfs);
    let children = config.keyed.connections.iter().flat_map(|connection| connection.children.iter().filter(tunnels));
    let local: Vec<AddrRange> = children.flat_map(|child| &child.local_ts).filter_map(|ts| ts.addrs).collect();
    // One address is this host's own.
    let lan = |of_v6: bool| local.iter().any(|range| range.start.is_ipv6() == of_v6 && range.start != range.end);
    let setting = |v6: bool| if v6 { "net.ipv6.conf.all.forwarding" } else { "net.ipv4.ip_forward" };
    let off = [(v4, false), (v6, true)].into_iter().filter(|(on, v6)| !on && lan(*v6)).map(|(_, v6)| setting(v6));
    off.map(|setting| {
        format!("{setting} is 0: hosts of the networks in local_ts are not reached; sysctl -w {setting}=1, unless all of them are this host")
    })
    .collect()
}

/// Selectors that make no pair, that contain each other, or that two connections to the same peer
/// share.
pub(super) fn selectors(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let connections = &config.keyed.connections;
    for connection in connections {
        for child in &connection.children {
            let path = format!("connections.{}.children.{}", connection.name, child.name);
            let fixed = |list: &[TsConfig]| list.iter().filter_map(|ts| ts.addrs).collect::<Vec<_>>();
            let (local, remote) = (fixed(&child.local_ts), fixed(&child.remote_ts));
            let dynamic = local.len() < child.local_ts.len() || remote.len() < child.remote_ts.len();
            let pair = |a: &AddrRange| remote.iter().any(|b| a.start.is_ipv6() == b.start.is_ipv6());
            if !dynamic && !local.iter().any(pair) {
                warnings.push(format!(
                    "{path}: local_ts and remote_ts have no IP version in common, so nothing can be negotiated"
                ));
            }
            if matches!(child.mode, ChildMode::Pass | ChildMode::Drop) {
                continue;
            }
            // 0.0.0.0/0 contains everything by intention.
            let inside = |a: &AddrRange, b: &AddrRange| {
                a.start >= b.start && a.end <= b.end && a.start.is_ipv6() == b.start.is_ipv6()
            };
            if let Some((remote, local)) =
                remote.iter().find_map(|r| local.iter().find(|l| inside(r, l) && !is_any(l)).map(|l| (r, l)))
            {
                warnings.push(format!(
                    "{path}: remote_ts {remote} overlaps local_ts {local}: hosts of the overlap would be on both sides"
                ));
            }
        }
    }
    for (i, connection) in connections.iter().enumerate() {
        for other in &connections[..i] {
            if let Some((mine, theirs)) = same(connection, other) {
                warnings.push(format!(
                    "connections.{}.children.{mine} has the peer and the selectors of connections.{}.children.{theirs}: \
                     one of them is never used",
                    connection.name, other.name
                ));
            }
        }
    }
    warnings
}

fn is_any(range: &AddrRange) -> bool {
    range.start.is_unspecified()
}

/// Children with the same selectors, in connections that the peer cannot distinguish.
fn same<'a>(a: &'a Connection, b: &'a Connection) -> Option<(&'a str, &'a str)> {
    // Identities, methods, EAP identities and CAs tell responders' connections apart.
    if a.remote_addrs != b.remote_addrs || a.local_addrs != b.local_addrs || a.remote != b.remote {
        return None;
    }
    let found = a.children.iter().find_map(|mine| {
        let theirs = b.children.iter().find(|c| c.local_ts == mine.local_ts && c.remote_ts == mine.remote_ts)?;
        Some((mine.name.as_str(), theirs.name.as_str()))
    })?;
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Purpose, load};

    fn config(name: &str, text: &str) -> Config {
        let path = std::env::temp_dir().join(format!("weir-plausibility-{name}-{}.conf", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let read = load(&path, Purpose::Gateway).unwrap_or_else(|problems| panic!("{problems}"));
        std::fs::remove_file(&path).unwrap();
        read
    }

    fn connection(name: &str, local: &str, remote: &str) -> String {
        format!(
            "{name} {{\n local_addrs = 192.0.2.77\n remote_addrs = 192.0.2.2\n children {{\n net {{\n local_ts = {local}\n \
             remote_ts = {remote}\n }}\n }}\n }}\n"
        )
    }

    #[test]
    fn selectors_that_are_seldom_meant_are_named() {
        let warnings = |name: &str, children: &[(&str, &str)]| {
            let text: String =
                children.iter().enumerate().map(|(i, (l, r))| connection(&format!("c{i}"), l, r)).collect();
            selectors(&config(name, &format!("connections {{\n{text}}}\n")))
        };
        assert!(warnings("good", &[("10.1.0.0/24", "10.2.0.0/24"), ("10.1.0.0/24", "10.3.0.0/24")]).is_empty());
        assert!(warnings("any", &[("0.0.0.0/0", "10.2.0.0/24"), ("dynamic", "::/0")]).is_empty());
        let inside = warnings("inside", &[("10.0.0.0/8", "10.2.0.0/24")]);
        assert!(inside[0].contains("10.2.0.0/24 overlaps local_ts 10.0.0.0/8"), "{inside:?}");
        let pair = warnings("pair", &[("10.1.0.0/24", "2001:db8::/64")]);
        assert!(pair[0].contains("no IP version in common"), "{pair:?}");
        let twice = warnings("twice", &[("10.1.0.0/24", "10.2.0.0/24"), ("10.1.0.0/24", "10.2.0.0/24")]);
        assert!(twice.len() == 1 && twice[0].contains("of connections.c0.children.net"), "{twice:?}");
    }

    #[test]
    fn connections_that_differ_in_the_authentication_of_the_peer_are_both_used() {
        let one = |name: &str, remote: &str| {
            format!(
                "{name} {{\n remote {{\n {remote}\n }}\n children {{\n net {{\n local_ts = 10.2.0.0/16\n }}\n }}\n }}\n"
            )
        };
        let two = |name: &str, other: &str| {
            let text = format!("connections {{\n{}{}}}\n", one("a", "auth = pubkey"), one("b", other));
            selectors(&config(name, &text))
        };
        assert!(two("eap", "auth = eap-mschapv2\n eap_id = %any").is_empty());
        assert_eq!(two("same", "auth = pubkey").len(), 1);
    }

    #[test]
    fn networks_behind_a_host_need_forwarding() {
        let warnings = |name: &str, local: &str, v4, v6| {
            let text = format!("connections {{\n{}}}\n", connection("a", local, "10.2.0.0/24, 2001:db8:2::/64"));
            unforwarded(&config(name, &text), v4, v6).join(" ")
        };
        assert!(warnings("lan", "10.1.0.0/24", false, true).contains("sysctl -w net.ipv4.ip_forward=1"));
        assert!(warnings("lan6", "2001:db8:1::/64", true, false).contains("net.ipv6.conf.all.forwarding is 0"));
        assert_eq!(warnings("on", "10.1.0.0/24", true, false), "");
        assert_eq!(warnings("host", "192.0.2.77", false, false) + &warnings("dynamic", "dynamic", false, false), "");
    }

    #[test]
    fn an_address_of_another_host_is_named() {
        let text = format!("connections {{\n{}}}\n", connection("a", "10.1.0.0/24", "10.2.0.0/24"));
        let config = config("address", &text);
        let at = |addr: &str| foreign_addresses(&config, &[addr.parse().unwrap()]);
        assert_eq!(at("192.0.2.1"), ["connections.a.local_addrs: 192.0.2.77 is not an address of this host"]);
        assert!(at("192.0.2.77").is_empty());
    }
}
