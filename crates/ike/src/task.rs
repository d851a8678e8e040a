//! Tasks of an authenticated IKE SA: the exchanges it starts and the requests it answers.
//!
//! A [`Task`] waits in the queue until no request is outstanding; then it becomes [`Active`] and
//! sends its request. The response, or the end of retransmissions, ends it or starts it again.
//! Requests of the peer are answered at any time; collisions with a task of this host follow RFC
//! 7296 §2.8 and §2.25, as described in the file of the task: `create` for Child SAs, `rekey` for
//! IKE SAs, `delete` for both.

mod address;
pub(crate) mod counters;
mod create;
mod delete;
mod end;
mod follow;
mod followup;
mod granted;
mod informational;
mod lifetime;
mod rekey;
pub(crate) mod reload;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wire::Spi;
use wire::ike::{Chain, ExchangeType, NotifyType, ProtocolId};

use crate::child::{Child, ChildFault, Parent, Parts};
use crate::config::ChildConfig;
use crate::context::Context;
use crate::error::IkeError;
use crate::exchange::{Inner, Plain};
use crate::output::{ChildId, CommandError, Event, IkeId, Level, Path, Subsystem};
use crate::sa::{ChildRequest, Ending, Established, Role};

/// Tasks that wait on one IKE SA; about 100 bytes each.
pub(crate) const TASKS_MAX: usize = 128;

/// First wait after TEMPORARY_FAILURE; it doubles.
const BACK_OFF: Duration = Duration::from_secs(1);
/// Attempts of a task that the peer postpones: with doubling waits about two minutes (RFC 7296
/// §2.25: "over a period of several minutes").
const ATTEMPTS_MAX: u32 = 7;
/// Delay before a failed rekey is retried.
const RETRY: Duration = Duration::from_secs(30);

/// Active and queued tasks.
pub(crate) struct Tasks {
    /// The initiator of the first IKE SA of this series: it decides about addresses (RFC 4555) and
    /// reauthentication.
    pub(crate) origin: Role,
    queue: VecDeque<Waiting>,
    active: Option<Active>,
    /// Exchanges of the peer that wait for additional key exchanges.
    followups: Vec<followup::Pending>,
    /// The peer's rekeying of this IKE SA that was answered while that of this host is outstanding.
    rival: Option<rekey::Rival>,
    /// Addresses of both ends (RFC 4555).
    addresses: address::Addresses,
    /// Sections with no further per-resource SAs by the peer (TS_MAX_QUEUE).
    full: Vec<String>,
    /// Sections for which the peer refused a Child SA.
    not_granted: Vec<granted::NotGranted>,
    /// A redirection was followed: the next is not.
    redirected: bool,
    /// The IKE SA that takes this one's Child SAs over.
    heir: Option<IkeId>,
    /// The IKE SA that ends when its Child SAs are on this one.
    predecessor: Option<Predecessor>,
}

/// An IKE SA of which another one takes the Child SAs over (make before break).
pub(crate) struct Predecessor {
    pub(crate) ike: IkeId,
    /// Sections that were requested on the other one because this one got a Child SA meanwhile. A
    /// peer that refuses one is not requested again.
    pub(crate) requested: Vec<String>,
}

impl Predecessor {
    /// Nothing but what the handshake requests is known to be missing.
    pub(crate) fn new(ike: IkeId) -> Self {
        Self { ike, requested: Vec::new() }
    }
}

/// A task with the time before which it does not start.
struct Waiting {
    task: Task,
    not_before: Option<Instant>,
    attempt: u32,
}

/// A requested task.
pub(crate) enum Task {
    /// A new Child SA.
    CreateChild(ChildRequest),
    /// A Child SA with the addresses of now, in the place of this one.
    FollowAddresses(ChildId),
    /// A successor of a Child SA.
    RekeyChild(ChildId, Option<u64>),
    /// The end of a Child SA, and why.
    DeleteChild(ChildId, Option<u64>),
    /// Deletion of a Child SA that the peer may have installed and this host has not.
    DeleteSpi(ProtocolId, Spi),
    /// A successor of the IKE SA.
    RekeyIke(Option<u64>),
    /// The end of the IKE SA.
    DeleteIke(Option<u64>),
    /// Liveness check; with COOKIE2, a return routability check of the peer's address (RFC 4555).
    Liveness { cookie: bool },
    /// UPDATE_SA_ADDRESSES, or without it the list of further addresses.
    Addresses { update: bool },
}

/// The task with a pending request.
enum Active {
    Create(Box<create::Create>),
    RekeyIke(Box<rekey::Rekeying>),
    DeleteChild(ChildId, Option<u64>),
    DeleteSpi,
    DeleteIke(Option<u64>),
    Liveness(Option<[u8; address::COOKIE2_LEN]>),
    Addresses { update: bool },
}

impl Tasks {
    /// The peer is in the middle of rekeying the IKE SA: Child SAs are about to change to the next
    /// one.
    fn is_leaving(&self) -> bool {
        self.followups.iter().any(followup::Pending::is_ike)
    }

    /// No tasks.
    pub(crate) fn new(origin: Role) -> Self {
        Self {
            origin,
            queue: VecDeque::new(),
            active: None,
            followups: Vec::new(),
            rival: None,
            addresses: address::Addresses::default(),
            full: Vec::new(),
            not_granted: Vec::new(),
            redirected: false,
            heir: None,
            predecessor: None,
        }
    }

    /// Names for listings: the queued tasks and the active one.
    pub(crate) fn names(&self) -> (Vec<&'static str>, Option<&'static str>) {
        (self.queue.iter().map(|waiting| waiting.task.name()).collect(), self.active.as_ref().map(Active::name))
    }

    /// Returns true if no task is queued or active.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.active.is_none()
    }
}

impl Task {
    fn name(&self) -> &'static str {
        match self {
            Self::CreateChild(_) | Self::FollowAddresses(_) => "CHILD_CREATE",
            Self::RekeyChild(..) => "CHILD_REKEY",
            Self::DeleteChild(..) | Self::DeleteSpi(..) => "CHILD_DELETE",
            Self::RekeyIke(_) => "IKE_REKEY",
            Self::DeleteIke(_) => "IKE_DELETE",
            Self::Liveness { .. } => "IKE_DPD",
            Self::Addresses { .. } => "IKE_MOBIKE",
        }
    }

    /// Priority: deletions before creations, addresses before dependent tasks.
    fn rank(&self) -> u8 {
        match self {
            Self::DeleteIke(_) => 0,
            Self::Addresses { .. } => 1,
            Self::DeleteChild(..) | Self::DeleteSpi(..) => 2,
            Self::RekeyIke(_) => 3,
            Self::RekeyChild(..) | Self::CreateChild(_) | Self::FollowAddresses(_) => 4,
            Self::Liveness { .. } => 5,
        }
    }

    fn is_about_child(&self) -> bool {
        matches!(
            self,
            Self::DeleteChild(..)
                | Self::DeleteSpi(..)
                | Self::RekeyChild(..)
                | Self::CreateChild(_)
                | Self::FollowAddresses(_)
        )
    }

    /// The command that waits for the task.
    fn command(&self) -> Option<u64> {
        match self {
            Self::CreateChild(request) => request.command,
            Self::RekeyChild(_, command)
            | Self::DeleteChild(_, command)
            | Self::RekeyIke(command)
            | Self::DeleteIke(command) => *command,
            Self::DeleteSpi(..) | Self::FollowAddresses(_) | Self::Liveness { .. } | Self::Addresses { .. } => None,
        }
    }

    /// Returns whether both request the same, so that one is sufficient.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::RekeyChild(a, _), Self::RekeyChild(b, _)) | (Self::DeleteChild(a, _), Self::DeleteChild(b, _)) => {
                a == b
            }
            (Self::FollowAddresses(a), Self::FollowAddresses(b)) => a == b,
            (Self::RekeyIke(_), Self::RekeyIke(_)) | (Self::DeleteIke(_), Self::DeleteIke(_)) => true,
            (Self::Liveness { cookie: a }, Self::Liveness { cookie: b })
            | (Self::Addresses { update: a }, Self::Addresses { update: b }) => a == b,
            _ => false,
        }
    }
}

impl Active {
    fn name(&self) -> &'static str {
        match self {
            Self::Create(create) if create.rekeys().is_some() => "CHILD_REKEY",
            Self::Create(_) => "CHILD_CREATE",
            Self::RekeyIke(_) => "IKE_REKEY",
            Self::DeleteChild(..) | Self::DeleteSpi => "CHILD_DELETE",
            Self::DeleteIke(_) => "IKE_DELETE",
            Self::Liveness(_) => "IKE_DPD",
            Self::Addresses { .. } => "IKE_MOBIKE",
        }
    }
}

/// Interface for the owner of an `Established`. `handle_*` take what [`crate::exchange::Exchanges`]
/// has authenticated and put in order; `start_next` is harmless at any time.
impl Established {
    /// Answers a new request. `from` has the addresses of its datagram.
    pub(crate) fn handle_request(&mut self, ctx: &mut Context<'_>, from: &Path, request: &Plain) -> Inner {
        self.last_received = ctx.now;
        self.follow_nat(ctx, from);
        let mut fatal = false;
        let inner = Inner::new(|chain| {
            if let Err(refused) = self.answer(ctx, from, request, chain) {
                self.refuse(ctx, request.exchange, &refused);
                refused.emit(chain);
                fatal = matches!(refused, IkeError::Violation(_));
            }
        });
        if fatal {
            // RFC 7296 §2.21.3: the IKE SA is over for both without a further message.
            ctx.count(counters::INVALID_SYNTAX);
            self.end(ctx, "the peer's request breaks a rule", end::Cause::Peer);
        }
        inner.unwrap_or_else(|_| {
            // Every response is bounded: a choice, at most 510 selectors, a key exchange, SPIs, a
            // cookie. Should one be too long nevertheless, the peer would not learn the result of
            // its request.
            ctx.internal_error(self.id, "a response on an established IKE SA is too long");
            self.end(ctx, "a response is too long", end::Cause::Peer);
            Inner::notify(NotifyType::TEMPORARY_FAILURE, &[])
        })
    }

    fn answer(
        &mut self,
        ctx: &mut Context<'_>,
        from: &Path,
        request: &Plain,
        chain: &mut Chain<'_>,
    ) -> Result<(), IkeError> {
        let parts = Parts::read(request.payloads())?;
        match request.exchange {
            ExchangeType::CREATE_CHILD_SA => self.answer_create(ctx, &parts, chain),
            ExchangeType::IKE_FOLLOWUP_KE => self.answer_followup(ctx, &parts, chain),
            ExchangeType::INFORMATIONAL => {
                self.answer_informational(ctx, from, &parts, chain);
                Ok(())
            }
            exchange => Err(IkeError::violation(format!("{exchange} on an established IKE SA"))),
        }
    }

    fn refuse(&self, ctx: &mut Context<'_>, exchange: ExchangeType, refused: &IkeError) {
        ctx.note_internal(self.id, refused);
        let (level, counter) = match refused.notify() {
            NotifyType::TEMPORARY_FAILURE => (Level::Debug, counters::TEMPORARY_FAILURE_SENT),
            NotifyType::INVALID_KE_PAYLOAD => (Level::Debug, counters::CHILD_REFUSED),
            _ => (Level::Warn, counters::CHILD_REFUSED),
        };
        ctx.count(counter);
        let text = format!("{exchange} of {} refused with {}: {refused}", self.path.remote, refused.notify());
        ctx.log(level, Subsystem::Child, Some(self.id), text);
    }

    /// Handles the response to the outstanding request.
    pub(crate) fn handle_response(&mut self, ctx: &mut Context<'_>, from: &Path, response: &Plain) {
        self.last_received = ctx.now;
        self.follow_nat(ctx, from);
        self.path_works(ctx);
        let Some(active) = self.tasks.active.take() else { return };
        if self.ending != Ending::No && !matches!(active, Active::DeleteIke(_)) {
            // The Delete informs the peer that the exchange is abandoned.
            return self.fail_active(ctx, active, "the IKE SA is ending");
        }
        let parts = match Parts::read(response.payloads()) {
            Ok(parts) => parts,
            Err(refused) => {
                ctx.count(counters::INVALID_SYNTAX);
                let reason = format!("the peer's response breaks a rule: {refused}");
                self.fail_active(ctx, active, &reason);
                return self.give_up(ctx, &reason);
            }
        };
        match active {
            Active::Create(create) => self.created(ctx, create, &parts),
            Active::RekeyIke(rekeying) => self.rekeyed(ctx, rekeying, &parts),
            Active::DeleteChild(child, command) => self.child_deleted(ctx, child, command),
            Active::DeleteIke(command) => self.ike_deleted(ctx, command),
            Active::Liveness(cookie) => self.alive(ctx, cookie, &parts),
            Active::Addresses { update } => self.addresses_answered(ctx, update, &parts),
            Active::DeleteSpi => (),
        }
    }

    /// Another IKE SA takes over the Child SAs of this one and then ends it.
    pub(crate) fn inherited_by(&mut self, heir: IkeId) {
        self.tasks.heir = Some(heir);
    }

    /// This IKE SA takes the Child SAs of another over.
    pub(crate) fn takes_over(&mut self, predecessor: Predecessor) {
        self.tasks.predecessor = Some(predecessor);
    }

    /// A section as it is loaded now; one that was unloaded continues unchanged.
    pub(crate) fn as_loaded(&self, config: &Arc<ChildConfig>) -> Arc<ChildConfig> {
        Arc::clone(self.connection.children.iter().find(|loaded| loaded.name == config.name).unwrap_or(config))
    }

    /// Takes out requests for Child SAs that are not up, for another IKE SA: those that wait, and
    /// that of the exchange, which fails with this IKE SA.
    pub(crate) fn take_requests(&mut self) -> Vec<ChildRequest> {
        let active = match &mut self.tasks.active {
            Some(Active::Create(create)) => create.take_request(),
            _ => None,
        };
        let mut requests: Vec<ChildRequest> = active.into_iter().collect();
        for waiting in std::mem::take(&mut self.tasks.queue) {
            match waiting.task {
                Task::CreateChild(request) => requests.push(request),
                _ => self.tasks.queue.push_back(waiting),
            }
        }
        requests
    }

    fn has_heir(&self, ctx: &Context<'_>) -> bool {
        let (local, remote) = self.identities();
        self.tasks.heir.is_some_and(|heir| ctx.names.with_peer(&local, &remote).any(|id| id == heir))
    }

    /// The IKE SA from which this one took over Child SAs, once they exist or have failed; reported
    /// once.
    pub(crate) fn took_over(&mut self) -> Option<Predecessor> {
        let creates = |waiting: &Waiting| matches!(&waiting.task, Task::CreateChild(request) if request.cpu.is_none());
        let active = matches!(&self.tasks.active, Some(Active::Create(create)) if create.rekeys().is_none());
        let done = self.ending == Ending::No && !active && !self.tasks.queue.iter().any(creates);
        self.tasks.predecessor.take_if(|_| done)
    }

    /// Starts the next task if no request is outstanding. Must be called after every step.
    pub(crate) fn start_next(&mut self, ctx: &mut Context<'_>) {
        while self.ending != Ending::Ended && self.tasks.active.is_none() && self.exchanges.idle() {
            // Child SAs that are about to move to a rekeyed IKE SA must not change before the move.
            let leaving = self.tasks.is_leaving();
            let may = |waiting: &Waiting| {
                waiting.not_before.is_none_or(|at| at <= ctx.now) && !(leaving && waiting.task.is_about_child())
            };
            let next = self.tasks.queue.iter().enumerate().filter(|(_, w)| may(w)).min_by_key(|(_, w)| w.task.rank());
            let Some((at, _)) = next else { return };
            let Some(waiting) = self.tasks.queue.remove(at) else { return };
            self.start(ctx, waiting);
        }
    }

    fn start(&mut self, ctx: &mut Context<'_>, Waiting { task, attempt, .. }: Waiting) {
        // An ending IKE SA may send its Delete only (RFC 7296 §1.4.1); new exchanges would be lost
        // with it.
        if self.ending != Ending::No && !matches!(task, Task::DeleteIke(_)) {
            return done(ctx, task.command(), Err("the IKE SA is ending"));
        }
        match task {
            Task::CreateChild(request) => self.start_create(ctx, request, attempt),
            Task::FollowAddresses(child) => self.start_follow(ctx, child, attempt),
            Task::RekeyChild(child, command) => self.start_rekey_child(ctx, child, command, attempt),
            Task::DeleteChild(child, command) => self.start_delete_child(ctx, child, command),
            Task::DeleteSpi(protocol, spi) => self.start_delete_spi(ctx, protocol, spi),
            Task::RekeyIke(command) => self.start_rekey_ike(ctx, command, attempt),
            Task::DeleteIke(command) => self.start_delete_ike(ctx, command),
            Task::Liveness { cookie } => self.start_liveness(ctx, cookie),
            Task::Addresses { update } => self.start_addresses(ctx, update),
        }
    }

    /// Sends a request; its response is handled as that of `active`.
    fn send(
        &mut self,
        ctx: &mut Context<'_>,
        active: Active,
        exchange: ExchangeType,
        write: impl FnOnce(&mut Chain<'_>),
    ) {
        match Inner::new(write) {
            Ok(inner) => self.send_inner(ctx, active, exchange, inner),
            Err(too_long) => {
                self.log(ctx, Level::Error, format!("{} is not sent: {too_long}", active.name()));
                self.fail_active(ctx, active, &too_long.to_string());
            }
        }
    }

    fn send_inner(&mut self, ctx: &mut Context<'_>, active: Active, exchange: ExchangeType, inner: Inner) {
        self.tasks.active = Some(active);
        self.exchanges.request(ctx, &self.path, exchange, inner);
        self.put_off_keepalive(ctx);
    }

    /// Puts a task into the queue unless an equal one is queued.
    fn queue(&mut self, ctx: &mut Context<'_>, task: Task) {
        self.queue_after(ctx, task, None, 0);
    }

    fn queue_after(&mut self, ctx: &mut Context<'_>, task: Task, not_before: Option<Instant>, attempt: u32) {
        let command = task.command();
        // A task with a command is queued in any case, because the control connection waits for its
        // result.
        if command.is_none() && self.tasks.queue.iter().any(|waiting| waiting.task.is_same(&task)) {
            return;
        }
        if self.tasks.queue.len() >= TASKS_MAX {
            ctx.count(counters::QUEUE_FULL);
            return done(ctx, command, Err("too many tasks wait on the IKE SA"));
        }
        self.tasks.queue.push_back(Waiting { task, not_before, attempt });
    }

    /// After TEMPORARY_FAILURE: queues the task again, at most `ATTEMPTS_MAX` times. Returns
    /// whether it is queued.
    fn put_off(&mut self, ctx: &mut Context<'_>, task: Task, attempt: u32) -> bool {
        ctx.count(counters::TEMPORARY_FAILURE_RECEIVED);
        if attempt + 1 >= ATTEMPTS_MAX {
            done(ctx, task.command(), Err("the peer puts it off again and again (TEMPORARY_FAILURE)"));
            return false;
        }
        let wait = BACK_OFF * 2u32.pow(attempt);
        let wait = wait + jitter(ctx, wait);
        self.queue_after(ctx, task, Some(ctx.now + wait), attempt + 1);
        true
    }

    /// The request that is out has no response that could be used.
    fn fail_active(&mut self, ctx: &mut Context<'_>, active: Active, reason: &str) {
        let command = match active {
            Active::Create(create) => {
                let command = create.command();
                create.abandon(ctx);
                command
            }
            Active::RekeyIke(rekeying) => rekeying.command(),
            Active::DeleteChild(_, command) => command,
            // Requests to end the IKE SA are fulfilled.
            Active::DeleteIke(command) => return done(ctx, command, Ok(())),
            Active::DeleteSpi | Active::Liveness(_) | Active::Addresses { .. } => None,
        };
        done(ctx, command, Err(reason));
    }

    /// Properties of this IKE SA for a negotiation.
    pub(crate) fn parent(&self) -> Parent<'_> {
        Parent {
            ike: self.id,
            connection: &self.connection,
            path: self.path,
            nat: self.nat,
            remote_id: &self.remote_id,
            peer_id: self.identities().1,
            peer: self.peer,
            virtual_local: &self.virtual_local,
            virtual_remote: &self.virtual_remote,
            prf: self.suite.prf,
            sk_d: &self.keys.sk_d,
            children: &self.children,
        }
    }

    fn child(&mut self, id: ChildId) -> Option<&mut Child> {
        self.children.iter_mut().find(|child| child.id == id)
    }

    /// The Child SA of IKE_AUTH failed while the IKE SA came up.
    pub(crate) fn child_failed(&mut self, ctx: &mut Context<'_>, request: &ChildRequest, fault: ChildFault) {
        ctx.count(counters::CHILD_FAILED);
        let text = format!("child '{}' failed: {}", request.config.name, fault.reason);
        ctx.log(Level::Error, Subsystem::Child, Some(self.id), text.clone());
        self.refused_to_packet(ctx.now, request);
        if let Some((protocol, spi)) = fault.delete {
            self.queue(ctx, Task::DeleteSpi(protocol, spi));
        }
        done(ctx, request.command, Err(&text));
    }

    fn log(&self, ctx: &mut Context<'_>, level: Level, text: String) {
        ctx.log(level, Subsystem::Ike, Some(self.id), text);
    }
}

/// Reports the result of a command.
fn done(ctx: &mut Context<'_>, command: Option<u64>, result: Result<(), &str>) {
    if let Some(command) = command {
        ctx.event(Event::CommandDone(command, result.map_err(|why| CommandError::new(why.to_owned()))));
    }
}

/// A random part of `max`, which may be zero.
pub(crate) fn jitter(ctx: &mut Context<'_>, max: Duration) -> Duration {
    max.mul_f64(f64::from(ctx.rng.next_u32()) / f64::from(u32::MAX))
}

/// A nonce: 256 bits are at least half the key of every PRF (RFC 7296 §2.10).
fn nonce(ctx: &mut Context<'_>) -> Vec<u8> {
    let mut nonce = vec![0; 32];
    ctx.rng.fill_bytes(&mut nonce);
    nonce
}

/// Returns whether an exchange with these nonces loses against one with the lowest nonce `rival`:
/// of two simultaneous exchanges, the one with the lowest of the four nonces loses (RFC 7296
/// §2.8.1).
fn loses(nonces: (&[u8], &[u8]), rival: &[u8]) -> bool {
    // Octet by octet, and the beginning of another nonce is lower than that: the order of slices.
    nonces.0.min(nonces.1) < rival
}

/// The earlier of two times that may be missing.
fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A REKEY_SA notify with a usable SPI.
fn rekey_notify<'a>(parts: &Parts<'a>) -> Option<(ProtocolId, &'a [u8])> {
    let notify = parts.notifies.iter().find(|notify| notify.kind == NotifyType::REKEY_SA)?;
    Some((notify.protocol, notify.spi))
}
