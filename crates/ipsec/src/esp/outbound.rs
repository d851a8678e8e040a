//! Sealing.

use std::sync::atomic::Ordering;

use wire::esp::{EspHeader, TRAILER_LEN};
use wire::{IpProto, SeqNo};

use super::{CbcIv, IvSource, Layout, MAX_IV, Numbers, Outbound, PAD};
use crate::encap::{self, Encapsulation, Payload};
use crate::{DropReason, Frame, OutPacket, OutboundSa, PendingOut};

#[inline]
pub(crate) fn prepare_out(
    sa: &OutboundSa,
    esp: &Outbound,
    OutPacket { lane, seq, ip, frame, op }: OutPacket<'_, '_>,
) -> Result<PendingOut, DropReason> {
    let layout = &esp.layout;
    frame.truncate(ip.total_len)?;
    let payload = encap::payload(&sa.common.mode, ip, frame.bytes())?;
    // TFC padding (RFC 4303 §2.7) extends every packet to the path MTU, so that lengths reveal
    // nothing.
    let tfc_len =
        if esp.tfc_padding { (sa.inner_mtu.load(Ordering::Relaxed) as usize).saturating_sub(payload.len) } else { 0 };
    push_trailer(layout, payload, tfc_len, frame)?;
    // Derived from the sequence number, so that cores need not share a counter.
    let id = encap::identification(sa.spi, lane.session, seq);
    let outside = Encapsulation { gap: layout.head_len, proto: IpProto::ESP, udp: sa.common.outer.udp, id };
    let at = encap::encapsulate(&sa.common, ip, frame, outside)?;
    let (icv_at, iv) = (frame.len() - layout.icv_len, write_head(layout, sa.spi, seq, at, frame)?);
    *op = layout.op(lane.key, Numbers { spi: sa.spi, seq, iv }, at..icv_at);
    // The cipher also encrypts the IV field: an unpredictable IV without a random generator
    // (docs/decisions/0005).
    if layout.iv == IvSource::Cbc(CbcIv::Encrypted) {
        op.body.start -= layout.iv_len as u32;
    }
    Ok(PendingOut::default())
}

/// Appends `tfc_len` zero bytes, padding, Pad Length, Next Header and room for the ICV.
#[inline]
fn push_trailer(layout: &Layout, payload: Payload, tfc_len: usize, frame: &mut Frame<'_>) -> Result<(), DropReason> {
    let pad_len = layout.pad_len(payload.len + tfc_len);
    let trailer = frame.push_back(tfc_len + pad_len + TRAILER_LEN + layout.icv_len)?;
    let (tfc, trailer) = trailer.split_at_mut(tfc_len);
    // Zeros instead of old buffer contents, which could be plaintext of another packet.
    tfc.fill(0);
    // At most 15 bytes. All of them at once where the ICV, which comes later, leaves room for it.
    match (trailer.first_chunk_mut::<16>(), PAD.first_chunk::<16>()) {
        (Some(room), Some(pad)) => *room = *pad,
        _ => trailer[..pad_len].copy_from_slice(&PAD[..pad_len]),
    }
    trailer[pad_len] = pad_len as u8;
    trailer[pad_len + 1] = payload.next.0;
    Ok(())
}

/// Writes header and IV at `at`; returns the IV for the engine.
#[inline]
fn write_head(
    layout: &Layout,
    spi: u32,
    seq: SeqNo,
    at: usize,
    frame: &mut Frame<'_>,
) -> Result<[u8; MAX_IV], DropReason> {
    let head = frame.bytes_mut().get_mut(at..at + layout.head_len).ok_or(DropReason::Inconsistent)?;
    let (header, field) = head.split_first_chunk_mut::<{ EspHeader::LEN }>().ok_or(DropReason::Inconsistent)?;
    header[..4].copy_from_slice(&spi.to_be_bytes());
    header[4..].copy_from_slice(&seq.lo().to_be_bytes());
    let mut iv = [0; MAX_IV];
    let counter = seq.0.to_be_bytes();
    match layout.iv {
        IvSource::None => {}
        IvSource::Implicit => iv[..8].copy_from_slice(&counter),
        IvSource::Counter => {
            *field.first_chunk_mut().ok_or(DropReason::Inconsistent)? = counter;
            iv[..8].copy_from_slice(&counter);
        }
        // The field becomes the first block of the body: chained to an IV of zero, what the cipher
        // makes of it is the IV that the receiver reads.
        IvSource::Cbc(CbcIv::Encrypted) => {
            let zeros = field.len() - counter.len();
            field[..zeros].fill(0);
            field[zeros..].copy_from_slice(&counter);
        }
        IvSource::Cbc(CbcIv::Fixed(value)) => {
            field.copy_from_slice(&value[..field.len()]);
            iv = value;
        }
    }
    Ok(iv)
}
