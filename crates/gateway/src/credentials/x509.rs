//! Certificates and revocation lists (RFC 5280): parsed once, with the very bytes that were signed.
//!
//! What is parsed is not believed yet: [`path`](super::path) decides.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crypto::ike::{Hash, PublicKey, SignatureScheme};
use x509_cert::der::{Decode, oid::AssociatedOid, oid::ObjectIdentifier};
use x509_cert::ext::pkix::name::{GeneralName, GeneralNames};
use x509_cert::ext::pkix::{
    AuthorityKeyIdentifier, BasicConstraints, CertificatePolicies, CrlDistributionPoints, ExtendedKeyUsage,
    IssuingDistributionPoint, KeyUsage, NameConstraints, PolicyConstraints, SubjectAltName, SubjectKeyIdentifier,
};
use x509_cert::ext::{Extension, Extensions};

use super::der::{BIT_STRING, INTEGER, Reader, SEQUENCE, SET, context};

/// Bytes of a certificate beyond which it is refused.
const MAX_CERTIFICATE_BYTES: usize = 64 << 10;
/// Bytes of a revocation list beyond which it is refused.
const MAX_CRL_BYTES: usize = 64 << 20;
/// Names or subtrees in one extension beyond which a certificate is refused, so that comparing each
/// with each stays cheap.
const MAX_NAMES: usize = 128;

/// Why something is no certificate or revocation list that can be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CertificateFault {
    /// Longer than allowed.
    #[error("{0} bytes are too many")]
    Long(usize),
    /// Not as RFC 5280 has it.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// A key that is not used here.
    #[error("its public key: {0}")]
    Key(#[from] crypto::ike::KeyFault),
    /// A signature that is not used here.
    #[error("it is signed with an algorithm that is not supported")]
    Algorithm,
}

const OID_ANY_POLICY: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.32.0");
const OID_INHIBIT_ANY: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.54");
const OID_DELTA_CRL: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.27");
const OID_CERTIFICATE_ISSUER: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.29");

/// What is signed, by what and how.
struct Signed {
    der: Vec<u8>,
    tbs: Range<usize>,
    scheme: SignatureScheme,
    signature: Range<usize>,
}

impl Signed {
    /// Splits SIGNED{…} (RFC 5280 §4.1) without looking at what is signed.
    fn parse(der: &[u8], max: usize) -> Result<Self, CertificateFault> {
        if der.len() > max {
            return Err(CertificateFault::Long(der.len()));
        }
        let malformed = CertificateFault::Malformed("it is not a sequence of contents, algorithm and signature");
        let split = || {
            let mut outer = Reader::new(der);
            let mut inside = outer.inside(SEQUENCE)?;
            let parts = (inside.one(SEQUENCE)?, inside.one(SEQUENCE)?, inside.one(BIT_STRING)?);
            (outer.is_empty() && inside.is_empty()).then_some(parts)
        };
        let (tbs, algorithm, signature) = split().ok_or_else(|| malformed.clone())?;
        let [0, bits @ ..] = signature.body else { return Err(malformed) };
        let scheme = SignatureScheme::from_algorithm_identifier(algorithm.whole).ok_or(CertificateFault::Algorithm)?;
        let range = |part: &[u8]| {
            let at = part.as_ptr() as usize - der.as_ptr() as usize;
            at..at + part.len()
        };
        Ok(Self { tbs: range(tbs.whole), signature: range(bits), scheme, der: der.to_vec() })
    }

    fn tbs(&self) -> &[u8] {
        &self.der[self.tbs.clone()]
    }

    fn is_by(&self, key: &PublicKey) -> bool {
        key.verify(self.scheme, &[self.tbs()], &self.der[self.signature.clone()]).is_ok()
    }
}

/// A certificate. Cheap to clone.
#[derive(Clone)]
pub struct Certificate(Arc<Inner>);

struct Inner {
    signed: Signed,
    fingerprint: [u8; 32],
    subject: Vec<u8>,
    issuer: Vec<u8>,
    serial: Vec<u8>,
    /// Seconds since 1970.
    valid: (Duration, Duration),
    key: PublicKey,
    extensions: CertificateExtensions,
}

/// The extensions that mean something here.
#[derive(Default)]
pub(super) struct CertificateExtensions {
    /// Version 3.
    pub(super) v3: bool,
    pub(super) basic_constraints: Option<BasicConstraints>,
    pub(super) key_usage: Option<KeyUsage>,
    pub(super) extended_key_usage: Option<Vec<ObjectIdentifier>>,
    pub(super) alt_names: GeneralNames,
    pub(super) subject_key_id: Option<Vec<u8>>,
    pub(super) authority_key_id: Option<Vec<u8>>,
    pub(super) policies: Option<Vec<ObjectIdentifier>>,
    pub(super) inhibit_any_policy: bool,
    pub(super) require_policy: bool,
    pub(super) name_constraints: Option<NameConstraints>,
    /// Where CRLs are; none when the extension is absent.
    pub(super) crl_names: Vec<GeneralName>,
    /// A critical extension that is not known: nothing may be concluded from such a certificate (RFC 5280 §4.2).
    pub(super) unknown_critical: Option<String>,
}

impl Certificate {
    /// Parses a certificate in DER, with nothing behind it.
    ///
    /// # Errors
    /// [`CertificateFault`].
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateFault> {
        let signed = Signed::parse(der, MAX_CERTIFICATE_BYTES)?;
        let parsed = x509_cert::Certificate::from_der(der)
            .map_err(|_| CertificateFault::Malformed("it is not a certificate of RFC 5280"))?;
        let tbs = parsed.tbs_certificate;
        // RFC 5280 §4.1.1.2: both name the same algorithm, or one of them was changed.
        if tbs.signature != parsed.signature_algorithm {
            return Err(CertificateFault::Malformed("its two signature algorithms differ"));
        }
        let fields = TbsFields::parse(signed.tbs()).ok_or(CertificateFault::Malformed("its fields"))?;
        let mut extensions = CertificateExtensions::parse(tbs.extensions.as_deref().unwrap_or_default())?;
        extensions.v3 = tbs.version == x509_cert::Version::V3;
        let time = |time: x509_cert::time::Time| time.to_unix_duration();
        let inner = Inner {
            fingerprint: sha256(der),
            subject: fields.subject.to_vec(),
            issuer: fields.issuer.to_vec(),
            serial: tbs.serial_number.as_bytes().to_vec(),
            valid: (time(tbs.validity.not_before), time(tbs.validity.not_after)),
            key: PublicKey::from_spki(fields.spki)?,
            extensions,
            signed,
        };
        Ok(Self(Arc::new(inner)))
    }

    /// DER, as it was given.
    pub fn der(&self) -> &[u8] {
        &self.0.signed.der
    }

    /// SHA-256 of the DER.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.0.fingerprint
    }

    /// Name of the subject, DER.
    pub fn subject(&self) -> &[u8] {
        &self.0.subject
    }

    /// Name of the issuer, DER.
    pub fn issuer(&self) -> &[u8] {
        &self.0.issuer
    }

    /// Serial number, big-endian.
    pub fn serial(&self) -> &[u8] {
        &self.0.serial
    }

    /// From when to when it is good, since 1970.
    pub fn validity(&self) -> (Duration, Duration) {
        self.0.valid
    }

    /// Public key of the subject.
    pub fn key(&self) -> &PublicKey {
        &self.0.key
    }

    /// How it is signed.
    pub fn scheme(&self) -> SignatureScheme {
        self.0.signed.scheme
    }

    /// The issuer is the subject.
    pub fn is_self_issued(&self) -> bool {
        self.0.subject == self.0.issuer
    }

    /// It says that it is a CA's. Certificates before version 3 cannot say so.
    pub fn is_ca(&self) -> bool {
        self.0.extensions.basic_constraints.as_ref().is_some_and(|constraints| constraints.ca)
    }

    /// The signature is one of this key.
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        self.0.signed.is_by(key)
    }

    /// Whether `issuer` may have issued it, by names and key identifiers; signatures are another matter.
    pub(super) fn names_as_issuer(&self, issuer: &Self) -> bool {
        let ids = (&self.0.extensions.authority_key_id, &issuer.0.extensions.subject_key_id);
        self.0.issuer == issuer.0.subject && !matches!(ids, (Some(named), Some(there)) if named != there)
    }

    pub(super) fn extensions(&self) -> &CertificateExtensions {
        &self.0.extensions
    }
}

impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        self.0.fingerprint == other.0.fingerprint
    }
}

impl Eq for Certificate {}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[certificate of {}]", super::name::show(self.subject()))
    }
}

/// Fields of a TBSCertificate whose very bytes are needed.
struct TbsFields<'a> {
    issuer: &'a [u8],
    subject: &'a [u8],
    spki: &'a [u8],
}

impl<'a> TbsFields<'a> {
    fn parse(tbs: &'a [u8]) -> Option<Self> {
        let mut fields = Reader::new(tbs).inside(SEQUENCE)?;
        fields.optional(context(0));
        fields.one(INTEGER)?;
        fields.one(SEQUENCE)?;
        let issuer = fields.one(SEQUENCE)?.whole;
        fields.one(SEQUENCE)?;
        Some(Self { issuer, subject: fields.one(SEQUENCE)?.whole, spki: fields.one(SEQUENCE)?.whole })
    }
}

fn decode<'a, T: Decode<'a>>(extension: &'a Extension, what: &'static str) -> Result<T, CertificateFault> {
    T::from_der(extension.extn_value.as_bytes()).map_err(|_| CertificateFault::Malformed(what))
}

impl CertificateExtensions {
    fn parse(extensions: &[Extension]) -> Result<Self, CertificateFault> {
        let mut found = Self::default();
        for (at, extension) in extensions.iter().enumerate() {
            if extensions[..at].iter().any(|earlier| earlier.extn_id == extension.extn_id) {
                return Err(CertificateFault::Malformed("an extension is there twice"));
            }
            found.take(extension)?;
        }
        let subtrees = found.name_constraints.iter().flat_map(|c| [&c.permitted_subtrees, &c.excluded_subtrees]);
        let subtrees: usize = subtrees.flatten().map(Vec::len).sum();
        if found.alt_names.len().max(subtrees).max(found.crl_names.len()) > MAX_NAMES {
            return Err(CertificateFault::Malformed("too many names"));
        }
        Ok(found)
    }

    fn take(&mut self, extension: &Extension) -> Result<(), CertificateFault> {
        match extension.extn_id {
            BasicConstraints::OID => self.basic_constraints = Some(decode(extension, "basic constraints")?),
            KeyUsage::OID => self.key_usage = Some(decode(extension, "key usage")?),
            ExtendedKeyUsage::OID => {
                self.extended_key_usage = Some(decode::<ExtendedKeyUsage>(extension, "extended key usage")?.0);
            }
            SubjectAltName::OID => self.alt_names = decode::<SubjectAltName>(extension, "alternative names")?.0,
            SubjectKeyIdentifier::OID => {
                let id: SubjectKeyIdentifier = decode(extension, "key identifier")?;
                self.subject_key_id = Some(id.0.into_bytes());
            }
            AuthorityKeyIdentifier::OID => {
                let id: AuthorityKeyIdentifier = decode(extension, "authority key identifier")?;
                self.authority_key_id = id.key_identifier.map(|id| id.into_bytes());
            }
            CertificatePolicies::OID => {
                let policies: CertificatePolicies = decode(extension, "policies")?;
                self.policies = Some(policies.0.into_iter().map(|policy| policy.policy_identifier).collect());
            }
            PolicyConstraints::OID => {
                let constraints: PolicyConstraints = decode(extension, "policy constraints")?;
                self.require_policy = constraints.require_explicit_policy.is_some();
            }
            OID_INHIBIT_ANY => self.inhibit_any_policy = true,
            NameConstraints::OID => self.name_constraints = Some(decode(extension, "name constraints")?),
            CrlDistributionPoints::OID => {
                let points: CrlDistributionPoints = decode(extension, "distribution points")?;
                self.crl_names = points.0.into_iter().flat_map(|point| full_names(point.distribution_point)).collect();
            }
            other if extension.critical => self.unknown_critical = Some(other.to_string()),
            _ => {}
        }
        Ok(())
    }

    /// The subject may sign data, such as AUTH payloads (RFC 4945 §5.1.3.2).
    pub(super) fn may_sign(&self) -> bool {
        self.key_usage.as_ref().is_none_or(|usage| usage.digital_signature() || usage.non_repudiation())
    }

    /// The subject may be a peer of IKE (RFC 4945 §5.1.3.12; certificates made for TLS are common).
    pub(super) fn may_be_peer(&self) -> bool {
        const PURPOSES: [&str; 5] = [
            "1.3.6.1.5.5.8.2.2",  // ikeIntermediate
            "1.3.6.1.5.5.7.3.17", // ipsecIKE
            "1.3.6.1.5.5.7.3.1",  // serverAuth
            "1.3.6.1.5.5.7.3.2",  // clientAuth
            "2.5.29.37.0",        // anyExtendedKeyUsage
        ];
        let good = |purpose: &ObjectIdentifier| PURPOSES.iter().any(|known| purpose.to_string() == *known);
        self.extended_key_usage.as_ref().is_none_or(|purposes| purposes.iter().any(good))
    }

    /// Whether the certificate carries that policy, or any.
    pub(super) fn has_policy(&self, policy: &ObjectIdentifier, any_counts: bool) -> bool {
        let fits = |there: &ObjectIdentifier| there == policy || any_counts && *there == OID_ANY_POLICY;
        self.policies.as_ref().is_some_and(|policies| policies.iter().any(fits))
    }
}

fn full_names(point: Option<x509_cert::ext::pkix::name::DistributionPointName>) -> GeneralNames {
    match point {
        Some(x509_cert::ext::pkix::name::DistributionPointName::FullName(names)) => names,
        _ => Vec::new(),
    }
}

/// A revocation list. Cheap to clone.
#[derive(Clone)]
pub struct Crl(Arc<CrlInner>);

struct CrlInner {
    signed: Signed,
    issuer: Vec<u8>,
    this_update: Duration,
    next_update: Option<Duration>,
    /// Serial numbers, sorted.
    revoked: Vec<Vec<u8>>,
    authority_key_id: Option<Vec<u8>>,
    scope: Scope,
}

/// About which certificates of its issuer a list speaks (RFC 5280 §5.2.5).
#[derive(Clone, Default, PartialEq)]
struct Scope {
    end_entities_only: bool,
    authorities_only: bool,
    /// Names of the distribution point; empty for all.
    names: GeneralNames,
}

impl Crl {
    /// Parses a complete list in DER, with nothing behind it. Delta lists, indirect ones and those for
    /// some reasons only are refused: each says less than it seems to.
    ///
    /// # Errors
    /// [`CertificateFault`].
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateFault> {
        let signed = Signed::parse(der, MAX_CRL_BYTES)?;
        let parsed = x509_cert::crl::CertificateList::from_der(der)
            .map_err(|_| CertificateFault::Malformed("it is not a revocation list of RFC 5280"))?;
        let tbs = parsed.tbs_cert_list;
        if tbs.signature != parsed.signature_algorithm {
            return Err(CertificateFault::Malformed("its two signature algorithms differ"));
        }
        let (scope, authority_key_id) = Self::extensions(tbs.crl_extensions.unwrap_or_default())?;
        let mut revoked = Vec::new();
        for entry in tbs.revoked_certificates.unwrap_or_default() {
            let extensions = entry.crl_entry_extensions.unwrap_or_default();
            if extensions.iter().any(|extension| extension.critical || extension.extn_id == OID_CERTIFICATE_ISSUER) {
                return Err(CertificateFault::Malformed("it speaks of other issuers' certificates"));
            }
            revoked.push(entry.serial_number.as_bytes().to_vec());
        }
        revoked.sort_unstable();
        let issuer = Self::issuer_of(signed.tbs()).ok_or(CertificateFault::Malformed("its issuer"))?.to_vec();
        let inner = CrlInner {
            issuer,
            this_update: tbs.this_update.to_unix_duration(),
            next_update: tbs.next_update.map(|time| time.to_unix_duration()),
            revoked,
            authority_key_id,
            scope,
            signed,
        };
        Ok(Self(Arc::new(inner)))
    }

    fn issuer_of(tbs: &[u8]) -> Option<&[u8]> {
        let mut fields = Reader::new(tbs).inside(SEQUENCE)?;
        fields.optional(INTEGER);
        fields.one(SEQUENCE)?;
        fields.one(SEQUENCE).map(|issuer| issuer.whole)
    }

    fn extensions(extensions: Extensions) -> Result<(Scope, Option<Vec<u8>>), CertificateFault> {
        let (mut scope, mut key_id) = (Scope::default(), None);
        for extension in &extensions {
            match extension.extn_id {
                OID_DELTA_CRL => return Err(CertificateFault::Malformed("it is a delta list; load the complete one")),
                AuthorityKeyIdentifier::OID => {
                    let id: AuthorityKeyIdentifier = decode(extension, "authority key identifier")?;
                    key_id = id.key_identifier.map(|id| id.into_bytes());
                }
                IssuingDistributionPoint::OID => {
                    let point: IssuingDistributionPoint = decode(extension, "issuing distribution point")?;
                    if point.indirect_crl || point.only_some_reasons.is_some() || point.only_contains_attribute_certs {
                        return Err(CertificateFault::Malformed("it is indirect or for some reasons only"));
                    }
                    scope = Scope {
                        end_entities_only: point.only_contains_user_certs,
                        authorities_only: point.only_contains_ca_certs,
                        names: full_names(point.distribution_point),
                    };
                }
                _ if extension.critical => return Err(CertificateFault::Malformed("an unknown critical extension")),
                _ => {}
            }
        }
        Ok((scope, key_id))
    }

    /// DER, as it was given.
    pub fn der(&self) -> &[u8] {
        &self.0.signed.der
    }

    /// Name of the issuer, DER.
    pub fn issuer(&self) -> &[u8] {
        &self.0.issuer
    }

    /// When it was made, and when the next one is due; since 1970.
    pub fn updates(&self) -> (Duration, Option<Duration>) {
        (self.0.this_update, self.0.next_update)
    }

    /// Number of certificates that it revokes.
    pub fn revoked_count(&self) -> usize {
        self.0.revoked.len()
    }

    /// It is about the same certificates as `other` and not older.
    pub(super) fn replaces(&self, other: &Self) -> bool {
        let about = |crl: &Self| (crl.0.issuer.clone(), crl.0.authority_key_id.clone(), crl.0.scope.clone());
        about(self) == about(other) && self.0.this_update >= other.0.this_update
    }

    /// It takes this certificate back.
    pub fn revokes(&self, certificate: &Certificate) -> bool {
        self.0.revoked.binary_search_by(|serial| serial.as_slice().cmp(certificate.serial())).is_ok()
    }

    /// How it is signed.
    pub fn scheme(&self) -> SignatureScheme {
        self.0.signed.scheme
    }

    /// It says something about this certificate.
    pub(super) fn covers(&self, certificate: &Certificate) -> bool {
        let scope = &self.0.scope;
        let there = &certificate.extensions().crl_names;
        self.0.issuer == certificate.issuer()
            && (!scope.end_entities_only || !certificate.is_ca())
            && (!scope.authorities_only || certificate.is_ca())
            && (scope.names.is_empty() || scope.names.iter().any(|name| there.contains(name)))
    }

    /// It is signed with the key of this certificate, which may sign lists.
    pub(super) fn is_by(&self, signer: &Certificate) -> bool {
        let extensions = signer.extensions();
        let ids = (&self.0.authority_key_id, &extensions.subject_key_id);
        self.0.issuer == signer.subject()
            && !matches!(ids, (Some(named), Some(there)) if named != there)
            && extensions.key_usage.as_ref().is_none_or(|usage| usage.crl_sign())
            && self.0.signed.is_by(signer.key())
    }
}

/// The certificates inside a PKCS #7 message that carries nothing else (RFC 5652 §5.1, "certs-only").
/// What is no X.509 certificate is left out; `None` when it is no such message.
pub(super) fn pkcs7_certificates(der: &[u8]) -> Option<Vec<&[u8]>> {
    const SIGNED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x02];
    let mut content = Reader::new(der).inside(SEQUENCE)?;
    content.one(super::der::OID).filter(|kind| kind.body == SIGNED_DATA)?;
    let mut signed = content.inside(context(0))?.inside(SEQUENCE)?;
    signed.number()?;
    signed.one(SET)?;
    signed.one(SEQUENCE)?;
    let mut certificates = signed.inside(context(0))?;
    let mut found = Vec::new();
    while !certificates.is_empty() {
        let element = certificates.any()?;
        if element.tag == SEQUENCE {
            found.push(element.whole);
        }
    }
    Some(found)
}

/// SHA-256, the name of a certificate in configurations.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut digest = [0; 32];
    digest.copy_from_slice(&Hash::Sha256.digest(&[bytes]));
    digest
}
