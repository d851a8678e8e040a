//! Any packets through sender and receiver, with loss and reordering.

use proptest::prelude::*;

use super::*;

/// Packets of all lengths, short ones most often, each with another content.
fn packets() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let len = prop_oneof![4 => 48_usize..200, 2 => 200_usize..2000, 1 => 2000_usize..9000];
    let packet = (len, any::<bool>(), any::<u8>()).prop_map(|(len, six, mark)| {
        let mut packet = if six { v6(len) } else { v4(len) };
        packet[len - 1] = mark;
        packet
    });
    prop::collection::vec(packet, 1..40)
}

fn settings() -> impl Strategy<Value = Settings> {
    any::<bool>().prop_map(|prefer_whole| Settings { prefer_whole, ..Settings::default() })
}

/// Number of the first and last payload with bytes of each packet, from 1 on.
fn touched(payloads: &[Vec<u8>], packets: &[Vec<u8>]) -> Vec<std::ops::RangeInclusive<usize>> {
    // The sender has no padding, so that the bytes of all payloads are those of all packets.
    let mut ends = payloads.iter().scan(0, |end, payload| {
        *end += payload.len() - 4;
        Some(*end)
    });
    let (mut number, mut end, mut from) = (1, ends.next().unwrap(), 0);
    let mut ranges = Vec::new();
    for packet in packets {
        if from == end {
            (number, end) = (number + 1, ends.next().unwrap());
        }
        let first = number;
        from += packet.len();
        while from > end {
            (number, end) = (number + 1, ends.next().unwrap());
        }
        ranges.push(first..=number);
    }
    ranges
}

proptest! {
    #[test]
    fn every_packet_arrives_through_outer_packets_of_every_size(
        packets in packets(), settings in settings(), len in 5_usize..9000,
    ) {
        let payloads = pack(len, &settings, &packets);
        let received = receive(settings, &payloads, 1..=payloads.len());
        prop_assert_eq!(received.packets, packets);
        prop_assert_eq!(received.drops, vec![]);
        prop_assert_eq!(received.buffers.in_use(), 0);
    }

    #[test]
    fn payloads_of_one_length_carry_every_packet_whenever_it_arrives(
        packets in packets(), settings in settings(), len in 64_usize..2000,
        arrivals in prop::collection::vec(0_usize..4, 1..40),
    ) {
        let (mut filler, mut queue) = (Filler::new(&settings), VecDeque::new());
        let (mut payloads, mut waiting) = (Vec::new(), packets.iter().cloned());
        // Some payloads meet an empty queue, between the pieces of no packet.
        for count in arrivals.iter().cycle() {
            queue.extend(waiting.by_ref().take(*count));
            let mut payload = vec![0xff; len];
            filler.fill(&mut payload, &mut queue);
            payloads.push(payload);
            if (queue.is_empty() && waiting.len() == 0) || payloads.len() > 200_000 {
                break;
            }
            if arrivals.iter().all(|count| *count == 0) {
                queue.extend(waiting.by_ref());
            }
        }
        prop_assert!(payloads.iter().all(|payload| payload.len() == len));
        let received = receive(settings, &payloads, 1..=payloads.len());
        prop_assert_eq!(received.packets, packets);
        // Payloads of padding alone.
        prop_assert!(received.drops.iter().all(|why| *why == DropReason::Dummy));
        prop_assert_eq!(received.buffers.in_use(), 0);
    }

    #[test]
    fn payloads_of_one_length_carry_whole_packets_where_cuts_are_forbidden(
        packets in packets(), len in 9004_usize..10_000,
    ) {
        let settings = Settings { dont_fragment: true, refuse_fragments: true, ..Settings::default() };
        let (mut filler, mut queue) = (Filler::new(&settings), VecDeque::from(packets.clone()));
        let mut payloads = Vec::new();
        while !queue.is_empty() {
            payloads.push(vec![0xff; len]);
            filler.fill(payloads.last_mut().unwrap(), &mut queue);
        }
        let received = receive(settings, &payloads, 1..=payloads.len());
        prop_assert_eq!((received.packets, received.drops), (packets, vec![]));
    }

    #[test]
    fn packets_are_whole_where_fragments_are_refused(packets in packets(), len in 9000_usize..10_000) {
        let settings = Settings { dont_fragment: true, refuse_fragments: true, ..Settings::default() };
        let payloads = pack(len, &settings, &packets);
        let received = receive(settings, &payloads, 1..=payloads.len());
        prop_assert_eq!((received.packets, received.drops), (packets, vec![]));
    }

    #[test]
    fn a_lost_outer_packet_costs_exactly_the_packets_that_touch_it(
        packets in packets(), settings in settings(), len in 80_usize..3000, lost in any::<prop::sample::Index>(),
    ) {
        let payloads = pack(len, &settings, &packets);
        let lost = lost.index(payloads.len()) + 1;
        let mut received = receive(settings, &payloads, (1..=payloads.len()).filter(|number| *number != lost));
        received.expire(25);
        received.expire(50);
        let ranges = touched(&payloads, &packets);
        let kept = packets.iter().zip(ranges).filter(|(_, range)| !range.contains(&lost)).map(|(packet, _)| packet);
        prop_assert!(received.packets.iter().eq(kept));
        // Of the last packet no number follows that shows the loss.
        let cut = usize::from(received.receiver.streams_in_use());
        prop_assert_eq!(received.buffers.in_use(), cut);
        received.expire(1100);
        prop_assert_eq!(received.buffers.in_use(), 0, "its buffer is for others again");
    }

    #[test]
    fn reordering_within_the_window_loses_none(
        packets in packets(), settings in settings(), len in 80_usize..3000, window in 1_u8..=8,
        moves in prop::collection::vec(0_u8..=8, 400),
    ) {
        let settings = Settings { reorder_window: window, ..settings };
        let payloads = pack(len, &settings, &packets);
        // A packet is delayed by at most `window` packets.
        let mut order: Vec<usize> = (1..=payloads.len()).collect();
        order.sort_by_key(|number| number + usize::from(moves[number % moves.len()].min(window)));
        let received = receive(settings, &payloads, order);
        prop_assert_eq!(received.packets, packets);
        prop_assert_eq!(received.drops, vec![]);
    }

    #[test]
    fn blocks_of_two_cores_are_complete_in_any_interleaving(
        first in packets(), second in packets(), settings in settings(), len in 80_usize..3000,
        turns in prop::collection::vec(any::<bool>(), 1..20),
    ) {
        let (mut one, two) = (pack(len, &settings, &first), pack(len, &settings, &second));
        let (split, total) = (one.len(), one.len() + two.len());
        one.extend(two);
        let (mut a, mut b, mut received) = (1, split + 1, Received::new(settings));
        for core in turns.iter().cycle().take(10 * total) {
            let number = if *core { &mut a } else { &mut b };
            let end = if *core { split } else { total };
            if *number <= end {
                received.push(1000, *number as u64, &one[*number - 1]);
                // Nothing is due yet.
                received.expire(1000);
                *number += 1;
            }
        }
        // Where one core had no turn.
        (a..=split).chain(b..=total).for_each(|number| received.push(1000, number as u64, &one[number - 1]));
        let mut all: Vec<_> = first.into_iter().chain(second).collect();
        all.sort();
        received.packets.sort();
        prop_assert_eq!(received.packets, all);
    }

    #[test]
    fn hostile_payloads_never_panic_and_stay_within_the_limits(
        payloads in prop::collection::vec((0_u64..40, prop::collection::vec(prop_oneof![
            Just(0), Just(0x45), Just(0x60), any::<u8>()], 0..200)), 0..60),
        limit in 0_usize..3,
    ) {
        let mut received = Received { buffers: Buffers::with_limit(limit), ..Received::new(Settings::default()) };
        for (now, (seq, bytes)) in payloads.iter().enumerate() {
            received.push(now as u64, *seq, bytes);
            prop_assert!(received.receiver.payloads() <= 3 && received.buffers.in_use() <= limit);
        }
        received.receiver.clear(&mut received.buffers, &mut drop);
        prop_assert_eq!((received.receiver.payloads(), received.buffers.in_use()), (0, 0));
    }
}
