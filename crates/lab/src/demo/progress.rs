//! How far the demonstration is: a bar on a terminal, a line per row elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Steps of a row besides the seconds of its transfer.
const OTHER_STEPS: u64 = 5;

/// Shows progress on standard error.
pub(super) struct Progress {
    bar: ProgressBar,
    rows: usize,
}

impl Progress {
    pub(super) fn new(rows: usize, seconds: u16) -> Self {
        let bar = ProgressBar::new(rows as u64 * (OTHER_STEPS + u64::from(seconds)));
        if std::io::stderr().is_terminal() {
            let style =
                ProgressStyle::with_template("{bar:24} {elapsed_precise}  {msg}").expect("template is constant");
            bar.set_style(style);
            bar.enable_steady_tick(Duration::from_millis(500));
        } else {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self { bar, rows }
    }

    /// Prints the current step.
    pub(super) fn say(&self, text: &str) {
        self.bar.set_message(text.to_owned());
        if self.bar.is_hidden() {
            eprintln!("demo: {text}");
        }
    }

    /// Prints a step within a row; without a terminal only the row's line is printed.
    pub(super) fn step(&self, text: &str) {
        self.bar.set_message(text.to_owned());
        self.bar.inc(1);
    }

    /// A row is done: `number` of them are.
    pub(super) fn row_done(&self, number: usize, text: &str) {
        let per_row = self.bar.length().unwrap_or(0) / self.rows.max(1) as u64;
        self.bar.set_position(number as u64 * per_row);
        if self.bar.is_hidden() {
            eprintln!("demo: [{number}/{}] {text}", self.rows);
        } else {
            self.bar.println(format!("[{number}/{}] {text}", self.rows));
        }
    }

    /// Rows done so far.
    pub(super) fn number(&self) -> usize {
        let per_row = (self.bar.length().unwrap_or(0) / self.rows.max(1) as u64).max(1);
        (self.bar.position() / per_row) as usize
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
