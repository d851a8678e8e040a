//! Quick mode (RFC 2409 §5.5): Child SAs, each for one pair of selectors.
//!
//! The responder installs the inbound half with message 2 and sends on the outbound one after
//! message 3, or after the first authentic packet when that was lost. A successor is another quick
//! mode with the same selectors; the newest one sends, and its initiator deletes the old one. Some
//! responders install nothing before message 3 (RFC 2409 §5.5 leaves that open), and an initiator
//! does not learn of its arrival: it sends on a successor after a packet of the peer, or a second.
//!
//! After a message with the commit bit (RFC 2408 §3.1) this host should not send on the SA before
//! the CONNECTED notification of the peer. The bit is not authenticated, so that it delays packets
//! for [`CONNECTED`] at most. This host never sets it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crypto::ike::{KeInitiator, Secret};
use wire::ike::v1::{DOI_IPSEC, Notification, NotifyType, parse_nat_oa};
use wire::ike::{Chain, ExchangeType, Header, PayloadType, ProtocolId};
use wire::{Spi, TrafficSelector};

use super::counters;
use super::established::{CHILDREN_MAX, Child, ChildState, Ending, Established, begin_within, done, peer_lifetime};
use super::fault::Fault;
use super::message::{Head, Parts, payloads, with_hash};
use super::phase1::{needed, nonce};
use super::proposal::{Phase2Choice, Phase2Terms, child_lifetime, protocol_of};
use super::protection::{Digest, Iv, digest, is_equal};
use super::selectors;
use crate::claims::{Conflict, NewChild};
use crate::config::{ChildConfig, ChildMode, Retransmit, TsConfig};
use crate::context::Context;
use crate::exchange::{Resend, Unanswered};
use crate::keymat::v1::QuickMode;
use crate::narrow;
use crate::output::{ChildId, ChildSa, Event, Level, Output, Path, SimplexSa, Subsystem};
use crate::proposal::ChildSuite;
use crate::sa::ChildRequest;
use crate::task::{counters as task_counters, jitter};

/// Quick modes of one ISAKMP SA that each end has under way, about 2 KiB each, or 8 KiB with a
/// large group.
const QUICK_MAX: usize = 16;
/// Time for which the last message of a finished quick mode is sent again.
const DONE: Duration = Duration::from_secs(60);
/// Time for message 3 to reach the peer, before packets go through a successor.
const MESSAGE_3: Duration = Duration::from_secs(1);
/// Time for the CONNECTED notification of a peer that set the commit bit.
const CONNECTED: Duration = Duration::from_secs(5);
/// Time between a successor's confirmation and the Delete of the old Child SA.
const DELETE_REKEYED: Duration = Duration::from_secs(5);
/// Pairs of selectors of one section: each is a quick mode.
pub(super) const PAIRS_MAX: usize = 64;

/// Selectors of this host and of the peer.
type Pair = (TrafficSelector, TrafficSelector);

/// Returns whether every packet of the pair `inner` is one of `outer`.
fn contains(outer: &Pair, inner: &Pair) -> bool {
    let is_inside = |outer, inner| narrow::check_subset(&[outer], &[inner]).is_ok();
    is_inside(outer.0, inner.0) && is_inside(outer.1, inner.1)
}

/// A quick mode.
pub(super) enum Quick {
    /// Message 1 waits for one of the others to end.
    Waiting(Box<PairRequest>),
    /// Message 1 was sent.
    Sent(Box<Sent>),
    /// Message 2 was sent.
    Answered(Box<Answered>),
    /// It is over. The last message of the peer, with the answer if it has one.
    Done { last: Digest, reply: Option<Vec<u8>>, until: Instant },
}

/// Request for a Child SA of one pair of selectors.
pub(super) struct PairRequest {
    config: Arc<ChildConfig>,
    local: TrafficSelector,
    remote: TrafficSelector,
    replaces: Option<ChildId>,
    command: Option<u64>,
    since: Instant,
}

/// Initiator.
pub(super) struct Sent {
    request: PairRequest,
    terms: Phase2Terms,
    id: ChildId,
    spi: Spi,
    nonce: Vec<u8>,
    pair: Option<KeInitiator>,
    iv: Iv,
    resend: Resend,
    /// Message 2 has the commit bit.
    commits: bool,
}

/// Responder.
pub(super) struct Answered {
    id: ChildId,
    nonce_i: Vec<u8>,
    nonce_r: Vec<u8>,
    iv: Iv,
    last: Digest,
    resend: Resend,
}

/// Nonces that the hash of a message covers: that of the initiator in message 2, and that of the
/// responder as well in message 3.
#[cfg(any(test, feature = "testkit"))]
type Nonces<'a> = Option<(&'a [u8], Option<&'a [u8]>)>;

impl Quick {
    /// Time of its next action.
    pub(super) fn due(&self) -> Instant {
        match self {
            Self::Waiting(request) => request.since + DONE,
            Self::Sent(sent) => sent.resend.due(),
            Self::Answered(answered) => answered.resend.due(),
            Self::Done { until, .. } => *until,
        }
    }

    /// IV of the message that it waits for, and the nonces that its hash covers.
    #[cfg(any(test, feature = "testkit"))]
    pub(super) fn expected(&self) -> Option<(&Iv, Nonces<'_>)> {
        match self {
            Self::Sent(sent) => Some((&sent.iv, Some((&sent.nonce, None)))),
            Self::Answered(answered) => Some((&answered.iv, Some((&answered.nonce_i, Some(&answered.nonce_r))))),
            Self::Waiting(_) | Self::Done { .. } => None,
        }
    }

    /// Message that the peer has not answered in time.
    pub(super) fn unanswered(&self, retransmit: &Retransmit) -> Option<Unanswered> {
        match self {
            Self::Sent(sent) => sent.resend.unanswered(retransmit),
            _ => None,
        }
    }

    /// Ends it with its ISAKMP SA; returns the request of this host.
    pub(super) fn into_request(self, ctx: &mut Context<'_>) -> Option<PairRequest> {
        match self {
            Self::Waiting(request) => Some(*request),
            Self::Sent(sent) => {
                ctx.names.free_spi(sent.spi);
                Some(sent.request)
            }
            // Its Child SA is one of the ISAKMP SA.
            Self::Answered(_) | Self::Done { .. } => None,
        }
    }
}

/// Everything about a Child SA but its keys.
struct Agreement {
    id: ChildId,
    config: Arc<ChildConfig>,
    suite: ChildSuite,
    spi_in: Spi,
    spi_out: Spi,
    local: TrafficSelector,
    remote: TrafficSelector,
    original: Option<(IpAddr, IpAddr)>,
    life: Option<Duration>,
    initiator: bool,
    /// The peer is going to send CONNECTED.
    commits: bool,
}

/// Nonces of the initiator and of the responder, and the shared secret with PFS.
struct Contributions<'a> {
    nonce_i: &'a [u8],
    nonce_r: &'a [u8],
    shared: Option<Secret>,
}

impl Established {
    fn terms(&self, config: &ChildConfig) -> Phase2Terms {
        let encap = self.basis.path.encap.then_some(self.features.nat_traversal).flatten();
        Phase2Terms::of(&config.proposals, config.mode, config.time.life, encap)
    }

    /// Pairs of selectors of a section, local and remote.
    fn pairs(&self, config: &ChildConfig) -> Vec<Pair> {
        let Path { local, remote, .. } = self.basis.path;
        let dynamic = |virtuals: Vec<IpAddr>, outer: IpAddr| if virtuals.is_empty() { vec![outer] } else { virtuals };
        let ours = dynamic(self.virtual_local.iter().map(|address| address.addr).collect(), local.ip());
        let theirs = dynamic(self.virtual_remote.iter().map(|leased| leased.addr).collect(), remote.ip());
        let side = |selectors: &[TsConfig], dynamic: &[IpAddr]| -> Vec<TrafficSelector> {
            let resolve = |ts: &TsConfig| match ts.addrs {
                Some(_) => vec![ts.resolve(dynamic[0])],
                None => dynamic.iter().map(|addr| ts.resolve(*addr)).collect(),
            };
            selectors.iter().flat_map(resolve).collect()
        };
        let (local_ts, remote_ts) = (side(&config.local_ts, &ours), side(&config.remote_ts, &theirs));
        let mut pairs = Vec::new();
        for ours in local_ts {
            let of_family = remote_ts.iter().copied().filter(|theirs| theirs.addrs.is_v6() == ours.addrs.is_v6());
            pairs.extend(
                of_family.map(|theirs| same_protocol(ours, theirs)).filter(|(ours, theirs)| ours.proto == theirs.proto),
            );
        }
        pairs.truncate(PAIRS_MAX);
        pairs
    }

    /// Requests the Child SAs of a section that are not there: all of them, or the one for a
    /// packet.
    pub(super) fn request_child(&mut self, ctx: &mut Context<'_>, request: ChildRequest) {
        let mut pairs = self.pairs(&request.config);
        if let Some((source, destination)) = &request.packet {
            let covers = |pair: &Pair| contains(pair, &(*source, *destination));
            if pairs.iter().any(covers) {
                pairs.retain(covers);
            }
        }
        if pairs.is_empty() {
            let reason = "no pair of its selectors has one address family and one protocol";
            ctx.count(task_counters::CHILD_FAILED);
            let text = format!("child '{}' did not come up: {reason}", request.config.name);
            ctx.log(Level::Error, Subsystem::Child, Some(self.id()), text);
            return done(ctx, request.command, Err(reason));
        }
        let name = &request.config.name;
        pairs.retain(|pair| !self.has_pair(name, pair));
        // The command waits for the last one.
        let Some(last) = pairs.pop() else { return done(ctx, request.command, Ok(())) };
        let config = &request.config;
        for (local, remote) in pairs {
            let config = Arc::clone(config);
            self.request_pair(
                ctx,
                PairRequest { config, local, remote, replaces: None, command: None, since: ctx.now },
            );
        }
        let (local, remote) = last;
        let (config, command) = (Arc::clone(config), request.command);
        self.request_pair(ctx, PairRequest { config, local, remote, replaces: None, command, since: ctx.now });
    }

    fn has_pair(&self, name: &str, pair: &Pair) -> bool {
        let live = |child: &&Child| child.is_live() && child.config.name == name;
        // A server with Unity narrows the offer of a client, and would do so again: a packet for
        // another destination has no Child SA.
        let within = |child: &Child| {
            self.features.unity
                && !self.virtual_local.is_empty()
                && child.initiator
                && contains(pair, &(child.local_ts, child.remote_ts))
        };
        self.children.iter().filter(live).any(|child| (child.local_ts, child.remote_ts) == *pair || within(child))
            || self.quick.values().any(|quick| match quick {
                Quick::Waiting(request) => request.is_for(name, pair),
                Quick::Sent(sent) => sent.request.is_for(name, pair),
                Quick::Answered(_) | Quick::Done { .. } => false,
            })
    }

    /// Negotiates a successor of a Child SA. False when there is none of that name.
    pub(super) fn rekey_child(&mut self, ctx: &mut Context<'_>, id: ChildId, command: Option<u64>) -> bool {
        let Some(child) = self.child(id) else { return false };
        if !child.is_live() {
            // It has a successor, or is about to be confirmed.
            done(ctx, command, Ok(()));
            return true;
        }
        child.state = ChildState::Rekeying;
        let (config, local, remote) = (Arc::clone(&child.config), child.local_ts, child.remote_ts);
        self.request_pair(ctx, PairRequest { config, local, remote, replaces: Some(id), command, since: ctx.now });
        true
    }

    /// Number of quick modes in a state.
    fn quick_modes(&self, is_it: impl Fn(&Quick) -> bool) -> usize {
        self.quick.values().filter(|quick| is_it(quick)).count()
    }

    /// Quick modes that this host started. Those of the peer have a limit of their own: otherwise
    /// each end would wait for the other.
    pub(super) fn own_active(&self) -> usize {
        self.quick_modes(|quick| matches!(quick, Quick::Sent(_)))
    }

    /// Makes room for a quick mode among those that are over.
    fn make_room(&mut self) {
        while self.quick_modes(|quick| matches!(quick, Quick::Done { .. })) >= 4 * QUICK_MAX {
            let over = self.quick.iter().filter(|(_, quick)| matches!(quick, Quick::Done { .. }));
            let Some(oldest) = over.min_by_key(|(_, quick)| quick.due()).map(|(id, _)| *id) else { return };
            self.quick.remove(&oldest);
        }
    }

    fn request_pair(&mut self, ctx: &mut Context<'_>, request: PairRequest) {
        self.make_room();
        let pending = self.quick_modes(|quick| matches!(quick, Quick::Waiting(_) | Quick::Sent(_)));
        if pending >= CHILDREN_MAX || self.children.len() >= CHILDREN_MAX {
            return self.failed(ctx, request, "too many Child SAs are there or wait");
        }
        let message_id = self.fresh_message_id(ctx);
        if self.own_active() >= QUICK_MAX {
            self.quick.insert(message_id, Quick::Waiting(Box::new(request)));
            return;
        }
        self.begin(ctx, message_id, request);
    }

    /// Sends message 1.
    fn begin(&mut self, ctx: &mut Context<'_>, message_id: u32, request: PairRequest) {
        let terms = self.terms(&request.config);
        if terms.is_empty() {
            return self.failed(ctx, request, "there is a NAT, which AH does not pass");
        }
        let pair = match terms.pfs.offered().map(|group| group.generate()).transpose() {
            Ok(pair) => pair,
            Err(fault) => return self.failed(ctx, request, &fault.to_string()),
        };
        let id = ctx.names.child();
        let old = request.replaces.and_then(|old| self.child(old)).map(|old| old.spi_in.get());
        let spi = ctx.child_spi(id, old);
        let nonce = nonce(ctx);
        let offer = terms.offer(&spi.to_be_bytes());
        let (first, rest) = payloads(|chain| {
            chain.raw(PayloadType::SA_V1, &offer).raw(PayloadType::NONCE_V1, &nonce);
            if let Some(pair) = &pair {
                chain.raw(PayloadType::KE_V1, pair.public());
            }
            chain.raw(PayloadType::ID_V1, &selectors::emit(&request.local));
            chain.raw(PayloadType::ID_V1, &selectors::emit(&request.remote));
            self.emit_original(chain, request.config.mode, true);
        });
        let mut iv = self.protection.iv(&self.iv_base, message_id);
        let message = self.protection.seal_hash_1(&mut iv, &self.quick_head(message_id), first, &rest);
        let resend = Resend::new(ctx.now, &self.connection.retransmit, vec![message.clone()]);
        self.basis.send(ctx, &self.connection, message);
        let sent = Sent { request, terms, id, spi, nonce, pair, iv, resend, commits: false };
        self.quick.insert(message_id, Quick::Sent(Box::new(sent)));
    }

    fn quick_head(&self, message_id: u32) -> Head {
        Head { cookies: self.basis.cookies, exchange: ExchangeType::QUICK_MODE, message_id }
    }

    /// NAT-OA payloads of transport mode: the addresses of the initiator and of the responder as
    /// this host has them (RFC 3947 §5.2).
    fn emit_original(&self, chain: &mut Chain<'_>, mode: ChildMode, initiator: bool) {
        let Path { local, remote, encap } = self.basis.path;
        if let Some(kind) = self.features.nat_traversal.filter(|_| encap && mode == ChildMode::Transport) {
            let (i, r) = if initiator { (local, remote) } else { (remote, local) };
            chain.nat_oa_v1(kind.nat_oa(), i.ip()).nat_oa_v1(kind.nat_oa(), r.ip());
        }
    }

    /// The addresses that the peer gives its packets, source and destination, where a NAT changes
    /// them.
    fn original(&self, parts: &Parts<'_>, mode: ChildMode, initiator: bool) -> Option<(IpAddr, IpAddr)> {
        let [i, r] = parts.nat_oa[..] else { return None };
        let (i, r) = (parse_nat_oa(i).ok()?, parse_nat_oa(r).ok()?);
        // The peer is the responder when this host is the initiator.
        let original = if initiator { (r, i) } else { (i, r) };
        (mode == ChildMode::Transport && self.basis.path.encap).then_some(original)
    }

    /// A datagram of quick mode.
    pub(super) fn handle_quick(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) {
        let message_id = header.message_id.get();
        if header.flags & Header::FLAG_V1_ENCRYPTION == 0 {
            return ctx.count(counters::NOT_AUTHENTIC);
        }
        match self.quick.remove(&message_id) {
            None => self.take_first(ctx, from, header, datagram),
            Some(Quick::Sent(sent)) => self.take_second(ctx, from, header, datagram, *sent),
            Some(Quick::Answered(answered)) => self.take_third(ctx, from, header, datagram, *answered),
            Some(Quick::Done { last, reply, until }) => {
                ctx.count(counters::DUPLICATE);
                if let Some(reply) = reply.as_ref().filter(|_| last == digest(datagram)) {
                    self.basis.send_to(ctx, from, &self.connection, reply.clone());
                }
                self.quick.insert(message_id, Quick::Done { last, reply, until });
            }
            Some(waiting @ Quick::Waiting(_)) => {
                self.quick.insert(message_id, waiting);
            }
        }
    }

    /// Message 1.
    fn take_first(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8]) {
        let message_id = header.message_id.get();
        let iv = self.protection.iv(&self.iv_base, message_id);
        let Ok((plain, iv)) = self.protection.open(&iv, &datagram[Header::LEN..]) else {
            return ctx.count(counters::NOT_AUTHENTIC);
        };
        let parts = match Parts::read(header.next, &plain) {
            Ok(parts) if self.protection.has_hash_1(message_id, &parts) => parts,
            _ => return ctx.count(counters::NOT_AUTHENTIC),
        };
        // Before the message ID counts as used, because the peer repeats the message.
        let of_peer = self.quick_modes(|quick| matches!(quick, Quick::Answered(_)));
        if of_peer >= QUICK_MAX || self.children.len() >= CHILDREN_MAX {
            return ctx.count(counters::QUICK_LIMITED);
        }
        if !self.is_fresh(ctx.now, message_id) {
            return ctx.count(counters::DUPLICATE);
        }
        self.authentic(ctx, from);
        self.make_room();
        if let Err(fault) = self.answer_first(ctx, message_id, &parts, iv, digest(datagram)) {
            ctx.count(task_counters::CHILD_REFUSED);
            let text = format!("quick mode of {} is refused: {fault}", from.remote);
            ctx.log(Level::Warn, Subsystem::Child, Some(self.id()), text);
            self.notify(ctx, fault.notify(), &[]);
        }
    }

    /// Sends message 2 and installs the inbound half.
    fn answer_first(
        &mut self,
        ctx: &mut Context<'_>,
        message_id: u32,
        parts: &Parts<'_>,
        iv: Iv,
        last: Digest,
    ) -> Result<(), Fault> {
        let (sa, nonce_i) = (needed(parts.sa, "SA")?, needed(parts.nonce, "NONCE")?);
        let offered = self.offered_selectors(parts)?;
        let (config, local, remote) = self.section_for(offered)?;
        let id = ctx.names.child();
        let old = self.predecessor(&config.name, (local, remote)).map(|(_, spi)| spi.get());
        let spi_in = ctx.child_spi(id, old);
        let choice = self.terms(&config).choose(sa, &spi_in.to_be_bytes());
        let made = choice.and_then(|choice| {
            let key = key_exchange(&choice, parts.ke)?;
            let networks = self.networks(&config, remote);
            self.refuse_conflict(ctx, &config, (local, &networks), false)?;
            Ok((choice, key))
        });
        let (choice, key) = match made {
            Ok(made) => made,
            Err(fault) => {
                ctx.names.free_spi(spi_in);
                return Err(fault);
            }
        };
        let Phase2Choice { suite, spi: spi_out, life, answer } = choice;
        let nonce_r = nonce(ctx);
        let mode = config.mode;
        let is_narrowed = mode == ChildMode::Tunnel && local != offered.0;
        let (public, shared) = key.unzip();
        let (first, rest) = payloads(|chain| {
            chain.raw(PayloadType::SA_V1, &answer).raw(PayloadType::NONCE_V1, &nonce_r);
            if let Some(public) = &public {
                chain.raw(PayloadType::KE_V1, public);
            }
            match is_narrowed {
                true => {
                    chain.raw(PayloadType::ID_V1, &selectors::emit(&remote));
                    chain.raw(PayloadType::ID_V1, &selectors::emit(&local));
                }
                // The same bytes.
                false => parts.ids.iter().for_each(|id| {
                    chain.raw(PayloadType::ID_V1, id);
                }),
            }
            self.emit_original(chain, mode, false);
            // The initiator does not learn otherwise that this host ends the SA early.
            let own = config.time.life;
            if !own.is_zero() && life.is_none_or(|life| life.is_zero() || own < life) {
                let data = child_lifetime(own);
                let (kind, spi) = (NotifyType::RESPONDER_LIFETIME, spi_in.to_be_bytes());
                let protocol = protocol_of(&suite);
                chain.notification_v1(&Notification { doi: DOI_IPSEC, protocol, spi: &spi, kind, data: &data });
            }
        });
        let hash = self.protection.keys.hash_2(self.prf, message_id, nonce_i, &rest);
        let body = with_hash(&hash, first, &rest);
        let mut iv = iv;
        let message = self.protection.seal(&mut iv, &self.quick_head(message_id), PayloadType::HASH_V1, &body);
        let original = self.original(parts, mode, false);
        let agreement = Agreement {
            id,
            config,
            suite,
            spi_in,
            spi_out,
            local,
            remote,
            original,
            life,
            initiator: false,
            commits: false,
        };
        let contributions = Contributions { nonce_i, nonce_r: &nonce_r, shared };
        self.install(ctx, agreement, &contributions);
        let resend = Resend::new(ctx.now, &self.connection.retransmit, vec![message.clone()]);
        self.basis.send(ctx, &self.connection, message);
        let answered = Answered { id, nonce_i: nonce_i.to_vec(), nonce_r, iv, last, resend };
        self.quick.insert(message_id, Quick::Answered(Box::new(answered)));
        Ok(())
    }

    /// Selectors of an offer: of this host and of the peer. Without ID payloads they are the hosts.
    fn offered_selectors(&self, parts: &Parts<'_>) -> Result<Pair, Fault> {
        let Path { local, remote, .. } = self.basis.path;
        let host = |addr: IpAddr| TrafficSelector::any(wire::AddrRange { start: addr, end: addr });
        match parts.ids[..] {
            [] => Ok((host(local.ip()), host(remote.ip()))),
            [i, r] => Ok((selectors::read(r)?, selectors::read(i)?)),
            _ => Err(Fault::violation("one ID payload")),
        }
    }

    /// The section for an offer: the one with these selectors, else the first that contains them. A
    /// client with Unity offers all addresses, whatever the attributes of the server are; its offer
    /// is narrowed to the first section for its virtual address.
    fn section_for(&self, offered: Pair) -> Result<(Arc<ChildConfig>, TrafficSelector, TrafficSelector), Fault> {
        let sections = self.connection.children.iter();
        let sections = sections.filter(|config| matches!(config.mode, ChildMode::Tunnel | ChildMode::Transport));
        let (mut within, mut narrowed) = (None, None);
        let narrows = self.features.unity && !self.virtual_remote.is_empty();
        for config in sections {
            let offered = self.without_nat(config.mode, offered);
            for (local, remote) in self.pairs(config) {
                if (local, remote) == offered {
                    return Ok((Arc::clone(config), local, remote));
                }
                if contains(&(local, remote), &offered) && within.is_none() {
                    within = Some((Arc::clone(config), offered.0, offered.1));
                }
                let is_wider = remote == offered.1 && narrow::check_subset(&[offered.0], &[local]).is_ok();
                if narrows && is_wider && config.mode == ChildMode::Tunnel && narrowed.is_none() {
                    narrowed = Some((Arc::clone(config), local, remote));
                }
            }
        }
        within.or(narrowed).ok_or_else(|| {
            let (local, remote) = offered;
            Fault::selectors(format!("no child of '{}' has {local} === {remote}", self.connection.name))
        })
    }

    /// In transport mode through a NAT the peer offers addresses that do not occur in packets here.
    fn without_nat(&self, mode: ChildMode, (local, remote): Pair) -> Pair {
        let path = self.basis.path;
        let at = |ts: TrafficSelector, addr: IpAddr, changed: bool| {
            let single = ts.addrs.start == ts.addrs.end;
            let addrs = wire::AddrRange { start: addr, end: addr };
            if changed && single && mode == ChildMode::Transport { TrafficSelector { addrs, ..ts } } else { ts }
        };
        (at(local, path.local.ip(), self.nat.0), at(remote, path.remote.ip(), self.nat.1))
    }

    /// Requests whose message 1 was not sent.
    pub(super) fn take_waiting(&mut self) -> Vec<PairRequest> {
        let waiting = self.quick.extract_if(.., |_, quick| matches!(quick, Quick::Waiting(_)));
        waiting
            .filter_map(|(_, quick)| if let Quick::Waiting(request) = quick { Some(*request) } else { None })
            .collect()
    }

    /// Continues a request of another ISAKMP SA with the peer.
    pub(super) fn resume(&mut self, ctx: &mut Context<'_>, request: PairRequest) {
        match request.replaces {
            Some(old) => {
                if !self.rekey_child(ctx, old, request.command) {
                    request.abandon(ctx);
                }
            }
            None if self.has_pair(&request.config.name, &request.pair()) => done(ctx, request.command, Ok(())),
            None => self.request_pair(ctx, PairRequest { since: ctx.now, ..request }),
        }
    }

    /// The Child SA that one with these selectors replaces, with its inbound SPI.
    fn predecessor(&self, name: &str, pair: Pair) -> Option<(ChildId, Spi)> {
        let moved = || self.moved.iter().rfind(|moved| moved.name == name && moved.pair == pair);
        let here = self.newest(name, pair).map(|old| (old.id, old.spi_in));
        here.or_else(|| moved().map(|moved| (moved.id, moved.spi_in)))
    }

    /// The newest live Child SA of a section with these selectors.
    fn newest(&self, name: &str, pair: Pair) -> Option<&Child> {
        let is_it =
            |child: &&Child| child.is_live() && child.config.name == name && (child.local_ts, child.remote_ts) == pair;
        self.children.iter().rfind(is_it)
    }

    /// Selectors of the peer's side that a Child SA is used for. A server with Unity accepts an
    /// offer of all addresses and lists its networks in Mode Config; a section outside of them
    /// keeps its own.
    fn networks(&self, config: &ChildConfig, remote: TrafficSelector) -> Vec<TrafficSelector> {
        let included = match config.mode {
            ChildMode::Tunnel => narrow::narrow(&self.split_include, &[remote]),
            _ => Vec::new(),
        };
        if included.is_empty() { vec![remote] } else { included }
    }

    fn refuse_conflict(
        &self,
        ctx: &mut Context<'_>,
        config: &ChildConfig,
        (local, remote): (TrafficSelector, &[TrafficSelector]),
        initiator: bool,
    ) -> Result<(), Fault> {
        let peer_id = self.peer_id();
        let peer = (&*self.connection, &peer_id);
        let new = NewChild::new(peer, config, (&[local], remote), initiator);
        match ctx.names.claims.conflict(&new) {
            Some(Conflict::Refused(text)) => Err(Fault::selectors(text)),
            Some(Conflict::TakesOver(text)) => {
                let text = format!("child '{}' takes over: {text}", config.name);
                ctx.log(Level::Warn, Subsystem::Child, Some(self.id()), text);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Message 2.
    fn take_second(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8], sent: Sent) {
        let message_id = header.message_id.get();
        let opened = self.protection.open(&sent.iv, &datagram[Header::LEN..]);
        let Ok((plain, iv)) = opened else {
            self.quick.insert(message_id, Quick::Sent(Box::new(sent)));
            return ctx.count(counters::NOT_AUTHENTIC);
        };
        let parts = Parts::read(header.next, &plain).ok().filter(|parts| {
            let hash = |rest| self.protection.keys.hash_2(self.prf, message_id, &sent.nonce, rest);
            parts.hashed.is_some_and(|rest| is_equal(parts.hash, &hash(rest)))
        });
        let Some(parts) = parts else {
            self.quick.insert(message_id, Quick::Sent(Box::new(sent)));
            return ctx.count(counters::NOT_AUTHENTIC);
        };
        self.authentic(ctx, from);
        let protocol = sent.terms.protocol();
        let sent = Sent { commits: header.flags & Header::FLAG_V1_COMMIT != 0, ..sent };
        match self.finish(ctx, message_id, &parts, sent, iv) {
            Ok(reply) => {
                self.basis.send(ctx, &self.connection, reply.clone());
                let until = ctx.now + DONE;
                self.quick.insert(message_id, Quick::Done { last: digest(datagram), reply: Some(reply), until });
                // A Delete may have overtaken message 2.
                for (protocol, spi) in std::mem::take(&mut self.early_deletes) {
                    self.deleted_by_peer(ctx, protocol, spi);
                }
            }
            Err((request, spi, fault)) => {
                ctx.names.free_spi(spi);
                // The peer has installed its inbound half.
                self.delete_spi(ctx, protocol, spi);
                self.failed(ctx, request, &fault.to_string());
            }
        }
        self.begin_waiting(ctx);
    }

    /// Installs both halves; returns message 3.
    #[allow(clippy::result_large_err)] // once for each Child SA
    fn finish(
        &mut self,
        ctx: &mut Context<'_>,
        message_id: u32,
        parts: &Parts<'_>,
        sent: Sent,
        mut iv: Iv,
    ) -> Result<Vec<u8>, (PairRequest, Spi, Fault)> {
        let Sent { request, terms, id, spi, nonce: nonce_i, pair, commits, .. } = sent;
        let checked = (|| {
            if let Some(kind) = parts.error() {
                return Err(Fault::proposal(format!("the peer answers {kind}")));
            }
            let nonce_r = needed(parts.nonce, "NONCE")?;
            let choice = terms.accept(needed(parts.sa, "SA")?)?;
            let shared = match pair {
                Some(pair) => Some(pair.finish(needed(parts.ke, "KE")?)?),
                None => None,
            };
            let (local, remote) = match parts.ids[..] {
                [i, r] => (selectors::read(i)?, selectors::read(r)?),
                _ => (request.local, request.remote),
            };
            let offered = ([request.local], [request.remote]);
            // In transport mode through a NAT the peer may answer with addresses of its side.
            let (local, remote) = match request.config.mode {
                ChildMode::Transport => (request.local, request.remote),
                _ => (local, remote),
            };
            let wider = |_| Fault::selectors("the peer answers with other selectors than were offered");
            narrow::check_subset(&offered.0, &[local]).map_err(wider)?;
            narrow::check_subset(&offered.1, &[remote]).map_err(wider)?;
            let networks = self.networks(&request.config, remote);
            self.refuse_conflict(ctx, &request.config, (local, &networks), true)?;
            Ok((nonce_r, choice, shared, local, remote))
        })();
        let (nonce_r, choice, shared, local, remote) = match checked {
            Ok(checked) => checked,
            Err(fault) => return Err((request, spi, fault)),
        };
        let original = self.original(parts, request.config.mode, true);
        let life = [choice.life, parts.responder_lifetime()].into_iter().flatten().min();
        let agreement = Agreement {
            id,
            config: request.config,
            suite: choice.suite,
            spi_in: spi,
            spi_out: choice.spi,
            local,
            remote,
            original,
            life,
            initiator: true,
            commits,
        };
        self.install(ctx, agreement, &Contributions { nonce_i: &nonce_i, nonce_r, shared });
        let hash = self.protection.keys.hash_3(self.prf, message_id, &nonce_i, nonce_r);
        let body = with_hash(&hash, PayloadType::NONE, &[]);
        match self.child(id).filter(|child| child.replaces.is_some()) {
            _ if commits => self.await_connected(ctx, id, message_id),
            Some(child) => child.confirm_at = Some(ctx.now + MESSAGE_3),
            None => self.confirm(ctx, id),
        }
        done(ctx, request.command, Ok(()));
        Ok(self.protection.seal(&mut iv, &self.quick_head(message_id), PayloadType::HASH_V1, &body))
    }

    /// Message 3.
    fn take_third(&mut self, ctx: &mut Context<'_>, from: &Path, header: &Header, datagram: &[u8], answered: Answered) {
        let message_id = header.message_id.get();
        if answered.last == digest(datagram) {
            ctx.count(counters::DUPLICATE);
            for message in answered.resend.datagrams() {
                self.basis.send_to(ctx, from, &self.connection, message.clone());
            }
            self.quick.insert(message_id, Quick::Answered(Box::new(answered)));
            return;
        }
        let hash = self.protection.keys.hash_3(self.prf, message_id, &answered.nonce_i, &answered.nonce_r);
        let opened = self.protection.open(&answered.iv, &datagram[Header::LEN..]);
        let good = opened
            .is_ok_and(|(plain, _)| Parts::read(header.next, &plain).is_ok_and(|parts| is_equal(parts.hash, &hash)));
        if !good {
            self.quick.insert(message_id, Quick::Answered(Box::new(answered)));
            return ctx.count(counters::NOT_AUTHENTIC);
        }
        self.authentic(ctx, from);
        match header.flags & Header::FLAG_V1_COMMIT != 0 {
            true => self.await_connected(ctx, answered.id, message_id),
            false => self.confirm(ctx, answered.id),
        }
        let until = ctx.now + DONE;
        self.quick.insert(message_id, Quick::Done { last: digest(datagram), reply: None, until });
        self.begin_waiting(ctx);
    }

    /// The peer set the commit bit in a quick mode: the Child SA is used after its CONNECTED
    /// notification, which has the same message ID (RFC 2408 §3.1), or without it after a while.
    fn await_connected(&mut self, ctx: &Context<'_>, id: ChildId, message_id: u32) {
        if let Some(child) = self.child(id) {
            (child.confirm_at, child.connected_by) = (Some(ctx.now + CONNECTED), Some(message_id));
        }
    }

    /// CONNECTED with the message ID of a quick mode; false where none waits for it.
    pub(super) fn connected(&mut self, ctx: &mut Context<'_>, message_id: u32) -> bool {
        let waits = |child: &&Child| child.connected_by == Some(message_id);
        let Some(id) = self.children.iter().find(waits).map(|child| child.id) else { return false };
        self.confirm(ctx, id);
        true
    }

    /// Traffic of the peer has replaced message 3, so that message 2 is not sent again.
    pub(super) fn finish_answered(&mut self, ctx: &mut Context<'_>, id: ChildId) {
        let until = ctx.now + DONE;
        for quick in self.quick.values_mut() {
            if let Quick::Answered(answered) = quick
                && answered.id == id
            {
                let reply = answered.resend.datagrams().first().cloned();
                *quick = Quick::Done { last: answered.last, reply, until };
            }
        }
        self.begin_waiting(ctx);
    }

    /// Derives the keys and hands them to the data plane. [`Established::confirm`] follows.
    fn install(&mut self, ctx: &mut Context<'_>, agreement: Agreement, contributions: &Contributions<'_>) {
        let Agreement { id, config, suite, spi_in, spi_out, local, remote, original, life, initiator, commits } =
            agreement;
        // Not negotiable: both ends are configured the same way.
        let suite = if config.sha256_96 { suite.truncated_to_96() } else { suite };
        let replaces = self.predecessor(&config.name, (local, remote)).map(|(id, _)| id);
        let half = |spi: Spi| {
            let enc_len = suite.enc.map_or(0, crypto::EncAlg::material_len);
            let integ_len = suite.integ.map_or(0, |integ| integ.key_len);
            let quick = QuickMode {
                shared: contributions.shared.as_deref().unwrap_or(&[]),
                protocol: protocol_of(&suite).0,
                spi: &spi.to_be_bytes(),
                nonce_i: contributions.nonce_i,
                nonce_r: contributions.nonce_r,
            };
            let all = self.protection.keys.quick_mode(self.prf, &quick, enc_len + integ_len);
            let (enc, integ) = all.split_at(enc_len);
            SimplexSa { spi, enc: Secret::from_slice(enc), integ: Secret::from_slice(integ) }
        };
        let mode = config.mode;
        let networks = self.networks(&config, remote);
        let shown: Vec<String> = networks.iter().map(TrafficSelector::to_string).collect();
        let shown = shown.join(" ");
        ctx.out.push_back(Output::Install(Box::new(ChildSa {
            id,
            ike: self.successor.unwrap_or(self.id()),
            connection: Arc::clone(&self.connection),
            config: Arc::clone(&config),
            remote_id: self.remote_id.clone(),
            peer_id: self.peer_id(),
            suite: suite.clone(),
            mode,
            peer_refuses_fragments: false,
            inbound: half(spi_in),
            outbound: half(spi_out),
            local_ts: vec![local],
            remote_ts: networks.clone(),
            path: self.basis.path,
            replaces,
            outbound_now: initiator && replaces.is_none() && !commits,
            initiator,
            cpu: None,
            peer_max_sub_sa_id: None,
            peer_max_crypt_offset: None,
            tfc: false,
            original,
        })));
        let text = format!(
            "child '{}' {{{}}}: {suite}, {mode:?} mode, SPIs {:08x} in and {:08x} out, {local} === {shown}",
            config.name,
            id.0,
            spi_in.get(),
            spi_out.get()
        );
        ctx.log(Level::Info, Subsystem::Child, Some(self.id()), text);
        let time = config.time;
        let soft = (!time.rekey.is_zero()).then(|| time.rekey.saturating_sub(jitter(ctx, time.rand)));
        let hard = (!time.life.is_zero()).then_some(time.life);
        // The shorter lifetime counts. One that the peer requests leaves time for a successor.
        let peer_life = life.and_then(peer_lifetime).filter(|life| hard.is_none_or(|hard| *life < hard));
        let soft = peer_life.map_or(soft, |life| Some(soft.unwrap_or(life).min(begin_within(life, initiator))));
        self.children.push(Child {
            id,
            suite,
            mode,
            spi_in,
            spi_out,
            local_ts: local,
            remote_ts: remote,
            networks,
            installed: ctx.now,
            rekey_at: soft.map(|after| ctx.now + after),
            expire_at: peer_life.or(hard).map(|after| ctx.now + after),
            delete_at: None,
            confirm_at: None,
            used: ctx.now,
            state: ChildState::Unconfirmed,
            replaces,
            initiator,
            confirmed: false,
            connected_by: None,
            config,
        });
    }

    /// The peer has the keys: the Child SA sends, and the one before it does not.
    pub(super) fn confirm(&mut self, ctx: &mut Context<'_>, id: ChildId) {
        let is_replaced = self.ending == Ending::Replaced;
        let Some(child) = self.child(id).filter(|child| child.state == ChildState::Unconfirmed) else { return };
        (child.confirm_at, child.connected_by) = (None, None);
        if is_replaced {
            // The other ISAKMP SA has the Child SA before it.
            child.confirmed = true;
            return;
        }
        child.state = ChildState::Installed;
        let (replaces, initiator) = (child.replaces.take(), child.initiator);
        ctx.out.push_back(Output::UseOutbound(id));
        self.resolve_collision(ctx, id, replaces);
        match replaces.and_then(|old| self.child(old)).filter(|old| old.is_live()) {
            Some(old) => {
                old.state = ChildState::Rekeyed;
                old.delete_at = initiator.then_some(ctx.now + DELETE_REKEYED);
                let old = old.id;
                ctx.count(task_counters::CHILD_REKEYED);
                ctx.event(Event::ChildRekeyed(old, id));
            }
            None => {
                ctx.count(task_counters::CHILD_UP);
                ctx.event(Event::ChildUp(id));
            }
        }
    }

    /// Both ends have negotiated a Child SA with the same selectors at once. The one with the lower
    /// SPIs goes, which is the same one at both ends; its initiator deletes it.
    fn resolve_collision(&mut self, ctx: &Context<'_>, id: ChildId, replaces: Option<ChildId>) {
        let Some(new) = self.child(id) else { return };
        let (name, pair) = (new.config.name.clone(), (new.local_ts, new.remote_ts));
        let is_rival = |child: &&Child| {
            let is_same = child.config.name == name && (child.local_ts, child.remote_ts) == pair;
            child.id != id && replaces != Some(child.id) && child.is_live() && is_same
        };
        let Some(rival) = self.children.iter().find(is_rival).map(|rival| rival.id) else { return };
        let rank = |child: &Child| (child.spi_in.max(child.spi_out), child.spi_in.min(child.spi_out));
        let both =
            [id, rival].map(|one| self.children.iter().find(|child| child.id == one).map(|child| (rank(child), one)));
        let Some((_, loser)) = both.into_iter().flatten().min() else { return };
        if let Some(loser) = self.child(loser) {
            loser.state = ChildState::Rekeyed;
            loser.delete_at = loser.initiator.then_some(ctx.now + DELETE_REKEYED);
        }
    }

    /// This host gets no Child SA.
    fn failed(&mut self, ctx: &mut Context<'_>, request: PairRequest, reason: &str) {
        ctx.count(task_counters::CHILD_FAILED);
        let text = format!("child '{}' did not come up: {reason}", request.config.name);
        ctx.log(Level::Error, Subsystem::Child, Some(self.id()), text);
        if let Some(old) = request.replaces.and_then(|old| self.child(old)).filter(|old| old.is_live()) {
            old.state = ChildState::Installed;
            old.rekey_at = old.retry_at(ctx.now);
        }
        done(ctx, request.command, Err(reason));
    }

    /// The peer refused a quick mode: the one with this SPI, or the only one.
    pub(super) fn refused(&mut self, ctx: &mut Context<'_>, kind: NotifyType, spi: &[u8]) {
        self.log(ctx, Level::Info, format!("the peer answers {kind}"));
        let sent = self.quick.iter().filter_map(|(id, quick)| match quick {
            Quick::Sent(sent) => Some((*id, sent.spi.to_be_bytes())),
            _ => None,
        });
        let sent: Vec<(u32, [u8; 4])> = sent.collect();
        let found = sent.iter().find(|(_, own)| own[..] == *spi).or(if sent.len() == 1 { sent.first() } else { None });
        let Some((message_id, _)) = found else { return };
        if let Some(Quick::Sent(sent)) = self.quick.remove(message_id) {
            ctx.names.free_spi(sent.spi);
            self.failed(ctx, sent.request, &format!("the peer answers {kind}"));
        }
        self.begin_waiting(ctx);
    }

    fn delete_spi(&mut self, ctx: &mut Context<'_>, protocol: ProtocolId, spi: Spi) {
        self.inform(ctx, |chain| {
            chain.delete_v1(DOI_IPSEC, protocol, &[&spi.to_be_bytes()]);
        });
    }

    fn is_unconfirmed(&self, id: ChildId) -> bool {
        self.children.iter().any(|child| child.id == id && child.state == ChildState::Unconfirmed)
    }

    /// Retransmissions, and the end of what is over.
    pub(super) fn check_quick(&mut self, ctx: &mut Context<'_>) {
        let due: Vec<u32> =
            self.quick.iter().filter(|(_, quick)| quick.due() <= ctx.now).map(|(message_id, _)| *message_id).collect();
        let retransmit = self.connection.retransmit;
        for message_id in due {
            let Some(mut quick) = self.quick.remove(&message_id) else { continue };
            let resend = match &mut quick {
                Quick::Done { .. } => continue,
                Quick::Waiting(_) => {
                    let Quick::Waiting(request) = quick else { continue };
                    self.failed(ctx, *request, "too many negotiations are under way");
                    continue;
                }
                Quick::Sent(sent) => &mut sent.resend,
                // The Child SA is confirmed, or the peer has deleted it.
                Quick::Answered(answered) if !self.is_unconfirmed(answered.id) => continue,
                Quick::Answered(answered) => &mut answered.resend,
            };
            if resend.again(ctx.now, &retransmit) {
                ctx.count(crate::handshake::counters::RETRANSMISSIONS);
                resend.log(ctx, self.basis.id, self.basis.path.remote, &retransmit);
                for message in resend.datagrams().to_vec() {
                    self.basis.send(ctx, &self.connection, message);
                }
                self.quick.insert(message_id, quick);
                continue;
            }
            match quick {
                Quick::Sent(sent) => {
                    ctx.names.free_spi(sent.spi);
                    self.failed(ctx, sent.request, "the peer does not answer");
                    return self.dead(ctx);
                }
                // The initiator never used it.
                Quick::Answered(answered) => self.delete_child(ctx, answered.id, ""),
                Quick::Waiting(_) | Quick::Done { .. } => (),
            }
        }
        self.begin_waiting(ctx);
    }

    /// Starts quick modes that waited.
    fn begin_waiting(&mut self, ctx: &mut Context<'_>) {
        while self.own_active() < QUICK_MAX {
            let mut waiting = self.quick.iter().filter_map(|(id, quick)| match quick {
                Quick::Waiting(request) => Some((request.since, *id)),
                _ => None,
            });
            let Some((_, message_id)) = waiting.by_ref().min() else { return };
            let Some(Quick::Waiting(request)) = self.quick.remove(&message_id) else { continue };
            // The peer may have negotiated it meanwhile.
            match request.replaces.is_none() && self.newest(&request.config.name, request.pair()).is_some() {
                true => done(ctx, request.command, Ok(())),
                false => self.begin(ctx, message_id, *request),
            }
        }
    }
}

impl PairRequest {
    fn pair(&self) -> Pair {
        (self.local, self.remote)
    }

    /// Ends it with its ISAKMP SA.
    pub(super) fn abandon(self, ctx: &mut Context<'_>) {
        done(ctx, self.command, Err("the IKE SA ended"));
    }

    fn is_for(&self, name: &str, pair: &Pair) -> bool {
        self.config.name == name && self.pair() == *pair
    }
}

/// One side may leave the protocol to the other; both ID payloads must have it.
fn same_protocol(mut local: TrafficSelector, mut remote: TrafficSelector) -> Pair {
    let proto = local.proto.or(remote.proto);
    if local.proto.is_none() {
        local.proto = proto;
    }
    if remote.proto.is_none() {
        remote.proto = proto;
    }
    (local, remote)
}

/// The responder's half of PFS.
fn key_exchange(choice: &Phase2Choice, ke: Option<&[u8]>) -> Result<Option<(Vec<u8>, Secret)>, Fault> {
    match (choice.suite.ke, ke) {
        (Some(group), Some(public)) => Ok(Some(group.respond(public)?)),
        (None, None) => Ok(None),
        (Some(_), None) => Err(Fault::violation("KE is missing")),
        (None, Some(_)) => Err(Fault::violation("KE without a group in the transform")),
    }
}
