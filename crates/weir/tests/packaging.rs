//! Scripts of the Debian package.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Output of `prerm remove` for the configurations `a.conf` and `b.conf`, where `weir down` fails
/// for those that contain `failing`.
fn removal(folder: &Path, failing: &str) -> String {
    let script = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/deb/prerm")).unwrap();
    let script = script
        .replace("/etc/weir", folder.to_str().unwrap())
        .replace("/run/systemd/system", folder.join("absent").to_str().unwrap());
    fs::create_dir_all(folder).unwrap();
    for name in ["a.conf", "b.conf"] {
        fs::write(folder.join(name), "").unwrap();
    }
    let weir = folder.join("weir");
    let text = format!("#!/bin/sh\ncase $2 in *{failing}) echo 'weir: cannot remove it' >&2; exit 2;; esac\n");
    fs::write(&weir, text).unwrap();
    fs::set_permissions(&weir, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh").args(["-c", &script, "prerm", "remove"]).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::remove_dir_all(folder).unwrap();
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_removal_claims_open_traffic_only_where_weir_down_succeeded() {
    let folder = std::env::temp_dir().join(format!("weir-prerm-{}", std::process::id()));
    let claim = "traffic that it protected leaves in clear text";
    let output = removal(&folder, "none");
    assert!(output.contains(claim), "{output}");
    let output = removal(&folder, "b.conf");
    assert!(!output.contains(claim), "{output}");
    let failed = format!("'weir down' failed for {}/b.conf: ", folder.display());
    assert!(output.contains("weir: cannot remove it\n") && output.contains(&failed), "{output}");
}
