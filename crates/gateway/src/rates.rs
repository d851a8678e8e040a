//! Rates from successive samples of the status, for `weir top` and the status page.
//!
//! Times are those of the daemon, so that a late response changes no rate.

use std::collections::{BTreeMap, HashMap, VecDeque};

use ipsec::DropReason;

use crate::status::line::{Figures, Key, Line};
use crate::status::{CoreStatus, GuardStatus, Status};

/// Samples of a row that are kept: a minute. 480 bytes for each row.
pub(crate) const ROW_SAMPLES: usize = 60;
/// Samples of the whole gateway that are kept: five minutes.
pub(crate) const TOTAL_SAMPLES: usize = 300;
/// Samples nearer than this give no rate.
const LEAST_S: f64 = 0.1;
/// Packets for Weir itself, and those of the host that concern a link only: counted as drops of the
/// data plane, and no loss of traffic.
pub(crate) const CONSUMED: [DropReason; 5] =
    [DropReason::Keepalive, DropReason::IkeMessage, DropReason::OuterIcmp, DropReason::Dummy, DropReason::LinkLocal];

/// Plaintext bits per second that are delivered (`incoming`) and protected (`outgoing`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Flow {
    pub(crate) incoming: f32,
    pub(crate) outgoing: f32,
}

impl Flow {
    fn between(old: (u64, u64), new: (u64, u64), seconds: f64) -> Self {
        let rate = |old: u64, new: u64| (new.saturating_sub(old) as f64 * 8.0 / seconds) as f32;
        Self { incoming: rate(old.0, new.0), outgoing: rate(old.1, new.1) }
    }

    /// The larger direction.
    pub(crate) fn most(self) -> f32 {
        self.incoming.max(self.outgoing)
    }
}

/// Throughput of the whole gateway over the last samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    last: Option<(f64, (u64, u64))>,
    flows: VecDeque<Flow>,
}

impl History {
    /// Adds a sample: seconds since the start of the daemon, bytes delivered and protected so far.
    pub(crate) fn push(&mut self, at_s: f64, bytes: (u64, u64)) {
        if let Some((before, old)) = self.last.filter(|(before, _)| at_s - before >= LEAST_S) {
            if self.flows.len() == TOTAL_SAMPLES {
                self.flows.pop_front();
            }
            self.flows.push_back(Flow::between(old, bytes, at_s - before));
        }
        self.last = Some((at_s, bytes));
    }

    /// Oldest first.
    pub(crate) fn flows(&self) -> &VecDeque<Flow> {
        &self.flows
    }
}

/// A row over its last samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Track {
    figures: Figures,
    sample: u64,
    /// Oldest first.
    pub(crate) flows: VecDeque<Flow>,
}

impl Track {
    /// The newest rate.
    pub(crate) fn now(&self) -> Option<Flow> {
        self.flows.back().copied()
    }
}

/// A reason to drop, most frequent first in a list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DropRate {
    pub(crate) reason: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) count: u64,
    pub(crate) per_second: Option<f64>,
}

/// A worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WorkerRate {
    /// Share of a CPU that its thread used, 0 to 1.
    pub(crate) busy: Option<f64>,
    /// Packets received per second, from both sides.
    pub(crate) packets: Option<f64>,
    /// Packets in a batch, in the mean.
    pub(crate) batch: Option<f64>,
    pub(crate) flow: Flow,
    /// Packets that arrived at another worker than their own, so far.
    pub(crate) wrong_core: u64,
    pub(crate) drops: u64,
}

/// Counters of the last sample, and rates since the one before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rates {
    at_s: Option<f64>,
    sample: u64,
    rows: HashMap<Key, Track>,
    cores: Vec<Core>,
    threads_cpu_s: Vec<f64>,
    drops_before: BTreeMap<String, u64>,
    drops: Vec<DropRate>,
    workers: Vec<WorkerRate>,
}

/// Counters of a worker that rates are made of.
#[derive(Clone, Copy, Debug, Default)]
struct Core {
    packets: u64,
    bytes: (u64, u64),
    batches: u64,
}

impl Core {
    fn of(core: &CoreStatus) -> Self {
        Self {
            packets: core.inner_rx.packets + core.outer_rx.packets,
            bytes: (core.inner_tx.bytes, core.inner_rx.bytes),
            batches: core.batches,
        }
    }
}

impl Rates {
    /// Takes in a sample with its rows.
    pub(crate) fn observe(&mut self, status: &Status, lines: &[Line]) {
        let at_s = status.head.uptime_s;
        // Another daemon, whose counters begin anew.
        if self.at_s.is_some_and(|before| at_s < before) {
            *self = Self::default();
        }
        let seconds = self.at_s.map(|before| at_s - before);
        if seconds.is_some_and(|seconds| seconds < LEAST_S) {
            return;
        }
        self.sample += 1;
        self.observe_rows(lines, seconds);
        self.observe_drops(&status.head.total.drops, seconds);
        self.observe_workers(status, seconds);
        self.at_s = Some(at_s);
    }

    fn observe_rows(&mut self, lines: &[Line], seconds: Option<f64>) {
        for line in lines {
            let Some(figures) = line.figures else { continue };
            let bytes = |figures: Figures| (figures.bytes_in, figures.bytes_out);
            if let Some(track) = self.rows.get_mut(&line.key) {
                if let Some(seconds) = seconds {
                    if track.flows.len() == ROW_SAMPLES {
                        track.flows.pop_front();
                    }
                    track.flows.push_back(Flow::between(bytes(track.figures), bytes(figures), seconds));
                }
                (track.figures, track.sample) = (figures, self.sample);
            } else {
                self.rows.insert(line.key.clone(), Track { figures, sample: self.sample, flows: VecDeque::new() });
            }
        }
        let newest = self.sample;
        self.rows.retain(|_, track| track.sample == newest);
    }

    fn observe_drops(&mut self, drops: &BTreeMap<String, u64>, seconds: Option<f64>) {
        let lost = DropReason::ALL.iter().filter(|reason| !CONSUMED.contains(reason));
        let mut rates: Vec<DropRate> = lost
            .filter_map(|reason| {
                let count = *drops.get(reason.key())?;
                let before = self.drops_before.get(reason.key()).copied().unwrap_or_default();
                let per_second = seconds.map(|seconds| count.saturating_sub(before) as f64 / seconds);
                Some(DropRate { reason: reason.key(), meaning: reason.meaning(), count, per_second })
            })
            .collect();
        rates.sort_by_key(|rate| std::cmp::Reverse(rate.count));
        (self.drops, self.drops_before) = (rates, drops.clone());
    }

    fn observe_workers(&mut self, status: &Status, seconds: Option<f64>) {
        let head = &status.head;
        let cpu = |worker: usize| {
            let takes_care = |workers: &String| workers.split(' ').any(|number| number.parse() == Ok(worker));
            let thread = head.threads.iter().position(takes_care)?;
            let used = head.threads_cpu_s.get(thread)? - self.threads_cpu_s.get(thread)?;
            Some((used / seconds?).clamp(0.0, 1.0))
        };
        let cores: Vec<Core> = head.cores.iter().map(Core::of).collect();
        let worker = |(at, core): (usize, &Core)| {
            let since = self.cores.get(at).zip(seconds);
            let packets = since.map(|(old, seconds)| core.packets.saturating_sub(old.packets) as f64 / seconds);
            let batches = since.map(|(old, seconds)| core.batches.saturating_sub(old.batches) as f64 / seconds);
            WorkerRate {
                busy: cpu(at),
                packets,
                batch: packets.zip(batches).filter(|(_, batches)| *batches > 0.0).map(|(packets, n)| packets / n),
                flow: since.map(|(old, seconds)| Flow::between(old.bytes, core.bytes, seconds)).unwrap_or_default(),
                wrong_core: head.cores[at].wrong_core,
                drops: lost(&head.cores[at].drops),
            }
        };
        self.workers = cores.iter().enumerate().map(worker).collect();
        (self.cores, self.threads_cpu_s) = (cores, head.threads_cpu_s.clone());
    }

    /// A row, while it is up.
    pub(crate) fn row(&self, key: &Key) -> Option<&Track> {
        self.rows.get(key)
    }

    /// Reasons that occurred, most frequent first.
    pub(crate) fn drops(&self) -> &[DropRate] {
        &self.drops
    }

    /// By number.
    pub(crate) fn workers(&self) -> &[WorkerRate] {
        &self.workers
    }
}

/// Packets that were dropped and are a loss.
fn lost(drops: &BTreeMap<String, u64>) -> u64 {
    let consumed = |name: &str| CONSUMED.iter().any(|reason| reason.key() == name);
    drops.iter().filter(|(name, _)| !consumed(name)).map(|(_, count)| count).sum()
}

/// Clear text that the guard dropped, in words; kinds that did not occur are left out.
pub(crate) fn guarded(guard: &GuardStatus) -> Vec<(u64, &'static str)> {
    let all = [
        (guard.clear_in, "in clear text"),
        (guard.spoofed_in, "with a spoofed source"),
        (guard.clear_out, "out in clear text"),
    ];
    all.into_iter().filter(|(count, _)| count.packets > 0).map(|(count, what)| (count.packets, what)).collect()
}

/// A number with three digits and a power of 1000: `0`, `12.3 k`, `1.50 G`.
pub(crate) fn short(value: f64) -> String {
    // An empty sum is -0.0.
    let mut value = value.max(0.0) + 0.0;
    if value < 9.95 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    for unit in ["", " k", " M", " G", " T"] {
        // 999.5 would be written as 1000.
        if value < 999.5 {
            let digits = match value {
                _ if unit.is_empty() => 0,
                v if v < 9.995 => 2,
                v if v < 99.95 => 1,
                _ => 0,
            };
            return format!("{value:.digits$}{unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.0} P")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::example::status;
    use crate::status::line::lines;

    /// A sample after `seconds`, in which site received `bytes` so far.
    fn sample(seconds: f64, bytes: u64) -> Status {
        let mut status = status();
        status.head.uptime_s = seconds;
        let site = status.connections.iter_mut().find(|connection| connection.name == "site").unwrap();
        site.ike_sas[0].bytes_in = bytes;
        let core = &mut status.head.cores[0];
        (core.inner_rx, core.outer_rx.packets, core.batches) = (Default::default(), bytes / 100, bytes / 1000);
        status.head.threads = vec!["0".into()];
        status.head.threads_cpu_s = vec![seconds / 4.0];
        status.head.total.drops = [("bad_icv".to_owned(), bytes / 10), ("ike_message".to_owned(), 5)].into();
        status
    }

    fn observed(rates: &mut Rates, seconds: f64, bytes: u64) {
        let status = sample(seconds, bytes);
        rates.observe(&status, &lines(&status, false));
    }

    #[test]
    fn rates_are_those_between_two_samples() {
        let (mut rates, site) = (Rates::default(), ("site".to_owned(), Some(7)));
        observed(&mut rates, 10.0, 1000);
        assert_eq!(rates.row(&site).unwrap().now(), None, "one sample has no rate");
        assert_eq!((rates.drops()[0].per_second, rates.workers()[0].busy), (None, None));
        observed(&mut rates, 12.0, 3000);
        assert_eq!(rates.row(&site).unwrap().now(), Some(Flow { incoming: 8000.0, outgoing: 0.0 }));
        let [bad_icv] = rates.drops() else { panic!("{:?}", rates.drops()) };
        assert_eq!((bad_icv.reason, bad_icv.count, bad_icv.per_second), ("bad_icv", 300, Some(100.0)));
        let worker = rates.workers()[0];
        assert_eq!((worker.busy, worker.packets, worker.batch), (Some(0.25), Some(10.0), Some(10.0)));
        // The same sample again, and one of a daemon that was started again.
        observed(&mut rates, 12.0, 9000);
        assert_eq!(rates.row(&site).unwrap().now().unwrap().incoming, 8000.0);
        observed(&mut rates, 1.0, 50);
        assert_eq!(rates.row(&site).unwrap().now(), None);
        observed(&mut rates, 2.0, 175);
        assert_eq!(rates.row(&site).unwrap().now().unwrap().incoming, 1000.0);
    }

    #[test]
    fn what_is_kept_is_bounded_and_ends_with_its_row() {
        let (mut rates, mut history) = (Rates::default(), History::default());
        for second in 0..2 * TOTAL_SAMPLES as u64 {
            observed(&mut rates, second as f64, second * 125);
            history.push(second as f64, (second * 125, second * 250));
        }
        assert_eq!(rates.row(&("site".into(), Some(7))).unwrap().flows.len(), ROW_SAMPLES);
        assert_eq!(history.flows().len(), TOTAL_SAMPLES);
        assert_eq!(history.flows()[0], Flow { incoming: 1000.0, outgoing: 2000.0 });
        let mut status = sample(1e6, 0);
        status.connections.clear();
        rates.observe(&status, &[]);
        assert!(rates.rows.is_empty());
    }

    #[test]
    fn numbers_have_three_digits() {
        let cases = [
            (0.0, "0"),
            (0.4, "0.4"),
            (7.0, "7"),
            (999.4, "999"),
            (999.6, "1.00 k"),
            (12_345.0, "12.3 k"),
            (99_960.0, "100 k"),
            (1.5e9, "1.50 G"),
            (-1.0, "0"),
            (2e18, "2000 P"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
    }
}
