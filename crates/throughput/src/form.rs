//! Forms of the model, from a line to the measured cost of the cipher, and the choice among them by
//! held-out error.

use serde::{Deserialize, Serialize};

use super::cost::CostTable;
use super::equation::Synchronous;
use super::fit::{Fit, Interval, Sample, residuals, student, undisturbed, weighted};
use super::size::SizeFn;
use super::spline::Spline;
use stats::quantile_sorted;

/// Argument of a form.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Basis {
    /// Bytes worked on, for all forms but [`Form::Crypto`], which adds the plain length.
    pub size_fn: SizeFn,
    /// Cost of the cipher alone by bytes of `size_fn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostTable>,
}

/// A family of forms; the free parameters of a family are found by least squares.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// a + b·A.
    Line,
    /// A line over whole blocks.
    Blocks,
    /// Whole strides, blocks of 16 that are left, and a partial block.
    Stride,
    /// Two strided forms with a switch in between.
    Regimes,
    /// A monotone spline through the measured sizes.
    Spline,
    /// a + b·L + k·C: the measured cost of the cipher, with copying and protocol work beside it.
    Crypto,
}

impl Family {
    /// All of them, simplest first.
    pub const ALL: [Self; 6] = [Self::Line, Self::Crypto, Self::Blocks, Self::Stride, Self::Regimes, Self::Spline];

    /// Name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Line => "line",
            Self::Blocks => "line over blocks",
            Self::Stride => "stride and residue",
            Self::Regimes => "two regimes",
            Self::Spline => "monotone spline",
            Self::Crypto => "cipher curve",
        }
    }

    fn forms(self, sizes: &[f64]) -> Vec<Form> {
        const STRIDES: [u32; 6] = [48, 64, 96, 128, 192, 256];
        match self {
            Self::Line => vec![Form::Line],
            Self::Blocks => [4, 8, 16, 32, 64].map(|block| Form::Blocks { block }).to_vec(),
            Self::Stride => STRIDES.iter().map(|stride| Form::Stride { stride: *stride }).collect(),
            Self::Regimes => switches(sizes)
                .into_iter()
                .flat_map(|at| [64, 96, 128, 192].map(|stride| Form::Regimes { at, stride }))
                .collect(),
            Self::Spline => vec![],
            Self::Crypto => vec![Form::Crypto],
        }
    }

    /// Parameters that the search settles.
    fn searched(self) -> usize {
        match self {
            Self::Line | Self::Crypto | Self::Spline => 0,
            Self::Blocks | Self::Stride => 1,
            Self::Regimes => 2,
        }
    }
}

/// At most 16 sizes between measured ones at which a regime may end, with at least five measured
/// sizes on either side.
fn switches(sizes: &[f64]) -> Vec<f64> {
    const SIDE: usize = 5;
    let Some(last) = sizes.len().checked_sub(SIDE).filter(|last| *last >= SIDE) else { return vec![] };
    let all: Vec<f64> = (SIDE..=last).map(|i| (sizes[i - 1] + sizes[i]) / 2.0).collect();
    let step = all.len().div_ceil(16);
    all.into_iter().step_by(step).collect()
}

/// One form: a linear combination of functions of the size.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Form {
    Line,
    Blocks { block: u32 },
    Stride { stride: u32 },
    Regimes { at: f64, stride: u32 },
    Crypto,
}

impl Form {
    /// The functions at an inner packet of `size` bytes.
    pub fn row(&self, basis: &Basis, size: f64) -> Vec<f64> {
        let bytes = basis.size_fn.bytes(size);
        match self {
            Self::Line => vec![1.0, bytes],
            Self::Blocks { block } => vec![1.0, (bytes / f64::from(*block)).ceil() * f64::from(*block)],
            Self::Stride { stride } => strides(bytes, *stride).to_vec(),
            Self::Regimes { at, stride } => {
                let (row, none) = (strides(bytes, *stride), [0.0; 3]);
                let (small, large) = if size < *at { (row, none) } else { (none, row) };
                [small, large].concat()
            }
            Self::Crypto => vec![1.0, size, basis.cost.as_ref().map_or(f64::NAN, |cost| cost.ns(bytes))],
        }
    }
}

/// One packet, its whole strides, and its blocks of 16 beyond them.
fn strides(bytes: f64, stride: u32) -> [f64; 3] {
    let stride = f64::from(stride);
    [1.0, (bytes / stride).floor(), (bytes.rem_euclid(stride) / 16.0).ceil()]
}

/// A form with its parameters.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Fitted {
    /// Family.
    pub family: Family,
    /// Curve.
    pub curve: Curve,
    /// Parameters, those found by search included.
    pub parameters: usize,
    /// Standard deviation of the relative residuals over sizes.
    pub relative_sd: f64,
}

/// The two kinds of curve.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Curve {
    /// Linear in its parameters.
    Linear {
        /// Functions.
        form: Form,
        /// Parameters.
        fit: Fit,
    },
    /// Interpolated.
    Spline(Spline),
}

impl Fitted {
    /// The member of `family` that fits `samples` best; `None` when there are too few sizes for it.
    pub fn best(family: Family, basis: &Basis, samples: &[Sample]) -> Option<Self> {
        if family == Family::Spline {
            return Self::spline(samples);
        }
        if family == Family::Crypto && basis.cost.is_none() {
            return None;
        }
        // Sessions that lost their processor for a while must not bend the curve: the lower
        // quartile of a size counts.
        let samples = &undisturbed(samples)[..];
        let sizes: Vec<f64> = samples.iter().map(|s| s.size).collect();
        let mut best: Option<(f64, Form, Fit)> = None;
        for form in family.forms(&sizes) {
            let rows: Vec<Vec<f64>> = samples.iter().map(|s| form.row(basis, s.size)).collect();
            let parameters = rows.first()?.len() + family.searched();
            let Some(fit) = weighted(&rows, samples).filter(|_| sizes.len() > parameters) else { continue };
            let sse: f64 = residuals(&fit, &rows, samples).iter().map(|r| r * r).sum();
            if best.as_ref().is_none_or(|(least, ..)| sse < *least) {
                best = Some((sse, form, fit));
            }
        }
        let (_, form, fit) = best?;
        let parameters = fit.coef.len() + family.searched();
        let relative_sd = fit.relative_sd;
        Some(Self { family, curve: Curve::Linear { form, fit }, parameters, relative_sd })
    }

    fn spline(samples: &[Sample]) -> Option<Self> {
        let points = undisturbed(samples);
        let spline = Spline::through(&points)?;
        // It passes through every point; how far it can be trusted between them is what leaving
        // each out shows.
        let mut sum = 0.0;
        for i in 1..points.len() - 1 {
            let mut others = points.clone();
            let left_out = others.remove(i);
            sum += (Spline::through(&others)?.at(left_out.size) / left_out.time_ns - 1.0).powi(2);
        }
        let relative_sd = (sum / (points.len() - 2).max(1) as f64).sqrt();
        Some(Self { family: Family::Spline, parameters: points.len(), curve: Curve::Spline(spline), relative_sd })
    }

    /// Time of a packet of `size` bytes in nanoseconds.
    pub fn time_ns(&self, basis: &Basis, size: f64) -> f64 {
        match &self.curve {
            Curve::Linear { form, fit } => fit.time_ns(&form.row(basis, size)),
            Curve::Spline(spline) => spline.at(size),
        }
    }

    /// Interval for one new measurement at `size`.
    pub fn prediction(&self, basis: &Basis, size: f64, confidence: f64) -> Interval {
        match &self.curve {
            Curve::Linear { form, fit } => fit.prediction(&form.row(basis, size), confidence),
            Curve::Spline(spline) => {
                let value = spline.at(size);
                let half =
                    student(0.5 + confidence / 2.0, self.parameters.max(2) as f64 - 1.0) * self.relative_sd * value;
                Interval { value, low: value - half, high: value + half }
            }
        }
    }
}

/// Errors of predictions at sizes that a fit has not seen, in percent of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Errors {
    /// Sizes.
    pub sizes: usize,
    /// Mean, with its sign: positive when the model is too slow.
    pub bias: f64,
    /// Median of magnitudes.
    pub median: f64,
    /// 95th percentile of magnitudes.
    pub p95: f64,
    /// Largest magnitude.
    pub max: f64,
}

impl Errors {
    /// Of signed errors in percent.
    pub fn of(errors: &[f64]) -> Self {
        let mut magnitudes: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
        magnitudes.sort_by(f64::total_cmp);
        Self {
            sizes: errors.len(),
            bias: errors.iter().sum::<f64>() / errors.len() as f64,
            median: quantile_sorted(&magnitudes, 0.5),
            p95: quantile_sorted(&magnitudes, 0.95),
            max: magnitudes.last().copied().unwrap_or(f64::NAN),
        }
    }
}

/// Groups that sizes are left out in, at most: one size each up to this many sizes.
const FOLDS: usize = 16;

/// Errors at sizes left out, in [`FOLDS`] groups that interleave. `fit` gets the samples that stay;
/// `None` when some of its fits fails.
pub fn held_out<M>(
    samples: &[Sample],
    fit: impl Fn(&[Sample]) -> Option<M>,
    time_ns: impl Fn(&M, f64) -> f64,
) -> Option<Errors> {
    let points = undisturbed(samples);
    let folds = points.len().min(FOLDS);
    let mut errors = vec![];
    for fold in 0..folds {
        let out: Vec<&Sample> = points.iter().skip(fold).step_by(folds).collect();
        let stay: Vec<Sample> = samples.iter().filter(|s| !out.iter().any(|o| o.size == s.size)).copied().collect();
        let model = fit(&stay)?;
        errors.extend(out.iter().map(|o| 100.0 * (time_ns(&model, o.size) / o.time_ns - 1.0)));
    }
    (!errors.is_empty()).then(|| Errors::of(&errors))
}

/// Baseline that any useful model should beat.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Baseline {
    /// The paper's line through two sizes, here those nearest to 128 and 1280 bytes.
    TwoPoint,
    /// Every packet takes the same time.
    ConstantPps,
    /// Every byte takes the same time.
    ConstantBps,
}

impl Baseline {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::TwoPoint, Self::ConstantPps, Self::ConstantBps];

    /// Name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::TwoPoint => "two-point line",
            Self::ConstantPps => "constant packets/s",
            Self::ConstantBps => "constant bits/s",
        }
    }

    /// As a line over the size function.
    pub fn fit(self, basis: &Basis, samples: &[Sample]) -> Option<Synchronous> {
        let points = undisturbed(samples);
        let typical = |f: &dyn Fn(&Sample) -> f64| stats::median(&points.iter().map(f).collect::<Vec<_>>());
        let bytes = |s: &Sample| basis.size_fn.bytes(s.size);
        match self {
            Self::TwoPoint => {
                let [small, large] = two_point_sizes(&points)?;
                Synchronous::through((bytes(&small), small.time_ns), (bytes(&large), large.time_ns))
            }
            Self::ConstantPps => Some(Synchronous { fixed_ns: typical(&|s| s.time_ns), rate_mbps: f64::INFINITY }),
            Self::ConstantBps => {
                Some(Synchronous { fixed_ns: 0.0, rate_mbps: 8e3 / typical(&|s| s.time_ns / bytes(s)) })
            }
        }
    }
}

/// The points nearest to 128 and 1280 bytes.
pub fn two_point_sizes(points: &[Sample]) -> Option<[Sample; 2]> {
    let nearest = |to: f64| points.iter().min_by(|a, b| (a.size - to).abs().total_cmp(&(b.size - to).abs())).copied();
    let (small, large) = (nearest(128.0)?, nearest(1280.0)?);
    (small.size < large.size).then_some([small, large])
}

/// A candidate with what speaks for and against it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Fitted to all samples.
    pub fitted: Fitted,
    /// Errors at left-out sizes.
    pub held_out: Errors,
    /// Akaike's criterion, corrected for few sizes; infinite when there are too few.
    pub aicc: f64,
}

/// Every family that the samples allow, and the index of the chosen one: least held-out p95, and
/// among those within a tenth of it the simplest one. `None` when not even a line can be fitted.
pub fn choose(basis: &Basis, samples: &[Sample]) -> Option<(Vec<Candidate>, usize)> {
    let mut candidates = vec![];
    for family in Family::ALL {
        let Some(fitted) = Fitted::best(family, basis, samples) else { continue };
        let errors = held_out(samples, |stay| Fitted::best(family, basis, stay), |m, size| m.time_ns(basis, size));
        let Some(held_out) = errors.filter(|e| e.p95.is_finite()) else { continue };
        let aicc = aicc(&fitted, basis, samples);
        candidates.push(Candidate { fitted, held_out, aicc });
    }
    let least = candidates.iter().map(|c| c.held_out.p95).min_by(f64::total_cmp)?;
    // Two hundredths of a percent are less than measurements repeat to.
    let enough = least * 1.1 + 0.02;
    let chosen = (0..candidates.len())
        .filter(|i| candidates[*i].held_out.p95 <= enough)
        .min_by_key(|i| candidates[*i].fitted.parameters)?;
    Some((candidates, chosen))
}

fn aicc(fitted: &Fitted, basis: &Basis, samples: &[Sample]) -> f64 {
    let points = undisturbed(samples);
    let (n, k) = (points.len() as f64, fitted.parameters as f64 + 1.0);
    let sse: f64 = points.iter().map(|p| (fitted.time_ns(basis, p.size) / p.time_ns - 1.0).powi(2)).sum();
    if n - k - 1.0 <= 0.0 || sse <= 0.0 {
        return f64::INFINITY;
    }
    n * (sse / n).ln() + 2.0 * k + 2.0 * k * (k + 1.0) / (n - k - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stats::Rng;

    fn basis(cost: Option<CostTable>) -> Basis {
        Basis { size_fn: SizeFn::Rounding("s2-esp4/1".to_owned()), cost }
    }

    /// A noise of ±0.1 % from a seed.
    fn noisy(rng: &mut Rng, ns: f64) -> f64 {
        ns * (1.0 + 0.002 * (rng.next_u64() as f64 / u64::MAX as f64 - 0.5))
    }

    fn samples(sizes: &[f64], time: impl Fn(f64) -> f64) -> Vec<Sample> {
        let mut rng = Rng::new(3);
        sizes.iter().map(|s| Sample::new(*s, noisy(&mut rng, time(*s)))).collect()
    }

    fn sizes(step: usize) -> Vec<f64> {
        (64..1500).step_by(step).map(|s| s as f64).collect()
    }

    #[test]
    fn a_line_is_recognised_as_one() {
        let basis = basis(None);
        let samples = samples(&sizes(97), |l| 100.0 + 0.4 * basis.size_fn.bytes(l));
        let (candidates, chosen) = choose(&basis, &samples).unwrap();
        assert_eq!(candidates[chosen].fitted.family, Family::Line);
        assert!(candidates[chosen].held_out.max < 0.3);
        assert!(candidates.iter().all(|c| c.fitted.family != Family::Crypto), "there is no cost table");
    }

    /// A loop of 96 bytes with a dear tail: structure is found, and beats the line and the
    /// two-point line.
    #[test]
    fn a_saw_tooth_is_recognised() {
        let basis = basis(None);
        let time = |l: f64| {
            let [one, whole, tail] = strides(basis.size_fn.bytes(l), 96);
            90.0 * one + 20.0 * whole + 7.0 * tail
        };
        let samples = samples(&sizes(23), time);
        let (candidates, chosen) = choose(&basis, &samples).unwrap();
        let best = &candidates[chosen];
        assert_eq!(best.fitted.family, Family::Stride);
        let Curve::Linear { form, .. } = &best.fitted.curve else { panic!() };
        assert_eq!(*form, Form::Stride { stride: 96 });
        let line = candidates.iter().find(|c| c.fitted.family == Family::Line).unwrap();
        assert!(best.held_out.p95 < line.held_out.p95 / 10.0 && best.aicc < line.aicc);
    }

    #[test]
    fn a_switch_between_two_loops_is_found() {
        let basis = basis(None);
        let time = |l: f64| {
            let bytes = basis.size_fn.bytes(l);
            if l < 400.0 {
                60.0 + 1.2 * (bytes / 16.0).ceil() * 4.0
            } else {
                150.0 + 12.0 * strides(bytes, 96)[1] + 5.0 * strides(bytes, 96)[2]
            }
        };
        let best = Fitted::best(Family::Regimes, &basis, &samples(&sizes(17), time)).unwrap();
        let Curve::Linear { form: Form::Regimes { at, stride }, .. } = best.curve else { panic!() };
        assert!((at - 400.0).abs() < 60.0 && stride == 96, "{at} {stride}");
    }

    /// The cipher's own curve explains what no smooth function of the size does.
    #[test]
    fn the_cipher_curve_explains_a_jagged_one() {
        let curve = |bytes: f64| 30.0 + 0.3 * bytes + 15.0 * (bytes.rem_euclid(64.0) / 16.0).ceil();
        let points = (0..400).map(|i| (4.0 * f64::from(i), curve(4.0 * f64::from(i)))).collect();
        let basis = basis(Some(CostTable::new("chacha20poly1305", points).unwrap()));
        let samples = samples(&sizes(97), |l| 80.0 + 0.05 * l + 1.02 * curve(basis.size_fn.bytes(l)));
        let (candidates, chosen) = choose(&basis, &samples).unwrap();
        assert_eq!(candidates[chosen].fitted.family, Family::Crypto);
        let Curve::Linear { fit, .. } = &candidates[chosen].fitted.curve else { panic!() };
        assert!((fit.coef[2] - 1.02).abs() < 0.02, "{:?}", fit.coef);
        let baseline = Baseline::TwoPoint;
        let two = held_out(&samples, |s| baseline.fit(&basis, s), |l, s| l.time_ns(basis.size_fn.bytes(s))).unwrap();
        assert!(candidates[chosen].held_out.p95 < two.p95 / 5.0);
    }

    #[test]
    fn too_few_sizes_give_no_model_rather_than_a_perfect_one() {
        let two = samples(&[64.0, 1400.0], |l| 100.0 + l);
        assert_eq!(Fitted::best(Family::Line, &basis(None), &two), None);
        assert!(choose(&basis(None), &two).is_none());
    }

    #[test]
    fn baselines_are_what_they_say() {
        let samples = samples(&sizes(97), |l| 100.0 + 0.4 * l);
        let fit = |b: Baseline| b.fit(&basis(None), &samples).unwrap();
        assert!((fit(Baseline::TwoPoint).rate_mbps / 20_000.0 - 1.0).abs() < 0.02);
        assert_eq!(fit(Baseline::ConstantPps).time_ns(64.0), fit(Baseline::ConstantPps).time_ns(1400.0));
        assert_eq!(fit(Baseline::ConstantBps).fixed_ns, 0.0);
        assert_eq!(Baseline::TwoPoint.fit(&basis(None), &samples[..1]), None);
    }

    #[test]
    fn errors_keep_their_sign_in_the_bias_only() {
        let errors = Errors::of(&[-1.0, 1.0, 2.0]);
        assert!((errors.bias - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!((errors.median, errors.max), (1.0, 2.0));
    }
}
