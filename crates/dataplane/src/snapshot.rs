//! The tables of one moment, published whole and only read by packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use crypto::KeyTable;
use ipsec::{Action, InboundSa, OutboundSa, PolicyId, Sad, Spd};
use wire::registry::CodePoints;
use wire::{FlowKey, IpPacket, Selector};

use crate::hold::Stay;

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
    /// Slots with an SA that the peer may not have yet, in order. Usually none.
    pub unproven: Vec<Unproven>,
    /// Inbound SAs that no policy names any more, by their slots, in order. Usually none.
    pub ending: Vec<Ending>,
    /// The group of each inbound SA by its slot; an SA beyond the end is a separate group with the
    /// number of its slot.
    pub groups: Vec<u32>,
    /// Keys that the SAs name.
    pub keys: KeyTable,
    /// Protocol numbers and ports in use.
    pub code_points: CodePoints,
    /// Some PSP association has a replay window: its packets then belong to one core.
    pub psp_windows: bool,
    /// EESP is in use: a first bit of 1 on the NAT-T port then means EESP, not ESP.
    pub eesp: bool,
}

/// An outbound slot that is a set of SAs: each core takes its own, one that has none takes the slot's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Spread {
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
pub struct Unproven {
    /// The slot.
    pub slot: u32,
    /// The trap in which packets are held until then.
    pub trap: u32,
    /// The half on which the peer shows that it has the SA.
    pub sign: Arc<InboundSa>,
    /// Set when it has been waited for long enough.
    pub ripe: Arc<AtomicBool>,
}

/// An expired SA that still receives packets in flight. Other policies, or a trap, have replaced
/// it, so that it has its own selectors for inbound packets (RFC 4301 §5.2 step 4).
#[derive(Clone, Debug)]
pub struct Ending {
    /// The slot of its inbound half.
    pub slot: u32,
    /// Position of its policy: a packet that matches an earlier policy is dropped.
    pub place: PolicyId,
    /// Its selectors, source local.
    pub selectors: Vec<Selector>,
}

/// Reason why SAs and policies do not form a snapshot.
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
        let psp_windows = inbound.iter().any(|sa| sa.protocol() == ipsec::Protocol::Psp && sa.window > 0);
        let sad = Sad::new(inbound).map_err(|(a, b)| SnapshotError::SameSpi(a, b))?;
        Ok(Self {
            generation: 0,
            sad,
            spd,
            outbound,
            spread: Vec::new(),
            unproven: Vec::new(),
            ending: Vec::new(),
            groups: Vec::new(),
            keys,
            code_points,
            psp_windows,
            eesp,
        })
    }

    /// The group of the inbound SA in `slot`.
    #[inline]
    pub(crate) fn group(&self, slot: u32) -> u32 {
        self.groups.get(slot as usize).copied().unwrap_or(slot)
    }

    /// The slot that `core` uses for a policy with `slot`, and the trap to trigger if it has no
    /// separate one.
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

impl Snapshot {
    /// The trap as which packets for `slot` are held, while the peer may not have its SA, or while
    /// earlier packets for it are still held: `behind`.
    #[inline]
    pub(crate) fn held_as(&self, slot: u32, behind: bool) -> Option<u32> {
        if self.unproven.is_empty() { None } else { self.find_unproven(slot, behind) }
    }

    #[cold]
    fn find_unproven(&self, slot: u32, behind: bool) -> Option<u32> {
        let at = self.unproven.binary_search_by_key(&slot, |unproven| unproven.slot).ok()?;
        let unproven = &self.unproven[at];
        let proven = unproven.sign.common.counters.packets() > 0 || unproven.ripe.load(Ordering::Relaxed);
        (!proven || behind).then_some(unproven.trap)
    }

    /// Reason why a packet of `core` remains held, if it does.
    pub(crate) fn stays(&self, key: &FlowKey, core: usize) -> Option<Stay> {
        match self.spd.outbound(key)?.1 {
            Action::Trap(trap) => Some(Stay::Trapped(trap)),
            Action::Protect { outbound, .. } => {
                self.held_as(self.on_core(outbound, core).0, false).map(|_| Stay::Unproven)
            }
            Action::Bypass | Action::Drop => None,
        }
    }

    /// Returns whether `inner` may arrive through the inbound SA in `slot` although its matching
    /// policy does not refer to that SA: the SA is in its grace period, and only policies that
    /// preceded it take precedence.
    #[cold]
    pub(crate) fn ends_with(&self, slot: u32, inner: &[u8]) -> bool {
        let Ok(at) = self.ending.binary_search_by_key(&slot, |ending| ending.slot) else { return false };
        let Ok(ip) = IpPacket::parse(inner) else { return false };
        let (ending, key) = (&self.ending[at], FlowKey::of(&ip, inner));
        let earlier = self.spd.inbound(&key).is_some_and(|(policy, _)| policy.0 < ending.place.0);
        !earlier && ending.selectors.iter().any(|selector| selector.reversed().matches(&key))
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
    pub fn reader(&self) -> Reader {
        arc_swap::Cache::new(Arc::clone(&self.0))
    }
}
