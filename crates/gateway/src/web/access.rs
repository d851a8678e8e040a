//! Who may see the status page: holders of a token, under a name of this host.
//!
//! The page is at a loopback address, which every user of the host and every page in a browser on
//! it reaches. The token keeps other users out. The check of `Host` keeps out pages of other sites
//! whose name was changed to a loopback address (DNS rebinding): their browser would count them as
//! this page.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::http::{Request, Token};

/// Name of the token's file in `state_dir`.
pub(crate) const FILE: &str = "web-token";

/// Path of the token.
pub(crate) fn token_path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

/// Verdict on a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    Granted,
    /// No token, or a wrong one.
    NoToken,
    /// `Host` is missing or names another host.
    WrongHost,
}

/// The token and the names of this host.
pub(super) struct Access {
    token: Token,
    cookie: String,
    hosts: Vec<String>,
}

impl Access {
    /// `port`: that of the page. Cookies do not depend on ports, so its name does: two daemons of a
    /// host have two.
    pub(super) fn new(token: Token, port: u16, hosts: Vec<String>) -> Self {
        Self { token, cookie: format!("weir-{port}"), hosts }
    }

    /// Decides on a request.
    pub(super) fn check(&self, request: &Request<'_>) -> Verdict {
        if !request.field("host").is_some_and(|host| self.is_own(host)) {
            Verdict::WrongHost
        } else if self.token.is_in(request) || self.has_cookie(request) {
            Verdict::Granted
        } else {
            Verdict::NoToken
        }
    }

    /// Returns whether `Host` is a loopback address, `localhost` or a configured name. A port is
    /// not compared: a tunnel may have another.
    fn is_own(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, port)) if is_port(port) => address,
            Some(_) => return false,
            None => match host.rsplit_once(':') {
                Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
                Some(_) => return false,
                None => host,
            },
        };
        let loopback = name.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        loopback
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    fn has_cookie(&self, request: &Request<'_>) -> bool {
        let pairs = request.fields("cookie").flat_map(|value| value.split(';'));
        let mut own = pairs.filter_map(|pair| pair.trim().split_once('=')).filter(|(name, _)| *name == self.cookie);
        own.any(|(_, value)| self.is_token(value))
    }

    pub(super) fn is_token(&self, text: &str) -> bool {
        self.token.is(text)
    }

    /// Value of `Set-Cookie`: not for scripts, and not for requests that other sites make.
    pub(super) fn set_cookie(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie, self.token.text()))
    }
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}
