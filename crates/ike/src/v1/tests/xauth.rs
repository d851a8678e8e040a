//! XAuth and Mode Config: two endpoints in memory.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use wire::ike::v1::vendor;
use wire::ike::{CfgAttr, ExchangeType, Header, PayloadType};

use super::stories::{assert_empty, assert_up, initiate, twins};
use crate::Settings;
use crate::config::*;
use crate::output::{Level, Transmit};
use crate::testkit::*;

/// Parts of a connection that a test has.
#[derive(Clone, Copy, Default)]
struct Parts {
    xauth: bool,
    vips: bool,
    push: bool,
    /// `rekey_time` and `over_time` in seconds.
    rekey: Option<(u64, u64)>,
    /// Signatures of both ends, or of the server alone.
    signed: Option<Signed>,
    /// Both ends announce Unity.
    unity: bool,
}

/// Ends that sign in phase 1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Signed {
    Both,
    Server,
}

/// Client and server.
fn pair(seed: u64, parts: Parts) -> Net {
    let mut net = Net::with_settings(seed, 2, &Settings { cisco_unity: parts.unity, ..Settings::default() });
    let user = || Auth { eap_id: crate::identity::IdPattern::parse("alice").ok(), ..auth(AuthMethod::XAuth, "%any") };
    let mut client = connection_v1(1, 2);
    let mut server = Connection { remote_addrs: Vec::new(), ..connection_v1(2, 1) };
    if let Some(of) = parts.signed {
        let signed = |connection: &mut Connection| {
            for auth in connection.local.iter_mut().chain(&mut connection.remote) {
                auth.method = AuthMethod::PublicKey(Vec::new());
            }
        };
        signed(&mut client);
        signed(&mut server);
        if of == Signed::Server {
            (client.local, server.remote) = (Vec::new(), Vec::new());
        }
        for (host, other) in [(0usize, 1u8), (1, 0)] {
            let name = |number: u8| id(&format!("host{number}.test"));
            let own = host as u8 + 1;
            let credentials = &mut net.hosts[host].credentials;
            credentials.with_keys_v1((name(own), own), &[(name(other + 1), other + 1)]);
            credentials.rsa = true;
        }
        if of == Signed::Server {
            net.hosts[0].credentials.key = None;
        }
    }
    if parts.xauth {
        client.local.push(user());
        server.remote.push(auth(AuthMethod::XAuth, "%any"));
    }
    if parts.vips {
        client.vips = vec![IpAddr::from([0, 0, 0, 0])];
        server.pools = vec!["pool".to_owned()];
        client.children =
            vec![Arc::new(ChildConfig { local_ts: vec![ts("dynamic")], ..child("net", "10.1.0.0/16", &network(2)) })];
        server.children =
            vec![Arc::new(ChildConfig { remote_ts: vec![ts("dynamic")], ..child("net", &network(2), "10.1.0.0/16") })];
    }
    for connection in [&mut client, &mut server] {
        connection.pull = !parts.push;
        if let Some((rekey, over)) = parts.rekey {
            (connection.rekey_time, connection.over_time) = (Duration::from_secs(rekey), Duration::from_secs(over));
        }
    }
    let pool = PoolConfig {
        name: "pool".to_owned(),
        addrs: range("10.9.0.0/24"),
        attributes: vec![(CfgAttr::INTERNAL_IP4_DNS.0, vec![10, 2, 0, 53])],
    };
    net.hosts[1].endpoint.load_pools(vec![pool]);
    for host in &mut net.hosts {
        host.credentials.passwords.insert(b"alice".to_vec(), b"a password".to_vec());
    }
    net.load(0, vec![client]);
    net.load(1, vec![server]);
    net
}

fn all() -> impl Iterator<Item = Parts> {
    let variants =
        [(true, false, false), (false, true, false), (false, true, true), (true, true, false), (true, true, true)];
    let shared = variants.into_iter().map(|(xauth, vips, push)| Parts { xauth, vips, push, ..Parts::default() });
    let signed = [Signed::Both, Signed::Server];
    let signed = signed.map(|of| Parts { xauth: true, vips: true, signed: Some(of), ..Parts::default() });
    shared.chain(signed)
}

fn wait(net: &mut Net) {
    net.run(Duration::from_secs(3));
}

fn log(net: &Net) -> String {
    format!("{}\n--\n{}", net.hosts[0].log(Level::Debug), net.hosts[1].log(Level::Debug))
}

#[test]
fn a_user_is_authenticated_and_gets_an_address() {
    for parts in all() {
        let mut net = pair(1, parts);
        initiate(&mut net, 0);
        wait(&mut net);
        assert_up(&net);
        assert_eq!(net.hosts[0].command(7), Some(&Ok(())), "{}", log(&net));
        let view = net.hosts[1].endpoint.ike_sas().next().expect("an IKE SA");
        assert_eq!(view.eap_name, parts.xauth.then_some("alice"));
        let child = net.hosts[1].live().next().expect("a child");
        if parts.vips {
            assert_eq!(child.sa.remote_ts[0].to_string(), "10.9.0.1/32");
            assert_eq!(view.virtual_remote[0].addr, IpAddr::from([10, 9, 0, 1]));
            let (_, address) = &net.hosts[0].virtuals[0];
            assert_eq!((address.addr, &address.dns[..]), ([10, 9, 0, 1].into(), &[[10, 2, 0, 53].into()][..]));
        }
        assert_eq!(child.sa.peer_id.to_string(), if parts.xauth { "alice" } else { "host1.test" });
        let id = net.hosts[0].up()[0];
        net.hosts[0].endpoint.terminate_ike(net.now, id, false, 8);
        net.run(Duration::from_secs(30));
        assert_empty(&net);
        assert!(net.hosts[0].virtuals.is_empty());
        // The lease is free, and kept for the client.
        let pool = net.hosts[1].endpoint.pools().get("pool").expect("the pool");
        assert_eq!(pool.leases().filter(|(_, lease)| lease.online).count(), 0);
    }
}

#[test]
fn every_lost_or_repeated_message_is_made_up_for() {
    for parts in all() {
        for lost in 0..18 {
            for twice in [false, true] {
                let mut net = pair(2, parts);
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
            }
        }
    }
}

#[test]
fn a_wrong_password_is_asked_for_three_times() {
    let mut net = pair(3, Parts { xauth: true, vips: true, ..Parts::default() });
    net.hosts[1].credentials.passwords.insert(b"alice".to_vec(), b"another".to_vec());
    initiate(&mut net, 0);
    net.run(Duration::from_secs(100));
    let error = net.hosts[0].command(7).expect("an end").as_ref().expect_err("a failure").to_string();
    assert!(error.contains("refuses the user name or the password"), "{error}");
    assert_eq!((net.hosts[1].count("ikev1_xauth_failed"), net.hosts[0].count("ikev1_xauth_failed")), (3, 1));
    assert_empty(&net);
    assert!(net.hosts[0].virtuals.is_empty());
    let log = net.hosts[1].log(Level::Warn);
    assert!(log.contains("the password is wrong") && !log.contains("a password"), "{log}");
    let pool = net.hosts[1].endpoint.pools().get("pool").expect("the pool");
    assert_eq!(pool.leases().count(), 0, "an address before the password was right");
}

#[test]
fn a_client_without_a_password_or_a_server_without_xauth_says_so() {
    let mut net = pair(4, Parts { xauth: true, ..Parts::default() });
    net.hosts[0].credentials.passwords.clear();
    initiate(&mut net, 0);
    net.run(Duration::from_secs(100));
    let error = net.hosts[0].command(7).expect("an end").as_ref().expect_err("a failure").to_string();
    assert!(error.contains("this host cannot authenticate by XAuth"), "{error}");
    assert_empty(&net);

    // One end has XAuth, the other does not: no method in common.
    for lacks in [0, 1] {
        let mut net = pair(4, Parts { xauth: true, ..Parts::default() });
        let plain = if lacks == 0 { connection_v1(1, 2) } else { connection_v1(2, 1) };
        net.load(lacks, vec![plain]);
        initiate(&mut net, 0);
        net.run(Duration::from_secs(200));
        assert!(net.hosts[1].count("ikev1_no_proposal") > 0, "{lacks}");
        assert_empty(&net);
    }
}

#[test]
fn no_child_sa_and_no_address_before_the_user_is_authenticated() {
    // The client is one that skips XAuth: its messages are made with the keys of the ISAKMP SA.
    let mut net = pair(5, Parts { xauth: true, vips: true, ..Parts::default() });
    net.hosts[0].hold = true;
    initiate(&mut net, 0);
    for _ in 0..40 {
        net.run(Duration::from_millis(10));
        // SKEYID is answered, the password is not.
        let password = |request: &crate::CredentialRequest| matches!(request, crate::CredentialRequest::PasswordV1(_));
        if net.hosts[0].held.iter().any(|(_, request)| password(request)) {
            break;
        }
        net.release(0);
    }
    let id = net.hosts[0].endpoint.ike_sas().next().expect("an IKE SA").id;
    let mut attributes = Vec::new();
    wire::ike::Attribute::long(CfgAttr::INTERNAL_IP4_ADDRESS.0, &[]).emit(&mut attributes);
    let config = [&[1, 0, 0, 9][..], &attributes].concat();
    let body = [&[0, 0, 0, 4 + config.len() as u8][..], &config].concat();
    for (exchange, first, body) in [
        (ExchangeType::TRANSACTION, PayloadType::ATTRIBUTES_V1, body),
        (ExchangeType::QUICK_MODE, PayloadType::NONCE_V1, [&[0, 0, 0, 20][..], &[7; 16]].concat()),
    ] {
        assert!(net.hosts[0].endpoint.forge(net.now, id, exchange.0, first.0, &body));
        net.run(Duration::from_millis(50));
    }
    assert_eq!(net.hosts[1].count("ikev1_transactions_refused"), 1, "{}", log(&net));
    assert_eq!(net.hosts[1].count("ikev1_quick_modes_early"), 1);
    assert_eq!((net.hosts[1].up().len(), net.hosts[1].plane.len()), (0, 0));
    let pool = net.hosts[1].endpoint.pools().get("pool").expect("the pool");
    assert_eq!(pool.leases().count(), 0);
    // What never ends is ended.
    net.run(Duration::from_secs(400));
    assert_empty(&net);
}

#[test]
fn another_phase_1_authenticates_the_user_again_and_keeps_the_address() {
    for parts in all() {
        let mut net = pair(6, Parts { rekey: Some((3600, 360)), ..parts });
        initiate(&mut net, 0);
        wait(&mut net);
        let child = net.hosts[0].live().next().expect("a child").sa.id;
        net.run(Duration::from_secs(3700));
        assert_up(&net);
        assert_eq!(net.hosts[0].live().next().expect("a child").sa.id, child, "{}", log(&net));
        for host in &net.hosts {
            assert_eq!((host.count("ike_rekeyed"), host.count("child_down")), (1, 0), "{}", log(&net));
        }
        assert_eq!(net.hosts[0].virtuals.len(), usize::from(parts.vips));
        if parts.vips {
            let view = net.hosts[1].endpoint.ike_sas().next().expect("an IKE SA");
            assert_eq!(view.virtual_remote[0].addr, IpAddr::from([10, 9, 0, 1]));
        }
        assert_eq!(twins(&net), 2);
    }
}

/// Without `rekey_time` both ends send `over_time` as the lifetime, and both take it from the peer.
#[test]
fn child_sas_outlive_a_short_lifetime_of_the_peer_over_a_slow_link() {
    for parts in all() {
        let mut net = pair(11, Parts { rekey: Some((0, 60)), ..parts });
        net.wire = Box::new(|_: &mut Transmit| Delivery::After(Duration::from_millis(400)));
        initiate(&mut net, 0);
        net.run(Duration::from_secs(10));
        let child = |net: &Net, host: usize| net.hosts[host].live().next().expect("a child").sa.id;
        let children = [child(&net, 0), child(&net, 1)];
        net.run(Duration::from_secs(190));
        assert_eq!([child(&net, 0), child(&net, 1)], children, "{}", log(&net));
        for host in &net.hosts {
            let counts = (host.count("child_down"), host.count("ike_down"));
            assert_eq!(counts, (0, 0), "{}", log(&net));
            // One end at a time starts phase 1.
            let (up, replaced) = (host.count("ike_up"), host.count("ike_rekeyed"));
            assert!(replaced >= 4 && up == replaced + 1, "{up} up, {replaced} replaced: {}", log(&net));
        }
    }
}

#[test]
fn users_of_one_group_have_different_addresses() {
    let mut net = Net::new(7, 3);
    let mut server = Connection { name: "server".to_owned(), remote_addrs: Vec::new(), ..connection_v1(2, 1) };
    server.remote = vec![auth(AuthMethod::Psk, "group.test"), auth(AuthMethod::XAuth, "%any")];
    server.pools = vec!["pool".to_owned()];
    server.unique = Unique::Replace;
    server.children =
        vec![Arc::new(ChildConfig { remote_ts: vec![ts("dynamic")], ..child("net", &network(2), "10.1.0.0/16") })];
    let pool = PoolConfig { name: "pool".to_owned(), addrs: range("10.9.0.0/24"), attributes: Vec::new() };
    net.hosts[1].endpoint.load_pools(vec![pool]);
    for (host, number, user) in [(0, 1, "alice"), (2, 3, "bob")] {
        let mut client = connection_v1(number, 2);
        let pattern = crate::identity::IdPattern::parse(user).ok();
        client.local =
            vec![auth(AuthMethod::Psk, "group.test"), Auth { eap_id: pattern, ..auth(AuthMethod::XAuth, "%any") }];
        client.vips = vec![IpAddr::from([0, 0, 0, 0])];
        client.children =
            vec![Arc::new(ChildConfig { local_ts: vec![ts("dynamic")], ..child("net", "10.1.0.0/16", &network(2)) })];
        for host in [host, 1] {
            net.hosts[host].credentials.passwords.insert(user.as_bytes().to_vec(), b"a password".to_vec());
        }
        net.load(host, vec![client]);
    }
    net.load(1, vec![server]);
    for host in [0, 2] {
        let name = format!("{}-2", host + 1);
        net.hosts[host].endpoint.initiate(net.now, &name, Some("net"), 7).expect("an attempt");
        net.pump();
        wait(&mut net);
    }
    // One does not replace the other, although both have the identity of the group.
    assert_eq!(net.hosts[1].up().len(), 2);
    let mut peers: Vec<String> = net.hosts[1].live().map(|child| child.sa.remote_ts[0].to_string()).collect();
    peers.sort();
    assert_eq!(peers, ["10.9.0.1/32", "10.9.0.2/32"]);
}

#[test]
fn forged_transactions_change_nothing() {
    let seen: Rc<RefCell<Vec<Transmit>>> = Rc::default();
    let copy = Rc::clone(&seen);
    let mut net = pair(8, Parts { xauth: true, vips: true, ..Parts::default() });
    net.wire = Box::new(move |datagram: &mut Transmit| {
        copy.borrow_mut().push(datagram.clone());
        Delivery::After(Duration::from_millis(5))
    });
    initiate(&mut net, 0);
    wait(&mut net);
    assert_up(&net);
    let transactions: Vec<Transmit> = seen.borrow().iter().filter(|sent| sent.datagram[18] == 6).cloned().collect();
    assert_eq!(transactions.len(), 6);
    for message in &transactions {
        for at in Header::LEN..message.datagram.len() {
            let mut forged = message.clone();
            forged.datagram[at] ^= 0x55;
            net.inject(forged);
            let mut short = message.clone();
            short.datagram.truncate(at);
            let len = short.datagram.len() as u32;
            short.datagram[24..28].copy_from_slice(&len.to_be_bytes());
            net.inject(short);
        }
        let mut clear = message.clone();
        clear.datagram[19] = 0;
        net.inject(clear);
        // The whole of it again.
        net.inject(message.clone());
        net.run(Duration::from_millis(50));
    }
    net.run(Duration::from_secs(60));
    assert_up(&net);
    assert_eq!(net.hosts[0].virtuals.len(), 1);
}

#[test]
fn a_hybrid_client_authenticates_the_server_and_proves_its_user_alone() {
    let hybrid = Parts { xauth: true, vips: true, signed: Some(Signed::Server), ..Parts::default() };
    // The server has another key than the one that the client trusts.
    let mut net = pair(9, hybrid);
    net.hosts[1].credentials.with_keys_v1((id("host2.test"), 9), &[]);
    initiate(&mut net, 0);
    net.run(Duration::from_secs(200));
    let error = net.hosts[0].command(7).expect("an end").as_ref().expect_err("a failure").to_string();
    assert!(error.contains("'host2.test' is not authenticated"), "{error}");
    assert_eq!(net.hosts[1].count("ikev1_xauth_failed"), 0);
    assert_empty(&net);

    // A client without the right password has phase 1 and nothing else.
    let mut net = pair(9, hybrid);
    net.hosts[0].credentials.passwords.insert(b"alice".to_vec(), b"another".to_vec());
    initiate(&mut net, 0);
    net.run(Duration::from_secs(100));
    assert_eq!((net.hosts[1].count("ikev1_xauth_failed"), net.hosts[1].plane.len()), (3, 0));
    assert_empty(&net);

    // HASH_I proves that message 5 is of the host of message 1.
    let mut net = pair(9, hybrid);
    let mut sent = 0;
    net.wire = Box::new(move |_: &mut Transmit| {
        sent += 1;
        if sent <= 3 { Delivery::After(Duration::from_millis(5)) } else { Delivery::Lost }
    });
    initiate(&mut net, 0);
    net.run(Duration::from_millis(100));
    let ike = net.hosts[1].endpoint.ike_sas().next().expect("an IKE SA").id;
    let (first, payloads) = crate::v1::message::payloads(|chain| {
        chain.raw(PayloadType::ID_V1, &[&[2, 0, 0, 0][..], b"host1.test"].concat());
        chain.raw(PayloadType::HASH_V1, &[7; 32]);
    });
    let first = first.0;
    let message =
        crate::v1::Forged { exchange: 2, message_id: 0, first, payloads: &payloads, encrypted: true, hashed: false };
    let datagram = net.hosts[1].endpoint.forged(ike, &message).expect("a message");
    net.inject(Transmit { local: port_500(1), remote: port_500(2), datagram, dscp: 0 });
    net.run(Duration::from_millis(20));
    assert!(net.hosts[1].count("ikev1_main_invalid") > 0);
    net.run(Duration::from_secs(300));
    assert_empty(&net);
}

#[test]
fn a_client_with_unity_reads_the_attributes_and_its_offer_of_all_addresses_is_narrowed() {
    for unity in [true, false] {
        let mut net = pair(10, Parts { vips: true, unity: true, ..Parts::default() });
        let mut client = Connection { vips: vec![[0, 0, 0, 0].into()], ..connection_v1(1, 2) };
        let everything = ChildConfig { local_ts: vec![ts("dynamic")], ..child("net", "10.1.0.0/16", "0.0.0.0/0") };
        client.children = vec![Arc::new(everything)];
        net.load(0, vec![client]);
        let split_include = vec![10, 2, 0, 0, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0];
        let pool = PoolConfig {
            name: "pool".to_owned(),
            addrs: range("10.9.0.0/24"),
            attributes: vec![(CfgAttr::UNITY_SPLIT_INCLUDE.0, split_include)],
        };
        net.hosts[1].endpoint.load_pools(vec![pool]);
        let announced = Rc::new(RefCell::new(false));
        let is_announced = Rc::clone(&announced);
        net.wire = Box::new(move |datagram: &mut Transmit| {
            let first = datagram.datagram[8..16] == [0; 8];
            let id = vendor::UNITY;
            if first && !unity {
                super::stories::change_payloads(&mut datagram.datagram, |list| {
                    list.retain(|(_, body)| *body != id);
                });
            } else if !first && datagram.local.ip() == addr(2) && datagram.datagram.windows(16).any(|bytes| bytes == id)
            {
                *is_announced.borrow_mut() = true;
            }
            Delivery::After(Duration::from_millis(5))
        });
        initiate(&mut net, 0);
        wait(&mut net);
        assert_eq!(*announced.borrow(), unity);
        match unity {
            true => {
                assert_up(&net);
                // Both ends have the network of the server.
                assert_eq!(net.hosts[0].live().next().expect("a child").sa.remote_ts[0].to_string(), "10.2.0.0/16");
                // What is outside of it triggers the trap of the section, and nothing new comes of
                // that.
                let (ups, now) = (net.hosts[0].count("child_up"), net.now);
                for _ in 0..5 {
                    net.hosts[0].endpoint.acquire(now, "1-2", "net", None, None);
                    net.run(Duration::from_secs(1));
                }
                assert_eq!((net.hosts[0].count("child_up"), net.hosts[0].live().count()), (ups, 1));
            }
            false => {
                let error = net.hosts[0].command(7).expect("an end").as_ref().expect_err("a failure").to_string();
                assert!(error.contains("INVALID_ID_INFORMATION"), "{error}");
            }
        }
    }
}

/// A client that protects everything, and a server with a banner and three networks.
fn split_tunnel(seed: u64, push: bool, unity: bool) -> Net {
    let mut net = pair(seed, Parts { vips: true, push, unity, ..Parts::default() });
    let mut client = Connection { vips: vec![[0, 0, 0, 0].into()], pull: !push, ..connection_v1(1, 2) };
    let section = |name, remote| {
        let config = ChildConfig { local_ts: vec![ts("dynamic")], ..child(name, "10.1.0.0/16", remote) };
        Arc::new(config)
    };
    client.children = vec![section("net", "0.0.0.0/0"), section("other", "10.7.0.0/16")];
    net.load(0, vec![client]);
    let mut server = Connection { remote_addrs: Vec::new(), pull: !push, ..connection_v1(2, 1) };
    server.pools = vec!["pool".to_owned()];
    let everything = ChildConfig { remote_ts: vec![ts("dynamic")], ..child("net", "0.0.0.0/0", "10.1.0.0/16") };
    server.children = vec![Arc::new(everything)];
    net.load(1, vec![server]);
    let entry = |second: u8| [&[10, second, 0, 0, 255, 255, 0, 0][..], &[0; 6]].concat();
    let pool = PoolConfig {
        name: "pool".to_owned(),
        addrs: range("10.9.0.0/24"),
        attributes: vec![
            (CfgAttr::UNITY_BANNER.0, b"for staff\nonly".to_vec()),
            (CfgAttr::UNITY_SPLIT_INCLUDE.0, [entry(2), entry(4)].concat()),
            (CfgAttr::UNITY_SPLIT_INCLUDE.0, entry(5)),
        ],
    };
    net.hosts[1].endpoint.load_pools(vec![pool]);
    net
}

/// Sections and remote networks of the Child SAs of the client.
fn shown(net: &Net) -> Vec<(String, Vec<String>)> {
    let sas = net.hosts[0].live().filter(|child| child.outbound);
    let of = |child: &Installed| child.sa.remote_ts.iter().map(ToString::to_string).collect::<Vec<_>>();
    sas.map(|child| (child.sa.config.name.clone(), of(child))).collect()
}

#[test]
fn unity_is_announced_and_used_where_it_is_configured() {
    for (push, unity) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut net = split_tunnel(14, push, unity);
        let announced: Rc<RefCell<BTreeSet<IpAddr>>> = Rc::default();
        let copy = Rc::clone(&announced);
        net.wire = Box::new(move |datagram: &mut Transmit| {
            if datagram.datagram.windows(16).any(|bytes| bytes == vendor::UNITY) {
                copy.borrow_mut().insert(datagram.local.ip());
            }
            Delivery::After(Duration::from_millis(5))
        });
        initiate(&mut net, 0);
        wait(&mut net);
        let all = ["0.0.0.0/0"].map(str::to_owned).to_vec();
        let listed = ["10.2.0.0/16", "10.4.0.0/16", "10.5.0.0/16"].map(str::to_owned).to_vec();
        assert_eq!(shown(&net), [("net".to_owned(), if unity { listed } else { all })], "{}", log(&net));
        assert_eq!(net.hosts[0].log(Level::Info).contains("Unity banner"), unity);
        assert_eq!(announced.borrow().len(), if unity { 2 } else { 0 });
    }
}

#[test]
fn a_client_with_unity_uses_the_networks_of_its_server() {
    for push in [false, true] {
        let mut net = split_tunnel(13, push, true);
        let listed = ["10.2.0.0/16", "10.4.0.0/16", "10.5.0.0/16"].map(str::to_owned).to_vec();
        initiate(&mut net, 0);
        wait(&mut net);
        assert_eq!(shown(&net), [("net".to_owned(), listed.clone())], "{}", net.hosts[0].log(Level::Debug));
        assert!(net.hosts[0].log(Level::Info).contains("Unity banner: for staffonly"));
        let view = net.hosts[0].endpoint.ike_sas().next().expect("an IKE SA");
        assert_eq!(view.children[0].remote_ts.len(), 3);
        // The server protects whatever the client sends, and a successor is for the same networks.
        for host in [0, 1] {
            assert_eq!(net.hosts[1].live().next().expect("a child").sa.local_ts[0].to_string(), "0.0.0.0/0");
            let child = net.hosts[host].live().map(|child| child.sa.id).max().expect("a child");
            assert!(net.hosts[host].endpoint.rekey_child(net.now, child, 3));
            net.pump();
            net.run(Duration::from_secs(30));
            assert_eq!(shown(&net), [("net".to_owned(), listed.clone())]);
            assert_eq!(net.hosts[1].live().count(), 1);
        }
        // A section without any of them keeps its own.
        net.hosts[0].endpoint.initiate(net.now, "1-2", Some("other"), 8).expect("an attempt");
        net.pump();
        wait(&mut net);
        assert!(shown(&net).contains(&("other".to_owned(), vec!["10.7.0.0/16".to_owned()])));
    }
}

/// Two devices of one user, behind one NAT, of a server that lets each have its SAs.
#[test]
fn clients_behind_one_nat_do_not_take_each_others_sas_over() {
    let mut net = Net::new(14, 3);
    let mut server = Connection { name: "server".to_owned(), remote_addrs: Vec::new(), ..connection_v1(2, 1) };
    (server.pools, server.unique) = (vec!["pool".to_owned()], Unique::Never);
    server.remote = vec![auth(AuthMethod::Psk, "group.test")];
    server.children =
        vec![Arc::new(ChildConfig { remote_ts: vec![ts("dynamic")], ..child("net", &network(2), "10.1.0.0/16") })];
    let pool = PoolConfig { name: "pool".to_owned(), addrs: range("10.9.0.0/24"), attributes: Vec::new() };
    net.hosts[1].endpoint.load_pools(vec![pool]);
    net.load(1, vec![server]);
    for (host, number) in [(0, 1), (2, 3)] {
        let mut client = connection_v1(number, 2);
        client.local = vec![auth(AuthMethod::Psk, "group.test")];
        client.vips = vec![IpAddr::from([0, 0, 0, 0])];
        client.children =
            vec![Arc::new(ChildConfig { local_ts: vec![ts("dynamic")], ..child("net", "10.1.0.0/16", &network(2)) })];
        net.load(host, vec![client]);
    }
    let outside = addr(9);
    net.wire = Box::new(move |datagram: &mut Transmit| {
        if datagram.local.ip() != addr(2) {
            let base = if datagram.local.ip() == addr(1) { 10_000 } else { 30_000 };
            datagram.local = (outside, base + datagram.local.port()).into();
        } else {
            let port = datagram.remote.port();
            let (number, base) = if port < 30_000 { (1, 10_000) } else { (3, 30_000) };
            datagram.remote = (addr(number), port - base).into();
        }
        Delivery::After(Duration::from_millis(5))
    });
    for host in [0, 2] {
        let name = format!("{}-2", host + 1);
        net.hosts[host].endpoint.initiate(net.now, &name, Some("net"), 7).expect("an attempt");
        net.pump();
        wait(&mut net);
    }
    net.run(Duration::from_secs(400));
    assert_eq!(net.hosts[1].up().len(), 2, "{}", net.hosts[1].log(Level::Debug));
    let mut peers: Vec<u16> = net.hosts[1].live().map(|child| child.sa.path.remote.port()).collect();
    peers.sort_unstable();
    assert_eq!(peers, [14_500, 34_500]);
    assert_eq!(net.hosts.iter().map(|host| host.count("ike_down")).sum::<usize>(), 0);
}

#[test]
fn a_client_without_an_address_does_not_come_up() {
    // The pool has another family than the client requests.
    let mut net = pair(11, Parts { vips: true, ..Parts::default() });
    let addrs = range("2001:db8::/120");
    net.hosts[1].endpoint.load_pools(vec![PoolConfig { name: "pool".to_owned(), addrs, attributes: Vec::new() }]);
    initiate(&mut net, 0);
    net.run(Duration::from_secs(100));
    let error = net.hosts[0].command(7).expect("an end").as_ref().expect_err("a failure").to_string();
    assert!(error.contains("gives no virtual address"), "{error}");
    assert_empty(&net);
}

/// The server has the next ISAKMP SA before its client.
#[test]
fn a_delete_during_mode_config_applies_to_the_isakmp_sa_before() {
    let mut net = pair(12, Parts { vips: true, ..Parts::default() });
    initiate(&mut net, 0);
    wait(&mut net);
    let is_slow = |datagram: &Transmit| datagram.datagram[18] == ExchangeType::TRANSACTION.0;
    net.wire = Box::new(move |datagram: &mut Transmit| {
        Delivery::After(Duration::from_millis(if is_slow(datagram) { 2000 } else { 5 }))
    });
    let (ike, child) = (net.hosts[0].up()[0], net.hosts[1].live().next().expect("a child").sa.id);
    assert!(net.hosts[0].endpoint.rekey_ike(net.now, ike, false, 9));
    net.pump();
    net.run(Duration::from_secs(1));
    let rekeyed = |net: &Net| [0, 1].map(|host: usize| net.hosts[host].count("ike_rekeyed"));
    assert_eq!(rekeyed(&net), [0, 1], "{}", log(&net));
    assert!(net.hosts[1].endpoint.terminate_child(net.now, child, 9));
    net.pump();
    net.run(Duration::from_secs(10));
    assert_eq!(rekeyed(&net), [1, 1], "{}", log(&net));
    assert!(net.hosts.iter().all(|host| host.live().count() == 0), "{}", log(&net));
}

/// The mapping of a NAT ended while a client was silent; its next phase 1 comes from another port.
#[test]
fn a_client_with_another_port_keeps_its_child_sas_where_an_identity_is_of_one_host() {
    for unique in [Unique::Replace, Unique::Keep] {
        let mut net = Net::new(15, 2);
        let mut server = Connection { name: "server".to_owned(), remote_addrs: Vec::new(), ..connection_v1(2, 1) };
        (server.unique, server.rekey_time) = (unique, Duration::ZERO);
        let lasting = ChildConfig { time: Life::default(), ..child("net", &network(2), &network(1)) };
        server.children = vec![Arc::new(lasting)];
        net.load(1, vec![server]);
        let mut client = connection_v1(1, 2);
        (client.rekey_time, client.over_time) = (Duration::from_secs(3600), Duration::from_secs(360));
        client.children =
            vec![Arc::new(ChildConfig { time: Life::default(), ..child("net", &network(1), &network(2)) })];
        net.load(0, vec![client]);
        let base = Rc::new(RefCell::new(10_000));
        let now = Rc::clone(&base);
        net.wire = Box::new(move |datagram: &mut Transmit| {
            if datagram.local.ip() == addr(1) {
                datagram.local = (addr(9), *now.borrow() + datagram.local.port()).into();
            } else {
                let port = datagram.remote.port().checked_sub(*now.borrow());
                let Some(port) = port.filter(|port| matches!(port, 500 | 4500)) else { return Delivery::Lost };
                datagram.remote = (addr(1), port).into();
            }
            Delivery::After(Duration::from_millis(5))
        });
        initiate(&mut net, 0);
        wait(&mut net);
        let child = net.hosts[1].live().next().expect("a child").sa.id;
        *base.borrow_mut() = 20_000;
        net.run(Duration::from_secs(3700));
        assert_eq!(net.hosts[1].live().next().expect("a child").sa.id, child, "{}", net.hosts[1].log(Level::Debug));
        assert_eq!((net.hosts[1].up().len(), net.hosts[1].count("child_down")), (1, 0));
    }
}
