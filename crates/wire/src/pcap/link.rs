//! Link-layer headers of captures, as far as needed to find the IP packet.

use crate::ParseError;

/// Link-layer type of a capture (the LINKTYPE registry of tcpdump.org). Open.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: an address family in the byte order of the host that captured.
    pub const NULL: Self = Self(0);
    /// Ethernet II.
    pub const ETHERNET: Self = Self(1);
    /// IPv4 or IPv6 without any header before it.
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback: an address family in network order.
    pub const LOOP: Self = Self(108);
    /// Linux "cooked" capture, version 1.
    pub const LINUX_SLL: Self = Self(113);
    /// IPv4 without any header before it.
    pub const IPV4: Self = Self(228);
    /// IPv6 without any header before it.
    pub const IPV6: Self = Self(229);
    /// Linux "cooked" capture, version 2.
    pub const LINUX_SLL2: Self = Self(276);
}

/// Reason why a record contains no IP packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The record carries something else, such as ARP: not a fault.
    #[error("not an IP packet (link-layer protocol {0:#06x})")]
    NotIp(u32),
    /// The link type is not one that is understood here.
    #[error("link type {0} is not supported; capture on Ethernet, raw IP, loopback or Linux cooked interfaces")]
    UnknownLinkType(u16),
    /// The link-layer header is cut off.
    #[error(transparent)]
    Parse(#[from] ParseError),
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// 802.1Q, 802.1ad, and what went before the latter.
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// Splits the `data` of a record into its link-layer header, including VLAN tags, and the IP packet
/// after it, which may be followed by padding. Returns the length of the header in bytes and the
/// rest. That the rest is an IP packet is claimed by the header and not checked.
///
/// # Errors
/// [`LinkError`] when the record carries something else, is cut off in the header, or has an
/// unknown link type.
pub fn ip_payload(link_type: LinkType, data: &[u8]) -> Result<(usize, &[u8]), LinkError> {
    match link_type {
        // Old tools write the number that BSD has for raw IP instead of the one for files.
        LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 | LinkType(12 | 14) => Ok((0, data)),
        LinkType::ETHERNET => by_ethertype(data, 12, 14),
        LinkType::LINUX_SLL => by_ethertype(data, 14, 16),
        LinkType::LINUX_SLL2 => by_ethertype(data, 0, 20),
        LinkType::NULL | LinkType::LOOP => by_family(link_type, data),
        LinkType(other) => Err(LinkError::UnknownLinkType(other)),
    }
}

/// The EtherType is at `type_at` of a header of `len` bytes; VLAN tags follow the header, each
/// ending with the next EtherType.
fn by_ethertype(data: &[u8], type_at: usize, len: usize) -> Result<(usize, &[u8]), LinkError> {
    let (mut type_at, mut len) = (type_at, len);
    loop {
        let cut = ParseError::Truncated { what: "link-layer header", need: len, have: data.len() };
        let rest = data.get(len..).ok_or(cut)?;
        match u16::from_be_bytes([data[type_at], data[type_at + 1]]) {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => return Ok((len, rest)),
            tag if ETHERTYPES_VLAN.contains(&tag) => (type_at, len) = (len + 2, len + 4),
            other => return Err(LinkError::NotIp(other.into())),
        }
    }
}

/// IPv6 has another number on every BSD, and on Linux.
fn by_family(link_type: LinkType, data: &[u8]) -> Result<(usize, &[u8]), LinkError> {
    let cut = ParseError::Truncated { what: "link-layer header", need: 4, have: data.len() };
    let (family, rest) = data.split_first_chunk::<4>().ok_or(cut)?;
    let family = match u32::from_be_bytes(*family) {
        // Families are small numbers, so a large one was written by a little-endian host.
        large @ 0x0001_0000.. if link_type == LinkType::NULL => large.swap_bytes(),
        family => family,
    };
    match family {
        2 | 10 | 24 | 28 | 30 => Ok((4, rest)),
        other => Err(LinkError::NotIp(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(len: usize, type_at: usize, ethertype: u16) -> Vec<u8> {
        let mut header = vec![0xee; len];
        header[type_at..type_at + 2].copy_from_slice(&ethertype.to_be_bytes());
        header
    }

    #[test]
    fn every_link_type_leads_to_the_packet() {
        for (link_type, header) in [
            (LinkType::RAW, vec![]),
            (LinkType::IPV4, vec![]),
            (LinkType::IPV6, vec![]),
            (LinkType(12), vec![]),
            (LinkType::ETHERNET, header(14, 12, 0x0800)),
            (LinkType::ETHERNET, header(14, 12, 0x86dd)),
            (LinkType::ETHERNET, [header(14, 12, 0x8100), header(4, 2, 0x0800)].concat()),
            (LinkType::ETHERNET, [header(14, 12, 0x88a8), header(4, 2, 0x8100), header(4, 2, 0x86dd)].concat()),
            (LinkType::LINUX_SLL, header(16, 14, 0x0800)),
            (LinkType::LINUX_SLL, [header(16, 14, 0x8100), header(4, 2, 0x0800)].concat()),
            (LinkType::LINUX_SLL2, header(20, 0, 0x86dd)),
            (LinkType::LINUX_SLL2, [header(20, 0, 0x8100), header(4, 2, 0x0800)].concat()),
            (LinkType::NULL, vec![2, 0, 0, 0]),
            (LinkType::NULL, vec![0, 0, 0, 2]),
            (LinkType::NULL, vec![30, 0, 0, 0]),
            (LinkType::LOOP, vec![0, 0, 0, 24]),
        ] {
            let record = [&header[..], &b"packet"[..]].concat();
            assert_eq!(ip_payload(link_type, &record), Ok((header.len(), &b"packet"[..])), "{link_type:?}");
            assert_eq!(ip_payload(link_type, &header), Ok((header.len(), &b""[..])));
            for len in 0..header.len() {
                assert!(
                    matches!(ip_payload(link_type, &record[..len]), Err(LinkError::Parse(_))),
                    "{link_type:?} {len}"
                );
            }
        }
    }

    #[test]
    fn other_protocols_are_no_fault() {
        assert_eq!(ip_payload(LinkType::ETHERNET, &header(60, 12, 0x0806)), Err(LinkError::NotIp(0x0806)));
        assert_eq!(ip_payload(LinkType::LINUX_SLL2, &header(60, 0, 0x0004)), Err(LinkError::NotIp(4)));
        assert_eq!(ip_payload(LinkType::NULL, &[7, 0, 0, 0]), Err(LinkError::NotIp(7)));
        assert_eq!(ip_payload(LinkType::LOOP, &[2, 0, 0, 0]), Err(LinkError::NotIp(0x0200_0000)));
        assert_eq!(ip_payload(LinkType(105), &[0; 60]), Err(LinkError::UnknownLinkType(105)));
    }

    #[test]
    fn endless_tags_end_with_the_record() {
        let tags = [0x81, 0x00].repeat(500);
        assert!(matches!(ip_payload(LinkType::ETHERNET, &tags), Err(LinkError::Parse(_))));
    }
}
