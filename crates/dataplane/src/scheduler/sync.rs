//! Synchronization primitives of [`super::queue`]. Tests under loom replace them by loom's.

pub(super) use std::sync::atomic::{AtomicU64, Ordering};

/// Cell with the closure interface of loom.
#[derive(Default)]
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Passes a pointer to the content to `f`, which must justify each access.
    #[inline]
    pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
