//! Child SAs as packets see them: from what IKE negotiated to SAs, policies and traps.
//!
//! A [`Child`] is made when IKE says that it is up and stays until its inbound half has been given the
//! time to receive what is still under way. Children with the same selectors form a group: a policy
//! names the group, packets go out through its newest member.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crypto::{Engine, KeyTable, Suite};
use dataplane::{Acquire, Spread};
use ike::config::{ChildConfig, ChildMode, Connection, PerCpuSas};
use ike::output::{ChildId, ChildSa, HalfSa, Path};
use ike::proposal::{ChildProtocol, ChildSuite, SequenceNumbers};
use ipsec::{
    Action, Beet, DfPolicy, DscpPolicy, InboundSa, Lifetime, Mode, OutboundSa, Outer, Peer, Policy, SaCommon,
    SaCounters, SaError, UdpPorts, ah, eesp, esp,
};
use wire::registry::CodePoints;
use wire::{AddrRange, FlowKey, PortRange, Selector, TrafficSelector};

/// Selectors that one policy may have: every local with every remote one. RFC 7296 allows 255 of each, and
/// the bound keeps one peer from filling the SPD.
pub(crate) const MAX_SELECTORS: usize = 1024;
/// Smallest window that EESP allows, in packets.
const EESP_LEAST_WINDOW: u32 = 64;
/// Smallest window other than none for ESP and AH, in packets.
const LEAST_WINDOW: u32 = 32;

/// What has to be known besides the Child SA.
pub(crate) struct Site<'a> {
    /// Engine.
    pub(crate) engine: Engine,
    /// Packet threads: as many Sub SAs are of use.
    pub(crate) workers: usize,
    /// Protocol numbers.
    pub(crate) code_points: CodePoints,
    /// MTU of the way to a host, in bytes.
    pub(crate) path_mtu: &'a dyn Fn(IpAddr) -> u32,
}

/// A Child SA in use.
pub(crate) struct Child {
    /// Name.
    pub(crate) id: ChildId,
    /// Connection.
    pub(crate) connection: Arc<Connection>,
    /// Section.
    pub(crate) config: Arc<ChildConfig>,
    /// Addresses.
    pub(crate) path: Path,
    /// Selectors, source local.
    pub(crate) selectors: Vec<Selector>,
    /// Algorithms.
    pub(crate) suite: Suite,
    /// The CPU it is for (RFC 9611).
    pub(crate) cpu: Option<u32>,
    /// The half from the peer.
    pub(crate) inbound: Arc<InboundSa>,
    /// The half to the peer.
    pub(crate) outbound: Arc<OutboundSa>,
    /// Packets may go out through it.
    pub(crate) sending: bool,
    /// When its inbound half goes; it is over otherwise.
    pub(crate) until: Option<Instant>,
    /// Soft limits of one direction: packets, bytes; `u64::MAX` is none.
    pub(crate) soft: (u64, u64),
    /// IKE was told of the soft limit, of the hard one.
    pub(crate) told: (bool, bool),
    /// Inbound packets when it was last looked at.
    pub(crate) seen: u64,
}

impl Child {
    /// Expands the keys of a Child SA and lays out its halves. `jitter` in 0..=1 is the share of `rand` that
    /// is taken off the soft limits.
    ///
    /// # Errors
    /// What the protocol refuses, for instance a replay window out of range.
    pub(crate) fn new(child: &ChildSa, site: &Site<'_>, jitter: f64, keys: &mut KeyTable) -> Result<Self, SaError> {
        let suite = Suite { enc: child.suite.enc, integ: child.suite.integ };
        let mode = mode(child)?;
        let name = format!("{}.{}-{}", child.connection.name, child.config.name, child.id.0);
        let common = || SaCommon::new(&name, mode, outer(child.path, &child.config), lifetime(&child.config));
        let inbound = inbound(child, suite, site, common(), keys)?;
        let outbound = match outbound(child, suite, site, common(), keys) {
            Ok(outbound) => outbound,
            Err(why) => {
                inbound.lanes.iter().filter_map(|lane| lane.key).for_each(|key| keys.remove(key));
                return Err(why);
            }
        };
        outbound.set_path_mtu((site.path_mtu)(child.path.remote.ip()) as usize);
        let soft = |life: ike::config::Life<u64>| match life.rekey {
            0 => u64::MAX,
            rekey => rekey - ((life.rand.min(rekey / 2)) as f64 * jitter) as u64,
        };
        Ok(Self {
            id: child.id,
            connection: Arc::clone(&child.connection),
            config: Arc::clone(&child.config),
            path: child.path,
            selectors: pairs(&child.local_ts, &child.remote_ts),
            suite,
            cpu: child.cpu,
            inbound: Arc::new(inbound),
            outbound: Arc::new(outbound),
            sending: child.outbound_now,
            until: None,
            soft: (soft(child.config.packets), soft(child.config.bytes)),
            told: (false, false),
            seen: 0,
        })
    }

    /// Takes its keys out of `keys`.
    pub(crate) fn forget(&self, keys: &mut KeyTable) {
        self.outbound.lanes.iter().for_each(|lane| keys.remove(lane.key));
        self.inbound.lanes.iter().filter_map(|lane| lane.key).for_each(|key| keys.remove(key));
    }

    /// Puts it between other addresses.
    pub(crate) fn go(&mut self, path: Path, path_mtu: u32) {
        let outer = outer(path, &self.config);
        self.path = path;
        self.inbound = Arc::new(self.inbound.moved(outer));
        self.outbound = Arc::new(self.outbound.moved(outer));
        self.outbound.set_path_mtu(path_mtu as usize);
    }

    /// Whether a soft limit, a hard limit by packets or bytes has passed in either direction.
    pub(crate) fn worn(&self) -> (bool, bool) {
        let hard = lifetime(&self.config);
        let (mut soft_passed, mut hard_passed) = (false, false);
        for counters in [&self.inbound.common.counters, &self.outbound.common.counters] {
            let (packets, bytes) = figures(counters);
            soft_passed |= packets >= self.soft.0 || bytes >= self.soft.1;
            hard_passed |= packets >= hard.packets || bytes >= hard.bytes;
        }
        (soft_passed, hard_passed)
    }
}

/// Packets and bytes.
fn figures(counters: &SaCounters) -> (u64, u64) {
    (counters.packets.load(Ordering::Relaxed), counters.bytes.load(Ordering::Relaxed))
}

/// Every local selector with every remote one of its family whose protocol agrees.
pub(crate) fn pairs(local: &[TrafficSelector], remote: &[TrafficSelector]) -> Vec<Selector> {
    let of_family = |ours: &TrafficSelector| {
        let ours = *ours;
        remote
            .iter()
            .filter(move |theirs| theirs.addrs.is_v6() == ours.addrs.is_v6())
            .filter_map(move |theirs| Selector::from_sides(ours, *theirs).ok())
    };
    local.iter().flat_map(of_family).take(MAX_SELECTORS).collect()
}

fn mode(child: &ChildSa) -> Result<Mode, SaError> {
    let single = |selectors: &[TrafficSelector]| {
        let range = selectors.first().map(|selector| selector.addrs);
        range.filter(|range| range.start == range.end).map(|range| range.start)
    };
    Ok(match child.mode {
        ChildMode::Transport => Mode::Transport,
        ChildMode::Beet => match (single(&child.local_ts), single(&child.remote_ts)) {
            (Some(local), Some(remote)) => Mode::Beet(Beet { local, remote }),
            _ => return Err(SaError::Conflict("BEET mode needs selectors of one address on each side")),
        },
        ChildMode::Tunnel | ChildMode::Pass | ChildMode::Drop => Mode::Tunnel,
    })
}

fn outer(path: Path, config: &ChildConfig) -> Outer {
    Outer {
        peer: Peer { local: path.local.ip(), remote: path.remote.ip() },
        hop_limit: 64,
        dscp: if config.copy_dscp { DscpPolicy::Copy } else { DscpPolicy::Set(0) },
        ecn: config.copy_ecn,
        df: if config.copy_df { DfPolicy::Copy } else { DfPolicy::Clear },
        udp: path.encap.then_some(UdpPorts { src: path.local.port(), dst: path.remote.port() }),
        udp_checksum: path.remote.is_ipv6(),
    }
}

/// Hard limits by packets and bytes; time is for IKE.
fn lifetime(config: &ChildConfig) -> Lifetime {
    let limit = |life: u64| if life == 0 { u64::MAX } else { life };
    Lifetime { packets: limit(config.packets.life), bytes: limit(config.bytes.life) }
}

/// The window that was asked for, within what the protocol allows.
fn window(config: &ChildConfig, suite: &ChildSuite) -> u32 {
    match (suite.protocol, suite.sn) {
        (_, SequenceNumbers::None) => 0,
        (ChildProtocol::Eesp, _) => config.replay_window.max(EESP_LEAST_WINDOW),
        // ESN without a window would be a receiver that cannot follow the high half.
        (_, SequenceNumbers::Extended) => config.replay_window.max(LEAST_WINDOW),
        (..) if config.replay_window == 0 => 0,
        (..) => config.replay_window.max(LEAST_WINDOW),
    }
}

fn esp_spec<'a>(child: &'a ChildSa, half: &'a HalfSa, suite: Suite, first_seq: u64) -> esp::Spec<'a> {
    esp::Spec {
        spi: half.spi.get(),
        suite,
        enc_key: &half.enc,
        integ_key: &half.integ,
        esn: child.suite.sn == SequenceNumbers::Extended,
        window: window(&child.config, &child.suite),
        first_seq,
        persistent: false,
        tfc_padding: child.config.tfc_padding > 0 && child.tfc && child.mode == ChildMode::Tunnel,
        iv: esp::CbcIv::Encrypted,
    }
}

fn ah_spec<'a>(child: &'a ChildSa, half: &'a HalfSa, suite: Suite, first_seq: u64) -> ah::Spec<'a> {
    ah::Spec {
        spi: half.spi.get(),
        suite,
        integ_key: &half.integ,
        esn: child.suite.sn == SequenceNumbers::Extended,
        window: window(&child.config, &child.suite),
        first_seq,
        persistent: false,
        align8_v4: false,
    }
}

fn eesp_spec<'a>(
    child: &'a ChildSa,
    half: &'a HalfSa,
    suite: Suite,
    site: &Site<'_>,
    sub_sas: u32,
    crypt_offset: Option<u8>,
) -> eesp::Spec<'a> {
    eesp::Spec {
        spi: half.spi.get(),
        suite,
        key: &half.enc,
        sub_sas: child.suite.sskdf.map(|kdf| (kdf, sub_sas)),
        session: 0,
        seq: child.suite.sn == SequenceNumbers::Bits64,
        window: window(&child.config, &child.suite),
        first_seq: &[],
        persistent: false,
        crypt_offset,
        extra_options: &[],
        strict_options: false,
        ip_proto: site.code_points.eesp_protocol,
        first_iv: None,
    }
}

/// Sub SAs from the highest ID that the receiver accepts; none said is all of them.
fn sub_sas(max_id: Option<u16>) -> u32 {
    u32::from(max_id.unwrap_or(u16::MAX)) + 1
}

fn inbound(
    child: &ChildSa,
    suite: Suite,
    site: &Site<'_>,
    common: SaCommon,
    keys: &mut KeyTable,
) -> Result<InboundSa, SaError> {
    let half = &child.inbound;
    match child.suite.protocol {
        ChildProtocol::Esp => esp::inbound(common, &esp_spec(child, half, suite, 0), site.engine, keys),
        ChildProtocol::Ah => ah::inbound(common, &ah_spec(child, half, suite, 0), site.engine, keys),
        ChildProtocol::Eesp => {
            let announced = child.config.eesp_max_crypt_offset.map(|words| words.min(63) * 4);
            let count = sub_sas(child.config.eesp_max_sub_sa_id);
            let spec = eesp_spec(child, half, suite, site, count, announced);
            eesp::inbound(common, &spec, site.engine, keys)
        }
    }
}

fn outbound(
    child: &ChildSa,
    suite: Suite,
    site: &Site<'_>,
    common: SaCommon,
    keys: &mut KeyTable,
) -> Result<OutboundSa, SaError> {
    let half = &child.outbound;
    match child.suite.protocol {
        ChildProtocol::Esp => esp::outbound(common, &esp_spec(child, half, suite, 1), site.engine, keys),
        ChildProtocol::Ah => ah::outbound(common, &ah_spec(child, half, suite, 1), site.engine, keys),
        ChildProtocol::Eesp => {
            // One for each packet thread is all that is of use, and nobody has to use all (EESP §4.5).
            let count = sub_sas(child.peer_max_sub_sa_id).min(site.workers.max(1) as u32);
            let spec = eesp_spec(child, half, suite, site, count, None);
            eesp::outbound(common, &spec, site.engine, keys)
        }
    }
}

/// Policies of connections: what was negotiated, and what stands where nothing is yet.
#[derive(Default)]
pub(crate) struct Negotiated {
    children: BTreeMap<ChildId, Child>,
    standing: Vec<Standing>,
    /// Who is asked for an SA when a packet meets the trap of that number.
    callers: Vec<(Arc<Connection>, Arc<ChildConfig>)>,
    /// What the key service of PSP agreed; its policies come before the others.
    pub(crate) psp: crate::psp_keys::associations::Associations,
}

/// A policy that stands for a section, whether or not there is an SA.
struct Standing {
    connection: Arc<Connection>,
    config: Arc<ChildConfig>,
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

/// A policy of a connection, for people.
pub(crate) struct PolicyLine<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) config: &'a ChildConfig,
    pub(crate) selectors: &'a [Selector],
    /// In a word.
    pub(crate) action: &'static str,
    /// Name of the Child SA that protects.
    pub(crate) sa: Option<&'a str>,
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
/// Order of a policy without `priority` and with the widest selectors; each bit of a narrower one counts 1.
const AUTOMATIC_PRIORITY: u32 = 1 << 20;

impl Negotiated {
    /// Takes in a Child SA. One that replaces another is found by its selectors.
    pub(crate) fn install(&mut self, child: Child) {
        self.children.insert(child.id, child);
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

    /// All of them, to be changed.
    pub(crate) fn children_mut(&mut self) -> impl Iterator<Item = &mut Child> {
        self.children.values_mut()
    }

    /// Takes out what has received long enough after its end; the keys go with it.
    pub(crate) fn reap(&mut self, now: Instant, keys: &mut KeyTable) -> bool {
        let before = self.children.len();
        self.children.retain(|_, child| {
            let over = child.until.is_some_and(|until| until <= now);
            if over {
                child.forget(keys);
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
        dynamic: Option<(IpAddr, IpAddr)>,
    ) -> bool {
        let same =
            |standing: &Standing| standing.connection.name == connection.name && standing.config.name == config.name;
        let before = self.standing.len();
        self.standing.retain(|standing| !same(standing));
        let removed = self.standing.len() != before;
        let Some(selectors) = on.then(|| resolve(config, dynamic)).flatten().filter(|selectors| !selectors.is_empty())
        else {
            return removed;
        };
        let kind = match config.mode {
            ChildMode::Pass => StandingKind::Pass,
            ChildMode::Drop => StandingKind::Drop,
            _ if trap => StandingKind::Trap,
            _ => StandingKind::Drop,
        };
        let (connection, config) = (Arc::clone(connection), Arc::clone(config));
        self.standing.push(Standing { connection, config, selectors, kind });
        true
    }

    /// Sections that have a policy standing for them, and whether it lets packets pass.
    pub(crate) fn standing(&self) -> impl Iterator<Item = (&Arc<Connection>, &Arc<ChildConfig>, bool)> {
        self.standing.iter().map(|s| (&s.connection, &s.config, s.kind == StandingKind::Pass))
    }

    /// Policies for people, in the order in which packets meet them.
    pub(crate) fn policies(&self) -> Vec<PolicyLine<'_>> {
        let mut rows: Vec<(Rank, PolicyLine<'_>)> = Vec::new();
        for child in self.children.values().filter(|child| child.until.is_none()) {
            let rank = Rank::new(&child.config, &child.selectors, Order::Sa);
            let (connection, config, selectors) = (&*child.connection, &*child.config, &*child.selectors);
            let sa = Some(&*child.inbound.common.name);
            rows.push((rank, PolicyLine { connection, config, selectors, action: "protect", sa }));
        }
        for standing in &self.standing {
            let rank = Rank::new(&standing.config, &standing.selectors, Order::Standing);
            let action = match standing.kind {
                StandingKind::Trap => "trap",
                StandingKind::Pass => "bypass",
                StandingKind::Drop => "drop",
            };
            let (connection, config, selectors) = (&*standing.connection, &*standing.config, &*standing.selectors);
            rows.push((rank, PolicyLine { connection, config, selectors, action, sa: None }));
        }
        rows.sort_by_key(|(rank, _)| *rank);
        rows.into_iter().map(|(_, line)| line).collect()
    }

    /// What a packet that met a trap asks for.
    pub(crate) fn wanted(&self, acquire: &Acquire) -> Option<Wanted> {
        let (connection, config) = self.callers.get(acquire.trap as usize)?;
        Some(Wanted {
            connection: Arc::clone(connection),
            config: Arc::clone(config),
            packet: of_packet(&acquire.key),
            cpu: acquire.core,
        })
    }

    /// Selectors of everything that must not go its way in the clear.
    pub(crate) fn captured(&self) -> impl Iterator<Item = &Selector> {
        let standing = self.standing.iter().filter(|standing| standing.kind != StandingKind::Pass);
        let children = self.children.values().filter(|child| child.until.is_none());
        standing
            .flat_map(|standing| &standing.selectors)
            .chain(children.flat_map(|child| &child.selectors))
            .chain(self.psp.captured())
    }

    /// Lays SAs and policies behind those that are there.
    pub(crate) fn assemble(&mut self, workers: usize, into: &mut Assembly) {
        self.psp.assemble(into);
        let mut callers = Callers::default();
        let mut rows: Vec<(Rank, Policy)> = Vec::new();
        let mut groups: HashMap<&[Selector], Vec<&Child>> = HashMap::new();
        for child in self.children.values() {
            groups.entry(&child.selectors).or_default().push(child);
        }
        for (selectors, members) in groups {
            let Some(newest) = members.iter().max_by_key(|child| (child.until.is_none(), child.id)) else { continue };
            let inbound = group(&members, into);
            let outbound = slots(&members, workers, &mut callers, into);
            let action = Action::Protect { outbound, inbound };
            let name = newest.inbound.common.name.clone();
            // One that only receives what is still under way does not stand in the way of a trap.
            let over = members.iter().all(|child| child.until.is_some());
            let rank = Rank::new(&newest.config, selectors, if over { Order::Ending } else { Order::Sa });
            rows.push((rank, Policy { name, selectors: selectors.to_vec(), action }));
        }
        for standing in &self.standing {
            let action = match standing.kind {
                StandingKind::Pass => Action::Bypass,
                StandingKind::Drop => Action::Drop,
                StandingKind::Trap => Action::Trap(callers.number(&standing.connection, &standing.config)),
            };
            let name = format!("{}.{}", standing.connection.name, standing.config.name).into();
            let rank = Rank::new(&standing.config, &standing.selectors, Order::Standing);
            rows.push((rank, Policy { name, selectors: standing.selectors.clone(), action }));
        }
        rows.sort_by(|(a, p), (b, q)| a.cmp(b).then_with(|| p.name.cmp(&q.name)));
        into.policies.extend(rows.into_iter().map(|(_, policy)| policy));
        into.spread.sort_by_key(|spread| spread.slot);
        self.callers = callers.0;
    }
}

/// Sections that traps call, by number.
#[derive(Default)]
struct Callers(Vec<(Arc<Connection>, Arc<ChildConfig>)>);

impl Callers {
    fn number(&mut self, connection: &Arc<Connection>, config: &Arc<ChildConfig>) -> u32 {
        let same = |(c, s): &(Arc<Connection>, Arc<ChildConfig>)| c.name == connection.name && s.name == config.name;
        let at = self.0.iter().position(same).unwrap_or_else(|| {
            self.0.push((Arc::clone(connection), Arc::clone(config)));
            self.0.len() - 1
        });
        at as u32
    }
}

/// Which of policies with the same selectors comes first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Order {
    Sa,
    Standing,
    Ending,
}

/// Place of a policy: less is first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Rank(u32, Order);

impl Rank {
    fn new(config: &ChildConfig, selectors: &[Selector], order: Order) -> Self {
        let narrowest = selectors.iter().map(narrowness).max().unwrap_or(0);
        let automatic = AUTOMATIC_PRIORITY - narrowest.min(AUTOMATIC_PRIORITY - 1);
        Self(if config.priority == 0 { automatic } else { config.priority }, order)
    }
}

/// Bits that a selector fixes, those of an IPv4 address counted as of an IPv6 one.
pub(crate) fn narrowness(selector: &Selector) -> u32 {
    let addresses = |range: &AddrRange| {
        let bits = |addr: IpAddr| match addr {
            IpAddr::V4(addr) => u128::from(addr.to_bits()),
            IpAddr::V6(addr) => addr.to_bits(),
        };
        let span = bits(range.end) - bits(range.start);
        let width = 128 - span.leading_zeros();
        if range.is_v6() { 128 - width } else { 4 * (32 - width.min(32)) }
    };
    let ports = |range: &PortRange| match range.end.checked_sub(range.start) {
        Some(span) => u16::BITS - (u16::BITS - span.leading_zeros()),
        None => u16::BITS,
    };
    let fixed = addresses(&selector.src) + addresses(&selector.dst);
    let ports = ports(&selector.src_ports) + ports(&selector.dst_ports);
    // Eight bits for the protocol, so that addresses decide before it and it before ports.
    fixed * 64 + if selector.proto.is_some() { 8 + ports } else { 0 }
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

/// Adds the sending halves of interchangeable SAs and returns the slot that policies name.
fn slots(members: &[&Child], workers: usize, callers: &mut Callers, into: &mut Assembly) -> u32 {
    let sending = || members.iter().filter(|child| child.sending && child.until.is_none());
    let fallback = sending().max_by_key(|child| (child.cpu.is_none(), child.id));
    let Some(fallback) = fallback else { return NO_SLOT };
    let slot = into.send(&fallback.outbound);
    let several = sending().any(|child| child.cpu.is_some());
    if several || fallback.config.per_cpu_sas != PerCpuSas::No {
        let mut by_core = vec![None; workers];
        // In the order of their names: of several for one CPU the newest is used.
        for child in sending() {
            if let Some(place) = child.cpu.and_then(|cpu| by_core.get_mut(cpu as usize)) {
                *place = Some(into.send(&child.outbound));
            }
        }
        let trap = callers.number(&fallback.connection, &fallback.config);
        into.spread.push(Spread { slot, by_core, trap });
    }
    slot
}

/// Selectors of a section, `dynamic` being the two addresses; `None` when they are not known.
fn resolve(config: &ChildConfig, dynamic: Option<(IpAddr, IpAddr)>) -> Option<Vec<Selector>> {
    let side = |list: &[ike::config::TsConfig], addr: Option<IpAddr>| -> Option<Vec<TrafficSelector>> {
        list.iter()
            .map(|ts| match (ts.addrs, addr) {
                (Some(range), _) => Some(ts.resolve(range.start)),
                (None, addr) => addr.map(|addr| ts.resolve(addr)),
            })
            .collect()
    };
    let local = side(&config.local_ts, dynamic.map(|(local, _)| local))?;
    let remote = side(&config.remote_ts, dynamic.map(|(_, remote)| remote))?;
    Some(pairs(&local, &remote))
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
mod tests {
    use super::*;

    fn ts(text: &str) -> TrafficSelector {
        text.parse().unwrap()
    }

    fn rank(priority: u32, local: &str, remote: &str, order: Order) -> Rank {
        let config = ChildConfig { priority, ..section("net") };
        Rank::new(&config, &pairs(&[ts(local)], &[ts(remote)]), order)
    }

    fn section(name: &str) -> ChildConfig {
        use ike::config::{Action, Life, StartAction};
        ChildConfig {
            name: name.into(),
            proposals: Vec::new(),
            local_ts: Vec::new(),
            remote_ts: Vec::new(),
            mode: ChildMode::Tunnel,
            time: Life::default(),
            bytes: Life::default(),
            packets: Life::default(),
            dpd_action: Action::Clear,
            start_action: StartAction::default(),
            close_action: Action::Clear,
            inactivity: std::time::Duration::ZERO,
            priority: 0,
            interface: None,
            reqid: 0,
            replay_window: 32,
            per_cpu_sas: PerCpuSas::No,
            tfc_padding: 0,
            copy_df: true,
            copy_ecn: true,
            copy_dscp: true,
            sha256_96: false,
            eesp_max_sub_sa_id: None,
            eesp_max_crypt_offset: None,
            updown: None,
        }
    }

    #[test]
    fn narrower_policies_come_first_and_sas_before_their_traps() {
        let order = [
            rank(7, "0.0.0.0/0", "0.0.0.0/0", Order::Standing),
            rank(0, "10.1.0.1", "10.2.0.1[tcp/22]", Order::Sa),
            rank(0, "10.1.0.1", "10.2.0.1[tcp]", Order::Sa),
            rank(0, "10.1.0.1", "10.2.0.1", Order::Sa),
            rank(0, "10.1.0.1", "10.2.0.1", Order::Standing),
            rank(0, "10.1.0.1", "10.2.0.1", Order::Ending),
            rank(0, "10.1.0.0/16", "10.2.0.0/16", Order::Sa),
            rank(0, "10.1.0.0/16", "0.0.0.0/0", Order::Sa),
            rank(0, "0.0.0.0/0", "0.0.0.0/0", Order::Sa),
        ];
        assert!(order.is_sorted(), "{order:?}");
        assert_eq!(rank(0, "::/0", "::/0", Order::Sa), rank(0, "0.0.0.0/0", "0.0.0.0/0", Order::Sa));
    }

    #[test]
    fn both_sides_of_a_family_make_pairs_within_a_bound() {
        let made =
            pairs(&[ts("10.1.0.0/16"), ts("fd01::/16")], &[ts("10.2.0.0/16[tcp]"), ts("fd02::/16"), ts("fd03::1")]);
        assert_eq!(made.len(), 3);
        let many: Vec<_> = (0..200).map(|i| ts(&format!("10.0.{i}.0/24"))).collect();
        assert_eq!(pairs(&many, &many).len(), MAX_SELECTORS);
    }

    #[test]
    fn a_packet_asks_in_the_words_of_its_protocol() {
        use wire::IpProto;
        let key = |proto, ports: (u16, u16)| {
            of_packet(&FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), proto, ports.0, ports.1))
        };
        assert_eq!(key(IpProto::TCP, (1000, 22)), (ts("10.0.0.1[tcp/1000]"), ts("10.0.0.2[tcp/22]")));
        let (local, remote) = key(IpProto::ICMP, (8 << 8, 0));
        assert_eq!((local.ports, remote.ports), (PortRange::single(8 << 8), PortRange::ANY));
        assert_eq!(key(IpProto::GRE, (0, 0)), (ts("10.0.0.1[gre]"), ts("10.0.0.2[gre]")));
        let v6 = FlowKey::new("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), IpProto::UDP, 5, 6);
        assert_eq!(of_packet(&v6), (ts("fd00::1[udp/5]"), ts("fd00::2[udp/6]")));
    }
}
