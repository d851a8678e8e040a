//! The lab's part of the command line.

use std::io::IsTerminal;

use anyhow::Context;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use ipsec::Protocol;

use crate::bench;

/// `weir bench`.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Cycles per packet of the whole in-memory path, against the bare engine
    #[command(after_help = "Example:\n  weir bench path --protocol esp --suite aes128gcm16 --size 64,512,1400")]
    Path(PathArgs),
}

/// Options of `weir bench path`.
#[derive(Debug, Args)]
pub struct PathArgs {
    /// Protocols: esp, ah, eesp, psp (default: all)
    #[arg(long, value_delimiter = ',', value_parser = protocol)]
    protocol: Vec<Protocol>,
    /// Suites, as in a configuration (default: a list that fits each protocol)
    #[arg(long, value_delimiter = ',')]
    suite: Vec<String>,
    /// Inner packet sizes in bytes, 28 to 2000 (default: 64, 512, 1400 and twelve off-grid ones)
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(28..=2000))]
    size: Vec<u16>,
    /// Timed rounds per case
    #[arg(long, default_value_t = 41, value_parser = clap::value_parser!(u16).range(3..))]
    rounds: u16,
    /// Packets per batch
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// IPv6 inside and outside
    #[arg(long)]
    v6: bool,
    /// Seed of the order of measurements
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn protocol(name: &str) -> Result<Protocol, String> {
    [Protocol::Esp, Protocol::Ah, Protocol::Eesp, Protocol::Psp]
        .into_iter()
        .find(|p| p.name() == name)
        .ok_or_else(|| "expected esp, ah, eesp or psp".to_owned())
}

impl Bench {
    /// Runs the benchmark and prints its result.
    ///
    /// # Errors
    /// A suite that is none, or that a protocol cannot use.
    pub fn run(self) -> anyhow::Result<()> {
        let Self::Path(args) = self;
        let options = bench::Options {
            protocols: args.protocol,
            suites: args.suite,
            sizes: args.size.into_iter().map(usize::from).collect(),
            rounds: args.rounds.into(),
            batch: args.batch.into(),
            seed: args.seed,
            v6: args.v6,
        };
        let bar = progress_bar();
        let (hz, outcomes) = bench::run(&options, &mut |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        })
        .context("cannot set up the benchmark")?;
        bar.finish_and_clear();
        anyhow::ensure!(!outcomes.is_empty(), "no case matches; see weir bench path --help for protocols and suites");
        if args.json {
            let json = bench::json(hz, options.rounds, options.batch, &outcomes);
            println!("{}", serde_json::to_string_pretty(&json)?);
        } else {
            println!(
                "TSC ticks per packet at {:.3} GHz, {}, batches of {}, medians of {} rounds",
                hz / 1e9,
                crate::host::cpu_model(),
                options.batch,
                options.rounds
            );
            println!("{}", bench::table(&outcomes));
        }
        Ok(())
    }
}

fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} cases, {eta} left").expect("template is constant");
    ProgressBar::new(0).with_style(style)
}
