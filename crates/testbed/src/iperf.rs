//! Throughput, from the CSV of iperf 2 (`-y C`).
//!
//! A line is `time, local, port, remote, port, flow, start-end, bytes, bits per second`. Each flow
//! has a line per interval and one for all of its time.

use std::collections::BTreeMap;

use serde::Serialize;

use stats::jain;

/// TCP streams.
pub const STREAMS: usize = 8;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Number of the flow, -1 for the sum of all.
    pub flow: i64,
    pub start_s: f64,
    pub end_s: f64,
    bytes: u64,
    pub bits_per_s: f64,
}

/// Result of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transfer {
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
    #[error("line {line} of iperf's CSV is malformed: '{text}'")]
    Malformed { line: usize, text: String },
    /// Some versions have called bits bytes.
    #[error("line {line} of iperf's CSV is inconsistent: {bytes} bytes in {seconds} s are not {bits_per_s} bit/s")]
    Units { line: usize, bytes: u64, seconds: f64, bits_per_s: f64 },
    /// Nothing was transferred.
    #[error("iperf reported no flow")]
    Empty,
}

impl Line {
    pub fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let [_, _, _, _, _, flow, interval, bytes, rate, ..] = fields[..] else { return None };
        let (start, end) = interval.split_once('-')?;
        Some(Self {
            flow: flow.parse().ok()?,
            start_s: start.parse().ok()?,
            end_s: end.parse().ok()?,
            bytes: bytes.parse().ok()?,
            bits_per_s: rate.parse().ok()?,
        })
    }

    /// Returns whether bytes, time and rate belong together; times have one decimal place.
    fn agrees(&self) -> bool {
        let seconds = self.end_s - self.start_s;
        let bits = self.bytes as f64 * 8.0;
        (self.bits_per_s * seconds - bits).abs() <= 0.05 * bits + 0.15 * self.bits_per_s
    }
}

impl Transfer {
    /// Reads the output of a client or a server that was started for `seconds`.
    pub fn parse(csv: &str, seconds: u16) -> Result<Self, CsvError> {
        let mut flows: BTreeMap<i64, Vec<Line>> = BTreeMap::new();
        for (index, text) in csv.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            let number = index + 1;
            let line = Line::parse(text).ok_or_else(|| CsvError::Malformed { line: number, text: text.into() })?;
            if !line.agrees() {
                let seconds = line.end_s - line.start_s;
                let Line { bytes, bits_per_s, .. } = line;
                return Err(CsvError::Units { line: number, bytes, seconds, bits_per_s });
            }
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
    for line in lines.filter(|line| line.end_s - line.start_s > 0.85 && line.start_s < f64::from(seconds) - 0.5) {
        let (count, bits) = rates.entry(line.start_s.round() as u64).or_default();
        *count += 1;
        *bits += line.bytes as f64 * 8.0 / (line.end_s - line.start_s);
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
        let transfer = Transfer::parse(CSV, 3).unwrap();
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
        assert_eq!(Transfer::parse(&late, 4).unwrap().gbit_per_s, Transfer::parse(CSV, 3).unwrap().gbit_per_s);
    }

    /// All are done but for one stream that waits for its last segment.
    #[test]
    fn a_tail_does_not_lower_the_rate() {
        assert_eq!(Transfer::parse(CSV, 2).unwrap().gbit_per_s, Transfer::parse(CSV, 3).unwrap().gbit_per_s[..2]);
    }

    /// The rows of the thesis end with a sum over all flows, numbered -1; it is not counted twice.
    #[test]
    fn sums_are_left_out() {
        let with_sum = format!("{CSV}20261121022655,192.0.2.1,0,192.0.2.2,5001,-1,0.0-3.0,475660408,1251364091\n");
        assert_eq!(Transfer::parse(&with_sum, 3), Transfer::parse(CSV, 3));
    }

    #[test]
    fn unfinished_flows_do_not_count() {
        let lines: Vec<&str> = CSV.lines().collect();
        assert!(Transfer::is_complete(CSV, 2));
        assert!(!Transfer::is_complete(&lines[..7].join("\n"), 2));
        assert!(Transfer::is_complete(&lines[..7].join("\n"), 1));
        assert!(!Transfer::is_complete("", 1));
    }

    #[test]
    fn bits_called_bytes_are_found() {
        let wrong = "20250605,1,1,2,2,3,0.0-1.0,73531452,73531452\n";
        assert!(matches!(Transfer::parse(wrong, 3), Err(CsvError::Units { line: 1, .. })));
        assert!(matches!(
            Transfer::parse("connect failed: Connection refused", 3),
            Err(CsvError::Malformed { line: 1, .. })
        ));
        assert_eq!(Transfer::parse("", 3), Err(CsvError::Empty));
        let short = "20250605,1,1,2,2,3,8.0-8.0,0,0\n";
        assert_eq!(Transfer::parse(short, 3), Err(CsvError::Empty));
    }
}
