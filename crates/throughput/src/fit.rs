//! Fitting: weighted least squares on the relative error, robust fits for comparison, and
//! statistics of the residuals.
//!
//! Times of 64-byte and of 9000-byte packets differ by a factor of ten or more and scatter in
//! proportion, so every row is divided by its time: the fit minimises the relative error.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::linear::least_squares;
use stats::quantile_sorted;

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Inner packet in bytes.
    pub size: f64,
    /// Time per packet in nanoseconds.
    pub time_ns: f64,
    /// Weight, 1 by default.
    pub weight: f64,
}

impl Sample {
    /// A sample of weight 1.
    pub fn new(size: f64, time_ns: f64) -> Self {
        Self { size, time_ns, weight: 1.0 }
    }

    /// A sample from a rate in 10⁶ bit/s.
    pub fn from_mbps(size: f64, mbps: f64) -> Self {
        Self::new(size, super::equation::time_ns(size, mbps))
    }
}

/// Quantile over the samples of one size: other load of the machine makes a sample slower, never
/// faster, and up to three quarters of them may be affected.
pub const UNDISTURBED: f64 = 0.25;

/// Sizes of `samples` in ascending order, each once, with the lower quartile of the times and the
/// mean weight of its samples.
pub fn undisturbed(samples: &[Sample]) -> Vec<Sample> {
    per_size(samples, UNDISTURBED)
}

fn per_size(samples: &[Sample], quantile: f64) -> Vec<Sample> {
    let mut sizes: Vec<f64> = samples.iter().map(|s| s.size).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let of = |size: f64| {
        let (mut times, weights): (Vec<f64>, Vec<f64>) =
            samples.iter().filter(|s| s.size == size).map(|s| (s.time_ns, s.weight)).unzip();
        times.sort_by(f64::total_cmp);
        let weight = weights.iter().sum::<f64>() / weights.len() as f64;
        Sample { size, time_ns: quantile_sorted(&times, quantile), weight }
    };
    sizes.into_iter().map(of).collect()
}

/// A fitted linear form: time = Σ coef · basis.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Fit {
    /// Parameters, in nanoseconds per unit of their basis function.
    pub coef: Vec<f64>,
    /// Their covariance.
    pub covariance: Vec<Vec<f64>>,
    /// Standard deviation of the relative residuals.
    pub relative_sd: f64,
    /// Samples less parameters.
    pub freedom: f64,
}

/// A point estimate with an interval.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Interval {
    /// Point.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The `p` quantile of Student's t; infinite without degrees of freedom.
pub fn student(p: f64, freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |t| t.inverse_cdf(p))
}

impl Fit {
    /// The fitted time for `row`.
    pub fn time_ns(&self, row: &[f64]) -> f64 {
        self.coef.iter().zip(row).map(|(c, x)| c * x).sum()
    }

    /// Interval of parameter `i` at `confidence` (e.g. 0.95).
    pub fn parameter(&self, i: usize, confidence: f64) -> Interval {
        let half = student(0.5 + confidence / 2.0, self.freedom) * self.covariance[i][i].sqrt();
        let value = self.coef[i];
        Interval { value, low: value - half, high: value + half }
    }

    /// Correlation of the first two parameters, strongly negative for a line.
    pub fn correlation(&self) -> f64 {
        let c = &self.covariance;
        if c.len() < 2 { 0.0 } else { c[0][1] / (c[0][0] * c[1][1]).sqrt() }
    }

    /// Interval for one new measurement of `row` at `confidence`.
    pub fn prediction(&self, row: &[f64], confidence: f64) -> Interval {
        let value = self.time_ns(row);
        let of_fit: f64 = row
            .iter()
            .zip(&self.covariance)
            .map(|(x, line)| x * line.iter().zip(row).map(|(c, y)| c * y).sum::<f64>())
            .sum();
        let sd = (of_fit + (self.relative_sd * value).powi(2)).sqrt();
        let half = student(0.5 + confidence / 2.0, self.freedom) * sd;
        Interval { value, low: value - half, high: value + half }
    }
}

/// Least squares of relative errors. `None` when there are fewer samples than parameters or they
/// cannot tell them apart.
pub fn weighted(rows: &[Vec<f64>], samples: &[Sample]) -> Option<Fit> {
    let scaled: Vec<Vec<f64>> = rows
        .iter()
        .zip(samples)
        .map(|(row, s)| row.iter().map(|x| x * s.weight.sqrt() / s.time_ns).collect())
        .collect();
    let y: Vec<f64> = samples.iter().map(|s| s.weight.sqrt()).collect();
    let solution = least_squares(&scaled, &y)?;
    let freedom = (rows.len() - solution.coef.len()) as f64;
    let variance = if freedom > 0.0 { solution.sse / freedom } else { 0.0 };
    let covariance = solution.unscaled.iter().map(|r| r.iter().map(|c| c * variance).collect()).collect();
    Some(Fit { coef: solution.coef, covariance, relative_sd: variance.sqrt(), freedom })
}

/// Relative residuals: (fitted − measured) / measured.
pub fn residuals(fit: &Fit, rows: &[Vec<f64>], samples: &[Sample]) -> Vec<f64> {
    rows.iter().zip(samples).map(|(row, s)| fit.time_ns(row) / s.time_ns - 1.0).collect()
}

/// Runs of equal sign among residuals in order of size: few runs mean curvature, not noise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SignRuns {
    /// Signs, smallest size first: `+` where the fit is too slow.
    pub signs: String,
    /// Runs.
    pub runs: usize,
    /// Probability of at most so many runs if signs came in random order.
    pub p: f64,
}

/// Runs of the signs of `residuals`, which are in order of size.
pub fn sign_runs(residuals: &[f64]) -> SignRuns {
    let signs: String = residuals.iter().filter(|r| **r != 0.0).map(|r| if *r > 0.0 { '+' } else { '-' }).collect();
    let runs = signs.as_bytes().chunk_by(|a, b| a == b).count();
    let plus = signs.matches('+').count();
    SignRuns { runs, p: at_most_runs(plus, signs.len() - plus, runs), signs }
}

/// Probability of at most `runs` runs of `a` signs of one kind and `b` of the other in random order
/// (Wald, Wolfowitz).
fn at_most_runs(a: usize, b: usize, runs: usize) -> f64 {
    if a == 0 || b == 0 {
        return 1.0;
    }
    let choose =
        |n: usize, k: usize| if k > n { 0.0 } else { statrs::function::factorial::binomial(n as u64, k as u64) };
    let ways = |r: usize| {
        let k = r / 2;
        if r.is_multiple_of(2) {
            2.0 * choose(a - 1, k - 1) * choose(b - 1, k - 1)
        } else {
            choose(a - 1, k) * choose(b - 1, k - 1) + choose(a - 1, k - 1) * choose(b - 1, k)
        }
    };
    ((2..=runs).map(ways).sum::<f64>() / choose(a + b, a)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64, relative: f64) {
        assert!((a / b - 1.0).abs() <= relative, "{a} is not {b}");
    }

    const SIZES: [f64; 6] = [64.0, 128.0, 256.0, 512.0, 1024.0, 1500.0];

    fn samples(times: [f64; 6]) -> (Vec<Vec<f64>>, Vec<Sample>) {
        (
            SIZES.iter().map(|l| vec![1.0, *l]).collect(),
            SIZES.iter().zip(times).map(|(l, t)| Sample::new(*l, t)).collect(),
        )
    }

    const CLEAN: [f64; 6] = [101.0, 130.5, 195.2, 318.9, 570.3, 801.7];

    /// NumPy 2.4 lstsq on rows divided by time, SciPy 1.17 t.ppf.
    #[test]
    fn weighted_least_squares_agrees_with_an_outside_opinion() {
        let (rows, samples) = samples(CLEAN);
        let fit = weighted(&rows, &samples).unwrap();
        close(fit.coef[0], 69.2168913631, 1e-10);
        close(fit.coef[1], 0.48850417911, 1e-10);
        close(fit.relative_sd.powi(2), 3.6040810399499664e-5, 1e-9);
        close(fit.covariance[0][0].sqrt(), 0.54862285, 1e-7);
        let fixed = fit.parameter(0, 0.95);
        close(fixed.low, 67.69367014516588, 1e-8);
        close(fixed.high, 70.74011258110836, 1e-8);
        let new = fit.prediction(&[1.0, 700.0], 0.9);
        close(new.low, 405.25812413259376, 1e-8);
        close(new.high, 417.08150934750466, 1e-8);
        assert!(fit.correlation() < -0.5);
    }

    /// The exact distribution, counted in Python.
    #[test]
    fn sign_runs_agree_with_an_outside_opinion() {
        close(at_most_runs(6, 6, 3), 0.012987012987012988, 1e-9);
        close(at_most_runs(10, 8, 5), 0.013368983957219251, 1e-9);
        let curved = sign_runs(&[0.1, 0.2, -0.1, -0.2, -0.3, 0.2, 0.1]);
        assert_eq!((curved.signs.as_str(), curved.runs), ("++---++", 3));
        assert_eq!(sign_runs(&[]).p, 1.0);
    }

    #[test]
    fn quartiles_are_per_size_and_in_order() {
        let samples = [(512.0, 3.0), (64.0, 1.0), (512.0, 9.0), (512.0, 5.0)].map(|(s, t)| Sample::new(s, t));
        assert_eq!(undisturbed(&samples), vec![Sample::new(64.0, 1.0), Sample::new(512.0, 4.0)]);
    }
}
