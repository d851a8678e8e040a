//! Runs that were recorded: two directories, or two subjects of one.
//!
//! Two directories were measured one after the other. Drift between them is indistinguishable from
//! a difference, so the interval is over sessions and needs two or more on both sides; with fewer,
//! the verdict is always "inconclusive". Subjects of one run took turns within each round and are
//! paired by it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Comparison, Criteria, Measured};
use crate::campaign::search::Part;
use crate::metric::Metric;
use crate::trial::{Place, SCHEMA, Trial, at_one_rate};
use stats::{Ratio, Rng, mean, median, paired, unpaired};

/// Reason why runs cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The operating system does not give it.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// File.
        path: PathBuf,
        /// Answer of the operating system.
        source: std::io::Error,
    },
    /// A line is not a trial.
    #[error("{}:{line}: {what}; {hint}", path.display())]
    Line {
        /// File.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Description.
        what: String,
        /// Correction.
        hint: &'static str,
    },
    /// There is nothing to compare.
    #[error("{what}; {hint}")]
    Nothing {
        /// Missing data.
        what: String,
        /// Correction.
        hint: String,
    },
}

/// Trials of a run at one clock rate: of `trials.jsonl` in a directory, or of a file.
///
/// # Errors
/// It cannot be read, is empty, a line is no trial of a schema that is known, or the last line ends
/// in the middle.
pub fn read_run(path: &Path) -> Result<Vec<Trial>, RunError> {
    let path = if path.is_dir() { path.join("trials.jsonl") } else { path.to_owned() };
    let text = std::fs::read_to_string(&path).map_err(|source| RunError::Unreadable { path: path.clone(), source })?;
    let mut trials = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |what: String, hint| RunError::Line { path: path.clone(), line: index + 1, what, hint };
        let schema = serde_json::from_str::<Schema>(line).map_err(|e| {
            if e.is_eof() {
                wrong("truncated line".into(), "let 'weir lab run' finish the campaign, or delete this line")
            } else {
                wrong(format!("not a trial: {e}"), "expected trials.jsonl as 'weir lab run' writes it")
            }
        })?;
        if schema.schema > SCHEMA {
            let what = format!("schema {} is newer than {SCHEMA}, which this build reads", schema.schema);
            return Err(wrong(what, "use the build that measured it, or a later one"));
        }
        let trial = serde_json::from_str(line)
            .map_err(|e| wrong(format!("not a trial: {e}"), "expected trials.jsonl as 'weir lab run' writes it"))?;
        trials.push(trial);
    }
    if trials.is_empty() {
        let what = format!("{}: contains no trials", path.display());
        return Err(RunError::Nothing { what, hint: "measure with 'weir lab run' first".into() });
    }
    at_one_rate(&mut trials);
    Ok(trials)
}

/// The part of a line that every schema has.
#[derive(serde::Deserialize)]
struct Schema {
    schema: u32,
}

/// A quantity that can be compared: more is worse.
const TIME: &str = "ns/packet";
const TIME_PER_BYTE: &str = "ns/byte";
/// Of trials in memory on one core: the tenth percentile of batches. Other load makes a trial
/// slower, never faster, so that a session counts with its least.
const LEAST: &str = "ns/packet, p10";

/// Percentiles of a latency that are compared, with their units.
const LATENCIES: [(Metric<'static>, &str); 4] = [
    (Metric::RttP50, "µs, p50"),
    (Metric::RttP99, "µs, p99"),
    (Metric::LatencyP50, "ns, p50"),
    (Metric::LatencyP99, "ns, p99"),
];

/// Slowness of the subject in a trial: metric, unit, value. Trials at a fixed rate do not measure
/// the time per packet, nor do those of a search, because their load varies; the result of the
/// search does, and so does the latency at a share of it.
fn slowness(trial: &Trial) -> Vec<(String, &'static str, f64)> {
    let m = &trial.measured;
    let value = |metric: Metric<'_>| m.values.get(metric).filter(|value| *value > 0.0);
    let latencies = |of: &str| {
        // Round trips are exact; the histogram beside them is not.
        let named = LATENCIES.iter().filter_map(|(metric, unit)| Some((of.to_owned(), *unit, value(*metric)?)));
        named.take(2).collect()
    };
    match Part::of(trial) {
        Some(Part::Result) => {
            let rate = value(Metric::ConditionalPps).or(value(Metric::LowerPps));
            let goal = trial.goal.as_deref().unwrap_or_default();
            return rate.map(|pps| (format!(" at {goal}"), TIME, 1e9 / pps)).into_iter().collect();
        }
        Some(Part::Latency) => {
            return latencies(&format!(" at {:.0} % of throughput", 100.0 * value(Metric::Load).unwrap_or(0.0)));
        }
        Some(_) => return vec![],
        None => {}
    }
    if let Some(load) = value(Metric::Load) {
        return latencies(&format!(" at {:.0} % load", 100.0 * load));
    }
    if value(Metric::RttP50).is_some() {
        return latencies(&value(Metric::DelayMs).map_or_else(String::new, |ms| format!(" delayed by {ms} ms")));
    }
    if trial.offered_pps.is_some() || trial.goal.is_some() {
        return vec![];
    }
    if let Some((ticks, tsc)) = value(Metric::TicksP10).zip(m.tsc).filter(|(_, tsc)| *tsc > 0 && trial.cores <= 1) {
        return vec![(String::new(), LEAST, ticks * m.dur_ns as f64 / tsc as f64)];
    }
    let (unit, count) = if m.received > 0 { (TIME, m.received) } else { (TIME_PER_BYTE, m.received_bytes) };
    let known = count > 0 && m.dur_ns > 0;
    known.then(|| (String::new(), unit, m.dur_ns as f64 / count as f64)).into_iter().collect()
}

/// Description of the work, without the subject.
fn work(trial: &Trial) -> String {
    let direction = format!("{:?}", trial.direction).to_lowercase();
    let mut label = format!("{} {direction}", trial.traffic);
    if trial.place != Place::Memory {
        label += &format!(" {}", format!("{:?}", trial.place).to_lowercase());
    }
    for (name, value) in [("cores", trial.cores), ("sas", trial.sas)] {
        if value > 1 {
            label += &format!(" {value} {name}");
        }
    }
    if let Some(way) = trial.way {
        label += &format!(" {way}");
    }
    label
}

/// Key that distinguishes trials, in addition to [`work`].
fn kind(trial: &Trial) -> (String, u32, u32) {
    (trial.study.clone(), trial.replay, trial.batch)
}

/// Logarithms by session and round.
type BySession = BTreeMap<u32, BTreeMap<u32, Vec<f64>>>;

/// Key of comparable trials: label, unit, kind.
type Key = (String, &'static str, (String, u32, u32));

/// Trials by label and unit. With `who` the subject is part of the label.
fn grouped(trials: &[Trial], who: bool) -> BTreeMap<Key, BySession> {
    let mut groups: BTreeMap<_, BySession> = BTreeMap::new();
    for trial in trials {
        for (what, unit, slow) in slowness(trial) {
            let who = if who { format!("{} ", trial.subject) } else { String::new() };
            let label = format!("{who}{}{what}", work(trial));
            let group = groups.entry((label, unit, kind(trial))).or_default();
            group.entry(trial.session).or_default().entry(trial.round).or_default().push(slow.ln());
        }
    }
    groups
}

/// The least of each session; `None` if the unit or a single session demands all rounds.
fn least(by_session: &BySession, unit: &str) -> Option<Vec<Vec<f64>>> {
    let least = |rounds: &BTreeMap<u32, Vec<f64>>| rounds.values().flatten().copied().fold(f64::INFINITY, f64::min);
    (unit == LEAST && by_session.len() > 1).then(|| by_session.values().map(|rounds| vec![least(rounds)]).collect())
}

fn sessions(by_session: &BySession) -> Vec<Vec<f64>> {
    by_session.values().map(|rounds| rounds.values().map(|trials| mean(trials)).collect()).collect()
}

/// The median in the unit of the trials.
fn middle(by_session: &BySession) -> f64 {
    median(&sessions(by_session).concat()).exp()
}

/// Compares two runs that were measured one after the other, case by case.
///
/// # Errors
/// A run that cannot be read, or no case that both have.
pub fn runs(paths: [&Path; 2], criteria: Criteria) -> Result<Comparison, RunError> {
    let [a, b] = [read_run(paths[0])?, read_run(paths[1])?];
    let (a, mut b) = (grouped(&a, true), grouped(&b, true));
    let mut rng = Rng::new(criteria.seed);
    let (mut measured, mut only_one) = (Vec::new(), 0);
    let in_b = b.len();
    for ((label, unit, kind), of_a) in a {
        let Some(of_b) = b.remove(&(label.clone(), unit, kind)) else {
            only_one += 1;
            continue;
        };
        let of = |side: &BySession| least(side, unit).unwrap_or_else(|| sessions(side));
        let (sa, sb) = (of(&of_a), of(&of_b));
        let Some(ratio) = unpaired(&sa, &sb, &mut rng) else {
            only_one += 1;
            continue;
        };
        let floor = halves(&sa, &mut rng)
            .into_iter()
            .chain(halves(&sb, &mut rng))
            .max_by(|x, y| x.reach().total_cmp(&y.reach()));
        measured.push(Measured { label, metric: unit.into(), a: middle(&of_a), b: middle(&of_b), ratio, floor });
    }
    if measured.is_empty() {
        let what = format!("{} and {} have no common cases", paths[0].display(), paths[1].display());
        return Err(RunError::Nothing { what, hint: "run the same campaign twice".into() });
    }
    let mut notes = vec![
        "both runs were measured one after the other: drift between them counts as difference; \
                          'weir lab compare --binaries' measures two builds side by side"
            .to_owned(),
    ];
    let left = only_one + in_b - measured.len().min(in_b);
    if left > 0 {
        notes.push(format!("{left} cases are in one run only, or have too few trials, and are omitted"));
    }
    Ok(Comparison::new(paths.map(|p| p.display().to_string()), criteria, measured, notes))
}

/// A run against itself: every other session against the rest, or every other round where there is
/// one session.
fn halves(sessions: &[Vec<f64>], rng: &mut Rng) -> Option<Ratio> {
    let filled: Vec<&Vec<f64>> = sessions.iter().filter(|s| !s.is_empty()).collect();
    let units: Vec<Vec<f64>> = match filled.as_slice() {
        [only] => only.iter().map(|round| vec![*round]).collect(),
        many => many.iter().map(|s| s.to_vec()).collect(),
    };
    let half = |odd: usize| units.iter().skip(odd).step_by(2).cloned().collect::<Vec<Vec<f64>>>();
    unpaired(&half(0), &half(1), rng)
}

/// Compares two subjects of one run, paired by session and round. `trials` may hold others.
///
/// # Errors
/// A subject without trials, or no case and round that both have.
pub fn subjects(trials: &[Trial], names: [&str; 2], criteria: Criteria) -> Result<Comparison, RunError> {
    let of = |name: &str| {
        let own: Vec<Trial> = trials.iter().filter(|t| t.subject == name).cloned().collect();
        if own.is_empty() {
            let known: std::collections::BTreeSet<&str> = trials.iter().map(|t| t.subject.as_str()).collect();
            let known: Vec<&str> = known.into_iter().collect();
            let what = format!("the run has no subject '{name}'");
            return Err(RunError::Nothing { what, hint: format!("it has {}", known.join(", ")) });
        }
        Ok(grouped(&own, false))
    };
    let (a, b) = (of(names[0])?, of(names[1])?);
    let mut rng = Rng::new(criteria.seed);
    let mut measured = Vec::new();
    for (key, of_a) in &a {
        let Some(of_b) = b.get(key) else { continue };
        let pairs = |x: &BySession, y: &BySession| -> Vec<Vec<f64>> {
            let rounds = |(session, rounds): (&u32, &BTreeMap<u32, Vec<f64>>)| {
                let others = y.get(session)?;
                Some(rounds.iter().filter_map(|(r, t)| Some(mean(others.get(r)?) - mean(t))).collect())
            };
            x.iter().filter_map(rounds).collect()
        };
        let both = least(of_a, key.1).zip(least(of_b, key.1)).filter(|_| of_a.keys().eq(of_b.keys()));
        let logs = both.map(|(a, b)| a.iter().zip(&b).map(|(a, b)| vec![b[0] - a[0]]).collect());
        let Some(ratio) = paired(&logs.unwrap_or_else(|| pairs(of_a, of_b)), &mut rng) else { continue };
        // Trials of A within one round differ by noise alone.
        let within: Vec<Vec<f64>> = of_a
            .values()
            .map(|rounds| {
                rounds
                    .values()
                    .filter_map(|t| Some(t.last()? - t.first()?))
                    .filter(|_| rounds.values().all(|t| t.len() > 1))
                    .collect()
            })
            .collect();
        let (label, unit, _) = key.clone();
        let floor = paired(&within, &mut rng);
        measured.push(Measured { label, metric: unit.into(), a: middle(of_a), b: middle(of_b), ratio, floor });
    }
    if measured.is_empty() {
        let what = format!("{} and {} have no common rounds", names[0], names[1]);
        return Err(RunError::Nothing { what, hint: "measure both in one campaign".into() });
    }
    let notes = vec!["paired by session and round".to_owned()];
    Ok(Comparison::new(names.map(str::to_owned), criteria, measured, notes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Direction, Measurement};
    use stats::Verdict;

    const CRITERIA: Criteria = Criteria { gate: 0.01, margin: 0.01, seed: 1 };

    /// Trials of one subject: ns per packet by session and round.
    fn trials(subject: &str, sessions: u32, ns: impl Fn(u32, u32) -> f64) -> Vec<Trial> {
        let one = |session: u32, round: u32| Trial {
            schema: SCHEMA,
            run: "r".into(),
            session,
            round,
            order: round,
            seed: 1,
            at_ms: 0,
            study: "sizes".into(),
            subject: subject.into(),
            protocol: "esp".into(),
            mode: "tunnel".into(),
            suite: "aes128gcm16".into(),
            place: crate::trial::Place::Memory,
            direction: Direction::Out,
            traffic: "1400".into(),
            size: Some(1400),
            cores: 1,
            sas: 1,
            replay: 0,
            batch: 0,
            offered_pps: None,
            goal: None,
            way: None,
            measured: Measurement {
                received: 1_000_000,
                dur_ns: (ns(session, round) * 1e6) as u64,
                ..Measurement::default()
            },
            env: "e".into(),
        };
        (0..sessions).flat_map(|s| (0..8).map(move |r| (s, r))).map(|(s, r)| one(s, r)).collect()
    }

    fn jitter(session: u32, round: u32) -> f64 {
        f64::from((session * 7 + round * 13) % 11) / 11.0 - 0.5
    }

    fn folder(trials: &[Trial]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let lines: String = trials.iter().map(|t| serde_json::to_string(t).expect("a trial") + "\n").collect();
        std::fs::write(folder.path().join("trials.jsonl"), lines).expect("written");
        folder
    }

    fn verdict(a: &[Trial], b: &[Trial]) -> Verdict {
        let (a, b) = (folder(a), folder(b));
        runs([a.path(), b.path()], CRITERIA).expect("both are runs").rows[0].judged.verdict
    }

    #[test]
    fn runs_of_several_sessions_can_differ() {
        let run = |ns: f64| trials("weir", 6, move |s, r| ns + 0.5 * jitter(s, r));
        assert_eq!(verdict(&run(100.0), &run(105.0)), Verdict::Different);
        assert_eq!(verdict(&run(100.0), &run(100.0)), Verdict::Equivalent);
    }

    /// Result of a search, and the latency below it, in several sessions.
    fn searched(kpps: f64, p50_ns: f64) -> Vec<Trial> {
        let one = |mut trial: Trial, latency: bool| {
            let jitter = 1.0 + 0.002 * jitter(trial.session, trial.round);
            (trial.study, trial.goal) = ("search".into(), (!latency).then(|| "1f21d0l50e".into()));
            trial.offered_pps = latency.then_some(kpps * 500.0);
            let values: &[(Metric<'_>, f64)] = if latency {
                &[
                    (Metric::SearchPart, 3.0),
                    (Metric::Load, 0.5),
                    (Metric::LatencyP50, p50_ns * jitter),
                    (Metric::LatencyP99, p50_ns * 3.0 * jitter),
                ]
            } else {
                &[
                    (Metric::SearchPart, 4.0),
                    (Metric::LowerPps, kpps * 1e3),
                    (Metric::ConditionalPps, kpps * 1e3 * jitter),
                ]
            };
            trial.measured = Measurement { dur_ns: 1, received: 1, ..Measurement::default() };
            trial.measured.values = values.iter().copied().collect();
            trial
        };
        let base = trials("weir", 6, |_, _| 1.0);
        base.iter().cloned().map(|t| one(t, false)).chain(base.iter().cloned().map(|t| one(t, true))).collect()
    }

    #[test]
    fn searched_rates_and_latencies_are_compared() {
        let (a, b) = (folder(&searched(1000.0, 800.0)), folder(&searched(950.0, 800.0)));
        let comparison = runs([a.path(), b.path()], CRITERIA).expect("both are runs");
        let named: Vec<(&str, &str, Verdict)> =
            comparison.rows.iter().map(|r| (r.label.as_str(), r.metric.as_str(), r.judged.verdict)).collect();
        assert_eq!(
            named,
            [
                ("weir 1400 out at 1f21d0l50e", "ns/packet", Verdict::Different),
                ("weir 1400 out at 50 % of throughput", "ns, p50", Verdict::Equivalent),
                ("weir 1400 out at 50 % of throughput", "ns, p99", Verdict::Equivalent),
            ]
        );
        assert!((comparison.rows[0].ratio.ratio.value - 1.0 / 0.95).abs() < 0.002);
        assert_eq!(comparison.regressions().len(), 1);
    }

    #[test]
    fn one_session_each_is_inconclusive_however_large_the_difference() {
        let run = |ns: f64| trials("weir", 1, move |s, r| ns + 0.5 * jitter(s, r));
        assert_eq!(verdict(&run(100.0), &run(150.0)), Verdict::Inconclusive);
    }

    #[test]
    fn subjects_of_one_run_are_paired_by_round() {
        // Each round is up to 40 % slower than the one before; B is 3 % slower than A in all.
        let slow = |s: u32, r: u32| 100.0 + 5.0 * f64::from(s * 8 + r);
        let mut both = trials("a", 5, slow);
        both.extend(trials("b", 5, |s, r| 1.03 * slow(s, r) + 0.1 * jitter(s, r)));
        let comparison = subjects(&both, ["a", "b"], CRITERIA).expect("both are there");
        assert!((comparison.rows[0].ratio.ratio.value - 1.03).abs() < 0.001);
        assert_eq!((comparison.rows[0].judged.verdict, comparison.regressions().len()), (Verdict::Different, 1));
        let refusal = subjects(&both, ["a", "c"], CRITERIA).expect_err("there is no c").to_string();
        assert_eq!(refusal, "the run has no subject 'c'; it has a, b");
    }

    #[test]
    fn broken_runs_are_named() {
        let whole = trials("weir", 2, |_, _| 100.0);
        let folder = folder(&whole);
        let path = folder.path().join("trials.jsonl");
        let text = std::fs::read_to_string(&path).expect("written");
        let refusal = |text: &str| {
            std::fs::write(&path, text).expect("written");
            read_run(folder.path()).expect_err("refused").to_string()
        };
        assert!(refusal(&text[..text.len() - 40]).contains("trials.jsonl:16: truncated line; let 'weir lab run'"));
        assert!(refusal("").contains("contains no trials; measure"));
        assert!(refusal("hello\n").contains("trials.jsonl:1: not a trial"));
        assert!(refusal("{\"schema\":9}\n").contains("schema 9 is newer than 1"));
        assert!(refusal("{\"schema\":1}\n").contains("not a trial: missing field"));
        assert!(
            read_run(Path::new("/nonexistent"))
                .expect_err("missing")
                .to_string()
                .starts_with("/nonexistent: No such file")
        );
    }

    #[test]
    fn runs_without_a_common_case_are_named() {
        let (a, b) = (folder(&trials("x", 2, |_, _| 1.0)), folder(&trials("y", 2, |_, _| 1.0)));
        assert!(
            runs([a.path(), b.path()], CRITERIA)
                .expect_err("nothing")
                .to_string()
                .contains("no common cases; run the same")
        );
    }
}
