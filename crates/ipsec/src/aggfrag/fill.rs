//! Sending side with a constant rate: payloads of one length, with what a queue contains.

use wire::aggfrag::BasicHeader;
use zerocopy::IntoBytes;

use super::Settings;

/// Queue of inner packets.
pub trait Source {
    /// Length in bytes of the packet at the head, a whole IP packet whose length field is its
    /// length; `None` if the queue is empty. The packet stays the same until [`Source::pop`].
    fn head_len(&mut self) -> Option<usize>;

    /// Copies the bytes of the packet at the head from `from` on; `to` does not exceed them.
    fn copy(&mut self, from: usize, to: &mut [u8]);

    /// Removes the packet at the head.
    fn pop(&mut self);
}

/// Most packets that leave the queue for a payload with `room` bytes, which bounds the time for it.
/// Larger than the number of TCP acknowledgements in a payload of 1400 bytes.
fn max_inner(room: usize) -> usize {
    (room / 48).max(64)
}

/// What a payload took out of the queue.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Filled {
    /// Bytes of the payload that are not padding.
    pub used: usize,
    /// Packets that were removed and not sent, because they exceed a payload and must not be cut
    /// ([`DropReason::TooBig`](crate::DropReason::TooBig)).
    pub too_big: usize,
}

/// Fills payloads of one SA (RFC 9347 §2.2), each to its end: what the queue does not fill is
/// padding. Payloads must get consecutive sequence numbers.
///
/// A cut packet stays in the queue until its last piece was packed, so that it can be sent again
/// from its beginning through another SA ([`Filler::restart`]).
#[derive(Clone, Copy, Debug)]
pub struct Filler {
    /// Bytes of the packet at the head that were packed before.
    done: usize,
    dont_fragment: bool,
    prefer_whole: bool,
}

impl Filler {
    /// A filler that starts with a whole packet.
    pub fn new(settings: &Settings) -> Self {
        let Settings { dont_fragment, prefer_whole, .. } = *settings;
        Self { done: 0, dont_fragment, prefer_whole }
    }

    /// Sends a cut packet again from its beginning. A new SA has other sequence numbers, so that
    /// its peer cannot join pieces of both.
    pub fn restart(&mut self) {
        self.done = 0;
    }

    /// Fills `payload`, header included. The number of packets has a limit, 64 up to 3072 bytes.
    ///
    /// A queue may outlive the payload length that its packets were checked against: an SA gets
    /// other addresses, or a successor. A packet that must not be cut and exceeds a payload is
    /// removed, because it would otherwise stay at the head for ever. A payload without room for a
    /// header and a byte stays empty.
    pub fn fill(&mut self, payload: &mut [u8], source: &mut impl Source) -> Filled {
        let offset = if self.done == 0 { None } else { source.head_len() };
        let header = BasicHeader::new(offset.map_or(0, |len| (len - self.done) as u16));
        let Some((start, mut free)) = payload.split_at_mut_checked(BasicHeader::LEN) else {
            payload.fill(0);
            return Filled::default();
        };
        start.copy_from_slice(header.as_bytes());
        let (room, mut taken, mut too_big) = (free.len(), 0, 0);
        while !free.is_empty()
            && taken < max_inner(room)
            && let Some(len) = source.head_len()
        {
            if self.dont_fragment && self.done == 0 && len > room {
                source.pop();
                (taken, too_big) = (taken + 1, too_big + 1);
                continue;
            }
            if self.starts_next(len, free.len(), room) {
                break;
            }
            let (piece, rest) = free.split_at_mut(free.len().min(len - self.done));
            source.copy(self.done, piece);
            self.done += piece.len();
            if self.done == len {
                source.pop();
                (taken, self.done) = (taken + 1, 0);
            }
            free = rest;
        }
        // A first nibble of 0 is padding to the end of the payload (RFC 9347 §6.1.3.3).
        free.fill(0);
        Filled { used: room - free.len(), too_big }
    }

    /// Returns whether a packet of `len` bytes starts another payload, because `free` bytes of the
    /// present one would cut it.
    fn starts_next(&self, len: usize, free: usize, room: usize) -> bool {
        let cut = self.done == 0 && len > free;
        // At most a tenth of the payload is wasted.
        cut && (self.dont_fragment || (len <= room && self.prefer_whole && free * 10 <= room))
    }
}
