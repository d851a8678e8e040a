//! Two IKE endpoints against each other, driven by the input: arbitrary and mutated datagrams, and
//! messages of a peer with the keys, before and after authentication (see `ike::testkit::drive` for
//! the format).

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| ike::testkit::drive(input));
