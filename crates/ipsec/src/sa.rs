//! Security associations: what the control side builds and packets read.
//!
//! An SA is made from a specification by the control side, published in a snapshot behind an
//! `Arc`, and outlives snapshots as long as its specification stays. What packets change are
//! atomics, written with plain loads and stores by the one core that owns the SA (inbound), or
//! reserved in blocks (outbound sequence numbers).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crypto::{KeyError, KeyId};
use wire::SessionId;

use crate::encap::HeaderTemplate;
use crate::recipe::{InRecipe, OutRecipe};
use crate::repair::Repair;
use crate::{Drop, ReplayWindow, SeqCounter, ah, eesp, esp, psp};

/// The four protocols.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)]
pub enum Protocol {
    Esp,
    Ah,
    Eesp,
    Psp,
}

impl Protocol {
    /// Name in configuration and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Esp => "esp",
            Self::Ah => "ah",
            Self::Eesp => "eesp",
            Self::Psp => "psp",
        }
    }
}

/// What of the original packet is protected and which IP header goes outside.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// A whole packet inside a new IP header (RFC 4301 §5.1.2).
    Tunnel,
    /// The upper layer inside the original IP header.
    Transport,
    /// Bound end-to-end tunnel: like transport, with fixed inner addresses known to both ends
    /// (draft-nikander-esp-beet-mode, RFC 7402 appendix B).
    Beet(Beet),
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
    /// Send a real UDP checksum. Off: zero, as RFC 3948 §2.1 wants over IPv4; on by default over IPv6.
    pub udp_checksum: bool,
}

impl Outer {
    /// Returns what most tunnels need: hop limit 64, DSCP, ECN and DF copied, no UDP.
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

/// Bytes that no two cores write into: two cache lines, because processors fetch them in pairs.
pub(crate) const APART: usize = 128;

/// Packets and bytes of one lane, on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Passed {
    packets: AtomicU64,
    bytes: AtomicU64,
}
const _: () = assert!(size_of::<Passed>() == APART);

/// What went through an SA. Relaxed atomics: readers see each figure whole, not a moment in time.
///
/// Each lane counts for itself, so that cores with a lane each do not write what others write; who asks gets the sum.
pub struct SaCounters {
    /// Lane 0, which most SAs have alone.
    first: Passed,
    /// The lanes after it, at most [`SaCounters::MAX_LANES`] with it; further ones share them.
    others: Box<[Passed]>,
    /// Packets that went no further, by [`Drop`].
    pub drops: [AtomicU64; Drop::COUNT],
    /// EESP options and the like that were skipped because they are unknown.
    pub unknown_options: AtomicU64,
}

impl Default for SaCounters {
    fn default() -> Self {
        Self::new(1)
    }
}

impl SaCounters {
    /// Lanes that count apart from each other: as many as there may be workers.
    pub const MAX_LANES: usize = 64;

    /// Counters of an SA with `lanes` lanes.
    pub fn new(lanes: usize) -> Self {
        Self {
            first: Passed::default(),
            others: (1..lanes.min(Self::MAX_LANES)).map(|_| Passed::default()).collect(),
            drops: [const { AtomicU64::new(0) }; Drop::COUNT],
            unknown_options: AtomicU64::new(0),
        }
    }

    fn of(&self, lane: usize) -> &Passed {
        match (lane, self.others.len()) {
            (0, _) | (_, 0) => &self.first,
            (lane, others) => &self.others[(lane - 1) % others],
        }
    }

    fn sum(&self, what: impl Fn(&Passed) -> &AtomicU64) -> u64 {
        let own = what(&self.first).load(Ordering::Relaxed);
        self.others.iter().fold(own, |sum, lane| sum.wrapping_add(what(lane).load(Ordering::Relaxed)))
    }

    /// Packets protected or delivered.
    pub fn packets(&self) -> u64 {
        self.sum(|lane| &lane.packets)
    }

    /// Bytes of inner packets protected or delivered.
    pub fn bytes(&self) -> u64 {
        self.sum(|lane| &lane.bytes)
    }

    /// Adds a run of packets of `lane`, which several cores may use.
    pub fn add(&self, lane: usize, packets: u64, bytes: u64) {
        let lane = self.of(lane);
        lane.packets.fetch_add(packets, Ordering::Relaxed);
        lane.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds a run of packets, for the one core that owns the lane: no locked instruction.
    pub fn add_owned(&self, lane: usize, packets: u64, bytes: u64) {
        let bump = |counter: &AtomicU64, by| counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
        let lane = self.of(lane);
        bump(&lane.packets, packets);
        bump(&lane.bytes, bytes);
    }

    /// Takes off packets that were added too soon.
    #[cold]
    pub fn take_back(&self, lane: usize, packets: u64, bytes: u64) {
        let lane = self.of(lane);
        lane.packets.fetch_sub(packets, Ordering::Relaxed);
        lane.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts one packet that went no further.
    pub fn drop(&self, why: Drop) {
        self.drops[why as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// What every SA has, whatever its protocol.
pub struct SaCommon {
    /// Name in the configuration, for reports.
    pub name: Box<str>,
    /// Mode.
    pub mode: Mode,
    /// Outer header; for transport mode its addresses are those of the packets.
    pub outer: Outer,
    /// Hard limits.
    pub lifetime: Lifetime,
    /// Counters.
    pub counters: SaCounters,
    /// Set by the control side when a time limit has passed: every packet is then dropped.
    pub expired: AtomicBool,
    /// The outer IP header of `outer.peer`, as far as all packets share it.
    pub(crate) header: HeaderTemplate,
    /// As in [`SaCommon::with_original`].
    original: Option<Peer>,
    /// What follows from it for checksums inside.
    pub(crate) repair: Option<Repair>,
}

impl SaCommon {
    /// Common part with fresh counters.
    pub fn new(name: &str, mode: Mode, outer: Outer, lifetime: Lifetime) -> Self {
        Self {
            name: name.into(),
            mode,
            outer,
            lifetime,
            counters: SaCounters::default(),
            expired: AtomicBool::new(false),
            header: HeaderTemplate::new(outer.peer.local, outer.peer.remote),
            original: None,
            repair: None,
        }
    }

    /// The same for an SA in transport mode through a NAT: `original` are the addresses that the peer gives its packets,
    /// its own as `remote`. The checksums inside are made to fit those that packets have here (RFC 3948 §3.1.2).
    #[must_use]
    pub fn with_original(mut self, original: Option<Peer>) -> Self {
        self.repair = original.and_then(|original| Repair::new(original, self.outer.peer));
        self.original = original;
        self
    }

    /// The same between other addresses. Counters go on from where they are.
    fn moved(&self, outer: Outer) -> Self {
        let mut moved = Self::new(&self.name, self.mode, outer, self.lifetime).with_original(self.original);
        let copy = |to: &AtomicU64, from: &AtomicU64| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        moved.counters = SaCounters::new(1 + self.counters.others.len());
        moved.counters.add(0, self.counters.packets(), self.counters.bytes());
        copy(&moved.counters.unknown_options, &self.counters.unknown_options);
        moved.counters.drops.iter().zip(&self.counters.drops).for_each(|(to, from)| copy(to, from));
        moved.expired.store(self.expired.load(Ordering::Relaxed), Ordering::Relaxed);
        moved
    }

    /// The same for an SA whose packets are counted in `lanes` lanes.
    #[must_use]
    pub(crate) fn with_lanes(mut self, lanes: usize) -> Self {
        self.counters = SaCounters::new(lanes);
        self
    }

    /// Whether there are hard limits.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.lifetime != Lifetime::NONE
    }

    /// Refuses when a hard limit has passed. The counters, which other cores may be writing, are only asked when
    /// there is a limit to them.
    #[inline]
    pub fn check_lifetime(&self) -> Result<(), Drop> {
        let spent = self.expired.load(Ordering::Relaxed)
            || (self.is_limited()
                && (self.counters.packets() >= self.lifetime.packets || self.counters.bytes() >= self.lifetime.bytes));
        if spent { Err(Drop::Expired) } else { Ok(()) }
    }

    /// Packets that the SA may still pass when `under_way` of a run are not counted yet; `u64::MAX` without a limit.
    #[inline]
    pub fn packets_left(&self, under_way: u64) -> u64 {
        match self.lifetime.packets {
            u64::MAX => u64::MAX,
            limit => limit.saturating_sub(self.counters.packets() + under_way),
        }
    }
}

/// One independent sequence of packets under one key: the SA itself, an EESP Sub SA, or the IVs of one core in a PSP
/// association. Lanes lie apart in memory: a core that has one writes nothing that another reads.
#[repr(align(128))]
pub struct OutLane {
    /// Session ID on the wire; 0 for the other protocols.
    pub session: SessionId,
    /// Key.
    pub key: KeyId,
    /// Sequence numbers or IVs.
    pub seq: SeqCounter,
}
const _: () = assert!(size_of::<OutLane>() == APART);

/// The core, modulo their number, at which the packets with this SPI and Session ID are received: the one that has the
/// replay window. Neighbouring Sub SAs have neighbouring cores.
#[inline]
pub const fn home(spi: u32, session: SessionId) -> u32 {
    spi.wrapping_add(session.0 as u32)
}

/// The receive side of a lane, apart from others likewise.
#[repr(align(128))]
pub struct InLane {
    /// Key; `None` when it is derived when needed (PSP, many Sub SAs).
    pub key: Option<KeyId>,
    /// Replay window; size 0 checks nothing. Made when the first packet of the lane verified.
    pub window: std::sync::OnceLock<ReplayWindow>,
}
const _: () = assert!(size_of::<InLane>() == APART);

/// What is particular to a protocol, outbound.
#[allow(missing_docs)]
#[derive(Clone)]
pub enum OutProto {
    Esp(esp::Outbound),
    Ah(ah::Outbound),
    Eesp(eesp::Outbound),
    Psp(psp::Outbound),
}

/// What is particular to a protocol, inbound.
#[allow(missing_docs)]
#[derive(Clone)]
pub enum InProto {
    Esp(esp::Inbound),
    Ah(ah::Inbound),
    Eesp(eesp::Inbound),
    Psp(psp::Inbound),
}

/// An SA that protects packets.
pub struct OutboundSa {
    /// Common part.
    pub common: SaCommon,
    /// SPI on the wire.
    pub spi: u32,
    /// At least one; a core takes the one at [`OutboundSa::lane_of`]. Shared by an SA that moved and its successor.
    pub lanes: Arc<[OutLane]>,
    /// What [`OutboundSa::set_answers`] was told: the first core's place in the upper 16 bits, cores in the lower.
    turn: AtomicU32,
    /// Largest inner packet in bytes that fits the path, kept by [`OutboundSa::set_path_mtu`].
    pub inner_mtu: AtomicU32,
    /// Path MTU in bytes that [`OutboundSa::set_path_mtu`] was last told.
    pub path_mtu: AtomicU32,
    /// Particulars.
    pub proto: OutProto,
    /// How its packets are made faster, when they are of the usual kind.
    pub(crate) recipe: Option<OutRecipe>,
}

/// An SA that opens packets.
pub struct InboundSa {
    /// Common part.
    pub common: SaCommon,
    /// SPI on the wire. For PSP 0: the SPI is whatever was issued under the master keys.
    pub spi: u32,
    /// Index is the Session ID (EESP) or the place among the issued SPIs (PSP with a replay window);
    /// one lane otherwise. Shared by an SA that moved and its successor.
    pub lanes: Arc<[InLane]>,
    /// Replay window in packets: 0 or 32..=65536.
    pub window: u32,
    /// Particulars.
    pub proto: InProto,
    /// How its packets are read faster, when they are of the usual kind.
    pub(crate) recipe: Option<InRecipe>,
}

impl OutboundSa {
    /// An SA that has no recipe yet, for a path of 1500 bytes.
    pub(crate) fn new(common: SaCommon, spi: u32, lanes: Arc<[OutLane]>, proto: OutProto) -> Self {
        let sa = Self {
            common,
            spi,
            lanes,
            turn: u32::from(u16::MAX).into(),
            inner_mtu: 0.into(),
            path_mtu: 0.into(),
            proto,
            recipe: None,
        };
        sa.set_path_mtu(1500);
        sa
    }

    /// The SA with its recipe, when it can have one.
    #[must_use]
    pub(crate) fn with_recipe(mut self) -> Self {
        self.recipe = OutRecipe::learn(&self);
        self
    }

    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        match self.proto {
            OutProto::Esp(_) => Protocol::Esp,
            OutProto::Ah(_) => Protocol::Ah,
            OutProto::Eesp(_) => Protocol::Eesp,
            OutProto::Psp(_) => Protocol::Psp,
        }
    }

    /// The same SA between other addresses or ports: key and numbers go on, also while packets still
    /// use the one from before. The path MTU is to be set anew.
    pub fn moved(&self, outer: Outer) -> Self {
        Self {
            common: self.common.moved(outer),
            spi: self.spi,
            lanes: Arc::clone(&self.lanes),
            turn: self.turn.load(Ordering::Relaxed).into(),
            inner_mtu: AtomicU32::new(self.inner_mtu.load(Ordering::Relaxed)),
            path_mtu: AtomicU32::new(self.path_mtu.load(Ordering::Relaxed)),
            proto: self.proto.clone(),
            recipe: None,
        }
        .with_recipe()
    }

    /// The answers to what it sends come to this host with the SPI `spi`, and `cores` cores share the work. From then on
    /// a core sends with the Session ID that it receives with ([`home`]): an answer then arrives where its flow is sent, at
    /// both ends, and the flow stays there. Without it Session IDs are given out from the first core on.
    pub fn set_answers(&self, spi: u32, cores: usize) {
        let cores = cores.clamp(1, usize::from(u16::MAX)) as u32;
        let first = (cores - home(spi, self.lanes[0].session) % cores) % cores;
        self.turn.store(first << 16 | cores, Ordering::Relaxed);
    }

    /// The place among its lanes of the one that `core` sends with.
    #[inline]
    pub fn lane_of(&self, core: usize) -> usize {
        let turn = self.turn.load(Ordering::Relaxed);
        let (first, cores) = (turn >> 16, turn & 0xffff);
        let place = core as u32 + first;
        let place = if place < cores { place } else { place - cores };
        place as usize % self.lanes.len()
    }

    /// Sets the path MTU in bytes (outer packets) and with it [`OutboundSa::inner_mtu`].
    pub fn set_path_mtu(&self, path_mtu: usize) {
        let inner = match &self.proto {
            OutProto::Esp(p) => p.inner_mtu(&self.common, path_mtu),
            OutProto::Ah(p) => p.inner_mtu(&self.common, path_mtu),
            OutProto::Eesp(p) => p.inner_mtu(&self.common, path_mtu),
            OutProto::Psp(p) => p.inner_mtu(&self.common, path_mtu),
        };
        self.inner_mtu.store(inner as u32, Ordering::Relaxed);
        self.path_mtu.store(path_mtu as u32, Ordering::Relaxed);
    }
}

impl InboundSa {
    /// The SA with its recipe, when it can have one.
    #[must_use]
    pub(crate) fn with_recipe(mut self) -> Self {
        self.recipe = InRecipe::of(&self);
        self
    }

    /// The same SA between other addresses or ports: key and windows go on.
    pub fn moved(&self, outer: Outer) -> Self {
        Self {
            common: self.common.moved(outer),
            spi: self.spi,
            lanes: Arc::clone(&self.lanes),
            window: self.window,
            proto: self.proto.clone(),
            recipe: None,
        }
        .with_recipe()
    }

    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        match self.proto {
            InProto::Esp(_) => Protocol::Esp,
            InProto::Ah(_) => Protocol::Ah,
            InProto::Eesp(_) => Protocol::Eesp,
            InProto::Psp(_) => Protocol::Psp,
        }
    }
}

/// Why an SA cannot be built from its specification.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SaError {
    /// A key does not fit.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A reserved SPI.
    #[error(transparent)]
    Spi(#[from] wire::ReservedSpi),
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
        counters.add(0, 1, 10);
        counters.add_owned(1, 2, 20);
        counters.add(2, 4, 40);
        counters.take_back(2, 1, 5);
        assert_eq!((counters.packets(), counters.bytes()), (6, 65));
        assert_eq!(
            (counters.of(0).packets.load(Ordering::Relaxed), counters.of(1).packets.load(Ordering::Relaxed)),
            (1, 2)
        );
        let apart = |a: usize, b: usize| {
            std::ptr::from_ref(counters.of(a)).addr().abs_diff(std::ptr::from_ref(counters.of(b)).addr())
        };
        assert!(apart(0, 1) >= APART && apart(1, 2) >= APART);
        // More lanes than there are places for: still none is lost.
        SaCounters::new(1000).add(999, 1, 1);
        assert_eq!(SaCounters::new(1000).others.len(), SaCounters::MAX_LANES - 1);
    }

    #[test]
    fn an_sa_that_moved_goes_on_with_its_numbers_windows_and_counters() {
        let spec = esp::Spec {
            spi: 0x1001,
            suite: Suite::parse_esp("aes128gcm16").unwrap(),
            enc_key: &[7; 20],
            integ_key: &[],
            esn: false,
            window: 64,
            first_seq: 1,
            persistent: false,
            tfc_padding: false,
            iv: esp::CbcIv::Encrypted,
        };
        let mut keys = KeyTable::default();
        let common = || SaCommon::new("moon", Mode::Tunnel, outer(2), Lifetime::NONE);
        let out = esp::outbound(common(), &spec, Engine::best(), &mut keys).unwrap();
        assert_eq!(out.lanes[0].seq.reserve(10).unwrap().first, 1);
        out.common.counters.add(0, 10, 1000);
        let moved = out.moved(outer(3));
        assert_eq!(moved.common.outer.peer.remote, IpAddr::from([198, 51, 100, 3]));
        // Whoever still has the old one takes numbers from the same counter.
        assert_eq!(moved.lanes[0].seq.reserve(1).unwrap().first, 11);
        assert_eq!(out.lanes[0].seq.reserve(1).unwrap().first, 12);
        assert_eq!(moved.common.counters.bytes(), 1000);

        let inn = esp::inbound(common(), &esp::Spec { first_seq: 40, ..spec }, Engine::best(), &mut keys).unwrap();
        let moved = inn.moved(outer(3));
        assert!(moved.lanes[0].check(64, SeqNo(40)).is_err());
        assert!(moved.lanes[0].check(64, SeqNo(41)).is_ok());
    }
}
