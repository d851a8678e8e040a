//! Traffic selectors as people write and read them: `ADDR[proto/port]`, in the manner of
//! strongSwan's swanctl.conf.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::{AddrRange, PortRange, Selector, TrafficSelector};
use crate::IpProto;

/// Reason why a selector is invalid. Used for configuration only, so it may contain text.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectorError {
    /// Not an address, network or range.
    #[error("'{0}' is no address; write 10.1.0.0/16, 10.0.0.1-10.0.0.9, 10.0.0.1 or their IPv6 likes")]
    Address(String),
    /// A prefix that is no number or has more bits than an address of the family.
    #[error("'{0}' is no prefix length; write a number from 0 to {1}")]
    Prefix(String, u8),
    /// A range with ends of different families, or in the wrong order.
    #[error("'{0}' is no range; write two addresses of one family, the lower one first")]
    Range(String),
    /// A bracket is missing or misplaced.
    #[error("'{0}' has unbalanced brackets; write ADDR[PROTO/PORT], for example 10.1.0.0/16[tcp/80]")]
    Brackets(String),
    /// Not a protocol.
    #[error("unknown protocol '{0}'; write a name such as tcp, udp, icmp or ipv6-icmp, a number from 0 to 255, or any")]
    Protocol(String),
    /// Not a port.
    #[error("'{0}' is no port; write a number from 0 to 65535, a range such as 1000-2000, any or opaque")]
    Port(String),
    /// Not an ICMP type.
    #[error("'{0}' is no message type; write a type such as 8, a range such as 0-8, TYPE(CODE), any or opaque")]
    MessageType(String),
    /// Ports for a protocol that has none.
    #[error("protocol {0} has no ports; leave them out")]
    NoPorts(String),
    /// The two sides of a policy are of two address families.
    #[error("'{src}' and '{dst}' are of two address families; write one policy for IPv4 and one for IPv6")]
    SideFamilies {
        /// Source side.
        src: TrafficSelector,
        /// Destination side.
        dst: TrafficSelector,
    },
    /// The two sides of a policy name two protocols.
    #[error("'{src}' and '{dst}' name two protocols; name the same on both sides, or one on one side alone")]
    SideProtocols {
        /// Source side.
        src: TrafficSelector,
        /// Destination side.
        dst: TrafficSelector,
    },
    /// The two sides of a policy name two message types.
    #[error("'{src}' and '{dst}' name two message types; write the type on one side alone")]
    SideTypes {
        /// Source side.
        src: TrafficSelector,
        /// Destination side.
        dst: TrafficSelector,
    },
}

impl FromStr for AddrRange {
    type Err = SelectorError;

    /// Reads `10.1.0.0/16`, `10.0.0.1-10.0.0.9` or `10.0.0.1`. Host bits of a network are cleared.
    fn from_str(text: &str) -> Result<Self, SelectorError> {
        if let Some((addr, prefix)) = text.split_once('/') {
            let addr = address(addr)?;
            let longest = if addr.is_ipv6() { 128 } else { 32 };
            return digits(prefix.trim())
                .and_then(|prefix| Self::from_cidr(addr, prefix))
                .ok_or_else(|| SelectorError::Prefix(prefix.trim().to_owned(), longest));
        }
        if let Some((start, end)) = text.split_once('-') {
            return Self::new(address(start)?, address(end)?)
                .ok_or_else(|| SelectorError::Range(text.trim().to_owned()));
        }
        address(text).map(|addr| Self { start: addr, end: addr })
    }
}

fn address(text: &str) -> Result<IpAddr, SelectorError> {
    text.trim().parse().map_err(|_| SelectorError::Address(text.trim().to_owned()))
}

/// A number without sign, as [`str::parse`] would also take `+5`.
fn digits<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

impl FromStr for TrafficSelector {
    type Err = SelectorError;

    /// Reads `ADDR`, `ADDR[PROTO]` or `ADDR[PROTO/PORT]`, ADDR as [`AddrRange`] reads it. PROTO is
    /// a name, a number or `any`; PORT is a number, a range, `any` or `opaque`. For ICMP it is a
    /// type, type × 256 + code, TYPE(CODE), or a range of these.
    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let text = text.trim();
        let Some((addrs, rest)) = text.split_once('[') else {
            if text.contains(']') {
                return Err(SelectorError::Brackets(text.to_owned()));
            }
            return text.parse().map(Self::any);
        };
        let upper = rest.strip_suffix(']').ok_or_else(|| SelectorError::Brackets(text.to_owned()))?;
        if upper.contains(['[', ']']) {
            return Err(SelectorError::Brackets(text.to_owned()));
        }
        let (proto, ports) = upper.split_once('/').map_or((upper, None), |(proto, ports)| (proto, Some(ports.trim())));
        // The protocol decides about the syntax of what follows: ports or message types.
        let proto = protocol(proto.trim())?;
        let ports = ports.map_or(Ok(PortRange::ANY), |ports| port_range(ports, proto))?;
        Ok(Self { addrs: addrs.parse()?, proto, ports })
    }
}

/// `None` is any; so is 0, as in RFC 7296 §3.13.1.
fn protocol(text: &str) -> Result<Option<IpProto>, SelectorError> {
    if text.eq_ignore_ascii_case("any") || text == "%any" {
        return Ok(None);
    }
    let proto = IpProto::from_name(text).or_else(|| digits(text).map(IpProto));
    proto.map(|proto| (proto.0 != 0).then_some(proto)).ok_or_else(|| SelectorError::Protocol(text.to_owned()))
}

fn port_range(text: &str, proto: Option<IpProto>) -> Result<PortRange, SelectorError> {
    if text.eq_ignore_ascii_case("any") || text == "%any" {
        return Ok(PortRange::ANY);
    }
    // After the check for `any`, which is no restriction and valid for every protocol.
    if let Some(proto) = proto.filter(|proto| !proto.has_ports() && !proto.has_message_type()) {
        return Err(SelectorError::NoPorts(proto.name().map_or_else(|| proto.to_string(), str::to_owned)));
    }
    if text.eq_ignore_ascii_case("opaque") {
        return Ok(PortRange::OPAQUE);
    }
    let typed = proto.is_some_and(IpProto::has_message_type);
    let one = |text: &str| if typed { message_type(text.trim()) } else { digits(text.trim()).map(PortRange::single) };
    let (start, end) = text.split_once('-').unwrap_or((text, text));
    match (one(start), one(end)) {
        (Some(start), Some(end)) if start.start <= end.end => Ok(PortRange { start: start.start, end: end.end }),
        _ if typed => Err(SelectorError::MessageType(text.to_owned())),
        _ => Err(SelectorError::Port(text.to_owned())),
    }
}

/// Reads `TYPE` (all its codes), `TYPE(CODE)`, or type × 256 + code above 255.
fn message_type(text: &str) -> Option<PortRange> {
    if let Some((kind, code)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        return Some(PortRange::single(u16::from_be_bytes([digits(kind)?, digits(code)?])));
    }
    match digits::<u16>(text)? {
        // As a 16-bit value, a small number would be a code of type 0. That is written `0(CODE)`.
        kind @ ..=0xff => Some(PortRange { start: kind << 8, end: kind << 8 | 0xff }),
        both => Some(PortRange::single(both)),
    }
}

impl fmt::Display for AddrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix() {
            Some(prefix) => write!(f, "{}/{prefix}", self.start),
            None => write!(f, "{}-{}", self.start, self.end),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ANY => f.write_str("any"),
            Self::OPAQUE => f.write_str("opaque"),
            Self { start, end } if start == end => write!(f, "{start}"),
            Self { start, end } => write!(f, "{start}-{end}"),
        }
    }
}

impl fmt::Display for TrafficSelector {
    /// As the parser reads it: `10.1.0.0/16`, with `[proto/port]` appended if restricted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.addrs)?;
        if self.proto.is_none() && self.ports == PortRange::ANY {
            return Ok(());
        }
        match self.proto.map(|proto| (proto, proto.name())) {
            None => f.write_str("[any")?,
            Some((_, Some(name))) => write!(f, "[{name}")?,
            Some((proto, None)) => write!(f, "[{proto}")?,
        }
        match self.ports {
            PortRange::ANY => {}
            PortRange { start, end } if start <= end && self.proto.is_some_and(IpProto::has_message_type) => {
                f.write_str("/")?;
                fmt_message_types(f, start.to_be_bytes(), end.to_be_bytes())?;
            }
            ports => write!(f, "/{ports}")?,
        }
        f.write_str("]")
    }
}

fn fmt_message_types(f: &mut fmt::Formatter<'_>, start: [u8; 2], end: [u8; 2]) -> fmt::Result {
    match (start, end) {
        ([first, 0], [last, 0xff]) if first == last => write!(f, "{first}"),
        ([first, 0], [last, 0xff]) => write!(f, "{first}-{last}"),
        ([kind, code], end) if [kind, code] == end => write!(f, "{kind}({code})"),
        ([kind, code], [last, last_code]) => write!(f, "{kind}({code})-{last}({last_code})"),
    }
}

impl fmt::Display for Selector {
    /// The two sides with strongSwan's `===` between them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (src, dst) = self.sides();
        write!(f, "{src} === {dst}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        text.parse::<TrafficSelector>().map_or_else(|error| error.to_string(), |side| side.to_string())
    }

    #[test]
    fn what_people_write_is_understood() {
        for (text, expected) in [
            ("10.1.0.0/16", "10.1.0.0/16"),
            ("10.1.2.3/16", "10.1.0.0/16"),
            (" 10.1.2.3 ", "10.1.2.3/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("10.0.0.1-10.0.0.9", "10.0.0.1-10.0.0.9"),
            ("10.0.0.0 - 10.0.0.255", "10.0.0.0/24"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::", "::/128"),
            ("::1-::2", "::1-::2"),
            ("10.1.0.0/16[tcp]", "10.1.0.0/16[tcp]"),
            ("10.1.0.0/16[6/80]", "10.1.0.0/16[tcp/80]"),
            ("10.1.0.0/16[TCP/80-90]", "10.1.0.0/16[tcp/80-90]"),
            ("10.1.0.0/16[tcp/any]", "10.1.0.0/16[tcp]"),
            ("10.1.0.0/16[udp/OPAQUE]", "10.1.0.0/16[udp/opaque]"),
            ("10.1.0.0/16[any]", "10.1.0.0/16"),
            ("10.1.0.0/16[0/0-65535]", "10.1.0.0/16"),
            ("10.1.0.0/16[any/53]", "10.1.0.0/16[any/53]"),
            ("10.1.0.0/16[gre]", "10.1.0.0/16[gre]"),
            ("10.1.0.0/16[gre/any]", "10.1.0.0/16[gre]"),
            ("10.1.0.0/16[200]", "10.1.0.0/16[200]"),
            ("10.1.0.0/16[icmp/8]", "10.1.0.0/16[icmp/8]"),
            ("10.1.0.0/16[icmp/2048]", "10.1.0.0/16[icmp/8(0)]"),
            ("10.1.0.0/16[icmp/3(4)]", "10.1.0.0/16[icmp/3(4)]"),
            ("10.1.0.0/16[icmp/0-8]", "10.1.0.0/16[icmp/0-8]"),
            ("::/0[icmpv6/opaque]", "::/0[ipv6-icmp/opaque]"),
            ("::/0[ipv6-icmp/128]", "::/0[ipv6-icmp/128]"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
            assert_eq!(shown(expected), expected);
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_a_remedy() {
        for (text, start) in [
            ("", "'' is no address; write 10.1.0.0/16"),
            ("dynamic", "'dynamic' is no address"),
            ("10.1/16", "'10.1' is no address"),
            ("10.1.0.0/33", "'33' is no prefix length; write a number from 0 to 32"),
            ("::/129", "'129' is no prefix length; write a number from 0 to 128"),
            ("10.1.0.0/+8", "'+8' is no prefix length"),
            ("10.1.0.0/", "'' is no prefix length"),
            ("10.1.0.0/999999999999", "'999999999999' is no prefix length"),
            ("10.0.0.9-10.0.0.1", "'10.0.0.9-10.0.0.1' is no range"),
            ("10.0.0.9-::1", "'10.0.0.9-::1' is no range"),
            ("10.0.0.1[tcp", "'10.0.0.1[tcp' has unbalanced brackets"),
            ("10.0.0.1]", "'10.0.0.1]' has unbalanced brackets"),
            ("10.0.0.1[tcp]]", "'10.0.0.1[tcp]]' has unbalanced brackets"),
            ("10.0.0.1[]", "unknown protocol ''"),
            ("10.0.0.1[tpc]", "unknown protocol 'tpc'; write a name such as tcp"),
            ("10.0.0.1[256]", "unknown protocol '256'"),
            ("10.0.0.1[tcp/]", "'' is no port; write a number from 0 to 65535"),
            ("10.0.0.1[tcp/65536]", "'65536' is no port"),
            ("10.0.0.1[tcp/9-8]", "'9-8' is no port"),
            ("10.0.0.1[tcp/1-2-3]", "'1-2-3' is no port"),
            ("10.0.0.1[icmp/x]", "'x' is no message type; write a type such as 8"),
            ("10.0.0.1[icmp/3(256)]", "'3(256)' is no message type"),
            ("10.0.0.1[gre/80]", "protocol gre has no ports; leave them out"),
            ("10.0.0.1[200/80]", "protocol 200 has no ports"),
        ] {
            let error = shown(text);
            assert!(error.starts_with(start), "{text}: {error}");
        }
    }

    #[test]
    fn a_policy_shows_both_sides() {
        let side = |text: &str| text.parse().unwrap();
        let web = Selector::from_sides(side("10.1.0.0/16"), side("10.2.0.5[tcp/80]")).unwrap();
        assert_eq!(web.to_string(), "10.1.0.0/16[tcp] === 10.2.0.5/32[tcp/80]");
        let error = Selector::from_sides(side("10.1.0.0/16"), side("::/0")).unwrap_err().to_string();
        assert_eq!(
            error,
            "'10.1.0.0/16' and '::/0' are of two address families; write one policy for IPv4 and one for IPv6"
        );
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(
            a: u128, b: u128, v6: bool, prefix in 0u8..=32,
            proto in prop_oneof![Just(None), prop_oneof![Just(1u8), Just(6), Just(17), Just(58), Just(135)].prop_map(Some)],
            start in prop_oneof![0u16..2048, any::<u16>()], end in prop_oneof![0u16..2048, any::<u16>()],
            opaque: bool,
        ) {
            let ip = |bits: u128| if v6 { IpAddr::from(bits.to_be_bytes()) } else { IpAddr::from((bits as u32).to_be_bytes()) };
            let ports = if opaque { PortRange::OPAQUE } else { PortRange { start: start.min(end), end: start.max(end) } };
            for addrs in [AddrRange::new(ip(a).min(ip(b)), ip(a).max(ip(b))), AddrRange::from_cidr(ip(a), prefix)] {
                let side = TrafficSelector { addrs: addrs.unwrap(), proto: proto.map(IpProto), ports };
                prop_assert_eq!(side.to_string().parse(), Ok(side));
            }
        }

        #[test]
        fn arbitrary_text_does_no_harm(text in "[0-9a-f.:/\\[\\]()\\-tcpim+ %é]{0,24}") {
            let _ = text.parse::<TrafficSelector>();
        }
    }
}
