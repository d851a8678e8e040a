//! Ratios of two variants, in logarithms: a slow-down of 2 % and a speed-up of 2 % are equally far
//! from 1.

use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF};

use super::bootstrap::{over_units, student, trimmed};
use super::{Estimate, Rng, median};

/// Unit of an interval.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Processes: what differs from one start to the next is in the interval.
    Sessions,
    /// Rounds of the only session there is: what differs between processes is not in it.
    Rounds,
}

/// B over A.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Ratio {
    /// Geometric mean over units, from ten units on of their middle three fifths; 95 % interval.
    /// 1.02 means that B is 2 % more than A.
    pub ratio: Estimate,
    /// Hodges and Lehmann's estimate: a median that wastes less. Far from `ratio` when a unit is an
    /// outlier.
    pub hodges_lehmann: f64,
    /// The chance of as lopsided a count of units above and below 1 if there were no difference.
    pub sign_p: f64,
    /// Standard error of the logarithm of the ratio.
    pub se: f64,
    /// Degrees of freedom of that standard error.
    pub freedom: f64,
    /// Unit of the interval.
    pub unit: Unit,
    /// Units; of the smaller side for an unpaired comparison.
    pub units: usize,
    /// Pairs of trials, or trials of the smaller side.
    pub pairs: usize,
    /// Trials of A and B ran next to each other. If not, drift between the two is taken for a
    /// difference.
    pub paired: bool,
}

impl Ratio {
    /// Maximum distance of the interval from 1, as a logarithm: the noise floor, if this compares a
    /// variant with itself.
    pub fn reach(&self) -> f64 {
        self.ratio.low.ln().abs().max(self.ratio.high.ln().abs())
    }

    /// The chance to see so large a difference if the true one were within ± `floor` (a logarithm);
    /// two-sided.
    pub fn p_beyond(&self, floor: f64) -> f64 {
        let beyond = self.ratio.value.ln().abs() - floor;
        (2.0 * self.tail(beyond)).min(1.0)
    }

    /// The chance to see so small a difference if the true one were `margin` (a logarithm) or more:
    /// two one-sided tests (TOST), the worse of both.
    pub fn p_equivalent(&self, margin: f64) -> f64 {
        self.tail(margin - self.ratio.value.ln().abs())
    }

    /// Share of Student's distribution beyond `distance`; exactly 0 or 1 when the spread is 0.
    /// Returns this ratio with at least the uncertainty of `noise`, a comparison of equals under
    /// the same conditions: both estimate the same variance.
    #[must_use]
    pub fn with_noise(&self, noise: &Self) -> Self {
        if noise.se.is_nan() || noise.se <= self.se {
            return self.clone();
        }
        let half = |ratio: &Self| (ratio.ratio.high / ratio.ratio.low).ln() / 2.0;
        let (centre, half) = (self.ratio.value.ln(), half(noise).max(half(self)));
        let ratio = Estimate { value: centre, low: centre - half, high: centre + half }.map(f64::exp);
        Self { ratio, se: noise.se, freedom: self.freedom.min(noise.freedom), ..self.clone() }
    }

    fn tail(&self, distance: f64) -> f64 {
        if !self.se.is_finite() || !distance.is_finite() {
            return 1.0;
        }
        if self.se == 0.0 {
            return if distance > 0.0 { 0.0 } else { 1.0 };
        }
        student(self.freedom).sf(distance / self.se)
    }
}

/// B over A from pairs that ran next to each other: `sessions` holds, for each session, the
/// logarithm of B over A per round. `None` for fewer than two units.
///
/// A session counts as one value, the median of its rounds. With one session only, its rounds are
/// the units.
pub fn paired(sessions: &[Vec<f64>], rng: &mut Rng) -> Option<Ratio> {
    let sessions: Vec<&Vec<f64>> = sessions.iter().filter(|s| !s.is_empty()).collect();
    let pairs = sessions.iter().map(|s| s.len()).sum();
    let (unit, units) = match sessions.as_slice() {
        [] => return None,
        [only] => (Unit::Rounds, only.to_vec()),
        many => (Unit::Sessions, many.iter().map(|s| median(s)).collect()),
    };
    let n = units.len();
    let centre = trimmed(&units);
    (n > 1 && units.iter().all(|u| u.is_finite())).then(|| Ratio {
        ratio: over_units(&units, rng).map(f64::exp),
        hodges_lehmann: hodges_lehmann(&units).exp(),
        sign_p: sign_test(&units),
        se: centre.se,
        freedom: centre.freedom,
        unit,
        units: n,
        pairs,
        paired: true,
    })
}

/// B over A from two runs, one after the other: `a` and `b` hold, for each session, the logarithms
/// of its trials. `None` for fewer than two units on a side.
pub fn unpaired(a: &[Vec<f64>], b: &[Vec<f64>], rng: &mut Rng) -> Option<Ratio> {
    let filled = |side: &[Vec<f64>]| side.iter().filter(|s| !s.is_empty()).count();
    let unit = if filled(a) > 1 && filled(b) > 1 { Unit::Sessions } else { Unit::Rounds };
    let units = |side: &[Vec<f64>]| -> Vec<f64> {
        match unit {
            Unit::Sessions => side.iter().filter(|s| !s.is_empty()).map(|s| median(s)).collect(),
            Unit::Rounds => side.concat(),
        }
    };
    let (a_units, b_units) = (units(a), units(b));
    let fewer = a_units.len().min(b_units.len());
    if fewer < 2 || a_units.iter().chain(&b_units).any(|u| !u.is_finite()) {
        return None;
    }
    let (ca, cb) = (trimmed(&a_units), trimmed(&b_units));
    let (va, vb) = (ca.se.powi(2), cb.se.powi(2));
    let freedom = if va + vb > 0.0 {
        (va + vb).powi(2) / (va.powi(2) / ca.freedom + vb.powi(2) / cb.freedom)
    } else {
        fewer as f64 - 1.0
    };
    let (low, high) = (over_units(&a_units, rng), over_units(&b_units, rng));
    let value = high.value - low.value;
    // The two intervals are independent: their half-widths add as squares.
    let down = (high.value - high.low).hypot(low.high - low.value);
    let up = (high.high - high.value).hypot(low.value - low.low);
    let differences: Vec<f64> = b_units.iter().flat_map(|b| a_units.iter().map(move |a| b - a)).collect();
    let centre = median(&a_units);
    Some(Ratio {
        ratio: Estimate { value, low: value - down, high: value + up }.map(f64::exp),
        hodges_lehmann: median(&differences).exp(),
        sign_p: sign_test(&b_units.iter().map(|b| b - centre).collect::<Vec<f64>>()),
        se: (va + vb).sqrt(),
        freedom,
        unit,
        units: fewer,
        pairs: a.concat().len().min(b.concat().len()),
        paired: false,
    })
}

/// Hodges and Lehmann's estimate of the centre: the median of the means of all pairs, each value
/// with itself included. Of more than 500 values, 500 evenly spaced quantiles are used.
pub fn hodges_lehmann(values: &[f64]) -> f64 {
    const MOST: usize = 500;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    if sorted.len() > MOST {
        sorted = (0..MOST).map(|i| super::quantile_sorted(&sorted, (i as f64 + 0.5) / MOST as f64)).collect();
    }
    let means: Vec<f64> =
        sorted.iter().enumerate().flat_map(|(i, a)| sorted[i..].iter().map(move |b| (a + b) / 2.0)).collect();
    median(&means)
}

/// The two-sided sign test: the chance of so lopsided a count of values above and below 0. Zeros do
/// not count; 1 for none.
pub fn sign_test(values: &[f64]) -> f64 {
    let above = values.iter().filter(|v| **v > 0.0).count() as u64;
    let below = values.iter().filter(|v| **v < 0.0).count() as u64;
    let Ok(coin) = Binomial::new(0.5, above + below) else { return 1.0 };
    if above + below == 0 {
        return 1.0;
    }
    (2.0 * coin.cdf(above.min(below))).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGS: [f64; 8] = [0.012, 0.009, 0.015, -0.003, 0.011, 0.02, 0.007, 0.013];

    fn ratio() -> Ratio {
        let sessions: Vec<Vec<f64>> = LOGS.iter().map(|l| vec![*l]).collect();
        paired(&sessions, &mut Rng::new(1)).expect("eight sessions")
    }

    /// SciPy 1.17 on the same values: ttest_1samp, TOST of two of them, binomtest(7, 8), the median
    /// of Walsh averages, and t.interval = (0.00488, 0.01612).
    #[test]
    fn a_paired_ratio_agrees_with_an_outside_opinion() {
        let ratio = ratio();
        assert!((ratio.ratio.value.ln() - 0.0105).abs() < 1e-12);
        assert!((ratio.se - 0.002_375_469_878_330_841_5).abs() < 1e-12);
        assert!((ratio.p_beyond(0.0) - 0.003_080_620_832_713_035).abs() < 1e-9);
        assert!((ratio.p_beyond(0.005) - 2.0 * 0.026_881_444_507_553_72).abs() < 1e-9);
        assert!((ratio.p_equivalent(0.02) - 0.002_597_571_645_495_551).abs() < 1e-9);
        assert!((ratio.sign_p - 0.070_312_5).abs() < 1e-12);
        assert!((ratio.hodges_lehmann.ln() - 0.011).abs() < 1e-12);
        assert!((ratio.ratio.low.ln() - 0.004_88).abs() < 0.001_5, "{ratio:?}");
        assert!((ratio.ratio.high.ln() - 0.016_12).abs() < 0.001_5, "{ratio:?}");
    }

    /// SciPy 1.17, ttest_ind(b, a, equal_var=False): p 0.00463, interval (0.0207, 0.0743), 6.30
    /// degrees of freedom.
    #[test]
    fn an_unpaired_ratio_agrees_with_welch() {
        let a = [1.0, 1.02, 0.99, 1.01, 1.03].map(|v| vec![v]);
        let b = [1.05, 1.04, 1.08, 1.06].map(|v| vec![v]);
        let ratio = unpaired(&a, &b, &mut Rng::new(1)).expect("enough of both");
        assert!((ratio.freedom - 6.302_353_651_176_827).abs() < 1e-9);
        assert!((ratio.p_beyond(0.0) - 0.004_628_941_024_699_741_5).abs() < 1e-9);
        assert!((ratio.ratio.low.ln() - 0.0207).abs() < 0.012 && (ratio.ratio.high.ln() - 0.0743).abs() < 0.012);
        assert!(!ratio.paired);
    }

    /// A machine that gets 20 % slower during the run: pairs find the 2 % all the same, separate
    /// runs do not.
    #[test]
    fn pairs_survive_drift() {
        let mut rng = Rng::new(4);
        let (mut pairs, mut a, mut b) = (vec![], vec![], vec![]);
        for session in 0..10 {
            let drift = 0.02 * f64::from(session);
            let noise = |rng: &mut Rng| 0.004 * (rng.unit() - 0.5);
            pairs.push((0..5).map(|_| 0.02 + noise(&mut rng)).collect());
            a.push(vec![drift + noise(&mut rng)]);
            b.push(vec![drift + 0.02 + noise(&mut rng)]);
        }
        let paired = paired(&pairs, &mut rng).expect("ten sessions");
        assert!(paired.ratio.low > 1.019 && paired.ratio.high < 1.0215, "{paired:?}");
        let unpaired = unpaired(&a, &b, &mut rng).expect("ten sessions");
        assert!(unpaired.ratio.low < 1.0 && unpaired.ratio.high > 1.04, "{unpaired:?}");
    }

    /// SciPy 1.17: binomtest(9, 30).pvalue.
    #[test]
    fn noise_of_equals_widens_an_interval_and_never_narrows_it() {
        let around = |centre: f64, spread: f64| {
            let logs: Vec<Vec<f64>> = (0..8).map(|n| vec![centre + spread * f64::from(n % 4)]).collect();
            paired(&logs, &mut Rng::new(1)).expect("eight sessions")
        };
        let (narrow, wide) = (around(0.02, 0.001), around(0.0, 0.01));
        let widened = narrow.with_noise(&wide);
        assert_eq!((widened.ratio.value, widened.se), (narrow.ratio.value, wide.se));
        assert!(widened.ratio.low < 1.015 && narrow.ratio.low > 1.019, "{widened:?}");
        assert_eq!(wide.with_noise(&narrow), wide);
    }

    #[test]
    fn signs() {
        let values: Vec<f64> = (0..30).map(|i| if i < 9 { 1.0 } else { -1.0 }).collect();
        assert!((sign_test(&values) - 0.042_773_945_257_067_694).abs() < 1e-9);
        assert_eq!(sign_test(&[0.0, 0.0]), 1.0);
        assert_eq!(sign_test(&[]), 1.0);
    }

    #[test]
    fn one_session_is_compared_by_its_rounds_and_says_so() {
        let one = paired(&[vec![0.01, 0.02, 0.015]], &mut Rng::new(1)).expect("three rounds");
        assert_eq!((one.unit, one.units), (Unit::Rounds, 3));
        assert!(paired(&[vec![0.01]], &mut Rng::new(1)).is_none());
        assert!(paired(&[vec![f64::NAN], vec![0.1]], &mut Rng::new(1)).is_none());
    }

    #[test]
    fn an_identical_pair_is_certain() {
        let same = paired(&[vec![0.0], vec![0.0], vec![0.0]], &mut Rng::new(1)).expect("three sessions");
        assert_eq!((same.p_beyond(0.0), same.p_equivalent(0.01), same.reach()), (1.0, 0.0, 0.0));
    }
}
