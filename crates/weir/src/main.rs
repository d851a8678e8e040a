//! The one binary: the commands of the gateway and of the lab. No logic.

mod pages;
#[cfg(not(feature = "lab"))]
mod without_lab;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

use pages::Edition;

/// Userspace IPsec gateway (ESP, AH, EESP, PSP), and the lab that measures it
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
    /// Issue certificates: a CA in a folder, revocation, files for other systems
    #[command(subcommand)]
    Pki(pki::cli::Pki),
    /// Create configuration and certificates for both ends of a usual case
    #[command(subcommand)]
    New(pki::setup::New),
    /// Measure the data plane in memory
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Bench(lab::cli::Bench),
    /// Demonstrate and measure with real traffic
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Lab(lab::cli::Lab),
    /// Measure the data plane in memory (package weir-lab)
    #[cfg(not(feature = "lab"))]
    Bench(without_lab::Arguments),
    /// Demonstrate and measure with real traffic (package weir-lab)
    #[cfg(not(feature = "lab"))]
    Lab(without_lab::Arguments),
    /// Write the manual pages into a folder
    #[command(hide = true)]
    Man {
        /// Folder, which is created
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Print a completion script
    #[command(hide = true)]
    Complete {
        /// Shell that the script is for
        #[arg(value_enum)]
        shell: Shell,
    },
}

fn main() -> ExitCode {
    #[cfg(feature = "lab")]
    lab::host::set_commit(env!("WEIR_COMMIT"));
    match Cli::parse().command {
        Command::Gateway(command) => command.run(),
        Command::Pki(command) => command.run(),
        Command::New(command) => command.run(gateway::check::file),
        #[cfg(feature = "lab")]
        Command::Bench(command) => lab::cli::while_read(|| finish(command.run())),
        #[cfg(feature = "lab")]
        Command::Lab(command) => lab::cli::while_read(|| command.run()),
        #[cfg(not(feature = "lab"))]
        Command::Bench(arguments) => without_lab::run("bench", &arguments),
        #[cfg(not(feature = "lab"))]
        Command::Lab(arguments) => without_lab::run("lab", &arguments),
        Command::Man { folder } => {
            let edition = Edition { version: env!("CARGO_PKG_VERSION"), date: env!("WEIR_DATE") };
            match pages::write(Cli::command(), edition, &folder) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("weir: cannot write to {}: {error}", folder.display());
                    ExitCode::FAILURE
                }
            }
        }
        Command::Complete { shell } => {
            pages::complete(Cli::command(), shell, &mut std::io::stdout());
            ExitCode::SUCCESS
        }
    }
}

/// A command of the lab either did its work or says why not.
#[cfg(feature = "lab")]
fn finish(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("weir: {error:#}");
        ExitCode::FAILURE
    })
}
