//! The error type of all parsers.

/// Structural error in received bytes. Carries no formatted text, because on the packet path
/// callers should only count it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Fewer bytes than the structure needs.
    #[error("{what} needs {need} bytes, only {have} are there")]
    Truncated {
        /// Name of the structure.
        what: &'static str,
        /// Bytes it needs.
        need: usize,
        /// Bytes available.
        have: usize,
    },
    /// The bytes are complete but invalid.
    #[error("{what}: {why}")]
    Malformed {
        /// Name of the structure.
        what: &'static str,
        /// The violated rule.
        why: &'static str,
    },
}
