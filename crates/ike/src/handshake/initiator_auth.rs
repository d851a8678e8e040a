//! The initiator from IKE_INTERMEDIATE to the end of IKE_AUTH.
//!
//! Rounds of both sides (RFC 4739) run in parallel: this host uses `connection.local`, the peer
//! `connection.remote`. The peer must be authenticated before
//! this host responds to an EAP method, unless the method itself does that (RFC 5998).
//!
//! Each step consumes a state ([`Authenticating`]) and returns the next one, so that every state
//! has the data that it needs.

mod eap;
mod end;
mod request;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crypto::ike::{KeInitiator, Secret};
use wire::ike::{AuthMethodId, CfgType, ExchangeType, Header, NotifyType};

use self::eap::{Conversation, EapKey, EapPacket};
pub(super) use self::request::sends_cert;
use super::auth::{AuthParts, IdPayload};
use super::init::{Requested, certificate_requests};
use super::initiator::Start;
use super::secured::Claim;
use super::{Ended, Secured, Up, configure, counters, intermediate, redirect};
use crate::child::Offer;
use crate::config::{AuthMethod, Connection};
use crate::context::Context;
use crate::error::IkeError;
use crate::exchange::{Arrival, Inner, Plain, Timeout, Unanswered};
use crate::identity::{IdPattern, Identity};
use crate::output::{CredentialRequest, CredentialResponse, IkeSpis, Path, RequestId, Signed, Verified, VirtualIp};
use crate::sa::{ChildRequest, Role};

/// States of the initiator after the key exchange.
pub(super) enum Authenticating {
    /// Waits for the response to IKE_INTERMEDIATE with the additional key exchange of this index.
    Intermediate(Box<Session>, usize, KeInitiator),
    /// Waits for the response to IKE_AUTH.
    Response(Box<Session>, Sent),
    /// Waits for the response to a credential request.
    Credentials(Box<Session>, RequestId, Purpose),
}

/// Result of a step.
pub(super) enum Step {
    /// Continues in this state.
    Wait(Authenticating),
    /// Both ends are authenticated.
    Up(Box<Up>),
    /// The handshake has failed or was redirected.
    Ended(Box<Ended>),
}

/// State common to all phases.
pub(super) struct Session {
    secured: Box<Secured>,
    /// Authorities of the peer's CERTREQ payloads; `None` without any.
    authorities: Option<Requested>,
    /// Current round of this host, and next round of the peer.
    local_round: usize,
    remote_round: usize,
    local_id: Option<Identity>,
    remote_id: Option<IdPayload>,
    first_sent: bool,
    ppk: Ppk,
    eap_packets: u32,
    offer: Option<(Offer, ChildRequest)>,
    valid_for: Option<Duration>,
    mobike: bool,
}

/// Contents of the pending IKE_AUTH request.
pub(super) enum Sent {
    /// Nothing: all rounds of this host are complete, the peer continues.
    Nothing,
    /// AUTH. A response without EAP completes the round.
    Auth,
    /// A request without AUTH, which starts EAP, or an EAP packet.
    Eap(Conversation),
    /// AUTH with the key of the EAP conversation, after EAP-Success.
    Proof(EapKey),
}

/// Purpose of the pending credential request.
pub(super) enum Purpose {
    /// The PPK of the connection.
    Ppk,
    /// AUTH of this host; after EAP with the key of the method.
    Sign(Option<EapKey>),
    /// AUTH without the PPK, in addition to the one with it.
    Plain(Option<EapKey>, Signed),
    /// Verification of the peer's AUTH in the response to this request.
    Verify(Received, Sent),
    /// The response to an EAP packet.
    Eap(Conversation),
}

/// Contents of an IKE_AUTH response besides the identity of the peer.
pub(super) struct Received {
    message: Plain,
    redirect: Option<Vec<u8>>,
    eap: Option<EapPacket>,
    /// Another authentication of the peer follows.
    more: bool,
    /// Virtual addresses for this host.
    addresses: Vec<VirtualIp>,
    /// Seconds until the peer requires reauthentication.
    auth_lifetime: Option<u32>,
}

/// Use of a PPK (RFC 8784).
#[derive(Clone, Copy, Eq, PartialEq)]
enum Ppk {
    /// There is no PPK, or both ends have agreed on its use.
    Settled,
    /// The next AUTH uses the PPK.
    Have,
    /// AUTH used the PPK; with `fallback` NO_PPK_AUTH was sent as well.
    Offered { fallback: bool },
}

impl Received {
    fn of(parts: &AuthParts<'_>, connection: &Connection, message: Plain) -> Self {
        let addresses = match parts.cfg(CfgType::REPLY) {
            Some(cfg) if !connection.vips.is_empty() => {
                configure::read_reply(cfg.attributes().map_while(Result::ok), connection.dns)
            }
            _ => Vec::new(),
        };
        let lifetime = parts.notify(NotifyType::AUTH_LIFETIME).and_then(|data| data.try_into().ok());
        Self {
            redirect: parts.notify(NotifyType::REDIRECT).map(<[u8]>::to_vec),
            eap: parts.eap.as_ref().map(EapPacket::of),
            more: parts.has(NotifyType::ANOTHER_AUTH_FOLLOWS),
            addresses,
            auth_lifetime: lifetime.map(u32::from_be_bytes),
            message,
        }
    }
}

impl Authenticating {
    /// Starts the exchange after IKE_SA_INIT.
    pub(super) fn begin(
        secured: Secured,
        authorities: Option<Requested>,
        ctx: &mut Context<'_>,
        start: &mut Start,
    ) -> Step {
        let session = Box::new(Session {
            secured: Box::new(secured),
            authorities,
            local_round: 0,
            remote_round: 0,
            local_id: None,
            remote_id: None,
            first_sent: false,
            ppk: Ppk::Settled,
            eap_packets: 0,
            offer: None,
            valid_for: None,
            mobike: false,
        });
        session.start_intermediate(ctx, start, 0)
    }

    fn session(&self) -> &Session {
        match self {
            Self::Intermediate(session, ..) | Self::Response(session, _) | Self::Credentials(session, ..) => session,
        }
    }

    fn session_mut(&mut self) -> &mut Session {
        match self {
            Self::Intermediate(session, ..) | Self::Response(session, _) | Self::Credentials(session, ..) => session,
        }
    }

    fn into_session(self) -> Box<Session> {
        match self {
            Self::Intermediate(session, ..) | Self::Response(session, _) | Self::Credentials(session, ..) => session,
        }
    }

    /// The message layer.
    #[cfg(any(test, feature = "testkit"))]
    pub(super) fn exchanges(&mut self) -> &mut crate::exchange::Exchanges {
        &mut self.session_mut().secured.exchanges
    }

    /// ID of the pending credential request.
    pub(super) fn request_id(&self) -> Option<RequestId> {
        match self {
            Self::Credentials(_, request_id, _) => Some(*request_id),
            Self::Intermediate(..) | Self::Response(..) => None,
        }
    }

    pub(super) fn spis(&self) -> IkeSpis {
        self.session().secured.spis
    }

    pub(super) fn unanswered(&self) -> Option<Unanswered> {
        self.session().secured.exchanges.unanswered()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.session().secured.exchanges.deadline()
    }

    /// Releases the table entries of the handshake.
    pub(super) fn abandon(&mut self, ctx: &mut Context<'_>) {
        self.session_mut().abandon(ctx);
    }

    pub(super) fn handle_timeout(mut self, ctx: &mut Context<'_>, start: &mut Start) -> Step {
        match self.session_mut().secured.exchanges.handle_timeout(ctx, &start.path) {
            Timeout::Nothing => Step::Wait(self),
            Timeout::GaveUp => self.into_session().fail(ctx, start, &"no response from the peer any more", false),
        }
    }

    pub(super) fn handle(
        mut self,
        ctx: &mut Context<'_>,
        start: &mut Start,
        from: &Path,
        header: &Header,
        datagram: &[u8],
    ) -> Step {
        let exchanges = &mut self.session_mut().secured.exchanges;
        // A peer that has completed IKE_AUTH may send a request before its response has arrived
        // here: it is dropped, and the peer retransmits it.
        let response = match exchanges.receive(ctx, from, header, datagram, |_| false) {
            Arrival::Response(response) => response,
            Arrival::Nothing => return Step::Wait(self),
            Arrival::Request(_) => {
                let what = "a request of an exchange that an initiator does not accept";
                return self.into_session().fail_internal(ctx, start, what);
            }
        };
        match self {
            Self::Intermediate(session, index, ke) => session.take_intermediate(ctx, start, &response, index, ke),
            Self::Response(session, sent) => session.take_response(ctx, start, sent, response),
            Self::Credentials(session, ..) => {
                session.fail_internal(ctx, start, "a response while no request is outstanding")
            }
        }
    }

    /// Handles the response to the pending credential request.
    pub(super) fn answer(
        self,
        ctx: &mut Context<'_>,
        start: &mut Start,
        request_id: RequestId,
        answer: CredentialResponse,
    ) -> Step {
        match self {
            Self::Credentials(session, pending, purpose) if pending == request_id => {
                session.answer(ctx, start, purpose, answer)
            }
            state => {
                let what = "a response to a credential request that is not pending";
                state.into_session().fail_internal(ctx, start, what)
            }
        }
    }
}

impl Session {
    fn start_intermediate(mut self: Box<Self>, ctx: &mut Context<'_>, start: &mut Start, index: usize) -> Step {
        let Some(method) = self.secured.suite.additional.get(index).copied() else {
            return self.start_auth(ctx, start);
        };
        let ke = match method.generate() {
            Ok(ke) => ke,
            Err(error) => return self.fail_with(ctx, start, &IkeError::no_key_pair(error), false),
        };
        let inner = Inner::new(|chain| {
            chain.ke(method.id(), ke.public());
        });
        let inner = match inner {
            Ok(inner) => inner,
            Err(too_long) => return self.fail(ctx, start, &too_long, false),
        };
        let secured = &mut self.secured;
        // Before `request`, which advances the message ID that IntAuth covers (RFC 9242 §3.3.2).
        secured.note_request(secured.exchanges.next_request_id(), inner.first, &inner.bytes);
        secured.exchanges.request(ctx, &start.path, ExchangeType::IKE_INTERMEDIATE, inner);
        Step::Wait(Authenticating::Intermediate(self, index, ke))
    }

    fn take_intermediate(
        mut self: Box<Self>,
        ctx: &mut Context<'_>,
        start: &mut Start,
        response: &Plain,
        index: usize,
        ke: KeInitiator,
    ) -> Step {
        match self.finish_intermediate(ctx, response, ke) {
            Ok(()) => self.start_intermediate(ctx, start, index + 1),
            Err(error) => self.fail_with(ctx, start, &error, false),
        }
    }

    fn finish_intermediate(
        &mut self,
        ctx: &mut Context<'_>,
        response: &Plain,
        ke: KeInitiator,
    ) -> Result<(), IkeError> {
        let public = intermediate::response_ke(response, ke.method().id())?;
        let shared = ke.finish(public.data).map_err(IkeError::ke_payload)?;
        // Before `update_keys`: IntAuth uses the keys that protected the response.
        self.secured.note_response(response.message_id, (response.first, &response.bytes));
        self.secured.update_keys(ctx, &shared)
    }

    fn start_auth(mut self: Box<Self>, ctx: &mut Context<'_>, start: &mut Start) -> Step {
        // IntAuth contains the ID of the first IKE_AUTH in every round (RFC 9242 §3.3.2).
        self.secured.auth_id = Some(self.secured.exchanges.next_request_id());
        let connection = start.connection();
        match connection.ppk_id.as_ref().and_then(IdPattern::exact) {
            Some(name) if self.secured.peer.ppk => {
                let request = CredentialRequest::Ppk(name.clone());
                self.request_credentials(ctx, Purpose::Ppk, request)
            }
            Some(_) if connection.ppk_required => {
                self.fail(ctx, start, &"the peer does not support post-quantum preshared keys", false)
            }
            None if connection.ppk_required => {
                let reason = "ppk_required needs a ppk_id that names one key to initiate";
                self.fail(ctx, start, &reason, false)
            }
            _ => self.start_round(ctx, start),
        }
    }

    fn request_credentials(
        self: Box<Self>,
        ctx: &mut Context<'_>,
        purpose: Purpose,
        request: CredentialRequest,
    ) -> Step {
        let request_id = ctx.request_credentials(self.secured.id, request);
        Step::Wait(Authenticating::Credentials(self, request_id, purpose))
    }

    fn answer(
        self: Box<Self>,
        ctx: &mut Context<'_>,
        start: &mut Start,
        purpose: Purpose,
        answer: CredentialResponse,
    ) -> Step {
        match (purpose, answer) {
            (Purpose::Ppk, CredentialResponse::Ppk(ppk)) => self.take_ppk(ctx, start, ppk),
            (Purpose::Sign(key), CredentialResponse::Signed(Ok(signed))) => self.take_signed(ctx, start, key, signed),
            (Purpose::Plain(key, signed), CredentialResponse::Signed(Ok(plain))) => {
                self.send_auth(ctx, start, key, (signed, Some(plain)))
            }
            (Purpose::Sign(_) | Purpose::Plain(..), CredentialResponse::Signed(Err(refusal))) => {
                self.fail(ctx, start, &format!("this host cannot authenticate: {}", refusal.0), true)
            }
            (Purpose::Verify(received, sent), CredentialResponse::Verified(Ok(verified))) => {
                self.take_verified(ctx, start, received, sent, &verified)
            }
            (Purpose::Verify(..), CredentialResponse::Verified(Err(refusal))) => {
                ctx.count(counters::AUTH_FAILED);
                self.fail(ctx, start, &format!("the peer cannot be authenticated: {}", refusal.0), true)
            }
            (Purpose::Eap(conversation), CredentialResponse::Eap(answer)) => {
                self.take_eap(ctx, start, conversation, answer)
            }
            _ => self.fail_internal(ctx, start, "a response does not fit its credential request"),
        }
    }

    fn take_ppk(mut self: Box<Self>, ctx: &mut Context<'_>, start: &mut Start, ppk: Option<Secret>) -> Step {
        match ppk {
            Some(ppk) => {
                self.secured.mix(&ppk);
                self.ppk = Ppk::Have;
            }
            None if start.connection().ppk_required => {
                return self.fail(ctx, start, &"the post-quantum preshared key is not known here", true);
            }
            None => (),
        }
        self.start_round(ctx, start)
    }

    /// Starts the next round of this host.
    fn start_round(mut self: Box<Self>, ctx: &mut Context<'_>, start: &mut Start) -> Step {
        let Some(auth) = start.connection().local.get(self.local_round) else {
            return self.send(ctx, start, None, Sent::Nothing);
        };
        if matches!(auth.method, AuthMethod::Eap(_)) {
            self.local_id = Some(own_id(&auth.id).unwrap_or_else(|| address_id(start.path.local)));
            return self.send(ctx, start, None, Sent::Eap(Conversation::default()));
        }
        self.sign(ctx, start, None, None)
    }

    fn take_response(
        mut self: Box<Self>,
        ctx: &mut Context<'_>,
        start: &mut Start,
        sent: Sent,
        response: Plain,
    ) -> Step {
        let parts = match AuthParts::read(response.payloads()) {
            Ok(parts) => parts,
            Err(refused) => return self.fail(ctx, start, &refused, true),
        };
        if let Some(kind) = fatal(&parts, self.remote_round) {
            let reason = if kind == NotifyType::AUTHENTICATION_FAILED {
                ctx.count(counters::AUTH_REFUSED);
                "the peer answers AUTHENTICATION_FAILED: it does not accept this host's identity or credentials, or \
                 has no connection for it"
                    .to_owned()
            } else {
                format!("the peer answers {kind}")
            };
            return self.fail(ctx, start, &reason, false);
        }
        if let Some(authorities) = certificate_requests(response.payloads()) {
            self.authorities.get_or_insert_with(Requested::default).extend(authorities);
        }
        self.mobike |= parts.has(NotifyType::MOBIKE_SUPPORTED);
        // Before `verify`, because the SK_p of the peer's AUTH depends on the use of the PPK.
        if let (Sent::Auth | Sent::Proof(_), Ppk::Offered { fallback }) = (&sent, self.ppk) {
            let with = parts.has(NotifyType::PPK_IDENTITY);
            if !with && !fallback {
                return self.fail(ctx, start, &"the peer does not have the post-quantum preshared key", true);
            }
            self.ppk = Ppk::Settled;
            self.secured.ppk = with;
        }
        let required = match self.verify(start, &sent, &parts) {
            Ok(required) => required,
            Err(reason) => return self.fail(ctx, start, &reason, true),
        };
        // The required payloads are copied, because they borrow the message, which is kept.
        let copy = Plain { bytes: response.bytes.clone(), ..response };
        let received = Received::of(&parts, start.connection(), copy);
        match required {
            Some(required) => self.request_credentials(ctx, Purpose::Verify(received, sent), required),
            None => self.proceed(ctx, start, received, sent),
        }
    }

    /// Returns the request to verify the peer's AUTH, or `None` if the response has no AUTH.
    fn verify(
        &mut self,
        start: &Start,
        sent: &Sent,
        parts: &AuthParts<'_>,
    ) -> Result<Option<CredentialRequest>, IkeError> {
        let secured = &self.secured;
        let after_eap = match sent {
            Sent::Proof(key) => Some(key),
            Sent::Nothing | Sent::Auth | Sent::Eap(_) => None,
        };
        if let Some(id) = &parts.id_r
            && after_eap.is_none()
            // Without AUTH nothing proves an IDr: it must not replace one that was proven.
            && (parts.auth.is_some() || self.remote_id.is_none())
        {
            self.remote_id = Some(id.clone());
        }
        let Some((method, auth)) = &parts.auth else {
            // EAP must end with AUTH by the key of the method (RFC 7296 §2.16).
            return match after_eap {
                Some(_) => Err(IkeError::violation("the response after EAP has no AUTH")),
                None => Ok(None),
            };
        };
        let Some(remote) = &self.remote_id else { return Err(IkeError::violation("the peer sends AUTH without IDr")) };
        let connection = start.connection();
        let round = if after_eap.is_some() { self.remote_round.saturating_sub(1) } else { self.remote_round };
        if round >= connection.remote.len() {
            return Err(IkeError::violation("the peer authenticates itself more often than configured"));
        }
        if after_eap.is_some() && *method != AuthMethodId::PSK {
            return Err(IkeError::violation("the peer's AUTH after EAP is not a shared key message integrity code"));
        }
        let claim = Claim {
            remote_id: &remote.id,
            id_body: &remote.body,
            local_id: self.local_id.clone(),
            method: *method,
            auth: auth.clone(),
            certs: parts.certs.clone(),
            eap_msk: after_eap.map(|key| key.of(secured, Role::Responder, secured.ppk)),
        };
        let request = secured.verify_request(vec![connection.clone()], round, claim, secured.ppk);
        Ok(Some(CredentialRequest::Verify(Box::new(request))))
    }

    fn take_verified(
        mut self: Box<Self>,
        ctx: &mut Context<'_>,
        start: &mut Start,
        received: Received,
        sent: Sent,
        verified: &Verified,
    ) -> Step {
        // AUTH after EAP belongs to a round that was counted before EAP. With EAP alone (RFC 5998)
        // it is the first AUTH of the peer.
        if !matches!(sent, Sent::Proof(_)) || self.remote_round == 0 {
            self.remote_round += 1;
        }
        self.valid_for = earlier(self.valid_for, verified.valid_for);
        self.proceed(ctx, start, received, sent)
    }

    /// Continues after the peer's AUTH was verified, or if the response has none.
    fn proceed(mut self: Box<Self>, ctx: &mut Context<'_>, start: &mut Start, received: Received, sent: Sent) -> Step {
        // Before the peer is authenticated, an impostor could divert this host to another gateway.
        if let Some(data) = received.redirect.as_ref().filter(|_| self.remote_round > 0) {
            return match redirect::target(data, None) {
                Ok(to) => {
                    self.say_goodbye(ctx, start, None);
                    self.abandon(ctx);
                    Step::Ended(start.redirect(ctx, to))
                }
                Err(reason) => self.fail(ctx, start, &reason, true),
            };
        }
        match (received.eap, sent) {
            (Some(packet), Sent::Eap(conversation)) => return self.continue_eap(ctx, start, conversation, packet),
            (Some(_), _) => {
                return self.fail(ctx, start, &"the peer starts EAP without a request", true);
            }
            (None, Sent::Eap(_)) => return self.fail(ctx, start, &"the peer does not start EAP", true),
            (None, Sent::Auth | Sent::Proof(_)) => self.local_round += 1,
            (None, Sent::Nothing) => (),
        }
        let connection = start.connection();
        if self.local_round < connection.local.len() {
            return self.start_round(ctx, start);
        }
        let missing = connection.remote.len() - self.remote_round.min(connection.remote.len());
        match (received.more, missing) {
            (true, 1..) => self.send(ctx, start, None, Sent::Nothing),
            (true, 0) => self.fail(ctx, start, &"the peer announces more authentications than configured", true),
            (false, 1..) => self.fail(ctx, start, &"the peer did not authenticate itself", true),
            (false, 0) => self.finish(ctx, start, Received { eap: None, ..received }),
        }
    }
}

/// Returns the error notification of a response if it ends the handshake. Others only concern the
/// Child SA (RFC 7296 §1.2).
fn fatal(parts: &AuthParts<'_>, remote_round: usize) -> Option<NotifyType> {
    let kind = parts.error()?;
    let always = [
        NotifyType::AUTHENTICATION_FAILED,
        NotifyType::INVALID_SYNTAX,
        NotifyType::UNSUPPORTED_CRITICAL_PAYLOAD,
        NotifyType::INVALID_MAJOR_VERSION,
        NotifyType::INVALID_IKE_SPI,
    ];
    // An error about the Child SA comes with AUTH. Without AUTH, EAP or an earlier round, it
    // refuses the IKE SA.
    let alone = parts.auth.is_none() && parts.eap.is_none() && remote_round == 0;
    (alone || always.contains(&kind)).then_some(kind)
}

/// Returns the identity of a pattern without wildcards.
pub(super) fn own_id(pattern: &IdPattern) -> Option<Identity> {
    pattern.exact().cloned()
}

/// An address as identity.
pub(super) fn address_id(addr: SocketAddr) -> Identity {
    Identity::of_addr(addr.ip())
}

/// Returns the shorter of two optional times.
pub(super) fn earlier(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
