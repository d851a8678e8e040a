//! Draining before maintenance: IKE SAs end in order, and none begins.

use super::super::*;
use super::{SECOND, check_up, initiate, pair};
use crate::InitiateError;

#[test]
fn a_drained_host_ends_its_ike_sas_and_accepts_and_starts_none() {
    let mut net = pair(301, |_, _| ());
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    let now = net.now;
    net.hosts[1].endpoint.drain();
    net.run(SECOND);
    check_up(&net);
    for ike in net.hosts[1].up() {
        assert!(net.hosts[1].endpoint.terminate_ike(now, ike, false, 7));
    }
    net.run(SECOND);
    assert_eq!(net.hosts[1].command(7), Some(&Ok(())), "the peer answered the DELETE");
    // The peer tries again, because its child should be up.
    assert_eq!((net.hosts[0].up().len(), net.hosts[1].endpoint.ike_sa_count()), (0, 0));

    // From its peer, from itself, from a packet, from a reload.
    initiate(&mut net);
    net.run(SECOND * 3);
    assert_eq!(net.hosts[1].endpoint.ike_sa_count(), 0, "it accepted one");
    assert!(net.hosts[1].count("ike_init_blocked") > 0);
    let now = net.now;
    let refused = net.hosts[1].endpoint.initiate(now, "2-1", Some("net"), 8);
    assert_eq!(refused, Err(InitiateError::Draining));
    let packet = (ts("10.2.0.1").resolve(addr(2)), ts("10.1.0.1").resolve(addr(2)));
    net.hosts[1].endpoint.acquire(now, "2-1", "net", Some(packet), None);
    let mut again = (*net.hosts[1].endpoint.connections()[0]).clone();
    Arc::make_mut(&mut again.children[0]).start_action.start = true;
    net.load(1, vec![again]);
    net.run(SECOND * 3);
    assert_eq!(net.hosts[1].endpoint.ike_sa_count(), 0, "it started one");
}

#[test]
fn a_command_that_waits_for_the_next_attempt_fails_when_the_host_is_drained() {
    let mut net = pair(302, |_, connection| connection.keyingtries = 3);
    net.wire = Box::new(|_| Delivery::Lost);
    initiate(&mut net);
    // The first attempt is given up, and the second one waits for its time.
    while net.hosts[0].endpoint.ike_sa_count() > 0 {
        net.run(SECOND);
    }
    assert_eq!(net.hosts[0].command(1), None);
    net.hosts[0].endpoint.drain();
    net.run(SECOND);
    let outcome = net.hosts[0].command(1).cloned();
    assert!(
        outcome.as_ref().is_some_and(|done| done.as_ref().is_err_and(|why| why.to_string().contains("drained"))),
        "{outcome:?}"
    );
    net.run(SECOND * 600);
    assert_eq!((net.hosts[0].endpoint.ike_sa_count(), net.hosts[0].endpoint.deadline()), (0, None));
}
