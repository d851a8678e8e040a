//! The initiator from IKE_INTERMEDIATE to the end of IKE_AUTH.
//!
//! Rounds of both sides (RFC 4739) run beside each other: this host goes through `connection.local`,
//! the peer through `connection.remote`. The peer has to be authenticated before anything of an EAP
//! method is answered, unless the method itself does that (RFC 5998).

mod eap;
mod end;
mod request;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crypto::ike::{KeInitiator, Secret};
use wire::ike::{AuthMethodId, ExchangeType, Header, NotifyType};

use self::eap::EapState;
pub(super) use self::request::sends_cert;
use super::auth::{AuthParts, IdPayload};
use super::init::{Requested, certificate_requests};
use super::initiator::Start;
use super::secured::Claim;
use super::{Outcome, Secured, counters, intermediate, redirect};
use crate::child::Offer;
use crate::config::AuthMethod;
use crate::context::Context;
use crate::exchange::{Arrival, Inner, Plain, Timeout};
use crate::identity::{IdPattern, Identity};
use crate::output::{Answer, Question, Signed, Ticket, Verified};
use crate::sa::{ChildRequest, Role};

/// The initiator with keys.
pub(super) struct Authenticating {
    /// Gone when the handshake is over.
    secured: Option<Box<Secured>>,
    step: Step,
    /// The question that is out.
    wait: Option<Ticket>,
    /// What the peer's CERTREQ payloads named; `None` without any.
    authorities: Option<Requested>,
    /// Round of this host that is going on, and of the peer that comes next.
    local_round: usize,
    remote_round: usize,
    local_id: Option<Identity>,
    remote_id: Option<IdPayload>,
    first_sent: bool,
    /// AUTH of this round is on its way: a response without EAP ends the round.
    auth_sent: bool,
    ppk: Ppk,
    eap: EapState,
    eap_packets: u32,
    offer: Option<(Offer, ChildRequest)>,
    /// The response that is being worked on.
    response: Option<Plain>,
    valid_for: Option<Duration>,
    mobike: bool,
}

enum Step {
    /// IKE_INTERMEDIATE with additional key exchange of this index is out.
    Intermediate(usize, Option<KeInitiator>),
    /// IKE_AUTH is out.
    Sent,
    AskedPpk,
    AskedSign,
    /// The first signature is there; one without the PPK is asked for.
    AskedPlain(Signed),
    AskedVerify,
    AskedEap,
}

/// Use of a PPK (RFC 8784).
#[derive(Clone, Copy, Eq, PartialEq)]
enum Ppk {
    /// None, or it is settled whether.
    Settled,
    /// There is one, it goes into the next AUTH.
    Have,
    /// It went into AUTH; with `fallback` beside one without.
    Offered { fallback: bool },
}

impl Authenticating {
    pub(super) fn new(secured: Secured, authorities: Option<Requested>) -> Self {
        Self {
            secured: Some(Box::new(secured)),
            step: Step::Sent,
            wait: None,
            authorities,
            local_round: 0,
            remote_round: 0,
            local_id: None,
            remote_id: None,
            first_sent: false,
            auth_sent: false,
            ppk: Ppk::Settled,
            eap: EapState::None,
            eap_packets: 0,
            offer: None,
            response: None,
            valid_for: None,
            mobike: false,
        }
    }

    #[cfg(any(test, feature = "testkit"))]
    pub(super) fn exchanges(&mut self) -> Option<&mut crate::exchange::Exchanges> {
        self.secured.as_mut().map(|secured| &mut secured.exchanges)
    }

    pub(super) fn ticket(&self) -> Option<Ticket> {
        self.wait
    }

    pub(super) fn spis(&self) -> ([u8; 8], [u8; 8]) {
        self.secured.as_ref().map_or_else(Default::default, |secured| secured.spis)
    }

    pub(super) fn unanswered(&self) -> Option<crate::exchange::Unanswered> {
        self.secured.as_ref()?.exchanges.unanswered()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.secured.as_ref()?.exchanges.deadline()
    }

    pub(super) fn handle_timeout(&mut self, ctx: &mut Context<'_>, start: &mut Start) -> Outcome {
        let Some(secured) = &mut self.secured else { return Outcome::Pending };
        match secured.exchanges.handle_timeout(ctx, &start.path) {
            Timeout::Nothing => Outcome::Pending,
            Timeout::GaveUp => self.fail(ctx, start, "the peer does not answer any more".to_owned(), false),
        }
    }

    pub(super) fn handle(
        &mut self,
        ctx: &mut Context<'_>,
        start: &mut Start,
        from: (SocketAddr, SocketAddr),
        header: &Header,
        datagram: &[u8],
    ) -> Outcome {
        let Some(secured) = &mut self.secured else { return Outcome::Pending };
        // A peer that is ahead may ask for something already: it will ask again.
        match secured.exchanges.receive(ctx, from, header, datagram, |_| false) {
            Arrival::Response(response) if response.exchange == ExchangeType::IKE_INTERMEDIATE => {
                match self.finish_intermediate(ctx, start, &response) {
                    Ok(outcome) => outcome,
                    Err(reason) => self.fail(ctx, start, reason, false),
                }
            }
            Arrival::Response(response) => self.take_response(ctx, start, response),
            Arrival::Request(_) | Arrival::Nothing => Outcome::Pending,
        }
    }

    /// Starts what comes after IKE_SA_INIT.
    pub(super) fn begin(&mut self, ctx: &mut Context<'_>, start: &mut Start) -> Outcome {
        self.start_intermediate(ctx, start, 0)
    }

    fn start_intermediate(&mut self, ctx: &mut Context<'_>, start: &mut Start, index: usize) -> Outcome {
        let Some(secured) = &mut self.secured else { return Outcome::Pending };
        let Some(method) = secured.suite.additional.get(index).copied() else { return self.start_auth(ctx, start) };
        let ke = match method.generate() {
            Ok(ke) => ke,
            Err(error) => return self.fail(ctx, start, error.to_string(), false),
        };
        let inner = Inner::new(|chain| {
            chain.ke(method.id(), ke.public());
        });
        secured.note_request(secured.exchanges.next_request_id(), inner.first, &inner.bytes);
        secured.exchanges.request(ctx, &start.path, ExchangeType::IKE_INTERMEDIATE, inner);
        self.step = Step::Intermediate(index, Some(ke));
        Outcome::Pending
    }

    fn finish_intermediate(
        &mut self,
        ctx: &mut Context<'_>,
        start: &mut Start,
        response: &Plain,
    ) -> Result<Outcome, String> {
        let (Some(secured), Step::Intermediate(index, ke)) = (&mut self.secured, &mut self.step) else {
            return Ok(Outcome::Pending);
        };
        let (index, Some(ke)) = (*index, ke.take()) else { return Ok(Outcome::Pending) };
        let public = intermediate::response_ke(response, ke.method().id())?;
        let shared = ke.finish(public.data).map_err(|error| error.to_string())?;
        secured.note_response(response.message_id, (response.first, &response.bytes));
        secured.update_keys(ctx, &shared)?;
        Ok(self.start_intermediate(ctx, start, index + 1))
    }

    fn start_auth(&mut self, ctx: &mut Context<'_>, start: &mut Start) -> Outcome {
        let Some(secured) = &mut self.secured else { return Outcome::Pending };
        secured.auth_id = Some(secured.exchanges.next_request_id());
        let connection = start.connection();
        match connection.ppk_id.as_ref().and_then(IdPattern::exact) {
            Some(name) if secured.peer.ppk => {
                let question = Question::Ppk(name.clone());
                self.ask(ctx, Step::AskedPpk, question)
            }
            Some(_) if connection.ppk_required => {
                self.fail(ctx, start, "the peer knows no post-quantum preshared keys".to_owned(), false)
            }
            None if connection.ppk_required => {
                let reason = "ppk_required needs a ppk_id that names one key to initiate".to_owned();
                self.fail(ctx, start, reason, false)
            }
            _ => self.start_round(ctx, start),
        }
    }

    fn ask(&mut self, ctx: &mut Context<'_>, step: Step, question: Question) -> Outcome {
        let Some(secured) = &self.secured else { return Outcome::Pending };
        self.step = step;
        self.wait = Some(ctx.ask(secured.id, question));
        Outcome::Pending
    }

    pub(super) fn answer(
        &mut self,
        ctx: &mut Context<'_>,
        start: &mut Start,
        ticket: Ticket,
        answer: Answer,
    ) -> Outcome {
        if self.wait != Some(ticket) {
            return Outcome::Pending;
        }
        self.wait = None;
        let step = std::mem::replace(&mut self.step, Step::Sent);
        match (step, answer) {
            (Step::AskedPpk, Answer::Ppk(ppk)) => self.take_ppk(ctx, start, ppk),
            (Step::AskedSign, Answer::Signed(Ok(signed))) => self.take_signed(ctx, start, signed),
            (Step::AskedPlain(signed), Answer::Signed(Ok(plain))) => self.send(ctx, start, Some((signed, Some(plain)))),
            (Step::AskedSign | Step::AskedPlain(_), Answer::Signed(Err(refusal))) => {
                let reason = format!("this host cannot authenticate: {}", refusal.0);
                self.fail(ctx, start, reason, true)
            }
            (Step::AskedVerify, Answer::Verified(Ok(verified))) => self.take_verified(ctx, start, &verified),
            (Step::AskedVerify, Answer::Verified(Err(refusal))) => {
                ctx.count(counters::AUTH_FAILED);
                let reason = format!("the peer is not who it says: {}", refusal.0);
                self.fail(ctx, start, reason, true)
            }
            (Step::AskedEap, Answer::Eap(answer)) => self.take_eap(ctx, start, answer),
            _ => self.fail(ctx, start, "an answer does not fit its question".to_owned(), true),
        }
    }

    fn take_ppk(&mut self, ctx: &mut Context<'_>, start: &mut Start, ppk: Option<Secret>) -> Outcome {
        let Some(secured) = &mut self.secured else { return Outcome::Pending };
        match ppk {
            Some(ppk) => {
                secured.mix(&ppk);
                self.ppk = Ppk::Have;
            }
            None if start.connection().ppk_required => {
                return self.fail(ctx, start, "the post-quantum preshared key is not known here".to_owned(), true);
            }
            None => (),
        }
        self.start_round(ctx, start)
    }

    /// The next round of this host.
    fn start_round(&mut self, ctx: &mut Context<'_>, start: &mut Start) -> Outcome {
        let round = self.local_round;
        let Some(auth) = start.connection().local.get(round) else { return self.send(ctx, start, None) };
        self.eap = EapState::None;
        if matches!(auth.method, AuthMethod::Eap(_)) {
            self.local_id = Some(own_id(&auth.id).unwrap_or_else(|| address_id(start.path.local)));
            self.eap = EapState::Running { method: None, last: 0 };
            return self.send(ctx, start, None);
        }
        self.sign(ctx, start, None)
    }

    fn take_response(&mut self, ctx: &mut Context<'_>, start: &mut Start, response: Plain) -> Outcome {
        let parts = match AuthParts::read(response.payloads()) {
            Ok(parts) => parts,
            Err(refused) => return self.fail(ctx, start, refused.reason, true),
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
            return self.fail(ctx, start, reason, false);
        }
        if let Some(authorities) = certificate_requests(response.payloads()) {
            self.authorities.get_or_insert_with(Requested::default).extend(authorities);
        }
        self.mobike |= parts.has(NotifyType::MOBIKE_SUPPORTED);
        if self.auth_sent
            && let Ppk::Offered { fallback } = self.ppk
        {
            let with = parts.has(NotifyType::PPK_IDENTITY);
            if !with && !fallback {
                return self.fail(ctx, start, "the peer does not have the post-quantum preshared key".to_owned(), true);
            }
            self.ppk = Ppk::Settled;
            if let Some(secured) = &mut self.secured {
                secured.ppk = with;
            }
        }
        let verify = self.verify(start, &parts);
        drop(parts);
        self.response = Some(response);
        match verify {
            Err(reason) => self.fail(ctx, start, reason, true),
            Ok(Some(question)) => self.ask(ctx, Step::AskedVerify, question),
            Ok(None) => self.proceed(ctx, start),
        }
    }

    /// The question about the peer's AUTH, if there is one.
    fn verify(&mut self, start: &Start, parts: &AuthParts<'_>) -> Result<Option<Question>, String> {
        let Some(secured) = &self.secured else { return Ok(None) };
        let after_eap = matches!(self.eap, EapState::Done(_)) && self.auth_sent;
        if let Some(id) = &parts.id_r
            && !after_eap
        {
            self.remote_id = Some(id.clone());
        }
        let Some((method, auth)) = &parts.auth else {
            // The proof of the key that EAP made is what authenticates the end of EAP.
            return if after_eap { Err("the peer leaves AUTH after EAP out".to_owned()) } else { Ok(None) };
        };
        let Some(remote) = &self.remote_id else { return Err("the peer sends AUTH without IDr".to_owned()) };
        let connection = start.connection();
        let round = if after_eap { self.remote_round.saturating_sub(1) } else { self.remote_round };
        if round >= connection.remote.len() {
            return Err("the peer authenticates itself once more than it should".to_owned());
        }
        let eap_msk = self.eap_key(secured, Role::Responder, secured.ppk).filter(|_| after_eap);
        if after_eap && *method != AuthMethodId::PSK {
            return Err("the peer's AUTH after EAP is no shared key code".to_owned());
        }
        let claim = Claim {
            remote_id: &remote.id,
            id_body: &remote.body,
            local_id: self.local_id.clone(),
            method: *method,
            auth: auth.clone(),
            certs: parts.certs.clone(),
            eap_msk,
        };
        let request = secured.verify_request(vec![connection.clone()], round, claim, secured.ppk);
        Ok(Some(Question::Verify(Box::new(request))))
    }

    fn take_verified(&mut self, ctx: &mut Context<'_>, start: &mut Start, verified: &Verified) -> Outcome {
        let after_eap = matches!(self.eap, EapState::Done(_)) && self.auth_sent;
        if !after_eap || self.remote_round == 0 {
            self.remote_round += 1;
        }
        self.valid_for = earlier(self.valid_for, verified.valid_for);
        self.proceed(ctx, start)
    }

    /// Everything about the peer's identity in the response was checked: what does it want next?
    fn proceed(&mut self, ctx: &mut Context<'_>, start: &mut Start) -> Outcome {
        let Some(response) = self.response.take() else { return Outcome::Pending };
        let Ok(parts) = AuthParts::read(response.payloads()) else { return Outcome::Pending };
        let connection = start.connection().clone();
        if let Some(data) = parts.notify(NotifyType::REDIRECT)
            && self.remote_round > 0
        {
            return match redirect::target(data, None) {
                Ok(to) => {
                    self.say_goodbye(ctx, start, None);
                    self.abandon(ctx);
                    start.redirect(ctx, to)
                }
                Err(reason) => self.fail(ctx, start, reason, true),
            };
        }
        if let Some(packet) = &parts.eap {
            return match self.check_eap(&connection, packet) {
                Ok(()) => self.ask_eap(ctx, start, packet),
                Err(reason) => self.fail(ctx, start, reason, true),
            };
        }
        if !self.auth_sent && self.local_round < connection.local.len() {
            return self.fail(ctx, start, "the peer does not start EAP".to_owned(), true);
        }
        if std::mem::take(&mut self.auth_sent) {
            self.local_round += 1;
            self.eap = EapState::None;
        }
        let more = parts.has(NotifyType::ANOTHER_AUTH_FOLLOWS);
        let missing = connection.remote.len() - self.remote_round.min(connection.remote.len());
        if self.local_round < connection.local.len() {
            drop(parts);
            return self.start_round(ctx, start);
        }
        match (more, missing) {
            (true, 1..) => self.send(ctx, start, None),
            (true, 0) => {
                self.fail(ctx, start, "the peer authenticates itself more often than it should".to_owned(), true)
            }
            (false, 1..) => self.fail(ctx, start, "the peer did not authenticate itself".to_owned(), true),
            (false, 0) => {
                drop(parts);
                self.finish(ctx, start, &response)
            }
        }
    }
}

/// An error that ends the handshake. Others are about the Child SA alone (RFC 7296 §1.2).
fn fatal(parts: &AuthParts<'_>, remote_round: usize) -> Option<NotifyType> {
    let kind = parts.error()?;
    let always = [
        NotifyType::AUTHENTICATION_FAILED,
        NotifyType::INVALID_SYNTAX,
        NotifyType::UNSUPPORTED_CRITICAL_PAYLOAD,
        NotifyType::INVALID_MAJOR_VERSION,
        NotifyType::INVALID_IKE_SPI,
    ];
    let alone = parts.auth.is_none() && parts.eap.is_none() && remote_round == 0;
    (alone || always.contains(&kind)).then_some(kind)
}

/// The identity that a pattern without wildcards names.
pub(super) fn own_id(pattern: &IdPattern) -> Option<Identity> {
    pattern.exact().cloned()
}

/// An address as identity.
pub(super) fn address_id(addr: SocketAddr) -> Identity {
    Identity::of_addr(addr.ip())
}

/// The shorter of two times that may be missing.
pub(super) fn earlier(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
