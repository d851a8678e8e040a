//! Sealing.
//!
//! What stands in front of the payload is copied whole and what differs is written over: a third of
//! the work of deciding everything anew. It is learned from packets that went the general way, so
//! that formats stay in one place. In transport mode the packet's own IP header goes along.

use crypto::{Aad, CryptoOp, Span};
use wire::ip::{DONT_FRAGMENT, IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header};
use wire::udp::UdpHeader;
use wire::{IpPacket, IpProto, SeqNo, checksum};

use crate::encap::{self, identification};
use crate::esp::widened;
use crate::frame::MARGIN;
use crate::step::prepare_out_any;
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

    #[inline]
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
        put: impl FnOnce(CryptoOp),
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
        put: impl FnOnce(CryptoOp),
    ) -> Result<bool, Drop> {
        let kept = if TRANSPORT { IPV4_HEADER } else { 0 };
        let payload_len = ip.total_len - kept;
        if TRANSPORT && (payload_len < self.places.payload_min || ip.upper_at != IPV4_HEADER || ip.fragment.is_some()) {
            return Ok(false);
        }
        let pad_len = self.pad_len(payload_len);
        let icv_at = self.head_len + payload_len + pad_len + self.places.tail_len;
        let end = icv_at + self.icv_len;
        let total_len = u16::try_from(end).map_err(|_| Drop::TooBig)?;
        let src_port = match &sa.proto {
            OutProto::Psp(psp) if self.places.flow_port => psp.ports(ip, frame.bytes()).src,
            _ => 0,
        };
        let new = if TRANSPORT { None } else { Some(self.outer_header(ip, frame.bytes(), total_len)) };
        let Some((before, after)) = frame.margins(kept) else { return Ok(false) };

        let own: [u8; IPV4_HEADER] = *before.last_chunk().ok_or(Drop::Inconsistent)?;
        let v6 = usize::from(ip.is_v6());
        after[..MAX_TRAILER].copy_from_slice(&self.trailers[v6][pad_len & MAX_PAD]);
        *before = self.heads[v6];
        let out: &mut [u8; IPV4_HEADER] = before[self.ip_at..].first_chunk_mut().ok_or(Drop::Inconsistent)?;
        match new {
            Some((first, sum)) => {
                out[..8].copy_from_slice(&first.to_be_bytes());
                out[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            None => *out = encap::relabelled(own, IpProto(out[9]), total_len),
        }
        if self.udp {
            let udp = before[self.ip_at + IPV4_HEADER..].first_chunk_mut::<8>().ok_or(Drop::Inconsistent)?;
            udp[4..6].copy_from_slice(&(total_len - IPV4_HEADER as u16).to_be_bytes());
            if self.places.flow_port {
                udp[..2].copy_from_slice(&src_port.to_be_bytes());
            }
        }
        let head = &mut before[self.proto_at..];
        if let Some(at) = self.places.session_at {
            *head[at..].first_chunk_mut().ok_or(Drop::Inconsistent)? = lane.session.0.to_be_bytes();
        }
        if TRANSPORT {
            if let Some(at) = self.places.pad_at {
                *head.get_mut(at).ok_or(Drop::Inconsistent)? = pad_len as u8;
            }
            let next = match self.places.next_at {
                Some(at) => head.get_mut(at),
                None => after.get_mut(pad_len + self.places.tail_len - 1),
            };
            *next.ok_or(Drop::Inconsistent)? = ip.upper.0;
        }
        let iv = seq.0.to_be_bytes();
        *head[self.places.iv_at..].first_chunk_mut().ok_or(Drop::Inconsistent)? = iv;
        let number = seq.0 & self.places.seq_mask | self.places.seq_or;
        *head[self.places.seq_at..].first_chunk_mut().ok_or(Drop::Inconsistent)? = number.to_be_bytes();

        frame.grow(self.head_len - kept, end - self.head_len - payload_len)?;
        let mut op_iv = [0; 16];
        op_iv[..8].copy_from_slice(&iv);
        let (key, iv) = (lane.key, op_iv);
        let (body, icv) = (Span::new(self.body_at, icv_at), Span::new(icv_at, end));
        // Two branches, so that in each the operation is written field by field to where it stays.
        if self.places.inline_aad {
            put(CryptoOp { key, aad: Aad::Inline(widened(self.spi, seq)), body, icv, iv });
        } else {
            put(CryptoOp { key, aad: Aad::InPlace(self.aad), body, icv, iv });
        }
        Ok(true)
    }

    /// What a tunnel's IP header around `packet` has of its own: its first eight bytes, its checksum.
    #[inline(always)]
    fn outer_header(&self, ip: &IpPacket, packet: &[u8], total_len: u16) -> (u64, u16) {
        let dont_fragment = ip.dont_fragment & self.df_keep | self.df_set;
        let (flags, id) = if dont_fragment { (DONT_FRAGMENT, 0) } else { (0, identification(ip, packet)) };
        let tos = ip.tos & self.tos_keep | self.tos_set;
        let fields = [tos.into(), total_len, id, flags];
        let sum = fields.iter().fold(self.sum, |sum, field| sum + u32::from(*field));
        let first = fields.iter().fold(0, |first: u64, field| first << 16 | u64::from(*field));
        (first | VERSION_IHL, checksum::of_sum(sum))
    }
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
