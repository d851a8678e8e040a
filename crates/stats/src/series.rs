//! Series of samples in time: how sure their mean is, and whether they have one mean at all.
//!
//! Neighbouring samples of a transfer are similar, so an interval that takes them for independent
//! is too narrow, and a mean over two regimes describes neither. [`analyse`] therefore looks for
//! changes first, reports each phase on its own, and draws blocks instead of samples.

use serde::{Deserialize, Serialize};

use crate::change::{Change, changes};
use crate::{Estimate, Rng, block_interval, cv, mean, median};

/// Statistics of a series.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Analysis {
    /// Samples.
    pub samples: usize,
    /// Mean of all. With more than one phase it describes none of them.
    pub mean: f64,
    /// 95 % interval of the mean by block bootstrap; `None` with more than one phase.
    pub interval: Option<[f64; 2]>,
    /// Length of blocks in samples.
    pub block: usize,
    /// Standard deviation over mean.
    pub cv: f64,
    /// Autocorrelation at lag 1.
    pub lag1: f64,
    /// Independent samples that would determine the mean as well.
    pub effective_samples: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Change points.
    pub changes: Vec<Change>,
    /// Phases between change points; one phase if there are none.
    pub phases: Vec<Phase>,
}

/// A stretch of a series without change. Samples are counted from 0.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Phase {
    /// First sample.
    pub from: usize,
    /// Last sample, included.
    pub to: usize,
    /// Mean with its 95 % interval by block bootstrap.
    pub mean: Estimate,
    /// Standard deviation over mean.
    pub cv: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

/// Analyses a series. `block` overrides the length of bootstrap blocks. `None` for an empty series
/// or one with an invalid value.
///
/// A sample next to a change that belongs to neither level is in no phase: the change happened
/// within it.
pub fn analyse(values: &[f64], block: Option<usize>, rng: &mut Rng) -> Option<Analysis> {
    if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
        return None;
    }
    let changes = changes(values, rng);
    let phases = phases(values, &changes, block, rng);
    let time = integral_time(values);
    let length = block.unwrap_or_else(|| block_length(values));
    let whole = phases.first().filter(|_| changes.is_empty()).map(|phase| phase.mean);
    Some(Analysis {
        samples: values.len(),
        mean: mean(values),
        interval: whole.map(|mean| [mean.low, mean.high]),
        block: length,
        cv: cv(values),
        lag1: lag1(values),
        effective_samples: values.len() as f64 / time,
        min: values.iter().copied().fold(f64::INFINITY, f64::min),
        max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        changes,
        phases,
    })
}

fn phases(values: &[f64], changes: &[Change], block: Option<usize>, rng: &mut Rng) -> Vec<Phase> {
    let starts = std::iter::once(0).chain(changes.iter().map(|c| c.at));
    let ends = changes.iter().map(|c| c.at).chain(std::iter::once(values.len()));
    let bounds: Vec<(usize, usize)> = starts.zip(ends).collect();
    let levels: Vec<f64> = bounds.iter().map(|(from, to)| median(&values[*from..*to])).collect();
    let mut phases = Vec::with_capacity(bounds.len());
    for (i, &(mut from, mut to)) in bounds.iter().enumerate() {
        let inside = &values[from..to];
        if i > 0 && between(inside[0], inside, levels[i - 1]) {
            from += 1;
        }
        if i + 1 < bounds.len() && between(inside[inside.len() - 1], inside, levels[i + 1]) {
            to -= 1;
        }
        let inside = &values[from..to];
        let length = block.unwrap_or_else(|| block_length(inside));
        phases.push(Phase {
            from,
            to: to - 1,
            mean: block_interval(inside, length, mean, rng),
            cv: cv(inside),
            min: inside.iter().copied().fold(f64::INFINITY, f64::min),
            max: inside.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        });
    }
    phases
}

/// Returns whether `edge`, first or last of `phase`, deviates from its level by more than three
/// deviations towards the `other` level.
fn between(edge: f64, phase: &[f64], other: f64) -> bool {
    let level = median(phase);
    let deviations: Vec<f64> = phase.iter().map(|v| (v - level).abs()).collect();
    // 1.4826 makes the median deviation of normal values their standard deviation.
    let off = (edge - level) * (other - level).signum();
    phase.len() > 2 && off > 3.0 * 1.4826 * median(&deviations) && off < (other - level).abs()
}

/// Blocks for a series: five times its integral time, at least the cube root of its length, at most
/// a quarter of it.
pub fn block_length(values: &[f64]) -> usize {
    let n = values.len();
    let wanted = (5.0 * integral_time(values)).ceil().max((n as f64).cbrt().ceil()) as usize;
    wanted.clamp(1, (n / 4).max(1))
}

/// The autocorrelation at a distance of `lag` samples, 1 at 0. `NaN` for a series that does not
/// vary.
pub fn autocorrelation(values: &[f64], lag: usize) -> f64 {
    let mean = mean(values);
    let off: Vec<f64> = values.iter().map(|v| v - mean).collect();
    let all: f64 = off.iter().map(|v| v * v).sum();
    off.iter().zip(off.iter().skip(lag)).map(|(a, b)| a * b).sum::<f64>() / all
}

/// Pearson's correlation of each sample with the next: [`autocorrelation`] at 1 but with the means
/// of both ends.
pub fn lag1(values: &[f64]) -> f64 {
    let Some((_, later)) = values.split_first() else { return f64::NAN };
    let earlier = &values[..values.len() - 1];
    let (a, b) = (mean(earlier), mean(later));
    let (mut both, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (x, y) in earlier.iter().zip(later) {
        both += (x - a) * (y - b);
        aa += (x - a).powi(2);
        bb += (y - b).powi(2);
    }
    both / (aa * bb).sqrt()
}

/// Integral autocorrelation time in samples: 1 plus twice the sum of autocorrelations, summed in
/// pairs for as long as a pair is positive (Geyer). 1 for independent samples, and for a series
/// that does not vary.
pub fn integral_time(values: &[f64]) -> f64 {
    let mut time = 1.0;
    let mut lag = 1;
    while lag + 1 < values.len() / 2 {
        let pair = autocorrelation(values, lag) + autocorrelation(values, lag + 1);
        if pair.is_nan() || pair <= 0.0 {
            break;
        }
        time += 2.0 * pair;
        lag += 2;
    }
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u64) -> Vec<f64> {
        let mut rng = Rng::new(seed);
        (0..n).map(|_| rng.unit() - 0.5).collect()
    }

    /// numpy 2.4: numpy.corrcoef(x[:-1], x[1:])[0, 1] and the biased autocorrelation of [1, 2, 4,
    /// 3, 5, 7, 6, 8].
    #[test]
    fn correlations_agree_with_an_outside_opinion() {
        let x = [1.0, 2.0, 4.0, 3.0, 5.0, 7.0, 6.0, 8.0];
        assert!((lag1(&x) - 0.785_714_285_714_285_9).abs() < 1e-9, "{}", lag1(&x));
        assert!((autocorrelation(&x, 1) - 0.482_142_857_142_857_15).abs() < 1e-9, "{}", autocorrelation(&x, 1));
        assert_eq!(autocorrelation(&x, 0), 1.0);
    }

    /// An autoregressive series with 0.8 has an integral time of (1 + 0.8)/(1 − 0.8) = 9.
    #[test]
    fn memory_lowers_the_effective_sample_size() {
        let mut last = 0.0;
        let series: Vec<f64> = noise(20_000, 3)
            .iter()
            .map(|n| {
                last = 0.8 * last + n;
                last
            })
            .collect();
        let time = integral_time(&series);
        assert!((7.5..10.5).contains(&time), "{time}");
        let time = integral_time(&noise(20_000, 4));
        assert!((0.9..1.15).contains(&time), "{time}");
        assert_eq!(integral_time(&[2.0; 50]), 1.0);
    }

    #[test]
    fn a_step_makes_two_phases_without_the_sample_in_which_it_happened() {
        let mut series: Vec<f64> = noise(120, 5).iter().map(|n| 40.0 + n).collect();
        series.push(33.0);
        series.extend(noise(200, 6).iter().map(|n| 23.0 + n));
        let analysis = analyse(&series, None, &mut Rng::new(1)).expect("numbers");
        assert_eq!(analysis.interval, None);
        let bounds: Vec<(usize, usize)> = analysis.phases.iter().map(|p| (p.from, p.to)).collect();
        assert_eq!(bounds, [(0, 119), (121, 320)]);
        assert!((analysis.phases[1].mean.value - 23.0).abs() < 0.1);
    }

    #[test]
    fn a_steady_series_is_one_phase_with_an_interval() {
        let series: Vec<f64> = noise(300, 7).iter().map(|n| 10.0 + n).collect();
        let analysis = analyse(&series, None, &mut Rng::new(1)).expect("numbers");
        let [low, high] = analysis.interval.expect("one phase");
        assert!(low < 10.0 && 10.0 < high && high - low < 0.15, "{analysis:?}");
        assert_eq!((analysis.phases.len(), analysis.phases[0].from, analysis.phases[0].to), (1, 0, 299));
    }

    #[test]
    fn what_is_no_series_is_not_analysed() {
        assert_eq!(analyse(&[], None, &mut Rng::new(1)), None);
        assert_eq!(analyse(&[1.0, f64::NAN], None, &mut Rng::new(1)), None);
        let one = analyse(&[3.0], None, &mut Rng::new(1)).expect("one number");
        assert_eq!((one.mean, one.phases.len()), (3.0, 1));
    }
}
