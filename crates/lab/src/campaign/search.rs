//! A search for throughput (RFC 9971) as trials of a campaign.
//!
//! One planned trial is a whole search: each of its trials is a row as soon as it was measured,
//! followed by the load curve, the latency below throughput, and one row with the result for each
//! goal. An interrupted search has no such rows; it is repeated. [`recompute`] derives the bounds
//! from the rows of the trials, so that the result rows can be verified.

use std::cell::Cell as Shared;
use std::collections::BTreeMap;
use std::time::Duration;

use super::Study;
use super::memory::Loaded;
use super::runner::{Keep, Runner};
use super::schedule::Cell;
use crate::meter::{Load, Meter, MeterError};
use crate::metric::{Figures, Metric};
use crate::search::{self, Options, Step};
use crate::traffic::Rate;
use crate::trial::{Measurement, Trial};
use throughput::search::{Controller, Found, Goal, Point};

/// Rows of a search.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// Maximum rate: the starting point.
    Saturated,
    /// A trial requested by the search.
    Trial,
    /// A point of the curve of loss against load.
    Curve,
    /// Latency at a share of the throughput, which is in `load`.
    Latency,
    /// Result for a goal: `lower_pps`, `upper_pps`, `conditional_pps`; bounds that were not found
    /// are absent.
    Result,
}

impl Part {
    const ALL: [Self; 5] = [Self::Saturated, Self::Trial, Self::Curve, Self::Latency, Self::Result];

    /// Kind of a row; `None` if it does not belong to a search.
    pub fn of(trial: &Trial) -> Option<Self> {
        let code = trial.measured.values.get(Metric::SearchPart)?;
        Self::ALL.into_iter().find(|part| part.code() == code)
    }

    fn code(self) -> f64 {
        self as u8 as f64
    }
}

/// A subject that is searched.
pub(super) struct Search {
    loaded: Loaded,
    options: Options,
}

impl Search {
    pub(super) fn over(loaded: Loaded, study: &Study) -> Self {
        let Study { budget_s, max_pps, poisson, .. } = *study;
        Self {
            loaded,
            options: Options { goals: study.goals.clone(), budget_s, max_pps, poisson, ..Options::default() },
        }
    }
}

/// A meter that stops when the receiver requests it.
struct Stopping<'a> {
    meter: &'a mut dyn Meter,
    going: &'a Shared<bool>,
}

impl Meter for Stopping<'_> {
    fn trial(&mut self, load: &Load) -> Result<Measurement, MeterError> {
        if self.going.get() { self.meter.trial(load) } else { Err(MeterError::Interrupted) }
    }
}

impl Runner for Search {
    fn trial(&mut self, _: &Cell, _: Duration, _: u64) -> Result<Measurement, MeterError> {
        Err(MeterError::Unsupported("a search is more than one trial".into()))
    }

    fn trials(&mut self, cell: &Cell, duration: Duration, seed: u64, keep: Keep<'_>) -> Result<(), MeterError> {
        let load = self.loaded.load(cell, Rate::Saturate, duration, seed)?;
        let (going, phase, of) = (Shared::new(true), Shared::new(Part::Saturated), Shared::new(None));
        let mut on_step = |step: Step<'_>| {
            let mut measured = step.measured.clone();
            let part = if step.goal.is_some() { Part::Trial } else { phase.get() };
            measured.values.set(Metric::SearchPart, part.code());
            if let Some(pps) = step.load.traffic.rate.pps() {
                measured.values.set(Metric::OfferedPps, pps);
                if let (Part::Latency, Some(whole)) = (part, of.get()) {
                    let share: f64 = pps / whole;
                    measured.values.set(Metric::Load, (share * 1000.0).round() / 1000.0);
                }
            }
            going.set(going.get() && keep(measured, step.goal));
        };
        let mut meter = Stopping { meter: self.loaded.meter(), going: &going };
        // Without throughput something is broken, not missing.
        let failed = |error: MeterError| match error {
            MeterError::Unsupported(why) => MeterError::Subject { subject: cell.subject.clone(), why },
            other => other,
        };
        let outcome = search::search(&mut meter, &load, &self.options, &mut on_step).map_err(failed)?;
        phase.set(Part::Curve);
        search::loss_curve(&mut meter, &load, outcome.max_pps, &mut on_step)?;
        phase.set(Part::Latency);
        if let Some(lower) = most_forgiving(&outcome.found).and_then(|found| found.lower) {
            of.set(Some(lower));
            search::latency(&mut meter, &load, lower, true, &mut on_step)?;
        }
        for found in &outcome.found {
            if !going.get() || !keep(result(found, outcome.spent_s), Some(found.code.clone())) {
                return Err(MeterError::Interrupted);
            }
        }
        Ok(())
    }
}

/// The goal for the latency measurement below its throughput: the one that allows most loss (PDR if
/// the other is NDR).
fn most_forgiving(found: &[Found]) -> Option<&Found> {
    found.iter().max_by(|a, b| a.goal.loss.total_cmp(&b.goal.loss))
}

/// The row of a goal.
fn result(found: &Found, spent_s: f64) -> Measurement {
    let bounds =
        [(Metric::LowerPps, found.lower), (Metric::UpperPps, found.upper), (Metric::ConditionalPps, found.conditional)];
    let mut values: Figures = bounds.into_iter().filter_map(|(metric, value)| Some((metric, value?))).collect();
    values.set(Metric::SearchPart, Part::Result.code());
    values.set(Metric::Regular, f64::from(u8::from(found.irregular.is_none())));
    values.set(Metric::SpentS, spent_s);
    Measurement { values, ..Measurement::default() }
}

/// The bounds of all goals from the trials of one search.
pub fn recompute(goals: &[Goal], rows: &[&Trial]) -> Vec<Found> {
    // Loads are those of the rows; limits of the controller should only affect its next request.
    let mut controller = Controller::new(goals.to_vec(), 1.0, 1.0, f64::MAX);
    for trial in rows.iter().filter(|trial| Part::of(trial) == Some(Part::Trial)) {
        let Some(load) = trial.offered_pps else { continue };
        let duration_s = trial.measured.dur_ns as f64 / 1e9;
        controller.tell(Point { load, duration_s, effective_s: duration_s, loss: trial.measured.loss_ratio() });
    }
    controller.found()
}

/// Planned trials that are done, by session and order: all that have a row; searches that have a
/// row for each goal.
pub(super) fn complete(campaign: &super::Campaign, trials: &[Trial]) -> Vec<(u32, u32)> {
    let goals = |trial: &Trial| {
        campaign.studies.iter().find(|study| study.name == trial.study).map_or(0, |study| study.goals.len())
    };
    let mut done: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    let mut whole = Vec::new();
    for trial in trials {
        let key = (trial.session, trial.order);
        match Part::of(trial) {
            None => whole.push(key),
            Some(Part::Result) => {
                let rows = done.entry(key).or_default();
                *rows += 1;
                if *rows == goals(trial) {
                    whole.push(key);
                }
            }
            Some(_) => {}
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::format;
    use crate::campaign::runner::{Setting, open};
    use crate::campaign::schedule::cells;

    const TEXT: &str = "name = \"t\"\n[[study]]\nkind = \"search\"\nsubjects = [\"weir-esp-tunnel-aes128gcm16\"]\n\
                        directions = [\"out\"]\ntraffic = [200]\ngoals = [\"0.002f0.006d5l50e\", \"0.002f0.006d20l50e\"]\n\
                        duration_ms = 4\nbudget_s = 1.0\nsessions = 1\nrounds = 1\n";

    fn row(measured: Measurement, goal: Option<String>) -> Trial {
        let mut trial = crate::report::synthetic::trials().remove(0);
        trial.measured = measured;
        trial.offered_pps = trial.measured.values.take(Metric::OfferedPps);
        (trial.study, trial.goal, trial.session, trial.order) = ("search".into(), goal, 3, 0);
        trial
    }

    #[test]
    fn a_search_is_many_rows_and_its_bounds_follow_from_them() {
        let campaign = format::parse("t.toml", TEXT).unwrap();
        let study = &campaign.studies[0];
        let cell = &cells(study)[0];
        let mut runner = open(study, cell, &Setting::default()).map_err(|why| format!("{why:?}")).unwrap();
        let mut rows: Vec<Trial> = Vec::new();
        runner
            .trials(cell, study.duration, 1, &mut |measured, goal| {
                rows.push(row(measured, goal));
                true
            })
            .unwrap();
        let count = |part| rows.iter().filter(|row| Part::of(row) == Some(part)).count();
        assert_eq!(count(Part::Result), 2);
        assert!((2..=5).contains(&count(Part::Saturated)));
        assert!(count(Part::Trial) >= 2 && count(Part::Curve) >= 2, "{}", rows.len());
        let refs: Vec<&Trial> = rows.iter().collect();
        let found = recompute(&study.goals, &refs);
        for (found, reported) in found.iter().zip(rows.iter().filter(|row| Part::of(row) == Some(Part::Result))) {
            assert_eq!(found.lower, reported.measured.values.get(Metric::LowerPps));
            assert_eq!(found.upper, reported.measured.values.get(Metric::UpperPps));
            assert_eq!(Some(&found.code), reported.goal.as_ref());
        }
        assert_eq!(complete(&campaign, &rows), [(3, 0)]);
        rows.pop();
        assert_eq!(complete(&campaign, &rows), []);
    }

    #[test]
    fn a_search_that_nobody_waits_for_ends() {
        let campaign = format::parse("t.toml", TEXT).unwrap();
        let study = &campaign.studies[0];
        let cell = &cells(study)[0];
        let mut runner = open(study, cell, &Setting::default()).map_err(|why| format!("{why:?}")).unwrap();
        let mut kept = 0;
        let ended = runner.trials(cell, study.duration, 1, &mut |_, _| {
            kept += 1;
            kept < 2
        });
        assert!(matches!(ended, Err(MeterError::Interrupted)) && kept == 2);
    }
}
