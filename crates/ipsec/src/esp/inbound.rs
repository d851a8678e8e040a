//! Opening.

use crypto::{IcvOk, Span};
use wire::esp::{EspHeader, TRAILER_LEN};
use wire::udp::UdpHeader;
use wire::{IpPacket, IpProto};

use super::{Inbound, IvSource, MAX_IV, Numbers};
use crate::{Authentic, Delivered, DropReason, Frame, InPacket, InResult, InboundSa, PendingIn, encap};

#[inline]
pub(crate) fn prepare_in(
    sa: &InboundSa,
    esp: &Inbound,
    InPacket { outer, at, frame }: InPacket<'_, '_>,
    InResult { op, pending }: InResult<'_>,
) -> Result<(), DropReason> {
    let layout = &esp.layout;
    if outer.fragment.is_some() {
        return Err(DropReason::Fragment); // RFC 4303 §3.4.1: reassembly comes first
    }
    let packet = frame.bytes().get(..datagram_end(outer, at, frame.bytes())?).ok_or(DropReason::Truncated)?;
    let (header, after) = EspHeader::parse(packet.get(at..).ok_or(DropReason::Truncated)?)?;
    // The associated data of some forms takes the SPI from the SA: a packet of another one must not
    // pass.
    if header.spi.get() != sa.spi {
        return Err(DropReason::NoSa);
    }
    let (window, lane) = (sa.window()?, sa.lanes.first().ok_or(DropReason::Inconsistent)?);
    let seq = window.number(header.seq_lo.get(), layout.esn);
    window.check(seq)?;
    if after.len() < layout.iv_len + TRAILER_LEN + layout.icv_len {
        return Err(DropReason::Truncated);
    }
    let icv_at = packet.len() - layout.icv_len;
    let payload = Span::new(at + layout.head_len, icv_at);
    // A power of two: a mask costs a twentieth of a division.
    if payload.len() & (layout.block_len - 1) != 0 {
        return Err(DropReason::Malformed);
    }
    let mut iv = [0; MAX_IV];
    match layout.iv {
        IvSource::None => {}
        IvSource::Implicit => iv[..8].copy_from_slice(&seq.0.to_be_bytes()),
        IvSource::Counter => iv[..8].copy_from_slice(after.first_chunk::<8>().ok_or(DropReason::Truncated)?),
        IvSource::Cbc(_) => iv[..layout.iv_len].copy_from_slice(&after[..layout.iv_len]),
    }
    *op = layout.op(lane.key.ok_or(DropReason::NoKey)?, Numbers { spi: sa.spi, seq, iv }, at..icv_at);
    *pending = PendingIn {
        seq,
        lane: 0,
        ip_end: outer.upper_at as u16,
        proto_at: outer.proto_at as u16,
        payload,
        next: IpProto::NONE,
        outer_tos: outer.tos,
        extra: 0,
    };
    Ok(())
}

/// End of the ESP packet at `at`: with its IP packet, or before that with its UDP datagram.
#[inline]
fn datagram_end(outer: &IpPacket, at: usize, packet: &[u8]) -> Result<usize, DropReason> {
    if at == outer.upper_at {
        return Ok(outer.total_len);
    }
    let (udp, _) = UdpHeader::parse(packet.get(outer.upper_at..).ok_or(DropReason::Truncated)?)?;
    let end = outer.upper_at + usize::from(udp.len.get());
    if end > outer.total_len { Err(DropReason::Truncated) } else { Ok(end) }
}

#[inline]
pub(crate) fn finish_in(
    sa: &InboundSa,
    frame: &mut Frame<'_>,
    pending: &PendingIn,
    ok: IcvOk,
) -> Result<Delivered, DropReason> {
    sa.window()?.commit(Authentic::new(pending.seq, ok))?;
    let start = pending.payload.start as usize;
    let (payload_len, next) =
        strip_trailer(frame.bytes().get(pending.payload.range()).ok_or(DropReason::Inconsistent)?)?;
    if next == IpProto::NONE {
        return Err(DropReason::Dummy); // RFC 4303 §2.6
    }
    encap::decapsulate(&sa.common, frame, pending, start, start + payload_len, next)?;
    Ok(Delivered { sample: false })
}

/// Length of the payload before the padding of `plain`, and the Next Header.
///
/// The padding is not compared with 1, 2, 3, …: RFC 4303 §2.4 leaves that to the receiver, it is
/// authentic, Linux does not either, and some peers pad with zeros.
#[inline(always)]
pub(crate) fn strip_trailer(plain: &[u8]) -> Result<(usize, IpProto), DropReason> {
    let Some((before, &[pad_len, next])) = plain.split_last_chunk::<TRAILER_LEN>() else {
        return Err(DropReason::Truncated);
    };
    let payload_len = before.len().checked_sub(usize::from(pad_len)).ok_or(DropReason::BadPadding)?;
    Ok((payload_len, IpProto(next)))
}
