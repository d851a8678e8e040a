//! Packet memory against obvious models. Also run under Miri (`make miri`).

use proptest::prelude::*;

use super::*;

#[test]
fn a_packet_grows_and_shrinks_within_its_buffer() {
    let mut packet = Packet::new(8);
    assert!(packet.set(b"12345678") && !packet.set(b"123456789"));
    assert_eq!(packet.bytes(), b"12345678");
    packet.cut(2..6);
    assert_eq!((packet.bytes(), packet.len()), (&b"3456"[..], 4));
    packet.truncate(9);
    packet.truncate(3);
    assert_eq!(packet.prepend(b"ab"), Ok(()));
    assert_eq!(packet.bytes(), b"ab345");
    packet.bytes_mut()[0] = b'A';
    assert_eq!(packet.around(1, 7), b"\0Ab3456");
    packet.prefetch();
    packet.prefetch_head();
}

#[test]
fn there_is_no_room_before_the_head_room() {
    let mut packet = Packet::new(0);
    assert_eq!(packet.prepend(&[1; HEADROOM]), Ok(()));
    assert_eq!(packet.prepend(&[1]), Err(DropReason::NoRoom));
    assert_eq!(packet.len(), HEADROOM);
    // Nothing to fetch beyond either end of the buffer.
    packet.set_range(HEADROOM + TAILROOM..HEADROOM + TAILROOM);
    packet.prefetch();
}

#[test]
fn short_copies_are_those_of_any_length() {
    let bytes: Vec<u8> = (0..600).map(|n| n as u8).collect();
    for len in 1..600 {
        let (mut from, mut short, mut joined) = (Packet::new(600), Packet::new(610), Packet::new(610));
        assert!(from.set(&bytes[..len]) && short.set_short(&bytes[..len]));
        assert_eq!(short.bytes(), from.bytes());
        // Up to the tailroom, and beyond it.
        assert!(joined.set(&bytes[..10]) && joined.append_packet(&from) && from.bytes() == &bytes[..len]);
        assert_eq!(joined.bytes(), [&bytes[..10], &bytes[..len]].concat());
        let mut full = Packet::new(len + 9);
        assert!(full.set(&bytes[..10]) && !full.append_packet(&from) && full.bytes() == &bytes[..10]);
        assert!(!Packet::new(len - 1).set_short(&bytes[..len]));
    }
}

#[test]
fn a_payload_begins_in_the_buffer_of_a_packet_with_room_for_all_of_it() {
    let mut packet = Packet::new(100);
    assert!(packet.set(&[1, 2, 3, 4, 5]));
    assert!(packet.begin_payload(2, &[9; 4], 102) && packet.bytes() == [9, 9, 9, 9, 3, 4, 5]);
    // The headers before the payload are as long as the headroom without 4 bytes.
    assert!(!packet.begin_payload(0, &[9; 4], 10) && packet.bytes() == [9, 9, 9, 9, 3, 4, 5]);
    assert!(
        packet.set(&[1, 2, 3, 4, 5]) && !packet.begin_payload(2, &[9; 4], 103) && packet.bytes() == [1, 2, 3, 4, 5]
    );
    assert!(packet.begin_payload(0, &[9; 4], 104) && !packet.begin_payload(10, &[9; 4], 4));
}

#[test]
fn packets_join_the_last_one_and_move_behind_it() {
    let mut batch = Batch::with_reserve(4, 1, 16);
    (0..4).for_each(|n| assert!(batch.push_with(|packet| packet.set(&[n; 4]))));
    assert!(batch.move_to_end(0));
    let mut free = 8;
    let fits = |len: usize| {
        let fits = len <= free;
        free -= if fits { len } else { 0 };
        fits
    };
    assert_eq!((batch.join(1..4, fits), batch.len()), (Ok(2), 5));
    assert_eq!(batch.packets()[4].bytes(), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
    assert!(!batch.move_to_end(1), "no empty buffer is left");
    // The last one is not among those that join it.
    assert_eq!(batch.join(4..5, |_| true), Ok(0));
}

#[test]
fn a_packet_without_room_in_the_buffer_of_the_last_one_is_not_joined() {
    let mut batch = Batch::with_reserve(4, 1, 16);
    (0..4).for_each(|n| assert!(batch.push_with(|packet| packet.set(&[n; 6]))));
    assert!(batch.move_to_end(0));
    assert_eq!(batch.join(1..4, |_| true), Err(1));
    assert_eq!(batch.packets()[4].bytes(), [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
}

#[test]
#[should_panic(expected = "assertion failed")]
fn a_port_cannot_declare_more_than_it_was_lent() {
    Packet::new(8).received(0, 9);
}

#[test]
fn what_is_reserved_is_not_for_ports() {
    let mut batch = Batch::with_reserve(1, 2, 4);
    assert_eq!(batch.room(), 1);
    for n in 0..3 {
        assert!(batch.push_with(|packet| packet.set(&[n])), "{n}");
    }
    assert!(!batch.push_with(|_| true));
    assert_eq!((batch.room(), batch.len(), batch.bytes()), (0, 3, 3));
}

/// Operations on a batch.
#[derive(Clone, Debug)]
enum Step {
    Push(Vec<u8>, bool),
    Retain(u8),
    Truncate(usize),
    Exchange(Vec<u8>),
    SwapOut(usize),
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..6);
    let step = prop_oneof![
        4 => (bytes(), any::<bool>()).prop_map(|(bytes, keep)| Step::Push(bytes, keep)),
        2 => any::<u8>().prop_map(Step::Retain),
        1 => (0_usize..6).prop_map(Step::Truncate),
        2 => bytes().prop_map(Step::Exchange),
        2 => any::<usize>().prop_map(Step::SwapOut),
        1 => Just(Step::Clear),
    ];
    proptest::collection::vec(step, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 256 }))]

    /// A batch is a bounded list of packets, and no buffer is ever lost or made.
    #[test]
    fn a_batch_is_a_bounded_list(steps in steps()) {
        const ALL: usize = 5;
        let (mut batch, mut model) = (Batch::new(ALL, 4), Vec::<Vec<u8>>::new());
        for step in steps {
            match step {
                Step::Push(bytes, keep) => {
                    let fits = model.len() < ALL && bytes.len() <= 4 && keep;
                    prop_assert_eq!(batch.push_with(|packet| packet.set(&bytes) && keep), fits);
                    if fits {
                        model.push(bytes);
                    }
                }
                Step::Retain(bits) => {
                    batch.retain(|i, _| bits >> i & 1 == 1);
                    let mut i = 0;
                    model.retain(|_| { i += 1; bits >> (i - 1) & 1 == 1 });
                }
                Step::Truncate(len) => {
                    batch.truncate(len);
                    model.truncate(len);
                }
                Step::Exchange(mut bytes) => {
                    bytes.truncate(4);
                    let mut full = Packet::new(4);
                    full.set(&bytes);
                    let given = batch.exchange(full);
                    prop_assert_eq!(given.is_some(), model.len() < ALL);
                    if given.is_some() {
                        model.push(bytes);
                    }
                }
                Step::SwapOut(i) if !model.is_empty() => {
                    let i = i % model.len();
                    let mut other = Packet::new(4);
                    other.set(b"new");
                    let out = batch.swap_out(i, other);
                    prop_assert_eq!(out.bytes(), &model[i][..]);
                    model[i] = b"new".to_vec();
                }
                Step::SwapOut(_) => {}
                Step::Clear => {
                    batch.clear();
                    model.clear();
                }
            }
            let bytes: Vec<&[u8]> = batch.packets().iter().map(Packet::bytes).collect();
            prop_assert_eq!(&bytes, &model);
            prop_assert_eq!(batch.room() + batch.len(), ALL);
            prop_assert_eq!(batch.bytes() as usize, model.iter().map(Vec::len).sum::<usize>());
            prop_assert_eq!(batch.is_empty(), model.is_empty());
        }
    }
}
