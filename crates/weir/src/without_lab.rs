//! `weir lab` and `weir bench` of a binary that was built without the lab: the program of the
//! package weir-lab is started.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;

/// Whatever follows the name of the command.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// Arguments of the lab
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

/// Where the other program is: `/usr/libexec/weir/weir` for `/usr/bin/weir`.
fn program() -> Option<PathBuf> {
    let prefix = std::env::current_exe().ok()?.parent()?.parent()?.to_owned();
    Some(prefix.join("libexec/weir/weir"))
}

/// Replaces this process by the other program.
pub(crate) fn run(command: &str, arguments: &Arguments) -> ExitCode {
    let program = program().unwrap_or_else(|| "weir-lab".into());
    let error = Command::new(&program).arg0("weir").arg(command).args(&arguments.rest).exec();
    eprintln!("weir: '{command}' needs the package weir-lab: cannot start {}: {error}", program.display());
    ExitCode::from(2)
}
