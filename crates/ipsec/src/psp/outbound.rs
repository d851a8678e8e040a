//! Sending PSP.

use std::mem::offset_of;

use std::sync::Arc;

use crypto::{Aad, CryptoOp, Engine, KeyId, KeyMaterial, KeyTable, Span};
use wire::psp::{ICV_LEN, PspHeader, PspSpi, PspVersion};
use wire::{FlowKey, IpPacket, IpProto, PlainFlow, SeqNo, SessionId};
use zeroize::Zeroizing;

use super::{IvCounter, SendSpec, check_mode, version};
use crate::encap::{self, Encapsulation};
use crate::template::{Covered, FieldOffsets};
use crate::{
    DropReason, OutLane, OutPacket, OutProto, OutboundSa, PendingOut, SaCommon, SaError, SeqCounter, UdpPorts,
};

/// Dynamic ports (RFC 6335 §6), 2¹⁴ of them: where source ports are picked.
const FIRST_DYNAMIC_PORT: u16 = 49152;

/// Outbound particulars.
#[derive(Clone)]
pub struct Outbound {
    version: PspVersion,
    spi: PspSpi,
    crypt_offset: usize,
    cookie: Option<u64>,
    sample: bool,
    drop: bool,
    port: u16,
    port_key: u64,
    source_port: Option<u16>,
}

/// Builds the sending side.
///
/// # Errors
/// [`SaError`].
pub fn outbound(
    common: SaCommon,
    spec: &SendSpec<'_>,
    engine: Engine,
    keys: &mut KeyTable,
) -> Result<OutboundSa, SaError> {
    check_mode(&common)?;
    let (version, suite) = version(spec.version)?;
    if !spec.crypt_offset.is_multiple_of(4) || spec.crypt_offset / 4 > PspHeader::MAX_CRYPT_OFFSET {
        return Err(SaError::Conflict("a PSP crypt offset is a multiple of 4 bytes, at most 252"));
    }
    if version.is_gmac() && spec.crypt_offset != 0 {
        return Err(SaError::Conflict("with GMAC everything is in the clear: the crypt offset is 0"));
    }

    // The nonce is SPI and IV: the SPI is what other protocols call the salt.
    let mut material = Zeroizing::new(Vec::with_capacity(spec.key.len() + 4));
    material.extend_from_slice(spec.key);
    material.extend_from_slice(&spec.spi.to_be_bytes());
    let key = keys.insert(engine.expand(&suite, KeyMaterial { enc: &material, integ: &[] })?.into());
    let lanes = lanes(spec, key)?;
    let psp = Outbound {
        version,
        spi: spec.spi,
        crypt_offset: spec.crypt_offset.into(),
        cookie: spec.cookie,
        sample: spec.sample,
        drop: spec.drop,
        port: spec.port,
        port_key: spec.port_key,
        source_port: spec.source_port,
    };
    Ok(OutboundSa::new(common, spec.spi.get(), lanes, OutProto::Psp(psp)).with_template())
}

/// One lane, or one for each core with the core's number in the top bits of its IVs: no two cores
/// count together, and no IV comes twice.
fn lanes(spec: &SendSpec<'_>, key: KeyId) -> Result<Arc<[OutLane]>, SaError> {
    let IvCounter { first, persistent, cores } = spec.iv;
    let lane = |first, last| OutLane::new(SessionId(0), key, SeqCounter::new(first, last, persistent));
    if cores <= 1 {
        return Ok(Arc::new([lane(first, u64::MAX - 1)]));
    }
    // Each core counts within a separate range of IVs: an IV must never repeat under one key, and a
    // shared counter would be contended.
    let span = 1 << (u64::BITS - IvCounter::PREFIX_BITS);
    if first >= span {
        return Err(SaError::Conflict(
            "the first PSP IV does not leave room for the number of a core in its top 8 bits",
        ));
    }
    Ok((0..u64::from(cores)).map(|core| lane(core * span + first, core * span + (span - 1))).collect())
}

impl Outbound {
    /// Version that it sends.
    pub fn version(&self) -> PspVersion {
        self.version
    }

    /// Bytes of the header, cookie included.
    fn header_len(&self) -> usize {
        PspHeader::LEN + self.cookie.map_or(0, |_| PspHeader::COOKIE_LEN)
    }

    /// Largest inner packet that fits `path_mtu` bytes when protected; 0 if none does. Exact for
    /// inner packets without IP options or extension headers.
    pub fn inner_mtu(&self, common: &SaCommon, path_mtu: usize) -> usize {
        let around = encap::fixed_overhead(common, true) + self.header_len() + ICV_LEN;
        path_mtu.checked_sub(around).map_or(0, |payload| payload + encap::inner_header(common))
    }

    /// Inputs of a template, for an association that supports it.
    pub(crate) fn offsets(&self) -> Option<FieldOffsets> {
        const IV_AT: usize = offset_of!(PspHeader, iv);
        (!self.version.is_gmac()).then_some(FieldOffsets {
            seq_at: IV_AT,
            seq_or: 0,
            seq_mask: u64::MAX,
            iv_at: IV_AT,
            counter_iv: true,
            session_at: None,
            covered: Covered::Header,
            align: 1,
            tail_len: 0,
            payload_min: self.crypt_offset,
            next_at: Some(offset_of!(PspHeader, next_header)),
            pad_at: None,
        })
    }

    /// Key of [`flow_port`], if the source port is that of the flow.
    pub(crate) fn flow_port_key(&self) -> Option<u64> {
        self.source_port.is_none().then_some(self.port_key)
    }

    fn ports(&self, packet: &[u8]) -> Option<UdpPorts> {
        let src = self.source_port.or_else(|| flow_port(self.port_key, packet))?;
        Some(UdpPorts { src, dst: self.port })
    }

    fn write(&self, out: &mut [u8], next: IpProto, seq: SeqNo, clear: usize) -> Option<()> {
        let header = PspHeader::new(next, self.version, self.spi, seq.0)
            .with_crypt_offset((clear / 4) as u8)?
            .with_sampling(self.sample, self.drop);
        match self.cookie {
            None => header.emit(out).ok(),
            Some(cookie) => {
                header.with_cookie().emit(out).ok()?;
                *out.get_mut(PspHeader::LEN..)?.first_chunk_mut()? = cookie.to_be_bytes();
                Some(())
            }
        }
    }
}

pub(crate) fn prepare_out(
    sa: &OutboundSa,
    psp: &Outbound,
    OutPacket { lane, seq, ip, frame, op: out }: OutPacket<'_, '_>,
) -> Result<PendingOut, DropReason> {
    frame.truncate(ip.total_len)?;
    let payload = encap::payload(&sa.common.mode, ip, frame.bytes())?;
    let ports = psp.ports(&frame.bytes()[..ip.total_len]).ok_or(DropReason::Inconsistent)?;
    frame.push_back(ICV_LEN)?;
    let gap = psp.header_len();
    let id = encap::identification(sa.spi, lane.session, seq);
    let outside = Encapsulation { gap, proto: IpProto::UDP, udp: Some(ports), id };
    let at = encap::encapsulate(&sa.common, ip, frame, outside)?;

    let behind_iv = gap - PspHeader::LEN + payload.len;
    // The offset counts 4-byte words and must not exceed the packet.
    let clear = psp.crypt_offset.min(behind_iv & !3);
    let header = frame.bytes_mut().get_mut(at..at + gap).ok_or(DropReason::Inconsistent)?;
    psp.write(header, payload.next, seq, clear).ok_or(DropReason::Inconsistent)?;
    *out = op(lane.key, psp.version, seq.0, at, clear, frame.len());
    Ok(PendingOut::default())
}

/// The operation on the PSP packet `at..end`, with `clear` bytes of clear text after the IV.
#[inline]
pub(super) fn op(key: crypto::KeyId, version: PspVersion, iv: u64, at: usize, clear: usize, end: usize) -> CryptoOp {
    let icv_at = end - ICV_LEN;
    let clear_end = if version.is_gmac() { icv_at } else { at + PspHeader::LEN + clear };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&iv.to_be_bytes());
    CryptoOp {
        key,
        aad: Aad::InPlace(Span::new(at, clear_end)),
        body: Span::new(clear_end, icv_at),
        icv: Span::new(icv_at, end),
        iv: bytes,
    }
}

/// Source port for the flow of `packet`; `None` if the headers cannot be read.
///
/// One flow keeps one port, so that receivers and routers spread flows, and packets of a flow stay
/// in order and on one path. The hash is keyed, so that the port reveals nothing about the flow
/// except that packets belong together.
#[inline]
pub(crate) fn flow_port(key: u64, packet: &[u8]) -> Option<u16> {
    let hash = match PlainFlow::of(packet) {
        // The upper 14 of 32 bits, because the lower bits of a multiplicative hash are weaker.
        Some(flow) => flow.hash(key) >> 18,
        None => FlowKey::of(&IpPacket::parse(packet).ok()?, packet).hash(key) >> 50,
    };
    Some(FIRST_DYNAMIC_PORT | (hash as u16 & !FIRST_DYNAMIC_PORT))
}
