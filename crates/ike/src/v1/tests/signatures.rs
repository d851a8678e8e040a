//! Main mode with signatures (RFC 2409 §5.1, RFC 4754): two endpoints in memory.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use wire::ike::{CertEncoding, Header, PayloadType, Payloads};

use super::stories::{assert_empty, assert_up, initiate, twins};
use crate::config::*;
use crate::identity::IdPattern;
use crate::output::{Level, Transmit};
use crate::testkit::*;

/// A connection that authenticates both ends with signatures.
pub(super) fn signed(local: u8, remote: u8) -> Connection {
    let public = |number| vec![auth(AuthMethod::PublicKey(Vec::new()), &format!("host{number}.test"))];
    Connection { local: public(local), remote: public(remote), ..connection_v1(local, remote) }
}

/// Two hosts with keys that trust each other.
pub(super) fn signed_pair(seed: u64, change: &dyn Fn(&mut Connection)) -> Net {
    let mut net = Net::new(seed, 2);
    for (host, (local, remote)) in [(0, (1u8, 2u8)), (1, (2, 1))] {
        let name = |number| id(&format!("host{number}.test"));
        net.hosts[host].credentials.with_keys_v1((name(local), local), &[(name(remote), remote)]);
        net.hosts[host].credentials.certs = vec![vec![local; 700]];
    }
    for (host, (local, remote)) in [(0, (1, 2)), (1, (2, 1))] {
        let mut connection = signed(local, remote);
        change(&mut connection);
        net.load(host, vec![connection]);
    }
    net
}

fn wait(net: &mut Net) {
    net.run(Duration::from_secs(3));
}

#[test]
fn either_end_brings_a_tunnel_up() {
    for initiator in [0, 1] {
        let mut net = signed_pair(1, &|_| ());
        initiate(&mut net, initiator);
        wait(&mut net);
        assert_up(&net);
        assert_eq!(net.hosts.iter().map(|host| host.sent.0).sum::<usize>(), 9);
        // Each end has requested and received a certificate.
        assert_eq!(net.hosts.iter().map(|host| host.credentials.certs_seen).collect::<Vec<_>>(), [1, 1]);
        let view = net.hosts[1 - initiator].endpoint.ike_sas().next().expect("an IKE SA");
        assert_eq!(view.remote_id.expect("an identity").to_string(), format!("host{}.test", initiator + 1));
        let id = net.hosts[0].up()[0];
        net.hosts[0].endpoint.terminate_ike(net.now, id, false, 8);
        net.run(Duration::from_secs(30));
        assert_empty(&net);
    }
}

#[test]
fn certificates_are_sent_as_configured() {
    for (send_cert, certreq, seen) in [
        (SendCert::IfAsked, true, 1),
        (SendCert::IfAsked, false, 0),
        (SendCert::Always, false, 1),
        (SendCert::Never, true, 0),
    ] {
        let mut net = signed_pair(2, &|connection| {
            (connection.send_cert, connection.send_certreq) = (send_cert, certreq);
        });
        initiate(&mut net, 0);
        wait(&mut net);
        assert_up(&net);
        for host in &net.hosts {
            assert_eq!(host.credentials.certs_seen, seen, "{send_cert:?} {certreq}");
        }
    }
}

#[test]
fn requests_name_the_trusted_authorities() {
    let mut net = signed_pair(3, &|_| ());
    let requests: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let seen = Rc::clone(&requests);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        if let Ok((header, body)) = Header::parse(&datagram.datagram)
            && header.flags & Header::FLAG_V1_ENCRYPTION == 0
        {
            let payloads = Payloads::v1(header.next, body).map_while(Result::ok);
            let requests = payloads.filter(|payload| payload.kind == PayloadType::CERTREQ_V1);
            seen.borrow_mut().extend(requests.map(|payload| payload.body.to_vec()));
        }
        Delivery::After(Duration::from_millis(5))
    });
    initiate(&mut net, 0);
    wait(&mut net);
    assert_up(&net);
    let name = [&[CertEncoding::X509_SIGNATURE.0], &b"a name of a CA"[..]].concat();
    assert_eq!(*requests.borrow(), [name.clone(), name]);
}

#[test]
fn the_certificate_decides_about_the_identity() {
    let mut net = signed_pair(4, &|connection| connection.local[0].id = IdPattern::Any);
    initiate(&mut net, 0);
    wait(&mut net);
    assert_up(&net);
    let view = net.hosts[1].endpoint.ike_sas().next().expect("an IKE SA");
    assert_eq!(view.remote_id.expect("an identity").to_string(), "host1.test");
}

#[test]
fn a_wrong_signature_is_refused_and_both_ends_know_it() {
    for wrong in [0, 1] {
        let mut net = signed_pair(5, &|_| ());
        // A key that the other end does not know as the one of this identity.
        let name = id(&format!("host{}.test", wrong + 1));
        let other = net.hosts[wrong].credentials.trusted.keys().map(|id| (id.clone(), 2 - wrong as u8));
        let other: Vec<_> = other.collect();
        net.hosts[wrong].credentials.with_keys_v1((name.clone(), 9), &other);
        initiate(&mut net, 0);
        net.run(Duration::from_secs(200));
        assert!(matches!(net.hosts[0].command(7), Some(Err(_))), "{wrong}");
        let log = net.hosts[1 - wrong].log(Level::Warn);
        assert!(log.contains(&format!("'{name}' is not authenticated: AUTH is wrong")), "{log}");
        assert!(net.hosts[1 - wrong].count("ike_authentication_failed") > 0, "{log}");
        let error = net.hosts[0].command(7).expect("an end").as_ref().expect_err("a failure").to_string();
        let expected = if wrong == 0 { "AUTHENTICATION_FAILED" } else { "is not authenticated" };
        assert!(error.contains(expected), "{error}");
        assert_empty(&net);
    }
}

#[test]
fn a_host_without_a_key_says_so() {
    let mut net = signed_pair(6, &|_| ());
    (net.hosts[0].credentials.key, net.hosts[1].credentials.key) = (None, None);
    initiate(&mut net, 0);
    wait(&mut net);
    let error = net.hosts[0].command(7).expect("an end").as_ref().expect_err("a failure").to_string();
    assert!(error.contains("this host cannot authenticate: no private key"), "{error}");
    assert_eq!(net.hosts[0].sent.0, 0);
    assert_empty(&net);

    // The responder has none: nothing of the offer fits.
    let mut net = signed_pair(6, &|_| ());
    net.hosts[1].credentials.key = None;
    net.hosts[1].endpoint.credentials_changed(net.now);
    net.pump();
    initiate(&mut net, 0);
    net.run(Duration::from_secs(200));
    assert!(net.hosts[1].count("ikev1_no_proposal") > 0, "{}", net.hosts[1].log(Level::Debug));
    assert_empty(&net);
}

#[test]
fn shared_keys_and_signatures_do_not_mix() {
    let mut net = signed_pair(7, &|_| ());
    net.load(1, vec![connection_v1(2, 1)]);
    initiate(&mut net, 0);
    net.run(Duration::from_secs(200));
    assert!(net.hosts[1].count("ikev1_no_proposal") > 0);
    // One with the right method beside it is found.
    net.load(1, vec![connection_v1(2, 1), Connection { name: "signed".to_owned(), ..signed(2, 1) }]);
    initiate(&mut net, 0);
    wait(&mut net);
    assert_up(&net);
    let view = net.hosts[1].endpoint.ike_sas().next().expect("an IKE SA");
    assert_eq!(view.connection.expect("a connection").name, "signed");
}

#[test]
fn the_identity_decides_between_connections() {
    let mut net = signed_pair(8, &|_| ());
    let public = |name| vec![auth(AuthMethod::PublicKey(Vec::new()), name)];
    let other = Connection { name: "a".to_owned(), remote: public("other.test"), ..signed(2, 1) };
    net.load(1, vec![other, Connection { name: "b".to_owned(), ..signed(2, 1) }]);
    initiate(&mut net, 0);
    wait(&mut net);
    assert_up(&net);
    let view = net.hosts[1].endpoint.ike_sas().next().expect("an IKE SA");
    assert_eq!(view.connection.expect("a connection").name, "b");

    let mut net = signed_pair(8, &|_| ());
    net.load(1, vec![Connection { remote: public("other.test"), ..signed(2, 1) }]);
    initiate(&mut net, 0);
    net.run(Duration::from_secs(200));
    assert!(net.hosts[1].log(Level::Warn).contains("'host1.test' is not authenticated: no connection allows it"));
    assert_empty(&net);
}

#[test]
fn every_lost_or_repeated_message_is_made_up_for() {
    for lost in 0..9 {
        for twice in [false, true] {
            let mut net = signed_pair(9, &|_| ());
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
            net.run(Duration::from_secs(30));
            assert_up(&net);
            assert_eq!(net.hosts[1].endpoint.half_open_count(), 0, "{lost}");
        }
    }
}

#[test]
fn forged_messages_before_the_honest_ones_change_nothing() {
    // Messages 5 and 6 with each byte changed: at most four signatures are verified, and the honest
    // message is one of them only where the forged ones are fewer.
    for number in [4, 5] {
        for at in (Header::LEN..900).step_by(16) {
            let mut net = signed_pair(10, &|_| ());
            let mut count = 0;
            net.wire = Box::new(move |_: &mut Transmit| {
                count += 1;
                Delivery::After(Duration::from_millis(if count - 1 == number { 50 } else { 5 }))
            });
            let honest: Rc<RefCell<Option<Transmit>>> = Rc::default();
            let copy = Rc::clone(&honest);
            let mut count = 0;
            net.wire = Box::new(move |datagram: &mut Transmit| {
                count += 1;
                if count - 1 == number {
                    *copy.borrow_mut() = Some(datagram.clone());
                    return Delivery::After(Duration::from_millis(50));
                }
                Delivery::After(Duration::from_millis(5))
            });
            initiate(&mut net, 0);
            for _ in 0..100 {
                if honest.borrow().is_some() {
                    break;
                }
                net.run(Duration::from_millis(1));
            }
            let mut forged = honest.borrow().clone().expect("the message");
            if at >= forged.datagram.len() {
                break;
            }
            forged.datagram[at] ^= 0x55;
            net.inject(forged);
            net.run(Duration::from_secs(9));
            assert_up(&net);
            assert_eq!(twins(&net), 2);
        }
    }
}

#[test]
fn a_flood_of_forged_signatures_is_bounded() {
    let mut net = signed_pair(11, &|_| ());
    let honest: Rc<RefCell<Option<Transmit>>> = Rc::default();
    let copy = Rc::clone(&honest);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        if datagram.datagram[18] == 2 && datagram.datagram[19] & Header::FLAG_V1_ENCRYPTION != 0 {
            copy.borrow_mut().get_or_insert_with(|| datagram.clone());
            return Delivery::Lost;
        }
        Delivery::After(Duration::from_millis(5))
    });
    initiate(&mut net, 0);
    net.run(Duration::from_millis(100));
    let honest = honest.borrow().clone().expect("message 5");
    let before = net.hosts[1].credentials.requests;
    for number in 0..200 {
        let mut forged = honest.clone();
        // Before the notification, which no hash covers.
        let last = forged.datagram.len() - 80 - 16 * (number % 5);
        forged.datagram[last] ^= 1 + number as u8;
        net.inject(forged);
        net.run(Duration::from_millis(2));
    }
    let verified = net.hosts[1].credentials.requests - before;
    assert!(verified <= 4, "{verified}");
    // One line and one notification.
    let log = net.hosts[1].log(Level::Warn);
    assert_eq!(log.lines().filter(|line| line.contains("main mode with")).count(), 1, "{log}");
    net.run(Duration::from_secs(60));
    assert_eq!(net.hosts[1].endpoint.half_open_count(), 0);
}

#[test]
fn the_end_of_a_certificate_limits_the_isakmp_sa() {
    let mut net = signed_pair(12, &|connection| connection.rekey_time = Duration::from_secs(14_400));
    net.hosts[1].credentials.valid_for = Some(Duration::from_secs(1000));
    initiate(&mut net, 0);
    wait(&mut net);
    assert_up(&net);
    let view = net.hosts[1].endpoint.ike_sas().next().expect("an IKE SA");
    let at = view.rekey_at.expect("a time").saturating_duration_since(net.now);
    assert!(at < Duration::from_secs(1000), "{at:?}");
    net.run(Duration::from_secs(990));
    assert_eq!(net.hosts[1].count("ike_rekeyed"), 1);
    assert_up(&net);
}

#[test]
fn nothing_is_left_when_credentials_never_answer() {
    for host in [0, 1] {
        let mut net = signed_pair(13, &|_| ());
        net.hosts[host].hold = true;
        initiate(&mut net, 0);
        net.run(Duration::from_secs(30));
        let id = net.hosts[0].endpoint.ike_sas().next().map(|sa| sa.id);
        if let Some(id) = id {
            net.hosts[0].endpoint.terminate_ike(net.now, id, true, 1);
        }
        net.run(Duration::from_secs(200));
        assert_empty(&net);
    }
}
