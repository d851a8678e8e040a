//! EESP version 0 (draft-ietf-ipsecme-eesp-03).
//!
//! An SA is one lane, or with a Sub SA key derivation function one lane per Sub SA: own key, own
//! sequence numbers, own replay window, one SPI. Format, lengths and options of its packets are
//! settled when the SA is built; a packet only has numbers filled in.
//!
//! Where the draft is silent or contradicts itself:
//!
//! - Tunnel mode has the optimised format, unless a maximum crypt offset was announced: then the
//!   sender uses the full format for every packet, and the receiver determines it by the first
//!   nibble.
//! - The explicit IV is the sequence number, and part of the associated data.
//! - In AGGFRAG mode (RFC 9347) each Sub SA is a stream: pieces of an inner packet have consecutive
//!   numbers of one Session ID.
//! - A packet shorter than the crypt offset leaves less in the clear: whole words of the inner
//!   packet, payload info included.
//! - Receivers do not judge alignment or the content of padding.

mod inbound;
mod outbound;
mod sub_sa;
#[cfg(test)]
mod tests;

pub use crypto::kdf::SubSaKdf;
use crypto::{EncAlg, Suite};
use wire::eesp::CryptOffset;
use wire::{IpProto, Spi};

use crate::{SaCommon, SaError};

pub use inbound::{Inbound, inbound};
pub(crate) use inbound::{finish_in, inner_full, prepare_in};
pub(crate) use outbound::prepare_out;
pub use outbound::{Outbound, outbound};

/// Sub SAs up to which keys are made with the SA. Beyond, a receiver makes them when packets come
/// and a sender does without the rest.
pub const MAX_READY_SUB_SAS: usize = 256;

/// Bytes of the sequence number when there is one, and of an explicit IV.
const WORD64: usize = 8;

/// Parameters of one direction of an EESP SA, from the configuration or a key exchange.
pub struct Spec<'a> {
    /// SPI.
    pub spi: Spi,
    /// Suite; an AEAD.
    pub suite: Suite,
    /// Without Sub SAs: key with salt. With them: the root key, as long as the hash output.
    pub key: &'a [u8],
    /// Sub SAs: how keys are derived, and how many there are (1..=65536), Session IDs 0..count.
    /// A sender uses at most [`MAX_READY_SUB_SAS`] of them.
    pub sub_sas: Option<(SubSaKdf, u32)>,
    /// Session ID of the first Sub SA to send on (the others follow, around to 0), or of the SA
    /// without Sub SAs (0 unless a peer requires another).
    pub session: u16,
    /// 64-bit sequence numbers on the wire; false for none.
    pub seq: bool,
    /// Replay window in packets (inbound): 64 to 65536 with sequence numbers, without them ignored.
    pub window: u32,
    /// First sequence number to send, per lane; inbound, the highest one already seen. Lanes
    /// beyond the slice start at 1 (0 seen). The first lane of a sender is the Sub SA `session`:
    /// another `session` with the same key needs the numbers turned round likewise.
    pub first_seq: &'a [u64],
    /// Whether counters must be saved before use (see [`crate::SeqCounter`]).
    pub persistent: bool,
    /// Outbound: bytes of the payload (with Payload Info Header) to leave in the clear, a multiple
    /// of 4 up to 252; `None` when the peer announced no maximum. Inbound: the maximum that was
    /// announced. `Some` selects the full format in tunnel mode.
    pub crypt_offset: Option<u8>,
    /// Raw option bytes to send in every packet besides those needed (test vectors, hardware
    /// hints).
    pub extra_options: &'a [u8],
    /// Drop packets with unknown options instead of skipping and counting them (inbound).
    pub strict_options: bool,
    /// IP protocol number of EESP.
    pub ip_proto: IpProto,
    /// Explicit IV of the packet with number 1, counting up with the numbers, instead of the number
    /// itself. For test vectors.
    pub first_iv: Option<u64>,
}

impl<'a> Spec<'a> {
    /// Returns an SA without Sub SAs that begins now: 64-bit sequence numbers, a replay window of
    /// 64 packets, nothing saved, [`IpProto::EESP_DEFAULT`], no more options than needed.
    pub const fn new(spi: Spi, suite: Suite, key: &'a [u8]) -> Self {
        Self {
            spi,
            suite,
            key,
            sub_sas: None,
            session: 0,
            seq: true,
            window: 64,
            first_seq: &[],
            persistent: false,
            crypt_offset: None,
            extra_options: &[],
            strict_options: false,
            ip_proto: IpProto::EESP_DEFAULT,
            first_iv: None,
        }
    }

    /// Checks what both directions have in common.
    fn check(&self, common: &SaCommon) -> Result<&'static EncAlg, SaError> {
        let Some(enc) = self.suite.enc.filter(|enc| enc.kind.is_aead() && self.suite.integ.is_none()) else {
            return Err(SaError::Conflict(
                "EESP version 0 has AEAD algorithms only, no cipher with a separate MAC; use one such as aes128gcm16",
            ));
        };
        if enc.implicit_iv && !self.seq {
            return Err(SaError::Conflict(
                "an implicit IV is the sequence number, so it cannot be used without sequence numbers",
            ));
        }
        if self.crypt_offset.is_some_and(|clear| !clear.is_multiple_of(4) || clear / 4 > CryptOffset::MAX_WORDS) {
            return Err(SaError::Conflict("an EESP crypt offset is a multiple of 4 bytes, at most 252"));
        }
        if common.aggfrag().is_some() && !self.seq {
            return Err(SaError::Conflict("AGGFRAG mode needs sequence numbers, which order the outer packets"));
        }
        if common.aggfrag().is_some() && self.crypt_offset.is_some() {
            return Err(SaError::Conflict(
                "AGGFRAG mode has no crypt offset: no header is at a fixed place in a payload",
            ));
        }
        if self.crypt_offset.is_some() && !enc.kind.is_confidential() {
            return Err(SaError::Conflict("with GMAC everything is in the clear: a crypt offset has no meaning"));
        }
        if let Some((kdf, count)) = self.sub_sas {
            sub_sa::check(kdf, self.key, count, self.session)?;
        }
        Ok(enc)
    }

    /// Bytes of sequence number and IV.
    fn peer_header_len(&self) -> usize {
        usize::from(self.seq) * WORD64 + self.suite.iv_len()
    }

    /// Entry of `first_seq` for a lane.
    fn first_seq_of(&self, lane: usize) -> Option<u64> {
        self.first_seq.get(lane).copied()
    }
}
