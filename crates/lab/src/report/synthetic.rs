//! A run that never happened, for tests: every study, known numbers, a little noise.

use super::analysis::Folder;
use crate::campaign::env::{Environment, Fixed};
use crate::campaign::store::Problem;
use crate::campaign::{Campaign, Kind, format, runner, schedule};
use crate::stats::Rng;
use crate::trial::{SCHEMA, Trial};

/// A campaign with every kind of study.
pub(crate) const TEXT: &str = r#"
name = "synthetic"
title = "A run that never happened"
[[study]]
kind = "noise"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [512]
directions = ["out"]
[[study]]
kind = "sizes"
subjects = ["weir-esp-tunnel-aes128gcm16", "weir-psp-tunnel-aes128gcm16", "cipher-esp-tunnel-aes128gcm16"]
traffic = [64, 512, 1400, "imix"]
directions = ["out", "in"]
[[study]]
kind = "validate"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [97, 449, 915]
directions = ["out"]
[[study]]
kind = "loss"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [512]
directions = ["out"]
loads = [0.1, 0.5, 0.9, 1.1]
[[study]]
kind = "overheads"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [736]
directions = ["out", "in"]
[[study]]
kind = "modes"
subjects = ["weir-esp-tunnel-aes128gcm16", "weir-esp-transport-aes128gcm16"]
traffic = [160, 1400]
directions = ["out"]
[[study]]
kind = "wire"
subjects = ["weir-esp-tunnel-aes128gcm16", "weir-psp-tunnel-aes128gcm16"]
traffic = [64, 512, 1400]
sessions = 1
rounds = 1
[[study]]
kind = "series"
subjects = ["weir-esp-tunnel-aes128gcm16"]
sessions = 1
rounds = 40
[[study]]
kind = "replay"
subjects = ["weir-esp-tunnel-aes128gcm16"]
directions = ["in"]
replay = [32, 1024, 65536]
[[study]]
kind = "sas"
subjects = ["weir-esp-tunnel-aes128gcm16"]
sas = [1, 100]
[[study]]
kind = "scaling"
subjects = ["weir-esp-tunnel-aes128gcm16"]
cores = [1, 2]
[[study]]
kind = "keying"
subjects = ["weir-esp-tunnel-aes128gcm16"]
rounds = 3
"#;

/// The campaign.
pub(crate) fn campaign() -> Campaign {
    format::parse("synthetic.toml", TEXT).expect("it is right")
}

/// Its trials; those of the study `scaling` are missing.
pub(crate) fn trials() -> Vec<Trial> {
    let campaign = campaign();
    let mut rng = Rng::new(5);
    let mut trials = Vec::new();
    for study in campaign.studies.iter().filter(|study| study.kind != Kind::Scaling) {
        // Few sessions: intervals are the dearest part of a report.
        for session in 0..study.sessions.min(3) {
            for planned in schedule::session(study, campaign.seed, session) {
                let noise = (rng.next_u64() % 1000) as f64 / 100_000.0;
                trials.push(trial(study, session, &planned, noise));
            }
        }
    }
    trials
}

fn trial(study: &crate::campaign::Study, session: u32, planned: &schedule::Planned, noise: f64) -> Trial {
    let cell = &planned.cell;
    let size = runner::one_size(&cell.traffic);
    let bytes = f64::from(size.unwrap_or(334));
    let fixed = if cell.subject.contains("psp") {
        420.0
    } else if cell.subject.contains("cipher") {
        150.0
    } else {
        300.0
    };
    let ticks = (fixed + 0.4 * bytes) * (1.0 + noise) * if planned.round > 20 { 1.3 } else { 1.0 };
    let received = 100_000_u64;
    let mut measured = crate::trial::Measurement {
        sent: received,
        received,
        received_bytes: received * bytes as u64,
        verified: received / 100,
        dur_ns: (ticks * received as f64 / 2.5) as u64,
        tsc: Some((ticks * received as f64) as u64),
        ..Default::default()
    };
    let values = &mut measured.values;
    let mut value = |name: &str, number: f64| {
        values.insert(name.to_owned(), number);
    };
    match study.kind {
        Kind::Noise => value("arm", cell.arm.map_or(0.0, f64::from)),
        Kind::Loss => {
            let load = cell.load.unwrap_or(1.0);
            value("load", load);
            measured.received = (received as f64 / load.max(1.0)) as u64;
            measured.latency = latency(load, planned.seed);
        }
        Kind::Overheads => {
            for (stage, ticks) in
                [("parse", 40.0), ("policy", 60.0), ("prepare", 80.0), ("engine", 380.0), ("finish", 30.0)]
            {
                value(&format!("stage.{stage}_ticks"), ticks * (1.0 + noise));
            }
            for (layer, ticks) in [("native", 60.0), ("header", 140.0), ("cipher", 590.0)] {
                value(&format!("rung.{layer}_ticks"), ticks * (1.0 + noise));
            }
        }
        Kind::Wire => value("wire_bytes", bytes + if cell.subject.contains("psp") { 64.0 } else { 57.0 }),
        Kind::Series => {
            value("cpu0_busy_percent", 95.0 + noise);
            value("cpu1_busy_percent", 20.0 + noise);
        }
        Kind::Keying => {
            value("ike_sas_per_s", 900.0 * (1.0 + noise));
            value("child_rekeys_per_s", 4000.0 * (1.0 + noise));
            value("ike_rekeys_per_s", 3000.0 * (1.0 + noise));
        }
        _ => {}
    }
    Trial {
        schema: SCHEMA,
        run: "synthetic".into(),
        session,
        round: planned.round,
        order: planned.order,
        seed: planned.seed,
        at_ms: 1_700_000_000_000 + u64::from(planned.order) * 20,
        study: study.name.clone(),
        subject: cell.subject.clone(),
        protocol: if cell.subject.starts_with("cipher-") { "cipher".into() } else { "esp".into() },
        mode: "tunnel".into(),
        suite: "aes128gcm16".into(),
        direction: cell.direction,
        traffic: cell.traffic.clone(),
        size,
        cores: cell.cores,
        sas: cell.sas,
        replay: cell.replay,
        batch: study.batch,
        offered_pps: cell.load.map(|load| load * 1e6),
        goal: None,
        measured,
        env: "0011223344556677".into(),
    }
}

fn latency(load: f64, seed: u64) -> Option<String> {
    let mut latency = crate::meter::Latency::default();
    let mut rng = Rng::new(seed);
    for _ in 0..2000 {
        let tail = 1.0 / (1.0 - (rng.next_u64() >> 12) as f64 / (1_u64 << 52) as f64);
        latency.record(0, (2000.0 + 500.0 * load * tail.min(500.0)) as u64);
    }
    latency.encode()
}

/// All of it.
pub(crate) fn folder() -> Folder {
    let fixed = Fixed {
        cpu: "Processor & Co".into(),
        kernel: "6.1".into(),
        cpus: 2,
        build: "release".into(),
        ..Fixed::default()
    };
    let environment = Environment { hash: "0011223344556677".into(), fixed, tsc_hz: 2.5e9, ..Environment::default() };
    let problem = Problem {
        study: "scaling".into(),
        subject: "weir-esp-tunnel-aes128gcm16".into(),
        why: "not built: <schedulers>".into(),
        failed: false,
    };
    Folder { campaign: campaign(), trials: trials(), problems: vec![problem], environments: vec![environment] }
}
