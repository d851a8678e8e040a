//! Drives the timeouts of an endpoint with a silent peer: `cargo run -p weir-ike --example
//! timeouts`.
//!
//! A program waits for a datagram until [`Endpoint::deadline`]; here time jumps to it.
#![allow(clippy::disallowed_methods)] // a program has a clock, the library has none

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use weir_ike::output::{CommandError, Event};
use weir_ike::{Endpoint, Output, Settings};

/// Takes all outputs. Returns how many messages were sent, and how the command ended.
fn drain(endpoint: &mut Endpoint<ChaCha20Rng>, now: Instant) -> (usize, Option<Result<(), CommandError>>) {
    let (mut sent, mut done) = (0, None);
    while let Some(output) = endpoint.poll() {
        match output {
            Output::Transmit(_) => sent += 1,
            Output::RequestCredentials(request_id, question) => {
                endpoint.handle_credentials(now, request_id, common::answer(&question))
            }
            Output::Event(Event::CommandDone(_, result)) => done = Some(result),
            _ => {}
        }
    }
    (sent, done)
}

fn main() {
    let start = Instant::now();
    let mut endpoint = Endpoint::new(Settings::default(), ChaCha20Rng::seed_from_u64(1));
    endpoint.local_addresses(start, &[common::moon().addr]);
    endpoint.load(start, vec![Arc::new(common::connection(&common::moon(), &common::sun()))]);
    endpoint.initiate(start, "net", Some("lan"), 1).expect("the connection is loaded");

    let (mut now, mut sends) = (start, 0);
    let result = loop {
        let (sent, done) = drain(&mut endpoint, now);
        if sent > 0 {
            sends += sent;
            println!("{:6.1} s: message {sends}", (now - start).as_secs_f64());
        }
        if let Some(result) = done {
            break result;
        }
        now = endpoint.deadline().expect("a request without a response has a deadline").max(now);
        // Harmless when early. It should be called soon after the deadline; the exact time does not
        // matter.
        endpoint.handle_timeout(now);
    };
    let why = result.expect_err("no answer comes");
    println!("{:6.1} s: {why}", (now - start).as_secs_f64());
    assert_eq!(sends, 6, "a first message and five retransmissions");
    assert!(now - start > Duration::from_secs(160) && now - start < Duration::from_secs(170));
}

#[test]
fn runs() {
    main();
}
