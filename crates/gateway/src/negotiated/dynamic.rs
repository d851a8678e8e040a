//! Meaning of `dynamic` in the selectors of standing policies, before anything is negotiated and
//! after addresses change.

use std::net::IpAddr;
use std::sync::Arc;

use ike::config::{ChildConfig, ChildMode, Connection, PoolConfig, TsConfig};
use wire::{AddrRange, Selector, TrafficSelector};

use super::{Negotiated, pairs};

/// Outer addresses of a connection: of this host and of the peer, if known.
pub(crate) type Dynamic = (Option<IpAddr>, Option<IpAddr>);

/// Virtual addresses that a connection has.
pub(super) fn of_connection(virtual_addresses: &[(String, IpAddr)], connection: &str) -> Vec<IpAddr> {
    virtual_addresses.iter().filter(|(name, _)| name == connection).map(|(_, addr)| *addr).collect()
}

/// Addresses that a connection gives to its peers or gets from them.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    /// Virtual addresses of this host.
    pub(super) own: &'a [IpAddr],
    /// Ranges of the pools for peers.
    pub(super) pools: &'a [AddrRange],
}

/// Selectors of a section; `None` when the peer has no address yet and `dynamic` means that.
///
/// In `remote_ts` it means the address of the peer, every address that a peer may have where the
/// destination of a packet is the peer, and every address that a peer can get from the pools of the
/// connection: packets for one that no peer has are dropped. Traffic that should be protected stays
/// blocked for every source until the address of this host is known: the virtual one with `vips`,
/// otherwise the outer one. A policy that lets packets pass waits for it.
pub(super) fn resolve(
    connection: &Connection,
    config: &ChildConfig,
    Given { own: virtual_addresses, pools }: Given<'_>,
    (local, remote): Dynamic,
) -> Option<Vec<Selector>> {
    let single = |addr: IpAddr| AddrRange { start: addr, end: addr };
    let passes = config.mode == ChildMode::Pass;
    let local: Vec<AddrRange> = match local {
        _ if !passes && !connection.vips.is_empty() && !virtual_addresses.is_empty() => {
            virtual_addresses.iter().copied().map(single).collect()
        }
        _ if !passes && !connection.vips.is_empty() => {
            let any = |vip: &IpAddr| if vip.is_ipv6() { AddrRange::ANY_V6 } else { AddrRange::ANY_V4 };
            let mut families: Vec<AddrRange> = connection.vips.iter().map(any).collect();
            families.dedup();
            families
        }
        Some(addr) => vec![single(addr)],
        None if passes => Vec::new(),
        None => vec![AddrRange::ANY_V4, AddrRange::ANY_V6],
    };
    let pools = pools.iter().copied().filter(|_| !passes);
    // Every host that can be a peer, where the packet chooses.
    let peers = if connection.peer_is_destination(config) { connection.peer_ranges() } else { Vec::new() };
    let remote: Vec<AddrRange> = remote.map(single).into_iter().chain(pools).chain(peers).collect();
    let side = |list: &[TsConfig], dynamic: &[AddrRange]| -> Option<Vec<TrafficSelector>> {
        let mut selectors = Vec::new();
        for ts in list {
            let addrs = ts.addrs.map_or_else(|| dynamic.to_vec(), |range| vec![range]);
            if addrs.is_empty() {
                return None;
            }
            selectors.extend(addrs.into_iter().map(|addrs| TrafficSelector {
                addrs,
                proto: ts.proto,
                ports: ts.ports,
            }));
        }
        Some(selectors)
    };
    Some(pairs(&side(&config.local_ts, &local)?, &side(&config.remote_ts, &remote)?))
}

/// Ranges of the pools that a connection names.
pub(super) fn of_pools(pools: &[PoolConfig], connection: &Connection) -> Vec<AddrRange> {
    let is_named = |pool: &&PoolConfig| connection.pools.contains(&pool.name);
    pools.iter().filter(is_named).map(|pool| pool.addrs).collect()
}

impl Negotiated {
    /// Replaces the pools: standing policies of connections that name a changed one follow. True
    /// when one changed.
    pub(crate) fn set_pools(&mut self, pools: &[PoolConfig]) -> bool {
        let before = std::mem::replace(&mut self.pools, pools.to_vec());
        let mut changed = false;
        for standing in self.standing.iter_mut().filter(|standing| !standing.connection.pools.is_empty()) {
            let pools = of_pools(pools, &standing.connection);
            if pools == of_pools(&before, &standing.connection) {
                continue;
            }
            let known = of_connection(&self.virtual_addresses, &standing.connection.name);
            let given = Given { own: &known, pools: &pools };
            let selectors = resolve(&standing.connection, &standing.config, given, standing.dynamic);
            let selectors = selectors.unwrap_or_default();
            changed |= *selectors != *standing.selectors;
            standing.selectors = selectors.into();
        }
        changed
    }

    /// A connection got a virtual address or lost it: standing policies follow. True when one
    /// changed.
    pub(crate) fn virtual_address(&mut self, connection: Option<&str>, addr: IpAddr, on: bool) -> bool {
        // The last IKE SA that gave it may be gone.
        self.virtual_addresses.retain(|(_, other)| *other != addr);
        if let Some(connection) = connection.filter(|_| on) {
            self.virtual_addresses.push((connection.to_owned(), addr));
        }
        let connections = self.standing.iter().map(|standing| (Arc::clone(&standing.connection), standing.dynamic));
        let connections: Vec<(Arc<Connection>, Dynamic)> = connections.collect();
        let mut changed = false;
        for (connection, dynamic) in connections.iter().filter(|(one, _)| !one.vips.is_empty()) {
            changed |= self.stand_again(connection, *dynamic);
        }
        changed
    }

    /// Replaces the addresses of `dynamic` in installed policies of a connection. Policies that
    /// would become empty are kept. Returns false if nothing changed.
    pub(crate) fn stand_again(&mut self, connection: &Connection, (local, remote): Dynamic) -> bool {
        let known = of_connection(&self.virtual_addresses, &connection.name);
        let pools = of_pools(&self.pools, connection);
        let given = Given { own: &known, pools: &pools };
        let mut changed = false;
        for standing in self.standing.iter_mut().filter(|standing| standing.connection.name == connection.name) {
            standing.dynamic = (local.or(standing.dynamic.0), remote.or(standing.dynamic.1));
            let selectors = resolve(&standing.connection, &standing.config, given, standing.dynamic);
            let selectors = selectors.filter(|selectors| !selectors.is_empty() && **selectors != *standing.selectors);
            if let Some(selectors) = selectors {
                (standing.selectors, changed) = (selectors.into(), true);
            }
        }
        changed
    }
}
