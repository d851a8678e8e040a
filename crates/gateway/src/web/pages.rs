//! Routes of the status page, and what is rendered once for all of its viewers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Board;
use super::access::{Access, Verdict};
use super::page::{self, Parts, Shell};
use crate::http::{Answer, Body, Request, Response, Service};
use crate::rates::Rates;
use crate::status::Status;

/// A view older than this is replaced before it is shown.
const FRESH: Duration = Duration::from_millis(2500);
/// The control thread has that long to gather a view.
const PATIENCE: Duration = Duration::from_secs(3);
const HTML: &str = "text/html; charset=utf-8";

/// The page with its newest view.
pub(super) struct Pages {
    access: Access,
    board: Arc<Board>,
    shell: Shell,
    rates: Rates,
    current: Option<Current>,
    /// Parts of the view before, for the difference.
    before: Parts,
}

/// The newest view.
struct Current {
    number: u64,
    taken: Instant,
    status: Status,
    parts: Parts,
    /// Rendered when first asked for.
    whole: Option<Arc<[u8]>>,
    change: Option<Arc<[u8]>>,
    json: Option<Arc<[u8]>>,
}

impl Pages {
    pub(super) fn new(access: Access, board: Arc<Board>) -> Self {
        let shell = Shell::new(&rustix::system::uname().nodename().to_string_lossy());
        Self { access, board, shell, rates: Rates::default(), current: None, before: Parts::default() }
    }

    /// Takes a new view over.
    fn refresh(&mut self, now: Instant) {
        self.board.ask(now);
        let mut posted = self.board.posted();
        let Some(view) = posted.view.take() else { return };
        let (number, taken, history) = (posted.number, view.0, posted.history.clone());
        drop(posted);
        let status = view.1.into_status();
        let lines = page::ordered(&status);
        self.rates.observe(&status, &lines);
        let parts = page::parts(&status, &lines, &self.rates, &history);
        if let Some(current) = self.current.take() {
            self.before = current.parts;
        }
        self.current = Some(Current { number, taken, status, parts, whole: None, change: None, json: None });
    }

    /// Makes sure that there is a new view.
    ///
    /// # Errors
    /// What to answer without one.
    fn fresh(&mut self, since: Instant, now: Instant) -> Result<(), Answer> {
        self.refresh(now);
        match &self.current {
            Some(current) if now.saturating_duration_since(current.taken) < FRESH => Ok(()),
            _ if now.saturating_duration_since(since) < PATIENCE => Err(Answer::Later),
            _ => Err(self
                .shell
                .plain("503 Service Unavailable", "the control thread does not answer; the log has the reason\n")),
        }
    }

    /// `/login?token=…`: the cookie, and on to the page.
    fn login(&self, query: &str) -> Answer {
        let token = value(query, "token").unwrap_or_default();
        if !self.access.is_token(&token) {
            return self.shell.login(!token.is_empty());
        }
        let cookie = self.access.set_cookie();
        let fields = format!("Location: /\r\nSet-Cookie: {}\r\n{}", *cookie, self.shell.fields());
        Answer::Whole(Response { status: "303 See Other", kind: HTML, fields, body: Body::Own(Vec::new()) })
    }

    /// Answers from the newest view.
    fn newest(&mut self, request: &Request<'_>) -> Answer {
        let Some(mut current) = self.current.take() else { return Answer::Later };
        let answer = match request.path {
            "/" => self.html(self.shell.overview(&current.parts)),
            "/connection" => {
                let name = value(request.query, "name").unwrap_or_default();
                match page::connection(&current.status, &name) {
                    Some(body) => self.html(self.shell.page(&name, &body)),
                    None => self.shell.plain("404 Not Found", "no connection of that name\n"),
                }
            }
            _ => {
                let json = || serde_json::to_vec(&current.status).unwrap_or_default().into();
                let body = Body::Shared(Arc::clone(current.json.get_or_insert_with(json)));
                let fields = self.shell.fields();
                Answer::Whole(Response { status: "200 OK", kind: "application/json", fields, body })
            }
        };
        self.current = Some(current);
        answer
    }

    fn html(&self, body: String) -> Answer {
        Answer::Whole(Response {
            status: "200 OK",
            kind: HTML,
            fields: self.shell.fields(),
            body: Body::Own(body.into_bytes()),
        })
    }
}

impl Service for Pages {
    fn answer(&mut self, request: &Request<'_>, since: Instant, now: Instant) -> Answer {
        let verdict = self.access.check(request);
        if verdict == Verdict::WrongHost {
            let text = "unknown name in 'Host'; use 127.0.0.1 or localhost, or add the name to 'web_hosts'\n";
            return self.shell.plain("421 Misdirected Request", text);
        }
        if !["GET", "HEAD"].contains(&request.method) {
            return Answer::text("405 Method Not Allowed", "");
        }
        match (request.path, verdict) {
            ("/login", _) => self.login(request.query),
            (_, Verdict::NoToken) => self.shell.login(false),
            ("/" | "/connection" | "/status.json", _) => match self.fresh(since, now) {
                Ok(()) => self.newest(request),
                Err(answer) => answer,
            },
            ("/events", _) if request.method == "HEAD" => self.shell.plain("200 OK", ""),
            ("/events", _) => {
                self.board.ask(now);
                // The time after which a browser connects again.
                let body = Body::Own(b"retry: 1000\n\n".to_vec());
                Answer::Stream(Response {
                    status: "200 OK",
                    kind: "text/event-stream",
                    fields: self.shell.fields(),
                    body,
                })
            }
            _ => self.shell.plain("404 Not Found", "unknown path; use /, /connection, /status.json or /events\n"),
        }
    }

    fn next(&mut self, seen: u64, now: Instant) -> Option<(u64, Arc<[u8]>)> {
        self.refresh(now);
        let current = self.current.as_mut().filter(|current| current.number > seen)?;
        let number = current.number;
        // The difference is one from the view before; who missed that gets everything.
        let event = if seen > 0 && seen + 1 == number {
            let change = || page::event(number, &current.parts, Some(&self.before)).into();
            current.change.get_or_insert_with(change)
        } else {
            let whole = || page::event(number, &current.parts, None).into();
            current.whole.get_or_insert_with(whole)
        };
        Some((number, Arc::clone(event)))
    }
}

/// A value of a query (`a=b&c=d`), with its escapes replaced; `None` if it is absent or malformed.
pub(super) fn value(query: &str, name: &str) -> Option<String> {
    let pairs: HashMap<&str, &str> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
    let mut bytes = Vec::new();
    let mut rest = pairs.get(name)?.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                (digit(rest.next())? * 16 + digit(rest.next())?) as u8
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}
