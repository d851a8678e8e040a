//! Claims of the papers, as predicates on the measurements of a run. Every claim has its own
//! subjects, size, direction and bounds, which were written down before the run: no verdict is a
//! constant.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::analysis::{Folder, costs, log_ratios, over_sessions, ticks, values, way};
use super::checklist::Verdict;
use super::figures::{Cores, EnginePart, Line, figure_by_session};
use super::sessions::{Found, Quantity};
use super::transfers;
use crate::campaign::Kind;
use crate::cores::{Scheduler, Set};
use crate::metric::Metric;
use crate::trial::{Direction, Place, Trial};
use stats::{Estimate, median};

/// One claim: a figure and the open interval that should contain it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Claim {
    /// The claim in words, with its bounds.
    says: String,
    figure: Figure,
    #[serde(default = "minus_infinity")]
    above: f64,
    #[serde(default = "infinity")]
    below: f64,
}

fn minus_infinity() -> f64 {
    f64::NEG_INFINITY
}

fn infinity() -> f64 {
    f64::INFINITY
}

/// A figure of a run. `*` in a subject matches any text; the same text in both subjects of a
/// comparison.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Figure {
    /// Ticks per packet of a subject over those of another one, within rounds.
    Ticks { of: String, over: String, bytes: u32, direction: Direction, study: Study },
    /// Throughput in bit/s at the second size over that at the first.
    Growth { of: String, bytes: [u32; 2], direction: Direction },
    /// Ticks per byte between the second and third size over those between the first and second.
    Slopes { of: String, bytes: [u32; 3], direction: Direction },
    /// The largest error of a straight line at the sizes that it was fitted to, as a share.
    LineError { of: String, direction: Direction },
    /// The part of a packet's time that does not depend on its size, as a share.
    FixedShare { of: String, bytes: u32, direction: Direction },
    /// The share of sizes at which a line that has not seen them is less than `percent` off.
    Unseen { percent: f64 },
    /// Packets per second on all cores over those on one, divided by the number of cores.
    SpeedUpPerCore { set: Set },
    /// Packets per second of a set of SAs over those of another one, on all cores.
    Sets { of: Set, over: Set },
    /// Packets per second of the pipeline over those of run to completion, on all cores.
    Pipeline { set: Set },
    /// The model of an asynchronous engine.
    Engine(EnginePart),
    /// Bytes on the wire more than the inner packet has or, with `over`, than another subject
    /// needs. Exact.
    WireBytes { of: String, over: Option<String> },
    /// The share of a stage in the time of a packet.
    Stage { stage: String, bytes: u32, direction: Direction },
    /// The path without cryptography and the bare engine, together, over the whole path.
    PartsOverWhole { bytes: u32, direction: Direction },
    /// Time to rekey an IKE SA over the time to rekey a Child SA.
    RekeyIkeOverChild,
    /// Packets of a size that take as much time as the set-up of their IKE SA and Child SA.
    BreakEven { of: String, bytes: u32 },
    /// Bytes of memory of an SA at the receiver over those of another subject. Exact.
    ReceiverMemory { of: String, over: String },
    /// Median round trip of transport mode over that of tunnel mode, between hosts.
    RoundTrip { bytes: u32 },
    /// Throughput, or processor time per bit, of TCP through a subject over another one.
    Transfer { of: String, over: String, figure: transfers::Figure },
    /// Messages of the key exchange of a subject over those of another one. Exact.
    SetUpMessages { of: String, over: String },
    /// A figure of the set-up of sessions.
    Session(Quantity),
}

/// Studies that measure ticks per packet of several subjects.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Study {
    Sizes,
    Modes,
}

impl Study {
    fn kind(self) -> Kind {
        match self {
            Self::Sizes => Kind::Sizes,
            Self::Modes => Kind::Modes,
        }
    }
}

/// A figure as a run has it.
struct Measured {
    estimate: Estimate,
    /// Processes that it was measured in; an exact value needs one.
    sessions: usize,
    exact: bool,
}

impl Measured {
    fn over(sessions: &[Vec<f64>], back: fn(f64) -> f64) -> Option<Self> {
        let estimate = over_sessions(sessions).map(back);
        estimate.value.is_finite().then_some(Self { estimate, sessions: sessions.len(), exact: false })
    }

    /// The range of values that should be equal.
    fn exact(values: &[f64]) -> Option<Self> {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (!values.is_empty()).then(|| Self {
            estimate: Estimate { value: median(values), low, high },
            sessions: 1,
            exact: true,
        })
    }
}

/// Result of a claim for a run.
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    /// The claim, the figure with its interval, and the verdict, in words.
    pub(super) text: String,
}

impl Claim {
    /// Judges the claim by a run.
    pub(super) fn judge(&self, folder: &Folder) -> Judged {
        let Some(measured) = self.figure.measure(folder) else {
            let text = format!("{}: not measured (needs {})", self.says, self.figure.needs());
            return Judged { verdict: Verdict::NotMeasured, text };
        };
        let verdict = self.verdict(&measured);
        let Estimate { value, low, high } = measured.estimate;
        let found = if measured.exact && low == high {
            short(value)
        } else {
            format!("{} [{}, {}]", short(value), short(low), short(high))
        };
        let why = if verdict == Verdict::Inconclusive && !measured.exact && measured.sessions < 2 {
            ", one session only"
        } else if high == f64::INFINITY {
            ", a session has no fit"
        } else {
            ""
        };
        Judged { verdict, text: format!("{}: {found}, {}{why}", self.says, verdict.plain()) }
    }

    fn verdict(&self, measured: &Measured) -> Verdict {
        let Estimate { low, high, .. } = measured.estimate;
        match () {
            // One process does not represent the next one.
            () if !measured.exact && measured.sessions < 2 => Verdict::Inconclusive,
            () if low > self.above && high < self.below => Verdict::Reproduced,
            () if high <= self.above || low >= self.below => Verdict::Contradicted,
            () => Verdict::Inconclusive,
        }
    }
}

/// The verdict on several claims of one row: the weakest of them, a contradiction first.
pub(super) fn together(verdicts: impl IntoIterator<Item = Verdict>) -> Option<Verdict> {
    let order = [Verdict::Contradicted, Verdict::NotMeasured, Verdict::Inconclusive, Verdict::Reproduced];
    let all: Vec<Verdict> = verdicts.into_iter().collect();
    order.into_iter().find(|verdict| all.contains(verdict))
}

impl Figure {
    /// Parts of a campaign that it requires.
    fn needs(&self) -> String {
        let study = |kind: Kind, of: &[&str]| match of {
            [] => format!("a study '{}'", kind.name()),
            _ => format!("a study '{}' with {}", kind.name(), of.join(" and ")),
        };
        match self {
            Self::Ticks { of, over, bytes, direction, study: kind } => {
                format!("{} at {bytes} B, {}", study(kind.kind(), &[of, over]), way(*direction))
            }
            Self::Growth { of, .. }
            | Self::Slopes { of, .. }
            | Self::LineError { of, .. }
            | Self::FixedShare { of, .. } => study(Kind::Sizes, &[of]),
            Self::Unseen { .. } => study(Kind::Validate, &[]),
            Self::SpeedUpPerCore { .. } | Self::Sets { .. } => {
                format!("{} on several cores", study(Kind::Scaling, &[]))
            }
            Self::Pipeline { .. } => format!("{} with both schedulers", study(Kind::Scaling, &[])),
            Self::Engine(_) => format!("{} with the scheduler 'async-split'", study(Kind::Scaling, &[])),
            Self::WireBytes { of, over } => match over {
                Some(over) => study(Kind::Wire, &[of, over]),
                None => study(Kind::Wire, &[of]),
            },
            Self::Stage { bytes, .. } | Self::PartsOverWhole { bytes, .. } => {
                format!("{} at {bytes} B", study(Kind::Overheads, &[]))
            }
            Self::RekeyIkeOverChild => study(Kind::Keying, &[]),
            Self::BreakEven { of, bytes } => {
                format!("{} and {} at {bytes} B", study(Kind::Keying, &[]), study(Kind::Sizes, &[of]))
            }
            Self::ReceiverMemory { of, over } => study(Kind::Sas, &[of, over]),
            Self::RoundTrip { bytes } => format!("{} between hosts at {bytes} B", study(Kind::Modes, &[])),
            Self::Transfer { of, over, .. } | Self::SetUpMessages { of, over } => study(Kind::Transfers, &[of, over]),
            Self::Session(quantity @ Quantity::Packets { subject, bytes, .. }) => {
                let sizes = study(Kind::Sizes, &[subject, "plain"]);
                format!("{} and {sizes} at {bytes} B", study(Kind::Sessions, &quantity.subjects()))
            }
            Self::Session(quantity) => study(Kind::Sessions, &quantity.subjects()),
        }
    }

    fn measure(&self, folder: &Folder) -> Option<Measured> {
        match self {
            Self::Ticks { of, over, bytes, direction, study } => {
                let trials = select(&folder.of(study.kind()), *direction, Some(*bytes));
                let (of, over) = pair(&trials, of, over)?;
                Measured::over(&log_ratios(&named(&trials, &of), &named(&trials, &over), ticks), f64::exp)
            }
            Self::Growth { of, bytes: [small, large], direction } => {
                over_sizes(folder, of, *direction, f64::exp, |sizes| {
                    Some((f64::from(*large) / f64::from(*small) * sizes.get(small)? / sizes.get(large)?).ln())
                })
            }
            Self::Slopes { of, bytes, direction } => over_sizes(folder, of, *direction, f64::from, |sizes| {
                let slope = |a: u32, b: u32| Some((sizes.get(&b)? - sizes.get(&a)?) / (f64::from(b) - f64::from(a)));
                Some(slope(bytes[1], bytes[2])? / slope(bytes[0], bytes[1])?)
            }),
            Self::LineError { of, direction } => {
                over_sizes(folder, of, *direction, f64::from, |sizes| Some(line(sizes)?.worst))
            }
            Self::FixedShare { of, bytes, direction } => over_sizes(folder, of, *direction, f64::from, |sizes| {
                let line = line(sizes)?;
                Some(line.fixed / line.at(f64::from(*bytes)))
            }),
            Self::Unseen { percent } => unseen(folder, *percent),
            Self::SpeedUpPerCore { set } => {
                let cores = Cores::of(folder);
                let (logs, count) = cores.over_one_core(*set)?;
                let scaled: Vec<Vec<f64>> =
                    logs.into_iter().map(|s| s.into_iter().map(|log| log - f64::from(count).ln()).collect()).collect();
                Measured::over(&scaled, f64::exp)
            }
            Self::Sets { of, over } => Measured::over(&Cores::of(folder).sets(*of, *over)?, f64::exp),
            Self::Pipeline { set } => {
                Measured::over(&Cores::of(folder).schedulers(*set, Scheduler::Pipeline)?, f64::exp)
            }
            Self::Engine(part) => {
                let all = figure_by_session(folder, *part);
                let fitted: Vec<Vec<f64>> = all.iter().flatten().map(|figure| vec![*figure]).collect();
                let mut measured = Measured::over(&fitted, |figure| figure)?;
                if fitted.len() < all.len() {
                    // The figure of a session without a fit may be anything.
                    (measured.estimate.low, measured.estimate.high) = (f64::NEG_INFINITY, f64::INFINITY);
                }
                Some(measured)
            }
            Self::WireBytes { of, over } => wire_bytes(folder, of, over.as_deref()),
            Self::Stage { stage, bytes, direction } => {
                let trials = first_subject(select(&folder.of(Kind::Overheads), *direction, Some(*bytes)));
                let share = |trial: &Trial| {
                    let all: f64 = trial.measured.values.parts("stage.").map(|(_, ticks)| ticks).sum();
                    Some(trial.measured.values.get(Metric::Ticks(&format!("stage.{stage}")))? / all)
                };
                Measured::over(&values(&trials, share), |share| share)
            }
            Self::PartsOverWhole { bytes, direction } => {
                let trials = first_subject(select(&folder.of(Kind::Overheads), *direction, Some(*bytes)));
                let parts = |trial: &Trial| {
                    let ticks = |part: &str| trial.measured.values.get(Metric::Ticks(part));
                    Some((ticks("path_null")? + ticks("engine")?) / ticks("path")?)
                };
                Measured::over(&values(&trials, parts), |share| share)
            }
            Self::RekeyIkeOverChild => {
                let logs = values(&folder.of(Kind::Keying), |trial| {
                    let rate = |of: Metric<'_>| trial.measured.values.get(of);
                    Some((rate(Metric::ChildRekeysPerS)? / rate(Metric::IkeRekeysPerS)?).ln())
                });
                Measured::over(&logs, f64::exp)
            }
            Self::BreakEven { of, bytes } => break_even(folder, of, *bytes),
            Self::ReceiverMemory { of, over } => exact_ratio(&folder.of(Kind::Sas), of, over, Metric::SaBytesReceiver),
            Self::RoundTrip { bytes } => {
                let trials = select(&folder.outside(Kind::Modes), Direction::Out, Some(*bytes));
                let trials: Vec<&Trial> = trials.into_iter().filter(|trial| trial.place == Place::Namespaces).collect();
                let (transport, tunnel) = pair(&trials, "weir-esp-transport-*", "weir-esp-tunnel-*")?;
                let read = |trial: &Trial| trial.measured.values.get(Metric::RttP50);
                Measured::over(&log_ratios(&named(&trials, &transport), &named(&trials, &tunnel), read), f64::exp)
            }
            Self::Transfer { of, over, figure } => {
                Measured::over(&transfers::logs(folder, |trials| pair(trials, of, over), *figure)?, f64::exp)
            }
            Self::SetUpMessages { of, over } => {
                exact_ratio(&folder.everywhere(Kind::Transfers), of, over, Metric::SetupMessages)
            }
            Self::Session(quantity) => match quantity.measure(folder)? {
                Found::Exact(values) => Measured::exact(&values),
                Found::Sessions(sessions) => Measured::over(&sessions, |value| value),
                Found::Combined(estimate, sessions) => Some(Measured { estimate, sessions, exact: false }),
            },
        }
    }
}

/// Trials of one direction and size.
fn select<'a>(trials: &[&'a Trial], direction: Direction, bytes: Option<u32>) -> Vec<&'a Trial> {
    let fits = |trial: &&&Trial| trial.direction == direction && (bytes.is_none() || trial.size == bytes);
    trials.iter().filter(fits).copied().collect()
}

fn named<'a>(trials: &[&'a Trial], subject: &str) -> Vec<&'a Trial> {
    trials.iter().filter(|trial| trial.subject == subject).copied().collect()
}

fn first_subject(trials: Vec<&Trial>) -> Vec<&Trial> {
    let first = trials.first().map(|trial| trial.subject.clone()).unwrap_or_default();
    named(&trials, &first)
}

/// Returns the text that `*` matches, if the name matches the pattern.
fn star<'a>(pattern: &str, name: &'a str) -> Option<&'a str> {
    match pattern.split_once('*') {
        None => (pattern == name).then_some(""),
        Some((before, after)) => name.strip_prefix(before)?.strip_suffix(after),
    }
}

/// The first two subjects that fit two patterns with the same text for `*`.
fn pair(trials: &[&Trial], of: &str, over: &str) -> Option<(String, String)> {
    trials.iter().find_map(|trial| {
        let text = star(of, &trial.subject)?;
        let other = over.replacen('*', text, 1);
        trials.iter().any(|trial| trial.subject == other).then(|| (trial.subject.clone(), other))
    })
}

/// A figure of the ticks per packet by size, in sessions of the first subject that fits.
fn over_sizes(
    folder: &Folder,
    of: &str,
    direction: Direction,
    back: fn(f64) -> f64,
    figure: impl Fn(&BTreeMap<u32, f64>) -> Option<f64>,
) -> Option<Measured> {
    let trials = select(&folder.of(Kind::Sizes), direction, None);
    let subject = trials.iter().find(|trial| star(of, &trial.subject).is_some())?.subject.clone();
    let mut sessions: BTreeMap<u32, BTreeMap<u32, Vec<f64>>> = BTreeMap::new();
    for trial in named(&trials, &subject) {
        if let (Some(size), Some(ticks)) = (trial.size, ticks(trial)) {
            sessions.entry(trial.session).or_default().entry(size).or_default().push(ticks);
        }
    }
    let medians = |sizes: BTreeMap<u32, Vec<f64>>| sizes.into_iter().map(|(size, all)| (size, median(&all))).collect();
    let figures = sessions.into_values().map(medians).filter_map(|sizes| Some(vec![figure(&sizes)?]));
    Measured::over(&figures.collect::<Vec<_>>(), back)
}

fn line(sizes: &BTreeMap<u32, f64>) -> Option<Line> {
    Line::through(&sizes.iter().map(|(size, ticks)| (f64::from(*size), *ticks)).collect::<Vec<_>>())
}

/// With Wilson's 95 % interval of a proportion.
fn unseen(folder: &Folder, percent: f64) -> Option<Measured> {
    let lines = folder.costs(Kind::Sizes);
    let trials = folder.of(Kind::Validate);
    let errors: Vec<f64> = costs(&trials, folder.hz())
        .iter()
        .filter(|cost| !cost.key.subject.starts_with("cipher-"))
        .filter_map(|cost| {
            let line = Line::of(&lines, &cost.key.subject, cost.key.direction)?;
            Some((line.at(f64::from(cost.size?)) / cost.ticks.value - 1.0).abs() * 100.0)
        })
        .collect();
    let n = errors.len() as f64;
    if errors.is_empty() {
        return None;
    }
    const Z: f64 = 1.96;
    let share = errors.iter().filter(|error| **error < percent).count() as f64 / n;
    let centre = (share + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
    let half = Z / (1.0 + Z * Z / n) * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let sessions = values(&trials, |_| Some(0.0)).len();
    let estimate = Estimate { value: share, low: centre - half, high: centre + half };
    Some(Measured { estimate, sessions, exact: false })
}

fn wire_bytes(folder: &Folder, of: &str, over: Option<&str>) -> Option<Measured> {
    let trials = folder.of(Kind::Wire);
    let bytes = |subject: &str| -> BTreeMap<u32, f64> {
        let of = |trial: &Trial| Some((trial.size?, trial.measured.values.get(Metric::WireBytes)?));
        named(&trials, subject).into_iter().filter_map(of).collect()
    };
    let differences: Vec<f64> = match over {
        None => {
            let subject = &trials.iter().find(|trial| star(of, &trial.subject).is_some())?.subject;
            bytes(subject).into_iter().map(|(size, wire)| wire - f64::from(size)).collect()
        }
        Some(over) => {
            let (of, over) = pair(&trials, of, over)?;
            let others = bytes(&over);
            bytes(&of).into_iter().filter_map(|(size, wire)| Some(wire - others.get(&size)?)).collect()
        }
    };
    Measured::exact(&differences)
}

/// The range of an exact value of one subject over that of another one.
fn exact_ratio(trials: &[&Trial], of: &str, over: &str, metric: Metric<'_>) -> Option<Measured> {
    let (of, over) = pair(trials, of, over)?;
    let values = |subject: &str| {
        let values = named(trials, subject).into_iter().filter_map(|trial| trial.measured.values.get(metric));
        Measured::exact(&values.collect::<Vec<_>>())
    };
    let (of, over) = (values(&of)?.estimate, values(&over)?.estimate);
    Measured::exact(&[of.low / over.high, of.value / over.value, of.high / over.low])
}

/// Set-up and packets come from processes of their own, so the interval is that of the extremes of
/// both.
fn break_even(folder: &Folder, of: &str, bytes: u32) -> Option<Measured> {
    let rates = values(&folder.of(Kind::Keying), |trial| trial.measured.values.get(Metric::IkeSasPerS));
    let set_ups = Measured::over(&rates, |rate| rate)?;
    let trials = select(&folder.of(Kind::Sizes), Direction::Out, Some(bytes));
    let subject = &trials.iter().find(|trial| star(of, &trial.subject).is_some())?.subject;
    let packets = values(&named(&trials, subject), |trial| ticks(trial).map(|ticks| ticks / folder.hz()));
    let packet = Measured::over(&packets, |seconds| seconds)?;
    let count = |rate: f64, seconds: f64| 1.0 / rate / seconds;
    let (rate, seconds) = (set_ups.estimate, packet.estimate);
    let estimate = Estimate {
        value: count(rate.value, seconds.value),
        low: count(rate.high, seconds.high),
        high: count(rate.low, seconds.low),
    };
    Some(Measured { estimate, sessions: set_ups.sessions.min(packet.sessions), exact: false })
}

/// Four significant digits.
fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return super::chart::short(value);
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::checklist::claims;
    use super::super::synthetic;
    use super::*;

    /// Requirements of the claims: the synthetic run has one session and subject less of some of
    /// it.
    const TEXT: &str = r#"
name = "claims"
title = "Every claim can be judged"
[[study]]
kind = "sizes"
subjects = ["weir-esp-tunnel-aes128gcm16", "weir-esp-tunnel-aes256gcm16", "weir-esp-tunnel-chacha20poly1305",
    "weir-esp-tunnel-3des-sha1", "weir-esp-tunnel-aes256-sha1", "weir-ah-transport-sha256",
    "weir-eesp-tunnel-aes128gcm16", "weir-psp-tunnel-aes128gcm16", "cipher-esp-tunnel-aes128gcm16"]
traffic = [64, 512, 736, 1400]
directions = ["out", "in"]
[[study]]
kind = "validate"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [97, 157, 219, 283, 333, 449, 613, 811, 915, 1103]
directions = ["out"]
[[study]]
kind = "overheads"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [736]
directions = ["out", "in"]
[[study]]
kind = "modes"
subjects = ["weir-esp-tunnel-aes128gcm16", "weir-esp-transport-aes128gcm16", "weir-esp-tunnel-aes128gcm16,udp",
    "weir-esp-transport-aes128gcm16,udp"]
traffic = [160, 1400]
directions = ["out", "in"]
[[study]]
name = "rtt"
kind = "modes"
place = "namespaces"
subjects = ["weir-esp-tunnel-aes128gcm16", "weir-esp-transport-aes128gcm16"]
traffic = [160]
directions = ["out"]
[[study]]
kind = "wire"
subjects = ["weir-esp-tunnel-aes128gcm16", "weir-esp-transport-aes128gcm16", "weir-eesp-tunnel-aes128gcm16",
    "weir-eesp-tunnel-aes128gcm16,full", "weir-eesp-tunnel-aes128gcm16,implicit-iv", "weir-psp-tunnel-aes128gcm16"]
traffic = [64, 512, 1400]
sessions = 1
rounds = 1
[[study]]
kind = "transfers"
subjects = ["weir-esp-tunnel-aes128gcm16,udp", "weir-esp-tunnel-aes128gcm16,udp,per-cpu",
    "weir-eesp-tunnel-aes128gcm16,udp", "weir-eesp-tunnel-aes128gcm16,udp,sub-sas", "weir-psp-tunnel-aes128gcm16"]
rounds = 2
duration_ms = 500
[[study]]
kind = "sas"
subjects = ["weir-esp-tunnel-aes128gcm16", "weir-psp-tunnel-aes128gcm16"]
directions = ["in"]
sas = [1, 1000]
[[study]]
kind = "scaling"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [64]
cores = [1, 4]
spreads = ["ideal"]
flows = [64]
[[study]]
name = "engine"
kind = "scaling"
subjects = ["weir-esp-tunnel-aes128gcm16"]
traffic = [78, 142, 206, 270, 334, 398, 462, 526, 590, 654, 718, 782, 846, 910, 974, 1038, 1102, 1166, 1230, 1294, 1358]
cores = [2]
schedulers = ["async-split"]
rounds = 1
[[study]]
kind = "keying"
subjects = ["weir-esp-tunnel-aes128gcm16"]
rounds = 3
[[study]]
kind = "sessions"
subjects = ["ikev1-main-rsa2048-aes128-md5-modp1024", "ikev1-main-rsa2048-3des-md5-modp1024",
    "ikev1-main-psk-aes128-md5-modp1024", "ikev1-aggressive-rsa2048-aes128-md5-modp1024"]
rounds = 3
[[study]]
name = "packets"
kind = "sizes"
subjects = ["weir-esp-tunnel-aes128-md5", "weir-esp-tunnel-3des-md5", "plain"]
traffic = [736]
directions = ["out", "in"]
"#;

    /// Where a figure is put.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Plant {
        Inside,
        Outside,
    }

    /// A value well inside or outside the bounds of a claim.
    fn target(claim: &Claim, plant: Plant) -> f64 {
        let (above, below) = (claim.above, claim.below);
        match (plant, above.is_finite(), below.is_finite()) {
            (Plant::Inside, true, true) => f64::midpoint(above, below),
            (Plant::Outside, true, true) => below + (below - above).max(0.3 * below.abs()),
            (Plant::Inside, true, false) | (Plant::Outside, false, true) if above == 0.0 || below == 0.0 => 5.0,
            (Plant::Outside, true, false) | (Plant::Inside, false, true) if above == 0.0 || below == 0.0 => -5.0,
            (Plant::Inside, true, false) => 1.4 * above,
            (Plant::Outside, true, false) => above / 1.4,
            (Plant::Inside, false, true) => below / 1.4,
            (Plant::Outside, false, true) => 1.4 * below,
            (_, false, false) => panic!("{}: no bounds", claim.says),
        }
    }

    fn each<'a>(
        folder: &'a mut Folder,
        kind: Kind,
        fits: impl Fn(&Trial) -> bool + 'a,
    ) -> impl Iterator<Item = &'a mut Trial> {
        let studies: Vec<String> =
            folder.campaign.studies.iter().filter(|study| study.kind == kind).map(|study| study.name.clone()).collect();
        folder.trials.iter_mut().filter(move |trial| studies.contains(&trial.study) && fits(trial))
    }

    fn scale_ticks(trial: &mut Trial, factor: f64) {
        trial.measured.tsc = trial.measured.tsc.map(|ticks| (ticks as f64 * factor) as u64);
    }

    fn set_ticks(trial: &mut Trial, ticks: f64) {
        trial.measured.tsc = Some((trial.measured.received as f64 * ticks) as u64);
    }

    /// Changes the trials of a run so that a figure has a value: the false, or true, value of the
    /// test.
    fn set(folder: &mut Folder, figure: &Figure, value: f64) {
        let now = || figure.measure(folder).map_or(f64::NAN, |measured| measured.estimate.value);
        match figure.clone() {
            Figure::Ticks { of, over, bytes, direction, study } => {
                let trials = select(&folder.of(study.kind()), direction, Some(bytes));
                let (of, over) = pair(&trials, &of, &over).expect("both are there");
                for (subject, ticks) in [(of, 500.0 * value), (over, 500.0)] {
                    let fits =
                        move |t: &Trial| t.subject == subject && t.size == Some(bytes) && t.direction == direction;
                    each(folder, study.kind(), fits)
                        .filter(|trial| trial.place == Place::Memory)
                        .for_each(|trial| set_ticks(trial, ticks));
                }
            }
            Figure::Growth { bytes: [small, large], direction, .. } => {
                let factor = now() / value;
                let fits = move |t: &Trial| t.size == Some(large) && t.direction == direction;
                assert!(small < large);
                each(folder, Kind::Sizes, fits).for_each(|trial| scale_ticks(trial, factor));
            }
            Figure::Slopes { bytes: [a, b, c], direction, .. } => {
                // One tick for a byte up to the second size.
                let at = move |size: u32| {
                    let first = f64::from(size.min(b) - a);
                    100.0 + first + value * f64::from(size.saturating_sub(b))
                };
                let fits =
                    move |t: &Trial| t.size.is_some_and(|size| (a..=c).contains(&size)) && t.direction == direction;
                each(folder, Kind::Sizes, fits).for_each(|trial| set_ticks(trial, at(trial.size.unwrap_or(a))));
            }
            Figure::LineError { direction, .. } => {
                // Two of four sizes are off; the line takes a part of that and misses them by about
                // `value`.
                let off = move |size: u32| if (500..800).contains(&size) { 1.0 + 1.66 * value } else { 1.0 };
                each(folder, Kind::Sizes, move |t| t.size.is_some() && t.direction == direction).for_each(|trial| {
                    let size = trial.size.unwrap_or(64);
                    set_ticks(trial, (300.0 + 0.4 * f64::from(size)) * off(size));
                });
            }
            Figure::FixedShare { bytes, direction, .. } => {
                let slope = 300.0 * (1.0 - value) / (value * f64::from(bytes));
                each(folder, Kind::Sizes, move |t| t.size.is_some() && t.direction == direction)
                    .for_each(|trial| set_ticks(trial, 300.0 + slope * f64::from(trial.size.unwrap_or(64))));
            }
            Figure::Unseen { .. } => {
                let line = |size: f64| 300.0 + 0.4 * size;
                for (kind, factor) in [(Kind::Sizes, 1.0), (Kind::Validate, if value > 0.5 { 1.0 } else { 2.0 })] {
                    each(folder, kind, |t| t.size.is_some())
                        .for_each(|trial| set_ticks(trial, factor * line(f64::from(trial.size.unwrap_or(64)))));
                }
            }
            Figure::SpeedUpPerCore { set } | Figure::Sets { of: set, .. } => {
                scale_rate(folder, value / now(), set, Scheduler::RunToCompletion);
            }
            Figure::Pipeline { set } => scale_rate(folder, value / now(), set, Scheduler::Pipeline),
            // Times by equation 4, with the others off, or their breakpoint elsewhere.
            Figure::Engine(part) => {
                let of_engine = |t: &Trial| t.way.is_some_and(|way| way.scheduler == Scheduler::AsyncSplit);
                each(folder, Kind::Scaling, of_engine).for_each(|trial| {
                    let size = trial.size.unwrap_or(0);
                    let is_other = (size - 78) / 64 % 2 == 1;
                    let (off, breakpoint) = match part {
                        EnginePart::Error if is_other => (1.0 / (1.0 + value), 625.0),
                        EnginePart::Breakpoint if is_other => (1.0, 625.0 * value),
                        _ => (1.0, 625.0),
                    };
                    let time_ns = 300.0 + 0.4 * (f64::from(size) - breakpoint).max(0.0);
                    trial.measured.dur_ns = (trial.measured.received as f64 * time_ns * off) as u64;
                });
            }
            Figure::WireBytes { of, over } => {
                let off = value - now();
                let first = over.and_then(|over| pair(&folder.of(Kind::Wire), &of, &over)).map(|(of, _)| of);
                let fits = move |t: &Trial| match &first {
                    None => star(&of, &t.subject).is_some(),
                    Some(first) => t.subject == *first,
                };
                let add = |trial: &mut Trial| {
                    let bytes = trial.measured.values.get(Metric::WireBytes).expect("it has");
                    trial.measured.values.set(Metric::WireBytes, bytes + off);
                };
                each(folder, Kind::Wire, fits).for_each(add);
            }
            Figure::Stage { stage, bytes, direction } => {
                let name = format!("stage.{stage}");
                each(folder, Kind::Overheads, move |t| t.size == Some(bytes) && t.direction == direction).for_each(
                    |trial| {
                        let values = &mut trial.measured.values;
                        let others: f64 =
                            values.parts("stage.").filter(|(other, _)| *other != name).map(|(_, v)| v).sum();
                        values.set(Metric::Ticks(&name), others * value / (1.0 - value));
                    },
                );
            }
            Figure::PartsOverWhole { .. } => change(folder, Kind::Overheads, "*", Metric::Ticks("path"), now() / value),
            Figure::RekeyIkeOverChild => change(folder, Kind::Keying, "*", Metric::ChildRekeysPerS, value / now()),
            Figure::BreakEven { .. } => change(folder, Kind::Keying, "*", Metric::IkeSasPerS, now() / value),
            Figure::ReceiverMemory { of, .. } => {
                change(folder, Kind::Sas, &of, Metric::SaBytesReceiver, value / now());
            }
            Figure::RoundTrip { .. } => {
                change(folder, Kind::Modes, "weir-esp-transport-*", Metric::RttP50, value / now());
            }
            Figure::Transfer { of, figure: transfers::Figure::Rate, .. } => {
                let factor = value / now();
                each(folder, Kind::Transfers, move |t| star(&of, &t.subject).is_some())
                    .for_each(|trial| trial.measured.dur_ns = (trial.measured.dur_ns as f64 / factor) as u64);
            }
            Figure::Transfer { of, figure: transfers::Figure::Cost, .. } => {
                change(folder, Kind::Transfers, &of, Metric::CpuSPerGbit, value / now());
            }
            Figure::Session(quantity) => super::super::sessions::plant(folder, &quantity, value),
            Figure::SetUpMessages { of, .. } => {
                change(folder, Kind::Transfers, &of, Metric::SetupMessages, value / now());
            }
        }
    }

    fn scale_rate(folder: &mut Folder, factor: f64, set: Set, scheduler: Scheduler) {
        let fits = |t: &Trial| t.cores > 1 && t.way.is_some_and(|way| (way.set, way.scheduler) == (set, scheduler));
        each(folder, Kind::Scaling, fits)
            .for_each(|trial| trial.measured.dur_ns = (trial.measured.dur_ns as f64 / factor) as u64);
    }

    fn change(folder: &mut Folder, kind: Kind, of: &str, metric: Metric<'_>, factor: f64) {
        each(folder, kind, |trial| star(of, &trial.subject).is_some()).for_each(|trial| {
            let value = trial.measured.values.get(metric).expect("it has");
            trial.measured.values.set(metric, value * factor);
        });
    }

    #[test]
    fn a_false_value_in_the_trials_turns_the_verdict_of_every_claim() {
        let whole = synthetic::folder_of(TEXT);
        let all = claims();
        assert!(all.len() >= 40, "{} claims", all.len());
        let rows: std::collections::BTreeSet<&str> = all.iter().map(|(id, _)| id.as_str()).collect();
        assert!(rows.len() >= 25, "{} rows", rows.len());
        let mut wrong = Vec::new();
        for (id, claim) in &all {
            for (plant, expected) in [(Plant::Inside, Verdict::Reproduced), (Plant::Outside, Verdict::Contradicted)] {
                let mut folder = whole.clone();
                set(&mut folder, &claim.figure, target(claim, plant));
                let judged = claim.judge(&folder);
                if judged.verdict != expected {
                    wrong.push(format!("{id}: {plant:?} at {}: {}", target(claim, plant), judged.text));
                }
            }
            let mut empty = whole.clone();
            empty.trials.clear();
            let judged = claim.judge(&empty);
            assert_eq!(judged.verdict, Verdict::NotMeasured, "{id}");
            assert!(judged.text.contains("needs a study '"), "{id}: {}", judged.text);
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn one_session_or_an_interval_across_a_bound_decides_nothing() {
        let claim: Claim = toml::from_str(
            "says = \"AES-256 takes longer\"\nabove = 1.0\nfigure = { ticks = { of = \"weir-esp-tunnel-aes256gcm16\", \
             over = \"weir-esp-tunnel-aes128gcm16\", bytes = 64, direction = \"out\", study = \"sizes\" } }",
        )
        .expect("it is right");
        let mut folder = synthetic::folder_of(TEXT);
        // Both cost the same there, but for noise.
        assert_eq!(claim.judge(&folder).verdict, Verdict::Inconclusive, "{}", claim.judge(&folder).text);
        set(&mut folder, &claim.figure, 1.5);
        assert_eq!(claim.judge(&folder).verdict, Verdict::Reproduced);
        let first = folder.of(Kind::Sizes)[0].session;
        folder.trials.retain(|trial| trial.session == first);
        let judged = claim.judge(&folder);
        assert_eq!(judged.verdict, Verdict::Inconclusive);
        assert!(judged.text.ends_with("one session only"), "{}", judged.text);
    }

    #[test]
    fn sessions_without_a_fit_decide_nothing() {
        let of_engine = |claim: &Claim| matches!(claim.figure, Figure::Engine(_));
        for claim in claims().into_iter().map(|(_, claim)| claim).filter(of_engine) {
            let mut folder = synthetic::folder_of(TEXT);
            set(&mut folder, &claim.figure, target(&claim, Plant::Inside));
            assert_eq!(claim.judge(&folder).verdict, Verdict::Reproduced);
            let of_engine = |t: &&mut Trial| t.way.is_some_and(|way| way.scheduler == Scheduler::AsyncSplit);
            let first = folder.trials.iter_mut().find(of_engine).expect("it has").session;
            let of_first = |t: &&mut Trial| t.session == first;
            folder.trials.iter_mut().filter(of_first).for_each(|trial| trial.measured.received = 0);
            let judged = claim.judge(&folder);
            assert_eq!(judged.verdict, Verdict::Inconclusive);
            assert!(judged.text.ends_with("a session has no fit"), "{}", judged.text);
        }
    }

    #[test]
    fn a_row_is_as_good_as_its_weakest_claim() {
        use Verdict::{Contradicted, Inconclusive, NotMeasured, Reproduced};
        assert_eq!(together([]), None);
        assert_eq!(together([Reproduced, Reproduced]), Some(Reproduced));
        assert_eq!(together([Reproduced, Inconclusive]), Some(Inconclusive));
        assert_eq!(together([Inconclusive, NotMeasured]), Some(NotMeasured));
        assert_eq!(together([NotMeasured, Contradicted, Reproduced]), Some(Contradicted));
    }

    #[test]
    fn a_star_is_the_same_text_on_both_sides() {
        assert_eq!(star("weir-esp-*", "weir-esp-tunnel-x"), Some("tunnel-x"));
        assert_eq!(star("weir-esp-*,udp", "weir-esp-tunnel-x"), None);
        assert_eq!(star("plain", "plain"), Some(""));
        let folder = synthetic::folder_of(TEXT);
        let trials = folder.of(Kind::Sizes);
        let found = pair(&trials, "weir-psp-*", "weir-esp-*").expect("both are there");
        assert_eq!(found, ("weir-psp-tunnel-aes128gcm16".into(), "weir-esp-tunnel-aes128gcm16".into()));
        assert_eq!(pair(&trials, "weir-ah-*", "weir-esp-*"), None, "no ESP with transport-sha256");
    }
}
