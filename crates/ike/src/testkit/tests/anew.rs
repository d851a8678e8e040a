//! Scenarios of replaced IKE SAs, and of the protection of packets after an unexpected end.

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Three sections, all up. What host 0 does when one ends unasked is up to `action`.
fn three(seed: u64, action: Action) -> Net {
    let mut net = pair(seed, |host, connection| {
        let section = |at: u8| {
            let (here, there) = (format!("10.{}.{at}.0/24", 1 + host), format!("10.{}.{at}.0/24", 2 - host));
            let mut one = child(&format!("c{at}"), &here, &there);
            if host == 0 {
                (one.dpd_action, one.close_action) = (action, action);
            }
            Arc::new(one)
        };
        connection.children = (0..3).map(section).collect();
    });
    for at in 0..3 {
        let now = net.now;
        net.hosts[0].endpoint.initiate(now, "1-2", Some(&format!("c{at}")), at).expect("can be started");
        net.run(SECOND);
    }
    net
}

fn sections(host: &Host) -> BTreeSet<&str> {
    host.live().filter(|child| child.outbound).map(|child| &child.sa.config.name[..]).collect()
}

fn authenticate_anew(net: &mut Net) -> IkeId {
    let (now, ike) = (net.now, net.hosts[0].up()[0]);
    assert!(net.hosts[0].endpoint.rekey_ike(now, ike, true, 9));
    ike
}

/// Reasons for which Child SAs went down.
fn reasons(host: &Host) -> Vec<&str> {
    let mut reasons = Vec::new();
    for event in &host.events {
        if let Event::ChildDown(_, reason) = event {
            reasons.push(&reason[..]);
        }
    }
    reasons
}

#[test]
fn the_old_ike_sa_ends_when_every_child_is_on_the_new_one() {
    let mut net = three(70, Action::Clear);
    // The answers to CREATE_CHILD_SA are lost at first.
    let mut lost = 0;
    net.wire = Box::new(move |transmit| {
        let answer = transmit.datagram[18] == 36 && transmit.datagram[19] & 0x20 != 0;
        lost += u32::from(answer);
        if answer && lost % 2 == 1 { Delivery::Lost } else { Delivery::After(5 * MS) }
    });
    let old = authenticate_anew(&mut net);
    for _ in 0..20_000 {
        net.run(MS);
        for host in &net.hosts {
            assert_eq!(sections(host).len(), 3, "{}", host.log(Level::Debug));
        }
    }
    assert_eq!(net.hosts[0].command(9), Some(&Ok(())));
    for host in &net.hosts {
        assert_eq!((host.up().len(), host.live().count()), (1, 3));
    }
    assert_ne!(net.hosts[0].up(), [old]);
}

#[test]
fn what_the_new_ike_sa_lacks_stays_trapped() {
    let mut net = three(71, Action::Trap);
    let mut b = connection(2, 1);
    b.children =
        vec![Arc::new(child("c0", "10.2.0.0/24", "10.1.0.0/24")), Arc::new(child("c1", "10.2.1.0/24", "10.1.1.0/24"))];
    net.load(1, vec![b]);
    authenticate_anew(&mut net);
    net.run(5 * SECOND);
    assert_eq!(sections(&net.hosts[0]), ["c0", "c1"].into());
    assert_eq!(net.hosts[0].traps, [("1-2".to_owned(), "c2".to_owned())].into());
}

#[test]
fn an_ike_sa_that_waits_for_its_deletion_does_not_blame_the_peer() {
    let mut net = three(72, Action::Trap);
    // No rekey succeeds, so it blocks the Delete until the old IKE SA times out.
    let (now, ike) = (net.now, net.hosts[0].up()[0]);
    let mut first = true;
    net.wire = Box::new(move |transmit| {
        let rekeys = transmit.datagram[18] == 36 && std::mem::take(&mut first);
        let again = transmit.datagram[18] == 36 && transmit.datagram[20..24] == [0, 0, 0, 4];
        if rekeys || again { Delivery::Lost } else { Delivery::After(5 * MS) }
    });
    net.hosts[0].endpoint.rekey_ike(now, ike, false, 8);
    authenticate_anew(&mut net);
    net.run(600 * SECOND);
    assert_eq!((net.hosts[0].up().len(), sections(&net.hosts[0]).len()), (1, 3), "{}", net.hosts[0].log(Level::Debug));
    assert!(net.hosts[0].log(Level::Info).contains("does not answer"));
    assert_eq!((reasons(&net.hosts[0]), net.hosts[0].traps.len()), (vec![""; 3], 0));
}

#[test]
fn an_end_that_nobody_wanted_leaves_a_trap() {
    let is_trapped =
        |net: &Net, count| assert_eq!(net.hosts[0].traps.len(), count, "{}", net.hosts[0].log(Level::Info));
    let mut net = three(73, Action::Trap);
    let (now, ids) = (net.now, net.hosts[0].live().map(|child| child.sa.id).collect::<Vec<_>>());
    net.hosts[0].endpoint.terminate_child(now, ids[0], 8);
    net.run(SECOND);
    is_trapped(&net, 0);
    let now = net.now;
    net.hosts[0].endpoint.child_expired(now, ids[1], true);
    net.run(SECOND);
    is_trapped(&net, 1);
    let (now, ike) = (net.now, net.hosts[0].up()[0]);
    net.hosts[0].endpoint.terminate_ike(now, ike, false, 10);
    net.run(SECOND);
    is_trapped(&net, 1);
    // A peer that starts from nothing, by INITIAL_CONTACT.
    let mut net = three(74, Action::Trap);
    net.hosts[1].endpoint = Endpoint::new(Settings::default(), ChaCha8Rng::seed_from_u64(99));
    net.hosts[1].plane.clear();
    let mut b = connection(2, 1);
    b.children = vec![Arc::new(child("c1", "10.2.1.0/24", "10.1.1.0/24"))];
    net.load(1, vec![b]);
    let now = net.now;
    net.hosts[1].endpoint.initiate(now, "2-1", Some("c1"), 1).expect("can be started");
    net.run(SECOND);
    assert_eq!(sections(&net.hosts[0]), ["c1"].into());
    is_trapped(&net, 2);
}

#[test]
fn who_wants_a_child_to_end_gets_that_when_the_peer_is_faster() {
    let mut net = three(75, Action::Restart);
    let ids: Vec<ChildId> = net.hosts[0].live().map(|child| child.sa.id).collect();
    let twin = net.hosts[1].live().find(|child| child.sa.config.name == "c0").expect("a child").sa.id;
    // Something else is out, so the Delete waits.
    let mut first = true;
    net.wire = Box::new(move |_| if std::mem::take(&mut first) { Delivery::Lost } else { Delivery::After(5 * MS) });
    let now = net.now;
    net.hosts[0].endpoint.rekey_child(now, ids[1], 7);
    net.pump();
    net.hosts[0].endpoint.terminate_child(now, ids[0], 8);
    net.hosts[1].endpoint.terminate_child(now, twin, 8);
    net.run(60 * SECOND);
    assert_eq!((net.hosts[0].command(8), net.hosts[1].command(8)), (Some(&Ok(())), Some(&Ok(()))));
    assert_eq!(reasons(&net.hosts[0]), [""]);
    assert!(net.hosts.iter().all(|host| sections(host) == ["c1", "c2"].into()));
}

#[test]
fn a_client_keeps_its_virtual_address() {
    for unique in [Unique::Never, Unique::No, Unique::Replace] {
        let mut net = pair(76, |host, connection| {
            connection.unique = unique;
            if host == 0 {
                connection.vips = vec![IpAddr::from([0, 0, 0, 0])];
                connection.children = vec![Arc::new(child("net", "dynamic", "10.2.0.0/16"))];
            } else {
                connection.pools = vec!["pool".to_owned()];
                connection.children = vec![Arc::new(child("net", "10.2.0.0/16", "dynamic"))];
            }
        });
        let pool = PoolConfig { name: "pool".to_owned(), addrs: range("10.99.0.0/24"), attributes: Vec::new() };
        net.hosts[1].endpoint.load_pools(vec![pool]);
        initiate(&mut net);
        net.run(SECOND);
        let had = net.hosts[0].virtuals.clone();
        assert_eq!(had.len(), 1);
        let online = |net: &Net| net.hosts[1].endpoint.pools().get("pool").expect("a pool").online();
        for _ in 0..2 {
            let old = authenticate_anew(&mut net);
            net.run(30 * SECOND);
            assert_ne!(net.hosts[0].up(), [old]);
            check_up(&net);
            // It never went away, and the gateway lends one.
            assert_eq!((&net.hosts[0].virtuals, online(&net)), (&had, 1), "{unique:?}");
            assert_eq!(net.hosts[1].live().next().expect("a child").sa.remote_ts[0].addrs, range("10.99.0.1"));
        }
        let (now, ike) = (net.now, net.hosts[0].up()[0]);
        net.hosts[0].endpoint.terminate_ike(now, ike, false, 2);
        net.run(SECOND);
        assert_eq!((net.hosts[0].virtuals.len(), online(&net)), (0, 0));
    }
}

#[test]
fn a_deleted_ike_sa_is_listed_no_more_and_answers_all_the_same() {
    let mut net = pair(77, |_, _| ());
    initiate(&mut net);
    net.run(SECOND);
    let (now, ike, there) = (net.now, net.hosts[0].up()[0], net.hosts[1].up()[0]);
    // The answer to the Delete is lost.
    let mut lost = false;
    net.wire = Box::new(move |transmit| {
        let answer = transmit.datagram[19] & 0x20 != 0;
        if answer && !std::mem::replace(&mut lost, true) { Delivery::Lost } else { Delivery::After(5 * MS) }
    });
    net.hosts[0].endpoint.terminate_ike(now, ike, false, 2);
    net.run(10 * MS);
    assert_eq!(net.hosts[1].endpoint.ike_sas().count(), 0);
    assert!(net.hosts[1].endpoint.ike_sa(there).is_none());
    // Ending an ended IKE SA succeeds.
    let now = net.now;
    assert!(net.hosts[1].endpoint.terminate_ike(now, there, false, 3));
    net.run(8 * SECOND);
    assert_eq!((net.hosts[0].command(2), net.hosts[1].command(3)), (Some(&Ok(())), Some(&Ok(()))));
    assert_eq!(net.hosts[0].endpoint.ike_sa_count(), 0);
    assert!(!net.hosts[0].log(Level::Info).contains("does not answer"));
    net.run(10 * SECOND);
    assert_eq!(net.hosts[1].endpoint.ike_sa_count(), 0);
}

#[test]
fn a_child_sa_that_comes_up_while_its_ike_sa_is_replaced_is_on_the_new_one() {
    let mut net = three(94, Action::Clear);
    let child = net.hosts[0].live().find(|child| child.sa.config.name == "c2").expect("it is up").sa.id;
    let now = net.now;
    assert!(net.hosts[0].endpoint.terminate_child(now, child, 5));
    net.run(SECOND);
    assert_eq!(sections(&net.hosts[0]), BTreeSet::from(["c0", "c1"]));
    net.wire = Box::new(|_| Delivery::After(20 * MS));
    let old = authenticate_anew(&mut net);
    net.run(50 * MS);
    let now = net.now;
    net.hosts[0].endpoint.initiate(now, "1-2", Some("c2"), 6).expect("can be started");
    net.run(45 * MS);
    assert_eq!((net.hosts[0].command(6), net.hosts[0].up().contains(&old)), (Some(&Ok(())), true), "on the old one");
    net.run(20 * SECOND);
    assert!(!net.hosts[0].up().contains(&old));
    for host in &net.hosts {
        assert_eq!(sections(host), BTreeSet::from(["c0", "c1", "c2"]));
    }
}

#[test]
fn a_request_of_an_ike_sa_that_is_replaced_continues_on_the_new_one() {
    // With and without another exchange that it waits for.
    for waits in [false, true] {
        let mut net = three(95, Action::Clear);
        let ids: Vec<ChildId> = net.hosts[0].live().map(|child| child.sa.id).collect();
        let now = net.now;
        assert!(net.hosts[0].endpoint.terminate_child(now, ids[2], 5));
        net.run(SECOND);
        assert_eq!(sections(&net.hosts[0]), BTreeSet::from(["c0", "c1"]));
        let old = net.hosts[0].up()[0];
        let spi = net.hosts[0].endpoint.ike_sa(old).expect("it is up").spis.initiator;
        let mut lost = 0;
        net.wire = Box::new(move |transmit| {
            let creates = transmit.datagram[18] == 36 && transmit.datagram[..8] == spi.0;
            lost += u32::from(creates);
            if creates && lost <= 3 { Delivery::Lost } else { Delivery::After(20 * MS) }
        });
        authenticate_anew(&mut net);
        net.run(50 * MS);
        let now = net.now;
        if waits {
            net.hosts[0].endpoint.rekey_child(now, ids[0], 7);
        }
        net.hosts[0].endpoint.initiate(now, "1-2", Some("c2"), 6).expect("can be started");
        net.run(SECOND);
        assert_eq!(net.hosts[0].command(6), Some(&Ok(())), "{}", net.hosts[0].log(Level::Debug));
        // Its Delete waits for the response to the request before.
        net.run(60 * SECOND);
        assert!(!net.hosts[0].up().contains(&old));
        for host in &net.hosts {
            assert_eq!((sections(host), host.up().len()), (BTreeSet::from(["c0", "c1", "c2"]), 1), "{waits}");
        }
    }
}

#[test]
fn child_sas_that_come_up_one_after_the_other_are_all_on_the_new_ike_sa() {
    let mut net = three(96, Action::Clear);
    let ids: Vec<ChildId> = net.hosts[0].live().map(|child| child.sa.id).collect();
    for id in &ids[1..] {
        let now = net.now;
        assert!(net.hosts[0].endpoint.terminate_child(now, *id, 5));
        net.run(SECOND);
    }
    let old = net.hosts[0].up()[0];
    let spi = net.hosts[0].endpoint.ike_sa(old).expect("it is up").spis.initiator;
    // c1 is up on the old one before the new one is, and c2 while the new one requests c1.
    net.wire = Box::new(move |transmit| {
        let is_slow = transmit.datagram[18] == 36 && transmit.datagram[..8] != spi.0;
        Delivery::After(if is_slow { 500 * MS } else { 20 * MS })
    });
    authenticate_anew(&mut net);
    net.run(10 * MS);
    for section in ["c1", "c2"] {
        let now = net.now;
        net.hosts[0].endpoint.initiate(now, "1-2", Some(section), 6).expect("can be started");
    }
    net.run(20 * SECOND);
    assert!(!net.hosts[0].up().contains(&old));
    for host in &net.hosts {
        assert_eq!((sections(host), host.up().len()), (BTreeSet::from(["c0", "c1", "c2"]), 1));
    }
}

#[test]
fn a_client_with_a_virtual_address_is_told_its_lifetime() {
    let mut net = pair(93, |host, connection| {
        if host == 0 {
            connection.vips = vec![IpAddr::from([0, 0, 0, 0])];
            connection.children = vec![Arc::new(child("net", "dynamic", "10.2.0.0/16"))];
        } else {
            connection.pools = vec!["pool".to_owned()];
            connection.children = vec![Arc::new(child("net", "10.2.0.0/16", "dynamic"))];
            (connection.reauth_time, connection.over_time) = (15 * SECOND, 5 * SECOND);
        }
    });
    let pool = PoolConfig { name: "pool".to_owned(), addrs: range("10.99.0.0/24"), attributes: Vec::new() };
    net.hosts[1].endpoint.load_pools(vec![pool]);
    initiate(&mut net);
    net.run(SECOND);
    check_up(&net);
    assert!(net.hosts[0].log(Level::Info).contains("within 15 s"));
    for _ in 0..20 {
        net.run(5 * SECOND);
        assert_eq!((net.hosts[0].live().count(), net.hosts[0].virtuals.len()), (1, 1));
    }
}
