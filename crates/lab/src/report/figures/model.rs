//! Validation of the model: held-out sizes, and other parameters.

use super::{exact, label};
use crate::campaign::Kind;
use crate::model::{Beyond, BeyondCheck, ModelKey, Profile, RunTrials, Validation};
use crate::report::analysis::{Folder, shown, way};
use crate::report::chart::{Axis, Chart, Rule, Series, short};
use crate::report::figure::{Data, Figure};

const HELD_OUT: &str = "Model against two points, unseen sizes";
const BEYOND: &str = "Model beyond sizes";

/// Series that a plot shows before it becomes a thicket.
const MOST: usize = 4;

/// A variant with calibration and validation.
struct Judged {
    key: ModelKey,
    profile: Profile,
    validation: Option<Validation>,
    beyond: Beyond,
}

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    let run = RunTrials::new(&folder.campaign, &folder.trials);
    let judge = |key: ModelKey| {
        let profile = run.profile(&key).ok()?;
        Some(Judged { validation: run.validate(&profile).ok(), beyond: run.beyond(&profile), key, profile })
    };
    let judged: Vec<Judged> = run.keys().into_iter().filter_map(judge).collect();
    if judged.is_empty() {
        let why = match folder.of(Kind::Sizes).is_empty() {
            true => folder.why_not(Kind::Sizes),
            false => "A model needs four sizes of a variant of Weir in a study of the kind 'sizes'.".into(),
        };
        return vec![Figure::absent("model", HELD_OUT, &why), Figure::absent("beyond", BEYOND, &why)];
    }
    vec![held_out(folder, &judged), beyond(&judged)]
}

fn held_out(folder: &Folder, judged: &[Judged]) -> Figure {
    let with: Vec<(&Judged, &Validation)> = judged.iter().filter_map(|j| Some((j, j.validation.as_ref()?))).collect();
    if with.is_empty() {
        return Figure::absent("model", HELD_OUT, &folder.why_not(Kind::Validate));
    }
    let mut chart = Chart::new(
        HELD_OUT,
        Axis::log("inner packet, bytes"),
        Axis::linear("predicted over measured, %").covering(-3.0, 3.0),
    );
    chart.rules = vec![
        Rule::Horizontal(2.0, "+2 %".into()),
        Rule::Horizontal(0.0, String::new()),
        Rule::Horizontal(-2.0, "−2 %".into()),
    ];
    let head = [
        "subject",
        "direction",
        "form",
        "unseen sizes",
        "bias, %",
        "p95, %",
        "largest, %",
        "repeat to, %",
        "two-point line: p95, %",
        "constant packets/s: p95, %",
        "constant bits/s: p95, %",
        "verdict",
        "fails",
    ];
    let mut data = Data::new(&head);
    for (number, (j, v)) in with.iter().enumerate() {
        if number < MOST {
            let mut series = Series { joined: false, ..Series::new(&label(&j.key.subject, j.key.direction), number) };
            v.points.iter().for_each(|(size, _, _, error)| series.push(*size, *error));
            chart.series.push(series);
        }
        if number == 0 {
            let mut two = Series { joined: false, hollow: true, ..Series::new("its two-point line", MOST) };
            for (size, measured, ..) in &v.points {
                let predicted = j.profile.two_point.line.time_ns(j.profile.basis.size_fn.bytes(*size));
                two.push(*size, 100.0 * (predicted / measured - 1.0));
            }
            chart.series.push(two);
        }
        let fails: Vec<String> =
            v.criteria.iter().filter(|c| !c.holds).map(|c| format!("{}: {}", c.what, c.found)).collect();
        data.push([
            shown(&j.key.subject),
            way(j.key.direction).into(),
            j.profile.fitted.family.name().into(),
            v.points.len().to_string(),
            format!("{:+.2}", v.errors.bias),
            exact(v.errors.p95),
            exact(v.errors.max),
            v.repeatability.map_or_else(|| "–".into(), exact),
            exact(v.two_point.p95),
            exact(v.constant[0].p95),
            exact(v.constant[1].p95),
            if v.accepted() { "accepted".into() } else { "not accepted".into() },
            fails.join("; "),
        ]);
    }
    let text = "Calibrated by the sizes of the grid, judged by sizes in between that were measured in other processes. The time of a packet \
                is the lower quartile over those batches of a trial that no noisy neighbour slowed, at the highest clock rate of the run (where that \
                cannot be determined, the tenth percentile over all of its batches), and the median over trials. Hollow: the paper's line through two sizes, \
                for the first subject. Accepted is what meets every criterion of 'weir lab model validate'; the table names those that fail.";
    Figure::drawn("model", HELD_OUT, text, chart.draw(), data)
}

fn beyond(judged: &[Judged]) -> Figure {
    let checks: Vec<(&Judged, &BeyondCheck)> =
        judged.iter().flat_map(|j| j.beyond.checks.iter().map(move |check| (j, check))).collect();
    if checks.is_empty() {
        let needs: Vec<String> = judged.first().map(|j| j.beyond.missing.clone()).unwrap_or_default();
        return Figure::absent("beyond", BEYOND, &format!("No data for a verdict. {}.", needs.join("; ")));
    }
    let mut chart = Chart::new(
        BEYOND,
        Axis::log("measured, as many times the least"),
        Axis::linear("predicted over measured, %").covering(-10.0, 10.0),
    );
    chart.rules = vec![Rule::Horizontal(0.0, String::new())];
    let head = ["subject", "direction", "what", "unit", "measured", "predicted", "error, %", "limit, %", "verdict"];
    let mut data = Data::new(&head);
    for (number, kind) in ["size", "mix", "cores", "latency"].into_iter().enumerate() {
        let mine: Vec<&(&Judged, &BeyondCheck)> = checks.iter().filter(|(_, check)| check.kind == kind).collect();
        let least = mine.iter().map(|(_, check)| check.measured).fold(f64::INFINITY, f64::min);
        let mut series = Series { joined: false, ..Series::new(kind, number) };
        for (j, check) in &mine {
            series.push(check.measured / least, check.error_percent);
            data.push([
                shown(&j.key.subject),
                way(j.key.direction).into(),
                check.what.clone(),
                check.unit.into(),
                exact(check.measured),
                exact(check.predicted),
                short(check.error_percent),
                short(check.limit_percent),
                if check.holds() { "holds".into() } else { "fails".into() },
            ]);
        }
        if !mine.is_empty() {
            chart.series.push(series);
        }
    }
    let text = "Predictions from the profile alone: packets larger than any it was calibrated with, mixes from the cost of each size, the \
                most cores from half of them, latency from a simulated queue in front of batches. Trials are of other processes than the \
                calibration's.";
    Figure::drawn("beyond", BEYOND, text, chart.draw(), data)
}
