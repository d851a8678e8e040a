//! SAs with a constant rate: workers, a pacer and a receiver under simulated time.

use ipsec::aggfrag::Settings;
use proptest::collection::vec;

use super::aggfrag::{Kind, mode, packet, protect};
use super::*;
use crate::{PacedSa, PacedStream, Pacer};

/// 1400 bytes every 112 µs.
const RATE: Settings = Settings {
    reorder_window: 3,
    drop_time_ms: 25,
    packet_size: 1400,
    dont_fragment: false,
    refuse_fragments: false,
    rate_kbps: 100_000,
    prefer_whole: true,
};

/// Time between two slots in ns.
const SLOT: u64 = 112_000;
/// Packets of one batch of a worker.
const BATCH: usize = 64;

/// An outer packet and the time at which it was sent.
type Sent = (u64, Vec<u8>);

/// Sender with two workers and a pacer, and receiver.
struct Paced {
    kind: Kind,
    settings: Settings,
    publisher: Publisher,
    stream: Arc<PacedStream>,
    workers: [Worker; 2],
    pacer: Pacer,
    receiver: Worker,
    replies: Batch,
    now: u64,
}

/// Tables with one SA.
fn tables(sa: OutboundSa, keys: KeyTable, stream: Option<&Arc<PacedStream>>) -> Snapshot {
    let mut tables = Snapshot::new(vec![], vec![Arc::new(sa)], protect(), keys, CodePoints::default()).unwrap();
    tables.paced = stream.map(|stream| PacedSa { slot: 0, stream: Arc::clone(stream) }).into_iter().collect();
    tables
}

impl Paced {
    fn new(settings: Settings) -> Self {
        Self::of(Kind::Esp, settings, Lifetime::NONE)
    }

    fn of(kind: Kind, settings: Settings, lifetime: Lifetime) -> Self {
        let stream = PacedStream::new(settings.rate_kbps, 2);
        let mut keys = KeyTable::default();
        let sa = kind.outbound(mode(settings, lifetime, false), &mut keys);
        let config = |core| WorkerConfig { engine: Engine::AwsLc, batch: BATCH, packet_bytes: 9000, ..small(core) };
        Self {
            kind,
            settings,
            publisher: Publisher::new(tables(sa, keys, Some(&stream))),
            stream,
            workers: [0, 1].map(|core| Worker::new(config(core)).0),
            pacer: Pacer::new(config(2)).0,
            receiver: Worker::new(config(0)).0,
            replies: Batch::new(4, 2048),
            now: 5_000_000,
        }
    }

    fn sa(&self) -> Arc<OutboundSa> {
        Arc::clone(&self.publisher.current().outbound[0])
    }

    /// Publishes an SA after a rekeying, with the stream or without any.
    fn replace(&mut self, stream: bool) {
        let mut keys = KeyTable::default();
        let sa = self.kind.outbound(mode(self.settings, Lifetime::NONE, false), &mut keys);
        self.publisher.publish(tables(sa, keys, stream.then_some(&self.stream)));
    }

    /// Worker `core` gets `packets` from its hosts. Nothing may leave at once.
    fn push(&mut self, core: usize, packets: &[Vec<u8>]) {
        for packets in packets.chunks(BATCH) {
            let mut batch = Batch::with_reserve(BATCH, 2 * BATCH, 65_536);
            packets.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
            self.workers[core].outbound(&self.publisher.current(), &mut batch, &mut self.replies);
            assert!(batch.is_empty(), "a worker sends a packet of an SA with a constant rate");
        }
    }

    /// The pacer works until `end`, and each wait of it ends `late` ns after its time.
    fn run(&mut self, end: u64, late: u64) -> Vec<Sent> {
        let mut sent = Vec::new();
        loop {
            self.pacer.prepare(self.now, &self.publisher.current());
            let due = self.pacer.due_ns().unwrap_or(u64::MAX).max(self.now);
            if due >= end {
                self.now = end;
                return sent;
            }
            self.now = due + late;
            let now = self.now;
            let tx = |batch: &mut Batch| {
                sent.extend(batch.packets().iter().map(|packet| (now, packet.bytes().to_vec())));
                batch.clear();
                Ok(())
            };
            self.pacer.send(now, tx).unwrap();
        }
    }

    /// Inner packets of what was sent.
    fn receive(&mut self, sent: &[Sent]) -> Vec<Vec<u8>> {
        let tables = self.kind.receiving(mode(self.settings, Lifetime::NONE, true));
        let mut left = Vec::new();
        let mut take = |batch: &mut Batch| {
            left.extend(batch.packets().iter().map(|packet| packet.bytes().to_vec()));
            batch.clear();
        };
        for sent in sent.chunks(BATCH) {
            let mut batch = Batch::with_reserve(BATCH, 2 * BATCH, 65_536);
            sent.iter().for_each(|(_, packet)| assert!(batch.push_with(|to| to.set(packet))));
            self.receiver.inbound(&tables, &mut batch);
            take(&mut batch);
            while self.receiver.unpack(&tables, &mut batch) {
                take(&mut batch);
            }
            take(&mut batch);
        }
        left
    }

    /// Publishes the SA between other addresses.
    fn move_to(&mut self, peer: Peer) {
        let (sa, keys) = (self.sa(), (*self.publisher.current().keys).clone());
        let outer = Outer { peer, ..sa.common.outer };
        self.publisher.publish(tables(sa.moved(outer), keys, Some(&self.stream)));
    }

    fn dropped(&self, why: DropReason) -> u64 {
        let counters = self.workers.each_ref().map(Worker::counters);
        Totals::of(counters.iter().map(|core| &**core)).drops[why as usize]
    }
}

/// Low halves of the sequence numbers.
fn numbers(sent: &[Sent]) -> Vec<u32> {
    sent.iter().map(|(_, packet)| u32::from_be_bytes(*packet[24..].first_chunk().unwrap())).collect()
}

/// Times and lengths: what an observer sees.
fn seen(sent: &[Sent]) -> Vec<(u64, usize)> {
    sent.iter().map(|(at, packet)| (*at, packet.len())).collect()
}

#[test]
fn times_and_sizes_do_not_depend_on_the_load() {
    for settings in [RATE, Settings { rate_kbps: 2_000_000, ..RATE }] {
        let (mut idle, mut busy) = (Paced::new(settings), Paced::new(settings));
        let (mut of_idle, mut of_busy) = (Vec::new(), Vec::new());
        for step in 1..=50 {
            busy.push(step % 2, &vec![packet(2, 40 + 28 * step, 7); 60]);
            let end = 5_000_000 + step as u64 * 1_000_000;
            of_idle.extend(idle.run(end, 3_000));
            of_busy.extend(busy.run(end, 3_000));
        }
        assert_eq!(seen(&of_idle), seen(&of_busy));
        // Outer header, SPI and sequence number.
        assert!(of_idle.iter().zip(&of_busy).all(|(idle, busy)| idle.1[..28] == busy.1[..28]));
        assert_eq!(numbers(&of_busy), (1..=of_busy.len() as u32).collect::<Vec<_>>());
        assert!(of_idle.iter().all(|(_, packet)| packet.len() == 1400));
        let bits = of_idle.len() as u64 * 1400 * 8;
        let expected = u64::from(settings.rate_kbps) * 50;
        assert!(bits.abs_diff(expected) <= 20 * 1400 * 8, "{bits} bits in 50 ms, not {expected}");
        let (idle, busy) = (idle.stream.counts(), busy.stream.counts());
        assert_eq!((idle.packets, idle.padding), (of_idle.len() as u64, of_idle.len() as u64));
        assert!(busy.padding + 100 < busy.packets && busy.late == 0 && busy.restarts == 1, "{busy:?}");
    }
}

#[test]
fn slots_are_multiples_of_the_interval_however_late_the_thread_is() {
    let mut paced = Paced::new(RATE);
    let sent = paced.run(5_000_000 + 1000 * SLOT, 0);
    assert_eq!(sent.len(), 1000);
    assert!((0..).zip(&sent).all(|(n, (at, _))| *at == 5_000_000 + n * SLOT));
    // Off the CPU for 20 slots: they are sent at once, and no slot is missing afterwards.
    paced.now += 20 * SLOT;
    let sent = paced.run(5_000_000 + 2000 * SLOT, 0);
    assert_eq!(sent.len(), 1000);
    assert!(sent.iter().filter(|(at, _)| *at == 5_000_000 + 1020 * SLOT).count() >= 20);
    assert_eq!(sent.last().unwrap().0, 5_000_000 + 1999 * SLOT);
    let counts = paced.stream.counts();
    assert!((19..=21).contains(&counts.late), "{counts:?}");
    assert_eq!(Totals::of([&*paced.pacer.counters()]).paced_late, counts.late);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn every_packet_arrives_once_and_all_outer_packets_are_equal(
        sizes in vec((28_usize..3000, 0_usize..2, 0_u64..4), 1..20), rate in prop_oneof![Just(64), Just(100_000), Just(10_000_000)],
        size in 300_u16..1500, dont_fragment: bool, prefer_whole: bool, kind in 0_usize..2,
    ) {
        let settings = Settings { rate_kbps: rate, packet_size: size, dont_fragment, prefer_whole, ..RATE };
        let mut paced = Paced::of(Kind::ALL[kind], settings, Lifetime::NONE);
        let (mut sent, mut pushed) = (Vec::new(), [vec![], vec![]]);
        for (i, (len, core, slots)) in sizes.into_iter().enumerate() {
            let len = if dont_fragment { len.min(usize::from(size) - 120).max(28) } else { len };
            // Each worker has its own flows.
            let packet = packet(2 + core as u8, len, i as u8);
            paced.push(core, std::slice::from_ref(&packet));
            pushed[core].push(packet);
            let end = paced.now + slots * u64::from(size) * 8_000_000 / u64::from(rate);
            sent.extend(paced.run(end, 0));
        }
        while paced.stream.queued_bytes() > 0 {
            let end = paced.now + u64::from(size) * 8_000_000 / u64::from(rate);
            sent.extend(paced.run(end, 0));
        }
        // What was sealed last, and one burst of padding.
        let end = paced.now + 200 * u64::from(size) * 8_000_000 / u64::from(rate);
        sent.extend(paced.run(end, 0));
        prop_assert!(sent.iter().all(|(_, packet)| packet.len() == sent[0].1.len()));
        prop_assert!(sent[0].1.len() <= usize::from(size) && sent[0].1.len() + 4 > usize::from(size));
        let received = paced.receive(&sent);
        for (core, pushed) in pushed.iter().enumerate() {
            let of_core: Vec<_> = received.iter().filter(|packet| packet[19] == 2 + core as u8).collect();
            prop_assert!(of_core.iter().copied().eq(pushed), "{} of {}", of_core.len(), pushed.len());
        }
    }
}

#[test]
fn a_rekeying_loses_no_packet_and_keeps_the_schedule() {
    // At some of these steps a packet is cut, at others none is.
    for replaced in 15..25 {
        let mut paced = Paced::new(RATE);
        let (mut sent, mut pushed) = (Vec::new(), Vec::new());
        for step in 1..=40_u64 {
            // More than the slots carry.
            let packets = [packet(2, 1300, step as u8), packet(2, 700, step as u8)];
            paced.push(0, &packets);
            pushed.extend(packets);
            sent.extend(paced.run(5_000_000 + step * SLOT, 0));
            if step == replaced {
                paced.replace(true);
            }
        }
        sent.extend(paced.run(paced.now + 40 * SLOT, 0));
        assert!((0..).zip(seen(&sent)).all(|(n, sent)| sent == (5_000_000 + n * SLOT, 1400)));
        // The first packet of the new SA has the number 1; one was sealed before.
        let at = numbers(&sent).iter().rposition(|number| *number == 1).unwrap();
        assert_eq!(at as u64, replaced + 1);
        let (old, new) = sent.split_at(at);
        assert_eq!(numbers(new), (1..=new.len() as u32).collect::<Vec<_>>());
        let mut received = paced.receive(old);
        paced.receiver = Worker::new(WorkerConfig { engine: Engine::AwsLc, batch: BATCH, ..small(0) }).0;
        received.extend(paced.receive(new));
        assert_eq!(received, pushed, "after step {replaced}");
    }
}

#[test]
fn an_sa_that_moves_keeps_its_numbers_and_its_cut_packet() {
    let mut paced = Paced::new(RATE);
    let packets: Vec<_> = (0..20).map(|mark| packet(2, 2000, mark)).collect();
    paced.push(0, &packets);
    let mut sent = paced.run(5_000_000 + 7 * SLOT, 0);
    paced.move_to(Peer { local: [198, 51, 100, 9].into(), ..paced.sa().common.outer.peer });
    sent.extend(paced.run(5_000_000 + 40 * SLOT, 0));
    assert_eq!(numbers(&sent), (1..=40).collect::<Vec<_>>());
    let from = |packet: &[u8]| packet[15];
    assert_eq!(sent.iter().filter(|(_, packet)| from(packet) == 1).count(), 8, "one was sealed before");
    // The addresses of an outer packet are not authenticated.
    sent.iter_mut().for_each(|(_, packet)| {
        packet[12..16].copy_from_slice(&[198, 51, 100, 1]);
        packet[10..12].copy_from_slice(&[0, 0]);
        let sum = wire::checksum::Sum::default().add(&packet[..20]).finish();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    });
    assert_eq!(paced.receive(&sent), packets);
}

#[test]
fn without_a_stream_or_below_the_path_mtu_nothing_leaves() {
    let mut paced = Paced::new(RATE);
    paced.replace(false);
    paced.push(0, &[packet(2, 100, 1)]);
    assert_eq!((paced.dropped(DropReason::Inconsistent), paced.pacer.due_ns()), (1, None));
    assert_eq!(paced.run(50_000_000, 0), []);
    assert!(paced.pacer.is_idle());

    let mut paced = Paced::new(RATE);
    assert_eq!(paced.run(5_000_000 + 10 * SLOT, 0).len(), 10);
    paced.sa().set_path_mtu(1399);
    paced.push(0, &[packet(2, 100, 1)]);
    assert_eq!(paced.dropped(DropReason::TooBig), 1);
    // One is sealed already.
    assert_eq!(paced.run(100_000_000, 0).len(), 1);
    assert!(!paced.stream.counts().running);
    paced.sa().set_path_mtu(1400);
    paced.push(0, &[packet(2, 100, 2)]);
    let sent = paced.run(200_000_000, 0);
    assert!(sent.len() > 700 && paced.stream.counts().running && paced.stream.counts().restarts == 2);
    assert_eq!(paced.receive(&sent), [packet(2, 100, 2)]);
}

#[test]
fn a_full_queue_drops_the_newest_packets() {
    let mut paced = Paced::new(Settings { rate_kbps: 64, ..RATE });
    let packets: Vec<_> = (0..100).map(|mark| packet(2, 1000, mark)).collect();
    paced.push(0, &packets[..60]);
    paced.push(1, &packets[60..]);
    // 64 KiB, for both workers together.
    assert_eq!((paced.dropped(DropReason::QueueFull), paced.stream.queued_bytes()), (35, 65_000));
    assert_eq!(paced.sa().common.counters.drops[DropReason::QueueFull as usize].load(Ordering::Relaxed), 35);
    let sent = paced.run(60_000_000_000, 0);
    let mut received = paced.receive(&sent);
    received.sort();
    let mut expected = packets[..65].to_vec();
    expected.sort();
    assert_eq!(received, expected);
}

#[test]
fn hard_limits_and_the_last_number_end_the_stream() {
    let limit = Lifetime { packets: 25, bytes: u64::MAX };
    let mut paced = Paced::of(Kind::Esp, RATE, limit);
    let sent = paced.run(100_000_000, 0);
    assert_eq!(numbers(&sent), (1..=25).collect::<Vec<_>>());
    assert!(!paced.stream.counts().running);
    paced.push(0, &[packet(2, 100, 1)]);
    assert_eq!(paced.dropped(DropReason::Expired), 1);

    let mut paced = Paced::new(RATE);
    paced.sa().lanes[0].seq.reserve(u32::MAX - 10).unwrap();
    let sent = paced.run(100_000_000, 0);
    assert_eq!(numbers(&sent), (u32::MAX - 9..=u32::MAX).collect::<Vec<_>>());
    assert!(!paced.stream.counts().running);
}

#[test]
fn a_packet_that_must_not_be_cut_and_is_too_large_is_answered_or_cut_before() {
    let mut paced = Paced::new(Settings { dont_fragment: true, ..RATE });
    let mut large = packet(2, 1500, 1);
    large[6] = 0x40;
    paced.push(0, std::slice::from_ref(&large));
    assert_eq!((paced.replies.len(), paced.dropped(DropReason::TooBig)), (1, 1));
    large[6] = 0;
    paced.push(0, &[large]);
    let sent = paced.run(10_000_000, 0);
    let received = paced.receive(&sent);
    assert_eq!(received.len(), 2);
    assert_eq!(received.iter().map(|piece| piece.len() - 20).sum::<usize>(), 1480);
}

#[test]
fn packets_of_an_sa_that_the_peer_may_not_have_wait() {
    let mut paced = Paced::new(RATE);
    let (mut keys, timed_out) = (KeyTable::default(), Arc::new(AtomicBool::new(false)));
    let sa = paced.kind.outbound(mode(RATE, Lifetime::NONE, false), &mut keys);
    let inbound = paced.kind.receiving(mode(RATE, Lifetime::NONE, true)).sad.get(0).cloned().unwrap();
    let mut next = tables(sa, keys, Some(&paced.stream));
    next.unconfirmed = vec![UnconfirmedSa { slot: 0, trap: 7, inbound, timed_out: Arc::clone(&timed_out) }];
    paced.publisher.publish(next);
    assert_eq!(paced.run(100_000_000, 0), []);
    timed_out.store(true, Ordering::Relaxed);
    assert!(paced.run(200_000_000, 0).len() > 700);
}

#[test]
fn a_queued_packet_that_exceeds_smaller_payloads_does_not_block_the_queue() {
    let mut paced = Paced::new(Settings { dont_fragment: true, ..RATE });
    let room = paced.sa().payload_len() - 4;
    paced.push(0, &[packet(2, room, 1), packet(2, room, 2), packet(2, 500, 3)]);
    assert_eq!(paced.stream.queued_bytes(), 2 * room + 500);
    // IPv6 headers are longer.
    paced.move_to(Peer { local: "2001:db8::1".parse().unwrap(), remote: "2001:db8::2".parse().unwrap() });
    let sent = paced.run(5_000_000 + 10 * SLOT, 0);
    assert!(sent.len() == 10 && sent.iter().all(|(_, packet)| packet.len() == 1400));
    assert_eq!((paced.stream.queued_bytes(), paced.stream.counts().padding), (0, 9));
    let too_big = DropReason::TooBig as usize;
    assert_eq!(Totals::of([&*paced.pacer.counters()]).drops[too_big], 2);
    assert_eq!(paced.sa().common.counters.drops[too_big].load(Ordering::Relaxed), 2);
}

#[test]
fn a_new_sa_cuts_packets_as_its_own_settings_permit() {
    for before in [false, true] {
        let with = |dont_fragment| Settings { dont_fragment, refuse_fragments: dont_fragment, ..RATE };
        let mut paced = Paced::new(with(before));
        paced.run(5_000_000 + 3 * SLOT, 0);
        paced.settings = with(!before);
        paced.replace(true);
        let packets: Vec<_> = (0..10).map(|mark| packet(2, if before { 2000 } else { 800 }, mark)).collect();
        paced.push(0, &packets);
        let sent = paced.run(5_000_000 + 40 * SLOT, 0);
        // One was sealed before.
        assert_eq!(paced.receive(&sent[1..]), packets, "cuts were forbidden before: {before}");
    }
}

#[test]
fn the_length_of_packets_does_not_follow_the_path_mtu() {
    let mut paced = Paced::new(Settings { dont_fragment: true, ..RATE });
    let whole = packet(2, paced.sa().payload_len() - 4, 1);
    // As between the two writes of a worker that learns a smaller path MTU.
    paced.sa().inner_mtu.store(500, Ordering::Relaxed);
    paced.push(0, std::slice::from_ref(&whole));
    let sent = paced.run(5_000_000 + 10 * SLOT, 0);
    assert!(sent.len() == 10 && sent.iter().all(|(_, packet)| packet.len() == 1400));
    assert_eq!(paced.receive(&sent), [whole]);
}

#[test]
fn packets_stay_in_the_queue_when_a_limit_permits_a_part_of_a_burst() {
    // Bursts of 5 packets.
    let settings = Settings { rate_kbps: 1_000_000, ..RATE };
    let packets: Vec<_> = (0..30).map(|mark| packet(2, 1000, mark)).collect();
    let limits = [Lifetime { packets: 13, bytes: u64::MAX }, Lifetime { packets: u64::MAX, bytes: 13 * 1400 }];
    for limit in [limits[0], limits[1], Lifetime::NONE] {
        let mut paced = Paced::of(Kind::Esp, settings, limit);
        let first = if limit == Lifetime::NONE { u32::MAX - 12 } else { 1 };
        if limit == Lifetime::NONE {
            paced.sa().lanes[0].seq.reserve(first - 1).unwrap();
        }
        paced.push(0, &packets);
        let mut sent = paced.run(100_000_000, 0);
        assert_eq!(numbers(&sent), (first..first + 10).collect::<Vec<_>>());
        assert_eq!(paced.sa().common.check_lifetime().is_err(), limit != Lifetime::NONE, "IKE replaces the SA");
        let mut received = paced.receive(&sent);
        paced.replace(true);
        sent = paced.run(101_000_000, 0);
        paced.receiver = Worker::new(WorkerConfig { engine: Engine::AwsLc, batch: BATCH, ..small(0) }).0;
        received.extend(paced.receive(&sent));
        assert_eq!(received, packets, "{limit:?}");
    }
}

#[test]
fn fragments_are_queued_all_or_none() {
    let mut paced = Paced::new(Settings { dont_fragment: true, rate_kbps: 64, ..RATE });
    paced.push(0, &vec![packet(2, 1000, 1); 64]);
    // There is room for the first of its fragments alone.
    paced.push(0, &[packet(2, 2000, 2)]);
    assert_eq!((paced.dropped(DropReason::QueueFull), paced.stream.queued_bytes()), (1, 64_000));
}

#[test]
fn buffers_of_payloads_that_were_not_sealed_are_overwritten() {
    let mut batch = Batch::new(2, 100);
    assert!(batch.push_with(|to| to.set(&[7; 100])));
    batch.wipe();
    let mut zero = 0;
    while batch.push_with(|packet| packet.receive_area().iter().all(|byte| *byte == 0)) {
        zero += 1;
    }
    assert_eq!(zero, 2);
}

/// Tables with an SA for each of `streams`, which have rates.
fn tables_of(streams: &[Arc<PacedStream>], rates: &[u32]) -> Snapshot {
    let mut keys = KeyTable::default();
    let sa = |rate: &u32| {
        let settings = Settings { rate_kbps: *rate, ..RATE };
        Arc::new(Kind::Esp.outbound(mode(settings, Lifetime::NONE, false), &mut keys))
    };
    let sas = rates.iter().map(sa).collect();
    let mut tables = Snapshot::new(vec![], sas, protect(), keys, CodePoints::default()).unwrap();
    let paced = |(slot, stream): (u32, &Arc<PacedStream>)| PacedSa { slot, stream: Arc::clone(stream) };
    tables.paced = (0..).zip(streams).map(paced).collect();
    tables
}

#[test]
fn a_burst_that_is_due_soon_is_sent_before_another_is_sealed() {
    let streams = [(); 3].map(|()| PacedStream::new(RATE.rate_kbps, 1));
    let mut paced = Paced::new(RATE);
    paced.publisher.publish(tables_of(&streams, &[RATE.rate_kbps; 3]));
    let next = |paced: &Paced| paced.publisher.current().outbound.iter().map(|sa| sa.lanes[0].seq.next()).collect();
    // All are new and due: one is sealed, and leaves before the next one is sealed.
    let sent = |paced: &mut Paced, now| {
        let mut count = 0;
        paced.pacer.prepare(now, &paced.publisher.current());
        let numbers: Vec<u64> = next(paced);
        let tx = |batch: &mut Batch| {
            count += batch.len();
            Ok(())
        };
        paced.pacer.send(now, tx).unwrap();
        (numbers, count)
    };
    let start = paced.now;
    assert_eq!(sent(&mut paced, start), (vec![2, 1, 1], 1));
    assert_eq!(sent(&mut paced, start), (vec![2, 2, 1], 1));
    // 5 µs before the first is due again it is sealed, and then nothing is until it was sent.
    assert_eq!(sent(&mut paced, start), (vec![2, 2, 2], 1));
    assert_eq!(sent(&mut paced, start + SLOT - 5_000), (vec![3, 2, 2], 0));
    assert_eq!(sent(&mut paced, start + SLOT - 5_000), (vec![3, 2, 2], 0));
    assert_eq!(paced.pacer.due_ns(), Some(start + SLOT));
    assert_eq!(sent(&mut paced, start + SLOT), (vec![3, 2, 2], 1));
    assert_eq!(sent(&mut paced, start + SLOT), (vec![3, 3, 2], 1));
    // With time enough each has all of its slots.
    paced.now = start + SLOT;
    let all = paced.run(start + 1000 * SLOT, 0);
    assert_eq!(all.len(), 3 * 999 - 2);
    assert!(all.iter().all(|(at, _)| (at - start).is_multiple_of(SLOT)));
}

#[test]
fn a_stream_that_is_behind_delays_another_by_one_burst() {
    let rates = [RATE.rate_kbps, RATE.rate_kbps / 100];
    let streams = rates.map(|rate| PacedStream::new(rate, 1));
    let mut paced = Paced::new(RATE);
    paced.publisher.publish(tables_of(&streams, &rates));
    let tables = paced.publisher.current();
    let sealed = |slot: usize| tables.outbound[slot].lanes[0].seq.next();
    let start = paced.now;
    let mut sent = [0, 0];
    while paced.now < start + 1000 * SLOT {
        let before = sealed(0);
        paced.pacer.prepare(paced.now, &tables);
        // Each burst of the first stream takes the time of two slots.
        paced.now += 2 * SLOT * (sealed(0) - before);
        let tx = |batch: &mut Batch| {
            batch.clear();
            Ok(())
        };
        paced.pacer.send(paced.now, tx).unwrap();
        sent = [0, 1].map(|stream: usize| streams[stream].counts().packets);
        let due = 1 + (paced.now - start).saturating_sub(5 * SLOT) / (100 * SLOT);
        assert!(sent[1] >= due || paced.now < start + 10 * SLOT, "{} of {due} after {sent:?}", sent[1]);
    }
    assert!(sent[0] > 450 && sent[1] >= 10, "{sent:?}");
}
