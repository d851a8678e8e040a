//! Progress on standard error: a bar on a terminal, lines elsewhere.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Interval of lines that report how far a command is.
const EVERY: Duration = Duration::from_secs(10);

/// Progress of a command.
#[derive(Debug)]
pub(crate) struct Display {
    bar: ProgressBar,
    /// First word of a line.
    tool: &'static str,
    /// Time of the last line of [`Display::report`].
    last: Cell<Instant>,
    quiet: bool,
}

impl Display {
    /// Progress of `tool` over `total` things named `what`, which may have placeholders of a bar. A
    /// `quiet` one shows nothing.
    pub(crate) fn new(tool: &'static str, what: &str, total: u64, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal() && !quiet;
        let bar = if terminal { ProgressBar::new(total) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template(&format!("{{bar:30}} {{pos}}/{{len}} {what}{{msg}}"));
        bar.set_style(style.expect("the template is constant but for a word"));
        Self { bar, tool, last: Cell::new(Instant::now()), quiet }
    }

    /// `done` of `total` are done.
    pub(crate) fn at(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// What is done at the moment. Shown on a terminal only.
    pub(crate) fn step(&self, text: &str) {
        self.bar.set_message(format!(", {text}"));
    }

    /// Prints a line without a terminal, if the last one was long ago or this is the `last`.
    pub(crate) fn report(&self, text: &str, last: bool) {
        if self.bar.is_hidden() && !self.quiet && (last || self.last.get().elapsed() >= EVERY) {
            self.last.set(Instant::now());
            eprintln!("{}: {text}", self.tool);
        }
    }

    /// Prints a line that stays, above the bar.
    pub(crate) fn print(&self, text: &str) {
        match self.bar.is_hidden() {
            true if self.quiet => {}
            true => eprintln!("{}: {text}", self.tool),
            false => self.bar.println(text),
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
