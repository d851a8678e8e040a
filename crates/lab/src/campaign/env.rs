//! The machine, the program and their state: what every trial names by its hash.

use std::fs;
use std::path::Path;

use crypto::ike::Hash;
use serde::{Deserialize, Serialize};

use crate::host;

/// One environment. Properties that vary from run to run (load, steal) are stored next to the hash,
/// not in it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Environment {
    /// Hash over `fixed`, 16 hex digits; trials name it.
    pub hash: String,
    /// Properties that are constant during a run.
    pub fixed: Fixed,
    /// Ticks of the time-stamp counter per second, as measured when the run began.
    pub tsc_hz: f64,
    /// Load average over one minute when the run began.
    pub load_before: f64,
    /// Share of processor time that the hypervisor gave to others since boot, in percent.
    pub steal_percent: f64,
    /// Start, in milliseconds since 1970.
    pub at_ms: u64,
}

/// Properties that identify an environment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Fixed {
    /// Processor model.
    pub cpu: String,
    /// Family, model and stepping of the processor: many guests have no model name of their own.
    #[serde(default)]
    pub cpu_id: String,
    /// Microcode revision, if the kernel reports it.
    pub microcode: String,
    /// Processors that may run us.
    pub cpus: usize,
    /// Instruction sets that decide which code of the engine runs.
    pub isa: Vec<String>,
    /// Engine of the data plane.
    #[serde(default)]
    pub engine: String,
    /// Versions of the engines that can be used here.
    #[serde(default)]
    pub libraries: Vec<String>,
    /// Versions of the programs by others that the campaign uses.
    #[serde(default)]
    pub programs: Vec<String>,
    /// Frequency policy; `unknown` in most guests.
    pub governor: String,
    /// Hypervisor, `none` on bare metal.
    pub hypervisor: String,
    /// Kernel release.
    pub kernel: String,
    /// Active mitigations, if the kernel reports them.
    pub mitigations: Vec<String>,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Version of Weir.
    pub weir: String,
    /// Commit it was run in; `unknown` outside of a working directory.
    pub commit: String,
    /// Build profile: `release`, `demo` or `debug`.
    pub build: String,
    /// Compiler.
    #[serde(default)]
    pub compiler: String,
    /// Optimisation level and flags of the compiler.
    #[serde(default)]
    pub flags: String,
    /// SHA-256 of the program, 16 hex digits.
    pub binary: String,
}

impl Environment {
    /// That of this process.
    pub fn here() -> Self {
        Self::with(Vec::new())
    }

    /// That of this process, and of programs by others with their versions.
    pub fn with(programs: Vec<String>) -> Self {
        let fixed = Fixed { programs, ..Fixed::here() };
        let text = serde_json::to_vec(&fixed).expect("a record has string keys");
        Self {
            hash: short_hash(&text),
            fixed,
            tsc_hz: ports::clock::ticks_per_second().round(),
            load_before: load(),
            steal_percent: steal_percent(&fs::read_to_string("/proc/stat").unwrap_or_default()),
            at_ms: now_ms(),
        }
    }
}

impl Fixed {
    fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| cpu_field(&cpuinfo, name);
        let flags = field("flags").unwrap_or_default();
        let has = |flag: &str| flags.split(' ').any(|have| have == flag);
        let isa =
            ["aes", "pclmulqdq", "avx2", "avx512f", "vaes", "vpclmulqdq", "sha_ni"].into_iter().filter(|f| has(f));
        let program = std::env::current_exe().ok().and_then(|path| fs::read(path).ok()).unwrap_or_default();
        Self {
            cpu: host::cpu_model(),
            cpu_id: ["cpu family", "model", "stepping"]
                .iter()
                .filter_map(|name| Some(format!("{} {}", name.trim_start_matches("cpu "), field(name)?)))
                .collect::<Vec<_>>()
                .join(", "),
            microcode: field("microcode").unwrap_or_else(|| "unknown".into()),
            cpus: host::cpus(),
            isa: isa.map(str::to_owned).collect(),
            engine: crypto::Engine::best().name().to_owned(),
            libraries: crypto::Engine::real().map(library).collect(),
            programs: Vec::new(),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            hypervisor: hypervisor(has("hypervisor")),
            kernel: testbed::kernel(),
            mitigations: mitigations(Path::new("/sys/devices/system/cpu/vulnerabilities")),
            memory_mib: host::memory_bytes() >> 20,
            weir: env!("CARGO_PKG_VERSION").into(),
            commit: host::commit(),
            build: env!("WEIR_BUILD_PROFILE").into(),
            compiler: env!("WEIR_COMPILER").into(),
            flags: env!("WEIR_COMPILER_FLAGS").trim().into(),
            binary: short_hash(&program),
        }
    }
}

/// An engine with the version of its library.
fn library(engine: crypto::Engine) -> String {
    match engine {
        crypto::Engine::AwsLc => format!("{} (aws-lc-sys {})", engine.describe(), env!("WEIR_AWS_LC")),
        _ => engine.describe(),
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

/// The first 16 hex digits of SHA-256.
pub fn short_hash(bytes: &[u8]) -> String {
    Hash::Sha256.digest(&[bytes]).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn cpu_field(cpuinfo: &str, name: &str) -> Option<String> {
    let value = |line: &str| Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim().to_owned());
    cpuinfo.lines().find_map(value)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

fn hypervisor(flag: bool) -> String {
    if !flag {
        return "none".into();
    }
    let product = read("/sys/class/dmi/id/product_name");
    if product == "unknown" { "present".into() } else { product }
}

fn mitigations(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<String> = entries
        .filter_map(|entry| {
            let text = fs::read_to_string(entry.path()).ok()?;
            text.starts_with("Mitigation").then(|| entry.file_name().to_string_lossy().into_owned())
        })
        .collect();
    found.sort();
    found
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// The eighth figure of the line `cpu` over all of them.
fn steal_percent(stat: &str) -> f64 {
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    let all: f64 = ticks.iter().sum();
    if ticks.len() == 8 && all > 0.0 { ticks[7] / all * 100.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_shares_are_read() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A & B\nmicrocode\t: 0x1\nflags\t\t: fpu aes hypervisor\n";
        assert_eq!(cpu_field(cpuinfo, "microcode").as_deref(), Some("0x1"));
        assert_eq!(cpu_field(cpuinfo, "flags").as_deref(), Some("fpu aes hypervisor"));
        assert_eq!(steal_percent("cpu  10 0 10 60 0 0 0 20 0 0\n"), 20.0);
        assert_eq!(steal_percent(""), 0.0);
    }

    #[test]
    fn a_record_names_processor_compiler_and_libraries() {
        let fixed = Fixed::here();
        assert!(fixed.compiler.starts_with("rustc ") && fixed.flags.starts_with("-O"), "{fixed:?}");
        assert!(fixed.libraries.iter().any(|text| text.contains("aws-lc-sys 0.")), "{:?}", fixed.libraries);
        assert!(fixed.cpu_id.is_empty() || fixed.cpu_id.contains("model"), "{}", fixed.cpu_id);
        let other = Environment::with(vec!["iperf 2.1".into()]);
        assert_ne!(other.hash, Environment::here().hash);
    }

    /// NIST FIPS 180-2, appendix B.1.
    #[test]
    fn the_hash_is_sha_256() {
        assert_eq!(short_hash(b"abc"), "ba7816bf8f01cfea");
    }

    #[test]
    fn two_readings_of_one_machine_are_equal() {
        assert_eq!(Fixed::here(), Fixed::here());
    }
}
