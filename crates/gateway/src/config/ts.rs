//! Traffic selectors as swanctl.conf writes them: `dynamic`, services by name.

use ike::config::TsConfig;
use wire::{SelectorError, TrafficSelector};

use super::value::ValueError;

/// Services that a port may be called by.
const SERVICES: &[(&str, u16)] = &[
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("domain", 53),
    ("bootps", 67),
    ("bootpc", 68),
    ("tftp", 69),
    ("http", 80),
    ("kerberos", 88),
    ("ntp", 123),
    ("snmp", 161),
    ("bgp", 179),
    ("ldap", 389),
    ("https", 443),
    ("isakmp", 500),
    ("syslog", 514),
    ("ldaps", 636),
    ("openvpn", 1194),
    ("l2tp", 1701),
    ("l2f", 1701),
    ("radius", 1812),
    ("radius-acct", 1813),
    ("nfs", 2049),
    ("iscsi-target", 3260),
    ("mysql", 3306),
    ("postgresql", 5432),
    ("ipsec-nat-t", 4500),
    ("sip", 5060),
    ("vxlan", 4789),
    ("gtp-user", 2152),
];

/// The default: the outer or virtual address, whatever the protocol.
pub(crate) fn dynamic() -> TsConfig {
    TsConfig { addrs: None, proto: None, ports: wire::PortRange::ANY }
}

/// One item of `local_ts` or `remote_ts`.
pub(crate) fn selector(text: &str) -> Result<TsConfig, ValueError> {
    const HOW: &str = "a selector is ADDR or ADDR[PROTO/PORT], ADDR an address, a network, FIRST-LAST or dynamic";
    let (addrs, upper) = match text.split_once('[') {
        Some((addrs, upper)) => (addrs.trim(), Some(upper)),
        None => (text.trim(), None),
    };
    let is_dynamic = addrs.eq_ignore_ascii_case("dynamic");
    let addrs = if is_dynamic { "0.0.0.0" } else { addrs };
    let whole = match upper {
        Some(upper) => format!("{addrs}[{}", upper_layer(upper)),
        None => addrs.to_owned(),
    };
    let read: TrafficSelector = whole.parse().map_err(|why: SelectorError| format!("{why}; {HOW}"))?;
    Ok(TsConfig { addrs: (!is_dynamic).then_some(read.addrs), proto: read.proto, ports: read.ports })
}

/// `PROTO/PORT]` with an empty protocol and names of services in the form that the parser of
/// selectors requires.
fn upper_layer(text: &str) -> String {
    let (inner, close) =
        text.split_once(']').map_or((text, String::new()), |(inner, rest)| (inner, format!("]{rest}")));
    let (proto, port) = inner.split_once('/').map_or((inner, None), |(proto, port)| (proto, Some(port)));
    let proto = if proto.trim().is_empty() { "any" } else { proto.trim() };
    let is_icmp = || ["icmp", "1", "ipv6-icmp", "icmpv6", "58"].iter().any(|name| proto.eq_ignore_ascii_case(name));
    match port.map(str::trim) {
        None | Some("") => format!("{proto}{close}"),
        // Type × 256 + code, as in strongSwan: echo reply with code 0, not all codes of type 0. The
        // peer looks for it exactly.
        Some("0") if is_icmp() => format!("{proto}/0(0){close}"),
        Some(port) => match SERVICES.iter().find(|(name, _)| name.eq_ignore_ascii_case(port)) {
            Some((_, number)) => format!("{proto}/{number}{close}"),
            None => format!("{proto}/{port}{close}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_of_swanctl_are_read() {
        let shown = |text: &str| {
            let ts = selector(text).unwrap_or_else(|why| panic!("{text}: {why}"));
            let addrs = ts.addrs.map_or("dynamic".into(), |addrs| addrs.to_string());
            (addrs, ts.proto.map_or(0, |proto| proto.0), ts.ports.start, ts.ports.end)
        };
        for (text, addrs, proto, start, end) in [
            ("10.1.0.0/16", "10.1.0.0/16", 0, 0, 65_535),
            ("dynamic", "dynamic", 0, 0, 65_535),
            ("dynamic[tcp/http]", "dynamic", 6, 80, 80),
            ("10.1.0.1[17/1701]", "10.1.0.1/32", 17, 1701, 1701),
            ("10.1.0.1-10.1.0.9[udp/1000-2000]", "10.1.0.1-10.1.0.9", 17, 1000, 2000),
            ("fec1::/16[ipv6-icmp/135]", "fec1::/16", 58, 135 << 8, 135 << 8 | 255),
            ("10.1.0.0/16[icmp/2048]", "10.1.0.0/16", 1, 2048, 2048),
            ("10.1.0.0/16[icmp/0]", "10.1.0.0/16", 1, 0, 0),
            ("10.1.0.0/16[1/0]", "10.1.0.0/16", 1, 0, 0),
            ("10.1.0.0/16[icmp/0-8]", "10.1.0.0/16", 1, 0, 8 << 8 | 255),
            ("10.1.0.0/16[udp/0]", "10.1.0.0/16", 17, 0, 0),
            ("10.1.0.0/16[/53]", "10.1.0.0/16", 0, 53, 53),
            ("10.1.0.0/16[tcp/opaque]", "10.1.0.0/16", 6, 65_535, 0),
            ("10.1.0.0/16[gre]", "10.1.0.0/16", 47, 0, 65_535),
            ("dynamic[tcp/]", "dynamic", 6, 0, 65_535),
        ] {
            assert_eq!(shown(text), (addrs.to_owned(), proto, start, end), "{text}");
        }
        for bad in ["", "10.1.0.0/33", "dynamic[tcp", "10.1.0.0/16[tcp/nosuch]", "10.1.0.0/16[nosuch]", "sun.example"] {
            assert!(selector(bad).is_err(), "{bad}");
        }
    }
}
