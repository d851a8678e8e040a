//! Where the time of a packet goes: timers on each stage, and the rest when stages are disabled.

use super::{Caption, exact};
use crate::campaign::Kind;
use crate::metric::Metric;
use crate::overhead::{IN, LADDER, OUT, SizeCost, Stage, both_methods, fixed_costs, methods_explained};
use crate::report::analysis::{Folder, Key, keys, of_key, over_sessions, shown, values, way};
use crate::report::chart::{WIDTH, short};
use crate::report::figure::{Data, Figure};
use crate::svg::{Anchor, Svg};
use crate::trial::{Direction, Trial};

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    let (pings, trials): (Vec<&Trial>, Vec<&Trial>) =
        folder.of(Kind::Overheads).into_iter().partition(|trial| trial.direction == Direction::Both);
    vec![
        parts(
            folder,
            &trials,
            Caption {
                id: "stages",
                title: "Stages of a packet",
                text: "Each bar begins at the end of the previous one. Timers on every stage; their cost is subtracted.",
            },
            "stage.",
            true,
        ),
        parts(
            folder,
            &trials,
            Caption {
                id: "layers",
                title: "Cost of each layer",
                text: "The whole path with stages switched off at run time, from nothing but moving packets to everything. Each bar is the whole time so far.",
            },
            "rung.",
            false,
        ),
        methods(folder, &trials),
        fixed(folder, &trials),
        layers_of_a_ping(folder, &pings),
        waterfall(folder, &pings),
    ]
}

/// Layers of a ping, with what each adds to native processing.
const LAYERS: [(&str, &str); 3] =
    [("native", "clear"), ("skeleton", "all but cryptography"), ("full", "with cryptography")];

/// One ping in clear, through everything but cryptography, and in full (table 3 of Shue and
/// others).
fn layers_of_a_ping(folder: &Folder, pings: &[&Trial]) -> Figure {
    let (id, title) = ("ping-layers", "One ping, request and reply");
    let head = ["subject", "bytes", "clear, µs", "no-op, µs", "full, µs", "cryptography, %"];
    let (mut data, mut drawings) = (Data::new(&head), Vec::new());
    for (key, mine) in by_key(pings) {
        let of = LAYERS.map(|(layer, name)| (name.to_owned(), figure_of(&mine, &format!("ping.{layer}"))));
        let share = over_sessions(&values(&mine, |t| t.measured.values.get(Metric::PingCryptoShare))).value;
        let micros = of.each_ref().map(|(_, ticks)| exact(ticks * 1e6 / folder.hz()));
        data.push([vec![shown(&key.subject), key.traffic.clone()], micros.into(), vec![exact(share * 100.0)]].concat());
        drawings.push(draw(&format!("{}, {} B", shown(&key.subject), key.traffic), &of, false));
    }
    let text = "The request is received and the reply is sent, one packet at a time: in clear, with the headers, tables and windows of the \
                protocol but an engine that does nothing, and in full. The share of cryptography is that of the cost above clear.";
    pinged(folder, pings, Figure::of(id, title, text, drawings, data))
}

/// From the request's first header to the reply's last (figures 4 and 5 of Shue and others).
fn waterfall(folder: &Folder, pings: &[&Trial]) -> Figure {
    let (id, title) = ("ping-waterfall", "Waterfall of a ping");
    let (mut data, mut drawings) = (Data::new(&["subject", "bytes", "direction", "stage", "ticks", "%"]), Vec::new());
    for (key, mine) in by_key(pings) {
        let of = |way: &'static str, stages: &[Stage]| -> Vec<(&'static str, &'static str)> {
            stages.iter().map(|stage| (way, stage.key)).collect()
        };
        let stages = [of("in", &IN), vec![("echo", "answer")], of("out", &OUT)].concat();
        let ticks = |(way, stage): (&str, &str)| figure_of(&mine, &format!("ping.{way}.{stage}"));
        let falls = stages.into_iter().map(|stage| (stage, ticks(stage))).filter(|(_, ticks)| ticks.is_finite());
        let falls: Vec<((&str, &str), f64)> = falls.collect();
        let whole: f64 = falls.iter().map(|(_, ticks)| ticks).sum();
        for ((way, stage), ticks) in &falls {
            let first = [shown(&key.subject), key.traffic.clone(), (*way).to_owned(), (*stage).to_owned()];
            data.push(first.into_iter().chain([exact(*ticks), exact(ticks * 100.0 / whole)]));
        }
        let bars: Vec<(String, f64)> =
            falls.iter().map(|((way, stage), ticks)| (format!("{way} {stage}"), *ticks)).collect();
        drawings.push(draw(&format!("{}, {} B", shown(&key.subject), key.traffic), &bars, true));
    }
    let text = "Timers at the ends of the stages of the request, of the reply and between; their cost is subtracted.";
    pinged(folder, pings, Figure::of(id, title, text, drawings, data))
}

/// The figure, where there are pings.
fn pinged(folder: &Folder, pings: &[&Trial], figure: Figure) -> Figure {
    let why = if folder.of(Kind::Overheads).is_empty() {
        folder.why_not(Kind::Overheads)
    } else {
        "Add the direction \"both\" to a study of overheads.".into()
    };
    if pings.is_empty() { Figure::absent(figure.id, &figure.title, &why) } else { figure }
}

/// Values with a name prefix, one drawing per subject, size and direction.
fn parts(
    folder: &Folder,
    trials: &[&Trial],
    Caption { id, title, text }: Caption<'_>,
    prefix: &str,
    stacked: bool,
) -> Figure {
    let mut data = Data::new(&["subject", "direction", "bytes", "part", "ticks", "low", "high", "ns"]);
    let mut drawings = Vec::new();
    for key in keys(trials) {
        let mine = of_key(trials, &key);
        let parts = named(&mine, prefix, key.direction);
        if parts.is_empty() {
            continue;
        }
        let name = format!("{}, {} B, {}", shown(&key.subject), key.traffic, way(key.direction));
        for (part, ticks) in &parts {
            let mut row = vec![shown(&key.subject), way(key.direction).into(), key.traffic.clone(), part.clone()];
            row.extend(super::cells(*ticks));
            row.push(exact(ticks.value / folder.hz() * 1e9));
            data.push(row);
        }
        let bars: Vec<(String, f64)> = parts.into_iter().map(|(part, ticks)| (part, ticks.value)).collect();
        drawings.push(draw(&name, &bars, stacked));
    }
    if drawings.is_empty() {
        let why = if trials.is_empty() {
            folder.why_not(Kind::Overheads)
        } else {
            format!("No trial of the study has a value '{prefix}…'.")
        };
        return Figure::absent(id, title, &why);
    }
    Figure::of(id, title, text, drawings, data)
}

/// A figure of the trials of one key, the mean of sessions.
fn figure_of(trials: &[&Trial], name: &str) -> f64 {
    over_sessions(&values(trials, |trial| trial.measured.values.get(Metric::Ticks(name)))).value
}

fn by_key<'a>(trials: &[&'a Trial]) -> Vec<(Key, Vec<&'a Trial>)> {
    keys(trials).into_iter().map(|key| (key.clone(), of_key(trials, &key))).collect()
}

/// Both methods beside each other, and where they differ.
fn methods(folder: &Folder, trials: &[&Trial]) -> Figure {
    let (id, title) = ("methods", "Ablation compared with timers");
    let head = [
        "subject",
        "direction",
        "bytes",
        "part",
        "ablation, ticks",
        "timers, ticks",
        "all parts: difference, %",
        "why",
    ];
    let mut data = Data::new(&head);
    let mut drawings = Vec::new();
    for (key, mine) in by_key(trials) {
        let methods = both_methods(|name| figure_of(&mine, name));
        let (left_out, stamped) = methods.iter().fold((0.0, 0.0), |sum, (_, a, b)| (sum.0 + a, sum.1 + b));
        let difference = 100.0 * (stamped / left_out - 1.0);
        if !difference.is_finite() {
            continue;
        }
        let why = methods_explained(&methods).unwrap_or_else(|| "they agree within 5 %".into());
        for (part, a, b) in &methods {
            data.push([
                shown(&key.subject),
                way(key.direction).into(),
                key.traffic.clone(),
                (*part).into(),
                exact(*a),
                exact(*b),
                format!("{difference:+.1}"),
                why.clone(),
            ]);
        }
        let name = format!("{}, {} B, {}: {difference:+.1} %", shown(&key.subject), key.traffic, way(key.direction));
        let bars: Vec<(String, f64)> = methods
            .iter()
            .flat_map(|(part, a, b)| [(format!("{part}: ablation"), *a), (format!("{part}: timers"), *b)])
            .collect();
        drawings.push(draw(&name, &bars, false));
    }
    let text = "Parts that both methods can distinguish. They need not agree: a timer waits for all earlier work. Where their sums differ by \
                more than 5 % the table states in which part, and why.";
    drawn_or_not(folder, id, title, text, drawings, data)
}

/// The fixed cost by a line through sizes and by the skeleton, and where they differ.
fn fixed(folder: &Folder, trials: &[&Trial]) -> Figure {
    let (id, title) = ("fixed-cost", "Fixed cost: line compared with no-op path");
    let cost = |(key, mine): (Key, Vec<&Trial>)| {
        let of = |name: &str| figure_of(&mine, name);
        let cost = SizeCost {
            size: f64::from(mine[0].size?),
            subject: key.subject,
            direction: key.direction,
            path: of("path"),
            path_null: of("path_null"),
            engine: of("engine"),
            engine_call: of("engine_call"),
        };
        [cost.path, cost.path_null, cost.engine, cost.engine_call].iter().all(|v| v.is_finite()).then_some(cost)
    };
    let costs: Vec<SizeCost> = by_key(trials).into_iter().filter_map(cost).collect();
    let mut data = Data::new(&[
        "subject",
        "direction",
        "line, ticks",
        "skeleton, ticks",
        "engine's part",
        "difference, %",
        "where",
    ]);
    let mut drawings = Vec::new();
    for found in fixed_costs(&costs) {
        data.push([
            shown(&found.subject),
            way(found.direction).into(),
            exact(found.regression),
            exact(found.skeleton),
            exact(found.engine),
            format!("{:+.1}", found.difference_percent),
            found.explanation().unwrap_or_else(|| "they agree within 5 %".into()),
        ]);
        let name = format!("{}, {}: {:+.1} %", shown(&found.subject), way(found.direction), found.difference_percent);
        let bars = [("line".to_owned(), found.regression), ("skeleton".to_owned(), found.skeleton)];
        drawings.push(draw(&name, &bars, false));
    }
    if !trials.is_empty() && drawings.is_empty() {
        return Figure::absent(id, title, "It needs overheads at three sizes or more.");
    }
    let text = "Line: where time over size meets size 0. No-op path: the path with the null engine, and the fixed part of the \
                engine alone. Where they differ by more than 5 % the table names the part.";
    drawn_or_not(folder, id, title, text, drawings, data)
}

fn drawn_or_not(
    folder: &Folder,
    id: &'static str,
    title: &str,
    text: &str,
    drawings: Vec<String>,
    data: Data,
) -> Figure {
    if drawings.is_empty() {
        return Figure::absent(id, title, &folder.why_not(Kind::Overheads));
    }
    Figure::of(id, title, text, drawings, data)
}

/// The parts in the order in which a packet meets them.
fn named(trials: &[&Trial], prefix: &str, direction: Direction) -> Vec<(String, stats::Estimate)> {
    let stages = if direction == Direction::In { IN } else { OUT };
    let order: Vec<&str> = if prefix == "stage." {
        stages.iter().map(|stage| stage.key).collect()
    } else {
        LADDER.map(|(name, _)| name).into()
    };
    let estimate = |part: &str| {
        let name = format!("{prefix}{part}");
        over_sessions(&values(trials, |trial| trial.measured.values.get(Metric::Ticks(&name))))
    };
    order
        .into_iter()
        .map(|part| (part.to_owned(), estimate(part)))
        .filter(|(_, ticks)| ticks.value.is_finite())
        .collect()
}

fn draw(name: &str, bars: &[(String, f64)], stacked: bool) -> String {
    const PITCH: f64 = 24.0;
    let total: f64 = if stacked {
        bars.iter().map(|(_, v)| v.max(0.0)).sum()
    } else {
        bars.iter().map(|(_, v)| *v).fold(0.0, f64::max)
    };
    let mut svg = Svg::new(WIDTH, bars.len() as f64 * PITCH + 22.0);
    svg.text(0.0, 12.0, Anchor::Start, "label", name);
    let mut start = 0.0;
    for (index, (part, ticks)) in bars.iter().enumerate() {
        let y = 20.0 + index as f64 * PITCH;
        let share = if total > 0.0 { ticks.max(0.0) / total } else { 0.0 };
        svg.text(0.0, y + 10.0, Anchor::Start, "tick", part);
        svg.text(WIDTH, y + 10.0, Anchor::End, "tick", &format!("{} ticks, {:.0} %", short(*ticks), share * 100.0));
        svg.rect(0.0, y + 14.0, WIDTH, 6.0, "track");
        svg.rect(WIDTH * start, y + 14.0, (WIDTH * share).max(0.5), 6.0, "s0-fill");
        start += if stacked { share } else { 0.0 };
    }
    svg.finish(name)
}
