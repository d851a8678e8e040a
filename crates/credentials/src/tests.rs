//! A small public key infrastructure, and peers that prove themselves to each other.

mod auth;
mod files;
mod paths;
mod revocation;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crypto::ike::{Prf, Secret};
use ike::config::{Auth, AuthMethod, Connection, SendCert};
use ike::identity::{IdPattern, Identity};
use ike::output::{Path, SignRequest, Signed, VerifyRequest};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, SignatureAlgorithm,
};
use wire::ike::HashId;

use super::store::{CertificateUse, Origin, Store};

/// 2027-01-15.
pub(super) const NOW: Duration = Duration::from_secs(1_800_000_000);

/// A certificate with its key, which may issue others.
pub(super) struct Entity {
    pub(super) der: Vec<u8>,
    pub(super) key_der: Vec<u8>,
    pub(super) issuer: Issuer<'static, KeyPair>,
}

pub(super) fn params(name: &str, sans: &[&str]) -> CertificateParams {
    let (mails, others): (Vec<&str>, Vec<&str>) = sans.iter().partition(|san| san.contains('@'));
    let others: Vec<String> = others.into_iter().map(str::to_owned).collect();
    let mut params = CertificateParams::new(others).expect("names");
    let mails = mails.into_iter().map(|mail| SanType::Rfc822Name(mail.try_into().expect("ASCII")));
    params.subject_alt_names.extend(mails);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Weir");
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2040, 1, 1);
    params.use_authority_key_identifier_extension = true;
    params
}

pub(super) fn ca_params(name: &str) -> CertificateParams {
    let mut params = params(name, &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Entity {
    pub(super) fn make(params: CertificateParams, above: Option<&Entity>, kind: &'static SignatureAlgorithm) -> Self {
        let key = KeyPair::generate_for(kind).expect("a key");
        let certificate = match above {
            Some(above) => params.signed_by(&key, &above.issuer),
            None => params.self_signed(&key),
        };
        let der = certificate.expect("a certificate").der().to_vec();
        Self { der, key_der: key.serialize_der(), issuer: Issuer::new(params, key) }
    }

    pub(super) fn ca(name: &str, above: Option<&Entity>) -> Self {
        Self::make(ca_params(name), above, &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    pub(super) fn leaf(name: &str, sans: &[&str], above: &Entity) -> Self {
        Self::make(params(name, sans), Some(above), &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    pub(super) fn fingerprint(&self) -> [u8; 32] {
        super::sha256(&self.der)
    }
}

/// A store with trusted CAs, own certificates with keys, and intermediate CAs.
pub(super) fn store(authorities: &[&Entity], own: &[&Entity], between: &[&Entity]) -> Store {
    let mut store = Store::default();
    let mut add = |list: &[&Entity], usage| {
        for entity in list {
            store.add_certificates(&entity.der, usage, Origin::File).expect("a certificate");
        }
    };
    add(authorities, CertificateUse::Authority);
    add(own, CertificateUse::EndEntity);
    add(between, CertificateUse::Intermediate);
    for entity in own {
        store.add_private_key(&entity.key_der, &[], Origin::File).expect("a key");
    }
    store
}

pub(super) fn id(text: &str) -> Identity {
    Identity::parse(text).expect("an identity")
}

pub(super) fn like(text: &str) -> IdPattern {
    IdPattern::parse(text).expect("a pattern")
}

pub(super) fn auth(method: AuthMethod) -> Auth {
    Auth::new(method, IdPattern::Any)
}

pub(super) fn public_key(words: &[&str]) -> AuthMethod {
    AuthMethod::PublicKey(words.iter().map(|word| (*word).to_owned()).collect())
}

pub(super) fn connection(local: Auth, remote: Auth) -> Connection {
    Connection { send_cert: SendCert::Always, local: vec![local], remote: vec![remote], ..Connection::new("net") }
}

pub(super) fn paths() -> Path {
    let addr = |text: &str| text.parse::<SocketAddr>().expect("an address");
    Path { local: addr("192.0.2.1:500"), remote: addr("192.0.2.2:500"), encap: false }
}

pub(super) const ALL_HASHES: [u16; 4] = [2, 3, 4, 5];

pub(super) fn sign_request(connection: Connection, hashes: &[u16]) -> SignRequest {
    SignRequest {
        connection: Arc::new(connection),
        round: 0,
        v1: None,
        local_id: None,
        remote_id: None,
        path: paths(),
        prf: Prf::HmacSha256,
        message_and_nonce: b"message and nonce".to_vec(),
        sk_p: Secret::from_slice(&[7; 32]),
        int_auth: b"intermediate".to_vec(),
        peer_hashes: hashes.iter().map(|hash| HashId(*hash)).collect(),
        peer_authorities: Vec::new(),
        peer_ocsp: false,
        eap_msk: None,
    }
}

/// The peer's view of a response.
pub(super) fn verify_request(connection: Connection, request: &SignRequest, signed: Signed) -> VerifyRequest {
    // As RFC 7296 §2.15 has it, written out.
    let mut body = vec![signed.local_id.kind.0, 0, 0, 0];
    body.extend(&signed.local_id.data);
    let id_hash = request.prf.compute(&request.sk_p, &[&body]);
    let octets = match &request.v1 {
        Some(_) => request.prf.compute(&request.sk_p, &[&request.message_and_nonce, &body]).to_vec(),
        None => [&request.message_and_nonce[..], id_hash.as_slice(), &request.int_auth].concat(),
    };
    VerifyRequest {
        candidates: vec![Arc::new(connection)],
        round: 0,
        version: if request.v1.is_some() { 1 } else { 2 },
        remote_id: signed.local_id,
        local_id: None,
        path: paths(),
        prf: request.prf,
        octets,
        method: signed.method,
        auth: signed.auth,
        certs: signed.certs,
        eap_msk: request.eap_msk.clone(),
    }
}
