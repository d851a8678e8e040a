//! Calibration of the time stamp counter against CLOCK_MONOTONIC_RAW, CPU time of a thread, and the
//! clock rate of a core.

use rustix::time::{ClockId, clock_gettime};

use ports::clock::ticks;

/// Nanoseconds of CLOCK_MONOTONIC_RAW: NTP neither steps nor slews it.
pub fn raw_ns() -> u64 {
    nanoseconds(ClockId::MonotonicRaw)
}

/// Nanoseconds that the calling thread ran.
pub fn thread_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Ticks per second of the time stamp counter, and how sure that is.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct TickRate {
    /// Ticks per second.
    pub hz: f64,
    /// Half the spread of what it was measured from, in parts per million.
    pub ppm: f64,
    /// Ticks that reading the counter twice costs: the least of a thousand tries.
    pub read_ticks: f64,
}

/// Least time between the two ends of a calibration, in nanoseconds.
const SPAN_NS: u64 = 20_000_000;
/// Attempts at each end of the interval: the sample with the closest two counter readings is used.
const TRIES: usize = 32;

impl TickRate {
    /// Measures it for at least 20 ms. A pre-emption between two readings does not count: the
    /// closest pair does.
    pub fn measure() -> Self {
        let read_ticks = (0..1000).map(|_| {
            let start = ticks();
            ticks() - start
        });
        let read_ticks = read_ticks.min().unwrap_or(0) as f64;
        let first = edge();
        while raw_ns() < first.ns + SPAN_NS {
            std::hint::spin_loop();
        }
        let last = edge();
        let ns = (last.ns - first.ns) as f64;
        let unsure = (first.unsure + last.unsure) as f64;
        let counted = (last.ticks - first.ticks) as f64;
        Self { hz: counted * 1e9 / ns, ppm: unsure / 2.0 / counted * 1e6, read_ticks }
    }

    /// That of this machine, measured once per process.
    pub fn of_this_machine() -> Self {
        static RATE: std::sync::OnceLock<TickRate> = std::sync::OnceLock::new();
        *RATE.get_or_init(Self::measure)
    }

    /// Clock rate of a core with a chain of that many ticks, in MHz.
    pub fn mhz(&self, chain_ticks: f64) -> f64 {
        CHAIN_CYCLES / chain_ticks * self.hz / 1e6
    }

    /// Ticks as nanoseconds.
    pub fn ns(&self, ticks: u64) -> u64 {
        (ticks as f64 * 1e9 / self.hz) as u64
    }

    /// Nanoseconds as ticks.
    pub fn ticks(&self, ns: u64) -> u64 {
        (ns as f64 * self.hz / 1e9) as u64
    }
}

/// Steps of the chain: about two microseconds, because some counters of ticks count by 26.
const CHAIN_STEPS: u32 = 4096;
/// Cycles of the chain: a rotation and an exclusive or are one each.
pub const CHAIN_CYCLES: f64 = CHAIN_STEPS as f64 * 2.0;

/// Ticks of a chain of dependent instructions: a reading of the clock rate for
/// [`stats::RatedTimes`].
///
/// The time stamp counter counts at a constant rate, a core does not: its clock rate depends on the
/// load of all cores, those of other guests included, and may change by 2 to 10 % from one
/// millisecond to the next. A guest has no counter of cycles. The chain takes a constant number of
/// them, whatever the caches and the SMT sibling do.
#[inline(never)]
pub fn chain_ticks() -> f64 {
    let start = ticks();
    let mut a = std::hint::black_box(1_u64);
    for step in 0..u64::from(CHAIN_STEPS) {
        a = a.rotate_left(7) ^ step;
    }
    std::hint::black_box(a);
    (ticks() - start) as f64
}

/// One moment on both clocks.
struct Edge {
    ns: u64,
    ticks: u64,
    /// Ticks between the two readings around that of the clock.
    unsure: u64,
}

fn edge() -> Edge {
    let tries = (0..TRIES).map(|_| {
        let before = ticks();
        let ns = raw_ns();
        let unsure = ticks() - before;
        Edge { ns, ticks: before + unsure / 2, unsure }
    });
    tries.min_by_key(|edge| edge.unsure).unwrap_or(Edge { ns: 0, ticks: 0, unsure: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a loaded machine single readings are torn apart by pre-emption; of 32 the closest is not.
    #[test]
    fn two_calibrations_agree() {
        let (a, b) = (TickRate::measure(), TickRate::measure());
        assert!((a.hz / b.hz - 1.0).abs() < 1e-3, "{a:?} {b:?}");
        assert!(a.hz > 1e8, "{a:?}");
        assert_eq!(a.ns(a.ticks(1_000_000)) / 1000, 999);
    }

    /// Between a tenth and ten times the rates of today's machines.
    #[test]
    fn the_clock_rate_is_plausible() {
        let least = (0..200).map(|_| chain_ticks()).fold(f64::INFINITY, f64::min);
        let mhz = TickRate::of_this_machine().mhz(least);
        assert!((100.0..50_000.0).contains(&mhz), "{mhz}");
    }

    #[test]
    fn the_time_of_a_thread_passes_only_while_it_runs() {
        let (start, began) = (thread_ns(), raw_ns());
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(raw_ns() - began >= 19_000_000);
        assert!(thread_ns() - start < 15_000_000);
    }
}
