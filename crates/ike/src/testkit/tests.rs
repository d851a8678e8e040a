//! Scenarios of handshakes: every authentication method, every message lost, and invalid messages
//! of peers and attackers.

use std::cell::Cell;
use std::rc::Rc;

use super::*;

mod anchors;
mod anew;
mod conflict;
mod drain;
mod endpoint;
mod granted;
mod hostile;
mod names;
mod reload;
mod scale;
mod silence;
mod towards;

const SECOND: Duration = Duration::from_secs(1);

/// Two hosts that can reach each other, after `change` on both connections.
fn pair(seed: u64, change: impl Fn(usize, &mut Connection)) -> Net {
    let mut net = Net::new(seed, 2);
    let (mut a, mut b) = (connection(1, 2), connection(2, 1));
    change(0, &mut a);
    change(1, &mut b);
    net.load(0, vec![a]);
    net.load(1, vec![b]);
    net
}

/// A pattern of identities.
fn like(text: &str) -> IdPattern {
    IdPattern::parse(text).expect("a pattern")
}

/// Host 0 brings its child up.
fn initiate(net: &mut Net) {
    let now = net.now;
    net.hosts[0].endpoint.initiate(now, "1-2", Some("net"), 1).expect("can be started");
}

/// Everything is up on both sides, with the same keys.
fn check_up(net: &Net) {
    for host in &net.hosts[..2] {
        assert_eq!(host.up().len(), 1, "{}", host.log(Level::Trace));
        assert_eq!(host.live().count(), 1, "{}", host.log(Level::Trace));
    }
    assert_eq!(net.hosts[0].command(1), Some(&Ok(())));
    let child = |host: usize| net.hosts[host].live().next().expect("a child");
    let (a, b) = (child(0), child(1));
    assert!(a.sa.outbound.enc == b.sa.inbound.enc && a.sa.inbound.enc == b.sa.outbound.enc);
    assert_eq!((a.sa.outbound.spi, a.sa.inbound.spi), (b.sa.inbound.spi, b.sa.outbound.spi));
    assert_eq!((&a.sa.local_ts, &a.sa.remote_ts), (&b.sa.remote_ts, &b.sa.local_ts));
    assert_eq!(a.sa.path.encap, b.sa.path.encap);
}

#[test]
fn psk() {
    let mut net = pair(1, |_, _| ());
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    assert_eq!((net.hosts[0].sent.0, net.hosts[1].sent.0), (2, 2), "{}", net.hosts[0].log(Level::Trace));
}

fn signatures(connection: &mut Connection) {
    connection.local[0].method = AuthMethod::PublicKey(Vec::new());
    connection.remote[0].method = AuthMethod::PublicKey(Vec::new());
}

fn keys(net: &mut Net) {
    net.hosts[0].credentials.with_keys(1, &[(id("host2.test"), 2)]);
    net.hosts[1].credentials.with_keys(2, &[(id("host1.test"), 1)]);
}

/// Certificates that do not fit in one message: by their sum, and one alone.
const TOO_LONG: [&[usize]; 2] = [&[40_000, 40_000], &[70_000]];

fn spis_in_use(host: &Host) -> usize {
    host.endpoint.tables().iter().find(|(name, _)| *name == "child_spis").map_or(usize::MAX, |(_, count)| *count)
}

fn too_long(lengths: &[usize]) -> Vec<Vec<u8>> {
    lengths.iter().map(|length| vec![1; *length]).collect()
}

#[test]
fn a_response_that_is_too_long_is_refused_and_leaves_nothing() {
    for lengths in TOO_LONG {
        for fragmentation in [Fragmentation::Yes, Fragmentation::No] {
            let mut net = pair(2, |_, connection| {
                signatures(connection);
                connection.fragmentation = fragmentation;
            });
            keys(&mut net);
            net.hosts[1].credentials.certs = too_long(lengths);
            initiate(&mut net);
            net.run(SECOND);
            assert!(net.hosts.iter().all(|host| host.up().is_empty() && host.live().count() == 0));
            let (refused, log) = (net.hosts[0].command(1), net.hosts[1].log(Level::Warn));
            assert!(
                matches!(refused, Some(Err(reason)) if reason.as_str().contains("AUTHENTICATION_FAILED")),
                "{refused:?} {lengths:?}"
            );
            assert!(log.contains("exceeds 65000 bytes: use fewer or shorter certificates"), "{log}");
            assert_eq!(spis_in_use(&net.hosts[1]), 0);
            assert_eq!(net.hosts[1].count("ike_internal_errors"), 0);
        }
    }
}

#[test]
fn a_request_that_is_too_long_fails_and_is_reported_to_the_peer() {
    for lengths in TOO_LONG {
        let mut net = pair(2, |_, connection| signatures(connection));
        keys(&mut net);
        net.hosts[0].credentials.certs = too_long(lengths);
        initiate(&mut net);
        net.run(SECOND);
        let failed = net.hosts[0].command(1);
        assert!(matches!(failed, Some(Err(reason)) if reason.as_str().contains("exceeds 65000 bytes")), "{failed:?}");
        assert_eq!(spis_in_use(&net.hosts[0]), 0);
        assert!(net.hosts[1].log(Level::Warn).contains("the initiator gave up with AUTHENTICATION_FAILED"));
        assert_eq!(net.hosts[0].count("ike_internal_errors"), 0);
    }
}

#[test]
fn ed25519_signatures_with_certificates() {
    let mut net = pair(2, |_, connection| signatures(connection));
    keys(&mut net);
    for host in &mut net.hosts {
        host.credentials.certs = vec![vec![1; 900], vec![2; 900], vec![3; 900]];
    }
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    // CERTREQ made both send theirs, in three fragments per direction.
    assert_eq!((net.hosts[0].credentials.certs_seen, net.hosts[1].credentials.certs_seen), (3, 3));
    assert_eq!((net.hosts[0].sent.0, net.hosts[1].sent.0), (4, 4));
}

#[test]
fn every_single_loss_is_made_good() {
    for lost in 0..8 {
        let mut net = pair(3, |_, connection| signatures(connection));
        keys(&mut net);
        for host in &mut net.hosts {
            host.credentials.certs = vec![vec![1; 2700]];
        }
        let mut count = 0;
        net.wire = Box::new(move |_| {
            count += 1;
            if count == lost + 1 { Delivery::Lost } else { Delivery::After(Duration::from_millis(5)) }
        });
        initiate(&mut net);
        net.run(10 * SECOND);
        check_up(&net);
    }
}

#[test]
fn duplicates_and_reordering_change_nothing() {
    for seed in 0..20u64 {
        let mut net = pair(seed, |_, connection| signatures(connection));
        keys(&mut net);
        for host in &mut net.hosts {
            host.credentials.certs = vec![vec![1; 2700]];
        }
        let mut state = seed;
        net.wire = Box::new(move |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let delay = |bits: u64| Duration::from_millis(1 + (bits & 0x3f));
            Delivery::Twice(delay(state >> 33), delay(state >> 43))
        });
        initiate(&mut net);
        net.run(10 * SECOND);
        check_up(&net);
    }
}

#[test]
fn a_wrong_psk_is_told_to_both() {
    let mut net = pair(4, |_, _| ());
    net.hosts[0].credentials.psk = b"something else".to_vec();
    initiate(&mut net);
    net.run(SECOND);
    assert!(net.hosts.iter().all(|host| host.up().is_empty() && host.live().count() == 0));
    let result = net.hosts[0].command(1).expect("an end");
    assert!(result.as_ref().is_err_and(|reason| reason.as_str().contains("AUTHENTICATION_FAILED")), "{result:?}");
    assert!(net.hosts[1].log(Level::Warn).contains("AUTH is wrong"), "{}", net.hosts[1].log(Level::Warn));
    net.run(60 * SECOND);
    assert!(net.hosts.iter().all(|host| host.endpoint.ike_sa_count() == 0 && host.endpoint.deadline().is_none()));
}

#[test]
fn a_responder_that_cannot_be_verified_hears_of_it() {
    let mut net = pair(5, |_, connection| signatures(connection));
    keys(&mut net);
    net.hosts[0].credentials.with_keys(1, &[(id("host2.test"), 9)]);
    initiate(&mut net);
    net.run(SECOND);
    assert!(net.hosts[0].up().is_empty());
    // What is left answers retransmissions for a while.
    net.run(30 * SECOND);
    assert!(net.hosts[1].live().count() == 0 && net.hosts[1].up().is_empty(), "{}", net.hosts[1].log(Level::Trace));
}

#[test]
fn an_initiator_that_cannot_authenticate_does_not_let_the_responder_wait() {
    let mut net = pair(5, |_, connection| signatures(connection));
    keys(&mut net);
    net.hosts[0].credentials.key = None;
    initiate(&mut net);
    net.run(SECOND);
    let result = net.hosts[0].command(1).expect("an end");
    assert!(result.as_ref().is_err_and(|reason| reason.as_str().contains("no private key")), "{result:?}");
    let log = net.hosts[1].log(Level::Warn);
    assert!(log.contains("gave up with AUTHENTICATION_FAILED"), "{log}");
    // What is left answers retransmissions for a while.
    net.run(30 * SECOND);
    assert!(net.hosts.iter().all(|host| host.endpoint.ike_sa_count() == 0));
}

#[test]
fn no_proposal_is_explained_at_both_ends() {
    let mut net = pair(6, |host, connection| {
        let words = ["aes256gcm16-prfsha384-x25519", "aes128gcm16-prfsha256-ecp256"][host];
        connection.proposals = vec![IkeProposal::parse(words).expect("a proposal")];
    });
    initiate(&mut net);
    net.run(30 * SECOND);
    let result = net.hosts[0].command(1).expect("an end");
    assert!(result.as_ref().is_err_and(|reason| reason.as_str().contains("NO_PROPOSAL_CHOSEN")), "{result:?}");
    assert!(net.hosts[1].log(Level::Warn).contains("no proposal fits"), "{}", net.hosts[1].log(Level::Warn));
    assert_eq!(net.hosts[1].endpoint.ike_sa_count(), 0);
}

#[test]
fn another_key_exchange_and_a_cookie_together() {
    let settings = Settings { cookie_threshold: 0, ..Settings::default() };
    let mut net = Net::with_settings(7, 2, &settings);
    let (mut a, mut b) = (connection(1, 2), connection(2, 1));
    a.proposals = vec![IkeProposal::parse("aes128gcm16-prfsha256-x25519-ecp256").unwrap()];
    b.proposals = vec![IkeProposal::parse("aes128gcm16-prfsha256-ecp256").unwrap()];
    a.name = "1-2".to_owned();
    net.load(0, vec![a]);
    net.load(1, vec![b]);
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    assert_eq!((net.hosts[1].count("ike_cookies_sent"), net.hosts[1].count("ike_init_invalid_ke")), (1, 1));
    let suite = net.hosts[0].endpoint.ike_sas().next().and_then(|sa| sa.suite.cloned()).expect("a suite");
    assert_eq!(suite.ke.name(), "ecp256");
}

#[test]
fn eap_with_and_without_a_key() {
    for msk in [true, false] {
        let mut net = eap_pair(8);
        for host in &mut net.hosts {
            host.credentials.eap.msk = msk;
        }
        initiate(&mut net);
        net.run(SECOND);
        check_up(&net);
        let name = net.hosts[1].endpoint.ike_sas().next().and_then(|sa| sa.eap_name.map(str::to_owned));
        assert!(name.is_some());
    }
}

/// Host 0 authenticates itself by EAP, host 1 by signature.
fn eap_pair(seed: u64) -> Net {
    let mut net = pair(seed, |host, connection| {
        signatures(connection);
        let auth = if host == 0 { &mut connection.local[0] } else { &mut connection.remote[0] };
        auth.method = AuthMethod::Eap(None);
    });
    keys(&mut net);
    net
}

#[test]
fn the_eap_identity_switches_the_connection() {
    let run = |change: fn(&mut Connection)| {
        let mut net = eap_pair(8);
        let first = Connection::clone(&net.hosts[1].endpoint.connections()[0]);
        let mut other = Connection { name: "other".to_owned(), ..first.clone() };
        other.remote[0].eap_id = Some(IdPattern::Any);
        change(&mut other);
        net.load(1, vec![first, other]);
        net.hosts[1].credentials.eap.switch_to = Some("other");
        initiate(&mut net);
        net.run(SECOND);
        net
    };
    let net = run(|_| ());
    check_up(&net);
    let name = net.hosts[1].endpoint.ike_sas().next().and_then(|sa| sa.connection.map(|found| found.name.clone()));
    assert_eq!(name.as_deref(), Some("other"));
    // No alternative: one that requests no EAP identity, and one with another identity of this
    // host.
    for change in [
        (|other| other.remote[0].eap_id = None) as fn(&mut Connection),
        |other| other.local[0].id = IdPattern::Any,
        |other| other.remote[0].method = AuthMethod::Psk,
    ] {
        let net = run(change);
        assert!(net.hosts.iter().all(|host| host.up().is_empty()));
        assert!(net.hosts[1].log(Level::Warn).contains("no alternative"));
    }
}

#[test]
fn a_wrong_password_ends_eap() {
    let mut net = eap_pair(9);
    net.hosts[0].credentials.eap.password = "wrong".to_owned();
    initiate(&mut net);
    net.run(SECOND);
    assert!(net.hosts.iter().all(|host| host.up().is_empty()));
    assert!(net.hosts[1].log(Level::Warn).contains("the password is wrong"));
}

#[test]
fn eap_success_before_the_client_spoke_is_refused() {
    let mut net = eap_pair(10);
    net.hosts[1].credentials.eap.hasty = true;
    initiate(&mut net);
    net.run(SECOND);
    assert!(net.hosts.iter().all(|host| host.up().is_empty()));
    assert!(net.hosts[1].log(Level::Warn).contains("before the client sent a message"));
}

#[test]
fn no_eap_answer_before_the_server_is_authenticated() {
    let mut net = eap_pair(11);
    net.hosts[0].credentials.with_keys(1, &[(id("host2.test"), 9)]);
    initiate(&mut net);
    net.run(SECOND);
    assert!(net.hosts.iter().all(|host| host.up().is_empty()));
    assert!(!net.hosts[0].log(Level::Trace).contains("EAP"), "{}", net.hosts[0].log(Level::Trace));
}

#[test]
fn eap_alone_needs_a_method_that_proves_both() {
    let alone = |method| {
        let mut net = pair(12, |_, connection| {
            connection.local[0].method = AuthMethod::Eap(None);
            connection.remote[0].method = AuthMethod::Eap(None);
        });
        for host in &mut net.hosts {
            host.credentials.eap.method = method;
        }
        initiate(&mut net);
        net.run(SECOND);
        net
    };
    check_up(&alone(13));
    let net = alone(26);
    assert!(net.hosts.iter().all(|host| host.up().is_empty()));
    assert!(
        net.hosts[0].log(Level::Error).contains("does not authenticate the peer"),
        "{}",
        net.hosts[0].log(Level::Trace)
    );
}

#[test]
fn two_rounds_on_each_side_and_on_one() {
    for (a_rounds, b_rounds) in [(2, 2), (2, 1), (1, 2), (3, 1)] {
        let mut net = pair(13, |host, connection| {
            let (own, others) = if host == 0 { (a_rounds, b_rounds) } else { (b_rounds, a_rounds) };
            connection.local = vec![connection.local[0].clone(); own];
            connection.remote = vec![connection.remote[0].clone(); others];
            if own > 1 {
                connection.local[1].method = AuthMethod::PublicKey(Vec::new());
            }
            if others > 1 {
                connection.remote[1].method = AuthMethod::PublicKey(Vec::new());
            }
        });
        keys(&mut net);
        initiate(&mut net);
        net.run(SECOND);
        check_up(&net);
    }
}

#[test]
fn a_signature_and_then_eap() {
    let mut net = pair(14, |host, connection| {
        signatures(connection);
        let rounds = if host == 0 { &mut connection.local } else { &mut connection.remote };
        rounds.push(Auth { method: AuthMethod::Eap(None), ..rounds[0].clone() });
    });
    keys(&mut net);
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
}

#[test]
fn a_round_less_than_required_is_refused() {
    let mut net = pair(15, |host, connection| {
        if host == 1 {
            connection.remote.push(connection.remote[0].clone());
        }
    });
    initiate(&mut net);
    net.run(SECOND);
    assert!(net.hosts.iter().all(|host| host.up().is_empty()));
}

#[test]
fn additional_key_exchanges() {
    let mut net = pair(16, |_, connection| {
        let words = "aes256gcm16-prfsha384-x25519-ke1_mlkem768-ke2_ecp384";
        connection.proposals = vec![IkeProposal::parse(words).expect("a proposal")];
    });
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    let suite = net.hosts[1].endpoint.ike_sas().next().and_then(|sa| sa.suite.cloned()).expect("a suite");
    assert_eq!(suite.additional.len(), 2);
}

#[test]
fn a_kem_in_the_first_exchange() {
    let mut net = pair(17, |_, connection| {
        connection.proposals = vec![IkeProposal::parse("aes128gcm16-prfsha256-mlkem768").expect("a proposal")];
    });
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
}

#[test]
fn post_quantum_preshared_keys() {
    // (initiator has it, requires it, responder has it, requires it) -> up, with it
    let cases = [
        ((true, true), (true, true), Some(true)),
        ((true, false), (true, false), Some(true)),
        ((true, false), (false, false), Some(false)),
        ((true, true), (false, false), None),
        ((false, false), (true, true), None),
        ((false, false), (true, false), Some(false)),
        ((true, false), (true, true), Some(true)),
    ];
    for (at, (a, b, want)) in cases.into_iter().enumerate() {
        let mut net = pair(18, |host, connection| {
            let (_, required) = [a, b][host];
            connection.ppk_id = Some(like("ppk@test"));
            connection.ppk_required = required;
        });
        for (host, (has, _)) in [a, b].into_iter().enumerate() {
            if has {
                net.hosts[host].credentials.ppks.insert(b"ppk@test".to_vec(), b"quantum".to_vec());
            }
        }
        initiate(&mut net);
        net.run(SECOND);
        match want {
            Some(with) => {
                check_up(&net);
                assert!(net.hosts.iter().all(|host| host.endpoint.ike_sas().all(|sa| sa.ppk == with)), "case {at}");
            }
            None => assert!(net.hosts.iter().all(|host| host.up().is_empty()), "case {at}"),
        }
    }
}

#[test]
fn the_name_of_a_post_quantum_key_has_to_match() {
    // The pattern of the responder's connection, and whether it requires a PPK -> up with a PPK.
    let run = |wanted: Option<&'static str>, required: bool, known: bool| {
        let mut net = pair(18, |host, connection| {
            let pattern = if host == 0 { Some("carol@test") } else { wanted };
            connection.ppk_id = pattern.map(like);
            connection.ppk_required = host == 0 || required;
        });
        for host in &mut net.hosts {
            host.credentials.ppks.insert(b"carol@test".to_vec(), b"quantum".to_vec());
            host.endpoint.set_has_ppks(known);
        }
        initiate(&mut net);
        net.run(SECOND);
        let up = net.hosts.iter().all(|host| host.up().len() == 1);
        (up && net.hosts.iter().all(|host| host.endpoint.ike_sas().all(|sa| sa.ppk)), net.hosts[1].log(Level::Trace))
    };
    assert!(run(Some("carol@test"), true, false).0 && run(Some("*@test"), true, false).0);
    assert!(run(Some("%any"), false, false).0);
    // A key that the host has, without a name in the connection.
    assert!(run(None, false, true).0);
    assert!(!run(None, false, false).0);
    let (up, log) = run(Some("dave@test"), true, true);
    assert!(!up && log.contains("'carol@test'"), "{log}");
    assert!(!run(Some("*@other"), false, true).0);
}

#[test]
fn one_identity_does_not_use_all_ike_sas() {
    use crate::config::Unique;
    // (what a second IKE SA means, limit) -> up; Never sends no INITIAL_CONTACT and replaces
    // nothing.
    for (unique, limit, up) in [(Unique::Never, 0, false), (Unique::Never, 1, true), (Unique::Replace, 0, true)] {
        let settings = Settings { ike_sas_per_identity_max: limit, ..Settings::default() };
        let mut net = Net::with_settings(20, 2, &settings);
        for (host, mut one) in [connection(1, 2), connection(2, 1)].into_iter().enumerate() {
            one.unique = unique;
            net.load(host, vec![one]);
        }
        initiate(&mut net);
        net.run(SECOND);
        assert_eq!(net.hosts[1].up().len() == 1, up, "{unique:?} {limit}");
        assert_eq!(net.hosts[1].log(Level::Warn).contains("which is the limit"), !up);
    }
}

#[test]
fn different_post_quantum_keys_do_not_authenticate() {
    let mut net = pair(19, |_, connection| connection.ppk_id = Some(like("ppk@test")));
    for (host, key) in [b"one", b"two"].into_iter().enumerate() {
        net.hosts[host].credentials.ppks.insert(b"ppk@test".to_vec(), key.to_vec());
    }
    initiate(&mut net);
    net.run(SECOND);
    assert!(net.hosts.iter().all(|host| host.up().is_empty()));
}

/// A gateway gives what would take other traffic of the client into the tunnel.
#[test]
fn a_client_refuses_virtual_addresses_that_are_not_for_a_tunnel() {
    for (pool, reason) in [
        ("127.0.0.5", Some("a loopback address")),
        ("224.0.0.9", Some("a multicast address")),
        ("169.254.1.1", Some("a link-local address")),
        ("255.255.255.255", Some("the broadcast address")),
        ("10.0.0.1", Some("an address of this host")),
        ("10.77.0.9", Some("in 10.77.0.0/16, a network of this host")),
        ("10.78.0.9", None),
        ("fe80::5", Some("a link-local address")),
        ("::1", Some("a loopback address")),
        ("::ffff:10.0.0.9", Some("an IPv4-mapped address")),
        ("fd00::5", None),
    ] {
        let v6 = pool.contains(':');
        let mut net = pair(22, |host, connection| {
            if host == 0 {
                connection.vips = vec![if v6 { IpAddr::from([0u16; 8]) } else { IpAddr::from([0u8; 4]) }];
                let theirs = if v6 { "fd02::/16" } else { "10.2.0.0/16" };
                connection.children = vec![Arc::new(child("net", "dynamic", theirs))];
            } else {
                connection.pools = vec!["pool".to_owned()];
                let ours = if v6 { "fd02::/16" } else { "10.2.0.0/16" };
                connection.children = vec![Arc::new(child("net", ours, "dynamic"))];
            }
        });
        let own = range("10.77.0.0/16");
        net.hosts[0].endpoint.look_up_networks(move |addr| own.contains(addr).then_some(own));
        let pool = PoolConfig { name: "pool".to_owned(), addrs: range(pool), attributes: Vec::new() };
        net.hosts[1].endpoint.load_pools(vec![pool.clone()]);
        initiate(&mut net);
        net.run(SECOND);
        let log = net.hosts[0].log(Level::Trace);
        assert_eq!(net.hosts[0].virtuals.is_empty(), reason.is_some(), "{log}");
        assert_eq!(net.hosts[0].live().count(), usize::from(reason.is_none()), "{log}");
        if let Some(reason) = reason {
            assert!(log.contains(&format!("refused: it is {reason}")), "{log}");
            // The gateway learns that nothing came of it.
            assert_eq!(net.hosts[1].live().count(), 0);
        }
    }
}

#[test]
fn attributes_that_do_not_fit_cost_no_address() {
    let mut net = pair(21, |host, connection| match host {
        0 => connection.vips = vec![IpAddr::from([0, 0, 0, 0])],
        _ => connection.pools = vec!["pool".to_owned()],
    });
    let attributes = vec![(3, vec![10; 40_000]), (3, vec![10; 40_000])];
    let pool = PoolConfig { name: "pool".to_owned(), addrs: range("10.99.0.0/24"), attributes };
    net.hosts[1].endpoint.load_pools(vec![pool]);
    initiate(&mut net);
    net.run(SECOND);
    assert!(net.hosts[1].log(Level::Warn).contains("exceeds 65000 bytes"), "{}", net.hosts[1].log(Level::Trace));
    assert_eq!(net.hosts[1].endpoint.pools().get("pool").map(crate::pool::Pool::online), Some(0));
}

#[test]
fn virtual_addresses_come_from_pools() {
    let mut net = pair(20, |host, connection| {
        if host == 0 {
            connection.vips = vec![IpAddr::from([0, 0, 0, 0])];
            connection.children = vec![Arc::new(child("net", "dynamic", "10.2.0.0/16"))];
        } else {
            connection.pools = vec!["pool".to_owned()];
            connection.children = vec![Arc::new(child("net", "10.2.0.0/16", "dynamic"))];
        }
    });
    let attributes = vec![(3, vec![10, 2, 0, 53])];
    let pool = PoolConfig { name: "pool".to_owned(), addrs: range("10.99.0.0/24"), attributes };
    net.hosts[1].endpoint.load_pools(vec![pool]);
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    let (_, given) = &net.hosts[0].virtuals[0];
    assert_eq!((given.addr, &given.dns[..]), (IpAddr::from([10, 99, 0, 1]), &[IpAddr::from([10, 2, 0, 53])][..]));
    let child = net.hosts[1].live().next().expect("a child");
    assert_eq!(child.sa.remote_ts[0].addrs, range("10.99.0.1"));
    let ike = net.hosts[0].up()[0];
    let now = net.now;
    assert!(net.hosts[0].endpoint.terminate_ike(now, ike, false, 2));
    net.run(SECOND);
    assert!(net.hosts[0].virtuals.is_empty());
    assert_eq!(net.hosts[1].endpoint.pools().get("pool").map(crate::pool::Pool::online), Some(0));
}

#[test]
fn without_an_address_the_ike_sa_stays() {
    let mut net = pair(21, |host, connection| {
        if host == 0 {
            connection.vips = vec![IpAddr::from([0, 0, 0, 0])];
        }
    });
    initiate(&mut net);
    net.run(SECOND);
    assert!(net.hosts.iter().all(|host| host.up().len() == 1 && host.live().count() == 0));
    assert!(net.hosts[0].command(1).is_some_and(Result::is_err));
    assert!(net.hosts[1].log(Level::Warn).contains("has no pools"));
}

#[test]
fn childless() {
    for (a, b, up) in [
        (Childless::Force, Childless::Allow, true),
        (Childless::Prefer, Childless::Allow, true),
        (Childless::Prefer, Childless::Never, true),
        (Childless::Allow, Childless::Force, false),
        (Childless::Force, Childless::Force, true),
    ] {
        let mut net = pair(22, |host, connection| connection.childless = if host == 0 { a } else { b });
        initiate(&mut net);
        net.run(SECOND);
        assert!(net.hosts.iter().all(|host| host.up().len() == 1), "{a:?} {b:?}");
        assert_eq!(net.hosts[0].live().count(), usize::from(up), "{a:?} {b:?}");
    }
}

/// Host 0 is seen from outside as 192.0.2.1 with ports of the NAT's choice: so much above its own.
fn behind_nat(net: &mut Net) -> (IpAddr, Rc<Cell<u16>>) {
    let (outside, shift) = (IpAddr::from([192, 0, 2, 1]), Rc::new(Cell::new(10_000)));
    let by = shift.clone();
    net.wire = Box::new(move |datagram| {
        if datagram.local.ip() == addr(1) {
            datagram.local = (outside, datagram.local.port() + by.get()).into();
        }
        if datagram.remote.ip() == outside {
            let Some(port) = datagram.remote.port().checked_sub(by.get()) else { return Delivery::Lost };
            datagram.remote = (addr(1), port).into();
        }
        Delivery::After(Duration::from_millis(5))
    });
    (outside, shift)
}

#[test]
fn a_nat_is_found_and_ports_float() {
    let mut net = pair(23, |host, connection| {
        if host == 1 {
            connection.remote_addrs = Vec::new();
        }
    });
    let (outside, _) = behind_nat(&mut net);
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    let path = |host: usize| net.hosts[host].live().next().expect("a child").sa.path;
    assert_eq!((path(0).local.port(), path(0).remote.port(), path(0).encap), (4500, 4500, true));
    assert_eq!((path(1).remote, path(1).encap), ((outside, 14_500).into(), true));
    let nat = |host: usize| net.hosts[host].endpoint.ike_sas().next().expect("an IKE SA").nat;
    assert_eq!((nat(0), nat(1)), ((true, false), (false, true)));
}

#[test]
fn with_mobike_a_moved_mapping_is_announced_although_it_moved_before_anybody_asked() {
    let mut net = pair(26, |host, connection| {
        (connection.mobike, connection.dpd_delay) = (true, 30 * SECOND);
        if host == 1 {
            (connection.remote_addrs, connection.dpd_delay) = (Vec::new(), Duration::ZERO);
        }
    });
    let (outside, shift) = behind_nat(&mut net);
    initiate(&mut net);
    net.run(SECOND);
    shift.set(20_000);
    net.run(31 * SECOND);
    let path = |net: &Net| net.hosts[1].live().next().expect("a child").sa.path.remote;
    assert_eq!(path(&net), (outside, 24_500).into(), "{}", net.hosts[0].log(Level::Debug));
    shift.set(30_000);
    net.run(31 * SECOND);
    assert_eq!(path(&net), (outside, 34_500).into());
    // Nothing has moved since: nothing is announced.
    let sent = net.hosts[1].sent.0;
    net.run(30 * SECOND);
    assert_eq!(net.hosts[1].sent.0, sent + 1);
}

#[test]
fn encap_pretends_a_nat() {
    for pretender in [0, 1] {
        let mut net = pair(24, |host, connection| {
            connection.encap = if host == pretender { Encap::Yes } else { Encap::No };
        });
        initiate(&mut net);
        net.run(SECOND);
        check_up(&net);
        assert!(net.hosts.iter().all(|host| host.live().all(|child| child.sa.path.encap)), "{pretender}");
    }
}

#[test]
fn encap_auto_is_udp_where_both_ends_agree() {
    for (a, b, udp) in [
        (Encap::Auto, Encap::Auto, true),
        (Encap::Auto, Encap::Yes, true),
        (Encap::Yes, Encap::Auto, true),
        (Encap::Auto, Encap::No, false),
        (Encap::No, Encap::Auto, false),
    ] {
        let mut net = pair(27, |host, connection| {
            connection.encap = if host == 0 { a } else { b };
            (connection.rekey_time, connection.over_time) = (600 * SECOND, 60 * SECOND);
        });
        initiate(&mut net);
        net.run(SECOND);
        check_up(&net);
        // The IKE SA and the Child SAs that replace the first ones keep the agreement.
        for rekeyed in [false, true] {
            for host in &net.hosts {
                let paths: Vec<_> = host.live().map(|child| child.sa.path).collect();
                let ports = if udp { (4500, 4500) } else { (500, 500) };
                let seen = paths.iter().map(|path| (path.encap, (path.local.port(), path.remote.port())));
                assert!(seen.clone().all(|seen| seen == (udp, ports)), "{a:?} {b:?} {rekeyed} {paths:?}");
            }
            net.run(900 * SECOND);
        }
        // Only `yes` makes the peer see a NAT.
        let nat = |host: usize| net.hosts[host].endpoint.ike_sas().next().expect("an IKE SA").nat;
        assert_eq!((nat(0), nat(1)), ((false, b == Encap::Yes), (false, a == Encap::Yes)), "{a:?} {b:?}");
    }
}

#[test]
fn encap_auto_finds_a_nat_as_well() {
    let mut net = pair(28, |host, connection| {
        connection.encap = Encap::Auto;
        if host == 1 {
            connection.remote_addrs = Vec::new();
        }
    });
    let (outside, _) = behind_nat(&mut net);
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    let path = |host: usize| net.hosts[host].live().next().expect("a child").sa.path;
    assert_eq!((path(1).remote, path(0).encap, path(1).encap), ((outside, 14_500).into(), true, true));
    let nat = |host: usize| net.hosts[host].endpoint.ike_sas().next().expect("an IKE SA").nat;
    assert_eq!((nat(0), nat(1)), ((true, false), (false, true)));
}

#[test]
fn a_silent_peer_is_given_up_and_tried_again() {
    let mut net = pair(25, |_, connection| connection.keyingtries = 3);
    net.wire = Box::new(|_| Delivery::Lost);
    initiate(&mut net);
    net.run(Duration::from_secs(160));
    assert_eq!((net.hosts[0].sent.0, net.hosts[0].command(1)), (6, None));
    net.run(Duration::from_secs(600));
    assert_eq!(net.hosts[0].sent.0, 18);
    assert!(net.hosts[0].command(1).is_some_and(Result::is_err));
    assert_eq!(net.hosts[0].endpoint.deadline(), None);
}
