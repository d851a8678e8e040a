//! Screens as text, in snapshots/; `UPDATE_SNAPSHOTS=1 cargo test -p weir-gateway top::` writes
//! them again, for a person to read.

use std::path::Path;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use ratatui::style::{Color, Modifier};

use super::app::{App, Link, Order, Outcome, Screen, Sort, Verb};
use super::feed::{FeedEvent, LogLine};
use super::pen::{Look, brief};
use super::{draw, frame_text};
use crate::status::Status;
use crate::status::details::Target;
use crate::status::example::{ike_sa, status};

const PLAIN: Look = Look { color: false, unicode: true };

fn sampled(app: &mut App, status: Status) {
    app.take(FeedEvent::Sample(Box::new(status)), Instant::now());
}

/// The status after so many seconds, with traffic that rises.
fn at(second: u64) -> Status {
    let mut status = status();
    status.head.uptime_s += second as f64;
    let site = status.connections.iter_mut().find(|connection| connection.name == "site").unwrap();
    let sa = &mut site.ike_sas[0];
    (sa.bytes_in, sa.bytes_out) = (12_345_678 + second * second * 40_000, 1_100_000_000 + second * 1_500);
    let core = &mut status.head.total;
    (core.inner_tx.bytes, core.inner_rx.bytes) = (second * second * 40_000, second * 1_500);
    core.drops = [("bad_icv".to_owned(), 3 + 2 * second), ("seq_unsaved".to_owned(), 12_345_678)].into();
    status.head.cores[0].batches = second * 10;
    status.head.cores[0].outer_rx.packets = second * 1_000;
    status.head.threads_cpu_s = vec![second as f64 * 0.75, 0.0];
    status
}

fn app() -> App {
    let mut app = App::new("sun".into());
    (0..12).for_each(|second| sampled(&mut app, at(second)));
    app
}

fn screen(app: &mut App, (width, height): (u16, u16), look: Look) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let now = Instant::now();
    terminal.draw(|frame| draw::draw(app, frame.buffer_mut(), look, now)).unwrap();
    terminal
}

fn text(app: &mut App, size: (u16, u16), look: Look) -> String {
    let terminal = screen(app, size, look);
    let cells = terminal.backend().buffer().content();
    let rows = cells.chunks(size.0.into()).map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    rows.map(|row| format!("{}\n", row.trim_end())).collect()
}

/// Compares with the stored screen.
fn same(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/snapshots").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == want, "{name} is now\n{text}\nand was\n{want}");
}

fn keys(app: &mut App, keys: &[KeyCode]) -> Outcome {
    keys.iter().map(|key| app.key(*key, false)).last().unwrap()
}

#[test]
fn every_screen_is_as_it_was() {
    let size = (80, 24);
    let mut app = app();
    same("connections", &text(&mut app, size, PLAIN));
    same("connections-wide", &text(&mut app, (160, 20), PLAIN));
    same("connections-narrow-ascii", &text(&mut app, (44, 12), Look { unicode: false, ..PLAIN }));
    keys(&mut app, &[KeyCode::End]);
    same("sas", &{
        keys(&mut app, &[KeyCode::Enter, KeyCode::Down]);
        text(&mut app, size, PLAIN)
    });
    keys(&mut app, &[KeyCode::Char('t')]);
    same("question", &text(&mut app, size, PLAIN));
    keys(&mut app, &[KeyCode::Char('n'), KeyCode::Tab]);
    same("drops", &text(&mut app, size, PLAIN));
    keys(&mut app, &[KeyCode::Tab]);
    same("workers", &text(&mut app, size, PLAIN));
    keys(&mut app, &[KeyCode::Tab]);
    for (level, line) in [
        (1, "09:12:01Z [IKE] site: IKE_SA site[7] established"),
        (0, "09:12:09Z [NET] lake: no answer from 192.0.2.9:500 after 4 s, retransmitting (attempt 2 of 6)"),
    ] {
        app.take(FeedEvent::Log(LogLine { level, text: line.into() }), Instant::now());
    }
    same("log", &text(&mut app, size, PLAIN));
    keys(&mut app, &[KeyCode::Tab, KeyCode::Char('?')]);
    same("help", &text(&mut app, size, PLAIN));
    keys(&mut app, &[KeyCode::Esc]);
    let why = "cannot connect to /run/weir/weir.vici. Is 'weir up' running? (--socket PATH if elsewhere)";
    app.take(FeedEvent::Lost(why.into()), Instant::now());
    same("lost", &text(&mut app, size, PLAIN));
    same("opening", &text(&mut App::new("sun".into()), size, PLAIN));
    let mut empty = App::new("sun".into());
    let status = || Status { connections: vec![], ..at(1) };
    sampled(&mut empty, status());
    same("empty", &text(&mut empty, size, PLAIN));
}

#[test]
fn no_size_of_a_terminal_breaks_a_screen() {
    let mut app = app();
    app.take(FeedEvent::Log(LogLine { level: 1, text: "word ".repeat(100) }), Instant::now());
    for screen in [Screen::Connections, Screen::Sas, Screen::Drops, Screen::Workers, Screen::Log] {
        app.screen = screen;
        for (width, height) in (1..=200).step_by(7).flat_map(|width| [(width, 1), (width, 8), (width, 15), (width, 60)])
        {
            text(&mut app, (width, height), PLAIN);
        }
    }
    assert!(text(&mut app, (30, 5), PLAIN).starts_with("30x5: use 40x8 or more"));
}

#[test]
fn colours_are_left_out_on_request_and_the_selection_is_not() {
    let mut app = app();
    for color in [true, false] {
        let terminal = screen(&mut app, (80, 24), Look { color, unicode: true });
        let cells = terminal.backend().buffer().content();
        assert_eq!(cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset), color);
        assert!(cells[4 * 80..5 * 80].iter().all(|cell| cell.modifier.contains(Modifier::REVERSED)));
    }
    let ascii = text(&mut app, (80, 24), Look { color: false, unicode: false });
    assert!(ascii.is_ascii(), "{ascii}");
}

#[test]
fn the_selection_stays_on_its_connection() {
    let mut app = app();
    keys(&mut app, &[KeyCode::End]);
    assert_eq!(app.line().unwrap().name(), "site");
    keys(&mut app, &[KeyCode::Char('s')]);
    assert_eq!((app.sort, app.lines[0].name(), app.line().unwrap().name()), (Sort::State, "lake", "site"));
    keys(&mut app, &[KeyCode::Char('s')]);
    assert_eq!((app.sort, app.lines[0].name(), app.line().unwrap().name()), (Sort::Traffic, "site", "site"));
    let mut fewer = at(13);
    fewer.connections.retain(|connection| connection.name != "lake");
    sampled(&mut app, fewer);
    assert_eq!(app.line().unwrap().name(), "site");
    sampled(&mut app, Status { connections: vec![], ..at(14) });
    assert!(app.line().is_none());
    assert_eq!(keys(&mut app, &[KeyCode::Enter, KeyCode::Down, KeyCode::Char('t')]), Outcome::Continue);
}

#[test]
fn commands_need_a_yes() {
    let order = |verb, target, name: &str| Outcome::Send(Order { verb, target, name: name.into() });
    let mut app = app();
    keys(&mut app, &[KeyCode::End]);
    assert_eq!(keys(&mut app, &[KeyCode::Char('t'), KeyCode::Enter]), Outcome::Continue);
    assert!(app.question.is_none() && app.notice.as_deref() == Some("nothing was changed"));
    let yes = keys(&mut app, &[KeyCode::Char('r'), KeyCode::Char('y')]);
    assert_eq!(yes, order(Verb::Rekey, Target::Ike(7), "IKE SA #7 of 'site'"));
    let yes = keys(&mut app, &[KeyCode::Enter, KeyCode::Down, KeyCode::Char('t'), KeyCode::Char('Y')]);
    assert_eq!(yes, order(Verb::Terminate, Target::Child(9), "Child SA 'net' #9"));
    // Manual keys, and a connection without an IKE SA.
    for row in 0..2 {
        keys(&mut app, &[KeyCode::Esc, KeyCode::Home]);
        (0..row).for_each(|_| drop(app.key(KeyCode::Down, false)));
        keys(&mut app, &[KeyCode::Char('t')]);
        assert_eq!(app.notice.as_deref(), Some("there is no IKE SA to terminate"));
    }
    assert_eq!(app.key(KeyCode::Char('q'), false), Outcome::Quit);
    assert_eq!(app.key(KeyCode::Char('c'), true), Outcome::Quit);
}

#[test]
fn a_daemon_that_comes_back_is_shown_at_once() {
    let mut app = app();
    app.take(FeedEvent::Lost("gone".into()), Instant::now() - Duration::from_secs(75));
    app.take(FeedEvent::Lost("still \u{1b}gone".into()), Instant::now());
    let lost = text(&mut app, (80, 24), PLAIN);
    assert!(lost.contains("no answer for 1 min 15 s, trying again: still \u{fffd}gone"), "{lost}");
    assert!(lost.contains("lake"), "the last sample stays");
    let mut first = at(0);
    first.head.uptime_s = 2.0;
    sampled(&mut app, first);
    assert!(matches!(app.link, Link::Up) && app.history.flows().is_empty());
    assert!(text(&mut app, (80, 24), PLAIN).contains("up 2 s"));
}

#[test]
fn the_log_is_bounded_and_stays_where_it_is_read() {
    let mut app = app();
    let line = |number: usize| FeedEvent::Log(LogLine { level: 1, text: format!("line {number}") });
    (0..3000).for_each(|number| app.take(line(number), Instant::now()));
    assert_eq!(app.log.len(), 1000);
    app.screen = Screen::Log;
    assert!(text(&mut app, (80, 24), PLAIN).contains("line 2999"));
    keys(&mut app, &[KeyCode::PageUp]);
    let before = text(&mut app, (80, 24), PLAIN);
    assert!(!before.contains("line 2999") && before.contains("newer lines"), "{before}");
    app.take(line(3000), Instant::now());
    let row = |text: &str| text.lines().nth(5).map(str::to_owned);
    assert_eq!(row(&text(&mut app, (80, 24), PLAIN)), row(&before));
    keys(&mut app, &[KeyCode::End]);
    assert!(text(&mut app, (80, 24), PLAIN).contains("line 3000"));
}

#[test]
fn a_frame_without_a_terminal_has_every_row() {
    let mut app = app();
    let frame = frame_text(&mut app, PLAIN, 80);
    for part in ["weir on sun", "CONNECTION", "a-long-name", "lake", "site", "6.72 M"] {
        assert!(frame.contains(part), "{part}\n{frame}");
    }
    assert!(!frame.contains("quit") && frame.lines().all(|line| line.chars().count() <= 80), "{frame}");
}

/// As many connections as one gateway is meant for.
fn many(count: usize) -> Status {
    let mut status = at(1);
    let site = status.connections.iter().find(|connection| connection.name == "site").unwrap().clone();
    status.connections = (0..count)
        .map(|number| {
            let mut connection = site.clone();
            connection.name = format!("site-{number:05}");
            connection.ike_sas = vec![ike_sa(&connection.name)];
            connection
        })
        .collect();
    status
}

#[test]
fn ten_thousand_connections_are_drawn_within_50_ms() {
    let mut app = App::new("sun".into());
    sampled(&mut app, many(10_000));
    let mut terminal = Terminal::new(TestBackend::new(200, 60)).unwrap();
    keys(&mut app, &[KeyCode::End]);
    let mut times: Vec<Duration> = (0..20)
        .map(|_| {
            let started = Instant::now();
            keys(&mut app, &[KeyCode::PageUp]);
            terminal.draw(|frame| draw::draw(&mut app, frame.buffer_mut(), PLAIN, started)).unwrap();
            started.elapsed()
        })
        .collect();
    times.sort();
    // The median, without optimisation and on a busy machine.
    println!("a frame takes {:?}, at most {:?}", times[10], times[19]);
    assert!(times[10] < Duration::from_millis(50), "{times:?}");
    let last = text(&mut app, (80, 24), PLAIN);
    assert!(last.contains("10000 connections: 10000 up"), "{last}");
}

#[test]
fn times_take_six_columns() {
    for (seconds, text) in
        [(0, "0 s"), (59, "59 s"), (3599, "59 min"), (3600, "1h00"), (86_399, "23h59"), (90_061, "1d01h")]
    {
        assert_eq!(brief(seconds), text);
    }
    assert!((0..30).all(|power| brief(1 << power).chars().count() <= 6));
}
