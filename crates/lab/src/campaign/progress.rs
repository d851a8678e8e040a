//! How far a run is, and how long it will take.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Progress over all trials of a run; a bar on a terminal, a line now and then elsewhere.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    quiet: bool,
    started: Instant,
    said: Instant,
    before: u64,
    done: u64,
    total: u64,
}

/// Interval of progress lines without a terminal.
const EVERY: Duration = Duration::from_secs(10);

impl Progress {
    /// `done` of `total` trials are there already.
    pub(super) fn new(done: u64, total: u64, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal() && !quiet;
        let bar = if terminal { ProgressBar::new(total) } else { ProgressBar::hidden() };
        let style = "{bar:30} {pos}/{len} trials, {msg}";
        bar.set_style(ProgressStyle::with_template(style).expect("the template is constant"));
        bar.set_position(done);
        let now = Instant::now();
        Self { bar, quiet: quiet || terminal, started: now, said: now, before: done, done, total }
    }

    /// One more, of `study`.
    pub(super) fn advance(&mut self, study: &str) {
        self.done += 1;
        let left = self.left().map_or_else(String::new, |left| format!("{} left", clock(left)));
        self.bar.set_position(self.done);
        self.bar.set_message(format!("{study}, {left}"));
        if !self.quiet && (self.said.elapsed() >= EVERY || self.done == self.total) {
            self.said = Instant::now();
            eprintln!("lab: {}/{} trials, {study}, {left}", self.done, self.total);
        }
    }

    /// Trials that were planned and will not be made.
    pub(super) fn skip(&mut self, trials: u64) {
        self.total = self.total.saturating_sub(trials);
        self.bar.set_length(self.total);
    }

    /// Time for the rest, at the pace so far.
    fn left(&self) -> Option<Duration> {
        remaining(self.started.elapsed(), self.done - self.before, self.total.saturating_sub(self.done))
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn remaining(elapsed: Duration, done: u64, left: u64) -> Option<Duration> {
    (done > 0).then(|| elapsed.mul_f64(left as f64 / done as f64))
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
        assert_eq!(remaining(Duration::from_secs(10), 5, 15), Some(Duration::from_secs(30)));
        assert_eq!(remaining(Duration::from_secs(10), 0, 15), None);
    }

    #[test]
    fn times_read_like_a_clock() {
        let shown = [9, 309, 3909].map(|s| clock(Duration::from_secs(s)));
        assert_eq!(shown, ["9 s", "5:09", "1:05:09"]);
    }
}
