//! Inbound templates.

use std::ops::Range;

use crypto::{Aad, CryptoOp, IcvOk, KeyId, Span};
use wire::eesp::{MAX_TAIL_PADDING, infer_inner};
use wire::ip::IPV4_HEADER;
use wire::{IpPacket, IpProto, PlainFlow, PlainTemplate, SeqNo};

use crate::eesp::inner_full;
use crate::esp::{esn_aad, strip_trailer};
use crate::step::{PutIn, PutInJob, finishes_fast};
use crate::{Authentic, DropReason, InboundSa, PendingIn, ReplayWindow, encap};

/// Bytes of the protocol header that a template reads.
const HEAD: usize = 24;

/// Template of the packets of an SA. Offsets and lengths in bytes from the protocol header.
#[derive(Clone, Copy)]
pub(crate) struct InTemplate {
    /// The first eight bytes of every packet, where `mask` has ones.
    pub(crate) first: u64,
    pub(crate) mask: u64,
    pub(crate) number: SeqField,
    /// The IV follows the sequence number; otherwise the sequence number is the IV.
    pub(crate) explicit_iv: bool,
    pub(crate) key: KeyId,
    /// Length of the associated data; `None` for SPI and ESN, which are not contiguous in the
    /// packet.
    pub(crate) aad_len: Option<usize>,
    pub(crate) payload_at: usize,
    /// Minimum payload, trailer included.
    pub(crate) payload_min: usize,
    pub(crate) icv_len: usize,
    /// Format of the decrypted payload; `None` if the packets of the SA need the slow path of the
    /// finish step.
    pub(crate) inside: Option<InnerFormat>,
    /// Tunnel mode: the payload is a whole packet.
    pub(crate) tunnel: bool,
}

/// Fields of the protocol header of a packet.
struct HeaderFields {
    seq: SeqNo,
    iv: u64,
}

/// Format of a decrypted payload: the source of its protocol and length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum InnerFormat {
    /// ESP trailer at the end.
    EspTrailer,
    /// EESP payload info at the start.
    PayloadInfo,
    /// IP packet with its own length field; a few bytes of padding may follow.
    IpPacket,
    /// IP packet with its own length field; bytes after it are ignored.
    IpPacketPadded,
}

/// Location of the sequence number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SeqField {
    /// The second word of the first eight bytes is its low half; the high half is zero or, with
    /// ESN, inferred.
    LowHalf { extended: bool },
    /// All 64 bits follow the first eight bytes.
    Full,
}

impl InTemplate {
    /// Returns the template of `sa`, if its protocol and suite have one.
    pub(crate) fn of(sa: &InboundSa) -> Option<Self> {
        sa.proto.template(sa).map(|template| template.without_fixup(sa))
    }

    /// SAs with a checksum fixup use the slow path for the finish step, so that the fast path needs
    /// no branch for it.
    fn without_fixup(self, sa: &InboundSa) -> Self {
        Self { inside: self.inside.filter(|_| sa.common.fixup.is_none()), ..self }
    }

    /// Returns the template for packets that start with `head` and use `key`. SAs whose many keys
    /// allow no SA template (Sub SAs, PSP) have a template per flow.
    fn of_run(sa: &InboundSa, head: u64, key: KeyId) -> Option<Self> {
        match &sa.template {
            Some(template) => Some(*template),
            None => sa.proto.flow_template(sa, head, key).map(|template| template.without_fixup(sa)),
        }
    }

    /// Fast path of [`crate::prepare_in`]; passes the result to `put`. Returns false if the packet
    /// does not fit the template.
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
    ) -> Result<bool, DropReason> {
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

    /// Returns the first words of the protocol header at `at`, if the packet fits the template.
    #[inline(always)]
    fn head(&self, at: usize, packet: &[u8]) -> Option<[u64; HEAD / 8]> {
        let head: &[u8; HEAD] = packet.get(at..)?.first_chunk()?;
        let words: [u64; HEAD / 8] = std::array::from_fn(|i| u64::from_be_bytes(head.as_chunks::<8>().0[i]));
        let least = at + self.payload_at + self.payload_min + self.icv_len;
        (words[0] & self.mask == self.first && least <= packet.len()).then_some(words)
    }

    /// Reads the protocol header and checks the sequence number against the replay window, if there
    /// is one.
    #[inline(always)]
    fn read(&self, window: Option<&ReplayWindow>, head: &[u64; HEAD / 8]) -> Result<HeaderFields, DropReason> {
        let (seq, behind) = match self.number {
            SeqField::LowHalf { extended } => {
                (window.ok_or(DropReason::Inconsistent)?.number(head[0] as u32, extended), head[1])
            }
            SeqField::Full => (SeqNo(head[1]), head[2]),
        };
        if let Some(window) = window {
            window.check(seq)?;
        }
        let iv = if self.explicit_iv { behind } else { seq.0 };
        Ok(HeaderFields { seq, iv })
    }

    #[inline(always)]
    fn op(&self, aad: Aad, payload: Span, icv: Span, read: &HeaderFields) -> CryptoOp {
        CryptoOp { key: self.key, aad, body: payload, icv, iv: (u128::from(read.iv) << 64).to_be_bytes() }
    }

    /// Only ESP needs it, and its SPI is the first field.
    #[inline(always)]
    fn inline_aad(&self, read: &HeaderFields) -> Aad {
        Aad::Inline(esn_aad((self.first >> 32) as u32, read.seq))
    }

    /// Returns whether a packet may use [`InTemplate::finish`].
    #[inline(always)]
    pub(crate) fn finishes(&self, pending: &PendingIn) -> bool {
        self.inside.is_some() && pending.extra == 0 && (self.tunnel || usize::from(pending.ip_end) == IPV4_HEADER)
    }

    /// Fast path of [`crate::finish_in`] for packets accepted by [`InTemplate::finishes`]. Returns
    /// the range of the inner packet.
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
    ) -> Result<Range<usize>, DropReason> {
        sa.window()?.commit(Authentic::new(pending.seq, ok))?;
        if !self.tunnel {
            return self.finish_transport(packet, pending);
        }
        let payload = packet.get_mut(pending.payload.range()).ok_or(DropReason::Inconsistent)?;
        let (next, len) = if self.inside == Some(InnerFormat::EspTrailer) {
            let (len, next) = strip_trailer(payload)?;
            (next, len)
        } else {
            infer_inner(payload).map_err(|_| DropReason::BadInner)?
        };
        if next == IpProto::NONE {
            return Err(DropReason::Dummy); // RFC 4303 §2.6
        }
        let payload = payload.get_mut(..len).ok_or(DropReason::Inconsistent)?;
        let len = encap::check_inner(&sa.common.outer, payload, pending.outer_tos, next)?;
        let start = pending.payload.start as usize;
        Ok(start..start + len)
    }

    #[inline(never)] // a tunnel's way has no registers left for it
    fn finish_transport(&self, packet: &mut [u8], pending: &PendingIn) -> Result<Range<usize>, DropReason> {
        let payload = packet.get(pending.payload.range()).ok_or(DropReason::Inconsistent)?;
        let (next, skip, end) = if self.inside == Some(InnerFormat::EspTrailer) {
            let (len, next) = strip_trailer(payload)?;
            (next, 0, len)
        } else {
            inner_full(payload)?
        };
        if next == IpProto::NONE {
            return Err(DropReason::Dummy);
        }
        move_header(packet, pending.payload.start as usize + skip, end - skip, next)
    }
}

/// Template for inbound packets of one SA between the same outer addresses: an SA template
/// completed with the constant fields of the first packet.
#[derive(Clone, Copy)]
pub struct InFlowTemplate<'t> {
    template: InTemplate,
    /// `None` if anti-replay is disabled.
    window: Option<&'t ReplayWindow>,
    /// Offset of the protocol header.
    at: usize,
    /// Fields common to all packets.
    blank: PendingIn,
    /// ECN of the outer header is copied to the inner one (RFC 6040).
    ecn: bool,
}

impl<'t> InFlowTemplate<'t> {
    /// Builds the template from `packet`, which has its protocol header at `at`, the state
    /// `pending` and the key `key`. `None` if such packets must use the slow path.
    pub fn of(sa: &'t InboundSa, at: usize, packet: &[u8], key: KeyId, pending: &PendingIn) -> Option<Self> {
        let head = u64::from_be_bytes(*packet.get(at..)?.first_chunk()?);
        let template = InTemplate::of_run(sa, head, key)?;
        if head & template.mask != template.first || pending.extra != 0 {
            return None;
        }
        let window = sa.lanes.get(usize::from(pending.lane))?.window.get();
        // The first valid packet of a lane creates its window. With inferred sequence numbers the
        // window always exists.
        if window.is_none() && sa.window != 0 {
            return None;
        }
        let payload = Span { start: u32::try_from(at + template.payload_at).ok()?, end: 0 };
        Some(Self { template, window, at, blank: PendingIn { payload, ..*pending }, ecn: sa.common.outer.ecn })
    }

    /// Value and mask of the first eight bytes of the protocol header, first byte lowest. A packet
    /// may use [`InFlowTemplate::prepare`] if these bytes match, it has at least
    /// [`InFlowTemplate::least`] bytes, is not a fragment, and its IP header differs from the
    /// previous one only in length, TOS, TTL, identification and checksum.
    #[inline]
    pub fn head(&self) -> (u64, u64) {
        (self.template.first.swap_bytes(), self.template.mask.swap_bytes())
    }

    /// Minimum packet length in bytes for [`InFlowTemplate::prepare`].
    #[inline]
    pub fn least(&self) -> usize {
        self.at + HEAD.max(self.template.payload_at + self.template.payload_min + self.template.icv_len)
    }

    /// State common to all packets while they are in the engine.
    #[inline]
    pub fn blank(&self) -> PendingIn {
        self.blank
    }

    /// Lane of the packets.
    #[inline]
    pub fn lane(&self) -> u16 {
        self.blank.lane
    }

    /// [`crate::prepare_in`] for a packet that matches [`InFlowTemplate::head`] and the minimum
    /// length. Operation, packet and state are passed to `put`. The state differs from
    /// [`InFlowTemplate::blank`] only in sequence number, end of the payload and TOS.
    ///
    /// # Errors
    /// The reason to drop.
    #[inline(always)]
    pub fn prepare<'p>(&self, packet: &'p mut [u8], put: impl PutInJob<'p>) -> Result<(), DropReason> {
        let (template, at) = (&self.template, self.at);
        let head: &[u8; HEAD] = packet.get(at..).and_then(<[u8]>::first_chunk).ok_or(DropReason::Inconsistent)?;
        let head: [u64; HEAD / 8] = std::array::from_fn(|i| u64::from_be_bytes(head.as_chunks::<8>().0[i]));
        let read = template.read(self.window, &head)?;
        let icv = Span { start: packet.len().wrapping_sub(template.icv_len) as u32, end: packet.len() as u32 };
        let payload = Span { start: self.blank.payload.start, end: icv.start };
        let pending = PendingIn { seq: read.seq, payload, outer_tos: packet[1], ..self.blank };
        // Two branches, as above.
        match template.aad_len {
            Some(aad_len) => {
                let aad = Aad::InPlace(Span { start: at as u32, end: (at + aad_len) as u32 });
                put.put(template.op(aad, payload, icv, &read), packet, pending);
            }
            None => put.put(template.op(template.inline_aad(&read), payload, icv, &read), packet, pending),
        }
        Ok(())
    }

    /// Returns whether these packets of `sa` may use [`crate::finish_in_fast`].
    #[inline]
    pub fn finishes_fast(&self, sa: &InboundSa) -> bool {
        finishes_fast(sa, &self.blank)
    }

    /// Returns whether [`InFlowTemplate::inner`] or, in transport mode, [`InFlowTemplate::own`] may
    /// return a packet.
    #[inline]
    pub fn delivers(&self) -> bool {
        self.template.inside.is_some() && (self.template.tunnel || usize::from(self.blank.ip_end) == IPV4_HEADER)
    }

    /// Returns whether the SA is in transport mode.
    #[inline]
    pub fn is_transport(&self) -> bool {
        !self.template.tunnel
    }

    /// Returns whether a packet of the same SA uses the same lane.
    #[inline(always)]
    pub fn shares_lane(&self, pending: &PendingIn) -> bool {
        self.blank.lane == pending.lane
    }

    /// Returns the range of the inner packet in the decrypted `packet`, if it is the next one of
    /// `flow` and needs no change. Changes no state; the caller must call
    /// [`InFlowTemplate::admit`]. Only the length is checked, because the first packet of the flow
    /// passed all other checks.
    #[inline(always)]
    pub fn inner(&self, packet: &[u8], pending: &PendingIn, flow: &PlainFlow) -> Option<Range<usize>> {
        let start = pending.payload.start as usize;
        let payload = packet.get(start..pending.payload.end as usize)?;
        let head = flow.next(payload)?;
        let whole = match self.template.inside {
            Some(InnerFormat::EspTrailer) => {
                let (len, next) = strip_trailer(payload).ok()?;
                next == IpProto::IPV4 && head.total_len <= len
            }
            Some(InnerFormat::IpPacketPadded) => true,
            _ => payload.len() - head.total_len <= MAX_TAIL_PADDING,
        };
        // Neither header has anything to tell the other (RFC 6040) when their ECN fields are the
        // same.
        let same_ecn = !self.ecn || (head.tos() ^ pending.outer_tos) & 3 == 0;
        (whole && same_ecn && self.delivers() && !self.is_transport()).then_some(start..start + head.total_len)
    }

    /// What is inside of a decrypted packet in which [`InFlowTemplate::inner`] finds one, and of
    /// those that are like it.
    #[inline]
    pub fn inside(&self, packet: &[u8], pending: &PendingIn, flow: &PlainFlow) -> Option<InnerTemplate> {
        self.inner(packet, pending, flow)?;
        let payload = packet.get(pending.payload.range())?;
        let trailer = match self.template.inside? {
            InnerFormat::EspTrailer => payload.len() - strip_trailer(payload).ok()?.0,
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
        Some(InnerTemplate { like, payload: pending.payload, outer_tos: pending.outer_tos, last, mask })
    }

    /// As [`InFlowTemplate::inner`], in transport mode: where the packet will be, and its header,
    /// which is to be written there.
    #[inline(always)]
    pub fn own(
        &self,
        packet: &[u8],
        pending: &PendingIn,
        flow: &PlainFlow,
    ) -> Option<(Range<usize>, [u8; IPV4_HEADER])> {
        let start = pending.payload.start as usize;
        let payload = packet.get(start..pending.payload.end as usize)?;
        let (next, skip, end) = match self.template.inside? {
            InnerFormat::EspTrailer => {
                let (len, next) = strip_trailer(payload).ok()?;
                (next, 0, len)
            }
            InnerFormat::PayloadInfo => inner_full(payload).ok()?,
            InnerFormat::IpPacketPadded => (self.blank.next, 0, payload.len()),
            InnerFormat::IpPacket => return None,
        };
        let ports: [u8; 4] = *payload.get(skip..end)?.first_chunk()?;
        let total_len = u16::try_from(IPV4_HEADER + end - skip).ok()?;
        let header = encap::rewritten_header(*packet.first_chunk()?, next, total_len);
        let word = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let dst = u32::from_le_bytes([header[16], header[17], header[18], header[19]]);
        let last = u64::from(dst) | u64::from(u32::from_le_bytes(ports)) << 32;
        let found = flow.starts([word(0), word(8), last]) && self.delivers() && self.is_transport();
        found.then_some((start + skip - IPV4_HEADER..start + end, header))
    }

    /// Marks a sequence number as seen.
    ///
    /// # Errors
    /// As [`ReplayWindow::commit`].
    #[inline(always)]
    pub fn admit(&self, pending: &PendingIn, ok: IcvOk) -> Result<(), DropReason> {
        let seen = Authentic::new(pending.seq, ok);
        self.window.map_or(Ok(()), |window| window.commit(seen))
    }
}

/// Template of the inner packets of one flow that have the same length, TOS and trailer.
#[derive(Clone, Copy)]
pub struct InnerTemplate {
    like: PlainTemplate,
    payload: Span,
    outer_tos: u8,
    /// Value of the last eight bytes of the payload, first byte lowest, under `mask`.
    last: u64,
    mask: u64,
}

impl InnerTemplate {
    /// Returns whether a packet with the state `pending` may match.
    #[inline(always)]
    pub fn is_for(&self, pending: &PendingIn) -> bool {
        self.payload == pending.payload && self.outer_tos == pending.outer_tos
    }

    /// Length of each inner packet in bytes.
    #[inline(always)]
    pub fn inner_len(&self) -> usize {
        usize::from(self.like.total_len())
    }

    /// [`InFlowTemplate::inner`] for a matching decrypted `packet`: the checks of the first packet
    /// hold for this one.
    #[inline(always)]
    pub fn inner(&self, packet: &[u8]) -> Option<Range<usize>> {
        let start = self.payload.start as usize;
        let payload = packet.get(start..self.payload.end as usize)?;
        let last = u64::from_le_bytes(*payload.last_chunk()?) & self.mask;
        let head = self.like.next(payload).filter(|_| last == self.last)?;
        Some(start..start + head.total_len)
    }
}

/// Moves the IPv4 header at the start of `packet` right before its upper layer, which has protocol
/// `next` and `len` bytes at `start`.
#[inline(always)]
fn move_header(packet: &mut [u8], start: usize, len: usize, next: IpProto) -> Result<Range<usize>, DropReason> {
    let own: [u8; IPV4_HEADER] = *packet.first_chunk().ok_or(DropReason::Truncated)?;
    let total_len = u16::try_from(IPV4_HEADER + len).map_err(|_| DropReason::TooBig)?;
    let before = packet.get_mut(..start).ok_or(DropReason::Truncated)?;
    *before.last_chunk_mut().ok_or(DropReason::Truncated)? = encap::rewritten_header(own, next, total_len);
    Ok(start - IPV4_HEADER..start + len)
}
