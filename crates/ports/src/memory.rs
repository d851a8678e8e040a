//! In-memory ports: rings between two endpoints in one process.
//!
//! A direction is two rings: one carries full packets there, the other carries empty ones back.
//! Both ends exchange a full packet for an empty one, so after construction nothing is allocated,
//! copied or freed, and neither ring can overflow: there are as many packets as slots.

use std::io;

use dataplane::{Batch, Packet, Port};
use rtrb::{Consumer, Producer, RingBuffer};

use super::PortDrops;

/// One endpoint of a pair of rings. Dropping it closes the pair.
pub struct MemoryPort {
    outgoing: Sender,
    incoming: Receiver,
    refused: PortDrops,
}

struct Sender {
    full: Producer<Packet>,
    empty: Consumer<Packet>,
}

struct Receiver {
    full: Consumer<Packet>,
    empty: Producer<Packet>,
}

/// Creates two connected endpoints. Each direction has buffers for `packets` packets of at most
/// `packet_bytes`, all allocated now. Ports exchange buffers with batches, so the batches at both
/// ends should have the same buffer size.
pub fn memory_pair(packets: usize, packet_bytes: usize) -> (MemoryPort, MemoryPort) {
    let (to_right, from_left) = direction(packets, packet_bytes);
    let (to_left, from_right) = direction(packets, packet_bytes);
    let port = |outgoing, incoming| MemoryPort { outgoing, incoming, refused: PortDrops::default() };
    (port(to_right, from_right), port(to_left, from_left))
}

/// Marker for a packet that was handed over.
pub(crate) const NO_OWNER: u32 = u32::MAX;

impl MemoryPort {
    /// Sends the packets of `from` that `of` assigns to `whom`, in order, as far as there is room.
    /// Their entries in `of` become [`NO_OWNER`], and empty packets replace them. They are lost if
    /// the receiver has ended. Returns the number sent.
    pub(crate) fn pass(&mut self, from: &mut Batch, of: &mut [u32], whom: u32) -> usize {
        let gone = self.outgoing.full.is_abandoned();
        let mut went = 0;
        for (i, to) in of.iter_mut().enumerate().filter(|(_, to)| **to == whom) {
            if !gone {
                let Ok(empty) = self.outgoing.empty.pop() else { return went };
                // Cannot overflow: the number of packets per direction is constant.
                let _ = self.outgoing.full.push(from.swap_out(i, empty));
            }
            *to = NO_OWNER;
            went += 1;
        }
        went
    }

    /// Returns whether the other end sent something.
    pub(crate) fn has_input(&self) -> bool {
        !self.incoming.full.is_empty()
    }
}

fn direction(packets: usize, packet_bytes: usize) -> (Sender, Receiver) {
    let (full_in, full_out) = RingBuffer::new(packets);
    let (mut empty_in, empty_out) = RingBuffer::new(packets);
    for _ in 0..packets {
        let placed = empty_in.push(Packet::new(packet_bytes));
        debug_assert!(placed.is_ok());
    }
    (Sender { full: full_in, empty: empty_out }, Receiver { full: full_out, empty: empty_in })
}

impl Port for MemoryPort {
    fn rx(&mut self, into: &mut Batch) -> io::Result<()> {
        while into.room() > 0 {
            let Ok(full) = self.incoming.full.pop() else { break };
            let Some(empty) = into.exchange(full) else { break };
            // Cannot overflow: the number of packets per direction is constant.
            let _ = self.incoming.empty.push(empty);
        }
        if into.is_empty() && self.incoming.full.is_abandoned() && self.incoming.full.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other end of the memory port is gone"));
        }
        Ok(())
    }

    fn tx(&mut self, from: &mut Batch) -> io::Result<()> {
        for i in 0..from.len() {
            let Ok(empty) = self.outgoing.empty.pop() else {
                self.refused.full += (from.len() - i) as u64;
                break;
            };
            let _ = self.outgoing.full.push(from.swap_out(i, empty));
        }
        from.clear();
        if self.outgoing.full.is_abandoned() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the other end of the memory port is gone"));
        }
        Ok(())
    }

    fn drops(&self) -> PortDrops {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch_of(packets: std::ops::Range<u8>) -> Batch {
        let mut batch = Batch::new(packets.len(), 64);
        packets.for_each(|n| assert!(batch.push_with(|p| p.set(&[n; 5]))));
        batch
    }

    fn firsts(batch: &Batch) -> Vec<u8> {
        batch.packets().iter().map(|p| p.bytes()[0]).collect()
    }

    #[test]
    fn what_does_not_fit_stays_and_goes_later_in_order() {
        let (mut left, mut right) = memory_pair(2, 64);
        let (mut batch, mut of) = (batch_of(0..6), vec![7, 8, 7, 7, 8, 7]);
        left.pass(&mut batch, &mut of, 7);
        assert_eq!(of, [NO_OWNER, 8, NO_OWNER, 7, 8, 7]);
        let mut got = Batch::new(8, 64);
        right.rx(&mut got).unwrap();
        left.pass(&mut batch, &mut of, 7);
        right.rx(&mut got).unwrap();
        assert_eq!((firsts(&got), &of[..]), (vec![0, 2, 3, 5], &[NO_OWNER, 8, NO_OWNER, NO_OWNER, 8, NO_OWNER][..]));
        assert_eq!(left.drops(), PortDrops::default());
        drop(right);
        left.pass(&mut batch, &mut of, 8);
        assert_eq!(of, [NO_OWNER; 6]);
    }

    #[test]
    fn carries_both_ways_in_order() {
        let (mut left, mut right) = memory_pair(4, 64);
        let mut got = Batch::new(8, 64);
        for round in 0..5 {
            left.tx(&mut batch_of(round..round + 3)).unwrap();
            right.tx(&mut batch_of(100..102)).unwrap();
            right.rx(&mut got).unwrap();
            assert_eq!(firsts(&got), [round, round + 1, round + 2]);
            got.clear();
            left.rx(&mut got).unwrap();
            assert_eq!(firsts(&got), [100, 101]);
            got.clear();
        }
    }

    #[test]
    fn a_full_ring_refuses_the_rest_and_loses_no_buffer() {
        let (mut left, mut right) = memory_pair(4, 64);
        let mut sent = batch_of(0..6);
        left.tx(&mut sent).unwrap();
        assert_eq!((left.drops().full, sent.len(), sent.room()), (2, 0, 6));
        let mut got = Batch::new(3, 64);
        right.rx(&mut got).unwrap();
        assert_eq!((firsts(&got), got.room()), (vec![0, 1, 2], 0));
        got.clear();
        right.rx(&mut got).unwrap();
        assert_eq!((firsts(&got), got.room()), (vec![3], 2));
    }

    #[test]
    fn a_closed_peer_is_the_end_after_the_last_packet() {
        let (mut left, mut right) = memory_pair(4, 64);
        left.tx(&mut batch_of(0..1)).unwrap();
        drop(left);
        let mut got = Batch::new(3, 64);
        right.rx(&mut got).unwrap();
        assert_eq!(got.len(), 1);
        got.clear();
        assert_eq!(right.rx(&mut got).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(right.tx(&mut batch_of(0..1)).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
