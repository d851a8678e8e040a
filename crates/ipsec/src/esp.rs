//! ESP (RFC 4303).

use crypto::{CryptoOp, Engine, IcvOk, KeyTable, Suite};
use wire::{IpPacket, SeqNo};

use crate::{Delivered, Drop, Frame, InboundSa, OutLane, OutboundSa, PendingIn, PendingOut, SaCommon, SaError};

/// What the configuration or a key exchange says about one direction of an ESP SA.
pub struct Spec<'a> {
    /// SPI, above 255.
    pub spi: u32,
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

/// How an outbound CBC IV is made. Counter-based ciphers always use the sequence number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CbcIv {
    /// The sequence number encrypted under the same key as a first block (SP 800-38A appendix C):
    /// unpredictable, needs no random source, repeats exactly for the same sequence number.
    Encrypted,
    /// This value in every packet. For test vectors only.
    Fixed([u8; 16]),
}

/// Outbound particulars.
pub struct Outbound {}

/// Inbound particulars.
pub struct Inbound {}

impl Outbound {
    /// Largest inner packet whose protected form fits `path_mtu` bytes.
    pub fn inner_mtu(&self, common: &SaCommon, path_mtu: usize) -> usize {
        let _ = (common, path_mtu);
        todo!("esp helper")
    }
}

/// Builds the sending side.
///
/// # Errors
/// [`SaError`].
pub fn outbound(common: SaCommon, spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<OutboundSa, SaError> {
    let _ = (common, spec, engine, keys);
    todo!("esp helper")
}

/// Builds the receiving side.
///
/// # Errors
/// [`SaError`].
pub fn inbound(common: SaCommon, spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<InboundSa, SaError> {
    let _ = (common, spec, engine, keys);
    todo!("esp helper")
}

pub(crate) fn prepare_out(
    sa: &OutboundSa,
    esp: &Outbound,
    lane: &OutLane,
    seq: SeqNo,
    ip: &IpPacket,
    frame: &mut Frame<'_>,
) -> Result<(CryptoOp, PendingOut), Drop> {
    let _ = (sa, esp, lane, seq, ip, frame);
    todo!("esp helper")
}

pub(crate) fn prepare_in(
    sa: &InboundSa,
    esp: &Inbound,
    outer: &IpPacket,
    at: usize,
    frame: &mut Frame<'_>,
) -> Result<(CryptoOp, PendingIn), Drop> {
    let _ = (sa, esp, outer, at, frame);
    todo!("esp helper")
}

pub(crate) fn finish_in(
    sa: &InboundSa,
    esp: &Inbound,
    frame: &mut Frame<'_>,
    pending: PendingIn,
    ok: IcvOk,
) -> Result<Delivered, Drop> {
    let _ = (sa, esp, frame, pending, ok);
    todo!("esp helper")
}
