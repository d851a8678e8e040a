//! `weir top`: connections, SAs, drops, workers and the log of a running gateway, in a terminal.
//!
//! A client of the control socket like `weir status`: it requests the status once a second, and the
//! gateway does nothing more for it. [`app`] is the state, [`feed`] the requests, [`draw`] and
//! [`tables`] the screens; this module owns the terminal.

mod app;
mod draw;
mod feed;
mod pen;
mod tables;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEventKind, KeyModifiers};
use ratatui::crossterm::{cursor, execute, terminal};
use ratatui::layout::Rect;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::remote::{Failure, SocketArgs, explain};
use crate::status;
use app::{App, Outcome};
use feed::{EVERY, Feed, FeedEvent};
use pen::Look;

/// Delay until an event of the daemon is drawn.
const TURN: Duration = Duration::from_millis(100);
/// Rows of a single frame that is printed.
const ONCE_ROWS: usize = 1000;

/// Options of `weir top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Print one frame and exit; so it does where there is no terminal
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    place: SocketArgs,
}

impl TopArgs {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let socket = &self.place.socket;
        if self.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            return once(socket);
        }
        if std::env::var("TERM").is_ok_and(|kind| kind == "dumb") {
            return Err(unusable("this terminal (TERM=dumb) has no cursor to move: use 'weir top --once'"));
        }
        let outcome = Screen::open().and_then(|mut screen| watch(socket, &mut screen));
        outcome.map_err(|error| unusable(&format!("terminal: {error}; use 'weir top --once'")))
    }
}

fn unusable(text: &str) -> Failure {
    Failure { text: text.to_owned(), unusable: true, timed_out: false }
}

/// Name of this host.
fn host() -> String {
    status::printable(&rustix::system::uname().nodename().to_string_lossy())
}

/// Prints one frame, from two samples, which rates take.
fn once(socket: &Path) -> Result<(), Failure> {
    let mut app = App::new(host());
    for at in 0..2 {
        let sample = status::ask(socket).map_err(|error| unusable(&explain(&error)))?;
        app.take(FeedEvent::Sample(Box::new(sample)), Instant::now());
        if at == 0 {
            std::thread::sleep(EVERY);
        }
    }
    let look = Look { color: false, ..Look::of_environment() };
    let text = frame_text(&mut app, look, status::width());
    let _ = io::stdout().lock().write_all(text.as_bytes());
    Ok(())
}

/// The connections as lines of text.
fn frame_text(app: &mut App, look: Look, width: usize) -> String {
    let rows = app.lines.len().clamp(1, ONCE_ROWS);
    // The table has its lines between the header, its titles and the keys.
    let height = (rows as u16 + draw::HEAD + 2).max(8);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width.min(500) as u16, height));
    draw::draw_once(app, &mut buffer, look);
    let mut text = String::new();
    for row in buffer.content().chunks(buffer.area.width.into()).take(rows + usize::from(draw::HEAD) + 1) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let more = app.lines.len().saturating_sub(rows);
    if more > 0 {
        text.push_str(&format!("and {more} more: weir status\n"));
    }
    text
}

/// Draws until a key or a signal ends it.
fn watch(socket: &Path, screen: &mut Screen) -> io::Result<()> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    let feed = Feed::start(socket);
    let (mut app, look) = (App::new(host()), Look::of_environment());
    let mut dirty = true;
    while !ended.load(Ordering::Acquire) {
        while let Ok(event) = feed.events.try_recv() {
            app.take(event, Instant::now());
            dirty = true;
        }
        // The time since an answer counts on.
        if dirty || matches!(app.link, app::Link::Lost(..)) {
            screen.0.draw(|frame| draw::draw(&mut app, frame.buffer_mut(), look, Instant::now()))?;
            dirty = false;
        }
        if !event::poll(TURN)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                match app.key(key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
                    Outcome::Quit => return Ok(()),
                    Outcome::Send(order) => feed.carry_out(order),
                    Outcome::Continue => (),
                }
                dirty = true;
            }
            Event::Resize(..) => dirty = true,
            _ => (),
        }
    }
    Ok(())
}

/// The terminal in raw mode, which is restored on every way out.
struct Screen(Terminal<CrosstermBackend<io::Stdout>>);

impl Screen {
    fn open() -> io::Result<Self> {
        let before = std::panic::take_hook();
        // Before the message of a panic, which would be lost with the screen.
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
        terminal::enable_raw_mode()?;
        let opened = execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        opened.map(Self).inspect_err(|_| restore())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let _ = execute!(io::stdout(), terminal::LeaveAlternateScreen, cursor::Show);
    let _ = terminal::disable_raw_mode();
}
