//! Finds the first selector that matches without reading them all.
//!
//! The borders of all peers' address ranges cut the address space into segments. Each segment has
//! the list, in order, of the selectors that cover it: a packet's segment is found by bisection,
//! and only its list is read. Segments of one address are found by a hash table instead, because a
//! gateway may have as many as it has peers, and each step of a bisection waits for memory. Where
//! lists would together become much longer than the selectors (many ranges nested in each other),
//! one list with everything serves instead.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use wire::{AddrRange, FlowKey, Selector};

use super::{Action, PolicyId};

/// Selectors in all lists of a family together, per selector: bounds the memory of an index to
/// 4 × 64 bytes per selector beyond the selectors themselves, and 256 bytes per host.
const MAX_LISTED: usize = 64;

/// Side of a packet that is the peer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Direction {
    #[default]
    Outbound,
    Inbound,
}

impl Direction {
    fn peer_range(self, selector: &Selector) -> AddrRange {
        match self {
            Self::Outbound => selector.dst,
            Self::Inbound => selector.src,
        }
    }

    #[inline]
    fn peer(self, key: &FlowKey) -> u128 {
        u128::from_be_bytes(match self {
            Self::Outbound => key.dst,
            Self::Inbound => key.src,
        })
    }
}

/// A selector, and the policy that it is of, in two cache lines.
#[repr(align(64))]
pub(super) struct PolicyRow {
    pub(super) selector: Selector,
    pub(super) id: PolicyId,
    /// Copy of the policy's, so that the packet path does not have to load the policy.
    pub(super) action: Action,
}
const _: () = assert!(size_of::<PolicyRow>() == 128);

/// Segments of both families, with positions in a list of rows. Both directions of an SPD have the
/// same ones, and so has the next SPD if its selectors have the same peers in the same order: most
/// changes replace an SA alone.
#[derive(Default)]
pub(super) struct Peers {
    v4: Segments,
    v6: Segments,
}

impl Peers {
    /// The segments of `rows` of outbound packets, earlier ones first.
    pub(super) fn new(rows: &[PolicyRow]) -> Self {
        let family = |v6| {
            let ranges = (0u32..).zip(rows).filter_map(|(at, row)| {
                let (start, end) = bounds(Direction::Outbound.peer_range(&row.selector), v6)?;
                Some(Covered { row: at, start, end })
            });
            Segments::new(ranges.collect())
        };
        Self { v4: family(false), v6: family(true) }
    }
}

/// The selectors of one direction, both families.
#[derive(Default)]
pub(super) struct Index {
    rows: Vec<PolicyRow>,
    direction: Direction,
    peers: Arc<Peers>,
}

impl Index {
    /// The index of `rows`, earlier ones first, with the segments of their peers.
    pub(super) fn new(rows: Vec<PolicyRow>, direction: Direction, peers: Arc<Peers>) -> Self {
        Self { rows, direction, peers }
    }

    /// The segments, if those of `rows` are the same.
    pub(super) fn shared_peers(&self, rows: &[PolicyRow]) -> Option<Arc<Peers>> {
        let range = |row: &PolicyRow| self.direction.peer_range(&row.selector);
        let same = self.rows.len() == rows.len() && self.rows.iter().map(range).eq(rows.iter().map(range));
        same.then(|| Arc::clone(&self.peers))
    }

    #[cfg(test)]
    pub(super) fn is_sharing(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.peers, &other.peers)
    }

    fn segments(&self, v6: bool) -> &Segments {
        if v6 { &self.peers.v6 } else { &self.peers.v4 }
    }

    /// The first row that matches.
    #[inline]
    pub(super) fn first_match(&self, key: &FlowKey) -> Option<&PolicyRow> {
        let segments = self.segments(key.v6);
        let candidates = segments.at(self.direction.peer(key));
        let mut rows = candidates.iter().filter_map(|row| self.rows.get(*row as usize));
        rows.find(|row| row.selector.matches(key))
    }
}

/// Steps of a search; a caller can prefetch their memory for several packets. Each reads what the
/// step before it named.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SearchStep {
    /// The slot of the peer in the table of hosts.
    Host,
    /// Its list of rows.
    List,
    /// The first of the rows, two cache lines.
    Row,
}

impl Index {
    /// Address of what the search for `key` reads at `step`; null if the peer is no host.
    pub(super) fn address_of(&self, key: &FlowKey, step: SearchStep) -> *const u8 {
        let (segments, peer) = (self.segments(key.v6), self.direction.peer(key));
        if step == SearchStep::Host {
            let host = segments.hosts.slots.get(segments.hosts.slot(peer));
            return host.map_or(std::ptr::null(), |host| std::ptr::from_ref(host).cast());
        }
        let list = segments.hosts.find(peer).and_then(|host| segments.lists.get(host.from as usize));
        if step == SearchStep::List {
            return list.map_or(std::ptr::null(), |row| std::ptr::from_ref(row).cast());
        }
        let row = list.and_then(|row| self.rows.get(*row as usize));
        row.map_or(std::ptr::null(), |row| std::ptr::from_ref(row).cast())
    }
}

/// A range as [`FlowKey`] writes addresses; `None` when it is of the other family or empty.
fn bounds(range: AddrRange, v6: bool) -> Option<(u128, u128)> {
    let (start, end) = match (range.start, range.end) {
        (IpAddr::V4(start), IpAddr::V4(end)) if !v6 => {
            (start.to_ipv6_mapped().to_bits(), end.to_ipv6_mapped().to_bits())
        }
        (IpAddr::V6(start), IpAddr::V6(end)) if v6 => (start.to_bits(), end.to_bits()),
        _ => return None,
    };
    (start <= end).then_some((start, end))
}

/// Row `row` covers `start..=end`.
struct Covered {
    row: u32,
    start: u128,
    end: u128,
}

/// One family's segments.
#[derive(Default)]
struct Segments {
    /// First address of each segment, ascending, the first 0.
    starts: Vec<u128>,
    /// End of each segment's list in `lists`; it starts at the end of the previous one.
    ends: Vec<u32>,
    lists: Vec<u32>,
    /// The segments of one address.
    hosts: Hosts,
}

/// Segments of one address: a hash table with open addressing, at most half full.
#[derive(Default)]
struct Hosts {
    /// A power of two of them, or none.
    slots: Box<[Host]>,
    /// Of the hash, so that peers cannot choose addresses that share a slot.
    seed: u64,
}

/// A segment of one address.
#[derive(Clone, Copy)]
struct Host {
    addr: u128,
    /// Its list; empty slots start beyond every list.
    from: u32,
    to: u32,
}

impl Host {
    const EMPTY: Self = Self { addr: 0, from: u32::MAX, to: u32::MAX };
}

impl Hosts {
    fn new(hosts: &[Host]) -> Self {
        let slots = if hosts.is_empty() { 0 } else { (2 * hosts.len()).next_power_of_two() };
        let seed = RandomState::new().hash_one(slots);
        let mut table = Self { slots: vec![Host::EMPTY; slots].into_boxed_slice(), seed };
        for host in hosts {
            let mut at = table.slot(host.addr);
            while table.slots[at].from != u32::MAX {
                at = (at + 1) & (slots - 1);
            }
            table.slots[at] = *host;
        }
        table
    }

    /// The slot where the search for `addr` starts.
    #[inline]
    fn slot(&self, addr: u128) -> usize {
        const MIX: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 / golden ratio: spreads every bit upwards
        let (low, high) = (addr as u64 ^ self.seed, (addr >> 64) as u64 ^ self.seed.rotate_left(32));
        let product = u128::from(low) * u128::from(high | 1);
        let mixed = (product as u64 ^ (product >> 64) as u64 ^ low).wrapping_mul(MIX);
        (mixed >> 32) as usize & self.slots.len().wrapping_sub(1)
    }

    #[inline]
    fn find(&self, addr: u128) -> Option<&Host> {
        let mut at = self.slot(addr);
        loop {
            // Half of the slots are empty, so that this ends.
            let host = self.slots.get(at).filter(|host| host.from != u32::MAX)?;
            if host.addr == addr {
                return Some(host);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }
}

impl Segments {
    fn new(ranges: Vec<Covered>) -> Self {
        Self::cut(&ranges).unwrap_or_else(|| {
            let lists: Vec<u32> = ranges.iter().map(|range| range.row).collect();
            Self { starts: vec![0], ends: vec![lists.len() as u32], lists, hosts: Hosts::default() }
        })
    }

    /// Sweeps over the borders; `None` when the lists become too long.
    fn cut(ranges: &[Covered]) -> Option<Self> {
        let begin = ranges.iter().map(|range| (range.start, true, range.row));
        let finish = ranges.iter().filter_map(|range| Some((range.end.checked_add(1)?, false, range.row)));
        let mut borders: Vec<_> = begin.chain(finish).collect();
        // Stable, because it merges runs: peers mostly get their addresses in order.
        borders.sort();
        // Rows that cover the segment, in order. Each border costs about as much as the list before
        // it, so that the bound of the lists is one of the time as well.
        let (mut segments, mut covering) = (Self::default(), Vec::<u32>::new());
        segments.starts.push(0);
        for borders in borders.chunk_by(|one, other| one.0 == other.0) {
            let at = borders[0].0;
            if segments.starts.last() != Some(&at) {
                segments.close(&covering, ranges.len())?;
                segments.starts.push(at);
            }
            let (over, begun) = borders.split_at(borders.partition_point(|(_, begins, _)| !begins));
            if !over.is_empty() {
                covering.retain(|row| over.binary_search_by_key(row, |(.., row)| *row).is_err());
            }
            if !begun.is_empty() {
                covering.extend(begun.iter().map(|(.., row)| *row));
                covering.sort();
            }
        }
        segments.close(&covering, ranges.len())?;
        let hosts = segments.starts.windows(2).enumerate().filter(|(_, pair)| pair[1] - pair[0] == 1);
        let hosts: Vec<Host> = hosts.map(|(segment, pair)| segments.host(segment, pair[0])).collect();
        segments.hosts = Hosts::new(&hosts);
        Some(segments)
    }

    fn close(&mut self, covering: &[u32], ranges: usize) -> Option<()> {
        if self.lists.len() + covering.len() > MAX_LISTED * ranges {
            return None;
        }
        self.lists.extend(covering);
        self.ends.push(self.lists.len() as u32);
        Some(())
    }

    /// Segment number `segment`, which is that of `addr` alone.
    fn host(&self, segment: usize, addr: u128) -> Host {
        let from = segment.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |end| *end);
        Host { addr, from, to: self.ends.get(segment).map_or(0, |end| *end) }
    }

    /// The rows that cover `addr`, in order.
    #[inline]
    fn at(&self, addr: u128) -> &[u32] {
        if let Some(Host { from, to, .. }) = self.hosts.find(addr) {
            return self.lists.get(*from as usize..*to as usize).unwrap_or_default();
        }
        let Some(segment) = self.starts.partition_point(|start| *start <= addr).checked_sub(1) else { return &[] };
        let Host { from, to, .. } = self.host(segment, addr);
        self.lists.get(from as usize..to as usize).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(count: u32) -> Vec<Covered> {
        (0..count).map(|row| Covered { row, start: row.into(), end: 1_000_000 - u128::from(row) }).collect()
    }

    #[test]
    fn lists_stay_within_their_bound() {
        for count in [1, 10, 1000] {
            let segments = Segments::new(nested(count));
            assert!(segments.lists.len() <= MAX_LISTED * count as usize);
            assert_eq!(segments.at(500_000).len(), count as usize);
        }
        assert_eq!(Segments::new(nested(10)).at(3), [0, 1, 2, 3]);
        assert_eq!(Segments::new(nested(1000)).starts.len(), 1, "too long: one list for all");
    }

    #[test]
    fn ranges_with_common_borders_have_every_row() {
        let ranges = [(0, 9), (0, 9), (5, 9), (0, 4), (5, 5), (5, 9), (9, 9), (10, 12)];
        let covered = (0..).zip(ranges).map(|(row, (start, end))| Covered { row, start, end });
        let segments = Segments::new(covered.collect());
        assert_eq!((segments.at(0), segments.at(4)), (&[0u32, 1, 3][..], &[0u32, 1, 3][..]));
        assert_eq!((segments.at(5), segments.at(6)), (&[0u32, 1, 2, 4, 5][..], &[0u32, 1, 2, 5][..]));
        assert_eq!((segments.at(9), segments.at(10)), (&[0u32, 1, 2, 5, 6][..], &[7u32][..]));
        assert_eq!(segments.at(13), [0u32; 0]);
    }

    #[test]
    fn many_peers_have_short_lists() {
        let peers = (0..5000).map(|row| Covered { row, start: u128::from(row) * 10, end: u128::from(row) * 10 + 9 });
        let segments = Segments::new(peers.collect());
        assert_eq!(segments.at(12_345), [1234]);
        assert_eq!(segments.at(50_000), [0u32; 0]);
    }

    #[test]
    fn hosts_are_found_by_the_table_and_everything_else_beside_them() {
        // Every other address is a host; two of them are in a wider range as well.
        let hosts = (0..1000).map(|row| Covered { row, start: u128::from(row) * 2, end: u128::from(row) * 2 });
        let wide = Covered { row: 1000, start: 10, end: 13 };
        let segments = Segments::new(hosts.chain([wide]).collect());
        assert_eq!(segments.hosts.slots.iter().filter(|host| host.from != u32::MAX).count(), 1999);
        for row in (0..1000).filter(|row| !(5..=6).contains(row)) {
            assert_eq!(segments.at(u128::from(row) * 2), [row]);
            assert_eq!(segments.hosts.find(u128::from(row) * 2).map(|host| host.to - host.from), Some(1));
        }
        assert_eq!((segments.at(10), segments.at(11), segments.at(12)), (&[5, 1000][..], &[1000][..], &[6, 1000][..]));
        assert_eq!((segments.at(13), segments.at(15)), (&[1000][..], &[0u32; 0][..]));
        assert_eq!(segments.at(u128::MAX), [0u32; 0]);
        assert!(Hosts::default().find(0).is_none());
    }
}
