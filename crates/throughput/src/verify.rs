//! Recomputing the paper: recomputes every printed parameter, prediction, difference and average
//! from its inputs.

use serde::Serialize;

use super::equation::{Asynchronous, EQUATIONS, Equation, Synchronous, time_ns};
use super::fit::{Interval, Sample, sign_runs, weighted};
use super::paper::{FINDINGS, Role, SYSTEMS, System, TableLine};
use super::size::{ROUNDINGS, Rounding, SizeFn};
use super::two_point::{Printed, TwoPoint, half_unit, over_corners};

/// Relation of a printed number to the recomputed one.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Rounds or cuts to the printed digits, or is at most 0.1 % off.
    Reproduces,
    /// Further off, but the rounding of the printed inputs allows it.
    WithinRounding,
    /// Does not follow from the printed inputs.
    Differs,
}

impl Verdict {
    /// Words for a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reproduces => "reproduces",
            Self::WithinRounding => "within rounding",
            Self::Differs => "DIFFERS",
        }
    }

    fn of(printed: &str, ours: Interval) -> Self {
        const CLOSE: f64 = 1e-3;
        let Ok(value) = printed.parse::<f64>() else { return Self::Differs };
        let (half, off) = (half_unit(printed), ours.value - value);
        // The authors round in some places and cut in others.
        if off.abs() <= CLOSE * value || (-half..2.0 * half).contains(&off) {
            Self::Reproduces
        } else if ours.low <= value + half && value - half <= ours.high {
            Self::WithinRounding
        } else {
            Self::Differs
        }
    }
}

/// One printed number.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Table of the paper.
    pub table: u8,
    /// Suite or system.
    pub system: &'static str,
    /// Quantity, with its unit.
    pub what: String,
    /// As printed.
    pub printed: &'static str,
    /// Recomputed value, with the uncertainty from the rounding of the inputs.
    pub ours: Interval,
    /// Size function it was computed with; empty where none matters.
    pub size_fn: String,
    /// All size functions that give the printed fixed time to 0.1 %; empty for other quantities.
    pub also: Vec<String>,
    /// Verdict.
    pub verdict: Verdict,
    /// Reason why a printed value differs from the computed one.
    pub note: Option<&'static str>,
}

/// Result of all measurements of a system, in addition to the two that the paper used. Errors in
/// percent of throughput.
#[derive(Clone, Debug, Serialize)]
pub struct Regression {
    /// Suite or system.
    pub system: String,
    /// Size function.
    pub size_fn: String,
    /// Largest error of the two-point line at sizes that it was not made from.
    pub two_point_max_percent: f64,
    /// Weighted least squares on relative error.
    pub line: Synchronous,
    /// Largest error of it.
    pub max_percent: f64,
    /// Largest error at a size that was left out of the fit.
    pub left_out_max_percent: f64,
    /// Signs of two-point residuals in throughput by size.
    pub two_point_signs: String,
}

/// The whole recomputation.
#[derive(Clone, Debug, Serialize)]
pub struct Verification {
    /// Every printed number of Tables 1 to 8.
    pub checks: Vec<Check>,
    /// Fits over all sizes.
    pub regressions: Vec<Regression>,
    /// Equations 1 to 16.
    pub equations: &'static [Equation],
    /// Suites of Table 2 of which the residual is negative at 512 B and positive at 1420 B, of
    /// seven.
    pub curved_suites: usize,
    /// Increase of the printed fixed time of AES per 64 bits of key, in µs.
    pub key_step_us: [f64; 2],
    /// Times per packet of Table 7 below its breakpoint in µs: the model has them constant.
    pub falling_times_us: Vec<f64>,
    /// Differences from the audit; empty if this build reproduces it.
    pub unexpected: Vec<String>,
}

/// Recomputes Tables 1 to 8.
pub fn verify_paper() -> Verification {
    let mut checks: Vec<Check> = SYSTEMS.iter().flat_map(checks_of).collect();
    checks.sort_by_key(|c| c.table);
    let curved_suites = SYSTEMS
        .iter()
        .filter(|s| s.tables == [1, 2])
        .filter(|s| {
            let sign = |size| s.rows.iter().find(|r| r.size == size).map(|r| number(r.calculated) - number(r.measured));
            sign(512.0) < Some(0.0) && sign(1420.0) > Some(0.0)
        })
        .count();
    let fixed = |name| SYSTEMS.iter().find(|s| s.name == name).map_or(f64::NAN, |s| number(s.fixed_us));
    let [aes128, aes192, aes256] = ["ESP-aes128", "ESP-aes192", "ESP-aes256"].map(fixed);
    let falling = SYSTEMS.iter().filter(|s| s.engine.is_some()).flat_map(|s| s.rows);
    let falling_times_us =
        falling.filter(|r| r.size <= 512.0).map(|r| time_ns(r.size, number(r.measured)) / 1e3).collect();
    let unexpected = unexpected(&checks);
    Verification {
        checks,
        regressions: regressions(),
        equations: EQUATIONS,
        curved_suites,
        key_step_us: [aes192 - aes128, aes256 - aes192],
        falling_times_us,
        unexpected,
    }
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or(f64::NAN)
}

/// Every number that does not follow has a finding, and every finding is about one that does not
/// follow.
fn unexpected(checks: &[Check]) -> Vec<String> {
    let name = |table: u8, system: &str, what: &str| format!("Tab. {table} {system}, {what}");
    let unexplained = checks.iter().filter(|c| c.verdict == Verdict::Differs && c.note.is_none()).map(|c| {
        format!("{}: printed {}, recomputed {:.5}", name(c.table, c.system, &c.what), c.printed, c.ours.value)
    });
    let vanished = FINDINGS
        .iter()
        .filter(|f| {
            !checks.iter().any(|c| {
                (c.table, c.system, c.what.as_str()) == (f.table, f.system, f.what) && c.verdict != Verdict::Reproduces
            })
        })
        .map(|f| format!("{}: reproduces, but is listed as a misprint", name(f.table, f.system, f.what)));
    unexplained.chain(vanished).collect()
}

/// Parameters and predictions of one system as functions of its input throughputs.
#[derive(Clone, Copy)]
enum Parameters {
    Synchronous(Synchronous),
    Asynchronous(Asynchronous),
}

impl Parameters {
    fn fixed_us(&self) -> f64 {
        match self {
            Self::Synchronous(p) => p.fixed_ns / 1e3,
            Self::Asynchronous(p) => p.fixed_ns / 1e3,
        }
    }

    fn rate_mbps(&self) -> f64 {
        match self {
            Self::Synchronous(p) => p.rate_mbps,
            Self::Asynchronous(p) => p.rate_mbps,
        }
    }

    fn mbps(&self, size: f64, size_fn: &SizeFn) -> f64 {
        let bytes = size_fn.bytes(size);
        match self {
            Self::Synchronous(p) => p.throughput_mbps(size, bytes),
            Self::Asynchronous(p) => p.throughput_mbps(size, bytes),
        }
    }
}

impl System {
    /// `f` of the parameters that follow from the inputs, over the rounding of the inputs.
    fn over(&self, size_fn: &SizeFn, f: impl Fn(Parameters) -> f64) -> Interval {
        let inputs: Vec<Printed> = self
            .rows
            .iter()
            .filter(|r| r.role == Role::Input)
            .filter_map(|r| Printed::parse(r.size, r.measured, self.unit))
            .collect();
        match inputs[..] {
            [a, b] => TwoPoint::new(a, b, size_fn.clone()).range(|line| f(Parameters::Synchronous(*line))),
            // Equations 13 to 16: one small size for the processor, two large ones for the engine.
            [small, a, b] => over_corners([small, a, b].map(|p| (p.mbps, p.half)), |[s, m, l]| {
                let point = |p: Printed, mbps| (size_fn.bytes(p.size), time_ns(p.size, mbps));
                let engine = Synchronous::through(point(a, m), point(b, l))
                    .unwrap_or(Synchronous { fixed_ns: f64::NAN, rate_mbps: f64::NAN });
                f(Parameters::Asynchronous(Asynchronous {
                    fixed_ns: time_ns(small.size, s),
                    overhead_ns: engine.fixed_ns,
                    rate_mbps: engine.rate_mbps,
                }))
            }),
            _ => Interval { value: f64::NAN, low: f64::NAN, high: f64::NAN },
        }
    }
}

fn rounding(name: &str) -> SizeFn {
    SizeFn::Rounding(name.to_owned())
}

fn checks_of(system: &'static System) -> Vec<Check> {
    let size_fn = rounding(system.size_fn);
    let scaled =
        |i: Interval| Interval { value: i.value / system.unit, low: i.low / system.unit, high: i.high / system.unit };
    let check = |table: usize, what: String, printed: &'static str, ours: Interval, size_fn: &str| {
        let (table, system) = (system.tables[table], system.name);
        let verdict = Verdict::of(printed, ours);
        let found = FINDINGS.iter().find(|f| (f.table, f.system, f.what) == (table, system, what.as_str()));
        let note = found.map(|f| f.text);
        Check { table, system, what, printed, ours, size_fn: size_fn.to_owned(), also: vec![], verdict, note }
    };
    let mut checks = vec![];
    let fixed = |name: &str| system.over(&rounding(name), |p| p.fixed_us());
    let mut first = check(0, "t_fix us".into(), system.fixed_us, fixed(system.size_fn), system.size_fn);
    first.also = all_reproducing(system);
    checks.push(first);
    if let Some(own) = system.own_formula {
        checks.push(check(0, "t_fix us, own formula".into(), system.fixed_us, fixed(own), own));
    }
    let rate = scaled(system.over(&size_fn, |p| p.rate_mbps()));
    checks.push(check(0, "R_alg".into(), system.rate, rate, system.size_fn));
    if let Some([overhead, breakpoint]) = system.engine {
        let of = |f: fn(&Asynchronous) -> f64| {
            system.over(&size_fn, move |p| if let Parameters::Asynchronous(p) = p { f(&p) } else { f64::NAN })
        };
        checks.push(check(0, "t_oh us".into(), overhead, of(|p| p.overhead_ns / 1e3), system.size_fn));
        checks.push(check(0, "L_bp bytes".into(), breakpoint, of(Asynchronous::breakpoint_bytes), system.size_fn));
    }
    for row in system.rows.iter().filter(|r| !r.calculated.is_empty()) {
        let ours = scaled(system.over(&size_fn, |p| p.mbps(row.size, &size_fn)));
        checks.push(check(1, format!("R at {} B", row.size), row.calculated, ours, system.size_fn));
    }
    for row in system.rows.iter().filter(|r| !r.difference.is_empty()) {
        checks.push(check(1, format!("difference at {} B", row.size), row.difference, difference(row), ""));
    }
    if !system.average.is_empty() {
        let printed: Vec<f64> =
            system.rows.iter().filter(|r| !r.difference.is_empty()).map(|r| number(r.difference)).collect();
        let mean = exactly(printed.iter().sum::<f64>() / printed.len() as f64);
        checks.push(check(1, "average difference".into(), system.average, mean, ""));
    }
    checks
}

fn exactly(value: f64) -> Interval {
    Interval { value, low: value, high: value }
}

/// The difference of the printed values in percent of the measured one.
fn difference(row: &TableLine) -> Interval {
    let (measured, calculated) = (number(row.measured), number(row.calculated));
    exactly(100.0 * (measured - calculated).abs() / measured)
}

/// All roundings that reproduce the printed fixed time within 0.1 %.
fn all_reproducing(system: &System) -> Vec<String> {
    let hit = |r: &&Rounding| {
        let ours = system.over(&rounding(&r.id()), |p| p.fixed_us());
        Verdict::of(system.fixed_us, exactly(ours.value)) == Verdict::Reproduces
    };
    ROUNDINGS.iter().filter(hit).map(Rounding::id).collect()
}

fn regressions() -> Vec<Regression> {
    let mut all = vec![];
    for system in SYSTEMS.iter().filter(|s| s.engine.is_none() && s.tables[0] != 6) {
        let size_fn = match system.tables[0] {
            1 => system.own_formula.unwrap_or(system.size_fn),
            3 => "s2-esp8/1",
            4 => "s2-esp16/1",
            _ => system.size_fn,
        };
        let mut rows: Vec<&TableLine> = system.rows.iter().filter(|r| r.role != Role::Capped).collect();
        // A lost digit is not a measurement.
        let misprint = |r: &TableLine| system.name == "ESP-aes128" && r.size == 64.0;
        rows.retain(|r| !misprint(r));
        let inputs: Vec<f64> = rows.iter().filter(|r| r.role == Role::Input).map(|r| r.size).collect();
        let two = [inputs[0], inputs[1]];
        all.extend(regression(system.name.to_owned(), size_fn, &samples(system, &rows), two));
        if system.tables[0] == 5 {
            rows.retain(|r| r.size < 1024.0);
            let name = format!("{}, without the capped 1024 B", system.name);
            all.extend(regression(name, size_fn, &samples(system, &rows), [64.0, 256.0]));
        }
    }
    all
}

fn samples(system: &System, rows: &[&TableLine]) -> Vec<Sample> {
    rows.iter().map(|r| Sample::from_mbps(r.size, number(r.measured) * system.unit)).collect()
}

fn regression(system: String, size_fn: &str, samples: &[Sample], two: [f64; 2]) -> Option<Regression> {
    let bytes = |s: &Sample| rounding(size_fn).bytes(s.size);
    let line_of = |samples: &[Sample]| {
        let rows: Vec<Vec<f64>> = samples.iter().map(|s| vec![1.0, bytes(s)]).collect();
        weighted(&rows, samples).map(|f| Synchronous { fixed_ns: f.coef[0], rate_mbps: 8e3 / f.coef[1] })
    };
    // Errors of throughput, as the paper has them.
    let error = |line: &Synchronous, s: &Sample| 100.0 * (s.time_ns / line.time_ns(bytes(s)) - 1.0);
    let largest = |errors: &mut dyn Iterator<Item = f64>| errors.fold(0.0, |a: f64, e| a.max(e.abs()));
    let pick = |size: f64| samples.iter().find(|s| s.size == size).map(|s| (bytes(s), s.time_ns));
    let two_point = Synchronous::through(pick(two[0])?, pick(two[1])?)?;
    let held_out: Vec<f64> = samples.iter().filter(|s| !two.contains(&s.size)).map(|s| error(&two_point, s)).collect();
    let line = line_of(samples)?;
    let mut left_out = vec![];
    for (i, s) in samples.iter().enumerate() {
        let others: Vec<Sample> =
            samples.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, other)| *other).collect();
        left_out.push(error(&line_of(&others)?, s));
    }
    Some(Regression {
        system,
        size_fn: size_fn.to_owned(),
        two_point_max_percent: largest(&mut held_out.iter().copied()),
        line,
        max_percent: largest(&mut samples.iter().map(|s| error(&line, s))),
        left_out_max_percent: largest(&mut left_out.into_iter()),
        two_point_signs: sign_runs(&held_out).signs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'a>(v: &'a Verification, table: u8, system: &str, what: &str) -> &'a Check {
        let hit = v.checks.iter().find(|c| (c.table, c.system, c.what.as_str()) == (table, system, what));
        hit.unwrap_or_else(|| panic!("no check of Tab. {table} {system} {what}"))
    }

    fn near(a: f64, b: f64, half: f64) {
        assert!((a - b).abs() <= half * 1.000_001, "{a} is not {b}");
    }

    #[test]
    fn the_audit_stands() {
        let v = verify_paper();
        assert_eq!(v.unexpected, Vec::<String>::new());
        assert_eq!(v.curved_suites, 7);
        near(v.key_step_us[0], 19.8, 1e-9);
        near(v.key_step_us[1], 17.6, 1e-9);
        for (ours, expected) in v.falling_times_us.iter().zip([21.33, 20.90, 20.69, 20.39, 20.28]) {
            near(*ours, expected, 0.005);
        }
    }

    /// System, t_fix in µs, R_alg, verdicts of both.
    #[test]
    fn table_1_parameters() {
        use Verdict::{Differs, Reproduces};
        let v = verify_paper();
        for (system, fixed, rate, verdict) in [
            ("AH-sha1", 476.06, 32.751, Reproduces),
            ("AH-md5", 449.05, 43.008, Reproduces),
            ("ESP-des", 377.87, 13.481, Reproduces),
            ("ESP-3des", 393.93, 5.328, Reproduces),
            ("ESP-aes128", 410.23, 21.183, Differs),
            ("ESP-aes192", 429.66, 18.319, Reproduces),
            ("ESP-aes256", 446.10, 16.636, Differs),
        ] {
            let t = find(&v, 1, system, "t_fix us");
            near(t.ours.value, fixed, 0.005);
            assert_eq!(t.verdict, verdict, "{system}");
            let r = find(&v, 1, system, "R_alg");
            near(r.ours.value, rate, 0.0005);
            assert_eq!(r.verdict, Reproduces, "{system}");
        }
        for (system, own) in [("AH-sha1", 464.33), ("AH-md5", 440.12)] {
            let check = find(&v, 1, system, "t_fix us, own formula");
            near(check.ours.value, own, 0.005);
            assert_eq!(check.verdict, Differs);
        }
        assert_eq!(find(&v, 1, "ESP-des", "t_fix us").also, ["s2-esp8/1"]);
        assert_eq!(find(&v, 1, "ESP-aes192", "t_fix us").also, ["s2-esp16/1"]);
        assert_eq!(find(&v, 1, "ESP-aes256", "t_fix us").also, Vec::<String>::new());
    }

    #[test]
    fn table_2_predictions() {
        let v = verify_paper();
        let expected = [
            ("AH-sha1", [1.033, 6.770, 13.788]),
            ("AH-md5", [1.104, 7.485, 15.912]),
            ("ESP-des", [1.217, 5.967, 9.289]),
            ("ESP-3des", [1.020, 3.487, 4.487]),
            ("ESP-aes128", [1.162, 6.719, 11.983]),
            ("ESP-aes192", [1.102, 6.204, 10.803]),
            ("ESP-aes256", [1.057, 5.851, 10.045]),
        ];
        let wrong = [("ESP-3des", 2), ("ESP-aes128", 0), ("ESP-aes256", 2)];
        for (system, rates) in expected {
            for (i, (size, rate)) in [64, 512, 1420].into_iter().zip(rates).enumerate() {
                let check = find(&v, 2, system, &format!("R at {size} B"));
                near(check.ours.value, rate, 0.00051);
                assert_eq!(check.verdict == Verdict::Differs, wrong.contains(&(system, i)), "{system} {size}");
            }
        }
    }

    #[test]
    fn table_2_differences_that_do_not_follow() {
        let v = verify_paper();
        let wrong: Vec<(&str, &str, f64)> = v
            .checks
            .iter()
            .filter(|c| c.table == 2 && c.what.starts_with("difference") && c.verdict == Verdict::Differs)
            .map(|c| (c.system, c.printed, (c.ours.value * 100.0).round() / 100.0))
            .collect();
        let expected = [
            ("AH-sha1", "0.9", 1.18),
            ("AH-sha1", "1.6", 1.47),
            ("AH-sha1", "0.6", 0.71),
            ("ESP-des", "1.1", 0.90),
            ("ESP-3des", "1.2", 1.70),
            ("ESP-aes192", "1.1", 0.29),
        ];
        assert_eq!(wrong, expected);
    }

    #[test]
    fn tables_3_to_8() {
        use Verdict::{Differs, Reproduces, WithinRounding};
        let v = verify_paper();
        let rows: &[(u8, &str, &str, f64, f64, Verdict)] = &[
            (3, "EP80579 3des+sha1", "t_fix us", 13.571, 0.0005, Reproduces),
            (3, "EP80579 3des+sha1", "R_alg", 7785.0, 0.5, Differs),
            (3, "EP80579 3des+sha1", "R at 64 B", 37.54, 0.005, Reproduces),
            (3, "EP80579 3des+sha1", "R at 128 B", 74.71, 0.005, Reproduces),
            (3, "EP80579 3des+sha1", "R at 512 B", 290.5, 0.05, Reproduces),
            (3, "EP80579 3des+sha1", "R at 1024 B", 560.1, 0.05, Reproduces),
            (3, "EP80579 3des+sha1", "average difference", 0.725, 0.001, Differs),
            (4, "AES-NI GCM", "t_fix us", 4.954, 0.0005, Differs),
            (4, "AES-NI GCM", "R_alg", 1890.0, 0.5, Differs),
            (4, "AES-NI GCM", "R at 512 B", 575.2, 0.05, Differs),
            (5, "Cavium CN58XX", "t_fix us", 0.0917, 5e-5, Reproduces),
            (5, "Cavium CN58XX", "t_fix us, own formula", 0.0880, 5e-5, Differs),
            (5, "Cavium CN58XX", "R_alg", 25.87, 0.005, Reproduces),
            (5, "Cavium CN58XX", "R at 64 B", 4.542, 0.0005, Reproduces),
            (5, "Cavium CN58XX", "R at 128 B", 7.727, 0.0005, Reproduces),
            (5, "Cavium CN58XX", "R at 512 B", 16.301, 0.0005, Reproduces),
            (6, "pcrypt", "t_fix us", 3.533, 0.0005, WithinRounding),
            (6, "pcrypt", "R_alg", 2607.6, 0.05, Reproduces),
            (6, "pcrypt", "R at 110 B", 227.0, 0.05, Differs),
            (6, "pcrypt", "R at 1006 B", 1215.0, 0.5, Reproduces),
            (6, "pcrypt", "R at 1404 B", 1430.0, 0.5, Reproduces),
            (7, "PowerQUICC async", "t_fix us", 20.69, 0.005, WithinRounding),
            (7, "PowerQUICC async", "t_oh us", 8.263, 0.0005, Reproduces),
            (7, "PowerQUICC async", "R_alg", 626.3, 0.05, Reproduces),
            (7, "PowerQUICC async", "L_bp bytes", 972.6, 0.05, Differs),
            (7, "PowerQUICC async", "R at 64 B", 24.7, 0.05, Reproduces),
            (7, "PowerQUICC async", "R at 390 B", 150.8, 0.05, Reproduces),
            (7, "PowerQUICC async", "R at 512 B", 198.0, 0.05, Reproduces),
            (7, "PowerQUICC async", "R at 1280 B", 414.3, 0.05, Reproduces),
            (8, "OCF SSL aes128", "t_fix us", 414.62, 0.005, Reproduces),
            (8, "OCF SSL aes128", "R_alg", 23.517, 0.0005, Reproduces),
            (8, "OCF SSL aes128", "R at 256 B", 4.060, 0.0005, Reproduces),
            (8, "OCF SSL aes128", "R at 1024 B", 10.70, 0.005, Reproduces),
        ];
        for (table, system, what, ours, half, verdict) in rows {
            let check = find(&v, *table, system, what);
            near(check.ours.value, *ours, *half);
            assert_eq!(check.verdict, *verdict, "Tab. {table} {system} {what}: {check:?}");
        }
        let also = &find(&v, 3, "EP80579 3des+sha1", "t_fix us").also;
        assert!(also.contains(&"s2-esp4/1".to_owned()) && also.contains(&"s2-esp8/1".to_owned()), "{also:?}");
    }

    /// Claims of the notes: Table 3 with its printed rate, Table 4 with 97 and with its printed
    /// parameters, Table 7 with its printed fixed time.
    #[test]
    fn the_notes_are_true() {
        let printed = Synchronous { fixed_ns: 13_570.0, rate_mbps: 778.0 };
        for (len, mbps) in [(64.0, 36.0), (128.0, 69.0), (512.0, 217.0), (1024.0, 340.0)] {
            near(printed.throughput_mbps(len, len), mbps, 0.5);
        }
        let with_97 = Synchronous::through((64.0, time_ns(64.0, 97.0)), (1024.0, time_ns(1024.0, 882.0))).unwrap();
        near(with_97.fixed_ns, 5011.0, 0.5);
        near(with_97.rate_mbps, 1915.0, 0.5);
        for (len, mbps) in [(128.0, 184.6), (256.0, 336.8), (512.0, 572.9), (768.0, 747.5)] {
            near(with_97.throughput_mbps(len, len), mbps, 0.06);
        }
        let printed = Synchronous { fixed_ns: 5170.0, rate_mbps: 1993.0 };
        near(printed.throughput_mbps(1280.0, 1280.0), 993.0, 0.5);
        near(printed.throughput_mbps(1454.0, 1454.0), 1056.0, 1.0);
        let printed = Synchronous { fixed_ns: 447_200.0, rate_mbps: 16.63 };
        near(printed.throughput_mbps(1420.0, rounding("s2-esp16/1").bytes(1420.0)), 10.033, 0.0005);
        let line = Asynchronous { fixed_ns: 20_760.0, overhead_ns: 8_263.3, rate_mbps: 626.32 };
        near(line.breakpoint_bytes(), 978.0, 0.5);
    }

    /// Two-point held-out maximum, weighted least squares (µs, Mbps), its maximum, leave-one-out
    /// maximum.
    #[test]
    fn golden_regressions() {
        let v = verify_paper();
        for (system, two, fixed, rate, max, left_out) in [
            ("ESP-des", 1.43, 373.4, 13.37, 0.84, 1.38),
            ("ESP-3des", 1.78, 399.4, 5.375, 1.23, 2.16),
            ("ESP-aes128", 0.77, 408.6, 21.13, 0.59, 1.61),
            ("ESP-aes192", 0.61, 430.1, 18.28, 0.45, 0.80),
            ("ESP-aes256", 1.43, 444.9, 16.51, 1.29, 1.96),
            ("AH-sha1", 1.46, 465.2, 32.85, 1.53, 1.95),
            ("AH-md5", 1.75, 441.5, 43.34, 1.86, 2.54),
            ("EP80579 3des+sha1", 1.45, 13.68, 8976.0, 0.67, 1.41),
            ("AES-NI GCM", 4.21, 4.955, 1870.0, 2.87, 3.51),
            ("Cavium CN58XX", 1.80, 0.0934, 26_340.0, 1.36, 2.44),
            ("Cavium CN58XX, without the capped 1024 B", 1.25, 0.0944, 26_920.0, 0.85, 1.98),
            ("OCF SSL aes128", 1.71, 418.0, 23.67, 1.15, 1.92),
        ] {
            let r = v.regressions.iter().find(|r| r.system == system).unwrap();
            near(r.two_point_max_percent, two, 0.005);
            near(r.line.fixed_ns / 1e3 / fixed, 1.0, 5e-4);
            near(r.line.rate_mbps / rate, 1.0, 5e-4);
            near(r.max_percent, max, 0.005);
            near(r.left_out_max_percent, left_out, 0.005);
        }
        assert_eq!(v.regressions.len(), 12);
        // The paper's conclusion of 20 Gbit/s is a port limit: without it the rate is higher, and
        // so is the prediction.
        let line = v.regressions.iter().find(|r| r.system.starts_with("Cavium CN58XX,")).unwrap().line;
        near(line.throughput_mbps(1024.0, rounding("s2-esp4/1").bytes(1024.0)) / 1e3, 20.5, 0.06);
    }
}
