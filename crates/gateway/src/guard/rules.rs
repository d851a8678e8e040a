//! Rules of the guard: from ordered policies to chains.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wire::{AddrRange, IpProto, PortRange, Selector};

use super::nft::{Expr, Family, Field, Hook, Transaction};

/// Action for clear text that matches a policy.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Verdict {
    /// The policy protects or discards it: clear text is dropped.
    Protect,
    /// The policy lets it pass.
    Pass,
}

/// One selector of a policy, outbound: source is local, destination remote.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct GuardPolicy {
    pub(crate) verdict: Verdict,
    pub(crate) selector: Selector,
    /// Transport mode: its packets have an address of this host as source, so none of them is
    /// forwarded.
    pub(crate) host: bool,
}

impl GuardPolicy {
    pub(crate) fn new(verdict: Verdict, selector: Selector) -> Self {
        Self { verdict, selector, host: false }
    }
}

/// Settings that do not depend on policies.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Fixed {
    /// Name of the table.
    pub(crate) table: String,
    /// Name of the TUN device.
    pub(crate) tun: String,
    /// Mark of Weir's own packets.
    pub(crate) mark: u32,
    /// True if sources in local selectors must have a route back by the interface of arrival.
    pub(crate) reverse_path: bool,
}

/// Traffic that must be accepted in clear text: packets for the sockets that Weir opens for this
/// configuration, and nothing else.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Exempt {
    /// IP protocols of protected packets.
    pub(crate) protocols: BTreeSet<u8>,
    /// Local addresses of the sockets for these protocols; the unspecified address is every address
    /// of its family.
    pub(crate) local: BTreeSet<IpAddr>,
    /// UDP sockets: IKE, protected packets in UDP, PSP.
    pub(crate) udp: BTreeSet<SocketAddr>,
    /// UDP port of PSP at the peer, where this host sends PSP: errors about its packets name that
    /// port.
    pub(crate) psp_port: Option<u16>,
    /// TCP ports of the key service of PSP: of this host, and of the peer.
    pub(crate) key_service: BTreeSet<(u16, u16)>,
}

impl Exempt {
    /// Destinations of packets for sockets at `local`, as expressions of one rule each.
    fn at(local: impl Iterator<Item = IpAddr> + Clone, family: Family) -> Vec<Vec<Expr>> {
        let is_of = |addr: &IpAddr| addr.is_ipv6() == (family == Family::V6);
        if local.clone().any(|addr| is_of(&addr) && addr.is_unspecified()) {
            return vec![vec![Expr::ForThisHost]];
        }
        let single = |addr| Expr::Addresses(Field::Destination(family), AddrRange { start: addr, end: addr });
        let named: BTreeSet<IpAddr> = local.filter(is_of).collect();
        named.into_iter().map(|addr| vec![single(addr), Expr::ForThisHost]).collect()
    }

    /// The same for UDP packets.
    fn udp_at(&self, family: Family) -> Vec<Vec<Expr>> {
        let ports: BTreeSet<u16> = self.udp.iter().map(SocketAddr::port).collect();
        let of_port = |port: u16| {
            let at = Self::at(self.udp.iter().filter(move |at| at.port() == port).map(SocketAddr::ip), family);
            let port = Expr::Ports(Field::DestinationPort, PortRange::single(port));
            at.into_iter().map(move |at| [&[Expr::Protocol(UDP), port.clone()], &at[..]].concat())
        };
        ports.into_iter().flat_map(of_port).collect()
    }
}

/// Inputs of the table, besides [`Fixed`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Rules {
    /// In the order in which packets meet them.
    pub(crate) policies: Vec<GuardPolicy>,
    /// Limit of the MSS option over IPv4, in bytes.
    pub(crate) mss: Option<u16>,
    /// Exempt clear text.
    pub(crate) exempt: Exempt,
}

/// Counters of a table, in the order of [`super::Counters`].
pub(super) const COUNTERS: [&str; 3] = ["clear-in", "spoofed-in", "clear-out"];

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// NF_IP_PRI_RAW: before connection tracking, NAT and other filters. Defragmentation (−400) is
/// earlier where connection tracking is in use; elsewhere fragments arrive one by one.
const RAW: i32 = -300;
/// Before source NAT, which would hide local addresses.
const BEFORE_SOURCE_NAT: i32 = 0;
const MANGLE: i32 = -150;
const PREROUTING: Hook = Hook { number: 0, priority: RAW };
const FORWARD: Hook = Hook { number: 2, priority: MANGLE };
const POSTROUTING: Hook = Hook { number: 4, priority: BEFORE_SOURCE_NAT };

/// Adds the whole table to `transaction`: counters, sets, chains, rules.
pub(super) fn build(
    transaction: &mut Transaction,
    fixed: &Fixed,
    Rules { policies, mss, exempt }: &Rules,
    counted: [(u64, u64); 3],
) {
    for (name, counted) in COUNTERS.into_iter().zip(counted) {
        transaction.add_counter(name, counted);
    }
    let mut id = 0;
    for family in Family::BOTH {
        let protected = || {
            let of_family = |policy: &&GuardPolicy| Family::of(&policy.selector.dst) == family;
            policies.iter().filter(|policy| policy.verdict == Verdict::Protect).filter(of_family)
        };
        for (side, ranges) in
            [("remote", merged(protected().map(|policy| policy.selector.dst))), ("local", local_sources(protected()))]
        {
            id += 1;
            transaction.add_set(id, &format!("{side}{}", family.suffix()), family, &ranges);
        }
        let host = forwarded(policies, family);
        if !host.is_empty() {
            let of_host = protected().filter(|policy| policy.host).map(|policy| policy.selector.src);
            let of_host = of_host.filter(|range| !is_whole(range));
            id += 1;
            transaction.add_set(id, &format!("host{}", family.suffix()), family, &merged(of_host));
            let chain = format!("forwarded{}", family.suffix());
            transaction.add_chain(&chain, None);
            host.iter().for_each(|rule| transaction.add_rule(&chain, rule));
        }
        for (chain, inbound) in [("clear-in", true), ("clear-out", false)] {
            let chain = format!("{chain}{}", family.suffix());
            transaction.add_chain(&chain, None);
            let exempt = if inbound { exempt_in(exempt, family) } else { exempt_out(policies, family) };
            for rule in exempt.iter().chain(&of_policies(policies, family, inbound)) {
                transaction.add_rule(&chain, rule);
            }
        }
    }
    transaction.add_chain("prerouting", Some(PREROUTING));
    for rule in prerouting(fixed, policies) {
        transaction.add_rule("prerouting", &rule);
    }
    transaction.add_chain("postrouting", Some(POSTROUTING));
    for rule in postrouting(fixed) {
        transaction.add_rule("postrouting", &rule);
    }
    if let Some(mss) = mss {
        transaction.add_chain("forward", Some(FORWARD));
        for rule in clamp(fixed, *mss) {
            transaction.add_rule("forward", &rule);
        }
    }
}

/// Appends rules that protect `policies` to a table that [`build`] made, without its sets: what the
/// next replacement puts into them is closed until then by a few rules for each group of policies
/// that differ in their remote addresses only. They come last, so none of the policies in the table
/// may pass packets of these ones ([`Additions::of`]). `sets` counts the sets of the table that
/// these rules have.
///
/// The kernel adds the elements of these sets after the rules, but before it acknowledges the
/// transaction, and packets passed before it as well.
pub(super) fn append(transaction: &mut Transaction, fixed: &Fixed, policies: &[GuardPolicy], sets: &mut u32) {
    let Appended { sets, rules } = Appended::of(fixed, policies, sets);
    for (number, set) in sets {
        transaction.add_set(BASE_SETS + number, &added_set(number), set.family, &set.ranges);
    }
    for (chain, rule) in rules {
        transaction.add_rule(chain, &rule);
    }
}

/// Numbers of sets up to this one are those that [`build`] adds.
const BASE_SETS: u32 = 16;

/// Name of a set of appended rules.
fn added_set(number: u32) -> String {
    format!("added{number}")
}

/// Rules for policies, and the sets that they name.
struct Appended {
    /// By number.
    sets: Vec<(u32, AddedSet)>,
    /// With their base chains.
    rules: Vec<(&'static str, Vec<Expr>)>,
}

/// Remote addresses of several policies.
struct AddedSet {
    family: Family,
    ranges: Vec<AddrRange>,
}

impl Appended {
    fn of(fixed: &Fixed, policies: &[GuardPolicy], last: &mut u32) -> Self {
        let mut groups: Vec<(GuardPolicy, Vec<AddrRange>)> = Vec::new();
        let mut known: HashMap<GuardPolicy, usize> = HashMap::new();
        for policy in policies.iter().filter(|policy| policy.verdict == Verdict::Protect) {
            let Selector { src, dst, .. } = policy.selector;
            // Where both sides are equal, an expression does not tell which one it is about.
            if src == dst || is_whole(&dst) {
                groups.push((*policy, vec![dst]));
                continue;
            }
            let anywhere = if dst.is_v6() { AddrRange::ANY_V6 } else { AddrRange::ANY_V4 };
            let key = GuardPolicy { selector: Selector { dst: anywhere, ..policy.selector }, ..*policy };
            let at = *known.entry(key).or_insert(groups.len());
            match groups.get_mut(at) {
                Some((_, remotes)) => remotes.push(dst),
                None => groups.push((*policy, vec![dst])),
            }
        }
        let mut all = Self { sets: Vec::new(), rules: Vec::new() };
        for (policy, remotes) in groups {
            let mut rules = appended(fixed, &policy);
            if remotes.len() > 1 {
                *last += 1;
                let name = added_set(*last);
                for expression in rules.iter_mut().flat_map(|(_, rule)| rule) {
                    if let Expr::Addresses(field, range) = expression
                        && *range == policy.selector.dst
                    {
                        *expression = Expr::InSet(*field, name.clone());
                    }
                }
                let set = AddedSet { family: Family::of(&policy.selector.dst), ranges: merged(remotes.into_iter()) };
                all.sets.push((*last, set));
            }
            all.rules.extend(rules);
        }
        all
    }
}

/// Base chains and rules of a policy that protects and that is in none of the sets.
fn appended(fixed: &Fixed, policy: &GuardPolicy) -> Vec<(&'static str, Vec<Expr>)> {
    let Selector { src: local, dst: remote, .. } = policy.selector;
    let family = Family::of(&remote);
    let addresses = |field, range: AddrRange| (!is_whole(&range)).then_some(Expr::Addresses(field, range));
    let mut rules = Vec::new();
    if fixed.reverse_path && !is_whole(&local) {
        let ranges = [addresses(Field::Source(family), local), addresses(Field::Destination(family), remote)];
        let end = [Expr::NoRouteBack, Expr::Count(COUNTERS[1]), Expr::Drop];
        rules.push(("prerouting", ranges.into_iter().flatten().chain(end).collect()));
    }
    rules.extend(forwarded(&[*policy], family).into_iter().map(|rule| ("prerouting", rule)));
    for (base, field, chain, inbound) in [
        ("prerouting", Field::Source(family), "clear-in", true),
        ("postrouting", Field::Destination(family), "clear-out", false),
    ] {
        // That chain accepts what is exempt.
        let jump = Expr::Jump(format!("{chain}{}", family.suffix()));
        rules.push((base, addresses(field, remote).into_iter().chain([jump]).collect()));
        rules.extend(of_policy(policy, family, inbound).into_iter().map(|rule| (base, rule)));
    }
    rules.iter_mut().for_each(|(_, rule)| rule.insert(0, Expr::Is(family)));
    rules
}

/// Returns those of `policies` that protect and that a table of `rules` lacks. None if rules for
/// them at its end came too late: a policy of the table passes some of their packets.
fn to_append(
    policies: &[GuardPolicy],
    rules: &Rules,
    is_there: impl Fn(&GuardPolicy) -> bool,
) -> Option<Vec<GuardPolicy>> {
    let protects = |policy: &&GuardPolicy| policy.verdict == Verdict::Protect;
    let lacks: Vec<GuardPolicy> =
        policies.iter().filter(protects).filter(|policy| !is_there(policy)).copied().collect();
    let passes = |policy: &GuardPolicy| {
        let mut passes = rules.policies.iter().filter(|pass| pass.verdict == Verdict::Pass);
        passes.any(|pass| overlap(&pass.selector.dst, &policy.selector.dst))
    };
    (!lacks.iter().any(passes)).then_some(lacks)
}

/// Rules for policies, after those of the table.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Additions {
    /// For the table in the kernel.
    pub(super) now: Vec<GuardPolicy>,
    /// For the replacement that waits. It was requested before these policies, and perhaps without
    /// some that are in force.
    pub(super) later: Vec<GuardPolicy>,
}

impl Additions {
    /// Returns what has to be added for `policies` to a table of `current`, of which `in_force` is
    /// in the kernel, and to the replacement that waits. None if that came too late in one of them.
    pub(super) fn of(
        policies: &[GuardPolicy],
        current: &Rules,
        in_force: &HashSet<GuardPolicy>,
        waiting: Option<&Rules>,
    ) -> Option<Self> {
        let later = waiting.map(|waiting| to_append(policies, waiting, |policy| waiting.policies.contains(policy)));
        Some(Self {
            now: to_append(policies, current, |policy| in_force.contains(policy))?,
            later: later.unwrap_or(Some(Vec::new()))?,
        })
    }
}

fn prerouting(fixed: &Fixed, policies: &[GuardPolicy]) -> Vec<Vec<Expr>> {
    let mut rules: Vec<Vec<Expr>> = [fixed.tun.as_str(), "lo"]
        .map(|name| vec![Expr::Interface(true, name.to_owned()), Expr::Accept])
        .into_iter()
        .collect();
    for family in Family::BOTH {
        let (remote, local) = (format!("remote{}", family.suffix()), format!("local{}", family.suffix()));
        if fixed.reverse_path {
            // Local sources may only arrive where the route to them leads: the other interfaces are
            // outside, and their packets would leave as authentic traffic of this site. This goes
            // first, because a policy that passes packets ends the chain.
            rules.push(vec![
                Expr::Is(family),
                Expr::InSet(Field::Source(family), local),
                Expr::InSet(Field::Destination(family), remote.clone()),
                Expr::NoRouteBack,
                Expr::Count(COUNTERS[1]),
                Expr::Drop,
            ]);
        }
        if !forwarded(policies, family).is_empty() {
            rules.push(vec![
                Expr::Is(family),
                Expr::InSet(Field::Source(family), format!("host{}", family.suffix())),
                Expr::Jump(format!("forwarded{}", family.suffix())),
            ]);
        }
        rules.push(vec![
            Expr::Is(family),
            Expr::InSet(Field::Source(family), remote),
            Expr::Jump(format!("clear-in{}", family.suffix())),
        ]);
    }
    rules
}

fn postrouting(fixed: &Fixed) -> Vec<Vec<Expr>> {
    let mut rules = vec![
        vec![Expr::Mark(fixed.mark), Expr::Accept],
        vec![Expr::Interface(false, fixed.tun.clone()), Expr::Accept],
        vec![Expr::Interface(false, "lo".to_owned()), Expr::Accept],
    ];
    for family in Family::BOTH {
        rules.push(vec![
            Expr::Is(family),
            Expr::InSet(Field::Destination(family), format!("remote{}", family.suffix())),
            Expr::Jump(format!("clear-out{}", family.suffix())),
        ]);
    }
    rules
}

/// Reduces the MSS option of TCP connections through the tunnel to `mss` for IPv4, and by the
/// longer header for IPv6.
fn clamp(fixed: &Fixed, mss: u16) -> Vec<Vec<Expr>> {
    let mut rules = Vec::new();
    for inbound in [true, false] {
        for family in Family::BOTH {
            let mss = if family == Family::V4 { mss } else { mss.saturating_sub(20) };
            rules.push(vec![
                Expr::Interface(inbound, fixed.tun.clone()),
                Expr::Is(family),
                Expr::Protocol(TCP),
                Expr::Syn,
                Expr::MssAbove(mss),
                Expr::SetMss(mss),
            ]);
        }
    }
    rules
}

/// Traffic that always arrives unprotected: protected packets themselves, IKE, the key service,
/// ICMP errors about them, Neighbor Discovery.
fn exempt_in(exempt: &Exempt, family: Family) -> Vec<Vec<Expr>> {
    let mut rules = Vec::new();
    let mut accept = |parts: &[&[Expr]]| rules.push([&parts.concat()[..], &[Expr::Accept]].concat());
    let at = Exempt::at(exempt.local.iter().copied(), family);
    let udp = exempt.udp_at(family);
    for at in &at {
        exempt.protocols.iter().for_each(|protocol| accept(&[&[Expr::Protocol(*protocol)], at]));
    }
    udp.iter().for_each(|socket| accept(&[socket]));
    let here = [Expr::ForThisHost];
    for (own, theirs) in &exempt.key_service {
        let port = |field, port: &u16| Expr::Ports(field, PortRange::single(*port));
        accept(&[&[Expr::Protocol(TCP), port(Field::DestinationPort, own)], &here]);
        // Replies of the peer's key service. Not a SYN alone: its source port opens no other
        // service.
        for flags in [0x10, 0x04] {
            let flag = Expr::Transport { offset: 13, mask: vec![flags], value: vec![flags] };
            accept(&[&[Expr::Protocol(TCP), port(Field::SourcePort, theirs), flag], &here]);
        }
    }
    // Later fragments have no ports. They are useless without the first fragment, and its ports are
    // checked.
    let fragmented = exempt.protocols.iter().filter(|_| !at.is_empty());
    for protocol in fragmented.chain((!udp.is_empty()).then_some(&UDP)) {
        let of = match family {
            Family::V4 => Expr::Protocol(*protocol),
            Family::V6 => Expr::FragmentOf(*protocol),
        };
        accept(&[&[of, Expr::LaterFragment(family)], &here]);
    }
    // Errors about protected packets carry the beginning of one after the ICMP header of 8 bytes.
    let (icmp, types, embedded_protocol, embedded_ports) = match family {
        Family::V4 => (ICMP, (3, 3), 8 + 9, 8 + 20),
        Family::V6 => (ICMPV6, (1, 2), 8 + 6, 8 + 40),
    };
    let about = |protocol: u8| {
        let inner = Expr::Transport { offset: embedded_protocol, mask: vec![0xff], value: vec![protocol] };
        [Expr::Protocol(icmp), Expr::MessageType(types.0, types.1), inner]
    };
    for protocol in exempt.protocols.iter().filter(|_| !at.is_empty()) {
        accept(&[&about(*protocol), &here]);
    }
    let own: BTreeSet<u16> = exempt.udp.iter().map(SocketAddr::port).collect();
    let source = own.iter().filter(|port| exempt.psp_port != Some(**port)).map(|port| (embedded_ports, *port));
    // PSP has a source port for each flow.
    let destination = exempt.psp_port.iter().map(|port| (embedded_ports + 2, *port));
    for (offset, port) in source.chain(destination) {
        let port = Expr::Transport { offset, mask: vec![0xff; 2], value: port.to_be_bytes().to_vec() };
        accept(&[&about(UDP), &[port], &here]);
    }
    if family == Family::V6 {
        // To the host, or to a multicast group of the link: a forwarded packet is never Neighbor
        // Discovery.
        accept(&[&neighbour_discovery(), &here]);
        let link = AddrRange::from_cidr(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0).into(), 16);
        let link = link.map(|link| Expr::Addresses(Field::Destination(family), link));
        link.into_iter().for_each(|link| accept(&[&neighbour_discovery(), &[link]]));
    }
    rules
}

/// Link-local traffic, which is never routed into a tunnel, unless a policy names it.
fn exempt_out(policies: &[GuardPolicy], family: Family) -> Vec<Vec<Expr>> {
    let networks: &[(IpAddr, u8)] = match family {
        Family::V4 => &[(IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 24), (IpAddr::V4(Ipv4Addr::BROADCAST), 32)],
        Family::V6 => &[
            (IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0)), 16),
            (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
        ],
    };
    let is_named = |network: &AddrRange| {
        let protects = policies.iter().filter(|policy| policy.verdict == Verdict::Protect);
        protects.map(|policy| policy.selector.dst).any(|remote| contains(network, &remote))
    };
    let mut rules: Vec<Vec<Expr>> = networks
        .iter()
        .filter_map(|(addr, prefix)| AddrRange::from_cidr(*addr, *prefix))
        .filter(|network| !is_named(network))
        .map(|network| vec![Expr::Addresses(Field::Destination(family), network), Expr::Accept])
        .collect();
    if family == Family::V6 {
        rules.push([&neighbour_discovery()[..], &[Expr::Accept]].concat());
    }
    rules
}

/// Router and neighbour solicitations and advertisements, redirects (RFC 4861 §4): only from the
/// link.
fn neighbour_discovery() -> [Expr; 3] {
    [Expr::Protocol(ICMPV6), Expr::HopLimit255, Expr::MessageType(133, 137)]
}

/// The rules of one family and direction, in the order of the policies.
fn of_policies(policies: &[GuardPolicy], family: Family, inbound: bool) -> Vec<Vec<Expr>> {
    let mut known = HashSet::new();
    let of_family = policies.iter().filter(|policy| Family::of(&policy.selector.dst) == family);
    of_family.filter(|policy| known.insert(**policy)).flat_map(|policy| of_policy(policy, family, inbound)).collect()
}

/// Rules for packets from outside with a source that a policy in transport mode protects: they are
/// not packets of this host, which may have had that address when the SA was created. Policies
/// before it, in tunnel mode or without protection, decide first. Empty without a policy in
/// transport mode.
fn forwarded(policies: &[GuardPolicy], family: Family) -> Vec<Vec<Expr>> {
    let of_family: Vec<&GuardPolicy> =
        policies.iter().filter(|policy| Family::of(&policy.selector.dst) == family).collect();
    // A policy for every source does not state which ones are of this host.
    let is_host =
        |policy: &&GuardPolicy| policy.host && policy.verdict == Verdict::Protect && !is_whole(&policy.selector.src);
    let Some(last) = of_family.iter().rposition(is_host) else { return Vec::new() };
    let mut known = HashSet::new();
    let distinct = of_family[..=last].iter().filter(|policy| known.insert(***policy));
    let rules = |policy: &&GuardPolicy| {
        let drops = is_host(policy);
        let end = if drops { vec![Expr::Count(COUNTERS[1]), Expr::Drop] } else { vec![Expr::Return] };
        matching(&policy.selector, drops, (false, family)).into_iter().map(move |met| [&met[..], &end].concat())
    };
    distinct.flat_map(rules).collect()
}

/// Ports that a rule can compare; otherwise clear text of every port is dropped.
fn comparable(selector: &Selector) -> bool {
    let is_range = |ports: &PortRange| ports.start <= ports.end;
    selector.proto.is_some_and(IpProto::has_ports) && is_range(&selector.src_ports) && is_range(&selector.dst_ports)
}

fn of_policy(policy: &GuardPolicy, family: Family, inbound: bool) -> Vec<Vec<Expr>> {
    let end = match (policy.verdict, inbound) {
        (Verdict::Pass, _) => vec![Expr::Accept],
        (Verdict::Protect, true) => vec![Expr::Count(COUNTERS[0]), Expr::Drop],
        (Verdict::Protect, false) => vec![Expr::Count(COUNTERS[2]), Expr::Drop],
    };
    let met = matching(&policy.selector, policy.verdict == Verdict::Protect, (inbound, family));
    met.into_iter().map(|met| [&met[..], &end].concat()).collect()
}

/// Expressions that packets of a selector meet, one list for each rule. `drops`: the rule drops
/// them, and so may not miss one of them; otherwise it may not name another one.
fn matching(selector: &Selector, drops: bool, (inbound, family): (bool, Family)) -> Vec<Vec<Expr>> {
    let Selector { src, dst, proto, .. } = *selector;
    let any_ports = selector.src_ports == PortRange::ANY && selector.dst_ports == PortRange::ANY;
    let (from, to) = if inbound { (dst, src) } else { (src, dst) };
    let mut matches = Vec::new();
    for (field, range) in [(Field::Source(family), from), (Field::Destination(family), to)] {
        if range != AddrRange::ANY_V4 && range != AddrRange::ANY_V6 {
            matches.push(Expr::Addresses(field, range));
        }
    }
    matches.extend(proto.map(|proto| Expr::Protocol(proto.0)));
    let mut rules = Vec::new();
    if any_ports || !comparable(selector) {
        // Types of ICMP messages and packets without visible ports: what protects drops all of the
        // protocol, what passes is left to the policies after it.
        if any_ports || drops {
            rules.push(matches);
        }
        return rules;
    }
    if drops {
        // A later fragment has no ports to compare.
        rules.push([&matches[..], &[Expr::LaterFragment(family)]].concat());
    }
    let (local, remote) = (selector.src_ports, selector.dst_ports);
    let (from, to) = if inbound { (remote, local) } else { (local, remote) };
    for (field, ports) in [(Field::SourcePort, from), (Field::DestinationPort, to)] {
        if ports != PortRange::ANY {
            matches.push(Expr::Ports(field, ports));
        }
    }
    rules.push(matches);
    rules
}

/// Ranges that cover the same addresses, do not touch one another, and ascend.
fn merged(ranges: impl Iterator<Item = AddrRange>) -> Vec<AddrRange> {
    let mut ranges: Vec<AddrRange> = ranges.collect();
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut merged: Vec<AddrRange> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end || follows(last.end, range.start) => {
                last.end = last.end.max(range.end);
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// Sources that are on this side by the selectors of these policies.
///
/// A policy for every source does not state which ones are: with such a range the replies of an IKE
/// peer would count as spoofed where the tunnel takes all destinations, as that of a client does
/// until its virtual address is known.
fn local_sources<'a>(policies: impl Iterator<Item = &'a GuardPolicy>) -> Vec<AddrRange> {
    merged(policies.map(|policy| policy.selector.src).filter(|range| !is_whole(range)))
}

/// Returns whether a range is every address of its family.
fn is_whole(range: &AddrRange) -> bool {
    let end = match range.end {
        IpAddr::V4(end) => end.to_bits() == u32::MAX,
        IpAddr::V6(end) => end.to_bits() == u128::MAX,
    };
    range.start.is_unspecified() && end
}

fn follows(end: IpAddr, start: IpAddr) -> bool {
    match (end, start) {
        (IpAddr::V4(end), IpAddr::V4(start)) => end.to_bits().checked_add(1) == Some(start.to_bits()),
        (IpAddr::V6(end), IpAddr::V6(start)) => end.to_bits().checked_add(1) == Some(start.to_bits()),
        _ => false,
    }
}

/// Inserts a pass for each of `exempt` before the first policy whose remote addresses contain it
/// and more. `exempt` are networks of this side: packets between them need no tunnel that a wider
/// policy requires. A policy that names such a network itself stays in front, and none passes of
/// which a policy in transport mode contains all hosts.
pub(crate) fn with_exempt(policies: &[GuardPolicy], exempt: &[AddrRange]) -> Vec<GuardPolicy> {
    // In transport mode, hosts of one network protect the traffic between them.
    let in_transport = |network: &&AddrRange| {
        policies
            .iter()
            .any(|policy| policy.host && policy.verdict == Verdict::Protect && contains(&policy.selector.dst, network))
    };
    let mut left: Vec<AddrRange> = exempt.iter().filter(|network| !in_transport(network)).copied().collect();
    let mut all = Vec::with_capacity(policies.len());
    for (i, policy) in policies.iter().enumerate() {
        let wider = policy.selector.dst;
        left.retain(|network| {
            let inside = contains(&wider, network) && wider != *network;
            if inside && policy.verdict == Verdict::Protect {
                // What protects a part of the network comes first, in whatever order the policies
                // are.
                let narrower = policies[i + 1..].iter().filter(|policy| policy.verdict == Verdict::Protect);
                all.extend(narrower.filter(|policy| contains(network, &policy.selector.dst)));
                let anywhere = if network.is_v6() { AddrRange::ANY_V6 } else { AddrRange::ANY_V4 };
                let selector = Selector::between(anywhere, *network);
                all.push(GuardPolicy::new(Verdict::Pass, selector));
                return false;
            }
            true
        });
        all.push(*policy);
    }
    all
}

/// Parts of selectors in transport mode for every source: those of `sources`, each to the network
/// that it belongs to. Routes take the source of a packet from them; the packets are protected with
/// and without.
pub(crate) fn by_source(selectors: &[Selector], sources: &[(IpAddr, AddrRange)]) -> Vec<GuardPolicy> {
    let part = |selector: &Selector, (source, network): &(IpAddr, AddrRange)| {
        let dst = [(selector.dst, *network), (*network, selector.dst)];
        let (_, dst) = dst.into_iter().find(|(outer, inner)| contains(outer, inner))?;
        let selector = Selector { src: AddrRange { start: *source, end: *source }, dst, ..*selector };
        Some(GuardPolicy { verdict: Verdict::Protect, selector, host: true })
    };
    let every = selectors.iter().filter(|selector| is_whole(&selector.src));
    every.flat_map(|selector| sources.iter().filter_map(move |source| part(selector, source))).collect()
}

/// Returns whether an address is in both ranges.
pub(crate) fn overlap(one: &AddrRange, other: &AddrRange) -> bool {
    one.is_v6() == other.is_v6() && one.start <= other.end && other.start <= one.end
}

/// Returns whether all of `inner` is in `outer`.
pub(crate) fn contains(outer: &AddrRange, inner: &AddrRange) -> bool {
    outer.is_v6() == inner.is_v6() && outer.start <= inner.start && inner.end <= outer.end
}

#[cfg(any(test, feature = "simulation"))]
pub(crate) mod model;
#[cfg(test)]
mod packets;

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> AddrRange {
        text.parse().unwrap()
    }

    fn policy(verdict: Verdict, local: &str, remote: &str) -> GuardPolicy {
        let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
        GuardPolicy::new(verdict, Selector::from_sides(local, remote).unwrap())
    }

    #[test]
    fn sets_have_no_overlaps() {
        let of = |list: &[&str]| merged(list.iter().map(|text| range(text)));
        assert_eq!(of(&["10.0.0.0/8", "10.2.0.0/16"]), [range("10.0.0.0/8")]);
        assert_eq!(of(&["10.0.0.128/25", "10.0.0.0/25"]), [range("10.0.0.0/24")]);
        assert_eq!(of(&["10.0.2.0/24", "10.0.0.0/24"]), [range("10.0.0.0/24"), range("10.0.2.0/24")]);
        assert_eq!(of(&["0.0.0.0/0", "255.255.255.255/32"]), [range("0.0.0.0/0")]);
        assert_eq!(of(&["::/0"]), [range("::/0")]);
    }

    #[test]
    fn a_trap_for_every_host_closes_local_networks_and_leaves_packets_of_others_alone() {
        let every = GuardPolicy { host: true, ..policy(Verdict::Protect, "0.0.0.0/0", "0.0.0.0/0") };
        let full = policy(Verdict::Protect, "10.1.0.0/16", "0.0.0.0/0");
        let exempt = [range("192.168.0.0/24")];
        assert_eq!(with_exempt(&[every], &exempt), [every]);
        assert_eq!(with_exempt(&[full, every], &exempt), [full, every], "a tunnel does not open what the trap closes");
        assert_eq!(with_exempt(&[full], &exempt).len(), 2);
        // A selector for every source does not limit the sources of this host: IKE and ESP of peers
        // would be dropped as spoofed.
        assert!(forwarded(&[every], Family::V4).is_empty());
        let host = GuardPolicy { host: true, ..policy(Verdict::Protect, "192.0.2.1", "0.0.0.0/0") };
        assert_eq!(forwarded(&[host, every], Family::V4).len(), 1);
    }

    #[test]
    fn a_trap_for_every_host_has_the_source_of_each_network() {
        let selector = |local: &str, remote: &str| policy(Verdict::Protect, local, remote).selector;
        let sources = [
            ("192.0.2.1".parse().unwrap(), range("192.0.2.0/24")),
            ("198.51.100.1".parse().unwrap(), range("0.0.0.0/0")),
            ("2001:db8::1".parse().unwrap(), range("::/0")),
        ];
        let parts = |selectors: &[Selector]| -> Vec<Selector> {
            by_source(selectors, &sources).into_iter().map(|policy| policy.selector).collect()
        };
        let every = selector("0.0.0.0/0", "0.0.0.0/0");
        assert_eq!(parts(&[every]), [selector("192.0.2.1", "192.0.2.0/24"), selector("198.51.100.1", "0.0.0.0/0")]);
        let few = selector("0.0.0.0/0", "192.0.2.0/30");
        assert_eq!(parts(&[few]), [selector("192.0.2.1", "192.0.2.0/30"), selector("198.51.100.1", "192.0.2.0/30")]);
        assert!(parts(&[selector("192.0.2.1", "0.0.0.0/0")]).is_empty(), "the configuration names the source");
    }

    #[test]
    fn local_networks_pass_before_the_first_wider_policy_only() {
        let narrow = policy(Verdict::Protect, "10.1.0.0/16", "10.1.5.0/24");
        let full = policy(Verdict::Protect, "10.1.0.0/16", "0.0.0.0/0");
        let exempt = [range("10.1.0.0/16"), range("192.168.0.0/24"), range("2001:db8::/64")];
        let all = with_exempt(&[narrow, full], &exempt);
        let pass = |network: &str| policy(Verdict::Pass, "0.0.0.0/0", network);
        assert_eq!(all, [narrow, pass("10.1.0.0/16"), pass("192.168.0.0/24"), full]);
        // The same where the wider policy comes first.
        assert_eq!(with_exempt(&[full, narrow], &exempt[..1]), [narrow, pass("10.1.0.0/16"), full, narrow]);
        // A network that is protected as a whole is not exempt from its own policy.
        assert_eq!(with_exempt(&[full], &[range("0.0.0.0/0")]), [full]);
    }

    #[test]
    fn ports_are_compared_where_they_are_seen_and_fragments_are_dropped() {
        let web = policy(Verdict::Protect, "10.1.0.0/16[tcp]", "10.2.0.0/16[tcp/80]");
        let rules = of_policy(&web, Family::V4, true);
        assert_eq!(rules.len(), 2);
        assert!(rules[0].contains(&Expr::LaterFragment(Family::V4)));
        assert!(rules[1].contains(&Expr::Ports(Field::SourcePort, PortRange::single(80))));
        let out = of_policy(&web, Family::V4, false);
        assert!(out[1].contains(&Expr::Ports(Field::DestinationPort, PortRange::single(80))));
        // A pass is exact or absent.
        let echo = policy(Verdict::Pass, "10.1.0.0/16[icmp/8]", "10.2.0.0/16");
        assert!(of_policy(&echo, Family::V4, true).is_empty());
        let echo = GuardPolicy { verdict: Verdict::Protect, ..echo };
        assert_eq!(of_policy(&echo, Family::V4, true).len(), 1);
    }

    #[test]
    fn the_mss_is_limited_in_both_directions_and_leaves_room_for_the_longer_header() {
        let fixed = Fixed { table: "weir-weir0".into(), tun: "weir0".into(), mark: 1, reverse_path: true };
        let rules = clamp(&fixed, 1406);
        let sets = |inbound, family, mss| {
            let wanted = [Expr::Interface(inbound, "weir0".into()), Expr::Is(family), Expr::SetMss(mss)];
            rules.iter().filter(|rule| wanted.iter().all(|expression| rule.contains(expression))).count()
        };
        for inbound in [true, false] {
            assert_eq!((sets(inbound, Family::V4, 1406), sets(inbound, Family::V6, 1386)), (1, 1));
        }
        assert_eq!(rules.len(), 4);
    }
}
