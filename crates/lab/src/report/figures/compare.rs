//! Paired ratios, with the band in which this machine calls equals different.

use super::{cells, exact, style};
use crate::campaign::Kind;
use crate::report::analysis::{Folder, Key, keys, of_other, ratio, shown, way};
use crate::report::chart::{STYLES, WIDTH, short};
use crate::report::figure::{Data, Figure};
use crate::svg::{Anchor, Svg};
use stats::Estimate;

/// Margin of "no difference" between tunnel and transport, as a share.
const MARGIN: f64 = 0.01;

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    vec![forest(folder), noise(folder), modes(folder)]
}

/// A row of a forest plot.
pub(super) struct ForestRow {
    pub(super) name: String,
    pub(super) style: usize,
    pub(super) ratio: Estimate,
    pub(super) note: String,
}

/// Verdict of a ratio, given the noise floor.
fn verdict(ratio: Estimate, noise: f64) -> &'static str {
    match () {
        () if !ratio.value.is_finite() => "no result",
        () if ratio.low > 1.0 + noise => "slower",
        () if ratio.high < 1.0 / (1.0 + noise) => "faster",
        () => "inconclusive",
    }
}

fn forest(folder: &Folder) -> Figure {
    let (id, title) = ("forest", "Time per packet against the first subject");
    let trials = folder.of(Kind::Sizes);
    let Some(first) = folder.studies(Kind::Sizes).next().map(|study| study.subjects[0].clone()) else {
        return Figure::absent(id, title, &folder.why_not(Kind::Sizes));
    };
    let noise = folder.noise().unwrap_or(0.0);
    let all = keys(&trials);
    // The largest size shows a protocol's cost per byte best, the smallest its fixed cost.
    let sizes = |key: &&Key| trials.iter().find(|trial| Key::of(trial) == **key).and_then(|trial| trial.size);
    let largest = all.iter().filter_map(|key| sizes(&key)).max();
    let shown_keys = all.iter().filter(|key| sizes(key).is_some() && sizes(key) == largest && key.subject != first);
    let mut data = Data::new(&["subject", "direction", "bytes", "ratio", "low", "high", "verdict"]);
    let mut rows = Vec::new();
    for key in shown_keys {
        let of = |subject: &str| of_other(&trials, key, subject);
        let ratio = ratio(&of(&key.subject), &of(&first));
        let verdict = verdict(ratio, noise);
        let mut row = vec![shown(&key.subject), way(key.direction).into(), key.traffic.clone()];
        row.extend(cells(ratio));
        row.push(verdict.into());
        data.push(row);
        rows.push(ForestRow {
            name: format!("{}, {}", shown(&key.subject), way(key.direction)),
            style: style(folder, &key.subject),
            ratio,
            note: verdict.to_owned(),
        });
    }
    if rows.is_empty() {
        let why = if trials.is_empty() { folder.why_not(Kind::Sizes) } else { "Only one subject.".into() };
        return Figure::absent(id, title, &why);
    }
    let text = format!(
        "Ratio of ticks per packet to {} at {} bytes, taken within rounds, with its 95 % interval over sessions. Grey: the noise \
         floor, ±{} %. Right of 1 is slower. An interval that overlaps the grey band is inconclusive.",
        shown(&first),
        largest.unwrap_or(0),
        short(noise * 100.0)
    );
    Figure::drawn(id, title, &text, draw(title, &rows, noise), data)
}

fn noise(folder: &Folder) -> Figure {
    let (id, title) = ("noise", "A subject against itself");
    let ratios = folder.noise_ratios();
    if ratios.is_empty() {
        return Figure::absent(id, title, &folder.why_not(Kind::Noise));
    }
    let mut data = Data::new(&["subject", "direction", "traffic", "ratio", "low", "high"]);
    let rows: Vec<ForestRow> = ratios
        .iter()
        .map(|(key, ratio)| {
            let mut row = vec![shown(&key.subject), way(key.direction).into(), key.traffic.clone()];
            row.extend(cells(*ratio));
            data.push(row);
            let name = format!("{}, {}, {}", shown(&key.subject), key.traffic, way(key.direction));
            let verdict = if ratio.low <= 1.0 && ratio.high >= 1.0 { "equal" } else { "off" };
            ForestRow { name, style: style(folder, &key.subject), ratio: *ratio, note: verdict.to_owned() }
        })
        .collect();
    let text = "Each subject measured twice in every round under two labels. Deviations shown here are not differences: the widest \
                deviation is the noise floor of all verdicts.";
    let noise = folder.noise().unwrap_or(0.0);
    Figure::drawn(id, title, text, draw(title, &rows, noise), data)
}

fn modes(folder: &Folder) -> Figure {
    let (id, title) = ("modes", "Tunnel against transport");
    let trials = folder.of(Kind::Modes);
    let mut data = Data::new(&["pair", "direction", "traffic", "tunnel / transport", "low", "high", "within ±1 %"]);
    let mut rows = Vec::new();
    for key in keys(&trials).iter().filter(|key| key.subject.contains("-tunnel-")) {
        let other = key.subject.replace("-tunnel-", "-transport-");
        let of = |subject: &str| of_other(&trials, key, subject);
        let ratio = ratio(&of(&key.subject), &of(&other));
        if !ratio.value.is_finite() {
            continue;
        }
        // Two one-sided tests: the whole interval within the margin.
        let equal = ratio.low > 1.0 - MARGIN && ratio.high < 1.0 + MARGIN;
        let verdict = if equal { "equal" } else { verdict(ratio, MARGIN) };
        let mut row = vec![shown(&key.subject), way(key.direction).into(), key.traffic.clone()];
        row.extend(cells(ratio));
        row.push(verdict.into());
        data.push(row);
        let name = format!("{}, {} B, {}", shown(&key.subject).replace("tunnel ", ""), key.traffic, way(key.direction));
        rows.push(ForestRow { name, style: style(folder, &key.subject), ratio, note: verdict.to_owned() });
    }
    if rows.is_empty() {
        return Figure::absent(id, title, &folder.why_not(Kind::Modes));
    }
    let text = "Ratio of ticks per packet, tunnel over transport, paired within rounds, 95 % interval over sessions. Grey: the margin of \
                equivalence, ±1 %. 'equal' means that the whole interval lies within it; 'inconclusive' that it does not, but \
                neither lies all of it outside.";
    Figure::drawn(id, title, text, draw(title, &rows, MARGIN), data)
}

pub(super) fn draw(title: &str, rows: &[ForestRow], band: f64) -> String {
    const PITCH: f64 = 34.0;
    let height = rows.len() as f64 * PITCH + 24.0;
    let mut svg = Svg::new(WIDTH, height);
    let finite = |v: &f64| v.is_finite() && *v > 0.0;
    let ends = || {
        rows.iter()
            .flat_map(|row| [row.ratio.low, row.ratio.high])
            .filter(finite)
            .chain([1.0 + band, 1.0 / (1.0 + band)])
    };
    let (low, high) = (ends().fold(f64::INFINITY, f64::min) / 1.02, ends().fold(0.0, f64::max) * 1.02);
    let x = |ratio: f64| 4.0 + (WIDTH - 8.0) * (ratio / low).ln() / (high / low).ln();
    svg.rect(x(1.0 / (1.0 + band)), 0.0, x(1.0 + band) - x(1.0 / (1.0 + band)), height - 18.0, "track");
    svg.line((x(1.0), 0.0), (x(1.0), height - 18.0), "rule");
    for tick in ticks(low, high) {
        svg.text(x(tick).clamp(12.0, WIDTH - 12.0), height - 5.0, Anchor::Middle, "tick", &exact(tick));
    }
    for (index, row) in rows.iter().enumerate() {
        let y = index as f64 * PITCH;
        svg.text(0.0, y + 12.0, Anchor::Start, "label halo", &row.name);
        let text = format!("{} {}", exact((row.ratio.value * 1e4).round() / 1e4), row.note);
        svg.text(WIDTH, y + 12.0, Anchor::End, "value halo", &text);
        if row.ratio.value.is_finite() {
            svg.line((x(row.ratio.low), y + 22.0), (x(row.ratio.high), y + 22.0), "whisker");
            for end in [row.ratio.low, row.ratio.high] {
                svg.line((x(end), y + 18.0), (x(end), y + 26.0), "whisker");
            }
            svg.rect(x(row.ratio.value) - 3.5, y + 18.5, 7.0, 7.0, &format!("s{}-fill", row.style % STYLES));
        }
    }
    svg.finish(title)
}

/// A few round ratios between both ends.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let candidates: &[f64] = if high / low > 1.5 {
        &[0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0]
    } else {
        &[0.9, 0.95, 0.98, 0.99, 1.0, 1.01, 1.02, 1.05, 1.1, 1.2]
    };
    let within: Vec<f64> = candidates.iter().copied().filter(|t| (low..=high).contains(t)).collect();
    // Too close to be read: only one.
    let close = within.windows(2).any(|pair| (pair[1] / pair[0]).ln() / (high / low).ln() < 0.09);
    if close {
        within.into_iter().filter(|tick| [0.5, 0.9, 1.0, 1.1, 2.0, 3.0, 5.0].contains(tick)).collect()
    } else {
        within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_one_only_beyond_the_noise() {
        let ratio = |low: f64, high: f64| Estimate { value: (low * high).sqrt(), low, high };
        assert_eq!(verdict(ratio(1.02, 1.03), 0.01), "slower");
        assert_eq!(verdict(ratio(1.005, 1.03), 0.01), "inconclusive");
        assert_eq!(verdict(ratio(0.9, 0.95), 0.01), "faster");
        assert_eq!(verdict(ratio(0.9, 0.995), 0.01), "inconclusive");
        assert_eq!(verdict(Estimate { value: f64::NAN, low: f64::NAN, high: f64::NAN }, 0.0), "no result");
    }
}
