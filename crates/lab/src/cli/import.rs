//! `weir lab import`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::import::{Imported, Report, read, report};

/// Options of `weir lab import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Files: iperf2 CSV, iperf3 JSON, mpstat text or CSV
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Folder for trials.jsonl, series.csv and analysis.json
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Length of bootstrap blocks in samples (default: five times the integral time of each series)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    block: Option<u32>,
    /// Seed of the intervals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ImportArgs {
    /// Runs the command, prints errors, and returns the exit status.
    pub(super) fn run(self) -> ExitCode {
        match self.work() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("weir: import: {}", super::with_causes(&error));
                ExitCode::from(2)
            }
        }
    }

    fn work(&self) -> anyhow::Result<()> {
        let imported = self.files.iter().map(|file| read(file)).collect::<Result<Vec<Imported>, _>>()?;
        let report = report(&imported, self.block.map(|b| b as usize), self.seed);
        if let Some(folder) = &self.out {
            save(folder, &imported, &report)?;
        }
        print(&report, self.json)
    }
}

/// Writes the trials, every value, and the analysis.
fn save(folder: &std::path::Path, imported: &[Imported], report: &Report) -> anyhow::Result<()> {
    super::write_files(
        folder,
        &[
            ("trials.jsonl", trials(imported)?.as_bytes()),
            ("series.csv", long_table(imported)?.as_slice()),
            ("analysis.json", &serde_json::to_vec_pretty(report)?),
        ],
    )
}

/// Prints the analysis.
fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print!("{}", report.text());
    }
    Ok(())
}

/// One trial per interval of each transfer.
fn trials(imported: &[Imported]) -> anyhow::Result<String> {
    let mut lines = String::new();
    for file in imported {
        if let Imported::Throughput(throughput) = file {
            for trial in throughput.trials() {
                lines += &serde_json::to_string(&trial)?;
                lines.push('\n');
            }
        }
    }
    Ok(lines)
}

/// Every value of every series, one a row: file, series, unit, seconds from the first sample,
/// value.
fn long_table(imported: &[Imported]) -> anyhow::Result<Vec<u8>> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    csv.write_record(["file", "series", "unit", "t_s", "value"])?;
    for file in imported {
        match file {
            Imported::Throughput(read) => {
                let mut t_s = 0.0;
                for (i, (seconds, total)) in read.seconds.iter().zip(read.gbit_per_s()).enumerate() {
                    let at = format!("{t_s:.3}");
                    csv.write_record([&read.name, "all", "Gbit/s", &at, &total.to_string()])?;
                    for (id, flow) in &read.flows {
                        let value = 8.0 * flow[i] / seconds / 1e9;
                        csv.write_record([&read.name, &format!("flow {id}"), "Gbit/s", &at, &value.to_string()])?;
                    }
                    t_s += seconds;
                }
            }
            Imported::Cpu(cpu) => {
                for (at, busy) in cpu.at_s.iter().zip(&cpu.busy) {
                    for (core, value) in cpu.cores.iter().zip(busy) {
                        let at = format!("{:.3}", at - cpu.at_s[0]);
                        csv.write_record([&cpu.name, core, "percent busy", &at, &value.to_string()])?;
                    }
                }
            }
        }
    }
    Ok(csv.into_inner()?)
}
