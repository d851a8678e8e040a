//! The report of a run: computed from the directory's `trials.jsonl`, `problems.jsonl`, `env.json`
//! and `campaign.toml`, and from nothing else, so that [`verify`] can compute it again and get the
//! same bytes.

mod analysis;
mod arithmetic;
pub(crate) mod chart;
mod checklist;
mod claim;
mod export;
mod facts;
pub(crate) mod figure;
mod figures;
pub mod history;
pub(crate) mod page;
mod sessions;
#[cfg(test)]
pub(crate) mod synthetic;
pub(crate) mod tables;
mod text;
mod transfers;
mod verdict;

use std::fmt;
use std::path::Path;

use analysis::Folder;
use serde::Serialize;

use crate::campaign::env::{self, Environment};
use crate::campaign::{format, store};
use crate::metric::Metric;
use crate::trial::at_one_rate;

/// The page.
pub const PAGE: &str = "report.html";

/// Reason why the report failed.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The folder.
    #[error(transparent)]
    Store(#[from] store::StoreError),
    /// Its campaign.
    #[error(transparent)]
    Campaign(#[from] format::CampaignError),
    /// A file is not there, or cannot be read.
    #[error("{path}: {why}")]
    File {
        /// Path.
        path: String,
        /// Description and correction.
        why: String,
    },
}

/// Written files.
#[derive(Clone, Debug)]
pub struct Made {
    /// The verdict, for people.
    pub table: String,
    /// The verdict, for machines.
    pub json: String,
    /// The numbers of all figures, for people.
    pub tables: String,
}

/// Everything that is computed from the trials.
struct Outputs {
    files: [(&'static str, Vec<u8>); 4],
    made: Made,
}

impl Outputs {
    fn of(mut folder: Folder) -> Result<Self, ReportError> {
        // These hold the trials as they were measured.
        let (hash, csv) = (text::hash(&folder), export::csv(&folder.trials));
        let parquet = export::parquet(&folder.trials)
            .map_err(|error| ReportError::File { path: "trials.parquet".into(), why: error.to_string() })?;
        at_one_rate(&mut folder.trials);
        let folder = &folder;
        let sections = figures::sections(folder);
        let json = text::json(folder, &sections, &hash);
        let files = [
            ("trials.csv", csv),
            ("trials.parquet", parquet),
            (SUMMARY, json.clone().into_bytes()),
            (PAGE, page::html(folder, &sections).into_bytes()),
        ];
        Ok(Self { files, made: Made { table: text::table(folder), json, tables: tables::text(&sections) } })
    }
}

/// Writes tables, summary and page of a folder.
///
/// # Errors
/// Not a results directory, or cannot be written.
pub fn write(dir: &Path) -> Result<Made, ReportError> {
    let outputs = Outputs::of(read(dir)?)?;
    for (name, bytes) in &outputs.files {
        store::write_whole(&dir.join(name), bytes)?;
    }
    Ok(outputs.made)
}

/// Computes the files of a folder again and writes those that are in it, or all if there are none:
/// a folder may keep some of them only.
///
/// # Errors
/// As [`write()`].
pub fn rewrite(dir: &Path) -> Result<(), ReportError> {
    let outputs = Outputs::of(read(dir)?)?;
    let none = outputs.files.iter().all(|(name, _)| !dir.join(name).exists());
    for (name, bytes) in outputs.files.iter().filter(|(name, _)| none || dir.join(name).exists()) {
        store::write_whole(&dir.join(name), bytes)?;
    }
    Ok(())
}

fn read(dir: &Path) -> Result<Folder, ReportError> {
    let file = |name: &str, error: std::io::Error| ReportError::File {
        path: dir.join(name).display().to_string(),
        why: match error.kind() {
            std::io::ErrorKind::NotFound => "missing; give a results directory ('weir lab run --out DIR')".into(),
            _ => error.to_string(),
        },
    };
    let campaign_text =
        std::fs::read_to_string(dir.join(store::CAMPAIGN)).map_err(|error| file(store::CAMPAIGN, error))?;
    let env_text = std::fs::read(dir.join(store::ENV)).map_err(|error| file(store::ENV, error))?;
    let environments: Vec<Environment> = serde_json::from_slice(&env_text).map_err(|error| ReportError::File {
        path: dir.join(store::ENV).display().to_string(),
        why: format!("no record of environments: {error}"),
    })?;
    Ok(Folder {
        campaign: format::parse(store::CAMPAIGN, &campaign_text)?,
        trials: store::read_trials(dir)?,
        problems: store::read_problems(dir)?,
        environments,
    })
}

/// One file, computed again.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Checked {
    /// Name in the folder.
    pub file: &'static str,
    /// True if it is the same; otherwise where it differs.
    pub same: bool,
    /// Result in words.
    pub result: String,
}

/// All files, computed again.
#[derive(Clone, Debug, Serialize)]
pub struct Verification {
    /// Hash of `trials.jsonl`, 16 hex digits.
    pub trials: String,
    /// Trials in it.
    pub count: usize,
    /// Each file.
    pub files: Vec<Checked>,
    /// Possible explanations of a difference.
    pub notes: Vec<String>,
}

impl Verification {
    /// Returns whether everything is the same.
    pub fn same(&self) -> bool {
        self.files.iter().all(|file| file.same)
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} trials, SHA-256 {}…", self.count, self.trials)?;
        for file in &self.files {
            writeln!(f, "{} {}: {}", if file.same { "✓" } else { "✗" }, file.file, file.result)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

/// The file that a folder always has.
const SUMMARY: &str = "summary.json";

/// Recomputes everything from the trials and compares it with the files in the folder. A folder may
/// keep the summary only, without the other files.
///
/// # Errors
/// Not a results directory.
pub fn verify(dir: &Path) -> Result<Verification, ReportError> {
    let folder = read(dir)?;
    let outputs = Outputs::of(folder.clone())?;
    let mut files: Vec<Checked> = outputs
        .files
        .iter()
        .map(|(name, computed)| {
            let (same, result) = match std::fs::read(dir.join(name)) {
                Ok(there) if there == *computed => (true, format!("the same, {} bytes", there.len())),
                Ok(there) => (false, difference(&there, computed)),
                Err(error) if *name != SUMMARY && error.kind() == std::io::ErrorKind::NotFound => {
                    (true, "not kept".into())
                }
                Err(error) => (false, error.to_string()),
            };
            Checked { file: name, same, result }
        })
        .collect();
    files.extend(searches(&folder));
    let raw = std::fs::read(dir.join(store::TRIALS)).unwrap_or_default();
    let mut notes = Vec::new();
    let version = env!("CARGO_PKG_VERSION");
    if let Some(other) = folder.environments.iter().find(|env| env.fixed.weir != version) {
        notes.push(format!(
            "The run was made by Weir {}, this is {version}: a report may differ for that reason.",
            other.fixed.weir
        ));
    }
    Ok(Verification { trials: env::short_hash(&raw), count: folder.trials.len(), files, notes })
}

/// Results of searches, recomputed from their trials; `None` without any.
fn searches(folder: &Folder) -> Option<Checked> {
    let all = figures::searches(folder);
    let mut wrong = Vec::new();
    for searched in &all {
        for (found, stored) in searched.found.iter().zip(searched.results()) {
            let bounds = [
                (Metric::LowerPps, found.lower),
                (Metric::UpperPps, found.upper),
                (Metric::ConditionalPps, found.conditional),
            ];
            for (metric, found) in bounds {
                let there = stored.measured.values.get(metric);
                if !nearly_equal(there, found) {
                    let number = |value: Option<f64>| value.map_or_else(|| "none".into(), |v| v.to_string());
                    let (name, there, computed) = (metric.key(), number(there), number(found));
                    wrong.push(format!("session {}: {name}: there {there}, computed {computed}", stored.session));
                }
            }
        }
    }
    let result = match wrong.first() {
        Some(first) => first.clone(),
        None => format!("the same bounds from the trials of {} searches", all.len()),
    };
    (!all.is_empty()).then_some(Checked { file: "searches", same: wrong.is_empty(), result })
}

/// Equal up to the rounding of a number that is written as text.
fn nearly_equal(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-12 * b.abs(),
        (a, b) => a == b,
    }
}

/// First difference of two files: by line for text, by byte otherwise.
fn difference(there: &[u8], computed: &[u8]) -> String {
    let (Ok(old), Ok(new)) = (std::str::from_utf8(there), std::str::from_utf8(computed)) else {
        let at = there.iter().zip(computed).take_while(|(a, b)| a == b).count();
        return format!("differs from byte {at} on");
    };
    let line = old.lines().zip(new.lines()).take_while(|(a, b)| a == b).count();
    let around = |text: &str| -> String {
        let (a, b) = (old.lines().nth(line).unwrap_or(""), new.lines().nth(line).unwrap_or(""));
        let same = a.chars().zip(b.chars()).take_while(|(x, y)| x == y).count();
        text.lines().nth(line).unwrap_or("").chars().skip(same.saturating_sub(30)).take(70).collect()
    };
    format!("differs in line {}: there '{}', computed '{}'", line + 1, around(old), around(new))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with the synthetic run in it.
    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let folder = synthetic::folder();
        let mut trials = store::Trials::open(dir.path(), 0).unwrap();
        for trial in folder.trials.iter().step_by(7) {
            trials.append(trial).unwrap();
        }
        folder.problems.iter().for_each(|problem| store::note_problem(dir.path(), problem).unwrap());
        std::fs::write(dir.path().join(store::CAMPAIGN), synthetic::TEXT).unwrap();
        let env = serde_json::to_vec(&folder.environments).unwrap();
        std::fs::write(dir.path().join(store::ENV), env).unwrap();
        dir
    }

    #[test]
    fn a_report_is_computed_again_to_the_bit_and_a_change_is_found() {
        let dir = folder();
        write(dir.path()).unwrap();
        let verdict = verify(dir.path()).unwrap();
        assert!(verdict.same(), "{verdict}");
        let page = dir.path().join(PAGE);
        let html = std::fs::read_to_string(&page).unwrap();
        std::fs::write(&page, html.replacen("fastest", "slowest", 1)).unwrap();
        std::fs::remove_file(dir.path().join(SUMMARY)).unwrap();
        let verdict = verify(dir.path()).unwrap();
        let bad: Vec<_> = verdict.files.iter().filter(|file| !file.same).map(|file| file.file).collect();
        assert_eq!(bad, [SUMMARY, PAGE]);
        assert!(verdict.to_string().contains("slowest"), "{verdict}");
    }

    #[test]
    fn a_folder_may_keep_its_summary_alone() {
        let dir = folder();
        write(dir.path()).unwrap();
        for name in ["trials.csv", "trials.parquet", PAGE] {
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
        let verdict = verify(dir.path()).unwrap();
        assert!(verdict.same() && verdict.to_string().contains("trials.csv: not kept"), "{verdict}");
        std::fs::write(dir.path().join(SUMMARY), "{}").unwrap();
        assert!(!verify(dir.path()).unwrap().same());
        rewrite(dir.path()).unwrap();
        assert!(verify(dir.path()).unwrap().same() && !dir.path().join(PAGE).exists());
    }

    #[test]
    fn a_changed_trial_changes_the_report() {
        let dir = folder();
        write(dir.path()).unwrap();
        let path = dir.path().join(store::TRIALS);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("\"verified\":1000", "\"verified\":999", 1)).unwrap();
        assert!(!verify(dir.path()).unwrap().same());
    }

    #[test]
    fn a_slower_trial_that_decides_nothing_is_found() {
        let dir = folder();
        write(dir.path()).unwrap();
        for name in ["trials.csv", "trials.parquet", PAGE] {
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
        let path = dir.path().join(store::TRIALS);
        let text = std::fs::read_to_string(&path).unwrap();
        let (first, rest) = text.split_once('\n').unwrap();
        let mut trial: crate::trial::Trial = serde_json::from_str(first).unwrap();
        trial.at_ms += 1;
        std::fs::write(&path, format!("{}\n{rest}", serde_json::to_string(&trial).unwrap())).unwrap();
        assert!(!verify(dir.path()).unwrap().same());
    }

    #[test]
    fn a_folder_of_nothing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = verify(dir.path()).unwrap_err().to_string();
        assert!(error.contains("campaign.toml: missing; give a results directory"), "{error}");
    }
}
