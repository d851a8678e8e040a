//! Figures of a study of sessions: sums and differences of what its trials have, by session.

use serde::Deserialize;

use super::analysis::{Folder, undisturbed, values};
use crate::campaign::Kind;
use crate::metric::Metric;
use crate::sessions::ROWS;
use crate::trial::{Direction, Trial};
use stats::Estimate;

/// Endpoint of a set-up.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum End {
    Initiator,
    Responder,
}

impl End {
    pub(super) const BOTH: [Self; 2] = [Self::Initiator, Self::Responder];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Initiator => "initiator",
            Self::Responder => "responder",
        }
    }
}

/// Exchange of a set-up.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Exchange {
    /// Phase 1, or all of IKEv2.
    First,
    Quick,
}

impl Exchange {
    const fn metric(self) -> Metric<'static> {
        match self {
            Self::First => Metric::FirstMessages,
            Self::Quick => Metric::QuickMessages,
        }
    }
}

/// A figure of set-ups. Subjects are whole names.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Quantity {
    /// Messages of an exchange. Exact.
    Messages { of: String, exchange: Exchange },
    /// Time of some operations of one end over that of others; of all without `over`.
    Rows {
        of: String,
        end: End,
        rows: Vec<String>,
        #[serde(default)]
        over: Vec<String>,
    },
    /// Cryptographic time of the initiator over that of the responder.
    Ends { of: String },
    /// Time of an operation of the responder over that of the set-up, both ends.
    OfWhole { of: String, row: String },
    /// How much longer the set-up takes than another one, both ends, in signature generations.
    Signatures { of: String, over: String },
    /// Simulated time that a set-up saves against another one, in round trips of so many
    /// milliseconds.
    RoundTrips { of: String, over: String, round_trip_ms: u32 },
    /// Cryptographic time of both ends over that of another subject.
    Cryptography { of: String, over: String },
    /// Cryptographic time of both ends over the elapsed time of a set-up through sockets.
    Share { of: String },
    /// Cryptographic time by the stopwatch over that by leaving it out, both ends.
    Methods { of: String },
    /// The same subject again over the first time, both ends.
    Again { of: String },
    /// Packets that cost one end as much as a set-up, beyond plain forwarding.
    Packets { of: String, subject: String, bytes: u32 },
}

/// Values by session, and whether they are exact.
pub(super) enum Found {
    Exact(Vec<f64>),
    Sessions(Vec<Vec<f64>>),
    /// Of two studies: the interval of the extremes of both, and the sessions of the shorter one.
    Combined(Estimate, usize),
}

impl Quantity {
    /// Subjects that the figure requires.
    pub(super) fn subjects(&self) -> Vec<&str> {
        match self {
            Self::Messages { of, .. }
            | Self::Rows { of, .. }
            | Self::Ends { of }
            | Self::OfWhole { of, .. }
            | Self::Share { of }
            | Self::Methods { of }
            | Self::Again { of }
            | Self::Packets { of, .. } => vec![of],
            Self::Signatures { of, over } | Self::RoundTrips { of, over, .. } | Self::Cryptography { of, over } => {
                vec![of, over]
            }
        }
    }

    pub(super) fn measure(&self, folder: &Folder) -> Option<Found> {
        let all = folder.of(Kind::Sessions);
        let of = |subject: &str| -> Vec<&Trial> {
            all.iter().filter(|trial| trial.subject == subject && !is_again(trial)).copied().collect()
        };
        let sessions = match self {
            Self::Messages { of: subject, exchange } => {
                let counts: Vec<f64> = of(subject).into_iter().filter_map(|t| value(t, exchange.metric())).collect();
                return (!counts.is_empty()).then_some(Found::Exact(counts));
            }
            Self::Packets { of: subject, subject: protected, bytes } => {
                return packets(folder, &of(subject), protected, *bytes);
            }
            Self::Rows { of: subject, end, rows, over } => values(&of(subject), |trial| {
                let over = if over.is_empty() { cryptography(trial, *end)? } else { sum(trial, *end, over)? };
                Some(sum(trial, *end, rows)? / over)
            }),
            Self::Ends { of: subject } => values(&of(subject), |trial| {
                Some(cryptography(trial, End::Initiator)? / cryptography(trial, End::Responder)?)
            }),
            Self::OfWhole { of: subject, row } => values(&of(subject), |trial| {
                Some(sum(trial, End::Responder, std::slice::from_ref(row))? / both(trial, "full")?)
            }),
            Self::Share { of: subject } => {
                values(&of(subject), |trial| Some(cryptography_of_both(trial)? / both(trial, "sockets")?))
            }
            Self::Methods { of: subject } => values(&of(subject), |trial| {
                Some(cryptography_of_both(trial)? / (both(trial, "full")? - both(trial, "skeleton")?))
            }),
            Self::Again { of: subject } => {
                let again: Vec<&Trial> = all.iter().filter(|t| t.subject == *subject && is_again(t)).copied().collect();
                pairs(&again, &of(subject), |again, first| Some(both(again, "full")? / both(first, "full")?))
            }
            Self::Signatures { of: subject, over } => pairs(&of(subject), &of(over), |one, other| {
                let sign = ["p1_sign".to_owned()];
                let signatures = End::BOTH.iter().filter_map(|end| sum(one, *end, &sign)).sum::<f64>() / 2.0;
                Some((both(one, "full")? - both(other, "full")?) / signatures)
            }),
            Self::RoundTrips { of: subject, over, round_trip_ms } => pairs(&of(subject), &of(over), |one, other| {
                let elapsed = |trial| value(trial, Metric::ElapsedAt(*round_trip_ms));
                Some((elapsed(other)? - elapsed(one)?) / f64::from(*round_trip_ms))
            }),
            Self::Cryptography { of: subject, over } => pairs(&of(subject), &of(over), |one, other| {
                Some(cryptography_of_both(one)? / cryptography_of_both(other)?)
            }),
        };
        (!sessions.is_empty()).then_some(Found::Sessions(sessions))
    }
}

/// The second time of a subject that is measured twice in each round.
pub(super) fn is_again(trial: &Trial) -> bool {
    trial.measured.values.get(Metric::Arm) == Some(1.0)
}

pub(super) fn value(trial: &Trial, metric: Metric<'_>) -> Option<f64> {
    trial.measured.values.get(metric)
}

/// Ticks of both ends in a variant of the set-up: `full`, `skeleton`, `timed`, `sockets`.
pub(super) fn both(trial: &Trial, variant: &str) -> Option<f64> {
    let of = |end: End| value(trial, Metric::Ticks(&format!("{variant}.{}", end.name())));
    Some(of(End::Initiator)? + of(End::Responder)?)
}

/// Ticks of some operations of an end.
pub(super) fn sum(trial: &Trial, end: End, rows: &[String]) -> Option<f64> {
    rows.iter().map(|row| value(trial, Metric::Ticks(&format!("{}.{row}", end.name())))).sum()
}

/// Ticks of all operations of an end.
pub(super) fn cryptography(trial: &Trial, end: End) -> Option<f64> {
    ROWS.iter().map(|(row, _)| value(trial, Metric::Ticks(&format!("{}.{row}", end.name())))).sum()
}

pub(super) fn cryptography_of_both(trial: &Trial) -> Option<f64> {
    Some(cryptography(trial, End::Initiator)? + cryptography(trial, End::Responder)?)
}

/// A figure of two trials of the same round, by session.
fn pairs(a: &[&Trial], b: &[&Trial], figure: impl Fn(&Trial, &Trial) -> Option<f64>) -> Vec<Vec<f64>> {
    let round = |trial: &Trial| (trial.session, trial.round);
    values(a, |one| {
        let other = b.iter().find(|other| round(other) == round(one))?;
        figure(one, other)
    })
}

/// Ticks that one end spends on a packet and its reply more than with plain forwarding, divided by
/// two: the study of packets has both directions of one host.
pub(super) fn extra_per_packet(folder: &Folder, subject: &str, bytes: u32) -> Option<(Estimate, usize)> {
    let trials = folder.of(Kind::Sizes);
    let of = |subject: &str, direction: Direction| {
        let mine: Vec<&Trial> = trials
            .iter()
            .filter(|t| t.subject == subject && t.direction == direction && t.size == Some(bytes))
            .copied()
            .collect();
        let sessions = values(&mine, super::analysis::ticks);
        (!sessions.is_empty()).then(|| (undisturbed(&sessions), sessions.len()))
    };
    let extra = |direction| {
        let ((with, sessions), (plain, _)) = (of(subject, direction)?, of("plain", direction)?);
        Some((
            Estimate { value: with.value - plain.value, low: with.low - plain.high, high: with.high - plain.low },
            sessions,
        ))
    };
    let ((out, sessions), (back, _)) = (extra(Direction::Out)?, extra(Direction::In)?);
    let mean = |read: fn(&Estimate) -> f64| f64::midpoint(read(&out), read(&back));
    Some((Estimate { value: mean(|e| e.value), low: mean(|e| e.low), high: mean(|e| e.high) }, sessions))
}

/// Set-up of the responder over the extra cost of a packet, with the extremes of both intervals:
/// they are of different processes.
fn packets(folder: &Folder, set_ups: &[&Trial], subject: &str, bytes: u32) -> Option<Found> {
    let sessions = values(set_ups, |trial| value(trial, Metric::Ticks("full.responder")));
    let (extra, of_packets) = extra_per_packet(folder, subject, bytes)?;
    if sessions.is_empty() {
        return None;
    }
    let set_up = undisturbed(&sessions);
    Some(Found::Combined(over(set_up, extra), sessions.len().min(of_packets)))
}

/// A quotient with the extremes of both intervals.
pub(super) fn over(a: Estimate, b: Estimate) -> Estimate {
    Estimate { value: a.value / b.value, low: a.low / b.high, high: a.high / b.low }
}

/// Changes the trials of a run so that a figure has a value.
#[cfg(test)]
pub(super) fn plant(folder: &mut Folder, quantity: &Quantity, wanted: f64) {
    let names: Vec<String> =
        folder.campaign.studies.iter().filter(|s| s.kind == Kind::Sessions).map(|s| s.name.clone()).collect();
    let now = match quantity.measure(folder) {
        Some(Found::Exact(values)) => stats::median(&values),
        Some(Found::Sessions(sessions)) => super::analysis::over_sessions(&sessions).value,
        Some(Found::Combined(estimate, _)) => estimate.value,
        None => f64::NAN,
    };
    // Reference of a pair, by session and round.
    let other: Vec<Trial> = match quantity {
        Quantity::Signatures { over, .. } | Quantity::RoundTrips { over, .. } => {
            folder.trials.iter().filter(|t| t.subject == *over && !is_again(t)).cloned().collect()
        }
        _ => Vec::new(),
    };
    let of = quantity.subjects()[0].to_owned();
    let again = matches!(quantity, Quantity::Again { .. });
    let mine = |t: &&mut Trial| names.contains(&t.study) && t.subject == of && is_again(t) == again;
    for trial in folder.trials.iter_mut().filter(mine) {
        let read = trial.clone();
        let set = &mut trial.measured.values;
        let mut scale = |pick: &dyn Fn(&str) -> bool, factor: f64| {
            set.scale(pick, factor);
        };
        let is_row = |name: &str, end: &str, row: &str| name == format!("{end}.{row}_ticks");
        let partner = other.iter().find(|t| (t.session, t.round) == (read.session, read.round));
        match quantity {
            Quantity::Messages { exchange, .. } => {
                set.set(exchange.metric(), wanted);
            }
            Quantity::Rows { end, rows, over, .. } => {
                let mine = sum(&read, *end, rows).unwrap();
                let all = if over.is_empty() { cryptography(&read, *end) } else { sum(&read, *end, over) }.unwrap();
                let inside = over.is_empty() || rows.iter().all(|row| over.contains(row));
                let target = if inside { wanted / (1.0 - wanted) * (all - mine) } else { wanted * all };
                scale(&|name| rows.iter().any(|row| is_row(name, end.name(), row)), target / mine);
            }
            Quantity::Ends { .. } => {
                scale(&|name| ROWS.iter().any(|(row, _)| is_row(name, "initiator", row)), wanted / now);
            }
            Quantity::OfWhole { .. } => scale(&|name| name.starts_with("full."), now / wanted),
            Quantity::Share { .. } => scale(&|name| name.starts_with("sockets."), now / wanted),
            Quantity::Again { .. } => scale(&|name| name.starts_with("full."), wanted / now),
            Quantity::Packets { .. } => scale(&|name| name == "full.responder_ticks", wanted / now),
            Quantity::Cryptography { .. } => {
                let of_row =
                    |name: &str| End::BOTH.iter().any(|end| ROWS.iter().any(|(row, _)| is_row(name, end.name(), row)));
                scale(&of_row, wanted / now);
            }
            Quantity::Methods { .. } => {
                let skeleton = both(&read, "full").unwrap() - cryptography_of_both(&read).unwrap() / wanted;
                set.set(Metric::Ticks("skeleton.initiator"), skeleton);
                set.set(Metric::Ticks("skeleton.responder"), 0.0);
            }
            Quantity::Signatures { .. } => {
                let sign = ["p1_sign".to_owned()];
                let signature = End::BOTH.iter().map(|end| sum(&read, *end, &sign).unwrap()).sum::<f64>() / 2.0;
                let full = both(partner.unwrap(), "full").unwrap() + wanted * signature;
                set.set(Metric::Ticks("full.initiator"), full);
                set.set(Metric::Ticks("full.responder"), 0.0);
            }
            Quantity::RoundTrips { round_trip_ms, .. } => {
                let elapsed = Metric::ElapsedAt(*round_trip_ms);
                let other = value(partner.unwrap(), elapsed).unwrap();
                set.set(elapsed, other - wanted * f64::from(*round_trip_ms));
            }
        }
    }
}
