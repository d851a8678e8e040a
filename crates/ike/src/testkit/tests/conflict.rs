//! Selectors that another peer uses: two branches and one hub, which is host 1.

use super::*;
use crate::config::TsConflict;

/// Hosts 0 and 2 connect to the hub with these networks of theirs; the hub has one connection for
/// both, or one each.
fn hub(branches: [&str; 2], hub: Vec<Connection>) -> Net {
    let mut net = Net::new(60, 3);
    for (host, network) in [(0u8, branches[0]), (2, branches[1])] {
        let children = vec![Arc::new(child("net", network, "10.2.0.0/16"))];
        net.load(usize::from(host), vec![Connection { children, ..connection(host + 1, 2) }]);
    }
    net.load(1, hub);
    net
}

/// The hub's connection for any branch below this network.
fn any_branch(name: &str, network: &str) -> Connection {
    Connection {
        name: name.to_owned(),
        remote_addrs: Vec::new(),
        remote: vec![auth(AuthMethod::Psk, "*.test")],
        children: vec![Arc::new(child("net", "10.2.0.0/16", network))],
        ..connection(2, 1)
    }
}

fn only(number: u8, network: &str) -> Connection {
    let children = vec![Arc::new(child("net", "10.2.0.0/16", network))];
    Connection { children, ..connection(2, number) }
}

/// Host 0 comes up, then host 2: how many Child SAs the hub has with each.
fn both(net: &mut Net) -> (usize, usize) {
    for (host, name) in [(0, "1-2"), (2, "3-2")] {
        let now = net.now;
        net.hosts[host].endpoint.initiate(now, name, Some("net"), 1).expect("can be started");
        net.run(SECOND);
    }
    (net.hosts[0].live().count(), net.hosts[2].live().count())
}

#[test]
fn a_second_identity_does_not_get_selectors_in_use() {
    for (second, comes_up) in [
        ("10.16.0.0/16", false),
        ("10.16.7.0/24", false),
        ("10.16.0.0/15", false),
        ("10.17.0.0/16", true),
        ("10.18.0.0/15", true),
    ] {
        let mut net = hub(["10.16.0.0/16", second], vec![any_branch("all", "10.16.0.0/14")]);
        assert_eq!(both(&mut net), (1, usize::from(comes_up)), "{second}");
        let hub = net.hosts[1].log(Level::Warn);
        assert_eq!(hub.contains("is in use by child 'net'"), !comes_up, "{hub}");
        if !comes_up {
            assert!(hub.contains("TS_UNACCEPTABLE") && hub.contains("ts_conflict = replace"), "{hub}");
            let branch = net.hosts[2].log(Level::Warn);
            assert!(branch.contains("another peer uses these"), "{branch}");
            // Once the first one is gone there is room.
            let (ike, now) = (net.hosts[0].up()[0], net.now);
            assert!(net.hosts[0].endpoint.terminate_ike(now, ike, false, 2));
            net.run(SECOND);
            net.hosts[2].endpoint.initiate(net.now, "3-2", Some("net"), 3).expect("can be started");
            net.run(SECOND);
            assert_eq!(net.hosts[2].live().count(), 1);
        }
    }
}

#[test]
fn replacing_is_for_connections_that_allow_it_and_leaves_a_warning() {
    let all = Connection { ts_conflict: TsConflict::Replace, ..any_branch("all", "10.16.0.0/14") };
    let mut net = hub(["10.16.0.0/16"; 2], vec![all]);
    assert_eq!(both(&mut net), (1, 1));
    let hub = net.hosts[1].log(Level::Warn);
    assert!(hub.contains("takes over") && hub.contains("host1.test"), "{hub}");
}

#[test]
fn the_same_identity_again_is_the_same_peer() {
    let mut net = hub(["10.16.0.0/16"; 2], vec![any_branch("all", "10.16.0.0/14")]);
    // Host 2 is the first client on another address, which the hub still believes to be up.
    let children = vec![Arc::new(child("net", "10.16.0.0/16", "10.2.0.0/16"))];
    let local = connection(1, 2).local;
    let credentials = net.hosts[0].credentials.clone();
    net.hosts[2].credentials = credentials;
    net.load(2, vec![Connection { children, local, ..connection(3, 2) }]);
    // The first one ends, because it was forgotten (INITIAL_CONTACT).
    assert_eq!(both(&mut net), (0, 1), "{}", net.hosts[1].log(Level::Info));
    assert!(net.hosts[1].log(Level::Warn).is_empty());
}

/// Selectors configured for one peer must not be taken by another one with wider selectors; the
/// reverse is allowed.
#[test]
fn between_connections_the_narrower_section_decides() {
    for (first, second, comes_up) in [
        // A spoke beside a default route, in either order.
        (only(1, "0.0.0.0/0"), only(3, "10.16.0.0/16"), true),
        (only(1, "10.16.0.0/16"), only(3, "0.0.0.0/0"), true),
        // Two gateways of the same networks.
        (only(1, "10.16.0.0/16"), only(3, "10.16.0.0/16"), false),
    ] {
        let networks = [&first, &second].map(|one| one.children[0].remote_ts[0].to_string());
        let mut net = hub([&networks[0], &networks[1]], vec![first, second]);
        assert_eq!(both(&mut net), (1, usize::from(comes_up)), "{networks:?}");
    }
    // A peer that may have more takes part of what another one was given.
    let mut net = hub(["10.16.0.0/16", "10.16.7.0/24"], vec![only(1, "10.16.0.0/16"), only(3, "10.16.0.0/15")]);
    assert_eq!(both(&mut net), (1, 0));
}

/// The hub begins, and the peer narrows to what another peer uses.
#[test]
fn an_answer_with_selectors_in_use_is_not_accepted() {
    for (third, comes_up) in [("10.16.7.0/24", false), ("10.16.0.0/15", true)] {
        let mut net = hub(["10.16.0.0/16", third], vec![only(1, "10.16.0.0/16"), only(3, "10.16.0.0/15")]);
        let now = net.now;
        net.hosts[0].endpoint.initiate(now, "1-2", Some("net"), 1).expect("can be started");
        net.run(SECOND);
        net.hosts[1].endpoint.initiate(net.now, "2-3", Some("net"), 1).expect("can be started");
        net.run(SECOND);
        assert_eq!(net.hosts[2].live().count(), usize::from(comes_up), "{}", net.hosts[1].log(Level::Info));
        assert_eq!(net.hosts[1].command(1).is_some_and(Result::is_ok), comes_up);
    }
}

#[test]
fn a_rekeying_keeps_its_selectors() {
    let all = Connection { ts_conflict: TsConflict::Replace, ..any_branch("all", "10.16.0.0/14") };
    let mut net = hub(["10.16.0.0/16"; 2], vec![all]);
    assert_eq!(both(&mut net), (1, 1));
    let lines = net.hosts[1].log(Level::Warn);
    for host in [0, 2] {
        let (child, now) = (net.hosts[host].live().next().expect("a child").sa.id, net.now);
        assert!(net.hosts[host].endpoint.rekey_child(now, child, 5));
        net.run(10 * SECOND);
        assert_eq!(net.hosts[host].command(5), Some(&Ok(())));
    }
    assert_eq!(net.hosts[1].log(Level::Warn), lines);
}
