//! Opening.

use std::ops::Range;

use crypto::{Aad, CryptoOp, IcvOk, KeyId, Span};
use wire::eesp::{MAX_TAIL_PADDING, infer_inner};
use wire::ip::IPV4_HEADER;
use wire::{IpPacket, IpProto, PlainFlow, PlainLike, SeqNo};

use crate::eesp::inner_full;
use crate::esp::{strip_trailer, widened};
use crate::step::{PutIn, PutInJob, finishes_usual};
use crate::{Authentic, Drop, InProto, InboundSa, PendingIn, ReplayWindow, encap};

/// Bytes of the protocol header that a recipe reads.
const HEAD: usize = 24;

/// What the packets of an SA look like. Offsets and lengths in bytes, from the protocol header on.
#[derive(Clone, Copy)]
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

/// What a packet's protocol header says.
struct Read {
    seq: SeqNo,
    iv: u64,
}

/// How a decrypted payload tells its protocol and length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Inside {
    /// By the trailer of ESP at its end.
    Trailed,
    /// By the payload info of EESP at its start.
    Informed,
    /// It is a packet, whose own header does; a little padding may follow.
    Packet,
    /// It is a packet, and what follows is not looked at.
    Loose,
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
        recipe.map(|recipe| recipe.repairing(sa))
    }

    /// Checksums are repaired on the way for packets of every kind, so that this one asks nothing.
    fn repairing(self, sa: &InboundSa) -> Self {
        Self { inside: self.inside.filter(|_| sa.common.repair.is_none()), ..self }
    }

    /// The recipe for packets that start as `head` does, of which one was found to have `key`: also for packets whose SA has none
    /// because its keys are many.
    fn of_run(sa: &InboundSa, head: u64, key: KeyId) -> Option<Self> {
        let recipe = match (&sa.recipe, &sa.proto) {
            (Some(recipe), _) => return Some(*recipe),
            (None, InProto::Eesp(eesp)) => eesp.recipe_of_run(sa, head, key),
            (None, InProto::Psp(psp)) => psp.recipe_of_run(head, key),
            (None, InProto::Esp(_) | InProto::Ah(_)) => None,
        };
        recipe.map(|recipe| recipe.repairing(sa))
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
        put: impl PutIn,
    ) -> Result<bool, Drop> {
        if at != outer.upper_at || outer.fragment.is_some() || packet.len() != outer.total_len {
            return Ok(false);
        }
        let Some(head) = self.head(at, packet) else { return Ok(false) };
        let read = self.read(Some(sa.window()?), &head)?;
        let icv = Span { start: packet.len().wrapping_sub(self.icv_len) as u32, end: packet.len() as u32 };
        let blank = PendingIn { ip_end: at as u16, proto_at: outer.proto_at as u16, ..PendingIn::EMPTY };
        let payload = Span { start: (at + self.payload_at) as u32, end: icv.start };
        let pending = PendingIn { seq: read.seq, payload, outer_tos: outer.tos, ..blank };
        // Two branches, so that in each the operation is written field by field to where it stays.
        match self.aad_len {
            Some(len) => put.put(self.op(Aad::InPlace(Span::new(at, at + len)), payload, icv, &read), pending),
            None => put.put(self.op(self.inline_aad(&read), payload, icv, &read), pending),
        }
        Ok(true)
    }

    /// The first words of the protocol header at `at`, when the packet is like those of the recipe.
    #[inline(always)]
    fn head(&self, at: usize, packet: &[u8]) -> Option<[u64; HEAD / 8]> {
        let head: &[u8; HEAD] = packet.get(at..)?.first_chunk()?;
        let words: [u64; HEAD / 8] = std::array::from_fn(|i| u64::from_be_bytes(head.as_chunks::<8>().0[i]));
        let least = at + self.payload_at + self.payload_min + self.icv_len;
        (words[0] & self.mask == self.first && least <= packet.len()).then_some(words)
    }

    /// What the protocol header says, and that its number is a new one, where a window can tell.
    #[inline(always)]
    fn read(&self, window: Option<&ReplayWindow>, head: &[u64; HEAD / 8]) -> Result<Read, Drop> {
        let (seq, behind) = match self.number {
            Number::Low { extended } => (window.ok_or(Drop::Inconsistent)?.number(head[0] as u32, extended), head[1]),
            Number::Whole => (SeqNo(head[1]), head[2]),
        };
        if let Some(window) = window {
            window.check(seq)?;
        }
        let iv = if self.explicit_iv { behind } else { seq.0 };
        Ok(Read { seq, iv })
    }

    #[inline(always)]
    fn op(&self, aad: Aad, payload: Span, icv: Span, read: &Read) -> CryptoOp {
        CryptoOp { key: self.key, aad, body: payload, icv, iv: (u128::from(read.iv) << 64).to_be_bytes() }
    }

    /// Only ESP has it, whose SPI comes first.
    #[inline(always)]
    fn inline_aad(&self, read: &Read) -> Aad {
        Aad::Inline(widened((self.first >> 32) as u32, read.seq))
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

/// How further packets that came between the same addresses for one SA are opened: a recipe with all that one of them has told.
#[derive(Clone, Copy)]
pub struct InNext<'t> {
    recipe: InRecipe,
    /// `None` where nothing is checked for replay.
    window: Option<&'t ReplayWindow>,
    /// Offset of the protocol header.
    at: usize,
    /// What all of them have in common.
    blank: PendingIn,
    /// ECN of the outer header goes to the inner one.
    ecn: bool,
}

impl<'t> InNext<'t> {
    /// For packets after this `packet`, which has the protocol header at `at`, and of which it was found what is `pending`, and its
    /// `key`; `None` when there is no other way for them than the general one.
    pub fn of(sa: &'t InboundSa, at: usize, packet: &[u8], key: KeyId, pending: &PendingIn) -> Option<Self> {
        let head = u64::from_be_bytes(*packet.get(at..)?.first_chunk()?);
        let recipe = InRecipe::of_run(sa, head, key)?;
        if head & recipe.mask != recipe.first || pending.extra != 0 {
            return None;
        }
        let window = sa.lanes.get(usize::from(pending.lane))?.window.get();
        // The first packet of a lane makes its window; where sequence numbers are inferred there is always one.
        if window.is_none() && sa.window != 0 {
            return None;
        }
        let payload = Span { start: u32::try_from(at + recipe.payload_at).ok()?, end: 0 };
        Some(Self { recipe, window, at, blank: PendingIn { payload, ..*pending }, ecn: sa.common.outer.ecn })
    }

    /// What all packets have in the first eight bytes of the protocol header, first byte lowest, and where they have it. With
    /// [`InNext::least`] this tells which packets [`InNext::prepare`] is for, among those that are whole and whose IP header is that
    /// of the packet before but for length, TOS, TTL, identification, checksum.
    #[inline]
    pub fn head(&self) -> (u64, u64) {
        (self.recipe.first.swap_bytes(), self.recipe.mask.swap_bytes())
    }

    /// Bytes of the shortest packet that [`InNext::prepare`] is for.
    #[inline]
    pub fn least(&self) -> usize {
        self.at + HEAD.max(self.recipe.payload_at + self.recipe.payload_min + self.recipe.icv_len)
    }

    /// What is remembered of all of them while they are with the engine.
    #[inline]
    pub fn blank(&self) -> PendingIn {
        self.blank
    }

    /// The lane that they come through.
    #[inline]
    pub fn lane(&self) -> u16 {
        self.blank.lane
    }

    /// What [`crate::prepare_in`] does for a packet with such a [`InNext::head`] and length: operation, packet, and what is to be remembered are
    /// given to `put`. That differs from [`InNext::blank`] in number, end of the payload and TOS only.
    ///
    /// # Errors
    /// The reason to drop.
    #[inline(always)]
    pub fn prepare<'p>(&self, packet: &'p mut [u8], put: impl PutInJob<'p>) -> Result<(), Drop> {
        let (recipe, at) = (&self.recipe, self.at);
        let head: &[u8; HEAD] = packet.get(at..).and_then(<[u8]>::first_chunk).ok_or(Drop::Inconsistent)?;
        let head: [u64; HEAD / 8] = std::array::from_fn(|i| u64::from_be_bytes(head.as_chunks::<8>().0[i]));
        let read = recipe.read(self.window, &head)?;
        let icv = Span { start: packet.len().wrapping_sub(recipe.icv_len) as u32, end: packet.len() as u32 };
        let payload = Span { start: self.blank.payload.start, end: icv.start };
        let pending = PendingIn { seq: read.seq, payload, outer_tos: packet[1], ..self.blank };
        // Two branches, as above.
        match recipe.aad_len {
            Some(aad_len) => {
                let aad = Aad::InPlace(Span { start: at as u32, end: (at + aad_len) as u32 });
                put.put(recipe.op(aad, payload, icv, &read), packet, pending);
            }
            None => put.put(recipe.op(recipe.inline_aad(&read), payload, icv, &read), packet, pending),
        }
        Ok(())
    }

    /// Whether [`crate::finish_in_usual`] is for these packets of `sa`.
    #[inline]
    pub fn finishes_usual(&self, sa: &InboundSa) -> bool {
        finishes_usual(sa, &self.blank)
    }

    /// Whether [`InNext::inner`] or, in transport mode, [`InNext::own`] may find something in these packets.
    #[inline]
    pub fn delivers(&self) -> bool {
        self.recipe.inside.is_some() && (self.recipe.tunnel || usize::from(self.blank.ip_end) == IPV4_HEADER)
    }

    /// Whether the packets have no IP header inside.
    #[inline]
    pub fn is_transport(&self) -> bool {
        !self.recipe.tunnel
    }

    /// Whether they come through the same lane as a packet of the same SA.
    #[inline(always)]
    pub fn shares_lane(&self, pending: &PendingIn) -> bool {
        self.blank.lane == pending.lane
    }

    /// Where in the decrypted `packet` the next packet of `flow` is, when it is one and need not be changed. Changes
    /// nothing: [`InNext::admit`] does what remains. What was checked of another packet of that flow holds
    /// for it, but for its length.
    #[inline(always)]
    pub fn inner(&self, packet: &[u8], pending: &PendingIn, flow: &PlainFlow) -> Option<Range<usize>> {
        let start = pending.payload.start as usize;
        let payload = packet.get(start..pending.payload.end as usize)?;
        let head = flow.next(payload)?;
        let whole = match self.recipe.inside {
            Some(Inside::Trailed) => {
                let (len, next) = strip_trailer(payload).ok()?;
                next == IpProto::IPV4 && head.total_len <= len
            }
            Some(Inside::Loose) => true,
            _ => payload.len() - head.total_len <= MAX_TAIL_PADDING,
        };
        // Neither header has anything to tell the other (RFC 6040) when their ECN fields are the same.
        let same_ecn = !self.ecn || (head.tos() ^ pending.outer_tos) & 3 == 0;
        (whole && same_ecn && self.delivers() && !self.is_transport()).then_some(start..start + head.total_len)
    }

    /// What is inside of a decrypted packet in which [`InNext::inner`] finds one, and of those that are like it.
    #[inline]
    pub fn inside(&self, packet: &[u8], pending: &PendingIn, flow: &PlainFlow) -> Option<InsideLike> {
        self.inner(packet, pending, flow)?;
        let payload = packet.get(pending.payload.range())?;
        let trailer = match self.recipe.inside? {
            Inside::Trailed => payload.len() - strip_trailer(payload).ok()?.0,
            _ => 0,
        };
        // The last bytes are the highest ones.
        let mask = match 8 * trailer {
            0 => 0,
            bits @ ..=64 => u64::MAX << (64 - bits),
            _ => return None,
        };
        let last = u64::from_le_bytes(*payload.last_chunk()?) & mask;
        let like = flow.like(flow.next(payload)?);
        Some(InsideLike { like, payload: pending.payload, outer_tos: pending.outer_tos, last, mask })
    }

    /// As [`InNext::inner`], in transport mode: where the packet will be, and its header, which is to be written there.
    #[inline(always)]
    pub fn own(
        &self,
        packet: &[u8],
        pending: &PendingIn,
        flow: &PlainFlow,
    ) -> Option<(Range<usize>, [u8; IPV4_HEADER])> {
        let start = pending.payload.start as usize;
        let payload = packet.get(start..pending.payload.end as usize)?;
        let (next, skip, end) = match self.recipe.inside? {
            Inside::Trailed => {
                let (len, next) = strip_trailer(payload).ok()?;
                (next, 0, len)
            }
            Inside::Informed => inner_full(payload).ok()?,
            Inside::Loose => (self.blank.next, 0, payload.len()),
            Inside::Packet => return None,
        };
        let ports: [u8; 4] = *payload.get(skip..end)?.first_chunk()?;
        let total_len = u16::try_from(IPV4_HEADER + end - skip).ok()?;
        let header = encap::relabelled(*packet.first_chunk()?, next, total_len);
        let word = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let dst = u32::from_le_bytes([header[16], header[17], header[18], header[19]]);
        let last = u64::from(dst) | u64::from(u32::from_le_bytes(ports)) << 32;
        let found = flow.starts([word(0), word(8), last]) && self.delivers() && self.is_transport();
        found.then_some((start + skip - IPV4_HEADER..start + end, header))
    }

    /// Marks a packet as seen.
    ///
    /// # Errors
    /// As [`ReplayWindow::commit`].
    #[inline(always)]
    pub fn admit(&self, pending: &PendingIn, ok: IcvOk) -> Result<(), Drop> {
        let seen = Authentic::new(pending.seq, ok);
        self.window.map_or(Ok(()), |window| window.commit(seen))
    }
}

/// What packets have inside that are equally long, have the same TOS and the same trailer: packets of one flow that are alike.
#[derive(Clone, Copy)]
pub struct InsideLike {
    like: PlainLike,
    payload: Span,
    outer_tos: u8,
    /// The last eight bytes of the payload, first byte lowest, where `mask` has ones.
    last: u64,
    mask: u64,
}

impl InsideLike {
    /// Whether it is for packets of which that is known.
    #[inline(always)]
    pub fn is_for(&self, pending: &PendingIn) -> bool {
        self.payload == pending.payload && self.outer_tos == pending.outer_tos
    }

    /// Bytes of each packet inside.
    #[inline(always)]
    pub fn inner_len(&self) -> usize {
        usize::from(self.like.total_len())
    }

    /// As [`InNext::inner`] for a decrypted `packet` that it is for; what was checked of the first one holds for this one.
    #[inline(always)]
    pub fn inner(&self, packet: &[u8]) -> Option<Range<usize>> {
        let start = self.payload.start as usize;
        let payload = packet.get(start..self.payload.end as usize)?;
        let last = u64::from_le_bytes(*payload.last_chunk()?) & self.mask;
        let head = self.like.next(payload).filter(|_| last == self.last)?;
        Some(start..start + head.total_len)
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
