//! Security associations: built by the control side, read by the packet path.
//!
//! The control side creates an SA from a specification and publishes it in a snapshot behind an
//! `Arc`. The SA outlives snapshots as long as its specification exists. Mutable state is atomic:
//! the one core that owns an inbound SA writes with plain loads and stores, and outbound sequence
//! numbers are reserved in blocks.

use std::mem::offset_of;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crypto::{KeyError, KeyId};
use wire::SessionId;

use crate::checksum_fixup::ChecksumFixup;
use crate::encap::HeaderTemplate;
use crate::pmtu::PathMtu;
use crate::template::{InTemplate, OutTemplate};
use crate::{DropReason, InProto, OutProto, Protocol, ReplayWindow, SeqCounter, aggfrag, psp};

/// Encapsulation mode: which part of the packet is protected, and which IP header is the outer one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// A whole packet inside a new IP header (RFC 4301 §5.1.2).
    Tunnel,
    /// The upper layer inside the original IP header.
    Transport,
    /// Bound end-to-end tunnel: like transport, with fixed inner addresses known to both ends
    /// (draft-nikander-esp-beet-mode, RFC 7402 appendix B).
    Beet(Beet),
    /// A tunnel whose packets carry several inner packets and pieces of them (RFC 9347). The packet
    /// path packs and unpacks them ([`crate::aggfrag`]): its steps see AGGFRAG payloads.
    Aggfrag(aggfrag::Settings),
}

/// Inner addresses of a BEET SA, seen from this host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Beet {
    /// Inner address of this host.
    pub local: IpAddr,
    /// Inner address of the peer.
    pub remote: IpAddr,
}

/// The outer addresses of an SA, seen from this host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Peer {
    /// This host.
    pub local: IpAddr,
    /// The peer, of the same family.
    pub remote: IpAddr,
}

impl Peer {
    /// Returns the addresses as the peer sees them.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self { local: self.remote, remote: self.local }
    }
}

/// UDP ports of an encapsulated SA, in host order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UdpPorts {
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
}

/// DSCP of the outer header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DscpPolicy {
    /// Copied from the inner header.
    Copy,
    /// Fixed, 0..=63.
    Set(u8),
}

/// DF bit of an outer IPv4 header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DfPolicy {
    /// As in the inner header (IPv6 inside counts as set).
    Copy,
    /// Always set.
    Set,
    /// Never set.
    Clear,
}

/// How the outer header of a tunnel is filled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Outer {
    /// Addresses.
    pub peer: Peer,
    /// TTL or hop limit; 64 unless configured.
    pub hop_limit: u8,
    /// DSCP.
    pub dscp: DscpPolicy,
    /// Copy ECN in both directions (RFC 6040 normal mode); otherwise the outer field is Not-ECT.
    pub ecn: bool,
    /// DF of an IPv4 outer header.
    pub df: DfPolicy,
    /// ESP, EESP in UDP. `None` for plain IP. PSP sets its own ports per flow.
    pub udp: Option<UdpPorts>,
    /// Send a real UDP checksum. Off: zero, as RFC 3948 §2.1 requires over IPv4; on by default over
    /// IPv6.
    pub udp_checksum: bool,
}

impl Outer {
    /// Returns the defaults for a tunnel: hop limit 64; DSCP, ECN and DF copied; no UDP.
    pub const fn new(local: IpAddr, remote: IpAddr) -> Self {
        Self {
            peer: Peer { local, remote },
            hop_limit: 64,
            dscp: DscpPolicy::Copy,
            ecn: true,
            df: DfPolicy::Copy,
            udp: None,
            udp_checksum: false,
        }
    }
}

/// Hard limits of an SA; `u64::MAX` is none. Soft limits and time belong to the control side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lifetime {
    /// Packets per key.
    pub packets: u64,
    /// Bytes of protected payload per key.
    pub bytes: u64,
}

impl Lifetime {
    /// No limits.
    pub const NONE: Self = Self { packets: u64::MAX, bytes: u64::MAX };
}

/// Alignment against false sharing: two cache lines, because x86 processors prefetch them in pairs.
pub(crate) const CACHE_LINE_PAIR: usize = 128;

/// Packets and bytes of one lane. Relaxed atomics: each value is consistent, both together are not.
#[derive(Default)]
pub struct LaneTraffic {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl LaneTraffic {
    /// Adds packets of a lane that several cores may use.
    #[inline]
    pub fn add(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds packets without a locked instruction. Only the core that owns the lane may call it;
    /// otherwise counts are lost.
    #[inline]
    pub fn add_owned(&self, packets: u64, bytes: u64) {
        let bump = |counter: &AtomicU64, by| counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
        bump(&self.packets, packets);
        bump(&self.bytes, bytes);
    }

    /// Subtracts packets that were counted before they were dropped.
    #[cold]
    pub fn take_back(&self, packets: u64, bytes: u64) {
        let before = self.packets.fetch_sub(packets, Ordering::Relaxed);
        debug_assert!(before >= packets, "packets were not counted before they were subtracted");
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Packets and bytes.
    pub fn get(&self) -> (u64, u64) {
        (self.packets.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// The same on separate cache lines.
#[derive(Default)]
#[repr(align(128))]
struct SeparateTraffic(LaneTraffic);
const _: () = assert!(size_of::<SeparateTraffic>() == CACHE_LINE_PAIR);

/// Where the packets of an SA are counted. Each lane has its own counters, because a counter that
/// several cores write would bounce its cache line between them.
enum TrafficStore {
    /// With the lanes, in cache lines that the packets write anyway.
    Out(Arc<[OutLane]>),
    In(Arc<[InLane]>),
    /// Apart from the lanes, at least one counter; lanes beyond their number share them.
    Separate(Box<[SeparateTraffic]>),
}

/// Traffic counters of an SA. Relaxed atomics: each value is consistent, a set of values is not.
/// Readers sum over the lanes.
pub struct SaCounters {
    traffic: TrafficStore,
    /// Dropped packets by [`DropReason`].
    pub drops: [AtomicU64; DropReason::COUNT],
    /// Unknown EESP options that were skipped.
    pub unknown_options: AtomicU64,
    /// Packets and bytes granted by [`SaCommon::grant`].
    granted: SeparateTraffic,
}

impl Default for SaCounters {
    fn default() -> Self {
        Self::new(1)
    }
}

impl SaCounters {
    /// Maximum number of lanes with separate counters: the maximum number of workers.
    pub const MAX_LANES: usize = 64;

    /// Counters of an SA with `lanes` lanes, apart from these.
    pub fn new(lanes: usize) -> Self {
        let lanes = lanes.clamp(1, Self::MAX_LANES);
        Self::stored(TrafficStore::Separate((0..lanes).map(|_| SeparateTraffic::default()).collect()))
    }

    fn stored(traffic: TrafficStore) -> Self {
        Self {
            traffic,
            drops: [const { AtomicU64::new(0) }; DropReason::COUNT],
            unknown_options: AtomicU64::new(0),
            granted: SeparateTraffic::default(),
        }
    }

    /// Counters of the lane at index `lane`.
    pub fn of(&self, lane: usize) -> &LaneTraffic {
        match &self.traffic {
            TrafficStore::Out(lanes) => &lanes[lane % lanes.len()].traffic,
            TrafficStore::In(lanes) => &lanes[lane % lanes.len()].traffic,
            TrafficStore::Separate(lanes) => &lanes[lane % lanes.len()].0,
        }
    }

    fn sum(&self, what: impl Fn(&LaneTraffic) -> &AtomicU64) -> u64 {
        let lanes = match &self.traffic {
            TrafficStore::Out(lanes) => lanes.len(),
            TrafficStore::In(lanes) => lanes.len(),
            TrafficStore::Separate(lanes) => lanes.len(),
        };
        (0..lanes).fold(0, |sum: u64, lane| sum.wrapping_add(what(self.of(lane)).load(Ordering::Relaxed)))
    }

    /// Packets protected or delivered.
    pub fn packets(&self) -> u64 {
        self.sum(|lane| &lane.packets)
    }

    /// Bytes of inner packets protected or delivered.
    pub fn bytes(&self) -> u64 {
        self.sum(|lane| &lane.bytes)
    }

    /// Counts one dropped packet.
    pub fn count_drop(&self, why: DropReason) {
        self.drops[why as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Fields common to the SAs of all protocols. In this order, because what every packet needs is in
/// the first [`SaCommon::HOT_LEN`] bytes.
#[repr(C)]
pub struct SaCommon {
    /// Hard limits.
    pub lifetime: Lifetime,
    /// Set by the control side when a time limit has passed, and by a packet that did not fit
    /// through a hard limit: every packet is then dropped.
    pub expired: AtomicBool,
    /// Mode.
    pub mode: Mode,
    /// Counters. Shared between an SA and its copy with other addresses, so that packets which
    /// workers send or receive through the old one are counted.
    pub counters: Arc<SaCounters>,
    /// Outer header; for transport mode its addresses are those of the packets.
    pub outer: Outer,
    /// Template of the outer IP header: the fields that all packets share.
    pub(crate) header: HeaderTemplate,
    /// Name in the configuration, for reports.
    pub name: Arc<str>,
    /// As in [`SaCommon::with_original`].
    original: Option<Peer>,
    /// Correction of inner checksums that follows from `original`.
    pub(crate) fixup: Option<ChecksumFixup>,
}

impl SaCommon {
    const HOT_LEN: usize = offset_of!(Self, expired) + size_of::<AtomicBool>();

    /// Common part with fresh counters.
    pub fn new(name: &str, mode: Mode, outer: Outer, lifetime: Lifetime) -> Self {
        Self {
            name: name.into(),
            mode,
            outer,
            lifetime,
            counters: Arc::default(),
            expired: AtomicBool::new(false),
            header: HeaderTemplate::new(outer.peer.local, outer.peer.remote),
            original: None,
            fixup: None,
        }
    }

    /// Sets the original addresses of an SA in transport mode through a NAT: those that the peer
    /// writes into its packets, its own as `remote`. Inner checksums are corrected for the
    /// addresses that packets have at this host (RFC 3948 §3.1.2).
    #[must_use]
    pub fn with_original(mut self, original: Option<Peer>) -> Self {
        self.fixup = original.and_then(|original| ChecksumFixup::new(original, self.outer.peer));
        self.original = original;
        self
    }

    /// Returns a copy with other addresses and the same counters.
    fn moved(&self, outer: Outer) -> Self {
        let mut moved = Self::new(&self.name, self.mode, outer, self.lifetime).with_original(self.original);
        moved.counters = Arc::clone(&self.counters);
        moved.expired.store(self.expired.load(Ordering::Relaxed), Ordering::Relaxed);
        moved
    }

    /// Settings of AGGFRAG mode, if that is the mode.
    #[inline]
    pub const fn aggfrag(&self) -> Option<&aggfrag::Settings> {
        match &self.mode {
            Mode::Aggfrag(settings) => Some(settings),
            Mode::Tunnel | Mode::Transport | Mode::Beet(_) => None,
        }
    }

    /// Returns whether the SA has hard limits.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.lifetime != Lifetime::NONE
    }

    /// Returns whether [`SaCommon::check_lifetime`] may return an error.
    #[inline]
    pub fn may_be_spent(&self) -> bool {
        self.expired.load(Ordering::Relaxed) || self.is_limited()
    }

    /// Returns an error if a hard limit has passed. The counters are read only if there is a limit,
    /// because a read of lines that other cores write is a cache miss.
    #[inline]
    pub fn check_lifetime(&self) -> Result<(), DropReason> {
        let spent = self.expired.load(Ordering::Relaxed)
            || (self.is_limited()
                && (self.counters.packets() >= self.lifetime.packets || self.counters.bytes() >= self.lifetime.bytes));
        if spent { Err(DropReason::Expired) } else { Ok(()) }
    }

    /// Grants the first of the packets with these lengths in bytes, as many as the hard limits
    /// permit. Returns their number and bytes. The sum of all grants never exceeds a limit, on
    /// however many cores.
    ///
    /// # Errors
    /// [`DropReason::Expired`] if there is not even one. The SA is expired then.
    pub fn grant(&self, lens: impl Iterator<Item = u64> + Clone) -> Result<(u32, u64), DropReason> {
        let (granted, limit) = (&self.counters.granted.0, self.lifetime);
        // The packets first, then of these as many as the bytes suffice for.
        let mut packets = 0;
        let some = granted.packets.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            packets = limit.packets.saturating_sub(before).min(lens.clone().count() as u64);
            (packets > 0).then_some(before + packets)
        });
        if some.is_err() {
            return Err(self.expire());
        }
        let (mut fit, mut bytes) = (0, 0);
        let some = granted.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            (fit, bytes) = (0, 0);
            for len in lens.clone().take(packets as usize) {
                if len > limit.bytes.saturating_sub(before + bytes) {
                    break;
                }
                (fit, bytes) = (fit + 1, bytes + len);
            }
            (fit > 0).then_some(before + bytes)
        });
        if fit < packets {
            granted.packets.fetch_sub(packets - fit, Ordering::Relaxed);
        }
        if some.is_ok() { Ok((fit as u32, bytes)) } else { Err(self.expire()) }
    }

    /// Returns a part of a grant that was not used.
    pub fn give_back(&self, packets: u64, bytes: u64) {
        self.counters.granted.0.packets.fetch_sub(packets, Ordering::Relaxed);
        self.counters.granted.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    #[cold]
    fn expire(&self) -> DropReason {
        self.expired.store(true, Ordering::Relaxed);
        DropReason::Expired
    }
}

/// One independent sequence of packets under one key: the SA itself, an EESP Sub SA, or the IVs of
/// one core in a PSP association. Lanes are on separate cache lines: a core that uses one writes
/// nothing that another core reads.
#[repr(align(128))]
pub struct OutLane {
    /// Session ID on the wire; 0 for the other protocols.
    pub session: SessionId,
    /// Key.
    pub key: KeyId,
    /// Sequence numbers or IVs.
    pub seq: SeqCounter,
    /// Packets with numbers of this lane.
    pub(crate) traffic: LaneTraffic,
}

impl OutLane {
    pub(crate) fn new(session: SessionId, key: KeyId, seq: SeqCounter) -> Self {
        Self { session, key, seq, traffic: LaneTraffic::default() }
    }
}
const _: () = assert!(size_of::<OutLane>() == CACHE_LINE_PAIR);

/// Number, modulo the number of cores, of the core that receives packets with this SPI and Session
/// ID and owns their replay window. Consecutive Sub SAs belong to consecutive cores.
#[inline]
pub const fn owner_core(spi: u32, session: SessionId) -> u32 {
    spi.wrapping_add(session.0 as u32)
}

/// Inbound state of a lane, also on a separate cache line.
#[repr(C, align(128))]
pub struct InLane {
    /// Key; `None` if it is derived on demand (PSP, many Sub SAs).
    pub key: Option<KeyId>,
    /// Replay window; size 0 disables the check. Created by the first packet of the lane with a
    /// valid ICV.
    pub window: std::sync::OnceLock<ReplayWindow>,
    /// Packets received through this lane.
    pub(crate) traffic: LaneTraffic,
}
const _: () = assert!(size_of::<InLane>() == CACHE_LINE_PAIR);
const _: () = assert!(offset_of!(InLane, traffic) + size_of::<LaneTraffic>() <= 64);

/// Outbound SA. In this order, so that what a packet of the fast path needs is in
/// [`OutboundSa::HOT_LINES`] cache lines: from [`OutTemplate::HOT_AT`] to the start of the common
/// part.
#[repr(C, align(64))]
pub struct OutboundSa {
    /// Header template of the fast path, if the SA has one.
    pub(crate) template: Option<OutTemplate>,
    /// At least one; a core uses the one at index [`OutboundSa::lane_of`]. Shared between an SA and
    /// its copy with other addresses, so that no sequence number is used twice.
    pub lanes: Arc<[OutLane]>,
    /// Set by [`OutboundSa::set_reply_spi`]: lane index of core 0 in the upper 16 bits, number of
    /// cores in the lower.
    first_lane: u32,
    /// Largest inner packet in bytes that fits the path: follows [`OutboundSa::path_mtu`].
    pub inner_mtu: AtomicU32,
    /// Path MTU in bytes that is in use, set by [`OutboundSa::set_path_mtu`] and lowered by
    /// reports.
    pub path_mtu: AtomicU32,
    /// SPI on the wire.
    pub spi: u32,
    /// Key of the first lane.
    first_key: KeyId,
    /// Packets must go through [`crate::finish_out`], which changes nothing for others.
    pub(crate) finishes: bool,
    /// In AGGFRAG mode.
    aggregates: bool,
    /// Common part.
    pub common: SaCommon,
    /// What is known about the path. Shared by the workers: each receives its own reports, and
    /// another one's value must not be taken for that of the link.
    path: PathMtu,
    /// Particulars.
    pub proto: OutProto,
}

/// Inbound SA. In this order for the same reason: what a packet of the fast path needs is in the
/// first [`InboundSa::HOT_LINES`] cache lines.
#[repr(C, align(64))]
pub struct InboundSa {
    /// Header template of the fast path, if the SA has one.
    pub(crate) template: Option<InTemplate>,
    /// Indexed by Session ID (EESP) or by position among the issued SPIs (PSP with a replay
    /// window); one lane otherwise. Shared between an SA and its copy with other addresses.
    pub lanes: Arc<[InLane]>,
    /// Replay window in packets: 0 or 32..=65536.
    pub window: u32,
    /// SPI on the wire. 0 for PSP: its SPIs are those issued under the master keys.
    pub spi: u32,
    /// In tunnel mode.
    pub(crate) is_tunnel: bool,
    /// Bits of the outer TOS that are copied to the inner header: the ECN field, or none.
    pub(crate) ecn: u8,
    /// Packets are in UDP.
    pub(crate) in_udp: bool,
    /// Packets are counted in the lanes.
    counts_in_lanes: bool,
    /// Common part.
    pub common: SaCommon,
    /// Particulars.
    pub proto: InProto,
}

// Without a niche in the template `HOT_AT` would not be its offset within the option.
const _: () = assert!(size_of::<Option<OutTemplate>>() == size_of::<OutTemplate>());
const _: () = {
    let hot = offset_of!(OutboundSa, template) + OutTemplate::HOT_AT;
    let end = offset_of!(OutboundSa, common) + SaCommon::HOT_LEN;
    assert!(hot.is_multiple_of(64) && end - hot <= 64 * OutboundSa::HOT_LINES);
    assert!(offset_of!(InboundSa, common) + SaCommon::HOT_LEN <= 64 * InboundSa::HOT_LINES);
};

/// Returns whether an ICV or a checksum follows from what the engine writes.
fn has_to_be_finished(protocol: Protocol, outer: &Outer) -> bool {
    protocol == Protocol::Ah || outer.udp_checksum
}

impl OutboundSa {
    /// Cache lines that a packet of the fast path needs.
    const HOT_LINES: usize = 4;

    /// Creates an SA without a template, for a path MTU of 1500 bytes.
    pub(crate) fn new(mut common: SaCommon, spi: u32, lanes: Arc<[OutLane]>, proto: OutProto) -> Self {
        common.counters = Arc::new(if lanes.len() <= SaCounters::MAX_LANES {
            SaCounters::stored(TrafficStore::Out(Arc::clone(&lanes)))
        } else {
            SaCounters::new(lanes.len())
        });
        let finishes = has_to_be_finished(proto.protocol(), &common.outer);
        let sa = Self {
            aggregates: common.aggfrag().is_some(),
            first_key: lanes.first().map_or(KeyId(u32::MAX), |lane| lane.key),
            common,
            spi,
            finishes,
            lanes,
            first_lane: u32::from(u16::MAX),
            inner_mtu: 0.into(),
            path_mtu: 0.into(),
            path: PathMtu::new(0),
            proto,
            template: None,
        };
        sa.set_path_mtu(1500);
        sa
    }

    /// The SA with its template, when it can have one.
    #[must_use]
    pub(crate) fn with_template(mut self) -> Self {
        self.template = OutTemplate::learn(&self);
        self
    }

    /// Header template of the fast path, if the SA has one.
    #[doc(hidden)]
    #[inline]
    pub fn template(&self) -> Option<&OutTemplate> {
        self.template.as_ref()
    }

    /// Addresses in the cache lines that a packet of the fast path needs, to be prefetched.
    #[doc(hidden)]
    #[inline]
    pub fn hot_lines(&self) -> impl Iterator<Item = *const u8> {
        let start: *const u8 = std::ptr::from_ref(self).cast();
        let start = start.wrapping_add(offset_of!(Self, template) + OutTemplate::HOT_AT);
        (0..Self::HOT_LINES).map(move |line| start.wrapping_add(64 * line))
    }

    /// Key of the first lane, in the cache lines of the SA.
    #[doc(hidden)]
    #[inline]
    pub fn first_key(&self) -> KeyId {
        self.first_key
    }

    /// Returns whether the SA is in AGGFRAG mode ([`SaCommon::aggfrag`]).
    #[inline]
    pub fn aggregates(&self) -> bool {
        self.aggregates
    }

    /// Counters of the lane at index `lane`.
    #[inline]
    pub fn traffic(&self, lane: usize) -> &LaneTraffic {
        match self.lanes.get(lane) {
            Some(lane) if self.lanes.len() <= SaCounters::MAX_LANES => &lane.traffic,
            _ => self.common.counters.of(lane),
        }
    }

    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        self.proto.protocol()
    }

    /// Returns a copy with other addresses or ports. Key and sequence numbers are shared, so that
    /// packets may still use the old one. The caller should set the path MTU again.
    pub fn moved(&self, outer: Outer) -> Self {
        Self {
            finishes: has_to_be_finished(self.protocol(), &outer),
            aggregates: self.aggregates,
            first_key: self.first_key,
            common: self.common.moved(outer),
            spi: self.spi,
            lanes: Arc::clone(&self.lanes),
            first_lane: self.first_lane,
            inner_mtu: AtomicU32::new(self.inner_mtu.load(Ordering::Relaxed)),
            path_mtu: AtomicU32::new(self.path_mtu.load(Ordering::Relaxed)),
            path: PathMtu::new(self.path_mtu.load(Ordering::Relaxed) as usize),
            proto: self.proto.clone(),
            template: None,
        }
        .with_template()
    }

    /// Sets the SPI of the inbound SA that carries the replies, and the number of cores. From then
    /// on each core sends with the Session ID that it also receives ([`owner_core`]), so that both
    /// directions of a flow stay on one core at both endpoints. Without this call, Session IDs are
    /// assigned from the first core on. An SA in use needs a copy ([`OutboundSa::moved`]).
    pub fn set_reply_spi(&mut self, spi: u32, cores: usize) {
        let cores = cores.clamp(1, usize::from(u16::MAX)) as u32;
        let first = (cores - owner_core(spi, self.lanes[0].session) % cores) % cores;
        self.first_lane = first << 16 | cores;
    }

    /// Index of the lane that `core` sends with.
    #[inline]
    pub fn lane_of(&self, core: usize) -> usize {
        if self.lanes.len() == 1 {
            return 0;
        }
        let (first, cores) = (self.first_lane >> 16, self.first_lane & 0xffff);
        let place = core as u32 + first;
        let place = if place < cores { place } else { place - cores };
        place as usize % self.lanes.len()
    }

    /// Length in bytes of each payload of an SA in AGGFRAG mode with a packet size; 0 for others.
    /// Unlike [`OutboundSa::inner_mtu`] it does not depend on the path MTU.
    pub fn payload_len(&self) -> usize {
        let size = self.common.aggfrag().map_or(0, |settings| usize::from(settings.packet_size));
        if size > 0 { self.proto.inner_mtu(&self.common, size) } else { 0 }
    }

    /// Returns whether the first lane may send all of `packets` packets with `bytes` bytes in all.
    /// The answer stays true if nothing else sends through the SA. If a hard limit is in the way,
    /// the SA is expired then.
    ///
    /// # Errors
    /// [`DropReason::Expired`], [`DropReason::SeqExhausted`].
    pub fn check_room(&self, packets: u64, bytes: u64) -> Result<(), DropReason> {
        self.common.check_lifetime()?;
        if self.common.is_limited() {
            let (granted, limit) = (&self.common.counters.granted.0, self.common.lifetime);
            let fits = |granted: &AtomicU64, more, limit| granted.load(Ordering::Relaxed).saturating_add(more) <= limit;
            if !fits(&granted.packets, packets, limit.packets) || !fits(&granted.bytes, bytes, limit.bytes) {
                return Err(self.common.expire());
            }
        }
        if self.lanes[0].seq.remaining() < packets { Err(DropReason::SeqExhausted) } else { Ok(()) }
    }

    /// Sets the path MTU in bytes (outer packets), as this host determines it, and with it
    /// [`OutboundSa::inner_mtu`]. Learned values are forgotten.
    pub fn set_path_mtu(&self, path_mtu: usize) {
        self.path.set_link(path_mtu);
        self.fit(path_mtu);
    }

    /// A report of a smaller path MTU in bytes, which counts for [`crate::pmtu::AGE_MS`]. Time is
    /// that of a clock that all workers share.
    pub fn learn_path_mtu(&self, now_ms: u64, path_mtu: usize) {
        if self.path.learn(now_ms, path_mtu) {
            self.fit(self.path.get(now_ms));
        }
    }

    /// Forgets a report that has expired. Returns true if there is another one to wait for.
    pub fn expire_path_mtu(&self, now_ms: u64) -> bool {
        let path_mtu = self.path.get(now_ms);
        // Compared even without an expiry: of two workers that learn at the same time, the one with
        // the larger value may be the last to write it.
        if self.path_mtu.load(Ordering::Relaxed) as usize != path_mtu {
            self.fit(path_mtu);
        }
        self.path.deadline_ms().is_some_and(|deadline| now_ms < deadline)
    }

    /// Uses a path MTU from now on.
    fn fit(&self, path_mtu: usize) {
        // In AGGFRAG mode the largest payload: the size of its packets may be limited.
        let packet_size = match self.common.aggfrag() {
            Some(settings) if settings.packet_size > 0 => usize::from(settings.packet_size),
            _ => path_mtu,
        };
        let inner = self.proto.inner_mtu(&self.common, path_mtu.min(packet_size));
        self.inner_mtu.store(inner as u32, Ordering::Relaxed);
        self.path_mtu.store(path_mtu as u32, Ordering::Relaxed);
    }
}

impl InboundSa {
    /// Cache lines that a packet of the fast path needs.
    const HOT_LINES: usize = 2;

    /// Creates an SA without a template. Its packets are counted in its lanes, unless these are too
    /// many or any core may receive them (PSP).
    pub(crate) fn new(mut common: SaCommon, (spi, window): (u32, u32), lanes: Arc<[InLane]>, proto: InProto) -> Self {
        let separate = match &proto {
            InProto::Psp(_) => Some(psp::COUNTED_CORES),
            _ => Some(lanes.len()).filter(|lanes| *lanes > SaCounters::MAX_LANES),
        };
        let in_lanes = || SaCounters::stored(TrafficStore::In(Arc::clone(&lanes)));
        common.counters = Arc::new(separate.map_or_else(in_lanes, SaCounters::new));
        Self {
            template: None,
            lanes,
            window,
            spi,
            is_tunnel: common.mode == Mode::Tunnel,
            ecn: if common.outer.ecn { 3 } else { 0 },
            in_udp: common.outer.udp.is_some(),
            counts_in_lanes: separate.is_none(),
            common,
            proto,
        }
    }

    /// The SA with its template, when it can have one.
    #[must_use]
    pub(crate) fn with_template(mut self) -> Self {
        self.template = InTemplate::of(&self);
        self
    }

    /// Returns the SA with the keys and replay windows of `other`, which accepts the same packets:
    /// what either has received is a replay for both. Each has counters of its own.
    #[must_use]
    pub fn with_lanes_of(mut self, other: &Self) -> Self {
        self.lanes = Arc::clone(&other.lanes);
        self.counts_in_lanes = false;
        self.common.counters = Arc::new(SaCounters::new(self.lanes.len()));
        self.with_template()
    }

    /// Addresses in the cache lines that a packet of the fast path needs, to be prefetched.
    #[doc(hidden)]
    #[inline]
    pub fn hot_lines(&self) -> impl Iterator<Item = *const u8> {
        let start: *const u8 = std::ptr::from_ref(self).cast();
        (0..Self::HOT_LINES).map(move |line| start.wrapping_add(64 * line))
    }

    /// Key of all packets, in the cache lines of the SA; `None` if they have several.
    #[doc(hidden)]
    #[inline]
    pub fn only_key(&self) -> Option<KeyId> {
        self.template.as_ref().map(|template| template.key)
    }

    /// Counts packets that `core` received through the lane at index `lane`. A lane belongs to one
    /// core; only packets of PSP may be on any.
    #[inline]
    pub fn count(&self, lane: usize, core: usize, packets: u64, bytes: u64) {
        match &*self.lanes {
            [only] if self.counts_in_lanes => only.traffic.add_owned(packets, bytes),
            _ => self.count_shared(lane, core, packets, bytes),
        }
    }

    /// [`InboundSa::count`], without the assumption that no other core uses the counter.
    fn count_shared(&self, lane: usize, core: usize, packets: u64, bytes: u64) {
        let at = if self.protocol() == Protocol::Psp { core } else { lane };
        self.common.counters.of(at).add(packets, bytes);
    }

    /// Returns a copy with other addresses or ports. Key and replay windows are shared.
    pub fn moved(&self, outer: Outer) -> Self {
        let common = self.common.moved(outer);
        Self {
            template: None,
            lanes: Arc::clone(&self.lanes),
            window: self.window,
            spi: self.spi,
            is_tunnel: self.is_tunnel,
            ecn: if outer.ecn { 3 } else { 0 },
            in_udp: outer.udp.is_some(),
            counts_in_lanes: self.counts_in_lanes,
            common,
            proto: self.proto.clone(),
        }
        .with_template()
    }

    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        self.proto.protocol()
    }
}

/// Reason why an SA cannot be built from its specification.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SaError {
    /// A key does not fit.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A replay window out of range.
    #[error("replay window {0} is not possible; use 0 (off) or 32 to 65536")]
    Window(u32),
    /// Two settings contradict each other.
    #[error("{0}")]
    Conflict(&'static str),
}

#[cfg(test)]
mod tests {
    use crypto::{Engine, KeyTable, Suite};
    use wire::SeqNo;

    use super::*;
    use crate::esp;

    fn spec() -> esp::Spec<'static> {
        esp::Spec::new(0x1001.try_into().unwrap(), Suite::parse_esp("aes128gcm16").unwrap(), &[7; 20])
    }

    fn outer(remote: u8) -> Outer {
        Outer {
            peer: Peer { local: [198, 51, 100, 1].into(), remote: [198, 51, 100, remote].into() },
            hop_limit: 64,
            dscp: DscpPolicy::Copy,
            ecn: true,
            df: DfPolicy::Copy,
            udp: None,
            udp_checksum: false,
        }
    }

    #[test]
    fn lanes_count_apart_and_are_added_up() {
        let counters = SaCounters::new(3);
        counters.of(0).add(1, 10);
        counters.of(1).add_owned(2, 20);
        counters.of(2).add(4, 40);
        counters.of(2).take_back(1, 5);
        assert_eq!((counters.packets(), counters.bytes()), (6, 65));
        assert_eq!(
            (counters.of(0).packets.load(Ordering::Relaxed), counters.of(1).packets.load(Ordering::Relaxed)),
            (1, 2)
        );
        let apart = |a: usize, b: usize| {
            std::ptr::from_ref(counters.of(a)).addr().abs_diff(std::ptr::from_ref(counters.of(b)).addr())
        };
        assert!(apart(0, 1) >= CACHE_LINE_PAIR && apart(1, 2) >= CACHE_LINE_PAIR);
        // More lanes than there are offsets for: still none is lost.
        let many = SaCounters::new(1000);
        many.of(999).add(1, 1);
        assert_eq!(many.packets(), 1);
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "an SA is shared between threads of its users")]
    fn grants_of_several_threads_stay_within_the_limits() {
        let limits = [
            Lifetime { packets: 50_001, bytes: u64::MAX },
            Lifetime { packets: u64::MAX, bytes: 5_000_017 },
            Lifetime { packets: 50_001, bytes: 5_000_017 },
        ];
        for lifetime in limits {
            let common = SaCommon::new("moon", Mode::Tunnel, outer(2), lifetime);
            let take = |len: u64| {
                let (mut packets, mut bytes) = (0, 0);
                while let Ok((granted, sum)) = common.grant([len; 7].into_iter()) {
                    assert!((1..=7).contains(&granted) && sum == u64::from(granted) * len);
                    // Every other time one packet finds no sequence number.
                    let unused = u64::from(granted % 2 == 0);
                    common.give_back(unused, unused * len);
                    (packets, bytes) = (packets + u64::from(granted) - unused, bytes + sum - unused * len);
                }
                (packets, bytes)
            };
            let (a, b) = std::thread::scope(|scope| {
                let other = scope.spawn(|| take(101));
                (take(89), other.join().unwrap())
            });
            let (packets, bytes) = (a.0 + b.0, a.1 + b.1);
            assert!(packets <= lifetime.packets && bytes <= lifetime.bytes, "{packets} packets, {bytes} bytes");
            assert!(packets >= 50_000 - 14 || bytes >= 5_000_000 - 7 * 101, "{packets} packets, {bytes} bytes");
            assert_eq!(common.check_lifetime(), Err(DropReason::Expired));
        }
    }

    #[test]
    fn packets_of_ah_and_with_a_udp_checksum_have_to_be_finished() {
        let (suite, integ_key) = (Suite::parse_ah("sha256").unwrap(), &[7; 32]);
        let (first_seq, persistent, spi) = (1, false, 0x1001.try_into().unwrap());
        let ah =
            crate::ah::Spec { spi, suite, integ_key, esn: false, window: 64, first_seq, persistent, align8_v4: false };
        let common = |outer| SaCommon::new("moon", Mode::Tunnel, outer, Lifetime::NONE);
        let sa = crate::ah::outbound(common(outer(2)), &ah, Engine::AwsLc, &mut KeyTable::default()).unwrap();
        assert!(crate::needs_finish(&sa) && crate::needs_finish(&sa.moved(outer(3))));
        let esp = esp::Spec { first_seq, ..spec() };
        let sa = |outer| esp::outbound(common(outer), &esp, Engine::AwsLc, &mut KeyTable::default()).unwrap();
        let summed = Outer { udp: Some(UdpPorts { src: 4500, dst: 4500 }), udp_checksum: true, ..outer(2) };
        assert!(crate::needs_finish(&sa(summed)) && !crate::needs_finish(&sa(outer(2))));
        assert!(crate::needs_finish(&sa(outer(2)).moved(summed)) && !crate::needs_finish(&sa(summed).moved(outer(2))));
    }

    #[test]
    fn an_sa_that_moved_goes_on_with_its_numbers_windows_and_counters() {
        let spec = esp::Spec { first_seq: 1, ..spec() };
        let mut keys = KeyTable::default();
        let common = || SaCommon::new("moon", Mode::Tunnel, outer(2), Lifetime::NONE);
        let out = esp::outbound(common(), &spec, Engine::best(), &mut keys).unwrap();
        assert_eq!(out.lanes[0].seq.reserve(10).unwrap().first, 1);
        out.traffic(0).add(10, 1000);
        let moved = out.moved(outer(3));
        assert_eq!(moved.common.outer.peer.remote, IpAddr::from([198, 51, 100, 3]));
        // Whoever still has the old one takes numbers from the same counter.
        assert_eq!(moved.lanes[0].seq.reserve(1).unwrap().first, 11);
        assert_eq!(out.lanes[0].seq.reserve(1).unwrap().first, 12);
        // Of a worker that does not have the new tables yet.
        out.traffic(0).add(1, 100);
        out.common.counters.count_drop(DropReason::TooBig);
        assert_eq!((moved.common.counters.packets(), moved.common.counters.bytes()), (11, 1100));
        assert_eq!(moved.common.counters.drops[DropReason::TooBig as usize].load(Ordering::Relaxed), 1);

        let inn = esp::inbound(common(), &esp::Spec { first_seq: 40, ..spec }, Engine::best(), &mut keys).unwrap();
        let moved = inn.moved(outer(3));
        assert!(moved.lanes[0].check(64, SeqNo(40)).is_err());
        assert!(moved.lanes[0].check(64, SeqNo(41)).is_ok());
        let ports = UdpPorts { src: 4500, dst: 4500 };
        let in_udp = moved.moved(Outer { udp: Some(ports), ecn: false, ..outer(4) });
        let follows = |sa: &InboundSa| (sa.in_udp, sa.ecn, sa.is_tunnel);
        assert_eq!([&in_udp, &in_udp.moved(outer(3))].map(follows), [(true, 0, true), (false, 3, true)]);
    }

    #[test]
    fn an_sa_counts_in_its_lanes_unless_it_took_them_from_another() {
        let spec = spec();
        let mut keys = KeyTable::default();
        let mut sa = || {
            let common = SaCommon::new("moon", Mode::Tunnel, outer(2), Lifetime::NONE);
            esp::inbound(common, &spec, Engine::best(), &mut keys).unwrap()
        };
        let (old, new) = (sa(), sa());
        let counted = |sa: &InboundSa| (sa.common.counters.packets(), sa.common.counters.bytes());
        old.count(0, 0, 2, 200);
        assert!(std::ptr::eq(old.common.counters.of(0), &raw const old.lanes[0].traffic));
        let new = new.with_lanes_of(&old);
        new.count(0, 0, 3, 300);
        let moved = new.moved(outer(3));
        moved.count(0, 5, 1, 100);
        assert_eq!((counted(&old), counted(&new), counted(&moved)), ((2, 200), (4, 400), (4, 400)));
        assert!(Arc::ptr_eq(&old.lanes, &moved.lanes));
    }
}
