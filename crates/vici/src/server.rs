//! The server: one thread that moves packets between a socket file and the thread that owns the
//! daemon's state.
//!
//! A client's command becomes an [`Incoming`] in a bounded queue, [`Requests`], whose descriptor
//! wakes the control thread's poll loop. The control thread responds, immediately or later, through
//! a [`ViciHandle`]; events use it too. A handle never blocks: it appends to the queue of the
//! client, and a client with more than [`MAX_BACKLOG`] bytes of pending events is disconnected.
//! Long listings are not queued; the server produces one item after the other as the client reads
//! them.
//!
//! A client has one command at a time, so nothing is read from it between a request and its reply.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use zeroize::Zeroizing;

use super::doorbell::Doorbell;
use super::listing;
use super::message::Message;
use super::names::{Command, Event};
use super::packet::{Kind, Packet, Progress, SegmentReader, retry, segment};
use super::socket;

/// Clients at the same time; further ones are closed at once.
pub const MAX_CLIENTS: usize = 32;
/// Events that wait for one client, in bytes: 32 MiB with all clients.
pub const MAX_BACKLOG: usize = 1 << 20;
/// Requests and notices that wait for the control thread. Each client adds at most one of each, and
/// waits when the queue is full.
pub const MAX_WAITING: usize = MAX_CLIENTS;
/// Timeout of a client that does not read its listing: long enough for a user with a pager.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// Bytes written to one client before the next one is served.
const TURN: usize = 256 << 10;
/// Retry delay if the control thread's queue is full.
const RETRY: Duration = Duration::from_millis(20);

/// A connection of a client. Never used twice.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ClientId(pub u64);

/// Input of the control thread.
#[derive(Debug)]
pub enum Incoming {
    /// A command, to be answered once with [`ViciHandle::reply`] or [`ViciHandle::list`].
    Request {
        /// Client.
        client: ClientId,
        /// Command.
        command: Command,
        /// With which arguments.
        message: Message,
    },
    /// The client disconnected before its command was answered. Later responses are ignored.
    Gone(ClientId),
}

type Segment = Arc<Zeroizing<Vec<u8>>>;

/// Events to be sent as fast as the client reads, and the reply after them.
struct Listing {
    event: Event,
    items: Box<dyn Iterator<Item = Message> + Send>,
    reply: Message,
}

/// Queue for a client; read by the server thread.
#[derive(Default)]
struct Mailbox {
    queue: VecDeque<Segment>,
    /// Bytes in `queue`.
    backlog: usize,
    /// Registered events, by their bits.
    events: u32,
    /// Between a request and its reply.
    busy: bool,
    listing: Option<Listing>,
    /// Too many events were not read.
    overrun: bool,
}

impl Mailbox {
    fn push(&mut self, segment: Segment) {
        self.backlog += segment.len();
        self.queue.push_back(segment);
    }

    fn push_event(&mut self, segment: &Segment) {
        if self.overrun || self.backlog + segment.len() > MAX_BACKLOG {
            self.overrun = true;
            self.queue.clear();
            return;
        }
        self.push(Arc::clone(segment));
    }

    fn pop(&mut self) -> Option<Segment> {
        let segment = self.queue.pop_front()?;
        self.backlog -= segment.len();
        Some(segment)
    }
}

#[derive(Default)]
struct State {
    mailboxes: BTreeMap<ClientId, Mailbox>,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Events that anybody registered for.
    registered: AtomicU32,
    /// Gets the server thread out of its poll.
    bell: Doorbell,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `change` on a client's mailbox, if it is still there.
    fn with(&self, client: ClientId, change: impl FnOnce(&mut Mailbox)) {
        if let Some(mailbox) = self.lock().mailboxes.get_mut(&client) {
            change(mailbox);
        }
    }

    fn count_registrations(&self, state: &State) {
        let all = state.mailboxes.values().fold(0, |all, mailbox| all | mailbox.events);
        self.registered.store(all, Ordering::Release);
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// A full counter wakes as well as one more.
fn signal(eventfd: &OwnedFd) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

fn reset(eventfd: &OwnedFd) {
    let _ = rustix::io::read(eventfd, &mut [0u8; 8]);
}

/// Speaks to clients; may be cloned and used from any thread.
#[derive(Clone)]
pub struct ViciHandle(Arc<Shared>);

impl ViciHandle {
    /// Ends a client's command.
    pub fn reply(&self, client: ClientId, message: &Message) {
        let response = respond(message);
        self.0.with(client, |mailbox| {
            if mailbox.busy && mailbox.listing.is_none() {
                mailbox.busy = false;
                mailbox.push(response);
            }
        });
        self.0.bell.ring();
    }

    /// Ends a client's command with events before the reply. The items are taken in the server's
    /// thread, each when the client is about to read it; a client that did not register for the
    /// event only gets the reply.
    pub fn list(
        &self,
        client: ClientId,
        event: Event,
        items: impl IntoIterator<Item = Message, IntoIter: Send + 'static>,
        reply: Message,
    ) {
        let items = Box::new(items.into_iter());
        self.0.with(client, |mailbox| {
            if mailbox.busy && mailbox.listing.is_none() {
                mailbox.listing = Some(Listing { event, items, reply });
            }
        });
        self.0.bell.ring();
    }

    /// Sends an event to all registered clients.
    pub fn event(&self, event: Event, message: &Message) {
        if !self.is_registered(event) {
            return;
        }
        let Ok(segment) = segment(Kind::Event, event.name(), message).map(Arc::new) else { return };
        for mailbox in self.0.lock().mailboxes.values_mut().filter(|mailbox| mailbox.events & event.bit() != 0) {
            mailbox.push_event(&segment);
        }
        self.0.bell.ring();
    }

    /// Sends an event to one client, if it is registered.
    pub fn event_to(&self, client: ClientId, event: Event, message: &Message) {
        let Ok(segment) = segment(Kind::Event, event.name(), message).map(Arc::new) else { return };
        self.0.with(client, |mailbox| {
            if mailbox.events & event.bit() != 0 {
                mailbox.push_event(&segment);
            }
        });
        self.0.bell.ring();
    }

    /// Returns whether any client is registered for the event; otherwise it need not be formatted.
    pub fn is_registered(&self, event: Event) -> bool {
        self.0.registered.load(Ordering::Acquire) & event.bit() != 0
    }
}

/// A response, or a response that reports the error.
fn respond(message: &Message) -> Segment {
    let response = segment(Kind::Response, "", message).or_else(|error| {
        let text = format!("the reply cannot be sent: {error}");
        segment(Kind::Response, "", &listing::failure(&text))
    });
    Arc::new(response.unwrap_or_default())
}

/// The server has stopped: nothing comes any more.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the control socket is closed")]
pub struct Stopped;

/// The control thread's end of the queue. Its descriptor is readable if the queue may contain
/// requests.
pub struct Requests {
    queue: Receiver<Incoming>,
    ready: Arc<OwnedFd>,
}

impl Requests {
    /// Returns the next input without blocking. After `None` wait for the descriptor.
    pub fn try_next(&self) -> Option<Incoming> {
        self.queue.try_recv().ok().or_else(|| {
            // Reset first, look again after it: what arrives in between is not overlooked.
            reset(&self.ready);
            self.queue.try_recv().ok()
        })
    }

    /// Waits for the next request; `Ok(None)` after `timeout`.
    ///
    /// # Errors
    /// When the server has stopped.
    pub fn next_within(&self, timeout: Duration) -> Result<Option<Incoming>, Stopped> {
        match self.queue.recv_timeout(timeout) {
            Ok(incoming) => Ok(Some(incoming)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Stopped),
        }
    }
}

impl AsFd for Requests {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// The running server. Closes all connections, and removes its socket, when dropped.
pub struct Server {
    path: PathBuf,
    /// Identity of its file, to detect a replacement by another process.
    mark: Option<socket::Mark>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `path`, open to its owner (mode 0600) or also to a group (0660).
    ///
    /// # Errors
    /// Error with the path, and with a remedy if another daemon responds there.
    pub fn start(path: &Path, group: Option<u32>) -> io::Result<(Self, Requests)> {
        let listener = socket::listen(path, group)?;
        let shared =
            Arc::new(Shared { state: Mutex::default(), registered: AtomicU32::new(0), bell: Doorbell::new()? });
        let ready = Arc::new(eventfd()?);
        let (sender, queue) = sync_channel(MAX_WAITING);
        let worker = Worker {
            listener,
            shared: Arc::clone(&shared),
            to_control: sender,
            ready: Arc::clone(&ready),
            connections: Vec::new(),
            next_client: 1,
        };
        let thread = std::thread::Builder::new().name("vici".into()).spawn(|| worker.run())?;
        let (path, mark) = (path.to_owned(), socket::mark(path));
        Ok((Self { path, mark, shared, thread: Some(thread) }, Requests { queue, ready }))
    }

    /// Speaks to this server's clients.
    pub fn handle(&self) -> ViciHandle {
        ViciHandle(Arc::clone(&self.shared))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if socket::mark(&self.path) == self.mark {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Clients without a socket and the thread that serves it: for fuzzing of what carries out their
/// requests.
#[doc(hidden)]
pub struct Detached {
    shared: Arc<Shared>,
    to_control: SyncSender<Incoming>,
    next: u64,
}

impl Detached {
    /// No clients, and the control thread's end of the queue.
    ///
    /// # Errors
    /// The operating system has no descriptor left.
    pub fn new() -> io::Result<(Self, Requests)> {
        let shared =
            Arc::new(Shared { state: Mutex::default(), registered: AtomicU32::new(0), bell: Doorbell::new()? });
        let (to_control, queue) = sync_channel(MAX_WAITING);
        Ok((Self { shared, to_control, next: 1 }, Requests { queue, ready: Arc::new(eventfd()?) }))
    }

    /// Replies to these clients.
    #[must_use]
    pub fn handle(&self) -> ViciHandle {
        ViciHandle(Arc::clone(&self.shared))
    }

    /// A client that is registered for every event.
    pub fn connect(&mut self) -> ClientId {
        let id = ClientId(self.next);
        self.next += 1;
        let mut state = self.shared.lock();
        state.mailboxes.insert(id, Mailbox { events: u32::MAX, ..Mailbox::default() });
        self.shared.count_registrations(&state);
        id
    }

    /// The client waits for a reply.
    #[must_use]
    pub fn is_busy(&self, client: ClientId) -> bool {
        self.shared.lock().mailboxes.get(&client).is_some_and(|mailbox| mailbox.busy)
    }

    /// Sends a request.
    pub fn request(&self, client: ClientId, command: Command, message: Message) {
        self.shared.with(client, |mailbox| mailbox.busy = true);
        let _ = self.to_control.try_send(Incoming::Request { client, command, message });
    }

    /// The client disconnects; the control thread gets a notice if it waits for a reply.
    pub fn leave(&self, client: ClientId) {
        if self.shared.lock().mailboxes.remove(&client).is_some_and(|mailbox| mailbox.busy) {
            let _ = self.to_control.try_send(Incoming::Gone(client));
        }
    }

    /// Segments that the client reads now, a listing and its reply included.
    #[must_use]
    pub fn read(&self, client: ClientId) -> Vec<Segment> {
        let mut read = Vec::new();
        let mut listing = None;
        self.shared.with(client, |mailbox| {
            read.extend(std::iter::from_fn(|| mailbox.pop()));
            listing = mailbox.listing.take();
            mailbox.busy &= listing.is_none();
        });
        if let Some(Listing { event, items, reply }) = listing {
            read.extend(items.filter_map(|item| segment(Kind::Event, event.name(), &item).ok().map(Arc::new)));
            read.push(respond(&reply));
        }
        read
    }
}

struct Connection {
    id: ClientId,
    /// None when it is over and only `undelivered` holds it back.
    stream: Option<UnixStream>,
    reader: SegmentReader,
    /// The segment being sent, and the number of bytes already sent.
    sending: Option<(Segment, usize)>,
    listing: Option<Listing>,
    /// Time of the last progress of the client, or of an empty queue.
    last_progress: Instant,
    /// The client has shut down its sending side, and is closed when it has read everything.
    draining: bool,
    /// At most a request and the notice that its client is gone.
    undelivered: VecDeque<Incoming>,
}

/// Reason why a connection ends.
enum End {
    /// The client has disconnected, or has read everything after it shut down its sending side.
    Quiet,
    Because(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => Self::Quiet,
            _ => Self::Because(error.to_string()),
        }
    }
}

/// State of a client's mailbox for one iteration of the loop.
#[derive(Clone, Copy, Default)]
struct Look {
    busy: bool,
    has_output: bool,
    overrun: bool,
}

struct Worker {
    listener: UnixListener,
    shared: Arc<Shared>,
    to_control: SyncSender<Incoming>,
    ready: Arc<OwnedFd>,
    connections: Vec<Connection>,
    next_client: u64,
}

impl Worker {
    fn run(mut self) {
        loop {
            let looks = self.look();
            let (accepts, events) = match self.wait(&looks) {
                Ok(events) => events,
                Err(error) => {
                    tracing::error!(target: "vici", "poll: {error}; the control socket is closed");
                    return;
                }
            };
            self.shared.bell.answer();
            for (i, events) in events.into_iter().enumerate() {
                if let Err(end) = self.serve(i, events) {
                    self.close(i, &end);
                }
                self.deliver(i);
            }
            self.connections.retain(|connection| connection.stream.is_some() || !connection.undelivered.is_empty());
            if self.shared.lock().stop {
                // Flush the last messages: a client may have requested the stop.
                for connection in &mut self.connections {
                    let _ = connection.write(&self.shared);
                }
                return;
            }
            if accepts {
                self.accept();
            }
        }
    }

    /// Takes new listings over and looks at each mailbox.
    fn look(&mut self) -> Vec<Look> {
        let mut state = self.shared.lock();
        let looks = self.connections.iter_mut().map(|connection| {
            let Some(mailbox) = state.mailboxes.get_mut(&connection.id) else { return Look::default() };
            if let Some(listing) = mailbox.listing.take() {
                let registered = mailbox.events & listing.event.bit() != 0;
                let items = if registered { listing.items } else { Box::new(std::iter::empty()) };
                connection.listing = Some(Listing { items, ..listing });
                connection.last_progress = Instant::now();
            }
            Look {
                busy: mailbox.busy,
                has_output: connection.sending.is_some() || connection.listing.is_some() || !mailbox.queue.is_empty(),
                overrun: mailbox.overrun,
            }
        });
        looks.collect()
    }

    /// Waits for work: a new client, or a connection that is readable or writable.
    fn wait(&self, looks: &[Look]) -> io::Result<(bool, Vec<PollFlags>)> {
        let mut polled =
            vec![PollFd::new(&self.shared.bell, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        for (connection, look) in self.connections.iter().zip(looks) {
            let Some(stream) = &connection.stream else { continue };
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, !look.busy && !connection.draining);
            flags.set(PollFlags::OUT, look.has_output);
            polled.push(PollFd::new(stream, flags));
        }
        let timeout = self.timeout(looks).map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        retry(|| Ok(rustix::event::poll(&mut polled, timeout.as_ref())?))?;
        let mut ready = polled[2..].iter().map(PollFd::revents);
        let events = self.connections.iter().map(|connection| {
            let open = connection.stream.as_ref().and_then(|_| ready.next());
            open.unwrap_or(PollFlags::empty())
        });
        let events = events.collect();
        Ok((polled[1].revents().contains(PollFlags::IN), events))
    }

    fn timeout(&self, looks: &[Look]) -> Option<Duration> {
        let each = self.connections.iter().zip(looks).filter_map(|(connection, look)| {
            if look.overrun || (connection.draining && !look.has_output) {
                Some(Duration::ZERO)
            } else if !connection.undelivered.is_empty() {
                Some(RETRY)
            } else if connection.listing.is_some() {
                Some(PATIENCE.saturating_sub(connection.last_progress.elapsed()))
            } else {
                None
            }
        });
        each.min()
    }

    fn accept(&mut self) {
        match retry(|| self.listener.accept()) {
            Ok((stream, _)) if self.connections.len() >= MAX_CLIENTS => {
                drop(stream);
                tracing::warn!(target: "vici", "refused a client: {MAX_CLIENTS} are connected already");
            }
            Ok((stream, _)) => {
                if let Err(error) = stream.set_nonblocking(true) {
                    tracing::debug!(target: "vici", "{error}");
                    return;
                }
                let id = ClientId(self.next_client);
                self.next_client += 1;
                self.shared.lock().mailboxes.insert(id, Mailbox::default());
                self.connections.push(Connection {
                    id,
                    stream: Some(stream),
                    reader: SegmentReader::default(),
                    sending: None,
                    listing: None,
                    last_progress: Instant::now(),
                    draining: false,
                    undelivered: VecDeque::new(),
                });
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {}
            Err(error) => {
                // No descriptors left, for one; poll would say at once that the client is still
                // there.
                tracing::warn!(target: "vici", "accept: {error}");
                std::thread::sleep(RETRY);
            }
        }
    }

    fn serve(&mut self, i: usize, events: PollFlags) -> Result<(), End> {
        let connection = &mut self.connections[i];
        if connection.stream.is_none() {
            return Ok(());
        }
        let mut look = Look::default();
        self.shared.with(connection.id, |mailbox| {
            look = Look { busy: mailbox.busy, overrun: mailbox.overrun, has_output: false };
        });
        if look.overrun {
            return Err(End::Because(format!("{MAX_BACKLOG} bytes of events were not read")));
        }
        if events.contains(PollFlags::IN) && !look.busy {
            connection.read(&self.shared)?;
        } else if events.intersects(PollFlags::HUP | PollFlags::ERR) {
            return Err(End::Quiet);
        }
        connection.write(&self.shared)
    }

    /// Hands requests to the control thread; what does not fit waits.
    fn deliver(&mut self, i: usize) {
        while let Some(incoming) = self.connections[i].undelivered.pop_front() {
            match self.to_control.try_send(incoming) {
                Ok(()) => signal(&self.ready),
                Err(TrySendError::Full(incoming)) => {
                    self.connections[i].undelivered.push_front(incoming);
                    return;
                }
                Err(TrySendError::Disconnected(_)) => {
                    self.connections[i].undelivered.clear();
                    self.close(i, &End::Quiet);
                    return;
                }
            }
        }
    }

    fn close(&mut self, i: usize, end: &End) {
        let connection = &mut self.connections[i];
        if let End::Because(why) = end {
            tracing::warn!(target: "vici", client = connection.id.0, "closed the connection of a client: {why}");
        }
        connection.stream = None;
        connection.listing = None;
        let mut state = self.shared.lock();
        let busy = state.mailboxes.remove(&connection.id).is_some_and(|mailbox| mailbox.busy);
        self.shared.count_registrations(&state);
        drop(state);
        // A request that was not delivered needs no notice.
        if connection.undelivered.pop_front().is_none() && busy {
            connection.undelivered.push_back(Incoming::Gone(connection.id));
        }
    }
}

impl Connection {
    fn read(&mut self, shared: &Shared) -> Result<(), End> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        match self.reader.read(stream) {
            Ok(Progress::Segment(bytes)) => self.take(&bytes, shared),
            Ok(Progress::Partial) => Ok(()),
            Ok(Progress::End) => {
                self.draining = true;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Executes a packet, or passes it to the control thread.
    fn take(&mut self, bytes: &[u8], shared: &Shared) -> Result<(), End> {
        let packet = Packet::parse(bytes).map_err(|error| End::Because(error.to_string()))?;
        let answer = match packet.kind {
            Kind::Request => {
                let Some(command) = Command::from_name(packet.name) else {
                    return self.answer(Kind::UnknownCommand, shared);
                };
                match Message::parse(packet.body) {
                    Ok(message) => {
                        shared.with(self.id, |mailbox| mailbox.busy = true);
                        self.undelivered.push_back(Incoming::Request { client: self.id, command, message });
                        return Ok(());
                    }
                    Err(error) => {
                        let response = respond(&listing::failure(&error.to_string()));
                        shared.with(self.id, |mailbox| mailbox.push(response));
                        return Ok(());
                    }
                }
            }
            Kind::Register | Kind::Unregister => match Event::from_name(packet.name) {
                Some(event) => {
                    self.register(event, packet.kind == Kind::Register, shared);
                    Kind::Confirm
                }
                None => Kind::UnknownEvent,
            },
            kind => return Err(End::Because(format!("a client may not send packets of type {}", kind as u8))),
        };
        self.answer(answer, shared)
    }

    fn answer(&self, kind: Kind, shared: &Shared) -> Result<(), End> {
        let segment = segment(kind, "", &Message::new()).map_err(|error| End::Because(error.to_string()))?;
        shared.with(self.id, |mailbox| mailbox.push(Arc::new(segment)));
        Ok(())
    }

    fn register(&self, event: Event, wanted: bool, shared: &Shared) {
        let mut state = shared.lock();
        if let Some(mailbox) = state.mailboxes.get_mut(&self.id) {
            mailbox.events = if wanted { mailbox.events | event.bit() } else { mailbox.events & !event.bit() };
        }
        shared.count_registrations(&state);
    }

    /// Sends what there is, as far as the client takes it and for one turn.
    fn write(&mut self, shared: &Shared) -> Result<(), End> {
        let mut written = 0;
        while written < TURN {
            if self.sending.is_none() {
                self.sending = self.next_segment(shared).map(|segment| (segment, 0));
            }
            let (Some((segment, sent)), Some(stream)) = (&mut self.sending, &mut self.stream) else {
                // A client that has shut down has no pending command, because clients with one are
                // not read.
                return if self.draining { Err(End::Quiet) } else { Ok(()) };
            };
            match retry(|| stream.write(&segment[*sent..])) {
                Ok(count) => {
                    *sent += count;
                    written += count;
                    self.last_progress = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
            if *sent == segment.len() {
                self.sending = None;
            }
        }
        if self.listing.is_some() && self.last_progress.elapsed() >= PATIENCE {
            return Err(End::Because(format!("nothing of a listing was read for {} s", PATIENCE.as_secs())));
        }
        Ok(())
    }

    /// The mailbox first, then the listing, then the reply after it.
    fn next_segment(&mut self, shared: &Shared) -> Option<Segment> {
        let mut waiting = None;
        shared.with(self.id, |mailbox| waiting = mailbox.pop());
        if waiting.is_some() {
            return waiting;
        }
        let listing = self.listing.as_mut()?;
        for item in listing.items.by_ref() {
            match segment(Kind::Event, listing.event.name(), &item) {
                Ok(segment) => return Some(Arc::new(segment)),
                Err(error) => tracing::warn!(target: "vici", "an item of a listing is left out: {error}"),
            }
        }
        let reply = respond(&self.listing.take()?.reply);
        shared.with(self.id, |mailbox| mailbox.busy = false);
        Some(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::{Client, ClientError};
    use super::super::message::MAX_SEGMENT;
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    const SOON: Option<Duration> = Some(Duration::from_secs(10));

    /// A server with the control thread that a test gives it, until dropped.
    struct Daemon {
        path: PathBuf,
        server: Option<Server>,
        control: Option<JoinHandle<()>>,
    }

    impl Daemon {
        fn new(name: &str, mut control: impl FnMut(&ViciHandle, Incoming) + Send + 'static) -> Self {
            let path = std::env::temp_dir().join(format!("weir-vici-{name}-{}.sock", std::process::id()));
            let (server, requests) = Server::start(&path, None).unwrap();
            let handle = server.handle();
            let control = std::thread::spawn(move || {
                loop {
                    match requests.next_within(Duration::from_secs(60)) {
                        Ok(Some(incoming)) => control(&handle, incoming),
                        Ok(None) => panic!("nothing came for a minute"),
                        Err(Stopped) => return,
                    }
                }
            });
            Self { path, server: Some(server), control: Some(control) }
        }

        fn handle(&self) -> ViciHandle {
            self.server.as_ref().unwrap().handle()
        }

        fn client(&self) -> Client {
            Client::connect(&self.path).unwrap()
        }

        fn raw(&self) -> UnixStream {
            let stream = UnixStream::connect(&self.path).unwrap();
            stream.set_read_timeout(SOON).unwrap();
            stream
        }
    }

    impl Drop for Daemon {
        fn drop(&mut self) {
            self.server = None;
            if let Some(control) = self.control.take() {
                control.join().unwrap();
            }
            assert!(!self.path.exists());
        }
    }

    /// Answers every command with its own arguments.
    fn echo(vici: &ViciHandle, incoming: Incoming) {
        if let Incoming::Request { client, message, .. } = incoming {
            vici.reply(client, &message);
        }
    }

    fn msg(text: &str) -> Message {
        let mut message = Message::new();
        message.set("msg", text);
        message
    }

    fn nothing(_: super::super::client::Received) {}

    fn within_10_s(what: &str, mut done: impl FnMut() -> bool) {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < Duration::from_secs(10), "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_command_and_its_reply() {
        let daemon = Daemon::new("echo", echo);
        assert_eq!(std::fs::metadata(&daemon.path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut client = daemon.client();
        for text in ["one", "two"] {
            assert_eq!(client.request(Command::Stats, &msg(text), SOON, &mut nothing).unwrap(), msg(text));
        }
        // The largest that fits in a request comes back as the largest reply.
        let mut large = Message::new();
        for i in 0..7 {
            large.set(&format!("{i}"), vec![b'x'; 0xffff]);
        }
        let other = &mut daemon.client();
        assert_eq!(other.request(Command::Stats, &large, SOON, &mut nothing).unwrap(), large);
        drop(client);
        assert_eq!(other.request(Command::Stats, &large, SOON, &mut nothing).unwrap(), large);
    }

    #[test]
    fn unknown_names_are_said_to_be_unknown() {
        let daemon = Daemon::new("unknown", echo);
        let mut stream = daemon.raw();
        stream.write_all(b"\0\0\0\x05\x00\x03abc\0\0\0\x05\x03\x03abc\0\0\0\x05\x04\x03log").unwrap();
        let mut answers = [0; 15];
        stream.read_exact(&mut answers).unwrap();
        assert_eq!(&answers, b"\0\0\0\x01\x02\0\0\0\x01\x06\0\0\0\x01\x05");
    }

    #[test]
    fn a_malformed_message_is_answered_and_a_malformed_packet_is_not() {
        let daemon = Daemon::new("malformed", echo);
        let mut stream = daemon.raw();
        stream.write_all(b"\0\0\0\x08\x00\x05stats\x02").unwrap();
        let mut reader = SegmentReader::default();
        let answer = loop {
            if let Progress::Segment(bytes) = reader.read(&mut stream).unwrap() {
                break bytes;
            }
        };
        let packet = Packet::parse(&answer).unwrap();
        assert_eq!(packet.kind, Kind::Response);
        assert!(Message::parse(packet.body).unwrap().outcome().unwrap_err().0.contains("out of place"));
        for bad in [&b"\0\0\0\0"[..], b"\0\0\0\x01\x09", b"\0\0\0\x01\x05", b"\0\x08\0\x01", b"\xff\xff\xff\xff"] {
            let mut stream = daemon.raw();
            stream.write_all(bad).unwrap();
            assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "{bad:02x?}");
        }
    }

    #[test]
    fn a_client_that_ends_its_side_still_gets_the_reply() {
        let daemon = Daemon::new("half", |vici, incoming| {
            std::thread::sleep(Duration::from_millis(30));
            echo(vici, incoming);
        });
        let mut stream = daemon.raw();
        stream.write_all(&segment(Kind::Request, "stats", &msg("late")).unwrap()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        assert_eq!(reply, *segment(Kind::Response, "", &msg("late")).unwrap());
    }

    #[test]
    fn a_listing_of_any_length_comes_in_order_and_before_the_reply() {
        const COUNT: u32 = 20_000;
        let daemon = Daemon::new("listing", |vici, incoming| {
            if let Incoming::Request { client, .. } = incoming {
                let items = (0..COUNT).map(|i| msg(&format!("{i:0200}")));
                vici.list(client, Event::ListSa, items, msg("end"));
            }
        });
        let mut client = daemon.client();
        let (items, reply) = client.list(Command::ListSas, Event::ListSa, &Message::new(), SOON).unwrap();
        assert_eq!(reply, msg("end"));
        assert_eq!(items.len(), COUNT as usize);
        assert!(items.iter().enumerate().all(|(i, item)| item.text("msg").unwrap().parse() == Ok(i)));
        // Unregistered clients receive nothing.
        let mut seen = 0;
        assert_eq!(client.request(Command::ListSas, &Message::new(), SOON, &mut |_| seen += 1).unwrap(), msg("end"));
        assert_eq!(seen, 0);
    }

    #[test]
    fn events_go_to_those_who_registered() {
        let daemon = Daemon::new("events", |vici, incoming| {
            if let Incoming::Request { client, .. } = incoming {
                vici.event_to(client, Event::ControlLog, &msg("for one"));
                vici.event(Event::Log, &msg("for all"));
                vici.reply(client, &listing::success());
            }
        });
        let (mut one, mut other, mut deaf) = (daemon.client(), daemon.client(), daemon.client());
        assert!(!daemon.handle().is_registered(Event::Log));
        one.register(Event::ControlLog, SOON).unwrap();
        one.register(Event::Log, SOON).unwrap();
        other.register(Event::Log, SOON).unwrap();
        other.register(Event::ControlLog, SOON).unwrap();
        assert!(daemon.handle().is_registered(Event::Log) && !daemon.handle().is_registered(Event::Alert));
        let mut events = Vec::new();
        let mut receive = |received: super::super::client::Received| events.push(received.message);
        one.request(Command::Initiate, &Message::new(), SOON, &mut receive).unwrap();
        assert_eq!(events, [msg("for one"), msg("for all")]);
        let received = other.next_event(SOON).unwrap().unwrap();
        assert_eq!((received.name.as_str(), received.message), ("log", msg("for all")));
        assert_eq!(other.next_event(Some(Duration::from_millis(10))).unwrap(), None);
        assert_eq!(deaf.next_event(Some(Duration::from_millis(10))).unwrap(), None);
        drop((one, other));
        within_10_s("no client is registered", || !daemon.handle().is_registered(Event::Log));
    }

    #[test]
    fn a_client_that_does_not_read_is_dropped_and_delays_no_other_client() {
        let daemon = Daemon::new("slow", echo);
        let (mut slow, mut good) = (daemon.client(), daemon.client());
        slow.register(Event::Log, SOON).unwrap();
        let vici = daemon.handle();
        let text = "x".repeat(10_000);
        let began = Instant::now();
        within_10_s("the slow client is dropped", || {
            vici.event(Event::Log, &msg(&text));
            !vici.is_registered(Event::Log)
        });
        assert!(began.elapsed() < Duration::from_secs(5));
        assert_eq!(good.request(Command::Stats, &msg("still"), SOON, &mut nothing).unwrap(), msg("still"));
        // It receives the pending data, then end of file.
        let mut count = 0;
        let end = loop {
            match slow.next_event(SOON) {
                Ok(received) => count += usize::from(received.is_some()),
                Err(error) => break error,
            }
        };
        assert!(matches!(end, ClientError::Closed), "{end}");
        assert!(count * text.len() <= MAX_BACKLOG + MAX_SEGMENT * 2, "{count}");
    }

    #[test]
    fn a_client_that_leaves_during_its_command_is_reported() {
        let (report, reports) = std::sync::mpsc::channel();
        let daemon = Daemon::new("gone", move |_, incoming| {
            report
                .send(match incoming {
                    Incoming::Request { client, .. } => (client, true),
                    Incoming::Gone(client) => (client, false),
                })
                .unwrap();
        });
        let mut client = daemon.client();
        let waiting = client.request(Command::Initiate, &Message::new(), Some(Duration::from_millis(20)), &mut nothing);
        assert!(matches!(waiting, Err(ClientError::Timeout(_))));
        let asked = reports.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(asked.1 && reports.try_recv().is_err());
        drop(client);
        assert_eq!(reports.recv_timeout(Duration::from_secs(10)).unwrap(), (asked.0, false));
        // Too late; ignored.
        daemon.handle().reply(asked.0, &listing::success());
        daemon.handle().list(asked.0, Event::ListSa, [msg("x")], listing::success());
        daemon.handle().event_to(asked.0, Event::Log, &msg("x"));
    }

    #[test]
    fn a_reply_without_a_request_and_a_second_reply_are_ignored() {
        let daemon = Daemon::new("twice", |vici, incoming| {
            if let Incoming::Request { client, message, .. } = incoming {
                vici.reply(ClientId(client.0 + 1), &msg("unasked"));
                vici.reply(client, &message);
                vici.reply(client, &msg("again"));
            }
        });
        let (mut first, mut second) = (daemon.client(), daemon.client());
        second.register(Event::Log, SOON).unwrap();
        for text in ["a", "b"] {
            assert_eq!(first.request(Command::Stats, &msg(text), SOON, &mut nothing).unwrap(), msg(text));
        }
        assert_eq!(second.next_event(Some(Duration::from_millis(10))).unwrap(), None);
    }

    #[test]
    fn clients_above_the_limit_are_turned_away_until_one_leaves() {
        let daemon = Daemon::new("many", echo);
        let mut clients: Vec<_> = (0..MAX_CLIENTS).map(|_| daemon.client()).collect();
        for client in &mut clients {
            client.register(Event::Log, SOON).unwrap();
        }
        assert!(matches!(daemon.client().register(Event::Log, SOON), Err(ClientError::Closed)));
        clients.pop();
        within_10_s("there is room", || daemon.client().register(Event::Log, SOON).is_ok());
    }

    #[test]
    fn more_requests_than_the_queue_holds_wait() {
        let path = std::env::temp_dir().join(format!("weir-vici-queue-{}.sock", std::process::id()));
        let (server, requests) = Server::start(&path, None).unwrap();
        // Clients that ask and leave fill the queue, and their notices do not fit.
        for _ in 0..3 * MAX_CLIENTS {
            if let Ok(mut stream) = UnixStream::connect(&path) {
                let _ = stream.write_all(&segment(Kind::Request, "stats", &msg("x")).unwrap());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut open = std::collections::BTreeSet::new();
        let mut last = Instant::now();
        while last.elapsed() < Duration::from_millis(300) {
            match requests.try_next() {
                Some(Incoming::Request { client, .. }) => assert!(open.insert(client)),
                Some(Incoming::Gone(client)) => assert!(open.remove(&client)),
                None => {
                    let mut polled = [PollFd::new(&requests, PollFlags::IN)];
                    let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                    rustix::event::poll(&mut polled, Some(&timeout)).unwrap();
                    continue;
                }
            }
            last = Instant::now();
        }
        assert!(open.is_empty(), "{open:?}");
        let mut client = Client::connect(&path).unwrap();
        client.register(Event::Log, SOON).unwrap();
        // Without a control thread commands fail.
        drop(requests);
        let answer = client.request(Command::Stats, &msg("x"), SOON, &mut nothing);
        assert!(matches!(answer, Err(ClientError::Closed)));
        drop(server);
    }

    #[test]
    fn the_socket_file() {
        let path = std::env::temp_dir().join(format!("weir-vici-file-{}.sock", std::process::id()));
        assert!(matches!(Client::connect(&path), Err(ClientError::NotListening(_))));
        let group = rustix::process::getgid().as_raw();
        let (server, _requests) = Server::start(&path, Some(group)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        assert_eq!(Server::start(&path, None).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        drop(server);
        assert!(!path.exists());
        // Socket file of a killed daemon.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(Server::start(&path, None).unwrap());
        // The end of one is not the end of another in its place.
        let (first, _requests) = Server::start(&path, None).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (second, _requests) = Server::start(&path, None).unwrap();
        drop(first);
        assert!(Client::connect(&path).is_ok());
        drop(second);
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(Server::start(&path, None).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(socket::group_id("root").unwrap(), 0);
        assert_eq!(socket::group_id("4711").unwrap(), 4711);
        assert!(socket::group_id("no-such-group").is_err());
    }
}
