//! Port.

/// Port.
pub struct UdpPort {}
