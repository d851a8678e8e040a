//! `weir bench cores`: what more cores bring, by how the SAs are spread over them and by scheduler.
//!
//! Every packet circulates in memory: it is stamped with its flow and number, sealed by one
//! gateway, opened by another, and the stamp is checked. Only the cores under test take part.
//! Trials of all compared cases are interleaved, in random order in every round, so that drift of
//! the machine affects all equally; speed-ups are computed per round. Trials with a busy SMT
//! sibling are repeated within a time limit, and excluded if enough others remain.

mod show;
mod trial;
mod world;

use std::time::Duration;

use crypto::Engine;
use serde::{Deserialize, Serialize};

use super::alone;
use crate::host::Gauge;
use crate::model::{Usl, UslFit, used_queues};
use crate::pair::PairError;
use crate::stats::{Estimate, Judged, Limits, Ratio, Rng, jain, judge, median_with_interval, paired};

pub use show::{cores_json, cores_table};
pub use trial::BATCH;
pub(crate) use trial::{TrialCounts, run as run_trial};
pub(crate) use world::World;

/// Scheduler.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// A batch stays on the core that received it
    RunToCompletion,
    /// Batches go from core to core by the tags of a work queue
    Pipeline,
}

impl Scheduler {
    /// Both.
    pub const ALL: [Self; 2] = [Self::RunToCompletion, Self::Pipeline];

    /// Its name in campaigns and trials.
    pub fn name(self) -> &'static str {
        match self {
            Self::RunToCompletion => "run-to-completion",
            Self::Pipeline => "pipeline",
        }
    }
}

/// Kind of SAs of an outbound policy.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Set {
    /// One ESP SA
    One,
    /// One ESP SA per CPU (RFC 9611)
    PerCpu,
    /// One EESP SA with a Sub SA per CPU
    SubSas,
    /// One PSP association with a counter prefix per CPU
    Psp,
    /// Gateways that have nothing to do with each other, one per CPU: what the machine gives
    Apart,
}

impl Set {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::One, Self::PerCpu, Self::SubSas, Self::Psp, Self::Apart];

    /// Its name in campaigns and trials.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::PerCpu => "per-cpu",
            Self::SubSas => "sub-sas",
            Self::Psp => "psp",
            Self::Apart => "apart",
        }
    }

    /// Returns whether it can be had with a scheduler: where nothing is shared, nothing is
    /// scheduled.
    pub(crate) fn runs_by(self, scheduler: Scheduler) -> bool {
        self != Self::Apart || scheduler == Scheduler::RunToCompletion
    }

    /// Returns whether it makes a difference which core gets a flow.
    pub(crate) fn spreads(self) -> bool {
        !matches!(self, Self::One | Self::Apart)
    }
}

/// Distribution of flows to cores.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Spreading {
    /// Each as many as the next
    Ideal,
    /// By a hash
    Hashed,
    /// All to the first
    Worst,
}

impl Spreading {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ideal, Self::Hashed, Self::Worst];

    /// Its name in campaigns and trials.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ideal => "ideal",
            Self::Hashed => "hashed",
            Self::Worst => "worst",
        }
    }
}

/// The sizes of the OCTEON paper's figures, inner packets in bytes.
pub const OCTEON_SIZES: [usize; 6] = [64, 128, 256, 512, 1024, 1280];
/// Its suites, and GCM, which it did not have.
pub const OCTEON_SUITES: [&str; 6] =
    ["aes128-sha1", "aes192-sha1", "aes256-sha1", "des-sha1", "3des-sha1", "aes128gcm16"];
/// Flows: the axis that the paper never states, and that decides its result.
pub const OCTEON_FLOWS: [usize; 4] = [1, 4, 64, 4096];
/// Most flows of a trial: they have a port each.
pub const MAX_FLOWS: usize = 60_000;

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct CoresOptions {
    /// Numbers of cores; 1 is always measured, for the speed-up.
    pub cores: Vec<usize>,
    /// Inner packet sizes in bytes, 64 to 1400.
    pub sizes: Vec<usize>,
    /// Suites.
    pub suites: Vec<String>,
    /// Numbers of flows, at most [`MAX_FLOWS`].
    pub flows: Vec<usize>,
    /// Schedulers.
    pub schedulers: Vec<Scheduler>,
    /// Sets of SAs. EESP and PSP are left out for suites that they do not have.
    pub sets: Vec<Set>,
    /// Distribution of flows to cores.
    pub spread: Spreading,
    /// Encrypt and decrypt with the tag Atomic, as the paper's table has it.
    pub atomic_cipher: bool,
    /// Rounds; at least 3.
    pub rounds: usize,
    /// Length of a trial.
    pub trial: Duration,
    /// Time limit per case for repeating trials with a busy SMT sibling.
    pub patience: Duration,
    /// Seed of order and intervals.
    pub seed: u64,
    /// Engine.
    pub engine: Engine,
}

impl Default for CoresOptions {
    fn default() -> Self {
        let here = ports::cpus::allowed().len().max(1);
        Self {
            cores: (0..).map(|n| 1 << n).take_while(|n| *n <= here).collect(),
            sizes: vec![64, 512, 1280],
            suites: vec!["aes128gcm16".into(), "aes128-sha1".into()],
            flows: vec![64],
            schedulers: vec![Scheduler::RunToCompletion, Scheduler::Pipeline],
            sets: Set::ALL.to_vec(),
            spread: Spreading::Ideal,
            atomic_cipher: false,
            rounds: 7,
            trial: Duration::from_millis(50),
            patience: Duration::from_secs(1),
            seed: 1,
            engine: Engine::best(),
        }
    }
}

/// One case.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Case {
    pub scheduler: Scheduler,
    pub set: Set,
    pub suite: String,
    pub size: usize,
    pub flows: usize,
    pub cores: usize,
    pub spread: Spreading,
    pub atomic_cipher: bool,
    #[serde(skip)]
    pub engine: Engine,
}

impl Case {
    /// Upper bound of the speed-up without contention: the number of cores that can have work at
    /// the same time.
    pub fn ceiling(&self) -> f64 {
        Self::ceiling_of(self.scheduler, self.set, self.spread, self.flows, self.cores)
    }

    /// The same of its parts.
    pub(crate) fn ceiling_of(scheduler: Scheduler, set: Set, spread: Spreading, flows: usize, cores: usize) -> f64 {
        match (scheduler, set, spread) {
            (Scheduler::Pipeline, ..) => cores as f64,
            (_, Set::One, _) => 1.0,
            (_, Set::Apart, _) | (_, _, Spreading::Ideal) => flows as f64 / flows.div_ceil(cores) as f64,
            (_, _, Spreading::Worst) => 1.0,
            (_, _, Spreading::Hashed) => crate::model::spread_limit(cores as u32, flows as u32),
        }
    }

    /// Returns whether the suite can be had with the set, and the set with the scheduler.
    fn exists(&self) -> bool {
        match self.set {
            Set::One | Set::PerCpu => true,
            Set::Apart => self.set.runs_by(self.scheduler),
            Set::SubSas => !self.suite.contains('-'),
            Set::Psp => crate::pair::PSP_SUITES.contains(&self.suite.as_str()),
        }
    }

    /// The same case but for the cores.
    fn alone(&self) -> Self {
        Self { cores: 1, ..self.clone() }
    }
}

/// A measured case.
#[derive(Clone, Debug, Serialize)]
pub struct CoresOutcome {
    /// Case.
    #[serde(flatten)]
    pub case: Case,
    /// Packets per second that went round, protected and opened.
    pub pps: Estimate,
    /// Bits per second of inner packets.
    pub bps: f64,
    /// Times one core that runs to completion, round by round.
    pub speed_up: Option<Estimate>,
    /// Upper bound of the speed-up.
    pub ceiling: f64,
    /// Cores that passed packets.
    pub used_queues: usize,
    /// Mean number of queues used by a random spread of the flows.
    pub expected_queues: f64,
    /// Jain's index of the packets per core: 1 when all are equal.
    pub jain: f64,
    /// Packets that came to another core than that of their SA.
    pub wrong_core: u64,
    /// Pieces of work left for their turn, per thousand packets.
    pub blocked_per_thousand: f64,
    /// Packets out of order within their flow.
    pub disordered: u64,
    /// Packets that did not come back.
    pub lost: u64,
    /// Packets per second of every round.
    pub trials: Vec<f64>,
    /// True for uncontended trials.
    pub trials_alone: Vec<bool>,
    /// True if those are enough to be all that counts here, and with the speed-up those that one
    /// core had too.
    pub alone: bool,
}

/// Scaling law of a variant over core counts.
#[derive(Clone, Debug, Serialize)]
pub struct Scaling {
    /// The case, with the largest number of cores.
    #[serde(flatten)]
    pub case: Case,
    /// The universal law; `None` for fewer than six numbers of cores.
    pub usl: Option<UslFit>,
}

/// Scaling of Sub SAs over that of one SA per CPU.
#[derive(Clone, Debug, Serialize)]
pub struct Equivalence {
    /// The case of the Sub SAs.
    #[serde(flatten)]
    pub case: Case,
    /// Speed-up of Sub SAs over speed-up of SAs per CPU.
    pub ratio: Ratio,
    /// True if they are equivalent within 1 %.
    pub verdict: String,
    /// Reason.
    pub why: String,
    /// TOST.
    pub p_equivalent: Option<f64>,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct CoresReport {
    /// Case by case.
    pub outcomes: Vec<CoresOutcome>,
    /// Fits.
    pub scaling: Vec<Scaling>,
    /// Comparisons.
    pub equivalence: Vec<Equivalence>,
}

/// The difference between Sub SAs and one SA per CPU that does not matter.
const MARGIN: f64 = 0.01;

/// Measures every case. `progress` is called before each trial with (done, total).
///
/// # Errors
/// An unknown suite.
pub fn run(options: &CoresOptions, progress: &mut dyn FnMut(usize, usize)) -> Result<CoresReport, PairError> {
    let (mut rng, groups) = (Rng::new(options.seed), groups(options));
    let total = groups.iter().map(Vec::len).sum::<usize>() * options.rounds;
    let mut report = CoresReport { outcomes: vec![], scaling: vec![], equivalence: vec![] };
    let mut done = 0;
    // Calibrates the reading of an uncontended core.
    let _ = Gauge::open_for(options.patience);
    for cases in groups {
        let worlds = cases
            .iter()
            .map(|case| World::new(case.set, &case.suite, case.cores, case.engine))
            .collect::<Result<Vec<_>, _>>()?;
        let mut passed: Vec<Vec<trial::TrialCounts>> = vec![vec![]; cases.len()];
        let mut patience = vec![options.patience; cases.len()];
        for round in 0..=options.rounds {
            let mut order: Vec<usize> = (0..cases.len()).collect();
            rng.shuffle(&mut order);
            for i in order {
                // The first round is not counted: caches, pages and clock settle.
                let time = if round == 0 { options.trial / 4 } else { options.trial };
                progress(done.min(total), total);
                done += usize::from(round > 0);
                let mut one = run_trial(&cases[i], &worlds[i], time);
                if round > 0 {
                    while !one.alone() && patience[i] >= time {
                        patience[i] -= time;
                        one = run_trial(&cases[i], &worlds[i], time).after(&one);
                    }
                    passed[i].push(one);
                }
            }
        }
        judge_group(&cases, &passed, &mut report, &mut rng);
    }
    Ok(report)
}

/// Cases that are compared with each other, and so measured in turns.
fn groups(options: &CoresOptions) -> Vec<Vec<Case>> {
    let mut cores = options.cores.clone();
    cores.push(1);
    cores.sort_unstable();
    cores.dedup();
    let mut groups = Vec::new();
    for suite in &options.suites {
        for &size in &options.sizes {
            for &flows in &options.flows {
                let mut cases = Vec::new();
                for &scheduler in &options.schedulers {
                    for &set in &options.sets {
                        cases.extend(cores.iter().map(|&cores| Case {
                            scheduler,
                            set,
                            suite: suite.clone(),
                            size,
                            flows,
                            cores,
                            spread: options.spread,
                            atomic_cipher: options.atomic_cipher && scheduler == Scheduler::Pipeline,
                            engine: options.engine,
                        }));
                    }
                }
                cases.retain(Case::exists);
                if !cases.is_empty() {
                    groups.push(cases);
                }
            }
        }
    }
    groups
}

/// Results of the rounds of a case.
struct Rounds {
    rates: Vec<f64>,
    /// True for uncontended rounds.
    alone: Vec<bool>,
}

impl Rounds {
    fn of(passed: &[trial::TrialCounts]) -> Self {
        Self {
            rates: passed.iter().map(|one| one.rate).collect(),
            alone: passed.iter().map(trial::TrialCounts::alone).collect(),
        }
    }

    /// Round by round, times `other`.
    fn over(&self, other: &Self) -> Self {
        Self {
            rates: self.rates.iter().zip(&other.rates).map(|(a, b)| a / b).collect(),
            alone: self.alone.iter().zip(&other.alone).map(|(a, b)| *a && *b).collect(),
        }
    }

    fn counted(&self) -> Vec<f64> {
        alone::counted(&self.rates, &self.alone)
    }

    fn enough(&self) -> bool {
        alone::enough(&self.alone)
    }
}

fn judge_group(cases: &[Case], passed: &[Vec<trial::TrialCounts>], report: &mut CoresReport, rng: &mut Rng) {
    let all: Vec<Rounds> = passed.iter().map(|one| Rounds::of(one)).collect();
    // With one core the scheduler does not matter: the baseline of speed-ups is run to completion,
    // if it was measured.
    let one_core = |case: &Case| {
        let plain = Case { scheduler: Scheduler::RunToCompletion, atomic_cipher: false, ..case.alone() };
        let at = cases.iter().position(|other| *other == plain);
        at.or_else(|| cases.iter().position(|other| *other == case.alone())).map(|at| &all[at])
    };
    let speed_ups = |case: &Case, rounds: &Rounds| one_core(case).map(|one| rounds.over(one));
    for ((case, passed), rounds) in cases.iter().zip(passed).zip(&all) {
        let pps = median_with_interval(&rounds.counted(), rng);
        let mut shares = vec![0.0; case.cores];
        for one in passed {
            shares.iter_mut().zip(&one.packets).for_each(|(share, packets)| *share += *packets as f64);
        }
        let sum: f64 = shares.iter().sum();
        let speed_up = speed_ups(case, rounds);
        report.outcomes.push(CoresOutcome {
            case: case.clone(),
            bps: pps.value * 8.0 * case.size as f64,
            pps,
            alone: rounds.enough() && speed_up.as_ref().is_none_or(Rounds::enough),
            speed_up: speed_up.map(|ratios| median_with_interval(&ratios.counted(), rng)),
            ceiling: case.ceiling(),
            used_queues: shares.iter().filter(|share| **share > 0.0).count(),
            expected_queues: used_queues(case.cores as u32, case.flows as u32),
            jain: jain(&shares),
            wrong_core: passed.iter().map(|one| one.wrong_core).sum(),
            blocked_per_thousand: passed.iter().map(|one| one.blocked).sum::<u64>() as f64 * 1e3 / sum,
            disordered: passed.iter().map(|one| one.disordered).sum(),
            lost: passed.iter().map(|one| one.lost).sum(),
            trials: rounds.rates.clone(),
            trials_alone: rounds.alone.clone(),
        });
    }
    let most = cases.iter().map(|case| case.cores).max().unwrap_or(1);
    for (case, rounds) in cases.iter().zip(&all).filter(|(case, _)| case.cores == most && most > 1) {
        let points: Vec<(f64, f64)> = cases
            .iter()
            .zip(&all)
            .filter(|(other, _)| other.alone() == case.alone())
            .flat_map(|(other, rounds)| rounds.counted().into_iter().map(|rate| (other.cores as f64, rate)))
            .collect();
        report.scaling.push(Scaling { case: case.clone(), usl: Usl::fit(&points) });
        if case.set != Set::SubSas {
            continue;
        }
        let other = Case { set: Set::PerCpu, ..case.clone() };
        let Some(at) = cases.iter().position(|one| *one == other) else { continue };
        let (Some(sub), Some(per_cpu)) = (speed_ups(case, rounds), speed_ups(&other, &all[at])) else { continue };
        let logs = sub.over(&per_cpu).counted().iter().map(|ratio| ratio.ln()).collect();
        let Some(ratio) = paired(&[logs], rng) else { continue };
        let Judged { verdict, why, p_equivalent, .. } = judge(&ratio, Limits { floor: 0.0, margin: Some(MARGIN) });
        report.equivalence.push(Equivalence {
            case: case.clone(),
            ratio,
            verdict: verdict.to_string(),
            why,
            p_equivalent,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> CoresOptions {
        CoresOptions {
            cores: vec![1, 2],
            sizes: vec![300],
            suites: vec!["aes128gcm16".into(), "aes128-sha1".into()],
            flows: vec![1, 5],
            rounds: 3,
            trial: Duration::from_millis(10),
            ..CoresOptions::default()
        }
    }

    #[test]
    fn every_way_keeps_the_order_and_loses_nothing() {
        let passed = |outcome: &CoresOutcome| outcome.trials.iter().sum::<f64>() > 0.0;
        // On a busy machine all short trials of a case may pass no packet; longer ones must pass
        // some.
        let report = [10, 100, 500]
            .into_iter()
            .map(|ms| run(&CoresOptions { trial: Duration::from_millis(ms), ..small() }, &mut |_, _| {}).unwrap())
            .find(|report| report.outcomes.iter().all(passed))
            .expect("packets pass in each case");
        // Two schedulers, 1 and 2 cores, and 4 or 2 sets by suite, for 2 numbers of flows; gateways
        // apart have no scheduler.
        assert_eq!(report.outcomes.len(), 2 * 2 * (4 + 2) * 2 + 2 * 2 * 2);
        for outcome in &report.outcomes {
            assert_eq!((outcome.disordered, outcome.lost), (0, 0), "{:?}", outcome.case);
            assert!((outcome.jain - 1.0).abs() < 1e-9 || outcome.case.cores > 1);
        }
        // Without those of which a trial let nothing through.
        assert!((1..=2 * 2).contains(&report.equivalence.len()));
        let table = cores_table(&report);
        assert!(table.lines().all(|line| line.chars().count() <= 110), "{table}");
        assert!(cores_json(&small(), &report)["outcomes"].as_array().is_some_and(|all| all.len() == 56));
    }

    #[test]
    fn what_cores_can_bring_at_most() {
        let case = |scheduler, set, flows, spread| Case {
            scheduler,
            set,
            suite: "aes128gcm16".into(),
            size: 64,
            flows,
            cores: 4,
            spread,
            atomic_cipher: false,
            engine: Engine::best(),
        };
        use Scheduler::{Pipeline, RunToCompletion};
        assert_eq!(case(RunToCompletion, Set::One, 64, Spreading::Ideal).ceiling(), 1.0);
        assert_eq!(case(Pipeline, Set::One, 1, Spreading::Ideal).ceiling(), 4.0);
        assert_eq!(case(RunToCompletion, Set::PerCpu, 1, Spreading::Ideal).ceiling(), 1.0);
        assert_eq!(case(RunToCompletion, Set::SubSas, 6, Spreading::Ideal).ceiling(), 3.0);
        assert_eq!(case(RunToCompletion, Set::Psp, 64, Spreading::Worst).ceiling(), 1.0);
        assert_eq!(case(RunToCompletion, Set::Apart, 64, Spreading::Worst).ceiling(), 4.0);
        assert!(!case(Pipeline, Set::Apart, 64, Spreading::Ideal).exists());
        let hashed = case(RunToCompletion, Set::PerCpu, 4, Spreading::Hashed).ceiling();
        assert!((1.5..3.0).contains(&hashed), "{hashed}");
    }
}
