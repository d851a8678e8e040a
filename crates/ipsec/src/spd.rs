//! The SPD: ordered policies, first match, default drop (RFC 4301 §4.4.1).
//!
//! Built whole by the control side, then only read. Policies are found by the peer's side of the
//! packet first, because policies of a gateway differ in their peers; see [`index`].

mod index;

use std::sync::Arc;

use wire::{FlowKey, Selector};

use crate::DropReason;
pub use index::SearchStep;
use index::{Direction, Index, Peers, PolicyRow};

/// Index of a policy in its SPD.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PolicyId(pub u32);

/// Bit of the number of a trap whose peer is the destination of a packet: packets for different
/// hosts request different SAs.
pub const TRAP_PER_HOST: u32 = 1 << 31;

/// What a policy does with its packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// Through the outbound SA in this slot of the snapshot; inbound, only from SAs of the group
    /// `inbound`. SAs of one group are interchangeable: the old and the new one of a rekeying,
    /// those of several CPUs (RFC 9611).
    Protect {
        /// Outbound SA slot.
        outbound: u32,
        /// Group of inbound SAs.
        inbound: u32,
    },
    /// Held while an SA is negotiated, which is requested from the control side. Nothing comes in.
    Trap(u32),
    /// In the clear.
    Bypass,
    /// Not at all.
    Drop,
}

impl Action {
    /// Whether a packet for which the SPD decided `decision` may come out of an inbound SA of
    /// `group` (RFC 4301 §5.2 step 4).
    ///
    /// # Errors
    /// [`DropReason::PolicyDrop`] when its first policy says drop, otherwise
    /// [`DropReason::PolicyMismatch`] unless that policy demands this very group.
    #[inline]
    pub fn admit(decision: Option<Self>, group: u32) -> Result<(), DropReason> {
        match decision {
            Some(Self::Protect { inbound, .. }) if inbound == group => Ok(()),
            Some(Self::Drop) => Err(DropReason::PolicyDrop),
            _ => Err(DropReason::PolicyMismatch),
        }
    }

    /// Whether a packet for which the SPD decided `decision` may come in in the clear (RFC 4301
    /// §5.2 step 3b).
    ///
    /// # Errors
    /// [`DropReason::PlainInbound`], [`DropReason::PolicyDrop`] or [`DropReason::NoPolicy`], unless
    /// its first policy is bypass.
    pub fn admit_clear(decision: Option<Self>) -> Result<(), DropReason> {
        match decision {
            Some(Self::Bypass) => Ok(()),
            Some(Self::Protect { .. } | Self::Trap(_)) => Err(DropReason::PlainInbound),
            Some(Self::Drop) => Err(DropReason::PolicyDrop),
            None => Err(DropReason::NoPolicy),
        }
    }
}

/// One policy. Selectors are written from this host's point of view, outbound: source is local.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Name in the configuration. Shared with the configuration, like the selectors, because
    /// each change rebuilds the list of policies.
    pub name: Arc<str>,
    /// Any of them matches.
    pub selectors: Arc<[Selector]>,
    /// What happens.
    pub action: Action,
}

/// A policy in a list that is about to be made.
#[derive(Clone, Copy, Debug)]
pub struct PolicyRef<'a> {
    /// [`Policy::name`].
    pub name: &'a Arc<str>,
    /// [`Policy::selectors`].
    pub selectors: &'a Arc<[Selector]>,
    /// [`Policy::action`].
    pub action: Action,
}

impl PolicyRef<'_> {
    fn is(&self, policy: &Policy) -> bool {
        Arc::ptr_eq(self.name, &policy.name) && Arc::ptr_eq(self.selectors, &policy.selectors)
    }
}

impl Policy {
    /// Reference to the parts.
    pub fn borrowed(&self) -> PolicyRef<'_> {
        PolicyRef { name: &self.name, selectors: &self.selectors, action: self.action }
    }

    /// Makes `list`, an earlier list, equal to `next`. Policies before and after those that changed
    /// keep their references to name and selectors: these are counted beside the text, so that a
    /// copy of a long list reads the memory of every policy. Returns the number of policies for
    /// which references were taken.
    pub fn rewrite(list: &mut Vec<Self>, next: &[PolicyRef<'_>]) -> usize {
        let before = list.iter().zip(next).take_while(|(policy, next)| next.is(policy)).count();
        let (old, new) = (&list[before..], &next[before..]);
        let after = old.iter().rev().zip(new.iter().rev()).take_while(|(policy, next)| next.is(policy)).count();
        let taken = &next[before..next.len() - after];
        let owned = |next: &PolicyRef<'_>| {
            let (name, selectors) = (Arc::clone(next.name), Arc::clone(next.selectors));
            Self { name, selectors, action: next.action }
        };
        list.splice(before..list.len() - after, taken.iter().map(owned));
        for (policy, next) in list.iter_mut().zip(next) {
            policy.action = next.action;
        }
        taken.len()
    }
}

/// The policies in order.
#[derive(Default)]
pub struct Spd {
    policies: Vec<Policy>,
    outbound: Index,
    inbound: Index,
}

impl Spd {
    /// The ordered list.
    pub fn new(policies: Vec<Policy>) -> Self {
        Self::after(None, policies)
    }

    /// The ordered list that replaces `previous`. It shares what did not change: without a new peer
    /// this takes a fraction of the time of [`Spd::new`].
    pub fn after(previous: Option<&Self>, policies: Vec<Policy>) -> Self {
        let rows = |turned: fn(&Selector) -> Selector| -> Vec<PolicyRow> {
            (0..)
                .map(PolicyId)
                .zip(&policies)
                .flat_map(move |(id, Policy { selectors, action, .. })| {
                    selectors.iter().map(move |selector| PolicyRow { selector: turned(selector), id, action: *action })
                })
                .collect()
        };
        let outbound = rows(|selector| *selector);
        let shared = previous.and_then(|previous| previous.outbound.shared_peers(&outbound));
        let peers = shared.unwrap_or_else(|| Arc::new(Peers::new(&outbound)));
        let inbound = Index::new(rows(Selector::reversed), Direction::Inbound, Arc::clone(&peers));
        Self { outbound: Index::new(outbound, Direction::Outbound, peers), inbound, policies }
    }

    /// First policy that matches an outbound packet.
    pub fn outbound(&self, key: &FlowKey) -> Option<(PolicyId, Action)> {
        self.outbound.first_match(key).map(|row| (row.id, row.action))
    }

    /// Address of what [`Spd::outbound`] reads at `step`, or null: to be prefetched.
    #[doc(hidden)]
    pub fn outbound_address(&self, key: &FlowKey, step: SearchStep) -> *const u8 {
        self.outbound.address_of(key, step)
    }

    /// First policy that matches an inbound packet (selectors reversed).
    pub fn inbound(&self, key: &FlowKey) -> Option<(PolicyId, Action)> {
        self.inbound.first_match(key).map(|row| (row.id, row.action))
    }

    /// The policies, for [`Policy::rewrite`].
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// Likewise, of an SPD that is not needed any more.
    pub fn into_policies(self) -> Vec<Policy> {
        self.policies
    }

    /// The policy with this id.
    pub fn get(&self, id: PolicyId) -> Option<&Policy> {
        self.policies.get(id.0 as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;
    use wire::{AddrRange, IpProto, PortRange};

    use super::*;

    fn between(local: &str, remote: &str) -> Selector {
        let range = |text: &str| {
            let (addr, prefix) = text.split_once('/').unwrap();
            AddrRange::from_cidr(addr.parse().unwrap(), prefix.parse().unwrap()).unwrap()
        };
        Selector::between(range(local), range(remote))
    }

    fn policy(name: &str, action: Action, selectors: Vec<Selector>) -> Policy {
        Policy { name: name.into(), selectors: selectors.into(), action }
    }

    fn key(src: &str, dst: &str, proto: IpProto, ports: (u16, u16)) -> FlowKey {
        FlowKey::new(src.parse().unwrap(), dst.parse().unwrap(), proto, ports.0, ports.1)
    }

    fn office() -> Spd {
        let mut ssh = between("10.1.0.0/16", "10.2.0.0/16");
        (ssh.proto, ssh.dst_ports) = (Some(IpProto::TCP), PortRange::single(22));
        Spd::new(vec![
            policy("ssh", Action::Bypass, vec![ssh]),
            policy("closed", Action::Drop, vec![between("10.1.9.0/24", "0.0.0.0/0")]),
            policy(
                "office",
                Action::Protect { outbound: 4, inbound: 7 },
                vec![between("10.1.0.0/16", "10.2.0.0/16"), between("fd01::/16", "fd02::/16")],
            ),
        ])
    }

    #[test]
    fn the_first_policy_that_matches_decides() {
        let spd = office();
        let name = |found: Option<(PolicyId, Action)>| found.map(|(id, _)| &*spd.get(id).unwrap().name);
        let out = |src, dst, ports| name(spd.outbound(&key(src, dst, IpProto::TCP, ports)));
        assert_eq!(out("10.1.0.1", "10.2.0.1", (1000, 22)), Some("ssh"));
        assert_eq!(out("10.1.0.1", "10.2.0.1", (22, 1000)), Some("office"));
        assert_eq!(out("10.1.9.1", "10.2.0.1", (22, 1000)), Some("closed"));
        assert_eq!(out("fd01::1", "fd02::1", (22, 1000)), Some("office"));
        assert_eq!(out("10.2.0.1", "10.1.0.1", (1, 2)), None);
        let inbound = |src, dst, ports| name(spd.inbound(&key(src, dst, IpProto::TCP, ports)));
        assert_eq!(inbound("10.2.0.1", "10.1.0.1", (22, 1000)), Some("ssh"));
        assert_eq!(inbound("10.2.0.1", "10.1.9.1", (22, 1)), Some("ssh"));
        assert_eq!(inbound("8.8.8.8", "10.1.9.1", (22, 1)), Some("closed"));
        assert_eq!(inbound("10.1.0.1", "10.2.0.1", (1, 2)), None);
        assert_eq!(name(Spd::default().outbound(&key("1.1.1.1", "2.2.2.2", IpProto::UDP, (1, 2)))), None);
    }

    #[test]
    fn what_comes_in_must_come_the_way_its_policy_says() {
        let spd = office();
        let office = key("10.2.0.1", "10.1.0.1", IpProto::UDP, (1, 2));
        let decided = |key: &FlowKey| spd.inbound(key).map(|(_, action)| action);
        assert_eq!(Action::admit(decided(&office), 7), Ok(()));
        assert_eq!(Action::admit(decided(&office), 4), Err(DropReason::PolicyMismatch));
        assert_eq!(Action::admit_clear(decided(&office)), Err(DropReason::PlainInbound));
        let ssh = key("10.2.0.1", "10.1.0.1", IpProto::TCP, (22, 2));
        assert_eq!(Action::admit(decided(&ssh), 7), Err(DropReason::PolicyMismatch));
        assert_eq!(Action::admit_clear(decided(&ssh)), Ok(()));
        let closed = key("10.3.0.1", "10.1.9.1", IpProto::UDP, (1, 2));
        assert_eq!(Action::admit(decided(&closed), 7), Err(DropReason::PolicyDrop));
        assert_eq!(Action::admit_clear(decided(&closed)), Err(DropReason::PolicyDrop));
        let stranger = key("10.3.0.1", "10.4.0.1", IpProto::UDP, (1, 2));
        assert_eq!(Action::admit(decided(&stranger), 7), Err(DropReason::PolicyMismatch));
        assert_eq!(Action::admit_clear(decided(&stranger)), Err(DropReason::NoPolicy));
    }

    #[test]
    fn a_list_that_is_rewritten_takes_references_to_what_changed_only() {
        let one = |number: u32| policy(&number.to_string(), Action::Drop, vec![between("10.1.0.0/16", "10.2.0.0/16")]);
        let all: Vec<Policy> = (0..6).map(one).collect();
        let text = |list: &[Policy]| list.iter().map(|p| format!("{} {:?}", p.name, p.action)).collect::<Vec<_>>();
        let mut list = Vec::new();
        // From and to lists that share beginning, end, both and nothing.
        for (numbers, taken) in [
            (&[1, 2, 4][..], 3),
            (&[1, 2, 4], 0),
            (&[1, 2, 3, 4], 1),
            (&[0, 1, 2, 3, 4], 1),
            (&[0, 1, 4], 0),
            (&[0, 1, 4, 5], 1),
            (&[5, 1, 0], 3),
            (&[0, 0, 0], 2),
            (&[0], 0),
            (&[], 0),
        ] {
            let action = Action::Trap(taken as u32);
            let next: Vec<PolicyRef<'_>> = numbers.iter().map(|n| PolicyRef { action, ..all[*n].borrowed() }).collect();
            let wanted: Vec<Policy> = numbers.iter().map(|n| Policy { action, ..all[*n].clone() }).collect();
            assert_eq!((Policy::rewrite(&mut list, &next), text(&list)), (taken, text(&wanted)), "{numbers:?}");
        }
        assert_eq!(Arc::strong_count(&all[0].name), 1);
    }

    #[test]
    fn peers_that_did_not_change_are_shared_with_the_next_spd() {
        let before = office();
        let mut policies = before.policies.clone();
        policies[2].action = Action::Protect { outbound: 5, inbound: 8 };
        let replaced = Spd::after(Some(&before), policies.clone());
        assert!(before.outbound.is_sharing(&replaced.outbound) && before.inbound.is_sharing(&replaced.inbound));
        let packet = key("10.1.0.1", "10.2.0.1", IpProto::TCP, (22, 1000));
        let action = |spd: &Spd| spd.outbound(&packet).map(|(_, action)| action);
        assert_eq!(action(&before), Some(Action::Protect { outbound: 4, inbound: 7 }));
        assert_eq!(action(&replaced), Some(Action::Protect { outbound: 5, inbound: 8 }));
        // One peer less, and in another order.
        policies.swap(0, 2);
        assert!(!before.outbound.is_sharing(&Spd::after(Some(&before), policies.clone()).outbound));
        policies.truncate(2);
        let fewer = Spd::after(Some(&before), policies);
        assert!(!before.outbound.is_sharing(&fewer.outbound));
        assert_eq!(action(&fewer), Some(Action::Protect { outbound: 5, inbound: 8 }));
    }

    /// Few addresses, so that ranges and packets meet at their edges; both families, with the
    /// IPv4-mapped corner in which they look equal.
    fn addr() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            prop_oneof![0u32..6, u32::MAX - 3..=u32::MAX].prop_map(|bits| IpAddr::V4(bits.into())),
            prop_oneof![0u128..6, 0xffff_0000_0000..0xffff_0000_0006u128, u128::MAX - 3..=u128::MAX]
                .prop_map(|bits| IpAddr::V6(bits.into())),
        ]
    }

    fn range() -> impl Strategy<Value = AddrRange> {
        // Ranges that are none (two families, upside down) must match nothing, not break the index.
        (addr(), addr()).prop_map(|(start, end)| AddrRange { start, end })
    }

    fn ports() -> impl Strategy<Value = PortRange> {
        prop_oneof![
            3 => Just(PortRange::ANY),
            1 => Just(PortRange::OPAQUE),
            1 => (0u16..3, 0u16..3).prop_map(|(start, more)| PortRange { start, end: start + more }),
        ]
    }

    fn selector() -> impl Strategy<Value = Selector> {
        let proto = prop_oneof![Just(None), Just(Some(IpProto::TCP)), Just(Some(IpProto::ICMP))];
        (range(), range(), proto, ports(), ports()).prop_map(|(src, dst, proto, src_ports, dst_ports)| Selector {
            src,
            dst,
            proto,
            src_ports,
            dst_ports,
        })
    }

    proptest! {
        #[test]
        fn the_index_agrees_with_reading_the_list(
            lists in proptest::collection::vec(proptest::collection::vec(selector(), 0..4), 0..24),
            packets in proptest::collection::vec((addr(), addr(), 0..3, 0u16..5, 0u16..5, any::<bool>()), 1..40),
            other_before in any::<bool>(),
        ) {
            let policies: Vec<Policy> = lists.into_iter().map(|list| policy("", Action::Bypass, list)).collect();
            // The SPD before it has the same peers, or others.
            let before: Vec<Policy> = policies.iter().skip(usize::from(other_before)).cloned().collect();
            let spd = Spd::after(Some(&Spd::new(before)), policies.clone());
            let slow = |key: &FlowKey, turned: fn(&Selector) -> Selector| {
                policies.iter().position(|p| p.selectors.iter().any(|s| turned(s).matches(key)))
            };
            for (src, dst, proto, src_port, dst_port, opaque) in packets {
                let dst = if src.is_ipv4() == dst.is_ipv4() { dst } else { src };
                let proto = [IpProto::TCP, IpProto::ICMP, IpProto::UDP][proto as usize];
                let mut key = FlowKey::new(src, dst, proto, src_port, dst_port);
                key.opaque_ports = opaque;
                let found = |found: Option<(PolicyId, Action)>| found.map(|(id, _)| id.0 as usize);
                prop_assert_eq!(found(spd.outbound(&key)), slow(&key, |s| *s));
                prop_assert_eq!(found(spd.inbound(&key)), slow(&key, Selector::reversed));
            }
        }
    }
}
