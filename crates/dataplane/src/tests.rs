//! One worker with whole tables, without ports.

mod aggfrag;
mod asynchronous;
mod inbound;
mod outbound;
mod pacing;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crypto::kdf::SubSaKdf;
use crypto::{Engine, KeyTable, Suite};
use ipsec::DropReason;
use ipsec::{Action, DfPolicy, DscpPolicy, Lifetime, Mode, OutboundSa, Outer, Peer, Policy, SaCommon, Spd, eesp, esp};
use proptest::prelude::*;
use wire::ip::{IPV6_HEADER, Ipv6Header};
use wire::registry::CodePoints;
use wire::udp::UdpHeader;
use wire::{AddrRange, IpPacket, IpProto, PortRange, Selector};

use crate::inbound::Opened;
use crate::{
    After, Batch, Packet, PerCoreSas, Pipeline, PipelineConfig, Publisher, Sink, Snapshot, Totals, UnconfirmedSa,
    Worker, WorkerConfig,
};

const PACKET: [u8; 28] = [0x45, 0, 0, 28, 0, 1, 0, 0, 9, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0, 1, 0, 2, 0, 8, 0, 0];

fn spd(action: Action) -> Spd {
    let any = AddrRange::from_cidr([192, 0, 2, 0].into(), 24).unwrap();
    let ports = PortRange::ANY;
    let selectors = [Selector { src: any, dst: any, proto: None, src_ports: ports, dst_ports: ports }].into();
    Spd::new(vec![Policy { name: "all".into(), selectors, action }])
}

/// An EESP SA of two Sub SAs.
fn two_sub_sas(spi: u32) -> eesp::Spec<'static> {
    let suite = Suite::parse_eesp("aes128gcm16iiv").unwrap();
    let sub_sas = Some((SubSaKdf::HkdfSha256, 2));
    eesp::Spec { sub_sas, ..eesp::Spec::new(spi.try_into().unwrap(), suite, &[7; 32]) }
}

fn common() -> SaCommon {
    let outer = Outer {
        peer: Peer { local: [198, 51, 100, 1].into(), remote: [198, 51, 100, 2].into() },
        hop_limit: 64,
        dscp: DscpPolicy::Copy,
        ecn: true,
        df: DfPolicy::Copy,
        udp: None,
        udp_checksum: false,
    };
    SaCommon::new("moon", Mode::Tunnel, outer, Lifetime::NONE)
}

/// Suite of most SAs, and its key and salt. Miri runs no C code: AES-CCM is Rust, with IV and ICV
/// of the same lengths.
const SUITE: &str = if cfg!(miri) { "aes128ccm16" } else { "aes128gcm16" };
const ENC_KEY: &[u8] = &[7; if cfg!(miri) { 19 } else { 20 }];

fn spec(first_seq: u64) -> esp::Spec<'static> {
    esp::Spec {
        spi: 0x1001.try_into().unwrap(),
        suite: Suite::parse_esp(SUITE).unwrap(),
        enc_key: ENC_KEY,
        integ_key: &[],
        esn: false,
        window: 64,
        first_seq,
        persistent: false,
        tfc_padding: false,
        iv: esp::CbcIv::Encrypted,
    }
}

/// Everything through one ESP tunnel over a path of `path_mtu` bytes.
fn tunnel(path_mtu: usize) -> Publisher {
    let mut keys = KeyTable::default();
    let sa = esp::outbound(common(), &spec(1), Engine::best(), &mut keys).unwrap();
    sa.set_path_mtu(path_mtu);
    let spd = spd(Action::Protect { outbound: 0, inbound: 0 });
    Publisher::new(Snapshot::new(vec![], vec![Arc::new(sa)], spd, keys, CodePoints::default()).unwrap())
}

fn small(core: usize) -> WorkerConfig {
    WorkerConfig { core, batch: 8, reassembly: 1, derived_keys: 16, pin: Some(0), ..WorkerConfig::default() }
}

#[test]
fn nothing_overtakes_what_waits_for_a_sign() {
    let mut keys = KeyTable::default();
    let sa = esp::outbound(common(), &spec(1), Engine::best(), &mut keys).unwrap();
    let inbound = Arc::new(esp::inbound(common(), &spec(0), Engine::best(), &mut keys).unwrap());
    let timed_out = Arc::new(AtomicBool::new(false));
    let protect = spd(Action::Protect { outbound: 0, inbound: 0 });
    let mut tables = Snapshot::new(vec![], vec![Arc::new(sa)], protect, keys, CodePoints::default()).unwrap();
    tables.unconfirmed = vec![UnconfirmedSa { slot: 0, trap: 9, inbound, timed_out: Arc::clone(&timed_out) }];
    let (mut worker, _reports) = Worker::new(small(0));
    let (mut batch, mut replies) = (Batch::new(8, 2048), Batch::new(8, 2048));
    let put = |batch: &mut Batch, n: u8| {
        let packet = |to: &mut Packet| to.set(&PACKET) && std::mem::replace(&mut to.bytes_mut()[27], n) == 0;
        assert!(batch.push_with(packet));
    };
    put(&mut batch, 1);
    worker.outbound(&tables, &mut batch, &mut replies);
    timed_out.store(true, Ordering::Relaxed);
    put(&mut batch, 2);
    worker.outbound(&tables, &mut batch, &mut replies);
    assert!(batch.is_empty(), "the second went before the first");
    worker.release(&tables, &mut batch);
    let order: Vec<u8> = batch.packets().iter().map(|packet| packet.bytes()[27]).collect();
    assert_eq!(order, [1, 2]);
    batch.clear();
    put(&mut batch, 3);
    worker.outbound(&tables, &mut batch, &mut replies);
    assert_eq!(batch.len(), 1);
}

#[test]
fn packets_that_a_plan_says_nothing_of_are_dropped() {
    let tables = tunnel(1500).current();
    let (mut worker, _reports) = Worker::new(small(0));
    let (mut batch, mut replies, mut plan) = (Batch::new(8, 2048), Batch::new(8, 2048), Vec::with_capacity(8));
    let fill = |batch: &mut Batch, most: usize| while batch.len() < most && batch.push_with(|to| to.set(&PACKET)) {};
    fill(&mut batch, 2);
    worker.plan(&tables, &mut batch, &mut replies, &mut plan);
    fill(&mut batch, 5);
    worker.seal_planned(&tables, &mut batch, &plan);
    assert_eq!(batch.packets().iter().map(Packet::len).collect::<Vec<_>>(), [batch.packets()[0].len(); 2]);
    assert!(batch.packets()[0].len() > PACKET.len());
    assert_eq!(worker.counters().drops[DropReason::Inconsistent as usize].load(Ordering::Relaxed), 3);
}

#[test]
fn the_lane_of_a_number_is_that_of_its_reservation() {
    let mut keys = KeyTable::default();
    let spec = two_sub_sas(0x1001);
    let mut before = eesp::outbound(common(), &spec, Engine::best(), &mut keys).unwrap();
    before.set_reply_spi(0x2001, 2);
    // The copy of a reload that changes the SPI of the replies: all cores change lanes.
    let mut after = before.moved(before.common.outer);
    after.set_reply_spi(0x2002, 2);
    assert_ne!(before.lane_of(0), after.lane_of(0));
    let tables = [before, after].map(|sa| {
        let protect = spd(Action::Protect { outbound: 0, inbound: 0 });
        Snapshot::new(vec![], vec![Arc::new(sa)], protect, keys.clone(), CodePoints::default()).unwrap()
    });
    let (mut worker, _reports) = Worker::new(small(0));
    let (mut replies, mut plan) = (Batch::new(8, 2048), Vec::with_capacity(8));
    let mut numbers = Vec::new();
    for (planned, sealed) in [(&tables[0], &tables[1]), (&tables[1], &tables[1]), (&tables[0], &tables[0])] {
        let mut batch = Batch::new(8, 2048);
        while batch.push_with(|to| to.set(&PACKET)) {}
        worker.plan(planned, &mut batch, &mut replies, &mut plan);
        worker.seal_planned(sealed, &mut batch, &plan);
        assert_eq!(batch.len(), 8);
        numbers.extend(batch.packets().iter().map(|packet| {
            // The outer header, then the Session ID in the base header, and the number after it.
            let (session, number) = (&packet.bytes()[22..24], &packet.bytes()[28..36]);
            [session, number].concat()
        }));
    }
    let all = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), all, "a number was used twice in a Sub SA");
}

#[test]
fn a_full_batch_of_packets_to_fragment_allocates_nothing() {
    let tables = tunnel(600).current();
    let inner_mtu = tables.outbound[0].inner_mtu.load(Ordering::Relaxed) as usize;
    let (mut worker, _reports) = Worker::new(small(0));
    let mut packet = PACKET.to_vec();
    packet.resize(2 * inner_mtu, 0);
    packet[2..4].copy_from_slice(&(2 * inner_mtu as u16).to_be_bytes());
    let (mut batch, mut replies) = (Batch::with_reserve(8, 16, 2048), Batch::new(8, 2048));
    let before = worker.capacities();
    (0..8).for_each(|_| assert!(batch.push_with(|to| to.set(&packet))));
    worker.outbound(&tables, &mut batch, &mut replies);
    assert!(batch.len() > 8, "{} fragments", batch.len());
    assert_eq!(worker.capacities(), before);
}

#[test]
fn a_planned_packet_whose_sa_is_missing_does_not_leave_in_the_clear() {
    let without = Snapshot::new(vec![], vec![], Spd::new(vec![]), KeyTable::default(), CodePoints::default());
    let without = without.unwrap();
    for alone in [false, true] {
        let tables = various().current();
        let (mut worker, _reports) = Worker::new(WorkerConfig { alone, ..small(0) });
        let (mut batch, mut replies, mut plan) = (Batch::new(8, 2048), Batch::new(8, 2048), Vec::with_capacity(8));
        // By an SA, bypassed, by an SA.
        for host in [2, 5, 3] {
            let packet = |to: &mut Packet| to.set(&PACKET) && std::mem::replace(&mut to.bytes_mut()[19], host) == 2;
            assert!(batch.push_with(packet));
        }
        worker.plan(&tables, &mut batch, &mut replies, &mut plan);
        assert_eq!(batch.len(), 3);
        worker.seal_planned(&without, &mut batch, &plan);
        assert_eq!(batch.packets().iter().map(|packet| packet.bytes()[19]).collect::<Vec<_>>(), [5]);
        assert_eq!(worker.counters().drops[DropReason::Inconsistent as usize].load(Ordering::Relaxed), 2);
        // They have numbers, and were not sent.
        let counted = |sa: &OutboundSa| (sa.lanes[0].seq.next(), sa.traffic(0).get());
        assert_eq!(
            tables.outbound.iter().map(|sa| counted(sa)).collect::<Vec<_>>(),
            [(2, (0, 0)), (2, (0, 0)), (1, (0, 0))]
        );
    }
}

/// An IPv6 sender cannot send less than 1280 bytes at once (RFC 2473 §7.1).
#[test]
fn ipv6_packets_of_1280_bytes_pass_any_path() {
    for (suite, df) in
        [("aes128gcm16", DfPolicy::Copy), ("aes128gcm16", DfPolicy::Set), ("aes128-sha256", DfPolicy::Copy)]
    {
        let mut keys = KeyTable::default();
        let mut common = common();
        common.outer.df = df;
        let spec = esp::Spec { suite: Suite::parse_esp(suite).unwrap(), ..spec(1) };
        let spec =
            if suite == "aes128gcm16" { spec } else { esp::Spec { enc_key: &[7; 16], integ_key: &[8; 32], ..spec } };
        let sa = esp::outbound(common, &spec, Engine::best(), &mut keys).unwrap();
        sa.set_path_mtu(1280);
        let prefix = AddrRange::from_cidr("2001:db8::".parse().unwrap(), 32).unwrap();
        let ports = PortRange::ANY;
        let selectors = [Selector { src: prefix, dst: prefix, proto: None, src_ports: ports, dst_ports: ports }].into();
        let action = Action::Protect { outbound: 0, inbound: 0 };
        let spd = Spd::new(vec![Policy { name: "v6".into(), selectors, action }]);
        let tables = Snapshot::new(vec![], vec![Arc::new(sa)], spd, keys, CodePoints::default()).unwrap();
        let tables = Publisher::new(tables).current();
        let (mut worker, _reports) = Worker::new(small(0));
        let (mut batch, mut replies) = (Batch::new(8, 2048), Batch::new(8, 2048));
        for len in [1280, 100, 1281, 1280] {
            let mut packet = vec![0; len];
            let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
            Ipv6Header::new(src, dst, IpProto::UDP, len - IPV6_HEADER).unwrap().emit(&mut packet).unwrap();
            UdpHeader::new(1, 2, len - IPV6_HEADER - 8).unwrap().emit(&mut packet[IPV6_HEADER..]).unwrap();
            assert!(batch.push_with(|to| to.set(&packet)));
        }
        worker.outbound(&tables, &mut batch, &mut replies);
        let sent: Vec<IpPacket> = batch.packets().iter().map(|sent| IpPacket::parse(sent.bytes()).unwrap()).collect();
        // The oversized ones come last, and routers may fragment them.
        assert_eq!(sent.iter().map(|ip| ip.dont_fragment).collect::<Vec<_>>(), [true, false, false], "{suite} {df:?}");
        assert!(sent[0].total_len < 300 && sent[1..].iter().all(|ip| ip.total_len > 1280));
        assert_eq!(replies.len(), 1, "to the sender of 1281 bytes");
        assert_eq!(worker.counters().drops[DropReason::TooBig as usize].load(Ordering::Relaxed), 1);
        let ids: Vec<[u8; 2]> = batch.packets()[1..].iter().map(|sent| [sent.bytes()[4], sent.bytes()[5]]).collect();
        assert_ne!(ids[0], ids[1], "fragments need an identification");
    }
}

/// A sink that leaves the packets where they are.
struct Keeps;

impl Sink for Keeps {
    fn outer(&mut self, _: &mut Batch) -> std::io::Result<After> {
        Ok(After::Done)
    }

    fn inner(&mut self, _: &mut Batch) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn packets_left_in_a_slot_do_not_arrive() {
    let tables = tunnel(1500).current();
    let (mut worker, _reports) = Worker::new(small(0));
    let pipeline = Pipeline::new(&PipelineConfig { workers: 2, slots: 2, batch: 8, ..PipelineConfig::default() });
    let mut replies = Batch::new(8, 2048);
    for _ in 0..2 {
        let taken = pipeline.take_inner(&mut worker, &tables, &mut replies, |into| {
            (0..3).for_each(|_| assert!(into.push_with(|to| to.set(&PACKET))));
            Ok::<(), ()>(())
        });
        assert_eq!(taken, Ok(Some(true)));
    }
    while pipeline.work(&mut worker, &mut Keeps).unwrap() {}
    assert_eq!(pipeline.in_use(), 0);
    // One packet for each of the two workers, of unknown SAs.
    let mut arrivals = Batch::new(8, 2048);
    for spi in [0x20, 0x21] {
        let mut packet = [0; 60];
        packet[..20].copy_from_slice(&PACKET[..20]);
        (packet[3], packet[9], packet[22], packet[23]) = (60, 50, 1, spi);
        assert!(arrivals.push_with(|to| to.set(&packet)));
    }
    pipeline.take_outer(&mut worker, &tables, &mut arrivals);
    while pipeline.work(&mut worker, &mut Keeps).unwrap() {}
    let drops = &worker.counters().drops;
    assert_eq!(drops.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>(), 2);
    assert_eq!(drops[DropReason::NoSa as usize].load(Ordering::Relaxed), 2);
}

#[test]
fn a_core_without_an_sa_of_its_own_has_the_common_one_and_a_trap() {
    let current = tunnel(1500).current();
    let sa = Arc::clone(&current.outbound[0]);
    let protect = spd(Action::Protect { outbound: 0, inbound: 0 });
    let sas = vec![Arc::clone(&sa), sa];
    let mut tables = Snapshot::new(vec![], sas, protect, KeyTable::default(), CodePoints::default()).unwrap();
    tables.per_core = vec![PerCoreSas { slot: 0, by_core: vec![None, Some(1)], trap: 9 }];
    assert_eq!(tables.on_core(0, 0), (0, Some(9)));
    assert_eq!(tables.on_core(0, 1), (1, None));
    assert_eq!(tables.on_core(0, 2), (0, None));
    assert_eq!(tables.on_core(1, 0), (1, None));
}

/// Two SAs with a template, one of them of a narrow path, one without; bypass, drop, and no policy.
fn various() -> Publisher {
    let mut keys = KeyTable::default();
    let sas = [("aes128gcm16", 1500), ("aes128gcm16", 600), ("aes128-sha1", 1500)].into_iter().zip(0x1001..);
    let sas = sas.map(|((suite, path_mtu), spi)| {
        let suite = Suite::parse_esp(suite).unwrap();
        let enc_key = &[7; 36][..suite.enc_material_len()];
        let integ_key = &[8; 64][..suite.integ_material_len()];
        let spec = esp::Spec { spi: spi.try_into().unwrap(), suite, enc_key, integ_key, ..spec(1) };
        let sa = esp::outbound(common(), &spec, Engine::AwsLc, &mut keys).unwrap();
        sa.set_path_mtu(path_mtu);
        Arc::new(sa)
    });
    let sas: Vec<_> = sas.collect();
    let protect = |outbound| Action::Protect { outbound, inbound: 0 };
    let actions = [protect(0), protect(1), protect(2), Action::Bypass, Action::Drop];
    let policies = actions.into_iter().zip(2..).map(|(action, host)| {
        let (any, dst) = ([192, 0, 2, 0].into(), [192, 0, 2, host].into());
        let selector = Selector::between(AddrRange::from_cidr(any, 24).unwrap(), AddrRange { start: dst, end: dst });
        Policy { name: "one".into(), selectors: [selector].into(), action }
    });
    let spd = Spd::new(policies.collect());
    Publisher::new(Snapshot::new(vec![], sas, spd, keys, CodePoints::default()).unwrap())
}

/// Packets in runs, of several flows to several destinations, of few lengths and kinds.
fn packets() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let len = prop::sample::select(vec![28usize, 28, 60, 61, 700]);
    // Packets of protocol 0 have addresses and ports of zeros, too.
    let proto = prop::sample::select(vec![17u8, 17, 17, 6, 1, 0]);
    let one = (2u8..8, 0u8..3, len, proto, any::<bool>(), any::<u8>(), 0usize..3, 1usize..6);
    let run = one.prop_map(|(dst, port, len, proto, tos, id, behind, times)| {
        let mut packet = PACKET.to_vec();
        packet.resize(len + if id & 7 == 0 { behind } else { 0 }, id);
        (packet[1], packet[5], packet[6], packet[9]) = (u8::from(tos) << 3, id, 0x40, proto);
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        (packet[19], packet[23]) = (dst, port);
        if proto == 0 {
            packet[12..].fill(0);
        }
        vec![packet; times]
    });
    prop::collection::vec(run, 1..24).prop_map(|runs| runs.concat())
}

/// What leaves a worker, and what it counted: drops by reason, packets and bytes by SA.
type Left = (Vec<Vec<u8>>, Vec<u64>, Vec<(u64, u64)>);

/// Where the halves of the path run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Halves {
    /// On one worker, chunk by chunk.
    Joined,
    /// On two workers.
    Split,
    /// On one worker, with an asynchronous engine between them.
    Async,
}

impl Halves {
    const ALL: [Self; 3] = [Self::Joined, Self::Split, Self::Async];
}

impl From<bool> for Halves {
    fn from(split: bool) -> Self {
        if split { Self::Split } else { Self::Joined }
    }
}

/// Sends `packets` in batches of `most`.
fn send(packets: &[Vec<u8>], most: usize, halves: Halves) -> Left {
    let tables = various().current();
    let alone = !matches!(halves, Halves::Split);
    let config = |core| WorkerConfig { engine: Engine::AwsLc, batch: 128, alone, ..small(core) };
    let (left, drops) = send_by(&tables, [config(0), config(1)], packets, most, halves);
    let sas = tables.outbound.iter().map(|sa| (sa.common.counters.packets(), sa.common.counters.bytes())).collect();
    (left, drops, sas)
}

/// Sends `packets` in batches of `most` by a worker, or by two. Returns what leaves, and drops by
/// reason.
fn send_by(
    tables: &Arc<Snapshot>,
    workers: [WorkerConfig; 2],
    packets: &[Vec<u8>],
    most: usize,
    halves: Halves,
) -> (Vec<Vec<u8>>, Vec<u64>) {
    let [(mut worker, _), (mut other, _)] = workers.map(Worker::new);
    let (mut batch, mut replies) = (Batch::with_reserve(128, 256, 2048), Batch::new(128, 2048));
    let (mut plan, mut left) = (Vec::with_capacity(384), Vec::new());
    let mut device = None;
    for packets in packets.chunks(most) {
        packets.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
        match halves {
            Halves::Joined => worker.outbound(tables, &mut batch, &mut replies),
            Halves::Split => {
                worker.plan(tables, &mut batch, &mut replies, &mut plan);
                other.seal_planned(tables, &mut batch, &plan);
            }
            Halves::Async => {
                let device = device.get_or_insert_with(asynchronous::Device::usual);
                left.extend(device.outbound(&mut worker, tables, &mut batch, &mut replies));
            }
        }
        left.extend(batch.packets().iter().map(|packet| packet.bytes().to_vec()));
        batch.clear();
        replies.clear();
    }
    let drops = [worker.counters(), other.counters()].map(|counters| {
        let drops = counters.drops.iter().map(|drop| drop.load(Ordering::Relaxed));
        drops.collect::<Vec<_>>()
    });
    (left, drops[0].iter().zip(&drops[1]).map(|(a, b)| a + b).collect())
}

/// The receiver of [`various`]: SA 0 and 2 for the packets that they protect, and SA 0 for those of
/// SA 1 too, which therefore must not come in; bypass, drop, and no policy.
fn receiver() -> Publisher {
    let mut keys = KeyTable::default();
    let sas = ["aes128gcm16", "aes128gcm16", "aes128-sha1"].into_iter().zip(0x1001..).map(|(suite, spi)| {
        let suite = Suite::parse_esp(suite).unwrap();
        let enc_key = &[7; 36][..suite.enc_material_len()];
        let integ_key = &[8; 64][..suite.integ_material_len()];
        let spec = esp::Spec { spi: spi.try_into().unwrap(), suite, enc_key, integ_key, ..spec(0) };
        let mut common = common();
        common.outer.peer = common.outer.peer.reversed();
        Arc::new(esp::inbound(common, &spec, Engine::AwsLc, &mut keys).unwrap())
    });
    let sas: Vec<_> = sas.collect();
    let protect = |inbound| Action::Protect { outbound: 0, inbound };
    let actions = [protect(0), protect(0), protect(2), Action::Bypass, Action::Drop];
    let policies = actions.into_iter().zip(2..).map(|(action, host)| {
        let (any, here) = ([192, 0, 2, 0].into(), [192, 0, 2, host].into());
        let selector = Selector::between(AddrRange { start: here, end: here }, AddrRange::from_cidr(any, 24).unwrap());
        Policy { name: "one".into(), selectors: [selector].into(), action }
    });
    let spd = Spd::new(policies.collect());
    Publisher::new(Snapshot::new(sas, vec![], spd, keys, CodePoints::default()).unwrap())
}

/// Receives `packets` in batches of `most`.
fn receive(packets: &[Vec<u8>], most: usize, halves: Halves) -> Left {
    let tables = receiver().current();
    let config = |core| WorkerConfig { engine: Engine::AwsLc, batch: 128, ..small(core) };
    let (mut worker, _reports) = Worker::new(config(0));
    let (mut other, _reports) = Worker::new(config(1));
    let (mut batch, mut opened, mut left) = (Batch::new(128, 2048), Opened::with_capacity(128), Vec::new());
    let mut device = None;
    for packets in packets.chunks(most) {
        packets.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
        match halves {
            Halves::Joined => worker.inbound(&tables, &mut batch),
            Halves::Split => {
                other.open(&tables, &mut batch, &mut opened);
                worker.admit(&tables, &mut batch, &mut opened);
            }
            Halves::Async => {
                let device = device.get_or_insert_with(asynchronous::Device::usual);
                left.extend(device.inbound(&mut worker, &tables, &mut batch));
            }
        }
        left.extend(batch.packets().iter().map(|packet| packet.bytes().to_vec()));
        batch.clear();
    }
    let drops = |worker: &Worker| worker.counters().drops.each_ref().map(|drop| drop.load(Ordering::Relaxed));
    let drops = drops(&worker).iter().zip(drops(&other)).map(|(a, b)| a + b).collect();
    let sas = tables.sad.iter().map(|sa| (sa.common.counters.packets(), sa.common.counters.bytes())).collect();
    (left, drops, sas)
}

/// Changes protected packets on their way: some are lost, repeated, overtaken, forged, cut off or
/// of an unknown SPI.
fn disturb(packets: Vec<Vec<u8>>, by: &[(u8, u16)]) -> Vec<Vec<u8>> {
    let mut arrived: Vec<Vec<u8>> = Vec::new();
    for (packet, (what, at)) in packets.into_iter().zip(by.iter().cycle()) {
        let (mut packet, at) = (packet, usize::from(*at));
        match what {
            0 => continue,
            // A packet that was forged as well would have another reason in another batch.
            1 => arrived.push(packet.clone()),
            2 => {
                // After the sequence number, for the same reason.
                let at = (28 + at % packet.len()).min(packet.len() - 1);
                packet[at] ^= 1;
            }
            3 => packet.truncate(at % packet.len()),
            4 => packet[21] ^= 1,
            5 => packet.extend([7; 3]),
            _ => {}
        }
        arrived.push(packet);
        let last = arrived.len() - 1;
        if *what == 6 && last > 0 {
            arrived.swap(last - 1, last);
        }
    }
    arrived
}

#[test]
fn replays_and_forged_packets_of_one_chunk_do_not_come_in() {
    let mut packet = PACKET;
    let sealed = [1, 2, 3].map(|n| {
        packet[27] = n;
        packet
    });
    let sealed = send(&sealed.map(|packet| packet.to_vec()), 8, Halves::Joined).0;
    let [one, two, three] = &sealed[..] else { panic!("{} packets", sealed.len()) };
    let mut forged = three.clone();
    forged[40] ^= 1;
    // A replay, and a packet of another SA than the policy names.
    let mut wrong = PACKET;
    wrong[19] = 3;
    let wrong = send(&[wrong.to_vec()], 8, Halves::Joined).0.remove(0);
    let arrived = [one, one, &forged, two, &wrong, two, three].map(Clone::clone);
    for split in Halves::ALL {
        let (left, drops, sas) = receive(&arrived, 8, split);
        assert_eq!(left.iter().map(|packet| packet[27]).collect::<Vec<_>>(), [1, 2, 3], "{split:?}");
        let count = |why: DropReason| drops[why as usize];
        let reasons = [DropReason::Replay, DropReason::BadIcv, DropReason::PolicyMismatch].map(count);
        assert_eq!((reasons, drops.iter().sum()), ([2, 1, 1], 4), "{split:?}");
        assert_eq!(sas, [(3, 84), (0, 0), (0, 0)], "{split:?}");
    }
}

#[test]
fn a_flow_that_came_in_is_checked_again_in_another_sa() {
    let sealed = |spi: u32, count: usize| -> Vec<Vec<u8>> {
        let mut keys = KeyTable::default();
        let sa =
            esp::outbound(common(), &esp::Spec { spi: spi.try_into().unwrap(), ..spec(1) }, Engine::AwsLc, &mut keys)
                .unwrap();
        let protect = spd(Action::Protect { outbound: 0, inbound: 0 });
        let tables = Snapshot::new(vec![], vec![Arc::new(sa)], protect, keys, CodePoints::default()).unwrap();
        let (mut worker, _reports) = Worker::new(WorkerConfig { engine: Engine::AwsLc, ..small(0) });
        let (mut batch, mut replies) = (Batch::new(count, 2048), Batch::new(1, 2048));
        (0..count).for_each(|_| assert!(batch.push_with(|to| to.set(&PACKET))));
        worker.outbound(&Publisher::new(tables).current(), &mut batch, &mut replies);
        batch.packets().iter().map(|packet| packet.bytes().to_vec()).collect()
    };
    let (ours, others) = (sealed(0x1001, 6), sealed(0x1002, 3));
    let arrived = [&ours[0], &others[0], &ours[1], &ours[2], &others[1], &others[2], &ours[3], &ours[4], &ours[5]];
    let sizes = [1, 2, 9].map(|most| (most, Halves::Joined));
    for (most, split) in sizes.into_iter().chain(Halves::ALL.map(|halves| (9, halves))) {
        let (left, drops, sas) = receive(&arrived.map(Clone::clone), most, split);
        assert_eq!((left.len(), drops[DropReason::PolicyMismatch as usize]), (6, 3), "{most} {split:?}");
        assert_eq!((sas[0].0, sas[1]), (6, (0, 0)), "{most} {split:?}");
    }
}

/// Multi-buffer engines get chunks of 64 packets, from the second chunk of an SA on.
#[test]
fn long_chunks_lose_nothing_and_let_nothing_forged_in() {
    let engines = [Engine::AwsLc, Engine::best()];
    for (engine, suite) in
        engines.into_iter().flat_map(|e| ["aes128-sha1", "aes256-sha512", "aes128gcm16"].map(|s| (e, s)))
    {
        let parsed = Suite::parse_esp(suite).unwrap();
        let (enc_key, integ_key) = (&[7; 36][..parsed.enc_material_len()], &[8; 64][..parsed.integ_material_len()]);
        let spec = |first_seq| esp::Spec { suite: parsed, enc_key, integ_key, window: 1024, ..spec(first_seq) };
        let (mut keys, mut their_keys) = (KeyTable::default(), KeyTable::default());
        let out = esp::outbound(common(), &spec(1), engine, &mut keys).unwrap();
        let mut there = common();
        there.outer.peer = there.outer.peer.reversed();
        let inn = esp::inbound(there, &spec(0), engine, &mut their_keys).unwrap();
        let protect = || spd(Action::Protect { outbound: 0, inbound: 0 });
        let sending = Snapshot::new(vec![], vec![Arc::new(out)], protect(), keys, CodePoints::default()).unwrap();
        let receiving = Snapshot::new(vec![Arc::new(inn)], vec![], protect(), their_keys, CodePoints::default());
        let (sending, receiving) = (Publisher::new(sending).current(), Publisher::new(receiving.unwrap()).current());
        let config = WorkerConfig { engine, batch: 256, ..small(0) };
        let ((mut sender, _), (mut receiver, _)) = (Worker::new(config.clone()), Worker::new(config));
        let (mut batch, mut replies) = (Batch::new(256, 2048), Batch::new(8, 2048));
        let mut forged = 0;
        for count in [1, 200, 15, 16, 17, 63, 64, 65, 127, 129, 256] {
            for n in 0..count {
                assert!(
                    batch.push_with(|to| to.set(&PACKET) && std::mem::replace(&mut to.bytes_mut()[27], n as u8) == 0)
                );
            }
            sender.outbound(&sending, &mut batch, &mut replies);
            assert_eq!(batch.len(), count, "{suite}");
            // In the body or the ICV.
            let is_forged = |n: usize| n % 7 == 3;
            for (n, packet) in batch.packets_mut().iter_mut().enumerate().filter(|(n, _)| is_forged(*n)) {
                let at = packet.len() - 1 - n % 24;
                packet.bytes_mut()[at] ^= 1;
                forged += 1;
            }
            receiver.inbound(&receiving, &mut batch);
            let expected: Vec<u8> = (0..count).filter(|n| !is_forged(*n)).map(|n| n as u8).collect();
            let arrived: Vec<u8> = batch.packets().iter().map(|packet| packet.bytes()[27]).collect();
            assert_eq!(arrived, expected, "{suite} {count}");
            batch.clear();
        }
        let dropped = receiver.counters().drops[DropReason::BadIcv as usize].load(Ordering::Relaxed);
        assert_eq!(dropped, forged, "{suite}");
    }
}

/// As of so many SAs that what they need is prefetched.
#[test]
fn each_of_many_sas_protects_and_opens_its_own_packets() {
    const SAS: u8 = 150;
    let any = AddrRange::from_cidr([192, 0, 2, 0].into(), 24).unwrap();
    let host = |n: u8| AddrRange { start: [192, 0, 3, n].into(), end: [192, 0, 3, n].into() };
    let policies = |local: fn(AddrRange, AddrRange) -> Selector| {
        let one = |n: u8| {
            let action = Action::Protect { outbound: n.into(), inbound: n.into() };
            Policy { name: "one".into(), selectors: [local(any, host(n))].into(), action }
        };
        Spd::new((0..SAS).map(one).collect())
    };
    let (mut keys, mut their_keys) = (KeyTable::default(), KeyTable::default());
    let spec = |n: u8, first_seq| esp::Spec { spi: (0x1001 + u32::from(n)).try_into().unwrap(), ..spec(first_seq) };
    let out = (0..SAS).map(|n| esp::outbound(common(), &spec(n, 1), Engine::AwsLc, &mut keys).unwrap());
    let out = out.map(Arc::new).collect();
    let inn = (0..SAS).map(|n| {
        let mut common = common();
        common.outer.peer = common.outer.peer.reversed();
        Arc::new(esp::inbound(common, &spec(n, 0), Engine::AwsLc, &mut their_keys).unwrap())
    });
    let inn = inn.collect();
    let sending = policies(Selector::between);
    let mut sending = Snapshot::new(vec![], out, sending, keys, CodePoints::default()).unwrap();
    let receiving = policies(|any, host| Selector::between(host, any));
    let mut receiving = Snapshot::new(inn, vec![], receiving, their_keys, CodePoints::default()).unwrap();
    for tables in [&mut sending, &mut receiving] {
        assert!(!tables.long_chunks && !tables.many_sas, "long chunks end before prefetches begin");
        tables.many_sas = true;
    }
    let (sending, receiving) = (Publisher::new(sending).current(), Publisher::new(receiving).current());
    let config = WorkerConfig { engine: Engine::AwsLc, batch: 128, alone: true, ..small(0) };
    let ((mut sender, _), (mut receiver, _)) = (Worker::new(config.clone()), Worker::new(config));
    let (mut batch, mut replies) = (Batch::new(128, 2048), Batch::new(8, 2048));
    let hosts: Vec<u8> = (0..300u32).map(|n| (n * 7 % 151) as u8).collect();
    for hosts in hosts.chunks(100) {
        for host in hosts {
            let packet = |to: &mut Packet| to.set(&PACKET) && std::mem::replace(&mut to.bytes_mut()[18], 3) == 2;
            assert!(batch.push_with(packet));
            batch.packets_mut().last_mut().unwrap().bytes_mut()[19] = *host;
        }
        sender.outbound(&sending, &mut batch, &mut replies);
        // Host 150 has no policy.
        let hosts: Vec<u8> = hosts.iter().copied().filter(|host| *host < SAS).collect();
        let spis: Vec<u8> = batch.packets().iter().map(|packet| packet.bytes()[23].wrapping_sub(1)).collect();
        assert_eq!(spis, hosts);
        receiver.inbound(&receiving, &mut batch);
        assert_eq!(batch.packets().iter().map(|packet| packet.bytes()[19]).collect::<Vec<_>>(), hosts);
        batch.clear();
    }
    let drops = |worker: &Worker, why: DropReason| worker.counters().drops[why as usize].load(Ordering::Relaxed);
    assert_eq!(drops(&sender, DropReason::NoPolicy), hosts.iter().filter(|host| **host == SAS).count() as u64);
    assert!(receiving.sad.iter().all(|sa| matches!(sa.common.counters.packets(), 1 | 2)));
    let sent = |sa: &OutboundSa| (sa.common.counters.packets(), sa.lanes[0].seq.next() - 1);
    assert!(sending.outbound.iter().all(|sa| matches!(sent(sa), (1, 1) | (2, 2))));
}

/// They are counted with their numbers, before the engine has them.
#[test]
fn packets_are_counted_unless_the_engine_cannot_seal_them() {
    let long = [&PACKET[..3], &[29], &PACKET[4..], &[0]].concat();
    let (short, long) = (&PACKET[..], &long[..]);
    let batches = [vec![short], vec![short; 3], vec![short, long], vec![long, short, long]];
    for (packets, alone, has_key) in batches.iter().flat_map(|packets| {
        [(packets, false, false), (packets, false, true), (packets, true, false), (packets, true, true)]
    }) {
        let mut keys = KeyTable::default();
        let sa = esp::outbound(common(), &spec(1), Engine::AwsLc, &mut keys).unwrap();
        let keys = if has_key { keys } else { KeyTable::default() };
        let protect = spd(Action::Protect { outbound: 0, inbound: 0 });
        let tables = Snapshot::new(vec![], vec![Arc::new(sa)], protect, keys, CodePoints::default()).unwrap();
        let tables = Publisher::new(tables).current();
        let (mut worker, _reports) = Worker::new(WorkerConfig { alone, engine: Engine::AwsLc, ..small(0) });
        let (mut batch, mut replies) = (Batch::new(8, 2048), Batch::new(8, 2048));
        packets.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
        worker.outbound(&tables, &mut batch, &mut replies);
        let (sent, bytes) = if has_key { (packets.len(), packets.concat().len()) } else { (0, 0) };
        let (sa, drops) = (&tables.outbound[0], &worker.counters().drops);
        let counted = (sa.common.counters.packets(), sa.common.counters.bytes());
        assert_eq!((batch.len(), counted), (sent, (sent as u64, bytes as u64)), "{alone} {packets:?}");
        assert_eq!(sa.lanes[0].seq.next(), 1 + packets.len() as u64);
        assert_eq!(drops[DropReason::NoKey as usize].load(Ordering::Relaxed), (packets.len() - sent) as u64);
    }
}

#[test]
fn packets_without_a_result_of_an_engine_do_not_come_in() {
    let tables = receiver().current();
    let (mut worker, _reports) = Worker::new(small(0));
    let sealed = send(&[PACKET.to_vec(), PACKET.to_vec()], 8, Halves::Joined).0;
    let (mut batch, mut opened) = (Batch::new(8, 2048), Opened::with_capacity(8));
    sealed.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
    worker.open(&tables, &mut batch, &mut opened);
    // One more than was opened, in the clear and of a flow that has an SA.
    assert!(batch.push_with(|to| to.set(&PACKET)));
    worker.admit(&tables, &mut batch, &mut opened);
    assert_eq!(batch.packets().iter().map(Packet::bytes).collect::<Vec<_>>(), [PACKET; 2]);
    assert_eq!(worker.counters().drops[DropReason::Inconsistent as usize].load(Ordering::Relaxed), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn packets_arrive_in_a_batch_as_they_would_alone(
        packets in packets(), by in prop::collection::vec((0u8..24, any::<u16>()), 1..40),
    ) {
        let arrived = disturb(send(&packets, 128, Halves::Joined).0, &by);
        let alone = receive(&arrived, 1, Halves::Joined);
        prop_assert_eq!(alone.2[1], (0, 0), "the policies name another SA");
        prop_assert_eq!(&receive(&arrived, 128, Halves::Joined), &alone);
        prop_assert_eq!(&receive(&arrived, 128, Halves::Split), &alone);
        prop_assert_eq!(&receive(&arrived, 21, Halves::Split), &alone);
        prop_assert_eq!(&receive(&arrived, 128, Halves::Async), &alone);
        prop_assert_eq!(&receive(&arrived, 21, Halves::Async), &alone);
    }

    #[test]
    fn packets_leave_a_batch_as_they_would_alone(packets in packets()) {
        let alone = send(&packets, 1, Halves::Joined);
        prop_assert_eq!(&send(&packets, 128, Halves::Joined), &alone);
        prop_assert_eq!(&send(&packets, 128, Halves::Split), &alone);
        prop_assert_eq!(&send(&packets, 21, Halves::Split), &alone);
        prop_assert_eq!(&send(&packets, 128, Halves::Async), &alone);
        prop_assert_eq!(&send(&packets, 21, Halves::Async), &alone);
    }
}
