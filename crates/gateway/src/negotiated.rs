//! Child SAs as packets see them: from what IKE negotiated to SAs, policies and traps.
//!
//! A [`Child`] is made when IKE says that it is up and stays until its inbound half has been given the
//! time to receive what is still under way. Children of one peer with the same selectors form a group: a policy
//! names the group, packets go out through its newest member. A peer is an authenticated identity of one connection.
//! Groups of two peers with the same selectors have a policy each, and the group that came later is first.

mod child;
mod dynamic;
mod order;
mod reqids;
mod totals;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crypto::KeyTable;
use dataplane::{Acquire, Ending, Spread};
use ike::config::{ChildConfig, ChildMode, Connection, PerCpuSas, PoolConfig};
use ike::output::{ChildId, IkeId};
use ipsec::{Action, InboundSa, OutboundSa, Policy, PolicyId, TRAP_PER_HOST};
use wire::{AddrRange, FlowKey, PortRange, Selector, TrafficSelector};

use child::GroupOf;
pub(crate) use child::{Child, Site};
pub(crate) use dynamic::Dynamic;
pub(crate) use ike::selectors::{narrowness, pairs};
use order::{Order, Rank, Row};
pub(crate) use reqids::Reqids;
pub(crate) use totals::{Sums, Totals, drops};

/// How long the first Child SA that a peer asked for waits for a sign that the peer has it: packets are held as long,
/// so this is the delay when the peer is silent.
const SIGN: Duration = Duration::from_millis(500);
/// The same beside another one, which carries the packets meanwhile: longer than a lost answer takes to come again.
const SIGN_BESIDE: Duration = Duration::from_secs(10);

/// Policies of connections: what was negotiated, and what stands where nothing is yet.
#[derive(Default)]
pub(crate) struct Negotiated {
    children: BTreeMap<ChildId, Child>,
    /// Counts groups.
    turns: u64,
    /// Those that the peer may not have yet.
    unproven: Vec<ChildId>,
    standing: Vec<Standing>,
    /// Virtual addresses of this host, by the connection that has them.
    virtual_addresses: Vec<(String, IpAddr)>,
    /// Pools from which peers get addresses.
    pools: Vec<PoolConfig>,
    callers: Callers,
    /// Traffic of each IKE SA.
    pub(crate) totals: Totals,
    /// Request ids of sections and peers.
    pub(crate) reqids: Reqids,
    /// What the key service of PSP agreed; its policies come before the others.
    pub(crate) psp: crate::psp_keys::associations::Associations,
}

/// A policy that stands for a section, whether or not there is an SA.
struct Standing {
    connection: Arc<Connection>,
    config: Arc<ChildConfig>,
    dynamic: Dynamic,
    selectors: Vec<Selector>,
    kind: StandingKind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum StandingKind {
    /// The first packet starts a negotiation.
    Trap,
    /// In the clear.
    Pass,
    /// Not at all: `mode = drop`, or there is to be an SA and there is none.
    Drop,
}

impl Standing {
    /// Whether the policy closes a section that is to have an SA.
    fn is_closed_for_its_sa(&self) -> bool {
        self.kind == StandingKind::Drop && self.config.mode != ChildMode::Drop
    }

    /// Whether nothing asked for an SA: the policy is there because of `unprotected = drop` only.
    fn only_closes(&self) -> bool {
        self.is_closed_for_its_sa() && !self.config.start_action.start
    }
}

impl Standing {
    fn line(&self) -> PolicyLine<'_> {
        let action = match self.kind {
            StandingKind::Trap => "trap",
            StandingKind::Pass => "bypass",
            StandingKind::Drop => "drop",
        };
        let (connection, config, selectors) = (&*self.connection, &*self.config, &*self.selectors);
        PolicyLine { connection, config, selectors, action, sa: None, transport: config.mode == ChildMode::Transport }
    }
}

/// A policy of a connection, for people.
pub(crate) struct PolicyLine<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) config: &'a ChildConfig,
    pub(crate) selectors: &'a [Selector],
    /// In a word.
    pub(crate) action: &'static str,
    /// Name of the Child SA that protects.
    pub(crate) sa: Option<&'a str>,
    /// In transport mode, as negotiated or, without an SA, as configured.
    pub(crate) transport: bool,
}

impl PolicyLine<'_> {
    fn protects(&self) -> bool {
        matches!(self.action, "protect" | "trap")
    }

    /// As packets' policies are called, which decides between equals.
    fn name(&self) -> Cow<'_, str> {
        self.sa.map_or_else(|| format!("{}.{}", self.connection.name, self.config.name).into(), Cow::Borrowed)
    }
}

/// A request for an SA, in the words of the configuration.
pub(crate) struct Wanted {
    pub(crate) connection: Arc<Connection>,
    pub(crate) config: Arc<ChildConfig>,
    /// The packet, local and remote.
    pub(crate) packet: (TrafficSelector, TrafficSelector),
    pub(crate) cpu: Option<u32>,
}

/// SAs and policies on their way into a snapshot.
#[derive(Default)]
pub(crate) struct Assembly {
    pub(crate) outbound: Vec<Arc<OutboundSa>>,
    pub(crate) inbound: Vec<Arc<InboundSa>>,
    /// By inbound slot.
    pub(crate) groups: Vec<u32>,
    pub(crate) spread: Vec<Spread>,
    pub(crate) unproven: Vec<dataplane::Unproven>,
    pub(crate) ending: Vec<Ending>,
    pub(crate) policies: Vec<Policy>,
}

impl Assembly {
    /// Adds an SA that receives; a group of its own unless one is named. Returns its slot.
    pub(crate) fn receive(&mut self, sa: &Arc<InboundSa>, group: Option<u32>) -> u32 {
        let slot = self.inbound.len() as u32;
        self.inbound.push(Arc::clone(sa));
        self.groups.push(group.unwrap_or(slot));
        slot
    }

    /// Adds an SA that sends. Returns its slot.
    pub(crate) fn send(&mut self, sa: &Arc<OutboundSa>) -> u32 {
        self.outbound.push(Arc::clone(sa));
        self.outbound.len() as u32 - 1
    }
}

/// Slot of a direction that an SA does not have: the last of the 31 bits that flow caches keep.
pub(crate) const NO_SLOT: u32 = u32::MAX >> 1;

impl Negotiated {
    /// Takes in a Child SA. One that replaces another is found by its selectors. `answered`: the peer asked for it,
    /// and has it only when it has the answer.
    pub(crate) fn install(&mut self, mut child: Child, answered: bool, now: Instant) {
        let group = self.children.values().find(|other| other.until.is_none() && other.is_redundant_with(&child));
        child.turn = match group {
            Some(other) => other.turn,
            None => {
                self.turns += 1;
                self.turns
            }
        };
        if answered && child.sends() {
            let beside = self.children.values().any(|other| other.sends() && other.is_redundant_with(&child));
            let until = now + if beside { SIGN_BESIDE } else { SIGN };
            child.unproven = Some(child::Unproven { until, ripe: Arc::new(AtomicBool::new(false)) });
            self.unproven.push(child.id);
        }
        self.totals.begin(child.ike);
        child.reqid = self.reqids.begin(&child.connection, &child.config, &child.remote_id);
        self.children.insert(child.id, child);
    }

    /// Ends a Child SA: nothing goes out through it any more, and until `until` it still receives. False when
    /// there is none of that name.
    pub(crate) fn end(&mut self, id: ChildId, until: Instant) -> bool {
        let Some(child) = self.children.get_mut(&id) else { return false };
        (child.sending, child.until) = (false, Some(until));
        // A trap behind it stands again.
        self.callers.forget(&child.connection, &child.config);
        // Who ends one of several has the others.
        let (group, selectors) = (child.group.clone(), child.selectors.clone());
        self.settle(|other| other.group == group && other.selectors == selectors);
        true
    }

    /// Uses the Child SAs of which the peer has given a sign, or has had the time to. True when packets have to be
    /// told: others were used meanwhile.
    pub(crate) fn prove(&mut self, now: Instant) -> bool {
        self.settle(|child| child.was_heard() || child.unproven.as_ref().is_none_or(|unproven| unproven.until <= now))
    }

    fn settle(&mut self, is_settled: impl Fn(&Child) -> bool) -> bool {
        let mut beside = false;
        for id in std::mem::take(&mut self.unproven) {
            let Some(child) = self.children.get_mut(&id) else { continue };
            if !is_settled(child) {
                self.unproven.push(id);
                continue;
            }
            child.prove();
            let child = &self.children[&id];
            beside |=
                self.children.values().any(|other| other.sends() && other.id != id && other.is_redundant_with(child));
        }
        beside
    }

    /// The Child SA of that name.
    pub(crate) fn child(&self, id: ChildId) -> Option<&Child> {
        self.children.get(&id)
    }

    /// Likewise, to be changed.
    pub(crate) fn child_mut(&mut self, id: ChildId) -> Option<&mut Child> {
        self.children.get_mut(&id)
    }

    /// All of them, in the order of their making.
    pub(crate) fn children(&self) -> impl Iterator<Item = &Child> {
        self.children.values()
    }

    /// Traffic of each IKE SA with a Child SA: of those that are gone, of those that only receive, and of the others.
    pub(crate) fn sums(&self) -> HashMap<IkeId, Sums> {
        let mut sums: HashMap<IkeId, Sums> = HashMap::new();
        for child in self.children.values() {
            sums.entry(child.ike).or_insert_with(|| self.totals.gone(child.ike)).add(child);
        }
        sums
    }

    /// All of them, to be changed.
    pub(crate) fn children_mut(&mut self) -> impl Iterator<Item = &mut Child> {
        self.children.values_mut()
    }

    /// Takes out what has received long enough after its end; the keys go with it.
    pub(crate) fn reap(&mut self, now: Instant, keys: &mut KeyTable) -> bool {
        let (before, totals, reqids) = (self.children.len(), &mut self.totals, &mut self.reqids);
        self.children.retain(|_, child| {
            let over = child.until.is_some_and(|until| until <= now);
            if over {
                child.forget(keys);
                totals.keep(child);
                reqids.end(&child.connection, &child.config, &child.remote_id);
            }
            !over
        });
        self.children.len() != before
    }

    /// Puts the policy of a section in place, or takes it away. False when there was nothing to do.
    pub(crate) fn stand(
        &mut self,
        connection: &Arc<Connection>,
        config: &Arc<ChildConfig>,
        on: bool,
        trap: bool,
        dynamic: Dynamic,
    ) -> bool {
        let same =
            |standing: &Standing| standing.connection.name == connection.name && standing.config.name == config.name;
        let before = self.standing.len();
        // A trap that goes leaves what closes the section in its place: both are of one change to the configuration.
        let stays = |standing: &Standing| !on && trap && standing.is_closed_for_its_sa();
        self.standing.retain(|standing| !same(standing) || stays(standing));
        let removed = self.standing.len() != before;
        if !on {
            return removed;
        }
        // Without selectors it waits for an address, see `stand_again`.
        let known = dynamic::of_connection(&self.virtual_addresses, &connection.name);
        let pools = dynamic::of_pools(&self.pools, connection);
        let given = dynamic::Given { own: &known, pools: &pools };
        let selectors = dynamic::resolve(connection, config, given, dynamic).unwrap_or_default();
        let changed = removed || !selectors.is_empty();
        let kind = match config.mode {
            ChildMode::Pass => StandingKind::Pass,
            ChildMode::Drop => StandingKind::Drop,
            _ if trap => StandingKind::Trap,
            _ => StandingKind::Drop,
        };
        if kind == StandingKind::Trap {
            self.reqids.of_policy(connection, config);
        }
        let (connection, config) = (Arc::clone(connection), Arc::clone(config));
        self.standing.push(Standing { connection, config, dynamic, selectors, kind });
        changed
    }

    /// Selectors of the policy that stands for a section, unless it lets packets pass; true in transport mode.
    pub(crate) fn closes(&self, connection: &Connection, config: &ChildConfig) -> Option<(&[Selector], bool)> {
        // The newest are last.
        let of_section =
            |standing: &&Standing| standing.connection.name == connection.name && standing.config.name == config.name;
        let standing = self.standing.iter().rev().find(of_section)?;
        let closes = standing.kind != StandingKind::Pass;
        closes.then_some((&*standing.selectors, standing.config.mode == ChildMode::Transport))
    }

    /// How many policies stand without an SA.
    pub(crate) fn standing_count(&self) -> usize {
        self.standing.len()
    }

    /// Whether one of them lets packets pass.
    pub(crate) fn passes(&self) -> bool {
        self.standing.iter().any(|standing| standing.kind == StandingKind::Pass)
    }

    /// Traps, and sections with `mode = pass` or `drop`, with their selectors. Policies that only keep a section without
    /// an SA closed are not listed: strongSwan has none.
    pub(crate) fn standing(&self) -> impl Iterator<Item = (&Arc<Connection>, &Arc<ChildConfig>, &[Selector])> {
        let is_listed = |standing: &&Standing| {
            standing.kind == StandingKind::Trap || matches!(standing.config.mode, ChildMode::Pass | ChildMode::Drop)
        };
        let there = self.standing.iter().filter(|standing| !standing.selectors.is_empty());
        there.filter(is_listed).map(|s| (&s.connection, &s.config, s.selectors.as_slice()))
    }

    /// Policies for people, in the order in which packets meet them.
    pub(crate) fn policies(&self) -> Vec<PolicyLine<'_>> {
        let mut rows: Vec<(Rank, Reverse<u64>, PolicyLine<'_>)> = Vec::new();
        for child in self.children.values().filter(|child| child.until.is_none()) {
            let rank = Rank::new(&child.config, &child.selectors, Order::Sa);
            let (connection, config, selectors) = (&*child.connection, &*child.config, &*child.selectors);
            let sa = Some(&*child.inbound.common.name);
            let transport = child.inbound.common.mode == ipsec::Mode::Transport;
            let line = PolicyLine { connection, config, selectors, action: "protect", sa, transport };
            rows.push((rank, Reverse(child.turn), line));
        }
        let (closed, standing) = by_purpose(&self.standing);
        let of_standing = |standing: &Standing| Rank::new(&standing.config, &standing.selectors, Order::Standing);
        rows.extend(standing.iter().map(|standing| (of_standing(standing), Reverse(0), standing.line())));
        let in_order = |(a, s, p): &(Rank, Reverse<u64>, PolicyLine<'_>),
                        (b, t, q): &(Rank, Reverse<u64>, PolicyLine<'_>)| {
            (a, s).cmp(&(b, t)).then_with(|| p.name().cmp(&q.name()))
        };
        rows.sort_by(in_order);
        let others: Vec<Row<'_>> = rows
            .iter()
            .map(|(rank, _, line)| Row { rank: *rank, protects: line.protects(), selectors: line.selectors })
            .collect();
        let closed: Vec<_> = ranks_of_closed(&self.children, &closed, &others)
            .zip(&closed)
            .map(|(rank, standing)| (rank, Reverse(0), standing.line()))
            .collect();
        rows.extend(closed);
        rows.sort_by(in_order);
        rows.into_iter().map(|(.., line)| line).collect()
    }

    /// What a packet that met a trap asks for.
    pub(crate) fn wanted(&self, acquire: &Acquire) -> Option<Wanted> {
        let caller = self.callers.by_number.get(&acquire.trap)?;
        Some(Wanted {
            connection: Arc::clone(&caller.connection),
            config: Arc::clone(&caller.config),
            packet: of_packet(&acquire.key),
            cpu: acquire.core,
        })
    }

    /// Lays SAs and policies behind those that are there.
    pub(crate) fn assemble(&mut self, workers: usize, into: &mut Assembly) {
        self.psp.assemble(into);
        let callers = &mut self.callers;
        callers.round += 1;
        let mut rows: Vec<(Rank, Reverse<u64>, Policy)> = Vec::new();
        let mut ending: Vec<(Rank, &Child)> = Vec::new();
        let mut groups: HashMap<(&GroupOf, &[Selector]), Vec<&Child>> = HashMap::new();
        for child in self.children.values() {
            groups.entry((&child.group, &child.selectors)).or_default().push(child);
        }
        for ((_, selectors), members) in groups {
            let rank = |child: &Child| Rank::new(&child.config, selectors, Order::Sa);
            let alive = members.iter().filter(|child| child.until.is_none());
            let Some(newest) = alive.max_by_key(|child| child.id) else {
                // What only receives what is still under way stands in nobody's way.
                ending.extend(members.iter().map(|child| (rank(child), *child)));
                continue;
            };
            let inbound = group(&members, into);
            let outbound = slots(&members, workers, callers, into);
            let action = Action::Protect { outbound, inbound };
            let name = newest.inbound.common.name.clone();
            let policy = Policy { name, selectors: selectors.to_vec(), action };
            rows.push((rank(newest), Reverse(newest.turn), policy));
        }
        let (closed, standing) = by_purpose(&self.standing);
        for standing in standing {
            let action = match standing.kind {
                StandingKind::Pass => Action::Bypass,
                StandingKind::Drop => Action::Drop,
                StandingKind::Trap => Action::Trap(callers.number(&standing.connection, &standing.config)),
            };
            let name = format!("{}.{}", standing.connection.name, standing.config.name).into();
            let rank = Rank::new(&standing.config, &standing.selectors, Order::Standing);
            rows.push((rank, Reverse(0), Policy { name, selectors: standing.selectors.clone(), action }));
        }
        let in_order = |(a, s, p): &(Rank, Reverse<u64>, Policy), (b, t, q): &(Rank, Reverse<u64>, Policy)| {
            (a, s, &p.name).cmp(&(b, t, &q.name))
        };
        rows.sort_by(in_order);
        let protects = |policy: &Policy| matches!(policy.action, Action::Protect { .. } | Action::Trap(_));
        let others: Vec<Row<'_>> = rows
            .iter()
            .map(|(rank, _, policy)| Row { rank: *rank, protects: protects(policy), selectors: &policy.selectors })
            .collect();
        let row = |(rank, standing): (Rank, &&Standing)| {
            let name = format!("{}.{}", standing.connection.name, standing.config.name).into();
            (rank, Reverse(0), Policy { name, selectors: standing.selectors.clone(), action: Action::Drop })
        };
        let closed: Vec<_> = ranks_of_closed(&self.children, &closed, &others).zip(&closed).map(row).collect();
        rows.extend(closed);
        rows.sort_by(in_order);
        let first = into.policies.len();
        for (rank, child) in ending {
            let place = PolicyId((first + rows.partition_point(|(other, ..)| *other < rank)) as u32);
            let slot = into.receive(&child.inbound, None);
            into.ending.push(Ending { slot, place, selectors: child.selectors.clone() });
        }
        into.policies.extend(rows.into_iter().map(|(.., policy)| policy));
        into.spread.sort_by_key(|spread| spread.slot);
        into.unproven.sort_by_key(|unproven| unproven.slot);
        callers.forget_unused();
    }
}

/// Standing policies with selectors: those that only close a section without an SA, and the others.
fn by_purpose(standing: &[Standing]) -> (Vec<&Standing>, Vec<&Standing>) {
    standing.iter().filter(|standing| !standing.selectors.is_empty()).partition(|standing| standing.only_closes())
}

/// Ranks of policies that only close a section, among `others`, which are in order.
fn ranks_of_closed<'a>(
    children: &'a BTreeMap<ChildId, Child>,
    closed: &'a [&Standing],
    others: &'a [Row<'_>],
) -> impl Iterator<Item = Rank> + 'a {
    let protected: HashSet<&[Selector]> = children.values().map(|child| &*child.selectors).collect();
    closed.iter().map(move |standing| {
        let own = Rank::new(&standing.config, &standing.selectors, Order::Closed);
        // Its own SA comes right before it.
        let shadowed = protected.contains(&*standing.selectors);
        if shadowed { own } else { own.after_protection(&standing.selectors, others) }
    })
}

/// Who is asked for an SA when a packet meets the trap of a number. A section keeps its number while its trap
/// stands, and gets another one after it had an SA: packets ask again then, however lately they did.
#[derive(Default)]
struct Callers {
    by_number: BTreeMap<u32, Caller>,
    by_name: HashMap<(String, String), u32>,
    next: u32,
    /// Counts assemblies.
    round: u64,
}

struct Caller {
    connection: Arc<Connection>,
    config: Arc<ChildConfig>,
    /// The last assembly that names it.
    round: u64,
}

impl Callers {
    fn number(&mut self, connection: &Arc<Connection>, config: &Arc<ChildConfig>) -> u32 {
        let name = (connection.name.clone(), config.name.clone());
        let number = *self.by_name.entry(name).or_insert_with(|| {
            self.next = self.next.wrapping_add(1) & !TRAP_PER_HOST;
            self.next | if connection.peer_is_destination(config) { TRAP_PER_HOST } else { 0 }
        });
        let (connection, config) = (Arc::clone(connection), Arc::clone(config));
        self.by_number.insert(number, Caller { connection, config, round: self.round });
        number
    }

    /// The section gets another number when it is named again.
    fn forget(&mut self, connection: &Connection, config: &ChildConfig) {
        if let Some(number) = self.by_name.remove(&(connection.name.clone(), config.name.clone())) {
            self.by_number.remove(&number);
        }
    }

    fn forget_unused(&mut self) {
        let round = self.round;
        self.by_number.retain(|_, caller| caller.round == round);
        let by_number = &self.by_number;
        self.by_name.retain(|_, number| by_number.contains_key(number));
    }
}

/// Adds the receiving halves of interchangeable SAs and returns the name of their group.
fn group(members: &[&Child], into: &mut Assembly) -> u32 {
    let mut name = None;
    for child in members {
        let slot = into.receive(&child.inbound, name);
        name.get_or_insert(slot);
    }
    name.unwrap_or(NO_SLOT)
}

/// Adds the sending halves of interchangeable SAs and returns the slot that policies name. Those that the peer may
/// not have yet are used only where there is no other.
fn slots(members: &[&Child], workers: usize, callers: &mut Callers, into: &mut Assembly) -> u32 {
    let sending: Vec<&Child> = members.iter().copied().filter(|child| child.sends()).collect();
    let proven = sending.iter().any(|child| child.unproven.is_none());
    let is_usable = |child: &Child| !proven || child.unproven.is_none();
    let usable = sending.iter().copied().filter(|child| is_usable(child));
    let Some(fallback) = usable.max_by_key(|child| (child.cpu.is_none(), child.id)) else { return NO_SLOT };
    let slot = send(fallback, callers, into);
    let several = sending.iter().any(|child| child.cpu.is_some());
    // Sub SAs do for every packet thread what SAs per CPU would (EESP §4.5).
    let served = fallback.outbound.lanes.len() > 1 && fallback.outbound.lanes.len() >= workers;
    if (several || fallback.config.per_cpu_sas != PerCpuSas::No) && !served {
        let mut by_core = vec![None; workers];
        // In the order of their names: of several for one CPU the newest is used.
        for child in &sending {
            if let Some(place) = child.cpu.and_then(|cpu| by_core.get_mut(cpu as usize)) {
                // There is one already, so none is asked for.
                *place = Some(if is_usable(child) { send(child, callers, into) } else { place.unwrap_or(slot) });
            }
        }
        let trap = callers.number(&fallback.connection, &fallback.config);
        into.spread.push(Spread { slot, by_core, trap });
    }
    slot
}

/// Adds a sending half; its packets are held while the peer may not have it.
fn send(child: &Child, callers: &mut Callers, into: &mut Assembly) -> u32 {
    let slot = into.send(&child.outbound);
    if let Some(unproven) = &child.unproven {
        let trap = callers.number(&child.connection, &child.config);
        let (sign, ripe) = (Arc::clone(&child.inbound), Arc::clone(&unproven.ripe));
        into.unproven.push(dataplane::Unproven { slot, trap, sign, ripe });
    }
    slot
}

/// The selectors of one packet, for RFC 7296 §2.9: local and remote side.
fn of_packet(key: &FlowKey) -> (TrafficSelector, TrafficSelector) {
    let (src, dst) = key.addresses();
    let seen = !key.opaque_ports && (key.proto.has_ports() || key.proto.has_message_type());
    let side = |addr: IpAddr, port: Option<u16>| TrafficSelector {
        addrs: AddrRange { start: addr, end: addr },
        proto: Some(key.proto),
        ports: port.filter(|_| seen).map_or(PortRange::ANY, PortRange::single),
    };
    // The type of a message stands on the side of its sender.
    (side(src, Some(key.src_port)), side(dst, key.proto.has_ports().then_some(key.dst_port)))
}

#[cfg(test)]
mod tests;
