//! Where programs by others are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::sandbox;

/// Names the folder that scripts/rivals.sh filled, if it is not beside that of this program.
const FOLDER: &str = "WEIR_RIVALS";

/// A program in the folder of rivals, or where programs are.
pub(super) fn program(name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(FOLDER).map(PathBuf::from);
    let folders =
        named.into_iter().chain(beside()).chain(std::env::split_paths(&sandbox::search_path()).collect::<Vec<_>>());
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// `target/rivals`, for a `target/PROFILE/weir`.
fn beside() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.parent()?.parent()?.join("rivals"))
}

/// Programs by others, each with the subject that needs it (empty: every one between hosts) and the
/// arguments that print its version.
const VERSIONS: [(&str, &str, &[&str]); 6] = [
    ("", "iperf", &["-v"]),
    ("", "ping", &["-V"]),
    ("wireguard-go", "wireguard-go", &["--version"]),
    ("boringtun", "boringtun-cli", &["--version"]),
    ("strongswan-aes128gcm16", "swanctl", &["--version"]),
    ("xfrm-aes128gcm16", "ip", &["-V"]),
];

/// Versions of the programs that these subjects use between hosts; none without subjects.
pub fn versions(subjects: &[&str]) -> Vec<String> {
    let needed = VERSIONS.iter().filter(|(subject, ..)| subject.is_empty() || subjects.contains(subject));
    let version = |(_, name, arguments): &(&str, &str, &[&str])| {
        let path = program(name)?;
        let mut command = Command::new(path);
        command.args(*arguments).env("LC_ALL", "C").stdin(Stdio::null());
        let output = command.output().ok()?;
        // iperf prints its version as an error.
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
    };
    if subjects.is_empty() { vec![] } else { needed.filter_map(version).collect() }
}

/// Output of a command, or its error output if it fails.
///
/// # Errors
/// That output; or the reason why the program cannot be started.
pub(super) fn ask(program: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C").env("PATH", sandbox::search_path()).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("cannot run {}", program.display()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { bail!(text(&output.stderr)) }
}
