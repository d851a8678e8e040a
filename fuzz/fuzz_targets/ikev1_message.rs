//! Messages of IKEv1: the decoders, and two endpoints that receive them in each state, in clear
//! text or under their own keys (see `ike::testkit::drive_v1` for the format).

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| ike::testkit::drive_v1(input));
