//! Aggressive mode of a responder (RFC 2409 §5.1, §5.4).
//!
//! Message 2 needs a key exchange, and with signatures a signature and certificates, before the
//! address of the initiator is proven. The table limits how many such answers one address and all
//! of them receive; message 2 is sent again for at most [`REPEATS_MAX`] copies of message 1, and
//! never by itself.

use super::*;

/// Copies of message 1 that are answered.
pub(super) const REPEATS_MAX: u32 = 3;

/// Message 1 was accepted; its key exchange is done.
pub(super) struct Begun {
    remote_id: Identity,
    id_body: Vec<u8>,
    message_1: Digest,
}

/// A step before message 2, which waits for the holder of the credentials.
pub(super) enum Step {
    /// SKEYID of the shared key of candidate `at`.
    SharedKey { exchanged: Exchanged, begun: Begun, at: usize, request: RequestId },
    /// SIG_R.
    Signature { keyed: Box<Keyed>, begun: Begun, request: RequestId },
}

impl Step {
    pub(super) fn request(&self) -> RequestId {
        match self {
            Self::SharedKey { request, .. } | Self::Signature { request, .. } => *request,
        }
    }
}

/// Message 2 was sent.
pub(super) struct SentAll {
    keyed: Box<Keyed>,
    begun: Begun,
    local_id: Identity,
    at: usize,
    pub(super) repeats: u32,
}

impl SentAll {
    /// Keys and IV of message 3, and the body of the initiator's ID payload.
    #[cfg(any(test, feature = "testkit"))]
    pub(super) fn expected(&self) -> (&Keyed, &[u8]) {
        (&self.keyed, &self.begun.id_body)
    }
}

/// SIG_I of message 3 is being verified.
pub(super) struct Confirming {
    sent: SentAll,
    last: LastRead,
    pub(super) request: RequestId,
}

/// Contents of message 3.
struct LastRead {
    nat: (bool, bool),
    initial_contact: bool,
    iv: Iv,
    path: Path,
    message_3: Digest,
}

impl Responder {
    /// Takes message 1 and computes the key exchange.
    pub(in crate::v1) fn accept_all(
        ctx: &mut Context<'_>,
        basis: Basis,
        mut candidates: Vec<Arc<Connection>>,
        header: &Header,
        datagram: &[u8],
    ) -> Result<Self, Refusal> {
        let parts = clear_parts(header, &datagram[Header::LEN..]).map_err(|_| Refusal::Silent)?;
        let (offer, nonce_i) = parts.sa.zip(parts.nonce).ok_or(Refusal::Silent)?;
        let (public_i, id_body) = parts.ke.zip(parts.ids.first().copied()).ok_or(Refusal::Silent)?;
        let remote_id = crate::v1::selectors::identity(id_body).map_err(|_| Refusal::Silent)?;
        let admits = |connection: &Arc<Connection>| {
            connection.remote.first().is_some_and(|auth| auth.id.matches(&remote_id).is_some())
        };
        candidates.retain(admits);
        if candidates.is_empty() {
            let text = format!("no connection with 'aggressive = yes' allows the identity '{remote_id}'");
            return Err(Refusal::Notify(NotifyType::AUTHENTICATION_FAILED, text));
        }
        // The group is that of the KE payload.
        let choice = choose(ctx, &mut candidates, offer, |suite| suite.ke.check(public_i).is_ok())?;
        let (public_r, shared) = choice.suite.ke.respond(public_i).map_err(|_| Refusal::Silent)?;
        let nonce_r = nonce(ctx);
        let (public_i, nonce_i) = (public_i.to_vec(), nonce_i.to_vec());
        let exchanged = Exchanged { public_i, public_r, nonce_i, nonce_r, shared };
        let mut responder = Self::new(ctx, (basis, candidates), choice, &parts, offer);
        let begun = Begun { remote_id, id_body: id_body.to_vec(), message_1: digest(datagram) };
        responder.aggressive = true;
        responder.begin_all(ctx, exchanged, begun).map_err(|_| Refusal::Silent)?;
        Ok(responder)
    }

    fn begin_all(&mut self, ctx: &mut Context<'_>, exchanged: Exchanged, begun: Begun) -> Result<(), Fault> {
        if self.suite.method.shared_key {
            let request = self.request_key(ctx, &exchanged, 0, Some(&begun.remote_id));
            self.phase = Phase::Step(Box::new(Step::SharedKey { exchanged, begun, at: 0, request }));
            return Ok(());
        }
        let skeyid = exchanged.skeyid(self.suite.prf);
        let (protection, iv) = Protection::new(&self.suite, skeyid, &exchanged, self.basis.cookies)?;
        self.sign_all(ctx, (exchanged, protection, iv), begun, 0);
        Ok(())
    }

    /// A credential response before message 2.
    pub(super) fn stepped(&mut self, ctx: &mut Context<'_>, step: Step, response: CredentialResponse) -> Outcome {
        match (step, response) {
            (Step::SharedKey { exchanged, begun, at, .. }, response) => {
                let made = skeyid(response)
                    .and_then(|skeyid| Protection::new(&self.suite, skeyid, &exchanged, self.basis.cookies));
                match made {
                    Ok((protection, iv)) => self.sign_all(ctx, (exchanged, protection, iv), begun, at),
                    Err(_) if at + 1 < self.candidates.len() => {
                        let at = at + 1;
                        let request = self.request_key(ctx, &exchanged, at, Some(&begun.remote_id));
                        self.phase = Phase::Step(Box::new(Step::SharedKey { exchanged, begun, at, request }));
                    }
                    Err(fault) => return Outcome::ended(fault.to_string()),
                }
                Outcome::Pending
            }
            (Step::Signature { keyed, begun, .. }, CredentialResponse::Signed(Ok(signed))) => {
                let connection = Arc::clone(&self.candidates[0]);
                let requested = std::mem::take(&mut self.requested);
                self.send_all(ctx, keyed, begun, (signed.local_id.clone(), 0), |chain| {
                    emit_signed(chain, &connection, &requested, &signed);
                });
                Outcome::Pending
            }
            (Step::Signature { .. }, CredentialResponse::Signed(Err(refusal))) => {
                Outcome::ended(format!("this host cannot authenticate: {}", refusal.0))
            }
            _ => Outcome::ended(OTHER_RESPONSE),
        }
    }

    /// HASH_R follows at once, SIG_R after a request.
    fn sign_all(
        &mut self,
        ctx: &mut Context<'_>,
        (exchanged, protection, iv): (Exchanged, Protection, Iv),
        begun: Begun,
        at: usize,
    ) {
        protection.disclose(ctx, &self.basis, &self.suite);
        let keyed = Box::new(Keyed { suite: self.suite, exchanged, nat: (false, false), protection, iv });
        let connection = Arc::clone(&self.candidates[at]);
        match self.suite.method.proof(Role::Responder) {
            Proof::Hash => {
                let local_id = local_identity(&connection, &self.basis.path);
                let hash = keyed.hash(Role::Responder, self.covered(), &local_id.payload_body());
                self.send_all(ctx, keyed, begun, (local_id, at), |chain| {
                    chain.raw(PayloadType::HASH_V1, &hash);
                });
            }
            Proof::Signature(kind) => {
                let (owner, signature) = ((&connection, Role::Responder, None), (kind, &self.requested));
                let request = keyed.request_signature(ctx, &self.basis, owner, self.covered(), signature);
                self.phase = Phase::Step(Box::new(Step::Signature { keyed, begun, request }));
            }
        }
    }

    /// Sends message 2.
    fn send_all(
        &mut self,
        ctx: &mut Context<'_>,
        keyed: Box<Keyed>,
        begun: Begun,
        (local_id, at): (Identity, usize),
        prove: impl FnOnce(&mut Chain<'_>),
    ) {
        let (cookies, path) = (self.basis.cookies, self.basis.path);
        let connection = Arc::clone(&self.candidates[at]);
        let message = Head::aggressive(cookies).clear(|chain| {
            chain.raw(PayloadType::SA_V1, &self.answer).raw(PayloadType::KE_V1, &keyed.exchanged.public_r);
            chain.raw(PayloadType::NONCE_V1, &keyed.exchanged.nonce_r);
            chain.raw(PayloadType::ID_V1, &local_id.payload_body());
            let proof = self.suite.method.proof(Role::Initiator);
            emit_certreq(ctx, self.candidates.iter().map(|connection| &**connection), proof, chain);
            prove(chain);
            if let Some(kind) = self.features.nat_traversal {
                nat::emit(chain, kind, self.suite.hash, cookies, &path, connection.encap.is_forced());
            }
            self.vendors.iter().for_each(|vendor| {
                chain.raw(PayloadType::VENDOR_V1, vendor);
            });
        });
        self.last = (begun.message_1, message.clone());
        self.basis.send(ctx, &connection, message);
        let sent = SentAll { keyed, begun, local_id, at, repeats: 0 };
        self.phase = Phase::SentAll(Box::new(sent));
    }

    /// Message 3, encrypted or in clear (RFC 2409 §5.1).
    pub(super) fn take_last(
        &mut self,
        ctx: &mut Context<'_>,
        sent: SentAll,
        from: &Path,
        (header, datagram): (&Header, &[u8]),
    ) -> Outcome {
        let read = self.read_last(&sent, from, header, datagram);
        let (claim, last) = match read {
            Ok(read) => read,
            Err(fault) => {
                self.refuse(ctx, from, &fault);
                return Outcome::stay(&mut self.phase, Phase::SentAll(Box::new(sent)));
            }
        };
        let Some(claim) = claim else { return self.up_all(ctx, sent, last) };
        if self.verifications >= VERIFICATIONS_MAX {
            ctx.count(counters::SIGNATURES_LIMITED);
            self.phase = Phase::SentAll(Box::new(sent));
            return Outcome::Pending;
        }
        self.verifications += 1;
        let candidates = self.admitting(&sent.begun.remote_id);
        let terms = (self.covered(), Role::Responder);
        let request = sent.keyed.request_verification(ctx, &self.basis, candidates, terms, &claim);
        self.phase = Phase::Confirming(Box::new(Confirming { sent, last, request }));
        Outcome::Pending
    }

    fn read_last(
        &self,
        sent: &SentAll,
        from: &Path,
        header: &Header,
        datagram: &[u8],
    ) -> Result<(Option<Claim>, LastRead), Fault> {
        let keyed = &*sent.keyed;
        let body = &datagram[Header::LEN..];
        let encrypted = header.flags & Header::FLAG_V1_ENCRYPTION != 0;
        let (plain, iv) = match encrypted {
            true => keyed.protection.open(&keyed.iv, body).map_err(|_| keyed.unreadable())?,
            // IVs of phase 2 start from that of phase 1.
            false => (body.to_vec(), keyed.iv.clone()),
        };
        let parts = Parts::read(header.next, &plain).map_err(|_| keyed.unreadable())?;
        let (_, claim) = keyed.claim(Role::Initiator, self.covered(), &parts, &sent.begun.id_body)?;
        let nat = match self.features.nat_traversal {
            // The payloads have the addresses of this message, of some peers those of message 1.
            Some(_) => {
                let detect = |path: &Path| nat::detect(&parts.nat_d, self.suite.hash, self.basis.cookies, path);
                let (now, before) = (detect(from), detect(&self.basis.path));
                (now.0 && before.0, now.1 && before.1)
            }
            None => (false, false),
        };
        let initial_contact = encrypted && parts.notification(NotifyType::INITIAL_CONTACT).is_some();
        Ok((claim, LastRead { nat, initial_contact, iv, path: *from, message_3: digest(datagram) }))
    }

    /// The result of the verification of SIG_I.
    pub(super) fn confirmed(
        &mut self,
        ctx: &mut Context<'_>,
        confirming: Confirming,
        response: CredentialResponse,
    ) -> Outcome {
        let Confirming { sent, last, .. } = confirming;
        match response {
            CredentialResponse::Verified(Ok(verified)) => {
                let is_it = |connection: &Arc<Connection>| Arc::ptr_eq(connection, &verified.connection);
                let Some(at) = self.candidates.iter().position(is_it) else {
                    return Outcome::ended("internal error: the connection that admits the peer is no candidate");
                };
                self.life = [self.life, verified.valid_for].into_iter().flatten().min();
                self.up_all(ctx, SentAll { at, ..sent }, last)
            }
            CredentialResponse::Verified(Err(refusal)) => {
                let reason = format!("'{}' is not authenticated: {}", sent.begun.remote_id, refusal.0);
                self.notify_refused(ctx, (&sent.keyed, sent.at), (&last.iv, &last.path), reason);
                self.phase = Phase::SentAll(Box::new(sent));
                self.until = self.until.min(ctx.now + REFUSED);
                Outcome::Pending
            }
            _ => Outcome::ended(OTHER_RESPONSE),
        }
    }

    /// Both ends are authenticated.
    fn up_all(&mut self, ctx: &mut Context<'_>, sent: SentAll, last: LastRead) -> Outcome {
        let SentAll { keyed, begun, local_id, at, .. } = sent;
        if let Some(reason) = is_unwanted(ctx, &local_id, &begun.remote_id) {
            self.notify_refused(ctx, (&keyed, at), (&last.iv, &last.path), reason.clone());
            return Outcome::ended(reason);
        }
        let connection = Arc::clone(&self.candidates[at]);
        let LastRead { nat, initial_contact, iv, path, message_3 } = last;
        let encap = self.features.nat_traversal.is_some() && (nat.0 || nat.1 || connection.encap.is_forced());
        self.basis.path = Path { encap, ..path };
        let keyed = Keyed { nat, ..*keyed };
        let last = Last { seen: message_3, reply: Vec::new(), unconfirmed: None };
        self.established(ctx, connection, keyed, (local_id, begun.remote_id), (iv, last, initial_contact))
    }
}
