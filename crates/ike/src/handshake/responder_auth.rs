//! The responder from the first encrypted message to the end of IKE_AUTH.
//!
//! Which connection it is shows only when the peer has said who it is: until then all that its
//! addresses and the chosen suite admit are candidates. An identity that is claimed with AUTH is
//! checked by whoever holds credentials, which names the connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crypto::ike::Secret;
use wire::ike::{AuthMethodId, CertEncoding, CfgType, Chain, Eap, ExchangeType, NotifyType, PayloadType};

use super::auth::{AuthParts, EAP_NOT_METHODS, EAP_PACKETS_MAX, EAP_TLS, IdPayload, parse_ppk_identity};
use super::init::{certificate_requests, emit_addresses, status};
use super::initiator_auth::{address_id, earlier, own_id, sends_cert};
use super::secured::{Claim, Ends};
use super::{Outcome, Secured, Up, configure, counters};
use crate::child::{self, Refused};
use crate::config::{AuthMethod, Childless, Connection, Unique};
use crate::context::Context;
use crate::exchange::{Exchanges, Inner, Plain};
use crate::identity::Identity;
use crate::output::{Answer, EapAnswer, EapStep, Level, Path, Question, Signed, Subsystem, Ticket, Verified};
use crate::pool::Client;
use crate::sa::{Established, Role};

/// The responder with keys.
pub(super) struct Answering {
    /// Gone when the handshake is over.
    secured: Option<Box<Secured>>,
    /// Connections that are still possible, best first; one once the peer is known.
    candidates: Vec<Arc<Connection>>,
    step: Step,
    /// The question that is out.
    wait: Option<Ticket>,
    /// Additional key exchanges that are done.
    intermediates: usize,
    /// The request that is being answered: where from, exchange and message ID.
    request: ((SocketAddr, SocketAddr), (ExchangeType, u32)),
    /// The first request of IKE_AUTH: what is wanted besides authentication.
    first: Option<Plain>,
    /// Round of the peer that comes next, and of this host.
    remote_round: usize,
    local_round: usize,
    local_id: Option<Identity>,
    remote_id: Option<IdPayload>,
    /// IDr of the initiator.
    asked_id: Option<Identity>,
    /// What the peer's CERTREQ payloads named; `None` without any.
    authorities: Option<Vec<[u8; 20]>>,
    eap: EapState,
    eap_only: bool,
    mobike: bool,
    initial_contact: bool,
    eap_name: Option<Identity>,
    name: Option<String>,
    valid_for: Option<Duration>,
    ppk_settled: bool,
}

enum Step {
    /// A request is waited for.
    Idle,
    AskedPpk(Claimed),
    AskedVerify,
    /// AUTH of this host, after that of the peer.
    AskedSign,
    /// AUTH of this host, before EAP.
    AskedSignForEap,
    /// With AUTH to go with the first packet.
    AskedEap(Option<Signed>),
}

/// AUTH of the peer and what came with it.
struct Claimed {
    method: AuthMethodId,
    auth: Vec<u8>,
    certs: Vec<(CertEncoding, Vec<u8>)>,
    /// AUTH as it would be without PPK.
    fallback: Option<Vec<u8>>,
    /// Another authentication follows.
    more: bool,
}

/// The EAP conversation of the round.
enum EapState {
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
    pub(super) fn new(secured: Secured, candidates: Vec<Arc<Connection>>) -> Self {
        let nowhere = (secured.path.local, secured.path.remote);
        Self {
            secured: Some(Box::new(secured)),
            candidates,
            step: Step::Idle,
            wait: None,
            intermediates: 0,
            request: (nowhere, (ExchangeType::IKE_AUTH, 0)),
            first: None,
            remote_round: 0,
            local_round: 0,
            local_id: None,
            remote_id: None,
            asked_id: None,
            authorities: None,
            eap: EapState::None,
            eap_only: false,
            mobike: false,
            initial_contact: false,
            eap_name: None,
            name: None,
            valid_for: None,
            ppk_settled: false,
        }
    }

    pub(super) fn ticket(&self) -> Option<Ticket> {
        self.wait
    }

    pub(super) fn connection(&self) -> Option<&Arc<Connection>> {
        self.candidates.first()
    }

    pub(super) fn exchanges(&mut self) -> Option<&mut Exchanges> {
        self.secured.as_mut().map(|secured| &mut secured.exchanges)
    }

    /// What is left of a peer that was refused.
    pub(super) fn take_exchanges(&mut self, _ctx: &mut Context<'_>) -> Option<Exchanges> {
        self.secured.take().map(|secured| secured.exchanges)
    }

    /// Exchanges that may be requested now. INFORMATIONAL is for an initiator that gives up.
    pub(super) fn accepts(&self) -> &'static [ExchangeType] {
        let additional = self.secured.as_ref().map_or(0, |secured| secured.suite.additional.len());
        match (self.first.is_some(), self.intermediates < additional) {
            (true, _) => &[ExchangeType::IKE_AUTH, ExchangeType::INFORMATIONAL],
            (false, true) => &[ExchangeType::IKE_INTERMEDIATE],
            (false, false) => &[ExchangeType::IKE_AUTH],
        }
    }

    pub(super) fn handle(
        &mut self,
        ctx: &mut Context<'_>,
        from: (SocketAddr, SocketAddr),
        path: Path,
        request: Plain,
    ) -> Outcome {
        self.request = (from, (request.exchange, request.message_id));
        let Some(secured) = &mut self.secured else { return Outcome::Pending };
        secured.path = path;
        match request.exchange {
            ExchangeType::IKE_INTERMEDIATE => match secured.answer_intermediate(self.intermediates, &request) {
                Ok((inner, shared)) => {
                    secured.note_request(request.message_id, request.first, &request.bytes);
                    secured.note_response(request.message_id, (inner.first, &inner.bytes));
                    secured.exchanges.respond(ctx, from, self.request.1, &inner);
                    self.intermediates += 1;
                    match secured.update_keys(ctx, &shared) {
                        Ok(()) => Outcome::Pending,
                        Err(reason) => Outcome::over(reason),
                    }
                }
                Err(refused) => self.refuse(ctx, &refused),
            },
            ExchangeType::INFORMATIONAL => {
                self.respond(ctx, &Inner::empty());
                Outcome::Refused("the initiator gave up".to_owned())
            }
            _ => self.handle_auth(ctx, request),
        }
    }

    fn handle_auth(&mut self, ctx: &mut Context<'_>, request: Plain) -> Outcome {
        let parts = match AuthParts::read(request.payloads()) {
            Ok(parts) => parts,
            Err(refused) => return self.refuse(ctx, &refused),
        };
        let first = self.first.is_none();
        if first {
            if let Some(secured) = &mut self.secured {
                secured.auth_id = Some(request.message_id);
            }
            self.asked_id = parts.id_r.as_ref().map(|id| id.id.clone());
            self.authorities = certificate_requests(request.payloads());
            self.eap_only = parts.has(NotifyType::EAP_ONLY_AUTHENTICATION);
            self.mobike = parts.has(NotifyType::MOBIKE_SUPPORTED);
            self.initial_contact = parts.has(NotifyType::INITIAL_CONTACT);
        }
        let step = self.read_step(&parts);
        drop(parts);
        if first {
            self.first = Some(request);
        }
        match step {
            Ok(Read::Claim(claimed, name)) => self.take_claim(ctx, claimed, name),
            Ok(Read::StartEap) => self.start_eap(ctx),
            Ok(Read::Eap(packet)) => self.ask_eap(ctx, packet, None),
            Ok(Read::Nothing) => self.sign_or_respond(ctx),
            Err(refused) => self.refuse(ctx, &refused),
        }
    }

    /// What a request means in the state of the handshake.
    fn read_step(&mut self, parts: &AuthParts<'_>) -> Result<Read, Refused> {
        let wrong = |reason: &str| Refused::new(NotifyType::INVALID_SYNTAX, reason);
        let claimed = parts.auth.as_ref().map(|(method, auth)| Claimed {
            method: *method,
            auth: auth.clone(),
            certs: parts.certs.clone(),
            fallback: parts.notify(NotifyType::NO_PPK_AUTH).map(<[u8]>::to_vec),
            more: parts.has(NotifyType::ANOTHER_AUTH_FOLLOWS),
        });
        let ppk = parts.notify(NotifyType::PPK_IDENTITY).and_then(parse_ppk_identity);
        match &mut self.eap {
            EapState::Running { method, answers } => {
                let packet = parts.eap.as_ref().filter(|packet| packet.code == Eap::RESPONSE);
                let packet = packet.ok_or_else(|| wrong("an EAP response is missing"))?;
                *answers += 1;
                if *answers > EAP_PACKETS_MAX {
                    return Err(wrong("EAP does not come to an end"));
                }
                if let Some(kind) = packet.method().filter(|kind| !EAP_NOT_METHODS.contains(kind)) {
                    *method = Some(kind);
                }
                Ok(Read::Eap(packet.whole.to_vec()))
            }
            EapState::Proving(_) => match claimed {
                Some(claimed) if claimed.method == AuthMethodId::PSK => Ok(Read::Claim(claimed, ppk)),
                _ => Err(wrong("AUTH after EAP is missing or no shared key code")),
            },
            EapState::None | EapState::Proven(_) => {
                let all = self.candidates.len() == 1 && self.remote_round >= self.candidates[0].remote.len();
                if all && self.remote_round > 0 {
                    return Ok(Read::Nothing);
                }
                self.eap = EapState::None;
                self.remote_id = Some(parts.id_i.clone().ok_or_else(|| wrong("IDi is missing"))?);
                Ok(claimed.map_or(Read::StartEap, |claimed| Read::Claim(claimed, ppk)))
            }
        }
    }

    /// Leaves those connections that admit the identities and the kind of authentication.
    fn sift(&mut self, eap: bool, more: Option<bool>) -> Result<(), Refused> {
        let round = self.remote_round;
        let (remote, local) = (self.remote_id.as_ref().map(|id| &id.id), self.asked_id.as_ref());
        self.candidates.retain(|connection| {
            let Some(auth) = connection.remote.get(round) else { return false };
            let kind = match auth.method {
                AuthMethod::Any => true,
                AuthMethod::Eap(_) => eap,
                AuthMethod::PublicKey(_) | AuthMethod::Psk => !eap,
                AuthMethod::XAuth => false,
            };
            kind && more.is_none_or(|more| more == (connection.remote.len() > round + 1))
                && remote.is_some_and(|id| auth.id.matches(id).is_some())
                && local.is_none_or(|id| connection.local.first().is_some_and(|auth| auth.id.matches(id).is_some()))
        });
        if !self.candidates.is_empty() {
            return Ok(());
        }
        let us = local.map_or_else(|| "anybody".to_owned(), ToString::to_string);
        let them = remote.map_or_else(String::new, ToString::to_string);
        let how = if eap { "EAP" } else { "AUTH" };
        let reason = format!("no connection lets [{them}] authenticate with {how} to [{us}]");
        Err(Refused::new(NotifyType::AUTHENTICATION_FAILED, reason))
    }

    fn take_claim(&mut self, ctx: &mut Context<'_>, claimed: Claimed, ppk: Option<Identity>) -> Outcome {
        if !matches!(self.eap, EapState::Proving(_))
            && let Err(refused) = self.sift(false, Some(claimed.more))
        {
            return self.refuse(ctx, &refused);
        }
        let supported = self.secured.as_ref().is_some_and(|secured| secured.peer.ppk);
        match ppk {
            Some(name) if supported && !self.ppk_settled => self.ask(ctx, Step::AskedPpk(claimed), Question::Ppk(name)),
            _ => self.verify_without_ppk(ctx, claimed),
        }
    }

    fn take_ppk(&mut self, ctx: &mut Context<'_>, claimed: Claimed, ppk: Option<Secret>) -> Outcome {
        let Some(secured) = &mut self.secured else { return Outcome::Pending };
        match (ppk, claimed.fallback.clone()) {
            (Some(ppk), _) => {
                secured.mix(&ppk);
                secured.ppk = true;
                self.ppk_settled = true;
                self.verify(ctx, claimed)
            }
            (None, Some(auth)) => self.verify_without_ppk(ctx, Claimed { auth, ..claimed }),
            (None, None) => {
                let reason = "the peer insists on a post-quantum preshared key that is not known here";
                self.refuse(ctx, &Refused::new(NotifyType::AUTHENTICATION_FAILED, reason))
            }
        }
    }

    fn verify_without_ppk(&mut self, ctx: &mut Context<'_>, claimed: Claimed) -> Outcome {
        if !self.ppk_settled {
            self.candidates.retain(|connection| !connection.ppk_required);
            self.ppk_settled = true;
        }
        if self.candidates.is_empty() {
            let reason = "the connection requires a post-quantum preshared key, which the peer has not";
            return self.refuse(ctx, &Refused::new(NotifyType::AUTHENTICATION_FAILED, reason));
        }
        self.verify(ctx, claimed)
    }

    fn verify(&mut self, ctx: &mut Context<'_>, claimed: Claimed) -> Outcome {
        let (Some(secured), Some(remote)) = (&self.secured, &self.remote_id) else { return Outcome::Pending };
        let claim = Claim {
            remote_id: &remote.id,
            id_body: &remote.body,
            local_id: self.asked_id.clone(),
            method: claimed.method,
            auth: claimed.auth,
            certs: claimed.certs,
            eap_msk: match &self.eap {
                EapState::Proving(msk) => Some(eap_key(secured, msk, Role::Initiator)),
                _ => None,
            },
        };
        let request = secured.verify_request(self.candidates.clone(), self.remote_round, claim, secured.ppk);
        self.ask(ctx, Step::AskedVerify, Question::Verify(Box::new(request)))
    }

    fn ask(&mut self, ctx: &mut Context<'_>, step: Step, question: Question) -> Outcome {
        let Some(secured) = &self.secured else { return Outcome::Pending };
        self.step = step;
        self.wait = Some(ctx.ask(secured.id, question));
        Outcome::Pending
    }

    pub(super) fn answer(&mut self, ctx: &mut Context<'_>, ticket: Ticket, answer: Answer) -> Outcome {
        if self.wait != Some(ticket) {
            return Outcome::Pending;
        }
        self.wait = None;
        match (std::mem::replace(&mut self.step, Step::Idle), answer) {
            (Step::AskedPpk(claimed), Answer::Ppk(ppk)) => self.take_ppk(ctx, claimed, ppk),
            (Step::AskedVerify, Answer::Verified(Ok(verified))) => self.take_verified(ctx, verified),
            (Step::AskedVerify, Answer::Verified(Err(refusal))) => {
                ctx.count(counters::AUTH_FAILED);
                let who = self.remote_id.as_ref().map_or_else(String::new, |id| id.id.to_string());
                let reason = format!("[{who}] is not authenticated: {}", refusal.0);
                self.refuse(ctx, &Refused::new(NotifyType::AUTHENTICATION_FAILED, reason))
            }
            (Step::AskedSign, Answer::Signed(Ok(signed))) => self.emit(ctx, Some(signed)),
            (Step::AskedSignForEap, Answer::Signed(Ok(signed))) => {
                self.local_id = Some(signed.local_id.clone());
                self.ask_eap(ctx, Vec::new(), Some(signed))
            }
            (Step::AskedSign | Step::AskedSignForEap, Answer::Signed(Err(refusal))) => {
                let reason = format!("this host cannot authenticate: {}", refusal.0);
                self.refuse(ctx, &Refused::new(NotifyType::AUTHENTICATION_FAILED, reason))
            }
            (Step::AskedEap(signed), Answer::Eap(answer)) => self.take_eap(ctx, answer, signed),
            _ => {
                let reason = "an answer does not fit its question";
                self.refuse(ctx, &Refused::new(NotifyType::AUTHENTICATION_FAILED, reason))
            }
        }
    }

    fn take_verified(&mut self, ctx: &mut Context<'_>, verified: Verified) -> Outcome {
        if !self.candidates.iter().any(|candidate| Arc::ptr_eq(candidate, &verified.connection)) {
            let reason = "the connection that admits the peer is no candidate";
            return self.refuse(ctx, &Refused::new(NotifyType::AUTHENTICATION_FAILED, reason));
        }
        self.candidates = vec![verified.connection];
        self.valid_for = earlier(self.valid_for, verified.valid_for);
        self.name = verified.name.or(self.name.take());
        self.remote_round += 1;
        if let EapState::Proving(msk) = &mut self.eap {
            self.eap = EapState::Proven(msk.take());
        }
        self.sign_or_respond(ctx)
    }

    /// The peer's part of the exchange is done: now that of this host.
    fn sign_or_respond(&mut self, ctx: &mut Context<'_>) -> Outcome {
        let Some(connection) = self.candidates.first() else { return Outcome::Pending };
        let after_eap = matches!(self.eap, EapState::Proven(_));
        let is_round =
            |round: usize| connection.local.get(round).is_some_and(|auth| !matches!(auth.method, AuthMethod::Eap(_)));
        if !after_eap && !is_round(self.local_round) {
            return self.emit(ctx, None);
        }
        self.sign(ctx, Step::AskedSign)
    }

    fn sign(&mut self, ctx: &mut Context<'_>, step: Step) -> Outcome {
        let (Some(secured), Some(connection)) = (&self.secured, self.candidates.first()) else {
            return Outcome::Pending;
        };
        let msk = match &self.eap {
            EapState::Proven(msk) => Some(eap_key(secured, msk, Role::Responder)),
            _ => None,
        };
        // The proof of an EAP key goes with the identity that this host has shown, if it has shown one.
        let round = if msk.is_some() { self.local_round.saturating_sub(1) } else { self.local_round };
        let pattern = connection.local.get(round).map(|auth| (&auth.id, &auth.method));
        let local_id = self.local_id.clone().filter(|_| msk.is_some()).or_else(|| {
            let (id, method) = pattern?;
            let asked = self.asked_id.clone().filter(|asked| id.matches(asked).is_some());
            own_id(id)
                .or(asked)
                .or_else(|| (!matches!(method, AuthMethod::PublicKey(_))).then(|| address_id(secured.path.local)))
        });
        let remote_id = self.remote_id.as_ref().map(|id| id.id.clone());
        let authorities = self.authorities.as_deref().unwrap_or_default();
        let request = secured.sign_request(connection, round, (local_id, remote_id), authorities, msk, secured.ppk);
        self.ask(ctx, step, Question::Sign(Box::new(request)))
    }

    /// The peer left AUTH out: it wants EAP.
    fn start_eap(&mut self, ctx: &mut Context<'_>) -> Outcome {
        if let Err(refused) = self.sift(true, None) {
            return self.refuse(ctx, &refused);
        }
        self.candidates.truncate(1);
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

    fn ask_eap(&mut self, ctx: &mut Context<'_>, packet: Vec<u8>, signed: Option<Signed>) -> Outcome {
        let (Some(secured), Some(connection), Some(remote)) = (&self.secured, self.candidates.first(), &self.remote_id)
        else {
            return Outcome::Pending;
        };
        let step = EapStep {
            connection: connection.clone(),
            round: self.remote_round,
            client: false,
            conversation: u64::from(secured.id.0),
            client_id: remote.id.clone(),
            packet,
        };
        self.ask(ctx, Step::AskedEap(signed), Question::Eap(Box::new(step)))
    }

    fn take_eap(&mut self, ctx: &mut Context<'_>, answer: EapAnswer, signed: Option<Signed>) -> Outcome {
        let EapState::Running { method, answers } = self.eap else { return Outcome::Pending };
        let alone = self.candidates.first().is_some_and(|connection| {
            connection.local.first().is_some_and(|auth| matches!(auth.method, AuthMethod::Eap(_)))
        });
        match answer {
            EapAnswer::Packet(packet) => {
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

    fn respond_eap(&mut self, ctx: &mut Context<'_>, packet: &[u8], signed: Option<Signed>) {
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

    /// IDr, certificates, AUTH.
    fn emit_identity(&self, chain: &mut Chain<'_>, signed: Option<&Signed>) {
        let after_eap = matches!(self.eap, EapState::Proven(_));
        let id = signed.map(|signed| &signed.local_id).or(self.local_id.as_ref());
        if let Some(id) = id.filter(|_| !after_eap) {
            chain.id(PayloadType::IDr, id.kind, &id.data);
        }
        let Some(signed) = signed else { return };
        let sends = |connection: &Arc<Connection>| sends_cert(connection, self.authorities.is_some());
        if !after_eap && self.candidates.first().is_some_and(sends) {
            signed.certs.iter().for_each(|(encoding, cert)| {
                chain.cert(*encoding, cert);
            });
        }
        chain.auth(signed.method, &signed.auth);
    }

    fn respond(&mut self, ctx: &mut Context<'_>, inner: &Inner) {
        let (to, request) = self.request;
        if let Some(secured) = &mut self.secured {
            secured.exchanges.respond(ctx, to, request, inner);
        }
    }

    /// Answers with an error notify and nothing else.
    fn refuse(&mut self, ctx: &mut Context<'_>, refused: &Refused) -> Outcome {
        self.respond(ctx, &Inner::new(|chain| refused.emit(chain)));
        Outcome::Refused(refused.reason.clone())
    }

    /// The response of a round, or of the last one.
    fn emit(&mut self, ctx: &mut Context<'_>, signed: Option<Signed>) -> Outcome {
        let Some(connection) = self.candidates.first().cloned() else { return Outcome::Pending };
        let after_eap = matches!(self.eap, EapState::Proven(_));
        let alone = connection.local.first().is_some_and(|auth| matches!(auth.method, AuthMethod::Eap(_)));
        let inner = Inner::new(|chain| self.emit_identity(chain, signed.as_ref()));
        if let Some(signed) = signed {
            self.local_id = Some(signed.local_id);
            if !after_eap || alone {
                self.local_round += 1;
            }
        }
        self.eap = EapState::None;
        let more = self.local_round < connection.local.len();
        if self.remote_round >= connection.remote.len() && !more {
            return self.finish(ctx, &connection, inner);
        }
        let inner = extend(inner, |chain| {
            if more {
                status(chain, NotifyType::ANOTHER_AUTH_FOLLOWS, &[]);
            }
            self.emit_ppk(chain);
        });
        self.respond(ctx, &inner);
        Outcome::Pending
    }

    fn emit_ppk(&self, chain: &mut Chain<'_>) {
        if self.secured.as_ref().is_some_and(|secured| secured.ppk) {
            status(chain, NotifyType::PPK_IDENTITY, &[]);
        }
    }

    /// Both ends are authenticated: addresses, the Child SA, the last response.
    fn finish(&mut self, ctx: &mut Context<'_>, connection: &Arc<Connection>, identity: Inner) -> Outcome {
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
            sa.reauth_at = Some(sa.reauth_at.map_or(at, |reauth_at| reauth_at.min(at)));
        }
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
            if !connection.reauth_time.is_zero() && is_client(connection) {
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
            initial_contact: self.initial_contact && connection.unique != Unique::Never,
        }))
    }
}

/// What a request is about.
enum Read {
    /// AUTH, and the name of a PPK.
    Claim(Claimed, Option<Identity>),
    StartEap,
    Eap(Vec<u8>),
    /// The initiator has no more to say and waits for this host's next round.
    Nothing,
}

/// The key of AUTH after EAP: the MSK, or without one the side's own SK_p (RFC 7296 §2.16).
fn eap_key(secured: &Secured, msk: &Option<Secret>, of: Role) -> Secret {
    msk.clone().unwrap_or_else(|| secured.sk_p(of, secured.ppk).clone())
}

/// A chain with more payloads behind it.
fn extend(inner: Inner, write: impl FnOnce(&mut Chain<'_>)) -> Inner {
    let more = Inner::new(write);
    inner.followed_by(more)
}

/// Clients authenticate anew when they are told to: this host cannot start that with EAP or for an
/// address that it gave out.
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
