//! A message that lets the peer use an SA should leave after the tables of packets have the SA: a
//! peer may send as soon as it has the message, and packets for an unknown SPI are dropped.

mod common;

use std::time::{Duration, Instant};

use common::Site;
use gateway::simulation::Outgoing;
use vici::names::Command;

/// More Child SAs than are published without a pause after each snapshot.
const CHILDREN: usize = 80;

fn text(version: u8, own: u8) -> String {
    let peer = 3 - own;
    let child = |number: usize| {
        format!(
            "n{number} {{
               local_ts = 10.{own}.{number}.0/24
               remote_ts = 10.{peer}.{number}.0/24
               esp_proposals = aes128gcm16
             }}"
        )
    };
    let children: Vec<String> = (0..CHILDREN).map(child).collect();
    common::text(own, &format!("version = {version}"), &children.join("\n"))
}

/// Runs both sites, and checks every message that they send. Returns the number of messages.
fn run(sites: &mut [Site; 2], now: &mut Instant, time: Duration) -> usize {
    let end = *now + time;
    let mut checked = 0;
    while *now < end {
        for at in 0..2 {
            let Site { gateway, kernel } = &mut sites[at];
            gateway.turn(*now);
            let installed = gateway.installed().len() + gateway.ending();
            let sent = kernel.take_sent();
            for outgoing in sent {
                let Outgoing::Ike { from, to, message, inbound_sas } = outgoing else { continue };
                // IKE_SA_INIT has no keys of a Child SA.
                if message[18] != 34 {
                    assert!(inbound_sas >= installed, "{installed} SAs are installed, packets meet {inbound_sas}");
                    checked += 1;
                }
                sites[1 - at].gateway.receive_ike(*now, to, from, message);
            }
        }
        *now += Duration::from_millis(5);
    }
    checked
}

#[test]
fn no_message_precedes_the_sa_that_it_permits() {
    for version in [1, 2] {
        let mut now = Instant::now();
        let mut sites = common::start(now, |own| format!("10.{own}.0.0/16"), |own| text(version, own));
        for number in 0..CHILDREN {
            let name = format!("n{number}");
            sites[0].gateway.command(now, Command::Initiate, &[("child", &name), ("timeout", "-1")]);
            run(&mut sites, &mut now, Duration::from_millis(20));
        }
        run(&mut sites, &mut now, Duration::from_secs(2));
        assert_eq!(sites.each_ref().map(|site| site.gateway.installed().len()), [CHILDREN; 2], "version {version}");
        // Successors, many at a time.
        for at in [0, 1] {
            for number in 0..CHILDREN {
                sites[at].gateway.command(now, Command::Rekey, &[("child", &format!("n{number}"))]);
            }
            let checked = run(&mut sites, &mut now, Duration::from_secs(8));
            assert!(checked > CHILDREN, "{checked} messages");
        }
    }
}
