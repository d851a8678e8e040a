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

const KEYMAT: [(&str, &str); 2] = [
    ("keymat/v1.rs", include_str!("../../../ike/src/keymat/v1.rs")),
    ("keymat.rs", include_str!("../../../ike/src/keymat.rs")),
];

/// The function of the key material that a record was called from; empty for other files.
fn function(record: &Record) -> &'static str {
    let Some((_, text)) = KEYMAT.iter().find(|(file, _)| record.at.file().ends_with(file)) else { return "" };
    let lines = text.lines().take(record.at.line() as usize);
    let name = |line: &'static str| {
        let (before, after) = line.split_once("fn ")?;
        let is_item = before.trim().split(' ').all(|word| word.is_empty() || word.starts_with("pub"));
        is_item.then(|| after.split(['(', '<']).next().unwrap_or_default())
    };
    lines.filter_map(name).last().unwrap_or_default()
}

/// Rows of one end, in ticks: indexed as [`ROWS`].
pub(super) fn ticks(records: &[Record]) -> [f64; ROWS.len()] {
    let mut rows = [0.0; ROWS.len()];
    let (mut quick, mut ivs, mut decrypted) = (false, 0, 0);
    for record in records {
        let function = function(record);
        // The second IV is that of quick mode (RFC 2409 appendix B).
        ivs += usize::from(function == "first_block");
        quick |= record.at.file().ends_with("v1/quick.rs")
            || ivs > 1
            || matches!(function, "hash_1" | "hash_2" | "hash_3" | "quick_mode");
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
            (Operation::Prf, _) => of_prf(function, record),
            (Operation::Hash | Operation::Random | Operation::KeCheck, _) => "other",
        };
        let at = ROWS.iter().position(|(key, _)| *key == row).expect("a row of the table");
        rows[at] += record.ticks as f64;
    }
    rows
}

fn of_prf(function: &str, record: &Record) -> &'static str {
    match function {
        "skeyid_psk" | "skeyid_signature" | "cipher_key" => "p1_keys",
        // Of IKEv1 and IKEv2.
        "derive" | "skeyseed" | "skeyseed_rekey" | "after_intermediate" | "mix_ppk" | "expand" => "p1_keys",
        "hash_phase1" | "auth_octets" | "psk_auth" | "chain" => "p1_hash",
        "hash_1" => "p2_hash_1",
        "hash_2" => "p2_hash_2",
        "hash_3" => "p2_hash_3",
        "quick_mode" => "p2_keys",
        // The proof of a signature, and prf(SK_p, IDx') of IKEv2.
        _ if ["sessions/rows.rs", "handshake/secured.rs"].iter().any(|file| record.at.file().ends_with(file)) => {
            "p1_hash"
        }
        _ => "other",
    }
}
