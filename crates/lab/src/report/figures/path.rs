//! The path beside its engine, and engines beside each other.

use std::collections::BTreeMap;

use super::{cells, exact, label, style};
use crate::campaign::Kind;
use crate::metric::Metric;
use crate::report::analysis::{
    Folder, Key, keys, over_sessions, ratio, shown, ticks, typical, undisturbed, values, way,
};
use crate::report::chart::{Axis, Chart, Rule, Series};
use crate::report::figure::{Data, Figure};
use crate::trial::{Direction, Trial};

/// Factors of the trials of one row, besides those of its key.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Factors {
    batch: u32,
    memory_mib: u32,
    flows: u32,
    sas: u32,
}

impl Factors {
    fn of(trial: &Trial) -> Self {
        let value = |of: Metric<'_>, none: u32| trial.measured.values.get(of).map_or(none, |value| value as u32);
        Self {
            batch: trial.batch,
            memory_mib: value(Metric::MemoryMib, 0),
            flows: value(Metric::Flows, 1),
            sas: trial.sas,
        }
    }

    fn by<'a>(trials: impl Iterator<Item = &'a Trial>) -> BTreeMap<Self, Vec<&'a Trial>> {
        let mut by: BTreeMap<Self, Vec<&Trial>> = BTreeMap::new();
        trials.for_each(|trial| by.entry(Self::of(trial)).or_default().push(trial));
        by
    }
}

/// The whole path, the engine alone, and their difference.
pub(super) fn path(folder: &Folder) -> Figure {
    let (id, title) = ("path", "The path beside its engine");
    let trials = folder.of(Kind::Path);
    if trials.is_empty() {
        return Figure::absent(id, title, &folder.why_not(Kind::Path));
    }
    let of = |mine: &[&Trial], of: Metric<'_>| values(mine, |trial| trial.measured.values.get(of));
    let head = [
        "subject",
        "direction",
        "bytes",
        "path, ticks",
        "low",
        "high",
        "engine, ticks",
        "without the engine, ticks",
        "low",
        "high",
        "path over engine",
        "low",
        "high",
        "packets in a batch",
        "MiB",
        "flows",
        "SAs",
    ];
    let mut data = Data::new(&head);
    let mut lines: BTreeMap<(String, Direction, Factors), Series> = BTreeMap::new();
    for key in keys(&trials) {
        for (factors, mine) in Factors::by(trials.iter().copied().filter(|t| Key::of(t) == key)) {
            let without = over_sessions(&of(&mine, Metric::Ticks("without_engine")));
            let mut row = vec![key.subject.clone(), way(key.direction).into(), key.traffic.clone()];
            row.extend(cells(undisturbed(&values(&mine, ticks))));
            row.push(exact(typical(&of(&mine, Metric::Ticks("engine"))).value));
            row.extend(cells(without));
            row.extend(cells(typical(&of(&mine, Metric::OverEngine))));
            let Factors { batch, memory_mib, flows, sas } = factors;
            row.extend([batch, memory_mib, flows, sas].map(|factor| factor.to_string()));
            data.push(row);
            let line = lines.entry((key.subject.clone(), key.direction, factors)).or_insert_with(|| {
                let many = if (flows, sas, memory_mib) == (1, 1, 0) {
                    String::new()
                } else {
                    format!(", {flows} flows, {sas} SAs, {memory_mib} MiB")
                };
                let name = format!("{}{many}", label(&key.subject, key.direction));
                Series { hollow: key.direction == Direction::In, ..Series::new(&name, style(folder, &key.subject)) }
            });
            line.points.extend(mine[0].size.map(|size| (f64::from(size), without)));
        }
    }
    let mut chart = Chart::new(title, Axis::log("bytes"), Axis::linear("ticks without the engine").covering(0.0, 1.0));
    chart.series = lines.into_values().collect();
    for series in &mut chart.series {
        series.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let text = "Every batch makes the round trip through the whole path and through the engine alone, with operations of the same shape on the \
                same buffers, in random order. Differences and ratios are medians of those of single batches.";
    Figure::drawn(id, title, text, chart.draw(), data)
}

/// Engines on the same operations, over the first of a suite.
pub(super) fn engines(folder: &Folder) -> Figure {
    let (id, title) = ("engines", "Engines compared");
    let trials = folder.of(Kind::Engines);
    if trials.is_empty() {
        return Figure::absent(id, title, &folder.why_not(Kind::Engines));
    }
    let head = [
        "suite",
        "bytes",
        "packets a call",
        "direction",
        "engine",
        "ticks",
        "low",
        "high",
        "over the first",
        "low",
        "high",
    ];
    let mut data = Data::new(&head);
    let mut lines: BTreeMap<(usize, Direction), Series> = BTreeMap::new();
    let largest = trials.iter().map(|trial| trial.batch).max().unwrap_or(0);
    let all: Vec<&String> = folder.studies(Kind::Engines).flat_map(|study| &study.subjects).collect();
    let base = |subject: &str| subject.split(',').next().unwrap_or_default().to_owned();
    let mut groups: BTreeMap<(String, u32, u32, Direction), Vec<&Trial>> = BTreeMap::new();
    for trial in &trials {
        let key = (base(&trial.subject), trial.size.unwrap_or(0), trial.batch, trial.direction);
        groups.entry(key).or_default().push(trial);
    }
    for ((suite, size, batch, direction), group) in groups {
        let of = |subject: &str| -> Vec<&Trial> { group.iter().filter(|t| t.subject == subject).copied().collect() };
        let subjects: Vec<&String> = all.iter().copied().filter(|name| base(name) == suite).collect();
        let Some(first) = subjects.iter().find(|name| !of(name).is_empty()) else { continue };
        for subject in subjects.iter().filter(|name| !of(name).is_empty()) {
            let (mine, over) = (of(subject), ratio(&of(subject), &of(first)));
            let name = subject.split_once(',').map_or("the usual one", |(_, options)| options);
            let name =
                name.trim_start_matches("engine=").replace(",threads=", ", threads: ").replace(",copied", ", copied");
            let suite = shown(&suite).trim_start_matches("bare cipher ").to_owned();
            let mut row = vec![suite.clone(), size.to_string(), batch.to_string(), way(direction).into(), name.clone()];
            row.extend(cells(undisturbed(&values(&mine, ticks))));
            row.extend(cells(over));
            data.push(row);
            if batch == largest && subject != first {
                let number = all.iter().position(|known| known == subject).unwrap_or(0);
                let line = lines.entry((number, direction)).or_insert_with(|| {
                    let name = format!("{suite} {name}, {}", way(direction));
                    Series { hollow: direction == Direction::In, ..Series::new(&name, number) }
                });
                line.points.push((f64::from(size), over));
            }
        }
    }
    let mut chart = Chart::new(title, Axis::log("bytes"), Axis::log("time over that of the first engine"));
    chart.rules.push(Rule::Horizontal(1.0, "as long".into()));
    chart.series = lines.into_values().collect();
    let text = format!(
        "Operations of the packets of a tunnel, without the path around them; all engines in every round. Ratios are to the first engine of a \
         suite, within rounds. The plot is of {largest} packets a call. Engine threads receive groups of packets; the time is until the last one \
         returns."
    );
    Figure::drawn(id, title, &text, chart.draw(), data)
}
