//! A monotone curve through measured points.

use serde::{Deserialize, Serialize};

use super::fit::Sample;

/// A piecewise cubic that rises wherever its points do (Fritsch and Butland), and is linear outside
/// them.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Spline {
    /// Sizes in bytes, ascending.
    size: Vec<f64>,
    /// Times in nanoseconds.
    time_ns: Vec<f64>,
    /// Derivatives.
    slope: Vec<f64>,
}

impl Spline {
    /// Through `points`, each size once and in ascending order; `None` for fewer than three.
    pub fn through(points: &[Sample]) -> Option<Self> {
        if points.len() < 3 {
            return None;
        }
        let size: Vec<f64> = points.iter().map(|p| p.size).collect();
        let time_ns: Vec<f64> = points.iter().map(|p| p.time_ns).collect();
        let step: Vec<f64> = size.windows(2).map(|w| w[1] - w[0]).collect();
        let secant: Vec<f64> = time_ns.windows(2).zip(&step).map(|(w, h)| (w[1] - w[0]) / h).collect();
        let last = step.len() - 1;
        let mut slope = vec![end(step[0], step[1], secant[0], secant[1])];
        for i in 1..=last {
            let (d0, d1, h0, h1) = (secant[i - 1], secant[i], step[i - 1], step[i]);
            let (w0, w1) = (2.0 * h1 + h0, h1 + 2.0 * h0);
            slope.push(if d0 * d1 <= 0.0 { 0.0 } else { (w0 + w1) / (w0 / d0 + w1 / d1) });
        }
        slope.push(end(step[last], step[last - 1], secant[last], secant[last - 1]));
        Some(Self { size, time_ns, slope })
    }

    /// Time of a packet of `size` bytes in nanoseconds.
    pub fn at(&self, size: f64) -> f64 {
        let last = self.size.len() - 1;
        if size <= self.size[0] {
            return self.time_ns[0] + self.slope[0] * (size - self.size[0]);
        }
        if size >= self.size[last] {
            return self.time_ns[last] + self.slope[last] * (size - self.size[last]);
        }
        let i = self.size.partition_point(|s| *s <= size) - 1;
        let step = self.size[i + 1] - self.size[i];
        let t = (size - self.size[i]) / step;
        let (t2, t3) = (t * t, t * t * t);
        (2.0 * t3 - 3.0 * t2 + 1.0) * self.time_ns[i]
            + (t3 - 2.0 * t2 + t) * step * self.slope[i]
            + (3.0 * t2 - 2.0 * t3) * self.time_ns[i + 1]
            + (t3 - t2) * step * self.slope[i + 1]
    }
}

/// Three-point derivative at an end, kept from turning the curve around.
fn end(h0: f64, h1: f64, d0: f64, d1: f64) -> f64 {
    let slope = ((2.0 * h0 + h1) * d0 - h0 * d1) / (h0 + h1);
    if slope * d0 <= 0.0 {
        0.0
    } else if d0 * d1 <= 0.0 && slope.abs() > 3.0 * d0.abs() {
        3.0 * d0
    } else {
        slope
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points() -> Vec<Sample> {
        [(64.0, 101.0), (128.0, 130.5), (256.0, 195.2), (512.0, 318.9), (1024.0, 570.3), (1500.0, 801.7)]
            .map(|(s, t)| Sample::new(s, t))
            .to_vec()
    }

    /// SciPy 1.17, interpolate.PchipInterpolator.
    #[test]
    fn values_agree_with_an_outside_opinion() {
        let spline = Spline::through(&points()).unwrap();
        for (size, expected) in [
            (80.0, 108.18505571380697),
            (200.0, 166.71865437618837),
            (300.0, 216.80515091613447),
            (700.0, 410.9902944590361),
            (1300.0, 704.748117249324),
        ] {
            assert!((spline.at(size) - expected).abs() < 1e-9, "{size}: {}", spline.at(size));
        }
    }

    #[test]
    fn it_rises_where_its_points_do_and_goes_on_straight_outside() {
        let spline = Spline::through(&points()).unwrap();
        let values: Vec<f64> = (20..2000).map(|s| spline.at(f64::from(s))).collect();
        assert!(values.windows(2).all(|w| w[0] < w[1]));
        let [a, b, c] = [1600.0, 1700.0, 1800.0].map(|s| spline.at(s));
        assert!((c - b - (b - a)).abs() < 1e-9);
        assert_eq!(Spline::through(&points()[..2]), None);
    }
}
