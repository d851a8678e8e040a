//! AH (RFC 4302).

use crypto::{CryptoOp, Engine, IcvOk, KeyTable, Suite};
use wire::{IpPacket, SeqNo};

use crate::{Delivered, Drop, Frame, InboundSa, OutLane, OutboundSa, PendingIn, PendingOut, SaCommon, SaError};

/// What the configuration or a key exchange says about one direction of an AH SA.
pub struct Spec<'a> {
    /// SPI, above 255.
    pub spi: u32,
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
}

/// Outbound particulars.
pub struct Outbound {}

/// Inbound particulars.
pub struct Inbound {}

impl Outbound {
    /// Largest inner packet whose protected form fits `path_mtu` bytes.
    pub fn inner_mtu(&self, common: &SaCommon, path_mtu: usize) -> usize {
        let _ = (common, path_mtu);
        todo!("ah helper")
    }
}

/// Builds the sending side.
///
/// # Errors
/// [`SaError`].
pub fn outbound(common: SaCommon, spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<OutboundSa, SaError> {
    let _ = (common, spec, engine, keys);
    todo!("ah helper")
}

/// Builds the receiving side.
///
/// # Errors
/// [`SaError`].
pub fn inbound(common: SaCommon, spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<InboundSa, SaError> {
    let _ = (common, spec, engine, keys);
    todo!("ah helper")
}

pub(crate) fn prepare_out(
    sa: &OutboundSa,
    ah: &Outbound,
    lane: &OutLane,
    seq: SeqNo,
    ip: &IpPacket,
    frame: &mut Frame<'_>,
) -> Result<(CryptoOp, PendingOut), Drop> {
    let _ = (sa, ah, lane, seq, ip, frame);
    todo!("ah helper")
}

pub(crate) fn prepare_in(
    sa: &InboundSa,
    ah: &Inbound,
    outer: &IpPacket,
    at: usize,
    frame: &mut Frame<'_>,
) -> Result<(CryptoOp, PendingIn), Drop> {
    let _ = (sa, ah, outer, at, frame);
    todo!("ah helper")
}

pub(crate) fn finish_in(
    sa: &InboundSa,
    ah: &Inbound,
    frame: &mut Frame<'_>,
    pending: PendingIn,
    ok: IcvOk,
) -> Result<Delivered, Drop> {
    let _ = (sa, ah, frame, pending, ok);
    todo!("ah helper")
}

pub(crate) fn finish_out(frame: &mut Frame<'_>, pending: PendingOut) -> Result<(), Drop> {
    let _ = (frame, pending);
    todo!("ah helper")
}
