//! HTTP/1.1 for the pages of the daemon: scrapes, health checks, the status page and its events.
//!
//! A [`Server`] is a thread with a listener; its [`Service`] makes the responses. Without [`Tls`]
//! the address should be one of loopback. Requests are parsed by the crate httparse. A connection
//! has one request.

mod server;
pub(crate) mod tls;
pub(crate) mod token;

use std::sync::Arc;
use std::time::Instant;

pub(crate) use server::Server;
pub(crate) use tls::Tls;
pub(crate) use token::Token;

/// Limit of header fields in a request.
const FIELDS_MAX: usize = 64;

/// The pages of a server. Called by its thread only.
pub(crate) trait Service: Send + 'static {
    /// Response to a request that arrived at `since`.
    fn answer(&mut self, request: &Request<'_>, since: Instant, now: Instant) -> Answer;

    /// Next part of a stream, if there is one after the part with the number `seen` (0: none yet):
    /// its number and bytes.
    fn next(&mut self, seen: u64, now: Instant) -> Option<(u64, Arc<[u8]>)> {
        let _ = (seen, now);
        None
    }
}

/// Request line and the header fields that the pages use.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// What follows `?`.
    pub(crate) query: &'a str,
    fields: Vec<(&'a str, &'a [u8])>,
}

impl<'a> Request<'a> {
    /// Parses a request; `None` while it is not complete.
    ///
    /// # Errors
    /// The response to a malformed one.
    fn parse(bytes: &'a [u8]) -> Result<Option<Self>, Answer> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(bytes) {
            Ok(httparse::Status::Partial) => return Ok(None),
            Ok(httparse::Status::Complete(_)) => (),
            Err(httparse::Error::TooManyHeaders) => {
                return Err(Answer::text("431 Request Header Fields Too Large", ""));
            }
            Err(_) => return Err(Answer::text("400 Bad Request", "")),
        }
        let target = request.path.unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let fields = request.headers.iter().map(|field| (field.name, field.value)).collect();
        Ok(Some(Self { method: request.method.unwrap_or_default(), path, query, fields }))
    }

    #[cfg(test)]
    pub(crate) fn of(method: &'a str, path: &'a str, fields: Vec<(&'a str, &'a [u8])>) -> Self {
        Self { method, path, query: "", fields }
    }

    /// Values of a header field; bytes that are not UTF-8 make no value.
    pub(crate) fn fields(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let of_name = self.fields.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name));
        of_name.filter_map(|(_, value)| std::str::from_utf8(value).ok()).map(str::trim)
    }

    /// The only value of a header field; `None` if it is absent or repeated.
    pub(crate) fn field(&self, name: &str) -> Option<&'a str> {
        let mut values = self.fields(name);
        values.next().filter(|_| values.next().is_none())
    }
}

/// Response to a request.
pub(crate) enum Answer {
    /// A whole one.
    Whole(Response),
    /// A header, then parts without end ([`Service::next`]).
    Stream(Response),
    /// The data is not there yet: the request is passed again.
    Later,
}

/// Status, header fields and body.
pub(crate) struct Response {
    /// Number and reason phrase.
    pub(crate) status: &'static str,
    /// Content type.
    pub(crate) kind: &'static str,
    /// Further lines of the header, each with CRLF.
    pub(crate) fields: String,
    pub(crate) body: Body,
}

/// Body of a response; one that many clients read is shared.
pub(crate) enum Body {
    Own(Vec<u8>),
    Shared(Arc<[u8]>),
}

impl Body {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl Answer {
    /// A line of text.
    pub(crate) fn text(status: &'static str, body: impl Into<String>) -> Self {
        let body = Body::Own(body.into().into_bytes());
        let allow = match &status[..3] {
            "405" => "Allow: GET, HEAD\r\n",
            "401" => "WWW-Authenticate: Bearer\r\n",
            _ => "",
        };
        Self::Whole(Response { status, kind: "text/plain; charset=utf-8", fields: allow.into(), body })
    }
}

impl Response {
    /// Status line and header fields; a stream has no length.
    fn head(&self, stream: bool) -> Vec<u8> {
        let length = if stream { String::new() } else { format!("Content-Length: {}\r\n", self.body.bytes().len()) };
        let (status, kind, fields) = (self.status, self.kind, &self.fields);
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{length}{fields}Cache-Control: no-store\r\n\
             Connection: close\r\n\r\n"
        )
        .into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_fields_are_found_whatever_their_case() {
        let text = b"GET /a/b?c=d HTTP/1.1\r\nhOST: x \r\nCookie: a\r\ncookie: b\r\n\r\n";
        let request = Request::parse(text).ok().flatten().unwrap();
        assert_eq!((request.method, request.path, request.query), ("GET", "/a/b", "c=d"));
        assert_eq!(request.field("Host"), Some("x"));
        assert_eq!(request.field("Cookie"), None, "a repeated one is ambiguous");
        assert_eq!(request.fields("Cookie").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(request.field("Origin"), None);
    }

    #[test]
    fn an_incomplete_request_waits_and_a_malformed_one_is_refused() {
        let whole = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        for end in 0..whole.len() {
            assert!(Request::parse(&whole[..end]).is_ok_and(|request| request.is_none()), "{end}");
        }
        for malformed in
            ["\u{0} / HTTP/1.1\r\n\r\n", "GET /\r\n\r\n", "GET / SMTP\r\n\r\n", "GET / HTTP/1.1\r\nHost\r\n\r\n"]
        {
            assert!(Request::parse(malformed.as_bytes()).is_err(), "{malformed:?}");
        }
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(FIELDS_MAX + 1));
        assert!(Request::parse(many.as_bytes()).is_err());
    }
}
