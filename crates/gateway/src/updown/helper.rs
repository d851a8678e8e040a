//! The helper process: reads messages from its input, runs commands and writes a report of each run
//! to its output.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use crate::config::syntax::{self, Section};
use crate::routes;

/// Time that a command may take.
pub(super) const RUN_MAX: Duration = Duration::from_secs(30);
/// Time that all down commands together may take after the daemon has ended.
const END_MAX: Duration = Duration::from_secs(120);
/// Lines of output of a run that are logged, and their length in bytes.
const LINES_MAX: usize = 50;
const LINE_MAX: usize = 256;
/// Child SAs that may be up with a command; the command of others is refused.
const UP_MAX: usize = 65_536;
/// Longest time between two looks whether a command has ended.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// Bytes of output that are read at once: as many as a pipe holds unless a process has enlarged it.
const READ_MAX: usize = 65_536;
/// The search path of commands where the daemon was started without.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables of one pair of selectors.
type Variables = Vec<(String, String)>;

/// A Child SA for which the command ran.
struct Up {
    name: String,
    command: String,
    pairs: Vec<Variables>,
}

/// Reads messages until the input ends, then runs the remaining commands. With `config` only
/// commands of that file are run.
pub(crate) fn run(config: Option<&Path>, input: impl BufRead, output: impl Write) {
    // A terminal or a service manager signals every process; the down commands should still run.
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        let _ = signal_hook::flag::register(signal, Arc::clone(&ignored));
    }
    let mut helper = Runner { allowed: Allowed::new(config), up: BTreeMap::new(), output, run_max: RUN_MAX };
    for line in input.lines().map_while(Result::ok) {
        helper.message(&line);
    }
    let end = Instant::now() + END_MAX;
    while Instant::now() < end
        && let Some((_, up)) = helper.up.pop_first()
    {
        helper.down(&up);
    }
}

pub(super) struct Runner<W> {
    pub(super) allowed: Allowed,
    up: BTreeMap<u64, Up>,
    output: W,
    pub(super) run_max: Duration,
}

impl<W: Write> Runner<W> {
    #[cfg(test)]
    pub(super) fn new(allowed: Allowed, output: W) -> Self {
        Self { allowed, up: BTreeMap::new(), output, run_max: RUN_MAX }
    }

    pub(super) fn message(&mut self, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line) else { return };
        if let Some(run) = message["down"].as_u64() {
            if let Some(up) = self.up.remove(&run) {
                self.down(&up);
            }
            return;
        }
        let Some(run) = message["up"].as_u64() else { return };
        let text = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
        let (name, command, local) = (text("name"), text("command"), text("local"));
        let mut pairs: Vec<Variables> = serde_json::from_value(message["pairs"].clone()).unwrap_or_default();
        let interface = local.parse().ok().and_then(routes::interface_of).unwrap_or_else(|| "unknown".into());
        pairs.iter_mut().for_each(|variables| variables.push(("PLUTO_INTERFACE".into(), interface.clone())));
        let refused = if !self.allowed.has(&command) {
            Some("the command is not in the configuration file, or the file is not readable; commands loaded by vici run with 'confine = no' only".to_owned())
        } else {
            (self.up.len() >= UP_MAX).then(|| format!("{UP_MAX} Child SAs are up"))
        };
        if let Some(why) = refused {
            return self.report(&name, "up", "refused", &why, &[]);
        }
        let up = Up { name, command, pairs };
        for variables in &up.pairs {
            self.run(&up, variables);
        }
        self.up.insert(run, up);
    }

    /// In reverse order of `up`.
    fn down(&mut self, up: &Up) {
        for variables in up.pairs.iter().rev() {
            let mut variables = variables.clone();
            for (_, value) in variables.iter_mut().filter(|(name, _)| name == "PLUTO_VERB") {
                *value = value.replacen("up", "down", 1);
            }
            self.run(up, &variables);
        }
    }

    fn run(&mut self, up: &Up, variables: &Variables) {
        let verb = variables.iter().find(|(name, _)| name == "PLUTO_VERB").map_or("", |(_, verb)| verb);
        match execute(&up.command, variables, self.run_max) {
            Ok(Ended { status: Some(0), lines, .. }) => self.report(&up.name, verb, "ok", "", &lines),
            Ok(Ended { timed_out: true, lines, .. }) => {
                let why = format!("ended after {} s", self.run_max.as_secs());
                self.report(&up.name, verb, "timeout", &why, &lines);
            }
            Ok(Ended { status, signal, lines, .. }) => {
                let why = match (status, signal) {
                    (Some(status), _) => format!("exit status {status}"),
                    (None, signal) => format!("ended by signal {}", signal.unwrap_or_default()),
                };
                self.report(&up.name, verb, "failed", &why, &lines);
            }
            Err(error) => self.report(&up.name, verb, "refused", &format!("cannot run /bin/sh: {error}"), &[]),
        }
    }

    fn report(&mut self, name: &str, verb: &str, outcome: &str, why: &str, lines: &[String]) {
        let report = json!({ "name": name, "verb": verb, "outcome": outcome, "why": why, "output": lines });
        let _ = writeln!(self.output, "{report}").and_then(|()| self.output.flush());
    }
}

/// The end of a command.
struct Ended {
    status: Option<i32>,
    signal: Option<i32>,
    timed_out: bool,
    lines: Vec<String>,
}

/// Runs a command by the shell, in a new process group, which is killed after `limit`.
fn execute(command: &str, variables: &Variables, limit: Duration) -> io::Result<Ended> {
    let (mut output, writer) = io::pipe()?;
    rustix::io::ioctl_fionbio(&output, true)?;
    let path = std::env::var_os("PATH").unwrap_or_else(|| PATH.into());
    let mut shell = Command::new("/bin/sh");
    shell
        .arg("-c")
        .arg(command)
        .env_clear()
        .env("PATH", path)
        .envs(variables.iter().map(|(name, value)| (name, value)));
    shell.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
    let mut process = shell.spawn()?;
    drop(shell); // It holds the writing end.
    let mut lines = Lines::default();
    let end = Instant::now() + limit;
    let mut wait = Duration::from_millis(1);
    let (status, timed_out) = loop {
        if let Some(status) = process.try_wait()? {
            break (status, false);
        }
        if Instant::now() >= end {
            let group = rustix::process::Pid::from_child(&process);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            break (process.wait()?, true);
        }
        if lines.read(&mut output) {
            // Returns at once when there is output.
            let mut pipe = [PollFd::new(&output, PollFlags::IN)];
            let _ = poll(&mut pipe, Some(&Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as i64 }));
        } else {
            std::thread::sleep(wait);
        }
        wait = (wait * 2).min(WAIT_MAX);
    };
    // What the command wrote is in the pipe. A background process of it may hold the pipe open, and
    // would block in a full pipe or be ended by a closed one.
    if lines.read(&mut output) {
        rustix::io::ioctl_fionbio(&output, false)?;
        let discard = move || io::copy(&mut output, &mut io::sink());
        std::thread::Builder::new().name("output".into()).spawn(discard)?;
    }
    Ok(Ended { status: status.code(), signal: status.signal(), timed_out, lines: lines.end() })
}

/// Output of a command: at most [`LINES_MAX`] lines of [`LINE_MAX`] bytes, without control
/// characters.
#[derive(Default)]
struct Lines {
    complete: Vec<String>,
    /// The start of the line that has not ended, if there is one.
    last: Option<Vec<u8>>,
}

impl Lines {
    /// Reads what the pipe holds and returns whether it is still open. Reads at most [`READ_MAX`]
    /// bytes, so that a process that writes without end does not keep the caller here.
    fn read(&mut self, output: &mut impl Read) -> bool {
        let mut buffer = [0; 4096];
        let mut rest = READ_MAX;
        while rest > 0 {
            match output.read(&mut buffer) {
                Ok(0) => return false,
                Ok(read) => {
                    self.add(&buffer[..read]);
                    rest = rest.saturating_sub(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    fn add(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            let line = self.last.get_or_insert_default();
            line.extend(text.iter().take(LINE_MAX - line.len()));
            if text.len() < part.len() {
                self.complete_line();
            }
        }
    }

    fn complete_line(&mut self) {
        let Some(line) = self.last.take() else { return };
        if self.complete.len() + 1 < LINES_MAX {
            let shown = |c: char| if c.is_control() { '?' } else { c };
            self.complete.push(String::from_utf8_lossy(&line).chars().map(shown).collect());
        } else if self.complete.len() < LINES_MAX {
            self.complete.push("(more lines are not logged)".into());
        }
    }

    fn end(mut self) -> Vec<String> {
        self.complete_line();
        self.complete
    }
}

/// Commands that may be run.
pub(super) struct Allowed {
    /// Any without a file.
    file: Option<PathBuf>,
    commands: BTreeSet<String>,
}

impl Allowed {
    pub(super) fn new(file: Option<&Path>) -> Self {
        let mut allowed = Self { file: file.map(Path::to_owned), commands: BTreeSet::new() };
        allowed.read();
        allowed
    }

    /// Returns whether the command is in the file; the file is read again when it was not there.
    fn has(&mut self, command: &str) -> bool {
        if self.file.is_none() || self.commands.contains(command) {
            return true;
        }
        self.read();
        self.commands.contains(command)
    }

    fn read(&mut self) {
        let Some(root) = self.file.as_deref().and_then(|file| syntax::read(file).ok()) else { return };
        let mut commands = BTreeSet::new();
        collect(&root, &mut commands);
        self.commands = commands;
    }
}

fn collect(section: &Section, commands: &mut BTreeSet<String>) {
    let named = section.settings.iter().filter(|setting| setting.name == "updown");
    commands.extend(named.map(|setting| setting.value.to_string()));
    section.sections.iter().for_each(|section| collect(section, commands));
}
