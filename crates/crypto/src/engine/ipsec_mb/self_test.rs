//! Self-test of the library before its first use.
//!
//! The library's own test runs functions that nothing else calls (AES-GCM in pieces), which are
//! left out of the binary, and none of ChaCha20-Poly1305, DES, MD5 and AES-XCBC. This one seals
//! with every cipher and every MAC, compares the packets with those of AWS-LC, and opens them, by
//! the calls that packets take on this processor.

use std::sync::Arc;

use super::sys::Library;
use super::{expand_with, open_by, seal_by};
use crate::engine::protect::State;
use crate::{Aad, CryptoOp, DerivedKeys, EncAlg, IntegAlg, Job, Key, KeyId, KeyMaterial, KeyTable, Keys, Span, Suite};

/// Packets of a burst: enough for every row of the selection, and lanes that end at different
/// times.
const PACKETS: usize = 20;
/// Bytes of the longest body, above every limit of the selection, and a multiple of every block.
const BODY: usize = 640;
/// Difference between the bodies of a burst: a multiple of every block, too.
const STEP: usize = 16;

/// Returns whether the library computes what AWS-LC computes.
pub(super) fn passes(library: &Library) -> bool {
    suites().all(|suite| is_right(library, &suite))
}

/// Returns whether the library computes what AWS-LC computes with `suite`.
fn is_right(library: &Library, suite: &Suite) -> bool {
    let bytes = |len, seed: u8| (0..len).map(|i| (i as u8).wrapping_mul(29) ^ seed).collect::<Vec<u8>>();
    let (enc, integ) = (bytes(suite.enc_material_len(), 0x11), bytes(suite.integ_material_len(), 0x77));
    let material = KeyMaterial { enc: &enc, integ: &integ };
    agree(library, suite, [material; 2]).unwrap_or(false)
}

/// Every AEAD, every other cipher with one MAC, and every MAC alone.
fn suites() -> impl Iterator<Item = Suite> {
    let paired = |enc: &'static EncAlg| if enc.kind.is_aead() { None } else { IntegAlg::by_name("sha256") };
    EncAlg::all().map(move |enc| Suite { enc: Some(enc), integ: paired(enc) }).chain(Suite::all_ah())
}

/// Packets of ESP's shape: 8 bytes of header, IV, body, ICV.
fn packets(suite: &Suite) -> Vec<(CryptoOp, Vec<u8>)> {
    let gmac = suite.is_aead() && !suite.is_confidential();
    let covered = gmac || suite.integ.is_some();
    let packet = |i: usize| {
        let at = 8 + suite.iv_len();
        let end = at + BODY - STEP * i;
        let icv = end + suite.icv_len();
        let op = CryptoOp {
            key: KeyId(0),
            aad: Aad::InPlace(Span::new(0, if covered { end } else { 8 })),
            body: if gmac || suite.enc.is_none() { Span::default() } else { Span::new(at, end) },
            icv: Span::new(end, icv),
            iv: std::array::from_fn(|byte| (byte * 16 + i) as u8),
        };
        (op, (0..icv).map(|byte| (byte * 7 + i) as u8).collect())
    };
    (0..PACKETS).map(packet).collect()
}

/// Returns whether both seal the same packets, the library with the first key material, and whether
/// the library opens these and no others. `None`: a key cannot be made.
fn agree(library: &Library, suite: &Suite, [material, other]: [KeyMaterial<'_>; 2]) -> Option<bool> {
    let icv_len = suite.icv_len();
    let reference = State::new(suite, other)?;
    let state = expand_with(library, suite, material, State::new(suite, material)?);
    let mut table = KeyTable::default();
    table.insert(Arc::new(Key { suite: *suite, icv_len, state, device: None }));
    let derived = DerivedKeys::new(0);
    let keys = Keys { table: &table, derived: &derived };

    let plain = packets(suite);
    let mut sealed = plain.clone();
    let mut jobs: Vec<Job<'_>> = sealed.iter_mut().map(|(op, packet)| Job::new(*op, packet)).collect();
    seal_by(keys, &mut jobs, &library.selection);
    let all_sealed = jobs.iter().all(Job::sealed);
    let same = plain.iter().zip(&sealed).all(|((op, packet), (_, by_library))| {
        let mut packet = packet.clone();
        reference.seal(op, &mut packet, icv_len) && packet == *by_library
    });

    // The last bit of every second one is changed.
    sealed.iter_mut().step_by(2).filter_map(|(_, packet)| packet.last_mut()).for_each(|byte| *byte ^= 1);
    let mut jobs: Vec<Job<'_>> = sealed.iter_mut().map(|(op, packet)| Job::new(*op, packet)).collect();
    open_by(keys, &mut jobs, &library.selection);
    let verified: Vec<bool> = jobs.iter_mut().map(|job| job.take_ok().is_some()).collect();
    let opened = (0..PACKETS).all(|i| {
        let ((op, packet), (_, by_library)) = (&plain[i], &sealed[i]);
        let body = op.body.start as usize..op.body.end as usize;
        if i % 2 == 0 { !verified[i] } else { verified[i] && packet[body.clone()] == by_library[body] }
    });
    Some(all_sealed && same && opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_in_any_suite_is_noticed() {
        let Some(library) = Library::get() else { return };
        let mut count = 0;
        for suite in suites() {
            let (enc, integ) = (vec![5; suite.enc_material_len()], vec![6; suite.integ_material_len()]);
            // The first byte: no bit of parity, and not of the salt.
            let (mut enc_other, mut integ_other) = (enc.clone(), integ.clone());
            enc_other.iter_mut().take(1).for_each(|byte| *byte ^= 0x80);
            integ_other.iter_mut().take(1).for_each(|byte| *byte ^= 0x80);
            let own = KeyMaterial { enc: &enc, integ: &integ };
            assert_eq!(agree(library, &suite, [own; 2]), Some(true), "{suite}");
            let others = [KeyMaterial { enc: &enc_other, ..own }, KeyMaterial { integ: &integ_other, ..own }];
            for (other, len) in others.into_iter().zip([enc.len(), integ.len()]) {
                if len > 0 {
                    assert_eq!(agree(library, &suite, [own, other]), Some(false), "{suite}");
                    count += 1;
                }
            }
        }
        assert!(count > 20, "{count} keys");
    }

    /// A library that fails would silently leave all packets to AWS-LC.
    #[test]
    fn the_library_is_right_where_the_processor_can_run_it() {
        let library = Library::load();
        assert_eq!(library.is_some(), is_x86_feature_detected!("avx2") && is_x86_feature_detected!("aes"));
        let Some(library) = library else { return };
        let wrong: Vec<_> =
            suites().filter(|suite| !is_right(&library, suite)).map(|suite| suite.to_string()).collect();
        assert!(wrong.is_empty(), "intel-ipsec-mb {} of {}: {wrong:?}", library.version, library.arch);
        assert!(Library::get().is_some());
    }
}
