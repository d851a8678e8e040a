//! `weir bench ike-rivals`: set-up rates compared with strongSwan's.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use comfy_table::{Table, presets};
use stats::Estimate;

use crate::demo::{self, TestbedError};
use crate::keying::rivals::{Outcome, Plan, Proof, Rate};
use testbed::child::Interrupt;
use testbed::sandbox;

/// Options of `weir bench ike-rivals`.
#[derive(Debug, Args)]
pub struct IkeRivalsArgs {
    /// IKE SAs in one measurement
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    sas: u32,
    /// IKE SAs that exist before each measurement
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    existing: u32,
    /// Measure weir up alone
    #[arg(long)]
    alone: bool,
    /// Pairs of measurements
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(2..=1000))]
    rounds: u16,
    /// Folder of the system that strongSwan is taken from, such as one of scripts/peer-root.sh
    #[arg(long, default_value = "/", value_name = "DIR")]
    root: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Set by the measurement itself
    #[arg(long, hide = true)]
    inside: bool,
}

impl IkeRivalsArgs {
    /// Measures, prints the table, and returns the exit status.
    pub(super) fn run(self) -> ExitCode {
        match self.work() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("weir: bench ike-rivals: {error}");
                ExitCode::from(match error {
                    TestbedError::Interrupted => demo::INTERRUPTED,
                    TestbedError::Unable(_) => 2,
                    TestbedError::Failed(_) => 1,
                })
            }
        }
    }

    fn work(&self) -> Result<(), TestbedError> {
        let root = std::path::absolute(&self.root).unwrap_or_else(|_| self.root.clone());
        let plan = Plan {
            proofs: Proof::ALL.to_vec(),
            sas: self.sas as usize,
            existing: self.existing as usize,
            rounds: self.rounds.into(),
            rival: !self.alone,
            root,
        };
        let version = match self.alone {
            true => "weir up alone".to_owned(),
            false => plan.version().map_err(|error| TestbedError::Unable(format!("{error:#}")))?,
        };
        let dir = sandbox::run_inside(self.inside)?;
        let interrupt =
            Interrupt::install().map_err(|error| TestbedError::Unable(format!("cannot catch signals: {error}")))?;
        let outcomes = plan.run(&dir, &interrupt, &mut |line| eprintln!("{line}"));
        let outcomes = outcomes.map_err(|error| match error.downcast::<TestbedError>() {
            Ok(error) => error,
            Err(error) => TestbedError::Failed(format!("{error:#}")),
        })?;
        match self.json {
            true => println!("{}", json(&version, &outcomes)),
            false => {
                let (rounds, sas, existing) = (self.rounds, self.sas, self.existing);
                println!("{version}; {rounds} pairs of {sas} IKE SAs with a Child SA each, after {existing}");
                println!("{}", table(&outcomes));
            }
        }
        Ok(())
    }
}

/// One of both rates.
type Of = fn(&Rate) -> f64;

/// Rates by the clock and by processor time.
const KINDS: [(&str, Of); 2] =
    [("per second", |rate| rate.wall), ("per second of the daemon's processor time", |rate| rate.cpu)];

fn table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["authentication", "IKE SAs", "weir up", "strongSwan", "ratio (95 %)"]);
    let rates = |rates: &[Rate], of: Of| {
        if rates.is_empty() {
            return String::new();
        }
        let mut values: Vec<f64> = rates.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        let (first, last) = (values.first().copied().unwrap_or_default(), values.last().copied().unwrap_or_default());
        format!("{:.0} ({first:.0} to {last:.0})", stats::median(&values))
    };
    for outcome in outcomes {
        for (kind, of) in KINDS {
            let ratio = outcome.ratio(of).map_or_else(String::new, |Estimate { value, low, high }| {
                format!("{value:.2} ({low:.2} to {high:.2})")
            });
            table.add_row([
                outcome.proof.name().to_owned(),
                kind.to_owned(),
                rates(&outcome.weir, of),
                rates(&outcome.charon, of),
                ratio,
            ]);
        }
    }
    table
}

fn json(version: &str, outcomes: &[Outcome]) -> serde_json::Value {
    let rates = |rates: &[Rate]| -> Vec<_> {
        rates.iter().map(|rate| serde_json::json!({ "per_s": rate.wall, "per_cpu_s": rate.cpu })).collect()
    };
    let ratio = |outcome: &Outcome, of| {
        outcome.ratio(of).map(|ratio| serde_json::json!({ "value": ratio.value, "low": ratio.low, "high": ratio.high }))
    };
    let of = |outcome: &Outcome| {
        serde_json::json!({
            "authentication": outcome.proof.name(),
            "weir": rates(&outcome.weir),
            "strongswan": rates(&outcome.charon),
            "ratio_per_s": ratio(outcome, KINDS[0].1),
            "ratio_per_cpu_s": ratio(outcome, KINDS[1].1),
        })
    };
    serde_json::json!({ "strongswan": version, "outcomes": outcomes.iter().map(of).collect::<Vec<_>>() })
}
