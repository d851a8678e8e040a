//! EAP of the initiator (RFC 7296 §2.16).

use crypto::ike::Secret;
use wire::ike::Eap;

use super::super::Secured;
use super::super::auth::{EAP_NOT_METHODS, EAP_PACKETS_MAX, EAP_TLS};
use super::{Purpose, Sent, Session, Start, Step, address_id};
use crate::config::{AuthMethod, Connection};
use crate::context::Context;
use crate::error::IkeError;
use crate::exchange::Inner;
use crate::output::{CredentialRequest, EapResult, EapStep};
use crate::sa::Role;

/// An active EAP conversation.
#[derive(Clone, Copy, Default)]
pub(in crate::handshake) struct Conversation {
    /// The method that is being run, once it is known.
    method: Option<u8>,
    /// Code of the last packet of the peer.
    last: u8,
}

/// Key of an EAP conversation that was successful: the MSK, if the method makes one.
pub(in crate::handshake) struct EapKey(Option<Secret>);

impl EapKey {
    /// The key of AUTH after EAP: the MSK, or without one the side's own SK_p (RFC 7296 §2.16).
    pub(super) fn of(&self, secured: &Secured, role: Role, ppk: bool) -> Secret {
        self.0.clone().unwrap_or_else(|| secured.sk_p(role, ppk).clone())
    }
}

/// An EAP packet of the peer.
pub(super) struct EapPacket {
    code: u8,
    method: Option<u8>,
    whole: Vec<u8>,
}

impl EapPacket {
    pub(super) fn of(packet: &Eap<'_>) -> Self {
        Self { code: packet.code, method: packet.method(), whole: packet.whole.to_vec() }
    }
}

impl Session {
    /// The conversation after a packet of the peer, if the packet may be answered now.
    fn check_eap(
        &mut self,
        connection: &Connection,
        mut conversation: Conversation,
        packet: &EapPacket,
    ) -> Result<Conversation, IkeError> {
        let alone = is_eap_only(connection) && self.remote_round == 0;
        // Responses to an unauthenticated server would reveal the identity and allow attacks on the
        // password.
        if self.remote_round == 0 && !alone {
            return Err(IkeError::violation("the peer requests EAP before it has authenticated itself"));
        }
        self.eap_packets += 1;
        if self.eap_packets > EAP_PACKETS_MAX {
            return Err(IkeError::violation("EAP does not come to an end"));
        }
        conversation.last = packet.code;
        if let (Eap::REQUEST, Some(kind)) = (packet.code, packet.method)
            && !EAP_NOT_METHODS.contains(&kind)
        {
            // The EAP method alone must authenticate the server here (RFC 5998), which methods with
            // a password do not do safely.
            if alone && kind != EAP_TLS {
                let text = format!("EAP method {kind} does not authenticate the peer, and nothing else did");
                return Err(IkeError::authentication(text));
            }
            conversation.method = Some(kind);
        }
        Ok(conversation)
    }

    /// A response with an EAP packet.
    pub(super) fn continue_eap(
        mut self: Box<Self>,
        ctx: &mut Context<'_>,
        start: &mut Start,
        conversation: Conversation,
        packet: EapPacket,
    ) -> Step {
        let conversation = match self.check_eap(start.connection(), conversation, &packet) {
            Ok(conversation) => conversation,
            Err(reason) => return self.fail(ctx, start, &reason, true),
        };
        let step = EapStep {
            connection: start.connection().clone(),
            alternatives: Vec::new(),
            round: self.local_round,
            client: true,
            conversation: u64::from(start.id.0),
            client_id: self.local_id.clone().unwrap_or_else(|| address_id(start.path.local)),
            packet: packet.whole,
        };
        self.request_credentials(ctx, Purpose::Eap(conversation), CredentialRequest::Eap(Box::new(step)))
    }

    pub(super) fn take_eap(
        self: Box<Self>,
        ctx: &mut Context<'_>,
        start: &mut Start,
        conversation: Conversation,
        answer: EapResult,
    ) -> Step {
        let Conversation { method, last } = conversation;
        let alone = is_eap_only(start.connection()) && self.remote_round == 0;
        match answer {
            EapResult::Packet(packet) => {
                let inner = Inner::new(|chain| {
                    chain.eap(&packet);
                });
                self.request(ctx, start, inner, Sent::Eap(conversation))
            }
            // Only a server can switch to another connection.
            EapResult::Switch(..) => self.fail_internal(ctx, start, "a response does not fit its credential request"),
            EapResult::Success { .. } if last != Eap::SUCCESS => {
                self.fail(ctx, start, &"EAP succeeded before the peer reported success", true)
            }
            EapResult::Success { msk, .. } if alone && (msk.is_none() || method != Some(EAP_TLS)) => {
                self.fail(ctx, start, &"EAP alone has not authenticated the peer", true)
            }
            EapResult::Success { msk, .. } => self.sign(ctx, start, Some(EapKey(msk)), None),
            EapResult::Failure(_, refusal) => self.fail(ctx, start, &format!("EAP failed: {}", refusal.0), true),
        }
    }
}

/// Returns whether the responder is authenticated by EAP only (RFC 5998).
pub(super) fn is_eap_only(connection: &Connection) -> bool {
    connection.remote.first().is_some_and(|auth| matches!(auth.method, AuthMethod::Eap(_)))
}
