//! Use of processors over time: `mpstat -P ALL 1` as text, or a CSV with a time stamp and one
//! column of percent per core.

use serde::{Deserialize, Serialize};

use super::{ImportError, Source, seconds, stamp};
use stats::{median, quantile_sorted};

/// Use of processors over time.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Cpu {
    /// File name without its ending.
    pub name: String,
    /// Time of each sample in seconds since 1970, in the clock of that host; since midnight if the
    /// file has no date.
    pub at_s: Vec<f64>,
    /// Names of cores.
    pub cores: Vec<String>,
    /// Percent busy, 0 to 100, of each core in each sample.
    pub busy: Vec<Vec<f64>>,
    /// Remarks about the file.
    pub notes: Vec<String>,
}

impl Cpu {
    /// Distance of samples in seconds.
    pub fn interval_s(&self) -> f64 {
        median(&self.at_s.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<f64>>())
    }

    /// Mean over cores of each sample, percent.
    pub fn totals(&self) -> Vec<f64> {
        self.busy.iter().map(|cores| cores.iter().sum::<f64>() / cores.len() as f64).collect()
    }

    /// Mean of each core over samples `range`, percent.
    pub fn means(&self, range: std::ops::Range<usize>) -> Vec<f64> {
        let n = range.len() as f64;
        (0..self.cores.len()).map(|core| self.busy[range.clone()].iter().map(|s| s[core]).sum::<f64>() / n).collect()
    }

    /// The samples in which the host worked: the longest stretch above a quarter of the 90th
    /// percentile, without a first or last sample that only saw part of it. All samples of a host
    /// that never works.
    pub fn active(&self) -> std::ops::Range<usize> {
        let totals = self.totals();
        let mut sorted = totals.clone();
        sorted.sort_by(f64::total_cmp);
        let threshold = quantile_sorted(&sorted, 0.9) / 4.0;
        let mut best = 0..0;
        let mut from = None;
        for (i, total) in totals.iter().chain([&f64::NEG_INFINITY]).enumerate() {
            match from {
                None if *total > threshold => from = Some(i),
                Some(start) if *total <= threshold => {
                    if i - start > best.len() {
                        best = start..i;
                    }
                    from = None;
                }
                _ => {}
            }
        }
        if best.is_empty() {
            return 0..totals.len();
        }
        let partial = |edge: f64, near: &[f64]| near.len() == NEAR && edge < 0.8 * median(near);
        let inside = &totals[best.clone()];
        let first = partial(inside[0], inside.get(1..=NEAR).unwrap_or(&[]));
        let near_last = inside.len().checked_sub(NEAR + 1).map_or(&[][..], |from| &inside[from..inside.len() - 1]);
        let last = partial(inside[inside.len() - 1], near_last);
        best.start + usize::from(first)..best.end - usize::from(last)
    }
}

/// Samples that a first or last one is held against.
const NEAR: usize = 5;

/// Returns whether a CSV header has a time in the first column and cores in the others.
pub(super) fn looks_like(first: &str) -> bool {
    let first = first.to_lowercase();
    let columns = first.split(',').collect::<Vec<&str>>();
    (first.starts_with("time") || first.starts_with("date"))
        && columns.len() > 1
        && columns[1..].iter().all(|name| name.contains("core") || name.contains("cpu"))
}

/// Reads CSV with a header: a time stamp, then percent per core.
pub(super) fn csv(source: Source<'_>, text: &str) -> Result<Cpu, ImportError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let header = lines.next().map_or("", |(_, line)| line);
    let cores: Vec<String> = header.split(',').skip(1).map(|name| name.trim().to_owned()).collect();
    let mut cpu = Cpu { name: source.name(), at_s: vec![], cores, busy: vec![], notes: vec![] };
    for (index, line) in lines {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let wanted = cpu.cores.len() + 1;
        if fields.len() != wanted {
            let what = format!("{} of {wanted} columns", fields.len());
            let hint =
                "a comma as decimal point splits numbers: sample with LC_ALL=C; or the row is not complete: delete it";
            return Err(source.line(index + 1, what, hint));
        }
        let at = stamp(fields[0]).ok_or_else(|| {
            let what = format!("'{}' in column 1 is not a time like 20250605181231", fields[0]);
            source.line(index + 1, what, "write time stamps with date +%Y%m%d%H%M%S")
        })?;
        let busy =
            fields[1..].iter().enumerate().map(|(core, text)| percent(source, index + 1, &cpu.cores[core], text));
        cpu.busy.push(busy.collect::<Result<_, _>>()?);
        cpu.at_s.push(at);
    }
    finish(source, cpu)
}

/// A percentage of one core, 0 to 100. A sampler rounds, so half a percent more is let through and
/// cut.
fn percent(source: Source<'_>, line: usize, core: &str, text: &str) -> Result<f64, ImportError> {
    let value: f64 = text
        .replace(',', ".")
        .parse()
        .map_err(|_| source.line(line, format!("'{text}' of {core} is not a number"), "expected percent, 0 to 100"))?;
    if !(-0.5..=100.5).contains(&value) {
        let what = format!("{value} of {core} is not a percentage of one core");
        return Err(source.line(
            line,
            what,
            "expected 0 to 100 per core: divide a sum over cores, or ticks, by their number",
        ));
    }
    Ok(value.clamp(0.0, 100.0))
}

fn finish(source: Source<'_>, mut cpu: Cpu) -> Result<Cpu, ImportError> {
    if cpu.busy.len() < 2 {
        return Err(source.whole(format!("{} samples are not a series", cpu.busy.len()), "sample for longer"));
    }
    let largest = cpu.busy.iter().flatten().copied().fold(0.0, f64::max);
    if largest > 0.0 && largest <= 1.0 && cpu.busy.iter().flatten().any(|v| v.fract() != 0.0) {
        let what = format!("the largest value is {largest}: these are shares of 1, not percent");
        return Err(source.whole(what, "multiply by 100"));
    }
    if let Some(back) = cpu.at_s.windows(2).position(|pair| pair[1] < pair[0]) {
        let what = format!("sample {} is earlier than the one before it", back + 2);
        return Err(source.whole(what, "import one run per file, in order"));
    }
    let interval = cpu.interval_s();
    if interval > 1.5 {
        cpu.notes.push(format!(
            "samples are {interval:.1} s apart; if each covers 1 s, as with 'mpstat 1 1', the rest of the time is not sampled"
        ));
    }
    Ok(cpu)
}

/// Reads what `mpstat -P ALL 1` prints. Busy time is neither idle nor waiting for a disk.
pub(super) fn text(source: Source<'_>, text: &str) -> Result<Cpu, ImportError> {
    let midnight = text.lines().next().and_then(date).unwrap_or(0.0);
    let mut cpu = Cpu { name: source.name(), at_s: vec![], cores: vec![], busy: vec![], notes: vec![] };
    let mut columns: Vec<String> = vec![];
    let mut day = 0.0;
    for (index, line) in text.lines().enumerate() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let Some((of_day, rest)) = time_of_day(&fields) else { continue };
        if rest.first() == Some(&"CPU") {
            columns = rest.iter().map(|c| (*c).to_owned()).collect();
            continue;
        }
        let Some(core) = rest.first().filter(|c| **c != "all" && !columns.is_empty()) else { continue };
        if rest.len() != columns.len() {
            let what = format!("{} of {} columns", rest.len(), columns.len());
            return Err(source.line(index + 1, what, "the row is not complete: delete it"));
        }
        let share = |name: &str| match columns.iter().position(|c| c == name) {
            Some(column) => percent(source, index + 1, core, rest[column]),
            None => Ok(0.0),
        };
        let busy = (100.0 - share("%idle")? - share("%iowait")?).max(0.0);
        let mut at = midnight + of_day + day;
        if cpu.at_s.last().is_some_and(|last| at + 43_200.0 < *last) {
            day += 86_400.0;
            at += 86_400.0;
        }
        if cpu.at_s.last() != Some(&at) {
            cpu.at_s.push(at);
            cpu.busy.push(vec![]);
        }
        let sample = cpu.busy.len() - 1;
        if sample == 0 {
            cpu.cores.push(format!("core_{core}"));
        }
        cpu.busy[sample].push(busy);
    }
    // A stopped sampler leaves an incomplete block, which is ignored.
    if cpu.busy.last().is_some_and(|last| last.len() < cpu.cores.len()) {
        cpu.busy.pop();
        cpu.at_s.pop();
        cpu.notes.push("the last sample lacks cores and is omitted".into());
    }
    if cpu.cores.is_empty() {
        return Err(source.whole("no row of a core", "run mpstat -P ALL 1"));
    }
    if let Some(sample) = cpu.busy.iter().position(|cores| cores.len() != cpu.cores.len()) {
        let what = format!("sample {} has {} of {} cores", sample + 1, cpu.busy[sample].len(), cpu.cores.len());
        return Err(source.whole(what, "changing sets of cores are not supported: keep them online"));
    }
    finish(source, cpu)
}

/// Seconds since midnight and the fields after it: `18:12:31` or `06:12:31 PM`.
fn time_of_day<'a>(fields: &'a [&'a str]) -> Option<(f64, &'a [&'a str])> {
    let (time, rest) = fields.split_first()?;
    let mut parts = time.split(':').map(|part| part.parse::<u32>());
    let (Some(Ok(hour)), Some(Ok(minute)), Some(Ok(second)), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return None;
    };
    let (hour, rest) = match rest.first() {
        Some(&"AM") => (hour % 12, &rest[1..]),
        Some(&"PM") => (hour % 12 + 12, &rest[1..]),
        _ => (hour, rest),
    };
    Some((f64::from(hour * 3600 + minute * 60 + second), rest))
}

/// Midnight of the date in mpstat's first line: `2025-06-05`, or `06/05/2025` as the C locale
/// writes it.
fn date(first: &str) -> Option<f64> {
    first.split_whitespace().find_map(|word| {
        let numbers: Vec<i64> = word.split(['-', '/']).map(str::parse).collect::<Result<_, _>>().ok()?;
        match numbers.as_slice() {
            [year, month, day] if *year > 1969 => Some(seconds(*year, *month, *day, 0.0)),
            [month, day, year] if *month <= 12 && *day <= 31 => {
                Some(seconds(if *year < 100 { 2000 + year } else { *year }, *month, *day, 0.0))
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::refusal;
    use super::super::{Imported, parse};
    use super::*;

    fn cpu(text: &str) -> Cpu {
        match parse("sun_cpu.csv", text).expect("good") {
            Imported::Cpu(cpu) => cpu,
            other => panic!("{other:?}"),
        }
    }

    const MPSTAT: &str = "\
Linux 6.15.0 (sun) \t06/05/2025 \t_x86_64_\t(2 CPU)

11:59:58 PM  CPU    %usr   %nice    %sys %iowait    %irq   %soft  %steal  %guest  %gnice   %idle
11:59:59 PM  all    5.00    0.00    5.00    0.00    0.00    0.00    0.00    0.00    0.00   90.00
11:59:59 PM    0   10.00    0.00    5.00    1.00    0.00    0.00    0.00    0.00    0.00   84.00
11:59:59 PM    1    0.00    0.00    5.00    0.00    0.00    0.00    0.00    0.00    0.00   95.00

11:59:59 PM  CPU    %usr   %nice    %sys %iowait    %irq   %soft  %steal  %guest  %gnice   %idle
12:00:00 AM  all    5.00    0.00    5.00    0.00    0.00    0.00    0.00    0.00    0.00   90.00
12:00:00 AM    0   20.00    0.00    0.00    0.00    0.00    0.00    0.00    0.00    0.00   80.00
12:00:00 AM    1    0.00    0.00    0.00    0.00    0.00    0.00    0.00    0.00    0.00  100.00

Average:     CPU    %usr   %nice    %sys %iowait    %irq   %soft  %steal  %guest  %gnice   %idle
Average:       0   15.00    0.00    2.50    0.50    0.00    0.00    0.00    0.00    0.00   82.00
";

    #[test]
    fn text_of_mpstat_is_read_over_midnight() {
        let cpu = cpu(MPSTAT);
        assert_eq!(cpu.busy, [[15.0, 5.0], [20.0, 0.0]]);
        assert_eq!(cpu.cores, ["core_0", "core_1"]);
        assert_eq!(cpu.interval_s(), 1.0);
        assert_eq!(cpu.at_s[1], seconds(2025, 6, 6, 0.0));
        let european = MPSTAT
            .replace('.', ",")
            .replace("06/05/2025", "2025-06-05")
            .replace("11:59", "23:59")
            .replace(" PM", "")
            .replace("12:00:00 AM", "00:00:00");
        assert_eq!(super::super::parse("sun_cpu.csv", &european).expect("good"), Imported::Cpu(cpu));
    }

    #[test]
    fn only_the_time_in_which_a_host_works_counts() {
        let total = [0, 1, 0, 30, 60, 61, 59, 60, 62, 60, 61, 60, 20, 0, 0, 5];
        let rows: String =
            total.iter().enumerate().map(|(i, v)| format!("202506051812{i:02},{v}.00,{v}.00\n")).collect();
        let cpu = cpu(&format!("timestamp,core_0,core_1\n{rows}"));
        assert_eq!(cpu.active(), 4..12);
        assert!((cpu.means(cpu.active())[0] - 60.375).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_percentage_is_refused() {
        let file =
            |value: &str| format!("timestamp,core_0,core_1\n20250605181200,1.00,2.00\n20250605181202,{value},3.00\n");
        assert!(refusal(&file("163.00")).starts_with("f.csv:3: 163 of core_0 is not a percentage of one core"));
        assert!(refusal(&file("12,5")).contains("f.csv:3: 4 of 3 columns; a comma as decimal point"));
        assert!(refusal(&file("x")).contains("'x' of core_0 is not a number"));
        assert!(
            refusal("timestamp,core_0\n20250605181200,0.95\n20250605181202,0.5\n").contains("shares of 1, not percent")
        );
        assert!(refusal("timestamp,core_0\n20250605181200,5\n").contains("1 samples are not a series"));
        assert!(refusal("timestamp,core_0\n20250605181204,5\n20250605181202,5\n").contains("sample 2 is earlier"));
        assert!(refusal("timestamp,core_0\nyesterday,5\n").contains("f.csv:2: 'yesterday' in column 1 is not a time"));
    }

    #[test]
    fn a_sampler_that_looks_half_of_the_time_is_noted() {
        let cpu = cpu("timestamp,core_0\n20250605181200,5.00\n20250605181202,6.00\n20250605181204,6.00\n");
        assert!(cpu.notes[0].starts_with("samples are 2.0 s apart"), "{:?}", cpu.notes);
    }
}
