//! Contention of a core by its SMT sibling, as far as a processor shows it.
//!
//! Two hardware threads of a core share its execution units. Work on the sibling thread, which on a
//! cloud machine may belong to another guest, slows this thread down by up to a half, for
//! microseconds or for minutes, and is not visible in /proc. Ten chains of dependent instructions
//! at once need all execution units: their time relative to that of a single chain, which takes a
//! constant number of cycles regardless of the sibling ([`super::clock::chain_ticks`]), shows
//! whether units are shared.
//!
//! The gauge is a badge and selects nothing: on some processors its reading is the same in both
//! states of the core. Each trial records how much longer its contended batches took
//! ([`Contention`]), and a report states whether the gauge separates anything.

use ports::clock::ticks;
use stats::{median, quantile_sorted};

/// Steps of the ten: half a microsecond.
const WIDE_STEPS: u32 = 400;
/// Share of the readings that count as the best: a single one may be too short by how instructions
/// overlap.
const BEST: f64 = 0.05;
/// Excess time of the ten chains over the best value up to which the core counts as uncontended; a
/// busy sibling costs more.
const FREE: f64 = 0.05;
/// Fewest contended and uncontended batches that are compared.
const FEWEST: usize = 8;
/// Most readings of a trial: 1 MiB.
const MOST: usize = 1 << 16;

/// Contention of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contention {
    /// Share of contended batches in percent.
    pub percent: f64,
    /// Median ticks of contended batches over those of uncontended ones; `None` if there were too
    /// few of either. 1 means that the gauge separates nothing.
    pub slower: Option<f64>,
}

/// Readings of a trial, each with the ticks per packet of the batch after it.
#[derive(Debug, Default)]
pub struct Gauge {
    readings: Vec<(f64, f64)>,
}

impl Gauge {
    /// Reads the current state of the core: the time of ten chains relative to that of a single
    /// one.
    pub fn read(chain: f64) -> f64 {
        let start = ticks();
        wide();
        (ticks() - start) as f64 / chain
    }

    /// Adds a reading and the ticks per packet of the batch after it.
    pub fn add(&mut self, share: f64, ticks: f64) {
        if self.readings.len() < MOST {
            self.readings.push((share, ticks));
        }
    }

    /// Contention since the last call; `None` with too few readings.
    pub fn take(&mut self) -> Option<Contention> {
        let readings = std::mem::take(&mut self.readings);
        if readings.len() < FEWEST {
            return None;
        }
        let mut shares: Vec<f64> = readings.iter().map(|(share, _)| *share).collect();
        shares.sort_by(f64::total_cmp);
        let limit = quantile_sorted(&shares, BEST) * (1.0 + FREE);
        let of = |wanted: bool| -> Vec<f64> {
            readings.iter().filter(|(share, _)| (*share <= limit) == wanted).map(|(_, ticks)| *ticks).collect()
        };
        let (free, busy) = (of(true), of(false));
        let middle = |ticks: &[f64]| (ticks.len() >= FEWEST).then(|| median(ticks));
        Some(Contention {
            percent: 100.0 * busy.len() as f64 / readings.len() as f64,
            slower: middle(&busy).zip(middle(&free)).map(|(busy, free)| busy / free),
        })
    }
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

    #[test]
    fn contended_batches_are_counted_and_compared() {
        let mut gauge = Gauge::default();
        assert_eq!(gauge.take(), None);
        for n in 0..40 {
            // Every fourth is contended, and a quarter slower.
            let (share, ticks) = if n % 4 == 0 { (1.6, 125.0) } else { (1.3, 100.0) };
            gauge.add(share, ticks);
        }
        assert_eq!(gauge.take(), Some(Contention { percent: 25.0, slower: Some(1.25) }));
        (0..40).for_each(|_| gauge.add(1.3, 100.0));
        assert_eq!(gauge.take(), Some(Contention { percent: 0.0, slower: None }));
    }
}
