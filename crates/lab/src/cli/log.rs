//! `weir lab log`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::compare::Criteria;
use crate::report::history::History;

/// Options of `weir lab log`.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Folders of runs, or folders that hold such
    #[arg(value_name = "DIR", default_value = ".")]
    dirs: Vec<PathBuf>,
    /// Mark runs that are slower by at least this, in percent
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT", value_parser = super::compare::percent)]
    gate: f64,
    /// Write a page with the overlay of all runs
    #[arg(long, value_name = "FILE.html")]
    page: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl LogArgs {
    /// Runs the command and returns the exit status.
    pub(super) fn run(&self) -> ExitCode {
        match self.work() {
            Ok(regressed) => ExitCode::from(u8::from(regressed)),
            Err(error) => {
                eprintln!("weir: lab: {error}");
                ExitCode::from(2)
            }
        }
    }

    /// Returns whether the latest run is slower.
    fn work(&self) -> anyhow::Result<bool> {
        let gate = self.gate / 100.0;
        let history = History::of(&self.dirs, Criteria { gate, margin: gate, seed: 1 })?;
        if let Some(path) = &self.page {
            std::fs::write(path, history.html()).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&history)?);
        } else {
            print!("{}", history.text());
        }
        Ok(history.regressed())
    }
}
