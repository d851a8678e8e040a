//! Selection of the rounds of a case that count: those with an idle SMT sibling, if there are
//! enough of them.

use std::time::Duration;

use crate::host::{Gauge, Reading};

/// Minimum number of rounds with an idle sibling, and their minimum share of all rounds.
const FEWEST: usize = 8;
const FEWEST_SHARE: f64 = 0.25;
/// Default limit of the time that a case waits for an idle sibling.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);

/// Records each round and selects the ones that count.
pub(super) struct UncontendedRounds {
    gauge: Gauge,
    patience: Duration,
    left: Duration,
    before: Option<Reading>,
    free: Vec<bool>,
}

impl UncontendedRounds {
    /// A case waits at most `patience` in total for an idle sibling. Zero disables the distinction
    /// of rounds.
    pub(super) fn new(patience: Duration) -> Self {
        Self { gauge: Gauge::open_for(patience), patience, left: patience, before: None, free: Vec::new() }
    }

    /// A new case.
    pub(super) fn case(&mut self) {
        self.left = self.patience;
        self.free.clear();
    }

    /// Waits for a core of our own while there is patience.
    pub(super) fn begin(&mut self) {
        self.before = (!self.patience.is_zero()).then(|| self.gauge.wait(&mut self.left));
    }

    /// A round that counts has ended.
    pub(super) fn end(&mut self) {
        let free =
            self.before.take().is_some_and(|before| [before, self.gauge.read()].iter().all(|r| self.gauge.free(*r)));
        self.free.push(free);
    }

    /// Number of uncontended rounds.
    pub(super) fn count(&self) -> usize {
        count(&self.free)
    }

    /// Returns whether they speak for the case.
    pub(super) fn enough(&self) -> bool {
        enough(&self.free)
    }

    /// Selects the samples that count; `samples` has one per round.
    pub(super) fn counted(&self, samples: &[f64]) -> Vec<f64> {
        counted(samples, &self.free)
    }
}

fn count(free: &[bool]) -> usize {
    free.iter().filter(|free| **free).count()
}

/// Returns whether there are enough uncontended rounds.
pub(super) fn enough(free: &[bool]) -> bool {
    let count = count(free);
    count >= FEWEST.min(free.len()) && count as f64 >= FEWEST_SHARE * free.len() as f64 && count > 0
}

/// Selects the samples of uncontended rounds, or all samples if these are too few.
pub(super) fn counted(samples: &[f64], free: &[bool]) -> Vec<f64> {
    if !enough(free) {
        return samples.to_vec();
    }
    samples.iter().zip(free).filter(|(_, free)| **free).map(|(sample, _)| *sample).collect()
}

/// Note below a table: number of cases with a busy sibling; `~` marks their sizes.
pub(super) fn note(alone: impl Iterator<Item = bool>) -> Option<String> {
    let all: Vec<bool> = alone.collect();
    let shared = all.iter().filter(|alone| !**alone).count();
    (shared > 0).then(|| {
        format!("~ {shared} of {} cases had a busy SMT sibling most of the time; --patience-ms waits longer", all.len())
    })
}

/// A size in a table, marked where the core was shared.
pub(super) fn marked(size: usize, alone: bool) -> String {
    if alone { size.to_string() } else { format!("~{size}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(free: &[bool]) -> UncontendedRounds {
        let mut alone = UncontendedRounds::new(Duration::from_millis(1));
        alone.free = free.to_vec();
        alone
    }

    #[test]
    fn rounds_without_a_neighbour_count_where_there_are_enough() {
        let samples: Vec<f64> = (0..40).map(f64::from).collect();
        let mut free = vec![false; 40];
        assert_eq!(after(&free).counted(&samples), samples);
        free[..9].fill(true);
        assert_eq!(after(&free).counted(&samples), samples, "fewer than a quarter");
        free[9] = true;
        assert_eq!(after(&free).counted(&samples), samples[..10]);
        assert!(!after(&[true; 0]).enough() && after(&[true; 3]).enough());
    }

    #[test]
    fn without_patience_nothing_is_told_apart() {
        let mut alone = UncontendedRounds::new(Duration::ZERO);
        alone.case();
        alone.begin();
        alone.end();
        assert_eq!((alone.count(), alone.counted(&[1.0])), (0, vec![1.0]));
    }

    #[test]
    fn a_table_says_what_was_shared() {
        assert_eq!(note([true, true].into_iter()), None);
        assert!(note([true, false].into_iter()).is_some_and(|text| text.starts_with("~ 1 of 2")));
        assert_eq!((marked(64, true), marked(64, false)), ("64".into(), "~64".into()));
    }
}
