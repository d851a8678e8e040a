//! Inbound templates.
//!
//! The template of an SA names the fields of its protocol header. [`InLayout`] completes it with
//! the outer header that consecutive packets share, and prepares them; [`InnerLayout`] finishes
//! them after the engine. Both leave every packet that does not fit to the slow path, which also
//! determines the drop reason.

use std::ops::Range;

use crypto::{Aad, CryptoOp, IcvOk, Jobs, KeyId, Span};
use wire::eesp::infer_inner;
use wire::ip::{Brief, IPV4_HEADER};
use wire::{IpProto, PlainFlow, SeqNo};

use crate::eesp::inner_full;
use crate::esp::{esn_aad, strip_trailer};
use crate::template::Covered;
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
    pub(crate) iv: IvField,
    pub(crate) key: KeyId,
    pub(crate) covered: Covered,
    /// Length of the associated data of [`Covered::Header`].
    pub(crate) aad_len: u16,
    pub(crate) payload_at: u16,
    /// The payload is a multiple of this, a power of two.
    pub(crate) block_len: u16,
    /// Minimum payload, trailer included.
    pub(crate) payload_min: u16,
    pub(crate) icv_len: u16,
    /// Format of the decrypted payload; `None` if the packets of the SA need the slow path of the
    /// finish step.
    pub(crate) inside: Option<InnerFormat>,
    /// Tunnel mode: the payload is a whole packet.
    pub(crate) tunnel: bool,
}

/// Numbers in the protocol header of a packet.
#[derive(Clone, Copy)]
pub struct InNumbers {
    seq: SeqNo,
    iv: u128,
}

/// Format of a decrypted payload: the source of its protocol and length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum InnerFormat {
    /// ESP trailer at the end.
    EspTrailer,
    /// EESP payload info at the start.
    PayloadInfo,
    /// IP packet with its own length field; a few bytes of padding may follow.
    IpPacket,
    /// IP packet with its own length field; bytes after it are ignored.
    IpPacketPadded,
}

/// IV of a packet, in front of the payload.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum IvField {
    /// None: the sequence number is the IV.
    Sequence,
    /// Eight bytes.
    Eight,
    /// 16 bytes.
    Sixteen,
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

    #[inline]
    fn op(&self, aad: Aad, payload: Span, icv: Span, read: InNumbers) -> CryptoOp {
        CryptoOp { key: self.key, aad, body: payload, icv, iv: read.iv.to_be_bytes() }
    }

    /// Only ESP needs it, and its SPI is the first field.
    #[inline]
    fn inline_aad(&self, read: InNumbers) -> Aad {
        Aad::Inline(esn_aad((self.first >> 32) as u32, read.seq))
    }
}

/// The outer header of a packet, as far as templates need it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OuterLayout {
    /// Offset of the IP header's end: of the UDP header when encapsulated, else of the protocol's.
    pub ip_end: u16,
    /// Offset of the protocol header.
    pub at: u16,
    /// Offset of the byte in the outer IP header chain that names the protocol.
    pub proto_at: u16,
}

/// Fields of one packet that its SA and its outer addresses do not determine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InOwn {
    /// Sequence number, inferred in full.
    pub seq: SeqNo,
    /// End of the payload.
    pub end: u32,
    /// DSCP and ECN of the outer header.
    pub outer_tos: u8,
}

impl InOwn {
    /// Returns the state of a packet with the other fields of `common`.
    #[inline]
    pub fn pending(&self, common: &PendingIn) -> PendingIn {
        let payload = Span { end: self.end, ..common.payload };
        PendingIn { seq: self.seq, payload, outer_tos: self.outer_tos, ..*common }
    }
}

/// Layout of the packets of one SA between the same outer addresses. Nothing follows a packet: its
/// ICV is at the end of its bytes.
#[derive(Clone, Copy)]
pub struct InLayout<'t> {
    template: InTemplate,
    /// `None` if anti-replay is disabled.
    window: Option<&'t ReplayWindow>,
    /// Offset of the protocol header.
    at: usize,
    /// Fields common to all packets.
    common: PendingIn,
}

impl<'t> InLayout<'t> {
    /// Returns the layout of the packets of `sa` with the outer header `outer`; `None` if they must
    /// use the slow path, or if [`InLayout::learn`] has to find it.
    #[inline]
    pub fn of(sa: &'t InboundSa, outer: OuterLayout) -> Option<Self> {
        let OuterLayout { ip_end, at, proto_at } = outer;
        // The SA may be bound to its encapsulation, which the slow path checks.
        let template = sa.template.as_ref().filter(|_| (at != ip_end) == sa.in_udp)?;
        Self::new(sa, template, at, PendingIn { ip_end, proto_at, ..PendingIn::EMPTY })
    }

    /// Returns the layout of packets like `packet`, which the slow path prepared with the state
    /// `pending` and the key `key`, at its protocol header `at`: for SAs whose many keys allow no
    /// template of the SA (Sub SAs, PSP), and for packets in UDP of an SA without it.
    pub fn learn(sa: &'t InboundSa, at: u16, packet: &[u8], key: KeyId, pending: &PendingIn) -> Option<Self> {
        let head = u64::from_be_bytes(*packet.get(usize::from(at)..)?.first_chunk()?);
        let template = match &sa.template {
            Some(template) => *template,
            None => sa.proto.flow_template(sa, head, key)?.without_fixup(sa),
        };
        if head & template.mask != template.first || pending.extra != 0 {
            return None;
        }
        Self::new(sa, &template, at, *pending)
    }

    #[inline]
    fn new(sa: &'t InboundSa, template: &InTemplate, at: u16, common: PendingIn) -> Option<Self> {
        let window = sa.lanes.get(usize::from(common.lane))?.window.get();
        // The first valid packet of a lane creates its window. With inferred sequence numbers the
        // window always exists.
        if window.is_none() && sa.window != 0 {
            return None;
        }
        let (template, at) = (*template, usize::from(at));
        let payload = Span { start: (at + usize::from(template.payload_at)) as u32, end: 0 };
        Some(Self { template, window, at, common: PendingIn { payload, ..common } })
    }

    /// Returns the fields common to all packets.
    #[inline]
    pub fn common(&self) -> &PendingIn {
        &self.common
    }

    /// Returns the format of the decrypted payload, if [`InnerLayout`] may finish the packets.
    #[inline]
    pub fn format(&self) -> Option<InnerFormat> {
        let finishes = self.template.tunnel || usize::from(self.common.ip_end) == IPV4_HEADER;
        self.template.inside.filter(|_| finishes)
    }

    /// Returns DSCP and ECN of the outer header of `packet`, if it fits the layout, given that its
    /// outer header does.
    #[inline]
    pub fn fits(&self, packet: &[u8]) -> Option<u8> {
        let header = packet.get(self.at..).filter(|_| packet.len() >= self.least());
        let first: &[u8; 8] = header.and_then(<[u8]>::first_chunk)?;
        if u64::from_be_bytes(*first) & self.template.mask != self.template.first || !self.is_whole(packet.len()) {
            return None;
        }
        let [first, second] = *packet.first_chunk()?;
        // The traffic class of IPv6 crosses a byte boundary.
        Some(if first >> 4 == 6 { first << 4 | second >> 4 } else { second })
    }

    /// Value and mask of the first eight bytes of the protocol header, first byte lowest, and
    /// minimum length in bytes of the packets that [fit](InLayout::fits).
    #[inline]
    pub fn head(&self) -> (u64, u64, usize) {
        (self.template.first.swap_bytes(), self.template.mask.swap_bytes(), self.least())
    }

    /// Returns whether the payload of a packet of `len` bytes, at least the minimum, is a multiple
    /// of the cipher's block.
    #[inline]
    pub fn is_whole(&self, len: usize) -> bool {
        let around = self.at + usize::from(self.template.payload_at + self.template.icv_len);
        len.wrapping_sub(around) & usize::from(self.template.block_len - 1) == 0
    }

    #[inline]
    fn least(&self) -> usize {
        let template = &self.template;
        self.at + HEAD.max(usize::from(template.payload_at + template.payload_min + template.icv_len))
    }

    /// Reads the protocol header of a packet that [fits](InLayout::fits), and checks the sequence
    /// number against the replay window.
    ///
    /// # Errors
    /// The reason to drop.
    pub fn check(&self, packet: &[u8]) -> Result<InNumbers, DropReason> {
        if self.has_mac() { self.check_as::<true>(packet) } else { self.check_as::<false>(packet) }
    }

    /// Returns whether the suite has a separate MAC.
    #[inline]
    pub fn has_mac(&self) -> bool {
        matches!(self.template.covered, Covered::ToIcv | Covered::ToIcvThenHigh)
    }

    /// [`InLayout::check`]. `MAC` is [`InLayout::has_mac`]: a const parameter, because the branches
    /// cost an AEAD 2 of 110 ticks.
    ///
    /// # Errors
    /// The reason to drop.
    #[inline(always)] // as below
    pub fn check_as<const MAC: bool>(&self, packet: &[u8]) -> Result<InNumbers, DropReason> {
        let head: &[u8; HEAD] = packet.get(self.at..).and_then(<[u8]>::first_chunk).ok_or(DropReason::Inconsistent)?;
        let head: [u64; HEAD / 8] = std::array::from_fn(|i| u64::from_be_bytes(head.as_chunks::<8>().0[i]));
        let (seq, after, last) = match self.template.number {
            SeqField::LowHalf { extended } => {
                (self.window.ok_or(DropReason::Inconsistent)?.number(head[0] as u32, extended), head[1], head[2])
            }
            SeqField::Full => (SeqNo(head[1]), head[2], 0),
        };
        if let Some(window) = self.window {
            window.check(seq)?;
        }
        let high = if self.template.iv == IvField::Sequence { seq.0 } else { after };
        let low = if MAC && self.template.iv == IvField::Sixteen { last } else { 0 };
        Ok(InNumbers { seq, iv: u128::from(high) << 64 | u128::from(low) })
    }

    /// [`crate::prepare_in`] for a packet that was checked, with `outer_tos` in its outer header.
    /// Operation and packet are added to `jobs`; the other fields of the packet's state are
    /// [`InLayout::common`].
    pub fn prepare<'p>(&self, packet: &'p mut [u8], outer_tos: u8, numbers: InNumbers, jobs: &mut Jobs<'p>) -> InOwn {
        if self.has_mac() {
            self.prepare_as::<true>(packet, outer_tos, numbers, jobs)
        } else {
            self.prepare_as::<false>(packet, outer_tos, numbers, jobs)
        }
    }

    /// [`InLayout::prepare`], with the parameter of [`InLayout::check_as`].
    #[inline(always)] // a call would copy the operation, and reads of the copy wait for its stores
    pub fn prepare_as<'p, const MAC: bool>(
        &self,
        packet: &'p mut [u8],
        outer_tos: u8,
        numbers: InNumbers,
        jobs: &mut Jobs<'p>,
    ) -> InOwn {
        let (template, at) = (&self.template, self.at);
        let icv = Span { start: packet.len().wrapping_sub(template.icv_len.into()) as u32, end: packet.len() as u32 };
        let payload = Span { start: self.common.payload.start, end: icv.start };
        let to = |end| Span { start: at as u32, end };
        // Branches, so that in each the operation is written field by field to where it stays.
        match (MAC, template.covered) {
            (false, Covered::Header) => {
                let aad = Aad::InPlace(to((at + usize::from(template.aad_len)) as u32));
                jobs.add(&template.op(aad, payload, icv, numbers), packet);
            }
            (false, _) => jobs.add(&template.op(template.inline_aad(numbers), payload, icv, numbers), packet),
            (true, Covered::ToIcvThenHigh) => {
                let aad = Aad::InPlaceThen(to(icv.start), numbers.seq.hi().to_be_bytes());
                jobs.add(&template.op(aad, payload, icv, numbers), packet);
            }
            (true, _) => jobs.add(&template.op(Aad::InPlace(to(icv.start)), payload, icv, numbers), packet),
        }
        InOwn { seq: numbers.seq, end: icv.start, outer_tos }
    }
}

/// Last step for packets of one lane of an SA with payloads of one format.
#[derive(Clone, Copy)]
pub struct InnerLayout<'t> {
    /// `None` if anti-replay is disabled.
    window: Option<&'t ReplayWindow>,
    format: InnerFormat,
    tunnel: bool,
    /// Bits of the TOS that must be equal in outer and inner header: the ECN field, if it is copied
    /// to the inner header (RFC 6040).
    ecn: u8,
    start: usize,
    /// Next header, if it is in clear text.
    next: IpProto,
}

impl<'t> InnerLayout<'t> {
    /// Returns the layout of packets of `sa` with the state `common`; `None` if they must use the
    /// slow path. `format` is that of [`InLayout::format`].
    #[inline]
    pub fn of(sa: &'t InboundSa, format: Option<InnerFormat>, common: &PendingIn) -> Option<Self> {
        let (format, lane) = (format?, sa.lanes.get(usize::from(common.lane))?);
        let window = lane.window.get();
        // As in `InLayout`: only the slow path creates a window.
        if window.is_none() && sa.window != 0 {
            return None;
        }
        let (tunnel, ecn) = (sa.is_tunnel, sa.ecn);
        Some(Self { window, format, tunnel, ecn, start: common.payload.start as usize, next: common.next })
    }

    /// Returns whether the SA is in transport mode.
    #[inline]
    pub fn is_transport(&self) -> bool {
        !self.tunnel
    }

    /// Returns whether payloads have an ESP trailer.
    #[inline]
    pub fn has_trailer(&self) -> bool {
        self.format == InnerFormat::EspTrailer
    }

    /// Tunnel mode: returns the range of the inner packet in the decrypted `packet`, if it needs no
    /// change. Changes no state; the caller must call [`InnerLayout::admit`].
    #[inline]
    pub fn inner(&self, packet: &[u8], own: &InOwn) -> Option<Range<usize>> {
        let payload = packet.get(self.start..own.end as usize)?;
        let inner = Brief::read(payload).ok()?;
        self.unchanged(payload, own, (inner.ip_in_ip(), inner.total_len, inner.tos))
    }

    /// As [`InnerLayout::inner`], for packets of `flow` only: a comparison with the flow is less
    /// work than to read a header.
    #[inline]
    pub fn inner_of(&self, flow: &PlainFlow, packet: &[u8], own: &InOwn) -> Option<Range<usize>> {
        let payload = packet.get(self.start..own.end as usize)?;
        let head = flow.next(payload)?;
        self.unchanged(payload, own, (IpProto::IPV4, head.total_len, head.tos()))
    }

    /// Returns the range of the inner packet, of which family, length and TOS were read.
    #[inline(always)] // otherwise the loop over packets of a flow has a call for each
    fn unchanged(
        &self,
        payload: &[u8],
        own: &InOwn,
        (family, total_len, tos): (IpProto, usize, u8),
    ) -> Option<Range<usize>> {
        let (next, len) = match self.format {
            InnerFormat::EspTrailer => {
                let (len, next) = strip_trailer(payload).ok()?;
                (next, len)
            }
            InnerFormat::IpPacketPadded => (self.next, payload.len()),
            InnerFormat::IpPacket => infer_inner(payload).ok()?,
            InnerFormat::PayloadInfo => return None,
        };
        // Neither header changes the other (RFC 6040) when their ECN fields are equal.
        let same_ecn = (tos ^ own.outer_tos) & self.ecn == 0;
        let whole = next == family && total_len <= len;
        (whole && same_ecn && self.tunnel).then_some(self.start..self.start + total_len)
    }

    /// As [`InnerLayout::inner`], in transport mode: where the packet will be, and its header,
    /// which is to be written there.
    #[inline]
    pub fn own(&self, packet: &[u8], own: &InOwn) -> Option<(Range<usize>, [u8; IPV4_HEADER])> {
        let payload = packet.get(self.start..own.end as usize)?;
        let (next, skip, end) = match self.format {
            InnerFormat::EspTrailer => {
                let (len, next) = strip_trailer(payload).ok()?;
                if next == IpProto::NONE {
                    return None; // a dummy packet
                }
                (next, 0, len)
            }
            InnerFormat::PayloadInfo => inner_full(payload).ok()?,
            InnerFormat::IpPacketPadded => (self.next, 0, payload.len()),
            InnerFormat::IpPacket => return None,
        };
        let total_len = u16::try_from(IPV4_HEADER + end - skip).ok()?;
        let header = encap::rewritten_header(*packet.first_chunk()?, next, total_len);
        let found = header[0] == 0x45 && !self.tunnel;
        found.then_some((self.start + skip - IPV4_HEADER..self.start + end, header))
    }

    /// Marks a sequence number as seen.
    ///
    /// # Errors
    /// As [`ReplayWindow::commit`].
    #[inline]
    pub fn admit(&self, own: &InOwn, ok: IcvOk) -> Result<(), DropReason> {
        let seen = Authentic::new(own.seq, ok);
        self.window.map_or(Ok(()), |window| window.commit(seen))
    }
}
