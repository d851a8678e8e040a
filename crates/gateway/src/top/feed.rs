//! Threads that request samples, follow the log and carry out commands over the control socket.
//!
//! They are separate from the screen, so that a daemon that does not answer does not block a key.
//! The channel is bounded: a screen that cannot be written, as over a serial line with flow
//! control, stops the requests.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vici::client::{Client, ClientError};
use vici::message::Message;
use vici::names::{Command, Event};

use super::app::{Order, Verb};
use crate::remote::{Failure, explain};
use crate::status::details::Target;
use crate::status::{self, Status, printable};

/// Time between samples, and between attempts to connect.
pub(super) const EVERY: Duration = Duration::from_secs(1);
/// Timeout of a sample. The daemon answers at once.
const SOON: Duration = Duration::from_secs(10);
/// Timeout of a command, for which the daemon may wait for the peer.
const PEER: Duration = Duration::from_secs(30);
/// Events on the way to the screen.
const EVENTS_MAX: usize = 64;

/// What a thread has for the screen.
pub(super) enum FeedEvent {
    Sample(Box<Status>),
    /// No sample, and why.
    Lost(String),
    Log(LogLine),
    /// The log cannot be followed, and why.
    NoLog(String),
    /// Outcome of a command.
    Done(String),
}

/// A line of the daemon's log of IKE.
#[derive(Clone, Debug)]
pub(super) struct LogLine {
    /// 0 for warnings and errors.
    pub(super) level: i8,
    pub(super) text: String,
}

/// The threads, which end when it is dropped.
pub(super) struct Feed {
    socket: PathBuf,
    sender: SyncSender<FeedEvent>,
    pub(super) events: Receiver<FeedEvent>,
}

impl Feed {
    /// Starts to request samples and log lines.
    pub(super) fn start(socket: &Path) -> Self {
        let (sender, events) = sync_channel(EVENTS_MAX);
        let feed = Self { socket: socket.to_owned(), sender, events };
        feed.spawn(samples);
        feed.spawn(log);
        feed
    }

    fn spawn(&self, run: fn(&Path, &SyncSender<FeedEvent>) -> Closed) {
        let (socket, sender) = (self.socket.clone(), self.sender.clone());
        std::thread::spawn(move || run(&socket, &sender));
    }

    /// Carries out a command; its outcome is an event.
    pub(super) fn carry_out(&self, order: Order) {
        let (socket, sender) = (self.socket.clone(), self.sender.clone());
        std::thread::spawn(move || {
            let text = match command(&socket, &order) {
                Ok(()) => format!("{}: {}", order.name, order.verb.done()),
                Err(why) => format!("{}: {}", order.name, why.text),
            };
            let _ = sender.send(FeedEvent::Done(text));
        });
    }
}

/// The screen is gone.
struct Closed;

/// A sample a second.
fn samples(socket: &Path, sender: &SyncSender<FeedEvent>) -> Closed {
    let mut due = Instant::now();
    loop {
        let event = match status::ask(socket) {
            Ok(status) => FeedEvent::Sample(Box::new(status)),
            Err(error) => FeedEvent::Lost(explain(&error)),
        };
        if sender.send(event).is_err() {
            return Closed;
        }
        // After a slow response the next one is not due at once.
        due = (due + EVERY).max(Instant::now() + EVERY / 4);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Lines of the log, from a daemon to the next one.
fn log(socket: &Path, sender: &SyncSender<FeedEvent>) -> Closed {
    loop {
        let error = match follow(socket, sender) {
            Ok(closed) => return closed,
            Err(error) => error,
        };
        if sender.send(FeedEvent::NoLog(explain(&error))).is_err() {
            return Closed;
        }
        std::thread::sleep(EVERY);
    }
}

fn follow(socket: &Path, sender: &SyncSender<FeedEvent>) -> Result<Closed, ClientError> {
    let mut client = Client::connect(socket)?;
    client.register(Event::Log, Some(SOON))?;
    loop {
        let Some(received) = client.next_event(None)? else { continue };
        let message = &received.message;
        let (Some(group), Some(text)) = (message.text("group"), message.text("msg")) else { continue };
        let connection = message.text("ikesa-name").map_or_else(String::new, |name| format!(" {name}:"));
        let text = printable(&format!("{} [{group}]{connection} {text}", clock(SystemTime::now())));
        let level = message.number("level").unwrap_or(1);
        if sender.send(FeedEvent::Log(LogLine { level, text })).is_err() {
            return Ok(Closed);
        }
    }
}

/// Time of day in UTC, as the log of the daemon has it.
fn clock(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() % 86_400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn command(socket: &Path, order: &Order) -> Result<(), Failure> {
    let mut request = Message::new();
    match order.target {
        Target::Ike(number) => request.set_display("ike-id", number),
        Target::Child(number) => request.set_display("child-id", number),
    };
    let command = match order.verb {
        Verb::Terminate => Command::Terminate,
        Verb::Rekey => Command::Rekey,
    };
    request.set_display("timeout", PEER.as_millis());
    let mut client = Client::connect(socket)?;
    let reply = client.request(command, &request, Some(PEER + SOON), &mut |_| {})?;
    reply.outcome().map_err(|error| Failure::from(error.0))
}

impl Verb {
    fn done(self) -> &'static str {
        match self {
            Self::Terminate => "terminated",
            Self::Rekey => "rekey started",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_that_of_the_day() {
        assert_eq!(clock(UNIX_EPOCH + Duration::from_secs(20_000 * 86_400 + 3600 + 62)), "01:01:02Z");
    }
}
