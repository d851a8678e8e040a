//! ESP as a whole: vectors, round trips, and what is refused.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use crypto::{DerivedKeys, Job, Keys};
use proptest::prelude::*;
use wire::{IpPacket, IpProto};

use super::*;
use crate::testkit::{Loop, assert_ipv4_checksum, hex, ipv4_udp, ipv6_udp, ones_complement_sum};
use crate::{Beet, DfPolicy, DropReason, DscpPolicy, Frame, Lifetime, Outer, Peer, UdpPorts, prepare_in, prepare_out};

const SPI: u32 = 0x1122_3344;
const SUN4: [u8; 4] = [192, 0, 2, 1];
const MOON4: [u8; 4] = [198, 51, 100, 9];
const SUN6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const MOON6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];

fn addresses(v6: bool) -> (IpAddr, IpAddr) {
    if v6 { (SUN6.into(), MOON6.into()) } else { (SUN4.into(), MOON4.into()) }
}

/// Packets from sun to moon: outer headers of one family, inner addresses of another for BEET.
#[derive(Clone, Copy, Debug)]
struct Setup {
    mode: char,
    outer_v6: bool,
    inner_v6: bool,
    udp: bool,
    checksum: bool,
    esn: bool,
    tfc: bool,
}

const TUNNEL: Setup =
    Setup { mode: 't', outer_v6: false, inner_v6: false, udp: false, checksum: false, esn: false, tfc: false };

impl Setup {
    fn common(&self, from_sun: bool) -> SaCommon {
        let (sun, moon) = addresses(self.outer_v6);
        let (local, remote) = if from_sun { (sun, moon) } else { (moon, sun) };
        let (inner_sun, inner_moon) = inner_addresses(self.inner_v6);
        let beet = if from_sun {
            Beet { local: inner_sun, remote: inner_moon }
        } else {
            Beet { local: inner_moon, remote: inner_sun }
        };
        let mode = match self.mode {
            't' => Mode::Tunnel,
            'x' => Mode::Transport,
            _ => Mode::Beet(beet),
        };
        let outer = Outer {
            peer: Peer { local, remote },
            hop_limit: 64,
            dscp: DscpPolicy::Copy,
            ecn: true,
            df: DfPolicy::Copy,
            udp: self.udp.then_some(UdpPorts { src: 4500, dst: 4500 }),
            udp_checksum: self.checksum,
        };
        SaCommon::new("test", mode, outer, Lifetime::NONE)
    }

    /// A packet that this SA may carry.
    fn packet(&self, payload_len: usize) -> Vec<u8> {
        let v6 = if self.mode == 'x' { self.outer_v6 } else { self.inner_v6 };
        match (self.mode, v6) {
            ('x', false) => ipv4_udp(SUN4, MOON4, payload_len),
            ('x', true) => ipv6_udp(SUN6, MOON6, payload_len),
            (_, false) => ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], payload_len),
            (_, true) => ipv6_udp(inner6(1), inner6(2), payload_len),
        }
    }
}

fn inner6(host: u8) -> [u8; 16] {
    let mut address = [0; 16];
    (address[0], address[15]) = (0xfd, host);
    address
}

fn inner_addresses(v6: bool) -> (IpAddr, IpAddr) {
    if v6 { (inner6(1).into(), inner6(2).into()) } else { ([10, 1, 0, 1].into(), [10, 2, 0, 1].into()) }
}

fn key(len: usize) -> Vec<u8> {
    // Three different eighths, as 3DES requires.
    (0..len).map(|i| (i * 29 + 17) as u8).collect()
}

fn sa_loop(suite: Suite, setup: Setup, adapt: impl Fn(&mut Spec<'_>)) -> Loop {
    let (enc_key, integ_key) = (key(suite.enc_material_len()), key(suite.integ_material_len()));
    let spec = |window| {
        let mut spec = Spec {
            spi: SPI.try_into().unwrap(),
            suite,
            enc_key: &enc_key,
            integ_key: &integ_key,
            esn: setup.esn,
            window,
            first_seq: 0,
            persistent: false,
            tfc_padding: setup.tfc,
            iv: CbcIv::Encrypted,
        };
        adapt(&mut spec);
        spec
    };
    Loop::new(|engine, keys| {
        let out = outbound(setup.common(true), &spec(0), engine, keys)?;
        let inn = inbound(setup.common(false), &spec(64), engine, keys)?;
        Ok::<_, SaError>((out, inn))
    })
}

fn suite(proposal: &str) -> Suite {
    Suite::parse_esp(proposal).unwrap()
}

fn suites() -> Vec<Suite> {
    Suite::all_esp().collect()
}

fn assert_round_trip(esp: &mut Loop, packet: &[u8]) {
    let sealed = esp.seal(packet).unwrap();
    assert_ipv4_checksum(&sealed);
    let mut opened = esp.open(&sealed).unwrap();
    assert_ipv4_checksum(&opened);
    if matches!(esp.out.common.mode, Mode::Beet(_)) && packet[0] >> 4 == 4 {
        // The receiver rebuilds this header: identification and with it the checksum are its own.
        opened[4..6].copy_from_slice(&packet[4..6]);
        opened[10..12].copy_from_slice(&packet[10..12]);
    }
    assert_eq!(opened, packet);
    assert_eq!(esp.open(&sealed), Err(DropReason::Replay));
}

#[test]
fn every_suite_opens_what_it_seals_with_and_without_extended_numbers() {
    for suite in suites() {
        for setup in [TUNNEL, Setup { mode: 'x', outer_v6: true, esn: true, ..TUNNEL }] {
            let mut esp = sa_loop(suite, setup, |_| ());
            for len in [0, 1, 13, 14, 15, 16, 100] {
                assert_round_trip(&mut esp, &setup.packet(len));
            }
        }
    }
}

fn setups() -> impl Strategy<Value = Setup> {
    let flags = prop::array::uniform6(any::<bool>());
    (prop_oneof![Just('t'), Just('x'), Just('b')], flags).prop_map(|(mode, f)| Setup {
        mode,
        outer_v6: f[0],
        inner_v6: f[1],
        udp: f[2],
        checksum: f[3],
        esn: f[4],
        tfc: f[5] && mode == 't',
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn open_undoes_seal(
        suite in prop::sample::select(suites()),
        setup in setups(),
        lens in prop::collection::vec(0usize..=1500, 1..4),
        first in prop_oneof![Just(0u64), Just((1 << 32) - 3), Just((9 << 32) - 2)],
    ) {
        let first = if setup.esn { first } else { first % (1 << 31) };
        let mut esp = sa_loop(suite, setup, |spec| spec.first_seq = first);
        for len in lens {
            let packet = setup.packet(len);
            let number = esp.out.lanes[0].seq.next();
            // The receiver has already seen the number that the sender starts from.
            if number == first {
                esp.seal(&packet).unwrap();
            }
            assert_round_trip(&mut esp, &packet);
        }
    }

    #[test]
    fn the_inner_mtu_is_the_largest_packet_that_fits(
        suite in prop::sample::select(suites()),
        setup in setups(),
        path_mtu in 576usize..2000,
    ) {
        let setup = Setup { tfc: false, ..setup };
        let mut esp = sa_loop(suite, setup, |_| ());
        esp.out.set_path_mtu(path_mtu);
        let inner_mtu = esp.out.inner_mtu.load(Ordering::Relaxed) as usize;
        let headers = setup.packet(0).len();
        prop_assert!(esp.seal(&setup.packet(inner_mtu - headers)).unwrap().len() <= path_mtu);
        prop_assert!(esp.seal(&setup.packet(inner_mtu + 1 - headers)).unwrap().len() > path_mtu);
    }

    #[test]
    fn no_input_makes_open_panic(
        suite in prop::sample::select(suites()),
        setup in setups(),
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        cut in 0usize..200,
    ) {
        let mut esp = sa_loop(suite, setup, |_| ());
        let sealed = esp.seal(&setup.packet(40)).unwrap();
        let _ = esp.open(&sealed[..cut.min(sealed.len() - 1)]);
        // A right outer header and SPI, then anything.
        let header = IpPacket::parse(&sealed).unwrap().upper_at;
        bytes.splice(0..0, sealed[..header].iter().copied());
        let len = bytes.len() as u16;
        if setup.outer_v6 {
            bytes[4..6].copy_from_slice(&(len - 40).to_be_bytes());
        } else {
            bytes[2..4].copy_from_slice(&len.to_be_bytes());
        }
        prop_assert!(esp.open(&bytes).is_err());
        prop_assert_eq!(esp.tops(), [Some(0)]);
    }
}

#[test]
fn any_flipped_bit_is_refused_and_moves_no_window() {
    for proposal in ["aes128gcm16", "aes128-sha256", "aes128gmac", "chacha20poly1305", "null-aesxcbc", "aes128gcm16iiv"]
    {
        for esn in [false, true] {
            let setup = Setup { esn, ..TUNNEL };
            sa_loop(suite(proposal), setup, |_| ()).assert_flipped_bits_are_refused(&setup.packet(50), |at| at >= 20);
        }
    }
}

#[test]
fn extended_numbers_cross_2_pow_32_in_any_order() {
    for proposal in ["aes256gcm16", "aes192-sha384", "aes256gmac", "aes128ctr-sha1"] {
        let setup = Setup { esn: true, ..TUNNEL };
        let mut esp = sa_loop(suite(proposal), setup, |spec| spec.first_seq = (7 << 32) - 5);
        let packet = setup.packet(64);
        let mut sealed: Vec<_> = (0..10).map(|_| esp.seal(&packet).unwrap()).collect();
        let old = sealed.remove(0);
        sealed.swap(0, 7);
        sealed.swap(2, 5);
        for packet_on_wire in &sealed {
            assert_eq!(esp.open(packet_on_wire).as_deref(), Ok(&packet[..]), "{proposal}");
        }
        assert_eq!(esp.tops(), [Some((7 << 32) + 4)]);
        assert_eq!(esp.open(&old), Err(DropReason::Replay), "seen before the restart");
    }
}

#[test]
fn without_extended_numbers_the_last_packet_is_2_pow_32_minus_1() {
    let mut esp = sa_loop(suite("aes128gcm16"), TUNNEL, |spec| spec.first_seq = u64::from(u32::MAX) - 1);
    esp.seal(&TUNNEL.packet(1)).unwrap();
    assert_round_trip(&mut esp, &TUNNEL.packet(1));
    assert_eq!(esp.seal(&TUNNEL.packet(1)), Err(DropReason::SeqExhausted));
}

/// Seals the packet as ESP would, but with a plaintext of the test's choice.
fn seal_plain(esp: &mut Loop, plain: &[u8]) -> Vec<u8> {
    // NULL + HMAC: what is in the packet is the plaintext, only the ICV must be recomputed.
    let OutProto::Esp(proto) = &esp.out.proto else { panic!("an ESP SA") };
    let (layout, key) = (proto.layout, esp.out.lanes[0].key);
    let mut packet = ipv4_udp(SUN4, MOON4, 0);
    packet.truncate(20);
    packet[9] = 50;
    packet.extend(SPI.to_be_bytes());
    packet.extend(1u32.to_be_bytes());
    packet.extend(plain);
    let icv_at = packet.len();
    packet.resize(icv_at + layout.icv_len, 0);
    let total = packet.len() as u16;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    let op = layout.op(key, Numbers { spi: SPI, seq: SeqNo(1), iv: [0; MAX_IV] }, 20..icv_at);
    let mut jobs = [Job::new(op, &mut packet[..])];
    esp.engine.seal(Keys { table: &esp.keys, derived: &esp.derived }, &mut jobs);
    assert!(jobs[0].sealed());
    packet
}

#[test]
fn bad_trailers_are_refused_after_the_window_moved() {
    let inner = TUNNEL.packet(2);
    assert_eq!(inner.len() % 4, 2);
    let with = |tail: &[u8]| [&inner[..], tail].concat();
    let cases = [
        (with(&[0, 4]), Ok(inner.clone())),
        (with(&[1, 1, 4]), Ok(inner.clone())),
        (with(&[1, 2, 3, 4, 4, 4]), Ok(inner.clone())),
        // Padding of other bytes than 1, 2, 3, ….
        (with(&[1, 2, 2, 3, 4, 4]), Ok(inner.clone())),
        (with(&[0, 0, 0, 0, 4, 4]), Ok(inner.clone())),
        (vec![255, 4], Err(DropReason::BadPadding)),
        (vec![1, 2, 3, 3, 4], Err(DropReason::BadInner)),
        (with(&[0, 59]), Err(DropReason::Dummy)),
        (vec![0, 59], Err(DropReason::Dummy)),
        (with(&[0, 41]), Err(DropReason::BadInner)),
        (with(&[0, 17]), Err(DropReason::BadInner)),
        // Traffic flow confidentiality: anything between payload and padding.
        (with(&[9, 9, 9, 9, 9, 9, 9, 1, 1, 4]), Ok(inner.clone())),
    ];
    for (plain, expected) in cases {
        let mut esp = sa_loop(suite("null-sha256"), TUNNEL, |_| ());
        let sealed = seal_plain(&mut esp, &plain);
        assert_eq!(esp.open(&sealed), expected, "{plain:?}");
        assert_eq!(esp.tops(), [Some(1)]);
        assert_eq!(esp.open(&sealed), Err(DropReason::Replay));
    }
}

#[test]
fn short_packets_are_refused_before_the_engine() {
    let mut esp = sa_loop(suite("aes128-sha256"), TUNNEL, |_| ());
    let sealed = esp.seal(&TUNNEL.packet(40)).unwrap();
    for len in 20..sealed.len() {
        let mut short = sealed[..len].to_vec();
        short[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        let expected = match len - 20 {
            ..42 => DropReason::Truncated,
            body if !(body - 40).is_multiple_of(16) => DropReason::Malformed,
            _ => DropReason::BadIcv,
        };
        assert_eq!(esp.open(&short), Err(expected), "{len}");
    }
}

#[test]
fn link_padding_and_bytes_after_the_datagram_do_not_matter() {
    for udp in [false, true] {
        let setup = Setup { udp, ..TUNNEL };
        let mut esp = sa_loop(suite("aes128gcm16"), setup, |_| ());
        let mut sealed = esp.seal(&setup.packet(9)).unwrap();
        sealed.extend([0xaa; 7]);
        assert_eq!(esp.open(&sealed), Ok(setup.packet(9)));
    }
    let setup = Setup { udp: true, ..TUNNEL };
    let mut esp = sa_loop(suite("aes128gcm16"), setup, |_| ());
    let mut sealed = esp.seal(&setup.packet(9)).unwrap();
    let total = sealed.len() as u16;
    sealed[24..26].copy_from_slice(&(total - 19).to_be_bytes());
    assert_eq!(esp.open(&sealed), Err(DropReason::Truncated), "datagram longer than its packet");
}

#[test]
fn tfc_padding_makes_all_packets_as_long_as_the_path_allows() {
    let setup = Setup { tfc: true, ..TUNNEL };
    for proposal in ["aes128gcm16", "aes256-sha512", "3des-sha1"] {
        let mut esp = sa_loop(suite(proposal), setup, |_| ());
        esp.out.set_path_mtu(1000);
        let longest = esp.out.inner_mtu.load(Ordering::Relaxed) as usize;
        let lens: Vec<_> =
            [0, 1, 500, longest - 28].iter().map(|&n| esp.seal(&setup.packet(n)).unwrap().len()).collect();
        assert!(lens.iter().all(|&len| len == lens[0] && len > 1000 - 16 && len <= 1000), "{lens:?}");
        assert_round_trip(&mut esp, &setup.packet(3));
        assert_round_trip(&mut esp, &setup.packet(1200));
    }
}

#[test]
fn tfc_padding_is_zero_and_not_what_the_buffer_held() {
    let setup = Setup { tfc: true, ..TUNNEL };
    let mut esp = sa_loop(suite("null-sha256"), setup, |_| ());
    let sealed = esp.seal(&setup.packet(2)).unwrap();
    assert!(sealed[28 + 30..sealed.len() - 16 - TRAILER_LEN].iter().all(|&byte| byte == 0));
}

#[test]
fn a_replay_is_refused_before_the_engine() {
    let mut esp = sa_loop(suite("aes128gcm16"), TUNNEL, |_| ());
    let mut sealed = esp.seal(&TUNNEL.packet(20)).unwrap();
    assert!(esp.open(&sealed).is_ok());
    *sealed.last_mut().unwrap() ^= 1;
    assert_eq!(esp.open(&sealed), Err(DropReason::Replay), "its ICV is not looked at");
}

#[test]
fn a_udp_checksum_is_right_or_absent() {
    for outer_v6 in [false, true] {
        for checksum in [false, true] {
            let setup = Setup { udp: true, outer_v6, checksum, ..TUNNEL };
            let mut esp = sa_loop(suite("aes128-sha256"), setup, |_| ());
            let sealed = esp.seal(&setup.packet(21)).unwrap();
            let ip = IpPacket::parse(&sealed).unwrap();
            let datagram = &sealed[ip.upper_at..];
            if checksum {
                let addresses = if outer_v6 { &sealed[8..40] } else { &sealed[12..20] };
                let pseudo = ones_complement_sum(addresses, datagram.len() as u16 + 17);
                assert_eq!(ones_complement_sum(datagram, pseudo), 0xffff);
            } else {
                assert_eq!(datagram[6..8], [0, 0]);
            }
        }
    }
}

#[test]
fn an_encrypted_iv_differs_from_packet_to_packet_and_repeats_for_the_same_number() {
    let mut esp = sa_loop(suite("aes128-sha256"), TUNNEL, |_| ());
    let packet = TUNNEL.packet(30);
    let sealed: Vec<_> = [1, 2, 1].iter().map(|&n| esp.seal_as(0, SeqNo(n), &packet).unwrap()).collect();
    let iv = |packet: &[u8]| packet[28..44].to_vec();
    assert_ne!(iv(&sealed[0]), iv(&sealed[1]));
    assert_ne!(iv(&sealed[0])[8..], 1u64.to_be_bytes());
    assert_eq!(sealed[0], sealed[2]);
}

#[test]
fn explicit_ivs_of_counter_ciphers_are_the_sequence_number() {
    for proposal in ["aes128gcm16", "aes128ctr-sha1", "aes256ccm12", "aes128gmac", "chacha20poly1305"] {
        let mut esp = sa_loop(suite(proposal), Setup { esn: true, ..TUNNEL }, |_| ());
        let seq = 0x0000_0005_0000_0009;
        let sealed = esp.seal_as(0, SeqNo(seq), &TUNNEL.packet(30)).unwrap();
        assert_eq!(sealed[24..28], 9u32.to_be_bytes());
        assert_eq!(sealed[28..36], seq.to_be_bytes(), "{proposal}");
    }
}

#[test]
fn specifications_that_cannot_work_are_refused() {
    let refuse = |proposal: &str, setup: Setup, adapt: &dyn Fn(&mut Spec<'_>)| {
        let suite = suite(proposal);
        let (enc_key, integ_key) = (key(suite.enc_material_len()), key(suite.integ_material_len()));
        let mut spec = Spec {
            spi: SPI.try_into().unwrap(),
            suite,
            enc_key: &enc_key,
            integ_key: &integ_key,
            esn: false,
            window: 64,
            first_seq: 0,
            persistent: false,
            tfc_padding: false,
            iv: CbcIv::Encrypted,
        };
        adapt(&mut spec);
        let mut keys = KeyTable::default();
        (
            outbound(setup.common(true), &spec, Engine::best(), &mut keys).err(),
            inbound(setup.common(true), &spec, Engine::best(), &mut keys).err(),
        )
    };
    let gcm = "aes128gcm16";
    assert_eq!(refuse(gcm, TUNNEL, &|_| ()), (None, None));
    assert_eq!(refuse(gcm, TUNNEL, &|s| s.window = 31), (None, Some(SaError::Window(31))));
    assert_eq!(refuse(gcm, TUNNEL, &|s| s.window = 65537), (None, Some(SaError::Window(65537))));
    let both_conflict = |pair: (Option<SaError>, Option<SaError>)| {
        assert!(matches!(pair, (Some(SaError::Conflict(_)), Some(SaError::Conflict(_)))), "{pair:?}");
    };
    both_conflict(refuse(gcm, TUNNEL, &|s| s.suite.enc = None));
    both_conflict(refuse(gcm, TUNNEL, &|s| s.suite.integ = suite("null-sha1").integ));
    both_conflict(refuse("null-sha1", TUNNEL, &|s| s.suite.integ = None));
    let (out, inn) = refuse(gcm, Setup { mode: 'x', ..TUNNEL }, &|s| s.tfc_padding = true);
    assert!(matches!(out, Some(SaError::Conflict(_))) && inn.is_none());
    let (_, inn) = refuse(gcm, TUNNEL, &|s| s.first_seq = 1 << 32);
    assert!(matches!(inn, Some(SaError::Conflict(_))));
    assert!(matches!(refuse(gcm, TUNNEL, &|s| s.enc_key = &[1; 16]), (Some(SaError::Key(_)), Some(SaError::Key(_)))));
}

/// An IPv4 packet around an ESP packet that a document gives.
fn wrap(esp: &[u8]) -> Vec<u8> {
    let mut packet = ipv4_udp(SUN4, MOON4, 0);
    packet.truncate(20);
    packet[9] = 50;
    packet.extend(esp);
    let total = packet.len() as u16;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet
}

#[test]
fn the_packet_of_rfc_7634_appendix_a() {
    let keys = hex("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3");
    let inner =
        hex("45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec100007362708090a0b0c0d0e0f1011121314
        15161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031323334353637");
    let sealed = wrap(&hex("01020304 00000005 1011121314151617
        24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c614ee8099d52844eb61aa95dfab4c02f7
        2aa71e7c4c4f64c9befe2facc638e8f3cbec163fac469b502773f6fb94e664da9165b82829f641e0
        76aaa8266b7fb0f7b11b369907e1ad43"));
    let mut esp = Loop::new(|engine, table| {
        let spec = Spec {
            spi: 0x0102_0304.try_into().unwrap(),
            suite: suite("chacha20poly1305"),
            enc_key: &keys,
            integ_key: &[],
            esn: false,
            window: 32,
            first_seq: 0,
            persistent: false,
            tfc_padding: false,
            iv: CbcIv::Encrypted,
        };
        let out = outbound(TUNNEL.common(true), &spec, engine, table)?;
        Ok::<_, SaError>((out, inbound(TUNNEL.common(false), &spec, engine, table)?))
    });
    assert_eq!(esp.open(&sealed), Ok(inner.clone()));

    // The document's IV is not its sequence number: put it into what would be sealed.
    let ip = IpPacket::parse(&inner).unwrap();
    let mut buffer = vec![0; 512];
    buffer[128..128 + inner.len()].copy_from_slice(&inner);
    let mut frame = Frame::new(&mut buffer, 128..128 + inner.len()).unwrap();
    let (mut op, _) = prepare_out(&esp.out, &esp.out.lanes[0], SeqNo(5), &ip, &mut frame).unwrap();
    let iv = hex("1011121314151617");
    frame.bytes_mut()[28..36].copy_from_slice(&iv);
    op.iv[..8].copy_from_slice(&iv);
    let mut jobs = [Job::new(op, frame.bytes_mut())];
    esp.engine.seal(Keys { table: &esp.keys, derived: &esp.derived }, &mut jobs);
    assert_eq!(frame.bytes()[20..], sealed[20..]);
}

/// The plaintext of a packet with a payload that no mode allows.
fn open_plain(proposal: &str, spi: u32, keys: &[u8], seen: u64, esn: bool, esp: &[u8]) -> Option<Vec<u8>> {
    let spec = Spec {
        spi: spi.try_into().unwrap(),
        suite: suite(proposal),
        enc_key: keys,
        integ_key: &[],
        esn,
        window: 32,
        first_seq: seen,
        persistent: false,
        tfc_padding: false,
        iv: CbcIv::Encrypted,
    };
    let (mut table, mut derived) = (KeyTable::default(), DerivedKeys::new(64));
    let sa = inbound(TUNNEL.common(false), &spec, Engine::best(), &mut table).unwrap();
    let packet = wrap(esp);
    let outer = IpPacket::parse(&packet).unwrap();
    let mut buffer = [vec![0; 64], packet].concat();
    let end = buffer.len();
    let mut frame = Frame::new(&mut buffer, 64..end).unwrap();
    let (op, pending) = prepare_in(&sa, &outer, 20, &mut frame, &mut derived).unwrap();
    let mut jobs = [Job::new(op, frame.bytes_mut())];
    Engine::best().open(Keys { table: &table, derived: &derived }, &mut jobs);
    jobs[0].take_ok()?;
    Some(frame.bytes()[pending.payload.range()].to_vec())
}

/// Made with Python's `hmac` and `cryptography` from the words of the RFCs.
#[test]
fn the_high_half_stands_where_the_rfcs_say() {
    let inner = hex("45280029beef40003d116aa80a0100010a0200019c40000900152552000102030405060708090a0b0c");
    let (spi_lo, plain) = (
        "11223344 00000105",
        "45280029beef40003d116aa80a0100010a0200019c40000900152552
        000102030405060708090a0b0c 010104",
    );
    let cases = [
        ("null-sha256", true, "", plain, "6aa40c2f58af10ff0ab6f42e0db5708e"),
        ("aes128gmac", true, "a1b2c3d400000105", plain, "c9ad005efc3c597f598e2e927dd1fe0e"),
        ("aes128gmac", false, "0000000000000105", plain, "beb51ebf8193da58fc087facaf028c19"),
        (
            "aes128gcm16iiv",
            true,
            "",
            "976f20dd5b1fd2ca4b7dc0167685514b6a644f8889feea5704606aceb084d7147b4046e46f043e36
            df213d63",
            "36f16d712400a519356af34397b09c24",
        ),
    ];
    for (proposal, esn, iv, body, icv) in cases {
        let expected = hex(&[spi_lo, iv, body, icv].concat());
        let seq = if esn { 0xa1b2_c3d4_0000_0105 } else { 0x105 };
        let setup = Setup { esn, ..TUNNEL };
        let mut esp = sa_loop(suite(proposal), setup, |spec| spec.first_seq = seq - 1);
        let sealed = esp.seal_as(0, SeqNo(seq), &inner).unwrap();
        assert_eq!(sealed[20..], expected, "{proposal}");
        assert_eq!(esp.open(&sealed).as_deref(), Ok(&inner[..]));
    }
}

#[test]
fn a_wrong_high_half_is_refused_by_every_suite() {
    for suite in suites() {
        let setup = Setup { esn: true, ..TUNNEL };
        let mut esp = sa_loop(suite, setup, |_| ());
        let sealed = esp.seal_as(0, SeqNo((1 << 32) + 5), &setup.packet(20)).unwrap();
        assert_eq!(esp.open(&sealed), Err(DropReason::BadIcv), "{suite}");
        assert_eq!(esp.tops(), [Some(0)]);
    }
}

#[test]
fn a_packet_of_another_sa_is_refused_even_if_it_gets_here() {
    let mut esp = sa_loop(suite("aes128gcm16"), TUNNEL, |_| ());
    let mut sealed = esp.seal(&TUNNEL.packet(20)).unwrap();
    sealed[23] ^= 1;
    assert_eq!(esp.open(&sealed), Err(DropReason::NoSa));
}

#[test]
fn the_gcm_packets_of_draft_mcgrew_gcm_test() {
    let plain = open_plain(
        "aes128gcm16",
        0x4321,
        &hex("4c80cdefbb5d10da906ac73c3613a634 2e443b68"),
        0x8765_4320_ffff_fff0,
        true,
        &hex("00004321 00000000 4956ed7e3b244cfe
            fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d
            15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732 459018148f6cbe722fd04796562dfdb4"),
    );
    let expected =
        hex("45000048699a000080114db7c0a80102c0a801010a9bf15638d301000001000000000000045f736970045f7564700373
        69700963796265726369747902646b000021000101020201");
    assert_eq!(plain, Some(expected));

    let plain = open_plain(
        "aes256gcm16",
        0x4a2c_bfe3,
        &hex("abbccddef00112233445566778899aababbccddef00112233445566778899aab 11223344"),
        0,
        false,
        &hex("4a2cbfe3 00000002 0102030405060708
            ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763748a637985771d347f0545659f14e99d
            ef842d8e b335f4eecfdbf831824b4c4915956c96"),
    );
    let expected = hex("4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee0000000007002400020bf0000020405b4
        0101040201020201");
    assert_eq!(plain, Some(expected));
}

#[test]
fn the_packet_of_rfc_3602_case_5() {
    let enc_key = hex("90d382b410eeba7ad938c46cec1a82bf");
    let iv = hex("e96e8c08ab465763fd098d45dd3ff893").try_into().unwrap();
    let setup = Setup { mode: 'x', ..TUNNEL };
    let mut esp = Loop::new(|engine, table| {
        let spec = Spec {
            spi: 0x4321.try_into().unwrap(),
            suite: suite("aes128-sha1"),
            enc_key: &enc_key,
            integ_key: &[7; 20],
            esn: false,
            window: 32,
            first_seq: 0,
            persistent: false,
            tfc_padding: false,
            iv: CbcIv::Fixed(iv),
        };
        let out = outbound(setup.common(true), &spec, engine, table)?;
        Ok::<_, SaError>((out, inbound(setup.common(false), &spec, engine, table)?))
    });
    // The document's ESP has no ICV; ours follows.
    let mut packet = wrap(&hex("08000ebda70a00008e9c083db95b070008090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
        202122232425262728292a2b2c2d2e2f3031323334353637"));
    packet[9] = IpProto::ICMP.0;
    let sealed = esp.seal(&packet).unwrap();
    let expected = hex("00004321 00000001 e96e8c08ab465763fd098d45dd3ff893
        f663c25d325c18c6a9453e194e120849a4870b66cc6b9965330013b4898dc856a4699e523a55db080b59ec3a8e4b7e52
        775b07d1db34ed9c538ab50c551b874aa269add047ad2d5913ac19b7cfbad4a6");
    assert_eq!(sealed[20..sealed.len() - 12], expected);
    let opened = esp.open(&sealed).unwrap();
    assert_eq!(opened[20..], packet[20..]);
}
