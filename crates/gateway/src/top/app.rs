//! State of `weir top`: newest sample, screens, selection, and what the keys do. No terminal here.

use std::collections::VecDeque;
use std::time::Instant;

use ratatui::crossterm::event::KeyCode;

use super::feed::{FeedEvent, LogLine};
use crate::rates::{History, Rates};
use crate::status::connection::{ConnectionStatus, Kind};
use crate::status::details::{Block, Target, blocks};
use crate::status::line::{Key, Line, lines};
use crate::status::{Status, printable};

/// Lines of the log that are kept.
const LOG_LINES: usize = 1000;

/// A screen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Screen {
    Connections,
    /// SAs of the selected connection.
    Sas,
    Drops,
    Workers,
    Log,
}

impl Screen {
    /// Those of the tabs, in order.
    pub(super) const TABS: [Self; 4] = [Self::Connections, Self::Drops, Self::Workers, Self::Log];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Connections | Self::Sas => "Connections",
            Self::Drops => "Drops",
            Self::Workers => "Workers",
            Self::Log => "Log",
        }
    }
}

/// Order of the connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sort {
    Name,
    /// Those that need attention first.
    State,
    /// Largest throughput first.
    Traffic,
}

impl Sort {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Name => "by name",
            Self::State => "by state",
            Self::Traffic => "by traffic",
        }
    }
}

/// A command for the daemon.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verb {
    Terminate,
    Rekey,
}

/// A request for the daemon, as confirmed by the user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Order {
    pub(super) verb: Verb,
    pub(super) target: Target,
    /// Name of the SA, for the outcome.
    pub(super) name: String,
}

/// Consequence of a key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    Continue,
    Quit,
    Send(Order),
}

/// Connection to the daemon.
#[derive(Clone, Debug)]
pub(super) enum Link {
    /// No sample yet.
    Opening,
    Up,
    /// No sample since then, and why.
    Lost(Instant, String),
}

/// Scroll position of one screen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scroll {
    pub(super) selected: usize,
    pub(super) first: usize,
}

impl Scroll {
    /// Keeps the selected one of `count` items on a page of `page`.
    pub(super) fn settle(&mut self, count: usize, page: usize) {
        self.selected = self.selected.min(count.saturating_sub(1));
        self.first = self.first.min(self.selected).max((self.selected + 1).saturating_sub(page));
        self.first = self.first.min(count.saturating_sub(page));
    }
}

/// Everything that is drawn.
pub(super) struct App {
    pub(super) host: String,
    pub(super) link: Link,
    pub(super) status: Option<Status>,
    /// Rows in the order of `sort`.
    pub(super) lines: Vec<Line>,
    pub(super) rates: Rates,
    pub(super) history: History,
    pub(super) screen: Screen,
    pub(super) sort: Sort,
    /// The selected row; it stays the same one when others come and go.
    chosen: Option<Key>,
    pub(super) rows: Scroll,
    pub(super) sas: Scroll,
    pub(super) drops: Scroll,
    pub(super) workers: Scroll,
    pub(super) log: VecDeque<LogLine>,
    /// Lines of the log below the last one shown.
    pub(super) log_back: usize,
    pub(super) log_fault: Option<String>,
    pub(super) question: Option<Order>,
    pub(super) notice: Option<String>,
    pub(super) help: bool,
    /// Rows of a page, as last drawn.
    pub(super) page: usize,
}

impl App {
    /// Nothing is known yet. `host` is the name of this machine.
    pub(super) fn new(host: String) -> Self {
        Self {
            host,
            link: Link::Opening,
            status: None,
            lines: Vec::new(),
            rates: Rates::default(),
            history: History::default(),
            screen: Screen::Connections,
            sort: Sort::Name,
            chosen: None,
            rows: Scroll::default(),
            sas: Scroll::default(),
            drops: Scroll::default(),
            workers: Scroll::default(),
            log: VecDeque::new(),
            log_back: 0,
            log_fault: None,
            question: None,
            notice: None,
            help: false,
            page: 10,
        }
    }

    /// Takes in what came from the daemon.
    pub(super) fn take(&mut self, event: FeedEvent, now: Instant) {
        match event {
            FeedEvent::Sample(status) => self.sample(*status),
            FeedEvent::Lost(why) => {
                let since = match &self.link {
                    Link::Lost(since, _) => *since,
                    _ => now,
                };
                self.link = Link::Lost(since, printable(&why));
            }
            FeedEvent::Log(line) => {
                if self.log.len() == LOG_LINES {
                    self.log.pop_front();
                }
                self.log.push_back(line);
                self.log_fault = None;
                // What is read stays in place.
                if self.log_back > 0 {
                    self.log_back = (self.log_back + 1).min(self.log.len());
                }
            }
            FeedEvent::NoLog(why) => self.log_fault = Some(printable(&why)),
            FeedEvent::Done(text) => self.notice = Some(printable(&text)),
        }
    }

    fn sample(&mut self, status: Status) {
        if self.status.as_ref().is_some_and(|before| status.head.uptime_s < before.head.uptime_s) {
            self.history = History::default();
        }
        self.link = Link::Up;
        self.lines = lines(&status, false);
        self.rates.observe(&status, &self.lines);
        let total = &status.head.total;
        self.history.push(status.head.uptime_s, (total.inner_tx.bytes, total.inner_rx.bytes));
        self.status = Some(status);
        self.arrange();
    }

    /// Sorts the rows and finds the selected one again.
    fn arrange(&mut self) {
        let rates = &self.rates;
        let traffic =
            |line: &Line| rates.row(&line.key).and_then(crate::rates::Track::now).map_or(0.0, |flow| flow.most());
        match self.sort {
            Sort::Name => self.lines.sort_by(|a, b| a.key.cmp(&b.key)),
            Sort::State => self.lines.sort_by(|a, b| {
                let calm = |line: &Line| (!line.missing, line.remark.is_none());
                calm(a).cmp(&calm(b)).then_with(|| a.key.cmp(&b.key))
            }),
            Sort::Traffic => {
                self.lines.sort_by(|a, b| traffic(b).total_cmp(&traffic(a)).then_with(|| a.key.cmp(&b.key)))
            }
        }
        if let Some(at) = self.chosen.as_ref().and_then(|key| self.lines.iter().position(|line| line.key == *key)) {
            self.rows.selected = at;
        }
    }

    /// The selected row.
    pub(super) fn line(&self) -> Option<&Line> {
        self.lines.get(self.rows.selected.min(self.lines.len().saturating_sub(1)))
    }

    /// The connection of the selected row.
    pub(super) fn connection(&self) -> Option<&ConnectionStatus> {
        let name = self.line()?.name();
        self.status.as_ref()?.connections.iter().find(|connection| connection.name == name)
    }

    /// SAs of the selected connection, on lines of `width`.
    pub(super) fn blocks(&self, width: usize) -> Vec<Block> {
        match (self.connection(), &self.status) {
            (Some(connection), Some(status)) => blocks(connection, status, width),
            _ => Vec::new(),
        }
    }

    /// Processes a key. `held` is true with the control key.
    pub(super) fn key(&mut self, code: KeyCode, held: bool) -> Outcome {
        if held && matches!(code, KeyCode::Char('c' | 'd')) {
            return Outcome::Quit;
        }
        if let Some(order) = self.question.take() {
            if matches!(code, KeyCode::Char('y' | 'Y')) {
                self.notice = Some(format!("{} {} …", order.verb.doing(), order.name));
                return Outcome::Send(order);
            }
            self.notice = Some("nothing was changed".into());
            return Outcome::Continue;
        }
        if self.help {
            self.help = false;
            return if code == KeyCode::Char('q') { Outcome::Quit } else { Outcome::Continue };
        }
        self.notice = None;
        match code {
            KeyCode::Char('q') => return Outcome::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(Screen::TABS.len() - 1),
            KeyCode::Char(digit @ '1'..='4') => self.screen = Screen::TABS[digit as usize - '1' as usize],
            KeyCode::Enter if self.screen == Screen::Connections && !self.lines.is_empty() => {
                (self.screen, self.sas) = (Screen::Sas, Scroll::default());
            }
            KeyCode::Esc | KeyCode::Backspace => self.screen = Screen::Connections,
            KeyCode::Char('s') if self.screen == Screen::Connections => {
                self.sort = match self.sort {
                    Sort::Name => Sort::State,
                    Sort::State => Sort::Traffic,
                    Sort::Traffic => Sort::Name,
                };
                self.arrange();
            }
            KeyCode::Char('t') => self.ask(Verb::Terminate),
            KeyCode::Char('r') => self.ask(Verb::Rekey),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-(self.page as isize)),
            KeyCode::PageDown | KeyCode::Char(' ') => self.step(self.page as isize),
            KeyCode::Home | KeyCode::Char('g') => self.step(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.step(isize::MAX),
            _ => (),
        }
        Outcome::Continue
    }

    fn turn(&mut self, by: usize) {
        let at = Screen::TABS.iter().position(|screen| screen.title() == self.screen.title()).unwrap_or(0);
        self.screen = Screen::TABS[(at + by) % Screen::TABS.len()];
    }

    fn step(&mut self, by: isize) {
        let moved = |at: usize, count: usize| at.saturating_add_signed(by).min(count.saturating_sub(1));
        match self.screen {
            Screen::Connections => {
                self.rows.selected = moved(self.rows.selected, self.lines.len());
                self.chosen = self.line().map(|line| line.key.clone());
            }
            Screen::Sas => self.sas.selected = moved(self.sas.selected, self.blocks(80).len()),
            Screen::Drops => self.drops.selected = moved(self.drops.selected, self.rates.drops().len()),
            Screen::Workers => self.workers.selected = moved(self.workers.selected, self.rates.workers().len()),
            Screen::Log => {
                let furthest = self.log.len().saturating_sub(self.page);
                self.log_back = self.log_back.saturating_add_signed(by.saturating_neg()).min(furthest);
            }
        }
    }

    /// Asks before an SA is ended or rekeyed.
    fn ask(&mut self, verb: Verb) {
        let found = match self.screen {
            Screen::Connections => self.line().map(|line| {
                let target = line.key.1.map(Target::Ike).filter(|_| line.kind != Kind::Manual);
                (target, format!("IKE SA #{} of '{}'", line.key.1.unwrap_or_default(), line.name()))
            }),
            Screen::Sas => self.blocks(80).into_iter().nth(self.sas.selected).map(|block| (block.target, block.name)),
            _ => None,
        };
        match found {
            Some((Some(target), name)) => self.question = Some(Order { verb, target, name: printable(&name) }),
            Some((None, _)) => self.notice = Some(format!("there is no IKE SA to {}", verb.word())),
            None => self.notice = Some(format!("select a connection to {}", verb.word())),
        }
    }
}

impl Verb {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Terminate => "terminate",
            Self::Rekey => "rekey",
        }
    }

    fn doing(self) -> &'static str {
        match self {
            Self::Terminate => "terminating",
            Self::Rekey => "rekeying",
        }
    }
}
