//! Throughput over time, with the points at which it changes, and the cores below it.

use super::exact;
use crate::campaign::Kind;
use crate::metric::Metric;
use crate::report::analysis::{Folder, keys, of_key};
use crate::report::chart::{Axis, Chart, Rule, Series, WIDTH, short, trimmed};
use crate::report::figure::{Data, Figure};
use crate::svg::{Anchor, Svg};
use crate::trial::Trial;
use stats::{Analysis, Phase, Rng, analyse, jain};

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    let (id, title) = ("series", "Throughput and cores over time");
    let trials = folder.everywhere(Kind::Series);
    if trials.is_empty() {
        return vec![Figure::absent(id, title, &folder.why_not(Kind::Series))];
    }
    let mut data =
        Data::new(&["subject", "session", "second", "Gbit/s", "segment", "mean of segment", "busy per core, %"]);
    let mut drawings = Vec::new();
    let mut notes = Vec::new();
    let began = |trials: &[&Trial]| trials.iter().map(|trial| trial.at_ms).min().unwrap_or(0);
    for key in keys(&trials) {
        let mut mine = of_key(&trials, &key);
        mine.sort_by_key(|trial| (trial.session, trial.order));
        let first = mine[0].session;
        let mine: Vec<&Trial> = mine.into_iter().filter(|trial| trial.session == first).collect();
        let start = began(&mine);
        let at = |trial: &Trial| (trial.at_ms - start) as f64 / 1000.0;
        let rates: Vec<f64> = mine.iter().map(|trial| trial.measured.bps() / 1e9).collect();
        let Some(analysis) = analyse(&rates, None, &mut Rng::new(1)) else { continue };
        let mut chart = Chart::new(&key.shown(), Axis::linear("seconds"), Axis::linear("Gbit/s").covering(0.0, 0.1));
        let mut series = Series { marked: rates.len() <= 60, ..Series::new("", super::style(folder, &key.subject)) };
        for (index, trial) in mine.iter().enumerate() {
            series.push(at(trial), rates[index]);
            // A sample within a change belongs to no phase.
            let phase = analysis.phases.iter().position(|phase| (phase.from..=phase.to).contains(&index));
            let mean = phase.map_or_else(String::new, |number| exact(analysis.phases[number].mean.value));
            let number = phase.map_or_else(String::new, |number| (number + 1).to_string());
            let cores = cores(trial).iter().map(|busy| format!("{busy:.0}")).collect::<Vec<_>>().join(" ");
            let seconds = exact(at(trial));
            data.push([key.shown(), first.to_string(), seconds, exact(rates[index]), number, mean, cores]);
        }
        for (change, phase) in analysis.changes.iter().zip(analysis.phases.iter().skip(1)) {
            chart.rules.push(Rule::Vertical(at(mine[change.at]), format!("then {} Gbit/s", short(phase.mean.value))));
        }
        notes.push(words(&key.shown(), &analysis));
        notes.extend(shares(&mine));
        chart.series.push(series);
        let heat = heat_map(&mine, &at);
        drawings.push(format!("<h4>{}</h4>{}{heat}", crate::svg::escape(&key.shown()), chart.draw()));
    }
    let text = "Bits of inner packets per second, trial by trial; between hosts the bits that TCP carried in all flows together. A dotted line is a change point; each segment has its own mean. Below: how busy each core was, \
         in percent, steal not included; the figure in a field is its value.";
    // Two drawings at least make a wide figure, and this one needs the width.
    vec![Figure::of(id, title, text, drawings, data).noted(notes.join(" "))]
}

/// Summary of a series.
fn words(subject: &str, analysis: &Analysis) -> String {
    let phase =
        |phase: &Phase| format!("{} [{}, {}]", short(phase.mean.value), short(phase.mean.low), short(phase.mean.high));
    let level = match &analysis.phases[..] {
        [only] => format!("one level, {} Gbit/s", phase(only)),
        several => format!(
            "{} levels and no mean of all: {} Gbit/s",
            several.len(),
            several.iter().map(phase).collect::<Vec<_>>().join(", ")
        ),
    };
    format!(
        "{subject}: {level}, CV {} %, autocorrelation (lag 1) {:.2}, {:.0} independent samples of {}.",
        short(analysis.cv * 100.0),
        analysis.lag1,
        analysis.effective_samples,
        analysis.samples
    )
}

/// How evenly the flows of a transfer share it, and what a Gbit costs all cores together.
fn shares(trials: &[&Trial]) -> Option<String> {
    let flow = |trial: &Trial, number: usize| trial.measured.values.get(Metric::Flow(&number.to_string()));
    let whole = |number: usize| trials.iter().filter_map(|trial| flow(trial, number)).sum::<f64>();
    let flows: Vec<f64> = (1..).take_while(|number| flow(trials[0], *number).is_some()).map(whole).collect();
    let gbit: f64 = trials.iter().map(|trial| trial.measured.received_bytes as f64 * 8.0 / 1e9).sum();
    let second = |trial: &Trial| trial.measured.dur_ns as f64 / 1e9;
    let busy: f64 = trials.iter().map(|trial| cores(trial).iter().sum::<f64>() / 100.0 * second(trial)).sum();
    (!flows.is_empty()).then(|| {
        let (count, jain, cost) = (flows.len(), jain(&flows), short(busy / gbit));
        format!(
            "{count} flows share it with Jain's index {jain:.3}; {cost} core-seconds of the whole machine per Gbit."
        )
    })
}

/// Busy percent of each core, in order.
fn cores(trial: &Trial) -> Vec<f64> {
    (0..).map_while(|core| trial.measured.values.get(Metric::Processor(core, "busy"))).collect()
}

/// Cores × time; columns are means where there are more trials than fit.
fn heat_map(trials: &[&Trial], at: &dyn Fn(&Trial) -> f64) -> String {
    const COLUMNS: usize = 12;
    const ROW: f64 = 20.0;
    let count = cores(trials[0]).len();
    if count == 0 {
        return "<p class=\"dim\">No core was sampled.</p>".into();
    }
    let per_column = trials.len().div_ceil(COLUMNS);
    let columns: Vec<&[&Trial]> = trials.chunks(per_column).collect();
    let (left, top) = (44.0, 4.0);
    let width = (WIDTH - left) / columns.len() as f64;
    let mut svg = Svg::new(WIDTH, top + count as f64 * ROW + 16.0);
    for core in 0..count {
        let y = top + core as f64 * ROW;
        svg.text(left - 6.0, y + 13.5, Anchor::End, "tick", &format!("core {core}"));
        for (index, column) in columns.iter().enumerate() {
            let busy: Vec<f64> = column.iter().filter_map(|trial| cores(trial).get(core).copied()).collect();
            let busy = busy.iter().sum::<f64>() / busy.len().max(1) as f64;
            let x = left + index as f64 * width;
            let level = (busy / 20.0).floor().clamp(0.0, 4.0) as usize;
            svg.rect(x + 0.5, y + 0.5, width - 1.0, ROW - 1.0, &format!("heat{level}"));
            svg.text(
                x + width / 2.0,
                y + 13.5,
                Anchor::Middle,
                &format!("tick heat{level}-text"),
                &format!("{busy:.0}"),
            );
        }
    }
    for (index, column) in columns.iter().enumerate().step_by(3) {
        let y = top + count as f64 * ROW + 12.0;
        svg.text(left + index as f64 * width, y, Anchor::Start, "tick", &format!("{} s", trimmed(at(column[0]))));
    }
    svg.finish("Use of each core over time, percent")
}
