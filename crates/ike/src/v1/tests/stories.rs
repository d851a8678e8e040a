//! Two endpoints in memory.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wire::ike::v1::{DOI_IPSEC, Notification, NotifyType, vendor};
use wire::ike::{Attribute, ExchangeType, Header, PayloadType, Payloads, ProtocolId};

use crate::Settings;
use crate::config::*;
use crate::identity::IdPattern;
use crate::output::{Event, IkeId, IkeSpis, Level, Transmit};
use crate::proposal::{ChildProposal, ChildProtocol};
use crate::testkit::*;
use crate::v1::message::{Head, payloads};

const SHORT: Duration = Duration::from_secs(3);

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A connection with `change` applied to it and to its child.
pub(super) fn changed(local: u8, remote: u8, change: &dyn Fn(&mut Connection, &mut ChildConfig)) -> Connection {
    let mut connection = connection_v1(local, remote);
    let mut child = ChildConfig::clone(&connection.children[0]);
    change(&mut connection, &mut child);
    connection.children = vec![Arc::new(child)];
    connection
}

/// Two hosts with a connection to each other.
pub(super) fn pair_with(seed: u64, change: &dyn Fn(&mut Connection, &mut ChildConfig)) -> Net {
    let mut net = Net::new(seed, 2);
    net.load(0, vec![changed(1, 2, change)]);
    net.load(1, vec![changed(2, 1, change)]);
    net
}

pub(super) fn pair() -> Net {
    pair_with(1, &|_, _| ())
}

pub(super) fn initiate(net: &mut Net, host: usize) {
    let name = if host == 0 { "1-2" } else { "2-1" };
    net.hosts[host].endpoint.initiate(net.now, name, Some("net"), 7).expect("an attempt");
    net.pump();
}

/// Every outbound SA in use has a live inbound twin with the same keys at the other host.
pub(super) fn twins(net: &Net) -> usize {
    let mut count = 0;
    for (one, other) in [(0, 1), (1, 0)] {
        for child in net.hosts[one].live().filter(|child| child.outbound) {
            let out = &child.sa.outbound;
            let is_twin = |twin: &&Installed| {
                let inbound = &twin.sa.inbound;
                inbound.spi == out.spi && inbound.enc == out.enc && inbound.integ == out.integ
            };
            let twin = net.hosts[other].live().find(is_twin);
            let twin = twin.unwrap_or_else(|| panic!("no inbound twin of {:08x} at host {other}", out.spi.get()));
            assert_eq!(child.sa.local_ts, twin.sa.remote_ts);
            assert_eq!(child.sa.remote_ts, twin.sa.local_ts);
            assert_eq!((&child.sa.suite, child.sa.mode), (&twin.sa.suite, twin.sa.mode));
            count += 1;
        }
    }
    count
}

/// Both hosts have one ISAKMP SA and send on one Child SA.
pub(super) fn assert_up(net: &Net) {
    let log = || format!("{}\n--\n{}", net.hosts[0].log(Level::Debug), net.hosts[1].log(Level::Debug));
    for host in &net.hosts {
        assert_eq!(host.up().len(), 1, "{}", log());
        assert_eq!(host.live().filter(|child| child.outbound).count(), 1, "{}", log());
    }
    assert_eq!(twins(net), 2);
}

pub(super) fn assert_empty(net: &Net) {
    for host in &net.hosts {
        for (table, entries) in host.endpoint.tables().into_iter().filter(|(name, _)| *name != "claims") {
            assert_eq!(entries, 0, "{table}: {}", host.log(Level::Debug));
        }
        assert_eq!(host.live().count(), 0);
    }
}

fn ids(net: &Net) -> Vec<IkeId> {
    net.hosts.iter().flat_map(|host| host.up()).collect()
}

#[test]
fn either_end_brings_a_tunnel_up_and_down() {
    for (initiator, other) in [(0, 1), (1, 0)] {
        let mut net = pair();
        initiate(&mut net, initiator);
        net.run(SHORT);
        assert_up(&net);
        assert_eq!(net.hosts[initiator].command(7), Some(&Ok(())));
        // Six messages of main mode and three of quick mode.
        assert_eq!(net.hosts.iter().map(|host| host.sent.0).sum::<usize>(), 9);
        for (host, at) in [(&net.hosts[initiator], initiator), (&net.hosts[other], other)] {
            assert!(host.events.contains(&Event::IkeUp(host.up()[0])), "{at}");
            let view = host.endpoint.ike_sas().next().expect("an IKE SA");
            assert_eq!((view.version, view.initiator), (Version::V1, at == initiator));
            assert_eq!(
                view.suite.expect("a suite").to_string(),
                "IKE:AES_CBC_128/HMAC_SHA2_256_128/PRF_HMAC_SHA2_256/ECP_256"
            );
            assert_eq!(view.remote_id.expect("an identity").to_string(), format!("host{}.test", 2 - at));
            assert_eq!(view.children.len(), 1);
        }
        let id = net.hosts[other].up()[0];
        assert!(net.hosts[other].endpoint.terminate_ike(net.now, id, false, 8));
        net.run(seconds(30));
        assert_empty(&net);
        assert_eq!(net.hosts[other].command(8), Some(&Ok(())));
    }
}

#[test]
fn a_tunnel_comes_up_with_pfs_in_transport_mode_and_with_several_selectors() {
    for (esp, mode) in [
        ("aes128-sha256-modp2048", ChildMode::Tunnel),
        ("aes256gcm16-ecp256", ChildMode::Transport),
        ("3des-sha1-esn", ChildMode::Tunnel),
    ] {
        let change = |_: &mut Connection, child: &mut ChildConfig| {
            child.proposals = vec![ChildProposal::parse(ChildProtocol::Esp, esp).expect("a proposal")];
            child.mode = mode;
            if mode == ChildMode::Transport {
                (child.local_ts, child.remote_ts) = (vec![ts("dynamic")], vec![ts("dynamic")]);
            }
        };
        let mut net = pair_with(2, &change);
        initiate(&mut net, 0);
        net.run(SHORT);
        assert_up(&net);
        let child = net.hosts[1].live().next().expect("a child");
        assert_eq!((child.sa.mode, child.sa.suite.ke.is_some()), (mode, esp.contains("modp") || esp.contains("ecp")));
    }
    // Two networks here and two there: four quick modes, one command.
    let mut net = Net::new(3, 2);
    let several = |local: u8, remote: u8| {
        let networks = |number: u8| vec![ts(&format!("10.{number}.0.0/24")), ts(&format!("10.{number}.1.0/24"))];
        changed(local, remote, &|_, child| (child.local_ts, child.remote_ts) = (networks(local), networks(remote)))
    };
    net.load(0, vec![several(1, 2)]);
    net.load(1, vec![several(2, 1)]);
    initiate(&mut net, 0);
    net.run(SHORT);
    assert_eq!(twins(&net), 8);
    assert_eq!(net.hosts[0].command(7), Some(&Ok(())));
    // They are there already.
    initiate(&mut net, 0);
    net.run(SHORT);
    assert_eq!(twins(&net), 8);
}

#[test]
fn every_lost_message_is_made_up_for() {
    for lost in 0..9 {
        for twice in [false, true] {
            let mut net = pair_with(4, &|_, _| ());
            let mut number = 0;
            net.wire = Box::new(move |_: &mut Transmit| {
                number += 1;
                match (number - 1 == lost, twice) {
                    (true, false) => Delivery::Lost,
                    (true, true) => Delivery::Twice(Duration::from_millis(5), Duration::from_millis(9)),
                    (false, _) => Delivery::After(Duration::from_millis(5)),
                }
            });
            initiate(&mut net, 0);
            net.run(seconds(30));
            assert_up(&net);
            // Nothing is left half-open, and no second Child SA.
            assert_eq!(net.hosts[1].endpoint.half_open_count(), 0, "{lost}");
            assert_eq!(net.hosts.iter().map(|host| host.live().count()).collect::<Vec<_>>(), [1, 1], "{lost}");
        }
    }
}

#[test]
fn different_keys_are_reported_and_come_to_nothing() {
    let mut net = pair();
    net.hosts[1].credentials.psk = b"another key".to_vec();
    initiate(&mut net, 0);
    net.run(seconds(200));
    assert!(matches!(net.hosts[0].command(7), Some(Err(_))));
    assert!(net.hosts[1].count("ikev1_psk_mismatch_or_corrupt") > 0);
    let log = net.hosts[1].log(Level::Warn);
    assert!(log.contains("most likely the shared keys differ"), "{log}");
    // One notification, although message 5 was sent again.
    assert_eq!(log.lines().filter(|line| line.contains("most likely")).count(), 1);
    assert_empty(&net);
}

#[test]
fn an_identity_or_proposal_that_does_not_fit_is_refused() {
    let mut net = pair();
    net.load(1, vec![Connection { remote: vec![auth(AuthMethod::Psk, "other.test")], ..connection_v1(2, 1) }]);
    initiate(&mut net, 0);
    net.run(seconds(200));
    assert!(
        net.hosts[1]
            .log(Level::Warn)
            .contains("no connection between these addresses allows the identity 'host1.test'")
    );
    assert!(matches!(net.hosts[0].command(7), Some(Err(_))));
    assert_empty(&net);

    let mut net = pair();
    let proposals = vec![crate::proposal::IkeProposal::parse("aes256-sha512-ecp384").expect("a proposal")];
    net.load(1, vec![Connection { proposals, ..connection_v1(2, 1) }]);
    initiate(&mut net, 0);
    net.run(seconds(200));
    assert!(net.hosts[1].count("ikev1_no_proposal") > 0);
    let error = net.hosts[0].command(7).expect("an end").as_ref().expect_err("a failure");
    assert!(error.as_str().contains("NO_PROPOSAL_CHOSEN"), "{error}");

    // Selectors: the ISAKMP SA is up, the Child SA is refused.
    let mut net = pair();
    net.load(1, vec![changed(2, 1, &|_, child| child.local_ts = vec![ts("10.77.0.0/16")])]);
    initiate(&mut net, 0);
    net.run(SHORT);
    let error = net.hosts[0].command(7).expect("an end").as_ref().expect_err("a failure");
    assert!(error.as_str().contains("INVALID_ID_INFORMATION"), "{error}");
    assert_eq!((ids(&net).len(), net.hosts[0].plane.len(), net.hosts[1].plane.len()), (2, 0, 0));
}

#[test]
fn the_identity_decides_between_connections_with_one_key() {
    let mut net = pair();
    let other = Connection { remote: vec![auth(AuthMethod::Psk, "other.test")], ..connection_v1(2, 1) };
    net.load(
        1,
        vec![Connection { name: "a".to_owned(), ..other }, Connection { name: "b".to_owned(), ..connection_v1(2, 1) }],
    );
    initiate(&mut net, 0);
    net.run(SHORT);
    assert_up(&net);
    let view = net.hosts[1].endpoint.ike_sas().next().expect("an IKE SA");
    assert_eq!(view.connection.expect("a connection").name, "b");
}

#[test]
fn a_peer_cannot_claim_the_identity_of_another() {
    for (claimant, host) in [(0, 1), (1, 0)] {
        for (claimed, pattern) in [("", "%any"), ("", "*.test"), ("host3.test", "%any"), ("host3.test", "*.test")] {
            let mut net = Net::new(22, 2);
            for (at, (local, remote)) in [(0, (1, 2)), (1, (2, 1))] {
                let mut connection = connection_v1(local, remote);
                if at == host {
                    connection.remote = vec![Auth::new(AuthMethod::Psk, IdPattern::parse(pattern).expect("a pattern"))];
                } else if !claimed.is_empty() {
                    connection.local = vec![auth(AuthMethod::Psk, claimed)];
                }
                net.load(at, vec![connection]);
            }
            // The claimant has the key of its address, and not that of the other peer.
            net.hosts[host].credentials.psks_v1.insert(id("host3.test"), b"the key of another".to_vec());
            initiate(&mut net, 0);
            net.run(seconds(200));
            if claimed.is_empty() {
                assert_up(&net);
                continue;
            }
            assert_eq!(net.hosts[host].up().len(), 0, "{claimant} {pattern}");
            let log = net.hosts[host].log(Level::Warn);
            assert!(log.contains("the shared key is not the one of 'host3.test'"), "{log}");
        }
    }
}

#[test]
fn a_child_is_rekeyed_without_a_gap() {
    for expirer in [0, 1] {
        let life =
            |hours: u64| Life { rekey: seconds(hours * 3600), life: seconds(hours * 4000), rand: Duration::ZERO };
        let mut net = Net::new(5, 2);
        for (host, connection) in [(0, (1, 2)), (1, (2, 1))] {
            let time = if host == expirer { life(1) } else { Life::default() };
            net.load(host, vec![changed(connection.0, connection.1, &|_, child| child.time = time)]);
        }
        initiate(&mut net, 0);
        net.run(SHORT);
        let first: Vec<_> = net.hosts.iter().map(|host| *host.plane.keys().next().expect("a child")).collect();
        let mut step = 0;
        while step < 3 * 3700 {
            net.run(seconds(1));
            twins(&net);
            for host in &net.hosts {
                assert_eq!(host.live().filter(|child| child.outbound).count(), 1, "{}", host.log(Level::Debug));
            }
            step += 1;
        }
        assert_up(&net);
        for (host, first) in net.hosts.iter().zip(first) {
            assert_eq!(host.count("child_rekeyed"), 3, "{}", host.log(Level::Debug));
            assert_eq!(host.live().count(), 1);
            assert!(host.plane[&first].removed.is_some());
            assert!(host.events.iter().any(|event| matches!(event, Event::ChildRekeyed(old, _) if *old == first)));
        }
    }
}

#[test]
fn both_ends_may_rekey_a_child_at_once() {
    for crossing in 0..40 {
        let mut net = pair_with(6 + crossing, &|_, _| ());
        initiate(&mut net, 0);
        net.run(SHORT);
        for (host, wait) in [(0, 0), (1, crossing)] {
            net.run(Duration::from_millis(wait));
            let child = net.hosts[host].live().find(|child| child.outbound).expect("a child").sa.id;
            net.hosts[host].endpoint.rekey_child(net.now, child, 9);
            net.pump();
        }
        for _ in 0..40 {
            net.run(Duration::from_millis(500));
            twins(&net);
        }
        for host in &net.hosts {
            assert_eq!(host.command(9), Some(&Ok(())), "{crossing}");
            assert_eq!(host.live().filter(|child| child.outbound).count(), 1, "{crossing}");
        }
    }
}

#[test]
fn another_phase_1_takes_the_child_sas_over() {
    let rekey = |connection: &mut Connection, _: &mut ChildConfig| {
        (connection.rekey_time, connection.over_time) = (seconds(3600), seconds(360));
    };
    let mut net = pair_with(7, &rekey);
    initiate(&mut net, 0);
    net.run(SHORT);
    let (names, child) = (ids(&net), net.hosts[0].live().next().expect("a child").sa.id);
    let cookies = |net: &Net| net.hosts[0].endpoint.ike_sa(names[0]).expect("an IKE SA").spis;
    let before = cookies(&net);
    net.run(seconds(3605));
    // The old one is listed until its Delete.
    assert_eq!(net.hosts[0].endpoint.ike_sas().count(), 2);
    net.run(seconds(30));
    assert_up(&net);
    assert_eq!((ids(&net), cookies(&net) != before), (names, true));
    assert_eq!(net.hosts[0].live().next().expect("a child").sa.id, child);
    assert_eq!(net.hosts[0].endpoint.ike_sas().next().expect("an IKE SA").children.len(), 1);
    for host in &net.hosts {
        assert_eq!((host.count("ike_rekeyed"), host.count("ike_down"), host.count("child_down")), (1, 0, 0));
    }
    // The Child SA is one of the new ISAKMP SA.
    assert!(net.hosts[0].endpoint.rekey_child(net.now, child, 11));
    net.run(seconds(30));
    assert_eq!(net.hosts[0].command(11), Some(&Ok(())));
    assert_up(&net);
    let id = ids(&net)[0];
    net.hosts[0].endpoint.terminate_ike(net.now, id, false, 12);
    net.run(seconds(200));
    assert_empty(&net);
}

#[test]
fn both_ends_may_start_phase_1_at_once() {
    for crossing in 0..60 {
        let mut net = pair_with(8 + crossing, &|_, _| ());
        initiate(&mut net, 0);
        net.run(Duration::from_millis(crossing));
        initiate(&mut net, 1);
        for _ in 0..30 {
            net.run(seconds(1));
            twins(&net);
        }
        net.run(seconds(200));
        let log = || format!("{crossing}: {}\n--\n{}", net.hosts[0].log(Level::Debug), net.hosts[1].log(Level::Debug));
        for host in &net.hosts {
            assert_eq!(host.up().len(), 1, "{}", log());
            assert!(matches!(host.command(7), Some(Ok(()))), "{}", log());
            assert_eq!(host.live().filter(|child| child.outbound).count(), 1, "{}", log());
        }
    }
}

#[test]
fn a_silent_peer_is_dead_and_is_started_again() {
    for timeout in [0, 60] {
        let change = |connection: &mut Connection, child: &mut ChildConfig| {
            (connection.dpd_delay, connection.dpd_timeout) = (seconds(10), seconds(timeout));
            child.dpd_action = Action::Restart;
            connection.keyingtries = 0;
        };
        let mut net = pair_with(9, &change);
        initiate(&mut net, 0);
        net.run(seconds(100));
        assert_up(&net);
        let sent = net.hosts[0].count("liveness_sent") + net.hosts[1].count("liveness_sent");
        assert!((9..=20).contains(&sent), "{sent}");
        let cut = Rc::new(RefCell::new(true));
        let is_cut = Rc::clone(&cut);
        net.wire = Box::new(
            move |_: &mut Transmit| {
                if *is_cut.borrow() { Delivery::Lost } else { Delivery::After(Duration::from_millis(5)) }
            },
        );
        net.run(seconds(40));
        assert_eq!(net.hosts[0].count("ike_peer_dead"), 0);
        net.run(seconds(if timeout == 0 { 150 } else { 40 }));
        assert_eq!(net.hosts[0].count("ike_peer_dead"), 1, "{timeout}");
        assert_eq!(net.hosts[0].live().count(), 0);
        *cut.borrow_mut() = false;
        net.run(seconds(400));
        assert_up(&net);
    }
}

#[test]
fn a_restarted_peer_announces_its_first_contact() {
    let mut net = pair();
    initiate(&mut net, 0);
    net.run(SHORT);
    let old = net.hosts[1].live().next().expect("a child").sa.id;
    // A host that lost its state.
    net.hosts.remove(0);
    let fresh = Net::new(99, 1).hosts.remove(0);
    net.hosts.insert(0, fresh);
    net.load(0, vec![connection_v1(1, 2)]);
    initiate(&mut net, 0);
    net.run(SHORT);
    assert_up(&net);
    assert!(net.hosts[1].plane[&old].removed.is_some());
    assert!(net.hosts[1].log(Level::Info).contains("INITIAL_CONTACT"));
}

#[test]
fn a_replaced_peer_leaves_its_traps() {
    let mut net = Net::new(12, 3);
    net.load(0, vec![connection_v1(1, 2)]);
    let replace = |connection: &mut Connection, child: &mut ChildConfig| {
        (connection.remote_addrs, connection.unique) = (Vec::new(), Unique::Replace);
        child.close_action = Action::Trap;
    };
    net.load(1, vec![changed(2, 1, &replace)]);
    initiate(&mut net, 0);
    net.run(SHORT);
    assert_eq!(net.hosts[1].live().count(), 1);
    // The same peer at another address. Without the other identity it announces no first contact.
    let (local, remote) = (vec![auth(AuthMethod::Psk, "host1.test")], vec![auth(AuthMethod::Psk, "%any")]);
    net.load(2, vec![Connection { local, remote, ..connection_v1(3, 2) }]);
    net.hosts[2].endpoint.initiate(net.now, "3-2", None, 7).expect("an attempt");
    net.run(SHORT);
    assert!(net.hosts[1].log(Level::Info).contains("a newer IKE SA with the same peer replaces it"));
    assert_eq!(net.hosts[1].live().count(), 0);
    assert!(net.hosts[1].traps.contains(&("2-1".to_owned(), "net".to_owned())));
}

#[test]
fn traffic_takes_the_place_of_a_lost_message_3() {
    let mut net = pair();
    let mut quick_modes = 0;
    net.wire = Box::new(move |datagram: &mut Transmit| {
        let of_initiator = datagram.local.ip() == addr(1) && datagram.datagram[18] == 32;
        quick_modes += usize::from(of_initiator);
        // After message 1.
        if of_initiator && quick_modes > 1 { Delivery::Lost } else { Delivery::After(Duration::from_millis(5)) }
    });
    initiate(&mut net, 0);
    net.run(seconds(1));
    let child = net.hosts[1].live().next().expect("a child").sa.id;
    net.hosts[1].endpoint.traffic(net.now, child, None);
    net.run(seconds(200));
    assert_up(&net);
    assert_eq!(net.hosts[1].live().next().expect("a child").sa.id, child);
    assert_eq!(net.hosts[1].count("ike_retransmissions"), 0);
}

#[test]
fn both_ends_may_start_many_quick_modes_at_once() {
    let several = |local: u8, remote: u8| {
        let networks = |number: u8| {
            let count = if number == 1 { 5 } else { 4 };
            (0..count).map(|n| ts(&format!("10.{number}.{n}.0/24"))).collect()
        };
        changed(local, remote, &|_, child| (child.local_ts, child.remote_ts) = (networks(local), networks(remote)))
    };
    let mut net = Net::new(14, 2);
    net.load(0, vec![several(1, 2)]);
    net.load(1, vec![several(2, 1)]);
    // One ISAKMP SA, and the quick modes of both ends at the same time.
    net.hosts[0].endpoint.initiate(net.now, "1-2", None, 6).expect("an attempt");
    net.run(SHORT);
    initiate(&mut net, 0);
    initiate(&mut net, 1);
    net.run(seconds(30));
    assert_eq!(twins(&net), 40, "{}", net.hosts[0].log(Level::Debug));
    for host in &net.hosts {
        assert_eq!(host.command(7), Some(&Ok(())));
        assert_eq!(host.live().filter(|child| child.outbound).count(), 20);
    }
    net.run(seconds(200));
    assert_eq!(twins(&net), 40);
}

#[test]
fn two_sections_with_many_pairs_come_up() {
    let several = |local: u8, remote: u8| {
        let networks = |number: u8, range: std::ops::Range<u8>| -> Vec<TsConfig> {
            range.map(|n| ts(&format!("10.{number}.{n}.0/24"))).collect()
        };
        let mut connection = connection_v1(local, remote);
        let section = |name: &str, range: std::ops::Range<u8>| {
            let (local_ts, remote_ts) = (networks(local, range.clone()), networks(remote, range));
            Arc::new(ChildConfig { local_ts, remote_ts, ..child(name, "dynamic", "dynamic") })
        };
        connection.children = vec![section("net", 0..8), section("other", 8..12)];
        connection
    };
    let mut net = Net::new(15, 2);
    net.load(0, vec![several(1, 2)]);
    net.load(1, vec![several(2, 1)]);
    net.hosts[0].endpoint.initiate(net.now, "1-2", Some("other"), 8).expect("an attempt");
    initiate(&mut net, 0);
    net.run(seconds(10));
    assert_eq!([7, 8].map(|command| net.hosts[0].command(command).cloned()), [Some(Ok(())), Some(Ok(()))]);
    assert_eq!(twins(&net), 2 * (64 + 16));
}

#[test]
fn a_section_without_a_pair_of_selectors_is_reported() {
    let mut net = pair_with(16, &|_, child| {
        (child.local_ts, child.remote_ts) = (vec![ts("dynamic")], vec![ts("2001:db8::/32")]);
    });
    initiate(&mut net, 0);
    net.run(SHORT);
    let error = net.hosts[0].command(7).expect("an end").as_ref().expect_err("a failure");
    assert!(error.as_str().contains("address family"), "{error}");
    assert_eq!(net.hosts[0].count("child_failed"), 1);
}

#[test]
fn a_rekeying_survives_the_replacement_of_its_isakmp_sa() {
    // Quick mode is lost for less and for more time than the replaced ISAKMP SA is there.
    for lost in [2, 15] {
        for host in [0, 1] {
            let mut net = Net::new(17, 2);
            for (at, (local, remote)) in [(0, (1, 2)), (1, (2, 1))] {
                let time = Life { rekey: seconds(3600), life: seconds(4000), rand: Duration::ZERO };
                let time = if at == host { time } else { Life::default() };
                net.load(at, vec![changed(local, remote, &|_, child| child.time = time)]);
            }
            initiate(&mut net, 0);
            net.run(SHORT);
            let cut = Rc::new(Cell::new(true));
            let is_cut = Rc::clone(&cut);
            net.wire = Box::new(move |datagram: &mut Transmit| match is_cut.get() && datagram.datagram[18] == 32 {
                true => Delivery::Lost,
                false => Delivery::After(Duration::from_millis(5)),
            });
            let (child, ike) = (net.hosts[host].live().next().expect("a child").sa.id, net.hosts[host].up()[0]);
            assert!(net.hosts[host].endpoint.rekey_child(net.now, child, 8));
            net.pump();
            assert!(net.hosts[host].endpoint.rekey_ike(net.now, ike, false, 9));
            net.run(seconds(lost));
            cut.set(false);
            net.run(seconds(60));
            assert_up(&net);
            let log = || net.hosts[host].log(Level::Debug);
            assert_eq!(net.hosts[host].command(8), Some(&Ok(())), "{lost}: {}", log());
            for host in &net.hosts {
                assert_eq!((host.count("child_rekeyed"), host.count("child_up")), (1, 1), "{lost}");
            }
            net.run(seconds(8000));
            assert_up(&net);
            for host in &net.hosts {
                assert_eq!((host.count("child_down"), host.count("child_rekeyed")), (0, 3), "{lost}");
            }
        }
    }
}

#[test]
fn a_request_survives_the_replacement_of_its_isakmp_sa() {
    let mut net = pair();
    let cut = Rc::new(Cell::new(true));
    let is_cut = Rc::clone(&cut);
    net.wire = Box::new(move |datagram: &mut Transmit| match is_cut.get() && datagram.datagram[18] == 32 {
        true => Delivery::Lost,
        false => Delivery::After(Duration::from_millis(5)),
    });
    initiate(&mut net, 0);
    net.run(SHORT);
    let ike = net.hosts[0].up()[0];
    assert!(net.hosts[0].endpoint.rekey_ike(net.now, ike, false, 9));
    net.run(seconds(12));
    cut.set(false);
    net.run(seconds(20));
    assert_up(&net);
    assert_eq!(net.hosts[0].command(7), Some(&Ok(())));
}

#[test]
fn a_failed_replacement_is_tried_again() {
    let rekey = |connection: &mut Connection, _: &mut ChildConfig| {
        (connection.rekey_time, connection.over_time) = (seconds(3600), seconds(720));
    };
    let mut net = pair_with(18, &rekey);
    let cut = Rc::new(Cell::new(false));
    let is_cut = Rc::clone(&cut);
    net.wire = Box::new(move |_: &mut Transmit| match is_cut.get() {
        true => Delivery::Lost,
        false => Delivery::After(Duration::from_millis(5)),
    });
    initiate(&mut net, 0);
    net.run(seconds(3599));
    cut.set(true);
    // The attempts of both ends fail.
    net.run(seconds(535));
    assert!(net.hosts.iter().all(|host| host.count("ike_failed") > 0));
    cut.set(false);
    net.run(seconds(366));
    assert_up(&net);
    for host in &net.hosts {
        assert_eq!((host.count("ike_down"), host.count("child_down")), (0, 0), "{}", host.log(Level::Info));
    }
}

#[test]
fn attempts_that_fail_at_once_are_all_repeated() {
    const COUNT: usize = 1100;
    let mut net = Net::new(19, 1);
    let silent = |number: usize| Connection {
        name: format!("silent{number}"),
        remote_addrs: vec![range(&format!("10.9.{}.{}", number / 250, number % 250 + 1)).into()],
        keyingtries: 0,
        ..connection_v1(1, 2)
    };
    net.load(0, (0..COUNT).map(silent).collect());
    for number in 0..COUNT {
        net.hosts[0].endpoint.initiate(net.now, &format!("silent{number}"), None, 100).expect("an attempt");
    }
    net.run(seconds(200));
    assert_eq!(net.hosts[0].count("ike_failed"), COUNT);
    let tables = net.hosts[0].endpoint.tables();
    let entries = |name: &str| tables.iter().find(|(table, _)| *table == name).expect("a table").1;
    assert_eq!(entries("later") + entries("v1_sas"), COUNT);
}

/// Changes the payloads of a message of main mode in clear text.
pub(super) fn change_payloads(message: &mut Vec<u8>, change: impl FnOnce(&mut Vec<(PayloadType, Vec<u8>)>)) {
    let (header, body) = Header::parse(message).expect("a message");
    let list = Payloads::v1(header.next, body).map(|payload| payload.expect("a payload"));
    let mut list: Vec<(PayloadType, Vec<u8>)> = list.map(|payload| (payload.kind, payload.body.to_vec())).collect();
    change(&mut list);
    *message = Head::main(IkeSpis::of(header)).clear(|chain| {
        list.iter().for_each(|(kind, body)| {
            chain.raw(*kind, body);
        });
    });
}

#[test]
fn dead_peer_detection_may_be_announced_in_messages_3_and_4() {
    let mut net = pair_with(20, &|connection, _| connection.dpd_delay = seconds(10));
    let mut number = 0;
    net.wire = Box::new(move |datagram: &mut Transmit| {
        number += 1;
        let dpd = (PayloadType::VENDOR_V1, vendor::DPD.to_vec());
        match number {
            1 => change_payloads(&mut datagram.datagram, |list| list.retain(|payload| *payload != dpd)),
            3 => change_payloads(&mut datagram.datagram, |list| list.push(dpd)),
            _ => (),
        }
        Delivery::After(Duration::from_millis(5))
    });
    initiate(&mut net, 0);
    net.run(seconds(100));
    assert_up(&net);
    for host in &net.hosts {
        assert!(!host.log(Level::Info).contains("no DPD"), "{}", host.log(Level::Info));
    }
    assert!(net.hosts.iter().map(|host| host.count("liveness_sent")).sum::<usize>() >= 9);
}

#[test]
fn the_refusal_of_an_identity_is_encrypted_and_reported() {
    let mut net = pair();
    net.load(1, vec![Connection { remote: vec![auth(AuthMethod::Psk, "other.test")], ..connection_v1(2, 1) }]);
    let clear = Rc::new(Cell::new(0));
    let seen = Rc::clone(&clear);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        // INFORMATIONAL without the encryption flag.
        let is_clear = datagram.datagram[18] == 5 && datagram.datagram[19] & 1 == 0;
        seen.set(seen.get() + usize::from(is_clear));
        Delivery::After(Duration::from_millis(5))
    });
    initiate(&mut net, 0);
    net.run(seconds(20));
    let error = net.hosts[0].command(7).expect("an end").as_ref().expect_err("a failure");
    assert!(error.as_str().contains("AUTHENTICATION_FAILED"), "{error}");
    assert_eq!(clear.get(), 0);
}

/// Replacement of the ISAKMP SA, replacement and end of the Child SA.
fn times(net: &Net, host: usize) -> (Option<Instant>, Option<Instant>, Option<Instant>) {
    let view = net.hosts[host].endpoint.ike_sas().next().expect("an IKE SA");
    (view.rekey_at, view.children[0].rekey_at, view.children[0].expire_at)
}

/// The second host notifies the first of its lifetimes, of the ISAKMP SA and the Child SA.
fn tell_lifetime(net: &mut Net, life_s: u16) {
    let spis = net.hosts[1].endpoint.ike_sas().next().expect("an IKE SA").spis;
    let cookies = [spis.initiator.0, spis.responder.0].concat();
    let spi = net.hosts[1].live().next().expect("a child").sa.inbound.spi.to_be_bytes();
    for (protocol, spi, unit, duration) in [(ProtocolId::IKE, &cookies[..], 11, 12), (ProtocolId::ESP, &spi[..], 1, 2)]
    {
        let mut data = Vec::new();
        [Attribute::short(unit, 1), Attribute::short(duration, life_s)].iter().for_each(|one| one.emit(&mut data));
        let kind = NotifyType::RESPONDER_LIFETIME;
        let notification = Notification { doi: DOI_IPSEC, protocol, spi, kind, data: &data };
        let (first, body) = payloads(|chain| {
            chain.notification_v1(&notification);
        });
        let ike = net.hosts[1].up()[0];
        assert!(net.hosts[1].endpoint.forge(net.now, ike, 5, first.0, &body));
        net.run(seconds(1));
    }
}

/// Otherwise a peer could have this host negotiate without end.
#[test]
fn a_lifetime_of_a_peer_below_a_minute_counts_as_one() {
    let mut net = pair();
    initiate(&mut net, 0);
    net.run(SHORT);
    let began = net.now - SHORT;
    tell_lifetime(&mut net, 1);
    let (ike, rekey, expire) = times(&net, 0);
    let after = |at: Option<Instant>| at.expect("a time").duration_since(began).as_secs();
    assert!((30..=60).contains(&after(ike)) && (30..=60).contains(&after(rekey)), "{ike:?} {rekey:?}");
    assert_eq!(after(expire), 60);
    // The same in an offer.
    let mut net = Net::new(29, 2);
    let short = Life { rekey: Duration::ZERO, life: seconds(1), rand: Duration::ZERO };
    let client = |connection: &mut Connection, child: &mut ChildConfig| {
        (connection.rekey_time, connection.over_time, child.time) = (seconds(0), seconds(1), short);
    };
    net.load(0, vec![changed(1, 2, &client)]);
    net.load(1, vec![changed(2, 1, &|_, child| child.time = Life::default())]);
    initiate(&mut net, 0);
    let began = net.now;
    net.run(Duration::from_millis(500));
    let (ike, rekey, expire) = times(&net, 1);
    let after = |at: Option<Instant>| at.expect("a time").duration_since(began).as_secs();
    assert!((30..=60).contains(&after(ike)) && (30..=60).contains(&after(rekey)), "{ike:?} {rekey:?}");
    assert_eq!(after(expire), 60);
}

#[test]
fn the_lifetime_of_the_responder_shortens_that_of_this_host() {
    let mut net = pair();
    initiate(&mut net, 0);
    net.run(SHORT);
    let latest = net.now + seconds(1000);
    assert_eq!(times(&net, 0), (None, None, None));
    tell_lifetime(&mut net, 1000);
    let (ike, rekey, expire) = times(&net, 0);
    assert!(
        [ike, rekey, expire].into_iter().all(|at| at.is_some_and(|at| at < latest)),
        "{ike:?} {rekey:?} {expire:?}"
    );
    net.run(seconds(1100));
    assert_up(&net);
    for host in &net.hosts {
        assert_eq!((host.count("ike_rekeyed"), host.count("child_rekeyed"), host.count("child_down")), (1, 1, 0));
    }
}

/// The end that has the shorter lifetime from the other rekeys in time for a retransmission.
#[test]
fn a_child_sa_outlives_a_short_lifetime_of_the_peer_with_loss() {
    let mut net = Net::new(23, 2);
    let short = Life { rekey: Duration::ZERO, life: seconds(60), rand: Duration::ZERO };
    net.load(0, vec![changed(1, 2, &|_, child| child.time = short)]);
    net.load(1, vec![changed(2, 1, &|_, child| child.time = Life::default())]);
    initiate(&mut net, 0);
    net.run(SHORT);
    let mut ids = HashSet::new();
    net.wire = Box::new(move |datagram: &mut Transmit| {
        // The first message of each quick mode of the second host is lost.
        let id: [u8; 4] = datagram.datagram[20..24].try_into().expect("a message ID");
        let quick = datagram.datagram[18] == ExchangeType::QUICK_MODE.0 && datagram.local.ip() == addr(2);
        if quick && ids.insert(id) { Delivery::Lost } else { Delivery::After(Duration::from_millis(5)) }
    });
    net.run(seconds(300));
    assert_up(&net);
    for host in &net.hosts {
        assert_eq!(host.count("child_down"), 0, "{}", host.log(Level::Debug));
        assert!((4..10).contains(&host.count("child_rekeyed")), "{}", host.count("child_rekeyed"));
    }
}

#[test]
fn keys_are_reported_where_that_is_configured_alone() {
    for log_secrets in [false, true] {
        let mut net = Net::with_settings(21, 2, &Settings { log_secrets, ..Settings::default() });
        net.load(0, vec![connection_v1(1, 2)]);
        net.load(1, vec![connection_v1(2, 1)]);
        initiate(&mut net, 0);
        net.run(SHORT);
        assert_up(&net);
        let spis = net.hosts[0].endpoint.ike_sas().next().expect("an IKE SA").spis;
        for host in &net.hosts {
            assert_eq!(host.secrets.len(), usize::from(log_secrets));
            for secrets in &host.secrets {
                assert_eq!((secrets.version, secrets.spis, secrets.sk_e.0.len()), (Version::V1, spis, 16));
                assert!(secrets.sk_e.0 == net.hosts[0].secrets[0].sk_e.0);
            }
        }
    }
}

#[test]
fn a_nat_moves_the_exchange_to_port_4500() {
    let mut net = pair();
    net.hosts[0].addrs = vec![addr(1)];
    let outside: SocketAddr = "10.0.0.9:61000".parse().expect("an address");
    net.hosts[1].endpoint.local_addresses(net.now, &[addr(2)]);
    let mut any = connection_v1(2, 1);
    any.remote_addrs = Vec::new();
    net.load(1, vec![any]);
    let rebound = Rc::new(RefCell::new(0u16));
    let shift = Rc::clone(&rebound);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        if datagram.local.ip() == addr(1) {
            // Each port of the inner host has its own outside.
            let port = outside.port() + *shift.borrow() + u16::from(datagram.local.port() == 4500);
            datagram.local = (outside.ip(), port).into();
        } else if datagram.remote.ip() == outside.ip() {
            let inner = if datagram.remote.port() == outside.port() { 500 } else { 4500 };
            datagram.remote = (addr(1), inner).into();
        }
        Delivery::After(Duration::from_millis(5))
    });
    initiate(&mut net, 0);
    net.run(SHORT);
    assert_up(&net);
    let view = |net: &Net, host: usize| {
        let view = net.hosts[host].endpoint.ike_sas().next().expect("an IKE SA");
        (view.nat, view.path.local.port(), view.path.remote.port(), view.path.encap)
    };
    assert_eq!(view(&net, 0), ((true, false), 4500, 4500, true));
    assert_eq!(view(&net, 1), ((false, true), 4500, 61_001, true));
    assert!(net.hosts.iter().all(|host| host.live().all(|child| child.sa.path.encap)));
    net.run(seconds(60));
    assert!(net.hosts[0].keepalives >= 2 && net.hosts[1].keepalives == 0);
    // The NAT gives the mapping another port: the next authentic message moves the peer.
    *rebound.borrow_mut() = 100;
    let child = net.hosts[0].live().next().expect("a child").sa.id;
    net.hosts[0].endpoint.rekey_child(net.now, child, 3);
    net.run(SHORT);
    assert_eq!(view(&net, 1).2, 61_101);
    assert_eq!(twins(&net), 2);
}

#[test]
fn ah_is_negotiated_and_does_not_pass_a_nat() {
    let with = |encap: bool, ah: &'static str, mode: ChildMode| {
        pair_with(21, &move |connection: &mut Connection, child: &mut ChildConfig| {
            connection.encap = if encap { Encap::Yes } else { Encap::No };
            child.proposals = vec![ChildProposal::parse(ChildProtocol::Ah, ah).expect("a proposal")];
            child.mode = mode;
            if mode == ChildMode::Transport {
                (child.local_ts, child.remote_ts) = (vec![ts("dynamic")], vec![ts("dynamic")]);
            }
        })
    };
    for (ah, mode) in [("sha256", ChildMode::Tunnel), ("sha512-modp2048-esn", ChildMode::Transport)] {
        let mut net = with(false, ah, mode);
        initiate(&mut net, 0);
        net.run(SHORT);
        assert_up(&net);
        let sa = &net.hosts[1].live().next().expect("a child").sa;
        assert_eq!((sa.suite.protocol, sa.suite.enc), (ChildProtocol::Ah, None));
        assert_eq!(Some(sa.inbound.integ.len()), sa.suite.integ.map(|integ| integ.key_len));
        // The SA of before is deleted at both ends, and so is the last one.
        let child = net.hosts[0].live().next().expect("a child").sa.id;
        net.hosts[0].endpoint.rekey_child(net.now, child, 3);
        net.run(seconds(60));
        assert_up(&net);
        let child = net.hosts[0].live().next().expect("a child").sa.id;
        net.hosts[0].endpoint.terminate_child(net.now, child, 4);
        net.run(SHORT);
        assert!(net.hosts.iter().all(|host| host.live().count() == 0 && host.up().len() == 1));
        // An ISAKMP SA ends with a Delete for SAs of AH, and one of its own.
        initiate(&mut net, 0);
        net.run(SHORT);
        let (ike, sent) = (net.hosts[0].up()[0], net.hosts[0].sent.0);
        net.hosts[0].endpoint.terminate_ike(net.now, ike, false, 5);
        net.run(SHORT);
        assert_eq!(net.hosts[0].sent.0, sent + 2);
    }
    let mut net = with(true, "sha256", ChildMode::Tunnel);
    initiate(&mut net, 0);
    net.run(SHORT);
    let error = net.hosts[0].command(7).expect("an end").as_ref().expect_err("a failure").to_string();
    assert!(error.contains("NAT"), "{error}");
    assert!(net.hosts.iter().all(|host| host.live().count() == 0));
}

#[test]
fn transport_mode_through_a_nat_knows_the_original_addresses() {
    let outside = addr(9);
    let change = |_: &mut Connection, child: &mut ChildConfig| {
        child.mode = ChildMode::Transport;
        (child.local_ts, child.remote_ts) = (vec![ts("dynamic")], vec![ts("dynamic")]);
    };
    let mut net = pair_with(10, &change);
    let mut any = changed(2, 1, &change);
    any.remote_addrs = Vec::new();
    net.load(1, vec![any]);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        if datagram.local.ip() == addr(1) {
            datagram.local.set_ip(outside);
        } else if datagram.remote.ip() == outside {
            datagram.remote.set_ip(addr(1));
        }
        Delivery::After(Duration::from_millis(5))
    });
    initiate(&mut net, 0);
    net.run(SHORT);
    let (inner, outer) = (net.hosts[0].live().next(), net.hosts[1].live().next());
    let (inner, outer) = (inner.expect("a child"), outer.expect("a child"));
    assert_eq!(outer.sa.remote_ts[0].addrs.start, outside);
    assert_eq!(outer.sa.original, Some((addr(1), addr(2))));
    // The peer's packets have its own address as the source and the outside one as the destination.
    assert_eq!(inner.sa.original, Some((addr(2), outside)));
    assert_eq!(inner.sa.local_ts[0].addrs.start, addr(1));
}

#[test]
fn a_deleted_child_runs_its_action() {
    let mut net = Net::new(11, 2);
    net.load(0, vec![connection_v1(1, 2)]);
    net.load(1, vec![changed(2, 1, &|_, child| child.close_action = Action::Restart)]);
    initiate(&mut net, 0);
    net.run(SHORT);
    let (here, there) = (net.hosts[0].live().next().expect("a child").sa.id, ids(&net));
    assert!(net.hosts[0].endpoint.terminate_child(net.now, here, 5));
    net.run(SHORT);
    // The peer negotiated it again.
    assert_up(&net);
    assert_eq!(ids(&net), there);
    assert!(net.hosts[0].plane[&here].removed.is_some());
}

#[test]
fn a_reload_with_another_version_ends_the_sa_of_the_version_before() {
    for (before, after) in [(Version::V1, Version::V2), (Version::V2, Version::V1)] {
        let of = |version, local, remote| match version {
            Version::V1 => connection_v1(local, remote),
            Version::V2 => connection(local, remote),
        };
        let mut net = Net::new(13, 2);
        net.load(0, vec![of(before, 1, 2)]);
        net.load(1, vec![of(before, 2, 1)]);
        initiate(&mut net, 0);
        net.run(SHORT);
        assert_up(&net);
        // Another phase 1 or handshake is under way.
        let ike = net.hosts[1].up()[0];
        net.hosts[1].endpoint.rekey_ike(net.now, ike, true, 5);
        net.run(Duration::from_millis(7));
        let mut starts = of(after, 1, 2);
        let mut child = ChildConfig::clone(&starts.children[0]);
        child.start_action.start = true;
        starts.children = vec![Arc::new(child)];
        net.load(0, vec![starts]);
        net.load(1, vec![of(after, 2, 1)]);
        net.run(seconds(60));
        assert_up(&net);
        for host in &net.hosts {
            assert!(host.endpoint.ike_sas().all(|sa| sa.version == after), "{}", host.log(Level::Debug));
        }
    }
}

#[test]
fn a_reload_applies_to_child_sas() {
    let mut net = pair();
    initiate(&mut net, 0);
    net.run(SHORT);
    let removed = Connection { children: Vec::new(), ..connection_v1(1, 2) };
    net.load(0, vec![removed]);
    net.run(SHORT);
    assert_eq!((net.hosts[0].live().count(), net.hosts[1].live().count()), (0, 0));
    assert_eq!(ids(&net).len(), 2);
    net.hosts[0].endpoint.shutdown(net.now);
    net.run(seconds(30));
    assert_eq!(ids(&net), []);
}

/// Host `of` sets the commit bit in its messages, as some implementations do.
fn commit(net: &mut Net, of: u8) {
    net.wire = Box::new(move |datagram: &mut Transmit| {
        if datagram.local.ip() == addr(of) {
            datagram.datagram[19] |= Header::FLAG_V1_COMMIT;
        }
        Delivery::After(Duration::from_millis(5))
    });
}

#[test]
fn a_peer_that_sets_the_commit_bit_delays_packets_for_five_seconds_at_most() {
    for of in [1, 2] {
        let mut net = pair();
        commit(&mut net, of);
        initiate(&mut net, 0);
        net.run(SHORT);
        // The end that did not set the bit waits; the other one sends.
        let sends = |net: &Net, host: usize| net.hosts[host].live().filter(|child| child.outbound).count();
        let waits = 2 - usize::from(of);
        assert_eq!((sends(&net, waits), sends(&net, 1 - waits)), (0, 1), "{of}");
        net.run(SHORT);
        assert_up(&net);
        assert_eq!(net.hosts[0].command(7), Some(&Ok(())));
        // A successor, and the Delete of the old one.
        let child = net.hosts[0].live().next().expect("a child").sa.id;
        net.hosts[0].endpoint.rekey_child(net.now, child, 8);
        net.run(seconds(60));
        assert_up(&net);
        assert!(net.hosts.iter().all(|host| host.live().count() == 1));
    }
}

#[test]
fn connected_ends_the_wait_for_a_peer_that_set_the_commit_bit() {
    let mut net = pair();
    let message_id = Rc::new(Cell::new(0));
    let seen = Rc::clone(&message_id);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        if datagram.local.ip() == addr(2) {
            let bytes = &mut datagram.datagram;
            bytes[19] |= Header::FLAG_V1_COMMIT;
            if bytes[18] == 32 {
                seen.set(u32::from_be_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]));
            }
        }
        Delivery::After(Duration::from_millis(5))
    });
    initiate(&mut net, 0);
    net.run(seconds(1));
    let sends = |net: &Net| net.hosts[0].live().filter(|child| child.outbound).count();
    assert_eq!(sends(&net), 0);
    let (first, payloads) = payloads(|chain| {
        let (doi, protocol, kind) = (DOI_IPSEC, ProtocolId::ESP, NotifyType::CONNECTED);
        chain.notification_v1(&Notification { doi, protocol, spi: &[], kind, data: &[] });
    });
    let ike = net.hosts[0].up()[0];
    let connected = |net: &Net, message_id| {
        let message = crate::v1::Forged {
            exchange: 5,
            message_id,
            first: first.0,
            payloads: &payloads,
            encrypted: true,
            hashed: true,
        };
        net.hosts[0].endpoint.forged(ike, &message).expect("a message")
    };
    // That of another exchange does not.
    for (message_id, expected) in [(0x1234, 0), (message_id.get(), 1), (message_id.get(), 1)] {
        let datagram = connected(&net, message_id);
        net.inject(Transmit { local: port_500(2), remote: port_500(1), datagram, dscp: 0 });
        net.run(Duration::from_millis(20));
        assert_eq!(sends(&net), expected);
    }
    assert_up(&net);
}

#[test]
fn ends_that_disagree_about_a_crossing_keep_one_isakmp_sa() {
    for seed in 0..12 {
        let mut net = pair_with(100 + seed, &|_, _| ());
        let mut first = true;
        net.wire = Box::new(move |datagram: &mut Transmit| {
            // Message 1 of host 2 comes when the phase 1 of host 1 is long done.
            let is_late = first && datagram.local.ip() == addr(2) && datagram.datagram[8..16] == [0; 8];
            first &= !is_late;
            Delivery::After(Duration::from_millis(if is_late { 3000 } else { 5 }))
        });
        for host in [1, 0] {
            initiate(&mut net, host);
        }
        net.run(seconds(100));
        for host in &net.hosts {
            assert!(!host.up().is_empty(), "{seed}: {}", host.log(Level::Debug));
            assert!(host.live().any(|child| child.outbound), "{seed}: {}", host.log(Level::Debug));
        }
    }
}

/// Delays the datagrams that a test selects by 2 s, and the other ones by 5 ms.
fn delay(net: &mut Net, is_slow: impl Fn(&Transmit) -> bool + 'static) {
    net.wire = Box::new(move |datagram: &mut Transmit| {
        Delivery::After(Duration::from_millis(if is_slow(datagram) { 2000 } else { 5 }))
    });
}

fn assert_no_child(net: &Net) {
    for host in &net.hosts {
        assert_eq!(host.live().count(), 0, "{}", host.log(Level::Debug));
    }
}

#[test]
fn a_delete_that_was_sent_before_a_replacement_applies_after_it() {
    let mut net = pair_with(40, &|_, child| child.close_action = Action::Clear);
    initiate(&mut net, 0);
    net.run(SHORT);
    delay(&mut net, |datagram| {
        datagram.local.ip() == addr(2) && datagram.datagram[18] == ExchangeType::INFORMATIONAL_V1.0
    });
    let (ike, child) = (net.hosts[0].up()[0], net.hosts[1].live().next().expect("a child").sa.id);
    assert!(net.hosts[1].endpoint.terminate_child(net.now, child, 9));
    assert!(net.hosts[0].endpoint.rekey_ike(net.now, ike, false, 9));
    net.pump();
    net.run(seconds(1));
    assert_eq!((net.hosts[0].count("ike_rekeyed"), net.hosts[0].live().count()), (1, 1));
    net.run(seconds(2));
    assert_no_child(&net);
}

#[test]
fn a_delete_that_overtakes_message_2_applies_after_it() {
    let mut net = pair();
    delay(&mut net, |datagram| datagram.local.ip() == addr(2) && datagram.datagram[18] == ExchangeType::QUICK_MODE.0);
    initiate(&mut net, 0);
    net.run(seconds(1));
    let child = net.hosts[1].live().next().expect("a child").sa.id;
    assert!(net.hosts[1].endpoint.terminate_child(net.now, child, 9));
    net.pump();
    net.run(seconds(10));
    assert_eq!(net.hosts[0].count("child_up"), 1);
    assert_no_child(&net);
}
