//! Receiving EESP.

use std::sync::Arc;

use crypto::{Aad, CryptoOp, DerivedKeys, DerivedName, Engine, IcvOk, KeyId, KeyTable, Span};
use wire::eesp::{EespHeader, FIRST_BYTE, Format, Options, PayloadInfo, infer_inner};
use wire::{IpProto, SeqNo};

use super::sub_sa::KeySource;
use super::{MAX_READY_SUB_SAS, Spec, WORD64};
use crate::template::{Covered, InTemplate, InnerFormat, IvField, SeqField};
use crate::{Authentic, Delivered, DropReason, Frame, InLane, InPacket, InProto, InResult, InboundSa, Mode, PendingIn};
use crate::{SaCommon, SaError, encap, lane};

/// Smallest replay window that EESP allows, in packets.
const MIN_WINDOW: u32 = 64;

/// Set in the owner of derived keys: EESP and PSP share the caches.
const OWNER_TAG: u64 = 1 << 63;

/// Inbound particulars.
#[derive(Clone)]
pub struct Inbound {
    /// Owner of derived keys.
    owner: u64,
    /// Derives keys for lanes without a stored one; `None` if all have one.
    source: Option<Arc<KeySource>>,
    /// The one Session ID of an SA without Sub SAs.
    session: Option<u16>,
    seq: bool,
    iv_len: usize,
    icv_len: usize,
    /// The format of every packet, `None` if each packet determines it.
    format: Option<Format>,
    /// Bytes announced as maximum; `None` when the option is forbidden.
    max_crypt_offset: Option<usize>,
    strict_options: bool,
    /// False for GMAC: everything is associated data.
    confidential: bool,
    tunnel: bool,
    /// Payloads of AGGFRAG mode instead of packets.
    aggfrag: bool,
}

/// Builds the receiving side.
///
/// # Errors
/// [`SaError`].
pub fn inbound(common: SaCommon, spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<InboundSa, SaError> {
    let enc = spec.check(&common)?;
    let window = if spec.seq { spec.window } else { 0 };
    let count = spec.sub_sas.map_or(1, |(_, count)| count as usize);
    if spec.seq && window == 0 {
        return Err(SaError::Conflict(
            "EESP packets with sequence numbers have to be checked for replay; set a window, or no sequence numbers",
        ));
    }
    if spec.seq && window < MIN_WINDOW {
        return Err(SaError::Window(window));
    }
    lane::check_windows(count, window)?;

    let (tunnel, aggfrag) = (common.mode == Mode::Tunnel, common.aggfrag().is_some());
    let source = KeySource::new(spec, engine);
    let lanes = lanes(spec, &source, count, window, keys)?;
    let eesp = Inbound {
        // Distinguishes derived keys of this SA from those of PSP, which share the cache.
        owner: lane::new_owner() | OWNER_TAG,
        // The root key is kept only if Sub SA keys are derived on demand.
        source: (count > MAX_READY_SUB_SAS).then(|| Arc::new(source)),
        session: spec.sub_sas.is_none().then_some(spec.session),
        seq: spec.seq,
        iv_len: enc.iv_len,
        icv_len: spec.suite.icv_len(),
        format: match spec.crypt_offset {
            _ if !tunnel => Some(Format::Full),
            None => Some(Format::Optimized),
            Some(_) => None,
        },
        max_crypt_offset: spec.crypt_offset.map(usize::from),
        strict_options: spec.strict_options,
        confidential: enc.kind.is_confidential(),
        tunnel,
        aggfrag,
    };
    Ok(InboundSa::new(common, (spec.spi.get(), window), lanes, InProto::Eesp(eesp)).with_template())
}

/// Lanes with their keys, where there are few enough. An SA without Sub SAs has its window at once.
fn lanes(
    spec: &Spec<'_>,
    source: &KeySource,
    count: usize,
    window: u32,
    keys: &mut KeyTable,
) -> Result<Arc<[InLane]>, SaError> {
    source.key(spec.session)?; // reports faults of the key at creation
    let ready = count <= MAX_READY_SUB_SAS;
    (0..count)
        .map(|session| {
            let key = if ready { Some(keys.insert(source.key(session as u16)?.into())) } else { None };
            let top = spec.first_seq_of(session).unwrap_or(0);
            Ok(InLane::new(key, window, top, spec.sub_sas.is_none()))
        })
        .collect()
}

/// [`PendingIn::extra`]: how many unknown options there were, and whether the crypt offset is above
/// what was announced, which is only judged once the packet is known to be from the peer.
const UNKNOWN_OPTIONS: u16 = 0xff;
const OFFSET_TOO_LARGE: u16 = 0x100;

impl Inbound {
    /// The template of `sa`, whose particulars these are, when it can have one: for packets without
    /// options of an SA without Sub SAs.
    pub(crate) fn template(&self, sa: &InboundSa) -> Option<InTemplate> {
        self.template_of(sa, self.session?, sa.lanes.first()?.key?)
    }

    /// The template for packets that start as `head` does, and have this key.
    pub(crate) fn flow_template(&self, sa: &InboundSa, head: u64, key: KeyId) -> Option<InTemplate> {
        self.template_of(sa, (head >> 32) as u16, key)
    }

    fn template_of(&self, sa: &InboundSa, session: u16, key: KeyId) -> Option<InTemplate> {
        let mut first = [0; EespHeader::LEN];
        EespHeader::new(0, session, sa.spi).emit(&mut first).ok()?;
        let usual = self.seq && self.confidential;
        let payload_at = EespHeader::LEN + WORD64 + self.iv_len;
        let inside = match (&sa.common.mode, self.format) {
            (Mode::Tunnel, Some(Format::Optimized)) => Some(InnerFormat::IpPacket),
            (Mode::Transport, Some(Format::Full)) => Some(InnerFormat::PayloadInfo),
            _ => None,
        };
        usual.then_some(InTemplate {
            first: u64::from_be_bytes(first),
            mask: u64::MAX,
            number: SeqField::Full,
            iv: if self.iv_len != 0 { IvField::Eight } else { IvField::Sequence },
            key,
            covered: Covered::Header,
            aad_len: payload_at as u16,
            payload_at: payload_at as u16,
            block_len: 1,
            payload_min: if self.format == Some(Format::Full) { PayloadInfo::LEN as u16 } else { 0 },
            icv_len: self.icv_len as u16,
            inside,
            tunnel: self.tunnel,
        })
    }

    /// Index of the lane of a Session ID.
    #[inline]
    fn lane(&self, sa: &InboundSa, session: u16) -> Result<u16, DropReason> {
        match self.session {
            Some(only) if session == only => Ok(0),
            None if usize::from(session) < sa.lanes.len() => Ok(session),
            _ => Err(DropReason::NoSubSa),
        }
    }

    /// Bytes of the payload that are in the clear, and what to remember of the options. The payload
    /// is `packet[payload_at..icv_at]`.
    #[inline]
    fn options(&self, field: &[u8], payload_at: usize, icv_at: usize) -> Result<(usize, u16), DropReason> {
        if field.is_empty() {
            return Ok((0, 0));
        }
        let options = Options::parse(field).map_err(|_| DropReason::BadOption)?;
        if options.unknown != 0 && self.strict_options {
            return Err(DropReason::BadOption);
        }
        let mut extra = u16::from(options.unknown);
        let Some(offset) = options.crypt_offset else {
            return Ok((0, extra));
        };
        let clear = offset.crypt_bytes();
        // The option repeats the position of the payload. A mismatch means that the sender uses
        // another header layout, and the packet must not be parsed by ours.
        if offset.payload_bytes() != payload_at {
            return Err(DropReason::BadOption);
        }
        if clear > icv_at - payload_at {
            return Err(DropReason::CryptOffset);
        }
        // Only recorded: the limit was announced to the peer, so that the drop should be counted
        // for authentic packets only.
        if self.max_crypt_offset.is_none_or(|max| clear > max) {
            extra |= OFFSET_TOO_LARGE;
        }
        Ok((clear, extra))
    }

    #[inline]
    fn key(&self, lane: &InLane, session: u16, derived: &mut DerivedKeys) -> Result<KeyId, DropReason> {
        if let Some(key) = lane.key {
            return Ok(key);
        }
        let name = DerivedName { owner: self.owner, label: u64::from(session) };
        derived.get_or_derive(name, || self.source.as_ref()?.key(session).ok()).ok_or(DropReason::NoKey)
    }

    /// Protocol and place of the inner packet within the decrypted payload.
    #[inline]
    fn inner(&self, payload: &[u8]) -> Result<(IpProto, usize, usize), DropReason> {
        let announced = payload.first().and_then(|&first| Format::of(first));
        match self.format.or(announced).ok_or(DropReason::BadInner)? {
            Format::Optimized => {
                let (next, len) = infer_inner(payload).map_err(|_| DropReason::BadInner)?;
                Ok((next, 0, len))
            }
            Format::Full if self.aggfrag => match payload_info(payload)? {
                inner @ (IpProto::AGGFRAG, ..) => Ok(inner),
                // Nothing else may arrive through such an SA (RFC 9347 §2.3).
                _ => Err(DropReason::BadInner),
            },
            Format::Full => match inner_full(payload)? {
                (next, ..) if self.tunnel && !matches!(next, IpProto::IPV4 | IpProto::IPV6) => {
                    Err(DropReason::BadInner)
                }
                inner => Ok(inner),
            },
        }
    }
}

/// Protocol and place of what follows the payload info in a decrypted payload.
#[inline]
fn payload_info(payload: &[u8]) -> Result<(IpProto, usize, usize), DropReason> {
    let (info, rest) = PayloadInfo::parse(payload).map_err(|_| DropReason::BadInner)?;
    match IpProto(info.next_header) {
        IpProto::NONE => Err(DropReason::Dummy),
        next => Ok((next, PayloadInfo::LEN, PayloadInfo::LEN + rest.len())),
    }
}

/// [`payload_info`] of an SA that is not in AGGFRAG mode.
#[inline]
pub(crate) fn inner_full(payload: &[u8]) -> Result<(IpProto, usize, usize), DropReason> {
    match payload_info(payload)? {
        // A peer that sends payloads of IP-TFS without having negotiated it.
        (IpProto::AGGFRAG, ..) => Err(DropReason::BadInner),
        inner => Ok(inner),
    }
}

/// Ends of the parts of a packet, from its base header on.
struct Parts {
    payload_at: usize,
    icv_at: usize,
    lane: u16,
    seq: SeqNo,
    iv: u64,
    clear: usize,
    extra: u16,
}

impl Parts {
    /// Reads everything in front of the payload, in the order that finds fault with least work.
    #[inline]
    fn read(sa: &InboundSa, eesp: &Inbound, packet: &[u8]) -> Result<Self, DropReason> {
        let (header, _) = EespHeader::parse(packet)?;
        // Version and reserved bits in one comparison.
        if header.first != FIRST_BYTE {
            return Err(DropReason::BadVersion);
        }
        let options_end = EespHeader::LEN + usize::from(header.opt_len);
        let numbers_end = options_end + usize::from(eesp.seq) * WORD64;
        let payload_at = numbers_end + eesp.iv_len;
        let least = if eesp.format == Some(Format::Full) { PayloadInfo::LEN } else { 0 };
        let icv_at = packet.len().checked_sub(eesp.icv_len).filter(|&icv| payload_at + least <= icv);
        let icv_at = icv_at.ok_or(DropReason::Truncated)?;

        let lane = eesp.lane(sa, header.session.get())?;
        let (clear, extra) = eesp.options(&packet[EespHeader::LEN..options_end], payload_at, icv_at)?;
        let number = |at: usize| packet.get(at..).and_then(<[u8]>::first_chunk).map(|&bytes| u64::from_be_bytes(bytes));
        let seq = if eesp.seq { number(options_end).ok_or(DropReason::Truncated)? } else { 0 };
        let iv = if eesp.iv_len != 0 { number(numbers_end).ok_or(DropReason::Truncated)? } else { seq };
        Ok(Self { payload_at, icv_at, lane, seq: SeqNo(seq), iv, clear, extra })
    }
}

pub(crate) fn prepare_in(
    sa: &InboundSa,
    eesp: &Inbound,
    InPacket { outer, at, frame }: InPacket<'_, '_>,
    derived: &mut DerivedKeys,
    InResult { op, pending }: InResult<'_>,
) -> Result<(), DropReason> {
    if outer.fragment.is_some() {
        return Err(DropReason::Fragment);
    }
    // The SA is bound to its encapsulation: otherwise an attacker could move packets between UDP
    // and plain IP.
    if (at != outer.upper_at) != sa.common.outer.udp.is_some() {
        return Err(DropReason::NoSa); // none for this encapsulation
    }
    frame.truncate(outer.total_len)?;
    let packet = frame.bytes().get(at..).ok_or(DropReason::Truncated)?;
    let parts = Parts::read(sa, eesp, packet)?;
    let lane = &sa.lanes[usize::from(parts.lane)];
    lane.check(sa.window, parts.seq)?;
    let key = eesp.key(lane, parts.lane, derived)?;

    let (payload_at, icv_at) = (at + parts.payload_at, at + parts.icv_at);
    let clear_end = if eesp.confidential { payload_at + parts.clear } else { icv_at };
    let mut iv = [0; 16];
    iv[..WORD64].copy_from_slice(&parts.iv.to_be_bytes());
    *op = CryptoOp {
        key,
        aad: Aad::InPlace(Span::new(at, clear_end)),
        body: Span::new(clear_end, icv_at),
        icv: Span::new(icv_at, frame.len()),
        iv,
    };
    *pending = PendingIn {
        seq: parts.seq,
        lane: parts.lane,
        ip_end: outer.upper_at as u16,
        proto_at: outer.proto_at as u16,
        payload: Span::new(payload_at, icv_at),
        next: IpProto::NONE, // inside
        outer_tos: outer.tos,
        extra: parts.extra,
    };
    Ok(())
}

pub(crate) fn finish_in(
    sa: &InboundSa,
    eesp: &Inbound,
    frame: &mut Frame<'_>,
    pending: &PendingIn,
    ok: IcvOk,
) -> Result<Delivered, DropReason> {
    let lane = sa.lanes.get(usize::from(pending.lane)).ok_or(DropReason::Inconsistent)?;
    lane.commit(sa.window, Authentic::new(pending.seq, ok))?;
    let unknown = pending.extra & UNKNOWN_OPTIONS;
    if unknown != 0 {
        sa.common.counters.unknown_options.fetch_add(u64::from(unknown), std::sync::atomic::Ordering::Relaxed);
    }
    if pending.extra & OFFSET_TOO_LARGE != 0 {
        return Err(DropReason::CryptOffset);
    }
    let payload = frame.bytes().get(pending.payload.range()).ok_or(DropReason::Inconsistent)?;
    // The payload is plaintext now.
    let (next, start, end) = eesp.inner(payload)?;
    let at = pending.payload.range().start;
    encap::decapsulate(&sa.common, frame, pending, at + start, at + end, next)?;
    Ok(Delivered { sample: false })
}
