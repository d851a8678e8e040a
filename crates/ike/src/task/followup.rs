//! Additional key exchanges after CREATE_CHILD_SA, by IKE_FOLLOWUP_KE (RFC 9370 §2.2.4).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crypto::ike::{KeInitiator, KeMethod, Secret};
use wire::ike::{Chain, NotifyType, ProtocolId};

use super::rekey::Answered;
use crate::child::{Agreement, Parts};
use crate::context::Context;
use crate::error::{Conflict, IkeError};
use crate::exchange::Inner;
use crate::output::ChildId;
use crate::sa::Established;

/// Exchanges of the peer that wait for their IKE_FOLLOWUP_KE, per IKE SA; about 1 KiB each. With a
/// window of one request a peer needs one.
pub(super) const PENDING_MAX: usize = 2;
/// Timeout.
const PENDING: Duration = Duration::from_secs(30);
/// Bytes that link the exchanges, chosen by the responder.
const COOKIE_LEN: usize = 8;
/// Bytes that a peer may take for it.
const PEER_COOKIE_MAX: usize = 512;

/// The initiator's side.
pub(super) struct FollowUp {
    pub(super) secrets: Vec<Secret>,
    pub(super) nonce_r: Vec<u8>,
    left: VecDeque<KeMethod>,
    ke: Option<KeInitiator>,
}

impl FollowUp {
    pub(super) fn new(secrets: Vec<Secret>, nonce_r: Vec<u8>, additional: Vec<KeMethod>) -> Self {
        Self { secrets, nonce_r, left: additional.into(), ke: None }
    }

    /// The KE payload of a response.
    pub(super) fn take(&mut self, parts: &Parts<'_>) -> Result<(), IkeError> {
        let (Some(ours), Some(theirs)) = (self.ke.take(), &parts.ke) else {
            return Err(IkeError::violation("IKE_FOLLOWUP_KE without a KE payload"));
        };
        if theirs.group != ours.method().id() {
            let text = format!("the KE payload of IKE_FOLLOWUP_KE is not of {}", ours.method().name());
            return Err(IkeError::violation(text));
        }
        self.secrets.push(ours.finish(theirs.data).map_err(IkeError::ke_payload)?);
        Ok(())
    }

    /// The next request, which echoes what links the exchanges; `None` when all are done.
    pub(super) fn next(&mut self, parts: &Parts<'_>) -> Result<Option<Inner>, IkeError> {
        let Some(method) = self.left.pop_front() else { return Ok(None) };
        let cookie = parts
            .notify(NotifyType::ADDITIONAL_KEY_EXCHANGE)
            .filter(|cookie| cookie.len() <= PEER_COOKIE_MAX)
            .ok_or(IkeError::Violation("the answer lacks ADDITIONAL_KEY_EXCHANGE".into()))?;
        let ke = method.generate().map_err(IkeError::no_key_pair)?;
        let inner = Inner::new(|chain| {
            chain.ke(method.id(), ke.public());
            chain.notify(ProtocolId::NONE, &[], NotifyType::ADDITIONAL_KEY_EXCHANGE, cookie);
        })?;
        self.ke = Some(ke);
        Ok(Some(inner))
    }
}

/// Purpose of the responder's key exchanges.
pub(super) enum Purpose {
    Child { agreement: Box<Agreement>, rekeys: Option<ChildId> },
    Ike(Box<Answered>),
}

/// The responder's side.
pub(super) struct Pending {
    cookie: [u8; COOKIE_LEN],
    purpose: Purpose,
    nonces: (Vec<u8>, Vec<u8>),
    secrets: Vec<Secret>,
    left: VecDeque<KeMethod>,
    until: Instant,
}

/// Data that links the exchanges.
pub(super) fn cookie(ctx: &mut Context<'_>) -> [u8; COOKIE_LEN] {
    let mut cookie = [0; COOKIE_LEN];
    ctx.rng.fill_bytes(&mut cookie);
    cookie
}

impl Pending {
    pub(super) fn new(
        ctx: &Context<'_>,
        cookie: [u8; COOKIE_LEN],
        purpose: Purpose,
        nonces: (Vec<u8>, Vec<u8>),
        secrets: Vec<Secret>,
        additional: Vec<KeMethod>,
    ) -> Self {
        Self { cookie, purpose, nonces, secrets, left: additional.into(), until: ctx.now + PENDING }
    }

    /// The Child SA that will be replaced.
    pub(super) fn rekeys(&self) -> Option<ChildId> {
        match &self.purpose {
            Purpose::Child { rekeys, .. } => *rekeys,
            Purpose::Ike(_) => None,
        }
    }

    /// It is about the IKE SA.
    pub(super) fn is_ike(&self) -> bool {
        matches!(self.purpose, Purpose::Ike(_))
    }

    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Gives the SPI back.
    pub(super) fn abandon(self, ctx: &mut Context<'_>) {
        if let Purpose::Child { agreement, .. } = self.purpose {
            agreement.abandon(ctx);
        }
    }
}

impl Established {
    /// Answers one IKE_FOLLOWUP_KE; the last one makes the keys.
    pub(super) fn answer_followup(
        &mut self,
        ctx: &mut Context<'_>,
        parts: &Parts<'_>,
        chain: &mut Chain<'_>,
    ) -> Result<(), IkeError> {
        // A missing Notify is an empty cookie, which no exchange has.
        let cookie = parts.notify(NotifyType::ADDITIONAL_KEY_EXCHANGE).unwrap_or_default();
        let Some(at) = self.tasks.followups.iter().position(|pending| pending.cookie == cookie) else {
            return Err(IkeError::Temporary(Conflict::NoExchange, "no exchange waits for this IKE_FOLLOWUP_KE".into()));
        };
        let mut pending = self.tasks.followups.remove(at);
        if let Purpose::Child { agreement, .. } = &pending.purpose
            && let Some(reason) = agreement.refusal(ctx, &self.parent())
        {
            // Another peer was faster.
            pending.abandon(ctx);
            return Err(IkeError::selectors(reason));
        }
        match self.follow(&mut pending, parts) {
            Ok((method, public)) => {
                chain.ke(method.id(), &public);
            }
            Err(refused) => {
                pending.abandon(ctx);
                return Err(refused);
            }
        }
        if pending.left.is_empty() {
            self.complete(ctx, pending);
        } else {
            chain.notify(ProtocolId::NONE, &[], NotifyType::ADDITIONAL_KEY_EXCHANGE, &pending.cookie);
            pending.until = ctx.now + PENDING;
            self.tasks.followups.push(pending);
        }
        Ok(())
    }

    fn follow(&self, pending: &mut Pending, parts: &Parts<'_>) -> Result<(KeMethod, Vec<u8>), IkeError> {
        // The SA can be replaced or deleted between two of these exchanges.
        if let Some(reason) = self.overtaken(pending) {
            return Err(IkeError::busy(reason));
        }
        let (Some(method), Some(ke)) = (pending.left.pop_front(), &parts.ke) else {
            return Err(IkeError::violation("IKE_FOLLOWUP_KE without a KE payload"));
        };
        if ke.group != method.id() {
            let reason = format!("the KE payload of IKE_FOLLOWUP_KE is not of {}", method.name());
            return Err(IkeError::violation(reason));
        }
        let (public, secret) = method.respond(ke.data).map_err(IkeError::ke_payload)?;
        // In the order of the exchanges, which determines the keys (RFC 9370 §2.2.4).
        pending.secrets.push(secret);
        Ok((method, public))
    }

    /// Its predecessor was already replaced or ended.
    fn overtaken(&self, pending: &Pending) -> Option<&'static str> {
        let is_there = |old: ChildId| self.children.iter().any(|child| child.id == old && child.is_live());
        match &pending.purpose {
            _ if self.ending != crate::sa::Ending::No => Some("this IKE SA is ending"),
            Purpose::Child { rekeys: Some(old), .. } if !is_there(*old) => Some("the Child SA was replaced meanwhile"),
            _ => None,
        }
    }

    fn complete(&mut self, ctx: &mut Context<'_>, pending: Pending) {
        let (i, r) = (&pending.nonces.0[..], &pending.nonces.1[..]);
        match pending.purpose {
            Purpose::Child { agreement, rekeys } => {
                self.install_answered(ctx, *agreement, rekeys, (i, r), &pending.secrets);
            }
            Purpose::Ike(answered) => self.answered_rekey_ike(ctx, *answered, (i, r), &pending.secrets),
        }
    }
}
