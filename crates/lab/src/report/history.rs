//! The history of one campaign on one machine: its runs in order of time, the cost of every case in
//! each, and what changed from one run to the next.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::chart::{Axis, Chart, Rule, Series, exactly, short};
use super::figure::{Data, Figure};
use super::{ReportError, page, read, tables};
use crate::campaign::Campaign;
use crate::campaign::env::Environment;
use crate::compare::{Criteria, RunError, runs};
use crate::svg::escape;
use stats::Verdict;

/// Reason why there is no history.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// A folder.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// Its trials.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A folder that holds no run.
    #[error("{0}: neither a run nor a folder of runs; make one with 'weir lab run --out DIR'")]
    NoRun(String),
    /// Too few runs.
    #[error("{0} run of this campaign on this machine: a history needs two; repeat the campaign with another --out")]
    One(usize),
}

/// A run.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Folder.
    pub dir: PathBuf,
    /// Start, in milliseconds since 1970.
    pub at_ms: u64,
    /// Commit of the build.
    pub commit: String,
    /// Engine.
    pub engine: String,
    /// Hash of the program.
    pub binary: String,
}

/// Change of a case from one run to the next.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Slower by more than the gate.
    Slower,
    /// Faster by more than the gate.
    Faster,
    /// Different, by less than the gate.
    Slight,
    /// Equivalent, or not known to differ.
    None,
}

impl Change {
    fn mark(self) -> &'static str {
        match self {
            Self::Slower => "▲",
            Self::Faster => "▼",
            Self::Slight => "~",
            Self::None => "",
        }
    }
}

/// A case.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// Subject, traffic and direction.
    pub label: String,
    /// Unit; more is worse.
    pub metric: String,
    /// Value in each run; `None` where it was not measured.
    pub values: Vec<Option<f64>>,
    /// Change from the run before.
    pub changes: Vec<Change>,
}

/// Runs of one campaign on one machine.
#[derive(Clone, Debug, Serialize)]
pub struct History {
    /// Name of the campaign.
    pub campaign: String,
    /// Processor and system.
    pub machine: String,
    /// Runs in order of time.
    pub runs: Vec<Entry>,
    /// Cases.
    pub cases: Vec<Case>,
    /// Folders that were left out, with the reason.
    pub notes: Vec<String>,
}

/// Folders of runs among `dirs` and, where one holds no run itself, among its folders.
fn folders(dirs: &[PathBuf]) -> Result<Vec<PathBuf>, HistoryError> {
    let is_run = |dir: &Path| dir.join(crate::campaign::store::CAMPAIGN).is_file();
    let mut all = Vec::new();
    for dir in dirs {
        if is_run(dir) {
            all.push(dir.clone());
            continue;
        }
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut inner: Vec<PathBuf> = entries.filter(|path| is_run(path)).collect();
        if inner.is_empty() {
            return Err(HistoryError::NoRun(dir.display().to_string()));
        }
        inner.sort();
        all.append(&mut inner);
    }
    Ok(all)
}

/// Properties of a machine that make costs comparable.
fn machine(env: &Environment) -> String {
    let fixed = &env.fixed;
    let id = if fixed.cpu_id.is_empty() { String::new() } else { format!(" ({})", fixed.cpu_id) };
    format!("{}{id}, {} processors, hypervisor {}", fixed.cpu, fixed.cpus, fixed.hypervisor)
}

impl History {
    /// The history of the campaign and machine of the latest run; other runs are left out and
    /// named.
    ///
    /// # Errors
    /// A folder cannot be read, or there are fewer than two runs.
    pub fn of(dirs: &[PathBuf], criteria: Criteria) -> Result<Self, HistoryError> {
        let mut all: Vec<(Entry, Campaign, String)> = Vec::new();
        for dir in folders(dirs)? {
            let folder = read(&dir)?;
            let Some(env) = folder.environments.first() else { continue };
            let fixed = &env.fixed;
            let entry = Entry {
                dir,
                at_ms: env.at_ms,
                commit: fixed.commit.clone(),
                engine: fixed.engine.clone(),
                binary: fixed.binary.clone(),
            };
            all.push((entry, folder.campaign, machine(env)));
        }
        all.sort_by_key(|(entry, ..)| entry.at_ms);
        let Some((_, campaign, here)) = all.last().cloned() else { return Err(HistoryError::One(0)) };
        let (mut entries, mut notes) = (Vec::new(), Vec::new());
        for (entry, other, there) in all {
            let why = match (other == campaign, there == here) {
                (false, _) => format!("another campaign, '{}'", other.name),
                (true, false) => format!("another machine, {there}"),
                (true, true) => {
                    entries.push(entry);
                    continue;
                }
            };
            notes.push(format!("{} is left out: {why}", entry.dir.display()));
        }
        if entries.len() < 2 {
            return Err(HistoryError::One(entries.len()));
        }
        let mut cases: BTreeMap<(String, String), Case> = BTreeMap::new();
        for (at, pair) in entries.windows(2).enumerate() {
            let compared = runs([&pair[0].dir, &pair[1].dir], criteria)?;
            for row in compared.rows {
                let key = (row.metric.clone(), row.label.clone());
                let case = cases.entry(key).or_insert_with(|| Case {
                    label: row.label.clone(),
                    metric: row.metric.clone(),
                    values: vec![None; entries.len()],
                    changes: vec![Change::None; entries.len()],
                });
                (case.values[at], case.values[at + 1]) = (Some(row.a), Some(row.b));
                let ratio = row.ratio.ratio;
                case.changes[at + 1] = match row.judged.verdict {
                    Verdict::Different if ratio.low > 1.0 + criteria.gate => Change::Slower,
                    Verdict::Different if ratio.high < 1.0 / (1.0 + criteria.gate) => Change::Faster,
                    Verdict::Different => Change::Slight,
                    Verdict::Equivalent | Verdict::Inconclusive => Change::None,
                };
            }
        }
        Ok(Self { campaign: campaign.name, machine: here, runs: entries, cases: cases.into_values().collect(), notes })
    }

    /// Returns whether the latest run is slower than the one before in any case.
    pub fn regressed(&self) -> bool {
        self.cases.iter().any(|case| case.changes.last() == Some(&Change::Slower))
    }

    /// Runs and cases in 100 columns; of many runs the latest.
    pub fn text(&self) -> String {
        const SHOWN: usize = 6;
        let from = self.runs.len().saturating_sub(SHOWN);
        let mut text = format!("campaign '{}' on {}\n\n", self.campaign, self.machine);
        for (number, run) in self.runs.iter().enumerate() {
            let _ =
                writeln!(text, "{:>3}  {}  commit {}, {}", number + 1, day(run.at_ms), run.commit, run.dir.display());
        }
        let width = self.cases.iter().map(|case| case.label.chars().count()).max().unwrap_or(0).clamp(4, 48);
        let _ = write!(text, "\n{:width$}", "case");
        (from..self.runs.len()).for_each(|run| text.push_str(&format!("{:>9}", run + 1)));
        text.push_str("  unit\n");
        for case in &self.cases {
            let label: String = case.label.chars().take(width).collect();
            let _ = write!(text, "{label:width$}");
            for run in from..self.runs.len() {
                let value = case.values[run].map_or_else(|| "–".into(), short);
                text.push_str(&format!("{:>9}", format!("{}{value}", case.changes[run].mark())));
            }
            let _ = writeln!(text, "  {}", case.metric);
        }
        text.push_str("\n▲ slower, ▼ faster than the run before by more than the gate, ~ different by less\n");
        self.notes.iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
        text
    }

    /// A page with an overlay of all cases, relative to their first run, and every number.
    pub fn html(&self) -> String {
        let title = format!("History of '{}'", self.campaign);
        let mut page = page::opening(&title);
        let _ = writeln!(page, "<header><h1>{}</h1><p>On {}.</p></header>", escape(&title), escape(&self.machine));
        let head = ["run", "start", "commit", "engine", "program", "folder"].map(str::to_owned);
        let row = |(number, run): (usize, &Entry)| {
            let dir = run.dir.display().to_string();
            let cells = [(number + 1).to_string(), day(run.at_ms), run.commit.clone(), run.engine.clone()];
            [cells.to_vec(), vec![format!("{}…", run.binary), dir]].concat()
        };
        let rows: Vec<Vec<String>> = self.runs.iter().enumerate().map(row).collect();
        page.push_str(&tables::html(&head, &rows));
        page.push_str("<section><h2>Cost by run</h2>\n<div class=\"cards\">");
        let mut metrics: Vec<&str> = self.cases.iter().map(|case| case.metric.as_str()).collect();
        metrics.dedup();
        metrics.iter().for_each(|metric| page.push_str(&self.figure(metric).html()));
        page.push_str("</div></section>\n");
        self.notes.iter().for_each(|note| page.push_str(&format!("<p>{}</p>\n", escape(note))));
        page.push_str(page::CLOSING);
        page
    }

    fn figure(&self, metric: &str) -> Figure {
        let title = format!("Cost over the first run, {metric}");
        let last = self.runs.len() as f64;
        let mut chart = Chart::new(&title, Axis::linear("run").covering(1.0, last), Axis::linear("over the first run"));
        chart.rules.push(Rule::Horizontal(1.0, "first run".into()));
        let numbers: Vec<String> = (1..=self.runs.len()).map(|run| format!("run {run}")).collect();
        let head: Vec<&str> = std::iter::once("case").chain(numbers.iter().map(String::as_str)).collect();
        let mut data = Data::new(&head);
        for (style, case) in self.cases.iter().filter(|case| case.metric == metric).enumerate() {
            let Some(first) = case.values.iter().flatten().next() else { continue };
            let mut series = Series::new(&case.label, style);
            let mut marks = Series { joined: false, hollow: true, ..Series::new("", style) };
            for (run, (value, change)) in case.values.iter().zip(&case.changes).enumerate() {
                let Some(value) = value else { continue };
                series.points.push((run as f64 + 1.0, exactly(value / first)));
                if *change == Change::Slower {
                    // A whisker over the whole point marks a regression.
                    let point = exactly(value / first);
                    let wide = stats::Estimate { low: point.value * 0.97, high: point.value * 1.03, ..point };
                    marks.points.push((run as f64 + 1.0, wide));
                }
            }
            let cell = |(value, change): (&Option<f64>, &Change)| {
                value.map_or_else(|| "–".into(), |value| format!("{}{}", change.mark(), short(value)))
            };
            let cells = case.values.iter().zip(&case.changes).map(cell);
            data.push(std::iter::once(case.label.clone()).chain(cells));
            chart.series.extend([series, marks]);
        }
        let text =
            "Whiskers and ▲ mark cases that are slower than in the run before by more than the gate, for certain.";
        Figure::drawn("history", &title, text, chart.draw(), data)
    }
}

/// `2026-11-25 20:47` in UTC.
fn day(at_ms: u64) -> String {
    let (days, minutes) = ((at_ms / 86_400_000) as i64, at_ms / 60_000 % 1440);
    // Howard Hinnant's civil_from_days; days count from 1970-01-01.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::super::synthetic;
    use super::*;
    use crate::campaign::store;
    use crate::svg::assert_well_formed;

    const CRITERIA: Criteria = Criteria { gate: 0.01, margin: 0.01, seed: 1 };

    /// A run in which packets of one size take longer by a factor.
    fn run(root: &Path, name: &str, at_ms: u64, slower: f64) -> PathBuf {
        let dir = root.join(name);
        std::fs::create_dir(&dir).unwrap();
        let mut folder = synthetic::folder();
        let mut trials = store::Trials::open(&dir, 0).unwrap();
        for trial in folder.trials.iter_mut().filter(|trial| trial.study == "sizes" && trial.traffic != "imix") {
            if trial.traffic == "64" {
                trial.measured.tsc = trial.measured.tsc.map(|ticks| (ticks as f64 * slower) as u64);
                trial.measured.dur_ns = (trial.measured.dur_ns as f64 * slower) as u64;
            }
            trials.append(trial).unwrap();
        }
        std::fs::write(dir.join(store::CAMPAIGN), synthetic::TEXT).unwrap();
        folder.environments[0].at_ms = at_ms;
        std::fs::write(dir.join(store::ENV), serde_json::to_vec(&folder.environments).unwrap()).unwrap();
        dir
    }

    #[test]
    fn a_slower_run_is_marked_and_a_run_of_another_machine_left_out() {
        let root = tempfile::tempdir().unwrap();
        let at = |minutes: u64| 1_700_000_000_000 + minutes * 60_000;
        run(root.path(), "c", at(2), 1.1);
        run(root.path(), "a", at(0), 1.0);
        run(root.path(), "b", at(1), 1.0);
        let history = History::of(&[root.path().to_owned()], CRITERIA).unwrap();
        let names: Vec<_> = history.runs.iter().map(|run| run.dir.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["a", "b", "c"], "in order of time");
        for case in &history.cases {
            let is_slower = case.label.contains(" 64 ");
            let expected = if is_slower { Change::Slower } else { Change::None };
            assert_eq!((case.changes[1], case.changes[2]), (Change::None, expected), "{case:?}");
        }
        assert!(history.regressed() && history.text().contains('▲'), "{}", history.text());
        assert_well_formed(&history.html().replace("<link rel=\"icon\" href=\"data:,\">", ""));

        let path = root.path().join("a").join(store::ENV);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("Processor & Co", "Another", 1)).unwrap();
        let history = History::of(&[root.path().to_owned()], CRITERIA).unwrap();
        assert_eq!(history.runs.len(), 2);
        assert!(history.notes[0].contains("another machine"), "{:?}", history.notes);
        let one = History::of(&[root.path().join("b")], CRITERIA).unwrap_err().to_string();
        assert!(one.starts_with("1 run of this campaign"), "{one}");
        let none = History::of(&[root.path().join("x")], CRITERIA).unwrap_err().to_string();
        assert!(none.contains("neither a run nor a folder of runs"), "{none}");
    }

    #[test]
    fn times_are_dates() {
        assert_eq!(
            [0, 1_700_000_000_000, 951_782_400_000].map(day),
            ["1970-01-01 00:00", "2023-11-14 22:13", "2000-02-29 00:00"]
        );
    }
}
