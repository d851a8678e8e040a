//! Certificates, revocation lists, PKCS #7 messages and EAP packets of strangers.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| credentials::parse_anything(bytes));
