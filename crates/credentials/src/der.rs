//! The little DER that is read by hand: to keep the very bytes that were signed, and for wrappings
//! that are only looked through.

/// Reads elements one after the other. Lengths are definite and shortest, as DER has them, and end
/// within the input: nothing here grows or panics on any input.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(&'a [u8]);

/// One element.
#[derive(Clone, Copy)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) body: &'a [u8],
    /// With tag and length.
    pub(super) whole: &'a [u8],
}

pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const NULL: u8 = 0x05;
pub(super) const OID: u8 = 0x06;
pub(super) const BMP_STRING: u8 = 0x1e;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;

/// The tag of a constructed context-specific element.
pub(super) const fn context(number: u8) -> u8 {
    0xa0 | number
}

/// The tag of a primitive context-specific element.
pub(super) const fn primitive(number: u8) -> u8 {
    0x80 | number
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tag of the element that follows.
    pub(super) fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The next element, whatever it is. Tags above 30 do not occur in the parsed structures.
    pub(super) fn any(&mut self) -> Option<Element<'a>> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (len, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (octets, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let len = octets.iter().fold(0, |len, octet| len << 8 | usize::from(*octet));
                let shortest = octets[0] != 0 && len > 0x7f;
                (Some(len).filter(|_| shortest)?, rest)
            }
            _ => return None,
        };
        let (body, after) = rest.split_at_checked(len)?;
        let whole = &self.0[..self.0.len() - after.len()];
        self.0 = after;
        (tag & 0x1f != 0x1f).then_some(Element { tag, body, whole })
    }

    /// The next element, which has this tag.
    pub(super) fn one(&mut self, tag: u8) -> Option<Element<'a>> {
        self.any().filter(|element| element.tag == tag)
    }

    /// Contents of the next element, which must have this tag.
    pub(super) fn inside(&mut self, tag: u8) -> Option<Self> {
        self.one(tag).map(|element| Self(element.body))
    }

    /// The next element if it has this tag.
    pub(super) fn optional(&mut self, tag: u8) -> Option<Element<'a>> {
        if self.peek() == Some(tag) { self.any() } else { None }
    }

    /// A non-negative INTEGER of at most 32 bits.
    pub(super) fn number(&mut self) -> Option<u32> {
        let body = self.one(INTEGER)?.body;
        let digits = body.strip_prefix(&[0]).unwrap_or(body);
        let fits = !body.is_empty() && body[0] < 0x80 && digits.len() <= 4;
        fits.then(|| digits.iter().fold(0, |number, digit| number << 8 | u32::from(*digit)))
    }
}

/// Returns whether `bytes` are one SEQUENCE without trailing data.
pub(super) fn is_one_sequence(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(bytes);
    reader.one(SEQUENCE).is_some() && reader.is_empty()
}

/// A non-negative INTEGER.
pub(super) fn integer(number: u32) -> Vec<u8> {
    let bytes = number.to_be_bytes();
    let zeros = bytes.iter().take(3).take_while(|byte| **byte == 0).count();
    let sign: &[u8] = if bytes[zeros] >= 0x80 { &[0] } else { &[] };
    element(INTEGER, &[sign, &bytes[zeros..]])
}

/// An element of less than 16 MiB.
pub(super) fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let header: Vec<u8> = match body.len() {
        len @ 0..=0x7f => vec![tag, len as u8],
        len @ 0x80..=0xff => vec![tag, 0x81, len as u8],
        len @ 0x100..=0xffff => vec![tag, 0x82, (len >> 8) as u8, len as u8],
        len => vec![tag, 0x83, (len >> 16) as u8, (len >> 8) as u8, len as u8],
    };
    [header, body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_lead_back_and_bad_lengths_do_not() {
        for len in [0usize, 1, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x1_0000, 0x12_3456] {
            let made = element(SEQUENCE, &[&vec![7; len]]);
            assert!(is_one_sequence(&made), "{len}");
            let read = Reader::new(&made).any().expect("an element");
            assert_eq!((read.tag, read.body.len(), read.whole.len()), (SEQUENCE, len, made.len()));
            assert!(!is_one_sequence(&made[..made.len() - 1]) && !is_one_sequence(&[&made[..], &[0]].concat()));
        }
        // Indefinite, longer than needed, more than there is, a long tag.
        for bad in [&[0x30, 0x80, 0, 0][..], &[0x30, 0x81, 1, 0], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], &[0x3f, 0]] {
            assert!(Reader::new(bad).any().is_none());
        }
        for number in [0, 1, 127, 128, 255, 256, 50_000, 1 << 31, u32::MAX] {
            assert_eq!(Reader::new(&integer(number)).number(), Some(number));
        }
        assert_eq!(Reader::new(&[2, 2, 1, 0]).number(), Some(256));
        assert_eq!(Reader::new(&[2, 5, 0, 255, 255, 255, 255]).number(), Some(u32::MAX));
        assert_eq!(Reader::new(&[2, 1, 0x80]).number(), None);
        assert_eq!(Reader::new(&[2, 5, 1, 0, 0, 0, 0]).number(), None);
    }
}
