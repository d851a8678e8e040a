//! Names the build profile, the compiler and linked libraries for reports: figures of a debug
//! build, or of one without LTO, are not those of a release.

use std::path::Path;
use std::process::Command;

fn main() {
    // TARGET_DIR/[TRIPLE/]PROFILE/build/PACKAGE/out; the profile `dev` is in `debug`.
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let out = variable("OUT_DIR");
    let profile = Path::new(&out).ancestors().nth(3).and_then(Path::file_name).and_then(|name| name.to_str());
    println!("cargo:rustc-env=WEIR_BUILD_PROFILE={}", profile.unwrap_or("unknown"));
    let version = Command::new(variable("RUSTC")).arg("--version").output().ok();
    let version = version.and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    // Those that replace paths name the folder of the build: a package would differ by it.
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    let flags: Vec<_> = flags.split('\u{1f}').filter(|flag| !flag.starts_with("--remap-path-prefix=")).collect();
    println!("cargo:rustc-env=WEIR_COMPILER={}", version.trim());
    println!("cargo:rustc-env=WEIR_COMPILER_FLAGS=-O{} {}", variable("OPT_LEVEL"), flags.join(" ").trim());
    let lock = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    let text = std::fs::read_to_string(&lock).unwrap_or_default();
    println!("cargo:rustc-env=WEIR_AWS_LC={}", locked(&text, "aws-lc-sys").unwrap_or("unknown"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={}", lock.display());
}

/// Version of a package in a lock file.
fn locked<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let after = lock.split(&format!("name = \"{package}\"\nversion = \"")).nth(1)?;
    after.split('"').next()
}
