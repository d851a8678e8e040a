//! Authentication of this host: [`CredentialRequest::Sign`](ike::CredentialRequest::Sign) and other
//! uses of a shared secret.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use crypto::ike::{Hash, HashId, Prf, PrivateKey, PublicKeyKind, Secret, SignatureScheme};
use ike::config::{Auth, AuthMethod, Connection, SendCert};
use ike::identity::{IdPattern, Identity};
use ike::output::{CredentialError, KeysV1, Path, PskQuery, SignRequest, SignV1, Signed};
use wire::ike::{AuthMethodId, CertEncoding, IdType};

use super::constraint::Constraints;
use super::revocation::Fetch;
use super::shared::{self, Shared, SharedKind};
use super::store::Store;
use super::verify::ecdsa_method;
use super::x509::Certificate;
use super::{name, path, revocation, verify};

/// RFC 7296 §2.15.
const KEY_PAD: &[u8] = b"Key Pad for IKEv2";

pub(super) fn refuse<T>(why: impl Into<String>) -> Result<T, CredentialError> {
    Err(CredentialError(why.into()))
}

/// Answers a [`SignRequest`]; `now` is the time since 1970.
pub(super) fn sign(store: &Store, request: &SignRequest, now: Duration) -> Result<Signed, CredentialError> {
    let Some(auth) = request.connection.local.get(request.round) else {
        return refuse(format!("the connection has no section local for round {}", request.round + 1));
    };
    if let Some(msk) = &request.eap_msk {
        return Ok(by_secret(request, local_id(request, auth), msk));
    }
    match &auth.method {
        AuthMethod::Psk => by_shared_key(store, request, auth),
        AuthMethod::PublicKey(words) => by_signature(store, request, auth, &Constraints::parse(words), now),
        AuthMethod::Eap(_) => refuse("EAP has not completed, so there is no key to authenticate with"),
        AuthMethod::XAuth => refuse("XAuth follows phase 1 and signs nothing"),
        AuthMethod::Any => refuse("'auth = any' is for the peer; for this host use pubkey or psk"),
    }
}

/// The code of a shared secret (RFC 7296 §2.15): prf(prf(secret, "Key Pad for IKEv2"), octets).
pub(super) fn shared_key_code(prf: Prf, secret: &[u8], octets: &[&[u8]]) -> Secret {
    prf.compute(&prf.compute(secret, &[KEY_PAD]), octets)
}

/// Octets to sign, once the identity is selected.
fn octets(request: &SignRequest, id: &Identity) -> Vec<u8> {
    if request.v1.is_some() {
        return request.prf.compute(&request.sk_p, &[&request.message_and_nonce, &id.payload_body()]).to_vec();
    }
    let id_hash = request.prf.compute(&request.sk_p, &[&id.payload_body()]);
    [&request.message_and_nonce[..], &id_hash, &request.int_auth].concat()
}

pub(super) fn address_id(addr: std::net::IpAddr) -> Identity {
    Identity::of_addr(addr.to_canonical())
}

/// Identity where no certificate decides.
fn local_id(request: &SignRequest, auth: &Auth) -> Identity {
    let configured = || auth.id.exact().cloned();
    request.local_id.clone().or_else(configured).unwrap_or_else(|| address_id(request.path.local.ip()))
}

fn by_secret(request: &SignRequest, id: Identity, secret: &Secret) -> Signed {
    let code = shared_key_code(request.prf, secret, &[&octets(request, &id)]);
    Signed { local_id: id, method: AuthMethodId::PSK, auth: code.to_vec(), certs: Vec::new() }
}

fn by_shared_key(store: &Store, request: &SignRequest, auth: &Auth) -> Result<Signed, CredentialError> {
    let id = local_id(request, auth);
    let configured = request.connection.remote.get(request.round).and_then(|remote| remote.id.exact());
    let remote = request.remote_id.as_ref().or(configured);
    let remote = remote.cloned().unwrap_or_else(|| address_id(request.path.remote.ip()));
    let keys = shared::keys(store.shared(), std::slice::from_ref(&id), std::slice::from_ref(&remote));
    match keys.first() {
        Some(shared) => Ok(by_secret(request, id, &shared.secret)),
        None => refuse(no_shared_key(&id, &remote)),
    }
}

pub(super) fn no_shared_key(local: &Identity, remote: &Identity) -> String {
    let (local, remote) = (name::show_id(local), name::show_id(remote));
    format!("no shared key for '{local}' and '{remote}'; add a section 'ike' to 'secrets' with 'id = {remote}'")
}

/// IKEv1 (RFC 2409 §5.4): SKEYID of the shared key of two peers.
pub(super) fn skeyid(store: &Store, query: &PskQuery) -> Result<Secret, CredentialError> {
    let local: Vec<Identity> = query.local_id.iter().cloned().chain([address_id(query.local.ip())]).collect();
    let (remote_id, remote_addr) = (query.remote_id.as_ref(), address_id(query.remote.ip()));
    match shared::key_v1(store.shared(), &local, remote_id, &remote_addr) {
        Some(shared) => Ok(query.prf.compute(&shared.secret, &[&query.nonces])),
        None => refuse(no_shared_key(&local[0], remote_id.unwrap_or(&remote_addr))),
    }
}

/// The post-quantum preshared key of that name (RFC 8784).
pub(super) fn ppk(store: &Store, id: &Identity) -> Option<Secret> {
    // Over the wire a PPK has a name without a type (RFC 8784 §5.1).
    let is_it = |shared: &&Shared| {
        let named = |owner: &IdPattern| owner.exact().is_some_and(|owner| owner.data == id.data);
        shared.kind == SharedKind::Ppk && (shared.owners.is_empty() || shared.owners.iter().any(named))
    };
    store.shared().find(is_it).map(|shared| shared.secret.clone())
}

/// A private key with its certificate or raw public key.
struct Candidate {
    key: Arc<PrivateKey>,
    id: Identity,
    certs: Vec<(CertEncoding, Vec<u8>)>,
    /// The peer trusts one of the CAs above; the certificate ends then.
    rank: (bool, Duration),
    scheme: SignatureScheme,
}

fn by_signature(
    store: &Store,
    request: &SignRequest,
    auth: &Auth,
    constraints: &Constraints,
    now: Duration,
) -> Result<Signed, CredentialError> {
    let found = best(store, request, auth, constraints, now);
    let Candidate { key, id, mut certs, scheme, .. } = found.map_err(|faults| CredentialError(no_key(&faults)))?;
    let signature =
        key.sign(scheme, &[&octets(request, &id)]).map_err(|fault| CredentialError(format!("cannot sign: {fault}")))?;
    let (method, auth) = payload(scheme, signature);
    if request.connection.send_cert == SendCert::Never {
        certs.clear();
    }
    Ok(Signed { local_id: id, method, auth, certs })
}

/// The best key for a signature, or why none can be used.
fn best(
    store: &Store,
    request: &SignRequest,
    auth: &Auth,
    constraints: &Constraints,
    now: Duration,
) -> Result<Candidate, Vec<String>> {
    let mut faults = Vec::new();
    let mut best: Option<Candidate> = None;
    for candidate in raw_keys(store, request, auth, constraints)
        .into_iter()
        .chain(certificates(store, auth).map(|leaf| with_certificate(store, request, auth, constraints, leaf, now)))
    {
        match candidate {
            Ok(found) if best.as_ref().is_none_or(|best| found.rank > best.rank) => best = Some(found),
            Ok(_) => {}
            Err(why) => faults.push(why.to_string()),
        }
    }
    best.ok_or(faults)
}

fn no_key(faults: &[String]) -> String {
    match faults.is_empty() {
        true => "no certificate with a private key; load both (x509 and private), or set 'certs'".into(),
        false => faults.join("; "),
    }
}

/// IKEv1: kinds of keys by which this host can sign for a connection, best first, with the
/// identities under which it does (RFC 2409 §5.1: one method is negotiated for both ends before
/// either of them is known).
pub(super) fn keys_v1(store: &Store, connection: &Arc<Connection>, now: Duration) -> KeysV1 {
    const KINDS: [AuthMethodId; 4] =
        [AuthMethodId::ECDSA256, AuthMethodId::ECDSA384, AuthMethodId::ECDSA521, AuthMethodId::RSA];
    let unspecified = (std::net::Ipv4Addr::UNSPECIFIED, 0).into();
    let round = connection.local.iter().position(|auth| matches!(auth.method, AuthMethod::PublicKey(_)));
    let authorities = verify::authority_names(store, connection);
    let none = KeysV1 { authorities: authorities.clone(), ..KeysV1::default() };
    let Some((round, auth)) = round.map(|round| (round, &connection.local[round])) else { return none };
    let AuthMethod::PublicKey(words) = &auth.method else { return none };
    let constraints = Constraints::parse(words);
    let mut refusal = None;
    let mut of_kind = |method: AuthMethodId| {
        let request = SignRequest {
            connection: Arc::clone(connection),
            round,
            v1: Some(SignV1 { method, authorities: Vec::new() }),
            local_id: None,
            remote_id: None,
            path: Path { local: unspecified, remote: unspecified, encap: false },
            prf: Prf::HmacSha256,
            message_and_nonce: Vec::new(),
            sk_p: Secret::from_slice(&[]),
            int_auth: Vec::new(),
            peer_hashes: Vec::new(),
            peer_authorities: Vec::new(),
            peer_ocsp: false,
            eap_msk: None,
        };
        match best(store, &request, auth, &constraints, now) {
            Ok(best) => Some((best.rank, method, best.id)),
            Err(faults) => {
                refusal = Some(CredentialError(no_key(&faults)));
                None
            }
        }
    };
    let mut found: Vec<_> = KINDS.into_iter().filter_map(&mut of_kind).collect();
    // Stable: of equally good certificates ECDSA is first.
    found.sort_by_key(|(rank, ..)| std::cmp::Reverse(*rank));
    let signers: Vec<_> = found.into_iter().map(|(_, method, id)| (method, id)).collect();
    KeysV1 { refusal: refusal.filter(|_| signers.is_empty()), signers, authorities }
}

/// Adds OCSP responses about the certificates, where the peer requests them and the connection
/// permits it. Returns what should be fetched to have them all.
pub(super) fn add_ocsp(store: &Store, request: &SignRequest, signed: &mut Signed, now: Duration) -> Vec<Fetch> {
    if !(request.peer_ocsp && request.connection.ocsp.replies()) {
        return Vec::new();
    }
    let leaf = signed.certs.iter().find(|(encoding, _)| *encoding == CertEncoding::X509_SIGNATURE);
    let Some(leaf) = leaf.and_then(|(_, der)| Certificate::from_der(der).ok()) else { return Vec::new() };
    let (responses, fetches) = revocation::of_chain(&store.chain(&leaf), store.trust(), now);
    signed.certs.extend(responses.into_iter().map(|der| (CertEncoding::OCSP, der)));
    fetches
}

/// Method and data of the AUTH payload.
fn payload(scheme: SignatureScheme, signature: Vec<u8>) -> (AuthMethodId, Vec<u8>) {
    let method = match scheme {
        SignatureScheme::RsaPkcs1(Hash::Sha1) | SignatureScheme::RawRsaPkcs1 => AuthMethodId::RSA,
        SignatureScheme::EcdsaClassic(curve) | SignatureScheme::RawEcdsa(curve) => ecdsa_method(curve),
        _ => {
            let algorithm = scheme.algorithm_identifier();
            let data = [&[algorithm.len() as u8], algorithm, &signature].concat();
            return (AuthMethodId::DIGITAL_SIGNATURE, data);
        }
    };
    (method, signature)
}

/// Certificates that this round may use, with private key or without.
fn certificates<'a>(store: &'a Store, auth: &'a Auth) -> impl Iterator<Item = &'a Certificate> {
    let wanted = move |leaf: &&Certificate| match auth.certs.is_empty() {
        true => store.key_of(leaf.key()).is_some(),
        false => auth.certs.contains(&leaf.fingerprint()),
    };
    store.trust().end_entities.iter().filter(wanted).filter(|_| auth.pubkeys.is_empty() || !auth.certs.is_empty())
}

fn with_certificate(
    store: &Store,
    request: &SignRequest,
    auth: &Auth,
    constraints: &Constraints,
    leaf: &Certificate,
    now: Duration,
) -> anyhow::Result<Candidate> {
    let Some(key) = store.key_of(leaf.key()) else {
        bail!("no key in the folder private belongs to {leaf:?}; put its private key there");
    };
    path::peer_certificate(leaf, now)?;
    let id = match request.local_id.as_ref().or_else(|| auth.id.exact()) {
        Some(id) if name::is_of(leaf, id) => id.clone(),
        Some(id) => {
            let id = name::show_id(id);
            bail!("{leaf:?} does not contain the identity '{id}'; set 'local.id' to what it contains");
        }
        None => name::identity_of(leaf).with_context(|| format!("{leaf:?} contains no identity; set 'local.id'"))?,
    };
    let chain = store.chain(leaf);
    if !auth.cacerts.is_empty() && !chain[1..].iter().any(|ca| auth.cacerts.contains(&ca.fingerprint())) {
        bail!("{leaf:?} was not issued by a CA in 'cacerts' of this host");
    }
    let scheme = scheme(key, request, constraints)?;
    let asked = match &request.v1 {
        Some(v1) => chain.iter().any(|ca| v1.authorities.iter().any(|name| name == ca.subject())),
        None => chain.iter().any(|ca| request.peer_authorities.contains(&ca.key().spki_id())),
    };
    let root = chain.last().filter(|last| chain.len() > 1 && last.is_self_issued());
    let sent = &chain[..chain.len() - usize::from(root.is_some())];
    let certs = sent.iter().map(|certificate| (CertEncoding::X509_SIGNATURE, certificate.der().to_vec())).collect();
    Ok(Candidate { key: Arc::clone(key), id, certs, rank: (asked, leaf.validity().1), scheme })
}

fn raw_keys(
    store: &Store,
    request: &SignRequest,
    auth: &Auth,
    constraints: &Constraints,
) -> Vec<anyhow::Result<Candidate>> {
    let candidate = |spki: &Vec<u8>| {
        let public = crypto::ike::PublicKey::from_spki(spki).map_err(|fault| anyhow!("'pubkeys': {fault}"))?;
        let missing = "the private half of the key in 'pubkeys' is missing; put it into the folder private";
        let key = store.key_of(&public).context(missing)?;
        let configured = request.local_id.as_ref().or_else(|| auth.id.exact()).cloned();
        // As strongSwan: SHA-1 of the SubjectPublicKeyInfo.
        let id = configured.unwrap_or_else(|| Identity { kind: IdType::KEY_ID, data: public.spki_id().to_vec() });
        let certs = vec![(CertEncoding::RAW_KEY, public.spki().to_vec())];
        let scheme = scheme(key, request, constraints)?;
        Ok(Candidate { key: Arc::clone(key), id, certs, rank: (false, Duration::MAX), scheme })
    };
    auth.pubkeys.iter().map(candidate).collect()
}

/// Selects the signature scheme for this peer: RFC 7427 if the peer supports it, with PKCS #1 v1.5
/// for RSA unless PSS is configured; otherwise the methods 1 and 9 to 11.
fn scheme(key: &PrivateKey, request: &SignRequest, constraints: &Constraints) -> anyhow::Result<SignatureScheme> {
    let kind = key.kind();
    if let Some(SignV1 { method, .. }) = &request.v1 {
        let scheme = match kind {
            PublicKeyKind::Rsa { .. } if *method == AuthMethodId::RSA => SignatureScheme::RawRsaPkcs1,
            PublicKeyKind::Ecdsa(curve) if *method == ecdsa_method(curve) => SignatureScheme::RawEcdsa(curve),
            PublicKeyKind::Ed25519 => bail!("IKEv1 has no Ed25519 signatures; use an RSA or ECDSA key"),
            kind => bail!("{kind:?} cannot sign by method {} of phase 1", method.0),
        };
        if !constraints.ike(kind, scheme) {
            bail!("{kind:?} is not allowed by 'auth' of this host; an RSA key needs 2048 bits without words");
        }
        return Ok(scheme);
    }
    let hashes: Vec<HashId> = request.peer_hashes.iter().map(|id| HashId(id.0)).collect();
    let pkcs1 = |hash: Hash| Some(SignatureScheme::RsaPkcs1(hash));
    let mut tried: Vec<SignatureScheme> = Vec::new();
    // One hash alone at a time, so that a constraint can rule the best one out.
    let order = HashId::OFFERED.iter().map(std::slice::from_ref).filter(|id| hashes.contains(&id[0]));
    let best = std::iter::once(&hashes[..]).chain(order).filter_map(|hashes| key.best_scheme(hashes));
    for scheme in best {
        let plain = match scheme {
            SignatureScheme::RsaPss(hash) => pkcs1(hash),
            _ => None,
        };
        tried.extend(match constraints.prefer_pkcs1() {
            true => [plain, Some(scheme)].into_iter().flatten(),
            false => [Some(scheme), plain].into_iter().flatten(),
        });
    }
    tried.extend(match kind {
        PublicKeyKind::Rsa { .. } => pkcs1(Hash::Sha1),
        PublicKeyKind::Ecdsa(curve) => Some(SignatureScheme::EcdsaClassic(curve)),
        PublicKeyKind::Ed25519 => None,
    });
    tried.into_iter().find(|scheme| constraints.ike(kind, *scheme)).with_context(|| {
        let list: Vec<u16> = hashes.iter().map(|hash| hash.0).collect();
        format!(
            "the peer (hashes {list:?} of RFC 7427) and 'auth' have no common signature scheme for {kind:?}; an old peer may need \
             'auth = rsa-sha1' with 'allow_legacy = yes', or another key"
        )
    })
}
