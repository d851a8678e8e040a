//! Opening.

use std::ops::Range;

use crypto::{Aad, CryptoOp, IcvOk, KeyId, Span};
use wire::eesp::infer_inner;
use wire::ip::IPV4_HEADER;
use wire::{IpPacket, IpProto, SeqNo};

use crate::eesp::inner_full;
use crate::esp::{strip_trailer, widened};
use crate::{Authentic, Drop, InProto, InboundSa, PendingIn, encap};

/// Bytes of the protocol header that a recipe reads.
const HEAD: usize = 24;

/// What the packets of an SA look like. Offsets and lengths in bytes, from the protocol header on.
pub(crate) struct InRecipe {
    /// The first eight bytes of every packet, where `mask` has ones.
    pub(crate) first: u64,
    pub(crate) mask: u64,
    pub(crate) number: Number,
    /// The IV stands behind the number; otherwise it is the number.
    pub(crate) explicit_iv: bool,
    pub(crate) key: KeyId,
    /// Associated data; `None` for SPI and extended number, which do not stand in the packet so.
    pub(crate) aad_len: Option<usize>,
    pub(crate) payload_at: usize,
    /// Smallest payload, which the trailer is part of.
    pub(crate) payload_min: usize,
    pub(crate) icv_len: usize,
    /// What [`InRecipe::finish`] finds; `None` when it is not for the packets of the SA.
    pub(crate) inside: Option<Inside>,
    /// A whole packet is inside; otherwise its header is outside.
    pub(crate) tunnel: bool,
}

/// How a decrypted payload tells its protocol and length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Inside {
    /// By the trailer of ESP at its end.
    Trailed,
    /// By the payload info of EESP at its start.
    Informed,
    /// It is a packet, whose own header does.
    Packet,
}

/// Where the sequence number of a packet stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Number {
    /// Its low half is that of the first eight bytes; the high half is zero, or inferred.
    Low { extended: bool },
    /// Behind the first eight bytes.
    Whole,
}

impl InRecipe {
    /// The recipe of `sa`, when it is of the kind that has one.
    pub(crate) fn of(sa: &InboundSa) -> Option<Self> {
        let recipe = match &sa.proto {
            InProto::Esp(esp) => esp.recipe(sa),
            InProto::Eesp(eesp) => eesp.recipe(sa),
            InProto::Ah(_) | InProto::Psp(_) => None,
        };
        // Checksums are repaired on the way for packets of every kind, so that this one asks nothing.
        recipe.map(|recipe| Self { inside: recipe.inside.filter(|_| sa.common.repair.is_none()), ..recipe })
    }

    /// What [`crate::prepare_in`] does, the result given to `put`. False when the packet is not like
    /// those of the recipe.
    ///
    /// # Errors
    /// The reason to drop.
    #[inline(always)]
    pub(crate) fn prepare(
        &self,
        sa: &InboundSa,
        outer: &IpPacket,
        at: usize,
        packet: &[u8],
        put: impl FnOnce(CryptoOp, PendingIn),
    ) -> Result<bool, Drop> {
        let Some(head) = packet.get(at..).and_then(<[u8]>::first_chunk::<HEAD>) else { return Ok(false) };
        let word = |i: usize| u64::from_be_bytes(head.as_chunks::<8>().0[i]);
        let (payload_at, icv_at) = (at + self.payload_at, packet.len().saturating_sub(self.icv_len));
        let alike = word(0) & self.mask == self.first
            && at == outer.upper_at
            && outer.fragment.is_none()
            && packet.len() == outer.total_len
            && payload_at + self.payload_min <= icv_at;
        if !alike {
            return Ok(false);
        }
        let window = sa.window()?;
        let (seq, behind) = match self.number {
            Number::Low { extended } => (window.number(word(0) as u32, extended), word(1)),
            Number::Whole => (SeqNo(word(1)), word(2)),
        };
        window.check(seq)?;
        let payload = Span::new(payload_at, icv_at);
        let mut iv = [0; 16];
        iv[..8].copy_from_slice(&(if self.explicit_iv { behind } else { seq.0 }).to_be_bytes());
        let icv = Span::new(icv_at, packet.len());
        let pending = PendingIn {
            seq,
            lane: 0,
            ip_end: outer.upper_at as u16,
            proto_at: outer.proto_at as u16,
            payload,
            next: IpProto::NONE,
            outer_tos: outer.tos,
            extra: 0,
        };
        // Two branches, so that in each the operation is written field by field to where it stays.
        match self.aad_len {
            Some(len) => {
                let aad = Aad::InPlace(Span::new(at, at + len));
                put(CryptoOp { key: self.key, aad, body: payload, icv, iv }, pending);
            }
            None => {
                let aad = Aad::Inline(widened(sa.spi, seq));
                put(CryptoOp { key: self.key, aad, body: payload, icv, iv }, pending);
            }
        }
        Ok(true)
    }

    /// Whether [`InRecipe::finish`] is for a packet.
    #[inline(always)]
    pub(crate) fn finishes(&self, pending: &PendingIn) -> bool {
        self.inside.is_some() && pending.extra == 0 && (self.tunnel || usize::from(pending.ip_end) == IPV4_HEADER)
    }

    /// What [`crate::finish_in`] does for packets that [`InRecipe::finishes`]. Returns where the
    /// inner packet is.
    ///
    /// # Errors
    /// The reason to drop.
    #[inline(always)]
    pub(crate) fn finish(
        &self,
        sa: &InboundSa,
        packet: &mut [u8],
        pending: &PendingIn,
        ok: IcvOk,
    ) -> Result<Range<usize>, Drop> {
        sa.window()?.commit(Authentic::new(pending.seq, ok))?;
        if !self.tunnel {
            return self.finish_transport(packet, pending);
        }
        let payload = packet.get_mut(pending.payload.range()).ok_or(Drop::Inconsistent)?;
        let (next, len) = if self.inside == Some(Inside::Trailed) {
            let (len, next) = strip_trailer(payload)?;
            (next, len)
        } else {
            infer_inner(payload).map_err(|_| Drop::BadInner)?
        };
        if next == IpProto::NONE {
            return Err(Drop::Dummy); // RFC 4303 §2.6
        }
        let payload = payload.get_mut(..len).ok_or(Drop::Inconsistent)?;
        let len = encap::check_inner(&sa.common.outer, payload, pending.outer_tos, next)?;
        let start = pending.payload.start as usize;
        Ok(start..start + len)
    }

    #[inline(never)] // a tunnel's way has no registers left for it
    fn finish_transport(&self, packet: &mut [u8], pending: &PendingIn) -> Result<Range<usize>, Drop> {
        let payload = packet.get(pending.payload.range()).ok_or(Drop::Inconsistent)?;
        let (next, skip, end) = if self.inside == Some(Inside::Trailed) {
            let (len, next) = strip_trailer(payload)?;
            (next, 0, len)
        } else {
            inner_full(payload)?
        };
        if next == IpProto::NONE {
            return Err(Drop::Dummy);
        }
        move_header(packet, pending.payload.start as usize + skip, end - skip, next)
    }
}

/// Puts the IPv4 header that starts `packet` right before its upper layer, which is `next` and
/// `len` bytes from `start` on.
#[inline(always)]
fn move_header(packet: &mut [u8], start: usize, len: usize, next: IpProto) -> Result<Range<usize>, Drop> {
    let own: [u8; IPV4_HEADER] = *packet.first_chunk().ok_or(Drop::Truncated)?;
    let total_len = u16::try_from(IPV4_HEADER + len).map_err(|_| Drop::TooBig)?;
    let before = packet.get_mut(..start).ok_or(Drop::Truncated)?;
    *before.last_chunk_mut().ok_or(Drop::Truncated)? = encap::relabelled(own, next, total_len);
    Ok(start - IPV4_HEADER..start + len)
}
