//! Packet memory: fixed buffers that move in batches and are never returned to the allocator.

use std::ops::Range;

use ipsec::{DropReason, Frame};
pub use ipsec::{HEADROOM, TAILROOM};
use zeroize::Zeroize;

use crate::prefetch::prefetch;

/// One packet in a separate buffer.
pub struct Packet {
    buffer: Box<[u8]>,
    start: u32,
    end: u32,
}

impl Packet {
    /// Allocates an empty packet with `payload_bytes` between headroom and tailroom.
    pub fn new(payload_bytes: usize) -> Self {
        let buffer = vec![0; HEADROOM + payload_bytes + TAILROOM].into_boxed_slice();
        Self { buffer, start: HEADROOM as u32, end: HEADROOM as u32 }
    }

    /// Receive area of a port: everything except headroom and tailroom.
    pub fn receive_area(&mut self) -> &mut [u8] {
        let end = self.buffer.len() - TAILROOM;
        &mut self.buffer[HEADROOM..end]
    }

    /// Sets the packet to the first `len` bytes of [`Packet::receive_area`], without the first
    /// `skip`.
    ///
    /// # Panics
    /// When `skip > len` or `len` is beyond the receive area: a bug of the port.
    pub fn received(&mut self, skip: usize, len: usize) {
        assert!(skip <= len && HEADROOM + len + TAILROOM <= self.buffer.len());
        self.start = (HEADROOM + skip) as u32;
        self.end = (HEADROOM + len) as u32;
    }

    /// Replaces the packet by a copy of `bytes`. Returns false if they do not fit into the buffer.
    pub fn set(&mut self, bytes: &[u8]) -> bool {
        let Some(area) = self.receive_area().get_mut(..bytes.len()) else { return false };
        area.copy_from_slice(bytes);
        self.received(0, bytes.len());
        true
    }

    /// [`Packet::set`] for bytes that are probably few: a copy of unknown length is a call.
    #[inline]
    pub(crate) fn set_short(&mut self, bytes: &[u8]) -> bool {
        const PART: usize = 32;
        let len = bytes.len();
        let end = self.buffer.len().saturating_sub(TAILROOM);
        let area = self.buffer.get_mut(HEADROOM..end).and_then(|area| area.get_mut(..len));
        let (Some(area), Some(last)) = (area, bytes.last_chunk::<PART>()) else { return self.set(bytes) };
        if len > 8 * PART {
            return self.set(bytes);
        }
        for (to, from) in area.as_chunks_mut::<PART>().0.iter_mut().zip(bytes.as_chunks::<PART>().0) {
            *to = *from;
        }
        // The last part overlaps the one before.
        if let Some(to) = area.last_chunk_mut() {
            *to = *last;
        }
        (self.start, self.end) = (HEADROOM as u32, (HEADROOM + len) as u32);
        true
    }

    /// Replaces the packet by `len` bytes that `fill` writes. Returns false if they do not fit into
    /// the buffer.
    pub(crate) fn set_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let Some(area) = self.receive_area().get_mut(..len) else { return false };
        fill(area);
        self.received(0, len);
        true
    }

    /// A packet without a buffer, for the index of one that is taken out of its batch.
    pub(crate) fn absent() -> Self {
        Self { buffer: Box::default(), start: 0, end: 0 }
    }

    /// Returns true for [`Packet::absent`].
    #[inline]
    pub(crate) fn is_absent(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Address of the buffer.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        self.buffer.as_ptr().addr()
    }

    /// The whole buffer.
    #[inline]
    pub(crate) fn buffer_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Appends `bytes` to the packet. Returns false if they do not fit before the tailroom.
    #[inline]
    pub(crate) fn append(&mut self, bytes: &[u8]) -> bool {
        let (from, to) = (self.end as usize, self.end as usize + bytes.len());
        let limit = self.buffer.len().saturating_sub(TAILROOM);
        let Some(area) = self.buffer.get_mut(..limit).and_then(|area| area.get_mut(from..to)) else { return false };
        area.copy_from_slice(bytes);
        self.end = to as u32;
        true
    }

    /// Appends the bytes of `other`. Returns false if they do not fit before the tailroom.
    #[inline]
    fn append_packet(&mut self, other: &Self) -> bool {
        const LINE: usize = 64;
        let (from, to, len) = (other.start as usize, self.end as usize, other.len());
        let most = len.next_multiple_of(LINE);
        if len > 4 * LINE || to + most > self.buffer.len().saturating_sub(TAILROOM) {
            return self.append(other.bytes());
        }
        // Whole lines, because a copy of unknown length is a call. What follows the packet in its
        // buffer is copied, too, after the end of this packet.
        let (Some(area), Some(bytes)) = (self.buffer.get_mut(to..to + most), other.buffer.get(from..from + most))
        else {
            return self.append(other.bytes());
        };
        for (to, from) in area.as_chunks_mut::<LINE>().0.iter_mut().zip(bytes.as_chunks::<LINE>().0) {
            *to = *from;
        }
        self.end = (to + len) as u32;
        true
    }

    /// Makes a payload of `header` and of the bytes from `from` on, which may grow to `len` bytes.
    /// Returns false and changes nothing if its buffer has no room for that.
    #[inline]
    pub(crate) fn begin_payload(&mut self, from: usize, header: &[u8], len: usize) -> bool {
        let at = self.start as usize + from;
        // The header is shorter than what is left of the headroom by all outer headers.
        let Some(start) = at.checked_sub(header.len()).filter(|_| at >= HEADROOM && from <= self.len()) else {
            return false;
        };
        if start + len > self.buffer.len().saturating_sub(TAILROOM) {
            return false;
        }
        self.buffer[start..at].copy_from_slice(header);
        self.start = start as u32;
        true
    }

    /// Returns the bytes of the packet.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start as usize..self.end as usize]
    }

    /// Returns the bytes of the packet for changes in place.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start as usize..self.end as usize]
    }

    /// Shortens the packet to its first `len` bytes; does nothing if it is not longer.
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        // Rarely true: most packets fill their buffers, and need no store.
        if len < self.len() {
            self.end = self.start + len as u32;
        }
    }

    /// Reduces the packet to the range `inner`, relative to its first byte.
    #[inline]
    pub(crate) fn cut(&mut self, inner: std::ops::Range<usize>) {
        debug_assert!(inner.start <= inner.end && inner.end <= self.len());
        (self.start, self.end) = (self.start + inner.start as u32, self.start + inner.end as u32);
    }

    /// Prepends `header` (one that the kernel stripped on receive).
    ///
    /// # Errors
    /// [`DropReason::NoRoom`].
    pub fn prepend(&mut self, header: &[u8]) -> Result<(), DropReason> {
        let start = (self.start as usize).checked_sub(header.len()).ok_or(DropReason::NoRoom)?;
        self.buffer[start..self.start as usize].copy_from_slice(header);
        self.start = start as u32;
        Ok(())
    }

    /// Prefetches the first cache line for opening a packet.
    #[inline]
    pub(crate) fn prefetch_head(&self) {
        prefetch(&self.buffer, self.start as usize);
    }

    /// Prefetches the first cache lines that sealing touches: around the start and the end of the
    /// packet.
    #[inline]
    pub(crate) fn prefetch(&self) {
        // The outer headers go before the packet, padding and ICV after it.
        prefetch(&self.buffer, (self.start as usize).wrapping_sub(64));
        prefetch(&self.buffer, self.start as usize);
        prefetch(&self.buffer, self.end as usize);
    }

    /// Prefetches the first and the last cache line.
    #[inline]
    pub(crate) fn prefetch_ends(&self) {
        prefetch(&self.buffer, self.start as usize);
        prefetch(&self.buffer, (self.end as usize).wrapping_sub(1));
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Returns `len` bytes that start `before` bytes before the packet: the buffer of an engine,
    /// with headers and ICV around the packet. For benchmarks of an engine alone.
    ///
    /// # Panics
    /// When head or tail room do not suffice: a bug of the caller.
    pub fn around(&mut self, before: usize, len: usize) -> &mut [u8] {
        let start = self.start as usize - before;
        &mut self.buffer[start..start + len]
    }

    /// Returns the packet as a frame. The caller must write the frame's range back with
    /// [`Packet::set_range`].
    #[inline]
    pub(crate) fn frame(&mut self) -> Frame<'_> {
        let range = self.start as usize..self.end as usize;
        // The range is within the buffer by construction.
        Frame::new(&mut self.buffer, range).unwrap_or_else(|_| unreachable!("packet range is inside its buffer"))
    }

    #[inline]
    pub(crate) fn set_range(&mut self, range: std::ops::Range<usize>) {
        debug_assert!(range.end <= self.buffer.len());
        self.start = range.start as u32;
        self.end = range.end as u32;
    }

    /// Returns whether `margin` bytes are free before the packet, and after its first `len`.
    #[inline]
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

    /// Returns buffer and range separately, so that the bytes can be borrowed while the range is
    /// updated.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut [u8], &mut u32, &mut u32) {
        (&mut self.buffer, &mut self.start, &mut self.end)
    }
}

impl AsRef<[u8]> for Packet {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// A batch: its packets, and empty buffers for further ones. The sum of both is constant; a port
/// that takes a packet must return an empty buffer.
pub struct Batch {
    live: Vec<Packet>,
    spare: Vec<Packet>,
    /// Number of empty packets that ports must not use.
    reserve: usize,
}

impl Batch {
    /// Allocates `packets` empty packets of `payload_bytes` each.
    pub fn new(packets: usize, payload_bytes: usize) -> Self {
        Self::with_reserve(packets, 0, payload_bytes)
    }

    /// [`Batch::new`] with `reserve` further packets that ports must not use: for the fragments of
    /// packets that are still in the batch.
    pub fn with_reserve(packets: usize, reserve: usize, payload_bytes: usize) -> Self {
        let all = packets + reserve;
        let spare = (0..all).map(|_| Packet::new(payload_bytes)).collect();
        Self { live: Vec::with_capacity(all), spare, reserve }
    }

    /// Number of packets that can still be received.
    pub fn room(&self) -> usize {
        // Fragments may have used part of the reserve.
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

    /// Returns true if the batch has no packets.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Addresses from the first byte of all buffers to the last; other memory may be between them.
    pub fn memory(&self) -> std::ops::Range<usize> {
        let buffers = || self.live.iter().chain(&self.spare).map(|packet| packet.buffer.as_ptr_range());
        let start = buffers().map(|buffer| buffer.start.addr()).min().unwrap_or(0);
        start..buffers().map(|buffer| buffer.end.addr()).max().unwrap_or(0)
    }

    /// Returns the packets.
    pub fn packets(&self) -> &[Packet] {
        &self.live
    }

    /// Returns the packets for changes in place.
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
                // Kept packets move forward in order; dropped ones collect at the end with their
                // buffers.
                self.live.swap(kept, i);
                kept += 1;
            }
        }
        self.spare.extend(self.live.drain(kept..));
    }

    /// The packet that was appended last.
    #[inline]
    pub(crate) fn last_mut(&mut self) -> Option<&mut Packet> {
        self.live.last_mut()
    }

    /// Appends to the last packet those of `range`, as long as `fits` returns true for the length
    /// of the next one. Returns their number.
    ///
    /// # Errors
    /// Their number, if `fits` returned true for the next one, but the buffer has no room for it.
    #[inline]
    pub(crate) fn join(&mut self, range: Range<usize>, mut fits: impl FnMut(usize) -> bool) -> Result<usize, usize> {
        let Some((last, packets)) = self.live.split_last_mut() else { return Ok(0) };
        let mut joined = 0;
        for packet in packets.get(range).unwrap_or(&[]) {
            if !fits(packet.len()) {
                break;
            }
            if !last.append_packet(packet) {
                return Err(joined);
            }
            joined += 1;
        }
        Ok(joined)
    }

    /// Moves packet `i` after the last one; an empty buffer takes its index. Returns false without
    /// one.
    #[inline]
    pub(crate) fn move_to_end(&mut self, i: usize) -> bool {
        let Some(empty) = self.spare.pop() else { return false };
        let packet = std::mem::replace(&mut self.live[i], empty);
        self.live.push(packet);
        true
    }

    /// Allocates buffers of `payload_bytes` for packets that are absent.
    #[cold]
    pub(crate) fn replace_absent(&mut self, payload_bytes: usize) {
        let absent = self.live.iter_mut().filter(|packet| packet.is_absent());
        absent.for_each(|packet| *packet = Packet::new(payload_bytes));
    }

    /// Removes all packets from `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.spare.extend(self.live.drain(len.min(self.live.len())..));
    }

    /// Removes all packets, and overwrites all buffers with zeros.
    #[cold]
    pub(crate) fn wipe(&mut self) {
        self.clear();
        self.spare.iter_mut().for_each(|packet| packet.buffer.zeroize());
    }

    /// Removes all packets.
    pub fn clear(&mut self) {
        self.spare.append(&mut self.live);
    }

    /// Replaces packet `i` by `empty` and returns it (rings exchange full for empty buffers).
    pub fn swap_out(&mut self, i: usize, empty: Packet) -> Packet {
        std::mem::replace(&mut self.live[i], empty)
    }

    /// Appends `full` and returns an empty packet for it. Returns `None` and drops `full` if the
    /// batch is full.
    pub fn exchange(&mut self, full: Packet) -> Option<Packet> {
        let empty = self.spare.pop()?;
        self.live.push(full);
        Some(empty)
    }

    /// Moves the packets selected by `wanted` to `other`, in order, until it is full. The others
    /// stay.
    pub fn give(&mut self, other: &mut Self, wanted: impl Fn(usize) -> bool) {
        for i in (0..self.live.len()).filter(|i| wanted(*i)) {
            let Some(empty) = other.spare.pop() else { return };
            // The empty buffer takes the index of the full one until the batch is cleared.
            other.live.push(std::mem::replace(&mut self.live[i], empty));
        }
    }

    /// Returns the empty packets, for a port that fills many at once. The next [`Batch::push_with`]
    /// takes the last one.
    pub fn spare_mut(&mut self) -> &mut [Packet] {
        &mut self.spare
    }
}

#[cfg(test)]
mod tests;
