//! Identities of peers (RFC 7296 §3.5) and the patterns that they are held against.

/// An identity as it travels in IDi and IDr.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Identity {
    /// Type of the ID payload.
    pub kind: wire::ike::IdType,
    /// Its data.
    pub data: Vec<u8>,
}

/// What an identity has to match.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum IdPattern {
    /// `%any`.
    Any,
    /// This one, with `*` in names and in the values of a distinguished name as wildcards.
    Like(Identity),
}
