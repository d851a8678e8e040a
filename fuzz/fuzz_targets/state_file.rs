//! State files with sequence numbers, see `gateway::fuzzing::state_file`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| gateway::fuzzing::state_file(input));
