//! Port.

/// Port.
pub struct TunPort {}

/// Config.
pub struct TunConfig {}
