//! Errors of exchanges, by who can act on them.

use std::borrow::Cow;

use crypto::ike::KeFault;
use wire::ParseError;
use wire::ike::v1::NotifyType;

/// Words for the log.
type Text = Cow<'static, str>;

/// Reason an exchange fails. The class determines the notification for the peer; the text is for
/// the log of this host alone.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum Fault {
    /// The peer's message breaks a rule: the implementer of the peer can act.
    #[error("{0}")]
    Violation(Text),
    /// Configurations or credentials of both ends do not fit: an operator can act.
    #[error("{1}")]
    Configuration(Mismatch, Text),
    /// A defect of this program.
    #[error("internal error: {0}")]
    Internal(Text),
}

/// What does not fit between two configurations.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Mismatch {
    /// Shared keys: what a wrong key decrypts to is no message.
    Key,
    /// Identities.
    Authentication,
    /// Algorithms.
    Proposal,
    /// Selectors of a Child SA.
    Selectors,
}

impl Fault {
    pub(super) fn violation(text: impl Into<Text>) -> Self {
        Self::Violation(text.into())
    }

    pub(super) fn authentication(text: impl Into<Text>) -> Self {
        Self::Configuration(Mismatch::Authentication, text.into())
    }

    pub(super) fn proposal(text: impl Into<Text>) -> Self {
        Self::Configuration(Mismatch::Proposal, text.into())
    }

    pub(super) fn selectors(text: impl Into<Text>) -> Self {
        Self::Configuration(Mismatch::Selectors, text.into())
    }

    /// A message that the keys of this host do not turn into payloads with a correct hash.
    pub(super) fn key() -> Self {
        let text = "its message cannot be decrypted or has a wrong hash; most likely the shared keys differ";
        Self::Configuration(Mismatch::Key, text.into())
    }

    /// Notification for the peer.
    pub(super) fn notify(&self) -> NotifyType {
        match self {
            Self::Violation(_) | Self::Configuration(Mismatch::Key, _) => NotifyType::PAYLOAD_MALFORMED,
            Self::Configuration(Mismatch::Authentication, _) | Self::Internal(_) => NotifyType::AUTHENTICATION_FAILED,
            Self::Configuration(Mismatch::Proposal, _) => NotifyType::NO_PROPOSAL_CHOSEN,
            Self::Configuration(Mismatch::Selectors, _) => NotifyType::INVALID_ID_INFORMATION,
        }
    }
}

impl From<ParseError> for Fault {
    fn from(error: ParseError) -> Self {
        Self::Violation(error.to_string().into())
    }
}

impl From<KeFault> for Fault {
    fn from(fault: KeFault) -> Self {
        match fault {
            KeFault::Failed { .. } => Self::Internal(fault.to_string().into()),
            fault => Self::Violation(format!("KE payload: {fault}").into()),
        }
    }
}

impl From<crypto::KeyError> for Fault {
    fn from(error: crypto::KeyError) -> Self {
        Self::Internal(error.to_string().into())
    }
}
