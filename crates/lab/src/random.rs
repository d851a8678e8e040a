//! Randomness of endpoints.

/// Randomness of a provider by its function, e.g. that of the operating system, or one that is
/// timed or counted.
pub(crate) struct Random(pub(crate) fn(&mut [u8]));

impl rand_core::RngCore for Random {
    fn next_u32(&mut self) -> u32 {
        rand_core::impls::next_u32_via_fill(self)
    }

    fn next_u64(&mut self) -> u64 {
        rand_core::impls::next_u64_via_fill(self)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        self.0(bytes);
    }
}

impl rand_core::CryptoRng for Random {}
