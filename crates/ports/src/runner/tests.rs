//! Runners with ports in memory.

use std::os::fd::BorrowedFd;

use crypto::{Engine, KeyTable, Suite};
use dataplane::{After, Batch, PerCoreSas, PortDrops, Sink, Snapshot, Totals};
use ipsec::DropReason;
use ipsec::{Action, DfPolicy, DscpPolicy, Lifetime, Mode, Outer, Peer, Policy, SaCommon, Spd, esp};
use rustix::time::Timespec;
use wire::registry::CodePoints;
use wire::{AddrRange, PortRange, Selector};

use super::*;

const PACKET: [u8; 28] = [0x45, 0, 0, 28, 0, 1, 0, 0, 9, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0, 1, 0, 2, 0, 8, 0, 0];

fn spd(action: Action) -> Spd {
    let any = AddrRange::from_cidr([192, 0, 2, 0].into(), 24).unwrap();
    let ports = PortRange::ANY;
    let selectors = [Selector { src: any, dst: any, proto: None, src_ports: ports, dst_ports: ports }].into();
    Spd::new(vec![Policy { name: "all".into(), selectors, action }])
}

fn without_sas(action: Action) -> Snapshot {
    Snapshot::new(vec![], vec![], spd(action), KeyTable::default(), CodePoints::default()).unwrap()
}

fn tables(action: Action) -> Publisher {
    Publisher::new(without_sas(action))
}

fn common() -> SaCommon {
    common_of(Mode::Tunnel)
}

fn common_of(mode: Mode) -> SaCommon {
    let outer = Outer {
        peer: Peer { local: [198, 51, 100, 1].into(), remote: [198, 51, 100, 2].into() },
        hop_limit: 64,
        dscp: DscpPolicy::Copy,
        ecn: true,
        df: DfPolicy::Copy,
        udp: None,
        udp_checksum: false,
    };
    SaCommon::new("moon", mode, outer, Lifetime::NONE)
}

fn spec(first_seq: u64) -> esp::Spec<'static> {
    esp::Spec {
        spi: 0x1001.try_into().unwrap(),
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

fn send(port: &mut MemoryPort, count: usize) {
    let mut batch = Batch::new(count, 2048);
    while batch.push_with(|to| to.set(&PACKET)) {}
    port.tx(&mut batch).unwrap();
}

fn receive(port: &mut MemoryPort, count: usize) -> usize {
    let (mut got, mut batch, start) = (0, Batch::new(8, 2048), Instant::now());
    while got < count && start.elapsed() < Duration::from_secs(5) {
        port.rx(&mut batch).unwrap();
        got += batch.len();
        batch.clear();
        std::thread::yield_now();
    }
    got
}

fn wait_for(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A worker between memory rings of `places` packets, and their far ends: inner, outer in, outer
/// out.
fn between_rings(places: usize) -> (Links, MemoryPort, MemoryPort, MemoryPort) {
    let (inner, inner_end) = memory_pair(places, 2048);
    let (outer_rx, outer_rx_end) = memory_pair(places, 2048);
    let (outer_tx, outer_tx_end) = memory_pair(places, 2048);
    let links = Links { inner: Box::new(inner), outer_rx: vec![Box::new(outer_rx)], outer_tx: Box::new(outer_tx) };
    (links, inner_end, outer_rx_end, outer_tx_end)
}

/// A port that waits forever, or does something worse.
struct Odd(OwnedFd, fn() -> io::Result<()>);

impl Odd {
    fn boxed(rx: fn() -> io::Result<()>) -> Box<dyn Port + Send> {
        Box::new(Self(eventfd(0, EventfdFlags::CLOEXEC).unwrap(), rx))
    }
}

impl Port for Odd {
    fn rx(&mut self, _: &mut Batch) -> io::Result<()> {
        (self.1)()
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        from.clear();
        Ok(())
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

fn odd(rx: fn() -> io::Result<()>) -> Vec<(WorkerConfig, Links)> {
    let quiet = || Odd::boxed(|| Ok(()));
    vec![
        (small(0), Links { inner: quiet(), outer_rx: vec![quiet()], outer_tx: quiet() }),
        (small(1), Links { inner: Odd::boxed(rx), outer_rx: vec![], outer_tx: quiet() }),
    ]
}

#[test]
fn packets_go_both_ways_and_are_counted() {
    let (links, mut inner, mut outer_in, mut outer_out) = between_rings(64);
    let runner = Runner::start(vec![(small(0), links)], tables(Action::Bypass)).unwrap();
    send(&mut inner, 30);
    send(&mut outer_in, 20);
    assert_eq!((receive(&mut outer_out, 30), receive(&mut inner, 20)), (30, 20));
    wait_for(|| Totals::of(runner.counters().iter().map(|c| &**c)).bypassed == 50);
    let totals = Totals::of(runner.counters().iter().map(|c| &**c));
    assert_eq!((totals.outer_tx, totals.inner_tx), ((30, 30 * 28), (20, 20 * 28)));
    assert!(runner.healthy());
    runner.stop().unwrap();
}

#[test]
fn new_tables_are_seen_without_traffic_in_between() {
    let (links, mut inner, _outer_in, mut outer_out) = between_rings(64);
    let tables_now = tables(Action::Bypass);
    let runner = Runner::start(vec![(small(0), links)], tables_now.clone()).unwrap();
    send(&mut inner, 1);
    assert_eq!(receive(&mut outer_out, 1), 1);
    let spd = Spd::new(vec![]);
    tables_now.publish(Snapshot::new(vec![], vec![], spd, KeyTable::default(), CodePoints::default()).unwrap());
    send(&mut inner, 1);
    wait_for(|| runner.counters()[0].drops[DropReason::NoPolicy as usize].load(Ordering::Relaxed) == 1);
}

#[test]
fn a_packet_waits_for_the_sa_that_it_asks_for() {
    let (links, mut inner, mut outer_in, mut outer_out) = between_rings(64);
    let tables_now = tables(Action::Trap(5));
    let mut runner = Runner::start(vec![(small(0), links)], tables_now.clone()).unwrap();
    send(&mut inner, 3);
    let rings = |runner: &Runner, patience| {
        let timeout = Timespec { tv_sec: patience, tv_nsec: 0 };
        let fd = rustix::event::PollFd::new(&runner.shared.asked, rustix::event::PollFlags::IN);
        rustix::event::poll(&mut [fd], Some(&timeout)).unwrap() == 1
    };
    assert!(rings(&runner, 5));
    let acquires = runner.acquires(10);
    assert!(!rings(&runner, 0));
    let key = acquires[0].key;
    assert_eq!((acquires.len(), acquires[0].trap, acquires[0].core), (1, 5, None));
    assert_eq!(key.proto, wire::IpProto::UDP);
    send(&mut outer_in, 1);
    wait_for(|| runner.counters()[0].drops[DropReason::PlainInbound as usize].load(Ordering::Relaxed) == 1);
    tables_now.publish(
        Snapshot::new(vec![], vec![], spd(Action::Bypass), KeyTable::default(), CodePoints::default()).unwrap(),
    );
    runner.wake();
    assert_eq!(receive(&mut outer_out, 3), 3);
    runner.stop().unwrap();
}

#[test]
fn a_core_without_an_sa_of_its_own_uses_the_common_one_and_requests_one() {
    let (links, mut inner, _outer_in, mut outer_out) = between_rings(64);
    let tables_now = tunnel(1500);
    let current = tables_now.current();
    let sa = Arc::clone(&current.outbound[0]);
    let mut next = Snapshot::new(
        vec![],
        vec![Arc::clone(&sa), sa],
        spd(Action::Protect { outbound: 0, inbound: 0 }),
        KeyTable::default(),
        CodePoints::default(),
    )
    .unwrap();
    Arc::get_mut(&mut next.keys).unwrap().insert(current.keys.shared(crypto::KeyId(0)).unwrap());
    next.per_core = vec![PerCoreSas { slot: 0, by_core: vec![None, Some(1)], trap: 9 }];
    tables_now.publish(next);
    let mut runner = Runner::start(vec![(small(0), links)], tables_now).unwrap();
    send(&mut inner, 2);
    assert_eq!(receive(&mut outer_out, 2), 2);
    let acquires = runner.acquires(10);
    assert_eq!((acquires.len(), acquires[0].trap, acquires[0].core), (1, 9, Some(0)));
    runner.stop().unwrap();
}

#[test]
fn what_a_port_refuses_is_a_counted_drop() {
    let (mut links, mut inner, _outer_in, _outer_out) = between_rings(64);
    let (narrow, _narrow_end) = memory_pair(5, 2048);
    links.outer_tx = Box::new(narrow);
    let runner = Runner::start(vec![(small(0), links)], tables(Action::Bypass)).unwrap();
    send(&mut inner, 40);
    wait_for(|| runner.counters()[0].drops[DropReason::QueueFull as usize].load(Ordering::Relaxed) == 35);
    runner.stop().unwrap();
}

#[test]
fn a_full_batch_of_packets_to_cut_loses_none() {
    let (links, mut inner, _outer_in, mut outer_out) = between_rings(64);
    let mut batch = Batch::new(8, 2048);
    let mut packet = [0; 700];
    packet[..PACKET.len()].copy_from_slice(&PACKET);
    packet[2..4].copy_from_slice(&700_u16.to_be_bytes());
    while batch.push_with(|to| to.set(&packet)) {}
    // All eight are there when the worker looks for the first time.
    inner.tx(&mut batch).unwrap();
    let runner = Runner::start(vec![(small(0), links)], tunnel(576)).unwrap();
    assert_eq!(receive(&mut outer_out, 16), 16);
    assert_eq!(runner.counters()[0].drops[DropReason::QueueFull as usize].load(Ordering::Relaxed), 0);
    runner.stop().unwrap();
}

/// A port with a queue that always has another batch. A datagram of it may be too long.
#[derive(Default)]
struct Endless {
    too_long: bool,
    refused: PortDrops,
}

impl Port for Endless {
    fn rx(&mut self, into: &mut Batch) -> io::Result<()> {
        let left = usize::from(self.too_long);
        while into.room() > left && into.push_with(|to| to.set(&PACKET)) {}
        self.refused.cut_off += left as u64;
        Ok(())
    }

    fn drops(&self) -> PortDrops {
        self.refused
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        from.clear();
        Ok(())
    }
}

/// Waits until packets of the queue were dropped early, or checks that none is.
fn check_aqm(scheduler: Scheduler, [inner, outer]: [bool; 2], too_long: bool, interval_ms: u64) {
    let (mut links, _inner, _outer_in, _outer_out) = between_rings(64);
    let endless = |too_long| -> Box<dyn Port + Send> { Box::new(Endless { too_long, ..Endless::default() }) };
    links.outer_tx = endless(false);
    if inner {
        links.inner = endless(too_long);
    }
    if outer {
        links.outer_rx = vec![endless(too_long)];
    }
    let config = WorkerConfig { aqm_interval_ms: interval_ms, ..small(0) };
    let runner = Runner::start_with(vec![(config, links)], tables(Action::Bypass), scheduler).unwrap();
    let count = |why: DropReason| runner.counters()[0].drops[why as usize].load(Ordering::Relaxed);
    if interval_ms > 0 {
        wait_for(|| count(DropReason::Aqm) > 3);
    } else {
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(count(DropReason::Aqm), 0);
    }
    assert_eq!(count(DropReason::NoRoom) > 0, too_long);
    runner.stop().unwrap();
}

#[test]
fn a_standing_queue_is_shortened_in_both_directions() {
    for scheduler in Scheduler::ALL {
        check_aqm(scheduler, [true, false], false, 20);
        check_aqm(scheduler, [false, true], false, 20);
        check_aqm(scheduler, [true, true], false, 0);
    }
}

#[test]
fn datagrams_that_are_refused_do_not_hide_a_standing_queue() {
    for scheduler in Scheduler::ALL {
        check_aqm(scheduler, [false, true], true, 20);
    }
}

/// A worker that has other things to do.
struct Slow;

impl Port for Slow {
    fn rx(&mut self, _: &mut Batch) -> io::Result<()> {
        std::thread::sleep(Duration::from_millis(2));
        Ok(())
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        from.clear();
        Ok(())
    }
}

#[test]
fn of_several_workers_none_is_alone() {
    for count in 1..4 {
        let wrong = |core| (WorkerConfig { alone: count > 1, ..small(core) }, between_rings(1).0);
        let mut workers: Vec<_> = (0..count).map(wrong).collect();
        mark_alone(&mut workers);
        assert!(workers.iter().all(|(config, _)| config.alone == (count == 1)), "{count}");
    }
}

#[test]
fn packets_for_a_worker_that_is_slow_wait_and_are_not_dropped() {
    const PACKETS: usize = 1500;
    let (links, _inner, mut outer_in, _outer_out) = between_rings(PACKETS);
    let slow = Links { inner: Box::new(Slow), outer_rx: vec![], outer_tx: Odd::boxed(|| Ok(())) };
    let config = |core| WorkerConfig { batch: 64, derived_keys: 128, ..small(core) };
    let workers = vec![(config(0), links), (config(1), slow)];
    let runner = Runner::start_with(workers, tables(Action::Drop), Scheduler::RunToCompletion).unwrap();
    // More than the ring to the other worker holds.
    let mut batch = Batch::new(PACKETS, 2048);
    while batch.push_with(|to| to.set(&esp_for(1))) {}
    outer_in.tx(&mut batch).unwrap();
    let counted = |core: usize, why: DropReason| runner.counters()[core].drops[why as usize].load(Ordering::Relaxed);
    wait_for(|| counted(1, DropReason::NoSa) == PACKETS as u64);
    assert_eq!((counted(0, DropReason::QueueFull), counted(1, DropReason::QueueFull)), (0, 0));
    let [wrong, waits] = [&runner.counters()[0].wrong_core, &runner.counters()[0].input_waits]
        .map(|counter| counter.load(Ordering::Relaxed));
    assert!(wrong == PACKETS as u64 && waits > 0, "{wrong} {waits}");
    runner.stop().unwrap();
}

/// ESP that belongs to worker `owner` of two.
fn esp_for(owner: u8) -> [u8; 36] {
    let mut packet = [0; 36];
    packet[..PACKET.len()].copy_from_slice(&PACKET);
    (packet[3], packet[9], packet[22], packet[23]) = (36, 50, 1, owner);
    packet
}

/// A port that has nothing before it is opened.
struct Gated(MemoryPort, Arc<AtomicBool>);

impl Port for Gated {
    fn rx(&mut self, into: &mut Batch) -> io::Result<()> {
        if self.1.load(Ordering::Acquire) { self.0.rx(into) } else { Ok(()) }
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        self.0.tx(from)
    }
}

#[test]
fn rings_that_are_full_both_ways_run_empty_again() {
    // More than a ring between two workers holds comes at once, and all of it is the other's.
    const AT_ONCE: usize = 600;
    const PACKETS: usize = 3000;
    const _: () = assert!(AT_ONCE > HANDED_OVER / 2);
    for threads in [2, 1] {
        let gate = Arc::new(AtomicBool::new(false));
        let mut ends = vec![];
        let mut worker = |core| {
            let (mut links, inner, _, outer_out) = between_rings(8);
            let (here, mut outer_in) = memory_pair(PACKETS, 2048);
            links.outer_rx = vec![Box::new(Gated(here, Arc::clone(&gate)))];
            let mut batch = Batch::new(PACKETS, 2048);
            while batch.push_with(|to| to.set(&esp_for(1 - core as u8))) {}
            outer_in.tx(&mut batch).unwrap();
            ends.push((inner, outer_in, outer_out));
            (WorkerConfig { batch: AT_ONCE, derived_keys: 2 * AT_ONCE, ..small(core) }, links)
        };
        let workers = (0..2).map(&mut worker).collect();
        let mut runner = Runner::start_with(workers, tables(Action::Drop), Scheduler::RunToCompletion).unwrap();
        assert!(threads == 2 || runner.retire(1).unwrap());
        gate.store(true, Ordering::Release);
        let counted =
            |core: usize, why: DropReason| runner.counters()[core].drops[why as usize].load(Ordering::Relaxed);
        for core in 0..2 {
            wait_for(|| counted(core, DropReason::NoSa) == PACKETS as u64);
            assert_eq!(counted(core, DropReason::QueueFull), 0);
            // On one thread the ring is not drained while a batch is handed over; on two threads it
            // may be.
            let waits = runner.counters()[core].input_waits.load(Ordering::Relaxed);
            assert!(threads == 2 || waits > 0, "the ring of {core} was never full");
        }
        runner.stop().unwrap();
    }
}

#[test]
fn workers_that_share_a_thread_are_found_when_they_sleep() {
    let quiet = || Odd::boxed(|| Ok(()));
    let links = || Links { inner: quiet(), outer_rx: vec![quiet()], outer_tx: quiet() };
    let workers = (0..3).map(|core| (small(core), links())).collect();
    let mut runner = Runner::start_with(workers, tables(Action::Drop), Scheduler::Pipeline).unwrap();
    assert!(runner.retire(1).unwrap());
    // A producer wakes only the workers that have announced that they sleep.
    let shared = Arc::clone(&runner.shared);
    wait_for(|| shared.asleep() == 0b111);
    runner.stop().unwrap();
    assert_eq!(shared.asleep(), 0);
}

#[test]
fn a_failed_port_leaves_nothing_in_the_pipeline() {
    struct Broken;
    impl Sink for Broken {
        fn outer(&mut self, _: &mut Batch) -> io::Result<After> {
            Err(io::Error::other("cable pulled"))
        }
        fn inner(&mut self, _: &mut Batch) -> io::Result<()> {
            Err(io::Error::other("cable pulled"))
        }
    }
    let (mut worker, _reports) = Worker::new(small(0));
    let pipeline = Pipeline::new(&PipelineConfig { slots: 1, batch: 8, ..PipelineConfig::default() });
    let (now, mut replies) = (tables(Action::Bypass).current(), Batch::new(8, 2048));
    let mut take = |worker: &mut Worker, packets: usize| {
        let taken = pipeline.take_inner(worker, &now, &mut replies, |into| {
            assert!(into.is_empty(), "packets of before are in the place");
            (0..packets).for_each(|_| assert!(into.push_with(|to| to.set(&PACKET))));
            if packets > 3 { Err(io::Error::other("a queue that is gone")) } else { Ok(()) }
        });
        taken.is_ok_and(|any| any == Some(true))
    };
    assert!(take(&mut worker, 3));
    assert!(pipeline.work(&mut worker, &mut Broken).is_err());
    assert!(!take(&mut worker, 4));
    assert!(take(&mut worker, 2));
    assert_eq!(pipeline.in_use(), 1);
}

#[test]
fn a_worker_goes_with_its_cpu_and_comes_back_with_it() {
    for scheduler in Scheduler::ALL {
        let ends: Vec<_> = (0..3).map(|_| between_rings(64)).collect();
        let (mut workers, mut others) = (vec![], vec![]);
        for (core, (links, inner, outer_in, outer_out)) in ends.into_iter().enumerate() {
            workers.push((WorkerConfig { pin: Some(core), ..small(core) }, links));
            others.push((inner, outer_in, outer_out));
        }
        let mut runner = Runner::start_with(workers, tables(Action::Bypass), scheduler).unwrap();
        let carried = |runner: &Runner| {
            let mut all: Vec<Vec<usize>> = runner.threads().map(<[usize]>::to_vec).collect();
            all.iter_mut().for_each(|thread| thread.sort_unstable());
            all.sort_unstable();
            all
        };
        let mut pass = || {
            others.iter_mut().all(|(inner, _, outer_out)| {
                send(inner, 5);
                receive(outer_out, 5) == 5
            })
        };
        for (allowed, threads) in [
            (&[0, 1, 2][..], vec![vec![0], vec![1], vec![2]]),
            (&[0, 2], vec![vec![0, 1], vec![2]]),
            (&[1], vec![vec![0, 1, 2]]),
            (&[1, 2], vec![vec![0, 1], vec![2]]),
            (&[], vec![vec![0, 1], vec![2]]),
            (&[0, 1, 2], vec![vec![0], vec![1], vec![2]]),
        ] {
            runner.follow(allowed).unwrap();
            // The choice of the thread that takes a worker over does not matter.
            let now = carried(&runner);
            assert_eq!(now.len(), threads.len(), "{allowed:?}: {now:?}");
            let alone: Vec<_> = allowed.iter().filter(|cpu| !now.iter().any(|t| t.contains(cpu))).collect();
            assert!(alone.is_empty() && pass(), "{scheduler:?} {allowed:?}: {now:?}");
        }
        assert!(runner.healthy() && !runner.restore(1).unwrap(), "it has a thread");
        runner.stop().unwrap();
    }
}

/// A thread that starts later, for a CPU that came back, does not begin at 0 again: SAs have times
/// that several workers write.
#[test]
fn workers_share_a_clock() {
    let shared = Arc::new(Shared::new(2, None).unwrap());
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let (tables, wait) = (tables(Action::Drop), Duration::from_millis(20));
    let turn = |core| {
        let (links, _inner, _outer_in, _outer_out) = between_rings(8);
        let (worker, _reports) = Worker::new(small(core));
        let rings = vec![None, None];
        let mut ports = WorkerPorts::new(links, &stop, Arc::clone(&shared), rings, (worker, None)).unwrap();
        std::thread::sleep(wait);
        let _ = ports.turn(&mut tables.reader());
        ports.now_ms
    };
    let (first, second) = (turn(0), turn(1));
    assert!(first >= 20 && second >= first + 20, "{first} {second}");
}

#[test]
fn a_failed_port_stops_its_worker_and_is_reported() {
    let runner = Runner::start(odd(|| Err(io::Error::other("cable pulled"))), tables(Action::Drop)).unwrap();
    wait_for(|| !runner.healthy());
    let error = runner.stop().unwrap_err();
    assert_eq!(error.to_string(), "worker 1 stopped: cable pulled");
}

#[test]
fn a_panic_stops_its_worker_and_is_reported() {
    let runner = Runner::start(odd(|| panic!("on purpose")), tables(Action::Drop)).unwrap();
    wait_for(|| !runner.healthy());
    assert!(runner.stop().unwrap_err().to_string().ends_with("please report: on purpose"));
}

#[test]
fn a_worker_that_is_lost_on_its_way_is_reported() {
    let mut runner = Runner::start(odd(|| panic!("on purpose")), tables(Action::Drop)).unwrap();
    wait_for(|| !runner.healthy());
    assert!(runner.retire(1).is_err());
    // Its thread is not among those that run any more.
    assert_eq!((runner.threads().count(), runner.healthy()), (1, false));
    assert!(runner.stop().unwrap_err().to_string().ends_with("please report: on purpose"));
}

#[test]
fn a_worker_that_hangs_is_not_waited_for() {
    static LEFT_ALONE: AtomicBool = AtomicBool::new(false);
    let rx = || {
        while !LEFT_ALONE.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    let mut runner = Runner::start(odd(rx), tables(Action::Drop)).unwrap();
    runner.patience = Duration::from_millis(50);
    // The one beside it goes on.
    let turns = |core: usize| runner.counters()[core].turns.load(Ordering::Relaxed);
    wait_for(|| turns(1) == 1 && turns(0) > 2);
    assert_eq!((turns(1), runner.healthy()), (1, true));
    assert!(matches!(runner.retire(1), Err(RunnerError::Hangs { core: 1, .. })));
    assert!(!runner.healthy());
    assert!(runner.stop().unwrap_err().to_string().starts_with("worker 1 hangs"));
    LEFT_ALONE.store(true, Ordering::Relaxed);
}

/// Packets for a hung worker are lost and counted, and pass again when the worker resumes.
#[test]
fn a_worker_that_hangs_holds_nobody_up() {
    const PACKETS: usize = 2000;
    static LEFT_ALONE: AtomicBool = AtomicBool::new(false);
    let (links, _inner, mut outer_in, _outer_out) = between_rings(PACKETS);
    let hangs = || {
        while !LEFT_ALONE.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    let hung = Links { inner: Odd::boxed(hangs), outer_rx: vec![], outer_tx: Odd::boxed(|| Ok(())) };
    let config = |core| WorkerConfig { batch: 64, derived_keys: 128, ..small(core) };
    let workers = vec![(config(0), links), (config(1), hung)];
    let runner = Runner::start_with(workers, tables(Action::Drop), Scheduler::RunToCompletion).unwrap();
    let counted = |core: usize, why: DropReason| runner.counters()[core].drops[why as usize].load(Ordering::Relaxed);
    let mut batch = Batch::new(PACKETS, 2048);
    while batch.push_with(|to| to.set(&esp_for(1))) {}
    batch.packets_mut()[PACKETS - 1].set(&esp_for(0));
    outer_in.tx(&mut batch).unwrap();
    wait_for(|| counted(0, DropReason::NoSa) == 1);
    let lost = counted(0, DropReason::QueueFull);
    assert!(lost > 0 && lost + HANDED_OVER as u64 >= PACKETS as u64 - 1, "{lost}");
    // From here on nothing waits for it, not even for a moment.
    batch.push_with(|to| to.set(&esp_for(1)));
    outer_in.tx(&mut batch).unwrap();
    wait_for(|| counted(0, DropReason::QueueFull) == lost + 1);
    LEFT_ALONE.store(true, Ordering::Relaxed);
    wait_for(|| counted(1, DropReason::NoSa) == PACKETS as u64 - 1 - lost);
    batch.push_with(|to| to.set(&esp_for(1)));
    outer_in.tx(&mut batch).unwrap();
    wait_for(|| counted(1, DropReason::NoSa) == PACKETS as u64 - lost);
    assert_eq!(counted(0, DropReason::QueueFull), lost + 1);
    runner.stop().unwrap();
}

#[test]
fn there_are_no_more_workers_than_a_set_holds() {
    let links = || Links { inner: Odd::boxed(|| Ok(())), outer_rx: vec![], outer_tx: Odd::boxed(|| Ok(())) };
    let workers = (0..=MAX_WORKERS).map(|core| (small(core), links())).collect();
    let error = Runner::start(workers, tables(Action::Drop)).err().unwrap().to_string();
    assert!(error.contains("65 workers were asked for"), "{error}");
}

#[test]
fn sleeping_workers_stop_at_once() {
    let runner = Runner::start(odd(|| Ok(())), tables(Action::Drop)).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let start = Instant::now();
    runner.stop().unwrap();
    assert!(start.elapsed() < Duration::from_millis(LONGEST_SLEEP_MS as u64), "{:?}", start.elapsed());
}

/// Everything through one ESP tunnel at a constant rate of 1400 bytes every 1.12 ms.
fn constant_rate() -> (Snapshot, Arc<dataplane::PacedStream>) {
    let settings = ipsec::aggfrag::Settings { packet_size: 1400, rate_kbps: 10_000, ..Default::default() };
    let stream = dataplane::PacedStream::new(settings.rate_kbps, 1);
    let (mut keys, common) = (KeyTable::default(), common_of(Mode::Aggfrag(settings)));
    let sa = esp::outbound(common, &spec(1), Engine::best(), &mut keys).unwrap();
    let spd = spd(Action::Protect { outbound: 0, inbound: 0 });
    let mut tables = Snapshot::new(vec![], vec![Arc::new(sa)], spd, keys, CodePoints::default()).unwrap();
    tables.paced = vec![dataplane::PacedSa { slot: 0, stream: Arc::clone(&stream) }];
    (tables, stream)
}

/// Packets that a port has now.
fn receive_now(port: &mut MemoryPort) -> usize {
    let mut batch = Batch::new(8, 2048);
    port.rx(&mut batch).unwrap();
    batch.len()
}

#[test]
fn the_pacer_sends_at_its_rate_with_tables_that_come_and_go() {
    let (links, mut inner, _outer_rx, mut outer_tx) = between_rings(64);
    let (port, mut paced) = memory_pair(64, 2048);
    let publisher = tables(Action::Drop);
    let mut runner = Runner::start(vec![(small(0), links)], publisher.clone()).unwrap();
    runner.start_pacer(small(1), Box::new(port)).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(receive_now(&mut paced), 0);
    // Of the tables that are published, not those of the start.
    let (next, stream) = constant_rate();
    publisher.publish(next);
    runner.wake();
    let start = Instant::now();
    // After a late slot several leave together.
    let received = receive(&mut paced, 200) as u64;
    let took = start.elapsed();
    assert!(received >= 200 && took >= Duration::from_micros((received - 2) * 1120), "{received} in {took:?}");
    assert!(stream.counts().running && stream.counts().padding >= 200);
    // A packet of the worker leaves through the pacer alone.
    send(&mut inner, 3);
    wait_for(|| stream.counts().packets > stream.counts().padding);
    assert_eq!(receive_now(&mut outer_tx), 0);
    assert!(Totals::of(runner.all_counters().map(|core| &**core)).paced >= 200);
    assert_eq!(Totals::of(runner.counters().iter().map(|core| &**core)).paced, 0);
    // Without its SA the stream ends, and its memory goes.
    publisher.publish(without_sas(Action::Drop));
    runner.wake();
    wait_for(|| Arc::strong_count(&stream) == 1 && !stream.counts().running);
    assert!(runner.healthy());
    runner.stop().unwrap();
}
