//! Who may see the status page: holders of a token, under a name of this host.
//!
//! The page is at a loopback address, which every user of the host and every page in a browser on
//! it reaches. The token keeps other users out. The check of `Host` keeps out pages of other sites
//! whose name was changed to a loopback address (DNS rebinding): their browser would count them as
//! this page.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use crate::http::Request;

/// Name of the token's file in `state_dir`.
pub(crate) const FILE: &str = "web-token";
/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;
/// Characters of a token that somebody wrote.
const LENGTHS: std::ops::RangeInclusive<usize> = 32..=128;

/// Path of the token.
pub(crate) fn token_path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

/// The token in `state_dir`, which is made at the first start.
///
/// # Errors
/// The file cannot be read or written, other users can read it, or it contains no token.
pub(super) fn token(state_dir: &Path) -> io::Result<Zeroizing<String>> {
    let path = token_path(state_dir);
    match read_token(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(&path),
        other => other,
    }
}

/// Reads a token.
///
/// # Errors
/// As [`token`].
pub(crate) fn read_token(path: &Path) -> io::Result<Zeroizing<String>> {
    let fault = |kind, text: String| io::Error::new(kind, format!("{}: {text}", path.display()));
    let file = fs::File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(path);
    let file = file.map_err(|error| fault(error.kind(), error.to_string()))?;
    let mode = file.metadata()?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let text = format!("other users can read the token (mode {mode:03o}); remove the file and restart weir");
        return Err(fault(io::ErrorKind::InvalidData, text));
    }
    let mut text = Zeroizing::new(String::new());
    let read = file.take(*LENGTHS.end() as u64 + 2).read_to_string(&mut text);
    read.map_err(|error| fault(error.kind(), error.to_string()))?;
    let token = Zeroizing::new(text.trim_end().to_owned());
    let plain = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if !plain || !LENGTHS.contains(&token.len()) {
        let text = "not a token of 32 to 128 letters, digits, '-' and '_'; remove the file and restart weir";
        return Err(fault(io::ErrorKind::InvalidData, text.into()));
    }
    Ok(token)
}

/// Writes a new token: complete or not at all, and never readable by others.
fn make(path: &Path) -> io::Result<Zeroizing<String>> {
    let mut random = Zeroizing::new([0; TOKEN_BYTES]);
    crypto::random(&mut *random);
    let token = Zeroizing::new(URL_SAFE_NO_PAD.encode(random.as_slice()));
    let part = path.with_extension("part");
    let write = || {
        let _ = fs::remove_file(&part);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&part)?;
        file.write_all(token.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    write().map_err(|error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    Ok(token)
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
    token: Zeroizing<String>,
    cookie: String,
    hosts: Vec<String>,
}

impl Access {
    /// `port`: that of the page. Cookies do not depend on ports, so its name does: two daemons of a
    /// host have two.
    pub(super) fn new(token: Zeroizing<String>, port: u16, hosts: Vec<String>) -> Self {
        Self { token, cookie: format!("weir-{port}"), hosts }
    }

    /// Decides on a request.
    pub(super) fn check(&self, request: &Request<'_>) -> Verdict {
        if !request.field("host").is_some_and(|host| self.is_own(host)) {
            Verdict::WrongHost
        } else if self.bearer(request) || self.has_cookie(request) {
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

    fn bearer(&self, request: &Request<'_>) -> bool {
        let scheme = |value: &'_ str| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| self.is_token(token.trim_start()))
        };
        request.field("authorization").and_then(scheme).unwrap_or(false)
    }

    fn has_cookie(&self, request: &Request<'_>) -> bool {
        let pairs = request.fields("cookie").flat_map(|value| value.split(';'));
        let mut own = pairs.filter_map(|pair| pair.trim().split_once('=')).filter(|(name, _)| *name == self.cookie);
        own.any(|(_, value)| self.is_token(value))
    }

    /// Compares in constant time.
    pub(super) fn is_token(&self, text: &str) -> bool {
        verify_slices_are_equal(self.token.as_bytes(), text.as_bytes()).is_ok()
    }

    /// Value of `Set-Cookie`: not for scripts, and not for requests that other sites make.
    pub(super) fn set_cookie(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie, *self.token))
    }
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}
