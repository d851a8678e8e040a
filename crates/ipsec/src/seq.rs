//! Sequence numbers of an outbound lane: reserved in blocks, never reused, never wrapped.

use std::sync::atomic::AtomicU64;

use crate::Drop;

/// A block of consecutive sequence numbers that belong to the caller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SeqRange {
    /// First number.
    pub first: u64,
    /// How many.
    pub count: u32,
}

/// The counter of one lane. Several cores may reserve from it; none gets a number twice.
///
/// A number is only given out below `saved`, the high-water mark that the control side has on
/// disk (RFC 4303 §3.3.3): after a crash the counter starts from there.
pub struct SeqCounter {
    /// Next number to give out.
    next: AtomicU64,
    /// Numbers below this may be used; raised by the control side after it reached the disk.
    saved: AtomicU64,
    /// Last number that may ever be used: 2³²−1 without extended numbers, 2⁶⁴−2 with.
    last: u64,
}

impl SeqCounter {
    /// A counter whose first number is `first` (1 for a fresh SA) and whose last is `last`.
    /// Nothing can be reserved until [`SeqCounter::allow_below`] was called, unless `persistent`
    /// is false (keys that no restart can bring back).
    pub fn new(first: u64, last: u64, persistent: bool) -> Self {
        let saved = if persistent { first } else { u64::MAX };
        Self { next: AtomicU64::new(first), saved: AtomicU64::new(saved), last }
    }

    /// Takes up to `count` numbers; fewer when the end of the space or of the saved mark is near.
    ///
    /// # Errors
    /// [`Drop::SeqExhausted`] or [`Drop::SeqUnsaved`] when not even one is left.
    pub fn reserve(&self, count: u32) -> Result<SeqRange, Drop> {
        let _ = (count, &self.next, &self.saved, self.last);
        todo!("esp helper")
    }
}
