//! Assigned numbers, each written once.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An IP protocol number (IPv4 Protocol, IPv6 Next Header). Open: any value may arrive.
#[derive(
    Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct IpProto(pub u8);

impl IpProto {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP for IPv4.
    pub const ICMP: Self = Self(1);
    /// Internet Group Management Protocol.
    pub const IGMP: Self = Self(2);
    /// IPv4 in IP (RFC 2003).
    pub const IPV4: Self = Self(4);
    /// TCP.
    pub const TCP: Self = Self(6);
    /// UDP.
    pub const UDP: Self = Self(17);
    /// DCCP (RFC 4340).
    pub const DCCP: Self = Self(33);
    /// IPv6 in IP (RFC 2473).
    pub const IPV6: Self = Self(41);
    /// IPv6 routing header.
    pub const ROUTING: Self = Self(43);
    /// IPv6 fragment header.
    pub const FRAGMENT: Self = Self(44);
    /// GRE (RFC 2784).
    pub const GRE: Self = Self(47);
    /// ESP (RFC 4303).
    pub const ESP: Self = Self(50);
    /// AH (RFC 4302).
    pub const AH: Self = Self(51);
    /// ICMP for IPv6.
    pub const ICMPV6: Self = Self(58);
    /// No next header; inside ESP a dummy packet (RFC 4303 §2.6).
    pub const NONE: Self = Self(59);
    /// IPv6 destination options.
    pub const DEST_OPTIONS: Self = Self(60);
    /// BEET pseudo header.
    pub const BEET: Self = Self(94);
    /// SCTP.
    pub const SCTP: Self = Self(132);
    /// IPv6 mobility header.
    pub const MOBILITY: Self = Self(135);
    /// UDP-Lite.
    pub const UDP_LITE: Self = Self(136);
    /// AGGFRAG payload of IP-TFS (RFC 9347).
    pub const AGGFRAG: Self = Self(144);
    /// EESP until IANA assigns a number: experimentation value of RFC 3692.
    pub const EESP_DEFAULT: Self = Self(253);
}

/// Names of protocols in traffic selectors, as in the protocols file of a Unix host. Where two
/// names mean one number the first is the one that is printed.
const PROTOCOL_NAMES: &[(&str, IpProto)] = &[
    ("icmp", IpProto::ICMP),
    ("ipv4", IpProto::IPV4),
    ("ipip", IpProto::IPV4),
    ("ipencap", IpProto::IPV4),
    ("tcp", IpProto::TCP),
    ("udp", IpProto::UDP),
    ("dccp", IpProto::DCCP),
    ("ipv6", IpProto::IPV6),
    ("gre", IpProto::GRE),
    ("esp", IpProto::ESP),
    ("ah", IpProto::AH),
    ("ipv6-icmp", IpProto::ICMPV6),
    ("icmpv6", IpProto::ICMPV6),
    ("icmp6", IpProto::ICMPV6),
    ("ospf", IpProto(89)),
    ("pim", IpProto(103)),
    ("vrrp", IpProto(112)),
    ("l2tp", IpProto(115)),
    ("sctp", IpProto::SCTP),
    ("mobility-header", IpProto::MOBILITY),
    ("mh", IpProto::MOBILITY),
    ("udplite", IpProto::UDP_LITE),
];

impl IpProto {
    /// The name that a person uses for the protocol, if it has a usual one.
    pub fn name(self) -> Option<&'static str> {
        PROTOCOL_NAMES.iter().find(|(_, proto)| *proto == self).map(|(name, _)| *name)
    }

    /// The protocol of that name; case does not matter. Numbers are not names.
    pub fn from_name(name: &str) -> Option<Self> {
        PROTOCOL_NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, proto)| *proto)
    }

    /// True when the upper-layer header starts with a source and a destination port.
    #[inline]
    pub const fn has_ports(self) -> bool {
        // Flow keys read two 16-bit ports from the first four bytes. A protocol with another layout
        // must not be added here.
        matches!(self, Self::TCP | Self::UDP | Self::SCTP | Self::UDP_LITE | Self::DCCP)
    }

    /// True for protocols with message types (and codes, for ICMP) in selectors instead of ports
    /// (RFC 4301 §4.4.1.1).
    #[inline]
    pub const fn has_message_type(self) -> bool {
        matches!(self, Self::ICMP | Self::ICMPV6 | Self::MOBILITY)
    }
}

impl fmt::Display for IpProto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// UDP port of IKE (RFC 7296 §2).
pub const PORT_IKE: u16 = 500;
/// UDP port of IKE with NAT traversal, ESP and EESP in UDP (RFC 3948).
pub const PORT_IPSEC_NAT_T: u16 = 4500;
/// UDP port of PSP.
pub const PORT_PSP: u16 = 1000;

/// Code points that no registry has fixed yet. One home; the configuration may set them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CodePoints {
    /// IP protocol number of EESP.
    pub eesp_protocol: IpProto,
    /// UDP port of ESP and EESP in UDP.
    pub nat_t_port: u16,
    /// UDP port of PSP.
    pub psp_port: u16,
    /// Numbers of the negotiation of EESP and of BEET mode.
    pub ike: crate::ike::CodePoints,
}

impl Default for CodePoints {
    fn default() -> Self {
        Self {
            eesp_protocol: IpProto::EESP_DEFAULT,
            nat_t_port: PORT_IPSEC_NAT_T,
            psp_port: PORT_PSP,
            ike: crate::ike::CodePoints::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_numbers() {
        for (name, proto) in PROTOCOL_NAMES {
            assert_eq!(IpProto::from_name(&name.to_uppercase()), Some(*proto));
            let printed = proto.name().expect("a protocol in the table has a name");
            assert_eq!(IpProto::from_name(printed), Some(*proto));
        }
        assert_eq!(IpProto::ICMPV6.name(), Some("ipv6-icmp"));
        assert_eq!((IpProto(200).name(), IpProto::from_name("6")), (None, None));
    }
}
