//! Counters of the kernel: processor time, devices, TCP.

use std::fs;
use std::time::Instant;

use serde::Serialize;

use crate::host::cpu::{self, CpuTimes};

/// Ticks per second of /proc/stat, part of Linux's interface to programs (USER_HZ).
const TICKS_PER_S: f64 = 100.0;

/// Time of one core by kind, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct CoreTime {
    /// Programs, niced ones too.
    pub(crate) user: f64,
    /// The kernel, on behalf of programs.
    pub(crate) system: f64,
    /// The kernel, handling interrupts and packets.
    pub(crate) softirq: f64,
    /// Nothing to do, or waiting for a disk.
    pub(crate) idle: f64,
    /// The hypervisor had other plans.
    pub(crate) steal: f64,
}

impl CoreTime {
    /// In seconds.
    fn of(times: &CpuTimes) -> Self {
        let seconds = |ns: u64| ns as f64 / 1e9;
        Self {
            user: seconds(times.user + times.nice),
            system: seconds(times.system),
            softirq: seconds(times.irq + times.softirq),
            idle: seconds(times.idle + times.iowait),
            steal: seconds(times.steal),
        }
    }

    fn since(self, before: Self) -> Self {
        // Idle time may run backwards by a tick.
        let diff = |now: f64, then: f64| (now - then).max(0.0);
        Self {
            user: diff(self.user, before.user),
            system: diff(self.system, before.system),
            softirq: diff(self.softirq, before.softirq),
            idle: diff(self.idle, before.idle),
            steal: diff(self.steal, before.steal),
        }
    }

    /// Time spent working.
    pub(crate) fn busy(self) -> f64 {
        self.user + self.system + self.softirq
    }

    /// All time.
    pub(crate) fn total(self) -> f64 {
        self.busy() + self.idle + self.steal
    }

    fn plus(self, other: Self) -> Self {
        Self {
            user: self.user + other.user,
            system: self.system + other.system,
            softirq: self.softirq + other.softirq,
            idle: self.idle + other.idle,
            steal: self.steal + other.steal,
        }
    }
}

/// Use of each core during one interval.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CpuSample {
    /// End of the interval, seconds after the start of sampling.
    pub(crate) at_s: f64,
    pub(crate) cores: Vec<CoreTime>,
}

/// Samples all cores once a second, without gaps.
pub(crate) struct CpuSampler {
    started: Instant,
    last: (f64, Vec<CoreTime>),
    samples: Vec<CpuSample>,
}

impl CpuSampler {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), last: (0.0, now()), samples: Vec::new() }
    }

    /// Takes a sample when a second has passed since the last one.
    pub(crate) fn tick(&mut self) {
        if self.started.elapsed().as_secs_f64() >= self.last.0 + 1.0 {
            self.sample();
        }
    }

    fn sample(&mut self) {
        let (at_s, cores) = (self.started.elapsed().as_secs_f64(), now());
        let done = cores.iter().zip(&self.last.1).map(|(now, then)| now.since(*then)).collect();
        self.samples.push(CpuSample { at_s, cores: done });
        self.last = (at_s, cores);
    }

    /// The last sample, and all of them.
    pub(crate) fn finish(mut self) -> Vec<CpuSample> {
        self.sample();
        self.samples
    }
}

fn now() -> Vec<CoreTime> {
    let sample = cpu::CpuSample::now();
    sample.map_or_else(Vec::new, |sample| sample.cpus.iter().flatten().map(CoreTime::of).collect())
}

/// All samples of each core together.
pub(crate) fn sum(samples: &[CpuSample]) -> Vec<CoreTime> {
    let count = samples.first().map_or(0, |sample| sample.cores.len());
    (0..count)
        .map(|core| samples.iter().fold(CoreTime::default(), |sum, sample| sum.plus(sample.cores[core])))
        .collect()
}

/// Processor time of a process in seconds, from /proc/PID/stat; 0 when it is gone.
pub(crate) fn process_seconds(pid: u32) -> f64 {
    process_time(&fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default()).unwrap_or(0.0)
}

fn process_time(stat: &str) -> Option<f64> {
    // The name may hold blanks and brackets; fields are counted after it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_S)
}

/// Packets and bytes of a device and of TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct NetCount {
    pub(crate) rx_bytes: u64,
    pub(crate) rx_packets: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) tx_packets: u64,
    /// Segments that TCP retransmitted.
    pub(crate) retransmitted: u64,
}

impl NetCount {
    /// Reads /proc/net/dev and /proc/net/snmp, one after the other; `None` without the device.
    pub(crate) fn parse(text: &str, device: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))?;
        let counts: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let at = |index: usize| counts.get(index).copied();
        Some(Self {
            rx_bytes: at(0)?,
            rx_packets: at(1)?,
            tx_bytes: at(8)?,
            tx_packets: at(9)?,
            retransmitted: tcp(text, "RetransSegs").unwrap_or(0),
        })
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            rx_bytes: self.rx_bytes.saturating_sub(before.rx_bytes),
            rx_packets: self.rx_packets.saturating_sub(before.rx_packets),
            tx_bytes: self.tx_bytes.saturating_sub(before.tx_bytes),
            tx_packets: self.tx_packets.saturating_sub(before.tx_packets),
            retransmitted: self.retransmitted.saturating_sub(before.retransmitted),
        }
    }
}

/// A counter of TCP by name: names are in one line, numbers in the next.
fn tcp(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let index = lines.next()?.split_whitespace().position(|word| word == name)?;
    lines.next()?.split_whitespace().nth(index)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_time_are_put_together() {
        let ms = 1_000_000;
        let times = CpuTimes {
            user: 100 * ms,
            nice: 10 * ms,
            system: 50 * ms,
            idle: 1000 * ms,
            iowait: 20 * ms,
            irq: 0,
            softirq: 30 * ms,
            steal: 10 * ms,
        };
        let first = CoreTime { user: 0.11, system: 0.05, softirq: 0.03, idle: 1.02, steal: 0.01 };
        let read = CoreTime::of(&times);
        assert!((read.busy() - first.busy()).abs() < 1e-9 && (read.total() - first.total()).abs() < 1e-9);
        // Idle time that runs backwards counts as none.
        let later = CoreTime { user: 0.2, idle: 1.0, ..first };
        assert_eq!(later.since(first).idle, 0.0);
        assert!((later.since(first).busy() - 0.09).abs() < 1e-9);
    }

    #[test]
    fn process_times_survive_odd_names() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 7 7 20 0 1 0 9 0 0\n";
        assert_eq!(process_time(stat), Some(2.0));
        assert_eq!(process_time(""), None);
        assert!(process_seconds(std::process::id()) >= 0.0);
    }

    #[test]
    fn devices_and_tcp_are_read() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
 veth0:  906070   12351    0    0    0     0          0         0 500945370  330911    0    0    0     0       0          0
Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm MaxConn InSegs OutSegs RetransSegs InErrs
Tcp: 1 -1 12351 330911 17 0
";
        let count = NetCount::parse(text, "veth0").unwrap();
        let expected = NetCount {
            rx_bytes: 906_070,
            rx_packets: 12_351,
            tx_bytes: 500_945_370,
            tx_packets: 330_911,
            retransmitted: 17,
        };
        assert_eq!(count, expected);
        assert_eq!(count.since(count), NetCount::default());
        assert_eq!(NetCount::parse(text, "veth"), None);
    }
}
