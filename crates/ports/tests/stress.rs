//! Two gateways on two workers each, while SAs are re-keyed, tables swapped and cores taken away:
//! every packet arrives, in order within its flow, by a number in its payload.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crypto::{Engine, KeyTable, Suite};
use dataplane::{Batch, PerCoreSas, Port, Publisher, Scheduler, Snapshot, Totals, WorkerConfig};
use ipsec::{
    Action, DfPolicy, DscpPolicy, InboundSa, Lifetime, Mode, OutboundSa, Outer, Peer, Policy, SaCommon, Spd, esp,
};
use ports::{Links, Runner};
use wire::registry::CodePoints;
use wire::{AddrRange, PortRange, Selector};

const WORKERS: usize = 2;
/// Flows of each worker.
const FLOWS: usize = 4;
/// Limit of packets in flight.
const UNDER_WAY: usize = 256;
const OUTER: [[u8; 4]; 2] = [[192, 0, 2, 1], [192, 0, 2, 2]];

/// An ordered queue of packets with several producers.
#[derive(Clone, Default)]
struct Cable(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Cable {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl Port for Cable {
    fn rx(&mut self, into: &mut Batch) -> io::Result<()> {
        let mut cable = self.0.lock().unwrap();
        while into.room() > 0 {
            let Some(bytes) = cable.pop_front() else { break };
            assert!(into.push_with(|packet| packet.set(&bytes)));
        }
        Ok(())
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        let mut cable = self.0.lock().unwrap();
        cable.extend(from.packets().iter().map(|packet| packet.bytes().to_vec()));
        from.clear();
        Ok(())
    }
}

/// A port that never has anything, and swallows what it gets.
struct Nothing;

impl Port for Nothing {
    fn rx(&mut self, _: &mut Batch) -> io::Result<()> {
        Ok(())
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        panic!("{} packets went the wrong way", from.len())
    }
}

/// An SA in both tables, with its keys.
struct Generation {
    outbound: Vec<Arc<OutboundSa>>,
    inbound: Vec<Arc<InboundSa>>,
}

struct Tables {
    out_keys: KeyTable,
    in_keys: KeyTable,
    generations: Vec<Generation>,
    per_cpu: bool,
}

impl Tables {
    fn new(per_cpu: bool) -> Self {
        let mut tables =
            Self { out_keys: KeyTable::default(), in_keys: KeyTable::default(), generations: vec![], per_cpu };
        tables.rekey();
        tables
    }

    /// A new SA, or one for each CPU, which the same workers own as those before.
    fn rekey(&mut self) {
        let generation = self.generations.len();
        let count = if self.per_cpu { WORKERS } else { 1 };
        let (mut outbound, mut inbound) = (vec![], vec![]);
        for core in 0..count {
            let suite = Suite::parse_esp("aes128gcm16").unwrap();
            let key = [(1 + generation * WORKERS + core) as u8; 20];
            let spec = esp::Spec {
                spi: ((0x1000 + generation * WORKERS + core) as u32).try_into().unwrap(),
                suite,
                enc_key: &key,
                integ_key: &[],
                esn: true,
                window: 2048,
                first_seq: 1,
                persistent: false,
                tfc_padding: false,
                iv: esp::CbcIv::Encrypted,
            };
            let receive = esp::Spec { first_seq: 0, ..spec };
            let sa = esp::outbound(common(OUTER), &spec, Engine::best(), &mut self.out_keys).unwrap();
            sa.set_path_mtu(1500);
            outbound.push(Arc::new(sa));
            let there = common([OUTER[1], OUTER[0]]);
            inbound.push(Arc::new(esp::inbound(there, &receive, Engine::best(), &mut self.in_keys).unwrap()));
        }
        self.generations.push(Generation { outbound, inbound });
    }

    /// The newest SAs protect.
    fn sender(&self) -> Snapshot {
        let outbound = self.generations.last().unwrap().outbound.clone();
        let slots = outbound.len() as u32;
        let mut snapshot = snapshot(vec![], outbound, &self.out_keys, [10, 1]);
        if self.per_cpu {
            snapshot.per_core = vec![PerCoreSas { slot: 0, by_core: (0..slots).map(Some).collect(), trap: 0 }];
        }
        snapshot
    }

    /// All of them open.
    fn receiver(&self) -> Snapshot {
        let inbound: Vec<_> = self.generations.iter().flat_map(|one| one.inbound.iter().cloned()).collect();
        let groups = vec![0; inbound.len()];
        let mut snapshot = snapshot(inbound, vec![], &self.in_keys, [10, 2]);
        snapshot.groups = groups;
        snapshot
    }
}

fn common([local, remote]: [[u8; 4]; 2]) -> SaCommon {
    let outer = Outer {
        peer: Peer { local: local.into(), remote: remote.into() },
        hop_limit: 64,
        dscp: DscpPolicy::Copy,
        ecn: true,
        df: DfPolicy::Set,
        udp: None,
        udp_checksum: false,
    };
    SaCommon::new("stress", Mode::Tunnel, outer, Lifetime::NONE)
}

fn snapshot(
    inbound: Vec<Arc<InboundSa>>,
    outbound: Vec<Arc<OutboundSa>>,
    keys: &KeyTable,
    [a, b]: [u8; 2],
) -> Snapshot {
    let site = |b| AddrRange::from_cidr(IpAddr::from([a, b, 0, 0]), 16).unwrap();
    let (here, there) = if b == 1 { (site(1), site(2)) } else { (site(2), site(1)) };
    let ports = PortRange::ANY;
    let selectors = [Selector { src: here, dst: there, proto: None, src_ports: ports, dst_ports: ports }].into();
    let action = Action::Protect { outbound: 0, inbound: 0 };
    let spd = Spd::new(vec![Policy { name: "sites".into(), selectors, action }]);
    let mut copy = KeyTable::default();
    (0..).map_while(|id| keys.shared(crypto::KeyId(id))).for_each(|key| {
        copy.insert(key);
    });
    Snapshot::new(inbound, outbound, spd, copy, CodePoints::default()).unwrap()
}

fn packet(flow: usize, number: u32) -> Vec<u8> {
    let mut packet = vec![0; 28 + 8 + 40 * (flow % 3)];
    let len = packet.len() as u16;
    (packet[0], packet[8], packet[9]) = (0x45, 64, 17);
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[12..20].copy_from_slice(&[10, 1, 0, 1, 10, 2, 0, 1]);
    packet[20..24].copy_from_slice(&[4, flow as u8, 4, 0]);
    packet[24..26].copy_from_slice(&(len - 20).to_be_bytes());
    let sum = wire::checksum::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[28..32].copy_from_slice(&(flow as u32).to_be_bytes());
    packet[32..36].copy_from_slice(&number.to_be_bytes());
    packet
}

fn config(core: usize, scheduler: Scheduler) -> WorkerConfig {
    // Several groups for the crypto threads, because a worker keeps a lone one.
    let batch = if scheduler == Scheduler::Async { 64 } else { 16 };
    WorkerConfig { core, batch, reassembly: 1, derived_keys: 32, held: 4, ..WorkerConfig::default() }
}

struct Story {
    tables: Tables,
    inner: Vec<Cable>,
    delivered: Cable,
    published: [Publisher; 2],
    gateways: [Runner; 2],
    sent: Vec<u32>,
    got: Vec<u32>,
}

impl Story {
    fn new(scheduler: Scheduler, per_cpu: bool) -> Self {
        let tables = Tables::new(per_cpu);
        let (inner, wire, delivered) =
            ((0..WORKERS).map(|_| Cable::default()).collect::<Vec<_>>(), Cable::default(), Cable::default());
        let published = [Publisher::new(tables.sender()), Publisher::new(tables.receiver())];
        let left = (0..WORKERS)
            .map(|core| {
                let inner = Box::new(inner[core].clone());
                (config(core, scheduler), Links { inner, outer_rx: vec![], outer_tx: Box::new(wire.clone()) })
            })
            .collect();
        let right = (0..WORKERS)
            .map(|core| {
                let outer_rx: Vec<Box<dyn Port + Send>> = if core == 0 { vec![Box::new(wire.clone())] } else { vec![] };
                let inner = Box::new(Delivery(delivered.clone()));
                (config(core, scheduler), Links { inner, outer_rx, outer_tx: Box::new(Nothing) })
            })
            .collect();
        let gateways = [
            Runner::start_with(left, published[0].clone(), scheduler).unwrap(),
            Runner::start_with(right, published[1].clone(), scheduler).unwrap(),
        ];
        let flows = || vec![0; WORKERS * FLOWS];
        Self { tables, inner, delivered, published, gateways, sent: flows(), got: flows() }
    }

    fn under_way(&self) -> usize {
        self.sent.iter().zip(&self.got).map(|(sent, got)| (sent - got) as usize).sum()
    }

    /// Sends up to the limit in flight, and receives arrived packets.
    fn carry_on(&mut self, sending: bool) {
        for flow in 0..if sending { self.sent.len() } else { 0 } {
            let cable = &self.inner[flow % WORKERS];
            if self.under_way() < UNDER_WAY && cable.len() < UNDER_WAY {
                cable.0.lock().unwrap().push_back(packet(flow, self.sent[flow]));
                self.sent[flow] += 1;
            }
        }
        for bytes in self.delivered.0.lock().unwrap().drain(..) {
            let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            let flow = word(28) as usize;
            assert_eq!(word(32), self.got[flow], "flow {flow} is out of order, or a packet of it was lost");
            self.got[flow] += 1;
        }
        std::thread::yield_now();
    }

    fn go_on_for(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.carry_on(true);
        }
    }

    /// The peer has the new SA before it is used, as IKE has it.
    fn rekey(&mut self) {
        self.tables.rekey();
        self.swap_tables();
    }

    fn swap_tables(&mut self) {
        self.published[1].publish(self.tables.receiver());
        self.published[0].publish(self.tables.sender());
    }

    fn end(mut self) -> [Totals; 2] {
        let start = Instant::now();
        while self.under_way() > 0 {
            self.carry_on(false);
            let drops = |runner: &Runner| Totals::of(runner.counters().iter().map(|core| &**core));
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{} packets are missing; {:?}",
                self.under_way(),
                self.gateways.each_ref().map(drops)
            );
        }
        assert!(self.sent.iter().all(|sent| *sent > 20), "too few packets to tell anything: {:?}", self.sent);
        self.gateways.map(|runner| {
            let totals = Totals::of(runner.counters().iter().map(|core| &**core));
            runner.stop().unwrap();
            totals
        })
    }
}

/// The inner side of the receiver: packets arrive there and none come.
struct Delivery(Cable);

impl Port for Delivery {
    fn rx(&mut self, _: &mut Batch) -> io::Result<()> {
        Ok(())
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        self.0.tx(from)
    }
}

fn totals(scheduler: Scheduler, per_cpu: bool) -> [Totals; 2] {
    const WHILE: Duration = Duration::from_millis(60);
    let mut story = Story::new(scheduler, per_cpu);
    story.go_on_for(WHILE);
    for _ in 0..4 {
        story.rekey();
        story.go_on_for(WHILE / 4);
        story.swap_tables();
        story.go_on_for(WHILE / 4);
    }
    for gateway in 0..2 {
        assert!(story.gateways[gateway].retire(1 - gateway).unwrap());
        assert_eq!(story.gateways[gateway].threads().count(), 1);
        assert!(!story.gateways[gateway].retire(0).unwrap(), "the last thread stays");
        story.go_on_for(WHILE);
        story.rekey();
        story.go_on_for(WHILE / 2);
        assert!(story.gateways[gateway].restore(1 - gateway).unwrap());
        assert_eq!(story.gateways[gateway].threads().count(), 2);
        story.go_on_for(WHILE / 2);
        if gateway == 1 {
            assert!(story.gateways[gateway].retire(0).unwrap());
        }
    }
    story.go_on_for(WHILE);
    assert!(story.gateways.iter().all(Runner::healthy));
    let totals = story.end();
    for totals in &totals {
        assert_eq!(totals.drops.iter().sum::<u64>(), 0, "{totals:?}");
    }
    totals
}

#[test]
fn run_to_completion_keeps_every_flow_in_order() {
    let [_, one] = totals(Scheduler::RunToCompletion, false);
    // The one SA belongs to the worker that the packets come to.
    assert_eq!(one.wrong_core, 0);
    let [_, each] = totals(Scheduler::RunToCompletion, true);
    assert!(each.wrong_core > 0 && each.wrong_core < each.outer_rx.0, "{each:?}");
}

#[test]
fn crypto_threads_keep_every_flow_in_order() {
    // A lone group is not worth a round trip, and on a busy machine batches can be that small.
    let mut offloaded = [0, 0];
    for _ in 0..5 {
        let ends = totals(Scheduler::Async, false);
        assert!(ends.iter().all(|totals| totals.engines_gone == 0), "{ends:?}");
        ends.iter().zip(&mut offloaded).for_each(|(totals, sum)| *sum += totals.offloaded);
        if !offloaded.contains(&0) {
            break;
        }
    }
    assert!(!offloaded.contains(&0), "{offloaded:?}");
    let [_, each] = totals(Scheduler::Async, true);
    assert!(each.wrong_core > 0 && each.wrong_core < each.outer_rx.0, "{each:?}");
}

#[test]
fn the_pipeline_keeps_every_flow_in_order() {
    totals(Scheduler::Pipeline, false);
    totals(Scheduler::Pipeline, true);
}
