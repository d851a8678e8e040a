//! Control connections of the key service of PSP behind and before TLS, see
//! `gateway::fuzzing::psp_link`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| gateway::fuzzing::psp_link(input));
