//! The whole path in memory: packets that enter at one endpoint leave at the other, for every
//! configuration.

use std::sync::atomic::Ordering;

use crypto::Engine;
use dataplane::{Batch, Snapshot, Totals, Worker, WorkerConfig};
use ipsec::{DropReason, Protocol};
use stats::Rng;
use testbed::pair::{Lanes, Shape, Subject};
use wire::{IpPacket, IpProto};

/// Every protocol, mode and kind of suite, and the extras that change the packet.
fn subjects() -> Vec<Subject> {
    let base = |p, s, suite: &str| Subject::new(p, s, suite, Engine::best());
    let mut all = vec![];
    let esp_suites = [
        "aes128gcm16",
        "aes192gcm12",
        "aes256gcm8",
        "aes128ccm16",
        "chacha20poly1305",
        "aes128gmac",
        "aes128gcm16iiv",
        "aes128-sha1",
        "aes256-sha512",
        "aes128ctr-sha256",
        "3des-md5",
        "null-sha384",
        "aes128-aesxcbc",
        "aes128-aescmac",
    ];
    for shape in [Shape::Tunnel, Shape::Transport, Shape::Beet] {
        for suite in esp_suites {
            all.push(base(Protocol::Esp, shape, suite));
        }
        for suite in ["aes128gcm16", "aes256gcm16iiv", "chacha20poly1305", "aes128ccm8", "aes128gmac"] {
            all.push(base(Protocol::Eesp, shape, suite));
            all.push(Subject { lanes: Lanes::SubSas(Some(4)), ..base(Protocol::Eesp, shape, suite) });
            if suite != "aes128gmac" {
                all.push(Subject { crypt_offset: Some(32), ..base(Protocol::Eesp, shape, suite) });
            }
        }
    }
    for shape in [Shape::Tunnel, Shape::Transport] {
        for suite in ["sha256", "sha1", "aesxcbc", "md5"] {
            all.push(base(Protocol::Ah, shape, suite));
        }
        for suite in testbed::pair::PSP_SUITES {
            all.push(base(Protocol::Psp, shape, suite));
        }
        all.push(Subject { crypt_offset: Some(24), ..base(Protocol::Psp, shape, "aes128gcm16") });
    }
    let mut more = vec![];
    for subject in &all {
        more.push(Subject { v6: true, ..subject.clone() });
        if matches!(subject.protocol, Protocol::Esp | Protocol::Ah) {
            more.push(Subject { esn: true, ..subject.clone() });
        }
        if matches!(subject.protocol, Protocol::Esp | Protocol::Eesp) {
            more.push(Subject { udp: true, ..subject.clone() });
        }
    }
    all.extend(more);
    all
}

struct Ends {
    sender: Worker,
    receiver: Worker,
    tables: [Snapshot; 2],
    replies: Batch,
}

impl Ends {
    fn new(subject: &Subject) -> Self {
        let config = WorkerConfig { packet_bytes: 9300, batch: 64, ..WorkerConfig::default() };
        let tables = subject.tables().unwrap_or_else(|e| panic!("{subject:?}: {e}"));
        Self {
            sender: Worker::new(config.clone()).0,
            receiver: Worker::new(config).0,
            tables,
            replies: Batch::new(8, 9300),
        }
    }

    fn seal(&mut self, batch: &mut Batch) {
        self.sender.outbound(&self.tables[0], batch, &mut self.replies);
    }

    fn open(&mut self, batch: &mut Batch) {
        self.receiver.inbound(&self.tables[1], batch);
    }

    fn dropped(&self, why: DropReason) -> u64 {
        let (sent, got) = (self.sender.counters(), self.receiver.counters());
        Totals::of([&*sent, &*got]).drops[why as usize]
    }
}

fn filled(packets: &[Vec<u8>]) -> Batch {
    let mut batch = Batch::new(packets.len() * 4, 9300);
    for packet in packets {
        assert!(batch.push_with(|p| p.set(packet)));
    }
    batch
}

fn packets(subject: &Subject, sizes: &[usize]) -> Vec<Vec<u8>> {
    let [src, dst] = subject.packet_addresses();
    sizes.iter().enumerate().map(|(i, s)| testbed::packet::udp(src, dst, 4000, i as u16, *s, IpProto::UDP)).collect()
}

fn set_checksum(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let sum = wire::checksum::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn bytes(batch: &Batch) -> Vec<Vec<u8>> {
    batch.packets().iter().map(|p| p.bytes().to_vec()).collect()
}

#[test]
fn what_goes_in_comes_out_for_every_way_of_protecting() {
    let mut rng = Rng::new(11);
    for subject in subjects() {
        let mut ends = Ends::new(&subject);
        let sizes: Vec<usize> = (0..40).map(|_| 48 + rng.below(1400)).chain([48, 64, 512, 1400, 8700]).collect();
        let sent = packets(&subject, &sizes);
        let mut batch = filled(&sent);
        ends.seal(&mut batch);
        assert_eq!(batch.len(), sent.len(), "{subject:?} did not seal");
        for (sealed, clear) in batch.packets().iter().zip(&sent) {
            let outer = IpPacket::parse(sealed.bytes()).unwrap();
            assert_eq!(outer.total_len, sealed.len(), "{subject:?}");
            assert!(sealed.len() > clear.len() || subject.shape == Shape::Beet, "{subject:?}");
        }
        ends.open(&mut batch);
        assert_eq!(bytes(&batch), sent, "{subject:?}");
    }
}

#[test]
fn a_second_copy_is_a_replay_for_every_protocol_with_a_window() {
    for subject in subjects() {
        let mut ends = Ends::new(&subject);
        let sent = packets(&subject, &[100, 200, 300]);
        let mut batch = filled(&sent);
        ends.seal(&mut batch);
        let mut copy = filled(&bytes(&batch));
        ends.open(&mut batch);
        ends.open(&mut copy);
        assert_eq!((batch.len(), copy.len()), (3, 0), "{subject:?}");
        assert_eq!(ends.dropped(DropReason::Replay), 3, "{subject:?}");
    }
}

/// Packets of a few flows, in runs. In some of them all packets, or all but a few, differ in
/// payload only; in the others each has a different length and DSCP.
fn runs(subject: &Subject, rng: &mut Rng) -> Vec<Vec<u8>> {
    let [src, dst] = subject.packet_addresses();
    let mut all = vec![];
    for _ in 0..12 {
        let (port, odd) = (rng.below(3) as u16, [0, 0, 12, 100][rng.below(4)]);
        // Few lengths, so that runs that have nothing to do with each other look similar.
        let sizes = [64, 65, 300, 48 + rng.below(1400)];
        let (mut size, mut dscp) = (sizes[rng.below(4)], [0, rng.below(64)][rng.below(2)]);
        for _ in 0..=rng.below(if odd == 100 { 6 } else { 30 }) {
            let is_odd = rng.below(100) < odd;
            if is_odd && rng.below(4) > 0 {
                size = [48 + rng.below(1400), sizes[rng.below(4)]][rng.below(2)];
            } else if is_odd {
                dscp = rng.below(64);
            }
            let mut packet = testbed::packet::udp(src, dst, 4000, port, size, IpProto::UDP);
            if !subject.v6 && subject.shape != Shape::Beet {
                (packet[1], packet[8]) = ((dscp as u8) << 2, rng.below(200) as u8 + 2);
                [packet[4], packet[5]] = (rng.below(1 << 16) as u16).to_be_bytes();
                set_checksum(&mut packet);
            }
            // After the ports and the length; the rest is not checked.
            let at = packet.len() - 1;
            packet[at] = rng.below(256) as u8;
            all.push(packet);
        }
    }
    all
}

#[test]
fn runs_of_flows_and_of_sub_sas_arrive_as_they_were() {
    let mut rng = Rng::new(17);
    for (subject, identical) in subjects().into_iter().flat_map(|subject| [(subject.clone(), false), (subject, true)]) {
        let mut ends = Ends::new(&subject);
        // Two cores send, each through a separate Sub SA if there are any.
        let config = WorkerConfig { core: 1, packet_bytes: 9300, batch: 400, ..WorkerConfig::default() };
        let mut other = Worker::new(config).0;
        let sent = if identical {
            [(); 2].map(|()| vec![packets(&subject, &[100]).remove(0); 100])
        } else {
            [(); 2].map(|()| runs(&subject, &mut rng))
        };
        let mut batches = sent.each_ref().map(|packets| filled(packets));
        ends.seal(&mut batches[0]);
        other.outbound(&ends.tables[0], &mut batches[1], &mut ends.replies);
        let [sealed, others] = batches.each_ref().map(bytes);
        assert_eq!([sealed.len(), others.len()], sent.each_ref().map(Vec::len), "{subject:?}");
        // They arrive in turns.
        let (mut first, mut second) = (sealed.iter().zip(&sent[0]), others.iter().zip(&sent[1]));
        let mut arriving: Vec<(&Vec<u8>, &Vec<u8>)> = vec![];
        while first.len() + second.len() > 0 {
            arriving.extend(first.by_ref().take(1 + rng.below(if identical { 7 } else { 40 })));
            arriving.extend(second.by_ref().take(1 + rng.below(7)));
        }
        let (wire, clear): (Vec<_>, Vec<_>) = arriving.into_iter().map(|(a, b)| (a.clone(), b.clone())).unzip();
        let (mut batch, mut copy) = (filled(&wire), filled(&wire));
        ends.open(&mut batch);
        assert!(bytes(&batch) == clear, "{subject:?}: {} of {} packets", batch.len(), clear.len());
        // Every number was noted in the window that it belongs to.
        ends.open(&mut copy);
        assert_eq!((copy.len(), ends.dropped(DropReason::Replay)), (0, wire.len() as u64), "{subject:?}");
    }
}

#[test]
fn congestion_that_some_packets_of_a_run_met_reaches_those_packets() {
    for subject in subjects().into_iter().filter(|subject| subject.shape == Shape::Tunnel && !subject.v6) {
        let mut ends = Ends::new(&subject);
        let mut packet = packets(&subject, &[200]).remove(0);
        packet[1] |= 2; // ECT(0)
        set_checksum(&mut packet);
        let mut batch = filled(&vec![packet.clone(); 60]);
        ends.seal(&mut batch);
        let (mut wire, mut clear) = (bytes(&batch), vec![packet; 60]);
        for i in (0..60).filter(|i| [7, 11, 12, 13, 16, 31, 32].contains(i)) {
            for bytes in [&mut wire[i], &mut clear[i]] {
                let tos = bytes[1] | 3;
                wire::ip::set_tos(bytes, tos).unwrap();
            }
        }
        let mut batch = filled(&wire);
        ends.open(&mut batch);
        let opened = bytes(&batch);
        assert_eq!(opened.len(), 60, "{subject:?}");
        assert!(opened == clear, "{subject:?}: {:?}", opened.iter().map(|packet| packet[1] & 3).collect::<Vec<_>>());
    }
}

#[test]
fn a_flipped_bit_is_refused_and_the_original_still_passes() {
    let mut rng = Rng::new(5);
    for subject in subjects() {
        let mut ends = Ends::new(&subject);
        let sent = packets(&subject, &[333]);
        let mut batch = filled(&sent);
        ends.seal(&mut batch);
        let sealed = bytes(&batch).remove(0);
        let outer = IpPacket::parse(&sealed).unwrap();
        // After the IP header everything except the UDP header is protected.
        let from = outer.upper_at + if outer.upper == IpProto::UDP { 8 } else { 0 };
        for _ in 0..64 {
            let mut bad = sealed.clone();
            let at = from + rng.below(sealed.len() - from);
            bad[at] ^= 1 << rng.below(8);
            let mut batch = filled(&[bad]);
            ends.open(&mut batch);
            assert!(batch.is_empty(), "{subject:?}: byte {at} flipped and accepted");
        }
        ends.open(&mut batch);
        assert_eq!(bytes(&batch), sent, "{subject:?}");
    }
}

#[test]
fn too_big_with_df_tells_the_sender_and_without_df_arrives_in_pieces() {
    let subject = Subject::new(Protocol::Esp, Shape::Tunnel, "aes128gcm16", Engine::best());
    let mut ends = Ends::new(&subject);
    ends.tables[0].outbound[0].set_path_mtu(1400);
    let inner_mtu = ends.tables[0].outbound[0].inner_mtu.load(Ordering::Relaxed) as usize;
    let mut big = packets(&subject, &[3000]).remove(0);
    big[6] |= 0x40;
    set_checksum(&mut big);
    let mut batch = filled(&[big.clone()]);
    ends.seal(&mut batch);
    assert!(batch.is_empty());
    assert_eq!(ends.dropped(DropReason::TooBig), 1);
    let error = bytes(&ends.replies).remove(0);
    let error = wire::icmp::TooBig::parse(&IpPacket::parse(&error).unwrap(), &error).unwrap().unwrap().mtu;
    assert_eq!(error as usize, inner_mtu);

    big[6] &= !0x40;
    set_checksum(&mut big);
    let mut batch = filled(&[big.clone()]);
    ends.seal(&mut batch);
    assert_eq!(batch.len(), 3);
    assert!(batch.packets().iter().all(|p| p.len() <= 1400));
    ends.open(&mut batch);
    let mut reassembler = ipsec::Reassembler::new(1, 65_535, 1000);
    let mut whole = None;
    for piece in bytes(&batch) {
        if let Ok(ipsec::Reassembled::Whole(packet)) = reassembler.push(0, &IpPacket::parse(&piece).unwrap(), &piece) {
            whole = Some(packet.to_vec());
        }
    }
    assert_eq!(whole.map(|w| w[20..].to_vec()), Some(big[20..].to_vec()));
}

#[test]
fn packets_of_a_run_that_are_too_big_are_found_wherever_they_stand() {
    let subject = Subject::new(Protocol::Esp, Shape::Tunnel, "aes128gcm16", Engine::best());
    for sizes in
        [[1500; 4], [600, 600, 600, 1500], [600, 600, 1500, 1500], [1500, 1500, 600, 600], [600, 1500, 600, 1500]]
    {
        let mut ends = Ends::new(&subject);
        ends.tables[0].outbound[0].set_path_mtu(1400);
        let mut sent = packets(&subject, &[600, 1500]);
        for packet in &mut sent {
            packet[6] |= 0x40;
            set_checksum(packet);
        }
        let run: Vec<Vec<u8>> = sizes.iter().map(|size| sent[usize::from(*size == 1500)].clone()).collect();
        let mut batch = filled(&run);
        ends.seal(&mut batch);
        let big = sizes.iter().filter(|size| **size == 1500).count();
        assert_eq!((batch.len(), ends.dropped(DropReason::TooBig)), (4 - big, big as u64), "{sizes:?}");
        ends.open(&mut batch);
        assert!(bytes(&batch).iter().all(|packet| *packet == sent[0]), "{sizes:?}");
    }
}

#[test]
fn fragments_go_all_or_none() {
    let subject = Subject::new(Protocol::Esp, Shape::Tunnel, "aes128gcm16", Engine::best());
    let mut ends = Ends::new(&subject);
    ends.tables[0].outbound[0].set_path_mtu(1000);
    let mut sent = packets(&subject, &[2900, 2900, 100]);
    for packet in &mut sent {
        packet[6] = 0; // DF clear
        set_checksum(packet);
    }
    // Room for the four fragments of the first and three of the second.
    let mut batch = Batch::new(sent.len() + 7, 9300);
    for packet in &sent {
        assert!(batch.push_with(|p| p.set(packet)));
    }
    ends.seal(&mut batch);
    assert_eq!(ends.dropped(DropReason::QueueFull), 1);
    assert_eq!(batch.len(), 1 + 4);
    let counted = ends.tables[0].outbound[0].common.counters.packets();
    assert_eq!(counted, 5);
    ends.open(&mut batch);
    assert_eq!(batch.len(), 5);
}

#[test]
fn a_run_of_packets_in_udp_ends_where_one_is_not_like_the_others() {
    let psp = Subject::new(Protocol::Psp, Shape::Transport, "aes128gcm16", Engine::best());
    let esp = Subject { udp: true, ..Subject::new(Protocol::Esp, Shape::Tunnel, "aes128gcm16", Engine::best()) };
    for subject in [psp, esp] {
        let mut ends = Ends::new(&subject);
        let mut batch = filled(&packets(&subject, &[100; 9]));
        ends.seal(&mut batch);
        let mut sealed = bytes(&batch);
        sealed[1][22] ^= 0x80; // another port
        sealed[3][25] += 1; // longer than the IP packet
        sealed[5][27] = 1; // a checksum, a wrong one
        if subject.protocol == Protocol::Psp {
            sealed[7][35] ^= 1; // an SPI that was not given to the peer
        } else {
            sealed[7][31] ^= 1; // no such SA
        }
        let mut batch = filled(&sealed);
        ends.open(&mut batch);
        assert_eq!(batch.len(), 5, "{subject:?}");
        let reasons = [DropReason::Truncated, DropReason::BadChecksum, DropReason::BadIcv].map(|why| ends.dropped(why));
        assert_eq!(reasons, [1, 1, 0], "{subject:?}");
    }
}

#[test]
fn packets_that_the_engine_refuses_are_not_counted_as_sent() {
    let subject = Subject::new(Protocol::Esp, Shape::Tunnel, "aes128gcm16", Engine::best());
    let mut ends = Ends::new(&subject);
    ends.tables[0].keys = std::sync::Arc::default();
    let mut batch = filled(&packets(&subject, &[100; 20]));
    ends.seal(&mut batch);
    assert_eq!((batch.len(), ends.dropped(DropReason::NoKey)), (0, 20));
    let counters = &ends.tables[0].outbound[0].common.counters;
    assert_eq!((counters.packets(), counters.bytes()), (0, 0));
}

#[test]
fn no_policy_no_passage_in_either_direction() {
    let subject = Subject::new(Protocol::Esp, Shape::Tunnel, "aes128gcm16", Engine::best());
    let mut ends = Ends::new(&subject);
    let stranger = testbed::packet::udp([10, 9, 9, 9].into(), [10, 2, 0, 1].into(), 1, 2, 100, IpProto::UDP);
    let mut batch = filled(std::slice::from_ref(&stranger));
    ends.seal(&mut batch);
    assert_eq!((batch.len(), ends.dropped(DropReason::NoPolicy)), (0, 1));
    // The same in the clear from outside, and a clear packet that should have been protected.
    let mut batch = filled(&[stranger, packets(&subject, &[100]).remove(0)]);
    ends.open(&mut batch);
    assert_eq!((batch.len(), ends.dropped(DropReason::NoPolicy), ends.dropped(DropReason::PlainInbound)), (0, 2, 1));
}

#[test]
fn icmp_errors_about_the_outer_path_break_no_policy() {
    let subject = Subject::new(Protocol::Esp, Shape::Tunnel, "aes128gcm16", Engine::best());
    let mut ends = Ends::new(&subject);
    let [src, dst] = subject.packet_addresses();
    // Response of a host without ESP ("protocol unreachable"), and a ping.
    let icmp = |src, dst, kind: u8| {
        let mut packet = testbed::packet::udp(src, dst, 1, 2, 100, IpProto::UDP);
        packet[9] = 1;
        packet[20..28].copy_from_slice(&[kind, 2, 0, 0, 0, 0, 0, 0]);
        set_checksum(&mut packet);
        packet
    };
    let stranger = [10, 9, 9, 9].into();
    let mut batch = filled(&[icmp(stranger, dst, 3), icmp(src, dst, 3), icmp(src, dst, 8)]);
    ends.open(&mut batch);
    let reasons = [DropReason::OuterIcmp, DropReason::PlainInbound, DropReason::NoPolicy].map(|why| ends.dropped(why));
    assert_eq!((batch.len(), reasons), (0, [2, 1, 0]));
}

#[test]
fn arbitrary_bytes_never_panic_and_never_pass() {
    let mut rng = Rng::new(3);
    for subject in subjects().into_iter().step_by(7) {
        let mut ends = Ends::new(&subject);
        for _ in 0..200 {
            let len = rng.below(200);
            let mut junk: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
            if let Some(first) = junk.first_mut() {
                *first = if rng.below(2) == 0 { 0x45 } else { 0x60 };
            }
            let mut batch = filled(&[junk.clone()]);
            ends.open(&mut batch);
            assert!(batch.is_empty());
            let mut batch = filled(&[junk]);
            ends.seal(&mut batch);
        }
    }
}
