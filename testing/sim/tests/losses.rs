//! Every datagram of a life is lost in turn, and two in a row: both ends agree in the end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ike::Settings;
use ike::config::{AuthMethod, Connection, PerCpuSas};
use ike::proposal::{ChildProposal, ChildProtocol, IkeProposal};
use ike::testkit::{child, connection, id};
use sim::{Edge, World};

const SECOND: Duration = Duration::from_secs(1);
const EDGE: Edge = Edge { host: 1, children: 2, both: false, nat: false, moves: false, client: false, per_cpu: true };

/// Two hosts with two Child SAs; in the second kind with signatures, certificates in fragments and
/// ML-KEM.
fn hosts(signed: bool) -> World {
    let mut world = World::new(1, 2, &Settings { fragment_size: 576, ..Settings::default() }, false);
    for (host, number, peer) in [(0, 1, 2), (1, 2, 1)] {
        let mut one: Connection = connection(number, peer);
        let net = |number: u8, at: u8| format!("10.{}.{at}.0/24", 100 + number);
        let section = |at: u8| Arc::new(child(&format!("c{at}"), &net(number, at), &net(peer, at)));
        one.children = (0..2).map(section).collect();
        one.mobike = true;
        for child in &mut one.children {
            Arc::make_mut(child).per_cpu_sas = PerCpuSas::Yes;
        }
        if signed {
            one.local[0].method = AuthMethod::PublicKey(Vec::new());
            one.remote[0].method = AuthMethod::PublicKey(Vec::new());
            one.proposals = vec![IkeProposal::parse("aes128gcm16-prfsha256-x25519-ke1_mlkem768").expect("a proposal")];
            let words = "aes128gcm16-x25519-ke1_mlkem768";
            for child in &mut one.children {
                Arc::make_mut(child).proposals =
                    vec![ChildProposal::parse(ChildProtocol::Esp, words).expect("a proposal")];
            }
            world.hosts[host].credentials.with_keys(number, &[(id(&format!("host{peer}.test")), peer)]);
            world.hosts[host].credentials.certs = vec![vec![number; 1500]];
        }
        world.hosts[host].connections = vec![one];
        world.load(host);
    }
    world
}

/// A complete life cycle: set-up, a second Child SA and one for a CPU, every rekey,
/// reauthentication, a new address, the end.
fn live(world: &mut World) {
    let step = 40 * SECOND;
    for name in ["c0", "c1"] {
        world.act(1, |host, now| host.endpoint.initiate(now, "2-1", Some(name), 1)).expect("can be started");
        world.run(step);
    }
    world.act(1, |host, now| host.endpoint.acquire(now, "2-1", "c0", None, Some(3)));
    world.run(step);
    world.settle(600 * SECOND);
    world.check_agreement(&EDGE);
    assert_eq!(world.hosts[0].children(1).len(), 3, "c0, c1, and c0 for a CPU");
    for host in [0, 1] {
        let (ike, child) = (world.hosts[host].ikes(1 - host)[0], world.hosts[host].children(1 - host)[0]);
        world.act(host, |host, now| host.endpoint.rekey_child(now, child, 2));
        world.run(step);
        world.act(host, |host, now| host.endpoint.rekey_ike(now, ike, false, 3));
        world.run(step);
        world.settle(600 * SECOND);
        world.check_agreement(&EDGE);
    }
    // Both at once.
    for host in [0, 1] {
        let child = world.hosts[host].children(1 - host)[0];
        world.act(host, |host, now| host.endpoint.rekey_child(now, child, 4));
    }
    world.run(step);
    for host in [0, 1] {
        let ike = world.hosts[host].ikes(1 - host)[0];
        world.act(host, |host, now| host.endpoint.rekey_ike(now, ike, false, 5));
    }
    world.run(step);
    let ike = world.hosts[1].ikes(0)[0];
    world.act(1, |host, now| host.endpoint.rekey_ike(now, ike, true, 6));
    stay_protected(world, step);
    world.settle(600 * SECOND);
    world.check_agreement(&EDGE);
    let elsewhere = vec![[10, 0, 0, 77].into()];
    world.hosts[1].addrs.clone_from(&elsewhere);
    world.act(1, |host, now| host.endpoint.local_addresses(now, &elsewhere));
    world.run(step);
    world.settle(600 * SECOND);
    world.check_agreement(&EDGE);
    let ike = world.hosts[0].ikes(1)[0];
    world.act(0, |host, now| host.endpoint.terminate_ike(now, ike, false, 7));
    world.run(600 * SECOND);
    world.check_empty();
}

/// Lets time pass in which neither end may lack a Child SA of any section (make before break).
fn stay_protected(world: &mut World, time: Duration) {
    let end = world.now + time;
    while world.now < end {
        world.run(Duration::from_millis(100));
        for host in [0, 1] {
            let sections: BTreeSet<_> = world.hosts[host].plane.used().map(|(_, sa)| &sa.child.config.name).collect();
            if sections.len() < 2 {
                world.fail(&format!("while authenticated anew, host {} has only {sections:?}", host + 1));
            }
        }
    }
}

#[test]
fn no_single_loss_and_no_two_in_a_row_matter() {
    for signed in [false, true] {
        let mut whole = hosts(signed);
        live(&mut whole);
        assert!(whole.sent > 30, "{} datagrams", whole.sent);
        for first in 0..whole.sent {
            // Two in a row of the long life are left to the stories by number.
            for count in if signed { 1..=1 } else { 1..=2 } {
                let mut world = hosts(signed);
                world.lose = (first..first + count).collect();
                world.note(&format!("signed {signed}: lost are {:?}", world.lose));
                live(&mut world);
            }
        }
    }
}
