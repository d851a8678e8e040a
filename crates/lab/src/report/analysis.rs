//! From trials to estimates. Everything here depends on the trials alone and repeats exactly.

use std::collections::BTreeMap;

use crate::campaign::env::Environment;
use crate::campaign::store::Problem;
use crate::campaign::{Campaign, Kind, Place, Study};
use crate::metric::Metric;
use crate::trial::{Direction, Trial};
use stats::{Estimate, Rng, lower_quartile, median, over_units};

/// Seed of the intervals: the same trials give the same report.
const SEED: u64 = 0x7765_6972;

/// All that a report is made from.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub(crate) campaign: Campaign,
    pub(crate) trials: Vec<Trial>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) environments: Vec<Environment>,
}

/// Key of a comparison: a subject with one traffic in one direction at one place.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Key {
    pub(super) subject: String,
    pub(super) traffic: String,
    pub(super) direction: Direction,
    pub(super) place: Place,
}

impl Key {
    pub(super) fn of(trial: &Trial) -> Self {
        Self {
            subject: trial.subject.clone(),
            traffic: trial.traffic.clone(),
            direction: trial.direction,
            place: trial.place,
        }
    }

    /// The subject for people, with where it ran unless that was in memory.
    pub(super) fn shown(&self) -> String {
        match self.place {
            Place::Memory => shown(&self.subject),
            Place::Namespaces => format!("{}, between hosts", shown(&self.subject)),
            Place::Interfaces => format!("{}, between interfaces", shown(&self.subject)),
        }
    }
}

/// Cost of a packet.
#[derive(Clone, Debug)]
pub(super) struct Cost {
    pub(super) key: Key,
    pub(super) size: Option<u32>,
    /// Ticks of the time-stamp counter per packet.
    pub(super) ticks: Estimate,
    /// Packets per second at that cost.
    pub(super) pps: f64,
    /// Bits per second of inner packets.
    pub(super) bps: f64,
    pub(super) sessions: usize,
    pub(super) trials: usize,
}

impl Folder {
    /// Trials of studies of a kind, in the order in which they were measured, wherever that was.
    pub(super) fn everywhere(&self, kind: Kind) -> Vec<&Trial> {
        let names: Vec<&str> =
            self.campaign.studies.iter().filter(|study| study.kind == kind).map(|study| study.name.as_str()).collect();
        self.trials.iter().filter(|trial| names.contains(&trial.study.as_str())).collect()
    }

    /// Trials in memory.
    pub(super) fn of(&self, kind: Kind) -> Vec<&Trial> {
        self.everywhere(kind).into_iter().filter(|trial| trial.place == Place::Memory).collect()
    }

    /// Trials between hosts or interfaces.
    pub(super) fn outside(&self, kind: Kind) -> Vec<&Trial> {
        self.everywhere(kind).into_iter().filter(|trial| trial.place != Place::Memory).collect()
    }

    /// Studies of a kind that run in memory.
    pub(super) fn studies(&self, kind: Kind) -> impl Iterator<Item = &Study> {
        self.campaign.studies.iter().filter(move |study| study.kind == kind && study.place == Place::Memory)
    }

    /// Reason why there are no trials of a kind in memory.
    pub(super) fn why_not(&self, kind: Kind) -> String {
        self.why_none(kind, |place| place == Place::Memory)
    }

    /// Reason why there are no trials of a kind between hosts or interfaces.
    pub(super) fn why_not_outside(&self, kind: Kind) -> String {
        self.why_none(kind, |place| place != Place::Memory)
    }

    fn why_none(&self, kind: Kind, there: fn(Place) -> bool) -> String {
        let studies: Vec<_> =
            self.campaign.studies.iter().filter(|study| study.kind == kind && there(study.place)).collect();
        if studies.is_empty() {
            let elsewhere = self.campaign.studies.iter().any(|study| study.kind == kind);
            let with = match (there(Place::Memory), elsewhere) {
                (true, false) => "",
                (true, true) => " in memory",
                (false, _) => " with place = \"namespaces\" or \"interfaces\"",
            };
            return format!("This campaign has no study of the kind '{}'{with}.", kind.name());
        }
        let mut why: Vec<String> = self
            .problems
            .iter()
            .filter(|problem| studies.iter().any(|study| study.name == problem.study))
            .map(|problem| problem.why.clone())
            .collect();
        why.dedup();
        if why.is_empty() { "The run was interrupted before this study.".into() } else { why.join("; ") + "." }
    }

    /// Costs of all combinations in studies of a kind, in the order of the campaign.
    pub(super) fn costs(&self, kind: Kind) -> Vec<Cost> {
        costs(&self.of(kind), self.hz())
    }

    /// Ticks per second where the trials were measured.
    pub(super) fn hz(&self) -> f64 {
        self.environments.first().map_or(f64::NAN, |env| env.tsc_hz)
    }

    /// The noise floor: the half-width of the differences between equal subjects, as a share;
    /// `None` when it was not measured.
    pub(super) fn noise(&self) -> Option<f64> {
        let bands = self.noise_ratios();
        let widest = bands.iter().flat_map(|(_, ratio)| [ratio.low, ratio.high]).map(|end| (end.ln()).abs());
        widest.filter(|w| w.is_finite()).max_by(f64::total_cmp).map(f64::exp_m1)
    }

    /// The second half over the first, for everything that was measured against itself.
    pub(super) fn noise_ratios(&self) -> Vec<(Key, Estimate)> {
        let trials = self.of(Kind::Noise);
        let arm = |trial: &&&Trial, arm: f64| trial.measured.values.get(Metric::Arm) == Some(arm);
        keys(&trials)
            .into_iter()
            .map(|key| {
                let mine = of_key(&trials, &key);
                let of = |number: f64| -> Vec<&Trial> { mine.iter().filter(|t| arm(t, number)).copied().collect() };
                (key, ratio(&of(1.0), &of(0.0)))
            })
            .filter(|(_, ratio)| ratio.value.is_finite())
            .collect()
    }
}

/// Trials of a combination.
pub(super) fn of_key<'a>(trials: &[&'a Trial], key: &Key) -> Vec<&'a Trial> {
    trials.iter().filter(|trial| Key::of(trial) == *key).copied().collect()
}

/// Trials of another subject in the same combination.
pub(super) fn of_other<'a>(trials: &[&'a Trial], key: &Key, subject: &str) -> Vec<&'a Trial> {
    of_key(trials, &Key { subject: subject.to_owned(), ..key.clone() })
}

/// Each combination once, in the order in which the campaign has it, which is that of the names'
/// first session.
pub(super) fn keys(trials: &[&Trial]) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    for trial in trials {
        let key = Key::of(trial);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.sort();
    keys
}

/// Ticks per packet of a trial: the tenth percentile of its batches if they were stored, because
/// other load and a busy SMT sibling make a batch slower, never faster; otherwise the mean.
pub(super) fn ticks(trial: &Trial) -> Option<f64> {
    trial.measured.values.get(Metric::TicksP10).or_else(|| trial.measured.ticks_per_packet())
}

/// Costs of all combinations among `trials`.
pub(super) fn costs(trials: &[&Trial], hz: f64) -> Vec<Cost> {
    let mut groups: BTreeMap<Key, Vec<&Trial>> = BTreeMap::new();
    for trial in trials.iter().filter(|trial| ticks(trial).is_some()) {
        groups.entry(Key::of(trial)).or_default().push(trial);
    }
    groups
        .into_iter()
        .map(|(key, mine)| {
            let ticks = undisturbed(&values(&mine, ticks));
            let bytes = |trial: &Trial| Some(trial.measured.received_bytes as f64 / trial.measured.received as f64);
            let pps = hz / ticks.value;
            let bps = pps * 8.0 * over_sessions(&values(&mine, bytes)).value;
            Cost {
                key,
                size: mine[0].size,
                ticks,
                pps,
                bps,
                sessions: values(&mine, |_| Some(0.0)).len(),
                trials: mine.len(),
            }
        })
        .collect()
}

/// Values by session, in order.
pub(super) fn values(trials: &[&Trial], read: impl Fn(&Trial) -> Option<f64>) -> Vec<Vec<f64>> {
    let mut sessions: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for trial in trials {
        if let Some(value) = read(trial).filter(|value| value.is_finite()) {
            sessions.entry(trial.session).or_default().push(value);
        }
    }
    sessions.into_values().collect()
}

/// The mean of the sessions' medians with its 95 % interval. Sessions are the units: within one,
/// trials share memory and keys. With one session, its trials are the units, and the interval does
/// not cover other sessions.
pub(super) fn over_sessions(sessions: &[Vec<f64>]) -> Estimate {
    let mut rng = Rng::new(SEED);
    match sessions {
        [] => Estimate { value: f64::NAN, low: f64::NAN, high: f64::NAN },
        [only] => stats::median_with_interval(only, &mut rng),
        several => {
            let medians: Vec<f64> = several.iter().map(|session| median(session)).collect();
            over_units(&medians, &mut rng)
        }
    }
}

/// The least value of each session, and of these the lower quartile with its 95 % interval: up to
/// three quarters of the sessions may have met other load. With one session, its trials are the
/// units.
pub(super) fn undisturbed(sessions: &[Vec<f64>]) -> Estimate {
    let least: Vec<f64> = match sessions {
        [] => return over_sessions(&[]),
        [only] => only.iter().map(|v| v.ln()).collect(),
        several => several.iter().map(|session| session.iter().copied().fold(f64::INFINITY, f64::min).ln()).collect(),
    };
    lower_quartile(&least, &mut Rng::new(SEED)).map(f64::exp)
}

/// Smallest distance of two modes, as a share: less is noise.
const MODES_APART: f64 = 0.03;

/// Share of the sessions in the slower of two modes; `None` if they have one mode. Two modes are
/// two or more sessions on both sides of a gap that is wider than either side.
pub(super) fn slower_mode(sessions: &[Vec<f64>]) -> Option<f64> {
    let mut least: Vec<f64> =
        sessions.iter().map(|session| session.iter().copied().fold(f64::INFINITY, f64::min)).collect();
    least.sort_by(f64::total_cmp);
    let n = least.len();
    let apart = |at: &usize| {
        let (below, above) = (least[at - 1] - least[0], least[n - 1] - least[*at]);
        let gap = least[*at] - least[at - 1];
        gap > MODES_APART * least[0] && gap > below && gap > above
    };
    (2..n.saturating_sub(1)).find(apart).map(|at| (n - at) as f64 / n as f64)
}

/// The same for positive values: the geometric mean with a positive interval.
pub(super) fn typical(sessions: &[Vec<f64>]) -> Estimate {
    let logs: Vec<Vec<f64>> = sessions.iter().map(|session| session.iter().map(|v| v.ln()).collect()).collect();
    over_sessions(&logs).map(f64::exp)
}

/// The cost of `a` over that of `b`: the geometric mean of the ratios of sessions, with its 95 %
/// interval.
pub(super) fn ratio(a: &[&Trial], b: &[&Trial]) -> Estimate {
    over_sessions(&least_ratios(a, b, ticks)).map(f64::exp)
}

/// Logarithms of the least `figure` of `a` over that of `b`, by session; within rounds if there is
/// one session. Rounds of both are interleaved, so that each had the same chance of an undisturbed
/// one.
pub(super) fn least_ratios(a: &[&Trial], b: &[&Trial], figure: impl Fn(&Trial) -> Option<f64>) -> Vec<Vec<f64>> {
    let within = log_ratios(a, b, &figure);
    if within.len() < 2 {
        return within;
    }
    let least = |trials: &[&Trial]| {
        let mut sessions: BTreeMap<(u32, String, Direction, Place), f64> = BTreeMap::new();
        for trial in trials {
            let key = (trial.session, trial.traffic.clone(), trial.direction, trial.place);
            if let Some(value) = figure(trial).filter(|value| value.is_finite()) {
                let least = sessions.entry(key).or_insert(f64::INFINITY);
                *least = least.min(value);
            }
        }
        sessions
    };
    let (a, b) = (least(a), least(b));
    let mut sessions: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (key, a) in a {
        if let Some(b) = b.get(&key) {
            sessions.entry(key.0).or_default().push((a / b).ln());
        }
    }
    sessions.into_values().collect()
}

/// Logarithms of `figure` of `a` over that of `b` in the same round, by session.
pub(super) fn log_ratios(a: &[&Trial], b: &[&Trial], figure: impl Fn(&Trial) -> Option<f64>) -> Vec<Vec<f64>> {
    let mut sessions: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    let round = |t: &Trial| (t.session, t.round, t.traffic.clone(), t.direction, t.place);
    for x in a {
        let partner = b.iter().find(|y| round(y) == round(x));
        let pair = partner.and_then(|y| Some((figure(x)?, figure(y)?)));
        if let Some((x_figure, y_figure)) = pair {
            sessions.entry(x.session).or_default().push((x_figure / y_figure).ln());
        }
    }
    sessions.into_values().collect()
}

/// A subject's name for people: `ESP tunnel AES-128-GCM`.
pub(super) fn shown(subject: &str) -> String {
    if let Some(suite) = subject.strip_prefix("cipher-").and_then(|rest| rest.splitn(3, '-').nth(2)) {
        return format!("bare cipher {suite}");
    }
    if let Ok(session) = subject.parse::<crate::sessions::Subject>() {
        return session.shown();
    }
    let Some(rest) = subject.strip_prefix("weir-") else { return subject.to_owned() };
    let (name, options) = rest.split_once(',').unwrap_or((rest, ""));
    let mut words = name.splitn(3, '-');
    let (Some(protocol), Some(mode), Some(suite)) = (words.next(), words.next(), words.next()) else {
        return subject.to_owned();
    };
    let mut text = format!("{} {mode} {suite}", protocol.to_uppercase());
    for option in options.split(',').filter(|option| !option.is_empty()) {
        text.push_str(&match option {
            "udp" => " in UDP".to_owned(),
            "xdp" => " by AF_XDP".to_owned(),
            "aqm" => " with AQM".to_owned(),
            "v6" => " over IPv6".to_owned(),
            "esn" => ", ESN".to_owned(),
            "full" => ", full format".to_owned(),
            "implicit-iv" => ", implicit IV".to_owned(),
            "no-seq" => ", no sequence number".to_owned(),
            "per-cpu" => ", SA per CPU".to_owned(),
            "sub-sas" => ", Sub SA per CPU".to_owned(),
            other => match other.strip_prefix("sub-sas=") {
                Some(count) => format!(", {count} Sub SAs"),
                None => format!(", {other}"),
            },
        });
    }
    text
}

/// A direction for people.
pub(super) fn way(direction: Direction) -> &'static str {
    match direction {
        Direction::Out => "protecting",
        Direction::In => "opening",
        Direction::Both => "both ways",
    }
}

#[cfg(test)]
mod tests {
    use super::super::synthetic;
    use super::*;

    #[test]
    fn intervals_are_over_sessions_and_repeat() {
        let sessions = [vec![1.0, 2.0, 3.0], vec![2.0, 3.0, 4.0], vec![3.0, 4.0, 5.0]];
        let estimate = over_sessions(&sessions);
        assert_eq!(estimate.value, 3.0);
        assert!(estimate.low < 2.5 && estimate.high > 3.5, "three sessions give a wide interval: {estimate:?}");
        assert_eq!(estimate, over_sessions(&sessions));
        assert!(over_sessions(&[]).value.is_nan());
    }

    /// Between sessions the machine doubles its speed; within a round the ratio stays 1.1.
    #[test]
    fn ratios_are_taken_within_rounds() {
        let mut trials = Vec::new();
        for session in 0..4 {
            for (name, factor) in [("a", 1.1), ("b", 1.0)] {
                let mut trial = synthetic::trials().remove(0);
                (trial.session, trial.round, trial.subject) = (session, 0, name.into());
                trial.measured.received = 1000;
                trial.measured.tsc = Some((1e6 * factor * f64::from(1 << session)) as u64);
                trials.push(trial);
            }
        }
        let of = |name: &str| trials.iter().filter(|t| t.subject == name).collect::<Vec<_>>();
        let ratio = ratio(&of("a"), &of("b"));
        assert!((ratio.value - 1.1).abs() < 1e-5 && ratio.high - ratio.low < 1e-5, "{ratio:?}");
    }

    #[test]
    fn three_of_four_sessions_may_meet_other_load() {
        let sessions: Vec<Vec<f64>> = (0..8).map(|n| vec![100.0 + f64::from(n % 2), 150.0 + f64::from(n)]).collect();
        assert!((undisturbed(&sessions).value - 100.0).abs() < 1e-9);
        let loaded: Vec<Vec<f64>> = (0..8).map(|n| vec![if n < 2 { 100.0 } else { 150.0 }]).collect();
        let estimate = undisturbed(&loaded);
        assert!(estimate.value < 150.0 && estimate.low < 101.0 && estimate.high > 149.0, "{estimate:?}");
        assert_eq!(slower_mode(&loaded), Some(0.75));
        assert_eq!(slower_mode(&sessions), None);
        assert_eq!(slower_mode(&[vec![100.0], vec![150.0]]), None, "two sessions are too few");
    }

    #[test]
    fn the_noise_floor_is_the_widest_band() {
        let folder = synthetic::folder();
        let noise = folder.noise().unwrap();
        assert!((0.0..0.05).contains(&noise), "{noise}");
    }

    #[test]
    fn names_are_shown_to_people() {
        assert_eq!(shown("weir-esp-tunnel-aes128gcm16"), "ESP tunnel aes128gcm16");
        assert_eq!(shown("weir-esp-transport-aes128-sha256,udp"), "ESP transport aes128-sha256 in UDP");
        let sub = shown("weir-eesp-tunnel-aes128gcm16,udp,sub-sas");
        assert_eq!(sub, "EESP tunnel aes128gcm16 in UDP, Sub SA per CPU");
        assert_eq!(shown("wireguard-go"), "wireguard-go");
        assert_eq!(shown("cipher-esp-tunnel-aes128gcm16"), "bare cipher aes128gcm16");
    }
}
