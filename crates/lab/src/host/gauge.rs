//! Whether a core is ours alone, and how fast its clock runs.
//!
//! Two hardware threads of a core share its execution units. Work on the sibling thread, which on a
//! cloud machine may belong to another guest, slows this thread down by up to a half, for
//! microseconds or for minutes, and is not visible in /proc: neither clock rate nor steal time
//! change. So two kinds of fixed work are timed between measurements. One chain of dependent
//! instructions leaves most of a core unused and takes a constant number of cycles regardless of
//! the sibling: it measures the clock rate, which varies too. Ten such chains at once need all
//! execution units: their time relative to the first kind shows whether units are shared.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ports::clock::ticks;

/// Steps of the one chain: a quarter of a microsecond.
const CHAIN_STEPS: u32 = 450;
/// Steps of the ten: half a microsecond, so that counters of ticks that count by 26 or so do.
const WIDE_STEPS: u32 = 400;
/// So many readings in a row make a level: a single one may be too short by how instructions
/// overlap.
const ROW: usize = 8;
/// The clock rate is that of so many of a row's quickest chains: the others may have been
/// interrupted.
const QUICKEST: usize = 6;
/// Readings before the first result: some milliseconds, in which a busy sibling is likely to pause.
const FIRST: usize = 4000;
/// Excess time of the ten chains over the best value up to which the core counts as uncontended; a
/// busy sibling costs more.
const FREE: f64 = 0.05;

/// A reading of the gauge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Ticks of the one chain, from those that were read last: less at a higher clock rate.
    pub clock: f64,
    /// Time of the ten chains relative to the single one: lower if more units are available.
    pub share: f64,
}

/// Times fixed work and knows how fast it can be.
#[derive(Debug)]
pub struct Gauge {
    /// The least that was seen of both.
    full: Reading,
    /// The last reading of the chain and the share.
    chains: [u64; ROW],
    shares: [f64; ROW],
    at: usize,
}

impl Gauge {
    /// Takes its first readings. Later gauges of this process start from the best values of earlier
    /// ones.
    pub fn open() -> Self {
        static KNOWN: Mutex<Option<Reading>> = Mutex::new(None);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let first = if known.is_some() { ROW } else { FIRST };
        let mut gauge = Self::new(known.unwrap_or(Reading { clock: f64::INFINITY, share: f64::INFINITY }));
        gauge.chains.fill(chain_ticks());
        for _ in 0..first {
            gauge.read();
        }
        *known = Some(gauge.full);
        gauge
    }

    fn new(full: Reading) -> Self {
        Self { full, chains: [0; ROW], shares: [f64::INFINITY; ROW], at: 0 }
    }

    /// A gauge that never finds the core to be ours alone.
    #[cfg(test)]
    pub(crate) fn stuck() -> Self {
        Self::new(Reading { clock: 0.0, share: 0.0 })
    }

    /// Reads the current state of the core.
    pub fn read(&mut self) -> Reading {
        let chain = chain_ticks();
        let start = ticks();
        wide();
        self.seen(chain, ticks() - start)
    }

    fn seen(&mut self, chain: u64, wide: u64) -> Reading {
        self.chains[self.at] = chain;
        let mut row = self.chains;
        row.sort_unstable();
        let clock = row[..QUICKEST].iter().sum::<u64>() as f64 / QUICKEST as f64;
        let share = wide as f64 / clock;
        self.shares[self.at] = share;
        self.at = (self.at + 1) % ROW;
        self.full.clock = self.full.clock.min(clock);
        self.full.share = self.full.share.min(self.shares.iter().copied().fold(0.0, f64::max));
        Reading { clock, share }
    }

    /// A core of our own at its highest clock rate: the least that was seen several times in a row.
    pub fn full(&self) -> Reading {
        self.full
    }

    /// Returns whether this is the reading of a core that is ours alone.
    pub fn free(&self, reading: Reading) -> bool {
        reading.share <= self.full.share * (1.0 + FREE)
    }

    /// Factor that scales a time to an uncontended core at its highest clock rate, from the
    /// readings before and after it. 1 if the core was contended, because the slow-down by a
    /// sibling depends on the work.
    pub fn to_full(&self, core: [Reading; 2]) -> f64 {
        let free = core.iter().all(|reading| self.free(*reading));
        if free { 2.0 * self.full.clock / (core[0].clock + core[1].clock) } else { 1.0 }
    }

    /// Waits until the core is ours alone, for as long as there is `patience`, takes off what was
    /// needed, and returns the last reading.
    pub fn wait(&mut self, patience: &mut Duration) -> Reading {
        let mut reading = self.read();
        if self.free(reading) || patience.is_zero() {
            return reading;
        }
        let start = Instant::now();
        while start.elapsed() < *patience && !self.free(reading) {
            reading = self.read();
        }
        *patience = patience.saturating_sub(start.elapsed());
        reading
    }
}

/// Ticks of one chain of instructions that take a cycle each.
#[inline(never)]
fn chain_ticks() -> u64 {
    let start = ticks();
    let mut a = std::hint::black_box(1_u64);
    for step in 0..u64::from(CHAIN_STEPS) {
        a = a.rotate_left(7) ^ step;
    }
    std::hint::black_box(a);
    ticks() - start
}

/// Ten chains of short instructions, different ones so that they stay ten: more per cycle than a
/// core can execute, so that any use by the sibling shows. Four chains suffice on Intel's Skylake;
/// on AMD's Zen 5 four are latency-bound, and a sibling that slowed AES-GCM down by 28 % changed
/// them by 6 %.
#[inline(never)]
fn wide() {
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h, mut i, mut j] =
        std::hint::black_box([1_u64, 2, 3, 5, 7, 11, 13, 17, 19, 23]);
    for step in 0..u64::from(WIDE_STEPS) {
        a = a.rotate_left(7) ^ step;
        b = b.rotate_left(11).wrapping_add(step);
        c = (c ^ step).wrapping_add(c);
        d = d.wrapping_sub(step).rotate_left(3);
        e = e.rotate_left(5) ^ step;
        f = f.rotate_left(13).wrapping_add(step);
        g = (g ^ step).wrapping_add(g);
        h = h.wrapping_sub(step).rotate_left(9);
        i = i.rotate_left(17) ^ step;
        j = j.rotate_left(19).wrapping_sub(step);
    }
    std::hint::black_box([a, b, c, d, e, f, g, h, i, j]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gauge(readings: &[(u64, u64)]) -> Gauge {
        let mut gauge = Gauge::new(Reading { clock: f64::INFINITY, share: f64::INFINITY });
        gauge.chains.fill(readings[0].0);
        readings.iter().for_each(|(chain, wide)| {
            gauge.seen(*chain, *wide);
        });
        gauge
    }

    #[test]
    fn one_short_reading_is_no_level() {
        let mut readings = vec![(600, 1200); 20];
        readings[10] = (600, 600);
        assert_eq!(gauge(&readings).full(), Reading { clock: 600.0, share: 2.0 });
        readings.extend([(600, 780); ROW]);
        readings.extend([(600, 1200); 20]);
        let gauge = gauge(&readings);
        assert_eq!(gauge.full().share, 1.3);
        let read = |clock: f64, share| Reading { clock, share };
        assert!(gauge.free(read(600.0, 1.3)) && gauge.free(read(900.0, 1.36)) && !gauge.free(read(600.0, 1.37)));
        assert_eq!(gauge.to_full([read(600.0, 1.3); 2]), 1.0);
        assert_eq!(gauge.to_full([read(660.0, 1.3); 2]), 600.0 / 660.0);
        assert_eq!(gauge.to_full([read(660.0, 1.3), read(660.0, 2.0)]), 1.0);
    }

    /// A lower clock rate affects both kinds of work equally, and does not count as contention.
    #[test]
    fn the_clock_rate_is_not_the_share() {
        let mut readings = vec![(600, 780); 20];
        readings.extend([(690, 897); 20]);
        // An interruption in between counts for neither.
        readings.extend([(9000, 897), (690, 897)]);
        let mut gauge = gauge(&readings);
        assert_eq!(gauge.full(), Reading { clock: 600.0, share: 1.3 });
        let now = gauge.seen(690, 897);
        assert_eq!(now, Reading { clock: 690.0, share: 1.3 });
        assert!(gauge.free(now) && !gauge.free(gauge.full.shared()));
    }

    impl Reading {
        fn shared(self) -> Self {
            Self { share: self.share * 1.2, ..self }
        }
    }

    #[test]
    fn patience_ends() {
        let mut gauge = Gauge::open();
        assert!(gauge.full().clock > 0.0 && gauge.full().clock.is_finite() && gauge.full().share.is_finite());
        // Nothing is as fast as this.
        gauge.full.share = 0.0;
        let mut patience = Duration::from_millis(2);
        gauge.wait(&mut patience);
        assert_eq!(patience, Duration::ZERO);
        gauge.wait(&mut patience);
        // And this is always fast enough; no reading is worse than the least that was seen.
        gauge.full.share = f64::MAX / 4.0;
        gauge.shares = [f64::MAX / 4.0; ROW];
        patience = Duration::from_secs(1);
        gauge.wait(&mut patience);
        assert_eq!(patience, Duration::from_secs(1));
    }
}
