//! The scheduler `async` with a simulated device: order, window, failures, and tables that change
//! while packets are in flight.

use crypto::accelerator::{Accelerator, Fault, FaultKind, Gone, ManualClock, Properties, Simulated, State};

use super::inbound::{Variant, packet, protect, receiving, variant};
use super::*;
use crate::{AsyncConfig, Asynchronous, EnginePacket, Staged};

/// Size of packet buffers: what Miri does not touch costs time as well.
const BYTES: usize = if cfg!(miri) { 256 } else { 2048 };

/// What left a scheduler.
#[derive(Default)]
struct Exits {
    outer: Vec<Vec<u8>>,
    inner: Vec<Vec<u8>>,
}

impl Sink for Exits {
    fn outer(&mut self, batch: &mut Batch) -> std::io::Result<After> {
        self.outer.extend(batch.packets().iter().map(|packet| packet.bytes().to_vec()));
        Ok(After::Done)
    }

    fn inner(&mut self, batch: &mut Batch) -> std::io::Result<()> {
        self.inner.extend(batch.packets().iter().map(|packet| packet.bytes().to_vec()));
        Ok(())
    }
}

/// The scheduler of a worker, and its device.
pub(super) struct Device {
    scheduler: Asynchronous,
    clock: ManualClock,
    exits: Exits,
    most: usize,
}

impl Device {
    fn new(engine: Engine, properties: Properties, config: AsyncConfig) -> Self {
        let clock = ManualClock::default();
        let read = clock.clone();
        let device: Box<dyn Accelerator<EnginePacket>> =
            Box::new(Simulated::new(engine, properties, move || read.now_ns()));
        let most = config.batch;
        Self { scheduler: Asynchronous::new(config, Some(device), |_| ()), clock, exits: Exits::default(), most }
    }

    /// A device without faults, for batches of `most` packets: launches take time and contain
    /// several groups.
    pub(super) fn of(most: usize) -> Self {
        let properties = Properties { overhead_ns: 1000, ns_per_byte: 0.1, batch: 3, capacity: 5, fault: None };
        let config = AsyncConfig { batch: most, packet_bytes: BYTES, owner_computes: false, ..AsyncConfig::default() };
        Self::new(Engine::best(), properties, config)
    }

    pub(super) fn usual() -> Self {
        Self::of(128)
    }

    /// Accepts the packets of `batch`, and returns false without room.
    fn take_inner(
        &mut self,
        worker: &mut Worker,
        tables: &Arc<Snapshot>,
        batch: &mut Batch,
        replies: &mut Batch,
    ) -> bool {
        let fill = |into: &mut Batch| {
            into.clear();
            batch.packets().iter().for_each(|packet| assert!(into.push_with(|to| to.set(packet.bytes()))));
            batch.clear();
            Ok::<(), ()>(())
        };
        self.scheduler.take_inner(worker, tables, replies, fill).unwrap().is_some()
    }

    /// Works without any progress of the device.
    fn work(&mut self, worker: &mut Worker, current: Option<&Snapshot>) {
        while self.scheduler.work(worker, current, &mut self.exits).unwrap() {}
    }

    /// Waits for the oldest batch, and completes no other one.
    fn complete_one(&mut self, worker: &mut Worker) {
        while !self.scheduler.work(worker, None, &mut self.exits).unwrap() {
            self.clock.advance(100);
        }
    }

    /// Works until nothing is in flight.
    fn settle(&mut self, worker: &mut Worker, current: Option<&Snapshot>) {
        for _ in 0..10_000 {
            self.work(worker, current);
            if self.scheduler.in_use() == 0 {
                return;
            }
            self.clock.advance(500);
        }
        panic!("{} batches never came back", self.scheduler.in_use());
    }

    /// Takes `batch` through the outbound path.
    pub(super) fn outbound(
        &mut self,
        worker: &mut Worker,
        tables: &Arc<Snapshot>,
        batch: &mut Batch,
        replies: &mut Batch,
    ) -> Vec<Vec<u8>> {
        assert!(self.take_inner(worker, tables, batch, replies));
        self.settle(worker, None);
        std::mem::take(&mut self.exits.outer)
    }

    /// Takes `batch` through the inbound path.
    pub(super) fn inbound(&mut self, worker: &mut Worker, tables: &Arc<Snapshot>, batch: &mut Batch) -> Vec<Vec<u8>> {
        // The scheduler keeps the batch, which must have its size.
        let mut arrived = Batch::with_reserve(self.most, 2 * self.most, BYTES);
        batch.packets().iter().for_each(|packet| assert!(arrived.push_with(|to| to.set(packet.bytes()))));
        batch.clear();
        self.scheduler.take_outer(worker, tables, &mut arrived);
        self.settle(worker, None);
        std::mem::take(&mut self.exits.inner)
    }

    /// Passes protected packets to the scheduler in one batch.
    fn arrive(&mut self, worker: &mut Worker, tables: &Arc<Snapshot>, packets: &[Vec<u8>]) {
        let mut batch = Batch::with_reserve(self.most, 2 * self.most, BYTES);
        packets.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
        self.scheduler.take_outer(worker, tables, &mut batch);
    }
}

fn worker(batch: usize) -> Worker {
    Worker::new(WorkerConfig { engine: Engine::best(), batch, ..small(0) }).0
}

fn config() -> AsyncConfig {
    AsyncConfig { batch: 64, packet_bytes: BYTES, owner_computes: false, ..AsyncConfig::default() }
}

fn drops(worker: &Worker, why: DropReason) -> u64 {
    worker.counters().drops[why as usize].load(Ordering::Relaxed)
}

fn all_drops(worker: &Worker) -> u64 {
    worker.counters().drops.iter().map(|count| count.load(Ordering::Relaxed)).sum()
}

/// Sequence number of an ESP packet over IPv4.
fn seq(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[24..28].try_into().unwrap())
}

/// Packets with these last bytes.
fn numbered(numbers: std::ops::Range<u8>) -> Vec<Vec<u8>> {
    numbers.map(|n| packet(1, 60, n)).collect()
}

fn last_bytes(packets: &[Vec<u8>]) -> Vec<u8> {
    packets.iter().map(|packet| packet[packet.len() - 1]).collect()
}

fn batch_of(packets: &[Vec<u8>]) -> Batch {
    let mut batch = Batch::new(128, BYTES);
    packets.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
    batch
}

#[test]
fn a_full_window_accepts_nothing_and_drops_nothing() {
    let tables = tunnel(1500).current();
    for batches in [2, 5] {
        let (mut worker, mut replies) = (worker(64), Batch::new(8, BYTES));
        let properties = Properties { overhead_ns: 1000, capacity: 3, ..Properties::default() };
        let mut device = Device::new(Engine::best(), properties, AsyncConfig { batches, ..config() });
        let (mut sent, mut refused) = (0, 0);
        for _ in 0..100 {
            if device.scheduler.has_room() {
                let mut batch = batch_of(&numbered(sent..sent + 2));
                assert!(device.take_inner(&mut worker, &tables, &mut batch, &mut replies));
                sent += 2;
            } else {
                assert!(!device.take_inner(&mut worker, &tables, &mut batch_of(&numbered(0..1)), &mut replies));
                device.arrive(&mut worker, &tables, &[vec![0; 60]]);
                refused += 1;
            }
            device.work(&mut worker, None);
        }
        // A launch for each batch, and one more group that waits at the owner.
        assert_eq!((sent, refused), (2 * batches.min(4) as u8, 100 - batches.min(4)), "{batches} batches");
        assert!(device.exits.outer.is_empty() && all_drops(&worker) == 0);
        device.settle(&mut worker, None);
        assert_eq!(device.exits.outer.len(), usize::from(sent));
        assert!(device.exits.outer.is_sorted_by_key(|packet| seq(packet)) && device.scheduler.has_room());
    }
}

#[test]
fn an_owner_that_computes_keeps_the_order_and_needs_no_device_for_a_lone_group() {
    let tables = tunnel(1500).current();
    let (mut worker, mut replies) = (worker(64), Batch::new(8, BYTES));
    let properties = Properties { overhead_ns: 1_000_000, capacity: 2, ..Properties::default() };
    let mut device = Device::new(Engine::best(), properties, AsyncConfig { owner_computes: true, ..config() });
    let mut batch = batch_of(&numbered(0..16));
    assert!(device.take_inner(&mut worker, &tables, &mut batch, &mut replies));
    device.work(&mut worker, None);
    let offloaded = || worker.counters().offloaded.load(Ordering::Relaxed);
    assert_eq!((device.exits.outer.len(), offloaded()), (16, 0), "a lone group");
    let mut batch = batch_of(&numbered(16..80));
    assert!(device.take_inner(&mut worker, &tables, &mut batch, &mut replies));
    device.work(&mut worker, None);
    assert_eq!(device.exits.outer.len(), 16, "the first group is elsewhere");
    device.settle(&mut worker, None);
    // Two of four groups.
    let offloaded = worker.counters().offloaded.load(Ordering::Relaxed);
    assert_eq!((device.exits.outer.len(), offloaded), (80, 32));
    assert!(device.exits.outer.is_sorted_by_key(|packet| seq(packet)));
}

#[test]
fn results_make_room_before_the_owner_computes() {
    let tables = tunnel(1500).current();
    let (mut worker, mut replies) = (worker(64), Batch::new(8, BYTES));
    let properties = Properties { overhead_ns: 1000, capacity: 2, ..Properties::default() };
    let mut device = Device::new(Engine::best(), properties, AsyncConfig { owner_computes: true, ..config() });
    for (number, offloaded) in [(0, 32), (1, 64), (2, 96)] {
        let mut batch = batch_of(&numbered(64 * number..64 * (number + 1)));
        assert!(device.take_inner(&mut worker, &tables, &mut batch, &mut replies));
        let counted = worker.counters().offloaded.load(Ordering::Relaxed);
        assert_eq!(counted, offloaded, "batch {number}");
        // The owner runs the other two groups only when it has nothing else to do.
        device.work(&mut worker, None);
        // The device is done, and nothing was polled.
        device.clock.advance(1_000_000);
    }
    device.settle(&mut worker, None);
    assert_eq!(device.exits.outer.len(), 192);
    assert!(device.exits.outer.is_sorted_by_key(|packet| seq(packet)));
}

#[test]
fn no_reference_to_keys_stays() {
    let (sa, tables) = (variant(0x1001), tunnel(1500).current());
    let receiver = Arc::new(receiving(&[sa], spd(protect(0))));
    let (mut worker, mut replies, mut device) = (worker(64), Batch::new(8, BYTES), Device::usual());
    let [sending, opening] = [&tables, &receiver].map(|tables| Arc::strong_count(&tables.keys));
    let mut send = |device: &mut Device, worker: &mut Worker| {
        assert!(device.take_inner(worker, &tables, &mut batch_of(&numbered(0..40)), &mut replies));
    };
    send(&mut device, &mut worker);
    assert!(Arc::strong_count(&tables.keys) > sending);
    device.settle(&mut worker, None);
    assert_eq!(Arc::strong_count(&tables.keys), sending, "nothing is in flight");
    // From here on something always is, but no packet is sent any more.
    send(&mut device, &mut worker);
    for (n, sealed) in sa.seal(&numbered(0..80)).into_iter().enumerate() {
        device.arrive(&mut worker, &receiver, &[sealed]);
        while device.scheduler.in_use() > 1 {
            device.complete_one(&mut worker);
        }
        assert_eq!(device.scheduler.in_use(), 1);
        assert!(n > 0 || Arc::strong_count(&tables.keys) > sending, "kept for further packets");
    }
    assert_eq!(Arc::strong_count(&tables.keys), sending);
    device.settle(&mut worker, None);
    assert_eq!(Arc::strong_count(&receiver.keys), opening);
}

/// Sends and receives while the device fails, and returns the failure that was reported.
fn fails(fault: Fault, owner_computes: bool) -> Gone {
    let (sa, tables) = (variant(0x1001), tunnel(1500).current());
    let receiver = Arc::new(receiving(&[sa], spd(protect(0))));
    let sealed = sa.seal(&numbered(0..96));
    let (mut worker, mut replies) = (worker(64), Batch::new(8, BYTES));
    let properties =
        Properties { overhead_ns: 1000, batch: 2, capacity: 6, fault: Some(fault), ..Properties::default() };
    let mut device = Device::new(Engine::best(), properties, AsyncConfig { owner_computes, ..config() });
    let mut now_ms = 0;
    let mut later = |device: &mut Device, worker: &mut Worker| {
        now_ms += 7;
        assert!(now_ms < 100_000, "{fault:?}");
        worker.tick(now_ms);
        device.clock.advance(700);
        device.work(worker, None);
    };
    for round in 0..12 {
        let mut batch = batch_of(&numbered(round * 16..round * 16 + 16));
        while !device.take_inner(&mut worker, &tables, &mut batch, &mut replies) {
            later(&mut device, &mut worker);
        }
        if round % 2 == 0 {
            let from = usize::from(round) * 8;
            while !device.scheduler.has_room() {
                later(&mut device, &mut worker);
            }
            device.arrive(&mut worker, &receiver, &sealed[from..from + 16]);
        }
    }
    while device.scheduler.in_use() > 0 {
        later(&mut device, &mut worker);
    }
    let gone = device.scheduler.take_failure().expect("it failed");
    assert_eq!(device.scheduler.take_failure(), None, "reported once");
    assert_eq!(worker.counters().engines_gone.load(Ordering::Relaxed), 1);
    // Every packet was delivered in order or counted, each for its SA.
    let (out, inn) = (&device.exits.outer, last_bytes(&device.exits.inner));
    let lost = (192 - out.len() + 96 - inn.len()) as u64;
    assert!(lost > 0 && out.len() > 16 && inn.len() > 15, "{fault:?}: {} {}", out.len(), inn.len());
    assert_eq!((drops(&worker, DropReason::EngineGone), all_drops(&worker)), (lost, lost), "{fault:?}");
    assert!(out.is_sorted_by(|a, b| seq(a) < seq(b)), "no number twice");
    assert!(inn.is_sorted_by(|a, b| a < b));
    let counted = &tables.outbound[0].common.counters;
    assert_eq!(counted.packets(), out.len() as u64, "{fault:?}");
    assert_eq!(receiver.sad.get(0).unwrap().common.counters.packets(), inn.len() as u64, "{fault:?}");
    // The worker goes on by itself, and never uses the numbers of lost packets again.
    let before = out.len();
    let mut batch = batch_of(&numbered(192..255));
    assert!(device.take_inner(&mut worker, &tables, &mut batch, &mut replies));
    device.work(&mut worker, None);
    let new: Vec<u32> = device.exits.outer[before..].iter().map(|packet| seq(packet)).collect();
    assert_eq!(new, (193..=255).collect::<Vec<u32>>());
    // No memory was lost with the device.
    assert!(device.scheduler.has_all_memory(64));
    gone
}

#[test]
fn a_device_that_fails_at_any_state_loses_only_what_it_had() {
    for state in State::ALL {
        for launch in [0, 1, 3] {
            for owner_computes in [false, true] {
                let gone = fails(Fault { launch, kind: FaultKind::Gone(state) }, owner_computes);
                assert_eq!(gone, Gone::DeviceFailed);
            }
        }
    }
}

#[test]
fn a_device_that_returns_nothing_is_given_up_by_the_watchdog() {
    let gone = fails(Fault { launch: 2, kind: FaultKind::Silent }, false);
    assert!(matches!(gone, Gone::TimedOut { ms: 100..=110 }), "{gone:?}");
}

#[test]
fn the_watchdog_needs_polls_and_time() {
    let tables = tunnel(1500).current();
    let (mut worker, mut replies) = (worker(64), Batch::new(8, BYTES));
    let fault = Some(Fault { launch: 0, kind: FaultKind::Slow(10) });
    let mut device =
        Device::new(Engine::best(), Properties { overhead_ns: 1000, fault, ..Properties::default() }, config());
    let mut batch = batch_of(&numbered(0..16));
    assert!(device.take_inner(&mut worker, &tables, &mut batch, &mut replies));
    // A worker that slept for an hour has polled twice only.
    for now_ms in [1, 3_600_000] {
        worker.tick(now_ms);
        device.work(&mut worker, None);
    }
    assert_eq!(device.scheduler.take_failure(), None);
    device.clock.advance(10_000);
    device.work(&mut worker, None);
    assert_eq!(device.exits.outer.len(), 16, "slow is not gone");
    // The time of the first group does not count for the second.
    for now_ms in 3_600_001..3_600_099 {
        worker.tick(now_ms);
        let mut batch = batch_of(&numbered(0..1));
        if device.scheduler.in_use() == 0 {
            assert!(device.take_inner(&mut worker, &tables, &mut batch, &mut replies));
        }
        device.clock.advance(500);
        device.work(&mut worker, None);
    }
    assert_eq!(device.scheduler.take_failure(), None);
}

#[test]
fn wrong_results_are_never_delivered() {
    let (sa, tables) = (variant(0x1001), tunnel(1500).current());
    let sealed = sa.seal(&numbered(0..40));
    let fault = Some(Fault { launch: 0, kind: FaultKind::Wrong });
    let properties = Properties { overhead_ns: 10, fault, ..Properties::default() };
    let (mut worker, mut replies) = (worker(64), Batch::new(8, BYTES));
    let mut device = Device::new(Engine::best(), properties, config());
    // The device has decrypted them, and cannot verify them.
    let receiver = Arc::new(receiving(&[sa], spd(protect(0))));
    assert_eq!(device.inbound(&mut worker, &receiver, &mut batch_of(&sealed)), [[0; 0]; 0]);
    assert_eq!((drops(&worker, DropReason::BadIcv), all_drops(&worker)), (40, 40));
    // What it seals, the peer rejects.
    let sent = device.outbound(&mut worker, &tables, &mut batch_of(&numbered(0..40)), &mut replies);
    assert_eq!(sent.len(), 40);
    let peer = Arc::new(receiving(&[sa], spd(protect(0))));
    let left = Device::usual().inbound(&mut worker, &peer, &mut batch_of(&sent));
    assert_eq!((left.len(), drops(&worker, DropReason::BadIcv)), (0, 80));
}

#[test]
fn forged_packets_do_not_come_in_and_do_not_move_the_window() {
    let sa = variant(0x1001);
    let sealed = sa.seal(&numbered(0..40));
    let mut forged = sealed.clone();
    forged.iter_mut().for_each(|packet| packet[40] ^= 1);
    let (mut worker, mut device) = (worker(64), Device::usual());
    let receiver = Arc::new(receiving(&[sa], spd(protect(0))));
    device.arrive(&mut worker, &receiver, &forged);
    device.arrive(&mut worker, &receiver, &sealed);
    device.settle(&mut worker, None);
    assert_eq!(last_bytes(&device.exits.inner), (0..40).collect::<Vec<u8>>());
    assert_eq!((drops(&worker, DropReason::BadIcv), all_drops(&worker)), (40, 40));
}

#[test]
fn of_two_copies_in_flight_exactly_one_is_delivered() {
    let sa = variant(0x1001);
    let sealed = sa.seal(&numbered(0..20));
    let (mut worker, mut device) = (worker(64), Device::usual());
    let receiver = Arc::new(receiving(&[sa], spd(protect(0))));
    // In two batches, and twice in one of them.
    device.arrive(&mut worker, &receiver, &sealed);
    device.arrive(&mut worker, &receiver, &[&sealed[..], &sealed[10..]].concat());
    assert_eq!(all_drops(&worker), 0, "all pass the first check");
    device.settle(&mut worker, None);
    assert_eq!(last_bytes(&device.exits.inner), (0..20).collect::<Vec<u8>>());
    assert_eq!((drops(&worker, DropReason::Replay), all_drops(&worker)), (30, 30));
    device.arrive(&mut worker, &receiver, &sealed[..1]);
    assert_eq!(drops(&worker, DropReason::Replay), 31, "the first check finds what was delivered");
}

/// Publishes tables with these SAs as inbound ones, which keep their windows.
fn next_tables(publisher: &Publisher, slots: &[u32], policies: Spd) {
    let current = publisher.current();
    let sas = slots.iter().map(|slot| Arc::clone(current.sad.get(*slot).unwrap())).collect();
    let keys = (0..).map_while(|id| current.keys.shared(crypto::KeyId(id)));
    let mut table = KeyTable::default();
    keys.for_each(|key| {
        table.insert(key);
    });
    publisher.publish(Snapshot::new(sas, vec![], policies, table, CodePoints::default()).unwrap());
}

#[test]
fn an_sa_that_is_removed_meanwhile_receives_nothing_and_others_do() {
    let sas = [variant(0x1001), variant(0x1002)];
    let [old, kept] = sas.map(|sa| sa.seal(&numbered(0..20)));
    let (mut worker, mut device) = (worker(64), Device::usual());
    let mut tables = receiving(&sas, spd(protect(0)));
    tables.groups = vec![0, 0];
    let publisher = Publisher::new(tables);
    let mixed: Vec<_> = old.iter().zip(&kept).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
    device.arrive(&mut worker, &publisher.current(), &mixed);
    // The one that stays moves to another slot. The keys of the batch stay until it has returned.
    let before = Arc::downgrade(&publisher.current());
    next_tables(&publisher, &[1], spd(protect(0)));
    assert!(before.upgrade().is_some());
    device.settle(&mut worker, Some(&publisher.current()));
    assert_eq!(last_bytes(&device.exits.inner), (0..20).collect::<Vec<u8>>());
    assert_eq!((drops(&worker, DropReason::NoSa), all_drops(&worker)), (20, 20));
    assert!(before.upgrade().is_none(), "old keys are released");
    // New tables with the same SAs drop nothing.
    device.arrive(&mut worker, &publisher.current(), &sas[1].seal(&numbered(0..30))[20..]);
    next_tables(&publisher, &[0], spd(protect(0)));
    device.settle(&mut worker, Some(&publisher.current()));
    assert_eq!((device.exits.inner.len(), all_drops(&worker)), (30, 20));
}

#[test]
fn an_outbound_sa_that_is_removed_meanwhile_sends_what_has_its_numbers() {
    let publisher = tunnel(1500);
    let (mut worker, mut replies) = (worker(64), Batch::new(8, BYTES));
    let mut device = Device::usual();
    let mut batch = batch_of(&numbered(0..40));
    assert!(device.take_inner(&mut worker, &publisher.current(), &mut batch, &mut replies));
    publisher
        .publish(Snapshot::new(vec![], vec![], Spd::default(), KeyTable::default(), CodePoints::default()).unwrap());
    let current = publisher.current();
    // A later packet has no policy any more.
    let mut batch = batch_of(&numbered(40..41));
    assert!(device.take_inner(&mut worker, &current, &mut batch, &mut replies));
    device.settle(&mut worker, Some(&current));
    assert_eq!(device.exits.outer.len(), 40);
    assert_eq!((drops(&worker, DropReason::NoPolicy), all_drops(&worker)), (1, 1));
}

#[test]
fn a_failed_port_releases_its_batch() {
    struct Broken;
    impl Sink for Broken {
        fn outer(&mut self, _: &mut Batch) -> std::io::Result<After> {
            Err(std::io::Error::other("a test's own port"))
        }
        fn inner(&mut self, _: &mut Batch) -> std::io::Result<()> {
            Ok(())
        }
    }
    let tables = tunnel(1500).current();
    let (mut worker, mut replies) = (worker(64), Batch::new(8, BYTES));
    let mut device = Device::usual();
    assert!(device.take_inner(&mut worker, &tables, &mut batch_of(&numbered(0..5)), &mut replies));
    while device.scheduler.in_use() > 0 {
        device.clock.advance(1000);
        let _ = device.scheduler.work(&mut worker, None, &mut Broken);
    }
    assert!(device.scheduler.has_all_memory(128));
    assert!(device.take_inner(&mut worker, &tables, &mut batch_of(&numbered(5..9)), &mut replies));
    device.settle(&mut worker, None);
    assert_eq!(device.exits.outer.iter().map(|packet| seq(packet)).collect::<Vec<_>>(), [6, 7, 8, 9]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Any device, batches of any size in both directions, polled at any time: what is delivered is
    /// in order, and what is not is counted.
    #[test]
    fn packets_are_delivered_in_order_or_counted(
        sizes in prop::collection::vec((0usize..40, any::<bool>(), 0u64..3000), 1..30),
        overhead_ns in 0u64..3000, batch in 1usize..4, capacity in 1usize..8, owner_computes: bool,
        launch in 0u64..20, kind in 0usize..7,
    ) {
        let kinds = State::ALL.map(FaultKind::Gone).into_iter().chain([FaultKind::Silent, FaultKind::Slow(3)]);
        let fault = kinds.map(|kind| Fault { launch, kind }).nth(kind);
        let sa: Variant = variant(0x1001);
        let (sender, receiver) = (tunnel(1500).current(), Arc::new(receiving(&[sa], spd(protect(0)))));
        let sealed = sa.seal(&numbered(0..128));
        let (mut worker, mut replies) = (worker(64), Batch::new(8, BYTES));
        let properties = Properties { overhead_ns, ns_per_byte: 0.0, batch, capacity, fault };
        let mut device = Device::new(Engine::best(), properties, AsyncConfig { owner_computes, ..config() });
        let (mut now_ms, mut sent, mut arrived) = (0, 0, 0);
        for (count, outbound, ns) in sizes {
            if device.scheduler.has_room() && outbound {
                let mut batch = batch_of(&vec![packet(1, 60, 0); count]);
                prop_assert!(device.take_inner(&mut worker, &sender, &mut batch, &mut replies));
                sent += count;
            } else if device.scheduler.has_room() {
                let count = count.min(sealed.len() - arrived);
                device.arrive(&mut worker, &receiver, &sealed[arrived..arrived + count]);
                arrived += count;
            }
            device.clock.advance(ns);
            device.work(&mut worker, None);
        }
        while device.scheduler.in_use() > 0 {
            now_ms += 5;
            worker.tick(now_ms);
            device.clock.advance(1000);
            device.work(&mut worker, None);
            prop_assert!(now_ms < 100_000);
        }
        let (out, inn) = (&device.exits.outer, &device.exits.inner);
        prop_assert!(out.is_sorted_by(|a, b| seq(a) < seq(b)));
        prop_assert!(last_bytes(inn).is_sorted_by(|a, b| a < b));
        prop_assert_eq!((sent + arrived - out.len() - inn.len()) as u64, drops(&worker, DropReason::EngineGone));
        prop_assert_eq!(all_drops(&worker), drops(&worker, DropReason::EngineGone));
        prop_assert!(device.scheduler.has_all_memory(64));
        if device.scheduler.take_failure().is_none() {
            prop_assert_eq!((out.len(), inn.len()), (sent, arrived));
        }
    }
}
