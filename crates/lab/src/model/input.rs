//! Measurements from files: trials of the lab, or a table of other origin.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::metric::Metric;
use crate::trial::{Direction, Place, SCHEMA, Trial, at_one_rate};
use throughput::Sample;
use throughput::time_ns;

/// One measurement with where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Size and time.
    pub sample: Sample,
    /// Run, session and when it began, which must differ between calibration and validation.
    pub session: String,
    /// Round within the session.
    pub round: u32,
}

/// Identity of a measurement, as far as its file contains it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize, serde::Serialize)]
pub struct Identity {
    /// Name of the subject; empty for a table.
    pub subject: String,
    /// Protocol.
    pub protocol: String,
    /// Mode.
    pub mode: String,
    /// Suite.
    pub suite: String,
    /// `out`, `in`, `both`; empty for a table.
    pub direction: String,
    /// Cores that carried packets, 0 where unknown.
    pub cores: u32,
}

/// A file, read.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurements {
    /// Identity of the measurement.
    pub identity: Identity,
    /// Measurements.
    pub rows: Vec<Measured>,
    /// Ignored data, for the user.
    pub notes: Vec<String>,
}

/// Selection of trials of a file.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Subject, where a file has several.
    pub subject: Option<String>,
    /// Direction, where a file has several.
    pub direction: Option<Direction>,
    /// Only these sessions; all when empty.
    pub sessions: Vec<u32>,
    /// Only these studies; all when empty.
    pub studies: Vec<String>,
}

/// Reason why a file has no measurements.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// Error of the operating system.
    #[error("cannot read {path}: {source}")]
    Io {
        /// File.
        path: PathBuf,
        /// Answer.
        source: std::io::Error,
    },
    /// A line is invalid.
    #[error("{path}:{line}: {why}")]
    Line {
        /// File.
        path: PathBuf,
        /// Line from 1.
        line: usize,
        /// Description and correction.
        why: String,
    },
    /// The file as a whole.
    #[error("{path}: {why}")]
    File {
        /// File.
        path: PathBuf,
        /// Description and correction.
        why: String,
    },
}

/// Reads `trials.jsonl`, a directory that holds one, or a CSV table.
///
/// # Errors
/// [`InputError`].
pub fn read_measurements(path: &Path, selection: &Selection) -> Result<Measurements, InputError> {
    let path = if path.is_dir() { path.join("trials.jsonl") } else { path.to_owned() };
    let text = std::fs::read_to_string(&path).map_err(|source| InputError::Io { path: path.clone(), source })?;
    let file = |why: String| InputError::File { path: path.clone(), why };
    if text.trim().is_empty() {
        return Err(file("is empty; there is nothing to fit".into()));
    }
    if text.trim_start().starts_with('{') {
        let (trials, notes) = read_trials(&path, &text)?;
        from_trials(&trials, selection, notes).map_err(|error| file(error.to_string()))
    } else {
        from_table(&path, &text)
    }
}

/// The trials of a file at one clock rate. Its last line may be cut off, as after a crash.
///
/// # Errors
/// [`InputError::Line`] for any other line that is not a trial, or for one of a newer schema.
pub fn read_trials(path: &Path, text: &str) -> Result<(Vec<Trial>, Vec<String>), InputError> {
    let (mut trials, mut notes) = (vec![], vec![]);
    let lines: Vec<&str> = text.lines().collect();
    for (i, line) in lines.iter().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let refuse = |why: String| InputError::Line { path: path.to_owned(), line: i + 1, why };
        match serde_json::from_str::<Trial>(line) {
            Ok(trial) if trial.schema > SCHEMA => {
                return Err(refuse(format!(
                    "schema {} is newer than {SCHEMA}, the latest that this weir supports",
                    trial.schema
                )));
            }
            Ok(trial) => trials.push(trial),
            Err(_) if i + 1 == lines.len() && !text.ends_with('\n') => {
                notes.push(format!("the last line, {}, is truncated and was ignored", i + 1));
            }
            Err(error) => return Err(refuse(format!("is not a trial: {error}"))),
        }
    }
    at_one_rate(&mut trials);
    Ok((trials, notes))
}

/// Trials with the cost of packets of one size: in memory, one SA, maximum load, one size, packets
/// arrived.
fn has_cost(trial: &Trial) -> bool {
    let alone = trial.place == Place::Memory && trial.sas <= 1 && trial.goal.is_none() && trial.way.is_none();
    alone && trial.size.is_some() && saturates(trial)
}

/// Maximum load, and packets arrived.
pub(super) fn saturates(trial: &Trial) -> bool {
    trial.offered_pps.is_none() && trial.measured.received > 0 && trial.measured.dur_ns > 0
}

/// Measurements of the one subject and direction that `selection` leaves.
///
/// # Errors
/// Nothing is left, or several subjects, which the error names.
pub fn from_trials(trials: &[Trial], selection: &Selection, mut notes: Vec<String>) -> anyhow::Result<Measurements> {
    let mut groups: BTreeMap<Identity, Vec<&Trial>> = BTreeMap::new();
    for trial in trials.iter().filter(|t| has_cost(t)) {
        let wanted = selection.subject.as_ref().is_none_or(|s| *s == trial.subject)
            && selection.direction.is_none_or(|d| d == trial.direction)
            && (selection.sessions.is_empty() || selection.sessions.contains(&trial.session))
            && (selection.studies.is_empty() || selection.studies.contains(&trial.study));
        if wanted {
            groups.entry(identity(trial)).or_default().push(trial);
        }
    }
    let mut names = groups.keys();
    let Some(identity) = names.next().cloned() else {
        let subjects: BTreeSet<&str> = trials.iter().map(|t| t.subject.as_str()).collect();
        let subjects = subjects.into_iter().collect::<Vec<_>>().join(", ");
        bail!("no suitable trial: a fit needs saturating trials of one size each; subjects here: {subjects}");
    };
    if groups.len() > 1 {
        let names: Vec<String> =
            groups.keys().map(|k| format!("{} {} on {} cores", k.subject, k.direction, k.cores)).collect();
        bail!("contains several subjects; select one with --subject and --direction: {}", names.join(", "));
    }
    let group = &groups[&identity];
    let others = trials.len() - group.len();
    if others > 0 {
        notes.push(format!("{others} trials of other subjects, loads or mixes were ignored"));
    }
    let sessions = session_names(trials);
    let rows = group.iter().map(|t| measured(t, &sessions)).collect();
    Ok(Measurements { identity, rows, notes })
}

/// Names of sessions by run and number. Two runs of one campaign use the same session numbers, so a
/// name also contains the start time.
pub(super) fn session_names(trials: &[Trial]) -> Sessions {
    let mut starts: BTreeMap<(String, u32), u64> = BTreeMap::new();
    for trial in trials {
        let start = starts.entry((trial.run.clone(), trial.session)).or_insert(trial.at_ms);
        *start = (*start).min(trial.at_ms);
    }
    starts
}

/// First millisecond of each session.
pub(super) type Sessions = BTreeMap<(String, u32), u64>;

pub(super) fn session_name(trial: &Trial, sessions: &Sessions) -> String {
    let start = sessions.get(&(trial.run.clone(), trial.session)).copied().unwrap_or(trial.at_ms);
    format!("{}/{}@{start}", trial.run, trial.session)
}

pub(super) fn identity(trial: &Trial) -> Identity {
    let direction = match trial.direction {
        Direction::Out => "out",
        Direction::In => "in",
        Direction::Both => "both",
    };
    Identity {
        subject: trial.subject.clone(),
        protocol: trial.protocol.clone(),
        mode: trial.mode.clone(),
        suite: trial.suite.clone(),
        direction: direction.to_owned(),
        cores: trial.cores,
    }
}

pub(super) fn measured(trial: &Trial, sessions: &Sessions) -> Measured {
    Measured {
        sample: Sample::new(f64::from(trial.size.unwrap_or_default()), packet_ns(trial)),
        session: session_name(trial, sessions),
        round: trial.round,
    }
}

/// Nanoseconds of a core per packet: the tenth percentile over the batches of the trial, if they
/// were stored. Other load of the machine makes a batch slower, never faster; the mean of a trial
/// would include that load in the model.
pub(super) fn packet_ns(trial: &Trial) -> f64 {
    let measured = &trial.measured;
    let (ns, cores) = (measured.dur_ns as f64, f64::from(trial.cores.max(1)));
    let ticks = measured.values.get(Metric::TicksP10);
    match (ticks, measured.tsc) {
        (Some(ticks), Some(tsc)) if tsc > 0 && cores == 1.0 => ticks * ns / tsc as f64,
        // Per core: several cores at once take as much time each.
        _ => ns * cores / measured.received as f64,
    }
}

/// Quantity of a column besides `size`.
#[derive(Clone, Copy)]
enum Unit {
    Nanoseconds(f64),
    Mbps(f64),
    Pps(f64),
}

impl Unit {
    const NAMES: &str = "time_ns, time_us, time_ms, mbps, gbps (10^6 and 10^9 bit/s), pps, mpps";

    fn of(column: &str) -> Option<Self> {
        Some(match column {
            "time_ns" => Self::Nanoseconds(1.0),
            "time_us" => Self::Nanoseconds(1e3),
            "time_ms" => Self::Nanoseconds(1e6),
            "mbps" => Self::Mbps(1.0),
            "gbps" => Self::Mbps(1e3),
            "pps" => Self::Pps(1.0),
            "mpps" => Self::Pps(1e6),
            _ => return None,
        })
    }

    fn time_ns(self, size: f64, value: f64) -> f64 {
        match self {
            Self::Nanoseconds(unit) => value * unit,
            Self::Mbps(unit) => time_ns(size, value * unit),
            Self::Pps(unit) => 1e9 / (value * unit),
        }
    }
}

/// Fault of a column name that looks like a rate.
fn unit_trap(columns: &[String]) -> Option<String> {
    let bad = columns.iter().find(|c| {
        ["gb/s", "mb/s", "gbytes", "mbytes", "bytes_per_second", "gbyte/s", "mbyte/s"].contains(&c.as_str())
    })?;
    Some(format!(
        "column '{bad}': bytes or bits? iperf prints bytes/s and bit/s under names that differ by one letter; divide or multiply \
         by 8 and name the column mbps or gbps"
    ))
}

/// Plausible limits of the time per packet, in nanoseconds: ten seconds, or a tenth of a
/// nanosecond.
const PLAUSIBLE_NS: std::ops::RangeInclusive<f64> = 0.1..=1e10;

fn from_table(path: &Path, text: &str) -> Result<Measurements, InputError> {
    let file = |why: String| InputError::File { path: path.to_owned(), why };
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(text.as_bytes());
    let headers = reader.headers().map_err(|e| file(e.to_string()))?;
    let columns: Vec<String> = headers.iter().map(str::to_lowercase).collect();
    let column = |name: &str| columns.iter().position(|c| c == name);
    let Some(size_at) = column("size").or_else(|| column("size_bytes")) else {
        return Err(file(format!("has no column 'size' (bytes of the inner packet); columns: {}", columns.join(", "))));
    };
    let values: Vec<(usize, Unit)> =
        columns.iter().enumerate().filter_map(|(i, c)| Unit::of(c).map(|unit| (i, unit))).collect();
    let [(value_at, unit)] = values[..] else {
        let trap = unit_trap(&columns).unwrap_or_else(|| format!("needs exactly one column of {}", Unit::NAMES));
        return Err(file(trap));
    };
    let (weight_at, session_at, round_at) = (column("weight"), column("session"), column("round"));
    let mut rows = vec![];
    for record in reader.records() {
        let record = record.map_err(|e| file(e.to_string()))?;
        let line = record.position().map_or(0, |p| p.line() as usize);
        let refuse = |why: String| InputError::Line { path: path.to_owned(), line, why };
        let number = |at: usize| {
            let cell = record.get(at).unwrap_or_default();
            let value: f64 =
                cell.parse().map_err(|_| refuse(format!("'{cell}' is not a number (columns end with ',')")))?;
            if value > 0.0 && value.is_finite() { Ok(value) } else { Err(refuse(format!("{cell} is not above zero"))) }
        };
        let (size, value) = (number(size_at)?, number(value_at)?);
        if !(1.0..=65535.0).contains(&size) {
            return Err(refuse(format!("size {size}: an IP packet has 20 to 65535 bytes; is this column in bytes?")));
        }
        let time_ns = unit.time_ns(size, value);
        if !PLAUSIBLE_NS.contains(&time_ns) {
            return Err(refuse(format!(
                "{value} {} at {size} bytes would be {time_ns:.3e} ns per packet; check the unit",
                columns[value_at]
            )));
        }
        let text = |at: Option<usize>| at.and_then(|at| record.get(at)).unwrap_or("0");
        let weight = weight_at.map_or(Ok(1.0), number)?;
        let round = text(round_at).parse().unwrap_or_default();
        rows.push(Measured { sample: Sample { size, time_ns, weight }, session: text(session_at).to_owned(), round });
    }
    if rows.is_empty() {
        return Err(file("has a header but no measurements".into()));
    }
    Ok(Measurements { identity: Identity::default(), rows, notes: vec![] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Result<Measurements, InputError> {
        from_table(Path::new("t.csv"), text)
    }

    #[test]
    fn a_table_may_have_any_unit_that_it_names() {
        for (column, value) in
            [("time_ns", "500"), ("time_us", "0.5"), ("mbps", "1024"), ("gbps", "1.024"), ("mpps", "2")]
        {
            let read = table(&format!("size,{column}\n64,{value}\n")).unwrap();
            assert!((read.rows[0].sample.time_ns - 500.0).abs() < 1e-9, "{column}");
        }
        let read = table("# by hand\nsession, size, time_ns, weight\n3, 64, 5, 2\n").unwrap();
        assert_eq!((read.rows[0].session.as_str(), read.rows[0].sample.weight), ("3", 2.0));
    }

    #[test]
    fn a_wrong_table_says_what_is_wrong() {
        for (text, says) in [
            ("size,throughput\n64,1\n", "exactly one column of time_ns"),
            ("size,GB/s\n64,1\n", "bytes or bits?"),
            ("len,mbps\n64,1\n", "no column 'size'"),
            ("size,mbps\n64,x\n", "t.csv:2: 'x' is not a number"),
            ("size,mbps\n64,-3\n", "not above zero"),
            ("size,mbps\n64000000,3\n", "is this column in bytes?"),
            ("size,time_us\n64,100000000\n", "check the unit"),
            ("size,mbps\n", "no measurement"),
            ("size,mbps,pps\n64,1,1\n", "exactly one column"),
        ] {
            let error = table(text).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    fn trial(subject: &str, size: u32, order: u32) -> Trial {
        let line = format!(
            r#"{{"schema":1,"run":"r","session":0,"round":0,"order":{order},"seed":1,"at_ms":1,"study":"sizes","subject":"{subject}",
            "protocol":"esp","mode":"tunnel","suite":"aes128gcm16","direction":"out","traffic":"{size}","size":{size},"cores":1,
            "sas":1,"replay":64,"batch":256,"sent":1000,"received":1000,"received_bytes":64000,"verified":10,
            "lost":{{"ring":0,"replay":0,"auth":0,"other":0}},"dur_ns":500000,"env":"e"}}"#
        );
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn trials_of_one_subject_become_times() {
        let trials = [trial("a", 64, 0), trial("a", 128, 1), trial("b", 64, 2)];
        let error = from_trials(&trials, &Selection::default(), vec![]).unwrap_err().to_string();
        assert!(error.contains("a out on 1 cores, b out on 1 cores"), "{error}");
        let selection = Selection { subject: Some("a".into()), ..Selection::default() };
        let read = from_trials(&trials, &selection, vec![]).unwrap();
        assert_eq!(read.rows.len(), 2);
        assert_eq!(read.rows[1].sample, Sample::new(128.0, 500.0));
        assert_eq!(read.notes.len(), 1);
        let selection = Selection { subject: Some("c".into()), ..Selection::default() };
        assert!(from_trials(&trials, &selection, vec![]).unwrap_err().to_string().contains("subjects here: a, b"));
    }

    #[test]
    fn a_half_written_last_line_is_left_aside_and_any_other_is_an_error() {
        let whole = serde_json::to_string(&trial("a", 64, 0)).unwrap();
        let cut = format!("{whole}\n{}", &whole[..40]);
        let (trials, notes) = read_trials(Path::new("t"), &cut).unwrap();
        assert_eq!((trials.len(), notes.len()), (1, 1));
        let error = read_trials(Path::new("t"), &format!("{}\n{whole}\n", &whole[..40])).unwrap_err().to_string();
        assert!(error.starts_with("t:1: is not a trial"), "{error}");
        let newer = whole.replace(r#""schema":1"#, r#""schema":9"#);
        let error = read_trials(Path::new("t"), &format!("{newer}\n")).unwrap_err().to_string();
        assert!(error.contains("newer"), "{error}");
    }
}
