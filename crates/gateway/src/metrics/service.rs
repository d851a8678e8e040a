//! Pages of the metrics endpoint: scrapes and health checks.

use std::time::{Duration, Instant};

use super::{SharedSnapshot, Snapshot, text};
use crate::http::{Answer, Body, Request, Response, Service, Token};

/// Age of a snapshot from which the control thread counts as stuck. It makes one each second.
const STALE: Duration = Duration::from_secs(15);
/// Names of connections in the answer to a health check.
const NAMES_SHOWN: usize = 10;

/// Answers from the newest snapshot.
pub(super) struct Scrapes {
    pub(super) snapshot: SharedSnapshot,
    /// Required in every request, where other hosts can connect.
    pub(super) token: Option<Token>,
}

impl Service for Scrapes {
    fn answer(&mut self, request: &Request<'_>, _: Instant, now: Instant) -> Answer {
        if self.token.as_ref().is_some_and(|token| !token.is_in(request)) {
            return Answer::text(
                "401 Unauthorized",
                "the token of state_dir/metrics-token is missing or another one\n",
            );
        }
        let snapshot = self.snapshot.newest();
        match (request.method, request.path) {
            ("GET" | "HEAD", "/metrics") => Answer::Whole(Response {
                status: "200 OK",
                kind: text::CONTENT_TYPE,
                fields: String::new(),
                body: Body::Own(text::render(&snapshot).into_bytes()),
            }),
            ("GET" | "HEAD", "/healthz") => {
                let (healthy, body) = health(&snapshot, now);
                Answer::text(if healthy { "200 OK" } else { "503 Service Unavailable" }, body)
            }
            ("GET" | "HEAD", _) => Answer::text("404 Not Found", "unknown path; use /metrics or /healthz\n"),
            _ => Answer::text("405 Method Not Allowed", ""),
        }
    }
}

/// Health of this gateway, and a line about it. A peer that is down is listed, but should not make
/// this host unhealthy: a supervisor that restarts the gateway would only end the other
/// connections.
fn health(snapshot: &Snapshot, now: Instant) -> (bool, String) {
    let age = now.saturating_duration_since(snapshot.taken);
    if age > STALE {
        return (false, format!("unhealthy: the control thread has not reported for {} s\n", age.as_secs()));
    }
    if !snapshot.healthy {
        return (false, "unhealthy: a worker stopped or hangs; the log has the reason\n".into());
    }
    let down: Vec<&str> = snapshot
        .connections
        .iter()
        .filter(|(_, connection)| connection.configured == Some(true) && connection.ike_sas == 0)
        .map(|(name, _)| name.as_str())
        .collect();
    if down.is_empty() {
        return (true, "ok\n".into());
    }
    let more = if down.len() > NAMES_SHOWN { ", …" } else { "" };
    let names = down[..down.len().min(NAMES_SHOWN)].join(", ");
    (true, format!("ok; {} of the connections that should be up are not: {names}{more}\n", down.len()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::super::{Connection, Metrics};
    use super::*;
    use crate::http::Server;
    use crate::waker::Waker;

    fn snapshot() -> Snapshot {
        (*Metrics::new(Instant::now()).board().newest()).clone()
    }

    #[test]
    fn requests_are_answered_by_their_path() {
        let service = Scrapes { snapshot: Metrics::new(Instant::now()).board(), token: None };
        let address = "127.0.0.1:0".parse().unwrap();
        let server = Server::start("metrics", address, None, Waker::new().unwrap(), service).unwrap();
        let answer = |request: &str| {
            let mut client = TcpStream::connect(server.address()).unwrap();
            client.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            let _ = client.read_to_string(&mut answer);
            answer
        };
        let status = |request| answer(request).strip_prefix("HTTP/1.1 ").unwrap()[..3].to_owned();
        assert_eq!(status("GET /metrics?a=b HTTP/1.0\r\n\r\n"), "200");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "404");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405");
        for malformed in ["\r\n\r\n \r\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n", "GET /metrics SMTP\r\n\r\n"] {
            assert_eq!(status(malformed), "400", "{malformed:?}");
        }
        assert!(answer("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").contains("\nweir_healthy 1\n"));
        assert!(answer("GET /healthz HTTP/1.1\r\n\r\n").ends_with("\r\n\r\nok\n"));
        let head = answer("HEAD /healthz HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 3\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(head.contains("Cache-Control: no-store\r\nConnection: close\r\n"), "{head}");
    }

    #[test]
    fn nothing_is_answered_without_the_token() {
        let mut service =
            Scrapes { snapshot: Metrics::new(Instant::now()).board(), token: Some(Token::new("correct")) };
        let mut status = |path: &'static str, fields: &[(&'static str, &'static str)]| {
            let fields = fields.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
            let request = Request::of("GET", path, fields);
            let Answer::Whole(response) = service.answer(&request, Instant::now(), Instant::now()) else {
                panic!("no answer")
            };
            response.status
        };
        for path in ["/metrics", "/healthz", "/other"] {
            for fields in [
                &[][..],
                &[("Authorization", "Bearer wrong")],
                &[("Authorization", "Basic correct")],
                &[("Authorization", "Bearer correct"), ("Authorization", "Bearer correct")],
                &[("Cookie", "weir-9790=correct")],
            ] {
                assert_eq!(status(path, fields), "401 Unauthorized", "{path} {fields:?}");
            }
        }
        assert_eq!(status("/metrics", &[("authorization", "bearer correct")]), "200 OK");
        assert_eq!(status("/healthz", &[("Authorization", "Bearer correct")]), "200 OK");
    }

    #[test]
    fn health_has_one_line_of_reason() {
        let mut snapshot = snapshot();
        let now = snapshot.taken;
        assert_eq!(health(&snapshot, now), (true, "ok\n".into()));
        for i in 0..12 {
            let down = Connection { configured: Some(true), ..Connection::default() };
            snapshot.connections.insert(format!("c{i:02}"), down);
        }
        snapshot.connections.insert("waits".into(), Connection { configured: Some(false), ..Connection::default() });
        let (healthy, text) = health(&snapshot, now);
        assert!(healthy, "a peer that is down is no fault of this host");
        assert!(text.starts_with("ok; 12 of") && text.ends_with("c09, …\n") && !text.contains("waits"), "{text}");
        assert!(health(&snapshot, now + STALE).0);
        let (healthy, stuck) = health(&snapshot, now + STALE + Duration::from_secs(1));
        assert!(!healthy);
        assert_eq!(stuck, "unhealthy: the control thread has not reported for 16 s\n");
        snapshot.healthy = false;
        let (healthy, text) = health(&snapshot, now);
        assert!(!healthy && text.contains("worker"), "{text}");
    }
}
