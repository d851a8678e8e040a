//! Routes into the TUN device: one rule and one table per family, through rtnetlink.
//!
//! Weir's own packets carry a mark and are not looked up in the table. It holds, for each protected
//! destination, a route into the device and, with a worse metric, an unreachable route: if the
//! daemon is killed or fails, its device and the first route disappear, and the second one prevents
//! clear text. Networks that a wider destination covers but that are reached without a tunnel have
//! a throw route. The next start adopts the existing routes. Rule and routes that another program
//! removes are restored.

mod links;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use wire::{AddrRange, Selector};

use crate::border::{Closes, Legacy, Paths};
use crate::config::{Config, PolicyAction};
use crate::guard::{GuardPolicy, Verdict, contains};
use crate::netlink::{Message, Monitor, Netlink, ROUTE};
pub(crate) use table::{Network, Target, networks};

/// Reason that routes, addresses or the device could not be set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RouteError {
    /// The kernel refused an operation.
    #[error("{what}: {source}")]
    Kernel { what: String, source: io::Error },
    /// Another gateway uses the table.
    #[error(
        "routing table {table} already leads to {device}; stop the weir that uses it, or set another 'route_table' in the section 'gateway'"
    )]
    Taken { table: u32, device: String },
}

/// Shortest time between two restorations: another program may remove restored routes repeatedly.
const RESTORE_EVERY: Duration = Duration::from_millis(100);
/// Multicast groups of changes: RTNLGRP_IPV4_ROUTE, IPV4_RULE, IPV6_ROUTE, IPV6_RULE.
const CHANGES: [u32; 4] = [7, 8, 11, 19];

/// Rules and routes in place; removed when dropped, unless traffic must stay blocked.
pub(crate) struct Routes {
    netlink: Netlink,
    monitor: Monitor,
    tun: String,
    /// Index of the device.
    device: u32,
    table: u32,
    mark: u32,
    /// Families that have our rule (`true` is IPv6), with `true` if a killed daemon left the rule.
    families: BTreeMap<bool, bool>,
    routes: BTreeMap<Network, Target>,
    /// Addresses of this host, as last listed.
    host: Vec<IpAddr>,
    /// True if the remaining routes of an earlier gateway were read.
    adopted: bool,
    /// Another program removed rule or routes.
    damaged: bool,
    /// The last restoration failed, and the failure is in the log.
    failing: bool,
    /// Time of the last restoration.
    restored: Option<Instant>,
    /// Whether protected traffic stays unreachable after a drop.
    legacy: Legacy,
}

impl Routes {
    /// Nothing in place yet.
    ///
    /// # Errors
    /// No netlink socket, or no device of that name.
    pub(crate) fn new(config: &Config) -> Result<Self, RouteError> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |source| RouteError::Kernel { what, source }
        };
        let tun = config.gateway.tun.clone();
        Ok(Self {
            netlink: Netlink::open(ROUTE).map_err(failed("cannot open a netlink socket"))?,
            monitor: Monitor::open(ROUTE, &CHANGES).map_err(failed("cannot watch routes"))?,
            device: interface_index(&tun).map_err(failed("cannot find the TUN device"))?,
            tun,
            table: config.gateway.route_table,
            mark: config.gateway.fwmark,
            families: BTreeMap::new(),
            routes: BTreeMap::new(),
            host: Vec::new(),
            adopted: false,
            damaged: false,
            failing: false,
            restored: None,
            legacy: Legacy::default(),
        })
    }

    fn change(&mut self, wanted: &BTreeMap<Network, Target>) -> Result<(), RouteError> {
        let is_fresh = |(network, target): &(&Network, &Target)| self.routes.get(network) != Some(target);
        let fresh: Vec<(Network, Target)> = wanted.iter().filter(is_fresh).map(|(n, t)| (*n, *t)).collect();
        let mut stale: Vec<(Network, Option<Target>)> = Vec::new();
        let mut present = BTreeMap::new();
        if !self.adopted {
            for v6 in [false, true].into_iter().filter(|v6| !v6 || has_v6()) {
                let (left, ruled) = self.left_behind(v6)?;
                stale.extend(left.into_iter().map(|network| (network, None)));
                present.insert(v6, ruled);
            }
        }
        self.put(&fresh)?;
        // The rule of a family without routes stays until the next orderly stop.
        for (v6, _) in present.into_iter().filter(|(_, ruled)| *ruled) {
            self.families.entry(v6).or_insert(true);
        }
        self.adopted = true;
        stale.extend(self.routes.iter().map(|(network, target)| (*network, Some(*target))));
        for (network, target) in stale {
            if wanted.contains_key(&network) {
                continue;
            }
            self.remove(network, target);
            self.routes.remove(&network);
        }
        Ok(())
    }

    /// Adds routes, or replaces those to the same networks.
    fn put(&mut self, fresh: &[(Network, Target)]) -> Result<(), RouteError> {
        for v6 in [false, true] {
            let of_family: Vec<(Network, Target)> =
                fresh.iter().filter(|(network, _)| network.is_v6() == v6).copied().collect();
            if of_family.is_empty() {
                continue;
            }
            let closed = |(network, target): &(Network, Target)| {
                matches!(target, Target::Tunnel(_)).then(|| table::add_unreachable(self.table, *network))
            };
            self.request("add an unreachable route", of_family.iter().filter_map(closed).collect())?;
            if !self.families.contains_key(&v6) {
                self.add_rule(v6)?;
            }
            let add = |(network, target): &(Network, Target)| table::add(self.table, self.device, *network, *target);
            self.request("add a route", of_family.iter().map(add).collect())?;
            self.routes.extend(of_family);
        }
        Ok(())
    }

    fn request(&mut self, what: &str, mut requests: Vec<Message>) -> Result<(), RouteError> {
        if let Some(last) = requests.last_mut() {
            last.acknowledge();
        }
        self.netlink.request(&mut requests).map_err(|(_, source)| RouteError::Kernel {
            what: format!("cannot {what} in table {} towards {}", self.table, self.tun),
            source,
        })
    }

    /// Returns the networks that an earlier gateway left in our table, and whether its rule exists.
    fn left_behind(&mut self, v6: bool) -> Result<(Vec<Network>, bool), RouteError> {
        let failed = |source| RouteError::Kernel { what: format!("cannot list table {}", self.table), source };
        let listed = table::list(&mut self.netlink, v6, self.table).map_err(failed)?;
        let ruled = !table::marks(&mut self.netlink, v6, self.table).map_err(failed)?.is_empty();
        if let Some(index) = listed.iter().find_map(|route| route.interface.filter(|index| *index != self.device)) {
            let device = interface_name(index).unwrap_or_else(|| format!("interface {index}"));
            return Err(RouteError::Taken { table: self.table, device });
        }
        Ok((listed.into_iter().map(|route| route.network).collect(), ruled))
    }

    fn add_rule(&mut self, v6: bool) -> Result<(), RouteError> {
        let failed = |source| RouteError::Kernel { what: "cannot add the routing rule".to_owned(), source };
        let existed = match self.netlink.request(&mut [table::rule(true, v6, self.table, self.mark).acknowledged()]) {
            Ok(()) => false,
            Err((_, error)) if error.kind() == io::ErrorKind::AlreadyExists => true,
            Err((_, error)) => return Err(failed(error)),
        };
        // Rules of a killed daemon that had another mark. Our rule is in place already, so no
        // packet bypasses the table while they are removed.
        let marks = table::marks(&mut self.netlink, v6, self.table).map_err(failed)?;
        let others: Vec<u32> = marks.into_iter().filter(|mark| *mark != self.mark).collect();
        for mark in &others {
            let _ = self.netlink.request(&mut [table::rule(false, v6, self.table, *mark).acknowledged()]);
        }
        self.families.insert(v6, existed || !others.is_empty());
        Ok(())
    }

    /// Removes the route to a network, or all of them if `target` is `None`. Best effort: a route
    /// that no longer exists is not an error.
    fn remove(&mut self, network: Network, target: Option<Target>) {
        let targets = match target {
            Some(target) => vec![target],
            None => vec![Target::Tunnel(None), Target::Throw],
        };
        for target in targets {
            // The unreachable route exists even if a throw route has replaced one into the device.
            for request in [
                table::remove(self.table, self.device, network, target),
                table::remove_unreachable(self.table, network),
            ] {
                let _ = self.netlink.request(&mut [request.acknowledged()]);
            }
        }
    }

    /// Installs rules and routes again after another program has removed some.
    fn restore(&mut self) -> Result<(), RouteError> {
        let routes: Vec<(Network, Target)> = self.routes.iter().map(|(network, target)| (*network, *target)).collect();
        let families: Vec<bool> = self.families.keys().copied().collect();
        for v6 in families {
            let of_family = || routes.iter().filter(|(network, _)| network.is_v6() == v6);
            let closed = |(network, target): &(Network, Target)| {
                matches!(target, Target::Tunnel(_)).then(|| table::add_unreachable(self.table, *network))
            };
            self.request("add an unreachable route", of_family().filter_map(closed).collect())?;
            match self.netlink.request(&mut [table::rule(true, v6, self.table, self.mark).acknowledged()]) {
                Err((_, error)) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(RouteError::Kernel { what: "cannot add the routing rule".to_owned(), source: error });
                }
                _ => (),
            }
            let add = |(network, target): &(Network, Target)| table::add(self.table, self.device, *network, *target);
            self.request("add a route", of_family().map(add).collect())?;
        }
        Ok(())
    }
}

impl Closes for Routes {
    fn tick(&mut self, now: Instant) {
        let (own, table) = (self.netlink.port(), self.table);
        let mut changed = false;
        let complete = self.monitor.read(|message| {
            changed |= message.port != own
                && match message.kind {
                    table::RTM_DELROUTE => table::table_of_route(message.body) == Some(table),
                    table::RTM_DELRULE => table::preference_of_rule(message.body) == Some(table),
                    _ => false,
                };
        });
        self.damaged |= changed || !complete;
        let too_early = self.restored.is_some_and(|at| now.duration_since(at) < RESTORE_EVERY);
        // When the device is gone the kernel has removed its routes, and the gateway ends.
        if !self.damaged || too_early || interface_index(&self.tun).is_err() {
            return;
        }
        self.restored = Some(now);
        match self.restore() {
            Ok(()) => {
                (self.damaged, self.failing) = (false, false);
                tracing::warn!(target: "routes", "another program removed the rule or routes of table {table}: restored");
            }
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::error!(target: "routes", "{error}; protected traffic stays blocked until this succeeds");
            }
            Err(_) => (),
        }
    }

    fn stay(&mut self) {
        self.legacy.stay();
    }

    fn give_up(&mut self) {
        self.legacy.adopted = self.families.values().any(|existed| *existed);
        self.legacy.give_up();
    }

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

impl Paths for Routes {
    /// Installs the rules and routes that `policies` require; `own` are addresses of the device.
    /// After an error, earlier routes are kept, and added routes are recorded, so that they are
    /// removed with the others.
    ///
    /// A packet that must be protected before or after the change never finds another route: each
    /// network is made unreachable before the rule points to the table, and stale routes are
    /// removed last.
    fn apply(&mut self, policies: &[GuardPolicy], own: &[IpAddr]) -> anyhow::Result<()> {
        let (mut wanted, mut sourced) = wanted(policies, own, &self.host);
        // Addresses of the host rarely change: the last list is used if it has a source for each
        // route.
        if !sourced || self.host.is_empty() {
            self.host = host_addresses()?;
            (wanted, sourced) = self::wanted(policies, own, &self.host);
        }
        match self.change(&wanted) {
            // A source address may have been removed since it was listed.
            Err(RouteError::Kernel { .. }) if sourced => {
                self.host = host_addresses()?;
                Ok(self.change(&self::wanted(policies, own, &self.host).0)?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// Adds missing routes of `policies`. Returns false, without a change, if a throw route must be
    /// replaced or if no policies were applied before: both need [`Self::apply`] with all policies.
    fn add(&mut self, policies: &[GuardPolicy], own: &[IpAddr]) -> anyhow::Result<bool> {
        let (wanted, _) = wanted(policies, own, &self.host);
        if !self.adopted || wanted.keys().any(|network| self.routes.get(network) == Some(&Target::Throw)) {
            return Ok(false);
        }
        let fresh: Vec<(Network, Target)> =
            wanted.into_iter().filter(|(network, _)| !self.routes.contains_key(network)).collect();
        self.put(&fresh)?;
        Ok(true)
    }
}

impl AsFd for Routes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        if !self.legacy.is_removed(std::thread::panicking()) {
            return;
        }
        let families: Vec<bool> = self.families.keys().copied().collect();
        for v6 in families {
            let _ = self.netlink.request(&mut [table::rule(false, v6, self.table, self.mark).acknowledged()]);
        }
        for (network, target) in std::mem::take(&mut self.routes) {
            self.remove(network, Some(target));
        }
    }
}

/// Removes the rules and routes that a gateway with this table left. Returns whether there were
/// any.
///
/// # Errors
/// Errors of the kernel.
pub(crate) fn remove(table: u32) -> Result<bool, RouteError> {
    let failed =
        |source| RouteError::Kernel { what: format!("cannot remove rule and routes of table {table}"), source };
    let mut netlink = Netlink::open(ROUTE).map_err(failed)?;
    let mut found = false;
    for v6 in [false, true].into_iter().filter(|v6| !v6 || has_v6()) {
        for mark in table::marks(&mut netlink, v6, table).map_err(failed)? {
            found = true;
            let rule = table::rule(false, v6, table, mark).acknowledged();
            netlink.request(&mut [rule]).map_err(|(_, source)| failed(source))?;
        }
        for route in table::list(&mut netlink, v6, table).map_err(failed)? {
            found = true;
            for request in [
                table::remove_unreachable(table, route.network),
                table::remove(table, route.interface.unwrap_or_default(), route.network, Target::Tunnel(None)),
                table::remove(table, 0, route.network, Target::Throw),
            ] {
                // Only one of them matches; the others fail.
                let _ = netlink.request(&mut [request.acknowledged()]);
            }
        }
    }
    Ok(found)
}

fn interface_index(name: &str) -> io::Result<u32> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    Ok(rustix::net::netdevice::name_to_index(socket, name)?)
}

fn interface_name(index: u32) -> Option<String> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None).ok()?;
    rustix::net::netdevice::index_to_name(socket, index).ok()
}

/// Routes that policies require, given the addresses of the device and of this host; the second
/// value is false if a route into the device lacks a source address.
pub(crate) fn wanted(policies: &[GuardPolicy], own: &[IpAddr], host: &[IpAddr]) -> (BTreeMap<Network, Target>, bool) {
    let mut routes: BTreeMap<Network, Target> = BTreeMap::new();
    for policy in policies.iter().filter(|policy| policy.verdict == Verdict::Protect) {
        let Selector { src, dst, .. } = &policy.selector;
        let source = own.iter().chain(host).find(|addr| src.contains(**addr)).copied();
        for network in networks(dst) {
            // The first policy with an address in its selector determines the source.
            let route = routes.entry(network).or_insert(Target::Tunnel(source));
            if *route == Target::Tunnel(None) {
                *route = Target::Tunnel(source);
            }
        }
    }
    let sourced = routes.values().all(|target| *target != Target::Tunnel(None));
    let protected: Vec<AddrRange> = routes.keys().filter_map(Network::range).collect();
    let any = |selector: &Selector| selector.proto.is_none();
    for policy in policies.iter().filter(|policy| policy.verdict == Verdict::Pass && any(&policy.selector)) {
        for network in networks(&policy.selector.dst) {
            // A throw route is needed only inside a wider route into the device.
            let inside = network.range().is_some_and(|range| protected.iter().any(|wider| contains(wider, &range)));
            if inside && !routes.contains_key(&network) {
                routes.insert(network, Target::Throw);
            }
        }
    }
    (routes, sourced)
}

/// Returns whether this host has IPv6 at all.
pub(crate) fn has_v6() -> bool {
    std::path::Path::new("/proc/net/if_inet6").exists()
}

/// Adds or removes an address of the device.
///
/// # Errors
/// Errors of the kernel.
pub(crate) fn device_address(tun: &str, addr: IpAddr, on: bool) -> Result<(), RouteError> {
    let prefix = if addr.is_ipv6() { 128 } else { 32 };
    let what = if on { "add" } else { "remove" };
    set_device(tun, |device| links::set_address(device, addr, on)).map_err(|source| RouteError::Kernel {
        what: format!("cannot {what} the address {addr}/{prefix} of {tun}"),
        source,
    })
}

/// Sets the MTU of the device in bytes.
///
/// # Errors
/// Errors of the kernel.
pub(crate) fn device_mtu(tun: &str, bytes: u32) -> Result<(), RouteError> {
    set_device(tun, |device| links::set_mtu(device, bytes))
        .map_err(|source| RouteError::Kernel { what: format!("cannot set the MTU of {tun} to {bytes} bytes"), source })
}

fn set_device(tun: &str, request: impl FnOnce(u32) -> Message) -> io::Result<()> {
    let request = request(interface_index(tun)?).acknowledged();
    Netlink::open(ROUTE)?.request(&mut [request]).map_err(|(_, error)| error)
}

fn addresses() -> io::Result<Vec<links::Address>> {
    links::addresses(&mut Netlink::open(ROUTE)?)
}

/// Addresses of this host, without those of the loopback device.
///
/// # Errors
/// Errors of the kernel.
pub(crate) fn host_addresses() -> Result<Vec<IpAddr>, RouteError> {
    let failed = |source| RouteError::Kernel { what: "cannot list the addresses of this host".to_owned(), source };
    let own = addresses().map_err(failed)?.into_iter().map(|address| address.own.addr);
    Ok(own.filter(|addr| !addr.is_loopback()).collect())
}

/// Networks that the addresses of interfaces other than `tun` make reachable; none when the kernel
/// refuses to list them.
pub(crate) fn networks_of_links(tun: &str) -> Vec<AddrRange> {
    let device = interface_index(tun).ok();
    let others = addresses().unwrap_or_default().into_iter().filter(|address| Some(address.interface) != device);
    others.filter_map(|address| address.network.range()).collect()
}

/// Source addresses of this host's packets: for each network of an interface, and last, with the
/// whole family as network, for all other destinations of packets with `mark`. Addresses of `tun`,
/// loopback and link-local addresses are left out.
pub(crate) fn sources(tun: &str, mark: u32) -> Vec<(IpAddr, AddrRange)> {
    /// Destinations outside of every link, from the ranges for documentation; nothing is sent to
    /// them.
    const ELSEWHERE: [IpAddr; 2] =
        [IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1))];
    let device = interface_index(tun).ok();
    let is_link_local = |addr: IpAddr| match addr {
        IpAddr::V4(addr) => addr.is_link_local(),
        IpAddr::V6(addr) => addr.is_unicast_link_local(),
    };
    let all = addresses().unwrap_or_default().into_iter().filter(|address| Some(address.interface) != device);
    let others = all.filter(|address| !address.own.addr.is_loopback() && !is_link_local(address.own.addr));
    let mut sources: Vec<(IpAddr, AddrRange)> = others
        .filter_map(|address| Some((address.own.addr, address.network.range()?)))
        .filter(|(_, network)| network.start != network.end)
        .collect();
    // Only the first address of each network.
    let mut known = BTreeSet::new();
    sources.retain(|(_, network)| known.insert((network.start, network.end)));
    let whole = |addr: &IpAddr| if addr.is_ipv6() { AddrRange::ANY_V6 } else { AddrRange::ANY_V4 };
    let elsewhere = ELSEWHERE.into_iter().filter_map(|to| Some((crate::host::source_towards(to, mark)?, whole(&to))));
    sources.extend(elsewhere.filter(|(source, _)| !is_link_local(*source) && !source.is_loopback()));
    sources
}

/// Name of the interface with this address.
pub(crate) fn interface_of(addr: IpAddr) -> Option<String> {
    let with = addresses().ok()?.into_iter().find(|address| address.own.addr == addr)?;
    interface_name(with.interface)
}

/// Networks of private addresses on the links of this host (RFC 1918, RFC 4193, link-local),
/// without those of `tun`.
///
/// Private networks only: the operator of the link could announce a network of public addresses to
/// divert traffic from the tunnel.
pub(crate) fn private_networks(tun: &str) -> Vec<AddrRange> {
    const PRIVATE: [(IpAddr, u8); 6] = [
        (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
        (IpAddr::V4(Ipv4Addr::new(172, 16, 0, 0)), 12),
        (IpAddr::V4(Ipv4Addr::new(192, 168, 0, 0)), 16),
        (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
        (IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0)), 7),
        (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
    ];
    let private: Vec<AddrRange> =
        PRIVATE.iter().filter_map(|(addr, prefix)| AddrRange::from_cidr(*addr, *prefix)).collect();
    let device = interface_index(tun).ok();
    let all = addresses().unwrap_or_default().into_iter();
    let others = all
        .filter(|address| Some(address.interface) != device && !address.own.addr.is_loopback())
        .filter_map(|address| address.own.range());
    let mut networks: Vec<AddrRange> =
        others.filter(|range| private.iter().any(|private| contains(private, range))).collect();
    networks.sort_unstable_by_key(|range| (range.start, range.end));
    networks.dedup();
    networks
}

/// MTU of the route to a host in bytes, for packets with Weir's mark; `None` if there is no route.
/// Nothing is sent.
pub(crate) fn route_mtu(to: IpAddr, mark: u32) -> Option<u32> {
    let any: SocketAddr = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }.parse().ok()?;
    let socket = socket2::Socket::from(UdpSocket::bind(any).ok()?);
    socket.set_mark(mark).ok()?;
    socket.connect(&SocketAddr::new(to, wire::registry::PORT_IKE).into()).ok()?;
    let mtu =
        if to.is_ipv6() { rustix::net::sockopt::ipv6_mtu(&socket) } else { rustix::net::sockopt::ip_mtu(&socket) };
    mtu.ok().map(|mtu| mtu.min(65_535))
}

/// Device of the route to a host, for packets with Weir's mark; `None` if there is no route.
fn device_towards(to: IpAddr, mark: u32) -> Option<String> {
    let mut netlink = Netlink::open(ROUTE).ok()?;
    interface_name(links::interface_towards(&mut netlink, to, mark).ok()??)
}

/// Disables the reverse path filter of the TUN device. Best effort, because not every system needs
/// it.
pub(crate) fn settle_device(tun: &str) {
    let path = format!("/proc/sys/net/ipv4/conf/{tun}/rp_filter");
    if let Err(error) = std::fs::write(&path, "0") {
        tracing::debug!(target: "routes", "{path}: {error}");
    }
}

/// Warns if strict reverse path filtering would drop packets of a peer.
pub(crate) fn warn_about_kernel(config: &Config) {
    let read = |path: String| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let protected = |peer: IpAddr| {
        config
            .policies
            .iter()
            .filter(|policy| policy.action != PolicyAction::Bypass)
            .any(|policy| policy.selectors.iter().any(|selector| selector.dst.contains(peer)))
    };
    let mut warned = BTreeSet::new();
    for peer in config.sas.iter().map(|sa| sa.peer.remote).filter(|peer| peer.is_ipv4() && protected(*peer)) {
        let Some(device) = device_towards(peer, config.gateway.fwmark) else { continue };
        let strict = ["all", &device]
            .iter()
            .filter_map(|name| read(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"))?.parse::<u8>().ok())
            .max();
        if strict == Some(1) && warned.insert(device.clone()) {
            tracing::warn!(
                target: "routes",
                "strict reverse path filtering on {device} will drop packets of {peer}: sysctl -w \
                 net.ipv4.conf.{device}.rp_filter=2"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Vec<String> {
        networks(&text.parse().unwrap()).iter().map(Network::to_string).collect()
    }

    fn policy(verdict: Verdict, local: &str, remote: &str) -> GuardPolicy {
        let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
        GuardPolicy::new(verdict, Selector::from_sides(local, remote).unwrap())
    }

    #[test]
    fn pass_policies_become_throw_routes_only_inside_wider_routes() {
        let policies = [
            policy(Verdict::Pass, "0.0.0.0/0", "192.168.1.0/24"),
            policy(Verdict::Pass, "2001:db8::/64", "2001:db8:1::/64"),
            policy(Verdict::Protect, "10.3.0.1", "0.0.0.0/0"),
        ];
        let vip: IpAddr = [10, 3, 0, 1].into();
        let (routes, sourced) = wanted(&policies, &[vip], &[[192, 0, 2, 1].into()]);
        let network = |addr: [u8; 4], prefix| Network { addr: addr.into(), prefix };
        let all = [(network([0; 4], 0), Target::Tunnel(Some(vip))), (network([192, 168, 1, 0], 24), Target::Throw)];
        assert_eq!((routes, sourced), (all.into(), true));
    }

    #[test]
    fn the_first_policy_with_an_address_gives_the_source() {
        let policies = [
            policy(Verdict::Protect, "10.9.0.0/16", "10.2.0.0/16"),
            policy(Verdict::Protect, "10.1.0.0/16", "10.2.0.0/16"),
        ];
        let own: IpAddr = [10, 1, 0, 1].into();
        let (routes, _) = wanted(&policies, &[own], &[]);
        assert_eq!(routes.values().collect::<Vec<_>>(), [&Target::Tunnel(Some(own))]);
    }

    #[test]
    fn ranges_are_split_into_networks() {
        assert_eq!(range("10.1.0.0/16"), ["10.1.0.0/16"]);
        assert_eq!(range("10.0.0.1-10.0.0.6"), ["10.0.0.1/32", "10.0.0.2/31", "10.0.0.4/31", "10.0.0.6/32"]);
        assert_eq!(range("0.0.0.0/0"), ["0.0.0.0/0"]);
        assert_eq!(range("255.255.255.255"), ["255.255.255.255/32"]);
        assert_eq!(range("::/0"), ["::/0"]);
        assert_eq!(range("2001:db8::/64"), ["2001:db8::/64"]);
        assert_eq!(range("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff").len(), 1);
        assert_eq!(range("::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff").len(), 128);
        let all_but_the_ends = range("::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe");
        assert_eq!(all_but_the_ends.len(), table::MAX_NETWORKS);
        assert_eq!(all_but_the_ends.last().unwrap(), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/128");
    }
}
