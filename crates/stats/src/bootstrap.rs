//! Bootstrap intervals: of independent values, of an autocorrelated series, and of few units of
//! replication.

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

use super::{Estimate, Rng, mean, quantile_sorted, sd};

/// Resamples per interval: its ends repeat from one seed to the next within a hundredth of its
/// width.
const RESAMPLES: usize = 10_000;

const NONE: Estimate = Estimate { value: f64::NAN, low: f64::NAN, high: f64::NAN };

/// `statistic` of `values` with the percentile 95 % interval; `values` must be independent of each
/// other.
pub fn simple_interval(values: &[f64], statistic: impl Fn(&[f64]) -> f64, rng: &mut Rng) -> Estimate {
    block_interval(values, 1, statistic, rng)
}

/// `statistic` of a series with the percentile 95 % interval of the moving-block bootstrap.
///
/// `block` is the length of blocks in samples; at least five times the integral time of the series
/// preserves the autocorrelation. All `NaN` for an empty series.
pub fn block_interval(values: &[f64], block: usize, statistic: impl Fn(&[f64]) -> f64, rng: &mut Rng) -> Estimate {
    blocks(values, block, RESAMPLES, statistic, rng)
}

fn blocks(
    values: &[f64],
    block: usize,
    resamples: usize,
    statistic: impl Fn(&[f64]) -> f64,
    rng: &mut Rng,
) -> Estimate {
    let n = values.len();
    if n == 0 {
        return NONE;
    }
    let block = block.clamp(1, n);
    let mut sample = Vec::with_capacity(n + block);
    let mut drawn: Vec<f64> = (0..resamples)
        .map(|_| {
            sample.clear();
            while sample.len() < n {
                let start = rng.below(n - block + 1);
                sample.extend_from_slice(&values[start..start + block]);
            }
            statistic(&sample[..n])
        })
        .collect();
    drawn.sort_by(f64::total_cmp);
    percentiles(statistic(values), &drawn, 0.025, 0.975)
}

/// The mean of `units` with a 95 % interval that holds for few of them.
///
/// From ten units on, a fifth of them is left out at either end first ([`trimmed`]): one session
/// that was disturbed by other load must not decide.
///
/// `units` holds one value per unit of replication: per session, or per round where there is one
/// session. A percentile bootstrap of few values is too narrow by √((n − 1)/n) and by the normal
/// instead of Student's distribution; below ten the quantiles are moved outwards by both (the
/// "expanded percentile interval"). It cannot reach beyond the extremes, though, so the interval is
/// never narrower than Student's. No interval (`NaN`) for fewer than two units.
pub fn over_units(units: &[f64], rng: &mut Rng) -> Estimate {
    units_interval(units, RESAMPLES, rng)
}

fn units_interval(units: &[f64], resamples: usize, rng: &mut Rng) -> Estimate {
    let n = units.len();
    if n < 2 {
        return Estimate { value: mean(units), ..NONE };
    }
    let tail = if n < ENOUGH { expanded_tail(n) } else { 0.025 };
    let mut sample = vec![0.0; n];
    let mut drawn: Vec<f64> = (0..resamples)
        .map(|_| {
            sample.iter_mut().for_each(|s| *s = units[rng.below(n)]);
            if n >= ENOUGH {
                sample.sort_by(f64::total_cmp);
            }
            mean(middle(&sample))
        })
        .collect();
    drawn.sort_by(f64::total_cmp);
    let centre = trimmed(units);
    let drawn = percentiles(centre.mean, &drawn, tail, 1.0 - tail);
    let student = student(centre.freedom).inverse_cdf(0.975) * centre.se;
    Estimate { low: drawn.low.min(drawn.value - student), high: drawn.high.max(drawn.value + student), ..drawn }
}

/// The lower quartile of `units` with a 95 % interval by the bootstrap, whose quantiles are moved
/// outwards for few of them as in [`over_units`]. No interval (`NaN`) for fewer than two units.
pub fn lower_quartile(units: &[f64], rng: &mut Rng) -> Estimate {
    let n = units.len();
    let quartile = |values: &mut [f64]| {
        values.sort_by(f64::total_cmp);
        quantile_sorted(values, 0.25)
    };
    let value = quartile(&mut units.to_vec());
    if n < 2 {
        return Estimate { value, ..NONE };
    }
    let mut sample = vec![0.0; n];
    let mut drawn: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            sample.iter_mut().for_each(|s| *s = units[rng.below(n)]);
            quartile(&mut sample)
        })
        .collect();
    drawn.sort_by(f64::total_cmp);
    let tail = if n < ENOUGH { expanded_tail(n) } else { 0.025 };
    percentiles(value, &drawn, tail, 1.0 - tail)
}

/// Figures of all measurements together, each with a 95 % interval from drawing whole clusters
/// (sessions), never single measurements of them: what sessions have in common stays together.
///
/// `figures` gets every measurement of the clusters that were drawn, one drawn twice counting
/// twice; `None` skips a draw. For few clusters the quantiles are moved outwards as in
/// [`over_units`]. Returns `None` if `figures` is `None` for all of them together; without interval
/// (`NaN`) for fewer than two clusters.
pub fn over_clusters<T: Copy>(
    clusters: &[Vec<T>],
    figures: impl Fn(&[T]) -> Option<Vec<f64>>,
    rng: &mut Rng,
) -> Option<Vec<Estimate>> {
    let values = figures(&clusters.concat())?;
    let n = clusters.len();
    let mut drawn: Vec<Vec<f64>> = vec![vec![]; values.len()];
    if n > 1 {
        let mut sample = Vec::new();
        for _ in 0..CLUSTER_RESAMPLES {
            sample.clear();
            (0..n).for_each(|_| sample.extend_from_slice(&clusters[rng.below(n)]));
            for (column, value) in drawn.iter_mut().zip(figures(&sample).unwrap_or_default()) {
                column.push(value);
            }
        }
    }
    let tail = if n < ENOUGH { expanded_tail(n.max(2)) } else { 0.025 };
    let interval = |(value, mut column): (f64, Vec<f64>)| {
        column.retain(|v| v.is_finite());
        column.sort_by(f64::total_cmp);
        percentiles(value, &column, tail, 1.0 - tail)
    };
    Some(values.into_iter().zip(drawn).map(interval).collect())
}

/// Resamples of [`over_clusters`]; the figures may be fits, which are slow.
const CLUSTER_RESAMPLES: usize = 1000;

/// A mean with its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Centre {
    pub mean: f64,
    pub se: f64,
    /// Degrees of freedom of the standard error.
    pub freedom: f64,
}

/// The mean without a fifth of the values at either end, if there are ten or more, and its standard
/// error by Yuen: that of the values with each one that is left out put in the place of the nearest
/// that is not.
pub(super) fn trimmed(values: &[f64]) -> Centre {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let kept = middle(&sorted);
    let (centre, h) = (mean(kept), kept.len() as f64);
    let finite = values.iter().all(|v| v.is_finite());
    let (Some(&low), Some(&high), true) = (kept.first(), kept.last(), finite) else {
        return Centre { mean: f64::NAN, se: f64::NAN, freedom: 0.0 };
    };
    let pulled: Vec<f64> = sorted.iter().map(|v| v.clamp(low, high)).collect();
    let squares = sd(&pulled).powi(2) * (pulled.len() as f64 - 1.0);
    Centre { mean: centre, se: (squares / (h * (h - 1.0))).sqrt(), freedom: h - 1.0 }
}

/// Units from which on some can be left out.
const ENOUGH: usize = 10;

/// Sorted values without a fifth at either end; all if there are fewer than [`ENOUGH`].
fn middle(sorted: &[f64]) -> &[f64] {
    let out = if sorted.len() < ENOUGH { 0 } else { sorted.len() / 5 };
    &sorted[out..sorted.len() - out]
}

/// The share left outside on each side, for a 95 % interval of the mean of `n` values.
pub(super) fn expanded_tail(n: usize) -> f64 {
    let t = student(n as f64 - 1.0).inverse_cdf(0.975);
    normal().cdf(-(n as f64 / (n as f64 - 1.0)).sqrt() * t)
}

/// `statistic` with the 95 % interval that corrects for bias and for a spread that changes with the
/// value (BCa).
pub fn bca(values: &[f64], statistic: impl Fn(&[f64]) -> f64, rng: &mut Rng) -> Estimate {
    let n = values.len();
    if n < 2 {
        return Estimate { value: statistic(values), ..NONE };
    }
    let value = statistic(values);
    let mut sample = vec![0.0; n];
    let mut drawn: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            sample.iter_mut().for_each(|s| *s = values[rng.below(n)]);
            statistic(&sample)
        })
        .collect();
    drawn.sort_by(f64::total_cmp);
    let below = drawn.iter().filter(|d| **d < value).count() as f64
        + drawn.iter().filter(|d| **d == value).count() as f64 / 2.0;
    let share = (below / RESAMPLES as f64).clamp(0.5 / RESAMPLES as f64, 1.0 - 0.5 / RESAMPLES as f64);
    let bias = normal().inverse_cdf(share);
    let left_out: Vec<f64> = (0..n)
        .map(|out| {
            let rest: Vec<f64> = values.iter().enumerate().filter(|(i, _)| *i != out).map(|(_, v)| *v).collect();
            statistic(&rest)
        })
        .collect();
    let centre = mean(&left_out);
    let (cubes, squares) = left_out.iter().fold((0.0, 0.0), |(c, s), v| {
        let d = centre - v;
        (c + d * d * d, s + d * d)
    });
    let acceleration = if squares > 0.0 { cubes / (6.0 * squares.powf(1.5)) } else { 0.0 };
    let moved = |tail: f64| {
        let z = bias + normal().inverse_cdf(tail);
        normal().cdf(bias + z / (1.0 - acceleration * z))
    };
    percentiles(value, &drawn, moved(0.025), moved(0.975))
}

fn percentiles(value: f64, sorted: &[f64], low: f64, high: f64) -> Estimate {
    Estimate { value, low: quantile_sorted(sorted, low), high: quantile_sorted(sorted, high) }
}

pub(super) fn normal() -> Normal {
    Normal::new(0.0, 1.0).expect("a standard deviation of 1")
}

/// Student's distribution; `freedom` is at least a hundredth, so that a rounding error does not
/// cause a panic.
pub(super) fn student(freedom: f64) -> StudentsT {
    StudentsT::new(0.0, 1.0, freedom.max(0.01)).expect("positive degrees of freedom")
}

#[cfg(test)]
mod tests {
    use super::super::median;
    use super::*;

    /// Standard normal values, by Box and Muller.
    fn normals(n: usize, rng: &mut Rng) -> Vec<f64> {
        (0..n).map(|_| (-2.0 * (1.0 - rng.unit()).ln()).sqrt() * (std::f64::consts::TAU * rng.unit()).cos()).collect()
    }

    /// Share of simulated experiments in which the interval covers the truth, which is 0.
    fn coverage(experiments: usize, experiment: impl Fn(&mut Rng) -> Estimate) -> f64 {
        let mut rng = Rng::new(11);
        let covers = |e: Estimate| e.low <= 0.0 && 0.0 <= e.high;
        (0..experiments).filter(|_| covers(experiment(&mut rng))).count() as f64 / experiments as f64
    }

    /// Five sessions are few: the plain percentile interval covers the mean in 84 of 100 cases, the
    /// expanded one in 95.
    #[test]
    fn an_interval_over_few_sessions_covers_as_often_as_it_says() {
        let plain = coverage(300, |rng| blocks(&normals(5, rng), 1, 500, mean, rng));
        let expanded = coverage(300, |rng| units_interval(&normals(5, rng), 500, rng));
        assert!(plain < 0.90, "{plain}");
        assert!((0.91..=0.985).contains(&expanded), "{expanded}");
    }

    /// SciPy 1.17, trim_mean(x, 0.2) and Yuen's test, ttest_ind(x, zeros, trim=0.2,
    /// equal_var=False).
    #[test]
    fn a_trimmed_mean_agrees_with_an_outside_opinion() {
        let x = [0.012, 0.009, 0.015, -0.003, 0.011, 0.02, 0.007, 0.013, 0.3, 0.0105];
        let centre = trimmed(&x);
        assert!(
            (centre.mean - 0.011_75).abs() < 1e-12 && (centre.se - 0.001_390_743_206_586_559_8).abs() < 1e-12,
            "{centre:?}"
        );
        assert_eq!(centre.freedom, 5.0);
        let interval = over_units(&x, &mut Rng::new(1));
        assert!(interval.low > 0.0 && interval.high < 0.08, "{interval:?}");
        assert_eq!(trimmed(&x[..8]), Centre { mean: mean(&x[..8]), se: sd(&x[..8]) / 8f64.sqrt(), freedom: 7.0 });
    }

    /// Twelve sessions, one in ten of them far off: the interval still covers, and is narrow.
    #[test]
    fn a_session_that_was_disturbed_does_not_decide() {
        let wild = |rng: &mut Rng| -> Vec<f64> {
            normals(12, rng).iter().map(|n| if rng.below(10) == 0 { 30.0 * n } else { *n }).collect()
        };
        let covered = coverage(200, |rng| units_interval(&wild(rng), 300, rng));
        assert!((0.92..=1.0).contains(&covered), "{covered}");
    }

    /// An autoregressive series (0.8): blocks cover its mean, single samples do not.
    #[test]
    fn blocks_cover_the_mean_of_a_series_with_memory() {
        let series = |rng: &mut Rng| -> Vec<f64> {
            let noise = normals(450, rng);
            let next = |last: &mut f64, n: &f64| {
                *last = 0.8 * *last + n;
                Some(*last)
            };
            noise.iter().scan(0.0, next).skip(50).collect()
        };
        let single = coverage(150, |rng| blocks(&series(rng), 1, 100, mean, rng));
        let long = coverage(150, |rng| blocks(&series(rng), 30, 100, mean, rng));
        assert!(single < 0.65, "{single}");
        assert!((0.85..=0.99).contains(&long), "{long}");
    }

    /// SciPy 1.17, scipy.stats.bootstrap((x,), numpy.mean, method='BCa', n_resamples=100000) of the
    /// values below.
    #[test]
    fn bca_agrees_with_an_outside_opinion() {
        let values = [0.2, 0.5, 0.9, 1.3, 1.4, 2.2, 2.9, 4.4, 7.0, 12.0];
        let e = bca(&values, mean, &mut Rng::new(5));
        assert!((e.value - 3.28).abs() < 1e-12);
        assert!((e.low - BCA[0]).abs() < 0.1 && (e.high - BCA[1]).abs() < 0.25, "{e:?}");
    }

    /// Low and high end as SciPy gives them.
    const BCA: [f64; 2] = [1.67, 6.46];

    #[test]
    fn a_median_of_a_lopsided_sample_is_inside_its_interval() {
        let values = [1.0, 1.0, 1.1, 1.2, 5.0, 9.0];
        let e = bca(&values, median, &mut Rng::new(1));
        assert!(e.low <= e.value && e.value <= e.high, "{e:?}");
    }

    /// Sessions that differ more than their trials do: drawing trials would cover the truth in a
    /// fifth of the cases.
    #[test]
    fn an_interval_over_clusters_covers_what_sessions_do() {
        let covered = coverage(120, |rng| {
            let clusters: Vec<Vec<f64>> = (0..6)
                .map(|_| {
                    let session = normals(1, rng)[0];
                    normals(20, rng).iter().map(|n| session + 0.2 * n).collect()
                })
                .collect();
            over_clusters(&clusters, |all| Some(vec![mean(all)]), &mut Rng::new(3)).unwrap()[0]
        });
        assert!((0.88..=1.0).contains(&covered), "{covered}");
        let one = over_clusters(&[vec![1.0, 3.0]], |all| Some(vec![mean(all)]), &mut Rng::new(3)).unwrap()[0];
        assert!(one.value == 2.0 && one.low.is_nan());
        assert_eq!(over_clusters(&[vec![1.0]], |_| None, &mut Rng::new(3)), None);
    }

    #[test]
    fn too_few_values_have_no_interval() {
        assert!(over_units(&[1.0], &mut Rng::new(1)).low.is_nan());
        assert!(block_interval(&[], 3, mean, &mut Rng::new(1)).value.is_nan());
        assert_eq!(block_interval(&[2.0, 2.0], 30, mean, &mut Rng::new(1)).high, 2.0);
    }
}
