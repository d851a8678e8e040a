//! Assigned numbers, each written once.

use std::fmt;

/// An IP protocol number (IPv4 Protocol, IPv6 Next Header). Open: any value may arrive.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct IpProto(pub u8);

impl IpProto {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP for IPv4.
    pub const ICMP: Self = Self(1);
    /// IPv4 in IP (RFC 2003).
    pub const IPV4: Self = Self(4);
    /// TCP.
    pub const TCP: Self = Self(6);
    /// UDP.
    pub const UDP: Self = Self(17);
    /// IPv6 in IP (RFC 2473).
    pub const IPV6: Self = Self(41);
    /// IPv6 routing header.
    pub const ROUTING: Self = Self(43);
    /// IPv6 fragment header.
    pub const FRAGMENT: Self = Self(44);
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

impl fmt::Display for IpProto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

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
}

impl Default for CodePoints {
    fn default() -> Self {
        Self {
            eesp_protocol: IpProto::EESP_DEFAULT,
            nat_t_port: PORT_IPSEC_NAT_T,
            psp_port: PORT_PSP,
        }
    }
}
