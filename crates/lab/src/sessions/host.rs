//! Endpoints of the study, and the holder of their credentials.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use lab_crypto::ike::{Curve, HashId, PrivateKey, Secret, SignatureScheme};
use lab_ike::config::{self, AuthMethod, ChildConfig, Connection, SendCert, TsConfig, Unique, Version};
use lab_ike::identity::{IdPattern, Identity};
use lab_ike::keymat::{auth_octets, psk_auth, v1};
use lab_ike::output::{
    CredentialError, CredentialRequest, CredentialResponse, KeysV1, SignRequest, Signed, Verified, VerifyRequest,
};
use lab_ike::proposal::{ChildProposal, ChildProtocol, IkeProposal};
use lab_ike::{Endpoint, Settings};
use wire::ike::{Auth as AuthPayload, AuthMethodId};
use wire::{AddrRange, PortRange};

use super::subject::{Auth, Mode, Subject};
use crate::random::Random;

/// An endpoint; randomness is that of the provider: timed, or counted.
pub(super) type Host = Endpoint<Random>;

/// Name of the connection at both ends.
pub(super) const CONNECTION: &str = "peer";
/// Name of its Child SA.
pub(super) const CHILD: &str = "net";
/// Addresses of initiator and responder.
pub(super) const ADDRESSES: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 500),
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), 500),
];
const NAMES: [&str; 2] = ["initiator.test", "responder.test"];
/// The shared key: 32 bytes, as long as a key of the suites.
const PSK: &[u8] = b"a shared key of thirty-two bytes";

/// The key pair of both ends: its owner does not affect the cost. Made once per process.
fn key(auth: Auth) -> &'static PrivateKey {
    static RSA: [OnceLock<PrivateKey>; 2] = [const { OnceLock::new() }; 2];
    static ECDSA: OnceLock<PrivateKey> = OnceLock::new();
    match auth {
        Auth::Rsa(bits) => {
            RSA[usize::from(bits > 2048)].get_or_init(|| PrivateKey::rsa(bits).expect("the library makes RSA keys"))
        }
        // ECPrivateKey (RFC 5915) on prime256v1, without its public half.
        Auth::Ecdsa256 | Auth::Psk | Auth::None => ECDSA.get_or_init(|| {
            let mut der = vec![0x30, 0x31, 2, 1, 1, 4, 0x20];
            der.extend([0x42; 32]);
            der.extend([0xa0, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7]);
            PrivateKey::from_der(&der).expect("a key of P-256")
        }),
    }
}

/// Makes the keys of an authentication, so that no measurement contains it.
pub(super) fn prepare(auth: Auth) {
    if auth != Auth::Psk {
        key(auth);
    }
}

/// Endpoint number 0, which initiates, or 1, with its connection.
pub(super) fn host(subject: &Subject, number: usize, now: Instant) -> Host {
    let settings = Settings {
        // Switches of the user, for the paper's suites and for its modes.
        allow_legacy: true,
        aggressive_mode_psk: true,
        ..Settings::default()
    };
    let mut host = Endpoint::new(settings, Random(lab_crypto::random));
    host.local_addresses(now, &[ADDRESSES[number].ip()]);
    host.load(now, vec![Arc::new(connection(subject, number))]);
    host
}

fn connection(subject: &Subject, number: usize) -> Connection {
    let round = |name: &str| {
        let method = if subject.auth == Auth::Psk { AuthMethod::Psk } else { AuthMethod::PublicKey(Vec::new()) };
        config::Auth::new(method, IdPattern::Like(identity(name)))
    };
    let only = |address: SocketAddr| vec![AddrRange { start: address.ip(), end: address.ip() }.into()];
    Connection {
        version: if subject.mode == Mode::V2 { Version::V2 } else { Version::V1 },
        aggressive: subject.mode == Mode::Aggressive,
        local_addrs: only(ADDRESSES[number]),
        remote_addrs: only(ADDRESSES[1 - number]),
        proposals: vec![IkeProposal::parse(&subject.suite).expect("a subject has a proposal")],
        mobike: false,
        send_certreq: false,
        send_cert: SendCert::Never,
        unique: Unique::Never,
        local: vec![round(NAMES[number])],
        remote: vec![round(NAMES[1 - number])],
        children: vec![Arc::new(child(subject, number))],
        ..Connection::new(CONNECTION)
    }
}

fn child(subject: &Subject, number: usize) -> ChildConfig {
    let selector = |number: usize| {
        let start = Ipv4Addr::new(10, number as u8 + 1, 0, 0);
        let end = Ipv4Addr::new(10, number as u8 + 1, 255, 255);
        TsConfig { addrs: Some(AddrRange { start: start.into(), end: end.into() }), proto: None, ports: PortRange::ANY }
    };
    let proposal = ChildProposal::parse(ChildProtocol::Esp, subject.child_suite()).expect("a subject has a proposal");
    ChildConfig {
        proposals: vec![proposal],
        local_ts: vec![selector(number)],
        remote_ts: vec![selector(1 - number)],
        ..ChildConfig::new(CHILD)
    }
}

fn identity(name: &str) -> Identity {
    Identity::parse(name).expect("a name")
}

/// Responds as the holder of the credentials.
pub(super) fn answer(auth: Auth, number: usize, request: &CredentialRequest) -> CredentialResponse {
    match request {
        CredentialRequest::Sign(request) => CredentialResponse::Signed(sign(auth, number, request)),
        CredentialRequest::Verify(request) => CredentialResponse::Verified(verify(auth, request)),
        CredentialRequest::SharedKeyV1(query) => {
            CredentialResponse::SharedKeyV1(Ok(v1::skeyid_psk(query.prf, PSK, &query.nonces)))
        }
        CredentialRequest::KeysV1(_) => CredentialResponse::KeysV1(KeysV1 {
            signers: vec![(method_v1(auth), identity(NAMES[number]))],
            refusal: None,
            authorities: Vec::new(),
        }),
        CredentialRequest::TrustedAuthorities(_) => CredentialResponse::TrustedAuthorities(Vec::new()),
        CredentialRequest::Eap(_)
        | CredentialRequest::Ppk(_)
        | CredentialRequest::PasswordV1(_)
        | CredentialRequest::XAuth(_) => unreachable!("the connections of the study have none of these"),
    }
}

fn method_v1(auth: Auth) -> AuthMethodId {
    if auth == Auth::Ecdsa256 { AuthMethodId::ECDSA256 } else { AuthMethodId::RSA }
}

/// Signatures of IKEv1 are over the hash itself.
fn scheme_v1(auth: Auth) -> SignatureScheme {
    if auth == Auth::Ecdsa256 { SignatureScheme::RawEcdsa(Curve::P256) } else { SignatureScheme::RawRsaPkcs1 }
}

fn refused(error: impl std::fmt::Display) -> CredentialError {
    CredentialError(error.to_string())
}

fn sign(auth: Auth, number: usize, request: &SignRequest) -> Result<Signed, CredentialError> {
    let local_id = request.local_id.clone().unwrap_or_else(|| identity(NAMES[number]));
    let certs = Vec::new();
    if request.v1.is_some() {
        let hash = super::rows::proof(request.prf, &request.sk_p, &request.message_and_nonce, &local_id.payload_body());
        let auth_data = key(auth).sign(scheme_v1(auth), &[&hash]).map_err(refused)?;
        return Ok(Signed { local_id, method: method_v1(auth), auth: auth_data, certs });
    }
    let octets = auth_octets(&request.message_and_nonce, request.prf, &request.sk_p, &local_id, &request.int_auth);
    if auth == Auth::Psk {
        let code: Secret = psk_auth(request.prf, PSK, &octets);
        return Ok(Signed { local_id, method: AuthMethodId::PSK, auth: code.to_vec(), certs });
    }
    let hashes: Vec<HashId> = request.peer_hashes.iter().map(|hash| HashId(hash.0)).collect();
    let scheme = key(auth).best_scheme(&hashes).ok_or_else(|| refused("the peer takes no hash of the key"))?;
    let signature = key(auth).sign(scheme, &[&octets]).map_err(refused)?;
    let algorithm = scheme.algorithm_identifier();
    let auth_data = [&[algorithm.len() as u8][..], algorithm, &signature].concat();
    Ok(Signed { local_id, method: AuthMethodId::DIGITAL_SIGNATURE, auth: auth_data, certs })
}

fn verify(auth: Auth, request: &VerifyRequest) -> Result<Verified, CredentialError> {
    let right = match (auth, request.version) {
        (Auth::Psk, _) => psk_auth(request.prf, PSK, &request.octets)[..] == request.auth[..],
        (_, 1) => key(auth).verify(scheme_v1(auth), &[&request.octets], &request.auth).is_ok(),
        _ => {
            let payload = AuthPayload { method: request.method, data: &request.auth };
            let (algorithm, signature) = payload.digital_signature().map_err(refused)?;
            let scheme = SignatureScheme::from_algorithm_identifier(algorithm).ok_or_else(|| refused("a scheme"))?;
            key(auth).verify(scheme, &[&request.octets], signature).is_ok()
        }
    };
    let connection = request.candidates.first().filter(|_| right).cloned();
    let connection = connection.ok_or_else(|| refused("AUTH is wrong"))?;
    Ok(Verified { connection, valid_for: None, name: None })
}
