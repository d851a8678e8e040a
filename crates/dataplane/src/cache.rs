//! Policy decisions of recent flows.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};

use ipsec::Action;
use wire::{FlowKey, IpProto};

const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// What the SPD said about a flow; `None` inside is "no policy".
pub(crate) type Decision = Option<Action>;

/// A direct-mapped cache from flow to decision. An entry is only good for the snapshot it was
/// made from, so publishing a snapshot empties the cache without touching it.
pub(crate) struct FlowCache {
    entries: Box<[Entry]>,
    seed: u64,
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

/// A [`Decision`] in 8 bytes: the slots of a protect action fit 31 bits each.
#[derive(Clone, Copy)]
struct Packed(u32, u32);

impl Packed {
    const NONE: u32 = u32::MAX;
    const DROP: u32 = u32::MAX - 1;
    const BYPASS: u32 = u32::MAX - 2;

    fn new(decision: Decision) -> Self {
        match decision {
            Some(Action::Protect { outbound, inbound }) => Self(outbound, inbound),
            Some(Action::Bypass) => Self(Self::BYPASS, 0),
            Some(Action::Drop) => Self(Self::DROP, 0),
            None => Self(Self::NONE, 0),
        }
    }

    fn get(self) -> Decision {
        match self.0 {
            Self::NONE => None,
            Self::DROP => Some(Action::Drop),
            Self::BYPASS => Some(Action::Bypass),
            outbound => Some(Action::Protect { outbound, inbound: self.1 }),
        }
    }
}

impl FlowCache {
    /// `entries` entries of 64 bytes, rounded up to a power of two. The hash is keyed per cache, so
    /// that nobody can aim flows at one entry.
    pub(crate) fn new(entries: usize) -> Self {
        let empty =
            Entry { key: FlowKey::new(NOWHERE, NOWHERE, IpProto(0), 0, 0), generation: 0, decision: Packed::new(None) };
        Self {
            entries: vec![empty; entries.next_power_of_two()].into_boxed_slice(),
            seed: RandomState::new().hash_one(entries),
        }
    }

    /// The decision for `key`, from the cache or from `decide`.
    pub(crate) fn decide(&mut self, generation: u64, key: &FlowKey, decide: impl FnOnce() -> Decision) -> Decision {
        let at = key.hash(self.seed) as usize & (self.entries.len() - 1);
        let entry = &mut self.entries[at];
        if entry.generation == generation as u32 && entry.key == *key {
            return entry.decision.get();
        }
        let decision = decide();
        *entry = Entry { key: *key, generation: generation as u32, decision: Packed::new(decision) };
        decision
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u16) -> FlowKey {
        FlowKey::new(NOWHERE, NOWHERE, IpProto::UDP, n, 1)
    }

    #[test]
    fn remembers_until_the_tables_change() {
        let mut cache = FlowCache::new(64);
        let protect = Some(Action::Protect { outbound: 3, inbound: 4 });
        assert_eq!(cache.decide(1, &key(7), || protect), protect);
        assert_eq!(cache.decide(1, &key(7), || unreachable!("cached")), protect);
        assert_eq!(cache.decide(2, &key(7), || Some(Action::Drop)), Some(Action::Drop));
    }

    #[test]
    fn a_collision_asks_again_and_never_answers_for_another_flow() {
        let mut cache = FlowCache::new(1);
        assert_eq!(cache.decide(1, &key(1), || Some(Action::Bypass)), Some(Action::Bypass));
        assert_eq!(cache.decide(1, &key(2), || None), None);
        assert_eq!(cache.decide(1, &key(1), || Some(Action::Drop)), Some(Action::Drop));
    }
}
