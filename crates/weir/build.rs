//! Tells the binary which commit it is built from, with a `+` behind it when files differed: measurements name it.

use std::path::Path;
use std::process::Command;

fn main() {
    // Sources that change, and a commit made of them.
    println!("cargo:rerun-if-changed=..");
    // The log changes with every commit; a clone of which nothing is logged yet has none.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--path-format=absolute", "--git-path", name]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|list| !list.is_empty());
    println!("cargo:rustc-env=WEIR_COMMIT={commit}{}", if changed { "+" } else { "" });
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
