//! The checks of the inbound path, each where a wrong answer would let a packet in, drop it or
//! count it for another SA.

use crypto::kdf::PspMasterKey;
use ipsec::{Sad, UdpPorts, psp};

use super::*;
use crate::GracePeriodSa;

/// An SA at the sender, and the fields in which its packets differ from those of [`common`].
#[derive(Clone, Copy)]
pub(super) struct Variant {
    pub(super) spi: u32,
    pub(super) outer: Outer,
    pub(super) lifetime: Lifetime,
}

pub(super) fn variant(spi: u32) -> Variant {
    Variant { spi, outer: common().outer, lifetime: Lifetime::NONE }
}

impl Variant {
    /// Seals `packets`, all in one batch.
    pub(super) fn seal(&self, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut keys = KeyTable::default();
        let spec = esp::Spec { spi: self.spi.try_into().unwrap(), ..spec(1) };
        let common = SaCommon::new("moon", Mode::Tunnel, self.outer, Lifetime::NONE);
        let sa = esp::outbound(common, &spec, Engine::AwsLc, &mut keys).unwrap();
        let protect = spd(Action::Protect { outbound: 0, inbound: 0 });
        let tables = Snapshot::new(vec![], vec![Arc::new(sa)], protect, keys, CodePoints::default()).unwrap();
        let (mut worker, _reports) = Worker::new(config());
        let (mut batch, mut replies) = (Batch::new(128, 2048), Batch::new(8, 2048));
        packets.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
        worker.outbound(&Publisher::new(tables).current(), &mut batch, &mut replies);
        assert_eq!(batch.len(), packets.len());
        contents(&batch)
    }
}

pub(super) fn config() -> WorkerConfig {
    WorkerConfig { engine: Engine::AwsLc, batch: 128, ..small(0) }
}

pub(super) fn contents(batch: &Batch) -> Vec<Vec<u8>> {
    batch.packets().iter().map(|packet| packet.bytes().to_vec()).collect()
}

/// A packet of `len` bytes from `src` to 192.0.2.2 with a last byte of `n`.
pub(super) fn packet(src: u8, len: usize, n: u8) -> Vec<u8> {
    let mut packet = PACKET.to_vec();
    packet.resize(len, 0);
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    (packet[15], packet[len - 1]) = (src, n);
    packet
}

/// Tables of the receiver of these SAs; its policies are `policies`.
pub(super) fn receiving(sas: &[Variant], policies: Spd) -> Snapshot {
    let mut keys = KeyTable::default();
    let inbound = |variant: &Variant| {
        let Variant { outer, lifetime, .. } = *variant;
        let outer = Outer { peer: outer.peer.reversed(), ..outer };
        let spec = esp::Spec { spi: variant.spi.try_into().unwrap(), ..spec(0) };
        let common = SaCommon::new("moon", Mode::Tunnel, outer, lifetime);
        Arc::new(esp::inbound(common, &spec, Engine::AwsLc, &mut keys).unwrap())
    };
    let sas = sas.iter().map(inbound).collect();
    Snapshot::new(sas, vec![], policies, keys, CodePoints::default()).unwrap()
}

pub(super) fn protect(inbound: u32) -> Action {
    Action::Protect { outbound: 0, inbound }
}

/// A worker that receives, with another one for the first half and an asynchronous engine.
pub(super) struct Receiver {
    worker: Worker,
    opener: Worker,
    opened: Opened,
    device: Option<asynchronous::Device>,
    split: Halves,
}

impl Receiver {
    fn new(split: Halves) -> Self {
        let [worker, opener] = [0, 1].map(|core| Worker::new(WorkerConfig { core, ..config() }).0);
        Self { worker, opener, opened: Opened::with_capacity(128), device: None, split }
    }

    /// Returns the packets of one batch that came in.
    fn receive(&mut self, tables: &Arc<Snapshot>, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut batch = Batch::new(128, 2048);
        packets.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
        match self.split {
            Halves::Joined => self.worker.inbound(tables, &mut batch),
            Halves::Split => {
                self.opener.open(tables, &mut batch, &mut self.opened);
                self.worker.admit(tables, &mut batch, &mut self.opened);
            }
            Halves::Async => {
                let device = self.device.get_or_insert_with(asynchronous::Device::usual);
                return device.inbound(&mut self.worker, tables, &mut batch);
            }
        }
        contents(&batch)
    }

    /// Drops with the reason `why`, and all drops.
    fn drops(&self, why: DropReason) -> (u64, u64) {
        let drops = [&self.worker, &self.opener].map(|worker| {
            let counters = worker.counters();
            counters.drops.each_ref().map(|drop| drop.load(Ordering::Relaxed))
        });
        (drops.iter().map(|drops| drops[why as usize]).sum(), drops.iter().flatten().sum())
    }
}

fn counted(sad: &Sad) -> Vec<(u64, u64)> {
    sad.iter().map(|sa| (sa.common.counters.packets(), sa.common.counters.bytes())).collect()
}

/// The last byte of each packet.
pub(super) fn numbers(packets: &[Vec<u8>]) -> Vec<u8> {
    packets.iter().map(|packet| packet[packet.len() - 1]).collect()
}

#[test]
fn a_limit_ends_an_sa_with_the_chunk_that_reaches_it() {
    let limits = [Lifetime { packets: 20, ..Lifetime::NONE }, Lifetime { bytes: 20 * 28, ..Lifetime::NONE }];
    for lifetime in limits {
        let sa = Variant { lifetime, ..variant(0x1001) };
        let tables = Arc::new(receiving(&[sa], spd(protect(0))));
        let sealed = sa.seal(&vec![PACKET.to_vec(); 96]);
        let mut receiver = Receiver::new(Halves::Joined);
        // Chunks of short packets have 64: the first one reaches the limit.
        assert_eq!(receiver.receive(&tables, &sealed).len(), 64);
        assert_eq!(receiver.drops(DropReason::Expired), (32, 32));
        assert_eq!(counted(&tables.sad), [(64, 64 * 28)]);
        assert_eq!(receiver.receive(&tables, &sealed[..1]), [PACKET; 0]);
        assert_eq!(receiver.drops(DropReason::Expired), (33, 33));
    }
}

#[test]
fn packets_and_bytes_are_counted_for_their_sa_whatever_their_flow() {
    let sas = [variant(0x1001), variant(0x1002)];
    let lens = [28usize, 60, 60, 28, 100, 28, 28, 44];
    let sealed = sas.map(|sa| {
        let packets: Vec<_> = (0..24).map(|n| packet(1 + n / 3 % 3, lens[usize::from(n) % 8], n)).collect();
        sa.seal(&packets)
    });
    // In turns of five, so that flows and SAs change at different packets.
    let turns = sealed[0].chunks(5).zip(sealed[1].chunks(5)).flat_map(|(a, b)| [a, b].concat());
    let arrived: Vec<_> = turns.collect();
    for split in Halves::ALL {
        let mut tables = receiving(&sas, spd(protect(7)));
        tables.groups = vec![7, 7];
        let tables = Arc::new(tables);
        let mut receiver = Receiver::new(split);
        assert_eq!(receiver.receive(&tables, &arrived).len(), 48, "{split:?}");
        let bytes = 3 * lens.iter().sum::<usize>() as u64;
        assert_eq!(counted(&tables.sad), [(24, bytes); 2], "{split:?}");
    }
}

#[test]
fn decisions_end_with_the_tables_that_they_were_made_with() {
    let sa = variant(0x1001);
    let sealed = sa.seal(&[packet(1, 28, 1), packet(1, 28, 2), packet(1, 28, 3)]);
    for split in Halves::ALL {
        let publisher = Publisher::new(receiving(&[sa], spd(protect(0))));
        let mut receiver = Receiver::new(split);
        assert_eq!(numbers(&receiver.receive(&publisher.current(), &sealed[..1])), [1]);
        publisher.publish(receiving(&[sa], spd(Action::Drop)));
        assert_eq!(receiver.receive(&publisher.current(), &sealed[1..2]), [PACKET; 0], "{split:?}");
        assert_eq!(receiver.drops(DropReason::PolicyDrop), (1, 1));
        publisher.publish(receiving(&[], spd(protect(0))));
        assert_eq!(receiver.receive(&publisher.current(), &sealed[2..]), [PACKET; 0], "{split:?}");
        assert_eq!(receiver.drops(DropReason::NoSa), (1, 2));
    }
}

#[test]
fn the_sas_of_a_group_receive_for_its_policy_and_others_do_not() {
    let sas = [variant(0x1001), variant(0x1002), variant(0x1003)];
    let arrived: Vec<_> =
        (0..3).flat_map(|n| sas[usize::from(n)].seal(&[packet(1, 28, n), packet(1, 28, n)])).collect();
    for split in Halves::ALL {
        let mut tables = receiving(&sas, spd(protect(1)));
        tables.groups = vec![1, 1, 0];
        let tables = Arc::new(tables);
        let mut receiver = Receiver::new(split);
        assert_eq!(numbers(&receiver.receive(&tables, &arrived)), [0, 0, 1, 1], "{split:?}");
        assert_eq!(receiver.drops(DropReason::PolicyMismatch), (2, 2));
    }
}

#[test]
fn an_sa_in_its_grace_period_receives_within_its_selectors_and_after_earlier_policies() {
    let range = |from: u8, to: u8| AddrRange { start: [192, 0, 2, from].into(), end: [192, 0, 2, to].into() };
    // The peer of the first policy is 192.0.2.9, which the selectors of the SA contain.
    let policies = [
        (Selector::between(range(0, 255), range(9, 9)), Action::Drop),
        (Selector::between(range(0, 255), range(0, 255)), Action::Trap(1)),
    ];
    let policies =
        policies.map(|(selector, action)| Policy { name: "one".into(), selectors: [selector].into(), action });
    let sa = variant(0x1001);
    let arrived = sa.seal(&[packet(1, 28, 1), packet(9, 28, 2), packet(200, 28, 3), packet(1, 28, 4)]);
    for split in Halves::ALL {
        let mut tables = receiving(&[sa], Spd::new(policies.to_vec()));
        let selectors = [Selector::between(range(0, 255), range(0, 100))].into();
        tables.grace_period = vec![GracePeriodSa { slot: 0, policy: ipsec::PolicyId(1), selectors }];
        let tables = Arc::new(tables);
        let mut receiver = Receiver::new(split);
        assert_eq!(numbers(&receiver.receive(&tables, &arrived)), [1, 4], "{split:?}");
        assert_eq!(receiver.drops(DropReason::PolicyDrop), (1, 2));
        assert_eq!(receiver.drops(DropReason::PolicyMismatch), (1, 2));
    }
}

#[test]
fn fragments_among_the_packets_of_a_run_are_reassembled() {
    let sa = variant(0x1001);
    let mut arrived = sa.seal(&[packet(1, 700, 1), packet(1, 700, 2), packet(1, 700, 3)]);
    let whole = arrived.remove(1);
    // 400 bytes after the header, and the rest.
    let mut pieces = [whole[..420].to_vec(), [&whole[..20], &whole[420..]].concat()];
    pieces[0][6] |= 0x20;
    pieces[1][6..8].copy_from_slice(&(400u16 / 8).to_be_bytes());
    for piece in &mut pieces {
        let len = piece.len() as u16;
        piece[2..4].copy_from_slice(&len.to_be_bytes());
        piece[6] &= !0x40;
    }
    arrived.splice(1..1, pieces);
    for split in Halves::ALL {
        let mut receiver = Receiver::new(split);
        let tables = Arc::new(receiving(&[sa], spd(protect(0))));
        assert_eq!(numbers(&receiver.receive(&tables, &arrived)), [1, 2, 3], "{split:?}");
        assert_eq!(receiver.drops(DropReason::BadIcv), (0, 0));
        assert_eq!(counted(&tables.sad), [(3, 2100)]);
    }
}

#[test]
fn datagrams_with_a_wrong_checksum_do_not_come_in() {
    let mut sa = variant(0x1001);
    let port = CodePoints::default().nat_t_port;
    sa.outer.udp = Some(UdpPorts { src: 4501, dst: port });
    let mut arrived = sa.seal(&(1..=5).map(|n| packet(1, 28, n)).collect::<Vec<_>>());
    let peer = sa.outer.peer;
    for packet in &mut arrived[1..3] {
        let sum = wire::udp::checksum(peer.local, peer.remote, &packet[20..]);
        packet[26..28].copy_from_slice(&sum.to_be_bytes());
    }
    arrived[2][27] ^= 1;
    for split in Halves::ALL {
        let mut receiver = Receiver::new(split);
        let left = receiver.receive(&Arc::new(receiving(&[sa], spd(protect(0)))), &arrived);
        assert_eq!(numbers(&left), [1, 2, 4, 5], "{split:?}");
        assert_eq!(receiver.drops(DropReason::BadChecksum), (1, 1));
    }
}

#[test]
fn congestion_reaches_the_packets_of_a_run_that_met_it() {
    let peers: [[std::net::IpAddr; 2]; 2] = [
        [[198, 51, 100, 1].into(), [198, 51, 100, 2].into()],
        [[0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(), [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2].into()],
    ];
    for (v6, [local, remote]) in [false, true].into_iter().zip(peers) {
        let mut sa = variant(0x1001);
        sa.outer.peer = Peer { local, remote };
        let packets = (1..=8u8).map(|n| {
            let mut packet = packet(1, 28, n);
            // The last two are of a transport without ECN.
            packet[1] = if n > 6 { 0 } else { 2 };
            packet
        });
        let mut arrived = sa.seal(&packets.collect::<Vec<_>>());
        for n in [3, 4, 7] {
            let packet = &mut arrived[n - 1];
            packet[1] |= if v6 { 0x30 } else { 3 };
        }
        for split in Halves::ALL {
            let mut receiver = Receiver::new(split);
            let left = receiver.receive(&Arc::new(receiving(&[sa], spd(protect(0)))), &arrived);
            let fields: Vec<_> = left.iter().map(|packet| (packet[27], packet[1])).collect();
            let expected = [(1, 2), (2, 2), (3, 3), (4, 3), (5, 2), (6, 2), (8, 0)];
            assert_eq!(fields, expected, "IPv6 outside: {v6}, {split:?}");
            assert_eq!(receiver.drops(DropReason::EcnCe), (1, 1));
        }
    }
}

#[test]
fn each_port_has_the_policy_that_names_it() {
    let any = AddrRange::from_cidr([192, 0, 2, 0].into(), 24).unwrap();
    let all = Selector::between(any, any);
    // From this host's point of view: its port 7, and port 6 of the peer.
    let closed =
        [Selector { src_ports: PortRange::single(7), ..all }, Selector { dst_ports: PortRange::single(6), ..all }];
    let policies = [(closed.into(), Action::Drop), ([all].into(), protect(0))];
    let policy = |(selectors, action)| Policy { name: "one".into(), selectors, action };
    let policies = Vec::from(policies.map(policy));
    let ports = [(1, 2), (1, 2), (6, 2), (1, 2), (1, 7), (1, 7), (1, 2), (6, 7), (2, 2), (6, 2)];
    let packets: Vec<_> = ports
        .iter()
        .cycle()
        .zip(0..40)
        .map(|(&(src, dst), n)| {
            let mut packet = packet(1, 29, n);
            (packet[21], packet[23]) = (src, dst);
            packet
        })
        .collect();
    let expected: Vec<_> = packets.iter().filter(|packet| packet[21] != 6 && packet[23] != 7).cloned().collect();
    let sa = variant(0x1001);
    let arrived = sa.seal(&packets);
    for split in Halves::ALL {
        let mut receiver = Receiver::new(split);
        let left = receiver.receive(&Arc::new(receiving(&[sa], Spd::new(policies.clone()))), &arrived);
        assert_eq!(numbers(&left), numbers(&expected), "{split:?}");
        assert_eq!(receiver.drops(DropReason::PolicyDrop), (20, 20));
    }
}

#[test]
fn bytes_after_the_packets_of_a_long_run_are_cut_off() {
    let sa = variant(0x1001);
    let mut arrived = sa.seal(&(0..40).map(|n| packet(1, 60, n)).collect::<Vec<_>>());
    arrived.iter_mut().for_each(|packet| packet.extend([7; 3]));
    for split in Halves::ALL {
        let mut receiver = Receiver::new(split);
        let left = receiver.receive(&Arc::new(receiving(&[sa], spd(protect(0)))), &arrived);
        assert_eq!(numbers(&left), (0..40).collect::<Vec<u8>>(), "{split:?}");
    }
}

#[test]
fn a_packet_of_a_run_that_is_cut_short_is_truncated() {
    let sa = variant(0x1001);
    let mut arrived = sa.seal(&(0..40).map(|n| packet(1, 60, n)).collect::<Vec<_>>());
    // In the first chunk, and in one that continues the run.
    for n in [5, 20] {
        arrived[n].pop();
    }
    for split in Halves::ALL {
        let mut receiver = Receiver::new(split);
        let left = receiver.receive(&Arc::new(receiving(&[sa], spd(protect(0)))), &arrived);
        assert_eq!(left.len(), 38, "{split:?}");
        assert_eq!(receiver.drops(DropReason::Truncated), (2, 2), "{split:?}");
    }
}

#[test]
fn packets_in_clear_text_come_in_by_a_bypass_policy_only() {
    let cases = [
        (Some(Action::Bypass), None),
        (Some(protect(0)), Some(DropReason::PlainInbound)),
        (Some(Action::Trap(1)), Some(DropReason::PlainInbound)),
        (Some(Action::Drop), Some(DropReason::PolicyDrop)),
        (None, Some(DropReason::NoPolicy)),
    ];
    let sa = variant(0x1001);
    let clear = [packet(1, 28, 1), packet(1, 28, 2)];
    for (action, dropped) in cases {
        for split in Halves::ALL {
            let tables = Arc::new(receiving(&[sa], action.map_or_else(Spd::default, spd)));
            let mut receiver = Receiver::new(split);
            let left = receiver.receive(&tables, &clear);
            match dropped {
                None => assert_eq!(left, clear),
                Some(why) => {
                    assert_eq!(left, [PACKET; 0], "{action:?}, {split:?}");
                    assert_eq!(receiver.drops(why), (2, 2));
                }
            }
        }
    }
}

/// The checksum covers the addresses, which a NAT changed (RFC 3948 §3.1.2).
#[test]
fn checksums_in_transport_mode_are_those_of_the_addresses_that_arrive() {
    let (behind, nat, here): ([u8; 4], [u8; 4], [u8; 4]) = ([10, 0, 0, 1], [198, 51, 100, 1], [198, 51, 100, 2]);
    let one = |addr: [u8; 4]| AddrRange { start: addr.into(), end: addr.into() };
    let between = |local, remote, action| {
        let selectors = [Selector::between(one(local), one(remote))].into();
        Spd::new(vec![Policy { name: "one".into(), selectors, action }])
    };
    let ports = UdpPorts { src: 4500, dst: CodePoints::default().nat_t_port };
    let outer = |local: [u8; 4], remote: [u8; 4]| Outer { udp: Some(ports), ..Outer::new(local.into(), remote.into()) };
    let mut keys = KeyTable::default();
    let sending = SaCommon::new("moon", Mode::Transport, outer(behind, here), Lifetime::NONE);
    let sending = esp::outbound(sending, &spec(1), Engine::AwsLc, &mut keys).unwrap();
    let policies = between(behind, here, protect(0));
    let sending = Snapshot::new(vec![], vec![Arc::new(sending)], policies, keys, CodePoints::default()).unwrap();
    let mut packet = PACKET;
    packet[12..16].copy_from_slice(&behind);
    packet[16..20].copy_from_slice(&here);
    let sum = wire::udp::checksum(behind.into(), here.into(), &packet[20..]);
    packet[26..28].copy_from_slice(&sum.to_be_bytes());
    let (mut sender, _reports) = Worker::new(config());
    let (mut batch, mut replies) = (Batch::new(128, 2048), Batch::new(8, 2048));
    (0..40).for_each(|_| assert!(batch.push_with(|to| to.set(&packet))));
    sender.outbound(&Publisher::new(sending).current(), &mut batch, &mut replies);
    let mut arrived = contents(&batch);
    arrived.iter_mut().for_each(|packet| packet[12..16].copy_from_slice(&nat));
    for split in Halves::ALL {
        let mut keys = KeyTable::default();
        let original = Peer { local: here.into(), remote: behind.into() };
        let common = SaCommon::new("moon", Mode::Transport, outer(here, nat), Lifetime::NONE);
        let common = common.with_original(Some(original));
        let sa = esp::inbound(common, &spec(0), Engine::AwsLc, &mut keys).unwrap();
        let policies = between(here, nat, protect(0));
        let tables = Snapshot::new(vec![Arc::new(sa)], vec![], policies, keys, CodePoints::default()).unwrap();
        let left = Receiver::new(split).receive(&Arc::new(tables), &arrived);
        assert_eq!(left.len(), 40, "{split:?}");
        assert!(left.iter().all(|packet| packet[12..16] == nat));
        assert!(left.iter().all(|packet| wire::udp::is_valid(nat.into(), here.into(), &packet[20..])));
    }
}

#[test]
fn packets_with_the_sample_bit_are_counted() {
    let spi = 0x1234_5678.try_into().unwrap();
    let masters = psp::MasterKeys::new([Some(PspMasterKey::new(&[1; 32])), None]);
    let key = masters.traffic_key(spi, 0.try_into().unwrap()).unwrap();
    let send = psp::SendSpec {
        spi,
        version: 0,
        key: key.key(),
        iv: psp::IvCounter { first: 1, persistent: false, cores: 1 },
        crypt_offset: 0,
        cookie: None,
        sample: true,
        drop: false,
        port: 1000,
        port_key: 7,
        source_port: None,
    };
    let receive = psp::ReceiveSpec {
        masters: Arc::new(masters),
        issued: vec![(spi, spi)],
        versions: 1,
        max_crypt_offset: 0,
        window: 64,
        first_seq: Vec::new(),
        honour_drop: false,
    };
    let mut keys = KeyTable::default();
    let out = psp::outbound(common(), &send, Engine::AwsLc, &mut keys).unwrap();
    let sending = Snapshot::new(vec![], vec![Arc::new(out)], spd(protect(0)), keys, CodePoints::default()).unwrap();
    let (mut sender, _reports) = Worker::new(config());
    let (mut batch, mut replies) = (Batch::new(128, 2048), Batch::new(8, 2048));
    (0..40).for_each(|n| assert!(batch.push_with(|to| to.set(&packet(1 + n / 10, 40, n)))));
    sender.outbound(&Publisher::new(sending).current(), &mut batch, &mut replies);
    let arrived = contents(&batch);
    for split in Halves::ALL {
        let mut common = common();
        common.outer.peer = common.outer.peer.reversed();
        let mut keys = KeyTable::default();
        let sa = psp::inbound(common, &receive, Engine::AwsLc, &mut keys).unwrap();
        let tables = Snapshot::new(vec![Arc::new(sa)], vec![], spd(protect(0)), keys, CodePoints::default()).unwrap();
        let mut receiver = Receiver::new(split);
        assert_eq!(receiver.receive(&Arc::new(tables), &arrived).len(), 40, "{split:?}");
        assert_eq!(receiver.worker.counters().sampled.load(Ordering::Relaxed), 40, "{split:?}");
    }
}

#[test]
fn an_expired_sa_opens_nothing() {
    let sa = variant(0x1001);
    let arrived = sa.seal(&[packet(1, 28, 1), packet(1, 28, 2)]);
    for split in Halves::ALL {
        let tables = Arc::new(receiving(&[sa], spd(protect(0))));
        tables.sad.get(0).unwrap().common.expired.store(true, Ordering::Relaxed);
        let mut receiver = Receiver::new(split);
        assert_eq!(receiver.receive(&tables, &arrived), [PACKET; 0], "{split:?}");
        assert_eq!(receiver.drops(DropReason::Expired), (2, 2));
    }
}
