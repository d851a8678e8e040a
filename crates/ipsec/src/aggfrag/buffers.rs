//! Reassembly buffers of a worker.

use super::{MAX_INNER, MAX_REASSEMBLY_BUFFERS};

/// Reassembly buffers that the SAs of a worker share, allocated on first use and then reused.
pub struct Buffers {
    free: Vec<Box<[u8]>>,
    /// Buffers in use and in `free`.
    allocated: usize,
    limit: usize,
}

impl Default for Buffers {
    fn default() -> Self {
        Self::new()
    }
}

impl Buffers {
    /// An empty pool for at most [`MAX_REASSEMBLY_BUFFERS`] buffers.
    pub const fn new() -> Self {
        Self::with_limit(MAX_REASSEMBLY_BUFFERS)
    }

    /// An empty pool for at most `limit` buffers of [`MAX_INNER`] bytes.
    pub const fn with_limit(limit: usize) -> Self {
        Self { free: Vec::new(), allocated: 0, limit }
    }

    pub(super) fn take(&mut self) -> Option<Box<[u8]>> {
        if let Some(buffer) = self.free.pop() {
            return Some(buffer);
        }
        if self.allocated == self.limit {
            return None;
        }
        self.allocated += 1;
        Some(vec![0; MAX_INNER].into_boxed_slice())
    }

    pub(super) fn give(&mut self, buffer: Box<[u8]>) {
        self.free.push(buffer);
    }

    /// Buffers in use.
    pub fn in_use(&self) -> usize {
        self.allocated - self.free.len()
    }
}
