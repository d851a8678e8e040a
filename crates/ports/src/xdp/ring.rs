//! The rings between an AF_XDP socket and the kernel: one side writes entries, the other takes
//! them, each has its own 32-bit counter, which wraps.

use super::sync::{AtomicU32, Ordering};

/// Memory of a ring.
pub(crate) trait Memory {
    /// Entry type.
    type Entry: Copy;
    /// Entries written so far.
    fn producer(&self) -> &AtomicU32;
    /// Entries taken so far.
    fn consumer(&self) -> &AtomicU32;
    /// Entries, a power of two.
    fn size(&self) -> u32;
    /// Writes an entry. `at` must be below the size and owned by this side.
    fn write(&self, at: u32, entry: Self::Entry);
    /// Reads an entry. `at` must be below the size and owned by this side.
    fn read(&self, at: u32) -> Self::Entry;
}

/// Writing side.
pub(crate) struct Producer<M> {
    pub(crate) memory: M,
    /// Entries written so far, published or not.
    next: u32,
    /// Cached value of the other side's counter.
    taken: u32,
}

/// Reading side.
pub(crate) struct Consumer<M> {
    pub(crate) memory: M,
    /// Entries taken so far, published or not.
    next: u32,
    /// Cached value of the other side's counter.
    written: u32,
}

impl<M: Memory> Producer<M> {
    pub(crate) fn new(memory: M) -> Self {
        let next = memory.producer().load(Ordering::Relaxed);
        let taken = memory.consumer().load(Ordering::Acquire);
        Self { memory, next, taken }
    }

    /// Writes an entry, for [`Producer::publish`]; false when the ring is full.
    pub(crate) fn put(&mut self, entry: M::Entry) -> bool {
        let size = self.memory.size();
        if self.next.wrapping_sub(self.taken) == size {
            self.taken = self.memory.consumer().load(Ordering::Acquire);
            if self.next.wrapping_sub(self.taken) == size {
                return false;
            }
        }
        self.memory.write(self.next & (size - 1), entry);
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Publishes the written entries to the other side.
    pub(crate) fn publish(&mut self) {
        self.memory.producer().store(self.next, Ordering::Release);
    }

    /// Entries that the other side has not taken yet.
    pub(crate) fn pending(&mut self) -> u32 {
        self.taken = self.memory.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.taken)
    }
}

impl<M: Memory> Consumer<M> {
    pub(crate) fn new(memory: M) -> Self {
        let next = memory.consumer().load(Ordering::Relaxed);
        let written = memory.producer().load(Ordering::Acquire);
        Self { memory, next, written }
    }

    /// Takes an entry; its slot is released by [`Consumer::release`].
    pub(crate) fn take(&mut self) -> Option<M::Entry> {
        if self.written == self.next {
            self.written = self.memory.producer().load(Ordering::Acquire);
            if self.written == self.next {
                return None;
            }
        }
        let entry = self.memory.read(self.next & (self.memory.size() - 1));
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Releases the slots of the taken entries.
    pub(crate) fn release(&mut self) {
        self.memory.consumer().store(self.next, Ordering::Release);
    }
}
