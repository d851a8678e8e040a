//! A signature is accepted by its intended verifier only.

use ike::config::{AuthMethod, Revocation};
use ike::identity::IdPattern;
use ike::output::{CredentialRequest, CredentialResponse, PskQuery, RequestId, SignV1, XAuthQuery};
use wire::ike::{AuthMethodId, CertEncoding, IdType};

use super::super::{Credentials, Shared, SharedKind, sign, verify, xauth};
use super::*;

fn psk(name: &str, secret: &[u8], owners: &[&str]) -> Shared {
    Shared::new(name, SharedKind::Ike, owners.iter().map(|owner| like(owner)).collect(), Secret::from_slice(secret))
}

/// Signs with one store and verifies with another.
fn run(
    (mine, local): (&Store, Auth),
    (theirs, remote): (&Store, Auth),
    hashes: &[u16],
    change: impl FnOnce(&mut VerifyRequest),
) -> Result<(Signed, Option<Duration>), String> {
    let request = sign_request(connection(local, auth(AuthMethod::Any)), hashes);
    let signed = sign::sign(mine, &request, NOW).map_err(|refusal| refusal.0)?;
    let copy = Signed {
        local_id: signed.local_id.clone(),
        method: signed.method,
        auth: signed.auth.clone(),
        certs: signed.certs.clone(),
    };
    let mut verify = verify_request(connection(auth(AuthMethod::Psk), remote), &request, signed);
    change(&mut verify);
    let verified = verify::verify(theirs, &verify, NOW).0.map_err(|refusal| refusal.0)?;
    Ok((copy, verified.valid_for))
}

#[test]
fn each_kind_of_key_signs_in_the_best_way_the_peer_takes() {
    let root = Entity::ca("Root", None);
    for (kind, hashes, method) in [
        (&rcgen::PKCS_RSA_SHA256, &ALL_HASHES[..], AuthMethodId::DIGITAL_SIGNATURE),
        (&rcgen::PKCS_ECDSA_P256_SHA256, &ALL_HASHES[..], AuthMethodId::DIGITAL_SIGNATURE),
        (&rcgen::PKCS_ECDSA_P384_SHA384, &ALL_HASHES[..], AuthMethodId::DIGITAL_SIGNATURE),
        (&rcgen::PKCS_ED25519, &ALL_HASHES[..], AuthMethodId::DIGITAL_SIGNATURE),
        (&rcgen::PKCS_ECDSA_P256_SHA256, &[], AuthMethodId::ECDSA256),
        (&rcgen::PKCS_ECDSA_P384_SHA384, &[], AuthMethodId::ECDSA384),
        (&rcgen::PKCS_ECDSA_P384_SHA384, &[2], AuthMethodId::DIGITAL_SIGNATURE),
    ] {
        let leaf = Entity::make(params("moon", &["moon.weir.test"]), Some(&root), kind);
        let mine = store(&[&root], &[&leaf], &[]);
        let theirs = store(&[&root], &[], &[]);
        let remote = || Auth { id: like("*.weir.test"), ..auth(public_key(&[])) };
        let local = || Auth { id: like("moon.weir.test"), ..auth(public_key(&[])) };
        let (signed, valid) = run((&mine, local()), (&theirs, remote()), hashes, |_| {}).expect("the same peer");
        assert_eq!((signed.method, signed.certs.len(), signed.local_id), (method, 1, id("moon.weir.test")));
        // Until 2040.
        assert!(valid.is_some_and(|valid| valid > Duration::from_secs(12 * 365 * 86_400)));
        for at in [0, 10, 40] {
            let changed = run((&mine, local()), (&theirs, remote()), hashes, |request| request.octets[at] ^= 1);
            assert!(changed.is_err_and(|why| why.contains("signature")), "{at}");
            let broken = run((&mine, local()), (&theirs, remote()), hashes, |request| request.auth[at] ^= 1);
            assert!(broken.is_err());
        }
        let cut = run((&mine, local()), (&theirs, remote()), hashes, |request| request.auth.truncate(1));
        assert!(cut.is_err());
        let subject =
            run((&mine, auth(public_key(&[]))), (&theirs, auth(public_key(&[]))), hashes, |_| {}).expect("its subject");
        assert!(subject.0.local_id.to_string().contains("moon"));
    }
}

#[test]
fn old_ways_need_words() {
    let root = Entity::ca("Root", None);
    let rsa = Entity::make(params("moon", &["moon.weir.test"]), Some(&root), &rcgen::PKCS_RSA_SHA256);
    let (mine, theirs) = (store(&[&root], &[&rsa], &[]), store(&[&root], &[], &[]));
    let plain = || auth(public_key(&[]));
    let refused = run((&mine, plain()), (&theirs, plain()), &[], |_| {});
    assert!(refused.is_err_and(|why| why.contains("rsa-sha1")));
    let sha1 = || auth(public_key(&["rsa-sha256-sha1"]));
    let (signed, _) =
        run((&mine, sha1()), (&theirs, auth(public_key(&["ike:rsa-sha1"]))), &[], |_| {}).expect("by name");
    assert_eq!(signed.method, AuthMethodId::RSA);
    let refused = run((&mine, sha1()), (&theirs, plain()), &[], |_| {});
    assert!(refused.is_err_and(|why| why.contains("does not allow")));
    // PSS where it is named, PKCS #1 v1.5 otherwise.
    let (signed, _) = run((&mine, plain()), (&theirs, plain()), &ALL_HASHES, |_| {}).expect("PKCS1");
    assert_eq!(signed.auth[0], 15);
    let (signed, _) =
        run((&mine, auth(public_key(&["rsa-sha384"]))), (&theirs, plain()), &ALL_HASHES, |_| {}).expect("PKCS1");
    assert_eq!((signed.auth[0], signed.auth[13]), (15, 12));
    let (signed, _) = run(
        (&mine, auth(public_key(&["ike:rsa/pss"]))),
        (&theirs, auth(public_key(&["ike:rsa/pss-sha256"]))),
        &ALL_HASHES,
        |_| {},
    )
    .expect("PSS");
    assert_eq!(signed.auth[0], 67);
    let edwards = Entity::make(params("sun", &[]), Some(&root), &rcgen::PKCS_ED25519);
    let mine = store(&[&root], &[&edwards], &[]);
    assert!(run((&mine, plain()), (&theirs, plain()), &[2, 3], |_| {}).is_err());
}

#[test]
fn an_identity_has_to_be_in_the_certificate() {
    let root = Entity::ca("Root", None);
    let moon = Entity::leaf("moon", &["moon.weir.test", "192.0.2.9", "moon@weir.test"], &root);
    let (mine, theirs) = (store(&[&root], &[&moon], &[]), store(&[&root], &[], &[]));
    for (name, good) in [
        ("MOON.weir.test", true),
        ("192.0.2.9", true),
        ("moon@weir.test", true),
        ("O=Weir, CN=moon", true),
        ("O=weir, CN=MOON", true),
        ("sun.weir.test", false),
        ("192.0.2.8", false),
        ("O=Weir, CN=*", false),
        ("CN=moon", false),
        ("weir.test", false),
    ] {
        let local = || Auth { id: like(name), ..auth(public_key(&[])) };
        let own = run((&mine, local()), (&theirs, auth(public_key(&[]))), &ALL_HASHES, |_| {});
        assert_eq!(own.is_ok(), good || name.contains('*'), "{name}: {:?}", own.err());
        // The peer verifies for itself.
        let outcome = run((&mine, auth(public_key(&[]))), (&theirs, auth(public_key(&[]))), &ALL_HASHES, |request| {
            request.remote_id = id(name);
        });
        assert_eq!(outcome.is_ok(), good, "{name}");
        assert!(good || outcome.is_err_and(|why| why.contains("does not belong to")), "{name}");
    }
    let wrong = Auth { id: like("*.other.test"), ..auth(public_key(&[])) };
    let refused = run(
        (&mine, Auth { id: like("moon.weir.test"), ..auth(public_key(&[])) }),
        (&theirs, wrong),
        &ALL_HASHES,
        |_| {},
    );
    assert!(refused.is_err_and(|why| why.contains("remote.id")));
}

#[test]
fn pinned_certificates_need_no_authority_and_others_are_refused() {
    let moon = Entity::make(params("moon", &[]), None, &rcgen::PKCS_ED25519);
    let sun = Entity::make(params("sun", &[]), None, &rcgen::PKCS_ED25519);
    let (mine, strangers) = (store(&[], &[&moon], &[]), store(&[], &[], &[]));
    let plain = || auth(public_key(&[]));
    let refused = run((&mine, plain()), (&strangers, plain()), &ALL_HASHES, |_| {});
    assert!(refused.is_err_and(|why| why.contains("no trusted CA")));
    let mut verifier = store(&[], &[], &[]);
    for entity in [&moon, &sun] {
        verifier.add_certificates(&entity.der, CertificateUse::EndEntity, Origin::Vici).expect("a certificate");
    }
    let pinned = |entity: &Entity| Auth { certs: vec![entity.fingerprint()], ..auth(public_key(&[])) };
    assert!(run((&mine, plain()), (&verifier, pinned(&moon)), &ALL_HASHES, |_| {}).is_ok());
    assert!(run((&mine, plain()), (&verifier, plain()), &ALL_HASHES, |_| {}).is_ok());
    assert!(
        run((&mine, plain()), (&verifier, pinned(&sun)), &ALL_HASHES, |_| {})
            .is_err_and(|why| why.contains("remote.certs"))
    );
    // Known from here although the peer sends none; but the certificate of another does not help.
    assert!(run((&mine, plain()), (&verifier, plain()), &ALL_HASHES, |request| request.certs.clear()).is_ok());
    let as_sun = run((&mine, plain()), (&verifier, plain()), &ALL_HASHES, |request| {
        request.certs.clear();
        request.remote_id = id("O=Weir, CN=sun");
    });
    assert!(as_sun.is_err_and(|why| why.contains("signature")));
    let strict = Auth { revocation: Revocation::Strict, ..pinned(&moon) };
    assert!(run((&mine, plain()), (&verifier, strict), &ALL_HASHES, |_| {}).is_err());
    let groups = Auth { groups: vec!["staff".into()], ..pinned(&moon) };
    assert!(run((&mine, plain()), (&verifier, groups), &ALL_HASHES, |_| {}).is_err_and(|why| why.contains("groups")));
}

#[test]
fn raw_keys_are_named_by_the_configuration() {
    let moon = Entity::make(params("moon", &[]), None, &rcgen::PKCS_ECDSA_P384_SHA384);
    let sun = Entity::make(params("sun", &[]), None, &rcgen::PKCS_ED25519);
    let spki = |entity: &Entity| {
        super::super::Certificate::from_der(&entity.der).expect("a certificate").key().spki().to_vec()
    };
    let (mine, theirs) = (store(&[], &[&moon], &[]), store(&[], &[], &[]));
    let local = || Auth { pubkeys: vec![spki(&moon)], id: like("moon"), ..auth(public_key(&[])) };
    let remote = |keys: Vec<Vec<u8>>, pattern| Auth { pubkeys: keys, id: pattern, ..auth(public_key(&[])) };
    let both = || vec![spki(&sun), spki(&moon)];
    let (signed, _) =
        run((&mine, local()), (&theirs, remote(both(), like("moon"))), &ALL_HASHES, |_| {}).expect("named");
    assert_eq!(signed.certs[0].0, CertEncoding::RAW_KEY);
    assert!(
        run((&mine, local()), (&theirs, remote(both(), IdPattern::Any)), &ALL_HASHES, |_| {})
            .is_err_and(|why| why.contains("remote.id"))
    );
    assert!(run((&mine, local()), (&theirs, remote(vec![spki(&sun)], like("moon"))), &ALL_HASHES, |_| {}).is_err());
    assert!(run((&mine, local()), (&theirs, remote(Vec::new(), like("moon"))), &ALL_HASHES, |_| {}).is_err());
    // Without a CERT payload each of the named keys is tried.
    let silent =
        run((&mine, local()), (&theirs, remote(both(), like("moon"))), &ALL_HASHES, |asked| asked.certs.clear());
    assert!(silent.is_ok());
    let no_id = || Auth { pubkeys: vec![spki(&moon)], ..auth(public_key(&[])) };
    let (signed, _) =
        run((&mine, no_id()), (&theirs, remote(both(), IdPattern::Any)), &ALL_HASHES, |_| {}).expect("by its key ID");
    let key = super::super::Certificate::from_der(&moon.der).expect("a certificate").key().clone();
    assert_eq!((signed.local_id.kind, &signed.local_id.data[..]), (IdType::KEY_ID, &key.spki_id()[..]));
    // A key in the directory pubkey does not authorise a peer by itself; the reason names the
    // setting.
    let mut verifier = store(&[], &[], &[]);
    verifier.add_public_key(&spki(&moon), Origin::Vici).expect("a key");
    let unnamed = run((&mine, no_id()), (&verifier, remote(Vec::new(), IdPattern::Any)), &ALL_HASHES, |asked| {
        asked.certs.clear()
    });
    assert!(unnamed.is_err_and(|why| why.contains("remote.pubkeys")));
}

#[test]
fn shared_keys_belong_to_pairs() {
    let (mut mine, mut theirs) = (Store::default(), Store::default());
    mine.add_shared(psk("a", b"a long enough shared key", &["moon", "sun"]), Origin::Vici);
    theirs.add_shared(psk("a", b"a long enough shared key", &["moon"]), Origin::Vici);
    theirs.add_shared(psk("eve", b"known only to eve", &["eve"]), Origin::Vici);
    let local = || Auth { id: like("moon"), ..auth(AuthMethod::Psk) };
    let request = sign_request(connection(local(), Auth { id: like("sun"), ..auth(AuthMethod::Psk) }), &[]);
    let signed = || sign::sign(&mine, &request, NOW).map_err(|refusal| refusal.0).expect("a key");
    let verify = |change: &dyn Fn(&mut VerifyRequest)| {
        let mut asked = verify_request(
            connection(Auth { id: like("sun"), ..auth(AuthMethod::Psk) }, auth(AuthMethod::Psk)),
            &request,
            signed(),
        );
        change(&mut asked);
        verify::verify(&theirs, &asked, NOW).0.map(drop).map_err(|refusal| refusal.0)
    };
    assert_eq!(signed().method, AuthMethodId::PSK);
    assert_eq!(verify(&|_| {}), Ok(()));
    assert!(verify(&|asked| asked.octets[3] ^= 1).is_err_and(|why| why.contains("differ")));
    assert!(verify(&|asked| asked.auth.clear()).is_err());
    assert!(verify(&|asked| asked.remote_id = id("mars")).is_err_and(|why| why.contains("no shared key")));
    // A key of one peer does not make it another.
    assert!(verify(&|asked| asked.remote_id = id("eve")).is_err_and(|why| why.contains("differ")));
    // A MAC instead of a signature, a signature instead of a MAC, no identity, and EAP that did not
    // take place.
    let kinds = [auth(public_key(&[])), auth(AuthMethod::Eap(None))];
    for remote in kinds {
        assert!(verify(&|asked| asked.candidates = vec![Arc::new(connection(local(), remote.clone()))]).is_err());
    }
    assert!(verify(&|asked| asked.method = AuthMethodId::NULL).is_err());
    assert!(verify(&|asked| asked.method = AuthMethodId::DIGITAL_SIGNATURE).is_err());
    assert!(verify(&|asked| asked.eap_msk = Some(Secret::from_slice(&[0; 64]))).is_err());
    let query = |name: &str| PskQuery {
        local_id: Some(id("moon")),
        remote_id: Some(id(name)),
        local: paths().local,
        remote: paths().remote,
        prf: Prf::HmacSha1,
        nonces: b"nonces".to_vec(),
    };
    let skeyid = sign::skeyid(&mine, &query("sun")).map_err(|refusal| refusal.0).expect("a key");
    assert!(skeyid == Prf::HmacSha1.compute(b"a long enough shared key", &[b"nonces"]));
    assert!(sign::skeyid(&mine, &query("eve")).is_err());
}

/// Main mode finds a key by address or by identity, and several peers may be at one address.
#[test]
fn a_key_of_an_address_is_not_that_of_another_identity() {
    let mut mine = Store::default();
    mine.add_shared(psk("a", b"the key of the peer at the address", &["192.0.2.2"]), Origin::Vici);
    mine.add_shared(psk("b", b"the key of the peer with the name", &["b@y.test"]), Origin::Vici);
    mine.add_shared(psk("some", b"the key of peers with a pattern", &["*.weir.test"]), Origin::Vici);
    let skeyid = |remote_id: Option<&str>| {
        let query = PskQuery {
            local_id: Some(id("moon")),
            remote_id: remote_id.map(id),
            local: paths().local,
            remote: paths().remote,
            prf: Prf::HmacSha1,
            nonces: b"nonces".to_vec(),
        };
        sign::skeyid(&mine, &query).map_err(|refusal| refusal.0).expect("a key")
    };
    let of = |secret: &[u8]| Prf::HmacSha1.compute(secret, &[b"nonces"]);
    assert!(skeyid(Some("b@y.test")) == of(b"the key of the peer with the name"));
    assert!(skeyid(Some("c.weir.test")) == of(b"the key of peers with a pattern"));
    // No key names these peers.
    assert!(skeyid(Some("c@y.test")) == of(b"the key of the peer at the address"));
    assert!(skeyid(None) == of(b"the key of the peer at the address"));
    assert!(skeyid(Some("192.0.2.2")) == of(b"the key of the peer at the address"));
}

/// RFC 7296 §2.15 with the key of EAP.
#[test]
fn the_key_of_eap_takes_the_place_of_a_shared_key() {
    let mut request = sign_request(connection(auth(AuthMethod::Eap(None)), auth(AuthMethod::Any)), &[]);
    assert!(sign::sign(&Store::default(), &request, NOW).is_err());
    request.eap_msk = Some(Secret::from_slice(&[5; 64]));
    request.local_id = Some(id("carol"));
    let signed = || sign::sign(&Store::default(), &request, NOW).map_err(|refusal| refusal.0).expect("the key");
    let asked = || verify_request(connection(auth(AuthMethod::Psk), auth(AuthMethod::Eap(None))), &request, signed());
    assert!(verify::verify(&Store::default(), &asked(), NOW).0.is_ok());
    let mut other = asked();
    other.eap_msk = Some(Secret::from_slice(&[6; 64]));
    assert!(verify::verify(&Store::default(), &other, NOW).0.is_err());
    other.eap_msk = None;
    assert!(verify::verify(&Store::default(), &other, NOW).0.is_err());
}

#[test]
fn ikev1_signs_its_hash() {
    let root = Entity::ca("Root", None);
    for (kind, method, other) in [
        (&rcgen::PKCS_RSA_SHA256, AuthMethodId::RSA, AuthMethodId::ECDSA256),
        (&rcgen::PKCS_ECDSA_P256_SHA256, AuthMethodId::ECDSA256, AuthMethodId::RSA),
        (&rcgen::PKCS_ECDSA_P384_SHA384, AuthMethodId::ECDSA384, AuthMethodId::ECDSA256),
    ] {
        let leaf = Entity::make(params("moon", &["moon.weir.test"]), Some(&root), kind);
        let (mine, theirs) = (store(&[&root], &[&leaf], &[]), store(&[&root], &[], &[]));
        let local = || Auth { id: like("moon.weir.test"), ..auth(public_key(&[])) };
        let mut request = sign_request(connection(local(), auth(AuthMethod::Any)), &[]);
        request.message_and_nonce = vec![9; 20];
        request.v1 = Some(SignV1 { method, authorities: Vec::new() });
        let signed = sign::sign(&mine, &request, NOW).map_err(|refusal| refusal.0).expect("a signature");
        assert_eq!(signed.method, method);
        let mut asked = verify_request(connection(auth(AuthMethod::Psk), auth(public_key(&[]))), &request, signed);
        assert!(verify::verify(&theirs, &asked, NOW).0.is_ok());
        asked.octets[0] ^= 1;
        assert!(verify::verify(&theirs, &asked, NOW).0.is_err());
        asked.octets[0] ^= 1;
        asked.method = other;
        assert!(verify::verify(&theirs, &asked, NOW).0.is_err(), "a key of another kind than was agreed");
        let connection = Arc::new(connection(local(), auth(public_key(&[]))));
        let keys = sign::keys_v1(&mine, &connection, NOW);
        assert_eq!((keys.signers, keys.refusal), (vec![(method, id("moon.weir.test"))], None));
        assert_eq!(keys.authorities, [super::super::Certificate::from_der(&root.der).expect("a CA").subject()]);
        assert!(sign::keys_v1(&theirs, &connection, NOW).refusal.is_some());
        request.v1 = Some(SignV1 { method: other, authorities: Vec::new() });
        let refused = sign::sign(&mine, &request, NOW);
        assert!(refused.is_err_and(|why| why.0.contains("cannot sign by method")));
    }
}

#[test]
fn xauth_compares_the_password_of_the_user() {
    let mut mine = Store::default();
    let password = |name: &str, owners: &[&str], secret: &[u8]| {
        let owners = owners.iter().map(|owner| like(owner)).collect();
        Shared::new(name, SharedKind::Eap, owners, Secret::from_slice(secret))
    };
    mine.add_shared(password("xauth-alice", &["alice"], b"a password"), Origin::File);
    mine.add_shared(password("xauth-bob", &["bob@weir.test"], b"another"), Origin::File);
    let asked = |user: &[u8], secret: &[u8], pattern: Option<&str>| {
        let xauth = Auth { eap_id: pattern.map(like), ..auth(AuthMethod::XAuth) };
        let remote = vec![auth(AuthMethod::Psk), xauth];
        let connection = Arc::new(Connection { remote, ..connection(auth(AuthMethod::Psk), auth(AuthMethod::Psk)) });
        let query = XAuthQuery { connection, user: user.to_vec(), password: Secret::from_slice(secret) };
        xauth::check(&mine, &query).map_err(|refusal| refusal.0)
    };
    assert_eq!(asked(b"alice", b"a password", None).as_deref(), Ok("alice"));
    assert_eq!(asked(b"alice", b"a password\0", Some("alice")).as_deref(), Ok("alice"));
    assert_eq!(asked(b"bob@weir.test", b"another", Some("*@weir.test")).as_deref(), Ok("bob@weir.test"));
    for (user, secret, pattern, why) in [
        (&b"alice"[..], &b"another"[..], None, "the password of 'alice' is wrong"),
        (b"alice", b"a passwor", None, "is wrong"),
        (b"alice", b"", None, "is wrong"),
        (b"carol", b"a password", None, "has no password"),
        (b"\xff\xfe", b"a password", None, "has no password"),
        (b"alice", b"a password", Some("*@weir.test"), "does not match 'xauth_id'"),
    ] {
        let refused = asked(user, secret, pattern).expect_err("a refusal");
        assert!(refused.contains(why) && !refused.contains("a password "), "{refused}");
    }
    let found = xauth::password(&mine, &id("alice")).map_err(|refusal| refusal.0);
    assert!(found.is_ok_and(|found| found[..] == b"a password"[..]));
    assert!(xauth::password(&mine, &id("carol")).is_err_and(|refusal| refusal.0.contains("section 'xauth'")));
}

#[test]
fn ikev1_selects_the_certificate_of_the_ca_that_the_peer_names() {
    let (one, two) = (Entity::ca("One", None), Entity::ca("Two", None));
    let (a, b) = (Entity::leaf("a", &["moon.weir.test"], &one), Entity::leaf("b", &["moon.weir.test"], &two));
    let mine = store(&[&one, &two], &[&a, &b], &[]);
    for (ca, leaf) in [(&one, &a), (&two, &b)] {
        let name = super::super::Certificate::from_der(&ca.der).expect("a CA").subject().to_vec();
        let mut request = sign_request(connection(auth(public_key(&[])), auth(AuthMethod::Any)), &[]);
        request.v1 = Some(SignV1 { method: AuthMethodId::ECDSA256, authorities: vec![name] });
        let signed = sign::sign(&mine, &request, NOW).map_err(|refusal| refusal.0).expect("a signature");
        assert_eq!(signed.certs[0].1, leaf.der);
    }
}

#[test]
fn the_right_certificate_is_chosen() {
    let (one, two) = (Entity::ca("One", None), Entity::ca("Two", None));
    let between = Entity::ca("Between", Some(&two));
    let (a, b) = (Entity::leaf("a", &["moon.weir.test"], &one), Entity::leaf("b", &["moon.weir.test"], &between));
    let mine = store(&[&one, &two], &[&a, &b], &[&between]);
    let local = || Auth { id: like("moon.weir.test"), ..auth(public_key(&[])) };
    let chosen = |change: &dyn Fn(&mut SignRequest, &mut Auth)| {
        let (mut request, mut round) = (sign_request(connection(local(), auth(AuthMethod::Any)), &ALL_HASHES), local());
        change(&mut request, &mut round);
        request.connection = Arc::new(connection(round, auth(AuthMethod::Any)));
        sign::sign(&mine, &request, NOW).map(|signed| signed.certs).map_err(|refusal| refusal.0)
    };
    let spki_id = |entity: &Entity| super::super::Certificate::from_der(&entity.der).expect("a CA").key().spki_id();
    let certs = chosen(&|request, _| request.peer_authorities = vec![spki_id(&two)]).expect("of the second CA");
    // With the intermediates, without the root.
    assert_eq!(certs.iter().map(|(_, der)| der.clone()).collect::<Vec<_>>(), [b.der.clone(), between.der.clone()]);
    let certs = chosen(&|request, _| request.peer_authorities = vec![spki_id(&one)]).expect("of the first CA");
    assert_eq!(certs[0].1, a.der);
    assert_eq!(chosen(&|_, round| round.certs = vec![b.fingerprint()]).expect("the one named")[0].1, b.der);
    assert_eq!(chosen(&|_, round| round.cacerts = vec![one.fingerprint()]).expect("of the CA named")[0].1, a.der);
    assert!(chosen(&|_, round| round.certs = vec![[0; 32]]).is_err());
    let theirs = verify::trusted_authorities(&mine, &connection(local(), auth(public_key(&[]))));
    assert_eq!(theirs.len(), 2);
    let limited = connection(local(), Auth { cacerts: vec![one.fingerprint()], ..auth(public_key(&[])) });
    assert_eq!(verify::trusted_authorities(&mine, &limited), [spki_id(&one)]);
}

#[test]
fn certificates_of_peers_that_authenticated_are_listed_until_they_are_flushed() {
    let root = Entity::ca("Root", None);
    let leaf = Entity::make(params("moon", &["moon.weir.test"]), Some(&root), &rcgen::PKCS_ECDSA_P256_SHA256);
    let mine = store(&[&root], &[&leaf], &[]);
    let (woken, wakes) = std::sync::mpsc::channel();
    let credentials =
        Credentials::spawn_with(1, Arc::new(|| NOW), move || woken.send(()).expect("the receiver exists"));
    credentials.with_store(|there| *there = store(&[&root], &[], &[]));
    let ask = |request_id, spoilt: bool| {
        let request = sign_request(connection(auth(public_key(&[])), auth(AuthMethod::Any)), &ALL_HASHES);
        let signed = sign::sign(&mine, &request, NOW).expect("a signature");
        let remote = connection(auth(AuthMethod::Psk), auth(public_key(&[])));
        let mut request = verify_request(remote, &request, signed);
        request.auth[40] ^= u8::from(spoilt);
        credentials.ask(RequestId(request_id), CredentialRequest::Verify(Box::new(request)));
        wakes.recv_timeout(Duration::from_secs(10)).expect("an answer");
        let answers: Vec<_> = credentials.answers().collect();
        assert!(matches!(&answers[..], [(_, CredentialResponse::Verified(outcome))] if outcome.is_ok() != spoilt));
        let listed = credentials.received();
        listed.into_iter().map(|one| (one.der, one.flag, one.has_private_key)).collect::<Vec<_>>()
    };
    assert_eq!(ask(1, true), []);
    assert_eq!(ask(2, false), [(leaf.der.clone(), "NONE", false)]);
    assert_eq!(ask(3, false).len(), 1, "once, however often it comes");
    credentials.flush_received();
    assert!(credentials.received().is_empty());
    // One that is loaded is listed with the others.
    credentials.with_store(|there| *there = store(&[&root], &[&leaf], &[]));
    assert_eq!(ask(4, false), []);
}

#[test]
fn answers_that_follow_one_another_share_wake_ups() {
    let (woken, wakes) = std::sync::mpsc::channel();
    let credentials =
        Credentials::spawn_with(1, Arc::new(|| NOW), move || woken.send(()).expect("the receiver exists"));
    // While the store is being changed nothing is answered, so that all of them wait.
    credentials.with_store(|_| {
        for request_id in 0..100 {
            credentials.ask(RequestId(request_id), CredentialRequest::Ppk(id("quantum")));
        }
    });
    let (mut seen, mut count) = (0, 0);
    while seen < 100 {
        wakes.recv_timeout(Duration::from_secs(10)).expect("the last answer is announced as well");
        seen += credentials.answers().count();
        count += 1;
    }
    count += wakes.try_iter().count();
    assert!(count < 50, "{count} wake-ups");
}

#[test]
fn the_task_answers_forgets_and_changes() {
    let (woken, wakes) = std::sync::mpsc::channel();
    let credentials =
        Credentials::spawn_with(2, Arc::new(|| NOW), move || woken.send(()).expect("the receiver exists"));
    credentials.with_store(|store| {
        let ppk = Shared::new("q", SharedKind::Ppk, vec![like("quantum")], Secret::from_slice(b"ppk"));
        store.add_shared(ppk, Origin::Vici);
    });
    for request_id in 0..20 {
        credentials.ask(
            RequestId(request_id),
            CredentialRequest::Ppk(id(if request_id % 2 == 0 { "quantum" } else { "other" })),
        );
    }
    let mut seen = Vec::new();
    while seen.len() < 20 {
        wakes.recv_timeout(Duration::from_secs(10)).expect("an answer");
        seen.extend(credentials.answers());
    }
    for (request_id, answer) in seen {
        let CredentialResponse::Ppk(key) = answer else { panic!("another answer") };
        assert_eq!(key.is_some(), request_id.0 % 2 == 0);
    }
    // While the store is being changed nothing is answered, so these are forgotten in time.
    credentials.with_store(|store| {
        for request_id in 100..110 {
            credentials.ask(RequestId(request_id), CredentialRequest::Ppk(id("quantum")));
            credentials.forget(RequestId(request_id));
        }
        store.clear(Origin::Vici);
    });
    credentials.ask(RequestId(200), CredentialRequest::Ppk(id("quantum")));
    let mut left = Vec::new();
    while left.is_empty() {
        wakes.recv_timeout(Duration::from_secs(10)).expect("an answer");
        left.extend(credentials.answers());
    }
    assert!(matches!(&left[..], [(RequestId(200), CredentialResponse::Ppk(None))]));
}
