//! The tables of the screens. Only rows that are visible are drawn.

use super::app::App;
use super::draw::{Frame, history, rates, tone};
use super::pen::{Pen, Tone, brief};
use crate::rates::{guarded, short};
use crate::status::line::Line;
use crate::status::{Status, printable, scaled, wrapped};

/// A column of a table.
#[derive(Clone, Copy, Debug)]
struct Column<Id> {
    id: Id,
    title: &'static str,
    width: u16,
    /// Columns that it takes from a wide terminal.
    grows: u16,
    right: bool,
    /// The column with the largest number is left out first; 0 stays.
    spare: u8,
}

const fn column<Id>(id: Id, title: &'static str, width: u16, grows: u16, right: bool, spare: u8) -> Column<Id> {
    Column { id, title, width, grows, right, spare }
}

/// The columns that fit into `width`, with their places.
fn fitting<Id: Copy>(all: &[Column<Id>], width: u16) -> Vec<(u16, Column<Id>)> {
    let gap = if width >= 100 { 2 } else { 1 };
    let mut columns = all.to_vec();
    let needed = |columns: &[Column<Id>]| columns.iter().map(|column| column.width + gap).sum::<u16>();
    while needed(&columns) > width {
        let Some(at) = (0..columns.len()).filter(|at| columns[*at].spare > 0).max_by_key(|at| columns[*at].spare)
        else {
            break;
        };
        columns.remove(at);
    }
    let mut left = width.saturating_sub(needed(&columns));
    while left > 0 && columns.iter().any(|column| column.grows > 0) {
        for column in columns.iter_mut().filter(|column| column.grows > 0) {
            let more = left.min(1);
            column.width += more;
            column.grows -= more;
            left -= more;
        }
    }
    let mut x = 1;
    columns
        .into_iter()
        .map(|column| {
            let at = x;
            x += column.width + gap;
            (at, column)
        })
        .collect()
}

fn titles<Id>(pen: &mut Pen<'_>, y: u16, columns: &[(u16, Column<Id>)]) {
    for (x, column) in columns {
        if column.right {
            pen.put_right(*x, y, column.width, column.title, Tone::Faint);
        } else {
            pen.put(*x, y, column.width, column.title, Tone::Faint);
        }
    }
}

/// The text that fits, with a sign where it was cut.
fn cut(text: &str, width: u16) -> String {
    let text = printable(text);
    let width = usize::from(width);
    if text.chars().count() <= width {
        return text;
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// The common name of a distinguished name that does not fit.
fn common_name(peer: &str, width: u16) -> &str {
    match peer.rfind("CN=") {
        Some(at) if peer.chars().count() > width.into() => &peer[at..],
        _ => peer,
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum OfConnection {
    State,
    Name,
    Peer,
    Address,
    Since,
    Rekey,
    In,
    Out,
    Drops,
    History,
    Cipher,
}

pub(super) fn connections(app: &mut App, pen: &mut Pen<'_>, frame: Frame) {
    use OfConnection::{Address, Cipher, Drops, History, In, Name, Out, Peer, Rekey, Since, State};
    let columns = [
        column(State, "STATE", 10, 0, false, 0),
        column(Name, "CONNECTION", 12, 12, false, 0),
        column(Peer, "PEER", 17, 17, false, 2),
        column(Address, "ADDRESS", 21, 4, false, 8),
        column(Since, "UP FOR", 6, 0, true, 3),
        column(Rekey, "REKEY", 6, 0, true, 4),
        column(In, "IN b/s", 6, 0, true, 0),
        column(Out, "OUT b/s", 7, 0, true, 0),
        column(Drops, "DROPS", 6, 0, true, 7),
        column(History, "", 8, 22, false, 5),
        column(Cipher, "CIPHER", 14, 20, false, 9),
    ];
    let columns = fitting(&columns, pen.width());
    titles(pen, frame.top, &columns);
    let page = frame.bottom.saturating_sub(frame.top + 1);
    app.page = page.into();
    app.rows.settle(app.lines.len(), page.into());
    let lost = !matches!(app.link, super::app::Link::Up);
    for (at, line) in app.lines.iter().enumerate().skip(app.rows.first).take(page.into()) {
        let y = frame.top + 1 + (at - app.rows.first) as u16;
        let selected = at == app.rows.selected;
        let usual = if selected {
            Tone::Plain
        } else if lost {
            Tone::Faint
        } else {
            Tone::Plain
        };
        let track = app.rates.row(&line.key);
        for (x, column) in &columns {
            let (x, width) = (*x, column.width);
            match column.id {
                State => {
                    let tone = if lost { usual } else { tone(line.connection_state, false) };
                    pen.put(x, y, width, &line.state, tone);
                }
                Name => pen.put(x, y, width, &cut(line.name(), width), usual),
                Peer => pen.put(x, y, width, &cut(common_name(&line.peer, width), width), usual),
                Address => pen.put(x, y, width, &cut(&line.address, width), usual),
                // Without an SA there are no figures: the reason has their place.
                _ if line.figures.is_none() => {
                    let text = line.remark.as_deref().unwrap_or_default();
                    let text = text.strip_prefix("last failure: ").unwrap_or(text);
                    let width = pen.width().saturating_sub(x + 1);
                    pen.put(x, y, width, &cut(text, width), usual);
                    break;
                }
                Since => pen.put_right(x, y, width, &line.age_s.map(brief).unwrap_or_default(), usual),
                Rekey => pen.put_right(x, y, width, &line.rekey_s.map(brief).unwrap_or_default(), usual),
                In => pen.put_right(x, y, width, &rates(track)[0], usual),
                Out => pen.put_right(x, y, width, &rates(track)[1], usual),
                Drops => {
                    let drops = line.figures.map_or(0, |figures| figures.drops);
                    pen.put_right(x, y, width, &short(drops as f64), usual);
                }
                History => {
                    if let Some(track) = track {
                        history(pen, (x, y), width, track, Tone::Flow);
                    }
                }
                Cipher => pen.put(x, y, width, &cut(&line.cipher, width), usual),
            }
        }
        if selected {
            pen.tint(y, Tone::Selected);
        }
    }
    if app.lines.is_empty() && app.status.is_some() {
        pen.put(1, frame.top + 1, pen.width(), "no connections are configured", Tone::Faint);
    }
    if let (Some(at), Some(line), false) = (frame.details, app.line(), lost) {
        of_line(pen, at, line);
    }
}

/// What the row of a connection has no room for.
fn of_line(pen: &mut Pen<'_>, y: u16, line: &Line) {
    let width = pen.width();
    let figures = line.figures.map(|figures| {
        format!("in {}, out {}, dropped {}", scaled(figures.bytes_in), scaled(figures.bytes_out), figures.drops)
    });
    let all = [line.peer.clone(), line.address.clone(), line.cipher.clone(), figures.unwrap_or_default()];
    let text: Vec<String> = all.into_iter().filter(|text| !text.is_empty()).collect();
    let text = printable(&text.join("  "));
    match &line.remark {
        Some(remark) if remark.chars().count() + 2 > width.into() => {
            let tone = if line.missing { Tone::Bad } else { Tone::Warn };
            for (at, text) in wrapped(&printable(remark), 1, width.into()).lines().take(2).enumerate() {
                pen.put(0, y + at as u16, width, text, tone);
            }
        }
        Some(remark) => {
            pen.put(1, y, width, &text, Tone::Plain);
            pen.put(1, y + 1, width, &printable(remark), if line.missing { Tone::Bad } else { Tone::Warn });
        }
        None => {
            for (at, text) in wrapped(&text, 1, width.into()).lines().take(2).enumerate() {
                pen.put(0, y + at as u16, width, text, Tone::Plain);
            }
        }
    }
}

/// SAs of one connection: each takes several lines.
pub(super) fn sas(app: &mut App, pen: &mut Pen<'_>, frame: Frame) {
    let blocks = app.blocks(usize::from(pen.width()) - 2);
    let page = frame.bottom.saturating_sub(frame.top);
    app.page = 3;
    app.sas.selected = app.sas.selected.min(blocks.len().saturating_sub(1));
    let before = |at: usize| blocks[..at].iter().map(|block| block.lines.len()).sum::<usize>();
    if let Some(selected) = blocks.get(app.sas.selected) {
        let (first, last) = (before(app.sas.selected), before(app.sas.selected) + selected.lines.len());
        app.sas.first = app.sas.first.min(first).max(last.saturating_sub(page.into()));
    }
    let numbered = blocks.iter().enumerate().flat_map(|(at, block)| block.lines.iter().map(move |line| (at, line)));
    for (row, (at, line)) in numbered.skip(app.sas.first).take(page.into()).enumerate() {
        let y = frame.top + row as u16;
        pen.put(1, y, pen.width(), line, Tone::Plain);
        if at == app.sas.selected {
            pen.tint(y, Tone::Selected);
        }
    }
    if blocks.is_empty() {
        let text = app.line().and_then(|line| line.remark.clone()).unwrap_or_default();
        pen.put(1, frame.top, pen.width(), "no SA", Tone::Faint);
        for (row, text) in wrapped(&printable(&text), 1, pen.width().into()).lines().enumerate() {
            pen.put(0, frame.top + 1 + row as u16, pen.width(), text, Tone::Plain);
        }
    }
    if let (Some(at), Some(line)) = (frame.details, app.line()) {
        of_line(pen, at, line);
    }
}

#[derive(Clone, Copy, Debug)]
enum OfDrop {
    Reason,
    Count,
    Rate,
    Meaning,
}

pub(super) fn drops(app: &mut App, pen: &mut Pen<'_>, frame: Frame) {
    let columns = [
        column(OfDrop::Reason, "REASON", 20, 4, false, 0),
        column(OfDrop::Count, "PACKETS", 10, 4, true, 0),
        column(OfDrop::Rate, "PER S", 6, 2, true, 0),
        column(OfDrop::Meaning, "MEANING", 20, u16::MAX - 100, false, 1),
    ];
    let columns = fitting(&columns, pen.width());
    titles(pen, frame.top, &columns);
    let guard = app.status.as_ref().and_then(|status| status.head.guard.as_ref()).map(guarded).unwrap_or_default();
    // The guard drops before packets reach a worker, so its counters follow the reasons.
    let page = frame.bottom.saturating_sub(frame.top + 1 + guard.len() as u16);
    app.page = page.into();
    app.drops.settle(app.rates.drops().len(), page.into());
    let mut y = frame.top + 1;
    for (at, rate) in app.rates.drops().iter().enumerate().skip(app.drops.first).take(page.into()) {
        let moves = rate.per_second.is_some_and(|rate| rate > 0.0);
        let usual = if moves { Tone::Warn } else { Tone::Plain };
        for (x, column) in &columns {
            let (x, width) = (*x, column.width);
            match column.id {
                OfDrop::Reason => pen.put(x, y, width, rate.reason, usual),
                OfDrop::Count => pen.put_right(x, y, width, &rate.count.to_string(), usual),
                OfDrop::Rate => pen.put_right(x, y, width, &rate.per_second.map(short).unwrap_or_default(), usual),
                OfDrop::Meaning => pen.put(x, y, width, &cut(rate.meaning, width), usual),
            }
        }
        if at == app.drops.selected {
            pen.tint(y, Tone::Selected);
        }
        y += 1;
    }
    if app.rates.drops().is_empty() {
        pen.put(1, y, pen.width(), "no packets dropped", Tone::Faint);
        y += 1;
    }
    for (packets, what) in guard {
        pen.put(1, y, pen.width(), &format!("guard dropped {packets} {what}"), Tone::Plain);
        y += 1;
    }
    if let (Some(at), Some(rate)) = (frame.details, app.rates.drops().get(app.drops.selected)) {
        let text = format!("{}: {}", rate.reason, rate.meaning);
        for (row, text) in wrapped(&text, 1, pen.width().into()).lines().take(2).enumerate() {
            pen.put(0, at + row as u16, pen.width(), text, Tone::Plain);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum OfWorker {
    Number,
    Busy,
    Bar,
    Packets,
    Batch,
    In,
    Out,
    Wrong,
    Drops,
}

pub(super) fn workers(app: &mut App, pen: &mut Pen<'_>, frame: Frame) {
    use OfWorker::{Bar, Batch, Busy, Drops, In, Number, Out, Packets, Wrong};
    let columns = [
        column(Number, "WORKER", 6, 0, true, 0),
        column(Busy, "BUSY", 5, 0, true, 0),
        column(Bar, "", 10, 20, false, 3),
        column(Packets, "PACKETS/s", 9, 0, true, 0),
        column(Batch, "PER BATCH", 9, 0, true, 1),
        column(In, "IN b/s", 7, 0, true, 2),
        column(Out, "OUT b/s", 7, 0, true, 2),
        column(Wrong, "WRONG CORE", 10, 0, true, 4),
        column(Drops, "DROPS", 7, 0, true, 1),
    ];
    let columns = fitting(&columns, pen.width());
    titles(pen, frame.top, &columns);
    let page = frame.bottom.saturating_sub(frame.top + 1);
    app.page = page.into();
    app.workers.settle(app.rates.workers().len(), page.into());
    for (at, worker) in app.rates.workers().iter().enumerate().skip(app.workers.first).take(page.into()) {
        let y = frame.top + 1 + (at - app.workers.first) as u16;
        let busy = worker.busy.unwrap_or_default();
        let load = if busy > 0.9 {
            Tone::Bad
        } else if busy > 0.7 {
            Tone::Warn
        } else {
            Tone::Good
        };
        let number = |value: Option<f64>| value.map(short).unwrap_or_default();
        for (x, column) in &columns {
            let (x, width) = (*x, column.width);
            match column.id {
                Number => pen.put_right(x, y, width, &at.to_string(), Tone::Plain),
                Busy => {
                    let share = worker.busy.map_or_else(String::new, |busy| format!("{:.0} %", busy * 100.0));
                    pen.put_right(x, y, width, &share, load);
                }
                Bar => pen.bar(x, y, width, busy, load),
                Packets => pen.put_right(x, y, width, &number(worker.packets), Tone::Plain),
                Batch => pen.put_right(x, y, width, &number(worker.batch), Tone::Plain),
                In => pen.put_right(x, y, width, &short(worker.flow.incoming.into()), Tone::Plain),
                Out => pen.put_right(x, y, width, &short(worker.flow.outgoing.into()), Tone::Plain),
                Wrong => pen.put_right(x, y, width, &short(worker.wrong_core as f64), Tone::Plain),
                Drops => pen.put_right(x, y, width, &short(worker.drops as f64), Tone::Plain),
            }
        }
        if at == app.workers.selected {
            pen.tint(y, Tone::Selected);
        }
    }
    if let (Some(at), Some(status)) = (frame.details, &app.status) {
        for (row, text) in plane(status).iter().enumerate() {
            pen.put(1, at + row as u16, pen.width(), text, Tone::Plain);
        }
    }
}

/// Engine, scheduler, and what one system call carries.
fn plane(status: &Status) -> [String; 2] {
    let head = &status.head;
    let each = |name: &str, joined: crate::status::SuperStatus| match joined.calls {
        0 => None,
        calls => Some(format!("{name} {:.1}", joined.packets as f64 / calls as f64)),
    };
    let supers = &head.total.supers;
    let sides = [
        each("LAN rx", supers.inner_rx),
        each("WAN tx", supers.outer_tx),
        each("WAN rx", supers.outer_rx),
        each("LAN tx", supers.inner_tx),
    ];
    let sides: Vec<String> = sides.into_iter().flatten().collect();
    let gso = if sides.is_empty() { String::new() } else { format!("packets per GSO packet: {}", sides.join(", ")) };
    let threads = head.threads.len();
    [
        format!(
            "engine {}, scheduler {}, {threads} thread{}",
            head.engine,
            head.scheduler,
            if threads == 1 { "" } else { "s" }
        ),
        gso,
    ]
}

/// The newest lines that fit, each wrapped between words.
pub(super) fn log(app: &mut App, pen: &mut Pen<'_>, frame: Frame) {
    let page = usize::from(frame.bottom.saturating_sub(frame.top));
    app.page = page;
    app.log_back = app.log_back.min(app.log.len().saturating_sub(1));
    let mut rows: Vec<(Tone, String)> = Vec::new();
    for line in app.log.iter().rev().skip(app.log_back) {
        let tone = match line.level {
            i8::MIN..=0 => Tone::Warn,
            1 => Tone::Plain,
            _ => Tone::Faint,
        };
        rows.extend(wrapped(&line.text, 1, pen.width().into()).lines().rev().map(|text| (tone, text.to_owned())));
        if rows.len() >= page {
            break;
        }
    }
    rows.truncate(page);
    for (row, (tone, text)) in rows.iter().rev().enumerate() {
        pen.put(0, frame.top + row as u16, pen.width(), text, *tone);
    }
    if app.log.is_empty() {
        pen.put(1, frame.top, pen.width(), "lines of IKE appear here as they come", Tone::Faint);
    }
    if let Some(at) = frame.details {
        match &app.log_fault {
            Some(why) => pen.put(1, at, pen.width(), why, Tone::Bad),
            None if app.log_back > 0 => {
                pen.put(1, at, pen.width(), &format!("{} newer lines: End", app.log_back), Tone::Faint);
            }
            None => (),
        }
    }
}
