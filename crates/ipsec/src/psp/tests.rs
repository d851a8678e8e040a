//! PSP: round trips, bindings, rotation, and everything a receiver must refuse.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crypto::kdf::PspMasterKey;
use crypto::{Engine, KeyTable};
use proptest::prelude::*;
use wire::psp::{PspHeader, PspSpi};
use wire::{IpPacket, SeqNo};

use super::*;
use crate::testkit::{Loop, assert_ipv4_checksum, hex, ipv4_udp, ipv6_udp, ones_complement_sum};
use crate::{DfPolicy, DropReason, DscpPolicy, InboundSa, Lifetime, OutboundSa, Outer, Peer};

const V4: [&str; 2] = ["192.0.2.1", "198.51.100.2"];
const V6: [&str; 2] = ["2001:db8:1::1", "2001:db8:2::2"];
const SPI: u32 = 0x1234_5678;

fn common(mode: Mode, [local, remote]: [&str; 2], udp_checksum: bool) -> SaCommon {
    let addr = |text: &str| text.parse::<IpAddr>().unwrap();
    let outer = Outer {
        peer: Peer { local: addr(local), remote: addr(remote) },
        hop_limit: 64,
        dscp: DscpPolicy::Copy,
        ecn: true,
        df: DfPolicy::Set,
        udp: None,
        udp_checksum,
    };
    SaCommon::new("test", mode, outer, Lifetime::NONE)
}

fn masters() -> MasterKeys {
    MasterKeys::new([Some(PspMasterKey::new(&[1; 32])), Some(PspMasterKey::new(&[2; 32]))])
}

fn key(masters: &MasterKeys, spi: u32, version: u8) -> Vec<u8> {
    let version = PspVersion::try_from(version).unwrap();
    masters.traffic_key(PspSpi::try_from(spi).unwrap(), version).unwrap().key().to_vec()
}

fn send(spi: u32, version: u8, key: &[u8]) -> SendSpec<'_> {
    SendSpec {
        spi: spi.try_into().unwrap(),
        version,
        key,
        iv: IvCounter { first: 1, persistent: false, cores: 1 },
        crypt_offset: 0,
        cookie: None,
        sample: false,
        drop: false,
        port: 1000,
        port_key: 7,
        source_port: None,
    }
}

/// Ranges of SPIs, both ends included.
fn ranges(raw: &[(u32, u32)]) -> Vec<(PspSpi, PspSpi)> {
    raw.iter().map(|&(first, last)| (first.try_into().unwrap(), last.try_into().unwrap())).collect()
}

fn receive(masters: MasterKeys) -> ReceiveSpec {
    ReceiveSpec {
        masters: Arc::new(masters),
        issued: ranges(&[(SPI, SPI + 3), (SPI | 1 << 31, SPI | 1 << 31)]),
        versions: 0b1111,
        max_crypt_offset: 252,
        window: 64,
        first_seq: Vec::new(),
        honour_drop: false,
    }
}

fn ends_with(mode: Mode, [local, remote]: [&str; 2], sum: bool, send: &SendSpec<'_>, receive: &ReceiveSpec) -> Loop {
    Loop::new(|engine, keys| {
        let out = outbound(common(mode, [local, remote], sum), send, engine, keys)?;
        let inn = inbound(common(mode, [remote, local], sum), receive, engine, keys)?;
        Ok::<_, SaError>((out, inn))
    })
}

/// A tunnel over IPv4 in version 0, changed by `change`.
fn tunnel(change: impl FnOnce(&mut SendSpec<'_>, &mut ReceiveSpec)) -> Loop {
    let key = key(&masters(), SPI, 0);
    let (mut send, mut receive) = (send(SPI, 0, &key), receive(masters()));
    change(&mut send, &mut receive);
    ends_with(Mode::Tunnel, V4, false, &send, &receive)
}

fn inner() -> Vec<u8> {
    ipv4_udp([10, 0, 0, 1], [10, 0, 0, 2], 45)
}

/// A packet that `make` changed, from its PSP header on, before it was sealed.
fn forge(ends: &mut Loop, inner: &[u8], make: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let ip = IpPacket::parse(inner).unwrap();
    let mut buffer = vec![0; 256 + inner.len() + 64];
    buffer[256..][..inner.len()].copy_from_slice(inner);
    let mut frame = crate::Frame::new(&mut buffer, 256..256 + inner.len()).unwrap();
    let seq = SeqNo(ends.out.lanes[0].seq.reserve(1).unwrap().first);
    let (op, _) = crate::prepare_out(&ends.out, &ends.out.lanes[0], seq, &ip, &mut frame).unwrap();
    let crypto::Aad::InPlace(aad) = op.aad else { unreachable!() };
    make(&mut frame.bytes_mut()[aad.range().start..]);
    let mut jobs = [crypto::Job::new(op, frame.bytes_mut())];
    ends.engine.seal(crypto::Keys { table: &ends.keys, derived: &ends.derived }, &mut jobs);
    frame.bytes().to_vec()
}

/// Offset of the PSP header of a tunnel over IPv4.
const AT: usize = 28;

#[test]
fn the_header_is_as_specified() {
    let mut ends = tunnel(|send, _| {
        (send.cookie, send.crypt_offset) = (Some(0x0102_0304_0506_0708), 8);
        (send.sample, send.drop, send.source_port) = (true, true, Some(1000));
    });
    let sealed = ends.seal(&inner()).unwrap();
    assert_eq!(sealed[20..24], hex("03e803e8"));
    assert_eq!(sealed[26..28], [0, 0], "no checksum over IPv4");
    assert_eq!(sealed[AT..AT + 24], hex("04 02 02 c3 12345678 0000000000000001 0102030405060708"));
    assert_eq!(sealed.len(), inner().len() + 68);

    let mut plain = tunnel(|_, _| ());
    let sealed = plain.seal(&inner()).unwrap();
    assert_eq!(sealed[AT..AT + 16], hex("04 01 00 01 12345678 0000000000000001"));
    assert_eq!(sealed.len(), inner().len() + 60);
    assert_eq!(plain.open(&sealed), Ok(inner()));
}

#[test]
fn one_flow_keeps_one_dynamic_source_port() {
    let mut ends = tunnel(|_, _| ());
    let mut port = |inner: &[u8]| {
        let sealed = ends.seal(inner).unwrap();
        u16::from_be_bytes([sealed[20], sealed[21]])
    };
    let ports: Vec<u16> = (0..32).map(|host| port(&ipv4_udp([10, 0, 0, host], [10, 0, 0, 99], 9))).collect();
    assert!(ports.iter().all(|&port| port >= 49152));
    assert!(ports.iter().any(|&port| port != ports[0]));
    for (host, &before) in (0..32).zip(&ports) {
        assert_eq!(port(&ipv4_udp([10, 0, 0, host], [10, 0, 0, 99], 700)), before);
    }
}

#[test]
fn contradictions_are_refused_with_a_reason() {
    let key16 = [0; 16];
    let beet = crate::Beet { local: V4[0].parse().unwrap(), remote: V4[1].parse().unwrap() };
    let sender = |mode, change: fn(&mut SendSpec<'_>)| {
        let mut spec = send(SPI, 0, &key16);
        change(&mut spec);
        let made = outbound(common(mode, V4, false), &spec, Engine::best(), &mut KeyTable::default());
        made.err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert_eq!(sender(Mode::Tunnel, |_| ()), "");
    assert!(sender(Mode::Beet(beet), |_| ()).contains("no BEET"));
    assert!(sender(Mode::Tunnel, |spec| spec.version = 4).contains("versions are 0 and 1"));
    assert!(sender(Mode::Tunnel, |spec| spec.version = 1).contains("needs"));
    assert!(sender(Mode::Tunnel, |spec| spec.crypt_offset = 6).contains("multiple of 4"));
    assert!(sender(Mode::Tunnel, |spec| (spec.version, spec.crypt_offset) = (2, 4)).contains("GMAC"));

    let receiver = |change: fn(&mut ReceiveSpec)| {
        let mut spec = receive(masters());
        change(&mut spec);
        let made = inbound(common(Mode::Tunnel, V4, false), &spec, Engine::best(), &mut KeyTable::default());
        made.err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert_eq!(receiver(|_| ()), "");
    assert!(receiver(|spec| spec.versions = 0).contains("one or more"));
    assert!(receiver(|spec| spec.versions = 16).contains("versions 0 to 3"));
    assert!(receiver(|spec| spec.issued.clear()).contains("one or more ranges"));
    assert!(receiver(|spec| spec.issued = ranges(&[(5, 9), (9, 10)])).contains("do not overlap"));
    assert!(receiver(|spec| spec.issued = ranges(&[(9, 5)])).contains("ranges"));
    assert!(receiver(|spec| spec.issued = ranges(&[(1, 65537)])).contains("at most 65536"));
    assert!(receiver(|spec| spec.window = 31).contains("window 31"));
    assert_eq!(receiver(|spec| (spec.window, spec.issued) = (0, ranges(&[(1, u32::MAX)]))), "");
}

#[test]
fn headers_are_judged_in_order_before_any_key_is_derived() {
    let mut ends = tunnel(|_, receive| receive.versions = 0b0001);
    let sealed = ends.seal(&inner()).unwrap();
    let mut changed = |at: usize, byte: u8| {
        let mut damaged = sealed.clone();
        damaged[AT + at] = byte;
        let result = ends.open(&damaged);
        assert!(ends.derived.is_empty());
        result
    };
    assert_eq!(changed(3, 0x00), Err(DropReason::Malformed), "always 1");
    assert_eq!(changed(3, 0x05), Err(DropReason::BadVersion), "version 1 is not enabled");
    assert_eq!(changed(3, 0x11), Err(DropReason::BadVersion), "version 4");
    assert_eq!(changed(3, 0x3d), Err(DropReason::BadVersion), "version 15");
    assert_eq!(changed(1, 0), Err(DropReason::Malformed), "header shorter than itself");
    assert_eq!(changed(3, 0x03), Err(DropReason::Malformed), "cookie without room");
    assert_eq!(changed(1, 200), Err(DropReason::Truncated), "header longer than the packet");
    assert_eq!(changed(2, 63), Err(DropReason::CryptOffset), "offset beyond the packet");
    assert_eq!(changed(4, 0x13), Err(DropReason::NotIssued));
    assert_eq!(changed(7, 0x7c), Err(DropReason::NotIssued), "one above the range");

    let mut spi = sealed.clone();
    for raw in [0u32, 1 << 31] {
        spi[AT + 4..AT + 8].copy_from_slice(&raw.to_be_bytes());
        assert_eq!(ends.open(&spi), Err(DropReason::Malformed), "low 31 bits are zero");
    }
    let mut short = sealed[..AT + 31].to_vec();
    let total = (short.len() as u16).to_be_bytes();
    short[2..4].copy_from_slice(&total);
    assert_eq!(ends.open(&short), Err(DropReason::Truncated));
    let mut fragment = sealed.clone();
    fragment[6] = 0x20;
    assert_eq!(ends.open(&fragment), Err(DropReason::Fragment));
    assert!(ends.derived.is_empty());
    assert_eq!(ends.open(&sealed), Ok(inner()));
}

#[test]
fn spis_are_bound_to_their_peer() {
    let mut ends = tunnel(|_, _| ());
    let mut sealed = ends.seal(&inner()).unwrap();
    let from = sealed[15];
    sealed[15] ^= 1; // source address; the IPv4 checksum is not checked here
    assert_eq!(ends.open(&sealed), Err(DropReason::WrongPeer));
    assert!(ends.derived.is_empty());
    sealed[15] = from;
    assert_eq!(ends.open(&sealed), Ok(inner()));
}

#[test]
fn a_flood_of_invented_spis_derives_nothing() {
    let mut ends = tunnel(|_, _| ());
    let mut sealed = ends.seal(&inner()).unwrap();
    let mut raw = 0x9e37_79b9u32;
    for _ in 0..5000 {
        raw = raw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        sealed[AT + 4..AT + 8].copy_from_slice(&raw.to_be_bytes());
        assert!(matches!(ends.open(&sealed), Err(DropReason::NotIssued | DropReason::Malformed)));
    }
    assert!(ends.derived.is_empty());
}

#[test]
fn a_crypt_offset_above_the_maximum_is_dropped_after_the_icv() {
    let mut ends = tunnel(|send, receive| (send.crypt_offset, receive.max_crypt_offset) = (28, 24));
    let sealed = ends.seal(&inner()).unwrap();
    let mut damaged = sealed.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(ends.open(&damaged), Err(DropReason::BadIcv));
    assert_eq!(ends.open(&sealed), Err(DropReason::CryptOffset));
    let mut ends = tunnel(|send, receive| (send.crypt_offset, receive.max_crypt_offset) = (28, 28));
    let sealed = ends.seal(&inner()).unwrap();
    assert_eq!(sealed[AT + 16..AT + 44], inner()[..28]);
    assert_eq!(ends.open(&sealed), Ok(inner()));
}

#[test]
fn an_offset_that_reaches_the_end_still_has_its_icv_checked() {
    for payload in [0, 4, 8] {
        let inner = ipv4_udp([10, 0, 0, 1], [10, 0, 0, 2], payload);
        let mut ends = tunnel(|send, _| send.crypt_offset = 252);
        let sealed = ends.seal(&inner).unwrap();
        assert_eq!(usize::from(sealed[AT + 2]) * 4, inner.len());
        let mut damaged = sealed.clone();
        damaged[AT + 30] ^= 1;
        assert_eq!(ends.open(&damaged), Err(DropReason::BadIcv));
        assert_eq!(ends.open(&sealed), Ok(inner));
    }
}

#[test]
fn extensions_beyond_the_cookie_are_stripped_by_their_length() {
    let mut ends = tunnel(|send, _| send.cookie = Some(0x2a));
    // The cookie's place becomes an unknown extension, or part of a longer header.
    let unknown = forge(&mut ends, &inner(), |psp| psp[3] &= !2);
    assert_eq!(ends.open(&unknown), Ok(inner()));
    let mut long = inner();
    long.splice(0..0, [0xee; 8]);
    let total = (long.len() as u16).to_be_bytes();
    // A sender with 8 bytes of extension after the cookie: here as the head of the payload.
    let mut carrier = ipv4_udp([10, 0, 0, 1], [10, 0, 0, 2], long.len() - 28);
    assert_eq!(carrier[2..4], total);
    let packet = forge(&mut ends, &carrier, |psp| {
        psp[1] = 3;
        psp[24..24 + long.len()].copy_from_slice(&long);
    });
    carrier.clear();
    assert_eq!(ends.open(&packet), Ok(inner()));
}

#[test]
fn next_header_has_to_fit_the_mode() {
    let mut ends = tunnel(|_, _| ());
    for (next, expected) in [
        (4, Ok(inner())),
        (41, Err(DropReason::BadInner)),
        (6, Err(DropReason::BadInner)),
        (59, Err(DropReason::BadInner)),
    ] {
        let packet = forge(&mut ends, &inner(), |psp| psp[0] = next);
        assert_eq!(ends.open(&packet), expected, "next header {next}");
    }
    let key = key(&masters(), SPI, 0);
    let inner = ipv4_udp([192, 0, 2, 1], [198, 51, 100, 2], 40);
    let mut ends = ends_with(Mode::Transport, V4, false, &send(SPI, 0, &key), &receive(masters()));
    let packet = forge(&mut ends, &inner, |psp| psp[0] = 4);
    assert_eq!(ends.open(&packet), Err(DropReason::BadInner), "a tunnel packet in transport mode");
    let packet = forge(&mut ends, &inner, |_| ());
    assert_eq!(ends.open(&packet), Ok(inner));
}

#[test]
fn drop_counts_only_with_sample_and_leave() {
    for (sample, drop, honour, expected) in [
        (false, false, true, Ok(false)),
        (true, false, true, Ok(true)),
        (true, true, false, Ok(true)),
        (true, true, true, Err(DropReason::SampleDrop)),
        (false, true, true, Ok(false)),
    ] {
        let mut ends = tunnel(|_, receive| receive.honour_drop = honour);
        let bits = if sample { 0x80 } else { 0 } | if drop { 0x40 } else { 0 };
        let sealed = forge(&mut ends, &inner(), |psp| psp[3] |= bits);
        assert_eq!(delivered_sample(&mut ends, sealed), expected, "S {sample}, D {drop}, honoured {honour}");
    }
}

/// Opens a packet and returns whether it must be sampled, which [`Loop::open`] does not.
fn delivered_sample(ends: &mut Loop, mut packet: Vec<u8>) -> Result<bool, DropReason> {
    let outer = IpPacket::parse(&packet).unwrap();
    let len = packet.len();
    let mut frame = crate::Frame::new(&mut packet, 0..len).unwrap();
    let (op, pending) = crate::prepare_in(&ends.inn, &outer, AT, &mut frame, &mut ends.derived)?;
    let mut jobs = [crypto::Job::new(op, frame.bytes_mut())];
    ends.engine.open(crypto::Keys { table: &ends.keys, derived: &ends.derived }, &mut jobs);
    let ok = jobs[0].take_ok().ok_or(DropReason::BadIcv)?;
    crate::finish_in(&ends.inn, &mut frame, &pending, ok).map(|delivered| delivered.sample)
}

#[test]
fn replays_are_refused_per_spi() {
    let (first, second) = (key(&masters(), SPI, 0), key(&masters(), SPI + 2, 0));
    let mut ends = ends_with(Mode::Tunnel, V4, false, &send(SPI, 0, &first), &receive(masters()));
    let mut other = ends_with(Mode::Tunnel, V4, false, &send(SPI + 2, 0, &second), &receive(masters()));
    assert_eq!(ends.inn.lanes.len(), 5);
    let at = |from: &mut Loop, iv| from.seal_as(0, SeqNo(iv), &inner()).unwrap();
    let (high, bottom, old, zero) = (at(&mut ends, 1000), at(&mut ends, 937), at(&mut ends, 936), at(&mut ends, 0));
    assert_eq!(ends.open(&high), Ok(inner()));
    assert_eq!(ends.open(&high), Err(DropReason::Replay));
    assert_eq!(ends.open(&bottom), Ok(inner()));
    assert_eq!(ends.open(&old), Err(DropReason::TooOld));
    let mut damaged = high.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(ends.open(&damaged), Err(DropReason::Replay), "found before any cryptography");
    assert_eq!(ends.open(&zero), Err(DropReason::ZeroSeq));
    let fresh = at(&mut other, 1);
    assert_eq!(ends.open(&fresh), Ok(inner()), "another SPI counts for itself");
    assert_eq!(ends.open(&fresh), Err(DropReason::Replay));
    assert_eq!(ends.tops(), [Some(1000), None, Some(1), None, None]);
}

#[test]
fn a_restarted_receiver_goes_on_where_each_spi_was() {
    let key = key(&masters(), SPI + 2, 0);
    let slow = ends_with(Mode::Tunnel, V4, false, &send(SPI + 2, 0, &key), &receive(masters()));
    let mut senders = [tunnel(|_, _| ()), slow];
    // Ranges count in ascending order, whatever the order they were given in.
    let mut ends = tunnel(|_, receive| {
        receive.issued.reverse();
        receive.first_seq = vec![5000, 0, 7];
    });
    assert_eq!(ends.tops(), [Some(5000), None, Some(7), None, None]);
    for (from, iv, opened) in [
        (0, 4936, Err(DropReason::TooOld)),
        (0, 5000, Err(DropReason::Replay)),
        (0, 5001, Ok(inner())),
        (1, 7, Err(DropReason::Replay)),
        (1, 8, Ok(inner())),
    ] {
        let sealed = senders[from].seal_as(0, SeqNo(iv), &inner()).unwrap();
        assert_eq!(ends.open(&sealed), opened, "IV {iv}");
    }
}

#[test]
fn without_a_window_a_clock_may_be_the_iv() {
    let mut ends = tunnel(|_, receive| receive.window = 0);
    for iv in [u64::MAX, 0, 1 << 63, 1 << 63] {
        let sealed = ends.seal_as(0, SeqNo(iv), &inner()).unwrap();
        assert_eq!(ends.open(&sealed), Ok(inner()));
    }
}

#[test]
fn two_rotations_make_a_key_useless() {
    let original = MasterKeys::new([Some(PspMasterKey::new(&[1; 32])), None]);
    let key = key(&original, SPI, 0);
    let once = original.rotate(PspMasterKey::new(&[2; 32]));
    let twice = once.rotate(PspMasterKey::new(&[3; 32]));
    let mut ends = ends_with(Mode::Tunnel, V4, false, &send(SPI, 0, &key), &receive(original));
    let receiver = |masters: MasterKeys, ends: &mut Loop| {
        let spec = receive(masters);
        ends.inn = inbound(common(Mode::Tunnel, [V4[1], V4[0]], false), &spec, Engine::best(), &mut ends.keys).unwrap();
    };
    let sealed = ends.seal(&inner()).unwrap();
    assert_eq!(ends.open(&sealed), Ok(inner()));
    receiver(once, &mut ends);
    assert_eq!(ends.open(&sealed), Ok(inner()), "the next period still takes it");
    receiver(twice, &mut ends);
    assert_eq!(ends.open(&sealed), Err(DropReason::BadIcv), "the cached key is not found again");
    receiver(MasterKeys::new([None, Some(PspMasterKey::new(&[4; 32]))]), &mut ends);
    assert_eq!(ends.open(&sealed), Err(DropReason::NoKey));
    ends.inn.lanes = std::sync::Arc::new([]); // not looked at without a master key
    assert_eq!(ends.open(&sealed), Err(DropReason::NoKey));
}

#[test]
fn every_flipped_bit_is_refused() {
    for (version, offset, cookie) in [(0, 0, None), (1, 24, Some(99)), (3, 0, Some(1))] {
        let key = key(&masters(), SPI, version);
        let spec = SendSpec { crypt_offset: offset, cookie, ..send(SPI, version, &key) };
        let mut ends = ends_with(Mode::Tunnel, V4, false, &spec, &receive(masters()));
        ends.assert_flipped_bits_are_refused(&inner(), |byte| byte >= AT);
    }
}

#[test]
fn an_ipv6_outer_header_has_a_right_udp_checksum() {
    let key = key(&masters(), SPI, 0);
    let mut ends = ends_with(Mode::Tunnel, V6, true, &send(SPI, 0, &key), &receive(masters()));
    let sealed = ends.seal(&inner()).unwrap();
    let pseudo = ones_complement_sum(&sealed[8..40], (sealed.len() - 40) as u16);
    let pseudo = ones_complement_sum(&[0, 17], pseudo);
    assert_eq!(ones_complement_sum(&sealed[40..], pseudo), 0xffff);
    assert_eq!(ends.open(&sealed), Ok(inner()));
}

fn modes() -> impl Strategy<Value = (Mode, [&'static str; 2], bool)> {
    prop_oneof![
        (prop_oneof![Just(V4), Just(V6)], any::<bool>()).prop_map(|(outer, v6)| (Mode::Tunnel, outer, v6)),
        Just((Mode::Transport, V4, false)),
        Just((Mode::Transport, V6, true)),
    ]
}

fn udp_packet(v6: bool, payload: usize) -> Vec<u8> {
    let addr = |text: &str| text.parse::<IpAddr>().unwrap();
    match [V4, V6].map(|pair| pair.map(addr)) {
        [[IpAddr::V4(a), IpAddr::V4(b)], _] if !v6 => ipv4_udp(a.octets(), b.octets(), payload),
        [_, [IpAddr::V6(a), IpAddr::V6(b)]] => ipv6_udp(a.octets(), b.octets(), payload),
        _ => unreachable!(),
    }
}

#[test]
fn every_core_counts_its_own_ivs() {
    let key = key(&masters(), SPI, 0);
    let cores = |first, cores| {
        let spec = SendSpec { iv: IvCounter { first, persistent: false, cores }, ..send(SPI, 0, &key) };
        outbound(common(Mode::Tunnel, V4, false), &spec, crypto::Engine::best(), &mut crypto::KeyTable::default())
    };
    let sa = cores(1, 255).unwrap();
    let firsts: Vec<u64> = sa.lanes.iter().take(3).map(|lane| lane.seq.reserve(1).unwrap().first).collect();
    assert_eq!(firsts, [1, 1 << 56 | 1, 2 << 56 | 1]);
    assert_eq!((sa.lanes.len(), sa.lanes[1].seq.last()), (255, (2 << 56) - 1));
    assert_eq!(cores(1, 1).unwrap().lanes.len(), 1);
    assert!(matches!(cores(1 << 56, 2), Err(SaError::Conflict(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_was_sealed_opens_in_every_mode(
        (mode, outer, v6) in modes(),
        version in 0u8..4,
        offset_words in 0u8..=63,
        cookie in prop::option::of(any::<u64>()),
        payload in prop_oneof![0usize..70, 200usize..260, 1000usize..1004],
        second_key in any::<bool>(),
    ) {
        let spi = if second_key { SPI | 1 << 31 } else { SPI };
        let key = key(&masters(), spi, version);
        let crypt_offset = if version < 2 { offset_words * 4 } else { 0 };
        let spec = SendSpec { crypt_offset, cookie, ..send(spi, version, &key) };
        let mut ends = ends_with(mode, outer, outer == V6, &spec, &receive(masters()));
        let inner = udp_packet(v6, payload);
        for _ in 0..2 {
            let sealed = ends.seal(&inner).unwrap();
            assert_ipv4_checksum(&sealed);
            let at = if outer == V4 { 28 } else { 48 };
            let (header, extensions, _) = PspHeader::parse_full(&sealed[at..]).unwrap();
            prop_assert_eq!(header.version().get(), version);
            prop_assert_eq!(extensions.len(), if cookie.is_some() { 8 } else { 0 });
            let added = 24 + extensions.len() + 16 + if mode == Mode::Tunnel { at - 8 } else { 0 };
            prop_assert_eq!(sealed.len(), inner.len() + added);
            prop_assert_eq!(ends.open(&sealed), Ok(inner.clone()));
        }
    }

    #[test]
    fn inner_mtu_is_the_largest_that_fits(
        (mode, outer, v6) in modes(),
        cookie in prop::option::of(any::<u64>()),
        mtu in 300usize..1600,
    ) {
        let key = key(&masters(), SPI, 0);
        let spec = SendSpec { cookie, ..send(SPI, 0, &key) };
        let mut ends = ends_with(mode, outer, false, &spec, &receive(masters()));
        ends.out.set_path_mtu(mtu);
        let inner = ends.out.inner_mtu.load(Ordering::Relaxed) as usize;
        let header = if v6 { 48 } else { 28 };
        prop_assert_eq!(ends.seal(&udp_packet(v6, inner - header)).unwrap().len(), mtu);
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(tail in prop::collection::vec(any::<u8>(), 0..120), flags in 0u8..16) {
        let mut ends = tunnel(|_, _| ());
        let sealed = ends.seal(&inner()).unwrap();
        let mut packet = sealed[..AT].to_vec();
        packet.extend(tail);
        if let Some(byte) = packet.get_mut(AT + 3) {
            *byte = flags | 1;
        }
        if let Some(spi) = packet.get_mut(AT + 4..AT + 8) {
            spi.copy_from_slice(&SPI.to_be_bytes());
        }
        let total = (packet.len() as u16).to_be_bytes();
        packet[2..4].copy_from_slice(&total);
        prop_assert!(ends.open(&packet).is_err());
        prop_assert!(ends.tops().iter().all(Option::is_none));
    }

    #[test]
    fn issued_ranges_are_found_as_a_list_would(spis in prop::collection::btree_set(1u32..60, 1..20), spi in 0u32..70) {
        let single: Vec<_> = spis.iter().rev().map(|&spi| (spi, spi)).collect();
        let spec = ReceiveSpec { issued: ranges(&single), ..receive(masters()) };
        let sa = inbound(common(Mode::Tunnel, V4, false), &spec, Engine::best(), &mut KeyTable::default()).unwrap();
        prop_assert_eq!(sa.lanes.len(), spis.len());
        let crate::InProto::Psp(psp) = &sa.proto else { unreachable!() };
        prop_assert_eq!(psp.position(spi), spis.iter().position(|&s| s == spi).map(|at| at as u64));
    }
}

#[allow(dead_code)]
fn both_ends_can_be_shared_between_cores(out: OutboundSa, inn: InboundSa) {
    fn shared<T: Send + Sync>(_: T) {}
    shared(out);
    shared(inn);
}
