//! Two builds, two runs, or two subjects of one run against each other, with what noise does to
//! such a comparison.

mod forest;
mod live;
mod runs;
mod selfcheck;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

pub use live::{LiveOptions, live, live_recorded};
pub use runs::{RunError, read_run, runs, subjects};
pub use selfcheck::{SelfCheck, self_check};

use stats::{Judged, Limits, Ratio, Verdict, judge_all};

/// One quantity of A and B. More is worse: a ratio above 1 means that B is slower.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Row {
    /// Label of the case, e.g. `esp tunnel aes128gcm16 64 out`.
    pub label: String,
    /// Metric with its unit, e.g. `cycles/packet`.
    pub metric: String,
    /// A.
    pub a: f64,
    /// B.
    pub b: f64,
    /// B over A.
    pub ratio: Ratio,
    /// A over itself, an estimate of the noise of the comparison. `None` if it was not measured.
    pub floor: Option<Ratio>,
    /// Verdict.
    pub judged: Judged,
}

/// A comparison.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Comparison {
    /// Description of A.
    pub a: String,
    /// Description of B.
    pub b: String,
    /// Slow-down from which on the gate closes, a share: 0.01 is 1 %.
    pub gate: f64,
    /// Difference that does not matter, a share.
    pub margin: f64,
    /// Seed of order and intervals.
    pub seed: u64,
    /// Every quantity.
    pub rows: Vec<Row>,
    /// Notes.
    pub notes: Vec<String>,
}

/// Data of a row before the joint verdict.
struct Measured {
    label: String,
    metric: String,
    a: f64,
    b: f64,
    ratio: Ratio,
    floor: Option<Ratio>,
}

/// Limits of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Criteria {
    /// Slow-down from which on the gate closes, a share.
    pub gate: f64,
    /// Difference that does not matter, a share.
    pub margin: f64,
    /// Seed.
    pub seed: u64,
}

impl Comparison {
    fn new(sides: [String; 2], criteria: Criteria, measured: Vec<Measured>, notes: Vec<String>) -> Self {
        // Equals estimate the variance of the same comparison.
        let mut measured = measured;
        for m in &mut measured {
            m.ratio = m.floor.as_ref().map_or_else(|| m.ratio.clone(), |floor| m.ratio.with_noise(floor));
        }
        let limits = Limits { floor: 0.0, margin: Some(criteria.margin.ln_1p()) };
        let family: Vec<(&Ratio, Limits)> = measured.iter().map(|m| (&m.ratio, limits)).collect();
        let judged = judge_all(&family);
        let row = |(m, judged): (Measured, Judged)| Row {
            label: m.label,
            metric: m.metric,
            a: m.a,
            b: m.b,
            ratio: m.ratio,
            floor: m.floor,
            judged,
        };
        let [a, b] = sides;
        let rows = measured.into_iter().zip(judged).map(row).collect();
        Self { a, b, gate: criteria.gate, margin: criteria.margin, seed: criteria.seed, rows, notes }
    }

    /// Rows in which B is different, and slower by more than the gate even at the lower end of the
    /// interval.
    pub fn regressions(&self) -> Vec<&Row> {
        let slower = |row: &&Row| row.judged.verdict == Verdict::Different && row.ratio.ratio.low - 1.0 > self.gate;
        self.rows.iter().filter(slower).collect()
    }

    /// Returns whether any row is called different.
    pub fn any_different(&self) -> bool {
        self.rows.iter().any(|row| row.judged.verdict == Verdict::Different)
    }

    /// The comparison for people: noise first, then the table, the forest plot and the gate.
    pub fn text(&self) -> String {
        let floors: Vec<f64> = self.rows.iter().filter_map(|r| r.floor.as_ref().map(Ratio::reach)).collect();
        let largest = floors.iter().copied().fold(0.0, f64::max);
        let mut text = format!("A: {}\nB: {}\n", self.a, self.b);
        if !floors.is_empty() {
            let least = floors.iter().copied().fold(f64::INFINITY, f64::min);
            text += &format!("A against itself: within ±{:.2} to ±{:.2} %\n", percent(least), percent(largest));
        }
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        text += &format!("\n{}\n\n{}\n", self.table(), forest::text(&self.rows, self.gate));
        let reasons = self.rows.iter().filter(|r| r.judged.verdict == Verdict::Inconclusive);
        for row in reasons {
            text += &format!("{}: inconclusive: {}\n", row.label, row.judged.why);
        }
        text + &self.gate_text()
    }

    fn gate_text(&self) -> String {
        let gate = 100.0 * self.gate;
        match self.regressions().as_slice() {
            [] => format!("gate: nothing is significantly slower by more than {gate:.1} %\n"),
            slower => {
                let names: Vec<&str> = slower.iter().map(|row| row.label.as_str()).collect();
                format!("gate: slower by more than {gate:.1} %: {}\n", names.join(", "))
            }
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["case", "A", "B", "unit", "B/A (95 %)", "A/A", "n", "verdict"]);
        for row in &self.rows {
            let r = row.ratio.ratio;
            let floor = row.floor.as_ref().map_or_else(|| "–".into(), |f| format!("±{:.2} %", percent(f.reach())));
            table.add_row([
                row.label.clone(),
                short(row.a),
                short(row.b),
                row.metric.clone(),
                format!("{:.4} ({:.4}-{:.4})", r.value, r.low, r.high),
                floor,
                format!("{}×{}", row.ratio.units, row.ratio.pairs / row.ratio.units.max(1)),
                row.judged.verdict.to_string(),
            ]);
        }
        for column in [1, 2, 4, 5, 6] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }

    /// A forest plot as an SVG file.
    pub fn svg(&self) -> String {
        forest::svg(self)
    }
}

/// A logarithm of a ratio in percent.
fn percent(log: f64) -> f64 {
    100.0 * log.exp_m1()
}

/// A number with four digits.
fn short(value: f64) -> String {
    let digits = if value.abs() >= 1.0 { (3.0 - value.abs().log10().floor()).max(0.0) as usize } else { 4 };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use stats::{Rng, paired};

    /// A comparison of made-up rows: label, true logarithm, spread.
    pub(super) fn example(rows: &[(&str, f64, f64)]) -> Comparison {
        let mut rng = Rng::new(5);
        let mut around = |log: f64, spread: f64| {
            let units: Vec<Vec<f64>> = (0..10).map(|_| vec![log + spread * (rng.unit() - 0.5)]).collect();
            paired(&units, &mut Rng::new(1)).expect("ten sessions")
        };
        let measured = rows
            .iter()
            .map(|(label, log, spread)| Measured {
                label: (*label).into(),
                metric: "cycles/packet".into(),
                a: 250.0,
                b: 250.0 * log.exp(),
                ratio: around(*log, *spread),
                floor: Some(around(0.0, 0.004)),
            })
            .collect();
        let criteria = Criteria { gate: 0.01, margin: 0.01, seed: 1 };
        Comparison::new(["old".into(), "new".into()], criteria, measured, vec!["made up".into()])
    }

    #[test]
    fn the_gate_closes_for_a_certain_slow_down_only() {
        let slow = example(&[("slow", 0.02, 0.004), ("same", 0.0, 0.004)]);
        assert_eq!(slow.regressions().iter().map(|r| r.label.as_str()).collect::<Vec<&str>>(), ["slow"]);
        assert!(example(&[("fast", -0.05, 0.004)]).regressions().is_empty());
        assert!(example(&[("fast", -0.05, 0.004)]).any_different());
        assert!(example(&[("unsure", 0.02, 0.15)]).regressions().is_empty());
        assert!(example(&[("at the gate", 0.0125, 0.012)]).regressions().is_empty());
    }

    #[test]
    fn the_text_puts_noise_first_and_names_what_is_slower() {
        let text = example(&[("slow", 0.02, 0.004), ("unsure", 0.0, 0.2), ("same", 0.0, 0.002)]).text();
        let order = [
            "A against itself: within ±",
            "note: made up",
            "different",
            "equivalent",
            "unsure: inconclusive: ",
            "gate: slower by more than 1.0 %: slow\n",
        ];
        let places: Vec<Option<usize>> = order.iter().map(|part| text.find(part)).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}\n{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 130), "{text}");
    }

    #[test]
    fn json_reads_back() {
        let comparison = example(&[("slow", 0.02, 0.004)]);
        let json = serde_json::to_string(&comparison).expect("plain data");
        let back: Comparison = serde_json::from_str(&json).expect("its own");
        assert_eq!((back.rows[0].label.as_str(), back.rows[0].judged.verdict), ("slow", Verdict::Different));
        assert!(json.contains(r#""verdict":"different""#), "{json}");
    }

    #[test]
    fn four_digits() {
        assert_eq!([251.26, 1234.5, 12.3456, 0.5, 1.0].map(short), ["251.3", "1234", "12.35", "0.5000", "1.000"]);
    }
}
