//! Rows of the paper's Table 1: which operation of a set-up a record of the stopwatch is.
//!
//! The kind of an operation and the function of the protocol that called it decide: a PRF makes
//! keys in one function and a hash in another. Functions are found by the line of the caller in the
//! sources of `weir-ike`, which this crate is built with.

use lab_crypto::ike::{Prf, Secret};
use lab_crypto::meter::{Operation, Record};

/// Rows in the order of the table: key in trials, and name. Those of phase 2 are of IKEv1 alone.
pub(crate) const ROWS: [(&str, &str); 17] = [
    ("p1_dh_generate", "P1 DH, key pair"),
    ("p1_dh_agree", "P1 DH, shared secret"),
    ("p1_keys", "P1 key generation"),
    ("p1_decrypt", "P1 decryption"),
    ("p1_verify", "P1 signature verification"),
    ("p1_hash", "P1 hashes of both ends"),
    ("p1_sign", "P1 signature generation"),
    ("p1_encrypt", "P1 encryption"),
    ("p2_decrypt", "P2 decryption, message 1 (2)"),
    ("p2_hash_1", "P2 hash of message 1"),
    ("p2_dh", "P2 DH, both halves"),
    ("p2_hash_2", "P2 hash of message 2"),
    ("p2_encrypt", "P2 encryption"),
    ("p2_decrypt_3", "P2 decryption, message 3"),
    ("p2_hash_3", "P2 hash of message 3"),
    ("p2_keys", "P2 key generation"),
    ("other", "other: nonces, IVs, NAT detection"),
];

/// HASH_I or HASH_R of a signature (RFC 2409 §5.1). A function of its own, so that its caller is
/// known.
pub(super) fn proof(prf: Prf, skeyid: &[u8], covered: &[u8], id: &[u8]) -> Secret {
    prf.compute(skeyid, &[covered, id])
}

/// Sources of the key material, with the ends of their paths.
const KEYMAT: [(&str, &str); 2] = [
    ("keymat/v1.rs", include_str!("../../../ike/src/keymat/v1.rs")),
    ("keymat.rs", include_str!("../../../ike/src/keymat.rs")),
];
/// Functions of these sources that call a PRF during a set-up, with their rows. Those of IKEv1 come
/// first.
const PRF_FUNCTIONS: [(&str, &str); 15] = [
    ("skeyid_psk", "p1_keys"),
    ("skeyid_signature", "p1_keys"),
    ("derive", "p1_keys"),
    ("cipher_key", "p1_keys"),
    ("hash_phase1", "p1_hash"),
    ("hash_1", "p2_hash_1"),
    ("hash_2", "p2_hash_2"),
    ("hash_3", "p2_hash_3"),
    ("quick_mode", "p2_keys"),
    // IKEv2.
    ("skeyseed", "p1_keys"),
    ("after_intermediate", "p1_keys"),
    ("expand", "p1_keys"),
    ("auth_octets", "p1_hash"),
    ("psk_auth", "p1_hash"),
    ("chain", "p1_hash"),
];
/// Function that hashes an IV (RFC 2409 appendix B): first that of phase 1, then that of quick
/// mode.
const IV: &str = "first_block";
/// Source of quick mode.
const QUICK: &str = "v1/quick.rs";
/// Other sources that call a PRF for a proof: of signatures ([`proof`]), and prf(SK_p, IDx') of
/// IKEv2.
const PROOFS: [&str; 2] = ["sessions/rows.rs", "handshake/secured.rs"];

/// The function of the key material that a record was called from; empty for other files.
fn function(record: &Record) -> &'static str {
    let Some((_, text)) = KEYMAT.iter().find(|(file, _)| record.at.file().ends_with(file)) else { return "" };
    text.lines().take(record.at.line() as usize).filter_map(defined).last().unwrap_or_default()
}

/// Name of the function whose definition begins in a line.
fn defined(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_item = before.split_whitespace().all(|word| word == "const" || word.starts_with("pub"));
    is_item.then(|| after.split(['(', '<']).next().unwrap_or_default())
}

/// Rows of one end, in ticks: indexed as [`ROWS`].
pub(super) fn ticks(records: &[Record]) -> [f64; ROWS.len()] {
    let mut rows = [0.0; ROWS.len()];
    let (mut quick, mut ivs, mut decrypted) = (false, 0, 0);
    for record in records {
        let function = function(record);
        // The second IV is that of quick mode (RFC 2409 appendix B).
        ivs += usize::from(function == IV);
        let of_function = PRF_FUNCTIONS.iter().find(|(name, _)| *name == function).map(|(_, row)| *row);
        quick |= record.at.file().ends_with(QUICK) || ivs > 1 || of_function.is_some_and(|row| row.starts_with("p2_"));
        let row = match (record.operation, quick) {
            (Operation::KeGenerate, false) => "p1_dh_generate",
            (Operation::KeAgree, false) => "p1_dh_agree",
            (Operation::KeGenerate | Operation::KeAgree, true) => "p2_dh",
            (Operation::KeyExpand, _) => "p1_keys",
            (Operation::Encrypt, false) => "p1_encrypt",
            (Operation::Encrypt, true) => "p2_encrypt",
            (Operation::Decrypt, false) => "p1_decrypt",
            (Operation::Decrypt, true) => {
                decrypted += 1;
                if decrypted == 1 { "p2_decrypt" } else { "p2_decrypt_3" }
            }
            (Operation::Sign, _) => "p1_sign",
            (Operation::Verify, _) => "p1_verify",
            (Operation::Prf, _) => of_function.unwrap_or_else(|| of_file(record.at.file())),
            (Operation::Hash | Operation::Random | Operation::KeCheck, _) => "other",
        };
        let at = ROWS.iter().position(|(key, _)| *key == row).expect("a row of the table");
        rows[at] += record.ticks as f64;
    }
    rows
}

/// Row of a PRF that no function of the key material called.
fn of_file(file: &str) -> &'static str {
    if PROOFS.iter().any(|end| file.ends_with(end)) { "p1_hash" } else { "other" }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A function that is renamed would silently move to the row 'other'.
    #[test]
    fn functions_are_defined_in_the_sources() {
        let sources = KEYMAT.map(|(_, text)| text.split("mod tests {").next().unwrap()).concat();
        for name in PRF_FUNCTIONS.iter().map(|(name, _)| *name).chain([IV]) {
            assert!(sources.lines().any(|line| defined(line) == Some(name)), "{name}");
            let definitions = [format!("fn {name}("), format!("fn {name}<")];
            assert!(definitions.iter().any(|text| sources.contains(text)), "{name}");
        }
        for (name, row) in PRF_FUNCTIONS {
            assert!(ROWS.iter().any(|(key, _)| *key == row), "{name}: {row}");
        }
    }

    #[test]
    fn sources_exist() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let ends = KEYMAT.iter().map(|(end, _)| *end).chain([QUICK]).chain(PROOFS);
        for end in ends {
            let found = ["ike/src", "lab/src"].iter().any(|folder| crates.join(folder).join(end).is_file());
            assert!(found, "{end}");
        }
    }

    #[test]
    fn definitions_are_found_with_any_visibility() {
        for (line, name) in [
            ("fn chain(prf: Prf) -> Vec<u8> {", Some("chain")),
            ("    pub fn hash_1(&self) {", Some("hash_1")),
            ("fn expand<const N: usize>(", Some("expand")),
            ("pub const fn iv() -> u8 {", Some("iv")),
            ("    pub(crate) const fn iv() -> u8 {", Some("iv")),
            ("fn feed_back(len: usize, next: impl Fn(u8) -> u8) {", Some("feed_back")),
            ("/// The fn that calls.", None),
            ("let next = 1;", None),
        ] {
            assert_eq!(defined(line), name, "{line}");
        }
    }
}
