//! The successor of an IKE SA (RFC 7296 §1.3.2, §2.18), and reauthentication.
//!
//! The successor takes over name, Child SAs and waiting tasks; its message IDs start at 0. The
//! initiator of the rekey deletes the old IKE SA. When both hosts rekey at once (§2.8.2) each
//! responds to the other and keeps the answered successor as `rival`, inactive, until its own
//! response has arrived: the exchange with the lowest of the four nonces loses, the successor of
//! the other inherits, and the creator of the loser deletes it. A host that has already finished
//! refuses the late request with TEMPORARY_FAILURE, and its delete for the old IKE SA cancels the
//! attempt of the other.

use crypto::ike::{KeInitiator, KeMethod, Secret};
use wire::ike::{Chain, ExchangeType, NotifyType, ProtocolId};

use super::create::{finish_ke, wanted_ke};
use super::followup::{self, FollowUp, Purpose};
use super::{Active, RETRY, Task, Tasks, counters, done, jitter, loses, nonce};
use crate::child::Parts;
use crate::config::AuthMethod;
use crate::context::Context;
use crate::error::IkeError;
use crate::exchange::{Exchanges, Inner, SaIds};
use crate::keymat::{self, IkeKeys, Seed};
use crate::output::{Event, IkeSpi, IkeSpis, Level};
use crate::proposal::{self, IkeProposal, IkeSuite};
use crate::sa::{ChildRequest, DeriveKeys, Ending, Established, Initiation, NewSa, Role, SkKeys};

/// This host's rekeying of the IKE SA, outstanding.
pub(super) struct Rekeying {
    spi: IkeSpi,
    nonce: Vec<u8>,
    ke: Option<KeInitiator>,
    tried: Vec<KeMethod>,
    attempt: u32,
    command: Option<u64>,
    follow_up: Option<(IkeSuite, IkeSpi, FollowUp)>,
}

/// State of a responder before the last key exchange.
pub(super) struct Answered {
    suite: IkeSuite,
    spis: IkeSpis,
}

/// The peer's rekeying, answered while that of this host is outstanding.
pub(super) struct Rival {
    sa: Box<Established>,
    lowest: Vec<u8>,
}

impl Rekeying {
    pub(super) fn command(&self) -> Option<u64> {
        self.command
    }
}

/// A random SPI for the successor of an IKE SA.
fn fresh_spi(ctx: &mut Context<'_>) -> IkeSpi {
    let mut spi = [0; 8];
    // Zero means "no SPI" in IKE_SA_INIT.
    while spi == [0; 8] {
        ctx.rng.fill_bytes(&mut spi);
    }
    IkeSpi(spi)
}

impl Established {
    /// Rekeys, or reauthenticates.
    pub(crate) fn rekey(&mut self, ctx: &mut Context<'_>, reauth: bool, command: Option<u64>) {
        if self.ending != Ending::No {
            return done(ctx, command, Err("the IKE SA is ending"));
        }
        if reauth { self.reauthenticate(ctx, command) } else { self.queue(ctx, Task::RekeyIke(command)) }
    }

    pub(super) fn start_rekey_ike(&mut self, ctx: &mut Context<'_>, command: Option<u64>, attempt: u32) {
        let spi = fresh_spi(ctx);
        let rekeying =
            Rekeying { spi, nonce: Vec::new(), ke: None, tried: Vec::new(), attempt, command, follow_up: None };
        // The method in use was good for both; else the first of the connection.
        let offered = self.connection.proposals.iter().flat_map(|proposal| &proposal.ke);
        let method = offered.clone().find(|method| **method == self.suite.ke).or(offered.clone().next()).copied();
        self.request_rekey_ike(ctx, Box::new(rekeying), method.unwrap_or(self.suite.ke));
    }

    /// As for `proposals_for` Child SAs.
    fn ike_proposals(&self) -> Vec<IkeProposal> {
        let proposals = &self.connection.proposals;
        if self.peer.intermediate {
            return proposals.clone();
        }
        proposals.iter().filter_map(IkeProposal::without_additional).collect()
    }

    fn request_rekey_ike(&mut self, ctx: &mut Context<'_>, mut rekeying: Box<Rekeying>, method: KeMethod) {
        let ke = match method.generate() {
            Ok(ke) => ke,
            Err(fault) => return self.rekey_ike_failed(ctx, *rekeying, &format!("no key exchange: {fault}")),
        };
        rekeying.nonce = nonce(ctx);
        rekeying.tried.push(method);
        let proposals = self.ike_proposals();
        let inner = Inner::new(|chain| {
            proposal::emit_ike_offer(chain, &proposals, &rekeying.spi.0);
            chain.nonce(&rekeying.nonce).ke(method.id(), ke.public());
        });
        let inner = match inner {
            Ok(inner) => inner,
            Err(too_long) => return self.rekey_ike_failed(ctx, *rekeying, &too_long.to_string()),
        };
        rekeying.ke = Some(ke);
        self.send_inner(ctx, Active::RekeyIke(rekeying), ExchangeType::CREATE_CHILD_SA, inner);
    }

    /// The response to the rekeying of the IKE SA or to one of its IKE_FOLLOWUP_KE.
    pub(super) fn rekeyed(&mut self, ctx: &mut Context<'_>, mut rekeying: Box<Rekeying>, parts: &Parts<'_>) {
        // An error Notify ends the exchange; other payloads of the response are ignored.
        if let Some(error) = parts.error() {
            return self.rekey_ike_refused(ctx, rekeying, error.kind, error.data);
        }
        let (suite, spi_r, mut follow_up) = match self.accept_rekeying(&mut rekeying, parts) {
            Ok(good) => good,
            Err(error) => return self.rekey_ike_failed(ctx, *rekeying, &error.to_string()),
        };
        match follow_up.next(parts) {
            Err(error) => self.rekey_ike_failed(ctx, *rekeying, &error.to_string()),
            Ok(Some(inner)) => {
                rekeying.follow_up = Some((suite, spi_r, follow_up));
                let active = Active::RekeyIke(rekeying);
                self.send_inner(ctx, active, ExchangeType::IKE_FOLLOWUP_KE, inner);
            }
            Ok(None) => self.finish_rekeying(ctx, *rekeying, suite, spi_r, &follow_up),
        }
    }

    fn accept_rekeying(
        &self,
        rekeying: &mut Rekeying,
        parts: &Parts<'_>,
    ) -> Result<(IkeSuite, IkeSpi, FollowUp), IkeError> {
        if let Some((suite, spi, mut follow_up)) = rekeying.follow_up.take() {
            follow_up.take(parts)?;
            return Ok((suite, spi, follow_up));
        }
        let sa = parts.sa.as_ref().ok_or(IkeError::Violation("the answer lacks an SA payload".into()))?;
        let (suite, spi) = proposal::accept_ike(&self.ike_proposals(), sa)?;
        let length = spi.len();
        let wrong_length = |_| IkeError::violation(format!("an SPI of {length} bytes"));
        let spi = IkeSpi(spi.as_slice().try_into().map_err(wrong_length)?);
        // A zero SPI could not be distinguished from a new IKE_SA_INIT.
        if spi.is_zero() {
            return Err(IkeError::violation("the peer's SPI is zero"));
        }
        let (secret, nonce_r) = finish_ke(rekeying.ke.take(), Some(suite.ke), parts)?;
        let additional = suite.additional.clone();
        Ok((suite, spi, FollowUp::new(secret.into_iter().collect(), nonce_r, additional)))
    }

    fn finish_rekeying(
        &mut self,
        ctx: &mut Context<'_>,
        rekeying: Rekeying,
        suite: IkeSuite,
        spi_r: IkeSpi,
        keys: &FollowUp,
    ) {
        let spis = IkeSpis::new(rekeying.spi, spi_r);
        let nonces = (&rekeying.nonce[..], &keys.nonce_r[..]);
        let seed = Seed { nonce_i: nonces.0, nonce_r: nonces.1, spis };
        let mut new = match self.successor(ctx, Role::Initiator, suite, &seed, &keys.secrets) {
            Ok(new) => new,
            Err(error) => return self.rekey_ike_failed(ctx, rekeying, &error.to_string()),
        };
        match self.tasks.rival.take() {
            // Simultaneous rekeying (RFC 7296 §2.8.1): both peers compare the four nonces and reach
            // the same decision without a further message. The loser deletes its own new IKE SA.
            Some(rival) if loses(nonces, &rival.lowest) => {
                ctx.count(counters::IKE_COLLISION);
                // With `Ending::No`, its end would release the virtual addresses that the winner
                // uses.
                new.ending = Ending::Replaced;
                new.queue(ctx, Task::DeleteIke(None));
                // The last one that is born has the name.
                ctx.born.push(NewSa::Rekeyed(new));
                self.replace_by(ctx, rival.sa);
            }
            rival => {
                if let Some(mut rival) = rival {
                    ctx.count(counters::IKE_COLLISION);
                    rival.sa.ending = Ending::Replaced;
                    // The peer deletes it. This host waits, because the Delete may be lost.
                    rival.sa.over_at = Some(ctx.now + super::end::REPLACED);
                    ctx.born.push(NewSa::Rekeyed(rival.sa));
                }
                self.replace_by(ctx, new);
                // After `replace_by`, which moves the queue to the successor: the Delete is for
                // this IKE SA.
                self.queue(ctx, Task::DeleteIke(None));
            }
        }
        done(ctx, rekeying.command, Ok(()));
    }

    fn rekey_ike_refused(&mut self, ctx: &mut Context<'_>, rekeying: Box<Rekeying>, kind: NotifyType, data: &[u8]) {
        let lost = self.tasks.rival.is_some();
        match kind {
            NotifyType::INVALID_KE_PAYLOAD if rekeying.follow_up.is_none() => {
                let offered = |method: &KeMethod| self.connection.proposals.iter().any(|p| p.ke.contains(method));
                match wanted_ke(data).filter(|method| offered(method) && !rekeying.tried.contains(method)) {
                    Some(method) => self.request_rekey_ike(ctx, rekeying, method),
                    None => {
                        self.rekey_ike_failed(ctx, *rekeying, "the peer requires a key exchange that is not configured")
                    }
                }
            }
            // The peer is busy with a conflicting exchange (RFC 7296 §2.25) and expects a later
            // retry.
            NotifyType::TEMPORARY_FAILURE | NotifyType::STATE_NOT_FOUND if !lost => {
                self.put_off(ctx, Task::RekeyIke(rekeying.command), rekeying.attempt);
            }
            // A peer that makes only one pair of SAs (RFC 7296 §4) requires a reauthentication.
            NotifyType::NO_ADDITIONAL_SAS if !lost => self.reauthenticate(ctx, rekeying.command),
            _ => self.rekey_ike_failed(ctx, *rekeying, &format!("the peer answers {kind}")),
        }
    }

    fn rekey_ike_failed(&mut self, ctx: &mut Context<'_>, rekeying: Rekeying, reason: &str) {
        if self.adopt_rival(ctx) {
            return done(ctx, rekeying.command, Ok(()));
        }
        ctx.count(counters::IKE_REKEY_FAILED);
        self.log(ctx, Level::Error, format!("rekeying the IKE SA failed: {reason}"));
        self.rekey_at = Some(ctx.now + RETRY + jitter(ctx, RETRY));
        done(ctx, rekeying.command, Err(reason));
    }

    /// The peer's rekeying is the only one that succeeded.
    pub(super) fn adopt_rival(&mut self, ctx: &mut Context<'_>) -> bool {
        let Some(rival) = self.tasks.rival.take() else { return false };
        self.replace_by(ctx, rival.sa);
        true
    }

    /// Answers the rekeying of this IKE SA.
    pub(super) fn answer_rekey_ike(
        &mut self,
        ctx: &mut Context<'_>,
        parts: &Parts<'_>,
        chain: &mut Chain<'_>,
    ) -> Result<(), IkeError> {
        let put_off = |reason: &'static str| Err(IkeError::busy(reason));
        // A Child SA in transition would be on different IKE SAs at both ends (RFC 7296 §2.25.2).
        match &self.tasks.active {
            Some(Active::Create(_) | Active::DeleteChild(..) | Active::DeleteSpi) => {
                return put_off("this host creates, rekeys or deletes a Child SA");
            }
            _ if self.tasks.rival.is_some() || self.tasks.followups.iter().any(followup::Pending::is_ike) => {
                return put_off("this IKE SA is being rekeyed by the peer already");
            }
            _ if self.tasks.followups.len() >= followup::PENDING_MAX => {
                return put_off("too many exchanges wait for IKE_FOLLOWUP_KE");
            }
            _ => (),
        }
        let (Some(sa), Some(nonce_i)) = (&parts.sa, parts.nonce) else {
            return Err(IkeError::violation("the request lacks SA or nonce"));
        };
        let (suite, spi, number) = proposal::choose_ike(&self.ike_proposals(), sa)?;
        // The new SPI is in the proposal: IKE SPIs have 8 bytes there (RFC 7296 §3.3.1).
        let spi_i = <[u8; 8]>::try_from(spi.as_slice()).ok().map(IkeSpi).filter(|spi| !spi.is_zero());
        let Some(spi_i) = spi_i else {
            return Err(IkeError::violation("an IKE SPI of other than 8 bytes, or zero"));
        };
        let Some(ke) = parts.ke.as_ref().filter(|ke| ke.group == suite.ke.id()) else {
            return Err(IkeError::wrong_method(suite.ke));
        };
        let (public, secret) = suite.ke.respond(ke.data).map_err(IkeError::ke_payload)?;
        let (spi_r, nonce_r) = (fresh_spi(ctx), nonce(ctx));
        proposal::emit_ike_choice(chain, &suite, number, &spi_r.0);
        chain.nonce(&nonce_r).ke(suite.ke.id(), &public);
        let additional = suite.additional.clone();
        let answered = Answered { suite, spis: IkeSpis::new(spi_i, spi_r) };
        if additional.is_empty() {
            self.answered_rekey_ike(ctx, answered, (nonce_i, &nonce_r), &[secret]);
        } else {
            let cookie = followup::cookie(ctx);
            chain.notify(ProtocolId::NONE, &[], NotifyType::ADDITIONAL_KEY_EXCHANGE, &cookie);
            let (purpose, nonces) = (Purpose::Ike(Box::new(answered)), (nonce_i.to_vec(), nonce_r));
            let pending = followup::Pending::new(ctx, cookie, purpose, nonces, vec![secret], additional);
            self.tasks.followups.push(pending);
        }
        Ok(())
    }

    pub(super) fn answered_rekey_ike(
        &mut self,
        ctx: &mut Context<'_>,
        answered: Answered,
        nonces: (&[u8], &[u8]),
        secrets: &[Secret],
    ) {
        let Answered { suite, spis } = answered;
        let seed = Seed { nonce_i: nonces.0, nonce_r: nonces.1, spis };
        match self.successor(ctx, Role::Responder, suite, &seed, secrets) {
            // The winner is unknown until the response with the fourth nonce arrives.
            Ok(sa) if matches!(self.tasks.active, Some(Active::RekeyIke(_))) => {
                self.tasks.rival = Some(Rival { sa, lowest: nonces.0.min(nonces.1).to_vec() });
            }
            Ok(sa) => self.replace_by(ctx, sa),
            Err(reason) => self.log(ctx, Level::Error, format!("rekeying the IKE SA failed: {reason}")),
        }
    }

    /// An IKE SA like this one with new SPIs and keys, without Child SAs.
    fn successor(
        &self,
        ctx: &mut Context<'_>,
        role: Role,
        suite: IkeSuite,
        seed: &Seed<'_>,
        secrets: &[Secret],
    ) -> Result<Box<Established>, IkeError> {
        let spis = seed.spis;
        // The PRF of the old IKE SA computes SKEYSEED, the new one everything else (RFC 7296
        // §2.18).
        let skeyseed = keymat::skeyseed_rekey(self.suite.prf, &self.keys.sk_d, secrets, seed);
        let derived = IkeKeys::derive(&suite, &skeyseed, seed);
        let (of_initiator, of_responder) = derived.message_keys(&suite)?;
        derived.disclose(ctx, self.id, spis, &suite);
        let sk = match role {
            Role::Initiator => SkKeys { seal: of_initiator, open: of_responder },
            Role::Responder => SkKeys { seal: of_responder, open: of_initiator },
        };
        let keys = DeriveKeys { sk_d: derived.sk_d, sk_pi: derived.sk_pi, sk_pr: derived.sk_pr };
        // MOBIKE and reauthentication depend on the first IKE SA, not on the initiator of the
        // rekey.
        let mut tasks = Tasks::new(self.tasks.origin);
        tasks.addresses = self.tasks.addresses.clone();
        tasks.redirected = self.tasks.redirected;
        let mut new = Box::new(Established {
            id: self.id,
            connection: self.connection.clone(),
            role,
            spis,
            path: self.path,
            suite,
            keys,
            exchanges: Exchanges::new(SaIds { id: self.id, role, spis }, &self.connection, &self.peer, sk, 0),
            local_id: self.local_id.clone(),
            remote_id: self.remote_id.clone(),
            eap_name: self.eap_name.clone(),
            peer: self.peer,
            virtual_local: self.virtual_local.clone(),
            virtual_remote: self.virtual_remote.clone(),
            children: Vec::new(),
            tasks,
            established: self.established,
            rekey_at: None,
            // Inherited, because a rekey does not authenticate the peer (RFC 7296 §2.8.3).
            reauth_at: self.reauth_at,
            over_at: None,
            certificates_end: self.certificates_end,
            last_received: ctx.now,
            keepalive_at: self.keepalive_at,
            nat: self.nat,
            ppk: self.ppk,
            ending: Ending::No,
        });
        new.set_lifetimes(ctx);
        Ok(new)
    }

    /// `new` takes this IKE SA's place: name, Child SAs, what waits.
    fn replace_by(&mut self, ctx: &mut Context<'_>, mut new: Box<Established>) {
        // Child SAs, addresses and pending tasks are inherited by the new IKE SA; keys and message
        // IDs are not.
        // A rival was made when the peer's request was answered: addresses and configuration may
        // have changed while this host waited for the response to its own.
        (new.path, new.nat, new.last_received) = (self.path, self.nat, self.last_received);
        new.tasks.addresses = std::mem::take(&mut self.tasks.addresses);
        new.connection = self.connection.clone();
        (new.reauth_at, new.certificates_end) = (self.reauth_at, self.certificates_end);
        new.children = std::mem::take(&mut self.children);
        new.virtual_local = std::mem::take(&mut self.virtual_local);
        new.virtual_remote = std::mem::take(&mut self.virtual_remote);
        new.tasks.full = std::mem::take(&mut self.tasks.full);
        new.tasks.not_granted = std::mem::take(&mut self.tasks.not_granted);
        (new.tasks.heir, new.tasks.predecessor) = (self.tasks.heir.take(), self.tasks.predecessor.take());
        for pending in std::mem::take(&mut self.tasks.followups) {
            pending.abandon(ctx);
        }
        for waiting in std::mem::take(&mut self.tasks.queue) {
            match waiting.task {
                Task::RekeyIke(command) => done(ctx, command, Ok(())),
                _ => new.tasks.queue.push_back(waiting),
            }
        }
        // Requests under the old keys are repeated.
        match &self.tasks.active {
            Some(Active::Addresses { update }) => new.queue(ctx, Task::Addresses { update: *update }),
            Some(Active::Liveness(Some(_))) => new.queue(ctx, Task::Liveness { cookie: true }),
            _ => (),
        }
        (self.rekey_at, self.reauth_at, self.keepalive_at) = (None, None, None);
        self.ending = Ending::Replaced;
        // The replaced IKE SA still responds to retransmissions until the Delete.
        self.over_at = Some(ctx.now + super::end::REPLACED);
        ctx.count(counters::IKE_REKEYED);
        ctx.event(Event::IkeRekeyed(self.id));
        let (IkeSpis { initiator, responder }, role) = (new.spis, new.role);
        let text = format!("IKE SA rekeyed as {role:?}: SPIs {initiator} and {responder}, {}", new.suite);
        self.log(ctx, Level::Info, text);
        ctx.born.push(NewSa::Rekeyed(new));
    }

    /// Starts a new IKE SA with the same Child SAs; this one ends when the new ones are established
    /// (make before break).
    pub(super) fn reauthenticate(&mut self, ctx: &mut Context<'_>, command: Option<u64>) {
        if self.has_heir(ctx) {
            return done(ctx, command, Ok(()));
        }
        let gives_addresses = !self.virtual_remote.is_empty();
        let eap = self.connection.remote.iter().any(|auth| matches!(auth.method, AuthMethod::Eap(_)));
        // Only the client can request a virtual address or start EAP, so this host cannot
        // reauthenticate in its place.
        if self.tasks.origin == Role::Responder && (gives_addresses || eap) {
            let text = "only the peer can reauthenticate: it has a virtual address or uses EAP";
            self.log(ctx, Level::Info, text.to_owned());
            return done(ctx, command, Err(text));
        }
        ctx.count(counters::IKE_REAUTH);
        self.log(ctx, Level::Info, "starting a new IKE SA to reauthenticate".to_owned());
        let remote = self.peer_without_address();
        self.reinitiate(ctx, (remote, None), Some(self.id), command);
    }

    /// A new IKE SA with this one's live Child SAs; per-resource SAs come again on demand.
    pub(super) fn reinitiate(
        &self,
        ctx: &mut Context<'_>,
        (remote, host): (Option<std::net::SocketAddr>, Option<String>),
        replaces: Option<crate::output::IkeId>,
        command: Option<u64>,
    ) {
        let wanted = self.children.iter().filter(|child| child.is_live() && child.cpu.is_none());
        let children = wanted.map(|child| child.config.clone()).collect();
        self.initiate_children(ctx, children, (remote, host), replaces, command);
    }

    /// A new IKE SA with Child SAs of these sections.
    pub(super) fn initiate_children(
        &self,
        ctx: &mut Context<'_>,
        children: Vec<std::sync::Arc<crate::config::ChildConfig>>,
        (remote, host): (Option<std::net::SocketAddr>, Option<String>),
        replaces: Option<crate::output::IkeId>,
        command: Option<u64>,
    ) {
        // As it is loaded now; a connection that was unloaded continues unchanged.
        let loaded = ctx.connections.iter().find(|connection| connection.name == self.connection.name);
        let connection = loaded.unwrap_or(&self.connection).clone();
        let request = |config: std::sync::Arc<crate::config::ChildConfig>| {
            let current = connection.children.iter().find(|child| child.name == config.name);
            ChildRequest { config: current.cloned().unwrap_or(config), packet: None, cpu: None, command: None }
        };
        let children = children.into_iter().map(request).collect();
        let commands = command.into_iter().collect();
        let addresses = self.virtual_local.iter().map(|address| address.addr).collect();
        let initiation = Initiation {
            connection,
            children,
            remote,
            host,
            attempt: 1,
            replaces,
            addresses,
            commands,
            by_packet: false,
        };
        ctx.born.push(NewSa::Initiate(initiation));
    }
}
