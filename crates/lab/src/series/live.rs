//! A transfer over time, measured here: iperf through a subject, and every core sampled meanwhile without gaps. What it
//! yields is what an import of the same files would: one analysis serves both.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::demo::DemoError;
use crate::demo::child::{Interrupt, Running};
use crate::demo::world::End;
use crate::host::cpu::{CpuSample, CpuSampler};
use crate::import::{Cpu, Imported, parse};
use crate::subject::{Subject, SubjectMeter};

/// What a transfer may take beyond its time, and a server to listen.
const GRACE: Duration = Duration::from_secs(20);
/// Where iperf listens, as /proc/net/tcp writes it: port 5001, state LISTEN.
const LISTENING: (&str, &str) = (":1389", " 0A ");

/// Sends TCP in `flows` flows from sun to moon for so many seconds, with files in `dir`.
///
/// # Errors
/// The subject is missing or ended, iperf failed, or a signal.
pub(crate) fn record(
    subject: &Subject,
    seconds: u32,
    flows: u32,
    dir: &Path,
    interrupt: &Interrupt,
) -> Result<[Imported; 2], DemoError> {
    let mut meter = SubjectMeter::start(subject, &dir.join("subject"), interrupt)?;
    let world = meter.world();
    let target = subject.address(world, End::Moon).to_string();
    let family = subject.is_v6().then_some("-V");
    let mut command = world.command(End::Moon, "iperf");
    command.arg("-s").args(family);
    let server = Running::start(command, &dir.join("server.txt"))?;
    let limit = Instant::now() + GRACE;
    loop {
        let sockets = world.read(End::Moon, &["/proc/net/tcp", "/proc/net/tcp6"])?;
        if sockets.lines().any(|line| line.contains(LISTENING.0) && line.contains(LISTENING.1)) {
            break;
        }
        if Instant::now() > limit {
            return Err(DemoError::Row(format!("iperf does not listen: {}", server.errors().trim())));
        }
        interrupt.tick()?;
    }
    let mut command = world.command(End::Sun, "iperf");
    let (flows, time) = (flows.to_string(), seconds.to_string());
    // Its times have no zone: they shall be those of the samples.
    command.args(["-c", &target, "-P", &flows, "-t", &time, "-i", "1", "-y", "C"]).args(family).env("TZ", "UTC");
    let sampler = CpuSampler::start(Duration::from_secs(1));
    let began_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let mut client = Running::start(command, &dir.join("client.csv"))?;
    let status = client.wait(interrupt, Duration::from_secs(seconds.into()) + GRACE, || Ok(()))?;
    let samples = sampler.map(CpuSampler::finish).unwrap_or_default();
    meter.check()?;
    if !status.success() {
        return Err(DemoError::Row(format!("{subject}: iperf ended with {status}: {}", client.errors().trim())));
    }
    let failed = |error: &dyn std::fmt::Display| DemoError::Row(format!("{subject}: {error}"));
    let transfer = parse(&format!("{subject}.csv"), &client.output()).map_err(|error| failed(&error))?;
    Ok([transfer, Imported::Cpu(cores(&samples, began_s))])
}

/// Percent busy of each core in each second. Both hosts share the cores.
fn cores(samples: &[CpuSample], began_s: f64) -> Cpu {
    let count = samples.first().map_or(0, |sample| sample.cpus.len());
    let mut cpu = Cpu {
        name: "cores".into(),
        at_s: Vec::new(),
        cores: (0..count).map(|core| format!("core {core}")).collect(),
        busy: Vec::new(),
        notes: vec!["both hosts, the subject and iperf share these cores".into()],
    };
    for pair in samples.windows(2) {
        let busy = pair[1].since(&pair[0]).into_iter().map(|times| {
            let times = times.unwrap_or_default();
            times.percent(times.busy()).unwrap_or(0.0)
        });
        cpu.busy.push(busy.collect());
        cpu.at_s.push(began_s + (pair[1].at_ns - samples[0].at_ns) as f64 / 1e9);
    }
    cpu
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cpu::CpuTimes;

    #[test]
    fn shares_are_those_between_neighbours() {
        let at = |second: u64, user: u64, idle: u64| CpuSample {
            at_ns: second * 1_000_000_000,
            cpus: vec![Some(CpuTimes { user, idle, ..CpuTimes::default() }), None],
        };
        let cpu = cores(&[at(10, 0, 0), at(11, 25, 75), at(12, 125, 75)], 1000.0);
        assert_eq!(cpu.busy, [[25.0, 0.0], [100.0, 0.0]]);
        assert_eq!(cpu.at_s, [1001.0, 1002.0]);
        assert_eq!(cores(&[], 0.0).cores.len(), 0);
    }
}
