//! How the handshake of the initiator ends: with an IKE SA or without.

use wire::ike::{ExchangeType, NotifyType};

use super::super::secured::AuthResult;
use super::super::{Up, configure};
use super::{Received, Session, Start, Step, address_id};
use crate::context::Context;
use crate::error::IkeError;
use crate::exchange::Inner;
use crate::output::{Level, Subsystem};

impl Session {
    /// Both ends are authenticated.
    pub(super) fn finish(mut self: Box<Self>, ctx: &mut Context<'_>, start: &mut Start, received: Received) -> Step {
        let connection = start.connection().clone();
        let virtual_local = match configure::usable(ctx, received.addresses) {
            Ok(virtual_local) => virtual_local,
            Err(reason) => {
                // The peer believes that the IKE SA is up.
                self.say_goodbye(ctx, start, None);
                return self.fail(ctx, start, &reason, false);
            }
        };
        let mut secured = self.secured;
        secured.path = start.path;
        secured.peer.mobike = self.mobike && connection.mobike;
        // The keys of the first Child SA use the nonces of IKE_SA_INIT (RFC 7296 §2.17).
        let (nonce_i, nonce_r) = (secured.nonce_i.clone(), secured.nonce_r.clone());
        let ends = AuthResult {
            local_id: self.local_id.unwrap_or_else(|| address_id(start.path.local)),
            remote_id: self.remote_id.map_or_else(|| address_id(start.path.remote), |id| id.id),
            eap_name: None,
            virtual_local,
            virtual_remote: Vec::new(),
            connection,
        };
        let mut sa = secured.establish(ctx, ends);
        sa.learn_peer_addresses(received.message.payloads());
        if let Some(seconds) = received.auth_lifetime {
            sa.auth_lifetime(ctx, seconds);
        }
        if let Some(at) = self.valid_for.map(|valid_for| ctx.now + valid_for) {
            sa.certificates_end = Some(at);
            sa.reauth_at = Some(sa.reauth_at.map_or(at, |reauth_at| reauth_at.min(at)));
        }
        if let Some((offer, request)) = self.offer {
            let nonces = crate::child::Nonces { i: &nonce_i, r: &nonce_r };
            match offer.finish_auth(ctx, &sa.parent(), nonces, received.message.payloads()) {
                Ok(child) => {
                    let new = child.id;
                    sa.children.push(child);
                    sa.granted(ctx, &request, new);
                }
                Err(fault) => sa.child_failed(ctx, &request, fault),
            }
        }
        Step::Up(Box::new(Up {
            sa,
            children: std::mem::take(&mut start.initiation.children),
            commands: std::mem::take(&mut start.initiation.commands),
            replaces: start.initiation.replaces,
            initial_contact: None,
        }))
    }

    /// Releases the table entries of the handshake.
    pub(super) fn abandon(&mut self, ctx: &mut Context<'_>) {
        if let Some((offer, _)) = self.offer.take() {
            offer.abandon(ctx);
        }
    }

    /// A last message, for which no answer is waited: the responder may think that the IKE SA is up
    /// (RFC 7296 §2.21.2).
    pub(super) fn say_goodbye(&mut self, ctx: &mut Context<'_>, start: &Start, error: Option<NotifyType>) {
        let exchanges = &mut self.secured.exchanges;
        // The window is one request. A responder that has not received the cancelled request drops
        // this message as out of order.
        exchanges.forget_request();
        let inner = error.map_or_else(Inner::delete_ike, |kind| Inner::notify(kind, &[]));
        exchanges.request(ctx, &start.path, ExchangeType::INFORMATIONAL, inner);
    }

    /// The end because of an error, which is counted when it is a defect of this program.
    pub(super) fn fail_with(
        self: Box<Self>,
        ctx: &mut Context<'_>,
        start: &mut Start,
        error: &IkeError,
        tell: bool,
    ) -> Step {
        ctx.note_internal(start.id, error);
        self.fail(ctx, start, error, tell)
    }

    /// The end in a state that only a defect of this program can cause.
    pub(super) fn fail_internal(self: Box<Self>, ctx: &mut Context<'_>, start: &mut Start, what: &'static str) -> Step {
        self.fail_with(ctx, start, &IkeError::Internal(what.into()), true)
    }

    /// The end: for the Child SA of the first IKE_AUTH as well. `tell` the peer when it may believe
    /// that all is well, or waits for an IKE_AUTH that will not come.
    pub(super) fn fail(
        mut self: Box<Self>,
        ctx: &mut Context<'_>,
        start: &mut Start,
        reason: &dyn std::fmt::Display,
        tell: bool,
    ) -> Step {
        if tell {
            self.say_goodbye(ctx, start, Some(NotifyType::AUTHENTICATION_FAILED));
        }
        // The offer may have taken its request out of the list. Without this, its command would get
        // no result.
        if let Some((_, request)) = &self.offer {
            start.initiation.children.insert(0, request.clone());
        }
        self.abandon(ctx);
        let text = format!("authentication with {} failed: {reason}", start.path.remote);
        ctx.log(Level::Debug, Subsystem::Ike, Some(start.id), text);
        Step::Ended(Box::new(start.over(reason.to_string())))
    }
}
