//! Configuration payloads (RFC 7296 §2.19, §3.15): addresses that a gateway gives to a client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::ike::{CfgAttr, CfgType, Chain};

use crate::config::Connection;
use crate::context::Context;
use crate::error::{IkeError, Mismatch};
use crate::output::{Level, Subsystem, VirtualIp};
use crate::pool::{Client, Leased};

/// Addresses and name servers that are taken of a gateway.
const ADDRESSES_MAX: usize = 8;

/// Requests the addresses of a connection, and name servers with them; if any address is
/// acceptable, one of `current`.
pub(super) fn emit_request(connection: &Connection, current: &[IpAddr], chain: &mut Chain<'_>) {
    let attributes = wanted_attributes(connection, current);
    if !attributes.is_empty() {
        emit(chain, CfgType::REQUEST, &attributes);
    }
}

/// Attributes of such a request; IKEv1 has the same ones.
pub(crate) fn wanted_attributes(connection: &Connection, current: &[IpAddr]) -> Vec<(CfgAttr, Vec<u8>)> {
    let mut attributes: Vec<(CfgAttr, Vec<u8>)> = connection.vips.iter().map(|vip| wanted(vip, current)).collect();
    if connection.dns && connection.vips.iter().any(IpAddr::is_ipv4) {
        attributes.push((CfgAttr::INTERNAL_IP4_DNS, Vec::new()));
    }
    if connection.dns && connection.vips.iter().any(IpAddr::is_ipv6) {
        attributes.push((CfgAttr::INTERNAL_IP6_DNS, Vec::new()));
    }
    attributes
}

fn wanted(vip: &IpAddr, current: &[IpAddr]) -> (CfgAttr, Vec<u8>) {
    let same = |addr: &&IpAddr| vip.is_unspecified() && addr.is_ipv4() == vip.is_ipv4();
    match current.iter().find(same).unwrap_or(vip) {
        vip if vip.is_unspecified() && vip.is_ipv4() => (CfgAttr::INTERNAL_IP4_ADDRESS, Vec::new()),
        vip if vip.is_unspecified() => (CfgAttr::INTERNAL_IP6_ADDRESS, Vec::new()),
        vip => given(*vip),
    }
}

fn given(addr: IpAddr) -> (CfgAttr, Vec<u8>) {
    match addr {
        IpAddr::V4(addr) => (CfgAttr::INTERNAL_IP4_ADDRESS, addr.octets().to_vec()),
        // With the prefix length of a single host.
        IpAddr::V6(addr) => (CfgAttr::INTERNAL_IP6_ADDRESS, [&addr.octets()[..], &[128]].concat()),
    }
}

fn emit(chain: &mut Chain<'_>, kind: CfgType, attributes: &[(CfgAttr, Vec<u8>)]) {
    let attributes: Vec<(CfgAttr, &[u8])> = attributes.iter().map(|(attr, value)| (*attr, &value[..])).collect();
    chain.cfg(kind, &attributes);
}

/// Parses the addresses that a gateway assigns; name servers only where they are wanted (`dns`).
pub(crate) fn read_reply<'a>(attributes: impl Iterator<Item = (CfgAttr, &'a [u8])>, dns: bool) -> Vec<VirtualIp> {
    let (mut addresses, mut servers) = (Vec::new(), Vec::new());
    for (attr, value) in attributes {
        let list = match attr {
            CfgAttr::INTERNAL_IP4_ADDRESS | CfgAttr::INTERNAL_IP6_ADDRESS => &mut addresses,
            CfgAttr::INTERNAL_IP4_DNS | CfgAttr::INTERNAL_IP6_DNS => &mut servers,
            _ => continue,
        };
        if let Some(addr) = address(value).filter(|addr| !addr.is_unspecified() && list.len() < ADDRESSES_MAX) {
            list.push(addr);
        }
    }
    let mut virtuals: Vec<VirtualIp> = addresses.into_iter().map(|addr| VirtualIp { addr, dns: Vec::new() }).collect();
    if let Some(first) = virtuals.first_mut().filter(|_| dns) {
        first.dns = servers;
    }
    virtuals
}

/// The addresses that can be used; name servers go to the first one.
///
/// # Errors
/// Each address that was given is refused, with the reasons.
pub(crate) fn usable(ctx: &mut Context<'_>, given: Vec<VirtualIp>) -> Result<Vec<VirtualIp>, IkeError> {
    let (mut usable, mut refused, mut dns) = (Vec::new(), Vec::new(), Vec::new());
    for mut address in given {
        dns.append(&mut address.dns);
        match unusable(ctx, address.addr) {
            Some(why) => refused.push(format!("virtual address {} refused: it is {why}", address.addr)),
            None => usable.push(address),
        }
    }
    match usable.first_mut() {
        // Name servers of refused addresses are kept, because the tunnel may still reach them.
        Some(first) => first.dns = dns,
        None if refused.is_empty() => (),
        None => return Err(IkeError::Configuration(Mismatch::Addresses, refused.join("; ").into())),
    }
    for text in refused {
        ctx.log(Level::Error, Subsystem::Ike, None, text);
    }
    Ok(usable)
}

/// Reason to refuse an address that a gateway gives: it would capture traffic of this host that
/// should not enter the tunnel.
fn unusable(ctx: &Context<'_>, addr: IpAddr) -> Option<String> {
    let kind = match addr {
        _ if addr.is_loopback() => "a loopback address",
        _ if addr.is_multicast() => "a multicast address",
        _ if addr.is_unspecified() => "unspecified",
        IpAddr::V4(v4) if v4.is_link_local() => "a link-local address",
        IpAddr::V4(v4) if v4.is_broadcast() => "the broadcast address",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "a link-local address",
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => "an IPv4-mapped address",
        _ if ctx.names.local_addresses.contains(&addr) => "an address of this host",
        _ => return (ctx.owned)(addr).map(|network| format!("in {network}, a network of this host")),
    };
    Some(kind.to_owned())
}

/// An address; IPv6 with or without prefix length.
fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(|octets| Ipv4Addr::from(octets).into()),
        16 | 17 => value.first_chunk().map(|octets: &[u8; 16]| Ipv6Addr::from(*octets).into()),
        _ => None,
    }
}

/// Addresses that a client requests, in order; an unspecified address is any of its family.
pub(crate) fn read_request<'a>(attributes: impl Iterator<Item = (CfgAttr, &'a [u8])>) -> Vec<IpAddr> {
    let mut requested = Vec::new();
    for (attr, value) in attributes.take(ADDRESSES_MAX * 8) {
        let any = match attr {
            CfgAttr::INTERNAL_IP4_ADDRESS => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            CfgAttr::INTERNAL_IP6_ADDRESS => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => continue,
        };
        let preferred = address(value).filter(|addr| addr.is_ipv4() == any.is_ipv4()).unwrap_or(any);
        // A client receives one address of each family; a second address would be an alternative.
        if !requested.iter().any(|other: &IpAddr| other.is_ipv4() == preferred.is_ipv4()) {
            requested.push(preferred);
        }
    }
    requested
}

/// Addresses out of the pools of a connection.
pub(crate) fn assign(
    ctx: &mut Context<'_>,
    connection: &Connection,
    client: Client<'_>,
    requested: &[IpAddr],
) -> Result<Vec<Leased>, IkeError> {
    let mut leases = Vec::new();
    for preferred in requested {
        leases.extend(ctx.pools.acquire(&connection.pools, client, *preferred));
    }
    // One family is sufficient: clients often request both, but the gateway may have one pool.
    if leases.is_empty() && !requested.is_empty() {
        let reason = match connection.pools.len() {
            0 => format!("'{}' has no pools, but the peer requests an address", connection.name),
            _ => format!("no address is left in the pools of '{}'", connection.name),
        };
        return Err(IkeError::Configuration(Mismatch::Addresses, reason.into()));
    }
    Ok(leases)
}

/// Sends a client its addresses and the attributes of their pools.
pub(super) fn emit_reply(ctx: &Context<'_>, leases: &[Leased], chain: &mut Chain<'_>) {
    if !leases.is_empty() {
        emit(chain, CfgType::REPLY, &reply_attributes(ctx, leases));
    }
}

/// Attributes of such a reply; IKEv1 has the same ones.
pub(crate) fn reply_attributes(ctx: &Context<'_>, leases: &[Leased]) -> Vec<(CfgAttr, Vec<u8>)> {
    let mut attributes: Vec<(CfgAttr, Vec<u8>)> = leases.iter().map(|leased| given(leased.addr)).collect();
    let mut pools: Vec<String> = leases.iter().map(|leased| leased.pool.clone()).collect();
    pools.dedup();
    attributes.extend(ctx.pools.attributes(&pools).map(|(attr, value)| (CfgAttr(*attr), value.clone())));
    attributes
}

#[cfg(test)]
mod tests {
    use wire::ike::Cfg;

    use super::*;

    #[test]
    fn a_reply_is_read_with_its_name_servers() {
        let mut body = Vec::new();
        let attributes: [(CfgAttr, &[u8]); 6] = [
            (CfgAttr::INTERNAL_IP4_ADDRESS, &[10, 9, 0, 7]),
            (CfgAttr::INTERNAL_IP4_NETMASK, &[255, 255, 255, 255]),
            (CfgAttr::INTERNAL_IP4_DNS, &[10, 9, 0, 1]),
            (CfgAttr::INTERNAL_IP4_DNS, &[]),
            (CfgAttr::INTERNAL_IP6_ADDRESS, &[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 128]),
            (CfgAttr::INTERNAL_IP4_ADDRESS, &[0, 0, 0, 0]),
        ];
        Cfg::emit(CfgType::REPLY, &attributes, &mut body);
        let read = |dns| read_reply(Cfg::parse(&body).unwrap().attributes().map_while(Result::ok), dns);
        let virtuals = read(true);
        assert!(read(false).iter().all(|virtual_| virtual_.dns.is_empty()));
        let addrs: Vec<String> = virtuals.iter().map(|virtual_| virtual_.addr.to_string()).collect();
        assert_eq!(addrs, ["10.9.0.7", "fd00::5"]);
        assert_eq!(virtuals[0].dns, [IpAddr::from([10, 9, 0, 1])]);
    }

    #[test]
    fn one_address_per_family_counts() {
        let mut body = Vec::new();
        let attributes: [(CfgAttr, &[u8]); 4] = [
            (CfgAttr::INTERNAL_IP4_ADDRESS, &[10, 9, 0, 7]),
            (CfgAttr::INTERNAL_IP4_ADDRESS, &[]),
            (CfgAttr::INTERNAL_IP6_ADDRESS, &[1, 2]),
            (CfgAttr::INTERNAL_IP4_DNS, &[]),
        ];
        Cfg::emit(CfgType::REQUEST, &attributes, &mut body);
        let requested = read_request(Cfg::parse(&body).unwrap().attributes().map_while(Result::ok));
        assert_eq!(requested, [IpAddr::from([10, 9, 0, 7]), IpAddr::V6(Ipv6Addr::UNSPECIFIED)]);
    }
}
