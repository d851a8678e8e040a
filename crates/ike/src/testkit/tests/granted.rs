//! Traps that are wider than what the peer accepts.

use super::*;

/// Host 0 traps two networks, host 1 accepts the first of them.
fn wide_trap(seed: u64, accepted: &str) -> Net {
    let mut net = Net::new(seed, 2);
    let mut wide = child("net", "10.1.0.0/16", "10.2.0.0/16");
    wide.local_ts.push(ts("10.11.0.0/16"));
    wide.start_action = StartAction { trap: true, start: false };
    net.load(0, vec![Connection { children: vec![Arc::new(wide)], ..connection(1, 2) }]);
    let narrow = Arc::new(child("net", "10.2.0.0/16", accepted));
    net.load(1, vec![Connection { children: vec![narrow], ..connection(2, 1) }]);
    net
}

/// A packet from this address meets the trap each second for so long; what host 0 had at most.
fn packets(net: &mut Net, from: &str, seconds: u32) -> usize {
    let mut most = 0;
    for _ in 0..seconds {
        let packet = Some((ts(from).resolve(addr(1)), ts("10.2.0.1").resolve(addr(2))));
        let now = net.now;
        net.hosts[0].endpoint.acquire(now, "1-2", "net", packet, None);
        net.run(SECOND);
        most = most.max(net.hosts[0].live().count());
    }
    most
}

#[test]
fn packets_that_the_peer_does_not_accept_make_no_child_sa_per_second() {
    let mut net = wide_trap(70, "10.1.0.0/16");
    assert_eq!(packets(&mut net, "10.11.0.2", 120), 1);
    assert_eq!((net.hosts[0].live().count(), net.hosts[1].live().count()), (1, 1));
    // The first, and after 2, 4, 8, 16, 32, 64 s.
    let made = net.hosts[0].count("child_up");
    assert!((2..=7).contains(&made), "{made} Child SAs");
    let warnings = net.hosts[0].log(Level::Warn);
    assert_eq!(warnings.matches("the peer accepted only 10.1.0.0/16 === 10.2.0.0/16").count(), 1, "{warnings}");
    // The wait grows, but has an end.
    packets(&mut net, "10.11.0.2", 1200);
    let later = net.hosts[0].count("child_up");
    assert!((3..=7).contains(&(later - made)), "{later} then {made}");
    // A command does not wait.
    let now = net.now;
    net.hosts[0].endpoint.initiate(now, "1-2", Some("net"), 5).expect("can be started");
    net.run(SECOND);
    assert_eq!(net.hosts[0].command(5), Some(&Ok(())));
}

/// A peer that gives the packet what it needs, another Child SA for each network, is not waited
/// for.
#[test]
fn what_is_granted_does_not_wait() {
    let mut net = wide_trap(71, "10.11.0.0/16");
    assert_eq!(packets(&mut net, "10.11.0.2", 3), 1);
    assert!(net.hosts[0].log(Level::Warn).is_empty());
}

#[test]
fn packets_that_the_peer_refuses_back_off_as_well() {
    let mut net = wide_trap(72, "10.99.0.0/16");
    assert_eq!(packets(&mut net, "10.11.0.2", 120), 0);
    let errors = net.hosts[0].log(Level::Error);
    let refusals = errors.matches("TS_UNACCEPTABLE").count();
    assert!((2..=8).contains(&refusals), "{refusals}: {errors}");
}
