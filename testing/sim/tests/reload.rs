//! Packets while a gateway reads its configuration again.

use std::time::Instant;

use gateway::simulation::{Gateway, Kernel, Outgoing, RouteDecision};

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
