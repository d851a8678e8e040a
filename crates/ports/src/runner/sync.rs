//! Synchronization primitives of [`super::parked`]. Tests under loom replace them by loom's.

pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
