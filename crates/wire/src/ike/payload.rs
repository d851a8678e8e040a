//! The chain of payloads (RFC 7296 §3.2).

use zerocopy::FromBytes;

use super::header::PayloadHeader;
use super::{PayloadType, take_slice};
use crate::ParseError;

/// Maximum number of payloads of one message; more are an error.
pub const MAX_PAYLOADS: usize = 128;

/// One payload with its unparsed body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RawPayload<'a> {
    /// Type.
    pub kind: PayloadType,
    /// The message must be refused if the type is unknown (RFC 7296 §2.5).
    pub critical: bool,
    /// Payload body, after the generic header.
    pub body: &'a [u8],
    /// Next Payload field: the payload after this one, or for SK and SKF the first one inside.
    pub next: PayloadType,
}

/// Reads payloads one after the other; ends after the first error.
#[derive(Clone, Copy, Debug)]
pub struct Payloads<'a> {
    next: PayloadType,
    rest: &'a [u8],
    left: usize,
    v1: bool,
}

impl<'a> Payloads<'a> {
    /// The payloads of IKEv2 in `bytes`, the first of type `first`. An SK or SKF payload is the
    /// last of a message (RFC 7296 §3.14).
    pub const fn new(first: PayloadType, bytes: &'a [u8]) -> Self {
        Self { next: first, rest: bytes, left: MAX_PAYLOADS, v1: false }
    }

    /// The payloads of IKEv1 in `bytes`. Bytes after the last payload are padding (RFC 2409 §5.7
    /// with encryption). No payload type ends the chain early.
    pub const fn v1(first: PayloadType, bytes: &'a [u8]) -> Self {
        Self { v1: true, ..Self::new(first, bytes) }
    }

    /// Unread bytes; after the last payload the padding of IKEv1.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn read(&mut self) -> Result<RawPayload<'a>, ParseError> {
        const WHAT: &str = "IKE payload";
        let malformed = |why| ParseError::Malformed { what: WHAT, why };
        // Empty payloads have only 4 bytes, so that a datagram could contain 16,000. The limit
        // bounds the work before authentication.
        self.left = self.left.checked_sub(1).ok_or(malformed("too many in one message"))?;
        let have = self.rest.len();
        let (header, _) = PayloadHeader::ref_from_prefix(self.rest).map_err(|_| ParseError::Truncated {
            what: WHAT,
            need: PayloadHeader::LEN,
            have,
        })?;
        let (payload, rest) = take_slice(WHAT, self.rest, header.length.get().into())?;
        // Also guarantees progress: a length of zero would repeat the same payload forever.
        let body = payload.get(PayloadHeader::LEN..).ok_or(malformed("length below its header"))?;
        let kind = self.next;
        let is_last = !self.v1 && matches!(kind, PayloadType::SK | PayloadType::SKF);
        // Bytes after the encrypted payload would not be authenticated.
        if is_last && !rest.is_empty() {
            return Err(malformed("bytes after the encrypted payload"));
        }
        // The Next Payload field of SK and SKF names the first payload inside, not one after it.
        self.next = if is_last { PayloadType::NONE } else { header.next };
        self.rest = rest;
        // IKEv1 has no critical bit; the byte is reserved there.
        let critical = !self.v1 && header.flags & PayloadHeader::CRITICAL != 0;
        Ok(RawPayload { kind, critical, body, next: header.next })
    }
}

impl<'a> Iterator for Payloads<'a> {
    type Item = Result<RawPayload<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = if self.next != PayloadType::NONE {
            self.read()
        } else if self.v1 || self.rest.is_empty() {
            return None;
        } else {
            Err(ParseError::Malformed { what: "IKE message", why: "bytes after the last payload" })
        };
        if read.is_err() {
            (self.next, self.rest) = (PayloadType::NONE, &[]);
        }
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(payloads: Payloads<'_>) -> Result<Vec<(u8, usize)>, ParseError> {
        payloads.map(|payload| payload.map(|payload| (payload.kind.0, payload.body.len()))).collect()
    }

    #[test]
    fn a_chain_is_followed_to_its_end() {
        let bytes = [41, 0, 0, 6, 1, 2, 43, 0x80, 0, 4, 0, 0, 0, 5, 9];
        let chain = Payloads::new(PayloadType::NONCE, &bytes);
        assert_eq!(kinds(chain), Ok(vec![(40, 2), (41, 0), (43, 1)]));
        assert_eq!(chain.filter(|payload| payload.unwrap().critical).count(), 1);
        for len in 0..bytes.len() {
            assert!(kinds(Payloads::new(PayloadType::NONCE, &bytes[..len])).is_err(), "{len}");
        }
        assert_eq!(Payloads::new(PayloadType::NONE, &[]).count(), 0);
        assert!(kinds(Payloads::new(PayloadType::NONE, &[0])).is_err());
        assert!(kinds(Payloads::new(PayloadType::NONCE, &[0, 0, 0, 3])).is_err());
    }

    #[test]
    fn the_encrypted_payload_is_the_last() {
        let bytes = [PayloadType::IDi.0, 0, 0, 8, 1, 2, 3, 4];
        let mut chain = Payloads::new(PayloadType::SK, &bytes);
        let sk = chain.next().unwrap().unwrap();
        assert_eq!((sk.kind, sk.next, sk.body), (PayloadType::SK, PayloadType::IDi, &bytes[4..]));
        assert!(chain.next().is_none());
        let longer = [&bytes[..], &[0, 0, 0, 4]].concat();
        // Refused before anybody decrypts it.
        assert!(Payloads::new(PayloadType::SK, &longer).next().is_some_and(|payload| payload.is_err()));
    }

    #[test]
    fn padding_follows_the_payloads_of_ikev1_only() {
        let bytes = [0, 0, 0, 5, 7, 0, 0, 0];
        assert!(kinds(Payloads::new(PayloadType::NONCE, &bytes)).is_err());
        let mut chain = Payloads::v1(PayloadType::HASH_V1, &bytes);
        assert_eq!(chain.next().unwrap().unwrap().body, [7]);
        assert!(chain.next().is_none());
        assert_eq!(chain.rest(), [0; 3]);
    }

    #[test]
    fn reading_stops_at_the_bound() {
        let bytes = [43, 0, 0, 4].repeat(MAX_PAYLOADS + 9);
        let chain = Payloads::new(PayloadType::VENDOR, &bytes);
        assert_eq!(chain.count(), MAX_PAYLOADS + 1);
        assert!(chain.last().unwrap().is_err());
    }
}
