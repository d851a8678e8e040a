//! Results from elsewhere and of two builds, through the command line: exit status, one clear
//! error, files.

mod support;

use std::process::{Output, Stdio};

use support::*;

fn lab(arguments: &[&str]) -> Output {
    weir().arg("lab").args(arguments).output().expect("it starts")
}

/// The one line of error of a command that ended with status 2.
fn refusal(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(output.stdout.is_empty() && stderr.trim_end().lines().count() == 1, "{stderr}");
    stderr
}

fn thesis(file: &str) -> String {
    format!("{}/../../testing/data/thesis/{file}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn an_import_prints_its_analysis_and_writes_trials() {
    let folder = Folder::new();
    let out = folder.0.join("out");
    let files = ["esp.csv", "esp_send_cpu.csv", "esp_recv_cpu.csv"].map(thesis);
    let [a, b, c] = files.each_ref().map(String::as_str);
    let output = lab(&["import", a, b, c, "--out", out.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("mean 0.98752363 Gbit/s"), "{text}");
    assert!(text.contains("2.854 core-seconds per Gbit"), "{text}");
    let trials = std::fs::read_to_string(out.join("trials.jsonl")).unwrap();
    assert_eq!(trials.lines().count(), 600);
    let series = std::fs::read_to_string(out.join("series.csv")).unwrap();
    assert_eq!(series.lines().count(), 1 + 600 * 9 + 2 * 313 * 8);
    assert!(std::fs::read_to_string(out.join("analysis.json")).unwrap().contains("\"core_s_per_gbit\""));
}

#[test]
fn a_file_in_a_wrong_unit_is_refused_in_one_line() {
    let folder = Folder::new();
    let good = std::fs::read_to_string(thesis("pcpu.csv")).unwrap();
    let wrong = folder.0.join("wrong.csv");
    std::fs::write(&wrong, good.replacen(",574620160", ",71827520", 1)).unwrap();
    let stderr = refusal(&lab(&["import", wrong.to_str().unwrap()]));
    assert!(stderr.contains("wrong.csv:1: 71827520 bytes in 1.0 s are 574620160 bit/s"), "{stderr}");
    assert!(stderr.contains("the unit is bytes per second"), "{stderr}");
    std::fs::write(&wrong, "").unwrap();
    assert!(refusal(&lab(&["import", wrong.to_str().unwrap()])).contains("wrong.csv: the file is empty; expected"));
}

#[test]
fn runs_that_cannot_be_compared_are_refused_in_one_line() {
    let folder = Folder::new();
    let out = folder.0.join("out");
    let (esp, out) = (thesis("esp.csv"), out.to_str().unwrap());
    assert!(lab(&["import", &esp, "--out", out]).status.success());
    let trials = folder.0.join("out/trials.jsonl");
    let good = std::fs::read_to_string(&trials).unwrap();
    std::fs::write(&trials, &good[..good.len() - 30]).unwrap();
    assert!(refusal(&lab(&["compare", out, out])).contains("trials.jsonl:600: truncated line"));
    assert!(refusal(&lab(&["compare", out])).contains("a single run requires --subjects"));
    assert!(refusal(&lab(&["compare", "/nonexistent", out])).contains("/nonexistent: No such file"));
    std::fs::write(&trials, &good).unwrap();
    let one_session = lab(&["compare", out, out]);
    assert!(one_session.status.success(), "{}", String::from_utf8_lossy(&one_session.stderr));
}

/// Two processes of this build take turns. What the ratio is does not matter here: the machine may
/// be busy.
#[test]
fn two_builds_are_measured_side_by_side() {
    let folder = Folder::new();
    let out = folder.0.join("out");
    let this = env!("CARGO_BIN_EXE_weir");
    let short = ["--size", "64", "--sessions", "2", "--rounds", "1", "--block", "0.1", "--out", out.to_str().unwrap()];
    let output = lab(&[&["compare", "--binaries", this, this, "--json"], &short[..]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{stderr}");
    let json = std::fs::read_to_string(out.join("comparison.json")).unwrap();
    assert_eq!(json.trim(), String::from_utf8_lossy(&output.stdout).trim());
    for case in ["esp tunnel aes128gcm16 64 out", "esp transport aes128gcm16 64 in"] {
        assert!(json.contains(case), "{json}");
    }
    assert!(std::fs::read_to_string(out.join("forest.svg")).unwrap().starts_with("<svg"));
    assert!(
        refusal(&lab(&["compare", "--binaries", this, "/bin/false"])).contains("/bin/false ended: it printed nothing")
    );
}

#[test]
fn a_reader_that_has_gone_ends_a_command_in_silence() {
    let mut child = weir().args(["lab", "subjects"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(141), ""));
}
