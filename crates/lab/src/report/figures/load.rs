//! Loss and latency at shares of the capacity.

use std::collections::BTreeMap;

use super::exact;
use crate::campaign::Kind;
use crate::metric::Metric;
use crate::report::analysis::{Folder, Key, over_sessions, values, way};
use crate::report::chart::{Axis, Chart, Rule, Series, short, trimmed};
use crate::report::figure::{Data, Figure};
use crate::trial::Trial;
use stats::Estimate;
use stats::Latency;

/// Loss that the partial drop rate allows, in percent.
const PDR_PERCENT: f64 = 0.5;
/// Loads of the latency plot.
const LATENCY_LOADS: [f64; 3] = [0.1, 0.5, 0.9];

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    let trials = folder.everywhere(Kind::Loss);
    if trials.is_empty() {
        let why = folder.why_not(Kind::Loss);
        return vec![
            Figure::absent("loss", "Loss by load", &why),
            Figure::absent("latency", "Latency by percentile", &why),
        ];
    }
    let text = "From the time at which a packet was meant to leave until it came out, so that waiting for a busy subject \
                counts. A percentile of fewer than a hundred samples is omitted.";
    vec![loss(&trials), latency("latency", "Latency by percentile", text, &trials)]
}

/// Load, as a key that sorts: thousandths of the capacity.
fn load_of(trial: &Trial) -> Option<u32> {
    trial.measured.values.get(Metric::Load).map(|load| (load * 1000.0).round() as u32)
}

type Group<'a> = BTreeMap<Key, BTreeMap<u32, Vec<&'a Trial>>>;

fn groups<'a>(trials: &[&'a Trial]) -> Group<'a> {
    let mut groups = Group::new();
    for trial in trials {
        let Some(load) = load_of(trial) else { continue };
        groups.entry(Key::of(trial)).or_default().entry(load).or_default().push(trial);
    }
    groups
}

fn loss(trials: &[&Trial]) -> Figure {
    let title = "Loss by load";
    let mut chart = Chart::new(
        title,
        Axis::linear("offered, % of capacity").covering(0.0, 100.0),
        Axis::linear("lost, %").covering(0.0, 1.0),
    );
    chart.rules = vec![Rule::Horizontal(PDR_PERCENT, "0.5 %: partial drop rate".into())];
    let mut data = Data::new(&[
        "subject",
        "direction",
        "traffic",
        "offered, % of capacity",
        "offered, Mpps",
        "lost, %",
        "low",
        "high",
        "ring",
        "replay",
        "ICV",
        "other",
    ]);
    for (index, (key, loads)) in groups(trials).into_iter().enumerate() {
        let mut series = Series::new(&format!("{}, {} B, {}", key.shown(), key.traffic, way(key.direction)), index);
        for (load, mine) in loads {
            let lost = over_sessions(&values(&mine, |trial| Some(trial.measured.loss_ratio() * 100.0)));
            let lost = Estimate { low: lost.low.max(0.0), ..lost };
            let offered = over_sessions(&values(&mine, |trial| trial.offered_pps)).value;
            series.points.push((f64::from(load) / 10.0, lost));
            let sum = |read: fn(&crate::trial::Lost) -> u64| {
                mine.iter().map(|t| read(&t.measured.lost)).sum::<u64>().to_string()
            };
            let mut row = vec![
                key.shown(),
                way(key.direction).into(),
                key.traffic.clone(),
                exact(f64::from(load) / 10.0),
                exact(offered / 1e6),
            ];
            row.extend(super::cells(lost));
            row.extend([sum(|l| l.ring), sum(|l| l.replay), sum(|l| l.auth), sum(|l| l.other)]);
            data.push(row);
        }
        chart.series.push(series);
    }
    let text = "Open loop: packets are offered at their intended times regardless of the subject's state. The capacity is what the same process \
                took without pause just before. Below the dotted line loss is what the partial drop rate allows.";
    Figure::drawn("loss", title, text, chart.draw(), data)
}

pub(super) fn histogram(trials: &[&Trial]) -> Option<Latency> {
    let mut all = Latency::default();
    for trial in trials {
        all.merge(&Latency::decode(trial.measured.latency.as_ref()?)?);
    }
    (all.count() > 0).then_some(all)
}

/// Histograms of trials by the offered share, which is in `load`.
pub(super) fn latency(id: &'static str, title: &str, text: &str, trials: &[&Trial]) -> Figure {
    const PERCENTILES: [f64; 9] = [0.0, 50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999];
    let place = |percent: f64| 1.0 / (1.0 - percent / 100.0);
    let text_of = |at: f64| match at {
        at if at < 1.5 => "0".to_owned(),
        at => trimmed_percent(100.0 * (1.0 - 1.0 / at)),
    };
    let ticks = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999].map(place).to_vec();
    let x = Axis { text: text_of, ticks: Some(ticks), ..Axis::log("percentile") };
    let mut chart = Chart::new(title, x, Axis::log("µs"));
    let mut data =
        Data::new(&["subject", "direction", "traffic", "load, %", "percentile", "µs", "samples", "number of samples"]);
    let mut index = 0;
    for (key, loads) in groups(trials) {
        for (load, mine) in loads {
            if !LATENCY_LOADS.iter().any(|wanted| (wanted * 1000.0 - f64::from(load)).abs() < 1.0) {
                continue;
            }
            let Some(histogram) = histogram(&mine) else { continue };
            let load = f64::from(load) / 10.0;
            let mut series = Series::new(&format!("{}, {} % load", key.shown(), trimmed(load)), index);
            index += 1;
            for percent in PERCENTILES {
                let Some(ns) = histogram.percentile_ns(percent) else { break };
                let (us, behind) = (ns as f64 / 1000.0, (histogram.count() as f64 * (1.0 - percent / 100.0)).floor());
                series.push(place(percent), us.max(0.001));
                data.push([
                    key.shown(),
                    way(key.direction).into(),
                    key.traffic.clone(),
                    trimmed(load),
                    trimmed_percent(percent),
                    short(us),
                    histogram.count().to_string(),
                    format!("{behind}"),
                ]);
            }
            chart.series.push(series);
        }
    }
    if chart.series.is_empty() {
        return Figure::absent(id, title, "No trial of the study has a histogram of latencies.");
    }
    Figure::drawn(id, title, text, chart.draw(), data)
}

/// Median and 99th percentile at each load that is drawn, in words.
pub(in crate::report) fn words(folder: &Folder) -> Option<String> {
    let trials = folder.of(Kind::Loss);
    let (_, loads) = groups(&trials).into_iter().next()?;
    let mut percentiles = Vec::new();
    for (load, mine) in loads {
        if let Some(histogram) = histogram(&mine) {
            let at =
                |percent| histogram.percentile_ns(percent).map_or_else(|| "–".into(), |ns| short(ns as f64 / 1000.0));
            percentiles.push(format!("{} / {} at {} %", at(50.0), at(99.0), f64::from(load) / 10.0));
        }
    }
    (!percentiles.is_empty()).then(|| format!("median / p99 in µs by load: {}", percentiles.join(", ")))
}

fn trimmed_percent(percent: f64) -> String {
    let text = format!("{percent:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
