//! How far a run is, and how long it will take.

use std::time::{Duration, Instant};

use super::{Kind, Study};
use crate::progress::Display;

/// Progress over all trials of a run.
#[derive(Debug)]
pub(super) struct Progress {
    display: Display,
    started: Instant,
    done: u64,
    total: u64,
    /// Trials of the search in hand.
    parts: u64,
    /// Planned seconds that were done since the start, and that are left.
    spent_s: f64,
    left_s: f64,
}

impl Progress {
    /// `done` of `total` trials already exist; the others are planned to take `left_s` seconds.
    pub(super) fn new(done: u64, total: u64, left_s: f64, quiet: bool) -> Self {
        let display = Display::new("lab", "trials", total, quiet);
        display.at(done, total);
        Self { display, started: Instant::now(), done, total, parts: 0, spent_s: 0.0, left_s }
    }

    /// One more, of `study`.
    pub(super) fn advance(&mut self, study: &Study) {
        let planned = planned_s(study);
        self.done += 1;
        self.parts = 0;
        self.spent_s += planned;
        self.left_s -= planned;
        let left = remaining(self.started.elapsed(), self.spent_s, self.left_s);
        let left = left.map_or_else(String::new, |left| format!("{} left", clock(left)));
        self.display.at(self.done, self.total);
        self.show(&format!("{}, {left}", study.name));
    }

    /// A trial of a search that is one planned trial as a whole.
    pub(super) fn part(&mut self, study: &Study) {
        self.parts += 1;
        self.show(&format!("{}, {} trials of the search", study.name, self.parts));
    }

    fn show(&self, text: &str) {
        self.display.step(text);
        self.display.report(&format!("{}/{} trials, {text}", self.done, self.total), self.done == self.total);
    }

    /// Trials of `study` that were planned and will not be made.
    pub(super) fn skip(&mut self, study: &Study, trials: u64) {
        self.left_s -= trials as f64 * planned_s(study);
        self.total = self.total.saturating_sub(trials);
        self.display.at(self.done, self.total);
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.display.finish();
    }
}

/// Planned time of a trial in seconds. Trials of one campaign may last a millisecond or minutes, so
/// their number does not predict the time.
pub(super) fn planned_s(study: &Study) -> f64 {
    // Hosts, keys and the slow start of TCP; preparation in memory.
    let more = if study.kind == Kind::Transfers { 1.5 } else { 0.005 };
    study.duration.as_secs_f64() + more
}

fn remaining(elapsed: Duration, spent_s: f64, left_s: f64) -> Option<Duration> {
    (spent_s > 0.0).then(|| elapsed.mul_f64((left_s / spent_s).max(0.0)))
}

/// `1:05:09`, `5:09`, `9 s`.
fn clock(time: Duration) -> String {
    let s = time.as_secs();
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{}:{:02}", s / 60, s % 60),
        _ => format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_was_done() {
        assert_eq!(remaining(Duration::from_secs(10), 5.0, 15.0), Some(Duration::from_secs(30)));
        assert_eq!(remaining(Duration::from_secs(10), 5.0, -1e-9), Some(Duration::ZERO));
        assert_eq!(remaining(Duration::from_secs(10), 0.0, 15.0), None);
    }

    #[test]
    fn times_read_like_a_clock() {
        let shown = [9, 309, 3909].map(|s| clock(Duration::from_secs(s)));
        assert_eq!(shown, ["9 s", "5:09", "1:05:09"]);
    }
}
