//! Recipes against the general way.

use std::sync::Arc;

use crypto::kdf::PspMasterKey;
use crypto::{CryptoOp, DerivedKeys, Engine, Job, Jobs, KeyTable, Keys, Suite};
use proptest::prelude::*;
use wire::psp::{PspSpi, PspVersion};
use wire::{IpPacket, IpProto, PlainFlow, SeqNo};

use crate::eesp::SubSaKdf;
use crate::psp::MasterKeys;
use crate::testkit::{ipv4_udp, ipv6_udp};
use crate::{
    Delivered, DfPolicy, DropReason, DscpPolicy, Frame, InLayout, InOwn, InPacket, InResult, InboundSa, InnerFormat,
    InnerLayout, Lifetime, Mode, OutPacket, OutTemplate, OutboundSa, Outer, OuterLayout, Peer, PendingIn, ReplayWindow,
    SaCommon, UdpPorts, aggfrag, eesp, esp, finish_in, prepare_in_slow, prepare_out_slow, psp,
};

const SUN: [u8; 4] = [192, 0, 2, 1];
const MOON: [u8; 4] = [198, 51, 100, 9];
const ROOM: usize = 400;

/// What the settings of an SA may be, for those that have templates.
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
    aggfrag: bool,
    /// EESP: Sub SAs, with keys that are derived when packets come.
    subs: bool,
}

fn setup() -> impl Strategy<Value = Setup> {
    let suite = prop::sample::select(vec!["aes128gcm16", "aes256gcm8", "aes128gcm16iiv", "chacha20poly1305"]);
    // Of ESP alone.
    let separate = prop::sample::select(vec!["aes128-sha1", "aes256-sha256", "3des-sha1", "aes192ctr-sha384"]);
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
    let suite = (suite, prop::option::of(separate));
    (0u8..3, suite, outer, any::<bool>(), any::<bool>(), 0u8..8, any::<bool>()).prop_map(
        |(protocol, (suite, separate), outer, esn, extra, clear, transport)| Setup {
            subs: false,
            protocol,
            suite: separate.filter(|_| protocol == 0).unwrap_or(suite),
            outer: if protocol == 2 { Outer { udp: None, ..outer } } else { outer },
            esn,
            extra,
            clear: clear * 4,
            transport,
            aggfrag: false,
        },
    )
}

impl Setup {
    fn common(&self, back: bool) -> SaCommon {
        let Peer { local, remote } = self.outer.peer;
        let peer = if back { Peer { local: remote, remote: local } } else { self.outer.peer };
        let mode = match (self.aggfrag, self.transport) {
            (true, _) => Mode::Aggfrag(aggfrag::Settings::default()),
            (false, true) => Mode::Transport,
            (false, false) => Mode::Tunnel,
        };
        SaCommon::new("test", mode, Outer { peer, ..self.outer }, Lifetime::NONE)
    }

    fn ends(&self, keys: &mut KeyTable) -> (OutboundSa, Option<InboundSa>) {
        let material: [u8; 64] = std::array::from_fn(|i| (i * 3 + 7) as u8);
        let suite = Suite::parse_esp(self.suite).unwrap();
        let key = &material[..suite.enc_material_len()];
        match self.protocol {
            0 => {
                let integ_key = &material[..suite.integ_material_len()];
                let spec = esp::Spec {
                    integ_key,
                    esn: self.esn,
                    ..esp::Spec::new(0x1234_5678.try_into().unwrap(), suite, key)
                };
                let out = esp::outbound(self.common(false), &spec, Engine::best(), keys).unwrap();
                (out, Some(esp::inbound(self.common(true), &spec, Engine::best(), keys).unwrap()))
            }
            1 => {
                let subs = self.subs.then_some((SubSaKdf::HkdfSha256, 1 << 10));
                let key = if self.subs { &[9; 32] } else { key };
                let spec = eesp::Spec {
                    sub_sas: subs,
                    session: if self.subs { 0 } else { 0x0102 },
                    seq: self.extra || self.suite.ends_with("iiv"),
                    first_seq: if self.subs { &[1] } else { &[] },
                    crypt_offset: (self.clear >= 16 && !self.esn).then_some(self.clear),
                    extra_options: if self.esn { &[0x7f, 2, 1, 2] } else { &[] },
                    ..eesp::Spec::new(0x1234_5678.try_into().unwrap(), suite, key)
                };
                let out = eesp::outbound(self.common(false), &spec, Engine::best(), keys).unwrap();
                (out, eesp::inbound(self.common(true), &spec, Engine::best(), keys).ok())
            }
            _ => {
                let masters = MasterKeys::new([Some(PspMasterKey::new(&[1; 32])), None]);
                let spi = PspSpi::try_from(0x1234_5678).unwrap();
                let key = masters.traffic_key(spi, PspVersion::try_from(0).unwrap()).unwrap();
                let spec = psp::SendSpec {
                    spi,
                    version: 0,
                    key: key.key(),
                    iv: psp::IvCounter { first: 1, persistent: false, cores: 1 },
                    crypt_offset: self.clear,
                    cookie: self.extra.then_some(0x0102_0304_0506_0708),
                    sample: false,
                    drop: false,
                    port: 1000,
                    port_key: 9,
                    source_port: self.esn.then_some(77),
                };
                let receive = psp::ReceiveSpec {
                    masters: Arc::new(masters),
                    issued: vec![(spi, spi)],
                    versions: 1,
                    max_crypt_offset: 252,
                    window: if self.extra { 0 } else { 64 },
                    first_seq: vec![1],
                    honour_drop: false,
                };
                let out = psp::outbound(self.common(false), &spec, Engine::best(), keys).unwrap();
                (out, Some(psp::inbound(self.common(true), &receive, Engine::best(), keys).unwrap()))
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

/// Both ways out: as a template makes it, when it does, and as the settings say. The bytes of the
/// ICV are whatever was there.
fn both_out(sa: &OutboundSa, seq: SeqNo, packet: &[u8]) -> (Option<Sealed>, Result<Sealed, DropReason>) {
    let ip = match sa.common.aggfrag() {
        Some(_) => aggfrag::payload_header(&sa.common, packet.len()),
        None => IpPacket::parse(packet).unwrap(),
    };
    let with_room = || [vec![0; ROOM], packet.to_vec(), vec![0; ROOM]].concat();
    let range = ROOM..ROOM + packet.len();
    let bytes = |frame: &Frame<'_>, op: CryptoOp| {
        let mut bytes = frame.bytes().to_vec();
        bytes[op.icv.range()].fill(0);
        (bytes, op)
    };
    let mut buffer = with_room();
    let mut frame = Frame::new(&mut buffer, range.clone()).unwrap();
    let usual = sa.template().and_then(|template| template.prepare_one(&sa.lanes[0], seq, &mut frame));
    let usual = usual.map(|op| bytes(&frame, op));
    let (mut buffer, mut op) = (with_room(), CryptoOp::EMPTY);
    let mut frame = Frame::new(&mut buffer, range).unwrap();
    let packet = OutPacket { lane: &sa.lanes[0], seq, ip: &ip, frame: &mut frame, op: &mut op };
    let any = prepare_out_slow(sa, packet).map(|_| bytes(&frame, op));
    (usual, any)
}

/// The way out for a packet that fits the layout of another one, whatever else that was; `None`
/// when there is none for it.
fn next_out(sa: &OutboundSa, seq: SeqNo, packet: &[u8]) -> Option<Result<Sealed, DropReason>> {
    let (template, lane) = (sa.template()?, &sa.lanes[0]);
    let mut before = packet.to_vec();
    let differ = if packet[0] >> 4 == 4 { 8..before.len() } else { before.len()..before.len() };
    before[differ].iter_mut().for_each(|byte| *byte = !*byte);
    if packet[0] >> 4 == 4 {
        (before[4], before[5]) = (!packet[4], !packet[5]);
    }
    let layout = template.layout(lane, &before)?;
    let stamp = &template.stamp(&layout);
    let stamp = Some(stamp);
    assert_eq!(layout.fits(packet), packet[0] >> 4 == 4);
    assert!(!layout.fits(&[&before[..3], &[!before[3]], &before[4..]].concat()));
    let mut buffer = [vec![0; OutTemplate::MARGIN], packet.to_vec(), vec![0; OutTemplate::MARGIN]].concat();
    let (mut jobs, start) = (Jobs::new(), OutTemplate::MARGIN as u32);
    let (done, place) = if template.is_transport() {
        (template.prepare::<true>(&layout, stamp, seq, &mut buffer, &mut jobs), template.place::<true>(&layout, start))
    } else {
        (
            template.prepare::<false>(&layout, stamp, seq, &mut buffer, &mut jobs),
            template.place::<false>(&layout, start),
        )
    };
    if let Err(why) = done {
        return Some(Err(why));
    }
    let job = jobs.pop().unwrap();
    let (op, mut bytes) = (job.op, job.packet.to_vec());
    drop(jobs);
    bytes[op.icv.range()].fill(0);
    let placed = &buffer[place.start as usize..place.end as usize];
    assert_eq!(placed[..op.icv.start as usize], bytes[..op.icv.start as usize]);
    Some(Ok((bytes, op)))
}

/// What the first step of opening says.
type Prepared = Result<(CryptoOp, PendingIn), DropReason>;

/// The first step by a layout that the packet fits.
fn lay_in(layout: &InLayout<'_>, packet: &mut [u8]) -> Prepared {
    let (numbers, mut jobs) = (layout.check(packet)?, Jobs::new());
    let outer_tos = layout.fits(packet).ok_or(DropReason::Inconsistent)?;
    let own = layout.prepare(packet, outer_tos, numbers, &mut jobs);
    Ok((jobs.pop().unwrap().op, own.pending(layout.common())))
}

/// Both ways in; `None` where the layout leaves the packet to the slow path. The format is that of
/// the layout.
fn both_in(sa: &InboundSa, packet: &mut [u8]) -> Option<(Option<InnerFormat>, Prepared, Prepared)> {
    let outer = IpPacket::parse(packet).unwrap();
    let in_udp = outer.upper == IpProto::UDP;
    let at = outer.upper_at + if in_udp { 8 } else { 0 };
    // Layouts are for packets whose datagrams are as long as they are.
    let udp_len = usize::from(u16::from_be_bytes([packet[24], packet[25]]));
    let (ip_end, at, proto_at) = (outer.upper_at as u16, at as u16, outer.proto_at as u16);
    let layout = InLayout::of(sa, OuterLayout { ip_end, at, proto_at });
    let layout = layout
        .filter(|layout| layout.fits(packet).is_some() && (!in_udp || udp_len == packet.len() - outer.upper_at))?;
    let usual = lay_in(&layout, packet);
    Some((layout.format(), usual, prepare_any(sa, &mut DerivedKeys::new(4), packet)))
}

/// What a packet has of its own.
fn own(pending: &PendingIn) -> InOwn {
    InOwn { seq: pending.seq, end: pending.payload.end, outer_tos: pending.outer_tos }
}

/// Engine and the last step by a layout; the inner `None` is for packets that it leaves to the slow
/// path, the outer one for a wrong ICV.
fn open_by(layout: &InnerLayout<'_>, keys: Keys<'_>, packet: &[u8], (op, pending): Laid) -> Option<Option<Vec<u8>>> {
    let mut packet = packet.to_vec();
    let mut jobs = [Job::new(op, &mut packet)];
    Engine::best().open(keys, &mut jobs);
    let (ok, own) = (jobs[0].take_ok()?, own(&pending));
    let range = if layout.is_transport() {
        layout.own(&packet, &own).map(|(range, header)| {
            packet[range.start..][..header.len()].copy_from_slice(&header);
            range
        })
    } else {
        let range = layout.inner(&packet, &own);
        assert_eq!(layout.inner_of(&PlainFlow::NONE, &packet, &own), None);
        // A packet of a known flow is found in the same place.
        if let Some(flow) = range.clone().and_then(|range| PlainFlow::of(&packet[range])) {
            assert_eq!(layout.inner_of(&flow, &packet, &own), range);
        }
        range
    };
    let Some(range) = range else { return Some(None) };
    layout.admit(&own, ok).unwrap();
    Some(Some(packet[range].to_vec()))
}

/// What the first step says of a packet that it takes.
type Laid = (CryptoOp, PendingIn);

/// Engine and the last step on the slow path. What comes out.
fn open(sa: &InboundSa, keys: Keys<'_>, packet: &[u8], (op, pending): Laid) -> Option<Result<Vec<u8>, DropReason>> {
    let mut packet = packet.to_vec();
    let mut jobs = [Job::new(op, &mut packet)];
    Engine::best().open(keys, &mut jobs);
    let ok = jobs[0].take_ok()?;
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
        prop_assert_eq!(sa.template.is_some(), setup.transport || !(offset || far));
        let next = next_out(&sa, SeqNo(seq), &packet);
        let ip = IpPacket::parse(&packet).unwrap();
        let odd = setup.transport && (ip.is_v6() || ip.upper_at != 20 || ip.fragment.is_some());
        let short = setup.transport && packet.len() < 20 + usize::from(setup.clear) && setup.protocol != 0;
        prop_assert!(next.is_some() == (!odd && sa.template.is_some()) || short);
        if let Some(next) = next {
            let (next, any) = (next.unwrap(), both_out(&sa, SeqNo(seq), &packet).1.unwrap());
            prop_assert_eq!(next.0, any.0);
            prop_assert!(same(&next.1, &any.1), "{:?} {:?}", next.1, any.1);
        }
        let (one, any) = both_out(&sa, SeqNo(seq), &packet);
        prop_assert_eq!(one.is_some(), next_out(&sa, SeqNo(seq), &packet).is_some());
        if let Some(one) = one {
            let any = any.unwrap();
            prop_assert_eq!(one.0, any.0);
            prop_assert!(same(&one.1, &any.1), "{:?} {:?}", one.1, any.1);
        }
    }

    #[test]
    fn a_recipe_makes_payloads_of_aggfrag_mode(
        setup in setup(), mut payload in prop::collection::vec(any::<u8>(), 20..600), seq in 1u64..,
    ) {
        payload[0] = 0;
        let setup = Setup { protocol: 0, aggfrag: true, ..setup };
        let (sa, _) = setup.ends(&mut KeyTable::default());
        let template = sa.template().unwrap();
        // The first bytes of a payload are no header with a length.
        let layout = template.layout(&sa.lanes[0], &payload).unwrap();
        prop_assert!(!layout.fits(&payload) && !layout.fits(&[0; 8]));
        let (one, any) = both_out(&sa, SeqNo(seq), &payload);
        let (one, any) = (one.unwrap(), any.unwrap());
        prop_assert_eq!(one.0, any.0);
        prop_assert!(same(&one.1, &any.1), "{:?} {:?}", one.1, any.1);
    }

    #[test]
    fn aggfrag_mode_has_no_recipe_but_for_esp(
        setup in setup(), mut payload in prop::collection::vec(any::<u8>(), 20..600), seq in 1u64..,
    ) {
        payload[0] = 0;
        // PSP has no AGGFRAG mode. EESP has it with combined algorithms and sequence numbers, and
        // without a crypt offset.
        let suite = if setup.protocol == 0 { "aes256gcm8" } else { setup.suite };
        let setup = Setup { protocol: 1, suite, extra: true, clear: 0, aggfrag: true, ..setup };
        let (sa, _) = setup.ends(&mut KeyTable::default());
        prop_assert!(sa.template.is_none() && next_out(&sa, SeqNo(seq), &payload).is_none());
        prop_assert!(both_out(&sa, SeqNo(seq), &payload).0.is_none());
    }

    #[test]
    fn a_recipe_opens_what_the_settings_open(
        setup in setup(), packet in inner(), seq in 1u64..200, outer_tos: u8, keep in prop_oneof![4 => 28usize..64, 1 => 64usize..400], flip in 0usize..4000, whole in prop::bool::weighted(0.7),
    ) {
        let (mut setup, mut keys) = (setup, KeyTable::default());
        // PSP has no template for opening.
        (setup.protocol, setup.transport) = (setup.protocol % 2, setup.transport && packet[0] >> 4 == 4);
        let (out, inn) = setup.ends(&mut keys);
        let Some(inn) = inn else { return Ok(()) };
        let (_, again) = setup.ends(&mut keys);
        let again = again.unwrap();
        let (_, sealed) = both_out(&out, SeqNo(seq), &packet);
        let Ok((mut bytes, op)) = sealed else { return Ok(()) };
        let mut jobs = [Job::new(op, &mut bytes)];
        Engine::best().seal(Keys { table: &keys, derived: &DerivedKeys::new(4) }, &mut jobs);
        prop_assert!(jobs[0].sealed());
        wire::ip::set_tos(&mut bytes, outer_tos).unwrap();
        if !whole {
            let at = 20 + flip % (bytes.len() - 20);
            bytes[at] ^= 1 << (flip % 8);
            let len = keep.min(bytes.len());
            bytes.truncate(len);
            wire::ip::set_total_len(&mut bytes, len).unwrap();
        }
        let Some((format, usual, any)) = both_in(&inn, &mut bytes) else { return Ok(()) };
        prop_assert_eq!(usual.as_ref().err(), any.as_ref().err());
        let (Ok(usual), Ok(any)) = (usual, any) else { return Ok(()) };
        prop_assert!(same(&usual.0, &any.0), "{:?} {:?}", usual.0, any.0);
        prop_assert_eq!(format!("{:?}", usual.1), format!("{:?}", any.1));
        let Some(layout) = InnerLayout::of(&inn, format, &usual.1) else {
            let offset = setup.protocol == 1 && setup.clear >= 16 && !setup.esn;
            prop_assert!(offset || setup.transport && packet[0] != 0x45);
            return Ok(());
        };
        let derived = DerivedKeys::new(4);
        let keys = Keys { table: &keys, derived: &derived };
        let there = open_by(&layout, keys, &bytes, usual);
        // The other SA has a key of its own with the same bytes.
        let key = again.lanes[0].key.unwrap();
        let here = open(&again, keys, &bytes, (CryptoOp { key, ..any.0 }, any.1));
        prop_assert_eq!(there.is_some(), here.is_some());
        let inner_tos = if packet[0] >> 4 == 6 { packet[0] << 4 | packet[1] >> 4 } else { packet[1] };
        let same_ecn = setup.transport || !setup.outer.ecn || (inner_tos ^ outer_tos) & 3 == 0;
        match (there, here) {
            (Some(Some(there)), here) => {
                prop_assert_eq!(Some(Ok(there)), here);
                prop_assert_eq!(inn.window().unwrap().top(), again.window().unwrap().top());
            }
            // What is left to the slow path is little.
            (Some(None), Some(Ok(_))) => prop_assert!(!same_ecn),
            (Some(None), here) => prop_assert!(!whole || matches!(here, Some(Err(DropReason::EcnCe | DropReason::Dummy)))),
            (None, _) => {}
        }
    }

    #[test]
    fn a_run_is_opened_as_each_of_its_packets_would_be(
        setup in setup(), subs: bool, packets in [inner(), inner()], seq in 2u64..200, outer_tos: u8, flip in 0usize..4000,
        whole in prop::bool::weighted(0.7),
    ) {
        let setup = Setup { subs: subs && setup.protocol == 1 && setup.clear < 16, ..setup };
        let [first, second] = packets;
        let setup = Setup { transport: setup.transport && first[0] >> 4 == 4 && second[0] >> 4 == 4, ..setup };
        let mut keys = KeyTable::default();
        let (out, Some(inn)) = setup.ends(&mut keys) else { return Ok(()) };
        let (_, Some(again)) = setup.ends(&mut keys) else { return Ok(()) };
        let mut sealed = [(seq, &first), (seq + 1, &second)].map(|(seq, packet)| {
            let (mut bytes, op) = both_out(&out, SeqNo(seq), packet).1.ok()?;
            let mut jobs = [Job::new(op, &mut bytes)];
            Engine::best().seal(Keys { table: &keys, derived: &DerivedKeys::new(4) }, &mut jobs);
            jobs[0].sealed().then_some(bytes)
        });
        let [Some(before), Some(bytes)] = &mut sealed else { return Ok(()) };
        prop_assume!(before[0] == 0x45 && bytes[0] == 0x45 && (before[6] | bytes[6]) & 0x20 == 0);
        prop_assume!(before[12..20] == bytes[12..20] && before[9] == bytes[9]);
        wire::ip::set_tos(bytes, outer_tos).unwrap();
        if !whole {
            let at = 28 + flip % (bytes.len() - 28);
            bytes[at] ^= 1 << (flip % 8);
        }
        // One of the two SAs sees both packets the general way, the other one only the first.
        let mut of_inn = DerivedKeys::new(4);
        let mut of_again = DerivedKeys::new(4);
        let at = if before[9] == IpProto::UDP.0 { 28 } else { 20 };
        let Some(Ok((_, (op, pending)))) = general(&inn, &keys, &mut of_inn, before) else { return Ok(()) };
        general(&again, &keys, &mut of_again, before);
        let next = InLayout::learn(&inn, at as u16, before, op.key, &pending);
        let bare = match setup.protocol {
            0 => true,
            1 => (setup.suite.ends_with("iiv") || setup.extra) && setup.clear < 16 && !setup.esn,
            _ => !setup.extra && before[at + 2] == 0,
        };
        prop_assert_eq!(next.is_some(), bare, "{:?}", setup);
        let Some(next) = next.filter(|next| next.fits(bytes).is_some()) else { return Ok(()) };
        // Of the shortest one nothing lies outside of it, nor below the ICV.
        let shortest = (0..=bytes.len()).find(|len| next.fits(&bytes[..*len]).is_some()).unwrap();
        if let Ok((op, pending)) = lay_in(&next, &mut bytes[..shortest].to_vec()) {
            prop_assert!(pending.payload.start <= pending.payload.end && pending.payload.end <= op.icv.start);
        }
        let (laid, any) = (lay_in(&next, bytes), prepare_any(&inn, &mut of_inn, bytes));
        prop_assert_eq!(laid.as_ref().err(), any.as_ref().err());
        let (Ok((op, pending)), Ok(any)) = (laid, any) else { return Ok(()) };
        prop_assert!(same(&op, &any.0), "{:?} {:?}", op, any.0);
        prop_assert_eq!(format!("{pending:?}"), format!("{:?}", any.1));

        let here = general(&again, &keys, &mut of_again, bytes);
        let layout = InnerLayout::of(&inn, next.format(), next.common());
        prop_assert_eq!(layout.is_some(), next.format().is_some());
        let Some(layout) = layout else { return Ok(()) };
        let there = open_by(&layout, Keys { table: &keys, derived: &of_inn }, bytes, (op, pending));
        prop_assert_eq!(there.is_some(), here.is_some());
        match (there, here) {
            (Some(Some(there)), here) => {
                prop_assert_eq!(Some(Ok(there)), here.map(|here| here.map(|(bytes, _)| bytes)));
                let top = |sa: &InboundSa| sa.lanes[usize::from(pending.lane)].window.get().map(ReplayWindow::top);
                prop_assert_eq!(top(&inn), top(&again));
            }
            (Some(None), Some(Ok(_))) => prop_assert!(setup.outer.ecn && !setup.transport, "{:?}", setup),
            _ => {}
        }
    }
}

/// The first step, the general way.
fn prepare_any(sa: &InboundSa, derived: &mut DerivedKeys, packet: &mut [u8]) -> Prepared {
    let outer = IpPacket::parse(packet).unwrap();
    let at = outer.upper_at + if outer.upper == IpProto::UDP { 8 } else { 0 };
    let (mut op, mut pending) = (CryptoOp::EMPTY, PendingIn::EMPTY);
    let len = packet.len();
    let mut frame = Frame::new(packet, 0..len).unwrap();
    let (packet, result) =
        (InPacket { outer: &outer, at, frame: &mut frame }, InResult { op: &mut op, pending: &mut pending });
    prepare_in_slow(sa, packet, derived, result).map(|()| (op, pending))
}

/// What came out of a packet, and the result of the first step for it.
type Opened = Result<(Vec<u8>, (CryptoOp, PendingIn)), DropReason>;

/// The general way of a packet; `None` when the first step or the engine refuses it.
fn general(sa: &InboundSa, keys: &KeyTable, derived: &mut DerivedKeys, packet: &[u8]) -> Option<Opened> {
    let mut packet = packet.to_vec();
    let (op, pending) = prepare_any(sa, derived, &mut packet).ok()?;
    let mut jobs = [Job::new(op, &mut packet)];
    Engine::best().open(Keys { table: keys, derived }, &mut jobs);
    let ok = jobs[0].take_ok()?;
    let len = packet.len();
    let mut frame = Frame::new(&mut packet, 0..len).unwrap();
    let delivered = finish_in(sa, &mut frame, &pending, ok);
    Some(delivered.map(|Delivered { .. }| (frame.bytes().to_vec(), (op, pending))))
}

#[test]
fn packets_without_room_around_them_go_the_general_way() {
    let room = 64;
    for transport in [false, true] {
        let (sa, _) = Setup { transport, ..plain() }.ends(&mut KeyTable::default());
        let packet = ipv4_udp(SUN, MOON, 30);
        for (front, back) in [(room - 1, 64), (room, 63), (room, 64)] {
            let mut buffer = [vec![0; front], packet.clone(), vec![0; back]].concat();
            let mut frame = Frame::new(&mut buffer, front..front + packet.len()).unwrap();
            let done = sa.template().unwrap().prepare_one(&sa.lanes[0], SeqNo(1), &mut frame);
            assert_eq!(done.is_some(), (front, back) == (room, 64));
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
        aggfrag: false,
        subs: false,
    }
}

/// The peer is authentic, but its packets may be wrong: their parts must agree.
#[test]
fn what_the_trailer_and_the_inner_header_contradict_is_left_to_the_slow_path() {
    let setup = Setup { outer: Outer::new(SUN.into(), MOON.into()), ..plain() };
    let (_, inn) = setup.ends(&mut KeyTable::default());
    let inn = inn.unwrap();
    let layout = InnerLayout::of(&inn, Some(InnerFormat::EspTrailer), &PendingIn::EMPTY).unwrap();
    let inner = ipv4_udp(SUN, MOON, 8);
    let flow = PlainFlow::of(&inner).unwrap();
    // Lengths in header and packet, padding, its length, Next Header, and whether it fits.
    for (total_len, pad, pad_len, next, fits) in [
        (36u16, 2usize, 2u8, 4u8, true),
        (36, 0, 0, 4, true),
        (30, 0, 0, 4, true),
        (36, 2, 3, 4, false),
        (36, 2, 255, 4, false),
        (37, 2, 2, 4, false),
        (38, 2, 2, 4, false),
        (41, 2, 2, 4, false),
        (36, 2, 2, 41, false),
        (36, 2, 2, 59, false),
        (36, 2, 2, 17, false),
        (19, 2, 2, 4, false),
    ] {
        let mut packet = [&inner[..], &vec![0; pad], &[pad_len, next]].concat();
        packet[2..4].copy_from_slice(&total_len.to_be_bytes());
        let own = InOwn { seq: SeqNo(1), end: packet.len() as u32, outer_tos: 0 };
        let expected = fits.then_some(0..usize::from(total_len));
        let case = (total_len, pad, pad_len, next);
        assert_eq!(layout.inner(&packet, &own), expected, "{case:?}");
        assert_eq!(layout.inner_of(&flow, &packet, &own), expected, "{case:?}");
    }
}
