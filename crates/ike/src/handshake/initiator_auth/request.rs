//! IKE_AUTH requests of the initiator.

use wire::ike::{Chain, ExchangeType, NotifyType, PayloadType};

use super::super::auth::ppk_identity;
use super::super::configure;
use super::super::init::{emit_addresses, emit_certreq, status};
use super::super::secured::{AuthResult, AuthSecrets};
use super::eap::{EapKey, is_eap_only};
use super::{Authenticating, Ppk, Purpose, Sent, Session, Start, Step, address_id, own_id};
use crate::child::Offer;
use crate::config::{AuthMethod, ChildMode, Childless, Connection, SendCert, Unique};
use crate::context::Context;
use crate::exchange::{Inner, TooLong};
use crate::output::{CredentialRequest, Signed};
use crate::sa::{ChildRequest, Role};

impl Session {
    /// Requests AUTH of this host: after EAP with `key`, and without the PPK where `plain_of` is
    /// the one with it.
    pub(super) fn sign(
        self: Box<Self>,
        ctx: &mut Context<'_>,
        start: &Start,
        key: Option<EapKey>,
        plain_of: Option<Signed>,
    ) -> Step {
        let (secured, connection) = (&self.secured, start.connection());
        let with_ppk = secured.ppk || (self.ppk == Ppk::Have && plain_of.is_none());
        let msk = key.as_ref().map(|key| key.of(secured, Role::Initiator, with_ppk));
        let local = connection.local.get(self.local_round);
        let local_id = match (&msk, local) {
            (Some(_), _) => self.local_id.clone(),
            (None, Some(auth)) => {
                own_id(&auth.id).or_else(|| (auth.method == AuthMethod::Psk).then(|| address_id(start.path.local)))
            }
            (None, None) => None,
        };
        let known = self.remote_id.as_ref().map(|id| id.id.clone());
        let remote_id = known.or_else(|| connection.remote.first().and_then(|auth| own_id(&auth.id)));
        let request = secured.sign_request(
            connection,
            self.local_round,
            (local_id, remote_id),
            self.authorities.as_ref(),
            AuthSecrets { eap_msk: msk, ppk: with_ppk },
        );
        let purpose = match plain_of {
            None => Purpose::Sign(key),
            Some(signed) => Purpose::Plain(key, signed),
        };
        self.request_credentials(ctx, purpose, CredentialRequest::Sign(Box::new(request)))
    }

    pub(super) fn take_signed(
        self: Box<Self>,
        ctx: &mut Context<'_>,
        start: &mut Start,
        key: Option<EapKey>,
        signed: Signed,
    ) -> Step {
        // Unless the PPK is required, a second AUTH without it goes into NO_PPK_AUTH (RFC 8784 §3).
        // A responder without the PPK verifies that one.
        if self.ppk == Ppk::Have && !start.connection().ppk_required {
            return self.sign(ctx, start, key, Some(signed));
        }
        self.send_auth(ctx, start, key, (signed, None))
    }

    /// Sends IKE_AUTH with AUTH, which proves the key of EAP if there is one.
    pub(super) fn send_auth(
        self: Box<Self>,
        ctx: &mut Context<'_>,
        start: &mut Start,
        key: Option<EapKey>,
        signed: (Signed, Option<Signed>),
    ) -> Step {
        self.send(ctx, start, Some(signed), key.map_or(Sent::Auth, Sent::Proof))
    }

    /// Sends IKE_AUTH: with AUTH, or without it to start EAP or to let the peer continue.
    pub(super) fn send(
        mut self: Box<Self>,
        ctx: &mut Context<'_>,
        start: &mut Start,
        signed: Option<(Signed, Option<Signed>)>,
        sent: Sent,
    ) -> Step {
        let connection = start.connection().clone();
        // AUTH after EAP belongs to the IDi that started the round, which must not be sent again.
        let new_round = self.local_round < connection.local.len() && !matches!(sent, Sent::Proof(_));
        if let (Some((signed, _)), true) = (&signed, new_round) {
            self.local_id = Some(signed.local_id.clone());
        }
        let first = !std::mem::replace(&mut self.first_sent, true);
        if first {
            self.prepare_offer(ctx, start);
        }
        // A copy, because the state changes before the payloads are written.
        let ppk = self.ppk;
        if signed.is_some() && ppk == Ppk::Have {
            let fallback = signed.as_ref().is_some_and(|(_, plain)| plain.is_some());
            self.ppk = Ppk::Offered { fallback };
        }
        let more = signed.is_some() && self.local_round + 1 < connection.local.len();
        let initial_contact = first && self.is_initial_contact(ctx, start);
        let inner = Inner::new(|chain| {
            if let (true, Some(id)) = (new_round, &self.local_id) {
                chain.id(PayloadType::IDi, id.kind, &id.data);
            }
            if let Some((signed, _)) = signed.as_ref().filter(|_| sends_cert(&connection, self.authorities.is_some())) {
                signed.certs.iter().for_each(|(encoding, cert)| {
                    chain.cert(*encoding, cert);
                });
            }
            if first {
                if initial_contact {
                    status(chain, NotifyType::INITIAL_CONTACT, &[]);
                }
                emit_certreq(ctx, [&*connection], chain);
                if let Some(id) = connection.remote.first().and_then(|auth| own_id(&auth.id)) {
                    chain.id(PayloadType::IDr, id.kind, &id.data);
                }
            }
            if let Some((signed, plain)) = &signed {
                chain.auth(signed.method, &signed.auth);
                if let (Ppk::Have, Some(name)) = (ppk, connection.ppk_id.as_ref().and_then(own_id)) {
                    status(chain, NotifyType::PPK_IDENTITY, &ppk_identity(&name));
                    if let Some(plain) = plain {
                        status(chain, NotifyType::NO_PPK_AUTH, &plain.auth);
                    }
                }
            }
            if first {
                self.emit_first(ctx, start, chain);
            }
            if more {
                status(chain, NotifyType::ANOTHER_AUTH_FOLLOWS, &[]);
            }
        });
        self.request(ctx, start, inner, sent)
    }

    /// Payloads of the first IKE_AUTH besides identities.
    fn emit_first(&self, ctx: &Context<'_>, start: &Start, chain: &mut Chain<'_>) {
        let connection = start.connection();
        configure::emit_request(connection, &start.initiation.addresses, chain);
        if let Some((offer, _)) = &self.offer {
            offer.emit(ctx, chain);
        }
        if is_eap_only(connection) {
            status(chain, NotifyType::EAP_ONLY_AUTHENTICATION, &[]);
        }
        status(chain, NotifyType::MULTIPLE_AUTH_SUPPORTED, &[]);
        if connection.mobike {
            status(chain, NotifyType::MOBIKE_SUPPORTED, &[]);
            emit_addresses(ctx, start.path.local.ip(), chain);
        }
    }

    /// Sends IKE_AUTH, unless it is too long.
    pub(super) fn request(
        mut self: Box<Self>,
        ctx: &mut Context<'_>,
        start: &mut Start,
        inner: Result<Inner, TooLong>,
        sent: Sent,
    ) -> Step {
        let inner = match inner {
            Ok(inner) => inner,
            Err(too_long) => return self.fail(ctx, start, &too_long, true),
        };
        self.secured.exchanges.request(ctx, &start.path, ExchangeType::IKE_AUTH, inner);
        Step::Wait(Authenticating::Response(self, sent))
    }

    /// Chooses what is created with the IKE SA: no Child SA if both peers support that.
    fn prepare_offer(&mut self, ctx: &mut Context<'_>, start: &mut Start) {
        let secured = &self.secured;
        let connection = start.connection().clone();
        let wanted = start.initiation.children.is_empty();
        let childless = match connection.childless {
            Childless::Force => true,
            Childless::Prefer => secured.peer.childless,
            Childless::Allow | Childless::Never => wanted && secured.peer.childless,
        };
        if childless {
            return;
        }
        let request = if wanted {
            let usable = |child: &&std::sync::Arc<crate::config::ChildConfig>| {
                !matches!(child.mode, ChildMode::Pass | ChildMode::Drop)
            };
            let Some(config) = connection.children.iter().find(usable) else { return };
            ChildRequest { config: config.clone(), packet: None, cpu: None, command: None }
        } else {
            start.initiation.children.remove(0)
        };
        // Identities are determined later; an offer depends on addresses only.
        let ends = AuthResult {
            connection,
            local_id: address_id(secured.path.local),
            remote_id: address_id(secured.path.remote),
            eap_name: None,
            virtual_local: Vec::new(),
            virtual_remote: Vec::new(),
        };
        self.offer = Some((Offer::for_auth(ctx, &secured.parent(&ends), &request), request));
    }

    /// This host remembers no other IKE SA with the peer, and makes none.
    fn is_initial_contact(&self, ctx: &mut Context<'_>, start: &Start) -> bool {
        let connection = start.connection();
        let remote = connection.remote.first().and_then(|auth| own_id(&auth.id));
        let (Some(local), Some(remote)) = (&self.local_id, remote) else { return false };
        // `begin_contact` must be the last condition, because it registers the handshake.
        connection.unique != Unique::Never
            && start.initiation.replaces.is_none()
            && ctx.names.begin_contact(self.secured.id, (local.clone(), remote))
    }
}

/// True if certificates go with AUTH.
pub(in crate::handshake) fn sends_cert(connection: &Connection, asked: bool) -> bool {
    match connection.send_cert {
        SendCert::Always => true,
        SendCert::IfAsked => asked,
        SendCert::Never => false,
    }
}
