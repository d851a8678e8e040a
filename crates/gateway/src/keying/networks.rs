//! Networks of this host: those of its interfaces' addresses.

use std::net::IpAddr;

use wire::AddrRange;

use crate::routes;

/// The network of an interface other than `tun` that contains `addr`.
pub(super) fn of_host(tun: &str, addr: IpAddr) -> Option<AddrRange> {
    routes::networks_of_links(tun).into_iter().find(|network| network.contains(addr))
}
