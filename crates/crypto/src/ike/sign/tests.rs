//! Keys in every encoding, what each can sign, and signatures that only a lenient verifier takes.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaPair, KeySize};
use aws_lc_rs::signature::{ECDSA_P521_SHA512_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair};
use std::sync::LazyLock;

use super::super::tests::unhex;
use super::*;

const DATA: [&[u8]; 3] = [b"signed ", b"", b"data"];

/// Throw-away keys: SEC 1 with named curves, PKCS #1, and what must be refused.
const P256_SEC1: &str = "307702010104207bb4dd30523aebc6a514786305547bebcd0e96869528674ec16861074e7fae8da00a06082a86\
    48ce3d030107a14403420004e7bea4492d7ae9fe97979be1bc9e3ca5eb7e7c1b44c01448aab586b705d79cd84fad14358e5087a07110398cd9\
    23bb844dd3f5325fa0c3d7b8e4dbc66d013753";
const P384_SEC1: &str = "3081a40201010430afb7487557bc55654212cf0fd77b515aca8b78369c0fe4f55012337b2627acd39cdba0e5a1\
    78f9875fc3d2186fe526dba00706052b81040022a1640362000471ce991fc312028f72a3084e8c9e2c4323412ddc8b596bcd5d7e396f091b3a\
    189a422eda02ba1b280b2691830f9da06604f6e3109cecfbc6d10bab831bb63bf42c7f7b763ffe8f0415e54acabd27624b07ed98c4b17726b2\
    105fca16b8eb18ec";
const P256_EXPLICIT: &str = "3082016802010104202b48ac813070e7036ec0fefa14116f28b447b92a852fe1f7337861ae4f9ec3dba081\
    fa3081f7020101302c06072a8648ce3d0101022100ffffffff00000001000000000000000000000000ffffffffffffffffffffffff305b0420\
    ffffffff00000001000000000000000000000000fffffffffffffffffffffffc04205ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0\
    f63bce3c3e27d2604b031500c49d360886e704936a6678e1139d26b7819f7e900441046b17d1f2e12c4247f8bce6e563a440f277037d812deb\
    33a0f4a13945d898c2964fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5022100ffffffff00000000ffffffff\
    ffffffffbce6faada7179e84f3b9cac2fc632551020101a144034200040d32e7d002d7c7ae5dedd4d1ea89652bc474841e5895830489987c81\
    a599d1d0b6cf0990522c8f4f5b9fecc73fa8186d211c42db9a0f657c05f122c606bc78be";
const RSA1024_PKCS1: &str = "3082025c02010002818100cb048ce0af908c7295231caaa905281d81c78620dbbff28fe8e568c5600302b7\
    5c4dd01a3d988593fabfe56bf59066b70ad5791fb6383d5f0b2b9d0d2b85b23038f72819631abd7aeae06fab4bd62a56b3229a1118ec58047d\
    871f64ffb7ddd1d5c8aaed745ff2f6e9137661c5a8237deb0b6ac3a64956ccb59d49f4b16be679020301000102818008736009da450213a2f1\
    9b37df613f923adcbb5092d5229baaee21b65590ca84276b75c621da3f753172db71eafedfc7aec3c40ef5ded16f2b5fdd61b6f611bcad0a40\
    569c97ef048979f7909cb88807776796c3983ed418cb7edba8a67296874ff06ba70656fe868085e516da1322c5950a8dc55c91bdfb15efbf22\
    a6eb6021024100fe783bf1fd0662c5628bd4ea0f53f7eebf8613430d44151b4bbc090702068b4c4d2a01c41e876b004d98a9868c5c7022b42c\
    0c7caf3dc82e87df98804716de9f024100cc3d1a9e4d711b3a5dadd812aa022063801651343cfa6f3d509b1eabde9bd5b8ba3177aa46442e1c\
    3bb955cb8970081f2c59794fc113936b830f0c118049dbe702405fca26d69ae6b27b96f3083ceb74325a5f223b51fc466aa391c8c0a530b001\
    f3c1005515dc60217945bc77e43c25f7d838767464e31aa0a6536369e6afdbfe0502410093f9b59e7a67779dcb1fd88c7546c326b437f72fcc\
    fa79bc47f98bb864ba2d9800b73487570fb104ddb4c3578bc572ecfb19fc8def4afaa58bb84c3b25e2dd8302404075f6e00ed0127f4bd6998c\
    64ae34a048ce0b61af89e67d1430c25273b540483e4bcec0145c9d2e00a2e73a210d598879f398e7e0def0684a4016217d7ffdcd";
const ED448_PKCS8: &str = "3047020100300506032b6571043b043975c2c48b38f12a523ea2e4837b4ca155ba29a646741aa1dcdd56b9ca\
    7f41c066274e32f5ffe3045e082a69c76feeb39f732bfef03941b174c0";
const RSA512_SPKI: &str = "305c300d06092a864886f70d0101010500034b003048024100bdfb49e425812fcfb51fcd8522a36ac33322c9\
    7a89f295e648fef00c9f2a41370b725fb8be267f59b6514a31b12aeed0654bf06a6225e90e9e9d26a86d8b333d0203010001";
const P224_SPKI: &str = "304e301006072a8648ce3d020106052b81040021033a0004aef1a4cb183d41ea6cac3eff74634bce05fc1f88b3\
    e576210cde5670aa4871ca07887bbdae438a19d1cc67b3a00748a89cb602a225daba7f";

fn sec1(hex: &str) -> PrivateKey {
    PrivateKey::from_der(&unhex(hex)).unwrap_or_else(|fault| panic!("{fault}"))
}

static RSA2048: LazyLock<PrivateKey> = LazyLock::new(|| {
    use aws_lc_rs::encoding::AsDer;
    let pair = RsaPair::generate(KeySize::Rsa2048).expect("a key pair");
    PrivateKey::from_der(pair.as_der().expect("PKCS #8").as_ref()).unwrap_or_else(|fault| panic!("{fault}"))
});

fn p521() -> PrivateKey {
    let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P521_SHA512_ASN1_SIGNING, &SystemRandom::new()).expect("a key");
    PrivateKey::from_der(der.as_ref()).unwrap_or_else(|fault| panic!("{fault}"))
}

fn ed25519() -> PrivateKey {
    let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
    PrivateKey::from_der(der.as_ref()).unwrap_or_else(|fault| panic!("{fault}"))
}

fn schemes() -> impl Iterator<Item = SignatureScheme> {
    let classic = [Curve::P256, Curve::P384, Curve::P521].map(SignatureScheme::EcdsaClassic);
    SignatureScheme::identified().chain(classic).chain([SignatureScheme::RawRsaPkcs1])
}

fn fits(kind: PublicKeyKind, scheme: SignatureScheme) -> bool {
    use SignatureScheme as S;
    match kind {
        PublicKeyKind::Rsa { .. } => matches!(scheme, S::RsaPkcs1(_) | S::RsaPss(_) | S::RawRsaPkcs1),
        PublicKeyKind::Ecdsa(curve) => matches!(scheme, S::Ecdsa(_)) || scheme == S::EcdsaClassic(curve),
        PublicKeyKind::Ed25519 => scheme == S::Ed25519,
    }
}

#[test]
fn every_key_signs_with_every_scheme_that_fits_and_no_other() {
    let keys = [sec1(P256_SEC1), sec1(P384_SEC1), p521(), ed25519()];
    let kinds = [
        PublicKeyKind::Ecdsa(Curve::P256),
        PublicKeyKind::Ecdsa(Curve::P384),
        PublicKeyKind::Ecdsa(Curve::P521),
        PublicKeyKind::Ed25519,
    ];
    let rsa = (&*RSA2048, PublicKeyKind::Rsa { bits: 2048 });
    for (key, kind) in keys.iter().zip(kinds).chain([rsa]) {
        assert_eq!(key.kind(), kind);
        for scheme in schemes() {
            let made = key.sign(scheme, &DATA);
            if !fits(kind, scheme) {
                assert_eq!(made, Err(SignatureFault::Scheme), "{kind:?} {scheme:?}");
                assert_eq!(key.public().verify(scheme, &DATA, &[1; 64]), Err(SignatureFault::Scheme));
                continue;
            }
            let signature = made.unwrap_or_else(|fault| panic!("{kind:?} {scheme:?}: {fault}"));
            let verify = |data: &[&[u8]], signature: &[u8]| key.public().verify(scheme, data, signature);
            assert_eq!(verify(&[b"signed data"], &signature), Ok(()), "{kind:?} {scheme:?}");
            assert_eq!(verify(&[b"what was sair"], &signature), Err(SignatureFault::Wrong));
            assert_eq!(verify(&DATA, &[]), Err(SignatureFault::Wrong));
            assert_eq!(verify(&DATA, &signature[1..]), Err(SignatureFault::Wrong));
            assert_eq!(verify(&DATA, &[&signature[..], &[0]].concat()), Err(SignatureFault::Wrong));
            assert_eq!(verify(&DATA, &[&[0], &signature[..]].concat()), Err(SignatureFault::Wrong));
            for at in [0, signature.len() / 2, signature.len() - 1] {
                let mut changed = signature.clone();
                changed[at] ^= 0x10;
                assert_eq!(verify(&DATA, &changed), Err(SignatureFault::Wrong), "{kind:?} {scheme:?} {at}");
            }
            // Nothing signed by one scheme is good by another.
            for other in schemes().filter(|other| *other != scheme && fits(kind, *other)) {
                assert_eq!(key.public().verify(other, &DATA, &signature), Err(SignatureFault::Wrong));
            }
        }
        for hash in [SignatureScheme::RsaPkcs1, SignatureScheme::RsaPss, SignatureScheme::Ecdsa] {
            assert_eq!(key.sign(hash(Hash::Md5), &DATA), Err(SignatureFault::Scheme));
        }
    }
}

#[test]
fn keys_come_in_several_encodings() {
    let p256 = sec1(P256_SEC1);
    // The same key as PKCS #8, around the SEC 1 structure.
    let inner = unhex(P256_SEC1);
    let algorithm = unhex("301306072a8648ce3d020106082a8648ce3d030107");
    let mut pkcs8 = vec![0x30, 0x81, (3 + algorithm.len() + 2 + inner.len()) as u8, 2, 1, 0];
    pkcs8.extend_from_slice(&algorithm);
    pkcs8.extend_from_slice(&[4, inner.len() as u8]);
    pkcs8.extend_from_slice(&inner);
    let again = PrivateKey::from_der(&pkcs8).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(again.public(), p256.public());
    assert_eq!(again.public().spki(), p256.public().spki());

    // Ed25519: version 2 as the library makes it, version 1 with the seed alone (RFC 8410 §10.3).
    let v1 = "302e020100300506032b657004220420d4ee72dbf913584ad5b6d8f1f769f8ad3afe7c28cbf1d4fbe097a88f44755842";
    let public = "302a300506032b657003210019bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1";
    assert_eq!(sec1(v1).public().spki(), unhex(public));
    assert_eq!(ed25519().kind(), PublicKeyKind::Ed25519);

    let rsa = sec1(RSA1024_PKCS1);
    assert_eq!(rsa.kind(), PublicKeyKind::Rsa { bits: 1024 });
    assert_ne!(rsa.public(), RSA2048.public());
}

#[test]
fn keys_of_no_use_are_refused() {
    let private = |der: &[u8]| PrivateKey::from_der(der).err();
    assert_eq!(private(&unhex(ED448_PKCS8)), Some(KeyFault::Malformed));
    assert_eq!(private(&unhex(P256_EXPLICIT)), Some(KeyFault::Unsupported));
    assert_eq!(private(&[]), Some(KeyFault::Malformed));
    for good in [P256_SEC1, P384_SEC1, RSA1024_PKCS1] {
        let der = unhex(good);
        assert_eq!(private(&[&der[..], &[0]].concat()), Some(KeyFault::Malformed));
        assert_eq!(private(&der[..der.len() - 1]), Some(KeyFault::Malformed));
    }
    let public = |der: &[u8]| PublicKey::from_spki(der).err();
    assert_eq!(public(&unhex(RSA512_SPKI)), Some(KeyFault::RsaLength { bits: 512 }));
    assert!(public(&unhex(P224_SPKI)).is_some());
    let spki = RSA2048.public().spki();
    assert_eq!(public(&[spki, &[0]].concat()), Some(KeyFault::Malformed));
    for len in 0..spki.len() {
        assert_eq!(public(&spki[..len]), Some(KeyFault::Malformed));
    }
    // A point that is not on its curve.
    let mut off_curve = sec1(P256_SEC1).public().spki().to_vec();
    *off_curve.last_mut().expect("bytes") ^= 1;
    assert_eq!(public(&off_curve), Some(KeyFault::Malformed));
}

#[test]
fn keys_are_named_by_their_hashes() {
    let rsa = sec1(RSA1024_PKCS1);
    let spki = rsa.public().spki();
    assert_eq!(rsa.public().spki_id(), sha1(spki));
    // SEQUENCE, algorithm of 15 bytes, BIT STRING with its count of unused bits.
    assert_eq!(rsa.public().key_id(), sha1(&spki[3 + 15 + 4..]));
    let ed = ed25519();
    assert_eq!(ed.public().key_id(), sha1(&ed.public().spki()[12..]));
    assert!(format!("{:?}", rsa.public()).contains("Rsa { bits: 1024 }"));
}

#[test]
fn the_best_scheme_is_one_the_peer_takes() {
    use Hash::{Sha256, Sha384, Sha512};
    use SignatureScheme::{Ecdsa, Ed25519, RsaPss};
    let all = HashId::OFFERED;
    assert_eq!(RSA2048.best_scheme(&all), Some(RsaPss(Sha256)));
    assert_eq!(sec1(P256_SEC1).best_scheme(&all), Some(Ecdsa(Sha256)));
    assert_eq!(sec1(P384_SEC1).best_scheme(&all), Some(Ecdsa(Sha384)));
    assert_eq!(p521().best_scheme(&all), Some(Ecdsa(Sha512)));
    assert_eq!(ed25519().best_scheme(&all), Some(Ed25519));
    assert_eq!(sec1(P384_SEC1).best_scheme(&[HashId::SHA2_256, HashId(77)]), Some(Ecdsa(Sha256)));
    assert_eq!(RSA2048.best_scheme(&[HashId::SHA2_384]), Some(RsaPss(Sha384)));
    assert_eq!(ed25519().best_scheme(&[HashId::SHA2_256]), None);
    for key in [&*RSA2048, &sec1(P256_SEC1), &ed25519()] {
        assert_eq!(key.best_scheme(&[]), None);
        assert_eq!(key.best_scheme(&[HashId::SHA1, HashId(0)]), None);
    }
    // What is chosen can also be made with the shortest key.
    let short = sec1(RSA1024_PKCS1);
    for id in all {
        let made = short.best_scheme(&[id]).map(|scheme| short.sign(scheme, &DATA).is_ok());
        assert_ne!(made, Some(false), "{id:?}");
    }
    assert_eq!(short.sign(RsaPss(Sha512), &DATA), Err(SignatureFault::TooShort));
}

/// PKCS #1 blocks with a deviating DigestInfo, each signed with the real key: the basis of
/// Bleichenbacher's forgery of 2006 and its variants.
#[test]
fn only_the_one_digest_info_is_taken() {
    let hash = Hash::Sha256.digest(&DATA);
    let info = |text: &str| [&unhex(text)[..], &hash].concat();
    let verify = |block: &[u8]| {
        let signature = RSA2048.sign(SignatureScheme::RawRsaPkcs1, &[block]).expect("a block that fits");
        RSA2048.public().verify(SignatureScheme::RsaPkcs1(Hash::Sha256), &DATA, &signature)
    };
    let right = info("3031300d060960864801650304020105000420");
    assert_eq!(verify(&right), Ok(()));
    let mut longer = right.clone();
    longer[1] += 2;
    longer.extend_from_slice(&[5, 0]);
    for (what, block) in [
        ("the bare hash", hash.clone()),
        ("no NULL", info("302f300b06096086480165030402010420")),
        ("bytes behind", [&right[..], &[0; 8]].concat()),
        ("bytes before", [&[0, 0], &right[..]].concat()),
        ("an element within", longer),
        ("a parameter instead of NULL", info("3033300f060960864801650304020104020000 0420")),
        ("a long form of a length", info("308131300d060960864801650304020105000420")),
        ("an indefinite length", [&info("3080300d060960864801650304020105000420")[..], &[0, 0]].concat()),
        ("NULL with a long form", info("3032300e06096086480165030402010581000420")),
        ("another hash's name", info("3031300d060960864801650304020205000420")),
        ("an unknown arc", info("3031300d060960864801650304020905000420")),
        ("no hash", right[..19].to_vec()),
        ("a short hash", right[..50].to_vec()),
        ("nothing", Vec::new()),
    ] {
        assert_eq!(verify(&block), Err(SignatureFault::Wrong), "{what}");
    }
    // And the reverse: IKEv1's bare hash is not one with DigestInfo, nor is a longer one its
    // beginning.
    let public = RSA2048.public();
    let raw = |block: &[u8]| RSA2048.sign(SignatureScheme::RawRsaPkcs1, &[block]).expect("a block that fits");
    let is_raw = |signature: &[u8]| public.verify(SignatureScheme::RawRsaPkcs1, &[&hash[..]], signature);
    assert_eq!(is_raw(&raw(&hash)), Ok(()));
    for block in [&right[..], &hash[..31], &[&hash[..], &[0]].concat(), &[&[0], &hash[..]].concat(), &[]] {
        assert_eq!(is_raw(&raw(block)), Err(SignatureFault::Wrong));
    }
    assert_eq!(RSA2048.sign(SignatureScheme::RawRsaPkcs1, &[&[1; 246]]), Err(SignatureFault::TooShort));
    for block in [vec![0; 256], vec![0xff; 256], [&[0; 255][..], &[1]].concat()] {
        assert_eq!(is_raw(&block), Err(SignatureFault::Wrong), "0, above the modulus, 1");
    }
}

#[test]
fn a_raw_ecdsa_signature_is_one_of_the_hash() {
    let key = sec1(P256_SEC1);
    let hash = Hash::Sha256.digest(&DATA);
    let (raw, classic) = (SignatureScheme::RawEcdsa(Curve::P256), SignatureScheme::EcdsaClassic(Curve::P256));
    let signature = key.sign(raw, &[&hash]).expect("a signature");
    assert_eq!(signature.len(), 64);
    // The scheme with a hash signs the same number, and each is verified by the other.
    assert_eq!(key.public().verify(classic, &DATA, &signature), Ok(()));
    let other = key.sign(classic, &DATA).expect("a signature");
    assert_eq!(key.public().verify(raw, &[&hash], &other), Ok(()));
    assert_eq!(key.public().verify(classic, &[&hash], &signature), Err(SignatureFault::Wrong));
    assert_eq!(key.sign(SignatureScheme::RawEcdsa(Curve::P384), &[&hash]), Err(SignatureFault::Scheme));
    assert_eq!(RSA2048.sign(raw, &[&hash]), Err(SignatureFault::Scheme));
}

#[test]
fn ecdsa_signatures_change_their_form_and_back() {
    for (len, r, s) in [
        (32, "01", "ff"),
        (32, "00", "00"),
        (32, "80", "7f"),
        (48, &"ff".repeat(48), &"7f".repeat(48)),
        (66, &format!("01{}", "ff".repeat(65)), &"80".repeat(65)),
    ] {
        let mut full = vec![0; 2 * len];
        for (number, place) in [unhex(r), unhex(s)].iter().zip(full.chunks_mut(len)) {
            place[len - number.len()..].copy_from_slice(number);
        }
        let der = raw::to_der(&full, len).expect("the length");
        assert_eq!(raw::from_der(&der, len), Some(full.clone()));
        assert_eq!(raw::to_der(&full[1..], len), None);
        assert_eq!(raw::from_der(&der[..der.len() - 1], len), None);
        assert_eq!(raw::from_der(&[&der[..], &[0]].concat(), len), None);
    }
    assert_eq!(raw::to_der(&[[0; 31], [0; 31]].concat(), 31).expect("the length"), unhex("3006020100020100"));
    // r above the coordinate's length.
    assert_eq!(raw::from_der(&unhex("300702020101020101"), 1), None);
    // Signatures of zeros are none.
    let key = sec1(P256_SEC1);
    let zeros = key.public().verify(SignatureScheme::EcdsaClassic(Curve::P256), &DATA, &[0; 64]);
    assert_eq!(zeros, Err(SignatureFault::Wrong));
}
