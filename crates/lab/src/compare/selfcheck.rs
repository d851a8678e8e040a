//! The comparison held against itself: a build against the same build must not differ, a planted
//! slow-down must.

use serde::{Deserialize, Serialize};

use super::Row;
use super::live::{LiveOptions, live};
use stats::{Estimate, Verdict};

/// Of twenty runs of a build against itself, so many must not be called different.
const MOST_WRONG_OF_20: usize = 1;

/// Result.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct SelfCheck {
    /// Runs of A against itself.
    pub runs: usize,
    /// Comparisons in each.
    pub rows: usize,
    /// Runs in which any row was called different.
    pub called_different: usize,
    /// Rows by verdict over all runs: different, equivalent, inconclusive.
    pub verdicts: [usize; 3],
    /// Largest deviation from 1 that any row showed, a share.
    pub largest_deviation: f64,
    /// Widest noise floor, a share.
    pub widest_floor: f64,
    /// Slow-down that was planted in one more run, a share.
    pub planted: f64,
    /// Ratios that this run showed, lowest and highest.
    pub planted_ratios: [f64; 2],
    /// Rows in which it was called different and slower.
    pub planted_found: usize,
    /// Rows in which it was not found, with their intervals.
    pub planted_missed: Vec<String>,
    /// Sessions in each run.
    pub sessions: usize,
    /// Sessions that would be enough for the rows that were missed, by their intervals; 0 where
    /// none would, or none was missed.
    pub sessions_needed: usize,
}

impl SelfCheck {
    /// At most one run in twenty was wrong, and the planted slow-down was found in every row: every
    /// row has it.
    pub fn passed(&self) -> bool {
        let quiet = self.called_different * 20 <= self.runs * MOST_WRONG_OF_20;
        quiet && self.rows > 0 && self.planted_found == self.rows
    }

    /// For people.
    pub fn text(&self) -> String {
        let [different, equivalent, inconclusive] = self.verdicts;
        format!(
            "A against itself: {} runs of {} rows; called different in {} runs\n\
             rows: {different} different, {equivalent} equivalent, {inconclusive} inconclusive; largest deviation {:.2} %, \
             widest noise floor ±{:.2} %\n\
             planted {:.1} %: found in {} of {} rows, ratios {:.4} to {:.4}\n{}{}\n",
            self.runs,
            self.rows,
            self.called_different,
            100.0 * self.largest_deviation,
            100.0 * self.widest_floor,
            100.0 * self.planted,
            self.planted_found,
            self.rows,
            self.planted_ratios[0],
            self.planted_ratios[1],
            self.missed_text(),
            if self.passed() { "passed" } else { "failed" }
        )
    }
}

impl SelfCheck {
    /// Explains why the planted slow-down was not found in all rows, and suggests a remedy.
    fn missed_text(&self) -> String {
        let mut text: String = self.planted_missed.iter().map(|row| format!("not found: {row}\n")).collect();
        if self.sessions_needed > 0 {
            text += &format!(
                "{} sessions do not have the statistical power; the intervals suggest about {} (--sessions), or a quieter machine\n",
                self.sessions, self.sessions_needed
            );
        }
        text
    }
}

/// Sessions after which the interval of a row would exclude 1: it narrows with their square root; 0
/// when its ratio is no slow-down at all.
fn sessions_needed(row: &Row, sessions: usize) -> usize {
    let slower = row.ratio.ratio.value.ln();
    let reach = slower - row.ratio.ratio.low.ln();
    if slower <= 0.0 || !reach.is_finite() {
        return 0;
    }
    // A fifth more, so that it is likely and not just possible.
    (1.2 * sessions as f64 * (reach / slower).powi(2)).ceil() as usize
}

/// Compares the first binary of `options` with itself `runs` times, each with its own seed, then
/// with `plant` on one side. `progress` is called with (done, total) runs.
///
/// # Errors
/// As [`live`].
pub fn self_check(
    options: &LiveOptions,
    runs: usize,
    plant: f64,
    progress: &mut dyn FnMut(usize, usize),
) -> anyhow::Result<SelfCheck> {
    let binary = options.binaries[0].clone();
    let one = |run: usize, plant: f64| {
        let mut options = LiveOptions { binaries: [binary.clone(), binary.clone()], plant, ..options.clone() };
        options.criteria.seed = options.criteria.seed.wrapping_add(run as u64);
        live(&options, &mut |_, _| {})
    };
    let mut check = SelfCheck {
        runs,
        rows: 0,
        called_different: 0,
        verdicts: [0; 3],
        largest_deviation: 0.0,
        widest_floor: 0.0,
        planted: plant,
        planted_ratios: [f64::INFINITY, 0.0],
        planted_found: 0,
        planted_missed: vec![],
        sessions: options.sessions,
        sessions_needed: 0,
    };
    for run in 0..runs {
        progress(run, runs + 1);
        let comparison = one(run, 0.0)?;
        check.called_different += usize::from(comparison.any_different());
        for row in &comparison.rows {
            check.verdicts[row.judged.verdict as usize] += 1;
            check.largest_deviation = check.largest_deviation.max((row.ratio.ratio.value - 1.0).abs());
            check.widest_floor = check.widest_floor.max(row.floor.as_ref().map_or(0.0, |f| f.reach().exp_m1()));
        }
    }
    progress(runs, runs + 1);
    let planted = one(runs, plant)?;
    check.rows = planted.rows.len();
    for row in &planted.rows {
        let ratio = row.ratio.ratio.value;
        check.planted_ratios = [check.planted_ratios[0].min(ratio), check.planted_ratios[1].max(ratio)];
        if row.judged.verdict == Verdict::Different && ratio > 1.0 {
            check.planted_found += 1;
        } else {
            let Estimate { low, high, .. } = row.ratio.ratio;
            let missed = format!(
                "{}: {ratio:.4} ({low:.4} to {high:.4}): {}: {}",
                row.label, row.judged.verdict, row.judged.why
            );
            check.planted_missed.push(missed);
            check.sessions_needed = check.sessions_needed.max(sessions_needed(row, options.sessions));
        }
    }
    Ok(check)
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;

    #[test]
    fn missing_sessions_are_reported() {
        let comparison = example(&[("missed", 0.02, 0.12)]);
        let row = &comparison.rows[0];
        let needed = sessions_needed(row, 10);
        assert!((10..400).contains(&needed), "{needed}");
        assert!(sessions_needed(row, 40) > needed);
        assert_eq!(sessions_needed(&example(&[("faster", -0.02, 0.001)]).rows[0], 10), 0);
    }

    #[test]
    fn one_wrong_run_in_twenty_passes_and_a_missed_plant_does_not() {
        let check = SelfCheck {
            runs: 20,
            rows: 6,
            called_different: 1,
            verdicts: [1, 100, 19],
            largest_deviation: 0.004,
            widest_floor: 0.006,
            planted: 0.02,
            planted_ratios: [1.019, 1.021],
            planted_found: 6,
            planted_missed: vec![],
            sessions: 20,
            sessions_needed: 0,
        };
        assert!(check.passed() && check.text().ends_with("passed\n"));
        assert!(!SelfCheck { called_different: 2, ..check.clone() }.passed());
        assert!(!SelfCheck { planted_found: 5, ..check.clone() }.passed(), "a row that has it was missed");
        let missed = SelfCheck {
            planted_found: 5,
            planted_missed: vec!["esp 64 in: 1.0190 (0.9990 to 1.0400): inconclusive".into()],
            sessions_needed: 60,
            ..check.clone()
        };
        let text = missed.text();
        assert!(text.contains("not found: esp 64 in") && text.contains("about 60 (--sessions)"), "{text}");
        assert!(!SelfCheck { runs: 10, ..check }.passed());
    }
}
