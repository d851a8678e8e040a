//! Different, equivalent, or inconclusive.

use super::ratio::{Ratio, Unit};

/// Verdict of a comparison.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The difference is larger than the margin allows or, with no margin, larger than noise; its
    /// sign is known.
    Different,
    /// Any difference is smaller than the predefined margin.
    Equivalent,
    /// Neither. More sessions, or a quieter machine, may help.
    Inconclusive,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Different => "different",
            Self::Equivalent => "equivalent",
            Self::Inconclusive => "inconclusive",
        })
    }
}

/// Thresholds of a verdict. Both are logarithms of ratios; 0.01 is about 1 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Noise floor: difference of a variant from itself ([`Ratio::reach`] of an A/A comparison).
    pub floor: f64,
    /// Predefined margin of equivalence. `None`: equivalence is not tested.
    pub margin: Option<f64>,
}

/// A verdict with its reason.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Judged {
    /// The verdict.
    pub verdict: Verdict,
    /// In one clause, why.
    pub why: String,
    /// Chance of so large a difference if the true one were noise; corrected for the number of
    /// comparisons.
    pub p_different: f64,
    /// Chance of so small a difference if the true one were the margin (TOST); `None` without a
    /// margin.
    pub p_equivalent: Option<f64>,
}

/// The error rate that claims keep to, over all comparisons judged together.
const ALPHA: f64 = 0.05;

/// Judges one comparison alone.
pub fn judge(ratio: &Ratio, limits: Limits) -> Judged {
    judge_all(&[(ratio, limits)]).remove(0)
}

/// Judges comparisons together: the more there are, the less likely it must be that each differs by
/// chance (Holm).
///
/// - *Equivalent*: the noise floor is below the margin, and TOST rejects a difference of the
///   margin.
/// - *Different*: the 95 % interval is outside the noise floor on one side, and the corrected
///   chance of that is below 5 %.
/// - *Inconclusive*: everything else, and always for runs of one session each that were not
///   measured side by side: what changed between them is unknown.
///
/// A difference that is certain but smaller than the margin counts as equivalent: by definition of
/// the margin.
pub fn judge_all(comparisons: &[(&Ratio, Limits)]) -> Vec<Judged> {
    let chances: Vec<f64> = comparisons.iter().map(|(ratio, limits)| ratio.p_beyond(limits.floor)).collect();
    comparisons.iter().zip(holm(&chances)).map(|((ratio, limits), p)| decide(ratio, *limits, p)).collect()
}

fn decide(ratio: &Ratio, limits: Limits, p_different: f64) -> Judged {
    let p_equivalent = limits.margin.map(|margin| ratio.p_equivalent(margin));
    let (low, high) = (ratio.ratio.low.ln(), ratio.ratio.high.ln());
    let outside = low > limits.floor || high < -limits.floor;
    let percent = |log: f64| format!("{:.2} %", 100.0 * log.exp_m1());
    let blind = !ratio.paired && ratio.unit == Unit::Rounds;
    let (verdict, why) = match (limits.margin, p_equivalent) {
        _ if blind => (
            Verdict::Inconclusive,
            "one session each, measured one after the other: what changed between them is unknown".into(),
        ),
        (Some(margin), Some(p)) if p < ALPHA && limits.floor <= margin => {
            (Verdict::Equivalent, format!("any difference is below the margin of {}", percent(margin)))
        }
        _ if outside && p_different < ALPHA && limits.floor == 0.0 => {
            (Verdict::Different, "the interval excludes 1".into())
        }
        _ if outside && p_different < ALPHA => {
            (Verdict::Different, format!("the interval is outside the noise floor of ±{}", percent(limits.floor)))
        }
        (Some(margin), _) if limits.floor > margin => (
            Verdict::Inconclusive,
            format!("the noise floor of ±{} is above the margin of {}", percent(limits.floor), percent(margin)),
        ),
        _ if outside => (Verdict::Inconclusive, "not enough, for so many comparisons at once".into()),
        _ if limits.floor == 0.0 => (Verdict::Inconclusive, "the interval contains 1".into()),
        _ => {
            (Verdict::Inconclusive, format!("the interval reaches into the noise floor of ±{}", percent(limits.floor)))
        }
    };
    Judged { verdict, why, p_different, p_equivalent }
}

/// Chances corrected for their number by Holm's method: the chance that any claim of the family is
/// wrong stays below the level that each corrected value is compared with.
pub fn holm(chances: &[f64]) -> Vec<f64> {
    let n = chances.len();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| chances[*a].total_cmp(&chances[*b]));
    let (mut corrected, mut largest) = (vec![1.0; n], 0.0f64);
    for (rank, &i) in order.iter().enumerate() {
        largest = largest.max(chances[i] * (n - rank) as f64).min(1.0);
        corrected[i] = largest;
    }
    corrected
}

/// Chances corrected by Benjamini and Hochberg's method: the expected share of wrong claims among
/// all claims stays below the level. For screening many series; verdicts use [`holm`].
pub fn benjamini_hochberg(chances: &[f64]) -> Vec<f64> {
    let n = chances.len();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| chances[*b].total_cmp(&chances[*a]));
    let (mut corrected, mut smallest) = (vec![1.0; n], 1.0f64);
    for (rank, &i) in order.iter().enumerate() {
        smallest = smallest.min(chances[i] * n as f64 / (n - rank) as f64);
        corrected[i] = smallest;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::super::{Rng, paired, unpaired};
    use super::*;

    fn around(log: f64, spread: f64, sessions: usize, rng: &mut Rng) -> Ratio {
        // Four uniform values are about normal.
        let mut noise = || (0..4).map(|_| rng.unit() - 0.5).sum::<f64>() / 2.0;
        let units: Vec<Vec<f64>> = (0..sessions).map(|_| vec![log + spread * noise()]).collect();
        paired(&units, rng).expect("enough sessions")
    }

    fn verdict(log: f64, spread: f64, floor: f64, margin: Option<f64>) -> Verdict {
        judge(&around(log, spread, 10, &mut Rng::new(2)), Limits { floor, margin }).verdict
    }

    #[test]
    fn three_verdicts() {
        assert_eq!(verdict(0.02, 0.006, 0.004, Some(0.01)), Verdict::Different);
        assert_eq!(verdict(-0.02, 0.006, 0.004, None), Verdict::Different);
        assert_eq!(verdict(0.001, 0.006, 0.004, Some(0.01)), Verdict::Equivalent);
        assert_eq!(verdict(0.001, 0.006, 0.004, None), Verdict::Inconclusive);
        assert_eq!(verdict(0.01, 0.006, 0.004, Some(0.01)), Verdict::Different);
        assert_eq!(verdict(0.01, 0.04, 0.01, Some(0.01)), Verdict::Inconclusive);
    }

    #[test]
    fn a_certain_difference_below_the_margin_does_not_matter() {
        assert_eq!(verdict(0.005, 0.001, 0.001, Some(0.01)), Verdict::Equivalent);
        assert_eq!(verdict(0.005, 0.001, 0.001, None), Verdict::Different);
    }

    #[test]
    fn noise_above_the_margin_makes_no_winner_and_no_equivalence() {
        let judged = judge(&around(0.001, 0.002, 10, &mut Rng::new(2)), Limits { floor: 0.03, margin: Some(0.01) });
        assert_eq!(judged.verdict, Verdict::Inconclusive);
        assert!(judged.why.contains("noise floor of ±3.05 % is above the margin of 1.01 %"), "{}", judged.why);
    }

    #[test]
    fn one_session_each_measured_one_after_the_other_is_no_difference() {
        let side = |log: f64| vec![(0..20).map(|i| log + 1e-4 * f64::from(i % 5)).collect::<Vec<f64>>()];
        let ratio = unpaired(&side(0.0), &side(0.07), &mut Rng::new(1)).expect("twenty rounds");
        let judged = judge(&ratio, Limits { floor: 0.001, margin: Some(0.01) });
        assert_eq!(judged.verdict, Verdict::Inconclusive);
        assert!(judged.why.starts_with("one session each"), "{}", judged.why);
    }

    /// 100 families of four comparisons in which nothing differs and the floor is 0: a family with
    /// any claim is rare.
    #[test]
    fn families_of_comparisons_keep_to_one_error_rate() {
        let mut rng = Rng::new(8);
        let wrong = (0..100)
            .filter(|_| {
                let ratios: Vec<Ratio> = (0..4).map(|_| around(0.0, 0.01, 6, &mut rng)).collect();
                let family: Vec<(&Ratio, Limits)> =
                    ratios.iter().map(|r| (r, Limits { floor: 0.0, margin: None })).collect();
                judge_all(&family).iter().any(|j| j.verdict == Verdict::Different)
            })
            .count();
        assert!(wrong <= 11, "{wrong} of 100");
    }

    /// Holm's own arithmetic, and SciPy 1.17: scipy.stats.false_discovery_control([.01, .02, .03,
    /// .04, .2]).
    #[test]
    fn corrections() {
        let close = |a: Vec<f64>, b: [f64; 5]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(close(holm(&[0.01, 0.02, 0.03, 0.04, 0.2]), [0.05, 0.08, 0.09, 0.09, 0.2]));
        assert!(close(holm(&[0.2, 0.04, 0.03, 0.02, 0.01]), [0.2, 0.09, 0.09, 0.08, 0.05]));
        assert!(close(benjamini_hochberg(&[0.01, 0.02, 0.03, 0.04, 0.2]), [0.05, 0.05, 0.05, 0.05, 0.2]));
        assert!(holm(&[]).is_empty());
    }
}
