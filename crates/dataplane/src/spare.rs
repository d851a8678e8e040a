//! Memory of an earlier snapshot in which the next one is made.
//!
//! Each SA, key and policy counts its references in its own memory. A snapshot that takes a
//! reference to each of many reads all of that memory, and so does its end. Made in the memory of
//! an earlier one, it takes references to what changed, and compares pointers of the rest.

use std::net::IpAddr;
use std::sync::Arc;

use crypto::KeyTable;
use ipsec::{InboundSa, OutboundSa, Policy, PolicyRef, Protocol, SadIndex};

use crate::Snapshot;

/// Slots of a snapshot in the making, written over those of an earlier one.
pub struct SlotList<T> {
    slots: Vec<Arc<T>>,
    /// Number of slots that are those of the new snapshot.
    len: usize,
    /// Number of slots of the earlier one.
    earlier: usize,
    /// Number of slots at the beginning that kept their SA.
    kept: usize,
    taken: usize,
}

impl<T> Default for SlotList<T> {
    fn default() -> Self {
        Self::over(Vec::new())
    }
}

impl<T> SlotList<T> {
    /// An empty list, to be written over `earlier`.
    pub fn over(earlier: Vec<Arc<T>>) -> Self {
        Self { earlier: earlier.len(), slots: earlier, len: 0, kept: 0, taken: 0 }
    }

    /// The list of these SAs, with nothing earlier.
    pub fn of(slots: Vec<Arc<T>>) -> Self {
        Self { len: slots.len(), slots, earlier: 0, kept: 0, taken: 0 }
    }

    /// Adds an SA and returns its slot.
    pub fn push(&mut self, sa: &Arc<T>) -> u32 {
        match self.slots.get_mut(self.len) {
            Some(slot) if Arc::ptr_eq(slot, sa) => self.kept += usize::from(self.kept == self.len),
            Some(slot) => {
                *slot = Arc::clone(sa);
                self.taken += 1;
            }
            None => {
                self.slots.push(Arc::clone(sa));
                self.taken += 1;
            }
        }
        self.len += 1;
        self.len as u32 - 1
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no slot.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of references that were taken.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Number of slots at the beginning with the SA of the earlier snapshot.
    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    /// Returns whether all of the earlier snapshot kept their slots: at most others were added.
    pub(crate) fn is_longer(&self) -> bool {
        self.kept == self.earlier
    }

    /// The slots.
    pub fn finish(mut self) -> Vec<Arc<T>> {
        self.slots.truncate(self.len);
        self.slots
    }
}

/// SPI, peer and slot of an outbound SA.
pub(crate) type BySpi = (u32, IpAddr, u32);

/// Look-up tables of an earlier snapshot, of copies from its SAs.
#[derive(Default)]
pub struct SpareIndex {
    /// Of inbound SAs.
    pub(crate) sad: Option<SadIndex>,
    /// Of outbound SAs, sorted.
    pub(crate) by_spi: Vec<BySpi>,
    /// Properties of inbound SAs.
    pub(crate) traits: InboundTraits,
}

/// Properties that some inbound SA has.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct InboundTraits {
    /// [`Snapshot::eesp`].
    pub(crate) eesp: bool,
    /// [`Snapshot::psp_windows`].
    pub(crate) psp_windows: bool,
}

impl InboundTraits {
    /// Adds those of more SAs.
    pub(crate) fn with(mut self, sas: &[Arc<InboundSa>]) -> Self {
        self.eesp |= sas.iter().any(|sa| sa.protocol().sets_first_bit());
        self.psp_windows |= sas.iter().any(|sa| sa.protocol() == Protocol::Psp && sa.window > 0);
        self
    }
}

/// What a snapshot leaves to a later one when no worker reads it any more.
#[derive(Default)]
pub struct SpareTables {
    /// Inbound SAs.
    pub inbound: Vec<Arc<InboundSa>>,
    /// Outbound SAs.
    pub outbound: Vec<Arc<OutboundSa>>,
    /// Policies.
    pub policies: Vec<Policy>,
    /// Keys.
    pub keys: KeyTable,
    /// Index of these SAs.
    pub index: SpareIndex,
}

impl SpareTables {
    /// Takes a snapshot apart, for one after `current`. What neither that nor `keys` have is given
    /// up, so that nothing outlives its use here.
    pub fn of(retired: Snapshot, current: &Snapshot, keys: &KeyTable) -> Self {
        let Snapshot { sad, spd, outbound, keys: copy, mut by_spi, .. } = retired;
        // Operations in flight keep the keys that they were given.
        let mut copy = Arc::try_unwrap(copy).unwrap_or_default();
        copy.follow(keys);
        let (inbound, mut index) = sad.into_parts();
        let (mut inbound, mut outbound) = (SlotList::over(inbound), SlotList::over(outbound));
        for sa in current.sad.iter() {
            inbound.push(sa);
        }
        for sa in &current.outbound {
            outbound.push(sa);
        }
        let mut policies = spd.into_policies();
        let wanted: Vec<PolicyRef<'_>> = current.spd.policies().iter().map(Policy::borrowed).collect();
        Policy::rewrite(&mut policies, &wanted);
        by_spi.clone_from(&current.by_spi);
        let sad = current.sad.index().map(|current| {
            index.follow(current);
            index
        });
        let traits = InboundTraits { eesp: current.eesp, psp_windows: current.psp_windows };
        let index = SpareIndex { sad, by_spi, traits };
        Self { inbound: inbound.finish(), outbound: outbound.finish(), policies, keys: copy, index }
    }
}

#[cfg(test)]
mod tests {
    use crypto::{Engine, Suite};
    use ipsec::{Lifetime, Mode, Outer, SaCommon, Spd, esp};
    use wire::registry::CodePoints;

    use super::*;

    #[test]
    fn slots_with_the_same_sa_keep_their_reference() {
        let all: Vec<Arc<u8>> = (0..5).map(Arc::new).collect();
        let mut earlier = Vec::new();
        for (numbers, taken, kept, is_longer) in [
            (&[0, 1, 2][..], 3, 0, true),
            (&[0, 1, 2, 3], 1, 3, true),
            (&[0, 4, 2], 1, 1, false),
            (&[0, 4, 2], 0, 3, true),
            (&[0, 4], 0, 2, false),
            (&[], 0, 0, false),
            (&[1], 1, 0, true),
        ] {
            let mut list = SlotList::over(earlier);
            let slots: Vec<u32> = numbers.iter().map(|number| list.push(&all[*number])).collect();
            assert!(slots.into_iter().eq(0..numbers.len() as u32));
            assert_eq!((list.taken(), list.kept(), list.is_longer()), (taken, kept, is_longer), "{numbers:?}");
            assert_eq!((list.len(), list.is_empty()), (numbers.len(), numbers.is_empty()));
            earlier = list.finish();
            assert!(earlier.iter().map(|sa| usize::from(**sa)).eq(numbers.iter().copied()));
        }
        assert_eq!(Arc::strong_count(&all[0]), 1, "an SA that is gone is not kept");
    }
    /// The two halves of an SA with this host's address and SPI.
    fn halves(spi: u32, v6: bool, keys: &mut KeyTable) -> (Arc<InboundSa>, Arc<OutboundSa>) {
        let addr = |last: u8| -> IpAddr {
            if v6 { [0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()].into() } else { [192, 0, 2, last].into() }
        };
        let outer = Outer::new(addr(1), addr(2));
        let common = || SaCommon::new("moon", Mode::Tunnel, outer, Lifetime::NONE);
        let suite = Suite::parse_esp("aes128gcm16").unwrap();
        let spec = esp::Spec::new(spi.try_into().unwrap(), suite, &[7; 20]);
        let inbound = esp::inbound(common(), &spec, Engine::best(), keys).unwrap();
        let outbound = esp::outbound(common(), &esp::Spec { first_seq: 1, ..spec }, Engine::best(), keys).unwrap();
        (Arc::new(inbound), Arc::new(outbound))
    }

    /// Tables that were made over those of earlier ones find what new ones find.
    #[test]
    fn a_snapshot_over_an_earlier_one_is_as_a_new_one() {
        let mut keys = KeyTable::default();
        let all: Vec<_> = (0..30).map(|n| halves(0x1000 + n, n % 5 == 0, &mut keys)).collect();
        let snapshot = |numbers: &[usize], earlier: SpareTables| {
            let SpareTables { inbound, outbound, keys: mut copy, index, .. } = earlier;
            let (mut inbound, mut outbound) = (SlotList::over(inbound), SlotList::over(outbound));
            for number in numbers {
                inbound.push(&all[*number].0);
                outbound.push(&all[*number].1);
            }
            copy.follow(&keys);
            Snapshot::over((inbound, outbound, index), Spd::default(), copy, CodePoints::default()).unwrap()
        };
        let upto = |end: usize| (0..end).collect::<Vec<_>>();
        let (mut current, mut spare) = (snapshot(&upto(3), SpareTables::default()), SpareTables::default());
        let cases =
            [upto(3), upto(20), upto(30), vec![29, 3, 4], vec![29], vec![], upto(7), [upto(4), vec![9, 5]].concat()];
        for numbers in cases {
            let next = snapshot(&numbers, spare);
            let new = snapshot(&numbers, SpareTables::default());
            assert_eq!(next.keys.count(), 60);
            for (inbound, outbound) in &all {
                let (protocol, spi, peer) = (Protocol::Esp, inbound.spi, inbound.common.outer.peer);
                let found = |tables: &Snapshot| {
                    let outbound = tables.outbound_by_spi(protocol, outbound.spi, peer.remote);
                    let outbound: Vec<*const OutboundSa> = outbound.map(Arc::as_ptr).collect();
                    (tables.sad.lookup(protocol, spi, peer.remote, peer.local), outbound)
                };
                assert_eq!(found(&next), found(&new), "{numbers:?}");
            }
            let flags = |tables: &Snapshot| (tables.many_sas, tables.long_chunks, tables.eesp, tables.psp_windows);
            assert_eq!(flags(&next), flags(&new));
            spare = SpareTables::of(current, &next, &keys);
            current = next;
        }
    }
}
