//! `weir bench cores`.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use crypto::Engine;

use crate::bench::{
    self, CoresOptions, MAX_FLOWS, OCTEON_FLOWS, OCTEON_SIZES, OCTEON_SUITES, Scheduler, Set, Spreading,
};

/// Options of `weir bench cores`.
#[derive(Debug, Args)]
pub struct CoresArgs {
    /// Numbers of cores (default: 1, 2, 4, … as far as this process may use them)
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=64))]
    cores: Vec<u8>,
    /// Inner packet sizes in bytes, 64 to 1400 (default: 64, 512, 1280)
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(64..=1400))]
    size: Vec<u16>,
    /// Suites (default: aes128gcm16, aes128-sha1)
    #[arg(long, value_delimiter = ',')]
    suite: Vec<String>,
    /// Flows (default: 64)
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=MAX_FLOWS as i64))]
    flows: Vec<u32>,
    /// Schedulers (default: both)
    #[arg(long, value_delimiter = ',', value_enum)]
    scheduler: Vec<Scheduler>,
    /// Sets of SAs (default: all)
    #[arg(long, value_delimiter = ',', value_enum)]
    set: Vec<Set>,
    /// Distribution of flows to cores
    #[arg(long, value_enum, default_value_t = Spreading::Ideal)]
    spread: Spreading,
    /// Pipeline: one packet of an SA at a time is encrypted, as the tags of the OCTEON scheduler
    /// have it
    #[arg(long)]
    atomic_cipher: bool,
    /// The whole grid of the OCTEON paper: its sizes, suites and flows, as far as not given
    #[arg(long)]
    octeon: bool,
    /// Rounds
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(3..=1000))]
    rounds: u16,
    /// Milliseconds of a trial
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(5..=10_000))]
    ms: u16,
    /// Time limit per case, in milliseconds, for repeating trials with a busy SMT sibling
    #[arg(long, default_value_t = 1000)]
    patience_ms: u32,
    /// Engine: auto (the fastest here), or one by name; null is everything but the arithmetic
    #[arg(long, default_value = "auto", value_parser = super::engine)]
    engine: Engine,
    /// Seed of the order of trials
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CoresArgs {
    fn options(&self) -> CoresOptions {
        let given = |values: &[u16]| values.iter().map(|n| usize::from(*n)).collect::<Vec<_>>();
        let mut options = CoresOptions {
            spread: self.spread,
            atomic_cipher: self.atomic_cipher,
            rounds: self.rounds.into(),
            trial: Duration::from_millis(self.ms.into()),
            patience: Duration::from_millis(self.patience_ms.into()),
            seed: self.seed,
            engine: self.engine,
            ..CoresOptions::default()
        };
        if self.octeon {
            options.sizes = OCTEON_SIZES.to_vec();
            options.suites = OCTEON_SUITES.iter().map(|suite| (*suite).to_owned()).collect();
            options.flows = OCTEON_FLOWS.to_vec();
        }
        choose(&mut options.cores, self.cores.iter().map(|n| usize::from(*n)).collect());
        choose(&mut options.sizes, given(&self.size));
        choose(&mut options.suites, self.suite.clone());
        choose(&mut options.flows, self.flows.iter().map(|n| *n as usize).collect());
        choose(&mut options.schedulers, self.scheduler.clone());
        choose(&mut options.sets, self.set.clone());
        options
    }

    /// Runs the benchmark and prints its result.
    ///
    /// # Errors
    /// An unknown suite, more cores than there are, or packets that were lost or out of order.
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let options = self.options();
        let here = ports::cpus::allowed().len();
        let most = options.cores.iter().copied().max().unwrap_or(1);
        anyhow::ensure!(
            most <= here,
            "{most} cores requested, {here} available; reduce --cores, or widen the CPU mask (taskset)"
        );
        let bar = super::progress_bar();
        let report = bench::run_cores(&options, &mut |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        })
        .context("cannot set up the benchmark")?;
        bar.finish_and_clear();
        anyhow::ensure!(!report.outcomes.is_empty(), "no case matches: EESP requires AEAD suites, PSP AES-GCM");
        if self.json {
            println!("{}", serde_json::to_string_pretty(&bench::cores_json(&options, &report))?);
        } else {
            println!(
                "Packets sealed and opened in memory, {}, {} packets per batch, medians of {} rounds of {} ms",
                crate::host::cpu_model(),
                bench::CORES_BATCH,
                options.rounds,
                options.trial.as_millis()
            );
            println!("{}", bench::cores_table(&report));
        }
        let wrong = report.outcomes.iter().filter(|o| o.disordered + o.lost > 0).count();
        anyhow::ensure!(wrong == 0, "{wrong} cases lost or reordered packets");
        Ok(())
    }
}

/// The given values, otherwise the defaults.
fn choose<T>(there: &mut Vec<T>, given: Vec<T>) {
    if !given.is_empty() {
        *there = given;
    }
}
