//! Judging a profile by measurements it has not seen.

use std::collections::BTreeSet;

use serde::Serialize;

use super::input::Measured;
use super::profile::Profile;
use stats::{Rng, median};
use throughput::{Baseline, Curve, Errors, Form};
use throughput::{Sample, undisturbed};

/// Limits of acceptance, in percent.
pub const MAX_BIAS: f64 = 0.5;
/// 95th percentile.
pub const MAX_P95: f64 = 2.0;
/// Largest error, sizes at a switch of regimes apart.
pub const MAX_ERROR: f64 = 3.0;
/// Disagreement of the measurements among themselves.
pub const MAX_REPEATABILITY: f64 = 0.5;
/// Held-out sizes.
pub const MIN_HELD_OUT: usize = 12;
/// Factor by which the errors must grow if sizes are shuffled.
const CONTROL_FACTOR: f64 = 5.0;

/// One criterion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Criterion {
    /// Criterion.
    pub what: &'static str,
    /// Result.
    pub found: String,
    /// True if it holds.
    pub holds: bool,
}

/// The judgement.
#[derive(Clone, Debug, Serialize)]
pub struct Validation {
    /// Errors at held-out sizes away from a switch of regimes.
    pub errors: Errors,
    /// Size, measured time in ns (lower quartile), predicted time in ns, error in percent.
    pub points: Vec<(f64, f64, f64, f64)>,
    /// Errors within one stride of a switch, reported apart.
    pub at_switch: Option<Errors>,
    /// Errors of the two-point line at the same sizes.
    pub two_point: Errors,
    /// Errors of every packet taking the same time, and of every byte taking the same time.
    pub constant: [Errors; 2],
    /// Median disagreement of the two halves of the measurements of a size, in percent; `None`
    /// without repetitions.
    pub repeatability: Option<f64>,
    /// p95 with shuffled sizes, in percent.
    pub shuffled_p95: f64,
    /// All criteria.
    pub criteria: Vec<Criterion>,
}

impl Validation {
    /// Returns whether all criteria hold.
    pub fn accepted(&self) -> bool {
        self.criteria.iter().all(|c| c.holds)
    }
}

/// Reason why no verdict is possible.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ValidationError {
    /// Every size is one of the calibration's.
    #[error("all {0} sizes were used to calibrate the profile; validation needs held-out sizes")]
    NothingHeldOut(usize),
}

/// Judges `profile` by `rows`, of which sizes of the calibration are left aside.
///
/// # Errors
/// [`ValidationError`].
pub fn validate(profile: &Profile, rows: &[Measured]) -> Result<Validation, ValidationError> {
    // Packets above the calibrated sizes are validated separately.
    let unseen: Vec<&Measured> =
        rows.iter().filter(|m| !profile.sizes.contains(&m.sample.size) && m.sample.size <= profile.range[1]).collect();
    let samples: Vec<Sample> = unseen.iter().map(|m| m.sample).collect();
    let held_out = undisturbed(&samples);
    if held_out.is_empty() {
        return Err(ValidationError::NothingHeldOut(
            undisturbed(&rows.iter().map(|m| m.sample).collect::<Vec<_>>()).len(),
        ));
    }
    let error = |time: f64, s: &Sample| 100.0 * (time / s.time_ns - 1.0);
    let (switch, plain): (Vec<&Sample>, Vec<&Sample>) = held_out.iter().partition(|s| at_switch(profile, s.size));
    let of =
        |points: &[&Sample]| Errors::of(&points.iter().map(|s| error(profile.time_ns(s.size), s)).collect::<Vec<_>>());
    let line = profile.two_point.line;
    let two_point: Vec<f64> =
        held_out.iter().map(|s| error(line.time_ns(profile.basis.size_fn.bytes(s.size)), s)).collect();
    let seen: Vec<Sample> = profile.sizes.iter().map(|size| Sample::new(*size, profile.time_ns(*size))).collect();
    let constant = [Baseline::ConstantPps, Baseline::ConstantBps].map(|baseline| {
        let line = baseline.fit(&profile.basis, &seen);
        let time = |s: &Sample| line.map_or(f64::NAN, |l| l.time_ns(profile.basis.size_fn.bytes(s.size)));
        Errors::of(&held_out.iter().map(|s| error(time(s), s)).collect::<Vec<_>>())
    });
    let mut validation = Validation {
        errors: of(&plain),
        points: held_out
            .iter()
            .map(|s| (s.size, s.time_ns, profile.time_ns(s.size), error(profile.time_ns(s.size), s)))
            .collect(),
        at_switch: (!switch.is_empty()).then(|| of(&switch)),
        two_point: Errors::of(&two_point),
        constant,
        repeatability: repeatability(&unseen),
        shuffled_p95: shuffled(profile, &held_out).p95,
        criteria: vec![],
    };
    validation.criteria = criteria(profile, &unseen, &validation);
    Ok(validation)
}

/// Returns whether `size` is within one stride of a switch of regimes.
fn at_switch(profile: &Profile, size: f64) -> bool {
    match &profile.fitted.curve {
        Curve::Linear { form: Form::Regimes { at, stride }, .. } => (size - at).abs() <= f64::from(*stride),
        _ => false,
    }
}

/// Median over sizes of how much the medians of even and of odd measurements differ, in percent.
fn repeatability(rows: &[&Measured]) -> Option<f64> {
    let sizes = undisturbed(&rows.iter().map(|m| m.sample).collect::<Vec<_>>());
    let mut apart = vec![];
    for size in sizes {
        let times: Vec<f64> = rows.iter().filter(|m| m.sample.size == size.size).map(|m| m.sample.time_ns).collect();
        let half = |from: usize| median(&times.iter().skip(from).step_by(2).copied().collect::<Vec<_>>());
        if times.len() >= 2 {
            apart.push(100.0 * (half(0) / half(1) - 1.0).abs());
        }
    }
    (!apart.is_empty()).then(|| median(&apart))
}

/// The negative control: every size gets the time of another.
fn shuffled(profile: &Profile, points: &[Sample]) -> Errors {
    let mut rng = Rng::new(1);
    let mut times: Vec<f64> = points.iter().map(|p| p.time_ns).collect();
    // Sattolo: a permutation that leaves nothing in its place.
    for i in (1..times.len()).rev() {
        times.swap(i, rng.below(i));
    }
    let errors: Vec<f64> =
        points.iter().zip(&times).map(|(p, time)| 100.0 * (profile.time_ns(p.size) / time - 1.0)).collect();
    Errors::of(&errors)
}

fn criteria(profile: &Profile, rows: &[&Measured], v: &Validation) -> Vec<Criterion> {
    let sessions: BTreeSet<&str> = rows.iter().map(|m| m.session.as_str()).collect();
    let shared = sessions.iter().filter(|s| profile.sessions.contains(**s)).count();
    let residues: BTreeSet<u32> = v.points.iter().map(|p| p.0 as u32 % 16).collect();
    let (min_sizes, min_sessions) = super::profile::CALIBRATION;
    let percent = |value: f64| format!("{value:.2} %");
    let one = |what, found, holds| Criterion { what, found, holds };
    vec![
        one(
            "calibrated on at least 7 sizes in at least 5 sessions",
            format!("{} sizes, {} sessions", profile.sizes.len(), profile.sessions.len()),
            profile.sizes.len() >= min_sizes && profile.sessions.len() >= min_sessions,
        ),
        one(
            "at least 12 held-out sizes, of 8 or more residues mod 16 (all from 20 sizes on)",
            format!("{} sizes, {} residues", v.points.len(), residues.len()),
            v.points.len() >= MIN_HELD_OUT && residues.len() >= if v.points.len() < 20 { 8 } else { 16 },
        ),
        one("measured in other sessions", format!("{shared} of {} shared", sessions.len()), shared == 0),
        one(
            "measurements repeat to 0.5 %",
            v.repeatability.map_or("each size was measured once".into(), percent),
            v.repeatability.is_some_and(|r| r <= MAX_REPEATABILITY),
        ),
        one("bias at most 0.5 %", format!("{:+.2} %", v.errors.bias), v.errors.bias.abs() <= MAX_BIAS),
        one("95 % of errors at most 2 %", percent(v.errors.p95), v.errors.p95 <= MAX_P95),
        one("largest error at most 3 %", percent(v.errors.max), v.errors.max <= MAX_ERROR),
        one(
            "better than the two-point line",
            format!("p95 {:.2} % against {:.2} %", v.errors.p95, v.two_point.p95),
            v.errors.p95 <= v.two_point.p95,
        ),
        one(
            "fails when sizes are shuffled",
            percent(v.shuffled_p95),
            v.shuffled_p95 >= CONTROL_FACTOR * v.errors.p95.max(MAX_P95),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::profile::tests::{calibration, measurements};
    use super::*;

    const OFF_GRID: [f64; 13] =
        [65.0, 97.0, 131.0, 201.0, 258.0, 349.0, 455.0, 577.0, 731.0, 916.0, 1111.0, 1338.0, 1405.0];

    fn failing(v: &Validation) -> Vec<&str> {
        v.criteria.iter().filter(|c| !c.holds).map(|c| c.what).collect()
    }

    #[test]
    fn a_true_profile_is_accepted() {
        let v = validate(&calibration().profile, &measurements(&OFF_GRID, 5..9).rows).unwrap();
        // On an exact line the two-point line is as good: within noise either may win.
        let failing: Vec<&str> = failing(&v).into_iter().filter(|w| !w.contains("two-point")).collect();
        assert!(failing.is_empty(), "{failing:?}");
        assert!(v.errors.max < 0.2 && v.shuffled_p95 > 20.0);
    }

    #[test]
    fn a_wrong_profile_is_not() {
        let rows: Vec<Measured> = measurements(&OFF_GRID, 5..9)
            .rows
            .into_iter()
            .map(|m| Measured { sample: Sample { time_ns: m.sample.time_ns * 1.05, ..m.sample }, ..m })
            .collect();
        let v = validate(&calibration().profile, &rows).unwrap();
        assert!(!v.accepted());
        assert!(failing(&v).contains(&"bias at most 0.5 %") && failing(&v).contains(&"largest error at most 3 %"));
    }

    #[test]
    fn the_same_sessions_too_few_sizes_and_single_measurements_are_not_accepted() {
        let profile = calibration().profile;
        let v = validate(&profile, &measurements(&OFF_GRID[..5], 0..1).rows[..5]).unwrap();
        let failing = failing(&v);
        assert!(failing.contains(&"measured in other sessions") && failing.contains(&"measurements repeat to 0.5 %"));
        assert!(failing.iter().any(|w| w.starts_with("at least 12 held-out sizes")));
    }

    #[test]
    fn sizes_of_the_calibration_prove_nothing() {
        let error = validate(&calibration().profile, &measurements(&[64.0, 512.0], 7..8).rows).unwrap_err();
        assert_eq!(error, ValidationError::NothingHeldOut(2));
    }
}
