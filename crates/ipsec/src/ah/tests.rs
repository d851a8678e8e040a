//! AH as a whole: packets of another implementation, round trips, and what is refused.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::*;
use crate::testkit::{Loop, assert_ipv4_checksum, hex, ipv4_udp, ipv6_udp, ones_complement_sum};
use crate::{Beet, DfPolicy, DscpPolicy, Lifetime, Outer, Peer, UdpPorts};

const SPI: u32 = 0x1122_3344;
const SUN4: [u8; 4] = [192, 0, 2, 1];
const MOON4: [u8; 4] = [198, 51, 100, 9];
const SUN6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const MOON6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];

fn common(mode: Mode, v6: bool, from_sun: bool) -> SaCommon {
    let (sun, moon): (IpAddr, IpAddr) = if v6 { (SUN6.into(), MOON6.into()) } else { (SUN4.into(), MOON4.into()) };
    let (local, remote) = if from_sun { (sun, moon) } else { (moon, sun) };
    let outer = Outer {
        peer: Peer { local, remote },
        hop_limit: 64,
        dscp: DscpPolicy::Copy,
        ecn: true,
        df: DfPolicy::Copy,
        udp: None,
        udp_checksum: false,
    };
    SaCommon::new("test", mode, outer, Lifetime::NONE)
}

fn key(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 29 + 17) as u8).collect()
}

fn sa_loop(suite: Suite, mode: Mode, v6: bool, adapt: impl Fn(&mut Spec<'_>)) -> Loop {
    let integ_key = key(suite.integ_material_len());
    Loop::new(|engine, keys| {
        let mut spec = Spec {
            spi: SPI.try_into().unwrap(),
            suite,
            integ_key: &integ_key,
            esn: false,
            window: 64,
            first_seq: 0,
            persistent: false,
            align8_v4: false,
        };
        adapt(&mut spec);
        let out = outbound(common(mode, v6, true), &spec, engine, keys)?;
        Ok::<_, SaError>((out, inbound(common(mode, v6, false), &spec, engine, keys)?))
    })
}

fn suite(proposal: &str) -> Suite {
    Suite::parse_ah(proposal).unwrap()
}

fn packet(mode: Mode, v6: bool, payload_len: usize) -> Vec<u8> {
    match (mode, v6) {
        (Mode::Tunnel, false) => ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], payload_len),
        (_, false) => ipv4_udp(SUN4, MOON4, payload_len),
        (_, true) => ipv6_udp(SUN6, MOON6, payload_len),
    }
}

/// An IPv4 packet with the total length and checksum that its bytes call for.
fn repair_v4(packet: &mut [u8]) {
    let (total, header_len) = (packet.len() as u16, usize::from(packet[0] & 15) * 4);
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet[10..12].fill(0);
    let sum = !ones_complement_sum(&packet[..header_len], 0);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// `packet`, IPv4 without options, with these.
fn with_options(packet: &[u8], options: &[u8]) -> Vec<u8> {
    let mut packet = [&packet[..20], options, &packet[20..]].concat();
    packet[0] += (options.len() / 4) as u8;
    repair_v4(&mut packet);
    packet
}

/// `packet`, IPv6 without extension headers, with this one of kind `proto`.
fn with_extension(packet: &[u8], proto: u8, extension: &[u8]) -> Vec<u8> {
    let mut packet = [&packet[..40], extension, &packet[40..]].concat();
    packet[40] = packet[6];
    packet[6] = proto;
    let len = packet.len() as u16 - 40;
    packet[4..6].copy_from_slice(&len.to_be_bytes());
    packet
}

#[test]
fn packets_of_scapy_are_made_and_opened_byte_by_byte() {
    let inner4 = "45280029beef40003d116aa80a0100010a0200019c40000900152552000102030405060708090a0b0c";
    let options4 = "4900002fbeef00003d1107ba0a0100010a02000194040000070b040000000000000000019c400009000b8b27616263";
    let inner6 = "62812345001d003d20010db800010000000000000000000120010db80002000000000000000000091101050200003e060102
        0304050601009c400009000dc43968656c6c6f";
    let (tunnel, transport) = (Mode::Tunnel, Mode::Transport);
    let cases = [
        (
            "sha1",
            transport,
            inner4,
            "45280041beef40003d336a6e0a0100010a02000111040000112233440000000747645136bac6723f
            4ee5e2cb9c40000900152552000102030405060708090a0b0c",
        ),
        (
            "sha1",
            tunnel,
            inner4,
            "452800550000400040334e10c0000201c6336409040400001122334400000007700148d504d5ec60bd3d
            fcec45280029beef40003d116aa80a0100010a0200019c40000900152552000102030405060708090a0b0c",
        ),
        (
            "sha256",
            transport,
            inner4,
            "45280045beef40003d336a6a0a0100010a0200011105000011223344000000073bf77caeacfb61
            08c6cd2fe44e3da0c79c40000900152552000102030405060708090a0b0c",
        ),
        (
            "sha512",
            tunnel,
            inner4,
            "452800690000400040334dfcc0000201c6336409040900001122334400000007049e10fcd8e4317b91
            1fd92294b2863f6da48931359ce306371322f5ea0cf65545280029beef40003d116aa80a0100010a0200019c4000090015255200
            0102030405060708090a0b0c",
        ),
        (
            "aescmac",
            tunnel,
            inner4,
            "452800550000400040334e10c0000201c63364090404000011223344000000075a5f22e920af4467
            946c0a1445280029beef40003d116aa80a0100010a0200019c40000900152552000102030405060708090a0b0c",
        ),
        (
            "sha1",
            transport,
            options4,
            "49000047beef00003d3307800a0100010a02000194040000070b04000000000000000001110400
            001122334400000007ef83a75c400a70079785e1ec9c400009000b8b27616263",
        ),
        (
            "sha1",
            transport,
            inner6,
            "628123450035003d20010db800010000000000000000000120010db8000200000000000000000009
            3301050200003e0601020304050601001104000011223344000000071b327163a3f1b8ba1cb93bb59c400009000dc43968656c6c6f",
        ),
        (
            "sha256",
            transport,
            inner6,
            "62812345003d003d20010db800010000000000000000000120010db80002000000000000000000
            093301050200003e0601020304050601001106000011223344000000077709ae63307265605afbc396aae9c9d5000000009c400009
            000dc43968656c6c6f",
        ),
    ];
    for (proposal, mode, inner, sealed) in cases {
        let (inner, sealed) = (hex(inner), hex(sealed));
        let mut ah = sa_loop(suite(proposal), mode, inner[0] >> 4 == 6, |_| ());
        assert_eq!(ah.seal_as(0, SeqNo(7), &inner).unwrap(), sealed, "{proposal} {mode:?}");
        assert_eq!(ah.open(&sealed).unwrap(), inner);
        assert_eq!(ah.open(&sealed), Err(DropReason::Replay));
    }
}

/// Made with Python's `hmac` from the words of RFC 4302 §2.5.1.
#[test]
fn the_high_half_is_appended_to_what_the_mac_covers() {
    let inner = hex("45280029beef40003d116aa80a0100010a0200019c40000900152552000102030405060708090a0b0c");
    let sealed = hex("45280041beef40003d336a6e0a0100010a0200011104000011223344000001052e80dbbc01a1b7e2bb41a98b9c400009
        00152552000102030405060708090a0b0c");
    let seq = 0xa1b2_c3d4_0000_0105;
    let mut ah = sa_loop(suite("sha1"), Mode::Transport, false, |spec| (spec.esn, spec.first_seq) = (true, seq - 1));
    assert_eq!(ah.seal_as(0, SeqNo(seq), &inner), Ok(sealed.clone()));
    assert_eq!(ah.open(&sealed), Ok(inner));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn open_undoes_seal(
        suite in prop::sample::select(Suite::all_ah().collect::<Vec<_>>()),
        (tunnel, v6, esn, align8) in any::<(bool, bool, bool, bool)>(),
        first in prop_oneof![Just(0u64), Just((1 << 32) - 2), Just((9 << 32) - 2)],
        len in 0usize..=1500,
    ) {
        let mode = if tunnel { Mode::Tunnel } else { Mode::Transport };
        let mut ah = sa_loop(suite, mode, v6, |spec| {
            spec.esn = esn;
            spec.align8_v4 = align8;
            spec.first_seq = if esn { first } else { first % (1 << 31) };
        });
        let packet = packet(mode, v6, len);
        ah.seal(&packet).unwrap(); // the receiver has seen the first number
        for _ in 0..3 {
            let sealed = ah.seal(&packet).unwrap();
            assert_ipv4_checksum(&sealed);
            prop_assert_eq!(ah.open(&sealed), Ok(packet.clone()));
            prop_assert_eq!(ah.open(&sealed), Err(DropReason::Replay));
        }
    }

    #[test]
    fn the_inner_mtu_is_exact(
        suite in prop::sample::select(Suite::all_ah().collect::<Vec<_>>()),
        (tunnel, v6, align8) in any::<(bool, bool, bool)>(),
        path_mtu in 576usize..2000,
    ) {
        let mode = if tunnel { Mode::Tunnel } else { Mode::Transport };
        let mut ah = sa_loop(suite, mode, v6, |spec| spec.align8_v4 = align8);
        ah.out.set_path_mtu(path_mtu);
        let headers = packet(mode, v6, 0).len();
        let len = ah.out.inner_mtu.load(Ordering::Relaxed) as usize - headers;
        prop_assert_eq!(ah.seal(&packet(mode, v6, len)).unwrap().len(), path_mtu);
    }

    #[test]
    fn no_input_makes_open_panic(
        v6: bool,
        options in prop::collection::vec(any::<u8>(), 0..10),
        kind in prop::sample::select(vec![0u8, 43, 44, 60]),
        tail in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut ah = sa_loop(suite("sha256"), Mode::Transport, v6, |_| ());
        let mut bytes = packet(Mode::Transport, v6, 0);
        bytes.truncate(if v6 { 40 } else { 20 });
        let mut options = [options, vec![0; 16]].concat();
        options.truncate(options.len() & !7);
        bytes[if v6 { 6 } else { 9 }] = 51;
        bytes.extend([17, 5, 0, 0, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 1]);
        bytes.extend(tail);
        let bytes = if v6 {
            options[1] = (options.len() / 8 - 1) as u8;
            with_extension(&bytes, kind, &options)
        } else {
            with_options(&bytes, &options)
        };
        prop_assert!(ah.open(&bytes).is_err());
        // The same headers when sealing: refused or undone, no panic.
        let _ = ah.seal(&bytes);
        prop_assert_eq!(ah.tops(), [Some(0)]);
    }
}

#[test]
fn any_flipped_bit_that_routers_leave_alone_is_refused() {
    for (mode, v6) in [Mode::Tunnel, Mode::Transport].into_iter().flat_map(|m| [(m, false), (m, true)]) {
        for esn in [false, true] {
            let mut ah = sa_loop(suite("sha256"), mode, v6, |spec| spec.esn = esn);
            let mutable: &[usize] = if v6 { &[0, 1, 2, 3, 7] } else { &[1, 6, 7, 8, 10, 11] };
            ah.assert_flipped_bits_are_refused(&packet(mode, v6, 20), |at| !mutable.contains(&at));
        }
    }
}

#[test]
fn what_routers_change_is_accepted_and_kept() {
    let record_route = [7, 7, 4, 0, 0, 0, 0, 1];
    let inner = with_options(&packet(Mode::Transport, false, 30), &record_route);
    let mut ah = sa_loop(suite("sha1"), Mode::Transport, false, |_| ());
    let mut sealed = ah.seal(&inner).unwrap();
    let mut expected = inner.clone();
    for packet in [&mut sealed, &mut expected] {
        packet[1] = 0xb8; // re-marked
        packet[8] -= 5; // TTL
        packet[22..27].copy_from_slice(&[8, 203, 0, 113, 1]); // a router wrote its address
        repair_v4(packet);
    }
    assert_eq!(ah.open(&sealed), Ok(expected));

    let mut hop_by_hop = [0; 16];
    hop_by_hop[1] = 1;
    hop_by_hop[2..8].copy_from_slice(&[0x3e, 4, 1, 2, 3, 4]); // may change
    hop_by_hop[8..16].copy_from_slice(&[0x1e, 6, 1, 2, 3, 4, 5, 6]); // may not
    let inner = with_extension(&packet(Mode::Transport, true, 30), 0, &hop_by_hop);
    let mut ah = sa_loop(suite("sha1"), Mode::Transport, true, |_| ());
    let mut sealed = ah.seal(&inner).unwrap();
    let mut expected = inner.clone();
    for packet in [&mut sealed, &mut expected] {
        packet[..4].copy_from_slice(&[0x6b, 0x81, 0x23, 0x45]);
        packet[7] = 3;
        packet[44] = 99;
    }
    let mut tampered = sealed.clone();
    tampered[50] ^= 1;
    assert_eq!(ah.open(&tampered), Err(DropReason::BadIcv));
    assert_eq!(ah.open(&sealed), Ok(expected));
}

#[test]
fn a_source_route_is_authenticated_as_it_will_arrive() {
    let router = [203, 0, 113, 1];
    let mut inner = packet(Mode::Transport, false, 8);
    inner[16..20].copy_from_slice(&router);
    let route = [&[131, 7, 4][..], &MOON4, &[0]].concat();
    let inner = with_options(&inner, &route);
    let mut ah = sa_loop(suite("sha1"), Mode::Transport, false, |_| ());
    let mut sealed = ah.seal(&inner).unwrap();
    assert_eq!(sealed[16..20], router, "the packet still goes to the first hop");
    sealed[16..20].copy_from_slice(&MOON4);
    sealed[22] = 8;
    sealed[23..27].copy_from_slice(&router);
    repair_v4(&mut sealed);
    assert!(ah.open(&sealed).is_ok());

    // Mobile IPv6: the routing header carries the home address.
    let home = [0x20, 1, 0xd, 0xb8, 0xa, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let routing = [&[0, 2, 2, 1, 0, 0, 0, 0][..], &home].concat();
    let inner = with_extension(&packet(Mode::Transport, true, 8), 43, &routing);
    let mut ah = sa_loop(suite("sha1"), Mode::Transport, true, |_| ());
    let mut sealed = ah.seal(&inner).unwrap();
    assert_eq!(ah.open(&sealed), Err(DropReason::Malformed), "not at its end yet");
    sealed[24..40].copy_from_slice(&home);
    sealed[43] = 0;
    sealed[48..64].copy_from_slice(&MOON6);
    assert!(ah.open(&sealed).is_ok());
}

#[test]
fn headers_without_a_predictable_end_are_not_sent() {
    let mut ah = sa_loop(suite("sha1"), Mode::Transport, true, |_| ());
    let plain = packet(Mode::Transport, true, 8);
    let type_0 = [&[0, 2, 0, 1, 0, 0, 0, 0][..], &SUN6].concat();
    assert_eq!(ah.seal(&with_extension(&plain, 43, &type_0)), Err(DropReason::Malformed));
    let used_up = [&[0, 2, 0, 0, 0, 0, 0, 0][..], &SUN6].concat();
    assert!(ah.seal(&with_extension(&plain, 43, &used_up)).is_ok());
    let atomic_fragment = [0; 8];
    assert_eq!(ah.seal(&with_extension(&plain, 44, &atomic_fragment)), Err(DropReason::Fragment));
    let broken_options = [0, 0, 0x1e, 9, 0, 0, 0, 0];
    assert_eq!(ah.seal(&with_extension(&plain, 60, &broken_options)), Err(DropReason::Malformed));
}

#[test]
fn padding_to_8_bytes_is_sent_when_asked_for_and_always_taken() {
    let mut plain = sa_loop(suite("sha256"), Mode::Tunnel, false, |_| ());
    let mut padded = sa_loop(suite("sha256"), Mode::Tunnel, false, |spec| spec.align8_v4 = true);
    let inner = packet(Mode::Tunnel, false, 8);
    let (short, long) = (plain.seal(&inner).unwrap(), padded.seal(&inner).unwrap());
    assert_eq!((short.len(), long.len()), (20 + 28 + 36, 20 + 32 + 36));
    assert_eq!(plain.open(&long).as_deref(), Ok(&inner[..]));
    assert_eq!(padded.open(&short).as_deref(), Ok(&inner[..]));
    let mut wrong = short.clone();
    wrong[21] = 4;
    assert_eq!(padded.open(&wrong), Err(DropReason::Replay));
    let mut ah = sa_loop(suite("sha256"), Mode::Tunnel, false, |_| ());
    assert_eq!(ah.open(&wrong), Err(DropReason::Malformed));
}

#[test]
fn short_packets_are_refused_before_the_engine() {
    let mut ah = sa_loop(suite("sha256"), Mode::Transport, false, |_| ());
    let sealed = ah.seal(&packet(Mode::Transport, false, 8)).unwrap();
    for len in 20..sealed.len() {
        let mut short = sealed[..len].to_vec();
        repair_v4(&mut short);
        let expected = if len < 20 + 28 { DropReason::Truncated } else { DropReason::BadIcv };
        assert_eq!(ah.open(&short), Err(expected), "{len}");
    }
}

#[test]
fn specifications_that_cannot_work_are_refused() {
    let integ_key = key(32);
    let refuse = |common: SaCommon, adapt: &dyn Fn(&mut Spec<'_>)| {
        let mut spec = Spec {
            spi: SPI.try_into().unwrap(),
            suite: suite("sha256"),
            integ_key: &integ_key,
            esn: false,
            window: 64,
            first_seq: 0,
            persistent: false,
            align8_v4: false,
        };
        adapt(&mut spec);
        inbound(common, &spec, Engine::best(), &mut KeyTable::default()).err()
    };
    let tunnel = || common(Mode::Tunnel, false, true);
    assert_eq!(refuse(tunnel(), &|_| ()), None);
    assert_eq!(refuse(tunnel(), &|s| s.window = 16), Some(SaError::Window(16)));
    assert!(matches!(refuse(tunnel(), &|s| s.integ_key = &[]), Some(SaError::Key(_))));
    let mut in_udp = tunnel();
    in_udp.outer.udp = Some(UdpPorts { src: 4500, dst: 4500 });
    let beet = Mode::Beet(Beet { local: SUN4.into(), remote: MOON4.into() });
    let conflicts = [
        refuse(in_udp, &|_| ()),
        refuse(common(beet, false, true), &|_| ()),
        refuse(tunnel(), &|s| s.suite = Suite::parse_esp("aes128gcm16").unwrap()),
        refuse(tunnel(), &|s| s.first_seq = 1 << 32),
    ];
    assert!(conflicts.iter().all(|c| matches!(c, Some(SaError::Conflict(_)))), "{conflicts:?}");
}
