//! The inbound SAD: which SA opens a packet (RFC 4301 §4.4.2).
//!
//! ESP, AH and EESP SAs are found by (protocol, SPI, destination). A PSP SA has no single SPI: it
//! is found by the two addresses, then by which SPIs were issued to that peer. Multicast SAs, which
//! RFC 4301 §4.1 also looks up by source, are not supported.

use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::{InProto, InboundSa, Protocol};

/// Inbound SAs. Built whole, then only read. A slot is the SA's place in the list it came from.
#[derive(Default)]
pub struct Sad {
    sas: Vec<Arc<InboundSa>>,
    index: SadIndex,
}

/// Slots of SAs, by what a packet has of them. It holds copies, so that the index of a longer list
/// is made of that of its beginning without a look at the SAs there.
#[derive(Default)]
pub struct SadIndex {
    by_spi_v4: SpiTable,
    by_spi_v6: HashMap<SpiKey, u32, RandomState>,
    psp_peers: HashMap<[Address; 2], Vec<Issued>, RandomState>,
}

/// Hash table from protocol, SPI and IPv4 destination to a slot. Each set is one cache line, which
/// a caller can prefetch for several packets before it reads the first. A set that is full
/// continues in the next one.
#[derive(Default)]
struct SpiTable {
    sets: Box<[SpiSet]>,
    /// Number of entries.
    len: usize,
    hash: RandomState,
}

/// Entries of a set.
const WAYS: usize = 4;

/// A cache line of the table of SPIs.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct SpiSet([SpiEntry; WAYS]);
const _: () = assert!(size_of::<SpiSet>() == 64);

/// Destination and SPI, protocol, and slot.
#[derive(Clone, Copy, Eq, PartialEq)]
struct SpiEntry {
    key: u64,
    /// Protocol in the upper half, slot in the lower.
    rest: u64,
}

impl SpiEntry {
    /// No SA: its protocol is that of no packet.
    const EMPTY: Self = Self { key: 0, rest: u64::MAX };
}

/// Position of an SA in the table of SPIs, for a later look-up.
#[derive(Clone, Copy)]
pub struct SpiPlace {
    key: u64,
    protocol: Protocol,
    set: u32,
}

impl SadIndex {
    /// Makes this index equal to `other`, in its own memory where that suffices.
    pub fn follow(&mut self, other: &Self) {
        let (mine, theirs) = (&mut self.by_spi_v4, &other.by_spi_v4);
        mine.sets.clone_from(&theirs.sets);
        (mine.len, mine.hash) = (theirs.len, theirs.hash.clone());
        self.by_spi_v6.clone_from(&other.by_spi_v6);
        self.psp_peers.clone_from(&other.psp_peers);
    }
}

impl SpiTable {
    /// Adds SAs with these keys, and their slots.
    ///
    /// # Errors
    /// The slots of two with one key.
    fn add(&mut self, sas: &[(SpiPlace, u32)]) -> Result<(), (u32, u32)> {
        // At most half full, so that chains of full sets are short.
        if 2 * (self.len + sas.len()) > self.sets.len() * WAYS {
            let sets = (2 * (self.len + sas.len())).div_ceil(WAYS).next_power_of_two();
            let sets = vec![SpiSet([SpiEntry::EMPTY; WAYS]); sets].into_boxed_slice();
            for entry in std::mem::replace(&mut self.sets, sets).iter().flat_map(|set| set.0) {
                if entry != SpiEntry::EMPTY {
                    // They were added before, so there are no equal ones.
                    let _ = self.insert(entry);
                }
            }
        }
        for &(SpiPlace { key, protocol, .. }, slot) in sas {
            let entry = SpiEntry { key, rest: (protocol as u64) << 32 | u64::from(slot) };
            self.insert(entry).map_err(|other| (other, slot))?;
        }
        self.len += sas.len();
        Ok(())
    }

    /// Puts an entry into the first set with room; or the slot of an equal one.
    fn insert(&mut self, entry: SpiEntry) -> Result<(), u32> {
        let mut at = self.set_of(entry.key);
        loop {
            let SpiSet(entries) = &mut self.sets[at];
            // An equal one is in this set or a full one before it.
            let is_equal = |other: &&SpiEntry| other.key == entry.key && other.rest >> 32 == entry.rest >> 32;
            if let Some(other) = entries.iter().find(is_equal) {
                return Err(other.rest as u32);
            }
            if let Some(free) = entries.iter_mut().find(|entry| **entry == SpiEntry::EMPTY) {
                *free = entry;
                return Ok(());
            }
            at = (at + 1) % self.sets.len();
        }
    }

    #[inline]
    fn set_of(&self, key: u64) -> usize {
        self.hash.hash_one(key) as usize & (self.sets.len() - 1)
    }

    #[inline]
    fn get(&self, SpiPlace { key, protocol, set }: SpiPlace) -> Option<u32> {
        let mut at = set as usize;
        for _ in 0..self.sets.len() {
            let SpiSet(entries) = self.sets.get(at)?;
            for entry in entries {
                if entry.key == key && entry.rest >> 32 == protocol as u64 {
                    return Some(entry.rest as u32);
                }
            }
            if entries[WAYS - 1] == SpiEntry::EMPTY {
                return None;
            }
            at = (at + 1) % self.sets.len();
        }
        None
    }
}

/// An address as two words, and its family: cheap to hash and compare.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
struct Address(u128, /* IPv6 */ bool);

#[derive(Clone, Copy, Eq, Hash, PartialEq)]
struct SpiKey {
    dst: Address,
    protocol: Protocol,
    spi: u32,
}

/// SPIs `first..=last` belong to the PSP SA in `slot`.
#[derive(Clone, Copy)]
struct Issued {
    first: u32,
    last: u32,
    slot: u32,
}

impl Sad {
    /// The table of these SAs; the first has slot 0.
    ///
    /// # Errors
    /// The names of two SAs that no packet could tell apart.
    pub fn new(sas: Vec<Arc<InboundSa>>) -> Result<Self, (Arc<str>, Arc<str>)> {
        Self::longer(SadIndex::default(), 0, sas)
    }

    /// The same, with the index of the first `indexed` of them.
    ///
    /// # Errors
    /// As of [`Sad::new`].
    pub fn longer(index: SadIndex, indexed: usize, sas: Vec<Arc<InboundSa>>) -> Result<Self, (Arc<str>, Arc<str>)> {
        let mut sad = Self { sas, index };
        let (mut v4, mut psp) = (Vec::with_capacity(sad.sas.len() - indexed.min(sad.sas.len())), false);
        for (slot, sa) in (0u32..).zip(&sad.sas).skip(indexed) {
            let peer = sa.common.outer.peer;
            let (src, dst) = (address(peer.remote), address(peer.local));
            let protocol = sa.protocol();
            if let InProto::Psp(issuer) = &sa.proto {
                psp = true;
                let of_peer = sad.index.psp_peers.entry([src, dst]).or_default();
                of_peer.extend(issuer.issued().map(|(first, last)| Issued { first, last, slot }));
            } else if let IpAddr::V4(local) = peer.local {
                v4.push((SpiPlace { key: v4_key(sa.spi, local), protocol, set: 0 }, slot));
            } else if let Some(other) = sad.index.by_spi_v6.insert(SpiKey { dst, protocol, spi: sa.spi }, slot) {
                return Err(sad.names(other, slot));
            }
        }
        sad.index.by_spi_v4.add(&v4).map_err(|(a, b)| sad.names(a, b))?;
        if !psp {
            return Ok(sad);
        }
        let peers = &mut sad.index.psp_peers;
        for ranges in peers.values_mut() {
            ranges.sort_unstable_by_key(|range| range.first);
        }
        let clash = peers.values().flat_map(|ranges| ranges.windows(2)).find(|pair| pair[1].first <= pair[0].last);
        match clash.map(|pair| (pair[0].slot, pair[1].slot)) {
            Some((a, b)) => Err(sad.names(a, b)),
            None => Ok(sad),
        }
    }

    fn names(&self, a: u32, b: u32) -> (Arc<str>, Arc<str>) {
        let name = |slot: u32| self.sas[slot as usize].common.name.clone();
        (name(a.min(b)), name(a.max(b)))
    }

    /// The SA for a packet, by its slot in [`Sad::get`].
    ///
    /// A PSP packet of a known peer with an SPI that was not issued gets an SA of that peer, which
    /// drops it with [`crate::DropReason::NotIssued`].
    #[inline]
    pub fn lookup(&self, protocol: Protocol, spi: u32, src: IpAddr, dst: IpAddr) -> Option<u32> {
        if protocol == Protocol::Psp {
            return self.lookup_psp(spi, src, dst);
        }
        match dst {
            IpAddr::V4(dst) => self.find(self.locate(protocol, spi, dst)?),
            IpAddr::V6(_) => self.index.by_spi_v6.get(&SpiKey { dst: address(dst), protocol, spi }).copied(),
        }
    }

    /// Position of the SA for a packet over IPv4, for [`Sad::find`]; `None` for protocols whose SAs
    /// [`Sad::lookup`] finds in another way.
    #[doc(hidden)]
    #[inline]
    pub fn locate(&self, protocol: Protocol, spi: u32, dst: Ipv4Addr) -> Option<SpiPlace> {
        if protocol == Protocol::Psp || self.index.by_spi_v4.sets.is_empty() {
            return None;
        }
        let key = v4_key(spi, dst);
        Some(SpiPlace { key, protocol, set: self.index.by_spi_v4.set_of(key) as u32 })
    }

    /// Cache line of a position, to be prefetched.
    #[doc(hidden)]
    #[inline]
    pub fn line(&self, place: SpiPlace) -> Option<&SpiSet> {
        self.index.by_spi_v4.sets.get(place.set as usize)
    }

    /// [`Sad::lookup`] at a position.
    #[doc(hidden)]
    #[inline]
    pub fn find(&self, place: SpiPlace) -> Option<u32> {
        self.index.by_spi_v4.get(place)
    }

    fn lookup_psp(&self, spi: u32, src: IpAddr, dst: IpAddr) -> Option<u32> {
        let ranges = self.index.psp_peers.get(&[address(src), address(dst)])?;
        let after = ranges.partition_point(|range| range.first <= spi);
        let issued = after.checked_sub(1).and_then(|at| ranges.get(at)).filter(|range| spi <= range.last);
        issued.or(ranges.first()).map(|range| range.slot)
    }

    /// The SA in a slot.
    #[inline]
    pub fn get(&self, slot: u32) -> Option<&Arc<InboundSa>> {
        self.sas.get(slot as usize)
    }

    /// SAs and index of a table that is not needed any more.
    pub fn into_parts(self) -> (Vec<Arc<InboundSa>>, SadIndex) {
        (self.sas, self.index)
    }

    /// The index, for [`Sad::longer`]; `None` with PSP, where a copy is expensive.
    pub fn index(&self) -> Option<&SadIndex> {
        self.index.psp_peers.is_empty().then_some(&self.index)
    }

    /// Returns true if the table still has `sa`, which an earlier one had in `slot`, or a copy with
    /// another address. Linear time if the slot has changed.
    pub fn still_has(&self, slot: u32, sa: &Arc<InboundSa>) -> bool {
        // SPIs do not identify an SA: one may be in use at several addresses, and that of PSP is 0.
        let same = |own: &Arc<InboundSa>| Arc::ptr_eq(&own.common.counters, &sa.common.counters);
        self.get(slot).is_some_and(|own| Arc::ptr_eq(own, sa)) || self.sas.iter().any(same)
    }

    /// Every SA, in the order of slots.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<InboundSa>> {
        self.sas.iter()
    }
}

#[inline]
fn v4_key(spi: u32, dst: Ipv4Addr) -> u64 {
    u64::from(dst.to_bits()) << 32 | u64::from(spi)
}

#[inline]
fn address(addr: IpAddr) -> Address {
    match addr {
        IpAddr::V4(v4) => Address(v4.to_bits().into(), false),
        IpAddr::V6(v6) => Address(v6.to_bits(), true),
    }
}

#[cfg(test)]
mod tests {
    use crypto::kdf::PspMasterKey;
    use crypto::{EncAlg, Engine, KeyTable, Suite};

    use super::*;
    use crate::{DfPolicy, DscpPolicy, Lifetime, Mode, Outer, Peer, SaCommon, esp, psp};

    const US: &str = "192.0.2.1";
    const OTHER_US: &str = "2001:db8::1";
    const PEERS: [&str; 2] = ["198.51.100.1", "198.51.100.2"];

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn common(name: &str, local: &str, remote: &str) -> SaCommon {
        let outer = Outer {
            peer: Peer { local: addr(local), remote: addr(remote) },
            hop_limit: 64,
            dscp: DscpPolicy::Copy,
            ecn: true,
            df: DfPolicy::Copy,
            udp: None,
            udp_checksum: false,
        };
        SaCommon::new(name, Mode::Tunnel, outer, Lifetime::NONE)
    }

    fn esp_sa(name: &str, local: &str, spi: u32) -> Arc<InboundSa> {
        let suite = Suite { enc: EncAlg::by_name("aes128gcm16"), integ: None };
        let spec = esp::Spec { esn: true, ..esp::Spec::new(spi.try_into().unwrap(), suite, &[7; 20]) };
        let sa = esp::inbound(common(name, local, PEERS[0]), &spec, Engine::best(), &mut KeyTable::default());
        Arc::new(sa.unwrap())
    }

    fn psp_sa(name: &str, remote: &str, issued: &[(u32, u32)]) -> Arc<InboundSa> {
        let spec = psp::ReceiveSpec {
            masters: Arc::new(psp::MasterKeys::new([Some(PspMasterKey::new(&[1; 32])), None])),
            issued: issued.iter().map(|&(a, b)| (a.try_into().unwrap(), b.try_into().unwrap())).collect(),
            versions: 1,
            max_crypt_offset: 0,
            window: 0,
            first_seq: Vec::new(),
            honour_drop: false,
        };
        let sa = psp::inbound(common(name, US, remote), &spec, Engine::best(), &mut KeyTable::default());
        Arc::new(sa.unwrap())
    }

    #[test]
    fn an_sa_is_found_by_protocol_spi_and_destination() {
        let sad =
            Sad::new(vec![esp_sa("a", US, 0x1000), esp_sa("b", US, 0x1001), esp_sa("c", OTHER_US, 0x1000)]).unwrap();
        let found = |protocol, spi, dst| sad.lookup(protocol, spi, addr(PEERS[1]), addr(dst));
        assert_eq!(found(Protocol::Esp, 0x1000, US), Some(0), "whatever the source");
        assert_eq!(found(Protocol::Esp, 0x1001, US), Some(1));
        assert_eq!(found(Protocol::Esp, 0x1000, OTHER_US), Some(2));
        assert_eq!(found(Protocol::Esp, 0x1002, US), None);
        assert_eq!(found(Protocol::Ah, 0x1000, US), None);
        assert_eq!(found(Protocol::Psp, 0x1000, US), None);
        assert_eq!(found(Protocol::Esp, 0x1000, "::192.0.2.1"), None, "families are kept apart");
        assert_eq!(sad.get(2).map(|sa| &*sa.common.name), Some("c"));
        assert!(sad.get(3).is_none());
    }

    #[test]
    fn every_one_of_many_sas_is_found() {
        // Far more than one set holds, so that full sets continue in the next one.
        let entries: Vec<_> = (0..10_000u32)
            .map(|slot| {
                let protocol = if slot % 2 == 0 { Protocol::Esp } else { Protocol::Ah };
                (SpiPlace { key: v4_key(0x1000 + slot / 2, [192, 0, 2, 1].into()), protocol, set: 0 }, slot)
            })
            .collect();
        // In several parts, so that it grows.
        let mut sad = Sad::default();
        for part in entries.chunks(900) {
            assert!(sad.index.by_spi_v4.add(part).is_ok());
        }
        assert!(2 * entries.len() <= sad.index.by_spi_v4.sets.len() * WAYS);
        assert_eq!(sad.index.by_spi_v4.add(&entries[7..8]), Err((7, 7)));
        let find = |protocol, spi, dst: [u8; 4]| sad.find(sad.locate(protocol, spi, dst.into()).unwrap());
        for (SpiPlace { key, protocol, .. }, slot) in entries {
            assert_eq!(find(protocol, key as u32, [192, 0, 2, 1]), Some(slot));
            assert_eq!(find(Protocol::Eesp, key as u32, [192, 0, 2, 1]), None);
            assert_eq!(find(protocol, key as u32, [192, 0, 2, 2]), None);
        }
        assert!(Sad::default().locate(Protocol::Esp, 0x1000, [192, 0, 2, 1].into()).is_none());
    }

    #[test]
    fn a_longer_table_has_the_sas_of_its_beginning() {
        let all: Vec<Arc<InboundSa>> = (0..40)
            .map(|n| if n % 3 == 0 { esp_sa("v6", OTHER_US, 0x1000 + n) } else { esp_sa("v4", US, 0x1000 + n) })
            .collect();
        let (mut sad, mut indexed) = (Sad::default(), 0);
        for len in [0, 1, 7, 7, 30, 40] {
            let mut index = SadIndex::default();
            index.follow(sad.index().unwrap());
            sad = Sad::longer(index, indexed, all[..len].to_vec()).unwrap();
            indexed = len;
            for (slot, sa) in (0u32..).zip(&all) {
                let peer = sa.common.outer.peer;
                let found = sad.lookup(Protocol::Esp, sa.spi, peer.remote, peer.local);
                assert_eq!(found, ((slot as usize) < len).then_some(slot));
            }
        }
        let (sas, index) = sad.into_parts();
        let twice: Vec<_> = sas.into_iter().chain([esp_sa("again", US, 0x1001)]).collect();
        let names = Sad::longer(index, 40, twice).err().map(|(a, b)| (a.to_string(), b.to_string()));
        assert_eq!(names, Some(("v4".into(), "again".into())));
        let psp = Sad::new(vec![psp_sa("psp", PEERS[0], &[(10, 19)])]).unwrap();
        assert!(psp.index().is_none());
    }

    #[test]
    fn a_psp_sa_is_found_by_peer_and_issued_spi() {
        let sad = Sad::new(vec![
            psp_sa("low", PEERS[0], &[(10, 19), (40, 40)]),
            psp_sa("high", PEERS[0], &[(20, 29)]),
            psp_sa("other", PEERS[1], &[(10, 29)]),
        ])
        .unwrap();
        let found = |spi, src| sad.lookup(Protocol::Psp, spi, addr(src), addr(US));
        for (spi, slot) in [(10, 0), (19, 0), (20, 1), (29, 1), (40, 0)] {
            assert_eq!(found(spi, PEERS[0]), Some(slot), "SPI {spi}");
        }
        for never_issued in [9, 30, 41] {
            assert_eq!(found(never_issued, PEERS[0]), Some(0), "an SA of the peer, which will refuse it");
        }
        assert_eq!(found(15, PEERS[1]), Some(2));
        assert_eq!(found(15, "198.51.100.3"), None);
        assert_eq!(sad.lookup(Protocol::Psp, 15, addr(PEERS[0]), addr("192.0.2.2")), None);
    }

    #[test]
    fn an_sa_is_removed_though_others_have_its_spi() {
        let same_spi = [esp_sa("a", US, 0x1000), esp_sa("b", OTHER_US, 0x1000)];
        let psp = [psp_sa("c", PEERS[0], &[(10, 19)]), psp_sa("d", PEERS[1], &[(10, 19)])];
        for [gone, stays] in [same_spi, psp] {
            let sad = Sad::new(vec![Arc::clone(&stays)]).unwrap();
            assert!(!sad.still_has(0, &gone) && !sad.still_has(1, &gone));
            assert!(sad.still_has(0, &stays) && sad.still_has(1, &stays));
            // A copy with another address is the same SA.
            let moved = Sad::new(vec![Arc::new(stays.moved(Outer::new(addr(US), addr("203.0.113.9"))))]).unwrap();
            assert!(moved.still_has(0, &stays) && !moved.still_has(0, &gone));
        }
    }

    #[test]
    fn sas_that_no_packet_could_tell_apart_are_refused_by_name() {
        let clash = |sas| Sad::new(sas).err().map(|(a, b)| (a.to_string(), b.to_string()));
        let names = |a: &str, b: &str| Some((a.into(), b.into()));
        let twice = vec![esp_sa("a", US, 0x1000), esp_sa("b", US, 0x1001), esp_sa("c", US, 0x1000)];
        assert_eq!(clash(twice), names("a", "c"));
        let twice = vec![esp_sa("a", OTHER_US, 0x1000), esp_sa("b", US, 0x1000), esp_sa("c", OTHER_US, 0x1000)];
        assert_eq!(clash(twice), names("a", "c"));
        let filled = (0..64).map(|n| esp_sa("between", US, 0x1100 + n));
        let twice = [esp_sa("a", US, 0x1000)].into_iter().chain(filled).chain([esp_sa("c", US, 0x1000)]).collect();
        assert_eq!(clash(twice), names("a", "c"));
        let overlap = vec![psp_sa("x", PEERS[0], &[(20, 29)]), psp_sa("y", PEERS[0], &[(10, 20)])];
        assert_eq!(clash(overlap), names("x", "y"));
        let inside = vec![psp_sa("x", PEERS[0], &[(10, 90)]), psp_sa("y", PEERS[0], &[(40, 41)])];
        assert_eq!(clash(inside), names("x", "y"));
    }
}
