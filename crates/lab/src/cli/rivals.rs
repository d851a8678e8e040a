//! `weir bench rivals`: Weir beside other programs, TCP through each in turn.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::bench::{self, RivalOptions};
use crate::demo::child::Interrupt;
use crate::demo::{self, DemoError, sandbox};

/// Options of `weir bench rivals`.
#[derive(Debug, Args)]
pub struct RivalsArgs {
    /// Configurations of Weir as listed by 'weir lab subjects', separated by spaces (a name may
    /// contain commas)
    #[arg(long, num_args = 1.., value_name = "SUBJECT", default_values = bench::OWN)]
    own: Vec<String>,
    /// Programs by others
    #[arg(long, num_args = 1.., value_name = "SUBJECT", default_values = bench::GOALS.map(|(name, _)| name))]
    rivals: Vec<String>,
    /// TCP streams
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_parser = clap::value_parser!(u32).range(1..=128))]
    flows: Vec<u32>,
    /// One packet a frame, as on a wire between network cards that neither cut nor join; without it
    /// the cable is veth with default offloads, which forwards GSO packets unsegmented
    #[arg(long)]
    wire: bool,
    /// Seconds of each transfer
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(2..=600))]
    seconds: u16,
    /// Rounds in each session; in each round every subject has two turns
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Sessions: hosts, processes and keys are new in each, and intervals are over them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    sessions: u32,
    /// Seed of order and intervals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for rivals.json
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Set by the measurement itself
    #[arg(long, hide = true)]
    inside: bool,
}

impl RivalsArgs {
    /// Measures, prints the results, and returns the exit status.
    pub(super) fn run(self) -> ExitCode {
        match self.work() {
            Ok(whole) => ExitCode::from(u8::from(!whole)),
            Err(error) => {
                eprintln!("weir: bench rivals: {error}");
                ExitCode::from(if matches!(error, DemoError::Interrupted) { demo::INTERRUPTED } else { 2 })
            }
        }
    }

    /// True if every requested subject completed all sessions.
    fn work(&self) -> Result<bool, DemoError> {
        let unable = |error: &dyn std::fmt::Display| DemoError::Unable(error.to_string());
        let out = self.out.as_deref().map(sandbox::outside).transpose()?;
        let dir = sandbox::corner(self.inside)?;
        let interrupt = Interrupt::install().map_err(|error| unable(&error))?;
        let options = RivalOptions {
            own: self.own.clone(),
            rivals: self.rivals.clone(),
            flows: self.flows.clone(),
            wire: self.wire,
            seconds: self.seconds,
            rounds: self.rounds,
            sessions: self.sessions,
            seed: self.seed,
        };
        let bar = super::transfers_bar();
        let outcome = bench::run_rivals(&options, &dir, &interrupt, &mut |done, total, what| {
            bar.set_length(total);
            bar.set_position(done);
            bar.set_message(what.to_owned());
        });
        bar.finish_and_clear();
        let outcome = outcome?;
        let json = serde_json::to_string_pretty(&outcome).map_err(|error| unable(&error))?;
        if let Some(out) = out {
            super::write_files(&out, &[("rivals.json", json.as_bytes())])
                .map_err(|error| unable(&format!("{error:#}")))?;
        }
        println!("{}", if self.json { json } else { outcome.text() });
        Ok(outcome.absent.is_empty())
    }
}
