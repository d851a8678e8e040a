//! The machine that a result was measured on, and what it did meanwhile.

pub mod clock;
pub mod cpu;
mod energy;
mod observer;
mod perf;

use std::fs;

pub use energy::Energy;
pub use observer::{Finding, Observer, Window, examine};
pub use perf::Perf;

/// Processor model, from /proc/cpuinfo.
pub fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, v)| v.trim()));
    model.unwrap_or("unknown").to_owned()
}

/// Processors that may run us.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The commit of the working directory, `unknown` outside of one; with `+` when it was changed since.
pub fn commit() -> String {
    let git = |args: &[&str]| {
        let output = std::process::Command::new("git").args(args).stderr(std::process::Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|list| !list.is_empty());
    format!("{commit}{}", if changed { "+" } else { "" })
}

/// Kernel release.
pub fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(|_| "unknown".to_owned(), |s| s.trim().to_owned())
}
