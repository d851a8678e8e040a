//! AGGFRAG mode: several inner packets in one outer packet, and one in several.

mod mixed;

use ipsec::aggfrag::Settings;
use wire::ip::DONT_FRAGMENT;

use super::*;

/// SPI of the SA.
const SPI: u32 = 0x1001;
/// Largest payload of an outer packet of 1500 bytes: without IP header, ESP header, IV and ICV, a
/// multiple of 4 without the two bytes of the trailer.
const PAYLOAD: usize = 1446;

/// Tables of a sender and a receiver with one SA in AGGFRAG mode.
struct Ends {
    tables: [Arc<Snapshot>; 2],
    sender: Worker,
    receiver: Worker,
    /// Packets of one batch.
    most: usize,
    replies: Batch,
}

pub(super) fn mode(settings: Settings, lifetime: Lifetime, receiving: bool) -> SaCommon {
    let mut outer = common().outer;
    if receiving {
        outer.peer = outer.peer.reversed();
    }
    SaCommon::new("moon", Mode::Aggfrag(settings), outer, lifetime)
}

/// An SA in AGGFRAG mode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Esp,
    Eesp,
    /// EESP with this number of Sub SAs.
    SubSas(u32),
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Esp, Self::Eesp, Self::SubSas(2)];

    fn eesp(self) -> eesp::Spec<'static> {
        let (sub_sas, key) = match self {
            Self::SubSas(count) => (Some((SubSaKdf::HkdfSha256, count)), &[7; 32][..]),
            _ => (None, &[7; 20][..]),
        };
        let suite = Suite::parse_esp("aes128gcm16").unwrap();
        eesp::Spec { sub_sas, ..eesp::Spec::new(SPI.try_into().unwrap(), suite, key) }
    }

    pub(super) fn outbound(self, common: SaCommon, keys: &mut KeyTable) -> OutboundSa {
        match self {
            Self::Esp => esp::outbound(common, &spec(1), Engine::AwsLc, keys).unwrap(),
            _ => eesp::outbound(common, &self.eesp(), Engine::AwsLc, keys).unwrap(),
        }
    }

    pub(super) fn receiving(self, common: SaCommon) -> Arc<Snapshot> {
        let mut keys = KeyTable::default();
        let inn = match self {
            Self::Esp => esp::inbound(common, &spec(0), Engine::AwsLc, &mut keys).unwrap(),
            _ => eesp::inbound(common, &self.eesp(), Engine::AwsLc, &mut keys).unwrap(),
        };
        Publisher::new(Snapshot::new(vec![Arc::new(inn)], vec![], protect(), keys, CodePoints::default()).unwrap())
            .current()
    }
}

pub(super) fn protect() -> Spd {
    spd(Action::Protect { outbound: 0, inbound: 0 })
}

impl Ends {
    fn new(settings: Settings, path_mtu: usize, most: usize) -> Self {
        Self::with_lifetime(settings, path_mtu, most, Lifetime::NONE)
    }

    fn with_lifetime(settings: Settings, path_mtu: usize, most: usize, lifetime: Lifetime) -> Self {
        Self::of(Kind::Esp, settings, path_mtu, most, lifetime)
    }

    fn of(kind: Kind, settings: Settings, path_mtu: usize, most: usize, lifetime: Lifetime) -> Self {
        let mut keys = KeyTable::default();
        let out = kind.outbound(mode(settings, lifetime, false), &mut keys);
        out.set_path_mtu(path_mtu);
        let sending = Snapshot::new(vec![], vec![Arc::new(out)], protect(), keys, CodePoints::default()).unwrap();
        let config = |core| WorkerConfig { engine: Engine::AwsLc, batch: most, ..small(core) };
        Self {
            tables: [Publisher::new(sending).current(), kind.receiving(mode(settings, lifetime, true))],
            sender: Worker::new(config(0)).0,
            receiver: Worker::new(config(0)).0,
            most,
            replies: Batch::new(4, 2048),
        }
    }

    fn batch(&self) -> Batch {
        Batch::with_reserve(self.most, 2 * self.most, 2048)
    }

    /// The outer packets that `packets` become in one batch; in the pipeline another worker seals
    /// them.
    fn send(&mut self, packets: &[Vec<u8>], halves: impl Into<Halves>) -> Vec<Vec<u8>> {
        let mut batch = self.batch();
        packets.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
        match halves.into() {
            Halves::Joined => self.sender.outbound(&self.tables[0], &mut batch, &mut self.replies),
            Halves::Split => {
                let mut plan = Vec::with_capacity(3 * self.most);
                self.sender.plan(&self.tables[0], &mut batch, &mut self.replies, &mut plan);
                let config = WorkerConfig { engine: Engine::AwsLc, batch: self.most, ..small(1) };
                Worker::new(config).0.seal_planned(&self.tables[0], &mut batch, &plan);
            }
            Halves::Async => {
                let mut device = asynchronous::Device::of(self.most);
                return device.outbound(&mut self.sender, &self.tables[0], &mut batch, &mut self.replies);
            }
        }
        batch.packets().iter().map(|packet| packet.bytes().to_vec()).collect()
    }

    /// The inner packets of `outer`, which arrive in batches.
    fn receive(&mut self, outer: &[Vec<u8>], halves: impl Into<Halves>) -> Vec<Vec<u8>> {
        let (halves, mut device) = (halves.into(), None);
        let (mut batch, mut opened) = (self.batch(), Opened::with_capacity(self.most));
        let (mut left, tables) = (Vec::new(), Arc::clone(&self.tables[1]));
        let mut take = |batch: &mut Batch| {
            left.extend(batch.packets().iter().map(|packet| packet.bytes().to_vec()));
            batch.clear();
        };
        for outer in outer.chunks(self.most) {
            outer.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
            match halves {
                Halves::Joined => self.receiver.inbound(&tables, &mut batch),
                Halves::Split => {
                    self.receiver.open(&tables, &mut batch, &mut opened);
                    self.receiver.admit(&tables, &mut batch, &mut opened);
                }
                Halves::Async => {
                    let device = device.get_or_insert_with(|| asynchronous::Device::of(self.most));
                    for packet in device.inbound(&mut self.receiver, &tables, &mut batch) {
                        if batch.room() == 0 {
                            take(&mut batch);
                        }
                        assert!(batch.push_with(|to| to.set(&packet)));
                    }
                }
            }
            take(&mut batch);
            while self.receiver.unpack(&tables, &mut batch) {
                take(&mut batch);
            }
            take(&mut batch);
        }
        left
    }

    /// Inner packets after `ms` milliseconds.
    fn later(&mut self, ms: u64) -> Vec<Vec<u8>> {
        self.receiver.tick(ms);
        self.receive(&[], false).into_iter().chain(self.unpack()).collect()
    }

    fn unpack(&mut self) -> Vec<Vec<u8>> {
        let mut batch = self.batch();
        assert!(!self.receiver.unpack(&self.tables[1], &mut batch));
        batch.packets().iter().map(|packet| packet.bytes().to_vec()).collect()
    }

    fn dropped(worker: &Worker, why: DropReason) -> u64 {
        worker.counters().drops[why as usize].load(Ordering::Relaxed)
    }
}

/// An IPv4 UDP packet of `len` bytes to 192.0.2.`host` that contains `mark`.
pub(super) fn packet(host: u8, len: usize, mark: u8) -> Vec<u8> {
    let mut packet = PACKET.to_vec();
    packet.resize(len, mark);
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[24..26].copy_from_slice(&(len as u16 - 20).to_be_bytes());
    packet[19] = host;
    packet
}

fn cutting() -> Settings {
    Settings { prefer_whole: false, ..Settings::default() }
}

#[test]
fn small_packets_share_outer_packets_and_arrive_in_order() {
    let all = Halves::ALL.into_iter().flat_map(|out| Halves::ALL.map(|inn| (out, inn)));
    for (pipeline, engines) in all {
        let mut ends = Ends::new(cutting(), 1500, 256);
        let packets: Vec<_> = (0..220).map(|n| packet(2, 64, n)).collect();
        let outer = ends.send(&packets, pipeline);
        // 4 bytes of header and 64 bytes each.
        assert_eq!(outer.len(), (220 * 64_usize).div_ceil(PAYLOAD - 4));
        assert!(outer[..outer.len() - 1].iter().all(|packet| packet.len() == 1500));
        assert_eq!(ends.receive(&outer, engines), packets, "{pipeline:?} {engines:?}");
        // The SA counts outer packets.
        assert_eq!(ends.tables[0].outbound[0].common.counters.packets(), outer.len() as u64);
        assert_eq!(ends.tables[1].sad.get(0).unwrap().common.counters.packets(), outer.len() as u64);
        let counters = [ends.sender.counters(), ends.receiver.counters()];
        let sum = Totals::of(counters.iter().map(|counters| &**counters));
        assert_eq!((sum.inner_rx, sum.inner_tx), ((220, 220 * 64), (220, 220 * 64)));
        assert_eq!(sum.drops.iter().sum::<u64>(), 0);
    }
}

#[test]
fn a_packet_that_fills_a_payload_stays_in_its_buffer() {
    let mut ends = Ends::new(Settings::default(), 1500, 8);
    let mut batch = ends.batch();
    (0..5).for_each(|mark| assert!(batch.push_with(|to| to.set(&packet(2, 1400, mark)))));
    let buffers = |batch: &Batch| batch.packets().iter().map(Packet::address).collect::<Vec<_>>();
    let before = buffers(&batch);
    ends.sender.outbound(&ends.tables[0], &mut batch, &mut ends.replies);
    assert_eq!(buffers(&batch), before);
    ends.receiver.inbound(&ends.tables[1], &mut batch);
    assert_eq!(buffers(&batch), before);
    assert!(batch.packets().iter().zip(0..).all(|(inner, mark)| inner.bytes() == packet(2, 1400, mark)));
}

#[test]
fn eesp_has_the_full_format_and_a_stream_for_each_sub_sa() {
    let mut ends = Ends::of(Kind::SubSas(3), Settings { packet_size: 600, ..cutting() }, 1500, 64, Lifetime::NONE);
    let mut streams = Vec::new();
    for core in 0..3 {
        ends.sender = Worker::new(WorkerConfig { engine: Engine::AwsLc, batch: 64, ..small(core) }).0;
        let packets: Vec<_> = (0..7).map(|n| packet(2, 400, core as u8 * 10 + n)).collect();
        let outer = ends.send(&packets, false);
        for (outer, seq) in outer.iter().zip(1_u64..) {
            // Session ID and sequence number after the options: each Sub SA numbers its own stream.
            let seq_at = 28 + usize::from(outer[21]);
            assert_eq!(u16::from_be_bytes([outer[22], outer[23]]), core as u16);
            assert_eq!(u64::from_be_bytes(outer[seq_at..seq_at + 8].try_into().unwrap()), seq);
            assert!(outer.len() <= 600 && outer[9] == CodePoints::default().eesp_protocol.0);
        }
        streams.push((outer, packets));
    }
    // Outer packets of all streams by turns, of which all but the first begin with a piece.
    let mut turns = Vec::new();
    for at in 0..streams[0].0.len() {
        turns.extend(streams.iter().filter_map(|(outer, _)| outer.get(at).cloned()));
    }
    let inner = ends.receive(&turns, false);
    for (core, (_, packets)) in streams.iter().enumerate() {
        let own: Vec<_> = inner.iter().filter(|packet| usize::from(packet[30] / 10) == core).cloned().collect();
        assert_eq!(&own, packets, "{core}");
    }
    // A missing packet of one stream delays no other.
    let mut later = Vec::new();
    for core in 0..2 {
        ends.sender = Worker::new(WorkerConfig { engine: Engine::AwsLc, batch: 64, ..small(core) }).0;
        later.push(ends.send(&[packet(2, 1000, core as u8)], false));
    }
    assert_eq!(ends.receive(&later[0][1..], false), Vec::<Vec<u8>>::new());
    assert_eq!(ends.receive(&later[1], false), [packet(2, 1000, 1)]);
    assert_eq!(ends.receive(&later[0][..1], false), [packet(2, 1000, 0)]);
}

#[test]
fn other_payloads_of_eesp_are_dropped_and_contradictions_refused() {
    let mut tunnel = common();
    tunnel.outer.peer = tunnel.outer.peer.reversed();
    // A tunnel drops payloads; in the optimised format a payload is no IP packet.
    let mut ends = Ends::of(Kind::Eesp, cutting(), 1500, 8, Lifetime::NONE);
    let outer = ends.send(&[packet(2, 64, 1)], false);
    ends.tables[1] = Kind::Eesp.receiving(tunnel);
    assert_eq!(ends.receive(&outer, false), Vec::<Vec<u8>>::new());
    assert_eq!(Ends::dropped(&ends.receiver, DropReason::BadInner), 1);
    // A packet of a tunnel in the full format, which an option of no meaning requires.
    let mut ends = Ends::of(Kind::Eesp, cutting(), 1500, 8, Lifetime::NONE);
    let mut keys = KeyTable::default();
    let full = eesp::Spec { extra_options: &[0x99, 0], ..Kind::Eesp.eesp() };
    let tunnel = eesp::outbound(common(), &full, Engine::AwsLc, &mut keys).unwrap();
    let tables = Snapshot::new(vec![], vec![Arc::new(tunnel)], protect(), keys, CodePoints::default()).unwrap();
    ends.tables[0] = Publisher::new(tables).current();
    let outer = ends.send(&[packet(2, 64, 1)], false);
    assert_eq!((outer.len(), ends.receive(&outer, false).len()), (1, 0));
    assert_eq!(Ends::dropped(&ends.receiver, DropReason::BadInner), 1);

    for (spec, reason) in [
        (eesp::Spec { seq: false, ..Kind::Eesp.eesp() }, "sequence numbers"),
        (eesp::Spec { crypt_offset: Some(0), ..Kind::Eesp.eesp() }, "crypt offset"),
    ] {
        let mut keys = KeyTable::default();
        let common = mode(cutting(), Lifetime::NONE, false);
        let refused = eesp::outbound(common, &spec, Engine::AwsLc, &mut keys).err().unwrap().to_string();
        assert!(refused.contains(reason), "{refused}");
    }
}

#[test]
fn more_inner_packets_than_a_batch_are_taken_in_turns() {
    let mut ends = Ends::new(cutting(), 1500, 200);
    let packets: Vec<_> = (0..200).map(|n| packet(2, 40, n)).collect();
    let outer = ends.send(&packets, false);
    for pipeline in Halves::ALL {
        let mut narrow = Ends::new(cutting(), 1500, 8);
        assert_eq!(narrow.receive(&outer, pipeline), packets, "{pipeline:?}");
        assert_eq!(narrow.receiver.counters().inner_tx.packets.load(Ordering::Relaxed), 200);
    }
}

#[test]
fn the_header_is_that_of_no_inner_packet_and_numbers_are_consecutive() {
    let mut ends = Ends::new(Settings { packet_size: 600, ..cutting() }, 1500, 8);
    let mut large = packet(2, 1500, 7);
    large[1] = 0xb9;
    let outer = ends.send(&[large.clone(), packet(2, 100, 8)], false);
    let read = |at: usize| outer.iter().map(move |packet| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap()));
    assert!(read(20).eq([SPI; 3]) && read(24).eq(1..=3));
    assert!(outer.iter().all(|packet| packet.len() <= 600 && packet[1] == 0 && packet[9] == 50));
    assert!(outer.iter().all(|packet| u16::from_be_bytes([packet[6], packet[7]]) == DONT_FRAGMENT));
    assert_eq!(ends.receive(&outer, false), [large, packet(2, 100, 8)]);
}

/// Tables of a receiver with a policy for host 3 alone.
fn for_host_3() -> Arc<Snapshot> {
    let host = AddrRange { start: [192, 0, 2, 3].into(), end: [192, 0, 2, 3].into() };
    let from = AddrRange::from_cidr([192, 0, 2, 0].into(), 24).unwrap();
    let policy = |action| Policy { name: "one".into(), selectors: [Selector::between(host, from)].into(), action };
    let mut keys = KeyTable::default();
    let common = mode(cutting(), Lifetime::NONE, true);
    let inn = esp::inbound(common, &spec(0), Engine::AwsLc, &mut keys).unwrap();
    let spd = Spd::new(vec![policy(Action::Protect { outbound: 0, inbound: 0 })]);
    Publisher::new(Snapshot::new(vec![Arc::new(inn)], vec![], spd, keys, CodePoints::default()).unwrap()).current()
}

#[test]
fn each_inner_packet_meets_the_policy() {
    let mut ends = Ends::new(cutting(), 1500, 8);
    let mut outer = ends.send(&[packet(2, 60, 1), packet(3, 60, 2), packet(4, 60, 3)], false);
    ends.tables[1] = for_host_3();
    assert_eq!(ends.receive(&outer, false), [packet(3, 60, 2)]);
    assert_eq!(Ends::dropped(&ends.receiver, DropReason::PolicyMismatch), 2);
    // A replay brings none of them back.
    assert_eq!(ends.receive(&outer, false), Vec::<Vec<u8>>::new());
    outer = ends.send(&[packet(3, 60, 4)], false);
    assert_eq!(ends.receive(&outer, true), [packet(3, 60, 4)]);
}

#[test]
fn the_policy_of_an_inner_packet_is_looked_up_once() {
    let mut ends = Ends::new(cutting(), 1500, 8);
    // Packets that are no flow of the cache for TCP and UDP.
    let icmp = |host| {
        let mut packet = packet(host, 60, 1);
        packet[9] = IpProto::ICMP.0;
        packet
    };
    let outer = ends.send(&[2, 3, 4, 5, 2].map(icmp), false);
    ends.tables[1] = for_host_3();
    assert_eq!(ends.receive(&outer, false), [icmp(3)]);
    assert_eq!(Ends::dropped(&ends.receiver, DropReason::PolicyMismatch), 4);
    let [hits, misses, _] = Totals::of([&*ends.receiver.counters()]).look_ups[1];
    assert_eq!(hits + misses, 5);
}

#[test]
fn a_missing_outer_packet_is_awaited_until_the_drop_time() {
    let mut ends = Ends::new(Settings { packet_size: 256, ..cutting() }, 1500, 16);
    let packets: Vec<_> = (0..11).map(|n| packet(2, 100, n)).collect();
    let outer = ends.send(&packets, false);
    assert_eq!(outer.len(), 6);
    // 198 bytes of blocks in each.
    let arrived: Vec<_> = [0, 2, 3].map(|n| outer[n].clone()).into();
    assert_eq!(ends.receive(&arrived, false), packets[..1]);
    assert!(ends.receiver.awaits_time());
    assert_eq!(ends.later(24), Vec::<Vec<u8>>::new());
    assert_eq!(ends.receive(&outer[1..2], false), packets[1..7], "it fills the gap");
    assert_eq!(ends.receive(&outer[5..], false), Vec::<Vec<u8>>::new());
    assert_eq!(ends.later(30), Vec::<Vec<u8>>::new());
    // Other tables, in which the SA has the same lanes and another slot.
    let sa = Arc::clone(ends.tables[1].sad.get(0).unwrap());
    let mut keys = KeyTable::default();
    let other = esp::Spec { spi: 0x999.try_into().unwrap(), ..spec(0) };
    let first = esp::inbound(mode(cutting(), Lifetime::NONE, true), &other, Engine::AwsLc, &mut keys).unwrap();
    let policies = spd(Action::Protect { outbound: 0, inbound: 1 });
    let mut next = Snapshot::new(vec![Arc::new(first), sa], vec![], policies, keys, CodePoints::default()).unwrap();
    next.generation = 7;
    ends.tables[1] = Arc::new(next);
    assert_eq!(ends.later(48), Vec::<Vec<u8>>::new());
    assert_eq!(ends.later(50), packets[10..], "the end of packet 7, all of 8 and the start of 9 were lost");
    assert_eq!(Ends::dropped(&ends.receiver, DropReason::PolicyMismatch), 0);
    assert!(ends.receiver.awaits_time(), "the end of packet 7 may still arrive");
    assert_eq!(ends.later(75), Vec::<Vec<u8>>::new());
    assert!(!ends.receiver.awaits_time());
}

#[test]
fn nothing_of_an_sa_comes_in_that_is_in_no_tables() {
    let mut ends = Ends::new(Settings { packet_size: 256, ..cutting() }, 1500, 16);
    let packets: Vec<_> = (0..10).map(|n| packet(2, 100, n)).collect();
    let outer = ends.send(&packets, false);
    assert_eq!(ends.receive(&outer[2..4], false), Vec::<Vec<u8>>::new());
    let none = Snapshot::new(vec![], vec![], protect(), KeyTable::default(), CodePoints::default()).unwrap();
    let mut none = none;
    none.generation = 7;
    let gone = std::mem::replace(&mut ends.tables[1], Arc::new(none));
    assert_eq!(ends.later(25), Vec::<Vec<u8>>::new());
    assert!(Ends::dropped(&ends.receiver, DropReason::NoSa) > 0);
    drop(gone);
}

#[test]
fn a_stream_ends_with_its_sa_and_what_it_held_is_counted() {
    let mut ends = Ends::new(Settings { packet_size: 256, ..cutting() }, 1500, 16);
    let packets: Vec<_> = (0..10).map(|n| packet(2, 100, n)).collect();
    let outer = ends.send(&packets, false);
    assert_eq!(ends.receive(&outer[2..4], false), Vec::<Vec<u8>>::new());
    let lanes = Arc::downgrade(&ends.tables[1].sad.get(0).unwrap().lanes);
    let mut none = Snapshot::new(vec![], vec![], protect(), KeyTable::default(), CodePoints::default()).unwrap();
    none.generation = 7;
    ends.tables[1] = Arc::new(none);
    assert!(lanes.upgrade().is_some(), "the stream has them");
    let mut batch = ends.batch();
    ends.receiver.tick(5000);
    ends.receiver.inbound(&ends.tables[1], &mut batch);
    assert!(lanes.upgrade().is_none() && batch.is_empty());
    assert_eq!(Ends::dropped(&ends.receiver, DropReason::NoSa), 2);
}

#[test]
fn held_payloads_leave_a_batch_of_buffers_for_payloads_in_order() {
    let settings = Settings { packet_size: 256, reorder_window: 32, drop_time_ms: 10_000, ..Settings::default() };
    let mut ends = Ends::new(settings, 1500, 8);
    let mut outer = Vec::new();
    for n in 0..20 {
        outer.extend(ends.send(&[packet(2, 150, n)], false));
    }
    // The first one is lost.
    let mut received: Vec<Vec<u8>> = Vec::new();
    for one in &outer[1..] {
        received.extend(ends.receive(std::slice::from_ref(one), false));
    }
    assert_eq!(received.len(), 19);
    assert_eq!(Ends::dropped(&ends.receiver, DropReason::QueueFull), 0);
}

#[test]
fn what_is_too_long_to_stay_whole_is_fragmented_or_reported() {
    let settings = Settings { dont_fragment: true, ..Settings::default() };
    let mut ends = Ends::new(settings, 1000, 8);
    let room = 1000 - 54 - 4;
    let outer = ends.send(&[packet(2, 600, 1), packet(2, 600, 2), packet(2, room, 3)], false);
    assert_eq!(outer.len(), 3, "none is cut");
    assert_eq!(ends.receive(&outer, false).len(), 3);
    // The fragments are inner packets.
    let outer = ends.send(&[packet(2, 1400, 1)], false);
    let inner = ends.receive(&outer, false);
    assert!(inner.len() == 2 && inner.iter().all(|packet| IpPacket::parse(packet).unwrap().fragment.is_some()));
    let mut whole = packet(2, room + 1, 2);
    whole[6] = 0x40;
    assert!(ends.send(&[whole], false).is_empty());
    assert_eq!((ends.replies.len(), Ends::dropped(&ends.sender, DropReason::TooBig)), (1, 1));
    let reply = ends.replies.packets()[0].bytes();
    assert_eq!(u16::from_be_bytes([reply[26], reply[27]]), room as u16, "MTU in the ICMP error");
}

#[test]
fn fragments_of_a_packet_are_packed_all_or_none() {
    let settings = Settings { dont_fragment: true, ..Settings::default() };
    // Three packets in a batch, six payloads in reserve, and 342 bytes in each.
    let mut ends = Ends::new(settings, 400, 3);
    let (first, last) = (packet(2, 200, 1), packet(2, 100, 3));
    for (len, fragments) in [(980, 3), (2000, 0)] {
        let outer = ends.send(&[first.clone(), packet(2, len, 2), last.clone()], fragments == 0);
        // Without fragments between them the others share a payload.
        assert_eq!(outer.len(), if fragments == 0 { 1 } else { 2 + fragments }, "{len}");
        let inner = ends.receive(&outer, false);
        assert_eq!((inner.len(), &inner[0], &inner[1 + fragments]), (2 + fragments, &first, &last), "{len}");
    }
    assert_eq!(Ends::dropped(&ends.sender, DropReason::QueueFull), 1);
}

#[test]
fn limits_count_outer_packets() {
    let lifetime = Lifetime { packets: 3, bytes: u64::MAX };
    let mut ends = Ends::with_lifetime(cutting(), 1500, 256, lifetime);
    let packets: Vec<_> = (0..100).map(|n| packet(2, 64, n)).collect();
    let outer = ends.send(&packets, false);
    assert_eq!(outer.len(), 3);
    assert_eq!(Ends::dropped(&ends.sender, DropReason::Expired), 2);
    // The cut packet at the end is lost.
    let inner = ends.receive(&outer, false);
    assert_eq!(inner, packets[..3 * (PAYLOAD - 4) / 64]);
    assert!(ends.send(&packets[..1], false).is_empty());
}

#[test]
fn payloads_and_packets_of_other_modes_are_not_mistaken_for_each_other() {
    let mut ends = Ends::new(cutting(), 1500, 8);
    let outer = ends.send(&[packet(2, 64, 1)], false);
    let mut tunnel = common();
    tunnel.outer.peer = tunnel.outer.peer.reversed();
    ends.tables[1] = Kind::Esp.receiving(tunnel);
    assert_eq!(ends.receive(&outer, false), Vec::<Vec<u8>>::new());
    assert_eq!(Ends::dropped(&ends.receiver, DropReason::BadInner), 1);

    let mut ends = Ends::new(cutting(), 1500, 8);
    let mut keys = KeyTable::default();
    let tunnel = esp::outbound(common(), &spec(1), Engine::AwsLc, &mut keys).unwrap();
    let tables = Snapshot::new(vec![], vec![Arc::new(tunnel)], protect(), keys, CodePoints::default()).unwrap();
    ends.tables[0] = Publisher::new(tables).current();
    let outer = ends.send(&[packet(2, 64, 1)], false);
    assert_eq!((outer.len(), ends.receive(&outer, false).len()), (1, 0));
    assert_eq!(Ends::dropped(&ends.receiver, DropReason::BadInner), 1);
}

#[test]
fn batches_without_a_free_buffer_drop_and_count() {
    let mut ends = Ends::new(Settings { packet_size: 256, ..cutting() }, 1500, 8);
    // 8 packets of 1500 bytes need 62 payloads; 16 are in reserve.
    let packets: Vec<_> = (0..8).map(|n| packet(2, 1500, n)).collect();
    let outer = ends.send(&packets, false);
    assert_eq!(outer.len(), 16);
    assert_eq!(ends.receive(&outer, false), packets[..2]);
    assert_eq!(Ends::dropped(&ends.sender, DropReason::QueueFull), 6);
    // The next batch is complete.
    let outer = ends.send(&packets[..1], false);
    assert_eq!(ends.receive(&outer, false), packets[..1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_packet_arrives(
        lens in prop::collection::vec((28_usize..1500, 2_u8..6), 1..60),
        path_mtu in 300_usize..1900, prefer_whole: bool, pipeline in prop::sample::select(Halves::ALL.to_vec()),
        kind in prop::sample::select(Kind::ALL.to_vec()),
    ) {
        let settings = Settings { prefer_whole, ..Settings::default() };
        let mut ends = Ends::of(kind, settings, path_mtu, 128, Lifetime::NONE);
        let packets: Vec<_> = lens.iter().zip(0..).map(|((len, host), n)| packet(*host, *len, n)).collect();
        for packets in packets.chunks(25) {
            let outer = ends.send(packets, pipeline);
            prop_assert!(outer.iter().all(|packet| packet.len() <= path_mtu));
            prop_assert_eq!(&ends.receive(&outer, pipeline), packets);
        }
    }
}
