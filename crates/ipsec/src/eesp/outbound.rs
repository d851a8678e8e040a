//! Sending EESP.

use std::mem::offset_of;

use std::sync::Arc;

use crypto::{Aad, CryptoOp, Engine, KeyTable, Span};
use wire::eesp::{CryptOffset, EespHeader, Format, Options, PayloadInfo, emit_pad};
use wire::{IpProto, SeqNo, SessionId};

use super::sub_sa::KeySource;
use super::{MAX_READY_SUB_SAS, Spec, WORD64};
use crate::encap::{self, Encapsulation};
use crate::template::{Covered, FieldOffsets};
use crate::{DropReason, Mode, OutLane, OutPacket, OutProto, OutboundSa, PendingOut, SaCommon, SaError, SeqCounter};

/// Outbound particulars.
#[derive(Clone)]
pub struct Outbound {
    /// Base header and options as they are sent; Session ID and crypt offset are filled in.
    head: Box<[u8]>,
    ip_proto: IpProto,
    format: Format,
    seq: bool,
    explicit_iv: bool,
    /// Difference of explicit IV and packet number.
    iv_ahead: u64,
    icv_len: usize,
    /// Words of the payload to leave in the clear; the option is then the first one.
    crypt_words: Option<u8>,
    /// False for GMAC: everything is associated data.
    confidential: bool,
}

/// Builds the sending side.
///
/// # Errors
/// [`SaError`].
pub fn outbound(common: SaCommon, spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<OutboundSa, SaError> {
    let enc = spec.check(&common)?;
    let format = match common.mode {
        Mode::Tunnel if spec.crypt_offset.is_none() => Format::Optimized,
        _ => Format::Full,
    };
    let eesp = Outbound {
        head: head(spec, format, alignment(&common))?,
        ip_proto: spec.ip_proto,
        format,
        seq: spec.seq,
        explicit_iv: enc.iv_len != 0,
        iv_ahead: spec.first_iv.map_or(0, |first| first.wrapping_sub(1)),
        icv_len: spec.suite.icv_len(),
        crypt_words: spec.crypt_offset.map(|bytes| bytes / 4),
        confidential: enc.kind.is_confidential(),
    };
    let lanes = lanes(spec, engine, keys)?;
    Ok(OutboundSa::new(common, spec.spi.get(), lanes, OutProto::Eesp(eesp)).with_template())
}

fn lanes(spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<Arc<[OutLane]>, SaError> {
    let source = KeySource::new(spec, engine);
    let count = spec.sub_sas.map_or(1, |(_, count)| count);
    (0..count.min(MAX_READY_SUB_SAS as u32))
        .map(|lane| {
            let session = match spec.sub_sas {
                Some(_) => ((u32::from(spec.session) + lane) % count) as u16,
                None => spec.session,
            };
            let first = spec.first_seq_of(lane as usize).unwrap_or(1);
            if first == 0 {
                return Err(SaError::Conflict("the first EESP sequence number is 1 or more"));
            }
            let seq = SeqCounter::new(first, u64::MAX - 1, spec.persistent);
            Ok(OutLane::new(SessionId(session), keys.insert(source.key(session)?.into()), seq))
        })
        .collect()
}

/// Multiple of bytes from the base header at which the next-layer header begins: 4 for IPv4, 8 for
/// IPv6. A tunnel may carry either, and keeps both rules.
fn alignment(common: &SaCommon) -> usize {
    let v4 = match common.mode {
        Mode::Tunnel | Mode::Aggfrag(_) => false,
        Mode::Transport => common.outer.peer.remote.is_ipv4(),
        Mode::Beet(inner) => common.outer.peer.remote.is_ipv4() && inner.remote.is_ipv4(),
    };
    if v4 { 4 } else { 8 }
}

/// Base header, crypt offset option, the requested options, padding.
fn head(spec: &Spec<'_>, format: Format, align: usize) -> Result<Box<[u8]>, SaError> {
    const TOO_LONG: SaError =
        SaError::Conflict("the EESP options do not fit: at most 255 bytes, 228 with a crypt offset");
    match Options::parse(spec.extra_options) {
        Ok(options) if options.crypt_offset.is_none() => {}
        Ok(_) => return Err(SaError::Conflict("the Crypt Offset option is set by crypt_offset, not by extra options")),
        Err(_) => return Err(SaError::Conflict("the extra EESP options are not whole type-length-value options")),
    }
    let offset_len = if spec.crypt_offset.is_some() { CryptOffset::LEN } else { 0 };
    let used = EespHeader::LEN + offset_len + spec.extra_options.len();
    let behind = spec.peer_header_len() + info_len(format);
    let len = (used + behind).next_multiple_of(align) - behind;

    let opt_len = u8::try_from(len - EespHeader::LEN).map_err(|_| TOO_LONG)?;
    let mut head = vec![0; len].into_boxed_slice();
    let written = EespHeader::new(opt_len, 0, spec.spi.get()).emit(&mut head).and_then(|()| {
        let options = &mut head[EespHeader::LEN..];
        options[offset_len..][..spec.extra_options.len()].copy_from_slice(spec.extra_options);
        emit_pad(&mut options[offset_len + spec.extra_options.len()..])
    });
    written.map_err(|_| TOO_LONG)?;
    if let Some(bytes) = spec.crypt_offset {
        let payload_words = u8::try_from((len + spec.peer_header_len()) / 4).map_err(|_| TOO_LONG)?;
        let option = CryptOffset::new(payload_words, bytes / 4).ok_or(TOO_LONG)?;
        head[EespHeader::LEN..][..CryptOffset::LEN].copy_from_slice(&option.emit());
    }
    Ok(head)
}

fn info_len(format: Format) -> usize {
    match format {
        Format::Full => PayloadInfo::LEN,
        Format::Optimized => 0,
    }
}

/// Fields of a packet before its payload.
struct Fields {
    session: SessionId,
    seq: SeqNo,
    /// Words of the payload in the clear.
    clear_words: u8,
    next: IpProto,
    pad_len: u8,
}

impl Outbound {
    /// Bytes from the base header to the payload start.
    fn payload_at(&self) -> usize {
        self.head.len() + (usize::from(self.seq) + usize::from(self.explicit_iv)) * WORD64
    }

    /// Largest inner packet that fits `path_mtu` bytes when protected; 0 if none does. Exact for
    /// inner packets without IP options or extension headers.
    pub fn inner_mtu(&self, common: &SaCommon, path_mtu: usize) -> usize {
        let around = encap::fixed_overhead(common, common.outer.udp.is_some()) + self.payload_at() + self.icv_len;
        let plaintext = path_mtu.saturating_sub(around) & !3;
        let payload = plaintext.checked_sub(info_len(self.format));
        payload.map_or(0, |payload| payload + encap::inner_header(common))
    }

    /// Inputs of a template, for an SA that supports it.
    pub(crate) fn offsets(&self) -> Option<FieldOffsets> {
        let seq_at = self.head.len();
        let info_at = (self.format == Format::Full).then_some(self.payload_at());
        (self.confidential && self.iv_ahead == 0).then_some(FieldOffsets {
            seq_at,
            seq_or: 0,
            seq_mask: u64::MAX,
            iv_at: if self.seq && self.explicit_iv { seq_at + WORD64 } else { seq_at },
            counter_iv: true,
            session_at: Some(offset_of!(EespHeader, session)),
            covered: Covered::Header,
            align: 4,
            tail_len: 0,
            payload_min: usize::from(self.crypt_words.unwrap_or(0)) * 4,
            next_at: info_at.map(|at| at + offset_of!(PayloadInfo, next_header)),
            pad_at: info_at.map(|at| at + offset_of!(PayloadInfo, pad_len)),
        })
    }

    /// Writes everything in front of the payload: head, sequence number, IV, payload info.
    fn write(&self, out: &mut [u8], Fields { session, seq, clear_words, next, pad_len }: Fields) -> Option<()> {
        let (head, rest) = out.split_at_mut_checked(self.head.len())?;
        head.copy_from_slice(&self.head);
        head[2..4].copy_from_slice(&session.0.to_be_bytes());
        if self.crypt_words.is_some() {
            let option = CryptOffset::new((self.payload_at() / 4) as u8, clear_words)?;
            head[EespHeader::LEN..][..CryptOffset::LEN].copy_from_slice(&option.emit());
        }
        let mut rest = rest;
        for number in [self.seq.then_some(seq.0), self.explicit_iv.then(|| self.iv(seq))].into_iter().flatten() {
            let (field, behind) = rest.split_first_chunk_mut()?;
            *field = number.to_be_bytes();
            rest = behind;
        }
        match self.format {
            Format::Full => PayloadInfo::new(next, pad_len).emit(rest).ok(),
            Format::Optimized => Some(()),
        }
    }

    /// The IV: what is sent, or the sequence number (RFC 8750) when none is.
    fn iv(&self, seq: SeqNo) -> u64 {
        if self.explicit_iv { seq.0.wrapping_add(self.iv_ahead) } else { seq.0 }
    }
}

pub(crate) fn prepare_out(
    sa: &OutboundSa,
    eesp: &Outbound,
    OutPacket { lane, seq, ip, frame, op }: OutPacket<'_, '_>,
) -> Result<PendingOut, DropReason> {
    frame.truncate(ip.total_len)?;
    let payload = encap::payload(&sa.common.mode, ip, frame.bytes())?;
    let pad = payload.len.wrapping_neg() & 3; // what is in front of the payload is a multiple of 4
    frame.push_back(pad + eesp.icv_len)?[..pad].fill(0);

    let gap = eesp.payload_at() + info_len(eesp.format);
    let id = encap::identification(sa.spi, lane.session, seq);
    let outside = Encapsulation { gap, proto: eesp.ip_proto, udp: sa.common.outer.udp, id };
    let at = encap::encapsulate(&sa.common, ip, frame, outside)?;
    // A payload shorter than the configured offset stays in the clear completely.
    let clear_words = eesp.crypt_words.map_or(0, |words| payload.len.min(usize::from(words) * 4) / 4);
    let out = frame.bytes_mut().get_mut(at..at + gap).ok_or(DropReason::Inconsistent)?;
    let fields =
        Fields { session: lane.session, seq, clear_words: clear_words as u8, next: payload.next, pad_len: pad as u8 };
    eesp.write(out, fields).ok_or(DropReason::Inconsistent)?;

    let icv_at = frame.len() - eesp.icv_len;
    // Without confidentiality everything before the ICV is associated data and the body is empty.
    let clear_end = if eesp.confidential { at + eesp.payload_at() + clear_words * 4 } else { icv_at };
    let mut iv = [0; 16];
    iv[..WORD64].copy_from_slice(&eesp.iv(seq).to_be_bytes());
    *op = CryptoOp {
        key: lane.key,
        aad: Aad::InPlace(Span::new(at, clear_end)),
        body: Span::new(clear_end, icv_at),
        icv: Span::new(icv_at, frame.len()),
        iv,
    };
    Ok(PendingOut::default())
}
