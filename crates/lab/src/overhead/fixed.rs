//! The fixed cost of a packet, by the no-op path and by a line through sizes.

use super::study::SubjectCost;
use crate::trial::Direction;

/// Both answers for one subject and direction, in ticks per packet.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct FixedCost {
    /// Name of the subject.
    pub subject: String,
    /// Direction.
    pub direction: Direction,
    /// Intercept of the line through the whole path.
    pub regression: f64,
    /// The path with the null engine (mean over sizes), and where the line through the engine alone
    /// meets size 0.
    pub skeleton: f64,
    /// The part of `skeleton` that is the engine's.
    pub engine: f64,
    /// Cost per byte of the path with the null engine, minus that of a call of the engine: part of
    /// the fixed cost of the no-op path, but not of the line.
    pub slope_without_engine: f64,
    /// Cost of the whole path at the largest size.
    pub largest: f64,
    /// `skeleton` over `regression`, less one, in percent.
    pub difference_percent: f64,
}

impl FixedCost {
    /// Explanation of the difference; `None` if both agree within five percent.
    pub fn explanation(&self) -> Option<String> {
        if self.difference_percent.abs() <= 5.0 {
            return None;
        }
        let missing = self.regression - self.skeleton;
        let mut words = format!(
            "the line gives {:.0} ticks {} than the no-op path; {:.0} of the latter are the fixed part of the engine; the path \
             without an engine grows by {:.3} ticks per byte",
            missing.abs(),
            if missing > 0.0 { "more" } else { "less" },
            self.engine,
            self.slope_without_engine,
        );
        if self.regression < self.largest / 20.0 {
            words += &format!(
                "; the largest size costs {:.0}: an error of 1 % there moves either line's end by as much as {:.0}",
                self.largest,
                self.largest / 100.0
            );
        }
        Some(words)
    }
}

/// Costs of one size for the comparison. Ticks per packet.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeCost {
    /// Name of the subject.
    pub subject: String,
    /// Direction.
    pub direction: Direction,
    /// Inner packet in bytes.
    pub size: f64,
    /// The whole path.
    pub path: f64,
    /// The path with the null engine.
    pub path_null: f64,
    /// The engine alone.
    pub engine: f64,
    /// A call of the null engine.
    pub engine_call: f64,
}

impl From<&SubjectCost> for SizeCost {
    fn from(row: &SubjectCost) -> Self {
        Self {
            subject: row.subject.clone(),
            direction: row.direction,
            size: f64::from(row.size),
            path: row.path.value,
            path_null: row.path_null.value,
            engine: row.engine.value,
            engine_call: row.engine_call.value,
        }
    }
}

/// Compares both for every subject and direction of `costs` that was measured at three sizes or
/// more.
pub fn fixed_costs(costs: &[SizeCost]) -> Vec<FixedCost> {
    let mut keys: Vec<(&str, Direction)> = Vec::new();
    for cost in costs {
        if !keys.contains(&(&cost.subject, cost.direction)) {
            keys.push((&cost.subject, cost.direction));
        }
    }
    keys.into_iter().filter_map(|(subject, direction)| fixed_cost(costs, subject, direction)).collect()
}

fn fixed_cost(costs: &[SizeCost], subject: &str, direction: Direction) -> Option<FixedCost> {
    let of: Vec<&SizeCost> =
        costs.iter().filter(|cost| cost.subject == subject && cost.direction == direction).collect();
    if of.len() < 3 {
        return None;
    }
    let column = |value: fn(&SizeCost) -> f64| of.iter().map(|cost| (cost.size, value(cost))).collect::<Vec<_>>();
    let (regression, _) = line(&column(|cost| cost.path))?;
    let (engine, _) = line(&column(|cost| cost.engine - cost.engine_call))?;
    let (_, slope_without_engine) = line(&column(|cost| cost.path_null))?;
    let null: f64 = of.iter().map(|cost| cost.path_null).sum::<f64>() / of.len() as f64;
    let skeleton = null + engine;
    let difference_percent = (skeleton / regression - 1.0) * 100.0;
    let largest = of.iter().map(|cost| cost.path).fold(0.0, f64::max);
    Some(FixedCost {
        subject: subject.to_owned(),
        direction,
        regression,
        skeleton,
        engine,
        slope_without_engine,
        largest,
        difference_percent,
    })
}

/// Intercept and slope of the line with the least squares of relative errors.
fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let (mut w, mut wx, mut wy, mut wxx, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for &(x, y) in points {
        let weight = 1.0 / (y * y).max(f64::MIN_POSITIVE);
        w += weight;
        wx += weight * x;
        wy += weight * y;
        wxx += weight * x * x;
        wxy += weight * x * y;
    }
    let determinant = w * wxx - wx * wx;
    let solvable = determinant.abs() > f64::EPSILON * w * wxx;
    solvable.then(|| ((wxx * wy - wx * wxy) / determinant, (w * wxy - wx * wy) / determinant))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(size: u16, path: f64, path_null: f64, engine: f64) -> SizeCost {
        let (subject, direction, size) = ("s".into(), Direction::Out, f64::from(size));
        SizeCost { subject, direction, size, path, path_null, engine, engine_call: 10.0 }
    }

    #[test]
    fn a_line_is_found_again() {
        let (a, b) = line(&[(64.0, 164.0), (512.0, 612.0), (1400.0, 1500.0)]).unwrap();
        assert!((a - 100.0).abs() < 1e-6 && (b - 1.0).abs() < 1e-9, "{a} {b}");
        assert_eq!(line(&[(64.0, 1.0), (64.0, 2.0)]), None);
    }

    #[test]
    fn agreement_needs_no_words_and_disagreement_gets_them() {
        let size = |size: u16| f64::from(size);
        let agree: Vec<SizeCost> = [64, 512, 1400].map(|s| row(s, 150.0 + size(s), 70.0, 90.0 + size(s))).into();
        let cost = &fixed_costs(&agree)[0];
        assert!((cost.regression - 150.0).abs() < 1e-6 && (cost.skeleton - 150.0).abs() < 1e-6, "{cost:?}");
        assert_eq!(cost.explanation(), None);
        let differ: Vec<SizeCost> = [64, 512, 1400].map(|s| row(s, 200.0 + size(s), 70.0, 90.0 + size(s))).into();
        let words = fixed_costs(&differ)[0].explanation().unwrap();
        assert!(words.starts_with("the line gives 50 ticks more") && !words.contains("1 %"), "{words}");
        let steep: Vec<SizeCost> =
            [64, 512, 1400].map(|s| row(s, 100.0 + 90.0 * size(s), 70.0, 90.0 + 90.0 * size(s))).into();
        let words = fixed_costs(&steep)[0].explanation().unwrap();
        assert!(words.ends_with("moves either line's end by as much as 1261"), "{words}");
        assert!(fixed_costs(&differ[..2]).is_empty());
    }
}
