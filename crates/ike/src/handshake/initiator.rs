//! The initiator of an IKE SA until IKE_SA_INIT is through.
//!
//! Nothing in this exchange is authenticated: error notifies are stored until a timeout, because
//! the genuine response may still arrive (RFC 7296 §2.21.1).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::ike::{KeInitiator, KeMethod, Secret};
use wire::ike::{ExchangeType, Header, NotifyType, Payloads};

use super::init::{self, Announced, Requested, status};
use super::initiator_auth::{Authenticating, Step};
use super::redirect;
use super::{Ended, Gateway, Outcome, Redirects, Secured, counters};
use crate::child::Parts;
use crate::config::Connection;
use crate::context::Context;
use crate::error::IkeError;
use crate::exchange::{Exchanges, Resend, SaIds, Unanswered, send};
use crate::keymat::{self, IkeKeys, IntAuth, Seed};
use crate::nat;
use crate::output::{CredentialResponse, IkeId, IkeSpi, IkeSpis, Level, Path, RequestId, Subsystem};
use crate::proposal::{self, IkeSuite};
use crate::sa::{ChildRequest, Initiation, PeerSupport, Role};

/// Time to wait for another response after an unauthenticated error notify.
const PATIENCE: Duration = Duration::from_secs(2);
/// Cookies that are sent back in one attempt; a responder needs one, or two when it changes its
/// secret.
const COOKIES_MAX: u32 = 4;
/// Longest cookie (RFC 7296 §2.6).
const COOKIE_MAX: usize = 64;

/// The initiator of an IKE SA that is not authenticated.
pub(crate) struct Initiator {
    start: Start,
    phase: Phase,
}

/// Parameters of the attempt.
pub(super) struct Start {
    pub(super) id: IkeId,
    pub(super) initiation: Initiation,
    pub(super) redirects: Redirects,
    pub(super) spi: IkeSpi,
    pub(super) path: Path,
}

/// State of an initiator. Each step takes it out and puts the next one in.
enum Phase {
    Init(Box<Init>),
    Auth(Authenticating),
    /// The handshake has ended, or a step is running. The endpoint makes no step after the end.
    Ended,
}

/// IKE_SA_INIT is sent.
struct Init {
    /// The public value sent.
    ke: KeInitiator,
    nonce: Vec<u8>,
    cookie: Option<Vec<u8>>,
    cookies: u32,
    /// Methods that were tried.
    tried: Vec<KeMethod>,
    message: Vec<u8>,
    resend: Resend,
    /// Stored error response, and the deadline for a better one.
    failure: Option<(Instant, String)>,
}

impl Initiator {
    /// Sends IKE_SA_INIT.
    ///
    /// # Errors
    /// No key exchange is possible. The parameters of the attempt are returned with the reason.
    pub(crate) fn start(
        ctx: &mut Context<'_>,
        id: IkeId,
        spi: IkeSpi,
        path: Path,
        initiation: Initiation,
        redirects: Redirects,
    ) -> Result<Self, Box<(IkeError, Initiation)>> {
        let Some(method) = initiation.connection.proposals.iter().find_map(|proposal| proposal.ke.first()).copied()
        else {
            return Err(Box::new((IkeError::proposal("no proposal has a key exchange method"), initiation)));
        };
        let ke = match method.generate() {
            Ok(ke) => ke,
            Err(error) => return Err(Box::new((IkeError::no_key_pair(error), initiation))),
        };
        let start = Start { id, initiation, redirects, spi, path };
        let nonce = init::nonce(ctx);
        let mut init = Init {
            tried: vec![method],
            ke,
            nonce,
            cookie: None,
            cookies: 0,
            message: Vec::new(),
            resend: Resend::new(ctx.now, &start.initiation.connection.retransmit, Vec::new()),
            failure: None,
        };
        let connection = &start.initiation.connection;
        let text = format!(
            "initiating the IKE SA of '{}' from {} to {}, attempt {}",
            connection.name, path.local, path.remote, start.initiation.attempt
        );
        ctx.log(Level::Info, Subsystem::Ike, Some(id), text);
        init.send(ctx, &start);
        Ok(Self { start, phase: Phase::Init(Box::new(init)) })
    }

    pub(crate) fn handle(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) -> Outcome {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Init(init) => {
                // Nothing is authenticated yet. The comparison of addresses excludes forgeries by
                // hosts that cannot spoof the address of the responder.
                let expected = header.exchange == ExchangeType::IKE_SA_INIT
                    && header.is_response()
                    && !header.from_initiator()
                    && header.message_id.get() == 0
                    && from.remote == self.start.path.remote;
                if !expected {
                    ctx.count(counters::OUT_OF_ORDER);
                    self.phase = Phase::Init(init);
                    return Outcome::Waiting;
                }
                match init.handle(ctx, &mut self.start, Response { from: *from, header, datagram }) {
                    Next::Wait(init) => {
                        self.phase = Phase::Init(init);
                        Outcome::Waiting
                    }
                    Next::Redirect(to) => Outcome::Ended(self.start.redirect(ctx, to)),
                    Next::Secured(secured, authorities) => {
                        let step = Authenticating::begin(*secured, authorities, ctx, &mut self.start);
                        self.take(step)
                    }
                    Next::Failed(reason) => self.fail_init(ctx, &reason),
                }
            }
            Phase::Auth(auth) => {
                let step = auth.handle(ctx, &mut self.start, from, header, datagram);
                self.take(step)
            }
            Phase::Ended => Outcome::internal(ctx, self.start.id, "a message for an initiator that has ended"),
        }
    }

    /// Puts the next state in.
    fn take(&mut self, step: Step) -> Outcome {
        match step {
            Step::Wait(auth) => {
                self.phase = Phase::Auth(auth);
                Outcome::Waiting
            }
            Step::Up(up) => Outcome::Up(up),
            Step::Ended(over) => Outcome::Ended(over),
        }
    }

    pub(crate) fn answer(
        &mut self,
        ctx: &mut Context<'_>,
        request_id: RequestId,
        answer: CredentialResponse,
    ) -> Outcome {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Auth(auth) => {
                let step = auth.answer(ctx, &mut self.start, request_id, answer);
                self.take(step)
            }
            Phase::Init(_) | Phase::Ended => {
                let error = IkeError::Internal("a credential response for an initiator without a request".into());
                ctx.note_internal(self.start.id, &error);
                Outcome::Ended(Box::new(self.start.over(error.to_string())))
            }
        }
    }

    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context<'_>) -> Outcome {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Auth(auth) => {
                let step = auth.handle_timeout(ctx, &mut self.start);
                self.take(step)
            }
            Phase::Init(mut init) => match init.handle_timeout(ctx, &self.start) {
                None => {
                    self.phase = Phase::Init(init);
                    Outcome::Waiting
                }
                Some(reason) => self.fail_init(ctx, &reason),
            },
            Phase::Ended => Outcome::internal(ctx, self.start.id, "a timer of an initiator that has ended"),
        }
    }

    /// Retransmission state of the outstanding request.
    pub(crate) fn unanswered(&self) -> Option<Unanswered> {
        match &self.phase {
            Phase::Init(init) => init.resend.unanswered(&self.start.initiation.connection.retransmit),
            Phase::Auth(auth) => auth.unanswered(),
            Phase::Ended => None,
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Init(init) => {
                let failure = init.failure.as_ref().map(|(until, _)| *until);
                Some(failure.map_or(init.resend.due(), |until| until.min(init.resend.due())))
            }
            Phase::Auth(auth) => auth.deadline(),
            Phase::Ended => None,
        }
    }

    pub(crate) fn request_id(&self) -> Option<RequestId> {
        match &self.phase {
            Phase::Init(_) | Phase::Ended => None,
            Phase::Auth(auth) => auth.request_id(),
        }
    }

    #[cfg(any(test, feature = "testkit"))]
    pub(crate) fn exchanges(&mut self) -> Option<&mut Exchanges> {
        match &mut self.phase {
            Phase::Init(_) | Phase::Ended => None,
            Phase::Auth(auth) => Some(auth.exchanges()),
        }
    }

    pub(crate) fn id(&self) -> IkeId {
        self.start.id
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.start.initiation.connection
    }

    pub(crate) fn path(&self) -> Path {
        self.start.path
    }

    pub(crate) fn spis(&self) -> IkeSpis {
        match &self.phase {
            Phase::Init(_) | Phase::Ended => IkeSpis::new(self.start.spi, IkeSpi::ZERO),
            Phase::Auth(auth) => auth.spis(),
        }
    }

    /// Adds requests for the IKE SA to execute once it is established. False if its limit is
    /// reached.
    pub(crate) fn want(&mut self, child: Option<ChildRequest>, command: Option<u64>) -> bool {
        self.start.initiation.want(child, command)
    }

    /// Requests to execute.
    pub(crate) fn initiation(&self) -> &Initiation {
        &self.start.initiation
    }

    pub(crate) fn cancel(&mut self, ctx: &mut Context<'_>, reason: &str) -> Ended {
        if let Phase::Auth(auth) = &mut self.phase {
            auth.abandon(ctx);
        }
        self.start.over(reason.to_owned())
    }

    /// IKE_SA_INIT failed: retry later, if configured.
    fn fail_init(&mut self, ctx: &mut Context<'_>, reason: &str) -> Outcome {
        // The next packet is the retry. Attempts without traffic would keep state for every
        // destination of a scan.
        let tries = if self.start.initiation.by_packet { 1 } else { self.start.initiation.connection.keyingtries };
        let mut over = self.start.over(reason.to_owned());
        if tries == 0 || self.start.initiation.attempt < tries {
            ctx.count(counters::RETRIED);
            let attempt = self.start.initiation.attempt.saturating_add(1);
            let again = self.start.again(&mut over, attempt, self.start.initiation.remote);
            over.next = Some((again, self.start.redirects, true));
        }
        Outcome::Ended(Box::new(over))
    }
}

impl Start {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.initiation.connection
    }

    /// The end of the attempt, with all waiting requests.
    pub(super) fn over(&mut self, reason: String) -> Ended {
        Ended {
            reason,
            next: None,
            commands: std::mem::take(&mut self.initiation.commands),
            children: std::mem::take(&mut self.initiation.children),
        }
    }

    /// The next attempt: takes over the waiting requests.
    fn again(&self, over: &mut Ended, attempt: u32, remote: Option<SocketAddr>) -> Initiation {
        Initiation {
            host: None,
            connection: self.initiation.connection.clone(),
            children: std::mem::take(&mut over.children),
            remote,
            attempt,
            replaces: self.initiation.replaces,
            addresses: self.initiation.addresses.clone(),
            commands: std::mem::take(&mut over.commands),
            by_packet: self.initiation.by_packet,
        }
    }

    /// Ends this attempt in favour of one with another gateway.
    pub(super) fn redirect(&mut self, ctx: &mut Context<'_>, to: Gateway) -> Box<Ended> {
        let from = self.path.remote;
        if self.initiation.by_packet {
            // Another host cannot be given the packets: their destination is the peer.
            return Box::new(self.over(format!("{from} redirects, but packets for it need an SA with it")));
        }
        let Some(redirects) = self.redirects.follow(ctx.now, from.ip()) else {
            return Box::new(self.over(format!("{from} redirects once more: this is a loop")));
        };
        ctx.count(counters::REDIRECTED);
        let (name, remote, host) = match to {
            Gateway::At(to) => (to.ip().to_string(), Some(to), None),
            Gateway::Named(name) => (name.clone(), None, Some(name)),
        };
        let mut over = self.over(format!("{from} redirects to {name}"));
        let again = Initiation { host, ..self.again(&mut over, self.initiation.attempt, remote) };
        over.next = Some((again, redirects, false));
        Box::new(over)
    }
}

/// A datagram that answers IKE_SA_INIT.
#[derive(Clone, Copy)]
struct Response<'a> {
    /// Addresses of the datagram.
    from: Path,
    header: &'a Header,
    datagram: &'a [u8],
}

impl<'a> Response<'a> {
    fn payloads(&self) -> Payloads<'a> {
        Payloads::new(self.header.next, self.datagram.get(Header::LEN..).unwrap_or_default())
    }
}

/// Result of a response to IKE_SA_INIT.
enum Next {
    Wait(Box<Init>),
    Redirect(Gateway),
    /// Keys, and the authorities that the responder requests.
    Secured(Box<Secured>, Option<Requested>),
    /// No other answer can be used: the key pair is used up.
    Failed(String),
}

/// Parts of an acceptable answer.
struct Accepted<'a> {
    suite: IkeSuite,
    ke: &'a [u8],
    nonce_r: &'a [u8],
    announced: Announced,
    spi_r: IkeSpi,
}

impl Init {
    /// Writes and sends the request, as its retransmissions will repeat it.
    fn send(&mut self, ctx: &mut Context<'_>, start: &Start) {
        let connection = start.connection();
        let ke = &self.ke;
        let spis = IkeSpis::new(start.spi, IkeSpi::ZERO);
        self.message = init::message(spis, false, |chain| {
            // The cookie must be the first payload (RFC 7296 §2.6).
            if let Some(cookie) = &self.cookie {
                status(chain, NotifyType::COOKIE, cookie);
            }
            proposal::emit_ike_offer(chain, &connection.proposals, &[]);
            chain.ke(ke.method().id(), ke.public());
            chain.nonce(&self.nonce);
            nat::emit(chain, spis, &start.path, connection.encap.is_forced());
            init::emit_features(connection, chain);
            start.redirects.emit(chain);
            // Additional key exchanges run in IKE_INTERMEDIATE: an offer of them requires this
            // Notify (RFC 9370 §2.2.1).
            if connection.proposals.iter().any(|proposal| proposal.additional.iter().any(|list| !list.is_empty())) {
                status(chain, NotifyType::INTERMEDIATE_EXCHANGE_SUPPORTED, &[]);
            }
            // The initiator must name one PPK in IKE_AUTH (RFC 8784 §3), which a pattern cannot.
            if connection.ppk_id.as_ref().is_some_and(|id| id.exact().is_some()) {
                status(chain, NotifyType::USE_PPK, &[]);
            }
            if nat::agrees_to_udp(connection) {
                chain.vendor(&nat::UDP_VENDOR_ID);
            }
        });
        let datagrams = vec![self.message.clone()];
        send(ctx, &start.path, connection.dscp, &datagrams);
        self.resend = Resend::new(ctx.now, &connection.retransmit, datagrams);
        self.failure = None;
    }

    /// Sends the request again when it is due. A reason to give up, if there is one.
    fn handle_timeout(&mut self, ctx: &mut Context<'_>, start: &Start) -> Option<String> {
        if let Some((_, reason)) = self.failure.take_if(|(until, _)| *until <= ctx.now) {
            return Some(reason);
        }
        if self.resend.due() > ctx.now {
            return None;
        }
        let connection = start.connection();
        if self.resend.again(ctx.now, &connection.retransmit) {
            ctx.count(counters::RETRANSMISSIONS);
            send(ctx, &start.path, connection.dscp, self.resend.datagrams());
            self.resend.log(ctx, start.id, start.path.remote, &connection.retransmit);
            return None;
        }
        Some(match self.failure.take() {
            Some((_, reason)) => reason,
            None => format!("{} does not answer", start.path.remote),
        })
    }

    fn handle(mut self: Box<Self>, ctx: &mut Context<'_>, start: &mut Start, response: Response<'_>) -> Next {
        let parts = match Parts::read(response.payloads()) {
            Ok(parts) if response.datagram.len() <= init::INIT_MAX => parts,
            _ => {
                ctx.count(counters::INIT_INVALID);
                return Next::Wait(self);
            }
        };
        let spi_r = IkeSpi(response.header.spi_r);
        // A cookie challenge is stateless, so its responder SPI is zero (RFC 7296 §2.6).
        if let Some(cookie) = parts.notify(NotifyType::COOKIE).filter(|_| spi_r.is_zero()) {
            self.take_cookie(ctx, start, cookie);
        } else if let Some(data) = parts.notify(NotifyType::INVALID_KE_PAYLOAD) {
            self.change_method(ctx, start, data);
        } else if let Some(data) = parts.notify(NotifyType::REDIRECT) {
            match redirect::target(data, Some(&self.nonce)) {
                Ok(to) => return Next::Redirect(to),
                Err(error) => self.remember(ctx, error.to_string()),
            }
        } else if let Some(error) = parts.error() {
            self.remember(ctx, refusal(start.connection(), error.kind));
        } else {
            match self.check(start, &parts, response) {
                Ok(accepted) => {
                    return self
                        .complete(ctx, start, accepted, response.datagram)
                        .unwrap_or_else(|error| Next::Failed(error.to_string()));
                }
                Err(error) => self.remember(ctx, error.to_string()),
            }
        }
        Next::Wait(self)
    }

    fn remember(&mut self, ctx: &mut Context<'_>, reason: String) {
        // A later error must not postpone the end: a stream of forged errors would delay the next
        // attempt.
        if self.failure.is_none() {
            self.failure = Some((ctx.now + PATIENCE, reason));
        }
    }

    fn take_cookie(&mut self, ctx: &mut Context<'_>, start: &Start, cookie: &[u8]) {
        // A copy of the challenge that was answered already: the network duplicates datagrams, and
        // a responder challenges each retransmission of the request before it.
        if self.cookie.as_deref() == Some(cookie) {
            return;
        }
        self.cookies += 1;
        if cookie.is_empty() || cookie.len() > COOKIE_MAX || self.cookies > COOKIES_MAX {
            return self.remember(ctx, "the peer requests one cookie after the other".to_owned());
        }
        // Nonce and KE payload must not change, because the cookie may be a hash over the nonce
        // (RFC 7296 §2.6).
        self.cookie = Some(cookie.to_vec());
        self.send(ctx, start);
    }

    /// INVALID_KE_PAYLOAD: the method must be one of the offer, and each is tried once.
    fn change_method(&mut self, ctx: &mut Context<'_>, start: &Start, data: &[u8]) {
        let wanted = <[u8; 2]>::try_from(data).ok().and_then(|id| KeMethod::from_id(u16::from_be_bytes(id)));
        // A copy of a response that was followed already: the network duplicates datagrams, and a
        // responder answers each retransmission of the request before it (RFC 7296 §2.7). The first
        // method was this host's own choice, so that a stale response cannot request it.
        if wanted.is_some_and(|method| self.tried.iter().skip(1).any(|tried| *tried == method)) {
            return;
        }
        // A forged response could otherwise select a method that is not configured, or cause an
        // endless exchange.
        let offered = |method: &KeMethod| start.connection().proposals.iter().any(|p| p.ke.contains(method));
        let Some(method) = wanted.filter(|method| offered(method) && !self.tried.contains(method)) else {
            return self.remember(
                ctx,
                "the peer requests a key exchange method that was not offered or that it has refused".to_owned(),
            );
        };
        match method.generate() {
            Ok(ke) => {
                // The cookie is kept, so that the responder need not send another challenge (RFC
                // 7296 §2.6.1).
                self.tried.push(method);
                self.ke = ke;
                self.send(ctx, start);
            }
            Err(error) => self.remember(ctx, error.to_string()),
        }
    }

    /// Checks an answer that is not an error. The key pair stays unused: a better answer may come.
    fn check<'a>(
        &self,
        start: &mut Start,
        parts: &Parts<'a>,
        response: Response<'a>,
    ) -> Result<Accepted<'a>, IkeError> {
        let proposals = &start.initiation.connection.proposals;
        let (Some(sa), Some(ke), Some(nonce_r)) = (&parts.sa, &parts.ke, parts.nonce) else {
            return Err(IkeError::violation("the answer to IKE_SA_INIT lacks SA, KE or nonce"));
        };
        let spi_r = IkeSpi(response.header.spi_r);
        if spi_r.is_zero() {
            return Err(IkeError::violation("the peer's SPI is zero"));
        }
        let (suite, _) = proposal::accept_ike(proposals, sa)?;
        // Checked before `complete`, which consumes the key pair: a forged response must not end
        // the attempt.
        if self.ke.method() != suite.ke || ke.group != suite.ke.id() || ke.data.len() != suite.ke.responder_public_len()
        {
            return Err(IkeError::violation("the peer's KE payload is not of the chosen method"));
        }
        // The source address is not known yet, and a NAT may change it.
        start.path.local.set_ip(response.from.local.ip());
        let spis = IkeSpis::new(start.spi, spi_r);
        let announced = Announced::read(parts, response.payloads(), spis, &start.path);
        if !suite.additional.is_empty() && !announced.peer.intermediate {
            return Err(IkeError::violation("the peer chose additional key exchanges without IKE_INTERMEDIATE"));
        }
        Ok(Accepted { suite, ke: ke.data, nonce_r, announced, spi_r })
    }

    /// Computes the keys, which uses the key pair up.
    fn complete(
        self: Box<Self>,
        ctx: &mut Context<'_>,
        start: &mut Start,
        accepted: Accepted<'_>,
        datagram: &[u8],
    ) -> Result<Next, IkeError> {
        let Self { ke, nonce: nonce_i, message, .. } = *self;
        let Accepted { suite, ke: public, nonce_r, announced, spi_r } = accepted;
        let (connection, spis) = (start.connection().clone(), IkeSpis::new(start.spi, spi_r));
        let shared = ke.finish(public).map_err(IkeError::ke_payload)?;
        let keys = derive(&suite, &nonce_i, nonce_r, spis, &shared);
        let nat = announced.nat.nat();
        // A vendor ID that was not requested is ignored.
        let agreed_udp = announced.peer.agreed_udp && nat::agrees_to_udp(&connection);
        let peer = PeerSupport { agreed_udp, ..announced.peer };
        start.path.encap = announced.nat.supported() && nat::encapsulates(nat, &connection, &peer);
        // With MOBIKE the ports change even without a NAT, because the next path may have one.
        if start.path.encap || (announced.nat.supported() && connection.mobike) {
            nat::float(&mut start.path);
        }
        let sk = Secured::sk_keys(Role::Initiator, &keys, &suite)?;
        keys.disclose(ctx, start.id, spis, &suite);
        let ids = SaIds { id: start.id, role: Role::Initiator, spis };
        let exchanges = Exchanges::new(ids, &connection, &peer, sk, 1);
        let secured = Secured {
            id: start.id,
            role: Role::Initiator,
            spis,
            path: start.path,
            nat,
            peer,
            peer_hashes: announced.hashes,
            suite,
            keys,
            mixed: None,
            ppk: false,
            nonce_i,
            nonce_r: nonce_r.to_vec(),
            // The latest request, with its cookie: AUTH must cover the one that was answered.
            request: message,
            response: datagram.to_vec(),
            int_auth: IntAuth::default(),
            auth_id: None,
            exchanges,
        };
        let text = format!("IKE_SA_INIT is done: {}, NAT here {}, there {}", secured.suite, nat.0, nat.1);
        ctx.log(Level::Debug, Subsystem::Ike, Some(start.id), text);
        Ok(Next::Secured(Box::new(secured), announced.authorities))
    }
}

/// The first keys of an IKE SA.
pub(super) fn derive(suite: &IkeSuite, nonce_i: &[u8], nonce_r: &[u8], spis: IkeSpis, shared: &Secret) -> IkeKeys {
    let seed = Seed { nonce_i, nonce_r, spis };
    IkeKeys::derive(suite, &keymat::skeyseed(suite.prf, &seed, shared), &seed)
}

/// A refusal in IKE_SA_INIT in words for an operator.
fn refusal(connection: &Connection, kind: NotifyType) -> String {
    match kind {
        NotifyType::NO_PROPOSAL_CHOSEN => {
            let ours: Vec<String> = connection.proposals.iter().map(|proposal| proposal.describe()).collect();
            format!("the peer answers NO_PROPOSAL_CHOSEN to {}", ours.join(", "))
        }
        kind => format!("the peer answers {kind} to IKE_SA_INIT"),
    }
}
