//! Position of the stack, which decides whether stores to it and loads of a batch collide.
//!
//! A load waits for an earlier store to an address with the same lower 12 bits. Stack and buffers
//! have random addresses, so that in one of about forty processes a hot variable of the stack meets
//! a hot line of a buffer so: each packet then takes 10 % longer, and another process cannot
//! repeat it. Work that is repeated at several depths of the stack is slow at one of them only.

use std::mem::MaybeUninit;

/// Depths, of about 256 bytes each: a page in all.
const DEPTHS: usize = 16;

/// Calls `work` with the stack at another depth for each of so many successive `turn`s.
pub fn at_depth<R>(turn: usize, mut work: impl FnMut() -> R) -> R {
    deeper(turn % DEPTHS, &mut work)
}

#[inline(never)]
fn deeper<R>(steps: usize, work: &mut dyn FnMut() -> R) -> R {
    // Not written: that would take the place of other lines in the cache.
    let unused = MaybeUninit::<[u8; 192]>::uninit();
    std::hint::black_box(&unused);
    let result = if steps == 0 { work() } else { deeper(steps - 1, work) };
    std::hint::black_box(&unused);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_spread_over_a_page() {
        let place = || {
            let here = 0_u8;
            std::ptr::from_ref(std::hint::black_box(&here)).addr()
        };
        let places: Vec<usize> = (0..=DEPTHS).map(|turn| at_depth(turn, place)).collect();
        assert_eq!(places[0], places[DEPTHS], "they repeat");
        let steps: Vec<usize> = places[..DEPTHS].windows(2).map(|pair| pair[0] - pair[1]).collect();
        assert!(steps.iter().all(|step| *step == steps[0] && (200..700).contains(step)), "{steps:?}");
    }
}
