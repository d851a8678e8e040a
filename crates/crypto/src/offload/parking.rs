//! Parking of an idle thread, and its wake-up by a submitter: no wake-up is lost, regardless of
//! timing.

use super::sync::{AtomicBool, Ordering, Thread, fence, park};

/// True while the thread of a lane is parked.
pub(super) struct Parking(AtomicBool);

impl Parking {
    pub(super) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Parks the thread until woken, unless `anything` returns true. Spurious wake-ups are
    /// possible.
    pub(super) fn unless(&self, anything: impl Fn() -> bool) {
        self.0.store(true, Ordering::Relaxed);
        // Pairs with the fence in `before_wakes`: either `wake` sees the flag, or this thread sees
        // the new work. Without the fences both could miss, and the wake-up would be lost.
        fence(Ordering::SeqCst);
        if !anything() {
            park();
        }
        self.0.store(false, Ordering::Relaxed);
    }

    /// Must be called after work was submitted, and before [`Parking::wake`] of each thread that
    /// has new work.
    pub(super) fn before_wakes() {
        fence(Ordering::SeqCst);
    }

    /// Wakes `thread` if it is parked.
    pub(super) fn wake(&self, thread: &Thread) {
        if self.0.load(Ordering::Relaxed) {
            thread.unpark();
        }
    }

    #[cfg(test)]
    pub(super) fn rests(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
