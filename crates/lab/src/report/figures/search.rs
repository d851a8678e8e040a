//! How much subjects can take, found by search: throughput, loss around it, latency below it.

use std::collections::BTreeMap;

use super::{cells, exact, load, style};
use crate::campaign::Kind;
use crate::campaign::search::{Part, recompute};
use crate::metric::Metric;
use crate::report::analysis::{Folder, Key, over_sessions, way};
use crate::report::chart::{Axis, Bar, Chart, Rule, Series, bars, short, trimmed};
use crate::report::figure::{Data, Figure};
use crate::trial::Trial;
use stats::Estimate;
use throughput::search::Found;

/// Width of a bin of the curve, as a share of the throughput.
const BIN: f64 = 0.02;
/// Upper limit of the load in the curve.
const LAST_BIN: f64 = 1.5;

/// One whole search: the result for each goal, from its own trials.
#[derive(Clone, Debug)]
pub(in crate::report) struct Searched<'a> {
    pub(in crate::report) key: Key,
    session: u32,
    pub(in crate::report) rows: Vec<&'a Trial>,
    pub(in crate::report) found: Vec<Found>,
}

impl Searched<'_> {
    /// Results that the run recorded for each goal.
    pub(in crate::report) fn results(&self) -> impl Iterator<Item = &Trial> {
        self.rows.iter().copied().filter(|row| Part::of(row) == Some(Part::Result))
    }

    /// Throughput of the goal that allows most loss, in packets per second.
    fn whole_pps(&self) -> Option<f64> {
        self.found.iter().max_by(|a, b| a.goal.loss.total_cmp(&b.goal.loss))?.lower
    }
}

/// All searches that came to their end.
pub(in crate::report) fn searches(folder: &Folder) -> Vec<Searched<'_>> {
    let mut groups: BTreeMap<(String, u32, u32), Vec<&Trial>> = BTreeMap::new();
    for trial in folder.everywhere(Kind::Search) {
        groups.entry((trial.study.clone(), trial.session, trial.order)).or_default().push(trial);
    }
    let mut all = Vec::new();
    for ((study, session, _), rows) in groups {
        let Some(study) = folder.campaign.studies.iter().find(|other| other.name == study) else { continue };
        let searched = Searched { key: Key::of(rows[0]), session, found: recompute(&study.goals, &rows), rows };
        if searched.results().count() == study.goals.len() {
            all.push(searched);
        }
    }
    all.sort_by(|a, b| (&a.key, a.session).cmp(&(&b.key, b.session)));
    all
}

/// Throughput for a goal over all searches of a key.
#[derive(Clone, Debug)]
pub(in crate::report) struct Throughput {
    pub(in crate::report) key: Key,
    /// `NDR`, `loss 0.5 %`: the loss that the goal permits.
    pub(in crate::report) allows: String,
    goal: String,
    code: String,
    /// Packets per second: conditional throughput, or the lower bound without one.
    pub(in crate::report) pps: Estimate,
    lower: f64,
    upper: f64,
    sessions: usize,
    regular: usize,
    bytes: f64,
}

/// One row for each key and goal.
pub(in crate::report) fn throughputs(folder: &Folder) -> Vec<Throughput> {
    let all = searches(folder);
    let mut keys: Vec<&Key> = all.iter().map(|searched| &searched.key).collect();
    keys.dedup();
    let mut found = Vec::new();
    for key in keys {
        let mine: Vec<&Searched<'_>> = all.iter().filter(|searched| searched.key == *key).collect();
        for (at, first) in mine[0].found.iter().enumerate() {
            let by_session = |read: &dyn Fn(&Found) -> Option<f64>| -> Vec<Vec<f64>> {
                let mut sessions: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
                for searched in &mine {
                    if let Some(value) = searched.found.get(at).and_then(read) {
                        sessions.entry(searched.session).or_default().push(value);
                    }
                }
                sessions.into_values().collect()
            };
            let rates = by_session(&|found| found.conditional.or(found.lower));
            let regular = mine.iter().filter(|s| s.results().nth(at).is_some_and(regular)).count();
            let (received, bytes) = mine.iter().flat_map(|s| &s.rows).fold((0, 0), |(packets, bytes), row| {
                (packets + row.measured.received, bytes + row.measured.received_bytes)
            });
            found.push(Throughput {
                key: key.clone(),
                allows: match first.goal.loss {
                    0.0 => "NDR".into(),
                    loss => format!("loss {} %", trimmed(loss * 100.0)),
                },
                goal: first.goal.name.clone(),
                code: first.code.clone(),
                pps: over_sessions(&rates),
                lower: over_sessions(&by_session(&|found| found.lower)).value,
                upper: over_sessions(&by_session(&|found| found.upper)).value,
                sessions: rates.len(),
                regular,
                bytes: bytes as f64 / received.max(1) as f64,
            });
        }
    }
    found
}

fn regular(row: &Trial) -> bool {
    row.measured.values.get(Metric::Regular) == Some(1.0)
}

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    let titles = [
        ("search", "Throughput found by search"),
        ("search-curve", "Loss around the throughput"),
        ("search-latency", "Latency below the throughput"),
    ];
    if searches(folder).is_empty() {
        let why = folder.why_not(Kind::Search);
        return titles.map(|(id, title)| Figure::absent(id, title, &why)).into();
    }
    let [_, curve_title, latency_title] = titles;
    vec![throughput(folder, titles[0]), curve(folder, curve_title), below(folder, latency_title)]
}

fn throughput(folder: &Folder, (id, title): (&'static str, &str)) -> Figure {
    let all = throughputs(folder);
    let names = ["subject", "direction", "traffic", "goal", "code"];
    let rates = ["kpps", "low", "high", "Gbit/s", "lower bound, kpps", "upper bound, kpps"];
    let mut data = Data::new(&[&names[..], &rates, &["searches' sessions", "regular searches"]].concat());
    let mut rates = Vec::new();
    for found in &all {
        let gbps = found.pps.value * found.bytes * 8.0 / 1e9;
        rates.push(Bar {
            name: format!("{}, {}", found.key.shown(), found.key.traffic),
            text: format!("{}: {} kpps", found.allows, short(found.pps.value / 1e3)),
            value: found.pps,
            style: style(folder, &found.key.subject),
        });
        let mut row = vec![found.key.shown(), way(found.key.direction).into(), found.key.traffic.clone()];
        row.extend([found.goal.clone(), found.code.clone()]);
        row.extend(cells(found.pps.map(|pps| pps / 1e3)));
        row.extend([exact(gbps), exact(found.lower / 1e3), exact(found.upper / 1e3)]);
        row.extend([found.sessions.to_string(), found.regular.to_string()]);
        data.push(row);
    }
    let text = "MLRsearch (RFC 9971): conditional throughput for each goal (NDR: nothing is lost), recomputed here from the trials of each search, with the 95 % \
                interval over sessions. In memory time is virtual unless the study is in real time: nothing waits, and one core is the limit.";
    Figure::drawn(id, title, text, bars(title, &rates), data)
}

fn curve(folder: &Folder, (id, title): (&'static str, &str)) -> Figure {
    let all = searches(folder);
    let mut data =
        Data::new(&["subject", "direction", "traffic", "offered, % of throughput", "lost, %", "low", "high", "trials"]);
    let mut chart = Chart::new(
        title,
        Axis::linear("offered, % of throughput").covering(90.0, 110.0),
        Axis::linear("lost, %").covering(0.0, 1.0),
    );
    let mut keys: Vec<&Key> = all.iter().map(|searched| &searched.key).collect();
    keys.dedup();
    for key in &keys {
        // Loss in percent by bin, session by session.
        let mut bins: BTreeMap<i64, BTreeMap<u32, Vec<f64>>> = BTreeMap::new();
        for searched in all.iter().filter(|searched| searched.key == **key) {
            let Some(whole) = searched.whole_pps() else { continue };
            for row in &searched.rows {
                let Some(share) = row.offered_pps.map(|pps| pps / whole).filter(|share| *share <= LAST_BIN) else {
                    continue;
                };
                let bin = bins.entry((share / BIN).round() as i64).or_default();
                bin.entry(searched.session).or_default().push(row.measured.loss_ratio() * 100.0);
            }
        }
        let mut series = Series::new(&format!("{}, {}", key.shown(), key.traffic), style(folder, &key.subject));
        for (bin, sessions) in bins {
            let sessions: Vec<Vec<f64>> = sessions.into_values().collect();
            let lost = over_sessions(&sessions);
            let lost = Estimate { low: lost.low.max(0.0), ..lost };
            let percent = bin as f64 * BIN * 100.0;
            series.points.push((percent, lost));
            let mut row = vec![key.shown(), way(key.direction).into(), key.traffic.clone(), trimmed(percent)];
            row.extend(cells(lost));
            row.push(sessions.iter().map(Vec::len).sum::<usize>().to_string());
            data.push(row);
        }
        chart.series.push(series);
    }
    let throughputs = throughputs(folder);
    if let [only] = keys.as_slice() {
        let of = |goal: &Throughput| goal.key == **only;
        // Two lines that nearly meet cannot both be read: that of the most forgiving goal is drawn.
        let apart = |pps: f64, most: f64| pps >= most || pps / most < 0.97;
        let most = throughputs.iter().filter(|t| of(t)).map(|t| t.lower).fold(0.0, f64::max);
        for found in throughputs.iter().filter(|t| of(t) && most > 0.0 && apart(t.lower, most)) {
            chart.rules.push(Rule::Vertical(found.lower / most * 100.0, found.allows.clone()));
        }
    }
    let text = "Every trial of every search, and of the curve from the largest load down, against the throughput of the goal that \
                allows most loss, which is 100 %. Loads are grouped in steps of 2 %.";
    Figure::drawn(id, title, text, chart.draw(), data)
}

fn below(folder: &Folder, (id, title): (&'static str, &str)) -> Figure {
    let all = searches(folder);
    let rows: Vec<&Trial> = all
        .iter()
        .flat_map(|searched| searched.rows.iter().copied().filter(|row| Part::of(row) == Some(Part::Latency)))
        .collect();
    let text = "At 10, 50 and 90 % of the throughput of the goal that allows most loss (PDR where that is one), from the time at which \
                a packet was meant to leave, with random gaps.";
    load::latency(id, title, text, &rows)
}
