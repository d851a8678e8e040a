//! Certificates and keys of TLS, for EAP-TLS and the PSP key service: those of the store, verified
//! by the rules of IKE instead of those of the web.
//!
//! OCSP responses that a TLS peer staples are ignored, and none are sent (RFC 9190 §5.4 requires
//! them): the revocation status comes from the store.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use crypto::ike::{Curve, Hash, PrivateKey, PublicKeyKind, SignatureScheme as Scheme};
use ike::config::{Auth, AuthMethod};
use ike::identity::IdPattern;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::super::super::constraint::Constraints;
use super::super::super::name;
use super::super::super::path::{self, MAX_PEER_CERTIFICATES};
use super::super::super::store::{Store, Trust};
use super::super::super::verify::{Sent, trusted};
use super::super::super::x509::Certificate;
use super::fits;
use crate::tls::Own;

/// Signature schemes of TLS, preferred ones first. PKCS #1 v1.5 signs handshakes of TLS 1.2 only
/// (RFC 8446 §4.2.3).
const SCHEMES: [(SignatureScheme, Scheme); 10] = [
    (SignatureScheme::ECDSA_NISTP256_SHA256, Scheme::Ecdsa(Hash::Sha256)),
    (SignatureScheme::ECDSA_NISTP384_SHA384, Scheme::Ecdsa(Hash::Sha384)),
    (SignatureScheme::ECDSA_NISTP521_SHA512, Scheme::Ecdsa(Hash::Sha512)),
    (SignatureScheme::ED25519, Scheme::Ed25519),
    (SignatureScheme::RSA_PSS_SHA256, Scheme::RsaPss(Hash::Sha256)),
    (SignatureScheme::RSA_PSS_SHA384, Scheme::RsaPss(Hash::Sha384)),
    (SignatureScheme::RSA_PSS_SHA512, Scheme::RsaPss(Hash::Sha512)),
    (SignatureScheme::RSA_PKCS1_SHA256, Scheme::RsaPkcs1(Hash::Sha256)),
    (SignatureScheme::RSA_PKCS1_SHA384, Scheme::RsaPkcs1(Hash::Sha384)),
    (SignatureScheme::RSA_PKCS1_SHA512, Scheme::RsaPkcs1(Hash::Sha512)),
];

/// Returns whether a key of this kind signs with the scheme. An ECDSA key signs with the hash of
/// its curve only, as TLS 1.3 requires (RFC 8446 §4.2.3).
fn fitting(kind: PublicKeyKind, scheme: Scheme) -> bool {
    match (kind, scheme) {
        (PublicKeyKind::Rsa { .. }, Scheme::RsaPss(_) | Scheme::RsaPkcs1(_)) => true,
        (PublicKeyKind::Ecdsa(curve), Scheme::Ecdsa(hash)) => curve.hash() == hash,
        (PublicKeyKind::Ed25519, Scheme::Ed25519) => true,
        _ => false,
    }
}

/// Chooses a certificate of this host for a round of authentication.
pub(crate) fn own(store: &Store, auth: Option<&Auth>, now: Duration) -> anyhow::Result<Own> {
    let pinned = auth.map_or(&[][..], |auth| &auth.certs);
    let id = auth.map(|auth| match &auth.eap_id {
        Some(IdPattern::Like(id)) => IdPattern::Like(id.clone()),
        Some(IdPattern::Any) | None => auth.id.clone(),
    });
    let wanted = |leaf: &&Certificate| pinned.is_empty() || pinned.contains(&leaf.fingerprint());
    let usable = store.trust().end_entities.iter().filter(wanted).filter_map(|leaf| {
        let key = store.key_of(leaf.key())?;
        path::peer_certificate(leaf, now).ok()?;
        Some((leaf, key, id.as_ref().is_none_or(|id| fits(leaf, id))))
    });
    // A certificate of the identity is preferred to others.
    let Some((leaf, key, _)) = usable.max_by_key(|(_, _, fits)| *fits) else {
        bail!("TLS requires a valid certificate with its private key; load both, or set 'certs'");
    };
    let chain = store.chain(leaf);
    let cert = chain.iter().map(|certificate| CertificateDer::from(certificate.der().to_vec())).collect();
    Ok(Own(Arc::new(CertifiedKey { cert, key: Arc::new(Key(Arc::clone(key))), ocsp: None })))
}

/// A private key of the store.
struct Key(Arc<PrivateKey>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[private key]")
    }
}

impl SigningKey for Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let usable =
            |(tls, scheme): &&(SignatureScheme, Scheme)| offered.contains(tls) && fitting(self.0.kind(), *scheme);
        let (tls, scheme) = SCHEMES.iter().find(usable)?;
        Some(Box::new(Signing { key: Arc::clone(&self.0), tls: *tls, scheme: *scheme }))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        match self.0.kind() {
            PublicKeyKind::Rsa { .. } => SignatureAlgorithm::RSA,
            PublicKeyKind::Ecdsa(Curve::P256 | Curve::P384 | Curve::P521) => SignatureAlgorithm::ECDSA,
            PublicKeyKind::Ed25519 => SignatureAlgorithm::ED25519,
        }
    }
}

struct Signing {
    key: Arc<PrivateKey>,
    tls: SignatureScheme,
    scheme: Scheme,
}

impl std::fmt::Debug for Signing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[private key with {:?}]", self.tls)
    }
}

impl Signer for Signing {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.key.sign(self.scheme, &[message]).map_err(|fault| Error::General(fault.to_string()))
    }

    fn scheme(&self) -> SignatureScheme {
        self.tls
    }
}

/// Verifies the peer's certificate against the store.
pub(crate) struct Verifier {
    trust: Arc<Trust>,
    auth: Auth,
    constraints: Constraints,
    /// Required identity of the certificate.
    only: IdPattern,
    hints: Vec<DistinguishedName>,
    now: Duration,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[rules for certificates]")
    }
}

/// Reason of a refusal, as text: rustls takes an error type.
#[derive(Debug)]
struct Fault(String);

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

fn fault(why: impl Into<String>) -> Error {
    Error::InvalidCertificate(rustls::CertificateError::Other(OtherError(Arc::new(Fault(why.into())))))
}

impl Verifier {
    pub(crate) fn new(store: &Store, auth: Auth, now: Duration) -> Self {
        let trust = Arc::clone(store.trust());
        let wanted = |ca: &&Certificate| auth.cacerts.is_empty() || auth.cacerts.contains(&ca.fingerprint());
        // `in_sequence` adds the header of the SEQUENCE, so it takes the contents of the name.
        let name = |ca: &Certificate| {
            let mut name = super::super::super::der::Reader::new(ca.subject());
            name.one(super::super::super::der::SEQUENCE).map(|name| DistinguishedName::in_sequence(name.body))
        };
        let hints = trust.authorities.iter().filter(wanted).take(64).filter_map(name).collect();
        let constraints = match &auth.method {
            AuthMethod::PublicKey(words) => Constraints::parse(words),
            _ => Constraints::parse(&[]),
        };
        Self { trust, auth, constraints, only: IdPattern::Any, hints, now }
    }

    /// Requires that the certificate contains an identity.
    pub(crate) fn only(mut self, id: IdPattern) -> Self {
        self.only = id;
        self
    }

    fn check(&self, leaf: &[u8], others: &[CertificateDer<'_>]) -> Result<(), Error> {
        let leaf = Certificate::from_der(leaf).map_err(|why| fault(why.to_string()))?;
        let sent: Vec<Certificate> =
            others.iter().take(MAX_PEER_CERTIFICATES).filter_map(|der| Certificate::from_der(der).ok()).collect();
        if !fits(&leaf, &self.only) {
            let wanted = match &self.only {
                IdPattern::Like(id) => name::show_id(id),
                IdPattern::Any => String::new(),
            };
            return Err(fault(format!("{leaf:?} does not belong to '{wanted}'")));
        }
        let sent = Sent { certificates: &sent, ..Sent::default() };
        let checked = trusted(&self.trust, &leaf, sent, &self.auth, &self.constraints, self.now);
        // A handshake of TLS cannot wait: fetched data is available for the next one.
        let fetching = !self.trust.fetched.submit(checked.fetches, self.now).is_empty();
        let later = if fetching { "; it is being fetched for the next attempt" } else { "" };
        checked.outcome.map(drop).map_err(|why| fault(format!("{why}{later}")))
    }

    fn signature(
        &self,
        message: &[u8],
        leaf: &[u8],
        signed: &DigitallySignedStruct,
        tls13: bool,
    ) -> Result<HandshakeSignatureValid, Error> {
        let leaf = Certificate::from_der(leaf).map_err(|why| fault(why.to_string()))?;
        let known = SCHEMES.iter().find(|(tls, _)| *tls == signed.scheme);
        let fits = |scheme: &Scheme| {
            let old = matches!(scheme, Scheme::RsaPkcs1(_));
            // TLS 1.2 does not tie hashes to curves (RFC 5246 §7.4.1.4.1).
            let free = !tls13 && matches!(scheme, Scheme::Ecdsa(_));
            !(tls13 && old) && (free || fitting(leaf.key().kind(), *scheme))
        };
        let scheme = known.map(|(_, scheme)| *scheme).filter(fits);
        let right = scheme.is_some_and(|scheme| leaf.key().verify(scheme, &[message], signed.signature()).is_ok());
        match right {
            true => Ok(HandshakeSignatureValid::assertion()),
            false => Err(Error::InvalidCertificate(rustls::CertificateError::BadSignature)),
        }
    }

    fn schemes() -> Vec<SignatureScheme> {
        SCHEMES.iter().map(|(tls, _)| *tls).collect()
    }
}

impl ServerCertVerifier for Verifier {
    // Server name and time of rustls are not used: the expected identity is that of the
    // configuration, and the time was passed to `new`.
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(leaf, others).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, leaf, signed, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, leaf, signed, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(leaf, others).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, leaf, signed, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, leaf, signed, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}
