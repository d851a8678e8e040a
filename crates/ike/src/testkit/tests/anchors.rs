//! What waits for the first trust anchors of a connection.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::*;
use crate::config::Connection;
use crate::testkit::{Delivery, connection_v1};

/// Two hosts with signatures, loaded while the credentials of `slow` do not answer.
fn slow_credentials(slow: usize, connection: impl Fn(u8, u8) -> Connection) -> (Net, Rc<RefCell<Vec<Vec<u8>>>>) {
    let mut net = Net::new(1, 2);
    keys(&mut net);
    for (host, own, peer) in [(0, (1, id("host1.test")), 2), (1, (2, id("host2.test")), 1)] {
        let other = id(&format!("host{peer}.test"));
        net.hosts[host].credentials.with_keys_v1((own.1, own.0), &[(other, peer)]);
    }
    net.hosts[slow].hold = true;
    let sent = Rc::new(RefCell::new(Vec::new()));
    let copy = Rc::clone(&sent);
    net.wire = Box::new(move |transmit| {
        copy.borrow_mut().push(transmit.datagram.clone());
        Delivery::After(Duration::from_millis(5))
    });
    for host in 0..2u8 {
        let mut one = connection(host + 1, 2 - host);
        signatures(&mut one);
        net.load(host.into(), vec![one]);
    }
    (net, sent)
}

fn has_certreq(datagram: &[u8]) -> bool {
    datagram.windows(20).any(|window| window == [7; 20])
}

#[test]
fn a_responder_answers_after_its_first_trust_anchors_arrived() {
    let (mut net, sent) = slow_credentials(1, connection);
    initiate(&mut net);
    net.run(SECOND / 4);
    assert_eq!((sent.borrow().len(), net.hosts[1].endpoint.half_open_count()), (1, 0));
    net.hosts[1].hold = false;
    net.release(1);
    net.run(SECOND / 4);
    check_up(&net);
    assert!(has_certreq(&sent.borrow()[1]), "the response has a CERTREQ");
    // Once known, nothing waits: trust anchors are refreshed beside the handshakes.
    let now = net.now;
    net.hosts[1].hold = true;
    net.hosts[1].endpoint.credentials_changed(now);
    net.pump();
    let before = sent.borrow().len();
    let ike = net.hosts[0].endpoint.ike_sas().next().expect("an IKE SA").id;
    net.hosts[0].endpoint.terminate_ike(now, ike, true, 2);
    initiate(&mut net);
    net.run(SECOND / 4);
    assert!(sent.borrow()[before..].iter().any(|datagram| has_certreq(datagram)));
}

#[test]
fn a_responder_of_ikev1_answers_after_its_keys_arrived() {
    let (mut net, sent) = slow_credentials(1, connection_v1);
    initiate(&mut net);
    net.run(SECOND / 4);
    assert_eq!(sent.borrow().len(), 1);
    net.hosts[1].hold = false;
    net.release(1);
    net.run(SECOND / 4);
    check_up(&net);
}

#[test]
fn waiting_messages_are_bounded_and_end_with_the_connection() {
    let (mut net, sent) = slow_credentials(1, connection);
    initiate(&mut net);
    net.run(SECOND / 4);
    let first = sent.borrow()[0].clone();
    let waiting = |net: &Net| {
        let tables = net.hosts[1].endpoint.tables();
        tables.iter().find(|(name, _)| *name == "held").expect("the table").1
    };
    assert_eq!(waiting(&net), 1);
    for number in 0..100u8 {
        let mut datagram = first.clone();
        datagram[0] = number;
        let (local, remote) = ((addr(1), 500).into(), (addr(2), 500).into());
        net.inject(crate::output::Transmit { local, remote, datagram, dscp: 0 });
    }
    net.run(SECOND / 4);
    assert_eq!(waiting(&net), 16);
    // The answer to a request of a connection that is gone releases them, and no connection fits.
    net.hosts[1].endpoint.load(net.now, Vec::<Arc<Connection>>::new());
    net.release(1);
    assert_eq!((waiting(&net), net.hosts[1].endpoint.half_open_count()), (0, 0));
}

#[test]
fn a_peer_that_repeats_its_message_does_not_wait_forever() {
    let (mut net, _) = slow_credentials(1, connection);
    initiate(&mut net);
    net.run(SECOND / 2);
    assert_eq!(net.hosts[1].endpoint.half_open_count(), 0);
    // Retransmissions come after 2 and after 5.6 s.
    net.run(5 * SECOND);
    assert_eq!(net.hosts[1].endpoint.half_open_count(), 1);
    assert_eq!(net.hosts[1].endpoint.tables().iter().find(|(name, _)| *name == "held"), Some(&("held", 0)));
}
