//! Verification of the peer's identity:
//! [`CredentialRequest::Verify`](ike::CredentialRequest::Verify).

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use crypto::ike::{Curve, Hash, PublicKey, PublicKeyKind, SignatureScheme};
use ike::config::{Auth, AuthMethod, Connection};
use ike::identity::{IdPattern, Identity};
use ike::output::{CredentialError, Verified, VerifyRequest};
use subtle::ConstantTimeEq;
use wire::ike::{AuthMethodId, CertEncoding, IdType};

use super::constraint::Constraints;
use super::path::{self, Known, MAX_PEER_CERTIFICATES};
use super::revocation::ocsp::Response;
use super::revocation::{Evidence, Fetch, MAX_FETCHES};
use super::sign::{address_id, no_shared_key, refuse, shared_key_code};
use super::store::{Store, Trust};
use super::x509::{Certificate, Crl, pkcs7_certificates};
use super::{name, shared};

/// CRL payloads of one message that are parsed, and bytes of each.
const MAX_PEER_CRLS: usize = 4;
/// OCSP responses of one message that are parsed.
const MAX_PEER_RESPONSES: usize = path::MAX_PATH;
const MAX_PEER_CRL_BYTES: usize = 256 << 10;
/// Shared keys that are tried for one AUTH payload.
const MAX_SHARED_KEYS: usize = 64;
/// Known certificates of the claimed identity that are tried when the peer sends none.
const MAX_KNOWN: usize = 16;

/// Certificates and keys that the peer sent.
#[derive(Default)]
pub(super) struct PeerCredentials {
    /// Its own certificate first.
    pub(super) certificates: Vec<Certificate>,
    pub(super) crls: Vec<Crl>,
    pub(super) responses: Vec<Response>,
    raw_key: Option<PublicKey>,
    /// Payloads that could not be used, for the log.
    pub(super) faults: Vec<String>,
}

impl PeerCredentials {
    /// Reads CERT payloads.
    pub(super) fn parse(certs: &[(CertEncoding, Vec<u8>)]) -> Self {
        let mut received = Self::default();
        for (encoding, data) in certs.iter().take(MAX_PEER_CERTIFICATES) {
            match *encoding {
                CertEncoding::X509_SIGNATURE => received.certificate(data),
                CertEncoding::PKCS7 => match pkcs7_certificates(data) {
                    Some(certificates) => certificates.into_iter().for_each(|der| received.certificate(der)),
                    None => received.faults.push("a PKCS #7 payload does not hold certificates".into()),
                },
                CertEncoding::CRL if received.crls.len() < MAX_PEER_CRLS && data.len() <= MAX_PEER_CRL_BYTES => {
                    match Crl::from_der(data) {
                        Ok(crl) => received.crls.push(crl),
                        Err(fault) => received.faults.push(format!("a revocation list: {fault}")),
                    }
                }
                CertEncoding::OCSP if received.responses.len() < MAX_PEER_RESPONSES => match Response::from_der(data) {
                    Ok(response) => received.responses.push(response),
                    Err(fault) => received.faults.push(format!("an OCSP response: {fault}")),
                },
                CertEncoding::RAW_KEY if received.raw_key.is_none() => match PublicKey::from_spki(data) {
                    Ok(key) => received.raw_key = Some(key),
                    Err(fault) => received.faults.push(format!("a raw public key: {fault}")),
                },
                CertEncoding::HASH_URL | CertEncoding::HASH_URL_BUNDLE => {
                    received
                        .faults
                        .push("it sent a certificate URL, and nothing is fetched for unauthenticated peers".into());
                }
                other => received.faults.push(format!("a CERT payload of encoding {} is not used", other.0)),
            }
        }
        received
    }

    fn certificate(&mut self, der: &[u8]) {
        if self.certificates.len() >= MAX_PEER_CERTIFICATES {
            return;
        }
        match Certificate::from_der(der) {
            Ok(certificate) => self.certificates.push(certificate),
            Err(fault) => self.faults.push(format!("a certificate: {fault}")),
        }
    }
}

/// Answers a [`VerifyRequest`]: the first of its candidates that admits the peer. `now` is the time
/// since 1970. Also returns what should be fetched for a better answer, and the certificate of the
/// peer, which is the first one (RFC 7296 §3.6).
pub(super) fn verify(
    store: &Store,
    request: &VerifyRequest,
    now: Duration,
) -> (Result<Verified, CredentialError>, Vec<Fetch>, Option<Certificate>) {
    let (received, signatures) = (PeerCredentials::parse(&request.certs), Vec::new());
    let mut check = Check { store, request, now, received, signatures, fetches: Vec::new() };
    let outcome = check.first();
    check.fetches.truncate(MAX_FETCHES);
    (outcome, check.fetches, check.received.certificates.into_iter().next())
}

struct Check<'a> {
    store: &'a Store,
    request: &'a VerifyRequest,
    now: Duration,
    received: PeerCredentials,
    /// Keys for which the signature was verified already, and the result: it does not depend on the
    /// connection.
    signatures: Vec<(PublicKey, SignatureScheme, bool)>,
    fetches: Vec<Fetch>,
}

impl Check<'_> {
    fn first(&mut self) -> Result<Verified, CredentialError> {
        let mut faults: Vec<String> = Vec::new();
        for connection in &self.request.candidates {
            match self.candidate(connection) {
                Ok(verified) => return Ok(verified),
                Err(why) => faults.push(format!("{}: {why}", connection.name)),
            }
        }
        faults.truncate(8);
        faults.extend(std::mem::take(&mut self.received.faults).into_iter().take(4));
        match faults.is_empty() {
            true => refuse("no remaining connection matches"),
            false => refuse(faults.join("; ")),
        }
    }

    fn candidate(&mut self, connection: &Arc<Connection>) -> anyhow::Result<Verified> {
        let request = self.request;
        let missing = || format!("it has no section remote for round {}", request.round + 1);
        let auth = connection.remote.get(request.round).with_context(missing)?;
        let id = name::show_id(&request.remote_id);
        if request.remote_id.kind == IdType::NULL || request.method == AuthMethodId::NULL {
            bail!("the peer sent no identity");
        }
        if auth.id.matches(&request.remote_id).is_none() {
            bail!("the identity '{id}' of the peer does not match 'remote.id'");
        }
        let by_code = request.method == AuthMethodId::PSK && request.version != 1;
        let done = |valid_for| Verified { connection: Arc::clone(connection), valid_for, name: None };
        match (&auth.method, &request.eap_msk) {
            (_, Some(msk)) if by_code => {
                let code = shared_key_code(request.prf, msk, &[&request.octets]);
                let right: bool = code.as_slice().ct_eq(&request.auth).into();
                if right {
                    Ok(done(None))
                } else {
                    Err(anyhow!("the AUTH payload was not computed with the key of EAP"))
                }
            }
            (_, Some(_)) => Err(anyhow!("after EAP the AUTH payload must be computed with its key")),
            (AuthMethod::Psk | AuthMethod::Any, None) if by_code => self.shared_key(connection).map(|()| done(None)),
            (AuthMethod::PublicKey(_) | AuthMethod::Any, None) if request.method != AuthMethodId::PSK => {
                let constraints = match &auth.method {
                    AuthMethod::PublicKey(words) => Constraints::parse(words),
                    _ => Constraints::parse(&[]),
                };
                let until = self.public_key(auth, &constraints)?;
                Ok(done(until.map(|until| until.saturating_sub(self.now))))
            }
            (wanted, None) => {
                let method = request.method.name().unwrap_or("unknown method");
                Err(anyhow!("'{id}' authenticates by {method}, but 'remote.auth' requires {wanted:?}"))
            }
        }
    }

    fn shared_key(&self, connection: &Connection) -> anyhow::Result<()> {
        let request = self.request;
        let configured = connection.local.iter().filter_map(|auth| match &auth.id {
            IdPattern::Like(id) => Some(id.clone()),
            IdPattern::Any => None,
        });
        let local: Vec<Identity> =
            request.local_id.iter().cloned().chain(configured).chain([address_id(request.path.local.ip())]).collect();
        let keys = shared::keys(self.store.shared(), &local, std::slice::from_ref(&request.remote_id));
        if keys.is_empty() {
            bail!(no_shared_key(&local[0], &request.remote_id));
        }
        let fits = |secret: &[u8]| -> bool {
            shared_key_code(request.prf, secret, &[&request.octets]).as_slice().ct_eq(&request.auth).into()
        };
        if keys.iter().take(MAX_SHARED_KEYS).any(|shared| fits(&shared.secret)) {
            return Ok(());
        }
        let id = name::show_id(&request.remote_id);
        Err(anyhow!("the shared keys of '{id}' differ; compare 'secrets' on both sides"))
    }

    /// Until when the peer's key may be believed, since 1970; `None` for a raw key.
    fn public_key(&mut self, auth: &Auth, constraints: &Constraints) -> anyhow::Result<Option<Duration>> {
        if !auth.groups.is_empty() {
            bail!("'groups' cannot be checked: there is no source of group membership; remove it");
        }
        let raw = self.raw_keys(auth)?;
        if !raw.is_empty() {
            let mut results = raw.iter().map(|key| self.signature(key, constraints));
            let first = results.next().expect("there is one");
            return results.fold(first, |found, next| found.or(next)).map(|()| None);
        }
        let request = self.request;
        let leaves: Vec<Certificate> = match self.received.certificates.first() {
            Some(sent) => vec![sent.clone()],
            // The peer did not send its certificate, and this host has it.
            None => {
                let known = self.store.trust().end_entities.iter().filter(|leaf| name::is_of(leaf, &request.remote_id));
                known.take(MAX_KNOWN).cloned().collect()
            }
        };
        let id = name::show_id(&request.remote_id);
        let of_known_key = |key: &PublicKey| {
            let data = &request.remote_id.data[..];
            request.remote_id.kind == IdType::KEY_ID && (data == key.spki_id() || data == key.key_id())
        };
        let mut fault = match self.store.public_keys().any(of_known_key) {
            true => anyhow!("'{id}' has a raw public key in pubkey; list it in 'remote.pubkeys' to accept it"),
            false => anyhow!("the peer sent no certificate, and none of '{id}' is in x509"),
        };
        for leaf in &leaves {
            if !name::is_of(leaf, &request.remote_id) {
                fault =
                    anyhow!("{leaf:?} does not belong to '{id}': neither its subject nor an alternative name matches");
                continue;
            }
            let checked = self.trusted(leaf, auth, constraints).and_then(|until| {
                self.signature(leaf.key(), constraints)?;
                Ok(until)
            });
            match checked {
                Ok(until) => return Ok(Some(until)),
                Err(why) => fault = why,
            }
        }
        Err(fault)
    }

    /// The raw keys with which the peer may have signed, if it uses one that the connection names
    /// (RFC 7670).
    fn raw_keys(&self, auth: &Auth) -> anyhow::Result<Vec<PublicKey>> {
        let without_certificate = self.received.certificates.is_empty();
        if auth.pubkeys.is_empty() {
            let none = "the peer sent a raw public key; list it in 'remote.pubkeys' to accept it";
            let only = self.received.raw_key.is_some() && without_certificate;
            return if only { Err(anyhow!(none)) } else { Ok(Vec::new()) };
        }
        let named = auth.pubkeys.iter().filter_map(|spki| PublicKey::from_spki(spki).ok());
        let found: Vec<PublicKey> = match &self.received.raw_key {
            Some(sent) => named.filter(|key| key == sent).collect(),
            None if without_certificate => named.take(MAX_KNOWN).collect(),
            None => Vec::new(),
        };
        if found.is_empty() {
            let certificates = !auth.certs.is_empty() || !auth.cacerts.is_empty();
            let none = "the peer's key is not in 'remote.pubkeys'";
            return if certificates { Ok(found) } else { Err(anyhow!(none)) };
        }
        // A raw key contains no identity, so the configuration must name it.
        let id = &self.request.remote_id;
        let of_key =
            |key: &PublicKey| id.kind == IdType::KEY_ID && (id.data == key.key_id() || id.data == key.spki_id());
        let of: Vec<PublicKey> = found.into_iter().filter(|key| auth.id != IdPattern::Any || of_key(key)).collect();
        let unnamed = "a raw public key requires 'remote.id'";
        if of.is_empty() { Err(anyhow!(unnamed)) } else { Ok(of) }
    }

    /// Until when the certificate is trusted, since 1970.
    fn trusted(&mut self, leaf: &Certificate, auth: &Auth, constraints: &Constraints) -> anyhow::Result<Duration> {
        let PeerCredentials { certificates, crls, responses, .. } = &self.received;
        let sent = Sent { certificates, crls, responses };
        let checked = trusted(self.store.trust(), leaf, sent, auth, constraints, self.now);
        // Only the owner of the key can make this host fetch: certificates are public.
        if !checked.fetches.is_empty() {
            self.signature(leaf.key(), constraints)?;
            self.fetches.extend(checked.fetches);
        }
        checked.outcome
    }

    fn signature(&mut self, key: &PublicKey, constraints: &Constraints) -> anyhow::Result<()> {
        let request = self.request;
        let (scheme, signature) = scheme(request, key.kind())?;
        if !constraints.ike(key.kind(), scheme) {
            bail!("the peer signed with {scheme:?} by {:?}, which 'remote.auth' does not allow", key.kind());
        }
        let known = self.signatures.iter().find(|(there, how, _)| there == key && *how == scheme);
        let right = known.map(|(_, _, right)| *right).unwrap_or_else(|| {
            let right = key.verify(scheme, &[&request.octets], signature).is_ok();
            self.signatures.push((key.clone(), scheme, right));
            right
        });
        if right {
            Ok(())
        } else {
            Err(anyhow!(
                "the signature in the AUTH payload is invalid: it was not made with the key of the certificate"
            ))
        }
    }
}

/// Certificates that a peer sent with its own.
#[derive(Clone, Copy, Default)]
pub(super) struct Sent<'a> {
    pub(super) certificates: &'a [Certificate],
    pub(super) crls: &'a [Crl],
    pub(super) responses: &'a [Response],
}

/// Result of a check of a certificate.
pub(super) struct Checked {
    /// Until when it is trusted, since 1970, or why it is not.
    pub(super) outcome: anyhow::Result<Duration>,
    /// Revocation data to fetch.
    pub(super) fetches: Vec<Fetch>,
}

/// Checks whether a certificate is trusted for one round of authentication.
pub(super) fn trusted(
    trust: &Trust,
    leaf: &Certificate,
    sent: Sent<'_>,
    auth: &Auth,
    constraints: &Constraints,
    now: Duration,
) -> Checked {
    let pinned = auth.certs.contains(&leaf.fingerprint());
    if !auth.certs.is_empty() && !pinned {
        let why = anyhow!("{leaf:?} is not in 'remote.certs'");
        return Checked { outcome: Err(why), fetches: Vec::new() };
    }
    let crls: Vec<&Crl> = trust.crls.iter().chain(sent.crls).collect();
    let known = Known {
        anchors: &trust.anchors,
        intermediates: &trust.intermediates,
        stored: &trust.others,
        sent: sent.certificates,
        evidence: Evidence {
            crls: &crls,
            responses: sent.responses,
            sources: &trust.sources,
            fetched: &trust.fetched,
            authorities: &trust.authorities,
            now,
        },
        now,
    };
    let (found, fetches) = path::validate(leaf, &known, auth, constraints);
    // A certificate loaded as an end entity is trusted, unless the configuration requires more.
    let loaded = pinned || trust.end_entities.contains(leaf);
    let constrained = !auth.cacerts.is_empty() || !auth.cert_policy.is_empty();
    let outcome = match found {
        Ok(path) => Ok(path.not_after()),
        Err(no) if loaded && !constrained && !no.revoked && auth.revocation != ike::config::Revocation::Strict => {
            path::peer_certificate(leaf, now).map(|()| leaf.validity().1)
        }
        Err(no) => Err(anyhow!(no.why)),
    };
    Checked { outcome, fetches }
}

/// Scheme and signature of the AUTH payload.
fn scheme(request: &VerifyRequest, kind: PublicKeyKind) -> anyhow::Result<(SignatureScheme, &[u8])> {
    let data = &request.auth[..];
    if request.version == 1 {
        // Phase 1 agreed to a kind of key.
        return match (kind, request.method) {
            (PublicKeyKind::Rsa { .. }, AuthMethodId::RSA) => Ok((SignatureScheme::RawRsaPkcs1, data)),
            (PublicKeyKind::Ecdsa(curve), method) if method == ecdsa_method(curve) => {
                Ok((SignatureScheme::RawEcdsa(curve), data))
            }
            (kind, method) => Err(anyhow!("{kind:?} cannot sign by method {} of phase 1", method.0)),
        };
    }
    match request.method {
        AuthMethodId::RSA => Ok((SignatureScheme::RsaPkcs1(Hash::Sha1), data)),
        AuthMethodId::ECDSA256 => Ok((SignatureScheme::EcdsaClassic(Curve::P256), data)),
        AuthMethodId::ECDSA384 => Ok((SignatureScheme::EcdsaClassic(Curve::P384), data)),
        AuthMethodId::ECDSA521 => Ok((SignatureScheme::EcdsaClassic(Curve::P521), data)),
        AuthMethodId::DIGITAL_SIGNATURE => {
            let auth = wire::ike::Auth { method: request.method, data };
            let (algorithm, signature) = auth.digital_signature()?;
            let scheme = SignatureScheme::from_algorithm_identifier(algorithm)
                .context("the peer signed with an algorithm that is not supported")?;
            Ok((scheme, signature))
        }
        other => Err(anyhow!("the authentication method {} is not supported", other.0)),
    }
}

/// The authentication method of a curve; IKEv1 has the same numbers (RFC 4754 §3).
pub(super) fn ecdsa_method(curve: Curve) -> AuthMethodId {
    match curve {
        Curve::P256 => AuthMethodId::ECDSA256,
        Curve::P384 => AuthMethodId::ECDSA384,
        Curve::P521 => AuthMethodId::ECDSA521,
    }
}

/// SHA-1 of the keys of the CAs that this host trusts for a connection, for CERTREQ (RFC 7296
/// §3.7).
pub(super) fn trusted_authorities(store: &Store, connection: &Connection) -> Vec<[u8; 20]> {
    let named: Vec<[u8; 32]> = connection.remote.iter().flat_map(|auth| auth.cacerts.iter().copied()).collect();
    let wanted = |ca: &&Certificate| named.is_empty() || named.contains(&ca.fingerprint());
    let mut ids: Vec<[u8; 20]> = store.trust().authorities.iter().filter(wanted).map(|ca| ca.key().spki_id()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.truncate(MAX_AUTHORITIES);
    ids
}

/// Names of the CAs that this host trusts for a connection, for CERTREQ of IKEv1 (RFC 2408 §3.10).
pub(super) fn authority_names(store: &Store, connection: &Connection) -> Vec<Vec<u8>> {
    let named: Vec<[u8; 32]> = connection.remote.iter().flat_map(|auth| auth.cacerts.iter().copied()).collect();
    let wanted = |ca: &&Certificate| named.is_empty() || named.contains(&ca.fingerprint());
    let authorities = store.trust().authorities.iter().filter(wanted);
    let mut names: Vec<Vec<u8>> = authorities.map(|ca| ca.subject().to_vec()).collect();
    names.sort_unstable();
    names.dedup();
    names.truncate(MAX_AUTHORITY_NAMES);
    names
}

/// CAs that are named in CERTREQ payloads of IKEv1, each with its name.
const MAX_AUTHORITY_NAMES: usize = 16;

/// CAs that are named in a CERTREQ: 5 KiB.
const MAX_AUTHORITIES: usize = 256;
