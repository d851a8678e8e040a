//! The fuzz target `engines` over inputs of a generator, so that every test run goes through some.

// The fuzz crate has it under this name.
extern crate weir_crypto as crypto;

#[path = "../../../fuzz/src/engines.rs"]
#[allow(unreachable_pub)]
mod target;

#[test]
fn engines_agree_on_whatever_comes() {
    // SplitMix64; a failure is repeated by its number.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    };
    for n in 0..1500 {
        let len = (next() % 900) as usize;
        let input: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        if let Err(panic) = std::panic::catch_unwind(|| target::engines(&input)) {
            eprintln!("input {n}: {input:02x?}");
            std::panic::resume_unwind(panic);
        }
    }
}
