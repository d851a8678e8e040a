//! The thread of a server: connections, their limits, reading and writing.
//!
//! A client has [`PATIENCE`] in all for its request and the response, and [`MAX_REQUEST`] bytes to
//! ask in. When all slots are in use, the client that has waited longest without a complete request
//! is closed for the new one, so that idle connections cannot keep a scrape out. Streams have slots
//! of their own; one that has not taken a part within [`PATIENCE`] is closed.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use socket2::{Domain, Socket, Type};

use super::tls::Stream;
use super::{Answer, Body, Request, Response, Service, Tls};
use crate::waker::Waker;

/// For request and response together, and for one part of a stream.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at the same time, streams apart: with requests, 256 KiB.
const CLIENTS_MAX: usize = 32;
/// Streams at the same time. A part is stored once for all of them.
pub(super) const STREAMS_MAX: usize = 64;
/// Request line and header fields, in bytes.
pub(super) const MAX_REQUEST: usize = 8 << 10;
/// Pause after a failed accept, for example without free file descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Interval at which a request whose data is not there yet is passed again.
const AGAIN: Duration = Duration::from_millis(100);

/// Answers until it is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `address`, which `key` of the section `gateway` names. `waker` announces new
    /// parts of streams. The address may be one that the host gets later.
    ///
    /// # Errors
    /// If another process listens there; the text names the address and the key.
    pub(crate) fn start(
        key: &'static str,
        address: SocketAddr,
        tls: Option<Tls>,
        waker: Waker,
        service: impl Service,
    ) -> io::Result<Self> {
        let explained = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("{key} at {address}: {error}; set another '{key}' in the section 'gateway'"),
            )
        };
        let listener = listen(address).map_err(explained)?;
        let address = listener.local_addr().map_err(explained)?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut serving =
            Serving { key, listener, tls, waker: waker.clone(), stop: Arc::clone(&stop), service, clients: Vec::new() };
        let thread =
            std::thread::Builder::new().name(format!("weir-{key}")).spawn(move || serving.run()).map_err(explained)?;
        Ok(Self { address, stop, waker, thread: Some(thread) })
    }

    /// Listening address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A socket that waits for connections at an address that no interface needs to have yet: a gateway
/// starts before the network.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    match address {
        _ if address.ip().is_loopback() => (),
        SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(128)?;
    Ok(socket.into())
}

/// Bytes on the way to a client.
struct Sending {
    header: Vec<u8>,
    body: Body,
    sent: usize,
}

impl Sending {
    /// Writes as far as that is possible now. True when all is written.
    fn write(&mut self, stream: &mut Stream) -> io::Result<bool> {
        loop {
            let (header, body) = (&self.header, self.body.bytes());
            let rest = match self.sent.checked_sub(header.len()) {
                None => &header[self.sent..],
                Some(sent) => &body[sent..],
            };
            if rest.is_empty() {
                return Ok(true);
            }
            match stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }
}

enum State {
    /// The request is incomplete.
    Reads,
    /// The data for the response is not there yet.
    Waits,
    Replies(Sending),
    /// A stream; `None` while there is no part that it has not seen.
    Streams {
        seen: u64,
        part: Option<Sending>,
    },
}

/// One connection.
struct Client {
    stream: Stream,
    since: Instant,
    /// Time at which it is closed.
    end: Instant,
    request: Vec<u8>,
    state: State,
    /// The client closed or reset the connection.
    gone: bool,
}

impl Client {
    fn new(socket: TcpStream, tls: Option<&Tls>, now: Instant) -> io::Result<Self> {
        let stream = Stream::new(socket, tls)?;
        Ok(Self { stream, since: now, end: now + PATIENCE, request: Vec::new(), state: State::Reads, gone: false })
    }

    fn interest(&self) -> PollFlags {
        let write = if self.stream.must_write() { PollFlags::OUT } else { PollFlags::empty() };
        write
            | match &self.state {
                State::Reads => PollFlags::IN,
                // A client that went away is reported anyway.
                State::Waits | State::Streams { part: None, .. } => PollFlags::empty(),
                State::Replies(_) | State::Streams { part: Some(_), .. } => PollFlags::OUT,
            }
    }

    /// Nothing is read or written now, which would reveal that the client is gone.
    fn is_idle(&self) -> bool {
        matches!(self.state, State::Waits | State::Streams { part: None, .. })
    }

    fn is_stream(&self) -> bool {
        matches!(self.state, State::Streams { .. })
    }

    /// Reads and writes as far as that is possible now. `room`: a stream may be opened. True when
    /// the connection is over.
    fn turn(&mut self, service: &mut impl Service, room: bool, now: Instant) -> io::Result<bool> {
        self.stream.push()?;
        if matches!(self.state, State::Reads | State::Waits) {
            match self.answer(service, now)? {
                Some(Answer::Whole(response)) => self.state = State::Replies(self.whole(response)),
                Some(Answer::Stream(_)) if !room => {
                    let Answer::Whole(busy) = Answer::text("503 Service Unavailable", "too many viewers\n") else {
                        return Ok(true);
                    };
                    self.state = State::Replies(self.whole(busy));
                }
                Some(Answer::Stream(response)) => {
                    let header = response.head(true);
                    self.end = now + PATIENCE;
                    self.state =
                        State::Streams { seen: 0, part: Some(Sending { header, body: response.body, sent: 0 }) };
                }
                Some(Answer::Later) => self.state = State::Waits,
                None => (),
            }
        }
        match &mut self.state {
            State::Reads | State::Waits => Ok(false),
            State::Replies(sending) => Ok(sending.write(&mut self.stream)? && self.stream.finish()?),
            State::Streams { seen, part } => {
                loop {
                    if let Some(sending) = part {
                        if !sending.write(&mut self.stream)? {
                            return Ok(false);
                        }
                        *part = None;
                    }
                    let Some((number, body)) = service.next(*seen, now) else { return Ok(false) };
                    *seen = number;
                    // The limit of time is one for each part: a slow client misses parts, and one
                    // that reads nothing is closed.
                    self.end = now + PATIENCE;
                    *part = Some(Sending { header: Vec::new(), body: Body::Shared(body), sent: 0 });
                }
            }
        }
    }

    fn whole(&self, response: Response) -> Sending {
        let header = response.head(false);
        let head_only = self.request.starts_with(b"HEAD ");
        Sending { header, body: if head_only { Body::Own(Vec::new()) } else { response.body }, sent: 0 }
    }

    /// Reads on, and returns the response when the request is complete or malformed.
    fn answer(&mut self, service: &mut impl Service, now: Instant) -> io::Result<Option<Answer>> {
        loop {
            match Request::parse(&self.request) {
                Ok(None) if self.request.len() >= MAX_REQUEST => {
                    return Ok(Some(Answer::text("431 Request Header Fields Too Large", "")));
                }
                Ok(None) => (),
                Ok(Some(request)) => return Ok(Some(service.answer(&request, self.since, now))),
                Err(answer) => return Ok(Some(answer)),
            }
            let mut buffer = [0; 1024];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.request.extend_from_slice(&buffer[..n.min(MAX_REQUEST - self.request.len())]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

/// State of the thread.
struct Serving<S> {
    key: &'static str,
    listener: TcpListener,
    tls: Option<Tls>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    service: S,
    clients: Vec<Client>,
}

impl<S: Service> Serving<S> {
    fn run(&mut self) {
        loop {
            self.wait();
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            self.waker.clear();
            let now = Instant::now();
            let mut streams = self.clients.iter().filter(|client| client.is_stream()).count();
            // Complete requests are answered before a connection is closed for a newer one.
            self.clients.retain_mut(|client| {
                let before = client.is_stream();
                let result = client.turn(&mut self.service, streams < STREAMS_MAX, now);
                streams += usize::from(client.is_stream() && !before);
                // A stream that has seen every part may wait for the next one.
                let may_wait = client.is_stream() && client.is_idle();
                match result {
                    Ok(true) => false,
                    Ok(false) if client.gone && client.is_idle() => false,
                    Ok(false) => may_wait || client.end > now,
                    Err(error) => {
                        tracing::debug!(target: "control", "{}: {error}", self.key);
                        false
                    }
                }
            });
            self.accept(now);
        }
    }

    /// Waits until a connection or a client is ready, there is a new part, or the time of a client
    /// is over.
    fn wait(&mut self) {
        let now = Instant::now();
        let mut polled = vec![PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.waker, PollFlags::IN)];
        polled.extend(self.clients.iter().map(|client| PollFd::new(&client.stream, client.interest())));
        let left = self.clients.iter().filter_map(|client| match client.state {
            State::Streams { part: None, .. } => None,
            State::Waits => Some(AGAIN),
            _ => Some(client.end.saturating_duration_since(now)),
        });
        let timeout =
            left.min().map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        // Interrupted: the loop looks anyway. Refused, as without memory: not in a busy loop.
        if let Err(error) = poll(&mut polled, timeout.as_ref())
            && error != rustix::io::Errno::INTR
        {
            std::thread::sleep(PAUSE);
        }
        // poll reports these whatever it waits for: without a look at them it would return at once,
        // again and again.
        let ends = PollFlags::HUP | PollFlags::ERR;
        let gone: Vec<bool> = polled[2..].iter().map(|polled| polled.revents().intersects(ends)).collect();
        self.clients.iter_mut().zip(gone).for_each(|(client, gone)| client.gone = gone);
    }

    /// Takes what waits in the queue of the kernel; a few at a time, so that clients have their
    /// turn.
    fn accept(&mut self, now: Instant) {
        for _ in 0..CLIENTS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let Ok(client) = Client::new(stream, self.tls.as_ref(), now) else { continue };
                    let others = || self.clients.iter().enumerate().filter(|(_, client)| !client.is_stream());
                    if others().count() >= CLIENTS_MAX {
                        // The first without a request has waited longest; if all have one, the
                        // first of them.
                        let mut idle = others().filter(|(_, client)| matches!(client.state, State::Reads));
                        let oldest = idle.next().or_else(|| others().next()).map(|(at, _)| at);
                        oldest.map(|at| self.clients.remove(at));
                    }
                    self.clients.push(client);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return std::thread::sleep(PAUSE),
            }
        }
    }
}

#[cfg(test)]
mod tests;
