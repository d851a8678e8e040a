//! The responder from the first encrypted message to the end of IKE_AUTH.
//!
//! Which connection it is shows only when the peer has sent its identity: until then all that its
//! addresses and the chosen suite admit are candidates. An identity that is claimed with AUTH is
//! checked by the holder of credentials, which names the connection.
//!
//! One type per state ([`Answering`]): each step consumes a state and returns the next one, so that
//! none can lack what it needs.

mod candidates;
mod eap;
mod finish;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::ike::Secret;
use wire::ike::{AuthMethodId, CertEncoding, Chain, ExchangeType, NotifyType, PayloadType};

pub(super) use self::candidates::Candidates;
use self::eap::{Conversation, EapKey, EapResponse};
use super::auth::{AuthParts, IdPayload, admits_ppk, parse_ppk_identity};
use super::init::{Requested, certificate_requests, status};
use super::initiator_auth::{address_id, earlier, own_id, sends_cert};
use super::secured::{AuthSecrets, Claim};
use super::{Secured, Up, configure, counters};
use crate::config::{AuthMethod, Connection};
use crate::context::Context;
use crate::error::{IkeError, Mismatch};
use crate::exchange::{Exchanges, Inner, Plain, TooLong};
use crate::identity::Identity;
use crate::nat;
use crate::output::{CredentialRequest, CredentialResponse, Path, RequestId, Signed, Verified};
use crate::sa::Role;

/// States of the responder after the key exchange.
pub(super) enum Answering {
    /// IKE_INTERMEDIATE with the additional key exchange of this index.
    Intermediate(Box<Keyed>, usize),
    /// The first request of IKE_AUTH.
    Start(Box<Keyed>),
    /// A further request of IKE_AUTH.
    Request(Box<Session>, Expected),
    /// The answer to a question about credentials.
    Credentials(Box<Session>, RequestId, Purpose),
}

/// Result of a step.
pub(super) enum Step {
    /// Continues in this state.
    Wait(Answering),
    /// Both ends are authenticated.
    Up(Box<Up>),
    /// The peer was refused; the message layer repeats the answer to retransmissions.
    Refused(Box<Exchanges>, String),
    /// It is over without an answer.
    Ended(String),
}

/// A responder with keys that has not seen IKE_AUTH.
pub(super) struct Keyed {
    secured: Secured,
    candidates: Candidates,
    /// Time of IKE_SA_INIT.
    began: Instant,
}

/// A responder that has seen IKE_AUTH.
pub(super) struct Session {
    secured: Secured,
    /// One once the peer is authenticated.
    candidates: Candidates,
    /// Time of IKE_SA_INIT.
    began: Instant,
    reply: Reply,
    requests: ClientRequests,
    /// Round of the peer that comes next, and of this host.
    remote_round: usize,
    local_round: usize,
    local_id: Option<Identity>,
    /// Identity that the peer claims in this round.
    remote_id: IdPayload,
    eap_name: Option<Identity>,
    name: Option<String>,
    valid_for: Option<Duration>,
    ppk_settled: bool,
}

/// Destination of the response to the current request, and its exchange and message ID.
#[derive(Clone, Copy)]
pub(super) struct Reply {
    to: Path,
    request: (ExchangeType, u32),
}

/// Requests of the initiator besides authentication, from its first IKE_AUTH message.
struct ClientRequests {
    message: Plain,
    /// IDr of the initiator.
    asked_id: Option<Identity>,
    /// Authorities of the peer's CERTREQ payloads; `None` without any.
    authorities: Option<Requested>,
    /// Virtual addresses.
    addresses: Vec<std::net::IpAddr>,
    child_sa: bool,
    eap_only: bool,
    mobike: bool,
    initial_contact: bool,
}

/// Required contents of an IKE_AUTH request.
pub(super) enum Expected {
    /// The next round of the initiator, or an empty request while it waits for the next round of
    /// this host.
    Round,
    /// An EAP response.
    Eap(Conversation),
    /// AUTH with the key of the EAP conversation, which was successful.
    Proof(EapKey),
}

/// The pending credential request: what its response is needed for.
pub(super) enum Purpose {
    /// The PPK that the peer names. With the EAP key that AUTH proves, if there is one.
    Ppk(Claimed, Option<EapKey>),
    /// True if AUTH of the peer is right.
    Verify(Option<EapKey>),
    /// AUTH of this host after that of the peer.
    Sign(AfterEap),
    /// AUTH of this host before EAP.
    SignForEap,
    /// The next EAP packet, with AUTH to go with the first one.
    Eap(Conversation, Option<Signed>),
}

/// True if AUTH proves the key of EAP instead of a separate identity.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum AfterEap {
    Yes,
    No,
}

/// AUTH of the peer and the related payloads.
pub(super) struct Claimed {
    method: AuthMethodId,
    auth: Vec<u8>,
    certs: Vec<(CertEncoding, Vec<u8>)>,
    /// AUTH as it would be without PPK.
    fallback: Option<Vec<u8>>,
    /// Name of the PPK that the peer used.
    ppk: Option<Identity>,
    /// Another authentication follows.
    more: bool,
}

/// Payloads of one IKE_AUTH request that are about authentication.
struct Received {
    id: Option<IdPayload>,
    claimed: Option<Claimed>,
    eap: Option<EapResponse>,
}

impl Received {
    fn of(parts: &AuthParts<'_>) -> Self {
        let claimed = parts.auth.as_ref().map(|(method, auth)| Claimed {
            method: *method,
            auth: auth.clone(),
            certs: parts.certs.clone(),
            fallback: parts.notify(NotifyType::NO_PPK_AUTH).map(<[u8]>::to_vec),
            ppk: parts.notify(NotifyType::PPK_IDENTITY).and_then(parse_ppk_identity),
            more: parts.has(NotifyType::ANOTHER_AUTH_FOLLOWS),
        });
        Self { id: parts.id_i.clone(), claimed, eap: parts.eap.as_ref().and_then(EapResponse::of) }
    }
}

impl Answering {
    pub(super) fn new(secured: Secured, candidates: Candidates, began: Instant) -> Self {
        Self::after_intermediate(Box::new(Keyed { secured, candidates, began }), 0)
    }

    /// The state after `done` additional key exchanges.
    fn after_intermediate(keyed: Box<Keyed>, done: usize) -> Self {
        if done < keyed.secured.suite.additional.len() { Self::Intermediate(keyed, done) } else { Self::Start(keyed) }
    }

    /// ID of the pending credential request.
    pub(super) fn request_id(&self) -> Option<RequestId> {
        match self {
            Self::Credentials(_, request_id, _) => Some(*request_id),
            Self::Intermediate(..) | Self::Start(_) | Self::Request(..) => None,
        }
    }

    /// The best of the connections that are still possible.
    pub(super) fn connection(&self) -> &Arc<Connection> {
        match self {
            Self::Intermediate(keyed, _) | Self::Start(keyed) => keyed.candidates.best(),
            Self::Request(session, _) | Self::Credentials(session, ..) => session.candidates.best(),
        }
    }

    /// The message layer.
    pub(super) fn exchanges(&mut self) -> &mut Exchanges {
        match self {
            Self::Intermediate(keyed, _) | Self::Start(keyed) => &mut keyed.secured.exchanges,
            Self::Request(session, _) | Self::Credentials(session, ..) => &mut session.secured.exchanges,
        }
    }

    /// Exchanges that may be requested now. INFORMATIONAL is for an initiator that gives up.
    pub(super) fn expected(&self) -> &'static [ExchangeType] {
        match self {
            Self::Intermediate(..) => &[ExchangeType::IKE_INTERMEDIATE, ExchangeType::INFORMATIONAL],
            Self::Start(_) | Self::Request(..) => &[ExchangeType::IKE_AUTH, ExchangeType::INFORMATIONAL],
            // The request in hand is not answered yet.
            Self::Credentials(..) => &[],
        }
    }

    /// Takes a request of one of the [expected](Self::expected) exchanges.
    pub(super) fn handle(self, ctx: &mut Context<'_>, from: &Path, path: Path, request: Plain) -> Step {
        let reply = Reply { to: *from, request: (request.exchange, request.message_id) };
        match self {
            Self::Credentials(session, ..) => session.internal(ctx, "a request while another one is in hand"),
            Self::Intermediate(keyed, _) | Self::Start(keyed) if request.exchange == ExchangeType::INFORMATIONAL => {
                give_up(ctx, keyed.secured, reply, &request)
            }
            Self::Request(session, _) if request.exchange == ExchangeType::INFORMATIONAL => {
                give_up(ctx, session.secured, reply, &request)
            }
            Self::Intermediate(mut keyed, index) => {
                keyed.secured.path = path;
                keyed.answer_intermediate(ctx, reply, &request, index)
            }
            Self::Start(mut keyed) => {
                keyed.secured.path = path;
                keyed.start(ctx, reply, request)
            }
            Self::Request(mut session, expected) => {
                session.secured.path = path;
                session.reply = reply;
                session.handle(ctx, expected, &request)
            }
        }
    }

    /// Handles the response to the pending credential request.
    pub(super) fn answer(self, ctx: &mut Context<'_>, request_id: RequestId, answer: CredentialResponse) -> Step {
        match self {
            Self::Credentials(session, pending, purpose) if pending == request_id => {
                session.answer(ctx, purpose, answer)
            }
            state => state.internal(ctx, "a response to a credential request that is not pending"),
        }
    }

    /// Ends the handshake in a state that only a defect of this program can cause. A request
    /// without a response yet gets the error.
    pub(super) fn internal(self, ctx: &mut Context<'_>, what: &'static str) -> Step {
        match self {
            Self::Credentials(session, ..) => session.internal(ctx, what),
            Self::Intermediate(keyed, _) | Self::Start(keyed) => ended_by(ctx, &keyed.secured, what),
            Self::Request(session, _) => ended_by(ctx, &session.secured, what),
        }
    }
}

/// Ends without a message, because no request waits for a response.
fn ended_by(ctx: &mut Context<'_>, secured: &Secured, what: &'static str) -> Step {
    let error = IkeError::Internal(what.into());
    ctx.note_internal(secured.id, &error);
    Step::Ended(error.to_string())
}

/// Acknowledges that the initiator ends the handshake.
fn give_up(ctx: &mut Context<'_>, secured: Secured, reply: Reply, request: &Plain) -> Step {
    let why = AuthParts::read(request.payloads()).ok().and_then(|parts| parts.error());
    let reason = match why {
        Some(kind) => format!("the initiator gave up with {kind}; its log says why"),
        None => "the initiator gave up".to_owned(),
    };
    refuse_with(ctx, secured, reply, &Inner::empty(), reason)
}

/// Responds with an error Notify only.
fn refuse(ctx: &mut Context<'_>, secured: Secured, reply: Reply, refused: &IkeError) -> Step {
    ctx.note_internal(secured.id, refused);
    let inner = Inner::notify(refused.notify(), &refused.data());
    refuse_with(ctx, secured, reply, &inner, refused.to_string())
}

/// Sends the last response of a handshake that ends.
fn refuse_with(ctx: &mut Context<'_>, mut secured: Secured, reply: Reply, inner: &Inner, reason: String) -> Step {
    secured.exchanges.respond(ctx, &reply.to, reply.request, inner);
    Step::Refused(Box::new(secured.exchanges), reason)
}

impl Keyed {
    fn answer_intermediate(
        mut self: Box<Self>,
        ctx: &mut Context<'_>,
        reply: Reply,
        request: &Plain,
        index: usize,
    ) -> Step {
        let secured = &mut self.secured;
        let (inner, shared) = match secured.answer_intermediate(index, request) {
            Ok(answer) => answer,
            Err(refused) => return refuse(ctx, self.secured, reply, &refused),
        };
        // AUTH covers every IKE_INTERMEDIATE message (RFC 9242 §3.3.2), so both are recorded before
        // the keys change.
        secured.note_request(request.message_id, request.first, &request.bytes);
        secured.note_response(request.message_id, (inner.first, &inner.bytes));
        // Sealed with the old keys: the new ones apply from the next request (RFC 9370 §2.2.2).
        secured.exchanges.respond(ctx, &reply.to, reply.request, &inner);
        match secured.update_keys(ctx, &shared) {
            Ok(()) => Step::Wait(Answering::after_intermediate(self, index + 1)),
            Err(error) => {
                ctx.note_internal(self.secured.id, &error);
                Step::Ended(error.to_string())
            }
        }
    }

    /// The first request of IKE_AUTH.
    fn start(mut self: Box<Self>, ctx: &mut Context<'_>, reply: Reply, request: Plain) -> Step {
        let parts = match AuthParts::read(request.payloads()) {
            Ok(parts) => parts,
            Err(refused) => return refuse(ctx, self.secured, reply, &refused),
        };
        if let Some(sent) = parts.notify(NotifyType::NO_NATS_ALLOWED)
            && !nat::is_as_sent(sent, &reply.to)
        {
            let reason = "a NAT changed the request, and the initiator prohibits NATs".into();
            return refuse(ctx, self.secured, reply, &IkeError::Configuration(Mismatch::Nat, reason));
        }
        self.secured.auth_id = Some(request.message_id);
        let received = Received::of(&parts);
        let Some(remote_id) = received.id else {
            return refuse(ctx, self.secured, reply, &IkeError::violation("IDi is missing"));
        };
        let asked_id = parts.id_r.as_ref().map(|id| id.id.clone());
        let read = |cfg: &wire::ike::Cfg<'_>| configure::read_request(cfg.attributes().map_while(Result::ok));
        let addresses = parts.cfg(wire::ike::CfgType::REQUEST).map(read).unwrap_or_default();
        let (child_sa, eap_only) = (parts.has_sa, parts.has(NotifyType::EAP_ONLY_AUTHENTICATION));
        let (mobike, initial_contact) =
            (parts.has(NotifyType::MOBIKE_SUPPORTED), parts.has(NotifyType::INITIAL_CONTACT));
        // `parts` borrows the request, which the session keeps because the Child SA is negotiated
        // from it.
        drop(parts);
        let authorities = certificate_requests(request.payloads());
        let message = request;
        let requests =
            ClientRequests { message, asked_id, authorities, addresses, child_sa, eap_only, mobike, initial_contact };
        let session = Box::new(Session {
            secured: self.secured,
            candidates: self.candidates,
            began: self.began,
            reply,
            requests,
            remote_round: 0,
            local_round: 0,
            local_id: None,
            remote_id,
            eap_name: None,
            name: None,
            valid_for: None,
            ppk_settled: false,
        });
        session.take_round(ctx, received.claimed)
    }
}

impl Session {
    fn refuse(self, ctx: &mut Context<'_>, refused: &IkeError) -> Step {
        refuse(ctx, self.secured, self.reply, refused)
    }

    /// Refuses the peer because of a defect here.
    fn internal(self, ctx: &mut Context<'_>, what: &'static str) -> Step {
        self.refuse(ctx, &IkeError::Internal(what.into()))
    }

    /// A further request of IKE_AUTH.
    fn handle(mut self: Box<Self>, ctx: &mut Context<'_>, expected: Expected, request: &Plain) -> Step {
        let received = match AuthParts::read(request.payloads()) {
            Ok(parts) => Received::of(&parts),
            Err(refused) => return self.refuse(ctx, &refused),
        };
        match expected {
            Expected::Eap(conversation) => self.take_eap_response(ctx, conversation, received.eap),
            Expected::Proof(key) => match received.claimed {
                Some(claimed) if claimed.method == AuthMethodId::PSK => self.take_claim(ctx, claimed, Some(key)),
                _ => self.refuse(ctx, &IkeError::violation("AUTH after EAP is missing or no shared key code")),
            },
            // Payloads of this request are ignored: another ID must not replace the verified
            // identity.
            Expected::Round if self.peer_is_done() => self.sign_or_respond(ctx, None),
            Expected::Round => match received.id {
                Some(id) => {
                    self.remote_id = id;
                    self.take_round(ctx, received.claimed)
                }
                None => self.refuse(ctx, &IkeError::violation("IDi is missing")),
            },
        }
    }

    /// The peer has authenticated itself in all its rounds.
    fn peer_is_done(&self) -> bool {
        self.candidates.is_single() && self.remote_round > 0 && self.remote_round >= self.candidates.best().remote.len()
    }

    /// A round of the peer: with AUTH, or without, which starts EAP.
    fn take_round(self: Box<Self>, ctx: &mut Context<'_>, claimed: Option<Claimed>) -> Step {
        match claimed {
            Some(claimed) => self.take_claim(ctx, claimed, None),
            None => self.start_eap(ctx),
        }
    }

    /// Leaves those connections that admit the identities and the kind of authentication.
    fn sift(&mut self, eap: bool, more: Option<bool>) -> Result<(), IkeError> {
        let round = self.remote_round;
        let (remote, local) = (&self.remote_id.id, self.requests.asked_id.as_ref());
        let fitting = self.candidates.filtered(|connection| {
            let Some(auth) = connection.remote.get(round) else { return false };
            let kind = match auth.method {
                AuthMethod::Any => true,
                AuthMethod::Eap(_) => eap,
                AuthMethod::XAuth => false,
                AuthMethod::PublicKey(_) | AuthMethod::Psk => !eap,
            };
            // If ANOTHER_AUTH_FOLLOWS contradicts the configured rounds, one host would wait for a
            // round that the other does not send (RFC 4739).
            kind && more.is_none_or(|more| more == (connection.remote.len() > round + 1))
                && auth.id.matches(remote).is_some()
                && local.is_none_or(|id| connection.local.first().is_some_and(|auth| auth.id.matches(id).is_some()))
        });
        let Some(fitting) = fitting else {
            let us = local.map_or_else(|| "anybody".to_owned(), ToString::to_string);
            let how = if eap { "EAP" } else { "AUTH" };
            return Err(IkeError::authentication(format!(
                "no connection lets [{remote}] authenticate with {how} to [{us}]"
            )));
        };
        self.candidates = fitting;
        Ok(())
    }

    fn take_claim(mut self: Box<Self>, ctx: &mut Context<'_>, claimed: Claimed, proof: Option<EapKey>) -> Step {
        // The candidates of AUTH after EAP were filtered when EAP started. `sift` would remove
        // them, because their method is EAP.
        if proof.is_none()
            && let Err(refused) = self.sift(false, Some(claimed.more))
        {
            return self.refuse(ctx, &refused);
        }
        // The first AUTH decides about the PPK for all rounds.
        let name = claimed.ppk.clone().filter(|_| self.secured.peer.ppk && !self.ppk_settled);
        let Some(name) = name else { return self.verify_without_ppk(ctx, claimed, proof) };
        let admits =
            |connection: &Arc<Connection>| connection.ppk_id.as_ref().is_none_or(|wanted| admits_ppk(wanted, &name));
        let Some(fitting) = self.candidates.filtered(admits) else {
            let reason =
                format!("the peer uses the post-quantum preshared key '{name}', which 'ppk_id' does not match");
            return self.refuse(ctx, &IkeError::authentication(reason));
        };
        self.candidates = fitting;
        self.request_credentials(ctx, Purpose::Ppk(claimed, proof), CredentialRequest::Ppk(name))
    }

    fn take_ppk(
        mut self: Box<Self>,
        ctx: &mut Context<'_>,
        claimed: Claimed,
        proof: Option<EapKey>,
        ppk: Option<Secret>,
    ) -> Step {
        match (ppk, claimed.fallback.clone()) {
            (Some(ppk), _) => {
                self.secured.mix(&ppk);
                self.secured.ppk = true;
                self.ppk_settled = true;
                self.verify(ctx, claimed, proof)
            }
            (None, Some(auth)) => self.verify_without_ppk(ctx, Claimed { auth, ..claimed }, proof),
            (None, None) => self.refuse(
                ctx,
                &IkeError::authentication("the peer insists on a post-quantum preshared key that is not known here"),
            ),
        }
    }

    fn verify_without_ppk(mut self: Box<Self>, ctx: &mut Context<'_>, claimed: Claimed, proof: Option<EapKey>) -> Step {
        if !self.ppk_settled {
            let Some(fitting) = self.candidates.filtered(|connection| !connection.ppk_required) else {
                let reason = "the connection requires a post-quantum preshared key, which the peer has not";
                return self.refuse(ctx, &IkeError::authentication(reason));
            };
            self.candidates = fitting;
            self.ppk_settled = true;
        }
        self.verify(ctx, claimed, proof)
    }

    fn verify(self: Box<Self>, ctx: &mut Context<'_>, claimed: Claimed, proof: Option<EapKey>) -> Step {
        let secured = &self.secured;
        let claim = Claim {
            remote_id: &self.remote_id.id,
            id_body: &self.remote_id.body,
            local_id: self.requests.asked_id.clone(),
            method: claimed.method,
            auth: claimed.auth,
            certs: claimed.certs,
            eap_msk: proof.as_ref().map(|key| key.of(secured, Role::Initiator)),
        };
        let candidates = self.candidates.iter().cloned().collect();
        let request = secured.verify_request(candidates, self.remote_round, claim, secured.ppk);
        self.request_credentials(ctx, Purpose::Verify(proof), CredentialRequest::Verify(Box::new(request)))
    }

    fn request_credentials(
        self: Box<Self>,
        ctx: &mut Context<'_>,
        purpose: Purpose,
        request: CredentialRequest,
    ) -> Step {
        let request_id = ctx.request_credentials(self.secured.id, request);
        Step::Wait(Answering::Credentials(self, request_id, purpose))
    }

    fn answer(mut self: Box<Self>, ctx: &mut Context<'_>, purpose: Purpose, answer: CredentialResponse) -> Step {
        match (purpose, answer) {
            (Purpose::Ppk(claimed, proof), CredentialResponse::Ppk(ppk)) => self.take_ppk(ctx, claimed, proof, ppk),
            (Purpose::Verify(proof), CredentialResponse::Verified(Ok(verified))) => {
                self.take_verified(ctx, verified, proof)
            }
            (Purpose::Verify(_), CredentialResponse::Verified(Err(refusal))) => {
                ctx.count(counters::AUTH_FAILED);
                let reason = format!("[{}] is not authenticated: {}", self.remote_id.id, refusal.0);
                self.refuse(ctx, &IkeError::authentication(reason))
            }
            (Purpose::Sign(after_eap), CredentialResponse::Signed(Ok(signed))) => {
                self.emit(ctx, Some(signed), after_eap)
            }
            (Purpose::SignForEap, CredentialResponse::Signed(Ok(signed))) => {
                self.local_id = Some(signed.local_id.clone());
                self.ask_eap(ctx, Conversation::default(), Vec::new(), Some(signed))
            }
            (Purpose::Sign(_) | Purpose::SignForEap, CredentialResponse::Signed(Err(refusal))) => {
                self.refuse(ctx, &IkeError::authentication(format!("this host cannot authenticate: {}", refusal.0)))
            }
            (Purpose::Eap(conversation, signed), CredentialResponse::Eap(answer)) => {
                self.take_eap(ctx, answer, conversation, signed)
            }
            _ => self.internal(ctx, "a response does not fit its credential request"),
        }
    }

    fn take_verified(mut self: Box<Self>, ctx: &mut Context<'_>, verified: Verified, proof: Option<EapKey>) -> Step {
        if !self.candidates.contains(&verified.connection) {
            return self.internal(ctx, "the connection that admits the peer is no candidate");
        }
        self.candidates = Candidates::only(verified.connection);
        self.valid_for = earlier(self.valid_for, verified.valid_for);
        self.name = verified.name.or(self.name.take());
        self.remote_round += 1;
        self.sign_or_respond(ctx, proof)
    }

    /// The peer's part of the exchange is done: now that of this host.
    fn sign_or_respond(self: Box<Self>, ctx: &mut Context<'_>, proof: Option<EapKey>) -> Step {
        let local = self.candidates.best().local.get(self.local_round);
        let is_round = local.is_some_and(|auth| !matches!(auth.method, AuthMethod::Eap(_)));
        match proof {
            None if !is_round => self.emit(ctx, None, AfterEap::No),
            None => self.sign(ctx, None, Purpose::Sign(AfterEap::No)),
            Some(key) => self.sign(ctx, Some(&key), Purpose::Sign(AfterEap::Yes)),
        }
    }

    fn sign(self: Box<Self>, ctx: &mut Context<'_>, proven: Option<&EapKey>, purpose: Purpose) -> Step {
        let (secured, connection) = (&self.secured, self.candidates.best());
        let msk = proven.map(|key| key.of(secured, Role::Responder));
        // The proof of an EAP key goes with the identity that this host has shown, if it has shown
        // one.
        let round = if msk.is_some() { self.local_round.saturating_sub(1) } else { self.local_round };
        let pattern = connection.local.get(round).map(|auth| (&auth.id, &auth.method));
        let local_id = self.local_id.clone().filter(|_| msk.is_some()).or_else(|| {
            let (id, method) = pattern?;
            let wanted = self.requests.asked_id.clone().filter(|wanted| id.matches(wanted).is_some());
            own_id(id)
                .or(wanted)
                .or_else(|| (!matches!(method, AuthMethod::PublicKey(_))).then(|| address_id(secured.path.local)))
        });
        let ids = (local_id, Some(self.remote_id.id.clone()));
        let authorities = self.requests.authorities.as_ref();
        let secrets = AuthSecrets { eap_msk: msk, ppk: secured.ppk };
        let request = secured.sign_request(connection, round, ids, authorities, secrets);
        self.request_credentials(ctx, purpose, CredentialRequest::Sign(Box::new(request)))
    }

    /// IDr, certificates and AUTH of this host; without `signed` the identity alone.
    fn proof(&self, signed: Option<Signed>, after_eap: AfterEap) -> Proof {
        let id = signed.as_ref().map(|signed| &signed.local_id).or(self.local_id.as_ref());
        let sends =
            after_eap == AfterEap::No && sends_cert(self.candidates.best(), self.requests.authorities.is_some());
        Proof { id: id.filter(|_| after_eap == AfterEap::No).cloned(), certs: sends, signed }
    }

    /// Sends a response, unless it is too long, and waits for the next request.
    fn respond_and_expect(
        mut self: Box<Self>,
        ctx: &mut Context<'_>,
        inner: Result<Inner, TooLong>,
        expected: Expected,
    ) -> Step {
        let inner = match inner {
            Ok(inner) => inner,
            Err(too_long) => return self.refuse(ctx, &too_long.into()),
        };
        self.secured.exchanges.respond(ctx, &self.reply.to, self.reply.request, &inner);
        Step::Wait(Answering::Request(self, expected))
    }

    /// The response of a round, or of the last one.
    fn emit(mut self: Box<Self>, ctx: &mut Context<'_>, signed: Option<Signed>, after_eap: AfterEap) -> Step {
        let connection = self.candidates.best().clone();
        let alone = connection.local.first().is_some_and(|auth| matches!(auth.method, AuthMethod::Eap(_)));
        let signed_id = signed.as_ref().map(|signed| signed.local_id.clone());
        let proof = self.proof(signed, after_eap);
        if let Some(id) = signed_id {
            self.local_id = Some(id);
            // The round with AUTH after EAP was counted with the signature before EAP. With EAP
            // alone there was none.
            if after_eap == AfterEap::No || alone {
                self.local_round += 1;
            }
        }
        let more = self.local_round < connection.local.len();
        if self.remote_round >= connection.remote.len() && !more {
            return self.finish(ctx, &connection, &proof);
        }
        let inner = Inner::new(|chain| {
            proof.emit(chain);
            if more {
                status(chain, NotifyType::ANOTHER_AUTH_FOLLOWS, &[]);
            }
            self.emit_ppk(chain);
        });
        self.respond_and_expect(ctx, inner, Expected::Round)
    }

    fn emit_ppk(&self, chain: &mut Chain<'_>) {
        if self.secured.ppk {
            status(chain, NotifyType::PPK_IDENTITY, &[]);
        }
    }
}

/// Identity payloads of this host in one response.
struct Proof {
    id: Option<Identity>,
    certs: bool,
    signed: Option<Signed>,
}

impl Proof {
    fn emit(&self, chain: &mut Chain<'_>) {
        if let Some(id) = &self.id {
            chain.id(PayloadType::IDr, id.kind, &id.data);
        }
        let Some(signed) = &self.signed else { return };
        for (encoding, cert) in signed.certs.iter().filter(|_| self.certs) {
            chain.cert(*encoding, cert);
        }
        chain.auth(signed.method, &signed.auth);
    }
}
