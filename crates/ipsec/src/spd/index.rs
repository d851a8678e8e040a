//! Finds the first selector that matches without reading them all.
//!
//! The borders of all peers' address ranges cut the address space into segments. Each segment has
//! the list, in order, of the selectors that cover it: a packet's segment is found by bisection,
//! and only its list is read. Where lists would together become much longer than the selectors
//! (many ranges nested in each other), one list with everything serves instead.

use std::collections::BTreeSet;
use std::net::IpAddr;

use wire::{AddrRange, FlowKey, Selector};

use super::PolicyId;

/// Selectors in all lists of a family together, per selector: bounds the memory of an index to
/// 4 × 64 bytes per selector beyond the selectors themselves.
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

/// The selectors of one direction, both families.
#[derive(Default)]
pub(super) struct Index {
    rows: Vec<(Selector, PolicyId)>,
    direction: Direction,
    v4: Segments,
    v6: Segments,
}

impl Index {
    /// The index of `rows`, earlier ones first.
    pub(super) fn new(rows: Vec<(Selector, PolicyId)>, direction: Direction) -> Self {
        let family = |v6| {
            let ranges = (0u32..).zip(&rows).filter_map(|(row, (selector, _))| {
                let (start, end) = bounds(direction.peer_range(selector), v6)?;
                Some(Covered { row, start, end })
            });
            Segments::new(ranges.collect())
        };
        let (v4, v6) = (family(false), family(true));
        Self { rows, direction, v4, v6 }
    }

    /// The policy of the first row that matches.
    #[inline]
    pub(super) fn first_match(&self, key: &FlowKey) -> Option<PolicyId> {
        let segments = if key.v6 { &self.v6 } else { &self.v4 };
        let candidates = segments.at(self.direction.peer(key));
        let rows = candidates.iter().filter_map(|row| self.rows.get(*row as usize));
        rows.into_iter().find(|(selector, _)| selector.matches(key)).map(|(_, id)| *id)
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
}

impl Segments {
    fn new(ranges: Vec<Covered>) -> Self {
        Self::cut(&ranges).unwrap_or_else(|| {
            let lists: Vec<u32> = ranges.iter().map(|range| range.row).collect();
            Self { starts: vec![0], ends: vec![lists.len() as u32], lists }
        })
    }

    /// Sweeps over the borders; `None` when the lists become too long.
    fn cut(ranges: &[Covered]) -> Option<Self> {
        let begin = ranges.iter().map(|range| (range.start, true, range.row));
        let finish = ranges.iter().filter_map(|range| Some((range.end.checked_add(1)?, false, range.row)));
        let mut borders: Vec<_> = begin.chain(finish).collect();
        borders.sort_unstable();
        let (mut segments, mut covering) = (Self::default(), BTreeSet::new());
        segments.starts.push(0);
        for (at, begins, row) in borders {
            if segments.starts.last() != Some(&at) {
                segments.close(&covering, ranges.len())?;
                segments.starts.push(at);
            }
            if begins {
                covering.insert(row);
            } else {
                covering.remove(&row);
            }
        }
        segments.close(&covering, ranges.len())?;
        Some(segments)
    }

    fn close(&mut self, covering: &BTreeSet<u32>, ranges: usize) -> Option<()> {
        if self.lists.len() + covering.len() > MAX_LISTED * ranges {
            return None;
        }
        self.lists.extend(covering);
        self.ends.push(self.lists.len() as u32);
        Some(())
    }

    /// The rows that cover `addr`, in order.
    #[inline]
    fn at(&self, addr: u128) -> &[u32] {
        let Some(segment) = self.starts.partition_point(|start| *start <= addr).checked_sub(1) else { return &[] };
        let from = segment.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |end| *end as usize);
        let to = self.ends.get(segment).map_or(0, |end| *end as usize);
        self.lists.get(from..to).unwrap_or_default()
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
    fn many_peers_have_short_lists() {
        let peers = (0..5000).map(|row| Covered { row, start: u128::from(row) * 10, end: u128::from(row) * 10 + 9 });
        let segments = Segments::new(peers.collect());
        assert_eq!(segments.at(12_345), [1234]);
        assert_eq!(segments.at(50_000), [0u32; 0]);
    }
}
