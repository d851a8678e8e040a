//! CSV of iperf2 (`iperf -c HOST -y C -i 1`): no header, one row per flow and interval, one for
//! their sum.
//!
//! Columns: time stamp, addresses and ports, flow, interval, bytes, **bits** per second; UDP adds
//! five more. Note the unit of the last: `-f` does not change it, and reading it as bytes is wrong
//! by a factor of 8. Every row is checked against rate = 8 · bytes / interval.

use std::collections::BTreeMap;

use super::{ImportError, Source, Throughput, stamp};
use stats::median;

/// Columns of a row for TCP.
const COLUMNS: usize = 9;
/// The flow that is the sum of all.
const SUM: &str = "-1";

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
    flow: String,
    from: f64,
    to: f64,
    bytes: f64,
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
        rows.push(row(source, index + 1, &fields)?);
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

fn row(source: Source<'_>, line: usize, fields: &[&str]) -> Result<ReportLine, ImportError> {
    if fields.len() < COLUMNS {
        let what = format!("{} of {COLUMNS} columns: the row is not complete", fields.len());
        return Err(source.line(
            line,
            what,
            "copy the file again, or delete this row if the transfer was stopped in it",
        ));
    }
    let number = |column: usize, what: &str| {
        let text = fields[column];
        let wrong = || source.line(line, format!("'{text}' in column {} is not a {what}", column + 1), HINT);
        text.parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0).ok_or_else(wrong)
    };
    let interval = || source.line(line, format!("'{}' in column 7 is not an interval like 0.0-1.0", fields[6]), HINT);
    let (from, to) = fields[6].split_once('-').ok_or_else(interval)?;
    let (from, to) = (from.trim().parse::<f64>(), to.trim().parse::<f64>());
    let (Ok(from), Ok(to)) = (from, to) else { return Err(interval()) };
    if !(to > from && from >= 0.0 && to.is_finite()) {
        return Err(interval());
    }
    let stamp = stamp(fields[0]).ok_or_else(|| {
        source.line(line, format!("'{}' in column 1 is not a time like 20250605181231", fields[0]), HINT)
    })?;
    let (bytes, rate) = (number(7, "number of bytes")?, number(8, "rate")?);
    check_unit(source, line, bytes, to - from, rate)?;
    Ok(ReportLine { line, stamp, flow: fields[5].to_owned(), from, to, bytes })
}

const HINT: &str = "expected what iperf -y C -i 1 writes, unchanged";

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

/// Refuses a rate that is not 8 · bytes / interval. Both ends of the interval are rounded to a
/// tenth of a second.
fn check_unit(source: Source<'_>, line: usize, bytes: f64, seconds: f64, rate: f64) -> Result<(), ImportError> {
    let expected = 8.0 * bytes / seconds;
    // A byte more or less counts for iperf's own rounding.
    let slack = 0.105 / seconds.max(0.105);
    let near = |rate: f64, expected: f64| (rate - expected).abs() <= slack * expected + 8.0;
    if near(rate, expected) {
        return Ok(());
    }
    let unit = UNITS.iter().find(|(factor, _)| (rate - expected * factor).abs() <= slack * expected * factor + 1e-9);
    let reading = unit.map_or("no known unit fits".to_owned(), |(_, name)| format!("the unit is {name}"));
    let what = format!(
        "{bytes:.0} bytes in {seconds:.1} s are {expected:.0} bit/s, but the rate column says {rate}: {reading}"
    );
    Err(source.line(line, what, "import the output of iperf -y C unchanged; it is in bits per second"))
}

/// Bytes of one interval, by flow.
#[derive(Default)]
struct Interval {
    seconds: f64,
    sum: Option<f64>,
    flows: BTreeMap<String, f64>,
}

impl Interval {
    fn bytes(&self) -> f64 {
        self.sum.unwrap_or_else(|| self.flows.values().sum())
    }
}

fn assemble(source: Source<'_>, rows: &[ReportLine]) -> Result<Throughput, ImportError> {
    let lengths: Vec<f64> = rows.iter().map(|row| row.to - row.from).collect();
    let usual = median(&lengths);
    if rows.iter().all(|row| row.from == 0.0) {
        return Err(source.whole("one row per flow is not a series", "run iperf with -i 1"));
    }
    let mut notes = Vec::new();
    let mut intervals: BTreeMap<i64, Interval> = BTreeMap::new();
    let mut partial = 0;
    for row in rows {
        let seconds = row.to - row.from;
        if seconds > 1.5 * usual {
            continue; // The sum over the whole transfer.
        }
        if seconds < 0.5 * usual {
            partial += 1;
            continue;
        }
        let interval = intervals.entry((row.from * 10.0).round() as i64).or_default();
        interval.seconds = seconds;
        let again = if row.flow == SUM {
            interval.sum.replace(row.bytes).is_some()
        } else {
            interval.flows.insert(row.flow.clone(), row.bytes).is_some()
        };
        if again {
            let what = format!("flow {} has a second row for the interval from {:.1} s", row.flow, row.from);
            return Err(source.line(row.line, what, "import one transfer per file"));
        }
    }
    if partial > 0 {
        notes.push(format!("{partial} rows shorter than half an interval are omitted"));
    }
    note_gaps(&intervals, usual, &mut notes);
    note_sums(&intervals, &mut notes);
    let names: Vec<String> = intervals
        .values()
        .flat_map(|i| i.flows.keys().cloned())
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    let flow = |name: &String| intervals.values().map(|i| i.flows.get(name).copied().unwrap_or(0.0)).collect();
    Ok(Throughput {
        name: source.name(),
        tool: "iperf2".into(),
        start_s: rows.first().map_or(0.0, |row| row.stamp - row.to),
        seconds: intervals.values().map(|i| i.seconds).collect(),
        bytes: intervals.values().map(Interval::bytes).collect(),
        flows: names.iter().map(|name| (name.clone(), flow(name))).collect(),
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
            text.starts_with("f.csv:1: 1000000 bytes in 1.0 s are 8000000 bit/s, but the rate column says 1000000"),
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
