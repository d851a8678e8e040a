//! Project Wycheproof, as far as its parameters are those of IPsec: the right tag and nonce
//! lengths for AEADs, the truncations of RFC 4868 for HMAC; where Wycheproof has longer tags than
//! IPsec, the valid ones are cut.

use ::wycheproof::{TestResult, aead, cipher, mac};
use weir_crypto::{EncAlg, IntegKind, Suite};

use super::{Rig, esp, iv};

/// Runs the tests of a set with nonces of `salt + 8` bytes and tags of 16.
fn aead_set(set: aead::TestName, nonce_len: usize, suite: impl Fn(usize) -> String) -> usize {
    let mut ran = 0;
    for group in aead::TestSet::load(set).expect("a test set").test_groups {
        if group.nonce_size != nonce_len * 8 || group.tag_size != 128 {
            continue;
        }
        let suite = esp(&suite(group.key_size));
        let salt_len = suite.enc.map_or(0, |enc| enc.salt_len);
        for test in group.tests {
            let (salt, nonce) = test.nonce.split_at(salt_len);
            let rig = Rig::new(suite, &[&test.key[..], salt].concat(), &[]);
            let (op, mut packet) = rig.layout(0, &test.aad, iv(nonce), &test.ct, &test.tag);
            let opened = rig.open(op, &mut packet);
            assert_eq!(opened, !test.result.must_fail(), "{set:?} {}", test.tc_id);
            if opened {
                assert_eq!(packet[op.body.range()], test.pt[..], "{set:?} {}", test.tc_id);
                let sealed = rig.check(0, &test.aad, iv(nonce), &test.pt);
                assert_eq!(sealed, (test.ct.to_vec(), test.tag.to_vec()), "{set:?} {}", test.tc_id);
            }
            ran += 1;
        }
    }
    ran
}

#[test]
fn aes_gcm() {
    assert_eq!(aead_set(aead::TestName::AesGcm, 12, |bits| format!("aes{bits}gcm16")), 197);
}

#[test]
fn aes_ccm() {
    assert_eq!(aead_set(aead::TestName::AesCcm, 11, |bits| format!("aes{bits}ccm16")), 18);
}

#[test]
fn chacha20_poly1305() {
    assert_eq!(aead_set(aead::TestName::ChaCha20Poly1305, 12, |_| "chacha20poly1305".to_owned()), 316);
}

/// Runs the tests of a MAC set with matching key lengths. Tags of our length must give the result
/// of the set; longer valid tags are truncated.
fn mac_set(set: mac::TestName, suite: Suite) -> usize {
    let mut ran = 0;
    for group in mac::TestSet::load(set).expect("a test set").test_groups {
        if group.key_size != suite.integ_material_len() * 8 || group.tag_size < suite.icv_len() * 8 {
            continue;
        }
        let exact = group.tag_size == suite.icv_len() * 8;
        for test in group.tests.into_iter().filter(|test| exact || test.result == TestResult::Valid) {
            let rig = Rig::new(suite, &[], &test.key);
            let (op, mut packet) = rig.layout(0, &test.msg, [0; 16], &[], &test.tag[..suite.icv_len()]);
            assert_eq!(rig.open(op, &mut packet), !test.result.must_fail(), "{set:?} {}", test.tc_id);
            ran += 1;
        }
    }
    ran
}

#[test]
fn macs() {
    use mac::TestName::{AesCmac, HmacSha1, HmacSha256, HmacSha384, HmacSha512};
    for suite in Suite::all_ah() {
        let set = match suite.integ.expect("AH has a MAC").kind {
            IntegKind::HmacSha1 => HmacSha1,
            IntegKind::HmacSha256 => HmacSha256,
            IntegKind::HmacSha384 => HmacSha384,
            IntegKind::HmacSha512 => HmacSha512,
            IntegKind::AesCmac => AesCmac,
            // Wycheproof has neither.
            IntegKind::HmacMd5 | IntegKind::AesXcbc => continue,
        };
        assert!(mac_set(set, suite) > 20, "{suite}");
    }
}

#[test]
fn aes_cbc() {
    let mut ran = 0;
    for group in cipher::TestSet::load(cipher::TestName::AesCbcPkcs5).expect("a test set").test_groups {
        let name = EncAlg::by_id(12, group.key_size / 8).expect("an AES key length").name;
        // The set pads as PKCS #7 has it; what is invalid is so for its padding, no matter of ours.
        for test in group.tests.into_iter().filter(|test| test.result == TestResult::Valid) {
            let rig = Rig::new(esp(&format!("{name}-sha256")), &test.key, &[1; 32]);
            let pad = 16 - test.pt.len() % 16;
            let clear = [&test.pt[..], &vec![pad as u8; pad]].concat();
            assert_eq!(rig.check(0, &[], iv(&test.nonce), &clear).0, test.ct[..], "{}", test.tc_id);
            ran += 1;
        }
    }
    assert_eq!(ran, 72);
}
