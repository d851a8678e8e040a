//! What [`super::queue`] is built from; its tests under loom put loom's own in place of these.

pub(super) use std::sync::atomic::{AtomicU64, Ordering};

/// A cell that is reached through closures, as loom's is.
#[derive(Default)]
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Gives `f` a pointer to what is inside; it is `f` that says why it may follow it.
    #[inline(always)]
    pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
