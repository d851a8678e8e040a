//! The responder of main mode.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::ike::Secret;
use wire::ike::v1::{NotifyType, vendor};
use wire::ike::{ExchangeType, Header, PayloadType};

use super::counters;
use super::established::{Established, Parameters};
use super::fault::{Fault, Mismatch};
use super::message::{Features, Head, Parts, payloads};
use super::nat;
use super::phase1::{
    Basis, Outcome, Up, clear_notification, clear_parts, local_identity, message_id, needed, nonce, notification,
    request_skeyid, send, skeyid,
};
use super::proposal::{Phase1, Phase1Choice, choose_phase1};
use super::protection::{Digest, Exchanged, Iv, Protection, digest, is_equal};
use super::selectors;
use crate::config::Connection;
use crate::context::Context;
use crate::identity::Identity;
use crate::output::{CredentialResponse, IkeId, IkeSpis, Level, Output, Path, RequestId};
use crate::sa::Role;

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
    Asking(Box<Asking>),
    GotKe(Box<GotKe>),
    Switching(Box<Switching>),
    /// A step is running, or it has ended.
    Ended,
}

/// SKEYID was requested, with the key of candidate `at`.
struct Asking {
    exchanged: Exchanged,
    nat: (bool, bool),
    request: RequestId,
    at: usize,
    message_3: Digest,
}

/// Message 4 was sent.
struct GotKe {
    exchanged: Exchanged,
    nat: (bool, bool),
    protection: Protection,
    iv: Iv,
    /// Index of the candidate whose key it is.
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

/// Authenticated contents of message 5.
struct Claimed {
    remote_id: Identity,
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
        let mut chosen: Option<Phase1Choice> = None;
        let mut refusal = None;
        let fits = |connection: &Arc<Connection>| {
            let ours = Phase1::of(&connection.proposals);
            // All candidates must agree to one suite, because message 5 decides between them.
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
        };
        let mut candidates = candidates;
        candidates.retain(fits);
        let Some(Phase1Choice { suite, life, answer }) = chosen else {
            return Err(match refusal {
                Some(fault @ Fault::Configuration(..)) => Refusal::Notify(fault.notify(), fault.to_string()),
                _ => Refusal::Silent,
            });
        };
        let features = Features::of(&parts.vendors);
        let message = Head::main(basis.cookies).clear(|chain| {
            chain.raw(PayloadType::SA_V1, &answer);
            features.emit_common(&parts.vendors, chain);
        });
        // The address is not proven, so that a longer answer would amplify. Only an offer that is
        // encoded in another way than the answer can be shorter.
        if message.len() > datagram.len() {
            return Err(Refusal::Silent);
        }
        basis.send(ctx, &candidates[0], message.clone());
        Ok(Self {
            basis,
            candidates,
            suite,
            life,
            offer: offer.to_vec(),
            features,
            until: ctx.now + ctx.settings.half_open_timeout,
            last: (digest(datagram), message),
            notified: false,
            late_dpd: false,
            phase: Phase::GotSa,
        })
    }

    /// The best candidate.
    pub(super) fn connection(&self) -> &Arc<Connection> {
        let at = match &self.phase {
            Phase::GotKe(got) => got.at,
            Phase::Asking(asking) => asking.at,
            _ => 0,
        };
        &self.candidates[at.min(self.candidates.len() - 1)]
    }

    /// Message 3 has come, which proves the address.
    pub(super) fn is_proven(&self) -> bool {
        !matches!(self.phase, Phase::GotSa)
    }

    pub(super) fn request_id(&self) -> Option<RequestId> {
        match &self.phase {
            Phase::Asking(asking) => Some(asking.request),
            Phase::Switching(switching) => Some(switching.request),
            _ => None,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.until
    }

    /// Takes a datagram with the cookie of this host, which proves the address that it was sent to.
    pub(super) fn handle(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) -> Outcome {
        // A NAT may change the port between messages; another address proves nothing.
        let expected = header.exchange == ExchangeType::ID_PROT
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
            Phase::GotSa => match self.take_ke(ctx, from, header, datagram) {
                Ok(asking) => self.phase = Phase::Asking(Box::new(asking)),
                Err(fault) => {
                    self.phase = Phase::GotSa;
                    self.refuse(ctx, from, &fault);
                }
            },
            Phase::GotKe(got) => match self.read_auth(&got, from, header, datagram) {
                Ok(claimed) => return self.take_auth(ctx, *got, claimed),
                Err(fault) => {
                    self.phase = Phase::GotKe(got);
                    // Message 3 in clear text, repeated with other bytes.
                    if header.flags & Header::FLAG_V1_ENCRYPTION != 0 {
                        self.refuse(ctx, from, &fault);
                    }
                }
            },
            phase => self.phase = phase,
        }
        Outcome::Pending
    }

    /// Answers a repeated message with the stored answer; true for one.
    pub(super) fn repeat(&self, ctx: &mut Context<'_>, from: &Path, datagram: &[u8]) -> bool {
        if self.last.0 != digest(datagram) {
            return false;
        }
        ctx.count(counters::DUPLICATE);
        send(ctx, from, self.connection().dscp, self.last.1.clone());
        true
    }

    /// A message is not acceptable: the peer hears of it once, the state stays for a better one.
    fn refuse(&mut self, ctx: &mut Context<'_>, from: &Path, fault: &Fault) {
        if self.note(ctx, from, fault) {
            let message = clear_notification(ctx, self.basis.cookies, fault.notify());
            send(ctx, from, self.connection().dscp, message);
        }
    }

    /// The peer has the key, but its identity is not acceptable. The initiator can authenticate the
    /// notification.
    fn refuse_identity(&mut self, ctx: &mut Context<'_>, got: &GotKe, claimed: &Claimed, reason: String) -> Outcome {
        let fault = Fault::authentication(reason.clone());
        if self.note(ctx, &claimed.path, &fault) {
            let head = Head {
                cookies: self.basis.cookies,
                exchange: ExchangeType::INFORMATIONAL_V1,
                message_id: message_id(ctx),
            };
            let (first, body) = payloads(|chain| notification(chain, fault.notify(), &[], &[]));
            let mut iv = got.protection.iv(&claimed.iv, head.message_id);
            let message = got.protection.seal_hash_1(&mut iv, &head, first, &body);
            send(ctx, &claimed.path, self.candidates[got.at].dscp, message);
        }
        Outcome::ended(reason)
    }

    /// Counts and logs a message that is not acceptable. Returns true if the peer should be
    /// notified.
    fn note(&mut self, ctx: &mut Context<'_>, from: &Path, fault: &Fault) -> bool {
        let is_key = matches!(fault, Fault::Configuration(Mismatch::Key, _));
        ctx.count(if is_key { counters::KEY_MISMATCH } else { counters::MAIN_INVALID });
        if std::mem::replace(&mut self.notified, true) {
            return false;
        }
        self.basis.log(ctx, Level::Warn, format!("main mode with {} fails: {fault}", from.remote));
        if is_key || matches!(fault, Fault::Configuration(Mismatch::Authentication, _)) {
            ctx.count(crate::handshake::counters::AUTH_FAILED);
        }
        true
    }

    /// Message 3: computes the shared secret and requests SKEYID.
    fn take_ke(
        &mut self,
        ctx: &mut Context<'_>,
        from: &Path,
        header: &Header,
        datagram: &[u8],
    ) -> Result<Asking, Fault> {
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
        let nonce_r = nonce(ctx);
        let (public_i, nonce_i) = (public_i.to_vec(), nonce_i.to_vec());
        let exchanged = Exchanged { public_i, public_r, nonce_i, nonce_r, shared };
        let request = self.ask(ctx, &exchanged, 0, None);
        Ok(Asking { exchanged, nat, request, at: 0, message_3: digest(datagram) })
    }

    fn ask(&self, ctx: &mut Context<'_>, exchanged: &Exchanged, at: usize, remote: Option<&Identity>) -> RequestId {
        request_skeyid(ctx, &self.basis, &self.candidates[at], remote, (self.suite.prf, exchanged.nonces()))
    }

    /// SKEYID.
    pub(super) fn answer(
        &mut self,
        ctx: &mut Context<'_>,
        request: RequestId,
        response: CredentialResponse,
    ) -> Outcome {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Asking(asking) if asking.request == request => self.keyed(ctx, *asking, skeyid(response)),
            Phase::Switching(switching) if switching.request == request => {
                self.switched(ctx, *switching, skeyid(response))
            }
            phase => {
                self.phase = phase;
                Outcome::Pending
            }
        }
    }

    /// Sends message 4, or tries the next candidate.
    fn keyed(&mut self, ctx: &mut Context<'_>, mut asking: Asking, skeyid: Result<Secret, String>) -> Outcome {
        let reason = match skeyid {
            Ok(skeyid) => match Protection::new(&self.suite, skeyid, &asking.exchanged, self.basis.cookies) {
                Ok((protection, iv)) => {
                    protection.disclose(ctx, &self.basis, &self.suite);
                    let Asking { exchanged, nat, at, message_3, .. } = asking;
                    self.send_ke(ctx, &exchanged, at, message_3);
                    self.phase = Phase::GotKe(Box::new(GotKe { exchanged, nat, protection, iv, at }));
                    return Outcome::Pending;
                }
                Err(fault) => fault.to_string(),
            },
            Err(reason) => reason,
        };
        if asking.at + 1 < self.candidates.len() {
            asking.at += 1;
            asking.request = self.ask(ctx, &asking.exchanged, asking.at, None);
            self.phase = Phase::Asking(Box::new(asking));
            return Outcome::Pending;
        }
        let path = self.basis.path;
        let message = clear_notification(ctx, self.basis.cookies, NotifyType::AUTHENTICATION_FAILED);
        send(ctx, &path, self.candidates[0].dscp, message);
        Outcome::ended(reason)
    }

    fn send_ke(&mut self, ctx: &mut Context<'_>, exchanged: &Exchanged, at: usize, message_3: Digest) {
        let (cookies, path) = (self.basis.cookies, self.basis.path);
        let connection = Arc::clone(&self.candidates[at]);
        let message = Head::main(cookies).clear(|chain| {
            chain.raw(PayloadType::KE_V1, &exchanged.public_r).raw(PayloadType::NONCE_V1, &exchanged.nonce_r);
            if let Some(kind) = self.features.nat_traversal {
                nat::emit(chain, kind, self.suite.hash, cookies, &path, connection.encap);
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
        let (plain, iv) = got.protection.open(&got.iv, &datagram[Header::LEN..]).map_err(|_| Fault::key())?;
        let parts = Parts::read(header.next, &plain).map_err(|_| Fault::key())?;
        let id_body = parts.ids.first().ok_or_else(Fault::key)?;
        let cookies = self.basis.cookies;
        let hash = got.protection.hash_phase1(true, &got.exchanged, cookies, &self.offer, id_body);
        if !is_equal(parts.hash, &hash) {
            return Err(Fault::key());
        }
        let remote_id = selectors::identity(id_body)?;
        let initial_contact = parts.notification(NotifyType::INITIAL_CONTACT).is_some();
        Ok(Claimed { remote_id, initial_contact, path: *from, message_5: digest(datagram), iv })
    }

    /// The peer has the key of candidate `at`. Its identity must be one that this connection names,
    /// or another candidate with the same key. A key that was found without the identity must also
    /// be the one of the identity: otherwise a peer could claim the identity of another.
    fn take_auth(&mut self, ctx: &mut Context<'_>, got: GotKe, claimed: Claimed) -> Outcome {
        let pattern = |connection: &Connection| connection.remote.first().map(|auth| auth.id.clone());
        let admits = |connection: &Connection| {
            pattern(connection).is_some_and(|pattern| pattern.matches(&claimed.remote_id).is_some())
        };
        let of_key = &self.candidates[got.at];
        let to = match admits(of_key) {
            true if pattern(of_key).is_some_and(|pattern| pattern.exact().is_some()) => {
                let at = got.at;
                return self.up(ctx, got, claimed, at);
            }
            true => Some(got.at),
            false => self.candidates.iter().position(|connection| admits(connection)),
        };
        if let Some(to) = to {
            let request = self.ask(ctx, &got.exchanged, to, Some(&claimed.remote_id));
            self.phase = Phase::Switching(Box::new(Switching { got, claimed, request, to }));
            return Outcome::Pending;
        }
        let text = format!("no connection between these addresses allows the identity '{}'", claimed.remote_id);
        self.refuse_identity(ctx, &got, &claimed, text)
    }

    fn switched(&mut self, ctx: &mut Context<'_>, switching: Switching, skeyid: Result<Secret, String>) -> Outcome {
        let Switching { got, claimed, to, .. } = switching;
        // The hash was verified with SKEYID of the first key.
        if skeyid.is_ok_and(|skeyid| skeyid == got.protection.keys.skeyid) {
            return self.up(ctx, got, claimed, to);
        }
        let text = format!("the shared key is not the one of '{}'", claimed.remote_id);
        self.refuse_identity(ctx, &got, &claimed, text)
    }

    /// Sends message 6.
    fn up(&mut self, ctx: &mut Context<'_>, got: GotKe, claimed: Claimed, at: usize) -> Outcome {
        let connection = Arc::clone(&self.candidates[at]);
        let cookies = self.basis.cookies;
        let encap = self.features.nat_traversal.is_some() && (got.nat.0 || got.nat.1 || connection.encap);
        self.basis.path = Path { encap, ..claimed.path };
        let local_id = local_identity(&connection, &self.basis.path);
        if let Some(reason) = is_unwanted(ctx, &local_id, &claimed.remote_id) {
            return self.refuse_identity(ctx, &got, &claimed, reason);
        }
        let GotKe { exchanged, nat, protection, .. } = got;
        let Claimed { remote_id, initial_contact, message_5, mut iv, .. } = claimed;
        let id_body = local_id.payload_body();
        let hash = protection.hash_phase1(false, &exchanged, cookies, &self.offer, &id_body);
        let (first, body) = payloads(|chain| {
            chain.raw(PayloadType::ID_V1, &id_body).raw(PayloadType::HASH_V1, &hash);
        });
        let message = protection.seal(&mut iv, &Head::main(cookies), first, &body);
        self.basis.send(ctx, &connection, message.clone());
        let sa = Established::new(
            ctx,
            Parameters {
                basis: self.basis.clone(),
                connection,
                role: Role::Responder,
                suite: self.suite,
                protection,
                iv_base: iv,
                local_id,
                remote_id,
                features: self.features,
                nat,
                life: self.life,
                last: Some((message_5, message)),
            },
        );
        Outcome::Up(Box::new(Up {
            sa: Box::new(sa),
            children: Vec::new(),
            commands: Vec::new(),
            replaces: None,
            initial_contact,
        }))
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

/// The reason to refuse an authenticated peer.
fn is_unwanted(ctx: &Context<'_>, local_id: &Identity, remote_id: &Identity) -> Option<String> {
    let others = ctx.names.with_peer(local_id, remote_id).count();
    (others >= ctx.settings.ike_sas_per_identity_max)
        .then(|| format!("'{remote_id}' has {others} IKE SAs, which is the limit"))
}
