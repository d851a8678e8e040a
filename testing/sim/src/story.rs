//! The story of one seed: disturbances, then calm, agreement, the end.

use std::net::SocketAddr;
use std::time::Duration;

use ike::output::{ChildId, IkeId};

use crate::{Dice, Edge, Link, Plan, World};

/// An event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Summary {
    /// Simulated time.
    pub time: Duration,
    /// Datagrams of IKE that were sent.
    pub datagrams: usize,
    /// The same for the same seed, whatever machine and build.
    pub fingerprint: u64,
}

/// Plays the story of a seed; with `tell` line by line on standard error.
///
/// # Panics
/// When an invariant breaks, with the last lines of the story.
pub fn run(seed: u64, tell: bool) -> Summary {
    let (plan, mut world, mut dice) = Plan::draw(seed, tell);
    for edge in &plan.edges {
        world.note(&format!("{edge:?}"));
    }
    for step in 0..dice.pick(&[10, 30, 60]) {
        for edge in &plan.edges {
            disturb_link(&mut world, &mut dice, edge, plan.noise);
        }
        if step > 0 {
            let edge = plan.edges[dice.below(plan.edges.len())];
            disturb(&mut world, &mut dice, &edge);
        }
        let long = dice.chance(400);
        world.run(if long { dice.ms(10_000, 400_000) } else { dice.ms(0, 3_000) });
    }
    calm(&mut world, &plan, &mut dice);
    end(&mut world, &plan, &mut dice);
    let fingerprint = world.fingerprint();
    Summary { time: world.elapsed(), datagrams: world.sent, fingerprint }
}

fn disturb_link(world: &mut World, dice: &mut Dice, edge: &Edge, noise: usize) {
    let delay = dice.pick(&[(1, 2), (5, 40), (20, 400), (1, 3_000)]);
    let mut part = |of: usize| dice.below(1 + noise / of);
    world.links[edge.host] = Link { loss: part(1), twice: part(2), damage: part(4), late: part(4), delay };
}

/// Things that happen, by number.
const ACTS: usize = 20;

/// Something happens on a connection.
fn disturb(world: &mut World, dice: &mut Dice, edge: &Edge) {
    // Acting host; sometimes both do the same at the same time.
    let ends: &[(usize, usize)] = match dice.below(4) {
        0 => &[(0, edge.host), (edge.host, 0)],
        1 => &[(0, edge.host)],
        _ => &[(edge.host, 0)],
    };
    let mut what = dice.below(ACTS);
    for &(host, peer) in ends {
        act(world, dice, edge, (host, peer), what);
        // Or something else: rekeying meets deletion, a move meets a crash.
        if dice.chance(300) {
            what = dice.below(ACTS);
        }
    }
}

fn act(world: &mut World, dice: &mut Dice, edge: &Edge, (host, peer): (usize, usize), what: usize) {
    let ike = some(dice, &world.hosts[host].ikes(peer));
    let child = some(dice, &world.hosts[host].children(peer));
    let name = format!("c{}", dice.below(edge.children));
    let connection = format!("{}-{}", host + 1, peer + 1);
    world.note(&format!("host {}: act {what} on {connection} {name} {ike:?} {child:?}", host + 1));
    match what {
        0 | 1 if edge.both || host != 0 => bring_up(world, host, &connection, &name, dice.chance(500)),
        3 if host == 0 && !edge.both => (),
        2 | 3 => with(world, host, ike, |endpoint, now, ike| {
            endpoint.rekey_ike(now, ike, what == 3, 7);
        }),
        4..=6 => with(world, host, child, |endpoint, now, child| {
            endpoint.rekey_child(now, child, 8);
        }),
        7 => with(world, host, child, |endpoint, now, child| {
            endpoint.terminate_child(now, child, 9);
        }),
        8 => {
            let force = dice.chance(300);
            with(world, host, ike, |endpoint, now, ike| {
                endpoint.terminate_ike(now, ike, force, 10);
            });
        }
        9 => {
            let hard = dice.chance(300);
            if let Some(child) = child.filter(|_| hard) {
                world.hosts[host].plane.expire(child);
            }
            with(world, host, child, |endpoint, now, child| endpoint.child_expired(now, child, hard));
        }
        10 => world.restart(host),
        11 => {
            if let Some(nat) = &mut world.hosts[edge.host].nat {
                nat.rebind();
            }
        }
        12 if edge.moves => move_away(world, edge),
        13 => {
            let dark = dice.ms(1_000, 400_000);
            world.dark[edge.host] = world.now + dark;
        }
        14 => {
            let jump = dice.pick(&[1, 20, 300, 5_000]);
            world.hosts[host].ahead += Duration::from_secs(jump);
            world.act(host, |host, now| host.endpoint.handle_timeout(now));
        }
        15 => flood(world, dice),
        16 => reload(world, dice, host),
        17 | 18 if edge.per_cpu && (edge.both || host != 0) => {
            let cpu = dice.below(3) as u32;
            world.act(host, |host, now| host.endpoint.acquire(now, &connection, &name, None, Some(cpu)));
        }
        _ => traffic(world, edge),
    }
}

fn some<T: Copy>(dice: &mut Dice, from: &[T]) -> Option<T> {
    (!from.is_empty()).then(|| dice.pick(from))
}

type Rng = rand_chacha::ChaCha8Rng;

fn with<T: Copy>(
    world: &mut World,
    host: usize,
    what: Option<T>,
    run: impl FnOnce(&mut ike::Endpoint<Rng>, std::time::Instant, T),
) {
    if let Some(what) = what {
        world.act(host, |host, now| run(&mut host.endpoint, now, what));
    }
}

/// By a command, or by a packet that met a trap policy.
fn bring_up(world: &mut World, host: usize, connection: &str, child: &str, packet: bool) {
    world.act(host, |host, now| {
        if packet {
            host.endpoint.acquire(now, connection, child, None, None);
        } else {
            // Its peer may have no address at the moment, which is reported as an error.
            let _ = host.endpoint.initiate(now, connection, Some(child), 1);
        }
    });
}

/// Packets go out through every SA of a connection.
fn traffic(world: &mut World, edge: &Edge) {
    for (host, peer) in [(edge.host, 0), (0, edge.host)] {
        for child in world.hosts[host].children(peer) {
            world.protect(host, child);
        }
    }
}

/// A host moves to another address; it keeps its NAT, if there is one.
fn move_away(world: &mut World, edge: &Edge) {
    let mut addr = match world.hosts[edge.host].addrs[0] {
        std::net::IpAddr::V4(addr) => addr.octets(),
        std::net::IpAddr::V6(_) => return,
    };
    addr[3] = addr[3] % 200 + 20;
    let addrs = vec![addr.into()];
    world.hosts[edge.host].addrs.clone_from(&addrs);
    world.act(edge.host, |host, now| host.endpoint.local_addresses(now, &addrs));
}

/// Requests of initiators that do not exist, from addresses that are not theirs.
fn flood(world: &mut World, dice: &mut Dice) {
    let Some((to, datagram)) = world.init.clone() else { return };
    for number in 0..dice.below(300) {
        let mut datagram = datagram.clone();
        datagram[..8].copy_from_slice(&(0x5000_0000_u64 + number as u64).to_be_bytes());
        let from: SocketAddr = ([198, 18, dice.below(8) as u8, dice.below(256) as u8], 500).into();
        world.spoof(from, to, datagram);
    }
}

/// Another configuration of the same, or the same again.
fn reload(world: &mut World, dice: &mut Dice, host: usize) {
    if dice.chance(500) {
        let seconds = dice.pick(&[0, 600, 2000]);
        for connection in &mut world.hosts[host].connections {
            connection.rekey_time = Duration::from_secs(seconds);
        }
    }
    world.load(host);
}

/// Everything works again: both ends come to the same state.
fn calm(world: &mut World, plan: &Plan, dice: &mut Dice) {
    world.note("calm");
    let now = world.now;
    world.dark.fill(now);
    world.links.fill(Link::CALM);
    world.run(Duration::from_secs(900));
    for edge in &plan.edges {
        for child in 0..edge.children {
            let host = if edge.both && dice.chance(500) { 0 } else { edge.host };
            let (connection, child) = (names(host, edge), format!("c{child}"));
            // One end has it and uses it: packets of the other do not meet a trap.
            bring_up(world, host, &connection, &child, false);
            world.settle(Duration::from_secs(1800));
        }
    }
    for edge in &plan.edges {
        traffic(world, edge);
    }
    world.run(Duration::from_secs(1));
    world.settle(Duration::from_secs(1800));
    for edge in &plan.edges {
        world.check_agreement(edge);
    }
}

fn names(host: usize, edge: &Edge) -> String {
    if host == 0 { format!("1-{}", edge.host + 1) } else { format!("{}-1", edge.host + 1) }
}

/// Everything is terminated: nothing is left.
fn end(world: &mut World, plan: &Plan, dice: &mut Dice) {
    world.note("end");
    let how = dice.below(3);
    for at in 0..world.hosts.len() {
        // No host restarts what another host ends.
        world.hosts[at].connections.clear();
    }
    match how {
        // One host requests, the other accepts; or both at once.
        0 | 1 => {
            for edge in &plan.edges {
                for (host, peer) in [(0, edge.host), (edge.host, 0)].into_iter().skip(how) {
                    for ike in world.hosts[host].ikes(peer) {
                        with(world, host, Some(ike), |endpoint, now, ike: IkeId| {
                            endpoint.terminate_ike(now, ike, false, 11);
                        });
                    }
                }
            }
            world.run(Duration::from_secs(5));
            // `close_action` may have established a Child SA again; with the configuration that
            // goes too.
            for at in 0..world.hosts.len() {
                world.load(at);
            }
            for edge in &plan.edges {
                for child in world.hosts[0].children(edge.host) {
                    with(world, 0, Some(child), |endpoint, now, child: ChildId| {
                        endpoint.terminate_child(now, child, 12);
                    });
                }
                for ike in world.hosts[edge.host].ikes(0) {
                    with(world, edge.host, Some(ike), |endpoint, now, ike| {
                        endpoint.terminate_ike(now, ike, false, 13);
                    });
                }
            }
        }
        _ => {
            for at in 0..world.hosts.len() {
                world.hosts[at].plane.expected.clear();
                world.act(at, |host, now| host.endpoint.shutdown(now));
            }
        }
    }
    world.run(Duration::from_secs(1200));
    world.check_empty();
}
