//! `weir lab verify`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::report;

/// Options of `weir lab verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Folder of a run
    #[arg(value_name = "DIR", default_value = "lab-out")]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl VerifyArgs {
    /// Runs the command and returns the exit status.
    pub(super) fn run(&self) -> ExitCode {
        match report::verify(&self.dir) {
            Ok(verdict) => {
                if self.json {
                    println!("{}", serde_json::to_string_pretty(&verdict).expect("a verdict has string keys"));
                } else {
                    print!("{verdict}");
                }
                if verdict.same() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            }
            Err(error) => {
                eprintln!("weir: lab: {error}");
                ExitCode::from(2)
            }
        }
    }
}
