//! `weir lab series`: a transfer over time, measured here.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::demo::child::Interrupt;
use crate::demo::{self, DemoError, sandbox};
use crate::import::report;
use crate::series::record;
use crate::subject::Subject;

/// Options of `weir lab series`.
#[derive(Debug, Args)]
pub struct SeriesArgs {
    /// Subject between both hosts, as weir lab subjects lists them
    #[arg(default_value = "weir-esp-transport-aes128-sha256")]
    subject: String,
    /// Seconds of TCP, one sample each
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(3..=86_400))]
    seconds: u32,
    /// TCP flows
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=128))]
    flows: u32,
    /// Folder for trials.jsonl, series.csv and analysis.json
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seed of the intervals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Set by the measurement itself
    #[arg(long, hide = true)]
    inside: bool,
}

impl SeriesArgs {
    /// Measures, prints the analysis, and returns the exit status.
    pub(super) fn run(self) -> ExitCode {
        match self.work() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("weir: lab series: {error:#}");
                let interrupted = matches!(error.downcast_ref(), Some(DemoError::Interrupted));
                ExitCode::from(if interrupted { demo::INTERRUPTED } else { 2 })
            }
        }
    }

    fn work(&self) -> anyhow::Result<()> {
        let subject: Subject = self.subject.parse()?;
        let out = self.out.as_deref().map(sandbox::outside).transpose()?;
        let dir = sandbox::corner(self.inside)?;
        let interrupt = Interrupt::install()?;
        let imported = record(&subject, self.seconds, self.flows, &dir, &interrupt)?;
        let report = report(&imported, None, self.seed);
        if let Some(folder) = &out {
            super::import::save(folder, &imported, &report)?;
        }
        super::import::print(&report, self.json)
    }
}
