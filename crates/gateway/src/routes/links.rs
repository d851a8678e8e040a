//! rtnetlink messages about interfaces: addresses, MTU, and the link towards a host.

use std::io;
use std::net::IpAddr;

use super::table::{self, Network, address, family, octets};
use crate::netlink::{Message, NLM_F_CREATE, NLM_F_REPLACE, Netlink, Received, attribute, number};

/// Messages of rtnetlink.
const RTM_SETLINK: u16 = 19;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
/// Attributes of interfaces, of addresses and of routes.
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_MARK: u16 = 16;
/// Bytes of `ifinfomsg` and of `ifaddrmsg`.
const LINK_FIXED: usize = 16;
const ADDRESS_FIXED: usize = 8;
/// Addresses of this host that are listed; further ones are ignored. At most 3 MiB.
const ADDRESSES_MAX: usize = 65_536;

/// An address of an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Address {
    /// The address itself with the prefix length.
    pub(super) own: Network,
    /// The network that it makes reachable: on a point-to-point link the peer.
    pub(super) network: Network,
    /// Index of the interface.
    pub(super) interface: u32,
}

/// Sets the MTU of an interface in bytes.
pub(super) fn set_mtu(interface: u32, bytes: u32) -> Message {
    let mut fixed = [0; LINK_FIXED];
    fixed[4..8].copy_from_slice(&interface.to_ne_bytes());
    let mut request = Message::new(RTM_SETLINK, 0, &fixed);
    request.ne32(IFLA_MTU, bytes);
    request
}

/// Gives an interface an address of a single host, or takes it away.
pub(super) fn set_address(interface: u32, addr: IpAddr, on: bool) -> Message {
    let prefix = if addr.is_ipv6() { 128 } else { 32 };
    let mut fixed = [family(addr.is_ipv6()), prefix, 0, 0, 0, 0, 0, 0];
    fixed[4..].copy_from_slice(&interface.to_ne_bytes());
    let (message, flags) = if on { (RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE) } else { (RTM_DELADDR, 0) };
    let mut request = Message::new(message, flags, &fixed);
    // Both: of IPv4 the first is the address of this host, of IPv6 the second where the first is
    // missing.
    request.attr(IFA_LOCAL, &octets(addr)).attr(IFA_ADDRESS, &octets(addr));
    request
}

/// Addresses of this host.
pub(super) fn addresses(netlink: &mut Netlink) -> io::Result<Vec<Address>> {
    let mut all = Vec::new();
    netlink.dump(Message::new(RTM_GETADDR, 0, &[0; ADDRESS_FIXED]), |message| {
        if all.len() < ADDRESSES_MAX {
            all.extend(read_address(message));
        }
    })?;
    Ok(all)
}

fn read_address(message: Received<'_>) -> Option<Address> {
    let (fixed, attributes) = message.body.split_at_checked(ADDRESS_FIXED)?;
    if message.kind != RTM_NEWADDR {
        return None;
    }
    let (v6, prefix) = (fixed[0] == family(true), fixed[1]);
    let of = |kind| attribute(attributes, kind).and_then(address).filter(|addr| addr.is_ipv6() == v6);
    // On a point-to-point link IFA_ADDRESS is the peer; IPv6 has IFA_LOCAL only there.
    let peer = of(IFA_ADDRESS).or_else(|| of(IFA_LOCAL))?;
    let own = of(IFA_LOCAL).unwrap_or(peer);
    let network = |addr| Network { addr, prefix };
    Some(Address { own: network(own), network: network(peer), interface: number(&fixed[4..])? })
}

/// Index of the interface by which packets with `mark` leave to a host.
pub(super) fn interface_towards(netlink: &mut Netlink, to: IpAddr, mark: u32) -> io::Result<Option<u32>> {
    let mut fixed = [0; table::FIXED];
    (fixed[0], fixed[1]) = (family(to.is_ipv6()), if to.is_ipv6() { 128 } else { 32 });
    let mut request = Message::new(RTM_GETROUTE, 0, &fixed);
    request.attr(RTA_DST, &octets(to)).ne32(RTA_MARK, mark);
    let mut found = None;
    netlink.get(request, |message| found = found.or(read_interface(message)))?;
    Ok(found)
}

fn read_interface(message: Received<'_>) -> Option<u32> {
    let attributes = message.body.get(table::FIXED..).filter(|_| message.kind == RTM_NEWROUTE)?;
    attribute(attributes, RTA_OIF).and_then(number)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::{device_address, device_mtu, device_towards, interface_index};
    use super::*;
    use crate::netlink::ROUTE;

    /// Bodies of RTM_NEWADDR as Linux 6.18 sent them.
    const LOOPBACK: &str = "020880fe01000000080001007f000001080002007f000001070003006c6f0000080008008000000014000600\
                            ffffffffffffffff3d3a01003d3a0100";
    const POINT_TO_POINT: &str = "0220800004000000080001000a090002080002000a0900010900030070707030000000000800080080000000\
                                  14000600ffffffffffffffff483a0100483a0100";
    const V6: &str = "0a408200030000001400010020010db800000000000000000000000114000600ffffffffffffffff483a0100483a0100\
                      0800080082000000";
    /// Bodies of RTM_NEWROUTE: 203.0.113.9 and 2001:db8:5::1 through routers.
    const ROUTE_V4: &str = "02200000fe0000010002000008000f00fe00000008000100cb007109080004000300000008000700c0000201\
                            08000500c00002fe0800100065770000080019000000000024000c0002000000000000000000000000000000\
                            00000000000000000000000000000000";
    const ROUTE_V6: &str = "0a808000fe0300010000000008000f00fe0000001400010020010db8000500000000000000000001140002000000\
                            00000000000000000000000000001400070020010db8000000000000000000000001080006000004000014000500\
                            20010db8000000000000000000000002080004000300000024000c000200000000000000000000000000000000\
                            0000000000000000000000000000000500140000000000";

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
        digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
    }

    fn network(text: &str) -> Network {
        let (addr, prefix) = text.split_once('/').unwrap();
        Network { addr: addr.parse().unwrap(), prefix: prefix.parse().unwrap() }
    }

    #[test]
    fn recorded_addresses_are_read() {
        for (recorded, own, reached, interface) in [
            (LOOPBACK, "127.0.0.1/8", "127.0.0.1/8", 1),
            (POINT_TO_POINT, "10.9.0.1/32", "10.9.0.2/32", 4),
            (V6, "2001:db8::1/64", "2001:db8::1/64", 3),
        ] {
            let body = bytes(recorded);
            let found = read_address(Received::new(RTM_NEWADDR, &body));
            assert_eq!(found, Some(Address { own: network(own), network: network(reached), interface }));
            assert_eq!(read_address(Received::new(RTM_NEWROUTE, &body)), None, "another type of message");
        }
    }

    #[test]
    fn recorded_routes_name_their_interface() {
        for recorded in [ROUTE_V4, ROUTE_V6] {
            let body = bytes(recorded);
            assert_eq!(read_interface(Received::new(RTM_NEWROUTE, &body)), Some(3));
            assert_eq!(read_interface(Received::new(RTM_NEWADDR, &body)), None);
        }
    }

    #[test]
    fn messages_that_are_cut_or_wrong_are_not_misread() {
        for recorded in [LOOPBACK, POINT_TO_POINT, V6, ROUTE_V4, ROUTE_V6] {
            let whole = bytes(recorded);
            for length in 0..whole.len() {
                let _ = read_address(Received::new(RTM_NEWADDR, &whole[..length]));
                let _ = read_interface(Received::new(RTM_NEWROUTE, &whole[..length]));
            }
            assert_eq!(read_address(Received::new(RTM_NEWADDR, &whole[..ADDRESS_FIXED])), None);
        }
        // IPv6 by its header, IPv4 by its length.
        let mut mixed = bytes(LOOPBACK);
        mixed[0] = family(true);
        assert_eq!(read_address(Received::new(RTM_NEWADDR, &mixed)), None);
    }

    /// Runs an ignored test of this file in a separate network namespace.
    fn apart(test: &str) {
        let this = std::env::current_exe().unwrap();
        for way in [&["-n"][..], &["-Urn"]] {
            let output = Command::new("unshare")
                .args(way)
                .arg(&this)
                .args(["--exact", "--ignored", "--nocapture", &format!("routes::links::tests::{test}")])
                .output();
            let Ok(output) = output else { break };
            let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            if text.contains("unshare failed") {
                continue;
            }
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        println!("SKIPPED: no network namespaces here");
    }

    #[test]
    fn the_kernel_takes_addresses_mtu_and_questions() {
        apart("in_a_namespace");
    }

    #[test]
    #[ignore = "changes interfaces: run by the_kernel_takes_addresses_mtu_and_questions"]
    fn in_a_namespace() {
        let ip = |args: &str| {
            let output = Command::new("ip").args(args.split(' ')).output().expect("iproute2");
            assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        ip("link add here type veth peer name there");
        for device in ["lo", "here", "there"] {
            ip(&format!("link set {device} up"));
        }
        ip("addr add 192.0.2.1/24 dev here");
        ip("addr add 2001:db8::1/64 dev here nodad");
        ip("addr add 10.9.0.1 peer 10.9.0.2/32 dev there");
        let mut netlink = Netlink::open(ROUTE).unwrap();
        let (here, there) = (interface_index("here").unwrap(), interface_index("there").unwrap());
        let find = |netlink: &mut Netlink, own: &str| {
            addresses(netlink).unwrap().into_iter().find(|address| address.own == network(own))
        };
        let peer = find(&mut netlink, "10.9.0.1/32").unwrap();
        assert_eq!((peer.network, peer.interface), (network("10.9.0.2/32"), there));

        device_mtu("here", 1337).unwrap();
        assert!(ip("-o link show here").contains("mtu 1337"));
        assert!(device_mtu("here", 1).is_err_and(|error| error.to_string().contains("MTU of here")));
        assert!(device_mtu("absent", 1400).is_err());

        for addr in ["10.3.0.1", "fd03::1"] {
            let (addr, prefix): (IpAddr, u8) = (addr.parse().unwrap(), if addr.contains(':') { 128 } else { 32 });
            let own = format!("{addr}/{prefix}");
            for _ in 0..2 {
                device_address("here", addr, true).expect("replaces the one that is there");
            }
            assert_eq!(find(&mut netlink, &own).map(|address| address.interface), Some(here));
            device_address("here", addr, false).unwrap();
            assert_eq!(find(&mut netlink, &own), None);
            assert!(device_address("here", addr, false).is_err_and(|error| error.to_string().contains(&own)));
        }

        // The mark chooses the table.
        ip("route add 203.0.113.0/24 dev here");
        ip("route add 203.0.113.0/24 dev there table 77");
        ip("rule add fwmark 0x7765 lookup 77");
        ip("route add unreachable 198.51.100.0/24");
        let towards = |to: &str, mark| device_towards(to.parse().unwrap(), mark);
        assert_eq!(towards("203.0.113.9", 1).as_deref(), Some("here"));
        assert_eq!(towards("203.0.113.9", 0x7765).as_deref(), Some("there"));
        assert_eq!(towards("2001:db8::9", 1).as_deref(), Some("here"));
        assert_eq!(towards("198.51.100.1", 1), None, "unreachable");
        assert_eq!(towards("192.168.9.9", 1), None, "no route");
    }
}
