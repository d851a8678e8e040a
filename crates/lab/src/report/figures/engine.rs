//! The model of an asynchronous engine (equation 4 of paper 002) on crypto threads: a core that
//! never encrypts, and engines beside it.
//!
//! Every second size, the first included, is fitted. The others judge the fit, and have a
//! breakpoint of their own.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::exact;
use crate::campaign::Kind;
use crate::cores::Scheduler;
use crate::report::analysis::{Folder, shown};
use crate::report::chart::{Axis, Chart, Rule, Series, short};
use crate::report::figure::{Data, Figure};
use crate::trial::Trial;
use stats::{Estimate, median};
use throughput::{AsynchronousFit, Basis, Sample, SizeFn, fit_asynchronous};

const ID: &str = "engine-model";
const TITLE: &str = "An asynchronous engine by size";

/// What a claim is about.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::report) enum EnginePart {
    /// The 95th percentile of the relative errors at sizes that were not fitted.
    Error,
    /// The breakpoint of these sizes over that of the others.
    Breakpoint,
}

/// Equation 4 fitted to the times of packets by size.
struct Model {
    /// Subject, cores and flows of the trials.
    setup: String,
    fit: AsynchronousFit,
    /// Fit of the sizes that judge the first one.
    others: AsynchronousFit,
    /// Time per packet in ns by size, and by the model; whether the size was fitted.
    points: Vec<(u32, f64, f64, bool)>,
}

impl Model {
    fn new(trials: &[&Trial]) -> Option<Self> {
        let (first, times) = (trials.first()?, times(trials));
        let flows = first.way.map_or(0, |way| way.flows);
        let setup = format!("{}, {} cores, {flows} flows", shown(&first.subject), first.cores);
        let samples: Vec<Sample> = times.iter().map(|(size, ns)| Sample::new(f64::from(*size), *ns)).collect();
        let basis = Basis { size_fn: SizeFn::len(), cost: None };
        let fit_from = |first: usize| {
            let every_second: Vec<Sample> = samples.iter().skip(first).step_by(2).cloned().collect();
            fit_asynchronous(&basis, &every_second)
        };
        let (fit, others) = (fit_from(0)?, fit_from(1)?);
        let point = |(at, (size, ns)): (usize, (&u32, &f64))| {
            (*size, *ns, fit.system.time_ns(f64::from(*size)), at.is_multiple_of(2))
        };
        let points = times.iter().enumerate().map(point).collect();
        Some(Self { setup, fit, others, points })
    }

    fn error(&self) -> f64 {
        let errors =
            self.points.iter().filter(|(.., fitted)| !fitted).map(|(_, ns, model, _)| (model / ns - 1.0).abs());
        let mut errors: Vec<f64> = errors.collect();
        errors.sort_by(f64::total_cmp);
        errors[(errors.len() * 95).div_ceil(100) - 1]
    }

    fn part(&self, part: EnginePart) -> f64 {
        match part {
            EnginePart::Error => self.error(),
            EnginePart::Breakpoint => self.others.breakpoint.value / self.fit.breakpoint.value,
        }
    }
}

fn is_of_engine(trial: &Trial) -> bool {
    trial.cores > 1 && trial.way.is_some_and(|way| way.scheduler == Scheduler::AsyncSplit)
}

/// Trials of one subject, number of cores and variant, the first in order: each has its own times,
/// which one model cannot fit together.
fn trials(folder: &Folder) -> Vec<&Trial> {
    let all: Vec<&Trial> = folder.of(Kind::Scaling).into_iter().filter(|trial| is_of_engine(trial)).collect();
    let setup = |trial: &&Trial| (trial.subject.clone(), trial.cores, trial.way);
    let first = all.iter().map(setup).min();
    all.into_iter().filter(|trial| Some(setup(trial)) == first).collect()
}

/// Median time per packet in ns by size.
fn times(trials: &[&Trial]) -> BTreeMap<u32, f64> {
    let mut by_size: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for trial in trials.iter().filter(|trial| trial.measured.received > 0) {
        by_size.entry(trial.size.unwrap_or_default()).or_default().push(1e9 / trial.measured.pps());
    }
    by_size.into_iter().map(|(size, all)| (size, median(&all))).collect()
}

/// A figure of the model in each session; `None` in one without a fit.
pub(in crate::report) fn figure_by_session(folder: &Folder, part: EnginePart) -> Vec<Option<f64>> {
    let mut sessions: BTreeMap<u32, Vec<&Trial>> = BTreeMap::new();
    trials(folder).into_iter().for_each(|trial| sessions.entry(trial.session).or_default().push(trial));
    sessions.values().map(|trials| Some(Model::new(trials)?.part(part))).collect()
}

fn model(folder: &Folder) -> Option<Model> {
    Model::new(&trials(folder))
}

/// Result for rows of the papers.
pub(in crate::report) fn fact(folder: &Folder) -> Option<String> {
    model(folder).as_ref().map(summary)
}

fn summary(model: &Model) -> String {
    let (system, at) = (&model.fit.system, &model.fit.breakpoint);
    format!(
        "{}: t_fix {} ns, t_oh {} ns, R_alg {} Gbit/s, breakpoint at {} B [{}, {}], at the other sizes {} B; p95 of the errors there {} %",
        model.setup,
        short(system.fixed_ns),
        short(system.overhead_ns),
        short(system.rate_mbps / 1e3),
        short(at.value),
        short(at.low),
        short(at.high),
        short(model.others.breakpoint.value),
        short(100.0 * model.error()),
    )
}

pub(super) fn figure(folder: &Folder) -> Figure {
    if !folder.of(Kind::Scaling).into_iter().any(is_of_engine) {
        let why =
            "It needs a study 'scaling' with the scheduler 'async-split' on several cores: see the preset 'async'.";
        return Figure::absent(ID, TITLE, why);
    }
    let Some(model) = model(folder) else {
        return Figure::absent(ID, TITLE, "Both regimes need four sizes: no breakpoint was found between the sizes.");
    };
    let mut chart = Chart::new(TITLE, Axis::linear("inner packet, bytes"), Axis::linear("ns per packet"));
    chart.rules = vec![Rule::Vertical(model.fit.breakpoint.value, "breakpoint".into())];
    let mut data = Data::new(&["bytes", "ns", "model, ns", "error, %", "fitted"]);
    for (fitted, name) in [(true, "measured, fitted"), (false, "measured, not fitted")] {
        let mut series = Series { joined: false, hollow: !fitted, ..Series::new(name, usize::from(!fitted)) };
        let points = model.points.iter().filter(|point| point.3 == fitted);
        points.for_each(|(size, ns, ..)| series.push(f64::from(*size), *ns));
        chart.series.push(series);
    }
    let mut line = Series { marked: false, ..Series::new("equation 4", 2) };
    for (size, ns, by_model, fitted) in &model.points {
        line.points.push((f64::from(*size), Estimate { value: *by_model, low: *by_model, high: *by_model }));
        let mut row = vec![size.to_string()];
        row.extend([*ns, *by_model, 100.0 * (by_model / ns - 1.0)].map(exact));
        row.push(if *fitted { "yes" } else { "no" }.into());
        data.push(row);
    }
    chart.series.push(line);
    let text = format!(
        "One SA, protected and opened: one core prepares and finishes packets and never encrypts, the other cores encrypt. Equation 4 is \
         the larger of the time of the core, t_fix, and that of the engine, t_oh + A / R_alg. {}.",
        summary(&model)
    );
    Figure::drawn(ID, TITLE, &text, chart.draw(), data)
}

#[cfg(test)]
mod tests {
    use super::super::super::synthetic;
    use super::*;

    #[test]
    fn the_engine_that_was_put_into_a_run_is_found() {
        let folder = synthetic::folder();
        let model = model(&folder).unwrap();
        assert!((model.fit.breakpoint.value / 625.0 - 1.0).abs() < 0.02, "{:?}", model.fit);
        assert!((model.fit.system.fixed_ns / 300.0 - 1.0).abs() < 0.01, "{:?}", model.fit);
        assert!(model.error() < 0.01 && figure(&folder).is_drawn());
        assert_eq!(figure_by_session(&folder, EnginePart::Error).iter().flatten().count(), 3);
    }

    #[test]
    fn setups_are_not_mixed() {
        let mut folder = synthetic::folder();
        let alone = summary(&model(&folder).unwrap());
        assert!(alone.starts_with("ESP tunnel aes128gcm16, 2 cores, 64 flows: "), "{alone}");
        let others: [fn(&mut Trial); 3] =
            [|t| t.cores += 1, |t| t.subject.push('x'), |t| t.way.as_mut().unwrap().flows += 1];
        for change in others {
            let mut slower: Vec<Trial> = trials(&folder).into_iter().cloned().collect();
            slower.iter_mut().for_each(|trial| trial.measured.dur_ns *= 3);
            slower.iter_mut().for_each(change);
            folder.trials.extend(slower);
            assert_eq!(summary(&model(&folder).unwrap()), alone);
        }
    }

    #[test]
    fn one_regime_has_no_breakpoint() {
        let mut folder = synthetic::folder();
        folder.trials.retain(|trial| !is_of_engine(trial) || trial.size < Some(400));
        assert!(!figure(&folder).is_drawn());
        assert_eq!(figure_by_session(&folder, EnginePart::Error), [None; 3]);
    }
}
