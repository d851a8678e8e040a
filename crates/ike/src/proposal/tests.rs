//! Both sides of a negotiation, on the wire between them.

use proptest::prelude::*;
use wire::ike::{Chain, CodePoints, ProposalOut, ProtocolId, SaPayload, Transform, TransformType};

use super::*;

fn ike(text: &str) -> Vec<IkeProposal> {
    text.split(',').map(|one| IkeProposal::parse(one).expect("a good proposal")).collect()
}

fn child(protocol: ChildProtocol, text: &str) -> Vec<ChildProposal> {
    text.split(',').map(|one| ChildProposal::parse(protocol, one).expect("a good proposal")).collect()
}

/// The body of the SA payload that `write` writes.
fn body(write: impl FnOnce(&mut Chain<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut Chain::new(&mut bytes));
    bytes.drain(..4);
    bytes
}

fn ike_body(offer: &[IkeProposal]) -> Vec<u8> {
    body(|chain| emit_ike_offer(chain, offer, &[]))
}

fn raw_body(protocol: ProtocolId, spi: &[u8], transforms: &[Transform]) -> Vec<u8> {
    body(|chain| {
        chain.sa(&[ProposalOut { number: 1, protocol, spi, transforms }]);
    })
}

/// Result on both hosts if `theirs` initiates and `ours` responds.
fn agreed(ours: &str, theirs: &str) -> Option<String> {
    let (ours, theirs) = (ike(ours), ike(theirs));
    let request = ike_body(&theirs);
    let (suite, spi, number) = choose_ike(&ours, &SaPayload::parse(&request).unwrap()).ok()?;
    assert!(spi.is_empty());
    let answer = body(|chain| emit_ike_choice(chain, &suite, number, &[]));
    let (accepted, _) = accept_ike(&theirs, &SaPayload::parse(&answer).unwrap()).expect("an honest answer");
    assert_eq!(accepted, suite);
    Some(suite.to_string())
}

fn agreed_child(ours: &[ChildProposal], theirs: &[ChildProposal], with_ke: bool) -> Option<String> {
    let points = CodePoints::default();
    let request = body(|chain| emit_child_offer(chain, theirs, &[1, 2, 3, 4], with_ke, &points));
    let sa = SaPayload::parse(&request).unwrap();
    let (suite, spi, number) = choose_child(ours, &sa, with_ke, &points).ok()?;
    assert_eq!(spi, [1, 2, 3, 4]);
    let answer = body(|chain| emit_child_choice(chain, &suite, number, &[5, 6, 7, 8], &points));
    let (accepted, spi) =
        accept_child(theirs, &SaPayload::parse(&answer).unwrap(), with_ke, &points).expect("an honest answer");
    assert_eq!((&accepted, &spi[..]), (&suite, &[5, 6, 7, 8][..]));
    Some(suite.to_string())
}

fn agreed_esp(ours: &str, theirs: &str, with_ke: bool) -> Option<String> {
    agreed_child(&child(ChildProtocol::Esp, ours), &child(ChildProtocol::Esp, theirs), with_ke)
}

fn agreed_eesp(ours: &str, theirs: &str) -> Option<String> {
    agreed_child(&child(ChildProtocol::Eesp, ours), &child(ChildProtocol::Eesp, theirs), false)
}

#[test]
fn words_print_as_they_were_written() {
    for text in [
        "aes256gcm16-prfsha384-ecp384",
        "aes128-aes256-sha256-prfsha256-x25519-modp3072",
        "aes256gcm16-prfsha384-x25519-ke1_mlkem768-ke1_none-ke2_ecp384",
    ] {
        assert_eq!(IkeProposal::parse(text).expect("good").to_string(), text);
    }
    for (protocol, text) in [
        (ChildProtocol::Esp, "aes256gcm16-esn-noesn"),
        (ChildProtocol::Esp, "aes128-sha256-x25519-none-ke1_mlkem768-ke1_none-noesn"),
        (ChildProtocol::Ah, "sha256-sha384-esn"),
        (ChildProtocol::Eesp, "aes256gcm16-chacha20poly1305-sn64-snnone-sskdfsha256-sskdfnone"),
    ] {
        assert_eq!(ChildProposal::parse(protocol, text).expect("good").to_string(), text);
    }
    for proposal in IkeProposal::defaults() {
        assert_eq!(IkeProposal::parse(&proposal.to_string()), Ok(proposal));
    }
    for protocol in [ChildProtocol::Esp, ChildProtocol::Ah, ChildProtocol::Eesp] {
        for proposal in ChildProposal::defaults(protocol) {
            assert_eq!(ChildProposal::parse(protocol, &proposal.to_string()), Ok(proposal));
        }
    }
}

#[test]
fn what_is_left_out_is_implied_as_in_strongswan() {
    let same = |a, b| assert_eq!(IkeProposal::parse(a), IkeProposal::parse(b), "{a}");
    same("aes128-sha256-modp2048", "aes128-sha256-prfsha256-modp2048");
    same("AES-sha1-md5-curve25519", "aes128-sha1-md5-prfsha1-prfmd5-x25519");
    same("aes256gcm128-sha384-ecp384", "aes256gcm16-prfsha384-ecp384");
    same("aes128-aesxcbc-prfsha256-x25519", "aes128-aesxcbc96-prfsha256-x25519-x25519");
    let child = |text| ChildProposal::parse(ChildProtocol::Esp, text);
    assert_eq!(child("aes256gcm16"), child("aes256gcm16-noesn-esn"));
    assert_eq!(child("aes256gcm16-sha256-noesn"), child("aes256gcm16-noesn"));
    let eesp = |text| ChildProposal::parse(ChildProtocol::Eesp, text);
    assert_eq!(eesp("aes256gcm16"), eesp("aes256gcm16-sn64"));
}

#[test]
fn refusals_name_the_word_and_the_way_out() {
    let why = |text| IkeProposal::parse(text).expect_err(text).to_string();
    assert_eq!(why("aes256gmc16-x25519"), "unknown algorithm 'aes256gmc16'; did you mean 'aes256gcm16'?");
    assert_eq!(why("aes256gcm16-prfsha265-x25519"), "unknown algorithm 'prfsha265'; did you mean 'prfsha256'?");
    assert_eq!(
        why("aes256gcm16-prfsha256-ke1_mlkem786"),
        "unknown algorithm 'ke1_mlkem786'; did you mean 'ke1_mlkem768'?"
    );
    // Another kind of algorithm is no help, nor is an alias with another number.
    assert_eq!(why("blowfish256-sha256-x25519"), "algorithm 'blowfish256' is not supported; use e.g. 'aes256gcm16'");
    assert_eq!(why("aes256-sha256-ecp192"), "algorithm 'ecp192' is not supported; use e.g. 'ecp256'");
    assert_eq!(why("aes256-sha256-ecp256bp"), "algorithm 'ecp256bp' is not supported; use e.g. 'ecp256'");
    assert_eq!(why("aes128gcm99-prfsha256-x25519"), "unknown algorithm 'aes128gcm99'; did you mean 'aes128gcm16'?");
    assert_eq!(why("aes-256-gcm"), "unknown algorithm '256'; did you mean 'aes256gcm16'?");
    assert!(why("aes256gcm16-x25519").contains("pseudo-random function is missing, e.g. 'prfsha256'"));
    assert!(why("aes256-x25519").contains("integrity algorithm is missing"));
    assert!(why("aes256-sha256").contains("key exchange is missing"));
    assert!(why("sha256-x25519").contains("cipher is missing"));
    assert!(why("aes256-aes256gcm16-sha256-x25519").contains("separated by a comma"));
    assert!(why("aes128gmac-prfsha256-x25519").contains("cannot protect IKE"));
    assert!(why("aes128gcm16iiv-prfsha256-x25519").contains("cannot protect IKE"));
    assert!(why("null-sha256-x25519").contains("'null' does not belong"));
    assert!(why("aes128-sha256_96-x25519").contains("sha256_96 = yes"));
    assert!(why("aes128-sha256-none").contains("always has a key exchange"));
    assert!(why("aes128-sha256-x25519-esn").contains("Child SAs"));
    assert!(why("aes128-sha256-x25519-ke1_x25519").contains("no method occurs twice"));
    assert!(why("").starts_with("unknown algorithm ''"));
    assert!(why(&"y".repeat(5000)).len() < 200);
    let why = |protocol, text| ChildProposal::parse(protocol, text).expect_err(text).to_string();
    assert!(why(ChildProtocol::Esp, "aes128gcm16-prfsha256").contains("leave it out"));
    assert!(why(ChildProtocol::Esp, "aes128gcm16-sn64").contains("it is for EESP"));
    assert!(why(ChildProtocol::Esp, "aes128gcm16-ke1_mlkem768").contains("need a first one"));
    assert!(why(ChildProtocol::Ah, "aes128gcm16-sha256").contains("AH encrypts nothing"));
    assert!(why(ChildProtocol::Ah, "esn").contains("integrity algorithm is missing"));
    assert!(why(ChildProtocol::Eesp, "aes128-sha256").contains("'aes128' does not belong into a proposal for EESP"));
    assert!(why(ChildProtocol::Eesp, "aes128gcm16-esn").contains("sn64"));
    assert!(why(ChildProtocol::Eesp, "aes128gcm16iiv-snnone").contains("implicit IV"));
    // What is suggested has a place there.
    assert!(why(ChildProtocol::Eesp, "sskdfsha25").contains("'sskdfsha256'"));
    assert!(!why(ChildProtocol::Esp, "sskdfsha25").contains("mean 'sskdf"));
}

#[test]
fn weak_algorithms_are_named() {
    let weak = |text| IkeProposal::parse(text).expect("a proposal").weak();
    assert_eq!(weak("aes256gcm16-prfsha384-ecp384"), None);
    assert_eq!(weak("3des-sha256-modp2048"), Some("3des"));
    assert_eq!(weak("aes128-md5-prfsha256-modp2048"), Some("md5"));
    assert_eq!(weak("aes128-sha256-prfmd5-modp2048"), Some("prfmd5"));
    assert_eq!(weak("aes128-sha256-modp2048-modp1024"), Some("modp1024"));
    assert_eq!(weak("aes128-sha256-x25519-ke1_modp1024"), Some("modp1024"));
    let weak = |text| ChildProposal::parse(ChildProtocol::Esp, text).expect("a proposal").weak();
    assert_eq!(
        (weak("aes128gcm16"), weak("null-sha256"), weak("aes128gcm16-modp1024")),
        (None, Some("null"), Some("modp1024"))
    );
    assert!(IkeProposal::defaults().iter().all(|proposal| proposal.weak().is_none()));
    for protocol in [ChildProtocol::Esp, ChildProtocol::Ah, ChildProtocol::Eesp] {
        assert!(ChildProposal::defaults(protocol).iter().all(|proposal| proposal.weak().is_none()));
    }
}

#[test]
fn reports_name_algorithms_as_strongswan_does() {
    assert_eq!(ike("aes256gcm16-prfsha384-ecp384")[0].describe(), "IKE:AES_GCM_16_256/PRF_HMAC_SHA2_384/ECP_384");
    assert_eq!(
        ike("aes128-sha256-modp2048-ke1_mlkem768-ke1_none")[0].describe(),
        "IKE:AES_CBC_128/HMAC_SHA2_256_128/PRF_HMAC_SHA2_256/MODP_2048/KE1_ML_KEM_768/KE1_NONE"
    );
    let esp = |text| child(ChildProtocol::Esp, text)[0].describe();
    assert_eq!(esp("chacha20poly1305-x25519-noesn"), "ESP:CHACHA20_POLY1305/CURVE_25519/NO_EXT_SEQ");
    assert_eq!(esp("aes128gcm16iiv"), "ESP:AES_GCM_16_IIV_128/NO_EXT_SEQ/EXT_SEQ");
    let eesp = child(ChildProtocol::Eesp, "aes128gcm16-snnone-sskdfsha512")[0].describe();
    assert_eq!(eesp, "EESP:AES_GCM_16_128/NO_SEQ/SSKDF_HKDF_SHA2_512");
}

#[test]
fn our_order_decides() {
    let theirs = "aes128-aes256-sha1-sha256-modp2048-x25519,aes256gcm16-aes128gcm16-prfsha256-prfsha384-ecp256-x25519";
    assert_eq!(
        agreed("aes128gcm16-aes256gcm16-prfsha384-prfsha256-x25519-ecp256,aes256-sha256-x25519", theirs).as_deref(),
        Some("IKE:AES_GCM_16_128/PRF_HMAC_SHA2_384/CURVE_25519")
    );
    assert_eq!(
        agreed("aes256-sha256-x25519,aes128gcm16-prfsha384-x25519", theirs).as_deref(),
        Some("IKE:AES_CBC_256/HMAC_SHA2_256_128/PRF_HMAC_SHA2_256/CURVE_25519")
    );
    let default = IkeProposal::defaults().iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    assert!(agreed(&default, "aes128-sha256-modp2048").is_some());
    assert!(agreed("aes256gcm16-prfsha384-ecp384", &default).is_some());
    assert!(agreed(&default, "3des-sha1-modp1024").is_none());
}

#[test]
fn a_mismatch_shows_both_sides_and_where_they_part() {
    let text = |ours: &str, theirs: &str| {
        let request = ike_body(&ike(theirs));
        choose_ike(&ike(ours), &SaPayload::parse(&request).unwrap()).expect_err("no match").to_string()
    };
    let reason = text("aes256gcm16-prfsha384-ecp384", "aes128-sha1-modp1024,aes256gcm16-prfsha384-modp2048-x25519");
    assert_eq!(
        reason,
        "no proposal in common: our proposal 1 and the peer's 2 differ in KE: ECP_384 here, MODP_2048/CURVE_25519 there; \
         this host has IKE:AES_GCM_16_256/PRF_HMAC_SHA2_384/ECP_384; the peer has \
         IKE:AES_CBC_128/HMAC_SHA1_96/PRF_HMAC_SHA1/MODP_1024, \
         IKE:AES_GCM_16_256/PRF_HMAC_SHA2_384/MODP_2048/CURVE_25519"
    );
    assert!(
        text("aes128-sha256-x25519", "aes256-sha256-x25519")
            .contains("differ in ENCR: AES_CBC_128 here, AES_CBC_256 there")
    );
    assert!(text("aes128-sha256-x25519", "aes128-sha1-x25519").contains("differ in INTEG"));
    assert!(text("aes128-sha256-x25519", "aes128-sha256-prfsha1-x25519").contains("differ in PRF"));
    let reason = text("aes128-sha256-x25519-ke1_mlkem768", "aes128-sha256-x25519");
    assert!(reason.contains("differ in ADDKE1: KE1_ML_KEM_768 here, nothing there"), "{reason}");
    let swapped = text("aes128-sha256-x25519-ecp256-ke1_x25519-ke1_none", "aes128-sha256-x25519-ke1_ecp256-ke1_x25519");
    assert!(swapped.contains("one method twice"), "{swapped}");
    // Long lists of a peer do not become long lines.
    let transforms: Vec<_> = (0..200).map(|id| Transform::new(TransformType::KE, 2000 + id)).collect();
    let proposals = vec![ProposalOut { number: 1, protocol: ProtocolId::IKE, spi: &[], transforms: &transforms }; 20];
    let long = body(|chain| {
        chain.sa(&proposals);
    });
    let reason = choose_ike(&ike("aes128-sha256-x25519"), &SaPayload::parse(&long).unwrap()).expect_err("no match");
    assert!(reason.to_string().len() < 4000);
    // A payload that cannot be read to its end is not chosen from.
    let cut = &long[..long.len() - 3];
    assert!(choose_ike(&ike("aes128-sha256-x25519"), &SaPayload::parse(cut).unwrap()).is_err());
}

#[test]
fn additional_key_exchanges() {
    let pq = "aes256gcm16-prfsha384-x25519-ke1_mlkem768-ke1_none";
    let base = "IKE:AES_GCM_16_256/PRF_HMAC_SHA2_384/CURVE_25519";
    assert_eq!(agreed(pq, pq), Some(format!("{base}/KE1_ML_KEM_768")));
    assert_eq!(agreed(pq, "aes256gcm16-prfsha384-x25519").as_deref(), Some(base));
    assert_eq!(agreed("aes256gcm16-prfsha384-x25519", pq).as_deref(), Some(base));
    assert_eq!(agreed("aes256gcm16-prfsha384-x25519", "aes256gcm16-prfsha384-x25519-ke1_mlkem768"), None);
    // The slot is kept when the one before is NONE.
    let gap = agreed(
        "aes256gcm16-prfsha384-x25519-ke2_mlkem1024-ke2_none",
        "aes256gcm16-prfsha384-x25519-ke1_mlkem768-ke1_none-ke2_mlkem1024",
    );
    assert_eq!(gap, Some(format!("{base}/KE2_ML_KEM_1024")));
    // No method twice: the second preference helps out, in whichever slot.
    let both = "aes256gcm16-prfsha384-x25519-ecp256-ke1_x25519-ke1_ecp256";
    assert_eq!(agreed(both, both), Some(format!("{base}/KE1_ECP_256")));
    let moved = agreed(both, "aes256gcm16-prfsha384-x25519-ecp256-ke1_x25519");
    assert_eq!(moved.as_deref(), Some("IKE:AES_GCM_16_256/PRF_HMAC_SHA2_384/ECP_256/KE1_CURVE_25519"));
    assert!(ike(pq)[0].without_additional().is_some_and(|plain| plain.additional.iter().all(Vec::is_empty)));
    assert!(ike("aes256gcm16-prfsha384-x25519-ke1_mlkem768")[0].without_additional().is_none());
}

#[test]
fn long_lists_of_key_exchanges_are_searched_within_a_bound() {
    let methods =
        "modp2048-modp3072-modp4096-modp6144-modp8192-ecp256-ecp384-ecp521-x25519-mlkem512-mlkem768-mlkem1024";
    let slot = |index| methods.split('-').map(move |name| format!("-ke{index}_{name}")).collect::<String>();
    let all = format!("aes256gcm16-prfsha384-{methods}{}", (1..=7).map(slot).collect::<String>());
    let chosen = agreed(&all, &format!("{}-ke7_modp2048", all.split("-ke7").next().unwrap()));
    assert!(chosen.is_some_and(|suite| suite.ends_with("/KE7_MODP_2048")));
    // Two types that leave no choice to the others: it could be found, but not for any price.
    let tight = all.split("-ke6").next().unwrap().to_owned() + "-ke6_modp2048-ke6_modp3072-ke7_modp2048-ke7_modp3072";
    assert!(IkeProposal::parse(&tight).is_err());
}

#[test]
fn child_proposals_meet() {
    assert_eq!(agreed_esp("aes128gcm16", "aes128gcm16", false).as_deref(), Some("ESP:AES_GCM_16_128/NO_EXT_SEQ"));
    assert_eq!(agreed_esp("aes128gcm16", "aes128gcm16-noesn", false).as_deref(), Some("ESP:AES_GCM_16_128/NO_EXT_SEQ"));
    assert_eq!(agreed_esp("aes128gcm16-esn", "aes128gcm16-noesn", false), None);
    // Key exchange is passed over in IKE_AUTH and counts afterwards.
    let (pfs, plain) = ("aes128gcm16-x25519", "aes128gcm16");
    assert!(agreed_esp(pfs, plain, false).is_some());
    assert_eq!(agreed_esp(pfs, plain, true), None);
    assert_eq!(agreed_esp(plain, pfs, true), None);
    assert_eq!(
        agreed_esp(pfs, "aes128gcm16-none-x25519", true).as_deref(),
        Some("ESP:AES_GCM_16_128/CURVE_25519/NO_EXT_SEQ")
    );
    assert_eq!(agreed_esp("aes128gcm16-x25519-none", plain, true).as_deref(), Some("ESP:AES_GCM_16_128/NO_EXT_SEQ"));
    // Nothing additional without a first one.
    let extra = "aes128gcm16-none-x25519-ke1_mlkem768-ke1_none";
    assert_eq!(agreed_esp(extra, extra, true).as_deref(), Some("ESP:AES_GCM_16_128/NO_EXT_SEQ"));
    let ah = child(ChildProtocol::Ah, "sha256-sha512");
    assert_eq!(
        agreed_child(&ah, &child(ChildProtocol::Ah, "sha512"), false).as_deref(),
        Some("AH:HMAC_SHA2_512_256/NO_EXT_SEQ")
    );
    // Protocols beside each other.
    let mut mixed = child(ChildProtocol::Eesp, "aes256gcm16");
    mixed.extend(child(ChildProtocol::Esp, "aes256gcm16"));
    let esp = child(ChildProtocol::Esp, "aes256gcm16");
    assert_eq!(agreed_child(&esp, &mixed, false).as_deref(), Some("ESP:AES_GCM_16_256/NO_EXT_SEQ"));
    assert_eq!(agreed_child(&mixed, &mixed, false).as_deref(), Some("EESP:AES_GCM_16_256/SEQ_64"));
    assert_eq!(agreed_child(&esp, &mixed[..1], false), None);
}

#[test]
fn eesp_has_rules_of_its_own() {
    let chosen = agreed_eesp("aes256gcm16-sskdfsha256-sskdfnone", "aes256gcm16-sskdfsha384-sskdfsha256");
    assert_eq!(chosen.as_deref(), Some("EESP:AES_GCM_16_256/SEQ_64/SSKDF_HKDF_SHA2_256"));
    assert_eq!(agreed_eesp("aes256gcm16", "aes256gcm16-sskdfsha256"), None);
    assert!(agreed_eesp("aes256gcm16", "aes256gcm16-sskdfsha256-sskdfnone").is_some());
    // An implicit IV excludes SN none: the next number or the next cipher should be used.
    let iiv = "aes256gcm16iiv-aes256gcm16-snnone-sn64";
    assert_eq!(agreed_eesp(iiv, iiv).as_deref(), Some("EESP:AES_GCM_16_IIV_256/SEQ_64"));
    assert_eq!(agreed_eesp(iiv, "aes256gcm16iiv-aes256gcm16-snnone").as_deref(), Some("EESP:AES_GCM_16_256/NO_SEQ"));
    // SN is mandatory; the values of ESP are invalid in EESP, and vice versa.
    let points = CodePoints::default();
    let ours = child(ChildProtocol::Eesp, "aes256gcm16-sn64");
    let gcm = Transform::new(TransformType::ENCR, 20).with_key_bits(256);
    let sn = |id| Transform::new(TransformType::SN, id);
    let choose = |protocol, ours: &[ChildProposal], transforms: &[Transform]| {
        let body = raw_body(protocol, &[1, 2, 3, 4], transforms);
        choose_child(ours, &SaPayload::parse(&body).unwrap(), false, &points).map(|(suite, ..)| suite.sn).ok()
    };
    assert_eq!(choose(points.eesp, &ours, &[gcm]), None);
    assert_eq!(choose(points.eesp, &ours, &[gcm, sn(1)]), None);
    assert_eq!(choose(points.eesp, &ours, &[gcm, sn(1), sn(1024)]), Some(SequenceNumbers::Bits64));
    let esp = child(ChildProtocol::Esp, "aes256gcm16");
    assert_eq!(choose(ProtocolId::ESP, &esp, &[gcm, sn(1024)]), None);
    // A proposal of ESP with a type that only EESP has is not understood as a whole.
    assert_eq!(choose(ProtocolId::ESP, &esp, &[gcm, sn(0), Transform::new(points.sskdf, 1)]), None);
}

#[test]
fn transforms_that_are_not_exactly_ours_do_not_count() {
    let ours = ike("aes128-sha256-x25519,chacha20poly1305-prfsha256-x25519");
    let rest = [Transform::new(TransformType::PRF, 5), Transform::new(TransformType::KE, 31)];
    let sha256 = Transform::new(TransformType::INTEG, 12);
    let none = Transform::new(TransformType::INTEG, 0);
    let choose = |transforms: &[Transform]| {
        let body = raw_body(ProtocolId::IKE, &[], transforms);
        choose_ike(&ours, &SaPayload::parse(&body).unwrap()).map(|(suite, ..)| suite.to_string()).ok()
    };
    let with = |enc: Transform, integ: &[Transform]| choose(&[&[enc][..], integ, &rest].concat());
    let aes = Transform::new(TransformType::ENCR, 12);
    let chacha = Transform::new(TransformType::ENCR, 28);
    assert!(with(aes.with_key_bits(128), &[sha256]).is_some());
    assert_eq!(with(aes, &[sha256]), None, "AES without key length");
    assert_eq!(with(aes.with_key_bits(129), &[sha256]), None);
    assert_eq!(with(aes.with_key_bits(128), &[]), None, "no integrity");
    assert_eq!(with(aes.with_key_bits(128), &[none]), None, "no integrity");
    assert!(with(chacha, &[]).is_some());
    assert!(with(chacha, &[none]).is_some(), "INTEG NONE beside an AEAD");
    assert!(with(chacha, &[sha256, none]).is_some());
    // RFC 5282 §8 forbids this proposal; the MAC is for the other ciphers in it, and the answer is
    // without.
    let mixed = choose(&[&[chacha, aes.with_key_bits(128), sha256][..], &rest].concat());
    assert_eq!(mixed, with(aes.with_key_bits(128), &[sha256]), "in the order of this host");
    let gcm_first = ike("chacha20poly1305-prfsha256-x25519,aes128-sha256-x25519");
    let body = raw_body(ProtocolId::IKE, &[], &[&[aes.with_key_bits(128), chacha, sha256][..], &rest].concat());
    let (suite, ..) = choose_ike(&gcm_first, &SaPayload::parse(&body).unwrap()).unwrap();
    assert!(suite.integ.is_none() && suite.to_string().contains("CHACHA20_POLY1305"), "{suite}");
    assert_eq!(with(chacha.with_key_bits(256), &[]), None, "ChaCha20 with key length");
    // An unknown type spoils the proposal, an unknown ID only itself.
    assert_eq!(choose(&[&[chacha, Transform::new(TransformType(99), 1)], &rest[..]].concat()), None);
    assert_eq!(choose(&[&[chacha, Transform::new(TransformType::SN, 0)], &rest[..]].concat()), None);
    assert!(choose(&[&[chacha, Transform::new(TransformType::PRF, 999)], &rest[..]].concat()).is_some());
    // An attribute that is not known.
    let mut body = raw_body(ProtocolId::IKE, &[], &[&[aes.with_key_bits(128), sha256], &rest[..]].concat());
    assert!(choose_ike(&ours, &SaPayload::parse(&body).unwrap()).is_ok());
    body[8 + 8 + 1] = 15;
    assert!(choose_ike(&ours, &SaPayload::parse(&body).unwrap()).is_err());
}

/// An answer is believed only when it is one choice from what was offered.
#[test]
fn an_answer_cannot_weaken_the_offer() {
    let offer = ike("aes256gcm16-prfsha384-x25519-ke1_mlkem768,aes256-sha256-ecp256");
    let transform = |kind, id| Transform::new(kind, id);
    let gcm = transform(TransformType::ENCR, 20).with_key_bits(256);
    let (prf, ke) = (transform(TransformType::PRF, 6), transform(TransformType::KE, 31));
    let extra = transform(TransformType::ADDKE1, 36);
    let accept_numbered = |number, transforms: &[Transform]| {
        let out = [ProposalOut { number, protocol: ProtocolId::IKE, spi: &[], transforms }];
        let body = body(|chain| {
            chain.sa(&out);
        });
        accept_ike(&offer, &SaPayload::parse(&body).unwrap())
    };
    let accept = |transforms: &[Transform]| accept_numbered(1, transforms);
    assert!(accept(&[gcm, prf, ke, extra]).is_ok());
    assert!(accept(&[extra, ke, transform(TransformType::INTEG, 0), prf, gcm]).is_ok());
    assert!(accept(&[gcm, prf, ke]).is_err(), "the post-quantum exchange was taken out");
    assert!(accept(&[gcm, prf, ke, transform(TransformType::ADDKE1, 0)]).is_err(), "or replaced by NONE");
    assert!(accept(&[gcm, prf, extra]).is_err());
    assert!(accept(&[gcm, ke, extra]).is_err());
    assert!(accept(&[gcm, prf, prf, ke, extra]).is_err(), "a type twice");
    assert!(accept(&[gcm.with_key_bits(128), prf, ke, extra]).is_err());
    assert!(accept(&[gcm, prf, transform(TransformType::KE, 2), extra]).is_err());
    assert!(accept(&[gcm, prf, ke, extra, transform(TransformType::ADDKE2, 35)]).is_err());
    for number in [0, 2, 3, 255] {
        assert!(accept_numbered(number, &[gcm, prf, ke, extra]).is_err(), "proposal {number}");
    }
    let twice = ike_body(&[offer[0].clone(), offer[0].clone()]);
    assert!(accept_ike(&offer, &SaPayload::parse(&twice).unwrap()).is_err());
    // The whole offer of alternatives sent back is no choice.
    let several = ike("aes256gcm16-aes128gcm16-prfsha384-x25519");
    assert!(accept_ike(&several, &SaPayload::parse(&ike_body(&several)).unwrap()).is_err());

    let (points, esp) = (CodePoints::default(), child(ChildProtocol::Esp, "aes256gcm16-x25519-esn"));
    let accept = |protocol, spi: &[u8], transforms: &[Transform], with_ke| {
        accept_child(&esp, &SaPayload::parse(&raw_body(protocol, spi, transforms)).unwrap(), with_ke, &points).is_ok()
    };
    let esn = transform(TransformType::SN, 1);
    assert!(accept(ProtocolId::ESP, &[1; 4], &[gcm, esn], false));
    assert!(accept(ProtocolId::ESP, &[1; 4], &[gcm, esn, ke], false), "a key exchange in IKE_AUTH is passed over");
    assert!(!accept(ProtocolId::ESP, &[1; 4], &[gcm, esn], true));
    assert!(!accept(ProtocolId::ESP, &[1; 4], &[gcm, transform(TransformType::SN, 0)], false));
    assert!(!accept(ProtocolId::ESP, &[1; 8], &[gcm, esn], false));
    assert!(!accept(ProtocolId::AH, &[1; 4], &[gcm, esn], false));
}

proptest! {
    /// Whatever two sides prefer, the choice is in both and the other side accepts it.
    #[test]
    fn a_choice_is_in_both_offers(
        ours in proptest::sample::subsequence(&["aes128gcm16", "aes256gcm16", "chacha20poly1305"][..], 1..=3),
        theirs in proptest::sample::subsequence(&["aes128gcm16", "aes256gcm16", "chacha20poly1305"][..], 1..=3),
        our_ke in proptest::sample::subsequence(&["x25519", "ecp256", "ke1_x25519", "ke1_none", "ke2_ecp256"][..], 1..=5),
        their_ke in proptest::sample::subsequence(&["x25519", "ecp256", "ke1_x25519", "ke1_none", "ke2_ecp256"][..], 1..=5),
    ) {
        let text = |enc: &[&str], ke: &[&str]| format!("{}-prfsha256-{}", enc.join("-"), ke.join("-"));
        let (ours_text, theirs_text) = (text(&ours, &our_ke), text(&theirs, &their_ke));
        if IkeProposal::parse(&ours_text).is_ok() && IkeProposal::parse(&theirs_text).is_ok() {
            // Both verify the other; the result does not depend on the initiator.
            let there = agreed(&ours_text, &theirs_text);
            let back = agreed(&theirs_text, &ours_text);
            prop_assert_eq!(there.is_some(), back.is_some());
            if let Some(enc) = ours.iter().find(|enc| theirs.contains(enc)).filter(|_| there.is_some()) {
                let alg = EncAlg::by_name(enc).expect("a cipher");
                prop_assert!(there.expect("a choice").contains(&enc_name(alg)));
            }
        }
    }

    #[test]
    fn nothing_that_arrives_panics(body in proptest::collection::vec(any::<u8>(), 1..200)) {
        let sa = SaPayload::parse(&body).expect("it is not empty");
        let points = CodePoints::default();
        let _ = choose_ike(&IkeProposal::defaults(), &sa).map_err(|mismatch| mismatch.to_string());
        let _ = accept_ike(&IkeProposal::defaults(), &sa);
        let ours = ChildProposal::defaults(ChildProtocol::Eesp);
        let _ = choose_child(&ours, &sa, true, &points).map_err(|mismatch| mismatch.to_string());
        let _ = accept_child(&ours, &sa, true, &points);
    }

    #[test]
    fn nothing_that_is_written_panics(text in "[a-z0-9_-]{0,40}") {
        let _ = IkeProposal::parse(&text);
        let _ = ChildProposal::parse(ChildProtocol::Eesp, &text);
    }
}
