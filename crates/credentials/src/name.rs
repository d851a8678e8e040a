//! Names in certificates: comparison with identities, and name constraints (RFC 5280 §4.2.1.10).
//!
//! A certificate contains no patterns: a `*` in a subject or an alternative name is that character.
//! Patterns come from the configuration only.

use ike::identity::Identity;
use wire::ike::IdType;
use x509_cert::der::{Decode, Encode, Tag, Tagged, asn1::Any};
use x509_cert::ext::pkix::constraints::name::GeneralSubtrees;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::name::{Name, RelativeDistinguishedName};

use super::x509::Certificate;

/// An identity as text.
pub(super) fn show_id(id: &Identity) -> String {
    printable(&id.to_string())
}

/// A distinguished name as text, truncated when it is long.
pub(super) fn show(name: &[u8]) -> String {
    show_id(&Identity::of_dn(name.to_vec()))
}

/// Text for a log line: control characters replaced, at most 200 characters. Names come from peers,
/// which must not be able to forge log lines or terminal sequences.
pub(super) fn printable(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The subject of a certificate as an identity, else its first alternative name.
pub(super) fn identity_of(certificate: &Certificate) -> Option<Identity> {
    identities_of(certificate).into_iter().next()
}

/// Identities in a certificate: the distinguished name first.
pub(super) fn identities_of(certificate: &Certificate) -> Vec<Identity> {
    let subject = Identity::of_dn(certificate.subject().to_vec());
    let alternatives = certificate.extensions().alt_names.iter().filter_map(|name| {
        let (kind, data) = match name {
            GeneralName::DnsName(name) => (IdType::FQDN, name.as_bytes()),
            GeneralName::Rfc822Name(name) => (IdType::RFC822_ADDR, name.as_bytes()),
            GeneralName::IpAddress(addr) if addr.as_bytes().len() == 4 => (IdType::IPV4_ADDR, addr.as_bytes()),
            GeneralName::IpAddress(addr) if addr.as_bytes().len() == 16 => (IdType::IPV6_ADDR, addr.as_bytes()),
            _ => return None,
        };
        Some(Identity { kind, data: data.to_vec() })
    });
    let empty = matches!(certificate.subject(), [0x30, 0]);
    Some(subject).filter(|_| !empty).into_iter().chain(alternatives).collect()
}

/// Returns whether the certificate contains `id`: subject, alternative name of the type, or for a
/// key ID one of the identifiers of the key.
pub(super) fn is_of(certificate: &Certificate, id: &Identity) -> bool {
    let extensions = certificate.extensions();
    let names = &extensions.alt_names;
    let data = &id.data[..];
    match id.kind {
        IdType::DER_ASN1_DN => {
            let alternative = |name: &GeneralName| match name {
                GeneralName::DirectoryName(name) => name.to_der().is_ok_and(|name| Identity::of_dn(name).is_same(id)),
                _ => false,
            };
            Identity::of_dn(certificate.subject().to_vec()).is_same(id) || names.iter().any(alternative)
        }
        IdType::FQDN => {
            !data.is_empty()
                && names.iter().any(|name| match name {
                    GeneralName::DnsName(name) => name.as_bytes().eq_ignore_ascii_case(data),
                    _ => false,
                })
        }
        IdType::RFC822_ADDR => {
            !data.is_empty()
                && names.iter().any(|name| match name {
                    GeneralName::Rfc822Name(name) => name.as_bytes().eq_ignore_ascii_case(data),
                    _ => false,
                })
        }
        IdType::IPV4_ADDR | IdType::IPV6_ADDR => {
            matches!(data.len(), 4 | 16)
                && names.iter().any(|name| match name {
                    GeneralName::IpAddress(addr) => addr.as_bytes() == data,
                    _ => false,
                })
        }
        IdType::DER_ASN1_GN => names.iter().any(|name| name.to_der().is_ok_and(|name| name == data)),
        IdType::KEY_ID => is_key_id(certificate, data),
        _ => false,
    }
}

fn is_key_id(certificate: &Certificate, data: &[u8]) -> bool {
    let key = certificate.key();
    data == key.key_id()
        || data == key.spki_id()
        || certificate.extensions().subject_key_id.as_ref().is_some_and(|id| !id.is_empty() && id == data)
}

/// Returns whether `name` is `base` or below it: it begins with the same relative names.
fn begins_with(name: &Name, base: &Name) -> bool {
    name.0.len() >= base.0.len() && name.0.iter().zip(&base.0).all(|(a, b)| same_rdn(a, b))
}

fn same_rdn(a: &RelativeDistinguishedName, b: &RelativeDistinguishedName) -> bool {
    let there = |a: &x509_cert::attr::AttributeTypeAndValue| {
        b.0.iter().any(|b| a.oid == b.oid && same_value(&a.value, &b.value))
    };
    a.0.len() == b.0.len() && a.0.iter().all(there)
}

fn same_value(a: &Any, b: &Any) -> bool {
    match (text(a), text(b)) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// Text in the form in which it is compared: lower case, runs of white space as one space (a subset
/// of RFC 5280 §7.1). `None` for values that are not text, which are compared byte by byte.
fn text(value: &Any) -> Option<String> {
    let decoded = match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String => std::str::from_utf8(value.value()).ok()?.to_owned(),
        Tag::BmpString => {
            let (units, []) = value.value().as_chunks::<2>() else { return None };
            String::from_utf16(&units.iter().map(|unit| u16::from_be_bytes(*unit)).collect::<Vec<_>>()).ok()?
        }
        _ => return None,
    };
    Some(decoded.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase())
}

/// A name of a certificate that the name constraints of an issuer do not allow, as text.
#[derive(Debug)]
pub(super) struct ForbiddenName(pub(super) String);

/// Checks every name of a certificate against the name constraints of a CA above it. The subject
/// counts as a directory name unless it is empty. Where names cannot be compared the certificate is
/// refused.
///
/// # Errors
/// The name that the constraints do not allow.
pub(super) fn constrain(issuer: &Certificate, below: &Certificate) -> Result<(), ForbiddenName> {
    let Some(constraints) = &issuer.extensions().name_constraints else { return Ok(()) };
    let subject = Name::from_der(below.subject()).map_err(|_| ForbiddenName("(malformed name)".to_owned()))?;
    let subject = Some(subject).filter(|name| !name.is_empty()).map(GeneralName::DirectoryName);
    for name in below.extensions().alt_names.iter().chain(&subject) {
        let allowed = |trees: &Option<GeneralSubtrees>| trees.as_ref().map(|trees| Subtrees::of(trees, name));
        if let Some(permitted) = allowed(&constraints.permitted_subtrees)
            && permitted.concern
            && permitted.contain != Some(true)
        {
            return Err(ForbiddenName(show_general(name)));
        }
        if let Some(excluded) = allowed(&constraints.excluded_subtrees)
            && excluded.concern
            && excluded.contain != Some(false)
        {
            return Err(ForbiddenName(show_general(name)));
        }
    }
    Ok(())
}

/// Result of comparing a name with a list of subtrees.
struct Subtrees {
    /// The list has subtrees of the type of the name; others do not restrict it.
    concern: bool,
    /// True if the name is in one of them; `None` if they cannot be compared.
    contain: Option<bool>,
}

impl Subtrees {
    fn of(trees: &GeneralSubtrees, name: &GeneralName) -> Self {
        let mut found = Self { concern: false, contain: Some(false) };
        for tree in trees {
            if std::mem::discriminant(&tree.base) != std::mem::discriminant(name) {
                continue;
            }
            found.concern = true;
            // RFC 5280: minimum must be 0 and maximum absent; a certificate with other values is
            // refused, because they are not implemented.
            let plain = tree.minimum == 0 && tree.maximum.is_none();
            match within(name, &tree.base).filter(|_| plain) {
                Some(true) if found.contain == Some(false) => found.contain = Some(true),
                Some(_) => {}
                None => found.contain = None,
            }
        }
        found
    }
}

/// Returns whether `name` is within `base`, which is of the same type; `None` for types that cannot
/// be compared.
fn within(name: &GeneralName, base: &GeneralName) -> Option<bool> {
    match (name, base) {
        (GeneralName::DnsName(name), GeneralName::DnsName(base)) => Some(domain_within(name.as_str(), base.as_str())),
        (GeneralName::Rfc822Name(name), GeneralName::Rfc822Name(base)) => {
            let (local, host) = name.as_str().rsplit_once('@')?;
            // A mailbox, the hosts below a domain, or the mailboxes of one host. The local part is
            // case-sensitive (RFC 5280 §7.5).
            Some(match base.as_str().rsplit_once('@') {
                Some((base_local, base_host)) => local == base_local && host.eq_ignore_ascii_case(base_host),
                None if base.as_str().starts_with('.') => {
                    domain_within(host, base.as_str()) && !host.eq_ignore_ascii_case(&base.as_str()[1..])
                }
                None => host.eq_ignore_ascii_case(base.as_str()),
            })
        }
        (GeneralName::IpAddress(addr), GeneralName::IpAddress(base)) => {
            let (addr, base) = (addr.as_bytes(), base.as_bytes());
            if !matches!(addr.len(), 4 | 16) || !matches!(base.len(), 8 | 32) {
                return None;
            }
            let (net, mask) = base.split_at(base.len() / 2);
            Some(addr.len() == net.len() && (0..addr.len()).all(|at| addr[at] & mask[at] == net[at] & mask[at]))
        }
        (GeneralName::DirectoryName(name), GeneralName::DirectoryName(base)) => Some(begins_with(name, base)),
        _ => None,
    }
}

/// Returns whether `name` is `base` or a name below it. A dot before `base`, which RFC 5280 does
/// not define for DNS names, is ignored, as other implementations do. Every name is below an empty
/// base.
fn domain_within(name: &str, base: &str) -> bool {
    let (name, base) = (name.as_bytes(), base.strip_prefix('.').unwrap_or(base).as_bytes());
    let Some(at) = name.len().checked_sub(base.len()) else { return false };
    name[at..].eq_ignore_ascii_case(base) && (base.is_empty() || at == 0 || name[at - 1] == b'.')
}

fn show_general(name: &GeneralName) -> String {
    match name {
        GeneralName::DnsName(name) | GeneralName::Rfc822Name(name) | GeneralName::UniformResourceIdentifier(name) => {
            printable(name.as_str())
        }
        GeneralName::DirectoryName(name) => printable(&name.to_string()),
        GeneralName::IpAddress(addr) => {
            let bytes = addr.as_bytes();
            let v4 = <[u8; 4]>::try_from(bytes).map(std::net::IpAddr::from);
            let addr = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(std::net::IpAddr::from));
            addr.map_or_else(|_| format!("address of {} bytes", bytes.len()), |addr| addr.to_string())
        }
        _ => "name of another type".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_end_at_dots() {
        for (name, base, within) in [
            ("a.example.org", "example.org", true),
            ("example.org", "Example.ORG", true),
            ("badexample.org", "example.org", false),
            ("a.example.org", ".example.org", true),
            ("example.com", "example.org", false),
            ("org", "example.org", false),
            ("anything", "", true),
        ] {
            assert_eq!(domain_within(name, base), within, "{name} {base}");
        }
    }

    #[test]
    fn trees_of_names_are_compared_as_people_read_them() {
        let name = |text: &str| text.parse::<Name>().expect("a name");
        // Reversed, because the root is last.
        assert!(begins_with(&name("CN=Moon,O=Weir,C=CH"), &name("O=WEIR,C=ch")));
        assert!(begins_with(&name("CN=Moon  Base"), &name("CN=moon base")));
        assert!(!begins_with(&name("O=Weir,C=CH"), &name("CN=Moon,O=Weir,C=CH")));
        assert!(!begins_with(&name("CN=moon"), &name("CN=*")));
    }
}
