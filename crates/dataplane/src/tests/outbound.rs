//! Packets of several SAs in one chunk, and packets that are dropped after they got a number.

use ipsec::ah;

use super::*;

/// Hosts with an SA each: AEAD in tunnel mode, AEAD in transport mode, separate MAC in both modes,
/// AH, and a narrow path.
const SUITES: [(&str, Mode, usize); 6] = [
    (SUITE, Mode::Tunnel, 1500),
    (SUITE, Mode::Transport, 1500),
    ("aes128-sha256", Mode::Tunnel, 1500),
    ("aes128-sha256", Mode::Transport, 1500),
    ("", Mode::Tunnel, 1500),
    (SUITE, Mode::Tunnel, 600),
];
const NARROW: u8 = 5;
/// Kinds of packets besides: bypassed, dropped by a policy, IPv6 within the MTU and above. All that
/// one SA protects should be within its MTU, or none.
const BYPASSED: u8 = 6;
const DROPPED: u8 = 7;
const V6: u8 = 8;
const LONG_V6: u8 = 9;

fn several() -> Publisher {
    let mut keys = KeyTable::default();
    let v6 = [(SUITE, Mode::Tunnel, 1500), (SUITE, Mode::Tunnel, 1280)];
    let sas = SUITES.into_iter().chain(v6).zip(0x1001u32..).map(|((suite, mode, path_mtu), spi)| {
        let (spi, common) = (spi.try_into().unwrap(), SaCommon::new("moon", mode, common().outer, Lifetime::NONE));
        let sa = if suite.is_empty() {
            let suite = Suite::parse_ah("sha256").unwrap();
            let (window, first_seq) = (64, 1);
            let spec = ah::Spec {
                spi,
                suite,
                integ_key: &[8; 32],
                esn: false,
                window,
                first_seq,
                persistent: false,
                align8_v4: false,
            };
            ah::outbound(common, &spec, Engine::AwsLc, &mut keys)
        } else {
            let suite = Suite::parse_esp(suite).unwrap();
            let enc_key = &[7; 36][..suite.enc_material_len()];
            let integ_key = &[8; 64][..suite.integ_material_len()];
            esp::outbound(common, &esp::Spec { spi, suite, enc_key, integ_key, ..spec(1) }, Engine::AwsLc, &mut keys)
        };
        let sa = sa.unwrap();
        sa.set_path_mtu(path_mtu);
        Arc::new(sa)
    });
    let sas: Vec<_> = sas.collect();
    let protect = |outbound| Action::Protect { outbound, inbound: 0 };
    let v4 = (0..6).map(protect).chain([Action::Bypass, Action::Drop]).zip(2u8..);
    let v4 = v4.map(|(action, host)| ([192, 0, 2, 0].into(), 24, [192, 0, 2, host].into(), action));
    let v6 = [(6, 2u16), (7, 3)].map(|(slot, host)| {
        let address = |host| [0x2001, 0xdb8, 0, 0, 0, 0, 0, host].into();
        (address(0), 32, address(host), protect(slot))
    });
    let policies = v4.chain(v6).map(|(any, bits, dst, action)| {
        let selector = Selector::between(AddrRange::from_cidr(any, bits).unwrap(), AddrRange { start: dst, end: dst });
        Policy { name: "one".into(), selectors: [selector].into(), action }
    });
    let spd = Spd::new(policies.collect());
    Publisher::new(Snapshot::new(vec![], sas, spd, keys, CodePoints::default()).unwrap())
}

/// A packet of a kind; IPv4 fragments cannot pass an SA in transport mode.
fn packet(kind: u8, len: usize, id: u8, fragment: bool) -> Vec<u8> {
    if kind >= V6 {
        let len = if kind == LONG_V6 { 1280 } else { IPV6_HEADER + len };
        let mut packet = vec![id; len];
        let dst = if kind == LONG_V6 { "2001:db8::3" } else { "2001:db8::2" };
        let (src, dst) = ("2001:db8::1".parse().unwrap(), dst.parse().unwrap());
        Ipv6Header::new(src, dst, IpProto::UDP, len - IPV6_HEADER).unwrap().emit(&mut packet).unwrap();
        UdpHeader::new(1, 2, len - IPV6_HEADER - 8).unwrap().emit(&mut packet[IPV6_HEADER..]).unwrap();
        return packet;
    }
    // All of one SA in the order of their numbers: fragments come after the other packets.
    let len = if kind == NARROW { 1000 } else { len };
    let mut packet = PACKET.to_vec();
    packet.resize(len, id);
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    (packet[5], packet[6], packet[19]) = (id, u8::from(fragment) << 5, 2 + kind);
    packet
}

/// Sends `packets` in batches of `most`. Packets of each SA in order; the order of SAs depends on
/// the batch, because those that exceed an MTU come last.
fn send_several(packets: &[Vec<u8>], most: usize, halves: Halves, alone: bool) -> Left {
    let tables = several().current();
    let config = |core| WorkerConfig { engine: Engine::AwsLc, batch: 128, alone, ..small(core) };
    let (mut left, drops) = send_by(&tables, [config(0), config(1)], packets, most, halves);
    left.sort_by_key(|packet| match packet[9] {
        50 => packet[20..24].to_vec(),
        51 => packet[24..28].to_vec(),
        _ => Vec::new(),
    });
    let sas = tables.outbound.iter().map(|sa| (sa.common.counters.packets(), sa.common.counters.bytes())).collect();
    (left, drops, sas)
}

/// Runs of one packet mostly, some longer than a chunk.
fn several_packets() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let times = prop_oneof![6 => Just(1usize), 2 => 2usize..5, 1 => 14usize..20];
    let len = prop::sample::select(vec![28usize, 28, 60, 61, 700]);
    let run = (0..=LONG_V6, len, any::<u8>(), prop::bool::weighted(0.1), times);
    let run = run.prop_map(|(kind, len, id, fragment, times)| vec![packet(kind, len, id, fragment); times]);
    prop::collection::vec(run, 1..20).prop_map(|runs| runs.into_iter().flatten().take(60).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn packets_of_several_kinds_leave_a_chunk_as_they_would_alone(packets in several_packets()) {
        let one_by_one = send_several(&packets, 1, Halves::Joined, true);
        for halves in Halves::ALL {
            for alone in [false, true] {
                prop_assert_eq!(&send_several(&packets, 128, halves, alone), &one_by_one, "{:?} {}", halves, alone);
                prop_assert_eq!(&send_several(&packets, 21, halves, alone), &one_by_one, "{:?} {}", halves, alone);
            }
        }
    }
}

/// The same with all kinds next to each other, and entries of the plan in two chunks of the second
/// half: packets that were dropped before are not in it.
#[test]
fn all_kinds_in_one_chunk_leave_as_they_would_alone() {
    let singles = (0..=LONG_V6).chain((0..=LONG_V6).rev()).map(|kind| packet(kind, 60, kind, false));
    let fragments = (0..4).map(|kind| packet(kind, 60, kind, true));
    let run = std::iter::repeat_n(packet(DROPPED, 28, 1, false), 3).chain((0..40).map(|id| packet(0, 28, id, false)));
    let packets: Vec<_> = singles.chain(fragments).chain(run).collect();
    let one_by_one = send_several(&packets, 1, Halves::Joined, true);
    let sent: Vec<u64> = one_by_one.2.iter().map(|(packets, _)| *packets).collect();
    assert_eq!(sent, [43, 2, 3, 2, 2, 4, 2, 2], "two of {BYPASSED} were bypassed");
    let count = |why: DropReason| one_by_one.1[why as usize];
    assert_eq!((count(DropReason::PolicyDrop), count(DropReason::Fragment), one_by_one.1.iter().sum()), (5, 2, 7u64));
    for halves in Halves::ALL {
        for alone in [false, true] {
            assert_eq!(send_several(&packets, 128, halves, alone), one_by_one, "{halves:?} {alone}");
        }
    }
}

/// Two SAs of two lanes, to two hosts.
fn lanes(mode: Mode, lifetime: Lifetime, has_key: bool) -> Publisher {
    let mut keys = KeyTable::default();
    let sas = [0x1001u32, 0x1002].map(|spi| {
        let common = SaCommon::new("moon", mode, common().outer, lifetime);
        Arc::new(eesp::outbound(common, &two_sub_sas(spi), Engine::AwsLc, &mut keys).unwrap())
    });
    let policies = [(0, 2u8), (1, 3)].map(|(outbound, host)| {
        let (any, dst) = ([192, 0, 2, 0].into(), [192, 0, 2, host].into());
        let selector = Selector::between(AddrRange::from_cidr(any, 24).unwrap(), AddrRange { start: dst, end: dst });
        let action = Action::Protect { outbound, inbound: 0 };
        Policy { name: "one".into(), selectors: [selector].into(), action }
    });
    let keys = if has_key { keys } else { KeyTable::default() };
    let tables = Snapshot::new(vec![], sas.into(), Spd::new(policies.into()), keys, CodePoints::default());
    Publisher::new(tables.unwrap())
}

/// Of lane 1, which numbers and counts are of, while the second worker uses lane 0 itself.
#[test]
fn packets_that_are_dropped_with_a_number_are_not_counted() {
    // Single packets of alternating SAs, then a run.
    let hosts = [(0, false), (1, false), (0, true), (1, true), (0, false), (0, true), (0, false)];
    let packets = hosts.map(|(host, fragment)| packet(host, 60 + usize::from(host), 1, fragment));
    let limits = Lifetime { packets: 1000, bytes: 100_000 };
    for (mode, lifetime) in
        [Mode::Tunnel, Mode::Transport].into_iter().flat_map(|mode| [(mode, Lifetime::NONE), (mode, limits)])
    {
        for (halves, alone, has_key) in Halves::ALL.into_iter().flat_map(|halves| {
            [(halves, false, false), (halves, false, true), (halves, true, false), (halves, true, true)]
        }) {
            let case = format!("{mode:?} {lifetime:?} {halves:?} {alone} {has_key}");
            let tables = lanes(mode, lifetime, has_key).current();
            let before: Vec<u64> = tables.outbound.iter().map(|sa| sa.lanes[1].seq.next()).collect();
            let config = |core| WorkerConfig { engine: Engine::AwsLc, batch: 128, alone, ..small(core) };
            let (left, drops) = send_by(&tables, [config(1), config(0)], &packets, 8, halves);
            let passes = |fragment: bool| has_key && (!fragment || mode == Mode::Tunnel);
            for (host, sa) in (0..).zip(&tables.outbound) {
                let own = || hosts.iter().filter(|(to, _)| *to == host);
                let sent = own().filter(|(_, fragment)| passes(*fragment)).count() as u64;
                let bytes = sent * (60 + u64::from(host));
                assert_eq!((sa.traffic(1).get(), sa.traffic(0).get()), ((sent, bytes), (0, 0)), "{case}");
                assert_eq!(sa.lanes[1].seq.next() - before[usize::from(host)], own().count() as u64, "{case}");
                if lifetime == limits {
                    let rest = (limits.packets - sent, limits.bytes - bytes);
                    assert_eq!(sa.check_room(rest.0, rest.1), Ok(()), "{case}: not all that was granted came back");
                    assert_eq!(sa.check_room(rest.0, rest.1 + 1), Err(DropReason::Expired), "{case}");
                }
            }
            let sent = hosts.iter().filter(|(_, fragment)| passes(*fragment)).count();
            assert_eq!((left.len(), drops.iter().sum::<u64>() as usize), (sent, packets.len() - sent), "{case}");
        }
    }
}
