//! What [`super::rest`] is built from; its tests under loom put loom's own in place of these.

pub(super) use std::sync::atomic::{AtomicBool, Ordering, fence};
pub(super) use std::thread::{Thread, park};
