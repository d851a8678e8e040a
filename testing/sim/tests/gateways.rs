//! Whole gateways by seed: `GATEWAY_SEED` runs and prints one, `GATEWAY_SEEDS` runs that many from
//! `GATEWAY_FIRST` on.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sim::gateways::{Report, run};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Seeds that `cargo test` runs.
const SEEDS: u64 = 1000;
/// Failed stories that are shown whole.
const SHOWN: usize = 3;

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value}: a number is expected")))
}

fn play(seed: u64) -> Result<Report, String> {
    catch_unwind(AssertUnwindSafe(|| run(seed, false))).map_err(|why| {
        let text = why.downcast_ref::<String>().cloned();
        text.or(why.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default()
    })
}

#[test]
fn every_seed_ends_well() {
    if let Some(seed) = number("GATEWAY_SEED") {
        let level = std::env::var("GATEWAY_LOG").unwrap_or_else(|_| "info".to_owned());
        let filter: Targets = level.parse().expect("GATEWAY_LOG: levels, such as ike=debug,child=debug");
        let lines = tracing_subscriber::fmt::layer().without_time().with_writer(std::io::stderr);
        tracing_subscriber::registry().with(filter).with(lines).init();
        println!("seed {seed}: {:?}", run(seed, true));
        return;
    }
    let (first, count) = (number("GATEWAY_FIRST").unwrap_or(0), number("GATEWAY_SEEDS").unwrap_or(SEEDS));
    let (next, start) = (AtomicU64::new(first), Instant::now());
    let failed = Mutex::new(BTreeMap::new());
    let totals = Mutex::new((0.0, 0, 0));
    // Failures are reported once, at the end.
    std::panic::set_hook(Box::new(|_| ()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    match play(seed) {
                        Ok(report) => {
                            let mut totals = totals.lock().expect("no thread panics with the lock");
                            totals.0 += report.time.as_secs_f64();
                            totals.1 += report.datagrams;
                            totals.2 += report.packets;
                        }
                        Err(why) => {
                            failed.lock().expect("no thread panics with the lock").insert(seed, why);
                        }
                    }
                }
            });
        }
    });
    let _ = std::panic::take_hook();
    let failed = failed.into_inner().expect("whole");
    let (time, datagrams, packets) = totals.into_inner().expect("whole");
    println!(
        "{count} gateway seeds from {first}: {:.0} simulated hours, {datagrams} datagrams of IKE, {packets} packets \
         delivered in {:.1} s; {} failed",
        time / 3600.0,
        start.elapsed().as_secs_f64(),
        failed.len()
    );
    for (seed, why) in failed.iter().take(SHOWN) {
        eprintln!("---- seed {seed}\n{why}\n");
    }
    for (seed, why) in &failed {
        eprintln!("GATEWAY_SEED={seed}: {}", why.lines().last().unwrap_or_default());
    }
    assert!(failed.is_empty(), "{} of {count} seeds end badly; repeat one with GATEWAY_SEED", failed.len());
}

/// A difference between two runs of the same seed reveals a dependence on something that is not
/// simulated.
#[test]
fn a_seed_repeats_exactly() {
    for seed in [3, 14, 159] {
        assert_eq!(play(seed), play(seed), "seed {seed}");
    }
}
