//! EESP: vectors, round trips, and everything a receiver must refuse.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use crypto::{EncAlg, Engine, IntegAlg, KeyTable, Suite};
use proptest::prelude::*;
use wire::eesp::{CryptOffset, EespHeader};
use wire::{SeqNo, SessionId};

use super::*;
use crate::testkit::{Loop, assert_ipv4_checksum, hex, ipv4_udp, ipv6_udp, ones_complement_sum};
use crate::{
    Beet, DfPolicy, DropReason, DscpPolicy, InboundSa, Lifetime, Mode, OutboundSa, Outer, Peer, SaCommon, SaError,
    UdpPorts,
};

const V4: [&str; 2] = ["192.0.2.1", "198.51.100.2"];
const V6: [&str; 2] = ["2001:db8:1::1", "2001:db8:2::2"];

fn suite(name: &str) -> Suite {
    Suite { enc: Some(EncAlg::by_name(name).unwrap()), integ: None }
}

fn common(mode: Mode, [local, remote]: [&str; 2], udp: bool) -> SaCommon {
    let addr = |text: &str| text.parse::<IpAddr>().unwrap();
    let outer = Outer {
        peer: Peer { local: addr(local), remote: addr(remote) },
        hop_limit: 64,
        dscp: DscpPolicy::Copy,
        ecn: true,
        df: DfPolicy::Clear,
        udp: udp.then_some(UdpPorts { src: 4500, dst: 4500 }),
        udp_checksum: false,
    };
    SaCommon::new("test", mode, outer, Lifetime::NONE)
}

/// A tunnel's specification with AES-128-GCM-16 and sequence numbers, key and salt of the vectors.
fn spec(spi: u32) -> Spec<'static> {
    const KEY: [u8; 20] = [
        0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0xca, 0xfe,
        0xba, 0xbe,
    ];
    Spec::new(spi.try_into().unwrap(), suite("aes128gcm16"), &KEY)
}

fn beet(local: &str, remote: &str) -> Mode {
    Mode::Beet(Beet { local: local.parse().unwrap(), remote: remote.parse().unwrap() })
}

/// Both endpoints; the receiver has reversed addresses and its own specification.
fn ends(mode: Mode, outer: [&str; 2], udp: bool, send: &Spec<'_>, receive: &Spec<'_>) -> Loop {
    let [local, remote] = outer;
    let back = match mode {
        Mode::Beet(inner) => Mode::Beet(Beet { local: inner.remote, remote: inner.local }),
        other => other,
    };
    Loop::new(|engine, keys| {
        let out = outbound(common(mode, [local, remote], udp), send, engine, keys)?;
        let inn = inbound(common(back, [remote, local], udp), receive, engine, keys)?;
        Ok::<_, SaError>((out, inn))
    })
}

fn tunnel(spec: &Spec<'_>) -> Loop {
    ends(Mode::Tunnel, V4, false, spec, spec)
}

/// The packet around an EESP packet, as the vectors leave it out.
fn outside(eesp: &[u8]) -> Vec<u8> {
    let total = (20 + eesp.len()) as u16;
    let mut packet = hex("4500 0000 0000 0000 40fd 0000 c0000201 c6336402");
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    let sum = !ones_complement_sum(&packet, 0);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(eesp);
    packet
}

const INNER_A: &str = "45000022 00014000 40114e93 c0000201 c6336402 03e807d0 000e420c 45455350 2d41";

/// Seals `inner`, compares with the vector, opens it again.
fn vector(mut ends: Loop, lane: usize, seq: u64, inner: &str, expected: &str) {
    let (inner, expected) = (hex(inner), hex(expected));
    let outer_len = if ends.out.common.outer.peer.local.is_ipv4() { 20 } else { 40 };
    let sealed = ends.seal_as(lane, SeqNo(seq), &inner).unwrap();
    assert_eq!(sealed[outer_len..], expected);
    assert_eq!(ends.open(&sealed), Ok(inner));
}

#[test]
fn vector_a_tunnel_with_explicit_iv() {
    let spec = Spec { first_iv: Some(0x0102_0304_0506_0708), ..spec(0x1122_3344) };
    let expected = "80000000 11223344 00000000 00000001 01020304 05060708 319779e6 b7395859
        a48d8a11 ba460aa1 7b5c227a 258da630 6119a6fc ea2292e9 b008f094 325e7113 17c46837 93880ca4 ea0c4d8b";
    vector(tunnel(&spec), 0, 1, INNER_A, expected);
}

#[test]
fn vector_b_sub_sa_with_implicit_iv() {
    let root: Vec<u8> = (0..32).collect();
    let spec = Spec {
        suite: suite("aes256gcm16iiv"),
        key: &root,
        sub_sas: Some((SubSaKdf::HkdfSha256, 8)),
        session: 5,
        ..spec(0x8122_3344)
    };
    let inner = "60000000 000f1140 20010db8 00000001 00000000 00000001 20010db8 00000002
        00000000 00000002 03e807d0 000fa2c8 45455350 2d4230";
    let expected = "80000005 81223344 00000001 00000001 6dc17a84 659ed0bb b1802074 abd0ea75
        8090fb7b f2b0c99a 15ad1af6 1d4fe135 f2b06acf 53820e9c 74177c06 5a81a1f8
        451be582 e96832dc 304ce420 57eecb24 36032091 f76ab5e8";
    vector(tunnel(&spec), 0, 0x1_0000_0001, inner, expected);
}

#[test]
fn vector_c_transport_over_ipv6_is_padded_to_8() {
    let key: Vec<u8> = (0x80..0xa0).chain(0xa0..0xa4).collect();
    let spec = Spec { suite: suite("chacha20poly1305"), key: &key, ..spec(0x1122_3355) };
    let inner = "60000000 000e1140 20010db8 00000001 00000000 00000001 20010db8 00000002 00000000 00000002
        03e807d0 000ed2c9 45455350 2d43";
    let expected = "80040000 11223355 01020000 00000000 00000003 00000000 00000003 8aed393b
        dc6ecdcb ebff3ee5 6134e981 1f4d1a8f c8423890 62eb0496 37b0b1a1 a4a736c5";
    let outer = ["2001:db8:0:1::1", "2001:db8:0:2::2"];
    vector(ends(Mode::Transport, outer, false, &spec, &spec), 0, 3, inner, expected);
}

#[test]
fn vector_d_crypt_offset() {
    let spec = Spec { crypt_offset: Some(32), ..spec(0x1122_3366) };
    let inner = "45000023 00014000 40114e92 c0000201 c6336402 03e807d0 000f1107 45455350 2d4431";
    let expected = "80040000 11223366 02021c80 00000000 00000007 00000000 00000007 00000401
        45000023 00014000 40114e92 c0000201 c6336402 03e807d0 000f1107
        b1861a63 a14aa1ac 936a2108 f0869b54 0c0b3431 bf76abf5";
    vector(tunnel(&spec), 0, 7, inner, expected);
}

#[test]
fn vector_e_gmac() {
    let spec = Spec { suite: suite("aes128gmac"), ..spec(0x1122_3377) };
    let expected = "80000000 11223377 00000000 00000001 00000000 00000001 45000022 00014000
        40114e93 c0000201 c6336402 03e807d0 000e420c 45455350 2d410000 8f581438 70478f6f c0150a1a e4ccd7cf";
    vector(tunnel(&spec), 0, 1, INNER_A, expected);
}

#[test]
fn vector_f_ccm() {
    let key = spec(256).key[..19].to_vec();
    let spec = Spec { suite: suite("aes128ccm16"), key: &key, ..spec(0x1122_3388) };
    let expected = "80000000 11223388 00000000 00000001 00000000 00000001 305c017c 32403cc8
        bcac8c93 be4edb15 a7ebba4b e8fcf6c4 4ae20b17 34428a10 586d1458 34520cbc 7866b5ae 563a6730 c65a0647";
    vector(tunnel(&spec), 0, 1, INNER_A, expected);
}

#[test]
fn vector_g_no_sequence_number() {
    let spec = Spec { seq: false, first_iv: Some(9), ..spec(0x1122_3399) };
    let mut inner = hex("45000020 00014000 40110000 c0000201 c6336402 03e807d0 000c0000 45455350");
    let sum = !ones_complement_sum(&inner[..20], 0);
    inner[10..12].copy_from_slice(&sum.to_be_bytes());
    // The vector does not print the UDP checksum: pseudo header, header, "EESP".
    let pseudo = ones_complement_sum(&hex("c0000201 c6336402 0011 000c"), 0);
    let sum = !ones_complement_sum(&inner[20..], pseudo);
    inner[26..28].copy_from_slice(&sum.to_be_bytes());
    let expected = hex("80000000 11223399 00000000 00000009 87317c8b fe174298 2374f9e3 b340fd3f
        4109845b 93a574f3 324bdf77 1dee3a55");
    let mut ends = ends(Mode::Transport, V4, false, &spec, &spec);
    let sealed = ends.seal(&inner).unwrap();
    assert_eq!(sealed[20..], expected);
    assert_eq!(ends.open(&sealed), Ok(inner.clone()));
    assert_eq!(ends.open(&sealed), Ok(inner), "no numbers, no replay check");
}

fn refused(spec: &Spec<'_>) -> String {
    let refused = |error: Option<SaError>| error.map(|e| e.to_string()).unwrap_or_default();
    let out = outbound(common(Mode::Tunnel, V4, false), spec, Engine::best(), &mut KeyTable::default()).err();
    let inn = inbound(common(Mode::Tunnel, V4, false), spec, Engine::best(), &mut KeyTable::default()).err();
    let (out, inn) = (refused(out), refused(inn));
    if out == inn { out } else { format!("{out} | {inn}") }
}

#[test]
fn contradictions_are_refused_with_a_reason() {
    let root = [0; 32];
    let with_mac = Suite { enc: EncAlg::by_name("aes128"), integ: IntegAlg::by_name("sha256") };
    let null = Suite { enc: EncAlg::by_name("null"), integ: None };
    let sub_sas = |count| Some((SubSaKdf::HkdfSha256, count));
    for (spec, reason) in [
        (Spec { suite: with_mac, ..spec(256) }, "no cipher with a separate MAC"),
        (Spec { suite: null, ..spec(256) }, "no cipher with a separate MAC"),
        (Spec { suite: suite("aes128gcm16iiv"), seq: false, ..spec(256) }, "implicit IV is the sequence number"),
        (Spec { key: &[0; 16], ..spec(256) }, "needs 20 bytes"),
        (Spec { crypt_offset: Some(6), ..spec(256) }, "multiple of 4"),
        (Spec { suite: suite("aes128gmac"), crypt_offset: Some(8), ..spec(256) }, "GMAC"),
        (Spec { sub_sas: sub_sas(4), ..spec(256) }, "needs 32 bytes of root key"),
        (Spec { sub_sas: sub_sas(0), key: &root, ..spec(256) }, "1 to 65536"),
        (Spec { sub_sas: sub_sas(65537), key: &root, ..spec(256) }, "1 to 65536"),
        (Spec { sub_sas: sub_sas(4), session: 4, key: &root, ..spec(256) }, "not below the number"),
        (Spec { window: 0, ..spec(256) }, " | EESP packets with sequence numbers have to be checked"),
        (Spec { window: 63, ..spec(256) }, "window 63 is not possible"),
        (Spec { window: 65537, ..spec(256) }, "window 65537 is not possible"),
        (Spec { window: 65536, sub_sas: sub_sas(65536), key: &root, ..spec(256) }, "64 MiB"),
        (Spec { first_seq: &[0], ..spec(256) }, "1 or more"),
        (Spec { extra_options: &[7, 2, 0], ..spec(256) }, "not whole"),
        (Spec { extra_options: &[2, 2, 0, 0], ..spec(256) }, "set by crypt_offset"),
        (Spec { extra_options: &[0; 253], ..spec(256) }, "do not fit"),
        (Spec { extra_options: &[0; 225], crypt_offset: Some(4), ..spec(256) }, "do not fit"),
    ] {
        let refused = refused(&spec);
        assert!(refused.contains(reason), "expected '{reason}' in '{refused}'");
    }
    assert_eq!(refused(&Spec { extra_options: &[0; 248], ..spec(256) }), "");
    assert_eq!(refused(&Spec { extra_options: &[0; 224], crypt_offset: Some(4), ..spec(256) }), "");
}

/// An EESP packet that `make` changed before it was sealed, so that its ICV is right: the engine
/// runs over bytes as they are.
fn forge(ends: &mut Loop, inner: &[u8], make: impl FnOnce(&mut [u8], usize)) -> Vec<u8> {
    let ip = wire::IpPacket::parse(inner).unwrap();
    let mut buffer = vec![0; 256 + inner.len() + 64];
    buffer[256..][..inner.len()].copy_from_slice(inner);
    let mut frame = crate::Frame::new(&mut buffer, 256..256 + inner.len()).unwrap();
    let seq = SeqNo(ends.out.lanes[0].seq.reserve(1).unwrap().first);
    let (op, _) = crate::prepare_out(&ends.out, &ends.out.lanes[0], seq, &ip, &mut frame).unwrap();
    let crypto::Aad::InPlace(aad) = op.aad else { unreachable!() };
    make(frame.bytes_mut(), aad.range().start);
    let mut jobs = [crypto::Job::new(op, frame.bytes_mut())];
    ends.engine.seal(crypto::Keys { table: &ends.keys, derived: &ends.derived }, &mut jobs);
    frame.bytes().to_vec()
}

#[test]
fn first_byte_and_lengths_are_judged_first() {
    let mut ends = tunnel(&spec(256));
    let sealed = ends.seal(&hex(INNER_A)).unwrap();
    for first in [0x00, 0x81, 0x88, 0xc0] {
        let mut damaged = sealed.clone();
        damaged[20] = first;
        assert_eq!(ends.open(&damaged), Err(DropReason::BadVersion));
    }
    let mut damaged = sealed.clone();
    damaged[21] = 255; // options beyond the packet
    assert_eq!(ends.open(&damaged), Err(DropReason::Truncated));
    for (eesp, why) in [
        ("", DropReason::Truncated),
        ("ff", DropReason::Truncated),
        ("00000000", DropReason::Truncated),
        ("80000000 000001", DropReason::Truncated),
        ("80000000 00000100", DropReason::Truncated),
    ] {
        assert_eq!(ends.open(&outside(&hex(eesp))), Err(why));
    }
    assert_eq!(ends.open(&sealed), Ok(hex(INNER_A)));
}

#[test]
fn options_have_to_be_well_formed() {
    for (options, why) in [
        ("07", DropReason::BadOption),
        ("07030000", DropReason::BadOption),
        ("02000000", DropReason::BadOption),
        ("02010000", DropReason::BadOption),
        ("02042080 0000", DropReason::BadOption),
        ("02022080 02022080", DropReason::BadOption),
        ("02021c80", DropReason::BadIcv),          // right
        ("02021880", DropReason::BadOption),       // payload offset one too small
        ("02022080", DropReason::BadOption),       // one too large
        ("02021ff0", DropReason::CryptOffset),     // beyond the packet
        ("01060000 00000000", DropReason::BadIcv), // fine but for the ICV
        ("07060000 00000000", DropReason::BadIcv), // unknown, skipped
    ] {
        let mut ends = tunnel(&Spec { extra_options: &[0; 8], crypt_offset: Some(252), ..spec(256) });
        let sealed = ends.seal(&hex(INNER_A)).unwrap();
        let field = hex(options);
        let mut damaged = sealed.clone();
        let opt_len = usize::from(damaged[21]);
        assert_eq!(opt_len, 12);
        damaged.splice(28..28 + opt_len, field.iter().copied());
        damaged[21] = field.len() as u8;
        let total = (damaged.len() as u16).to_be_bytes();
        damaged[2..4].copy_from_slice(&total);
        let result = ends.open(&damaged);
        assert_eq!(result, Err(why), "{options}");
        assert_eq!(ends.open(&sealed), Ok(hex(INNER_A)));
    }
}

#[test]
fn unknown_options_are_counted_or_refused() {
    let send = Spec { extra_options: &[0x99, 1, 0x55, 0x98, 0], ..spec(256) };
    let mut lenient = tunnel(&send);
    let sealed = lenient.seal(&hex(INNER_A)).unwrap();
    assert_eq!((sealed[21], &sealed[28..36]), (8, &hex("99 01 55 98 00 01 01 00")[..]));
    assert_eq!(lenient.open(&sealed), Ok(hex(INNER_A)));
    assert_eq!(lenient.inn.common.counters.unknown_options.load(Ordering::Relaxed), 2);
    let mut damaged = lenient.seal(&hex(INNER_A)).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(lenient.open(&damaged), Err(DropReason::BadIcv));
    assert_eq!(lenient.inn.common.counters.unknown_options.load(Ordering::Relaxed), 2, "only what is authentic counts");

    let mut strict = ends(Mode::Tunnel, V4, false, &send, &Spec { strict_options: true, ..spec(256) });
    let sealed = strict.seal(&hex(INNER_A)).unwrap();
    assert_eq!(strict.open(&sealed), Err(DropReason::BadOption));
}

#[test]
fn a_crypt_offset_above_the_maximum_is_dropped_after_the_icv() {
    let inner = ipv4_udp([10, 0, 0, 1], [10, 0, 0, 2], 64);
    for maximum in [None, Some(28), Some(32)] {
        let send = Spec { crypt_offset: Some(32), ..spec(256) };
        // Without a maximum a receiver in tunnel mode expects the other format as well.
        let mut ends = ends(Mode::Tunnel, V4, false, &send, &Spec { crypt_offset: maximum, ..spec(256) });
        let sealed = ends.seal(&inner).unwrap();
        let mut damaged = sealed.clone();
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(ends.open(&damaged), Err(DropReason::BadIcv));
        assert_eq!(ends.tops(), [Some(0)]);
        if maximum == Some(32) {
            assert_eq!(ends.open(&sealed), Ok(inner.clone()));
        } else {
            assert_eq!(ends.open(&sealed), Err(DropReason::CryptOffset));
            assert_eq!(ends.open(&sealed), Err(DropReason::Replay), "a replay is not held against the peer again");
        }
    }
}

#[test]
fn a_crypt_offset_beyond_the_packet_never_reaches_the_engine() {
    let mut ends = tunnel(&Spec { crypt_offset: Some(252), ..spec(256) });
    let inner = hex(INNER_A);
    let words = |ends: &mut Loop, words: u8| {
        let packet = forge(ends, &inner, |packet, at| {
            packet[at + 8..][..4].copy_from_slice(&CryptOffset::new(7, words).unwrap().emit());
        });
        ends.open(&packet)
    };
    // Payload info, 34 bytes, 2 of padding: 10 words.
    assert_eq!(words(&mut ends, 11), Err(DropReason::CryptOffset));
    assert_eq!(ends.tops(), [Some(0)]);
    assert_eq!(words(&mut ends, 10), Err(DropReason::BadIcv), "sealed for 8 words");
    assert_eq!(words(&mut ends, 8), Ok(inner.clone()));
}

#[test]
fn short_packets_leave_only_their_own_words_in_the_clear() {
    let mut ends = tunnel(&Spec { crypt_offset: Some(252), ..spec(256) });
    for payload in [0, 1, 2, 3, 223, 224, 225, 300] {
        let inner = ipv4_udp([10, 0, 0, 1], [10, 0, 0, 2], payload);
        let sealed = ends.seal(&inner).unwrap();
        let option = wire::eesp::Options::parse(&sealed[28..32]).unwrap().crypt_offset.unwrap();
        assert_eq!(option.crypt_bytes(), (inner.len() & !3).min(252));
        assert_eq!(ends.open(&sealed), Ok(inner));
    }
}

#[test]
fn a_receiver_with_an_announced_maximum_takes_both_formats() {
    let receive = Spec { crypt_offset: Some(32), ..spec(256) };
    for send in [None, Some(0), Some(4), Some(32)] {
        let send = Spec { crypt_offset: send, ..spec(256) };
        let mut ends = ends(Mode::Tunnel, V4, false, &send, &receive);
        for inner in [ipv4_udp([10, 0, 0, 1], [10, 0, 0, 2], 7), ipv6_udp([1; 16], [2; 16], 9)] {
            let sealed = ends.seal(&inner).unwrap();
            assert_eq!(ends.open(&sealed), Ok(inner));
        }
    }
}

#[test]
fn sessions_have_to_exist() {
    let root = [7; 48];
    let send = Spec { sub_sas: Some((SubSaKdf::HkdfSha384, 4)), key: &root, ..spec(256) };
    let receive = Spec { sub_sas: Some((SubSaKdf::HkdfSha384, 3)), key: &root, ..spec(256) };
    let mut ends = ends(Mode::Tunnel, V4, false, &send, &receive);
    for lane in 0..4 {
        let sealed = ends.seal_on(lane, &hex(INNER_A)).unwrap();
        assert_eq!(sealed[22..24], [0, lane as u8]);
        let expected = if lane < 3 { Ok(hex(INNER_A)) } else { Err(DropReason::NoSubSa) };
        assert_eq!(ends.open(&sealed), expected);
    }
    let mut single = tunnel(&Spec { session: 9, ..spec(256) });
    let sealed = single.seal(&hex(INNER_A)).unwrap();
    assert_eq!(sealed[22..24], [0, 9]);
    let mut other = sealed.clone();
    other[23] = 0;
    assert_eq!(single.open(&other), Err(DropReason::NoSubSa));
    assert_eq!(single.open(&sealed), Ok(hex(INNER_A)));
}

#[test]
fn windows_of_sub_sas_appear_with_the_first_good_packet() {
    let root = [7; 64];
    let spec =
        Spec { sub_sas: Some((SubSaKdf::HkdfSha512, 3)), key: &root, session: 1, first_seq: &[1, 1, 40], ..spec(256) };
    let receive = Spec { first_seq: &[39], ..spec };
    let mut ends = ends(Mode::Tunnel, V4, false, &spec, &receive);
    assert_eq!(ends.tops(), [Some(39), None, None]);
    let mut damaged = ends.seal_on(0, &hex(INNER_A)).unwrap();
    assert_eq!(damaged[23], 1, "lane 0 is Sub SA 1");
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(ends.open(&damaged), Err(DropReason::BadIcv));
    assert_eq!(ends.tops(), [Some(39), None, None]);
    let sealed = ends.seal_on(0, &hex(INNER_A)).unwrap();
    assert_eq!(ends.open(&sealed), Ok(hex(INNER_A)));
    assert_eq!(ends.tops(), [Some(39), Some(2), None]);
    let sealed = ends.seal_on(2, &hex(INNER_A)).unwrap();
    assert_eq!((sealed[23], ends.open(&sealed)), (0, Ok(hex(INNER_A))));
    assert_eq!(ends.tops(), [Some(40), Some(2), None]);
}

#[test]
fn many_sub_sas_derive_keys_when_packets_come() {
    let root = [7; 32];
    let sub_sas = Some((SubSaKdf::HkdfSha256, 65536));
    let spec = Spec { sub_sas, key: &root, session: 65535, ..spec(256) };
    let mut ends = tunnel(&spec);
    assert_eq!((ends.out.lanes.len(), ends.inn.lanes.len()), (MAX_READY_SUB_SAS, 65536));
    for lane in [0, 1, 255] {
        let sealed = ends.seal_on(lane, &hex(INNER_A)).unwrap();
        assert_eq!(sealed[22..24], (lane as u16).wrapping_sub(1).to_be_bytes());
        assert_eq!(ends.open(&sealed), Ok(hex(INNER_A)));
        assert_eq!(ends.open(&sealed), Err(DropReason::Replay));
    }
    assert_eq!(ends.derived.len(), 3);
}

#[test]
fn replays_are_refused_at_every_edge_of_the_window() {
    let mut ends = tunnel(&spec(256));
    let inner = hex(INNER_A);
    let mut at = |seq: u64| {
        let sealed = ends.seal_as(0, SeqNo(seq), &inner).unwrap();
        ends.open(&sealed).map(|_| ())
    };
    assert_eq!(at(0), Err(DropReason::ZeroSeq));
    assert_eq!(at(100), Ok(()));
    assert_eq!(at(100), Err(DropReason::Replay));
    assert_eq!(at(37), Ok(()), "window bottom");
    assert_eq!(at(36), Err(DropReason::TooOld));
    assert_eq!(at(u64::MAX - 1), Ok(()));
    assert_eq!(at(101), Err(DropReason::TooOld));
}

#[test]
fn replays_are_found_before_any_cryptography() {
    let mut ends = tunnel(&spec(256));
    let mut sealed = ends.seal(&hex(INNER_A)).unwrap();
    assert_eq!(ends.open(&sealed), Ok(hex(INNER_A)));
    *sealed.last_mut().unwrap() ^= 1;
    assert_eq!(ends.open(&sealed), Err(DropReason::Replay));
}

#[test]
fn authentic_nonsense_inside_is_dropped() {
    let inner = hex(INNER_A);
    let optimized = |change: fn(&mut [u8])| {
        let mut ends = tunnel(&spec(256));
        let packet = forge(&mut ends, &inner, |packet, at| change(&mut packet[at + 24..]));
        ends.open(&packet)
    };
    assert_eq!(optimized(|_| ()), Ok(inner.clone()));
    assert_eq!(optimized(|p| p[0] = 0x55), Err(DropReason::BadInner), "version 5");
    assert_eq!(optimized(|p| p[0] = 0), Err(DropReason::BadInner), "full format where none is announced");
    assert_eq!(optimized(|p| p[0] = 0x44), Err(DropReason::BadInner), "header below 20 bytes");
    assert_eq!(optimized(|p| p[0] = 0x65), Err(DropReason::BadInner), "IPv6 below 40 bytes");
    assert_eq!(optimized(|p| p[3] = 37), Err(DropReason::BadInner), "longer than the plaintext");
    assert_eq!(optimized(|p| p[3] = 19), Err(DropReason::BadInner), "shorter than its header");

    let full = |change: fn(&mut [u8])| {
        let mut ends = tunnel(&Spec { crypt_offset: Some(0), ..spec(256) });
        let packet = forge(&mut ends, &inner, |packet, at| change(&mut packet[at + 28..]));
        ends.open(&packet)
    };
    assert_eq!(full(|_| ()), Ok(inner.clone()));
    assert_eq!(full(|p| p[0] = 1), Err(DropReason::BadInner), "reserved");
    assert_eq!(full(|p| p[1] = 1), Err(DropReason::BadInner), "reserved");
    assert_eq!(full(|p| p[2] = 6), Err(DropReason::BadInner), "TCP in a tunnel");
    assert_eq!(full(|p| p[2] = 41), Err(DropReason::BadInner), "the other version");
    assert_eq!(full(|p| p[2] = 59), Err(DropReason::Dummy));
    assert_eq!(full(|p| p[2] = 144), Err(DropReason::BadInner), "IP-TFS");
    assert_eq!(full(|p| p[3] = 36), Err(DropReason::BadInner), "nothing but padding");
    assert_eq!(full(|p| p[3] = 37), Err(DropReason::BadInner), "more padding than payload");
    assert_eq!(full(|p| p[0] = 0x50), Err(DropReason::BadInner), "neither format");
}

#[test]
fn fragments_and_the_wrong_encapsulation_are_refused() {
    let mut ends = tunnel(&spec(256));
    let sealed = ends.seal(&hex(INNER_A)).unwrap();
    let mut fragment = sealed.clone();
    fragment[6] = 0x20;
    assert_eq!(ends.open(&fragment), Err(DropReason::Fragment));
    let mut udp = self::ends(Mode::Tunnel, V4, true, &spec(256), &spec(256));
    assert_eq!(udp.open(&sealed), Err(DropReason::NoSa));
    let sealed = udp.seal(&hex(INNER_A)).unwrap();
    assert_eq!((sealed[9], sealed[28]), (17, 0x80), "no marker after the UDP header");
    assert_eq!(ends.open(&sealed), Err(DropReason::NoSa));
    assert_eq!(udp.open(&sealed), Ok(hex(INNER_A)));
}

#[test]
fn every_flipped_bit_is_refused() {
    let inner = ipv4_udp([192, 0, 2, 1], [198, 51, 100, 2], 13);
    for (mode, spec) in [
        (Mode::Tunnel, spec(0x1122_3344)),
        (Mode::Transport, Spec { extra_options: &[0x99, 0], ..spec(0x1122_3344) }),
        (Mode::Tunnel, Spec { crypt_offset: Some(24), ..spec(0x1122_3344) }),
    ] {
        // The receiver finds its SA by the SPI; here a changed one shows in the ICV.
        ends(mode, V4, false, &spec, &spec).assert_flipped_bits_are_refused(&inner, |byte| byte >= 20);
    }
}

fn modes() -> impl Strategy<Value = (Mode, [&'static str; 2], bool)> {
    prop_oneof![
        (prop_oneof![Just(V4), Just(V6)], any::<bool>()).prop_map(|(outer, v6)| (Mode::Tunnel, outer, v6)),
        Just((Mode::Transport, V4, false)),
        Just((Mode::Transport, V6, true)),
        prop_oneof![Just(V4), Just(V6)].prop_map(|outer| (beet(V4[0], V4[1]), outer, false)),
        prop_oneof![Just(V4), Just(V6)].prop_map(|outer| (beet(V6[0], V6[1]), outer, true)),
    ]
}

fn udp_packet(v6: bool, payload: usize) -> Vec<u8> {
    let octets = |text: &str| text.parse().unwrap();
    match (v6, octets(V4[0]), octets(V4[1]), octets(V6[0]), octets(V6[1])) {
        (false, IpAddr::V4(a), IpAddr::V4(b), ..) => ipv4_udp(a.octets(), b.octets(), payload),
        (_, _, _, IpAddr::V6(a), IpAddr::V6(b)) => ipv6_udp(a.octets(), b.octets(), payload),
        _ => unreachable!(),
    }
}

const SUITES: [&str; 8] = [
    "aes128gcm16",
    "aes256gcm16iiv",
    "chacha20poly1305",
    "chacha20poly1305iiv",
    "aes128gmac",
    "aes128gcm8",
    "aes256ccm12",
    "aes128gcm16iiv",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_was_sealed_opens_in_every_mode(
        (mode, outer, v6) in modes(),
        (udp, seq) in any::<(bool, bool)>(),
        name in prop::sample::select(&SUITES[..]),
        crypt_words in prop::option::of(0u8..=63),
        options in prop::sample::select(vec![&[][..], &[0x99, 0], &[0], &[0xe0, 5, 1, 2, 3, 4, 5]]),
        payload in prop_oneof![0usize..70, 1000usize..1040],
    ) {
        let suite = suite(name);
        let key = vec![0x42; suite.enc_material_len()];
        let spec = Spec {
            suite,
            key: &key,
            seq: seq || suite.enc.unwrap().implicit_iv,
            crypt_offset: crypt_words.filter(|_| suite.is_confidential()).map(|words| words * 4),
            extra_options: options,
            ..spec(0x8000_0001)
        };
        let mut ends = ends(mode, outer, udp, &spec, &spec);
        let inner = udp_packet(v6, payload);
        for _ in 0..2 {
            let sealed = ends.seal(&inner).unwrap();
            assert_ipv4_checksum(&sealed);
            let at = if outer == V4 { 20 } else { 40 } + usize::from(udp) * 8;
            prop_assert_eq!(sealed[at], 0x80);
            prop_assert_eq!(sealed[at + 1] % 4, 0);
            prop_assert_eq!((sealed.len() - at) % 4, suite.icv_len() % 4);
            let behind = EespHeader::LEN + usize::from(sealed[at + 1]) + spec.peer_header_len();
            let info = usize::from(mode != Mode::Tunnel || spec.crypt_offset.is_some()) * 4;
            prop_assert_eq!((behind + info) % if v6 { 8 } else { 4 }, 0, "the next header is aligned");
            let opened = ends.open(&sealed).unwrap();
            assert_ipv4_checksum(&opened);
            // BEET rebuilds the inner header: only the addresses remain.
            let same_from = match mode {
                Mode::Beet(_) if v6 => 8,
                Mode::Beet(_) => 12,
                _ => 0,
            };
            prop_assert_eq!((opened.len(), &opened[same_from..]), (inner.len(), &inner[same_from..]));
        }
    }

    #[test]
    fn inner_mtu_is_the_largest_that_fits(
        (mode, outer, v6) in modes(),
        udp in any::<bool>(),
        name in prop::sample::select(&SUITES[..]),
        crypt_words in prop::option::of(0u8..=63),
        mtu in 300usize..1600,
    ) {
        let suite = suite(name);
        let key = vec![0x42; suite.enc_material_len()];
        let crypt_offset = crypt_words.filter(|_| suite.is_confidential()).map(|words| words * 4);
        let spec = Spec { suite, key: &key, crypt_offset, ..spec(0x8000_0001) };
        let mut ends = ends(mode, outer, udp, &spec, &spec);
        ends.out.set_path_mtu(mtu);
        let inner = ends.out.inner_mtu.load(Ordering::Relaxed) as usize;
        let header = if v6 { 48 } else { 28 };
        let sealed = ends.seal(&udp_packet(v6, inner - header)).unwrap();
        prop_assert!(sealed.len() <= mtu, "{} > {mtu}", sealed.len());
        let sealed = ends.seal(&udp_packet(v6, inner + 1 - header)).unwrap();
        prop_assert!(sealed.len() > mtu, "{} fits {mtu} as well", sealed.len());
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..120), offset in prop::option::of(0u8..=63)) {
        let mut ends = tunnel(&Spec { crypt_offset: offset.map(|words| words * 4), ..spec(256) });
        let mut eesp = bytes;
        if let Some(first) = eesp.first_mut() {
            *first = 0x80;
        }
        prop_assert!(ends.open(&outside(&eesp)).is_err());
        prop_assert_eq!(ends.tops(), [Some(0)]);
    }
}

#[allow(dead_code)]
fn both_ends_can_be_shared_between_cores(out: OutboundSa, inn: InboundSa) {
    fn shared<T: Send + Sync>(_: T) {}
    shared(out);
    shared(inn);
}

/// Two hosts, as many cores as they have, and any SPIs: a core sends with the Session ID that it
/// receives with, so what it sends is answered to it, at the latest once the flow has gone where
/// the first answer came to.
#[test]
fn with_sub_sas_an_answer_comes_to_the_core_that_sent() {
    let sends = |answers: u32, cores: usize| {
        let spec = Spec { sub_sas: Some((SubSaKdf::HkdfSha256, cores as u32)), key: &[7; 32], ..spec(0x1122_3344) };
        let mut sa =
            outbound(common(Mode::Tunnel, V4, false), &spec, Engine::best(), &mut KeyTable::default()).unwrap();
        let sessions =
            |sa: &OutboundSa| (0..cores).map(|core| sa.lanes[sa.lane_of(core)].session.0).collect::<Vec<_>>();
        assert!(sessions(&sa).into_iter().eq(0..cores as u16));
        sa.set_reply_spi(answers, cores);
        sessions(&sa).into_iter().map(SessionId).collect::<Vec<_>>()
    };
    for (spis, cores) in [(0x1000, 0x2001), (0x1001, 0x2003), (0x1002, 0xfffe_1235)]
        .into_iter()
        .flat_map(|spis| [(2, 2), (2, 4), (3, 2), (4, 4), (6, 8)].map(|cores| (spis, cores)))
    {
        let (here, there) = (sends(spis.0, cores.0), sends(spis.1, cores.1));
        let answered_at = |core: usize| {
            let at = crate::owner_core(spis.1, here[core]) as usize % cores.1;
            crate::owner_core(spis.0, there[at]) as usize % cores.0
        };
        for core in 0..cores.0 {
            let moved = answered_at(core);
            assert_eq!(answered_at(moved), moved, "{spis:x?}, {cores:?} cores, from core {core}");
            assert!(
                cores.0 > cores.1 || moved == core,
                "{spis:x?}, {cores:?} cores: core {core} is answered at {moved}"
            );
        }
    }
}
