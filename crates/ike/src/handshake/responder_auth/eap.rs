//! EAP of the responder (RFC 7296 §2.16).

use std::sync::Arc;

use crypto::ike::Secret;
use wire::ike::Eap;

use super::super::auth::{EAP_NOT_METHODS, EAP_PACKETS_MAX, EAP_TLS};
use super::super::{Secured, counters};
use super::{AfterEap, Candidates, Expected, Purpose, Session, Step, address_id, own_id, refuse_with};
use crate::config::AuthMethod;
use crate::context::Context;
use crate::error::IkeError;
use crate::exchange::{Inner, TooLong};
use crate::output::{CredentialRequest, EapResult, EapStep, Level, Signed, Subsystem};
use crate::sa::Role;

/// An active EAP conversation.
#[derive(Default)]
pub(in crate::handshake) struct Conversation {
    /// The last method that the client used.
    method: Option<u8>,
    /// Packets of the client so far.
    answers: u32,
}

/// Key of an EAP conversation that was successful: the MSK, if the method makes one.
pub(in crate::handshake) struct EapKey(Option<Secret>);

impl EapKey {
    /// The key of AUTH after EAP: the MSK, or without one the side's own SK_p (RFC 7296 §2.16).
    pub(super) fn of(&self, secured: &Secured, role: Role) -> Secret {
        self.0.clone().unwrap_or_else(|| secured.sk_p(role, secured.ppk).clone())
    }
}

/// An EAP response of the client.
pub(super) struct EapResponse {
    method: Option<u8>,
    packet: Vec<u8>,
}

impl EapResponse {
    /// `None` for packets of other kinds.
    pub(super) fn of(packet: &Eap<'_>) -> Option<Self> {
        (packet.code == Eap::RESPONSE).then(|| Self { method: packet.method(), packet: packet.whole.to_vec() })
    }
}

impl Session {
    /// The peer left AUTH out: it requests EAP.
    pub(super) fn start_eap(mut self: Box<Self>, ctx: &mut Context<'_>) -> Step {
        if let Err(refused) = self.sift(true, None) {
            return self.refuse(ctx, &refused);
        }
        self.keep_alternatives();
        let local = self.candidates.best().local.get(self.local_round);
        match local.map(|auth| (&auth.method, &auth.id)) {
            None => self.ask_eap(ctx, Conversation::default(), Vec::new(), None),
            Some((AuthMethod::Eap(_), id)) if self.requests.eap_only => {
                self.local_id = Some(own_id(id).unwrap_or_else(|| address_id(self.secured.path.local)));
                self.ask_eap(ctx, Conversation::default(), Vec::new(), None)
            }
            Some((AuthMethod::Eap(_), _)) => {
                let reason = "the connection authenticates this host by EAP alone, which the peer does not accept";
                self.refuse(ctx, &IkeError::authentication(reason))
            }
            Some(_) => self.sign(ctx, None, Purpose::SignForEap),
        }
    }

    /// Keeps the candidates to which the EAP identity may switch later: this host has the same
    /// authentication in all of them, because its AUTH is sent before the EAP identity is received.
    fn keep_alternatives(&mut self) {
        let (first, round) = (self.candidates.best().clone(), self.remote_round);
        let kept = self.candidates.filtered(|other| {
            let requests_identity = other.remote.get(round).is_some_and(|auth| auth.eap_id.is_some());
            Arc::ptr_eq(other, &first)
                || requests_identity && other.local == first.local && other.remote.len() == first.remote.len()
        });
        self.candidates = kept.unwrap_or_else(|| Candidates::only(first));
    }

    pub(super) fn ask_eap(
        self: Box<Self>,
        ctx: &mut Context<'_>,
        conversation: Conversation,
        packet: Vec<u8>,
        signed: Option<Signed>,
    ) -> Step {
        let step = EapStep {
            connection: self.candidates.best().clone(),
            alternatives: self.candidates.others().to_vec(),
            round: self.remote_round,
            client: false,
            conversation: u64::from(self.secured.id.0),
            client_id: self.remote_id.id.clone(),
            packet,
        };
        self.request_credentials(ctx, Purpose::Eap(conversation, signed), CredentialRequest::Eap(Box::new(step)))
    }

    /// The client continues with EAP.
    pub(super) fn take_eap_response(
        self: Box<Self>,
        ctx: &mut Context<'_>,
        mut conversation: Conversation,
        response: Option<EapResponse>,
    ) -> Step {
        let Some(EapResponse { method, packet }) = response else {
            return self.refuse(ctx, &IkeError::violation("an EAP response is missing"));
        };
        conversation.answers += 1;
        if conversation.answers > EAP_PACKETS_MAX {
            return self.refuse(ctx, &IkeError::violation("EAP does not come to an end"));
        }
        conversation.method = method.filter(|kind| !EAP_NOT_METHODS.contains(kind)).or(conversation.method);
        self.ask_eap(ctx, conversation, packet, None)
    }

    pub(super) fn take_eap(
        mut self: Box<Self>,
        ctx: &mut Context<'_>,
        answer: EapResult,
        conversation: Conversation,
        signed: Option<Signed>,
    ) -> Step {
        let Conversation { method, answers } = conversation;
        let local = self.candidates.best().local.first();
        let alone = local.is_some_and(|auth| matches!(auth.method, AuthMethod::Eap(_)));
        match answer {
            EapResult::Packet(packet) => {
                let inner = self.eap_response(&packet, answers, signed);
                self.respond_and_expect(ctx, inner, Expected::Eap(conversation))
            }
            EapResult::Switch(connection, packet) => {
                if !self.candidates.contains(&connection) {
                    return self.internal(ctx, "the connection of the EAP identity is no candidate");
                }
                let text = format!(
                    "the EAP identity switches from connection '{}' to '{}'",
                    self.candidates.best().name,
                    connection.name
                );
                ctx.log(Level::Debug, Subsystem::Ike, Some(self.secured.id), text);
                self.candidates = Candidates::only(connection);
                let inner = self.eap_response(&packet, answers, signed);
                self.respond_and_expect(ctx, inner, Expected::Eap(conversation))
            }
            EapResult::Success { .. } if answers == 0 => {
                self.refuse(ctx, &IkeError::authentication("EAP succeeded before the client sent a message"))
            }
            EapResult::Success { msk, .. } if alone && (msk.is_none() || method != Some(EAP_TLS)) => self
                .refuse(ctx, &IkeError::authentication("EAP alone does not authenticate this host with that method")),
            EapResult::Success { packet, msk, identity } => {
                // AUTH is verified against one connection, and `peer_is_done` requires a single
                // candidate.
                self.candidates = Candidates::only(self.candidates.best().clone());
                self.eap_name = identity;
                let inner = self.eap_response(&packet, answers, signed);
                self.respond_and_expect(ctx, inner, Expected::Proof(EapKey(msk)))
            }
            EapResult::Failure(packet, refusal) => {
                ctx.count(counters::AUTH_FAILED);
                let reason = format!("EAP failed: {}", refusal.0);
                match self.eap_response(&packet, answers, signed) {
                    Ok(inner) => refuse_with(ctx, self.secured, self.reply, &inner, reason),
                    Err(_) => self.refuse(ctx, &IkeError::authentication(reason)),
                }
            }
        }
    }

    /// The response with an EAP packet after `answers` of the client; the first one has this host's
    /// identity.
    fn eap_response(&mut self, packet: &[u8], answers: u32, signed: Option<Signed>) -> Result<Inner, TooLong> {
        let is_signed = signed.is_some();
        let with_identity = answers == 0 && (is_signed || self.local_round == 0);
        let proof = self.proof(signed, AfterEap::No);
        if is_signed {
            self.local_round += 1;
        }
        Inner::new(|chain| {
            if with_identity {
                proof.emit(chain);
            }
            chain.eap(packet);
        })
    }
}
