//! Names of hosts in connections: unresolved, failing, changing.

use super::super::*;
use super::{SECOND, check_up, initiate};
use crate::config::Host as Named;

fn name(text: &str) -> Vec<Named> {
    vec![Named::Name(text.to_owned())]
}

/// Hosts 1 and 2, with names for each other.
fn named(seed: u64, count: u8, start: bool) -> Net {
    let mut net = Net::new(seed, count);
    let (mut a, mut b) = (connection(1, 2), connection(2, 1));
    (a.remote_addrs, b.remote_addrs) = (name("b.test"), name("a.test"));
    a.keyingtries = 1;
    Arc::make_mut(&mut a.children[0]).start_action.start = start;
    net.hosts[1].names.insert("a.test".to_owned(), vec![1]);
    net.load(1, vec![b]);
    net.load(0, vec![a]);
    net
}

#[test]
fn a_child_to_start_waits_until_its_peer_has_an_address() {
    let mut net = named(81, 2, true);
    net.run(700 * SECOND);
    assert!(net.hosts[0].up().is_empty() && net.hosts[0].sent.0 == 0);
    let failures = net.hosts[0].log(Level::Warn).matches("'b.test' has no address: there is no b.test").count();
    assert_eq!(failures, 1, "one warning, the rest at info");
    let before = net.now;
    net.hosts[0].names.insert("b.test".to_owned(), vec![2]);
    net.run(301 * SECOND);
    assert_eq!((net.hosts[0].up().len(), net.hosts[1].up().len()), (1, 1), "within 5 min of {before:?}");
}

#[test]
fn a_command_fails_at_once_when_its_peer_has_no_address() {
    let mut net = named(82, 2, false);
    initiate(&mut net);
    net.run(SECOND);
    let outcome = net.hosts[0].command(1).cloned();
    assert_eq!(outcome, Some(Err(CommandError::new("'b.test' has no address: there is no b.test"))));
    assert_eq!(net.hosts[0].endpoint.tables().iter().find(|(table, _)| *table == "awaiting"), Some(&("awaiting", 0)));
}

#[test]
fn requests_that_wait_for_a_name_are_bounded_and_refused_beyond() {
    let mut net = named(89, 2, false);
    net.run(60 * SECOND);
    let now = net.now;
    let endpoint = &mut net.hosts[0].endpoint;
    // No response of the resolver arrives between these calls.
    let outcomes: Vec<_> = (0..300).map(|number| endpoint.initiate(now, "1-2", Some("net"), number)).collect();
    let accepted = outcomes.iter().take_while(|outcome| outcome.is_ok()).count();
    assert_eq!(accepted, 256);
    let full = crate::InitiateError::QueueFull("1-2".to_owned());
    assert!(outcomes[accepted..].iter().all(|outcome| *outcome == Err(full.clone())), "{:?}", outcomes.last());
    net.run(SECOND);
    // Each request that was accepted has an outcome, and no other.
    let failed = |number| matches!(net.hosts[0].command(number), Some(Err(_)));
    assert!((0..256).all(failed) && net.hosts[0].command(256).is_none());
}

#[test]
fn names_are_resolved_again_for_every_attempt() {
    let mut net = named(83, 3, false);
    // The peer is elsewhere; the address from the start leads to host 3, which speaks no IKE with
    // this one.
    net.hosts[0].names.insert("b.test".to_owned(), vec![3]);
    initiate(&mut net);
    net.run(5 * SECOND);
    assert!(net.hosts[0].up().is_empty());
    net.run(300 * SECOND);
    net.hosts[0].names.insert("b.test".to_owned(), vec![2]);
    net.hosts[0].events.clear();
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
}

#[test]
fn an_outage_of_the_resolver_keeps_the_addresses() {
    let mut net = named(84, 2, false);
    net.hosts[0].names.insert("b.test".to_owned(), vec![2]);
    net.run(6 * SECOND);
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    let (now, ike) = (net.now, net.hosts[0].up()[0]);
    assert!(net.hosts[0].endpoint.terminate_ike(now, ike, false, 7));
    net.run(20 * SECOND);
    net.hosts[0].names.clear();
    net.hosts[0].events.clear();
    // Also if the file is reloaded in between.
    let connections = net.hosts[0].endpoint.connections().to_vec();
    let mut changed = (*connections[0]).clone();
    changed.dpd_delay = SECOND;
    net.load(0, vec![changed]);
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
}

#[test]
fn a_responder_resolves_names_for_a_peer_that_moved() {
    let mut net = named(85, 3, false);
    // The peer of host 2 is at the address of host 3 now.
    let mut moved = connection(3, 2);
    moved.local[0].id = connection(1, 2).local[0].id.clone();
    moved.children = connection(1, 2).children;
    net.load(2, vec![moved]);
    net.run(20 * SECOND);
    net.hosts[1].names.insert("a.test".to_owned(), vec![3]);
    let now = net.now;
    net.hosts[2].endpoint.initiate(now, "3-2", Some("net"), 1).expect("can be started");
    net.run(SECOND);
    assert_eq!((net.hosts[2].up().len(), net.hosts[1].up().len()), (1, 1), "{}", net.hosts[1].log(Level::Trace));
}

#[test]
fn strangers_cannot_have_names_resolved_without_bound() {
    let mut net = Net::new(86, 3);
    let of = |number: u32| Connection {
        name: format!("c{number}"),
        remote_addrs: name(&format!("unknown{number}.test")),
        ..connection(2, 1)
    };
    net.hosts[1].names = (0..100).map(|number| (format!("unknown{number}.test"), vec![99])).collect();
    net.load(1, (0..100).map(of).collect());
    net.load(0, vec![connection(1, 2)]);
    net.run(20 * SECOND);
    net.hosts[1].slow = true;
    initiate(&mut net);
    net.run(Duration::from_millis(500));
    assert_eq!(net.hosts[1].resolving.len(), 16, "of 100 names");
    assert!(net.hosts[0].command(1).is_none(), "the stranger waits for an answer");
    for (number, host) in std::mem::take(&mut net.hosts[1].resolving) {
        let now = net.now;
        net.hosts[1].resolve(now, number, &host);
    }
    net.run(60 * SECOND);
    assert!(
        matches!(net.hosts[0].command(1), Some(Err(why)) if why.as_str().contains("NO_PROPOSAL_CHOSEN")),
        "refused after that"
    );
}
