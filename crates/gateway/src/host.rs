//! The host as the control side sees it: addresses, networks and routes outside of the tunnel, and
//! the TUN device.
//!
//! [`Kernel`] answers from the kernel. A simulation answers from its model of a host.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use wire::AddrRange;

use crate::routes::{self, RouteError};

/// Queries about the host, and changes to its TUN device.
pub(crate) trait HostNetwork: Send + Sync {
    /// Addresses of this host, those of the TUN device included.
    ///
    /// # Errors
    /// What the kernel refuses.
    fn addresses(&self) -> Result<Vec<IpAddr>, RouteError>;
    /// Returns the address from which this host sends marked packets to `remote`.
    fn source_towards(&self, remote: IpAddr) -> Option<IpAddr>;
    /// Returns the network of an interface other than the TUN device that contains `addr`.
    fn network_of(&self, addr: IpAddr) -> Option<AddrRange>;
    /// Private networks on links other than the TUN device.
    fn private_networks(&self) -> Vec<AddrRange>;
    /// Addresses of this host and the destinations that packets leave for with them.
    fn sources(&self) -> Vec<(IpAddr, AddrRange)>;
    /// Path MTU to a host in bytes, by the routing tables.
    fn route_mtu(&self, to: IpAddr) -> Option<u32>;
    /// Adds an address to the TUN device, or removes it.
    ///
    /// # Errors
    /// What the kernel refuses.
    fn device_address(&self, addr: IpAddr, on: bool) -> Result<(), RouteError>;
    /// Sets the MTU of the TUN device, in bytes.
    ///
    /// # Errors
    /// What the kernel refuses.
    fn device_mtu(&self, bytes: u32) -> Result<(), RouteError>;
}

/// The kernel of this host, for a gateway with that TUN device and that mark.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// Name of the TUN device.
    pub(crate) tun: String,
    /// Mark of the gateway's own packets.
    pub(crate) mark: u32,
}

impl HostNetwork for Kernel {
    fn addresses(&self) -> Result<Vec<IpAddr>, RouteError> {
        routes::host_addresses()
    }

    fn source_towards(&self, remote: IpAddr) -> Option<IpAddr> {
        source_towards(remote, self.mark)
    }

    fn network_of(&self, addr: IpAddr) -> Option<AddrRange> {
        routes::networks_of_links(&self.tun).into_iter().find(|network| network.contains(addr))
    }

    fn private_networks(&self) -> Vec<AddrRange> {
        routes::private_networks(&self.tun)
    }

    fn sources(&self) -> Vec<(IpAddr, AddrRange)> {
        routes::sources(&self.tun, self.mark)
    }

    fn route_mtu(&self, to: IpAddr) -> Option<u32> {
        routes::route_mtu(to, self.mark)
    }

    fn device_address(&self, addr: IpAddr, on: bool) -> Result<(), RouteError> {
        routes::device_address(&self.tun, addr, on)
    }

    fn device_mtu(&self, bytes: u32) -> Result<(), RouteError> {
        routes::device_mtu(&self.tun, bytes)
    }
}

/// The address from which this host sends packets with a mark to `remote`, by the routing table.
/// Nothing is sent.
pub(crate) fn source_towards(remote: IpAddr, mark: u32) -> Option<IpAddr> {
    let any: SocketAddr = if remote.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }.parse().ok()?;
    let socket = socket2::Socket::from(UdpSocket::bind(any).ok()?);
    if mark != 0 {
        socket.set_mark(mark).ok()?;
    }
    socket.connect(&SocketAddr::new(remote, wire::registry::PORT_IKE).into()).ok()?;
    Some(socket.local_addr().ok()?.as_socket()?.ip())
}
