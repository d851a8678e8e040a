//! Commit that the binary is built from, with a `+` when files differed (measurements name it), and
//! the date of that commit for manual pages. SOURCE_DATE_EPOCH replaces the date outside of a
//! repository.

use std::path::Path;
use std::process::Command;

fn main() {
    // Sources that change, and a commit made of them.
    println!("cargo:rerun-if-changed=..");
    // The log changes with every commit; a fresh clone has no reflog.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--path-format=absolute", "--git-path", name]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|list| !list.is_empty());
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok().map(|seconds| format!("@{seconds}"));
    let of_epoch = epoch.and_then(|epoch| output("date", &["--utc", "--date", &epoch, "+%F"]));
    let date = of_epoch.or_else(|| git(&["log", "-1", "--format=%cs"])).unwrap_or_default();
    println!("cargo:rustc-env=WEIR_DATE={date}");
    println!("cargo:rustc-env=WEIR_COMMIT={commit}{}", if changed { "+" } else { "" });
}

fn git(arguments: &[&str]) -> Option<String> {
    output("git", arguments)
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
