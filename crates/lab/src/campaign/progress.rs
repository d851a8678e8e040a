//! How far a run is, and how long it will take.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::{Kind, Study};

/// Progress over all trials of a run; a bar on a terminal, a line now and then elsewhere.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    quiet: bool,
    started: Instant,
    reported: Instant,
    done: u64,
    total: u64,
    /// Trials of the search in hand.
    parts: u64,
    /// Planned seconds that were done since the start, and that are left.
    spent_s: f64,
    left_s: f64,
}

/// Interval of progress lines without a terminal.
const EVERY: Duration = Duration::from_secs(10);

impl Progress {
    /// `done` of `total` trials already exist; the others are planned to take `left_s` seconds.
    pub(super) fn new(done: u64, total: u64, left_s: f64, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal() && !quiet;
        let bar = if terminal { ProgressBar::new(total) } else { ProgressBar::hidden() };
        let style = "{bar:30} {pos}/{len} trials, {msg}";
        bar.set_style(ProgressStyle::with_template(style).expect("the template is constant"));
        bar.set_position(done);
        let now = Instant::now();
        Self { bar, quiet: quiet || terminal, started: now, reported: now, done, total, parts: 0, spent_s: 0.0, left_s }
    }

    /// One more, of `study`.
    pub(super) fn advance(&mut self, study: &Study) {
        let planned = planned_s(study);
        self.done += 1;
        self.parts = 0;
        self.spent_s += planned;
        self.left_s -= planned;
        let study = &study.name;
        let left = self.left().map_or_else(String::new, |left| format!("{} left", clock(left)));
        self.bar.set_position(self.done);
        self.bar.set_message(format!("{study}, {left}"));
        if !self.quiet && (self.reported.elapsed() >= EVERY || self.done == self.total) {
            self.reported = Instant::now();
            eprintln!("lab: {}/{} trials, {study}, {left}", self.done, self.total);
        }
    }

    /// A trial of a search that is one planned trial as a whole.
    pub(super) fn part(&mut self, study: &Study) {
        self.parts += 1;
        self.bar.set_message(format!("{}, {} trials of the search", study.name, self.parts));
        if !self.quiet && self.reported.elapsed() >= EVERY {
            self.reported = Instant::now();
            eprintln!("lab: {}/{} trials, {}, {} trials of the search", self.done, self.total, study.name, self.parts);
        }
    }

    /// Trials of `study` that were planned and will not be made.
    pub(super) fn skip(&mut self, study: &Study, trials: u64) {
        self.left_s -= trials as f64 * planned_s(study);
        self.total = self.total.saturating_sub(trials);
        self.bar.set_length(self.total);
    }

    /// Time for the rest, at the pace so far.
    fn left(&self) -> Option<Duration> {
        remaining(self.started.elapsed(), self.spent_s, self.left_s)
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
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
