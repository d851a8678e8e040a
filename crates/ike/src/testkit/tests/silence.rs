//! Peers that do not answer: log lines and listing.

use super::*;
use crate::Unanswered;

/// Lines of host 0 at info that report a retransmission.
fn reports(net: &Net) -> usize {
    net.hosts[0].log(Level::Info).matches("retransmitting").count()
}

fn unanswered(net: &Net) -> Option<Unanswered> {
    net.hosts[0].endpoint.ike_sas().next().and_then(|view| view.unanswered)
}

#[test]
fn retransmissions_are_reported_with_time_and_attempt() {
    let mut net = pair(90, |_, _| ());
    net.wire = Box::new(|_| Delivery::Lost);
    let start = net.now;
    initiate(&mut net);
    net.run(3 * SECOND);
    assert_eq!((reports(&net), unanswered(&net)), (0, None));
    net.run(9 * SECOND);
    let log = net.hosts[0].log(Level::Info);
    assert!(log.contains(" after 4 s, retransmitting (attempt 2 of 6)"), "{log}");
    assert!(log.contains(" after 11 s, retransmitting (attempt 3 of 6)"), "{log}");
    assert_eq!(unanswered(&net), Some(Unanswered { since: start, attempts: 3, attempts_max: 6 }));
}

#[test]
fn an_authenticated_peer_that_falls_silent_is_reported() {
    let mut net = pair(91, |_, _| ());
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    assert_eq!(unanswered(&net), None);
    net.wire = Box::new(|_| Delivery::Lost);
    let (now, ike) = (net.now, net.hosts[0].up()[0]);
    net.hosts[0].endpoint.rekey_ike(now, ike, false, 8);
    net.run(5 * SECOND);
    assert_eq!((reports(&net), unanswered(&net).map(|silence| silence.attempts)), (1, Some(2)));
}

#[test]
fn a_network_outage_does_not_flood_the_log() {
    let mut net = Net::new(92, 21);
    net.wire = Box::new(|_| Delivery::Lost);
    let connections: Vec<_> = (2..=21).map(|peer| connection(1, peer)).collect();
    let names: Vec<String> = connections.iter().map(|connection| connection.name.clone()).collect();
    net.load(0, connections);
    for (at, name) in names.iter().enumerate() {
        let now = net.now;
        net.hosts[0].endpoint.initiate(now, name, Some("net"), at as u64).expect("can be started");
    }
    net.run(5 * SECOND);
    assert_eq!(net.hosts[0].log(Level::Debug).matches("retransmitting").count(), 20);
    assert_eq!(reports(&net), 5);
}
