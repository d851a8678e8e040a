//! One peer of the key service of PSP behind its messages, see `gateway::fuzzing::psp_peer`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| gateway::fuzzing::psp_peer(input));
