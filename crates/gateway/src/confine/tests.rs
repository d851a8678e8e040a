//! Confinement cannot be undone: each test runs this test program again as a separate process.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

const FOLDER: &str = "WEIR_TEST_CONFINED";

/// A folder that goes with its owner.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-confine-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        for below in ["etc", "state", "run", "other"] {
            fs::create_dir_all(path.join(below)).unwrap();
        }
        fs::write(path.join("etc/weir.conf"), "gateway {\n}\n").unwrap();
        fs::write(path.join("other/file"), "text").unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs an ignored test of this file in its own process and forwards its output.
fn alone(test: &str, folder: &Path) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "--test-threads=1", &format!("confine::tests::{test}")])
        .env(FOLDER, folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    print!("{text}");
    assert!(output.status.success() && text.contains("1 passed"), "{test}: {:?}\n{text}", output.status);
}

fn folder() -> PathBuf {
    std::env::var_os(FOLDER).expect("run by another test").into()
}

fn needs(at: &Path) -> Needs {
    let one = |below: &str| BTreeSet::from([at.join(below)]);
    Needs { read: one("etc"), write: one("state"), sockets: one("run"), ..Needs::default() }
}

fn refused<T>(result: std::io::Result<T>, what: &str) {
    match result {
        Ok(_) => panic!("{what} is possible"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{what}: {error}"),
    }
}

#[test]
fn needed_things_work_and_others_fail() {
    let folder = Folder::new("all");
    alone("confined", &folder.0);
}

#[test]
#[ignore = "confines the process: run by needed_things_work_and_others_fail"]
fn confined() {
    let at = folder();
    let groups = BTreeSet::from([4321]);
    let root = rustix::process::geteuid().is_root();
    let confinement = enter(&Needs { groups, ..needs(&at) });
    println!("{:?}\n{:?}\n{:?}", confinement.privileges, confinement.files, confinement.calls);
    needed_works(&at);
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let caps = |set: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    for set in ["CapEff:", "CapPrm:", "CapInh:"] {
        assert_eq!(caps(set) & !0x3400, 0, "{set} has more than it needs");
    }
    assert_eq!((caps("CapInh:"), caps("CapAmb:")), (0, 0), "a program could have them");
    assert!(!root || caps("CapBnd:") & !0x3400 == 0, "a child could have more");
    assert!(status.lines().any(|line| line == "NoNewPrivs:\t1"), "{status}");
    if matches!(confinement.files, Part::Absent(_)) {
        println!("SKIPPED: Landlock: {:?}", confinement.files);
    } else {
        others_fail(&at);
    }
    if root {
        // What of root's privileges was left would show here: a socket file for a group.
        let socket = at.join("run/group.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let given = rustix::fs::chown(&socket, None, Some(rustix::fs::Gid::from_raw(4321)));
        // Not in a namespace without that group.
        println!("socket for a group: {given:?}");
        let taken = rustix::fs::chown(&socket, Some(rustix::fs::Uid::from_raw(65_534)), None);
        assert!(taken.is_err(), "CAP_CHOWN is gone");
    }
}

/// State files, sockets, routes, the kernel's files, and threads that are born later.
fn needed_works(at: &Path) {
    assert!(fs::read_to_string(at.join("etc/weir.conf")).is_ok());
    let (new, state) = (at.join("state/number.new"), at.join("state/number"));
    fs::write(&new, "1").unwrap();
    fs::File::options().write(true).truncate(true).open(&new).unwrap();
    fs::rename(&new, &state).unwrap();
    fs::create_dir(at.join("state/below")).unwrap();
    fs::remove_file(&state).unwrap();
    let socket = at.join("run/weir.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::scope(|scope| {
        let _ = scope.spawn(|| std::os::unix::net::UnixStream::connect(&socket).unwrap());
        listener.accept().unwrap();
    });
    fs::remove_file(&socket).unwrap();
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter").is_ok());
    assert!(std::thread::available_parallelism().is_ok());
    let setting = "/proc/sys/net/ipv4/conf/lo/rp_filter";
    if rustix::process::geteuid().is_root() {
        // Opened with O_TRUNC, as for the device.
        let value = fs::read(setting).unwrap();
        fs::write(setting, value).expect("settings of devices are written");
    }
    crate::routes::host_addresses().expect("the kernel lists addresses");
    if fs::read_to_string("/proc/thread-self/status").unwrap().contains("CapEff:\t0000000000003400") {
        let addr = std::net::Ipv4Addr::new(127, 119, 101, 105).into();
        crate::routes::device_address("lo", addr, true).expect("addresses are set");
        crate::routes::device_address("lo", addr, false).expect("and removed");
    }
}

/// Accesses that Landlock forbids.
fn others_fail(at: &Path) {
    refused(fs::read(at.join("other/file")), "reading elsewhere");
    refused(fs::write(at.join("etc/weir.conf"), ""), "writing the configuration");
    refused(fs::write(at.join("other/new"), ""), "a file elsewhere");
    refused(fs::read("/etc/shadow"), "reading /etc/shadow");
    refused(fs::File::options().append(true).open("/etc/shadow"), "writing /etc/shadow");
    refused(fs::write(at.join("run/file"), ""), "a file among sockets");
    refused(Command::new("/bin/sh").args(["-c", "true"]).status(), "a shell");
    refused(fs::File::options().write(true).open("/proc/sys/kernel/core_pattern"), "the kernel's settings");
    let elsewhere = std::thread::spawn(|| fs::read("/etc/shadow").err().map(|error| error.kind())).join().unwrap();
    assert_eq!(elsewhere, Some(ErrorKind::PermissionDenied), "a thread that is born later");
    let parent = rustix::process::getppid().expect("a parent");
    println!("signal to the parent: {:?}", rustix::process::test_kill_process(parent));
}

#[test]
fn what_only_the_start_needs_fails_afterwards() {
    let folder = Folder::new("started");
    alone("after_start", &folder.0);
}

#[test]
#[ignore = "confines the process: run by what_only_the_start_needs_fails_afterwards"]
fn after_start() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;
    let at = folder();
    let outside = UnixListener::bind(at.join("other/service")).unwrap();
    let locked = lock_memory();
    let confinement = enter(&needs(&at));
    let (file, mode) = (at.join("state/number"), fs::Permissions::from_mode(0o4755));
    fs::write(&file, "1").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("at the start");
    let before = std::thread::spawn({
        let (file, mode) = (file.clone(), mode.clone());
        move || {
            std::thread::sleep(std::time::Duration::from_millis(200));
            fs::set_permissions(file, mode)
        }
    });
    confinement.started();
    if matches!(confinement.calls, Part::Absent(_)) {
        println!("SKIPPED: seccomp: {:?}", confinement.calls);
        return;
    }
    refused(fs::set_permissions(&file, mode.clone()), "a set-user-ID file");
    refused(before.join().unwrap(), "the same by a thread from before");
    refused(fs::set_permissions(at.join("other/file"), mode), "the mode of a file elsewhere");
    refused(std::os::unix::fs::chown(&file, Some(0), Some(0)), "an owner");
    refused(fs::hard_link(&file, at.join("state/link")), "a further name");
    refused(std::os::unix::fs::symlink("/etc/shadow", at.join("state/link")), "a symbolic link");
    refused(UnixStream::connect(at.join("other/service")), "the socket of a service");
    drop(outside);
    // What goes on: state files, UDP, netlink.
    fs::rename(&file, at.join("state/other")).unwrap();
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    crate::routes::host_addresses().expect("the kernel lists addresses");
    if let Part::Absent(why) = locked {
        println!("SKIPPED: memory: {why}");
        return;
    }
    let kib = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let first = kib();
    let keys = std::hint::black_box(vec![7_u8; 8 << 20]);
    assert!(first > 0 && kib() >= first + (8 << 10) - 64, "memory that is allocated later: {first} {}", kib());
    drop(keys);
}

#[test]
fn the_helper_for_names_reads_what_resolvers_read() {
    let folder = Folder::new("lookup");
    alone("lookup", &folder.0);
}

#[test]
#[ignore = "confines the process: run by the_helper_for_names_reads_what_resolvers_read"]
fn lookup() {
    let at = folder();
    let root = rustix::process::geteuid().is_root();
    let secret = at.join("etc/weir.conf");
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let parts = enter_lookup();
    println!("{parts:?}");
    assert!(std::net::ToSocketAddrs::to_socket_addrs(&("localhost", 1)).is_ok(), "the resolver");
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    if root && matches!(parts[0], Part::Full(_)) {
        assert!(status.contains("Uid:\t65534\t65534\t65534\t65534"), "{status}");
        refused(fs::read("/etc/shadow"), "a file of root's");
    }
    if matches!(parts[1], Part::Absent(_)) {
        println!("SKIPPED: Landlock: {:?}", parts[1]);
    } else {
        refused(fs::read(&secret), "a configuration");
        refused(fs::read(at.join("other/file")), "reading elsewhere");
        refused(fs::write("/tmp/of-the-helper", ""), "writing");
        refused(Command::new("/bin/true").status(), "a program");
    }
}

#[test]
fn calls_without_use_fail_with_all_privileges_left() {
    let folder = Folder::new("calls");
    alone("only_calls", &folder.0);
}

#[test]
#[ignore = "confines the process: run by calls_without_use_fail_with_all_privileges_left"]
fn only_calls() {
    let (ready, go) = std::sync::mpsc::channel::<()>();
    let before = std::thread::spawn(move || {
        go.recv().unwrap();
        rustix::system::sethostname(rustix::system::uname().nodename().to_bytes())
    });
    rustix::thread::set_no_new_privs(true).unwrap();
    let part = calls::restrict_all_but_programs();
    if matches!(part, Part::Absent(_)) {
        println!("SKIPPED: seccomp: {part:?}");
        return;
    }
    ready.send(()).unwrap();
    assert_eq!(before.join().unwrap(), Err(rustix::io::Errno::PERM), "threads from before are covered");
    for family in [libc::AF_ALG, libc::AF_TIPC].map(|family| rustix::net::AddressFamily::from_raw(family as u16)) {
        let socket = rustix::net::socket(family, rustix::net::SocketType::SEQPACKET, None);
        assert_eq!(socket.err(), Some(rustix::io::Errno::PERM));
    }
    // Children are covered too, and calls that have no safe wrapper are made by them.
    let says = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().ok()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        Some((output.status.success(), text))
    };
    for (program, args) in [("mount", &["-t", "tmpfs", "none", "/mnt"][..]), ("unshare", &["-n", "true"])] {
        match says(program, args) {
            Some((worked, text)) => assert!(!worked, "{program}: {text}"),
            None => println!("SKIPPED: no {program} here"),
        }
    }
    if cfg!(target_arch = "x86_64") {
        by_number(says);
    } else {
        println!("SKIPPED: numbers of calls are those of x86-64");
    }
    assert!(says("true", &[]).is_some_and(|(worked, _)| worked), "programs start up to here");
    calls::restrict_programs();
    let later = std::thread::spawn(|| Command::new("true").status()).join().unwrap();
    refused(Command::new("true").status(), "a program");
    refused(later, "a program, by a thread that is born later");
}

fn by_number(says: impl Fn(&str, &[&str]) -> Option<(bool, String)>) {
    // ptrace, mount, bpf, clone3, clone with a namespace, mount by its x32 number; getpid.
    for (call, errno) in [
        ("101,0,0,0,0", "1"),
        ("165,0,0,0,0,0", "1"),
        ("321,0,0,0", "1"),
        ("435,0,0", "38"),
        ("56,0x10000000,0,0,0,0", "1"),
        ("0x400000a5,0,0,0,0,0", "1"),
        ("39", "0"),
    ] {
        let script = format!("$! = 0; syscall({call}); print $!+0");
        match says("perl", &["-e", &script]) {
            Some((_, text)) => assert_eq!(text, errno, "syscall({call})"),
            None => println!("SKIPPED: no perl here"),
        }
    }
}

#[test]
fn needs_are_those_of_the_configuration() {
    let folder = Folder::new("needs");
    let (etc, other) = (folder.0.join("etc"), folder.0.join("other"));
    fs::write(other.join("more.conf"), "gateway {\n state_dir = /tmp/of-weir\n socket = /tmp/run-of-weir/s\n}\n")
        .unwrap();
    fs::write(etc.join("weir.conf"), format!("include {}\n", other.join("more.conf").display())).unwrap();
    let path = etc.join("weir.conf");
    let config = crate::config::load(&path, crate::config::Purpose::Gateway).unwrap_or_else(|p| panic!("{p}"));
    let needs = Needs::of(&path, &config);
    assert_eq!(needs.read, BTreeSet::from([etc, other]));
    assert_eq!(needs.write, BTreeSet::from(["/tmp/of-weir".into()]));
    assert_eq!(needs.sockets, BTreeSet::from(["/tmp/run-of-weir".into()]));
}
