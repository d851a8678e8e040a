//! Quantile regression: the value below which a given share of measurements lies, as a line.
//!
//! Least squares follows the mean, which a tail drags along; a percentile of latency is not a mean.
//! Minimised is the sum of `weight · ρ(residual)` with `ρ(r) = r·(τ − [r < 0])`. For a given slope
//! the best intercept is a quantile of the residuals, and over slopes the minimum is convex, so a
//! search between two slopes finds it exactly.

use serde::Serialize;

use stats::{Estimate, Rng, over_units};

/// Steps of the search over slopes: each leaves two thirds.
const STEPS: usize = 90;

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighted {
    /// Argument.
    pub x: f64,
    /// Value.
    pub y: f64,
    /// Weight, above 0.
    pub weight: f64,
}

/// Intercept and slope of the `tau` quantile line (0 < `tau` < 1) of `points`; `None` if all have
/// the same argument.
pub fn quantile_line(points: &[Weighted], tau: f64) -> Option<(f64, f64)> {
    let range = |of: fn(&Weighted) -> f64| {
        let (low, high) =
            points.iter().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        high - low
    };
    let mut xs: Vec<f64> = points.iter().map(|p| p.x).collect();
    xs.sort_by(f64::total_cmp);
    let gap = xs.windows(2).map(|w| w[1] - w[0]).filter(|gap| *gap > 0.0).fold(f64::INFINITY, f64::min);
    let steepest = range(|p| p.y) / gap;
    if points.is_empty() || !gap.is_finite() || !steepest.is_finite() {
        return None;
    }
    let mut left: Vec<(f64, f64)> = Vec::with_capacity(points.len());
    let mut at = |slope: f64| -> (f64, f64) {
        left.clear();
        left.extend(points.iter().map(|p| (p.y - slope * p.x, p.weight)));
        left.sort_by(|a, b| a.0.total_cmp(&b.0));
        let goal = tau * left.iter().map(|(_, w)| w).sum::<f64>();
        let mut sum = 0.0;
        let found = left.iter().find(|(_, w)| {
            sum += w;
            sum >= goal
        });
        let intercept = found.or(left.last()).map_or(0.0, |(v, _)| *v);
        let cost = |(v, w): &(f64, f64)| {
            let r = v - intercept;
            w * if r < 0.0 { r * (tau - 1.0) } else { r * tau }
        };
        (left.iter().map(cost).sum(), intercept)
    };
    let (mut low, mut high) = (-steepest, steepest);
    for _ in 0..STEPS {
        let third = (high - low) / 3.0;
        if at(low + third).0 <= at(high - third).0 { high -= third } else { low += third }
    }
    let slope = (low + high) / 2.0;
    Some((at(slope).1, slope))
}

/// A load and the time of one or several equal packets at that load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TailPoint {
    /// Load, 0 to 1.
    pub rho: f64,
    /// Nanoseconds from arrival to completion.
    pub ns: f64,
    /// Packets.
    pub packets: f64,
}

/// A percentile of latency over load: time = idle + per · ρ/(1 − ρ), in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TailLine {
    /// Share of packets that are faster.
    pub quantile: f64,
    /// At no load, 95 % over sessions.
    pub idle_ns: Estimate,
    /// Queueing delay at ρ = 0.5, 95 % over sessions.
    pub per_ns: Estimate,
}

/// The line of `quantile` through latencies of several sessions at several loads. Each session
/// holds (ρ, nanoseconds, packets). `None` with fewer than two loads below 1.
pub fn tail_line(sessions: &[Vec<TailPoint>], quantile: f64) -> Option<TailLine> {
    let fit = |points: &[TailPoint]| {
        let below = points.iter().filter(|p| p.rho < 0.99);
        let points: Vec<Weighted> =
            below.map(|p| Weighted { x: p.rho / (1.0 - p.rho), y: p.ns, weight: p.packets }).collect();
        quantile_line(&points, quantile)
    };
    // A session is one value: its own line.
    let lines: Vec<(f64, f64)> = sessions.iter().filter_map(|session| fit(session)).collect();
    let over = |of: fn(&(f64, f64)) -> f64| over_units(&lines.iter().map(of).collect::<Vec<f64>>(), &mut Rng::new(1));
    (!lines.is_empty()).then(|| TailLine { quantile, idle_ns: over(|line| line.0), per_ns: over(|line| line.1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(x: f64, y: f64) -> Weighted {
        Weighted { x, y, weight: 1.0 }
    }

    /// A line plus noise that is equal at both ends: the distance of the lines follows from the
    /// sorted noise.
    #[test]
    fn a_line_moves_with_the_quantile_of_its_noise() {
        let noise = (1..=101).map(f64::from);
        let points: Vec<Weighted> =
            noise.flat_map(|n| [0.0, 1.0, 5.0].map(|x| one(x, 1000.0 + 20.0 * x + n))).collect();
        for (tau, expected) in [(0.1, 1011.0), (0.5, 1051.0), (0.9, 1091.0)] {
            let (intercept, slope) = quantile_line(&points, tau).unwrap();
            assert!((intercept - expected).abs() < 1.5 && (slope - 20.0).abs() < 0.3, "{tau}: {intercept} {slope}");
        }
    }

    /// Noise of one side only that grows with x: the lines fan out by the quantiles of the
    /// exponential distribution.
    #[test]
    fn a_tail_that_grows_has_a_line_of_its_own() {
        let mut rng = Rng::new(4);
        let draw = |_| {
            let x = rng.unit() * 9.0;
            one(x, 100.0 + 10.0 * x - 5.0 * x * (1.0 - rng.unit()).ln())
        };
        let points: Vec<Weighted> = (0..3000).map(draw).collect();
        let slope = |tau: f64| quantile_line(&points, tau).unwrap().1;
        assert!((slope(0.5) - (10.0 + 5.0 * 2f64.ln())).abs() < 0.7, "{}", slope(0.5));
        assert!((slope(0.9) - (10.0 + 5.0 * 10f64.ln())).abs() < 1.5, "{}", slope(0.9));
    }

    /// Few that are very late do not move the median, which a search that starts from the mean
    /// would have to find back to.
    #[test]
    fn outliers_do_not_move_a_median() {
        let mut points: Vec<Weighted> =
            (0..400).map(|i| one(f64::from(i % 4), 500.0 + 100.0 * f64::from(i % 4) + f64::from(i % 7))).collect();
        points.extend([one(0.0, 1e7), one(1.0, 3e7), one(3.0, 2e6)]);
        let (intercept, slope) = quantile_line(&points, 0.5).unwrap();
        assert!((intercept - 503.0).abs() < 3.0 && (slope - 100.0).abs() < 2.0, "{intercept} {slope}");
    }

    #[test]
    fn a_weight_is_so_many_measurements() {
        let heavy = [one(0.0, 1.0), one(0.0, 2.0), Weighted { weight: 7.0, ..one(0.0, 30.0) }, one(1.0, 40.0)];
        let (intercept, slope) = quantile_line(&heavy, 0.5).unwrap();
        assert!((intercept - 30.0).abs() < 1e-6 && (slope - 10.0).abs() < 1e-6, "{intercept} {slope}");
        assert_eq!(quantile_line(&[one(1.0, 1.0), one(1.0, 2.0)], 0.5), None);
        assert_eq!(quantile_line(&[], 0.5), None);
    }

    #[test]
    fn latency_over_load_is_found_again_with_an_interval_over_sessions() {
        let sessions: Vec<Vec<TailPoint>> = (0..6)
            .map(|session| {
                let at = |rho: f64| (0..50).map(move |i| (rho, f64::from(i) / 50.0 - 0.5));
                [0.1, 0.5, 0.8, 0.9]
                    .into_iter()
                    .flat_map(at)
                    .map(|(rho, noise)| {
                        let ns = (1000.0 + 400.0 * rho / (1.0 - rho)) * (1.0 + 0.02 * noise) + f64::from(session);
                        TailPoint { rho, ns, packets: 3.0 }
                    })
                    .collect()
            })
            .collect();
        let line = tail_line(&sessions, 0.5).unwrap();
        assert!((line.idle_ns.value - 1000.0).abs() < 15.0 && (line.per_ns.value - 400.0).abs() < 10.0, "{line:?}");
        assert!(line.idle_ns.low <= line.idle_ns.value && line.idle_ns.value <= line.idle_ns.high, "{line:?}");
    }
}
