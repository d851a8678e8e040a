//! Weir on one of the two hosts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Count, Counters};
use crate::TestbedError;
use crate::child::{Interrupt, Running};
use crate::pki::{Pki, write_private};
use crate::world::{End, World};

/// Timeout of a gateway's start.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// Lines of a log that are shown after an error.
const LOG_LINES: usize = 12;

/// Used fields of `weir status --json`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Status {
    #[serde(default)]
    sas: Vec<Sa>,
    #[serde(default)]
    total: Total,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Sa {
    direction: String,
    packets: u64,
    bytes: u64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Total {
    #[serde(default)]
    drops: BTreeMap<String, u64>,
}

impl Status {
    fn parse(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// Counters of the SAs of a direction (`out`, `in`).
    fn count(&self, direction: &str) -> Count {
        let sas = || self.sas.iter().filter(|sa| sa.direction == direction);
        Count { packets: Some(sas().map(|sa| sa.packets).sum()), bytes: sas().map(|sa| sa.bytes).sum() }
    }

    /// Its counters.
    pub(super) fn counters(&self) -> Counters {
        let (sent, received) = (self.count("out"), self.count("in"));
        Counters { sent, received, drops: self.total.drops.clone(), sas: self.outbound_sas() }
    }

    /// Outbound SAs, and those that carried a packet.
    fn outbound_sas(&self) -> [u32; 2] {
        let all = || self.sas.iter().filter(|sa| sa.direction == "out");
        [all().count() as u32, all().filter(|sa| sa.packets > 0).count() as u32]
    }
}

/// A running `weir up`.
pub(super) struct Gateway {
    end: End,
    running: Running,
    socket: PathBuf,
}

impl Gateway {
    /// Writes the configuration, and certificates beside it, and starts; does not wait.
    pub(super) fn start(
        world: &World,
        end: End,
        config: &str,
        pki: Option<&Pki>,
        dir: &Path,
    ) -> Result<Self, TestbedError> {
        let folder = dir.join(end.to_string());
        let file = folder.join("swanctl.conf");
        let written = fs::create_dir_all(&folder)
            .and_then(|()| pki.map_or(Ok(()), |pki| pki.write(end, &folder)))
            .and_then(|()| write_private(&file, config));
        written.map_err(|error| TestbedError::Failed(format!("{}: {error}", folder.display())))?;
        let weir = std::env::current_exe()
            .map_err(|error| TestbedError::Failed(format!("cannot determine the path of this program: {error}")))?;
        let mut command = world.command(end, weir);
        command.args(["up", "--config"]).arg(&file);
        let running = Running::start(command, &dir.join(format!("{end}.log")))?;
        Ok(Self { end, running, socket: dir.join(format!("{end}.vici")) })
    }

    /// Waits until it reports readiness.
    pub(super) fn wait_until_ready(&mut self, interrupt: &Interrupt) -> Result<(), TestbedError> {
        let end = Instant::now() + READY_WITHIN;
        loop {
            if self.log().lines().any(|line| line.starts_with("weir: ready")) {
                return Ok(());
            }
            let why = match self.running.poll() {
                Some(status) => format!("ended with {status}"),
                None if Instant::now() > end => format!("was not ready after {} s", READY_WITHIN.as_secs()),
                None => {
                    interrupt.tick()?;
                    continue;
                }
            };
            return Err(TestbedError::Failed(format!("weir on {} {why}{}", self.end, self.log_tail())));
        }
    }

    /// Checks that it is still there.
    pub(super) fn check(&mut self) -> Result<(), TestbedError> {
        match self.running.poll() {
            None => Ok(()),
            Some(status) => {
                Err(TestbedError::Failed(format!("weir on {} ended during the test with {status}", self.end)))
            }
        }
    }

    /// Requests its counters.
    pub(super) fn status(&self, world: &World) -> Result<Status, TestbedError> {
        let weir = std::env::current_exe()
            .map_err(|error| TestbedError::Failed(format!("cannot determine the path of this program: {error}")))?;
        let mut command = world.command(self.end, weir);
        let output = command.args(["status", "--json", "--socket"]).arg(&self.socket).output();
        let output =
            output.map_err(|error| TestbedError::Failed(format!("cannot query weir on {}: {error}", self.end)))?;
        Status::parse(&String::from_utf8_lossy(&output.stdout)).map_err(|error| {
            let errors = String::from_utf8_lossy(&output.stderr);
            TestbedError::Failed(format!("status of weir on {}: {error} {}", self.end, errors.trim()))
        })
    }

    /// Initiates key negotiation with the other host. Returns the running command.
    pub(super) fn initiate(&self, world: &World, dir: &Path) -> Result<Running, TestbedError> {
        let weir = std::env::current_exe()
            .map_err(|error| TestbedError::Failed(format!("cannot determine the path of this program: {error}")))?;
        let mut command = world.command(self.end, weir);
        command.args(["initiate", "net", "--connection", &self.end.other().to_string(), "--socket"]);
        command.arg(&self.socket);
        Running::start(command, &dir.join("initiate"))
    }

    pub(super) fn process(&self) -> u32 {
        self.running.id()
    }

    pub(super) fn command(&self) -> &str {
        &self.running.text
    }

    /// All that it wrote so far.
    pub(super) fn log(&self) -> String {
        self.running.output() + &self.running.errors()
    }

    /// The end of its log, indented, on separate lines; empty without one.
    pub(super) fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_LINES)..];
        tail.iter().map(|line| format!("\n    {}: {line}", self.end)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read() {
        let json = r#"{"version":"0.1.0","healthy":true,"sas":[
            {"name":"moon","direction":"out","packets":10,"bytes":14000,"drops":{}},
            {"name":"moon","direction":"in","packets":5,"bytes":260,"drops":{}}],
            "total":{"drops":{"replay":2}}}"#;
        let status = Status::parse(json).unwrap();
        let counters = status.counters();
        assert_eq!(counters.sent, Count { packets: Some(10), bytes: 14_000 });
        assert_eq!(counters.received, Count { packets: Some(5), bytes: 260 });
        assert_eq!((counters.drops["replay"], counters.sas), (2, [1, 1]));
        assert!(Status::parse("weir: no answer").is_err());
    }
}
