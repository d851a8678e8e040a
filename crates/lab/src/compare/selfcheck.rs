//! The comparison held against itself: a build against the same build must not differ, a planted slow-down must.

use serde::{Deserialize, Serialize};

use super::live::{LiveOptions, live};
use crate::stats::Verdict;

/// Of twenty runs of a build against itself, so many must not be called different.
const MOST_WRONG_OF_20: usize = 1;

/// What came out.
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
}

impl SelfCheck {
    /// At most one run in twenty was wrong, and the planted slow-down was found: any row shows it. Others may be
    /// inconclusive on a busy machine.
    pub fn passed(&self) -> bool {
        self.called_different * 20 <= self.runs * MOST_WRONG_OF_20 && self.planted_found > 0
    }

    /// For people.
    pub fn text(&self) -> String {
        let [different, equivalent, inconclusive] = self.verdicts;
        format!(
            "A against itself: {} runs of {} rows; called different in {} runs\n\
             rows: {different} different, {equivalent} equivalent, {inconclusive} inconclusive; largest deviation {:.2} %, \
             widest noise floor ±{:.2} %\n\
             planted {:.1} %: found in {} of {} rows, ratios {:.4} to {:.4}\n{}\n",
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
            if self.passed() { "passed" } else { "failed" }
        )
    }
}

/// Compares the first binary of `options` with itself `runs` times, each with its own seed, then with `plant` on one side.
/// `progress` is called with (done, total) runs.
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
        check.planted_found += usize::from(row.judged.verdict == Verdict::Different && ratio > 1.0);
    }
    Ok(check)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        };
        assert!(check.passed() && check.text().ends_with("passed\n"));
        assert!(!SelfCheck { called_different: 2, ..check.clone() }.passed());
        assert!(!SelfCheck { planted_found: 0, ..check.clone() }.passed());
        assert!(!SelfCheck { runs: 10, ..check }.passed());
    }
}
