//! Results of this run for the rows of the papers, each as short text with its unit.

use std::collections::BTreeMap;

use super::analysis::{
    Folder, Key, costs, keys, of_key, of_other, over_sessions, ratio, shown, ticks, undisturbed, values,
};
use super::chart::{short, trimmed};
use super::figures::Line;
use crate::campaign::Kind;
use crate::metric::Metric;
use crate::trial::{Direction, Trial};
use stats::Estimate;

/// Every fact, and the kind of study that it needs.
pub(super) const NAMES: [(&str, &str); 40] = [
    ("noise", "noise"),
    ("rates", "sizes"),
    ("suites", "sizes"),
    ("fixed", "sizes"),
    ("limit", "sizes"),
    ("half_way", "sizes"),
    ("line_error", "sizes"),
    ("psp_esp", "sizes"),
    ("cipher_share", "sizes"),
    ("rivals", "sizes"),
    ("held_out", "validate"),
    ("loss", "loss"),
    ("search", "search"),
    ("latency", "loss"),
    ("stages", "overheads"),
    ("layers", "overheads"),
    ("modes", "modes"),
    ("series", "series"),
    ("cores_busy", "series"),
    ("wire", "wire"),
    ("replay", "replay"),
    ("sas", "sas"),
    ("crossover", "sas"),
    ("keying", "keying"),
    ("rekey", "keying"),
    ("session_messages", "sessions"),
    ("session_operations", "sessions"),
    ("session_ends", "sessions"),
    ("session_whole", "sessions"),
    ("session_psk", "sessions"),
    ("session_aggressive", "sessions"),
    ("session_shares", "sessions"),
    ("session_break_even", "sessions"),
    ("scaling", "scaling"),
    ("law", "scaling"),
    ("schedulers", "scaling"),
    ("cores_by_size", "scaling"),
    ("spread", "scaling"),
    ("sub_sas", "scaling"),
    ("engine", "scaling"),
];

/// The kind of study that a fact needs.
pub(super) fn study(name: &str) -> Option<&'static str> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, study)| *study)
}

/// All facts that this run has.
pub(super) fn of(folder: &Folder) -> BTreeMap<&'static str, String> {
    let mut facts = BTreeMap::new();
    let mut add = |name: &'static str, text: Option<String>| {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            facts.insert(name, text);
        }
    };
    add("noise", folder.noise().map(|noise| format!("noise floor ±{} %", short(noise * 100.0))));
    sizes(folder, &mut add);
    add("held_out", held_out(folder));
    add("rivals", rivals(folder));
    add("loss", loss(folder));
    add("search", search(folder));
    add("latency", latency(folder));
    for (name, prefix) in [("stages", "stage."), ("layers", "rung.")] {
        add(name, parts(&folder.of(Kind::Overheads), prefix));
    }
    add("modes", modes(folder));
    add("series", series(folder));
    add("cores_busy", cores(folder));
    add("wire", wire(folder));
    add("replay", sweep(&folder.of(Kind::Replay), |trial| trial.replay, "window"));
    add("sas", sweep(&folder.of(Kind::Sas), |trial| trial.sas, "SAs"));
    add("crossover", super::figures::crossover(folder));
    super::figures::cores_facts(folder).into_iter().for_each(|(name, text)| add(name, Some(text)));
    add("engine", super::figures::engine_fact(folder));
    let keying = folder.of(Kind::Keying);
    let rate = |of: Metric<'_>| over_sessions(&values(&keying, |trial| trial.measured.values.get(of))).value;
    let ms = |of: Metric<'_>| Some(rate(of)).filter(|rate| rate.is_finite()).map(|rate| 1000.0 / rate);
    add(
        "keying",
        ms(Metric::IkeSasPerS)
            .map(|ms| format!("{} ms of CPU time for an IKE SA with a Child SA, both endpoints together", short(ms))),
    );
    super::figures::session_facts(folder).into_iter().for_each(|(name, text)| add(name, text));
    let rekeys = ms(Metric::ChildRekeysPerS).zip(ms(Metric::IkeRekeysPerS));
    add(
        "rekey",
        rekeys.map(|(child, ike)| {
            format!("{} ms to rekey a Child SA, {} ms an IKE SA, both endpoints together", short(child), short(ike))
        }),
    );
    facts
}

fn interval(estimate: Estimate) -> String {
    format!("{} [{}, {}]", short3(estimate.value), short3(estimate.low), short3(estimate.high))
}

fn short3(value: f64) -> String {
    if value.is_finite() { trimmed((value * 1e4).round() / 1e4) } else { "–".into() }
}

fn sizes(folder: &Folder, add: &mut impl FnMut(&'static str, Option<String>)) {
    let trials = folder.of(Kind::Sizes);
    let all = costs(&trials, folder.hz());
    let Some(first) = folder.studies(Kind::Sizes).next().map(|study| study.subjects[0].clone()) else {
        return;
    };
    let direction =
        if all.iter().any(|cost| cost.key.direction == Direction::Out) { Direction::Out } else { Direction::Both };
    let mine: Vec<_> =
        all.iter().filter(|c| c.key.subject == first && c.key.direction == direction && c.size.is_some()).collect();
    let mut sorted: Vec<_> = mine.iter().map(|cost| (cost.size, cost)).collect();
    sorted.sort_by_key(|(size, _)| *size);
    let rates = if mine.is_empty() {
        None
    } else {
        let list: Vec<String> =
            sorted.iter().map(|(_, c)| format!("{} at {} B", short(c.bps / 1e9), c.key.traffic)).collect();
        Some(format!("{}, one core, Gbit/s: {}", shown(&first), list.join(", ")))
    };
    add("rates", rates);
    if let Some(line) = Line::of(&all, &first, direction) {
        let hz = folder.hz();
        add("fixed", Some(format!("{} ticks = {} ns per packet", short(line.fixed), short(line.fixed / hz * 1e9))));
        add("limit", Some(format!("{} Gbit/s for large packets", short(hz / line.slope * 8.0 / 1e9))));
        add("half_way", Some(format!("{} B", short(line.fixed / line.slope))));
        add("line_error", Some(format!("{} %", short(line.worst * 100.0))));
    }
    let largest = mine.iter().filter_map(|cost| cost.size).max();
    let at_largest = |subject: &str| -> Vec<&Trial> {
        trials
            .iter()
            .filter(|t| t.subject == subject && t.size == largest && t.direction == direction)
            .copied()
            .collect()
    };
    let mut subjects: Vec<String> = keys(&trials).into_iter().map(|key| key.subject).collect();
    subjects.dedup();
    let against = |wanted: &str| {
        subjects
            .iter()
            .find(|subject| subject.contains(wanted))
            .map(|subject| ratio(&at_largest(subject), &at_largest(&first)))
    };
    add(
        "psp_esp",
        against("-psp-")
            .filter(|r| r.value.is_finite())
            .map(|r| format!("ticks of PSP over ESP at {} B: {}", largest.unwrap_or(0), interval(r))),
    );
    add(
        "cipher_share",
        against("cipher-").filter(|r| r.value.is_finite()).map(|r| {
            format!(
                "the bare cipher takes {} % of the time of a packet of {} B",
                short(r.value * 100.0),
                largest.unwrap_or(0)
            )
        }),
    );
    let list: Vec<String> = subjects
        .iter()
        .filter_map(|subject| {
            let cost =
                all.iter().find(|c| &c.key.subject == subject && c.size == largest && c.key.direction == direction)?;
            Some(format!("{} {}", shown(subject), short(cost.bps / 1e9)))
        })
        .collect();
    add(
        "suites",
        Some(format!("Gbit/s at {} B: {}", largest.unwrap_or(0), list.join(", "))).filter(|_| !list.is_empty()),
    );
}

fn held_out(folder: &Folder) -> Option<String> {
    let costs = folder.costs(Kind::Sizes);
    let errors: Vec<f64> = folder
        .costs(Kind::Validate)
        .iter()
        .filter(|cost| !cost.key.subject.starts_with("cipher-"))
        .filter_map(|cost| {
            let line = Line::of(&costs, &cost.key.subject, cost.key.direction)?;
            Some((line.at(f64::from(cost.size?)) / cost.ticks.value - 1.0).abs() * 100.0)
        })
        .collect();
    let largest = errors.iter().copied().fold(0.0, f64::max);
    (!errors.is_empty()).then(|| {
        format!(
            "the error of the line at {} held-out sizes is at most {} %, {} % in the median",
            errors.len(),
            short(largest),
            short(stats::median(&errors))
        )
    })
}

fn loss(folder: &Folder) -> Option<String> {
    let trials = folder.of(Kind::Loss);
    let clean = trials
        .iter()
        .filter(|t| t.measured.loss_ratio() == 0.0)
        .filter_map(|t| t.measured.values.get(Metric::Load))
        .fold(f64::NAN, f64::max);
    let lossy = trials
        .iter()
        .filter(|t| t.measured.loss_ratio() > 0.005)
        .filter_map(|t| t.measured.values.get(Metric::Load))
        .fold(f64::NAN, f64::min);
    (!trials.is_empty()).then(|| match (clean.is_finite(), lossy.is_finite()) {
        (_, true) => format!(
            "no loss up to {} % of the capacity, more than 0.5 % from {} % on",
            short(clean * 100.0),
            short(lossy * 100.0)
        ),
        _ => format!("no loss up to {} % of the capacity", short(clean * 100.0)),
    })
}

/// Throughput of each subject between hosts, at the most common traffic.
fn rivals(folder: &Folder) -> Option<String> {
    let all = super::figures::through(folder);
    let traffic = all.first()?.key.traffic.clone();
    let list: Vec<String> = all
        .iter()
        .filter(|through| through.key.traffic == traffic)
        .map(|through| format!("{} {}", shown(&through.key.subject), short(through.gbps.value)))
        .collect();
    Some(format!("between hosts, Gbit/s at {traffic} B: {}", list.join(", ")))
}

/// Throughput of the first subject that was searched, for each goal.
fn search(folder: &Folder) -> Option<String> {
    let all = super::figures::throughputs(folder);
    let first = all.first()?.key.clone();
    let list: Vec<String> = all
        .iter()
        .filter(|found| found.key == first)
        .map(|found| {
            let kpps = found.pps.map(|pps| pps / 1e3);
            format!("{} {} [{}, {}]", found.allows, short(kpps.value), short(kpps.low), short(kpps.high))
        })
        .collect();
    Some(format!("RFC 9971, kpps of {} at {}: {}", first.shown(), first.traffic, list.join(", ")))
}

fn latency(folder: &Folder) -> Option<String> {
    super::figures::latency_words(folder)
}

/// The three dearest parts with their shares.
fn parts(trials: &[&Trial], prefix: &str) -> Option<String> {
    let key = keys(trials).into_iter().next()?;
    let mine = of_key(trials, &key);
    let mut names: Vec<&str> =
        mine.iter().flat_map(|t| t.measured.values.parts(prefix)).map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    let mut parts: Vec<(String, f64)> = names
        .into_iter()
        .map(|name| {
            let ticks = over_sessions(&values(&mine, |trial| trial.measured.values.get(Metric::Ticks(name)))).value;
            (name.trim_start_matches(prefix).replace('_', " "), ticks)
        })
        .collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let list: Vec<String> = parts.iter().take(4).map(|(name, ticks)| format!("{name} {}", short(*ticks))).collect();
    (!list.is_empty()).then(|| format!("{} B, ticks: {}", key.traffic, list.join(", ")))
}

/// Cost in memory and round trips between hosts, as far as either was measured.
fn modes(folder: &Folder) -> Option<String> {
    let round_trip = super::figures::pairs(folder).into_iter().next().map(|pair| {
        let (ratio, verdict) = (interval(pair.ratio.ratio), pair.judged.verdict);
        format!("median round trip of transport over tunnel between hosts, {}: {ratio}, {verdict}", pair.label())
    });
    let both: Vec<String> = modes_in_memory(folder).into_iter().chain(round_trip).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

fn modes_in_memory(folder: &Folder) -> Option<String> {
    let trials = folder.of(Kind::Modes);
    let all = keys(&trials);
    let tunnel = all.iter().find(|key| key.subject.contains("-tunnel-"))?;
    let other = tunnel.subject.replace("-tunnel-", "-transport-");
    let ratio = ratio(&of_key(&trials, tunnel), &of_other(&trials, tunnel, &other));
    ratio
        .value
        .is_finite()
        .then(|| format!("ticks of tunnel over transport at {} B: {}", tunnel.traffic, interval(ratio)))
}

fn series(folder: &Folder) -> Option<String> {
    let trials = over_time(folder);
    let mut all = keys(&trials);
    let first = Key::of(trials.first()?);
    // In the order of the measurements: plain forwarding, if present.
    all.sort_by_key(|key| *key != first);
    let one = |key: &Key| {
        let mut rates: Vec<f64> =
            trials.iter().filter(|t| Key::of(t) == *key).map(|t| t.measured.bps() / 1e9).collect();
        let change = stats::analyse(&rates, None, &mut stats::Rng::new(1));
        let levels = change.map_or(1, |analysis| analysis.phases.len());
        let samples = rates.len();
        let mean = rates.iter().sum::<f64>() / samples as f64;
        rates.iter_mut().for_each(|rate| *rate = (*rate / mean - 1.0).powi(2));
        let cv = (rates.iter().sum::<f64>() / samples as f64).sqrt();
        let levels = if levels > 1 { format!(", {levels} levels") } else { String::new() };
        format!("{}: {} Gbit/s over {samples} samples, CV {} %{levels}", key.shown(), short(mean), short(cv * 100.0))
    };
    Some(all.iter().take(4).map(one).collect::<Vec<_>>().join("; "))
}

/// Samples of TCP between hosts, where there are any: as in the thesis.
fn over_time(folder: &Folder) -> Vec<&Trial> {
    let hosts = folder.outside(Kind::Series);
    if hosts.is_empty() { folder.of(Kind::Series) } else { hosts }
}

fn cores(folder: &Folder) -> Option<String> {
    let all = over_time(folder);
    // The last: the first one may be plain forwarding.
    let last = Key::of(all.last()?);
    let trials: Vec<&Trial> = all.into_iter().filter(|trial| Key::of(trial) == last).collect();
    let busy: Vec<String> = (0..64)
        .map_while(|core| {
            let busy = Metric::Processor(core, "busy");
            let seen: Vec<f64> = trials.iter().filter_map(|t| t.measured.values.get(busy)).collect();
            (!seen.is_empty()).then(|| format!("{:.0}", seen.iter().sum::<f64>() / seen.len() as f64))
        })
        .collect();
    (!busy.is_empty()).then(|| format!("busy per core, %, with {}: {}", last.shown(), busy.join(", ")))
}

fn wire(folder: &Folder) -> Option<String> {
    let trials = folder.of(Kind::Wire);
    let mut seen: Vec<String> = Vec::new();
    for trial in &trials {
        let (Some(outer), Some(size)) = (trial.measured.values.get(Metric::WireBytes), trial.size) else { continue };
        let text = format!("{} +{}", shown(&trial.subject), trimmed(outer - f64::from(size)));
        if trial.size.is_some_and(|size| Some(size) == trials.iter().filter_map(|t| t.size).max())
            && !seen.contains(&text)
        {
            seen.push(text);
        }
    }
    (!seen.is_empty()).then(|| format!("bytes added to the largest packet: {}", seen.join(", ")))
}

fn sweep(trials: &[&Trial], factor: fn(&Trial) -> u32, unit: &str) -> Option<String> {
    let key = keys(trials).into_iter().next()?;
    let mut by: BTreeMap<u32, Vec<&Trial>> = BTreeMap::new();
    for trial in trials.iter().filter(|trial| Key::of(trial) == key) {
        by.entry(factor(trial)).or_default().push(trial);
    }
    let list: Vec<String> = by
        .into_iter()
        .map(|(value, mine)| format!("{value}: {}", short(undisturbed(&values(&mine, ticks)).value)))
        .collect();
    Some(format!("ticks per packet by {unit}: {}", list.join(", ")))
}
