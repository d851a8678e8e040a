//! Narrowing of traffic selectors (RFC 7296 §2.9).
//!
//! A responder returns the intersection of its policy and the request; an initiator checks that the
//! response is a subset of its request. Both sides of a Child SA are narrowed separately.

use wire::{AddrRange, IpProto, PortRange, TrafficSelector};

/// Selectors of an answer; as many as one payload holds.
const ANSWER_MAX: usize = wire::ike::Ts::MAX_SELECTORS;

/// Intersection of both lists, without selectors contained in another. If the peer's first selector
/// is the triggering packet and the policy covers it, it is included, as is everything else in both
/// lists. Empty means TS_UNACCEPTABLE.
pub(crate) fn narrow(ours: &[TrafficSelector], theirs: &[TrafficSelector]) -> Vec<TrafficSelector> {
    let mut common: Vec<TrafficSelector> = Vec::new();
    // The list of the peer is the outer loop: its first selector may be the triggering packet and
    // must survive `truncate` (RFC 7296 §2.9).
    for theirs in theirs {
        for both in ours.iter().filter_map(|ours| intersect(ours, theirs)) {
            // Drop redundant selectors, because the number of selectors in a payload is limited.
            if !common.iter().any(|known| is_subset(&both, known)) {
                common.retain(|known| !is_subset(known, &both));
                common.push(both);
            }
        }
    }
    // Narrower than possible, but still a valid response.
    common.truncate(ANSWER_MAX);
    common
}

/// A response that exceeds the request, or is empty.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum NotNarrowed {
    /// No selector remains.
    #[error("the peer's answer has no traffic selector")]
    Empty,
    /// This one is not part of the offer.
    #[error("the peer answers with {0}, which was not offered")]
    Wider(TrafficSelector),
}

/// Checks a responder's answer: each selector must be within one of the offered ones.
pub(crate) fn check_subset(offered: &[TrafficSelector], answered: &[TrafficSelector]) -> Result<(), NotNarrowed> {
    if answered.is_empty() {
        return Err(NotNarrowed::Empty);
    }
    // A responder must only narrow (RFC 7296 §2.9). A wider response could direct foreign traffic
    // into the SA.
    let outside = answered.iter().find(|answer| !offered.iter().any(|offer| is_subset(answer, offer)));
    outside.map_or(Ok(()), |answer| Err(NotNarrowed::Wider(*answer)))
}

/// True when some packet can have an address of each side: a Child SA needs a family that both
/// have.
pub(crate) fn families_meet(local: &[TrafficSelector], remote: &[TrafficSelector]) -> bool {
    local.iter().any(|one| remote.iter().any(|other| one.addrs.is_v6() == other.addrs.is_v6()))
}

/// Intersection of two selectors.
fn intersect(a: &TrafficSelector, b: &TrafficSelector) -> Option<TrafficSelector> {
    if a.addrs.is_v6() != b.addrs.is_v6() {
        return None;
    }
    let addrs = AddrRange::new(a.addrs.start.max(b.addrs.start), a.addrs.end.min(b.addrs.end))?;
    let proto = protocols(a.proto, b.proto)?;
    Some(TrafficSelector { addrs, proto, ports: ports(a.ports, b.ports)? })
}

fn protocols(a: Option<IpProto>, b: Option<IpProto>) -> Option<Option<IpProto>> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => None,
        (a, b) => Some(a.or(b)),
    }
}

/// OPAQUE packets are in ANY and in OPAQUE alone; OPAQUE ends before it starts, so its intersection
/// with a range is empty.
fn ports(a: PortRange, b: PortRange) -> Option<PortRange> {
    match (a, b) {
        // ANY includes OPAQUE (RFC 7296 §3.13.1), which the arithmetic below cannot express.
        (PortRange::ANY, other) | (other, PortRange::ANY) => Some(other),
        (PortRange::OPAQUE, PortRange::OPAQUE) => Some(PortRange::OPAQUE),
        (a, b) => {
            let (start, end) = (a.start.max(b.start), a.end.min(b.end));
            (start <= end).then_some(PortRange { start, end })
        }
    }
}

/// True when every packet of `inner` is one of `outer`.
fn is_subset(inner: &TrafficSelector, outer: &TrafficSelector) -> bool {
    intersect(inner, outer) == Some(*inner)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn list(text: &str) -> Vec<TrafficSelector> {
        text.split_whitespace().map(|one| one.parse().expect("a good selector")).collect()
    }

    fn narrowed(ours: &str, theirs: &str) -> Vec<TrafficSelector> {
        narrow(&list(ours), &list(theirs))
    }

    #[test]
    fn the_smaller_network_is_what_both_mean() {
        assert_eq!(narrowed("10.1.0.0/16", "0.0.0.0/0"), list("10.1.0.0/16"));
        assert_eq!(narrowed("0.0.0.0/0", "10.1.0.0/16[tcp/80]"), list("10.1.0.0/16[tcp/80]"));
        assert_eq!(narrowed("10.1.0.0/16[tcp]", "10.1.2.0/24[udp]"), []);
        assert_eq!(narrowed("10.1.0.0/16", "10.2.0.0/16"), []);
        assert_eq!(narrowed("10.0.0.5-10.0.0.9", "10.0.0.7-10.0.0.20"), list("10.0.0.7-10.0.0.9"));
        assert_eq!(narrowed("0.0.0.0/0", "::/0"), []);
    }

    #[test]
    fn the_selector_of_the_packet_stays_first() {
        let theirs = "10.1.2.3[tcp/4444] 10.1.0.0/16 2001:db8::/32";
        let common = narrowed("10.1.0.0/16[tcp/1-1024] 10.1.2.3[tcp] ::/0", theirs);
        assert_eq!(common, list("10.1.0.0/16[tcp/1-1024] 10.1.2.3[tcp] 2001:db8::/32"));
        let common = narrowed("10.1.3.0/24 10.1.2.3[tcp/4000-5000] ::/0", "10.1.2.3[tcp/4444] 10.1.3.0/24");
        assert_eq!(common, list("10.1.2.3[tcp/4444] 10.1.3.0/24"));
        // Where the whole network is accepted, the packet is in it.
        assert_eq!(narrowed("10.0.0.0/8", theirs), list("10.1.0.0/16"));
    }

    #[test]
    fn icmp_types_and_opaque_ports() {
        assert_eq!(narrowed("10.0.0.0/8[icmp]", "10.0.0.0/8[icmp/8]"), list("10.0.0.0/8[icmp/8]"));
        assert_eq!(narrowed("10.0.0.0/8[icmp/0]", "10.0.0.0/8[icmp/8]"), []);
        assert_eq!(narrowed("10.0.0.0/8", "10.0.0.0/8[udp/opaque]"), list("10.0.0.0/8[udp/opaque]"));
        assert_eq!(narrowed("10.0.0.0/8[udp/opaque]", "10.0.0.0/8[udp/opaque]"), list("10.0.0.0/8[udp/opaque]"));
        assert_eq!(narrowed("10.0.0.0/8[udp/1-65535]", "10.0.0.0/8[udp/opaque]"), []);
    }

    #[test]
    fn an_answer_may_only_narrow() {
        let check = |offered, answered| check_subset(&list(offered), &list(answered));
        assert_eq!(check("10.0.0.0/8 ::/0", "10.1.0.0/16[tcp/80] 2001::/16"), Ok(()));
        assert_eq!(check("10.0.0.0/8", "10.0.0.0/8"), Ok(()));
        assert_eq!(check("10.0.0.0/8", ""), Err(NotNarrowed::Empty));
        for wider in ["0.0.0.0/0", "10.255.0.0-11.0.0.0", "::/0"] {
            assert_eq!(check("10.0.0.0/8", wider), Err(NotNarrowed::Wider(wider.parse().expect("a selector"))));
        }
        assert!(check("10.0.0.0/8[tcp/1-9]", "10.0.0.0/8[tcp/opaque]").is_err());
        assert!(check("10.0.0.0/8[tcp/opaque]", "10.0.0.0/8[tcp]").is_err());
        assert!(check("10.0.0.0/8[tcp]", "10.0.0.0/8").is_err());
    }

    #[test]
    fn an_answer_fits_into_its_payload() {
        let single = |n: u16| {
            TrafficSelector::any(AddrRange {
                start: Ipv4Addr::from_bits(u32::from(n) * 2).into(),
                end: Ipv4Addr::from_bits(u32::from(n) * 2).into(),
            })
        };
        let theirs: Vec<_> = (0..300).map(single).collect();
        assert_eq!(narrow(&[TrafficSelector::any(AddrRange::ANY_V4)], &theirs), theirs[..ANSWER_MAX]);
    }

    #[test]
    fn families_have_to_meet() {
        assert!(families_meet(&list("10.0.0.0/8 ::/0"), &list("fd00::/8")));
        assert!(!families_meet(&list("10.0.0.0/8"), &list("fd00::/8")));
        assert!(!families_meet(&[], &list("fd00::/8")));
    }

    /// A small world: addresses 0..=7, two protocols, ports 0..=3 and opaque ones.
    fn selector() -> impl Strategy<Value = TrafficSelector> {
        let ports = prop_oneof![
            Just(PortRange::ANY),
            Just(PortRange::OPAQUE),
            (0u16..4, 0u16..4).prop_map(|(a, b)| PortRange { start: a.min(b), end: a.max(b) }),
        ];
        let proto = prop_oneof![Just(None), Just(Some(IpProto::TCP)), Just(Some(IpProto::UDP))];
        (0u32..8, 0u32..8, proto, ports).prop_map(|(a, b, proto, ports)| {
            let addrs =
                AddrRange { start: Ipv4Addr::from_bits(a.min(b)).into(), end: Ipv4Addr::from_bits(a.max(b)).into() };
            TrafficSelector { addrs, proto, ports }
        })
    }

    /// Every packet of the small world that a list means.
    fn packets(list: &[TrafficSelector]) -> Vec<(u32, IpProto, Option<u16>)> {
        let mut all = Vec::new();
        for addr in 0..8 {
            for proto in [IpProto::TCP, IpProto::UDP, IpProto::GRE] {
                for port in [None, Some(0), Some(1), Some(2), Some(3), Some(4), Some(u16::MAX)] {
                    let meant = |ts: &TrafficSelector| {
                        ts.addrs.contains(Ipv4Addr::from_bits(addr).into())
                            && ts.proto.is_none_or(|known| known == proto)
                            && ts.ports.matches(port.unwrap_or(0), port.is_none())
                    };
                    if list.iter().any(meant) {
                        all.push((addr, proto, port));
                    }
                }
            }
        }
        all
    }

    proptest! {
        #[test]
        fn narrowing_is_the_intersection_of_packets(
            ours in proptest::collection::vec(selector(), 0..4),
            theirs in proptest::collection::vec(selector(), 0..4),
        ) {
            let common = narrow(&ours, &theirs);
            let (a, b) = (packets(&ours), packets(&theirs));
            let both: Vec<_> = a.into_iter().filter(|packet| b.contains(packet)).collect();
            prop_assert_eq!(packets(&common), both);
            if !common.is_empty() {
                prop_assert_eq!(check_subset(&theirs, &common), Ok(()));
                prop_assert_eq!(check_subset(&ours, &common), Ok(()));
            }
        }

        #[test]
        fn a_subset_has_no_other_packets(a in selector(), b in selector()) {
            let wider = packets(&[b]);
            let within = packets(&[a]).iter().all(|packet| wider.contains(packet));
            prop_assert_eq!(is_subset(&a, &b), within);
        }
    }
}
