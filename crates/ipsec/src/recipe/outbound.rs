//! Sealing.
//!
//! What stands in front of the payload is copied whole and what differs is written over: a third of
//! the work of deciding everything anew. It is learned from packets that went the general way, so
//! that formats stay in one place. In transport mode the packet's own IP header goes along.

use std::ops::Range;

use crypto::{Aad, CryptoOp, KeyId, Span};
use wire::ip::{DONT_FRAGMENT, IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header};
use wire::udp::UdpHeader;
use wire::{IpPacket, IpProto, PlainFlow, PlainHead, PlainLike, SeqNo, SessionId, checksum};

use crate::encap::{self, identification};
use crate::esp::widened;
use crate::frame::MARGIN;
use crate::step::{PutJob, PutOp, prepare_out_any};
use crate::{DfPolicy, Drop, DscpPolicy, Frame, Mode, OutLane, OutProto, OutboundSa, Outer};

/// Largest padding of a recipe, in bytes: packets end on a multiple of four.
const MAX_PAD: usize = 3;

/// Most bytes between payload and ICV that a recipe can write.
const MAX_TRAILER: usize = 8;

/// First byte of an IPv4 header without options, in its first eight.
const VERSION_IHL: u64 = 0x45 << 56;

/// Where a protocol's packets differ from each other. Offsets in bytes from its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// Eight bytes that hold `seq_or | seq & seq_mask`.
    pub(crate) seq_at: usize,
    pub(crate) seq_or: u64,
    pub(crate) seq_mask: u64,
    /// Eight bytes that hold the sequence number as IV; `seq_at` when there are none.
    pub(crate) iv_at: usize,
    /// Two bytes that hold the Session ID.
    pub(crate) session_at: Option<usize>,
    /// The associated data are SPI and 64-bit number, which do not stand in the packet so.
    pub(crate) inline_aad: bool,
    /// Packets end on a multiple of this, 1 or 4, counting the trailer's fixed part of `tail_len`.
    pub(crate) align: usize,
    pub(crate) tail_len: usize,
    /// Smallest payload in bytes; less would change what stays in the clear.
    pub(crate) payload_min: usize,
    /// A byte that holds the Next Header; `None` for the last one in front of the ICV.
    pub(crate) next_at: Option<usize>,
    /// A byte that holds how much padding there is, besides the trailer.
    pub(crate) pad_at: Option<usize>,
    /// The UDP source port is that of the flow.
    pub(crate) flow_port: bool,
}

/// What the packets of an SA look like. Offsets and lengths in bytes; where nothing else is said,
/// offsets are into an array of `heads`.
pub(crate) struct OutRecipe {
    /// What stands in front of the payload, at the end of each array: an IPv4 and an IPv6 packet. In
    /// transport mode the first is for all, but for the IP header and the Next Header.
    heads: [[u8; MARGIN]; 2],
    /// What follows them, by the bytes of padding.
    trailers: [[[u8; MAX_TRAILER]; MAX_PAD + 1]; 2],
    places: Places,
    /// Transport mode: the packet's own IP header is the first of what stands in front of the payload.
    transport: bool,
    /// Bytes in front of the payload.
    head_len: usize,
    icv_len: usize,
    /// The outer IP header, and that of the protocol.
    ip_at: usize,
    proto_at: usize,
    /// There is a UDP header between them.
    udp: bool,
    /// In the protected packet: associated data, and the first encrypted byte.
    aad: Span,
    body_at: usize,
    /// One's complement sum of the outer IP header, without what a packet adds.
    sum: u32,
    /// Bits of the inner TOS that the outer one takes over, and those it has besides.
    tos_keep: u8,
    tos_set: u8,
    /// DF is taken over, or always set.
    df_keep: bool,
    df_set: bool,
    spi: u32,
}

impl OutRecipe {
    /// The recipe for `sa`, when it is of the kind that has one.
    pub(crate) fn learn(sa: &OutboundSa) -> Option<Self> {
        let places = match &sa.proto {
            OutProto::Esp(esp) => esp.places(sa.spi)?,
            OutProto::Eesp(eesp) => eesp.places()?,
            OutProto::Psp(psp) => psp.places()?,
            OutProto::Ah(_) => return None,
        };
        let outer = &sa.common.outer;
        let transport = match sa.common.mode {
            Mode::Tunnel => false,
            Mode::Transport => true,
            Mode::Beet(_) => return None,
        };
        // Packets of a tunnel may be as short as an IP header, and their family decides the Next Header.
        if !transport && (places.payload_min > IPV4_HEADER || places.pad_at.is_some()) {
            return None;
        }
        if !outer.peer.local.is_ipv4() || !outer.peer.remote.is_ipv4() {
            return None;
        }
        let families = if transport { &[false][..] } else { &[false, true] };
        let example = Example::of(sa, false, places.payload_min)?;
        let head_len = example.head_len;
        let ip_at = MARGIN.checked_sub(head_len)?;
        let udp = example.head[ip_at + 9] == IpProto::UDP.0;
        let aad = match example.op.aad {
            Aad::InPlace(span) => span,
            Aad::Inline(_) => Span::default(),
            Aad::InPlaceThen(..) | Aad::InlineThen(..) => return None,
        };
        let mut recipe = Self {
            heads: [example.head; 2],
            trailers: Default::default(),
            places,
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
                let example = Example::of(sa, v6, places.payload_min + more)?;
                let (pad_len, trailer_len) =
                    (recipe.pad_len(example.payload_len), example.trailer_len(recipe.icv_len)?);
                recipe.heads[usize::from(v6)] = example.head;
                if trailer_len != pad_len + places.tail_len || example.head_len != head_len {
                    return None;
                }
                let trailer = recipe.trailers[usize::from(v6)].get_mut(pad_len)?;
                trailer[..trailer_len].copy_from_slice(example.after.get(..trailer_len)?);
            }
        }
        Some(recipe)
    }

    #[inline(always)]
    fn pad_len(&self, payload_len: usize) -> usize {
        (payload_len + self.places.tail_len).wrapping_neg() & (self.places.align - 1)
    }

    /// What [`crate::prepare_out`] does, the operation given to `put`. False, and nothing has changed,
    /// when there is no room around the packet, or it is not like those of the recipe.
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
    ) -> Result<bool, Drop> {
        if self.transport {
            self.prepare_as::<true>(sa, lane, seq, ip, frame, put)
        } else {
            self.prepare_as::<false>(sa, lane, seq, ip, frame, put)
        }
    }

    /// [`OutRecipe::prepare`] for one mode: a choice for each of what differs would cost a tunnel a
    /// fifth of its ticks.
    #[inline(always)]
    fn prepare_as<const TRANSPORT: bool>(
        &self,
        sa: &OutboundSa,
        lane: &OutLane,
        seq: SeqNo,
        ip: &IpPacket,
        frame: &mut Frame<'_>,
        put: impl PutOp,
    ) -> Result<bool, Drop> {
        let kept = if TRANSPORT { IPV4_HEADER } else { 0 };
        let payload_len = ip.total_len - kept;
        if TRANSPORT && (payload_len < self.places.payload_min || ip.upper_at != IPV4_HEADER || ip.fragment.is_some()) {
            return Ok(false);
        }
        let port = self.port(sa, ip, frame.bytes());
        let (tos, dont_fragment, v6) = (ip.tos, ip.dont_fragment, ip.is_v6());
        let inner = Inner { tos, dont_fragment, v6, upper: ip.upper, port };
        let ends = self.ends(payload_len);
        if ends.packet > usize::from(u16::MAX) {
            return Err(Drop::TooBig);
        }
        let Some((before, after)) = frame.margins(kept) else { return Ok(false) };
        self.write::<TRANSPORT>(lane, seq, &inner, ends, before, after)?;
        frame.grow(self.head_len - kept, ends.packet - self.head_len - payload_len)?;
        // Two branches, so that in each the operation is written field by field to where it stays.
        if self.places.inline_aad {
            put.put(self.op(lane.key, Aad::Inline(widened(self.spi, seq)), seq, ends));
        } else {
            put.put(self.op(lane.key, Aad::InPlace(self.aad), seq, ends));
        }
        Ok(true)
    }

    /// The source port of the flow of `packet`, where it is used.
    #[inline(always)]
    pub(crate) fn port(&self, sa: &OutboundSa, ip: &IpPacket, packet: &[u8]) -> u16 {
        match &sa.proto {
            OutProto::Psp(psp) if self.places.flow_port => psp.ports(ip, packet).src,
            _ => 0,
        }
    }

    #[inline(always)]
    fn ends(&self, payload_len: usize) -> Ends {
        let pad_len = self.pad_len(payload_len);
        let icv_at = self.head_len + payload_len + pad_len + self.places.tail_len;
        Ends { pad_len, icv_at, packet: icv_at + self.icv_len }
    }

    /// Writes what stands before the payload to the end of `before`, and what follows it to the start of `after`.
    #[inline(always)]
    fn write<const TRANSPORT: bool>(
        &self,
        lane: &OutLane,
        seq: SeqNo,
        inner: &Inner,
        ends: Ends,
        before: &mut [u8; MARGIN],
        after: &mut [u8; MARGIN],
    ) -> Result<(), Drop> {
        let own: [u8; IPV4_HEADER] = *before.last_chunk().ok_or(Drop::Inconsistent)?;
        let total_len = ends.packet as u16;
        let v6 = usize::from(inner.v6);
        *after.first_chunk_mut().ok_or(Drop::Inconsistent)? = self.trailers[v6][ends.pad_len & MAX_PAD];
        *before = self.heads[v6];
        let out: &mut [u8; IPV4_HEADER] = before[self.ip_at..].first_chunk_mut().ok_or(Drop::Inconsistent)?;
        if TRANSPORT {
            *out = encap::relabelled(own, IpProto(out[9]), total_len);
        } else {
            let (first, sum) = self.outer_header(inner, lane, seq, total_len);
            *out.first_chunk_mut().ok_or(Drop::Inconsistent)? = first.to_be_bytes();
            [out[10], out[11]] = sum.to_be_bytes();
        }
        if self.udp {
            let udp = before[self.ip_at + IPV4_HEADER..].first_chunk_mut::<8>().ok_or(Drop::Inconsistent)?;
            [udp[4], udp[5]] = (total_len - IPV4_HEADER as u16).to_be_bytes();
            if self.places.flow_port {
                [udp[0], udp[1]] = inner.port.to_be_bytes();
            }
        }
        let head = &mut before[self.proto_at..];
        if let Some(at) = self.places.session_at {
            *head[at..].first_chunk_mut().ok_or(Drop::Inconsistent)? = lane.session.0.to_be_bytes();
        }
        if TRANSPORT {
            if let Some(at) = self.places.pad_at {
                *head.get_mut(at).ok_or(Drop::Inconsistent)? = ends.pad_len as u8;
            }
            let next = match self.places.next_at {
                Some(at) => head.get_mut(at),
                None => after.get_mut(ends.pad_len + self.places.tail_len - 1),
            };
            *next.ok_or(Drop::Inconsistent)? = inner.upper.0;
        }
        *head[self.places.iv_at..].first_chunk_mut().ok_or(Drop::Inconsistent)? = seq.0.to_be_bytes();
        let number = seq.0 & self.places.seq_mask | self.places.seq_or;
        *head[self.places.seq_at..].first_chunk_mut().ok_or(Drop::Inconsistent)? = number.to_be_bytes();
        Ok(())
    }

    #[inline(always)]
    fn op(&self, key: KeyId, aad: Aad, seq: SeqNo, ends: Ends) -> CryptoOp {
        let iv = (u128::from(seq.0) << 64).to_be_bytes();
        let (body, icv) = (Span::new(self.body_at, ends.icv_at), Span::new(ends.icv_at, ends.packet));
        CryptoOp { key, aad, body, icv, iv }
    }

    /// What a tunnel's IP header has of its own: its first eight bytes, its checksum.
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

/// How the further packets of one flow are protected: a recipe with all that one packet of the flow has told.
/// Offsets and lengths in bytes, those of `head` below 64.
#[derive(Clone, Copy)]
pub struct OutNext {
    /// What stands in front of the payload, at the end.
    head: [u8; MARGIN],
    trailers: [[u8; MAX_TRAILER]; MAX_PAD + 1],
    /// In transport mode the packet's own IP header, which goes along.
    own: Option<Own>,
    /// Shortest packet.
    least: usize,
    /// Of the first eight bytes of the IP header, first byte lowest: what is taken from the inner one, and what is
    /// there besides, without length and identification.
    keep: u64,
    set: u64,
    /// One's complement sum of the rest of that header, in the byte order of the wire.
    sum: u32,
    seq_or: u64,
    seq_mask: u64,
    head_len: usize,
    /// Of the trailer without padding, and of the head.
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

/// What becomes of the IP header of a packet in transport mode, besides its length.
#[derive(Clone, Copy)]
struct Own {
    /// What the new protocol adds to the one's complement sum of the header, in the byte order of the wire.
    relabelled: u32,
    /// Where a byte says how much padding there is.
    pad_at: Option<u8>,
}

impl OutNext {
    /// Bytes that are to be free on either side of a packet.
    pub const MARGIN: usize = MARGIN;
    /// Longest packet in bytes: with both margins an IP packet can be so long.
    pub const LONGEST: usize = u16::MAX as usize - 2 * MARGIN;

    /// For the packets that follow `packet`, whose headers were read into `ip`, in its flow, which has a
    /// [`wire::PlainFlow`]; `None` when `sa` is of another kind.
    pub fn of(sa: &OutboundSa, lane: &OutLane, ip: &IpPacket, packet: &[u8]) -> Option<Self> {
        let recipe = sa.recipe.as_ref()?;
        let places = &recipe.places;
        let (mut head, mut trailers) = (recipe.heads[0], recipe.trailers[0]);
        let at = |at: usize| u8::try_from(at).ok().filter(|at| usize::from(*at) < MARGIN);
        let own = if recipe.transport {
            let header: &mut [u8; IPV4_HEADER] = head.get_mut(recipe.ip_at..)?.first_chunk_mut()?;
            let (before, after) = (ip.upper, IpProto(header[9]));
            *header = *packet.first_chunk()?;
            header[9] = after.0;
            match places.next_at {
                Some(at) => *head.get_mut(recipe.proto_at + at)? = before.0,
                None => {
                    for (pad, trailer) in trailers.iter_mut().enumerate() {
                        *trailer.get_mut((pad + places.tail_len).checked_sub(1)?)? = before.0;
                    }
                }
            }
            let proto = |proto: IpProto| u16::from_le_bytes([0, proto.0]);
            let relabelled = u32::from(!proto(before)) + u32::from(proto(after));
            let pad_at = match places.pad_at {
                Some(pad_at) => Some(at(recipe.proto_at + pad_at)?),
                None => None,
            };
            Some(Own { relabelled, pad_at })
        } else {
            None
        };
        let kept = if own.is_some() { IPV4_HEADER } else { 0 };
        if let Some(at) = places.session_at {
            *head.get_mut(recipe.proto_at + at..)?.first_chunk_mut()? = lane.session.0.to_be_bytes();
        }
        if places.flow_port {
            *head.get_mut(recipe.ip_at + IPV4_HEADER..)?.first_chunk_mut()? = recipe.port(sa, ip, packet).to_be_bytes();
        }
        let outer: &[u8; IPV4_HEADER] = head.get(recipe.ip_at..)?.first_chunk()?;
        let words = outer[8..].as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_le_bytes(*word)));
        let checksum = u32::from(u16::from_le_bytes([outer[10], outer[11]]));
        let flags = |df: bool| if df { DONT_FRAGMENT.to_be_bytes()[0] } else { 0 };
        Some(Self {
            trailers,
            own,
            least: kept + places.payload_min,
            keep: u64::from_le_bytes([0, recipe.tos_keep, 0, 0, 0, 0, flags(recipe.df_keep), 0]),
            set: u64::from_le_bytes([outer[0], recipe.tos_set, 0, 0, 0, 0, flags(recipe.df_set), 0]),
            sum: words.sum::<u32>() - checksum,
            head,
            seq_or: places.seq_or,
            seq_mask: places.seq_mask,
            head_len: recipe.head_len,
            around: recipe.head_len + places.tail_len,
            tail_len: places.tail_len,
            align_mask: places.align - 1,
            icv_len: recipe.icv_len,
            key: lane.key,
            aad: recipe.aad,
            body_at: recipe.body_at as u32,
            ip_at: at(recipe.ip_at)?,
            sum_at: at(recipe.ip_at + 10)?,
            seq_at: at(recipe.proto_at + places.seq_at)?,
            iv_at: at(recipe.proto_at + places.iv_at)?,
            udp: recipe.udp,
            inline_aad: places.inline_aad,
            spi: recipe.spi,
            session: lane.session,
        })
    }

    /// Whether an IP header goes along: the packets of a transport mode SA.
    #[inline]
    pub fn is_transport(&self) -> bool {
        self.own.is_some()
    }

    /// What becomes of packets of `flow` that are like the one which starts with `head`; `None` when they are not for
    /// [`OutNext::prepare`], or longer than `most` bytes.
    #[inline(always)] // some callers ask for each packet
    pub fn shape(&self, flow: &PlainFlow, head: PlainHead, most: usize) -> Option<OutShape> {
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
            // RFC 1624 §3, equation 3, for both fields that change: a header that was broken stays so.
            let before = !((head.first >> 16) as u16);
            (u64::from(total_len) << 16, u32::from(before) + u32::from(total_len) + own.relabelled)
        } else {
            let first = head.first & self.keep | self.set | u64::from(total_len) << 16;
            let sum = u64::from(self.sum) + (first >> 32) + u64::from(first as u32);
            (first, (sum >> 32) as u32 + (sum as u32 >> 16) + u32::from(sum as u16))
        };
        Some(OutShape {
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

    /// What [`crate::prepare_out`] does for the packet in `area`, [`OutNext::MARGIN`] bytes behind its start and before its end, which
    /// starts with `head` and is one of `shape`, with number `seq`. The operation and the packet are given to `put`, as in
    /// [`crate::prepare_out_usual`]. `TRANSPORT` is [`OutNext::is_transport`].
    ///
    /// # Errors
    /// [`Drop::Inconsistent`] when the area has another length.
    #[inline(always)]
    pub fn prepare<'p, const TRANSPORT: bool>(
        &self,
        shape: &OutShape,
        seq: SeqNo,
        head: PlainHead,
        area: &'p mut [u8],
        put: impl PutJob<'p>,
    ) -> Result<(), Drop> {
        // Written whole, and eight bytes of the packet with it: so that no place in it has to be checked.
        const WINDOW: usize = MARGIN + 8;
        let kept = if TRANSPORT { IPV4_HEADER } else { 0 };
        let area = area.get_mut(kept..).ok_or(Drop::Inconsistent)?;
        let behind = area.get_mut(MARGIN + usize::from(shape.len)..).and_then(<[u8]>::first_chunk_mut);
        *behind.ok_or(Drop::Inconsistent)? = shape.trailer;
        let window: &mut [u8; WINDOW] = area.first_chunk_mut().ok_or(Drop::Inconsistent)?;
        *window.first_chunk_mut().ok_or(Drop::Inconsistent)? = self.head;

        let (mut first, mut more) = (shape.first, 0);
        if TRANSPORT {
            put_at(window, self.ip_at + 8, [head.second as u8]);
            if let Some(Own { pad_at: Some(at), .. }) = self.own {
                put_at(window, at, [shape.pad_len]);
            }
            first |= head.first & !(u64::from(u16::MAX) << 16);
            more = !((head.second >> 16) as u16);
        } else if shape.identified {
            more = identification(self.spi, self.session, seq).swap_bytes();
            first |= u64::from(more) << 32;
        }
        put_at(window, self.ip_at, first.to_le_bytes());
        put_at(window, self.sum_at, checksum::of_sum_and(shape.sum, more).to_le_bytes());
        if self.udp {
            put_at(window, self.ip_at + UDP_LEN_AT, shape.udp_len);
        }
        put_at(window, self.iv_at, seq.0.to_be_bytes());
        put_at(window, self.seq_at, (seq.0 & self.seq_mask | self.seq_or).to_be_bytes());

        let packet = area.get_mut(MARGIN.wrapping_sub(self.head_len)..);
        let packet = packet.and_then(|packet| packet.get_mut(..shape.end as usize)).ok_or(Drop::Inconsistent)?;
        let (key, iv) = (self.key, (u128::from(seq.0) << 64).to_be_bytes());
        let body = Span { start: self.body_at, end: shape.icv_at };
        let icv = Span { start: shape.icv_at, end: shape.end };
        // Two branches, so that in each the operation is written field by field to where it stays.
        if self.inline_aad {
            put.put(CryptoOp { key, aad: Aad::Inline(widened(self.spi, seq)), body, icv, iv }, packet);
        } else {
            put.put(CryptoOp { key, aad: Aad::InPlace(self.aad), body, icv, iv }, packet);
        }
        Ok(())
    }

    /// Where in a buffer the packet is then that was at `start`.
    #[inline(always)]
    pub fn place<const TRANSPORT: bool>(&self, shape: &OutShape, start: u32) -> Range<u32> {
        let kept = if TRANSPORT { IPV4_HEADER as u32 } else { 0 };
        let start = (start + kept).wrapping_sub(self.head_len as u32);
        start..start.wrapping_add(shape.end)
    }
}

/// What [`OutNext`] makes of packets that are alike: all that follows from their length, TOS and DF.
#[derive(Clone, Copy)]
pub struct OutShape {
    /// Which those are.
    pub like: PlainLike,
    /// First eight bytes of the outer IP header, first byte lowest, without the identification. In transport mode only the length,
    /// at its place.
    first: u64,
    /// One's complement sum of that header, of as much as is known, in the byte order of the wire.
    sum: u16,
    /// An identification is to be put in.
    identified: bool,
    /// In the UDP header.
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

/// What a recipe has to know of a packet.
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
struct Ends {
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
        prepare_out_any(sa, sa.lanes.first()?, SeqNo(0), &ip, &mut frame, &mut op).ok()?;
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
