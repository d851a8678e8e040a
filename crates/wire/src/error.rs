//! Why bytes could not be read.

/// A structural fault in received bytes. Carries no text, because callers only count it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Fewer bytes than the structure needs.
    #[error("{what} needs {need} bytes, only {have} are there")]
    Truncated {
        /// The structure that was being read.
        what: &'static str,
        /// Bytes it needs.
        need: usize,
        /// Bytes that were there.
        have: usize,
    },
    /// The bytes are there but break a rule of the format.
    #[error("{what}: {why}")]
    Malformed {
        /// The structure that was being read.
        what: &'static str,
        /// The rule it breaks.
        why: &'static str,
    },
}
