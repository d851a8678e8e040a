//! New Child SAs and successors of old ones, by CREATE_CHILD_SA (RFC 7296 §1.3.1, §1.3.3).
//!
//! Both ends may rekey the same Child SA at once (§2.8.1). Each responds to the other, so there are
//! two successors; the exchange with the lowest of the four nonces loses and its creator deletes
//! its successor, while the creator of the other deletes the old Child SA. The answered rekey is
//! stored as `rival` of the pending one, and both hosts reach the same decision from the same
//! nonces. A host that has already finished refuses the late request (§2.25.1), and the other then
//! keeps the successor that it answered.
//!
//! A responder has a Child SA before its initiator, and may rekey or delete it while the response
//! is in flight. The initiator postpones such a rekey and stores such a deletion until it has the
//! response; "not found" would leave it with half a Child SA.

use crypto::ike::{KeInitiator, KeMethod, Secret};
use wire::ike::{Chain, ExchangeType, NotifyType, ProtocolId};

use super::followup::{self, FollowUp, Purpose};
use super::{ATTEMPTS_MAX, Active, RETRY, Task, counters, done, jitter, loses, nonce, rekey_notify};
use crate::child::{Agreement, CHILDREN_MAX, Child, ChildFault, ChildState, Nonces, Offer, Parts, answer, protocol_id};
use crate::config::PerCpuSas;
use crate::context::Context;
use crate::error::{Conflict, IkeError};
use crate::exchange::Inner;
use crate::output::{ChildId, Event, Level, Output, Subsystem};
use crate::sa::{ChildRequest, Ending, Established};

/// An outstanding CREATE_CHILD_SA request for a Child SA, with its IKE_FOLLOWUP_KE exchanges.
pub(super) struct Create {
    offer: Offer,
    nonce: Vec<u8>,
    ke: Option<KeInitiator>,
    /// Methods that the KE payload had already.
    tried: Vec<KeMethod>,
    /// The Child SA that is rekeyed.
    rekeys: Option<ChildId>,
    /// Lowest nonce of the peer's answered rekeying of the same Child SA.
    rival: Option<Vec<u8>>,
    /// SPIs of unknown Child SAs that the peer has deleted.
    deleted: Vec<[u8; 4]>,
    attempt: u32,
    follow_up: Option<(Box<Agreement>, FollowUp)>,
}

/// SPIs in [`Create::deleted`]; the response in flight can be about one.
const DELETED_MAX: usize = 16;

impl Create {
    /// The peer deletes an SA that is unknown here.
    pub(super) fn remember_deleted(&mut self, spi: [u8; 4]) {
        if self.deleted.len() < DELETED_MAX && !self.deleted.contains(&spi) {
            self.deleted.push(spi);
        }
    }

    pub(super) fn rekeys(&self) -> Option<ChildId> {
        self.rekeys
    }

    pub(super) fn command(&self) -> Option<u64> {
        self.offer.request.command
    }

    pub(super) fn abandon(self, ctx: &mut Context<'_>) {
        self.offer.abandon(ctx);
    }

    /// The request, for another IKE SA: its command waits for that one. `None` for a rekeying.
    pub(super) fn take_request(&mut self) -> Option<ChildRequest> {
        if self.rekeys.is_some() {
            return None;
        }
        let request = self.offer.request.clone();
        self.offer.request.command = None;
        Some(request)
    }

    fn task(&self) -> Task {
        match self.rekeys {
            Some(child) => Task::RekeyChild(child, self.command()),
            None => Task::CreateChild(self.offer.request.clone()),
        }
    }
}

impl Established {
    /// Queues the request for a Child SA by a command, a packet or another IKE SA.
    pub(crate) fn request_child(&mut self, ctx: &mut Context<'_>, request: ChildRequest) {
        let same = |waiting: &super::Waiting| {
            matches!(&waiting.task, Task::CreateChild(other)
                if other.config.name == request.config.name && other.cpu == request.cpu && other.packet == request.packet)
        };
        if (request.command.is_none() && self.tasks.queue.iter().any(same)) || self.waits_for_grant(ctx.now, &request) {
            return;
        }
        self.queue(ctx, Task::CreateChild(request));
    }

    pub(super) fn start_create(&mut self, ctx: &mut Context<'_>, request: ChildRequest, attempt: u32) {
        // Checked again, because a Child SA may have come up while the task waited.
        if self.has_child(&request) || self.waits_for_grant(ctx.now, &request) {
            return done(ctx, request.command, Ok(()));
        }
        if self.children.len() >= CHILDREN_MAX {
            return done(ctx, request.command, Err("the IKE SA has as many Child SAs as it may have"));
        }
        if request.cpu.is_some() && !self.may_have_resource(ctx, &request, attempt) {
            return;
        }
        let offer = Offer::for_create(ctx, &self.parent(), &request);
        self.send_create(ctx, offer, None, attempt);
    }

    /// A Child SA of this section already carries the requested traffic.
    fn has_child(&self, request: &ChildRequest) -> bool {
        self.children.iter().any(|child| {
            child.is_live()
                && child.config.name == request.config.name
                && child.cpu == request.cpu
                && request
                    .packet
                    .is_none_or(|(local, remote)| covers(&child.local_ts, &local) && covers(&child.remote_ts, &remote))
        })
    }

    /// RFC 9611: per-resource SAs require the fallback SA first, and a peer that supports them.
    fn may_have_resource(&mut self, ctx: &mut Context<'_>, request: &ChildRequest, attempt: u32) -> bool {
        let name = &request.config.name;
        let of_section = |child: &&Child| child.is_live() && child.config.name == *name && child.cpu.is_none();
        match self.children.iter().find(of_section) {
            _ if request.config.per_cpu_sas == PerCpuSas::No || self.tasks.full.contains(name) => (),
            Some(fallback) if fallback.per_cpu => return true,
            Some(_) => (),
            None if attempt + 1 < ATTEMPTS_MAX => {
                // Tasks of one rank start in the order of the queue: the fallback SA must be queued
                // first.
                let fallback = ChildRequest { cpu: None, command: None, ..request.clone() };
                self.request_child(ctx, fallback);
                let not_before = (attempt > 0).then(|| ctx.now + super::BACK_OFF * 2u32.pow(attempt));
                self.queue_after(ctx, Task::CreateChild(request.clone()), not_before, attempt + 1);
                return false;
            }
            None => (),
        }
        // The fallback SA carries the packets of this CPU: only the requester is notified.
        done(ctx, request.command, Err("there are no per-resource SAs with this peer"));
        false
    }

    pub(super) fn start_rekey_child(
        &mut self,
        ctx: &mut Context<'_>,
        child: ChildId,
        command: Option<u64>,
        attempt: u32,
    ) {
        let peer = self.peer;
        let Some(old) = self.child(child) else {
            return done(ctx, command, Err("the Child SA is gone"));
        };
        // Rekeying an SA twice would leave the peer with two successors.
        if old.state != ChildState::Installed {
            // Replaced or ending: the peer was faster.
            return done(ctx, command, Ok(()));
        }
        old.state = ChildState::Rekeying;
        let offer = Offer::for_rekey(ctx, peer, old, command);
        self.send_create(ctx, offer, Some(child), attempt);
    }

    pub(super) fn send_create(&mut self, ctx: &mut Context<'_>, offer: Offer, rekeys: Option<ChildId>, attempt: u32) {
        let method = self.preferred_ke(&offer, rekeys);
        let create = Create {
            offer,
            nonce: Vec::new(),
            ke: None,
            tried: Vec::new(),
            rekeys,
            rival: None,
            deleted: Vec::new(),
            attempt,
            follow_up: None,
        };
        self.request_create(ctx, Box::new(create), method);
    }

    /// The method that the peer chose last time, else the first of the section.
    fn preferred_ke(&mut self, offer: &Offer, rekeys: Option<ChildId>) -> Option<KeMethod> {
        let methods = offer.ke_methods();
        // Saves the round trip of an INVALID_KE_PAYLOAD response when the section offers several
        // methods.
        let last = rekeys.and_then(|id| self.child(id)).and_then(|old| old.suite.ke);
        last.filter(|method| methods.contains(method)).or(methods.first().copied())
    }

    fn request_create(&mut self, ctx: &mut Context<'_>, mut create: Box<Create>, method: Option<KeMethod>) {
        create.ke = match method.map(KeMethod::generate).transpose() {
            Ok(ke) => ke,
            Err(fault) => return self.create_failed(ctx, create, local_fault(format!("no key exchange: {fault}"))),
        };
        // Without this list, a peer that answers each method with INVALID_KE_PAYLOAD would cause an
        // endless exchange.
        create.tried.extend(method);
        create.nonce = nonce(ctx);
        let nonce_and_ke = |chain: &mut Chain<'_>| {
            chain.nonce(&create.nonce);
            if let Some(ke) = &create.ke {
                chain.ke(ke.method().id(), ke.public());
            }
        };
        let inner = match Inner::new(|chain| create.offer.emit_with(ctx, chain, nonce_and_ke)) {
            Ok(inner) => inner,
            Err(too_long) => return self.create_failed(ctx, create, local_fault(too_long.to_string())),
        };
        self.send_inner(ctx, Active::Create(create), ExchangeType::CREATE_CHILD_SA, inner);
    }

    /// The response to a CREATE_CHILD_SA or to one of its IKE_FOLLOWUP_KE.
    pub(super) fn created(&mut self, ctx: &mut Context<'_>, mut create: Box<Create>, parts: &Parts<'_>) {
        if create.follow_up.is_some() {
            return self.followed_up(ctx, create, parts);
        }
        let agreement = match create.offer.check(ctx, &self.parent(), parts) {
            Ok(agreement) => agreement,
            Err(fault) => return self.create_refused(ctx, create, fault),
        };
        let (secret, nonce_r) = match finish_ke(create.ke.take(), agreement.suite.ke, parts) {
            Ok(good) => good,
            Err(reason) => {
                let fault = create.offer.fault(ctx, None, reason);
                return self.create_failed(ctx, create, fault);
            }
        };
        let follow_up = FollowUp::new(secret.into_iter().collect(), nonce_r, agreement.suite.additional.clone());
        create.follow_up = Some((Box::new(agreement), follow_up));
        self.next_of_create(ctx, create, parts);
    }

    fn followed_up(&mut self, ctx: &mut Context<'_>, mut create: Box<Create>, parts: &Parts<'_>) {
        let Some((_, follow_up)) = &mut create.follow_up else { return };
        if let Some(error) = parts.error() {
            let reason = format!("the peer answers IKE_FOLLOWUP_KE with {}", error.kind);
            let fault = create.offer.fault(ctx, Some((error.kind, error.data.to_vec())), reason);
            return self.create_refused(ctx, create, fault);
        }
        if let Err(reason) = follow_up.take(parts) {
            let fault = create.offer.fault(ctx, None, reason);
            return self.create_failed(ctx, create, fault);
        }
        self.next_of_create(ctx, create, parts);
    }

    /// The next additional key exchange, or the keys.
    fn next_of_create(&mut self, ctx: &mut Context<'_>, mut create: Box<Create>, parts: &Parts<'_>) {
        let Some((agreement, mut follow_up)) = create.follow_up.take() else { return };
        match follow_up.next(parts) {
            Err(reason) => {
                let fault = create.offer.fault(ctx, None, reason);
                self.create_failed(ctx, create, fault);
            }
            Ok(Some(inner)) => {
                create.follow_up = Some((agreement, follow_up));
                self.send_inner(ctx, Active::Create(create), ExchangeType::IKE_FOLLOWUP_KE, inner);
            }
            Ok(None) => self.install_created(ctx, create, *agreement, &follow_up),
        }
    }

    fn install_created(&mut self, ctx: &mut Context<'_>, create: Box<Create>, agreement: Agreement, keys: &FollowUp) {
        let nonces = Nonces { i: &create.nonce, r: &keys.nonce_r };
        let won = create.rival.as_ref().is_none_or(|rival| !loses((nonces.i, nonces.r), rival));
        let (new, command, request) = (agreement.id, create.command(), create.offer.request.clone());
        // The Delete of the peer's faster exchange may arrive before the response that creates the
        // SA.
        let deleted = create.deleted.contains(&agreement.spi_out.get().to_be_bytes());
        let mut child = agreement.install(ctx, &self.parent(), nonces, &keys.secrets, won);
        child.replaces = None;
        if create.rival.is_some() {
            ctx.count(counters::CHILD_COLLISION);
            let verdict = if won { "stays" } else { "is deleted again" };
            let text = format!("child '{}': both ends rekeyed it at once; {{{}}} {verdict}", child.config.name, new.0);
            ctx.log(Level::Info, Subsystem::Child, Some(self.id), text);
        }
        if !won {
            child.state = ChildState::Rekeyed;
        }
        self.children.push(child);
        match (create.rekeys, won) {
            (Some(old), true) => self.replaced_by_own(ctx, old, new),
            // The peer deletes the old Child SA, and this host its own successor (RFC 7296 §2.8.1).
            (Some(old), false) => {
                if let Some(old) = self.child(old) {
                    old.state = ChildState::Rekeyed;
                }
                self.queue(ctx, Task::DeleteChild(new, None));
            }
            (None, _) => {
                self.granted(ctx, &request, new);
                self.followed(ctx, new);
            }
        }
        if deleted {
            self.child_deleted_by_peer(ctx, new);
        }
        done(ctx, command, Ok(()));
    }

    /// The successor that this host created is kept, so this host must delete the old SA.
    fn replaced_by_own(&mut self, ctx: &mut Context<'_>, old: ChildId, new: ChildId) {
        // A rival that lost waits for its deletion by the peer.
        for rival in self.children.iter_mut().filter(|child| child.replaces == Some(old)) {
            (rival.replaces, rival.state) = (None, ChildState::Rekeyed);
        }
        let Some(child) = self.child(old) else {
            return ctx.event(Event::ChildUp(new));
        };
        child.state = ChildState::Rekeyed;
        ctx.event(Event::ChildRekeyed(old, new));
        if self.is_unwanted(old) {
            self.queue(ctx, Task::DeleteChild(new, None));
        }
        self.queue(ctx, Task::DeleteChild(old, None));
    }

    /// Returns whether the deletion of a Child SA is queued.
    pub(crate) fn is_unwanted(&self, id: ChildId) -> bool {
        self.tasks.queue.iter().any(|waiting| matches!(waiting.task, Task::DeleteChild(child, _) if child == id))
    }

    /// The peer refused a Child SA.
    fn create_refused(&mut self, ctx: &mut Context<'_>, mut create: Box<Create>, fault: ChildFault) {
        match fault.notify.as_ref().map(|(kind, data)| (*kind, data.as_slice())) {
            Some((NotifyType::INVALID_KE_PAYLOAD, data)) if create.follow_up.is_none() => {
                match wanted_ke(data)
                    .filter(|method| create.offer.ke_methods().contains(method) && !create.tried.contains(method))
                {
                    Some(method) => self.request_create(ctx, create, Some(method)),
                    None => self.create_failed(ctx, create, fault),
                }
            }
            Some((NotifyType::SINGLE_PAIR_REQUIRED, _)) if create.offer.single_pair() => {
                let method = create.tried.last().copied();
                self.request_create(ctx, create, method);
            }
            // With a rival, the peer's successor exists already: another rekey would create a
            // second one.
            Some((NotifyType::TEMPORARY_FAILURE | NotifyType::STATE_NOT_FOUND, _)) if create.rival.is_none() => {
                self.create_put_off(ctx, create);
            }
            Some((NotifyType::CHILD_SA_NOT_FOUND, _)) if create.rekeys.is_some() && create.rival.is_none() => {
                self.child_not_found(ctx, create);
            }
            Some((NotifyType::TS_MAX_QUEUE, _)) => {
                let name = create.offer.request.config.name.clone();
                if !self.tasks.full.contains(&name) {
                    self.tasks.full.push(name);
                }
                self.create_failed(ctx, create, fault);
            }
            _ => self.create_failed(ctx, create, fault),
        }
    }

    fn create_put_off(&mut self, ctx: &mut Context<'_>, create: Box<Create>) {
        let (task, attempt, old) = (create.task(), create.attempt, create.rekeys);
        if let Some(old) = old {
            match self.child(old) {
                Some(old) => old.state = ChildState::Installed,
                None => {
                    // The peer has deleted it, which is why it postponed the rekey.
                    done(ctx, create.command(), Ok(()));
                    return create.abandon(ctx);
                }
            }
        }
        create.abandon(ctx);
        if !self.put_off(ctx, task, attempt) {
            let retry = ctx.now + RETRY + jitter(ctx, RETRY);
            if let Some(old) = old.and_then(|old| self.child(old)) {
                old.rekey_at = Some(retry);
            }
            ctx.count(counters::CHILD_FAILED);
            let text = "the peer puts off CREATE_CHILD_SA again and again".to_owned();
            ctx.log(Level::Warn, Subsystem::Child, Some(self.id), text);
        }
    }

    /// The peer does not have the SA that should be rekeyed: a new one instead, from scratch
    /// (§2.25).
    fn child_not_found(&mut self, ctx: &mut Context<'_>, create: Box<Create>) {
        let (request, old) = (create.offer.request.clone(), create.rekeys);
        create.abandon(ctx);
        let Some(old) = old.filter(|old| self.children.iter().any(|child| child.id == *old)) else {
            return done(ctx, request.command, Ok(()));
        };
        // Before the removal, otherwise packets in between could leave in clear text.
        self.leave_trap(ctx, &request.config);
        self.drop_child(ctx, old, "the peer does not know it");
        self.request_child(ctx, request);
    }

    fn create_failed(&mut self, ctx: &mut Context<'_>, create: Box<Create>, fault: ChildFault) {
        let command = create.command();
        let (rekeys, lost) = (create.rekeys, create.rival.is_some());
        let (request, config) = (create.offer.request.clone(), create.offer.request.config.clone());
        create.abandon(ctx);
        if rekeys.is_none() {
            self.refused_to_packet(ctx.now, &request);
        }
        if let Some((protocol, spi)) = fault.delete {
            self.queue(ctx, Task::DeleteSpi(protocol, spi));
        }
        if let Some(old) = rekeys {
            let retry = ctx.now + RETRY + jitter(ctx, RETRY);
            if let Some(old) = self.child(old) {
                old.state = if lost { ChildState::Rekeyed } else { ChildState::Installed };
                old.rekey_at = Some(retry);
            }
            if lost {
                // The Child SA of the peer replaces it.
                return done(ctx, command, Ok(()));
            }
        }
        ctx.count(counters::CHILD_FAILED);
        let text = format!("child '{}' failed: {}", config.name, fault.reason);
        ctx.log(Level::Error, Subsystem::Child, Some(self.id), text.clone());
        done(ctx, command, Err(&text));
    }

    /// Answers CREATE_CHILD_SA: a new Child SA, the rekeying of one, or of the IKE SA.
    pub(super) fn answer_create(
        &mut self,
        ctx: &mut Context<'_>,
        parts: &Parts<'_>,
        chain: &mut Chain<'_>,
    ) -> Result<(), IkeError> {
        if self.ending != Ending::No {
            return Err(IkeError::busy("this IKE SA is ending"));
        }
        let Some(sa) = &parts.sa else {
            return Err(IkeError::violation("CREATE_CHILD_SA without SA"));
        };
        let first = sa.proposals().next().transpose()?;
        if first.is_some_and(|proposal| proposal.protocol == ProtocolId::IKE) {
            return self.answer_rekey_ike(ctx, parts, chain);
        }
        // Child SAs must not change until they have moved to the successor (RFC 7296 §2.25.2).
        if matches!(self.tasks.active, Some(Active::RekeyIke(_))) || self.tasks.rival.is_some() {
            return Err(IkeError::busy("this host rekeys the IKE SA"));
        }
        let old = match rekey_notify(parts) {
            Some((protocol, spi)) => match self.rekeyable(ctx, protocol, spi) {
                Ok(old) => Some(old),
                Err(refused @ IkeError::Temporary(Conflict::NoChildSa, _)) if spi.len() == 4 => {
                    // Named by the SPI of the request (RFC 7296 §3.10.1).
                    self.refuse(ctx, ExchangeType::CREATE_CHILD_SA, &refused);
                    chain.notify(protocol, spi, refused.notify(), &[]);
                    return Ok(());
                }
                Err(refused) => return Err(refused),
            },
            None => None,
        };
        self.answer_child(ctx, parts, old, chain)
    }

    /// Returns the Child SA that the peer rekeys, unless it should retry later (§2.25.1).
    fn rekeyable(&self, ctx: &Context<'_>, protocol: ProtocolId, spi: &[u8]) -> Result<ChildId, IkeError> {
        let is_meant = |child: &&Child| {
            // REKEY_SA names the SPI on which its sender receives (RFC 7296 §1.3.3).
            spi == child.spi_out.get().to_be_bytes() && protocol == protocol_id(ctx, child.suite.protocol)
        };
        let Some(child) = self.children.iter().find(is_meant) else {
            if matches!(self.tasks.active, Some(Active::Create(_))) {
                let reason = format!("the SPI {spi:02x?} may be that of the Child SA that is being created");
                return Err(IkeError::busy(reason));
            }
            let reason = format!("no Child SA has the SPI {spi:02x?}");
            return Err(IkeError::Temporary(Conflict::NoChildSa, reason.into()));
        };
        let twice = matches!(&self.tasks.active, Some(Active::Create(create))
            if create.rekeys == Some(child.id) && create.rival.is_some())
            || self.tasks.followups.iter().any(|pending| pending.rekeys() == Some(child.id))
            || self.is_unwanted(child.id);
        match child.state {
            ChildState::Installed | ChildState::Rekeying if !twice => Ok(child.id),
            state => {
                let reason = format!("child '{}' {{{}}} is {state:?} already", child.config.name, child.id.0);
                Err(IkeError::busy(reason))
            }
        }
    }

    fn answer_child(
        &mut self,
        ctx: &mut Context<'_>,
        parts: &Parts<'_>,
        old: Option<ChildId>,
        chain: &mut Chain<'_>,
    ) -> Result<(), IkeError> {
        let Some(nonce_i) = parts.nonce else {
            return Err(IkeError::violation("CREATE_CHILD_SA without nonce"));
        };
        if self.tasks.followups.len() >= followup::PENDING_MAX {
            return Err(IkeError::busy("too many exchanges wait for IKE_FOLLOWUP_KE"));
        }
        let old_child = old.and_then(|old| self.children.iter().find(|child| child.id == old));
        let answer = answer(ctx, &self.parent(), parts, old_child, true)?;
        let (public, secrets) = match respond(answer.agreement.suite.ke, parts) {
            Ok(good) => good,
            Err(refused) => {
                answer.agreement.abandon(ctx);
                return Err(refused);
            }
        };
        let nonce_r = nonce(ctx);
        let additional = answer.agreement.suite.additional.clone();
        let cookie = (!additional.is_empty()).then(|| followup::cookie(ctx));
        answer.emit(ctx, chain, |chain| {
            chain.nonce(&nonce_r);
            if let Some((method, public)) = &public {
                chain.ke(method.id(), public);
            }
            if let Some(cookie) = &cookie {
                chain.notify(ProtocolId::NONE, &[], NotifyType::ADDITIONAL_KEY_EXCHANGE, cookie);
            }
        });
        let (agreement, nonce_i) = (answer.agreement, nonce_i.to_vec());
        match cookie {
            Some(cookie) => {
                let purpose = Purpose::Child { agreement: Box::new(agreement), rekeys: old };
                let pending = followup::Pending::new(ctx, cookie, purpose, (nonce_i, nonce_r), secrets, additional);
                self.tasks.followups.push(pending);
            }
            None => self.install_answered(ctx, agreement, old, (&nonce_i, &nonce_r), &secrets),
        }
        Ok(())
    }

    /// The keys of a Child SA requested by the peer.
    pub(super) fn install_answered(
        &mut self,
        ctx: &mut Context<'_>,
        agreement: Agreement,
        old: Option<ChildId>,
        (i, r): (&[u8], &[u8]),
        secrets: &[Secret],
    ) {
        // On a rekeying the peer is ready to receive only when it deletes the old one or sends on
        // the new.
        let child = agreement.install(ctx, &self.parent(), Nonces { i, r }, secrets, old.is_none());
        self.children.push(child);
        let Some(old) = old else { return };
        if let Some(Active::Create(create)) = &mut self.tasks.active
            && create.rekeys == Some(old)
        {
            create.rival = Some(i.min(r).to_vec());
        } else if let Some(old) = self.child(old) {
            old.state = ChildState::Rekeyed;
        }
    }

    /// The peer proved that it receives on a successor: packets go out through it from now on.
    pub(super) fn use_outbound(&mut self, ctx: &mut Context<'_>, new: ChildId) {
        let Some(child) = self.child(new).filter(|child| !child.removed) else { return };
        let old = child.replaces.take();
        if !std::mem::replace(&mut child.outbound, true) {
            ctx.out.push_back(Output::UseOutbound(new));
        }
        if let Some(old) = old {
            ctx.event(Event::ChildRekeyed(old, new));
        }
    }
}

/// Every packet of `packet` is one of `selectors`.
pub(super) fn covers(selectors: &[wire::TrafficSelector], packet: &wire::TrafficSelector) -> bool {
    crate::narrow::narrow(selectors, std::slice::from_ref(packet)).contains(packet)
}

fn local_fault(reason: String) -> ChildFault {
    ChildFault { notify: None, reason, delete: None }
}

/// The method that INVALID_KE_PAYLOAD names.
pub(super) fn wanted_ke(data: &[u8]) -> Option<KeMethod> {
    data.try_into().ok().map(u16::from_be_bytes).and_then(KeMethod::from_id)
}

/// The shared secret, when there is a key exchange, and the peer's nonce.
pub(super) fn finish_ke(
    ke: Option<KeInitiator>,
    chosen: Option<KeMethod>,
    parts: &Parts<'_>,
) -> Result<(Option<Secret>, Vec<u8>), IkeError> {
    let nonce = parts.nonce.ok_or(IkeError::Violation("the answer lacks a nonce".into()))?.to_vec();
    let Some(chosen) = chosen else { return Ok((None, nonce)) };
    let (Some(ours), Some(theirs)) = (ke, &parts.ke) else {
        return Err(IkeError::violation("the answer lacks a KE payload"));
    };
    if ours.method() != chosen || theirs.group != chosen.id() {
        return Err(IkeError::violation(format!("the KE payload of the answer is not of {}", chosen.name())));
    }
    let secret = ours.finish(theirs.data).map_err(IkeError::ke_payload)?;
    Ok((Some(secret), nonce))
}

/// The responder's public value of the first key exchange, and its secret.
type Responded = (Option<(KeMethod, Vec<u8>)>, Vec<Secret>);

pub(super) fn respond(chosen: Option<KeMethod>, parts: &Parts<'_>) -> Result<Responded, IkeError> {
    let (Some(method), Some(ke)) = (chosen, &parts.ke) else { return Ok((None, Vec::new())) };
    let (public, secret) = method.respond(ke.data).map_err(IkeError::ke_payload)?;
    Ok((Some((method, public)), vec![secret]))
}
