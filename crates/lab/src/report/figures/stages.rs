//! Where the time of a packet goes: timers on each stage, and what is left when stages are switched off.

use super::exact;
use crate::campaign::Kind;
use crate::overhead::{IN, LADDER, OUT};
use crate::report::analysis::{Folder, Key, keys, over_sessions, shown, values, way};
use crate::report::chart::{WIDTH, short};
use crate::report::figure::{Data, Figure};
use crate::svg::{Anchor, Svg};
use crate::trial::{Direction, Trial};

pub(super) fn figures(folder: &Folder) -> Vec<Figure> {
    let trials = folder.of(Kind::Overheads);
    vec![
        parts(
            folder,
            &trials,
            "stages",
            "Stages of a packet",
            "stage.",
            true,
            "Each bar begins where the one before it ends. Timers on every stage, their own cost taken off.",
        ),
        parts(
            folder,
            &trials,
            "layers",
            "What each layer adds",
            "rung.",
            false,
            "The whole path with stages switched off at run time, from nothing but moving packets to everything. Each bar is the whole time so far.",
        ),
    ]
}

/// Values whose names have a prefix, one drawing per subject, size and direction.
fn parts(
    folder: &Folder,
    trials: &[&Trial],
    id: &'static str,
    title: &str,
    prefix: &str,
    stacked: bool,
    text: &str,
) -> Figure {
    let mut data = Data::new(&["subject", "direction", "bytes", "part", "ticks", "low", "high", "ns"]);
    let mut drawings = Vec::new();
    for key in keys(trials) {
        let mine: Vec<&Trial> = trials.iter().filter(|trial| Key::of(trial) == key).copied().collect();
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
    Figure { id, title: title.into(), text: text.into(), body: crate::report::figure::Body::Drawn(drawings, data) }
}

/// The parts in the order in which a packet meets them.
fn named(trials: &[&Trial], prefix: &str, direction: Direction) -> Vec<(String, crate::stats::Estimate)> {
    let stages = if direction == Direction::In { IN } else { OUT };
    let order: Vec<&str> = if prefix == "stage." {
        stages.iter().map(|stage| stage.key).collect()
    } else {
        LADDER.map(|(name, _)| name).into()
    };
    let estimate = |part: &str| {
        let name = format!("{prefix}{part}_ticks");
        over_sessions(&values(trials, |trial| trial.measured.values.get(&name).copied()))
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
