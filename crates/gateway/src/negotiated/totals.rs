//! Traffic of an IKE SA since its authentication: Child SAs come and go with each rekeying, sums
//! stay.
//!
//! An entry is created with the first Child SA of an IKE SA and removed with the IKE SA, so there
//! are as many as IKE SAs.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use ike::output::IkeId;
use ipsec::{DropReason, SaCounters};

use super::Child;
use crate::rates::CONSUMED;

/// Packets, bytes and drops of both directions.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Sums {
    pub(crate) packets_in: u64,
    pub(crate) bytes_in: u64,
    pub(crate) packets_out: u64,
    pub(crate) bytes_out: u64,
    pub(crate) drops: u64,
}

impl Sums {
    /// Adds the counters of both SAs of a Child SA.
    pub(crate) fn add(&mut self, child: &Child) {
        let (inbound, outbound) = (&child.inbound.common.counters, &child.outbound.common.counters);
        self.packets_in += inbound.packets();
        self.bytes_in += inbound.bytes();
        self.packets_out += outbound.packets();
        self.bytes_out += outbound.bytes();
        self.drops += drops(inbound) + drops(outbound);
    }
}

/// Drops of all reasons that are losses: padding alone is what a constant rate consists of.
pub(crate) fn drops(counters: &SaCounters) -> u64 {
    let lost = DropReason::ALL.iter().filter(|reason| !CONSUMED.contains(reason));
    lost.map(|reason| counters.drops[*reason as usize].load(Ordering::Relaxed)).sum()
}

/// Sums of Child SAs that are gone, by IKE SA.
#[derive(Default)]
pub(crate) struct Totals(HashMap<IkeId, Sums>);

impl Totals {
    /// The IKE SA has a Child SA from now on.
    pub(super) fn begin(&mut self, ike: IkeId) {
        self.0.entry(ike).or_default();
    }

    /// A Child SA is gone. Nothing is kept for an IKE SA that ended before it.
    pub(super) fn keep(&mut self, child: &Child) {
        if let Some(sums) = self.0.get_mut(&child.ike) {
            sums.add(child);
        }
    }

    /// The IKE SA ended.
    pub(crate) fn end(&mut self, ike: IkeId) {
        self.0.remove(&ike);
    }

    /// Sums of Child SAs that are gone.
    pub(crate) fn gone(&self, ike: IkeId) -> Sums {
        self.0.get(&ike).copied().unwrap_or_default()
    }
}
