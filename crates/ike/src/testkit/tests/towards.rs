//! Traps of connections without the address of a peer: the destination of a packet is the peer.

use super::*;

/// A connection of a host with every other one, in transport mode.
fn every(host: u8, trap: bool) -> Connection {
    let mut child = child("net", "dynamic", "dynamic");
    (child.mode, child.start_action.trap) = (ChildMode::Transport, trap);
    Connection {
        remote_addrs: Vec::new(),
        remote: vec![auth(AuthMethod::Psk, "*.test")],
        children: vec![Arc::new(child)],
        name: "any".to_owned(),
        ..connection(host, 200)
    }
}

/// So many hosts; the first has the trap.
fn world(seed: u64, hosts: u8) -> Net {
    let mut net = Net::new(seed, hosts);
    for host in 0..hosts {
        net.load(host.into(), vec![every(host + 1, host == 0)]);
    }
    net
}

/// A packet from one address to another meets the trap of host 0.
fn packet(net: &mut Net, from: IpAddr, to: IpAddr) {
    let of = |addr: IpAddr| ts(&addr.to_string()).resolve(addr);
    let now = net.now;
    net.hosts[0].endpoint.acquire(now, "any", "net", Some((of(from), of(to))), None);
    net.pump();
}

fn selectors(net: &Net) -> Vec<String> {
    let text = |list: &[wire::TrafficSelector]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let of = |one: &Installed| format!("{} === {}", text(&one.sa.local_ts), text(&one.sa.remote_ts));
    net.hosts[0].live().map(of).collect()
}

fn requests(net: &Net) -> usize {
    net.hosts[0].log(Level::Info).matches("initiating the IKE SA").count()
}

#[test]
fn each_destination_becomes_a_peer_once() {
    let mut net = world(80, 4);
    for _ in 0..3 {
        packet(&mut net, addr(1), addr(2));
        packet(&mut net, addr(1), addr(3));
    }
    assert_eq!(requests(&net), 2, "a second packet to the same host starts nothing");
    net.run(SECOND);
    assert_eq!(selectors(&net), ["10.0.0.1/32 === 10.0.0.2/32", "10.0.0.1/32 === 10.0.0.3/32"]);
    assert!(net.hosts[0].live().all(|one| one.sa.mode == ChildMode::Transport));
    assert_eq!((net.hosts[1].live().count(), net.hosts[2].live().count(), net.hosts[3].live().count()), (1, 1, 0));
    // With the IKE SA that is there.
    packet(&mut net, addr(1), addr(2));
    net.run(SECOND);
    assert_eq!((requests(&net), net.hosts[0].up().len()), (2, 2));
}

#[test]
fn wide_selectors_narrow_to_the_host_and_rekeying_keeps_them() {
    let mut net = Net::new(81, 2);
    let mut wide = every(1, true);
    let child = Arc::make_mut(&mut wide.children[0]);
    (child.local_ts, child.remote_ts) = (vec![ts("10.0.0.0/24")], vec![ts("10.0.0.0/30"), ts("10.9.0.0/16")]);
    net.load(0, vec![wide.clone()]);
    let mut answers = every(2, false);
    Arc::make_mut(&mut answers.children[0]).local_ts = vec![ts("10.0.0.0/8")];
    Arc::make_mut(&mut answers.children[0]).remote_ts = vec![ts("10.0.0.0/8")];
    net.load(1, vec![answers]);
    packet(&mut net, addr(1), addr(2));
    net.run(SECOND);
    assert_eq!(selectors(&net), ["10.0.0.1/32 === 10.0.0.2/32"]);
    let (now, child) = (net.now, net.hosts[0].live().next().unwrap().sa.id);
    assert!(net.hosts[0].endpoint.rekey_child(now, child, 1));
    net.run(SECOND);
    assert_eq!(selectors(&net), ["10.0.0.1/32 === 10.0.0.2/32"]);
    assert_ne!(net.hosts[0].live().next().unwrap().sa.id, child);
}

#[test]
fn handshakes_that_packets_start_are_limited_and_end() {
    let mut net = world(82, 2);
    for host in 3..=90 {
        packet(&mut net, addr(1), addr(host));
    }
    assert_eq!(requests(&net), 64, "{}", net.hosts[0].log(Level::Info));
    assert_eq!(net.hosts[0].count("ike_trap_peers_limited"), 88 - 64);
    packet(&mut net, addr(1), addr(2));
    assert_eq!(requests(&net), 64, "there is no room for a host that answers");
    // No peer responds, and there is no automatic retry, whatever `keyingtries` is.
    net.run(SECOND * 400);
    assert_eq!((requests(&net), net.hosts[0].endpoint.ike_sa_count()), (64, 0));
    packet(&mut net, addr(1), addr(2));
    net.run(SECOND);
    assert_eq!(net.hosts[0].live().count(), 1);
}

#[test]
fn forever_tries_are_for_peers_with_an_address() {
    let mut net = Net::new(83, 1);
    net.load(0, vec![Connection { keyingtries: 0, ..every(1, true) }]);
    packet(&mut net, addr(1), addr(9));
    net.run(SECOND * 1000);
    assert_eq!((requests(&net), net.hosts[0].endpoint.ike_sa_count()), (1, 0));
}

#[test]
fn no_handshake_with_what_is_no_peer_or_for_what_is_not_from_here() {
    let mut net = world(84, 2);
    let mut ranged = every(1, true);
    ranged.remote_addrs = vec![range("10.0.0.0/24").into()];
    net.load(0, vec![ranged]);
    for to in ["224.0.0.1", "255.255.255.255", "0.0.0.0", "127.0.0.1", "10.0.1.2", "10.0.0.1"] {
        packet(&mut net, addr(1), to.parse().unwrap());
    }
    packet(&mut net, "10.7.0.1".parse().unwrap(), addr(2));
    assert_eq!((requests(&net), net.hosts[0].count("ike_trap_no_peer")), (0, 7));
    packet(&mut net, addr(1), addr(2));
    assert_eq!(requests(&net), 1);
}

#[test]
fn a_peer_that_dies_is_found_again_at_its_address() {
    let mut net = Net::new(85, 2);
    let mut restarts = every(1, true);
    restarts.dpd_delay = SECOND * 10;
    Arc::make_mut(&mut restarts.children[0]).dpd_action = Action::Restart;
    net.load(0, vec![restarts]);
    net.load(1, vec![every(2, false)]);
    packet(&mut net, addr(1), addr(2));
    net.run(SECOND);
    assert_eq!(net.hosts[0].live().count(), 1);
    net.wire = Box::new(|_| Delivery::Lost);
    net.run(SECOND * 300);
    assert!(requests(&net) >= 2, "{}", net.hosts[0].log(Level::Info));
    assert!(!net.hosts[0].log(Level::Error).contains("no single remote address"), "{}", net.hosts[0].log(Level::Error));
}

#[test]
fn only_traps_in_transport_mode_take_the_destination() {
    let mut net = world(86, 2);
    let mut tunnel = every(1, true);
    Arc::make_mut(&mut tunnel.children[0]).mode = ChildMode::Tunnel;
    net.load(0, vec![tunnel]);
    packet(&mut net, addr(1), addr(2));
    assert_eq!(requests(&net), 0);
}
