//! Revocation: what is fetched, and each verdict of CRLs and OCSP responses.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Mutex;
use std::time::Instant;

use ike::config::{Ocsp, Revocation};
use ike::output::{CredentialRequest, CredentialResponse, RequestId};
use rcgen::{
    CertificateRevocationListParams, CrlDistributionPoint, CustomExtension, ExtendedKeyUsagePurpose, KeyIdMethod,
    RevokedCertParams, SerialNumber,
};

use super::super::constraint::Constraints;
use super::super::der::element;
use super::super::revocation::ocsp::Response;
use super::super::verify::{Sent, trusted};
use super::super::{Certificate, Credentials, FetchSettings, Resolve, Source, sign};
use super::*;

const DAY: Duration = Duration::from_secs(86_400);

fn with_serial(serial: u64, above: &Entity, change: impl FnOnce(&mut CertificateParams)) -> Entity {
    let mut params = params("moon", &["moon.weir.test"]);
    params.serial_number = Some(SerialNumber::from(serial));
    change(&mut params);
    Entity::make(params, Some(above), &rcgen::PKCS_ECDSA_P256_SHA256)
}

/// Authority information access with one OCSP server.
fn aia(uri: &str) -> CustomExtension {
    let ocsp = element(6, &[&[0x2b, 6, 1, 5, 5, 7, 48, 1]]);
    let access = element(0x30, &[&ocsp, &element(0x86, &[uri.as_bytes()])]);
    CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], element(0x30, &[&access]))
}

/// A CRL of 2026 by `issuer` until a year, with serial numbers.
fn list(issuer: &Entity, serials: &[u64], number: u64, until: i32) -> Vec<u8> {
    let revoked = serials.iter().map(|serial| RevokedCertParams {
        serial_number: SerialNumber::from(*serial),
        revocation_time: rcgen::date_time_ymd(2025, 1, 1),
        reason_code: None,
        invalidity_date: None,
    });
    let params = CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2026, 1, number as u8),
        next_update: rcgen::date_time_ymd(until, 1, 1),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(&issuer.issuer).expect("a list").der().to_vec()
}

/// A CRL made by hand: entries are serial numbers with reasons; a delta list names the number of
/// its base.
fn by_hand(
    issuer: &Entity,
    entries: &[(u8, Option<u8>)],
    number: u8,
    base: Option<u8>,
    freshest: Option<&str>,
    next: Option<&str>,
) -> Vec<u8> {
    let algorithm = element(0x30, &[&element(6, &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]])]);
    let time = |text: &str| element(0x18, &[text.as_bytes()]);
    let extension = |oid: &[u8], critical: bool, value: Vec<u8>| {
        let critical: &[u8] = if critical { &[1, 1, 0xff] } else { &[] };
        element(0x30, &[&element(6, &[oid]), critical, &element(4, &[&value])])
    };
    let revoked: Vec<Vec<u8>> = entries
        .iter()
        .map(|(serial, reason)| {
            let reason =
                reason.map(|reason| element(0x30, &[&extension(&[0x55, 0x1d, 21], false, element(10, &[&[reason]]))]));
            element(0x30, &[&element(2, &[&[*serial]]), &time("20250101000000Z"), &reason.unwrap_or_default()])
        })
        .collect();
    let revoked = match revoked.is_empty() {
        true => Vec::new(),
        false => element(0x30, &[&revoked.concat()]),
    };
    let mut extensions = extension(&[0x55, 0x1d, 20], false, element(2, &[&[number]]));
    if let Some(base) = base {
        extensions.extend(extension(&[0x55, 0x1d, 27], true, element(2, &[&[base]])));
    }
    if let Some(uri) = freshest {
        let name = element(0xa0, &[&element(0xa0, &[&element(0x86, &[uri.as_bytes()])])]);
        extensions.extend(extension(&[0x55, 0x1d, 46], false, element(0x30, &[&element(0x30, &[&name])])));
    }
    let ca = Certificate::from_der(&issuer.der).expect("a CA");
    let day = format!("202601{number:02}000000Z");
    let tbs = element(
        0x30,
        &[
            &[2, 1, 1],
            &algorithm,
            ca.subject(),
            &time(&day),
            &next.map(time).unwrap_or_default(),
            &revoked,
            &element(0xa0, &[&element(0x30, &[&extensions])]),
        ],
    );
    signed(issuer, &tbs, &algorithm)
}

fn signed(issuer: &Entity, tbs: &[u8], algorithm: &[u8]) -> Vec<u8> {
    let mut store = Store::default();
    store.add_private_key(&issuer.key_der, &[], Origin::File).expect("a key");
    let ca = Certificate::from_der(&issuer.der).expect("a CA");
    let key = store.key_of(ca.key()).expect("its key");
    let scheme = crypto::ike::SignatureScheme::Ecdsa(crypto::ike::Hash::Sha256);
    let signature = key.sign(scheme, &[tbs]).expect("a signature");
    element(0x30, &[tbs, algorithm, &element(3, &[&[0], &signature])])
}

fn policy(revocation: Revocation) -> Auth {
    Auth { revocation, ..auth(public_key(&[])) }
}

fn judge(store: &Store, leaf: &Entity, revocation: Revocation, now: Duration) -> Result<(), String> {
    judge_with(store, leaf, &[], revocation, now)
}

fn judge_with(
    store: &Store,
    leaf: &Entity,
    responses: &[Response],
    revocation: Revocation,
    now: Duration,
) -> Result<(), String> {
    let certificate = Certificate::from_der(&leaf.der).expect("a certificate");
    let sent = Sent { responses, ..Sent::default() };
    let checked = trusted(store.trust(), &certificate, sent, &policy(revocation), &Constraints::parse(&[]), now);
    checked.outcome.map(drop).map_err(|why| why.to_string())
}

fn with_lists(root: &Entity, lists: &[Vec<u8>]) -> Store {
    let mut store = store(&[root], &[], &[]);
    for list in lists {
        store.add_crls(list, Origin::File).expect("a list");
    }
    store
}

const POLICIES: [Revocation; 3] = [Revocation::Relaxed, Revocation::IfUri, Revocation::Strict];

/// The verdicts of the three policies.
fn verdicts(store: &Store, leaf: &Entity, now: Duration) -> [bool; 3] {
    POLICIES.map(|policy| judge(store, leaf, policy, now).is_ok())
}

#[test]
fn ifuri_wants_information_where_anything_says_that_there_is_some() {
    let root = Entity::ca("Root", None);
    let plain = with_serial(7, &root, |_| ());
    let cdp = with_serial(7, &root, |params| {
        params.crl_distribution_points = vec![CrlDistributionPoint { uris: vec!["ldap://weir.test/crl".into()] }];
    });
    let ocsp = with_serial(7, &root, |params| params.custom_extensions = vec![aia("http://weir.test/ocsp")]);
    let mut store = store(&[&root], &[], &[]);
    assert_eq!(verdicts(&store, &plain, NOW), [true, true, false]);
    assert_eq!(verdicts(&store, &cdp, NOW), [true, false, false]);
    assert_eq!(verdicts(&store, &ocsp, NOW), [true, false, false]);
    let authority = Certificate::from_der(&root.der).expect("a CA");
    let source = Source { authority, crl_uris: Vec::new(), ocsp_uris: Vec::new() };
    for (crl, ocsp, good) in [(true, false, false), (false, true, false), (false, false, true)] {
        let uris = |there| if there { vec!["http://weir.test/".to_owned()] } else { Vec::new() };
        store.set_sources(vec![Source { crl_uris: uris(crl), ocsp_uris: uris(ocsp), ..source.clone() }]);
        assert_eq!(verdicts(&store, &plain, NOW), [true, good, false]);
    }
    // A list past its time announces that there is a newer one.
    let stale = with_lists(&root, &[list(&root, &[], 1, 2027)]);
    assert_eq!(verdicts(&stale, &plain, NOW + DAY), [true, false, false]);
    let fresh = with_lists(&root, &[list(&root, &[], 1, 2030)]);
    for leaf in [&plain, &cdp, &ocsp] {
        assert_eq!(verdicts(&fresh, leaf, NOW), [true; 3]);
    }
}

#[test]
fn a_list_without_a_next_update_is_current_for_a_week() {
    let root = Entity::ca("Root", None);
    let leaf = with_serial(7, &root, |_| ());
    let store = with_lists(&root, &[by_hand(&root, &[(8, None)], 1, None, None, None)]);
    // 2026-01-01.
    let made = Duration::from_secs(1_767_225_600);
    assert_eq!(verdicts(&store, &leaf, made + DAY * 7), [true; 3]);
    assert_eq!(verdicts(&store, &leaf, made + DAY * 7 + Duration::from_secs(1)), [true, false, false]);
    assert_eq!(verdicts(&store, &with_serial(8, &root, |_| ()), made + DAY * 99), [false; 3]);
}

#[test]
fn delta_lists_change_their_complete_list() {
    const HOLD: Option<u8> = Some(6);
    const REMOVED: Option<u8> = Some(8);
    let root = Entity::ca("Root", None);
    let leaf = |serial| with_serial(serial, &root, |_| ());
    let until = Some("20270601000000Z");
    let base = by_hand(&root, &[(20, HOLD), (21, None)], 3, None, None, Some("20260201000000Z"));
    let delta = |base, number, entries: &[(u8, Option<u8>)]| by_hand(&root, entries, number, Some(base), None, until);
    let plain = with_lists(&root, std::slice::from_ref(&base));
    assert_eq!(verdicts(&plain, &leaf(20), NOW), [false; 3]);
    assert_eq!(verdicts(&plain, &leaf(22), NOW), [true, false, false]);
    // The current delta list keeps the old complete list going.
    let both = with_lists(&root, &[base.clone(), delta(2, 5, &[(20, REMOVED), (22, None)])]);
    assert_eq!(verdicts(&both, &leaf(20), NOW), [true; 3]);
    assert_eq!(verdicts(&both, &leaf(21), NOW), [false; 3]);
    assert_eq!(verdicts(&both, &leaf(22), NOW), [false; 3]);
    assert_eq!(verdicts(&both, &leaf(23), NOW), [true; 3]);
    // One that continues a newer list, or is not newer than the list, changes nothing but what it
    // revokes.
    for unfit in [delta(4, 5, &[(20, REMOVED)]), delta(2, 3, &[(20, REMOVED)])] {
        let store = with_lists(&root, &[base.clone(), unfit]);
        assert_eq!(verdicts(&store, &leaf(20), NOW), [false; 3]);
        assert_eq!(verdicts(&store, &leaf(23), NOW), [true, false, false]);
    }
    // A delta list alone is no list.
    assert_eq!(verdicts(&with_lists(&root, &[delta(2, 5, &[])]), &leaf(23), NOW), [true, true, false]);
    // A newer complete list without the certificate ends the hold, but no revocation.
    let newer = by_hand(&root, &[], 9, None, None, until);
    let store = with_lists(&root, &[newer]);
    assert_eq!(verdicts(&store, &leaf(20), NOW), [true; 3]);
}

/// An OCSP response of `signer` about a certificate; status as the responder encodes it.
fn response(
    signer: &Entity,
    (certificate, issuer): (&Entity, &Entity),
    status: &[u8],
    times: (&str, Option<&str>),
    nonce: Option<&[u8]>,
    enclosed: bool,
) -> Vec<u8> {
    let of = |entity: &Entity| Certificate::from_der(&entity.der).expect("a certificate");
    let (certificate, issuer, by) = (of(certificate), of(issuer), of(signer));
    let sha1 = |bytes: &[u8]| crypto::ike::Hash::Sha1.digest(&[bytes]);
    // SubjectPublicKeyInfo of P-256: the 65 octets of the point at its end.
    let point = &issuer.key().spki()[26..];
    let id = element(
        0x30,
        &[
            &element(0x30, &[&element(6, &[&[0x2b, 0x0e, 3, 2, 0x1a]]), &[5, 0]]),
            &element(4, &[&sha1(issuer.subject())]),
            &element(4, &[&sha1(point)]),
            &element(2, &[certificate.serial()]),
        ],
    );
    let time = |text: &str| element(0x18, &[text.as_bytes()]);
    let next = times.1.map(|next| element(0xa0, &[&time(next)])).unwrap_or_default();
    let single = element(0x30, &[&id, status, &time(times.0), &next]);
    let nonce = nonce.map(|nonce| {
        let value = element(4, &[&element(4, &[nonce])]);
        let one = element(0x30, &[&element(6, &[&[0x2b, 6, 1, 5, 5, 7, 48, 1, 2]]), &value]);
        element(0xa1, &[&element(0x30, &[&one])])
    });
    let tbs = element(
        0x30,
        &[&element(0xa1, &[by.subject()]), &time(times.0), &element(0x30, &[&single]), &nonce.unwrap_or_default()],
    );
    let algorithm = element(0x30, &[&element(6, &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]])]);
    let three = signed(signer, &tbs, &algorithm);
    let mut parts = super::super::der::Reader::new(&three).inside(0x30).expect("three parts");
    let mut inside: Vec<u8> = Vec::new();
    while let Some(part) = parts.any() {
        inside.extend(part.whole);
    }
    if enclosed {
        inside.extend(element(0xa0, &[&element(0x30, &[&signer.der])]));
    }
    let basic = element(0x30, &[&inside]);
    let bytes = element(0x30, &[&element(6, &[&[0x2b, 6, 1, 5, 5, 7, 48, 1, 1]]), &element(4, &[&basic])]);
    element(0x30, &[&[10, 1, 0], &element(0xa0, &[&bytes])])
}

const GOOD: &[u8] = &[0x80, 0];
const UNKNOWN: &[u8] = &[0x82, 0];

fn revoked() -> Vec<u8> {
    element(0xa1, &[&element(0x18, &[b"20260101000000Z"])])
}

/// About NOW, 2027-01-15.
const TIMES: (&str, Option<&str>) = ("20270115000000Z", Some("20270116000000Z"));

#[test]
fn ocsp_responses_count_by_who_signed_them_and_when() {
    let root = Entity::ca("Root", None);
    let leaf = with_serial(7, &root, |_| ());
    let store = store(&[&root], &[], &[]);
    let judged = |der: &[u8], now| {
        let response = Response::from_der(der).expect("a response");
        POLICIES.map(|policy| judge_with(&store, &leaf, std::slice::from_ref(&response), policy, now).is_ok())
    };
    let by_root = |status: &[u8], times| response(&root, (&leaf, &root), status, times, None, false);
    assert_eq!(judged(&by_root(GOOD, TIMES), NOW), [true; 3]);
    assert_eq!(judged(&by_root(&revoked(), TIMES), NOW), [false; 3]);
    assert_eq!(judged(&by_root(UNKNOWN, TIMES), NOW), [true, true, false]);
    // Old, of tomorrow, without an end: what revokes stays.
    assert_eq!(judged(&by_root(GOOD, TIMES), NOW + DAY * 2), [true, true, false]);
    assert_eq!(judged(&by_root(&revoked(), TIMES), NOW + DAY * 2), [false; 3]);
    assert_eq!(judged(&by_root(GOOD, ("20270116000000Z", None)), NOW), [true, true, false]);
    assert_eq!(judged(&by_root(GOOD, ("20270115075500Z", None)), NOW), [true; 3]);
    assert_eq!(judged(&by_root(GOOD, ("20270115070000Z", None)), NOW), [true, true, false]);
    // About another certificate, by another CA of the same name, changed.
    let other = with_serial(8, &root, |_| ());
    assert_eq!(judged(&response(&root, (&other, &root), GOOD, TIMES, None, false), NOW), [true, true, false]);
    let impostor = Entity::ca("Root", None);
    assert_eq!(judged(&response(&impostor, (&leaf, &root), GOOD, TIMES, None, true), NOW), [true, true, false]);
    let mut changed = by_root(&revoked(), TIMES);
    let last = changed.len() - 1;
    changed[last] ^= 1;
    assert_eq!(judged(&changed, NOW), [true, true, false]);
    for at in 0..changed.len() {
        let _ = Response::from_der(&changed[..at]);
    }
    // Responders that the CA appointed, or not.
    let responder = |above: &Entity, purpose: ExtendedKeyUsagePurpose, serial: u64| {
        let mut params = params("OCSP", &[]);
        params.extended_key_usages = vec![purpose];
        params.serial_number = Some(SerialNumber::from(serial));
        Entity::make(params, Some(above), &rcgen::PKCS_ECDSA_P256_SHA256)
    };
    let appointed = responder(&root, ExtendedKeyUsagePurpose::OcspSigning, 50);
    let good_by = |entity: &Entity| response(entity, (&leaf, &root), GOOD, TIMES, None, true);
    assert_eq!(judged(&good_by(&appointed), NOW), [true; 3]);
    assert_eq!(judged(&good_by(&responder(&root, ExtendedKeyUsagePurpose::ServerAuth, 51)), NOW), [true, true, false]);
    let elsewhere = responder(&Entity::ca("Root", None), ExtendedKeyUsagePurpose::OcspSigning, 52);
    assert_eq!(judged(&good_by(&elsewhere), NOW), [true, true, false]);
    // Itself revoked, in a list that is out of date for everything else.
    let old = |entries: &[(u8, Option<u8>)]| {
        with_lists(&root, &[by_hand(&root, entries, 1, None, None, Some("20260201000000Z"))])
    };
    let response = [Response::from_der(&good_by(&appointed)).expect("a response")];
    assert!(judge_with(&old(&[]), &leaf, &response, Revocation::Strict, NOW).is_ok());
    assert!(judge_with(&old(&[(50, None)]), &leaf, &response, Revocation::Strict, NOW).is_err());
}

type Pages = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// A server on the loopback: files by path, and OCSP responses that `answer` makes from the nonce.
fn serve(pages: Pages, answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = vec![0; 8192];
            let count = stream.read(&mut request).unwrap_or(0);
            let text = String::from_utf8_lossy(&request[..count]).into_owned();
            let mut words = text.split(' ');
            let (verb, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default().to_owned());
            log.lock().expect("no panic").push(path.clone());
            let body = match verb {
                // The nonce is what the request ends with.
                "POST" => Some(answer(&request[count - 32..count])),
                _ => pages.lock().expect("no panic").get(&path).cloned(),
            };
            let _ = match body {
                Some(body) => {
                    let header = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                    stream.write_all(&[header.as_bytes(), &body].concat())
                }
                None => stream.write_all(b"HTTP/1.1 404 Not Found\r\n\r\n"),
            };
        }
    });
    (base, seen)
}

/// A peer that authenticates itself to a gateway, and the answer of its credentials.
struct Gateway {
    credentials: Credentials,
    now: Arc<Mutex<Duration>>,
}

impl Gateway {
    fn new(root: &Entity, source: Source, folder: Option<std::path::PathBuf>) -> Self {
        let now = Arc::new(Mutex::new(NOW));
        let clock = Arc::clone(&now);
        let credentials = Credentials::spawn_with(1, Arc::new(move || *clock.lock().expect("no panic")), || ());
        credentials.with_store(|store| {
            store.add_certificates(&root.der, CertificateUse::Authority, Origin::File).expect("a CA");
            store.set_sources(vec![source]);
        });
        credentials.fetch(FetchSettings { folder, mark: None, resolve: Resolve::by_host() });
        Self { credentials, now }
    }

    fn admits(&self, leaf: &Entity, root: &Entity, revocation: Revocation) -> Result<(), String> {
        let local = Auth { id: like("moon.weir.test"), ..auth(public_key(&[])) };
        let request = sign_request(connection(local.clone(), auth(public_key(&[]))), &ALL_HASHES);
        let signed = sign::sign(&store(&[root], &[leaf], &[]), &request, NOW).map_err(|refusal| refusal.0)?;
        let verify = verify_request(connection(local, policy(revocation)), &request, signed);
        let request_id = RequestId(7);
        self.credentials.ask(request_id, CredentialRequest::Verify(Box::new(verify)));
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            match self.credentials.answers().next() {
                Some((_, CredentialResponse::Verified(verified))) => {
                    return verified.map(drop).map_err(|refusal| refusal.0);
                }
                Some(_) => panic!("another answer"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        panic!("no answer");
    }

    fn later(&self, by: Duration) {
        *self.now.lock().expect("no panic") += by;
    }
}

fn pages(list: &[(&str, Vec<u8>)]) -> Pages {
    Arc::new(Mutex::new(list.iter().map(|(path, body)| ((*path).to_owned(), body.clone())).collect()))
}

#[test]
fn lists_are_fetched_kept_and_refreshed() {
    let root = Entity::ca("Root", None);
    let (good, bad) = (with_serial(7, &root, |_| ()), with_serial(8, &root, |_| ()));
    let pages = pages(&[("/ca.crl", list(&root, &[8], 1, 2030))]);
    let (base, seen) = serve(Arc::clone(&pages), |_| Vec::new());
    let authority = Certificate::from_der(&root.der).expect("a CA");
    let uris = vec![format!("{base}/absent"), format!("{base}/ca.crl")];
    let source = Source { authority, crl_uris: uris, ocsp_uris: Vec::new() };
    let folder = std::env::temp_dir().join(format!("weir-crls-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    {
        let gateway = Gateway::new(&root, source.clone(), Some(folder.clone()));
        for policy in POLICIES {
            assert!(gateway.admits(&good, &root, policy).is_ok(), "{policy:?}");
            assert!(gateway.admits(&bad, &root, policy).is_err_and(|why| why.contains("revoked")), "{policy:?}");
        }
        assert_eq!(seen.lock().expect("no panic").iter().filter(|path| *path == "/ca.crl").count(), 1);
        let counts = gateway.credentials.fetch_counts().crl;
        assert_eq!(counts, (1, 1));
        assert!(gateway.credentials.with_store(|store| store.list().iter().any(|listed| listed.kind == "X509_CRL")));
        // The server goes away: what there is counts until its next update.
        pages.lock().expect("no panic").clear();
        gateway.later(DAY * 300);
        assert!(gateway.admits(&good, &root, Revocation::Strict).is_ok());
        gateway.later(DAY * 1000);
        assert!(gateway.admits(&good, &root, Revocation::Strict).is_err());
        assert!(gateway.admits(&good, &root, Revocation::Relaxed).is_ok());
    }
    // A restart without the server, then a flush.
    let gateway = Gateway::new(&root, source, Some(folder.clone()));
    assert!(gateway.admits(&good, &root, Revocation::Strict).is_ok());
    gateway.credentials.flush_fetched(true, true);
    assert!(gateway.admits(&good, &root, Revocation::Strict).is_err_and(|why| why.contains("revocation status")));
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn a_replayed_list_does_not_replace_a_newer_one_on_disk() {
    let root = Entity::ca("Root", None);
    let revoked = with_serial(8, &root, |_| ());
    let (older, newer) = (list(&root, &[], 1, 2030), list(&root, &[8], 2, 2030));
    let pages = pages(&[("/ca.crl", newer)]);
    let (base, _) = serve(Arc::clone(&pages), |_| Vec::new());
    let authority = Certificate::from_der(&root.der).expect("a CA");
    let source = Source { authority, crl_uris: vec![format!("{base}/ca.crl")], ocsp_uris: Vec::new() };
    let folder = std::env::temp_dir().join(format!("weir-crls-replayed-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let is_revoked = |gateway: &Gateway| {
        gateway.admits(&revoked, &root, Revocation::IfUri).is_err_and(|why| why.contains("revoked"))
    };
    // Fetches what is due now, and waits for the end.
    let refresh = |gateway: &Gateway, fetches: u64| {
        gateway.later(DAY * 2);
        gateway.credentials.with_store(|store| store.set_sources(vec![source.clone()]));
        let start = Instant::now();
        while gateway.credentials.fetch_counts().crl.0 < fetches {
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", gateway.credentials.fetch_counts());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let gateway = Gateway::new(&root, source.clone(), Some(folder.clone()));
    assert!(is_revoked(&gateway));
    pages.lock().expect("no panic").insert("/ca.crl".into(), older);
    refresh(&gateway, 2);
    assert!(is_revoked(&gateway));
    // After a restart the list on disk is read, then the older one is served again.
    let gateway = Gateway::new(&root, source.clone(), Some(folder.clone()));
    refresh(&gateway, 1);
    assert!(is_revoked(&gateway));
    pages.lock().expect("no panic").clear();
    let gateway = Gateway::new(&root, source.clone(), Some(folder.clone()));
    assert!(is_revoked(&gateway), "the list on disk is the newer one");
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn only_lists_of_the_authority_are_kept() {
    let (root, other) = (Entity::ca("Root", None), Entity::ca("Root", None));
    let leaf = with_serial(7, &root, |_| ());
    let (base, _) = serve(pages(&[("/ca.crl", list(&other, &[7], 1, 2030))]), |_| Vec::new());
    let authority = Certificate::from_der(&root.der).expect("a CA");
    let source = Source { authority, crl_uris: vec![format!("{base}/ca.crl")], ocsp_uris: Vec::new() };
    let gateway = Gateway::new(&root, source, None);
    assert!(gateway.admits(&leaf, &root, Revocation::Relaxed).is_ok());
    assert!(gateway.admits(&leaf, &root, Revocation::IfUri).is_err());
    assert_eq!(gateway.credentials.fetch_counts().crl.0, 0);
}

#[test]
fn a_certificate_does_not_lead_to_this_host() {
    let root = Entity::ca("Root", None);
    let (base, seen) = serve(pages(&[("/ca.crl", list(&root, &[], 1, 2030))]), |_| Vec::new());
    let uri = format!("{base}/ca.crl");
    let leaf = with_serial(7, &root, |params| {
        params.crl_distribution_points = vec![CrlDistributionPoint { uris: vec![uri.clone()] }];
    });
    let authority = Certificate::from_der(&root.der).expect("a CA");
    let none = Source { authority, crl_uris: Vec::new(), ocsp_uris: Vec::new() };
    let gateway = Gateway::new(&root, none.clone(), None);
    assert!(gateway.admits(&leaf, &root, Revocation::IfUri).is_err());
    assert_eq!((seen.lock().expect("no panic").len(), gateway.credentials.fetch_counts().crl), (0, (0, 1)));
    let gateway = Gateway::new(&root, Source { crl_uris: vec![uri], ..none }, None);
    assert!(gateway.admits(&leaf, &root, Revocation::IfUri).is_ok());
}

#[test]
fn a_delta_list_is_fetched_where_the_list_says() {
    let root = Entity::ca("Root", None);
    let folder = std::env::temp_dir().join(format!("weir-delta-{}.crl", std::process::id()));
    let until = Some("20270601000000Z");
    let mut list = by_hand(&root, &[], 3, None, Some("http://127.0.0.1:1/delta.crl"), until);
    std::fs::write(&folder, &list).expect("a file");
    let authority = Certificate::from_der(&root.der).expect("a CA");
    let source = Source { authority, crl_uris: vec![format!("file://{}", folder.display())], ocsp_uris: Vec::new() };
    let leaf = with_serial(22, &root, |_| ());
    let gateway = Gateway::new(&root, source.clone(), None);
    // That place is of this host, and only a list names it: the complete list alone counts.
    assert!(gateway.admits(&leaf, &root, Revocation::Strict).is_ok());
    assert_eq!(gateway.credentials.fetch_counts().crl, (1, 1));
    std::fs::remove_file(&folder).expect("a file");
    // The configuration names it, too.
    let delta = by_hand(&root, &[(22, None)], 5, Some(3), None, until);
    let pages = pages(&[("/delta.crl", delta)]);
    let (base, _) = serve(Arc::clone(&pages), |_| Vec::new());
    let uri = format!("{base}/delta.crl");
    list = by_hand(&root, &[], 3, None, Some(&uri), until);
    pages.lock().expect("no panic").insert("/ca.crl".to_owned(), list);
    let gateway = Gateway::new(&root, Source { crl_uris: vec![format!("{base}/ca.crl"), uri], ..source }, None);
    assert!(gateway.admits(&leaf, &root, Revocation::Relaxed).is_err_and(|why| why.contains("revoked")));
    assert!(gateway.admits(&with_serial(23, &root, |_| ()), &root, Revocation::Strict).is_ok());
}

#[test]
fn an_ocsp_server_is_asked_first_and_lists_after_it() {
    let root = Entity::ca("Root", None);
    let leaf = with_serial(7, &root, |_| ());
    let authority = Certificate::from_der(&root.der).expect("a CA");
    let copy = |entity: &Entity| Entity {
        der: entity.der.clone(),
        key_der: entity.key_der.clone(),
        issuer: Issuer::new(ca_params("Root"), KeyPair::try_from(&entity.key_der[..]).expect("a key")),
    };
    for (status, nonce_of, with_list, want) in [
        (GOOD.to_vec(), 0, false, [true; 3]),
        (revoked(), 0, true, [false; 3]),
        (UNKNOWN.to_vec(), 0, false, [true, false, false]),
        (UNKNOWN.to_vec(), 0, true, [true; 3]),
        // A wrong nonce is no answer, none at all is.
        (GOOD.to_vec(), 1, false, [true, false, false]),
        (GOOD.to_vec(), 2, false, [true; 3]),
    ] {
        let (ca, about) = (copy(&root), Entity { der: leaf.der.clone(), ..copy(&leaf) });
        let made = status.clone();
        let answer = move |nonce: &[u8]| {
            let wrong = [9; 32];
            let nonce = [Some(nonce), Some(&wrong[..]), None][nonce_of];
            response(&ca, (&about, &ca), &made, TIMES, nonce, false)
        };
        let list = if with_list { vec![("/ca.crl", list(&root, &[], 1, 2030))] } else { Vec::new() };
        let (base, _) = serve(pages(&list), answer);
        let source = Source {
            authority: authority.clone(),
            crl_uris: vec![format!("{base}/ca.crl")],
            ocsp_uris: vec![format!("{base}/ocsp")],
        };
        let gateway = Gateway::new(&root, source, None);
        let got = POLICIES.map(|policy| gateway.admits(&leaf, &root, policy).is_ok());
        assert_eq!(got, want, "{status:?} {nonce_of} {with_list}");
        let counts = gateway.credentials.fetch_counts().ocsp;
        assert_eq!(counts, if status == UNKNOWN || nonce_of == 1 { (0, 1) } else { (1, 0) });
    }
}

#[test]
fn a_peer_sends_the_ocsp_response_about_its_certificate() {
    let root = Entity::ca("Root", None);
    let leaf = with_serial(7, &root, |_| ());
    for (status, ocsp, asked, good) in [
        (GOOD.to_vec(), Ocsp::Reply, true, true),
        (GOOD.to_vec(), Ocsp::Both, true, true),
        (GOOD.to_vec(), Ocsp::Reply, false, false),
        (GOOD.to_vec(), Ocsp::Never, true, false),
        (GOOD.to_vec(), Ocsp::Request, true, false),
        (revoked(), Ocsp::Reply, true, false),
    ] {
        let copy = |entity: &Entity| Entity {
            der: entity.der.clone(),
            key_der: entity.key_der.clone(),
            issuer: Issuer::new(ca_params("Root"), KeyPair::try_from(&entity.key_der[..]).expect("a key")),
        };
        let (ca, about, made) = (copy(&root), copy(&leaf), status.clone());
        let answer = move |nonce: &[u8]| response(&ca, (&about, &ca), &made, TIMES, Some(nonce), false);
        let (base, seen) = serve(pages(&[]), answer);
        let authority = Certificate::from_der(&root.der).expect("a CA");
        let source = Source { authority, crl_uris: Vec::new(), ocsp_uris: vec![base] };
        let moon = Gateway::new(&root, source, None);
        moon.credentials.with_store(|store| {
            store.add_certificates(&leaf.der, CertificateUse::EndEntity, Origin::File).expect("a certificate");
            store.add_private_key(&leaf.key_der, &[], Origin::File).expect("a key");
        });
        let local = Auth { id: like("moon.weir.test"), ..auth(public_key(&[])) };
        let configured = Connection { ocsp, ..connection(local.clone(), auth(public_key(&[]))) };
        let request = SignRequest { peer_ocsp: asked, ..sign_request(configured, &ALL_HASHES) };
        let verify = {
            moon.credentials.ask(
                RequestId(1),
                CredentialRequest::Sign(Box::new(SignRequest {
                    sk_p: Secret::from_slice(&[7; 32]),
                    connection: Arc::clone(&request.connection),
                    peer_ocsp: asked,
                    ..sign_request(connection(local.clone(), auth(public_key(&[]))), &ALL_HASHES)
                })),
            );
            let start = Instant::now();
            let signed = loop {
                assert!(start.elapsed() < Duration::from_secs(20), "no answer");
                match moon.credentials.answers().next() {
                    Some((_, CredentialResponse::Signed(signed))) => break signed.expect("a signature"),
                    _ => std::thread::sleep(Duration::from_millis(5)),
                }
            };
            verify_request(connection(local, policy(Revocation::Strict)), &request, signed)
        };
        let outcome = super::super::verify::verify(&store(&[&root], &[], &[]), &verify, NOW).0;
        assert_eq!(outcome.is_ok(), good, "{status:?} {ocsp:?} {asked}");
        assert_eq!(!seen.lock().expect("no panic").is_empty(), asked && ocsp.replies());
    }
}
