//! The status page: read-only, for a browser on this host or behind a tunnel to it.
//!
//! The control thread owns [`Web`]: it samples the throughput once a second, and gathers a
//! [`View`] once a second while a page is viewed. The thread of the server renders it
//! ([`pages`], [`page`]), once for all viewers. [`access`] decides who may see it.

pub(crate) mod access;
mod page;
mod pages;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::config::Gateway;
use crate::http::{Server, Token};
use crate::rates::History;
use crate::status::View;
use crate::waker::Waker;
use access::Access;

/// Time between samples.
const PERIOD: Duration = Duration::from_secs(1);
/// Views are gathered that long after the last request for one.
const INTEREST: Duration = Duration::from_secs(5);

/// Shared by the control thread and the server.
struct Board {
    started: Instant,
    /// Milliseconds since `started` of the last request for a view, plus 1; 0: none yet.
    asked_ms: AtomicU64,
    posted: Mutex<Posted>,
}

#[derive(Default)]
struct Posted {
    /// Counts the views.
    number: u64,
    /// The newest view, until the server takes it, and when it was gathered: the server may take it
    /// late.
    view: Option<(Instant, Box<View>)>,
    history: History,
}

impl Board {
    fn new(now: Instant) -> Self {
        Self { started: now, asked_ms: AtomicU64::new(0), posted: Mutex::default() }
    }

    fn posted(&self) -> MutexGuard<'_, Posted> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests views for the next seconds.
    fn ask(&self, now: Instant) {
        let since = now.saturating_duration_since(self.started).as_millis() as u64 + 1;
        self.asked_ms.store(since, Ordering::Release);
    }

    fn is_asked(&self, now: Instant) -> bool {
        match self.asked_ms.load(Ordering::Acquire) {
            0 => false,
            asked => now.saturating_duration_since(self.started + Duration::from_millis(asked - 1)) < INTEREST,
        }
    }
}

/// The side of the control thread.
pub(crate) struct Web {
    board: Arc<Board>,
    waker: Waker,
    _server: Server,
    sample_at: Instant,
    view_at: Instant,
}

impl Web {
    /// Serves the page at the address of the configuration; `None` if it has none.
    ///
    /// # Errors
    /// Another process listens there, or the token can neither be read nor made; the text names the
    /// address or the file.
    pub(crate) fn start(now: Instant, gateway: &Gateway) -> io::Result<Option<Self>> {
        let Some(address) = gateway.web else { return Ok(None) };
        let token = Token::open(&access::token_path(&gateway.state_dir))?;
        let board = Arc::new(Board::new(now));
        let waker = Waker::new()?;
        let access = Access::new(token, address.port(), gateway.web_hosts.clone());
        let pages = pages::Pages::new(access, Arc::clone(&board));
        let server = Server::start("web", address, None, waker.clone(), pages)?;
        tracing::info!(target: "control", "status page at http://{}/, its token: weir web", server.address());
        Ok(Some(Self { board, waker, _server: server, sample_at: now, view_at: now }))
    }

    /// Samples the throughput: `totals` is seconds since the start, and bytes delivered and
    /// protected.
    pub(crate) fn tick(&mut self, now: Instant, totals: impl FnOnce() -> (f64, (u64, u64))) {
        if now >= self.sample_at {
            self.sample_at = now + PERIOD;
            let (at_s, bytes) = totals();
            self.board.posted().history.push(at_s, bytes);
        }
    }

    /// Returns whether a view is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.view_at && self.board.is_asked(now)
    }

    /// Hands a view over.
    pub(crate) fn post(&mut self, now: Instant, view: View) {
        self.view_at = now + PERIOD;
        let mut posted = self.board.posted();
        posted.number += 1;
        posted.view = Some((now, Box::new(view)));
        drop(posted);
        self.waker.wake();
    }

    #[cfg(test)]
    fn address(&self) -> std::net::SocketAddr {
        self._server.address()
    }
}
