//! Super-packets of the TUN queue, cut and joined, see `weir_fuzz::gso_counters`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| weir_fuzz::gso_counters(input));
