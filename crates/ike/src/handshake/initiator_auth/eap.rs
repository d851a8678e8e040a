//! EAP of the initiator (RFC 7296 §2.16).

use crypto::ike::Secret;
use wire::ike::Eap;

use super::super::auth::{EAP_NOT_METHODS, EAP_PACKETS_MAX, EAP_TLS};
use super::super::{Outcome, Secured};
use super::{Authenticating, Start, Step, address_id};
use crate::config::{AuthMethod, Connection};
use crate::context::Context;
use crate::exchange::Inner;
use crate::output::{EapAnswer, EapStep, Question};
use crate::sa::Role;

/// The EAP conversation of the round.
pub(super) enum EapState {
    None,
    /// The method that is being run, once it is known.
    Running {
        method: Option<u8>,
        last: u8,
    },
    /// Over, with the MSK if the method makes one.
    Done(Option<Secret>),
}

impl Authenticating {
    /// The key of AUTH after EAP: the MSK, or without one the side's own SK_p (RFC 7296 §2.16).
    pub(super) fn eap_key(&self, secured: &Secured, of: Role, ppk: bool) -> Option<Secret> {
        match &self.eap {
            EapState::Done(Some(msk)) => Some(msk.clone()),
            EapState::Done(None) => Some(secured.sk_p(of, ppk).clone()),
            EapState::None | EapState::Running { .. } => None,
        }
    }

    /// May this packet be answered now?
    pub(super) fn check_eap(&mut self, connection: &Connection, packet: &Eap<'_>) -> Result<(), String> {
        let EapState::Running { method, last } = &mut self.eap else {
            return Err("the peer starts EAP without being asked".to_owned());
        };
        let alone = is_eap_only(connection) && self.remote_round == 0;
        if self.remote_round == 0 && !alone {
            return Err("the peer wants EAP before it has authenticated itself".to_owned());
        }
        self.eap_packets += 1;
        if self.eap_packets > EAP_PACKETS_MAX {
            return Err("EAP does not come to an end".to_owned());
        }
        *last = packet.code;
        if let (Eap::REQUEST, Some(kind)) = (packet.code, packet.method())
            && !EAP_NOT_METHODS.contains(&kind)
        {
            if alone && kind != EAP_TLS {
                return Err(format!("EAP method {kind} does not authenticate the peer, and nothing else did"));
            }
            *method = Some(kind);
        }
        Ok(())
    }

    pub(super) fn ask_eap(&mut self, ctx: &mut Context<'_>, start: &Start, packet: &Eap<'_>) -> Outcome {
        let step = EapStep {
            connection: start.connection().clone(),
            alternatives: Vec::new(),
            round: self.local_round,
            client: true,
            conversation: u64::from(start.id.0),
            client_id: self.local_id.clone().unwrap_or_else(|| address_id(start.path.local)),
            packet: packet.whole.to_vec(),
        };
        self.ask(ctx, Step::AskedEap, Question::Eap(Box::new(step)))
    }

    pub(super) fn take_eap(&mut self, ctx: &mut Context<'_>, start: &mut Start, answer: EapAnswer) -> Outcome {
        let EapState::Running { method, last } = self.eap else { return Outcome::Pending };
        let alone = is_eap_only(start.connection()) && self.remote_round == 0;
        match answer {
            EapAnswer::Packet(packet) => self.request(
                ctx,
                start,
                Inner::new(|chain| {
                    chain.eap(&packet);
                }),
            ),
            EapAnswer::Switch(..) => self.fail(ctx, start, "an answer does not fit its question".to_owned(), true),
            EapAnswer::Success { .. } if last != Eap::SUCCESS => {
                self.fail(ctx, start, "EAP succeeded before the peer said so".to_owned(), true)
            }
            EapAnswer::Success { msk, .. } if alone && (msk.is_none() || method != Some(EAP_TLS)) => {
                self.fail(ctx, start, "EAP alone has not authenticated the peer".to_owned(), true)
            }
            EapAnswer::Success { msk, .. } => {
                self.eap = EapState::Done(msk);
                self.sign(ctx, start, None)
            }
            EapAnswer::Failure(_, refusal) => {
                let reason = format!("EAP failed: {}", refusal.0);
                self.fail(ctx, start, reason, true)
            }
        }
    }
}

/// The responder is authenticated by EAP and nothing else (RFC 5998).
pub(super) fn is_eap_only(connection: &Connection) -> bool {
    connection.remote.first().is_some_and(|auth| matches!(auth.method, AuthMethod::Eap(_)))
}
