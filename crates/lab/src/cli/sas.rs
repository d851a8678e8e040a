//! `weir bench sas`: cost of a packet and memory per SA, by the number of SAs.

use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use crypto::Engine;
use indicatif::ProgressStyle;
use ipsec::Protocol;

use crate::bench::{self, SasOptions, SasOutcome};

/// Number of SAs from which progress is printed without a terminal, because it takes seconds.
const TOLD_FROM: u32 = 100_000;

/// Options of `weir bench sas`.
#[derive(Debug, Args)]
pub struct SasArgs {
    /// Protocols: esp, ah, eesp, psp
    #[arg(long, value_delimiter = ',', default_value = "esp,eesp,psp", value_parser = super::protocol)]
    protocol: Vec<Protocol>,
    /// Suite of ESP, EESP and PSP, as in a configuration
    #[arg(long, default_value = "aes128gcm16")]
    suite: String,
    /// Numbers of SAs, 1 to 1000000; those that do not fit into memory are named. A million take up
    /// to 8 GB and some 20 s for each protocol
    #[arg(long, value_delimiter = ',', default_value = "1,10,100,1000,10000,100000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    sas: Vec<u32>,
    /// Inner packet in bytes
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(28..=1900))]
    size: u16,
    /// Timed rounds per case
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(2..=1000))]
    rounds: u16,
    /// Length of a round in milliseconds of the subject's time
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    round: u16,
    /// Packets per batch
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// Engine: auto (the fastest here), or one by name; null is everything but the arithmetic
    #[arg(long, default_value = "auto", value_parser = super::engine)]
    engine: Engine,
    /// Seed of order and intervals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl SasArgs {
    /// Measures and prints.
    ///
    /// # Errors
    /// An unknown suite, or a packet that came out wrong.
    pub(super) fn run(self) -> anyhow::Result<()> {
        let options = SasOptions {
            protocols: self.protocol,
            suite: self.suite,
            sas: self.sas,
            size: self.size.into(),
            rounds: self.rounds.into(),
            round: Duration::from_millis(self.round.into()),
            batch: self.batch.into(),
            engine: self.engine,
            seed: self.seed,
        };
        let bar = super::progress_bar();
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} cases; {msg}");
        bar.set_style(style.expect("template is constant"));
        let mut alone = |protocol, sas| alone(&options, protocol, sas);
        let outcomes = bench::run_sas(&options, &mut alone, &mut |step| {
            bar.set_length(step.total as u64);
            bar.set_position(step.done as u64);
            bar.set_message(step.doing.clone());
            if bar.is_hidden() && step.sas >= TOLD_FROM {
                eprintln!("weir bench sas: {}", step.doing);
            }
        })?;
        bar.finish_and_clear();
        if self.json {
            let json = json(&options, &outcomes);
            println!("{}", serde_json::to_string_pretty(&json)?);
        } else {
            let (cpu, commit) = (crate::host::cpu_model(), crate::host::commit());
            println!(
                "TSC ticks per packet of {} bytes on {cpu}, {}, commit {commit}, batches of {}, medians of {} rounds",
                options.size,
                options.engine.describe(),
                options.batch,
                options.rounds
            );
            println!("{}", bench::sas_table(&outcomes));
        }
        Ok(())
    }
}

fn json(options: &SasOptions, outcomes: &[SasOutcome]) -> serde_json::Value {
    serde_json::json!({
        "cpu": crate::host::cpu_model(), "commit": crate::host::commit(), "size": options.size, "rounds": options.rounds,
        "batch": options.batch, "engine": options.engine.name(), "engine_what": options.engine.describe(),
        "crossover_sas": bench::sas_crossover(outcomes), "outcomes": outcomes,
    })
}

/// Has this program measure one protocol with one number of SAs.
fn alone(options: &SasOptions, protocol: Protocol, sas: u32) -> anyhow::Result<SasOutcome> {
    let numbers = [
        ("--sas", u64::from(sas)),
        ("--size", options.size as u64),
        ("--rounds", options.rounds as u64),
        ("--round", options.round.as_millis() as u64),
        ("--batch", options.batch as u64),
        ("--seed", options.seed),
    ];
    let mut command = Command::new(std::env::current_exe().context("path of this program")?);
    command.args(["bench", "sas", "--json", "--protocol", protocol.name(), "--suite", &options.suite]);
    command.args(["--engine", options.engine.name()]);
    command.args(numbers.iter().flat_map(|(option, value)| [(*option).to_owned(), value.to_string()]));
    let output = command.output().context("cannot start a process to measure in")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let failed = || {
        let why = said.lines().last().unwrap_or_default();
        format!("{}, {sas} SAs: measuring process: {}: {why}", protocol.name(), output.status)
    };
    anyhow::ensure!(output.status.success(), failed());
    outcome_in(&output.stdout).with_context(failed)
}

/// The one outcome of what such a process printed.
fn outcome_in(json: &[u8]) -> anyhow::Result<SasOutcome> {
    let mut printed: serde_json::Value = serde_json::from_slice(json)?;
    let first = printed.pointer_mut("/outcomes/0").context("it printed no result")?;
    Ok(serde_json::from_value(first.take())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Estimate;

    #[test]
    fn what_another_process_prints_is_read_again() {
        let options = SasOptions {
            protocols: vec![Protocol::Psp],
            suite: "aes128gcm16".into(),
            sas: vec![1_000_000],
            size: 64,
            rounds: 2,
            round: Duration::from_millis(10),
            batch: 256,
            engine: Engine::AwsLc,
            seed: 1,
        };
        let measured = SasOutcome {
            protocol: "psp".into(),
            derives: true,
            sas: 1_000_000,
            apart: false,
            missing: None,
            out: Some(Estimate { value: 8000.0, low: 7900.5, high: 8100.0 }),
            inbound: None,
            each_bytes: Some([3487.0, 1.5]),
        };
        let printed = json(&options, std::slice::from_ref(&measured)).to_string();
        assert!(printed.contains(r#""engine":"aws_lc""#), "{printed}");
        let read = outcome_in(printed.as_bytes()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{measured:?}"));
        assert!(outcome_in(b"{\"outcomes\": []}").is_err() && outcome_in(b"").is_err());
    }
}
