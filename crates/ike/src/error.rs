//! Errors of exchanges, by who can act on them.
//!
//! The class of an error decides what the peer receives ([`IkeError::notify`]); its text is for the
//! log of this host alone.

use std::borrow::Cow;

use crypto::ike::KeMethod;
use wire::ParseError;
use wire::ike::{Chain, NotifyType, PayloadType, ProtocolId};

use crate::context::Context;
use crate::output::IkeId;

/// Words for the log.
type Text = Cow<'static, str>;

/// Reason an exchange fails.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum IkeError {
    /// The peer's message breaks a rule: the implementer of the peer can act.
    #[error("{0}")]
    Violation(Text),
    /// The peer requires a feature that this host does not implement.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// Configurations or credentials of both ends do not fit: an operator can act.
    #[error("{1}")]
    Configuration(Mismatch, Text),
    /// Ends by itself: the peer may try again later.
    #[error("{1}")]
    Temporary(Conflict, Text),
    /// A defect of this program. Only IKE_AUTH answers it.
    #[error("internal error: {0}")]
    Internal(Text),
}

/// Feature that this host does not implement.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum Unsupported {
    /// A payload with the critical bit (RFC 7296 §2.5).
    #[error("{0} is critical and unknown")]
    CriticalPayload(PayloadType),
}

/// What does not fit between two configurations.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mismatch {
    /// Identities, credentials, limits of a peer.
    Authentication,
    /// Algorithms.
    Proposal,
    /// The first key exchange method; this one is wanted.
    KeyExchange(KeMethod),
    /// Traffic selectors.
    Selectors,
    /// Virtual addresses.
    Addresses,
    /// The number of Child SAs.
    ChildSas,
    /// The number of per-resource SAs (RFC 9611).
    Resources,
    /// A NAT, which the peer prohibits (RFC 4555 §3.9).
    Nat,
}

/// Temporary obstacle to a request (RFC 7296 §2.25).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Conflict {
    /// Another exchange, or the end of the IKE SA.
    Busy,
    /// The Child SA has ended.
    NoChildSa,
    /// The exchange that the request continues has ended (RFC 9370 §2.2.4).
    NoExchange,
}

impl IkeError {
    /// The peer's message breaks a rule.
    pub(crate) fn violation(text: impl Into<Text>) -> Self {
        Self::Violation(text.into())
    }

    /// Authentication failed, or the authenticated identity is not permitted.
    pub(crate) fn authentication(text: impl Into<Text>) -> Self {
        Self::Configuration(Mismatch::Authentication, text.into())
    }

    /// No proposal fits.
    pub(crate) fn proposal(text: impl Into<Text>) -> Self {
        Self::Configuration(Mismatch::Proposal, text.into())
    }

    /// The KE payload of a request is not of the first method in common.
    pub(crate) fn wrong_method(wanted: KeMethod) -> Self {
        let text = format!("the KE payload is not of {}, which is wanted here", wanted.name());
        Self::Configuration(Mismatch::KeyExchange(wanted), text.into())
    }

    /// No traffic selectors fit.
    pub(crate) fn selectors(text: impl Into<Text>) -> Self {
        Self::Configuration(Mismatch::Selectors, text.into())
    }

    /// The peer refuses an exchange: the reason is in its log.
    pub(crate) fn refused(kind: NotifyType, exchange: &str) -> Self {
        Self::authentication(format!("the peer answers {kind} to {exchange}"))
    }

    /// The peer should repeat the request later.
    pub(crate) fn busy(text: impl Into<Text>) -> Self {
        Self::Temporary(Conflict::Busy, text.into())
    }

    /// A public value of the peer has no shared secret.
    pub(crate) fn ke_payload(fault: crypto::ike::KeFault) -> Self {
        Self::Violation(format!("KE payload: {fault}").into())
    }

    /// This host cannot make a key pair.
    pub(crate) fn no_key_pair(fault: crypto::ike::KeFault) -> Self {
        Self::Internal(format!("no key exchange: {fault}").into())
    }

    /// Notify for the peer.
    pub(crate) fn notify(&self) -> NotifyType {
        match self {
            Self::Violation(_) => NotifyType::INVALID_SYNTAX,
            Self::Unsupported(Unsupported::CriticalPayload(_)) => NotifyType::UNSUPPORTED_CRITICAL_PAYLOAD,
            Self::Configuration(mismatch, _) => match mismatch {
                Mismatch::Authentication => NotifyType::AUTHENTICATION_FAILED,
                Mismatch::Proposal => NotifyType::NO_PROPOSAL_CHOSEN,
                Mismatch::KeyExchange(_) => NotifyType::INVALID_KE_PAYLOAD,
                Mismatch::Selectors => NotifyType::TS_UNACCEPTABLE,
                Mismatch::Addresses => NotifyType::INTERNAL_ADDRESS_FAILURE,
                Mismatch::ChildSas => NotifyType::NO_ADDITIONAL_SAS,
                Mismatch::Resources => NotifyType::TS_MAX_QUEUE,
                Mismatch::Nat => NotifyType::UNEXPECTED_NAT_DETECTED,
            },
            Self::Temporary(conflict, _) => match conflict {
                Conflict::Busy => NotifyType::TEMPORARY_FAILURE,
                Conflict::NoChildSa => NotifyType::CHILD_SA_NOT_FOUND,
                Conflict::NoExchange => NotifyType::STATE_NOT_FOUND,
            },
            // No error type is registered for internal faults; this one makes the peer end the
            // handshake, too.
            Self::Internal(_) => NotifyType::AUTHENTICATION_FAILED,
        }
    }

    /// Data of the notify.
    pub(crate) fn data(&self) -> Vec<u8> {
        match self {
            Self::Unsupported(Unsupported::CriticalPayload(kind)) => vec![kind.0],
            Self::Configuration(Mismatch::KeyExchange(method), _) => method.id().to_be_bytes().to_vec(),
            _ => Vec::new(),
        }
    }

    /// Writes the notify.
    pub(crate) fn emit(&self, chain: &mut Chain<'_>) {
        chain.notify(ProtocolId::NONE, &[], self.notify(), &self.data());
    }
}

impl Context<'_> {
    /// Counts and logs an error of an exchange that is a defect of this program. All others are
    /// reported where the exchange ends.
    pub(crate) fn note_internal(&mut self, ike: IkeId, error: &IkeError) {
        if let IkeError::Internal(what) = error {
            self.internal_error(ike, what);
        }
    }
}

impl From<ParseError> for IkeError {
    fn from(error: ParseError) -> Self {
        Self::Violation(error.to_string().into())
    }
}

/// A suite whose keys the crypto library refuses: [`crate::proposal`] chooses none.
impl From<crypto::KeyError> for IkeError {
    fn from(error: crypto::KeyError) -> Self {
        Self::Internal(error.to_string().into())
    }
}

impl From<crate::exchange::TooLong> for IkeError {
    fn from(error: crate::exchange::TooLong) -> Self {
        Self::authentication(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_decides_the_notify_and_the_text_stays_here() {
        let critical = IkeError::from(Unsupported::CriticalPayload(PayloadType(200)));
        assert_eq!((critical.notify(), critical.data()), (NotifyType::UNSUPPORTED_CRITICAL_PAYLOAD, vec![200]));
        let method = KeMethod::from_id(31).expect("x25519");
        let ke = IkeError::Configuration(Mismatch::KeyExchange(method), "x".into());
        assert_eq!((ke.notify(), ke.data()), (NotifyType::INVALID_KE_PAYLOAD, vec![0, 31]));
        let mut bytes = Vec::new();
        IkeError::authentication("the secret reason").emit(&mut Chain::new(&mut bytes));
        assert_eq!(bytes, [0, 0, 0, 8, 0, 0, 0, NotifyType::AUTHENTICATION_FAILED.0 as u8]);
        assert_eq!(IkeError::violation("IDi is missing").to_string(), "IDi is missing");
        assert_eq!(IkeError::violation("x").notify(), NotifyType::INVALID_SYNTAX);
        assert_eq!(IkeError::busy("x").notify(), NotifyType::TEMPORARY_FAILURE);
    }
}
