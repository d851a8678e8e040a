//! Port.

/// Port.
pub struct RawPort {}

/// Protocols.
pub struct RawProtocols {}
