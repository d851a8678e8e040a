//! Super-packets of the TUN queue, cut and joined, see `weir_fuzz::super_packets`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| weir_fuzz::super_packets(input));
