//! IKE SAs per second and per megabyte: the endpoint alone, in memory, with real cryptography.
//!
//! One responder and one initiator for each IKE SA run on one thread; the figures are therefore the
//! cost of both endpoints on one core. Both authenticate with ECDSA P-256 over X25519 and AES-GCM,
//! and each IKE SA brings one Child SA. The endpoint has no sockets, so neither have the figures.

mod daemon;
mod flood;
mod host;

use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets};

pub use self::daemon::{DaemonOptions, DaemonOutcome, daemon_json, daemon_table, run as run_daemon};
pub use self::flood::Flood;
use self::host::{Net, client, gateway};
use crate::host::resident_bytes as resident;
use crate::stats::{Estimate, Rng, median_with_interval};

/// Options of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct IkeOptions {
    /// Timed rounds of each rate.
    pub rounds: usize,
    /// Exchanges per round.
    pub batch: usize,
    /// IKE SAs that are held for the figure of memory.
    pub sas: usize,
    /// Spoofed IKE_SA_INIT per second of the flood.
    pub flood_pps: u32,
    /// Seed of the bootstrap.
    pub seed: u64,
}

/// Result of the measurement.
#[derive(Clone, Debug, serde::Serialize)]
pub struct IkeOutcome {
    /// IKE SAs with one Child SA each, per second, both endpoints on one core.
    pub ike_sas_per_s: Estimate,
    /// Rekeyings of Child SAs with PFS, per second, both endpoints on one core.
    pub child_rekeys_per_s: Estimate,
    /// Rekeyings of IKE SAs, per second, both endpoints on one core.
    pub ike_rekeys_per_s: Estimate,
    /// Each round of the three above, in that order.
    pub trials: [Vec<f64>; 3],
    /// IKE SAs with one Child SA each that the responder held.
    pub held: usize,
    /// Resident memory that they took, in bytes.
    pub held_bytes: u64,
    /// The flood.
    pub flood: Flood,
}

/// Called before each step with (done, total).
type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// Measures everything.
///
/// # Panics
/// When an IKE SA does not come up in memory without loss: a bug.
pub fn run(options: &IkeOptions, progress: Progress<'_>) -> IkeOutcome {
    /// Steps of memory and flood on the progress bar, by the time they take.
    const MEMORY_STEPS: usize = 20;
    let total = 2 * options.rounds + MEMORY_STEPS + flood::SECONDS;
    let mut done = 0;
    let mut step = |progress: &mut dyn FnMut(usize, usize)| {
        progress(done, total);
        done += 1;
    };
    // Memory first: nothing that was freed before can be used again for it.
    let (held, held_bytes) = hold(options.sas, MEMORY_STEPS, &mut || step(progress));
    let mut trials: [Vec<f64>; 3] = Default::default();
    for round in 0..options.rounds + 1 {
        step(progress);
        let rate = handshakes(options.batch);
        // The first one only warms up.
        if round > 0 {
            trials[0].push(rate);
        }
    }
    for _ in 0..options.rounds {
        step(progress);
        let [child, ike] = rekeys(options.batch);
        trials[1].push(child);
        trials[2].push(ike);
    }
    let flood = flood::run(options.flood_pps, &mut || step(progress));
    let mut rng = Rng::new(options.seed);
    let mut estimate = |trials: &[f64]| median_with_interval(trials, &mut rng);
    IkeOutcome {
        ike_sas_per_s: estimate(&trials[0]),
        child_rekeys_per_s: estimate(&trials[1]),
        ike_rekeys_per_s: estimate(&trials[2]),
        trials,
        held,
        held_bytes,
        flood,
    }
}

/// One round of each rate: IKE SAs with a Child SA, rekeyed Child SAs, rekeyed IKE SAs; per second,
/// both endpoints on one core.
pub fn rates(count: usize) -> [f64; 3] {
    let [child, ike] = rekeys(count);
    [handshakes(count), child, ike]
}

/// Brings so many IKE SAs up and lets their initiators go; their number and memory.
fn hold(count: usize, steps: usize, step: &mut dyn FnMut()) -> (usize, u64) {
    let mut net = Net::new(gateway());
    // One-time memory of the first one: tables, the library, the allocator.
    net.bring_up(client(0));
    let (before, each_step) = (resident(), count.div_ceil(steps).max(1));
    for number in 0..count {
        if number % each_step == 0 {
            step();
        }
        net.bring_up(client(number + 1));
    }
    let held = net.gateway.ike_sa_count() - 1;
    assert_eq!(held, count, "IKE SAs at the responder");
    (held, resident().saturating_sub(before))
}

fn handshakes(count: usize) -> f64 {
    let mut net = Net::new(gateway());
    let mut clients: Vec<_> = (0..count).map(client).collect();
    let start = Instant::now();
    for client in clients.drain(..) {
        net.bring_up(client);
    }
    count as f64 / start.elapsed().as_secs_f64()
}

/// Rekeyings per second of the Child SA and of the IKE SA.
fn rekeys(count: usize) -> [f64; 2] {
    let mut net = Net::new(gateway());
    let mut clients: Vec<_> = (0..count.min(64)).map(|number| net.bring_up(client(number))).collect();
    [false, true].map(|ike| {
        let start = Instant::now();
        for number in 0..count {
            let at = number % clients.len();
            net.rekey(&mut clients[at], ike);
        }
        count as f64 / start.elapsed().as_secs_f64()
    })
}

/// The table for people.
pub fn ike_table(outcome: &IkeOutcome) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["what", "median", "95 %", "unit"]);
    let rates = [
        ("IKE SA and Child SA", &outcome.ike_sas_per_s),
        ("rekeyed Child SA (PFS)", &outcome.child_rekeys_per_s),
        ("rekeyed IKE SA", &outcome.ike_rekeys_per_s),
    ];
    for (what, rate) in rates {
        let spread = format!("{:.0}-{:.0}", rate.low, rate.high);
        table.add_row([what, &format!("{:.0}", rate.value), &spread, "per second, both endpoints on one core"]);
    }
    let (mb, each) = (outcome.held_bytes as f64 / 1e6, outcome.held_bytes as f64 / outcome.held as f64 / 1e3);
    table.add_row([
        format!("{} IKE SAs held", outcome.held),
        format!("{mb:.0}"),
        String::new(),
        format!("MB per endpoint, {each:.1} kB each"),
    ]);
    let flood = &outcome.flood;
    table.add_row([
        format!("flood of {}/s: honest peer is up", flood.pps),
        flood.up_after_s.map_or_else(|| "never".to_owned(), |after| format!("{:.0}", after * 1e3)),
        String::new(),
        format!("ms, round trip {} ms", flood::ROUND_TRIP.as_millis()),
    ]);
    table.add_row([
        "its cost".to_owned(),
        format!("{:.0}", flood.load * 100.0),
        String::new(),
        format!("% of a core; half open at most {}, {:.1} MB more", flood.half_open_max, flood.bytes as f64 / 1e6),
    ]);
    for column in table.column_iter_mut().skip(1).take(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// The same for machines.
pub fn ike_json(options: &IkeOptions, outcome: &IkeOutcome) -> serde_json::Value {
    serde_json::json!({
        "what": "two IKE endpoints in memory on one thread; ECDSA P-256, X25519, AES-128-GCM",
        "rounds": options.rounds,
        "batch": options.batch,
        "cpu": crate::host::cpu_model(),
        "cpus": crate::host::cpus(),
        "kernel": crate::host::kernel(),
        "commit": crate::host::commit(),
        "result": outcome,
    })
}
