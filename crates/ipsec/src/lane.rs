//! Receive lanes with lazily created replay windows.
//!
//! EESP Sub SAs and PSP associations come in thousands of which few are used. A lane therefore
//! starts without a window; the first packet with a valid ICV creates it. Until then the check uses
//! an empty window.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crypto::KeyId;
use wire::SeqNo;

use crate::{Authentic, DropReason, InLane, LaneTraffic, ReplayWindow, SaError};

/// Limit of the memory of the replay windows of one SA, in bytes, if the peer uses every lane.
pub(crate) const MAX_WINDOW_BYTES: usize = 64 << 20;

/// Returns an error for an invalid window size, or if the windows could exceed
/// [`MAX_WINDOW_BYTES`].
pub(crate) fn check_windows(lanes: usize, window: u32) -> Result<(), SaError> {
    if window != 0 && !(32..=65536).contains(&window) {
        return Err(SaError::Window(window));
    }
    // A window is a ring of words, at worst twice as large as its bits.
    if lanes * window as usize / 4 > MAX_WINDOW_BYTES {
        return Err(SaError::Conflict(
            "the replay windows could take more than 64 MiB; use a smaller replay window, or fewer Sub SAs or SPIs",
        ));
    }
    Ok(())
}

impl InLane {
    /// Creates a lane on which all sequence numbers up to `top` count as seen. Allocates the window
    /// at once if `eager` or if `top` is not 0.
    pub(crate) fn new(key: Option<KeyId>, window: u32, top: u64, eager: bool) -> Self {
        let lane = Self { key, window: OnceLock::new(), traffic: LaneTraffic::default() };
        if window != 0 && (eager || top != 0) {
            lane.window.get_or_init(|| ReplayWindow::new(window, SeqNo(top)));
        }
        lane
    }

    /// Checks against a window of `window` packets (0: none) before decryption.
    #[inline]
    pub(crate) fn check(&self, window: u32, seq: SeqNo) -> Result<(), DropReason> {
        match self.window.get() {
            _ if window == 0 => Ok(()),
            Some(seen) => seen.check(seq),
            None if seq.0 == 0 => Err(DropReason::ZeroSeq),
            None => Ok(()),
        }
    }

    /// Checks again after decryption and marks the number as seen. Creates the window for the first
    /// valid packet of a lane.
    #[inline]
    pub(crate) fn commit(&self, window: u32, seen: Authentic) -> Result<(), DropReason> {
        if window == 0 {
            return Ok(());
        }
        self.window.get_or_init(|| ReplayWindow::new(window, SeqNo(0))).commit(seen)
    }
}

/// Returns an identifier that is unique among the owners of derived keys in this process, see
/// [`crypto::DerivedName`].
pub(crate) fn new_owner() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_without_a_window_refuses_only_zero() {
        let lane = InLane::new(None, 64, 0, false);
        assert_eq!(lane.check(64, SeqNo(0)), Err(DropReason::ZeroSeq));
        assert_eq!(lane.check(64, SeqNo(u64::MAX)), Ok(()));
        assert!(lane.window.get().is_none());
    }

    #[test]
    fn what_was_seen_before_a_restart_stays_seen() {
        let lane = InLane::new(None, 64, 100, false);
        assert_eq!(lane.check(64, SeqNo(100)), Err(DropReason::Replay));
        assert_eq!(lane.check(64, SeqNo(101)), Ok(()));
    }

    #[test]
    fn windows_have_a_bound() {
        assert_eq!(check_windows(1, 65536), Ok(()));
        assert_eq!(check_windows(1, 31), Err(SaError::Window(31)));
        assert_eq!(check_windows(1, 65537), Err(SaError::Window(65537)));
        assert_eq!(check_windows(65536, 4096), Ok(()));
        assert!(matches!(check_windows(65536, 8192), Err(SaError::Conflict(_))));
    }
}
