//! The one binary: the commands of the gateway and of the lab. No logic.

#[cfg(feature = "pages")]
mod pages;
#[cfg(all(test, feature = "lab"))]
mod tests;
#[cfg(not(feature = "lab"))]
mod without_lab;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Userspace IPsec gateway (ESP, AH, EESP, PSP), and the lab that measures it
#[derive(Debug, Parser)]
#[command(
    name = "weir",
    version,
    about,
    after_help = "Examples:\n  weir check && weir up\n  weir status\n  weir initiate net\n\n\
                  Options and examples of a command: weir COMMAND --help"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Gateway(gateway::cli::Command),
    /// Issue certificates: a CA in a folder, revocation, files for other systems
    #[command(
        subcommand,
        after_help = "Examples:\n  weir pki ca --name 'Example CA'\n  weir pki issue --server --id vpn.example.org"
    )]
    Pki(pki::cli::Pki),
    /// Create configuration and certificates for both ends of a common setup
    #[command(subcommand, after_help = "Example:\n  weir new site-to-site office")]
    New(pki::setup::New),
    /// Measure the data plane in memory
    #[cfg(feature = "lab")]
    #[command(subcommand, after_help = "Example:\n  weir bench path")]
    Bench(lab::cli::Bench),
    /// Demonstrate and measure with real traffic
    #[cfg(feature = "lab")]
    #[command(subcommand, after_help = "Examples:\n  weir lab demo\n  weir lab run --preset quick --out run1")]
    Lab(lab::cli::Lab),
    /// Measure the data plane in memory (package weir-lab)
    #[cfg(not(feature = "lab"))]
    Bench(without_lab::Arguments),
    /// Demonstrate and measure with real traffic (package weir-lab)
    #[cfg(not(feature = "lab"))]
    Lab(without_lab::Arguments),
    #[cfg(feature = "pages")]
    #[command(flatten)]
    Pages(pages::WritePages),
}

fn main() -> ExitCode {
    #[cfg(feature = "lab")]
    lab::host::set_commit(env!("WEIR_COMMIT"));
    match Cli::parse().command {
        Command::Gateway(command) => command.run(),
        Command::Pki(command) => command.run(),
        Command::New(command) => command.run(|path| Ok(gateway::check::file(path)?)),
        #[cfg(feature = "lab")]
        Command::Bench(command) => lab::cli::while_read(|| finish(command.run())),
        #[cfg(feature = "lab")]
        Command::Lab(command) => lab::cli::while_read(|| command.run()),
        #[cfg(not(feature = "lab"))]
        Command::Bench(arguments) => without_lab::run("bench", &arguments),
        #[cfg(not(feature = "lab"))]
        Command::Lab(arguments) => without_lab::run("lab", &arguments),
        #[cfg(feature = "pages")]
        Command::Pages(command) => command.run(<Cli as clap::CommandFactory>::command()),
    }
}

/// Exit status of a command of the lab; its error is printed.
#[cfg(feature = "lab")]
fn finish(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("weir: {error:#}");
        ExitCode::FAILURE
    })
}
