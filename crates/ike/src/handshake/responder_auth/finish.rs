//! The responder when both ends are authenticated.

use std::sync::Arc;

use wire::ike::NotifyType;

use super::super::init::{emit_addresses, status};
use super::super::secured::AuthResult;
use super::super::{Up, configure};
use super::{Proof, Session, Step, address_id};
use crate::child;
use crate::config::{AuthMethod, Childless, Connection, Unique};
use crate::context::Context;
use crate::error::{IkeError, Mismatch};
use crate::exchange::Inner;
use crate::output::{Level, Subsystem};
use crate::pool::Client;
use crate::sa::Established;

impl Session {
    /// Both ends are authenticated: addresses, the Child SA, the last response.
    pub(super) fn finish(
        mut self: Box<Self>,
        ctx: &mut Context<'_>,
        connection: &Arc<Connection>,
        proof: &Proof,
    ) -> Step {
        let local_id = self.local_id.clone().unwrap_or_else(|| address_id(self.reply.to.local));
        // With EAP, IDi is only a claim. Leases and uniqueness depend on the authenticated
        // identity.
        let who = self.eap_name.clone().unwrap_or_else(|| self.remote_id.id.clone());
        let initial_contact = self.requests.initial_contact;
        if connection.unique == Unique::Keep
            && !initial_contact
            && ctx.names.with_peer(&local_id, &who).next().is_some()
        {
            let reason = format!("[{who}] has an IKE SA already, and '{}' keeps that", connection.name);
            return self.refuse(ctx, &IkeError::authentication(reason));
        }
        // IKE SAs that this one replaces go in any case.
        let replaces = connection.unique == Unique::Replace || initial_contact && connection.unique != Unique::Never;
        let most = ctx.settings.ike_sas_per_identity_max;
        if !replaces && ctx.names.with_peer(&local_id, &who).count() >= most {
            let reason = format!("[{who}] has {most} IKE SAs, which is the limit; set 'unique = replace'");
            return self.refuse(ctx, &IkeError::authentication(reason));
        }
        let lost = initial_contact && connection.unique != Unique::Never;
        let alone = lost || connection.unique == Unique::Replace;
        let client = Client { identity: &who, from: self.reply.to.remote, alone };
        let leases = configure::assign(ctx, connection, client, &self.requests.addresses);
        let mobike = self.requests.mobike && connection.mobike;
        self.secured.peer.mobike = mobike;
        let ends = AuthResult {
            connection: connection.clone(),
            local_id,
            remote_id: self.remote_id.id.clone(),
            eap_name: self.name.take().or_else(|| self.eap_name.as_ref().map(ToString::to_string)),
            virtual_local: Vec::new(),
            virtual_remote: leases.as_ref().map_or_else(|_| Vec::new(), Clone::clone),
        };
        // The whole response is written before anything comes up.
        let allowed = match &leases {
            Ok(_) => check_childless(connection, self.requests.child_sa),
            // Without an address the IKE SA comes up without a Child SA (RFC 7296 §3.15.4).
            Err(refused) => Err(refused.clone()),
        };
        let answer = match allowed {
            Ok(true) => {
                let parent = self.secured.parent(&ends);
                child::answer_auth(ctx, &parent, self.requests.message.payloads()).map(Some)
            }
            Ok(false) => Ok(None),
            Err(refused) => Err(refused),
        };
        let inner = Inner::new(|chain| {
            proof.emit(chain);
            self.emit_ppk(chain);
            configure::emit_reply(ctx, &ends.virtual_remote, chain);
            match &answer {
                Ok(Some(answer)) => answer.emit(ctx, chain, |_| ()),
                Ok(None) => (),
                Err(refused) => refused.emit(chain),
            }
            if mobike {
                status(chain, NotifyType::MOBIKE_SUPPORTED, &[]);
                emit_addresses(ctx, self.secured.path.local.ip(), chain);
            }
            if !connection.reauth_time.is_zero() && (is_client(connection) || !ends.virtual_remote.is_empty()) {
                let seconds = u32::try_from(connection.reauth_time.as_secs()).unwrap_or(u32::MAX);
                status(chain, NotifyType::AUTH_LIFETIME, &seconds.to_be_bytes());
            }
        });
        let inner = match inner {
            Ok(inner) => inner,
            Err(too_long) => {
                if let Ok(Some(answer)) = answer {
                    answer.agreement.abandon(ctx);
                }
                for leased in &ends.virtual_remote {
                    ctx.pools.release(leased);
                }
                return self.refuse(ctx, &too_long.into());
            }
        };
        let (nonce_i, nonce_r) = (self.secured.nonce_i.clone(), self.secured.nonce_r.clone());
        let mut sa = self.secured.establish(ctx, ends);
        sa.learn_peer_addresses(self.requests.message.payloads());
        if let Some(at) = self.valid_for.map(|valid_for| ctx.now + valid_for) {
            sa.certificates_end = Some(at);
            sa.reauth_at = Some(sa.reauth_at.map_or(at, |reauth_at| reauth_at.min(at)));
        }
        match answer {
            Ok(Some(answer)) => {
                let nonces = child::Nonces { i: &nonce_i, r: &nonce_r };
                let child = answer.agreement.install(ctx, &sa.parent(), nonces, &[], true);
                sa.children.push(child);
            }
            Ok(None) => (),
            Err(refused) => log_childless(ctx, &sa, &refused),
        }
        // After the installation, because the initiator may send ESP as soon as it has the
        // response.
        sa.exchanges.respond(ctx, &self.reply.to, self.reply.request, &inner);
        Step::Up(Box::new(Up {
            sa,
            children: Vec::new(),
            commands: Vec::new(),
            replaces: None,
            initial_contact: lost.then_some(self.began),
        }))
    }
}

/// Returns whether only the peer can start another authentication, for its method; a client with a
/// virtual address is another case.
fn is_client(connection: &Connection) -> bool {
    connection.remote.iter().any(|auth| matches!(auth.method, AuthMethod::Eap(_)))
}

/// Returns whether a Child SA should be created (RFC 6023).
fn check_childless(connection: &Connection, has_sa: bool) -> Result<bool, IkeError> {
    match (connection.childless, has_sa) {
        (Childless::Force, true) => {
            Err(IkeError::Configuration(Mismatch::ChildSas, "the connection starts without a Child SA".into()))
        }
        (Childless::Never, false) => Err(IkeError::violation("a Child SA is missing, and the connection requires one")),
        (_, has_sa) => Ok(has_sa),
    }
}

fn log_childless(ctx: &mut Context<'_>, sa: &Established, refused: &IkeError) {
    ctx.count(crate::task::counters::CHILD_REFUSED);
    let text = format!("the Child SA was refused with {}, the IKE SA stays: {refused}", refused.notify());
    ctx.log(Level::Warn, Subsystem::Child, Some(sa.id), text);
}
