//! Every fault is reported once, with position and remedy, before anything is started or written.

mod support;

use std::io::ErrorKind;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::*;

fn gateway(folder: &Folder, sa: &str) -> String {
    format!(
        "gateway {{\n state_dir = {0}/state\n socket = {0}/weir.sock\n tun = weirtest\n}}\nsas {{\n a {{\n protocol = esp\n \
         mode = transport\n local = 127.0.0.1\n remote = 127.0.0.2\n suite = aes128gcm16\n{sa} }}\n}}\n\
         policies {{\n p {{\n sa = a\n }}\n}}\n",
        folder.0.display()
    )
}

fn halves() -> String {
    let half =
        |name: &str, spi: &str, digit: &str| format!("{name} {{\n spi = {spi}\n key = 0x{}\n }}\n", digit.repeat(40));
    half("out", "0x1001", "1") + &half("in", "0x1002", "2")
}

/// Runs a command that should end by itself.
fn ends(mut command: Command) -> Output {
    let start = Instant::now();
    let mut child = loop {
        match command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
            // A copy of the program is open for writing in a child of another thread until that
            // executes its own.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && start.elapsed().as_secs() < 5 => {
                std::thread::sleep(Duration::from_millis(10));
            }
            child => break child.unwrap(),
        }
    };
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
            panic!("it was started instead of refused");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

fn up(config: &std::path::Path) -> Command {
    let mut command = weir();
    command.arg("up").arg("--config").arg(config);
    command
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:\t0\t"))
}

#[test]
fn a_bad_configuration_starts_nothing() {
    let folder = Folder::new();
    let good = halves();
    for (sa, place, words) in [
        (good.replacen("0x1001", "0xff", 1), ":14:8", "SPI 0x000000ff is reserved; choose one above 0xff"),
        (good.replacen("0x1111", "0x11", 1), ":15:8", "wrong length: 19 bytes instead of 20"),
        (format!("suite = aes512gcm16\n{good}"), ":13:9", "did you mean"),
        (format!("suite = 3des-md5\n{good}"), ":13:9", "allow_legacy"),
        (good.replacen("spi = 0x1001", "spi 0x1001", 1), ":14:2", "neither '=' nor '{'"),
        (good.replacen("}\n", "", 1), "", "not closed"),
    ] {
        let config = folder.write("weir.conf", gateway(&folder, &sa));
        let (status, stderr) = status_and_stderr(&ends(up(&config)));
        let joined: String = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(status, 2, "{stderr}");
        assert!(joined.contains(&format!("weir.conf{place}")) && joined.contains(words), "{words}:\n{stderr}");
        assert!(!folder.path("state").exists() && !folder.path("weir.sock").exists());
    }
    let twice = gateway(&folder, &halves()).replace(
        "policies {",
        &format!(
            "sas {{\n b {{\n protocol = esp\n local = 127.0.0.1\n remote = 127.0.0.3\n suite = aes128gcm16\n in {{\n \
             spi = 0x1002\n key = 0x{}\n }}\n }}\n}}\npolicies {{",
            "3".repeat(40)
        ),
    );
    let config = folder.write("weir.conf", twice);
    let (status, stderr) = status_and_stderr(&ends(up(&config)));
    assert!(status == 2 && stderr.contains("SPI 0x1002 is also used by SA 'a'"), "{stderr}");
    let (status, stderr) = status_and_stderr(&ends(up(&folder.path("missing.conf"))));
    assert!(status == 2 && stderr.contains("missing.conf") && stderr.contains("--config"), "{stderr}");
}

#[test]
fn without_privilege_it_says_which() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let folder = Folder::new();
    let config = folder.write("weir.conf", gateway(&folder, &halves()));
    std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = if is_root() {
        // The configuration holds keys, so it must belong to the user who runs weir.
        std::os::unix::fs::chown(&config, Some(65_534), Some(65_534)).unwrap();
        // Somewhere everybody may execute it.
        let binary = folder.path("weir");
        std::fs::copy(env!("CARGO_BIN_EXE_weir"), &binary).unwrap();
        let mut command = Command::new(binary);
        command.args(["up", "--config"]).arg(&config).uid(65_534).gid(65_534);
        command
    } else {
        up(&config)
    };
    command.current_dir("/");
    let (status, stderr) = status_and_stderr(&ends(command));
    assert!(status == 2 && stderr.contains("CAP_NET_RAW"), "{status} {stderr}");
    assert!(!stderr.contains("ready") && !folder.path("weir.sock").exists());
}

#[test]
fn without_a_tun_device_it_says_how_to_get_one() {
    let folder = Folder::new();
    let config = folder.write("weir.conf", gateway(&folder, &halves()));
    // A separate network namespace, and an empty, read-only /dev/net.
    let mut command = Command::new("unshare");
    let script = "ip link set lo up && mount -t tmpfs -o ro none /dev/net && exec \"$0\" up --config \"$1\"";
    command.args(["-m", "-n", "sh", "-c", script]).arg(env!("CARGO_BIN_EXE_weir")).arg(&config);
    let (status, stderr) = status_and_stderr(&ends(command));
    if !stderr.contains("weir") {
        eprintln!("skipped: no namespaces for this user here: {stderr}");
        return;
    }
    assert!(status == 2 && stderr.contains("/dev/net/tun is missing") && stderr.contains("modprobe tun"), "{stderr}");
    assert!(!folder.path("weir.sock").exists(), "the socket is still there");
}

#[test]
fn a_cut_capture_is_refused_and_nothing_is_written() {
    let folder = Folder::new();
    let sa = folder.write("sa.conf", gateway(&folder, &halves()));
    let packet = ipv4(17, &bytes("03e807d0 00080000"));
    let whole = pcap(RAW, &[packet.clone(), packet]);
    let out = folder.path("out.pcap");
    for (file, place) in [
        (whole[..whole.len() - 1].to_vec(), "after packet 1"),
        (whole[..24 + 16 + 5].to_vec(), "at its start"),
        (whole[..10].to_vec(), "at its start"),
        (b"this is no capture, it is a text".to_vec(), "at its start"),
        (Vec::new(), "at its start"),
    ] {
        let input = folder.write("in.pcap", file);
        for verb in ["seal", "open"] {
            let (status, stderr) = status_and_stderr(&transform(verb, &[], &sa, &input, &out));
            assert!(status == 2 && stderr.contains("in.pcap") && stderr.contains(place), "{status} {stderr}");
            assert_eq!(stderr.lines().count(), 1, "{stderr}");
            assert!(!out.exists());
        }
        let output = weir().args(["pcap", "inspect"]).arg(&input).output().unwrap();
        assert_eq!(status_and_stderr(&output).0, 2);
    }
    let (status, stderr) = status_and_stderr(&transform("seal", &[], &sa, &folder.path("none.pcap"), &out));
    assert!(status == 2 && stderr.contains("none.pcap"), "{stderr}");
}

#[test]
fn usage_and_absence_have_their_status() {
    let run = |args: &[&str]| status_and_stderr(&weir().args(args).output().unwrap());
    assert_eq!(run(&["up"]).0, 2);
    assert_eq!(run(&["nonsense"]).0, 2);
    assert_eq!(run(&["--help"]).0, 0);
    let folder = Folder::new();
    let (status, stderr) = run(&["status", "--socket", folder.path("none.sock").to_str().unwrap()]);
    assert!(status == 2 && stderr.contains("weir up"), "{stderr}");
    for command in [&["up"][..], &["status"], &["pcap", "seal"], &["pcap", "open"], &["pcap", "inspect"], &["doctor"]] {
        let output = weir().args(command).arg("--help").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && (text.contains("Example:") || text.contains("Examples:")),
            "{command:?}: {text}"
        );
    }
}

#[test]
fn the_doctor_speaks_json() {
    let output = weir().args(["doctor", "--json"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("\"findings\"") && text.contains("\"TUN\""), "{text}");
    assert!([Some(0), Some(1)].contains(&output.status.code()));
    assert_eq!(output.status.success(), text.contains("\"healthy\": true"));
}
