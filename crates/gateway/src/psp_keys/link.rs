//! Control connections: one thread with all sockets of the key service.
//!
//! It does TLS and framing and has no state of associations. It sends [`Report`]s to the control
//! side through a bounded queue and receives [`Order`]s. It ends when the control side is gone.

pub(crate) mod fuzzing;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use ike::identity::Identity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::{ClientConnection, ServerConnection};
use socket2::{Domain, Socket, Type};
use wire::AddrRange;
use wire::psp::{PspSpi, PspVersion};
use zeroize::Zeroizing;

use super::admission::{Admission, MAX_CONNECTIONS, Slot, admit};
use super::fizz::{self, Short};
use super::message::{self, Code, Message, TrafficKey};
use super::peer::Link;
use super::tls::{self, Candidates, Entry};
use credentials::tls::Identities;

/// Time for connecting and TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time for the marker of the short form.
const MARKER: Duration = Duration::from_secs(10);
/// Time limit to flush the last message before a close.
const FAREWELL: Duration = Duration::from_secs(2);
/// Bytes that wait to be sent.
const MAX_UNSENT: usize = 32 << 10;
/// The largest record of TLS 1.3 (RFC 8446 §5.2), header included.
const MAX_RECORD: usize = 5 + (1 << 14) + 256;
/// Connections taken from one listener per turn.
const ACCEPTS: usize = 16;

/// Commands to the thread.
pub(crate) enum Order {
    /// Listen there instead of where it does; the answer comes back.
    Listen(Vec<SocketAddr>, SyncSender<io::Result<Vec<SocketAddr>>>),
    /// Replaces the set of peers that may connect.
    Admit(Vec<Arc<Entry>>),
    /// Connect; the ticket comes back.
    Connect { ticket: u64, entry: Arc<Entry>, from: Option<IpAddr>, to: SocketAddr },
    /// Send a message.
    Send(Link, Message),
    /// Send the message of the short form.
    Short(Link, Short),
    /// The short form is done: further outbound packets use PSP.
    Switch(Link),
    /// Close once everything is sent.
    Close(Link),
}

/// Reports of the thread.
pub(crate) enum Report {
    /// An authenticated connection; with the ticket if this host initiated it.
    Up { link: Link, ticket: Option<u64>, entry: Arc<Entry>, who: Identity, local: IpAddr, remote: IpAddr, short: bool },
    /// An attempt has failed.
    NotUp { ticket: u64, why: String },
    /// A peer could not authenticate.
    Stranger { from: SocketAddr, why: String },
    /// A message.
    Message(Link, Message),
    /// The message of the short form.
    Short(Link, PspSpi, PspVersion, TrafficKey),
    /// The marker came: both ends have switched.
    Switched(Link),
    /// A connection is gone.
    Down(Link, String),
}

/// Parameters of the thread.
pub(crate) struct Links {
    pub(crate) identities: Arc<dyn Identities>,
    pub(crate) orders: Receiver<Order>,
    pub(crate) reports: SyncSender<Report>,
    /// Rings where the control side waits.
    pub(crate) waker: Box<dyn Fn() + Send>,
    /// Wakes the thread when there is an order.
    pub(crate) wake: OwnedFd,
    /// Mark of the gateway's own packets, so that keys do not wait for themselves.
    pub(crate) mark: u32,
}

enum Tls {
    /// The socket is not connected yet.
    None,
    Client(Box<ClientConnection>),
    Server(Box<ServerConnection>, Arc<Candidates>),
}

/// Runs one expression on either end of TLS.
macro_rules! either {
    ($tls:expr, $connection:ident => $value:expr, $none:expr) => {
        match $tls {
            Tls::None => $none,
            Tls::Client($connection) => $value,
            Tls::Server($connection, _) => $value,
        }
    };
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Form {
    /// Before TLS is done.
    Unknown,
    Framed,
    /// Short form: the message of the peer is awaited.
    Short,
    /// It is here; bytes after it are no TLS.
    ShortDone,
}

struct Connection {
    stream: TcpStream,
    remote: SocketAddr,
    tls: Tls,
    form: Form,
    ticket: Option<u64>,
    /// The connection it belongs to, once that is known.
    entry: Option<Arc<Entry>>,
    /// The control side has been notified.
    up: bool,
    /// The configuration names the address of the peer.
    named: bool,
    /// Bytes as they came.
    input: Vec<u8>,
    /// Bytes out of TLS.
    plain: Zeroizing<Vec<u8>>,
    /// Bytes that go out beside TLS.
    beside: Vec<u8>,
    /// Short form: the marker of this host is in `beside` or was sent.
    switched: bool,
    deadline: Option<Instant>,
    closing: bool,
}

/// The thread's own.
struct Loop {
    links: Links,
    listeners: Vec<TcpListener>,
    entries: Vec<Arc<Entry>>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    has_reports: bool,
}

/// The control side is gone.
struct Over;

impl Links {
    /// Runs until the control side is gone.
    pub(crate) fn run(self) {
        let connections = BTreeMap::new();
        let mut this =
            Loop { links: self, listeners: Vec::new(), entries: Vec::new(), connections, next: 1, has_reports: false };
        while this.turn().is_ok() {}
    }
}

impl Loop {
    fn turn(&mut self) -> Result<(), Over> {
        let ready = self.wait();
        self.orders()?;
        let now = Instant::now();
        for at in 0..self.listeners.len() {
            self.accept(now, at)?;
        }
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        for number in numbers {
            let came = ready.contains(&number);
            self.serve(now, number, came)?;
        }
        if std::mem::take(&mut self.has_reports) {
            (self.links.waker)();
        }
        Ok(())
    }

    /// Waits for work; returns the connections that are readable or writable.
    fn wait(&mut self) -> Vec<u64> {
        let now = Instant::now();
        let first = self.connections.values().filter_map(|connection| connection.deadline).min();
        let timeout = first.map(|at| Timespec {
            tv_sec: at.saturating_duration_since(now).as_secs() as i64,
            tv_nsec: at.saturating_duration_since(now).subsec_nanos().into(),
        });
        let mut fds = vec![PollFd::new(&self.links.wake, PollFlags::IN)];
        fds.extend(self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        let fixed = fds.len();
        for connection in self.connections.values() {
            let out = if connection.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(connection.stream.as_fd(), PollFlags::IN | out));
        }
        // Events lost by an interruption are found by the next iteration.
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        if !fds[0].revents().is_empty() {
            let _ = rustix::io::read(&self.links.wake, &mut [0u8; 8]);
        }
        let ready = fds[fixed..].iter().map(|fd| !fd.revents().is_empty());
        self.connections.keys().zip(ready).filter(|(_, ready)| *ready).map(|(number, _)| *number).collect()
    }

    /// Reports to the control thread; blocks while its queue is full.
    fn tell(&mut self, report: Report) -> Result<(), Over> {
        self.has_reports = true;
        match self.links.reports.try_send(report) {
            Ok(()) => Ok(()),
            Err(std::sync::mpsc::TrySendError::Full(report)) => {
                (self.links.waker)();
                self.links.reports.send(report).map_err(|_| Over)
            }
            Err(std::sync::mpsc::TrySendError::Disconnected(_)) => Err(Over),
        }
    }

    fn orders(&mut self) -> Result<(), Over> {
        loop {
            match self.links.orders.try_recv() {
                Ok(order) => self.order(order)?,
                Err(std::sync::mpsc::TryRecvError::Empty) => return Ok(()),
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return Err(Over),
            }
        }
    }

    fn order(&mut self, order: Order) -> Result<(), Over> {
        match order {
            Order::Listen(addrs, answer) => {
                let listening = self.listen(&addrs);
                // At the end the answer means that the last messages were written: the thread may
                // be gone right after it.
                for connection in self.connections.values_mut() {
                    let _ = connection.write();
                }
                let _ = answer.send(listening);
            }
            Order::Admit(entries) => {
                // Connections that are no longer admitted are closed.
                for connection in self.connections.values_mut() {
                    if !connection.is_admitted(&entries) {
                        connection.close();
                    }
                }
                self.entries = entries;
            }
            Order::Connect { ticket, entry, from, to } => {
                if let Err(why) = self.connect(ticket, entry, from, to) {
                    self.tell(Report::NotUp { ticket, why: why.to_string() })?;
                }
            }
            Order::Send(link, message) => {
                let bytes = message.emit();
                self.put(link, &bytes)?;
            }
            Order::Short(link, short) => self.put(link, &short.emit())?,
            Order::Switch(Link(number)) => {
                let connection = self.connections.get_mut(&number);
                if let Some(connection) = connection.filter(|connection| !connection.closing) {
                    // The mark kept it out of the tunnel; from here on it belongs in there.
                    let _ = socket2::SockRef::from(&connection.stream).set_mark(0);
                    connection.beside.extend(fizz::MARKER);
                    connection.switched = true;
                    connection.deadline = Some(Instant::now() + MARKER);
                }
            }
            Order::Close(Link(number)) => {
                if let Some(connection) = self.connections.get_mut(&number) {
                    connection.close();
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, link: Link, bytes: &[u8]) -> Result<(), Over> {
        let Some(connection) = self.connections.get_mut(&link.0).filter(|connection| !connection.closing) else {
            return Ok(());
        };
        let taken = either!(&mut connection.tls, tls => tls.writer().write(bytes).unwrap_or(0), 0);
        if taken == bytes.len() {
            return Ok(());
        }
        self.connections.remove(&link.0);
        self.tell(Report::Down(link, "the peer does not read from the control connection".into()))
    }

    fn listen(&mut self, addrs: &[SocketAddr]) -> io::Result<Vec<SocketAddr>> {
        self.listeners.retain(|listener| listener.local_addr().is_ok_and(|there| addrs.contains(&there)));
        for addr in addrs {
            if self.listeners.iter().any(|listener| listener.local_addr().is_ok_and(|there| there == *addr)) {
                continue;
            }
            let socket = Socket::new(Domain::for_address(*addr), Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            if addr.is_ipv6() {
                socket.set_only_v6(true)?;
            }
            self.mark(&socket)?;
            socket.bind(&(*addr).into())?;
            socket.listen(128)?;
            socket.set_nonblocking(true)?;
            self.listeners.push(socket.into());
        }
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    fn mark(&self, socket: &Socket) -> io::Result<()> {
        if self.links.mark == 0 { Ok(()) } else { socket.set_mark(self.links.mark) }
    }

    fn connect(&mut self, ticket: u64, entry: Arc<Entry>, from: Option<IpAddr>, to: SocketAddr) -> anyhow::Result<()> {
        if self.connections.len() >= MAX_CONNECTIONS {
            bail!("limit of control connections reached");
        }
        let opened = || -> io::Result<Socket> {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            self.mark(&socket)?;
            if let Some(from) = from {
                socket.bind(&SocketAddr::new(from, 0).into())?;
            }
            match socket.connect(&to.into()) {
                Err(why) if why.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Err(why),
                _ => Ok(socket),
            }
        };
        let socket = opened()?;
        let mut connection = Connection::new(socket.into(), to, Tls::None);
        (connection.ticket, connection.entry) = (Some(ticket), Some(entry));
        self.insert(connection);
        Ok(())
    }

    fn insert(&mut self, connection: Connection) {
        self.connections.insert(self.next, connection);
        self.next += 1;
    }

    /// Control connections as far as the admission of another one depends on them.
    fn slots(&self) -> Vec<Slot> {
        let slot = |(number, connection): (&u64, &Connection)| {
            let remote = connection.remote.ip();
            let handshake = !connection.up && connection.ticket.is_none();
            Slot { number: *number, remote, handshake, named: connection.named }
        };
        self.connections.iter().map(slot).collect()
    }

    /// The configuration names this address of a peer.
    fn is_named(&self, remote: IpAddr) -> bool {
        let names = |range: &AddrRange| range.start == range.end && range.start == remote;
        self.entries.iter().any(|entry| entry.remote.iter().any(names))
    }

    fn accept(&mut self, now: Instant, at: usize) -> Result<(), Over> {
        for _ in 0..ACCEPTS {
            let Ok((stream, remote)) = self.listeners[at].accept() else { return Ok(()) };
            let named = self.is_named(remote.ip());
            match admit(&self.slots(), remote.ip(), named) {
                Admission::Accept => {}
                Admission::Replace(oldest) => {
                    self.connections.remove(&oldest);
                    tracing::debug!(target: "psp", "{remote}: replaces the oldest handshake: too many at a time");
                }
                Admission::Refuse => {
                    tracing::debug!(target: "psp", "{remote}: refused: too many control connections");
                    continue;
                }
            }
            let local = stream.local_addr().map_or(remote.ip(), |addr| addr.ip());
            let fitting: Vec<Arc<Entry>> =
                self.entries.iter().filter(|entry| entry.fits(local, remote.ip())).cloned().collect();
            let opened = match fitting.is_empty() {
                true => Err(anyhow!("no connection matches this address")),
                false => tls::server(&*self.links.identities, fitting),
            };
            match opened {
                Ok((tls, candidates)) if stream.set_nonblocking(true).is_ok() => {
                    let mut connection = Connection::new(stream, remote, Tls::Server(Box::new(tls), candidates));
                    connection.deadline = Some(now + HANDSHAKE);
                    connection.named = named;
                    connection.limit();
                    self.insert(connection);
                }
                Ok(_) => {}
                Err(why) => self.tell(Report::Stranger { from: remote, why: why.to_string() })?,
            }
        }
        Ok(())
    }

    /// Reads and writes what there is.
    fn serve(&mut self, now: Instant, number: u64, came: bool) -> Result<(), Over> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        let mut reports = Vec::new();
        let mut outcome = connection.open(came, &*self.links.identities);
        if came && outcome.is_ok() {
            outcome = connection.read(Link(number), &mut reports);
        }
        // It may have arrived before this host switched.
        if outcome.is_ok() {
            outcome = connection.take_marker(Link(number), &mut reports);
        }
        if outcome.is_ok() {
            outcome = connection.write();
        } else {
            // A TLS alert reports the reason to the peer.
            let _ = connection.write();
        }
        if outcome.is_ok() && connection.deadline.is_some_and(|deadline| now >= deadline) {
            outcome = Err(anyhow!(connection.overdue()));
        }
        if outcome.is_ok() && connection.closing && !connection.wants_write() {
            outcome = Err(anyhow!("closed"));
        }
        for report in reports {
            self.tell(report)?;
        }
        match outcome {
            Ok(()) => Ok(()),
            Err(why) => self.drop_link(number, why.to_string()),
        }
    }

    fn drop_link(&mut self, number: u64, why: String) -> Result<(), Over> {
        let Some(gone) = self.connections.remove(&number) else { return Ok(()) };
        match gone {
            Connection { up: true, .. } => self.tell(Report::Down(Link(number), why)),
            Connection { ticket: Some(ticket), .. } => self.tell(Report::NotUp { ticket, why }),
            Connection { remote, .. } => self.tell(Report::Stranger { from: remote, why }),
        }
    }
}

impl Connection {
    fn new(stream: TcpStream, remote: SocketAddr, tls: Tls) -> Self {
        let _ = stream.set_nodelay(true);
        let deadline = Some(Instant::now() + HANDSHAKE);
        let (input, plain, beside) = (Vec::new(), Zeroizing::default(), Vec::new());
        let form = Form::Unknown;
        let (ticket, entry, up, named, closing) = (None, None, false, false, false);
        let switched = false;
        Self { stream, remote, tls, form, ticket, entry, up, named, input, plain, beside, switched, deadline, closing }
    }

    fn limit(&mut self) {
        either!(&mut self.tls, tls => tls.set_buffer_limit(Some(MAX_UNSENT)), ());
    }

    fn wants_write(&self) -> bool {
        either!(&self.tls, tls => tls.wants_write() || !self.beside.is_empty(), true)
    }

    /// Returns whether the connection belongs to one of these entries, or may do so once the peer
    /// is authenticated.
    fn is_admitted(&self, entries: &[Arc<Entry>]) -> bool {
        match (&self.entry, &self.tls) {
            (Some(entry), _) => entries.contains(entry),
            (None, Tls::Server(_, candidates)) => candidates.entries().any(|entry| entries.contains(entry)),
            (None, Tls::None | Tls::Client(_)) => false,
        }
    }

    fn close(&mut self) {
        if !self.closing {
            either!(&mut self.tls, tls => tls.send_close_notify(), ());
            (self.closing, self.deadline) = (true, Some(Instant::now() + FAREWELL));
        }
    }

    fn overdue(&self) -> &'static str {
        match (self.closing, &self.tls) {
            (true, _) => "closed",
            (_, Tls::None) => "no response from the peer",
            _ if self.form == Form::ShortDone => "no marker: the peer has not switched to PSP",
            _ => "the handshake timed out",
        }
    }

    /// Starts TLS once the socket is connected.
    fn open(&mut self, came: bool, identities: &dyn Identities) -> anyhow::Result<()> {
        if !matches!(self.tls, Tls::None) || !came {
            return Ok(());
        }
        if let Some(why) = self.stream.take_error()? {
            return Err(why.into());
        }
        let Some(entry) = &self.entry else { bail!("no connection") };
        self.tls = Tls::Client(Box::new(tls::client(identities, entry, self.remote.ip())?));
        self.limit();
        Ok(())
    }

    fn write(&mut self) -> anyhow::Result<()> {
        let stopped = |why: &io::Error| matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
        let stream = &mut self.stream;
        let outcome: io::Result<()> = either!(&mut self.tls, tls => loop {
            if !tls.wants_write() {
                break Ok(());
            }
            if let Err(why) = tls.write_tls(stream) {
                break Err(why);
            }
        }, return Ok(()));
        match outcome {
            Err(why) if stopped(&why) => return Ok(()),
            Err(why) => return Err(why.into()),
            Ok(()) => {}
        }
        // After the last of TLS.
        while !self.beside.is_empty() {
            match self.stream.write(&self.beside) {
                Ok(sent) => drop(self.beside.drain(..sent)),
                Err(why) if stopped(&why) => return Ok(()),
                Err(why) => return Err(why.into()),
            }
        }
        Ok(())
    }

    fn read(&mut self, link: Link, reports: &mut Vec<Report>) -> anyhow::Result<()> {
        if matches!(self.tls, Tls::None) {
            return Ok(());
        }
        let mut chunk = [0; 4096];
        // One connection does not keep the others waiting: the rest comes with the next turn.
        for _ in 0..8 {
            match self.stream.read(&mut chunk) {
                Ok(0) => bail!("the peer closed the control connection"),
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => break,
                Err(why) => return Err(why.into()),
            }
            self.take(link, reports)?;
            if self.input.len() > MAX_RECORD {
                bail!("TLS record exceeds the maximum length");
            }
        }
        Ok(())
    }

    /// Processes complete records. Records are passed to TLS one by one, because the bytes after
    /// the last message of the short form are not TLS.
    fn take(&mut self, link: Link, reports: &mut Vec<Report>) -> anyhow::Result<()> {
        while self.form != Form::ShortDone {
            let Some([_, _, _, high, low]) = self.input.first_chunk() else { return Ok(()) };
            let whole = 5 + usize::from(u16::from_be_bytes([*high, *low]));
            if whole > MAX_RECORD {
                bail!("TLS record exceeds the maximum length");
            }
            if self.input.len() < whole {
                return Ok(());
            }
            let record: Vec<u8> = self.input.drain(..whole).collect();
            self.feed(&record)?;
            self.handshaken(link, reports)?;
            self.messages(link, reports)?;
        }
        self.take_marker(link, reports)
    }

    /// Short form: ends the connection after the marker of the peer. That of this host is sent
    /// first, because the peer waits for it.
    fn take_marker(&mut self, link: Link, reports: &mut Vec<Report>) -> anyhow::Result<()> {
        if self.form != Form::ShortDone || !self.switched || self.input.len() < fizz::MARKER.len() {
            return Ok(());
        }
        if self.input[..] != fizz::MARKER[..] {
            bail!("the first data under PSP is not the marker");
        }
        self.input.clear();
        reports.push(Report::Switched(link));
        self.close_quietly();
        Ok(())
    }

    /// Under PSP there is no TLS that could say farewell.
    fn close_quietly(&mut self) {
        (self.closing, self.deadline) = (true, Some(Instant::now() + FAREWELL));
    }

    fn feed(&mut self, mut record: &[u8]) -> anyhow::Result<()> {
        let plain = &mut self.plain;
        either!(&mut self.tls, tls => {
            while !record.is_empty() {
                if tls.read_tls(&mut record)? == 0 {
                    bail!("data after the end");
                }
            }
            let state = tls.process_new_packets().map_err(|why| anyhow!(explain(&why)))?;
            let before = plain.len();
            plain.resize(before + state.plaintext_bytes_to_read(), 0);
            let count = tls.reader().read(&mut plain[before..]).unwrap_or(0);
            plain.truncate(before + count);
            if state.peer_has_closed() && plain.is_empty() {
                bail!("the peer closed the control connection");
            }
        }, ());
        Ok(())
    }

    /// Determines the peer's identity after the TLS handshake.
    fn handshaken(&mut self, link: Link, reports: &mut Vec<Report>) -> anyhow::Result<()> {
        let done = either!(&self.tls, tls => !tls.is_handshaking(), false);
        if self.up || !done || self.closing {
            return Ok(());
        }
        let form = match either!(&self.tls, tls => tls.alpn_protocol(), None) {
            Some(name) if name == message::ALPN => Form::Framed,
            Some(name) if name == fizz::ALPN => Form::Short,
            _ => bail!("the peer does not offer the key service (ALPN)"),
        };
        if let Tls::Server(tls, candidates) = &self.tls {
            let entry = candidates.admits(tls.peer_certificates());
            self.entry = Some(Arc::clone(entry.context("no connection matches this peer")?));
        }
        let Some(entry) = self.entry.clone() else { bail!("no connection") };
        let certificate = either!(&self.tls, tls => tls.peer_certificates().and_then(<[_]>::first), None);
        let who = certificate.and_then(|der| credentials::identity_of(der, &entry.remote_auth.id));
        let who = who.context("the certificate of the peer contains no identity")?;
        let local = self.stream.local_addr()?.ip();
        (self.up, self.form, self.deadline) = (true, form, None);
        if form == Form::Short {
            self.deadline = Some(Instant::now() + MARKER);
        }
        let (ticket, remote, short) = (self.ticket, self.remote.ip(), form == Form::Short);
        reports.push(Report::Up { link, ticket, entry, who, local, remote, short });
        Ok(())
    }

    fn messages(&mut self, link: Link, reports: &mut Vec<Report>) -> anyhow::Result<()> {
        match self.form {
            Form::Framed => self.frames(link, reports),
            Form::Short => self.short(link, reports),
            Form::Unknown | Form::ShortDone => Ok(()),
        }
    }

    fn frames(&mut self, link: Link, reports: &mut Vec<Report>) -> anyhow::Result<()> {
        let mut at = 0;
        let outcome = loop {
            let rest = &self.plain[at..];
            let parsed = match message::frame_len(rest) {
                Ok(Some(len)) if rest.len() >= len => Message::parse(&rest[..len]).map(|message| (message, len)),
                Ok(_) => break Ok(()),
                Err(fault) => Err(fault),
            };
            match parsed {
                Ok((message, len)) => {
                    reports.push(Report::Message(link, message));
                    at += len;
                }
                Err(fault) => break Err(fault),
            }
        };
        self.drain(at);
        let Err(fault) = outcome else { return Ok(()) };
        let message = Message::Fault { code: Code::MALFORMED, text: fault.to_string() }.emit();
        let _ = either!(&mut self.tls, tls => tls.writer().write(&message), Ok(0));
        Err(anyhow!("{}: {fault}", Code::MALFORMED.meaning()))
    }

    fn short(&mut self, link: Link, reports: &mut Vec<Report>) -> anyhow::Result<()> {
        match Short::parse(&self.plain)? {
            None => Ok(()),
            Some((Short::Error(code), _)) => Err(anyhow!("the peer refused: {}", Code(code.into()).meaning())),
            Some((Short::Sa(spi, version, key), len)) => {
                if self.plain.len() > len {
                    bail!("data after the last message of TLS");
                }
                self.drain(len);
                self.form = Form::ShortDone;
                reports.push(Report::Short(link, spi, version, key));
                Ok(())
            }
        }
    }

    /// Removes bytes and zeroes them, because they contain keys.
    fn drain(&mut self, count: usize) {
        let rest = Zeroizing::new(self.plain[count..].to_vec());
        self.plain = rest;
    }
}

/// Returns an error of TLS as text with a remedy.
fn explain(why: &rustls::Error) -> String {
    use rustls::AlertDescription as Alert;
    match why {
        rustls::Error::AlertReceived(Alert::BadCertificate | Alert::CertificateUnknown | Alert::UnknownCA) => {
            format!("the peer rejected this host's certificate; see its log ({why})")
        }
        rustls::Error::AlertReceived(Alert::CertificateExpired | Alert::CertificateRevoked) => {
            format!("the peer rejected this host's certificate ({why})")
        }
        rustls::Error::AlertReceived(Alert::NoApplicationProtocol) => {
            "the peer does not support the key service".into()
        }
        rustls::Error::NoCertificatesPresented => "the peer sent no certificate".into(),
        why => why.to_string(),
    }
}
