//! Distinguished names (X.501): text to DER, DER to text, and comparison by X.520.

use std::fmt::{self, Write};

use super::{hex, printable};

const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

/// Most relative distinguished names of a name, and most attributes of each: a bound on the work
/// that a peer can cause.
const PARTS_MAX: usize = 32;

/// Names of attribute types and the contents of their object identifiers. The first name of a type
/// is printed, all are accepted.
const TYPES: &[(&str, &[u8])] = &[
    ("CN", &[0x55, 4, 0x03]),
    ("SN", &[0x55, 4, 0x04]),
    ("serialNumber", &[0x55, 4, 0x05]),
    ("C", &[0x55, 4, 0x06]),
    ("L", &[0x55, 4, 0x07]),
    ("ST", &[0x55, 4, 0x08]),
    ("STREET", &[0x55, 4, 0x09]),
    ("O", &[0x55, 4, 0x0a]),
    ("OU", &[0x55, 4, 0x0b]),
    ("T", &[0x55, 4, 0x0c]),
    ("D", &[0x55, 4, 0x0d]),
    ("postalAddress", &[0x55, 4, 0x10]),
    ("postalCode", &[0x55, 4, 0x11]),
    ("N", &[0x55, 4, 0x29]),
    ("G", &[0x55, 4, 0x2a]),
    ("I", &[0x55, 4, 0x2b]),
    ("ID", &[0x55, 4, 0x2d]),
    ("dnQualifier", &[0x55, 4, 0x2e]),
    ("dmdName", &[0x55, 4, 0x36]),
    ("pseudonym", &[0x55, 4, 0x41]),
    ("organizationIdentifier", &[0x55, 4, 0x61]),
    ("E", EMAIL),
    ("Email", EMAIL),
    ("emailAddress", EMAIL),
    ("UN", &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 2]),
    ("unstructuredName", &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 2]),
    ("UA", &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 8]),
    ("unstructuredAddress", &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 8]),
    ("EN", &[0x60, 0x86, 0x48, 1, 0x86, 0xf8, 0x42, 3, 1, 3]),
    ("employeeNumber", &[0x60, 0x86, 0x48, 1, 0x86, 0xf8, 0x42, 3, 1, 3]),
    ("UID", &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1]),
    ("DC", DC),
];

const EMAIL: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1];
const DC: &[u8] = &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25];

/// One attribute of a name.
#[derive(Clone, Copy)]
pub(super) struct Attribute<'a> {
    oid: &'a [u8],
    tag: u8,
    value: &'a [u8],
}

/// A name: sets of attributes, nearly always of one each.
pub(super) type Rdns<'a> = Vec<Vec<Attribute<'a>>>;

/// Splits a DER element off: tag, contents, rest.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 => {
            let (&len, rest) = rest.split_first()?;
            (usize::from(len), rest)
        }
        0x82 => {
            let (len, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*len)), rest)
        }
        // Longer than an ID payload can be, or of indefinite length, which DER does not permit.
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(len)?;
    Some((tag, contents, rest))
}

/// Returns the contents of an element with this tag, which must be the last one.
fn only(tag: u8, bytes: &[u8]) -> Option<&[u8]> {
    element(bytes).filter(|(found, _, rest)| *found == tag && rest.is_empty()).map(|(_, contents, _)| contents)
}

/// Reads a name; `None` if the bytes are not exactly one name.
pub(super) fn read(der: &[u8]) -> Option<Rdns<'_>> {
    let mut rdns = Vec::new();
    let mut rest = only(SEQUENCE, der)?;
    while !rest.is_empty() {
        let (tag, set, after) = element(rest)?;
        if tag != SET || rdns.len() == PARTS_MAX {
            return None;
        }
        rdns.push(read_set(set)?);
        rest = after;
    }
    Some(rdns)
}

fn read_set(mut set: &[u8]) -> Option<Vec<Attribute<'_>>> {
    let mut attributes = Vec::new();
    while !set.is_empty() {
        let (tag, pair, after) = element(set)?;
        let (oid_tag, oid, value) = element(pair)?;
        let (value_tag, value, end) = element(value)?;
        if tag != SEQUENCE || oid_tag != OBJECT_IDENTIFIER || !end.is_empty() || attributes.len() == PARTS_MAX {
            return None;
        }
        attributes.push(Attribute { oid, tag: value_tag, value });
        set = after;
    }
    (!attributes.is_empty()).then_some(attributes)
}

/// Compares two names attribute by attribute, in their order. Returns the number of values in
/// `pattern` that matched as the wildcard `*`, which exists only with `wildcards`; fewer mean a
/// closer match. `None` if the names differ.
pub(super) fn matches(pattern: &[u8], name: &[u8], wildcards: bool) -> Option<usize> {
    let (pattern, name) = (read(pattern)?, read(name)?);
    let mut free = 0;
    if pattern.len() != name.len() {
        return None;
    }
    for (set, other) in pattern.iter().zip(&name) {
        if set.len() != other.len() {
            return None;
        }
        // By position, because DER sorts the attributes of a set.
        for (want, have) in set.iter().zip(other) {
            let any = wildcards && want.value == b"*";
            if want.oid != have.oid || !(any || same_value(want, have)) {
                return None;
            }
            free += usize::from(any);
        }
    }
    Some(free)
}

pub(super) fn has_wildcard(rdns: &Rdns<'_>) -> bool {
    rdns.iter().flatten().any(|attribute| attribute.value == b"*")
}

/// Compares by caseIgnoreMatch of X.520 for the string types of certificates, and otherwise byte by
/// byte. Only ASCII letters are folded.
fn same_value(a: &Attribute<'_>, b: &Attribute<'_>) -> bool {
    match (folded(a), folded(b)) {
        (Some(a), Some(b)) => a == b,
        _ => a.tag == b.tag && a.value == b.value,
    }
}

/// Text in lower case without leading and trailing spaces, inner runs reduced to one; `None` for
/// other types, and for text with a NUL, which another program might take for its end.
fn folded(attribute: &Attribute<'_>) -> Option<String> {
    let is_text = matches!(attribute.tag, UTF8_STRING | PRINTABLE_STRING | IA5_STRING);
    let text = std::str::from_utf8(attribute.value).ok().filter(|text| is_text && !text.contains('\0'))?;
    let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
    Some(words.join(" ").to_ascii_lowercase())
}

/// Writes a name as `C=CH, O=Lab, CN=moon`.
pub(super) fn print(f: &mut fmt::Formatter<'_>, rdns: &Rdns<'_>) -> fmt::Result {
    for (i, set) in rdns.iter().enumerate() {
        for (j, attribute) in set.iter().enumerate() {
            f.write_str(match (i, j) {
                (0, 0) => "",
                (_, 0) => ", ",
                _ => " + ",
            })?;
            print_type(f, attribute.oid)?;
            print_value(f, attribute)?;
        }
    }
    Ok(())
}

fn print_type(f: &mut fmt::Formatter<'_>, oid: &[u8]) -> fmt::Result {
    match (TYPES.iter().find(|(_, known)| *known == oid), dotted(oid)) {
        (Some((name, _)), _) => write!(f, "{name}="),
        (None, Some(text)) => write!(f, "{text}="),
        (None, None) => {
            hex(f, oid)?;
            f.write_char('=')
        }
    }
}

/// Returns the value with special characters escaped by a backslash.
fn print_value(f: &mut fmt::Formatter<'_>, attribute: &Attribute<'_>) -> fmt::Result {
    let mut text = String::new();
    printable(&mut text, attribute.value)?;
    for c in text.chars() {
        if matches!(c, ',' | '\\') {
            f.write_char('\\')?;
        }
        f.write_char(c)?;
    }
    Ok(())
}

/// `1.2.840…` of the contents of an object identifier.
fn dotted(oid: &[u8]) -> Option<String> {
    let mut arcs: Vec<u32> = Vec::new();
    let mut arc = 0u32;
    for byte in oid {
        arc = arc.checked_mul(128)?.checked_add(u32::from(byte & 0x7f))?;
        if byte & 0x80 == 0 {
            arcs.push(std::mem::take(&mut arc));
        }
    }
    let first = *arcs.first()?;
    if oid.last()? & 0x80 != 0 || oid.len() > 32 {
        return None;
    }
    // The first two arcs share one number, 40 * root + second. Only root 2 permits a second arc
    // above 39 (X.690).
    let root = (first / 40).min(2);
    let mut text = format!("{root}.{}", first - root * 40);
    arcs[1..].iter().for_each(|arc| write!(text, ".{arc}").expect("text takes text"));
    Some(text)
}

/// The contents of an object identifier, from its dotted form.
fn undotted(text: &str) -> Option<Vec<u8>> {
    let arcs: Vec<u32> = text.split('.').map(|arc| arc.parse().ok()).collect::<Option<_>>()?;
    let (&[root, second], rest) = arcs.split_first_chunk()?;
    if root > 2 || (root < 2 && second > 39) {
        return None;
    }
    let mut oid = Vec::new();
    base_128(second.checked_add(root * 40)?, &mut oid);
    rest.iter().for_each(|arc| base_128(*arc, &mut oid));
    Some(oid)
}

fn base_128(arc: u32, out: &mut Vec<u8>) {
    let digits = (1..5).take_while(|digit| arc >> (7 * digit) != 0).count();
    (1..=digits).rev().for_each(|digit| out.push((arc >> (7 * digit)) as u8 | 0x80));
    out.push(arc as u8 & 0x7f);
}

/// The DER of a name in text: `C=CH, O=Lab, CN=moon`, or `/C=CH/O=Lab/CN=moon`. A backslash escapes
/// a separator. The error states the reason.
pub(super) fn encode(text: &str) -> Result<Vec<u8>, &'static str> {
    let (separator, text) = text.strip_prefix('/').map_or((',', text), |rest| ('/', rest));
    let parts = split(text, separator);
    if parts.len() > PARTS_MAX {
        return Err("it has too many parts");
    }
    let mut rdns = Vec::new();
    for part in parts {
        rdns.extend(encode_rdn(&part)?);
    }
    if rdns.is_empty() { Err("it is empty") } else { Ok(wrap(SEQUENCE, &rdns)) }
}

/// Parts between separators, without escaping backslashes. A separator at the end is optional.
fn split(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let last = parts.last_mut().expect("there is always one");
        match c {
            '\\' => last.push(chars.next_if(|next| *next == separator || *next == '\\').unwrap_or('\\')),
            _ if c == separator => parts.push(String::new()),
            _ => last.push(c),
        }
    }
    if parts.last().is_some_and(|last| last.trim().is_empty()) {
        parts.pop();
    }
    parts
}

fn encode_rdn(part: &str) -> Result<Vec<u8>, &'static str> {
    let (name, value) = part.split_once('=').ok_or("a part has no '='")?;
    let (name, value) = (name.trim(), value.trim_matches(' '));
    let known = TYPES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, oid)| oid.to_vec());
    let oid = known.or_else(|| undotted(name)).ok_or("the type of an attribute is not known")?;
    // The string types that certificates use (RFC 5280): some peers compare names byte by byte.
    let tag = if value.is_ascii() && (oid == EMAIL || oid == DC) {
        IA5_STRING
    } else if value.bytes().all(is_printable_string) {
        PRINTABLE_STRING
    } else {
        UTF8_STRING
    };
    let pair = [wrap(OBJECT_IDENTIFIER, &oid), wrap(tag, value.as_bytes())].concat();
    Ok(wrap(SET, &wrap(SEQUENCE, &pair)))
}

fn is_printable_string(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&byte)
}

/// Encodes an element. Its contents are below 64 KiB, because the text of a configuration is.
fn wrap(tag: u8, contents: &[u8]) -> Vec<u8> {
    let [high, low] = (contents.len() as u16).to_be_bytes();
    let head = match contents.len() {
        0..=0x7f => vec![tag, low],
        0x80..=0xff => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    [&head, contents].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: &[u8], b: &[u8]) -> bool {
        matches(a, b, false).is_some()
    }

    fn cn(tag: u8, value: &[u8]) -> Vec<u8> {
        let pair = [wrap(OBJECT_IDENTIFIER, &[0x55, 4, 3]), wrap(tag, value)].concat();
        wrap(SEQUENCE, &wrap(SET, &wrap(SEQUENCE, &pair)))
    }

    #[test]
    fn a_name_is_encoded_as_certificates_have_it() {
        let want = [
            &[0x30, 0x1e, 0x31, 0x0b, 0x30, 0x09, 0x06, 0x03, 0x55, 0x04, 0x06, 0x13, 0x02][..],
            b"CH",
            &[0x31, 0x0f, 0x30, 0x0d, 0x06, 0x03, 0x55, 0x04, 0x03, 0x0c, 0x06],
            b"moon_1",
        ];
        assert_eq!(encode("C=CH, CN=moon_1"), Ok(want.concat()));
        assert_eq!(encode("c = CH , cn=moon_1,"), Ok(want.concat()));
        assert_eq!(encode("/C=CH/CN=moon_1"), Ok(want.concat()));
        let long = encode(&format!("CN={}", "x".repeat(300))).expect("a name");
        assert_eq!(read(&long).map(|rdns| rdns[0][0].value.len()), Some(300));
        for wrong in ["", ",", "CN", "CN=a,,O=b", "XX=a", "3.1=a", "1.40=a", "1=a"] {
            assert!(encode(wrong).is_err(), "{wrong}");
        }
        assert!(encode(&"CN=x,".repeat(33)).is_err());
    }

    #[test]
    fn case_and_spaces_do_not_count_in_text() {
        assert!(same(&cn(PRINTABLE_STRING, b"Moon  Lab "), &cn(PRINTABLE_STRING, b"moon lab")));
        assert!(same(&cn(PRINTABLE_STRING, b"moon"), &cn(UTF8_STRING, b"Moon")));
        assert!(!same(&cn(UTF8_STRING, "é".as_bytes()), &cn(UTF8_STRING, "É".as_bytes())));
        // An octet string, a BMP string: bytes.
        assert!(!same(&cn(0x04, b"Moon"), &cn(0x04, b"moon")));
        assert!(!same(&cn(0x1e, b"moon"), &cn(UTF8_STRING, b"moon")));
        assert!(same(&cn(0x1e, b"\0m"), &cn(0x1e, b"\0m")));
    }

    /// Names that were taken for others in daemons of the past.
    #[test]
    fn what_differs_anywhere_is_another_name() {
        let good = cn(UTF8_STRING, b"moon");
        assert!(same(&good, &good));
        assert!(!same(&good, &cn(UTF8_STRING, b"moon\0.evil")));
        assert!(!same(&good, &cn(UTF8_STRING, b"moo")));
        assert!(!same(&good, &cn(UTF8_STRING, b"moons")));
        assert!(!same(&good, &cn(UTF8_STRING, b"")));
        // Type with the same beginning.
        let mut other = good.clone();
        other[10] = 4;
        assert!(!same(&good, &other));
        // Something after the name, in the name, in the set.
        assert!(!same(&good, &[&good[..], &[0]].concat()));
        let twice = [&good[2..], &good[2..]].concat();
        assert!(!same(&good, &wrap(SEQUENCE, &twice)));
        let both = [&good[4..], &good[4..]].concat();
        assert!(!same(&wrap(SEQUENCE, &wrap(SET, &both)), &wrap(SEQUENCE, &twice)));
        // An attribute more or less in a set.
        let more = wrap(SEQUENCE, &wrap(SET, &both));
        assert!(same(&more, &more) && !same(&good, &more) && !same(&more, &good));
        // A wildcard of the peer is a text like any other.
        assert!(!same(&good, &cn(UTF8_STRING, b"*")));
        assert_eq!(matches(&good, &cn(UTF8_STRING, b"*"), true), None);
    }

    #[test]
    fn lengths_are_held_against_what_is_there() {
        let good = cn(UTF8_STRING, b"moon");
        for at in 0..good.len() {
            assert!(read(&good[..at]).is_none(), "cut at {at}");
        }
        for at in [1, 3, 5, 7, 12] {
            for len in [0x00, 0x03, 0x0f, 0x7f, 0x80, 0x81, 0x82, 0x83, 0x84, 0xff] {
                let mut bad = good.clone();
                if bad[at] != len {
                    bad[at] = len;
                    assert!(read(&bad).is_none(), "length {len:#x} at {at}");
                }
            }
        }
        assert!(read(&wrap(SEQUENCE, &wrap(SET, &[]))).is_none());
        assert!(read(&wrap(SEQUENCE, &good[2..].repeat(PARTS_MAX + 1))).is_none());
        assert!(read(&wrap(SEQUENCE, &good[2..].repeat(PARTS_MAX))).is_some());
    }

    #[test]
    fn object_identifiers_lead_back() {
        for text in ["2.5.4.3", "1.2.840.113549.1.9.1", "0.9.2342.19200300.100.1.25", "2.999.4294967295", "1.39"] {
            assert_eq!(undotted(text).and_then(|oid| dotted(&oid)).as_deref(), Some(text));
        }
        assert_eq!(undotted("1.2.840.113549.1.9.1").as_deref(), Some(EMAIL));
        assert_eq!(dotted(&[0x80]), None);
        assert_eq!(dotted(&[0xff; 6]), None);
        assert_eq!(dotted(&[]), None);
    }
}
