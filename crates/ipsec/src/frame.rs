//! A packet inside a larger buffer, so that headers can be put around it without copying it.

use std::ops::Range;

use wire::ip::IPV4_HEADER;

use crate::DropReason;

/// Bytes on either side of a packet that a template needs.
pub(crate) const MARGIN: usize = 64;

/// A packet in a buffer with head and tail room. Offsets are relative to the packet's first byte.
pub struct Frame<'a> {
    buffer: &'a mut [u8],
    start: usize,
    end: usize,
}

impl<'a> Frame<'a> {
    /// The packet `range` of `buffer`.
    ///
    /// # Errors
    /// [`DropReason::Inconsistent`] when the range is not inside the buffer.
    #[inline]
    pub fn new(buffer: &'a mut [u8], range: Range<usize>) -> Result<Self, DropReason> {
        if range.start > range.end || range.end > buffer.len() {
            return Err(DropReason::Inconsistent);
        }
        Ok(Self { buffer, start: range.start, end: range.end })
    }

    /// Current range of the packet in the buffer.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Bytes of the packet.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// The packet.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The packet, to be changed in place.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    /// Ends the borrow of the frame but not of the buffer: for handing the bytes to an engine.
    #[inline]
    pub fn into_bytes(self) -> &'a mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    /// Grows the packet by `n` bytes at the front; their content is whatever was there.
    #[inline]
    pub fn push_front(&mut self, n: usize) -> Result<(), DropReason> {
        self.start = self.start.checked_sub(n).ok_or(DropReason::NoRoom)?;
        Ok(())
    }

    /// Grows the packet by `n` bytes at the end; returns them.
    #[inline]
    pub fn push_back(&mut self, n: usize) -> Result<&mut [u8], DropReason> {
        let end = self.end + n;
        let room = self.buffer.get_mut(self.end..end).ok_or(DropReason::NoRoom)?;
        self.end = end;
        Ok(room)
    }

    /// The packet with `margin` bytes before and after it, if the buffer has them.
    #[inline]
    pub(crate) fn around(&mut self, margin: usize) -> Option<&mut [u8]> {
        self.buffer.get_mut(self.start.checked_sub(margin)?..self.end + margin)
    }

    /// Replaces the range of the packet in the buffer.
    ///
    /// # Errors
    /// [`DropReason::Inconsistent`] when it is not inside the buffer.
    #[inline]
    pub(crate) fn set_range(&mut self, range: Range<usize>) -> Result<(), DropReason> {
        if range.start > range.end || range.end > self.buffer.len() {
            return Err(DropReason::Inconsistent);
        }
        (self.start, self.end) = (range.start, range.end);
        Ok(())
    }

    /// Cuts `n` bytes off the front.
    #[inline]
    pub fn pull_front(&mut self, n: usize) -> Result<(), DropReason> {
        if n > self.len() {
            return Err(DropReason::Truncated);
        }
        self.start += n;
        Ok(())
    }

    /// Cuts the packet to its first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) -> Result<(), DropReason> {
        if len > self.len() {
            return Err(DropReason::Truncated);
        }
        self.end = self.start + len;
        Ok(())
    }

    /// Moves the first `at` bytes `gap` bytes towards the front, opening a gap of `gap` bytes after
    /// them, in which transport mode inserts its header after the IP header.
    #[inline]
    pub fn open_gap(&mut self, at: usize, gap: usize) -> Result<(), DropReason> {
        if at > self.len() {
            return Err(DropReason::Truncated);
        }
        let start = self.start.checked_sub(gap).ok_or(DropReason::NoRoom)?;
        self.shift(at, start);
        Ok(())
    }

    /// Undoes [`Frame::open_gap`]: removes the `gap` bytes that follow the first `at`.
    #[inline]
    pub fn close_gap(&mut self, at: usize, gap: usize) -> Result<(), DropReason> {
        if at + gap > self.len() {
            return Err(DropReason::Truncated);
        }
        self.shift(at, self.start + gap);
        Ok(())
    }

    /// Moves the first `at` bytes to `start`, which is where the packet then starts.
    #[inline]
    fn shift(&mut self, at: usize, start: usize) {
        let from = self.start..self.start + at;
        // Most IPv4 headers are of one length: moved in registers, without a call.
        if at == IPV4_HEADER {
            let mut header = [0; IPV4_HEADER];
            header.copy_from_slice(&self.buffer[from]);
            self.buffer[start..start + IPV4_HEADER].copy_from_slice(&header);
        } else {
            self.buffer.copy_within(from, start);
        }
        self.start = start;
    }

    /// The `n` bytes of the buffer right before the packet, as scratch space (AH keeps the
    /// original header there while the MAC needs its mutable fields as zero).
    #[inline]
    pub fn scratch(&mut self, n: usize) -> Result<(&mut [u8], &mut [u8]), DropReason> {
        let from = self.start.checked_sub(n).ok_or(DropReason::NoRoom)?;
        let (head, tail) = self.buffer.split_at_mut(self.start);
        Ok((&mut head[from..], &mut tail[..self.end - self.start]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_opens_and_closes_without_losing_a_byte() {
        let mut buffer = [0, 0, 0, 0, 1, 2, 3, 4, 5, 0];
        let mut frame = Frame::new(&mut buffer, 4..9).unwrap();
        frame.open_gap(2, 3).unwrap();
        assert_eq!((frame.bytes()[0], frame.bytes()[1], frame.bytes()[5]), (1, 2, 3));
        frame.close_gap(2, 3).unwrap();
        assert_eq!(frame.bytes(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn room_ends_where_the_buffer_ends() {
        let mut buffer = [0; 8];
        let mut frame = Frame::new(&mut buffer, 2..6).unwrap();
        assert_eq!(frame.push_front(3), Err(DropReason::NoRoom));
        assert_eq!(frame.push_back(3).err(), Some(DropReason::NoRoom));
        assert_eq!(frame.truncate(5), Err(DropReason::Truncated));
        assert_eq!(frame.range(), 2..6);
    }
}
