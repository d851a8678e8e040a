//! Runs of commands by the helper, and which Child SAs belong to one run.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::helper::{Allowed, Runner};
use super::*;

/// Reports of the messages.
fn runs(limit: Duration, config: Option<&Path>, messages: &[Value]) -> Vec<Value> {
    let mut output = Vec::new();
    let mut runner = Runner::new(Allowed::new(config), &mut output);
    runner.run_max = limit;
    messages.iter().for_each(|message| runner.message(&message.to_string()));
    String::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn up(run: u64, command: &str, pairs: Value) -> Value {
    json!({ "up": run, "name": "net.net", "command": command, "local": "127.0.0.1", "pairs": pairs })
}

const LONG: Duration = Duration::from_secs(20);

fn output(report: &Value) -> Vec<&str> {
    report["output"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect()
}

#[test]
fn a_command_runs_for_each_pair_up_and_down_in_reverse() {
    let pair = |verb: &str, client: &str| json!([["PLUTO_VERB", verb], ["PLUTO_PEER_CLIENT", client]]);
    let pairs = json!([pair("up-client", "10.2.0.0/24"), pair("up-client-v6", "2001:db8::/64")]);
    let command = "echo $PLUTO_VERB $PLUTO_PEER_CLIENT $PLUTO_INTERFACE";
    let reports = runs(LONG, None, &[up(7, command, pairs), json!({ "down": 7 }), json!({ "down": 7 })]);
    let lines: Vec<&str> = reports.iter().flat_map(output).collect();
    assert_eq!(
        lines,
        [
            "up-client 10.2.0.0/24 lo",
            "up-client-v6 2001:db8::/64 lo",
            "down-client-v6 2001:db8::/64 lo",
            "down-client 10.2.0.0/24 lo"
        ]
    );
    assert!(reports.iter().all(|report| report["outcome"] == "ok"));
}

#[test]
fn values_never_become_part_of_the_command() {
    let marker = std::env::temp_dir().join(format!("weir-updown-{}", std::process::id()));
    let id = format!("CN=$(touch {0}); touch {0} `touch {0}`' \" \\", marker.display());
    let pairs = json!([[["PLUTO_VERB", "up-host"], ["PLUTO_PEER_ID", id]]]);
    let reports = runs(LONG, None, &[up(1, "printf '%s\\n' \"$PLUTO_PEER_ID\"; env | wc -l", pairs)]);
    assert_eq!(output(&reports[0])[0], id);
    assert!(!marker.exists(), "a value was run");
    // PATH, the two variables, the interface, and what a shell sets itself.
    let variables: usize = output(&reports[0])[1].trim().parse().unwrap();
    assert!((4..=7).contains(&variables), "the environment of the daemon is not passed on: {variables}");
}

#[test]
fn a_command_that_hangs_is_ended_with_its_children() {
    let pairs = json!([[["PLUTO_VERB", "up-client"]]]);
    let begun = Instant::now();
    let reports = runs(Duration::from_millis(300), None, &[up(1, "echo begun; sleep 600 & sleep 600", pairs)]);
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!((&reports[0]["outcome"], output(&reports[0])), (&json!("timeout"), vec!["begun"]));
}

#[test]
fn a_process_left_in_the_background_delays_nothing_and_can_write_on() {
    let folder = std::env::temp_dir().join(format!("weir-updown-left-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let pairs = json!([[["PLUTO_VERB", "up-client"]]]);
    // Writes more than a pipe holds, after the command has ended.
    let left = format!(
        "cd {}; (until [ -e go ]; do sleep 0.02; done; head -c 300000 /dev/zero && echo > done) & echo last",
        folder.display()
    );
    let reports = runs(LONG, None, &[up(1, &left, pairs)]);
    assert_eq!((&reports[0]["outcome"], output(&reports[0])), (&json!("ok"), vec!["last"]));
    std::fs::write(folder.join("go"), "").unwrap();
    let begun = Instant::now();
    while !folder.join("done").exists() {
        assert!(begun.elapsed() < LONG, "the process in the background was blocked or ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn failures_and_long_output_are_reported_within_limits() {
    let pairs = json!([[["PLUTO_VERB", "up-client"]]]);
    let reports = runs(LONG, None, &[up(1, "exit 3", pairs.clone()), up(2, "kill -9 $$", pairs.clone())]);
    assert_eq!((&reports[0]["outcome"], &reports[0]["why"]), (&json!("failed"), &json!("exit status 3")));
    assert_eq!(reports[1]["why"], "ended by signal 9");
    let noisy = "yes \"$(head -c 3000 /dev/zero | tr '\\0' x)\" | head -n 20000; printf '\\033[2J'";
    let reports = runs(LONG, None, &[up(1, noisy, pairs)]);
    let lines = output(&reports[0]);
    assert_eq!(reports[0]["outcome"], "ok", "{:?}", reports[0]);
    assert!(lines.len() <= 50 && lines.iter().all(|line| line.len() <= 256), "{}", lines.len());
}

#[test]
fn only_commands_of_the_configuration_file_run() {
    let folder = std::env::temp_dir().join(format!("weir-updown-conf-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file: PathBuf = folder.join("weir.conf");
    let with =
        |command: &str| format!("connections {{\n a {{\n children {{\n b {{\n updown = {command}\n }}\n }}\n }}\n}}\n");
    std::fs::write(&file, with("echo mine")).unwrap();
    let pairs = json!([[["PLUTO_VERB", "up-client"]]]);
    let mut output = Vec::new();
    let mut runner = Runner::new(Allowed::new(Some(&file)), &mut output);
    runner.message(&up(1, "echo mine", pairs.clone()).to_string());
    runner.message(&up(2, "echo other", pairs.clone()).to_string());
    // A reload: the helper reads the file again by itself.
    std::fs::write(&file, with("echo other")).unwrap();
    runner.message(&up(3, "echo other", pairs).to_string());
    let outcomes: Vec<Value> =
        String::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let outcomes: Vec<&str> = outcomes.iter().map(|report| report["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["ok", "refused", "ok"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_is_up_at_the_end_is_taken_down() {
    let pairs = json!([[["PLUTO_VERB", "up-client"]]]);
    let input =
        format!("{}\nnonsense\n{}\n", up(1, "echo $PLUTO_VERB", pairs.clone()), up(2, "echo $PLUTO_VERB", pairs));
    let mut output = Vec::new();
    run_helper(None, input.as_bytes(), &mut output);
    let text = String::from_utf8(output).unwrap();
    assert_eq!((text.matches("[\"up-client\"]").count(), text.matches("[\"down-client\"]").count()), (2, 2), "{text}");
}

#[test]
fn child_sas_that_replace_one_another_are_one_run() {
    let mut updown = Updown::idle(Path::new("/nonexistent"), true);
    let (messages, queue) = sync_channel(8);
    let process = Command::new("true").spawn().unwrap();
    updown.helper = Some(Helper { process, pipes: None, messages: Some(messages) });
    updown.join(ChildId(1), 1);
    // A rekeying, and one that collided with it and lost.
    updown.join(ChildId(2), 1);
    updown.join(ChildId(3), 1);
    updown.down(ChildId(1));
    updown.down(ChildId(3));
    updown.down(ChildId(9));
    assert!(queue.try_recv().is_err(), "a successor is up");
    updown.down(ChildId(2));
    assert_eq!(queue.try_recv().unwrap(), "{\"down\":1}");
    assert!(updown.runs.is_empty() && updown.members.is_empty());
    // A full queue is reported, and nothing waits.
    for _ in 0..8 {
        assert!(updown.send("net", json!({})));
    }
    assert!(!updown.send("net", json!({})));
    assert!(runs_of("dropped") >= 1);
}

fn runs_of(outcome: &str) -> u64 {
    super::runs().find(|(name, _)| *name == outcome).unwrap().1
}
