//! Sandbox of a mount and a network namespace, with its own /run.
//!
//! The demonstration starts itself again in it, through `unshare`; the process stays the same one.
//! Hosts, sockets, keys and logs are created inside, so that the kernel removes them however the
//! demonstration ends. Without root a user namespace gives the privileges for it.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::TestbedError;

/// Everything that the demonstration makes while it runs.
const DIR: &str = "/run/weir-demo";

/// Mounts a private /run, and executes the arguments.
const PRIVATE_RUN: &str = "mount -t tmpfs -o mode=0755 weir-demo /run && exec \"$0\" \"$@\"; exit 2";

/// Programs and the Debian packages that bring them.
const TOOLS: [(&str, &str); 9] = [
    ("ip", "iproute2"),
    ("ping", "iputils-ping"),
    ("iperf", "iperf"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("mount", "mount"),
    ("sh", "dash"),
    ("cat", "coreutils"),
];

/// Directories searched in addition to PATH, because PATH of ordinary users often lacks them.
const ALSO: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Finds all programs, or reports the packages to install.
pub fn check_tools(path: &std::ffi::OsStr) -> Result<(), TestbedError> {
    let found = |tool: &str| std::env::split_paths(path).any(|dir| dir.join(tool).is_file());
    let missing: Vec<_> = TOOLS.iter().filter(|(tool, _)| !found(tool)).collect();
    if missing.is_empty() {
        return check_iperf();
    }
    let names: Vec<_> = missing.iter().map(|(tool, _)| *tool).collect();
    let mut packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    Err(TestbedError::Unable(format!(
        "not installed: {}; on Debian: apt install {}",
        names.join(", "),
        packages.join(" ")
    )))
}

/// iperf3 under the name of iperf speaks another language.
fn check_iperf() -> Result<(), TestbedError> {
    let version = version_of("iperf", "--version");
    if version.contains("version 2") {
        return Ok(());
    }
    Err(TestbedError::Unable(format!("'iperf' is not iperf 2 but '{version}'; on Debian: apt install iperf")))
}

/// The first line that a program prints about itself.
pub fn version_of(program: &str, argument: &str) -> String {
    let Ok(output) = Command::new(program).arg(argument).stdin(Stdio::null()).output() else { return "unknown".into() };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().next().unwrap_or("unknown").trim().to_owned()
}

/// PATH, and where administrators' programs are.
pub fn search_path() -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(ALSO.map(PathBuf::from));
    std::env::join_paths(dirs).unwrap_or(path)
}

/// Starts this program again in there, with `--inside` added. Returns only when that is impossible.
///
/// The private /run is mounted from here, between `unshare` and the new start: the started process
/// must not mount anything, so that a manual `--inside` cannot reach the host's /run.
pub fn enter(path: &std::ffi::OsStr) -> TestbedError {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return TestbedError::Unable(format!("cannot determine the path of this program: {error}")),
    };
    let failed = |error: std::io::Error| TestbedError::Unable(format!("cannot run unshare: {error}"));
    let as_root: &[&str] = &["--net", "--mount"];
    let as_user: &[&str] = &["--user", "--map-root-user", "--net", "--mount"];
    let mut refusal = String::new();
    for flags in [as_root, as_user] {
        match Command::new("unshare").args(flags).arg("true").env("PATH", path).stdin(Stdio::null()).output() {
            Err(error) => return failed(error),
            Ok(trial) if trial.status.success() => {
                let mut command = Command::new("unshare");
                command.args(flags).args(["--", "sh", "-c", PRIVATE_RUN]).arg(program);
                return failed(command.args(std::env::args_os().skip(1)).arg("--inside").env("PATH", path).exec());
            }
            Ok(trial) => refusal = String::from_utf8_lossy(&trial.stderr).trim().to_owned(),
        }
    }
    TestbedError::Unable(format!(
        "needs namespaces: run it as root, or allow user namespaces (sysctl -w kernel.unprivileged_userns_clone=1 or \
         kernel.apparmor_restrict_unprivileged_userns=0; in a container --privileged): {refusal}"
    ))
}

/// Returns an empty folder in the private /run that only we can read.
pub fn settle() -> Result<PathBuf, TestbedError> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    if !is_private(&mounts) {
        return Err(TestbedError::Unable("--inside is for internal use; remove it".into()));
    }
    let dir = PathBuf::from(DIR);
    let made = fs::DirBuilder::new().mode(0o700).create(&dir);
    made.map_err(|error| TestbedError::Unable(format!("{}: {error}", dir.display())))?;
    Ok(dir)
}

/// Enters a sandbox with TUN devices: returns an empty directory if `inside` is set; otherwise
/// starts this program again, and returns only on failure.
pub fn run_inside(inside: bool) -> Result<PathBuf, TestbedError> {
    if inside {
        return settle();
    }
    let path = search_path();
    check_tools(&path)?;
    check_tun()?;
    Err(enter(&path))
}

/// Returns whether a file at the absolute `path` inside the sandbox is removed with the private
/// /run.
pub fn hides(path: &Path) -> bool {
    path.starts_with("/run") || path.starts_with("/var/run")
}

/// The folder of `--out`, absolute, unless a private /run would hide it.
pub fn outside(out: &Path) -> Result<PathBuf, TestbedError> {
    let out = std::path::absolute(out).unwrap_or_else(|_| out.to_owned());
    if hides(&out) {
        return Err(TestbedError::Unable("--out: /run is private to the measurement; use another directory".into()));
    }
    Ok(out)
}

/// Returns whether the last mount at /run is ours.
fn is_private(mounts: &str) -> bool {
    let mut run = mounts.lines().filter(|line| line.split(' ').nth(1) == Some("/run"));
    run.next_back().is_some_and(|line| line.starts_with("weir-demo /run tmpfs"))
}

/// Checks that a TUN device can be made here.
pub fn check_tun() -> Result<(), TestbedError> {
    let path = Path::new("/dev/net/tun");
    let opened = fs::File::options().read(true).write(true).open(path);
    opened.map(drop).map_err(|error| {
        TestbedError::Unable(format!(
            "{}: {error}; 'modprobe tun' loads it, and without root it must be accessible to every user (chmod 666), in a \
             container --device {}",
            path.display(),
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_are_named_with_their_packages() {
        let error = check_tools("/nonexistent".as_ref()).unwrap_err().to_string();
        for (tool, package) in TOOLS {
            assert!(error.contains(tool) && error.contains(package), "{error}");
        }
        assert_eq!(error.matches("util-linux").count(), 1, "{error}");
    }

    #[test]
    fn what_is_kept_lies_outside() {
        for hidden in ["/run", "/run/x", "/var/run/x"] {
            let error = outside(hidden.as_ref()).unwrap_err().to_string();
            assert!(error.contains("use another directory"), "{error}");
        }
        assert_eq!(outside("/runs/x".as_ref()).unwrap(), PathBuf::from("/runs/x"));
        assert!(outside("x".as_ref()).unwrap().is_absolute());
    }

    #[test]
    fn a_stray_inside_is_refused() {
        assert!(matches!(settle(), Err(TestbedError::Unable(_))));
        let ours = "weir-demo /run tmpfs rw 0 0\n";
        assert!(is_private(&format!("tmpfs /run tmpfs rw 0 0\n{ours}x /run/netns tmpfs rw 0 0\n")));
        assert!(!is_private(&format!("{ours}tmpfs /run tmpfs rw 0 0\n")));
        assert!(!is_private("weir-demo /run/x tmpfs rw 0 0\n"));
    }
}
