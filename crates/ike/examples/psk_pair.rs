//! Two IKE endpoints in memory with a pre-shared key: `cargo run -p weir-ike --example psk_pair`.
#![allow(clippy::disallowed_methods)] // a program has a clock, the library has none

mod common;

use std::sync::Arc;
use std::time::Instant;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use weir_ike::output::{ChildSa, Event};
use weir_ike::{Endpoint, Output, Settings};

struct Host {
    endpoint: Endpoint<ChaCha20Rng>,
    child: Option<Box<ChildSa>>,
}

impl Host {
    fn new(now: Instant, seed: u64, local: &common::End, remote: &common::End) -> Self {
        // A seed of the operating system in a program; a fixed one makes the example repeat itself.
        let mut endpoint = Endpoint::new(Settings::default(), ChaCha20Rng::seed_from_u64(seed));
        endpoint.local_addresses(now, &[local.addr]);
        endpoint.load(now, vec![Arc::new(common::connection(local, remote))]);
        Self { endpoint, child: None }
    }

    /// Executes the outputs of this host's endpoint; messages go to `peer`. Returns whether there
    /// was anything.
    fn turn(&mut self, now: Instant, peer: &mut Self) -> bool {
        let mut any = false;
        while let Some(output) = self.endpoint.poll() {
            any = true;
            match output {
                Output::Transmit(sent) => peer.endpoint.handle_datagram(now, sent.remote, sent.local, &sent.datagram),
                Output::RequestCredentials(request_id, question) => {
                    self.endpoint.handle_credentials(now, request_id, common::answer(&question))
                }
                Output::Install(child) => self.child = Some(child),
                Output::Event(Event::CommandDone(_, result)) => result.expect("both ends agree"),
                _ => {}
            }
        }
        any
    }
}

fn main() {
    let now = Instant::now();
    let (moon, sun) = (common::moon(), common::sun());
    let (mut a, mut b) = (Host::new(now, 1, &moon, &sun), Host::new(now, 2, &sun, &moon));
    a.endpoint.initiate(now, "net", Some("lan"), 1).expect("the connection is loaded");
    while a.turn(now, &mut b) | b.turn(now, &mut a) {}

    let (at_moon, at_sun) = (a.child.expect("a Child SA"), b.child.expect("a Child SA"));
    println!("{} to {}, SPI {}", at_moon.remote_id, at_sun.remote_id, at_moon.outbound.spi);
    // The outbound key of one peer is the inbound key of the other: keys for weir-ipsec, or for the
    // kernel.
    assert_eq!(at_moon.outbound.spi, at_sun.inbound.spi);
    assert!(at_moon.outbound.enc == at_sun.inbound.enc && at_moon.inbound.enc == at_sun.outbound.enc);
    assert_eq!(at_moon.local_ts, at_sun.remote_ts);
}

#[test]
fn runs() {
    main();
}
