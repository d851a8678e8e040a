//! Whether a core is ours alone.
//!
//! Two threads of a core share its execution units. Whoever runs on the other thread, which on a rented machine may be
//! somebody else's, makes ours slower by up to a half, for milliseconds or for minutes, and nothing in /proc tells of it:
//! neither clock rate nor steal time change. So fixed work is timed in between: it needs nothing but execution
//! units, and what it takes says whether they are shared.

use std::time::{Duration, Instant};

use dataplane::clock::ticks;

/// Steps of the fixed work: a quarter of a microsecond.
const STEPS: u32 = 200;
/// So many readings in a row make a level: a single one may be too short by how instructions overlap.
const ROW: usize = 8;
/// Readings before the first answer: a millisecond, which a busy neighbour leaves now and then.
const FIRST: usize = 4000;

/// Times fixed work and knows how fast it can be.
#[derive(Debug)]
pub struct Gauge {
    /// Ticks of the work on a core that is ours alone, as far as was seen.
    full: u64,
    recent: [u64; ROW],
    at: usize,
}

impl Gauge {
    /// Takes its first readings.
    pub fn open() -> Self {
        let mut gauge = Self { full: u64::MAX, recent: [u64::MAX; ROW], at: 0 };
        for _ in 0..FIRST {
            gauge.read();
        }
        gauge
    }

    /// A gauge that never finds the core to be ours alone.
    #[cfg(test)]
    pub(crate) fn stuck() -> Self {
        Self { full: 0, recent: [u64::MAX; ROW], at: 0 }
    }

    /// Ticks that the work takes now.
    pub fn read(&mut self) -> u64 {
        let start = ticks();
        work();
        let took = ticks() - start;
        self.seen(took);
        took
    }

    fn seen(&mut self, took: u64) {
        self.recent[self.at] = took;
        self.at = (self.at + 1) % ROW;
        self.full = self.full.min(self.recent.iter().copied().max().unwrap_or(u64::MAX));
    }

    /// Ticks of the work on a core that is ours alone: the least that was seen several times in a row.
    pub fn full(&self) -> u64 {
        self.full
    }

    /// Whether `took` ticks are those of a core that is ours alone: an eighth more at most. A neighbour takes more than a quarter.
    pub fn free(&self, took: u64) -> bool {
        took <= self.full.saturating_add(self.full / 8)
    }

    /// By what a time has to be multiplied to be that of a core of our own at its highest clock rate, when the gauge read `core`
    /// before and after it. 1 when the core was shared: by how much a neighbour slows work down depends on the work.
    pub fn to_full(&self, core: [u64; 2]) -> f64 {
        if core.iter().all(|took| self.free(*took)) { 2.0 * self.full as f64 / (core[0] + core[1]) as f64 } else { 1.0 }
    }

    /// Waits until the core is ours alone, for as long as there is `patience`, takes off what was needed, and returns the
    /// last reading.
    pub fn wait(&mut self, patience: &mut Duration) -> u64 {
        let mut took = self.read();
        if self.free(took) || patience.is_zero() {
            return took;
        }
        let start = Instant::now();
        while start.elapsed() < *patience && !self.free(took) {
            took = self.read();
        }
        *patience = patience.saturating_sub(start.elapsed());
        took
    }
}

/// Four chains of short instructions, different ones so that they stay four: as many in a cycle as a core can take.
#[inline(never)]
fn work() {
    let [mut a, mut b, mut c, mut d] = std::hint::black_box([1_u64, 2, 3, 5]);
    for step in 0..u64::from(STEPS) {
        a = a.rotate_left(7) ^ step;
        b = b.rotate_left(11).wrapping_add(step);
        c = (c ^ step).wrapping_add(c);
        d = d.wrapping_sub(step).rotate_left(3);
    }
    std::hint::black_box([a, b, c, d]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gauge(readings: &[u64]) -> Gauge {
        let mut gauge = Gauge { full: u64::MAX, recent: [u64::MAX; ROW], at: 0 };
        readings.iter().for_each(|took| gauge.seen(*took));
        gauge
    }

    #[test]
    fn one_short_reading_is_no_level() {
        let mut readings = vec![600; 20];
        readings[10] = 300;
        assert_eq!(gauge(&readings).full(), 600);
        readings.extend([400, 401, 402, 403, 404, 405, 406, 407]);
        readings.extend([600; 20]);
        let gauge = gauge(&readings);
        assert_eq!(gauge.full(), 407);
        assert!(gauge.free(407) && gauge.free(457) && !gauge.free(458) && !gauge.free(600));
        assert_eq!(gauge.to_full([407, 407]), 1.0);
        assert_eq!(gauge.to_full([427, 427]), 407.0 / 427.0);
        assert_eq!(gauge.to_full([407, 600]), 1.0);
    }

    #[test]
    fn patience_ends() {
        let mut gauge = Gauge::open();
        assert!(gauge.full() > 0 && gauge.full() < u64::MAX);
        // Nothing is as fast as this.
        gauge.full = 0;
        let mut patience = Duration::from_millis(2);
        gauge.wait(&mut patience);
        assert_eq!(patience, Duration::ZERO);
        gauge.wait(&mut patience);
        // And this is always fast enough.
        gauge.full = u64::MAX / 2;
        patience = Duration::from_secs(1);
        gauge.wait(&mut patience);
        assert_eq!(patience, Duration::from_secs(1));
    }
}
