//! Plots over two axes. Series differ by the shape of their marks and the dashes of their lines,
//! not by colour alone.

use crate::svg::{Anchor, Svg, escape};
use stats::Estimate;

/// Width of a plot in its own units; about CSS pixels on a telephone.
pub(crate) const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = WIDTH - 10.0;
const TOP: f64 = 12.0;
const LOWER: f64 = HEIGHT - 38.0;

/// Colours, shapes and dashes that series can have.
pub(crate) const STYLES: usize = 10;

/// Scale of an axis.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Scale {
    Linear,
    Log,
}

/// One axis.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) scale: Scale,
    /// Text at a tick.
    pub(crate) text: fn(f64) -> String,
    /// Ends that are shown at least.
    pub(crate) at_least: Option<(f64, f64)>,
    /// Ticks, where the usual ones do not fit.
    pub(crate) ticks: Option<Vec<f64>>,
}

impl Axis {
    pub(crate) fn linear(label: &str) -> Self {
        Self { label: label.into(), scale: Scale::Linear, text: trimmed, at_least: None, ticks: None }
    }

    pub(crate) fn log(label: &str) -> Self {
        Self { scale: Scale::Log, ..Self::linear(label) }
    }

    pub(crate) fn covering(self, low: f64, high: f64) -> Self {
        Self { at_least: Some((low, high)), ..self }
    }
}

/// One line of marks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Colour, shape and dashes, below [`STYLES`].
    pub(crate) style: usize,
    pub(crate) points: Vec<(f64, Estimate)>,
    /// Marks are joined.
    pub(crate) joined: bool,
    /// Marks are not filled.
    pub(crate) hollow: bool,
    /// Each point has a mark.
    pub(crate) marked: bool,
}

impl Series {
    pub(crate) fn new(name: &str, style: usize) -> Self {
        Self { name: name.into(), style: style % STYLES, joined: true, marked: true, ..Self::default() }
    }

    /// A point without an interval.
    pub(crate) fn push(&mut self, x: f64, y: f64) {
        self.points.push((x, exactly(y)));
    }
}

/// A value without an interval.
pub(crate) fn exactly(value: f64) -> Estimate {
    Estimate { value, low: value, high: value }
}

/// A line across the whole plot.
#[derive(Clone, Debug)]
pub(crate) enum Rule {
    Horizontal(f64, String),
    Vertical(f64, String),
}

/// An area between a lower and an upper line: (x, low, high).
pub(crate) type Band = Vec<(f64, f64, f64)>;

/// A plot.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
    /// Areas, each with the style of a series.
    pub(crate) bands: Vec<(usize, Band)>,
    pub(crate) rules: Vec<Rule>,
}

impl Chart {
    pub(crate) fn new(title: &str, x: Axis, y: Axis) -> Self {
        Self { title: title.into(), x, y, series: vec![], bands: vec![], rules: vec![] }
    }

    /// The drawing, and the legend beneath it.
    pub(crate) fn draw(&self) -> String {
        let (xs, ys) = self.values();
        let x = Span::new(&self.x, &xs, LEFT, RIGHT);
        let y = Span::new(&self.y, &ys, LOWER, TOP);
        let mut svg = Svg::new(WIDTH, HEIGHT);
        self.grid(&mut svg, &x, &y);
        for (style, points) in &self.bands {
            let above = points.iter().map(|(at, _, high)| (x.at(*at), y.at(*high)));
            let below = points.iter().rev().map(|(at, low, _)| (x.at(*at), y.at(*low)));
            svg.polygon(&above.chain(below).collect::<Vec<_>>(), &format!("band s{style}-fill"));
        }
        for rule in &self.rules {
            match rule {
                Rule::Horizontal(value, text) if y.holds(*value) => {
                    svg.line((LEFT, y.at(*value)), (RIGHT, y.at(*value)), "rule");
                    svg.text(RIGHT, y.at(*value) - 4.0, Anchor::End, "tick halo", text);
                }
                Rule::Vertical(value, text) if x.holds(*value) => {
                    svg.line((x.at(*value), TOP), (x.at(*value), LOWER), "rule");
                    let (anchor, shift) =
                        if x.at(*value) > WIDTH * 0.7 { (Anchor::End, -4.0) } else { (Anchor::Start, 4.0) };
                    svg.text(x.at(*value) + shift, TOP + 9.0, anchor, "tick halo", text);
                }
                _ => {}
            }
        }
        for series in &self.series {
            self.line(&mut svg, series, &x, &y);
        }
        let mut drawing = svg.finish(&self.title);
        drawing.push_str(&self.legend());
        drawing
    }

    fn values(&self) -> (Vec<f64>, Vec<f64>) {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let bands = || self.bands.iter().flat_map(|(_, band)| band);
        let xs = points().map(|(x, _)| *x).chain(bands().map(|(x, ..)| *x)).collect();
        let ys = points().flat_map(|(_, y)| [y.low, y.value, y.high]).chain(bands().flat_map(|(_, l, h)| [*l, *h]));
        (xs, ys.collect())
    }

    fn grid(&self, svg: &mut Svg, x: &Span, y: &Span) {
        for tick in y.ticks(&self.y, 5) {
            svg.line((LEFT, y.at(tick)), (RIGHT, y.at(tick)), "grid");
            svg.text(LEFT - 5.0, y.at(tick) + 3.5, Anchor::End, "tick", &(self.y.text)(tick));
        }
        for tick in x.ticks(&self.x, 6) {
            svg.line((x.at(tick), TOP), (x.at(tick), LOWER), "grid");
            svg.text(
                x.at(tick).clamp(LEFT + 2.0, RIGHT - 8.0),
                LOWER + 14.0,
                Anchor::Middle,
                "tick",
                &(self.x.text)(tick),
            );
        }
        svg.text(
            (LEFT + RIGHT) / 2.0,
            HEIGHT - 6.0,
            Anchor::Middle,
            "tick",
            &format!("{} → · {} ↑", self.x.label, self.y.label),
        );
    }

    fn line(&self, svg: &mut Svg, series: &Series, x: &Span, y: &Span) {
        let style = series.style;
        let places: Vec<(f64, f64)> = series.points.iter().map(|(at, v)| (x.at(*at), y.at(v.value))).collect();
        if series.joined {
            svg.polyline(&places, &format!("curve s{style}-line"));
        }
        for ((at, value), place) in series.points.iter().zip(&places) {
            if value.low < value.high && value.low.is_finite() && value.high.is_finite() {
                svg.line(
                    (x.at(*at), y.at(value.low)),
                    (x.at(*at), y.at(value.high)),
                    &format!("whisker-thin s{style}-line"),
                );
            }
            if series.marked {
                mark(svg, *place, style, series.hollow);
            }
        }
    }

    fn legend(&self) -> String {
        let named: Vec<&Series> = self.series.iter().filter(|series| !series.name.is_empty()).collect();
        if named.is_empty() {
            return String::new();
        }
        let entry = |series: &&Series| {
            let mut svg = Svg::new(34.0, 12.0);
            if series.joined {
                svg.polyline(&[(0.0, 6.0), (34.0, 6.0)], &format!("curve s{}-line", series.style));
            }
            if series.marked {
                mark(&mut svg, (17.0, 6.0), series.style, series.hollow);
            }
            format!("<span>{} {}</span>", svg.finish(&series.name), escape(&series.name))
        };
        format!("<p class=\"legend\">{}</p>", named.iter().map(entry).collect::<String>())
    }
}

/// The mark of a style: a shape for each.
fn mark(svg: &mut Svg, (x, y): (f64, f64), style: usize, hollow: bool) {
    let class = if hollow { format!("hollow s{style}-line") } else { format!("s{style}-fill") };
    let r = 3.4;
    let shape: &[(f64, f64)] = match style % STYLES {
        1 => &[(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)],
        2 => &[(0.0, -1.3), (1.2, 0.9), (-1.2, 0.9)],
        3 => &[(0.0, -1.4), (1.4, 0.0), (0.0, 1.4), (-1.4, 0.0)],
        4 => &[(0.0, 1.3), (1.2, -0.9), (-1.2, -0.9)],
        5 => &[(-1.3, -0.5), (1.3, -0.5), (1.3, 0.5), (-1.3, 0.5)],
        6 => &[(-0.5, -1.3), (0.5, -1.3), (0.5, 1.3), (-0.5, 1.3)],
        7 => &[(-1.2, -1.2), (0.0, -0.4), (1.2, -1.2), (0.4, 0.0), (1.2, 1.2), (0.0, 0.4), (-1.2, 1.2), (-0.4, 0.0)],
        8 => &[(-1.2, -1.1), (1.2, -1.1), (-1.2, 1.1), (1.2, 1.1)],
        9 => &[(-1.2, 1.0), (-1.2, -0.6), (0.0, 0.3), (1.2, -0.6), (1.2, 1.0)],
        _ => return svg.circle(x, y, r, &class),
    };
    svg.polygon(&shape.iter().map(|(dx, dy)| (x + dx * r, y + dy * r)).collect::<Vec<_>>(), &class);
}

/// One bar of [`bars`].
pub(crate) struct Bar {
    pub(crate) name: String,
    /// Value and unit, at the end of the line of the name.
    pub(crate) text: String,
    pub(crate) value: Estimate,
    /// Style of a series.
    pub(crate) style: usize,
}

/// Bars from zero, each below a line with its name and value; an interval is a line within.
pub(crate) fn bars(title: &str, bars: &[Bar]) -> String {
    divided_bars(title, bars, &[], &[])
}

/// Bars of which each is divided into `parts`: one begins where the one before ends, and the rest
/// is grey. `legend` has the names of the parts.
pub(crate) fn divided_bars(title: &str, bars: &[Bar], parts: &[Vec<f64>], legend: &[&str]) -> String {
    const PITCH: f64 = 34.0;
    const LINE: f64 = 16.0;
    let foot = if legend.is_empty() { 0.0 } else { 18.0 + legend.len().div_ceil(2) as f64 * LINE };
    let mut svg = Svg::new(WIDTH, bars.len() as f64 * PITCH + foot);
    let top = bars.iter().map(|bar| bar.value.high.max(bar.value.value)).filter(|v| v.is_finite()).fold(0.0, f64::max);
    let width = |value: f64| if top > 0.0 && value.is_finite() { WIDTH * (value / top).clamp(0.0, 1.0) } else { 0.0 };
    for (index, Bar { name, text, value, style }) in bars.iter().enumerate() {
        let y = index as f64 * PITCH;
        svg.text(0.0, y + 13.0, Anchor::Start, "label", name);
        svg.text(WIDTH, y + 13.0, Anchor::End, "value", text);
        let Some(parts) = parts.get(index) else {
            svg.rect(0.0, y + 18.0, WIDTH, 9.0, "track");
            svg.rect(0.0, y + 18.0, width(value.value), 9.0, &format!("s{}-fill", style % STYLES));
            if value.low < value.high {
                svg.line((width(value.low), y + 22.5), (width(value.high), y + 22.5), "whisker");
            }
            continue;
        };
        svg.rect(0.0, y + 18.0, width(value.value), 9.0, "track");
        let mut at = 0.0;
        for (kind, part) in parts.iter().enumerate() {
            svg.rect(width(at), y + 18.0, width(*part), 9.0, &format!("s{kind}-fill"));
            at += part;
        }
    }
    for (kind, name) in legend.iter().enumerate() {
        let x = (kind % 2) as f64 * WIDTH / 2.0;
        let y = bars.len() as f64 * PITCH + 12.0 + (kind / 2) as f64 * LINE;
        svg.rect(x, y - 6.0, 7.0, 7.0, &format!("s{kind}-fill"));
        svg.text(x + 9.0, y, Anchor::Start, "tick", name);
    }
    svg.finish(title)
}

/// From values to places.
struct Span {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Span {
    fn new(axis: &Axis, values: &[f64], from: f64, to: f64) -> Self {
        let log = axis.scale == Scale::Log;
        let usable = |v: &&f64| v.is_finite() && (!log || **v > 0.0);
        let ends = axis.at_least.map_or(vec![], |(low, high)| vec![low, high]);
        let all = || values.iter().chain(&ends).filter(usable).copied();
        let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
        let (low, high) = match () {
            () if low > high => (1.0, 10.0),
            () if low == high && log => (low / 2.0, high * 2.0),
            () if low == high => (low - 1.0_f64.max(low.abs() * 0.1), high + 1.0_f64.max(high.abs() * 0.1)),
            () if log => (low / 1.08, high * 1.08),
            // A little air, but zero stays zero.
            () => {
                let air = (high - low) * 0.05;
                (if low == 0.0 { 0.0 } else { low - air }, high + air)
            }
        };
        Self { scale: axis.scale, low, high, from, to }
    }

    fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from + (self.to - self.from) * share.clamp(0.0, 1.0)
    }

    fn ticks(&self, axis: &Axis, about: usize) -> Vec<f64> {
        if let Some(ticks) = &axis.ticks {
            return ticks.iter().copied().filter(|tick| self.holds(*tick)).collect();
        }
        match self.scale {
            Scale::Linear => {
                let step = nice((self.high - self.low) / about as f64);
                let first = (self.low / step).ceil() as i64;
                let last = (self.high / step).floor() as i64;
                (first..=last.min(first + 20)).map(|n| n as f64 * step).collect()
            }
            Scale::Log => {
                let steps: &[f64] = if self.high / self.low > 500.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                let decades = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
                let all = decades.flat_map(|d| steps.iter().map(move |s| s * 10f64.powi(d)));
                all.filter(|tick| self.holds(*tick)).collect()
            }
        }
    }
}

/// The next larger number out of 1, 2, 5 times a power of ten.
pub(crate) fn nice(value: f64) -> f64 {
    if !value.is_finite() || value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= value * 0.999_999).unwrap_or(value)
}

/// At most four significant digits, without trailing zeros.
pub(crate) fn trimmed(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Three significant digits; a dash for NaN.
pub(crate) fn short(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.0995 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::assert_well_formed;

    fn chart() -> Chart {
        let mut chart = Chart::new("a < b", Axis::log("bytes"), Axis::linear("Gbit/s").covering(0.0, 1.0));
        for style in 0..STYLES {
            let mut series = Series::new(&format!("series {style}"), style);
            series.hollow = style % 2 == 1;
            for x in [64.0, 512.0, 1400.0] {
                let value = x / 100.0 + style as f64;
                series.points.push((x, Estimate { value, low: value * 0.9, high: value * 1.1 }));
            }
            chart.series.push(series);
        }
        chart.bands.push((0, vec![(64.0, 0.5, 1.0), (1400.0, 13.0, 15.0)]));
        chart.rules = vec![Rule::Horizontal(10.0, "ceiling".into()), Rule::Vertical(512.0, "knee".into())];
        chart
    }

    #[test]
    fn a_plot_is_well_formed_and_names_every_series() {
        let drawing = chart().draw();
        assert_well_formed(&drawing);
        assert!((0..STYLES).all(|style| drawing.contains(&format!("series {style}"))));
        assert!(drawing.contains("ceiling") && drawing.contains("knee") && drawing.contains("a &lt; b"));
    }

    #[test]
    fn bars_are_drawn_from_zero_and_a_missing_value_has_none() {
        let bar = |value| Bar { name: "<a>".into(), text: "1 b".into(), value, style: STYLES };
        let drawing =
            bars("t", &[bar(exactly(2.0)), bar(Estimate { value: 1.0, low: 0.5, high: 1.5 }), bar(exactly(f64::NAN))]);
        assert_well_formed(&drawing);
        for width in ["400", "200", "0"] {
            assert!(drawing.contains(&format!(r#"width="{width}" height="9" class="s0-fill""#)), "{drawing}");
        }
        assert_eq!(drawing.matches("whisker").count(), 1);
        assert_well_formed(&bars("", &[]));
    }

    #[test]
    fn shapes_tell_series_apart_without_colour() {
        let shape = |style| {
            let mut svg = Svg::new(10.0, 10.0);
            mark(&mut svg, (0.0, 0.0), style, false);
            svg.finish("").replace(&format!("s{style}-fill"), "")
        };
        for a in 0..STYLES {
            assert!((0..a).all(|b| shape(a) != shape(b)), "{a}");
        }
    }

    #[test]
    fn nothing_and_strange_numbers_draw_something() {
        assert_well_formed(&Chart::new("", Axis::linear("x"), Axis::log("y")).draw());
        let mut chart = chart();
        chart.series[0].push(f64::NAN, f64::INFINITY);
        chart.series[0].push(-5.0, 0.0);
        assert_well_formed(&chart.draw());
    }

    #[test]
    fn ticks_are_round_and_within() {
        let span = Span::new(&Axis::linear("x"), &[0.0, 1.0], 0.0, 100.0);
        assert_eq!(span.ticks(&Axis::linear("x"), 5), [0.0, 0.5, 1.0]);
        let span = Span::new(&Axis::log("x"), &[64.0, 1400.0], 0.0, 100.0);
        assert_eq!(span.ticks(&Axis::log("x"), 5), [100.0, 200.0, 500.0, 1000.0]);
        assert_eq!([0.0, 0.012, 1234.5, 20.0, 0.5].map(trimmed), ["0", "0.012", "1234", "20", "0.5"]);
        assert_eq!([f64::NAN, 123.4, 12.34, 1.234, 0.01234].map(short), ["–", "123", "12.3", "1.23", "0.0123"]);
    }
}
