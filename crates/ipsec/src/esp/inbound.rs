//! Opening.

use crypto::{CryptoOp, IcvOk, Span};
use wire::esp::{EspHeader, TRAILER_LEN};
use wire::udp::UdpHeader;
use wire::{IpPacket, IpProto};

use super::{Inbound, IvSource, MAX_IV, PAD};
use crate::{Authentic, Delivered, Drop, Frame, InboundSa, PendingIn, encap};

#[inline]
pub(crate) fn prepare_in(
    sa: &InboundSa,
    esp: &Inbound,
    outer: &IpPacket,
    at: usize,
    frame: &mut Frame<'_>,
    op: &mut CryptoOp,
    pending: &mut PendingIn,
) -> Result<(), Drop> {
    let layout = &esp.layout;
    if outer.fragment.is_some() {
        return Err(Drop::Fragment); // RFC 4303 §3.4.1: reassembly comes first
    }
    let packet = frame.bytes().get(..datagram_end(outer, at, frame.bytes())?).ok_or(Drop::Truncated)?;
    let (header, after) = EspHeader::parse(packet.get(at..).ok_or(Drop::Truncated)?)?;
    // The associated data of some forms takes the SPI from the SA: a packet of another one must not pass.
    if header.spi.get() != sa.spi {
        return Err(Drop::NoSa);
    }
    let (window, lane) = (sa.window()?, sa.lanes.first().ok_or(Drop::Inconsistent)?);
    let seq = window.number(header.seq_lo.get(), layout.esn);
    window.check(seq)?;
    if after.len() < layout.iv_len + TRAILER_LEN + layout.icv_len {
        return Err(Drop::Truncated);
    }
    let icv_at = packet.len() - layout.icv_len;
    let payload = Span::new(at + layout.head_len, icv_at);
    // A power of two: a mask costs a twentieth of a division.
    if payload.len() & (layout.block_len - 1) != 0 {
        return Err(Drop::Malformed);
    }
    let mut iv = [0; MAX_IV];
    match layout.iv {
        IvSource::None => {}
        IvSource::Implicit => iv[..8].copy_from_slice(&seq.0.to_be_bytes()),
        IvSource::Counter => iv[..8].copy_from_slice(after.first_chunk::<8>().ok_or(Drop::Truncated)?),
        IvSource::Cbc(_) => iv[..layout.iv_len].copy_from_slice(&after[..layout.iv_len]),
    }
    *op = layout.op(lane.key.ok_or(Drop::NoKey)?, sa.spi, seq, at, icv_at, iv);
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

/// Where the ESP packet at `at` ends: with its IP packet, or before that with its UDP datagram.
#[inline]
fn datagram_end(outer: &IpPacket, at: usize, packet: &[u8]) -> Result<usize, Drop> {
    if at == outer.upper_at {
        return Ok(outer.total_len);
    }
    let (udp, _) = UdpHeader::parse(packet.get(outer.upper_at..).ok_or(Drop::Truncated)?)?;
    let end = outer.upper_at + usize::from(udp.len.get());
    if end > outer.total_len { Err(Drop::Truncated) } else { Ok(end) }
}

#[inline]
pub(crate) fn finish_in(
    sa: &InboundSa,
    frame: &mut Frame<'_>,
    pending: &PendingIn,
    ok: IcvOk,
) -> Result<Delivered, Drop> {
    sa.window()?.commit(Authentic::new(pending.seq, ok))?;
    let start = pending.payload.start as usize;
    let (payload_len, next) = strip_trailer(frame.bytes().get(pending.payload.range()).ok_or(Drop::Inconsistent)?)?;
    if next == IpProto::NONE {
        return Err(Drop::Dummy); // RFC 4303 §2.6
    }
    encap::decapsulate(&sa.common, frame, pending, start, start + payload_len, next)?;
    Ok(Delivered { sample: false })
}

/// Length of the payload before the padding of `plain`, and the Next Header.
#[inline(always)]
pub(crate) fn strip_trailer(plain: &[u8]) -> Result<(usize, IpProto), Drop> {
    // Padding to a multiple of four is short enough to be compared at once.
    if let Some(end) = plain.last_chunk::<8>() {
        let (word, &[.., pad_len, next]) = (u64::from_le_bytes(*end), end);
        if let Some((mask, right)) = SHORT_TRAILERS.get(usize::from(pad_len)) {
            let payload_len = plain.len() - TRAILER_LEN - usize::from(pad_len);
            return if word & mask == *right { Ok((payload_len, IpProto(next))) } else { Err(Drop::BadPadding) };
        }
    }
    strip_long_trailer(plain)
}

/// The last eight bytes of a payload with so many bytes of padding as the index says, first byte lowest: which of them are
/// padding and its length, and what they have to be.
const SHORT_TRAILERS: [(u64, u64); 7] = {
    let mut trailers = [(0, 0); 7];
    let mut pad_len = 0;
    while pad_len < trailers.len() {
        // The bytes 1, 2, 3, ….
        let (mut word, mut mask) = ([0; 8], [0; 8]);
        (word[6], mask[6]) = (pad_len as u8, 0xff);
        let mut i = 0;
        while i < pad_len {
            (word[6 - pad_len + i], mask[6 - pad_len + i]) = (i as u8 + 1, 0xff);
            i += 1;
        }
        trailers[pad_len] = (u64::from_le_bytes(mask), u64::from_le_bytes(word));
        pad_len += 1;
    }
    trailers
};

/// [`strip_trailer`] for any length of payload and padding.
#[inline(never)]
fn strip_long_trailer(plain: &[u8]) -> Result<(usize, IpProto), Drop> {
    let Some((before, &[pad_len, next])) = plain.split_last_chunk::<TRAILER_LEN>() else {
        return Err(Drop::Truncated);
    };
    let pad_len = usize::from(pad_len);
    let payload_len = before.len().checked_sub(pad_len).ok_or(Drop::BadPadding)?;
    // RFC 4303 §2.4: the receiver should inspect the padding.
    // A loop: padding is short, and a call to compare it costs more.
    if before[payload_len..].iter().zip(&PAD).all(|(byte, pad)| byte == pad) {
        Ok((payload_len, IpProto(next)))
    } else {
        Err(Drop::BadPadding)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_short_trailer_is_told_like_a_long_one(mut plain in prop::collection::vec(any::<u8>(), 0..24), pad in 0u8..9, flip in prop::option::of(0usize..24)) {
            let end = plain.len().saturating_sub(TRAILER_LEN);
            let pad_len = usize::from(pad).min(end);
            plain[end - pad_len..end].iter_mut().zip(&PAD).for_each(|(byte, pad)| *byte = *pad);
            if let [.., last, _] = &mut plain[..] {
                *last = pad;
            }
            if let Some(byte) = flip.and_then(|at| plain.get_mut(at)) {
                *byte ^= 1;
            }
            prop_assert_eq!(strip_trailer(&plain), strip_long_trailer(&plain));
        }
    }
}
