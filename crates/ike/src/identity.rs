//! Identities of peers (RFC 7296 §3.5) and the patterns that they are held against.
//!
//! In a configuration an identity is text, and its form determines its type, as in strongSwan. A
//! peer's identity is from an ID payload and may contain anything: it is compared and printed, but
//! never assumed to be well formed.

mod dn;
mod pattern;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::AddrRange;
use wire::ike::IdType;

pub use pattern::Match;

/// An identity as it travels in IDi and IDr.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Identity {
    /// Type of the ID payload.
    pub kind: IdType,
    /// Its data.
    pub data: Vec<u8>,
}

/// Pattern of an identity.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum IdPattern {
    /// `%any`.
    Any,
    /// This one, with `*` in names and in the values of a distinguished name as wildcards.
    Like(Identity),
}

/// Error: the text is not an identity.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// Any identity is not one.
    #[error("'{0}' stands for any identity: write one")]
    Any(String),
    /// Hexadecimal digits are expected.
    #[error("'{0}' is not hexadecimal: write two digits per byte after '#'")]
    Hex(String),
    /// An address is expected.
    #[error("'{0}' is not an address of that family")]
    Address(String),
    /// A distinguished name is expected.
    #[error("'{text}' is not a distinguished name: {why}")]
    Dn {
        /// The input.
        text: String,
        /// Reason.
        why: &'static str,
    },
    /// Patterns of newer strongSwan.
    #[error(
        "'{0}' is a regular expression, which is not supported: write names with '*' in front, e.g. '*.example.org'"
    )]
    Regex(String),
    /// Too long to be meant.
    #[error("an identity has at most {max} bytes; this one has {0}", max = Identity::TEXT_MAX)]
    TooLong(usize),
}

/// Prefixes that name the type of the identity.
const PREFIXES: &[(&str, IdType)] = &[
    ("ipv4:", IdType::IPV4_ADDR),
    ("ipv6:", IdType::IPV6_ADDR),
    ("ipv4net:", IdType::IPV4_ADDR_SUBNET),
    ("ipv6net:", IdType::IPV6_ADDR_SUBNET),
    ("ipv4range:", IdType::IPV4_ADDR_RANGE),
    ("ipv6range:", IdType::IPV6_ADDR_RANGE),
    ("rfc822:", IdType::RFC822_ADDR),
    ("email:", IdType::RFC822_ADDR),
    ("userfqdn:", IdType::RFC822_ADDR),
    ("fqdn:", IdType::FQDN),
    ("dns:", IdType::FQDN),
    ("asn1dn:", IdType::DER_ASN1_DN),
    ("dn:", IdType::DER_ASN1_DN),
    ("asn1gn:", IdType::DER_ASN1_GN),
    ("keyid:", IdType::KEY_ID),
];

/// Spellings of strongSwan for any identity.
fn is_any(text: &str) -> bool {
    matches!(text, "" | "%any" | "%any6" | "0.0.0.0" | "*" | "::" | "0::0")
}

impl Identity {
    /// Bytes of an identity in a configuration.
    pub const TEXT_MAX: usize = 2048;

    /// Parses an identity. A prefix such as `fqdn:` or `keyid:` (with `#` and hexadecimal digits
    /// after it, if wanted) or `{11}:` names the type; otherwise: with `=` a distinguished name;
    /// with `@` a mail address, after `@` a domain name, after `@@` a mail address, after `@#` a
    /// key ID in hexadecimal; without, an address, a network, a range, else a domain name.
    ///
    /// # Errors
    /// [`IdentityError`]. What merely looks like a distinguished name or an IPv6 address is a key
    /// ID.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        let text = text.trim();
        if text.len() > Self::TEXT_MAX {
            return Err(IdentityError::TooLong(text.len()));
        }
        if is_any(text) {
            return Err(IdentityError::Any(text.to_owned()));
        }
        let lower = text.to_ascii_lowercase();
        if let Some((prefix, kind)) = PREFIXES.iter().find(|(prefix, _)| lower.starts_with(prefix)) {
            return Self::of_type(*kind, &text[prefix.len()..]);
        }
        if let Some((number, value)) = text.strip_prefix('{').and_then(|rest| rest.split_once("}:"))
            && let Ok(number) = number.parse()
        {
            return Self::raw_or_hex(IdType(number), value);
        }
        // Before '@', because a distinguished name may contain a mail address.
        if text.contains('=') {
            return Ok(dn::encode(text).map_or_else(|_| Self::new(IdType::KEY_ID, text), Self::of_dn));
        }
        match text.strip_prefix('@') {
            Some(rest) => Self::after_at(rest),
            None if text.contains('@') => Ok(Self::new(IdType::RFC822_ADDR, text)),
            None => Ok(Self::of_addresses(text)
                .unwrap_or_else(|| Self::new(if text.contains(':') { IdType::KEY_ID } else { IdType::FQDN }, text))),
        }
    }

    fn new(kind: IdType, data: impl AsRef<[u8]>) -> Self {
        Self { kind, data: data.as_ref().to_vec() }
    }

    /// The identity of a subject or issuer of a certificate, DER.
    pub fn of_dn(der: Vec<u8>) -> Self {
        Self { kind: IdType::DER_ASN1_DN, data: der }
    }

    /// The identity of an address.
    pub fn of_addr(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(v4) => Self::new(IdType::IPV4_ADDR, v4.octets()),
            IpAddr::V6(v6) => Self::new(IdType::IPV6_ADDR, v6.octets()),
        }
    }

    fn after_at(rest: &str) -> Result<Self, IdentityError> {
        if let Some(hex) = rest.strip_prefix('#') {
            return Ok(Self { kind: IdType::KEY_ID, data: unhex(hex)? });
        }
        let mail = rest.strip_prefix('@').map(|mail| Self::new(IdType::RFC822_ADDR, mail));
        Ok(mail.unwrap_or_else(|| Self::new(IdType::FQDN, rest)))
    }

    fn raw_or_hex(kind: IdType, value: &str) -> Result<Self, IdentityError> {
        match value.strip_prefix('#') {
            Some(hex) => Ok(Self { kind, data: unhex(hex)? }),
            None => Ok(Self::new(kind, value)),
        }
    }

    fn of_type(kind: IdType, value: &str) -> Result<Self, IdentityError> {
        if value.starts_with('#') {
            let id = Self::raw_or_hex(kind, value)?;
            let broken_dn = kind == IdType::DER_ASN1_DN && dn::read(&id.data).is_none();
            let why = "its bytes are not DER";
            return if broken_dn { Err(IdentityError::Dn { text: value.to_owned(), why }) } else { Ok(id) };
        }
        if value.starts_with('^') && value.ends_with('$') {
            return Err(IdentityError::Regex(value.to_owned()));
        }
        match kind {
            IdType::DER_ASN1_DN => {
                let wrong = |why| IdentityError::Dn { text: value.to_owned(), why };
                dn::encode(value).map(Self::of_dn).map_err(wrong)
            }
            IdType::IPV4_ADDR
            | IdType::IPV6_ADDR
            | IdType::IPV4_ADDR_SUBNET
            | IdType::IPV6_ADDR_SUBNET
            | IdType::IPV4_ADDR_RANGE
            | IdType::IPV6_ADDR_RANGE => Self::of_addresses(value)
                .filter(|id| id.kind == kind)
                .ok_or_else(|| IdentityError::Address(value.to_owned())),
            _ => Ok(Self::new(kind, value)),
        }
    }

    /// An address, a network or a range.
    fn of_addresses(text: &str) -> Option<Self> {
        let parsed = |text: &str| text.trim().parse::<IpAddr>().ok();
        let pair = |v4, v6, first: IpAddr, second: IpAddr| {
            let kind = if first.is_ipv4() { v4 } else { v6 };
            Self { kind, data: [octets(first), octets(second)].concat() }
        };
        if let Some((addr, prefix)) = text.split_once('/') {
            let net = AddrRange::from_cidr(parsed(addr)?, prefix.parse().ok()?)?;
            // From the network's first to its last address every bit changes that the mask leaves
            // free.
            let mask = match (net.start, net.end) {
                (IpAddr::V4(a), IpAddr::V4(b)) => IpAddr::from(Ipv4Addr::from_bits(!(a.to_bits() ^ b.to_bits()))),
                (IpAddr::V6(a), IpAddr::V6(b)) => IpAddr::from(Ipv6Addr::from_bits(!(a.to_bits() ^ b.to_bits()))),
                _ => return None,
            };
            return Some(pair(IdType::IPV4_ADDR_SUBNET, IdType::IPV6_ADDR_SUBNET, net.start, mask));
        }
        if let Some((start, end)) = text.split_once('-') {
            let range = AddrRange::new(parsed(start)?, parsed(end)?)?;
            return Some(pair(IdType::IPV4_ADDR_RANGE, IdType::IPV6_ADDR_RANGE, range.start, range.end));
        }
        parsed(text).map(Self::of_addr)
    }

    /// The addresses that it means, when it is of one of the six types for that and well formed.
    pub fn addresses(&self) -> Option<AddrRange> {
        let both = || -> Option<(IpAddr, IpAddr)> {
            let (first, second) = self.data.split_at(self.data.len() / 2);
            Some((address(first)?, address(second)?))
        };
        let range = match self.kind {
            IdType::IPV4_ADDR | IdType::IPV6_ADDR => {
                let addr = address(&self.data)?;
                AddrRange::new(addr, addr)
            }
            IdType::IPV4_ADDR_RANGE | IdType::IPV6_ADDR_RANGE => {
                both().and_then(|(start, end)| AddrRange::new(start, end))
            }
            IdType::IPV4_ADDR_SUBNET | IdType::IPV6_ADDR_SUBNET => {
                let (addr, mask) = both()?;
                let prefix = match mask {
                    IpAddr::V4(mask) => mask.to_bits().leading_ones(),
                    IpAddr::V6(mask) => mask.to_bits().leading_ones(),
                };
                let net = AddrRange::from_cidr(addr, prefix as u8)?;
                // A non-contiguous mask is invalid.
                (Self::of_addresses(&format!("{}/{prefix}", net.start))?.data.get(self.data.len() / 2..)
                    == self.data.get(self.data.len() / 2..))
                .then_some(net)
            }
            _ => None,
        }?;
        // The length alone does not decide: ID_IPV4_ADDR with 16 bytes is malformed, not an IPv6
        // address.
        let v6 = matches!(self.kind, IdType::IPV6_ADDR | IdType::IPV6_ADDR_RANGE | IdType::IPV6_ADDR_SUBNET);
        (range.is_v6() == v6).then_some(range)
    }

    /// As it came in an ID payload.
    pub fn of_payload(id: &wire::ike::Id<'_>) -> Self {
        Self::new(id.kind, id.data)
    }

    /// The octets of a user name: a name without its type.
    pub fn as_user_name(&self) -> Vec<u8> {
        match self.kind {
            IdType::FQDN | IdType::RFC822_ADDR | IdType::KEY_ID => self.data.clone(),
            _ => self.to_string().into_bytes(),
        }
    }

    /// The body of its ID payload without generic header, which AUTH and the hashes of IKEv1 cover.
    /// IKEv1 has protocol and port in the three bytes after the type; here they are zero.
    pub fn payload_body(&self) -> Vec<u8> {
        [&[self.kind.0, 0, 0, 0], &self.data[..]].concat()
    }

    /// True when both mean the same: names of domains and mailboxes without regard to case,
    /// distinguished names by X.520, everything else byte by byte.
    pub fn is_same(&self, other: &Self) -> bool {
        if self == other {
            return true;
        }
        // A NUL byte ends the name in some implementations, so a name with one equals only the same
        // bytes.
        let same_name = |a: &[u8], b: &[u8]| !a.contains(&0) && a.eq_ignore_ascii_case(b);
        self.kind == other.kind
            && match self.kind {
                IdType::FQDN | IdType::RFC822_ADDR => same_name(&self.data, &other.data),
                IdType::DER_ASN1_DN => dn::matches(&self.data, &other.data, false).is_some(),
                _ => false,
            }
    }
}

fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Bytes of pairs of digits, which may be separated by colons.
fn unhex(text: &str) -> Result<Vec<u8>, IdentityError> {
    let wrong = || IdentityError::Hex(text.to_owned());
    let digits: Vec<char> = text.chars().filter(|c| *c != ':').collect();
    let digit = |c: char| c.to_digit(16).map(|digit| digit as u8).ok_or_else(wrong);
    if digits.is_empty() || digits.len() % 2 == 1 {
        return Err(wrong());
    }
    digits.chunks_exact(2).map(|pair| Ok(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// Writes text of a peer: at most this many characters, and no control characters, because a peer
/// must not be able to forge log lines.
fn printable(f: &mut impl fmt::Write, bytes: &[u8]) -> fmt::Result {
    const SHOWN_MAX: usize = 512;
    let text = String::from_utf8_lossy(bytes);
    let shown = text.chars().take(SHOWN_MAX);
    for c in shown.map(|c| if c.is_control() || c == char::REPLACEMENT_CHARACTER { '?' } else { c }) {
        f.write_char(c)?;
    }
    if text.chars().nth(SHOWN_MAX).is_some() { f.write_char('…') } else { Ok(()) }
}

/// Writes bytes as `0a:1b`.
fn hex(f: &mut impl fmt::Write, bytes: &[u8]) -> fmt::Result {
    const SHOWN_MAX: usize = 64;
    for (i, byte) in bytes.iter().take(SHOWN_MAX).enumerate() {
        write!(f, "{}{byte:02x}", if i == 0 { "" } else { ":" })?;
    }
    if bytes.len() > SHOWN_MAX { f.write_char('…') } else { Ok(()) }
}

impl fmt::Display for Identity {
    /// As strongSwan prints it: without prefix; unprintable characters as `?`, binary data in
    /// hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(range) = self.addresses() {
            return match self.kind {
                IdType::IPV4_ADDR | IdType::IPV6_ADDR => write!(f, "{}", range.start),
                IdType::IPV4_ADDR_RANGE | IdType::IPV6_ADDR_RANGE => write!(f, "{}-{}", range.start, range.end),
                _ => write!(f, "{}/{}", range.start, range.prefix().unwrap_or(0)),
            };
        }
        let is_text = || std::str::from_utf8(&self.data).is_ok_and(|text| !text.chars().any(char::is_control));
        match self.kind {
            IdType::FQDN | IdType::RFC822_ADDR => printable(f, &self.data),
            IdType::DER_ASN1_DN => match dn::read(&self.data) {
                Some(rdns) => dn::print(f, &rdns),
                None => f.write_str("(invalid distinguished name)"),
            },
            IdType::KEY_ID if is_text() => printable(f, &self.data),
            IdType::KEY_ID => hex(f, &self.data),
            kind => {
                write!(f, "({kind} ")?;
                hex(f, &self.data)?;
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for IdPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("%any"),
            Self::Like(identity) => identity.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(text: &str) -> Identity {
        Identity::parse(text).expect("a good identity")
    }

    fn kind(text: &str) -> (IdType, String) {
        let id = id(text);
        (id.kind, String::from_utf8_lossy(&id.data).into_owned())
    }

    #[test]
    fn the_form_decides_the_type() {
        for (text, want, data) in [
            ("moon.example.org", IdType::FQDN, "moon.example.org"),
            ("@moon.example.org", IdType::FQDN, "moon.example.org"),
            ("moon@example.org", IdType::RFC822_ADDR, "moon@example.org"),
            ("@@moon@example.org", IdType::RFC822_ADDR, "moon@example.org"),
            ("@#6d6f:6f6e", IdType::KEY_ID, "moon"),
            ("not:an:address", IdType::KEY_ID, "not:an:address"),
            ("fqdn:moon", IdType::FQDN, "moon"),
            ("DNS:moon", IdType::FQDN, "moon"),
            ("email:moon", IdType::RFC822_ADDR, "moon"),
            ("keyid:moon", IdType::KEY_ID, "moon"),
            ("keyid:#6d6f", IdType::KEY_ID, "mo"),
            ("{2}:moon", IdType::FQDN, "moon"),
            ("{11}:#6d", IdType::KEY_ID, "m"),
            ("C=CH, nonsense=x", IdType::KEY_ID, "C=CH, nonsense=x"),
            ("*.example.org", IdType::FQDN, "*.example.org"),
            ("10.1.2.300", IdType::FQDN, "10.1.2.300"),
            ("a-b.example", IdType::FQDN, "a-b.example"),
        ] {
            assert_eq!(kind(text), (want, data.to_owned()), "{text}");
        }
        assert_eq!(id("10.1.2.3"), Identity { kind: IdType::IPV4_ADDR, data: vec![10, 1, 2, 3] });
        assert_eq!(id("fd00::1").kind, IdType::IPV6_ADDR);
        assert_eq!(id("10.1.2.3/24").data, [10, 1, 2, 0, 255, 255, 255, 0]);
        assert_eq!(id("fd00::1/64").kind, IdType::IPV6_ADDR_SUBNET);
        assert_eq!(id("10.0.0.1-10.0.0.9").data, [10, 0, 0, 1, 10, 0, 0, 9]);
        assert_eq!(id("asn1dn:CN=moon"), id("CN=moon"));
        assert_eq!(id("asn1dn:#300f310d300b06035504030c046d6f6f6e").to_string(), "CN=moon");
    }

    #[test]
    fn what_is_no_identity_is_refused_with_a_reason() {
        for any in ["", "%any", "*", "::", "0.0.0.0", " %any "] {
            assert!(matches!(Identity::parse(any), Err(IdentityError::Any(_))), "{any}");
        }
        for hex in ["@#", "@#6", "@#zz", "keyid:#6d6"] {
            assert!(matches!(Identity::parse(hex), Err(IdentityError::Hex(_))), "{hex}");
        }
        assert!(matches!(Identity::parse("ipv4:fd00::1"), Err(IdentityError::Address(_))));
        assert!(matches!(Identity::parse("ipv4:10.0.0.0/8"), Err(IdentityError::Address(_))));
        assert!(matches!(Identity::parse("asn1dn:moon"), Err(IdentityError::Dn { .. })));
        assert!(matches!(Identity::parse("asn1dn:#3001"), Err(IdentityError::Dn { .. })));
        assert!(matches!(Identity::parse(r"fqdn:^.*\.example$"), Err(IdentityError::Regex(_))));
        assert_eq!(Identity::parse(&"x".repeat(3000)), Err(IdentityError::TooLong(3000)));
    }

    #[test]
    fn it_prints_as_it_was_written() {
        for text in [
            "moon.example.org",
            "moon@example.org",
            "10.1.2.3",
            "fd00::1",
            "10.1.2.0/24",
            "fd00::/64",
            "10.0.0.1-10.0.0.9",
            "C=CH, O=Example Lab, CN=moon.example.org",
            "E=moon@example.org, DC=example",
            "CN=Zürich",
            "1.2.840.113549=x",
            r"O=Moon\, Inc., CN=a\\b",
        ] {
            assert_eq!(id(text).to_string(), text);
            assert_eq!(id(&id(text).to_string()), id(text));
        }
        assert_eq!(id("/C=CH/O=Lab, Inc./CN=x").to_string(), r"C=CH, O=Lab\, Inc., CN=x");
        assert_eq!(id("@#00ff").to_string(), "00:ff");
    }

    #[test]
    fn what_a_peer_sends_is_printed_on_one_line() {
        let of = |kind, data: &[u8]| Identity { kind, data: data.to_vec() }.to_string();
        assert_eq!(of(IdType::FQDN, b"a\nb\0c\xff"), "a?b?c?");
        assert_eq!(of(IdType::IPV4_ADDR, b"abc"), "(IPV4_ADDR 61:62:63)");
        assert_eq!(of(IdType::IPV4_ADDR, &[0; 16]), format!("(IPV4_ADDR {})", ["00"; 16].join(":")));
        assert_eq!(
            of(IdType::IPV4_ADDR_SUBNET, &[10, 0, 0, 0, 255, 0, 255, 0]),
            "(IPV4_ADDR_SUBNET 0a:00:00:00:ff:00:ff:00)"
        );
        assert_eq!(of(IdType::DER_ASN1_DN, &[0x30, 0x05]), "(invalid distinguished name)");
        assert_eq!(of(IdType(77), &[]), "(identity type 77 )");
        assert!(of(IdType::FQDN, &[b'x'; 60_000]).len() < 600);
        assert!(of(IdType::KEY_ID, &[0; 60_000]).len() < 600);
    }

    #[test]
    fn case_matters_where_it_does() {
        assert!(id("Moon.Example").is_same(&id("moon.example")));
        assert!(id("A@example.org").is_same(&id("a@EXAMPLE.org")));
        assert!(!id("keyid:moon").is_same(&id("keyid:Moon")));
        assert!(!id("keyid:moon").is_same(&id("fqdn:moon")));
        // An embedded zero byte is an attempt to imitate another identity.
        let zero = |text: &[u8]| Identity { kind: IdType::FQDN, data: text.to_vec() };
        assert!(!zero(b"moon\0A").is_same(&zero(b"moon\0a")));
        assert!(!zero(b"moon\0").is_same(&zero(b"moon")));
    }

    #[test]
    fn the_payload_leads_back() {
        let body = id("moon.example").payload_body();
        assert_eq!(Identity::of_payload(&wire::ike::Id::parse(&body).expect("an ID payload")), id("moon.example"));
    }

    proptest! {
        #[test]
        fn nothing_that_arrives_panics(kind in 0u8..15, data in proptest::collection::vec(any::<u8>(), 0..40)) {
            let one = Identity { kind: IdType(kind), data };
            prop_assert!(!one.to_string().contains('\n'));
            prop_assert!(one.is_same(&one));
            let _ = IdPattern::Like(one.clone()).matches(&id("C=CH, CN=*"));
            let _ = IdPattern::Like(id("C=CH, CN=*")).matches(&one);
        }

        #[test]
        fn nothing_that_is_written_panics(text in "\\PC{0,30}|(C=|CN=|[*,/\\\\= @#:a-f0-9]){0,20}") {
            if let Ok(id) = Identity::parse(&text) {
                let _ = id.to_string();
            }
        }
    }
}
