use std::collections::HashMap;

use proptest::prelude::*;
use wire::ip::update_checksum_v4;

use super::*;
use crate::testkit::{assert_ipv4_checksum, ipv4_udp, ipv6_udp};

const TIMEOUT: u64 = 100;

/// Bytes `range` of the payload of `whole` as a fragment with identification `id`.
fn fragment(whole: &[u8], id: u32, range: std::ops::Range<usize>, more: bool) -> Vec<u8> {
    let ip = IpPacket::parse(whole).unwrap();
    let payload = &whole[ip.upper_at..][range.clone()];
    let mut packet = whole[..ip.upper_at].to_vec();
    let field = range.start as u16;
    if ip.is_v6() {
        packet[ip.proto_at] = 44;
        packet.extend([ip.upper.0, 0]);
        packet.extend((field | u16::from(more)).to_be_bytes());
        packet.extend(id.to_be_bytes());
        packet.extend(payload);
        let len = packet.len() as u16 - 40;
        packet[4..6].copy_from_slice(&len.to_be_bytes());
    } else {
        packet[4..6].copy_from_slice(&(id as u16).to_be_bytes());
        packet[6..8].copy_from_slice(&((field / 8) | (u16::from(more) << 13)).to_be_bytes());
        packet.extend(payload);
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        update_checksum_v4(&mut packet).unwrap();
    }
    packet
}

/// `whole` in pieces of `size` bytes, a multiple of 8.
fn fragments(whole: &[u8], id: u32, size: usize) -> Vec<Vec<u8>> {
    let len = whole.len() - IpPacket::parse(whole).unwrap().upper_at;
    let starts = (0..len).step_by(size);
    starts.map(|start| fragment(whole, id, start..len.min(start + size), start + size < len)).collect()
}

/// An unfragmented packet as it looks after reassembly: with the identification of the fragments.
fn packet(v6: bool, id: u16, len: usize) -> Vec<u8> {
    if v6 {
        let mut octets = [0; 16];
        octets[0] = 0xfd;
        return ipv6_udp(octets, octets, len);
    }
    let mut packet = ipv4_udp([192, 0, 2, 1], [192, 0, 2, 2], len);
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6] = 0;
    update_checksum_v4(&mut packet).unwrap();
    packet
}

fn push(reassembler: &mut Reassembler, now_ms: u64, fragment: &[u8]) -> Result<Option<Vec<u8>>, DropReason> {
    match reassembler.push(now_ms, &IpPacket::parse(fragment)?, fragment)? {
        Reassembled::Waiting => Ok(None),
        Reassembled::Whole(whole) => Ok(Some(whole.to_vec())),
    }
}

proptest! {
    #[test]
    fn any_order_and_any_duplicates_give_the_packet(
        v6: bool, len in 1usize..3000, size in 1usize..40, order in proptest::collection::vec(any::<usize>(), 1..400),
    ) {
        let whole = packet(v6, 7, len);
        let pieces = fragments(&whole, 7, size * 8);
        prop_assume!(pieces.len() > 1);
        let mut reassembler = Reassembler::new(2, 65_535, TIMEOUT);
        let mut missing: Vec<usize> = (0..pieces.len()).collect();
        // Random picks, with repeats, then whatever is still missing.
        let picks: Vec<usize> = order.iter().map(|pick| pick % pieces.len()).chain(0..pieces.len()).collect();
        for pick in picks {
            missing.retain(|piece| *piece != pick);
            let got = push(&mut reassembler, 0, &pieces[pick]);
            if missing.is_empty() {
                prop_assert_eq!(got, Ok(Some(whole.clone())));
                assert_ipv4_checksum(&whole);
                return Ok(());
            }
            prop_assert_eq!(got, Ok(None));
        }
        prop_assert!(false, "never whole");
    }

    /// Against a slow model: for each packet a map from byte to value, given up at any overlap.
    #[test]
    fn agrees_with_a_model(
        v6: bool,
        steps in proptest::collection::vec((0u32..3, 0usize..12, 1usize..5, any::<bool>(), 0usize..8), 1..60),
    ) {
        #[derive(Default)]
        struct Model { bytes: HashMap<usize, u8>, end: Option<usize>, spoiled: bool }
        let whole = packet(v6, 0, 200);
        let upper_at = IpPacket::parse(&whole).unwrap().upper_at;
        let mut models: HashMap<u32, Model> = HashMap::new();
        let mut reassembler = Reassembler::new(3, 4096, TIMEOUT);
        for (id, start, units, more, cut) in steps {
            let (start, end) = (start * 8, (start + units) * 8 - if more { 0 } else { cut });
            let piece = fragment(&whole, id, start..end, more);
            if !more && start == 0 {
                continue; // an unfragmented packet
            }
            let model = models.entry(id).or_default();
            let known = (start..end).filter(|at| model.bytes.contains_key(at)).count();
            // A unit that is not full counts as a whole one.
            let shared_unit = (start..end.next_multiple_of(8)).any(|at| model.bytes.contains_key(&at));
            let highest = model.bytes.keys().max().map_or(0, |at| at + 1);
            let disagrees = model.end.is_some_and(|e| end > e || (!more && end != e)) || (!more && end < highest);
            let expected = if model.spoiled || disagrees {
                Err(DropReason::ReassemblyFull)
            } else if known == end - start {
                Ok(None)
            } else if shared_unit {
                Err(DropReason::ReassemblyFull)
            } else {
                model.bytes.extend((start..end).map(|at| (at, whole[upper_at + at])));
                model.end = if more { model.end } else { Some(end) };
                Ok((Some(model.bytes.len()) == model.end).then_some(model.bytes.len()))
            };
            model.spoiled = expected.is_err();
            let got = push(&mut reassembler, 0, &piece);
            prop_assert_eq!(got.as_ref().map(|whole| whole.as_ref().map(|w| w.len() - upper_at)).map_err(|why| *why), expected);
            if let Ok(Some(got)) = got {
                prop_assert_eq!(&got[upper_at..], &whole[upper_at..][..got.len() - upper_at]);
                models.remove(&id);
            }
        }
    }
}

#[test]
fn overlap_gives_up_the_whole_packet_and_what_follows() {
    for v6 in [false, true] {
        let whole = packet(v6, 1, 100);
        let mut reassembler = Reassembler::new(2, 65_535, TIMEOUT);
        assert_eq!(push(&mut reassembler, 0, &fragment(&whole, 1, 0..32, true)), Ok(None));
        assert_eq!(push(&mut reassembler, 0, &fragment(&whole, 1, 24..48, true)), Err(DropReason::ReassemblyFull));
        for piece in fragments(&whole, 1, 32) {
            assert_eq!(push(&mut reassembler, 1, &piece), Err(DropReason::ReassemblyFull), "swallowed");
        }
        let pieces = fragments(&whole, 1, 32);
        let got: Vec<_> = pieces.iter().filter_map(|piece| push(&mut reassembler, TIMEOUT, piece).unwrap()).collect();
        assert_eq!(got, [whole], "a new packet after the timeout");
    }
}

#[test]
fn a_duplicate_with_other_content_is_an_overlap() {
    let whole = packet(false, 1, 100);
    let mut reassembler = Reassembler::new(1, 65_535, TIMEOUT);
    let mut piece = fragment(&whole, 1, 32..64, true);
    assert_eq!(push(&mut reassembler, 0, &piece), Ok(None));
    assert_eq!(push(&mut reassembler, 0, &piece), Ok(None));
    *piece.last_mut().unwrap() ^= 1;
    assert_eq!(push(&mut reassembler, 0, &piece), Err(DropReason::ReassemblyFull));
}

#[test]
fn two_ends_or_bytes_behind_the_end_give_the_packet_up() {
    let whole = packet(true, 1, 100);
    let pushed = |pieces: &[Vec<u8>]| {
        let mut reassembler = Reassembler::new(1, 65_535, TIMEOUT);
        pieces.iter().map(|piece| push(&mut reassembler, 0, piece)).collect::<Vec<_>>()
    };
    let last = fragment(&whole, 1, 40..60, false);
    let behind = fragment(&whole, 1, 64..72, true);
    let other_last = fragment(&whole, 1, 64..70, false);
    assert_eq!(pushed(&[last.clone(), behind.clone()]), [Ok(None), Err(DropReason::ReassemblyFull)]);
    assert_eq!(pushed(&[behind, last.clone()]), [Ok(None), Err(DropReason::ReassemblyFull)]);
    assert_eq!(pushed(&[last, other_last]), [Ok(None), Err(DropReason::ReassemblyFull)]);
}

#[test]
fn fragments_that_break_the_format_are_dropped_alone() {
    let whole = packet(false, 1, 100);
    let mut reassembler = Reassembler::new(1, 65_535, TIMEOUT);
    assert_eq!(push(&mut reassembler, 0, &fragment(&whole, 1, 0..12, true)), Err(DropReason::Malformed));
    assert_eq!(push(&mut reassembler, 0, &fragment(&whole, 1, 16..16, true)), Err(DropReason::Malformed));
    assert_eq!(push(&mut reassembler, 0, &fragment(&whole, 1, 16..16, false)), Err(DropReason::Malformed));
    let ip = IpPacket::parse(&whole).unwrap();
    assert!(matches!(reassembler.push(0, &ip, &whole), Err(DropReason::Inconsistent)));
    let got: Vec<_> = fragments(&whole, 1, 40).iter().filter_map(|p| push(&mut reassembler, 0, p).unwrap()).collect();
    assert_eq!(got, [whole]);
}

#[test]
fn the_oldest_makes_room_and_time_runs_out() {
    let mut reassembler = Reassembler::new(2, 65_535, TIMEOUT);
    let pieces = |id: u16| fragments(&packet(false, id, 100), id.into(), 64);
    for id in 1..=3 {
        assert_eq!(push(&mut reassembler, id.into(), &pieces(id)[0]), Ok(None));
    }
    assert_eq!(reassembler.drops(), ReassemblyDrops { timed_out: 0, evicted: 1 });
    assert_eq!(push(&mut reassembler, 4, &pieces(3)[1]), Ok(Some(packet(false, 3, 100))));
    assert_eq!(push(&mut reassembler, 5, &pieces(1)[1]), Ok(None), "its first part is gone");
    assert_eq!(push(&mut reassembler, TIMEOUT + 2, &pieces(2)[1]), Ok(None), "its time ran out");
    assert_eq!(reassembler.drops(), ReassemblyDrops { timed_out: 1, evicted: 1 });
    reassembler.expire(10 * TIMEOUT);
    assert_eq!(reassembler.drops(), ReassemblyDrops { timed_out: 3, evicted: 1 });
    let mut none = Reassembler::new(0, 65_535, TIMEOUT);
    assert_eq!(push(&mut none, 0, &pieces(1)[0]), Err(DropReason::ReassemblyFull));
}

#[test]
fn nothing_grows_beyond_the_longest_packet() {
    // The largest packet there is, in the smallest fragments there are.
    let whole = packet(false, 1, 65_507);
    let mut reassembler = Reassembler::new(1, 65_535, TIMEOUT);
    let got: Vec<_> = fragments(&whole, 1, 8).iter().filter_map(|p| push(&mut reassembler, 0, p).unwrap()).collect();
    assert!(got == [whole]);
    // A last fragment that would end beyond it; what the parser lets through is stopped here.
    let mut beyond = fragment(&packet(false, 1, 100), 1, 0..64, false);
    beyond[6..8].copy_from_slice(&0x1fff_u16.to_be_bytes());
    update_checksum_v4(&mut beyond).unwrap();
    assert!(push(&mut reassembler, 0, &beyond).is_err());
    let piece = fragment(&packet(false, 1, 100), 1, 0..64, true);
    let mut ip = IpPacket::parse(&piece).unwrap();
    ip.fragment = ip.fragment.map(|fragment| wire::Fragment { offset: 65_528, ..fragment });
    assert!(matches!(reassembler.push(0, &ip, &piece), Err(DropReason::ReassemblyFull)));
    // A reassembler for smaller packets refuses larger ones.
    let mut small = Reassembler::new(1, 1500, TIMEOUT);
    let results: Vec<_> = fragments(&packet(true, 1, 1600), 1, 512).iter().map(|p| push(&mut small, 0, p)).collect();
    assert_eq!(results, [Ok(None), Ok(None), Err(DropReason::ReassemblyFull), Err(DropReason::ReassemblyFull)]);
    let mut exact = Reassembler::new(1, 1500, TIMEOUT);
    let fits = packet(false, 1, 1472);
    assert_eq!(fragments(&fits, 1, 512).iter().filter_map(|p| push(&mut exact, 0, p).unwrap()).next(), Some(fits));
}

#[test]
fn ipv6_extension_headers_before_the_fragment_header_stay() {
    let mut whole = packet(true, 1, 100);
    whole.splice(40..40, [60, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0]);
    whole[6] = 0;
    let len = whole.len() as u16 - 40;
    whole[4..6].copy_from_slice(&len.to_be_bytes());
    let pieces = fragments(&whole, 9, 40);
    let mut reassembler = Reassembler::new(1, 65_535, TIMEOUT);
    let got: Vec<_> = pieces.iter().rev().filter_map(|p| push(&mut reassembler, 0, p).unwrap()).collect();
    assert_eq!(got, [whole]);
}

#[test]
fn one_congestion_mark_marks_the_packet() {
    for (v6, marks, expected) in
        [(false, [2, 3], Ok(3)), (true, [1, 3], Ok(3)), (true, [2, 1], Ok(2)), (false, [0, 3], Err(DropReason::EcnCe))]
    {
        let whole = packet(v6, 1, 100);
        let mut reassembler = Reassembler::new(1, 65_535, TIMEOUT);
        let mut result = Ok(None);
        for (mut piece, mark) in fragments(&whole, 1, 64).into_iter().zip(marks) {
            wire::ip::set_ecn(&mut piece, mark).unwrap();
            result = push(&mut reassembler, 0, &piece);
        }
        assert_eq!(result.map(|whole| IpPacket::parse(&whole.unwrap()).unwrap().tos), expected);
    }
}

#[test]
fn packets_are_told_apart_by_addresses_identification_and_ipv4_protocol() {
    let mut reassembler = Reassembler::new(8, 65_535, TIMEOUT);
    let first = fragments(&packet(false, 1, 100), 1, 64);
    let mut other = first[1].clone();
    other[9] = 6;
    update_checksum_v4(&mut other).unwrap();
    assert_eq!(push(&mut reassembler, 0, &first[0]), Ok(None));
    assert_eq!(push(&mut reassembler, 0, &other), Ok(None));
    other = first[1].clone();
    other[15] ^= 1;
    update_checksum_v4(&mut other).unwrap();
    assert_eq!(push(&mut reassembler, 0, &other), Ok(None));
    assert_eq!(push(&mut reassembler, 0, &first[1]), Ok(Some(packet(false, 1, 100))));
}
