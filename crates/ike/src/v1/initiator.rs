//! The initiator of main mode.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::ike::KeInitiator;
use wire::ike::v1::NotifyType;
use wire::ike::{ExchangeType, Header, PayloadType};

use super::counters;
use super::established::{Established, Parameters};
use super::fault::Fault;
use super::message::{Features, Head, Parts, payloads};
use super::nat;
use super::phase1::{
    Basis, Ended, Outcome, Up, both_cookies, clear_parts, local_identity, needed, nonce, notification, request_skeyid,
    skeyid,
};
use super::proposal::{Phase1, accept_phase1, phase1_offer};
use super::protection::{Exchanged, Iv, Protection, is_equal};
use super::selectors;
use crate::config::Connection;
use crate::context::Context;
use crate::exchange::{Resend, Unanswered};
use crate::identity::Identity;
use crate::output::{CredentialResponse, IkeSpi, Level, Output, Path, RequestId};
use crate::sa::{Initiation, Role};

/// Time for a better answer after one that is not acceptable: none is authenticated, so that a
/// forged one must not end the attempt at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// An initiator that is not authenticated.
pub(super) struct Initiator {
    pub(super) basis: Basis,
    pub(super) initiation: Initiation,
    /// Body of the SA payload that was sent; hashes cover it.
    offer: Vec<u8>,
    features: Features,
    /// Lifetime that the peer asks for.
    life: Option<Duration>,
    resend: Option<Resend>,
    /// First answer that was not acceptable.
    failure: Option<(Instant, String)>,
    phase: Phase,
}

/// State: each step takes it out and puts the next one in.
enum Phase {
    SentSa(Vec<Phase1>),
    SentKe(Box<SentKe>),
    Asking(Box<Asking>),
    SentAuth(Box<SentAuth>),
    Checking(Box<Checking>),
    /// A step is running, or the attempt has ended.
    Ended,
}

/// Message 3 was sent.
struct SentKe {
    suite: Phase1,
    pair: KeInitiator,
    nonce: Vec<u8>,
}

/// SKEYID was requested.
struct Asking {
    suite: Phase1,
    exchanged: Exchanged,
    nat: (bool, bool),
    request: RequestId,
}

/// Message 5 was sent.
struct SentAuth {
    suite: Phase1,
    exchanged: Exchanged,
    nat: (bool, bool),
    protection: Protection,
    iv: Iv,
    local_id: Identity,
}

/// The key was found without the identity in message 6, and SKEYID with the key of the identity was
/// requested.
struct Checking {
    sent: SentAuth,
    remote_id: Identity,
    iv: Iv,
    from: Path,
    request: RequestId,
}

impl Initiator {
    /// Sends message 1.
    pub(super) fn start(
        ctx: &mut Context<'_>,
        basis: Basis,
        initiation: Initiation,
    ) -> Result<Self, Box<(String, Initiation)>> {
        let connection = Arc::clone(&initiation.connection);
        let suites = Phase1::of(&connection.proposals);
        if suites.is_empty() {
            return Err(Box::new(("no proposal of the connection can be expressed in IKEv1".to_owned(), initiation)));
        }
        let text = format!(
            "initiating main mode of '{}' from {} to {}, attempt {}",
            connection.name, basis.path.local, basis.path.remote, initiation.attempt
        );
        basis.log(ctx, Level::Info, text);
        let offer = phase1_offer(&suites, announced_life(&connection));
        let message = Head::main(basis.cookies).clear(|chain| {
            chain.raw(PayloadType::SA_V1, &offer);
            Features::emit_all(chain);
        });
        let mut initiator = Self {
            basis,
            initiation,
            offer,
            features: Features::default(),
            life: None,
            resend: None,
            failure: None,
            phase: Phase::SentSa(suites),
        };
        initiator.request(ctx, message);
        Ok(initiator)
    }

    fn connection(&self) -> &Arc<Connection> {
        &self.initiation.connection
    }

    /// Sends a message that the peer must answer.
    fn request(&mut self, ctx: &mut Context<'_>, message: Vec<u8>) {
        let connection = Arc::clone(self.connection());
        self.resend = Some(Resend::new(ctx.now, &connection.retransmit, vec![message.clone()]));
        self.basis.send(ctx, &connection, message);
    }

    pub(super) fn request_id(&self) -> Option<RequestId> {
        match &self.phase {
            Phase::Asking(asking) => Some(asking.request),
            Phase::Checking(checking) => Some(checking.request),
            _ => None,
        }
    }

    pub(super) fn unanswered(&self) -> Option<Unanswered> {
        self.resend.as_ref()?.unanswered(&self.connection().retransmit)
    }

    /// Takes a datagram with the cookie of this host.
    pub(super) fn handle(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) -> Outcome {
        let cookie_r = IkeSpi(header.spi_r);
        let known = self.basis.cookies.responder;
        // The cookie of the responder is chosen in message 2. Its address was chosen by this host.
        if from.remote.ip() != self.basis.path.remote.ip() || (!known.is_zero() && known != cookie_r) {
            ctx.count(counters::MAIN_INVALID);
            return Outcome::Pending;
        }
        let body = &datagram[Header::LEN..];
        if header.exchange == ExchangeType::INFORMATIONAL_V1 {
            self.take_notification(ctx, header, body);
            return Outcome::Pending;
        }
        if header.exchange != ExchangeType::ID_PROT || header.message_id.get() != 0 || cookie_r.is_zero() {
            ctx.count(counters::MAIN_INVALID);
            return Outcome::Pending;
        }
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::SentSa(suites) => match self.take_sa(ctx, from, &suites, header, body) {
                Ok(sent) => self.phase = Phase::SentKe(Box::new(sent)),
                Err(fault) => {
                    self.phase = Phase::SentSa(suites);
                    self.remember(ctx, &fault);
                }
            },
            Phase::SentKe(sent) => match read_ke(&sent, header, body) {
                Ok(read) => return self.take_ke(ctx, from, *sent, read),
                Err(fault) => {
                    self.phase = Phase::SentKe(sent);
                    // A repeated message 2 is no fault.
                    if !matches!(fault, Fault::Violation(ref text) if text.starts_with("KE is missing")) {
                        self.remember(ctx, &fault);
                    }
                }
            },
            Phase::SentAuth(sent) => match self.read_auth(&sent, header, body) {
                Ok((remote_id, iv, life)) => {
                    self.life = [self.life, life].into_iter().flatten().min();
                    return self.take_auth(ctx, from, *sent, (remote_id, iv));
                }
                Err(fault) => {
                    self.phase = Phase::SentAuth(sent);
                    // Clear text is a repeated message 4.
                    if header.flags & Header::FLAG_V1_ENCRYPTION != 0 {
                        ctx.count(counters::KEY_MISMATCH);
                        self.remember(ctx, &fault);
                    }
                }
            },
            phase => self.phase = phase,
        }
        Outcome::Pending
    }

    /// An error of a peer, which is not authenticated: it does not end the attempt.
    fn take_notification(&mut self, ctx: &mut Context<'_>, header: &Header, body: &[u8]) {
        let clear = clear_parts(header, body).ok().and_then(|parts| parts.error());
        let Some(kind) = clear.or_else(|| self.encrypted_error(header, body)) else { return };
        self.remember(ctx, &Fault::authentication(format!("the peer answers {kind}")));
    }

    /// An error that the peer has encrypted after message 5: it has the keys, but refuses the
    /// identity.
    fn encrypted_error(&self, header: &Header, body: &[u8]) -> Option<NotifyType> {
        let Phase::SentAuth(sent) = &self.phase else { return None };
        if header.flags & Header::FLAG_V1_ENCRYPTION == 0 {
            return None;
        }
        let message_id = header.message_id.get();
        let iv = sent.protection.iv(&sent.iv, message_id);
        let (plain, _) = sent.protection.open(&iv, body).ok()?;
        let parts = Parts::read(header.next, &plain).ok()?;
        if sent.protection.has_hash_1(message_id, &parts) { parts.error() } else { None }
    }

    /// Remembers why the attempt will fail if no better answer comes.
    fn remember(&mut self, ctx: &mut Context<'_>, fault: &Fault) {
        self.basis.log(
            ctx,
            Level::Debug,
            format!("an answer of {} is not acceptable: {fault}", self.basis.path.remote),
        );
        if self.failure.is_none() {
            self.failure = Some((ctx.now + PATIENCE, fault.to_string()));
        }
    }

    /// Message 2: sends message 3.
    fn take_sa(
        &mut self,
        ctx: &mut Context<'_>,
        from: &Path,
        suites: &[Phase1],
        header: &Header,
        body: &[u8],
    ) -> Result<SentKe, Fault> {
        let parts = clear_parts(header, body)?;
        let (suite, life) = accept_phase1(suites, needed(parts.sa, "SA")?)?;
        let pair = suite.ke.generate()?;
        self.features = Features::of(&parts.vendors);
        self.life = life;
        self.basis.cookies.responder = IkeSpi(header.spi_r);
        // The source address may have been unknown when message 1 was sent.
        self.basis.path.local.set_ip(from.local.ip());
        self.failure = None;
        let nonce = nonce(ctx);
        let (cookies, path, encap) = (self.basis.cookies, self.basis.path, self.connection().encap);
        let message = Head::main(cookies).clear(|chain| {
            chain.raw(PayloadType::KE_V1, pair.public()).raw(PayloadType::NONCE_V1, &nonce);
            if let Some(kind) = self.features.nat_traversal {
                nat::emit(chain, kind, suite.hash, cookies, &path, encap);
            }
        });
        self.request(ctx, message);
        Ok(SentKe { suite, pair, nonce })
    }

    /// Message 4: requests SKEYID.
    fn take_ke(&mut self, ctx: &mut Context<'_>, from: &Path, sent: SentKe, read: ReadKe) -> Outcome {
        let SentKe { suite, pair, nonce } = sent;
        // Some peers announce DPD in this message. NAT traversal had to be announced before NAT-D.
        self.features.dpd |= read.dpd;
        let public_i = pair.public().to_vec();
        let shared = match pair.finish(&read.public) {
            Ok(shared) => shared,
            Err(fault) => return self.fail(ctx, &Fault::from(fault).to_string()),
        };
        let nat_d: Vec<&[u8]> = read.nat_d.iter().map(|data| &data[..]).collect();
        let seen = Path { local: from.local, remote: from.remote, encap: false };
        let nat = match self.features.nat_traversal {
            Some(_) => nat::detect(&nat_d, suite.hash, self.basis.cookies, &seen),
            None => (false, false),
        };
        let exchanged = Exchanged { public_i, public_r: read.public, nonce_i: nonce, nonce_r: read.nonce, shared };
        self.resend = None;
        self.failure = None;
        let connection = Arc::clone(self.connection());
        let request = request_skeyid(ctx, &self.basis, &connection, None, (suite.prf, exchanged.nonces()));
        self.phase = Phase::Asking(Box::new(Asking { suite, exchanged, nat, request }));
        Outcome::Pending
    }

    /// SKEYID.
    pub(super) fn answer(
        &mut self,
        ctx: &mut Context<'_>,
        request: RequestId,
        response: CredentialResponse,
    ) -> Outcome {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Asking(asking) if asking.request == request => self.keyed(ctx, *asking, response),
            Phase::Checking(checking) if checking.request == request => self.checked(ctx, *checking, response),
            phase => {
                self.phase = phase;
                Outcome::Pending
            }
        }
    }

    /// Sends message 5.
    fn keyed(&mut self, ctx: &mut Context<'_>, asking: Asking, response: CredentialResponse) -> Outcome {
        let Asking { suite, exchanged, nat, .. } = asking;
        let made = skeyid(response).and_then(|skeyid| {
            Protection::new(&suite, skeyid, &exchanged, self.basis.cookies).map_err(|fault| fault.to_string())
        });
        let (protection, mut iv) = match made {
            Ok(made) => made,
            Err(reason) => return self.over(reason),
        };
        protection.disclose(ctx, &self.basis, &suite);
        let connection = Arc::clone(self.connection());
        self.basis.path.encap = self.features.nat_traversal.is_some() && (nat.0 || nat.1 || connection.encap);
        if self.basis.path.encap {
            crate::nat::float(&mut self.basis.path);
        }
        let local_id = local_identity(&connection, &self.basis.path);
        let id_body = local_id.payload_body();
        let cookies = self.basis.cookies;
        let hash = protection.hash_phase1(true, &exchanged, cookies, &self.offer, &id_body);
        // With the other host's Child SAs in place a replacement must not announce a first contact,
        // and neither may a second attempt beside an ISAKMP SA.
        let remote_id = connection.remote.first().and_then(|auth| auth.id.exact()).cloned();
        let contact = self.initiation.replaces.is_none()
            && remote_id.is_some_and(|remote| ctx.names.begin_contact(self.basis.id, (local_id.clone(), remote)));
        let (first, body) = payloads(|chain| {
            chain.raw(PayloadType::ID_V1, &id_body).raw(PayloadType::HASH_V1, &hash);
            if contact {
                notification(chain, NotifyType::INITIAL_CONTACT, &both_cookies(cookies), &[]);
            }
        });
        let message = protection.seal(&mut iv, &Head::main(cookies), first, &body);
        self.request(ctx, message);
        self.phase = Phase::SentAuth(Box::new(SentAuth { suite, exchanged, nat, protection, iv, local_id }));
        Outcome::Pending
    }

    /// Message 6: the identity of the peer, the last block of phase 1, and the lifetime of the
    /// responder.
    fn read_auth(&self, sent: &SentAuth, header: &Header, body: &[u8]) -> Result<Authenticated, Fault> {
        if header.flags & Header::FLAG_V1_ENCRYPTION == 0 {
            return Err(Fault::violation("message 6 is in clear text"));
        }
        let (plain, iv) = sent.protection.open(&sent.iv, body).map_err(|_| Fault::key())?;
        // What another key decrypts to is hardly ever a chain of payloads.
        let parts = Parts::read(header.next, &plain).map_err(|_| Fault::key())?;
        let id_body = parts.ids.first().ok_or_else(Fault::key)?;
        let cookies = self.basis.cookies;
        let hash = sent.protection.hash_phase1(false, &sent.exchanged, cookies, &self.offer, id_body);
        if !is_equal(parts.hash, &hash) {
            return Err(Fault::key());
        }
        let remote_id = selectors::identity(id_body)?;
        let expected = self.connection().remote.first().map(|auth| &auth.id);
        if expected.is_none_or(|pattern| pattern.matches(&remote_id).is_none()) {
            return Err(Fault::authentication(format!("the peer is '{remote_id}', which 'remote.id' does not allow")));
        }
        Ok((remote_id, iv, parts.responder_lifetime()))
    }

    /// The peer has the key. One that was found without its identity must also be the key of the
    /// identity: otherwise a peer could claim the identity of another.
    fn take_auth(
        &mut self,
        ctx: &mut Context<'_>,
        from: &Path,
        sent: SentAuth,
        (remote_id, iv): (Identity, Iv),
    ) -> Outcome {
        let connection = Arc::clone(self.connection());
        if connection.remote.first().is_some_and(|auth| auth.id.exact().is_some()) {
            return self.up(ctx, from, sent, remote_id, iv);
        }
        (self.resend, self.failure) = (None, None);
        let nonces = (sent.suite.prf, sent.exchanged.nonces());
        let request = request_skeyid(ctx, &self.basis, &connection, Some(&remote_id), nonces);
        self.phase = Phase::Checking(Box::new(Checking { sent, remote_id, iv, from: *from, request }));
        Outcome::Pending
    }

    fn checked(&mut self, ctx: &mut Context<'_>, checking: Checking, response: CredentialResponse) -> Outcome {
        let Checking { sent, remote_id, iv, from, .. } = checking;
        if skeyid(response).is_ok_and(|skeyid| skeyid == sent.protection.keys.skeyid) {
            return self.up(ctx, &from, sent, remote_id, iv);
        }
        let reason = format!("the shared key is not the one of '{remote_id}'");
        self.fail(ctx, &reason)
    }

    fn up(&mut self, ctx: &mut Context<'_>, from: &Path, sent: SentAuth, remote_id: Identity, iv: Iv) -> Outcome {
        let SentAuth { suite, nat, protection, local_id, .. } = sent;
        // Behind a NAT the answer comes from another port than the configured one.
        if nat.1 {
            self.basis.path.remote = from.remote;
        }
        let sa = Established::new(
            ctx,
            Parameters {
                basis: self.basis.clone(),
                connection: Arc::clone(self.connection()),
                role: Role::Initiator,
                suite,
                protection,
                iv_base: iv,
                local_id,
                remote_id,
                features: self.features,
                nat,
                life: self.life,
                last: None,
            },
        );
        Outcome::Up(Box::new(Up {
            sa: Box::new(sa),
            children: std::mem::take(&mut self.initiation.children),
            commands: std::mem::take(&mut self.initiation.commands),
            replaces: self.initiation.replaces,
            initial_contact: false,
        }))
    }

    /// Retransmits or gives up.
    pub(super) fn handle_timeout(&mut self, ctx: &mut Context<'_>) -> Outcome {
        if let Some((_, reason)) = self.failure.take_if(|(at, _)| *at <= ctx.now) {
            return self.fail(ctx, &reason);
        }
        let retransmit = self.connection().retransmit;
        let Some(resend) = self.resend.as_mut().filter(|resend| resend.due() <= ctx.now) else {
            return Outcome::Pending;
        };
        if !resend.again(ctx.now, &retransmit) {
            let reason = format!("{} does not answer", self.basis.path.remote);
            return self.fail(ctx, &reason);
        }
        ctx.count(crate::handshake::counters::RETRANSMISSIONS);
        resend.log(ctx, self.basis.id, self.basis.path.remote, &retransmit);
        let messages = resend.datagrams().to_vec();
        let connection = Arc::clone(self.connection());
        for message in messages {
            self.basis.send(ctx, &connection, message);
        }
        Outcome::Pending
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        super::phase1::earlier(self.resend.as_ref().map(Resend::due), self.failure.as_ref().map(|(at, _)| *at))
    }

    /// Ends the attempt; `keyingtries` may start another one.
    fn fail(&mut self, ctx: &mut Context<'_>, reason: &str) -> Outcome {
        let tries = if self.initiation.by_packet { 1 } else { self.connection().keyingtries };
        let Outcome::Ended(mut ended) = self.over(reason.to_owned()) else { return Outcome::Pending };
        // The Child SAs of an ISAKMP SA that could not be replaced live on without it.
        if tries == 0 || self.initiation.attempt < tries {
            ctx.count(crate::handshake::counters::RETRIED);
            ended.again = Some(Initiation {
                connection: Arc::clone(self.connection()),
                children: std::mem::take(&mut ended.children),
                remote: self.initiation.remote,
                host: None,
                attempt: self.initiation.attempt.saturating_add(1),
                replaces: self.initiation.replaces,
                addresses: Vec::new(),
                commands: std::mem::take(&mut ended.commands),
                by_packet: self.initiation.by_packet,
            });
        }
        Outcome::Ended(ended)
    }

    /// Ends the attempt.
    pub(super) fn over(&mut self, reason: String) -> Outcome {
        self.phase = Phase::Ended;
        Outcome::Ended(Box::new(Ended {
            reason,
            again: None,
            commands: std::mem::take(&mut self.initiation.commands),
            children: std::mem::take(&mut self.initiation.children),
        }))
    }

    /// Ends it without a word to the peer.
    pub(super) fn cancel(&mut self, ctx: &mut Context<'_>, reason: &str) -> Outcome {
        if let Some(request) = self.request_id() {
            ctx.names.request_ids.remove(&request);
            ctx.out.push_back(Output::CancelRequest(request));
        }
        self.over(reason.to_owned())
    }
}

/// Contents of message 6: identity of the peer, last block, lifetime.
type Authenticated = (Identity, Iv, Option<Duration>);

/// Contents of message 4.
struct ReadKe {
    public: Vec<u8>,
    nonce: Vec<u8>,
    nat_d: Vec<Vec<u8>>,
    dpd: bool,
}

fn read_ke(sent: &SentKe, header: &Header, body: &[u8]) -> Result<ReadKe, Fault> {
    let parts = clear_parts(header, body)?;
    let (public, nonce) = (needed(parts.ke, "KE")?, needed(parts.nonce, "NONCE")?);
    sent.suite.ke.check(public)?;
    Ok(ReadKe {
        public: public.to_vec(),
        nonce: nonce.to_vec(),
        nat_d: parts.nat_d.iter().map(|data| data.to_vec()).collect(),
        dpd: Features::of(&parts.vendors).dpd,
    })
}

/// Lifetime of the ISAKMP SA as this host sends it.
pub(super) fn announced_life(connection: &Connection) -> Duration {
    connection.rekey_time.max(connection.reauth_time) + connection.over_time
}
