//! The anti-replay window (RFC 4303 §3.4.3, appendix A) for 32- and 64-bit sequence numbers.

use wire::SeqNo;

use crate::Drop;

/// A sequence number that stood in a packet whose ICV was right. Made from an [`crypto::IcvOk`]
/// and nothing else, so that no forged packet can move the window.
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

/// A sliding window over sequence numbers. Written by one core with plain loads and stores; other
/// cores may read it for reports.
pub struct ReplayWindow {}

impl ReplayWindow {
    /// A window of `size` packets (0: checks only that the number is not 0 … see `check`), starting
    /// with nothing seen above `top`.
    pub fn new(size: u32, top: SeqNo) -> Self {
        let _ = (size, top);
        todo!("esp helper")
    }

    /// Restores the high 32 bits of an extended sequence number (RFC 4303 §A2.2).
    pub fn infer(&self, lo: u32) -> SeqNo {
        let _ = lo;
        todo!("esp helper")
    }

    /// Cheap test before decryption.
    ///
    /// # Errors
    /// [`Drop::ZeroSeq`], [`Drop::TooOld`] or [`Drop::Replay`].
    pub fn check(&self, seq: SeqNo) -> Result<(), Drop> {
        let _ = seq;
        todo!("esp helper")
    }

    /// Test again and mark as seen, after decryption.
    ///
    /// # Errors
    /// As [`ReplayWindow::check`]: the same number may have arrived twice within a batch.
    pub fn commit(&self, seen: Authentic) -> Result<(), Drop> {
        let _ = seen;
        todo!("esp helper")
    }
}
