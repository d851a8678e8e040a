//! `weir lab subjects`: systems under test between two hosts, and their availability here.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::demo::child::Interrupt;
use crate::demo::world::Cable;
use crate::demo::{self, DemoError, sandbox};
use crate::meter::{Load, Meter, MeterError};
use crate::subject::{Availability, Listed, Subject, SubjectMeter, list};
use crate::traffic::Traffic;
use crate::trial::{Direction, Measurement};

/// Options of `weir lab subjects`.
#[derive(Debug, Args)]
pub struct SubjectsArgs {
    /// Start these on two hosts on this machine and send traffic: names of the list, or others of
    /// Weir; 'all' for all of it
    #[arg(long, value_delimiter = ',', num_args = 1.., value_name = "SUBJECT")]
    measure: Vec<String>,
    /// Traffic: 1400, 64..1400 or imix:SPEC, with ,flows=N and ,rate=PPS
    #[arg(long, default_value = "1400,rate=20000", requires = "measure")]
    traffic: Traffic,
    /// Seconds of traffic for each
    #[arg(long, default_value_t = 2, requires = "measure", value_parser = clap::value_parser!(u16).range(1..=3600))]
    seconds: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Set by the measurement itself
    #[arg(long, hide = true)]
    inside: bool,
}

/// Result of one subject.
#[derive(Serialize)]
struct SubjectResult {
    subject: String,
    measured: Option<Measurement>,
    failure: Option<String>,
}

impl SubjectsArgs {
    /// Lists or measures, and returns the exit status.
    pub(super) fn run(self) -> ExitCode {
        let done = if self.measure.is_empty() { self.list() } else { self.work() };
        match done {
            Ok(good) => ExitCode::from(u8::from(!good)),
            Err(error) => {
                eprintln!("weir: lab subjects: {error}");
                ExitCode::from(if matches!(error, DemoError::Interrupted) { demo::INTERRUPTED } else { 2 })
            }
        }
    }

    fn list(&self) -> Result<bool, DemoError> {
        let listed = list();
        self.print(&listed, || table(&listed))?;
        Ok(true)
    }

    fn print<T: Serialize>(&self, value: &T, table: impl FnOnce() -> Table) -> Result<(), DemoError> {
        if self.json {
            let text = serde_json::to_string_pretty(value);
            println!("{}", text.map_err(|error| DemoError::Unable(error.to_string()))?);
        } else {
            println!("{}", table());
        }
        Ok(())
    }

    fn work(&self) -> Result<bool, DemoError> {
        let subjects = self.subjects()?;
        let dir = sandbox::corner(self.inside)?;
        let interrupt =
            Interrupt::install().map_err(|error| DemoError::Unable(format!("cannot catch signals: {error}")))?;
        let mut outcomes = Vec::new();
        for subject in subjects {
            let outcome = match self.measure(&subject, &dir, &interrupt) {
                Err(DemoError::Interrupted) => return Err(DemoError::Interrupted),
                Err(error) => Err(error.to_string()),
                Ok(measured) => Ok(measured),
            };
            eprintln!("subjects: {subject}: {}", outcome.as_ref().err().map_or("measured", String::as_str));
            let (measured, failure) = outcome.map_or_else(|why| (None, Some(why)), |m| (Some(m), None));
            outcomes.push(SubjectResult { subject: subject.to_string(), measured, failure });
        }
        self.print(&outcomes, || results(&outcomes))?;
        Ok(outcomes.iter().all(|outcome| outcome.failure.is_none()))
    }

    /// Returns the named subjects; with --all, the available ones.
    fn subjects(&self) -> Result<Vec<Subject>, DemoError> {
        if self.measure == ["all"] {
            let here = |subject: &Subject| matches!(subject.availability(), Availability::Available { .. });
            return Ok(Subject::usual().into_iter().filter(here).collect());
        }
        // A name may contain commas: variants such as ",udp" belong to the preceding name.
        let mut names: Vec<String> = Vec::new();
        for word in &self.measure {
            match names.last_mut() {
                Some(last) if ["udp", "esn", "v6"].contains(&word.as_str()) => last.extend([",", word]),
                _ => names.push(word.clone()),
            }
        }
        let read = |name: &String| name.parse().map_err(|error| DemoError::Unable(format!("{error}")));
        names.iter().map(read).collect()
    }

    fn measure(&self, subject: &Subject, dir: &Path, interrupt: &Interrupt) -> Result<Measurement, DemoError> {
        let folder = dir.join("subject");
        let _ = std::fs::remove_dir_all(&folder);
        let mut meter = SubjectMeter::start(subject, &folder, interrupt, Cable::Wire)?;
        let load = Load {
            traffic: self.traffic.clone(),
            direction: Direction::Both,
            duration: Duration::from_secs(self.seconds.into()),
            seed: 1,
        };
        meter.trial(&load).map_err(|error| match error {
            MeterError::Interrupted => DemoError::Interrupted,
            other => DemoError::Failed(other.to_string()),
        })
    }
}

fn table(listed: &[Listed]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["subject", "protocol", "mode", "suite", "MTU", "here"]);
    for subject in listed {
        let here = match &subject.availability {
            Availability::Available { version } => format!("available: {version}"),
            Availability::Missing { why, remedy } => format!("missing: {why}; {remedy}"),
        };
        let mtu = subject.mtu_bytes.map_or("per packet".to_owned(), |mtu| mtu.to_string());
        table.add_row([&subject.name, subject.protocol, subject.mode, &subject.suite, &mtu, &here]);
    }
    table
}

fn results(outcomes: &[SubjectResult]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["subject", "kpps", "Gbit/s", "lost %", "p50 µs", "p99 µs", "CPU ns/packet", "verified"]);
    for outcome in outcomes {
        let Some(measured) = &outcome.measured else {
            table.add_row([outcome.subject.as_str(), "failed"]);
            continue;
        };
        let micro = |key: &str| measured.values.get(key).map_or("-".to_owned(), |ns| format!("{:.1}", ns / 1e3));
        let cpu = measured.cpu_ns.filter(|_| measured.received > 0);
        table.add_row([
            outcome.subject.clone(),
            format!("{:.1}", measured.pps() / 1e3),
            format!("{:.3}", measured.bps() / 1e9),
            format!("{:.3}", 100.0 * measured.loss_ratio()),
            micro("latency_p50_ns"),
            micro("latency_p99_ns"),
            cpu.map_or("in the kernel".to_owned(), |ns| format!("{:.0}", ns as f64 / measured.received as f64)),
            measured.verified.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
