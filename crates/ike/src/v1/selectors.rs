//! Selectors of quick mode: one ID payload for each side (RFC 2407 §4.6.2).

use wire::ike::IdType;
use wire::ike::v1::Id;
use wire::{AddrRange, PortRange, TrafficSelector};

use super::fault::Fault;
use crate::identity::Identity;

/// Body of the ID payload of one side.
///
/// A payload has one port or none; wider ranges are refused with the configuration.
pub(super) fn emit(ts: &TrafficSelector) -> Vec<u8> {
    let AddrRange { start, end } = ts.addrs;
    let text = match ts.addrs.prefix() {
        _ if start == end => start.to_string(),
        Some(prefix) => format!("{start}/{prefix}"),
        None => format!("{start}-{end}"),
    };
    let port = if ts.ports.start == ts.ports.end { ts.ports.start } else { 0 };
    let mut body = Vec::new();
    // An identity of addresses has the type and the data of the payload.
    if let Ok(addresses) = Identity::parse(&text).or_else(|_| Identity::parse(&format!("{}:{text}", family(start)))) {
        Id { kind: addresses.kind, proto: ts.proto, port, data: &addresses.data }.emit(&mut body);
    }
    body
}

/// Prefix of an address that [`Identity::parse`] would take for any identity, such as 0.0.0.0.
fn family(addr: std::net::IpAddr) -> &'static str {
    if addr.is_ipv4() { "ipv4" } else { "ipv6" }
}

/// Reads the selector in the body of an ID payload.
pub(super) fn read(body: &[u8]) -> Result<TrafficSelector, Fault> {
    let id = Id::parse(body)?;
    let addrs = Identity { kind: id.kind, data: id.data.to_vec() }.addresses();
    let addrs = addrs.ok_or_else(|| Fault::selectors(format!("a selector of type {}", id.kind)))?;
    let ports = match (id.port, id.proto) {
        (_, None) | (0, _) => PortRange::ANY,
        (port, Some(_)) => PortRange::single(port),
    };
    Ok(TrafficSelector { addrs, proto: id.proto, ports })
}

/// Networks in an attribute UNITY_SPLIT_INCLUDE: entries of an address, a mask, and six bytes of
/// protocol and ports, which no known server sets. Entries that are not a network are left out.
pub(super) fn split_networks(value: &[u8]) -> impl Iterator<Item = TrafficSelector> + '_ {
    /// Bytes of an entry; some servers send the last one without its end.
    const ENTRY: usize = 14;
    let network = |entry: &[u8]| {
        let data = entry.get(..8)?.to_vec();
        let addrs = Identity { kind: IdType::IPV4_ADDR_SUBNET, data }.addresses()?;
        Some(TrafficSelector::any(addrs))
    };
    value.chunks(ENTRY).filter_map(network)
}

/// Returns whether a selector can be sent: one port or all of them.
pub(super) fn is_expressible(ports: PortRange) -> bool {
    // Port 0 in a payload is any port.
    ports == PortRange::ANY || (ports.start == ports.end && ports.start != 0)
}

/// Checks the ID payload of phase 1: protocol and port are 0, or UDP and a port of IKE (RFC 2407
/// §4.6.2).
pub(super) fn identity(body: &[u8]) -> Result<Identity, Fault> {
    let id = Id::parse(body)?;
    let permitted = matches!((id.proto.map_or(0, |proto| proto.0), id.port), (0 | 17, 0) | (17, 500 | 4500));
    if !permitted || id.kind == IdType(0) {
        return Err(Fault::violation("an identity with a protocol or port other than those of IKE"));
    }
    Ok(Identity { kind: id.kind, data: id.data.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_survive_the_payload() {
        for text in [
            "10.0.0.1/32",
            "10.1.0.0/16",
            "0.0.0.0/0",
            "0.0.0.0/32",
            "10.1.0.3-10.1.0.77",
            "10.1.0.0/16[tcp/22]",
            "10.1.0.0/16[udp]",
            "2001:db8::1/128",
            "2001:db8::/32",
            "::/0",
            "2001:db8::3-2001:db8::77",
        ] {
            let ts: TrafficSelector = text.parse().expect("a selector");
            assert_eq!(read(&emit(&ts)).ok(), Some(ts), "{text}");
        }
        // Type, protocol, port, address.
        assert_eq!(emit(&"10.0.0.1/32[tcp/22]".parse().expect("a selector")), [1, 6, 0, 22, 10, 0, 0, 1]);
        assert_eq!(emit(&"10.1.0.0/16".parse().expect("a selector")), [4, 0, 0, 0, 10, 1, 0, 0, 255, 255, 0, 0]);
        // A name, and a mask with holes.
        assert!(read(&[2, 0, 0, 0, b'a']).is_err() && read(&[4, 0, 0, 0, 10, 0, 0, 0, 255, 0, 255, 0]).is_err());
    }

    #[test]
    fn split_networks_are_entries_of_an_address_and_a_mask() {
        let networks = |value: &[u8]| split_networks(value).map(|ts| ts.to_string()).collect::<Vec<_>>();
        let entry = |octets: [u8; 8]| [&octets[..], &[0; 6]].concat();
        let (one, other) = (entry([10, 1, 0, 0, 255, 255, 0, 0]), entry([10, 2, 3, 0, 255, 255, 255, 0]));
        assert_eq!(networks(&[one.clone(), other.clone()].concat()), ["10.1.0.0/16", "10.2.3.0/24"]);
        // A mask with holes, and an entry without its end.
        let holes = entry([10, 1, 0, 0, 255, 0, 255, 0]);
        assert_eq!(networks(&[holes, other[..8].to_vec()].concat()), ["10.2.3.0/24"]);
        assert!(networks(&one[..7]).is_empty() && networks(&[]).is_empty());
    }

    #[test]
    fn identities_have_the_port_of_ike_or_none() {
        let of = |proto, port: u16| identity(&[&[2, proto][..], &port.to_be_bytes(), b"a.test"].concat());
        for (proto, port) in [(0, 0), (17, 0), (17, 500), (17, 4500)] {
            assert_eq!(of(proto, port).expect("an identity").to_string(), "a.test");
        }
        assert!(of(6, 500).is_err() && of(17, 501).is_err() && of(0, 500).is_err());
    }
}
