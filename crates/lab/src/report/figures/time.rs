//! Throughput over time, with the points at which it changes, and the cores below it.

use super::exact;
use crate::campaign::Kind;
use crate::report::analysis::{Folder, Key, keys, shown};
use crate::report::chart::{Axis, Chart, Rule, Series, WIDTH, short, trimmed};
use crate::report::figure::{Body, Data, Figure};
use crate::stats::median;
use crate::svg::{Anchor, Svg};
use crate::trial::Trial;

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    let (id, title) = ("series", "Throughput and cores over time");
    let trials = folder.of(Kind::Series);
    if trials.is_empty() {
        return vec![Figure::absent(id, title, &folder.why_not(Kind::Series))];
    }
    let mut data =
        Data::new(&["subject", "session", "second", "Gbit/s", "segment", "mean of segment", "busy per core, %"]);
    let mut drawings = Vec::new();
    let mut notes = Vec::new();
    let began = |trials: &[&Trial]| trials.iter().map(|trial| trial.at_ms).min().unwrap_or(0);
    for key in keys(&trials) {
        let mut mine: Vec<&Trial> = trials.iter().filter(|trial| Key::of(trial) == key).copied().collect();
        mine.sort_by_key(|trial| (trial.session, trial.order));
        let first = mine[0].session;
        let mine: Vec<&Trial> = mine.into_iter().filter(|trial| trial.session == first).collect();
        let start = began(&mine);
        let at = |trial: &Trial| (trial.at_ms - start) as f64 / 1000.0;
        let rates: Vec<f64> = mine.iter().map(|trial| trial.measured.bps() / 1e9).collect();
        let segments = segments(&rates);
        let mut chart =
            Chart::new(&shown(&key.subject), Axis::linear("seconds"), Axis::linear("Gbit/s").covering(0.0, 0.1));
        let mut series = Series { marked: rates.len() <= 60, ..Series::new("", super::style(folder, &key.subject)) };
        for (number, window) in segments.windows(2).enumerate() {
            let mean = rates[window[0]..window[1]].iter().sum::<f64>() / (window[1] - window[0]) as f64;
            for index in window[0]..window[1] {
                series.push(at(mine[index]), rates[index]);
                let cores = cores(mine[index]).iter().map(|busy| format!("{busy:.0}")).collect::<Vec<_>>().join(" ");
                data.push([
                    shown(&key.subject),
                    first.to_string(),
                    exact(at(mine[index])),
                    exact(rates[index]),
                    (number + 1).to_string(),
                    exact(mean),
                    cores,
                ]);
            }
            if number > 0 {
                chart.rules.push(Rule::Vertical(at(mine[window[0]]), format!("change, then {} Gbit/s", short(mean))));
            }
        }
        let cv = deviation(&rates) / (rates.iter().sum::<f64>() / rates.len() as f64);
        notes.push(format!(
            "{}: {}, CV {:.1} %, lag-1 autocorrelation {:.2}.",
            shown(&key.subject),
            match segments.len() - 1 {
                1 => "one segment".to_owned(),
                n => format!("{n} segments, no overall mean"),
            },
            cv * 100.0,
            lag_one(&rates)
        ));
        chart.series.push(series);
        let heat = heat_map(&mine, &at);
        drawings.push(format!("<h4>{}</h4>{}{heat}", crate::svg::escape(&shown(&key.subject)), chart.draw()));
    }
    let text = format!(
        "Bits of inner packets per second, trial by trial. A dotted line is a change point; each segment has its own mean. Below: how busy each core was, \
         in percent, steal not included; the figure in a field is its value. {}",
        notes.join(" ")
    );
    // Two drawings at least make a wide figure, and this one needs the width.
    vec![Figure { id, title: title.into(), text, body: Body::Drawn(drawings, data) }]
}

/// Busy percent of each core, in order.
fn cores(trial: &Trial) -> Vec<f64> {
    (0..).map_while(|core| trial.measured.values.get(&format!("cpu{core}_busy_percent")).copied()).collect()
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

/// Ends of segments with one mean each: 0, changes, length. Binary segmentation; a change is taken when it explains more than
/// what chance does (a CUSUM above the 99.9 % point of a Brownian bridge), against noise measured between neighbours.
fn segments(values: &[f64]) -> Vec<usize> {
    let mut ends = vec![0, values.len()];
    let mut open = vec![(0, values.len())];
    while let Some((from, to)) = open.pop() {
        if let Some(at) = change(&values[from..to]) {
            ends.push(from + at);
            open.extend([(from, from + at), (from + at, to)]);
        }
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Shortest segment.
const SHORTEST: usize = 5;

fn change(values: &[f64]) -> Option<usize> {
    let n = values.len();
    if n < 2 * SHORTEST {
        return None;
    }
    let differences: Vec<f64> = values.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
    // Robust against the change itself: the median of differences of a normal sample is 0.954 σ. Oscillation that is slower than the
    // samples is no noise to the neighbours, so a share of the level is always allowed.
    let sigma = (median(&differences) / 0.954).max(0.01 * median(values).abs());
    let mean = values.iter().sum::<f64>() / n as f64;
    let mut sum = 0.0;
    let (mut best, mut at) = (0.0, 0);
    for (index, value) in values.iter().enumerate().take(n - SHORTEST) {
        sum += value - mean;
        if index + 1 >= SHORTEST && f64::abs(sum) > best {
            (best, at) = (f64::abs(sum), index + 1);
        }
    }
    (best / (sigma * (n as f64).sqrt()) > 1.95).then_some(at)
}

fn deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

fn lag_one(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let all: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let next: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    if all > 0.0 { next / all } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Rng;

    fn noisy(level: f64, count: usize, rng: &mut Rng) -> Vec<f64> {
        (0..count).map(|_| level * (1.0 + (rng.next_u64() % 1000) as f64 / 20_000.0)).collect()
    }

    #[test]
    fn a_step_is_found_where_it_is_and_noise_is_none() {
        let mut rng = Rng::new(3);
        let values = [noisy(39.7, 215, &mut rng), noisy(23.0, 394, &mut rng)].concat();
        assert_eq!(segments(&values), [0, 215, 609]);
        for seed in 0..20 {
            let values = noisy(2.5, 300, &mut Rng::new(seed));
            assert_eq!(segments(&values).len(), 2, "seed {seed}");
        }
    }

    #[test]
    fn short_series_have_no_change() {
        assert_eq!(segments(&[1.0, 1.0, 5.0]), [0, 3]);
        assert_eq!(segments(&[]), [0]);
    }
}
