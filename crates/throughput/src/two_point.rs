//! Two numbers in, the whole curve out: the paper's method, with the uncertainty from the rounding
//! of the two numbers.

use super::equation::{Synchronous, time_ns};
use super::fit::Interval;
use super::size::SizeFn;

/// A printed throughput.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Printed {
    /// Inner packet in bytes.
    pub size: f64,
    /// 10⁶ bit/s.
    pub mbps: f64,
    /// Half a unit of the last printed digit, or any other uncertainty, in 10⁶ bit/s.
    pub half: f64,
}

impl Printed {
    /// The number `text`, in units of `unit` 10⁶ bit/s, trusted to its last digit. `None` if it is
    /// not a number.
    pub fn parse(size: f64, text: &str, unit: f64) -> Option<Self> {
        Some(Self { size, mbps: text.parse::<f64>().ok()? * unit, half: half_unit(text) * unit })
    }
}

/// Half a unit of the last digit of a decimal number.
pub fn half_unit(text: &str) -> f64 {
    let decimals = text.split_once('.').map_or(0, |(_, d)| d.len());
    0.5 * 10f64.powi(-(decimals as i32))
}

/// `f` of the values, and its range over all corners of value ± half.
///
/// Exact where `f` is monotone in each value, as all functions of the model are.
pub fn over_corners<const N: usize>(values: [(f64, f64); N], f: impl Fn([f64; N]) -> f64) -> Interval {
    let value = f(values.map(|v| v.0));
    let corners = (0..1usize << N).map(|corner| {
        f(std::array::from_fn(|i| values[i].0 + if corner >> i & 1 == 0 { -values[i].1 } else { values[i].1 }))
    });
    corners.fold(Interval { value, low: value, high: value }, |range, c| Interval {
        low: range.low.min(c),
        high: range.high.max(c),
        ..range
    })
}

/// The line through two printed throughputs.
#[derive(Clone, Debug, PartialEq)]
pub struct TwoPoint {
    /// Smaller and larger packet.
    pub inputs: [Printed; 2],
    /// Argument of the line.
    pub size_fn: SizeFn,
}

impl TwoPoint {
    /// The two printed throughputs, in either order.
    pub fn new(a: Printed, b: Printed, size_fn: SizeFn) -> Self {
        Self { inputs: if a.size <= b.size { [a, b] } else { [b, a] }, size_fn }
    }

    fn through(&self, mbps: [f64; 2]) -> Synchronous {
        let [small, large] =
            [0, 1].map(|i| (self.size_fn.bytes(self.inputs[i].size), time_ns(self.inputs[i].size, mbps[i])));
        // A larger packet that is not slower: everything is fixed cost, the rate is without limit.
        Synchronous::through(small, large).unwrap_or(Synchronous { fixed_ns: small.1, rate_mbps: f64::INFINITY })
    }

    /// The line; with an endless rate when the larger packet is not slower.
    pub fn line(&self) -> Synchronous {
        self.through(self.inputs.map(|i| i.mbps))
    }

    /// Interval of `f` due to the rounding of the inputs.
    pub fn range(&self, f: impl Fn(&Synchronous) -> f64) -> Interval {
        over_corners(self.inputs.map(|i| (i.mbps, i.half)), |mbps| f(&self.through(mbps)))
    }

    /// Throughput at inner packets of `size` bytes in 10⁶ bit/s.
    pub fn mbps(&self, size: f64) -> Interval {
        let bytes = self.size_fn.bytes(size);
        self.range(|line| line.throughput_mbps(size, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(a: (f64, &str), b: (f64, &str), unit: f64, size_fn: &str) -> TwoPoint {
        let [a, b] = [a, b].map(|(size, text)| Printed::parse(size, text, unit).unwrap());
        TwoPoint::new(a, b, SizeFn::Rounding(size_fn.to_owned()))
    }

    fn close(a: f64, b: f64, relative: f64) {
        assert!((a / b - 1.0).abs() <= relative, "{a} is not {b}");
    }

    /// Inputs, t_fix in µs and R_alg, and predictions, as recomputed from the paper's tables.
    #[test]
    fn golden_two_point_fits() {
        let t1 = two((128.0, "2.079"), (1280.0, "10.285"), 1.0, "s2-esp16/1");
        close(t1.line().fixed_ns / 1e3, 429.66, 1e-5);
        close(t1.line().rate_mbps, 18.319, 3e-5);
        close(t1.mbps(512.0).value, 6.204, 1e-4);
        close(t1.mbps(1420.0).value, 10.803, 1e-4);
        let t8 = two((64.0, "1.166"), (2048.0, "14.707"), 1.0, "s2-esp8/1");
        close(t8.line().fixed_ns / 1e3, 414.62, 2e-5);
        close(t8.mbps(256.0).value, 4.060, 1e-4);
        let t3 = two((256.0, "148"), (1400.0, "746"), 1.0, "s2-esp8/1");
        close(t3.line().fixed_ns / 1e3, 13.567, 5e-5);
        close(t3.line().rate_mbps, 7785.2, 1e-5);
        close(t3.mbps(1024.0).value, 560.1, 1e-4);
        let t5 = two((256.0, "11.9"), (1024.0, "20.0"), 1e3, "s2-esp4/1");
        close(t5.line().fixed_ns / 1e3, 0.091697, 1e-5);
        close(t5.line().rate_mbps, 25870.0, 2e-5);
        close(t5.mbps(512.0).value, 16301.0, 3e-5);
        let t6 = two((46.0, "100"), (238.0, "446"), 1.0, "s2-esp16/1");
        close(t6.line().fixed_ns / 1e3, 3.5327, 2e-5);
        close(t6.line().rate_mbps, 2607.6, 2e-5);
        close(t6.mbps(110.0).value, 227.02, 2e-5);
    }

    /// Rounding to whole Mbps leaves the rate of Table 3 between 7.43 and 8.18 Gbit/s; rounding of
    /// the smaller alone accounts for 7.49 to 8.11.
    #[test]
    fn rounding_of_the_inputs_bounds_the_rate() {
        let mut t3 = two((256.0, "148"), (1400.0, "746"), 1.0, "s2-esp8/1");
        let rate = t3.range(|line| line.rate_mbps);
        close(rate.low, 7427.0, 1e-4);
        close(rate.high, 8182.0, 1e-4);
        t3.inputs[1].half = 0.0;
        let rate = t3.range(|line| line.rate_mbps);
        close(rate.low, 7488.0, 1e-4);
        close(rate.high, 8109.0, 1e-4);
    }

    #[test]
    fn the_order_of_the_points_does_not_matter_and_flat_times_mean_no_limit() {
        let ab = two((64.0, "100"), (1400.0, "900"), 1.0, "s2-len/1");
        assert_eq!(ab, two((1400.0, "900"), (64.0, "100"), 1.0, "s2-len/1"));
        let flat = two((64.0, "64"), (128.0, "128"), 1.0, "s2-len/1").line();
        assert_eq!((flat.rate_mbps, flat.fixed_ns), (f64::INFINITY, 8000.0));
    }

    #[test]
    fn half_units_follow_the_printed_digits() {
        assert_eq!((half_unit("2.003"), half_unit("746"), half_unit("20.0")), (0.0005, 0.5, 0.05));
        assert_eq!(Printed::parse(64.0, "12,3", 1.0), None);
    }
}
