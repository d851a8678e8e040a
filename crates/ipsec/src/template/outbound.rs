//! Outbound templates.
//!
//! The bytes before the payload are copied as a whole, then the fields that vary are overwritten.
//! That is a third of the work of the slow path. The template is learned from example packets of
//! the slow path, so that each format is implemented once. In transport mode the IP header of the
//! packet is kept.

use std::mem::offset_of;
use std::num::NonZeroU8;
use std::ops::Range;

use crypto::{Aad, CryptoOp, Jobs, KeyId, Span};
use wire::esp::TRAILER_LEN;
use wire::ip::{DONT_FRAGMENT, IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header};
use wire::udp::UdpHeader;
use wire::{IpPacket, IpProto, SeqNo, SessionId, checksum};

use crate::encap::{self, identification};
use crate::esp::{PAD, esn_aad};
use crate::frame::MARGIN;
use crate::step::{OutPacket, prepare_out_slow};
use crate::template::Covered;
use crate::{DfPolicy, DropReason, DscpPolicy, Frame, Mode, OutLane, OutboundSa, Outer, aggfrag, psp};

/// Maximum padding of a template in bytes where packets end on a multiple of four.
const MAX_PAD: usize = 3;

/// Maximum number of bytes between payload and ICV there.
const MAX_TRAILER: usize = 8;

/// The same for ciphers with blocks of at most 16 bytes, rounded up to whole words.
const MAX_BLOCK_TRAILER: usize = 24;

/// Offsets of the fields that vary between packets of a protocol, in bytes from its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldOffsets {
    /// Eight bytes with the value `seq_or | seq & seq_mask`.
    pub(crate) seq_at: usize,
    pub(crate) seq_or: u64,
    pub(crate) seq_mask: u64,
    /// Eight bytes with the sequence number, of the IV field; `seq_at` if the packet has none.
    pub(crate) iv_at: usize,
    /// The sequence number is the IV of the operation, which otherwise has one of zeros.
    pub(crate) counter_iv: bool,
    /// Two bytes with the Session ID.
    pub(crate) session_at: Option<usize>,
    pub(crate) covered: Covered,
    /// Payload, padding and the fixed trailer of `tail_len` bytes are aligned to this: 1 or 4, or
    /// the block of a cipher. Padding of blocks is that of ESP.
    pub(crate) align: usize,
    pub(crate) tail_len: usize,
    /// Minimum payload in bytes; a shorter one would change which bytes stay in clear text.
    pub(crate) payload_min: usize,
    /// A byte with the Next Header; `None` if it is the last byte before the ICV.
    pub(crate) next_at: Option<usize>,
    /// A further byte with the padding length, outside the trailer.
    pub(crate) pad_at: Option<usize>,
}

/// Template of the packets of an SA: their constant bytes, and where and how the others are put.
/// Offsets are in bytes and into [`Family::head`], below [`MARGIN`]. In this order, so that what an
/// inner IPv4 packet needs is in few cache lines, from [`OutTemplate::HOT_AT`] to the end.
#[repr(C)]
pub struct OutTemplate {
    rare: Rare,
    /// Inner IPv4 packets, and all in transport mode.
    v4: Family,
    /// In transport mode, where `Rare::own` is used.
    is_transport: bool,
    /// Packets are AGGFRAG payloads: their first bytes do not contain their length.
    is_aggfrag: bool,
    /// The UDP source port is that of the flow.
    has_flow_port: bool,
    /// The authenticated data contain the sequence number, apart from the bytes of the packet.
    aad_varies: bool,
    udp: bool,
    covered: Covered,
    ip_at: u8,
    seq_at: u8,
    iv_at: u8,
    session_at: Option<u8>,
    /// Minimum length of a packet.
    least: u16,
    head_len: u16,
    /// Length of headers and trailer without padding.
    around: u16,
    tail_len: u16,
    align_mask: u16,
    icv_len: u16,
    /// In the protected packet: associated data and first encrypted byte.
    aad: Span,
    body_at: u32,
    /// One's complement sum of the rest of the outer IP header, in network byte order.
    sum: u32,
    spi: u32,
    /// First eight bytes of a tunnel's outer IP header, first byte lowest, without length and
    /// identification: bits that are copied from the inner header, and constant bits.
    keep: u64,
    set: u64,
    seq_or: u64,
    seq_mask: u64,
    /// Bits of the sequence number in the IV of the operation: all or none.
    iv_mask: u64,
    /// Key of the UDP source port, if that is of the flow.
    port_key: u64,
}

/// What few packets need.
#[repr(align(64))]
struct Rare {
    /// Inner IPv6 packets.
    v6: Family,
    /// Transport mode.
    own: OwnHeader,
}

/// Constant bytes of the packets of one inner IP version.
#[derive(Clone, Copy)]
#[repr(C)]
struct Family {
    /// Headers before the payload, right-aligned.
    head: [u8; MARGIN],
    /// Trailers, indexed by padding length, unless they end on a block.
    trailers: [[u8; MAX_TRAILER]; MAX_PAD + 1],
    /// Next Header, for trailers that end on a block.
    next_header: u8,
}

/// Transport mode: the IP header of the packet itself precedes the protocol header, whose fields
/// for the payload are then filled from it.
#[derive(Clone, Copy)]
struct OwnHeader {
    /// Protocol number that the IP header gets.
    proto: IpProto,
    /// The byte with the Next Header; `None` if it is the last one before the ICV.
    next_at: Option<NonZeroU8>,
    /// The byte with the padding length, if it is not in the trailer.
    pad_at: Option<NonZeroU8>,
}

/// No value of it is invalid, so that the discriminant of an `Option<OutTemplate>` is elsewhere.
const _: () = assert!(size_of::<Option<Rare>>() > size_of::<Rare>());

impl OutTemplate {
    /// Offset of what an inner IPv4 packet needs.
    pub(crate) const HOT_AT: usize = offset_of!(Self, v4);
    /// Free bytes that the buffer must have before and after a packet.
    pub const MARGIN: usize = MARGIN;
    /// Maximum packet length in bytes: with both margins, the packet must not exceed 65,535 bytes.
    pub const LONGEST: usize = u16::MAX as usize - 2 * MARGIN;

    /// Learns the template of `sa`; `None` if packets of the SA need the slow path.
    pub(crate) fn learn(sa: &OutboundSa) -> Option<Self> {
        let (offsets, port_key) = sa.proto.offsets(sa.spi)?;
        let outer = &sa.common.outer;
        let (transport, aggfrag) = match sa.common.mode {
            Mode::Tunnel => (false, false),
            Mode::Aggfrag(_) => (false, true),
            Mode::Transport => (true, false),
            // Templates read the header of an inner packet.
            Mode::Beet(_) => return None,
        };
        // Inner packets of a tunnel may be as short as an IP header, and the Next Header depends on
        // their family.
        if !transport && (offsets.payload_min > IPV4_HEADER || offsets.pad_at.is_some()) {
            return None;
        }
        if !outer.peer.local.is_ipv4() || !outer.peer.remote.is_ipv4() {
            return None;
        }
        let example = Example::of(sa, false, offsets.payload_min)?;
        let (head_len, icv_len) = (example.head_len, example.op.icv.len());
        let ip_at = MARGIN.checked_sub(head_len)?;
        let header: &[u8; IPV4_HEADER] = example.head.get(ip_at..)?.first_chunk()?;
        let udp = header[9] == IpProto::UDP.0;
        let proto_at = ip_at + IPV4_HEADER + if udp { UdpHeader::LEN } else { 0 };
        let aad = match example.op.aad {
            Aad::InPlace(span) | Aad::InPlaceThen(span, _) => span,
            Aad::Inline(_) => Span::default(),
            Aad::InlineThen(..) => return None,
        };
        let short = |len: usize| u16::try_from(len).ok();
        let at = |at: usize| u8::try_from(at).ok().filter(|at| usize::from(*at) < MARGIN);
        let field = |offset: Option<usize>| offset.map_or(Some(None), |offset| at(proto_at + offset).map(Some));
        let nonzero = |offset: Option<usize>| {
            offset.map_or(Some(None), |offset| at(proto_at + offset).and_then(NonZeroU8::new).map(Some))
        };
        let own = OwnHeader {
            proto: IpProto(header[9]),
            next_at: nonzero(offsets.next_at)?,
            pad_at: nonzero(offsets.pad_at)?,
        };
        let flags = |df: bool| if df { DONT_FRAGMENT.to_be_bytes()[0] } else { 0 };
        let family = Family { head: example.head, trailers: Default::default(), next_header: 0 };
        let mut template = Self {
            rare: Rare { v6: family, own },
            v4: family,
            is_transport: transport,
            is_aggfrag: aggfrag,
            has_flow_port: port_key.is_some(),
            // As `aggfrag::payload_header` has it: no field is copied to the outer header.
            keep: if aggfrag {
                0
            } else {
                u64::from_le_bytes([0, tos_keep(outer), 0, 0, 0, 0, flags(outer.df == DfPolicy::Copy), 0])
            },
            set: {
                let df = outer.df == DfPolicy::Set || aggfrag && outer.df == DfPolicy::Copy;
                u64::from_le_bytes([header[0], tos_set(outer), 0, 0, 0, 0, flags(df), 0])
            },
            sum: constant_sum(header),
            seq_or: offsets.seq_or,
            seq_mask: offsets.seq_mask,
            least: short(offsets.payload_min + if transport { IPV4_HEADER } else { 0 })?,
            head_len: short(head_len)?,
            around: short(head_len + offsets.tail_len)?,
            tail_len: short(offsets.tail_len)?,
            align_mask: short(offsets.align - 1)?,
            icv_len: short(icv_len)?,
            aad,
            body_at: example.op.body.start,
            ip_at: at(ip_at)?,
            seq_at: at(proto_at + offsets.seq_at)?,
            iv_at: at(proto_at + offsets.iv_at)?,
            session_at: field(offsets.session_at)?,
            udp,
            covered: offsets.covered,
            aad_varies: matches!(offsets.covered, Covered::Inline | Covered::ToIcvThenHigh),
            iv_mask: if offsets.counter_iv { u64::MAX } else { 0 },
            spi: sa.spi,
            port_key: port_key.unwrap_or(0),
        };
        let families = if transport || aggfrag { &[false][..] } else { &[false, true] };
        for &v6 in families {
            for more in 0..offsets.align.max(MAX_PAD + 1) {
                let example = Example::of(sa, v6, offsets.payload_min + more)?;
                let (pad_len, trailer_len) = (template.pad_len(example.payload_len), example.trailer_len(icv_len)?);
                template.family_mut(v6).head = example.head;
                if trailer_len != pad_len + offsets.tail_len || example.head_len != head_len {
                    return None;
                }
                let after = example.after.get(..trailer_len)?;
                if template.ends_on_block() {
                    template.family_mut(v6).next_header = *after.get(pad_len + 1)?;
                    let made = template.block_trailer(v6, pad_len);
                    if made.get(..trailer_len)? != after {
                        return None;
                    }
                } else {
                    template.family_mut(v6).trailers.get_mut(pad_len)?[..trailer_len].copy_from_slice(after);
                }
            }
        }
        Some(template)
    }

    #[inline]
    fn family(&self, v6: bool) -> &Family {
        if v6 { &self.rare.v6 } else { &self.v4 }
    }

    fn family_mut(&mut self, v6: bool) -> &mut Family {
        if v6 { &mut self.rare.v6 } else { &mut self.v4 }
    }

    /// The template of the header in transport mode.
    #[inline]
    fn own(&self) -> Option<&OwnHeader> {
        self.is_transport.then_some(&self.rare.own)
    }

    #[inline]
    fn pad_len(&self, payload_len: usize) -> usize {
        (payload_len + usize::from(self.tail_len)).wrapping_neg() & usize::from(self.align_mask)
    }

    /// Whether the packets end on a block of the cipher, with the padding that this takes.
    #[inline]
    fn ends_on_block(&self) -> bool {
        usize::from(self.align_mask) > MAX_PAD
    }

    /// Padding, its length and the Next Header of a packet that ends on a block.
    fn block_trailer(&self, v6: bool, pad_len: usize) -> [u8; MAX_BLOCK_TRAILER] {
        let mut trailer = [0; MAX_BLOCK_TRAILER];
        let (pad, rest) = trailer.split_at_mut(pad_len.min(MAX_BLOCK_TRAILER - TRAILER_LEN));
        let len = pad.len();
        pad.copy_from_slice(&PAD[..len]);
        rest[..TRAILER_LEN].copy_from_slice(&[pad_len as u8, self.family(v6).next_header]);
        trailer
    }

    /// Returns whether the SA is in transport mode, where the IP header is kept.
    #[inline]
    pub fn is_transport(&self) -> bool {
        self.is_transport
    }

    /// Returns the layout for `packet`, an IP packet and nothing else, and for those that it
    /// [fits](OutLayout::fits), on `lane`; `None` if they must use the slow path.
    pub fn layout(&self, lane: &OutLane, packet: &[u8]) -> Option<OutLayout> {
        self.single_layout(lane, packet)
    }

    /// [`OutTemplate::layout`] for a single packet.
    #[inline(always)] // what the caller needs of it is in registers
    pub fn single_layout(&self, lane: &OutLane, packet: &[u8]) -> Option<OutLayout> {
        /// IPv4 without options, no fragment.
        const PLAIN: u64 = u64::from_le_bytes([0xff, 0, 0, 0, 0, 0, 0x3f, 0xff]);
        let own: u64 = u64::from_le_bytes(*packet.first_chunk()?);
        // Never of an AGGFRAG payload, which starts with its sub-type.
        let v6 = own & 0xf0 == 0x60;
        if !(usize::from(self.least)..=Self::LONGEST).contains(&packet.len()) {
            return None;
        }
        let (kept, first) = match (self.is_transport, v6) {
            (true, _) if own & PLAIN != 0x45 => return None,
            (true, _) => (IPV4_HEADER, own),
            (false, false) => (0, own),
            // As if it were IPv4 with DF set.
            (false, true) => (0, u64::from_le_bytes([0, packet[0] << 4 | packet[1] >> 4, 0, 0, 0, 0, 0x40, 0])),
        };
        let len = packet.len() - kept;
        let pad_len = self.pad_len(len);
        let icv_at = usize::from(self.around) + len + pad_len;
        let end = icv_at + usize::from(self.icv_len);
        let total_len = (end as u16).swap_bytes();
        let first = first & self.keep | self.set | u64::from(total_len) << 16;
        let sum = u64::from(self.sum) + (first >> 32) + u64::from(first as u32);
        let sum = checksum::folded((sum >> 32) as u32 + (sum as u32 >> 16) + u32::from(sum as u16));
        let trailer = if self.ends_on_block() {
            self.block_trailer(v6, pad_len)
        } else {
            let mut trailer = [0; MAX_BLOCK_TRAILER];
            trailer[..MAX_TRAILER].copy_from_slice(&self.family(v6).trailers[pad_len & MAX_PAD]);
            trailer
        };
        Some(OutLayout {
            // IPv6 packets and payloads are laid out one by one, because these bytes do not contain
            // the length: no packet has such a version.
            like: if v6 || self.is_aggfrag { 0xf0 } else { own & !OutLayout::IDENTIFICATION },
            first,
            sum,
            identified: first >> 48 & 0x40 == 0,
            v6,
            udp_len: ((end - IPV4_HEADER) as u16).to_be_bytes(),
            pad_len: pad_len as u8,
            trailer,
            len: len as u16,
            icv_at: icv_at as u32,
            end: end as u32,
            key: lane.key,
            session: lane.session,
        })
    }

    /// Returns what the packets of a layout have in common, ready to be copied: worth it for the
    /// second one.
    #[inline]
    pub fn stamp(&self, layout: &OutLayout) -> OutStamp {
        let mut window = [0; MARGIN + 8];
        window[..MARGIN].copy_from_slice(&self.family(layout.v6).head);
        self.write_common(layout, &mut window);
        let mut head = [0; MARGIN];
        head.copy_from_slice(&window[..MARGIN]);
        OutStamp { head, op: self.op(layout, SeqNo(0)) }
    }

    /// Writes the fields that all packets of a layout have in common.
    #[inline(always)] // as below
    fn write_common(&self, layout: &OutLayout, window: &mut [u8; MARGIN + 8]) {
        if !self.is_transport {
            put_at(window, self.ip_at, layout.first.to_le_bytes());
            put_at(window, self.ip_at + 10, (!layout.sum).to_le_bytes());
        }
        if self.udp {
            put_at(window, self.ip_at + UDP_LEN_AT, layout.udp_len);
        }
        if let Some(at) = self.session_at {
            put_at(window, at, layout.session.0.to_be_bytes());
        }
    }

    #[inline]
    fn op(&self, layout: &OutLayout, seq: SeqNo) -> CryptoOp {
        let aad = match self.covered {
            Covered::Header | Covered::Inline => Aad::InPlace(self.aad),
            Covered::ToIcv | Covered::ToIcvThenHigh => Aad::InPlace(Span { end: layout.icv_at, ..self.aad }),
        };
        let body = Span { start: self.body_at, end: layout.icv_at };
        let icv = Span { start: layout.icv_at, end: layout.end };
        CryptoOp { key: layout.key, aad, body, icv, iv: (u128::from(seq.0 & self.iv_mask) << 64).to_be_bytes() }
    }

    /// [`crate::prepare_out`] for a packet with sequence number `seq` that fits `layout`, of which
    /// `stamp` may be given. `area` is the packet with [`OutTemplate::MARGIN`] bytes before and
    /// after it. Operation and packet are added to `jobs`. `TRANSPORT` is
    /// [`OutTemplate::is_transport`]: a const parameter, because branches on it would cost a tunnel
    /// a fifth of its cycles here.
    ///
    /// # Errors
    /// [`DropReason::Inconsistent`] if the area has another length.
    pub fn prepare<'p, const TRANSPORT: bool>(
        &self,
        layout: &OutLayout,
        stamp: Option<&OutStamp>,
        seq: SeqNo,
        area: &'p mut [u8],
        jobs: &mut Jobs<'p>,
    ) -> Result<(), DropReason> {
        if self.has_mac() {
            self.prepare_as::<TRANSPORT, true>(layout, stamp, seq, area, jobs)
        } else {
            self.prepare_as::<TRANSPORT, false>(layout, stamp, seq, area, jobs)
        }
    }

    /// Returns whether the suite has a separate MAC.
    #[inline]
    pub fn has_mac(&self) -> bool {
        matches!(self.covered, Covered::ToIcv | Covered::ToIcvThenHigh)
    }

    /// [`OutTemplate::prepare`]. `MAC` is [`OutTemplate::has_mac`], a const parameter for the same
    /// reason as `TRANSPORT`.
    ///
    /// # Errors
    /// As [`OutTemplate::prepare`].
    #[inline(always)] // its callers are the loops of the packet path, in which it is all there is
    pub fn prepare_as<'p, const TRANSPORT: bool, const MAC: bool>(
        &self,
        layout: &OutLayout,
        stamp: Option<&OutStamp>,
        seq: SeqNo,
        area: &'p mut [u8],
        jobs: &mut Jobs<'p>,
    ) -> Result<(), DropReason> {
        // One window of constant size covers the headers and eight bytes of the packet, so that the
        // compiler can omit the bounds check of each field.
        const WINDOW: usize = MARGIN + 8;
        let (kept, len) = (if TRANSPORT { IPV4_HEADER } else { 0 }, usize::from(layout.len));
        let port_key = self.has_flow_port.then_some(self.port_key);
        let port = port_key.and_then(|key| psp::flow_port(key, area.get(MARGIN..MARGIN + kept + len)?));
        let own = if TRANSPORT { area.get(MARGIN..).and_then(<[u8]>::first_chunk).copied() } else { None };
        let area = area.get_mut(kept..).ok_or(DropReason::Inconsistent)?;
        let behind = area.get_mut(MARGIN + len..).and_then(<[u8]>::first_chunk_mut);
        let trailer: &mut [u8; MAX_BLOCK_TRAILER] = behind.ok_or(DropReason::Inconsistent)?;
        if MAC && self.ends_on_block() {
            *trailer = layout.trailer;
        } else {
            trailer[..MAX_TRAILER].copy_from_slice(&layout.trailer[..MAX_TRAILER]);
        }
        if let (Some(own), Some(OwnHeader { next_at: None, .. })) = (own, self.own()) {
            let at = (usize::from(layout.pad_len) + usize::from(self.tail_len)).wrapping_sub(1);
            *trailer.get_mut(at).ok_or(DropReason::Inconsistent)? = next_header(&own);
        }
        let window: &mut [u8; WINDOW] = area.first_chunk_mut().ok_or(DropReason::Inconsistent)?;
        let head = stamp.map_or(&self.family(layout.v6).head, |stamp| &stamp.head);
        *window.first_chunk_mut().ok_or(DropReason::Inconsistent)? = *head;
        if stamp.is_none() {
            self.write_common(layout, window);
        }
        if let (Some(own), Some(&OwnHeader { proto, next_at, pad_at })) = (own, self.own()) {
            put_at(window, self.ip_at, encap::rewritten_header(own, proto, layout.end as u16));
            if let Some(at) = pad_at {
                put_at(window, at.get(), [layout.pad_len]);
            }
            if let Some(at) = next_at {
                put_at(window, at.get(), [next_header(&own)]);
            }
        } else if layout.identified {
            let id = identification(self.spi, layout.session, seq).swap_bytes();
            put_at(window, self.ip_at, (layout.first | u64::from(id) << 32).to_le_bytes());
            put_at(window, self.ip_at + 10, checksum::of_sum_and(layout.sum, id).to_le_bytes());
        }
        if let Some(port) = port {
            put_at(window, self.ip_at + IPV4_HEADER as u8, port.to_be_bytes());
        }
        put_at(window, self.iv_at, seq.0.to_be_bytes());
        put_at(window, self.seq_at, (seq.0 & self.seq_mask | self.seq_or).to_be_bytes());

        let packet = area.get_mut(MARGIN.wrapping_sub(self.head_len.into())..);
        let packet = packet.and_then(|packet| packet.get_mut(..layout.end as usize)).ok_or(DropReason::Inconsistent)?;
        // Two branches, so that in each the operation is written to where it stays.
        let iv = if MAC { seq.0 & self.iv_mask } else { seq.0 };
        let op = match stamp {
            Some(stamp) => jobs.add_with_iv(&stamp.op, iv, packet),
            None => jobs.add_with_iv(&self.op(layout, seq), iv, packet),
        };
        if self.aad_varies
            && let Some(op) = op
        {
            op.aad = if MAC {
                Aad::InPlaceThen(Span { end: layout.icv_at, ..self.aad }, seq.hi().to_be_bytes())
            } else {
                Aad::Inline(esn_aad(self.spi, seq))
            };
        }
        Ok(())
    }

    /// Returns the range of the protected packet in the buffer if the plain packet was at `start`.
    #[inline]
    pub fn place<const TRANSPORT: bool>(&self, layout: &OutLayout, start: u32) -> Range<u32> {
        let kept = if TRANSPORT { IPV4_HEADER as u32 } else { 0 };
        let start = (start + kept).wrapping_sub(self.head_len.into());
        start..start.wrapping_add(layout.end)
    }

    /// [`crate::prepare_out`] for one packet. Returns `None` and changes nothing if it must use the
    /// slow path.
    pub(crate) fn prepare_one(&self, lane: &OutLane, seq: SeqNo, frame: &mut Frame<'_>) -> Option<CryptoOp> {
        let layout = self.layout(lane, frame.bytes())?;
        let (start, mut jobs) = (u32::try_from(frame.range().start).ok()?, Jobs::new());
        let area = frame.around(MARGIN)?;
        let (prepared, place) = if self.is_transport() {
            (self.prepare::<true>(&layout, None, seq, area, &mut jobs), self.place::<true>(&layout, start))
        } else {
            (self.prepare::<false>(&layout, None, seq, area, &mut jobs), self.place::<false>(&layout, start))
        };
        prepared.ok()?;
        let op = jobs.pop()?.op;
        drop(jobs);
        frame.set_range(place.start as usize..place.end as usize).ok()?;
        Some(op)
    }
}

/// What [`OutTemplate`] derives once for all packets of a lane with the same length, TOS and DF.
#[derive(Clone, Copy)]
pub struct OutLayout {
    /// The first eight bytes of these packets without the identification.
    like: u64,
    /// First eight bytes of a tunnel's outer IP header, first byte lowest, without the
    /// identification, and the one's complement sum of its known fields in network byte order.
    first: u64,
    sum: u16,
    /// The header needs an identification, because DF is not set (RFC 6864 §4.1).
    identified: bool,
    /// The inner packets are IPv6.
    v6: bool,
    /// Length field of the UDP header.
    udp_len: [u8; 2],
    pad_len: u8,
    trailer: [u8; MAX_BLOCK_TRAILER],
    /// Bytes of the payload.
    len: u16,
    /// Of the protected packet: where the ICV begins, and where it ends.
    icv_at: u32,
    end: u32,
    key: KeyId,
    session: SessionId,
}

/// The bytes and the operation that the packets of an [`OutLayout`] have in common.
pub struct OutStamp {
    /// Headers before the payload, right-aligned.
    head: [u8; MARGIN],
    /// Without the IV.
    op: CryptoOp,
}

impl OutLayout {
    const IDENTIFICATION: u64 = u64::from_le_bytes([0, 0, 0, 0, 0xff, 0xff, 0, 0]);

    /// Returns whether the layout is that of `packet`, an IP packet and nothing else.
    #[inline]
    pub fn fits(&self, packet: &[u8]) -> bool {
        packet.first_chunk().is_some_and(|first| u64::from_le_bytes(*first) & !Self::IDENTIFICATION == self.like)
    }
}

/// From the start of an IPv4 header to the length in the UDP header behind it, in bytes.
const UDP_LEN_AT: u8 = IPV4_HEADER as u8 + 4;

/// Writes bytes to a place in the margin.
#[inline]
fn put_at<const N: usize>(window: &mut [u8; MARGIN + 8], at: u8, bytes: [u8; N]) {
    let at = usize::from(at) & (MARGIN - 1);
    window[at..at + N].copy_from_slice(&bytes);
}

/// What an IPv4 header says of its payload.
fn next_header(header: &[u8; IPV4_HEADER]) -> u8 {
    header[9]
}

/// Sum of an IPv4 header from its TTL on, without the checksum, in network byte order.
fn constant_sum(header: &[u8; IPV4_HEADER]) -> u32 {
    let word = |word: &[u8; 2]| u32::from(u16::from_le_bytes(*word));
    let (words, _) = header.as_chunks::<2>();
    words[4..].iter().map(word).sum::<u32>() - word(&words[5])
}

/// Which bits of the inner TOS the outer one takes over, and which it has besides.
fn tos_keep(outer: &Outer) -> u8 {
    let dscp = if outer.dscp == DscpPolicy::Copy { 0xfc } else { 0 };
    dscp | if outer.ecn { 3 } else { 0 }
}

fn tos_set(outer: &Outer) -> u8 {
    match outer.dscp {
        DscpPolicy::Copy => 0,
        DscpPolicy::Set(dscp) => dscp << 2,
    }
}

/// A packet that went the general way, number 0.
struct Example {
    head: [u8; MARGIN],
    head_len: usize,
    payload_len: usize,
    /// What follows the payload.
    after: Vec<u8>,
    op: CryptoOp,
}

impl Example {
    /// One with `more` bytes behind its IP header.
    fn of(sa: &OutboundSa, v6: bool, more: usize) -> Option<Self> {
        const AT: usize = 512;
        let mut buffer = [0; 2 * AT];
        let inner_len = if v6 {
            Ipv6Header::new([0; 16].into(), [0; 16].into(), IpProto::NONE, more)?.emit(&mut buffer[AT..]).ok()?;
            IPV6_HEADER + more
        } else {
            Ipv4Header::new([0; 4].into(), [0; 4].into(), IpProto::NONE, more)?.emit(&mut buffer[AT..]).ok()?;
            IPV4_HEADER + more
        };
        let ip = match sa.common.aggfrag() {
            Some(_) => aggfrag::payload_header(&sa.common, inner_len),
            None => IpPacket::parse(&buffer[AT..AT + inner_len]).ok()?,
        };
        let mut frame = Frame::new(&mut buffer, AT..AT + inner_len).ok()?;
        let mut op = CryptoOp::EMPTY;
        let lane = sa.lanes.first()?;
        let packet = OutPacket { lane, seq: SeqNo(0), ip: &ip, frame: &mut frame, op: &mut op };
        prepare_out_slow(sa, packet).ok()?;
        let range = frame.range();
        let kept = if sa.common.mode == Mode::Transport { ip.upper_at } else { 0 };
        Some(Self {
            head: *buffer[..AT + kept].last_chunk()?,
            head_len: AT + kept - range.start,
            payload_len: inner_len - kept,
            after: buffer[AT + inner_len..range.end].to_vec(),
            op,
        })
    }

    /// Bytes between payload and ICV.
    fn trailer_len(&self, icv_len: usize) -> Option<usize> {
        self.after.len().checked_sub(icv_len)
    }
}
