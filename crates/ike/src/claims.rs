//! Traffic selectors in use, so that no peer receives packets for another one.
//!
//! The endpoint enters each Child SA when it is installed and takes it out when it is removed. A
//! negotiation is checked against the Child SAs of other peers before it is answered or accepted. A
//! peer is an authenticated identity of one connection: its rekeyed, per-CPU and redundant Child
//! SAs share their selectors.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use wire::{AddrRange, Selector, TrafficSelector};

use crate::config::{ChildConfig, Connection, TsConflict};
use crate::identity::Identity;
use crate::output::{ChildId, ChildSa};
use crate::selectors::{bits, overlap, pairs, precedence, section_precedence};

/// Selectors of one Child SA, with its peer.
struct Claim {
    connection: Arc<Connection>,
    config: Arc<ChildConfig>,
    peer: Identity,
    remote: SocketAddr,
    selectors: Vec<Selector>,
}

/// Selectors of every Child SA that is installed; about 400 bytes each.
#[derive(Default)]
pub(crate) struct Claims {
    by_child: HashMap<ChildId, Claim>,
    index: Index,
}

/// Selectors that are about to be agreed on.
pub(crate) struct NewChild<'a> {
    connection: &'a Connection,
    peer: &'a Identity,
    config: &'a ChildConfig,
    selectors: Vec<Selector>,
    ranges: Vec<AddrRange>,
    /// Initiated by this host: its configuration covers the traffic.
    initiator: bool,
}

/// Another peer's Child SA with selectors in common.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Conflict {
    /// The newcomer must not come up.
    Refused(String),
    /// The newcomer takes over.
    TakesOver(String),
}

impl<'a> NewChild<'a> {
    /// `local` and `remote` are the narrowed selectors; the peer is an authenticated identity of a
    /// connection.
    pub(crate) fn new(
        (connection, peer): (&'a Connection, &'a Identity),
        config: &'a ChildConfig,
        (local, remote): (&[TrafficSelector], &[TrafficSelector]),
        initiator: bool,
    ) -> Self {
        let selectors = pairs(local, remote);
        let ranges = ranges(&selectors);
        Self { connection, peer, config, selectors, ranges, initiator }
    }
}

impl Claims {
    /// Enters an installed Child SA.
    pub(crate) fn enter(&mut self, child: &ChildSa) {
        let selectors = pairs(&child.local_ts, &child.remote_ts);
        for range in ranges(&selectors) {
            self.index.insert(range, child.id);
        }
        let claim = Claim {
            connection: child.connection.clone(),
            config: child.config.clone(),
            peer: child.peer_id.clone(),
            remote: child.path.remote,
            selectors,
        };
        self.by_child.insert(child.id, claim);
    }

    /// Takes a removed Child SA out.
    pub(crate) fn leave(&mut self, child: ChildId) {
        let Some(claim) = self.by_child.remove(&child) else { return };
        // All ranges leave at once, because ranges of one Child SA may share an index entry.
        for range in ranges(&claim.selectors) {
            self.index.remove(range, child);
        }
    }

    /// Number of Child SAs entered.
    #[cfg(any(test, feature = "testkit"))]
    pub(crate) fn len(&self) -> usize {
        self.by_child.len()
    }

    /// The worst conflict with a Child SA of another peer.
    pub(crate) fn conflict(&self, new: &NewChild<'_>) -> Option<Conflict> {
        let mut found = None;
        for id in self.index.overlapping(&new.ranges) {
            let Some(claim) = self.by_child.get(&id) else { continue };
            match claim.verdict(new) {
                Verdict::None => (),
                Verdict::Refused => return Some(Conflict::Refused(claim.text(id, new))),
                Verdict::TakesOver => found = found.or_else(|| Some(Conflict::TakesOver(claim.text(id, new)))),
            }
        }
        found
    }
}

/// Result of a comparison with one Child SA.
enum Verdict {
    None,
    Refused,
    TakesOver,
}

impl Claim {
    fn verdict(&self, new: &NewChild<'_>) -> Verdict {
        let same_connection = self.connection.name == new.connection.name;
        if same_connection && self.peer == *new.peer {
            return Verdict::None;
        }
        let overlaps = |a: &Selector| self.selectors.iter().any(|b| overlap(a, b));
        if !new.selectors.iter().any(overlaps) {
            return Verdict::None;
        }
        let replaces = new.connection.ts_conflict == TsConflict::Replace;
        let refused = if replaces { Verdict::TakesOver } else { Verdict::Refused };
        // Peers of one connection have the same sections, so no precedence decides between them.
        if same_connection {
            return refused;
        }
        // Between two connections the configuration decides first: a section with narrower
        // selectors, or with a `priority`, should take its part of a wider one.
        let (ours, theirs) = (section_precedence(new.config), section_precedence(&self.config));
        let behind = precedence(new.config, &new.selectors) > precedence(&self.config, &self.selectors);
        match ours.cmp(&theirs) {
            std::cmp::Ordering::Less => Verdict::None,
            std::cmp::Ordering::Greater if behind => Verdict::None,
            // Two gateways for the same networks, and this host chose to connect to both.
            std::cmp::Ordering::Equal if new.initiator => Verdict::TakesOver,
            _ => refused,
        }
    }

    fn text(&self, id: ChildId, new: &NewChild<'_>) -> String {
        let common = new.selectors.iter().find(|a| self.selectors.iter().any(|b| overlap(a, b)));
        let (local, remote) = common.or(new.selectors.first()).map(Selector::sides).expect("a newcomer has selectors");
        format!(
            "{local} === {remote} is in use by child '{}' {{{}}} of [{}] at {} (connection '{}')",
            self.config.name, id.0, self.peer, self.remote, self.connection.name
        )
    }
}

/// Destinations of selectors, each once.
fn ranges(selectors: &[Selector]) -> Vec<AddrRange> {
    let mut ranges: Vec<AddrRange> = Vec::new();
    for selector in selectors {
        if !ranges.contains(&selector.dst) {
            ranges.push(selector.dst);
        }
    }
    ranges
}

/// Child SAs by remote addresses: ranges in classes of about the same width, by the blocks of that
/// width they touch. A look-up touches two blocks for each class that is as wide or wider, and the
/// part of a narrower one that is inside.
#[derive(Default)]
struct Index {
    /// Family, bits of the width, number of the block, Child SA.
    blocks: BTreeSet<(bool, u32, u128, ChildId)>,
    /// Entries of each class.
    classes: BTreeMap<(bool, u32), usize>,
}

fn class(range: &AddrRange) -> (bool, u32) {
    // Bit length of the difference: a block of 2^width addresses is then at least as large as the
    // range.
    (range.is_v6(), u128::BITS - (bits(range.end) - bits(range.start)).leading_zeros())
}

/// First and last block of a range.
fn span(range: &AddrRange, width: u32) -> (u128, u128) {
    // The whole IPv6 space has width 128, by which a u128 cannot be shifted; all of it is block 0.
    let block = |addr| bits(addr).checked_shr(width).unwrap_or(0);
    (block(range.start), block(range.end))
}

impl Index {
    fn insert(&mut self, range: AddrRange, child: ChildId) {
        let (v6, width) = class(&range);
        let (first, last) = span(&range, width);
        // A range is not wider than its blocks, so it touches one or two.
        for block in [first, last] {
            if self.blocks.insert((v6, width, block, child)) {
                *self.classes.entry((v6, width)).or_default() += 1;
            }
        }
    }

    fn remove(&mut self, range: AddrRange, child: ChildId) {
        let (v6, width) = class(&range);
        let (first, last) = span(&range, width);
        for block in [first, last] {
            if self.blocks.remove(&(v6, width, block, child))
                && let Some(entries) = self.classes.get_mut(&(v6, width))
            {
                *entries -= 1;
                if *entries == 0 {
                    self.classes.remove(&(v6, width));
                }
            }
        }
    }

    /// Child SAs that may have an address in common with one of `ranges`; some may come twice.
    fn overlapping<'a>(&'a self, ranges: &'a [AddrRange]) -> impl Iterator<Item = ChildId> + 'a {
        ranges.iter().flat_map(move |range| {
            let of_family = self.classes.keys().filter(|(v6, _)| *v6 == range.is_v6());
            of_family.flat_map(move |&(v6, width)| {
                let (first, last) = span(range, width);
                let blocks = (v6, width, first, ChildId(0))..=(v6, width, last, ChildId(u32::MAX));
                self.blocks.range(blocks).map(|(.., child)| *child)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(first: u32, last: u32) -> AddrRange {
        let addr = |bits| std::net::IpAddr::from(std::net::Ipv4Addr::from_bits(bits));
        AddrRange { start: addr(first.min(last)), end: addr(first.max(last)) }
    }

    proptest! {
        /// Against the slow look at every range.
        #[test]
        fn the_index_misses_no_overlap_and_forgets_what_was_removed(
            entered in proptest::collection::vec((0u32..80, 0u32..80, any::<bool>()), 0..30),
            asked in (0u32..80, 0u32..80),
        ) {
            let mut index = Index::default();
            let asked = range(asked.0, asked.1);
            let with_ids = || entered.iter().zip(1u32..).map(|((a, b, gone), id)| (range(*a, *b), ChildId(id), *gone));
            for (range, id, _) in with_ids() {
                index.insert(range, id);
            }
            for (range, id, _) in with_ids().filter(|(.., gone)| *gone) {
                index.remove(range, id);
            }
            let found: BTreeSet<ChildId> = index.overlapping(&[asked]).collect();
            for (range, id, gone) in with_ids() {
                let meets = range.start <= asked.end && asked.start <= range.end;
                prop_assert!(!gone || !found.contains(&id));
                prop_assert!(gone || !meets || found.contains(&id), "{range} and {asked}");
            }
            for (range, id, _) in with_ids() {
                index.remove(range, id);
            }
            prop_assert!(index.blocks.is_empty() && index.classes.is_empty());
        }
    }
}
