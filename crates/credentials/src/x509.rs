//! Certificates and revocation lists (RFC 5280): parsed once, with the very bytes that were signed.
//!
//! A parsed certificate is not trusted yet: [`path`](super::path) decides.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crypto::ike::{Hash, PublicKey, SignatureScheme};
use x509_cert::der::{Decode, oid::AssociatedOid, oid::ObjectIdentifier};
use x509_cert::ext::pkix::name::{GeneralName, GeneralNames};
use x509_cert::ext::pkix::{
    AuthorityInfoAccessSyntax, AuthorityKeyIdentifier, BaseCrlNumber, BasicConstraints, CertificatePolicies,
    CrlDistributionPoints, CrlNumber, CrlReason, ExtendedKeyUsage, FreshestCrl, IssuingDistributionPoint, KeyUsage,
    NameConstraints, PolicyConstraints, SubjectAltName, SubjectKeyIdentifier,
};
use x509_cert::ext::{Extension, Extensions};

use super::der::{BIT_STRING, INTEGER, Reader, SEQUENCE, SET, context};

/// Bytes of a certificate beyond which it is refused.
const MAX_CERTIFICATE_BYTES: usize = 64 << 10;
/// Bytes of a revocation list beyond which it is refused.
const MAX_CRL_BYTES: usize = 64 << 20;
/// Age at which a revocation list without a next update no longer shows that a certificate is good.
const MAX_CRL_AGE: Duration = Duration::from_secs(7 * 86_400);
/// Names or subtrees in one extension beyond which a certificate is refused, so that comparing each
/// with each stays cheap.
const MAX_NAMES: usize = 128;

/// Reason why a certificate or revocation list cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CertificateFault {
    /// Longer than allowed.
    #[error("{0} bytes exceed the limit")]
    Long(usize),
    /// Not as RFC 5280 has it.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// A key that is not used here.
    #[error("its public key: {0}")]
    Key(#[from] crypto::ike::KeyFault),
    /// A signature that is not used here.
    #[error("signed with an unsupported algorithm")]
    Algorithm,
}

const OID_ANY_POLICY: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.32.0");
const OID_INHIBIT_ANY: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.54");
const OID_OCSP: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.1");
const OID_OCSP_NOCHECK: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.1.5");
const OID_OCSP_SIGNING: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.9");
const OID_CERTIFICATE_ISSUER: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.29");

/// Signed octets, signature and algorithm.
struct Signed {
    der: Vec<u8>,
    tbs: Range<usize>,
    scheme: SignatureScheme,
    signature: Range<usize>,
    /// Key that made the signature, once that was verified: neither of them changes, and a host
    /// checks its own certificates for every peer. Validity and revocation are not part of it.
    signer: OnceLock<PublicKey>,
}

impl Signed {
    /// Splits SIGNED{…} (RFC 5280 §4.1) without parsing the signed data.
    fn parse(der: &[u8], max: usize) -> Result<Self, CertificateFault> {
        if der.len() > max {
            return Err(CertificateFault::Long(der.len()));
        }
        let malformed = CertificateFault::Malformed("not a sequence of contents, algorithm and signature");
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
        Ok(Self { tbs: range(tbs.whole), signature: range(bits), scheme, der: der.to_vec(), signer: OnceLock::new() })
    }

    fn tbs(&self) -> &[u8] {
        &self.der[self.tbs.clone()]
    }

    fn is_by(&self, key: &PublicKey) -> bool {
        if self.signer.get() == Some(key) {
            return true;
        }
        let right = key.verify(self.scheme, &[self.tbs()], &self.der[self.signature.clone()]).is_ok();
        if right {
            // Another thread may have been first, with the same result.
            let _ = self.signer.set(key.clone());
        }
        right
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
    self_signed: OnceLock<bool>,
}

/// Supported extensions.
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
    /// CRL distribution points; none if the extension is absent.
    pub(super) crl_names: Vec<GeneralName>,
    /// URIs of the issuer's OCSP servers (RFC 5280 §4.2.2.1).
    pub(super) ocsp_uris: Vec<String>,
    /// URIs of delta CRLs (RFC 5280 §4.2.1.15).
    pub(super) freshest: Vec<String>,
    /// Its issuer does not publish revocations of this OCSP responder (RFC 6960 §4.2.2.2.1).
    pub(super) ocsp_nocheck: bool,
    /// A critical extension that is not known: nothing may be concluded from such a certificate
    /// (RFC 5280 §4.2).
    pub(super) unknown_critical: Option<String>,
}

impl Certificate {
    /// Parses a certificate in DER, without trailing data.
    ///
    /// # Errors
    /// [`CertificateFault`].
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateFault> {
        let signed = Signed::parse(der, MAX_CERTIFICATE_BYTES)?;
        let parsed = x509_cert::Certificate::from_der(der)
            .map_err(|_| CertificateFault::Malformed("not a certificate of RFC 5280"))?;
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
            self_signed: OnceLock::new(),
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

    /// Signature scheme.
    pub fn scheme(&self) -> SignatureScheme {
        self.0.signed.scheme
    }

    /// The issuer is the subject.
    pub fn is_self_issued(&self) -> bool {
        self.0.subject == self.0.issuer
    }

    /// The issuer is the subject, and its key made the signature. Verified once per certificate.
    pub fn is_self_signed(&self) -> bool {
        *self.0.self_signed.get_or_init(|| self.names_as_issuer(self) && self.is_signed_by(self.key()))
    }

    /// True if the basic constraints mark a CA. Certificates before version 3 have no such
    /// extension.
    pub fn is_ca(&self) -> bool {
        self.0.extensions.basic_constraints.as_ref().is_some_and(|constraints| constraints.ca)
    }

    /// The signature is one of this key.
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        self.0.signed.is_by(key)
    }

    /// Returns whether `issuer` may have issued it, by names and key identifiers; signatures are
    /// another matter.
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

/// Fields of a TBSCertificate that are needed as raw bytes.
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
                return Err(CertificateFault::Malformed("duplicate extension"));
            }
            found.take(extension)?;
        }
        let subtrees = found.name_constraints.iter().flat_map(|c| [&c.permitted_subtrees, &c.excluded_subtrees]);
        let subtrees: usize = subtrees.flatten().map(Vec::len).sum();
        if [found.alt_names.len(), subtrees, found.crl_names.len(), found.ocsp_uris.len(), found.freshest.len()]
            .iter()
            .any(|count| *count > MAX_NAMES)
        {
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
            FreshestCrl::OID => {
                let points: FreshestCrl = decode(extension, "freshest CRL")?;
                let names = points.0.into_iter().flat_map(|point| full_names(point.distribution_point));
                self.freshest = uris(&names.collect::<Vec<_>>()).map(str::to_owned).collect();
            }
            AuthorityInfoAccessSyntax::OID => {
                let access: AuthorityInfoAccessSyntax = decode(extension, "authority information access")?;
                let ocsp = access.0.into_iter().filter(|access| access.access_method == OID_OCSP);
                let names: Vec<GeneralName> = ocsp.map(|access| access.access_location).collect();
                self.ocsp_uris = uris(&names).map(str::to_owned).collect();
            }
            OID_OCSP_NOCHECK => self.ocsp_nocheck = true,
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

    /// The subject may sign OCSP responses for its issuer (RFC 6960 §4.2.2.2).
    pub(super) fn may_sign_ocsp(&self) -> bool {
        self.extended_key_usage.as_ref().is_some_and(|purposes| purposes.contains(&OID_OCSP_SIGNING))
            && self.key_usage.as_ref().is_none_or(|usage| usage.digital_signature())
    }

    /// URIs of CRLs.
    pub(super) fn crl_uris(&self) -> impl Iterator<Item = &str> {
        uris(&self.crl_names)
    }

    /// Returns whether the certificate carries that policy, or any.
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

/// The URIs among names.
fn uris(names: &[GeneralName]) -> impl Iterator<Item = &str> {
    names.iter().filter_map(|name| match name {
        GeneralName::UniformResourceIdentifier(uri) => Some(uri.as_str()),
        _ => None,
    })
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
    revoked: Vec<(Vec<u8>, Entry)>,
    about: CrlExtensions,
}

/// Entry of a list for a certificate (RFC 5280 §5.3.1).
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Entry {
    /// Revoked for good.
    Revoked,
    /// Revoked until a newer list no longer contains it (certificateHold).
    OnHold,
    /// In a delta list: no longer revoked (removeFromCRL).
    Removed,
}

/// Extensions of a list that have an effect here.
#[derive(Clone, Default)]
struct CrlExtensions {
    authority_key_id: Option<Vec<u8>>,
    scope: Scope,
    /// Its own number, big-endian without leading zeros.
    number: Option<Vec<u8>>,
    /// Of a delta list: the number of the complete list that it changes.
    base: Option<Vec<u8>>,
    /// URIs of delta CRLs.
    freshest: Vec<String>,
}

/// About which certificates of its issuer a list speaks (RFC 5280 §5.2.5).
#[derive(Clone, Default, PartialEq)]
struct Scope {
    end_entities_only: bool,
    authorities_only: bool,
    /// Names of the distribution point; empty for all.
    names: GeneralNames,
}

impl CrlExtensions {
    fn parse(extensions: Extensions) -> Result<Self, CertificateFault> {
        let digits = |number: x509_cert::der::asn1::Uint| number.as_bytes().to_vec();
        let names = |point: x509_cert::ext::pkix::crl::dp::DistributionPoint| full_names(point.distribution_point);
        let mut found = Self::default();
        for extension in &extensions {
            match extension.extn_id {
                CrlNumber::OID => found.number = Some(digits(decode::<CrlNumber>(extension, "number")?.0)),
                BaseCrlNumber::OID => {
                    found.base = Some(digits(decode::<BaseCrlNumber>(extension, "delta CRL indicator")?.0));
                }
                FreshestCrl::OID => {
                    let points: FreshestCrl = decode(extension, "freshest CRL")?;
                    let names: Vec<GeneralName> = points.0.into_iter().flat_map(names).collect();
                    found.freshest = uris(&names).take(MAX_NAMES).map(str::to_owned).collect();
                }
                AuthorityKeyIdentifier::OID => {
                    let id: AuthorityKeyIdentifier = decode(extension, "authority key identifier")?;
                    found.authority_key_id = id.key_identifier.map(|id| id.into_bytes());
                }
                IssuingDistributionPoint::OID => {
                    let point: IssuingDistributionPoint = decode(extension, "issuing distribution point")?;
                    if point.indirect_crl || point.only_some_reasons.is_some() || point.only_contains_attribute_certs {
                        return Err(CertificateFault::Malformed(
                            "indirect CRLs and CRLs for some reasons only are not supported",
                        ));
                    }
                    found.scope = Scope {
                        end_entities_only: point.only_contains_user_certs,
                        authorities_only: point.only_contains_ca_certs,
                        names: full_names(point.distribution_point),
                    };
                }
                _ if extension.critical => return Err(CertificateFault::Malformed("unknown critical extension")),
                _ => {}
            }
        }
        Ok(found)
    }
}

/// Compares two big-endian numbers without leading zeros.
fn compare(one: &[u8], other: &[u8]) -> std::cmp::Ordering {
    one.len().cmp(&other.len()).then_with(|| one.cmp(other))
}

impl Crl {
    /// Parses a complete or delta list in DER, without trailing data. Indirect lists and those for
    /// some reasons only are refused: each covers less than it seems to.
    ///
    /// # Errors
    /// [`CertificateFault`].
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateFault> {
        let signed = Signed::parse(der, MAX_CRL_BYTES)?;
        let parsed = x509_cert::crl::CertificateList::from_der(der)
            .map_err(|_| CertificateFault::Malformed("not a revocation list of RFC 5280"))?;
        let tbs = parsed.tbs_cert_list;
        if tbs.signature != parsed.signature_algorithm {
            return Err(CertificateFault::Malformed("its two signature algorithms differ"));
        }
        let about = CrlExtensions::parse(tbs.crl_extensions.unwrap_or_default())?;
        let mut revoked = Vec::new();
        for entry in tbs.revoked_certificates.unwrap_or_default() {
            let extensions = entry.crl_entry_extensions.unwrap_or_default();
            if extensions.iter().any(|extension| extension.critical || extension.extn_id == OID_CERTIFICATE_ISSUER) {
                return Err(CertificateFault::Malformed("indirect CRLs are not supported"));
            }
            let reason = extensions.iter().find(|extension| extension.extn_id == CrlReason::OID);
            let kind = match reason.map(|reason| decode(reason, "reason")).transpose()? {
                Some(CrlReason::CertificateHold) => Entry::OnHold,
                Some(CrlReason::RemoveFromCRL) if about.base.is_some() => Entry::Removed,
                _ => Entry::Revoked,
            };
            revoked.push((entry.serial_number.as_bytes().to_vec(), kind));
        }
        revoked.sort_unstable();
        let issuer = Self::issuer_of(signed.tbs()).ok_or(CertificateFault::Malformed("its issuer"))?.to_vec();
        let inner = CrlInner {
            issuer,
            this_update: tbs.this_update.to_unix_duration(),
            next_update: tbs.next_update.map(|time| time.to_unix_duration()),
            revoked,
            about,
            signed,
        };
        Ok(Self(Arc::new(inner)))
    }

    /// Returns whether one of these keys signed a list, without parsing it: its entries take far
    /// more memory than their bytes.
    pub(super) fn is_der_signed_by(der: &[u8], signers: &[Certificate]) -> bool {
        Signed::parse(der, MAX_CRL_BYTES).is_ok_and(|signed| signers.iter().any(|signer| signed.is_by(signer.key())))
    }

    fn issuer_of(tbs: &[u8]) -> Option<&[u8]> {
        let mut fields = Reader::new(tbs).inside(SEQUENCE)?;
        fields.optional(INTEGER);
        fields.one(SEQUENCE)?;
        fields.one(SEQUENCE).map(|issuer| issuer.whole)
    }

    /// DER, as it was given.
    pub fn der(&self) -> &[u8] {
        &self.0.signed.der
    }

    /// Name of the issuer, DER.
    pub fn issuer(&self) -> &[u8] {
        &self.0.issuer
    }

    /// Times of this and the next update, since 1970.
    pub fn updates(&self) -> (Duration, Option<Duration>) {
        (self.0.this_update, self.0.next_update)
    }

    /// Number of certificates that it revokes.
    pub fn revoked_count(&self) -> usize {
        self.0.revoked.len()
    }

    /// It is about the same certificates as `other` and not older.
    pub(super) fn replaces(&self, other: &Self) -> bool {
        let about = |crl: &Self| {
            let about = crl.0.about.clone();
            (crl.0.issuer.clone(), about.authority_key_id, about.scope, about.base.is_some())
        };
        about(self) == about(other) && self.0.this_update >= other.0.this_update
    }

    /// It was issued after `other`. Of two lists of one second the number decides (RFC 5280
    /// §5.2.3).
    pub(super) fn is_newer_than(&self, other: &Self) -> bool {
        let by_number = || match (&self.0.about.number, &other.0.about.number) {
            (Some(one), Some(other)) => compare(one, other),
            _ => std::cmp::Ordering::Equal,
        };
        self.0.this_update.cmp(&other.0.this_update).then_with(by_number).is_gt()
    }

    /// It contains this certificate.
    pub fn revokes(&self, certificate: &Certificate) -> bool {
        self.entry(certificate).is_some_and(|entry| entry != Entry::Removed)
    }

    /// Its entry for a certificate; the worst, should there be several.
    pub(super) fn entry(&self, certificate: &Certificate) -> Option<Entry> {
        let start = self.0.revoked.partition_point(|(serial, _)| serial.as_slice() < certificate.serial());
        self.0.revoked.get(start).filter(|(serial, _)| serial == certificate.serial()).map(|(_, entry)| *entry)
    }

    /// It only contains changes to a complete list.
    pub(super) fn is_delta(&self) -> bool {
        self.0.about.base.is_some()
    }

    /// This delta list continues `base` (RFC 5280 §5.2.4).
    pub(super) fn continues(&self, base: &Self) -> bool {
        let (Some(from), Some(own)) = (&self.0.about.base, &self.0.about.number) else { return false };
        let Some(number) = &base.0.about.number else { return false };
        self.0.issuer == base.0.issuer
            && self.0.about.scope == base.0.about.scope
            && self.0.about.authority_key_id == base.0.about.authority_key_id
            && !base.is_delta()
            && compare(number, from).is_ge()
            && compare(number, own).is_lt()
    }

    /// URIs of its delta lists.
    pub(super) fn freshest(&self) -> &[String] {
        &self.0.about.freshest
    }

    /// Until when it is current, since 1970: its next update, or [`MAX_CRL_AGE`] without one.
    pub(super) fn until(&self) -> Duration {
        self.0.next_update.unwrap_or(self.0.this_update + MAX_CRL_AGE)
    }

    /// Signature scheme.
    pub fn scheme(&self) -> SignatureScheme {
        self.0.signed.scheme
    }

    /// Returns whether the list covers this certificate.
    pub(super) fn covers(&self, certificate: &Certificate) -> bool {
        let scope = &self.0.about.scope;
        let there = &certificate.extensions().crl_names;
        self.0.issuer == certificate.issuer()
            && (!scope.end_entities_only || !certificate.is_ca())
            && (!scope.authorities_only || certificate.is_ca())
            && (scope.names.is_empty() || scope.names.iter().any(|name| there.contains(name)))
    }

    /// It is signed with the key of this certificate, which may sign lists.
    pub(super) fn is_by(&self, signer: &Certificate) -> bool {
        let extensions = signer.extensions();
        let ids = (&self.0.about.authority_key_id, &extensions.subject_key_id);
        self.0.issuer == signer.subject()
            && !matches!(ids, (Some(named), Some(there)) if named != there)
            && extensions.key_usage.as_ref().is_none_or(|usage| usage.crl_sign())
            && self.0.signed.is_by(signer.key())
    }
}

/// The certificates inside a PKCS #7 message that carries nothing else (RFC 5652 §5.1,
/// "certs-only"). Other types of certificates are ignored; `None` if it is not such a message.
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
