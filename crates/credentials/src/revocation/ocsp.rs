//! OCSP (RFC 6960): requests for one certificate, and responses.
//!
//! A response is valid if it was signed by the issuer of the certificate, or by a responder that
//! the issuer authorised. Certificates are identified by SHA-1 or SHA-256 hashes; requests use
//! SHA-1, because every server supports it.

use std::time::Duration;

use anyhow::{anyhow, bail};
use crypto::ike::{Hash, SignatureScheme};
use x509_cert::der::Decode;
use x509_cert::der::asn1::GeneralizedTime;

use super::super::constraint::Constraints;
use super::super::der::{BIT_STRING, INTEGER, OCTET_STRING, OID, Reader, SEQUENCE, context, element};
use super::super::x509::Certificate;
use super::SKEW;

/// Maximum size of a response in bytes; a larger one is an error.
pub(in super::super) const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// Maximum number of certificates of a response that are tried as signers.
const MAX_CERTIFICATES: usize = 4;
/// Maximum number of certificates that one response covers.
const MAX_ENTRIES: usize = 64;
/// Time for which a response without a next update is current.
const WITHOUT_NEXT_UPDATE: Duration = Duration::from_secs(300);
/// Octets of a nonce (RFC 9654).
pub(super) const NONCE_BYTES: usize = 32;

const ENUMERATED: u8 = 0x0a;
const SHA1: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];
const SHA256: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01];
const OCSP_BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];
const OCSP_NONCE: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x02];

/// Status of a certificate in a response. "Unknown" does not count as a status.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in super::super) enum Status {
    Good,
    Revoked,
}

/// Name of a certificate (CertID).
#[derive(Clone, Debug, Eq, PartialEq)]
struct CertId {
    hash: Hash,
    name: Vec<u8>,
    key: Vec<u8>,
    serial: Vec<u8>,
}

impl CertId {
    fn of(certificate: &Certificate, issuer: &Certificate, hash: Hash) -> Option<Self> {
        let mut spki = Reader::new(issuer.key().spki()).inside(SEQUENCE)?;
        spki.one(SEQUENCE)?;
        let bits = spki.one(BIT_STRING)?.body.split_first()?.1;
        Some(Self {
            hash,
            name: hash.digest(&[issuer.subject()]),
            key: hash.digest(&[bits]),
            serial: certificate.serial().to_vec(),
        })
    }

    fn parse(reader: &mut Reader<'_>) -> Option<Option<Self>> {
        let mut id = reader.inside(SEQUENCE)?;
        let hash = match id.inside(SEQUENCE)?.one(OID)?.body {
            SHA1 => Hash::Sha1,
            SHA256 => Hash::Sha256,
            // An unknown hash must not invalidate the other entries of the response.
            _ => return Some(None),
        };
        let (name, key) = (id.one(OCTET_STRING)?.body.to_vec(), id.one(OCTET_STRING)?.body.to_vec());
        Some(Some(Self { hash, name, key, serial: id.one(INTEGER)?.body.to_vec() }))
    }

    fn emit(&self) -> Vec<u8> {
        let oid = if self.hash == Hash::Sha1 { SHA1 } else { SHA256 };
        let algorithm = element(SEQUENCE, &[&element(OID, &[oid]), &[5, 0]]);
        let (name, key) = (element(OCTET_STRING, &[&self.name]), element(OCTET_STRING, &[&self.key]));
        element(SEQUENCE, &[&algorithm, &name, &key, &element(INTEGER, &[&self.serial])])
    }
}

/// Returns the request for the status of one certificate (OCSPRequest); `None` if the key of the
/// issuer is invalid.
pub(super) fn request(certificate: &Certificate, issuer: &Certificate, nonce: &[u8]) -> Option<Vec<u8>> {
    let id = CertId::of(certificate, issuer, Hash::Sha1)?.emit();
    let list = element(SEQUENCE, &[&element(SEQUENCE, &[&id])]);
    let nonce = element(OCTET_STRING, &[&element(OCTET_STRING, &[nonce])]);
    let extension = element(SEQUENCE, &[&element(OID, &[OCSP_NONCE]), &nonce]);
    let extensions = element(context(2), &[&element(SEQUENCE, &[&extension])]);
    Some(element(SEQUENCE, &[&element(SEQUENCE, &[&list, &extensions])]))
}

/// A response (OCSPResponse with BasicOCSPResponse).
#[derive(Clone)]
pub(in super::super) struct Response {
    der: Vec<u8>,
    tbs: Vec<u8>,
    scheme: SignatureScheme,
    signature: Vec<u8>,
    responder: Responder,
    entries: Vec<SingleEntry>,
    certificates: Vec<Certificate>,
    nonce: Option<Vec<u8>>,
}

impl std::fmt::Debug for Response {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[OCSP response with {} entries]", self.entries.len())
    }
}

#[derive(Clone)]
enum Responder {
    Name(Vec<u8>),
    KeyHash(Vec<u8>),
}

#[derive(Clone)]
struct SingleEntry {
    id: CertId,
    /// `None`: unknown to the responder.
    status: Option<Status>,
    this_update: Duration,
    next_update: Option<Duration>,
}

impl SingleEntry {
    fn until(&self) -> Duration {
        self.next_update.unwrap_or(self.this_update + WITHOUT_NEXT_UPDATE)
    }
}

impl Response {
    /// Parses a response in DER without trailing bytes.
    ///
    /// # Errors
    /// The response reports an error of the server, or is invalid.
    pub(in super::super) fn from_der(der: &[u8]) -> anyhow::Result<Self> {
        if der.len() > MAX_RESPONSE_BYTES {
            bail!("{} bytes exceed the limit", der.len());
        }
        let malformed = || anyhow!("malformed OCSP response");
        let mut outer = Reader::new(der);
        let mut inside = outer.inside(SEQUENCE).filter(|_| outer.is_empty()).ok_or_else(malformed)?;
        match inside.one(ENUMERATED).ok_or_else(malformed)?.body {
            [0] => Self::basic(der, inside).ok_or_else(malformed),
            [1] => Err(anyhow!("error of the OCSP server: malformedRequest")),
            [2] => Err(anyhow!("error of the OCSP server: internalError")),
            [3] => Err(anyhow!("error of the OCSP server: tryLater")),
            [5] => Err(anyhow!("error of the OCSP server: sigRequired; signed requests are not supported")),
            [6] => Err(anyhow!("error of the OCSP server: unauthorized; no status for this certificate")),
            _ => Err(malformed()),
        }
    }

    fn basic(der: &[u8], mut inside: Reader<'_>) -> Option<Self> {
        let mut bytes = inside.inside(context(0))?.inside(SEQUENCE)?;
        bytes.one(OID).filter(|kind| kind.body == OCSP_BASIC)?;
        let mut basic = Reader::new(bytes.one(OCTET_STRING)?.body).inside(SEQUENCE)?;
        let (tbs, algorithm) = (basic.one(SEQUENCE)?, basic.one(SEQUENCE)?);
        let [0, signature @ ..] = basic.one(BIT_STRING)?.body else { return None };
        let mut certificates = Vec::new();
        if let Some(list) = basic.optional(context(0)) {
            let mut list = Reader::new(list.body).inside(SEQUENCE)?;
            while !list.is_empty() && certificates.len() < MAX_CERTIFICATES {
                certificates.extend(Certificate::from_der(list.one(SEQUENCE)?.whole).ok());
            }
        }
        let mut data = Reader::new(tbs.body);
        data.optional(context(0));
        let responder = data.any()?;
        let responder = match responder.tag {
            tag if tag == context(1) => Responder::Name(responder.body.to_vec()),
            tag if tag == context(2) => {
                Responder::KeyHash(Reader::new(responder.body).one(OCTET_STRING)?.body.to_vec())
            }
            _ => return None,
        };
        time(&mut data)?;
        let mut list = data.inside(SEQUENCE)?;
        let mut entries = Vec::new();
        while !list.is_empty() && entries.len() < MAX_ENTRIES {
            entries.extend(single(&mut list)?);
        }
        let nonce = match data.optional(context(1)) {
            Some(extensions) => nonce(Reader::new(extensions.body))?,
            None => None,
        };
        Some(Self {
            tbs: tbs.whole.to_vec(),
            scheme: SignatureScheme::from_algorithm_identifier(algorithm.whole)?,
            signature: signature.to_vec(),
            der: der.to_vec(),
            responder,
            entries,
            certificates,
            nonce,
        })
    }

    /// Returns the response in DER, as received.
    pub(in super::super) fn der(&self) -> &[u8] {
        &self.der
    }

    /// Returns whether the response may belong to the request with this nonce: a nonce in the
    /// response must match. Many servers sign responses in advance and send none (RFC 9654 §2.1),
    /// so a missing one should not be an error.
    pub(super) fn repeats(&self, nonce: &[u8]) -> bool {
        self.nonce.as_deref().is_none_or(|there| there == nonce)
    }

    fn entry(&self, certificate: &Certificate, issuer: &Certificate) -> Option<&SingleEntry> {
        let is_it = |entry: &&SingleEntry| CertId::of(certificate, issuer, entry.id.hash).as_ref() == Some(&entry.id);
        self.entries.iter().find(is_it)
    }

    /// Returns the status of a certificate. The caller must have verified the signature. Only
    /// current entries count, except that a revocation remains valid.
    pub(super) fn status(&self, certificate: &Certificate, issuer: &Certificate, now: Duration) -> Option<Status> {
        let entry = self.entry(certificate, issuer)?;
        let current = entry.this_update <= now + SKEW && now <= entry.until() + SKEW;
        entry.status.filter(|status| current || *status == Status::Revoked)
    }

    /// Returns whether the server reports the certificate as unknown.
    pub(super) fn is_unknown(&self, certificate: &Certificate, issuer: &Certificate) -> bool {
        self.entry(certificate, issuer).is_none_or(|entry| entry.status.is_none())
    }

    /// End of validity, since 1970.
    pub(super) fn until(&self, certificate: &Certificate, issuer: &Certificate) -> Option<Duration> {
        self.entry(certificate, issuer).map(SingleEntry::until)
    }

    /// Signer of the response: `issuer`, or a responder that `issuer` authorised (RFC 6960
    /// §4.2.2.2).
    pub(super) fn signer<'a>(
        &'a self,
        issuer: &'a Certificate,
        constraints: &Constraints,
        now: Duration,
    ) -> Option<&'a Certificate> {
        let appointed = |signer: &&Certificate| {
            let (from, until) = signer.validity();
            signer.extensions().may_sign_ocsp()
                && signer.extensions().unknown_critical.is_none()
                && from <= now + SKEW
                && now <= until
                && signer.names_as_issuer(issuer)
                && constraints.chain(issuer.key().kind(), signer.scheme())
                && signer.is_signed_by(issuer.key())
        };
        let signs = |signer: &&Certificate| {
            self.is_by(signer)
                && constraints.chain(signer.key().kind(), self.scheme)
                && signer.key().verify(self.scheme, &[&self.tbs], &self.signature).is_ok()
        };
        let others = self.certificates.iter().filter(appointed);
        std::iter::once(issuer).chain(others).find(signs)
    }

    fn is_by(&self, signer: &Certificate) -> bool {
        match &self.responder {
            Responder::Name(name) => name == signer.subject(),
            Responder::KeyHash(hash) => CertId::of(signer, signer, Hash::Sha1).is_some_and(|id| id.key == *hash),
        }
    }
}

fn time(reader: &mut Reader<'_>) -> Option<Duration> {
    GeneralizedTime::from_der(reader.any()?.whole).ok().map(|time| time.to_unix_duration())
}

/// Parses one SingleResponse. The inner `None` means that its certificate is identified by an
/// unknown hash.
fn single(list: &mut Reader<'_>) -> Option<Option<SingleEntry>> {
    const GOOD: u8 = 0x80;
    const REVOKED: u8 = 0xa1;
    let mut single = list.inside(SEQUENCE)?;
    let id = CertId::parse(&mut single)?;
    let status = match single.any()?.tag {
        GOOD => Some(Status::Good),
        REVOKED => Some(Status::Revoked),
        _ => None,
    };
    let this_update = time(&mut single)?;
    let next_update = match single.optional(context(0)) {
        Some(next) => Some(time(&mut Reader::new(next.body))?),
        None => None,
    };
    Some(id.map(|id| SingleEntry { id, status, this_update, next_update }))
}

fn nonce(mut extensions: Reader<'_>) -> Option<Option<Vec<u8>>> {
    let mut list = extensions.inside(SEQUENCE)?;
    while !list.is_empty() {
        let mut extension = list.inside(SEQUENCE)?;
        let kind = extension.one(OID)?.body;
        extension.optional(0x01);
        let value = extension.one(OCTET_STRING)?.body;
        if kind == OCSP_NONCE {
            // Some servers repeat the nonce without its inner OCTET STRING.
            let inner = Reader::new(value).one(OCTET_STRING).map_or(value, |inner| inner.body);
            return Some(Some(inner.to_vec()));
        }
    }
    Some(None)
}
