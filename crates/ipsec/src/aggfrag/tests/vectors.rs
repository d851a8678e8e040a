//! Payloads written by hand, and those of Linux.

use super::*;
use crate::testkit::hex;

/// A payload with `offset` in its header.
fn payload(offset: u16, blocks: &[u8]) -> Vec<u8> {
    [&[0, 0], &offset.to_be_bytes()[..], blocks].concat()
}

/// An ICMP echo request of 84 bytes from 10.1.0.1 to 10.2.0.1, as in `linux.txt`.
fn ping() -> Vec<u8> {
    hex("45000054f52940004001317b0a0100010a020001 0800c6bd00840001b108036b00000000b3760a0000000000
         101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031323334353637")
}

/// Time at which a receiver next gives up what is missing.
fn deadline(receiver: &Receiver<Vec<u8>>) -> Option<u64> {
    receiver.deadlines_ms().into_iter().flatten().min()
}

#[test]
fn two_packets_share_a_payload() {
    let both = payload(0, &[ping(), ping()].concat());
    assert_eq!(pack(1446, &cutting(), [&ping(), &ping()]), std::slice::from_ref(&both));
    let padded = [&both[..], &[0; 4]].concat();
    let received = receive(cutting(), &[padded], [1]);
    assert_eq!((received.packets, received.drops), (vec![ping(), ping()], vec![]));
}

#[test]
fn a_packet_over_two_payloads_leaves_its_rest_as_block_offset() {
    let packet = v4(1500);
    let expected = [payload(0, &packet[..1442]), payload(58, &packet[1442..])];
    assert_eq!(pack(1446, &cutting(), [&packet]), expected);
    assert_eq!(receive(cutting(), &expected, 1..=2).packets, [packet]);
}

#[test]
fn block_offset_counts_all_of_the_rest_even_beyond_the_payload() {
    let packet = v4(1500);
    let piece = |i: usize| &packet[i * 400..1500.min(i * 400 + 400)];
    let expected = [payload(0, piece(0)), payload(1100, piece(1)), payload(700, piece(2)), payload(300, piece(3))];
    assert_eq!(pack(404, &cutting(), [&packet]), expected);
    let received = receive(cutting(), &expected, 1..=4);
    assert_eq!((received.packets, received.drops, received.buffers.in_use()), (vec![packet], vec![], 0));
}

#[test]
fn a_packet_is_cut_inside_its_length_field() {
    for (packet, runts) in [(v4(100), 1..=3), (v6(100), 1..=5)] {
        for runt in runts {
            let first = payload(0, &[&v4(60)[..], &packet[..runt]].concat());
            let second = payload((100 - runt) as u16, &[&packet[runt..], &v4(40)[..]].concat());
            assert_eq!(pack(64 + runt, &cutting(), [&v4(60), &packet])[0], first);
            let received = receive(cutting(), &[first, second], 1..=2);
            assert_eq!((received.packets, received.drops), (vec![v4(60), packet.clone(), v4(40)], vec![]), "{runt}");
        }
    }
    // One byte per payload.
    let packet = v6(60);
    let payloads: Vec<_> = (0..60).map(|i| payload(if i == 0 { 0 } else { 60 - i as u16 }, &packet[i..=i])).collect();
    assert_eq!(receive(cutting(), &payloads, 1..=60).packets, [packet]);
}

#[test]
fn padding_alone_may_be_between_pieces() {
    let packet = v4(1500);
    for padding in [payload(0, &[0; 200]), payload(0, &[])] {
        let payloads = [payload(0, &packet[..1000]), padding, payload(500, &packet[1000..])];
        let received = receive(cutting(), &payloads, 1..=3);
        assert_eq!((received.packets, received.drops), (vec![packet.clone()], vec![DropReason::Dummy]));
    }
}

#[test]
fn a_lost_piece_costs_the_packets_that_it_touches() {
    let packets = [v4(1000), v4(1500), v4(300), v4(200)];
    let payloads = pack(904, &cutting(), &packets);
    assert_eq!(payloads.len(), 4);
    // The second payload has the end of the first packet and the start of the second.
    let mut received = receive(cutting(), &payloads, [1, 3, 4]);
    assert_eq!(received.packets, Vec::<Vec<u8>>::new());
    assert_eq!(deadline(&received.receiver), Some(25));
    received.expire(24);
    assert_eq!(received.packets.len(), 0);
    received.expire(25);
    assert_eq!(received.packets, packets[2..]);
    // Pieces of a packet that skipped ahead may still be continued for as long.
    received.expire(50);
    assert_eq!((received.buffers.in_use(), deadline(&received.receiver)), (0, None));
    assert_eq!(received.drops, [DropReason::AggfragIncomplete; 2]);
}

#[test]
fn swapped_payloads_wait_for_each_other() {
    let packets = [v4(1000), v4(1500), v4(300), v4(200)];
    let payloads = pack(904, &cutting(), &packets);
    let received = receive(cutting(), &payloads, [1, 3, 2, 4]);
    assert_eq!((received.packets, received.drops), (packets.to_vec(), vec![]));
    assert_eq!(deadline(&received.receiver), None);
}

#[test]
fn a_block_offset_without_a_packet_is_skipped() {
    let (packet, first) = (v4(80), payload(65_535, &[0x45; 1000]));
    // The block goes on, and is one loss.
    let payloads = [first, payload(64_535, &[0x45; 500]), payload(64_035, &[]), payload(0, &packet)];
    let received = receive(cutting(), &payloads, 1..=4);
    assert_eq!((received.packets, received.drops), (vec![packet], vec![DropReason::AggfragIncomplete]));
}

#[test]
fn a_block_that_is_no_packet_ends_the_payload() {
    let whole = v4(80);
    let with = |bytes: &[u8]| [&whole[..], bytes, &whole].concat();
    let mut short = whole.clone();
    short[2..4].copy_from_slice(&19_u16.to_be_bytes());
    let mut few_words = whole.clone();
    few_words[0] = 0x44;
    let mut jumbo = v6(60);
    jumbo[4..6].fill(0);
    for bad in [vec![0x50; 20], short, few_words, jumbo, vec![0xf0]] {
        let received = receive(cutting(), &[payload(0, &with(&bad)), payload(0, &whole)], 1..=2);
        let expected = (vec![whole.clone(), whole.clone()], vec![DropReason::BadInner]);
        assert_eq!((received.packets, received.drops), expected, "{bad:?}");
    }
    // The next block is found, although the header is longer than the packet.
    let mut long_header = v4(28);
    long_header[0] = 0x4f;
    let received = receive(cutting(), &[payload(0, &with(&long_header))], [1]);
    assert_eq!((received.packets.len(), received.drops), (2, vec![DropReason::BadInner]));
}

#[test]
fn a_header_alone_is_a_dummy_and_a_cut_header_is_malformed() {
    let received = receive(cutting(), &[payload(0, &[]), vec![0; 3], vec![2; 40]], 1..=3);
    assert_eq!(received.drops, [DropReason::Dummy, DropReason::BadInner, DropReason::BadInner]);
    // The header with congestion control has other fields and the same blocks.
    let mut congestion = vec![0; 24];
    congestion[0] = 1;
    congestion.extend(ping());
    assert_eq!(receive(cutting(), &[congestion], [1]).packets, [ping()]);
}

#[test]
fn a_rest_of_another_length_discards_the_packet() {
    let packet = v4(1500);
    let payloads =
        [payload(0, &packet[..1000]), payload(499, &[&packet[1000..1499], &v4(60)[..]].concat()), payload(0, &packet)];
    let received = receive(cutting(), &payloads, 1..=3);
    assert_eq!((received.packets, received.drops), (vec![v4(60), packet], vec![DropReason::AggfragIncomplete]));
    assert_eq!(received.buffers.in_use(), 0);
}

#[test]
fn pieces_are_dropped_where_they_are_refused_or_no_buffer_is_free() {
    let (packet, small) = (v4(1500), v4(60));
    let payloads = [payload(0, &packet[..1000]), payload(500, &[&packet[1000..], &small[..]].concat())];
    let settings = Settings { refuse_fragments: true, ..cutting() };
    let received = receive(settings, &payloads, 1..=2);
    assert_eq!((received.packets, received.drops), (vec![small.clone()], vec![DropReason::Fragment]));

    let mut received = Received { buffers: Buffers::with_limit(0), ..Received::new(cutting()) };
    received.push(0, 1, &payloads[0]);
    received.push(0, 2, &payloads[1]);
    assert_eq!((received.packets, received.drops), (vec![small], vec![DropReason::ReassemblyFull]));
}

#[test]
fn the_last_packet_of_a_payload_comes_with_its_buffer() {
    let (first, second) = (ping(), ping());
    for padding in [&[][..], &[0; 4]] {
        let mut receiver = Receiver::new(cutting());
        let payload = payload(0, &[&first, &second, padding].concat());
        assert!(receiver.push(0, 1, payload.clone()).is_none());
        let (mut buffers, mut recycle) = (Buffers::new(), |_| panic!("a buffer is recycled"));
        let taken = receiver.take(&mut buffers, &mut recycle);
        assert_eq!(taken, Some(Taken::Inner(Inner::Packet(&first))));
        let range = 4 + first.len()..4 + first.len() + second.len();
        assert_eq!(receiver.take(&mut buffers, &mut recycle), Some(Taken::Last(payload, range)));
        assert_eq!(receiver.take(&mut buffers, &mut recycle), None);
        assert!(!receiver.is_ready() && receiver.payloads() == 0);
    }
}

#[test]
fn dont_fragment_starts_another_payload_and_prefer_whole_when_little_is_free() {
    let settings = Settings { dont_fragment: true, ..Settings::default() };
    let packets = [v4(600), v4(600), v4(400)];
    let expected = [payload(0, &packets[0]), payload(0, &packets[1..].concat())];
    assert_eq!(pack(1004, &settings, &packets), expected);
    let mut packer = Packer::new(1004, &settings);
    assert_eq!(packer.pack(&v4(1001), &mut Sent::default()), Err(DropReason::TooBig));

    // 100 of 1000 bytes are free: not worth a cut. 101 are.
    let close = pack(1004, &Settings::default(), &[v4(900), v4(600)]);
    assert_eq!(close, [payload(0, &v4(900)), payload(0, &v4(600))]);
    let cut = pack(1004, &Settings::default(), &[v4(899), v4(600)]);
    assert_eq!(cut[1][..4], [0, 0, 1, 0xf3]);
}

/// Payloads in `linux.txt`: sender, sequence number, payload.
fn linux() -> Vec<(&'static str, u64, Vec<u8>)> {
    let lines = include_str!("../linux.txt").lines().filter(|line| !line.starts_with('#'));
    let read = |line: &'static str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields[0], fields[3].parse().unwrap(), hex(line.rsplit_once(": ").unwrap().1))
    };
    lines.map(read).collect()
}

#[test]
fn payloads_of_linux_are_read_and_packed_alike() {
    let all = linux();
    assert_eq!(all.len(), 28);
    for host in ["host1", "host2"] {
        let mut received = Received::new(Settings::default());
        let payloads = || all.iter().filter(|(sender, ..)| *sender == host);
        payloads().for_each(|(_, seq, payload)| received.push(0, *seq, payload));
        let lens: Vec<usize> = received.packets.iter().map(Vec::len).collect();
        assert_eq!(lens, [84, 84, 68, 48, 128, 88, 108, 3028, 3028, 92, 92, 92], "{host}");
        assert_eq!((received.drops, received.buffers.in_use()), (vec![], 0));
        // The same packets in batches as Linux had them.
        let packets = received.packets;
        let batches = [0..1, 1..2, 2..3, 3..5, 5..6, 6..7, 7..8, 8..9, 9..10, 10..12];
        let packed = batches.into_iter().flat_map(|batch| pack(1454, &cutting(), &packets[batch]));
        assert!(packed.eq(payloads().map(|(.., payload)| payload.clone())), "{host}");
    }
}

#[test]
fn a_payload_is_filled_with_padding_and_a_cut_packet_goes_on_behind_none() {
    let settings = cutting();
    let (mut filler, mut queue) = (Filler::new(&settings), VecDeque::new());
    let next = |filler: &mut Filler, queue: &mut VecDeque<_>| {
        let mut payload = vec![0xff; 104];
        let used = filler.fill(&mut payload, queue).used;
        (payload, used)
    };
    assert_eq!(next(&mut filler, &mut queue), (vec![0; 104], 0), "all-pad: offset 0, then padding");
    let (first, second) = (v4(60), v4(250));
    queue.extend([first.clone(), second.clone()]);
    let (payload, used) = next(&mut filler, &mut queue);
    assert_eq!(payload, [&[0; 4], &first[..], &second[..40]].concat());
    assert_eq!((used, queue.len()), (100, 1), "a cut packet stays");
    // The offset is all that remains, beyond the payload.
    assert_eq!(next(&mut filler, &mut queue).0, [&[0, 0, 0, 210], &second[40..140]].concat());
    assert_eq!(next(&mut filler, &mut queue).0, [&[0, 0, 0, 110], &second[140..240]].concat());
    let (payload, used) = next(&mut filler, &mut queue);
    assert_eq!((payload, used), ([&[0, 0, 0, 10], &second[240..], &[0; 90]].concat(), 10));
    assert_eq!(next(&mut filler, &mut queue), (vec![0; 104], 0));
}

#[test]
fn a_cut_packet_is_sent_again_from_its_beginning_through_another_sa() {
    let (mut filler, packet) = (Filler::new(&cutting()), v4(150));
    let mut queue = VecDeque::from([packet.clone()]);
    let mut payload = vec![0; 104];
    filler.fill(&mut payload, &mut queue);
    filler.restart();
    filler.fill(&mut payload, &mut queue);
    assert_eq!(payload, [&[0; 4], &packet[..100]].concat());
    filler.fill(&mut payload, &mut queue);
    assert_eq!(payload, [&[0, 0, 0, 50], &packet[100..], &[0; 50]].concat());
    assert!(queue.is_empty());
}

#[test]
fn a_queued_packet_that_exceeds_smaller_payloads_and_must_not_be_cut_is_removed() {
    let settings = Settings { dont_fragment: true, ..Settings::default() };
    // Checked against 1004 bytes, filled into 104.
    let mut queue = VecDeque::from([v4(60), v4(101), v4(1000), v4(100), v4(30)]);
    let (mut filler, mut payload) = (Filler::new(&settings), vec![0xff; 104]);
    let filled = filler.fill(&mut payload, &mut queue);
    assert_eq!((filled, queue.len()), (Filled { used: 60, too_big: 2 }, 2));
    assert_eq!(payload, [&[0; 4], &v4(60)[..], &[0; 40]].concat());
    assert_eq!(filler.fill(&mut payload, &mut queue), Filled { used: 100, too_big: 0 });
    assert_eq!(filler.fill(&mut payload, &mut queue), Filled { used: 30, too_big: 0 });
    // Where cuts are permitted, none is removed.
    let (mut filler, mut queue) = (Filler::new(&cutting()), VecDeque::from([v4(1000)]));
    assert_eq!(filler.fill(&mut payload, &mut queue), Filled { used: 100, too_big: 0 });
}

#[test]
fn a_payload_takes_a_limited_number_of_packets_out_of_the_queue() {
    let settings = Settings { dont_fragment: true, ..Settings::default() };
    for len in [28, 5000] {
        let mut queue = VecDeque::from(vec![v4(len); 100]);
        let mut payload = vec![0xff; 2004];
        let Filled { used, too_big } = Filler::new(&settings).fill(&mut payload, &mut queue);
        assert_eq!((used / 28 + too_big, queue.len()), (64, 36));
    }
}
