//! Files with private keys: PEM, PKCS #8 with and without a passphrase, PKCS #12, see
//! `gateway::fuzzing::private_key`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| gateway::fuzzing::private_key(input));
