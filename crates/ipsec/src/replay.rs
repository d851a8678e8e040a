//! The anti-replay window (RFC 4303 §3.4.3, appendix A) for 32- and 64-bit sequence numbers.
//!
//! A window is made with its SA, read by [`ReplayWindow::check`] before a packet is decrypted and
//! moved by [`ReplayWindow::commit`] after it. The bits are in a ring of words that is one word
//! larger than the window needs (RFC 6479): entering a word clears it whole, so that moving ahead
//! by any distance costs at most one pass over the ring.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crypto::KeyId;
use wire::SeqNo;

use crate::{DropReason, InLane, InboundSa, LaneTraffic};

/// A sequence number of a packet with a valid ICV. Made from an [`crypto::IcvOk`] and nothing else,
/// so that no forged packet can move the window.
#[derive(Clone, Copy, Debug)]
pub struct Authentic(SeqNo);

impl Authentic {
    /// Ties the number to the proof.
    pub fn new(seq: SeqNo, ok: crypto::IcvOk) -> Self {
        let _ = ok;
        Self(seq)
    }

    /// The number.
    pub fn seq(self) -> SeqNo {
        self.0
    }
}

/// Maximum lateness of a packet without a window: half the space of the low half, so that inference
/// picks the nearest.
const UNCHECKED_REACH: u64 = 1 << 31;

/// A sliding window over sequence numbers. Written by one core with plain loads and stores; other
/// cores may read it for reports, and [`ReplayWindow::check`] against it: what that lets through is
/// checked again.
///
/// At most 16 KiB (65536 packets).
pub struct ReplayWindow {
    /// Highest number seen.
    top: AtomicU64,
    /// One bit per number, set when seen. Bits above `top` in its word are clear. The number of
    /// words is a power of two.
    words: Box<[AtomicU64]>,
    /// Packets the window spans; 0 checks nothing.
    size: u32,
}

impl ReplayWindow {
    /// A window of `size` packets (0: checks nothing, only remembers the newest number for
    /// [`ReplayWindow::infer`]), starting with nothing seen above `top` and everything up to it.
    pub fn new(size: u32, top: SeqNo) -> Self {
        // One word more than the window needs, as in RFC 6479: the word that a new top enters can
        // be cleared without losing bits that are still inside the window. A power of two, so that
        // the index is a mask.
        let words = if size == 0 { 1 } else { (size.div_ceil(64) as usize + 1).next_power_of_two() };
        let window =
            Self { top: AtomicU64::new(top.0), words: (0..words).map(|_| AtomicU64::new(u64::MAX)).collect(), size };
        // Everything up to `top` counts as seen. Bits above it in the same word must be clear,
        // otherwise the next packets would be dropped as replays.
        window.word(top.0).store(u64::MAX >> (63 - top.0 % 64), Ordering::Relaxed);
        window
    }

    /// Packets the window spans; 0 when it checks nothing.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Highest number seen.
    pub fn top(&self) -> SeqNo {
        SeqNo(self.top.load(Ordering::Relaxed))
    }

    /// The word that the next packet probably moves, to be prefetched.
    #[doc(hidden)]
    #[inline]
    pub fn top_word(&self) -> &AtomicU64 {
        self.word(self.top.load(Ordering::Relaxed))
    }

    /// Restores the high 32 bits of an extended sequence number (RFC 4303 §A2.2): the first number
    /// from the bottom of the window on that ends in `lo`.
    ///
    /// Exact from the bottom of the window up to 2³² − `size` packets ahead of its top.
    #[inline]
    pub fn infer(&self, lo: u32) -> SeqNo {
        let reach = if self.size == 0 { UNCHECKED_REACH } else { u64::from(self.size) - 1 };
        let bottom = self.top.load(Ordering::Relaxed).saturating_sub(reach);
        // Past 2⁶⁴ this wraps to a number far left of the window, which `check` refuses.
        SeqNo(bottom.wrapping_add(u64::from(lo.wrapping_sub(bottom as u32))))
    }

    /// The whole number of a packet that carries `lo`, with or without extended numbers.
    #[inline]
    pub fn number(&self, lo: u32, esn: bool) -> SeqNo {
        if esn { self.infer(lo) } else { SeqNo(u64::from(lo)) }
    }

    /// Cheap test before decryption.
    ///
    /// # Errors
    /// [`DropReason::ZeroSeq`], [`DropReason::TooOld`] or [`DropReason::Replay`].
    #[inline]
    pub fn check(&self, seq: SeqNo) -> Result<(), DropReason> {
        // A reader on another core that sees the new top must see the words that were cleared for
        // it.
        let top = self.top.load(Ordering::Acquire);
        if seq.0 > top {
            return Ok(());
        }
        self.check_seen(seq.0, top)
    }

    /// [`ReplayWindow::check`] for numbers that are not ahead of the window.
    #[inline]
    fn check_seen(&self, seq: u64, top: u64) -> Result<(), DropReason> {
        if self.size == 0 {
            Ok(())
        } else if seq == 0 {
            Err(DropReason::ZeroSeq)
        // `seq <= top` holds here, so the subtraction cannot overflow.
        } else if top - seq >= u64::from(self.size) {
            Err(DropReason::TooOld)
        } else if self.word(seq).load(Ordering::Relaxed) >> (seq % 64) & 1 == 1 {
            Err(DropReason::Replay)
        } else {
            Ok(())
        }
    }

    /// Test again and mark as seen, after decryption.
    ///
    /// # Errors
    /// As [`ReplayWindow::check`]: the same number may have arrived twice within a batch.
    #[inline(always)] // one call for each packet otherwise
    pub fn commit(&self, seen: Authentic) -> Result<(), DropReason> {
        let seq = seen.0.0;
        let top = self.top.load(Ordering::Relaxed);
        if seq > top {
            // The words between the old and the new top must be cleared before the new top is
            // visible: a reader on another core would otherwise test stale bits.
            if seq / 64 != top / 64 {
                self.enter(top, seq);
            }
            self.top.store(seq, Ordering::Release);
        } else {
            // Check again: another packet with the same number may have been committed since the
            // first check (RFC 4303 §3.4.3).
            self.check_seen(seq, top)?;
        }
        let word = self.word(seq);
        // A plain read-modify-write, because only the core that owns the SA writes to its window.
        word.store(word.load(Ordering::Relaxed) | 1 << (seq % 64), Ordering::Relaxed);
        Ok(())
    }

    /// Clears the words that enter the window when its top moves ahead to `seq`.
    #[inline(never)] // every 64 packets
    fn enter(&self, top: u64, seq: u64) {
        // After a jump beyond the whole ring, clearing each word once is sufficient.
        let entered = (seq / 64 - top / 64).min(self.words.len() as u64);
        for back in 0..entered {
            self.word(seq.wrapping_sub(back * 64)).store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn word(&self, seq: u64) -> &AtomicU64 {
        &self.words[(seq / 64) as usize & (self.words.len() - 1)]
    }
}

impl InboundSa {
    /// The window of an SA with a single lane, made together with it.
    #[inline]
    pub(crate) fn window(&self) -> Result<&ReplayWindow, DropReason> {
        self.lanes.first().and_then(|lane| lane.window.get()).ok_or(DropReason::Inconsistent)
    }
}

/// The single receive lane of an SA on which everything up to `top` has been seen. It has a window
/// even when that checks nothing, because extended numbers are inferred from it.
pub(crate) fn single_lane(key: KeyId, size: u32, top: u64) -> Arc<[InLane]> {
    let window = OnceLock::from(ReplayWindow::new(size, SeqNo(top)));
    Arc::new([InLane { key: Some(key), window, traffic: LaneTraffic::default() }])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// The window as RFC 4303 §3.4.3 words it.
    struct Model {
        size: u64,
        top: u64,
        seen: HashSet<u64>,
        start: u64,
    }

    impl Model {
        fn commit(&mut self, seq: u64) -> Result<(), DropReason> {
            let size = u128::from(self.size);
            let refuse = if self.size == 0 || seq > self.top {
                None
            } else if seq == 0 {
                Some(DropReason::ZeroSeq)
            } else if u128::from(seq) + size <= u128::from(self.top) {
                Some(DropReason::TooOld)
            } else if seq <= self.start || self.seen.contains(&seq) {
                Some(DropReason::Replay)
            } else {
                None
            };
            if let Some(why) = refuse {
                return Err(why);
            }
            self.top = self.top.max(seq);
            self.seen.insert(seq);
            Ok(())
        }

        /// The number among all that end in `lo` that appendix A2.2 picks.
        fn infer(&self, lo: u32) -> u128 {
            let reach = if self.size == 0 { 1 << 31 } else { self.size - 1 };
            let bottom = self.top.saturating_sub(reach);
            let hi = u128::from(bottom >> 32);
            let here = (hi << 32) | u128::from(lo);
            if here >= u128::from(bottom) { here } else { here + (1 << 32) }
        }
    }

    fn authentic(seq: u64) -> Authentic {
        Authentic(SeqNo(seq))
    }

    /// A step relative to the top: duplicates, bottom, word and window borders, far jumps.
    fn step() -> impl Strategy<Value = (i64, u64)> {
        let distance = prop_oneof![
            4 => 0u64..4,
            2 => 60u64..70,
            1 => 120u64..135,
            1 => 0u64..70_000,
            1 => (1u64 << 32) - 70_000..(1 << 32) + 70_000,
            1 => any::<u64>(),
        ];
        (-2i64..=2, distance)
    }

    fn start() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(0u64),
            0u64..200,
            (1u64 << 32) - 300..(1 << 32) + 300,
            (5u64 << 32) - 300..(5 << 32) + 300,
            u64::MAX - 300..=u64::MAX,
            any::<u64>(),
        ]
    }

    fn size() -> impl Strategy<Value = u32> {
        prop_oneof![Just(0u32), 32u32..70, 120u32..140, Just(1024u32), 65_530u32..=65_536]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn agrees_with_the_obvious_model(size in size(), start in start(), steps in prop::collection::vec(step(), 1..60)) {
            let window = ReplayWindow::new(size, SeqNo(start));
            let mut model = Model { size: u64::from(size), top: start, seen: HashSet::new(), start };
            for (kind, distance) in steps {
                let seq = match kind {
                    -2 => model.top.saturating_sub(distance),
                    -1 => model.top.saturating_sub(u64::from(size)).saturating_add(distance),
                    0 => model.top.saturating_sub(u64::from(size)).saturating_sub(distance),
                    1 => model.top.saturating_add(distance % 200),
                    _ => model.top.saturating_add(distance),
                };
                let checked = window.check(SeqNo(seq));
                let expected = model.commit(seq);
                prop_assert_eq!(checked, expected, "check {} size {}", seq, size);
                prop_assert_eq!(window.commit(authentic(seq)), expected);
                prop_assert_eq!(window.top().0, model.top);
            }
        }

        #[test]
        fn inference_is_exact_from_the_bottom_to_almost_2_pow_32_ahead(
            size in size(), top in start(), ahead in step(),
        ) {
            let window = ReplayWindow::new(size, SeqNo(top));
            let model = Model { size: u64::from(size), top, seen: HashSet::new(), start: top };
            let reach = if size == 0 { 1 << 31 } else { u64::from(size) - 1 };
            let bottom = top.saturating_sub(reach);
            let distance = (ahead.1 & 0xffff_ffff).wrapping_add(ahead.0 as u64) & 0xffff_ffff;
            if let Some(seq) = bottom.checked_add(distance) {
                prop_assert_eq!(window.infer(seq as u32), SeqNo(seq));
            }
            prop_assert_eq!(u128::from(window.infer(distance as u32).0), model.infer(distance as u32) % (1 << 64));
        }
    }

    #[test]
    fn a_number_beyond_2_pow_64_is_refused() {
        let window = ReplayWindow::new(64, SeqNo(u64::MAX - 1));
        let wrapped = window.infer(5);
        assert_eq!(window.check(wrapped), Err(DropReason::TooOld));
        assert_eq!(window.check(SeqNo(u64::MAX)), Ok(()));
    }

    #[test]
    fn a_window_of_zero_accepts_everything() {
        let window = ReplayWindow::new(0, SeqNo(0));
        for seq in [0, 7, 7, 3, 1 << 40, 7] {
            assert_eq!(window.commit(authentic(seq)), Ok(()));
        }
        assert_eq!(window.top(), SeqNo(1 << 40));
        assert_eq!(window.infer(7), SeqNo((1 << 40) + 7));
        assert_eq!(window.infer(u32::MAX), SeqNo((1 << 40) - 1));
    }
}
