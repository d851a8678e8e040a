//! Throughput, from the CSV of iperf 2 (`-y C`).
//!
//! A line is `time, local, port, remote, port, flow, start-end, bytes, bits per second`; UDP adds
//! five more. Each flow has a line per interval and one for all of its time. Note the unit of the
//! last column: `-f` does not change it, and reading it as bytes is wrong by a factor of 8. Every
//! line is checked against rate = 8 · bytes / interval.

use std::collections::BTreeMap;

use serde::Serialize;

use stats::jain;

/// TCP streams.
pub const STREAMS: usize = 8;

/// Columns of a line for TCP.
pub const COLUMNS: usize = 9;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Time stamp, as printed.
    pub stamp: String,
    /// Number of the flow, -1 for the sum of all.
    pub flow: i64,
    /// Start of the interval.
    pub start_s: f64,
    /// End of the interval.
    pub end_s: f64,
    /// Payload in the interval.
    pub bytes: u64,
    /// Rate.
    pub bits_per_s: f64,
}

/// Reason why a line is not one of iperf 2.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LineError {
    /// Columns are missing.
    #[error("{0} of {COLUMNS} columns: the row is not complete")]
    Columns(usize),
    /// A column has another content.
    #[error("'{text}' in column {column} is not {what}")]
    Field {
        /// Number of the column, from 1.
        column: usize,
        /// Its content.
        text: String,
        /// Expected content.
        what: &'static str,
    },
    /// Bytes, interval and rate do not agree: some versions and scripts have called bits bytes.
    #[error("{bytes} bytes in {seconds:.1} s are {expected:.0} bit/s, but the rate column contains {rate}: {reading}")]
    Unit {
        /// Payload.
        bytes: u64,
        /// Length of the interval.
        seconds: f64,
        /// Rate that follows from both.
        expected: f64,
        /// Rate, as printed.
        rate: f64,
        /// Unit that would fit.
        reading: String,
    },
}

/// Result of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransferResult {
    /// Payload of all flows.
    pub bytes: u64,
    /// Time of the longest flow.
    pub seconds: f64,
    /// Flows that came to their end.
    pub flows: usize,
    /// All flows together, per second of the requested time, in Gbit/s.
    pub gbit_per_s: Vec<f64>,
    /// Fairness between the flows (Jain): 1 when all got the same.
    pub fairness: f64,
}

/// Error in a CSV.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum CsvError {
    /// Not a line of iperf 2.
    #[error("line {line} of iperf's CSV: {source}; the line is '{text}'")]
    Malformed {
        /// Number of the line, from 1.
        line: usize,
        /// Its content.
        text: String,
        /// Reason.
        source: LineError,
    },
    /// Nothing was transferred.
    #[error("iperf reported no flow")]
    Empty,
}

/// Units that a rate was found in, as factors of bits per second.
const UNITS: [(f64, &str); 9] = [
    (1.0 / 8.0, "bytes per second"),
    (1e-3, "kbit/s"),
    (1e-6, "Mbit/s"),
    (1e-9, "Gbit/s"),
    (1e-3 / 8.0, "kB/s"),
    (1e-6 / 8.0, "MB/s"),
    (1e-9 / 8.0, "GB/s"),
    (1.0 / 8.0 / 1_048_576.0, "MiB/s"),
    (8.0, "bits per second of a byte count that was multiplied by 8 before"),
];

impl Line {
    /// Reads and checks a line.
    ///
    /// # Errors
    /// Columns that are missing or wrong, or that contradict each other.
    pub fn parse(text: &str) -> Result<Self, LineError> {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        if fields.len() < COLUMNS {
            return Err(LineError::Columns(fields.len()));
        }
        let wrong = |column: usize, what| LineError::Field { column, text: fields[column - 1].to_owned(), what };
        let interval = || wrong(7, "an interval like 0.0-1.0");
        let (start, end) = fields[6].split_once('-').ok_or_else(interval)?;
        let (Ok(start_s), Ok(end_s)) = (start.trim().parse::<f64>(), end.trim().parse::<f64>()) else {
            return Err(interval());
        };
        if !(end_s >= start_s && start_s >= 0.0 && end_s.is_finite()) {
            return Err(interval());
        }
        let rate = fields[8].parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0);
        let line = Self {
            stamp: fields[0].to_owned(),
            flow: fields[5].parse().map_err(|_| wrong(6, "the number of a flow"))?,
            start_s,
            end_s,
            bytes: fields[7].parse().map_err(|_| wrong(8, "a number of bytes"))?,
            bits_per_s: rate.ok_or_else(|| wrong(9, "a rate"))?,
        };
        line.check_unit()?;
        Ok(line)
    }

    /// Length of the interval.
    pub fn seconds(&self) -> f64 {
        self.end_s - self.start_s
    }

    /// Refuses a rate that is not 8 · bytes / interval. Both ends of the interval are rounded to a
    /// tenth of a second, so that nothing can be refused over an interval without a length.
    fn check_unit(&self) -> Result<(), LineError> {
        let (seconds, bits, rate) = (self.seconds(), 8.0 * self.bytes as f64, self.bits_per_s);
        // A byte more or less counts for iperf's own rounding.
        let near = |factor: f64, least: f64| {
            (rate * seconds - factor * bits).abs() * seconds <= 0.105 * factor * bits + least * seconds * seconds
        };
        if near(1.0, 8.0) {
            return Ok(());
        }
        let unit = UNITS.iter().find(|(factor, _)| near(*factor, 1e-9));
        let reading = unit.map_or("no known unit fits".to_owned(), |(_, name)| format!("the unit is {name}"));
        Err(LineError::Unit { bytes: self.bytes, seconds, expected: bits / seconds, rate, reading })
    }
}

impl TransferResult {
    /// Reads the output of a client or a server that was started for `seconds`.
    pub fn parse(csv: &str, seconds: u16) -> Result<Self, CsvError> {
        let mut flows: BTreeMap<i64, Vec<Line>> = BTreeMap::new();
        for (index, text) in csv.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            let number = index + 1;
            let line =
                Line::parse(text).map_err(|source| CsvError::Malformed { line: number, text: text.into(), source })?;
            // The sum of all flows, which some versions add.
            if line.flow >= 0 {
                flows.entry(line.flow).or_default().push(line);
            }
        }
        let totals: Vec<Line> = flows.values_mut().filter_map(take_total).collect();
        if totals.is_empty() {
            return Err(CsvError::Empty);
        }
        let took =
            |line: &Line| if line.bits_per_s > 0.0 { line.bytes as f64 * 8.0 / line.bits_per_s } else { line.end_s };
        let rates: Vec<f64> = totals.iter().map(|line| line.bytes as f64).collect();
        Ok(Self {
            bytes: totals.iter().map(|line| line.bytes).sum(),
            seconds: totals.iter().map(took).fold(0.0, f64::max),
            flows: totals.len(),
            gbit_per_s: series(flows.values().flatten(), totals.len(), seconds),
            fairness: jain(&rates),
        })
    }

    /// Mean rate in Gbit/s, over the requested time: a stream that waits for its last segment while
    /// the others have ended does not affect the rate.
    pub fn rate(&self) -> f64 {
        if self.gbit_per_s.is_empty() {
            return self.bytes as f64 * 8.0 / self.seconds / 1e9;
        }
        self.gbit_per_s.iter().sum::<f64>() / self.gbit_per_s.len() as f64
    }

    /// Returns whether the total line of a flow is in `csv` for at least `flows` flows.
    pub fn is_complete(csv: &str, flows: usize) -> bool {
        Self::parse(csv, u16::MAX).is_ok_and(|transfer| transfer.flows >= flows)
    }
}

/// Takes the line of a flow's whole time off the end of its lines.
fn take_total(lines: &mut Vec<Line>) -> Option<Line> {
    let is_total = lines.len() >= 2 && lines.last().is_some_and(|last| last.start_s == 0.0);
    if is_total { lines.pop() } else { None }
}

/// Rate of all flows by second. Seconds that some flows did not finish are excluded.
fn series<'a>(lines: impl Iterator<Item = &'a Line>, flows: usize, seconds: u16) -> Vec<f64> {
    let mut rates: BTreeMap<u64, (usize, f64)> = BTreeMap::new();
    for line in lines.filter(|line| line.seconds() > 0.85 && line.start_s < f64::from(seconds) - 0.5) {
        let (count, bits) = rates.entry(line.start_s.round() as u64).or_default();
        *count += 1;
        *bits += line.bytes as f64 * 8.0 / (line.seconds());
    }
    rates.into_values().filter(|(count, _)| *count == flows).map(|(_, bits)| bits / 1e9).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// iperf 2.1.8, two streams, three seconds.
    const CSV: &str = "\
20261121022653,192.0.2.1,41244,192.0.2.2,5001,2,0.0-1.0,73531452,588251616
20261121022653,192.0.2.1,41234,192.0.2.2,5001,1,0.0-1.0,74186812,593494496
20261121022654,192.0.2.1,41244,192.0.2.2,5001,2,1.0-2.0,93847552,750780416
20261121022654,192.0.2.1,41234,192.0.2.2,5001,1,1.0-2.0,67502080,540016640
20261121022655,192.0.2.1,41244,192.0.2.2,5001,2,2.0-3.0,97910784,783286272
20261121022655,192.0.2.1,41234,192.0.2.2,5001,1,2.0-3.0,68419584,547356672
20261121022655,192.0.2.1,41244,192.0.2.2,5001,2,0.0-3.0,265420860,698346615
20261121022655,192.0.2.1,41234,192.0.2.2,5001,1,0.0-3.0,210239548,553017476
";

    #[test]
    fn flows_are_summed() {
        let transfer = TransferResult::parse(CSV, 3).unwrap();
        assert_eq!((transfer.bytes, transfer.flows), (475_660_408, 2));
        assert!((transfer.seconds - 3.0413).abs() < 1e-3, "{}", transfer.seconds);
        assert_eq!(transfer.gbit_per_s.len(), 3);
        assert!((transfer.gbit_per_s[0] - 1.181_746).abs() < 1e-5);
        assert!((transfer.rate() - 1.2677).abs() < 1e-3, "{}", transfer.rate());
        assert!((transfer.fairness - 0.986_7).abs() < 1e-3, "{}", transfer.fairness);
    }

    /// One stream went on a little: that second is not a rate of all streams.
    #[test]
    fn unfinished_seconds_are_left_out() {
        let late = CSV.replace(
            "2,0.0-3.0,265420860",
            "2,3.0-3.9,1000,8889\nx,192.0.2.1,41244,192.0.2.2,5001,2,0.0-3.9,265421860",
        );
        let late = late.replace("698346615", "544455097");
        assert_eq!(
            TransferResult::parse(&late, 4).unwrap().gbit_per_s,
            TransferResult::parse(CSV, 3).unwrap().gbit_per_s
        );
    }

    /// All are done but for one stream that waits for its last segment.
    #[test]
    fn a_tail_does_not_lower_the_rate() {
        assert_eq!(
            TransferResult::parse(CSV, 2).unwrap().gbit_per_s,
            TransferResult::parse(CSV, 3).unwrap().gbit_per_s[..2]
        );
    }

    /// The rows of the thesis end with a sum over all flows, numbered -1; it is not counted twice.
    #[test]
    fn sums_are_left_out() {
        let with_sum = format!("{CSV}20261121022655,192.0.2.1,0,192.0.2.2,5001,-1,0.0-3.0,475660408,1251364091\n");
        assert_eq!(TransferResult::parse(&with_sum, 3), TransferResult::parse(CSV, 3));
    }

    #[test]
    fn unfinished_flows_do_not_count() {
        let lines: Vec<&str> = CSV.lines().collect();
        assert!(TransferResult::is_complete(CSV, 2));
        assert!(!TransferResult::is_complete(&lines[..7].join("\n"), 2));
        assert!(TransferResult::is_complete(&lines[..7].join("\n"), 1));
        assert!(!TransferResult::is_complete("", 1));
    }

    #[test]
    fn bits_called_bytes_are_found() {
        let wrong = "20250605,1,1,2,2,3,0.0-1.0,73531452,73531452\n";
        let error = TransferResult::parse(wrong, 3).unwrap_err().to_string();
        assert!(error.contains("line 1 of iperf's CSV: 73531452 bytes in 1.0 s are 588251616 bit/s"), "{error}");
        assert!(error.contains("the unit is bytes per second"), "{error}");
        assert!(matches!(
            TransferResult::parse("connect failed: Connection refused", 3),
            Err(CsvError::Malformed { line: 1, .. })
        ));
        assert_eq!(TransferResult::parse("", 3), Err(CsvError::Empty));
        let short = "20250605,1,1,2,2,3,8.0-8.0,0,0\n";
        assert_eq!(TransferResult::parse(short, 3), Err(CsvError::Empty));
    }
}
