//! Child SAs as packets see them: from what IKE negotiated to SAs, policies and traps.
//!
//! A [`Child`] is created when IKE reports it as established, and is kept until its inbound half
//! had time to receive packets in flight. Children of one peer with the same selectors form a
//! group: a policy names the group, packets go out through its newest member. A peer is an
//! authenticated identity of one connection. Groups of two peers with the same selectors have a
//! policy each, and the group that came later is first.

mod child;
mod dynamic;
mod order;
mod reqids;
mod totals;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crypto::KeyTable;
use dataplane::{Acquire, GracePeriodSa, PerCoreSas, SlotList, SpareIndex, SpareTables};
use ike::config::{ChildConfig, ChildMode, Connection, PerCpuSas, PoolConfig};
use ike::output::{ChildId, IkeId};
use ipsec::{Action, InboundSa, OutboundSa, Policy, PolicyId, PolicyRef, TRAP_PER_HOST};
use wire::{AddrRange, FlowKey, PortRange, Selector, TrafficSelector};

use child::GroupOf;
pub(crate) use child::{Child, Site, sa_name};
pub(crate) use dynamic::Dynamic;
pub(crate) use ike::selectors::{pairs, specificity};
use order::{Order, Rank, RankedPolicy};
pub(crate) use reqids::Reqids;
pub(crate) use totals::{Sums, Totals, drops};

/// Time that the first Child SA requested by a peer waits for traffic from the peer, which confirms
/// the SA. Packets are held during this time, so this is the delay if the peer is silent.
const CONFIRM: Duration = Duration::from_millis(500);
/// The same while another SA carries the packets: longer than the retransmission of a lost
/// response. It applies while the other SA is known to work: it is of the same IKE SA, which has
/// just delivered the request, or it receives packets. A peer that restarted has lost the other
/// one. It reports that with INITIAL_CONTACT only if it has the identity of this host.
const CONFIRM_BESIDE: Duration = Duration::from_secs(10);

/// Policies of connections: negotiated ones, and those installed before negotiation.
#[derive(Default)]
pub(crate) struct Negotiated {
    children: BTreeMap<ChildId, Child>,
    groups: Groups,
    /// Child SAs that only receive, by the end of their grace period.
    ending: BTreeSet<(Instant, ChildId)>,
    /// Counts groups.
    turns: u64,
    /// SAs that the peer may not have installed yet.
    unconfirmed: Vec<ChildId>,
    standing: Vec<SectionPolicy>,
    /// Virtual addresses of this host, by the connection that has them.
    virtual_addresses: Vec<(String, IpAddr)>,
    /// Pools from which peers get addresses.
    pools: Vec<PoolConfig>,
    callers: Callers,
    /// Traffic of each IKE SA.
    pub(crate) totals: Totals,
    /// Request ids of sections and peers.
    pub(crate) reqids: Reqids,
    /// Associations of the PSP key service; their policies precede the others.
    pub(crate) psp: crate::psp_keys::associations::Associations,
}

/// Child SAs by [`Child::group_hash`], so that those of one group are found without a search
/// through all of them.
#[derive(Default)]
struct Groups(HashMap<u64, Vec<ChildId>>);

impl Groups {
    fn enter(&mut self, children: &mut BTreeMap<ChildId, Child>, child: Child) {
        let (id, hash) = (child.id, child.group_hash);
        children.insert(id, child);
        self.0.entry(hash).or_default().push(id);
        self.count(children, hash);
    }

    fn leave(&mut self, children: &mut BTreeMap<ChildId, Child>, child: &Child) {
        let Entry::Occupied(mut group) = self.0.entry(child.group_hash) else { return };
        group.get_mut().retain(|other| *other != child.id);
        if group.get().is_empty() {
            group.remove();
        }
        self.count(children, child.group_hash);
    }

    /// Notes in each Child SA how many others there are.
    fn count(&self, children: &mut BTreeMap<ChildId, Child>, hash: u64) {
        let ids = self.0.get(&hash).map_or(&[][..], Vec::as_slice);
        for id in ids {
            if let Some(child) = children.get_mut(id) {
                child.companions = ids.len() - 1;
            }
        }
    }

    /// Other Child SAs of the group of `child`, which need not be entered yet.
    fn others<'a>(
        &'a self,
        children: &'a BTreeMap<ChildId, Child>,
        child: &'a Child,
    ) -> impl Iterator<Item = &'a Child> {
        let ids = self.0.get(&child.group_hash).into_iter().flatten();
        let others = ids.filter(|id| **id != child.id).filter_map(|id| children.get(id));
        others.filter(|other| other.is_redundant_with(child))
    }

    /// Packets that those of other IKE SAs have received, as far as they send.
    fn received(&self, children: &BTreeMap<ChildId, Child>, child: &Child) -> u64 {
        let older = self.others(children, child).filter(|other| other.ike != child.ike && other.sends());
        older.map(|other| other.inbound.common.counters.packets()).sum()
    }
}

/// A policy installed for a section, with or without an SA.
struct SectionPolicy {
    connection: Arc<Connection>,
    config: Arc<ChildConfig>,
    dynamic: Dynamic,
    /// In logs and reports.
    name: Arc<str>,
    selectors: Arc<[Selector]>,
    kind: SectionAction,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SectionAction {
    /// The first packet starts a negotiation.
    Trap,
    /// In the clear.
    Pass,
    /// Not at all: `mode = drop`, or there should be an SA and there is none.
    Drop,
}

impl SectionPolicy {
    /// Whether it is the policy of this section.
    fn is_of(&self, connection: &Connection, config: &ChildConfig) -> bool {
        self.connection.name == connection.name && self.config.name == config.name
    }

    /// Whether the policy closes a section that is to have an SA.
    fn is_closed_for_its_sa(&self) -> bool {
        self.kind == SectionAction::Drop && self.config.mode != ChildMode::Drop
    }

    /// Whether nothing asked for an SA: the policy exists only because of `unprotected = drop`.
    fn only_closes(&self) -> bool {
        self.is_closed_for_its_sa() && !self.config.start_action.start
    }
}

impl SectionPolicy {
    fn line(&self) -> PolicyLine<'_> {
        let action = match self.kind {
            SectionAction::Trap => "trap",
            SectionAction::Pass => "bypass",
            SectionAction::Drop => "drop",
        };
        let (connection, config, selectors) = (&*self.connection, &*self.config, &*self.selectors);
        PolicyLine { connection, config, selectors, action, sa: None, transport: config.mode == ChildMode::Transport }
    }

    fn policy(&self, action: Action) -> PolicyRef<'_> {
        PolicyRef { name: &self.name, selectors: &self.selectors, action }
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

/// SAs and policies collected for a snapshot.
#[derive(Default)]
pub(crate) struct Assembly {
    pub(crate) outbound: SlotList<OutboundSa>,
    pub(crate) inbound: SlotList<InboundSa>,
    /// By inbound slot.
    pub(crate) groups: Vec<u32>,
    pub(crate) per_core: Vec<PerCoreSas>,
    pub(crate) unconfirmed: Vec<dataplane::UnconfirmedSa>,
    pub(crate) paced: Vec<dataplane::PacedSa>,
    pub(crate) grace_period: Vec<GracePeriodSa>,
    pub(crate) policies: Vec<Policy>,
    /// Policies of an earlier snapshot, in the memory of which those of this one are made.
    earlier_policies: Vec<Policy>,
    /// Policies for which references to name and selectors were taken.
    pub(crate) policies_taken: usize,
}

impl Assembly {
    /// To be made in the memory of an earlier snapshot. Returns its keys and index as well.
    pub(crate) fn over(earlier: SpareTables) -> (Self, KeyTable, SpareIndex) {
        let SpareTables { inbound, outbound, policies, keys, index } = earlier;
        let (inbound, outbound) = (SlotList::over(inbound), SlotList::over(outbound));
        (Self { inbound, outbound, earlier_policies: policies, ..Self::default() }, keys, index)
    }

    /// Adds an inbound SA, to a new group unless one is given. Returns its slot.
    pub(crate) fn receive(&mut self, sa: &Arc<InboundSa>, group: Option<u32>) -> u32 {
        let slot = self.inbound.push(sa);
        self.groups.push(group.unwrap_or(slot));
        slot
    }

    /// Adds an SA that sends. Returns its slot.
    pub(crate) fn send(&mut self, sa: &Arc<OutboundSa>) -> u32 {
        self.outbound.push(sa)
    }

    /// Appends policies; those that come first are there already.
    fn append(&mut self, policies: &[PolicyRef<'_>]) {
        let first = std::mem::take(&mut self.policies);
        let all: Vec<PolicyRef<'_>> = first.iter().map(Policy::borrowed).chain(policies.iter().copied()).collect();
        self.policies = std::mem::take(&mut self.earlier_policies);
        self.policies_taken = Policy::rewrite(&mut self.policies, &all);
    }
}

/// Slot of a direction that an SA does not have: the last of the 29 bits that flow caches keep.
pub(crate) const NO_SLOT: u32 = u32::MAX >> 3;

impl Negotiated {
    /// Installs a Child SA. A replacement is found by its selectors. `answered`: the peer requested
    /// it, and can use it only after it has received the response.
    pub(crate) fn install(&mut self, mut child: Child, answered: bool, now: Instant) {
        let group =
            self.groups.others(&self.children, &child).find(|other| other.until.is_none()).map(|other| other.turn);
        child.turn = group.unwrap_or_else(|| {
            self.turns += 1;
            self.turns
        });
        // The schedule of its packets goes on, and what is queued is sent through the new SA.
        if child.paced.is_some() {
            let others: Vec<ChildId> = self.groups.others(&self.children, &child).map(|other| other.id).collect();
            let _ = others.iter().filter_map(|id| self.children.get(id)).any(|other| child.join_stream(other));
        }
        if answered && child.sends() {
            let others = || self.groups.others(&self.children, &child).filter(|other| other.sends());
            // Other CPUs have SAs of their own (RFC 9611).
            let rekeyed = others().any(|other| other.ike == child.ike && other.cpu == child.cpu);
            let lost = !rekeyed && others().any(|other| other.ike != child.ike);
            child.unconfirmed = Some(child::Unconfirmed {
                until: now + if others().next().is_some() { CONFIRM_BESIDE } else { CONFIRM },
                until_silent: lost.then(|| (now + CONFIRM, self.groups.received(&self.children, &child))),
                timed_out: Arc::new(AtomicBool::new(false)),
            });
            self.unconfirmed.push(child.id);
        }
        self.totals.begin(child.ike);
        child.reqid = self.reqids.begin(&child.connection, &child.config, &child.remote_id);
        self.groups.enter(&mut self.children, child);
    }

    /// Ends a Child SA: nothing goes out through it any more, and until `until` it still receives.
    /// Returns false if it does not exist.
    pub(crate) fn end(&mut self, id: ChildId, until: Instant) -> bool {
        let Some(child) = self.children.get_mut(&id) else { return false };
        if let Some(before) = child.until {
            self.ending.remove(&(before, id));
        }
        self.ending.insert((until, id));
        // The stream ends with the tables that have no SA for it, and clear text in its queue too.
        (child.sending, child.until, child.paced) = (false, Some(until), None);
        // The trap after it becomes effective again.
        self.callers.forget(&child.connection, &child.config);
        // If one of several is closed, the others remain. They leave the list of unconfirmed ones
        // with the next check.
        let others: Vec<ChildId> =
            self.groups.others(&self.children, &self.children[&id]).map(|other| other.id).collect();
        for id in others.into_iter().chain([id]) {
            if let Some(child) = self.children.get_mut(&id) {
                child.prove();
            }
        }
        true
    }

    /// Starts using Child SAs that the peer has confirmed by traffic, or that have waited long
    /// enough. Returns true if the tables must be published because other SAs were in use until
    /// now.
    pub(crate) fn prove(&mut self, now: Instant) -> bool {
        let mut beside = false;
        for id in std::mem::take(&mut self.unconfirmed) {
            let Some(child) = self.children.get(&id) else { continue };
            let received = || self.groups.received(&self.children, child);
            let timed_out = child.unconfirmed.as_ref().is_none_or(|wait| wait.is_due(now, received));
            if !child.has_received() && !timed_out {
                self.unconfirmed.push(id);
                continue;
            }
            let Some(child) = self.children.get_mut(&id) else { continue };
            child.prove();
            beside |= self.groups.others(&self.children, &self.children[&id]).any(Child::sends);
        }
        beside
    }

    /// Number of Child SAs that their peers may not have installed yet.
    pub(crate) fn unconfirmed_count(&self) -> usize {
        self.unconfirmed.len()
    }

    /// The Child SA of that name.
    pub(crate) fn child(&self, id: ChildId) -> Option<&Child> {
        self.children.get(&id)
    }

    /// Likewise, to be changed.
    pub(crate) fn child_mut(&mut self, id: ChildId) -> Option<&mut Child> {
        self.children.get_mut(&id)
    }

    /// Number of Child SAs, those in their grace period included.
    pub(crate) fn count(&self) -> usize {
        self.children.len()
    }

    /// All of them, in the order of their making.
    pub(crate) fn children(&self) -> impl Iterator<Item = &Child> {
        self.children.values()
    }

    /// Traffic of each IKE SA with a Child SA: of those that are gone, of those that only receive,
    /// and of the others.
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

    /// Removes SAs whose grace period has ended; the keys go with it.
    pub(crate) fn reap(&mut self, now: Instant, keys: &mut KeyTable) -> bool {
        let before = self.children.len();
        while let Some((_, id)) = self.ending.first().copied().filter(|(until, _)| *until <= now) {
            self.ending.pop_first();
            let Some(child) = self.children.remove(&id) else { continue };
            child.forget(keys);
            self.totals.keep(&child);
            self.reqids.end(&child.connection, &child.config, &child.remote_id);
            self.groups.leave(&mut self.children, &child);
        }
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
        let same = |standing: &SectionPolicy| standing.is_of(connection, config);
        let before = self.standing.len();
        // A trap that goes leaves what closes the section in its place: both are of one change to
        // the configuration.
        let stays = |standing: &SectionPolicy| !on && trap && standing.is_closed_for_its_sa();
        self.standing.retain(|standing| !same(standing) || stays(standing));
        let removed = self.standing.len() != before;
        if !on {
            return removed;
        }
        // Without selectors it waits for an address, see `stand_again`.
        let known = dynamic::of_connection(&self.virtual_addresses, &connection.name);
        let pools = dynamic::of_pools(&self.pools, connection);
        let given = dynamic::Given { own: &known, pools: &pools };
        let selectors: Arc<[Selector]> =
            dynamic::resolve(connection, config, given, dynamic).unwrap_or_default().into();
        let changed = removed || !selectors.is_empty();
        let kind = match config.mode {
            ChildMode::Pass => SectionAction::Pass,
            ChildMode::Drop => SectionAction::Drop,
            _ if trap => SectionAction::Trap,
            _ => SectionAction::Drop,
        };
        if kind == SectionAction::Trap {
            self.reqids.of_policy(connection, config);
        }
        let name = format!("{}.{}", connection.name, config.name).into();
        let (connection, config) = (Arc::clone(connection), Arc::clone(config));
        self.standing.push(SectionPolicy { connection, config, dynamic, name, selectors, kind });
        changed
    }

    /// Selectors of the policy of a section, unless the policy lets packets pass; true in transport
    /// mode.
    pub(crate) fn closes(&self, connection: &Connection, config: &ChildConfig) -> Option<(&[Selector], bool)> {
        // The newest are last.
        let standing = self.standing.iter().rev().find(|standing| standing.is_of(connection, config))?;
        let closes = standing.kind != SectionAction::Pass;
        closes.then_some((&*standing.selectors, standing.config.mode == ChildMode::Transport))
    }

    /// Returns whether a section has a policy without an SA.
    pub(crate) fn has_policy(&self, connection: &Connection, config: &ChildConfig) -> bool {
        self.standing.iter().any(|standing| standing.is_of(connection, config))
    }

    /// Returns whether a section has a policy that exists only because of `unprotected = drop`.
    pub(crate) fn only_closes(&self, connection: &Connection, config: &ChildConfig) -> bool {
        self.standing.iter().any(|standing| standing.is_of(connection, config) && standing.only_closes())
    }

    /// Returns whether a section has a trap.
    pub(crate) fn is_trapped(&self, connection: &Connection, config: &ChildConfig) -> bool {
        let is_trap = |standing: &SectionPolicy| standing.kind == SectionAction::Trap;
        self.standing.iter().any(|standing| is_trap(standing) && standing.is_of(connection, config))
    }

    /// Names of the sections with a trap, and of their connections.
    pub(crate) fn trapped(&self) -> HashSet<(String, String)> {
        let traps = self.standing.iter().filter(|standing| standing.kind == SectionAction::Trap);
        traps.map(|standing| (standing.connection.name.clone(), standing.config.name.clone())).collect()
    }

    /// How many policies stand without an SA.
    pub(crate) fn standing_count(&self) -> usize {
        self.standing.len()
    }

    /// Whether one of them lets packets pass.
    pub(crate) fn passes(&self) -> bool {
        self.standing.iter().any(|standing| standing.kind == SectionAction::Pass)
    }

    /// Traps, and sections with `mode = pass` or `drop`, with their selectors. Policies that only
    /// keep a section without an SA closed are not listed: strongSwan has none.
    pub(crate) fn standing(&self) -> impl Iterator<Item = (&Arc<Connection>, &Arc<ChildConfig>, &[Selector])> {
        let is_listed = |standing: &&SectionPolicy| {
            standing.kind == SectionAction::Trap || matches!(standing.config.mode, ChildMode::Pass | ChildMode::Drop)
        };
        let there = self.standing.iter().filter(|standing| !standing.selectors.is_empty());
        there.filter(is_listed).map(|s| (&s.connection, &s.config, &*s.selectors))
    }

    /// Policies for people, in the order in which packets meet them.
    pub(crate) fn policies(&self) -> Vec<PolicyLine<'_>> {
        let mut rows: Vec<(Rank, Reverse<u64>, PolicyLine<'_>)> = Vec::new();
        for child in self.children.values().filter(|child| child.until.is_none()) {
            let (connection, config, selectors) = (&*child.connection, &*child.config, &*child.selectors);
            let sa = Some(&*child.inbound.common.name);
            let transport = child.inbound.common.mode == ipsec::Mode::Transport;
            let line = PolicyLine { connection, config, selectors, action: "protect", sa, transport };
            rows.push((child.rank, Reverse(child.turn), line));
        }
        let (closed, standing) = by_purpose(&self.standing);
        let of_standing = |standing: &SectionPolicy| Rank::new(&standing.config, &standing.selectors, Order::Standing);
        rows.extend(standing.iter().map(|standing| (of_standing(standing), Reverse(0), standing.line())));
        let in_order = |(a, s, p): &(Rank, Reverse<u64>, PolicyLine<'_>),
                        (b, t, q): &(Rank, Reverse<u64>, PolicyLine<'_>)| {
            (a, s).cmp(&(b, t)).then_with(|| p.name().cmp(&q.name()))
        };
        rows.sort_by(in_order);
        let others: Vec<RankedPolicy<'_>> = rows
            .iter()
            .map(|(rank, _, line)| RankedPolicy { rank: *rank, protects: line.protects(), selectors: line.selectors })
            .collect();
        let closed: Vec<_> = ranks_of_closed(&self.children, &closed, &others)
            .zip(&closed)
            .map(|(rank, standing)| (rank, Reverse(0), standing.line()))
            .collect();
        rows.extend(closed);
        rows.sort_by(in_order);
        rows.into_iter().map(|(.., line)| line).collect()
    }

    /// Request of a packet that matched a trap.
    pub(crate) fn wanted(&self, acquire: &Acquire) -> Option<Wanted> {
        let caller = self.callers.by_number.get(&acquire.trap)?;
        Some(Wanted {
            connection: Arc::clone(&caller.connection),
            config: Arc::clone(&caller.config),
            packet: of_packet(&acquire.key),
            cpu: acquire.core,
        })
    }

    /// Appends SAs and policies.
    pub(crate) fn assemble(&mut self, workers: usize, into: &mut Assembly) {
        self.psp.assemble(into);
        let callers = &mut self.callers;
        callers.round += 1;
        let mut rows: Vec<(Rank, Reverse<u64>, PolicyRef<'_>)> = Vec::with_capacity(self.children.len());
        let mut ending: Vec<&Child> = Vec::new();
        let mut members: Vec<&Child> = Vec::new();
        for child in self.children.values() {
            members.clear();
            members.push(child);
            // Nearly every Child SA is alone in its group.
            if child.companions > 0 {
                members.extend(self.groups.others(&self.children, child));
                // A group comes with the first of its members.
                if members.iter().any(|other| other.id < child.id) {
                    continue;
                }
                members.sort_unstable_by_key(|child| child.id);
            }
            let Some(newest) = members.iter().rfind(|child| child.until.is_none()) else {
                // They only receive packets in flight.
                ending.extend(&members);
                continue;
            };
            let inbound = group(&members, into);
            let outbound = slots(&members, workers, callers, into);
            let action = Action::Protect { outbound, inbound };
            let policy = PolicyRef { name: &newest.name, selectors: &newest.selectors, action };
            rows.push((newest.rank, Reverse(newest.turn), policy));
        }
        let (closed, standing) = by_purpose(&self.standing);
        for standing in standing {
            let action = match standing.kind {
                SectionAction::Pass => Action::Bypass,
                SectionAction::Drop => Action::Drop,
                SectionAction::Trap => Action::Trap(callers.number(&standing.connection, &standing.config)),
            };
            let rank = Rank::new(&standing.config, &standing.selectors, Order::Standing);
            rows.push((rank, Reverse(0), standing.policy(action)));
        }
        let in_order = |(a, s, p): &(Rank, Reverse<u64>, PolicyRef<'_>),
                        (b, t, q): &(Rank, Reverse<u64>, PolicyRef<'_>)| {
            (a, s, p.name).cmp(&(b, t, q.name))
        };
        rows.sort_by(in_order);
        if !closed.is_empty() {
            let protects = |policy: &PolicyRef<'_>| matches!(policy.action, Action::Protect { .. } | Action::Trap(_));
            let others: Vec<RankedPolicy<'_>> = rows
                .iter()
                .map(|(rank, _, policy)| RankedPolicy {
                    rank: *rank,
                    protects: protects(policy),
                    selectors: policy.selectors,
                })
                .collect();
            let closed: Vec<_> = ranks_of_closed(&self.children, &closed, &others)
                .zip(&closed)
                .map(|(rank, standing)| (rank, Reverse(0), standing.policy(Action::Drop)))
                .collect();
            rows.extend(closed);
            rows.sort_by(in_order);
        }
        // The owners of selectors matter only to Child SAs in their grace period.
        let mut owners: HashMap<&[Selector], Vec<&GroupOf>> = HashMap::new();
        if !ending.is_empty() {
            for child in self.children.values().filter(|child| child.until.is_none()) {
                owners.entry(&child.selectors).or_default().push(&child.group);
            }
        }
        let first = into.policies.len();
        for child in ending {
            // Another peer has its addresses now, such as the virtual one: packets of the former
            // owner would be taken for those of the new one.
            let mut owners = owners.get(&*child.selectors).into_iter().flatten();
            let is_taken = owners.any(|owner| !owner.is_of_peer(&child.group));
            let precedes = |other: &Rank| *other < child.rank || is_taken && *other == child.rank;
            let policy = PolicyId((first + rows.partition_point(|(other, ..)| precedes(other))) as u32);
            let slot = into.receive(&child.inbound, None);
            into.grace_period.push(GracePeriodSa { slot, policy, selectors: child.selectors.clone() });
        }
        let policies: Vec<PolicyRef<'_>> = rows.into_iter().map(|(.., policy)| policy).collect();
        into.append(&policies);
        into.per_core.sort_by_key(|per_core| per_core.slot);
        into.unconfirmed.sort_by_key(|unconfirmed| unconfirmed.slot);
        into.paced.sort_by_key(|paced| paced.slot);
        callers.forget_unused();
    }
}

/// Standing policies with selectors: those that only close a section without an SA, and the others.
fn by_purpose(standing: &[SectionPolicy]) -> (Vec<&SectionPolicy>, Vec<&SectionPolicy>) {
    standing.iter().filter(|standing| !standing.selectors.is_empty()).partition(|standing| standing.only_closes())
}

/// Ranks of policies that only close a section, among `others`, which are in order.
fn ranks_of_closed<'a>(
    children: &'a BTreeMap<ChildId, Child>,
    closed: &'a [&SectionPolicy],
    others: &'a [RankedPolicy<'_>],
) -> impl Iterator<Item = Rank> + 'a {
    // Mostly few sections are closed, and hashes of many Child SAs are at hand.
    let mut hashes: Vec<u64> = closed.iter().map(|standing| child::hash_of(&standing.selectors)).collect();
    hashes.sort_unstable();
    let may_be = |child: &&Child| hashes.binary_search(&child.selectors_hash).is_ok();
    let protected: HashSet<&[Selector]> = children.values().filter(may_be).map(|child| &*child.selectors).collect();
    closed.iter().map(move |standing| {
        let own = Rank::new(&standing.config, &standing.selectors, Order::Closed);
        // Its own SA comes right before it.
        let shadowed = protected.contains(&*standing.selectors);
        if shadowed { own } else { own.after_protection(&standing.selectors, others) }
    })
}

/// Maps trap numbers to sections. A section keeps its number while its trap is installed, and gets
/// a new one after it had an SA, so that packets trigger again without rate limiting by the old
/// number.
#[derive(Default)]
struct Callers {
    by_number: BTreeMap<u32, Caller>,
    by_name: HashMap<(String, String), u32>,
    next: u32,
    /// Counts assemblies.
    round: u64,
    /// Section of the last number: hundreds of SAs of one section may wait for their peers.
    last: Option<LastCaller>,
}

struct LastCaller {
    connection: Arc<Connection>,
    config: Arc<ChildConfig>,
    round: u64,
    number: u32,
}

struct Caller {
    connection: Arc<Connection>,
    config: Arc<ChildConfig>,
    /// The last assembly that names it.
    round: u64,
}

impl Callers {
    fn number(&mut self, connection: &Arc<Connection>, config: &Arc<ChildConfig>) -> u32 {
        let is_it = |last: &&LastCaller| {
            let same = Arc::ptr_eq(&last.connection, connection) && Arc::ptr_eq(&last.config, config);
            same && last.round == self.round
        };
        if let Some(last) = self.last.as_ref().filter(is_it) {
            return last.number;
        }
        let name = (connection.name.clone(), config.name.clone());
        let number = *self.by_name.entry(name).or_insert_with(|| {
            self.next = self.next.wrapping_add(1) & !TRAP_PER_HOST;
            self.next | if connection.peer_is_destination(config) { TRAP_PER_HOST } else { 0 }
        });
        let (connection, config) = (Arc::clone(connection), Arc::clone(config));
        let round = self.round;
        self.last =
            Some(LastCaller { connection: Arc::clone(&connection), config: Arc::clone(&config), round, number });
        self.by_number.insert(number, Caller { connection, config, round });
        number
    }

    /// The section gets another number when it is named again.
    fn forget(&mut self, connection: &Connection, config: &ChildConfig) {
        self.last = None;
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

/// Adds the sending halves of interchangeable SAs and returns the slot that policies name. SAs that
/// the peer may not have yet should be used only if there is no other.
fn slots(members: &[&Child], workers: usize, callers: &mut Callers, into: &mut Assembly) -> u32 {
    // Nearly all are alone and for every CPU.
    if let [only] = members
        && only.cpu.is_none()
        && only.config.per_cpu_sas == PerCpuSas::No
    {
        return if only.sends() { send(only, callers, into) } else { NO_SLOT };
    }
    let sending: Vec<&Child> = members.iter().copied().filter(|child| child.sends()).collect();
    let proven = sending.iter().any(|child| child.unconfirmed.is_none());
    let is_usable = |child: &Child| !proven || child.unconfirmed.is_none();
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
                // An SA already exists, so none is requested.
                *place = Some(if is_usable(child) { send(child, callers, into) } else { place.unwrap_or(slot) });
            }
        }
        let trap = callers.number(&fallback.connection, &fallback.config);
        into.per_core.push(PerCoreSas { slot, by_core, trap });
    }
    slot
}

/// Adds a sending half; its packets are held while the peer may not have it.
fn send(child: &Child, callers: &mut Callers, into: &mut Assembly) -> u32 {
    let slot = into.send(&child.outbound);
    into.paced.extend(child.paced.clone().map(|stream| dataplane::PacedSa { slot, stream }));
    if let Some(unconfirmed) = &child.unconfirmed {
        let trap = callers.number(&child.connection, &child.config);
        let (inbound, timed_out) = (Arc::clone(&child.inbound), Arc::clone(&unconfirmed.timed_out));
        into.unconfirmed.push(dataplane::UnconfirmedSa { slot, trap, inbound, timed_out });
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
    // The ICMP type is in the selector of the sender's side.
    (side(src, Some(key.src_port)), side(dst, key.proto.has_ports().then_some(key.dst_port)))
}

#[cfg(test)]
mod tests;
