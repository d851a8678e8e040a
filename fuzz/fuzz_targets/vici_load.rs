//! Messages of vici commands that load connections, pools, authorities and secrets, see
//! `gateway::fuzzing::vici_load`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| gateway::fuzzing::vici_load(input));
