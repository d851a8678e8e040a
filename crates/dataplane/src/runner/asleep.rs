//! Workers that sleep, or wait for room, a bit each: who makes what they wait for finds them, however close it is.

use super::sync::{AtomicU64, Ordering, fence};

/// Most workers of a runner: a set of them is one word.
pub const MAX_WORKERS: usize = 64;

/// A set of at most [`MAX_WORKERS`] workers.
pub(super) struct Asleep(AtomicU64);

impl Asleep {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Says that `worker` is about to wait. It is to look for what it waits for once more afterwards: what was made before
    /// is not told.
    pub(super) fn enter(&self, worker: usize) {
        self.0.fetch_or(1 << worker, Ordering::AcqRel);
        // Pairs with the one in `wake`: either that sees that we wait, or we see what was made.
        fence(Ordering::SeqCst);
    }

    /// Says that `worker` does not wait any more.
    pub(super) fn leave(&self, worker: usize) {
        self.0.fetch_and(!(1 << worker), Ordering::AcqRel);
    }

    /// Those who wait, a bit each.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// After something was made: takes out those whom it is for, and has `ring` tell them. Each is told once.
    pub(super) fn wake(&self, mut wanted: impl FnMut(usize) -> bool, mut ring: impl FnMut(usize)) {
        fence(Ordering::SeqCst);
        let mut waiting = self.0.load(Ordering::Relaxed);
        while waiting != 0 {
            let worker = waiting.trailing_zeros() as usize;
            waiting &= waiting - 1;
            // Whoever takes it out rings; others have nothing to do.
            if wanted(worker) && self.0.fetch_and(!(1 << worker), Ordering::AcqRel) >> worker & 1 == 1 {
                ring(worker);
            }
        }
    }
}
