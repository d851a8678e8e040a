//! Synchronization primitives of [`super::ring`]. Tests under loom replace them by loom's.

pub(super) use std::sync::atomic::{AtomicU32, Ordering};
