//! The engines against each other: for a batch of operations, valid or invalid, every engine should
//! return the same result.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| weir_fuzz::engines(input));
