//! Sending side: inner packets into AGGFRAG payloads.

use wire::aggfrag::BasicHeader;
use zerocopy::IntoBytes;

use super::Settings;
use crate::DropReason;

/// Buffers for the payloads of outer packets.
pub trait Payloads {
    /// Starts another payload, which begins with `header`. Returns false without a free buffer.
    fn begin(&mut self, header: &[u8]) -> bool;

    /// Appends to the payload that was started last. `bytes` fit the limit of the [`Packer`].
    fn append(&mut self, bytes: &[u8]);
}

/// Packs consecutive inner packets of one SA into payloads (RFC 9347 §2.2).
///
/// A packer lives as long as a batch. All of a cut packet is packed at once, so that nothing waits
/// for another packet, and no packet is cut between an SA and its successor. The payloads of one
/// packer must get consecutive sequence numbers. To undo packing, restore an earlier copy.
#[derive(Clone, Copy)]
pub struct Packer {
    /// Bytes of data blocks that fit into one payload.
    room: usize,
    /// Bytes that are free in the last payload; 0 without one.
    free: usize,
    dont_fragment: bool,
    prefer_whole: bool,
}

impl Packer {
    /// A packer for payloads of at most `payload_len` bytes.
    pub fn new(payload_len: usize, settings: &Settings) -> Self {
        let room = payload_len.saturating_sub(BasicHeader::LEN);
        let Settings { dont_fragment, prefer_whole, .. } = *settings;
        Self { room, free: 0, dont_fragment, prefer_whole }
    }

    /// Largest inner packet in bytes that is not cut.
    pub fn whole_len(&self) -> usize {
        self.room
    }

    /// Packs `inner`, a whole IP packet whose length field is its length.
    ///
    /// # Errors
    /// [`DropReason::TooBig`] if it exceeds a payload and must not be cut;
    /// [`DropReason::QueueFull`] without a buffer: the receiver discards a piece that was packed
    /// before.
    #[inline]
    pub fn pack(&mut self, inner: &[u8], out: &mut impl Payloads) -> Result<(), DropReason> {
        if inner.len() <= self.free {
            out.append(inner);
            self.free -= inner.len();
            return Ok(());
        }
        self.pack_in_new(inner, out)
    }

    fn pack_in_new(&mut self, inner: &[u8], out: &mut impl Payloads) -> Result<(), DropReason> {
        let fits = inner.len() <= self.room;
        if self.room == 0 || (self.dont_fragment && !fits) {
            return Err(DropReason::TooBig);
        }
        // At most a tenth of the payload is wasted.
        let whole = fits && (self.dont_fragment || (self.prefer_whole && self.free * 10 <= self.room));
        let (head, mut rest) = inner.split_at(if whole { 0 } else { self.free });
        if !head.is_empty() {
            out.append(head);
        }
        let mut continued = !head.is_empty();
        while !rest.is_empty() {
            // All that remains of the packet, even if it exceeds this payload (RFC 9347 §6.1.1).
            let offset = if continued { rest.len() as u16 } else { 0 };
            if !out.begin(BasicHeader::new(offset).as_bytes()) {
                self.free = 0;
                return Err(DropReason::QueueFull);
            }
            let (piece, others) = rest.split_at(rest.len().min(self.room));
            out.append(piece);
            self.free = self.room - piece.len();
            (rest, continued) = (others, true);
        }
        Ok(())
    }
}
