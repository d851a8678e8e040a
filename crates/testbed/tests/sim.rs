//! Two gateways over a link that loses, reorders and duplicates. The seed repeats a run exactly.

use std::collections::{HashMap, VecDeque};

use crypto::Engine;
use dataplane::{Batch, Totals, Worker, WorkerConfig};
use ipsec::{DropReason, Protocol};
use stats::Rng;
use testbed::pair::{Shape, Subject};
use wire::IpProto;

/// One direction of a link: what is in flight, with the step at which it arrives.
struct Link {
    in_flight: VecDeque<(usize, Vec<u8>)>,
    lost: u64,
    duplicated: u64,
}

impl Link {
    fn carry(&mut self, step: usize, packet: &[u8], rng: &mut Rng) {
        if rng.below(100) < 5 {
            self.lost += 1;
            return;
        }
        let copies = if rng.below(100) < 5 { 2 } else { 1 };
        self.duplicated += copies - 1;
        for _ in 0..copies {
            // Most take one step; some are late by up to 20 steps of up to 8 packets.
            let delay = if rng.below(10) == 0 { 1 + rng.below(20) } else { 1 };
            self.in_flight.push_back((step + delay, packet.to_vec()));
        }
    }

    fn arrivals(&mut self, step: usize) -> Vec<Vec<u8>> {
        let (now, later): (Vec<_>, Vec<_>) = self.in_flight.drain(..).partition(|(at, _)| *at <= step);
        self.in_flight = later.into();
        now.into_iter().map(|(_, packet)| packet).collect()
    }
}

struct Outcome {
    sent: u64,
    delivered: HashMap<Vec<u8>, u64>,
    totals: Totals,
    link: Link,
    trace: u64,
}

fn run(subject: &Subject, seed: u64) -> Outcome {
    let mut rng = Rng::new(seed);
    let config = WorkerConfig { batch: 64, ..WorkerConfig::default() };
    let (mut sun, mut moon) = (Worker::new(config.clone()).0, Worker::new(config).0);
    let [sending, receiving] = subject.tables().unwrap();
    let [src, dst] = subject.packet_addresses();
    let mut link = Link { in_flight: VecDeque::new(), lost: 0, duplicated: 0 };
    let (mut sent, mut delivered, mut trace) = (0u64, HashMap::new(), 0u64);
    let (mut batch, mut replies) = (Batch::new(64, 2048), Batch::new(4, 2048));
    for step in 0..500 {
        batch.clear();
        if step < 450 {
            for _ in 0..rng.below(9) {
                let (a, b) = ((sent >> 16) as u16, sent as u16);
                let packet = testbed::packet::udp(src, dst, a + 1, b, 40 + rng.below(1200), IpProto::UDP);
                batch.push_with(|p| p.set(&packet));
                sent += 1;
            }
        }
        sun.tick(step as u64);
        sun.outbound(&sending, &mut batch, &mut replies);
        for packet in batch.packets() {
            link.carry(step, packet.bytes(), &mut rng);
        }
        batch.clear();
        for packet in link.arrivals(step) {
            if batch.room() == 0 {
                moon.inbound(&receiving, &mut batch);
                collect(&mut batch, &mut delivered, &mut trace);
            }
            batch.push_with(|p| p.set(&packet));
        }
        moon.tick(step as u64);
        moon.inbound(&receiving, &mut batch);
        collect(&mut batch, &mut delivered, &mut trace);
    }
    let (a, b) = (sun.counters(), moon.counters());
    Outcome { sent, delivered, totals: Totals::of([&*a, &*b]), link, trace }
}

fn collect(batch: &mut Batch, delivered: &mut HashMap<Vec<u8>, u64>, trace: &mut u64) {
    for packet in batch.packets() {
        *delivered.entry(packet.bytes().to_vec()).or_default() += 1;
        for byte in packet.bytes() {
            *trace = trace.wrapping_mul(0x100_0000_01b3) ^ u64::from(*byte);
        }
    }
    batch.clear();
}

#[test]
fn every_packet_arrives_at_most_once_and_only_the_link_loses_any() {
    for (protocol, shape, suite) in [
        (Protocol::Esp, Shape::Tunnel, "aes128gcm16"),
        (Protocol::Esp, Shape::Transport, "aes128-sha256"),
        (Protocol::Ah, Shape::Transport, "sha256"),
        (Protocol::Eesp, Shape::Tunnel, "aes256gcm16iiv"),
        (Protocol::Psp, Shape::Tunnel, "aes128gcm16"),
    ] {
        for seed in 1..=4 {
            let what = format!("{protocol:?} {shape:?} {suite}, seed {seed}");
            let outcome = run(&Subject::new(protocol, shape, suite, Engine::best()), seed);
            assert!(outcome.sent > 1000 && outcome.link.lost > 20 && outcome.link.duplicated > 20, "{what}");
            assert!(outcome.delivered.values().all(|n| *n == 1), "{what}: something arrived twice");
            assert_eq!(outcome.delivered.len() as u64, outcome.sent - outcome.link.lost, "{what}");
            assert_eq!(outcome.totals.drops[DropReason::Replay as usize], outcome.link.duplicated, "{what}");
        }
    }
}

#[test]
fn a_small_window_refuses_what_is_late_and_counts_it() {
    let subject = Subject { window: 32, ..Subject::new(Protocol::Esp, Shape::Tunnel, "aes128gcm16", Engine::best()) };
    let outcome = run(&subject, 9);
    let (late, twice) =
        (outcome.totals.drops[DropReason::TooOld as usize], outcome.totals.drops[DropReason::Replay as usize]);
    assert!(late > 0, "reordering by 20 steps must overtake a window of 32");
    let arrived = outcome.sent - outcome.link.lost + outcome.link.duplicated;
    assert_eq!(outcome.delivered.len() as u64 + late + twice, arrived);
}

#[test]
fn a_seed_repeats_a_run_exactly() {
    let subject = Subject::new(Protocol::Eesp, Shape::Tunnel, "aes128gcm16", Engine::best());
    assert_eq!(run(&subject, 42).trace, run(&subject, 42).trace);
    assert_ne!(run(&subject, 42).trace, run(&subject, 43).trace);
}
