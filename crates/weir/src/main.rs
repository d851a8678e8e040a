//! The one binary: the commands of the gateway and of the lab. No logic.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A gateway for IP traffic that speaks ESP, AH, EESP and PSP, and the lab that measures it
#[derive(Debug, Parser)]
#[command(name = "weir", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Gateway(gateway::cli::Command),
    /// Measure the data plane in memory
    #[command(subcommand)]
    Bench(lab::cli::Bench),
    /// Demonstrate and measure with real traffic
    #[command(subcommand)]
    Lab(lab::cli::Lab),
}

fn main() -> ExitCode {
    lab::host::set_commit(env!("WEIR_COMMIT"));
    match Cli::parse().command {
        Command::Gateway(command) => command.run(),
        Command::Bench(command) => lab::cli::while_read(|| finish(command.run())),
        Command::Lab(command) => lab::cli::while_read(|| command.run()),
    }
}

/// A command of the lab either did its work or says why not.
fn finish(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("weir: {error:#}");
        ExitCode::FAILURE
    })
}
