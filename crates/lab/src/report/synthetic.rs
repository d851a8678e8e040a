//! A run that never happened, for tests: every study, known numbers, a little noise.

use super::analysis::Folder;
use crate::campaign::env::{Environment, Fixed};
use crate::campaign::store::Problem;
use crate::campaign::{Campaign, Kind, format, runner, schedule};
use crate::metric::Metric;
use crate::trial::{Direction, SCHEMA, Trial};
use stats::Rng;

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
traffic = [64, 512, 1024, 1400, "imix"]
directions = ["out", "in"]
[[study]]
kind = "validate"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [97, 449, 915, "imix"]
directions = ["out"]
[[study]]
kind = "loss"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [512]
directions = ["out"]
loads = [0.1, 0.5, 0.9, 1.1]
[[study]]
kind = "search"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [512]
directions = ["out"]
goals = ["0.1f0.1d0l50e", "0.1f0.1d0.5l50e"]
rounds = 1
[[study]]
name = "between"
kind = "sizes"
place = "namespaces"
subjects = ["weir-esp-tunnel-aes128gcm16", "wireguard-go"]
traffic = [1400]
rounds = 2
[[study]]
name = "rtt-noise"
kind = "noise"
place = "namespaces"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [160]
directions = ["out"]
[[study]]
name = "rtt"
kind = "modes"
place = "namespaces"
subjects = ["weir-esp-tunnel-aes128gcm16", "weir-esp-transport-aes128gcm16"]
traffic = [160]
directions = ["out", "in"]
[[study]]
name = "tcp"
kind = "series"
place = "namespaces"
subjects = ["weir-esp-tunnel-aes128gcm16"]
sessions = 1
rounds = 20
duration_ms = 1000
[[study]]
kind = "path"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [64, 1400]
directions = ["out", "in"]
[[study]]
kind = "engines"
subjects = ["cipher-esp-tunnel-aes128gcm16,engine=aws_lc", "cipher-esp-tunnel-aes128gcm16,engine=vaes"]
traffic = [64, 1400]
directions = ["out", "in"]
[[study]]
kind = "overheads"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [64, 736, 1400]
directions = ["out", "in", "both"]
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
subjects = ["weir-esp-tunnel-aes128gcm16", "weir-psp-tunnel-aes128gcm16"]
directions = ["in"]
sas = [1, 1000]
[[study]]
kind = "scaling"
subjects = ["weir-esp-tunnel-aes128gcm16", "weir-eesp-tunnel-aes128gcm16", "weir-psp-tunnel-aes128gcm16"]
traffic = [64]
cores = [1, 2, 3, 4, 6, 8]
spreads = ["ideal", "worst"]
flows = [64]
rounds = 1
[[study]]
name = "engine"
kind = "scaling"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [78, 142, 206, 270, 334, 398, 462, 526, 590, 654, 718, 782, 846, 910, 974, 1038, 1102, 1166, 1230, 1294, 1358]
rounds = 1
cores = [2]
schedulers = ["async-split"]
[[study]]
kind = "keying"
subjects = ["weir-esp-tunnel-aes128gcm16"]
rounds = 3
[[study]]
kind = "sessions"
subjects = ["ikev1-main-rsa2048-aes128-md5-modp1024", "ikev1-main-psk-aes128-md5-modp1024",
    "ikev1-aggressive-rsa2048-aes128-md5-modp1024"]
rounds = 3
[[study]]
name = "forwarded"
kind = "sizes"
subjects = ["plain", "weir-esp-tunnel-aes128-md5"]
traffic = [736]
directions = ["out", "in"]
"#;

/// The campaign.
pub(crate) fn campaign() -> Campaign {
    format::parse("synthetic.toml", TEXT).expect("it is right")
}

/// Its trials.
pub(crate) fn trials() -> Vec<Trial> {
    trials_of(&campaign())
}

fn trials_of(campaign: &Campaign) -> Vec<Trial> {
    let mut rng = Rng::new(5);
    let mut trials = Vec::new();
    for (number, study) in campaign.studies.iter().enumerate() {
        // Few sessions: intervals are the dearest part of a report.
        for session in 0..study.sessions.min(3) {
            for planned in schedule::session(study, campaign.seed, session) {
                let noise = (rng.next_u64() % 1000) as f64 / 100_000.0;
                // Every study has separate processes.
                let trial = trial(study, 10 * number as u32 + session, &planned, noise);
                if study.kind == Kind::Search { trials.extend(searched(study, &trial)) } else { trials.push(trial) }
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
    } else if cell.subject == "plain" {
        100.0
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
    if study.place != crate::campaign::Place::Memory {
        (measured.tsc, measured.cpu_ns) = (None, Some(received * 4000));
        measured.dur_ns *= 10;
    }
    let values = &mut measured.values;
    let mut value = |metric: Metric<'_>, number: f64| values.set(metric, number);
    match study.kind {
        Kind::Noise => {
            value(Metric::Arm, cell.arm.map_or(0.0, f64::from));
            value(Metric::RttP50, (ticks / 5.0).round());
            value(Metric::RttP99, (ticks / 2.0).round());
        }
        Kind::Modes => {
            value(Metric::RttP50, (ticks / 5.0).round());
            value(Metric::RttP99, (ticks / 2.0).round());
            value(Metric::WireBytes, bytes + 57.0);
            measured.latency = latency(0.5, planned.seed);
        }
        // Each SA costs more than the one before, unless its key is derived.
        Kind::Sas => {
            let extra = if cell.subject.contains("psp") { 0.0 } else { f64::from(cell.sas) };
            measured.tsc = Some(((ticks + extra) * received as f64) as u64);
            value(Metric::DeriveNs, 400.0 * (1.0 + noise));
            value(Metric::SaBytesSender, 1500.0);
            value(Metric::SaBytesReceiver, if cell.subject.contains("psp") { 1.0 } else { 1400.0 });
        }
        Kind::Loss => {
            let load = cell.load.unwrap_or(1.0);
            value(Metric::Load, load);
            measured.received = (received as f64 / load.max(1.0)) as u64;
            measured.latency = latency(load, planned.seed);
        }
        Kind::Overheads if cell.direction == Direction::Both => {
            let layers = [("native", 900.0), ("skeleton", 1400.0), ("full", 2400.0)];
            let falls = [("in.parse", 50.0), ("in.engine", 500.0), ("echo.answer", 300.0), ("out.engine", 510.0)];
            for (name, ticks) in layers.into_iter().chain(falls) {
                value(Metric::Ticks(&format!("ping.{name}")), ticks * (1.0 + noise));
            }
            value(Metric::PingCryptoShare, 1000.0 / 1500.0);
        }
        Kind::Overheads => {
            for (stage, ticks) in
                [("parse", 40.0), ("policy", 60.0), ("prepare", 80.0), ("engine", 380.0), ("finish", 30.0)]
            {
                value(Metric::Ticks(&format!("stage.{stage}")), ticks * (1.0 + noise));
            }
            for (layer, ticks) in [("native", 60.0), ("header", 140.0), ("cipher", 590.0)] {
                value(Metric::Ticks(&format!("rung.{layer}")), ticks * (1.0 + noise));
                value(Metric::Ticks(&format!("added.{layer}")), 0.5 * ticks);
            }
            let whole = [
                ("path", 300.0 + 0.4 * bytes),
                ("path_null", 200.0),
                ("engine", 110.0 + 0.4 * bytes),
                ("engine_call", 10.0),
            ];
            whole.into_iter().for_each(|(name, ticks)| value(Metric::Ticks(name), ticks));
        }
        Kind::Transfers => {
            if let Some(arm) = cell.arm {
                value(Metric::Arm, arm.into());
            }
            value(Metric::CpuSPerGbit, 1.2 * (1.0 + noise));
            value(Metric::SetupFirstPacketMs, 12.0 * (1.0 + noise));
            value(Metric::SetupMessages, if cell.subject.contains("per-cpu") { 8.0 } else { 4.0 });
            measured.dur_ns = 1_000_000_000;
            measured.received_bytes = (250_000_000.0 * (1.0 + noise)) as u64;
        }
        Kind::Path => {
            value(Metric::Ticks("engine"), ticks - 50.0);
            value(Metric::Ticks("without_engine"), 50.0 * (1.0 + noise));
            value(Metric::OverEngine, ticks / (ticks - 50.0));
            value(Metric::Flows, 1.0);
            value(Metric::MemoryMib, 0.0);
        }
        Kind::Wire => value(Metric::WireBytes, bytes + if cell.subject.contains("psp") { 64.0 } else { 57.0 }),
        Kind::Series => {
            value(Metric::Processor(0, "busy"), 95.0 + noise);
            value(Metric::Processor(1, "busy"), 20.0 + noise);
        }
        Kind::Scaling => {
            let (way, cores) = (cell.way.expect("it has one"), f64::from(cell.cores));
            // A serial share of 5 %, and a pipeline that starts lower.
            let start = if way.scheduler == crate::cores::Scheduler::Pipeline { 0.8 } else { 1.0 };
            let reached = way.ceiling(cell.cores).min(cores) * start / (1.0 + 0.05 * (cores - 1.0)) * (1.0 + noise);
            measured.dur_ns = (received as f64 * ticks / 2.5 / reached) as u64;
            if way.scheduler == crate::cores::Scheduler::AsyncSplit {
                // Equation 4, with a breakpoint at 625 bytes.
                let time_ns = 300f64.max(50.0 + 0.4 * bytes) * (1.0 + noise / 10.0);
                measured.dur_ns = (received as f64 * time_ns) as u64;
            }
            let used = if way.ceiling(cell.cores) > 1.0 { cores } else { 1.0 };
            value(Metric::UsedQueues, used);
            value(Metric::Jain, used / cores);
            value(Metric::WrongCore, 0.0);
            value(Metric::Disordered, 0.0);
        }
        // Only the receiver derives.
        Kind::Sessions if cell.subject.starts_with("psp-") => {
            value(Metric::Ticks("full.responder"), 1e3 * (1.0 + noise));
        }
        // Rows of round numbers; the signature is the largest.
        Kind::Sessions => {
            value(Metric::Arm, cell.arm.map_or(0.0, f64::from));
            for (end, scale) in [("initiator", 0.95), ("responder", 1.0)] {
                let mut sum = 0.0;
                for (at, (row, _)) in crate::sessions::ROWS.iter().enumerate() {
                    let ticks = if *row == "p1_sign" { 1e6 } else { 1e4 * (at + 1) as f64 };
                    sum += ticks * scale * (1.0 + noise);
                    value(Metric::Ticks(&format!("{end}.{row}")), ticks * scale * (1.0 + noise));
                }
                let parts = [("full", 1.5), ("timed", 1.52), ("skeleton", 0.5), ("sockets", 1.7)];
                parts.iter().for_each(|(variant, over)| value(Metric::Ticks(&format!("{variant}.{end}")), sum * over));
            }
            value(Metric::FirstMessages, 6.0);
            value(Metric::QuickMessages, 3.0);
            value(Metric::WireBytes, 1500.0);
            value(Metric::Ticks("refresh_child"), 1e6 * (1.0 + noise));
            value(Metric::Ticks("refresh_ike"), 3e6 * (1.0 + noise));
            let trips = if cell.subject.contains("aggressive") { 2.0 } else { 4.0 };
            for round_trip_ms in crate::sessions::ROUND_TRIPS_MS {
                value(Metric::ElapsedAt(round_trip_ms), 1.0 + noise + trips * f64::from(round_trip_ms));
            }
        }
        Kind::Keying => {
            value(Metric::IkeSasPerS, 900.0 * (1.0 + noise));
            value(Metric::ChildRekeysPerS, 4000.0 * (1.0 + noise));
            value(Metric::IkeRekeysPerS, 3000.0 * (1.0 + noise));
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
        place: study.place,
        direction: cell.direction,
        traffic: cell.traffic.clone(),
        size,
        cores: cell.cores,
        sas: cell.sas,
        replay: cell.replay,
        batch: cell.batch,
        offered_pps: cell.load.map(|load| load * 1e6),
        goal: None,
        way: cell.way,
        measured,
        env: "0011223344556677".into(),
    }
}

/// A search by hand: a load with too much loss, one with little, one without; latency, and the
/// results.
fn searched(study: &crate::campaign::Study, like: &Trial) -> Vec<Trial> {
    use crate::campaign::search::recompute;
    let row = |part: f64, goal: Option<usize>, offered: Option<f64>, loss: f64| {
        let mut row = like.clone();
        row.goal = goal.map(|at| study.goals[at].code());
        row.offered_pps = offered;
        row.measured.received = (row.measured.sent as f64 * (1.0 - loss)) as u64;
        row.measured.dur_ns = 100_000_000;
        row.measured.values = [(Metric::SearchPart, part)].into();
        row
    };
    let mut rows = vec![row(0.0, None, None, 0.2)];
    for (pps, loss) in [(1.0e6, 0.1), (0.905e6, 0.001), (0.909e6, 0.1), (0.9e6, 0.0)] {
        rows.push(row(1.0, Some(0), Some(pps), loss));
    }
    rows.push(row(2.0, None, Some(1.2e6), 0.3));
    for share in [0.1, 0.5, 0.9] {
        let mut row = row(3.0, None, Some(0.905e6 * share), 0.0);
        row.measured.values.set(Metric::Load, share);
        row.measured.latency = latency(share, like.seed);
        rows.push(row);
    }
    let found = recompute(&study.goals, &rows.iter().collect::<Vec<_>>());
    for (at, found) in found.iter().enumerate() {
        let mut row = row(4.0, Some(at), None, 0.0);
        let bounds = [
            (Metric::LowerPps, found.lower),
            (Metric::UpperPps, found.upper),
            (Metric::ConditionalPps, found.conditional),
        ];
        row.measured.values.extend(bounds.into_iter().filter_map(|(metric, value)| Some((metric, value?))));
        row.measured.values.set(Metric::Regular, 1.0);
        rows.push(row);
    }
    rows
}

fn latency(load: f64, seed: u64) -> Option<String> {
    let mut latency = stats::Latency::default();
    let mut rng = Rng::new(seed);
    for _ in 0..2000 {
        let tail = 1.0 / (1.0 - (rng.next_u64() >> 12) as f64 / (1_u64 << 52) as f64);
        latency.record(0, (2000.0 + 500.0 * load * tail.min(500.0)) as u64);
    }
    latency.encode()
}

/// All of it.
pub(crate) fn folder() -> Folder {
    let campaign = campaign();
    let trials = trials();
    whole(campaign, trials)
}

/// A run of another campaign.
pub(crate) fn folder_of(text: &str) -> Folder {
    let campaign = format::parse("another.toml", text).expect("it is right");
    let trials = trials_of(&campaign);
    whole(campaign, trials)
}

fn whole(campaign: Campaign, trials: Vec<Trial>) -> Folder {
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
        why: "128 cores: only <8> are available".into(),
        failed: false,
    };
    Folder { campaign, trials, problems: vec![problem], environments: vec![environment] }
}
