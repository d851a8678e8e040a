//! Dummy packets of traffic flow confidentiality (RFC 4303 §2.6) between two whole gateways.

mod common;

use std::time::{Duration, Instant};

use common::Site;
use gateway::simulation::{Outgoing, RouteDecision};

/// Protocols of an inner packet: UDP, and "no next header", which a receiver takes for a dummy.
const UDP: u8 = 17;
const NONE: u8 = 59;

/// A section for the packets between the two hosts.
const HOSTS: &str = "hosts {
                       mode = transport
                       start_action = trap
                       esp_proposals = aes128gcm16
                     }";

/// A packet of eight bytes of an upper-layer protocol from host 1 to host 2.
fn packet(protocol: u8) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
    let sum = wire::checksum::checksum(&bytes);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend([0x0f, 0xa0, 0x13, 0x88, 0, 8, 0, 0]);
    bytes
}

/// Runs both sites for a while. Returns the packets that host 2 gets.
fn run(sites: &mut [Site; 2], now: &mut Instant, time: Duration) -> Vec<Vec<u8>> {
    let (end, mut delivered) = (*now + time, Vec::new());
    while *now < end {
        for at in 0..2 {
            sites[at].gateway.turn(*now);
            for outgoing in sites[at].kernel.take_sent() {
                let peer = &mut sites[1 - at].gateway;
                match outgoing {
                    Outgoing::Ike { from, to, message, .. } => peer.receive_ike(*now, to, from, message),
                    Outgoing::Packet(bytes) => delivered.extend(peer.receive_packet(*now, &bytes)),
                }
            }
        }
        *now += Duration::from_millis(5);
    }
    delivered
}

#[test]
fn a_dummy_packet_in_transport_mode_is_discarded_and_counted_as_one() {
    let mut now = Instant::now();
    let mut sites = common::start(now, |own| format!("192.0.2.{own}/32"), |own| common::text(own, "", HOSTS));
    for (protocol, arrives) in [(UDP, true), (NONE, false), (UDP, true), (NONE, false)] {
        let packet = packet(protocol);
        assert_ne!(sites[0].gateway.send_inner(now, &packet), RouteDecision::Clear);
        let delivered = run(&mut sites, &mut now, Duration::from_secs(2));
        let expected = if arrives { vec![packet] } else { Vec::new() };
        assert_eq!(delivered, expected, "protocol {protocol}");
    }
    assert_eq!(sites[1].gateway.drops(), [("dummy", 2)]);
}
