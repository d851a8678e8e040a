//! Synchronization primitives of [`super::parking`]. Tests under loom replace them by loom's.

pub(super) use std::sync::atomic::{AtomicBool, Ordering, fence};
pub(super) use std::thread::{Thread, park};
