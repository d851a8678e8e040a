//! Certificate paths: valid ones, and each kind of invalid one.

use ike::config::{AuthMethod, Revocation};
use rcgen::{
    CertificateRevocationListParams, CidrSubnet, CrlDistributionPoint, CustomExtension, ExtendedKeyUsagePurpose,
    GeneralSubtree, KeyIdMethod, NameConstraints, RevokedCertParams, SerialNumber,
};

use super::super::constraint::Constraints;
use super::super::path::MAX_PATH;
use super::super::verify::{Sent, trusted};
use super::super::x509::pkcs7_certificates;
use super::super::{Certificate, Crl, der};
use super::*;

fn certificate(entity: &Entity) -> Certificate {
    Certificate::from_der(&entity.der).expect("a certificate")
}

/// Returns whether `leaf` is trusted with these CAs, when the peer sends these certificates.
fn check(leaf: &Entity, anchors: &[&Entity], sent: &[&Entity], auth: &Auth, now: Duration) -> anyhow::Result<Duration> {
    let store = store(anchors, &[], &[]);
    check_in(&store, leaf, sent, auth, now)
}

fn check_in(store: &Store, leaf: &Entity, sent: &[&Entity], auth: &Auth, now: Duration) -> anyhow::Result<Duration> {
    let sent: Vec<Certificate> = sent.iter().map(|entity| certificate(entity)).collect();
    let words = match &auth.method {
        AuthMethod::PublicKey(words) => words.clone(),
        _ => Vec::new(),
    };
    let sent = Sent { certificates: &sent, ..Sent::default() };
    trusted(store.trust(), &certificate(leaf), sent, auth, &Constraints::parse(&words), now).outcome
}

fn plain() -> Auth {
    auth(public_key(&[]))
}

fn says(result: anyhow::Result<Duration>, words: &str) {
    let why = result.expect_err("a fault");
    assert!(why.to_string().contains(words), "{why}");
}

#[test]
fn a_signature_that_was_verified_once_is_that_of_one_key_and_proves_nothing_else() {
    let (root, other) = (Entity::ca("Root", None), Entity::ca("Root", None));
    let leaf = certificate(&Entity::leaf("moon", &["moon.weir.test"], &root));
    for _ in 0..2 {
        assert!(leaf.is_signed_by(certificate(&root).key()));
        assert!(!leaf.is_signed_by(certificate(&other).key()));
    }
    let check = |anchor: &Entity, now| {
        let (store, constraints) = (store(&[anchor], &[], &[]), Constraints::parse(&[]));
        trusted(store.trust(), &leaf, Sent::default(), &plain(), &constraints, now).outcome
    };
    assert!(check(&root, NOW).is_ok());
    assert!(check(&other, NOW).is_err());
    says(check(&root, NOW + Duration::from_secs(20 * 366 * 86_400)), "expired");
}

#[test]
fn a_path_leads_to_a_trusted_authority() {
    let root = Entity::ca("Root", None);
    let (one, two) = (Entity::ca("One", Some(&root)), Entity::ca("Two", Some(&root)));
    let three = Entity::ca("Three", Some(&one));
    let leaf = Entity::leaf("moon", &["moon.weir.test"], &three);
    let other = Entity::ca("Root", None);
    assert!(check(&leaf, &[&root], &[&two, &one, &three, &leaf], &plain(), NOW).is_ok());
    // An intermediate CA of x509ca is not a trust anchor.
    assert!(check(&leaf, &[&root, &one], &[&three], &plain(), NOW).is_ok());
    assert!(check(&leaf, &[&root, &one, &three], &[], &plain(), NOW).is_ok());
    says(check(&leaf, &[&one], &[&three], &plain(), NOW), "no trusted CA issued it");
    says(check(&leaf, &[&one, &three], &[], &plain(), NOW), "no trusted CA issued it");
    assert!(check(&leaf, &[&one], &[&three, &root], &plain(), NOW).is_err());
    assert!(check(&leaf, &[&other, &root], &[&one, &three], &plain(), NOW).is_ok());
    says(check(&leaf, &[&root], &[&one], &plain(), NOW), "no trusted CA issued it");
    // The same name, another key; what the peer sends is never trusted.
    says(check(&leaf, &[&other], &[&one, &three, &root], &plain(), NOW), "");
    says(check(&leaf, &[], &[&one, &three, &root], &plain(), NOW), "no trusted CA");
    let named = |entity: &Entity| Auth { cacerts: vec![entity.fingerprint()], ..plain() };
    assert!(check(&leaf, &[&root, &one], &[&three], &named(&root), NOW).is_ok());
    assert!(check(&leaf, &[&root, &one], &[&three], &named(&one), NOW).is_ok());
    says(check(&leaf, &[&root, &two], &[&one, &three], &named(&two), NOW), "cacerts");
}

#[test]
fn authorities_without_a_root_are_named_when_loaded() {
    let root = Entity::ca("Root", None);
    let one = Entity::ca("One", Some(&root));
    let two = Entity::ca("Two", Some(&one));
    assert!(store(&[&root, &one, &two], &[], &[]).incomplete_authorities().is_empty());
    let faults = store(&[&one, &two], &[], &[]).incomplete_authorities();
    assert!(faults.len() == 2 && faults[0].contains("up to the root CA"), "{faults:?}");
    assert_eq!(store(&[&root, &two], &[], &[]).incomplete_authorities().len(), 1);
}

#[test]
fn a_path_is_checked_up_to_the_root_whatever_x509ca_holds() {
    let root = Entity::ca("Root", None);
    let with_serial = |name: &str, serial: u64, above: &Entity| {
        let mut params = ca_params(name);
        params.serial_number = Some(SerialNumber::from(serial));
        Entity::make(params, Some(above), &rcgen::PKCS_ED25519)
    };
    // A revoked intermediate CA, itself in x509ca.
    let one = with_serial("One", 21, &root);
    let leaf = Entity::leaf("moon", &[], &one);
    let mut revoked = store(&[&root, &one], &[], &[]);
    assert!(check_in(&revoked, &leaf, &[], &plain(), NOW).is_ok());
    revoked.add_crls(&crl(&root, &[21], 2030), Origin::File).expect("a list");
    says(check_in(&revoked, &leaf, &[], &plain(), NOW), "[certificate of O=Weir, CN=One] is revoked");
    // `strict` checks each CA below the root too.
    let strict = Auth { revocation: Revocation::Strict, ..plain() };
    let mut listed = store(&[&root, &one], &[], &[]);
    listed.add_crls(&crl(&one, &[], 2030), Origin::File).expect("a list");
    says(check_in(&listed, &leaf, &[], &strict, NOW), "CN=One]");
    listed.add_crls(&crl(&root, &[], 2030), Origin::File).expect("a list");
    assert!(check_in(&listed, &leaf, &[], &strict, NOW).is_ok());

    // The path length that the root allows.
    let mut params = ca_params("Short");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    let short = Entity::make(params, None, &rcgen::PKCS_ED25519);
    let (one, direct) = (Entity::ca("One", Some(&short)), Entity::leaf("sun", &[], &short));
    let two = Entity::ca("Two", Some(&one));
    assert!(check(&direct, &[&short], &[], &plain(), NOW).is_ok());
    assert!(check(&Entity::leaf("moon", &[], &one), &[&short, &one], &[], &plain(), NOW).is_ok());
    let below = Entity::leaf("moon", &[], &two);
    says(check(&below, &[&short, &one, &two], &[], &plain(), NOW), "more CAs below");

    // Two CAs that certify each other, and no root.
    let (a, b) = (Entity::ca("A", None), Entity::ca("B", None));
    let certify = |subject: &Entity, name: &str, by: &Entity| {
        let key = KeyPair::try_from(&subject.key_der[..]).expect("a key");
        ca_params(name).signed_by(&key, &by.issuer).expect("a certificate").der().to_vec()
    };
    let (a_by_b, b_by_a) = (certify(&a, "A", &b), certify(&b, "B", &a));
    let leaf = Entity::leaf("moon", &[], &a);
    let mut circle = store(&[&root], &[], &[]);
    for der in [&a_by_b, &b_by_a] {
        circle.add_certificates(der, CertificateUse::Authority, Origin::File).expect("a CA");
    }
    assert_eq!(circle.incomplete_authorities().len(), 2);
    says(check_in(&circle, &leaf, &[], &plain(), NOW), "no trusted CA");
    circle.add_certificates(&b.der, CertificateUse::Authority, Origin::File).expect("a CA");
    assert!(check_in(&circle, &leaf, &[], &plain(), NOW).is_ok());
}

#[test]
fn time_is_that_of_the_question() {
    let root = Entity::ca("Root", None);
    let leaf = Entity::leaf("moon", &[], &root);
    let at = |year: u64| Duration::from_secs((year - 1970) * 31_556_952);
    says(check(&leaf, &[&root], &[], &plain(), at(2041)), "expired");
    says(check(&leaf, &[&root], &[], &plain(), at(2019)), "not valid yet");
    let mut short = ca_params("Root");
    short.not_after = rcgen::date_time_ymd(2026, 1, 1);
    let old = Entity::make(short, None, &rcgen::PKCS_ED25519);
    let leaf = Entity::leaf("moon", &[], &old);
    says(check(&leaf, &[&old], &[], &plain(), NOW), "expired");
}

#[test]
fn authorities_say_that_they_are() {
    let root = Entity::ca("Root", None);
    let no_ca = Entity::leaf("no CA", &[], &root);
    let leaf = Entity::leaf("moon", &[], &no_ca);
    says(check(&leaf, &[&root], &[&no_ca], &plain(), NOW), "not a CA");
    let mut params = ca_params("no signer");
    params.key_usages = vec![KeyUsagePurpose::CrlSign];
    let no_signer = Entity::make(params, Some(&root), &rcgen::PKCS_ED25519);
    says(check(&Entity::leaf("moon", &[], &no_signer), &[&root], &[&no_signer], &plain(), NOW), "key usage");
    let mut params = ca_params("narrow");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let narrow = Entity::make(params, Some(&root), &rcgen::PKCS_ED25519);
    assert!(check(&Entity::leaf("moon", &[], &narrow), &[&root], &[&narrow], &plain(), NOW).is_ok());
    let below = Entity::ca("below", Some(&narrow));
    says(check(&Entity::leaf("moon", &[], &below), &[&root], &[&narrow, &below], &plain(), NOW), "more CAs below");
    let mut store = Store::default();
    let refused = store.add_certificates(&leaf.der, CertificateUse::Authority, Origin::File);
    assert!(refused.is_err_and(|why| why.to_string().contains("not a CA")));
}

#[test]
fn purposes_are_held_to() {
    let root = Entity::ca("Root", None);
    for (purposes, good) in [
        (vec![ExtendedKeyUsagePurpose::ServerAuth], true),
        (vec![ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1, 5, 5, 8, 2, 2])], true),
        (vec![ExtendedKeyUsagePurpose::Any], true),
        (vec![ExtendedKeyUsagePurpose::CodeSigning], false),
        (vec![ExtendedKeyUsagePurpose::CodeSigning, ExtendedKeyUsagePurpose::ClientAuth], true),
    ] {
        let mut params = params("moon", &[]);
        params.extended_key_usages = purposes;
        let leaf = Entity::make(params, Some(&root), &rcgen::PKCS_ED25519);
        assert_eq!(check(&leaf, &[&root], &[], &plain(), NOW).is_ok(), good);
    }
    let mut encipher = params("moon", &[]);
    encipher.key_usages = vec![KeyUsagePurpose::KeyEncipherment];
    says(
        check(&Entity::make(encipher, Some(&root), &rcgen::PKCS_ED25519), &[&root], &[], &plain(), NOW),
        "not allowed to sign",
    );
    let mut strange = params("moon", &[]);
    let mut extension = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]);
    extension.set_criticality(true);
    strange.custom_extensions = vec![extension];
    says(check(&Entity::make(strange, Some(&root), &rcgen::PKCS_ED25519), &[&root], &[], &plain(), NOW), "critical");
}

#[test]
fn names_stay_where_an_authority_may_give_them() {
    let mut limited = ca_params("Limited");
    limited.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![
            GeneralSubtree::DnsName("weir.test".into()),
            GeneralSubtree::IpAddress(CidrSubnet::from_v4_prefix([192, 0, 2, 0], 24)),
            GeneralSubtree::Rfc822Name("weir.test".into()),
        ],
        excluded_subtrees: vec![GeneralSubtree::DnsName("secret.weir.test".into())],
    });
    let root = Entity::ca("Root", None);
    let limited = Entity::make(limited, Some(&root), &rcgen::PKCS_ED25519);
    for (san, good) in [
        ("moon.weir.test", true),
        ("weir.test", true),
        ("moon.other.test", false),
        ("badweir.test", false),
        ("a.secret.weir.test", false),
        ("192.0.2.77", true),
        ("192.0.3.77", false),
        ("2001:db8::1", false),
        ("moon@weir.test", true),
        ("moon@x.weir.test", false),
    ] {
        let leaf = Entity::leaf("moon", &[san], &limited);
        let result = check(&leaf, &[&root], &[&limited], &plain(), NOW);
        assert_eq!(result.is_ok(), good, "{san}: {result:?}");
        // However far above.
        let below = Entity::ca("below", Some(&limited));
        let leaf = Entity::leaf("moon", &[san], &below);
        assert_eq!(check(&leaf, &[&root], &[&below, &limited], &plain(), NOW).is_ok(), good, "{san}");
    }
    let mut directory = ca_params("Directory");
    let mut tree = rcgen::DistinguishedName::new();
    tree.push(DnType::OrganizationName, "Other");
    directory.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DirectoryName(tree)],
        excluded_subtrees: vec![],
    });
    let directory = Entity::make(directory, Some(&root), &rcgen::PKCS_ED25519);
    says(check(&Entity::leaf("moon", &[], &directory), &[&root], &[&directory], &plain(), NOW), "name constraints");
}

fn crl(issuer: &Entity, serials: &[u64], until: i32) -> Vec<u8> {
    let revoked = serials.iter().map(|serial| RevokedCertParams {
        serial_number: SerialNumber::from(*serial),
        revocation_time: rcgen::date_time_ymd(2025, 1, 1),
        reason_code: None,
        invalidity_date: None,
    });
    let params = CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2026, 1, 1),
        next_update: rcgen::date_time_ymd(until, 1, 1),
        crl_number: SerialNumber::from(1u64),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(&issuer.issuer).expect("a list").der().to_vec()
}

#[test]
fn revoked_certificates_are_refused() {
    let root = Entity::ca("Root", None);
    let with_serial = |serial: u64, uri: bool| {
        let mut params = params("moon", &[]);
        params.serial_number = Some(SerialNumber::from(serial));
        if uri {
            params.crl_distribution_points = vec![CrlDistributionPoint { uris: vec!["http://weir.test/crl".into()] }];
        }
        Entity::make(params, Some(&root), &rcgen::PKCS_ED25519)
    };
    let (good, bad, uri) = (with_serial(7, false), with_serial(8, false), with_serial(9, true));
    let policy = |revocation| Auth { revocation, ..plain() };
    let (relaxed, if_uri, strict) =
        (policy(Revocation::Relaxed), policy(Revocation::IfUri), policy(Revocation::Strict));
    let without = store(&[&root], &[], &[]);
    assert!(
        check_in(&without, &good, &[], &relaxed, NOW).is_ok() && check_in(&without, &good, &[], &if_uri, NOW).is_ok()
    );
    says(check_in(&without, &good, &[], &strict, NOW), "revocation status");
    assert!(check_in(&without, &uri, &[], &relaxed, NOW).is_ok());
    says(check_in(&without, &uri, &[], &if_uri, NOW), "revocation status");

    let with = |list: Vec<u8>| {
        let mut store = store(&[&root], &[], &[]);
        store.add_crls(&list, Origin::File).expect("a list");
        store
    };
    let fresh = with(crl(&root, &[8, 300], 2030));
    for entity in [&good, &uri] {
        assert!(check_in(&fresh, entity, &[], &strict, NOW).is_ok());
    }
    says(check_in(&fresh, &bad, &[], &relaxed, NOW), "is revoked");
    // A list past its time takes back, but vouches for nothing.
    let stale = with(crl(&root, &[8], 2026 + 1));
    let later = NOW + Duration::from_secs(86_400 * 365);
    says(check_in(&stale, &bad, &[], &relaxed, later), "is revoked");
    says(check_in(&stale, &good, &[], &strict, later), "revocation status");
    // A CRL of the same name signed by another key has no effect.
    let forged = with(crl(&Entity::ca("Root", None), &[7], 2030));
    assert!(check_in(&forged, &good, &[], &relaxed, NOW).is_ok());
    says(check_in(&forged, &good, &[], &strict, NOW), "revocation status");
    // Even one that is loaded by itself.
    let mut loaded = with(crl(&root, &[8], 2030));
    loaded.add_certificates(&bad.der, CertificateUse::EndEntity, Origin::File).expect("a certificate");
    says(check_in(&loaded, &bad, &[], &relaxed, NOW), "is revoked");
    let parsed = Crl::from_der(&crl(&root, &[1, 2, 3], 2030)).expect("a list");
    assert_eq!((parsed.revoked_count(), parsed.revokes(&certificate(&good))), (3, false));
}

#[test]
fn policies_have_to_be_carried_all_the_way() {
    let extension = |arcs: &[&[u8]]| {
        let entries: Vec<Vec<u8>> = arcs.iter().map(|oid| der::element(0x30, &[&der::element(6, &[oid])])).collect();
        let parts: Vec<&[u8]> = entries.iter().map(|entry| &entry[..]).collect();
        CustomExtension::from_oid_content(&[2, 5, 29, 32], der::element(0x30, &parts))
    };
    let (wanted, any): (&[u8], &[u8]) = (&[0x2b, 6, 1, 4, 1, 99, 1], &[0x55, 0x1d, 0x20, 0]);
    let root = Entity::ca("Root", None);
    let issue = |between: &[&[u8]], leaf: &[&[u8]]| {
        let mut ca = ca_params("CA");
        ca.custom_extensions = between.iter().map(|_| extension(between)).take(1).collect();
        let ca = Entity::make(ca, Some(&root), &rcgen::PKCS_ED25519);
        let mut end = params("moon", &[]);
        end.custom_extensions = leaf.iter().map(|_| extension(leaf)).take(1).collect();
        let end = Entity::make(end, Some(&ca), &rcgen::PKCS_ED25519);
        let auth = Auth { cert_policy: vec!["1.3.6.1.4.1.99.1".into()], ..plain() };
        check(&end, &[&root], &[&ca], &auth, NOW)
    };
    assert!(issue(&[wanted], &[wanted]).is_ok() && issue(&[any], &[wanted]).is_ok());
    says(issue(&[any], &[any]), "lacks the policy");
    says(issue(&[], &[wanted]), "lacks the policy");
    says(issue(&[wanted], &[]), "lacks the policy");
}

#[test]
fn work_is_bounded() {
    let root = Entity::ca("Root", None);
    let mut chain = vec![Entity::ca("0", Some(&root))];
    for depth in 1..MAX_PATH {
        let next = Entity::ca(&depth.to_string(), chain.last());
        chain.push(next);
    }
    let leaf = Entity::leaf("moon", &[], &chain[MAX_PATH - 1]);
    says(check(&leaf, &[&root], &chain.iter().collect::<Vec<_>>(), &plain(), NOW), "more than");
    // Many CAs of one name, each issued by all the others: the search ends.
    let tangle: Vec<Entity> = (0..31).map(|_| Entity::ca("Tangle", None)).collect();
    let cross: Vec<Entity> = tangle.windows(2).map(|pair| Entity::leaf("Tangle", &[], &pair[0])).collect();
    let leaf = Entity::leaf("moon", &[], &tangle[0]);
    let sent: Vec<&Entity> = tangle.iter().chain(&cross).collect();
    let start = std::time::Instant::now();
    assert!(check(&leaf, &[&root], &sent, &plain(), NOW).is_err());
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn weak_signatures_on_certificates_need_a_word() {
    let root = Entity::make(ca_params("Root"), None, &rcgen::PKCS_RSA_SHA256);
    let leaf = Entity::leaf("moon", &[], &root);
    assert!(check(&leaf, &[&root], &[], &plain(), NOW).is_ok());
    says(check(&leaf, &[&root], &[], &auth(public_key(&["rsa-4096-sha256"])), NOW), "does not allow");
    says(check(&leaf, &[&root], &[], &auth(public_key(&["rsa-sha384"])), NOW), "does not allow");
    assert!(check(&leaf, &[&root], &[], &auth(public_key(&["rsa-2048-sha256"])), NOW).is_ok());
    assert!(check(&leaf, &[&root], &[], &auth(public_key(&["ike:ecdsa-sha384"])), NOW).is_ok());
}

#[test]
fn bytes_of_strangers_make_no_trouble() {
    let root = Entity::ca("Root", None);
    let leaf = Entity::leaf("moon", &["moon.weir.test"], &root);
    let wrapped = {
        let oid: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x02];
        let certificates = der::element(0xa0, &[&leaf.der, &root.der]);
        let signed =
            der::element(0x30, &[&[2, 1, 1], &der::element(0x31, &[]), &der::element(0x30, &[]), &certificates]);
        der::element(0x30, &[&der::element(6, &[oid]), &der::element(0xa0, &[&signed])])
    };
    assert_eq!(pkcs7_certificates(&wrapped), Some(vec![&leaf.der[..], &root.der[..]]));
    let list = crl(&root, &[1], 2030);
    for good in [&leaf.der, &list, &wrapped] {
        for at in 0..good.len() {
            super::super::parse_anything(&good[..at]);
            for bit in [1, 0x80] {
                let mut changed = good.clone();
                changed[at] ^= bit;
                super::super::parse_anything(&changed);
            }
        }
        super::super::parse_anything(&[&good[..], &[0]].concat());
    }
    let fault = check(&leaf, &[], &[], &plain(), NOW);
    says(fault, "no trusted CA");
}
