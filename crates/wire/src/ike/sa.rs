//! Security Association payload: proposals and their transforms (RFC 7296 §3.3).
//!
//! Structure only: the negotiation checks combinations of transforms. A well-formed proposal with
//! unknown transforms is parsed like every other.

use super::attribute::{Attribute, AttributeValue, Attributes};
use super::body::short;
use super::{ProtocolId, TransformType, take, take_slice};
use crate::ParseError;

/// Maximum number of proposals of one SA payload; more are an error.
pub const MAX_PROPOSALS: usize = 64;
/// Transforms of one proposal: their number is one byte.
pub const MAX_TRANSFORMS: usize = 255;

/// The one attribute of RFC 7296: key length in bits.
const KEY_LENGTH: u16 = 14;

/// Proposals, or transforms of one proposal: each begins with "last or more", a reserved byte and
/// its length. IKEv1 has the same frame (RFC 2408 §3.5, §3.6).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Parts<'a> {
    what: &'static str,
    /// First byte of every part but the last, which has 0.
    more: u8,
    rest: &'a [u8],
    left: usize,
    /// True when exactly `left` parts are still due.
    exact: bool,
}

impl<'a> Parts<'a> {
    pub(super) const fn proposals(bytes: &'a [u8]) -> Self {
        Self { what: "SA proposal", more: 2, rest: bytes, left: MAX_PROPOSALS, exact: false }
    }

    pub(super) const fn transforms(count: u8, bytes: &'a [u8]) -> Self {
        Self { what: "SA transform", more: 3, rest: bytes, left: count as usize, exact: true }
    }

    /// Returns the next part, parsed by `parse`. Ends after an error.
    pub(super) fn next_as<T>(
        &mut self,
        parse: impl FnOnce(&'a [u8]) -> Result<T, ParseError>,
    ) -> Option<Result<T, ParseError>> {
        let read = if !self.rest.is_empty() {
            self.read().and_then(parse)
        } else if self.exact && self.left > 0 {
            Err(ParseError::Malformed { what: self.what, why: "fewer than announced" })
        } else {
            return None;
        };
        if read.is_err() {
            // `left` as well: with `exact`, the iterator would otherwise return the same error
            // forever.
            (self.rest, self.left) = (&[], 0);
        }
        Some(read)
    }

    fn read(&mut self) -> Result<&'a [u8], ParseError> {
        let malformed = |why| ParseError::Malformed { what: self.what, why };
        let left = self.left.checked_sub(1).ok_or(malformed("more than announced or allowed"))?;
        let ([more, _, l0, l1], _) = take(self.what, self.rest)?;
        let (part, rest) = take_slice(self.what, self.rest, u16::from_be_bytes([*l0, *l1]).into())?;
        let body = part.get(4..).ok_or(malformed("length below its header"))?;
        // The marker and the lengths state the end of the list twice. Both must agree, otherwise
        // two implementations could read different proposals.
        if *more != if rest.is_empty() { 0 } else { self.more } {
            return Err(malformed("the mark of the last is in the wrong place"));
        }
        (self.rest, self.left) = (rest, left);
        Ok(body)
    }
}

/// Appends one part; `body` writes its body.
pub(super) fn emit_part(out: &mut Vec<u8>, more: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([more, 0, 0, 0]);
    body(out);
    // If a part is too long for its length field, the payload is too long as well and is omitted.
    let len = u16::try_from(out.len() - start).unwrap_or(u16::MAX);
    out[start + 2..start + 4].copy_from_slice(&len.to_be_bytes());
}

/// The fixed part of a proposal, its SPI and its transforms, in both versions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct ProposalFrame<'a> {
    pub(super) number: u8,
    pub(super) protocol: ProtocolId,
    pub(super) spi: &'a [u8],
    pub(super) transforms: Parts<'a>,
}

impl<'a> ProposalFrame<'a> {
    pub(super) fn parse(part: &'a [u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "SA proposal";
        let ([number, protocol, spi_len, count], rest) = take(WHAT, part)?;
        let (spi, transforms) = take_slice(WHAT, rest, (*spi_len).into())?;
        // The count is redundant as well; `exact` makes a mismatch an error.
        let transforms = Parts::transforms(*count, transforms);
        Ok(Self { number: *number, protocol: ProtocolId(*protocol), spi, transforms })
    }

    /// Appends the fixed part and the SPI.
    pub(super) fn emit(number: u8, protocol: ProtocolId, spi: &[u8], transforms: usize, out: &mut Vec<u8>) {
        debug_assert!(transforms <= MAX_TRANSFORMS, "{transforms} transforms");
        let (spi_len, spi) = short(spi);
        out.extend([number, protocol.0, spi_len, transforms as u8]);
        out.extend(spi);
    }
}

/// Body of an SA payload of IKEv2.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SaPayload<'a> {
    proposals: &'a [u8],
}

impl<'a> SaPayload<'a> {
    /// Reads the body of an SA payload; the proposals are read one by one.
    ///
    /// # Errors
    /// [`ParseError::Malformed`] without any proposal.
    pub const fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        if body.is_empty() {
            return Err(ParseError::Malformed { what: "SA payload", why: "no proposal" });
        }
        Ok(Self { proposals: body })
    }

    /// The proposals in the order of the sender's preference.
    pub const fn proposals(&self) -> Proposals<'a> {
        Proposals(Parts::proposals(self.proposals))
    }

    /// Appends a body with these proposals.
    pub fn emit(proposals: &[ProposalOut<'_>], out: &mut Vec<u8>) {
        for (i, proposal) in proposals.iter().enumerate() {
            emit_part(out, if i + 1 < proposals.len() { 2 } else { 0 }, |out| proposal.emit(out));
        }
    }
}

/// Reads proposals one after the other; ends after the first error.
#[derive(Clone, Copy, Debug)]
pub struct Proposals<'a>(Parts<'a>);

impl<'a> Iterator for Proposals<'a> {
    type Item = Result<Proposal<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next_as(ProposalFrame::parse)?.map(Proposal::of))
    }
}

/// One proposal: alternatives per transform type.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Proposal<'a> {
    /// Number, which an answer repeats.
    pub number: u8,
    /// Protocol of the SA.
    pub protocol: ProtocolId,
    /// SPI of the sender's inbound SA: empty for the first IKE SA, 8 bytes when one is rekeyed, 4
    /// for ESP, AH and EESP.
    pub spi: &'a [u8],
    transforms: Parts<'a>,
}

impl<'a> Proposal<'a> {
    const fn of(frame: ProposalFrame<'a>) -> Self {
        Self { number: frame.number, protocol: frame.protocol, spi: frame.spi, transforms: frame.transforms }
    }

    /// The transforms in the order of the sender's preference.
    pub const fn transforms(&self) -> Transforms<'a> {
        Transforms(self.transforms)
    }
}

/// Reads transforms one after the other; ends after the first error.
#[derive(Clone, Copy, Debug)]
pub struct Transforms<'a>(Parts<'a>);

impl Iterator for Transforms<'_> {
    type Item = Result<Transform, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_as(Transform::parse)
    }
}

/// One transform.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Transform {
    /// Transform Type.
    pub kind: TransformType,
    /// Transform ID.
    pub id: u16,
    /// Length of the key in bits, for algorithms that have several.
    pub key_bits: Option<u16>,
    /// An attribute other than one key length is present: the transform must not be chosen (RFC
    /// 7296 §3.3.6). Never emitted.
    pub unknown_attributes: bool,
}

impl Transform {
    /// A transform without key length.
    pub const fn new(kind: TransformType, id: u16) -> Self {
        Self { kind, id, key_bits: None, unknown_attributes: false }
    }

    /// The same with a key of `key_bits` bits.
    pub const fn with_key_bits(self, key_bits: u16) -> Self {
        Self { key_bits: Some(key_bits), ..self }
    }

    fn parse(part: &[u8]) -> Result<Self, ParseError> {
        let ([kind, _, i0, i1], attributes) = take("SA transform", part)?;
        let mut transform = Self::new(TransformType(*kind), u16::from_be_bytes([*i0, *i1]));
        for attribute in Attributes::new(attributes) {
            match attribute? {
                // A second key length would be ambiguous, so it counts as an unknown attribute.
                Attribute { kind: KEY_LENGTH, value: AttributeValue::Short(bits) } if transform.key_bits.is_none() => {
                    transform.key_bits = Some(bits);
                }
                _ => transform.unknown_attributes = true,
            }
        }
        Ok(transform)
    }

    fn emit(&self, out: &mut Vec<u8>) {
        let id = self.id.to_be_bytes();
        out.extend([self.kind.0, 0, id[0], id[1]]);
        if let Some(bits) = self.key_bits {
            Attribute::short(KEY_LENGTH, bits).emit(out);
        }
    }
}

/// A proposal to be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProposalOut<'a> {
    /// Number: 1, 2, … in an offer, that of the chosen one in an answer.
    pub number: u8,
    /// Protocol of the SA.
    pub protocol: ProtocolId,
    /// SPI of our inbound SA, or empty.
    pub spi: &'a [u8],
    /// Transforms, at most [`MAX_TRANSFORMS`].
    pub transforms: &'a [Transform],
}

impl ProposalOut<'_> {
    fn emit(&self, out: &mut Vec<u8>) {
        ProposalFrame::emit(self.number, self.protocol, self.spi, self.transforms.len(), out);
        for (i, transform) in self.transforms.iter().enumerate() {
            emit_part(out, if i + 1 < self.transforms.len() { 3 } else { 0 }, |out| transform.emit(out));
        }
    }
}
