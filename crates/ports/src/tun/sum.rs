//! The Internet checksum over whole payloads, with the widest vectors of the processor: it
//! dominates the cost of segmenting and coalescing in the port. The algorithm is in
//! [`wire::checksum`]; this module selects the instruction set it is compiled for.

#![allow(unsafe_code)]

use wire::checksum::Sum;

/// Adds `bytes` as [`Sum::add`] does.
#[inline]
pub(super) fn add(sum: Sum, bytes: &[u8]) -> Sum {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= WORTH_A_CALL && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the features of the function.
        return unsafe { add_avx2(sum, bytes) };
    }
    sum.add(bytes)
}

/// Minimum length for which wider vectors save more than the call costs.
#[cfg(target_arch = "x86_64")]
const WORTH_A_CALL: usize = 256;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_avx2(sum: Sum, bytes: &[u8]) -> Sum {
    sum.add_here(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_sum_is_that_of_wire(
            bytes in proptest::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 0..600), begun: u32,
        ) {
            let begun = Sum::default().add_u32(begun);
            prop_assert_eq!(add(begun, &bytes).finish(), begun.add(&bytes).finish());
        }
    }

    #[test]
    fn the_largest_packet_does_not_overflow() {
        let bytes = vec![0xff; 65_535];
        assert_eq!(add(Sum::default(), &bytes).finish(), Sum::default().add(&bytes).finish());
    }
}
