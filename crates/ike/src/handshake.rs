//! IKE_SA_INIT, IKE_INTERMEDIATE and IKE_AUTH: from nothing to an authenticated IKE SA.
//!
//! [`Handshake`] is an IKE SA that is not authenticated. It implements only these three exchanges;
//! after completion ([`Outcome::Up`]) it becomes the only type that can do more. Each side is a
//! separate state machine ([`initiator`], [`responder`]); their common state after IKE_SA_INIT is
//! [`Secured`]. Operations with credentials are asynchronous requests.

mod auth;
pub(crate) mod configure;
pub(crate) mod counters;
pub(crate) mod init;
mod initiator;
mod initiator_auth;
mod intermediate;
mod redirect;
mod responder;
mod responder_auth;
mod secured;

use std::sync::Arc;
use std::time::Instant;

use wire::ike::Header;

pub(crate) use self::initiator::Initiator;
pub(crate) use self::redirect::{Gateway, Redirects, target as redirection};
pub(crate) use self::responder::{Refusing, Responder, accept, candidates};
pub(crate) use self::secured::Secured;
use crate::config::Connection;
use crate::context::Context;
use crate::output::{CredentialResponse, IkeId, IkeSpis, Path, RequestId};
use crate::sa::{ChildRequest, Established, Initiation};

/// An IKE SA before authentication.
pub(crate) enum Handshake {
    Initiator(Initiator),
    Responder(Responder),
}

/// Result of a step of a handshake.
pub(crate) enum Outcome {
    /// The next step needs a message of the peer, a credential response or a timer.
    Waiting,
    /// Both ends are authenticated.
    Up(Box<Up>),
    /// The peer was refused and notified. The rest responds to retransmissions for a while.
    Refused(String),
    /// It is over.
    Ended(Box<Ended>),
}

/// An established IKE SA and its remaining tasks.
pub(crate) struct Up {
    pub(crate) sa: Box<Established>,
    /// Further Child SAs that are wanted.
    pub(crate) children: Vec<ChildRequest>,
    /// Commands that waited for the IKE SA.
    pub(crate) commands: Vec<u64>,
    /// The IKE SA that it replaces.
    pub(crate) replaces: Option<IkeId>,
    /// The peer had no other IKE SA with this host when the handshake began, at that time (RFC 7296
    /// §2.4).
    pub(crate) initial_contact: Option<Instant>,
}

/// A handshake that failed.
#[derive(Default)]
pub(crate) struct Ended {
    /// For the log and for the waiting command.
    pub(crate) reason: String,
    /// Next attempt: another gateway, or a retry; `true` to wait before.
    pub(crate) next: Option<(Initiation, Redirects, bool)>,
    /// Commands and Child SAs that have failed.
    pub(crate) commands: Vec<u64>,
    pub(crate) children: Vec<ChildRequest>,
}

impl Outcome {
    /// A failure of a responder: no command waits.
    pub(crate) fn over(reason: impl Into<String>) -> Self {
        Self::Ended(Box::new(Ended { reason: reason.into(), ..Ended::default() }))
    }

    /// Ends a handshake in a state that only a defect of this program can cause.
    fn internal(ctx: &mut Context<'_>, id: IkeId, what: &str) -> Self {
        ctx.internal_error(id, what);
        Self::over(format!("internal error: {what}"))
    }
}

impl Handshake {
    /// Takes a datagram with this IKE SA's SPIs that is not a request of IKE_SA_INIT. `from` has
    /// its addresses.
    pub(crate) fn handle(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) -> Outcome {
        match self {
            Self::Initiator(initiator) => initiator.handle(ctx, from, header, datagram),
            Self::Responder(responder) => responder.handle(ctx, from, header, datagram),
        }
    }

    /// Processes a credential response. An unexpected one is ignored.
    pub(crate) fn answer(
        &mut self,
        ctx: &mut Context<'_>,
        request_id: RequestId,
        answer: CredentialResponse,
    ) -> Outcome {
        match self {
            Self::Initiator(initiator) => initiator.answer(ctx, request_id, answer),
            Self::Responder(responder) => responder.answer(ctx, request_id, answer),
        }
    }

    /// Retransmits or gives up. Harmless when early.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context<'_>) -> Outcome {
        match self {
            Self::Initiator(initiator) => initiator.handle_timeout(ctx),
            Self::Responder(responder) => responder.handle_timeout(ctx),
        }
    }

    /// Time of the next [`Handshake::handle_timeout`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Initiator(initiator) => initiator.deadline(),
            Self::Responder(responder) => Some(responder.deadline()),
        }
    }

    /// ID of the pending credential request.
    pub(crate) fn request_id(&self) -> Option<RequestId> {
        match self {
            Self::Initiator(initiator) => initiator.request_id(),
            Self::Responder(responder) => responder.request_id(),
        }
    }

    /// Name of the IKE SA.
    pub(crate) fn id(&self) -> IkeId {
        match self {
            Self::Initiator(initiator) => initiator.id(),
            Self::Responder(responder) => responder.id(),
        }
    }

    /// The connection; of a responder the best of those that are still possible.
    pub(crate) fn connection(&self) -> Option<&Arc<Connection>> {
        match self {
            Self::Initiator(initiator) => Some(initiator.connection()),
            Self::Responder(responder) => responder.connection(),
        }
    }

    /// Retransmission state of the outstanding request; a responder has none.
    pub(crate) fn unanswered(&self) -> Option<crate::exchange::Unanswered> {
        match self {
            Self::Initiator(initiator) => initiator.unanswered(),
            Self::Responder(_) => None,
        }
    }

    /// Addresses.
    pub(crate) fn path(&self) -> Path {
        match self {
            Self::Initiator(initiator) => initiator.path(),
            Self::Responder(responder) => responder.path(),
        }
    }

    /// SPI of the initiator and of the responder; that of the responder may be zero still.
    pub(crate) fn spis(&self) -> IkeSpis {
        match self {
            Self::Initiator(initiator) => initiator.spis(),
            Self::Responder(responder) => responder.spis(),
        }
    }

    /// The message layer, once there are keys: what tests forge messages with.
    #[cfg(any(test, feature = "testkit"))]
    pub(crate) fn exchanges(&mut self) -> Option<&mut crate::exchange::Exchanges> {
        match self {
            Self::Initiator(initiator) => initiator.exchanges(),
            Self::Responder(responder) => responder.exchanges(),
        }
    }

    /// Ends it without a word to the peer.
    pub(crate) fn cancel(&mut self, ctx: &mut Context<'_>, reason: &str) -> Ended {
        match self {
            Self::Initiator(initiator) => initiator.cancel(ctx, reason),
            Self::Responder(_) => Ended { reason: reason.to_owned(), ..Ended::default() },
        }
    }
}
