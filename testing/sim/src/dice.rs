//! Chance that repeats.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// Random decisions of one seed.
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// The same decisions for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.0.next_u64()) * n as u128) >> 64) as usize
    }

    /// True so many times in 1000.
    pub fn chance(&mut self, per_mille: usize) -> bool {
        self.below(1000) < per_mille
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A time in `low..high`, in milliseconds.
    pub fn ms(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(low + self.below((high - low) as usize) as u64)
    }
}
