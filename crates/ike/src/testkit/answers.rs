//! Credentials of a host under test: shared keys, Ed25519 keys, and EAP methods that pretend.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crypto::ike::{Curve, Hash, PrivateKey, PublicKey, Secret, SignatureScheme};
use wire::ike::{Auth as AuthPayload, AuthMethodId, CertEncoding, Eap};

use crate::config::{AuthMethod, Connection};
use crate::identity::{IdPattern, Identity};
use crate::keymat::{auth_octets, psk_auth};
use crate::output::{
    CredentialError, CredentialRequest, CredentialResponse, EapResult, EapStep, KeysV1, SignRequest, Signed, Verified,
    VerifyRequest,
};

/// EAP that only looks like a method: a request of the method, a response with the password's hash,
/// success or failure.
#[derive(Clone, Debug)]
pub struct EapFake {
    /// Number of the method.
    pub method: u8,
    /// Password of the client; both endpoints must have the same.
    pub password: String,
    /// The method makes a key.
    pub msk: bool,
    /// A server sends Success before it has verified the client: an attack or a bug.
    pub hasty: bool,
    /// A server requests the EAP identity, which belongs to the alternative of this name.
    pub switch_to: Option<&'static str>,
}

/// Type of EAP-Identity.
const IDENTITY: u8 = 1;

/// Identity and trust anchors of a host.
#[derive(Clone)]
pub struct Credentials {
    /// Shared key with everybody.
    pub psk: Vec<u8>,
    /// Shared keys with single peers in IKEv1, by their identities.
    pub psks_v1: HashMap<Identity, Vec<u8>>,
    /// Its own private key.
    pub key: Option<Arc<PrivateKey>>,
    /// The identity in its certificate, where the connection names none.
    pub identity: Option<Identity>,
    /// Signatures of IKEv1 count as those of RSA: XAuth is specified for RSA alone. Both ends
    /// should have the same value.
    pub rsa: bool,
    /// Public keys of others, by identity.
    pub trusted: HashMap<Identity, PublicKey>,
    /// Bytes that go along as certificates.
    pub certs: Vec<Vec<u8>>,
    /// Post-quantum preshared keys by name.
    pub ppks: HashMap<Vec<u8>, Vec<u8>>,
    /// EAP.
    pub eap: EapFake,
    /// Authorities for CERTREQ.
    pub authorities: Vec<[u8; 20]>,
    /// Passwords of users of XAuth, by their names.
    pub passwords: HashMap<Vec<u8>, Vec<u8>>,
    /// Until when certificates of peers are valid.
    pub valid_for: Option<Duration>,
    /// Certificates that peers sent, counted.
    pub certs_seen: usize,
    /// Questions that were answered.
    pub requests: usize,
}

impl Default for Credentials {
    fn default() -> Self {
        let eap = EapFake { method: 26, password: "password".to_owned(), msk: true, hasty: false, switch_to: None };
        Self {
            psk: b"the shared key of the tests".to_vec(),
            psks_v1: HashMap::new(),
            key: None,
            identity: None,
            rsa: false,
            trusted: HashMap::new(),
            certs: Vec::new(),
            ppks: HashMap::new(),
            eap,
            authorities: vec![[7; 20]],
            passwords: HashMap::new(),
            valid_for: None,
            certs_seen: 0,
            requests: 0,
        }
    }
}

/// A key on P-256 of a seed: IKEv1 has no Ed25519.
///
/// # Panics
/// When the library does not take it: a bug.
pub(super) fn p256(seed: u8) -> PrivateKey {
    let mut der = vec![0x30, 0x31, 2, 1, 1, 4, 0x20];
    der.extend([seed; 32]);
    der.extend([0xa0, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7]);
    PrivateKey::from_der(&der).expect("a key")
}

/// An Ed25519 key of a seed.
///
/// # Panics
/// When the library does not take it: a bug.
pub(super) fn ed25519(seed: u8) -> PrivateKey {
    let mut der = vec![0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
    der.extend([seed; 32]);
    PrivateKey::from_der(&der).expect("a key")
}

impl Credentials {
    /// Sets the private key of this host and the public key of a peer.
    pub fn with_keys(&mut self, own: u8, peers: &[(Identity, u8)]) {
        self.key = Some(Arc::new(ed25519(own)));
        self.trusted.extend(peers.iter().map(|(id, seed)| (id.clone(), ed25519(*seed).public().clone())));
    }

    /// Likewise for IKEv1.
    pub fn with_keys_v1(&mut self, own: (Identity, u8), peers: &[(Identity, u8)]) {
        (self.key, self.identity) = (Some(Arc::new(p256(own.1))), Some(own.0));
        self.trusted.extend(peers.iter().map(|(id, seed)| (id.clone(), p256(*seed).public().clone())));
    }

    /// Responds to a credential request as a credential store would.
    pub fn answer(&mut self, request: &CredentialRequest) -> CredentialResponse {
        self.requests += 1;
        match request {
            CredentialRequest::Sign(request) => CredentialResponse::Signed(self.sign(request)),
            CredentialRequest::Verify(request) => CredentialResponse::Verified(self.verify(request)),
            CredentialRequest::Eap(step) => CredentialResponse::Eap(self.eap(step)),
            CredentialRequest::Ppk(name) => {
                CredentialResponse::Ppk(self.ppks.get(&name.data).map(|ppk| Secret::from_slice(ppk)))
            }
            CredentialRequest::SharedKeyV1(query) => {
                let psk = query.remote_id.as_ref().and_then(|id| self.psks_v1.get(id)).unwrap_or(&self.psk);
                let skeyid = crate::keymat::v1::skeyid_psk(query.prf, psk, &query.nonces);
                CredentialResponse::SharedKeyV1(Ok(skeyid))
            }
            CredentialRequest::TrustedAuthorities(_) => {
                CredentialResponse::TrustedAuthorities(self.authorities.clone())
            }
            CredentialRequest::KeysV1(_) => CredentialResponse::KeysV1(self.keys_v1()),
            CredentialRequest::PasswordV1(user) => {
                let found = self.passwords.get(&user.as_user_name()).map(|password| Secret::from_slice(password));
                CredentialResponse::PasswordV1(found.ok_or_else(|| CredentialError("no password".to_owned())))
            }
            CredentialRequest::XAuth(query) => {
                let right = self.passwords.get(&query.user).is_some_and(|right| right[..] == query.password[..]);
                let name = String::from_utf8_lossy(&query.user).into_owned();
                let wrong = || CredentialError("the password is wrong".to_owned());
                CredentialResponse::XAuth(if right { Ok(name) } else { Err(wrong()) })
            }
        }
    }

    fn keys_v1(&self) -> KeysV1 {
        let authorities = vec![b"a name of a CA".to_vec()];
        match self.identity.clone().filter(|_| self.key.is_some()) {
            Some(id) => KeysV1 { signers: vec![(self.method_v1(), id)], refusal: None, authorities },
            None => {
                KeysV1 { refusal: Some(CredentialError("no private key".to_owned())), authorities, signers: Vec::new() }
            }
        }
    }

    fn method_v1(&self) -> AuthMethodId {
        if self.rsa { AuthMethodId::RSA } else { AuthMethodId::ECDSA256 }
    }

    fn sign_v1(&self, request: &SignRequest) -> Result<Signed, CredentialError> {
        let none = || CredentialError("no private key".to_owned());
        let key = self.key.as_ref().ok_or_else(none)?;
        let local_id = request.local_id.clone().or_else(|| self.identity.clone()).ok_or_else(none)?;
        let parts = [&request.message_and_nonce[..], &local_id.payload_body()];
        let hash = request.prf.compute(&request.sk_p, &parts);
        let signature = key.sign(SignatureScheme::RawEcdsa(Curve::P256), &[&hash]);
        let auth = signature.map_err(|error| CredentialError(error.to_string()))?;
        let certs = self.certs.iter().map(|cert| (CertEncoding::X509_SIGNATURE, cert.clone())).collect();
        Ok(Signed { local_id, method: self.method_v1(), auth, certs })
    }

    fn sign(&self, request: &SignRequest) -> Result<Signed, CredentialError> {
        let refuse = |text: &str| CredentialError(text.to_owned());
        if request.v1.is_some() {
            return self.sign_v1(request);
        }
        let local_id = request.local_id.clone().ok_or_else(|| refuse("no identity"))?;
        let octets = auth_octets(&request.message_and_nonce, request.prf, &request.sk_p, &local_id, &request.int_auth);
        if let Some(msk) = &request.eap_msk {
            let auth = psk_auth(request.prf, msk, &octets).to_vec();
            return Ok(Signed { local_id, method: AuthMethodId::PSK, auth, certs: Vec::new() });
        }
        let auth = request.connection.local.get(request.round).ok_or_else(|| refuse("no such round"))?;
        match auth.method {
            AuthMethod::Psk => {
                let auth = psk_auth(request.prf, &self.psk, &octets).to_vec();
                Ok(Signed { local_id, method: AuthMethodId::PSK, auth, certs: Vec::new() })
            }
            AuthMethod::PublicKey(_) => {
                let key = self.key.as_ref().ok_or_else(|| refuse("no private key"))?;
                let hashes: Vec<crypto::ike::HashId> =
                    request.peer_hashes.iter().map(|hash| crypto::ike::HashId(hash.0)).collect();
                let scheme = key.best_scheme(&hashes).ok_or_else(|| refuse("no scheme that the peer supports"))?;
                let signature = key.sign(scheme, &[&octets]).map_err(|error| CredentialError(error.to_string()))?;
                let algorithm = scheme.algorithm_identifier();
                let auth = [&[algorithm.len() as u8][..], algorithm, &signature].concat();
                let certs = self.certs.iter().map(|cert| (CertEncoding::X509_SIGNATURE, cert.clone())).collect();
                Ok(Signed { local_id, method: AuthMethodId::DIGITAL_SIGNATURE, auth, certs })
            }
            _ => Err(refuse("the round is not for this host to sign")),
        }
    }

    fn verify(&mut self, request: &VerifyRequest) -> Result<Verified, CredentialError> {
        self.certs_seen += request.certs.len();
        let fits = |connection: &&Arc<Connection>| {
            let Some(auth) = connection.remote.get(request.round) else { return false };
            let kind = matches!(
                (&auth.method, request.method, request.eap_msk.is_some()),
                (AuthMethod::Any, _, false)
                    | (_, AuthMethodId::PSK, true)
                    | (AuthMethod::Psk, AuthMethodId::PSK, false)
                    | (
                        AuthMethod::PublicKey(_),
                        AuthMethodId::DIGITAL_SIGNATURE | AuthMethodId::ECDSA256 | AuthMethodId::RSA,
                        false
                    )
            );
            kind && admits(&auth.id, &request.remote_id)
        };
        let connection = request.candidates.iter().find(fits);
        let connection = connection.ok_or_else(|| CredentialError("no connection admits this identity".to_owned()))?;
        let good = match (&request.eap_msk, request.method) {
            (Some(key), _) => *psk_auth(request.prf, key, &request.octets) == request.auth[..],
            (None, AuthMethodId::PSK) => *psk_auth(request.prf, &self.psk, &request.octets) == request.auth[..],
            _ => self.is_signed(request),
        };
        if !good {
            return Err(CredentialError("AUTH is wrong".to_owned()));
        }
        Ok(Verified { connection: connection.clone(), valid_for: self.valid_for, name: None })
    }

    fn is_signed(&self, request: &VerifyRequest) -> bool {
        if request.version == 1 {
            let scheme = SignatureScheme::RawEcdsa(Curve::P256);
            let key = self.trusted.get(&request.remote_id);
            return key.is_some_and(|key| key.verify(scheme, &[&request.octets], &request.auth).is_ok());
        }
        let auth = AuthPayload { method: request.method, data: &request.auth };
        let Ok((algorithm, signature)) = auth.digital_signature() else { return false };
        let (Some(scheme), Some(key)) =
            (SignatureScheme::from_algorithm_identifier(algorithm), self.trusted.get(&request.remote_id))
        else {
            return false;
        };
        key.verify(scheme, &[&request.octets], signature).is_ok()
    }

    fn eap(&self, step: &EapStep) -> EapResult {
        let msk = || {
            let digest = Hash::Sha256.digest(&[b"msk", self.eap.password.as_bytes(), &step.client_id.data]);
            self.eap.msk.then(|| Secret::new([&digest[..], &digest].concat()))
        };
        let proof = Hash::Sha256.digest(&[b"proof", self.eap.password.as_bytes()]);
        let packet = |code, id, data: &[u8]| {
            let mut packet = Vec::new();
            Eap::emit(code, id, data, &mut packet);
            packet
        };
        let refuse = |text: &str| CredentialError(text.to_owned());
        let identity = Some(Identity { kind: wire::ike::IdType::KEY_ID, data: b"eap client".to_vec() });
        if !step.client && step.packet.is_empty() {
            if self.eap.hasty {
                return EapResult::Success { packet: packet(Eap::SUCCESS, 1, &[]), msk: msk(), identity };
            }
            let kind = if self.eap.switch_to.is_some() { IDENTITY } else { self.eap.method };
            return EapResult::Packet(packet(Eap::REQUEST, 1, &[kind]));
        }
        let Ok(got) = Eap::parse(&step.packet) else { return EapResult::Failure(Vec::new(), refuse("no EAP")) };
        match (step.client, got.code, got.method()) {
            (true, Eap::REQUEST, Some(IDENTITY)) => EapResult::Packet(packet(Eap::RESPONSE, got.id, &[IDENTITY, b'x'])),
            (false, Eap::RESPONSE, Some(IDENTITY)) => {
                let request = packet(Eap::REQUEST, 2, &[self.eap.method]);
                let is_it = |other: &&Arc<Connection>| Some(&*other.name) == self.eap.switch_to;
                match step.alternatives.iter().find(is_it) {
                    Some(other) => EapResult::Switch(other.clone(), request),
                    None => EapResult::Failure(packet(Eap::FAILURE, got.id, &[]), refuse("no alternative")),
                }
            }
            (true, Eap::REQUEST, Some(method)) if method == self.eap.method => {
                EapResult::Packet(packet(Eap::RESPONSE, got.id, &[&[method][..], &proof].concat()))
            }
            (true, Eap::SUCCESS, _) => EapResult::Success { packet: Vec::new(), msk: msk(), identity: None },
            (false, Eap::RESPONSE, Some(method)) if method == self.eap.method && got.data[1..] == proof => {
                EapResult::Success { packet: packet(Eap::SUCCESS, got.id, &[]), msk: msk(), identity }
            }
            (false, ..) => EapResult::Failure(packet(Eap::FAILURE, got.id, &[]), refuse("the password is wrong")),
            _ => EapResult::Failure(Vec::new(), refuse("the server ends EAP")),
        }
    }
}

fn admits(pattern: &IdPattern, id: &Identity) -> bool {
    pattern.matches(id).is_some()
}
