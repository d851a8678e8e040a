//! Table of states: what a message of every exchange does in every state of both roles.

use std::cell::Cell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Duration;

use wire::ike::PayloadType;
use wire::ike::v1::{DOI_IPSEC, Notification, NotifyType};

use super::stories::{assert_up, initiate};
use crate::output::Transmit;
use crate::testkit::*;
use crate::v1::Forged;
use crate::v1::message::payloads;

/// Variant, host, datagrams that arrived before, and the state of the host after them.
const STATES: [(VariantV1, usize, usize, &str); 20] = [
    (MAIN, 0, 0, "main I: SA sent"),
    (MAIN, 1, 1, "main R: SA sent"),
    (MAIN, 0, 2, "main I: KE sent"),
    (MAIN, 1, 3, "main R: KE sent"),
    (MAIN, 0, 4, "main I: HASH sent"),
    (MAIN, 1, 5, "main R: up"),
    (MAIN, 0, 6, "main I: quick mode sent"),
    (MAIN, 1, 7, "main R: quick mode answered"),
    (MAIN, 0, 8, "main I: child"),
    (MAIN, 1, 9, "main R: child"),
    (AGGRESSIVE, 0, 0, "aggressive I: all sent"),
    (AGGRESSIVE, 1, 1, "aggressive R: all sent"),
    (AGGRESSIVE, 0, 2, "aggressive I: quick mode sent"),
    (AGGRESSIVE, 1, 3, "aggressive R: up"),
    (XAUTH, 1, 5, "XAuth R: password requested"),
    (XAUTH, 0, 6, "XAuth I: waits for request"),
    (XAUTH, 0, 7, "XAuth I: password sent"),
    (XAUTH, 1, 8, "XAuth R: status sent"),
    (XAUTH, 0, 9, "XAuth I: address requested"),
    (XAUTH, 1, 10, "XAuth R: up"),
];

const MAIN: VariantV1 = VariantV1 {
    aggressive: false,
    signatures: false,
    xauth: false,
    vips: false,
    push: false,
    pfs: false,
    fragments: false,
};
const AGGRESSIVE: VariantV1 = VariantV1 { aggressive: true, ..MAIN };
const XAUTH: VariantV1 = VariantV1 { xauth: true, vips: true, ..MAIN };

/// Both hosts after so many datagrams; what the returned cell cuts is lost.
fn stopped(variant: VariantV1, delivered: usize) -> (Net, Rc<Cell<bool>>) {
    let mut net = variant.net(40, &|connection| connection.dpd_delay = Duration::ZERO);
    let cut = Rc::new(Cell::new(true));
    let (is_cut, mut sent) = (Rc::clone(&cut), 0);
    net.wire = Box::new(move |_: &mut Transmit| {
        sent += 1;
        if is_cut.get() && sent > delivered { Delivery::Lost } else { Delivery::After(Duration::from_millis(5)) }
    });
    initiate(&mut net, 0);
    net.run(Duration::from_millis(300));
    (net, cut)
}

/// Effects on a host: counters that moved, without the prefix, `!` for a message that was sent.
fn effects(net: &mut Net, host: usize, datagram: Vec<u8>) -> String {
    let counts =
        |host: &Host| -> Vec<(&str, usize)> { crate::counters().map(|(name, _)| (name, host.count(name))).collect() };
    let (before, sent) = (counts(&net.hosts[host]), net.hosts[host].sent.0);
    let (local, remote) = (port_500(2 - host as u8), port_500(host as u8 + 1));
    net.inject(Transmit { local, remote, datagram, dscp: 0 });
    net.run(Duration::from_millis(2));
    let after = counts(&net.hosts[host]);
    let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
    let mut text: Vec<&str> = moved.map(|((name, _), _)| name.trim_start_matches("ikev1_")).collect();
    if net.hosts[host].sent.0 > sent {
        text.push("!");
    }
    if text.is_empty() { "-".to_owned() } else { text.join(" ") }
}

#[test]
fn a_message_of_every_exchange_in_every_state_has_its_effect() {
    let (clear_first, clear) = payloads(|chain| {
        chain.raw(PayloadType::VENDOR_V1, &[7; 16]);
    });
    let status = Notification {
        doi: DOI_IPSEC,
        protocol: wire::ike::ProtocolId::IKE,
        spi: &[],
        kind: NotifyType(40_001),
        data: &[],
    };
    let (first, keyed) = payloads(|chain| {
        chain.notification_v1(&status);
    });
    let mut table = String::new();
    for (variant, host, delivered, name) in STATES {
        for exchange in [2, 4, 5, 6, 32, 33, 34, 0] {
            let cells = [false, true].map(|encrypted| {
                let (mut net, cut) = stopped(variant, delivered);
                let (first, payloads) = if encrypted { (first, &keyed) } else { (clear_first, &clear) };
                let message =
                    Forged { exchange, message_id: 0x1234, first: first.0, payloads, encrypted, hashed: encrypted };
                let ike = net.hosts[host].endpoint.ike_sas().next().expect("an IKE SA").id;
                let datagram = net.hosts[host].endpoint.forged(ike, &message).expect("a message");
                let cell = effects(&mut net, host, datagram);
                // Whatever it was, the honest exchange goes on.
                cut.set(false);
                net.run(Duration::from_secs(60));
                // An authentic message of the peer proves the arrival of message 3 of aggressive
                // mode, which was lost here: no honest peer should send one.
                if !(encrypted && (variant, host, delivered) == (AGGRESSIVE, 0, 2)) {
                    assert_up(&net);
                }
                cell
            });
            writeln!(table, "{name} | {exchange} | {} | {}", cells[0], cells[1]).expect("a string");
        }
    }
    let expected = include_str!("states.txt");
    let body: Vec<&str> = expected.lines().filter(|line| !line.starts_with('#')).collect();
    let found: Vec<&str> = table.lines().collect();
    if body != found {
        println!("{table}");
    }
    for (expected, found) in body.iter().zip(&found) {
        assert_eq!(expected, found);
    }
    assert_eq!(body.len(), found.len());
}
