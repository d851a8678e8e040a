//! One worker with whole tables, without ports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crypto::{Engine, KeyTable, Suite};
use ipsec::DropReason;
use ipsec::{Action, DfPolicy, DscpPolicy, Lifetime, Mode, Outer, Peer, Policy, SaCommon, Spd, esp};
use wire::registry::CodePoints;
use wire::{AddrRange, PortRange, Selector};

use crate::{
    After, Batch, Packet, PerCoreSas, Pipeline, PipelineConfig, Publisher, Sink, Snapshot, UnconfirmedSa, Worker,
    WorkerConfig,
};

const PACKET: [u8; 28] = [0x45, 0, 0, 28, 0, 1, 0, 0, 9, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0, 1, 0, 2, 0, 8, 0, 0];

fn spd(action: Action) -> Spd {
    let any = AddrRange::from_cidr([192, 0, 2, 0].into(), 24).unwrap();
    let ports = PortRange::ANY;
    let selectors = vec![Selector { src: any, dst: any, proto: None, src_ports: ports, dst_ports: ports }];
    Spd::new(vec![Policy { name: "all".into(), selectors, action }])
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

fn spec(first_seq: u64) -> esp::Spec<'static> {
    esp::Spec {
        spi: 0x1001,
        suite: Suite::parse_esp("aes128gcm16").unwrap(),
        enc_key: &[7; 20],
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
    worker.seal_planned(&tables, &mut batch, &plan, 0);
    assert_eq!(batch.packets().iter().map(Packet::len).collect::<Vec<_>>(), [batch.packets()[0].len(); 2]);
    assert!(batch.packets()[0].len() > PACKET.len());
    assert_eq!(worker.counters().drops[DropReason::Inconsistent as usize].load(Ordering::Relaxed), 3);
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
