//! Configuration drawn from a seed.

use std::sync::Arc;
use std::time::Duration;

use ike::Settings;
use ike::config::{
    Action, AuthMethod, ChildConfig, Connection, Encap, Fragmentation, Life, PerCpuSas, PoolConfig, Retransmit,
    StartAction, TsConfig, Unique,
};
use ike::proposal::{ChildProposal, ChildProtocol, IkeProposal};
use ike::testkit::{self, child, connection, id, range};

use crate::net::Nat;
use crate::{Dice, World};

const IKE: [&str; 4] = [
    "aes128gcm16-prfsha256-x25519",
    "aes256-sha256-ecp256",
    "aes128gcm16-prfsha256-x25519-ke1_mlkem768",
    "chacha20poly1305-prfsha256-ecp256-x25519",
];
const CHILD: [&str; 4] =
    ["aes128gcm16", "aes128gcm16-x25519", "aes128-sha256-ecp256-x25519", "aes128gcm16-x25519-ke1_mlkem768"];

/// A connection between host 0 and another.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// The other host.
    pub host: usize,
    /// Its Child SAs are called `c0`, `c1`, ….
    pub children: usize,
    /// Either end may start.
    pub both: bool,
    /// There is a NAT in front of the other host.
    pub nat: bool,
    /// The other host changes its address now and then.
    pub moves: bool,
    /// The other host gets a virtual address.
    pub client: bool,
    /// Child SAs per CPU (RFC 9611).
    pub per_cpu: bool,
}

/// Everything that a seed configures.
pub struct Plan {
    /// Connections.
    pub edges: Vec<Edge>,
    /// Severity of disturbances.
    pub noise: usize,
}

impl Plan {
    /// Draws a world and makes it, with its configuration loaded.
    pub fn draw(seed: u64, tell: bool) -> (Self, World, Dice) {
        let mut dice = Dice::new(seed);
        let spokes = [1, 1, 1, 2, 2, 3, 5][dice.below(7)];
        let settings = Settings {
            fragment_size: dice.pick(&[400, 576, 1280]),
            cookie_threshold: dice.pick(&[0, 30, 30]),
            half_open_max: 200,
            ..Settings::default()
        };
        let mut world = World::new(seed, spokes + 1, &settings, tell);
        let mut edges = Vec::new();
        for number in 2..=spokes + 1 {
            edges.push(draw_edge(&mut dice, &mut world, number));
        }
        for host in 0..world.hosts.len() {
            world.load(host);
        }
        (Self { edges, noise: dice.pick(&[0, 20, 60, 150, 300]) }, world, dice)
    }
}

fn draw_edge(dice: &mut Dice, world: &mut World, number: u8) -> Edge {
    let host = usize::from(number) - 1;
    let nat = dice.chance(300);
    let moves = dice.chance(300);
    let (children_of, both) = (dice.pick(&[1, 1, 2, 3]), !nat && !moves && dice.chance(500));
    let client = !both && dice.chance(400);
    let edge = Edge { host, children: children_of, both, nat, moves, client, per_cpu: dice.chance(250) };
    let (mut spoke, mut hub) = (connection(number, 1), connection(1, number));
    shared(dice, &mut spoke, &mut hub);
    if nat || moves {
        hub.remote_addrs = Vec::new();
        spoke.local_addrs = Vec::new();
    }
    if nat {
        world.hosts[host].addrs = vec![[192, 168, number, 2].into()];
        world.hosts[host].nat = Some(Nat::new([203, 0, 113, number].into()));
        let addrs = world.hosts[host].addrs.clone();
        world.act(host, |host, now| host.endpoint.local_addresses(now, &addrs));
    }
    if client {
        let addrs = range(&format!("10.200.{number}.0/29"));
        let pool = PoolConfig { name: format!("pool{number}"), addrs, attributes: Vec::new() };
        hub.pools = vec![pool.name.clone()];
        world.hosts[0].pools.push(pool);
        spoke.vips = vec![[0, 0, 0, 0].into()];
    }
    let secret = dice.chance(500);
    if secret {
        for connection in [&mut spoke, &mut hub] {
            connection.local[0].method = AuthMethod::PublicKey(Vec::new());
            connection.remote[0].method = AuthMethod::PublicKey(Vec::new());
        }
        world.hosts[host].credentials.certs = vec![vec![number; 1300]];
    }
    let hosts = &mut world.hosts;
    hosts[host].credentials.with_keys(number, &[(id("host1.test"), 1)]);
    hosts[0].credentials.with_keys(1, &[(id(&format!("host{number}.test")), number)]);
    children(dice, &edge, &mut spoke, &mut hub, number);
    hosts[0].connections.push(hub);
    hosts[host].connections.push(spoke);
    edge
}

/// Settings common to both hosts, and settings of each host.
fn shared(dice: &mut Dice, spoke: &mut Connection, hub: &mut Connection) {
    let proposals = vec![IkeProposal::parse(dice.pick(&IKE)).expect("a proposal")];
    let (mobike, fragmentation) =
        (dice.chance(500), dice.pick(&[Fragmentation::Yes, Fragmentation::Yes, Fragmentation::No]));
    let encap = match dice.below(1000) {
        0..150 => Encap::Yes,
        150..300 => Encap::Auto,
        _ => Encap::No,
    };
    let keeps = dice.chance(250);
    for connection in [spoke, hub] {
        connection.proposals = proposals.clone();
        connection.mobike = mobike;
        connection.fragmentation = fragmentation;
        connection.encap = encap;
        connection.dpd_delay = Duration::from_secs(dice.pick(&[30, 60, 120, 300]));
        connection.unique = if keeps { Unique::Keep } else { dice.pick(&[Unique::Never, Unique::No, Unique::Replace]) };
        connection.keyingtries = dice.pick(&[1, 1, 3, 0]);
        connection.rekey_time = Duration::from_secs(dice.pick(&[0, 300, 900, 3600]));
        // A peer that keeps its old IKE SA refuses reauthentication.
        let reauth = if keeps { 0 } else { dice.pick(&[0, 0, 700, 3000]) };
        connection.reauth_time = Duration::from_secs(reauth);
        connection.over_time = Duration::from_secs(dice.pick(&[60, 300]));
        connection.rand_time = Duration::from_secs(dice.pick(&[0, 10, 60]));
        if dice.chance(500) {
            connection.retransmit = Retransmit { timeout: Duration::from_secs(1), base: 1.6, tries: 5 };
        }
    }
}

fn children(dice: &mut Dice, edge: &Edge, spoke: &mut Connection, hub: &mut Connection, number: u8) {
    (spoke.children, hub.children) = (Vec::new(), Vec::new());
    if !edge.both {
        // Both at once would leave two IKE SAs.
        hub.reauth_time = Duration::ZERO;
    }
    for at in 0..edge.children {
        let (here, there) = (format!("10.{}.{at}.0/24", 100 + number), format!("10.100.{at}.0/24"));
        let name = format!("c{at}");
        let (mut a, mut b) = (child(&name, &here, &there), child(&name, &there, &here));
        let proposals = vec![ChildProposal::parse(ChildProtocol::Esp, dice.pick(&CHILD)).expect("a proposal")];
        if edge.client || (dice.chance(100) && !edge.nat) {
            let dynamic = TsConfig { addrs: None, ..testkit::ts(&here) };
            (a.local_ts, b.remote_ts) = (vec![dynamic], vec![dynamic]);
        }
        for config in [&mut a, &mut b] {
            config.proposals = proposals.clone();
            config.per_cpu_sas = if edge.per_cpu { PerCpuSas::Yes } else { PerCpuSas::No };
            lifetimes(dice, config);
        }
        a.start_action = StartAction { trap: dice.chance(400), start: dice.chance(500) };
        (a.dpd_action, a.close_action) = actions(dice);
        if edge.both {
            b.start_action = StartAction { trap: dice.chance(400), start: dice.chance(300) };
            (b.dpd_action, b.close_action) = actions(dice);
        } else if dice.chance(500) {
            (b.dpd_action, b.close_action) = (Action::Trap, Action::Trap);
        }
        spoke.children.push(Arc::new(a));
        hub.children.push(Arc::new(b));
    }
    spoke.remote_addrs = vec![range(&testkit::addr(1).to_string()).into()];
}

fn actions(dice: &mut Dice) -> (Action, Action) {
    let trap = dice.chance(300);
    let mut action = || if trap { Action::Trap } else { dice.pick(&[Action::Clear, Action::Trap, Action::Restart]) };
    (action(), action())
}

fn lifetimes(dice: &mut Dice, config: &mut ChildConfig) {
    let rekey = dice.pick(&[0, 120, 400, 1800]);
    let life = if rekey == 0 { dice.pick(&[0, 0, 2000]) } else { rekey + dice.pick(&[30, 300]) };
    let rand = dice.pick(&[0, 10, 40]);
    config.time =
        Life { rekey: Duration::from_secs(rekey), life: Duration::from_secs(life), rand: Duration::from_secs(rand) };
}
