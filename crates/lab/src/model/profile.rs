//! A profile: the frozen parameters of one configuration on one machine, in a file with a hash.
//!
//! `weir lab model fit` creates it, `validate` checks it, `plan` and `explain` read it. Editing a
//! parameter invalidates the hash, so a profile always contains measured values.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crypto::ike::Hash;
use serde::{Deserialize, Serialize};

use super::input::{Identity, Measurements};
use crate::campaign::env::Environment;
use stats::{Rng, over_clusters};
use throughput::Layout;
use throughput::Synchronous;
use throughput::{Baseline, Basis, Candidate, Curve, Errors, Family, Fitted, Form, choose, held_out, two_point_sizes};
use throughput::{Calibrated, Cost, VectorCost};
use throughput::{Interval, Sample, SignRuns, sign_runs, undisturbed, weighted};

/// Version of the file.
pub const PROFILE_SCHEMA: u32 = 1;

/// Distinct sizes without which nothing is fitted.
pub const MIN_SIZES: usize = 4;

/// Packets per batch that a calibration is measured with.
pub const CALIBRATION_BATCH: u32 = 256;

/// Sizes and sessions that a calibration should have.
pub const CALIBRATION: (usize, usize) = (7, 5);

/// Machine of a profile.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Machine {
    /// Processor.
    pub cpu: String,
    /// Ticks of the time-stamp counter per second, 0 where unknown.
    pub tsc_hz: f64,
    /// Commit of Weir.
    pub commit: String,
}

impl Machine {
    /// The one that a run was measured on.
    pub fn of(environment: &Environment) -> Self {
        let fixed = &environment.fixed;
        Self { cpu: fixed.cpu.clone(), tsc_hz: environment.tsc_hz, commit: fixed.commit.clone() }
    }
}

/// The paper's model beside the chosen one.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct TwoPointLine {
    /// Its two sizes in bytes.
    pub sizes: [f64; 2],
    /// Its parameters over the profile's size function.
    pub line: Synchronous,
    /// Its errors at left-out sizes.
    pub held_out: Errors,
}

/// A profile.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Profile {
    /// [`PROFILE_SCHEMA`] of the writer.
    pub schema: u32,
    /// SHA-256 of the file with an empty hash.
    pub hash: String,
    /// Largest and smallest measured size in bytes: predictions outside are extrapolated.
    pub range: [f64; 2],
    /// Sizes measured.
    pub sizes: Vec<f64>,
    /// Sessions measured.
    pub sessions: BTreeSet<String>,
    /// Measurements.
    pub samples: usize,
    /// Identity of the measurement.
    pub identity: Identity,
    /// Machine.
    pub machine: Machine,
    /// Argument of the form.
    pub basis: Basis,
    /// The model.
    pub fitted: Fitted,
    /// Its errors at left-out sizes.
    pub held_out: Errors,
    /// The two-point line.
    pub two_point: TwoPointLine,
    /// Layout of the protocol on the wire, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// Cost of a batch besides its packets, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vector: Option<VectorCost>,
}

/// Reason why no profile was fitted.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Too few sizes.
    #[error(
        "{have} different sizes are too few to fit and to leave one out: measure at least {MIN_SIZES}, better 7 or more; with two \
         numbers use weir lab plan --datasheet"
    )]
    TooFewSizes {
        /// Sizes that there are.
        have: usize,
    },
    /// Nothing can be fitted.
    #[error("no form can be fitted: no model describes how the times depend on size")]
    NoForm,
    /// The wanted family cannot be fitted.
    #[error("a {family} cannot be fitted to {sizes} sizes{hint}")]
    NoFamily {
        /// Its name.
        family: &'static str,
        /// Sizes.
        sizes: usize,
        /// Correction.
        hint: &'static str,
    },
    /// The file cannot be read or written.
    #[error("cannot use profile {path}: {why}")]
    File {
        /// File.
        path: PathBuf,
        /// Reason.
        why: String,
    },
}

/// A fit with everything that is worth printing about it.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The profile.
    pub profile: Profile,
    /// All forms that were tried.
    pub candidates: Vec<Candidate>,
    /// Index of the profile's form.
    pub chosen: usize,
    /// The line by least squares with parameters' intervals, for the fixed time and the rate.
    pub line: LineFit,
    /// Baselines with their errors.
    pub baselines: Vec<(Baseline, Errors)>,
    /// Parameters of the chosen form, 95 % over sessions; empty for a spline, and where there is
    /// one session.
    pub parameters: Vec<Interval>,
    /// Residuals of the chosen form, in order of size, in percent.
    pub residuals: Vec<(f64, f64)>,
    /// Their signs.
    pub runs: SignRuns,
}

/// The line by least squares.
#[derive(Clone, Debug)]
pub struct LineFit {
    /// Fixed time in nanoseconds, 95 % over sessions; over measurements where there is one session.
    pub fixed_ns: Interval,
    /// Nanoseconds per byte of the size function, with the same interval.
    pub per_byte_ns: Interval,
    /// Correlation of both.
    pub correlation: f64,
}

/// A profile with the forms that it was chosen from.
struct Choice {
    profile: Profile,
    candidates: Vec<Candidate>,
    chosen: usize,
    baselines: Vec<(Baseline, Errors)>,
}

/// Fits a profile, without the statistics for the report.
///
/// # Errors
/// [`ProfileError`].
pub fn fit_profile(
    measurements: &Measurements,
    basis: Basis,
    layout: Option<Layout>,
    machine: Machine,
    family: Option<Family>,
) -> Result<Profile, ProfileError> {
    Ok(choice(measurements, basis, layout, machine, family)?.profile)
}

/// Fits a profile.
///
/// # Errors
/// [`ProfileError`].
pub fn calibrate(
    measurements: &Measurements,
    basis: Basis,
    layout: Option<Layout>,
    machine: Machine,
    family: Option<Family>,
) -> Result<Calibration, ProfileError> {
    let Choice { profile, candidates, chosen, baselines } = choice(measurements, basis, layout, machine, family)?;
    let samples: Vec<Sample> = measurements.rows.iter().map(|m| m.sample).collect();
    let line = line_fit(&profile.basis, measurements, &samples).ok_or(ProfileError::NoForm)?;
    let error = |p: Sample| (p.size, 100.0 * (profile.time_ns(p.size) / p.time_ns - 1.0));
    let residuals: Vec<(f64, f64)> = undisturbed(&samples).into_iter().map(error).collect();
    let runs = sign_runs(&residuals.iter().map(|r| r.1).collect::<Vec<_>>());
    let parameters = match &profile.fitted.curve {
        Curve::Linear { form, .. } => over_sessions(form, &profile.basis, measurements).unwrap_or_default(),
        Curve::Spline(_) => vec![],
    };
    Ok(Calibration { profile, candidates, chosen, line, baselines, parameters, residuals, runs })
}

fn choice(
    measurements: &Measurements,
    basis: Basis,
    layout: Option<Layout>,
    machine: Machine,
    family: Option<Family>,
) -> Result<Choice, ProfileError> {
    let samples: Vec<Sample> = measurements.rows.iter().map(|m| m.sample).collect();
    let points = undisturbed(&samples);
    if points.len() < MIN_SIZES {
        return Err(ProfileError::TooFewSizes { have: points.len() });
    }
    let (candidates, mut chosen) = choose(&basis, &samples).ok_or(ProfileError::NoForm)?;
    if let Some(family) = family {
        let hint = if family == Family::Crypto { "; it needs --cost-table" } else { "" };
        chosen = candidates.iter().position(|c| c.fitted.family == family).ok_or(ProfileError::NoFamily {
            family: family.name(),
            sizes: points.len(),
            hint,
        })?;
    }
    let baselines: Vec<(Baseline, Errors)> = Baseline::ALL
        .into_iter()
        .filter_map(|b| {
            let errors =
                held_out(&samples, |s| b.fit(&basis, s), |line, size| line.time_ns(basis.size_fn.bytes(size)))?;
            Some((b, errors))
        })
        .collect();
    let two = Baseline::TwoPoint.fit(&basis, &samples).ok_or(ProfileError::NoForm)?;
    let two_sizes = two_point_sizes(&points).ok_or(ProfileError::NoForm)?.map(|s| s.size);
    let two_errors = baselines.iter().find(|(b, _)| *b == Baseline::TwoPoint).map(|(_, e)| *e);
    let mut profile = Profile {
        schema: PROFILE_SCHEMA,
        hash: String::new(),
        range: [points[0].size, points[points.len() - 1].size],
        sizes: points.iter().map(|p| p.size).collect(),
        sessions: measurements.rows.iter().map(|m| m.session.clone()).collect(),
        samples: samples.len(),
        identity: measurements.identity.clone(),
        machine,
        held_out: candidates[chosen].held_out,
        fitted: candidates[chosen].fitted.clone(),
        two_point: TwoPointLine { sizes: two_sizes, line: two, held_out: two_errors.unwrap_or_default() },
        basis,
        layout,
        vector: None,
    };
    profile.hash = profile.digest();
    Ok(Choice { profile, candidates, chosen, baselines })
}

/// Parameters of `form`, fitted to the lower quartile of each size, with intervals from drawing
/// whole sessions. `None` for one session.
fn over_sessions(form: &Form, basis: &Basis, measurements: &Measurements) -> Option<Vec<Interval>> {
    let mut sessions: BTreeMap<&str, Vec<Sample>> = BTreeMap::new();
    for row in &measurements.rows {
        sessions.entry(&row.session).or_default().push(row.sample);
    }
    if sessions.len() < 2 {
        return None;
    }
    let fit = |drawn: &[Sample]| {
        let points = undisturbed(drawn);
        let rows: Vec<Vec<f64>> = points.iter().map(|s| form.row(basis, s.size)).collect();
        weighted(&rows, &points).map(|fit| fit.coef)
    };
    let sessions: Vec<Vec<Sample>> = sessions.into_values().collect();
    let found = over_clusters(&sessions, fit, &mut Rng::new(1))?;
    Some(found.into_iter().map(|e| Interval { value: e.value, low: e.low, high: e.high }).collect())
}

fn line_fit(basis: &Basis, measurements: &Measurements, samples: &[Sample]) -> Option<LineFit> {
    let rows: Vec<Vec<f64>> = samples.iter().map(|s| Form::Line.row(basis, s.size)).collect();
    let fit = weighted(&rows, samples)?;
    let clustered = over_sessions(&Form::Line, basis, measurements);
    let interval = |i: usize| {
        let own = fit.parameter(i, 0.95);
        clustered.as_ref().map_or(own, |of| of[i])
    };
    Some(LineFit { fixed_ns: interval(0), per_byte_ns: interval(1), correlation: fit.correlation() })
}

impl Profile {
    /// Adds what batches cost.
    pub fn set_vector(&mut self, vector: Option<VectorCost>) {
        self.vector = vector;
        self.hash = self.digest();
    }

    /// Time of a packet of `size` bytes in nanoseconds.
    pub fn time_ns(&self, size: f64) -> f64 {
        self.fitted.time_ns(&self.basis, size)
    }

    /// Interval of a new measurement.
    pub fn prediction(&self, size: f64, confidence: f64) -> Interval {
        self.fitted.prediction(&self.basis, size, confidence)
    }

    /// Returns whether `size` is outside the measured range.
    pub fn extrapolates(&self, size: f64) -> bool {
        !(self.range[0]..=self.range[1]).contains(&size)
    }

    /// Returns whether the model is better than the two-point line at sizes that neither has seen.
    pub fn beats_two_point(&self) -> bool {
        self.held_out.p95 <= self.two_point.held_out.p95
    }

    /// Bytes on the wire of an inner packet of `size` bytes; the packet itself where the protocol
    /// is not known.
    pub fn wire_bytes(&self, size: f64) -> f64 {
        self.layout.as_ref().map_or(size, |layout| layout.bytes(throughput::Work::Wire, size))
    }

    /// The model for plans, with its origin.
    pub fn cost(&self) -> Cost {
        let source = if self.identity.subject.is_empty() { "a table of times" } else { &self.identity.subject };
        let machine = if self.machine.cpu.is_empty() { "an unnamed machine" } else { &self.machine.cpu };
        let mut origin = vec![format!(
            "times from {source} on {machine}, {} sizes from {} to {} bytes, {} sessions; held-out p95 {:.2} %",
            self.sizes.len(),
            self.range[0],
            self.range[1],
            self.sessions.len(),
            self.held_out.p95
        )];
        let (sizes, sessions) = CALIBRATION;
        if self.sizes.len() < sizes || self.sessions.len() < sessions {
            origin
                .push(format!("provisional: a calibration has at least {sizes} sizes in at least {sessions} sessions"));
        }
        let (fitted, basis, layout) = (self.fitted.clone(), self.basis.clone(), self.layout.clone());
        Cost::Model(Box::new(Calibrated { fitted, basis, range: self.range, layout, origin }))
    }

    fn text(&self) -> String {
        toml::to_string(self).expect("a profile has no type that TOML lacks")
    }

    fn digest(&self) -> String {
        let unsigned = Self { hash: String::new(), ..self.clone() };
        Hash::Sha256.digest(&[unsigned.text().as_bytes()]).iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Writes the file.
    ///
    /// # Errors
    /// [`ProfileError::File`].
    pub fn save(&self, path: &Path) -> Result<(), ProfileError> {
        let file = |why: std::io::Error| ProfileError::File { path: path.to_owned(), why: why.to_string() };
        std::fs::write(path, self.text()).map_err(file)
    }

    /// Reads a file and checks its hash.
    ///
    /// # Errors
    /// [`ProfileError::File`].
    pub fn load(path: &Path) -> Result<Self, ProfileError> {
        let file = |why: String| ProfileError::File { path: path.to_owned(), why };
        let text = std::fs::read_to_string(path).map_err(|e| file(e.to_string()))?;
        let profile: Self =
            toml::from_str(&text).map_err(|e| file(format!("not written by weir lab model fit: {}", e.message())))?;
        if profile.schema > PROFILE_SCHEMA {
            return Err(file(format!(
                "schema {} is newer than {PROFILE_SCHEMA}, the latest that this weir supports",
                profile.schema
            )));
        }
        if profile.hash != profile.digest() {
            return Err(file("invalid hash: it was changed after the fit; fit it again".into()));
        }
        Ok(profile)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::input::Measured;
    use throughput::SizeFn;

    /// Five sessions of 100 + 0.4·L with 0.2 % of noise.
    pub(in crate::model) fn measurements(sizes: &[f64], sessions: std::ops::Range<u32>) -> Measurements {
        let mut rng = Rng::new(u64::from(sessions.start) + 11);
        let mut rows = vec![];
        for session in sessions {
            for round in 0..4 {
                for size in sizes {
                    let noise = 1.0 + 0.004 * (rng.next_u64() as f64 / u64::MAX as f64 - 0.5);
                    let sample = Sample::new(*size, (100.0 + 0.4 * size) * noise);
                    rows.push(Measured { sample, session: format!("r/{session}"), round });
                }
            }
        }
        Measurements { identity: Identity::default(), rows, notes: vec![] }
    }

    pub(in crate::model) fn calibration() -> Calibration {
        let sizes = [64.0, 128.0, 256.0, 512.0, 768.0, 1024.0, 1280.0, 1500.0];
        let basis = Basis { size_fn: SizeFn::len(), cost: None };
        calibrate(&measurements(&sizes, 0..5), basis, None, Machine::default(), None).unwrap()
    }

    #[test]
    fn a_profile_survives_its_file_and_a_changed_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.toml");
        let profile = calibration().profile;
        profile.save(&path).unwrap();
        assert_eq!(Profile::load(&path).unwrap(), profile);

        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("samples = 160", "samples = 161")).unwrap();
        let error = Profile::load(&path).unwrap_err().to_string();
        assert!(error.contains("invalid hash"), "{error}");
        std::fs::write(&path, "a = 1").unwrap();
        assert!(Profile::load(&path).unwrap_err().to_string().contains("not written by weir lab model fit"));
        assert!(Profile::load(&dir.path().join("none")).unwrap_err().to_string().contains("cannot use profile"));
    }

    #[test]
    fn a_calibration_finds_its_line_and_says_how_sure_it_is() {
        let c = calibration();
        assert_eq!(c.profile.fitted.family, Family::Line);
        // The lower quartile of noise of ±0.2 % is 0.1 % lower.
        let holds = |interval: &Interval, truth: f64| {
            let bias = 0.001 * truth;
            interval.low < truth && truth - 2.0 * bias < interval.high && interval.low <= interval.value
        };
        assert!(holds(&c.line.fixed_ns, 100.0) && holds(&c.line.per_byte_ns, 0.4), "{:?}", c.line);
        assert!(c.line.correlation < -0.4);
        assert_eq!(c.profile.sessions.len(), 5);
        assert!(c.profile.extrapolates(40.0) && !c.profile.extrapolates(64.0) && c.profile.extrapolates(9000.0));
        let band = c.profile.prediction(700.0, 0.9);
        let truth = 0.999 * 380.0;
        assert!(band.low < truth && truth < band.high && band.high - band.low < 4.0, "{band:?}");
    }

    #[test]
    fn three_sizes_are_too_few_and_a_family_that_cannot_be_is_named() {
        let basis = Basis { size_fn: SizeFn::len(), cost: None };
        let few = measurements(&[64.0, 512.0, 1400.0], 0..1);
        let error = calibrate(&few, basis.clone(), None, Machine::default(), None).unwrap_err().to_string();
        assert!(error.starts_with("3 different sizes are too few"), "{error}");
        let enough = measurements(&[64.0, 300.0, 512.0, 900.0, 1400.0], 0..1);
        let error = calibrate(&enough, basis, None, Machine::default(), Some(Family::Crypto)).unwrap_err().to_string();
        assert!(error.contains("--cost-table"), "{error}");
    }
}
