//! The engines against each other: what one makes of a batch of operations, fitting or not, every other one has to
//! make of it too.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| weir_fuzz::engines(input));
