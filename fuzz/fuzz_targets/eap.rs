//! A client and a server of EAP against each other, see `gateway::fuzzing::eap`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| gateway::fuzzing::eap(input));
