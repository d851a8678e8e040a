//! Several cores: how flows spread over queues first, how cores hinder each other second.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, Normal};

use super::fit::Interval;
use super::fit::student;
use super::linear::least_squares;

/// Expected queues that receive anything when `flows` flows are hashed onto `queues`.
pub fn used_queues(queues: u32, flows: u32) -> f64 {
    let m = f64::from(queues);
    m * (1.0 - (1.0 - 1.0 / m).powi(flows as i32))
}

/// Most flows for which [`mean_largest`] counts exactly.
const MAX_FLOWS: u32 = 64;

/// Expected flows on the fullest of `queues` when `flows` flows are hashed onto them; beyond 64
/// flows Blom's estimate from the normal distribution.
pub fn mean_largest(queues: u32, flows: u32) -> f64 {
    if queues <= 1 || flows == 0 {
        return f64::from(flows);
    }
    let (n, m) = (f64::from(flows), f64::from(queues));
    if flows > MAX_FLOWS {
        let sd = (n / m * (1.0 - 1.0 / m)).sqrt();
        return n / m + sd * Normal::standard().inverse_cdf((m - 0.375) / (m + 0.25));
    }
    // E[max] = sum over k of P(max > k).
    (0..flows).map(|k| 1.0 - all_at_most(queues, flows, k)).sum()
}

/// Probability that no queue gets more than `k` flows: n!/mⁿ times the coefficient of xⁿ in (Σ
/// xⁱ/i!)ᵐ, with its factorials spread so that nothing overflows.
fn all_at_most(queues: u32, flows: u32, k: u32) -> f64 {
    let n = flows as usize;
    // ways[j]: probability that j of the flows are on the queues processed so far, with at most k
    // on each.
    let mut ways = vec![0.0; n + 1];
    ways[0] = 1.0;
    for queue in 0..queues {
        let left = f64::from(queues - queue);
        let mut next = vec![0.0; n + 1];
        for (j, p) in ways.iter().enumerate().filter(|(_, p)| **p > 0.0) {
            // Of the n − j flows that are left, each takes this queue with probability 1/left.
            let (rest, hit) = (n - j, 1.0 / left);
            if left == 1.0 {
                if rest <= k as usize {
                    next[n] += p;
                }
                continue;
            }
            let mut term = (1.0 - hit).powi(rest as i32);
            for i in 0..=rest.min(k as usize) {
                next[j + i] += p * term;
                term *= (rest - i) as f64 / (i + 1) as f64 * hit / (1.0 - hit);
            }
        }
        ways = next;
    }
    ways[n]
}

/// Speed-up that `flows` flows of equal rate reach at most on average, when the fullest queue
/// decides.
pub fn spread_limit(queues: u32, flows: u32) -> f64 {
    f64::from(flows) / mean_largest(queues, flows)
}

/// Gunther's universal law: X(N) = N·X₁ / (1 + σ(N−1) + κN(N−1)).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Usl {
    /// Throughput of one core.
    pub one: f64,
    /// σ, the share that is serial.
    pub contention: f64,
    /// κ, what cores cost each other pairwise.
    pub coherency: f64,
}

/// A fitted law with 95 % intervals.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UslFit {
    /// Parameters.
    pub law: Usl,
    /// Interval of σ.
    pub contention: Interval,
    /// Interval of κ.
    pub coherency: Interval,
}

/// Core counts that a fit needs.
pub const MIN_CORE_COUNTS: usize = 6;

impl Usl {
    /// Throughput of `n` cores.
    pub fn throughput(&self, n: f64) -> f64 {
        n * self.one / (1.0 + self.contention * (n - 1.0) + self.coherency * n * (n - 1.0))
    }

    /// Core count of the highest throughput; endless without coherency.
    pub fn peak(&self) -> f64 {
        ((1.0 - self.contention) / self.coherency).sqrt()
    }

    /// Fits (cores, throughput); `None` for fewer than [`MIN_CORE_COUNTS`] different core counts.
    ///
    /// N/X is linear in 1/X₁, σ/X₁ and κ/X₁; relative errors are minimised.
    pub fn fit(points: &[(f64, f64)]) -> Option<UslFit> {
        let mut counts: Vec<f64> = points.iter().map(|p| p.0).collect();
        counts.sort_by(f64::total_cmp);
        counts.dedup();
        if counts.len() < MIN_CORE_COUNTS {
            return None;
        }
        let rows: Vec<Vec<f64>> =
            points.iter().map(|(n, x)| [1.0, n - 1.0, n * (n - 1.0)].map(|v| v * x / n).to_vec()).collect();
        let solution = least_squares(&rows, &vec![1.0; points.len()])?;
        let [inverse, serial, pairwise] = solution.coef[..] else { return None };
        let freedom = (points.len() - 3) as f64;
        let variance = solution.sse / freedom;
        let law = Usl { one: 1.0 / inverse, contention: serial / inverse, coherency: pairwise / inverse };
        // The ratio of two estimates: first-order error.
        let interval = |i: usize, value: f64| {
            let u = &solution.unscaled;
            let error = variance * (u[i][i] - 2.0 * value * u[0][i] + value * value * u[0][0]);
            let half = student(0.975, freedom) * error.max(0.0).sqrt() / inverse;
            Interval { value, low: value - half, high: value + half }
        };
        Some(UslFit { law, contention: interval(1, law.contention), coherency: interval(2, law.coherency) })
    }
}

/// Karp and Flatt: the serial share that a measured `speed_up` on `n` cores implies.
pub fn karp_flatt(speed_up: f64, n: f64) -> f64 {
    (1.0 / speed_up - 1.0 / n) / (1.0 - 1.0 / n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stats::Rng;

    fn close(a: f64, b: f64, relative: f64) {
        assert!((a / b - 1.0).abs() <= relative, "{a} is not {b}");
    }

    #[test]
    fn golden_spread() {
        for (queues, flows, used) in [(8, 8, 5.2511), (6, 6, 3.9906), (3, 8, 2.8829)] {
            close(used_queues(queues, flows), used, 1e-4);
        }
        close(mean_largest(8, 8), 2.6, 0.02);
        close(spread_limit(8, 8), 3.1, 0.02);
    }

    #[test]
    fn the_largest_queue_is_what_throwing_flows_shows() {
        let mut rng = Rng::new(1);
        for (queues, flows) in [(2, 3), (4, 16), (8, 60), (8, 1000)] {
            let mean = (0..4000)
                .map(|_| {
                    let mut load = vec![0; queues];
                    (0..flows).for_each(|_| load[rng.below(queues)] += 1);
                    f64::from(load.into_iter().max().unwrap())
                })
                .sum::<f64>()
                / 4000.0;
            close(mean_largest(queues as u32, flows), mean, 0.02);
        }
        assert_eq!((mean_largest(1, 5), mean_largest(4, 0)), (5.0, 0.0));
        close(mean_largest(8, 65), mean_largest(8, 64), 0.05);
    }

    #[test]
    fn the_law_is_found_again_and_too_few_counts_are_refused() {
        let law = Usl { one: 3.2e6, contention: 0.04, coherency: 0.001 };
        let points: Vec<(f64, f64)> = [1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0].map(|n| (n, law.throughput(n))).to_vec();
        let fit = Usl::fit(&points).unwrap();
        close(fit.law.contention, 0.04, 1e-6);
        close(fit.law.coherency, 0.001, 1e-6);
        close(fit.law.one, 3.2e6, 1e-9);
        assert!(fit.contention.high - fit.contention.low < 1e-6);
        close(law.peak(), 960f64.sqrt(), 1e-9);
        assert_eq!(Usl::fit(&points[..5]), None);
    }

    #[test]
    fn karp_and_flatt_invert_amdahl() {
        let amdahl = |serial: f64, n: f64| 1.0 / (serial + (1.0 - serial) / n);
        for (serial, n) in [(0.05, 8.0), (0.3, 2.0)] {
            close(karp_flatt(amdahl(serial, n), n), serial, 1e-12);
        }
    }
}
