//! Search goals (RFC 9971 §4.6) and their codes.

use std::fmt;
use std::str::FromStr;

/// Criterion for a load that a subject sustains. Durations in seconds, ratios from 0 to 1.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Goal {
    /// Name of a preset, or the code.
    pub name: String,
    /// Goal Final Trial Duration.
    pub final_s: f64,
    /// Goal Duration Sum.
    pub sum_s: f64,
    /// Goal Loss Ratio.
    pub loss: f64,
    /// Goal Exceed Ratio: the share of time in which trials may lose more.
    pub exceed: f64,
    /// Goal Width: the relative distance of the bounds at which a search may stop.
    pub width: f64,
    /// Goal Initial Trial Duration: how short the first trials are.
    pub initial_s: f64,
}

/// Name, code, and width in percent of the goals that have a name.
const PRESETS: [(&str, &str, f64); 5] = [
    // Unconditionally compliant with RFC 2544 §24.
    ("rfc2544", "60f60d0l0e", 0.5),
    // ETSI TST 009 §12.3.3 with max(r) = 2.
    ("tst009", "60f120d0l50e", 0.5),
    // What FD.io CSIT reports as NDR and PDR.
    ("ndr", "1f21d0l50e", 0.5),
    ("pdr", "1f21d0.5l50e", 0.5),
    // For machines that are shared.
    ("short", "0.2f6d0.5l50e", 0.5),
];

/// Reason why a text is not a goal.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum GoalError {
    #[error(
        "'{0}' is not a goal; use rfc2544, tst009, ndr, pdr, short, or a code such as 1f21d0.5l50e (s of a trial, s in all, % loss, % exceed)"
    )]
    Unknown(String),
    #[error("goal '{0}': {1}")]
    Range(String, &'static str),
}

impl Goal {
    /// Every goal that has a name.
    pub fn presets() -> Vec<Self> {
        PRESETS.iter().map(|(name, ..)| name.parse().expect("presets are goals")).collect()
    }

    /// Durations, loss and exceed ratio in percent: `60f60d0l0e`.
    pub fn code(&self) -> String {
        // Percentages are made from ratios: without rounding 0.5 % would be 0.5000000000000001.
        let percent = |ratio: f64| (ratio * 1e8).round() / 1e6;
        format!("{}f{}d{}l{}e", self.final_s, self.sum_s, percent(self.loss), percent(self.exceed))
    }

    fn checked(self, text: &str) -> Result<Self, GoalError> {
        let refuse = |why| Err(GoalError::Range(text.to_owned(), why));
        let finite = [self.final_s, self.sum_s, self.loss, self.exceed].iter().all(|value| value.is_finite());
        if !finite || self.final_s <= 0.0 || self.final_s > 3600.0 {
            refuse("a trial takes more than 0 and at most 3600 s")
        } else if self.sum_s < self.final_s || self.sum_s > 86_400.0 {
            refuse("all trials at one load take at least as long as one, and at most a day")
        } else if !(0.0..1.0).contains(&self.loss) {
            refuse("loss is 0 to below 100 %")
        } else if !(0.0..1.0).contains(&self.exceed) {
            refuse("the exceed ratio is 0 to below 100 %")
        } else {
            Ok(self)
        }
    }
}

impl FromStr for Goal {
    type Err = GoalError;

    /// A name or a code. If a code has no width, it is half a percent, or the loss ratio if that is
    /// larger.
    fn from_str(text: &str) -> Result<Self, GoalError> {
        let preset = PRESETS.iter().find(|(name, ..)| *name == text);
        let code = preset.map_or(text, |(_, code, _)| code);
        let unknown = || GoalError::Unknown(text.to_owned());
        let mut rest = code;
        let mut part = |letter: char| {
            let (number, after) = rest.split_once(letter)?;
            rest = after;
            number.parse::<f64>().ok()
        };
        let parts = (part('f'), part('d'), part('l'), part('e'));
        let (Some(final_s), Some(sum_s), Some(loss), Some(exceed)) = parts else { return Err(unknown()) };
        if !rest.is_empty() {
            return Err(unknown());
        }
        let (loss, exceed) = (loss / 100.0, exceed / 100.0);
        let width = preset.map_or(0.5, |(.., width)| *width) / 100.0;
        let goal = Self {
            name: text.to_owned(),
            final_s,
            sum_s,
            loss,
            exceed,
            width: width.max(loss),
            initial_s: (final_s / 8.0).clamp(final_s.min(0.02), final_s.min(1.0)),
        };
        goal.checked(text)
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_codes_of_their_documents() {
        let codes: Vec<_> = Goal::presets().iter().map(Goal::code).collect();
        assert_eq!(codes, ["60f60d0l0e", "60f120d0l50e", "1f21d0l50e", "1f21d0.5l50e", "0.2f6d0.5l50e"]);
    }

    #[test]
    fn codes_read_back() {
        for code in ["1f120d0.5l50e", "60f60d0.5l20e", "0.05f1d0.001l0e"] {
            assert_eq!(code.parse::<Goal>().unwrap().code(), code);
        }
        assert_eq!("1f120d.5l50e".parse::<Goal>().unwrap().loss, 0.005);
        for bad in ["", "fast", "1f2d3l", "1f2d3l4ex", "1f2d3l4", "f2d3l4e"] {
            assert!(matches!(bad.parse::<Goal>(), Err(GoalError::Unknown(_))), "{bad}");
        }
        for bad in ["0f1d0l0e", "2f1d0l0e", "1f1d100l0e", "1f1d0l100e", "1f1d-1l0e", "1f1dNaNl0e", "1finfd0l0e"] {
            assert!(matches!(bad.parse::<Goal>(), Err(GoalError::Range(..))), "{bad}");
        }
    }
}
