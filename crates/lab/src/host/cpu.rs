//! CPU time from /proc/stat, without gaps: each sample starts where the one before ended.

use std::fs;

use serde::{Deserialize, Serialize};

use super::clock::raw_ns;

/// Time of one processor since boot, in nanoseconds. Counted by the kernel in ticks of 10 ms where
/// it is not configured otherwise: shares of intervals below a second are coarse.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Deserialize, Serialize)]
#[allow(missing_docs)]
pub struct CpuTimes {
    pub user: u64,
    pub nice: u64,
    pub system: u64,
    pub idle: u64,
    pub iowait: u64,
    pub irq: u64,
    pub softirq: u64,
    pub steal: u64,
}

impl CpuTimes {
    /// All of it; guests are within `user` and `nice`.
    pub fn total(&self) -> u64 {
        self.busy() + self.idle + self.iowait + self.steal
    }

    /// Time that was neither idle nor stolen.
    pub fn busy(&self) -> u64 {
        self.user + self.nice + self.system + self.irq + self.softirq
    }

    /// From `before` until now. Idle and waiting times may be counted backwards by the kernel:
    /// never below 0.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let less = |now: u64, before: u64| now.saturating_sub(before);
        Self {
            user: less(self.user, before.user),
            nice: less(self.nice, before.nice),
            system: less(self.system, before.system),
            idle: less(self.idle, before.idle),
            iowait: less(self.iowait, before.iowait),
            irq: less(self.irq, before.irq),
            softirq: less(self.softirq, before.softirq),
            steal: less(self.steal, before.steal),
        }
    }

    /// Share of `part` in percent; `None` when no time passed.
    pub fn percent(&self, part: u64) -> Option<f64> {
        let total = self.total();
        (total > 0).then(|| part as f64 * 100.0 / total as f64)
    }

    fn parse(fields: &str, tick_ns: u64) -> Option<Self> {
        let mut ticks = fields.split_ascii_whitespace().map(|field| field.parse::<u64>());
        let mut next = || Some(ticks.next()?.ok()? * tick_ns);
        Some(Self {
            user: next()?,
            nice: next()?,
            system: next()?,
            idle: next()?,
            iowait: next()?,
            irq: next()?,
            softirq: next()?,
            // Since Linux 2.6.11.
            steal: next().unwrap_or(0),
        })
    }
}

/// All processors at one moment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct CpuSample {
    /// Time in nanoseconds of CLOCK_MONOTONIC_RAW.
    pub at_ns: u64,
    /// By number of the processor; `None` for one that is off-line.
    pub cpus: Vec<Option<CpuTimes>>,
}

impl CpuSample {
    /// Now; `None` where there is no /proc/stat.
    pub fn now() -> Option<Self> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        Some(Self { at_ns: raw_ns(), cpus: parse(&text, tick_ns)? })
    }

    /// From `before` until now, of each processor that is there; empty without /proc/stat.
    pub fn passed(before: Option<&Self>) -> Vec<CpuTimes> {
        let pair = Self::now().zip(before);
        pair.map_or_else(Vec::new, |(now, before)| now.since(before).into_iter().flatten().collect())
    }

    /// From `before` until now, by processor.
    pub fn since(&self, before: &Self) -> Vec<Option<CpuTimes>> {
        let pairs = self.cpus.iter().zip(&before.cpus);
        pairs.map(|(now, before)| Some(now.as_ref()?.since(before.as_ref()?))).collect()
    }
}

fn parse(text: &str, tick_ns: u64) -> Option<Vec<Option<CpuTimes>>> {
    let mut cpus = Vec::new();
    for line in text.lines() {
        let Some((number, fields)) = line.strip_prefix("cpu").and_then(|rest| rest.split_once(' ')) else { continue };
        let Ok(number) = number.parse::<usize>() else { continue }; // the sum
        if number >= MAX_CPUS {
            break;
        }
        cpus.resize(cpus.len().max(number + 1), None);
        cpus[number] = Some(CpuTimes::parse(fields, tick_ns)?);
    }
    (!cpus.is_empty()).then_some(cpus)
}

/// Processors that are looked at: 64 bytes each and sample.
const MAX_CPUS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  10 0 5 100 1 0 2 3 0 0\ncpu0 6 0 3 50 1 0 2 1 0 0\ncpu2 4 0 2 50 0 0 0 2 0 0\nintr 5\n";

    #[test]
    fn steal_and_softirq_are_told_apart_from_the_rest() {
        let cpus = parse(STAT, 10_000_000).unwrap();
        assert_eq!(cpus.len(), 3);
        let (first, third) = (cpus[0].unwrap(), cpus[2].unwrap());
        assert_eq!((first.softirq, first.steal, third.steal), (20_000_000, 10_000_000, 20_000_000));
        assert_eq!(first.busy(), 110_000_000);
        assert_eq!(cpus[1], None, "off-line");
        assert_eq!(third.percent(third.steal), Some(200.0 / 58.0));
    }

    #[test]
    fn what_is_no_table_of_times_gives_none() {
        assert_eq!(parse("", 1), None);
        assert_eq!(parse("cpu0 1 2 three 4\n", 1), None);
        assert_eq!(CpuTimes::default().percent(0), None);
        let back = CpuTimes { iowait: 5, ..CpuTimes::default() };
        assert_eq!(CpuTimes::default().since(&back).iowait, 0);
    }
}
