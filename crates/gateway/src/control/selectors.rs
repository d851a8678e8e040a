//! Selectors in the notation of strongSwan's listings: `10.1.0.0/16[tcp/ssh]`,
//! `10.2.0.0/16[icmp/8]`.

use wire::{IpProto, PortRange, TrafficSelector};

/// Protocol, port and name in /etc/services of Debian. The daemon cannot read that file once it is
/// confined.
const SERVICES: &[(IpProto, u16, &str)] = &[
    (IpProto::TCP, 20, "ftp-data"),
    (IpProto::TCP, 21, "ftp"),
    (IpProto::TCP, 22, "ssh"),
    (IpProto::TCP, 23, "telnet"),
    (IpProto::TCP, 25, "smtp"),
    (IpProto::TCP, 53, "domain"),
    (IpProto::UDP, 53, "domain"),
    (IpProto::UDP, 67, "bootps"),
    (IpProto::UDP, 68, "bootpc"),
    (IpProto::UDP, 69, "tftp"),
    (IpProto::TCP, 80, "http"),
    (IpProto::TCP, 88, "kerberos"),
    (IpProto::UDP, 88, "kerberos"),
    (IpProto::TCP, 110, "pop3"),
    (IpProto::UDP, 123, "ntp"),
    (IpProto::UDP, 161, "snmp"),
    (IpProto::TCP, 179, "bgp"),
    (IpProto::TCP, 389, "ldap"),
    (IpProto::TCP, 443, "https"),
    (IpProto::UDP, 443, "https"),
    (IpProto::TCP, 445, "microsoft-ds"),
    (IpProto::UDP, 500, "isakmp"),
    (IpProto::UDP, 514, "syslog"),
    (IpProto::TCP, 587, "submission"),
    (IpProto::TCP, 636, "ldaps"),
    (IpProto::TCP, 993, "imaps"),
    (IpProto::TCP, 995, "pop3s"),
    (IpProto::UDP, 1701, "l2f"),
    (IpProto::UDP, 1812, "radius"),
    (IpProto::UDP, 1813, "radius-acct"),
    (IpProto::UDP, 4500, "ipsec-nat-t"),
];

/// A selector as strongSwan prints it.
pub(super) fn text(selector: &TrafficSelector) -> String {
    let plain = selector.to_string();
    let (Some(proto), Some((head, _))) = (selector.proto, plain.rsplit_once('/')) else { return plain };
    let PortRange { start, end } = selector.ports;
    if !plain.ends_with(']') || selector.ports == PortRange::ANY || start > end {
        return plain;
    }
    let ports = if proto.has_message_type() {
        match (start == end, message_type(start), message_type(end)) {
            (true, one, _) => one,
            (false, first, last) => format!("{first}-{last}"),
        }
    } else {
        match SERVICES.iter().find(|(known, port, _)| *known == proto && start == end && *port == start) {
            Some((.., name)) => (*name).to_owned(),
            None => return plain,
        }
    };
    format!("{head}/{ports}]")
}

/// ICMP type, with its code unless that is 0.
fn message_type(number: u16) -> String {
    match number.to_be_bytes() {
        [kind, 0] => kind.to_string(),
        [kind, code] => format!("{kind}({code})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_written_as_strongswan_does() {
        for (ours, theirs) in [
            ("10.1.0.0/16", "10.1.0.0/16"),
            ("10.1.0.0/16[tcp]", "10.1.0.0/16[tcp]"),
            ("10.1.0.0/16[tcp/22]", "10.1.0.0/16[tcp/ssh]"),
            ("10.1.0.0/16[udp/22]", "10.1.0.0/16[udp/22]"),
            ("10.1.0.0/16[tcp/22-23]", "10.1.0.0/16[tcp/22-23]"),
            ("10.1.0.0/16[tcp/opaque]", "10.1.0.0/16[tcp/opaque]"),
            ("10.1.0.0/16[icmp/2048]", "10.1.0.0/16[icmp/8]"),
            ("10.1.0.0/16[icmp/8(1)]", "10.1.0.0/16[icmp/8(1)]"),
            ("10.1.0.0/16[icmp/2048-2303]", "10.1.0.0/16[icmp/8-8(255)]"),
            ("fd00::/64[ipv6-icmp/128(0)]", "fd00::/64[ipv6-icmp/128]"),
            ("10.1.0.0/16[gre]", "10.1.0.0/16[gre]"),
        ] {
            assert_eq!(text(&ours.parse().unwrap()), theirs);
        }
    }
}
