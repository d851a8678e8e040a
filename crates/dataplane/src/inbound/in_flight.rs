//! The packets of a chunk that are with the engine.

use arrayvec::ArrayVec;
use crypto::Span;
use ipsec::{InboundSa, PendingIn};
use wire::SeqNo;

use crate::outbound::CHUNK;

/// A packet with a known SA.
pub(super) struct InFlightDecryption<'t> {
    /// Index within the chunk.
    pub(super) i: u8,
    pub(super) slot: u32,
    pub(super) sa: &'t InboundSa,
    pub(super) pending: PendingIn,
    /// It is finished by the fast path.
    pub(super) usual: bool,
}

/// Common data of packets: all of an [`InFlightDecryption`] but what is in [`Own`].
#[derive(Clone, Copy)]
pub(super) struct Kind<'t> {
    pub(super) slot: u32,
    pub(super) sa: &'t InboundSa,
    pub(super) pending: PendingIn,
    pub(super) usual: bool,
    /// They were prepared as a run, and may be finished so.
    pub(super) alike: bool,
}

/// Data of a single packet.
pub(super) struct Own {
    seq: SeqNo,
    /// End of its payload.
    pub(super) end: u32,
    pub(super) outer_tos: u8,
    pub(super) i: u8,
    pub(super) kind: u8,
}

impl Own {
    /// Of packet `i`, of which `pending` is known.
    #[inline(always)]
    pub(super) fn new(i: u8, kind: u8, pending: &PendingIn) -> Self {
        Self { seq: pending.seq, end: pending.payload.end, outer_tos: pending.outer_tos, i, kind }
    }

    /// Data of the packet besides the common data.
    #[inline(always)]
    pub(super) fn pending(&self, common: &PendingIn) -> PendingIn {
        let payload = Span { end: self.end, ..common.payload };
        PendingIn { seq: self.seq, payload, outer_tos: self.outer_tos, ..*common }
    }
}

/// In-flight decryptions of a chunk: data common to a burst is stored once.
pub(super) struct InFlightDecryptions<'t> {
    kinds: ArrayVec<Kind<'t>, CHUNK>,
    packets: ArrayVec<Own, CHUNK>,
}

impl<'t> InFlightDecryptions<'t> {
    pub(super) fn new() -> Self {
        Self { kinds: ArrayVec::new(), packets: ArrayVec::new() }
    }

    /// Packets.
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Entries from `first` on.
    pub(super) fn from(&self, first: usize) -> &[Own] {
        self.packets.get(first..).unwrap_or(&[])
    }

    pub(super) fn kind(&self, kind: u8) -> Option<&Kind<'t>> {
        self.kinds.get(usize::from(kind))
    }

    /// Packet `n` of them.
    #[inline]
    pub(super) fn get(&self, n: usize) -> Option<InFlightDecryption<'t>> {
        let own = self.packets.get(n)?;
        let Kind { slot, sa, pending, usual, .. } = *self.kind(own.kind)?;
        Some(InFlightDecryption { i: own.i, slot, sa, pending: own.pending(&pending), usual })
    }

    /// Appends a packet that has nothing in common with others.
    #[inline(always)]
    pub(super) fn push(&mut self, InFlightDecryption { i, slot, sa, pending, usual }: InFlightDecryption<'t>) {
        let kind = self.kinds.len() as u8;
        self.kinds.push(Kind { slot, sa, pending, usual, alike: false });
        self.packets.push(Own::new(i, kind, &pending));
    }

    /// Lets `append` append packets that all have `kind` in common; it is given the name of that.
    #[inline(always)]
    pub(super) fn push_burst(&mut self, kind: Kind<'t>, append: impl FnOnce(u8, &mut ArrayVec<Own, CHUNK>)) {
        let before = self.packets.len();
        // The kind is stored after its packets, because `append` may find none. `CHUNK` bounds the
        // index to one byte.
        append(self.kinds.len() as u8, &mut self.packets);
        // Never more kinds than packets.
        if self.packets.len() > before {
            self.kinds.push(kind);
        }
    }
}
