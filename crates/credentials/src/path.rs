//! Paths of certificates (RFC 5280 §6, RFC 4945): from a peer's certificate to a CA that is
//! trusted.
//!
//! Built depth first from the peer's certificate up to a self-signed CA of x509ca; other
//! certificates of x509ca are intermediates, and are checked like those that the peer sends. A
//! candidate issuer must have the right name, be a CA, permit the certificates below it, and have
//! signed them. The work that a peer can cause is bounded: length of paths, certificates it may
//! send, and signatures that are verified for one request.

use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use ike::config::{Auth, Revocation};
use x509_cert::der::oid::ObjectIdentifier;

use super::constraint::Constraints;
use super::name;
use super::revocation::{self, Evidence, Fetch, MAX_FETCHES, SKEW, Verdict};
use super::x509::Certificate;

/// Certificates in a path, both ends included.
pub(super) const MAX_PATH: usize = 8;
/// CERT payloads of one message that are parsed: 32 of at most 64 KiB, 2 MiB.
pub(super) const MAX_PEER_CERTIFICATES: usize = 32;
/// Signatures of certificates and revocation lists that are verified for one request: some ten
/// milliseconds with the largest keys.
const MAX_SIGNATURES: u32 = 64;

/// Inputs of path building.
pub(super) struct Known<'a> {
    /// Trust anchors: self-signed CAs.
    pub(super) anchors: &'a [Certificate],
    /// Intermediate CAs that this host loaded.
    pub(super) intermediates: &'a [Certificate],
    /// Other certificates of this host's store that may be part of a path.
    pub(super) stored: &'a [Certificate],
    /// Certificates that the peer sent: untrusted hints.
    pub(super) sent: &'a [Certificate],
    /// Sources of revocation status.
    pub(super) evidence: Evidence<'a>,
    /// Time since 1970.
    pub(super) now: Duration,
}

/// A valid path: end entity first, trusted CA last.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) certificates: Vec<Certificate>,
}

impl Path {
    /// Earliest expiry of its certificates, since 1970.
    pub(super) fn not_after(&self) -> Duration {
        self.certificates.iter().map(|certificate| certificate.validity().1).min().unwrap_or_default()
    }
}

/// Looks for paths, remembers how much work was done and why the best attempt failed.
struct Search<'a> {
    known: &'a Known<'a>,
    auth: &'a Auth,
    constraints: &'a Constraints,
    signatures: u32,
    /// Reason, and the length of the path that failed: the longest path has the most useful reason.
    fault: (usize, String),
    revoked: bool,
    fetches: Vec<Fetch>,
}

/// Reason why no path was found.
#[derive(Debug)]
pub(super) struct NoPath {
    /// For the log of this host.
    pub(super) why: String,
    /// A certificate of the path is revoked, so that no other path must be accepted.
    pub(super) revoked: bool,
}

/// Finds a path from `leaf` that satisfies `auth`. Also returns the revocation data that should be
/// fetched for its certificates.
pub(super) fn validate(
    leaf: &Certificate,
    known: &Known<'_>,
    auth: &Auth,
    constraints: &Constraints,
) -> (Result<Path, NoPath>, Vec<Fetch>) {
    if let Err(why) = peer_certificate(leaf, known.now) {
        return (Err(NoPath { why: why.to_string(), revoked: false }), Vec::new());
    }
    let no_issuer = format!(
        "no trusted CA issued it (issuer {}); load the self-signed root CA into x509ca, and let the peer send the \
         intermediate CAs or load them there as well",
        name::show(leaf.issuer())
    );
    let (fault, fetches) = ((0, no_issuer), Vec::new());
    let mut search = Search { known, auth, constraints, signatures: 0, fault, revoked: false, fetches };
    let mut path = vec![leaf.clone()];
    // A trusted CA certificate must not be used as a peer certificate.
    if search.extend(&mut path) {
        return (Ok(Path { certificates: path }), search.fetches);
    }
    (Err(NoPath { why: search.fault.1, revoked: search.revoked }), search.fetches)
}

/// Checks of a peer's certificate that do not depend on its issuer.
///
/// # Errors
/// Reason why it is not a valid path.
pub(super) fn peer_certificate(leaf: &Certificate, now: Duration) -> anyhow::Result<()> {
    in_time(leaf, now)?;
    known_extensions(leaf)?;
    if !leaf.extensions().may_sign() {
        bail!("{leaf:?} is not allowed to sign: its key usage has neither digitalSignature nor nonRepudiation");
    }
    if !leaf.extensions().may_be_peer() {
        bail!("{leaf:?} is not for IKE: its extended key usage has neither IPsec nor TLS");
    }
    Ok(())
}

fn in_time(certificate: &Certificate, now: Duration) -> anyhow::Result<()> {
    let (from, until) = certificate.validity();
    if now + SKEW < from {
        let days = (from - now).as_secs() / 86_400;
        bail!("{certificate:?} is not valid yet, for {days} more days; is the clock right?");
    }
    if now > until {
        let days = (now - until).as_secs() / 86_400;
        bail!("{certificate:?} expired {days} days ago; renew it, if the clock is right");
    }
    Ok(())
}

fn known_extensions(certificate: &Certificate) -> anyhow::Result<()> {
    match &certificate.extensions().unknown_critical {
        None => Ok(()),
        Some(oid) => Err(anyhow!("{certificate:?} has the unknown critical extension {oid}")),
    }
}

fn count(signatures: &mut u32) -> anyhow::Result<()> {
    *signatures += 1;
    ensure!(
        *signatures <= MAX_SIGNATURES,
        "more than {MAX_SIGNATURES} signatures would have to be verified to find a path"
    );
    Ok(())
}

impl Search<'_> {
    fn fail(&mut self, length: usize, why: &anyhow::Error) {
        if length >= self.fault.0 {
            self.fault = (length, why.to_string());
        }
    }

    /// Extends the path to a trusted CA; false does not change it.
    fn extend(&mut self, path: &mut Vec<Certificate>) -> bool {
        let known = self.known;
        let last = path[path.len() - 1].clone();
        let anchors = known.anchors.iter().map(|certificate| (certificate, true));
        let others =
            known.intermediates.iter().chain(known.sent).chain(known.stored).map(|certificate| (certificate, false));
        let mut tried: Vec<[u8; 32]> = Vec::new();
        for (issuer, trusted) in anchors.chain(others) {
            if self.signatures > MAX_SIGNATURES {
                return false;
            }
            if !last.names_as_issuer(issuer) || path.contains(issuer) || tried.contains(&issuer.fingerprint()) {
                continue;
            }
            tried.push(issuer.fingerprint());
            if let Err(why) = self.issues(path, &last, issuer, trusted) {
                self.fail(path.len(), &why);
                continue;
            }
            path.push(issuer.clone());
            let accepted = trusted && self.accept(path).map_err(|why| self.fail(path.len(), &why)).is_ok();
            // Above an anchor there may be another one: a self-signed CA can also be
            // cross-certified.
            if accepted || self.extend(path) {
                return true;
            }
            path.pop();
        }
        false
    }

    /// Returns whether `issuer` can extend the path and signed its last certificate.
    fn issues(
        &mut self,
        path: &[Certificate],
        last: &Certificate,
        issuer: &Certificate,
        trusted: bool,
    ) -> anyhow::Result<()> {
        let extensions = issuer.extensions();
        in_time(issuer, self.known.now)?;
        known_extensions(issuer)?;
        // One that is trusted by being loaded may be older than version 3.
        if !(issuer.is_ca() || trusted && !extensions.v3) {
            bail!("{issuer:?} issued a certificate but is not a CA");
        }
        if extensions.key_usage.as_ref().is_some_and(|usage| !usage.key_cert_sign()) {
            bail!("{issuer:?} issued a certificate, which its key usage does not allow");
        }
        if !extensions.may_be_peer() {
            bail!("{issuer:?} may only issue certificates for other purposes");
        }
        let between = path[1..].iter().filter(|certificate| !certificate.is_self_issued()).count();
        let allowed = extensions.basic_constraints.as_ref().and_then(|constraints| constraints.path_len_constraint);
        if allowed.is_some_and(|allowed| between > usize::from(allowed)) {
            bail!("more CAs below {issuer:?} than its path length allows");
        }
        if path.len() >= MAX_PATH {
            bail!("the path has more than {MAX_PATH} certificates");
        }
        if !self.constraints.chain(issuer.key().kind(), last.scheme()) {
            bail!(
                "{last:?} is signed with {:?} by {:?}, which 'auth' does not allow",
                last.scheme(),
                issuer.key().kind()
            );
        }
        count(&mut self.signatures)?;
        if !last.is_signed_by(issuer.key()) {
            bail!("the signature of {issuer:?} on {last:?} is invalid; check whether that CA changed its key");
        }
        // Checked after the signature, so that an attacker cannot force many name comparisons.
        for below in path {
            name::constrain(issuer, below)
                .map_err(|name| anyhow!("{} violates the name constraints of {issuer:?}", name.0))?;
        }
        Ok(())
    }

    /// Returns whether a complete path satisfies the configuration.
    fn accept(&mut self, path: &[Certificate]) -> anyhow::Result<()> {
        let wanted = &self.auth.cacerts;
        if !wanted.is_empty() && !path[1..].iter().any(|ca| wanted.contains(&ca.fingerprint())) {
            bail!("it comes from a trusted CA, but none of those in 'cacerts'");
        }
        policies(path, &self.auth.cert_policy)?;
        // From the anchor down: a revoked CA cannot make this host fetch anything.
        let mut outcome = Ok(());
        for pair in path.windows(2).rev() {
            outcome = outcome.and(self.revocation(&pair[0], &pair[1]));
            if self.revoked {
                break;
            }
        }
        outcome
    }

    fn revocation(&mut self, certificate: &Certificate, issuer: &Certificate) -> anyhow::Result<()> {
        let Self { known, constraints, signatures, .. } = self;
        let mut count = || count(signatures);
        let (verdict, fetches) = revocation::status(certificate, issuer, &known.evidence, constraints, &mut count)?;
        self.fetches.extend(fetches);
        self.fetches.truncate(MAX_FETCHES);
        let missing = match (verdict, self.auth.revocation) {
            (Verdict::Revoked(how), _) => {
                self.revoked = true;
                bail!("{certificate:?} is {how}");
            }
            (Verdict::Good, _) | (_, Revocation::Relaxed) | (Verdict::Unannounced, Revocation::IfUri) => false,
            (Verdict::Unavailable, Revocation::IfUri) | (_, Revocation::Strict) => true,
        };
        if missing {
            bail!(
                "the revocation status of {certificate:?} is unknown: no current CRL or OCSP response; load a CRL into \
                 x509crl, or name a server in 'crl_uris' or 'ocsp_uris' of the section 'authorities'"
            );
        }
        Ok(())
    }
}

/// Returns whether a path carries the policies (RFC 5280 §6.1, without mappings): the end entity by
/// name, CAs by name or as anyPolicy. The trusted CA itself need not.
fn policies(path: &[Certificate], wanted: &[String]) -> anyhow::Result<()> {
    let authorities = &path[1..path.len() - 1];
    // Stricter than the counters of RFC 5280: a certificate that forbids anyPolicy forbids it
    // everywhere.
    let any_counts = !path.iter().any(|certificate| certificate.extensions().inhibit_any_policy);
    let carried = |policy: &ObjectIdentifier| {
        path[0].extensions().has_policy(policy, false)
            && authorities.iter().all(|ca| ca.extensions().has_policy(policy, any_counts))
    };
    for policy in wanted {
        let oid =
            ObjectIdentifier::new(policy).map_err(|_| anyhow!("'{policy}' is not an OID; change 'cert_policy'"))?;
        if !carried(&oid) {
            bail!("it lacks the policy {policy} of 'cert_policy', itself or a CA above it");
        }
    }
    let asked = path.iter().find(|certificate| certificate.extensions().require_policy);
    if let Some(asking) = asked
        && !path[0].extensions().policies.iter().flatten().any(carried)
    {
        bail!("{asking:?} requires a common policy of all certificates below it, and there is none");
    }
    Ok(())
}
