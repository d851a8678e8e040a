//! `weir lab explain`: names what binds a result.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::model::{REFUSED, digits, table};
use super::plan::Rate;
use crate::model::{Profile, explain, read_trials};

/// Options of `weir lab explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// trials.jsonl, or a folder that holds one
    trials: PathBuf,
    /// Profiles of weir lab model fit, for the subjects in it
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    profile: Vec<PathBuf>,
    /// Link between the hosts, e.g. 10Gbps
    #[arg(long)]
    link: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ExplainArgs {
    /// Runs the command and returns the exit status.
    pub fn run(self) -> ExitCode {
        match self.explain() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("weir: explain: {error}");
                ExitCode::from(REFUSED)
            }
        }
    }

    fn explain(&self) -> Result<(), String> {
        let path = if self.trials.is_dir() { self.trials.join("trials.jsonl") } else { self.trials.clone() };
        let text = std::fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let (trials, notes) = read_trials(&path, &text).map_err(|e| e.to_string())?;
        for note in notes {
            eprintln!("weir: explain: note: {note}");
        }
        let load = |path: &PathBuf| Profile::load(path).map_err(|e| e.to_string());
        let profiles: Vec<Profile> = self.profile.iter().map(load).collect::<Result<_, _>>()?;
        let link = self.link.as_deref().map(Rate::mbps).transpose()?;
        let explanations = explain(&trials, &profiles, link);
        if explanations.is_empty() {
            return Err(format!("{}: no trial in which a packet arrived", path.display()));
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&explanations).map_err(|e| e.to_string())?);
            return Ok(());
        }
        let mut rows = table(&["result", "trials", "Mbps", "ns per packet", "predicted", "binding", "because"]);
        for e in &explanations {
            rows.add_row([
                e.what.clone(),
                e.trials.to_string(),
                digits(e.mbps),
                digits(e.ns),
                e.predicted_ns.map_or_else(String::new, digits),
                e.term.name().to_owned(),
                e.evidence.clone(),
            ]);
        }
        println!("{rows}");
        Ok(())
    }
}
