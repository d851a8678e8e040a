//! Synchronization primitives of [`super::budget`]. Tests under loom replace them by loom's.

pub(super) use std::sync::atomic::{AtomicUsize, Ordering};
