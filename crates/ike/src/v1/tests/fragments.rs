//! Messages in pieces: two endpoints in memory.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use wire::ike::{Header, PayloadType};

use super::signatures::signed_pair;
use super::stories::{assert_up, initiate};
use crate::config::*;
use crate::output::Transmit;
use crate::testkit::*;

/// Two hosts with certificates that do not fit one datagram.
fn pair(seed: u64, of: [Fragmentation; 2]) -> Net {
    let mut net = signed_pair(seed, &|_| ());
    for (host, (local, remote)) in [(0, (1, 2)), (1, (2, 1))] {
        net.hosts[host].credentials.certs = vec![vec![7; 4000]];
        let mut connection = super::signatures::signed(local, remote);
        connection.fragmentation = of[host];
        net.load(host, vec![connection]);
    }
    net
}

/// Records the length of each datagram by its sender, and whether it is a piece.
fn record(net: &mut Net) -> Rc<RefCell<Vec<(Transmit, bool)>>> {
    let seen: Rc<RefCell<Vec<(Transmit, bool)>>> = Rc::default();
    let copy = Rc::clone(&seen);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        let is_piece = datagram.datagram[16] == PayloadType::FRAGMENT_V1.0;
        copy.borrow_mut().push((datagram.clone(), is_piece));
        Delivery::After(Duration::from_millis(5))
    });
    seen
}

#[test]
fn long_messages_go_in_pieces_where_the_peer_takes_them() {
    use Fragmentation::{Accept, Force, No, Yes};
    for (of, pieces) in [
        ([Yes, Yes], [true, true]),
        ([Yes, Accept], [true, false]),
        ([Accept, Yes], [false, true]),
        ([Yes, No], [false, false]),
        ([No, Yes], [false, false]),
        ([Force, Accept], [true, false]),
    ] {
        let mut net = pair(1, of);
        let seen = record(&mut net);
        initiate(&mut net, 0);
        net.run(Duration::from_secs(3));
        assert_up(&net);
        for (host, pieces) in [(1u8, pieces[0]), (2, pieces[1])] {
            let sent = seen.borrow();
            let sent: Vec<_> = sent.iter().filter(|(datagram, _)| datagram.local.ip() == addr(host)).collect();
            assert_eq!(sent.iter().any(|(_, is_piece)| *is_piece), pieces, "{of:?} {host}");
            let longest = sent.iter().map(|(datagram, _)| datagram.datagram.len()).max();
            assert_eq!(longest.is_some_and(|len| len <= 1280 - 28), pieces, "{of:?} {host}");
        }
    }
    // By force also where the peer takes none: nothing comes of it.
    let mut net = pair(1, [Force, No]);
    initiate(&mut net, 0);
    net.run(Duration::from_secs(20));
    assert!(net.hosts[1].count("ikev1_fragments_refused") > 0);
    assert_eq!(net.hosts[1].up().len(), 0);
}

#[test]
fn every_lost_or_repeated_piece_is_made_up_for() {
    for lost in 0..16 {
        for twice in [false, true] {
            let mut net = pair(2, [Fragmentation::Yes; 2]);
            let mut number = 0;
            net.wire = Box::new(move |_: &mut Transmit| {
                number += 1;
                match (number - 1 == lost, twice) {
                    (true, false) => Delivery::Lost,
                    (true, true) => Delivery::Twice(Duration::from_millis(5), Duration::from_millis(9)),
                    // Out of order.
                    (false, _) => Delivery::After(Duration::from_millis(5 + 3 * (number % 3))),
                }
            });
            initiate(&mut net, 0);
            net.run(Duration::from_secs(60));
            assert_up(&net);
        }
    }
}

#[test]
fn pieces_of_others_cost_a_bounded_amount() {
    let mut net = pair(3, [Fragmentation::Yes; 2]);
    let seen = record(&mut net);
    initiate(&mut net, 0);
    net.run(Duration::from_secs(3));
    assert_up(&net);
    let piece = seen.borrow().iter().find(|(_, is_piece)| *is_piece).expect("a piece").0.clone();
    // Of a message without end, of an unknown ISAKMP SA, one in another, and cut short.
    for number in 1..=255u8 {
        let mut forged = piece.clone();
        forged.datagram[Header::LEN + 4 + 2] = number;
        forged.datagram[Header::LEN + 4 + 3] = 0;
        net.inject(forged.clone());
        forged.datagram[8] ^= 1;
        net.inject(forged);
    }
    for len in Header::LEN..piece.datagram.len() {
        let mut short = piece.clone();
        short.datagram.truncate(len);
        short.datagram[24..28].copy_from_slice(&(len as u32).to_be_bytes());
        net.inject(short);
    }
    let mut nested = piece.clone();
    nested.datagram.truncate(Header::LEN);
    let inner = [&[0, 7, 1, 1][..], &piece.datagram].concat();
    nested.datagram.extend([0, 0]);
    nested.datagram.extend((4 + inner.len() as u16).to_be_bytes());
    nested.datagram.extend(&inner);
    let len = nested.datagram.len() as u32;
    nested.datagram[24..28].copy_from_slice(&len.to_be_bytes());
    net.inject(nested);
    net.run(Duration::from_secs(60));
    assert!(net.hosts[1].count("ikev1_fragments_refused") > 0);
    assert_up(&net);
}

#[test]
fn no_piece_is_kept_for_an_address_that_is_not_proven() {
    let mut net = pair(4, [Fragmentation::Yes; 2]);
    let mut sent = 0;
    net.wire = Box::new(move |_: &mut Transmit| {
        sent += 1;
        if sent == 1 { Delivery::After(Duration::from_millis(5)) } else { Delivery::Lost }
    });
    initiate(&mut net, 0);
    net.run(Duration::from_millis(100));
    let ike = net.hosts[1].endpoint.ike_sas().next().expect("an IKE SA").id;
    let piece = [&[0, 0, 0, 12][..], &[0, 7, 1, 0, 1, 2, 3, 4]].concat();
    let first = PayloadType::FRAGMENT_V1.0;
    let message =
        crate::v1::Forged { exchange: 2, message_id: 0, first, payloads: &piece, encrypted: false, hashed: false };
    let datagram = net.hosts[1].endpoint.forged(ike, &message).expect("a message");
    net.inject(Transmit { local: port_500(1), remote: port_500(2), datagram, dscp: 0 });
    net.run(Duration::from_millis(5));
    assert_eq!(net.hosts[1].count("ikev1_main_invalid"), 1);
}
