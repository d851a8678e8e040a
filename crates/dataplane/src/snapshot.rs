//! Tables of the packet path: immutable snapshots, published as a whole.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use crypto::KeyTable;
use ipsec::{Action, InboundSa, OutboundSa, PolicyId, Protocol, Sad, SadIndex, Spd};
use wire::registry::CodePoints;
use wire::{FlowKey, IpPacket, Selector};

use crate::hold::HoldReason;
use crate::pacing::{PacedSa, PacedStream};
use crate::spare::{BySpi, InboundTraits, SlotList, SpareIndex};

/// What packets need of so many SAs, 0.7 KiB of each in each direction, stays in the L2 cache of 2
/// MiB: prefetches would cost more than they gain.
const FEW_SAS: usize = 384;

/// With more SAs, what the packets of the longest chunk need of them does not fit the L1 cache.
const LONG_CHUNK_SAS: usize = 128;

/// SAs, policies and keys for the packet path.
pub struct Snapshot {
    /// Increases with every publication, which invalidates the flow caches.
    pub generation: u64,
    /// Inbound SAs.
    pub sad: Sad,
    /// Policies.
    pub spd: Spd,
    /// Outbound SAs, indexed by the slots in policies.
    pub outbound: Vec<Arc<OutboundSa>>,
    /// Outbound SAs, sorted.
    pub(crate) by_spi: Vec<BySpi>,
    /// Slots with per-core SAs (RFC 9611), sorted by slot. Usually empty.
    pub per_core: Vec<PerCoreSas>,
    /// Slots with an SA that the peer may not have yet, sorted by slot. Usually empty.
    pub unconfirmed: Vec<UnconfirmedSa>,
    /// Slots of SAs with a constant rate, sorted by slot. Usually empty.
    pub paced: Vec<PacedSa>,
    /// Inbound SAs in their grace period, which no policy refers to, sorted by slot. Usually empty.
    pub grace_period: Vec<GracePeriodSa>,
    /// Group of each inbound SA, indexed by slot. An SA beyond the end is a separate group with the
    /// number of its slot.
    pub groups: Vec<u32>,
    /// Keys of the SAs. Shared with operations in flight.
    pub keys: Arc<KeyTable>,
    /// Protocol numbers and ports in use.
    pub code_points: CodePoints,
    /// True if a PSP association has a replay window: its packets must then be processed by one
    /// core.
    pub psp_windows: bool,
    /// True if the SAs do not fit the caches together, so that what a chunk needs of them is worth
    /// further prefetches.
    pub(crate) many_sas: bool,
    /// True if what the longest chunk needs of the SAs fits the L1 cache.
    pub(crate) long_chunks: bool,
    /// True if EESP is in use: a first bit of 1 on the NAT-T port then means EESP, not ESP. Of
    /// inbound SAs only, because it decides how received datagrams are classified.
    pub eesp: bool,
}

/// Outbound slot with per-core SAs: each core uses its own SA, or the fallback SA if it has none.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PerCoreSas {
    /// The slot that policies name, of the fallback SA.
    pub slot: u32,
    /// Slot of each core by its number; `None` for one that has no separate SA yet.
    pub by_core: Vec<Option<u32>>,
    /// The trap that is triggered for a core without a separate SA.
    pub trap: u32,
}

/// An outbound slot of an SA requested by the peer, while the peer may not have the response yet:
/// packets sent through it would be lost. Packets are held until the peer sends on the inbound
/// half, or until the timeout.
#[derive(Clone)]
pub struct UnconfirmedSa {
    /// The slot.
    pub slot: u32,
    /// The trap in which packets are held until then.
    pub trap: u32,
    /// Inbound SA: its first packet proves that the peer has the SA.
    pub inbound: Arc<InboundSa>,
    /// Set on timeout: packets should then be sent without proof.
    pub timed_out: Arc<AtomicBool>,
}

/// An expired SA that still receives packets in flight. Other policies, or a trap, have replaced
/// it, so that it has its own selectors for inbound packets (RFC 4301 §5.2 step 4).
#[derive(Clone, Debug)]
pub struct GracePeriodSa {
    /// Slot of the inbound SA.
    pub slot: u32,
    /// Position of its policy: a packet that matches an earlier policy is dropped.
    pub policy: PolicyId,
    /// Its selectors, source local.
    pub selectors: Arc<[Selector]>,
}

/// Reason why SAs and policies do not form a snapshot.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SnapshotError {
    /// Two inbound SAs that cannot be distinguished by their packets.
    #[error("SAs '{0}' and '{1}' have the same protocol, SPI and address: give one of them another SPI")]
    SameSpi(Arc<str>, Arc<str>),
}

impl Snapshot {
    /// Builds a snapshot; the generation is set on publication.
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
        let nothing = SpareIndex::default();
        Self::over((SlotList::of(inbound), SlotList::of(outbound), nothing), spd, keys, code_points)
    }

    /// The same, with the look-up tables of the earlier snapshot over whose slots the lists were
    /// written.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn over(
        (inbound, outbound, index): (SlotList<InboundSa>, SlotList<OutboundSa>, SpareIndex),
        spd: Spd,
        keys: KeyTable,
        code_points: CodePoints,
    ) -> Result<Self, SnapshotError> {
        let sas = inbound.len().max(outbound.len());
        let SpareIndex { sad, mut by_spi, traits } = index;
        let kept = outbound.kept();
        let outbound = outbound.finish();
        by_spi.retain(|(.., slot)| (*slot as usize) < kept);
        let new = (0..).zip(&outbound).skip(kept);
        by_spi.extend(new.map(|(slot, sa)| (sa.spi, sa.common.outer.peer.remote, slot)));
        // Stable, because it merges what was sorted with the rest.
        by_spi.sort();
        // Without the index of its beginning the whole list is read.
        let (sad, traits, indexed) = match sad {
            Some(sad) if inbound.is_longer() => (sad, traits, inbound.kept()),
            _ => (SadIndex::default(), InboundTraits::default(), 0),
        };
        let inbound = inbound.finish();
        let InboundTraits { eesp, psp_windows } = traits.with(&inbound[indexed..]);
        let sad = Sad::longer(sad, indexed, inbound).map_err(|(a, b)| SnapshotError::SameSpi(a, b))?;
        Ok(Self {
            generation: 0,
            sad,
            spd,
            outbound,
            by_spi,
            per_core: Vec::new(),
            unconfirmed: Vec::new(),
            paced: Vec::new(),
            grace_period: Vec::new(),
            groups: Vec::new(),
            keys: Arc::new(keys),
            code_points,
            psp_windows,
            many_sas: sas > FEW_SAS,
            long_chunks: sas <= LONG_CHUNK_SAS,
            eesp,
        })
    }

    /// Returns the outbound SAs to `remote` with this protocol and SPI.
    pub(crate) fn outbound_by_spi(
        &self,
        protocol: Protocol,
        spi: u32,
        remote: IpAddr,
    ) -> impl Iterator<Item = &Arc<OutboundSa>> {
        let first = self.by_spi.partition_point(|&(s, r, _)| (s, r) < (spi, remote));
        let slots = self.by_spi[first..].iter().take_while(move |&&(s, r, _)| (s, r) == (spi, remote));
        slots.map(|&(_, _, slot)| &self.outbound[slot as usize]).filter(move |sa| sa.protocol() == protocol)
    }

    /// The group of the inbound SA in `slot`.
    #[inline]
    pub(crate) fn group(&self, slot: u32) -> u32 {
        self.groups.get(slot as usize).copied().unwrap_or(slot)
    }

    /// Returns whether every core uses the slots that policies name, and holds no packets for them.
    #[inline]
    pub(crate) fn has_direct_slots(&self) -> bool {
        self.per_core.is_empty() && self.unconfirmed.is_empty()
    }

    /// Returns the slot that `core` uses for a policy with `slot`, and the trap to trigger if the
    /// core has no SA of its own.
    #[inline]
    pub(crate) fn on_core(&self, slot: u32, core: usize) -> (u32, Option<u32>) {
        if self.per_core.is_empty() { (slot, None) } else { self.per_core_slot(slot, core) }
    }

    fn per_core_slot(&self, slot: u32, core: usize) -> (u32, Option<u32>) {
        let Ok(at) = self.per_core.binary_search_by_key(&slot, |per_core| per_core.slot) else { return (slot, None) };
        let per_core = &self.per_core[at];
        match per_core.by_core.get(core) {
            Some(Some(own)) => (*own, None),
            Some(None) => (slot, Some(per_core.trap)),
            // A core beyond the list has no entry for an SA of its own, so that it must not request
            // one.
            None => (slot, None),
        }
    }
}

impl Snapshot {
    /// Returns the trap under which packets for `slot` must be held: the peer may not have the SA
    /// yet, or earlier packets are still held (`behind`) and must not be overtaken.
    #[inline]
    pub(crate) fn hold_trap(&self, slot: u32, behind: bool) -> Option<u32> {
        if self.unconfirmed.is_empty() { None } else { self.find_unconfirmed(slot, behind) }
    }

    #[cold]
    fn find_unconfirmed(&self, slot: u32, behind: bool) -> Option<u32> {
        let at = self.unconfirmed.binary_search_by_key(&slot, |unconfirmed| unconfirmed.slot).ok()?;
        let unconfirmed = &self.unconfirmed[at];
        let confirmed =
            unconfirmed.inbound.common.counters.packets() > 0 || unconfirmed.timed_out.load(Ordering::Relaxed);
        (!confirmed || behind).then_some(unconfirmed.trap)
    }

    /// The stream that packets for `slot` join, if it has one.
    pub(crate) fn paced_stream(&self, slot: u32) -> Option<&PacedStream> {
        let at = self.paced.binary_search_by_key(&slot, |paced| paced.slot).ok()?;
        Some(&self.paced[at].stream)
    }

    /// Reason why a packet of `core` remains held, if it does.
    pub(crate) fn hold_reason(&self, key: &FlowKey, core: usize) -> Option<HoldReason> {
        match self.spd.outbound(key)?.1 {
            Action::Trap(trap) => Some(HoldReason::Trapped(trap)),
            Action::Protect { outbound, .. } => {
                // `false`, because held packets are released in order: each would otherwise wait
                // for itself.
                self.hold_trap(self.on_core(outbound, core).0, false).map(|_| HoldReason::Unconfirmed)
            }
            Action::Bypass | Action::Drop => None,
        }
    }

    /// Returns whether `inner` may arrive through the inbound SA in `slot` although its matching
    /// policy does not refer to that SA: the SA is in its grace period, and only policies that
    /// preceded it take precedence.
    #[cold]
    pub(crate) fn in_grace_period(&self, slot: u32, inner: &[u8]) -> bool {
        let Ok(at) = self.grace_period.binary_search_by_key(&slot, |grace_period| grace_period.slot) else {
            return false;
        };
        let Ok(ip) = IpPacket::parse(inner) else { return false };
        let (grace_period, key) = (&self.grace_period[at], FlowKey::of(&ip, inner));
        let earlier = self.spd.inbound(&key).is_some_and(|(policy, _)| policy.0 < grace_period.policy.0);
        // The selectors have the local side as source, an inbound packet as destination.
        !earlier && grace_period.selectors.iter().any(|selector| selector.reversed().matches(&key))
    }
}

/// Reader of published tables.
pub type Reader = arc_swap::Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>;

/// Publisher of tables for the workers.
#[derive(Clone)]
pub struct Publisher(Arc<ArcSwap<Snapshot>>);

impl Publisher {
    /// Publishes a first snapshot.
    pub fn new(mut first: Snapshot) -> Self {
        // 0 marks the empty entries of the flow caches.
        first.generation = 1;
        Self(Arc::new(ArcSwap::from_pointee(first)))
    }

    /// Replaces the tables; workers see them from their next batch on.
    pub fn publish(&self, mut next: Snapshot) {
        // Load and store are two steps. With two publishing threads, two snapshots could have one
        // generation, and flow caches would keep outdated decisions.
        next.generation = self.0.load().generation + 1;
        self.0.store(Arc::new(next));
    }

    /// Returns the current tables.
    pub fn current(&self) -> Arc<Snapshot> {
        self.0.load_full()
    }

    /// Returns a reader, which costs one comparison if nothing changed.
    pub fn reader(&self) -> Reader {
        arc_swap::Cache::new(Arc::clone(&self.0))
    }
}
