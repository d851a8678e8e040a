//! Name servers that peers assign (RFC 7296 §3.15.1), installed in the resolver configuration of
//! this host.
//!
//! The resolver file is shared with other programs, and `resolvconf` runs arbitrary hooks of the
//! host. So the confined daemon uses neither. A helper process, started before the confinement,
//! reads lists of addresses from a pipe, and returns errors. It ignores signals: it ends when the
//! pipe closes, which is when the daemon ends for any reason, and then removes its entries. Entries
//! of a killed helper are removed at the next start.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use ike::output::IkeId;

/// Limit of name servers in use: more than any resolver queries. Further ones are ignored.
const SERVERS_MAX: usize = 16;
/// Maximum size of a resolver file, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Timeout for the helper to revert its changes.
const REVERT_TIMEOUT: Duration = Duration::from_secs(5);
/// Message that reports a successful start.
const READY: &str = "ready";

/// Destination of name servers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Resolver {
    /// Into this file, in the format of resolv.conf(5).
    File(PathBuf),
    /// To the program `resolvconf`.
    Resolvconf,
}

/// The daemon's side: name servers from peers, and the pipes of the helper.
pub(crate) struct Servers {
    helper: Option<HelperProcess>,
    /// By the virtual address that they were assigned with, not by IKE SA: after a rekeying or
    /// reauthentication another IKE SA may remove the address.
    assigned: BTreeMap<IpAddr, Vec<IpAddr>>,
}

struct HelperProcess {
    process: Child,
    /// One list of addresses a line; closing it ends the helper.
    input: Option<ChildStdin>,
    /// Errors; taken by the thread that logs them.
    output: Option<BufReader<ChildStdout>>,
    /// Last list sent to it.
    sent: Vec<IpAddr>,
}

impl Servers {
    /// Starts the resolver helper if it is needed. Must be called before the confinement, while the
    /// process has one thread.
    ///
    /// # Errors
    /// The file cannot be changed, or the program is missing; with a remedy.
    pub(crate) fn start(resolver: Option<&Resolver>, tun: &str) -> anyhow::Result<Self> {
        let helper = resolver.map(|resolver| HelperProcess::start(resolver, tun)).transpose()?;
        Ok(Self { helper, assigned: BTreeMap::new() })
    }

    /// Starts a thread that logs errors of the helper.
    pub(crate) fn listen(&mut self) -> io::Result<()> {
        let Some(output) = self.helper.as_mut().and_then(|helper| helper.output.take()) else { return Ok(()) };
        let log = move || {
            for line in output.lines().map_while(Result::ok) {
                tracing::warn!(target: "control", "{line}");
            }
        };
        std::thread::Builder::new().name("weir-resolver".into()).spawn(log).map(drop)
    }

    /// Adds (`on`) or removes the name servers that a peer assigned with a virtual address.
    pub(crate) fn given(&mut self, ike: IkeId, address: IpAddr, servers: &[IpAddr], on: bool) {
        if on && !servers.is_empty() {
            let list: Vec<String> = servers.iter().map(IpAddr::to_string).collect();
            let outcome =
                if self.helper.is_some() { "are used" } else { "are not used: 'resolver' is not set in 'gateway'" };
            tracing::info!(target: "ike", "[{}] name servers {} {outcome}", ike.0, list.join(", "));
            self.assigned.insert(address, servers.to_vec());
        } else {
            self.assigned.remove(&address);
        }
        let Some(helper) = &mut self.helper else { return };
        let mut all: Vec<IpAddr> = Vec::new();
        for server in self.assigned.values().flatten() {
            if all.len() < SERVERS_MAX && !all.contains(server) {
                all.push(*server);
            }
        }
        helper.send(all);
    }
}

impl HelperProcess {
    fn start(resolver: &Resolver, tun: &str) -> anyhow::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.args(["keep-resolver", "--tun", tun]);
        if let Resolver::File(path) = resolver {
            command.arg("--file").arg(path);
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the resolver helper; remove 'resolver' from the section 'gateway'")?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let mut output = BufReader::new(output.context("the resolver helper has no output")?);
        let mut first = String::new();
        output.read_line(&mut first).context("the resolver helper ended")?;
        let helper = Self { process, input, output: Some(output), sent: Vec::new() };
        match first.trim() {
            READY => Ok(helper),
            why => anyhow::bail!("resolver: {why}; set another 'resolver' in the section 'gateway', or none"),
        }
    }

    /// Sends the list unless it is the last one.
    fn send(&mut self, servers: Vec<IpAddr>) {
        let Some(input) = self.input.as_mut().filter(|_| servers != self.sent) else { return };
        let list: Vec<String> = servers.iter().map(IpAddr::to_string).collect();
        if let Err(error) = writeln!(input, "{}", list.join(" ")) {
            tracing::error!(target: "control", "the resolver helper ended: {error}");
            self.input = None;
        }
        self.sent = servers;
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        self.input = None;
        let end = Instant::now() + REVERT_TIMEOUT;
        while Instant::now() < end && matches!(self.process.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Main loop of the helper: installs the list of each input line, and removes all entries at the
/// end of the input.
///
/// # Errors
/// The start failed; the reason was already written to `output`.
pub(crate) fn keep(resolver: &Resolver, tun: &str, input: impl BufRead, mut output: impl Write) -> Result<(), ()> {
    // A terminal or a service manager signals every process of the group, but the daemon needs its
    // helper until it has ended itself.
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        let _ = signal_hook::flag::register(signal, Arc::clone(&ignored));
    }
    let mut report = |line: &str| {
        let _ = writeln!(output, "{line}").and_then(|()| output.flush());
    };
    if let Err(error) = install(resolver, tun, &[]) {
        report(&error.to_string());
        return Err(());
    }
    report(READY);
    for line in input.lines().map_while(Result::ok) {
        let servers: Vec<IpAddr> =
            line.split_whitespace().filter_map(|word| word.parse().ok()).take(SERVERS_MAX).collect();
        if let Err(error) = install(resolver, tun, &servers) {
            report(&error.to_string());
        }
    }
    let _ = install(resolver, tun, &[]);
    Ok(())
}

/// Replaces the entries of the gateway with this device by `servers`.
fn install(resolver: &Resolver, tun: &str, servers: &[IpAddr]) -> io::Result<()> {
    match resolver {
        Resolver::File(path) => {
            let explained = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            edit(path, tun, servers).map_err(explained)
        }
        Resolver::Resolvconf => run(tun, servers),
    }
}

/// Marker at the end of Weir's lines.
fn mark(tun: &str) -> String {
    format!(" # weir, {tun}")
}

/// Returns `text` with Weir's lines first, so that they are queried first, and all other lines
/// unchanged.
fn edited(text: &str, tun: &str, servers: &[IpAddr]) -> String {
    let mark = mark(tun);
    let ours = servers.iter().map(|server| format!("nameserver {server}{mark}\n"));
    let others = text.split_inclusive('\n').filter(|line| !line.trim_end().ends_with(&mark)).map(str::to_owned);
    ours.chain(others).collect()
}

/// Changes the file in place, because it may be a mount or link target; a single write keeps
/// concurrent readers consistent.
fn edit(path: &Path, tun: &str, servers: &[IpAddr]) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let text = read(&file)?;
    let edited = edited(&text, tun, servers);
    if edited == text {
        return Ok(());
    }
    file.write_all_at(edited.as_bytes(), 0)?;
    file.set_len(edited.len() as u64)?;
    file.sync_data()
}

fn read(file: &File) -> io::Result<String> {
    let mut text = String::new();
    file.take(FILE_MAX).read_to_string(&mut text)?;
    if text.len() as u64 == FILE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too large for a resolver file"));
    }
    Ok(text)
}

fn run(tun: &str, servers: &[IpAddr]) -> io::Result<()> {
    let interface = format!("{tun}.weir");
    let verb = if servers.is_empty() { "-d" } else { "-a" };
    let mut command = Command::new("resolvconf");
    command.args([verb, &interface]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let explained = |error: io::Error| io::Error::new(error.kind(), format!("cannot run resolvconf: {error}"));
    let mut process = command.spawn().map_err(explained)?;
    if let Some(mut input) = process.stdin.take() {
        let lines: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
        // A program that does not read reports the failure by its exit status.
        let _ = input.write_all(lines.as_bytes());
    }
    let output = process.wait_with_output().map_err(explained)?;
    // A removal without an entry is an error in some versions.
    if output.status.success() || servers.is_empty() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(io::Error::other(format!("resolvconf {verb} {interface}: {errors}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn servers(text: &str) -> Vec<IpAddr> {
        text.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    #[test]
    fn entries_come_first_and_are_removed_completely() {
        let usual = "# by the installer\nsearch example\nnameserver 192.0.2.53\noptions rotate";
        let with = edited(usual, "weir0", &servers("10.2.0.53 fd02::53"));
        let first = "nameserver 10.2.0.53 # weir, weir0\nnameserver fd02::53 # weir, weir0\n";
        assert_eq!(with, format!("{first}{usual}"));
        // Entries of another gateway stay.
        let both = edited(&with, "weir1", &servers("10.9.0.1"));
        assert!(both.starts_with("nameserver 10.9.0.1 # weir, weir1\nnameserver 10.2.0.53"));
        assert_eq!(edited(&edited(&both, "weir0", &[]), "weir1", &[]), usual);
    }

    proptest! {
        #[test]
        fn other_lines_of_the_file_stay(text in "([a-z# ,.0]{0,12}\n?){0,6}", count in 0..3usize) {
            let given = &servers("10.2.0.53 10.2.0.54")[..count.min(2)];
            let with = edited(&text, "weir0", given);
            prop_assert_eq!(edited(&with, "weir0", given), with.clone());
            prop_assert_eq!(edited(&with, "weir0", &[]), edited(&text, "weir0", &[]));
        }
    }

    #[test]
    fn the_helper_installs_each_list_and_removes_its_entries_at_the_end() {
        let path = std::env::temp_dir().join(format!("weir-resolv-{}.conf", std::process::id()));
        let resolver = Resolver::File(path.clone());
        let mut output = Vec::new();
        assert_eq!(keep(&resolver, "weir0", io::empty(), &mut output), Err(()));
        assert!(String::from_utf8_lossy(&output).contains("No such file"), "the file must exist");

        let left = "nameserver 10.9.9.9 # weir, weir0\nnameserver 192.0.2.53\n";
        std::fs::write(&path, left).unwrap();
        /// Returns its lines one by one, with the preceding content of the file.
        struct Input<'a>(&'a Path, Vec<&'static str>, Vec<String>);
        impl Read for Input<'_> {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                self.2.push(std::fs::read_to_string(self.0)?);
                let Some(line) = self.1.pop() else { return Ok(0) };
                into[..line.len()].copy_from_slice(line.as_bytes());
                Ok(line.len())
            }
        }
        let mut input = Input(&path, vec!["\n", "10.2.0.53 rm -rf / 10.2.0.54\n"], Vec::new());
        let mut output = Vec::new();
        keep(&resolver, "weir0", BufReader::with_capacity(64, &mut input), &mut output).unwrap();
        assert_eq!(String::from_utf8_lossy(&output), "ready\n");
        let usual = "nameserver 192.0.2.53\n";
        let with = format!("nameserver 10.2.0.53 # weir, weir0\nnameserver 10.2.0.54 # weir, weir0\n{usual}");
        assert_eq!(input.2, [usual, &with, usual]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), usual);
        std::fs::remove_file(&path).unwrap();
    }
}
