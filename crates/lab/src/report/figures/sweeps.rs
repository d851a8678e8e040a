//! One factor at a time: replay windows, SAs, rekeyings, energy.

use std::collections::BTreeMap;

use super::{Caption, cells, exact, label, style};
use crate::campaign::Kind;
use crate::metric::Metric;
use crate::report::analysis::{Folder, Key, keys, over_sessions, shown, ticks, undisturbed, values, way};
use crate::report::chart::{Axis, Bar, Chart, Rule, Series, bars, exactly, short, trimmed};
use crate::report::figure::{Data, Figure};
use crate::trial::{Direction, Trial};
use stats::Estimate;

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    vec![
        sweep(
            folder,
            Kind::Replay,
            Caption {
                id: "replay",
                title: "Replay window",
                text: "The window's size decides how much memory a received packet touches.",
            },
            "window, packets",
            |trial| trial.replay.into(),
        ),
        sweep(
            folder,
            Kind::Sas,
            Caption {
                id: "sas",
                title: "Number of SAs",
                text: "Packets go over all SAs in turn, so that its SA is cold in the caches. ESP and EESP store a key for each SA; \
             receivers of PSP derive it and keep a thousand.",
            },
            "SAs",
            |trial| trial.sas.into(),
        )
        .noted(crossover(folder).map_or_else(String::new, |text| text + ".")),
        memory(folder),
        keying(folder),
        daemon(folder),
        energy(folder),
        super::path::engines(folder),
    ]
}

fn sweep(
    folder: &Folder,
    kind: Kind,
    Caption { id, title, text }: Caption<'_>,
    axis: &str,
    factor: fn(&Trial) -> f64,
) -> Figure {
    let trials = folder.of(kind);
    let mut data = Data::new(&["subject", "direction", "traffic", axis, "ticks per packet", "low", "high"]);
    let x = Axis { text: count, ..Axis::log(axis) };
    let mut chart = Chart::new(title, x, Axis::linear("ticks per packet").covering(0.0, 1.0));
    for key in keys(&trials) {
        let mut by_factor: BTreeMap<u64, Vec<&Trial>> = BTreeMap::new();
        for trial in trials.iter().filter(|trial| Key::of(trial) == key) {
            by_factor.entry(factor(trial) as u64).or_default().push(trial);
        }
        let mut series = Series::new(&label(&key.subject, key.direction), style(folder, &key.subject));
        for (value, mine) in by_factor {
            let ticks = undisturbed(&values(&mine, ticks));
            // No window is leftmost.
            series.points.push((value.max(1) as f64, ticks));
            let mut row = vec![key.subject.clone(), way(key.direction).into(), key.traffic.clone(), value.to_string()];
            row.extend(cells(ticks));
            data.push(row);
        }
        chart.series.push(series);
    }
    if chart.series.iter().all(|series| series.points.is_empty()) {
        return Figure::absent(id, title, &folder.why_not(kind));
    }
    Figure::drawn(id, title, text, chart.draw(), data)
}

/// `4096`, `10k`, `1M`.
fn count(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", trimmed(v / 1e6)),
        v if v >= 1e4 => format!("{}k", trimmed(v / 1e3)),
        v => trimmed(v),
    }
}

/// Ticks per packet by number of SAs, of the first subject with this text in its name, opening or
/// else both directions.
fn by_sas(trials: &[&Trial], wanted: &str) -> Option<(Key, BTreeMap<u32, f64>)> {
    let all = keys(trials);
    let of = |direction| all.iter().find(|key| key.subject.contains(wanted) && key.direction == direction);
    let key = of(Direction::In).or_else(|| of(Direction::Both))?.clone();
    let mut by: BTreeMap<u32, Vec<&Trial>> = BTreeMap::new();
    for trial in trials.iter().filter(|trial| Key::of(trial) == key) {
        by.entry(trial.sas).or_default().push(trial);
    }
    Some((key, by.into_iter().map(|(sas, mine)| (sas, undisturbed(&values(&mine, ticks)).value)).collect()))
}

/// From how many SAs on deriving a key for a packet costs less than fetching a stored one.
pub(in crate::report) fn crossover(folder: &Folder) -> Option<String> {
    let trials = folder.of(Kind::Sas);
    let ((_, stored), (key, derived)) = (by_sas(&trials, "-esp-")?, by_sas(&trials, "-psp-")?);
    let both: Vec<(u32, f64, f64)> =
        stored.iter().filter_map(|(sas, ticks)| Some((*sas, *ticks, *derived.get(sas)?))).collect();
    let (last, stored, derived) = *both.last()?;
    let way = way(key.direction);
    let ends = format!(
        "{} ticks with stored keys and {} with derived ones at {last} SAs, {way}",
        short(stored),
        short(derived)
    );
    // From there on, not only there.
    let cheaper = both.iter().rev().take_while(|(_, stored, derived)| derived < stored).last();
    Some(match cheaper {
        Some((from, ..)) if *from == both[0].0 => {
            format!("Derived keys (PSP) cost less than stored ones (ESP) at every number: {ends}")
        }
        Some((from, ..)) => format!("Derived keys (PSP) cost less than stored ones (ESP) from {from} SAs on: {ends}"),
        None => format!("Stored keys (ESP) cost less than derived ones (PSP) up to {last} SAs: {ends}"),
    })
}

fn memory(folder: &Folder) -> Figure {
    let (id, title) = ("sa-memory", "Memory of an SA");
    let trials = folder.of(Kind::Sas);
    let mut data = Data::new(&["subject", "SAs", "bytes at the sender", "bytes at the receiver"]);
    let axis = |label| Axis { text: count, ..Axis::log(label) };
    let mut chart = Chart::new(title, axis("SAs"), Axis::linear("bytes per SA").covering(0.0, 1.0));
    let mut by: BTreeMap<(usize, String), BTreeMap<u32, Vec<&Trial>>> = BTreeMap::new();
    for trial in trials.iter().filter(|trial| trial.measured.values.get(Metric::SaBytesSender).is_some()) {
        let subject = by.entry((style(folder, &trial.subject), shown(&trial.subject))).or_default();
        subject.entry(trial.sas).or_default().push(trial);
    }
    for ((style, name), numbers) in by {
        let ends = [("sender", Metric::SaBytesSender, false), ("receiver", Metric::SaBytesReceiver, true)];
        let mut lines = ends.map(|(end, _, hollow)| Series { hollow, ..Series::new(&format!("{name}, {end}"), style) });
        for (sas, mine) in numbers {
            let bytes = ends.map(|(_, value, _)| over_sessions(&values(&mine, |t| t.measured.values.get(value))));
            for (line, bytes) in lines.iter_mut().zip(bytes) {
                line.points.push((f64::from(sas), bytes));
            }
            let bytes = bytes.map(|bytes| exact(bytes.value.round()));
            data.push([vec![name.clone(), sas.to_string()], bytes.into()].concat());
        }
        chart.series.extend(lines);
    }
    if chart.series.is_empty() {
        let why = if trials.is_empty() { folder.why_not(Kind::Sas) } else { "Too few SAs.".into() };
        return Figure::absent(id, title, &why);
    }
    let text = "Resident memory before and after so many SAs were set up, over their number: SA, replay window of the study, expanded key, and \
                the sender's policy for it. A receiver of PSP has one SA for all of a peer's SPIs, and no key.";
    Figure::drawn(id, title, text, chart.draw(), data)
}

/// Figures of keying, in memory and of a daemon.
const KEYING: [Metric<'static>; 13] = [
    Metric::IkeSasPerS,
    Metric::IkeSasPerSSlowest,
    Metric::IkeSasPerCpuS,
    Metric::ChildRekeysPerS,
    Metric::IkeRekeysPerS,
    Metric::IkeSaBytes,
    Metric::DaemonBytes,
    Metric::FloodUpMs,
    Metric::FloodHonestMissing,
    Metric::FloodCorePercent,
    Metric::FloodHalfOpenMax,
    Metric::FloodBytes,
    Metric::FloodAmplification,
];

fn keying(folder: &Folder) -> Figure {
    let text = "Two endpoints in memory on one thread: shown is the cost of both endpoints on one core. ECDSA P-256, X25519, AES-128-GCM. \
                A flood is 10,000 spoofed requests per second; its honest peer has a round trip of 20 ms.";
    rates_of(("keying", "Setting up and rekeying"), text, &folder.of(Kind::Keying), &folder.why_not(Kind::Keying))
}

fn daemon(folder: &Folder) -> Figure {
    let text = "'weir up' on one core, all its peers on another, with certificates, sockets, SAs, policies and routes. A flood is 10,000 \
                spoofed requests per second; of the honest peers the slowest counts.";
    let (trials, why) = (folder.outside(Kind::Keying), folder.why_not_outside(Kind::Keying));
    rates_of(("keying-daemon", "Setting up, of a whole daemon"), text, &trials, &why)
}

fn rates_of((id, title): (&'static str, &str), text: &str, trials: &[&Trial], why: &str) -> Figure {
    let of = |of: Metric<'_>| over_sessions(&values(trials, |trial| trial.measured.values.get(of)));
    let rows = KEYING.map(|metric| (metric.properties().label, metric.properties().unit, of(metric)));
    let rows: Vec<_> = rows.into_iter().filter(|(.., value)| value.value.is_finite()).collect();
    if rows.is_empty() {
        return Figure::absent(id, title, why);
    }
    let bar = |(what, _, rate): &(&str, &str, Estimate)| {
        let text = format!("{} per s, {} ms each", short(rate.value), short(1000.0 / rate.value));
        Bar { name: (*what).to_owned(), text, value: exactly(rate.value), style: 0 }
    };
    let rates: Vec<Bar> = rows.iter().filter(|(_, unit, _)| *unit == "per s").map(bar).collect();
    let mut data = Data::new(&["what", "value", "low", "high", "unit"]);
    for (what, unit, value) in &rows {
        data.push([vec![(*what).to_owned()], cells(*value).into(), vec![(*unit).to_owned()]].concat());
    }
    Figure::drawn(id, title, text, bars(title, &rates), data)
}

fn energy(folder: &Folder) -> Figure {
    let (id, title) = ("energy", "Energy by load");
    let trials: Vec<&Trial> =
        folder.of(Kind::Loss).into_iter().filter(|trial| trial.measured.joules.is_some()).collect();
    if trials.is_empty() {
        return Figure::absent(id, title, "No energy counter (RAPL) is available; most virtual machines have none.");
    }
    let mut chart = Chart::new(
        title,
        Axis::linear("offered, % of capacity").covering(0.0, 100.0),
        Axis::linear("J per Gbit").covering(0.0, 1.0),
    );
    chart.rules.push(Rule::Vertical(100.0, "capacity".into()));
    let mut data = Data::new(&["subject", "direction", "traffic", "offered, %", "J per Gbit"]);
    for key in keys(&trials) {
        let mut by_load: BTreeMap<u32, Vec<&Trial>> = BTreeMap::new();
        for trial in trials.iter().filter(|trial| Key::of(trial) == key) {
            let load = trial.measured.values.get(Metric::Load).unwrap_or(1.0);
            by_load.entry((load * 1000.0).round() as u32).or_default().push(trial);
        }
        let mut series = Series::new(&label(&key.subject, key.direction), style(folder, &key.subject));
        for (load, mine) in by_load {
            let per_gbit =
                |trial: &Trial| Some(trial.measured.joules? / (trial.measured.received_bytes as f64 * 8.0 / 1e9));
            let joules = over_sessions(&values(&mine, per_gbit));
            series.points.push((f64::from(load) / 10.0, joules));
            let percent = trimmed(f64::from(load) / 10.0);
            let names = [key.subject.clone(), way(key.direction).into(), key.traffic.clone()];
            data.push([&names[..], &[percent, exact(joules.value)]].concat());
        }
        chart.series.push(series);
    }
    let text = "Energy of the whole package over the bits that came out, idle power included.";
    Figure::drawn(id, title, text, chart.draw(), data)
}
