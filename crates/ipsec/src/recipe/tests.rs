//! Recipes against the general way.

use crypto::{CryptoOp, DerivedKeys, Engine, Job, KeyTable, Keys, Suite};
use proptest::prelude::*;
use wire::{IpPacket, IpProto, SeqNo};

use crate::testkit::{ipv4_udp, ipv6_udp};
use crate::{
    Delivered, DfPolicy, Drop, DscpPolicy, Frame, InboundSa, Lifetime, Mode, OutboundSa, Outer, Peer, PendingIn,
    SaCommon, UdpPorts, eesp, esp, finish_in, finish_in_usual, finishes_usual, prepare_in_any, prepare_in_usual,
    prepare_out_any, prepare_out_usual, psp,
};

const SUN: [u8; 4] = [192, 0, 2, 1];
const MOON: [u8; 4] = [198, 51, 100, 9];
const ROOM: usize = 400;

/// What the settings of an SA may be, for those that have recipes.
#[derive(Clone, Debug)]
struct Setup {
    protocol: u8,
    suite: &'static str,
    outer: Outer,
    esn: bool,
    /// EESP: sequence numbers; PSP: a cookie.
    extra: bool,
    /// Crypt offset of PSP; from 16 on, without `esn`, of EESP too.
    clear: u8,
    transport: bool,
}

fn setup() -> impl Strategy<Value = Setup> {
    let suite = prop::sample::select(vec!["aes128gcm16", "aes256gcm8", "aes128gcm16iiv", "chacha20poly1305"]);
    let dscp = prop_oneof![Just(DscpPolicy::Copy), (0u8..64).prop_map(DscpPolicy::Set)];
    let df = prop::sample::select(vec![DfPolicy::Copy, DfPolicy::Set, DfPolicy::Clear]);
    let outer = (dscp, df, any::<bool>(), any::<bool>(), 1u8..).prop_map(|(dscp, df, ecn, udp, hop_limit)| Outer {
        peer: Peer { local: SUN.into(), remote: MOON.into() },
        hop_limit,
        dscp,
        ecn,
        df,
        udp: udp.then_some(UdpPorts { src: 4500, dst: 4501 }),
        udp_checksum: false,
    });
    (0u8..3, suite, outer, any::<bool>(), any::<bool>(), 0u8..8, any::<bool>()).prop_map(
        |(protocol, suite, outer, esn, extra, clear, transport)| Setup {
            protocol,
            suite,
            outer: if protocol == 2 { Outer { udp: None, ..outer } } else { outer },
            esn,
            extra,
            clear: clear * 4,
            transport,
        },
    )
}

impl Setup {
    fn common(&self, back: bool) -> SaCommon {
        let Peer { local, remote } = self.outer.peer;
        let peer = if back { Peer { local: remote, remote: local } } else { self.outer.peer };
        let mode = if self.transport { Mode::Transport } else { Mode::Tunnel };
        SaCommon::new("test", mode, Outer { peer, ..self.outer }, Lifetime::NONE)
    }

    fn ends(&self, keys: &mut KeyTable) -> (OutboundSa, Option<InboundSa>) {
        let material = [7; 36];
        let suite = Suite::parse_esp(self.suite).unwrap();
        let key = &material[..suite.enc_material_len()];
        match self.protocol {
            0 => {
                let spec = esp::Spec {
                    spi: 0x1234_5678,
                    suite,
                    enc_key: key,
                    integ_key: &[],
                    esn: self.esn,
                    window: 64,
                    first_seq: 0,
                    persistent: false,
                    tfc_padding: false,
                    iv: esp::CbcIv::Encrypted,
                };
                let out = esp::outbound(self.common(false), &spec, Engine::AwsLc, keys).unwrap();
                (out, Some(esp::inbound(self.common(true), &spec, Engine::AwsLc, keys).unwrap()))
            }
            1 => {
                let spec = eesp::Spec {
                    spi: 0x1234_5678,
                    suite,
                    key,
                    sub_sas: None,
                    session: 0x0102,
                    seq: self.extra || self.suite.ends_with("iiv"),
                    window: 64,
                    first_seq: &[],
                    persistent: false,
                    crypt_offset: (self.clear >= 16 && !self.esn).then_some(self.clear),
                    extra_options: if self.esn { &[0x7f, 2, 1, 2] } else { &[] },
                    strict_options: false,
                    ip_proto: IpProto::EESP_DEFAULT,
                    first_iv: None,
                };
                let out = eesp::outbound(self.common(false), &spec, Engine::AwsLc, keys).unwrap();
                (out, eesp::inbound(self.common(true), &spec, Engine::AwsLc, keys).ok())
            }
            _ => {
                let spec = psp::SendSpec {
                    spi: 0x1234_5678,
                    version: 0,
                    key: &material[..16],
                    iv: psp::IvCounter { first: 1, persistent: false },
                    crypt_offset: self.clear,
                    cookie: self.extra.then_some(0x0102_0304_0506_0708),
                    sample: false,
                    drop: false,
                    port: 1000,
                    port_key: 9,
                    source_port: self.esn.then_some(77),
                };
                (psp::outbound(self.common(false), &spec, Engine::AwsLc, keys).unwrap(), None)
            }
        }
    }
}

fn inner() -> impl Strategy<Value = Vec<u8>> {
    let sum = prop_oneof![Just(0), Just(0xffff), any::<u16>()];
    (any::<bool>(), 0usize..300, any::<u8>(), any::<bool>(), 0..8, sum).prop_map(|(v6, len, tos, df, kind, sum)| {
        if v6 {
            let mut packet = ipv6_udp([1; 16], [2; 16], len);
            packet[0..2].copy_from_slice(&(0x6000 | u16::from(tos) << 4).to_be_bytes());
            return packet;
        }
        let mut packet = ipv4_udp(SUN, MOON, len);
        (packet[1], packet[6]) = (tos, if df { 0x40 } else { 0 });
        wire::ip::update_checksum_v4(&mut packet).unwrap();
        match kind {
            // What was broken stays broken, in the same way.
            1 => packet[10..12].copy_from_slice(&sum.to_be_bytes()),
            2 => {
                packet.splice(20..20, [1; 4]);
                packet[0] = 0x46;
                let total_len = packet.len();
                wire::ip::set_total_len(&mut packet, total_len).unwrap();
            }
            3 => packet[6] |= 0x20,
            4 => {
                packet.truncate(20 + len % 9);
                packet[9] = sum as u8;
                let total_len = packet.len();
                wire::ip::set_total_len(&mut packet, total_len).unwrap();
            }
            5 => packet[9] = IpProto::NONE.0,
            _ => {}
        }
        packet
    })
}

/// Bytes of a packet and the operation on them.
type Sealed = (Vec<u8>, CryptoOp);

fn same(a: &CryptoOp, b: &CryptoOp) -> bool {
    (a.key, a.aad, a.body, a.icv, a.iv) == (b.key, b.aad, b.body, b.icv, b.iv)
}

/// Both ways out: as a recipe makes it, when it does, and as the settings say. The bytes of the ICV
/// are whatever was there.
fn both_out(sa: &OutboundSa, seq: SeqNo, packet: &[u8]) -> (Option<Result<Sealed, Drop>>, Result<Sealed, Drop>) {
    let ip = IpPacket::parse(packet).unwrap();
    let with_room = || [vec![0; ROOM], packet.to_vec(), vec![0; ROOM]].concat();
    let range = ROOM..ROOM + packet.len();
    let bytes = |frame: &Frame<'_>, op: CryptoOp| {
        let mut bytes = frame.bytes().to_vec();
        bytes[op.icv.range()].fill(0);
        (bytes, op)
    };
    let (mut buffer, mut op) = (with_room(), CryptoOp::EMPTY);
    let mut frame = Frame::new(&mut buffer, range.clone()).unwrap();
    let usual = match prepare_out_usual(sa, &sa.lanes[0], seq, &ip, &mut frame, |made| op = made) {
        Ok(done) => done.then(|| Ok(bytes(&frame, op))),
        Err(why) => Some(Err(why)),
    };
    let (mut buffer, mut op) = (with_room(), CryptoOp::EMPTY);
    let mut frame = Frame::new(&mut buffer, range).unwrap();
    let any = prepare_out_any(sa, &sa.lanes[0], seq, &ip, &mut frame, &mut op).map(|_| bytes(&frame, op));
    (usual, any)
}

/// What the first step of opening says.
type Prepared = Result<(CryptoOp, PendingIn), Drop>;

/// Both ways in; the first gives `None` where it leaves the packet to the second.
fn both_in(sa: &InboundSa, packet: &mut [u8]) -> Option<(Prepared, Prepared)> {
    let outer = IpPacket::parse(packet).unwrap();
    let at = outer.upper_at + if outer.upper == IpProto::UDP { 8 } else { 0 };
    let mut usual = None;
    if let Err(why) = prepare_in_usual(sa, &outer, at, packet, |op, pending| usual = Some(Ok((op, pending)))) {
        usual = Some(Err(why));
    }
    let (mut op, mut pending) = (CryptoOp::EMPTY, PendingIn::EMPTY);
    let len = packet.len();
    let mut frame = Frame::new(packet, 0..len).unwrap();
    let any = prepare_in_any(sa, &outer, at, &mut frame, &mut DerivedKeys::new(4), &mut op, &mut pending);
    Some((usual?, any.map(|()| (op, pending))))
}

/// Engine and the last step, one way or the other. What comes out, and the top of the window.
fn open(
    sa: &InboundSa,
    keys: &KeyTable,
    packet: &[u8],
    usual: bool,
    (op, pending): (CryptoOp, PendingIn),
) -> Option<Result<Vec<u8>, Drop>> {
    let mut packet = packet.to_vec();
    let mut jobs = [Job::new(op, &mut packet)];
    Engine::AwsLc.open(Keys { table: keys, derived: &DerivedKeys::new(4) }, &mut jobs);
    let ok = jobs[0].take_ok()?;
    if usual {
        let inner = finish_in_usual(sa, &mut packet, &pending, ok);
        return Some(inner.map(|range| packet[range].to_vec()));
    }
    let len = packet.len();
    let mut frame = Frame::new(&mut packet, 0..len).unwrap();
    Some(finish_in(sa, &mut frame, &pending, ok).map(|Delivered { .. }| frame.bytes().to_vec()))
}

proptest! {
    // Many, because a setup has many sides.
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_recipe_makes_what_the_settings_say(setup in setup(), packet in inner(), seq in 1u64..) {
        let mut keys = KeyTable::default();
        let (sa, _) = setup.ends(&mut keys);
        let offset = setup.protocol == 1 && setup.clear >= 16 && !setup.esn;
        let far = setup.protocol == 2 && setup.clear > 20;
        prop_assert_eq!(sa.recipe.is_some(), setup.transport || !(offset || far));
        if let (Some(usual), any) = both_out(&sa, SeqNo(seq), &packet) {
            match (usual, any) {
                (Ok(usual), Ok(any)) => {
                    prop_assert_eq!(usual.0, any.0);
                    prop_assert!(same(&usual.1, &any.1), "{:?} {:?}", usual.1, any.1);
                }
                (usual, any) => prop_assert_eq!(usual.err(), any.err()),
            }
        } else {
            // What a recipe leaves to the settings: little of it, and never what is most common.
            let ip = IpPacket::parse(&packet).unwrap();
            let payload_len = ip.total_len - if setup.transport { ip.upper_at } else { 0 };
            let odd = ip.is_v6() || ip.upper_at != 20 || ip.fragment.is_some();
            prop_assert!(!setup.transport || odd || payload_len < setup.clear.into());
        }
    }

    #[test]
    fn a_recipe_opens_what_the_settings_open(
        setup in setup(), packet in inner(), seq in 1u64..200, outer_tos: u8, keep in prop_oneof![4 => 28usize..64, 1 => 64usize..400], flip in 0usize..4000, whole in prop::bool::weighted(0.7),
    ) {
        let (mut setup, mut keys) = (setup, KeyTable::default());
        (setup.protocol, setup.transport) = (setup.protocol % 2, setup.transport && packet[0] >> 4 == 4);
        let (out, inn) = setup.ends(&mut keys);
        let Some(inn) = inn else { return Ok(()) };
        let (_, again) = setup.ends(&mut keys);
        let again = again.unwrap();
        let (_, sealed) = both_out(&out, SeqNo(seq), &packet);
        let Ok((mut bytes, op)) = sealed else { return Ok(()) };
        let mut jobs = [Job::new(op, &mut bytes)];
        Engine::AwsLc.seal(Keys { table: &keys, derived: &DerivedKeys::new(4) }, &mut jobs);
        prop_assert!(jobs[0].sealed());
        wire::ip::set_tos(&mut bytes, outer_tos).unwrap();
        if !whole {
            let at = 20 + flip % (bytes.len() - 20);
            bytes[at] ^= 1 << (flip % 8);
            let len = keep.min(bytes.len());
            bytes.truncate(len);
            wire::ip::set_total_len(&mut bytes, len).unwrap();
        }
        let Some((usual, any)) = both_in(&inn, &mut bytes) else { return Ok(()) };
        prop_assert_eq!(usual.as_ref().err(), any.as_ref().err());
        let (Ok(usual), Ok(any)) = (usual, any) else { return Ok(()) };
        prop_assert!(same(&usual.0, &any.0), "{:?} {:?}", usual.0, any.0);
        prop_assert_eq!(format!("{:?}", usual.1), format!("{:?}", any.1));
        if finishes_usual(&inn, &usual.1) {
            let there = open(&inn, &keys, &bytes, true, usual);
            // The other SA has a key of its own with the same bytes.
            let key = again.lanes[0].key.unwrap();
            let here = open(&again, &keys, &bytes, false, (CryptoOp { key, ..any.0 }, any.1));
            prop_assert_eq!(&there, &here);
            prop_assert_eq!(inn.window().unwrap().top(), again.window().unwrap().top());
            prop_assert!(!whole || matches!(there, Some(Ok(_) | Err(Drop::EcnCe | Drop::Dummy))));
        } else {
            let offset = setup.protocol == 1 && setup.clear >= 16 && !setup.esn;
            prop_assert!(offset || setup.transport && packet[0] != 0x45);
        }
    }
}

#[test]
fn packets_without_room_around_them_go_the_general_way() {
    for (transport, room) in [(false, 64), (true, 44)] {
        let (sa, _) = Setup { transport, ..plain() }.ends(&mut KeyTable::default());
        let packet = ipv4_udp(SUN, MOON, 30);
        let ip = IpPacket::parse(&packet).unwrap();
        for (front, back) in [(room - 1, 64), (room, 63), (room, 64)] {
            let mut buffer = [vec![0; front], packet.clone(), vec![0; back]].concat();
            let mut frame = Frame::new(&mut buffer, front..front + packet.len()).unwrap();
            let done = prepare_out_usual(&sa, &sa.lanes[0], SeqNo(1), &ip, &mut frame, |_| ());
            assert_eq!(done, Ok((front, back) == (room, 64)));
        }
    }
}

fn plain() -> Setup {
    Setup {
        protocol: 0,
        suite: "aes128gcm16",
        outer: Outer {
            peer: Peer { local: SUN.into(), remote: MOON.into() },
            hop_limit: 64,
            dscp: DscpPolicy::Copy,
            ecn: true,
            df: DfPolicy::Set,
            udp: None,
            udp_checksum: false,
        },
        esn: false,
        extra: false,
        clear: 0,
        transport: false,
    }
}
