//! An asynchronous engine with a ring: the recursion of its stages, and its breakpoint.

use super::equation::Asynchronous;
use super::fit::{Interval, Sample, student, weighted};
use super::form::Basis;

/// Time per packet of `packets` packets through stages in series with rings of `ring` packets
/// between them, endless for `None`.
///
/// `time_ns(stage, packet)` is the time of a stage. Packet n enters stage i when it has left the
/// stage before, when packet n−1 has left stage i, and when packet n−K has left stage i+1: a
/// max-plus recursion. `ring` is at least 1.
pub fn pipeline(stages: usize, packets: usize, ring: Option<usize>, time_ns: impl Fn(usize, usize) -> f64) -> f64 {
    let mut left: Vec<Vec<f64>> = vec![Vec::with_capacity(packets); stages];
    for n in 0..packets {
        let mut before = 0.0f64;
        for i in 0..stages {
            let own = n.checked_sub(1).map_or(0.0, |m| left[i][m]);
            let room = ring.filter(|_| i + 1 < stages).and_then(|k| n.checked_sub(k.max(1)));
            let behind = room.map_or(0.0, |m| left[i + 1][m]);
            before = before.max(own).max(behind) + time_ns(i, n);
            left[i].push(before);
        }
    }
    // The first half fills the pipeline.
    let half = packets / 2;
    let last = &left[stages - 1];
    (last[packets - 1] - last[half]) / (packets - 1 - half) as f64
}

/// An asynchronous system fitted to measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct AsynchronousFit {
    /// Parameters.
    pub system: Asynchronous,
    /// Breakpoint in bytes of the size function, with its 95 % interval by profile likelihood.
    pub breakpoint: Interval,
    /// Largest relative error in percent.
    pub max_percent: f64,
}

/// Candidate breakpoints between two neighbouring sizes.
const STEPS: usize = 20;

/// Steps on either side of the best of them.
const FINER: i32 = 40;

/// Fits equation 4; `None` with fewer than two sizes below or two above any breakpoint.
pub fn fit_asynchronous(basis: &Basis, samples: &[Sample]) -> Option<AsynchronousFit> {
    let bytes = |s: &Sample| basis.size_fn.bytes(s.size);
    let mut sizes: Vec<f64> = samples.iter().map(bytes).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    // At a breakpoint x: t = fixed + b·max(0, A − x). The engine's overhead follows.
    let at = |x: f64| {
        let rows: Vec<Vec<f64>> = samples.iter().map(|s| vec![1.0, (bytes(s) - x).max(0.0)]).collect();
        let fit = weighted(&rows, samples).filter(|f| f.coef[0] > 0.0 && f.coef[1] > 0.0)?;
        let errors: Vec<f64> = rows.iter().zip(samples).map(|(r, s)| fit.time_ns(r) / s.time_ns - 1.0).collect();
        Some((x, fit.coef, errors))
    };
    let inner = sizes.get(1..sizes.len().checked_sub(1)?)?;
    let tried: Vec<_> = inner
        .windows(2)
        .flat_map(|w| (0..=STEPS).map(move |k| w[0] + (w[1] - w[0]) * k as f64 / STEPS as f64))
        .filter_map(at)
        .collect();
    let square = |errors: &[f64]| errors.iter().map(|e| e * e).sum::<f64>().max(1e-24);
    let least_of = |tried: &[(f64, Vec<f64>, Vec<f64>)]| {
        tried.iter().min_by(|a, b| square(&a.2).total_cmp(&square(&b.2))).cloned()
    };
    let coarse = least_of(&tried)?.0;
    let gap = inner.windows(2).map(|w| w[1] - w[0]).fold(0.0, f64::max) / STEPS as f64;
    let fine = (-FINER..=FINER).filter_map(|k| at(coarse + gap * f64::from(k) / f64::from(FINER)));
    let tried: Vec<_> = tried.into_iter().chain(fine).collect();
    let best = least_of(&tried)?;
    let freedom = samples.len() as f64 - 3.0;
    if freedom < 1.0 {
        return None;
    }
    // Profile likelihood with the F limit that few samples need.
    let limit = 1.0 + student(0.975, freedom).powi(2) / freedom;
    let least = square(&best.2);
    let inside: Vec<f64> = tried.iter().filter(|t| square(&t.2) <= least * limit).map(|t| t.0).collect();
    let (x, coef) = (best.0, &best.1);
    Some(AsynchronousFit {
        system: Asynchronous { fixed_ns: coef[0], overhead_ns: coef[0] - coef[1] * x, rate_mbps: 8e3 / coef[1] },
        breakpoint: Interval {
            value: x,
            low: inside.iter().copied().fold(x, f64::min),
            high: inside.iter().copied().fold(x, f64::max),
        },
        max_percent: 100.0 * best.2.iter().fold(0.0, |a: f64, e| a.max(e.abs())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SizeFn, time_ns};
    use stats::Rng;

    fn close(a: f64, b: f64, relative: f64) {
        assert!((a / b - 1.0).abs() <= relative, "{a} is not {b}");
    }

    /// Constant times: an endless ring gives equation 4's maximum; a ring of one lets nothing
    /// overlap but the hand-over.
    #[test]
    fn the_recursion_gives_equation_4_and_its_opposite() {
        for (processor, engine) in [(100.0, 70.0), (70.0, 100.0)] {
            let times = |i, _| if i == 0 { processor } else { engine };
            close(pipeline(2, 2000, None, times), 100.0, 1e-9);
            close(pipeline(2, 2000, Some(2), times), 100.0, 1e-9);
            close(pipeline(2, 2000, Some(1), times), 170.0, 1e-9);
        }
    }

    /// Times that vary make a short ring slower than the maximum of the means, and a long one
    /// approach it.
    #[test]
    fn with_varying_times_a_longer_ring_is_faster() {
        let mut rng = Rng::new(5);
        let drawn: Vec<[f64; 2]> =
            (0..40_000).map(|_| std::array::from_fn(|_| 200.0 * rng.next_u64() as f64 / u64::MAX as f64)).collect();
        let of = |ring| pipeline(2, drawn.len(), ring, |i, n| drawn[n][i]);
        let [one, four, many, endless] = [Some(1), Some(4), Some(256), None].map(of);
        assert!(one > four * 1.05 && four > many * 1.02, "{one} {four} {many}");
        close(many, endless, 0.01);
        close(endless, 100.0, 0.02);
    }

    #[test]
    fn a_breakpoint_is_found_with_its_interval() {
        let truth = Asynchronous { fixed_ns: 20_000.0, overhead_ns: 8_000.0, rate_mbps: 640.0 };
        let basis = Basis { size_fn: SizeFn::len(), cost: None };
        let samples = |seed| -> Vec<Sample> {
            let mut rng = Rng::new(seed);
            let mut noise = || 1.0 + 0.002 * (rng.next_u64() as f64 / u64::MAX as f64 - 0.5);
            (1..28).map(|i| f64::from(i) * 53.0).map(|l| Sample::new(l, truth.time_ns(l) * noise())).collect()
        };
        let covered = (0..40)
            .map(|seed| fit_asynchronous(&basis, &samples(seed)).unwrap().breakpoint)
            .filter(|b| b.low <= truth.breakpoint_bytes() && truth.breakpoint_bytes() <= b.high)
            .count();
        assert!(covered >= 34, "{covered} of 40");
        let samples = samples(2);
        let fit = fit_asynchronous(&basis, &samples).unwrap();
        close(fit.breakpoint.value, truth.breakpoint_bytes(), 0.03);
        close(fit.system.fixed_ns, 20_000.0, 0.002);
        close(fit.system.rate_mbps, 640.0, 0.02);
        assert!(fit.max_percent < 0.5);
        assert_eq!(fit_asynchronous(&basis, &samples[..2]), None);
    }

    /// Table 7 of the paper, all its sizes: its breakpoint is near 970 B, not 915 B.
    #[test]
    fn the_papers_asynchronous_system() {
        let rows = [
            (64.0, 24.0),
            (128.0, 49.0),
            (256.0, 99.0),
            (390.0, 153.0),
            (512.0, 202.0),
            (1024.0, 382.0),
            (1280.0, 414.0),
            (1456.0, 432.0),
        ];
        let samples: Vec<Sample> = rows.iter().map(|(l, r)| Sample::new(*l, time_ns(*l, *r))).collect();
        let basis = Basis { size_fn: SizeFn::Rounding("s2-esp8/1".into()), cost: None };
        let fit = fit_asynchronous(&basis, &samples).unwrap();
        assert!((930.0..1010.0).contains(&fit.breakpoint.value), "{fit:?}");
    }
}
