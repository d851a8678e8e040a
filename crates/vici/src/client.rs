//! Client: blocking, one command at a time.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::message::{EmitError, Message, ParseError};
use super::names::{Command, Event};
use super::packet::{Kind, Packet, PacketError, Progress, SegmentReader, segment};

/// Limit of events stored while a response is awaited; older ones are discarded.
const MAX_KEPT: usize = 1024;

/// Reason why a daemon gave no answer. A program adds what its user can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No daemon listens at this path.
    #[error("cannot connect to {}", .0.display())]
    NotListening(PathBuf),
    /// The socket belongs to others.
    #[error("{}: permission denied", .0.display())]
    Denied(PathBuf),
    /// Anything else of the socket.
    #[error("{}: {}", .0.display(), .1)]
    Socket(PathBuf, io::Error),
    /// The daemon went away.
    #[error("the daemon closed the connection")]
    Closed,
    /// No answer within the time that was given.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// A version of the daemon without the command.
    #[error("the daemon does not know the command '{0}'")]
    UnknownCommand(&'static str),
    /// A version of the daemon without the event.
    #[error("the daemon does not know the event '{0}'")]
    UnknownEvent(&'static str),
    /// Malformed response.
    #[error("the daemon sent a malformed message: {0}")]
    Malformed(String),
    /// The request is too large.
    #[error(transparent)]
    Emit(#[from] EmitError),
}

impl From<PacketError> for ClientError {
    fn from(error: PacketError) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl From<ParseError> for ClientError {
    fn from(error: ParseError) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// An event as it came; its name may be one that this version does not know.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// Its name.
    pub name: String,
    /// Message.
    pub message: Message,
}

enum Answer {
    Response(Message),
    UnknownCommand,
    Confirm,
    UnknownEvent,
}

/// A connection to a daemon.
pub struct Client {
    path: PathBuf,
    stream: UnixStream,
    reader: SegmentReader,
    kept: VecDeque<Received>,
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// If no server listens there, or the user lacks permission.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotListening(path.into()),
            io::ErrorKind::PermissionDenied => ClientError::Denied(path.into()),
            _ => ClientError::Socket(path.into(), error),
        })?;
        Ok(Self { path: path.into(), stream, reader: SegmentReader::default(), kept: VecDeque::new() })
    }

    /// Runs a command and returns its reply, which may say that it failed ([`Message::outcome`]).
    /// Events that arrive before it go to `on_event`. Without a `timeout` it waits as long as it
    /// takes.
    ///
    /// # Errors
    /// When there is no reply.
    pub fn request(
        &mut self,
        command: Command,
        message: &Message,
        timeout: Option<Duration>,
        on_event: &mut dyn FnMut(Received),
    ) -> Result<Message, ClientError> {
        self.send(Kind::Request, command.name(), message)?;
        self.kept.drain(..).for_each(&mut *on_event);
        match self.answer(timeout, on_event)? {
            Answer::Response(reply) => Ok(reply),
            Answer::UnknownCommand => Err(ClientError::UnknownCommand(command.name())),
            Answer::Confirm | Answer::UnknownEvent => Err(unexpected()),
        }
    }

    /// Runs a command that lists: registers for its event, collects the listed items, and returns
    /// them with the reply.
    ///
    /// # Errors
    /// When there is no reply.
    pub fn list(
        &mut self,
        command: Command,
        event: Event,
        message: &Message,
        timeout: Option<Duration>,
    ) -> Result<(Vec<Message>, Message), ClientError> {
        self.register(event, timeout)?;
        let mut items = Vec::new();
        let reply = self.request(command, message, timeout, &mut |received| {
            if received.name == event.name() {
                items.push(received.message);
            }
        })?;
        self.registration(Kind::Unregister, event, timeout)?;
        Ok((items, reply))
    }

    /// Registers for an event.
    ///
    /// # Errors
    /// When the daemon does not know it or does not answer.
    pub fn register(&mut self, event: Event, timeout: Option<Duration>) -> Result<(), ClientError> {
        self.registration(Kind::Register, event, timeout)
    }

    /// The next event; `None` after `timeout`.
    ///
    /// # Errors
    /// If the daemon closes the connection.
    pub fn next_event(&mut self, timeout: Option<Duration>) -> Result<Option<Received>, ClientError> {
        if let Some(received) = self.kept.pop_front() {
            return Ok(Some(received));
        }
        let mut first = None;
        match self.step(deadline(timeout), &mut |received| first = Some(received)) {
            Ok(None) => Ok(first),
            Ok(Some(_)) => Err(unexpected()),
            Err(ClientError::Timeout(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn registration(&mut self, kind: Kind, event: Event, timeout: Option<Duration>) -> Result<(), ClientError> {
        self.send(kind, event.name(), &Message::new())?;
        let mut kept = std::mem::take(&mut self.kept);
        let answer = self.answer(timeout, &mut |received| {
            kept.push_back(received);
            if kept.len() > MAX_KEPT {
                kept.pop_front();
            }
        });
        self.kept = kept;
        match answer? {
            Answer::Confirm => Ok(()),
            Answer::UnknownEvent => Err(ClientError::UnknownEvent(event.name())),
            Answer::Response(_) | Answer::UnknownCommand => Err(unexpected()),
        }
    }

    fn send(&mut self, kind: Kind, name: &str, message: &Message) -> Result<(), ClientError> {
        let segment = segment(kind, name, message)?;
        match self.stream.write_all(&segment) {
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                Err(ClientError::Closed)
            }
            other => other.map_err(|error| ClientError::Socket(self.path.clone(), error)),
        }
    }

    /// Response to the last packet sent.
    fn answer(&mut self, timeout: Option<Duration>, on_event: &mut dyn FnMut(Received)) -> Result<Answer, ClientError> {
        let until = deadline(timeout);
        loop {
            if let Some(answer) = self.step(until, on_event)? {
                return Ok(answer);
            }
        }
    }

    /// Receives one packet: an answer, or an event for `on_event`.
    fn step(
        &mut self,
        until: Option<(Instant, Duration)>,
        on_event: &mut dyn FnMut(Received),
    ) -> Result<Option<Answer>, ClientError> {
        let bytes = self.receive(until)?;
        let packet = Packet::parse(&bytes)?;
        Ok(Some(match packet.kind {
            Kind::Response => Answer::Response(Message::parse(packet.body)?),
            Kind::UnknownCommand => Answer::UnknownCommand,
            Kind::Confirm => Answer::Confirm,
            Kind::UnknownEvent => Answer::UnknownEvent,
            Kind::Event => {
                on_event(Received { name: packet.name.into(), message: Message::parse(packet.body)? });
                return Ok(None);
            }
            Kind::Request | Kind::Register | Kind::Unregister => return Err(unexpected()),
        }))
    }

    /// One segment; what arrived of it before a timeout is kept for the next time.
    fn receive(&mut self, until: Option<(Instant, Duration)>) -> Result<zeroize::Zeroizing<Vec<u8>>, ClientError> {
        loop {
            let mut left = None;
            if let Some((until, timeout)) = until {
                let rest = until.saturating_duration_since(Instant::now());
                if rest.is_zero() {
                    return Err(ClientError::Timeout(timeout));
                }
                left = Some(rest);
            }
            let failed = |error| ClientError::Socket(self.path.clone(), error);
            self.stream.set_read_timeout(left).map_err(failed)?;
            match self.reader.read(&mut self.stream) {
                Ok(Progress::Segment(bytes)) => return Ok(bytes),
                Ok(Progress::Partial) => {}
                Ok(Progress::End) => return Err(ClientError::Closed),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {}
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => return Err(ClientError::Closed),
                    io::ErrorKind::InvalidData => return Err(ClientError::Malformed(error.to_string())),
                    _ => return Err(failed(error)),
                },
            }
        }
    }
}

fn deadline(timeout: Option<Duration>) -> Option<(Instant, Duration)> {
    timeout.and_then(|timeout| Some((Instant::now().checked_add(timeout)?, timeout)))
}

fn unexpected() -> ClientError {
    ClientError::Malformed("a packet that answers nothing".into())
}
