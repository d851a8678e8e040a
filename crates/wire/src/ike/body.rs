//! Bodies of payloads that have a fixed part and one of variable length.

use std::slice::ChunksExact;

use super::attribute::{Attributes, emit_long};
use super::{AuthMethodId, CertEncoding, CfgAttr, CfgType, IdType, NotifyType, ProtocolId, take, take_slice};
use crate::ParseError;

/// Maximum number of SPIs in one Delete payload; more are an error.
pub const MAX_DELETED_SPIS: usize = 4096;

/// Key Exchange (RFC 7296 §3.4).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ke<'a> {
    /// Key exchange method: a transform ID of type KE.
    pub group: u16,
    /// Public value or ciphertext.
    pub data: &'a [u8],
}

impl<'a> Ke<'a> {
    /// Reads the body of a KE payload.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 4 bytes.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let ([g0, g1, _, _], data) = take("KE payload", body)?;
        Ok(Self { group: u16::from_be_bytes([*g0, *g1]), data })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.group.to_be_bytes());
        out.extend([0; 2]);
        out.extend(self.data);
    }
}

/// Identification (RFC 7296 §3.5). The body itself, as received, enters AUTH.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Id<'a> {
    /// Encoding of the data.
    pub kind: IdType,
    /// The identity.
    pub data: &'a [u8],
}

impl<'a> Id<'a> {
    /// Parses the body of an IDi or IDr payload. The identity is not validated.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 4 bytes.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let ([kind, ..], data) = take::<4>("ID payload", body)?;
        Ok(Self { kind: IdType(*kind), data })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend([self.kind.0, 0, 0, 0]);
        out.extend(self.data);
    }
}

/// Certificate (RFC 7296 §3.6), of both versions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cert<'a> {
    /// Encoding of the data.
    pub encoding: CertEncoding,
    /// Certificate, revocation list, OCSP response, key, or hash and URL.
    pub data: &'a [u8],
}

impl<'a> Cert<'a> {
    /// Reads the body of a CERT payload.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] when it is empty.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let ([encoding], data) = take("CERT payload", body)?;
        Ok(Self { encoding: CertEncoding(*encoding), data })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.push(self.encoding.0);
        out.extend(self.data);
    }
}

/// Certificate Request (RFC 7296 §3.7), of both versions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CertReq<'a> {
    /// Requested encoding.
    pub encoding: CertEncoding,
    /// In IKEv2 SHA-1 hashes of the authorities' keys; in IKEv1 one distinguished name.
    pub authorities: &'a [u8],
}

impl<'a> CertReq<'a> {
    /// Bytes of one hash.
    pub const HASH_LEN: usize = 20;

    /// Reads the body of a CERTREQ payload.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] when it is empty.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let ([encoding], authorities) = take("CERTREQ payload", body)?;
        Ok(Self { encoding: CertEncoding(*encoding), authorities })
    }

    /// Returns the hashes of IKEv2; trailing bytes that are not a whole hash are ignored.
    pub fn hashes(&self) -> std::slice::Iter<'a, [u8; 20]> {
        self.authorities.as_chunks().0.iter()
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.push(self.encoding.0);
        out.extend(self.authorities);
    }
}

/// Authentication (RFC 7296 §3.8).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Auth<'a> {
    /// Authentication method.
    pub method: AuthMethodId,
    /// Signature or code; for [`AuthMethodId::DIGITAL_SIGNATURE`] after the algorithm.
    pub data: &'a [u8],
}

impl<'a> Auth<'a> {
    /// Reads the body of an AUTH payload.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 4 bytes.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let ([method, ..], data) = take::<4>("AUTH payload", body)?;
        Ok(Self { method: AuthMethodId(*method), data })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend([self.method.0, 0, 0, 0]);
        out.extend(self.data);
    }

    /// Splits the data of a digital signature into the AlgorithmIdentifier, in DER, and the
    /// signature (RFC 7427 §3).
    ///
    /// # Errors
    /// [`ParseError::Truncated`] when the announced length is not there.
    pub fn digital_signature(&self) -> Result<(&'a [u8], &'a [u8]), ParseError> {
        const WHAT: &str = "digital signature";
        let ([len], rest) = take(WHAT, self.data)?;
        take_slice(WHAT, rest, (*len).into())
    }
}

/// Notify (RFC 7296 §3.10).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Notify<'a> {
    /// Protocol of the SA that the notification concerns; [`ProtocolId::NONE`] with an empty SPI.
    pub protocol: ProtocolId,
    /// SPI of that SA, at most 255 bytes.
    pub spi: &'a [u8],
    /// Notify Message Type.
    pub kind: NotifyType,
    /// Notification Data.
    pub data: &'a [u8],
}

impl<'a> Notify<'a> {
    /// Reads the body of a Notify payload.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 4 bytes or when the SPI is not there.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "Notify payload";
        let ([protocol, spi_len, k0, k1], rest) = take(WHAT, body)?;
        let (spi, data) = take_slice(WHAT, rest, (*spi_len).into())?;
        Ok(Self { protocol: ProtocolId(*protocol), spi, kind: NotifyType(u16::from_be_bytes([*k0, *k1])), data })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let (spi_len, spi) = short(self.spi);
        out.extend([self.protocol.0, spi_len]);
        out.extend(self.kind.0.to_be_bytes());
        out.extend(spi);
        out.extend(self.data);
    }
}

/// Returns an SPI and its length. Callers must keep it below the 255 bytes that the field can
/// express.
pub(super) fn short(spi: &[u8]) -> (u8, &[u8]) {
    debug_assert!(spi.len() <= 255, "an SPI of {} bytes", spi.len());
    // Without the assertion (release build) the bytes must still agree with the length byte.
    let spi = &spi[..spi.len().min(255)];
    (spi.len() as u8, spi)
}

/// Delete (RFC 7296 §3.11).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Delete<'a> {
    /// Protocol of the SAs. IKE without SPIs is the IKE SA that carries the message.
    pub protocol: ProtocolId,
    spi_len: u8,
    spis: &'a [u8],
}

impl<'a> Delete<'a> {
    /// Reads the body of a Delete payload.
    ///
    /// # Errors
    /// [`ParseError`] when the SPIs are not exactly the rest of the body, have no bytes, or are
    /// more than [`MAX_DELETED_SPIS`].
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "Delete payload";
        let malformed = |why| ParseError::Malformed { what: WHAT, why };
        let ([protocol, spi_len, c0, c1], rest) = take(WHAT, body)?;
        let count = usize::from(u16::from_be_bytes([*c0, *c1]));
        if count > MAX_DELETED_SPIS {
            return Err(malformed("too many SPIs"));
        }
        // Empty SPIs take no bytes, so that the length check below would accept any count of them.
        if count > 0 && *spi_len == 0 {
            return Err(malformed("SPIs without bytes"));
        }
        let (spis, rest) = take_slice(WHAT, rest, count * usize::from(*spi_len))?;
        if !rest.is_empty() {
            return Err(malformed("bytes after the SPIs"));
        }
        Ok(Self { protocol: ProtocolId(*protocol), spi_len: *spi_len, spis })
    }

    /// The SPIs.
    pub fn spis(&self) -> ChunksExact<'a, u8> {
        // `chunks_exact` panics for 0, which is the SPI length when the IKE SA is deleted (RFC 7296
        // §3.11).
        self.spis.chunks_exact(usize::from(self.spi_len).max(1))
    }

    /// Appends a body with these SPIs, all as long as the first and at most [`MAX_DELETED_SPIS`].
    pub fn emit(protocol: ProtocolId, spis: &[&[u8]], out: &mut Vec<u8>) {
        let (spi_len, _) = short(spis.first().copied().unwrap_or_default());
        debug_assert!(spis.len() <= MAX_DELETED_SPIS && spis.iter().all(|spi| spi.len() == usize::from(spi_len)));
        out.extend([protocol.0, spi_len]);
        out.extend((spis.len() as u16).to_be_bytes());
        spis.iter().for_each(|spi| out.extend(*spi));
    }
}

/// Configuration (RFC 7296 §3.15).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cfg<'a> {
    /// Request, reply, set or acknowledgement.
    pub kind: CfgType,
    attributes: &'a [u8],
}

impl<'a> Cfg<'a> {
    /// Reads the body of a CP payload; the attributes are read one by one.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] below 4 bytes.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let ([kind, ..], attributes) = take::<4>("CP payload", body)?;
        Ok(Self { kind: CfgType(*kind), attributes })
    }

    /// The attributes.
    pub const fn attributes(&self) -> CfgAttributes<'a> {
        CfgAttributes(Attributes::always_long(self.attributes))
    }

    /// Appends a body with these attributes.
    pub fn emit(kind: CfgType, attributes: &[(CfgAttr, &[u8])], out: &mut Vec<u8>) {
        out.extend([kind.0, 0, 0, 0]);
        // The first bit is reserved and must be 0 (RFC 7296 §3.15.1). It is not a format bit here.
        attributes.iter().for_each(|(attr, value)| emit_long(attr.0 & 0x7fff, value, out));
    }
}

/// Reads configuration attributes one after the other; ends after the first error.
#[derive(Clone, Copy, Debug)]
pub struct CfgAttributes<'a>(Attributes<'a>);

impl<'a> Iterator for CfgAttributes<'a> {
    type Item = Result<(CfgAttr, &'a [u8]), ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        let attribute = self.0.next()?;
        Some(attribute.map(|attribute| (CfgAttr(attribute.kind), attribute.bytes().unwrap_or_default())))
    }
}

/// Extensible Authentication Protocol (RFC 7296 §3.16, RFC 3748 §4).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Eap<'a> {
    /// Request, response, success or failure.
    pub code: u8,
    /// Identifier that matches a response with its request.
    pub id: u8,
    /// Data after the four bytes of header: type and its data, or nothing.
    pub data: &'a [u8],
    /// The packet with its header.
    pub whole: &'a [u8],
}

impl<'a> Eap<'a> {
    /// Code of a request.
    pub const REQUEST: u8 = 1;
    /// Code of a response.
    pub const RESPONSE: u8 = 2;
    /// Code of success.
    pub const SUCCESS: u8 = 3;
    /// Code of failure.
    pub const FAILURE: u8 = 4;

    /// Reads the body of an EAP payload. Bytes after the packet's length are padding and ignored
    /// (RFC 3748 §4).
    ///
    /// # Errors
    /// [`ParseError`] below 4 bytes, and for a length that is below 4 or not there.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "EAP packet";
        let ([code, id, l0, l1], _) = take(WHAT, body)?;
        let (whole, _) = take_slice(WHAT, body, u16::from_be_bytes([*l0, *l1]).into())?;
        let data = whole.get(4..).ok_or(ParseError::Malformed { what: WHAT, why: "length below its header" })?;
        Ok(Self { code: *code, id: *id, data, whole })
    }

    /// The method; `None` for success and failure and for a packet without it.
    pub fn method(&self) -> Option<u8> {
        // Success and Failure have no Type field (RFC 3748 §4.2); their data is not a method.
        matches!(self.code, Self::REQUEST | Self::RESPONSE).then(|| self.data.first().copied()).flatten()
    }

    /// Appends a packet. More than 65531 bytes of data exceed the length field, which is then
    /// 65535.
    pub fn emit(code: u8, id: u8, data: &[u8], out: &mut Vec<u8>) {
        // If the length does not fit, the EAP payload around the packet is too long as well.
        // `Chain` then leaves it out and reports an overflow.
        let len = u16::try_from(4 + data.len()).unwrap_or(u16::MAX).to_be_bytes();
        out.extend([code, id, len[0], len[1]]);
        out.extend(data);
    }
}

/// Encrypted and Authenticated Fragment (RFC 7383 §2.5).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Skf<'a> {
    /// Fragment Number, from 1.
    pub number: u16,
    /// Total Fragments, at least `number`.
    pub total: u16,
    /// IV, ciphertext and ICV.
    pub body: &'a [u8],
}

impl<'a> Skf<'a> {
    /// Bytes before the IV.
    pub const HEADER_LEN: usize = 4;

    /// Reads the body of an SKF payload.
    ///
    /// # Errors
    /// [`ParseError`] below 4 bytes and for a number of 0 or above the total.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        let ([n0, n1, t0, t1], body) = take("SKF payload", body)?;
        let (number, total) = (u16::from_be_bytes([*n0, *n1]), u16::from_be_bytes([*t0, *t1]));
        // The range is empty for a total of 0, so that this value is refused as well.
        if !(1..=total).contains(&number) {
            return Err(ParseError::Malformed { what: "SKF payload", why: "number is not between 1 and the total" });
        }
        Ok(Self { number, total, body })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.number.to_be_bytes());
        out.extend(self.total.to_be_bytes());
        out.extend(self.body);
    }
}
