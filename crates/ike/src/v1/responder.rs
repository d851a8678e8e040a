//! The responder of phase 1.

mod aggressive;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::ike::Secret;
use wire::ike::v1::{NotifyType, vendor};
use wire::ike::{AuthMethodId, Chain, ExchangeType, Header, PayloadType};

use super::counters;
use super::established::{Established, Parameters};
use super::fault::{Fault, Mismatch};
use super::fragment;
use super::message::{Features, Head, Parts, Requested, payloads};
use super::method::{Method, Proof};
use super::nat;
use super::phase1::{
    Basis, Claim, Covered, Keyed, Last, OTHER_RESPONSE, Outcome, Rest, Up, VERIFICATIONS_MAX, clear_notification,
    clear_parts, emit_certreq, emit_signed, local_identity, message_id, needed, nonce, notification, request_skeyid,
    skeyid,
};
use super::proposal::{Phase1, Phase1Choice, choose_phase1};
use super::protection::{Digest, Exchanged, Iv, Protection, digest};
use crate::config::Connection;
use crate::context::Context;
use crate::identity::Identity;
use crate::output::{CredentialResponse, IkeId, IkeSpis, KeysV1, Level, Output, Path, RequestId};
use crate::sa::Role;

/// Time for another message after one with a signature that was refused: it may be a forged one.
const REFUSED: Duration = Duration::from_secs(10);

/// A responder that is not authenticated.
pub(super) struct Responder {
    pub(super) basis: Basis,
    /// Connections that are possible, best first; never empty.
    candidates: Vec<Arc<Connection>>,
    suite: Phase1,
    life: Option<Duration>,
    /// Body of the initiator's SA payload, which hashes cover.
    offer: Vec<u8>,
    features: Features,
    /// Body of the SA payload of the answer, and its vendor IDs.
    answer: Vec<u8>,
    vendors: Vec<Vec<u8>>,
    aggressive: bool,
    /// CERTREQ payloads of the peer.
    requested: Requested,
    /// Signatures of the peer that were verified.
    verifications: u32,
    /// Its end.
    until: Instant,
    /// The last message and its answer.
    last: (Digest, Vec<u8>),
    /// The peer was notified of an error, which it is once.
    notified: bool,
    /// The peer announced DPD after message 2, which repeats what message 1 announced.
    late_dpd: bool,
    phase: Phase,
}

/// State: each step takes it out and puts the next one in.
enum Phase {
    GotSa,
    KeyRequested(Box<KeyRequested>),
    GotKe(Box<GotKe>),
    Switching(Box<Switching>),
    Verifying(Box<Verifying>),
    Signing(Box<Signing>),
    Step(Box<aggressive::Step>),
    SentAll(Box<aggressive::SentAll>),
    Confirming(Box<aggressive::Confirming>),
    /// A step is running, or it has ended.
    Ended,
}

/// SKEYID was requested, with the key of candidate `at`.
struct KeyRequested {
    exchanged: Exchanged,
    nat: (bool, bool),
    request: RequestId,
    at: usize,
    message_3: Digest,
}

/// Message 4 was sent.
struct GotKe {
    keyed: Box<Keyed>,
    /// Index of the candidate whose shared key it is; the first one with signatures.
    at: usize,
}

/// The key was found without the identity in message 5, or belongs to another connection, and
/// SKEYID with the key of the identity was requested.
struct Switching {
    got: GotKe,
    claimed: Claimed,
    request: RequestId,
    to: usize,
}

/// The signature of message 5 is being verified.
struct Verifying {
    got: GotKe,
    claimed: Claimed,
    request: RequestId,
}

/// SIG_R was requested.
struct Signing {
    got: GotKe,
    claimed: Claimed,
    request: RequestId,
}

/// Contents of message 5, authenticated unless `claim` is to be verified.
struct Claimed {
    remote_id: Identity,
    claim: Option<Claim>,
    requested: Requested,
    initial_contact: bool,
    path: Path,
    message_5: Digest,
    /// After message 5.
    iv: Iv,
}

/// Reason why message 1 makes no responder.
pub(super) enum Refusal {
    /// Nothing is sent.
    Silent,
    /// A notification for the peer.
    Notify(NotifyType, String),
}

impl Responder {
    /// Takes message 1. Returns the responder and message 2, which is not longer than message 1.
    pub(super) fn accept(
        ctx: &mut Context<'_>,
        basis: Basis,
        candidates: Vec<Arc<Connection>>,
        header: &Header,
        datagram: &[u8],
    ) -> Result<Self, Refusal> {
        let parts = clear_parts(header, &datagram[Header::LEN..]).map_err(|_| Refusal::Silent)?;
        let offer = parts.sa.ok_or(Refusal::Silent)?;
        let mut candidates = candidates;
        let choice = choose(ctx, &mut candidates, offer, |_| true)?;
        let mut responder = Self::new(ctx, (basis, candidates), choice, &parts, offer);
        let message = Head::main(responder.basis.cookies).clear(|chain| {
            chain.raw(PayloadType::SA_V1, &responder.answer);
            responder.vendors.iter().for_each(|vendor| {
                chain.raw(PayloadType::VENDOR_V1, vendor);
            });
        });
        // The address is not proven, so that a longer answer would amplify. Only an offer that is
        // encoded in another way than the answer can be shorter.
        if message.len() > datagram.len() {
            return Err(Refusal::Silent);
        }
        responder.basis.send(ctx, &responder.candidates[0], message.clone());
        responder.last = (digest(datagram), message);
        Ok(responder)
    }

    /// The state after message 1, without an answer.
    fn new(
        ctx: &Context<'_>,
        (basis, candidates): (Basis, Vec<Arc<Connection>>),
        choice: Phase1Choice,
        parts: &Parts<'_>,
        offer: &[u8],
    ) -> Self {
        let Phase1Choice { suite, life, answer } = choice;
        let features = Features::of(&parts.vendors);
        let common = |best: &Arc<Connection>| features.common(&parts.vendors, best, ctx.settings.cisco_unity);
        let vendors = candidates.first().map(common).unwrap_or_default();
        let fragments = candidates.first().is_some_and(|best| fragment::sends(best, features));
        let mut requested = Requested::default();
        requested.add(parts);
        Self {
            basis: Basis { fragments, ..basis },
            candidates,
            suite,
            life,
            offer: offer.to_vec(),
            features,
            answer,
            vendors,
            aggressive: false,
            requested,
            verifications: 0,
            until: ctx.now + ctx.settings.half_open_timeout,
            last: ([0; 32], Vec::new()),
            notified: false,
            late_dpd: false,
            phase: Phase::GotSa,
        }
    }

    /// The mode.
    fn exchange(&self) -> ExchangeType {
        if self.aggressive { ExchangeType::AGGRESSIVE } else { ExchangeType::ID_PROT }
    }

    /// A copy of message 1, which is answered as long as it proves nothing: in main mode the answer
    /// is not longer, in aggressive mode the number of answers has a limit.
    pub(super) fn repeat_first(&mut self, ctx: &mut Context<'_>, from: &Path, datagram: &[u8]) -> bool {
        let allowed = match &mut self.phase {
            Phase::GotSa => true,
            Phase::SentAll(sent) if sent.repeats < aggressive::REPEATS_MAX => {
                sent.repeats += 1;
                true
            }
            _ => false,
        };
        allowed && self.repeat(ctx, from, datagram)
    }

    /// The best candidate.
    pub(super) fn connection(&self) -> &Arc<Connection> {
        let at = match &self.phase {
            Phase::GotKe(got) => got.at,
            Phase::KeyRequested(requested_key) => requested_key.at,
            Phase::Verifying(verifying) => verifying.got.at,
            Phase::Signing(signing) => signing.got.at,
            _ => 0,
        };
        &self.candidates[at.min(self.candidates.len() - 1)]
    }

    /// Message 3 of main mode has come, which proves the address, or the key exchange of aggressive
    /// mode is done.
    pub(super) fn is_proven(&self) -> bool {
        !matches!(self.phase, Phase::GotSa)
    }

    pub(super) fn request_id(&self) -> Option<RequestId> {
        match &self.phase {
            Phase::KeyRequested(requested_key) => Some(requested_key.request),
            Phase::Switching(switching) => Some(switching.request),
            Phase::Verifying(verifying) => Some(verifying.request),
            Phase::Signing(signing) => Some(signing.request),
            Phase::Step(step) => Some(step.request()),
            Phase::Confirming(confirming) => Some(confirming.request),
            _ => None,
        }
    }

    /// Keys, IV and covered bytes of the message that it waits for, and the identity of the peer
    /// where it is known.
    #[cfg(any(test, feature = "testkit"))]
    pub(super) fn expected(&self) -> Option<(&Keyed, Covered<'_>, Option<&[u8]>)> {
        match &self.phase {
            Phase::GotKe(got) => Some((&got.keyed, self.covered(), None)),
            Phase::SentAll(sent) => {
                let (keyed, id_body) = sent.expected();
                Some((keyed, self.covered(), Some(id_body)))
            }
            _ => None,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.until
    }

    /// Takes a datagram with the cookie of this host, which proves the address that it was sent to.
    pub(super) fn handle(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) -> Outcome {
        // A NAT may change the port between messages; another address proves nothing.
        let expected = header.exchange == self.exchange()
            && header.message_id.get() == 0
            && from.remote.ip() == self.basis.path.remote.ip();
        if !expected {
            ctx.count(counters::MAIN_INVALID);
            return Outcome::Pending;
        }
        if self.repeat(ctx, from, datagram) {
            return Outcome::Pending;
        }
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::GotSa => {
                if let Err(fault) = self.take_ke(ctx, from, header, datagram) {
                    self.phase = Phase::GotSa;
                    self.refuse(ctx, from, &fault);
                }
            }
            Phase::GotKe(got) => match self.read_auth(&got, from, header, datagram) {
                Ok(claimed) => return self.take_auth(ctx, *got, claimed),
                Err(fault) => {
                    self.phase = Phase::GotKe(got);
                    // Message 3 in clear text, repeated with other bytes.
                    match header.flags & Header::FLAG_V1_ENCRYPTION != 0 {
                        true => self.refuse(ctx, from, &fault),
                        false => ctx.count(counters::MAIN_INVALID),
                    }
                }
            },
            Phase::SentAll(sent) => return self.take_last(ctx, *sent, from, (header, datagram)),
            phase => self.phase = phase,
        }
        Outcome::Pending
    }

    fn mode(&self) -> &'static str {
        if self.aggressive { "aggressive" } else { "main" }
    }

    /// Answers a repeated message with the stored answer; true for one.
    fn repeat(&self, ctx: &mut Context<'_>, from: &Path, datagram: &[u8]) -> bool {
        if self.last.0 != digest(datagram) {
            return false;
        }
        ctx.count(counters::DUPLICATE);
        self.basis.send_to(ctx, from, self.connection(), self.last.1.clone());
        true
    }

    /// A message is not acceptable: the peer hears of it once, the state stays for a better one.
    fn refuse(&mut self, ctx: &mut Context<'_>, from: &Path, fault: &Fault) {
        if self.note(ctx, from, fault) {
            let message = clear_notification(ctx, self.basis.cookies, fault.notify());
            self.basis.send_to(ctx, from, self.connection(), message);
        }
    }

    /// The peer has the key, but its identity is not acceptable. The initiator can authenticate the
    /// notification.
    fn refuse_identity(&mut self, ctx: &mut Context<'_>, got: &GotKe, claimed: &Claimed, reason: String) -> Outcome {
        self.notify_refusal(ctx, got, claimed, reason.clone());
        Outcome::ended(reason)
    }

    fn notify_refusal(&mut self, ctx: &mut Context<'_>, got: &GotKe, claimed: &Claimed, reason: String) {
        self.notify_refused(ctx, (&got.keyed, got.at), (&claimed.iv, &claimed.path), reason);
    }

    /// The initiator can authenticate the notification. `iv`: after its last message.
    fn notify_refused(
        &mut self,
        ctx: &mut Context<'_>,
        (keyed, at): (&Keyed, usize),
        (iv, path): (&Iv, &Path),
        reason: String,
    ) {
        let fault = Fault::authentication(reason);
        if self.note(ctx, path, &fault) {
            let head = Head {
                cookies: self.basis.cookies,
                exchange: ExchangeType::INFORMATIONAL_V1,
                message_id: message_id(ctx),
            };
            let (first, body) = payloads(|chain| notification(chain, fault.notify(), &[], &[]));
            let mut iv = keyed.protection.iv(iv, head.message_id);
            let message = keyed.protection.seal_hash_1(&mut iv, &head, first, &body);
            self.basis.send_to(ctx, path, &self.candidates[at], message);
        }
    }

    /// Counts and logs a message that is not acceptable. Returns true if the peer should be
    /// notified.
    fn note(&mut self, ctx: &mut Context<'_>, from: &Path, fault: &Fault) -> bool {
        let is_key = matches!(fault, Fault::Configuration(Mismatch::Key, _));
        ctx.count(if is_key { counters::KEY_MISMATCH } else { counters::MAIN_INVALID });
        if std::mem::replace(&mut self.notified, true) {
            return false;
        }
        self.basis.log(ctx, Level::Warn, format!("{} mode with {} fails: {fault}", self.mode(), from.remote));
        if is_key || matches!(fault, Fault::Configuration(Mismatch::Authentication, _)) {
            ctx.count(crate::handshake::counters::AUTH_FAILED);
        }
        true
    }

    /// Message 3: computes the shared secret and requests SKEYID of a shared key, or sends message
    /// 4.
    fn take_ke(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) -> Result<(), Fault> {
        let parts = clear_parts(header, &datagram[Header::LEN..])?;
        let (public_i, nonce_i) = (needed(parts.ke, "KE")?, needed(parts.nonce, "NONCE")?);
        self.suite.ke.check(public_i)?;
        let (public_r, shared) = self.suite.ke.respond(public_i)?;
        let nat = match self.features.nat_traversal {
            Some(_) => nat::detect(&parts.nat_d, self.suite.hash, self.basis.cookies, from),
            None => (false, false),
        };
        self.late_dpd = !self.features.dpd && Features::of(&parts.vendors).dpd;
        self.features.dpd |= self.late_dpd;
        self.basis.path = *from;
        self.requested.add(&parts);
        let nonce_r = nonce(ctx);
        let (public_i, nonce_i) = (public_i.to_vec(), nonce_i.to_vec());
        let exchanged = Exchanged { public_i, public_r, nonce_i, nonce_r, shared };
        let message_3 = digest(datagram);
        if !self.suite.method.shared_key {
            let skeyid = exchanged.skeyid(self.suite.prf);
            let (protection, iv) = Protection::new(&self.suite, skeyid, &exchanged, self.basis.cookies)?;
            self.secured(ctx, (exchanged, nat, protection, iv), 0, message_3);
            return Ok(());
        }
        let request = self.request_key(ctx, &exchanged, 0, None);
        self.phase = Phase::KeyRequested(Box::new(KeyRequested { exchanged, nat, request, at: 0, message_3 }));
        Ok(())
    }

    /// Sends message 4.
    fn secured(
        &mut self,
        ctx: &mut Context<'_>,
        (exchanged, nat, protection, iv): (Exchanged, (bool, bool), Protection, Iv),
        at: usize,
        message_3: Digest,
    ) {
        protection.disclose(ctx, &self.basis, &self.suite);
        self.send_ke(ctx, &exchanged, at, message_3);
        let keyed = Box::new(Keyed { suite: self.suite, exchanged, nat, protection, iv });
        self.phase = Phase::GotKe(Box::new(GotKe { keyed, at }));
    }

    fn request_key(
        &self,
        ctx: &mut Context<'_>,
        exchanged: &Exchanged,
        at: usize,
        remote: Option<&Identity>,
    ) -> RequestId {
        request_skeyid(ctx, &self.basis, &self.candidates[at], remote, (self.suite.prf, exchanged.nonces()))
    }

    /// A credential response.
    pub(super) fn answer(
        &mut self,
        ctx: &mut Context<'_>,
        request: RequestId,
        response: CredentialResponse,
    ) -> Outcome {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::KeyRequested(requested_key) if requested_key.request == request => {
                self.keyed(ctx, *requested_key, skeyid(response))
            }
            Phase::Switching(switching) if switching.request == request => {
                self.switched(ctx, *switching, skeyid(response))
            }
            Phase::Verifying(verifying) if verifying.request == request => self.verified(ctx, *verifying, response),
            Phase::Signing(signing) if signing.request == request => self.signed(ctx, *signing, response),
            Phase::Step(step) if step.request() == request => self.stepped(ctx, *step, response),
            Phase::Confirming(confirming) if confirming.request == request => {
                self.confirmed(ctx, *confirming, response)
            }
            phase => {
                self.phase = phase;
                Outcome::Pending
            }
        }
    }

    /// Sends message 4, or tries the next candidate.
    fn keyed(
        &mut self,
        ctx: &mut Context<'_>,
        mut requested_key: KeyRequested,
        skeyid: Result<Secret, Fault>,
    ) -> Outcome {
        let made = skeyid
            .and_then(|skeyid| Protection::new(&self.suite, skeyid, &requested_key.exchanged, self.basis.cookies));
        let fault = match made {
            Ok((protection, iv)) => {
                let KeyRequested { exchanged, nat, at, message_3, .. } = requested_key;
                self.secured(ctx, (exchanged, nat, protection, iv), at, message_3);
                return Outcome::Pending;
            }
            Err(fault) => fault,
        };
        if requested_key.at + 1 < self.candidates.len() {
            requested_key.at += 1;
            requested_key.request = self.request_key(ctx, &requested_key.exchanged, requested_key.at, None);
            self.phase = Phase::KeyRequested(Box::new(requested_key));
            return Outcome::Pending;
        }
        let path = self.basis.path;
        let message = clear_notification(ctx, self.basis.cookies, NotifyType::AUTHENTICATION_FAILED);
        self.basis.send_to(ctx, &path, &self.candidates[0], message);
        Outcome::ended(fault.to_string())
    }

    fn send_ke(&mut self, ctx: &mut Context<'_>, exchanged: &Exchanged, at: usize, message_3: Digest) {
        let (cookies, path) = (self.basis.cookies, self.basis.path);
        let connection = Arc::clone(&self.candidates[at]);
        let message = Head::main(cookies).clear(|chain| {
            chain.raw(PayloadType::KE_V1, &exchanged.public_r).raw(PayloadType::NONCE_V1, &exchanged.nonce_r);
            let proof = self.suite.method.proof(Role::Initiator);
            emit_certreq(ctx, self.candidates.iter().map(|connection| &**connection), proof, chain);
            if let Some(kind) = self.features.nat_traversal {
                nat::emit(chain, kind, self.suite.hash, cookies, &path, connection.encap.is_forced());
            }
            if self.late_dpd {
                chain.raw(PayloadType::VENDOR_V1, &vendor::DPD);
            }
        });
        self.last = (message_3, message.clone());
        self.basis.send(ctx, &connection, message);
    }

    /// Message 5.
    fn read_auth(&self, got: &GotKe, from: &Path, header: &Header, datagram: &[u8]) -> Result<Claimed, Fault> {
        if header.flags & Header::FLAG_V1_ENCRYPTION == 0 {
            return Err(Fault::violation("message 5 is in clear text"));
        }
        let keyed = &*got.keyed;
        let opened = keyed.protection.open(&keyed.iv, &datagram[Header::LEN..]);
        let (plain, iv) = opened.map_err(|_| keyed.unreadable())?;
        let parts = Parts::read(header.next, &plain).map_err(|_| keyed.unreadable())?;
        let id_body = parts.ids.first().ok_or_else(|| keyed.unreadable())?;
        let (remote_id, claim) = keyed.claim(Role::Initiator, self.covered(), &parts, id_body)?;
        let mut requested = Requested::default();
        requested.add(&parts);
        let initial_contact = parts.notification(NotifyType::INITIAL_CONTACT).is_some();
        Ok(Claimed { remote_id, claim, requested, initial_contact, path: *from, message_5: digest(datagram), iv })
    }

    fn covered(&self) -> Covered<'_> {
        Covered { offer: &self.offer, cookies: self.basis.cookies }
    }

    /// The peer has the key of candidate `at`. Its identity must be one that this connection names,
    /// or another candidate with the same key. A key that was found without the identity must also
    /// be the one of the identity: otherwise a peer could claim the identity of another.
    fn take_auth(&mut self, ctx: &mut Context<'_>, got: GotKe, mut claimed: Claimed) -> Outcome {
        let claim = claimed.claim.take();
        if let Some(claim) = claim {
            return self.verify(ctx, got, claimed, &claim);
        }
        let pattern = |connection: &Connection| connection.remote.first().map(|auth| auth.id.clone());
        let admits = |connection: &Connection| {
            pattern(connection).is_some_and(|pattern| pattern.matches(&claimed.remote_id).is_some())
        };
        let of_key = &self.candidates[got.at];
        if !got.keyed.suite.method.shared_key {
            return match self.candidates.iter().position(|connection| admits(connection)) {
                Some(at) => self.prove(ctx, GotKe { at, ..got }, claimed),
                None => self.refuse_unknown(ctx, &got, &claimed),
            };
        }
        let to = match admits(of_key) {
            true if pattern(of_key).is_some_and(|pattern| pattern.exact().is_some()) => {
                return self.prove(ctx, got, claimed);
            }
            true => Some(got.at),
            false => self.candidates.iter().position(|connection| admits(connection)),
        };
        if let Some(to) = to {
            let request = self.request_key(ctx, &got.keyed.exchanged, to, Some(&claimed.remote_id));
            self.phase = Phase::Switching(Box::new(Switching { got, claimed, request, to }));
            return Outcome::Pending;
        }
        self.refuse_unknown(ctx, &got, &claimed)
    }

    fn refuse_unknown(&mut self, ctx: &mut Context<'_>, got: &GotKe, claimed: &Claimed) -> Outcome {
        let text = format!("no connection between these addresses allows the identity '{}'", claimed.remote_id);
        self.refuse_identity(ctx, got, claimed, text)
    }

    /// Candidates that name an identity.
    fn admitting(&self, remote_id: &Identity) -> Vec<Arc<Connection>> {
        let admits = |connection: &&Arc<Connection>| {
            connection.remote.first().is_some_and(|auth| auth.id.matches(remote_id).is_some())
        };
        self.candidates.iter().filter(admits).cloned().collect()
    }

    /// Requests the verification of a signature, by the connections that name the identity.
    fn verify(&mut self, ctx: &mut Context<'_>, got: GotKe, claimed: Claimed, claim: &Claim) -> Outcome {
        let candidates = self.admitting(&claimed.remote_id);
        if self.verifications >= VERIFICATIONS_MAX {
            ctx.count(counters::SIGNATURES_LIMITED);
            self.phase = Phase::GotKe(Box::new(got));
            return Outcome::Pending;
        }
        self.verifications += 1;
        if candidates.is_empty() {
            return self.refuse_signature(ctx, got, &claimed, "no connection allows it");
        }
        let terms = (self.covered(), Role::Responder);
        let request = got.keyed.request_verification(ctx, &self.basis, candidates, terms, claim);
        self.phase = Phase::Verifying(Box::new(Verifying { got, claimed, request }));
        Outcome::Pending
    }

    /// The signature is not acceptable. The message may be a forged one, so that another one may
    /// follow.
    fn refuse_signature(&mut self, ctx: &mut Context<'_>, got: GotKe, claimed: &Claimed, why: &str) -> Outcome {
        self.notify_refusal(ctx, &got, claimed, format!("'{}' is not authenticated: {why}", claimed.remote_id));
        self.until = self.until.min(ctx.now + REFUSED);
        self.phase = Phase::GotKe(Box::new(got));
        Outcome::Pending
    }

    /// The result of the verification.
    fn verified(&mut self, ctx: &mut Context<'_>, verifying: Verifying, response: CredentialResponse) -> Outcome {
        let Verifying { got, claimed, .. } = verifying;
        match response {
            CredentialResponse::Verified(Ok(verified)) => {
                let is_it = |connection: &Arc<Connection>| Arc::ptr_eq(connection, &verified.connection);
                let Some(at) = self.candidates.iter().position(is_it) else {
                    return Outcome::ended("internal error: the connection that admits the peer is no candidate");
                };
                self.life = [self.life, verified.valid_for].into_iter().flatten().min();
                self.prove(ctx, GotKe { at, ..got }, claimed)
            }
            CredentialResponse::Verified(Err(refusal)) => self.refuse_signature(ctx, got, &claimed, &refusal.0),
            _ => Outcome::ended(OTHER_RESPONSE),
        }
    }

    /// The initiator is authenticated: HASH_R follows at once, SIG_R after a request.
    fn prove(&mut self, ctx: &mut Context<'_>, got: GotKe, claimed: Claimed) -> Outcome {
        let connection = Arc::clone(&self.candidates[got.at]);
        let nat = got.keyed.nat;
        let encap = self.features.nat_traversal.is_some() && (nat.0 || nat.1 || connection.encap.is_forced());
        self.basis.path = Path { encap, ..claimed.path };
        match got.keyed.suite.method.proof(Role::Responder) {
            Proof::Hash => {
                let local_id = local_identity(&connection, &self.basis.path);
                let hash = got.keyed.hash(Role::Responder, self.covered(), &local_id.payload_body());
                self.up(ctx, got, claimed, local_id, |chain| {
                    chain.raw(PayloadType::HASH_V1, &hash);
                })
            }
            Proof::Signature(kind) => {
                self.requested.any |= claimed.requested.any;
                self.requested.authorities.extend(claimed.requested.authorities.iter().cloned());
                let (owner, signature) = ((&connection, Role::Responder, None), (kind, &self.requested));
                let request = got.keyed.request_signature(ctx, &self.basis, owner, self.covered(), signature);
                self.phase = Phase::Signing(Box::new(Signing { got, claimed, request }));
                Outcome::Pending
            }
        }
    }

    /// SIG_R.
    fn signed(&mut self, ctx: &mut Context<'_>, signing: Signing, response: CredentialResponse) -> Outcome {
        let Signing { got, claimed, .. } = signing;
        match response {
            CredentialResponse::Signed(Ok(signed)) => {
                let connection = Arc::clone(&self.candidates[got.at]);
                let requested = std::mem::take(&mut self.requested);
                self.up(ctx, got, claimed, signed.local_id.clone(), |chain| {
                    emit_signed(chain, &connection, &requested, &signed);
                })
            }
            CredentialResponse::Signed(Err(refusal)) => {
                let reason = format!("this host cannot authenticate: {}", refusal.0);
                self.refuse_identity(ctx, &got, &claimed, reason)
            }
            _ => Outcome::ended(OTHER_RESPONSE),
        }
    }

    fn switched(&mut self, ctx: &mut Context<'_>, switching: Switching, skeyid: Result<Secret, Fault>) -> Outcome {
        let Switching { got, claimed, to, .. } = switching;
        // The hash was verified with SKEYID of the first key.
        if skeyid.is_ok_and(|skeyid| skeyid == got.keyed.protection.keys.skeyid) {
            return self.prove(ctx, GotKe { at: to, ..got }, claimed);
        }
        let text = format!("the shared key is not the one of '{}'", claimed.remote_id);
        self.refuse_identity(ctx, &got, &claimed, text)
    }

    /// Sends message 6.
    fn up(
        &mut self,
        ctx: &mut Context<'_>,
        got: GotKe,
        claimed: Claimed,
        local_id: Identity,
        prove: impl FnOnce(&mut Chain<'_>),
    ) -> Outcome {
        if let Some(reason) = is_unwanted(ctx, &local_id, &claimed.remote_id) {
            return self.refuse_identity(ctx, &got, &claimed, reason);
        }
        let connection = Arc::clone(&self.candidates[got.at]);
        let Claimed { remote_id, initial_contact, message_5, mut iv, .. } = claimed;
        let (first, body) = payloads(|chain| {
            chain.raw(PayloadType::ID_V1, &local_id.payload_body());
            prove(chain);
        });
        let head = Head::main(self.basis.cookies);
        let message = got.keyed.protection.seal(&mut iv, &head, first, &body);
        self.basis.send(ctx, &connection, message.clone());
        let last = Last { seen: message_5, reply: message, unconfirmed: None };
        self.established(ctx, connection, *got.keyed, (local_id, remote_id), (iv, last, initial_contact))
    }

    /// Both ends are authenticated.
    fn established(
        &mut self,
        ctx: &mut Context<'_>,
        connection: Arc<Connection>,
        keyed: Keyed,
        (local_id, remote_id): (Identity, Identity),
        (iv_base, last, initial_contact): (Iv, Last, bool),
    ) -> Outcome {
        let Keyed { nat, protection, .. } = keyed;
        // The server may be the initiator.
        let features = self.features.for_client(&connection, ctx.settings.cisco_unity);
        let sa = Established::new(
            ctx,
            Parameters {
                basis: self.basis.clone(),
                connection,
                role: Role::Responder,
                suite: self.suite,
                protection,
                iv_base,
                local_id,
                remote_id,
                features,
                nat,
                life: self.life,
                last: Some(last),
            },
        );
        let rest =
            Rest { children: Vec::new(), commands: Vec::new(), replaces: None, initial_contact, addresses: Vec::new() };
        Outcome::Up(Box::new(Up { sa: Box::new(sa), rest }))
    }

    pub(super) fn handle_timeout(&mut self, ctx: &mut Context<'_>) -> Outcome {
        if self.until > ctx.now {
            return Outcome::Pending;
        }
        ctx.count(crate::handshake::counters::HALF_OPEN_TIMEOUT);
        let reason = if self.is_proven() { "the initiator did not finish in time" } else { "" };
        Outcome::ended(reason)
    }

    /// Takes back the pending credential request.
    pub(super) fn cancel(&mut self, ctx: &mut Context<'_>) {
        if let Some(request) = self.request_id() {
            ctx.names.request_ids.remove(&request);
            ctx.out.push_back(Output::CancelRequest(request));
        }
        self.phase = Phase::Ended;
    }

    pub(super) fn id(&self) -> IkeId {
        self.basis.id
    }

    pub(super) fn cookies(&self) -> IkeSpis {
        self.basis.cookies
    }
}

/// Chooses a suite that `fits`, and leaves the candidates that agree to it: the last message of
/// the peer decides between them.
fn choose(
    ctx: &Context<'_>,
    candidates: &mut Vec<Arc<Connection>>,
    offer: &[u8],
    fits: impl Fn(&Phase1) -> bool,
) -> Result<Phase1Choice, Refusal> {
    let mut chosen: Option<Phase1Choice> = None;
    let mut refusal = None;
    candidates.retain(|connection| {
        let keys: Option<&KeysV1> = ctx.names.keys_v1.get(&connection.name);
        let signers = keys.map(|keys| keys.signers.iter().map(|(kind, _)| *kind).collect::<Vec<AuthMethodId>>());
        let methods = Method::of(connection, Role::Responder, signers.as_deref());
        let mut ours = Phase1::of(&connection.proposals, &methods);
        ours.retain(&fits);
        if let Some(choice) = &chosen {
            return ours.contains(&choice.suite);
        }
        match choose_phase1(&ours, offer) {
            Ok(choice) => {
                chosen = Some(choice);
                true
            }
            Err(fault) => {
                refusal.get_or_insert(fault);
                false
            }
        }
    });
    chosen.ok_or_else(|| match refusal {
        Some(fault @ Fault::Configuration(..)) => Refusal::Notify(fault.notify(), fault.to_string()),
        _ => Refusal::Silent,
    })
}

/// The reason to refuse an authenticated peer.
fn is_unwanted(ctx: &Context<'_>, local_id: &Identity, remote_id: &Identity) -> Option<String> {
    let others = ctx.names.with_peer(local_id, remote_id).count();
    (others >= ctx.settings.ike_sas_per_identity_max)
        .then(|| format!("'{remote_id}' has {others} IKE SAs, which is the limit"))
}
