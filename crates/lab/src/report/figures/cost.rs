//! Throughput and cost by size, the fitted line, and its residuals.

use super::{cells, exact, label, style};
use crate::campaign::Kind;
use crate::report::analysis::{Cost, Folder, shown};
use crate::report::chart::{Axis, Chart, Rule, Series, exactly, short};
use crate::report::figure::{Data, Figure};
use crate::trial::Direction;
use stats::Estimate;

/// Time per packet as a line in its size, by least squares on relative errors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::report) struct Line {
    /// Ticks of a packet without bytes.
    pub(in crate::report) fixed: f64,
    /// Ticks per byte.
    pub(in crate::report) slope: f64,
    /// Largest relative error at its own points.
    pub(in crate::report) worst: f64,
}

impl Line {
    /// `None` for fewer than three sizes.
    pub(in crate::report) fn through(points: &[(f64, f64)]) -> Option<Self> {
        if points.len() < 3 {
            return None;
        }
        // Weights 1/t²: an error of one per cent has equal weight at every size.
        let (mut w, mut wx, mut wxx, mut wy, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (x, y) in points {
            let weight = 1.0 / (y * y);
            w += weight;
            wx += weight * x;
            wxx += weight * x * x;
            wy += weight * y;
            wxy += weight * x * y;
        }
        let determinant = w * wxx - wx * wx;
        // One size again and again leaves rounding errors only.
        if determinant <= 1e-9 * w * wxx {
            return None;
        }
        let slope = (w * wxy - wx * wy) / determinant;
        let fixed = (wy - slope * wx) / w;
        let worst = points.iter().map(|(x, y)| ((fixed + slope * x) / y - 1.0).abs()).fold(0.0, f64::max);
        Some(Self { fixed, slope, worst })
    }

    /// That of a subject in one direction.
    pub(in crate::report) fn of(costs: &[Cost], subject: &str, direction: Direction) -> Option<Self> {
        let mine = costs.iter().filter(|cost| cost.key.subject == subject && cost.key.direction == direction);
        let points: Vec<(f64, f64)> = mine.filter_map(|cost| Some((f64::from(cost.size?), cost.ticks.value))).collect();
        Self::through(&points)
    }

    /// Ticks of a packet of `bytes`.
    pub(in crate::report) fn at(self, bytes: f64) -> f64 {
        self.fixed + self.slope * bytes
    }
}

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    let costs = folder.costs(Kind::Sizes);
    let mut sized: Vec<&Cost> = costs.iter().filter(|cost| cost.size.is_some()).collect();
    sized.sort_by_key(|cost| (style(folder, &cost.key.subject), cost.key.direction, cost.size));
    let titles = [("throughput-out", "Throughput, protecting"), ("throughput-in", "Throughput, opening")];
    if sized.is_empty() {
        let why = folder.why_not(Kind::Sizes);
        let mut absent: Vec<Figure> = titles.map(|(id, title)| Figure::absent(id, title, &why)).into();
        absent.push(Figure::absent("ticks", "Time per packet, and the model", &why));
        absent.push(Figure::absent("residuals", "Errors of the line", &why));
        return absent;
    }
    let mut figures = Vec::new();
    for ((id, title), direction) in titles.into_iter().zip([Direction::Out, Direction::In]) {
        let mine: Vec<&Cost> = sized.iter().filter(|cost| cost.key.direction == direction).copied().collect();
        figures.push(if mine.is_empty() {
            Figure::absent(id, title, "The campaign does not contain this direction.")
        } else {
            throughput(folder, id, title, &mine)
        });
    }
    figures.push(ticks(folder, &costs, &sized));
    figures.push(residuals(folder, &costs, &sized));
    figures
}

/// The sizes of a plot as its ticks: there are few of these measured points.
fn size_axis(costs: &[&Cost]) -> Axis {
    let mut sizes: Vec<f64> = costs.iter().filter_map(|cost| cost.size.map(f64::from)).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    // Labels closer than a quarter would overlap.
    let mut ticks: Vec<f64> = Vec::new();
    for size in sizes {
        if ticks.last().is_none_or(|last| size / last > 1.3) {
            ticks.push(size);
        }
    }
    Axis { ticks: Some(ticks), ..Axis::log("inner packet, bytes") }
}

fn gbps(cost: &Cost, hz: f64) -> Estimate {
    // The interval is that of the time per packet, turned over.
    let bits = f64::from(cost.size.unwrap_or(0)) * 8.0 / 1e9;
    let rate = |ticks: f64| hz / ticks * bits;
    Estimate { value: cost.bps / 1e9, low: rate(cost.ticks.high), high: rate(cost.ticks.low) }
}

fn throughput(folder: &Folder, id: &'static str, title: &str, costs: &[&Cost]) -> Figure {
    let mut chart = Chart::new(title, size_axis(costs), Axis::linear("Gbit/s, one core").covering(0.0, 1.0));
    let mut data = Data::new(&["subject", "direction", "bytes", "Gbit/s", "low", "high", "Mpps", "sessions", "trials"]);
    let hz = folder.hz();
    let mut subjects: Vec<&str> = costs.iter().map(|cost| cost.key.subject.as_str()).collect();
    subjects.dedup();
    for (index, subject) in subjects.iter().enumerate() {
        let style = style(folder, subject);
        let mut series = Series::new(&shown(subject), style);
        series.hollow = subject.starts_with("cipher");
        let mine: Vec<&&Cost> = costs.iter().filter(|cost| cost.key.subject == *subject).collect();
        let mut points: Vec<(f64, Estimate)> =
            mine.iter().map(|cost| (f64::from(cost.size.unwrap_or(0)), gbps(cost, hz))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        for cost in &mine {
            let rate = gbps(cost, hz);
            let mut row =
                vec![shown(subject), super::way(cost.key.direction).into(), cost.size.unwrap_or(0).to_string()];
            row.extend(cells(rate));
            row.extend([exact(cost.pps / 1e6), cost.sessions.to_string(), cost.trials.to_string()]);
            data.push(row);
        }
        // The model of the first subject, as wide as its own error.
        let line =
            Line::through(&mine.iter().map(|c| (f64::from(c.size.unwrap_or(0)), c.ticks.value)).collect::<Vec<_>>());
        if let (0, Some(line), Some(first), Some(last)) = (index, line, points.first(), points.last()) {
            let steps = (0..=40).map(|step| first.0 * (last.0 / first.0).powf(f64::from(step) / 40.0));
            let rate = |bytes: f64, error: f64| hz / (line.at(bytes) * (1.0 + error)) * bytes * 8.0 / 1e9;
            chart.bands.push((style, steps.map(|b| (b, rate(b, line.worst), rate(b, -line.worst))).collect()));
        }
        series.points = points;
        chart.series.push(series);
    }
    let text = "Inner bits per second of one core, in memory, by size of the inner packet. Whiskers: 95 % over sessions. Band: the \
                two-parameter model of the first subject, as wide as its largest error. A bare cipher is the ceiling: no \
                port or link limits these figures.";
    Figure::drawn(id, title, text, chart.draw(), data)
}

fn ticks(folder: &Folder, costs: &[Cost], sized: &[&Cost]) -> Figure {
    let title = "Time per packet, and the model";
    let mut chart = Chart::new(
        title,
        Axis::linear("inner packet, bytes").covering(0.0, 1.0),
        Axis::linear("ticks per packet").covering(0.0, 1.0),
    );
    let head = [
        "subject",
        "direction",
        "fixed, ticks",
        "ticks per byte",
        "fixed, ns",
        "limit, Gbit/s",
        "half-way size, bytes",
        "largest error at its points, %",
    ];
    let mut data = Data::new(&head);
    let hz = folder.hz();
    let mut seen: Vec<(&str, Direction)> = Vec::new();
    for cost in sized {
        let key = (cost.key.subject.as_str(), cost.key.direction);
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let Some(line) = Line::of(costs, key.0, key.1) else { continue };
        let mut row = vec![shown(key.0), super::way(key.1).into()];
        row.extend([
            exact(line.fixed),
            exact(line.slope),
            exact(line.fixed / hz * 1e9),
            exact(hz / line.slope * 8.0 / 1e9),
            exact(line.fixed / line.slope),
            exact(line.worst * 100.0),
        ]);
        data.push(row);
        if key.1 == Direction::In && seen.iter().any(|(subject, way)| *subject == key.0 && *way == Direction::Out) {
            continue;
        }
        let style = style(folder, key.0);
        let mut points = Series { joined: false, ..Series::new("", style) };
        for cost in sized.iter().filter(|c| (c.key.subject.as_str(), c.key.direction) == key) {
            points.points.push((f64::from(cost.size.unwrap_or(0)), cost.ticks));
        }
        let longest = points.points.iter().map(|(x, _)| *x).fold(0.0, f64::max);
        let mut fit = Series { marked: false, ..Series::new("", style) };
        fit.push(0.0, line.fixed);
        fit.push(longest, line.at(longest));
        let mut legend = Series::new(&label(key.0, key.1), style);
        legend.points.clear();
        chart.series.extend([points, fit, legend]);
    }
    let text = "Marks: measured. Lines: time = fixed + slope × size, by least squares on relative errors. Where a line meets the \
                axis is the fixed cost; its slope is the limit for large packets; at the half-way size both cost the same.";
    Figure::drawn("ticks", title, text, chart.draw(), data)
}

fn residuals(folder: &Folder, costs: &[Cost], sized: &[&Cost]) -> Figure {
    let title = "Errors of the line";
    let held_out = folder.costs(Kind::Validate);
    let everything: Vec<&Cost> = sized.iter().copied().chain(&held_out).collect();
    let y = Axis::linear("measured over line, %").covering(-3.0, 3.0);
    let mut chart = Chart::new(title, size_axis(&everything), y);
    chart.rules = vec![
        Rule::Horizontal(2.0, "+2 %".into()),
        Rule::Horizontal(0.0, String::new()),
        Rule::Horizontal(-2.0, "−2 %".into()),
    ];
    let head = ["subject", "direction", "bytes", "fitted to it", "measured, ticks", "line, ticks", "error, %"];
    let mut data = Data::new(&head);
    // The held-out points, or all points if none were held out.
    let judged = |cost: &&&Cost| {
        !cost.key.subject.starts_with("cipher-")
            && cost.key.direction == sized[0].key.direction
            && (held_out.is_empty() || held_out.iter().any(|other| other.key.subject == cost.key.subject))
    };
    let mut subjects: Vec<&str> = everything.iter().filter(judged).map(|cost| cost.key.subject.as_str()).collect();
    subjects.sort_by_key(|subject| style(folder, subject));
    subjects.dedup();
    let direction = sized[0].key.direction;
    let mut number = 0;
    for subject in subjects {
        let Some(line) = Line::of(costs, subject, direction) else { continue };
        for (inside, all) in [("yes", sized.to_vec()), ("no", held_out.iter().collect())] {
            let points: Vec<&Cost> =
                all.into_iter().filter(|cost| cost.key.subject == subject && cost.key.direction == direction).collect();
            if points.is_empty() {
                continue;
            }
            let unseen = if inside == "yes" { "" } else { ", unseen sizes" };
            let named = format!("{}{unseen}", shown(subject));
            let mut series = Series { joined: false, hollow: inside == "no", ..Series::new(&named, number) };
            number += 1;
            for cost in points {
                let size = f64::from(cost.size.unwrap_or(0));
                let predicted = line.at(size);
                let error = (cost.ticks.value / predicted - 1.0) * 100.0;
                series.points.push((size, exactly(error)));
                data.push([
                    shown(subject),
                    super::way(direction).into(),
                    exact(size),
                    inside.into(),
                    exact(cost.ticks.value),
                    exact(predicted),
                    short(error),
                ]);
            }
            chart.series.push(series);
        }
    }
    let text = "Filled: sizes that the line was fitted to. Hollow: held-out sizes, measured in other processes. Modern \
                ciphers work in strides of several blocks, so their time is a saw-tooth in size that no line follows; the models below do.";
    Figure::drawn("residuals", title, text, chart.draw(), data)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's table 1, ESP with AES-192, 128 and 1280 bytes, sizes rounded as ESP rounds them:
    /// 429.66 µs, 18.319 Mbit/s.
    #[test]
    fn a_line_goes_through_what_lies_on_one() {
        let points: Vec<(f64, f64)> = [144.0, 528.0, 1296.0].map(|bytes| (bytes, 429.66 + bytes * 8.0 / 18.319)).into();
        let line = Line::through(&points).unwrap();
        assert!((line.fixed - 429.66).abs() < 1e-6 && (8.0 / line.slope - 18.319).abs() < 1e-6 && line.worst < 1e-9);
        assert_eq!(Line::through(&points[..2]), None);
        assert_eq!(Line::through(&[points[0]; 3]), None);
    }
}
