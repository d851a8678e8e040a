//! Which rounds of a case count: those during which no neighbour shared the core, where there are enough of them.

use std::time::Duration;

use crate::host::{Gauge, Reading};

/// Rounds without a neighbour that speak for a case, and the share of all that they are at least.
const FEWEST: usize = 8;
const FEWEST_SHARE: f64 = 0.25;
/// Longest time that a case waits for a core of its own when nothing else is asked for.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);

/// Told of each round, it says at the end which of them count.
pub(super) struct Alone {
    gauge: Gauge,
    patience: Duration,
    left: Duration,
    before: Option<Reading>,
    free: Vec<bool>,
}

impl Alone {
    /// A case waits for `patience` in all, and so long is looked for a core of our own now; rounds are only told apart when that is not zero.
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

    /// How many rounds of the case had a core of their own.
    pub(super) fn count(&self) -> usize {
        count(&self.free)
    }

    /// Whether they speak for the case.
    pub(super) fn enough(&self) -> bool {
        enough(&self.free)
    }

    /// What counts of `samples`, one for each round.
    pub(super) fn counted(&self, samples: &[f64]) -> Vec<f64> {
        counted(samples, &self.free)
    }
}

fn count(free: &[bool]) -> usize {
    free.iter().filter(|free| **free).count()
}

/// Whether the rounds without a neighbour are enough to speak for all.
pub(super) fn enough(free: &[bool]) -> bool {
    let count = count(free);
    count >= FEWEST.min(free.len()) && count as f64 >= FEWEST_SHARE * free.len() as f64 && count > 0
}

/// What counts of `samples`, one for each round: those without a neighbour, or all where these are too few.
pub(super) fn counted(samples: &[f64], free: &[bool]) -> Vec<f64> {
    if !enough(free) {
        return samples.to_vec();
    }
    samples.iter().zip(free).filter(|(_, free)| **free).map(|(sample, _)| *sample).collect()
}

/// What stands below a table: how many cases had a neighbour, which their sizes say with a `~`.
pub(super) fn note(alone: impl Iterator<Item = bool>) -> Option<String> {
    let all: Vec<bool> = alone.collect();
    let shared = all.iter().filter(|alone| !**alone).count();
    (shared > 0).then(|| {
        format!(
            "~ {shared} of {} cases shared a core with a neighbour most of the time; --patience-ms waits longer",
            all.len()
        )
    })
}

/// A size in a table, marked where the core was shared.
pub(super) fn marked(size: usize, alone: bool) -> String {
    if alone { size.to_string() } else { format!("~{size}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(free: &[bool]) -> Alone {
        let mut alone = Alone::new(Duration::from_millis(1));
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
        let mut alone = Alone::new(Duration::ZERO);
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
