//! One factor at a time: replay windows, SAs, cores, rekeyings, energy.

use std::collections::BTreeMap;

use super::{cells, exact, label, style};
use crate::campaign::Kind;
use crate::report::analysis::{Folder, Key, keys, over_sessions, ticks, typical, values};
use crate::report::chart::{Axis, Chart, Rule, Series, WIDTH, short, trimmed};
use crate::report::figure::{Data, Figure};
use crate::svg::{Anchor, Svg};
use crate::trial::Trial;

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    vec![
        sweep(
            folder,
            Kind::Replay,
            "replay",
            "Replay window",
            "window, packets",
            |trial| trial.replay.into(),
            "The window's size decides how much memory a received packet touches.",
        ),
        sweep(
            folder,
            Kind::Sas,
            "sas",
            "Number of SAs",
            "SAs",
            |trial| trial.sas.into(),
            "Packets go over all SAs in turn, so that each finds its SA as cold as it can be.",
        ),
        scaling(folder),
        keying(folder),
        energy(folder),
        Figure::absent(
            "engine",
            "Asynchronous engine: the knee",
            "The data plane encrypts on the core that carries the packet: there is no engine beside it whose ring could fill. 'weir lab model' computes the curve for engines of others.",
        ),
    ]
}

fn sweep(
    folder: &Folder,
    kind: Kind,
    id: &'static str,
    title: &str,
    axis: &str,
    factor: fn(&Trial) -> f64,
    text: &str,
) -> Figure {
    let trials = folder.of(kind);
    let mut data = Data::new(&["subject", "direction", "traffic", axis, "ticks per packet", "low", "high"]);
    let mut chart = Chart::new(title, Axis::log(axis), Axis::linear("ticks per packet").covering(0.0, 1.0));
    for key in keys(&trials) {
        let mut by_factor: BTreeMap<u64, Vec<&Trial>> = BTreeMap::new();
        for trial in trials.iter().filter(|trial| Key::of(trial) == key) {
            by_factor.entry(factor(trial) as u64).or_default().push(trial);
        }
        let mut series = Series::new(&label(&key.subject, key.direction), style(folder, &key.subject));
        for (value, mine) in by_factor {
            let ticks = typical(&values(&mine, ticks));
            // A window of none stands left of all others.
            series.points.push((value.max(1) as f64, ticks));
            let mut row =
                vec![key.subject.clone(), super::way(key.direction).into(), key.traffic.clone(), value.to_string()];
            row.extend(cells(ticks));
            data.push(row);
        }
        chart.series.push(series);
    }
    if chart.series.iter().all(|series| series.points.is_empty()) {
        return Figure::absent(id, title, &folder.why_not(kind));
    }
    Figure::drawn(id, title, text, chart.draw(), data)
}

fn scaling(folder: &Folder) -> Figure {
    let (id, title) = ("scaling", "Cores");
    let trials = folder.of(Kind::Scaling);
    if trials.is_empty() {
        return Figure::absent(id, title, &folder.why_not(Kind::Scaling));
    }
    let mut chart =
        Chart::new(title, Axis::linear("cores").covering(0.0, 1.0), Axis::linear("Mpps").covering(0.0, 1.0));
    let mut data = Data::new(&["subject", "direction", "traffic", "cores", "Mpps", "low", "high"]);
    for key in keys(&trials) {
        let mut by_cores: BTreeMap<u32, Vec<&Trial>> = BTreeMap::new();
        for trial in trials.iter().filter(|trial| Key::of(trial) == key) {
            by_cores.entry(trial.cores).or_default().push(trial);
        }
        let mut series = Series::new(&label(&key.subject, key.direction), style(folder, &key.subject));
        for (cores, mine) in by_cores {
            let rate = over_sessions(&values(&mine, |trial| Some(trial.measured.pps() / 1e6)));
            series.points.push((cores.into(), rate));
            let mut row =
                vec![key.subject.clone(), super::way(key.direction).into(), key.traffic.clone(), cores.to_string()];
            row.extend(cells(rate));
            data.push(row);
        }
        chart.series.push(series);
    }
    Figure::drawn(id, title, "Packets per second by number of cores.", chart.draw(), data)
}

fn keying(folder: &Folder) -> Figure {
    let (id, title) = ("keying", "Setting up and rekeying");
    let trials = folder.of(Kind::Keying);
    if trials.is_empty() {
        return Figure::absent(id, title, &folder.why_not(Kind::Keying));
    }
    let rows = [
        ("IKE SA with a Child SA", "ike_sas_per_s"),
        ("rekeyed Child SA, with a key exchange", "child_rekeys_per_s"),
        ("rekeyed IKE SA", "ike_rekeys_per_s"),
    ];
    let mut data = Data::new(&["what", "per second", "low", "high", "ms each"]);
    let mut svg = Svg::new(WIDTH, rows.len() as f64 * 34.0);
    let rates = rows.map(|(_, name)| over_sessions(&values(&trials, |trial| trial.measured.values.get(name).copied())));
    let top = rates.iter().map(|rate| rate.value).filter(|v| v.is_finite()).fold(0.0, f64::max);
    for (index, ((what, _), rate)) in rows.into_iter().zip(rates).enumerate() {
        let y = index as f64 * 34.0;
        svg.text(0.0, y + 13.0, Anchor::Start, "label", what);
        svg.text(
            WIDTH,
            y + 13.0,
            Anchor::End,
            "value",
            &format!("{} per s, {} ms each", short(rate.value), short(1000.0 / rate.value)),
        );
        svg.rect(0.0, y + 18.0, WIDTH, 9.0, "track");
        svg.rect(0.0, y + 18.0, if top > 0.0 { WIDTH * rate.value / top } else { 0.0 }, 9.0, "s0-fill");
        let mut row = vec![what.to_owned()];
        row.extend(cells(rate));
        row.push(exact(1000.0 / rate.value));
        data.push(row);
    }
    let text = "Two endpoints in memory on one thread: what stands here is the cost of both ends on one core. ECDSA P-256, X25519, AES-128-GCM.";
    Figure::drawn(id, title, text, svg.finish(title), data)
}

fn energy(folder: &Folder) -> Figure {
    let (id, title) = ("energy", "Energy by load");
    let trials: Vec<&Trial> =
        folder.of(Kind::Loss).into_iter().filter(|trial| trial.measured.joules.is_some()).collect();
    if trials.is_empty() {
        return Figure::absent(
            id,
            title,
            "This machine shows no energy counter (RAPL) to this process; most guests have none.",
        );
    }
    let mut chart = Chart::new(
        title,
        Axis::linear("offered, % of capacity").covering(0.0, 100.0),
        Axis::linear("J per Gbit").covering(0.0, 1.0),
    );
    chart.rules.push(Rule::Vertical(100.0, "capacity".into()));
    let mut data = Data::new(&["subject", "direction", "traffic", "offered, %", "J per Gbit"]);
    for key in keys(&trials) {
        let mut by_load: BTreeMap<u32, Vec<&Trial>> = BTreeMap::new();
        for trial in trials.iter().filter(|trial| Key::of(trial) == key) {
            let load = trial.measured.values.get("load").copied().unwrap_or(1.0);
            by_load.entry((load * 1000.0).round() as u32).or_default().push(trial);
        }
        let mut series = Series::new(&label(&key.subject, key.direction), style(folder, &key.subject));
        for (load, mine) in by_load {
            let per_gbit =
                |trial: &Trial| Some(trial.measured.joules? / (trial.measured.received_bytes as f64 * 8.0 / 1e9));
            let joules = over_sessions(&values(&mine, per_gbit));
            series.points.push((f64::from(load) / 10.0, joules));
            data.push([
                key.subject.clone(),
                super::way(key.direction).into(),
                key.traffic.clone(),
                trimmed(f64::from(load) / 10.0),
                exact(joules.value),
            ]);
        }
        chart.series.push(series);
    }
    Figure::drawn(
        id,
        title,
        "Energy of the whole package over the bits that came out, idle power included.",
        chart.draw(),
        data,
    )
}
