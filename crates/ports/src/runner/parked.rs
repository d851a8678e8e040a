//! Set of workers that wait for something, one bit each. A thread that produces it finds every
//! worker that waits, however close together the two happen.

use super::sync::{AtomicU64, Ordering, fence};

/// Maximum number of workers of a runner: a set of them is one word.
pub const MAX_WORKERS: usize = 64;

/// Set of at most [`MAX_WORKERS`] workers.
pub(super) struct Parked(AtomicU64);

impl Parked {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `worker`, which is about to wait. The worker must then check again for work, because no
    /// wake-up is sent for work that was produced before.
    pub(super) fn enter(&self, worker: usize) {
        self.0.fetch_or(1 << worker, Ordering::AcqRel);
        // Pairs with the fence in `wake`: either `wake` sees the bit, or this worker sees what was
        // produced. Without the two fences both could miss the other, and the worker would sleep
        // with work to do.
        fence(Ordering::SeqCst);
    }

    /// Removes `worker`, which no longer waits.
    pub(super) fn leave(&self, worker: usize) {
        self.0.fetch_and(!(1 << worker), Ordering::AcqRel);
    }

    /// The set, one bit per worker.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Removes each worker that `wanted` accepts and calls `wake` for it, once. Must be called
    /// after work was produced.
    pub(super) fn wake(&self, mut wanted: impl FnMut(usize) -> bool, mut wake: impl FnMut(usize)) {
        fence(Ordering::SeqCst);
        let mut waiting = self.0.load(Ordering::Relaxed);
        while waiting != 0 {
            let worker = waiting.trailing_zeros() as usize;
            waiting &= waiting - 1;
            // Only the thread that clears the bit wakes the worker.
            if wanted(worker) && self.0.fetch_and(!(1 << worker), Ordering::AcqRel) >> worker & 1 == 1 {
                wake(worker);
            }
        }
    }
}
