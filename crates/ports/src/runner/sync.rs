//! What [`super::parked`] is built from; its tests under loom put loom's own in place of these.

pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
