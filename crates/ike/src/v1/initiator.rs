//! The initiator of phase 1.

mod aggressive;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::ike::{KeInitiator, Secret};
use wire::ike::v1::{DOI_IPSEC, NotifyType};
use wire::ike::{AuthMethodId, Chain, ExchangeType, Header, PayloadType, ProtocolId};

use super::counters;
use super::established::{Established, Parameters};
use super::fault::{Fault, Mismatch};
use super::fragment;
use super::message::{Features, Head, Parts, Requested, payloads};
use super::method::{Method, Proof, XAuthSide};
use super::nat;
use super::phase1::{
    Basis, Claim, Covered, Ended, Keyed, Last, OTHER_RESPONSE, Outcome, Rest, Up, VERIFICATIONS_MAX, both_cookies,
    clear_parts, emit_certreq, emit_signed, local_identity, message_id, needed, nonce, notification, request_skeyid,
    skeyid,
};
use super::proposal::{Phase1, accept_phase1, phase1_offer};
use super::protection::{Exchanged, Iv, Protection};
use crate::config::Connection;
use crate::context::Context;
use crate::exchange::{Resend, Unanswered};
use crate::identity::Identity;
use crate::output::{CredentialRequest, CredentialResponse, IkeSpi, Level, Output, Path, RequestId};
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
    /// CERTREQ payloads of the peer.
    requested: Requested,
    /// Lifetime that the peer requests, and until when its certificate is valid.
    life: Option<Duration>,
    resend: Option<Resend>,
    /// First answer that was not acceptable.
    failure: Option<(Instant, String)>,
    /// Signatures of the peer that were verified.
    verifications: u32,
    phase: Phase,
}

/// State: each step takes it out and puts the next one in.
enum Phase {
    /// The keys of this host were requested, of which the offer depends.
    Preparing(RequestId),
    SentSa(Vec<Phase1>),
    SentKe(Box<SentKe>),
    KeyRequested(Box<KeyRequested>),
    /// SIG_I was requested.
    Signing(Box<Keyed>, RequestId),
    SentAuth(Box<SentAuth>),
    Checking(Box<Checking>),
    Verifying(Box<Verifying>),
    SentAll(Box<aggressive::SentAll>),
    Step(Box<aggressive::Step>),
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
struct KeyRequested {
    suite: Phase1,
    exchanged: Exchanged,
    nat: (bool, bool),
    request: RequestId,
}

/// Message 5 was sent.
struct SentAuth {
    keyed: Box<Keyed>,
    local_id: Identity,
    /// After a message 6 with a signature that was refused.
    refused: Option<Iv>,
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

/// The signature of message 6 is being verified.
struct Verifying {
    sent: SentAuth,
    remote_id: Identity,
    iv: Iv,
    from: Path,
    request: RequestId,
}

impl Initiator {
    /// Sends message 1, or requests the keys of this host before.
    pub(super) fn start(
        ctx: &mut Context<'_>,
        basis: Basis,
        initiation: Initiation,
    ) -> Result<Self, Box<(String, Initiation)>> {
        let connection = Arc::clone(&initiation.connection);
        if Phase1::of(&connection.proposals, &Method::of(&connection, Role::Initiator, None)).is_empty() {
            return Err(Box::new(("no proposal of the connection can be expressed in IKEv1".to_owned(), initiation)));
        }
        let text = format!(
            "initiating {} mode of '{}' from {} to {}, attempt {}",
            if connection.aggressive { "aggressive" } else { "main" },
            connection.name,
            basis.path.local,
            basis.path.remote,
            initiation.attempt
        );
        basis.log(ctx, Level::Info, text);
        let mut initiator = Self {
            basis,
            initiation,
            offer: Vec::new(),
            features: Features::default(),
            requested: Requested::default(),
            life: None,
            resend: None,
            failure: None,
            verifications: 0,
            phase: Phase::Ended,
        };
        if Method::of(&connection, Role::Initiator, None).iter().any(Method::has_signature) {
            let request = CredentialRequest::KeysV1(connection);
            initiator.phase = Phase::Preparing(ctx.request_credentials(initiator.basis.id, request));
        } else if let Outcome::Ended(ended) = initiator.offer(ctx, &[]) {
            return Err(Box::new((ended.reason, initiator.initiation)));
        }
        Ok(initiator)
    }

    /// The keys of this host.
    fn prepared(&mut self, ctx: &mut Context<'_>, response: CredentialResponse) -> Outcome {
        let CredentialResponse::KeysV1(keys) = response else { return self.over(OTHER_RESPONSE.to_owned()) };
        let signers: Vec<AuthMethodId> = keys.signers.iter().map(|(kind, _)| *kind).collect();
        if Method::of(self.connection(), Role::Initiator, Some(&signers)).is_empty() {
            let reason = keys.refusal.map_or_else(|| "no key of this host fits".to_owned(), |refusal| refusal.0);
            return self.over(format!("this host cannot authenticate: {reason}"));
        }
        ctx.names.keys_v1.insert(self.connection().name.clone(), keys.clone());
        self.offer(ctx, &keys.signers)
    }

    /// Sends message 1. `signers` are the keys of this host.
    fn offer(&mut self, ctx: &mut Context<'_>, signers: &[(AuthMethodId, Identity)]) -> Outcome {
        let connection = Arc::clone(self.connection());
        if connection.aggressive {
            return self.offer_all(ctx, signers);
        }
        let kinds: Vec<AuthMethodId> = signers.iter().map(|(kind, _)| *kind).collect();
        let suites = Phase1::of(&connection.proposals, &Method::of(&connection, Role::Initiator, Some(&kinds)));
        self.offer = phase1_offer(&suites, announced_life(&connection));
        let message = Head::main(self.basis.cookies).clear(|chain| {
            chain.raw(PayloadType::SA_V1, &self.offer);
            Features::emit_all(&connection, ctx.settings.cisco_unity, chain);
        });
        self.phase = Phase::SentSa(suites);
        self.request(ctx, message);
        Outcome::Pending
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
            Phase::Preparing(request) | Phase::Signing(_, request) => Some(*request),
            Phase::KeyRequested(requested_key) => Some(requested_key.request),
            Phase::Checking(checking) => Some(checking.request),
            Phase::Verifying(verifying) => Some(verifying.request),
            Phase::Step(step) => Some(step.request()),
            _ => None,
        }
    }

    /// Keys, IV and covered bytes of the message that it waits for, and the identity of the peer
    /// where it is known.
    #[cfg(any(test, feature = "testkit"))]
    pub(super) fn expected(&self) -> Option<(&Keyed, Covered<'_>, Option<&[u8]>)> {
        let Phase::SentAuth(sent) = &self.phase else { return None };
        Some((&sent.keyed, self.covered(), None))
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
        let exchange = match self.connection().aggressive {
            true => ExchangeType::AGGRESSIVE,
            false => ExchangeType::ID_PROT,
        };
        if header.exchange != exchange || header.message_id.get() != 0 || cookie_r.is_zero() {
            ctx.count(counters::MAIN_INVALID);
            return Outcome::Pending;
        }
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::SentSa(suites) => match self.take_sa(ctx, from, &suites, header, body) {
                Ok(sent) => self.phase = Phase::SentKe(Box::new(sent)),
                Err(fault) => {
                    self.phase = Phase::SentSa(suites);
                    ctx.count(counters::MAIN_INVALID);
                    self.remember(ctx, &fault);
                }
            },
            Phase::SentKe(sent) => match read_ke(&sent, header, body) {
                Ok(read) => return self.take_ke(ctx, from, *sent, read),
                Err(fault) => {
                    self.phase = Phase::SentKe(sent);
                    // A repeated message 2 has an SA payload, and is no fault.
                    if is_repeated_answer(header, body) {
                        ctx.count(counters::DUPLICATE);
                    } else {
                        ctx.count(counters::MAIN_INVALID);
                        self.remember(ctx, &fault);
                    }
                }
            },
            Phase::SentAuth(sent) => match self.read_auth(&sent, header, body) {
                Ok(read) => return self.take_auth(ctx, from, *sent, read),
                Err(fault) => {
                    self.phase = Phase::SentAuth(sent);
                    // Clear text is a repeated message 4.
                    if header.flags & Header::FLAG_V1_ENCRYPTION == 0 {
                        ctx.count(counters::DUPLICATE);
                    } else {
                        let is_key = matches!(fault, Fault::Configuration(Mismatch::Key, _));
                        ctx.count(if is_key { counters::KEY_MISMATCH } else { counters::MAIN_INVALID });
                        self.remember(ctx, &fault);
                    }
                }
            },
            Phase::SentAll(sent) => return self.take_all(ctx, from, *sent, (header, datagram)),
            phase => self.phase = phase,
        }
        Outcome::Pending
    }

    /// An error of a peer, which is not authenticated: it does not end the attempt.
    fn take_notification(&mut self, ctx: &mut Context<'_>, header: &Header, body: &[u8]) {
        let clear = clear_parts(header, body).ok().and_then(|parts| parts.error());
        let Some(kind) = clear.or_else(|| self.encrypted_error(header, body)) else {
            return ctx.count(counters::MAIN_INVALID);
        };
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
        let Keyed { protection, iv, .. } = &*sent.keyed;
        let iv = protection.iv(iv, message_id);
        let (plain, _) = protection.open(&iv, body).ok()?;
        let parts = Parts::read(header.next, &plain).ok()?;
        if protection.has_hash_1(message_id, &parts) { parts.error() } else { None }
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
        self.features = Features::of(&parts.vendors).for_client(&self.initiation.connection, ctx.settings.cisco_unity);
        self.basis.fragments = fragment::sends(self.connection(), self.features);
        self.requested.add(&parts);
        self.life = life;
        self.basis.cookies.responder = IkeSpi(header.spi_r);
        // The source address may have been unknown when message 1 was sent.
        self.basis.path.local.set_ip(from.local.ip());
        self.failure = None;
        let nonce = nonce(ctx);
        let (cookies, path, encap) = (self.basis.cookies, self.basis.path, self.connection().encap.is_forced());
        let message = Head::main(cookies).clear(|chain| {
            chain.raw(PayloadType::KE_V1, pair.public()).raw(PayloadType::NONCE_V1, &nonce);
            let proof = suite.method.proof(Role::Responder);
            emit_certreq(ctx, std::iter::once(&*self.initiation.connection), proof, chain);
            if let Some(kind) = self.features.nat_traversal {
                nat::emit(chain, kind, suite.hash, cookies, &path, encap);
            }
        });
        self.request(ctx, message);
        Ok(SentKe { suite, pair, nonce })
    }

    /// Message 4: requests SKEYID of a shared key, or SIG_I.
    fn take_ke(&mut self, ctx: &mut Context<'_>, from: &Path, sent: SentKe, read: ReadKe) -> Outcome {
        let SentKe { suite, pair, nonce } = sent;
        // Some peers announce DPD in this message. NAT traversal had to be announced before NAT-D.
        self.features.dpd |= read.dpd;
        self.requested.any |= read.requested.any;
        self.requested.authorities.extend(read.requested.authorities);
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
        if !suite.method.shared_key {
            let skeyid = exchanged.skeyid(suite.prf);
            return self.keyed(ctx, (suite, exchanged, nat), Ok(skeyid));
        }
        let connection = Arc::clone(self.connection());
        let request = request_skeyid(ctx, &self.basis, &connection, None, (suite.prf, exchanged.nonces()));
        self.phase = Phase::KeyRequested(Box::new(KeyRequested { suite, exchanged, nat, request }));
        Outcome::Pending
    }

    /// A credential response.
    pub(super) fn answer(
        &mut self,
        ctx: &mut Context<'_>,
        request: RequestId,
        response: CredentialResponse,
    ) -> Outcome {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Preparing(pending) if pending == request => self.prepared(ctx, response),
            Phase::KeyRequested(requested_key) if requested_key.request == request => {
                let KeyRequested { suite, exchanged, nat, .. } = *requested_key;
                self.keyed(ctx, (suite, exchanged, nat), skeyid(response))
            }
            Phase::Signing(keyed, pending) if pending == request => self.signed(ctx, keyed, response),
            Phase::Verifying(verifying) if verifying.request == request => self.verified(ctx, *verifying, response),
            Phase::Step(step) if step.request() == request => self.stepped(ctx, *step, response),
            Phase::Checking(checking) if checking.request == request => self.checked(ctx, *checking, response),
            phase => {
                self.phase = phase;
                Outcome::Pending
            }
        }
    }

    /// SKEYID: the keys. HASH_I follows at once, SIG_I after a request.
    fn keyed(
        &mut self,
        ctx: &mut Context<'_>,
        (suite, exchanged, nat): (Phase1, Exchanged, (bool, bool)),
        skeyid: Result<Secret, Fault>,
    ) -> Outcome {
        let made = skeyid.and_then(|skeyid| Protection::new(&suite, skeyid, &exchanged, self.basis.cookies));
        let (protection, iv) = match made {
            Ok(made) => made,
            Err(fault) => return self.over(fault.to_string()),
        };
        protection.disclose(ctx, &self.basis, &suite);
        let connection = Arc::clone(self.connection());
        self.float(nat);
        let keyed = Box::new(Keyed { suite, exchanged, nat, protection, iv });
        match suite.method.proof(Role::Initiator) {
            Proof::Hash => {
                let local_id = local_identity(&connection, &self.basis.path);
                let hash = keyed.hash(Role::Initiator, self.covered(), &local_id.payload_body());
                self.send_auth(ctx, keyed, local_id, |chain| {
                    chain.raw(PayloadType::HASH_V1, &hash);
                });
            }
            Proof::Signature(kind) => {
                let owner = (&connection, Role::Initiator, None);
                let signature = (kind, &self.requested);
                let request = keyed.request_signature(ctx, &self.basis, owner, self.covered(), signature);
                self.phase = Phase::Signing(keyed, request);
            }
        }
        Outcome::Pending
    }

    /// With a NAT, or as configured, the exchange goes on at port 4500.
    fn float(&mut self, nat: (bool, bool)) {
        let encap = self.connection().encap.is_forced();
        self.basis.path.encap = self.features.nat_traversal.is_some() && (nat.0 || nat.1 || encap);
        if self.basis.path.encap {
            crate::nat::float(&mut self.basis.path);
        }
    }

    /// Refuses an identity that the connection does not name.
    fn check_identity(&self, remote_id: &Identity) -> Result<(), Fault> {
        let expected = self.connection().remote.first().map(|auth| &auth.id);
        match expected.is_none_or(|pattern| pattern.matches(remote_id).is_none()) {
            true => Err(Fault::authentication(format!("the peer is '{remote_id}', which 'remote.id' does not allow"))),
            false => Ok(()),
        }
    }

    fn covered(&self) -> Covered<'_> {
        Covered { offer: &self.offer, cookies: self.basis.cookies }
    }

    /// SIG_I.
    fn signed(&mut self, ctx: &mut Context<'_>, keyed: Box<Keyed>, response: CredentialResponse) -> Outcome {
        let signed = match response {
            CredentialResponse::Signed(Ok(signed)) => signed,
            CredentialResponse::Signed(Err(refusal)) => {
                return self.over(format!("this host cannot authenticate: {}", refusal.0));
            }
            _ => return self.over(OTHER_RESPONSE.to_owned()),
        };
        let (connection, requested) = (Arc::clone(self.connection()), std::mem::take(&mut self.requested));
        self.send_auth(ctx, keyed, signed.local_id.clone(), |chain| {
            emit_signed(chain, &connection, &requested, &signed);
        });
        Outcome::Pending
    }

    /// Sends message 5.
    fn send_auth(
        &mut self,
        ctx: &mut Context<'_>,
        mut keyed: Box<Keyed>,
        local_id: Identity,
        prove: impl FnOnce(&mut Chain<'_>),
    ) {
        let (connection, cookies) = (Arc::clone(self.connection()), self.basis.cookies);
        // With the other host's Child SAs in place a replacement must not announce a first contact,
        // and neither may a second attempt beside an ISAKMP SA.
        let remote_id = connection.remote.first().and_then(|auth| auth.id.exact()).cloned();
        // Many users of XAuth may have one identity.
        let contact = self.initiation.replaces.is_none()
            && XAuthSide::of(&connection).is_none()
            && remote_id.is_some_and(|remote| ctx.names.begin_contact(self.basis.id, (local_id.clone(), remote)));
        let (first, body) = payloads(|chain| {
            chain.raw(PayloadType::ID_V1, &local_id.payload_body());
            prove(chain);
            if contact {
                notification(chain, NotifyType::INITIAL_CONTACT, &both_cookies(cookies), &[]);
            }
        });
        let message = keyed.protection.seal(&mut keyed.iv, &Head::main(cookies), first, &body);
        self.request(ctx, message);
        self.phase = Phase::SentAuth(Box::new(SentAuth { keyed, local_id, refused: None }));
    }

    /// Message 6: the identity of the peer, the last block of phase 1, the lifetime of the
    /// responder, and a signature that is to be verified.
    fn read_auth(&self, sent: &SentAuth, header: &Header, body: &[u8]) -> Result<Authenticated, Fault> {
        if header.flags & Header::FLAG_V1_ENCRYPTION == 0 {
            return Err(Fault::violation("message 6 is in clear text"));
        }
        let keyed = &*sent.keyed;
        let (plain, iv) = keyed.protection.open(&keyed.iv, body).map_err(|_| keyed.unreadable())?;
        // What another key decrypts to is hardly ever a chain of payloads.
        let parts = Parts::read(header.next, &plain).map_err(|_| keyed.unreadable())?;
        let id_body = parts.ids.first().ok_or_else(|| keyed.unreadable())?;
        let (remote_id, claim) = keyed.claim(Role::Responder, self.covered(), &parts, id_body)?;
        self.check_identity(&remote_id)?;
        Ok(Authenticated { remote_id, iv, life: parts.responder_lifetime(), claim })
    }

    /// The peer has the key, or signs. A shared key that was found without its identity must also
    /// be the key of the identity: otherwise a peer could claim the identity of another.
    fn take_auth(&mut self, ctx: &mut Context<'_>, from: &Path, sent: SentAuth, read: Authenticated) -> Outcome {
        let Authenticated { remote_id, iv, life, claim } = read;
        let connection = Arc::clone(self.connection());
        if let Some(claim) = claim {
            if self.verifications >= VERIFICATIONS_MAX {
                ctx.count(counters::SIGNATURES_LIMITED);
                self.phase = Phase::SentAuth(Box::new(sent));
                return Outcome::Pending;
            }
            self.verifications += 1;
            let terms = (self.covered(), Role::Initiator);
            let request = sent.keyed.request_verification(ctx, &self.basis, vec![connection], terms, &claim);
            self.life = [self.life, life].into_iter().flatten().min();
            self.phase = Phase::Verifying(Box::new(Verifying { sent, remote_id, iv, from: *from, request }));
            return Outcome::Pending;
        }
        self.life = [self.life, life].into_iter().flatten().min();
        let named = connection.remote.first().is_some_and(|auth| auth.id.exact().is_some());
        if named || !sent.keyed.suite.method.shared_key {
            return self.up_from(ctx, from, sent, remote_id, iv);
        }
        (self.resend, self.failure) = (None, None);
        let nonces = (sent.keyed.suite.prf, sent.keyed.exchanged.nonces());
        let request = request_skeyid(ctx, &self.basis, &connection, Some(&remote_id), nonces);
        self.phase = Phase::Checking(Box::new(Checking { sent, remote_id, iv, from: *from, request }));
        Outcome::Pending
    }

    fn checked(&mut self, ctx: &mut Context<'_>, checking: Checking, response: CredentialResponse) -> Outcome {
        let Checking { sent, remote_id, iv, from, .. } = checking;
        if skeyid(response).is_ok_and(|skeyid| skeyid == sent.keyed.protection.keys.skeyid) {
            return self.up_from(ctx, &from, sent, remote_id, iv);
        }
        let reason = format!("the shared key is not the one of '{remote_id}'");
        self.fail(ctx, &reason)
    }

    /// The result of the verification. A forged message may have come before the one of the peer.
    fn verified(&mut self, ctx: &mut Context<'_>, verifying: Verifying, response: CredentialResponse) -> Outcome {
        let Verifying { mut sent, remote_id, iv, from, .. } = verifying;
        match response {
            CredentialResponse::Verified(Ok(verified)) => {
                self.life = [self.life, verified.valid_for].into_iter().flatten().min();
                self.up_from(ctx, &from, sent, remote_id, iv)
            }
            CredentialResponse::Verified(Err(refusal)) => {
                ctx.count(crate::handshake::counters::AUTH_FAILED);
                sent.refused = Some(iv);
                let reason = format!("'{remote_id}' is not authenticated: {}", refusal.0);
                self.basis.log(ctx, Level::Warn, reason.clone());
                self.remember(ctx, &Fault::authentication(reason));
                Outcome::stay(&mut self.phase, Phase::SentAuth(Box::new(sent)))
            }
            _ => self.over(OTHER_RESPONSE.to_owned()),
        }
    }

    /// A peer that is refused has an ISAKMP SA, which a Delete ends.
    fn delete_refused(&self, ctx: &mut Context<'_>) {
        let Phase::SentAuth(sent) = &self.phase else { return };
        let Some(iv) = &sent.refused else { return };
        let cookies = self.basis.cookies;
        let head = Head { cookies, exchange: ExchangeType::INFORMATIONAL_V1, message_id: message_id(ctx) };
        let (first, body) = payloads(|chain| {
            chain.delete_v1(DOI_IPSEC, ProtocolId::IKE, &[&both_cookies(cookies)]);
        });
        let mut iv = sent.keyed.protection.iv(iv, head.message_id);
        let message = sent.keyed.protection.seal_hash_1(&mut iv, &head, first, &body);
        self.basis.send(ctx, self.connection(), message);
    }

    fn up_from(&mut self, ctx: &mut Context<'_>, from: &Path, sent: SentAuth, remote_id: Identity, iv: Iv) -> Outcome {
        let SentAuth { keyed, local_id, .. } = sent;
        // Behind a NAT the answer comes from another port than the configured one.
        if keyed.nat.1 {
            self.basis.path.remote = from.remote;
        }
        self.up(ctx, *keyed, (local_id, remote_id), iv, None)
    }

    /// Both ends are authenticated.
    fn up(
        &mut self,
        ctx: &mut Context<'_>,
        keyed: Keyed,
        (local_id, remote_id): (Identity, Identity),
        iv_base: Iv,
        last: Option<Last>,
    ) -> Outcome {
        let Keyed { suite, nat, protection, .. } = keyed;
        let sa = Established::new(
            ctx,
            Parameters {
                basis: self.basis.clone(),
                connection: Arc::clone(self.connection()),
                role: Role::Initiator,
                suite,
                protection,
                iv_base,
                local_id,
                remote_id,
                features: self.features,
                nat,
                life: self.life,
                last,
            },
        );
        let rest = Rest {
            children: std::mem::take(&mut self.initiation.children),
            commands: std::mem::take(&mut self.initiation.commands),
            replaces: self.initiation.replaces,
            initial_contact: false,
            addresses: std::mem::take(&mut self.initiation.addresses),
        };
        Outcome::Up(Box::new(Up { sa: Box::new(sa), rest }))
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
        self.delete_refused(ctx);
        let tries = if self.initiation.by_packet { 1 } else { self.connection().keyingtries };
        let mut ended = self.ended(reason.to_owned());
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
                addresses: std::mem::take(&mut self.initiation.addresses),
                commands: std::mem::take(&mut ended.commands),
                by_packet: self.initiation.by_packet,
            });
        }
        Outcome::Ended(Box::new(ended))
    }

    /// Ends the attempt.
    pub(super) fn over(&mut self, reason: String) -> Outcome {
        Outcome::Ended(Box::new(self.ended(reason)))
    }

    fn ended(&mut self, reason: String) -> Ended {
        self.phase = Phase::Ended;
        Ended {
            reason,
            again: None,
            commands: std::mem::take(&mut self.initiation.commands),
            children: std::mem::take(&mut self.initiation.children),
        }
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

/// Contents of message 6.
struct Authenticated {
    remote_id: Identity,
    iv: Iv,
    life: Option<Duration>,
    claim: Option<Claim>,
}

/// Contents of message 4.
struct ReadKe {
    public: Vec<u8>,
    nonce: Vec<u8>,
    nat_d: Vec<Vec<u8>>,
    dpd: bool,
    requested: Requested,
}

/// Returns whether a message is message 2 again.
fn is_repeated_answer(header: &Header, body: &[u8]) -> bool {
    clear_parts(header, body).is_ok_and(|parts| parts.sa.is_some() && parts.ke.is_none())
}

fn read_ke(sent: &SentKe, header: &Header, body: &[u8]) -> Result<ReadKe, Fault> {
    let parts = clear_parts(header, body)?;
    let (public, nonce) = (needed(parts.ke, "KE")?, needed(parts.nonce, "NONCE")?);
    sent.suite.ke.check(public)?;
    let mut requested = Requested::default();
    requested.add(&parts);
    Ok(ReadKe {
        requested,
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
