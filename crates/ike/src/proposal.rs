//! Proposals: parsed from strongSwan's words, written as SA payloads, chosen from a peer's.
//!
//! A person writes words (`words`), a peer reads transforms (`transforms`); choosing between the
//! two sides compares transforms (`choice`), so that both roles and all protocols go by one set of
//! rules.

mod choice;
mod names;
#[cfg(test)]
mod tests;
mod transforms;
mod words;

use std::fmt;

use crypto::ike::{KeMethod, Prf};
use crypto::kdf::SubSaKdf;
use crypto::{EncAlg, IntegAlg};

pub(crate) use choice::{accept_child, accept_ike, choose_child, choose_ike};
pub use names::{enc_key_bits, enc_name, integ_name};
pub(crate) use transforms::{emit_child_choice, emit_child_offer, emit_ike_choice, emit_ike_offer};
pub use words::ProposalError;

/// Proposal for an IKE SA.
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
    /// Additional key exchanges (RFC 9370); an inner `None` is NONE.
    pub additional: [Vec<Option<KeMethod>>; 7],
}

/// Proposal for a Child SA.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildProposal {
    /// Protocol.
    pub protocol: ChildProtocol,
    /// Ciphers; empty for AH.
    pub enc: Vec<&'static EncAlg>,
    /// Integrity; empty with AEAD ciphers.
    pub integ: Vec<&'static IntegAlg>,
    /// Key exchange of CREATE_CHILD_SA; empty for none, an inner `None` is NONE besides others.
    pub ke: Vec<Option<KeMethod>>,
    /// Additional key exchanges.
    pub additional: [Vec<Option<KeMethod>>; 7],
    /// Sequence numbers; never empty.
    pub sn: Vec<SequenceNumbers>,
    /// Sub SA key derivation functions of EESP; an inner `None` is NONE. Empty without Sub SAs.
    pub sskdf: Vec<Option<SubSaKdf>>,
}

/// Protocols of Child SAs.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum ChildProtocol {
    Esp,
    Ah,
    Eesp,
}

/// Transform type 5 (RFC 7296 §3.3.2, RFC 9827, EESP).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
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

/// Selected proposal of an IKE SA.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct IkeSuite {
    pub enc: &'static EncAlg,
    pub integ: Option<&'static IntegAlg>,
    pub prf: Prf,
    pub ke: KeMethod,
    /// Additional key exchanges that were agreed, in the order of their transform types.
    pub additional: Vec<KeMethod>,
    /// Indices of their types ADDKE1 to ADDKE7, 0 to 6: types with NONE leave gaps.
    pub slots: Vec<u8>,
}

/// Selected proposal of a Child SA.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct ChildSuite {
    pub protocol: ChildProtocol,
    pub enc: Option<&'static EncAlg>,
    pub integ: Option<&'static IntegAlg>,
    pub ke: Option<KeMethod>,
    pub additional: Vec<KeMethod>,
    /// As in [`IkeSuite`].
    pub slots: Vec<u8>,
    pub sn: SequenceNumbers,
    pub sskdf: Option<SubSaKdf>,
}

/// Default key exchange methods, best first.
const KE_DEFAULT: &str = "x25519-ecp256-ecp384-ecp521-modp3072-modp4096-modp2048";

fn built_in<T>(parsed: Result<T, ProposalError>) -> T {
    parsed.expect("a proposal that is built in parses")
}

impl ChildSuite {
    /// The suite with its ICV truncated to 96 bits where both ends are configured to do so
    /// (`sha256_96`).
    pub(crate) fn truncated_to_96(&self) -> Self {
        Self { integ: self.integ.map(IntegAlg::truncated_to_96), ..self.clone() }
    }
}

impl IkeProposal {
    /// Expansion of `default`: AEADs, then AES-CBC with HMAC; no algorithm that RFC 8247 advises
    /// against.
    pub fn defaults() -> Vec<Self> {
        let prf = "prfsha256-prfsha384-prfsha512";
        [
            format!("aes128gcm16-aes192gcm16-aes256gcm16-chacha20poly1305-{prf}-{KE_DEFAULT}"),
            format!("aes128-aes192-aes256-sha256-sha384-sha512-{prf}-{KE_DEFAULT}"),
        ]
        .map(|text| built_in(Self::parse(&text)))
        .into()
    }

    /// The first algorithm in it that is refused without `allow_legacy` (RFC 8247).
    pub fn weak(&self) -> Option<&'static str> {
        let prf = || self.prf.iter().find(|prf| prf.weak()).map(|prf| prf.name());
        weak_cipher(&self.enc, &self.integ).or_else(prf).or_else(|| weak_ke(self.ke.iter(), &self.additional))
    }

    /// The same for a peer without IKE_INTERMEDIATE, which cannot do additional key exchanges (RFC
    /// 9370 §2.2.1). `None` when this proposal insists on one.
    pub(crate) fn without_additional(&self) -> Option<Self> {
        let optional = self.additional.iter().all(|slot| slot.is_empty() || slot.contains(&None));
        optional.then(|| Self { additional: Default::default(), ..self.clone() })
    }
}

impl ChildProposal {
    /// Expansion of `default`. Key exchange is optional in it.
    pub fn defaults(protocol: ChildProtocol) -> Vec<Self> {
        const AEAD: &str = "aes128gcm16-aes192gcm16-aes256gcm16-chacha20poly1305";
        const HMAC: &str = "sha256-sha384-sha512";
        let texts = match protocol {
            ChildProtocol::Esp => vec![AEAD.to_owned(), format!("aes128-aes192-aes256-{HMAC}")],
            ChildProtocol::Ah => vec![HMAC.to_owned()],
            ChildProtocol::Eesp => vec![AEAD.to_owned()],
        };
        let full = |text| built_in(Self::parse(protocol, &format!("{text}-{KE_DEFAULT}-none")));
        texts.into_iter().map(full).collect()
    }

    /// The first algorithm in it that is refused without `allow_legacy` (RFC 8221, RFC 8247).
    pub fn weak(&self) -> Option<&'static str> {
        weak_cipher(&self.enc, &self.integ).or_else(|| weak_ke(self.ke.iter().flatten(), &self.additional))
    }
}

fn weak_cipher(enc: &[&'static EncAlg], integ: &[&'static IntegAlg]) -> Option<&'static str> {
    let enc = enc.iter().find(|enc| enc.weak).map(|enc| enc.name);
    enc.or_else(|| integ.iter().find(|integ| integ.weak).map(|integ| integ.name))
}

fn weak_ke<'a>(
    ke: impl Iterator<Item = &'a KeMethod>,
    additional: &'a [Vec<Option<KeMethod>>; 7],
) -> Option<&'static str> {
    ke.chain(additional.iter().flatten().flatten()).find(|ke| ke.weak()).map(|ke| ke.name())
}

impl ChildProtocol {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Esp => "ESP",
            Self::Ah => "AH",
            Self::Eesp => "EESP",
        }
    }
}

impl fmt::Display for ChildProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
