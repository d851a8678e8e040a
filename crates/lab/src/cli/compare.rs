//! `weir lab compare`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;

use crate::campaign::env::Environment;
use crate::compare::{Comparison, Criteria, LiveOptions, live_recorded, read_run, runs, self_check, subjects};
use crate::trial::Trial;

/// Options of `weir lab compare`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["runs", "binaries", "self_check"]))]
pub struct CompareArgs {
    /// Directories of two runs; of one with --subjects
    #[arg(num_args = 1..=2, value_name = "DIR")]
    runs: Vec<PathBuf>,
    /// Two subjects of one run, paired by its rounds; A;B where a name has a comma
    #[arg(long, value_name = "A,B", requires = "runs", value_parser = pair)]
    subjects: Option<[String; 2]>,
    /// Two builds of weir, measured now in blocks that take turns
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    binaries: Vec<PathBuf>,
    /// Compare this build with itself N times, and once with --plant
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    self_check: Option<u16>,
    /// Fail when something is slower by more than this for certain, in percent
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT", value_parser = percent)]
    gate: f64,
    /// A difference below this does not matter, in percent
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT", value_parser = percent)]
    margin: f64,
    /// Slow B down on purpose by this, in percent (default: 0; with --self-check 2)
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    plant: Option<f64>,
    /// Protocol to measure: esp, ah, eesp, psp
    #[arg(long, value_delimiter = ',', default_value = "esp")]
    protocol: Vec<String>,
    /// Suites to measure
    #[arg(long, value_delimiter = ',', default_value = "aes128gcm16")]
    suite: Vec<String>,
    /// Inner packet sizes in bytes, 28 to 2000
    #[arg(long, value_delimiter = ',', default_value = "64,1400", value_parser = clap::value_parser!(u16).range(28..=2000))]
    size: Vec<u16>,
    /// Sessions: number of restarts of the processes
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(2..=1000))]
    sessions: u16,
    /// ABBA rounds per case and session
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rounds: u16,
    /// Length of a block in milliseconds
    #[arg(long, default_value_t = 2.0, value_name = "MS", value_parser = block)]
    block: f64,
    /// Processor that both builds share (default: the last)
    #[arg(long)]
    cpu: Option<usize>,
    /// Seed of order and intervals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for comparison.json, forest.svg and, of builds, blocks.jsonl with every block
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn pair(text: &str) -> Result<[String; 2], String> {
    let names: Vec<String> =
        text.split(if text.contains(';') { ';' } else { ',' }).map(|name| name.trim().to_owned()).collect();
    names.try_into().map_err(|_| "expected two names: A,B, or A;B where a name has a comma".to_owned())
}

pub(super) fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim().parse::<f64>() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok(value),
        _ => Err("expected percent, 0 to 100".to_owned()),
    }
}

fn block(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.1..=1000.0).contains(&value) => Ok(value),
        _ => Err("expected milliseconds, 0.1 to 1000".to_owned()),
    }
}

impl CompareArgs {
    /// Runs the command, prints errors, and returns the exit status.
    pub(super) fn run(self) -> ExitCode {
        match self.work() {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("weir: compare: {}", super::with_causes(&error));
                ExitCode::from(2)
            }
        }
    }

    /// Returns whether the gate stays open, or the self-check passed.
    fn work(&self) -> anyhow::Result<bool> {
        if let Some(runs) = self.self_check {
            let this = std::env::current_exe().context("path of this build")?;
            return self.check(usize::from(runs), [this.clone(), this]);
        }
        let mut rows = Vec::new();
        let comparison = self.comparison(&mut rows)?;
        if let Some(folder) = &self.out {
            let json = serde_json::to_vec_pretty(&comparison)?;
            super::write_files(folder, &[("comparison.json", &json), ("forest.svg", comparison.svg().as_bytes())])?;
            if !rows.is_empty() {
                super::write_files(folder, &[("blocks.jsonl", &rows)])?;
            }
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&comparison)?);
        } else {
            print!("{}", comparison.text());
        }
        Ok(comparison.regressions().is_empty())
    }

    /// Blocks that were measured go to `rows`, as lines of trials.
    fn comparison(&self, rows: &mut Vec<u8>) -> anyhow::Result<Comparison> {
        if let [a, b] = self.binaries.as_slice() {
            let bar = super::progress_bar();
            let options = self.live_options([a.clone(), b.clone()], self.plant.unwrap_or(0.0));
            let mut progress = |done, total| bar.at(done, total);
            let environment = Environment::here().hash;
            let comparison = live_recorded(&options, &mut progress, &mut |trial| {
                rows.extend(
                    serde_json::to_vec(&Trial { env: environment.clone(), ..trial }).expect("a trial has string keys"),
                );
                rows.push(b'\n');
            });
            bar.finish();
            return comparison;
        }
        ensure!(self.plant.is_none(), "--plant slows one build down: it requires --binaries or --self-check");
        match (self.runs.as_slice(), &self.subjects) {
            ([a, b], None) => Ok(runs([a, b], self.criteria())?),
            ([run], Some([a, b])) => Ok(subjects(&read_run(run)?, [a, b], self.criteria())?),
            ([_], _) => anyhow::bail!("a single run requires --subjects A,B; otherwise give two runs"),
            _ => anyhow::bail!("--subjects compares within one run: give one run"),
        }
    }

    fn check(&self, runs: usize, binaries: [PathBuf; 2]) -> anyhow::Result<bool> {
        let bar = super::progress_bar();
        let options = self.live_options(binaries, 0.0);
        let plant = self.plant.unwrap_or(2.0) / 100.0;
        let check = self_check(&options, runs, plant, &mut |done, total| bar.at(done as u64, total as u64));
        bar.finish();
        let check = check?;
        if let Some(folder) = &self.out {
            super::write_files(folder, &[("selfcheck.json", &serde_json::to_vec_pretty(&check)?)])?;
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&check)?);
        } else {
            print!("{}", check.text());
        }
        Ok(check.passed())
    }

    fn criteria(&self) -> Criteria {
        Criteria { gate: self.gate / 100.0, margin: self.margin / 100.0, seed: self.seed }
    }

    fn live_options(&self, binaries: [PathBuf; 2], plant_percent: f64) -> LiveOptions {
        let sizes: Vec<String> = self.size.iter().map(u16::to_string).collect();
        let cases = [("--protocol", &self.protocol), ("--suite", &self.suite), ("--size", &sizes)];
        LiveOptions {
            binaries,
            cases: cases.iter().flat_map(|(name, values)| [(*name).to_owned(), values.join(",")]).collect(),
            sessions: self.sessions.into(),
            rounds: self.rounds.into(),
            block_us: (self.block * 1e3) as u64,
            cpu: self.cpu,
            plant: plant_percent / 100.0,
            criteria: self.criteria(),
        }
    }
}
