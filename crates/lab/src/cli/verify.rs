//! `weir lab verify`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::report::{self, ReportError};

/// Options of `weir lab verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Folders of runs
    #[arg(value_name = "DIR", default_value = "lab-out")]
    dirs: Vec<PathBuf>,
    /// Write the computed files that are in the folder, instead of comparing them
    #[arg(long, conflicts_with = "json")]
    write: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl VerifyArgs {
    /// Runs the command and returns the exit status.
    pub(super) fn run(&self) -> ExitCode {
        let mut same = true;
        for dir in &self.dirs {
            match self.one(dir) {
                Ok(one) => same &= one,
                Err(error) => {
                    eprintln!("weir: lab: {error}");
                    return ExitCode::from(2);
                }
            }
        }
        if same { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn one(&self, dir: &Path) -> Result<bool, ReportError> {
        if self.write {
            report::rewrite(dir)?;
            return Ok(true);
        }
        let verdict = report::verify(dir)?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&verdict).expect("a verdict has string keys"));
        } else {
            let name = if self.dirs.len() > 1 { format!("{}: ", dir.display()) } else { String::new() };
            print!("{name}{verdict}");
        }
        Ok(verdict.same())
    }
}
