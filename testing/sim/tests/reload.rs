//! Packets while a gateway reads its configuration again.

use std::time::Instant;

use gateway::simulation::{Gateway, Kernel, Outgoing, RouteDecision};
use vici::names::Command;

/// An empty UDP datagram.
fn packet(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let mut bytes = [&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0][..], &from, &to].concat();
    let sum = wire::checksum::checksum(&bytes);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend([0x0f, 0xa0, 0x13, 0x88, 0, 8, 0, 0]);
    bytes
}

/// A section that is trapped in the way `trap`, within a network that passes in clear text.
fn text(trap: &str, rekey_s: u32) -> String {
    format!(
        "connections {{
         site {{
           local_addrs = 192.0.2.1
           remote_addrs = 192.0.2.2
           dpd_delay = 10s
           retransmit_timeout = 1s
           retransmit_tries = 1
           keyingtries = 1
           local {{
             auth = psk
             id = a.test
           }}
           remote {{
             auth = psk
             id = b.test
           }}
           children {{
             net {{
               local_ts = 10.1.0.0/16
               remote_ts = 10.2.0.0/16
               {trap}
               rekey_time = {rekey_s}s
             }}
             open {{
               local_ts = 10.1.0.0/16
               remote_ts = 10.0.0.0/8
               mode = pass
               start_action = trap
             }}
           }}
         }}
       }}
       secrets {{
         ike-1 {{
           secret = \"a secret\"
         }}
       }}"
    )
}

#[test]
fn a_trap_that_changes_is_closed_meanwhile() {
    let now = Instant::now();
    let network = "10.1.0.0/16".parse::<wire::TrafficSelector>().expect("a network").addrs;
    let kernel = Kernel::new(vec![[192, 0, 2, 1].into()], vec![network]);
    let mut gateway = Gateway::start(now, &text("start_action = trap", 3600), &kernel, 1).expect("starts");
    let [protected, passed] = [[10, 2, 0, 5], [10, 3, 0, 5]].map(|to| packet([10, 1, 0, 5], to));
    // Clear packets leave through the device, or past it.
    let leaves = |gateway: &mut Gateway, packet: &[u8]| {
        let decision = gateway.send_inner(now, packet);
        let mut sent = kernel.take_sent().into_iter();
        decision == RouteDecision::Clear || sent.any(|one| matches!(one, Outgoing::Packet(sent) if sent == packet))
    };
    assert!(!leaves(&mut gateway, &protected) && leaves(&mut gateway, &passed));
    let reloaded = gateway.reload_with(now, &text("start_action = trap", 7200), |gateway| {
        assert!(!leaves(gateway, &protected), "in clear text, before the trap is there again");
    });
    assert!(reloaded.is_ok(), "{reloaded:?}");
    assert!(!leaves(&mut gateway, &protected) && leaves(&mut gateway, &passed));
}

/// A section that neither starts nor has a trap.
fn passive(gateway: &str, remote_addrs: &str, remote_ts: &str) -> String {
    format!(
        "gateway {{
         {gateway}
       }}
       connections {{
         site {{
           local_addrs = 192.0.2.1
           remote_addrs = {remote_addrs}
           local {{
             auth = psk
             id = a.test
           }}
           remote {{
             auth = psk
             id = b.test
           }}
           children {{
             net {{
               local_ts = 10.1.0.0/16
               remote_ts = {remote_ts}
             }}
           }}
         }}
       }}
       secrets {{
         ike-1 {{
           secret = \"a secret\"
         }}
       }}"
    )
}

/// A gateway with a configuration, and its kernel.
fn started(now: Instant, text: &str) -> (Gateway, Kernel) {
    let network = "10.1.0.0/16".parse::<wire::TrafficSelector>().expect("a network").addrs;
    let kernel = Kernel::new(vec![[192, 0, 2, 1].into()], vec![network]);
    (Gateway::start(now, text, &kernel, 1).expect("starts"), kernel)
}

#[test]
fn unprotected_traffic_follows_a_reload() {
    let now = Instant::now();
    let text = |setting: &str| passive(&format!("unprotected = {setting}"), "192.0.2.2", "10.2.0.0/16");
    let (mut gateway, _) = started(now, &text("drop"));
    let out = packet([10, 1, 0, 5], [10, 2, 0, 5]);
    for (setting, leaves) in [("drop", false), ("pass", true), ("pass", true), ("drop", false), ("pass", true)] {
        gateway.reload(now, &text(setting)).expect("a reload");
        assert_eq!(gateway.send_inner(now, &out) == RouteDecision::Clear, leaves, "unprotected = {setting}");
    }
}

#[test]
fn a_peer_that_is_no_longer_named_leaves_no_policy_for_all_addresses() {
    let now = Instant::now();
    let text = |remote: &str| passive("unprotected = drop", remote, "0.0.0.0/0");
    let (mut gateway, _) = started(now, &text("192.0.2.2"));
    let out = packet([10, 1, 0, 5], [198, 51, 100, 5]);
    assert_ne!(gateway.send_inner(now, &out), RouteDecision::Clear);
    gateway.reload(now, &text("%any")).expect("a reload");
    assert_eq!(gateway.send_inner(now, &out), RouteDecision::Clear, "the peer chooses its networks");
    gateway.reload(now, &text("192.0.2.2")).expect("a reload");
    assert_ne!(gateway.send_inner(now, &out), RouteDecision::Clear);
}

#[test]
fn a_reload_without_a_change_keeps_a_trap_that_was_installed() {
    let now = Instant::now();
    let text = passive("unprotected = drop", "192.0.2.2", "10.2.0.0/16");
    let (mut gateway, kernel) = started(now, &text);
    assert_eq!(gateway.command(now, Command::Install, &[("child", "net")]), None);
    gateway.reload(now, &text).expect("a reload");
    gateway.send_inner(now, &packet([10, 1, 0, 5], [10, 2, 0, 5]));
    gateway.turn(now);
    assert!(kernel.take_sent().iter().any(|one| matches!(one, Outgoing::Ike { .. })), "the packet requests an SA");
}
