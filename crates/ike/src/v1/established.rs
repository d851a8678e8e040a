//! An authenticated ISAKMP SA: its Child SAs, lifetimes, liveness, and its end.
//!
//! Nothing in phase 2 is acknowledged but quick mode: a Delete that is lost leaves the peer with an
//! SA that this host does not have, which its next message or its lifetime ends.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::ike::Prf;
use wire::ike::v1::{DOI_IPSEC, Notification, NotifyType};
use wire::ike::{CfgAttr, CfgType, Chain, ExchangeType, Header, ProtocolId};
use wire::{Spi, TrafficSelector};

use super::counters;
use super::message::{Features, Head, Parts, payloads};
use super::phase1::{Basis, Last, both_cookies, earlier, message_id, notification};
use super::proposal::{Phase1, protocol_of, responder_lifetime};
use super::protection::{Iv, Protection, digest};
use super::quick::{PairRequest, Quick};
use super::transaction::{Answered, Arrival};
use crate::config::{Action, ChildConfig, ChildMode, Connection, Unique};
use crate::context::Context;
use crate::error::IkeError;
use crate::exchange::{Resend, Unanswered};
use crate::handshake::configure;
use crate::identity::Identity;
use crate::output::{ChildId, CommandError, Event, IkeId, Level, Output, Path, Subsystem, VirtualIp};
use crate::pool::{Client, Leased};
use crate::proposal::{ChildSuite, IkeSuite};
use crate::sa::{ChildRequest, Initiation, NewSa, Role, eap_or_ike_id};
use crate::task::{counters as task_counters, jitter};

/// Time between a replacement and the Delete of the replaced ISAKMP SA by its initiator.
const DELETE_AFTER: Duration = Duration::from_secs(10);
/// Time that the responder of the replacement waits for that Delete.
const REPLACED: Duration = Duration::from_secs(180);
/// Least time between the start of a replacement and the end of a lifetime that the peer requested,
/// for phase 1, XAuth and Mode Config, or for a quick mode, with two retransmissions.
const BEFORE_END: Duration = Duration::from_secs(30);
/// Shortest lifetime of a peer that this host follows: with one of a second it would negotiate
/// without end. Common gateways permit none below it.
const LIFE_MIN: Duration = Duration::from_secs(60);
/// Time between a failed replacement and the next one.
const RETRY: Duration = Duration::from_secs(30);
/// Message IDs of both directions after which another phase 1 replaces the ISAKMP SA. All of them
/// are kept, because a recorded message has a correct hash as long as the keys are in use. The SA
/// ends at twice this number, with about 160 KiB.
const USED_MAX: usize = 8192;
/// Deletes of unknown Child SAs, 8 bytes each, that wait for message 2 of a quick mode.
const EARLY_DELETES_MAX: usize = 64;
/// Child SAs of one ISAKMP SA, about 500 bytes each.
pub(super) const CHILDREN_MAX: usize = 128;

/// Results of phase 1.
pub(super) struct Parameters {
    pub(super) basis: Basis,
    pub(super) connection: Arc<Connection>,
    pub(super) role: Role,
    pub(super) suite: Phase1,
    pub(super) protection: Protection,
    pub(super) iv_base: Iv,
    pub(super) local_id: Identity,
    pub(super) remote_id: Identity,
    pub(super) features: Features,
    pub(super) nat: (bool, bool),
    pub(super) life: Option<Duration>,
    pub(super) last: Option<Last>,
}

/// An authenticated ISAKMP SA.
pub(super) struct Established {
    pub(super) basis: Basis,
    pub(super) connection: Arc<Connection>,
    pub(super) role: Role,
    pub(super) suite: IkeSuite,
    pub(super) prf: Prf,
    pub(super) protection: Protection,
    pub(super) iv_base: Iv,
    pub(super) local_id: Identity,
    pub(super) remote_id: Identity,
    pub(super) features: Features,
    /// Name of the user that the peer has authenticated by XAuth.
    pub(super) xauth_name: Option<String>,
    /// Virtual addresses of this host.
    pub(super) virtual_local: Vec<VirtualIp>,
    /// Networks that the server lists (Unity): Child SAs of this client are for these.
    pub(super) split_include: Vec<TrafficSelector>,
    /// Virtual addresses given to the peer, by pool.
    pub(super) virtual_remote: Vec<Leased>,
    /// Answers to transactions of the peer.
    pub(super) transactions: Vec<Answered>,
    /// True if there is a NAT in front of this host, and of the peer.
    pub(super) nat: (bool, bool),
    pub(super) children: Vec<Child>,
    /// The ISAKMP SA that has taken its Child SAs over.
    pub(super) successor: Option<IkeId>,
    /// Child SAs that it has taken over: quick modes that still run replace them.
    pub(super) moved: Vec<Moved>,
    /// Times of the next replacement and of the end, before another one took over.
    pub(super) before_replaced: (Option<Instant>, Option<Instant>),
    /// Deletes of Child SAs that it does not have. Another ISAKMP SA with the peer has them, or the
    /// Delete has overtaken message 2.
    pub(super) early_deletes: Vec<(ProtocolId, Spi)>,
    /// Quick modes by message ID.
    pub(super) quick: BTreeMap<u32, Quick>,
    /// Requests that were not finished when it ended.
    pub(super) unfinished: Vec<PairRequest>,
    /// Message IDs that occurred, of this host and of the peer.
    used: HashSet<u32>,
    /// The last message of the peer in phase 1 and its answer.
    last: Option<Last>,
    /// Message 3 of aggressive mode, until its arrival is known.
    unconfirmed: Option<Resend>,
    pub(super) established: Instant,
    /// Since when both ends have it, as far as this host can determine.
    pub(super) confirmed: Option<Instant>,
    /// Time of the next phase 1.
    pub(super) rekey_at: Option<Instant>,
    over_at: Option<Instant>,
    keepalive_at: Option<Instant>,
    /// Time of the last authentic message or packet.
    last_seen: Instant,
    liveness: Liveness,
    pub(super) ending: Ending,
    /// The peer has sent a Delete: the table ends it, after another ISAKMP SA with the peer has
    /// taken the Child SAs over.
    pub(super) deleted: bool,
}

/// State of dead peer detection (RFC 3706).
struct Liveness {
    /// Number of the next R-U-THERE.
    next: u32,
    /// Number of the first one without an answer.
    first: u32,
    /// Number of the last one of the peer.
    received: Option<u32>,
    /// Questions without an answer.
    pending: Option<Resend>,
}

/// State of the end of an ISAKMP SA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ending {
    /// It does not.
    No,
    /// Another one has its Child SAs; it is deleted when `over_at` comes. Quick modes that are
    /// under way go on.
    Replaced,
    /// It is over.
    Ended,
}

/// The party that ended an ISAKMP SA: determines what its Child SAs do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Cause {
    /// A command or the configuration of this host.
    Here,
    /// A Delete of the peer: `close_action`.
    Peer,
    /// The peer is dead: `dpd_action`.
    Dead,
}

/// A Child SA.
pub(super) struct Child {
    pub(super) id: ChildId,
    pub(super) config: Arc<ChildConfig>,
    pub(super) suite: ChildSuite,
    pub(super) mode: ChildMode,
    pub(super) spi_in: Spi,
    pub(super) spi_out: Spi,
    pub(super) local_ts: TrafficSelector,
    pub(super) remote_ts: TrafficSelector,
    /// Part of `remote_ts` that it is used for.
    pub(super) networks: Vec<TrafficSelector>,
    pub(super) installed: Instant,
    pub(super) rekey_at: Option<Instant>,
    pub(super) expire_at: Option<Instant>,
    /// Time from which the peer is taken to have a successor.
    pub(super) confirm_at: Option<Instant>,
    /// Message ID of the CONNECTED notification that the peer is going to send.
    pub(super) connected_by: Option<u32>,
    /// Time of the Delete of a replaced one.
    pub(super) delete_at: Option<Instant>,
    pub(super) used: Instant,
    pub(super) state: ChildState,
    /// The Child SA that it replaces, until it is confirmed.
    pub(super) replaces: Option<ChildId>,
    /// This host started its quick mode.
    pub(super) initiator: bool,
    /// Message 3 has come to an ISAKMP SA that was replaced: the successor of that one uses it.
    pub(super) confirmed: bool,
}

/// A Child SA that the successor of an ISAKMP SA has taken over.
pub(super) struct Moved {
    pub(super) id: ChildId,
    pub(super) spi_in: Spi,
    pub(super) name: String,
    pub(super) pair: (TrafficSelector, TrafficSelector),
}

/// State of a Child SA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ChildState {
    /// Message 3 has not come: nothing is sent yet.
    Unconfirmed,
    /// In use.
    Installed,
    /// A successor is being negotiated.
    Rekeying,
    /// A successor is used.
    Rekeyed,
}

impl Child {
    /// It carries traffic.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, ChildState::Installed | ChildState::Rekeying)
    }

    /// Time of another rekeying after one that failed: within its lifetime, which ends it
    /// otherwise.
    pub(super) fn retry_at(&self, now: Instant) -> Option<Instant> {
        let again = match self.expire_at {
            Some(end) => Some(now + end.saturating_duration_since(now) / 2),
            None => (!self.config.time.rekey.is_zero()).then(|| now + RETRY),
        };
        again.filter(|at| *at > now + Duration::from_secs(1))
    }

    /// Time of its next action.
    fn next_due(&self) -> Option<Instant> {
        let rekey = self.rekey_at.filter(|_| self.state == ChildState::Installed);
        let inactivity = self.config.inactivity;
        let inactive = (!inactivity.is_zero() && self.is_live()).then(|| self.used + inactivity);
        [self.expire_at, self.delete_at, inactive].into_iter().fold(rekey, earlier)
    }
}

impl Established {
    pub(super) fn new(ctx: &mut Context<'_>, parameters: Parameters) -> Self {
        let Parameters { basis, connection, role, suite, protection, iv_base, mut last, .. } = parameters;
        let unconfirmed = last.as_mut().and_then(|last| last.unconfirmed.take());
        let unconfirmed = unconfirmed.map(|message| Resend::new(ctx.now, &connection.retransmit, vec![message]));
        let confirmed = unconfirmed.is_none().then_some(ctx.now);
        let mut sa = Self {
            prf: suite.prf,
            suite: suite.suite(),
            local_id: parameters.local_id,
            remote_id: parameters.remote_id,
            features: parameters.features,
            xauth_name: None,
            virtual_local: Vec::new(),
            split_include: Vec::new(),
            virtual_remote: Vec::new(),
            transactions: Vec::new(),
            nat: parameters.nat,
            last,
            unconfirmed,
            children: Vec::new(),
            successor: None,
            moved: Vec::new(),
            before_replaced: (None, None),
            early_deletes: Vec::new(),
            quick: BTreeMap::new(),
            unfinished: Vec::new(),
            used: HashSet::new(),
            established: ctx.now,
            confirmed,
            rekey_at: None,
            over_at: None,
            keepalive_at: None,
            last_seen: ctx.now,
            // Below 2^31, so that numbers do not wrap during the life of an SA (RFC 3706 §6.2).
            liveness: Liveness { next: ctx.rng.next_u32() >> 1, first: 0, received: None, pending: None },
            ending: Ending::No,
            deleted: false,
            basis,
            connection,
            role,
            protection,
            iv_base,
        };
        sa.set_lifetimes(ctx, parameters.life);
        sa.put_off_keepalive(ctx);
        sa
    }

    pub(super) fn id(&self) -> IkeId {
        self.basis.id
    }

    pub(super) fn identities(&self) -> (Identity, Identity) {
        (self.local_id.clone(), self.peer_id())
    }

    /// The identity that the peer has authenticated: that of XAuth if it was used.
    pub(super) fn peer_id(&self) -> Identity {
        eap_or_ike_id(self.xauth_name.as_deref(), &self.remote_id)
    }

    pub(super) fn log(&self, ctx: &mut Context<'_>, level: Level, text: String) {
        ctx.log(level, Subsystem::Ike, Some(self.basis.id), text);
    }

    /// `rekey_time` and `reauth_time` mean the same: another phase 1. A shorter lifetime of the
    /// peer counts, too.
    fn set_lifetimes(&mut self, ctx: &mut Context<'_>, life: Option<Duration>) {
        let (rekey, reauth) = (self.connection.rekey_time, self.connection.reauth_time);
        let sooner = [rekey, reauth].into_iter().filter(|time| !time.is_zero()).min();
        // Both ends would start at the same time: the responder waits whether the initiator does.
        let over = self.connection.over_time;
        let wait = if self.role == Role::Responder { over / 2 } else { Duration::ZERO };
        let mut begin = sooner.map(|time| (time + wait).saturating_sub(jitter(ctx, self.connection.rand_time)));
        let mut end = sooner.map(|time| time + over.max(wait));
        let life = life.and_then(peer_lifetime);
        if let Some(life) = life.filter(|life| end.is_none_or(|end| *life < end)) {
            end = Some(life);
            let before = begin_within(life, self.role == Role::Initiator);
            begin = Some(begin.map_or(before, |begin| begin.min(before)));
        }
        (self.rekey_at, self.over_at) = (begin.map(|after| ctx.now + after), end.map(|after| ctx.now + after));
    }

    fn put_off_keepalive(&mut self, ctx: &Context<'_>) {
        let every = ctx.settings.keepalive;
        self.keepalive_at = (self.nat.0 && !every.is_zero() && self.ending == Ending::No).then(|| ctx.now + every);
    }

    /// Takes a datagram with both cookies.
    pub(super) fn handle(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) {
        if self.ending == Ending::Ended {
            return;
        }
        match header.exchange {
            ExchangeType::ID_PROT | ExchangeType::AGGRESSIVE => self.repeat_last(ctx, from, datagram),
            ExchangeType::INFORMATIONAL_V1 => self.handle_informational(ctx, from, header, datagram),
            ExchangeType::QUICK_MODE => self.handle_quick(ctx, from, header, datagram),
            ExchangeType::TRANSACTION => self.handle_transaction(ctx, from, header, datagram),
            _ => ctx.count(counters::REFUSED_EXCHANGE),
        }
    }

    /// The last message of the peer in phase 1 again: its answer was lost.
    pub(super) fn repeat_last(&mut self, ctx: &mut Context<'_>, from: &Path, datagram: &[u8]) {
        ctx.count(counters::DUPLICATE);
        let is_it = |last: &&Last| last.seen == digest(datagram) && !last.reply.is_empty();
        let Some(reply) = self.last.as_ref().filter(is_it).map(|last| last.reply.clone()) else { return };
        // An answer of aggressive mode goes where the exchange goes on.
        let path = if self.role == Role::Initiator { self.basis.path } else { *from };
        self.basis.send_to(ctx, &path, &self.connection, reply);
    }

    /// Sends message 3 of aggressive mode again: without it the peer drops everything else.
    pub(super) fn check_unconfirmed(&mut self, ctx: &mut Context<'_>) {
        let retransmit = self.connection.retransmit;
        let Some(resend) = self.unconfirmed.as_mut().filter(|resend| resend.due() <= ctx.now) else { return };
        if !resend.again(ctx.now, &retransmit) {
            self.unconfirmed = None;
            self.confirmed.get_or_insert(ctx.now);
            return;
        }
        ctx.count(crate::handshake::counters::RETRANSMISSIONS);
        for message in resend.datagrams().to_vec() {
            self.basis.send(ctx, &self.connection, message);
        }
    }

    /// Time of the next transmission of message 3 of aggressive mode.
    pub(super) fn unconfirmed_due(&self) -> Option<Instant> {
        self.unconfirmed.as_ref().map(Resend::due)
    }

    /// A TRANSACTION after XAuth: a client requests addresses.
    fn handle_transaction(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) {
        let Arrival::Request(request) = self.receive_transaction(ctx, from, (header, datagram), None) else { return };
        let requested = configure::read_request(request.attributes.iter().map(|(attr, value)| (*attr, &value[..])));
        if request.kind != CfgType::REQUEST || requested.is_empty() || self.connection.pools.is_empty() {
            return ctx.count(counters::TRANSACTION_REFUSED);
        }
        // A client that repeats its request should get the same addresses.
        self.release_addresses(ctx);
        match self.lease(ctx, &requested) {
            Ok(attributes) => {
                let given: Vec<(CfgAttr, &[u8])> = attributes.iter().map(|(attr, value)| (*attr, &value[..])).collect();
                self.reply(ctx, request, &given);
            }
            Err(error) => {
                self.log(ctx, Level::Warn, error.to_string());
                self.reply(ctx, request, &[]);
            }
        }
    }

    /// Takes addresses for the peer out of the pools; returns the attributes for it.
    ///
    /// # Errors
    /// None is left.
    pub(super) fn lease(
        &mut self,
        ctx: &mut Context<'_>,
        requested: &[IpAddr],
    ) -> Result<Vec<(CfgAttr, Vec<u8>)>, IkeError> {
        let identity = self.peer_id();
        let alone = self.connection.unique == Unique::Replace;
        let client = Client { identity: &identity, from: self.basis.path.remote, alone };
        // While one phase 1 replaces another, the client keeps its address.
        let held = |preferred: &IpAddr| match preferred.is_unspecified() {
            true => ctx.pools.held(&self.connection.pools, client, preferred.is_ipv6()).unwrap_or(*preferred),
            false => *preferred,
        };
        let requested: Vec<IpAddr> = requested.iter().map(held).collect();
        let leases = configure::assign(ctx, &self.connection, client, &requested)?;
        let attributes = configure::reply_attributes(ctx, &leases);
        self.virtual_remote = leases;
        Ok(attributes)
    }

    /// Gives virtual addresses back.
    pub(super) fn release_addresses(&mut self, ctx: &mut Context<'_>) {
        for leased in std::mem::take(&mut self.virtual_remote) {
            ctx.pools.release(&leased);
        }
    }

    /// Sends a Delete of the ISAKMP SA.
    pub(super) fn send_delete(&mut self, ctx: &mut Context<'_>) {
        let cookies = both_cookies(self.basis.cookies);
        self.inform(ctx, |chain| {
            chain.delete_v1(DOI_IPSEC, ProtocolId::IKE, &[&cookies]);
        });
    }

    /// An authentic message from these addresses.
    pub(super) fn authentic(&mut self, ctx: &mut Context<'_>, from: &Path) {
        self.last_seen = ctx.now;
        self.liveness.pending = None;
        self.unconfirmed = None;
        self.confirmed.get_or_insert(ctx.now);
        self.follow_nat(ctx, from.remote);
    }

    /// The mapping of a NAT in front of the peer may change.
    fn follow_nat(&mut self, ctx: &mut Context<'_>, remote: SocketAddr) {
        if !self.nat.1 || remote == self.basis.path.remote {
            return;
        }
        self.log(ctx, Level::Info, format!("the peer is at {remote} now, behind its NAT"));
        self.basis.path.remote = remote;
        let path = self.basis.path;
        for leased in &self.virtual_remote {
            ctx.pools.moved(leased, remote);
        }
        ctx.event(Event::IkeMoved(self.basis.id));
        ctx.out.extend(self.children.iter().map(|child| Output::Move(child.id, path)));
    }

    /// Remembers a message ID; false for one that was used before.
    pub(super) fn is_fresh(&mut self, now: Instant, message_id: u32) -> bool {
        if message_id == 0 || !self.used.insert(message_id) {
            return false;
        }
        // Both ends reach the limit at about the same time, and the initiator should replace it.
        let soft = if self.role == Role::Responder { USED_MAX + USED_MAX / 4 } else { USED_MAX };
        if self.used.len() == soft && self.ending == Ending::No {
            self.rekey_at = Some(now);
        }
        if self.used.len() >= 2 * USED_MAX {
            self.over_at = Some(now);
        }
        true
    }

    /// Returns whether a message ID occurred before.
    pub(super) fn is_used(&self, message_id: u32) -> bool {
        message_id == 0 || self.used.contains(&message_id)
    }

    /// A message ID for an exchange of this host.
    pub(super) fn fresh_message_id(&mut self, ctx: &mut Context<'_>) -> u32 {
        loop {
            let message_id = message_id(ctx);
            if self.is_fresh(ctx.now, message_id) {
                return message_id;
            }
        }
    }

    /// Sends an INFORMATIONAL message. It is not answered.
    pub(super) fn inform(&mut self, ctx: &mut Context<'_>, build: impl FnOnce(&mut Chain<'_>)) {
        let (first, rest) = payloads(build);
        self.send_hashed(ctx, ExchangeType::INFORMATIONAL_V1, first, &rest);
    }

    /// Sends the first message of an exchange: payloads with HASH(1) in front.
    pub(super) fn send_hashed(
        &mut self,
        ctx: &mut Context<'_>,
        exchange: ExchangeType,
        first: wire::ike::PayloadType,
        rest: &[u8],
    ) {
        let message_id = self.fresh_message_id(ctx);
        let head = Head { cookies: self.basis.cookies, exchange, message_id };
        let mut iv = self.protection.iv(&self.iv_base, message_id);
        let datagram = self.protection.seal_hash_1(&mut iv, &head, first, rest);
        self.basis.send(ctx, &self.connection, datagram);
    }

    /// Sends a notification about the ISAKMP SA.
    pub(super) fn notify(&mut self, ctx: &mut Context<'_>, kind: NotifyType, data: &[u8]) {
        let spi = both_cookies(self.basis.cookies);
        self.inform(ctx, |chain| notification(chain, kind, &spi, data));
    }

    pub(super) fn handle_informational(
        &mut self,
        ctx: &mut Context<'_>,
        from: &Path,
        header: &Header,
        datagram: &[u8],
    ) {
        let message_id = header.message_id.get();
        let encrypted = header.flags & Header::FLAG_V1_ENCRYPTION != 0;
        let iv = self.protection.iv(&self.iv_base, message_id);
        let opened = self.protection.open(&iv, &datagram[Header::LEN..]);
        let Ok((plain, _)) = opened.map_err(|_| ()).and_then(|opened| if encrypted { Ok(opened) } else { Err(()) })
        else {
            return ctx.count(counters::NOT_AUTHENTIC);
        };
        let parts = match Parts::read(header.next, &plain) {
            Ok(parts) if self.protection.has_hash_1(message_id, &parts) => parts,
            _ => return ctx.count(counters::NOT_AUTHENTIC),
        };
        // It has the message ID of its quick mode, which is used, and counts once.
        if parts.notification(NotifyType::CONNECTED).is_some() && self.connected(ctx, message_id) {
            return self.authentic(ctx, from);
        }
        // The hash does not prevent that a recorded message is sent again.
        if !self.is_fresh(ctx.now, message_id) {
            return ctx.count(counters::DUPLICATE);
        }
        if parts.notifications.iter().all(|notification| self.is_expected(notification)) {
            self.authentic(ctx, from);
        }
        for notification in &parts.notifications {
            self.take_notification(ctx, notification);
        }
        for delete in &parts.deletes {
            if delete.protocol == ProtocolId::IKE {
                // Nothing after it in the message concerns an SA that exists.
                if delete.spis().all(|spi| spi == both_cookies(self.basis.cookies)) {
                    self.deleted = true;
                }
                return;
            }
            for spi in delete.spis() {
                let spi = <[u8; 4]>::try_from(spi).ok().and_then(|spi| Spi::try_from(u32::from_be_bytes(spi)).ok());
                if let Some(spi) = spi {
                    self.deleted_by_peer(ctx, delete.protocol, spi);
                }
            }
        }
    }

    /// Returns false for a message of dead peer detection with the number of an earlier one, which
    /// proves nothing about the peer (RFC 3706 §7).
    fn is_expected(&self, notification: &Notification<'_>) -> bool {
        let number = <[u8; 4]>::try_from(notification.data).map(u32::from_be_bytes);
        let Liveness { next, first, received, pending } = &self.liveness;
        match (notification.kind, number) {
            (NotifyType::R_U_THERE, Ok(number)) => received.is_none_or(|last| number > last),
            (NotifyType::R_U_THERE_ACK, Ok(number)) => {
                pending.is_some() && number.wrapping_sub(*first) < next.wrapping_sub(*first)
            }
            (NotifyType::R_U_THERE | NotifyType::R_U_THERE_ACK, Err(_)) => false,
            _ => true,
        }
    }

    fn take_notification(&mut self, ctx: &mut Context<'_>, notification: &Notification<'_>) {
        let Notification { kind, spi, data, .. } = *notification;
        match kind {
            NotifyType::RESPONDER_LIFETIME => self.shorten(notification),
            NotifyType::R_U_THERE | NotifyType::R_U_THERE_ACK => {
                let Ok(number) = <[u8; 4]>::try_from(data).map(u32::from_be_bytes) else { return };
                let is_this = spi.is_empty() || spi == both_cookies(self.basis.cookies);
                // A peer may repeat the number of a question when the answer was lost.
                if kind == NotifyType::R_U_THERE && is_this && self.liveness.received.is_none_or(|last| number >= last)
                {
                    self.liveness.received = Some(number);
                    self.notify(ctx, NotifyType::R_U_THERE_ACK, data);
                }
            }
            kind if kind.is_error() => self.refused(ctx, kind, spi),
            _ => (),
        }
    }

    /// The peer keeps an SA for less time than was agreed.
    fn shorten(&mut self, notification: &Notification<'_>) {
        let Some(life) = responder_lifetime(notification).and_then(peer_lifetime) else { return };
        let sooner = |at: &mut Option<Instant>, end: Instant| *at = Some(at.map_or(end, |at| at.min(end)));
        if notification.protocol == ProtocolId::IKE && self.ending == Ending::No {
            let begin = self.established + begin_within(life, self.role == Role::Initiator);
            sooner(&mut self.rekey_at, begin);
            sooner(&mut self.over_at, self.established + life);
        }
        let is_it = |child: &&mut Child| {
            notification.protocol == protocol_of(&child.suite) && child.spi_out.to_be_bytes()[..] == *notification.spi
        };
        if let Some(child) = self.children.iter_mut().find(is_it) {
            sooner(&mut child.rekey_at, child.installed + begin_within(life, child.initiator));
            sooner(&mut child.expire_at, child.installed + life);
        }
    }

    /// Lifetimes, liveness, keepalives, retransmissions.
    pub(super) fn handle_timeout(&mut self, ctx: &mut Context<'_>) {
        if self.over_at.is_some_and(|at| at <= ctx.now) {
            self.over_at = None;
            let reason = if self.ending == Ending::Replaced { "" } else { "its lifetime is over" };
            if self.ending == Ending::No {
                self.leave_traps(ctx);
            }
            return self.terminate(ctx, reason);
        }
        self.check_unconfirmed(ctx);
        self.check_quick(ctx);
        self.confirm_due(ctx);
        if self.ending != Ending::No {
            return;
        }
        if self.rekey_at.take_if(|at| *at <= ctx.now).is_some() {
            self.replace(ctx, None);
        }
        self.check_children(ctx);
        self.check_liveness(ctx);
        if self.keepalive_at.is_some_and(|at| at <= ctx.now) {
            ctx.out.push_back(Output::Keepalive(self.basis.path));
            self.put_off_keepalive(ctx);
        }
    }

    /// Time of the next [`Established::handle_timeout`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deadline = self.quick.values().fold(self.over_at, |first, quick| earlier(first, Some(quick.due())));
        let deadline = self.children.iter().fold(deadline, |first, child| earlier(first, child.confirm_at));
        let deadline = earlier(deadline, self.unconfirmed_due());
        if self.ending != Ending::No {
            return deadline;
        }
        let deadline = [self.rekey_at, self.keepalive_at, self.liveness_due()].into_iter().fold(deadline, earlier);
        self.children.iter().fold(deadline, |first, child| earlier(first, child.next_due()))
    }

    /// Starts another phase 1 with the same peer, whose ISAKMP SA takes the Child SAs over.
    pub(super) fn replace(&mut self, ctx: &mut Context<'_>, command: Option<u64>) {
        self.log(ctx, Level::Info, "another phase 1 replaces the ISAKMP SA".to_owned());
        self.begin_again(ctx, Vec::new(), Some(self.basis.id), command);
    }

    /// The phase 1 that was to replace the ISAKMP SA failed: another one follows while it lives.
    pub(super) fn replace_later(&mut self, ctx: &mut Context<'_>) {
        let at = ctx.now + RETRY + jitter(ctx, RETRY / 3);
        if self.ending == Ending::No && self.over_at.is_none_or(|over| at < over) {
            self.rekey_at.get_or_insert(at);
        }
    }

    fn begin_again(
        &self,
        ctx: &mut Context<'_>,
        children: Vec<ChildRequest>,
        replaces: Option<IkeId>,
        command: Option<u64>,
    ) {
        let is_one = self.connection.remote_addrs.iter().any(crate::config::Host::is_one);
        let remote = (self.role == Role::Responder || !is_one || replaces.is_some()).then_some(self.basis.path.remote);
        ctx.born.push(NewSa::Initiate(Initiation {
            connection: Arc::clone(&self.connection),
            children,
            remote,
            host: None,
            attempt: 1,
            replaces,
            addresses: self.virtual_local.iter().map(|address| address.addr).collect(),
            commands: command.into_iter().collect(),
            by_packet: false,
        }));
    }

    /// Another ISAKMP SA has taken the Child SAs over. `here`: its initiator is this host, which
    /// sends the Delete.
    pub(super) fn replaced(&mut self, ctx: &mut Context<'_>, here: bool) {
        self.ending = Ending::Replaced;
        self.before_replaced = (self.rekey_at, self.over_at);
        self.over_at = Some(ctx.now + if here { DELETE_AFTER } else { REPLACED });
        (self.rekey_at, self.keepalive_at, self.liveness.pending) = (None, None, None);
        ctx.names.forget_peer(&self.identities(), self.basis.id);
    }

    /// The ISAKMP SA that took the Child SAs over is deleted, so that this one has them again.
    pub(super) fn revive(&mut self, ctx: &mut Context<'_>) {
        self.log(ctx, Level::Info, "the ISAKMP SA is used again, because the peer deleted the one after it".to_owned());
        (self.ending, self.successor) = (Ending::No, None);
        // Its lifetime has not begun again.
        (self.rekey_at, self.over_at) = std::mem::take(&mut self.before_replaced);
        self.moved.clear();
        self.put_off_keepalive(ctx);
        ctx.names.peers.entry(self.identities()).or_default().push(self.id());
    }

    /// Takes out what another ISAKMP SA with the peer continues: Child SAs in use, and requests
    /// without a quick mode.
    pub(super) fn hand_over(&mut self, successor: IkeId) -> (Vec<Child>, Vec<PairRequest>) {
        self.successor = Some(successor);
        // Those without message 3 wait for it under the old keys.
        let leaves = |child: &mut Child| child.state != ChildState::Unconfirmed || child.confirmed;
        let children: Vec<Child> = self.children.extract_if(.., leaves).collect();
        self.moved.extend(children.iter().map(|child| Moved {
            id: child.id,
            spi_in: child.spi_in,
            name: child.config.name.clone(),
            pair: (child.local_ts, child.remote_ts),
        }));
        (children, self.take_waiting())
    }

    /// Takes over from another ISAKMP SA with the peer.
    pub(super) fn adopt(&mut self, ctx: &mut Context<'_>, (children, requests): (Vec<Child>, Vec<PairRequest>)) {
        for mut child in children {
            let (id, confirmed) = (child.id, std::mem::take(&mut child.confirmed));
            // Its quick mode stays with the keys that it began with. Should that fail, another one
            // follows here.
            if child.state == ChildState::Rekeying {
                child.state = ChildState::Installed;
                child.rekey_at = child.retry_at(ctx.now);
            }
            self.children.push(child);
            if confirmed {
                self.confirm(ctx, id);
            }
        }
        for request in requests {
            self.resume(ctx, request);
        }
    }

    fn liveness_due(&self) -> Option<Instant> {
        let (delay, timeout) = (self.connection.dpd_delay, self.connection.dpd_timeout);
        if delay.is_zero() || !self.features.dpd {
            return None;
        }
        match &self.liveness.pending {
            None => Some(self.last_seen + delay),
            Some(pending) => {
                earlier(Some(pending.due()), (!timeout.is_zero()).then(|| self.last_seen + timeout.max(delay)))
            }
        }
    }

    /// Asks a silent peer (RFC 3706 §5.2), or declares it dead.
    fn check_liveness(&mut self, ctx: &mut Context<'_>) {
        if self.liveness_due().is_none_or(|due| due > ctx.now) {
            return;
        }
        let (timeout, retransmit) = (self.connection.dpd_timeout, self.connection.retransmit);
        let is_pending = self.liveness.pending.is_some();
        let silent =
            is_pending && !timeout.is_zero() && self.last_seen + timeout.max(self.connection.dpd_delay) <= ctx.now;
        let dead = match &mut self.liveness.pending {
            _ if silent => true,
            None => {
                self.liveness.pending = Some(Resend::new(ctx.now, &retransmit, Vec::new()));
                self.liveness.first = self.liveness.next;
                false
            }
            Some(pending) => {
                let given_up = !pending.again(ctx.now, &retransmit);
                // With `dpd_timeout` the questions go on until then.
                if given_up && !timeout.is_zero() {
                    pending.restart(ctx.now, &retransmit);
                }
                given_up && timeout.is_zero()
            }
        };
        if dead {
            return self.dead(ctx);
        }
        ctx.count(task_counters::LIVENESS_SENT);
        let number = self.liveness.next;
        self.liveness.next = self.liveness.next.wrapping_add(1);
        self.notify(ctx, NotifyType::R_U_THERE, &number.to_be_bytes());
    }

    /// The peer does not answer.
    pub(super) fn dead(&mut self, ctx: &mut Context<'_>) {
        ctx.count(task_counters::IKE_DEAD);
        self.end(ctx, "the peer does not answer", Cause::Dead);
    }

    /// Question that the peer has not answered in time.
    pub(super) fn unanswered(&self) -> Option<Unanswered> {
        let retransmit = &self.connection.retransmit;
        let quick = self.quick.values().find_map(|quick| quick.unanswered(retransmit));
        quick.or_else(|| self.liveness.pending.as_ref()?.unanswered(retransmit))
    }

    fn confirm_due(&mut self, ctx: &mut Context<'_>) {
        let is_due = |child: &&Child| child.confirm_at.is_some_and(|at| at <= ctx.now);
        let due: Vec<ChildId> = self.children.iter().filter(is_due).map(|child| child.id).collect();
        for id in due {
            self.confirm(ctx, id);
        }
    }

    fn check_children(&mut self, ctx: &mut Context<'_>) {
        let due: Vec<ChildId> = self
            .children
            .iter()
            .filter(|child| child.next_due().is_some_and(|at| at <= ctx.now))
            .map(|child| child.id)
            .collect();
        for id in due {
            let Some(child) = self.child(id) else { continue };
            let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= ctx.now);
            if is_due(child.expire_at) {
                self.expired(ctx, id, "its lifetime is over");
            } else if is_due(child.delete_at) {
                self.delete_child(ctx, id, "");
            } else if is_due(child.rekey_at) && child.state == ChildState::Installed {
                child.rekey_at = None;
                self.rekey_child(ctx, id, None);
            } else {
                self.expired(ctx, id, "it was not used");
            }
        }
    }

    pub(super) fn child(&mut self, id: ChildId) -> Option<&mut Child> {
        self.children.iter_mut().find(|child| child.id == id)
    }

    fn expired(&mut self, ctx: &mut Context<'_>, id: ChildId, reason: &str) {
        let Some(child) = self.child(id) else { return };
        let (live, config) = (child.is_live(), Arc::clone(&child.config));
        // The trap must precede the removal, otherwise packets in between would leave in clear
        // text.
        if live && [config.dpd_action, config.close_action].contains(&Action::Trap) {
            self.trap(ctx, &config);
        }
        self.delete_child(ctx, id, reason);
    }

    /// A limit of bytes or packets was reached.
    pub(super) fn child_expired(&mut self, ctx: &mut Context<'_>, id: ChildId, hard: bool) {
        match hard {
            true => self.expired(ctx, id, "its limit of bytes or packets is reached"),
            false if self.child(id).is_some_and(|child| child.state == ChildState::Installed) => {
                self.rekey_child(ctx, id, None);
            }
            false => (),
        }
    }

    /// Authentic inbound traffic on a Child SA, with its outer source when it came in UDP.
    pub(super) fn traffic(&mut self, ctx: &mut Context<'_>, id: ChildId, from: Option<SocketAddr>) {
        self.last_seen = ctx.now;
        self.liveness.pending = None;
        self.unconfirmed = None;
        self.confirmed.get_or_insert(ctx.now);
        let Some(child) = self.child(id) else { return };
        child.used = ctx.now;
        // The initiator has the keys, even if its message 3 was lost.
        if child.state == ChildState::Unconfirmed {
            self.confirm(ctx, id);
            self.finish_answered(ctx, id);
        }
        if let Some(remote) = from.filter(|_| self.basis.path.encap) {
            self.follow_nat(ctx, remote);
        }
    }

    /// Sends a Delete for a Child SA and removes it. Its inbound half receives what is in flight.
    pub(super) fn delete_child(&mut self, ctx: &mut Context<'_>, id: ChildId, reason: &str) {
        let Some(child) = self.child(id) else { return };
        let (protocol, spi) = (protocol_of(&child.suite), child.spi_in.to_be_bytes());
        self.inform(ctx, |chain| {
            chain.delete_v1(DOI_IPSEC, protocol, &[&spi]);
        });
        self.remove_child(ctx, id, ctx.settings.old_inbound, reason);
    }

    /// Removes a Child SA on this side.
    pub(super) fn remove_child(&mut self, ctx: &mut Context<'_>, id: ChildId, after: Duration, reason: &str) {
        let Some(at) = self.children.iter().position(|child| child.id == id) else { return };
        let child = self.children.remove(at);
        ctx.out.push_back(Output::Remove(id, after));
        ctx.names.rest_spi(child.spi_in, ctx.now + after);
        if child.is_live() {
            if !reason.is_empty() {
                let text = format!("child '{}' {{{}}} is deleted: {reason}", child.config.name, id.0);
                ctx.log(Level::Info, Subsystem::Child, Some(self.basis.id), text);
            }
            ctx.count(task_counters::CHILD_DOWN);
            ctx.event(Event::ChildDown(id, reason.to_owned()));
        }
    }

    /// Returns whether the peer receives a Child SA of this one with this SPI.
    pub(super) fn has_outbound(&self, (protocol, spi): (ProtocolId, Spi)) -> bool {
        self.children.iter().any(|child| child.spi_out == spi && protocol_of(&child.suite) == protocol)
    }

    /// The peer deleted the Child SA that it receives with this SPI.
    pub(super) fn deleted_by_peer(&mut self, ctx: &mut Context<'_>, protocol: ProtocolId, spi: Spi) {
        let is_it = |child: &&Child| child.spi_out == spi && protocol_of(&child.suite) == protocol;
        let Some(child) = self.children.iter().find(is_it) else {
            if self.early_deletes.len() < EARLY_DELETES_MAX {
                self.early_deletes.push((protocol, spi));
            }
            return;
        };
        let (id, live, config) = (child.id, child.is_live(), Arc::clone(&child.config));
        self.remove_child(ctx, id, ctx.settings.old_inbound, "the peer deleted it");
        // Another one with the same section goes on.
        if !live || self.children.iter().any(|child| child.is_live() && child.config.name == config.name) {
            return;
        }
        match config.close_action {
            Action::Clear => (),
            Action::Trap => self.trap(ctx, &config),
            Action::Restart => self.request_child(ctx, ChildRequest { config, packet: None, cpu: None, command: None }),
        }
    }

    /// Ends a Child SA by command. False when there is none of that name.
    pub(super) fn terminate_child(&mut self, ctx: &mut Context<'_>, id: ChildId, command: u64) -> bool {
        let known = self.child(id).is_some();
        if known {
            self.delete_child(ctx, id, "");
            done(ctx, Some(command), Ok(()));
        }
        known
    }

    /// Ends the ISAKMP SA and its Child SAs, with Deletes.
    pub(super) fn terminate(&mut self, ctx: &mut Context<'_>, reason: &str) {
        if self.ending == Ending::Ended {
            return;
        }
        for protocol in [ProtocolId::ESP, ProtocolId::AH] {
            let children = self.children.iter().filter(|child| protocol_of(&child.suite) == protocol);
            let spis: Vec<[u8; 4]> = children.map(|child| child.spi_in.to_be_bytes()).collect();
            if !spis.is_empty() {
                let spis: Vec<&[u8]> = spis.iter().map(|spi| &spi[..]).collect();
                self.inform(ctx, |chain| {
                    chain.delete_v1(DOI_IPSEC, protocol, &spis);
                });
            }
        }
        self.send_delete(ctx);
        self.end(ctx, reason, Cause::Here);
    }

    /// The ISAKMP SA is over, with what is left of its Child SAs.
    pub(super) fn end(&mut self, ctx: &mut Context<'_>, reason: &str, cause: Cause) {
        let was = std::mem::replace(&mut self.ending, Ending::Ended);
        if was == Ending::Ended {
            return;
        }
        if was == Ending::No {
            self.act(ctx, cause);
        }
        let after = if cause == Cause::Dead { Duration::ZERO } else { ctx.settings.old_inbound };
        let children: Vec<ChildId> = self.children.iter().map(|child| child.id).collect();
        for id in children {
            self.remove_child(ctx, id, after, reason);
        }
        for address in std::mem::take(&mut self.virtual_local) {
            ctx.drop_address(self.basis.id, address);
        }
        self.release_addresses(ctx);
        // Another ISAKMP SA with the peer may continue.
        let may_continue = was == Ending::Replaced || cause == Cause::Peer;
        for (_, quick) in std::mem::take(&mut self.quick) {
            match quick.into_request(ctx) {
                Some(request) if may_continue => self.unfinished.push(request),
                Some(request) => request.abandon(ctx),
                None => (),
            }
        }
        if was == Ending::No {
            ctx.names.forget_peer(&self.identities(), self.basis.id);
            ctx.count(task_counters::IKE_DOWN);
            ctx.event(Event::IkeDown(self.basis.id, reason.to_owned()));
            if !reason.is_empty() {
                self.log(ctx, Level::Info, format!("the IKE SA with {} ended: {reason}", self.basis.path.remote));
            }
        }
    }

    /// `dpd_action` and `close_action` of each live Child SA.
    fn act(&self, ctx: &mut Context<'_>, cause: Cause) {
        let goes_on = ctx.names.with_peer(&self.local_id, &self.peer_id()).any(|other| other != self.basis.id);
        let mut again: Vec<ChildRequest> = Vec::new();
        for child in self.children.iter().filter(|child| child.is_live()) {
            let action = match cause {
                Cause::Here => continue,
                Cause::Peer => child.config.close_action,
                Cause::Dead => child.config.dpd_action,
            };
            match action {
                Action::Clear => (),
                Action::Trap => self.trap(ctx, &child.config),
                Action::Restart if (cause == Cause::Peer && goes_on) || !self.is_loaded(ctx) => (),
                // Several Child SAs of one section, one per pair of selectors, make one request.
                Action::Restart if again.iter().any(|other| other.config.name == child.config.name) => (),
                Action::Restart => {
                    let config = Arc::clone(&child.config);
                    again.push(ChildRequest { config, packet: None, cpu: None, command: None });
                }
            }
        }
        if !again.is_empty() {
            self.begin_again(ctx, again, None, None);
        }
    }

    /// Traps of Child SAs that end unexpectedly.
    pub(super) fn leave_traps(&self, ctx: &mut Context<'_>) {
        for child in self.children.iter().filter(|child| child.is_live()) {
            if [child.config.dpd_action, child.config.close_action].contains(&Action::Trap) {
                self.trap(ctx, &child.config);
            }
        }
    }

    fn is_loaded(&self, ctx: &Context<'_>) -> bool {
        ctx.connections.iter().any(|connection| connection.name == self.connection.name)
    }

    fn trap(&self, ctx: &mut Context<'_>, config: &Arc<ChildConfig>) {
        let loaded = ctx.connections.iter().find(|connection| connection.name == self.connection.name);
        let Some(connection) = loaded.cloned() else { return };
        if let Some(config) = connection.children.iter().find(|child| child.name == config.name).cloned() {
            ctx.out.push_back(Output::Trap(connection, config, true));
        }
    }

    /// Switches to the reloaded connection. Child SAs of removed sections end; those of changed
    /// ones end when they are to start again.
    pub(super) fn reloaded(&mut self, ctx: &mut Context<'_>, connection: &Arc<Connection>) {
        self.connection = Arc::clone(connection);
        let mut over = Vec::new();
        for child in self.children.iter_mut().filter(|child| child.is_live()) {
            match connection.children.iter().find(|config| config.name == child.config.name) {
                None => over.push((child.id, "it is not loaded any more")),
                Some(config) if crate::task::reload::same_negotiation(config, &child.config) => {
                    child.config = Arc::clone(config);
                }
                Some(config) if config.start_action.start => over.push((child.id, "its configuration changed")),
                Some(_) => (),
            }
        }
        for (id, reason) in over {
            self.delete_child(ctx, id, reason);
        }
    }
}

/// Lifetime that a peer requested, as far as this host follows it; zero is none.
pub(super) fn peer_lifetime(life: Duration) -> Option<Duration> {
    (!life.is_zero()).then(|| life.max(LIFE_MIN))
}

/// Time of a replacement within a lifetime that the peer requested, of an ISAKMP SA or a Child SA.
/// Both ends may have taken it from each other, so that the responder of its exchange leaves half
/// of the time before its end to the initiator.
pub(super) fn begin_within(life: Duration, initiator: bool) -> Duration {
    let before = (life / 20).max(BEFORE_END.min(life / 2));
    life - if initiator { before } else { before / 2 }
}

/// The end of a command.
pub(super) fn done(ctx: &mut Context<'_>, command: Option<u64>, result: Result<(), &str>) {
    if let Some(command) = command {
        ctx.event(Event::CommandDone(command, result.map_err(|why| CommandError::new(why.to_owned()))));
    }
}
