//! One Child SA: from keys and numbers that IKE agreed on to two halves that packets use.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crypto::{Engine, KeyTable, Suite};
use dataplane::PacedStream;
use ike::config::{ChildConfig, ChildMode, Connection, IptfsConfig};
use ike::identity::Identity;
use ike::output::{ChildId, ChildSa, IkeId, Path, SimplexSa};
use ike::proposal::{ChildProtocol, ChildSuite, SequenceNumbers};
use ipsec::aggfrag::Settings;
use ipsec::{
    Beet, DfPolicy, DscpPolicy, InboundSa, Lifetime, Mode, OutboundSa, Outer, Peer, SaCommon, SaCounters, SaError,
    UdpPorts, ah, eesp, esp,
};
use wire::registry::CodePoints;
use wire::{Selector, TrafficSelector};

use super::order::{Order, Rank};
use super::pairs;

/// Smallest window that EESP allows, in packets.
const EESP_LEAST_WINDOW: u32 = 64;
/// Smallest window other than none for ESP and AH, in packets.
const LEAST_WINDOW: u32 = 32;

/// Packets after which an SA with 32-bit sequence numbers is replaced, whatever its section
/// contains: where they run out it passes nothing any more (RFC 4303 §3.3.3). A sixteenth of them
/// is left for the negotiation.
const NUMBERS_32: u64 = (1 << 32) - (1 << 28);

/// Context of a Child SA.
pub(crate) struct Site<'a> {
    /// Engine.
    pub(crate) engine: Engine,
    /// Packet threads: as many Sub SAs are of use.
    pub(crate) workers: usize,
    /// Protocol numbers.
    pub(crate) code_points: CodePoints,
    /// Path MTU to a host, in bytes.
    pub(crate) path_mtu: &'a dyn Fn(IpAddr) -> u32,
}

/// A Child SA in use.
pub(crate) struct Child {
    /// Name.
    pub(crate) id: ChildId,
    /// IKE SA that negotiated it.
    pub(crate) ike: IkeId,
    /// Identity of the peer.
    pub(crate) remote_id: Identity,
    /// Request id, for listings.
    pub(crate) reqid: u32,
    /// Connection.
    pub(crate) connection: Arc<Connection>,
    /// Section.
    pub(crate) config: Arc<ChildConfig>,
    /// Addresses.
    pub(crate) path: Path,
    /// Name of both halves, which is also that of the policy.
    pub(super) name: Arc<str>,
    /// Selectors, source local.
    pub(crate) selectors: Arc<[Selector]>,
    /// Position of its policy.
    pub(super) rank: Rank,
    /// Its peer.
    pub(super) group: GroupOf,
    /// Number of its group: of groups with the same selectors the latest is used.
    pub(super) turn: u64,
    /// Hash of peer and selectors: equal within a group, and rarely equal elsewhere.
    pub(super) group_hash: u64,
    /// Hash of the selectors.
    pub(super) selectors_hash: u64,
    /// Number of other Child SAs with the hash of the group.
    pub(super) companions: usize,
    /// Algorithms.
    pub(crate) suite: Suite,
    /// The CPU it is for (RFC 9611).
    pub(crate) cpu: Option<u32>,
    /// The half from the peer.
    pub(crate) inbound: Arc<InboundSa>,
    /// The half to the peer.
    pub(crate) outbound: Arc<OutboundSa>,
    /// Stream of its packets, if they have a constant rate. Shared within a group.
    pub(crate) paced: Option<Arc<PacedStream>>,
    /// Packets may go out through it.
    pub(crate) sending: bool,
    /// The peer may not have it yet.
    pub(super) unconfirmed: Option<Unconfirmed>,
    /// Time at which the inbound half is removed; the outbound half has already ended.
    pub(crate) until: Option<Instant>,
    /// Soft limits of one direction: packets, bytes; `u64::MAX` is none.
    pub(crate) soft: (u64, u64),
    /// True if the soft, and the hard, limit was reported to IKE.
    pub(crate) reported: (bool, bool),
    /// Packets inbound and outbound when it was last looked at.
    pub(crate) seen: (u64, u64),
    /// Times of the last packets in each direction.
    pub(crate) used: (Option<Instant>, Option<Instant>),
}

/// A peer: an authenticated identity of one connection. Child SAs of two peers are never
/// interchangeable.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct GroupOf {
    connection: String,
    peer: Identity,
}

impl GroupOf {
    /// Returns whether the peer has the same identity, on any connection.
    pub(super) fn is_of_peer(&self, other: &Self) -> bool {
        self.peer == other.peer
    }
}

/// A Child SA requested by the peer. The response is sent after the SA is installed here (RFC 7296
/// §1.2), so packets sent before the peer has received it would be lost.
pub(super) struct Unconfirmed {
    /// Deadline after which it is used without confirmation.
    pub(super) until: Instant,
    /// Earlier deadline, and packets that SAs of other IKE SAs had received when it came up. If
    /// they receive none until then, the peer may have lost them.
    pub(super) until_silent: Option<(Instant, u64)>,
    /// Set when the wait ends; the workers read it.
    pub(super) timed_out: Arc<AtomicBool>,
}

impl Unconfirmed {
    /// Returns whether the Child SA is used without confirmation. `received` counts the packets
    /// that its predecessors have received.
    pub(super) fn is_due(&self, now: Instant, received: impl Fn() -> u64) -> bool {
        self.until <= now || self.until_silent.is_some_and(|(until, before)| until <= now && received() <= before)
    }
}

impl Child {
    /// Returns whether packets go out through it, now or as soon as the peer has it.
    pub(super) fn sends(&self) -> bool {
        self.sending && self.until.is_none()
    }

    /// Joins the stream of `other`, of the same group, if its packets have the same rate and size.
    pub(super) fn join_stream(&mut self, other: &Self) -> bool {
        let same = self.paced.is_some() && other.paced.is_some() && pace(&self.outbound) == pace(&other.outbound);
        if same {
            self.paced.clone_from(&other.paced);
        }
        same
    }

    /// Returns whether it has received packets.
    pub(super) fn has_received(&self) -> bool {
        self.inbound.common.counters.packets() > 0
    }

    /// The peer has it, or had time enough.
    pub(super) fn prove(&mut self) {
        if let Some(unconfirmed) = self.unconfirmed.take() {
            unconfirmed.timed_out.store(true, Ordering::Relaxed);
        }
    }

    /// Expands the keys of a Child SA and lays out its halves. `jitter` in 0..=1 is the share of
    /// `rand` that is taken off the soft limits.
    ///
    /// # Errors
    /// Settings that are invalid for the protocol, for instance a replay window out of range.
    pub(crate) fn new(child: &ChildSa, site: &Site<'_>, jitter: f64, keys: &mut KeyTable) -> Result<Self, SaError> {
        let suite = Suite { enc: child.suite.enc, integ: child.suite.integ };
        let mode = mode(child)?;
        let name = sa_name(&child.connection.name, &child.config.name, child.id.0);
        let original = child.original.map(|(remote, local)| Peer { local, remote });
        let common = || {
            SaCommon::new(&name, mode, outer(child.path, &child.config), lifetime(&child.config))
                .with_original(original)
        };
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
            rekey => rekey - (life.rand.min(rekey) as f64 * jitter) as u64,
        };
        let numbers = if child.suite.sn == SequenceNumbers::Bits32 { NUMBERS_32 } else { u64::MAX };
        let selectors: Arc<[Selector]> = pairs(&child.local_ts, &child.remote_ts).into();
        let group = GroupOf { connection: child.connection.name.clone(), peer: child.peer_id.clone() };
        let mut hasher = DefaultHasher::new();
        (&group, &selectors).hash(&mut hasher);
        Ok(Self {
            id: child.id,
            ike: child.ike,
            remote_id: child.remote_id.clone(),
            reqid: 0,
            connection: Arc::clone(&child.connection),
            config: Arc::clone(&child.config),
            path: child.path,
            group,
            turn: 0,
            group_hash: hasher.finish(),
            selectors_hash: hash_of(&selectors),
            companions: 0,
            rank: Rank::new(&child.config, &selectors, Order::Sa),
            name: Arc::clone(&inbound.common.name),
            selectors,
            suite,
            cpu: child.cpu,
            inbound: Arc::new(inbound),
            paced: pace(&outbound).map(|(rate_kbps, _)| PacedStream::new(rate_kbps, site.workers)),
            outbound: Arc::new(outbound),
            sending: child.outbound_now,
            unconfirmed: None,
            until: None,
            soft: (soft(child.config.packets).min(numbers), soft(child.config.bytes)),
            reported: (false, false),
            seen: (0, 0),
            used: (None, None),
        })
    }

    /// Updates the counters since the last call; returns whether packets arrived.
    pub(crate) fn look(&mut self, now: Instant) -> bool {
        let packets = (self.inbound.common.counters.packets(), self.outbound.common.counters.packets());
        let came = packets.0 != self.seen.0;
        if came {
            self.used.0 = Some(now);
        }
        if packets.1 != self.seen.1 {
            self.used.1 = Some(now);
        }
        self.seen = packets;
        came
    }

    /// Seconds since the last packet in and out, as of the last look: the packet path keeps no
    /// time.
    pub(crate) fn idle_s(&self, now: Instant) -> (Option<u64>, Option<u64>) {
        let since = |at: Option<Instant>| at.map(|at| now.saturating_duration_since(at).as_secs());
        (since(self.used.0), since(self.used.1))
    }

    /// Returns whether both serve the same packets of one peer.
    pub(crate) fn is_redundant_with(&self, other: &Self) -> bool {
        self.group_hash == other.group_hash && self.group == other.group && self.selectors == other.selectors
    }

    /// Number of its keys.
    #[cfg(feature = "simulation")]
    pub(crate) fn keys(&self) -> usize {
        self.outbound.lanes.len() + self.inbound.lanes.iter().filter(|lane| lane.key.is_some()).count()
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

    /// Returns whether a soft limit, a hard limit by packets or bytes has passed in either
    /// direction.
    pub(crate) fn worn(&self) -> (bool, bool) {
        let hard = lifetime(&self.config);
        let (mut soft_passed, mut hard_passed) = (false, false);
        for common in [&self.inbound.common, &self.outbound.common] {
            let (packets, bytes) = figures(&common.counters);
            // Its last bytes may be too few for a packet.
            hard_passed |= common.expired.load(Ordering::Relaxed);
            soft_passed |= packets >= self.soft.0 || bytes >= self.soft.1;
            hard_passed |= packets >= hard.packets || bytes >= hard.bytes;
        }
        (soft_passed, hard_passed)
    }
}

/// Name of both SAs of a Child SA.
pub(crate) fn sa_name(connection: &str, child: &str, id: u32) -> String {
    format!("{connection}.{child}-{id}")
}

/// Rate in kbit/s and size in bytes of the packets of an SA; `None` if they have no constant rate.
fn pace(sa: &OutboundSa) -> Option<(u32, u16)> {
    let settings = sa.common.aggfrag().filter(|settings| settings.rate_kbps > 0)?;
    Some((settings.rate_kbps, settings.packet_size))
}

/// Hash of selectors, for comparisons within this process.
pub(super) fn hash_of(selectors: &[Selector]) -> u64 {
    let mut hasher = DefaultHasher::new();
    selectors.hash(&mut hasher);
    hasher.finish()
}

/// Packets and bytes.
fn figures(counters: &SaCounters) -> (u64, u64) {
    (counters.packets(), counters.bytes())
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
            _ => return Err(SaError::Conflict("BEET mode requires a single address on each side")),
        },
        ChildMode::Iptfs => Mode::Aggfrag(aggfrag(&child.config.iptfs, child.peer_refuses_fragments)),
        ChildMode::Tunnel | ChildMode::Pass | ChildMode::Drop => Mode::Tunnel,
    })
}

/// Settings of both directions: each uses its own.
fn aggfrag(config: &IptfsConfig, peer_refuses_fragments: bool) -> Settings {
    Settings {
        reorder_window: config.reorder_window,
        drop_time_ms: config.drop_time.as_millis().min(u32::MAX.into()) as u32,
        packet_size: config.packet_size,
        rate_kbps: config.rate_kbps,
        dont_fragment: config.dont_fragment || peer_refuses_fragments,
        refuse_fragments: !config.accept_fragments,
        prefer_whole: config.prefer_whole,
    }
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

/// Returns the configured window, limited to the maximum of the protocol.
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

fn esp_spec<'a>(child: &'a ChildSa, half: &'a SimplexSa, suite: Suite, first_seq: u64) -> esp::Spec<'a> {
    esp::Spec {
        spi: half.spi,
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

fn ah_spec<'a>(child: &'a ChildSa, half: &'a SimplexSa, suite: Suite, first_seq: u64) -> ah::Spec<'a> {
    ah::Spec {
        spi: half.spi,
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
    half: &'a SimplexSa,
    suite: Suite,
    site: &Site<'_>,
    sub_sas: u32,
    crypt_offset: Option<u8>,
) -> eesp::Spec<'a> {
    eesp::Spec {
        spi: half.spi,
        suite,
        key: &half.enc,
        sub_sas: child.suite.sskdf.map(|kdf| (kdf, sub_sas)),
        session: 0,
        seq: child.suite.sn == SequenceNumbers::Bits64,
        window: window(&child.config, &child.suite),
        first_seq: &[],
        persistent: false,
        // A payload of AGGFRAG mode has no header at a fixed place.
        crypt_offset: crypt_offset.filter(|_| child.mode != ChildMode::Iptfs),
        extra_options: &[],
        strict_options: false,
        ip_proto: site.code_points.eesp_protocol,
        first_iv: None,
    }
}

/// Number of Sub SAs from the highest ID that the receiver accepts; without the notify it is
/// unlimited.
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
            // One per worker is sufficient, and a sender need not use all (EESP §4.5).
            let count = sub_sas(child.peer_max_sub_sa_id).min(site.workers.max(1) as u32);
            // The stream of packets with a constant rate has one sender.
            let count = if common.aggfrag().is_some_and(|settings| settings.rate_kbps > 0) { 1 } else { count };
            let spec = eesp_spec(child, half, suite, site, count, None);
            let mut sa = eesp::outbound(common, &spec, site.engine, keys)?;
            sa.set_reply_spi(child.inbound.spi.get(), site.workers);
            Ok(sa)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_end_can_refuse_cut_packets() {
        let config = IptfsConfig { drop_time: std::time::Duration::from_millis(40), ..IptfsConfig::default() };
        let of = |config: &IptfsConfig, peer| {
            let settings = aggfrag(config, peer);
            (settings.dont_fragment, settings.refuse_fragments, settings.drop_time_ms)
        };
        assert_eq!(of(&config, false), (false, false, 40));
        assert_eq!(of(&config, true), (true, false, 40));
        assert_eq!(of(&IptfsConfig { dont_fragment: true, ..config }, false), (true, false, 40));
        assert_eq!(of(&IptfsConfig { accept_fragments: false, ..config }, false), (false, true, 40));
        // The defaults of both layers agree.
        assert_eq!(aggfrag(&IptfsConfig::default(), false), Settings::default());
    }
}
