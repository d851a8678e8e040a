//! Outbound templates.
//!
//! The bytes before the payload are copied as a whole, then the fields that vary are overwritten.
//! That is a third of the work of the slow path. The template is learned from example packets of
//! the slow path, so that each format is implemented once. In transport mode the IP header of the
//! packet is kept.

use std::ops::Range;

use crypto::{Aad, CryptoOp, KeyId, Span};
use wire::ip::{DONT_FRAGMENT, IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header};
use wire::udp::UdpHeader;
use wire::{IpPacket, IpProto, PlainFlow, PlainHeader, PlainTemplate, SeqNo, SessionId, checksum};

use crate::encap::{self, identification};
use crate::esp::esn_aad;
use crate::frame::MARGIN;
use crate::step::{PutJob, PutOp, prepare_out_slow};
use crate::{DfPolicy, DropReason, DscpPolicy, Frame, Mode, OutLane, OutProto, OutboundSa, Outer};

/// Maximum padding of a template in bytes: packets end on a multiple of four.
const MAX_PAD: usize = 3;

/// Maximum number of bytes between payload and ICV.
const MAX_TRAILER: usize = 8;

/// First byte of an IPv4 header without options, as the top byte of its first 64-bit word.
const VERSION_IHL: u64 = 0x45 << 56;

/// Offsets of the fields that vary between packets of a protocol, in bytes from its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldOffsets {
    /// Eight bytes with the value `seq_or | seq & seq_mask`.
    pub(crate) seq_at: usize,
    pub(crate) seq_or: u64,
    pub(crate) seq_mask: u64,
    /// Eight bytes with the sequence number as IV; `seq_at` if the packet has no IV field.
    pub(crate) iv_at: usize,
    /// Two bytes with the Session ID.
    pub(crate) session_at: Option<usize>,
    /// The associated data (SPI and 64-bit sequence number) are not contiguous in the packet and
    /// must be built separately.
    pub(crate) inline_aad: bool,
    /// Payload, padding and the fixed trailer of `tail_len` bytes are aligned to this, 1 or 4.
    pub(crate) align: usize,
    pub(crate) tail_len: usize,
    /// Minimum payload in bytes; a shorter one would change which bytes stay in clear text.
    pub(crate) payload_min: usize,
    /// A byte with the Next Header; `None` if it is the last byte before the ICV.
    pub(crate) next_at: Option<usize>,
    /// A further byte with the padding length, outside the trailer.
    pub(crate) pad_at: Option<usize>,
    /// The UDP source port is that of the flow.
    pub(crate) flow_port: bool,
}

/// Template of the packets of an SA. Offsets and lengths in bytes; offsets refer to an array of
/// `heads` unless stated otherwise.
pub(crate) struct OutTemplate {
    /// Headers before the payload, right-aligned in each array, for an inner IPv4 and an inner IPv6
    /// packet. Transport mode uses only the first; IP header and Next Header are then taken from
    /// the packet.
    heads: [[u8; MARGIN]; 2],
    /// Trailers, indexed by padding length.
    trailers: [[[u8; MAX_TRAILER]; MAX_PAD + 1]; 2],
    offsets: FieldOffsets,
    /// Transport mode: the IP header of the packet itself precedes the protocol header.
    transport: bool,
    /// Bytes in front of the payload.
    head_len: usize,
    icv_len: usize,
    /// Offsets of the outer IP header and of the protocol header.
    ip_at: usize,
    proto_at: usize,
    /// A UDP header is between them.
    udp: bool,
    /// Offsets in the protected packet: associated data and first encrypted byte.
    aad: Span,
    body_at: usize,
    /// One's complement sum of the constant fields of the outer IP header.
    sum: u32,
    /// Bits of the inner TOS that are copied to the outer one, and constant bits that are added.
    tos_keep: u8,
    tos_set: u8,
    /// DF is copied, or always set.
    df_keep: bool,
    df_set: bool,
    spi: u32,
}

impl OutTemplate {
    /// Learns the template of `sa`; `None` if packets of the SA need the slow path.
    pub(crate) fn learn(sa: &OutboundSa) -> Option<Self> {
        let offsets = match &sa.proto {
            OutProto::Esp(esp) => esp.offsets(sa.spi)?,
            OutProto::Eesp(eesp) => eesp.offsets()?,
            OutProto::Psp(psp) => psp.offsets()?,
            OutProto::Ah(_) => return None,
        };
        let outer = &sa.common.outer;
        let transport = match sa.common.mode {
            Mode::Tunnel => false,
            Mode::Transport => true,
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
        let families = if transport { &[false][..] } else { &[false, true] };
        let example = Example::of(sa, false, offsets.payload_min)?;
        let head_len = example.head_len;
        let ip_at = MARGIN.checked_sub(head_len)?;
        let udp = example.head[ip_at + 9] == IpProto::UDP.0;
        let aad = match example.op.aad {
            Aad::InPlace(span) => span,
            Aad::Inline(_) => Span::default(),
            Aad::InPlaceThen(..) | Aad::InlineThen(..) => return None,
        };
        let mut template = Self {
            heads: [example.head; 2],
            trailers: Default::default(),
            offsets,
            transport,
            head_len,
            icv_len: example.op.icv.len(),
            ip_at,
            proto_at: ip_at + IPV4_HEADER + if udp { UdpHeader::LEN } else { 0 },
            udp,
            aad,
            body_at: example.op.body.start as usize,
            sum: constant_sum(&example.head[ip_at..])?,
            tos_keep: tos_keep(outer),
            tos_set: tos_set(outer),
            df_keep: outer.df == DfPolicy::Copy,
            df_set: outer.df == DfPolicy::Set,
            spi: sa.spi,
        };
        for &v6 in families {
            for more in 0..=MAX_PAD {
                let example = Example::of(sa, v6, offsets.payload_min + more)?;
                let (pad_len, trailer_len) =
                    (template.pad_len(example.payload_len), example.trailer_len(template.icv_len)?);
                template.heads[usize::from(v6)] = example.head;
                if trailer_len != pad_len + offsets.tail_len || example.head_len != head_len {
                    return None;
                }
                let trailer = template.trailers[usize::from(v6)].get_mut(pad_len)?;
                trailer[..trailer_len].copy_from_slice(example.after.get(..trailer_len)?);
            }
        }
        Some(template)
    }

    #[inline(always)]
    fn pad_len(&self, payload_len: usize) -> usize {
        (payload_len + self.offsets.tail_len).wrapping_neg() & (self.offsets.align - 1)
    }

    /// Fast path of [`crate::prepare_out`]; passes the operation to `put`. Returns false and
    /// changes nothing if the buffer has no room around the packet or the packet does not fit the
    /// template.
    ///
    /// # Errors
    /// The reason to drop.
    #[inline(always)]
    pub(crate) fn prepare(
        &self,
        sa: &OutboundSa,
        lane: &OutLane,
        seq: SeqNo,
        ip: &IpPacket,
        frame: &mut Frame<'_>,
        put: impl PutOp,
    ) -> Result<bool, DropReason> {
        if self.transport {
            self.prepare_as::<true>(sa, lane, seq, ip, frame, put)
        } else {
            self.prepare_as::<false>(sa, lane, seq, ip, frame, put)
        }
    }

    /// [`OutTemplate::prepare`] for one mode. A const parameter, because run-time branches on the
    /// mode would cost a tunnel a fifth of its cycles here.
    #[inline(always)]
    fn prepare_as<const TRANSPORT: bool>(
        &self,
        sa: &OutboundSa,
        lane: &OutLane,
        seq: SeqNo,
        ip: &IpPacket,
        frame: &mut Frame<'_>,
        put: impl PutOp,
    ) -> Result<bool, DropReason> {
        let kept = if TRANSPORT { IPV4_HEADER } else { 0 };
        let payload_len = ip.total_len - kept;
        if TRANSPORT && (payload_len < self.offsets.payload_min || ip.upper_at != IPV4_HEADER || ip.fragment.is_some())
        {
            return Ok(false);
        }
        let port = self.port(sa, ip, frame.bytes());
        let (tos, dont_fragment, v6) = (ip.tos, ip.dont_fragment, ip.is_v6());
        let inner = Inner { tos, dont_fragment, v6, upper: ip.upper, port };
        let ends = self.ends(payload_len);
        if ends.packet > usize::from(u16::MAX) {
            return Err(DropReason::TooBig);
        }
        let Some((before, after)) = frame.margins(kept) else { return Ok(false) };
        self.write::<TRANSPORT>(lane, seq, &inner, ends, before, after)?;
        frame.grow(self.head_len - kept, ends.packet - self.head_len - payload_len)?;
        // Two branches, so that in each the operation is written field by field to where it stays.
        if self.offsets.inline_aad {
            put.put(self.op(lane.key, Aad::Inline(esn_aad(self.spi, seq)), seq, ends));
        } else {
            put.put(self.op(lane.key, Aad::InPlace(self.aad), seq, ends));
        }
        Ok(true)
    }

    /// Source port of the flow of `packet`; 0 if the SA does not use it.
    #[inline(always)]
    pub(crate) fn port(&self, sa: &OutboundSa, ip: &IpPacket, packet: &[u8]) -> u16 {
        match &sa.proto {
            OutProto::Psp(psp) if self.offsets.flow_port => psp.ports(ip, packet).src,
            _ => 0,
        }
    }

    #[inline(always)]
    fn ends(&self, payload_len: usize) -> Ranges {
        let pad_len = self.pad_len(payload_len);
        let icv_at = self.head_len + payload_len + pad_len + self.offsets.tail_len;
        Ranges { pad_len, icv_at, packet: icv_at + self.icv_len }
    }

    /// Writes the headers to the end of `before` and the trailer to the start of `after`.
    #[inline(always)]
    fn write<const TRANSPORT: bool>(
        &self,
        lane: &OutLane,
        seq: SeqNo,
        inner: &Inner,
        ends: Ranges,
        before: &mut [u8; MARGIN],
        after: &mut [u8; MARGIN],
    ) -> Result<(), DropReason> {
        let own: [u8; IPV4_HEADER] = *before.last_chunk().ok_or(DropReason::Inconsistent)?;
        let total_len = ends.packet as u16;
        let v6 = usize::from(inner.v6);
        *after.first_chunk_mut().ok_or(DropReason::Inconsistent)? = self.trailers[v6][ends.pad_len & MAX_PAD];
        *before = self.heads[v6];
        let out: &mut [u8; IPV4_HEADER] = before[self.ip_at..].first_chunk_mut().ok_or(DropReason::Inconsistent)?;
        if TRANSPORT {
            *out = encap::rewritten_header(own, IpProto(out[9]), total_len);
        } else {
            let (first, sum) = self.outer_header(inner, lane, seq, total_len);
            *out.first_chunk_mut().ok_or(DropReason::Inconsistent)? = first.to_be_bytes();
            [out[10], out[11]] = sum.to_be_bytes();
        }
        if self.udp {
            let udp = before[self.ip_at + IPV4_HEADER..].first_chunk_mut::<8>().ok_or(DropReason::Inconsistent)?;
            [udp[4], udp[5]] = (total_len - IPV4_HEADER as u16).to_be_bytes();
            if self.offsets.flow_port {
                [udp[0], udp[1]] = inner.port.to_be_bytes();
            }
        }
        let head = &mut before[self.proto_at..];
        if let Some(at) = self.offsets.session_at {
            *head[at..].first_chunk_mut().ok_or(DropReason::Inconsistent)? = lane.session.0.to_be_bytes();
        }
        if TRANSPORT {
            if let Some(at) = self.offsets.pad_at {
                *head.get_mut(at).ok_or(DropReason::Inconsistent)? = ends.pad_len as u8;
            }
            let next = match self.offsets.next_at {
                Some(at) => head.get_mut(at),
                None => after.get_mut(ends.pad_len + self.offsets.tail_len - 1),
            };
            *next.ok_or(DropReason::Inconsistent)? = inner.upper.0;
        }
        *head[self.offsets.iv_at..].first_chunk_mut().ok_or(DropReason::Inconsistent)? = seq.0.to_be_bytes();
        let number = seq.0 & self.offsets.seq_mask | self.offsets.seq_or;
        *head[self.offsets.seq_at..].first_chunk_mut().ok_or(DropReason::Inconsistent)? = number.to_be_bytes();
        Ok(())
    }

    #[inline(always)]
    fn op(&self, key: KeyId, aad: Aad, seq: SeqNo, ends: Ranges) -> CryptoOp {
        let iv = (u128::from(seq.0) << 64).to_be_bytes();
        let (body, icv) = (Span::new(self.body_at, ends.icv_at), Span::new(ends.icv_at, ends.packet));
        CryptoOp { key, aad, body, icv, iv }
    }

    /// Returns the fields of a tunnel's outer IP header that vary: its first eight bytes and its
    /// checksum.
    #[inline(always)]
    fn outer_header(&self, inner: &Inner, lane: &OutLane, seq: SeqNo, total_len: u16) -> (u64, u16) {
        let dont_fragment = inner.dont_fragment & self.df_keep | self.df_set;
        let id = if dont_fragment { 0 } else { identification(self.spi, lane.session, seq) };
        let flags = if dont_fragment { DONT_FRAGMENT } else { 0 };
        let tos = inner.tos & self.tos_keep | self.tos_set;
        let sum = self.sum + u32::from(tos) + u32::from(total_len) + u32::from(id) + u32::from(flags);
        let (tos, total_len, id) = (u64::from(tos) << 48, u64::from(total_len) << 32, u64::from(id) << 16);
        (VERSION_IHL | tos | total_len | id | u64::from(flags), checksum::of_sum(sum))
    }
}

/// Template for the packets of one flow: an SA template completed with the constant fields of the
/// flow. Offsets and lengths in bytes; offsets into `head` are below 64.
#[derive(Clone, Copy)]
pub struct OutFlowTemplate {
    /// Headers before the payload, right-aligned.
    head: [u8; MARGIN],
    trailers: [[u8; MAX_TRAILER]; MAX_PAD + 1],
    /// Transport mode: update of the IP header, which is kept.
    own: Option<HeaderUpdate>,
    /// Minimum length of a packet.
    least: usize,
    /// First eight bytes of the outer IP header, first byte lowest, without length and
    /// identification: bits that are copied from the inner header, and constant bits.
    keep: u64,
    set: u64,
    /// One's complement sum of the rest of that header, in network byte order.
    sum: u32,
    seq_or: u64,
    seq_mask: u64,
    head_len: usize,
    /// Length of headers and trailer without padding.
    around: usize,
    tail_len: usize,
    align_mask: usize,
    icv_len: usize,
    key: KeyId,
    aad: Span,
    body_at: u32,
    ip_at: u8,
    sum_at: u8,
    seq_at: u8,
    iv_at: u8,
    udp: bool,
    inline_aad: bool,
    spi: u32,
    session: SessionId,
}

/// Changes to the IP header of a packet in transport mode, besides its length.
#[derive(Clone, Copy)]
struct HeaderUpdate {
    /// Difference that the new protocol number makes to the one's complement sum of the header, in
    /// network byte order.
    rewritten_header: u32,
    /// Offset of the byte with the padding length.
    pad_at: Option<u8>,
}

impl OutFlowTemplate {
    /// Free bytes that the buffer must have before and after a packet.
    pub const MARGIN: usize = MARGIN;
    /// Maximum packet length in bytes: with both margins, the packet must not exceed 65,535 bytes.
    pub const LONGEST: usize = u16::MAX as usize - 2 * MARGIN;

    /// Builds the template for the flow of `packet`, whose headers were parsed into `ip` and which
    /// must have a [`wire::PlainFlow`]. `None` if `sa` has no template.
    pub fn of(sa: &OutboundSa, lane: &OutLane, ip: &IpPacket, packet: &[u8]) -> Option<Self> {
        let template = sa.template.as_ref()?;
        let offsets = &template.offsets;
        let (mut head, mut trailers) = (template.heads[0], template.trailers[0]);
        let at = |at: usize| u8::try_from(at).ok().filter(|at| usize::from(*at) < MARGIN);
        let own = if template.transport {
            let header: &mut [u8; IPV4_HEADER] = head.get_mut(template.ip_at..)?.first_chunk_mut()?;
            let (before, after) = (ip.upper, IpProto(header[9]));
            *header = *packet.first_chunk()?;
            header[9] = after.0;
            match offsets.next_at {
                Some(at) => *head.get_mut(template.proto_at + at)? = before.0,
                None => {
                    for (pad, trailer) in trailers.iter_mut().enumerate() {
                        *trailer.get_mut((pad + offsets.tail_len).checked_sub(1)?)? = before.0;
                    }
                }
            }
            let proto = |proto: IpProto| u16::from_le_bytes([0, proto.0]);
            let rewritten_header = u32::from(!proto(before)) + u32::from(proto(after));
            let pad_at = match offsets.pad_at {
                Some(pad_at) => Some(at(template.proto_at + pad_at)?),
                None => None,
            };
            Some(HeaderUpdate { rewritten_header, pad_at })
        } else {
            None
        };
        let kept = if own.is_some() { IPV4_HEADER } else { 0 };
        if let Some(at) = offsets.session_at {
            *head.get_mut(template.proto_at + at..)?.first_chunk_mut()? = lane.session.0.to_be_bytes();
        }
        if offsets.flow_port {
            *head.get_mut(template.ip_at + IPV4_HEADER..)?.first_chunk_mut()? =
                template.port(sa, ip, packet).to_be_bytes();
        }
        let outer: &[u8; IPV4_HEADER] = head.get(template.ip_at..)?.first_chunk()?;
        let words = outer[8..].as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_le_bytes(*word)));
        let checksum = u32::from(u16::from_le_bytes([outer[10], outer[11]]));
        let flags = |df: bool| if df { DONT_FRAGMENT.to_be_bytes()[0] } else { 0 };
        Some(Self {
            trailers,
            own,
            least: kept + offsets.payload_min,
            keep: u64::from_le_bytes([0, template.tos_keep, 0, 0, 0, 0, flags(template.df_keep), 0]),
            set: u64::from_le_bytes([outer[0], template.tos_set, 0, 0, 0, 0, flags(template.df_set), 0]),
            sum: words.sum::<u32>() - checksum,
            head,
            seq_or: offsets.seq_or,
            seq_mask: offsets.seq_mask,
            head_len: template.head_len,
            around: template.head_len + offsets.tail_len,
            tail_len: offsets.tail_len,
            align_mask: offsets.align - 1,
            icv_len: template.icv_len,
            key: lane.key,
            aad: template.aad,
            body_at: template.body_at as u32,
            ip_at: at(template.ip_at)?,
            sum_at: at(template.ip_at + 10)?,
            seq_at: at(template.proto_at + offsets.seq_at)?,
            iv_at: at(template.proto_at + offsets.iv_at)?,
            udp: template.udp,
            inline_aad: offsets.inline_aad,
            spi: template.spi,
            session: lane.session,
        })
    }

    /// Returns whether the SA is in transport mode, where the IP header is kept.
    #[inline]
    pub fn is_transport(&self) -> bool {
        self.own.is_some()
    }

    /// Returns the layout for packets of `flow` with the length, TOS and DF of `head`; `None` if
    /// they must use the slow path or exceed `most` bytes.
    #[inline(always)] // some callers need it per packet
    pub fn layout(&self, flow: &PlainFlow, head: PlainHeader, most: usize) -> Option<OutLayout> {
        if !(self.least..=most.min(Self::LONGEST)).contains(&head.total_len) {
            return None;
        }
        let kept = if self.own.is_some() { IPV4_HEADER } else { 0 };
        let len = head.total_len - kept;
        let pad_len = (len + self.tail_len).wrapping_neg() & self.align_mask;
        let icv_at = self.around + len + pad_len;
        let end = icv_at + self.icv_len;
        let total_len = (end as u16).swap_bytes();
        let (first, sum) = if let Some(own) = &self.own {
            // Incremental update for both fields that change (RFC 1624 §3, equation 3), so that an
            // invalid checksum stays invalid and the receiver can detect the error.
            let before = !((head.first >> 16) as u16);
            (u64::from(total_len) << 16, u32::from(before) + u32::from(total_len) + own.rewritten_header)
        } else {
            let first = head.first & self.keep | self.set | u64::from(total_len) << 16;
            let sum = u64::from(self.sum) + (first >> 32) + u64::from(first as u32);
            (first, (sum >> 32) as u32 + (sum as u32 >> 16) + u32::from(sum as u16))
        };
        Some(OutLayout {
            like: flow.like(head),
            first,
            sum: checksum::folded(sum),
            identified: self.own.is_none() && first >> 48 & 0x40 == 0,
            udp_len: ((end - IPV4_HEADER) as u16).to_be_bytes(),
            pad_len: pad_len as u8,
            trailer: self.trailers[pad_len & MAX_PAD],
            len: len as u16,
            icv_at: icv_at as u32,
            end: end as u32,
        })
    }

    /// [`crate::prepare_out`] for a packet with the header fields `head`, the layout `layout` and
    /// sequence number `seq`. `area` is the packet with [`OutFlowTemplate::MARGIN`] bytes before
    /// and after it. Operation and packet are passed to `put`, as in [`crate::prepare_out_fast`].
    /// `TRANSPORT` is [`OutFlowTemplate::is_transport`].
    ///
    /// # Errors
    /// [`DropReason::Inconsistent`] if the area has another length.
    #[inline(always)]
    pub fn prepare<'p, const TRANSPORT: bool>(
        &self,
        layout: &OutLayout,
        seq: SeqNo,
        head: PlainHeader,
        area: &'p mut [u8],
        put: impl PutJob<'p>,
    ) -> Result<(), DropReason> {
        // One window of constant size covers the headers and eight bytes of the packet, so that the
        // compiler can omit the bounds check of each field.
        const WINDOW: usize = MARGIN + 8;
        let kept = if TRANSPORT { IPV4_HEADER } else { 0 };
        let area = area.get_mut(kept..).ok_or(DropReason::Inconsistent)?;
        let behind = area.get_mut(MARGIN + usize::from(layout.len)..).and_then(<[u8]>::first_chunk_mut);
        *behind.ok_or(DropReason::Inconsistent)? = layout.trailer;
        let window: &mut [u8; WINDOW] = area.first_chunk_mut().ok_or(DropReason::Inconsistent)?;
        *window.first_chunk_mut().ok_or(DropReason::Inconsistent)? = self.head;

        let (mut first, mut more) = (layout.first, 0);
        if TRANSPORT {
            put_at(window, self.ip_at + 8, [head.second as u8]);
            if let Some(HeaderUpdate { pad_at: Some(at), .. }) = self.own {
                put_at(window, at, [layout.pad_len]);
            }
            first |= head.first & !(u64::from(u16::MAX) << 16);
            more = !((head.second >> 16) as u16);
        } else if layout.identified {
            more = identification(self.spi, self.session, seq).swap_bytes();
            first |= u64::from(more) << 32;
        }
        put_at(window, self.ip_at, first.to_le_bytes());
        put_at(window, self.sum_at, checksum::of_sum_and(layout.sum, more).to_le_bytes());
        if self.udp {
            put_at(window, self.ip_at + UDP_LEN_AT, layout.udp_len);
        }
        put_at(window, self.iv_at, seq.0.to_be_bytes());
        put_at(window, self.seq_at, (seq.0 & self.seq_mask | self.seq_or).to_be_bytes());

        let packet = area.get_mut(MARGIN.wrapping_sub(self.head_len)..);
        let packet = packet.and_then(|packet| packet.get_mut(..layout.end as usize)).ok_or(DropReason::Inconsistent)?;
        let (key, iv) = (self.key, (u128::from(seq.0) << 64).to_be_bytes());
        let body = Span { start: self.body_at, end: layout.icv_at };
        let icv = Span { start: layout.icv_at, end: layout.end };
        // Two branches, so that in each the operation is written field by field to where it stays.
        if self.inline_aad {
            put.put(CryptoOp { key, aad: Aad::Inline(esn_aad(self.spi, seq)), body, icv, iv }, packet);
        } else {
            put.put(CryptoOp { key, aad: Aad::InPlace(self.aad), body, icv, iv }, packet);
        }
        Ok(())
    }

    /// Returns the range of the protected packet in the buffer if the plain packet was at `start`.
    #[inline(always)]
    pub fn place<const TRANSPORT: bool>(&self, layout: &OutLayout, start: u32) -> Range<u32> {
        let kept = if TRANSPORT { IPV4_HEADER as u32 } else { 0 };
        let start = (start + kept).wrapping_sub(self.head_len as u32);
        start..start.wrapping_add(layout.end)
    }
}

/// Values that [`OutFlowTemplate`] derives once for all packets with the same length, TOS and DF.
#[derive(Clone, Copy)]
pub struct OutLayout {
    /// Matches these packets.
    pub like: PlainTemplate,
    /// First eight bytes of the outer IP header, first byte lowest, without the identification. In
    /// transport mode only the length.
    first: u64,
    /// One's complement sum of the known fields of that header, in network byte order.
    sum: u16,
    /// The header needs an identification, because DF is not set (RFC 6864 §4.1).
    identified: bool,
    /// Length field of the UDP header.
    udp_len: [u8; 2],
    pad_len: u8,
    trailer: [u8; MAX_TRAILER],
    /// Bytes of the payload.
    len: u16,
    /// Of the protected packet: where the ICV begins, and where it ends.
    icv_at: u32,
    end: u32,
}

/// From the start of an IPv4 header to the length in the UDP header behind it, in bytes.
const UDP_LEN_AT: u8 = IPV4_HEADER as u8 + 4;

/// Writes bytes to a place in the margin.
#[inline(always)]
fn put_at<const N: usize>(window: &mut [u8; MARGIN + 8], at: u8, bytes: [u8; N]) {
    let at = usize::from(at) & (MARGIN - 1);
    window[at..at + N].copy_from_slice(&bytes);
}

/// Fields of an inner packet that a template uses.
struct Inner {
    tos: u8,
    dont_fragment: bool,
    v6: bool,
    /// In transport mode, for the Next Header.
    upper: IpProto,
    /// Source port of the flow, where it is used.
    port: u16,
}

/// Where parts of the protected packet end, in bytes from its first.
#[derive(Clone, Copy)]
struct Ranges {
    /// Bytes of padding.
    pad_len: usize,
    icv_at: usize,
    packet: usize,
}

/// Sum of the IPv4 header that starts `head` without TOS, length, identification, flags, checksum.
fn constant_sum(head: &[u8]) -> Option<u32> {
    let mut header: [u8; IPV4_HEADER] = *head.first_chunk()?;
    header[1..8].fill(0);
    header[10..12].fill(0);
    Some(header.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum())
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
        let ip = IpPacket::parse(&buffer[AT..AT + inner_len]).ok()?;
        let mut frame = Frame::new(&mut buffer, AT..AT + inner_len).ok()?;
        let mut op = CryptoOp::EMPTY;
        prepare_out_slow(sa, sa.lanes.first()?, SeqNo(0), &ip, &mut frame, &mut op).ok()?;
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
