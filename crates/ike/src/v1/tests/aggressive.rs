//! Aggressive mode (RFC 2409 §5.1, §5.4): two endpoints in memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use wire::ike::{ExchangeType, Header, PayloadType};

use super::signatures::signed;
use super::stories::{assert_empty, assert_up, change_payloads, changed, initiate, twins};
use crate::Settings;
use crate::config::*;
use crate::output::{Level, Transmit};
use crate::testkit::*;
use crate::v1::message::payloads;

fn settings() -> Settings {
    Settings { aggressive_mode_psk: true, ..Settings::default() }
}

/// Two hosts that use aggressive mode, with a shared key or with signatures.
fn pair(seed: u64, signatures: bool, change: &dyn Fn(&mut Connection, &mut ChildConfig)) -> Net {
    let mut net = Net::with_settings(seed, 2, &settings());
    for (host, (local, remote)) in [(0, (1u8, 2u8)), (1, (2, 1))] {
        let name = |number| id(&format!("host{number}.test"));
        net.hosts[host].credentials.with_keys_v1((name(local), local), &[(name(remote), remote)]);
        net.hosts[host].credentials.certs = vec![vec![local; 700]];
    }
    for (host, (local, remote)) in [(0, (1, 2)), (1, (2, 1))] {
        let mut connection = Connection { aggressive: true, ..changed(local, remote, change) };
        if signatures {
            let Connection { local, remote, .. } = signed(local, remote);
            (connection.local, connection.remote) = (local, remote);
        }
        net.load(host, vec![connection]);
    }
    net
}

fn plain(seed: u64, signatures: bool) -> Net {
    pair(seed, signatures, &|_, _| ())
}

fn wait(net: &mut Net) {
    net.run(Duration::from_secs(3));
}

#[test]
fn either_end_brings_a_tunnel_up_with_three_messages_of_phase_1() {
    for signatures in [false, true] {
        for initiator in [0, 1] {
            let mut net = plain(1, signatures);
            initiate(&mut net, initiator);
            wait(&mut net);
            assert_up(&net);
            assert_eq!(net.hosts.iter().map(|host| host.sent.0).sum::<usize>(), 6, "{signatures}");
            let seen: Vec<usize> = net.hosts.iter().map(|host| host.credentials.certs_seen).collect();
            assert_eq!(seen, if signatures { [1, 1] } else { [0, 0] });
            let view = net.hosts[1 - initiator].endpoint.ike_sas().next().expect("an IKE SA");
            assert_eq!(view.remote_id.expect("an identity").to_string(), format!("host{}.test", initiator + 1));
            let id = net.hosts[1].up()[0];
            net.hosts[1].endpoint.terminate_ike(net.now, id, false, 8);
            net.run(Duration::from_secs(30));
            assert_empty(&net);
        }
    }
}

#[test]
fn every_lost_or_repeated_message_is_made_up_for() {
    for signatures in [false, true] {
        for lost in 0..6 {
            for twice in [false, true] {
                let mut net = plain(2, signatures);
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
                net.run(Duration::from_secs(60));
                assert_up(&net);
                assert_eq!(net.hosts[1].endpoint.half_open_count(), 0, "{lost}");
                assert_eq!(net.hosts.iter().map(|host| host.live().count()).collect::<Vec<_>>(), [1, 1], "{lost}");
            }
        }
    }
}

#[test]
fn the_third_message_is_repeated_without_a_child_until_the_peer_says_something() {
    let mut net = plain(3, false);
    let mut number = 0;
    net.wire = Box::new(move |_: &mut Transmit| {
        number += 1;
        if number == 3 { Delivery::Lost } else { Delivery::After(Duration::from_millis(5)) }
    });
    net.hosts[0].endpoint.initiate(net.now, "1-2", None, 7).expect("an attempt");
    net.pump();
    net.run(Duration::from_secs(10));
    assert_eq!(net.hosts.iter().map(|host| host.up().len()).collect::<Vec<_>>(), [1, 1]);
    // It ends: nothing tells this host that the message has arrived.
    net.run(Duration::from_secs(400));
    let sent = net.hosts[0].sent.0;
    net.run(Duration::from_secs(400));
    assert_eq!((net.hosts[0].sent.0, net.hosts[0].up().len()), (sent, 1));
    assert!(sent <= 8, "{sent}");
}

#[test]
fn a_shared_key_needs_the_switch_and_any_the_connection() {
    for (responder, switch, accepted) in [(true, true, true), (true, false, false), (false, true, false)] {
        let settings = Settings { aggressive_mode_psk: switch, ..Settings::default() };
        let mut net = Net::with_settings(4, 2, &settings);
        net.load(0, vec![Connection { aggressive: true, ..connection_v1(1, 2) }]);
        net.load(1, vec![Connection { aggressive: responder, ..connection_v1(2, 1) }]);
        initiate(&mut net, 0);
        net.run(Duration::from_secs(200));
        assert_eq!(net.hosts[1].up().len(), usize::from(accepted), "{responder} {switch}");
        assert_eq!(net.hosts[1].count("ikev1_aggressive_refused") > 0, !accepted);
        if !accepted {
            // Nothing is sent, and nothing of the key is used.
            assert_eq!((net.hosts[1].sent.0, net.hosts[1].credentials.requests), (0, 0));
        }
        let log = net.hosts[1].log(Level::Warn);
        assert_eq!(log.contains("aggressive_mode_psk = yes"), responder && !switch, "{log}");
    }
    // Signatures need no switch, and the connection answers main mode as well.
    let mut net = plain(4, true);
    net.hosts[0].endpoint.load(net.now, vec![signed(1, 2).into()]);
    net.pump();
    initiate(&mut net, 0);
    wait(&mut net);
    assert_up(&net);
    assert_eq!(net.hosts[1].count("ikev1_main_requests"), 1);
}

#[test]
fn different_keys_and_wrong_signatures_come_to_nothing() {
    for signatures in [false, true] {
        for wrong in [0, 1] {
            let mut net = plain(5, signatures);
            net.hosts[wrong].credentials.psk = b"another".to_vec();
            let name = id(&format!("host{}.test", wrong + 1));
            let other = (id(&format!("host{}.test", 2 - wrong)), 2 - wrong as u8);
            net.hosts[wrong].credentials.with_keys_v1((name.clone(), 9), &[other]);
            initiate(&mut net, 0);
            net.run(Duration::from_secs(300));
            assert!(
                matches!(net.hosts[0].command(7), Some(Err(_))) || signatures && wrong == 0,
                "{signatures} {wrong}"
            );
            assert_eq!(net.hosts[1].up().len(), 0);
            let counter = if signatures { "ike_authentication_failed" } else { "ikev1_psk_mismatch_or_corrupt" };
            // With a shared key the initiator sees it first: message 2 has a hash.
            let host = if signatures { 1 - wrong } else { 0 };
            assert!(net.hosts[host].count(counter) > 0, "{signatures} {wrong}: {}", net.hosts[host].log(Level::Debug));
            assert_eq!(net.hosts[1].endpoint.half_open_count(), 0);
        }
    }
}

#[test]
fn an_identity_that_no_connection_names_is_refused() {
    let mut net = plain(6, false);
    net.load(
        1,
        vec![Connection { aggressive: true, remote: vec![auth(AuthMethod::Psk, "other.test")], ..connection_v1(2, 1) }],
    );
    initiate(&mut net, 0);
    net.run(Duration::from_secs(200));
    assert!(net.hosts[1].log(Level::Warn).contains("allows the identity 'host1.test'"));
    let error = net.hosts[0].command(7).expect("an end").as_ref().expect_err("a failure").to_string();
    assert!(error.contains("AUTHENTICATION_FAILED"), "{error}");
    // The responder is not the one that is wanted.
    let mut net = plain(6, false);
    net.load(
        0,
        vec![Connection { aggressive: true, remote: vec![auth(AuthMethod::Psk, "other.test")], ..connection_v1(1, 2) }],
    );
    initiate(&mut net, 0);
    net.run(Duration::from_secs(200));
    let error = net.hosts[0].command(7).expect("an end").as_ref().expect_err("a failure").to_string();
    assert!(error.contains("'remote.id' does not allow"), "{error}");
    assert_empty(&net);
}

#[test]
fn the_identity_selects_connection_and_key() {
    let mut net = Net::with_settings(7, 2, &settings());
    net.load(0, vec![Connection { aggressive: true, ..connection_v1(1, 2) }]);
    let other = Connection { remote: vec![auth(AuthMethod::Psk, "other.test")], ..connection_v1(2, 1) };
    let [a, b] = [("a", other), ("b", connection_v1(2, 1))];
    let named = |(name, connection): (&str, Connection)| Connection {
        name: name.to_owned(),
        aggressive: true,
        remote_addrs: Vec::new(),
        ..connection
    };
    net.load(1, vec![named(a), named(b)]);
    // The key is that of the identity, which main mode would not know in time.
    net.hosts[1].credentials.psk = b"the key of the address".to_vec();
    let key = net.hosts[0].credentials.psk.clone();
    net.hosts[1].credentials.psks_v1.insert(id("host1.test"), key);
    initiate(&mut net, 0);
    wait(&mut net);
    assert_up(&net);
    let view = net.hosts[1].endpoint.ike_sas().next().expect("an IKE SA");
    assert_eq!(view.connection.expect("a connection").name, "b");
}

#[test]
fn a_nat_moves_message_3_to_port_4500() {
    for signatures in [false, true] {
        let mut net = plain(8, signatures);
        net.load(
            1,
            vec![{
                let mut connection = Connection { aggressive: true, remote_addrs: Vec::new(), ..connection_v1(2, 1) };
                if signatures {
                    let Connection { local, remote, .. } = signed(2, 1);
                    (connection.local, connection.remote) = (local, remote);
                }
                connection
            }],
        );
        let outside = addr(9);
        net.wire = Box::new(move |datagram: &mut Transmit| {
            if datagram.local.ip() == addr(1) {
                datagram.local = (outside, datagram.local.port() + 40_000).into();
            } else if datagram.remote.ip() == outside {
                datagram.remote = (addr(1), datagram.remote.port() - 40_000).into();
            }
            Delivery::After(Duration::from_millis(5))
        });
        initiate(&mut net, 0);
        wait(&mut net);
        assert_up(&net);
        let view = |host: usize| net.hosts[host].endpoint.ike_sas().next().expect("an IKE SA");
        assert_eq!((view(0).nat, view(1).nat), ((true, false), (false, true)), "{signatures}");
        let remote: SocketAddr = (outside, 44_500).into();
        assert_eq!((view(1).path.remote, view(0).path.local.port(), view(1).path.encap), (remote, 4500, true));
    }
}

#[test]
fn message_3_in_clear_is_accepted() {
    // RFC 2409 §5.1 leaves it open. The IVs of phase 2 are then those of phase 1 itself.
    let mut net = plain(9, false);
    let third: Rc<RefCell<Option<Transmit>>> = Rc::default();
    let copy = Rc::clone(&third);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        if datagram.datagram[18] == 4 && datagram.datagram[19] & Header::FLAG_V1_ENCRYPTION != 0 {
            *copy.borrow_mut() = Some(datagram.clone());
            return Delivery::Lost;
        }
        Delivery::After(Duration::from_millis(5))
    });
    net.hosts[0].endpoint.initiate(net.now, "1-2", None, 7).expect("an attempt");
    net.pump();
    net.run(Duration::from_millis(50));
    let mut clear = third.borrow().clone().expect("message 3");
    // Its hash cannot be read from outside: a wrong one in clear is refused, and says so once.
    clear.datagram[19] = 0;
    clear.datagram.truncate(Header::LEN);
    clear.datagram[16] = PayloadType::HASH_V1.0;
    clear.datagram.extend([0, 0, 0, 36]);
    clear.datagram.extend([7; 32]);
    let len = clear.datagram.len() as u32;
    clear.datagram[24..28].copy_from_slice(&len.to_be_bytes());
    net.inject(clear);
    net.run(Duration::from_millis(50));
    assert_eq!(net.hosts[1].up().len(), 0);
    assert!(net.hosts[1].count("ikev1_psk_mismatch_or_corrupt") > 0);
}

#[test]
fn a_flood_has_a_bounded_cost_and_a_bounded_answer() {
    let mut net = plain(10, true);
    let mut any = Connection { aggressive: true, remote_addrs: Vec::new(), ..signed(2, 1) };
    any.remote[0].id = crate::identity::IdPattern::Any;
    net.load(1, vec![any]);
    let seen: Rc<RefCell<Vec<Transmit>>> = Rc::default();
    let copy = Rc::clone(&seen);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        copy.borrow_mut().push(datagram.clone());
        Delivery::After(Duration::from_millis(5))
    });
    initiate(&mut net, 0);
    wait(&mut net);
    assert_up(&net);
    let message_1 = seen.borrow()[0].clone();
    assert_eq!(ExchangeType(message_1.datagram[18]), ExchangeType::AGGRESSIVE);
    seen.borrow_mut().clear();
    let before = net.hosts[1].credentials.requests;
    for number in 0..2000u32 {
        let mut spoofed = message_1.clone();
        spoofed.datagram[..4].copy_from_slice(&number.to_be_bytes());
        let source: SocketAddr = (IpAddr::from([10, 9, 0, (number % 3) as u8]), 500).into();
        // Each twice, as a copy would come.
        for _ in 0..2 {
            net.hosts[1].endpoint.handle_datagram(net.now, spoofed.remote, source, &spoofed.datagram);
        }
        net.pump();
    }
    // Three addresses, five each.
    assert_eq!(net.hosts[1].credentials.requests - before, 15);
    assert!(net.hosts[1].count("ikev1_blocked") > 1000);
    let mut answers = HashMap::<IpAddr, usize>::new();
    for sent in seen.borrow().iter().filter(|sent| sent.local.ip() == addr(2)) {
        *answers.entry(sent.remote.ip()).or_default() += 1;
    }
    assert!(answers.values().all(|answers| *answers <= 10), "{answers:?}");
    // Many addresses: the rate of key exchanges has a limit, and so have the half-open ones.
    for second in 0..20u32 {
        for number in 0..200u32 {
            let mut spoofed = message_1.clone();
            spoofed.datagram[..4].copy_from_slice(&(100_000 + second * 1000 + number).to_be_bytes());
            let source: SocketAddr = (IpAddr::from([10, 8, second as u8, number as u8]), 500).into();
            net.hosts[1].endpoint.handle_datagram(net.now, spoofed.remote, source, &spoofed.datagram);
            net.pump();
        }
        net.run(Duration::from_secs(1));
    }
    assert!(net.hosts[1].credentials.requests - before <= 15 + 21 * 50);
    assert!(net.hosts[1].endpoint.half_open_count() <= 256 + 15);
    net.run(Duration::from_secs(60));
    assert_eq!(net.hosts[1].endpoint.half_open_count(), 0);
    assert_eq!(net.hosts[1].count("ike_retransmissions"), 0);
}

/// A client whose user answers as long as `types` is true, and message 1 in `first`.
fn with_user(types: &Rc<RefCell<bool>>, first: &Rc<RefCell<Option<Transmit>>>) -> Net {
    let mut net = Net::with_settings(18, 2, &settings());
    let mut client = Connection { aggressive: true, ..connection_v1(1, 2) };
    let mut server = Connection { aggressive: true, remote_addrs: Vec::new(), ..connection_v1(2, 1) };
    let user = crate::identity::IdPattern::parse("alice").ok();
    client.local.push(Auth { eap_id: user, ..auth(AuthMethod::XAuth, "%any") });
    server.remote.push(auth(AuthMethod::XAuth, "%any"));
    for host in &mut net.hosts {
        host.credentials.passwords.insert(b"alice".to_vec(), b"a password".to_vec());
    }
    net.load(0, vec![client]);
    net.load(1, vec![server]);
    let (copy, is_typing) = (Rc::clone(first), Rc::clone(types));
    net.wire = Box::new(move |datagram: &mut Transmit| {
        copy.borrow_mut().get_or_insert_with(|| datagram.clone());
        let answer = datagram.datagram[18] == ExchangeType::TRANSACTION.0 && datagram.local.ip() == addr(1);
        if answer && !*is_typing.borrow() { Delivery::Lost } else { Delivery::After(Duration::from_millis(5)) }
    });
    net
}

#[test]
fn a_flood_does_not_end_isakmp_sas_whose_users_authenticate() {
    // The user takes a while to type the password.
    let (first, types): (Rc<RefCell<Option<Transmit>>>, Rc<RefCell<bool>>) = Default::default();
    let mut net = with_user(&types, &first);
    initiate(&mut net, 0);
    net.run(Duration::from_millis(100));
    let message_1 = first.borrow().clone().expect("message 1");
    for second in 0..8u32 {
        for number in 0..50u32 {
            let mut spoofed = message_1.clone();
            spoofed.datagram[..4].copy_from_slice(&(1000 + second * 100 + number).to_be_bytes());
            let source: SocketAddr = (IpAddr::from([10, 8, second as u8, number as u8]), 500).into();
            net.hosts[1].endpoint.handle_datagram(net.now, spoofed.remote, source, &spoofed.datagram);
            net.pump();
        }
        net.run(Duration::from_secs(1));
    }
    assert!(net.hosts[1].count("ikev1_half_open_evicted") > 100, "{}", net.hosts[1].log(Level::Debug));
    *types.borrow_mut() = true;
    net.run(Duration::from_secs(30));
    assert_up(&net);
    net.run(Duration::from_secs(60));
    assert_eq!(net.hosts[1].endpoint.half_open_count(), 0);
}

#[test]
fn isakmp_sas_of_an_address_whose_users_authenticate_count_as_half_open() {
    let (first, types): (Rc<RefCell<Option<Transmit>>>, Rc<RefCell<bool>>) = Default::default();
    let mut net = with_user(&types, &first);
    initiate(&mut net, 0);
    net.run(Duration::from_millis(100));
    let message_1 = first.borrow().clone().expect("message 1");
    for number in 0..20u32 {
        let mut another = message_1.clone();
        another.datagram[..4].copy_from_slice(&number.to_be_bytes());
        net.hosts[1].endpoint.handle_datagram(net.now, another.remote, another.local, &another.datagram);
        net.pump();
    }
    assert_eq!(net.hosts[1].endpoint.half_open_count(), 5);
}

#[test]
fn spoofed_messages_do_not_block_main_mode_of_their_address() {
    let mut net = plain(15, true);
    let first: Rc<RefCell<Option<Transmit>>> = Rc::default();
    let copy = Rc::clone(&first);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        let lost = datagram.datagram[18] == ExchangeType::AGGRESSIVE.0;
        copy.borrow_mut().get_or_insert_with(|| datagram.clone());
        if lost { Delivery::Lost } else { Delivery::After(Duration::from_millis(5)) }
    });
    initiate(&mut net, 0);
    net.run(Duration::from_millis(100));
    let message_1 = first.borrow().clone().expect("message 1");
    for number in 0..20u32 {
        let mut spoofed = message_1.clone();
        spoofed.datagram[..4].copy_from_slice(&number.to_be_bytes());
        net.hosts[1].endpoint.handle_datagram(net.now, spoofed.remote, spoofed.local, &spoofed.datagram);
        net.pump();
    }
    assert_eq!(net.hosts[1].endpoint.half_open_count(), 5);
    assert!(net.hosts[1].count("ikev1_blocked") > 0);
    let attempt = net.hosts[0].endpoint.ike_sas().next().expect("an attempt").id;
    net.hosts[0].endpoint.terminate_ike(net.now, attempt, true, 1);
    net.load(0, vec![signed(1, 2)]);
    initiate(&mut net, 0);
    wait(&mut net);
    assert_up(&net);
    net.run(Duration::from_secs(60));
    assert_eq!(net.hosts[1].endpoint.half_open_count(), 0);
}

#[test]
fn a_flood_of_forged_signatures_is_bounded() {
    let mut net = plain(16, true);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        let third = datagram.datagram[18] == 4 && datagram.datagram[19] & Header::FLAG_V1_ENCRYPTION != 0;
        if third { Delivery::Lost } else { Delivery::After(Duration::from_millis(5)) }
    });
    net.hosts[0].endpoint.initiate(net.now, "1-2", None, 7).expect("an attempt");
    net.pump();
    net.run(Duration::from_millis(50));
    let half_open = net.hosts[1].endpoint.ike_sas().next().expect("a half-open ISAKMP SA").id;
    let before = net.hosts[1].credentials.requests;
    for number in 0..100 {
        let (first, payloads) = payloads(|chain| {
            chain.raw(PayloadType::SIG_V1, &[number; 64]);
        });
        let (exchange, first) = (4, first.0);
        let message =
            crate::v1::Forged { exchange, message_id: 0, first, payloads: &payloads, encrypted: true, hashed: false };
        if let Some(datagram) = net.hosts[1].endpoint.forged(half_open, &message) {
            net.inject(Transmit { local: port_500(1), remote: port_500(2), datagram, dscp: 0 });
        }
        net.run(Duration::from_millis(10));
    }
    let verified = net.hosts[1].credentials.requests - before;
    assert_eq!((verified, net.hosts[1].up().len()), (4, 0));
    assert!(net.hosts[1].count("ikev1_signatures_limited") > 50);
    net.run(Duration::from_secs(60));
    assert_eq!(net.hosts[1].endpoint.half_open_count(), 0);
}

#[test]
fn copies_of_message_1_are_answered_three_times() {
    let mut net = plain(11, false);
    let first: Rc<RefCell<Option<Transmit>>> = Rc::default();
    let copy = Rc::clone(&first);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        copy.borrow_mut().get_or_insert_with(|| datagram.clone());
        if datagram.local.ip() == addr(2) { Delivery::Lost } else { Delivery::After(Duration::from_millis(5)) }
    });
    initiate(&mut net, 0);
    net.run(Duration::from_millis(100));
    let message_1 = first.borrow().clone().expect("message 1");
    for _ in 0..20 {
        net.inject(message_1.clone());
    }
    net.run(Duration::from_millis(100));
    assert_eq!(net.hosts[1].sent.0, 4);
}

#[test]
fn a_group_that_is_not_that_of_the_ke_payload_is_refused() {
    let mut net = plain(12, false);
    let mut number = 0;
    net.wire = Box::new(move |datagram: &mut Transmit| {
        number += 1;
        if number == 1 {
            change_payloads(&mut datagram.datagram, |payloads| {
                for (kind, body) in payloads.iter_mut() {
                    if *kind == PayloadType::KE_V1 {
                        body.truncate(63);
                    }
                }
            });
            datagram.datagram[18] = ExchangeType::AGGRESSIVE.0;
        }
        Delivery::After(Duration::from_millis(5))
    });
    initiate(&mut net, 0);
    net.run(Duration::from_secs(1));
    assert_eq!(net.hosts[1].up().len(), 0);
    assert_eq!(net.hosts[1].credentials.requests, 0);
    assert!(net.hosts[1].count("ikev1_no_proposal") > 0);
}

#[test]
fn another_aggressive_mode_takes_the_child_sas_over() {
    let rekey = |connection: &mut Connection, _: &mut ChildConfig| {
        (connection.rekey_time, connection.over_time) = (Duration::from_secs(3600), Duration::from_secs(360));
    };
    for signatures in [false, true] {
        let mut net = pair(13, signatures, &rekey);
        initiate(&mut net, 0);
        wait(&mut net);
        let child = net.hosts[0].live().next().expect("a child").sa.id;
        net.run(Duration::from_secs(3700));
        assert_up(&net);
        assert_eq!(net.hosts[0].live().next().expect("a child").sa.id, child);
        for host in &net.hosts {
            assert_eq!((host.count("ike_rekeyed"), host.count("ike_down"), host.count("child_down")), (1, 0, 0));
        }
        assert_eq!(twins(&net), 2);
    }
}

#[test]
fn both_ends_may_start_at_once() {
    for crossing in 0..30 {
        let mut net = plain(14 + crossing, crossing % 2 == 0);
        initiate(&mut net, 0);
        net.run(Duration::from_millis(crossing));
        initiate(&mut net, 1);
        net.run(Duration::from_secs(230));
        for host in &net.hosts {
            assert_eq!(host.up().len(), 1, "{crossing}: {}", host.log(Level::Debug));
            assert_eq!(host.live().filter(|child| child.outbound).count(), 1, "{crossing}");
        }
        assert_eq!(twins(&net), 2);
    }
}
