//! Judging a profile beyond single sizes: packets larger than any it was calibrated with, mixes,
//! cores, latency.
//!
//! Each check compares a prediction from the profile alone with the measurements of other sessions.
//! Limits are those of the protocol of validation; a check without trials is listed with its
//! prerequisites.

use std::collections::BTreeMap;

use serde::Serialize;

use super::input::{packet_ns, saturates};
use super::profile::Profile;
use super::run::tail_points;
use crate::campaign::runner;
use crate::cores::Spreading;
use crate::metric::Metric;
use crate::traffic::{Addresses, Generator, Rate, Sizes, Traffic};
use crate::trial::{CoreSetup, Trial};
use stats::Latency;
use stats::{Ratio, median};
use throughput::Mix;
use throughput::Service;
use throughput::simulate::{self, Batches};
use throughput::{TailLine, tail_line};

/// Limit for packets outside the sizes of the calibration, in percent.
const MAX_LARGE: f64 = 3.0;
/// Limit for mixes.
const MAX_MIX: f64 = 2.0;
/// Limit for twice the cores.
const MAX_CORES: f64 = 5.0;
/// Limits for the median and the 99th percentile of latency.
const MAX_LATENCY: [(f64, &str, f64); 2] = [(50.0, "median", 10.0), (99.0, "99th percentile", 20.0)];
/// Loads at which latency is judged.
const LOADS: std::ops::RangeInclusive<f64> = 0.45..=0.91;
/// Packets that are simulated for a latency.
const SIMULATED: usize = 1_000_000;
/// Places in front of a subject in memory.
const RING: usize = 512;
/// Sizes that are drawn of traffic without a short list of them.
const DRAWN: usize = 1 << 16;

/// A prediction with the measured value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BeyondCheck {
    /// `size`, `mix`, `cores` or `latency`.
    pub kind: &'static str,
    /// Traffic, e.g. `imix:aaaaaaaddddg`.
    pub what: String,
    /// Unit of both.
    pub unit: &'static str,
    /// Median over the trials.
    pub measured: f64,
    /// From the profile.
    pub predicted: f64,
    /// Predicted over measured, less 1, in percent.
    pub error_percent: f64,
    /// Largest error that is accepted.
    pub limit_percent: f64,
}

impl BeyondCheck {
    fn new(kind: &'static str, what: String, unit: &'static str, [measured, predicted]: [f64; 2], limit: f64) -> Self {
        let error_percent = 100.0 * (predicted / measured - 1.0);
        Self { kind, what, unit, measured, predicted, error_percent, limit_percent: limit }
    }

    /// Returns whether the error is within its limit.
    pub fn holds(&self) -> bool {
        self.error_percent.abs() <= self.limit_percent
    }
}

/// Everything beyond single sizes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Beyond {
    /// Predictions.
    pub checks: Vec<BeyondCheck>,
    /// Checks that were not possible, with the missing data.
    pub missing: Vec<String>,
    /// Percentiles of latency as lines over ρ/(1 − ρ).
    pub tails: Vec<TailLine>,
    /// Packets that are in no cache over packets that are, by size.
    pub cold: Vec<(u32, Ratio)>,
}

/// Judges `profile` by trials of sizes and mixes it has not seen, by paced trials, and by trials on
/// several cores.
pub(super) fn beyond(profile: &Profile, held_out: &[&Trial], loss: &[&Trial], scaling: &[&Trial]) -> Beyond {
    let mut found = Beyond::default();
    let groups = by_traffic(held_out);
    let large = groups.values().filter_map(|trials| large(profile, trials));
    found.checks.extend(large);
    found.checks.extend(groups.iter().filter_map(|(traffic, trials)| mix(profile, traffic, trials)));
    found.checks.extend(by_traffic(scaling).iter().filter_map(|(traffic, trials)| cores(traffic, trials)));
    let (latencies, tails) = latency(profile, loss);
    found.checks.extend(latencies);
    found.tails = tails;
    for (kind, need) in [
        ("size", "a size above those of the calibration, such as 9000, in a study 'validate'"),
        ("mix", "a mix, such as \"imix\", in a study 'validate'"),
        ("cores", "a study 'scaling' with 1 core and more"),
        ("latency", "a study 'loss' with loads from 0.5 to 0.9"),
    ] {
        if !found.checks.iter().any(|check| check.kind == kind) {
            found.missing.push(format!("{kind}: needs {need}"));
        }
    }
    found
}

fn by_traffic<'a>(trials: &[&'a Trial]) -> BTreeMap<&'a str, Vec<&'a Trial>> {
    let mut groups: BTreeMap<&str, Vec<&Trial>> = BTreeMap::new();
    for trial in trials.iter().filter(|t| saturates(t)) {
        groups.entry(&trial.traffic).or_default().push(trial);
    }
    groups
}

fn typical(trials: &[&Trial], figure: impl Fn(&Trial) -> Option<f64>) -> f64 {
    median(&trials.iter().filter_map(|t| figure(t)).collect::<Vec<_>>())
}

fn large(profile: &Profile, trials: &[&Trial]) -> Option<BeyondCheck> {
    let size = f64::from(trials.first()?.size?);
    let measured = typical(trials, |t| Some(packet_ns(t)));
    (size > profile.range[1])
        .then(|| BeyondCheck::new("size", format!("{size} bytes"), "ns", [measured, profile.time_ns(size)], MAX_LARGE))
}

fn mix(profile: &Profile, traffic: &str, trials: &[&Trial]) -> Option<BeyondCheck> {
    if trials.first()?.size.is_some() {
        return None;
    }
    let predicted = mix_of(traffic)?.cost(|size| profile.time_ns(size)).mean_ns;
    let measured = typical(trials, |t| Some(packet_ns(t)));
    Some(BeyondCheck::new("mix", traffic.to_owned(), "ns", [measured, predicted], MAX_MIX))
}

/// Shares of sizes of a traffic word; `None` when it is none, or its capture is not there any more.
fn mix_of(traffic: &str) -> Option<Mix> {
    let sizes = runner::sizes(traffic).ok()?;
    let parts: Vec<(f64, f64)> = match &sizes {
        Sizes::Fixed(size) => vec![(f64::from(*size), 1.0)],
        Sizes::Genome(genome) => genome.sizes().iter().map(|size| (f64::from(*size), 1.0)).collect(),
        Sizes::Random { .. } | Sizes::Pcap(_) => {
            let address = [192, 0, 2, 1].into();
            let traffic = Traffic { sizes, flows: 1, rate: Rate::Saturate };
            let mut generator = Generator::new(&traffic, Addresses { src: address, dst: address }, 1).ok()?;
            let mut counts: BTreeMap<u16, f64> = BTreeMap::new();
            (0..DRAWN).for_each(|_| *counts.entry(generator.take().size).or_default() += 1.0);
            counts.into_iter().map(|(size, count)| (f64::from(size), count)).collect()
        }
    };
    Mix::new(&parts)
}

/// The largest core count, predicted from at most half of it: the rate per core, reduced by the
/// loss observed from one core to that count. Of several variants the first that can use more than
/// one core, with evenly spread flows, because the spread of a hash is random.
fn cores(traffic: &str, trials: &[&Trial]) -> Option<BeyondCheck> {
    let most = trials.iter().map(|trial| trial.cores).max()?;
    let ways = trials.iter().filter_map(|trial| trial.way);
    let way = ways.filter(|way| way.spread == Spreading::Ideal && way.ceiling(most) > 1.0).min()?;
    let mut by: BTreeMap<u32, Vec<&Trial>> = BTreeMap::new();
    for trial in trials {
        // To one core flows cannot be spread: its rows serve every spread.
        let same = |other: CoreSetup| {
            other == CoreSetup { spread: if trial.cores == 1 { other.spread } else { way.spread }, ..way }
        };
        if trial.way.is_some_and(same) {
            by.entry(trial.cores).or_default().push(trial);
        }
    }
    let pps = |n: &u32| by.get(n).map(|trials| typical(trials, |t| Some(t.measured.pps())));
    let (one, half) = (pps(&1)?, *by.keys().rfind(|n| **n <= most / 2)?);
    // Amdahl's serial share, as the largest count that may be used shows it. Few flows do not fill
    // all cores.
    let [n, filled] = [most, half].map(|cores| way.ceiling(cores));
    let serial = if filled > 1.0 { throughput::karp_flatt(pps(&half)? / one, filled).max(0.0) } else { 0.0 };
    let predicted = n * one / (1.0 + serial * (n - 1.0));
    let what = format!("{traffic} at both ends, {most} cores from {half}");
    Some(BeyondCheck::new("cores", what, "packets/s", [pps(&most)?, predicted], MAX_CORES))
}

fn latency(profile: &Profile, loss: &[&Trial]) -> (Vec<BeyondCheck>, Vec<TailLine>) {
    let mut by: BTreeMap<(&str, u32), Vec<&Trial>> = BTreeMap::new();
    for trial in loss {
        let load = trial.measured.values.get(Metric::Load).filter(|load| LOADS.contains(load));
        if let (Some(load), Some(_)) = (load, trial.offered_pps) {
            by.entry((&trial.traffic, (load * 1000.0).round() as u32)).or_default().push(trial);
        }
    }
    let checks = by
        .iter()
        .filter_map(|((traffic, load), trials)| {
            let mix = mix_of(traffic)?;
            let what = format!("{traffic} at {} % load", f64::from(*load) / 10.0);
            at_load(profile, &mix, trials).map(|pairs| {
                let of = |((_, name, limit), pair): (&(f64, &str, f64), [f64; 2])| {
                    BeyondCheck::new("latency", format!("{name} of {what}"), "ns", pair, *limit)
                };
                MAX_LATENCY.iter().zip(pairs).map(of).collect::<Vec<_>>()
            })
        })
        .flatten()
        .collect();
    let Some(mix) = loss.first().and_then(|t| mix_of(&t.traffic)) else { return (checks, vec![]) };
    let one: Vec<&Trial> = loss.iter().filter(|t| t.traffic == loss[0].traffic).copied().collect();
    let sessions = tail_points(&one, mix.cost(|size| profile.time_ns(size)).mean_ns);
    (checks, [0.5, 0.99].into_iter().filter_map(|q| tail_line(&sessions, q)).collect())
}

/// Measured and predicted percentiles of trials at one load.
fn at_load(profile: &Profile, mix: &Mix, trials: &[&Trial]) -> Option<[[f64; 2]; 2]> {
    let batch = trials.first()?.batch.max(1);
    let pps = typical(trials, |t| t.offered_pps);
    // The profile describes packets of full batches, which share a call among all of them.
    let call_ns = profile.vector.map_or(0.0, |vector| vector.call_ns.value.max(0.0));
    let share = call_ns / f64::from(super::profile::CALIBRATION_BATCH);
    let service = Service::of(mix, |size| (profile.time_ns(size) - share).max(0.0));
    let server = Batches { call_ns, batch: batch as usize, ring: RING };
    let simulated = simulate::batches(&service, server, pps, SIMULATED, 1);
    let predicted = [simulated.p50, simulated.p99];
    let mut pairs = [[0.0; 2]; 2];
    for (pair, ((percent, ..), predicted)) in pairs.iter_mut().zip(MAX_LATENCY.iter().zip(predicted)) {
        let measured = typical(trials, |t| {
            Latency::decode(t.measured.latency.as_deref()?)?.percentile_ns(*percent).map(|ns| ns as f64)
        });
        *pair = [measured, predicted];
    }
    pairs.iter().flatten().all(|v| v.is_finite()).then_some(pairs)
}

#[cfg(test)]
mod tests {
    use super::super::profile::tests::calibration;
    use super::*;
    use crate::model::explain::tests::trial;

    /// 100 ns and 0.4 ns per byte.
    fn profile() -> Profile {
        calibration().profile
    }

    fn of(traffic: &str, ns: u64) -> Trial {
        let mut trial = trial(1000, ns);
        trial.traffic = traffic.into();
        trial.size = runner::one_size(traffic);
        trial
    }

    fn check<'a>(found: &'a Beyond, kind: &str) -> &'a BeyondCheck {
        found.checks.iter().find(|check| check.kind == kind).unwrap()
    }

    #[test]
    fn large_packets_and_mixes_are_predicted_from_sizes() {
        // A mean of 334.5 bytes costs 233.8 ns.
        let trials = [of("9000", 3700), of("imix", 234), of("64..1500", 412), of("577", 999)];
        let found = beyond(&profile(), &trials.iter().collect::<Vec<_>>(), &[], &[]);
        assert_eq!(found.checks.len(), 3, "{found:?}");
        assert!(found.checks.iter().all(BeyondCheck::holds), "{found:?}");
        assert!((check(&found, "mix").predicted - 412.8).abs() < 3.0 || check(&found, "mix").what == "imix");
        assert_eq!(found.missing.len(), 2, "{:?}", found.missing);
        let slow = [of("imix", 250)];
        assert!(!check(&beyond(&profile(), &slow.iter().collect::<Vec<_>>(), &[], &[]), "mix").holds());
    }

    /// A queue that was simulated as the profile has it, as if it were measured.
    #[test]
    fn latency_is_predicted_and_its_tail_is_a_line_over_load() {
        let profile = profile();
        let service = Service::of(&Mix::one(512.0).unwrap(), |size| profile.time_ns(size));
        let server = Batches { call_ns: 0.0, batch: 256, ring: RING };
        let trials: Vec<Trial> = [0.5, 0.7, 0.8]
            .into_iter()
            .flat_map(|load| (0..3).map(move |session| (load, session)))
            .map(|(load, session)| {
                let pps = load * 1e9 / profile.time_ns(512.0);
                let queue = simulate::batches(&service, server, pps, 300_000, 7);
                let mut latency = Latency::default();
                // Nearly all at the median, and two in a hundred at the 99th percentile.
                (0..9800).for_each(|_| latency.record(0, queue.p50 as u64));
                (0..200).for_each(|_| latency.record(0, queue.p99 as u64));
                let mut trial = of("512", 1);
                (trial.session, trial.offered_pps) = (session, Some(pps));
                trial.measured.latency = latency.encode();
                trial.measured.values.set(Metric::Load, load);
                trial
            })
            .collect();
        let found = beyond(&profile, &[], &trials.iter().collect::<Vec<_>>(), &[]);
        assert_eq!(found.checks.len(), 6, "{found:?}");
        assert!(found.checks.iter().all(BeyondCheck::holds), "{found:?}");
        assert_eq!(found.tails.len(), 2);
        assert!(found.tails[1].per_ns.value > found.tails[0].per_ns.value);
    }
}
