//! The responder when both ends are authenticated.

use std::sync::Arc;

use wire::ike::{CfgType, NotifyType};

use super::super::auth::AuthParts;
use super::super::init::{emit_addresses, status};
use super::super::secured::Ends;
use super::super::{Outcome, Up, configure};
use super::{Answering, address_id, extend};
use crate::child::{self, Refused};
use crate::config::{AuthMethod, Childless, Connection, Unique};
use crate::context::Context;
use crate::exchange::Inner;
use crate::output::{Level, Subsystem};
use crate::pool::Client;
use crate::sa::Established;

impl Answering {
    /// Both ends are authenticated: addresses, the Child SA, the last response.
    pub(super) fn finish(&mut self, ctx: &mut Context<'_>, connection: &Arc<Connection>, identity: Inner) -> Outcome {
        let (Some(remote), Some(first)) = (self.remote_id.take(), self.first.take()) else { return Outcome::Pending };
        let Ok(parts) = AuthParts::read(first.payloads()) else { return Outcome::Pending };
        let local_id = self.local_id.clone().unwrap_or_else(|| address_id(self.request.0.0));
        let who = self.eap_name.clone().unwrap_or_else(|| remote.id.clone());
        if connection.unique == Unique::Keep
            && !self.initial_contact
            && ctx.names.with_peer(&local_id, &who).next().is_some()
        {
            let reason = format!("[{who}] has an IKE SA already, and '{}' keeps that", connection.name);
            return self.refuse(ctx, &Refused::new(NotifyType::AUTHENTICATION_FAILED, reason));
        }
        // IKE SAs that this one replaces go in any case.
        let replaces =
            connection.unique == Unique::Replace || self.initial_contact && connection.unique != Unique::Never;
        let most = ctx.settings.ike_sas_per_identity_max;
        if !replaces && ctx.names.with_peer(&local_id, &who).count() >= most {
            let reason = format!("[{who}] has {most} IKE SAs, which is the limit; set 'unique = replace'");
            return self.refuse(ctx, &Refused::new(NotifyType::AUTHENTICATION_FAILED, reason));
        }
        let wishes = parts.cfg(CfgType::REQUEST).map(configure::read_request).unwrap_or_default();
        let lost = self.initial_contact && connection.unique != Unique::Never;
        let alone = lost || connection.unique == Unique::Replace;
        let client = Client { identity: &who, from: self.request.0.1, alone };
        let leases = configure::assign(ctx, connection, client, &wishes);
        let inner = extend(identity, |chain| self.emit_ppk(chain));
        let Some(mut secured) = self.secured.take() else { return Outcome::Pending };
        let mobike = self.mobike && connection.mobike;
        secured.peer.mobike = mobike;
        let nonces = (secured.nonce_i.clone(), secured.nonce_r.clone());
        let ends = Ends {
            connection: connection.clone(),
            local_id,
            remote_id: remote.id,
            eap_name: self.name.take().or_else(|| self.eap_name.as_ref().map(ToString::to_string)),
            virtual_local: Vec::new(),
            virtual_remote: leases.as_ref().map_or_else(|_| Vec::new(), Clone::clone),
        };
        let mut sa = secured.establish(ctx, ends);
        sa.learn_peer_addresses(first.payloads());
        if let Some(at) = self.valid_for.map(|valid_for| ctx.now + valid_for) {
            sa.certificates_end = Some(at);
            sa.reauth_at = Some(sa.reauth_at.map_or(at, |reauth_at| reauth_at.min(at)));
        }
        let gives_addresses = !sa.virtual_remote.is_empty();
        let inner = extend(inner, |chain| {
            let allowed = leases.and_then(|leases| {
                configure::emit_reply(ctx, &leases, chain);
                check_childless(connection, parts.has_sa)
            });
            let answered = match allowed {
                Err(refused) => Err(refused),
                Ok(false) => Ok(None),
                Ok(true) => {
                    let nonces = child::Nonces { i: &nonces.0, r: &nonces.1 };
                    child::answer_auth(ctx, &sa.parent(), nonces, first.payloads(), chain).map(Some)
                }
            };
            match answered {
                Ok(child) => sa.children.extend(child),
                Err(refused) => {
                    tell_childless(ctx, &sa, &refused);
                    refused.emit(chain);
                }
            }
            if mobike {
                status(chain, NotifyType::MOBIKE_SUPPORTED, &[]);
                emit_addresses(ctx, sa.path.local.ip(), chain);
            }
            if !connection.reauth_time.is_zero() && (is_client(connection) || gives_addresses) {
                let seconds = u32::try_from(connection.reauth_time.as_secs()).unwrap_or(u32::MAX);
                status(chain, NotifyType::AUTH_LIFETIME, &seconds.to_be_bytes());
            }
        });
        let (to, request) = self.request;
        sa.exchanges.respond(ctx, to, request, &inner);
        Outcome::Up(Box::new(Up {
            sa,
            children: Vec::new(),
            commands: Vec::new(),
            replaces: None,
            initial_contact: lost.then_some(self.began),
        }))
    }
}

/// Whether only the peer can start another authentication, for its method; a client with a virtual address is another case.
fn is_client(connection: &Connection) -> bool {
    connection.remote.iter().any(|auth| matches!(auth.method, AuthMethod::Eap(_)))
}

/// Whether a Child SA is to be made (RFC 6023).
fn check_childless(connection: &Connection, has_sa: bool) -> Result<bool, Refused> {
    match (connection.childless, has_sa) {
        (Childless::Force, true) => {
            Err(Refused::new(NotifyType::NO_ADDITIONAL_SAS, "the connection starts without a Child SA"))
        }
        (Childless::Never, false) => {
            Err(Refused::new(NotifyType::INVALID_SYNTAX, "a Child SA is missing, and the connection wants one"))
        }
        (_, has_sa) => Ok(has_sa),
    }
}

fn tell_childless(ctx: &mut Context<'_>, sa: &Established, refused: &Refused) {
    ctx.count(crate::task::counters::CHILD_REFUSED);
    let text = format!("the Child SA was refused with {}, the IKE SA stays: {}", refused.notify, refused.reason);
    ctx.log(Level::Warn, Subsystem::Child, Some(sa.id), text);
}
