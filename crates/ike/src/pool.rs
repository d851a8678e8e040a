//! Virtual addresses (RFC 7296 §3.15, `pools` of swanctl.conf): leases by client.
//!
//! A lease belongs to an identity and outlives the IKE SA: a returning client gets its previous
//! address, unless it was needed for another client.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::config::PoolConfig;
use crate::identity::Identity;

/// Leases of one pool, those of clients that are away included; about 300 bytes each.
pub const LEASES_MAX: usize = 65_536;

/// Every pool of an endpoint.
#[derive(Default)]
pub struct Pools {
    pools: Vec<Pool>,
    /// Leases of connected clients that no pool contains since a reload. They are part of the next
    /// pool that has their address, so that no other client gets it; at most one for each address
    /// of a connected client.
    without_pool: BTreeMap<IpAddr, Lease>,
    /// Number of the last [`Leased::tenancy`].
    tenancies: u64,
}

/// An address that an IKE SA holds, until [`Pools::release`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Leased {
    /// Name of the pool that it came from.
    pub pool: String,
    /// The address.
    pub addr: IpAddr,
    /// Shared by the IKE SAs of one client that hold it at the same time. A later client of the
    /// address has another one.
    tenancy: u64,
}

/// One pool with its leases.
pub struct Pool {
    config: PoolConfig,
    /// First address that is given out and how many there are.
    first: u128,
    size: u128,
    leases: BTreeMap<IpAddr, Lease>,
    /// Addresses that an identity has or had.
    of_identity: HashMap<Identity, BTreeSet<IpAddr>>,
    /// Leases of clients that are away, the longest first, by `Lease::since`.
    away: BTreeMap<u64, IpAddr>,
    /// Number of addresses from `first` on that have been assigned at least once.
    fresh: u128,
    /// Counts what happens: orders leases.
    events: u64,
}

/// An address that is or was leased.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Lease {
    /// Client.
    pub identity: Identity,
    /// Its IKE SA is up.
    pub online: bool,
    /// Number of IKE SAs that hold it: two while one replaces the other.
    holders: u32,
    /// [`Leased::tenancy`] of its holders.
    tenancy: u64,
    /// Remote address of the newest of them.
    from: SocketAddr,
    /// The event that put it into this state.
    since: u64,
}

/// Client that requests an address.
#[derive(Clone, Copy)]
pub struct Client<'a> {
    /// Authenticated.
    pub identity: &'a Identity,
    /// Remote address of its IKE SA.
    pub from: SocketAddr,
    /// Its IKE SA ends all others of this identity.
    pub alone: bool,
}

impl Pools {
    /// Replaces the pools. Leases stay where the pool of that name has their address still. A lease
    /// of a connected client stays in any case: in another pool with its address, or without a pool
    /// until one has it.
    pub fn load(&mut self, configs: Vec<PoolConfig>) {
        let mut old: HashMap<String, Pool> =
            self.pools.drain(..).map(|pool| (pool.config.name.clone(), pool)).collect();
        for config in configs {
            let previous = old.remove(&config.name);
            let mut pool = Pool::new(config);
            self.without_pool.extend(previous.into_iter().flat_map(|previous| pool.inherit(previous)));
            self.pools.push(pool);
        }
        for removed in old.into_values() {
            self.without_pool.extend(removed.leases.into_iter().filter(|(_, lease)| lease.online));
        }
        for pool in &mut self.pools {
            let of_pool = |addr: &IpAddr, _: &mut Lease| pool.has(*addr) && !pool.leases.contains_key(addr);
            let adopted: Vec<(IpAddr, Lease)> = self.without_pool.extract_if(.., of_pool).collect();
            for (addr, lease) in adopted {
                pool.events += 1;
                let since = pool.events;
                pool.insert(addr, Lease { since, ..lease });
            }
        }
    }

    /// The pools, for listings.
    pub fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter()
    }

    /// The pool of a name.
    pub fn get(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.config.name == name)
    }

    /// Assigns an address to `client` from the first of the pools `names` that has one of the
    /// family. Its previous address has priority, then `wanted` unless that is unspecified, then an
    /// unused address, then the one that has been offline longest.
    ///
    /// An address in use is assigned again to the same identity if its new IKE SA replaces the old
    /// one: when it ends all others, or requests that address from the remote address of the old
    /// one (a client that reauthenticates). Each [`Pools::release`] then releases one of them.
    ///
    /// `None` when none of them has an address; then the answer is INTERNAL_ADDRESS_FAILURE.
    pub fn acquire(&mut self, names: &[String], client: Client<'_>, wanted: IpAddr) -> Option<Leased> {
        // All pools are searched for the old address before any assigns a new one.
        for only_known in [true, false] {
            for name in names {
                let Some(pool) = self.pools.iter_mut().find(|pool| pool.config.name == *name) else { continue };
                if pool.is_v6() != wanted.is_ipv6() {
                    continue;
                }
                let known = pool.known(client, wanted);
                if let Some(addr) = if only_known { known } else { pool.choose(wanted) } {
                    self.tenancies += 1;
                    let tenancy = pool.give(addr, client, self.tenancies);
                    return Some(Leased { pool: name.clone(), addr, tenancy });
                }
            }
        }
        None
    }

    /// An address of a family that a client holds by another IKE SA from the same remote address,
    /// out of the pools `names`: a server that sends addresses by itself gives it again.
    pub fn held(&self, names: &[String], client: Client<'_>, v6: bool) -> Option<IpAddr> {
        let pools = self.pools.iter().filter(|pool| names.contains(&pool.config.name));
        pools.filter(|pool| pool.is_v6() == v6).find_map(|pool| {
            let had = pool.of_identity.get(client.identity)?;
            let is_its = |addr: &&IpAddr| {
                let lease = &pool.leases[*addr];
                lease.online && lease.from == client.from
            };
            had.iter().find(is_its).copied()
        })
    }

    /// An IKE SA that had the address is over; the lease stays for when the client comes back.
    /// Nothing happens when another client has the address now.
    pub fn release(&mut self, leased: &Leased) {
        if let Some(pool) = self.pools.iter_mut().find(|pool| pool.holds(leased)) {
            return pool.release(leased.addr);
        }
        // A lease without a pool is not kept for the client: there is no pool to return to.
        if let Some(lease) = self.without_pool.get_mut(&leased.addr).filter(|lease| lease.tenancy == leased.tenancy) {
            lease.holders -= 1;
            if lease.holders == 0 {
                self.without_pool.remove(&leased.addr);
            }
        }
    }

    /// The IKE SA that has the address runs to somewhere else now.
    pub fn moved(&mut self, leased: &Leased, from: SocketAddr) {
        let pool = self.pools.iter_mut().find(|pool| pool.holds(leased));
        let lease = match pool {
            Some(pool) => pool.leases.get_mut(&leased.addr),
            None => self.without_pool.get_mut(&leased.addr).filter(|lease| lease.tenancy == leased.tenancy),
        };
        if let Some(lease) = lease {
            lease.from = from;
        }
    }

    /// Attributes for clients with an address of these pools, in their order.
    pub fn attributes<'a>(&'a self, names: &'a [String]) -> impl Iterator<Item = &'a (u16, Vec<u8>)> {
        names.iter().filter_map(|name| self.get(name)).flat_map(|pool| &pool.config.attributes)
    }
}

impl Pool {
    fn new(config: PoolConfig) -> Self {
        let (start, end) = (bits(config.addrs.start), bits(config.addrs.end));
        // The first and the last address of a network are not those of hosts.
        let width = if config.addrs.is_v6() { 128 } else { 32 };
        let is_network = config.addrs.prefix().is_some_and(|prefix| u32::from(prefix) + 2 <= width);
        let (first, last) = if is_network { (start + 1, end - 1) } else { (start, end) };
        let size = (last - first).saturating_add(1);
        let (leases, of_identity, away) = Default::default();
        Self { config, first, size, leases, of_identity, away, fresh: 0, events: 0 }
    }

    /// Takes over the leases of its predecessor. Returns those of connected clients whose address
    /// it does not have.
    fn inherit(&mut self, old: Self) -> Vec<(IpAddr, Lease)> {
        self.events = old.events;
        let mut others = Vec::new();
        for (addr, lease) in old.leases {
            if self.has(addr) {
                self.insert(addr, lease);
            } else if lease.online {
                others.push((addr, lease));
            }
        }
        // `fresh` counts from `first`, so it is valid for the same first address only.
        if self.first == old.first {
            self.fresh = old.fresh.min(self.size);
        }
        others
    }

    /// Returns whether an IKE SA holds an address of this pool.
    fn holds(&self, leased: &Leased) -> bool {
        self.leases.get(&leased.addr).is_some_and(|lease| lease.online && lease.tenancy == leased.tenancy)
    }

    fn insert(&mut self, addr: IpAddr, lease: Lease) {
        if !lease.online {
            self.away.insert(lease.since, addr);
        }
        self.of_identity.entry(lease.identity.clone()).or_default().insert(addr);
        self.leases.insert(addr, lease);
    }

    /// Its configuration.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Addresses that can be given out.
    pub fn size(&self) -> u128 {
        self.size
    }

    /// Leases of clients that are connected.
    pub fn online(&self) -> usize {
        self.leases.len() - self.away.len()
    }

    /// Leases of clients that are away.
    pub fn offline(&self) -> usize {
        self.away.len()
    }

    /// Every lease in the order of its address.
    pub fn leases(&self) -> impl Iterator<Item = (IpAddr, &Lease)> {
        self.leases.iter().map(|(addr, lease)| (*addr, lease))
    }

    fn is_v6(&self) -> bool {
        self.config.addrs.is_v6()
    }

    fn has(&self, addr: IpAddr) -> bool {
        addr.is_ipv6() == self.is_v6() && bits(addr).checked_sub(self.first).is_some_and(|offset| offset < self.size)
    }

    /// An address that the client had and that is not in use: `wanted` if it is one of them.
    fn known(&self, client: Client<'_>, wanted: IpAddr) -> Option<IpAddr> {
        let had = self.of_identity.get(client.identity)?;
        let is_online = |addr: &&IpAddr| self.leases[*addr].online;
        let same = |addr: &&IpAddr| client.alone || self.leases[*addr].from == client.from;
        let preferred = had.get(&wanted).filter(|addr| !is_online(addr) || same(addr));
        let current = had.iter().find(|addr| client.alone && is_online(addr));
        preferred.or(current).or_else(|| had.iter().find(|addr| !is_online(addr))).copied()
    }

    /// An address for a new client.
    fn choose(&mut self, wanted: IpAddr) -> Option<IpAddr> {
        if !wanted.is_unspecified() && self.has(wanted) && !self.leases.contains_key(&wanted) && !self.is_full() {
            return Some(wanted);
        }
        // Unused addresses come first, so that clients that are offline keep their lease as long as
        // possible.
        self.next_fresh().or_else(|| self.away.first_key_value().map(|(_, addr)| *addr))
    }

    fn is_full(&self) -> bool {
        self.leases.len() >= LEASES_MAX
    }

    fn next_fresh(&mut self) -> Option<IpAddr> {
        // At most as many steps in all as there are leases: an address that was given out is not
        // looked at again.
        while self.fresh < self.size && !self.is_full() {
            let addr = self.address(self.fresh);
            self.fresh += 1;
            if !self.leases.contains_key(&addr) {
                return Some(addr);
            }
        }
        None
    }

    fn address(&self, offset: u128) -> IpAddr {
        let bits = self.first + offset;
        if self.is_v6() { Ipv6Addr::from_bits(bits).into() } else { Ipv4Addr::from_bits(bits as u32).into() }
    }

    /// Returns the tenancy: `new`, or that of the IKE SAs of the client that hold the address.
    fn give(&mut self, addr: IpAddr, client: Client<'_>, new: u64) -> u64 {
        let shared = self.leases.get(&addr).filter(|lease| lease.online && lease.identity == *client.identity);
        let (holders, tenancy) = shared.map_or((1, new), |lease| (lease.holders + 1, lease.tenancy));
        // The previous lease must leave `away` under its old `since`: the key could not be found
        // after the overwrite.
        self.forget(addr);
        self.events += 1;
        let identity = client.identity.clone();
        let since = self.events;
        self.insert(addr, Lease { identity, online: true, holders, tenancy, from: client.from, since });
        tenancy
    }

    /// Removes a lease of an offline client.
    fn forget(&mut self, addr: IpAddr) {
        let Some(old) = self.leases.remove(&addr) else { return };
        self.away.remove(&old.since);
        if let Some(addrs) = self.of_identity.get_mut(&old.identity) {
            addrs.remove(&addr);
            if addrs.is_empty() {
                self.of_identity.remove(&old.identity);
            }
        }
    }

    fn release(&mut self, addr: IpAddr) {
        // An offline lease has no holders, and a second release would underflow.
        let Some(lease) = self.leases.get_mut(&addr).filter(|lease| lease.online) else { return };
        lease.holders -= 1;
        if lease.holders == 0 {
            self.events += 1;
            (lease.online, lease.since) = (false, self.events);
            self.away.insert(self.events, addr);
        }
    }
}

fn bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn who(name: u8) -> Identity {
        Identity { kind: wire::ike::IdType::FQDN, data: vec![name] }
    }

    fn pool(name: &str, addrs: &str) -> PoolConfig {
        let range: wire::TrafficSelector = addrs.parse().expect("addresses");
        PoolConfig { name: name.into(), addrs: range.addrs, attributes: vec![(3, vec![10, 0, 0, 53])] }
    }

    fn pools(addrs: &str) -> Pools {
        let mut pools = Pools::default();
        pools.load(vec![pool("a", addrs)]);
        pools
    }

    const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    fn client(identity: &Identity) -> Client<'_> {
        Client { identity, from: ([192, 0, 2, identity.data[0]], 4500).into(), alone: false }
    }

    fn take(pools: &mut Pools, name: u8) -> Option<String> {
        lease(pools, name).map(|leased| leased.addr.to_string())
    }

    fn lease(pools: &mut Pools, name: u8) -> Option<Leased> {
        pools.acquire(&["a".into()], client(&who(name)), ANY)
    }

    /// The holder of an address gives it back.
    fn release(pools: &mut Pools, pool: &str, addr: &str) {
        let addr = addr.parse().expect("an address");
        let tenancy = pools.get(pool).expect("a pool").leases[&addr].tenancy;
        pools.release(&Leased { pool: pool.to_owned(), addr, tenancy });
    }

    /// Number of leases of connected clients and of others.
    fn counts(pools: &Pools, pool: &str) -> (usize, usize) {
        pools.get(pool).map(|pool| (pool.online(), pool.offline())).expect("a pool")
    }

    #[test]
    fn a_lease_of_before_a_reload_is_no_one_elses() {
        for (between, after) in [
            (vec![], vec![pool("a", "10.3.0.0/29")]),
            (vec![pool("a", "10.4.0.0/29")], vec![pool("a", "10.3.0.0/29")]),
            (vec![pool("b", "10.3.0.0/29")], vec![pool("a", "10.3.0.0/29")]),
        ] {
            let mut pools = pools("10.3.0.0/29");
            let old = lease(&mut pools, 1).expect("an address");
            pools.load(between);
            pools.load(after);
            assert_eq!(counts(&pools, "a"), (1, 0));
            // The first client is still connected with its address.
            let other = lease(&mut pools, 2).expect("an address");
            assert_eq!((old.addr.to_string(), other.addr.to_string()), ("10.3.0.1".into(), "10.3.0.2".into()));
            pools.release(&old);
            assert_eq!(counts(&pools, "a"), (1, 1));
            // A second time, and after another client got the address: nothing of that client ends.
            pools.release(&old);
            pools.release(&other);
            for name in 3..=8 {
                assert!(take(&mut pools, name).is_some());
            }
            assert_eq!(counts(&pools, "a"), (6, 0));
            pools.release(&old);
            pools.moved(&old, ([203, 0, 113, 9], 9).into());
            assert_eq!(counts(&pools, "a"), (6, 0));
            assert!(pools.get("a").expect("a pool").leases().all(|(_, lease)| lease.from.port() != 9));
        }
    }

    #[test]
    fn a_lease_without_a_pool_ends_with_its_holders() {
        let mut pools = pools("10.3.0.0/29");
        let first = lease(&mut pools, 1).expect("an address");
        // The same client authenticates again.
        let second = pools.acquire(&["a".into()], client(&who(1)), first.addr).expect("an address");
        assert_eq!(first, second);
        pools.load(vec![]);
        pools.release(&first);
        assert_eq!(pools.without_pool.len(), 1);
        pools.release(&second);
        pools.release(&second);
        assert!(pools.without_pool.is_empty());
        pools.load(vec![pool("a", "10.3.0.0/29")]);
        assert_eq!(take(&mut pools, 2).as_deref(), Some("10.3.0.1"));
    }

    #[test]
    fn a_client_that_comes_back_gets_what_it_had() {
        let mut pools = pools("10.3.0.0/29");
        assert_eq!(take(&mut pools, 1).as_deref(), Some("10.3.0.1"));
        assert_eq!(take(&mut pools, 2).as_deref(), Some("10.3.0.2"));
        release(&mut pools, "a", "10.3.0.1");
        assert_eq!(take(&mut pools, 3).as_deref(), Some("10.3.0.3"));
        assert_eq!(take(&mut pools, 1).as_deref(), Some("10.3.0.1"));
        // A second IKE SA of the same client is another lease.
        assert_eq!(take(&mut pools, 1).as_deref(), Some("10.3.0.4"));
    }

    #[test]
    fn a_client_keeps_its_address_while_it_authenticates_anew() {
        let mut pools = pools("10.3.0.0/29");
        let (own, alice, bob, names) = (IpAddr::from([10, 3, 0, 1]), who(1), who(2), ["a".to_owned()]);
        let mut get =
            |client, preferred| pools.acquire(&names, client, preferred).map(|leased| leased.addr.to_string());
        let here = client(&alice);
        let elsewhere = Client { from: ([192, 0, 2, 1], 4501).into(), ..here };
        assert_eq!(get(here, ANY).as_deref(), Some("10.3.0.1"));
        assert_eq!(get(here, own).as_deref(), Some("10.3.0.1"));
        // Another device of the same person, another person, no preference.
        assert_eq!(get(elsewhere, own).as_deref(), Some("10.3.0.2"));
        assert_eq!(get(client(&bob), own).as_deref(), Some("10.3.0.3"));
        assert_eq!(get(here, ANY).as_deref(), Some("10.3.0.4"));
        // A client that ends its other IKE SAs, or lost them, keeps their address.
        assert_eq!(get(Client { alone: true, ..elsewhere }, ANY).as_deref(), Some("10.3.0.1"));
        let held = Leased { pool: "a".into(), addr: own, tenancy: 1 };
        pools.moved(&held, ([198, 51, 100, 1], 4500).into());
        let moved = Client { from: ([198, 51, 100, 1], 4500).into(), ..here };
        assert_eq!(pools.acquire(&names, moved, own).map(|leased| leased.addr), Some(own));
        let online = |pools: &Pools| pools.get("a").unwrap().leases().find(|(addr, _)| *addr == own).unwrap().1.online;
        for _ in 0..3 {
            release(&mut pools, "a", "10.3.0.1");
            assert!(online(&pools));
        }
        release(&mut pools, "a", "10.3.0.1");
        assert!(!online(&pools));
    }

    #[test]
    fn the_longest_away_makes_room() {
        let mut pools = pools("10.3.0.0/30");
        assert_eq!(pools.get("a").unwrap().size(), 2);
        assert_eq!((take(&mut pools, 1), take(&mut pools, 2)), (Some("10.3.0.1".into()), Some("10.3.0.2".into())));
        assert_eq!(take(&mut pools, 3), None);
        release(&mut pools, "a", "10.3.0.2");
        release(&mut pools, "a", "10.3.0.1");
        release(&mut pools, "a", "10.3.0.1");
        assert_eq!(take(&mut pools, 3).as_deref(), Some("10.3.0.2"));
        let leases: Vec<_> = pools.get("a").unwrap().leases().map(|(_, l)| (l.identity.data[0], l.online)).collect();
        assert_eq!(leases, [(1, false), (3, true)]);
    }

    #[test]
    fn a_preferred_address_is_assigned_if_it_is_free() {
        let mut pools = pools("10.3.0.10-10.3.0.20");
        let mut preferred = |name, preferred: &str| {
            pools
                .acquire(&["a".into()], client(&who(name)), preferred.parse().unwrap())
                .map(|leased| leased.addr.to_string())
        };
        assert_eq!(preferred(1, "10.3.0.15").as_deref(), Some("10.3.0.15"));
        assert_eq!(preferred(2, "10.3.0.15").as_deref(), Some("10.3.0.10"));
        assert_eq!(preferred(3, "10.9.9.9").as_deref(), Some("10.3.0.11"));
        assert_eq!(preferred(4, "fd00::1"), None);
    }

    #[test]
    fn pools_are_asked_in_order_and_by_family() {
        let mut pools = Pools::default();
        pools.load(vec![pool("a", "10.3.0.1"), pool("b", "fd00::/64"), pool("c", "10.4.0.0/24")]);
        let names = ["none", "a", "b", "c"].map(String::from);
        let named = |leased: Leased| (leased.pool, leased.addr);
        let mut get =
            |name, preferred: &str| pools.acquire(&names, client(&who(name)), preferred.parse().unwrap()).map(named);
        assert_eq!(get(1, "0.0.0.0"), Some(("a".into(), "10.3.0.1".parse().unwrap())));
        assert_eq!(get(2, "0.0.0.0"), Some(("c".into(), "10.4.0.1".parse().unwrap())));
        assert_eq!(get(1, "::"), Some(("b".into(), "fd00::1".parse().unwrap())));
        release(&mut pools, "a", "10.3.0.1");
        release(&mut pools, "c", "10.4.0.1");
        // Its previous address, although an earlier pool has free addresses.
        assert_eq!(
            pools.acquire(&names, client(&who(2)), ANY).map(named),
            Some(("c".into(), "10.4.0.1".parse().unwrap()))
        );
        assert_eq!(pools.attributes(&names).count(), 3);
    }

    #[test]
    fn leases_survive_a_reload_where_their_address_does() {
        let mut pools = pools("10.3.0.0/24");
        for name in 1..=3 {
            take(&mut pools, name);
        }
        release(&mut pools, "a", "10.3.0.3");
        pools.load(vec![pool("a", "10.3.0.2-10.3.0.9")]);
        let now = pools.get("a").unwrap();
        assert_eq!((now.online(), now.offline(), now.size()), (1, 1, 8));
        assert_eq!(take(&mut pools, 3).as_deref(), Some("10.3.0.3"));
        assert_eq!(take(&mut pools, 4).as_deref(), Some("10.3.0.4"));
        pools.load(vec![]);
        assert_eq!((take(&mut pools, 1), pools.iter().count()), (None, 0));
    }

    #[test]
    fn the_largest_pool_does_not_overflow() {
        let mut pools = pools("::/0");
        let addr = pools.acquire(&["a".into()], client(&who(1)), IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        assert_eq!(addr.map(|leased| leased.addr.to_string()).as_deref(), Some("::1"));
        assert_eq!(pools.get("a").unwrap().size(), u128::MAX - 1);
    }

    proptest! {
        #[test]
        fn no_address_has_two_owners(steps in proptest::collection::vec((0u8..8, proptest::bool::ANY), 0..80)) {
            let mut pools = pools("10.3.0.1-10.3.0.5");
            let mut held: Vec<(u8, Leased)> = Vec::new();
            for (name, up) in steps {
                if up {
                    let got = pools.acquire(&["a".into()], client(&who(name)), ANY);
                    prop_assert_eq!(got.is_some(), held.len() < 5);
                    if let Some(leased) = got {
                        prop_assert!(held.iter().all(|(_, taken)| taken.addr != leased.addr));
                        held.push((name, leased));
                    }
                } else if let Some(at) = held.iter().position(|(owner, _)| *owner == name) {
                    pools.release(&held.remove(at).1);
                }
                let pool = pools.get("a").unwrap();
                prop_assert_eq!(pool.online(), held.len());
                prop_assert_eq!(pool.leases().filter(|(_, lease)| !lease.online).count(), pool.offline());
                prop_assert_eq!(pool.of_identity.values().map(BTreeSet::len).sum::<usize>(), pool.leases.len());
            }
        }
    }
}
