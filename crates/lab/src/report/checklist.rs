//! The five papers, row by row: printed value, corrected value, ours, verdict. The rows are data
//! (`checklist.toml`): the measurements of this run replace `{…}` in their texts, and verdicts
//! follow from claims and arithmetic.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::analysis::Folder;
use super::arithmetic::Check;
use super::claim::{self, Claim};
use super::facts;

/// Papers in their order: short form, description.
pub(super) const PAPERS: [(&str, &str); 5] = [
    ("S0", "EESP against PSP, with SAs per CPU (thesis, 2025)."),
    ("S1", "What IPsec costs a VPN server (Shue and others)."),
    ("S2", "A throughput model of IPsec (Tisovsky, Baronak)."),
    ("S3", "Tunnel against transport mode with ping (Chen)."),
    ("S4", "IPsec on a Cavium OCTEON (Meng and others)."),
];

/// Status of a row.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// The measurements, or a computation from the paper's own data, agree.
    Reproduced,
    /// The measurements disagree.
    Contradicted,
    /// The interval of the measurements exceeds the bounds of the claim.
    Inconclusive,
    /// The printed value does not follow from its own data.
    Corrected,
    /// Other equipment or method, or no number; the text states how.
    NotComparable,
    /// There, as a mechanism with tests, without a number to compare.
    Built,
    /// Not in this run.
    NotMeasured,
}

impl Verdict {
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Contradicted => "contradicted",
            Self::Inconclusive => "inconclusive",
            Self::Corrected => "corrected",
            Self::NotComparable => "not-comparable",
            Self::Built => "built",
            Self::NotMeasured => "not-measured",
        }
    }

    pub(super) fn shown(self) -> &'static str {
        match self {
            Self::Reproduced => "✓ reproduced",
            Self::Contradicted => "✗ contradicted",
            Self::Inconclusive => "? inconclusive",
            Self::Corrected => "≠ corrected",
            Self::NotComparable => "~ not comparable",
            Self::Built => "□ built",
            Self::NotMeasured => "… not measured",
        }
    }

    /// Without its mark.
    pub(super) fn plain(self) -> &'static str {
        self.shown().split_once(' ').map_or("", |(_, word)| word)
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    row: Vec<Entry>,
}

/// A row of the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    id: String,
    what: String,
    printed: String,
    #[serde(default)]
    corrected: String,
    ours: String,
    /// For a row that has nothing to test.
    verdict: Option<Verdict>,
    #[serde(default)]
    claim: Vec<Claim>,
    #[serde(default)]
    arithmetic: Vec<Check>,
}

/// A row of the report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ChecklistRow {
    pub(super) id: String,
    pub(super) paper: String,
    pub(super) what: String,
    pub(super) printed: String,
    pub(super) corrected: String,
    pub(super) ours: String,
    /// Each claim and each recomputed number, with the result.
    pub(super) tests: Vec<String>,
    pub(super) verdict: Verdict,
}

fn entries() -> Vec<Entry> {
    let file: File = toml::from_str(include_str!("checklist.toml")).expect("a test reads it");
    file.row
}

/// Every claim with the row that it belongs to.
#[cfg(test)]
pub(super) fn claims() -> Vec<(String, Claim)> {
    let of = |entry: Entry| entry.claim.into_iter().map(move |claim| (entry.id.clone(), claim));
    entries().into_iter().flat_map(of).collect()
}

/// All rows, with the measurements of this run.
pub(super) fn rows(folder: &Folder) -> Vec<ChecklistRow> {
    let facts = facts::of(folder);
    entries().into_iter().map(|entry| row(entry, folder, &facts)).collect()
}

fn row(entry: Entry, folder: &Folder, facts: &BTreeMap<&'static str, String>) -> ChecklistRow {
    let (ours, missing) = fill(&entry.ours, facts);
    let claims: Vec<claim::Judged> = entry.claim.iter().map(|claim| claim.judge(folder)).collect();
    let numbers: Vec<_> = entry.arithmetic.iter().map(Check::judge).collect();
    let of_claims = claim::together(claims.iter().map(|judged| judged.verdict));
    // One number that does not follow is enough.
    let of_numbers = numbers.iter().map(|judged| judged.verdict).max();
    let verdict = match (of_claims, of_numbers, entry.verdict) {
        // Without a measurement in this run, the verdict follows from the paper's own numbers.
        (Some(Verdict::NotMeasured), Some(verdict), _) | (None, Some(verdict), _) | (Some(verdict), ..) => verdict,
        (None, None, Some(verdict)) if !missing => verdict,
        (None, None, _) => Verdict::NotMeasured,
    };
    let tests = numbers.into_iter().map(|judged| judged.text).chain(claims.into_iter().map(|judged| judged.text));
    ChecklistRow {
        paper: entry.id.split('-').next().unwrap_or_default().to_owned(),
        id: entry.id,
        what: entry.what,
        printed: entry.printed,
        corrected: entry.corrected,
        ours,
        tests: tests.collect(),
        verdict,
    }
}

/// Puts facts into the places of a text; whether one was missing.
fn fill(text: &str, facts: &BTreeMap<&'static str, String>) -> (String, bool) {
    let (mut filled, mut missing, mut rest) = (String::new(), false, text);
    while let Some((before, after)) = rest.split_once('{') {
        let (name, behind) = after.split_once('}').unwrap_or((after, ""));
        filled.push_str(before);
        // Optional conditions are last.
        let (name, optional) = name.strip_prefix('?').map_or((name, false), |name| (name, true));
        match facts.get(name) {
            Some(fact) if optional => filled.push_str(&format!("; {fact}")),
            Some(fact) => filled.push_str(fact),
            None if optional => {}
            None => {
                missing = true;
                let study = facts::study(name).unwrap_or("?");
                filled.push_str(&format!("(needs a study '{study}')"));
            }
        }
        rest = behind;
    }
    filled.push_str(rest);
    (filled, missing)
}

/// Number of rows per verdict.
pub(super) fn counts(rows: &[ChecklistRow]) -> BTreeMap<&'static str, usize> {
    rows.iter().fold(BTreeMap::new(), |mut counts, row| {
        *counts.entry(row.verdict.class()).or_default() += 1;
        counts
    })
}

/// The same in words.
pub(super) fn sentence(rows: &[ChecklistRow]) -> String {
    let mut counts: BTreeMap<Verdict, usize> = BTreeMap::new();
    rows.iter().for_each(|row| *counts.entry(row.verdict).or_default() += 1);
    counts.into_iter().map(|(verdict, count)| format!("{count} {}", verdict.plain())).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::synthetic;
    use super::*;

    #[test]
    fn every_row_is_complete_and_there_once() {
        let entries = entries();
        let ids: BTreeSet<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
        assert_eq!(ids.len(), entries.len());
        for entry in &entries {
            assert!(PAPERS.iter().any(|(paper, _)| entry.id.starts_with(&format!("{paper}-"))), "{}", entry.id);
            assert!(!entry.what.is_empty() && !entry.printed.is_empty() && !entry.ours.is_empty(), "{}", entry.id);
            let tested = !entry.claim.is_empty() || !entry.arithmetic.is_empty();
            let untested = [Verdict::Built, Verdict::NotComparable, Verdict::NotMeasured];
            match entry.verdict {
                Some(verdict) => assert!(!tested && untested.contains(&verdict), "{}: a constant", entry.id),
                None => assert!(tested, "{} has nothing that gives it a verdict", entry.id),
            }
        }
        for (paper, least) in [("S0", 32), ("S1", 20), ("S2", 29), ("S3", 8), ("S4", 15)] {
            let have = entries.iter().filter(|entry| entry.id.starts_with(paper)).count();
            assert!(have >= least, "{paper} has {have} rows, not {least}");
        }
    }

    #[test]
    fn every_place_in_a_text_is_a_fact() {
        let every: BTreeSet<&str> = facts::NAMES.iter().map(|(name, _)| *name).collect();
        for entry in entries() {
            for place in entry.ours.split('{').skip(1) {
                let name = place.split('}').next().unwrap_or_default().trim_start_matches('?');
                assert!(every.contains(name), "{}: {name}", entry.id);
            }
        }
    }

    #[test]
    fn what_a_row_can_do_without_is_left_out() {
        let facts = BTreeMap::from([("noise", "quiet".to_owned())]);
        assert_eq!(fill("a {noise}{?search}", &facts), ("a quiet".into(), false));
        assert_eq!(fill("a{?noise}", &facts), ("a; quiet".into(), false));
    }

    #[test]
    fn a_whole_run_fills_all_facts() {
        let mut folder = synthetic::folder();
        let facts = facts::of(&folder);
        for (name, study) in facts::NAMES {
            assert!(facts.contains_key(name), "{name}, of '{study}'");
        }
        folder.trials.clear();
        let rows = rows(&folder);
        assert!(
            rows.iter().any(|row| row.ours.contains("(needs a study 'sizes')") && row.verdict == Verdict::NotMeasured)
        );
    }
}
