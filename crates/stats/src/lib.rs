//! Statistics of measurements: medians, intervals, paired ratios, verdicts and the order of trials.
//!
//! Intervals are over *sessions*, never over packets: trials of one process share its memory
//! layout, so they are not independent of each other ([`paired`], [`unpaired`]). A difference is
//! claimed only when its interval leaves the band in which a subject differs from itself
//! ([`judge`]); "inconclusive" is a result.

mod bootstrap;
mod change;
mod latency;
mod order;
mod rated;
mod ratio;
mod series;
mod verdict;

pub use bootstrap::{bca, block_interval, lower_quartile, over_clusters, over_units, simple_interval};
pub use change::{Change, changes, pelt};
pub use latency::Latency;
pub use order::{Step, mirrored};
pub use rated::{Rated, RatedTimes};
pub use ratio::{Ratio, Unit, hodges_lehmann, paired, sign_test, unpaired};
pub use series::{Analysis, Phase, analyse, autocorrelation, block_length, integral_time, lag1};
pub use verdict::{Judged, Limits, Verdict, benjamini_hochberg, holm, judge, judge_all};

/// A small, fast, seeded generator (SplitMix64): measurements repeat exactly from their seed.
pub struct Rng(u64);

impl Rng {
    /// A generator that always yields the same sequence for `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n` (`n` > 0), by multiplication rather than remainder.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }

    /// A number from 0 to 1, 1 excluded.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Puts `items` into random order (Fisher and Yates), every order equally likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// The median; the mean of the middle two for an even count. `NaN` for none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_sorted(&sorted, 0.5)
}

/// The `q` quantile of sorted values, with linear interpolation. `NaN` for none.
pub fn quantile_sorted(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = q * last as f64;
    let (low, part) = (at.floor() as usize, at.fract());
    let high = (low + 1).min(last);
    sorted[low] + (sorted[high] - sorted[low]) * part
}

/// The arithmetic mean. `NaN` for none.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of a sample (divided by n − 1). `NaN` for fewer than two.
pub fn sd(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return f64::NAN;
    }
    let mean = mean(values);
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}

/// The coefficient of variation: standard deviation over mean.
pub fn cv(values: &[f64]) -> f64 {
    sd(values) / mean(values)
}

/// Jain's index of fairness of shares: 1 when all are equal, 1/n when one has all. `NaN` where
/// there is nothing to share.
pub fn jain(shares: &[f64]) -> f64 {
    let squares: f64 = shares.iter().map(|s| s * s).sum();
    shares.iter().sum::<f64>().powi(2) / (shares.len() as f64 * squares)
}

/// A value with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Estimate {
    /// Point estimate.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// The same through a growing function, such as `exp` for a logarithm of a ratio.
    pub fn map(self, grows: impl Fn(f64) -> f64) -> Self {
        Self { value: grows(self.value), low: grows(self.low), high: grows(self.high) }
    }
}

/// Resamples for a bootstrap interval.
const RESAMPLES: usize = 1000;

/// The median of `values` with its percentile bootstrap 95 % interval.
pub fn median_with_interval(values: &[f64], rng: &mut Rng) -> Estimate {
    let mut medians: Vec<f64> = Vec::with_capacity(RESAMPLES);
    let mut sample = vec![0.0; values.len()];
    if values.is_empty() {
        return Estimate { value: f64::NAN, low: f64::NAN, high: f64::NAN };
    }
    for _ in 0..RESAMPLES {
        for s in &mut sample {
            *s = values[rng.below(values.len())];
        }
        medians.push(median(&sample));
    }
    medians.sort_by(f64::total_cmp);
    Estimate { value: median(values), low: quantile_sorted(&medians, 0.025), high: quantile_sorted(&medians, 0.975) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    /// SciPy 1.17, numpy.quantile(range(11), [0.025, 0.975]) = [0.25, 9.75].
    #[test]
    fn quantiles_agree_with_an_outside_opinion() {
        let values: Vec<f64> = (0..11).map(f64::from).collect();
        assert!((quantile_sorted(&values, 0.025) - 0.25).abs() < 1e-12);
        assert!((quantile_sorted(&values, 0.975) - 9.75).abs() < 1e-12);
    }

    /// SciPy 1.17 and numpy 2.4: numpy.std([2, 4, 4, 5, 9], ddof=1) = 2.588435821108957,
    /// scipy.stats.variation(…, ddof=1).
    #[test]
    fn spread_agrees_with_an_outside_opinion() {
        let values = [2.0, 4.0, 4.0, 5.0, 9.0];
        assert!((sd(&values) - 2.588_435_821_108_957).abs() < 1e-12);
        assert!((cv(&values) - 0.539_257_462_731_032_7).abs() < 1e-12);
        assert!(sd(&[1.0]).is_nan());
    }

    #[test]
    fn jain_is_one_for_equal_shares_and_one_nth_for_a_single_taker() {
        assert!((jain(&[3.0; 8]) - 1.0).abs() < 1e-12);
        assert!((jain(&[0.0, 0.0, 0.0, 5.0]) - 0.25).abs() < 1e-12);
        assert!(jain(&[]).is_nan() && jain(&[0.0; 4]).is_nan());
    }

    /// Six orders of three things, 6000 shuffles: each about 1000 times (five standard deviations
    /// allowed).
    #[test]
    fn every_order_is_equally_likely() {
        let (mut rng, mut seen) = (Rng::new(3), std::collections::BTreeMap::new());
        for _ in 0..6000 {
            let mut items = [0, 1, 2];
            rng.shuffle(&mut items);
            *seen.entry(items).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 6);
        assert!(seen.values().all(|n| (855..1145).contains(n)), "{seen:?}");
    }

    /// The interval covers the true median about 95 times in 100 (here 200 samples of 31 uniform
    /// values; three standard deviations allowed).
    #[test]
    fn the_interval_covers_the_truth_as_often_as_it_says() {
        let mut rng = Rng::new(7);
        let trials = 200;
        let covered = (0..trials)
            .filter(|_| {
                let values: Vec<f64> = (0..31).map(|_| rng.next_u64() as f64 / u64::MAX as f64).collect();
                let estimate = median_with_interval(&values, &mut rng);
                estimate.low <= 0.5 && 0.5 <= estimate.high
            })
            .count();
        assert!((180..=200).contains(&covered), "covered {covered} of {trials}");
    }
}
