//! ESP (RFC 4303).
//!
//! What the suite decides about a packet (lengths, padding, where the IV comes from, what is
//! authenticated) is worked out once, when an SA is made, into a [`Layout`] that both directions
//! share.

mod inbound;
mod outbound;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use crypto::{Aad, CipherKind, CryptoOp, Engine, KeyId, KeyMaterial, KeyTable, Span, Suite};
use wire::esp::{EspHeader, TRAILER_LEN};
use wire::{SeqNo, Spi};

use crate::lane::check_windows;
use crate::template::{Covered, FieldOffsets, InTemplate, InnerFormat, IvField, SeqField};
use crate::{InProto, InboundSa, Mode, OutLane, OutProto, OutboundSa, SaCommon, SaError, SeqCounter};
use crate::{encap, replay};

pub(crate) use inbound::{finish_in, prepare_in, strip_trailer};
pub(crate) use outbound::prepare_out;

/// Parameters of one direction of an ESP SA, from the configuration or a key exchange.
pub struct Spec<'a> {
    /// SPI.
    pub spi: Spi,
    /// Suite.
    pub suite: Suite,
    /// Cipher key with salt.
    pub enc_key: &'a [u8],
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
    /// Pad every packet to the path MTU (RFC 4303 §2.7), tunnel mode only.
    pub tfc_padding: bool,
    /// CBC: how the IV comes about.
    pub iv: CbcIv,
}

impl<'a> Spec<'a> {
    /// Returns an SA with an AEAD and 32-bit sequence numbers that begins now: a replay window of
    /// 64 packets, nothing saved, no padding beyond what the cipher needs. A suite with a separate
    /// MAC needs `integ_key` as well.
    pub const fn new(spi: Spi, suite: Suite, enc_key: &'a [u8]) -> Self {
        Self {
            spi,
            suite,
            enc_key,
            integ_key: &[],
            esn: false,
            window: 64,
            // Nothing was received; the first number to send is 1.
            first_seq: 0,
            persistent: false,
            tfc_padding: false,
            iv: CbcIv::Encrypted,
        }
    }
}

/// Generation of the outbound CBC IV. Counter-based ciphers always use the sequence number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CbcIv {
    /// The sequence number encrypted under the same key as a first block (SP 800-38A appendix C):
    /// unpredictable, needs no random source, repeats exactly for the same sequence number.
    Encrypted,
    /// This value in every packet (its first 8 bytes for DES and 3DES). For test vectors only.
    Fixed([u8; 16]),
}

/// Longest IV in a packet, in bytes.
const MAX_IV: usize = 16;

/// Bytes of a sequence number in an IV.
const WORD64: usize = 8;

/// Highest number of padding bytes, by the width of the Pad Length field.
const MAX_PAD: usize = 255;

/// The padding of RFC 4303 §2.4: 1, 2, 3, …
pub(crate) const PAD: [u8; MAX_PAD] = {
    let mut pad = [0; MAX_PAD];
    let mut i = 0;
    while i < MAX_PAD {
        pad[i] = i as u8 + 1;
        i += 1;
    }
    pad
};

/// Source of a packet's IV.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum IvSource {
    /// NULL: there is none.
    None,
    /// The 64-bit sequence number, not in the packet (RFC 8750 §3: the high half is zero without
    /// extended numbers).
    Implicit,
    /// The 64-bit sequence number, in the packet: never repeats under a key.
    Counter,
    /// The cipher's own first block, in the packet.
    Cbc(CbcIv),
}

/// Coverage of the ICV.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Cover {
    /// AEAD: SPI and sequence number, extended as they are, and the body (RFC 4106 §5).
    Aead,
    /// Separate MAC: everything before the ICV, and then the high half (RFC 4303 §2.8).
    Mac,
    /// GMAC: everything before the ICV, the high half between SPI and low half (RFC 4543 §3.3).
    Gmac,
}

/// Numbers of a packet that its operation covers.
struct Numbers {
    spi: u32,
    seq: SeqNo,
    iv: [u8; MAX_IV],
}

/// Per-packet constants of suite and SA. Lengths in bytes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// ESP header and IV.
    head_len: usize,
    iv_len: usize,
    icv_len: usize,
    /// The plaintext ends on a multiple of this; a power of two.
    align: usize,
    /// The ciphertext is a multiple of this; a power of two.
    block_len: usize,
    iv: IvSource,
    cover: Cover,
    esn: bool,
}

impl Layout {
    fn new(spec: &Spec<'_>) -> Result<Self, SaError> {
        let Some(enc) = spec.suite.enc else {
            return Err(SaError::Conflict("ESP needs a cipher; write e.g. 'aes128gcm16', or 'null-sha256' for none"));
        };
        let cover = match (enc.kind.is_aead(), spec.suite.integ.is_some()) {
            (true, false) if enc.kind == CipherKind::AesGmac => Cover::Gmac,
            (true, false) => Cover::Aead,
            (false, true) => Cover::Mac,
            (true, true) => return Err(SaError::Conflict("this cipher authenticates by itself; leave the MAC out")),
            (false, false) => return Err(SaError::Conflict("this cipher does not authenticate; add a MAC")),
        };
        let iv = match enc.kind {
            CipherKind::Null => IvSource::None,
            CipherKind::AesCbc | CipherKind::TripleDesCbc | CipherKind::DesCbc => IvSource::Cbc(spec.iv),
            _ if enc.implicit_iv => IvSource::Implicit,
            _ => IvSource::Counter,
        };
        let block_len = enc.block_len.max(1);
        Ok(Self {
            head_len: EspHeader::LEN + enc.iv_len,
            iv_len: enc.iv_len,
            icv_len: spec.suite.icv_len(),
            align: block_len.max(4),
            block_len,
            iv,
            cover,
            esn: spec.esn,
        })
    }

    /// Authenticated data of a template; `None` for GMAC, which has no template.
    fn covered(&self) -> Option<Covered> {
        match (self.cover, self.esn) {
            (Cover::Aead, false) => Some(Covered::Header),
            (Cover::Aead, true) => Some(Covered::Inline),
            (Cover::Mac, false) => Some(Covered::ToIcv),
            (Cover::Mac, true) => Some(Covered::ToIcvThenHigh),
            (Cover::Gmac, _) => None,
        }
    }

    /// Padding bytes that a plaintext of `len` bytes needs before Pad Length and Next Header.
    #[inline]
    fn pad_len(&self, len: usize) -> usize {
        (len + TRAILER_LEN).wrapping_neg() & (self.align - 1)
    }

    /// The operation on a packet, whose `span` is from the ESP header to the ICV.
    #[inline]
    fn op(&self, key: KeyId, Numbers { spi, seq, iv }: Numbers, span: Range<usize>) -> CryptoOp {
        let Range { start: at, end: icv_at } = span;
        let body_at = at + self.head_len;
        let (aad, body) = match (self.cover, self.esn) {
            (Cover::Aead, false) => (Aad::InPlace(Span::new(at, at + EspHeader::LEN)), body_at),
            (Cover::Aead, true) => (Aad::Inline(esn_aad(spi, seq)), body_at),
            (Cover::Mac, false) => (Aad::InPlace(Span::new(at, icv_at)), body_at),
            (Cover::Mac, true) => (Aad::InPlaceThen(Span::new(at, icv_at), seq.hi().to_be_bytes()), body_at),
            (Cover::Gmac, false) => (Aad::InPlace(Span::new(at, icv_at)), icv_at),
            (Cover::Gmac, true) => (Aad::InlineThen(esn_aad(spi, seq), Span::new(at + EspHeader::LEN, icv_at)), icv_at),
        };
        CryptoOp { key, aad, body: Span::new(body, icv_at), icv: Span::new(icv_at, icv_at + self.icv_len), iv }
    }
}

/// SPI, high half, low half: the header as the MAC sees it with extended numbers.
#[inline]
pub(crate) fn esn_aad(spi: u32, seq: SeqNo) -> [u8; 12] {
    let mut header = [0; 12];
    header[..4].copy_from_slice(&spi.to_be_bytes());
    header[4..].copy_from_slice(&seq.0.to_be_bytes());
    header
}

/// Outbound particulars.
#[derive(Clone)]
pub struct Outbound {
    layout: Layout,
    tfc_padding: bool,
}

/// Inbound particulars.
#[derive(Clone)]
pub struct Inbound {
    layout: Layout,
}

impl Outbound {
    /// Inputs of a template, for a suite that supports it.
    pub(crate) fn offsets(&self, spi: u32) -> Option<FieldOffsets> {
        let layout = &self.layout;
        let (iv_at, counter_iv) = match layout.iv {
            IvSource::Implicit => (0, true),
            IvSource::Counter => (EspHeader::LEN, true),
            // In the last eight bytes of the field, which becomes the first block of the body.
            IvSource::Cbc(CbcIv::Encrypted) => ((EspHeader::LEN + layout.iv_len).checked_sub(WORD64)?, false),
            IvSource::None | IvSource::Cbc(CbcIv::Fixed(_)) => return None,
        };
        let covered = layout.covered()?;
        (!self.tfc_padding).then_some(FieldOffsets {
            seq_at: 0,
            seq_or: u64::from(spi) << 32,
            seq_mask: u32::MAX.into(),
            iv_at,
            counter_iv,
            session_at: None,
            covered,
            align: layout.align,
            tail_len: TRAILER_LEN,
            payload_min: 0,
            next_at: None,
            pad_at: None,
        })
    }

    /// Largest inner packet that fits `path_mtu` bytes when protected; IP options and extension
    /// headers that transport mode leaves outside are not counted as such.
    pub fn inner_mtu(&self, common: &SaCommon, path_mtu: usize) -> usize {
        let layout = &self.layout;
        let around = encap::fixed_overhead(common, common.outer.udp.is_some()) + layout.head_len + layout.icv_len;
        let room = path_mtu.min(usize::from(u16::MAX)).saturating_sub(around);
        let payload = (room - room % layout.align).saturating_sub(TRAILER_LEN);
        payload + encap::inner_header(common)
    }
}

impl Inbound {
    /// The template of `sa`, whose particulars these are, for a suite that can have one.
    pub(crate) fn template(&self, sa: &InboundSa) -> Option<InTemplate> {
        let layout = &self.layout;
        let iv = match (layout.iv, layout.iv_len) {
            (IvSource::Implicit, _) => IvField::Sequence,
            (IvSource::Counter | IvSource::Cbc(_), 8) => IvField::Eight,
            (IvSource::Cbc(_), 16) => IvField::Sixteen,
            _ => return None,
        };
        Some(InTemplate {
            first: u64::from(sa.spi) << 32,
            mask: !u64::from(u32::MAX),
            number: SeqField::LowHalf { extended: layout.esn },
            iv,
            key: sa.lanes.first()?.key?,
            covered: layout.covered()?,
            aad_len: EspHeader::LEN as u16,
            payload_at: layout.head_len as u16,
            block_len: layout.block_len as u16,
            payload_min: TRAILER_LEN as u16,
            icv_len: layout.icv_len as u16,
            inside: matches!(sa.common.mode, Mode::Tunnel | Mode::Transport).then_some(InnerFormat::EspTrailer),
            tunnel: sa.common.mode == Mode::Tunnel,
        })
    }
}

/// Builds the sending side.
///
/// # Errors
/// [`SaError`].
pub fn outbound(common: SaCommon, spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<OutboundSa, SaError> {
    let layout = Layout::new(spec)?;
    if spec.tfc_padding && common.mode != Mode::Tunnel {
        return Err(SaError::Conflict(
            "TFC padding needs tunnel mode: elsewhere the receiver cannot tell where the payload ends",
        ));
    }
    let seq = SeqCounter::new(spec.first_seq.max(1), last_seq(spec.esn), spec.persistent);
    let lane = OutLane::new(Default::default(), insert_key(spec, engine, keys)?, seq);
    let proto = OutProto::Esp(Outbound { layout, tfc_padding: spec.tfc_padding });
    Ok(OutboundSa::new(common, spec.spi.get(), Arc::new([lane]), proto).with_template())
}

/// Builds the receiving side.
///
/// # Errors
/// [`SaError`].
pub fn inbound(common: SaCommon, spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<InboundSa, SaError> {
    let layout = Layout::new(spec)?;
    check_received(spec.window, spec.first_seq, spec.esn)?;
    let key = insert_key(spec, engine, keys)?;
    let lanes = replay::single_lane(key, spec.window, spec.first_seq);
    let proto = InProto::Esp(Inbound { layout });
    Ok(InboundSa::new(common, (spec.spi.get(), spec.window), lanes, proto).with_template())
}

fn insert_key(spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<KeyId, SaError> {
    let material = KeyMaterial { enc: spec.enc_key, integ: spec.integ_key };
    Ok(keys.insert(Arc::new(engine.expand(&spec.suite, material)?)))
}

/// Refuses a replay window out of range, and a highest number seen that no packet can follow.
pub(crate) fn check_received(window: u32, top: u64, esn: bool) -> Result<(), SaError> {
    check_windows(1, window)?;
    if top > last_seq(esn) {
        return Err(SaError::Conflict("the highest sequence number seen is beyond the last one; replace the SA"));
    }
    Ok(())
}

/// Last number of an SA: it never cycles (RFC 4303 §3.3.3).
pub(crate) const fn last_seq(esn: bool) -> u64 {
    if esn { u64::MAX - 1 } else { u32::MAX as u64 }
}
