//! EESP version 0 (draft-ietf-ipsecme-eesp-03).

use crypto::{CryptoOp, DerivedKeys, Engine, IcvOk, KeyTable, Suite};
use wire::{IpPacket, IpProto, SeqNo};

use crate::{Delivered, Drop, Frame, InboundSa, OutLane, OutboundSa, PendingIn, PendingOut, SaCommon, SaError};

/// The Sub SA key derivation function.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs)]
pub enum SubSaKdf {
    HkdfSha256,
    HkdfSha384,
    HkdfSha512,
}

/// What the configuration or a key exchange says about one direction of an EESP SA.
pub struct Spec<'a> {
    /// SPI, above 255.
    pub spi: u32,
    /// Suite; an AEAD.
    pub suite: Suite,
    /// Without Sub SAs: key with salt. With them: the root key, as long as the hash output.
    pub key: &'a [u8],
    /// Sub SAs: how keys are derived, and how many there are (1..=65536), Session IDs 0..count.
    pub sub_sas: Option<(SubSaKdf, u32)>,
    /// Session ID of the first Sub SA to send on, or of the SA without Sub SAs (0 unless a peer
    /// wants otherwise).
    pub session: u16,
    /// 64-bit sequence numbers on the wire; false for none.
    pub seq: bool,
    /// Replay window in packets (inbound): 0 or 64 to 65536.
    pub window: u32,
    /// First sequence number to send, per lane; inbound, the highest one already seen. Lanes
    /// beyond the slice start at 1 (0 seen).
    pub first_seq: &'a [u64],
    /// Whether counters must be saved before use (see [`crate::SeqCounter`]).
    pub persistent: bool,
    /// Outbound: bytes of the payload (with Payload Info Header) to leave in the clear, a multiple
    /// of 4 up to 252; `None` when the peer announced no maximum. Inbound: the maximum that was
    /// announced. `Some` selects the full format in tunnel mode.
    pub crypt_offset: Option<u8>,
    /// Raw option bytes to send in every packet besides those needed (test vectors, hardware hints).
    pub extra_options: &'a [u8],
    /// Drop packets with unknown options instead of skipping and counting them (inbound).
    pub strict_options: bool,
    /// IP protocol number of EESP.
    pub ip_proto: IpProto,
    /// Explicit IV to send instead of the sequence number: first value, then counting up. For
    /// test vectors and for SAs without sequence numbers.
    pub first_iv: Option<u64>,
}

/// Outbound particulars.
pub struct Outbound {}

/// Inbound particulars.
pub struct Inbound {}

impl Outbound {
    /// Largest inner packet whose protected form fits `path_mtu` bytes.
    pub fn inner_mtu(&self, common: &SaCommon, path_mtu: usize) -> usize {
        let _ = (common, path_mtu);
        todo!("eesp helper")
    }
}

/// Builds the sending side.
///
/// # Errors
/// [`SaError`].
pub fn outbound(common: SaCommon, spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<OutboundSa, SaError> {
    let _ = (common, spec, engine, keys);
    todo!("eesp helper")
}

/// Builds the receiving side.
///
/// # Errors
/// [`SaError`].
pub fn inbound(common: SaCommon, spec: &Spec<'_>, engine: Engine, keys: &mut KeyTable) -> Result<InboundSa, SaError> {
    let _ = (common, spec, engine, keys);
    todo!("eesp helper")
}

pub(crate) fn prepare_out(
    sa: &OutboundSa,
    eesp: &Outbound,
    lane: &OutLane,
    seq: SeqNo,
    ip: &IpPacket,
    frame: &mut Frame<'_>,
) -> Result<(CryptoOp, PendingOut), Drop> {
    let _ = (sa, eesp, lane, seq, ip, frame);
    todo!("eesp helper")
}

pub(crate) fn prepare_in(
    sa: &InboundSa,
    eesp: &Inbound,
    outer: &IpPacket,
    at: usize,
    frame: &mut Frame<'_>,
    derived: &mut DerivedKeys,
) -> Result<(CryptoOp, PendingIn), Drop> {
    let _ = (sa, eesp, outer, at, frame, derived);
    todo!("eesp helper")
}

pub(crate) fn finish_in(
    sa: &InboundSa,
    eesp: &Inbound,
    frame: &mut Frame<'_>,
    pending: PendingIn,
    ok: IcvOk,
) -> Result<Delivered, Drop> {
    let _ = (sa, eesp, frame, pending, ok);
    todo!("eesp helper")
}
