//! Data attributes (RFC 2408 §3.3, RFC 7296 §3.3.5): a type with a short value in place, or with a
//! length and as many bytes. Transforms of both versions and Mode Config are made of them.

use crate::ParseError;

/// Maximum number of attributes of one transform or configuration payload; more are an error.
pub const MAX_ATTRIBUTES: usize = 256;

/// The Attribute Format bit: the value is in place.
const SHORT: u16 = 0x8000;

/// Value of an attribute.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttributeValue<'a> {
    /// Two bytes in place of the length.
    Short(u16),
    /// Bytes after the length, at most 65535.
    Long(&'a [u8]),
}

/// One attribute.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Attribute<'a> {
    /// Type, 15 bits, without the bit for the format.
    pub kind: u16,
    /// Value.
    pub value: AttributeValue<'a>,
}

impl<'a> Attribute<'a> {
    /// An attribute with a value in place.
    pub const fn short(kind: u16, value: u16) -> Self {
        Self { kind, value: AttributeValue::Short(value) }
    }

    /// An attribute with `value` after its length.
    pub const fn long(kind: u16, value: &'a [u8]) -> Self {
        Self { kind, value: AttributeValue::Long(value) }
    }

    /// The value as a number, in either format; `None` above 64 bits and for an empty value.
    pub fn number(&self) -> Option<u64> {
        match self.value {
            AttributeValue::Short(value) => Some(value.into()),
            AttributeValue::Long([]) => None,
            AttributeValue::Long(bytes) => {
                // Leading zeros are valid: some peers send lifetimes with a fixed length.
                let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
                let significant = &bytes[zeros..];
                (significant.len() <= 8)
                    .then(|| significant.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
            }
        }
    }

    /// The bytes after the length; `None` for a value in place.
    pub const fn bytes(&self) -> Option<&'a [u8]> {
        match self.value {
            AttributeValue::Long(bytes) => Some(bytes),
            AttributeValue::Short(_) => None,
        }
    }

    /// Appends the attribute. A value above 65535 bytes is truncated; the payload around it is then
    /// too long as well and is omitted.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match self.value {
            AttributeValue::Short(value) => {
                out.extend((self.kind | SHORT).to_be_bytes());
                out.extend(value.to_be_bytes());
            }
            AttributeValue::Long(bytes) => emit_long(self.kind & !SHORT, bytes, out),
        }
    }
}

/// Appends type, length and value.
pub(super) fn emit_long(kind: u16, bytes: &[u8], out: &mut Vec<u8>) {
    let bytes = &bytes[..bytes.len().min(usize::from(u16::MAX))];
    out.extend(kind.to_be_bytes());
    out.extend((bytes.len() as u16).to_be_bytes());
    out.extend(bytes);
}

/// Reads attributes one after the other; ends after the first error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Attributes<'a> {
    rest: &'a [u8],
    left: usize,
    /// True if every attribute has a length, regardless of the first bit (RFC 7296 §3.15.1).
    always_long: bool,
}

impl<'a> Attributes<'a> {
    /// The attributes in `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, left: MAX_ATTRIBUTES, always_long: false }
    }

    pub(super) const fn always_long(bytes: &'a [u8]) -> Self {
        Self { always_long: true, ..Self::new(bytes) }
    }

    fn read(&mut self) -> Result<Attribute<'a>, ParseError> {
        const WHAT: &str = "IKE attribute";
        let have = self.rest.len();
        let truncated = |need| ParseError::Truncated { what: WHAT, need, have };
        let ([k0, k1, v0, v1], rest) = self.rest.split_first_chunk().ok_or(truncated(4))?;
        self.left = self.left.checked_sub(1).ok_or(ParseError::Malformed { what: WHAT, why: "too many" })?;
        let (kind, value) = (u16::from_be_bytes([*k0, *k1]), u16::from_be_bytes([*v0, *v1]));
        // The format bit decides about the layout and is not part of the type.
        if kind & SHORT != 0 && !self.always_long {
            self.rest = rest;
            return Ok(Attribute::short(kind & !SHORT, value));
        }
        let (bytes, rest) = rest.split_at_checked(value.into()).ok_or(truncated(4 + usize::from(value)))?;
        self.rest = rest;
        Ok(Attribute::long(kind & !SHORT, bytes))
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            // After an error the start of the next attribute is unknown.
            self.rest = &[];
        }
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_formats_are_numbers() {
        // Key length 256 as RFC 7296 §3.3.5 has it; a life duration of 86400 s in four bytes.
        let bytes = [0x80, 14, 1, 0, 0, 12, 0, 4, 0, 1, 0x51, 0x80];
        let read: Vec<_> = Attributes::new(&bytes).map(Result::unwrap).collect();
        assert_eq!(read, [Attribute::short(14, 256), Attribute::long(12, &[0, 1, 0x51, 0x80])]);
        assert_eq!((read[0].number(), read[1].number()), (Some(256), Some(86_400)));
        assert_eq!(Attribute::long(1, &[]).number(), None);
        assert_eq!(Attribute::long(1, &[0; 20]).number(), Some(0));
        assert_eq!(Attribute::long(1, &[1; 9]).number(), None);
        for len in (1..bytes.len()).filter(|len| *len != 4) {
            let last = Attributes::new(&bytes[..len]).last().expect("an item");
            assert!(matches!(last, Err(ParseError::Truncated { .. })), "{len}");
        }
    }

    #[test]
    fn reading_stops_at_the_bound() {
        let bytes = [0x80, 1, 0, 0].repeat(MAX_ATTRIBUTES + 9);
        assert_eq!(Attributes::new(&bytes).count(), MAX_ATTRIBUTES + 1);
        assert!(Attributes::new(&bytes).last().unwrap().is_err());
    }

    proptest! {
        #[test]
        fn what_was_emitted_is_read(
            attributes in prop::collection::vec(
                (0u16..0x8000, prop::option::of(prop::collection::vec(any::<u8>(), 0..9)), any::<u16>()), 0..9),
        ) {
            let attributes: Vec<_> = attributes
                .iter()
                .map(|(kind, long, short)| match long {
                    Some(bytes) => Attribute::long(*kind, bytes),
                    None => Attribute::short(*kind, *short),
                })
                .collect();
            let mut out = Vec::new();
            attributes.iter().for_each(|attribute| attribute.emit(&mut out));
            prop_assert_eq!(Attributes::new(&out).collect::<Result<Vec<_>, _>>(), Ok(attributes));
        }
    }
}
