//! Two IKE endpoints against each other, driven by the input: datagrams of strangers, changed ones, and what a peer with
//! the keys may send, before authentication and after it (see `ike::testkit::drive` for the format).

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| ike::testkit::drive(input));
