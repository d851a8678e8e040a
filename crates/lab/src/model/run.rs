//! Input of the model from a run of `weir lab run`: selection of trials for calibration and for
//! validation, and further statistics.
//!
//! Studies of the kind `sizes` calibrate; `validate` has held-out sizes and mixes, in separate
//! processes; `cipher` is the cipher alone; `vector`, `loss` and `scaling` measure the effect of
//! batches, queues and cores. Validation data is never used for fitting.

use std::collections::BTreeMap;
use std::path::Path;

use ipsec::Protocol;

use super::beyond::{Beyond, beyond};
use super::input::{
    Identity, InputError, Measured, Measurements, Sessions, identity, measured, read_trials, saturates, session_name,
    session_names,
};
use super::layout::subject_layout;
use super::profile::{Calibration, MIN_SIZES, Machine, Profile, ProfileError, calibrate, fit_profile};
use super::validate::{Validation, ValidationError, validate};
use crate::campaign::{Campaign, Kind, format, store};
use crate::metric::Metric;
use crate::trial::{Direction, Trial};
use stats::{Latency, Ratio, Rng, paired, quantile_sorted};
use testbed::MemorySubject;
use testbed::pair::{Shape, Subject};
use throughput::CostTable;
use throughput::TailPoint;
use throughput::{Basis, Family};
use throughput::{BatchSample, VectorCost};
use throughput::{Layout, SizeFn, Work};

/// Quantile over a cipher's sessions at each length: an intermittently busy sibling makes some of
/// them slower, never faster.
const COST_QUANTILE: f64 = 0.25;

/// Identity of a model.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ModelKey {
    /// Name of the subject.
    pub subject: String,
    /// Direction.
    pub direction: Direction,
}

/// The trials of a run by permitted use.
#[derive(Debug)]
pub struct RunTrials<'a> {
    trials: &'a [Trial],
    kinds: BTreeMap<&'a str, Kind>,
    sessions: Sessions,
}

/// A campaign, its trials, and the ignored ones, for the user.
pub type RunFolder = (Campaign, Vec<Trial>, Vec<String>);

/// Reads the folder of a run; `None` when it holds no campaign.
///
/// # Errors
/// The campaign or a trial is invalid, or there are no trials.
pub fn read_run_folder(dir: &Path) -> Result<Option<RunFolder>, InputError> {
    let path = dir.join(store::CAMPAIGN);
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
    let campaign = format::parse(&path.display().to_string(), &text).map_err(|error| InputError::Line {
        path: path.clone(),
        line: error.line,
        why: error.what,
    })?;
    let path = dir.join(store::TRIALS);
    let empty = || InputError::File {
        path: path.clone(),
        why: format!("contains no trials yet; weir lab run --out {} resumes it", dir.display()),
    };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(empty()),
        Err(source) => return Err(InputError::Io { path, source }),
    };
    let (trials, notes) = read_trials(&path, &text)?;
    if trials.is_empty() { Err(empty()) } else { Ok(Some((campaign, trials, notes))) }
}

/// Layout of a configuration, if Weir has it.
pub fn layout_of(identity: &Identity) -> Option<Layout> {
    if let Ok(subject) = identity.subject.parse::<MemorySubject>() {
        return subject_layout(subject.subject()?);
    }
    let protocols = [Protocol::Esp, Protocol::Ah, Protocol::Eesp, Protocol::Psp];
    let protocol = protocols.into_iter().find(|p| p.name() == identity.protocol)?;
    let shape = match identity.mode.as_str() {
        "tunnel" => Shape::Tunnel,
        "transport" => Shape::Transport,
        "beet" => Shape::Beet,
        _ => return None,
    };
    subject_layout(&Subject::new(protocol, shape, &identity.suite, crypto::Engine::best()))
}

/// Default size function of a fit: bytes that neither cipher nor MAC processes have no cost per
/// byte.
pub fn default_size_fn(layout: Option<&Layout>) -> SizeFn {
    layout.map_or_else(SizeFn::len, |layout| SizeFn::Layout {
        work: if layout.confidential { Work::Cipher } else { Work::Auth },
        layout: layout.clone(),
    })
}

impl<'a> RunTrials<'a> {
    /// Sorts the trials of a campaign.
    pub fn new(campaign: &'a Campaign, trials: &'a [Trial]) -> Self {
        let kinds = campaign.studies.iter().map(|study| (study.name.as_str(), study.kind)).collect();
        Self { trials, kinds, sessions: session_names(trials) }
    }

    /// Trials of `key` in a kind of study, on one core.
    fn of(&self, kind: Kind, key: &ModelKey) -> Vec<&'a Trial> {
        let same = |t: &&Trial| t.direction == key.direction && t.cores == 1;
        self.of_subject(kind, &key.subject).filter(same).collect()
    }

    fn of_subject(&self, kind: Kind, subject: &str) -> impl Iterator<Item = &'a Trial> {
        let mine = move |t: &&Trial| self.kinds.get(t.study.as_str()) == Some(&kind) && t.subject == subject;
        self.trials.iter().filter(mine)
    }

    /// Variants of Weir with enough sizes for a calibration, by name.
    pub fn keys(&self) -> Vec<ModelKey> {
        let mut sizes: BTreeMap<ModelKey, Vec<u32>> = BTreeMap::new();
        let calibrate = |t: &&Trial| self.kinds.get(t.study.as_str()) == Some(&Kind::Sizes) && saturates(t);
        for trial in self.trials.iter().filter(calibrate) {
            let (Some(size), true) = (trial.size, layout_of(&identity(trial)).is_some() && trial.protocol != "cipher")
            else {
                continue;
            };
            let seen =
                sizes.entry(ModelKey { subject: trial.subject.clone(), direction: trial.direction }).or_default();
            if !seen.contains(&size) {
                seen.push(size);
            }
        }
        sizes.into_iter().filter(|(_, sizes)| sizes.len() >= MIN_SIZES).map(|(key, _)| key).collect()
    }

    fn rows(&self, kind: Kind, key: &ModelKey) -> Vec<Measured> {
        let wanted = |t: &&&Trial| t.size.is_some() && saturates(t);
        self.of(kind, key).iter().filter(wanted).map(|t| measured(t, &self.sessions)).collect()
    }

    /// Calibration data of `key`.
    pub fn calibration(&self, key: &ModelKey) -> Measurements {
        let first = self.of(Kind::Sizes, key).first().map(|t| identity(t)).unwrap_or_default();
        Measurements { identity: first, rows: self.rows(Kind::Sizes, key), notes: vec![] }
    }

    /// The cipher of `key` alone, if the run has it: for each length the lower quartile over all
    /// trials.
    pub fn cost_table(&self, key: &ModelKey) -> Option<CostTable> {
        let suite = &self.of(Kind::Sizes, key).first()?.suite;
        let cipher = |t: &&Trial| {
            self.kinds.get(t.study.as_str()) == Some(&Kind::Cipher)
                && t.suite == *suite
                && (t.direction == key.direction || t.direction == Direction::Both)
        };
        let mut times: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for trial in self.trials.iter().filter(cipher) {
            for (bytes, ns) in trial.measured.values.cipher() {
                times.entry(bytes).or_default().push(ns);
            }
        }
        let quick = |mut ns: Vec<f64>| {
            ns.sort_by(f64::total_cmp);
            quantile_sorted(&ns, COST_QUANTILE)
        };
        CostTable::new(suite, times.into_iter().map(|(bytes, ns)| (f64::from(bytes), quick(ns))).collect()).ok()
    }

    /// Fits `key`, by the given family, or by the one with the lowest error at held-out sizes, with
    /// the run's own times of the cipher unless others are given.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn calibrate(
        &self,
        key: &ModelKey,
        machine: Machine,
        cost: Option<CostTable>,
        family: Option<Family>,
    ) -> Result<Calibration, ProfileError> {
        let (measurements, basis, layout) = self.basis(key, cost);
        let mut calibration = calibrate(&measurements, basis, layout, machine, family)?;
        calibration.profile.set_vector(self.vector(key));
        Ok(calibration)
    }

    /// The profile alone.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn profile(&self, key: &ModelKey) -> Result<Profile, ProfileError> {
        let (measurements, basis, layout) = self.basis(key, None);
        let mut profile = fit_profile(&measurements, basis, layout, Machine::default(), None)?;
        profile.set_vector(self.vector(key));
        Ok(profile)
    }

    fn basis(&self, key: &ModelKey, cost: Option<CostTable>) -> (Measurements, Basis, Option<Layout>) {
        let measurements = self.calibration(key);
        let layout = layout_of(&measurements.identity);
        // The table is over bytes through the cipher: a MAC alone has none.
        let confidential = layout.as_ref().is_some_and(|l| l.confidential);
        let cost = cost.or_else(|| self.cost_table(key)).filter(|_| confidential);
        (measurements, Basis { size_fn: default_size_fn(layout.as_ref()), cost }, layout)
    }

    /// Validates `profile` with the held-out sizes of the run.
    ///
    /// # Errors
    /// [`ValidationError`].
    pub fn validate(&self, profile: &Profile) -> Result<Validation, ValidationError> {
        let key = ModelKey::of(profile);
        let rows = key.map_or_else(Vec::new, |key| self.rows(Kind::Validate, &key));
        validate(profile, &rows)
    }

    /// Validates `profile` beyond single sizes: large packets, mixes, cores, latency.
    pub fn beyond(&self, profile: &Profile) -> Beyond {
        let Some(key) = ModelKey::of(profile) else { return Beyond::default() };
        let held_out = self.of(Kind::Validate, &key);
        let seen: Vec<&Trial> =
            held_out.into_iter().filter(|t| !profile.sessions.contains(&session_name(t, &self.sessions))).collect();
        let loss = self.of(Kind::Loss, &key);
        // On several cores, packets are both sealed and opened, independent of the direction of the
        // profile.
        let scaling: Vec<&Trial> = self.of_subject(Kind::Scaling, &key.subject).collect();
        let mut found = beyond(profile, &seen, &loss, &scaling);
        found.cold = self.cold(&key);
        found
    }

    /// Returns the fixed cost of a batch.
    fn vector(&self, key: &ModelKey) -> Option<VectorCost> {
        let mut sessions: BTreeMap<u32, Vec<BatchSample>> = BTreeMap::new();
        for trial in self.of(Kind::Vector, key).into_iter().filter(|t| saturates(t) && memory_mib(t) == 0.0) {
            let sample = BatchSample { batch: f64::from(trial.batch), ns: super::input::packet_ns(trial) };
            sessions.entry(trial.session).or_default().push(sample);
        }
        VectorCost::fit(&sessions.into_values().collect::<Vec<_>>())
    }

    /// Returns the cost ratio of packets outside of all caches to cached ones, by size: pairs of
    /// one round, an interval over sessions.
    fn cold(&self, key: &ModelKey) -> Vec<(u32, Ratio)> {
        let all: Vec<&Trial> = self.of(Kind::Vector, key).into_iter().filter(|t| saturates(t)).collect();
        let mut sizes: Vec<u32> = all.iter().filter_map(|t| t.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let ratio = |size: u32| {
            let mut sessions: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
            for cold in all.iter().filter(|t| t.size == Some(size) && memory_mib(t) > 0.0) {
                let warm = all.iter().find(|t| {
                    (t.session, t.round, t.size, t.batch) == (cold.session, cold.round, cold.size, cold.batch)
                        && memory_mib(t) == 0.0
                });
                if let Some(warm) = warm {
                    let log = (super::input::packet_ns(cold) / super::input::packet_ns(warm)).ln();
                    sessions.entry(cold.session).or_default().push(log);
                }
            }
            Some((size, paired(&sessions.into_values().collect::<Vec<_>>(), &mut Rng::new(1))?))
        };
        sizes.into_iter().filter_map(ratio).collect()
    }
}

fn memory_mib(trial: &Trial) -> f64 {
    trial.measured.values.get(Metric::MemoryMib).unwrap_or(0.0)
}

impl ModelKey {
    /// Returns the identity of a profile; `None` for a profile from a table.
    pub fn of(profile: &Profile) -> Option<Self> {
        let direction = match profile.identity.direction.as_str() {
            "out" => Direction::Out,
            "in" => Direction::In,
            "both" => Direction::Both,
            _ => return None,
        };
        Some(Self { subject: profile.identity.subject.clone(), direction })
    }

    /// `out`, `in` or `both`.
    pub fn direction_name(&self) -> &'static str {
        match self.direction {
            Direction::Out => "out",
            Direction::In => "in",
            Direction::Both => "both",
        }
    }

    /// A file name.
    pub fn file(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
        format!("{}-{}.toml", self.subject.chars().map(plain).collect::<String>(), self.direction_name())
    }
}

/// Latencies of paced trials by session: (ρ, nanoseconds, packets).
pub(super) fn tail_points(loss: &[&Trial], service_ns: f64) -> Vec<Vec<TailPoint>> {
    let mut sessions: BTreeMap<u32, Vec<TailPoint>> = BTreeMap::new();
    for trial in loss {
        let decoded = trial.measured.latency.as_deref().and_then(Latency::decode).zip(trial.offered_pps);
        let Some((latency, pps)) = decoded else { continue };
        let rho = pps * service_ns / 1e9;
        let points = latency.points().map(|(ns, packets)| TailPoint { rho, ns, packets });
        sessions.entry(trial.session).or_default().extend(points);
    }
    sessions.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::super::profile::tests::calibration;
    use super::*;
    use crate::campaign::schedule;
    use crate::cores::{Scheduler, Spreading};
    use crate::model::explain::tests::trial;

    /// A campaign as in the presets: a profile is for one direction, trials on several cores for
    /// both, and variants are in any order.
    #[test]
    fn cores_of_a_campaign_are_judged_by_a_way_that_uses_them() {
        let text = "name = \"t\"\n[[study]]\nkind = \"scaling\"\nsubjects = [\"weir-esp-tunnel-aes128gcm16\"]\n\
                    traffic = [512, 64]\ncores = [1, 2, 4]\nflows = [1, 64]\nspreads = [\"worst\", \"ideal\"]\n";
        let campaign = format::parse("t.toml", text).unwrap();
        // A serial share of 2 %, for the cores that a variant can use; the pipeline is twice as
        // slow.
        let made = |cell: schedule::Cell| {
            let (mut made, way) = (trial(512, 1), cell.way.unwrap());
            let (n, one) = (way.ceiling(cell.cores), if way.scheduler == Scheduler::Pipeline { 5e5 } else { 1e6 });
            (made.study, made.subject, made.direction) = ("scaling".into(), cell.subject, cell.direction);
            (made.traffic, made.cores, made.way) = (cell.traffic, cell.cores, Some(way));
            (made.measured.received, made.measured.dur_ns) =
                ((one * n / (1.0 + 0.02 * (n - 1.0))).round() as u64, 1_000_000_000);
            made
        };
        let mut trials: Vec<Trial> = schedule::cells(&campaign.studies[0]).into_iter().map(made).collect();
        for direction in ["out", "in"] {
            let mut profile = calibration().profile;
            profile.identity.subject = "weir-esp-tunnel-aes128gcm16".into();
            profile.identity.direction = direction.into();
            for _ in 0..2 {
                let found = RunTrials::new(&campaign, &trials).beyond(&profile);
                let what: Vec<&str> = found.checks.iter().map(|check| check.what.as_str()).collect();
                assert_eq!(what, ["512 at both ends, 4 cores from 2", "64 at both ends, 4 cores from 2"]);
                assert!(found.checks.iter().all(|check| check.error_percent.abs() < 0.1), "{found:?}");
                assert!(found.checks.iter().all(|check| check.measured.round() == 3_773_585.0), "{found:?}");
                trials.reverse();
            }
        }
        // Runs may name one core by a spread that it cannot have.
        let rename = |way: &mut crate::trial::CoreSetup| way.spread = Spreading::Worst;
        trials.iter_mut().filter(|trial| trial.cores == 1).for_each(|trial| trial.way.iter_mut().for_each(rename));
        let profile = Profile {
            identity: Identity { subject: trials[0].subject.clone(), direction: "out".into(), ..Identity::default() },
            ..calibration().profile
        };
        assert_eq!(RunTrials::new(&campaign, &trials).beyond(&profile).checks.len(), 2);
        trials.retain(|trial| trial.way.is_some_and(|way| way.ceiling(4) == 1.0));
        assert!(
            RunTrials::new(&campaign, &trials).beyond(&profile).checks.is_empty(),
            "none of them uses more than one"
        );
    }
}
