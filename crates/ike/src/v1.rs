//! IKEv1 (RFC 2407 to 2409): main and aggressive mode with shared keys or signatures, XAuth, Mode
//! Config, quick mode, NAT traversal (RFC 3947), dead peer detection (RFC 3706), for connections
//! with `version = 1`.
//!
//! The endpoint passes messages to one version by the major version in the header, before anything
//! else of a message is read, and no type of a state machine is shared: no IKEv2 message reaches
//! code of this module, and no IKEv1 message code of IKEv2. Shared are connections, identities,
//! proposals, credentials, selectors in use, SPIs, and the outputs.
//!
//! Life of an ISAKMP SA: [`initiator`] or [`responder`] (phase 1) turns into
//! [`established::Established`], which makes Child SAs by quick mode ([`quick`]). There is no
//! rekeying of an ISAKMP SA: another phase 1 makes a new one, which takes the name and the Child
//! SAs of the old one over.

mod check;
mod configuring;
pub(crate) mod counters;
mod established;
mod fault;
#[cfg(any(test, feature = "testkit"))]
mod forge;
mod fragment;
mod initiator;
mod message;
mod method;
mod nat;
mod phase1;
mod proposal;
mod protection;
mod quick;
mod responder;
mod selectors;
#[cfg(test)]
mod tests;
mod transaction;
mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use wire::ike::v1::NotifyType;
use wire::ike::{ExchangeType, Header};

pub use self::check::{Unsupported, unsupported};
use self::configuring::Configuring;
use self::established::{Cause, Ending, Established, done};
#[cfg(any(test, feature = "testkit"))]
pub use self::forge::{Forged, decode};
use self::fragment::Reassembly;
use self::initiator::Initiator;
use self::phase1::{Basis, Ended, Outcome, Rest, Up, clear_notification, send};
use self::quick::PairRequest;
use self::responder::{Refusal, Responder};
use crate::config::{AuthMethod, Connection, Fragmentation, Unique, Version};
use crate::context::Context;
use crate::endpoint::OTHER_VERSION;
use crate::endpoint::limit::Limit;
use crate::output::{
    ChildId, CommandError, CredentialResponse, Event, IkeId, IkeSpi, IkeSpis, Level, Path, RequestId, Subsystem,
};
use crate::sa::{ChildRequest, Initiation, Role};

/// Longest first message of main mode. A half-open ISAKMP SA is at most one such message, an answer
/// that is not longer and about 500 bytes.
const MESSAGE_1_MAX: usize = 3000;

/// Half-open ISAKMP SAs of aggressive mode, about 4 KiB each, or 20 KiB with long certificates.
const AGGRESSIVE_MAX: usize = 256;
/// Key exchanges for first messages of aggressive mode in one second, some milliseconds each: their
/// addresses are not proven.
const AGGRESSIVE_PER_S: u32 = 50;

/// The limit of [`AGGRESSIVE_PER_S`].
struct KeyExchangeLimit(Limit);

impl Default for KeyExchangeLimit {
    fn default() -> Self {
        Self(Limit::new(AGGRESSIVE_PER_S))
    }
}

impl KeyExchangeLimit {
    fn allows(&mut self, now: Instant) -> bool {
        self.0.allows(now)
    }
}

/// All ISAKMP SAs of a host.
#[derive(Default)]
pub(crate) struct Table {
    /// By the cookie of this host.
    sas: HashMap<IkeSpi, Slot>,
    by_id: HashMap<IkeId, IkeSpi>,
    /// Those of each connection that this host started or that came up.
    by_connection: HashMap<String, BTreeSet<IkeId>>,
    /// Half-open ones by the address and the cookie of their initiators.
    requests: HashMap<(SocketAddr, IkeSpi), IkeSpi>,
    /// Those of main mode without message 3, the oldest first.
    unproven: BTreeMap<u64, IkeSpi>,
    /// Those in aggressive mode, the oldest first.
    aggressive: BTreeMap<u64, IkeSpi>,
    /// Those of main mode after the key exchange, and those in XAuth or Mode Config, by address.
    proven: HashMap<IpAddr, usize>,
    /// Those in aggressive mode, by the address that message 1 claims.
    claimed: HashMap<IpAddr, usize>,
    next_half: u64,
    timers: BTreeSet<(Instant, IkeSpi)>,
    /// Attempts to repeat after a wait, one of each ISAKMP SA that failed since the endpoint took
    /// them.
    retries: Vec<Initiation>,
    /// Connections whose keys a responder needs, for requests that the endpoint limits.
    questions: Vec<Arc<Connection>>,
    replies: Limit,
    lines: Limit,
    /// Key exchanges of aggressive mode.
    exchanges: KeyExchangeLimit,
}

/// One ISAKMP SA in the table.
struct Slot {
    sa: Sa,
    due: Option<Instant>,
    began: Instant,
    half_open: Option<HalfOpen>,
    /// A message of the peer of which pieces have come; at most `reassembly_max` bytes.
    pieces: Option<Box<Reassembly>>,
}

/// An ISAKMP SA whose initiator has not authenticated itself.
struct HalfOpen {
    request: (SocketAddr, IkeSpi),
    number: u64,
    proof: AddressProof,
}

/// Evidence of the address of an initiator.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum AddressProof {
    /// Message 1 of main mode alone.
    Unproven,
    /// Message 3 has returned the cookie of this host, in aggressive mode with its authentication.
    Proven,
    /// Message 1 of aggressive mode: its key exchange cannot wait for evidence. A spoofed one must
    /// not use up the limit of main mode for that address.
    Claimed,
}

/// One ISAKMP SA.
enum Sa {
    Initiator(Box<Initiator>),
    Responder(Box<Responder>),
    /// Phase 1 is done, XAuth or Mode Config is not.
    Configuring(Box<Configuring>),
    Established(Box<Established>),
}

impl Sa {
    fn id(&self) -> IkeId {
        match self {
            Self::Initiator(initiator) => initiator.basis.id,
            Self::Responder(responder) => responder.id(),
            Self::Configuring(configuring) => configuring.up.sa.id(),
            Self::Established(sa) => sa.id(),
        }
    }

    fn role(&self) -> Role {
        match self {
            Self::Initiator(_) => Role::Initiator,
            Self::Responder(_) => Role::Responder,
            Self::Configuring(configuring) => configuring.role(),
            Self::Established(sa) => sa.role,
        }
    }

    fn cookies(&self) -> IkeSpis {
        match self {
            Self::Initiator(initiator) => initiator.basis.cookies,
            Self::Responder(responder) => responder.cookies(),
            Self::Configuring(configuring) => configuring.up.sa.basis.cookies,
            Self::Established(sa) => sa.basis.cookies,
        }
    }

    fn connection(&self) -> &Arc<Connection> {
        match self {
            Self::Initiator(initiator) => &initiator.initiation.connection,
            Self::Responder(responder) => responder.connection(),
            Self::Configuring(configuring) => configuring.connection(),
            Self::Established(sa) => &sa.connection,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Initiator(initiator) => initiator.deadline(),
            Self::Responder(responder) => Some(responder.deadline()),
            Self::Configuring(configuring) => configuring.deadline(),
            Self::Established(sa) => sa.deadline(),
        }
    }

    fn established(&self) -> Option<&Established> {
        match self {
            Self::Established(sa) => Some(sa),
            _ => None,
        }
    }
}

/// Messages, time and credentials.
impl Table {
    /// Takes a datagram of version 1. `id` is a name that no IKE SA has, needed for a first
    /// message.
    pub(crate) fn handle(&mut self, ctx: &mut Context<'_>, id: IkeId, path: &Path, header: &Header, datagram: &[u8]) {
        let cookies = IkeSpis::of(header);
        if cookies.responder.is_zero() && header.exchange != ExchangeType::INFORMATIONAL_V1 {
            return self.accept(ctx, id, path, header, datagram);
        }
        let of_role = |cookie: &IkeSpi, role| self.sas.get(cookie).is_some_and(|slot| slot.sa.role() == role);
        let own = if of_role(&cookies.responder, Role::Responder) {
            cookies.responder
        } else if of_role(&cookies.initiator, Role::Initiator) {
            cookies.initiator
        } else {
            return ctx.count(counters::UNKNOWN_COOKIE);
        };
        let Some(slot) = self.sas.get(&own) else { return };
        // The cookie of the responder is unknown to an initiator before message 2, which checks it.
        let fits = slot.sa.cookies() == cookies || matches!(slot.sa, Sa::Initiator(_));
        if !fits {
            return ctx.count(counters::UNKNOWN_COOKIE);
        }
        // Before the key exchange of message 3: the address is about to be proven, so that one host
        // cannot make this one compute for others.
        let unproven = slot.half_open.as_ref().is_some_and(|half_open| half_open.proof == AddressProof::Unproven);
        let of_address = self.proven.get(&path.remote.ip()).copied().unwrap_or_default();
        if unproven && (of_address >= ctx.settings.block_threshold || self.has_many_proven(ctx)) {
            return ctx.count(counters::BLOCKED);
        }
        if fragment::is_piece(header) {
            // Without a proof of the address nothing but one message is kept.
            return if unproven {
                ctx.count(counters::MAIN_INVALID)
            } else {
                self.take_piece(ctx, id, &own, path, datagram)
            };
        }
        self.step(ctx, &own, |sa, ctx| match sa {
            Sa::Initiator(initiator) => initiator.handle(ctx, path, header, datagram),
            Sa::Responder(responder) => responder.handle(ctx, path, header, datagram),
            Sa::Configuring(configuring) => configuring.handle(ctx, path, header, datagram),
            Sa::Established(sa) => {
                sa.handle(ctx, path, header, datagram);
                Outcome::Pending
            }
        });
    }

    /// A piece of a message. The whole message is taken as if it had come in one datagram.
    fn take_piece(&mut self, ctx: &mut Context<'_>, id: IkeId, own: &IkeSpi, path: &Path, datagram: &[u8]) {
        let Some(slot) = self.sas.get_mut(own) else { return };
        if slot.sa.connection().fragmentation == Fragmentation::No {
            return ctx.count(counters::FRAGMENT_REFUSED);
        }
        let whole = Reassembly::add(&mut slot.pieces, ctx.now, datagram, ctx.settings.reassembly_max);
        let Some(whole) = whole else { return };
        match Header::parse(&whole) {
            // Of this ISAKMP SA, and not a piece again.
            Ok((header, _)) if header.major() == 1 && !fragment::is_piece(header) && self.is_of(own, header) => {
                self.handle(ctx, id, path, header, &whole);
            }
            _ => ctx.count(counters::FRAGMENT_REFUSED),
        }
    }

    /// Returns whether a message has the cookies of an ISAKMP SA; that of a responder may be
    /// unknown.
    fn is_of(&self, own: &IkeSpi, header: &Header) -> bool {
        let cookies = IkeSpis::of(header);
        self.sas.get(own).is_some_and(|slot| {
            let known = slot.sa.cookies();
            cookies == known || (known.responder.is_zero() && cookies.initiator == known.initiator)
        })
    }

    /// The first message of an exchange of phase 1.
    fn accept(&mut self, ctx: &mut Context<'_>, id: IkeId, path: &Path, header: &Header, datagram: &[u8]) {
        let aggressive = header.exchange == ExchangeType::AGGRESSIVE;
        if !aggressive && header.exchange != ExchangeType::ID_PROT {
            return ctx.count(counters::REFUSED_EXCHANGE);
        }
        ctx.count(if aggressive { counters::AGGRESSIVE_RECEIVED } else { counters::MAIN_RECEIVED });
        let cookie_i = IkeSpi(header.spi_i);
        let fits = header.message_id.get() == 0
            && !cookie_i.is_zero()
            && datagram.len() <= MESSAGE_1_MAX
            // Not a reflected message of this host.
            && !self.sas.contains_key(&cookie_i);
        if !fits {
            return ctx.count(counters::MAIN_INVALID);
        }
        let request = (path.remote, cookie_i);
        if let Some(own) = self.requests.get(&request) {
            if let Some(Slot { sa: Sa::Responder(responder), .. }) = self.sas.get_mut(own)
                && responder.repeat_first(ctx, path, datagram)
            {
                return;
            }
            return ctx.count(counters::DUPLICATE);
        }
        let mut candidates = crate::handshake::candidates(ctx.connections, &ctx.names.hosts, path, Version::V1);
        // Their keys may have changed since the last message.
        self.questions.extend(candidates.iter().filter(|connection| !is_psk(connection)).cloned());
        if candidates.is_empty() {
            ctx.count(counters::NO_CONNECTION);
            let text = format!(
                "phase 1 of {} is not accepted: no connection with 'version = 1' is between these addresses",
                path.remote
            );
            return self.line(ctx, text);
        }
        if aggressive && let Err(refused) = permit_aggressive(ctx, &mut candidates) {
            ctx.count(counters::AGGRESSIVE_REFUSED);
            return self.line(ctx, format!("aggressive mode of {} is not accepted: {refused}", path.remote));
        }
        if self.sas.len() >= ctx.settings.ike_sas_max || (aggressive && !self.make_room(ctx, path)) {
            return ctx.count(counters::BLOCKED);
        }
        // The newest stay: an attacker without the cookie of this host cannot keep its entries, and
        // a peer needs its own for one round trip.
        while self.unproven.len() >= ctx.settings.half_open_max.max(1) {
            let Some((_, oldest)) = self.unproven.pop_first() else { break };
            ctx.count(counters::EVICTED);
            self.remove(ctx, &oldest);
        }
        let own = self.cookie(ctx);
        let cookies = IkeSpis::new(cookie_i, own);
        let basis = Basis { id, cookies, path: *path, fragments: false };
        let accepted = match aggressive {
            true => Responder::accept_all(ctx, basis, candidates, header, datagram),
            false => Responder::accept(ctx, basis, candidates, header, datagram),
        };
        match accepted {
            Ok(responder) => {
                let number = self.next_half;
                self.next_half += 1;
                let proof = if aggressive { AddressProof::Claimed } else { AddressProof::Unproven };
                match aggressive {
                    true => {
                        self.aggressive.insert(number, own);
                        *self.claimed.entry(path.remote.ip()).or_default() += 1;
                    }
                    false => {
                        self.unproven.insert(number, own);
                    }
                }
                self.requests.insert(request, own);
                self.by_id.insert(id, own);
                let half_open = Some(HalfOpen { request, number, proof });
                let sa = Sa::Responder(Box::new(responder));
                self.sas.insert(own, Slot { sa, due: None, began: ctx.now, half_open, pieces: None });
                self.set_timer(&own);
            }
            Err(Refusal::Silent) => ctx.count(counters::MAIN_INVALID),
            Err(Refusal::Notify(kind, reason)) => {
                let is_proposal = kind == NotifyType::NO_PROPOSAL_CHOSEN;
                ctx.count(if is_proposal { counters::NO_PROPOSAL } else { counters::NO_CONNECTION });
                let mode = if aggressive { "aggressive" } else { "main" };
                self.line(ctx, format!("{mode} mode of {} is not accepted: {reason}", path.remote));
                let message = clear_notification(ctx, cookies, kind);
                // Not longer than the request: its address is not proven.
                if message.len() <= datagram.len() && self.replies.allows(ctx.now) {
                    send(ctx, path, 0, message);
                }
            }
        }
    }

    /// Makes room for another half-open ISAKMP SA of aggressive mode: the answer is expensive and
    /// longer than the request; false when the address or all of them have had enough.
    fn make_room(&mut self, ctx: &mut Context<'_>, path: &Path) -> bool {
        let of = |counts: &HashMap<IpAddr, usize>| counts.get(&path.remote.ip()).copied().unwrap_or_default();
        // Those in XAuth count as well: with a group key, one address could hold all.
        let of_address = of(&self.claimed) + of(&self.proven);
        let blocked = of_address >= ctx.settings.block_threshold || self.has_many_proven(ctx);
        if blocked || !self.exchanges.allows(ctx.now) {
            return false;
        }
        while self.aggressive.len() >= AGGRESSIVE_MAX {
            let Some((_, oldest)) = self.aggressive.pop_first() else { break };
            ctx.count(counters::EVICTED);
            self.remove(ctx, &oldest);
        }
        true
    }

    /// Returns whether there are as many half-open ISAKMP SAs with proven addresses as permitted.
    fn has_many_proven(&self, ctx: &Context<'_>) -> bool {
        let of_all = self.requests.len().saturating_sub(self.unproven.len() + self.aggressive.len());
        of_all >= ctx.settings.half_open_max.max(1)
    }

    fn line(&mut self, ctx: &mut Context<'_>, text: String) {
        if self.lines.allows(ctx.now) {
            ctx.log(Level::Warn, Subsystem::Ike, None, text);
        }
    }

    /// A random cookie that no other ISAKMP SA of this host has.
    fn cookie(&self, ctx: &mut Context<'_>) -> IkeSpi {
        loop {
            let cookie = IkeSpi(ctx.rng.next_u64().to_be_bytes());
            if !cookie.is_zero() && !self.sas.contains_key(&cookie) {
                return cookie;
            }
        }
    }

    /// Processes expired timers.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context<'_>) {
        while let Some((due, own)) = self.timers.first().copied().filter(|(due, _)| *due <= ctx.now) {
            self.timers.remove(&(due, own));
            if let Some(slot) = self.sas.get_mut(&own) {
                slot.due = None;
            }
            self.step(ctx, &own, |sa, ctx| match sa {
                Sa::Initiator(initiator) => initiator.handle_timeout(ctx),
                Sa::Responder(responder) => responder.handle_timeout(ctx),
                Sa::Configuring(configuring) => configuring.handle_timeout(ctx),
                Sa::Established(sa) => {
                    sa.handle_timeout(ctx);
                    Outcome::Pending
                }
            });
            // A timer that expires again at once should be processed by the next call.
            if let Some(slot) = self.sas.get_mut(&own)
                && let Some(due) = slot.due.filter(|due| *due <= ctx.now)
            {
                self.timers.remove(&(due, own));
                let soon = ctx.now + Duration::from_millis(1);
                slot.due = Some(soon);
                self.timers.insert((soon, own));
            }
        }
    }

    /// Time of the next [`Table::handle_timeout`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Delivers a credential response.
    pub(crate) fn answer(
        &mut self,
        ctx: &mut Context<'_>,
        ike: IkeId,
        request: RequestId,
        response: CredentialResponse,
    ) {
        let Some(own) = self.by_id.get(&ike).copied() else { return };
        self.step(ctx, &own, |sa, ctx| match sa {
            Sa::Initiator(initiator) => initiator.answer(ctx, request, response),
            Sa::Responder(responder) => responder.answer(ctx, request, response),
            Sa::Configuring(configuring) => configuring.answer(ctx, request, response),
            Sa::Established(_) => Outcome::Pending,
        });
    }

    /// Runs one step of an ISAKMP SA and applies its outcome.
    fn step(&mut self, ctx: &mut Context<'_>, own: &IkeSpi, act: impl FnOnce(&mut Sa, &mut Context<'_>) -> Outcome) {
        let Some(slot) = self.sas.get_mut(own) else { return };
        match act(&mut slot.sa, ctx) {
            Outcome::Pending => (),
            Outcome::Ended(ended) => return self.ended(ctx, own, *ended),
            Outcome::Up(up) => self.up(ctx, own, *up),
            Outcome::Configured => self.configured(ctx, own),
        }
        self.note_proven(own);
        self.settle(ctx, own);
    }

    /// Message 3 has come: that of main mode returns the cookie of this host, and that of
    /// aggressive mode ends phase 1.
    fn note_proven(&mut self, own: &IkeSpi) {
        let Some(Slot { sa, half_open: Some(half_open), .. }) = self.sas.get_mut(own) else { return };
        let addr = half_open.request.0.ip();
        let is_proven = match sa {
            Sa::Responder(responder) => responder.is_proven() && half_open.proof == AddressProof::Unproven,
            Sa::Configuring(_) => half_open.proof != AddressProof::Proven,
            Sa::Initiator(_) | Sa::Established(_) => false,
        };
        if !is_proven {
            return;
        }
        if std::mem::replace(&mut half_open.proof, AddressProof::Proven) == AddressProof::Claimed {
            count_less(&mut self.claimed, addr);
        }
        self.unproven.remove(&half_open.number);
        self.aggressive.remove(&half_open.number);
        *self.proven.entry(addr).or_default() += 1;
    }

    fn forget_half_open(&mut self, half_open: &HalfOpen, own: &IkeSpi) {
        if self.requests.get(&half_open.request) == Some(own) {
            self.requests.remove(&half_open.request);
        }
        self.unproven.remove(&half_open.number);
        self.aggressive.remove(&half_open.number);
        let counts = match half_open.proof {
            AddressProof::Unproven => return,
            AddressProof::Proven => &mut self.proven,
            AddressProof::Claimed => &mut self.claimed,
        };
        count_less(counts, half_open.request.0.ip());
    }

    /// After a step of an authenticated ISAKMP SA: its end, Child SAs that belong to its successor,
    /// the timer.
    fn settle(&mut self, ctx: &mut Context<'_>, own: &IkeSpi) {
        self.pass_deletes(ctx, own);
        if let Some(Slot { sa: Sa::Established(sa), .. }) = self.sas.get(own) {
            let (deleted, leaves) = (sa.deleted, sa.deleted || sa.ending == Ending::Replaced);
            // A search among all ISAKMP SAs of the connection, which a busy server has many of.
            let heir = if leaves { self.heir(own, Ending::No) } else { None };
            // Where both ends started one, they may disagree about which replaces the other: after
            // a Delete of the one the other goes on.
            let role = sa.role;
            let revived = if deleted && heir.is_none() { self.heir(own, Ending::Replaced) } else { None };
            let revived = revived.filter(|other| self.sas.get(other).is_some_and(|slot| slot.sa.role() != role));
            if let Some(Slot { sa: Sa::Established(sa), .. }) = revived.and_then(|heir| self.sas.get_mut(&heir)) {
                sa.revive(ctx);
            }
            if let Some(heir) = heir.or(revived).filter(|_| leaves) {
                self.hand_over(ctx, own, &heir);
            }
        }
        if let Some(Slot { sa: Sa::Established(sa), .. }) = self.sas.get_mut(own) {
            if std::mem::take(&mut sa.deleted) {
                sa.end(ctx, "the peer deleted it", Cause::Peer);
            }
            if sa.ending == Ending::Ended {
                let unfinished = std::mem::take(&mut sa.unfinished);
                self.resume(ctx, own, unfinished);
                return self.remove(ctx, own);
            }
        }
        self.set_timer(own);
    }

    /// Another ISAKMP SA with the same peer and this ending, the newest.
    fn heir(&self, own: &IkeSpi, ending: Ending) -> Option<IkeSpi> {
        let sa = self.sas.get(own)?.sa.established()?;
        let others = self.spis_of(&sa.connection.name).into_iter().filter(|other| other != own);
        let established = others.filter_map(|other| Some((other, self.sas.get(&other)?.sa.established()?)));
        let same = established.filter(|(_, other)| other.ending == ending && is_same_peer(sa, other));
        same.max_by_key(|(_, other)| other.established).map(|(other, _)| other)
    }

    /// Moves Child SAs that are in use, and requests that wait.
    fn hand_over(&mut self, ctx: &mut Context<'_>, from: &IkeSpi, to: &IkeSpi) {
        let Some(successor) = self.sas.get(to).map(|slot| slot.sa.id()) else { return };
        let Some(Slot { sa: Sa::Established(sa), .. }) = self.sas.get_mut(from) else { return };
        let moved = sa.hand_over(successor);
        if let Some(Slot { sa: Sa::Established(sa), .. }) = self.sas.get_mut(to) {
            sa.adopt(ctx, moved);
        }
        self.set_timer(to);
    }

    /// While one phase 1 replaces another, Deletes of Child SAs may come under the keys of either.
    /// Those of unknown Child SAs are kept as long as message 2 of a quick mode is awaited.
    fn pass_deletes(&mut self, ctx: &mut Context<'_>, own: &IkeSpi) {
        let sa = match self.sas.get_mut(own).map(|slot| &mut slot.sa) {
            Some(Sa::Established(sa)) => sa,
            Some(Sa::Configuring(configuring)) => &mut configuring.up.sa,
            _ => return,
        };
        if sa.early_deletes.is_empty() {
            return;
        }
        let mut deletes = std::mem::take(&mut sa.early_deletes);
        let ((local, remote), awaits) = (sa.identities(), sa.own_active() > 0);
        let others = ctx.names.with_peer(&local, &remote).filter_map(|id| self.by_id.get(&id).copied());
        for other in others.collect::<Vec<IkeSpi>>() {
            let both = self.sas.get(own).zip(self.sas.get(&other)).map(|(sa, other)| (&sa.sa, &other.sa));
            let is_same = match both {
                Some((Sa::Established(sa), Sa::Established(other))) => is_same_peer(sa, other),
                Some((Sa::Configuring(sa), Sa::Established(other))) => is_same_peer(&sa.up.sa, other),
                _ => false,
            };
            // Each step of an ISAKMP SA passes its own Deletes: those here are taken out before.
            let has_any = match self.sas.get(&other).map(|slot| &slot.sa) {
                Some(Sa::Established(sa)) => deletes.iter().any(|delete| sa.has_outbound(*delete)),
                _ => false,
            };
            if other != *own && is_same && has_any {
                self.with(ctx, &other, |sa, ctx| {
                    let here: Vec<_> = deletes.extract_if(.., |delete| sa.has_outbound(*delete)).collect();
                    here.into_iter().for_each(|(protocol, spi)| sa.deleted_by_peer(ctx, protocol, spi));
                });
            }
        }
        let sa = match self.sas.get_mut(own).map(|slot| &mut slot.sa) {
            Some(Sa::Established(sa)) if awaits => sa,
            _ => return,
        };
        sa.early_deletes = deletes;
    }

    /// Requests of an ISAKMP SA that has ended continue with another one.
    fn resume(&mut self, ctx: &mut Context<'_>, own: &IkeSpi, requests: Vec<PairRequest>) {
        let heir = if requests.is_empty() { None } else { self.heir(own, Ending::No) };
        let sa = heir.and_then(|heir| self.sas.get_mut(&heir));
        let Some(Slot { sa: Sa::Established(sa), .. }) = sa else {
            return requests.into_iter().for_each(|request| request.abandon(ctx));
        };
        requests.into_iter().for_each(|request| sa.resume(ctx, request));
        heir.iter().for_each(|heir| self.set_timer(heir));
    }

    fn set_timer(&mut self, own: &IkeSpi) {
        let Some(slot) = self.sas.get_mut(own) else { return };
        let due = slot.sa.deadline();
        if slot.due == due {
            return;
        }
        if let Some(old) = slot.due {
            self.timers.remove(&(old, *own));
        }
        slot.due = due;
        if let Some(due) = due {
            self.timers.insert((due, *own));
        }
    }

    /// Phase 1 failed.
    fn ended(&mut self, ctx: &mut Context<'_>, own: &IkeSpi, ended: Ended) {
        let Some(slot) = self.sas.get(own) else { return };
        let (id, name) = (slot.sa.id(), slot.sa.connection().name.clone());
        let initiator = slot.sa.role() == Role::Initiator;
        let replaces = match &slot.sa {
            Sa::Initiator(initiator) => initiator.initiation.replaces,
            Sa::Configuring(configuring) => configuring.up.rest.replaces,
            _ => None,
        };
        if !ended.reason.is_empty() {
            ctx.count(crate::handshake::counters::IKE_FAILED);
            if initiator || self.lines.allows(ctx.now) {
                let level = if ended.again.is_some() { Level::Warn } else { Level::Error };
                let text = format!("the IKE SA of '{name}' did not come up: {}", ended.reason);
                ctx.log(level, Subsystem::Ike, Some(id), text);
            }
        }
        self.remove(ctx, own);
        let waiting = ended.commands.iter().copied().chain(ended.children.iter().filter_map(|child| child.command));
        for command in waiting {
            ctx.event(Event::CommandDone(command, Err(CommandError::new(ended.reason.clone()))));
        }
        let gave_up = ended.again.is_none();
        self.retries.extend(ended.again);
        if let Some(old) = replaces.filter(|_| gave_up).and_then(|old| self.by_id.get(&old).copied()) {
            self.with(ctx, &old, |sa, ctx| sa.replace_later(ctx));
        }
    }

    /// Takes an ISAKMP SA out of every table.
    fn remove(&mut self, ctx: &mut Context<'_>, own: &IkeSpi) {
        let Some(mut slot) = self.sas.remove(own) else { return };
        if let Some(due) = slot.due {
            self.timers.remove(&(due, *own));
        }
        if let Some(half_open) = &slot.half_open {
            self.forget_half_open(half_open, own);
        }
        match &mut slot.sa {
            Sa::Responder(responder) => responder.cancel(ctx),
            Sa::Configuring(configuring) => configuring.release(ctx),
            Sa::Initiator(_) | Sa::Established(_) => (),
        }
        let id = slot.sa.id();
        ctx.names.end_contact(id);
        if self.by_id.get(&id) == Some(own) {
            self.by_id.remove(&id);
        }
        let name = &slot.sa.connection().name;
        if let Some(ids) = self.by_connection.get_mut(name) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_connection.remove(name);
            }
        }
    }

    /// Phase 1 succeeded: XAuth and Mode Config follow where the connection has them.
    fn up(&mut self, ctx: &mut Context<'_>, own: &IkeSpi, up: Up) {
        if !configuring::is_needed(&up.sa.connection) {
            return self.complete(ctx, own, up);
        }
        let Some(slot) = self.sas.get_mut(own) else { return };
        let configuring = Configuring::begin(ctx, up);
        let is_over = configuring.is_over();
        slot.sa = Sa::Configuring(Box::new(configuring));
        match is_over {
            true => self.configured(ctx, own),
            false => self.set_timer(own),
        }
    }

    /// XAuth and Mode Config are done.
    fn configured(&mut self, ctx: &mut Context<'_>, own: &IkeSpi) {
        let Some(mut slot) = self.sas.remove(own) else { return };
        match slot.sa {
            Sa::Configuring(configuring) => {
                let up = configuring.into_up();
                slot.sa = Sa::Established(up.sa);
                self.sas.insert(*own, slot);
                self.came_up(ctx, own, up.rest);
            }
            sa => {
                slot.sa = sa;
                self.sas.insert(*own, slot);
            }
        }
    }

    /// The ISAKMP SA can be used.
    fn complete(&mut self, ctx: &mut Context<'_>, own: &IkeSpi, up: Up) {
        let Some(slot) = self.sas.get_mut(own) else { return };
        slot.sa = Sa::Established(up.sa);
        self.came_up(ctx, own, up.rest);
    }

    fn came_up(&mut self, ctx: &mut Context<'_>, own: &IkeSpi, rest: Rest) {
        let Rest { children, commands, replaces, initial_contact, .. } = rest;
        let Some(sa) = self.sas.get(own).and_then(|slot| slot.sa.established()) else { return };
        let (id, identities, connection) = (sa.id(), sa.identities(), Arc::clone(&sa.connection));
        let remote = sa.basis.path.remote;
        let text = format!(
            "phase 1 with {remote} is complete: [{}], {}, NAT here {}, there {}{}",
            sa.remote_id,
            sa.suite,
            sa.nat.0,
            sa.nat.1,
            if sa.features.dpd || connection.dpd_delay.is_zero() { "" } else { "; the peer has no DPD" }
        );
        ctx.log(Level::Info, Subsystem::Ike, Some(id), text);
        let others: Vec<IkeId> = ctx.names.with_peer(&identities.0, &identities.1).collect();
        ctx.names.peers.entry(identities).or_default().push(id);
        ctx.names.end_contact(id);
        let Some(slot) = self.sas.get_mut(own) else { return };
        if let Sa::Established(sa) = &slot.sa {
            sa.virtual_local.iter().for_each(|address| ctx.hold_address(id, address));
        }
        if let Some(half_open) = slot.half_open.take() {
            self.forget_half_open(&half_open, own);
        }
        self.by_connection.entry(connection.name.clone()).or_default().insert(id);
        ctx.count(crate::handshake::counters::IKE_UP);
        for command in commands {
            done(ctx, Some(command), Ok(()));
        }
        // The connection may have been loaded again meanwhile.
        let loaded = ctx.connections.iter().find(|one| one.name == connection.name).cloned();
        match loaded.filter(|one| !Arc::ptr_eq(one, &connection)) {
            Some(loaded) if loaded.version != Version::V1 => {
                let ended = |sa: &mut Established, ctx: &mut Context<'_>| sa.terminate(ctx, OTHER_VERSION);
                return self.with(ctx, own, ended).unwrap_or_default();
            }
            Some(loaded) => {
                self.with(ctx, own, |sa, ctx| sa.reloaded(ctx, &loaded));
            }
            None => (),
        }
        let others: Vec<IkeSpi> = others.iter().filter_map(|other| self.by_id.get(other).copied()).collect();
        let survivor = self.replace_others(ctx, own, &others, (replaces, initial_contact));
        self.with(ctx, &survivor, |sa, ctx| {
            for child in children {
                sa.request_child(ctx, child);
            }
        });
    }

    /// A new ISAKMP SA among others with the same peer; returns the one that goes on.
    fn replace_others(
        &mut self,
        ctx: &mut Context<'_>,
        own: &IkeSpi,
        others: &[IkeSpi],
        (replaces, initial_contact): (Option<IkeId>, bool),
    ) -> IkeSpi {
        let Some(slot) = self.sas.get(own) else { return *own };
        let (began, unique) = (slot.began, slot.sa.connection().unique);
        let mut is_new = true;
        for other in others {
            let both = self.sas.get(own).zip(self.sas.get(other));
            let Some((sa, old)) = both.and_then(|(sa, old)| sa.sa.established().zip(old.sa.established())) else {
                continue;
            };
            if old.ending != Ending::No {
                continue;
            }
            let same = sa.connection.name == old.connection.name && is_same_peer(sa, old);
            if initial_contact && unique != Unique::Never && old.established < began {
                self.forgotten(ctx, other, "the peer has forgotten it (INITIAL_CONTACT)");
            } else if same || replaces == Some(old.id()) {
                // Both ends started at the same time: the one with the greater cookie of its
                // initiator stays, at both ends.
                let crossed = old.confirmed.is_none_or(|at| at > began) && sa.role != old.role;
                if crossed && old.basis.cookies.initiator > sa.basis.cookies.initiator {
                    let here = sa.role == Role::Initiator;
                    self.with(ctx, own, |sa, ctx| sa.replaced(ctx, here));
                    return *other;
                }
                let here = sa.role == Role::Initiator || (crossed && old.role == Role::Initiator);
                self.take_over(ctx, own, other, here);
                is_new = false;
            } else if unique == Unique::Replace {
                self.with(ctx, other, |sa, ctx| {
                    sa.leave_traps(ctx);
                    sa.terminate(ctx, "a newer IKE SA with the same peer replaces it");
                });
            } else if unique == Unique::Keep {
                let reason = "there is an IKE SA with the peer, which 'unique = keep' keeps";
                self.with(ctx, own, |sa, ctx| sa.terminate(ctx, reason));
                return *other;
            }
        }
        if let Some(id) = self.sas.get(own).map(|slot| slot.sa.id()) {
            ctx.event(if is_new { Event::IkeUp(id) } else { Event::IkeRekeyed(id) });
            if !is_new {
                ctx.count(crate::task::counters::IKE_REKEYED);
            }
        }
        *own
    }

    /// The new ISAKMP SA takes name and Child SAs of the old one. `here`: this host deletes that.
    fn take_over(&mut self, ctx: &mut Context<'_>, own: &IkeSpi, old: &IkeSpi, here: bool) {
        let ids = self.sas.get(own).zip(self.sas.get(old)).map(|(new, old)| (new.sa.id(), old.sa.id()));
        let Some((new_id, old_id)) = ids else { return };
        // Listings and clients know the Child SAs under the name of the old one.
        for (spi, id) in [(own, old_id), (old, new_id)] {
            if let Some(Slot { sa: Sa::Established(sa), .. }) = self.sas.get_mut(spi) {
                sa.basis.id = id;
            }
            self.by_id.insert(id, *spi);
        }
        self.hand_over(ctx, old, own);
        self.with(ctx, old, |sa, ctx| sa.replaced(ctx, here));
    }

    /// Ends an ISAKMP SA that the peer does not have any more. What it protected stays protected.
    fn forgotten(&mut self, ctx: &mut Context<'_>, spi: &IkeSpi, reason: &str) {
        self.with(ctx, spi, |sa, ctx| {
            sa.leave_traps(ctx);
            sa.end(ctx, reason, Cause::Here);
        });
    }

    /// Runs a closure on an authenticated ISAKMP SA.
    fn with<T>(
        &mut self,
        ctx: &mut Context<'_>,
        own: &IkeSpi,
        act: impl FnOnce(&mut Established, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let Some(Slot { sa: Sa::Established(sa), .. }) = self.sas.get_mut(own) else { return None };
        let result = act(sa, ctx);
        self.settle(ctx, own);
        Some(result)
    }
}

/// Commands, events of the data plane.
impl Table {
    /// Number of ISAKMP SAs.
    pub(crate) fn len(&self) -> usize {
        self.sas.len()
    }

    /// Half-open ISAKMP SAs.
    pub(crate) fn half_open_len(&self) -> usize {
        self.requests.len()
    }

    /// Returns true for the name of an ISAKMP SA.
    pub(crate) fn has(&self, id: IkeId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Attempts to repeat after a wait.
    pub(crate) fn take_retries(&mut self) -> Vec<Initiation> {
        std::mem::take(&mut self.retries)
    }

    /// Connections to request keys for again.
    pub(crate) fn take_questions(&mut self) -> Vec<Arc<Connection>> {
        std::mem::take(&mut self.questions)
    }

    fn spis_of(&self, connection: &str) -> Vec<IkeSpi> {
        let ids = self.by_connection.get(connection).into_iter().flatten();
        ids.filter_map(|id| self.by_id.get(id).copied()).collect()
    }

    fn live(&self, connection: &str) -> Option<IkeSpi> {
        let spis = self.spis_of(connection).into_iter();
        let live = spis.filter_map(|own| Some((own, self.sas.get(&own)?.sa.established()?)));
        let live = live.filter(|(_, sa)| sa.ending == Ending::No);
        live.max_by_key(|(_, sa)| sa.established).map(|(own, _)| own)
    }

    /// Requests a Child SA, or just an ISAKMP SA, of one that is there or being negotiated. False
    /// when there is none.
    pub(crate) fn want(
        &mut self,
        ctx: &mut Context<'_>,
        connection: &str,
        child: Option<ChildRequest>,
        command: Option<u64>,
    ) -> bool {
        if let Some(own) = self.live(connection) {
            done(ctx, command, Ok(()));
            if let Some(child) = child {
                self.with(ctx, &own, |sa, ctx| sa.request_child(ctx, child));
            }
            return true;
        }
        self.spis_of(connection).iter().any(|own| match self.sas.get_mut(own) {
            Some(Slot { sa: Sa::Initiator(initiator), .. }) => initiator.initiation.want(child.clone(), command),
            Some(Slot { sa: Sa::Configuring(configuring), .. }) => configuring.want(child.clone(), command),
            _ => false,
        })
    }

    /// Gives the requests of an attempt to one with the same peer that is under way. False when
    /// there is none.
    pub(crate) fn join(&mut self, initiation: &Initiation) -> bool {
        let same = |other: &Initiation| {
            other.remote == initiation.remote
                && (initiation.replaces.is_none() || other.replaces == initiation.replaces)
        };
        self.spis_of(&initiation.connection.name).iter().any(|own| match self.sas.get_mut(own) {
            Some(Slot { sa: Sa::Initiator(initiator), .. }) if same(&initiator.initiation) => {
                initiation.children.iter().all(|child| initiator.initiation.want(Some(child.clone()), None))
                    && initiation.commands.iter().all(|command| initiator.initiation.want(None, Some(*command)))
            }
            _ => false,
        })
    }

    /// Starts main mode. The error has the reason, and the attempt.
    pub(crate) fn initiate(
        &mut self,
        ctx: &mut Context<'_>,
        id: IkeId,
        path: Path,
        initiation: Initiation,
    ) -> Result<(), Box<(String, Initiation)>> {
        let own = self.cookie(ctx);
        let name = initiation.connection.name.clone();
        let fragments = initiation.connection.fragmentation == Fragmentation::Force;
        let basis = Basis { id, cookies: IkeSpis::new(own, IkeSpi::ZERO), path, fragments };
        let initiator = Initiator::start(ctx, basis, initiation)?;
        let sa = Sa::Initiator(Box::new(initiator));
        self.sas.insert(own, Slot { sa, due: None, began: ctx.now, half_open: None, pieces: None });
        self.by_id.insert(id, own);
        self.by_connection.entry(name).or_default().insert(id);
        self.set_timer(&own);
        Ok(())
    }

    /// Returns whether a Child SA of a section is there.
    pub(crate) fn has_child(&self, connection: &str, request: &ChildRequest) -> bool {
        let children = self.spis_of(connection);
        children.iter().filter_map(|own| self.sas.get(own)?.sa.established()).any(|sa| {
            sa.children.iter().any(|child| {
                child.config.name == request.config.name
                    && crate::task::reload::same_negotiation(&child.config, &request.config)
            })
        })
    }

    /// ISAKMP SAs of a changed connection follow it.
    pub(crate) fn reloaded(&mut self, ctx: &mut Context<'_>, connection: &Arc<Connection>) {
        for own in self.spis_of(&connection.name) {
            self.with(ctx, &own, |sa, ctx| sa.reloaded(ctx, connection));
        }
    }

    /// Ends the ISAKMP SAs and attempts of a connection.
    pub(crate) fn end_connection(&mut self, ctx: &mut Context<'_>, connection: &str, reason: &str) {
        for own in self.spis_of(connection) {
            let ended = self.with(ctx, &own, |sa, ctx| {
                sa.leave_traps(ctx);
                sa.terminate(ctx, reason);
            });
            if ended.is_none() {
                self.cancel(ctx, &own, reason);
            }
        }
    }

    /// Ends a phase 1 without a word to the peer.
    fn cancel(&mut self, ctx: &mut Context<'_>, own: &IkeSpi, reason: &str) {
        self.step(ctx, own, |sa, ctx| match sa {
            Sa::Initiator(initiator) => initiator.cancel(ctx, reason),
            Sa::Responder(_) => Outcome::ended(""),
            Sa::Configuring(configuring) => configuring.cancel(ctx, reason),
            Sa::Established(_) => Outcome::Pending,
        });
    }

    /// Ends an ISAKMP SA with a Delete, which is not answered. False when there is none of that
    /// name.
    pub(crate) fn terminate(&mut self, ctx: &mut Context<'_>, id: IkeId, reason: &str, command: Option<u64>) -> bool {
        let Some(own) = self.by_id.get(&id).copied() else { return false };
        if self.with(ctx, &own, |sa, ctx| sa.terminate(ctx, "")).is_none() {
            self.cancel(ctx, &own, reason);
        }
        done(ctx, command, Ok(()));
        true
    }

    /// Replaces an ISAKMP SA by another phase 1. False when no authenticated one has that name.
    pub(crate) fn rekey(&mut self, ctx: &mut Context<'_>, id: IkeId, command: u64) -> bool {
        let Some(own) = self.by_id.get(&id).copied() else { return false };
        self.with(ctx, &own, |sa, ctx| sa.replace(ctx, Some(command))).is_some()
    }

    /// Runs a closure on the ISAKMP SA of a Child SA. `id` is its name when the Child SA came up.
    fn with_child<T>(
        &mut self,
        ctx: &mut Context<'_>,
        id: IkeId,
        child: ChildId,
        act: impl FnOnce(&mut Established, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let has = |own: &IkeSpi| {
            let sa = self.sas.get(own).and_then(|slot| slot.sa.established());
            sa.is_some_and(|sa| sa.children.iter().any(|one| one.id == child))
        };
        // A Child SA that came up while its ISAKMP SA was replaced has moved.
        let named = self.by_id.get(&id).copied().filter(has);
        let own = named.or_else(|| self.sas.keys().copied().find(has))?;
        self.with(ctx, &own, act)
    }

    /// As [`crate::Endpoint::terminate_child`].
    pub(crate) fn terminate_child(&mut self, ctx: &mut Context<'_>, id: IkeId, child: ChildId, command: u64) -> bool {
        self.with_child(ctx, id, child, |sa, ctx| sa.terminate_child(ctx, child, command)) == Some(true)
    }

    /// As [`crate::Endpoint::rekey_child`].
    pub(crate) fn rekey_child(&mut self, ctx: &mut Context<'_>, id: IkeId, child: ChildId, command: u64) -> bool {
        self.with_child(ctx, id, child, |sa, ctx| sa.rekey_child(ctx, child, Some(command))) == Some(true)
    }

    /// As [`crate::Endpoint::child_expired`].
    pub(crate) fn child_expired(&mut self, ctx: &mut Context<'_>, id: IkeId, child: ChildId, hard: bool) {
        self.with_child(ctx, id, child, |sa, ctx| sa.child_expired(ctx, child, hard));
    }

    /// As [`crate::Endpoint::traffic`].
    pub(crate) fn traffic(&mut self, ctx: &mut Context<'_>, id: IkeId, child: ChildId, from: Option<SocketAddr>) {
        self.with_child(ctx, id, child, |sa, ctx| sa.traffic(ctx, child, from));
    }

    /// Ends everything.
    pub(crate) fn shutdown(&mut self, ctx: &mut Context<'_>) {
        let mut ids: Vec<IkeId> = self.by_id.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.terminate(ctx, id, "weir is stopping", None);
        }
        self.retries.clear();
    }

    /// Number of entries of each table, for tests that check for leaks.
    #[cfg(any(test, feature = "testkit"))]
    pub(crate) fn tables(&self) -> [(&'static str, usize); 5] {
        [
            ("v1_sas", self.sas.len()),
            ("v1_by_id", self.by_id.len()),
            ("v1_by_connection", self.by_connection.len()),
            (
                "v1_half_open",
                self.requests.len()
                    + self.unproven.len()
                    + self.aggressive.len()
                    + self.proven.len()
                    + self.claimed.len(),
            ),
            ("v1_timers", self.timers.len()),
        ]
    }
}

/// Counts one less of an address.
fn count_less(counts: &mut HashMap<IpAddr, usize>, addr: IpAddr) {
    if let Some(count) = counts.get_mut(&addr) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&addr);
        }
    }
}

/// Leaves the connections that permit aggressive mode.
///
/// # Errors
/// There is none; the reason.
fn permit_aggressive(ctx: &Context<'_>, candidates: &mut Vec<Arc<Connection>>) -> Result<(), &'static str> {
    candidates.retain(|connection| connection.aggressive);
    if candidates.is_empty() {
        return Err("no connection between these addresses has 'aggressive = yes'");
    }
    candidates.retain(|connection| ctx.settings.aggressive_mode_psk || !is_psk(connection));
    if candidates.is_empty() {
        return Err("with a shared key it gives everybody a hash of the key; main mode does not, or set \
                    'aggressive_mode_psk = yes' in the section 'gateway'");
    }
    Ok(())
}

/// Returns whether phase 1 of a connection authenticates by shared keys.
fn is_psk(connection: &Connection) -> bool {
    connection.local.iter().chain(&connection.remote).any(|auth| auth.method == AuthMethod::Psk)
}

/// Returns whether both are with one host under the same identities. Hosts behind one NAT have one
/// address, and differ by the port, where one identity may have several hosts. Where it is of one
/// host, another port is a new mapping of its NAT.
fn is_same_peer(one: &Established, other: &Established) -> bool {
    let (here, there) = (one.basis.path.remote, other.basis.path.remote);
    let has_several = matches!(one.connection.unique, Unique::No | Unique::Never);
    let by_port = has_several && one.nat.1 && other.nat.1;
    let is_one_host = if by_port { here == there } else { here.ip() == there.ip() };
    is_one_host && one.identities() == other.identities()
}
