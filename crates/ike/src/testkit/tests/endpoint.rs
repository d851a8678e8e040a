//! Stories of whole endpoints: configurations, duplicates, commands, ends.

use super::*;

#[test]
fn sha256_96_truncates_the_icv_and_negotiates_sha256() {
    let truncating = |net: &mut Net, on: [bool; 2]| {
        for (host, on) in on.into_iter().enumerate() {
            let (mine, theirs) = if host == 0 { (1, 2) } else { (2, 1) };
            let mut connection = connection(mine, theirs);
            let child = Arc::make_mut(&mut connection.children[0]);
            child.proposals = vec![ChildProposal::parse(ChildProtocol::Esp, "aes128-sha256").expect("words")];
            child.sha256_96 = on;
            net.load(host, vec![connection]);
        }
        initiate(net);
        net.run(SECOND);
        check_up(net);
        [0, 1].map(|host| net.hosts[host].live().next().expect("a child").sa.suite.integ.expect("a MAC"))
    };
    let [a, b] = truncating(&mut Net::new(31, 2), [true, true]);
    assert_eq!((a.name, a.icv_len, a.key_len), ("sha256_96", 12, 32));
    assert_eq!(a, b);
    // The offer is the same, so that ends of which one truncates agree and only their packets
    // differ.
    let [a, b] = truncating(&mut Net::new(31, 2), [true, false]);
    assert_eq!((a.icv_len, b.icv_len), (12, 16));
}

#[test]
fn start_and_trap_follow_the_configuration() {
    let mut net = Net::new(40, 2);
    net.load(1, vec![connection(2, 1)]);
    let mut a = connection(1, 2);
    let action = |trap, start| StartAction { trap, start };
    let with = |name: &str, action| {
        Arc::new(ChildConfig { start_action: action, ..child(name, "10.1.0.0/16", "10.2.0.0/16") })
    };
    a.children = vec![
        with("started", action(false, true)),
        with("trapped", action(true, false)),
        with("idle", action(false, false)),
    ];
    net.load(0, vec![a.clone()]);
    net.run(SECOND);
    assert_eq!(net.hosts[0].live().map(|one| one.sa.config.name.clone()).collect::<Vec<_>>(), ["started"]);
    assert_eq!(net.hosts[0].traps.len(), 1);
    // The same again changes nothing; a packet brings the trapped one up.
    net.load(0, vec![a.clone()]);
    net.run(SECOND);
    assert_eq!((net.hosts[0].live().count(), net.hosts[0].up().len()), (1, 1));
    let packet = Some((ts("10.1.0.1").resolve(addr(1)), ts("10.2.0.1").resolve(addr(2))));
    let now = net.now;
    net.hosts[0].endpoint.acquire(now, "1-2", "trapped", packet, None);
    net.run(SECOND);
    assert_eq!((net.hosts[0].live().count(), net.hosts[0].up().len()), (2, 1));
    // Without the connection the IKE SA lives on, the trap goes.
    net.load(0, vec![]);
    net.run(SECOND);
    assert_eq!((net.hosts[0].live().count(), net.hosts[0].traps.len()), (2, 0));
}

/// The routing table chooses the source, not the address that is most like that of the peer.
#[test]
fn an_initiator_sends_from_the_address_of_its_route() {
    let sent_from = |routed: Option<&'static str>, local_addrs: Vec<AddrRange>| {
        let mut net = Net::new(47, 2);
        net.hosts[0].addrs = vec![addr(1), addr(3)];
        net.hosts[0].endpoint.look_up_sources(move |_| routed.map(|addr| addr.parse().expect("an address")));
        let local_addrs = local_addrs.into_iter().map(Into::into).collect();
        net.load(0, vec![Connection { local_addrs, ..connection(1, 2) }]);
        let (now, addrs) = (net.now, net.hosts[0].addrs.clone());
        net.hosts[0].endpoint.local_addresses(now, &addrs);
        initiate(&mut net);
        loop {
            match net.hosts[0].endpoint.poll().expect("a datagram") {
                Output::Transmit(transmit) => break transmit.local.ip(),
                _ => continue,
            }
        }
    };
    assert_eq!(sent_from(Some("10.0.0.1"), vec![]), addr(1));
    // Without a route, and with one that is not allowed.
    assert_eq!(sent_from(None, vec![]), addr(3));
    assert_eq!(sent_from(Some("10.0.0.9"), vec![range("10.0.0.0/30")]), addr(3));
    assert_eq!(sent_from(Some("10.0.0.1"), vec![range("10.0.0.3")]), addr(3));
}

#[test]
fn many_requests_share_one_handshake() {
    let mut net = pair(41, |_, _| ());
    let now = net.now;
    for command in 1..=3 {
        net.hosts[0].endpoint.initiate(now, "1-2", None, command).expect("can be started");
    }
    for _ in 0..5 {
        net.hosts[0].endpoint.acquire(now, "1-2", "net", None, None);
    }
    net.run(SECOND);
    assert_eq!((net.hosts[0].up().len(), net.hosts[0].live().count(), net.hosts[1].live().count()), (1, 1, 1));
    assert!((1..=3).all(|command| net.hosts[0].command(command) == Some(&Ok(()))));
}

#[test]
fn commands_that_cannot_be_done_say_why() {
    let mut net = pair(42, |host, connection| {
        if host == 1 {
            connection.remote_addrs = vec![range("10.0.0.0/24").into()];
        }
    });
    let now = net.now;
    let endpoint = &mut net.hosts[0].endpoint;
    assert_eq!(endpoint.initiate(now, "x", None, 1), Err(crate::InitiateError::NoSuchConnection("x".to_owned())));
    assert_eq!(endpoint.initiate(now, "1-2", Some("x"), 1), Err(crate::InitiateError::NoSuchChild("x".to_owned())));
    let range_only = net.hosts[1].endpoint.initiate(now, "2-1", None, 1);
    assert_eq!(range_only, Err(crate::InitiateError::NoRemoteAddress("2-1".to_owned())));
    let unknown = (IkeId(77), ChildId(77));
    let endpoint = &mut net.hosts[0].endpoint;
    assert!(!endpoint.terminate_ike(now, unknown.0, true, 1) && !endpoint.rekey_ike(now, unknown.0, false, 1));
    assert!(!endpoint.terminate_child(now, unknown.1, 1) && !endpoint.rekey_child(now, unknown.1, 1));
}

#[test]
fn the_identity_chooses_among_connections_of_one_address_pair() {
    let mut net = Net::new(43, 2);
    let mut a = connection(1, 2);
    a.local[0].id = IdPattern::Like(id("carol@test"));
    let candidates = ["alice@test", "bob@test", "carol@test"].map(|who| {
        let mut one = connection(2, 1);
        one.name = who.to_owned();
        one.remote_addrs = Vec::new();
        one.remote[0].id = IdPattern::Like(id(who));
        one.proposals = vec![
            IkeProposal::parse(if who.starts_with('a') {
                "aes256-sha256-modp2048"
            } else {
                "aes128gcm16-prfsha256-x25519"
            })
            .expect("a proposal"),
        ];
        one
    });
    net.load(0, vec![a]);
    net.load(1, candidates.to_vec());
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    let name = net.hosts[1].endpoint.ike_sas().next().and_then(|sa| sa.connection.map(|one| one.name.clone()));
    assert_eq!(name.as_deref(), Some("carol@test"));
}

#[test]
fn a_host_that_lost_everything_says_so() {
    let mut net = pair(44, |_, _| ());
    initiate(&mut net);
    net.run(SECOND);
    let settings = Settings::default();
    net.hosts[0].endpoint = Endpoint::new(settings, ChaCha8Rng::seed_from_u64(99));
    net.hosts[0].plane.clear();
    net.hosts[0].events.clear();
    net.load(0, vec![connection(1, 2)]);
    initiate(&mut net);
    net.run(60 * SECOND);
    check_up(&net);
    assert!(net.hosts[1].log(Level::Info).contains("INITIAL_CONTACT"));
}

/// Two connections of host 0 with the same identities, started at once after a restart: an IKE SA
/// of before is up at host 1. `delays`: of IKE_SA_INIT and of later messages of each of the two, in
/// ms.
fn two_connections_at_once(delays: [(u64, u64); 2]) -> Net {
    let sections = |number: u8, other: u8| -> Vec<Arc<ChildConfig>> {
        let side = |number: u8, at: u8| format!("10.{number}.{at}.0/24");
        (0..2).map(|at| Arc::new(child(&format!("c{at}"), &side(number, at), &side(other, at)))).collect()
    };
    let mut net = pair(46, |host, connection| {
        if host == 1 {
            connection.children.extend(sections(2, 1));
        }
    });
    initiate(&mut net);
    net.run(SECOND);
    let old = net.hosts[1].up();
    assert_eq!(old.len(), 1);
    net.hosts[0].endpoint = Endpoint::new(Settings::default(), ChaCha8Rng::seed_from_u64(99));
    net.hosts[0].plane.clear();
    net.hosts[0].events.clear();
    let names = ["1-2-a", "1-2-b"];
    let both = names.iter().zip(sections(1, 2)).map(|(name, section)| Connection {
        name: (*name).to_owned(),
        children: vec![section],
        ..connection(1, 2)
    });
    net.load(0, both.collect());
    let mut first = None;
    net.wire = Box::new(move |transmit| {
        let spi: [u8; 8] = transmit.datagram[..8].try_into().expect("an SPI");
        let (init, later) = delays[usize::from(*first.get_or_insert(spi) != spi)];
        Delivery::After(Duration::from_millis(if transmit.datagram[18] == 34 { init } else { later }))
    });
    let now = net.now;
    for (name, section) in names.into_iter().zip(["c0", "c1"]) {
        net.hosts[0].endpoint.initiate(now, name, Some(section), 10).expect("can be started");
    }
    net.run(10 * SECOND);
    assert!(net.hosts[1].log(Level::Info).contains("INITIAL_CONTACT"), "the IKE SA of before is forgotten");
    assert!(!net.hosts[1].up().contains(&old[0]));
    net
}

#[test]
fn two_connections_with_the_same_identities_that_start_at_once_stay_up() {
    for delays in [
        [(5, 5), (5, 5)],
        // IKE_AUTH of the second one follows that of the first, or precedes it.
        [(5, 5), (40, 5)],
        [(40, 5), (5, 5)],
        // It overtakes that of the first, which has INITIAL_CONTACT.
        [(5, 60), (10, 5)],
    ] {
        let net = two_connections_at_once(delays);
        for host in &net.hosts {
            assert_eq!((host.up().len(), host.live().count()), (2, 2), "{delays:?} {}", host.log(Level::Info));
        }
    }
}

/// INITIAL_CONTACT of an attempt that failed does not keep the next one from sending it.
#[test]
fn a_handshake_that_failed_leaves_initial_contact_to_the_next() {
    let mut net = pair(47, |_, _| ());
    initiate(&mut net);
    net.run(SECOND);
    net.hosts[0].endpoint = Endpoint::new(Settings::default(), ChaCha8Rng::seed_from_u64(99));
    net.hosts[0].plane.clear();
    net.hosts[0].events.clear();
    let mut one = connection(1, 2);
    one.keyingtries = 1;
    net.load(0, vec![one]);
    // IKE_AUTH is lost until the handshake is given up.
    net.wire = Box::new(|transmit| match transmit.datagram[18] {
        35 => Delivery::Lost,
        _ => Delivery::After(Duration::from_millis(5)),
    });
    initiate(&mut net);
    net.run(600 * SECOND);
    assert_eq!((net.hosts[0].up().len(), net.hosts[1].up().len()), (0, 1));
    net.hosts[0].events.clear();
    net.wire = Box::new(|_| Delivery::After(Duration::from_millis(5)));
    initiate(&mut net);
    net.run(60 * SECOND);
    check_up(&net);
    assert!(net.hosts[1].log(Level::Info).contains("INITIAL_CONTACT"));
}

#[test]
fn uniqueness() {
    for (unique, kept) in [(Unique::Never, 2), (Unique::No, 2), (Unique::Replace, 1), (Unique::Keep, 1)] {
        let mut net = Net::new(45, 3);
        let who = |number: u8, unique| {
            let mut one = connection(number, 2);
            one.unique = unique;
            one.local[0].id = IdPattern::Like(id("same@test"));
            one.children = connection(1, 2).children;
            one
        };
        net.load(0, vec![who(1, Unique::Never)]);
        net.load(2, vec![who(3, Unique::Never)]);
        let mut b = connection(2, 1);
        b.remote_addrs = Vec::new();
        b.remote[0].id = IdPattern::Like(id("same@test"));
        b.unique = unique;
        net.load(1, vec![b]);
        initiate(&mut net);
        net.run(SECOND);
        let now = net.now;
        net.hosts[2].endpoint.initiate(now, "3-2", Some("net"), 2).expect("can be started");
        net.run(60 * SECOND);
        assert_eq!(net.hosts[1].up().len(), kept, "{unique:?}");
        assert_eq!(net.hosts[2].command(2).is_some_and(Result::is_ok), unique != Unique::Keep, "{unique:?}");
    }
}

/// Each of many IKE SAs of a client is to end when the next one is up.
#[test]
fn duplicates_that_are_to_end_are_bounded() {
    const TIMES: usize = 12;
    let mut net = Net::new(48, 2);
    let one = |number: usize| Connection {
        name: format!("1-2-{number}"),
        unique: Unique::Never,
        children: vec![],
        ..connection(1, 2)
    };
    net.load(0, (0..TIMES).map(one).collect());
    net.load(1, vec![Connection { unique: Unique::Replace, ..connection(2, 1) }]);
    for number in 0..TIMES {
        let now = net.now;
        net.hosts[0].endpoint.initiate(now, &format!("1-2-{number}"), None, 10).expect("can be started");
        net.run(Duration::from_millis(100));
    }
    let retiring = |net: &Net| net.hosts[1].endpoint.tables().iter().find(|(name, _)| *name == "retiring").map(|t| t.1);
    assert_eq!((net.hosts[1].up().len(), retiring(&net)), (TIMES, Some(TIMES - 1)));
    net.run(60 * SECOND);
    assert_eq!((net.hosts[1].up().len(), retiring(&net)), (1, Some(0)));
}

#[test]
fn an_ike_sa_is_rekeyed_authenticated_anew_and_ended_by_commands() {
    let mut net = pair(46, |_, _| ());
    initiate(&mut net);
    net.run(SECOND);
    let (ike, old) = (net.hosts[0].up()[0], net.hosts[0].live().next().expect("a child").sa.id);
    let now = net.now;
    assert!(net.hosts[0].endpoint.rekey_ike(now, ike, false, 2));
    net.run(5 * SECOND);
    assert_eq!(net.hosts[0].up(), [ike], "the name stays");
    assert!(net.hosts[0].endpoint.rekey_child(net.now, old, 3));
    net.run(5 * SECOND);
    let new = net.hosts[0].live().next().expect("a child").sa.id;
    assert!(
        new != old && net.hosts[0].endpoint.ike_of(new) == Some(ike) && net.hosts[0].endpoint.ike_of(old).is_none()
    );
    let now = net.now;
    assert!(net.hosts[0].endpoint.rekey_ike(now, ike, true, 4));
    net.run(30 * SECOND);
    check_up(&net);
    let again = net.hosts[0].up()[0];
    assert_ne!(again, ike);
    let now = net.now;
    let theirs = net.hosts[1].up()[0];
    assert!(net.hosts[1].endpoint.terminate_ike(now, theirs, false, 5));
    net.run(60 * SECOND);
    assert!(net.hosts.iter().all(|host| host.up().is_empty() && host.live().count() == 0));
    for (host, command) in [(0, 2), (0, 3), (0, 4), (1, 5)] {
        assert_eq!(net.hosts[host].command(command), Some(&Ok(())), "{command}");
    }
}

#[test]
fn shutdown_leaves_nothing_behind() {
    let mut net = pair(47, |_, _| ());
    initiate(&mut net);
    net.run(SECOND);
    let now = net.now;
    net.hosts[0].endpoint.shutdown(now);
    net.run(60 * SECOND);
    for host in &net.hosts {
        assert_eq!((host.endpoint.ike_sa_count(), host.live().count()), (0, 0));
    }
    assert_eq!(net.hosts[0].endpoint.deadline(), None);
    assert!(net.hosts[0].endpoint.initiate(net.now, "1-2", None, 9).is_err(), "nothing is loaded any more");
}

#[test]
fn mobike_takes_the_addresses_along() {
    let mut net = pair(48, |host, connection| {
        connection.mobike = true;
        if host == 0 {
            connection.local_addrs = Vec::new();
        } else {
            connection.remote_addrs = Vec::new();
        }
    });
    let second = IpAddr::from([10, 0, 1, 1]);
    net.hosts[0].addrs.push(second);
    let now = net.now;
    net.hosts[0].endpoint.local_addresses(now, &[addr(1), second]);
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    assert_eq!((net.hosts[0].sent.0, net.hosts[1].sent.0), (2, 2), "the addresses went along in IKE_AUTH");
    assert_eq!(net.hosts[0].live().next().expect("a child").sa.path.remote.port(), 4500);
    net.hosts[0].addrs = vec![second];
    let now = net.now;
    net.hosts[0].endpoint.local_addresses(now, &[second]);
    net.run(10 * SECOND);
    check_up(&net);
    assert_eq!(net.hosts[1].live().next().expect("a child").sa.path.remote.ip(), second);
}

/// `dynamic` is the outer address: after a move another one.
#[test]
fn selectors_that_are_the_outer_address_follow_it() {
    for mode in [ChildMode::Tunnel, ChildMode::Transport] {
        let mut net = pair(52, |host, connection| {
            connection.mobike = true;
            let (local, remote) = if mode == ChildMode::Transport {
                ("dynamic", "dynamic")
            } else if host == 0 {
                ("dynamic", "10.2.0.0/16")
            } else {
                ("10.2.0.0/16", "dynamic")
            };
            connection.children = vec![Arc::new(ChildConfig { mode, ..child("net", local, remote) })];
            let any = if host == 0 { &mut connection.local_addrs } else { &mut connection.remote_addrs };
            any.clear();
        });
        initiate(&mut net);
        net.run(SECOND);
        check_up(&net);
        let second = IpAddr::from([10, 0, 1, 1]);
        net.hosts[0].addrs = vec![second];
        let now = net.now;
        net.hosts[0].endpoint.local_addresses(now, &[second]);
        net.run(10 * SECOND);
        check_up(&net);
        let own = |host: usize| {
            let sa = &net.hosts[host].live().next().expect("a child").sa;
            if host == 0 { sa.local_ts.clone() } else { sa.remote_ts.clone() }
        };
        assert_eq!((own(0)[0].addrs, own(1)[0].addrs), (range("10.0.1.1"), range("10.0.1.1")));
        // The same address again makes nothing new.
        let ups = net.hosts[0].count("child_up");
        let now = net.now;
        net.hosts[0].endpoint.local_addresses(now, &[second, IpAddr::from([10, 0, 1, 2])]);
        net.run(10 * SECOND);
        assert_eq!(net.hosts[0].count("child_up"), ups);
    }
}

#[test]
fn a_cancelled_handshake_tells_who_waits() {
    let mut net = pair(49, |_, _| ());
    net.hosts[0].hold = true;
    initiate(&mut net);
    net.run(SECOND);
    assert_eq!(net.hosts[0].held.len(), 1);
    let ike = net.hosts[0].endpoint.ike_sas().next().expect("a handshake").id;
    let now = net.now;
    assert!(net.hosts[0].endpoint.terminate_ike(now, ike, false, 2));
    net.run(SECOND);
    assert!(net.hosts[0].held.is_empty(), "the question is withdrawn");
    assert!(net.hosts[0].command(1).is_some_and(Result::is_err) && net.hosts[0].command(2) == Some(&Ok(())));
    net.run(60 * SECOND);
    assert!(net.hosts.iter().all(|host| host.endpoint.ike_sa_count() == 0));
}

#[test]
fn a_client_hears_how_long_its_authentication_lasts() {
    let mut net = eap_pair(50);
    let mut b = connection(2, 1);
    signatures(&mut b);
    b.remote[0].method = AuthMethod::Eap(None);
    b.reauth_time = 3600 * SECOND;
    net.load(1, vec![b]);
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    let due = net.hosts[0].endpoint.ike_sas().next().and_then(|sa| sa.reauth_at).expect("a time");
    assert!(due > net.now + 3000 * SECOND && due < net.now + 3600 * SECOND);
}

#[test]
fn a_question_of_a_responder_is_withdrawn_with_its_handshake() {
    let mut net = pair(51, |_, _| ());
    net.hosts[1].hold = true;
    initiate(&mut net);
    net.run(SECOND);
    assert_eq!(net.hosts[1].held.len(), 1);
    let now = net.now;
    net.hosts[1].endpoint.shutdown(now);
    net.run(SECOND);
    assert!(net.hosts[1].held.is_empty() && net.hosts[1].endpoint.ike_sa_count() == 0);
    // There is no response in time either.
    let mut net = pair(52, |_, _| ());
    net.hosts[1].hold = true;
    initiate(&mut net);
    net.run(60 * SECOND);
    assert!(net.hosts[1].held.is_empty() && net.hosts[1].endpoint.ike_sa_count() == 0);
}

/// Host 1 installs trap policies when the peer ends a Child SA; host 0 initiates.
fn trapping(seed: u64) -> Net {
    pair(seed, |host, connection| {
        let child = Arc::make_mut(&mut connection.children[0]);
        (child.close_action, child.dpd_action) =
            if host == 1 { (Action::Trap, Action::Trap) } else { (Action::Clear, Action::Clear) };
    })
}

#[test]
fn what_the_end_of_a_child_left_behind_goes_with_its_connection() {
    let mut net = trapping(53);
    initiate(&mut net);
    net.run(SECOND);
    let (now, ike) = (net.now, net.hosts[0].up()[0]);
    net.hosts[0].endpoint.terminate_ike(now, ike, false, 2);
    net.run(SECOND);
    assert_eq!(net.hosts[1].traps.len(), 1);
    // Another configuration of the same keeps it, none does not.
    let mut b = net.hosts[1].endpoint.connections()[0].as_ref().clone();
    b.rekey_time = 600 * SECOND;
    net.load(1, vec![b]);
    assert_eq!(net.hosts[1].traps.len(), 1);
    net.load(1, Vec::new());
    assert!(net.hosts[1].traps.is_empty());
}

#[test]
fn the_end_of_an_unloaded_connection_sets_nothing_in_motion() {
    for action in [Action::Trap, Action::Restart] {
        let mut net = pair(54, |host, connection| {
            if host == 1 {
                Arc::make_mut(&mut connection.children[0]).close_action = action;
            }
        });
        initiate(&mut net);
        net.run(SECOND);
        net.load(1, Vec::new());
        let (now, ike) = (net.now, net.hosts[0].up()[0]);
        net.hosts[0].endpoint.terminate_ike(now, ike, false, 2);
        net.run(600 * SECOND);
        assert!(net.hosts[1].traps.is_empty() && net.hosts[1].endpoint.ike_sa_count() == 0, "{action:?}");
    }
}

#[test]
fn a_child_that_is_deleted_while_it_is_rekeyed_here_leaves_its_trap() {
    let mut net = trapping(55);
    initiate(&mut net);
    net.run(SECOND);
    let (now, ids) = (net.now, [0, 1].map(|host| net.hosts[host].live().next().expect("a child").sa.id));
    net.hosts[0].endpoint.terminate_child(now, ids[0], 2);
    net.hosts[1].endpoint.rekey_child(now, ids[1], 3);
    net.run(10 * SECOND);
    assert_eq!((net.hosts[1].live().count(), net.hosts[1].traps.len()), (0, 1), "{}", net.hosts[1].log(Level::Trace));
}

#[test]
fn who_terminates_what_the_peer_just_rekeyed_ends_its_successor() {
    let mut net = pair(56, |_, _| ());
    initiate(&mut net);
    net.run(SECOND);
    let (now, ids) = (net.now, [0, 1].map(|host| net.hosts[host].live().next().expect("a child").sa.id));
    // The answer to the rekeying is lost once.
    let mut left = 1;
    net.wire = Box::new(move |transmit| {
        let lost = transmit.local.ip() == addr(2) && std::mem::replace(&mut left, 0) > 0;
        if lost { Delivery::Lost } else { Delivery::After(Duration::from_millis(5)) }
    });
    net.hosts[0].endpoint.rekey_child(now, ids[0], 2);
    net.run(SECOND);
    let now = net.now;
    assert!(net.hosts[1].endpoint.terminate_child(now, ids[1], 3));
    assert!(net.hosts[1].plane[&ids[1]].outbound, "its peer may not have the successor yet");
    net.run(60 * SECOND);
    assert!(net.hosts.iter().all(|host| host.live().count() == 0 && host.up().len() == 1));
}

#[test]
fn authenticating_anew_is_no_end_and_happens_once() {
    let mut net = pair(57, |host, connection| {
        if host == 1 {
            Arc::make_mut(&mut connection.children[0]).close_action = Action::Restart;
        }
    });
    initiate(&mut net);
    net.run(SECOND);
    let (now, ike) = (net.now, net.hosts[0].up()[0]);
    for command in 2..5 {
        net.hosts[0].endpoint.rekey_ike(now, ike, true, command);
    }
    net.run(60 * SECOND);
    assert!(net.hosts.iter().all(|host| host.up().len() == 1 && host.live().count() == 1));
    assert!((2..5).all(|command| net.hosts[0].command(command) == Some(&Ok(()))));
}

#[test]
fn a_child_may_need_more_key_exchanges_than_its_ike_sa() {
    let mut net = pair(58, |_, connection| {
        let mut second = child("second", "10.0.0.0/8", "10.0.0.0/8");
        let words = "aes128gcm16-x25519-ke1_mlkem768";
        second.proposals = vec![ChildProposal::parse(ChildProtocol::Esp, words).expect("a proposal")];
        connection.children.push(Arc::new(second));
    });
    initiate(&mut net);
    net.run(SECOND);
    let now = net.now;
    net.hosts[0].endpoint.initiate(now, "1-2", Some("second"), 2).expect("can be started");
    net.run(SECOND);
    assert_eq!(net.hosts[0].command(2), Some(&Ok(())), "{}", net.hosts[1].log(Level::Warn));
    assert!(net.hosts.iter().all(|host| host.live().count() == 2));
}

#[test]
fn a_dead_peer_is_not_called_twice() {
    let mut net = pair(59, |host, connection| {
        connection.keyingtries = 0;
        connection.dpd_delay = 30 * SECOND;
        if host == 0 {
            Arc::make_mut(&mut connection.children[0]).dpd_action = Action::Restart;
        }
    });
    initiate(&mut net);
    net.run(SECOND);
    // It must reauthenticate while all messages are lost.
    net.wire = Box::new(|_| Delivery::Lost);
    let (now, ike) = (net.now, net.hosts[0].up()[0]);
    net.hosts[0].endpoint.rekey_ike(now, ike, true, 2);
    net.run(400 * SECOND);
    assert!(net.hosts[0].up().is_empty());
    net.wire = Box::new(|_| Delivery::After(Duration::from_millis(5)));
    net.run(600 * SECOND);
    assert_eq!((net.hosts[0].up().len(), net.hosts[0].live().count(), net.hosts[1].live().count()), (1, 1, 1));
}

#[test]
fn a_child_that_moves_to_the_next_ike_sa_is_deleted_there() {
    let mut net = pair(60, |_, connection| {
        connection.proposals =
            vec![IkeProposal::parse("aes128gcm16-prfsha256-x25519-ke1_mlkem768").expect("a proposal")];
    });
    initiate(&mut net);
    net.run(SECOND);
    let (now, ike, child) = (net.now, net.hosts[0].up()[0], net.hosts[1].live().next().expect("a child").sa.id);
    net.hosts[0].endpoint.rekey_ike(now, ike, false, 2);
    // CREATE_CHILD_SA is answered, IKE_FOLLOWUP_KE in flight.
    net.run(Duration::from_millis(7));
    let now = net.now;
    assert!(net.hosts[1].endpoint.terminate_child(now, child, 3));
    net.run(60 * SECOND);
    assert_eq!((net.hosts[0].command(2), net.hosts[1].command(3)), (Some(&Ok(())), Some(&Ok(()))));
    for host in &net.hosts {
        assert_eq!((host.live().count(), host.up().len()), (0, 1));
        assert!(host.endpoint.ike_sas().all(|sa| sa.children.is_empty()));
    }
}

#[test]
fn an_ike_sa_that_waits_for_its_deletion_sets_nothing_in_motion() {
    let mut net = pair(61, |host, connection| {
        if host == 0 {
            Arc::make_mut(&mut connection.children[0]).dpd_action = Action::Restart;
        }
    });
    initiate(&mut net);
    net.run(SECOND);
    // Every CREATE_CHILD_SA is lost, so the rekey blocks the Delete.
    net.wire =
        Box::new(|transmit| if transmit.datagram[18] == 36 { Delivery::Lost } else { Delivery::After(SECOND / 100) });
    let (now, ike) = (net.now, net.hosts[0].up()[0]);
    net.hosts[0].endpoint.rekey_ike(now, ike, false, 2);
    net.hosts[0].endpoint.rekey_ike(now, ike, true, 3);
    net.run(600 * SECOND);
    assert_eq!((net.hosts[0].up().len(), net.hosts[0].live().count()), (1, 1));
}

#[test]
fn both_ends_authenticate_anew_but_not_at_once() {
    let mut net =
        pair(62, |_, connection| (connection.reauth_time, connection.over_time) = (100 * SECOND, 20 * SECOND));
    initiate(&mut net);
    net.run(1000 * SECOND);
    assert!(net.hosts.iter().all(|host| host.up().len() == 1 && host.live().count() == 1));
    assert_eq!(net.hosts[1].count("ike_reauthentication"), 0);
}

/// A responder does not know yet which connection it will be.
#[test]
fn certificates_are_requested_for_every_candidate() {
    let mut net = Net::new(94, 2);
    let mut second = connection(2, 1);
    second.name = "certificates".to_owned();
    second.remote[0].method = AuthMethod::PublicKey(Vec::new());
    net.load(1, vec![connection(2, 1), second]);
    net.load(0, vec![connection(1, 2)]);
    let requested = std::rc::Rc::new(std::cell::Cell::new(false));
    let seen = requested.clone();
    net.wire = Box::new(move |transmit| {
        let response = transmit.datagram[18] == 34 && transmit.datagram[19] & 0x20 != 0;
        // The hash of the authority of the testkit, in a CERTREQ payload.
        seen.set(seen.get() || (response && transmit.datagram.windows(20).any(|hash| hash == [7; 20])));
        Delivery::After(Duration::from_millis(5))
    });
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    assert!(requested.get());
}

/// A state that a defect would cause ends the handshake at once: it does not wait for its timeout.
#[test]
fn a_credential_response_without_a_request_ends_the_handshake() {
    const IKE_SA_INIT: u8 = 34;
    const IKE_AUTH: u8 = 35;
    let unrequested = |net: &mut Net, host: usize, ike: IkeId| {
        let (now, endpoint) = (net.now, &mut net.hosts[host].endpoint);
        let request_id = endpoint.forge_credential_request(ike);
        endpoint.handle_credentials(now, request_id, CredentialResponse::Ppk(None));
        net.run(SECOND);
        assert_eq!(net.hosts[host].count("ike_internal_errors"), 1, "{}", net.hosts[host].log(Level::Trace));
        assert!(
            net.hosts[host].log(Level::Error).contains("internal error: a "),
            "{}",
            net.hosts[host].log(Level::Trace)
        );
    };
    let first = |net: &Net, host: usize| net.hosts[host].endpoint.ike_sas().next().map(|sa| sa.id);
    // The initiator waits for the response to IKE_SA_INIT, and to IKE_AUTH; the responder for
    // IKE_AUTH.
    for (host, exchange) in [(0, IKE_SA_INIT), (0, IKE_AUTH), (1, IKE_AUTH)] {
        let mut net = pair(60, |_, _| ());
        net.wire =
            Box::new(
                move |transmit| {
                    if transmit.datagram[18] == exchange { Delivery::Lost } else { Delivery::After(SECOND / 200) }
                },
            );
        initiate(&mut net);
        net.run(SECOND);
        let ike = first(&net, host).expect("a handshake");
        unrequested(&mut net, host, ike);
        assert_eq!(first(&net, host), None, "it has ended");
        if host == 0 {
            let failed = net.hosts[0].command(1);
            assert!(matches!(failed, Some(Err(reason)) if reason.as_str().contains("internal error")), "{failed:?}");
        }
    }
    // An IKE SA that is up stays so.
    let mut net = pair(61, |_, _| ());
    initiate(&mut net);
    net.run(SECOND);
    let ike = first(&net, 0).expect("an IKE SA");
    unrequested(&mut net, 0, ike);
    check_up(&net);
}
