//! PSP (PSP Architecture Specification, November 2022).
//!
//! The receiver owns two master keys and computes the key of a packet from one of them and the SPI
//! in the packet; it issues pairs of SPI and key to its peers. Each direction is a separate
//! association. PSP itself has no replay check and binds no SPI to a peer: here a receiver records
//! which SPIs it issued to which peer, so that a flood of forged ones costs no key derivation, and
//! may keep a window over the IVs of peers that count packets.
//!
//! Where the specification is silent:
//!
//! - A cookie is within the crypt offset. A packet that is shorter than the offset of its
//!   association leaves all its whole words in clear text.
//! - A crypt offset beyond the packet is dropped before, one above the receiver's maximum after
//!   the ICV.
//! - Versions 2 and 3 (GMAC) use the same nonce as GCM, and their key derivation labels follow the
//!   OR rule. No other implementation confirms this: they are accepted only where configured.
//! - The D bit counts only together with S, and only where the configuration allows it: a peer
//!   must not hide traffic from policy.

mod inbound;
mod keys;
mod outbound;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crypto::{EncAlg, Suite};
use wire::psp::{PspSpi, PspVersion};

use crate::{Mode, SaCommon, SaError};

pub(crate) use inbound::{COUNTED_CORES, finish_in, prepare_in};
pub use inbound::{Inbound, MAX_WINDOWS, inbound};
pub use keys::{MasterKeys, SpiAllocator, SpisExhausted};
pub use outbound::{Outbound, outbound};
pub(crate) use outbound::{flow_port, prepare_out};

/// IV generation of a PSP association.
///
/// Software uses a packet counter (with the core's number in the top bits when several cores
/// send); hardware a picosecond clock. Only counters can be checked for replay.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IvCounter {
    /// First IV.
    pub first: u64,
    /// Whether the counter must be saved before use (see [`crate::SeqCounter`]).
    pub persistent: bool,
    /// Cores that count each for itself, with their number in the top [`IvCounter::PREFIX_BITS`]
    /// bits; 1 or 0 for one counter. A peer with a replay window over the IVs takes only the
    /// packets of one of them.
    pub cores: u8,
}

impl IvCounter {
    /// Bits of an IV that name the core which counted.
    pub const PREFIX_BITS: u32 = 8;
}

/// The sending side of an association: the pair that the receiver handed out.
pub struct SendSpec<'a> {
    /// SPI.
    pub spi: PspSpi,
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
    /// Set the D bit, which a receiver heeds only together with S.
    pub drop: bool,
    /// UDP destination port, 1000.
    pub port: u16,
    /// Key of the hash that picks the source port from the inner flow (random per start).
    pub port_key: u64,
    /// Fixed source port instead of the hash (test vectors).
    pub source_port: Option<u16>,
}

/// The receiving side: what one peer may send under this host's master keys.
pub struct ReceiveSpec {
    /// Master keys, shared by all associations of this host.
    pub masters: Arc<MasterKeys>,
    /// SPIs that were given to this peer (inclusive ranges).
    pub issued: Vec<(PspSpi, PspSpi)>,
    /// Versions accepted, one bit each; 2 and 3 only when configured.
    pub versions: u8,
    /// Largest crypt offset in bytes that this host allows (checked after the ICV).
    pub max_crypt_offset: u8,
    /// Replay window in packets over the IV, one for each issued SPI; 0 for off (peer uses a
    /// clock, or TCP only).
    pub window: u32,
    /// Highest IV already seen, for each of the issued SPIs in ascending order; 0 where one is
    /// missing. Heeded with a window.
    pub first_seq: Vec<u64>,
    /// Whether the D bit is honoured (only together with S).
    pub honour_drop: bool,
}

/// Versions that have an algorithm, 0 to 3.
const VERSIONS: usize = 4;

/// The suite of each version, by its number.
fn suites() -> Result<[Suite; VERSIONS], SaError> {
    const NAMES: [&str; VERSIONS] = ["aes128gcm16", "aes256gcm16", "aes128gmac", "aes256gmac"];
    let mut suites = [Suite { enc: None, integ: None }; VERSIONS];
    for (suite, name) in suites.iter_mut().zip(NAMES) {
        suite.enc = Some(EncAlg::by_name(name).ok_or(SaError::Conflict("an algorithm of PSP is missing"))?);
    }
    Ok(suites)
}

/// The version of a specification, with its suite.
fn version(raw: u8) -> Result<(PspVersion, Suite), SaError> {
    const UNKNOWN: SaError = SaError::Conflict("the PSP versions are 0 and 1 (AES-GCM), 2 and 3 (AES-GMAC)");
    let suite = *suites()?.get(usize::from(raw)).ok_or(UNKNOWN)?;
    Ok((PspVersion::try_from(raw).map_err(|_| UNKNOWN)?, suite))
}

fn check_mode(common: &SaCommon) -> Result<(), SaError> {
    match common.mode {
        Mode::Tunnel | Mode::Transport => Ok(()),
        Mode::Aggfrag(_) => Err(SaError::Conflict("PSP has no AGGFRAG mode")),
        Mode::Beet(_) => Err(SaError::Conflict("PSP has tunnel and transport mode, no BEET mode")),
    }
}
