//! The plots. Every mark has a label, so that colour is never the only cue.

use super::ping::RoundTrips;
use super::report::{shares, short};
use super::row::DemoRow;
use super::svg::{Anchor, Svg};
use super::way::Family;

/// Width of a plot in its own units; about CSS pixels on a telephone.
const WIDTH: f64 = 400.0;
/// Number of cores drawn per configuration: the busiest.
const MAX_CORES: usize = 8;

/// Types of processor time in stacking order: class, name.
pub(super) const KINDS: [(&str, &str); 4] = [
    ("user", "programs"),
    ("system", "kernel"),
    ("softirq", "kernel: packets, interrupts"),
    ("steal", "taken by the hypervisor"),
];

fn class(family: Family) -> &'static str {
    match family {
        Family::Plain => "plain",
        Family::Esp => "esp",
        Family::Ah => "ah",
        Family::Eesp => "eesp",
        Family::Psp => "psp",
    }
}

/// Bars from zero, each below a line with its label and value.
pub(super) fn bars(
    title: &str,
    rows: &[DemoRow],
    value: impl Fn(&DemoRow) -> Option<f64>,
    text: impl Fn(f64) -> String,
) -> String {
    const PITCH: f64 = 34.0;
    let top = rows.iter().filter_map(&value).fold(0.0, f64::max);
    let mut svg = Svg::new(WIDTH, rows.len() as f64 * PITCH);
    for (index, row) in rows.iter().enumerate() {
        let y = index as f64 * PITCH;
        let value = value(row);
        svg.text(0.0, y + 13.0, Anchor::Start, "label", &row.label);
        svg.text(WIDTH, y + 13.0, Anchor::End, "value", &value.map_or_else(|| "no result".into(), &text));
        svg.rect(0.0, y + 18.0, WIDTH, 9.0, "track");
        if let Some(value) = value.filter(|_| top > 0.0) {
            svg.rect(0.0, y + 18.0, WIDTH * value / top, 9.0, class(row.way.family()));
        }
    }
    svg.finish(title)
}

/// Throughput by second, one small plot per configuration, all on one scale.
pub(super) fn series(rows: &[DemoRow]) -> Vec<String> {
    let all =
        |row: &DemoRow| row.measured.as_ref().map_or_else(Vec::new, |measured| measured.transfer.gbit_per_s.clone());
    let top = nice(rows.iter().flat_map(all).fold(0.0, f64::max));
    rows.iter().map(|row| one_series(row, &all(row), top)).collect()
}

fn one_series(row: &DemoRow, values: &[f64], top: f64) -> String {
    let (width, height) = (240.0, 132.0);
    let (left, right, upper, lower) = (30.0, width - 6.0, 34.0, height - 18.0);
    let mut svg = Svg::new(width, height);
    svg.text(0.0, 12.0, Anchor::Start, "label", &row.label);
    let y = |value: f64| lower - (lower - upper) * value / top;
    for share in [0.0, 0.5, 1.0] {
        let value = share * top;
        svg.line((left, y(value)), (right, y(value)), "grid");
        svg.text(left - 4.0, y(value) + 3.5, Anchor::End, "tick", &trimmed(value));
    }
    let x = |index: usize| left + (right - left) * (index as f64 + 0.5) / values.len().max(1) as f64;
    let points: Vec<(f64, f64)> = values.iter().enumerate().map(|(i, v)| (x(i), y(*v))).collect();
    let colour = class(row.way.family());
    svg.polyline(&points, &format!("curve {colour}-line"));
    points.iter().for_each(|(x, y)| svg.circle(*x, *y, 2.2, colour));
    for index in (0..values.len()).filter(|i| i % (values.len() / 8 + 1) == 0) {
        svg.text(x(index), height - 5.0, Anchor::Middle, "tick", &(index + 1).to_string());
    }
    let mean = row.measured.as_ref().map(|measured| measured.transfer.rate());
    svg.text(
        right,
        26.0,
        Anchor::End,
        "value",
        &mean.map_or_else(|| "no result".into(), |rate| format!("mean {}", short(rate))),
    );
    svg.finish(&format!("{}: throughput by second", row.label))
}

/// The next larger number out of 1, 2, 5 times a power of ten.
fn nice(value: f64) -> f64 {
    if !value.is_finite() || value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 3.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= value).unwrap_or(value)
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A logarithmic axis for all sizes together.
pub(super) struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// Covers all values of a plot of round trips.
    pub(super) fn of(rows: &[DemoRow]) -> Self {
        let trips = || rows.iter().filter_map(|row| row.measured.as_ref()).flat_map(|measured| &measured.round_trips);
        let low = trips().map(|t| t.quantile(0.0)).filter(|v| v.is_finite()).fold(f64::INFINITY, f64::min);
        let high = trips().map(|t| t.quantile(1.0)).filter(|v| v.is_finite()).fold(0.0, f64::max);
        if low.is_finite() && high > 0.0 {
            Self { low: low.max(1.0) / 1.1, high: high.max(2.0) * 1.1 }
        } else {
            Self { low: 10.0, high: 1000.0 }
        }
    }

    fn x(&self, us: f64) -> f64 {
        WIDTH * ((us.max(self.low) / self.low).ln() / (self.high / self.low).ln()).min(1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        let decades = (0..7).map(|power| 10f64.powi(power));
        // Three ticks to a decade get crowded over more than three.
        let steps: &[f64] = if self.high / self.low > 1000.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        decades.flat_map(|d| steps.iter().map(move |s| s * d)).filter(|t| (self.low..self.high).contains(t)).collect()
    }
}

/// Round trips of one size: quantiles per configuration on a logarithmic axis.
pub(super) fn round_trips(rows: &[DemoRow], size: u16, axis: &Axis) -> String {
    const PITCH: f64 = 36.0;
    let height = rows.len() as f64 * PITCH + 24.0;
    let mut svg = Svg::new(WIDTH, height);
    for tick in axis.ticks() {
        let x = axis.x(tick);
        svg.line((x, 16.0), (x, height - 20.0), "grid");
        let text =
            if tick >= 1000.0 { format!("{} ms", trimmed(tick / 1000.0)) } else { format!("{} µs", trimmed(tick)) };
        svg.text(x.clamp(16.0, WIDTH - 18.0), height - 6.0, Anchor::Middle, "tick", &text);
    }
    for (index, row) in rows.iter().enumerate() {
        let y = index as f64 * PITCH;
        let measured = row.measured.as_ref();
        let trips = measured.and_then(|measured| measured.round_trips.iter().find(|trips| trips.ip_bytes == size));
        svg.text(0.0, y + 12.0, Anchor::Start, "label halo", &row.label);
        let Some(trips) = trips.filter(|trips| !trips.us.is_empty()) else {
            svg.text(WIDTH, y + 12.0, Anchor::End, "value halo", "no result");
            continue;
        };
        let value = format!("{} µs, p99 {}", short(trips.quantile(0.5)), short(trips.quantile(0.99)));
        svg.text(WIDTH, y + 12.0, Anchor::End, "value halo", &value);
        strip(&mut svg, trips, y + 23.0, class(row.way.family()), axis);
    }
    svg.finish(&format!("Round-trip times of packets of {size} bytes"))
}

/// Whisker from the least to p99, box over the middle half, line at the median, ring at the
/// largest.
fn strip(svg: &mut Svg, trips: &RoundTrips, y: f64, colour: &str, axis: &Axis) {
    let at = |q: f64| axis.x(trips.quantile(q));
    svg.line((at(0.0), y), (at(0.99), y), "whisker");
    svg.line((at(0.99), y - 4.0), (at(0.99), y + 4.0), "whisker");
    svg.rect(at(0.25), y - 5.0, (at(0.75) - at(0.25)).max(1.0), 10.0, colour);
    svg.line((at(0.5), y - 7.0), (at(0.5), y + 7.0), "median");
    svg.circle(at(1.0), y, 2.5, "ring");
}

/// Time of each core by kind during the transfer.
pub(super) fn cores(rows: &[DemoRow]) -> String {
    const HEAD: f64 = 20.0;
    const BAR: f64 = 13.0;
    let drawn = |row: &DemoRow| row.measured.as_ref().map_or(0, |measured| measured.cores().len().min(MAX_CORES));
    let height: f64 = rows.iter().map(|row| HEAD + drawn(row) as f64 * BAR + 6.0).sum();
    let mut svg = Svg::new(WIDTH, height);
    let mut y = 0.0;
    for row in rows {
        svg.text(0.0, y + 13.0, Anchor::Start, "label", &row.label);
        let Some(measured) = &row.measured else {
            svg.text(WIDTH, y + 13.0, Anchor::End, "value", "no result");
            y += HEAD + 6.0;
            continue;
        };
        let cost = format!("{} CPU-s per Gbit", short(measured.cpu_s_per_gbit));
        svg.text(WIDTH, y + 13.0, Anchor::End, "value", &cost);
        y += HEAD;
        let mut cores: Vec<(usize, [f64; 5])> = measured.cores().into_iter().map(shares).enumerate().collect();
        if cores.len() > MAX_CORES {
            // Least idle first, then back in order.
            cores.sort_by(|a, b| a.1[4].total_cmp(&b.1[4]));
            cores.truncate(MAX_CORES);
            cores.sort_by_key(|(number, _)| *number);
        }
        for (number, shares) in cores {
            stack(&mut svg, y, number, &shares);
            y += BAR;
        }
        y += 6.0;
    }
    svg.finish("Use of each core during the transfer")
}

fn stack(svg: &mut Svg, y: f64, number: usize, shares: &[f64; 5]) {
    let (left, right) = (24.0, WIDTH - 40.0);
    svg.text(left - 5.0, y + 9.0, Anchor::End, "tick", &number.to_string());
    svg.rect(left, y, right - left, 10.0, "track");
    let mut x = left;
    for ((kind, _), share) in KINDS.iter().zip(shares) {
        let width = (right - left) * share;
        svg.rect(x, y, width, 10.0, kind);
        svg.rect(x, y, width, 10.0, &format!("{kind}-pattern"));
        x += width;
    }
    let busy = (shares[0] + shares[1] + shares[2]) * 100.0;
    svg.text(WIDTH, y + 9.0, Anchor::End, "tick", &format!("{busy:.0} %"));
}

/// A sample of a kind's colour and pattern, for the legend.
pub(super) fn swatch(kind: &str) -> String {
    let mut svg = Svg::new(22.0, 12.0);
    svg.rect(0.0, 0.0, 22.0, 12.0, kind);
    svg.rect(0.0, 0.0, 22.0, 12.0, &format!("{kind}-pattern"));
    svg.finish(kind)
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;
    use super::super::svg::assert_well_formed;
    use super::*;

    #[test]
    fn every_plot_is_well_formed_and_names_every_way() {
        let mut report = example();
        // No round trip at all came back in this one.
        if let Some(measured) = &mut report.rows[1].measured {
            measured.round_trips[0].us.clear();
            measured.transfer.gbit_per_s.clear();
        }
        let rows = &report.rows;
        let axis = Axis::of(rows);
        let mut whole = vec![cores(rows), round_trips(rows, 64, &axis), round_trips(rows, 1400, &axis)];
        whole.push(bars("rate", rows, |row| Some(row.measured.as_ref()?.transfer.rate()), short));
        for plot in &whole {
            assert_well_formed(plot);
            assert!(rows.iter().all(|row| plot.contains(&row.label)), "{plot}");
            assert!(plot.contains("no result"));
        }
        let small = series(rows);
        assert_eq!(small.len(), rows.len());
        small.iter().for_each(|plot| assert_well_formed(plot));
    }

    #[test]
    fn nothing_measured_draws_something() {
        let mut report = example();
        report.rows.iter_mut().for_each(|row| row.measured = None);
        assert_well_formed(&cores(&report.rows));
        assert_well_formed(&round_trips(&report.rows, 64, &Axis::of(&report.rows)));
        series(&report.rows).iter().for_each(|plot| assert_well_formed(plot));
        assert_well_formed(&bars("rate", &[], |_| None, short));
    }

    #[test]
    fn scales_are_round() {
        assert_eq!([0.0, 0.7, 1.0, 1.1, 4.2, 7.5, 42.0].map(nice), [1.0, 1.0, 1.0, 2.0, 5.0, 10.0, 50.0]);
        let axis = Axis { low: 18.0, high: 700.0 };
        assert_eq!(axis.ticks(), [20.0, 50.0, 100.0, 200.0, 500.0]);
        assert!((axis.x(18.0), axis.x(700.0)) == (0.0, WIDTH));
    }
}
