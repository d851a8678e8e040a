//! The tables of one moment, published whole and only read by packets.

use std::sync::Arc;

use arc_swap::ArcSwap;
use crypto::KeyTable;
use ipsec::{InboundSa, OutboundSa, Sad, Spd};
use wire::registry::CodePoints;

/// SAs, policies and keys as packets see them.
pub struct Snapshot {
    /// Rises with every publication; flow caches forget when it changes.
    pub generation: u64,
    /// Inbound SAs.
    pub sad: Sad,
    /// Policies.
    pub spd: Spd,
    /// Outbound SAs by the slots that policies name.
    pub outbound: Vec<Arc<OutboundSa>>,
    /// Slots of which some cores use another (RFC 9611), in order. Usually none.
    pub spread: Vec<Spread>,
    /// The group of each inbound SA by its slot; an SA beyond the end is a group of its own, named like
    /// its slot.
    pub groups: Vec<u32>,
    /// Keys that the SAs name.
    pub keys: KeyTable,
    /// Protocol numbers and ports in use.
    pub code_points: CodePoints,
    /// EESP is in use: a first bit of 1 on the NAT-T port then means EESP, not ESP.
    pub eesp: bool,
}

/// An outbound slot that is a set of SAs: each core takes its own, one that has none takes the slot's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Spread {
    /// The slot that policies name, of the fallback SA.
    pub slot: u32,
    /// Slot of each core by its number; `None` for one that has no SA of its own yet.
    pub by_core: Vec<Option<u32>>,
    /// The trap that is sprung for a core without an SA of its own.
    pub trap: u32,
}

/// Why SAs and policies do not make a snapshot.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SnapshotError {
    /// Two inbound SAs that no packet could tell apart.
    #[error("SAs '{0}' and '{1}' have the same protocol, SPI and address: give one of them another SPI")]
    SameSpi(Box<str>, Box<str>),
}

impl Snapshot {
    /// A snapshot of these tables; its generation is set when it is published.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn new(
        inbound: Vec<Arc<InboundSa>>,
        outbound: Vec<Arc<OutboundSa>>,
        spd: Spd,
        keys: KeyTable,
        code_points: CodePoints,
    ) -> Result<Self, SnapshotError> {
        let eesp = inbound.iter().any(|sa| sa.protocol() == ipsec::Protocol::Eesp);
        let sad = Sad::new(inbound).map_err(|(a, b)| SnapshotError::SameSpi(a, b))?;
        Ok(Self { generation: 0, sad, spd, outbound, spread: Vec::new(), groups: Vec::new(), keys, code_points, eesp })
    }

    /// The group of the inbound SA in `slot`.
    #[inline]
    pub(crate) fn group(&self, slot: u32) -> u32 {
        self.groups.get(slot as usize).copied().unwrap_or(slot)
    }

    /// The slot that `core` uses where a policy names `slot`, and the trap to spring when it has none of
    /// its own.
    #[inline]
    pub(crate) fn on_core(&self, slot: u32, core: usize) -> (u32, Option<u32>) {
        if self.spread.is_empty() { (slot, None) } else { self.spread_on_core(slot, core) }
    }

    fn spread_on_core(&self, slot: u32, core: usize) -> (u32, Option<u32>) {
        let Ok(at) = self.spread.binary_search_by_key(&slot, |spread| spread.slot) else { return (slot, None) };
        let spread = &self.spread[at];
        match spread.by_core.get(core) {
            Some(Some(own)) => (*own, None),
            Some(None) => (slot, Some(spread.trap)),
            None => (slot, None),
        }
    }
}

/// Where the control side publishes and workers look.
#[derive(Clone)]
pub struct Publisher(Arc<ArcSwap<Snapshot>>);

impl Publisher {
    /// Publishes a first snapshot.
    pub fn new(mut first: Snapshot) -> Self {
        first.generation = 1;
        Self(Arc::new(ArcSwap::from_pointee(first)))
    }

    /// Replaces the tables; workers see them from their next batch on.
    pub fn publish(&self, mut next: Snapshot) {
        next.generation = self.0.load().generation + 1;
        self.0.store(Arc::new(next));
    }

    /// The tables now.
    pub fn current(&self) -> Arc<Snapshot> {
        self.0.load_full()
    }

    /// A reader that costs one comparison when nothing changed.
    pub(crate) fn reader(&self) -> arc_swap::Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>> {
        arc_swap::Cache::new(Arc::clone(&self.0))
    }
}
