//! Holding identities against patterns.

use wire::ike::IdType;

use super::{IdPattern, Identity, IdentityError, dn, is_any};

/// Quality of a match: of several connections the best is selected.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Match(u8);

impl Match {
    /// By `%any`.
    pub const ANY: Self = Self(1);
    /// By an address within a network or a range.
    pub const WITHIN: Self = Self(10);
    /// By a name with one wildcard.
    pub const ONE_WILDCARD: Self = Self(19);
    /// By the identity itself.
    pub const PERFECT: Self = Self(20);

    /// The more values of a distinguished name are free, the worse, but better than `%any`.
    fn with_wildcards(count: usize) -> Self {
        Self(Self::PERFECT.0 - count.min(18) as u8)
    }
}

impl IdPattern {
    /// `%any`, or an identity with wildcards: `*` in front of a name (`*.example.org`,
    /// `*@example.org`) matches anything, `*` as a value of a distinguished name (`C=CH, CN=*`) for
    /// any value, a network or a range for the addresses in it.
    ///
    /// # Errors
    /// As [`Identity::parse`].
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        if is_any(text.trim()) { Ok(Self::Any) } else { Identity::parse(text).map(Self::Like) }
    }

    /// Quality of the match with `id`; `None` if it does not match.
    pub fn matches(&self, id: &Identity) -> Option<Match> {
        let Self::Like(pattern) = self else { return Some(Match::ANY) };
        if pattern.is_same(id) {
            return Some(Match::PERFECT);
        }
        match pattern.kind {
            IdType::FQDN | IdType::RFC822_ADDR if pattern.kind == id.kind => name(&pattern.data, &id.data),
            IdType::DER_ASN1_DN if pattern.kind == id.kind => {
                dn::matches(&pattern.data, &id.data, true).map(Match::with_wildcards)
            }
            _ => {
                let (outer, inner) = (pattern.addresses()?, id.addresses()?);
                (outer.contains(inner.start) && outer.contains(inner.end)).then_some(Match::WITHIN)
            }
        }
    }

    /// The identity when there is one and it has no wildcards: the identity that an initiator may
    /// send.
    pub fn exact(&self) -> Option<&Identity> {
        let Self::Like(id) = self else { return None };
        let free = match id.kind {
            IdType::FQDN | IdType::RFC822_ADDR => id.data.first() == Some(&b'*'),
            IdType::DER_ASN1_DN => dn::read(&id.data).is_some_and(|rdns| dn::has_wildcard(&rdns)),
            IdType::IPV4_ADDR | IdType::IPV6_ADDR => false,
            _ => id.addresses().is_some(),
        };
        (!free).then_some(id)
    }
}

/// A leading star matches any text, including none.
fn name(pattern: &[u8], name: &[u8]) -> Option<Match> {
    let rest = pattern.strip_prefix(b"*")?;
    if rest.is_empty() {
        return Some(Match::ANY);
    }
    let tail = name.len().checked_sub(rest.len()).map(|at| &name[at..])?;
    // Other implementations end a name at a NUL byte, before the tail that matches here.
    (tail.eq_ignore_ascii_case(rest) && !name.contains(&0)).then_some(Match::ONE_WILDCARD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(pattern: &str, id: &str) -> Option<Match> {
        IdPattern::parse(pattern).expect("a pattern").matches(&Identity::parse(id).expect("an identity"))
    }

    #[test]
    fn the_more_exact_pattern_wins() {
        assert_eq!(rank("%any", "moon.example.org"), Some(Match::ANY));
        assert_eq!(rank("fqdn:*", "moon.example.org"), Some(Match::ANY));
        assert_eq!(rank("*.Example.org", "moon.example.org"), Some(Match::ONE_WILDCARD));
        assert_eq!(rank("MOON.example.org", "moon.example.org"), Some(Match::PERFECT));
        assert_eq!(rank("*@example.org", "moon@example.org"), Some(Match::ONE_WILDCARD));
        let dn = "C=CH, O=Lab, CN=moon";
        assert_eq!(rank("C=CH, O=Lab, CN=moon", dn), Some(Match::PERFECT));
        assert_eq!(rank("C=CH, O=Lab, CN=*", dn), Some(Match::ONE_WILDCARD));
        assert!(rank("C=CH, O=*, CN=*", dn) < rank("C=CH, O=Lab, CN=*", dn));
        assert!(rank("C=*, O=*, CN=*", dn) > rank("%any", dn));
    }

    #[test]
    fn what_does_not_match() {
        assert_eq!(rank("*.example.org", "example.org"), None);
        assert_eq!(rank("*.example.org", "moon.example.com"), None);
        assert_eq!(rank("moon.*", "moon.example.org"), None);
        assert_eq!(rank("*.example.org", "keyid:moon.example.org"), None);
        assert_eq!(rank("keyid:*", "keyid:moon"), None);
        assert_eq!(rank("C=CH, CN=*", "C=CH, O=Lab, CN=moon"), None);
        assert_eq!(rank("C=CH, CN=*", "CN=moon, C=CH"), None);
        assert_eq!(rank("C=CH", "C=CH, CN=moon"), None);
        assert_eq!(rank("CN=moon", "CN=*"), None);
        let zero = Identity { kind: IdType::FQDN, data: b"evil\0.example.org".to_vec() };
        assert_eq!(IdPattern::parse("*.example.org").unwrap().matches(&zero), None);
    }

    #[test]
    fn addresses_lie_in_networks() {
        assert_eq!(rank("10.1.0.0/16", "10.1.2.3"), Some(Match::WITHIN));
        assert_eq!(rank("10.1.0.0-10.1.2.2", "10.1.2.3"), None);
        assert_eq!(rank("fd00::/8", "fd12::1"), Some(Match::WITHIN));
        assert_eq!(rank("10.1.2.3", "10.1.2.3"), Some(Match::PERFECT));
        assert_eq!(rank("10.1.2.3", "10.1.0.0/16"), None);
    }

    #[test]
    fn only_what_has_no_wildcard_can_be_sent() {
        let exact = |text| IdPattern::parse(text).expect("a pattern").exact().is_some();
        assert!(exact("moon.example") && exact("C=CH, CN=moon") && exact("10.0.0.1") && exact("keyid:*"));
        assert!(!exact("%any") && !exact("*.example") && !exact("C=CH, CN=*") && !exact("10.0.0.0/8"));
    }
}
