//! Commands of the control socket other than those that load, see
//! `gateway::fuzzing::vici_commands`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| gateway::fuzzing::vici_commands(input));
