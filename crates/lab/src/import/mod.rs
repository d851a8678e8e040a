//! Results of other tools, read with their units checked.
//!
//! A file is recognised by its content. Values that a tool prints twice must agree: a rate with its
//! bytes and interval, a bandwidth with its packet rate, a percentage with the number 100. A file
//! that contradicts itself is refused with the place and the unit that would fit, because a factor
//! of 8 that slips through is in every later figure.

mod cpu;
mod iperf2;
mod iperf3;
mod report;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use cpu::Cpu;
pub use report::{Core, CpuReport, Flows, Report, SeriesReport, report};

use crate::metric::Metric;
use crate::trial::{Direction, Measurement, SCHEMA, Trial};

/// Largest file that is read, in bytes: a day of eight flows, sampled every second, is a quarter of
/// it.
const MAX_BYTES: u64 = 256 << 20;

/// Contents of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Imported {
    /// A transfer over time.
    Throughput(Throughput),
    /// Use of processors over time.
    Cpu(Cpu),
}

/// A transfer over time.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Throughput {
    /// File name without its ending.
    pub name: String,
    /// `iperf2` or `iperf3`.
    pub tool: String,
    /// Start in seconds since 1970, in the clock of the tool's host; 0 when the file has none.
    pub start_s: f64,
    /// Length of each interval in seconds.
    pub seconds: Vec<f64>,
    /// Bytes of all flows in each interval.
    pub bytes: Vec<f64>,
    /// Bytes of each flow in each interval.
    pub flows: BTreeMap<String, Vec<f64>>,
    /// Remarks about the file.
    pub notes: Vec<String>,
}

impl Throughput {
    /// Gbit/s (10⁹ bit/s) of each interval.
    pub fn gbit_per_s(&self) -> Vec<f64> {
        self.bytes.iter().zip(&self.seconds).map(|(bytes, s)| 8.0 * bytes / s / 1e9).collect()
    }

    /// Duration in seconds.
    pub fn duration_s(&self) -> f64 {
        self.seconds.iter().sum()
    }

    /// One trial per interval.
    pub fn trials(&self) -> Vec<Trial> {
        let mut at_s = self.start_s;
        let one = |(i, (bytes, seconds)): (usize, (&f64, &f64))| {
            let flows = self.flows.iter();
            let flows = flows.filter_map(|(id, all)| Some((Metric::Flow(id), 8.0 * all.get(i)? / seconds / 1e9)));
            let measured = Measurement {
                received_bytes: *bytes as u64,
                dur_ns: (seconds * 1e9) as u64,
                values: flows.collect(),
                ..Measurement::default()
            };
            let trial = self.trial(i as u32, (at_s * 1e3) as u64, measured);
            at_s += seconds;
            trial
        };
        self.bytes.iter().zip(&self.seconds).enumerate().map(one).collect()
    }

    fn trial(&self, order: u32, at_ms: u64, measured: Measurement) -> Trial {
        Trial {
            schema: SCHEMA,
            run: self.name.clone(),
            session: 0,
            round: order,
            order,
            seed: 0,
            at_ms,
            study: "series".into(),
            subject: self.name.clone(),
            protocol: String::new(),
            mode: String::new(),
            suite: String::new(),
            place: crate::trial::Place::Interfaces,
            direction: Direction::Both,
            traffic: format!("{} flows", self.flows.len().max(1)),
            size: None,
            cores: 0,
            sas: 0,
            replay: 0,
            batch: 0,
            offered_pps: None,
            goal: None,
            way: None,
            measured,
            env: format!("imported from {}", self.tool),
        }
    }
}

/// Reason why a file is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The operating system does not give it.
    #[error("{file}: {source}")]
    Unreadable {
        /// File.
        file: String,
        /// Answer of the operating system.
        source: std::io::Error,
    },
    /// A line is wrong.
    #[error("{file}:{line}: {what}; {hint}")]
    Line {
        /// File.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Description.
        what: String,
        /// Correction.
        hint: String,
    },
    /// The file as a whole is wrong.
    #[error("{file}: {what}; {hint}")]
    File {
        /// File.
        file: String,
        /// Description.
        what: String,
        /// Correction.
        hint: String,
    },
}

/// Reads a file.
///
/// # Errors
/// It cannot be read, is of no known format, ends in the middle, or contradicts itself.
pub fn read(path: &Path) -> Result<Imported, ImportError> {
    let file = path.display().to_string();
    let unreadable = |source| ImportError::Unreadable { file: file.clone(), source };
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    if length > MAX_BYTES {
        let what = format!("{} MiB exceed the limit of {} MiB", length >> 20, MAX_BYTES >> 20);
        return Err(ImportError::File { file, what, hint: "split it by time".into() });
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|_| ImportError::File {
        file: file.clone(),
        what: "not a text file".into(),
        hint: EXPECTED.into(),
    })?;
    parse(&file, &text)
}

const EXPECTED: &str = "expected iperf2 CSV (iperf -y C -i 1), iperf3 JSON (iperf3 -J), mpstat text or CSV by \
                        core";

/// Reads the text of a file named `file`.
///
/// # Errors
/// As [`read`].
pub fn parse(file: &str, text: &str) -> Result<Imported, ImportError> {
    let source = Source { file };
    let text = text.trim_start_matches('\u{feff}');
    let Some(first) = text.lines().find(|line| !line.trim().is_empty()) else {
        return Err(source.whole("the file is empty", EXPECTED));
    };
    if first.trim_start().starts_with('{') {
        return json(source, text);
    }
    if cpu::looks_like(first) {
        return cpu::csv(source, text).map(Imported::Cpu);
    }
    if iperf2::looks_like(first) {
        return iperf2::csv(source, text).map(Imported::Throughput);
    }
    if text.lines().take(10).any(|line| line.contains("CPU") && line.contains("%idle")) {
        return cpu::text(source, text).map(Imported::Cpu);
    }
    Err(source.whole("unknown format", EXPECTED))
}

fn json(source: Source<'_>, text: &str) -> Result<Imported, ImportError> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|e| {
        let hint = if e.is_eof() { "the file is truncated: copy it again" } else { EXPECTED };
        source.line(e.line(), format!("not JSON: {e}"), hint)
    })?;
    if value.get("intervals").is_none() && value.get("error").is_none() {
        return Err(source.whole("the JSON has no 'intervals' of iperf3", EXPECTED));
    }
    iperf3::json(source, &value).map(Imported::Throughput)
}

/// Makes errors about one file.
#[derive(Clone, Copy)]
struct Source<'a> {
    file: &'a str,
}

impl Source<'_> {
    fn line(self, line: usize, what: impl Into<String>, hint: impl Into<String>) -> ImportError {
        ImportError::Line { file: self.file.into(), line, what: what.into(), hint: hint.into() }
    }

    fn whole(self, what: impl Into<String>, hint: impl Into<String>) -> ImportError {
        ImportError::File { file: self.file.into(), what: what.into(), hint: hint.into() }
    }

    /// The file's name without folder and ending.
    fn name(self) -> String {
        Path::new(self.file).file_stem().map_or_else(|| self.file.into(), |stem| stem.to_string_lossy().into_owned())
    }
}

/// Seconds since 1970 of a date and time; of no time zone, because the tools write none.
fn seconds(year: i64, month: i64, day: i64, of_day: f64) -> f64 {
    // Days from the civil calendar: years begin in March, so that the leap day is the last of its
    // year.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    days as f64 * 86_400.0 + of_day
}

/// Seconds since 1970 of 20250605181231, whatever follows it.
fn stamp(text: &str) -> Option<f64> {
    let digits: String = text.trim().chars().take_while(char::is_ascii_digit).collect();
    let part = |from: usize, to: usize| digits.get(from..to)?.parse::<i64>().ok();
    if digits.len() != 14 {
        return None;
    }
    let (month, day) = (part(4, 6)?, part(6, 8)?);
    let (hour, minute, second) = (part(8, 10)?, part(10, 12)?, part(12, 14)?);
    let fits = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 61;
    fits.then_some(seconds(part(0, 4)?, month, day, (hour * 3600 + minute * 60 + second) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn refusal(text: &str) -> String {
        parse("f.csv", text).expect_err("refused").to_string()
    }

    /// `date -u -d '2025-06-05 18:12:31' +%s` and others.
    #[test]
    fn dates() {
        assert_eq!(stamp("20250605181231"), Some(1_749_147_151.0));
        assert_eq!(stamp("20000229000000"), Some(951_782_400.0));
        assert_eq!(stamp("19700101000000.123"), Some(0.0));
        assert_eq!((stamp("20251305181231"), stamp("2025"), stamp("")), (None, None, None));
    }

    #[test]
    fn what_is_nothing_is_named() {
        assert!(refusal("").starts_with("f.csv: the file is empty; expected iperf2"));
        assert!(refusal(" \n\n").starts_with("f.csv: the file is empty"));
        assert!(refusal("hello\n").starts_with("f.csv: unknown format; expected"));
        assert!(refusal("{}").contains("no 'intervals'"));
        assert!(refusal("{\n \"a\": [1,\n").starts_with("f.csv:3: not JSON"));
    }

    #[test]
    fn a_missing_and_a_binary_file() {
        assert!(read(Path::new("/nonexistent/x.csv")).expect_err("missing").to_string().contains("No such file"));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.csv");
        std::fs::write(&path, [0xff, 0xfe, 0]).expect("written");
        assert!(read(&path).expect_err("binary").to_string().contains("not a text file"));
    }
}
