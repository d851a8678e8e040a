//! Commands of the administrator on up and down of a Child SA (`updown`), with the environment that
//! strongSwan gives them.
//!
//! The confined daemon cannot run programs, and a command should run with the privileges of the
//! administrator. So a helper process, started before the confinement, runs them: one after the
//! other, each for at most [`helper::RUN_MAX`]. The daemon sends it the name of a Child SA, the
//! command and the environment. The helper runs a command only if it is in the configuration file,
//! which it reads itself, so that a daemon that was taken over cannot choose what runs as root.
//! Values that come from the peer are passed in the environment and never become part of the
//! command line.
//!
//! The control thread never waits: it puts messages into a bounded queue, from which a thread
//! writes to the helper. When the daemon ends, whatever ended it, the helper runs the down command
//! of every Child SA that is up, and ends too.

mod environment;
mod helper;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use ike::output::{ChildId, ChildSa};
use ike::{ChildView, Endpoint, IkeView};
use serde_json::{Value, json};

pub(crate) use helper::run as run_helper;

/// Messages that wait for the helper: beyond, a command is not run, which is logged and counted. At
/// most about 256 selector pairs of 2 KiB each in a message.
const QUEUE_MAX: usize = 1024;
/// Time for the down commands at the end, before the helper is left to finish alone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs by outcome since the start, for the metrics.
static RUNS: [AtomicU64; OUTCOMES.len()] = [const { AtomicU64::new(0) }; OUTCOMES.len()];
/// Outcomes of a command: exit status 0; another one; ended by the time limit; not in the
/// configuration file, or not run for another reason; no room in the queue.
pub(crate) const OUTCOMES: [&str; 5] = ["ok", "failed", "timeout", "refused", "dropped"];

/// Outcomes and how often each occurred.
pub(crate) fn runs() -> impl Iterator<Item = (&'static str, u64)> {
    OUTCOMES.iter().zip(&RUNS).map(|(outcome, runs)| (*outcome, runs.load(Ordering::Relaxed)))
}

fn count(outcome: &str) {
    if let Some(at) = OUTCOMES.iter().position(|known| *known == outcome) {
        RUNS[at].fetch_add(1, Ordering::Relaxed);
    }
}

/// Daemon side: Child SAs for which the command ran, and the channel to the helper.
pub(crate) struct Updown {
    /// Parameters to start a helper.
    config: PathBuf,
    confined: bool,
    helper: Option<Helper>,
    /// Outcome of a start that failed, reported once.
    absent: bool,
    steps: Vec<Step>,
    /// Run of each Child SA. Those that replace one another by rekeying share it.
    runs: HashMap<ChildId, u64>,
    /// Child SAs of a run.
    members: HashMap<u64, usize>,
    last: u64,
}

/// Events of Child SAs, in order.
enum Step {
    Up(ChildId),
    Down(ChildId),
}

impl Updown {
    /// Starts the helper if a child of the configuration has a command. To be called before the
    /// confinement and the first thread.
    ///
    /// # Errors
    /// The helper cannot be started.
    pub(crate) fn start(path: &Path, config: &crate::config::Config) -> anyhow::Result<Self> {
        let all = config.keyed.connections.iter();
        let wanted = all.flat_map(|connection| &connection.children).any(|child| child.updown.is_some());
        let mut updown = Self::idle(path, config.gateway.confine);
        if wanted {
            updown.helper = Some(Helper::start(&updown.config, updown.confined)?);
        }
        Ok(updown)
    }

    fn idle(path: &Path, confined: bool) -> Self {
        Self {
            config: path.to_owned(),
            confined,
            helper: None,
            absent: false,
            steps: Vec::new(),
            runs: HashMap::new(),
            members: HashMap::new(),
            last: 0,
        }
    }

    /// Starts the threads that talk to the helper.
    pub(crate) fn listen(&mut self) -> std::io::Result<()> {
        self.helper.as_mut().map_or(Ok(()), Helper::listen)
    }

    /// A Child SA was installed.
    pub(crate) fn installed(&mut self, child: &ChildSa) {
        if child.config.updown.is_none() {
            return;
        }
        // A rekeying: the pair of selectors is up already, and no command runs.
        match child.replaces.and_then(|old| self.runs.get(&old).copied()) {
            Some(run) => self.join(child.id, run),
            None => self.steps.push(Step::Up(child.id)),
        }
    }

    /// A Child SA was removed.
    pub(crate) fn removed(&mut self, child: ChildId) {
        self.steps.push(Step::Down(child));
    }

    fn join(&mut self, child: ChildId, run: u64) {
        self.runs.insert(child, run);
        *self.members.entry(run).or_default() += 1;
    }

    /// Sends the events since the last call to the helper.
    pub(crate) fn turn<R: rand_core::CryptoRng>(&mut self, endpoint: &Endpoint<R>) {
        for step in std::mem::take(&mut self.steps) {
            match step {
                Step::Up(id) => {
                    let Some(ike) = endpoint.ike_of(id).and_then(|ike| endpoint.ike_sa(ike)) else { continue };
                    let Some(child) = ike.children.iter().find(|child| child.id == id) else { continue };
                    self.up(&ike, child);
                }
                Step::Down(id) => self.down(id),
            }
        }
    }

    fn up(&mut self, ike: &IkeView<'_>, child: &ChildView<'_>) {
        let config = child.config;
        let Some(command) = &config.updown else { return };
        let name = format!("{}.{}", ike.connection.map_or("", |connection| &connection.name), config.name);
        let pairs = environment::of(ike, child);
        self.last += 1;
        let run = self.last;
        let message = json!({
            "up": run, "name": name, "command": command, "local": ike.path.local.ip().to_string(), "pairs": pairs,
        });
        if self.send(&name, message) {
            self.join(child.id, run);
        }
    }

    fn down(&mut self, child: ChildId) {
        let Some(run) = self.runs.remove(&child) else { return };
        let left = self.members.entry(run).or_default();
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.members.remove(&run);
            self.send("", json!({ "down": run }));
        }
    }

    /// Queues a message; false when the command will not run.
    fn send(&mut self, name: &str, message: Value) -> bool {
        if self.helper.is_none() && !self.confined {
            match Helper::start(&self.config, false).and_then(|mut helper| {
                helper.listen()?;
                Ok(helper)
            }) {
                Ok(helper) => self.helper = Some(helper),
                Err(error) => tracing::error!(target: "child", "updown: {error:#}"),
            }
        }
        let Some(helper) = &self.helper else {
            count("refused");
            if !std::mem::replace(&mut self.absent, true) {
                tracing::error!(
                    target: "child",
                    "updown of '{name}' is not run: no child had 'updown' when weir was started; restart weir"
                );
            }
            return false;
        };
        let outcome = helper.messages.as_ref().map(|messages| messages.try_send(message.to_string()));
        match outcome {
            Some(Ok(())) => true,
            Some(Err(TrySendError::Full(_))) => {
                count("dropped");
                tracing::error!(target: "child", "updown of '{name}' is not run: {QUEUE_MAX} others wait");
                false
            }
            _ => {
                count("dropped");
                tracing::error!(target: "child", "updown of '{name}' is not run: the helper process has ended");
                false
            }
        }
    }
}

/// The helper process, seen from the daemon.
struct Helper {
    process: Process,
    /// Ends of the pipes, until threads take them.
    pipes: Option<(ChildStdin, ChildStdout, Receiver<String>)>,
    messages: Option<SyncSender<String>>,
}

impl Helper {
    fn start(config: &Path, confined: bool) -> anyhow::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("run-updown");
        // A relative path should name the same file after a change of the working directory.
        let config = std::path::absolute(config).context("updown: the path of the configuration")?;
        if confined {
            command.arg("--config").arg(config);
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the helper process of 'updown'; remove 'updown' from the configuration")?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let input = input.context("the helper process of 'updown' has no input")?;
        let output = output.context("the helper process of 'updown' has no output")?;
        let (messages, queue) = sync_channel(QUEUE_MAX);
        Ok(Self { process, pipes: Some((input, output, queue)), messages: Some(messages) })
    }

    fn listen(&mut self) -> std::io::Result<()> {
        let Some((mut input, output, queue)) = self.pipes.take() else { return Ok(()) };
        let write = move || {
            // Ends with the queue, and with it the helper's input.
            for message in queue {
                if writeln!(input, "{message}").and_then(|()| input.flush()).is_err() {
                    return;
                }
            }
        };
        let log = move || BufReader::new(output).lines().map_while(Result::ok).for_each(|line| report(&line));
        std::thread::Builder::new().name("weir-updown".into()).spawn(write)?;
        std::thread::Builder::new().name("weir-updown-log".into()).spawn(log).map(drop)
    }
}

/// Logs and counts a report of the helper.
fn report(line: &str) {
    let Ok(report) = serde_json::from_str::<Value>(line) else { return };
    let text = |key: &str| report[key].as_str().unwrap_or_default();
    let (name, verb, outcome, why) = (text("name"), text("verb"), text("outcome"), text("why"));
    for line in report["output"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        tracing::info!(target: "child", "updown of '{name}', {verb}: {line}");
    }
    count(outcome);
    match outcome {
        "ok" => tracing::debug!(target: "child", "updown of '{name}', {verb}: done"),
        _ => tracing::warn!(target: "child", "updown of '{name}', {verb}: {why}"),
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.messages = None;
        self.pipes = None;
        let end = Instant::now() + PATIENCE;
        while matches!(self.process.try_wait(), Ok(None)) {
            if Instant::now() >= end {
                tracing::warn!(target: "child", "updown: down commands still run after {} s", PATIENCE.as_secs());
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
