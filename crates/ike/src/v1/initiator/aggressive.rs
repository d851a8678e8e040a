//! Aggressive mode of an initiator (RFC 2409 §5.1, §5.4): three messages, the identities in clear.

use super::*;
use crate::v1::message::Parts;
use crate::v1::phase1::clear_parts;
use crate::v1::proposal::group_of_all;
use crate::v1::protection::digest;

/// Message 1 was sent.
pub(super) struct SentAll {
    suites: Vec<Phase1>,
    pair: KeInitiator,
    nonce: Vec<u8>,
    local_id: Identity,
}

/// Rest of the state of the steps that follow message 2.
pub(super) struct Rest {
    local_id: Identity,
    remote_id: Identity,
    message_2: Vec<u8>,
}

/// A step after message 2, which waits for the holder of the credentials.
pub(super) enum Step {
    /// SKEYID of the shared key.
    SharedKey { suite: Phase1, exchanged: Exchanged, nat: (bool, bool), rest: Rest, request: RequestId },
    /// The verification of SIG_R.
    Verification { keyed: Box<Keyed>, rest: Rest, request: RequestId },
    /// SIG_I.
    Signature { keyed: Box<Keyed>, rest: Rest, request: RequestId },
}

impl Step {
    pub(super) fn request(&self) -> RequestId {
        match self {
            Self::SharedKey { request, .. } | Self::Verification { request, .. } | Self::Signature { request, .. } => {
                *request
            }
        }
    }
}

impl Initiator {
    /// Sends message 1. All transforms have one group, that of the KE payload.
    pub(super) fn offer_all(&mut self, ctx: &mut Context<'_>, signers: &[(AuthMethodId, Identity)]) -> Outcome {
        let connection = Arc::clone(self.connection());
        let cookies = self.basis.cookies;
        // One identity is sent before the responder selects a method.
        let local_id = match signers.first() {
            Some((_, identity)) => identity.clone(),
            None => local_identity(&connection, &self.basis.path),
        };
        let kinds: Vec<AuthMethodId> =
            signers.iter().filter(|(_, identity)| *identity == local_id).map(|(kind, _)| *kind).collect();
        let mut suites = Phase1::of(&connection.proposals, &Method::of(&connection, Role::Initiator, Some(&kinds)));
        let Some(group) = group_of_all(&suites) else {
            return self.over("no proposal of the connection can be expressed in IKEv1".to_owned());
        };
        suites.retain(|suite| suite.ke == group);
        let pair = match group.generate() {
            Ok(pair) => pair,
            Err(fault) => return self.over(fault.to_string()),
        };
        let nonce = nonce(ctx);
        self.offer = phase1_offer(&suites, announced_life(&connection));
        let message = Head::aggressive(cookies).clear(|chain| {
            chain.raw(PayloadType::SA_V1, &self.offer).raw(PayloadType::KE_V1, pair.public());
            chain.raw(PayloadType::NONCE_V1, &nonce).raw(PayloadType::ID_V1, &local_id.payload_body());
            let proof = suites[0].method.proof(Role::Responder);
            emit_certreq(ctx, std::iter::once(&*connection), proof, chain);
            Features::emit_all(&connection, ctx.settings.cisco_unity, chain);
        });
        self.phase = Phase::SentAll(Box::new(SentAll { suites, pair, nonce, local_id }));
        self.request(ctx, message);
        Outcome::Pending
    }

    /// Message 2: the key exchange.
    pub(super) fn take_all(
        &mut self,
        ctx: &mut Context<'_>,
        from: &Path,
        sent: SentAll,
        (header, datagram): (&Header, &[u8]),
    ) -> Outcome {
        let read = self.read_all(&sent.suites, header, datagram);
        let (suite, life, remote_id, parts) = match read {
            Ok(read) => read,
            Err(fault) => {
                ctx.count(counters::MAIN_INVALID);
                self.remember(ctx, &fault);
                return Outcome::stay(&mut self.phase, Phase::SentAll(Box::new(sent)));
            }
        };
        let (public_r, nonce_r) = (parts.ke.unwrap_or_default().to_vec(), parts.nonce.unwrap_or_default().to_vec());
        let public_i = sent.pair.public().to_vec();
        let shared = match sent.pair.finish(&public_r) {
            Ok(shared) => shared,
            Err(fault) => return self.fail(ctx, &Fault::from(fault).to_string()),
        };
        self.features = Features::of(&parts.vendors).for_client(&self.initiation.connection, ctx.settings.cisco_unity);
        self.basis.fragments = fragment::sends(self.connection(), self.features);
        self.requested.add(&parts);
        self.life = life;
        self.basis.cookies.responder = IkeSpi(header.spi_r);
        self.basis.path.local.set_ip(from.local.ip());
        let seen = Path { local: from.local, remote: from.remote, encap: false };
        let nat = match self.features.nat_traversal {
            Some(_) => nat::detect(&parts.nat_d, suite.hash, self.basis.cookies, &seen),
            None => (false, false),
        };
        (self.resend, self.failure) = (None, None);
        let exchanged = Exchanged { public_i, public_r, nonce_i: sent.nonce, nonce_r, shared };
        let rest = Rest { local_id: sent.local_id, remote_id, message_2: datagram.to_vec() };
        if !suite.method.shared_key {
            let skeyid = exchanged.skeyid(suite.prf);
            return self.keyed_all(ctx, (suite, exchanged, nat), rest, Ok(skeyid));
        }
        let connection = Arc::clone(self.connection());
        let nonces = (suite.prf, exchanged.nonces());
        let request = request_skeyid(ctx, &self.basis, &connection, Some(&rest.remote_id), nonces);
        self.phase = Phase::Step(Box::new(Step::SharedKey { suite, exchanged, nat, rest, request }));
        Outcome::Pending
    }

    /// A credential response.
    pub(super) fn stepped(&mut self, ctx: &mut Context<'_>, step: Step, response: CredentialResponse) -> Outcome {
        match (step, response) {
            (Step::SharedKey { suite, exchanged, nat, rest, .. }, response) => {
                self.keyed_all(ctx, (suite, exchanged, nat), rest, skeyid(response))
            }
            (Step::Verification { keyed, rest, .. }, CredentialResponse::Verified(Ok(verified))) => {
                self.life = [self.life, verified.valid_for].into_iter().flatten().min();
                self.prove_all(ctx, keyed, rest)
            }
            (Step::Verification { rest, .. }, CredentialResponse::Verified(Err(refusal))) => {
                ctx.count(crate::handshake::counters::AUTH_FAILED);
                self.fail(ctx, &format!("'{}' is not authenticated: {}", rest.remote_id, refusal.0))
            }
            (Step::Signature { keyed, rest, .. }, CredentialResponse::Signed(Ok(signed))) => {
                let (connection, requested) = (Arc::clone(self.connection()), std::mem::take(&mut self.requested));
                self.send_last(ctx, keyed, rest, |chain| emit_signed(chain, &connection, &requested, &signed))
            }
            (Step::Signature { .. }, CredentialResponse::Signed(Err(refusal))) => {
                self.over(format!("this host cannot authenticate: {}", refusal.0))
            }
            _ => self.over(OTHER_RESPONSE.to_owned()),
        }
    }

    fn read_all<'a>(
        &self,
        suites: &[Phase1],
        header: &Header,
        datagram: &'a [u8],
    ) -> Result<(Phase1, Option<Duration>, Identity, Parts<'a>), Fault> {
        let parts = clear_parts(header, &datagram[Header::LEN..])?;
        let (suite, life) = accept_phase1(suites, needed(parts.sa, "SA")?)?;
        needed(parts.nonce, "NONCE")?;
        suite.ke.check(needed(parts.ke, "KE")?)?;
        let remote_id = crate::v1::selectors::identity(needed(parts.ids.first().copied(), "ID")?)?;
        self.check_identity(&remote_id)?;
        Ok((suite, life, remote_id, parts))
    }

    /// SKEYID: checks HASH_R, or requests the verification of SIG_R. The secret of the key exchange
    /// is used up, so that another message 2 cannot follow one that is wrong.
    fn keyed_all(
        &mut self,
        ctx: &mut Context<'_>,
        (suite, exchanged, nat): (Phase1, Exchanged, (bool, bool)),
        rest: Rest,
        skeyid: Result<Secret, Fault>,
    ) -> Outcome {
        let made = skeyid.and_then(|skeyid| Protection::new(&suite, skeyid, &exchanged, self.basis.cookies));
        let (protection, iv) = match made {
            Ok(made) => made,
            Err(fault) => return self.over(fault.to_string()),
        };
        protection.disclose(ctx, &self.basis, &suite);
        let keyed = Box::new(Keyed { suite, exchanged, nat, protection, iv });
        let claim = Header::parse(&rest.message_2).map_err(Fault::from).and_then(|(header, body)| {
            let parts = clear_parts(header, body)?;
            let id_body = needed(parts.ids.first().copied(), "ID")?;
            keyed.claim(Role::Responder, self.covered(), &parts, id_body)
        });
        match claim {
            Ok((_, None)) => self.prove_all(ctx, keyed, rest),
            Ok((_, Some(claim))) => {
                let (candidates, terms) = (vec![Arc::clone(self.connection())], (self.covered(), Role::Initiator));
                let request = keyed.request_verification(ctx, &self.basis, candidates, terms, &claim);
                self.phase = Phase::Step(Box::new(Step::Verification { keyed, rest, request }));
                Outcome::Pending
            }
            Err(fault) => {
                let is_key = matches!(fault, Fault::Configuration(Mismatch::Key, _));
                ctx.count(if is_key { counters::KEY_MISMATCH } else { counters::MAIN_INVALID });
                self.fail(ctx, &fault.to_string())
            }
        }
    }

    /// The responder is authenticated: HASH_I follows at once, SIG_I after a request.
    fn prove_all(&mut self, ctx: &mut Context<'_>, keyed: Box<Keyed>, rest: Rest) -> Outcome {
        let connection = Arc::clone(self.connection());
        match keyed.suite.method.proof(Role::Initiator) {
            Proof::Hash => {
                let hash = keyed.hash(Role::Initiator, self.covered(), &rest.local_id.payload_body());
                self.send_last(ctx, keyed, rest, |chain| {
                    chain.raw(PayloadType::HASH_V1, &hash);
                })
            }
            Proof::Signature(kind) => {
                let owner = (&connection, Role::Initiator, Some(rest.local_id.clone()));
                let signature = (kind, &self.requested);
                let request = keyed.request_signature(ctx, &self.basis, owner, self.covered(), signature);
                self.phase = Phase::Step(Box::new(Step::Signature { keyed, rest, request }));
                Outcome::Pending
            }
        }
    }

    /// Sends message 3. This host does not learn of its arrival; it is repeated until the peer
    /// sends something authentic.
    fn send_last(
        &mut self,
        ctx: &mut Context<'_>,
        mut keyed: Box<Keyed>,
        rest: Rest,
        prove: impl FnOnce(&mut Chain<'_>),
    ) -> Outcome {
        let Rest { local_id, remote_id, message_2 } = rest;
        let (connection, cookies, nat) = (Arc::clone(self.connection()), self.basis.cookies, keyed.nat);
        // The payloads have the addresses of this message.
        self.float(nat);
        let path = self.basis.path;
        let contact = self.initiation.replaces.is_none()
            && XAuthSide::of(&connection).is_none()
            && ctx.names.begin_contact(self.basis.id, (local_id.clone(), remote_id.clone()));
        let (first, body) = payloads(|chain| {
            prove(chain);
            if let Some(kind) = self.features.nat_traversal {
                nat::emit(chain, kind, keyed.suite.hash, cookies, &path, connection.encap.is_forced());
            }
            if contact {
                notification(chain, NotifyType::INITIAL_CONTACT, &both_cookies(cookies), &[]);
            }
        });
        let message = keyed.protection.seal(&mut keyed.iv, &Head::aggressive(cookies), first, &body);
        self.basis.send(ctx, &connection, message.clone());
        let iv = keyed.iv.clone();
        let last = Last { seen: digest(&message_2), reply: message.clone(), unconfirmed: Some(message) };
        self.up(ctx, *keyed, (local_id, remote_id), iv, Some(last))
    }
}
