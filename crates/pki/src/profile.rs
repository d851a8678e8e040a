//! Contents of certificates: names, usage and validity.

use std::net::IpAddr;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, CrlDistributionPoint, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, KeyUsagePurpose, NameConstraints, SanType, SerialNumber,
};

use crate::date::{self, DAY_S};

/// Clocks of peers may be late by this much.
const EARLIER_S: i64 = 300;
/// Characters of a common name (RFC 5280 §A.1, ub-common-name).
const MAX_COMMON_NAME: usize = 64;
/// id-kp-ipsecIKE's predecessor, which Apple's clients and old peers require of a gateway.
const IKE_INTERMEDIATE: [u64; 9] = [1, 3, 6, 1, 5, 5, 8, 2, 2];

/// Validity of a CA certificate, days.
pub const CA_DAYS: u32 = 3650;
/// Validity of other certificates, days: Apple's systems refuse certificates of servers that are
/// valid for longer.
pub const DAYS: u32 = 825;
/// Time from a CRL to its next update, days.
pub const CRL_DAYS: u32 = 30;
const MAX_DAYS: u32 = 36_500;

/// Role of the subject.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Usage {
    /// A gateway that clients connect to
    Server,
    /// A client of a gateway
    Client,
    /// Both: a gateway of a site, a host of PSP
    Peer,
}

impl Usage {
    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
            Self::Peer => "peer",
        }
    }

    fn purposes(self) -> Vec<ExtendedKeyUsagePurpose> {
        let server = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::Other(IKE_INTERMEDIATE.to_vec())];
        match self {
            Self::Server => server.to_vec(),
            Self::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Self::Peer => server.into_iter().chain([ExtendedKeyUsagePurpose::ClientAuth]).collect(),
        }
    }
}

/// A subject alternative name: an IP address, an e-mail address or a DNS name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Name(SanType, String);

impl Name {
    /// Reads a name as swanctl.conf has it.
    ///
    /// # Errors
    /// The fault and what to write instead.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let text = text.trim();
        if let Ok(addr) = text.parse::<IpAddr>() {
            return Ok(Self(SanType::IpAddress(addr), addr.to_string()));
        }
        let fault = || format!("'{text}' is not a DNS name, an IP address or an e-mail address");
        let ia5 = |text: &str| text.to_owned().try_into().ok();
        let san = match text.split_once('@') {
            Some((user, host)) => {
                let plain = |c: u8| c.is_ascii_graphic() && !b"@,;:<>()[]\\\"".contains(&c);
                let good = !user.is_empty() && user.len() <= 64 && user.bytes().all(plain) && is_dns_name(host);
                ia5(text).filter(|_| good).map(SanType::Rfc822Name)
            }
            None => ia5(text).filter(|_| is_dns_name(text)).map(SanType::DnsName),
        };
        if text.contains('*') {
            bail!("{}; a wildcard is not a name for IKE", fault());
        }
        Ok(Self(san.with_context(fault)?, text.to_owned()))
    }

    /// The text that was read.
    pub fn as_str(&self) -> &str {
        &self.1
    }
}

/// Letters, digits, hyphens and underscores in labels (RFC 1123 §2.1), at most 253 characters.
fn is_dns_name(text: &str) -> bool {
    let label = |label: &str| {
        matches!(label.len(), 1..=63)
            && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // What consists of digits and dots is a mistyped address.
    let last_is_number = text.rsplit('.').next().is_some_and(|last| last.bytes().all(|c| c.is_ascii_digit()));
    text.len() <= 253 && text.split('.').all(label) && !(last_is_number && text.contains('.'))
}

/// A tree of names that a CA may issue for: `example.org`, `@example.org` or `10.0.0.0/8`.
///
/// # Errors
/// The fault and what to write instead.
pub(crate) fn permitted(text: &str) -> anyhow::Result<GeneralSubtree> {
    let fault = || format!("'{text}' is neither a domain, '@' with a domain, nor a network such as 10.0.0.0/8");
    if let Some((addr, prefix)) = text.split_once('/') {
        let (addr, prefix): (IpAddr, u8) = (addr.parse().with_context(fault)?, prefix.parse().with_context(fault)?);
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        anyhow::ensure!(prefix <= bits, fault());
        return Ok(GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(addr, prefix)));
    }
    let domain = text.strip_prefix('@').unwrap_or(text);
    anyhow::ensure!(is_dns_name(domain.strip_prefix('.').unwrap_or(domain)), fault());
    Ok(match text.strip_prefix('@') {
        Some(domain) => GeneralSubtree::Rfc822Name(domain.to_owned()),
        None => GeneralSubtree::DnsName(domain.to_owned()),
    })
}

/// A random serial number of 16 bytes: unpredictable, as the signature needs it, and unique without
/// a counter.
fn serial() -> Vec<u8> {
    let mut serial = [0; 16];
    crypto::random(&mut serial);
    // Positive, and always of the same length.
    serial[0] = serial[0] & 0x3f | 0x40;
    serial.to_vec()
}

fn distinguished_name(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    if name.chars().count() <= MAX_COMMON_NAME {
        subject.push(DnType::CommonName, name);
    }
    subject
}

fn validity(days: u32) -> anyhow::Result<(i64, i64)> {
    if !(1..=MAX_DAYS).contains(&days) {
        bail!("--days {days} is invalid; use 1 to {MAX_DAYS}");
    }
    let now = date::now();
    Ok((now - EARLIER_S, now + i64::from(days) * DAY_S))
}

/// A certificate to be signed, with its times in seconds since 1970.
pub(crate) struct Draft {
    pub(crate) params: CertificateParams,
    pub(crate) serial: Vec<u8>,
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
}

impl Draft {
    fn new(name: &str, (not_before, not_after): (i64, i64)) -> anyhow::Result<Self> {
        let serial = serial();
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name(name);
        params.serial_number = Some(SerialNumber::from(serial.clone()));
        params.not_before = date::at(not_before)?;
        params.not_after = date::at(not_after)?;
        Ok(Self { params, serial, not_before, not_after })
    }

    /// A CA that issues end entity certificates only.
    pub(crate) fn authority(name: &str, days: u32, permitted: Vec<GeneralSubtree>) -> anyhow::Result<Self> {
        if name.trim().is_empty() || name.chars().count() > MAX_COMMON_NAME || name.chars().any(char::is_control) {
            bail!("--name '{name}' is invalid; use 1 to {MAX_COMMON_NAME} characters");
        }
        let mut draft = Self::new(name, validity(days)?)?;
        draft.params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        draft.params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        draft.params.name_constraints =
            Some(NameConstraints { permitted_subtrees: permitted, excluded_subtrees: Vec::new() });
        Ok(draft)
    }

    /// An end entity. It is not valid for longer than its CA, until `ca_until`.
    pub(crate) fn end_entity(
        usage: Usage,
        names: &[Name],
        days: u32,
        ca_until: i64,
        crl_uris: &[String],
    ) -> anyhow::Result<Self> {
        let first = names.first().context("--id is missing: the DNS name, address or e-mail address of the subject")?;
        let (not_before, not_after) = validity(days)?;
        let mut draft = Self::new(first.as_str(), (not_before, not_after.min(ca_until)))?;
        draft.params.is_ca = IsCa::ExplicitNoCa;
        draft.params.subject_alt_names = names.iter().map(|name| name.0.clone()).collect();
        draft.params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        draft.params.extended_key_usages = usage.purposes();
        draft.params.use_authority_key_identifier_extension = true;
        if !crl_uris.is_empty() {
            draft.params.crl_distribution_points = vec![CrlDistributionPoint { uris: crl_uris.to_vec() }];
        }
        Ok(draft)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_addresses_mail_addresses_or_dns_names() {
        let kind = |text: &str| Name::parse(text).map(|name| name.0);
        assert!(matches!(kind("vpn.example.org"), Ok(SanType::DnsName(_))));
        assert!(matches!(kind("moon"), Ok(SanType::DnsName(_))));
        assert!(matches!(kind("alice@example.org"), Ok(SanType::Rfc822Name(_))));
        assert!(matches!(kind("192.0.2.1"), Ok(SanType::IpAddress(IpAddr::V4(_)))));
        assert!(matches!(kind(" 2001:DB8::1 "), Ok(SanType::IpAddress(IpAddr::V6(_)))));
        assert_eq!(Name::parse("2001:DB8::1").expect("an address").as_str(), "2001:db8::1");
        for bad in
            ["", "a b", "-a", "a-.b", "*.example.org", "a..b", "192.0.2.256", "@x", "a@", "a@b@c", "ä.org", "a/b"]
        {
            let refusal = Name::parse(bad).expect_err(bad).to_string();
            assert!(refusal.contains("is not a DNS name"), "{refusal}");
        }
        assert!(Name::parse(&"a".repeat(64)).is_err() && Name::parse(&["abc"; 64].join(".")).is_err());
    }

    #[test]
    fn serials_are_positive_long_and_differ() {
        let (one, other) = (serial(), serial());
        assert_ne!(one, other);
        assert!(one.len() == 16 && (0x40..0x80).contains(&one[0]));
    }

    #[test]
    fn drafts_end_with_their_authority_and_start_early() {
        let names = [Name::parse("a.example.org").expect("a name")];
        let now = date::now();
        let draft = Draft::end_entity(Usage::Server, &names, 825, now + 10 * DAY_S, &[]).expect("a draft");
        assert_eq!(draft.not_after, now + 10 * DAY_S);
        assert!(draft.not_before <= now - EARLIER_S + 1);
        assert!(Draft::end_entity(Usage::Server, &names, 0, now, &[]).is_err());
        assert!(Draft::end_entity(Usage::Server, &[], 1, now, &[]).is_err());
        assert!(Draft::authority("", 1, Vec::new()).is_err());
        assert!(Draft::authority(&"x".repeat(65), 1, Vec::new()).is_err());
        assert!(permitted("10.0.0.0/33").is_err() && permitted("a b").is_err() && permitted(".example.org").is_ok());
    }
}
