//! EAP of the responder (RFC 7296 §2.16).

use std::sync::Arc;

use crypto::ike::Secret;
use wire::ike::NotifyType;

use super::super::auth::EAP_TLS;
use super::super::{Outcome, Secured, counters};
use super::{Answering, Step, address_id, own_id};
use crate::child::Refused;
use crate::config::AuthMethod;
use crate::context::Context;
use crate::exchange::Inner;
use crate::output::{EapAnswer, EapStep, Level, Question, Signed, Subsystem};
use crate::sa::Role;

/// The EAP conversation of the round.
pub(super) enum EapState {
    None,
    /// `answers` counts what the client sent; `method` is the last that it used.
    Running {
        method: Option<u8>,
        answers: u32,
    },
    /// The client has EAP-Success and has to prove the key, the MSK if the method makes one.
    Proving(Option<Secret>),
    /// It did.
    Proven(Option<Secret>),
}

impl Answering {
    /// The peer left AUTH out: it wants EAP.
    pub(super) fn start_eap(&mut self, ctx: &mut Context<'_>) -> Outcome {
        if let Err(refused) = self.sift(true, None) {
            return self.refuse(ctx, &refused);
        }
        self.keep_alternatives();
        self.eap = EapState::Running { method: None, answers: 0 };
        let local = self.candidates.first().and_then(|connection| connection.local.get(self.local_round));
        match local.map(|auth| &auth.method) {
            None => self.ask_eap(ctx, Vec::new(), None),
            Some(AuthMethod::Eap(_)) if self.eap_only => {
                let path = self.secured.as_ref().map(|secured| secured.path.local);
                let exact = local.and_then(|auth| own_id(&auth.id));
                self.local_id = exact.or_else(|| path.map(address_id));
                self.ask_eap(ctx, Vec::new(), None)
            }
            Some(AuthMethod::Eap(_)) => {
                let reason = "the connection authenticates this host by EAP alone, which the peer does not accept";
                self.refuse(ctx, &Refused::new(NotifyType::AUTHENTICATION_FAILED, reason))
            }
            Some(_) => self.sign(ctx, Step::AskedSignForEap),
        }
    }

    /// Leaves those candidates to which the EAP identity may switch later: this host authenticates itself in the same way
    /// in all of them, because its AUTH goes out before the EAP identity comes.
    fn keep_alternatives(&mut self) {
        let Some(first) = self.candidates.first().cloned() else { return };
        let round = self.remote_round;
        self.candidates.retain(|other| {
            let asks = other.remote.get(round).is_some_and(|auth| auth.eap_id.is_some());
            Arc::ptr_eq(other, &first) || asks && other.local == first.local && other.remote.len() == first.remote.len()
        });
    }

    pub(super) fn ask_eap(&mut self, ctx: &mut Context<'_>, packet: Vec<u8>, signed: Option<Signed>) -> Outcome {
        let (Some(secured), Some(connection), Some(remote)) = (&self.secured, self.candidates.first(), &self.remote_id)
        else {
            return Outcome::Pending;
        };
        let step = EapStep {
            connection: connection.clone(),
            alternatives: self.candidates[1..].to_vec(),
            round: self.remote_round,
            client: false,
            conversation: u64::from(secured.id.0),
            client_id: remote.id.clone(),
            packet,
        };
        self.ask(ctx, Step::AskedEap(signed), Question::Eap(Box::new(step)))
    }

    pub(super) fn take_eap(&mut self, ctx: &mut Context<'_>, answer: EapAnswer, signed: Option<Signed>) -> Outcome {
        let EapState::Running { method, answers } = self.eap else { return Outcome::Pending };
        let alone = self.candidates.first().is_some_and(|connection| {
            connection.local.first().is_some_and(|auth| matches!(auth.method, AuthMethod::Eap(_)))
        });
        match answer {
            EapAnswer::Packet(packet) => {
                self.respond_eap(ctx, &packet, signed);
                Outcome::Pending
            }
            EapAnswer::Switch(connection, packet) => {
                if !self.candidates.iter().any(|candidate| Arc::ptr_eq(candidate, &connection)) {
                    let reason = "the connection of the EAP identity is no candidate";
                    return self.refuse(ctx, &Refused::new(NotifyType::AUTHENTICATION_FAILED, reason));
                }
                let text = format!(
                    "the EAP identity switches from connection '{}' to '{}'",
                    self.candidates[0].name, connection.name
                );
                ctx.log(Level::Debug, Subsystem::Ike, self.secured.as_ref().map(|secured| secured.id), text);
                self.candidates = vec![connection];
                self.respond_eap(ctx, &packet, signed);
                Outcome::Pending
            }
            EapAnswer::Success { .. } if answers == 0 => {
                let reason = "EAP succeeded before the client said anything";
                self.refuse(ctx, &Refused::new(NotifyType::AUTHENTICATION_FAILED, reason))
            }
            EapAnswer::Success { msk, .. } if alone && (msk.is_none() || method != Some(EAP_TLS)) => {
                let reason = "EAP alone does not authenticate this host with that method";
                self.refuse(ctx, &Refused::new(NotifyType::AUTHENTICATION_FAILED, reason))
            }
            EapAnswer::Success { packet, msk, identity } => {
                self.candidates.truncate(1);
                self.eap_name = identity;
                self.eap = EapState::Proving(msk);
                self.respond_eap(ctx, &packet, signed);
                Outcome::Pending
            }
            EapAnswer::Failure(packet, refusal) => {
                ctx.count(counters::AUTH_FAILED);
                self.respond_eap(ctx, &packet, signed);
                Outcome::Refused(format!("EAP failed: {}", refusal.0))
            }
        }
    }

    pub(super) fn respond_eap(&mut self, ctx: &mut Context<'_>, packet: &[u8], signed: Option<Signed>) {
        let first = matches!(self.eap, EapState::Running { answers: 0, .. });
        let inner = Inner::new(|chain| {
            if first && (signed.is_some() || self.local_round == 0) {
                self.emit_identity(chain, signed.as_ref());
            }
            chain.eap(packet);
        });
        if signed.is_some() {
            self.local_round += 1;
        }
        self.respond(ctx, &inner);
    }
}

/// The key of AUTH after EAP: the MSK, or without one the side's own SK_p (RFC 7296 §2.16).
pub(super) fn eap_key(secured: &Secured, msk: &Option<Secret>, of: Role) -> Secret {
    msk.clone().unwrap_or_else(|| secured.sk_p(of, secured.ppk).clone())
}
