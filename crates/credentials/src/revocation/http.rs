//! HTTP/1.1 for revocation information (RFC 5280 §4.2.1.13, RFC 6960 appendix A): one request per
//! connection.
//!
//! Every response is signed by a CA, so the transport need not be trusted. But a URI in a
//! certificate must not make this host connect to itself or its link (SSRF), so addresses are
//! resolved and checked first, also after redirections. Time, size and redirections are bounded.
//! docs/decisions/0017 has the reasons for a separate client.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use socket2::{Domain, Protocol, Socket, Type};

use super::fetched::Resolve;

/// Redirections that are followed.
const MAX_REDIRECTS: usize = 3;
/// Bytes of status line and headers.
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;
/// Bytes of a URI.
const MAX_URI_BYTES: usize = 2048;

/// A request.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) uri: &'a str,
    /// The configuration names the URI: every address is permitted.
    pub(super) named: bool,
    /// An OCSP request to post; none gets.
    pub(super) body: Option<&'a [u8]>,
    /// Bytes of an answer.
    pub(super) limit: usize,
    /// Deadline of the whole response.
    pub(super) deadline: Instant,
    /// Mark of packets, so that they leave as those of IKE do.
    pub(super) mark: Option<u32>,
    /// Finds the addresses of a host.
    pub(super) resolve: &'a Resolve,
}

/// Returns the body of the answer.
///
/// # Errors
/// The error, for the log.
pub(super) fn fetch(request: &Request<'_>) -> anyhow::Result<Vec<u8>> {
    let mut uri = request.uri.to_owned();
    for redirects in 0..=MAX_REDIRECTS {
        let target = Target::parse(&uri)?;
        // Only the URI itself is named, not the place that its server refers to.
        let mut stream = connect(&target, request, request.named && redirects == 0)?;
        send(&mut stream, &target, request)?;
        match receive(&mut Timed { stream: &mut stream, deadline: request.deadline }, request.limit)? {
            Answer::Body(body) => return Ok(body),
            Answer::Redirect(to) => uri = to,
        }
    }
    Err(anyhow!("more than {MAX_REDIRECTS} redirections"))
}

/// Parts of a URI.
#[derive(Debug, Eq, PartialEq)]
struct Target {
    host: String,
    port: u16,
    path: String,
    /// Host and port as the header Host has them.
    authority: String,
}

impl Target {
    fn parse(uri: &str) -> anyhow::Result<Self> {
        let bad = || anyhow!("not a URI of the form http://HOST[:PORT]/PATH");
        if uri.len() > MAX_URI_BYTES || !uri.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(bad());
        }
        let rest = uri.strip_prefix("http://").ok_or_else(bad)?;
        let rest = rest.split('#').next().unwrap_or(rest);
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map_or(Ok(80), str::parse).map_err(|_| bad())?;
        if host.is_empty() || host.contains(['@', '\\']) || authority.contains('@') {
            return Err(bad());
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { host: host.to_owned(), port, path, authority: authority.to_owned() })
    }
}

/// Returns whether a certificate may make this host connect there: not to itself, its link, groups,
/// or services of a cloud that are bound to the link.
pub(super) fn is_permitted(addr: IpAddr) -> bool {
    let v4 = |addr: Ipv4Addr| {
        let [first, ..] = addr.octets();
        !(addr.is_loopback() || addr.is_link_local() || addr.is_multicast() || first == 0 || first >= 240)
    };
    match addr {
        IpAddr::V4(addr) => v4(addr),
        IpAddr::V6(addr) => {
            let link_local = addr.segments()[0] & 0xffc0 == 0xfe80;
            let metadata = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
            !(addr.is_loopback() || addr.is_unspecified() || addr.is_multicast() || link_local || addr == metadata)
                && embedded(addr).is_none_or(v4)
        }
    }
}

/// The IPv4 address inside an IPv6 address: mapped, compatible, NAT64 (RFC 6052) or 6to4.
fn embedded(addr: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = addr.octets();
    let at = |from: usize| Ipv4Addr::new(octets[from], octets[from + 1], octets[from + 2], octets[from + 3]);
    match addr.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => Some(at(12)),
        [0x2002, ..] => Some(at(2)),
        _ => None,
    }
}

fn remaining(deadline: Instant) -> anyhow::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(anyhow!("timed out")) } else { Ok(left) }
}

fn connect(target: &Target, request: &Request<'_>, named: bool) -> anyhow::Result<TcpStream> {
    let found =
        (request.resolve.0)(&target.host).map_err(|error| anyhow!("cannot resolve {}: {error}", target.host))?;
    let all: Vec<SocketAddr> = found.into_iter().map(|addr| SocketAddr::new(addr, target.port)).collect();
    if let Some(refused) = all.iter().find(|addr| !named && !is_permitted(addr.ip())) {
        bail!(
            "{} has the local address {}; a URI there must be listed in 'crl_uris' or 'ocsp_uris'",
            target.host,
            refused.ip()
        );
    }
    let mut why = anyhow!("{} does not resolve", target.host);
    for addr in all.into_iter().take(MAX_ADDRESSES) {
        match open(addr, request.mark, remaining(request.deadline)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => why = anyhow!("cannot connect to {addr}: {error}"),
        }
    }
    Err(why)
}

fn open(addr: SocketAddr, mark: Option<u32>, timeout: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(mark) = mark.filter(|mark| *mark != 0) {
        socket.set_mark(mark)?;
    }
    // Another address of the name may answer where the first does not.
    socket.connect_timeout(&addr.into(), timeout.min(Duration::from_secs(3)))?;
    Ok(socket.into())
}

fn send(stream: &mut TcpStream, target: &Target, request: &Request<'_>) -> anyhow::Result<()> {
    let Target { path, authority, .. } = target;
    let common = format!("Host: {authority}\r\nUser-Agent: weir\r\nConnection: close\r\n");
    let mut message = match request.body {
        None => format!("GET {path} HTTP/1.1\r\n{common}Accept: */*\r\n\r\n").into_bytes(),
        Some(body) => format!(
            "POST {path} HTTP/1.1\r\n{common}Content-Type: application/ocsp-request\r\n\
             Accept: application/ocsp-response\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes(),
    };
    message.extend(request.body.unwrap_or_default());
    let sent = stream.set_write_timeout(Some(remaining(request.deadline)?)).and_then(|()| stream.write_all(&message));
    sent.map_err(|error| anyhow!("cannot send the request: {error}"))
}

/// A stream with a deadline for every read.
struct Timed<'a> {
    stream: &'a mut TcpStream,
    deadline: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = remaining(self.deadline).map_err(|why| io::Error::new(io::ErrorKind::TimedOut, why))?;
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(into).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "timed out"),
            _ => error,
        })
    }
}

#[derive(Debug, Eq, PartialEq)]
enum Answer {
    Body(Vec<u8>),
    Redirect(String),
}

fn receive(stream: &mut impl Read, limit: usize) -> anyhow::Result<Answer> {
    let mut buffer = Buffer { stream, bytes: Vec::new() };
    let end = loop {
        if let Some(at) = buffer.bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if buffer.bytes.len() > MAX_HEADER_BYTES {
            bail!("more than {MAX_HEADER_BYTES} bytes of headers");
        }
        if !buffer.more()? {
            bail!("the server closed the connection without a response");
        }
    };
    let header = String::from_utf8_lossy(&buffer.bytes[..end]).into_owned();
    buffer.bytes.drain(..end + 4);
    let mut lines = header.split("\r\n");
    let mut status = lines.next().unwrap_or_default().splitn(3, ' ');
    let (version, code) = (status.next().unwrap_or_default(), status.next().unwrap_or_default());
    if !version.starts_with("HTTP/1.") {
        bail!("not an HTTP/1 response");
    }
    let fields: Vec<(&str, &str)> =
        lines.filter_map(|line| line.split_once(':')).map(|(name, value)| (name.trim(), value.trim())).collect();
    let field = |name: &str| fields.iter().find(|(there, _)| there.eq_ignore_ascii_case(name)).map(|(_, value)| *value);
    match code {
        "200" => {}
        "301" | "302" | "303" | "307" | "308" => {
            let to = field("location").context("redirection without Location")?;
            return Ok(Answer::Redirect(to.to_owned()));
        }
        other => bail!("the server returned status {}", other.escape_debug()),
    }
    let body = match (field("transfer-encoding"), field("content-length")) {
        (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => buffer.chunked(limit)?,
        (Some(_), _) => bail!("transfer coding other than chunked"),
        (None, Some(length)) => {
            let length = length.parse().map_err(|_| anyhow!("malformed Content-Length"))?;
            if length > limit {
                return Err(too_long(limit));
            }
            buffer.exactly(length)?
        }
        (None, None) => buffer.until_closed(limit)?,
    };
    Ok(Answer::Body(body))
}

fn too_long(limit: usize) -> anyhow::Error {
    anyhow!("more than {limit} bytes")
}

/// Data that was read and not yet consumed.
struct Buffer<'a, R> {
    stream: &'a mut R,
    bytes: Vec<u8>,
}

impl<R: Read> Buffer<'_, R> {
    /// Reads more; false at the end.
    fn more(&mut self) -> anyhow::Result<bool> {
        let mut part = [0; 8192];
        let count = self.stream.read(&mut part).map_err(|error| anyhow!("incomplete response: {error}"))?;
        self.bytes.extend(&part[..count]);
        Ok(count > 0)
    }

    fn exactly(&mut self, length: usize) -> anyhow::Result<Vec<u8>> {
        while self.bytes.len() < length {
            if !self.more()? {
                bail!("truncated response");
            }
        }
        let rest = self.bytes.split_off(length);
        Ok(std::mem::replace(&mut self.bytes, rest))
    }

    fn until_closed(&mut self, limit: usize) -> anyhow::Result<Vec<u8>> {
        loop {
            if self.bytes.len() > limit {
                return Err(too_long(limit));
            }
            if !self.more()? {
                return Ok(std::mem::take(&mut self.bytes));
            }
        }
    }

    fn line(&mut self) -> anyhow::Result<String> {
        loop {
            if let Some(at) = self.bytes.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8_lossy(&self.bytes[..at]).into_owned();
                self.bytes.drain(..at + 2);
                return Ok(line);
            }
            if self.bytes.len() > MAX_HEADER_BYTES || !self.more()? {
                bail!("malformed chunks");
            }
        }
    }

    fn chunked(&mut self, limit: usize) -> anyhow::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let length = usize::from_str_radix(digits, 16).map_err(|_| anyhow!("malformed chunks"))?;
            if length == 0 {
                return Ok(body);
            }
            if length > limit - body.len() {
                return Err(too_long(limit));
            }
            body.extend(self.exactly(length)?);
            if !self.line()?.is_empty() {
                bail!("malformed chunks");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server on the loopback that gives each connection the next answer, and returns the
    /// requests.
    fn serve(answers: Vec<Vec<u8>>) -> (u16, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let thread = std::thread::spawn(move || {
            let mut requests = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut request = vec![0; 4096];
                let count = stream.read(&mut request).unwrap_or(0);
                requests.push(String::from_utf8_lossy(&request[..count]).into_owned());
                let _ = stream.write_all(&answer);
            }
            requests
        });
        (port, thread)
    }

    fn get(uri: &str, named: bool) -> Result<Vec<u8>, String> {
        let deadline = Instant::now() + Duration::from_secs(2);
        let resolve = &Resolve::by_host();
        fetch(&Request { uri, named, body: None, limit: 100, deadline, mark: None, resolve })
            .map_err(|why| why.to_string())
    }

    fn got(answer: &[u8]) -> Result<Vec<u8>, String> {
        let (port, thread) = serve(vec![answer.to_vec()]);
        let result = get(&format!("http://127.0.0.1:{port}/a?b"), true);
        let requests = thread.join().expect("a server");
        assert!(requests[0].starts_with(&format!("GET /a?b HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n")), "{requests:?}");
        result
    }

    #[test]
    fn a_body_has_the_length_that_the_server_gives() {
        let ok = "HTTP/1.1 200 OK\r\n";
        let body = |rest: &str| got(format!("{ok}{rest}").as_bytes());
        assert_eq!(body("content-length: 3\r\n\r\nabcdef").as_deref(), Ok(&b"abc"[..]));
        assert_eq!(body("\r\nabc").as_deref(), Ok(&b"abc"[..]));
        assert_eq!(
            body("Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\n\r\n").as_deref(),
            Ok(&b"abc"[..])
        );
        for (rest, words) in [
            ("Content-Length: 4\r\n\r\nabc", "truncated"),
            ("Content-Length: 101\r\n\r\n", "more than 100"),
            ("Content-Length: -1\r\n\r\n", "malformed"),
            ("Transfer-Encoding: chunked\r\n\r\n65\r\n", "more than 100"),
            ("Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", "malformed"),
            ("Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", "malformed"),
            ("Transfer-Encoding: gzip\r\n\r\n", "other than chunked"),
        ] {
            let why = body(rest).expect_err(rest);
            assert!(why.contains(words), "{why}");
        }
        assert!(body(&format!("\r\n{}", "x".repeat(101))).expect_err("too long").contains("more than 100"));
        assert!(got(b"HTTP/1.1 404 Not Found\r\n\r\n").expect_err("an error").contains("status 404"));
        assert!(got(b"SSH-2.0\r\n\r\n").expect_err("no HTTP").contains("HTTP/1"));
        assert!(got(b"").expect_err("nothing").contains("closed"));
        assert!(got(&[b'x'; 20_000]).expect_err("no end").contains("bytes of headers"));
    }

    #[test]
    fn a_silent_server_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let uri = format!("http://{}/", listener.local_addr().expect("an address"));
        let (start, limit) = (Instant::now(), Duration::from_millis(200));
        let request = Request {
            uri: &uri,
            named: true,
            body: None,
            limit: 9,
            deadline: start + limit,
            mark: None,
            resolve: &Resolve::by_host(),
        };
        assert!(fetch(&request).expect_err("silence").to_string().contains("timed out"));
        assert!((limit..limit * 5).contains(&start.elapsed()));
    }

    #[test]
    fn only_a_uri_of_the_configuration_leads_to_this_host() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        listener.set_nonblocking(true).expect("a listener");
        for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1"] {
            let why = get(&format!("http://{host}:{port}/"), false).expect_err(host);
            assert!(why.contains("local address"), "{why}");
        }
        assert!(listener.accept().is_err(), "nothing was connected");
        // Nor does a redirection.
        let to = format!("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{port}/\r\n\r\n");
        assert!(got(to.as_bytes()).expect_err("a redirection").contains("local address"));
        assert!(listener.accept().is_err(), "nothing was connected");
        assert!(
            got(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/shadow\r\n\r\n").is_err_and(|why| why.contains("URI"))
        );
    }

    #[test]
    fn addresses_of_this_host_and_its_link_are_not_permitted() {
        for addr in [
            "127.0.0.1",
            "127.255.0.9",
            "169.254.169.254",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "::",
            "::1",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::169.254.169.254",
            "2002:7f00:1::",
            "fd00:ec2::254",
        ] {
            assert!(!is_permitted(addr.parse().expect("an address")), "{addr}");
        }
        for addr in
            ["192.0.2.1", "10.0.0.1", "172.16.0.1", "2001:db8::1", "fd00::1", "::ffff:192.0.2.1", "64:ff9b::c000:201"]
        {
            assert!(is_permitted(addr.parse().expect("an address")), "{addr}");
        }
    }

    #[test]
    fn uris_are_split() {
        let target = |uri: &str| Target::parse(uri).map(|t| (t.host, t.port, t.path)).ok();
        let parts = |host: &str, port, path: &str| Some((host.to_owned(), port, path.to_owned()));
        assert_eq!(target("http://a.test"), parts("a.test", 80, "/"));
        assert_eq!(target("http://a.test?x"), parts("a.test", 80, "/?x"));
        assert_eq!(target("http://[2001:db8::1]:81/a/b?c#d"), parts("2001:db8::1", 81, "/a/b?c"));
        for bad in [
            "https://a/",
            "http://",
            "http://u@a/",
            "http://a:b/",
            "http://a:99999/",
            "http://a/ b",
            "http://a/\r\nX: y",
        ] {
            assert_eq!(target(bad), None, "{bad}");
        }
    }
}
