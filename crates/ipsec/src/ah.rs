//! AH (RFC 4302).
//!
//! The ICV covers the packet from its first byte, with the fields that routers change taken as
//! zero. While the engine works, the packet therefore carries a masked header; the real one is
//! kept right before the packet and put back by the finishing step.

mod mutable;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crypto::{Aad, CryptoOp, Engine, IcvOk, KeyId, KeyMaterial, KeyTable, Span, Suite};
use wire::ah::AhHeader;
use wire::{IpProto, SeqNo, Spi};

use crate::encap::{self, Encapsulation};
use crate::esp::{check_received, last_seq};
use crate::{
    Authentic, Delivered, DropReason, Frame, InPacket, InProto, InResult, InboundSa, Mode, OutLane, OutPacket,
};
use crate::{OutProto, OutboundSa, PendingIn, PendingOut, SaCommon, SaError, SeqCounter, replay};
use mutable::Role;

/// Parameters of one direction of an AH SA, from the configuration or a key exchange.
pub struct Spec<'a> {
    /// SPI.
    pub spi: Spi,
    /// Suite.
    pub suite: Suite,
    /// MAC key.
    pub integ_key: &'a [u8],
    /// Extended (64-bit) sequence numbers.
    pub esn: bool,
    /// Replay window in packets (inbound): 0 or 32 to 65536.
    pub window: u32,
    /// First sequence number to send; inbound, the highest one already seen.
    pub first_seq: u64,
    /// Whether the counter must be saved before use (see [`crate::SeqCounter`]).
    pub persistent: bool,
    /// Outbound over IPv4: pad the header to 8 bytes instead of 4, against RFC 4302 §2.6, for Linux
    /// peers with an SA without `align4`. Inbound both are accepted.
    pub align8_v4: bool,
}

/// Outbound particulars.
#[derive(Clone)]
pub struct Outbound {
    layout: Layout,
    /// AH header with ICV and padding, in bytes.
    head_len: usize,
}

/// Inbound particulars.
#[derive(Clone)]
pub struct Inbound {
    layout: Layout,
}

/// Per-packet constants of suite and SA. Lengths in bytes.
#[derive(Clone, Copy)]
struct Layout {
    icv_len: usize,
    esn: bool,
}

impl Layout {
    fn new(common: &SaCommon, spec: &Spec<'_>) -> Result<Self, SaError> {
        if spec.suite.enc.is_some() || spec.suite.integ.is_none() {
            return Err(SaError::Conflict("AH takes an integrity algorithm alone, e.g. 'sha256'"));
        }
        if common.outer.udp.is_some() {
            return Err(SaError::Conflict(
                "AH cannot go through UDP encapsulation: it covers the addresses that a NAT changes; use ESP",
            ));
        }
        if matches!(common.mode, Mode::Beet(_)) {
            return Err(SaError::Conflict("BEET mode is defined for ESP only; use tunnel or transport mode with AH"));
        }
        if common.aggfrag().is_some() {
            return Err(SaError::Conflict(
                "AGGFRAG mode is supported for ESP only; use tunnel or transport mode with AH",
            ));
        }
        Ok(Self { icv_len: spec.suite.icv_len(), esn: spec.esn })
    }

    /// Length of the AH header when it is padded to a multiple of `align` (RFC 4302 §2.6).
    fn head_len(&self, align: usize) -> usize {
        (AhHeader::LEN + self.icv_len).next_multiple_of(align)
    }

    /// The operation on the `len` bytes of the packet with the AH header at `at`. The engine takes
    /// the ICV field as zero.
    #[inline]
    fn op(&self, key: KeyId, seq: SeqNo, at: usize, len: usize) -> CryptoOp {
        let (whole, icv_at) = (Span::new(0, len), at + AhHeader::LEN);
        let aad = if self.esn { Aad::InPlaceThen(whole, seq.hi().to_be_bytes()) } else { Aad::InPlace(whole) };
        CryptoOp { key, aad, body: Span::new(len, len), icv: Span::new(icv_at, icv_at + self.icv_len), iv: [0; 16] }
    }
}

impl Outbound {
    /// Largest inner packet that fits `path_mtu` bytes when protected.
    pub fn inner_mtu(&self, common: &SaCommon, path_mtu: usize) -> usize {
        let room = path_mtu.min(usize::from(u16::MAX));
        room.saturating_sub(encap::fixed_overhead(common, false) + self.head_len) + encap::inner_header(common)
    }
}

/// Builds the sending side.
///
/// # Errors
/// [`SaError`].
pub fn outbound(common: SaCommon, spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<OutboundSa, SaError> {
    let layout = Layout::new(&common, spec)?;
    let align = if common.outer.peer.remote.is_ipv6() || spec.align8_v4 { 8 } else { 4 };
    let seq = SeqCounter::new(spec.first_seq.max(1), last_seq(spec.esn), spec.persistent);
    let lane = OutLane::new(Default::default(), insert_key(spec, engine, keys)?, seq);
    let proto = OutProto::Ah(Outbound { layout, head_len: layout.head_len(align) });
    Ok(OutboundSa::new(common, spec.spi.get(), Arc::new([lane]), proto))
}

/// Builds the receiving side.
///
/// # Errors
/// [`SaError`].
pub fn inbound(common: SaCommon, spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<InboundSa, SaError> {
    let layout = Layout::new(&common, spec)?;
    check_received(spec.window, spec.first_seq, spec.esn)?;
    let key = insert_key(spec, engine, keys)?;
    let lanes = replay::single_lane(key, spec.window, spec.first_seq);
    Ok(InboundSa::new(common, (spec.spi.get(), spec.window), lanes, InProto::Ah(Inbound { layout })))
}

fn insert_key(spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<KeyId, SaError> {
    let material = KeyMaterial { enc: &[], integ: spec.integ_key };
    Ok(keys.insert(Arc::new(engine.expand(&spec.suite, material)?)))
}

pub(crate) fn prepare_out(
    sa: &OutboundSa,
    ah: &Outbound,
    OutPacket { lane, seq, ip, frame, op }: OutPacket<'_, '_>,
) -> Result<PendingOut, DropReason> {
    frame.truncate(ip.total_len)?;
    let payload = encap::payload(&sa.common.mode, ip, frame.bytes())?;
    let id = encap::identification(sa.spi, lane.session, seq);
    let outside = Encapsulation { gap: ah.head_len, proto: IpProto::AH, udp: None, id };
    let at = encap::encapsulate(&sa.common, ip, frame, outside)?;
    let head = frame.bytes_mut().get_mut(at..at + ah.head_len).ok_or(DropReason::Inconsistent)?;
    let spi = Spi::try_from(sa.spi).map_err(|_| DropReason::Inconsistent)?;
    let header = AhHeader::new(payload.next, spi, seq, ah.head_len - AhHeader::LEN).ok_or(DropReason::Inconsistent)?;
    header.emit(head)?;
    head[AhHeader::LEN..].fill(0);
    mask(frame, at, Role::Sender)?;
    *op = ah.layout.op(lane.key, seq, at, frame.len());
    Ok(PendingOut { saved: at as u16 })
}

pub(crate) fn finish_out(frame: &mut Frame<'_>, pending: PendingOut) -> Result<(), DropReason> {
    unmask(frame, usize::from(pending.saved))
}

pub(crate) fn prepare_in(
    sa: &InboundSa,
    ah: &Inbound,
    InPacket { outer, at, frame }: InPacket<'_, '_>,
    InResult { op, pending }: InResult<'_>,
) -> Result<(), DropReason> {
    let layout = &ah.layout;
    if outer.fragment.is_some() {
        return Err(DropReason::Fragment); // RFC 4302 §3.4.1: reassembly comes first
    }
    if at != outer.upper_at {
        return Err(DropReason::Malformed);
    }
    let packet = frame.bytes().get(..outer.total_len).ok_or(DropReason::Truncated)?;
    let (header, _) = AhHeader::parse(packet.get(at..).ok_or(DropReason::Truncated)?)?;
    if header.spi.get() != sa.spi {
        return Err(DropReason::NoSa);
    }
    let (window, lane) = (sa.window()?, sa.lanes.first().ok_or(DropReason::Inconsistent)?);
    let seq = window.number(header.seq_lo.get(), layout.esn);
    window.check(seq)?;
    let head_len = header.total_len();
    if head_len != layout.head_len(4) && head_len != layout.head_len(8) {
        return Err(DropReason::Malformed);
    }
    if at + head_len > outer.total_len {
        return Err(DropReason::Truncated);
    }
    *pending = PendingIn {
        seq,
        lane: 0,
        ip_end: at as u16,
        proto_at: outer.proto_at as u16,
        payload: Span::new(at + head_len, outer.total_len),
        next: IpProto(header.next_header),
        outer_tos: outer.tos,
        extra: 0,
    };
    *op = layout.op(lane.key.ok_or(DropReason::NoKey)?, seq, at, outer.total_len);
    mask(frame, at, Role::Receiver)?;
    Ok(())
}

pub(crate) fn finish_in(
    sa: &InboundSa,
    frame: &mut Frame<'_>,
    pending: &PendingIn,
    ok: IcvOk,
) -> Result<Delivered, DropReason> {
    sa.window()?.commit(Authentic::new(pending.seq, ok))?;
    unmask(frame, usize::from(pending.ip_end))?;
    let payload = pending.payload.range();
    encap::decapsulate(&sa.common, frame, pending, payload.start, payload.end, pending.next)?;
    Ok(Delivered { sample: false })
}

/// Keeps the `len` bytes of the headers before AH right before the packet and makes them what the
/// MAC sees.
fn mask(frame: &mut Frame<'_>, len: usize, role: Role) -> Result<(), DropReason> {
    let (kept, packet) = frame.scratch(len)?;
    let headers = packet.get_mut(..len).ok_or(DropReason::Truncated)?;
    kept.copy_from_slice(headers);
    mutable::mask(kept, headers, role)
}

/// Undoes [`mask`].
fn unmask(frame: &mut Frame<'_>, len: usize) -> Result<(), DropReason> {
    let (kept, packet) = frame.scratch(len)?;
    packet.get_mut(..len).ok_or(DropReason::Truncated)?.copy_from_slice(kept);
    Ok(())
}
