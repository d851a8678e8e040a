//! The screens of `weir top`: a header of three lines, a table, details of what is selected, and
//! the keys.

use std::time::Instant;

use super::app::{App, Link, Screen};
use super::pen::{Look, Pen, Tone, brief, most};
use super::tables;
use crate::rates::{Track, short};
use crate::status::connection::State;
use crate::status::{span, wrapped};
use ratatui::buffer::Buffer;

/// Smallest terminal that has room for a table.
const LEAST: (u16, u16) = (40, 8);
/// Lines of a terminal from which on details of the selected row are shown.
const DETAILED: u16 = 16;
/// Header lines.
pub(super) const HEAD: u16 = 3;

/// Lines of the table, and of what is around it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// First line below the header.
    pub(super) top: u16,
    /// Line after the table.
    pub(super) bottom: u16,
    /// First line of the details, if there is room.
    pub(super) details: Option<u16>,
}

/// Draws everything.
pub(super) fn draw(app: &mut App, buffer: &mut Buffer, look: Look, now: Instant) {
    let mut pen = Pen { buffer, look };
    let (width, height) = (pen.width(), pen.height());
    if width < LEAST.0 || height < LEAST.1 {
        pen.put(0, 0, width, &format!("{width}x{height}: use {}x{} or more", LEAST.0, LEAST.1), Tone::Plain);
        return;
    }
    head(app, &mut pen, now);
    let keys = height - 1;
    let details = (height >= DETAILED).then(|| keys - 2);
    let frame = Frame { top: HEAD, bottom: details.map_or(keys, |details| details - 1), details };
    if app.help {
        help(&mut pen);
    } else {
        match app.screen {
            Screen::Connections => tables::connections(app, &mut pen, frame),
            Screen::Sas => tables::sas(app, &mut pen, frame),
            Screen::Drops => tables::drops(app, &mut pen, frame),
            Screen::Workers => tables::workers(app, &mut pen, frame),
            Screen::Log => tables::log(app, &mut pen, frame),
        }
    }
    if let Some(at) = frame.details {
        let rule = if look.unicode { "─" } else { "-" }.repeat(width.into());
        pen.put(0, at - 1, width, &rule, Tone::Faint);
        if let Link::Lost(_, why) = &app.link {
            for (line, text) in wrapped(why, 1, width.into()).lines().take(2).enumerate() {
                pen.put(0, at + line as u16, width, text, Tone::Bad);
            }
        }
    }
    bottom(app, &mut pen, keys);
}

/// Draws the connections, for a reader that presses no key.
pub(super) fn draw_once(app: &mut App, buffer: &mut Buffer, look: Look) {
    let mut pen = Pen { buffer, look };
    head(app, &mut pen, Instant::now());
    let frame = Frame { top: HEAD, bottom: pen.height() - 1, details: None };
    tables::connections(app, &mut pen, frame);
}

fn head(app: &App, pen: &mut Pen<'_>, now: Instant) {
    let width = pen.width();
    let x = pen.put_on(1, 0, width, &format!("weir on {}", app.host), Tone::Strong) + 3;
    match &app.status {
        None => pen.put(x, 0, width, "connecting …", Tone::Faint),
        Some(status) => {
            let mut x = pen.put_on(x, 0, width, &format!("up {}", brief(status.head.uptime_s as u64)), Tone::Plain) + 3;
            if !status.head.healthy {
                x = pen.put_on(x, 0, width, "NOT HEALTHY: a worker stopped or hangs", Tone::Alarm) + 3;
            }
            let count = status.connections.len();
            x = pen.put_on(
                x,
                0,
                width,
                &format!("{count} connection{}", if count == 1 { "" } else { "s" }),
                Tone::Plain,
            );
            let states = [State::Up, State::Partial, State::Connecting, State::Down, State::Trapped, State::Idle];
            let mut between = ": ";
            for state in states {
                let of_state = status.connections.iter().filter(|connection| connection.state == state).count();
                if of_state > 0 {
                    x = pen.put_on(x, 0, width, between, Tone::Plain);
                    x = pen.put_on(x, 0, width, &format!("{of_state} {}", state.word()), tone(state, true));
                    between = ", ";
                }
            }
        }
    }
    if let Link::Lost(since, why) = &app.link {
        let silent = now.saturating_duration_since(*since).as_secs();
        let text = format!(" no answer for {}, trying again: {why}", span(silent));
        pen.put(0, 1, width, &text, Tone::Alarm);
        pen.tint(1, Tone::Alarm);
    } else {
        throughput(app, pen);
    }
    let mut x = 1;
    for screen in Screen::TABS {
        let active = screen.title() == app.screen.title();
        x = pen.put_on(
            x,
            2,
            width,
            &format!(" {} ", screen.title()),
            if active { Tone::Selected } else { Tone::Plain },
        ) + 1;
    }
    let right = match app.screen {
        Screen::Connections => app.sort.word().to_owned(),
        Screen::Sas => app.line().map(|line| format!("SAs of {}", line.name())).unwrap_or_default(),
        _ => String::new(),
    };
    if usize::from(x) + right.chars().count() < width.into() {
        pen.put_right(x, 2, width - x - 1, &right, Tone::Faint);
    }
}

/// Whole gateway: plaintext delivered and protected, and drops.
fn throughput(app: &App, pen: &mut Pen<'_>) {
    let width = pen.width();
    let Some(flow) = app.history.flows().back() else {
        let text = if app.status.is_some() { "rates follow with the next sample" } else { "" };
        pen.put(1, 1, width, text, Tone::Faint);
        return;
    };
    let spark = if width >= 70 { (width - 50).min(60) / 2 } else { 0 };
    let mut x = 1;
    for (word, value, incoming) in [("in", flow.incoming, true), ("out", flow.outgoing, false)] {
        x = pen.put_on(x, 1, width, word, Tone::Faint) + 1;
        x = pen.put_on(x, 1, width, &format!("{}bit/s", joined(&short(value.into()))), Tone::Strong) + 1;
        let flows = app.history.flows().iter().map(|flow| if incoming { flow.incoming } else { flow.outgoing });
        pen.spark(x, 1, spark, flows, Tone::Flow);
        x += spark + 2;
    }
    let drops: f64 = app.rates.drops().iter().filter_map(|drop| drop.per_second).sum();
    let alarm = if drops > 0.0 { Tone::Warn } else { Tone::Faint };
    pen.put(x, 1, width, &format!("dropped {}/s", short(drops)), alarm);
}

/// `12.3 ` and `12.3 k`: a unit follows.
fn joined(number: &str) -> String {
    if number.contains(' ') { number.to_owned() } else { format!("{number} ") }
}

/// `counted`: as a number of connections, where what is well needs no attention.
pub(super) fn tone(state: State, counted: bool) -> Tone {
    match state {
        State::Up => Tone::Good,
        State::Partial | State::Connecting => Tone::Warn,
        State::Down => Tone::Bad,
        State::Trapped | State::Idle if counted => Tone::Plain,
        State::Trapped | State::Idle => Tone::Faint,
    }
}

/// The last line: a question, an outcome, or the keys.
fn bottom(app: &App, pen: &mut Pen<'_>, y: u16) {
    let width = pen.width();
    if let Some(order) = &app.question {
        pen.put(0, y, width, &format!(" {} {}? y: yes, other keys: no", order.verb.word(), order.name), Tone::Selected);
        pen.tint(y, Tone::Selected);
    } else if let Some(notice) = &app.notice {
        pen.put(1, y, width, notice, Tone::Strong);
    } else {
        let keys: &[(&str, &str)] = match app.screen {
            Screen::Connections => &[
                ("q", "quit"),
                ("?", "help"),
                ("Tab", "screen"),
                ("Enter", "SAs"),
                ("s", "sort"),
                ("t", "terminate"),
                ("r", "rekey"),
            ],
            Screen::Sas => {
                &[("q", "quit"), ("?", "help"), ("Esc", "back"), ("↑↓", "select"), ("t", "terminate"), ("r", "rekey")]
            }
            Screen::Log => &[("q", "quit"), ("?", "help"), ("Tab", "screen"), ("↑↓", "scroll"), ("End", "newest")],
            _ => &[("q", "quit"), ("?", "help"), ("Tab", "screen"), ("↑↓", "select")],
        };
        let mut x = 1;
        for (key, word) in keys {
            if usize::from(x) + key.len() + word.len() + 1 > width.into() {
                break;
            }
            x = pen.put_on(x, y, width, key, Tone::Strong) + 1;
            x = pen.put_on(x, y, width, word, Tone::Faint) + 2;
        }
    }
}

fn help(pen: &mut Pen<'_>) {
    const KEYS: [(&str, &str); 13] = [
        ("Up, Down, k, j", "select"),
        ("PgUp, PgDn", "a page up, down"),
        ("Home, End", "first, last"),
        ("Enter", "SAs of the connection"),
        ("Esc", "back to the connections"),
        ("Tab, 1 to 4", "next screen, a screen"),
        ("s", "sort by name, state, traffic"),
        ("t", "terminate the selected SA, after a question"),
        ("r", "rekey the selected SA, after a question"),
        ("?", "this help"),
        ("q, Ctrl-C", "quit"),
        ("", "in: delivered plaintext, out: protected plaintext"),
        ("", "wrong core: packets passed to the worker that owns their SA"),
    ];
    let width = pen.width();
    for (at, (key, meaning)) in KEYS.iter().enumerate() {
        let y = HEAD + 1 + at as u16;
        if y < pen.height() - 1 {
            pen.put(2, y, 16, key, Tone::Strong);
            pen.put(18, y, width, meaning, Tone::Plain);
        }
    }
}

/// Throughput of a row in each direction.
pub(super) fn rates(track: Option<&Track>) -> [String; 2] {
    match track.and_then(Track::now) {
        Some(flow) => [short(flow.incoming.into()), short(flow.outgoing.into())],
        None => [String::new(), String::new()],
    }
}

/// The history of a row.
pub(super) fn history(pen: &mut Pen<'_>, (x, y): (u16, u16), width: u16, track: &Track, tone: Tone) {
    pen.spark(x, y, width, most(&track.flows), tone);
}
