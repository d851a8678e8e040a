//! Between hosts: rates and round trips of whole programs, Weir's and others', with the kernel
//! above and below.

use std::collections::BTreeMap;

use super::compare::{ForestRow, draw};
use super::load::histogram;
use super::{cells, exact, style};
use crate::campaign::{Kind, Place};
use crate::metric::Metric;
use crate::report::analysis::{Folder, Key, keys, log_ratios, over_sessions, shown, typical, values};
use crate::report::chart::{Axis, Bar, Chart, Series, bars, short, trimmed};
use crate::report::figure::{Data, Figure};
use crate::trial::{Direction, Trial};
use stats::{Estimate, Judged, Limits, Ratio, Rng, Verdict, judge_all, paired};

/// Difference of round trips that does not matter, as a share.
const MARGIN: f64 = 0.05;

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    vec![rates(folder), round_trips(folder), modes(folder)]
}

/// Initiating host.
fn initiator(direction: Direction) -> &'static str {
    if direction == Direction::In { "from moon" } else { "from sun" }
}

/// Throughput of one subject at the maximum rate.
#[derive(Clone, Debug)]
pub(in crate::report) struct Through {
    pub(in crate::report) key: Key,
    pub(in crate::report) gbps: Estimate,
    kpps: Estimate,
    lost_percent: f64,
    /// Processor time of the subject's programs per packet, in nanoseconds; `NaN` where the kernel
    /// does the work, or a box of the user's.
    cpu_ns: f64,
}

/// Rates outside of memory.
pub(in crate::report) fn through(folder: &Folder) -> Vec<Through> {
    let trials = folder.outside(Kind::Sizes);
    let one = |key: Key| {
        let mine: Vec<&Trial> =
            trials.iter().filter(|t| Key::of(t) == key && t.offered_pps.is_none()).copied().collect();
        let over = |read: fn(&Trial) -> Option<f64>| over_sessions(&values(&mine, read));
        let per_packet = |t: &Trial| Some(t.measured.cpu_ns? as f64 / t.measured.received as f64);
        let gbps = over(|t| Some(t.measured.bps() / 1e9));
        let kpps = over(|t| Some(t.measured.pps() / 1e3));
        let lost_percent = over(|t| Some(t.measured.loss_ratio() * 100.0)).value;
        Through { key, gbps, kpps, lost_percent, cpu_ns: over(per_packet).value }
    };
    keys(&trials).into_iter().map(one).filter(|through| through.gbps.value.is_finite()).collect()
}

fn rates(folder: &Folder) -> Figure {
    let (id, title) = ("hosts", "Throughput between hosts");
    let all = through(folder);
    if all.is_empty() {
        return Figure::absent(id, title, &folder.why_not_outside(Kind::Sizes));
    }
    let head =
        ["subject", "traffic", "Gbit/s", "low", "high", "kpps", "low", "high", "lost, %", "processor, ns/packet"];
    let mut data = Data::new(&head);
    let mut rates = Vec::new();
    for through in &all {
        let cpu = match through.key.place {
            _ if through.cpu_ns.is_finite() => format!("{} µs/packet", short(through.cpu_ns / 1e3)),
            Place::Interfaces => "processor not known".into(),
            Place::Memory | Place::Namespaces => "in the kernel".into(),
        };
        rates.push(Bar {
            name: format!("{}, {}", shown(&through.key.subject), through.key.traffic),
            text: format!("{} Gbit/s, {cpu}", short(through.gbps.value)),
            value: through.gbps,
            style: style(folder, &through.key.subject),
        });
        let mut row = vec![through.key.shown(), through.key.traffic.clone()];
        row.extend(cells(through.gbps));
        row.extend(cells(through.kpps));
        row.extend([exact(through.lost_percent), exact(through.cpu_ns)]);
        data.push(row);
    }
    Figure::drawn(id, title, &caption(&all), bars(title, &rates), data)
}

/// Caption of the figure of rates, for the places in it.
fn caption(all: &[Through]) -> String {
    let there = |place: Place| all.iter().any(|through| through.key.place == place);
    let mut text =
        "Sockets send at the maximum rate; received inner bits, with the 95 % interval over sessions.".to_owned();
    if there(Place::Namespaces) {
        text += " Between two network namespaces packets pass both endpoints of a subject and a cable; all share the cores of this machine \
                 with the generator, and processor time is that of the subject's programs at both ends. WireGuard has one suite: its like is \
                 chacha20poly1305.";
    }
    if there(Place::Interfaces) {
        text += " Between two configured addresses packets pass external equipment; its CPU time is unknown.";
    }
    text
}

/// Key of a group of pings: delay in milliseconds, initiating host.
type PingKey = (u32, Direction);

fn delay(trial: &Trial) -> u32 {
    trial.measured.values.get(Metric::DelayMs).map_or(0, |ms| ms as u32)
}

fn rtt(trial: &Trial) -> Option<f64> {
    trial.measured.values.get(Metric::RttP50)
}

fn round_trips(folder: &Folder) -> Figure {
    let (id, title) = ("rtt", "Round trips by size");
    let trials = folder.outside(Kind::Modes);
    let mut groups: BTreeMap<PingKey, BTreeMap<usize, BTreeMap<u32, Vec<&Trial>>>> = BTreeMap::new();
    for trial in trials.iter().filter(|trial| rtt(trial).is_some()) {
        let Some(size) = trial.size else { continue };
        let subjects = groups.entry((delay(trial), trial.direction)).or_default();
        subjects.entry(style(folder, &trial.subject)).or_default().entry(size).or_default().push(trial);
    }
    if groups.is_empty() {
        return Figure::absent(id, title, &folder.why_not_outside(Kind::Modes));
    }
    let head = [
        "subject",
        "initiator",
        "delay, ms",
        "bytes",
        "median, µs",
        "low",
        "high",
        "p90",
        "p99",
        "p99.9",
        "answers",
        "lost",
        "bytes on the wire",
    ];
    let mut data = Data::new(&head);
    let mut drawings = Vec::new();
    for ((delay, direction), subjects) in groups {
        let title = match delay {
            0 => initiator(direction).to_owned(),
            ms => format!("{}, {ms} ms of delay each way", initiator(direction)),
        };
        let sizes: Vec<u32> = subjects.values().flat_map(|sizes| sizes.keys().copied()).collect();
        let mut chart = Chart::new(&title, size_axis(sizes), Axis::linear("median, µs").covering(0.0, 1.0));
        // There are few styles: these are distinguishable.
        for (style, sizes) in subjects.into_values().enumerate() {
            let name = sizes.values().next().map_or_else(String::new, |mine| shown(&mine[0].subject));
            let mut series = Series::new(&name, style);
            for (size, mine) in sizes {
                let median = typical(&values(&mine, rtt));
                series.points.push((f64::from(size), median));
                let all = histogram(&mine);
                let at = |percent| {
                    let ns = all.as_ref().and_then(|all| all.percentile_ns(percent));
                    ns.map_or_else(|| "–".into(), |ns| exact(ns as f64 / 1e3))
                };
                let wire = over_sessions(&values(&mine, |t| t.measured.values.get(Metric::WireBytes))).value;
                let sum = |read: fn(&Trial) -> u64| mine.iter().map(|t| read(t)).sum::<u64>().to_string();
                let mut row = vec![name.clone(), initiator(direction).into(), delay.to_string(), size.to_string()];
                row.extend(cells(median));
                row.extend([
                    at(90.0),
                    at(99.0),
                    at(99.9),
                    sum(|t| t.measured.received),
                    sum(|t| t.measured.lost.total()),
                ]);
                row.push(exact(wire));
                data.push(row);
            }
            chart.series.push(series);
        }
        drawings.push(format!("<h4>{}</h4>{}", crate::svg::escape(&title), chart.draw()));
    }
    let text = "Pings through each subject, one after the other, in rounds that run forwards and backwards. The median of each session's rounds \
                with its 95 % interval; percentiles of all answers, those of which a hundred lie beyond them, and bytes that the cable \
                counted, are in the data.";
    Figure::of(id, title, text, drawings, data).noted(lateness(&trials).unwrap_or_default())
}

/// Timing accuracy of the cables that delay frames: of those with the latest ones.
fn lateness(trials: &[&Trial]) -> Option<String> {
    let most = |of: Metric<'_>| {
        let all = trials.iter().filter_map(|trial| trial.measured.values.get(of));
        all.max_by(f64::total_cmp)
    };
    let dropped = most(Metric::CableDropped)?;
    let late = ["p50", "p99", "max"].map(|of| most(Metric::CableLate(of)).map_or_else(|| "–".into(), short));
    let [median, p99, largest] = late;
    Some(format!(
        "Frames left the cable late by {median} µs (median; 99th percentile {p99}, largest {largest}), and it dropped {}.",
        trimmed(dropped)
    ))
}

fn size_axis(mut sizes: Vec<u32>) -> Axis {
    sizes.sort_unstable();
    sizes.dedup();
    Axis { ticks: Some(sizes.into_iter().map(f64::from).collect()), ..Axis::log("inner packet, bytes") }
}

/// Transport over tunnel.
#[derive(Clone, Debug)]
pub(in crate::report) struct Pair {
    tunnel: String,
    size: String,
    direction: Direction,
    delay: u32,
    figure: &'static str,
    pub(in crate::report) ratio: Ratio,
    pub(in crate::report) judged: Judged,
}

impl Pair {
    /// `ESP tunnel aes128gcm16, 160 B`.
    pub(in crate::report) fn label(&self) -> String {
        format!("{}, {} B", shown(&self.tunnel).replace("tunnel ", ""), self.size)
    }
}

/// Figures of a round trip that are compared: key in trials, and name.
const FIGURES: [(Metric<'static>, &str); 2] = [(Metric::RttP50, "p50"), (Metric::RttP99, "p99")];

/// Every tunnel with its transport mode, judged together against the margin and against how much
/// equals differ on other hosts.
pub(in crate::report) fn pairs(folder: &Folder) -> Vec<Pair> {
    let trials = folder.outside(Kind::Modes);
    let noise = folder.outside(Kind::Noise);
    let mut rng = Rng::new(1);
    let mut found: Vec<(Pair, Limits)> = Vec::new();
    let delays: std::collections::BTreeSet<u32> = trials.iter().map(|trial| delay(trial)).collect();
    let tunnels =
        keys(&trials).into_iter().filter(|key| key.subject.contains("-tunnel-") && key.place == Place::Namespaces);
    for key in tunnels {
        let transport = key.subject.replace("-tunnel-", "-transport-");
        for &delay_ms in &delays {
            let of = |subject: &str| -> Vec<&Trial> {
                let wanted = Key { subject: subject.to_owned(), ..key.clone() };
                trials.iter().filter(|t| Key::of(t) == wanted && delay(t) == delay_ms).copied().collect()
            };
            for (figure, name) in FIGURES {
                let read = |trial: &Trial| trial.measured.values.get(figure);
                let Some(ratio) = paired(&log_ratios(&of(&transport), &of(&key.subject), read), &mut rng) else {
                    continue;
                };
                let limits =
                    Limits { floor: floor(&noise, read, &mut rng).unwrap_or(0.0), margin: Some(MARGIN.ln_1p()) };
                let judged =
                    Judged { verdict: Verdict::Inconclusive, why: String::new(), p_different: 1.0, p_equivalent: None };
                let pair = Pair {
                    tunnel: key.subject.clone(),
                    size: key.traffic.clone(),
                    direction: key.direction,
                    delay: delay_ms,
                    figure: name,
                    ratio,
                    judged,
                };
                found.push((pair, limits));
            }
        }
    }
    let family: Vec<(&Ratio, Limits)> = found.iter().map(|(pair, limits)| (&pair.ratio, *limits)).collect();
    let judged = judge_all(&family);
    found.into_iter().zip(judged).map(|((pair, _), judged)| Pair { judged, ..pair }).collect()
}

/// Noise floor: the largest difference of identical subjects on separate hosts.
fn floor(noise: &[&Trial], read: impl Fn(&Trial) -> Option<f64> + Copy, rng: &mut Rng) -> Option<f64> {
    let reach = |key: Key| {
        let arm = |arm: f64| -> Vec<&Trial> {
            let mine = noise.iter().filter(|t| Key::of(t) == key && t.measured.values.get(Metric::Arm) == Some(arm));
            mine.copied().collect()
        };
        paired(&log_ratios(&arm(1.0), &arm(0.0), read), rng).map(|ratio| ratio.reach())
    };
    keys(noise).into_iter().filter_map(reach).max_by(f64::total_cmp)
}

fn modes(folder: &Folder) -> Figure {
    let (id, title) = ("rtt-modes", "Round trips: transport over tunnel");
    let pairs = pairs(folder);
    if pairs.is_empty() {
        return Figure::absent(id, title, &folder.why_not_outside(Kind::Modes));
    }
    let head =
        ["pair", "figure", "initiator", "delay, ms", "bytes", "transport / tunnel", "low", "high", "verdict", "why"];
    let mut data = Data::new(&head);
    let mut rows = Vec::new();
    for pair in &pairs {
        let verdict = match pair.judged.verdict {
            Verdict::Different => "different",
            Verdict::Equivalent => "equivalent",
            Verdict::Inconclusive => "inconclusive",
        };
        let mut row =
            vec![shown(&pair.tunnel).replace("tunnel ", ""), pair.figure.into(), initiator(pair.direction).into()];
        row.extend([pair.delay.to_string(), pair.size.clone()]);
        row.extend(cells(pair.ratio.ratio));
        row.extend([verdict.to_owned(), pair.judged.why.clone()]);
        data.push(row);
        // The plot is of medians: tails are in the data.
        if pair.figure == FIGURES[0].1 {
            let delay = if pair.delay > 0 { format!(", {} ms", pair.delay) } else { String::new() };
            let name =
                format!("{}{delay}, {}", pair.label(), if pair.direction == Direction::In { "moon" } else { "sun" });
            rows.push(ForestRow {
                name,
                style: style(folder, &pair.tunnel),
                ratio: pair.ratio.ratio,
                note: verdict.to_owned(),
            });
        }
    }
    let measured = !folder.outside(Kind::Noise).is_empty();
    let text = format!(
        "Ratio of the medians of a round, transport over tunnel, with its 95 % interval over sessions. Grey: the margin, ±{} %. 'equivalent' \
         means that two one-sided tests reject so large a difference and that equals on other hosts differ by less{}. The 99th \
         percentiles are in the data.",
        trimmed(MARGIN * 100.0),
        if measured { "" } else { " (not measured in this campaign)" }
    );
    Figure::drawn(id, title, &text, draw(title, &rows, MARGIN), data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::synthetic;

    #[test]
    fn rates_say_of_their_places_what_is_known() {
        let mut folder = synthetic::folder();
        let shown = |folder: &Folder| {
            let figure = rates(folder);
            (figure.html().matches("processor not known").count(), figure.text)
        };
        let (unknown, text) = shown(&folder);
        assert!(unknown == 0 && text.contains("two network namespaces") && !text.contains("addresses"), "{text}");
        let boxes =
            folder.trials.iter_mut().filter(|trial| trial.study == "between" && trial.subject == "wireguard-go");
        boxes.for_each(|trial| (trial.place, trial.measured.cpu_ns) = (Place::Interfaces, None));
        let (unknown, text) = shown(&folder);
        assert!(
            unknown == 1 && text.contains("two network namespaces") && text.contains("two configured addresses"),
            "{text}"
        );
        folder.trials.retain(|trial| trial.place == Place::Interfaces);
        let (unknown, text) = shown(&folder);
        assert!(unknown == 1 && !text.contains("namespaces") && text.contains("two configured addresses"), "{text}");
    }
}
