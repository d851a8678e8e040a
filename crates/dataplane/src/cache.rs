//! Flow cache: policy decisions of recent flows.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};

use ipsec::Action;
use wire::{FlowKey, IpPacket, IpProto, ParseError, ShortKey};

const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Decision of the SPD for a flow; `None` if no policy matches.
pub(crate) type Decision = Option<Action>;

/// Two direct-mapped caches from flow to decision: a small one for plain IPv4 TCP and UDP, whose
/// key is a few loads at constant offsets, and one for everything else. An entry is valid only for
/// the snapshot that it was made from, so that a new snapshot invalidates the caches without a
/// write.
pub(crate) struct FlowCache {
    short: Box<[ShortEntry]>,
    entries: Box<[Entry]>,
    seed: u64,
    /// Last entry used: packets of one flow arrive in bursts.
    last: ShortEntry,
    /// Look-up statistics, without hits on `last`.
    asked: LookupStats,
}

/// Look-up statistics of a table.
#[derive(Clone, Copy, Default)]
pub(crate) struct LookupStats {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) collisions: u64,
}

impl LookupStats {
    /// Counts a look-up; `taken` if the entry belongs to another flow.
    #[inline]
    fn count(&mut self, hit: bool, taken: bool) {
        self.hits += u64::from(hit);
        self.misses += u64::from(!hit);
        self.collisions += u64::from(!hit && taken);
    }
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Entry {
    key: FlowKey,
    /// Low half of the snapshot's generation; 0 in an empty entry, which no snapshot has.
    generation: u32,
    decision: Packed,
}
const _: () = assert!(size_of::<Entry>() == 64);

#[derive(Clone, Copy)]
#[repr(align(32))]
struct ShortEntry {
    key: ShortKey,
    generation: u32,
    decision: Packed,
}
const _: () = assert!(size_of::<ShortEntry>() == 32);

/// A [`Decision`] in 8 bytes: the slots of a protect action fit 31 bits each.
#[derive(Clone, Copy)]
struct Packed(u32, u32);

impl Packed {
    const NONE: u32 = u32::MAX;
    const DROP: u32 = u32::MAX - 1;
    const BYPASS: u32 = u32::MAX - 2;
    const TRAP: u32 = u32::MAX - 3;

    fn new(decision: Decision) -> Self {
        match decision {
            Some(Action::Protect { outbound, inbound }) => Self(outbound, inbound),
            Some(Action::Bypass) => Self(Self::BYPASS, 0),
            Some(Action::Drop) => Self(Self::DROP, 0),
            Some(Action::Trap(trap)) => Self(Self::TRAP, trap),
            None => Self(Self::NONE, 0),
        }
    }

    fn get(self) -> Decision {
        match self.0 {
            Self::NONE => None,
            Self::DROP => Some(Action::Drop),
            Self::BYPASS => Some(Action::Bypass),
            Self::TRAP => Some(Action::Trap(self.1)),
            outbound => Some(Action::Protect { outbound, inbound: self.1 }),
        }
    }
}

impl FlowCache {
    /// `entries` entries of 64 bytes and as many of 32, rounded up to a power of two. The hash is
    /// keyed per cache, so that an attacker cannot construct flows that share an entry.
    pub(crate) fn new(entries: usize) -> Self {
        let (entries, decision) = (entries.next_power_of_two(), Packed::new(None));
        let empty = Entry { key: FlowKey::new(NOWHERE, NOWHERE, IpProto(0), 0, 0), generation: 0, decision };
        let short = ShortEntry { key: ShortKey::NONE, generation: 0, decision };
        Self {
            short: vec![short; entries].into_boxed_slice(),
            entries: vec![empty; entries].into_boxed_slice(),
            seed: RandomState::new().hash_one(entries),
            last: short,
            asked: LookupStats::default(),
        }
    }

    /// Returns the look-up statistics.
    pub(crate) fn asked(&self) -> LookupStats {
        self.asked
    }

    /// Returns the decision for `packet`, an unfragmented packet, from the cache or from `decide`.
    ///
    /// # Errors
    /// The headers cannot be read.
    #[inline]
    pub(crate) fn decide(
        &mut self,
        generation: u64,
        packet: &[u8],
        decide: impl FnOnce(&FlowKey) -> Decision,
    ) -> Result<Decision, ParseError> {
        let Some(key) = ShortKey::of(packet) else { return self.decide_long(generation, packet, decide) };
        let generation = generation as u32;
        if self.last.key != key || self.last.generation != generation {
            self.last = self.find_short(generation, key, packet, decide)?;
        }
        Ok(self.last.decision.get())
    }

    fn find_short(
        &mut self,
        generation: u32,
        key: ShortKey,
        packet: &[u8],
        decide: impl FnOnce(&FlowKey) -> Decision,
    ) -> Result<ShortEntry, ParseError> {
        let at = key.hash(self.seed) as usize & (self.short.len() - 1);
        let entry = &mut self.short[at];
        let current = entry.generation == generation;
        self.asked.count(current && entry.key == key, current);
        if entry.key != key || entry.generation != generation {
            let decision = Packed::new(decide(&FlowKey::of(&IpPacket::parse(packet)?, packet)));
            *entry = ShortEntry { key, generation, decision };
        }
        Ok(*entry)
    }

    fn decide_long(
        &mut self,
        generation: u64,
        packet: &[u8],
        decide: impl FnOnce(&FlowKey) -> Decision,
    ) -> Result<Decision, ParseError> {
        let key = FlowKey::of(&IpPacket::parse(packet)?, packet);
        let at = key.hash(self.seed) as usize & (self.entries.len() - 1);
        let entry = &mut self.entries[at];
        let current = entry.generation == generation as u32;
        self.asked.count(current && entry.key == key, current);
        if entry.generation == generation as u32 && entry.key == key {
            return Ok(entry.decision.get());
        }
        let decision = decide(&key);
        *entry = Entry { key, generation: generation as u32, decision: Packed::new(decision) };
        Ok(decision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet from 10.0.0.1 to 10.0.0.2 with these source and destination ports.
    fn packet(proto: IpProto, ports: [u16; 2]) -> Vec<u8> {
        let mut packet = vec![0; 28];
        packet[0] = 0x45;
        packet[3] = 28;
        packet[9] = proto.0;
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet[20..22].copy_from_slice(&ports[0].to_be_bytes());
        packet[22..24].copy_from_slice(&ports[1].to_be_bytes());
        packet
    }

    fn ask(cache: &mut FlowCache, generation: u64, packet: &[u8], answer: Option<Decision>) -> Decision {
        let ip = IpPacket::parse(packet).unwrap();
        let decision = cache.decide(generation, packet, |key| {
            assert_eq!(*key, FlowKey::of(&ip, packet));
            answer.expect("cached")
        });
        decision.unwrap()
    }

    const PROTECT: Decision = Some(Action::Protect { outbound: 3, inbound: 4 });

    #[test]
    fn remembers_until_the_tables_change() {
        for proto in [IpProto::UDP, IpProto::TCP, IpProto::SCTP, IpProto::ICMP] {
            let (mut cache, packet) = (FlowCache::new(64), packet(proto, [7, 8]));
            assert_eq!(ask(&mut cache, 1, &packet, Some(PROTECT)), PROTECT);
            assert_eq!(ask(&mut cache, 1, &packet, None), PROTECT);
            assert_eq!(ask(&mut cache, 2, &packet, Some(Some(Action::Drop))), Some(Action::Drop));
        }
    }

    #[test]
    fn a_collision_asks_again_and_never_answers_for_another_flow() {
        for proto in [IpProto::UDP, IpProto::SCTP] {
            let mut cache = FlowCache::new(1);
            let (a, b) = (packet(proto, [1, 2]), packet(proto, [2, 1]));
            assert_eq!(ask(&mut cache, 1, &a, Some(Some(Action::Bypass))), Some(Action::Bypass));
            assert_eq!(ask(&mut cache, 1, &b, Some(None)), None);
            assert_eq!(ask(&mut cache, 1, &a, Some(PROTECT)), PROTECT);
            let LookupStats { hits, misses, collisions } = cache.asked();
            assert_eq!((hits, misses, collisions), (0, 3, 2));
        }
    }

    #[test]
    fn protocols_with_the_same_ports_are_different_flows() {
        let mut cache = FlowCache::new(1);
        let (udp, tcp) = (packet(IpProto::UDP, [1, 2]), packet(IpProto::TCP, [1, 2]));
        assert_eq!(ask(&mut cache, 1, &udp, Some(PROTECT)), PROTECT);
        assert_eq!(ask(&mut cache, 1, &tcp, Some(Some(Action::Drop))), Some(Action::Drop));
    }

    #[test]
    fn neighbouring_flows_spread_over_the_entries() {
        let cache = FlowCache::new(1024);
        let mut used = std::collections::HashSet::new();
        for port in 0..1024 {
            let packet = packet(IpProto::UDP, [port, 5000]);
            let key = ShortKey::of(&packet).unwrap();
            used.insert(key.hash(cache.seed) as usize & 1023);
        }
        // 1024 balls into 1024 bins leave about 63 % of them used.
        assert!(used.len() > 550, "{} of 1024", used.len());
    }
}
