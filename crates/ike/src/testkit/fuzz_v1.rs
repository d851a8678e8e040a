//! IKEv1 driven by bytes: its decoders, and two endpoints that receive arbitrary messages in each
//! state, in clear text or under their own keys.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use super::fuzz::inject_changed;
use super::{Delivery, Net, VariantV1, connection_v1, port_500};
use crate::output::Transmit;
use crate::v1::{Forged, decode};

/// Bytes that are looked at, and datagrams that are remembered for mutation.
const INPUT_MAX: usize = 4096;
const REMEMBERED: usize = 32;
/// Exchanges of IKEv1, one that is refused, and one of IKEv2.
const EXCHANGES: [u8; 8] = [2, 4, 5, 6, 32, 33, 34, 0];

/// Reads `input` as operations on two endpoints of IKEv1, one of which starts phase 1. The first
/// byte is the number of a [`VariantV1`]; with bit 7 the rest is passed to the decoders alone. The
/// second byte is the number of datagrams that arrive before the link is cut, so that both are in
/// the states of that moment. The third byte: bits 0 and 1 stop credential responses of host 1 and
/// 2, bits 2 to 7 are the number of times that those are given before the first operation.
///
/// | first byte | then | effect |
/// |---|---|---|
/// | 0 | exchange, first payload, flags, message ID, length, bytes | a message to the ISAKMP SA; flag 1 encrypts it, 2 adds the hash |
/// | 1 | which, at, xor | a datagram that was sent, with one byte changed |
/// | 2 | seconds | time passes |
/// | 3 | | credential responses that were stopped |
/// | 4 | | the link is repaired |
/// | 5 | which | a command |
///
/// The highest bit of the operation selects the host that receives or acts.
///
/// # Panics
/// When an endpoint or a decoder does, or when a table grows above its limit.
pub fn drive_v1(input: &[u8]) {
    let input = &input[..input.len().min(INPUT_MAX)];
    let Some((variant, rest)) = input.split_first() else { return };
    if variant & 0x80 != 0 {
        #[allow(clippy::disallowed_methods)] // simulated time begins at some time
        return decode(std::time::Instant::now(), &connection_v1(1, 2), rest);
    }
    let [delivered, holds, rest @ ..] = rest else { return };
    let mut net = VariantV1::of(*variant).net(1, &|_| ());
    let seen: Rc<RefCell<Vec<Transmit>>> = Rc::default();
    let cut = Rc::new(Cell::new(false));
    let (copy, is_cut, delivered) = (Rc::clone(&seen), Rc::clone(&cut), usize::from(*delivered));
    let mut sent = 0;
    net.wire = Box::new(move |datagram| {
        let mut seen = copy.borrow_mut();
        if seen.len() < REMEMBERED {
            seen.push(datagram.clone());
        }
        sent += 1;
        is_cut.set(is_cut.get() || sent == delivered);
        match is_cut.get() && sent > delivered {
            true => Delivery::Lost,
            false => Delivery::After(Duration::from_millis(5)),
        }
    });
    (net.hosts[0].hold, net.hosts[1].hold) = (holds & 1 != 0, holds & 2 != 0);
    let now = net.now;
    let _ = net.hosts[0].endpoint.initiate(now, "1-2", Some("net"), 1);
    net.pump();
    for _ in 0..=holds >> 2 {
        net.run(Duration::from_millis(50));
        if net.hosts.iter().all(|host| host.held.is_empty()) {
            break;
        }
        for host in 0..2 {
            net.release(host);
        }
    }
    net.run(Duration::from_millis(100));
    let mut rest = rest;
    while let Some((op, after)) = rest.split_first() {
        let copies = seen.borrow().clone();
        rest = match (op & 7, after) {
            (4, after) => {
                cut.set(false);
                let open = Box::new(|_: &mut Transmit| Delivery::After(Duration::from_millis(5)));
                net.wire = open;
                after
            }
            (op_kind, after) => operate(&mut net, &copies, (op_kind, usize::from(op >> 7)), after),
        };
        net.pump();
    }
    net.run(Duration::from_secs(300));
    for host in &net.hosts {
        let endpoint = &host.endpoint;
        assert!(endpoint.half_open_count() <= 1000 && endpoint.ike_sa_count() < 64 && host.plane.len() < 1024);
    }
}

fn operate<'a>(net: &mut Net, seen: &[Transmit], (op, host): (u8, usize), input: &'a [u8]) -> &'a [u8] {
    match (op, input) {
        (0, [exchange, first, flags, message_id, len, rest @ ..]) => {
            let (payloads, rest) = rest.split_at(rest.len().min(usize::from(*len) * 4));
            let message = Forged {
                exchange: EXCHANGES[usize::from(*exchange) % EXCHANGES.len()],
                message_id: match message_id {
                    0..128 => u32::from(*message_id),
                    high => u32::from(*high) << 16,
                },
                first: *first,
                payloads,
                encrypted: flags & 1 != 0,
                hashed: flags & 2 != 0,
            };
            let ike = net.hosts[host].endpoint.ike_sas().last().map(|sa| sa.id);
            if let Some(datagram) = ike.and_then(|ike| net.hosts[host].endpoint.forged(ike, &message)) {
                let (local, remote) = (port_500(2 - host as u8), port_500(host as u8 + 1));
                net.inject(Transmit { local, remote, datagram, dscp: 0 });
                net.run(Duration::from_millis(1));
            }
            rest
        }
        (1, [which, at, xor, rest @ ..]) => {
            inject_changed(net, seen, [*which, *at, *xor]);
            rest
        }
        (2, [seconds, rest @ ..]) => {
            net.run(Duration::from_secs(u64::from(*seconds)));
            rest
        }
        (3, rest) => {
            net.release(host);
            rest
        }
        (5, [which, rest @ ..]) => {
            command(net, host, *which);
            rest
        }
        _ => &[],
    }
}

fn command(net: &mut Net, host: usize, which: u8) {
    let now = net.now;
    let child = net.hosts[host].live().next().map(|child| child.sa.id);
    let endpoint = &mut net.hosts[host].endpoint;
    let ike = endpoint.ike_sas().next().map(|sa| sa.id);
    match (which % 6, ike, child) {
        (0, ..) => drop(endpoint.initiate(now, if host == 0 { "1-2" } else { "2-1" }, Some("net"), 2)),
        (1, _, Some(child)) => drop(endpoint.rekey_child(now, child, 3)),
        (2, Some(ike), _) => drop(endpoint.rekey_ike(now, ike, false, 4)),
        (3, _, Some(child)) => drop(endpoint.terminate_child(now, child, 5)),
        (4, Some(ike), _) => drop(endpoint.terminate_ike(now, ike, false, 6)),
        (5, _, Some(child)) => endpoint.traffic(now, child, None),
        _ => (),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_bytes_make_an_endpoint_panic_in_any_state(
            variant in any::<u8>(),
            delivered in 0u8..20,
            holds in any::<u8>(),
            operations in prop::collection::vec(
                (0u8..6, any::<bool>(), prop::collection::vec(any::<u8>(), 3..40)), 0..8),
        ) {
            let mut input = vec![variant, delivered, holds];
            for (op, host, bytes) in operations {
                input.push(op | u8::from(host) << 7);
                input.extend(bytes);
            }
            drive_v1(&input);
        }
    }

    #[test]
    fn a_message_under_the_keys_of_the_receiver_is_accepted() {
        // Quick mode and dead peer detection of a peer with the keys, after phase 1.
        let mut net = VariantV1::default().net(3, &|_| ());
        let now = net.now;
        net.hosts[0].endpoint.initiate(now, "1-2", None, 1).expect("an attempt");
        net.run(Duration::from_secs(1));
        let ike = net.hosts[1].up()[0];
        let cookies = net.hosts[1].endpoint.ike_sas().next().expect("an IKE SA").spis;
        let data = [&[0, 0, 0, 1, 1, 16, 0x8d, 0x28][..], &cookies.initiator.0, &cookies.responder.0, &[0, 0, 0, 1]];
        let body = data.concat();
        let payloads = [&[0, 0, 0, 4 + body.len() as u8][..], &body].concat();
        let message =
            Forged { exchange: 5, message_id: 0x1000, first: 11, payloads: &payloads, encrypted: true, hashed: true };
        let datagram = net.hosts[1].endpoint.forged(ike, &message).expect("a message");
        let sent = net.hosts[1].sent.0;
        net.inject(Transmit { local: port_500(1), remote: port_500(2), datagram, dscp: 0 });
        net.run(Duration::from_millis(20));
        // R-U-THERE-ACK.
        assert_eq!(net.hosts[1].sent.0, sent + 1, "{}", net.hosts[1].log(crate::output::Level::Debug));
    }
}
