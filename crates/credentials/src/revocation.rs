//! Revocation status of one certificate: Revocation check with available CRLs and OCSP responses,
//! and selection of those to fetch.
//!
//! [`status`] judges with what there is and never waits. If information is missing or expired, it
//! returns the URIs to [fetch](Fetch); the threads of the [cache](fetched::Fetched) get it, and the
//! question is judged again. Only certificates on a path that ends in a trust anchor come here, so
//! that a stranger cannot make this host fetch anything.

pub(super) mod fetched;
mod http;
pub(super) mod ocsp;

use std::time::Duration;

use super::constraint::Constraints;
use super::store::Trust;
use super::x509::{Certificate, Crl, Entry};
use fetched::Fetched;
use ocsp::{Response, Status};

/// Difference of clocks that is tolerated.
pub(super) const SKEW: Duration = Duration::from_secs(60);
/// URIs of one kind that are considered for one certificate.
const MAX_URIS: usize = 8;
/// Objects to fetch for one request.
pub(super) const MAX_FETCHES: usize = 16;

/// URIs that the configuration names for a CA (section `authorities`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    /// Its certificate.
    pub authority: Certificate,
    /// URIs of its CRLs.
    pub crl_uris: Vec<String>,
    /// Its OCSP servers.
    pub ocsp_uris: Vec<String>,
}

impl Source {
    fn is_of(&self, issuer: &Certificate) -> bool {
        self.authority.subject() == issuer.subject() && self.authority.key() == issuer.key()
    }
}

/// Something to fetch.
#[derive(Clone, Debug)]
pub(super) struct Fetch {
    /// URI.
    pub(super) uri: String,
    /// The configuration names this URI, so that it may be of this host or a link-local address.
    pub(super) named: bool,
    pub(super) what: FetchTarget,
}

/// Kinds of things to fetch.
#[derive(Clone, Debug)]
pub(super) enum FetchTarget {
    /// A CRL, which must be signed by one of these certificates.
    Crl(Vec<Certificate>),
    /// The OCSP status of a certificate, by its issuer.
    Ocsp(Certificate, Certificate),
}

/// Evidence for a revocation check.
pub(super) struct Evidence<'a> {
    /// CRLs of the store and of the peer.
    pub(super) crls: &'a [&'a Crl],
    /// OCSP responses of the peer.
    pub(super) responses: &'a [Response],
    /// URIs of the configuration.
    pub(super) sources: &'a [Source],
    /// Fetched CRLs and OCSP responses.
    pub(super) fetched: &'a Fetched,
    /// Certificates that may have signed CRLs in place of the issuer: loaded CAs.
    pub(super) authorities: &'a [Certificate],
    /// Time since 1970.
    pub(super) now: Duration,
}

/// Revocation status of a certificate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// Not revoked, by current information.
    Good,
    /// Revoked, or on hold.
    Revoked(&'static str),
    /// No current information, although a URI or an outdated list announces it.
    Unavailable,
    /// No information, and no URI for it.
    Unannounced,
}

/// Counts signatures; an error ends the search.
pub(super) type Count<'c> = &'c mut dyn FnMut() -> anyhow::Result<()>;

/// The revocation status of `certificate`, and what should be fetched to know better.
///
/// OCSP is consulted first and CRLs where it gives no answer, as strongSwan does. A list at hand
/// that revokes the certificate always counts.
///
/// # Errors
/// Too many signatures would have to be verified.
pub(super) fn status(
    certificate: &Certificate,
    issuer: &Certificate,
    evidence: &Evidence<'_>,
    constraints: &Constraints,
    count: Count<'_>,
) -> anyhow::Result<(Verdict, Vec<Fetch>)> {
    let lists = Lists::of(certificate, issuer, evidence, constraints, count)?;
    if let Some(revoked) = lists.revoked {
        return Ok((Verdict::Revoked(revoked), Vec::new()));
    }
    let mut fetches = Vec::new();
    let source = evidence.sources.iter().find(|source| source.is_of(issuer));
    let configured =
        |uris: fn(&Source) -> &Vec<String>| source.into_iter().flat_map(uris).map(|uri| (uri.as_str(), true));
    let named = |uri: &str| configured(|source| &source.crl_uris).any(|(there, _)| there == uri);
    let of_certificate = certificate.extensions().ocsp_uris.iter().map(|uri| (uri.as_str(), false));
    let ocsp: Vec<(&str, bool)> = configured(|source| &source.ocsp_uris).chain(of_certificate).take(MAX_URIS).collect();
    match answered(certificate, issuer, evidence, constraints, count)? {
        Some(Status::Good) => return Ok((Verdict::Good, fetches)),
        Some(Status::Revoked) => return Ok((Verdict::Revoked("revoked, by OCSP"), fetches)),
        None => {
            let what = || FetchTarget::Ocsp(certificate.clone(), issuer.clone());
            if let Some(fetch) = first(&ocsp, evidence.fetched, evidence.now, what) {
                fetches.push(fetch);
            }
        }
    }
    let crl: Vec<(&str, bool)> = configured(|source| &source.crl_uris)
        .chain(certificate.extensions().crl_uris().map(|uri| (uri, named(uri))))
        .take(MAX_URIS)
        .collect();
    let signers = || FetchTarget::Crl(signers(issuer, evidence).cloned().collect());
    if !lists.current && fetches.is_empty() {
        fetches.extend(first(&crl, evidence.fetched, evidence.now, signers));
    }
    if let Some(base) = lists.base.as_ref().filter(|_| !lists.has_delta && fetches.is_empty()) {
        let uris = base.freshest().iter().chain(&certificate.extensions().freshest);
        let delta: Vec<(&str, bool)> = uris.map(|uri| (uri.as_str(), named(uri))).take(MAX_URIS).collect();
        fetches.extend(first(&delta, evidence.fetched, evidence.now, signers));
    }
    let names = &certificate.extensions().crl_names;
    let verdict = match lists.current {
        true => Verdict::Good,
        false if lists.base.is_some() || !ocsp.is_empty() || !crl.is_empty() || !names.is_empty() => {
            Verdict::Unavailable
        }
        false => Verdict::Unannounced,
    };
    Ok((verdict, fetches))
}

/// OCSP responses about the certificates of a chain of this host, leaf first, for a peer that
/// requests them (RFC 4806); and what should be fetched to have them all. Nothing is sent or
/// fetched for a chain that leads to no trust anchor.
pub(super) fn of_chain(chain: &[Certificate], trust: &Trust, now: Duration) -> (Vec<Vec<u8>>, Vec<Fetch>) {
    let (mut found, mut fetches) = (Vec::new(), Vec::new());
    if !chain.last().is_some_and(|last| trust.anchors.contains(last)) {
        return (found, fetches);
    }
    for pair in chain.windows(2) {
        let (certificate, issuer) = (&pair[0], &pair[1]);
        let response = trust.fetched.responses_of(certificate, now);
        match response.filter(|response| response.status(certificate, issuer, now).is_some()) {
            Some(response) => found.push(response.der().to_vec()),
            None => {
                let source = trust.sources.iter().find(|source| source.is_of(issuer));
                let configured =
                    source.into_iter().flat_map(|source| &source.ocsp_uris).map(|uri| (uri.as_str(), true));
                let of_certificate = certificate.extensions().ocsp_uris.iter().map(|uri| (uri.as_str(), false));
                let uris: Vec<(&str, bool)> = configured.chain(of_certificate).take(MAX_URIS).collect();
                let what = || FetchTarget::Ocsp(certificate.clone(), issuer.clone());
                fetches.extend(first(&uris, &trust.fetched, now, what));
            }
        }
    }
    (found, fetches)
}

/// The first URI that can be fetched now.
fn first(uris: &[(&str, bool)], fetched: &Fetched, now: Duration, what: impl Fn() -> FetchTarget) -> Option<Fetch> {
    uris.iter()
        .filter(|(uri, named)| uri.starts_with("http://") || *named && uri.starts_with("file://"))
        .map(|(uri, named)| Fetch { uri: (*uri).to_owned(), named: *named, what: what() })
        .find(|fetch| fetched.may_fetch(fetch, now))
}

/// Certificates that may sign CRLs about what `issuer` issued: itself, and loaded ones of the same
/// name with another key.
fn signers<'a>(issuer: &'a Certificate, evidence: &'a Evidence<'_>) -> impl Iterator<Item = &'a Certificate> {
    let same_name =
        move |other: &&Certificate| *other != issuer && other.is_ca() && other.subject() == issuer.subject();
    std::iter::once(issuer).chain(evidence.authorities.iter().filter(same_name))
}

/// Status of a certificate according to CRLs.
struct Lists {
    revoked: Option<&'static str>,
    /// A complete list that is not past its next update, or one that a current delta list
    /// continues.
    current: bool,
    has_delta: bool,
    /// The newest complete list.
    base: Option<Crl>,
}

impl Lists {
    fn of(
        certificate: &Certificate,
        issuer: &Certificate,
        evidence: &Evidence<'_>,
        constraints: &Constraints,
        count: Count<'_>,
    ) -> anyhow::Result<Self> {
        let fetched = evidence.fetched.crls_of(issuer.subject(), evidence.now);
        let mut found = Self { revoked: None, current: false, has_delta: false, base: None };
        let mut deltas: Vec<&Crl> = Vec::new();
        for crl in evidence.crls.iter().copied().chain(&fetched) {
            if !crl.covers(certificate) || !is_signed(crl, issuer, evidence, constraints, count)? {
                continue;
            }
            // Once in a list, revoked for good: an older list is as good as a newer one.
            if crl.entry(certificate) == Some(Entry::Revoked) {
                found.revoked = Some("revoked");
                return Ok(found);
            }
            if crl.updates().0 > evidence.now + SKEW {
                continue;
            }
            if crl.is_delta() {
                deltas.push(crl);
            } else if found.base.as_ref().is_none_or(|base| base.updates().0 < crl.updates().0) {
                found.base = Some(crl.clone());
            }
        }
        let Some(base) = &found.base else { return Ok(found) };
        let delta = deltas.into_iter().filter(|delta| delta.continues(base)).max_by_key(|delta| delta.updates().0);
        let entry = delta.and_then(|delta| delta.entry(certificate)).or_else(|| base.entry(certificate));
        if entry == Some(Entry::OnHold) {
            found.revoked = Some("on hold, which counts as revoked");
        }
        let current = |crl: &Crl| evidence.now <= crl.until();
        found.has_delta = delta.is_some_and(current);
        found.current = current(base) || found.has_delta;
        Ok(found)
    }
}

fn is_signed(
    crl: &Crl,
    issuer: &Certificate,
    evidence: &Evidence<'_>,
    constraints: &Constraints,
    count: Count<'_>,
) -> anyhow::Result<bool> {
    for signer in signers(issuer, evidence) {
        if constraints.chain(signer.key().kind(), crl.scheme()) {
            count()?;
            if crl.is_by(signer) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Status of a certificate according to current OCSP responses; a revocation has priority.
fn answered(
    certificate: &Certificate,
    issuer: &Certificate,
    evidence: &Evidence<'_>,
    constraints: &Constraints,
    count: Count<'_>,
) -> anyhow::Result<Option<Status>> {
    let fetched = evidence.fetched.responses_of(certificate, evidence.now);
    let mut good = None;
    for response in evidence.responses.iter().chain(&fetched) {
        let Some(status) = response.status(certificate, issuer, evidence.now) else { continue };
        count()?;
        let Some(signer) = response.signer(issuer, constraints, evidence.now) else { continue };
        if signer != issuer
            && !signer.extensions().ocsp_nocheck
            && Lists::of(signer, issuer, evidence, constraints, count)?.revoked.is_some()
        {
            continue;
        }
        match status {
            Status::Revoked => return Ok(Some(Status::Revoked)),
            Status::Good => good = Some(Status::Good),
        }
    }
    Ok(good)
}
