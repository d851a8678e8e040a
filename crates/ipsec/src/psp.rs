//! PSP (PSP Architecture Specification, November 2022).

use crypto::{CryptoOp, DerivedKeys, Engine, IcvOk, KeyTable};
use wire::{IpPacket, SeqNo};

use crate::{Delivered, Drop, Frame, InboundSa, OutLane, OutboundSa, PendingIn, PendingOut, SaCommon, SaError};

/// How a PSP association gets the IV of each packet.
///
/// Software uses a packet counter (with the core's number in the top bits when several cores
/// send); hardware a picosecond clock. Only counters can be checked for replay.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IvCounter {
    /// First IV.
    pub first: u64,
    /// Whether the counter must be saved before use (see [`crate::SeqCounter`]).
    pub persistent: bool,
}

/// The sending side of an association: the pair that the receiver handed out.
pub struct SendSpec<'a> {
    /// SPI, low 31 bits not zero.
    pub spi: u32,
    /// 0 to 3.
    pub version: u8,
    /// Traffic key, 16 or 32 bytes by version.
    pub key: &'a [u8],
    /// IV.
    pub iv: IvCounter,
    /// Bytes after the IV to leave in the clear: multiple of 4, at most 252. A cookie counts.
    pub crypt_offset: u8,
    /// Cookie (VC) to send; `None` for the 16-byte header.
    pub cookie: Option<u64>,
    /// Set the S bit.
    pub sample: bool,
    /// Set the D bit.
    pub drop: bool,
    /// UDP destination port, 1000.
    pub port: u16,
    /// Key of the hash that picks the source port from the inner flow (SipHash-like; random per start).
    pub port_key: u64,
    /// Fixed source port instead of the hash (test vectors).
    pub source_port: Option<u16>,
}

/// The two master keys of a receiver, by bit 31 of the SPI; `None` when that slot is empty.
pub struct MasterKeys {
    /// Keys.
    pub keys: [Option<crypto::kdf::PspMasterKey>; 2],
    /// Generation of each slot: rises with every rotation, so that cached keys of an older
    /// generation are never found again.
    pub generations: [u64; 2],
}

/// The receiving side: what one peer may send under this host's master keys.
pub struct ReceiveSpec {
    /// Master keys, shared by all associations of this host.
    pub masters: std::sync::Arc<MasterKeys>,
    /// SPIs that were given to this peer (inclusive ranges).
    pub issued: Vec<(u32, u32)>,
    /// Versions accepted, one bit each; 2 and 3 only when configured.
    pub versions: u8,
    /// Largest crypt offset in bytes that this host allows (checked after the ICV).
    pub max_crypt_offset: u8,
    /// Replay window in packets over the IV, 0 for off (peer uses a clock, or TCP only).
    pub window: u32,
    /// Highest IV already seen.
    pub first_seq: u64,
    /// Whether the D bit is honoured (only together with S).
    pub honour_drop: bool,
}

/// Outbound particulars.
pub struct Outbound {}

/// Inbound particulars.
pub struct Inbound {}

impl Outbound {
    /// Largest inner packet whose protected form fits `path_mtu` bytes.
    pub fn inner_mtu(&self, common: &SaCommon, path_mtu: usize) -> usize {
        let _ = (common, path_mtu);
        todo!("psp helper")
    }
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
    let _ = (common, spec, engine, keys);
    todo!("psp helper")
}

/// Builds the receiving side.
///
/// # Errors
/// [`SaError`].
pub fn inbound(
    common: SaCommon,
    spec: &ReceiveSpec,
    engine: Engine,
    keys: &mut KeyTable,
) -> Result<InboundSa, SaError> {
    let _ = (common, spec, engine, keys);
    todo!("psp helper")
}

pub(crate) fn prepare_out(
    sa: &OutboundSa,
    psp: &Outbound,
    lane: &OutLane,
    seq: SeqNo,
    ip: &IpPacket,
    frame: &mut Frame<'_>,
) -> Result<(CryptoOp, PendingOut), Drop> {
    let _ = (sa, psp, lane, seq, ip, frame);
    todo!("psp helper")
}

pub(crate) fn prepare_in(
    sa: &InboundSa,
    psp: &Inbound,
    outer: &IpPacket,
    at: usize,
    frame: &mut Frame<'_>,
    derived: &mut DerivedKeys,
) -> Result<(CryptoOp, PendingIn), Drop> {
    let _ = (sa, psp, outer, at, frame, derived);
    todo!("psp helper")
}

pub(crate) fn finish_in(
    sa: &InboundSa,
    psp: &Inbound,
    frame: &mut Frame<'_>,
    pending: PendingIn,
    ok: IcvOk,
) -> Result<Delivered, Drop> {
    let _ = (sa, psp, frame, pending, ok);
    todo!("psp helper")
}
