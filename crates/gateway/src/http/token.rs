//! Bearer tokens (RFC 6750) in files of the state directory.
//!
//! A token is made at the first start, and readable by its owner only. Whoever can read it has
//! access; to replace it, remove the file and restart the daemon.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use super::Request;

/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;
/// Characters of a token that a person chose.
const LENGTHS: std::ops::RangeInclusive<usize> = 32..=128;

/// A token that requests must have.
pub(crate) struct Token(Zeroizing<String>);

impl Token {
    /// The token of a file, which is made if it is not there.
    ///
    /// # Errors
    /// The file cannot be read or written, other users can read it, or it contains no token.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        match read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(path).map(Self),
            other => other.map(Self),
        }
    }

    #[cfg(test)]
    pub(crate) fn new(text: &str) -> Self {
        Self(Zeroizing::new(text.to_owned()))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Compares in constant time.
    pub(crate) fn is(&self, text: &str) -> bool {
        verify_slices_are_equal(self.0.as_bytes(), text.as_bytes()).is_ok()
    }

    /// Returns whether a request has this token in `Authorization`.
    pub(crate) fn is_in(&self, request: &Request<'_>) -> bool {
        let bearer = |value: &str| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| self.is(token.trim_start()))
        };
        request.field("authorization").and_then(bearer).unwrap_or(false)
    }
}

/// Reads a token.
///
/// # Errors
/// As [`Token::open`].
pub(crate) fn read(path: &Path) -> io::Result<Zeroizing<String>> {
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
