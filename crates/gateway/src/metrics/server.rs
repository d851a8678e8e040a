//! Just enough of HTTP/1.1 for a scrape: one thread, one connection at a time, one answer per connection.
//!
//! A client has [`PATIENCE`] for its request and as long for taking the answer, [`MAX_REQUEST`] bytes to ask in, and no way to
//! leave anything behind. Others wait in the kernel's queue meanwhile.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Board, text};

/// For a request, and for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Request line and header fields, in bytes.
const MAX_REQUEST: usize = 8 << 10;
/// Wait after a failure to accept, as when there are no more file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

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
    pub(super) fn start(address: SocketAddr, board: Board) -> io::Result<Self> {
        let explained = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("metrics at {address}: {error}; set another 'metrics' in the section 'gateway'"),
            )
        };
        let listener = TcpListener::bind(address).map_err(explained)?;
        let address = listener.local_addr().map_err(explained)?;
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("weir-metrics".into())
            .spawn(move || serve(&listener, &board, &asked))
            .map_err(explained)?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Where it listens.
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

fn serve(listener: &TcpListener, board: &Board, stop: &AtomicBool) {
    loop {
        let accepted = listener.accept();
        if stop.load(Ordering::Acquire) {
            return;
        }
        match accepted {
            Ok((client, _)) => {
                if let Err(error) = answer(client, board) {
                    tracing::debug!(target: "control", "metrics: {error}");
                }
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn answer(mut client: TcpStream, board: &Board) -> io::Result<()> {
    let request = read_request(&mut client)?;
    let reply = reply(&request, || text::render(&board.newest()));
    write_all(&mut client, reply.as_bytes())
}

/// Reads to the empty line; what is longer is cut, and refused for that.
fn read_request(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let end = Instant::now() + PATIENCE;
    let (mut request, mut buffer) = (Vec::new(), [0; 1024]);
    while request.len() < MAX_REQUEST && !is_whole(&request) {
        client.set_read_timeout(Some(left(end)?))?;
        match client.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => request.extend_from_slice(&buffer[..n.min(MAX_REQUEST - request.len())]),
        }
    }
    Ok(request)
}

fn write_all(client: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    while !bytes.is_empty() {
        client.set_write_timeout(Some(left(end)?))?;
        match client.write(bytes)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => bytes = &bytes[n..],
        }
    }
    Ok(())
}

fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn is_whole(request: &[u8]) -> bool {
    request.windows(4).any(|end| end == b"\r\n\r\n")
}

/// The whole response.
fn reply(request: &[u8], page: impl FnOnce() -> String) -> String {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let (status, body) = match words[..] {
        _ if !is_whole(request) => ("431 Request Header Fields Too Large", String::new()),
        [method, target, version] if version.starts_with(b"HTTP/1.") => {
            let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
            match (method, path) {
                (b"GET" | b"HEAD", b"/metrics") => ("200 OK", page()),
                (b"GET" | b"HEAD", _) => ("404 Not Found", "The metrics are at /metrics\n".into()),
                _ => ("405 Method Not Allowed", String::new()),
            }
        }
        _ => ("400 Bad Request", String::new()),
    };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        text::CONTENT_TYPE,
        body.len()
    );
    if request.starts_with(b"HEAD ") { head } else { head + &body }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &str) -> String {
        let reply = reply(request.as_bytes(), || "page\n".into());
        reply.lines().next().unwrap().strip_prefix("HTTP/1.1 ").unwrap()[..3].to_owned()
    }

    #[test]
    fn requests_are_answered_by_what_they_ask() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"), "200");
        assert_eq!(status("GET /metrics?a=b HTTP/1.0\r\n\r\n"), "200");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "404");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405");
        for malformed in ["\r\n\r\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n", "GET /metrics SMTP\r\n\r\n"] {
            assert_eq!(status(malformed), "400", "{malformed:?}");
        }
        assert_eq!(status("GET /metrics HTTP/1.1\r\nlong: "), "431");
        let head = reply(b"HEAD /metrics HTTP/1.1\r\n\r\n", || "page\n".into());
        assert!(head.contains("Content-Length: 5\r\n") && head.ends_with("\r\n\r\n"));
    }

    #[test]
    fn slow_greedy_and_absent_clients_cost_only_their_time() {
        let board = super::super::Metrics::new(Instant::now()).board();
        let server = Server::start("127.0.0.1:0".parse().unwrap(), board).unwrap();
        let ask = |request: &[u8]| {
            let mut client = TcpStream::connect(server.address()).unwrap();
            client.write_all(request).unwrap();
            let mut answer = String::new();
            let _ = client.read_to_string(&mut answer);
            answer
        };
        drop(TcpStream::connect(server.address()).unwrap());
        let silent = TcpStream::connect(server.address()).unwrap();
        let started = Instant::now();
        assert!(ask(b"GET /metrics HTTP/1.1\r\n\r\n").contains("\nweir_healthy 1\n"));
        assert!(started.elapsed() < PATIENCE * 2, "{:?}", started.elapsed());
        assert!(ask(&[b'x'; MAX_REQUEST]).starts_with("HTTP/1.1 431"));
        drop(silent);
        let address = server.address();
        drop(server);
        assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
    }
}
