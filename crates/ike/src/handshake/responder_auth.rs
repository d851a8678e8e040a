//! The responder from the first encrypted message to the end of IKE_AUTH.
//!
//! Which connection it is shows only when the peer has said who it is: until then all that its
//! addresses and the chosen suite admit are candidates. An identity that is claimed with AUTH is
//! checked by whoever holds credentials, which names the connection.

mod eap;
mod finish;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::ike::Secret;
use wire::ike::{AuthMethodId, CertEncoding, Chain, Eap, ExchangeType, NotifyType, PayloadType};

use self::eap::{EapState, eap_key};
use super::auth::{AuthParts, EAP_NOT_METHODS, EAP_PACKETS_MAX, IdPayload, admits_ppk, parse_ppk_identity};
use super::init::{Requested, certificate_requests, status};
use super::initiator_auth::{address_id, earlier, own_id, sends_cert};
use super::secured::Claim;
use super::{Outcome, Secured, counters};
use crate::child::Refused;
use crate::config::{AuthMethod, Connection};
use crate::context::Context;
use crate::exchange::{Exchanges, Inner, Plain};
use crate::identity::Identity;
use crate::output::{Answer, Path, Question, Signed, Ticket, Verified};
use crate::sa::Role;

/// The responder with keys.
pub(super) struct Answering {
    /// Gone when the handshake is over.
    secured: Option<Box<Secured>>,
    /// Connections that are still possible, best first; one once the peer is known.
    candidates: Vec<Arc<Connection>>,
    /// When IKE_SA_INIT came.
    began: Instant,
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
    authorities: Option<Requested>,
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

impl Answering {
    pub(super) fn new(secured: Secured, candidates: Vec<Arc<Connection>>, began: Instant) -> Self {
        let nowhere = (secured.path.local, secured.path.remote);
        Self {
            secured: Some(Box::new(secured)),
            candidates,
            began,
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
            (false, true) => &[ExchangeType::IKE_INTERMEDIATE, ExchangeType::INFORMATIONAL],
            (false, false) => &[ExchangeType::IKE_AUTH, ExchangeType::INFORMATIONAL],
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
                let why = AuthParts::read(request.payloads()).ok().and_then(|parts| parts.error());
                self.respond(ctx, &Inner::empty());
                Outcome::Refused(match why {
                    Some(kind) => format!("the initiator gave up with {kind}; its log says why"),
                    None => "the initiator gave up".to_owned(),
                })
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
            Some(name) if supported && !self.ppk_settled => {
                let admits = |connection: &Arc<Connection>| {
                    connection.ppk_id.as_ref().is_none_or(|wanted| admits_ppk(wanted, &name))
                };
                self.candidates.retain(admits);
                if self.candidates.is_empty() {
                    let reason =
                        format!("the peer uses the post-quantum preshared key '{name}', which 'ppk_id' does not match");
                    return self.refuse(ctx, &Refused::new(NotifyType::AUTHENTICATION_FAILED, reason));
                }
                self.ask(ctx, Step::AskedPpk(claimed), Question::Ppk(name))
            }
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
        let authorities = self.authorities.as_ref();
        let request = secured.sign_request(connection, round, (local_id, remote_id), authorities, msk, secured.ppk);
        self.ask(ctx, step, Question::Sign(Box::new(request)))
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

/// A chain with more payloads behind it.
fn extend(inner: Inner, write: impl FnOnce(&mut Chain<'_>)) -> Inner {
    let more = Inner::new(write);
    inner.followed_by(more)
}
