//! Queue of inner packets between workers and pacer: a ring of bytes for each worker.
//!
//! A ring has one writer, its worker, and one reader, the pacer (`rtrb`). Both ends are in a mutex,
//! because a snapshot is shared; each is taken by one thread only, once per batch, and never
//! waited for. A packet has no length before it: the ring contains whole IP packets, and their
//! headers contain their lengths.
//!
//! Packets in all rings together have at most `limit` bytes. A ring is as long as its share of the
//! limit, and [`RING_MIN`] at least if the limit is not smaller: the memory of a stream is at most
//! its limit and [`RING_MIN`] for each worker. Memory that was never used is never touched.

use std::sync::{Mutex, MutexGuard, TryLockError};

use ipsec::DropReason;
use ipsec::aggfrag::Source;
use rtrb::chunks::ReadChunk;
use rtrb::{Consumer, Producer, RingBuffer};
use zeroize::Zeroize;

use super::budget::Budget;

/// Bytes of an IP header up to the end of the length field.
const LENGTH_END: usize = 6;

/// Smallest ring in bytes, unless the limit is smaller: one worker can use all of the queue up to
/// 419 Mbit/s. Above, memory for the whole limit in each ring would be a multiple of it.
const RING_MIN: usize = 1 << 20;

/// Queue of a stream.
pub(crate) struct Queue {
    writers: Box<[Mutex<Producer<u8>>]>,
    readers: Mutex<Readers>,
    budget: Budget,
}

/// The ends of all rings that the pacer reads.
struct Readers {
    rings: Box<[Consumer<u8>]>,
    /// Ring of the packet at the head.
    at: usize,
}

/// Length of the IP packet that starts with `start`, by its header.
fn length(start: &[u8]) -> Option<usize> {
    match *start.first_chunk::<LENGTH_END>()? {
        [first, _, a, b, ..] if first >> 4 == 4 => Some(usize::from(u16::from_be_bytes([a, b]))),
        [first, .., a, b] if first >> 4 == 6 => Some(40 + usize::from(u16::from_be_bytes([a, b]))),
        _ => None,
    }
}

impl Queue {
    /// Rings for `workers` workers, with `limit` bytes in all.
    pub(super) fn new(workers: usize, limit: usize) -> Self {
        let len = limit.min(RING_MIN.max(limit / workers.max(1)));
        let (writers, rings): (Vec<_>, Vec<_>) = (0..workers.max(1)).map(|_| RingBuffer::new(len)).unzip();
        let writers = writers.into_iter().map(Mutex::new).collect();
        Self { writers, readers: Mutex::new(Readers { rings: rings.into(), at: 0 }), budget: Budget::new(limit) }
    }

    /// The end for packets of worker `core`; `None` for a worker without a ring.
    pub(crate) fn writer(&self, core: usize) -> Option<Writer<'_>> {
        Some(Writer { ring: unshared(self.writers.get(core)?)?, budget: &self.budget })
    }

    /// The end of the pacer; `None` while another thread has it.
    pub(super) fn reader(&self) -> Option<Reader<'_>> {
        Some(Reader { readers: unshared(&self.readers)?, budget: &self.budget })
    }

    /// Bytes of packets in the queue.
    pub(super) fn len(&self) -> usize {
        self.budget.used()
    }

    /// Most bytes of packets in the queue.
    #[cfg(test)]
    pub(crate) fn limit(&self) -> usize {
        self.budget.limit()
    }
}

/// Takes a mutex that one thread uses. After a panic its content is still a ring.
fn unshared<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let readers = self.readers.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for ring in &mut readers.rings {
            overwrite(ring, ring.slots());
        }
    }
}

/// Removes the first `bytes` bytes, and overwrites them: clear text must not stay in memory that
/// is reused or freed.
fn overwrite(ring: &mut Consumer<u8>, bytes: usize) {
    if let Ok(mut chunk) = ring.read_chunk(bytes) {
        clear(&mut chunk);
        chunk.commit_all();
    }
}

fn clear(chunk: &mut ReadChunk<'_, u8>) {
    let (first, second) = chunk.as_mut_slices();
    first.zeroize();
    second.zeroize();
}

/// The end of a worker.
pub(crate) struct Writer<'q> {
    ring: MutexGuard<'q, Producer<u8>>,
    budget: &'q Budget,
}

impl Writer<'_> {
    /// Appends a whole IP packet whose length field is its length.
    ///
    /// # Errors
    /// [`DropReason::QueueFull`]; [`DropReason::Inconsistent`] for another length.
    pub(crate) fn push(&mut self, packet: &[u8]) -> Result<(), DropReason> {
        if length(packet) != Some(packet.len()) {
            return Err(DropReason::Inconsistent);
        }
        self.reserve(packet.len())?;
        self.push_reserved(packet)
    }

    /// Takes `bytes` bytes for packets that [`Writer::push_reserved`] appends.
    ///
    /// # Errors
    /// [`DropReason::QueueFull`].
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), DropReason> {
        if !self.budget.take(bytes) {
            return Err(DropReason::QueueFull);
        }
        // After the budget, with which the room in the ring is seen.
        if self.ring.slots() < bytes {
            self.budget.give_back(bytes);
            return Err(DropReason::QueueFull);
        }
        Ok(())
    }

    /// Appends a whole IP packet whose bytes were reserved.
    ///
    /// # Errors
    /// [`DropReason::Inconsistent`] without room, or for a packet whose length field is not its
    /// length. Its bytes are given back.
    pub(crate) fn push_reserved(&mut self, packet: &[u8]) -> Result<(), DropReason> {
        if length(packet) == Some(packet.len()) && self.ring.push_entire_slice(packet).is_ok() {
            return Ok(());
        }
        self.budget.give_back(packet.len());
        Err(DropReason::Inconsistent)
    }
}

/// The end of the pacer.
pub(super) struct Reader<'q> {
    readers: MutexGuard<'q, Readers>,
    budget: &'q Budget,
}

impl Reader<'_> {
    fn ring(&mut self) -> &mut Consumer<u8> {
        let Readers { rings, at } = &mut *self.readers;
        &mut rings[*at]
    }
}

impl Source for Reader<'_> {
    fn head_len(&mut self) -> Option<usize> {
        let count = self.readers.rings.len();
        // The ring stays the same while it has packets at the head: [`Source::pop`] goes on.
        for _ in 0..count {
            let chunk = self.ring().read_chunk(LENGTH_END);
            if let Ok(chunk) = chunk {
                let (first, second) = chunk.as_slices();
                let mut start = [0; LENGTH_END];
                start[..first.len()].copy_from_slice(first);
                start[first.len()..].copy_from_slice(second);
                return length(&start);
            }
            self.readers.at = (self.readers.at + 1) % count;
        }
        None
    }

    fn copy(&mut self, from: usize, to: &mut [u8]) {
        // The writer made the whole packet visible at once.
        let Ok(chunk) = self.ring().read_chunk(from + to.len()) else { return to.fill(0) };
        let (first, second) = chunk.as_slices();
        let in_first = first.get(from..).unwrap_or(&[]);
        let (head, tail) = to.split_at_mut(in_first.len());
        head.copy_from_slice(in_first);
        tail.copy_from_slice(&second[from.saturating_sub(first.len())..]);
    }

    fn pop(&mut self) {
        let Some(len) = self.head_len() else { return };
        overwrite(self.ring(), len);
        self.budget.give_back(len);
        // One packet of each worker after the other.
        self.readers.at = (self.readers.at + 1) % self.readers.rings.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet of `len` bytes that contain `mark`.
    fn packet(len: usize, mark: u8) -> Vec<u8> {
        let mut packet = vec![mark; len];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet
    }

    fn take(queue: &Queue) -> Option<Vec<u8>> {
        let mut reader = queue.reader().unwrap();
        let mut packet = vec![0; reader.head_len()?];
        // In two pieces, as of a cut packet.
        let (head, tail) = packet.split_at_mut(7);
        reader.copy(0, head);
        reader.copy(7, tail);
        reader.pop();
        Some(packet)
    }

    #[test]
    fn packets_come_out_in_order_for_each_worker_and_wrap_around() {
        let queue = Queue::new(2, 400);
        for round in 0..100_u8 {
            for (core, mark) in [(0, round), (0, round + 1), (1, round + 2)] {
                queue.writer(core).unwrap().push(&packet(77, mark)).unwrap();
            }
            let mut left: Vec<Vec<u8>> = std::iter::from_fn(|| take(&queue)).collect();
            let last = left.iter().position(|other| *other == packet(77, round + 2)).unwrap();
            assert!(last < 2, "workers take turns");
            left.remove(last);
            assert_eq!(left, [packet(77, round), packet(77, round + 1)]);
            assert_eq!(queue.len(), 0);
        }
    }

    #[test]
    fn all_workers_together_stay_within_the_limit() {
        let queue = Queue::new(2, 300);
        assert_eq!(queue.limit(), 300);
        queue.writer(0).unwrap().push(&packet(200, 1)).unwrap();
        assert_eq!(queue.writer(1).unwrap().push(&packet(101, 2)), Err(DropReason::QueueFull));
        queue.writer(1).unwrap().push(&packet(100, 2)).unwrap();
        assert_eq!(queue.writer(0).unwrap().push(&packet(20, 1)), Err(DropReason::QueueFull));
        assert_eq!((take(&queue), queue.len()), (Some(packet(200, 1)), 100));
        queue.writer(0).unwrap().push(&packet(200, 3)).unwrap();
    }

    #[test]
    fn a_ring_holds_the_share_of_its_worker_and_memory_stays_near_the_limit() {
        let lens = |workers, limit| {
            let queue = Queue::new(workers, limit);
            let lens: Vec<usize> = queue.writers.iter().map(|ring| ring.lock().unwrap().slots()).collect();
            assert!(lens.len() == workers && lens.iter().all(|len| *len == lens[0]));
            lens[0]
        };
        assert_eq!((lens(1, 25_000_000), lens(4, 25_000_000), lens(64, 25_000_000)), (25_000_000, 6_250_000, 1 << 20));
        assert_eq!(lens(64, 1 << 16), 1 << 16);
        // Within the limit, but beyond the ring.
        let queue = Queue::new(2, 4 << 20);
        let mut writer = queue.writer(0).unwrap();
        let pushed = (0..).take_while(|_| writer.push(&packet(32_768, 1)).is_ok()).count();
        assert_eq!((pushed, queue.len()), (64, 2 << 20), "bytes of a refused packet are given back");
    }

    #[test]
    fn reserved_bytes_are_for_all_packets_or_none() {
        let queue = Queue::new(2, 300);
        let mut writer = queue.writer(0).unwrap();
        assert_eq!(writer.reserve(301), Err(DropReason::QueueFull));
        assert_eq!(writer.reserve(300), Ok(()));
        assert_eq!(queue.writer(1).unwrap().push(&packet(20, 1)), Err(DropReason::QueueFull));
        assert_eq!([200, 100].map(|len| writer.push_reserved(&packet(len, 1))), [Ok(()); 2]);
        assert_eq!(queue.len(), 300);
    }

    #[test]
    fn a_packet_with_another_length_than_its_own_is_refused() {
        let queue = Queue::new(1, 300);
        let mut long = packet(60, 1);
        long.push(0);
        for bytes in [&long[..], &packet(60, 1)[..59], &[0x45, 0], &[], &[0x50; 60]] {
            assert_eq!(queue.writer(0).unwrap().push(bytes), Err(DropReason::Inconsistent));
        }
        assert!(queue.writer(1).is_none() && take(&queue).is_none() && queue.len() == 0);
    }

    #[test]
    fn bytes_are_overwritten_before_the_ring_gives_them_up() {
        let (mut writer, mut reader) = RingBuffer::new(100);
        // Across the end of the ring.
        writer.push_entire_slice(&[1; 80]).unwrap();
        overwrite(&mut reader, 80);
        writer.push_entire_slice(&[7; 60]).unwrap();
        let mut chunk = reader.read_chunk(60).unwrap();
        clear(&mut chunk);
        let (first, second) = chunk.as_slices();
        assert_eq!((first, second), (&[0; 20][..], &[0; 40][..]));
    }
}
