//! Which policy of a connection comes first: `priority`, then the narrower selectors, then the SA
//! before its trap.

use ike::config::ChildConfig;
use ike::selectors::precedence;
use wire::{AddrRange, Selector};

/// Order of policies with the same selectors.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Order {
    /// Protected by an SA.
    Sa,
    /// Trap, `pass` or `drop` of a section.
    Standing,
    /// Drops the traffic of a section without an SA.
    Closed,
}

/// Place of a policy: less is first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Rank(u32, Order);

impl Rank {
    pub(super) fn new(config: &ChildConfig, selectors: &[Selector], order: Order) -> Self {
        Self(precedence(config, selectors), order)
    }

    /// Position of a policy that drops `selectors`; its default position is `self`. It follows
    /// every policy in `rows` that protects part of the selectors, because a section that is not
    /// supposed to be up must not take traffic from an SA with wider selectors. It precedes
    /// policies that pass the traffic in clear text. `rows` must be sorted.
    pub(super) fn after_protection(self, selectors: &[Selector], rows: &[RankedPolicy<'_>]) -> Self {
        let own = rows.partition_point(|row| row.rank < self);
        let concerns = |row: &&RankedPolicy<'_>| {
            row.selectors.iter().any(|theirs| selectors.iter().any(|ours| overlap(ours, theirs)))
        };
        let mut place = self;
        for row in rows[own..].iter().filter(concerns) {
            if !row.protects {
                break;
            }
            place = Self(row.rank.0, Order::Closed);
        }
        place
    }
}

/// A policy that is not there to close a section without an SA.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankedPolicy<'a> {
    pub(super) rank: Rank,
    /// It protects, or requests an SA.
    pub(super) protects: bool,
    pub(super) selectors: &'a [Selector],
}

/// Returns whether a packet can be meant by both; ports are not compared.
fn overlap(a: &Selector, b: &Selector) -> bool {
    let meet = |a: &AddrRange, b: &AddrRange| a.is_v6() == b.is_v6() && a.start <= b.end && b.start <= a.end;
    let protocols = a.proto.is_none() || b.proto.is_none() || a.proto == b.proto;
    protocols && meet(&a.src, &b.src) && meet(&a.dst, &b.dst)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(local: &str, remote: &str) -> Selector {
        Selector::from_sides(local.parse().unwrap(), remote.parse().unwrap()).unwrap()
    }

    fn row(selectors: &[Selector], order: Order) -> RankedPolicy<'_> {
        let rank = Rank::new(&ChildConfig::new("child"), selectors, order);
        RankedPolicy { rank, protects: order == Order::Sa, selectors }
    }

    #[test]
    fn what_only_closes_comes_after_protection_and_before_clear_text() {
        let narrow = [selector("10.1.0.0/24", "10.2.0.0/16")];
        let own = Rank::new(&ChildConfig::new("child"), &narrow, Order::Closed);
        let selectors = [
            [selector("10.1.0.0/16", "10.2.0.0/16")],
            [selector("10.0.0.0/8", "10.2.0.0/16")],
            [selector("10.0.0.0/8", "0.0.0.0/0")],
            [selector("10.1.0.0/24", "10.9.0.0/24")],
        ];
        let wide = row(&selectors[0], Order::Sa);
        let pass = row(&selectors[1], Order::Standing);
        let full = row(&selectors[2], Order::Sa);
        let elsewhere = row(&selectors[3], Order::Sa);
        let place = |rows: &[RankedPolicy<'_>]| own.after_protection(&narrow, rows);
        assert_eq!(place(&[]), own);
        assert_eq!(place(&[elsewhere]), own, "another destination");
        let after_wide = place(&[elsewhere, wide, pass, full]);
        assert!(wide.rank < after_wide && after_wide < pass.rank, "{after_wide:?}");
        assert_eq!(place(&[pass, full]), own, "clear text would pass before the SA");
    }
}
