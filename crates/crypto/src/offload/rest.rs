//! Parking of an idle thread, and its wake-up by a submitter: no wake-up is lost, regardless of
//! timing.

use super::sync::{AtomicBool, Ordering, Thread, fence, park};

/// True if the thread of a lane rests. Made with the lane, ends with it.
pub(super) struct Rest(AtomicBool);

impl Rest {
    pub(super) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Rests until woken, unless there is something to do after all. May end without reason.
    pub(super) fn unless(&self, anything: impl Fn() -> bool) {
        self.0.store(true, Ordering::Relaxed);
        // Pairs with the one in `wake`: either that sees that we rest, or we see what was given.
        fence(Ordering::SeqCst);
        if !anything() {
            park();
        }
        self.0.store(false, Ordering::Relaxed);
    }

    /// After `thread` was given something to do.
    pub(super) fn wake(&self, thread: &Thread) {
        fence(Ordering::SeqCst);
        if self.0.load(Ordering::Relaxed) {
            thread.unpark();
        }
    }

    #[cfg(test)]
    pub(super) fn rests(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
