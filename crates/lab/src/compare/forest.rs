//! Forest plots: each ratio with its interval around the line of no difference.

use std::fmt::Write;

use super::{Comparison, Row};
use crate::svg::{Anchor, Svg};
use stats::{Ratio, Verdict};

/// Characters of the axis of the plot in text.
const COLUMNS: usize = 61;

/// Half-range of the axis around 1: covers all intervals, and at least twice the gate.
fn reach(rows: &[Row], gate: f64) -> f64 {
    let all = rows.iter().map(|row| row.ratio.reach().max(row.floor.as_ref().map_or(0.0, Ratio::reach)));
    all.filter(|r| r.is_finite()).fold(2.0 * gate.max(0.005), f64::max) * 1.05
}

/// The plot in text: `├──●──┤` is the interval, `░` the noise floor, `│` no difference.
pub(super) fn text(rows: &[Row], gate: f64) -> String {
    let reach = reach(rows, gate);
    let column =
        |log: f64| ((log / reach + 1.0) / 2.0 * (COLUMNS - 1) as f64).round().clamp(0.0, (COLUMNS - 1) as f64) as usize;
    let widest = rows.iter().map(|row| row.label.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let mut line = vec![' '; COLUMNS];
        if let Some(floor) = &row.floor {
            line[column(-floor.reach())..=column(floor.reach())].fill('░');
        }
        line[COLUMNS / 2] = '│';
        let r = row.ratio.ratio.map(f64::ln);
        line[column(r.low)..=column(r.high)].fill('─');
        line[column(r.low)] = '├';
        line[column(r.high)] = '┤';
        line[column(r.value)] = '●';
        let line: String = line.into_iter().collect();
        let _ = writeln!(text, "{:widest$}  {}", row.label, line.trim_end());
    }
    let ends = [-reach, 0.0, reach].map(|log| format!("{:+.1} %", 100.0 * log.exp_m1()));
    let gap = COLUMNS.saturating_sub(ends.iter().map(|e| e.chars().count()).sum()) / 2;
    let _ = writeln!(text, "{:widest$}  {}{:gap$}{}{:gap$}{}", "", ends[0], "", ends[1], "", ends[2]);
    text
}

/// Width of the picture in its own units, and of its column of labels.
const WIDTH: f64 = 760.0;
const LABELS: f64 = 250.0;
const PITCH: f64 = 30.0;

const STYLE: &str = "<style>svg{font:13px system-ui,sans-serif;background:#fff;color:#1a1a1a}text{fill:#1a1a1a}\
.small{font-size:11px;fill:#555}.none{stroke:#1a1a1a}.gate{stroke:#b00020;stroke-dasharray:4 3}.floor{fill:#d9d9d9}\
.interval{stroke:#1a1a1a;stroke-width:2}.different{fill:#b00020}.equivalent{fill:#00695c}.inconclusive{fill:#fff;stroke:#1a1a1a;stroke-width:1.5}\
@media(prefers-color-scheme:dark){svg{background:#121212}text{fill:#eee}.small{fill:#aaa}.none,.interval{stroke:#eee}.floor{fill:#3a3a3a}\
.gate{stroke:#ff8a80}.different{fill:#ff8a80}.equivalent{fill:#80cbc4}.inconclusive{fill:#121212;stroke:#eee}}</style>";

/// The plot as a separate file. Verdicts are written as text, so that colour is never the only cue.
pub(super) fn svg(comparison: &Comparison) -> String {
    let rows = &comparison.rows;
    let reach = reach(rows, comparison.gate);
    let (left, right) = (LABELS, WIDTH - 190.0);
    let x = |log: f64| left + (right - left) * ((log / reach + 1.0) / 2.0).clamp(0.0, 1.0);
    let height = 40.0 + rows.len() as f64 * PITCH + 34.0;
    let bottom = height - 30.0;
    let mut svg = Svg::new(WIDTH, height);
    svg.text(0.0, 16.0, Anchor::Start, "title", &format!("{} (B) over {} (A)", comparison.b, comparison.a));
    for (i, row) in rows.iter().enumerate() {
        let y = 40.0 + i as f64 * PITCH;
        if let Some(floor) = &row.floor {
            svg.rect(x(-floor.reach()), y - 9.0, x(floor.reach()) - x(-floor.reach()), 18.0, "floor");
        }
        let r = row.ratio.ratio;
        let log = r.map(f64::ln);
        svg.line((x(log.low), y), (x(log.high), y), "interval");
        mark(&mut svg, x(log.value), y, row.judged.verdict);
        svg.text(0.0, y + 4.5, Anchor::Start, "label", &row.label);
        let value = format!("{:.4} ({:.4}–{:.4})", r.value, r.low, r.high);
        svg.text(right + 10.0, y + 0.0, Anchor::Start, "small", &value);
        svg.text(right + 10.0, y + 12.0, Anchor::Start, "small", verdict(row));
    }
    svg.line((x(0.0), 24.0), (x(0.0), bottom), "none");
    svg.line((x(comparison.gate.ln_1p()), 24.0), (x(comparison.gate.ln_1p()), bottom), "gate");
    svg.text(x(comparison.gate.ln_1p()) + 3.0, bottom + 2.0, Anchor::Start, "small", "gate");
    for log in [-reach, 0.0, reach] {
        svg.text(x(log), height - 8.0, Anchor::Middle, "small", &format!("{:+.1} %", 100.0 * log.exp_m1()));
    }
    let picture = svg.finish("Ratios with 95 % intervals; the grey band is the difference of A from itself");
    let (head, body) = picture.split_once('>').unwrap_or(("<svg", ""));
    format!("{head} xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\">{STYLE}{body}\n")
}

/// A diamond for different, a disc for equivalent, a ring for inconclusive.
fn mark(svg: &mut Svg, x: f64, y: f64, verdict: Verdict) {
    match verdict {
        Verdict::Different => svg.polygon(&[(x - 6.0, y), (x, y - 6.0), (x + 6.0, y), (x, y + 6.0)], "different"),
        Verdict::Equivalent => svg.circle(x, y, 4.5, "equivalent"),
        Verdict::Inconclusive => svg.circle(x, y, 4.5, "inconclusive"),
    }
}

fn verdict(row: &Row) -> &'static str {
    match row.judged.verdict {
        Verdict::Different => "different",
        Verdict::Equivalent => "equivalent",
        Verdict::Inconclusive => "inconclusive",
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;

    #[test]
    fn marks_stand_where_the_numbers_are() {
        let comparison = example(&[("slow", 0.04, 0.004), ("same", 0.0, 0.002)]);
        let text = text(&comparison.rows, 0.01);
        let lines: Vec<Vec<char>> = text.lines().map(|l| l.chars().collect()).collect();
        let at = |line: &[char], mark: char| line.iter().position(|c| *c == mark);
        let middle = 4 + 2 + COLUMNS / 2;
        assert!(at(&lines[0], '●') > Some(middle + 20), "{text}");
        assert!(at(&lines[1], '●').expect("a mark").abs_diff(middle) < 3, "{text}");
        assert!(lines.iter().all(|l| l.len() <= 6 + COLUMNS), "{text}");
        assert!(text.contains("+0.0 %"), "{text}");
    }

    #[test]
    fn the_picture_is_a_file_of_its_own_and_says_verdicts_in_words() {
        let picture = example(&[("a <b>", 0.04, 0.004), ("same", 0.0, 0.002)]).svg();
        crate::svg::assert_well_formed(&picture);
        assert!(picture.starts_with("<svg viewBox=") && picture.contains("xmlns=\"http://www.w3.org/2000/svg\""));
        assert!(picture.contains(">different<") && picture.contains(">equivalent<") && picture.contains("a &lt;b&gt;"));
    }
}
