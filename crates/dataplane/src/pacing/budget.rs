//! Bytes that all rings of a queue share.

use super::sync::{AtomicUsize, Ordering};

/// Bytes in use, up to a limit. Several workers take, and the pacer gives back.
pub(super) struct Budget {
    used: AtomicUsize,
    limit: usize,
}

impl Budget {
    pub(super) fn new(limit: usize) -> Self {
        Self { used: AtomicUsize::new(0), limit }
    }

    /// Takes `bytes`. Returns false if they exceed what is left.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let mut used = self.used.load(Ordering::Relaxed);
        // Not fetch_add: two workers that both exceed the limit could each see the bytes of the
        // other, and a packet that fits would be dropped.
        loop {
            if bytes > self.limit - used {
                return false;
            }
            // Acquire pairs with `give_back`: the room in the ring is seen with the bytes.
            match self.used.compare_exchange_weak(used, used + bytes, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => used = now,
            }
        }
    }

    /// Gives back bytes that were taken. The ring must be free of them before: a worker that takes
    /// them may then rely on room in the ring.
    pub(super) fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Release);
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn limit(&self) -> usize {
        self.limit
    }
}
