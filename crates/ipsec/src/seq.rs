//! Sequence numbers of an outbound lane: reserved in blocks, never reused, never wrapped.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::DropReason;

/// A block of consecutive sequence numbers that belong to the caller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SeqRange {
    /// First number.
    pub first: u64,
    /// Number.
    pub count: u32,
}

/// The counter of one lane. Several cores may reserve from it; none gets a number twice.
///
/// A number is only given out below `saved`, the high-water mark that the control side has on
/// disk (RFC 4303 §3.3.3): after a crash the counter starts from there.
pub struct SeqCounter {
    /// Next number to give out; at most one beyond `last`.
    next: AtomicU64,
    /// Numbers below this may be used; raised by the control side after it reached the disk.
    saved: AtomicU64,
    /// Last number that may ever be used: 2³²−1 without extended numbers, 2⁶⁴−2 with.
    last: u64,
}

impl SeqCounter {
    /// A counter from `first` (1 for a fresh SA) to `last`, at most 2⁶⁴−2 so that the counter
    /// itself cannot wrap. Nothing can be reserved until [`SeqCounter::allow_below`] was called,
    /// unless `persistent` is false (keys that no restart can bring back).
    pub fn new(first: u64, last: u64, persistent: bool) -> Self {
        let saved = if persistent { first } else { u64::MAX };
        Self { next: AtomicU64::new(first), saved: AtomicU64::new(saved), last: last.min(u64::MAX - 1) }
    }

    /// Takes up to `count` numbers; fewer when the end of the space or of the saved mark is near.
    ///
    /// # Errors
    /// [`DropReason::SeqExhausted`] or [`DropReason::SeqUnsaved`] when not even one is left.
    pub fn reserve(&self, count: u32) -> Result<SeqRange, DropReason> {
        let mut next = self.next.load(Ordering::Relaxed);
        // Not fetch_add: it could move the counter beyond the limit, and other cores would see that
        // before the excess is returned.
        loop {
            let range = self.range_from(next, count)?;
            let end = next + u64::from(range.count);
            match self.next.compare_exchange_weak(next, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(range),
                Err(now) => next = now,
            }
        }
    }

    /// Takes `count` numbers, or none, and returns the first. Without a locked instruction, which
    /// waits for all writes before it: only one thread may take numbers; otherwise two packets
    /// would get the same. `None` if [`SeqCounter::reserve`] would take fewer.
    #[inline]
    pub fn take_alone(&self, count: u32) -> Option<u64> {
        let first = self.next.load(Ordering::Relaxed);
        if self.limit().saturating_sub(first) < count.into() {
            return None;
        }
        self.next.store(first + u64::from(count), Ordering::Relaxed);
        Some(first)
    }

    /// The first number that may not be used now.
    #[inline]
    fn limit(&self) -> u64 {
        self.saved.load(Ordering::Acquire).min(self.last + 1)
    }

    /// Up to `count` numbers from `next` on.
    fn range_from(&self, next: u64, count: u32) -> Result<SeqRange, DropReason> {
        let limit = self.limit();
        if next >= limit {
            return Err(if next > self.last { DropReason::SeqExhausted } else { DropReason::SeqUnsaved });
        }
        Ok(SeqRange { first: next, count: (limit - next).min(u64::from(count)) as u32 })
    }

    /// Permits numbers below `mark`, which by now is on disk. A lower mark than before changes
    /// nothing.
    pub fn allow_below(&self, mark: u64) {
        self.saved.fetch_max(mark, Ordering::Release);
    }

    /// Next number that [`SeqCounter::reserve`] would give out; beyond [`SeqCounter::last`] when
    /// all are used.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// The mark below which numbers may be used; `u64::MAX` when nothing has to be saved.
    pub fn saved(&self) -> u64 {
        self.saved.load(Ordering::Relaxed)
    }

    /// Number of remaining sequence numbers, saved or not.
    pub fn remaining(&self) -> u64 {
        (self.last + 1).saturating_sub(self.next())
    }

    /// Last number that may ever be used.
    pub fn last(&self) -> u64 {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Reserve = fn(&SeqCounter, u32) -> Result<SeqRange, DropReason>;
    const WAYS: [Reserve; 2] = [SeqCounter::reserve, reserve_alone];

    /// As the packet path of a single worker takes numbers.
    fn reserve_alone(counter: &SeqCounter, count: u32) -> Result<SeqRange, DropReason> {
        let before = counter.next();
        match counter.take_alone(count) {
            Some(first) => Ok(SeqRange { first, count }),
            None => {
                assert_eq!(counter.next(), before, "all or none");
                let taken = counter.reserve(count);
                assert!(taken.is_err() || taken.is_ok_and(|range| range.count < count), "there were enough");
                taken
            }
        }
    }

    #[test]
    fn the_last_number_is_given_out_and_none_after_it() {
        for reserve in WAYS {
            let counter = SeqCounter::new(u64::from(u32::MAX) - 2, u64::from(u32::MAX), false);
            assert_eq!(reserve(&counter, 2), Ok(SeqRange { first: 0xffff_fffd, count: 2 }));
            assert_eq!(counter.remaining(), 1);
            assert_eq!(reserve(&counter, 64), Ok(SeqRange { first: 0xffff_ffff, count: 1 }));
            assert_eq!(reserve(&counter, 1), Err(DropReason::SeqExhausted));
            assert_eq!((counter.remaining(), counter.next()), (0, 1 << 32));
        }
    }

    #[test]
    fn the_64_bit_space_ends_without_wrapping() {
        for reserve in WAYS {
            let counter = SeqCounter::new(u64::MAX - 1, u64::MAX, false);
            assert_eq!(counter.last(), u64::MAX - 1);
            assert_eq!(reserve(&counter, u32::MAX), Ok(SeqRange { first: u64::MAX - 1, count: 1 }));
            assert_eq!(reserve(&counter, u32::MAX), Err(DropReason::SeqExhausted));
        }
    }

    #[test]
    fn nothing_goes_out_above_the_saved_mark() {
        for reserve in WAYS {
            let counter = SeqCounter::new(1000, u64::MAX - 1, true);
            assert_eq!(reserve(&counter, 1), Err(DropReason::SeqUnsaved));
            counter.allow_below(1003);
            counter.allow_below(500);
            assert_eq!(counter.saved(), 1003);
            assert_eq!(reserve(&counter, 8), Ok(SeqRange { first: 1000, count: 3 }));
            assert_eq!(reserve(&counter, 1), Err(DropReason::SeqUnsaved));
        }
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the counter is shared between threads of its users")]
    fn cores_share_the_space_without_gap_or_overlap() {
        const TOTAL: u64 = 40_000;
        let counter = SeqCounter::new(1, TOTAL, true);
        let mut ranges: Vec<SeqRange> = std::thread::scope(|scope| {
            let takers: Vec<_> = (1..5)
                .map(|size| {
                    let counter = &counter;
                    scope.spawn(move || {
                        let mut mine = Vec::new();
                        loop {
                            match counter.reserve(size) {
                                Ok(range) => mine.push(range),
                                Err(DropReason::SeqUnsaved) => std::thread::yield_now(),
                                Err(_) => return mine,
                            }
                        }
                    })
                })
                .collect();
            (0..=TOTAL + 1000).step_by(997).for_each(|mark| counter.allow_below(mark));
            takers.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        ranges.sort_by_key(|r| r.first);
        let end = ranges.iter().fold(1, |next, range| {
            assert_eq!(range.first, next);
            assert!(range.count > 0);
            next + u64::from(range.count)
        });
        assert_eq!(end, TOTAL + 1);
    }
}
