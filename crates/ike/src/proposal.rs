//! Proposals: parsed from strongSwan's words, written as SA payloads, chosen from a peer's.

use crypto::ike::{KeMethod, Prf};
use crypto::{EncAlg, IntegAlg};

/// What may protect an IKE SA.
#[derive(Clone, Debug, PartialEq)]
pub struct IkeProposal {
    /// Ciphers in order of preference.
    pub enc: Vec<&'static EncAlg>,
    /// Integrity; empty with AEAD ciphers.
    pub integ: Vec<&'static IntegAlg>,
    /// Pseudo-random functions.
    pub prf: Vec<Prf>,
    /// Key exchange of IKE_SA_INIT.
    pub ke: Vec<KeMethod>,
    /// Additional key exchanges (RFC 9370); `None` inside stands for NONE.
    pub additional: [Vec<Option<KeMethod>>; 7],
}

/// What may protect a Child SA.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildProposal {
    /// Protocol.
    pub protocol: ChildProtocol,
    /// Ciphers; empty for AH.
    pub enc: Vec<&'static EncAlg>,
    /// Integrity; empty with AEAD ciphers.
    pub integ: Vec<&'static IntegAlg>,
    /// Key exchange of CREATE_CHILD_SA; empty for none, `None` inside stands for NONE beside others.
    pub ke: Vec<Option<KeMethod>>,
    /// Additional key exchanges.
    pub additional: [Vec<Option<KeMethod>>; 7],
    /// Sequence numbers; never empty.
    pub sn: Vec<SequenceNumbers>,
    /// Sub SA key derivation functions of EESP; `None` inside stands for NONE. Empty without Sub SAs.
    pub sskdf: Vec<Option<crypto::kdf::SubSaKdf>>,
}

/// Protocols of Child SAs.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)]
pub enum ChildProtocol {
    Esp,
    Ah,
    Eesp,
}

/// Transform type 5 (RFC 7296 §3.3.2, RFC 9827, EESP).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum SequenceNumbers {
    /// 32 bits (ESP, AH).
    Bits32,
    /// 64 bits of which 32 are sent (ESP, AH).
    Extended,
    /// 64 bits, all sent (EESP).
    Bits64,
    /// None (EESP): no replay protection.
    None,
}

/// What was chosen for an IKE SA.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct IkeSuite {
    pub enc: &'static EncAlg,
    pub integ: Option<&'static IntegAlg>,
    pub prf: Prf,
    pub ke: KeMethod,
    /// Additional key exchanges that were agreed, in the order of their transform types.
    pub additional: Vec<KeMethod>,
}

/// What was chosen for a Child SA.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct ChildSuite {
    pub protocol: ChildProtocol,
    pub enc: Option<&'static EncAlg>,
    pub integ: Option<&'static IntegAlg>,
    pub ke: Option<KeMethod>,
    pub additional: Vec<KeMethod>,
    pub sn: SequenceNumbers,
    pub sskdf: Option<crypto::kdf::SubSaKdf>,
}
