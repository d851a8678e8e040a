//! `weir lab modes`: tunnel against transport.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::demo::child::Interrupt;
use crate::demo::{self, DemoError, sandbox};
use crate::modes::{self, Options};

/// Options of `weir lab modes`.
#[derive(Debug, Args)]
pub struct ModesArgs {
    /// ESP suite, as in a configuration
    #[arg(long, default_value = "aes128gcm16")]
    suite: String,
    /// Sizes of inner packets in bytes, 64 to 1400
    #[arg(long, value_delimiter = ',', default_value = "64,160,736,1400", value_parser = clap::value_parser!(u16).range(64..=1400))]
    size: Vec<u16>,
    /// Pings of one size, direction and variant at a time
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    count: u32,
    /// Rounds in each session; in each round every variant has two turns
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Sessions: hosts, processes and keys are new in each, and intervals are over them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    sessions: u32,
    /// Difference that does not matter, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    margin: f64,
    /// Time that the cable between both hosts holds every frame back, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    delay: u32,
    /// Seed of order and intervals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for modes.json
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Set by the measurement itself
    #[arg(long, hide = true)]
    inside: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|p| *p > 0.0 && *p <= 100.0)
        .ok_or_else(|| "expected percent above 0, up to 100".to_owned())
}

impl ModesArgs {
    /// Measures, prints the results, and returns the exit status.
    pub(super) fn run(self) -> ExitCode {
        match self.work() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("weir: lab modes: {error}");
                ExitCode::from(if matches!(error, DemoError::Interrupted) { demo::INTERRUPTED } else { 2 })
            }
        }
    }

    fn work(&self) -> Result<(), DemoError> {
        let unable = |error: &dyn std::fmt::Display| DemoError::Unable(error.to_string());
        let out = self.out.as_deref().map(sandbox::outside).transpose()?;
        let dir = sandbox::corner(self.inside)?;
        let interrupt = Interrupt::install().map_err(|error| unable(&error))?;
        let options = Options {
            suite: self.suite.clone(),
            sizes: self.size.clone(),
            count: self.count,
            rounds: self.rounds,
            sessions: self.sessions,
            margin: self.margin / 100.0,
            delay_ms: self.delay,
            seed: self.seed,
        };
        let outcome = modes::run(&options, &dir, &interrupt, |what| eprintln!("modes: {what}"))?;
        let json = serde_json::to_string_pretty(&outcome).map_err(|error| unable(&error))?;
        if let Some(out) = out {
            super::write_files(&out, &[("modes.json", json.as_bytes())])
                .map_err(|error| unable(&format!("{error:#}")))?;
        }
        println!("{}", if self.json { json } else { outcome.text() });
        Ok(())
    }
}
