//! Sending side: inner packets into AGGFRAG payloads.

use wire::aggfrag::BasicHeader;
use zerocopy::transmute;

use super::Settings;
use crate::DropReason;

/// Buffers for the payloads of outer packets.
pub trait Payloads {
    /// Starts another payload, which begins with `header`. Returns false without a free buffer.
    fn begin(&mut self, header: &[u8]) -> bool;

    /// Appends to the payload that was started last. `bytes` fit the limit of the [`Packer`].
    fn append(&mut self, bytes: &[u8]);
}

/// The end of a packet, or all of it, with which a payload starts.
pub struct Rest {
    /// Its offset in the packet.
    pub from: usize,
    /// Header of the payload.
    pub header: [u8; BasicHeader::LEN],
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
        if self.takes(inner.len()) {
            out.append(inner);
            return Ok(());
        }
        let Some(Rest { from, header }) = self.pack_but_rest(inner, out)? else { return Ok(()) };
        if !out.begin(&header) {
            self.give_up_payload();
            return Err(DropReason::QueueFull);
        }
        out.append(&inner[from..]);
        Ok(())
    }

    /// Returns whether a packet of `len` bytes fits the last payload, to which the caller then
    /// appends it.
    #[inline]
    pub fn takes(&mut self, len: usize) -> bool {
        let fits = len <= self.free;
        if fits {
            self.free -= len;
        }
        fits
    }

    /// [`Packer::pack`] of a packet that the last payload does not [take](Packer::takes), but for
    /// the rest with which the caller starts the last payload: it may use the buffer of the packet.
    ///
    /// # Errors
    /// As [`Packer::pack`].
    pub fn pack_but_rest(&mut self, inner: &[u8], out: &mut impl Payloads) -> Result<Option<Rest>, DropReason> {
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
            let header = transmute!(BasicHeader::new(if continued { rest.len() as u16 } else { 0 }));
            if rest.len() <= self.room {
                self.free = self.room - rest.len();
                return Ok(Some(Rest { from: inner.len() - rest.len(), header }));
            }
            if !out.begin(&header) {
                self.give_up_payload();
                return Err(DropReason::QueueFull);
            }
            let (piece, others) = rest.split_at(self.room);
            out.append(piece);
            (rest, continued) = (others, true);
        }
        // An empty packet.
        Ok(None)
    }

    /// The payload that was to be started last has no buffer.
    pub fn give_up_payload(&mut self) {
        self.free = 0;
    }

    /// Bytes of a payload with header.
    pub fn payload_len(&self) -> usize {
        BasicHeader::LEN + self.room
    }
}
