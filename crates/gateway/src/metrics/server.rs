//! HTTP/1.1 for scrapes and health checks: one thread, up to [`CLIENTS_MAX`] connections, one answer per connection.
//!
//! A client has [`PATIENCE`] in all for its request and the answer, and [`MAX_REQUEST`] bytes to ask in. When all slots are in
//! use, the client that has waited longest without a complete request is closed for the new one, so that idle connections
//! cannot keep a scrape out.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::{SharedSnapshot, Snapshot, text};

/// For request and answer together.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at the same time: with requests, 256 KiB; answers are at most 2 MB each.
const CLIENTS_MAX: usize = 32;
/// Request line and header fields, in bytes.
const MAX_REQUEST: usize = 8 << 10;
/// Pause after a failed accept, for example without free file descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Age of a snapshot from which the control thread counts as stuck. It makes one each second.
const STALE: Duration = Duration::from_secs(15);
/// Names of connections in the answer to a health check.
const NAMES_SHOWN: usize = 10;

/// Answers until it is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at a loopback address.
    ///
    /// # Errors
    /// When something else listens there; the text names the address and the key.
    pub(super) fn start(address: SocketAddr, board: SharedSnapshot) -> io::Result<Self> {
        let explained = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("metrics at {address}: {error}; set another 'metrics' in the section 'gateway'"),
            )
        };
        let listener = TcpListener::bind(address).map_err(explained)?;
        listener.set_nonblocking(true).map_err(explained)?;
        let address = listener.local_addr().map_err(explained)?;
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("weir-metrics".into())
            .spawn(move || serve(&listener, &board, &asked))
            .map_err(explained)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Listening address.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread; without a connection it would end with the process.
        let woken = TcpStream::connect_timeout(&self.address, PATIENCE).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

/// One connection.
struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    /// The answer and how much of it was sent.
    reply: Option<(Vec<u8>, usize)>,
    end: Instant,
}

/// Result of a connection.
#[derive(Debug, PartialEq)]
enum Progress {
    Waits,
    Over,
}

impl Client {
    fn new(stream: TcpStream, now: Instant) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, request: Vec::new(), reply: None, end: now + PATIENCE })
    }

    fn interest(&self) -> PollFlags {
        if self.reply.is_some() { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Reads and writes as far as that is possible now.
    fn turn(&mut self, board: &SharedSnapshot) -> io::Result<Progress> {
        if self.reply.is_none() {
            if !self.read()? {
                return Ok(Progress::Waits);
            }
            let snapshot = board.newest();
            self.reply = Some((reply(&self.request, &snapshot, Instant::now()).into_bytes(), 0));
        }
        let Some((bytes, sent)) = &mut self.reply else { return Ok(Progress::Waits) };
        while *sent < bytes.len() {
            match self.stream.write(&bytes[*sent..]) {
                Ok(0) => return Ok(Progress::Over),
                Ok(n) => *sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Progress::Waits),
                Err(error) => return Err(error),
            }
        }
        Ok(Progress::Over)
    }

    /// Reads to the empty line; a longer request is cut, and refused for that. True when nothing more is needed.
    fn read(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 1024];
        while self.request.len() < MAX_REQUEST && !is_whole(&self.request) {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.request.extend_from_slice(&buffer[..n.min(MAX_REQUEST - self.request.len())]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

fn serve(listener: &TcpListener, board: &SharedSnapshot, stop: &AtomicBool) {
    let mut clients: Vec<Client> = Vec::new();
    loop {
        wait(listener, &clients);
        if stop.load(Ordering::Acquire) {
            return;
        }
        let now = Instant::now();
        // Requests that are complete are answered before a connection has to make room.
        clients.retain_mut(|client| match client.turn(board) {
            Ok(progress) => progress == Progress::Waits && client.end > now,
            Err(error) => {
                tracing::debug!(target: "control", "metrics: {error}");
                false
            }
        });
        accept(listener, &mut clients, now);
    }
}

/// Waits until a connection or a client is ready, or the time of a client is over.
fn wait(listener: &TcpListener, clients: &[Client]) {
    let now = Instant::now();
    let mut polled = vec![PollFd::new(listener, PollFlags::IN)];
    polled.extend(clients.iter().map(|client| PollFd::new(&client.stream, client.interest())));
    let left = clients.iter().map(|client| client.end.saturating_duration_since(now)).min();
    let timeout = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
    // Interrupted: the loop looks anyway. Refused, as for want of memory: not in a busy loop.
    if let Err(error) = poll(&mut polled, timeout.as_ref())
        && error != rustix::io::Errno::INTR
    {
        std::thread::sleep(PAUSE);
    }
}

/// Takes what waits in the queue of the kernel; a few at a time, so that clients have their turn.
fn accept(listener: &TcpListener, clients: &mut Vec<Client>, now: Instant) {
    for _ in 0..CLIENTS_MAX {
        match listener.accept() {
            Ok((stream, _)) => {
                let Ok(client) = Client::new(stream, now) else { continue };
                if clients.len() >= CLIENTS_MAX {
                    // The first without a request has waited longest; if all have one, the first of them.
                    let oldest = clients.iter().position(|client| client.reply.is_none()).unwrap_or(0);
                    clients.remove(oldest);
                }
                clients.push(client);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return std::thread::sleep(PAUSE),
        }
    }
}

fn is_whole(request: &[u8]) -> bool {
    request.windows(4).any(|end| end == b"\r\n\r\n")
}

/// The whole response.
fn reply(request: &[u8], snapshot: &Snapshot, now: Instant) -> String {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let plain = "text/plain; charset=utf-8";
    let (status, kind, body) = match words[..] {
        _ if !is_whole(request) => ("431 Request Header Fields Too Large", plain, String::new()),
        [method, target, version] if version.starts_with(b"HTTP/1.") => {
            let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
            match (method, path) {
                (b"GET" | b"HEAD", b"/metrics") => ("200 OK", text::CONTENT_TYPE, text::render(snapshot)),
                (b"GET" | b"HEAD", b"/healthz") => match health(snapshot, now) {
                    Ok(body) => ("200 OK", plain, body),
                    Err(body) => ("503 Service Unavailable", plain, body),
                },
                (b"GET" | b"HEAD", _) => ("404 Not Found", plain, "unknown path; use /metrics or /healthz\n".into()),
                _ => ("405 Method Not Allowed", plain, String::new()),
            }
        }
        _ => ("400 Bad Request", plain, String::new()),
    };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if request.starts_with(b"HEAD ") { head } else { head + &body }
}

/// Health of this gateway in one line. A peer that is down is named, but is no fault of this host: a supervisor that
/// restarts the gateway would only end the other connections.
///
/// # Errors
/// What is wrong.
fn health(snapshot: &Snapshot, now: Instant) -> Result<String, String> {
    let age = now.saturating_duration_since(snapshot.taken);
    if age > STALE {
        return Err(format!("unhealthy: the control thread has not reported for {} s\n", age.as_secs()));
    }
    if !snapshot.healthy {
        return Err("unhealthy: a worker stopped or hangs; the log has the reason\n".into());
    }
    let down: Vec<&str> = snapshot
        .connections
        .iter()
        .filter(|(_, connection)| connection.configured == Some(true) && connection.ike_sas == 0)
        .map(|(name, _)| name.as_str())
        .collect();
    if down.is_empty() {
        return Ok("ok\n".into());
    }
    let more = if down.len() > NAMES_SHOWN { ", …" } else { "" };
    let names = down[..down.len().min(NAMES_SHOWN)].join(", ");
    Ok(format!("ok; {} of the connections that should be up are not: {names}{more}\n", down.len()))
}

#[cfg(test)]
mod tests {
    use super::super::{Connection, Metrics};
    use super::*;

    fn snapshot() -> Snapshot {
        (*Metrics::new(Instant::now()).board().newest()).clone()
    }

    fn status(request: &str) -> String {
        let reply = reply(request.as_bytes(), &snapshot(), Instant::now());
        reply.lines().next().unwrap().strip_prefix("HTTP/1.1 ").unwrap()[..3].to_owned()
    }

    #[test]
    fn requests_are_answered_by_what_they_ask() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"), "200");
        assert_eq!(status("GET /metrics?a=b HTTP/1.0\r\n\r\n"), "200");
        assert_eq!(status("GET /healthz HTTP/1.1\r\n\r\n"), "200");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "404");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405");
        for malformed in ["\r\n\r\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n", "GET /metrics SMTP\r\n\r\n"] {
            assert_eq!(status(malformed), "400", "{malformed:?}");
        }
        assert_eq!(status("GET /metrics HTTP/1.1\r\nlong: "), "431");
        let head = reply(b"HEAD /healthz HTTP/1.1\r\n\r\n", &snapshot(), Instant::now());
        assert!(head.contains("Content-Length: 3\r\n") && head.ends_with("\r\n\r\n"));
    }

    #[test]
    fn health_has_one_line_of_reason() {
        let mut snapshot = snapshot();
        let now = snapshot.taken;
        assert_eq!(health(&snapshot, now), Ok("ok\n".into()));
        for i in 0..12 {
            let down = Connection { configured: Some(true), ..Connection::default() };
            snapshot.connections.insert(format!("c{i:02}"), down);
        }
        snapshot.connections.insert("waits".into(), Connection { configured: Some(false), ..Connection::default() });
        let text = health(&snapshot, now).unwrap();
        assert!(text.starts_with("ok; 12 of") && text.ends_with("c09, …\n") && !text.contains("waits"), "{text}");
        assert!(health(&snapshot, now + STALE).is_ok());
        let stuck = health(&snapshot, now + STALE + Duration::from_secs(1)).unwrap_err();
        assert_eq!(stuck, "unhealthy: the control thread has not reported for 16 s\n");
        snapshot.healthy = false;
        assert!(health(&snapshot, now).unwrap_err().contains("worker"));
    }

    #[test]
    fn idle_connections_do_not_keep_a_scrape_out() {
        let server = Server::start("127.0.0.1:0".parse().unwrap(), Metrics::new(Instant::now()).board()).unwrap();
        let ask = |request: &[u8]| {
            let mut client = TcpStream::connect(server.address()).unwrap();
            client.write_all(request).unwrap();
            let mut answer = String::new();
            let _ = client.read_to_string(&mut answer);
            answer
        };
        drop(TcpStream::connect(server.address()).unwrap());
        let idle: Vec<TcpStream> = (0..130)
            .map(|_| {
                let mut client = TcpStream::connect(server.address()).unwrap();
                client.write_all(b"GET /metrics HTTP/1.0\r\n").unwrap();
                client
            })
            .collect();
        let started = Instant::now();
        assert!(ask(b"GET /metrics HTTP/1.1\r\n\r\n").contains("\nweir_healthy 1\n"));
        assert!(ask(b"GET /healthz HTTP/1.1\r\n\r\n").ends_with("\r\n\r\nok\n"));
        assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
        assert!(ask(&[b'x'; MAX_REQUEST]).starts_with("HTTP/1.1 431"));
        drop(idle);
        let address = server.address();
        drop(server);
        assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
    }

    #[test]
    fn a_connection_has_a_limit_of_time_in_all() {
        let server = Server::start("127.0.0.1:0".parse().unwrap(), Metrics::new(Instant::now()).board()).unwrap();
        let mut slow = TcpStream::connect(server.address()).unwrap();
        let started = Instant::now();
        // A byte now and then does not prolong it.
        while slow.write_all(b"x").is_ok() && started.elapsed() < PATIENCE * 3 {
            std::thread::sleep(Duration::from_millis(200));
        }
        assert!(started.elapsed() < PATIENCE * 2, "{:?}", started.elapsed());
    }
}
