//! The machine of a measurement, and its load.

pub mod clock;
pub mod cpu;
mod energy;
mod gauge;
mod observer;
mod perf;
mod stack;

use std::fs;
use std::sync::OnceLock;

pub use energy::Energy;
pub use gauge::{Contention, Gauge};
pub use observer::{Finding, Observer, Window, examine};
pub use perf::Perf;
pub use stack::at_depth;

/// A source of figures that this machine or user does not have: the reason.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub(crate) String);

/// Processor model, from /proc/cpuinfo.
pub fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, v)| v.trim()));
    model.unwrap_or("unknown").to_owned()
}

/// Resident memory of this process in bytes.
pub fn resident_bytes() -> u64 {
    field_bytes("/proc/self/status", "VmRSS:")
}

/// Resident memory of a process in bytes; 0 when it is gone.
pub fn resident_bytes_of(pid: u32) -> u64 {
    field_bytes(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// Memory of the machine in bytes.
pub fn memory_bytes() -> u64 {
    field_bytes("/proc/meminfo", "MemTotal:")
}

/// Memory that programs may still take, in bytes.
pub fn available_bytes() -> u64 {
    field_bytes("/proc/meminfo", "MemAvailable:")
}

/// A field in kB of a file of the kernel; 0 without one.
fn field_bytes(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

/// Processors that may run us.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The commit of the build, as set by [`set_commit`]; `unknown` in tests and without a repository.
pub fn commit() -> String {
    COMMIT.get().map_or("unknown", |commit| commit).to_owned()
}

/// Sets the commit. Called once by the binary crate, which alone is built from all sources.
pub fn set_commit(commit: &'static str) {
    // A second call changes nothing.
    let _ = COMMIT.set(commit);
}

static COMMIT: OnceLock<&str> = OnceLock::new();
