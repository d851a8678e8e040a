//! Where the level of a series changes.
//!
//! Two searches of the same cost, squared deviations from the mean of each segment: [`pelt`] finds
//! the best set of changes for a penalty, exactly; [`changes`] splits repeatedly at the best
//! position and tests each split against random permutations of blocks of the same series. The
//! second needs no penalty, and does not report slow oscillations as changes, because they are
//! within the blocks.

use serde::{Deserialize, Serialize};

use crate::{Rng, integral_time};

/// A change of level.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Change {
    /// First sample of the new level, counted from 0: the change is between the previous sample and
    /// this one.
    pub at: usize,
    /// Chance of so clear a split in a series without change.
    pub p: f64,
}

/// Samples that a level needs at least.
const SHORTEST: usize = 5;
/// Orders of blocks that a split is held against.
const PERMUTATIONS: usize = 999;
/// Chance of a split by accident up to which it counts.
const ALPHA: f64 = 0.005;

/// Changes of the level of a series, in order.
pub fn changes(values: &[f64], rng: &mut Rng) -> Vec<Change> {
    let mut found = Vec::new();
    let mut open = vec![(0, values.len())];
    while let Some((from, to)) = open.pop() {
        if let Some(change) = significant_split(&values[from..to], rng) {
            let at = from + change.at;
            found.push(Change { at, ..change });
            open.extend([(from, at), (at, to)]);
        }
    }
    found.sort_by_key(|change| change.at);
    found
}

/// The best split, if it is better than chance.
fn significant_split(values: &[f64], rng: &mut Rng) -> Option<Change> {
    let (at, gain) = best_split(values)?;
    let block = block_of_residuals(values, at);
    let as_good = (0..PERMUTATIONS)
        .filter(|_| best_split(&shuffled_blocks(values, block, rng)).is_some_and(|(_, g)| g >= gain))
        .count();
    let p = (as_good + 1) as f64 / (PERMUTATIONS + 1) as f64;
    (p <= ALPHA).then_some(Change { at, p })
}

/// The split that lowers the squared deviations most, and by how much; `None` where nothing can be
/// gained.
fn best_split(values: &[f64]) -> Option<(usize, f64)> {
    let n = values.len();
    if n < 2 * SHORTEST {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n as f64;
    let mut best = (0, 0.0);
    let mut sum = 0.0;
    for (i, value) in values.iter().enumerate().take(n - SHORTEST) {
        sum += value - mean;
        let left = i + 1;
        if left >= SHORTEST {
            let gain = sum * sum * n as f64 / (left as f64 * (n - left) as f64);
            if gain > best.1 {
                best = (left, gain);
            }
        }
    }
    // A rounding error should not count as a gain.
    let scale = values.iter().map(|v| v * v).sum::<f64>();
    (best.1 > 1e-20 * scale).then_some(best)
}

/// Blocks long enough to preserve the autocorrelation after the step at `at` is subtracted.
fn block_of_residuals(values: &[f64], at: usize) -> usize {
    let mut residuals = levelled(&values[..at]);
    residuals.extend(levelled(&values[at..]));
    let time = integral_time(&residuals);
    if time < 1.5 { 1 } else { ((5.0 * time).ceil() as usize).clamp(1, (values.len() / 6).max(1)) }
}

/// Deviations from the level, or from both levels where a further step explains more than half of
/// them: a second step must not pass for memory. Slow oscillations are never explained so well by a
/// step.
fn levelled(values: &[f64]) -> Vec<f64> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let off: Vec<f64> = values.iter().map(|v| v - mean).collect();
    let squares: f64 = off.iter().map(|v| v * v).sum();
    match best_split(values) {
        Some((at, gain)) if gain > 0.5 * squares && values.len() >= 4 * SHORTEST => {
            let mut parts = levelled(&values[..at]);
            parts.extend(levelled(&values[at..]));
            parts
        }
        _ => off,
    }
}

/// The series cut into blocks at a random offset, in random order.
fn shuffled_blocks(values: &[f64], block: usize, rng: &mut Rng) -> Vec<f64> {
    let (first, rest) = values.split_at(rng.below(block));
    let mut blocks: Vec<&[f64]> = std::iter::once(first).chain(rest.chunks(block)).collect();
    rng.shuffle(&mut blocks);
    blocks.concat()
}

/// Starts of all segments but the first that make squared deviations plus `penalty` per change
/// smallest, exactly, by the method of Killick, Fearnhead and Eckley (PELT). Segments are at least
/// `shortest` samples long.
///
/// A penalty of 2·σ²·ln n with σ² the long-run variance (variance times [`integral_time`]) is the
/// usual one.
pub fn pelt(values: &[f64], penalty: f64, shortest: usize) -> Vec<usize> {
    let (n, shortest) = (values.len(), shortest.max(1));
    if n < 2 * shortest {
        return Vec::new();
    }
    let cost = Cost::new(values);
    let mut best = vec![f64::INFINITY; n + 1];
    let mut last = vec![0; n + 1];
    best[0] = -penalty;
    // Starts that may still be best, each with the first end for which it cannot be.
    let mut candidates = vec![(0, usize::MAX)];
    for end in shortest..=n {
        candidates.retain(|(_, until)| end < *until);
        for &(start, _) in &candidates {
            let total = best[start] + cost.of(start, end) + penalty;
            if total < best[end] {
                (best[end], last[end]) = (total, start);
            }
        }
        // A start that is worse than a change at `end` even without its penalty stays so for every
        // later end that leaves room for a segment after the change.
        for (start, until) in &mut candidates {
            if best[*start] + cost.of(*start, end) > best[end] + 1e-9 * penalty.abs() {
                *until = (*until).min(end + shortest);
            }
        }
        let next = end + 1 - shortest;
        if next >= shortest {
            candidates.push((next, usize::MAX));
        }
    }
    let mut starts = Vec::new();
    let mut end = last[n];
    while end > 0 {
        starts.push(end);
        end = last[end];
    }
    starts.reverse();
    starts
}

/// Squared deviations from the mean, for any segment in constant time.
struct Cost {
    sums: Vec<f64>,
    squares: Vec<f64>,
}

impl Cost {
    fn new(values: &[f64]) -> Self {
        // Taking the mean away first keeps the difference of large sums exact enough.
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let running = |f: fn(f64) -> f64| {
            let mut total = 0.0;
            std::iter::once(0.0)
                .chain(values.iter().map(move |v| {
                    total += f(v - mean);
                    total
                }))
                .collect()
        };
        Self { sums: running(|v| v), squares: running(|v| v * v) }
    }

    fn of(&self, from: usize, to: usize) -> f64 {
        let sum = self.sums[to] - self.sums[from];
        (self.squares[to] - self.squares[from] - sum * sum / (to - from) as f64).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop, prop_assert, proptest};

    use super::*;

    fn noise(n: usize, seed: u64) -> Vec<f64> {
        let mut rng = Rng::new(seed);
        (0..n).map(|_| rng.unit() - 0.5).collect()
    }

    fn places(values: &[f64]) -> Vec<usize> {
        changes(values, &mut Rng::new(1)).iter().map(|c| c.at).collect()
    }

    #[test]
    fn finds_each_step_and_nothing_else() {
        let mut series = noise(60, 1);
        series.extend(noise(80, 2).iter().map(|v| v + 3.0));
        series.extend(noise(50, 3).iter().map(|v| v + 1.0));
        assert_eq!(places(&series), [60, 140]);
        assert_eq!(pelt(&series, 3.0, 5), [60, 140]);
    }

    #[test]
    fn a_slow_oscillation_is_no_change() {
        let mut last = 0.0;
        let series: Vec<f64> = noise(400, 4)
            .iter()
            .map(|v| {
                last = 0.85 * last + v;
                last
            })
            .collect();
        assert_eq!(places(&series), [] as [usize; 0]);
    }

    /// 100 series without change: at the level of 0.5 % a change appears in at most a few.
    #[test]
    fn noise_is_hardly_ever_a_change() {
        let wrong = (0..100).filter(|seed| !places(&noise(60, *seed)).is_empty()).count();
        assert!(wrong <= 3, "{wrong} of 100");
    }

    #[test]
    fn constants_and_scraps_have_no_change() {
        assert!(places(&[4.2; 50]).is_empty() && places(&[]).is_empty() && places(&[1.0, 9.0]).is_empty());
        assert!(pelt(&[], 1.0, 1).is_empty() && pelt(&[1.0], 1.0, 1).is_empty());
    }

    /// Reference for [`pelt`]: tries every set of changes.
    fn segments_by_brute_force(values: &[f64], penalty: f64, shortest: usize) -> Vec<usize> {
        let n = values.len();
        assert!(n <= 20, "2^{n} sets are too many");
        let cost = Cost::new(values);
        let sets = 0u32..1 << n.saturating_sub(1);
        let starts = |set: u32| (1..n).filter(|i| set >> (i - 1) & 1 == 1).collect::<Vec<usize>>();
        let price = |starts: &Vec<usize>| {
            let from = std::iter::once(0).chain(starts.iter().copied());
            let to = starts.iter().copied().chain(std::iter::once(n));
            let lengths_fit = from.clone().zip(to.clone()).all(|(from, to)| to - from >= shortest.max(1));
            if !lengths_fit {
                return f64::INFINITY;
            }
            from.zip(to).map(|(from, to)| cost.of(from, to)).sum::<f64>() + penalty * starts.len() as f64
        };
        sets.map(starts).min_by(|a, b| price(a).total_cmp(&price(b))).unwrap_or_default()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn pelt_finds_what_trying_everything_finds(
            values in prop::collection::vec(0i32..6, 1..12),
            penalty in 0.1f64..12.0,
            shortest in 1usize..4,
        ) {
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            let price = |starts: &[usize]| {
                let cost = Cost::new(&values);
                let ends = starts.iter().copied().chain([values.len()]);
                std::iter::once(0).chain(starts.iter().copied()).zip(ends).map(|(a, b)| cost.of(a, b)).sum::<f64>()
                    + penalty * starts.len() as f64
            };
            let fast = pelt(&values, penalty, shortest);
            prop_assert!(fast.iter().all(|s| *s >= shortest && *s + shortest <= values.len()));
            if values.len() >= shortest {
                prop_assert!((price(&fast) - price(&segments_by_brute_force(&values, penalty, shortest))).abs() < 1e-9);
            }
        }
    }
}
