//! The first table: results of each subject at four kinds of traffic, and the winner, if any.

use serde::Serialize;

use super::analysis::{Cost, Folder, costs, keys, least_ratios, of_key, ratio, shown, slower_mode, ticks, values, way};
use super::chart::short;
use crate::campaign::Kind;
use crate::metric::Metric;
use crate::trial::{Direction, Trial};
use stats::{Estimate, Limits, Rng, Verdict, judge_all, median, paired};

/// Traffic of the columns, as campaigns write it.
const COLUMNS: [&str; 4] = ["64", "512", "1400", "imix"];

/// A difference between protocols that does not matter, as a share: stated before measuring.
const MARGIN: f64 = 0.01;

/// One field.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Field {
    pub(super) mpps: f64,
    pub(super) gbps: f64,
    pub(super) ticks: Estimate,
    /// Ahead of every other subject of the column by more than noise.
    pub(super) fastest: bool,
    pub(super) trials: usize,
}

/// One subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SubjectVerdict {
    pub(super) subject: String,
    pub(super) shown: String,
    /// Of the bare cipher: no competitor.
    pub(super) ceiling: bool,
    pub(super) fields: Vec<Option<Field>>,
}

/// One direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Table {
    pub(super) direction: &'static str,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<SubjectVerdict>,
    /// For each column: the winner, or the reason for no winner.
    pub(super) verdicts: Vec<String>,
}

/// A sentence on the validity of the figures; `good`, or to be read with care.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Badge {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) good: bool,
}

/// The tables of all directions that were measured with traffic of [`COLUMNS`].
pub(super) fn tables(folder: &Folder) -> Vec<Table> {
    let trials = folder.of(Kind::Sizes);
    let all = costs(&trials, folder.hz());
    let noise = folder.noise();
    [Direction::Out, Direction::In, Direction::Both]
        .into_iter()
        .filter(|direction| all.iter().any(|cost| cost.key.direction == *direction))
        .map(|direction| table(folder, &trials, &all, direction, noise))
        .filter(|table| !table.columns.is_empty())
        .collect()
}

fn same_traffic(column: &str, traffic: &str) -> bool {
    traffic == column || (column == "imix" && traffic.starts_with("imix"))
}

fn table(folder: &Folder, trials: &[&Trial], all: &[Cost], direction: Direction, noise: Option<f64>) -> Table {
    let columns: Vec<&str> = COLUMNS
        .into_iter()
        .filter(|column| all.iter().any(|c| c.key.direction == direction && same_traffic(column, &c.key.traffic)))
        .collect();
    let mut subjects: Vec<String> = Vec::new();
    for subject in folder.studies(Kind::Sizes).flat_map(|study| &study.subjects) {
        if !subjects.contains(subject) {
            subjects.push(subject.clone());
        }
    }
    let winners: Vec<Winner> = columns
        .iter()
        .map(|column| {
            let mine: Vec<&Trial> = trials
                .iter()
                .filter(|t| t.direction == direction && same_traffic(column, &t.traffic))
                // Neither protects packets.
                .filter(|t| !["cipher", "plain"].contains(&t.protocol.as_str()))
                .copied()
                .collect();
            winner(&mine, noise)
        })
        .collect();
    let rows = subjects
        .into_iter()
        .map(|subject| {
            let fields = columns.iter().zip(&winners).map(|(column, winner)| {
                let cost = all.iter().find(|cost| {
                    cost.key.subject == subject
                        && cost.key.direction == direction
                        && same_traffic(column, &cost.key.traffic)
                })?;
                Some(Field {
                    mpps: cost.pps / 1e6,
                    gbps: cost.bps / 1e9,
                    ticks: cost.ticks,
                    fastest: matches!(winner, Winner::Is(fastest) if *fastest == subject),
                    trials: cost.trials,
                })
            });
            let fields = fields.collect();
            SubjectVerdict { shown: shown(&subject), ceiling: subject.starts_with("cipher-"), subject, fields }
        })
        // A subject of other sizes has no place in this table.
        .filter(|row: &SubjectVerdict| row.fields.iter().any(Option::is_some))
        .collect();
    let verdict = |winner: &Winner| match winner {
        Winner::Is(subject) => format!("{} is fastest", shown(subject)),
        Winner::None(why) => why.clone(),
    };
    Table {
        direction: way(direction),
        verdicts: winners.iter().map(verdict).collect(),
        columns: columns.into_iter().map(str::to_owned).collect(),
        rows,
    }
}

/// Result of a comparison of all subjects.
enum Winner {
    /// The subject whose paired ratio against every other excludes the noise.
    Is(String),
    /// Reason for no winner.
    None(String),
}

fn winner(trials: &[&Trial], noise: Option<f64>) -> Winner {
    let none = |why: &str| Winner::None(why.to_owned());
    let Some(noise) = noise else { return none("no winner: the noise floor was not measured") };
    let costs = costs(trials, 1.0);
    let mut order: Vec<&Cost> = costs.iter().collect();
    order.sort_by(|a, b| a.ticks.value.total_cmp(&b.ticks.value));
    let [best, others @ ..] = &order[..] else { return none("nothing was measured") };
    if others.is_empty() {
        return none("one subject only");
    }
    if best.sessions < 2 {
        return none("no winner: one session only");
    }
    let of =
        |subject: &str| -> Vec<&Trial> { trials.iter().filter(|trial| trial.subject == subject).copied().collect() };
    let mine = of(&best.key.subject);
    let ties: Vec<String> = others
        .iter()
        .filter(|other| {
            let ratio = ratio(&of(&other.key.subject), &mine);
            // NaN must not count as proof.
            ratio.low.is_nan() || ratio.low <= 1.0 + noise
        })
        .map(|other| shown(&other.key.subject))
        .collect();
    if let Some(equals) = equals(trials, best, others) {
        return Winner::None(equals);
    }
    match ties.len() {
        0 => Winner::Is(best.key.subject.clone()),
        1 => Winner::None(format!("inconclusive: {} or {}", shown(&best.key.subject), ties[0])),
        n => Winner::None(format!("inconclusive between {} subjects", n + 1)),
    }
}

/// The subjects that differ from the cheapest one by less than [`MARGIN`], if there are any: TOST
/// on ratios within rounds, corrected for their number. `None` where none is known to be that
/// close, or another one may be as cheap.
fn equals(trials: &[&Trial], best: &Cost, others: &[&Cost]) -> Option<String> {
    let of =
        |subject: &str| -> Vec<&Trial> { trials.iter().filter(|trial| trial.subject == subject).copied().collect() };
    let mut rng = Rng::new(1);
    let ratios: Vec<_> = others
        .iter()
        .filter_map(|other| paired(&least_ratios(&of(&other.key.subject), &of(&best.key.subject), ticks), &mut rng))
        .collect();
    let limits = Limits { floor: 0.0, margin: Some(MARGIN.ln_1p()) };
    let judged = judge_all(&ratios.iter().map(|ratio| (ratio, limits)).collect::<Vec<_>>());
    let of_verdict = |verdict: Verdict| -> Vec<String> {
        let found = others.iter().zip(&judged).filter(|(_, judged)| judged.verdict == verdict);
        found.map(|(other, _)| shown(&other.key.subject)).collect()
    };
    let equal = of_verdict(Verdict::Equivalent);
    let known = judged.len() == others.len() && of_verdict(Verdict::Inconclusive).is_empty();
    (known && !equal.is_empty()).then(|| {
        let names: Vec<String> = std::iter::once(shown(&best.key.subject)).chain(equal).collect();
        let rest = if names.len() <= others.len() { ", faster than the others" } else { "" };
        format!("equivalent within {} %: {}{rest}", MARGIN * 100.0, names.join(", "))
    })
}

/// Cases with two modes of sessions.
fn modes(folder: &Folder) -> Option<Badge> {
    let trials = folder.of(Kind::Sizes);
    let keys = keys(&trials);
    let slower: Vec<f64> = keys
        .iter()
        .filter_map(|key| {
            let mine = of_key(&trials, key);
            slower_mode(&values(&mine, ticks))
        })
        .collect();
    let value = match &slower[..] {
        [] => "none".to_owned(),
        some => {
            let percent = 100.0 * some.iter().sum::<f64>() / some.len() as f64;
            format!("in {} of {} cases; {} % of their sessions are slower", some.len(), keys.len(), short(percent))
        }
    };
    (!keys.is_empty()).then_some(Badge { name: "two modes", value, good: slower.is_empty() })
}

/// Ratio of contended to uncontended batches from which on the gauge separates them.
const SEPARATES: f64 = 1.03;

/// Contention by SMT siblings, if the gauge separates anything on this processor.
fn contention(folder: &Folder) -> Option<Badge> {
    let value = |trial: &Trial, metric: Metric<'_>| trial.measured.values.get(metric);
    let percent: Vec<f64> = folder.trials.iter().filter_map(|trial| value(trial, Metric::ContendedPercent)).collect();
    let slower: Vec<f64> = folder.trials.iter().filter_map(|trial| value(trial, Metric::ContendedSlower)).collect();
    if percent.is_empty() {
        return None;
    }
    let (percent, slower) = (median(&percent), if slower.is_empty() { 1.0 } else { median(&slower) });
    let separates = slower >= SEPARATES;
    let value = if separates {
        format!("{} % of the batches, which take {} times as long", short(percent), short(slower))
    } else {
        "unknown: the gauge does not separate contended batches on this processor".into()
    };
    Some(Badge { name: "SMT contention", value, good: separates && percent < 50.0 })
}

/// Validity of the figures.
pub(super) fn badges(folder: &Folder) -> Vec<Badge> {
    let badge = |name, value, good| Badge { name, value, good };
    let mut badges = Vec::new();
    match folder.noise() {
        Some(noise) => {
            let value = format!("±{} % (equals against equals)", short(noise * 100.0));
            badges.push(badge("noise floor", value, noise <= 0.02));
        }
        // Other studies have no verdict that needs it.
        None if folder.studies(Kind::Sizes).next().is_some() => {
            badges.push(badge("noise floor", "not measured: no verdict of faster".into(), false));
        }
        None => {}
    }
    let in_sizes = folder.everywhere(Kind::Sizes);
    let all: Vec<&Trial> = if in_sizes.is_empty() { folder.trials.iter().collect() } else { in_sizes };
    let sessions = all.iter().map(|trial| trial.session).collect::<std::collections::BTreeSet<_>>().len();
    badges.push(badge(
        "sessions",
        format!(
            "{sessions} {}, {} trials in all",
            if sessions == 1 { "process" } else { "processes" },
            folder.trials.len()
        ),
        sessions >= 3,
    ));
    badges.extend(modes(folder));
    badges.extend(contention(folder));
    let (sent, verified) =
        folder.trials.iter().fold((0, 0), |(s, v), t| (s + t.measured.sent, v + t.measured.verified));
    if sent > 0 {
        let share = verified as f64 / sent as f64 * 100.0;
        badges.push(badge("contents compared", format!("{} % of packets", short(share)), share >= 1.0));
    }
    let wrong: u64 = folder.trials.iter().map(|trial| trial.measured.lost.auth).sum();
    badges.push(badge("wrong ICVs", wrong.to_string(), wrong == 0));
    let environments: std::collections::BTreeSet<&str> = folder.trials.iter().map(|trial| trial.env.as_str()).collect();
    let one = environments.len() <= 1;
    badges.push(badge(
        "environment",
        if one {
            "one".into()
        } else {
            format!("{} different ones: comparisons across them are unreliable", environments.len())
        },
        one,
    ));
    if let Some(env) = folder.environments.first() {
        badges.push(badge("build", env.fixed.build.clone(), env.fixed.build == "release"));
        let load = env.load_before;
        badges.push(badge(
            "load before",
            format!("{} on {} processors", short(load), env.fixed.cpus),
            load < 0.5 * env.fixed.cpus as f64,
        ));
        badges.push(badge("steal since boot", format!("{} %", short(env.steal_percent)), env.steal_percent < 1.0));
    }
    let (stolen, whole) =
        folder.trials.iter().fold((0.0, 0.0), |(stolen, whole), trial| match trial.measured.steal_ns {
            Some(ns) => (stolen + ns as f64, whole + trial.measured.dur_ns as f64 * f64::from(trial.cores.max(1))),
            None => (stolen, whole),
        });
    if whole > 0.0 {
        let share = stolen / whole * 100.0;
        badges.push(badge("steal during trials", format!("{} % of their time", short(share)), share < 1.0));
    }
    let open: usize = folder.problems.len();
    if open > 0 {
        badges.push(badge("not measured", format!("{open} subjects or studies, named below"), false));
    }
    badges
}

/// Number of subjects that were compared; for the heading.
pub(super) fn subjects(folder: &Folder) -> usize {
    let trials = folder.everywhere(Kind::Sizes);
    let mut names: Vec<String> = keys(&trials).into_iter().map(|key| key.subject).collect();
    names.sort();
    names.dedup();
    names.len()
}

#[cfg(test)]
mod tests {
    use super::super::synthetic;
    use super::*;

    #[test]
    fn the_cheaper_one_wins_and_a_ceiling_does_not_compete() {
        let tables = tables(&synthetic::folder());
        assert_eq!(tables.len(), 2);
        assert_eq!(tables[0].columns, ["64", "512", "1400", "imix"]);
        assert_eq!(tables[0].verdicts[0], "ESP tunnel aes128gcm16 is fastest");
        let fastest = |row: &SubjectVerdict| row.fields.iter().flatten().filter(|field| field.fastest).count();
        assert_eq!(tables[0].rows.iter().map(fastest).collect::<Vec<_>>(), [4, 0, 0]);
        assert!(tables[0].rows[2].ceiling);
    }

    #[test]
    fn without_a_noise_floor_or_with_overlap_nobody_wins() {
        let mut folder = synthetic::folder();
        folder.trials.retain(|trial| trial.study != "noise");
        assert!(tables(&folder)[0].verdicts[0].starts_with("no winner: the noise floor"));
        // Twice as dear in one session, half in another.
        let mut folder = synthetic::folder();
        for trial in folder.trials.iter_mut().filter(|t| t.subject.contains("psp") && t.study == "sizes") {
            let factor = if trial.session % 2 == 0 { 0.5 } else { 2.0 };
            trial.measured.tsc = trial.measured.tsc.map(|ticks| (ticks as f64 * factor) as u64);
        }
        assert!(tables(&folder)[0].verdicts[0].starts_with("inconclusive: "), "{:?}", tables(&folder)[0].verdicts);
    }

    #[test]
    fn other_sizes_have_no_table() {
        let of = |traffic: &str| {
            let study = "[[study]]\nkind = \"sizes\"\nsubjects = [\"weir-esp-tunnel-aes128gcm16\"]";
            synthetic::folder_of(&format!("name = \"t\"\n{study}\ntraffic = [{traffic}]\n"))
        };
        assert!(tables(&of("736")).is_empty());
        assert_eq!(tables(&of("736, 1400"))[0].columns, ["1400"]);
        let page = crate::report::page::html(&of("736"), &[]);
        assert!(page.contains("This run has other sizes"), "{page}");
    }

    #[test]
    fn what_costs_the_same_is_equivalent() {
        let mut folder = synthetic::folder();
        // The same trials under two names, the second 0.3 % dearer.
        let copies: Vec<Trial> =
            folder.trials.iter().filter(|t| t.subject.contains("esp") && t.study == "sizes").cloned().collect();
        folder.trials.retain(|t| !t.subject.contains("psp") || t.study != "sizes");
        let dearer = |trial: Trial, factor: f64| {
            let mut copy = Trial { subject: "weir-psp-tunnel-aes128gcm16".into(), ..trial };
            copy.measured.tsc = copy.measured.tsc.map(|ticks| (ticks as f64 * factor) as u64);
            copy
        };
        let with = |factor: f64| {
            let mut folder = folder.clone();
            folder
                .trials
                .extend(copies.iter().filter(|t| !t.subject.starts_with("cipher")).map(|t| dearer(t.clone(), factor)));
            tables(&folder)[0].verdicts[0].clone()
        };
        let equal = "equivalent within 1 %: ESP tunnel aes128gcm16, PSP tunnel aes128gcm16";
        assert_eq!(with(1.003), equal);
        assert_ne!(with(1.03), equal);
    }

    #[test]
    fn badges_say_what_is_wrong() {
        let mut folder = synthetic::folder();
        let bad = |folder: &Folder, name: &str| badges(folder).iter().any(|badge| badge.name == name && !badge.good);
        assert!(!bad(&folder, "wrong ICVs") && !bad(&folder, "environment") && !bad(&folder, "contents compared"));
        folder.trials[0].measured.lost.auth = 1;
        folder.trials[1].env = "other".into();
        assert!(bad(&folder, "wrong ICVs") && bad(&folder, "environment"));
        assert!(bad(&folder, "not measured"), "a study is missing");
        for (share, expected) in [(0.001, false), (0.2, true)] {
            for trial in &mut folder.trials {
                trial.measured.steal_ns = Some((trial.measured.dur_ns as f64 * share) as u64);
            }
            assert_eq!(bad(&folder, "steal during trials"), expected);
        }
    }
}
