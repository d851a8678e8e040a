//! CSV of iperf2 (`iperf -c HOST -y C -i 1`): no header, one row per flow and interval, one for
//! their sum.
//!
//! [`testbed::iperf`] reads and checks the rows.

use std::collections::{BTreeMap, BTreeSet};

use super::{ImportError, Source, Throughput, stamp};
use stats::median;
use testbed::iperf::{COLUMNS, Line, LineError};

/// The flow that is the sum of all.
const SUM: i64 = -1;

/// Names in a header row, or a first field that is a time stamp and enough columns.
pub(super) fn looks_like(first: &str) -> bool {
    let fields: Vec<&str> = first.split(',').collect();
    is_header(&fields) || (fields.len() > 3 && stamp(fields[0]).is_some())
}

fn is_header(fields: &[&str]) -> bool {
    let first = fields[0].to_lowercase();
    fields.len() >= COLUMNS && (first.starts_with("time") || first.starts_with("date"))
}

struct ReportLine {
    line: usize,
    stamp: f64,
    row: Line,
}

/// Reads the CSV.
pub(super) fn csv(source: Source<'_>, text: &str) -> Result<Throughput, ImportError> {
    let mut rows = Vec::new();
    let mut rate_name = None;
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        if rows.is_empty() && is_header(&fields) {
            rate_name = Some((index + 1, fields[COLUMNS - 1].to_owned()));
            continue;
        }
        rows.push(row(source, index + 1, line)?);
    }
    if let Some((line, name)) = rate_name.filter(|(_, name)| names_bytes(name)) {
        // The rows agree with bits, or they had been refused: the name is wrong.
        let what = format!("column 9 is headed '{name}', but holds 8 × bytes / interval: bits per second");
        return Err(source.line(
            line,
            what,
            "rename it to bits_per_second: read as bytes it is wrong by a factor of 8",
        ));
    }
    assemble(source, &rows)
}

/// Returns whether a name means bytes: `bytes_per_second`, `GB/s`, `MByte/s`, but not `Gbit/s` or
/// `Gb/s`.
fn names_bytes(name: &str) -> bool {
    name.to_lowercase().contains("byte") || name.contains("B/s") || name.contains("Bps")
}

fn row(source: Source<'_>, line: usize, text: &str) -> Result<ReportLine, ImportError> {
    let hint = |fault: &LineError| match fault {
        LineError::Columns(_) => "copy the file again, or delete this row if the transfer was stopped in it",
        LineError::Field { .. } => HINT,
        LineError::Unit { .. } => "import the output of iperf -y C unchanged; it is in bits per second",
    };
    let refuse = |fault: LineError| source.line(line, fault.to_string(), hint(&fault));
    let row = Line::parse(text).map_err(refuse)?;
    if row.seconds() == 0.0 {
        return Err(source.line(line, format!("the interval from {:.1} s has no length", row.start_s), HINT));
    }
    let stamp = stamp(&row.stamp).ok_or_else(|| {
        source.line(line, format!("'{}' in column 1 is not a time like 20250605181231", row.stamp), HINT)
    })?;
    Ok(ReportLine { line, stamp, row })
}

const HINT: &str = "expected what iperf -y C -i 1 writes, unchanged";

/// Bytes of one interval, by flow.
#[derive(Default)]
struct Interval {
    seconds: f64,
    sum: Option<f64>,
    flows: BTreeMap<i64, f64>,
}

impl Interval {
    fn bytes(&self) -> f64 {
        self.sum.unwrap_or_else(|| self.flows.values().sum())
    }
}

fn assemble(source: Source<'_>, rows: &[ReportLine]) -> Result<Throughput, ImportError> {
    let lengths: Vec<f64> = rows.iter().map(|line| line.row.seconds()).collect();
    let usual = median(&lengths);
    if rows.iter().all(|line| line.row.start_s == 0.0) {
        return Err(source.whole("one row per flow is not a series", "run iperf with -i 1"));
    }
    let mut notes = Vec::new();
    let mut intervals: BTreeMap<i64, Interval> = BTreeMap::new();
    let mut partial = 0;
    for ReportLine { line, row, .. } in rows {
        let seconds = row.seconds();
        if seconds > 1.5 * usual {
            continue; // The sum over the whole transfer.
        }
        if seconds < 0.5 * usual {
            partial += 1;
            continue;
        }
        let interval = intervals.entry((row.start_s * 10.0).round() as i64).or_default();
        interval.seconds = seconds;
        let bytes = row.bytes as f64;
        let again = if row.flow == SUM {
            interval.sum.replace(bytes).is_some()
        } else {
            interval.flows.insert(row.flow, bytes).is_some()
        };
        if again {
            let what = format!("flow {} has a second row for the interval from {:.1} s", row.flow, row.start_s);
            return Err(source.line(*line, what, "import one transfer per file"));
        }
    }
    if partial > 0 {
        notes.push(format!("{partial} rows shorter than half an interval are omitted"));
    }
    note_gaps(&intervals, usual, &mut notes);
    note_sums(&intervals, &mut notes);
    let numbers: BTreeSet<i64> = intervals.values().flat_map(|i| i.flows.keys().copied()).collect();
    let flow = |number: &i64| intervals.values().map(|i| i.flows.get(number).copied().unwrap_or(0.0)).collect();
    Ok(Throughput {
        name: source.name(),
        tool: "iperf2".into(),
        start_s: rows.first().map_or(0.0, |line| line.stamp - line.row.end_s),
        seconds: intervals.values().map(|i| i.seconds).collect(),
        bytes: intervals.values().map(Interval::bytes).collect(),
        flows: numbers.iter().map(|number| (number.to_string(), flow(number))).collect(),
        notes,
    })
}

fn note_gaps(intervals: &BTreeMap<i64, Interval>, usual: f64, notes: &mut Vec<String>) {
    let starts: Vec<i64> = intervals.keys().copied().collect();
    let step = (usual * 10.0).round() as i64;
    let gaps = starts.windows(2).filter(|pair| pair[1] - pair[0] > step).count();
    if gaps > 0 {
        notes.push(format!("{gaps} gaps: intervals are missing, so adjacent samples are not adjacent in time"));
    }
}

fn note_sums(intervals: &BTreeMap<i64, Interval>, notes: &mut Vec<String>) {
    let differs = |interval: &&Interval| {
        interval.sum.is_some_and(|sum| !interval.flows.is_empty() && interval.flows.values().sum::<f64>() != sum)
    };
    let differing = intervals.values().filter(differs).count();
    if differing > 0 {
        notes.push(format!(
            "in {differing} of {} intervals the flows do not add up to the sum that iperf gives; its sum is used",
            intervals.len()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refusal;
    use super::super::{Imported, parse};
    use super::*;

    /// Two flows and their sum over two seconds, then the summary.
    const GOOD: &str = "\
20250605181231,10.0.0.1,37166,10.0.0.2,5001,3,0.0-1.0,1000000,8000000
20250605181231,10.0.0.1,37167,10.0.0.2,5001,4,0.0-1.0,500000,4000000
20250605181231,10.0.0.1,0,10.0.0.2,5001,-1,0.0-1.0,1500000,12000000
20250605181232,10.0.0.1,37166,10.0.0.2,5001,3,1.0-2.0,2000000,16000000
20250605181232,10.0.0.1,37167,10.0.0.2,5001,4,1.0-2.0,250000,2000000
20250605181232,10.0.0.1,0,10.0.0.2,5001,-1,1.0-2.0,2250000,18000000
20250605181232,10.0.0.1,0,10.0.0.2,5001,-1,0.0-2.0,3750000,15000000
";

    fn throughput(text: &str) -> Throughput {
        match parse("f.csv", text).expect("good") {
            Imported::Throughput(throughput) => throughput,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_transfer_is_read_once_and_its_summary_is_not_a_sample() {
        let read = throughput(GOOD);
        assert_eq!(read.gbit_per_s(), [0.012, 0.018]);
        assert_eq!(read.flows["3"], [1e6, 2e6]);
        assert_eq!((read.flows.len(), read.duration_s(), read.notes.len()), (2, 2.0, 0));
        assert_eq!(read.start_s, super::super::stamp("20250605181230").expect("a stamp"));
    }

    #[test]
    fn without_a_row_for_the_sum_flows_are_added_up() {
        let alone: String = GOOD.lines().filter(|l| !l.contains(",-1,")).map(|l| format!("{l}\n")).collect();
        assert_eq!(throughput(&alone).gbit_per_s(), [0.012, 0.018]);
    }

    #[test]
    fn each_wrong_unit_is_named() {
        let with = |rate: &str| refusal(&GOOD.replacen(",8000000\n", &format!(",{rate}\n"), 1));
        let text = with("1000000");
        assert!(
            text.starts_with("f.csv:1: 1000000 bytes in 1.0 s are 8000000 bit/s, but the rate column contains 1000000"),
            "{text}"
        );
        assert!(text.contains("the unit is bytes per second; import the output of iperf"), "{text}");
        assert!(with("8000").contains("the unit is kbit/s") && with("8").contains("the unit is Mbit/s"));
        assert!(with("1").contains("the unit is MB/s"), "{}", with("1"));
        assert!(with("0.9536743").contains("the unit is MiB/s") || with("0.9536743").contains("MB/s"));
        assert!(with("64000000").contains("multiplied by 8 before"));
        assert!(with("31").contains("no known unit fits"));
    }

    #[test]
    fn a_header_that_says_bytes_over_numbers_that_are_bits_is_refused() {
        let header = |rate: &str| format!("timestamp,a,b,c,d,id,interval,bytes,{rate}\n{GOOD}");
        for name in ["bytes_per_second", "GB/s", "MByte/s"] {
            let text = refusal(&header(name));
            assert!(
                text.starts_with(&format!("f.csv:1: column 9 is headed '{name}', but holds 8 × bytes / interval")),
                "{text}"
            );
        }
        assert_eq!(throughput(&header("bits_per_second")).bytes.len(), 2);
        assert_eq!(throughput(&header("Gbit/s")).bytes.len(), 2);
    }

    #[test]
    fn broken_rows_are_named_by_line() {
        let half = &GOOD[..GOOD.len() - 30];
        assert!(
            refusal(half).starts_with("f.csv:7: 5 of 9 columns: the row is not complete; copy"),
            "{}",
            refusal(half)
        );
        let cut = &GOOD[..GOOD.len() - 4];
        assert!(refusal(cut).starts_with("f.csv:7: 3750000 bytes in 2.0 s"), "{}", refusal(cut));
        assert!(refusal(&GOOD.replacen("0.0-1.0", "1.0-0.0", 1)).contains("f.csv:1: '1.0-0.0' in column 7"));
        assert!(
            refusal(&GOOD.replacen("1500000", "x", 1)).contains("f.csv:3: 'x' in column 8 is not a number of bytes")
        );
        let twice = format!("{GOOD}{}", GOOD.lines().next().expect("a line"));
        assert!(refusal(&twice).contains("f.csv:8: flow 3 has a second row"), "{}", refusal(&twice));
        let summary = GOOD.lines().last().expect("a line");
        assert!(refusal(summary).contains("run iperf with -i 1"));
    }

    #[test]
    fn gaps_and_sums_that_do_not_add_up_are_noted() {
        let odd = GOOD.replacen("1500000,12000000", "1500008,12000064", 1).replace("1.0-2.0", "3.0-4.0");
        let notes = throughput(&odd).notes.join("; ");
        assert!(notes.contains("1 gaps") && notes.contains("in 1 of 2 intervals the flows do not add up"), "{notes}");
    }

    #[test]
    fn rows_of_udp_have_more_columns() {
        let udp: String = GOOD.lines().map(|l| format!("{l},0.012,0,850,0.000,0\n")).collect();
        assert_eq!(throughput(&udp).gbit_per_s(), [0.012, 0.018]);
    }
}
