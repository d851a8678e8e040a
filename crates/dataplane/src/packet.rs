//! Packet memory: fixed buffers that travel in batches and are never given back to the allocator.

use ipsec::{Drop, Frame};
pub use ipsec::{HEADROOM, TAILROOM};

use crate::prefetch::prefetch;

/// One packet in a separate buffer.
pub struct Packet {
    buffer: Box<[u8]>,
    start: u32,
    end: u32,
}

impl Packet {
    /// An empty packet that can receive `payload_bytes` between head and tail room.
    pub fn new(payload_bytes: usize) -> Self {
        let buffer = vec![0; HEADROOM + payload_bytes + TAILROOM].into_boxed_slice();
        Self { buffer, start: HEADROOM as u32, end: HEADROOM as u32 }
    }

    /// Receive area of a port: everything except headroom and tailroom.
    pub fn receive_area(&mut self) -> &mut [u8] {
        let end = self.buffer.len() - TAILROOM;
        &mut self.buffer[HEADROOM..end]
    }

    /// Declares the first `len` bytes of [`Packet::receive_area`], from `skip` on, the packet.
    ///
    /// # Panics
    /// When `skip > len` or `len` is beyond the receive area: a bug of the port.
    pub fn received(&mut self, skip: usize, len: usize) {
        assert!(skip <= len && HEADROOM + len + TAILROOM <= self.buffer.len());
        self.start = (HEADROOM + skip) as u32;
        self.end = (HEADROOM + len) as u32;
    }

    /// Copies `bytes` in as the packet; false when they do not fit.
    pub fn set(&mut self, bytes: &[u8]) -> bool {
        let Some(area) = self.receive_area().get_mut(..bytes.len()) else { return false };
        area.copy_from_slice(bytes);
        self.received(0, bytes.len());
        true
    }

    /// The packet.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start as usize..self.end as usize]
    }

    /// The packet, to be changed in place.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start as usize..self.end as usize]
    }

    /// Cuts the packet to its first `len` bytes; nothing happens when it is no longer than that.
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        self.end = self.end.min(self.start + len as u32);
    }

    /// Cuts the packet to `inner`, counted from its first byte.
    #[inline]
    pub(crate) fn cut(&mut self, inner: std::ops::Range<usize>) {
        debug_assert!(inner.start <= inner.end && inner.end <= self.len());
        (self.start, self.end) = (self.start + inner.start as u32, self.start + inner.end as u32);
    }

    /// Grows the packet by `header` at the front (a header the kernel stripped on receive).
    ///
    /// # Errors
    /// [`Drop::NoRoom`].
    pub fn prepend(&mut self, header: &[u8]) -> Result<(), Drop> {
        let start = (self.start as usize).checked_sub(header.len()).ok_or(Drop::NoRoom)?;
        self.buffer[start..self.start as usize].copy_from_slice(header);
        self.start = start as u32;
        Ok(())
    }

    /// Prefetches the first cache line for opening a packet.
    #[inline]
    pub(crate) fn prefetch_head(&self) {
        prefetch(&self.buffer, self.start as usize);
    }

    /// Prefetches the first cache lines for sealing a packet: around its start, and its end.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.buffer, (self.start as usize).wrapping_sub(64));
        prefetch(&self.buffer, self.start as usize);
        prefetch(&self.buffer, self.end as usize);
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// `before` bytes of head room, the packet, and on to `len` bytes in all: the area of an engine
    /// with headers and ICV around the packet. For benchmarks of an engine alone.
    ///
    /// # Panics
    /// When head or tail room do not suffice: a bug of the caller.
    pub fn around(&mut self, before: usize, len: usize) -> &mut [u8] {
        let start = self.start as usize - before;
        &mut self.buffer[start..start + len]
    }

    /// The packet as a frame; write the frame's range back with [`Packet::set_range`].
    #[inline]
    pub(crate) fn frame(&mut self) -> Frame<'_> {
        let range = self.start as usize..self.end as usize;
        // The range is inside the buffer by construction; an empty frame is the safe other case.
        Frame::new(&mut self.buffer, range).unwrap_or_else(|_| unreachable!("packet range is inside its buffer"))
    }

    #[inline]
    pub(crate) fn set_range(&mut self, range: std::ops::Range<usize>) {
        debug_assert!(range.end <= self.buffer.len());
        self.start = range.start as u32;
        self.end = range.end as u32;
    }

    /// Returns whether `margin` bytes are free before the packet, and after its first `len`.
    #[inline(always)]
    pub(crate) fn has_room(&self, margin: usize, len: usize) -> bool {
        self.start as usize >= margin && self.start as usize + len + margin <= self.buffer.len()
    }

    /// `margin` bytes, the first `len` of the packet, `margin` bytes; the range is apart, as in
    /// [`Packet::parts`]. `None` if [`Packet::has_room`] returns false.
    #[inline(always)]
    pub(crate) fn with_margins(&mut self, margin: usize, len: usize) -> Option<(&mut [u8], &mut u32, &mut u32)> {
        let (from, to) = ((self.start as usize).checked_sub(margin)?, self.start as usize + len + margin);
        Some((self.buffer.get_mut(from..to)?, &mut self.start, &mut self.end))
    }

    /// Buffer and range apart, so that the bytes can be lent out while the range is updated.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut [u8], &mut u32, &mut u32) {
        (&mut self.buffer, &mut self.start, &mut self.end)
    }
}

/// Packets that travel together, and the empty ones that wait to be filled. The two together are
/// as many as the batch was made with; a port that takes one gives one in return.
pub struct Batch {
    live: Vec<Packet>,
    spare: Vec<Packet>,
    /// Number of empty packets reserved from ports.
    reserve: usize,
}

impl Batch {
    /// `packets` empty packets of `payload_bytes` each.
    pub fn new(packets: usize, payload_bytes: usize) -> Self {
        Self::with_reserve(packets, 0, payload_bytes)
    }

    /// As [`Batch::new`], with `reserve` further packets that ports leave alone: for the fragments of
    /// packets that are still in the batch.
    pub fn with_reserve(packets: usize, reserve: usize, payload_bytes: usize) -> Self {
        let all = packets + reserve;
        let spare = (0..all).map(|_| Packet::new(payload_bytes)).collect();
        Self { live: Vec::with_capacity(all), spare, reserve }
    }

    /// Number of packets that can still be received.
    pub fn room(&self) -> usize {
        self.spare.len().saturating_sub(self.reserve)
    }

    /// Packets in the batch.
    #[inline]
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Bytes of the packets in the batch.
    pub fn bytes(&self) -> u64 {
        self.live.iter().map(|packet| packet.len() as u64).sum()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// The packets.
    pub fn packets(&self) -> &[Packet] {
        &self.live
    }

    /// The packets, to be changed in place.
    pub fn packets_mut(&mut self) -> &mut [Packet] {
        &mut self.live
    }

    /// Appends a packet: `fill` writes it and returns whether to keep it. Returns false without
    /// room or if `fill` returned false.
    pub fn push_with(&mut self, fill: impl FnOnce(&mut Packet) -> bool) -> bool {
        let Some(mut packet) = self.spare.pop() else { return false };
        let keep = fill(&mut packet);
        if keep {
            self.live.push(packet)
        } else {
            self.spare.push(packet)
        }
        keep
    }

    /// Removes the packets for which `keep` is false, keeping the order of the others.
    pub fn retain(&mut self, mut keep: impl FnMut(usize, &mut Packet) -> bool) {
        let mut kept = 0;
        for i in 0..self.live.len() {
            if keep(i, &mut self.live[i]) {
                self.live.swap(kept, i);
                kept += 1;
            }
        }
        self.spare.extend(self.live.drain(kept..));
    }

    /// Makes all packets from `len` on spare.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.spare.extend(self.live.drain(len.min(self.live.len())..));
    }

    /// Empties the batch: every packet becomes spare.
    pub fn clear(&mut self) {
        self.spare.append(&mut self.live);
    }

    /// Takes packet `i` out in exchange for `empty` (a ring exchanges in both directions at once).
    pub fn swap_out(&mut self, i: usize, empty: Packet) -> Packet {
        std::mem::replace(&mut self.live[i], empty)
    }

    /// Appends `full` and gives an empty packet for it; `None`, and `full` is lost, without room.
    pub fn exchange(&mut self, full: Packet) -> Option<Packet> {
        let empty = self.spare.pop()?;
        self.live.push(full);
        Some(empty)
    }

    /// Moves the packets that `wanted` names to `other`, in order, as far as it has room; what is not moved stays.
    pub fn give(&mut self, other: &mut Self, wanted: impl Fn(usize) -> bool) {
        for i in (0..self.live.len()).filter(|i| wanted(*i)) {
            let Some(empty) = other.spare.pop() else { return };
            // The empty one stays where the full one was, until the batch is cleared.
            other.live.push(std::mem::replace(&mut self.live[i], empty));
        }
    }

    /// The empty packets, for a port that fills many at once: the last of them is the one that the
    /// next [`Batch::push_with`] takes.
    pub fn spare_mut(&mut self) -> &mut [Packet] {
        &mut self.spare
    }
}

#[cfg(test)]
mod tests;
