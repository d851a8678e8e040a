//! The key service of PSP behind its control connections, see `gateway::fuzzing::psp_service`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| gateway::fuzzing::psp_service(input));
