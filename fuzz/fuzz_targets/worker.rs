//! A whole worker, and nothing in the clear (see `weir_fuzz::worker` for the format).

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| weir_fuzz::worker(input));
