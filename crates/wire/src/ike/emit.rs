//! Emission of messages: the header, the chain of payloads, and the fields that are known last.

use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::U32;

use super::header::PayloadHeader;
use super::{
    Auth, AuthMethodId, Cert, CertEncoding, CertReq, Cfg, CfgAttr, CfgType, Delete, Header, HeaderFields, Id, IdType,
    Ke, Notify, NotifyType, PayloadType, ProposalOut, ProtocolId, SaPayload, Ts,
};
use crate::TrafficSelector;

/// Starts a message: clears the buffer `out` and writes the header, with first payload and length
/// zero.
pub fn begin_message(out: &mut Vec<u8>, fields: &HeaderFields) {
    let &HeaderFields { spi_i, spi_r, version, exchange, flags, message_id } = fields;
    let (next, message_id, length) = (PayloadType::NONE, U32::new(message_id), U32::ZERO);
    out.clear();
    out.extend(Header { spi_i, spi_r, next, version, exchange, flags, message_id, length }.as_bytes());
}

/// Ends a message that [`begin_message`] started: fills in its first payload and its length, that
/// of all of `out`.
///
/// # Panics
/// If the buffer `out` does not contain a header.
pub fn finish_message(out: &mut [u8], first: PayloadType) {
    // Offsets of Next Payload and Length in the header (RFC 7296 §3.1).
    out[16] = first.0;
    let length = out.len() as u32;
    out[24..Header::LEN].copy_from_slice(&length.to_be_bytes());
}

/// Appends payloads and links each to the one before.
pub struct Chain<'b> {
    out: &'b mut Vec<u8>,
    first: PayloadType,
    /// Offset of the Next Payload field of the last payload.
    last_at: Option<usize>,
    sealed: bool,
    overflowed: bool,
}

impl<'b> Chain<'b> {
    /// Creates an empty chain at the end of the buffer `out`.
    pub fn new(out: &'b mut Vec<u8>) -> Self {
        Self { out, first: PayloadType::NONE, last_at: None, sealed: false, overflowed: false }
    }

    /// Type of the first payload; [`PayloadType::NONE`] for an empty chain.
    pub const fn first(&self) -> PayloadType {
        self.first
    }

    /// True when a payload was left out because its length did not fit into 16 bits, or it had more
    /// selectors than can be counted. The message must not be sent.
    pub const fn overflowed(&self) -> bool {
        self.overflowed
    }

    fn push(&mut self, kind: PayloadType, flags: u8, body: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        debug_assert!(!self.sealed, "{kind} after the encrypted payload");
        let start = self.out.len();
        self.out.extend([PayloadType::NONE.0, flags, 0, 0]);
        body(self.out);
        // A wrapped length would let the receiver parse the body as further payloads. The payload
        // is removed, so that the chain remains well-formed.
        let Ok(length) = u16::try_from(self.out.len() - start) else {
            self.out.truncate(start);
            self.overflowed = true;
            return self;
        };
        self.out[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
        // The type of a payload is in the header before it, so that it is written one step late.
        match self.last_at {
            Some(at) => self.out[at] = kind.0,
            None => self.first = kind,
        }
        self.last_at = Some(start);
        self
    }

    /// Appends a payload; `body` writes its body.
    pub fn payload(&mut self, kind: PayloadType, body: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        self.push(kind, 0, body)
    }

    /// Appends a payload with the critical bit: a receiver that does not know it must reject the
    /// message (RFC 7296 §2.5).
    pub fn critical_payload(&mut self, kind: PayloadType, body: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        self.push(kind, PayloadHeader::CRITICAL, body)
    }

    /// Appends the SK or SKF payload, the last of its message, which names the first payload inside
    /// (RFC 7296 §3.14; in fragments after the first: [`PayloadType::NONE`], RFC 7383 §2.5). `body`
    /// writes the fragment header if there is one, the IV, the chain inside, padding, and room for
    /// the ICV; sealing comes when the header is finished, as it is authenticated as well.
    pub fn encrypted(&mut self, kind: PayloadType, inner: PayloadType, body: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        let start = self.out.len();
        self.push(kind, 0, body);
        // `push` removes a payload that is too long; `start` is then beyond the end of the buffer.
        if self.out.len() > start {
            self.out[start] = inner.0;
        }
        self.sealed = true;
        self
    }

    /// Appends a payload with this body.
    pub fn raw(&mut self, kind: PayloadType, body: &[u8]) -> &mut Self {
        self.payload(kind, |out| out.extend(body))
    }

    /// Appends an SA payload.
    pub fn sa(&mut self, proposals: &[ProposalOut<'_>]) -> &mut Self {
        self.payload(PayloadType::SA, |out| SaPayload::emit(proposals, out))
    }

    /// Appends a KE payload.
    pub fn ke(&mut self, group: u16, data: &[u8]) -> &mut Self {
        self.payload(PayloadType::KE, |out| Ke { group, data }.emit(out))
    }

    /// Appends an ID payload, [`PayloadType::IDi`] or [`PayloadType::IDr`].
    pub fn id(&mut self, payload: PayloadType, kind: IdType, data: &[u8]) -> &mut Self {
        self.payload(payload, |out| Id { kind, data }.emit(out))
    }

    /// Appends a CERT payload.
    pub fn cert(&mut self, encoding: CertEncoding, data: &[u8]) -> &mut Self {
        self.payload(PayloadType::CERT, |out| Cert { encoding, data }.emit(out))
    }

    /// Appends a CERTREQ payload; `authorities` are SHA-1 hashes, one after the other.
    pub fn certreq(&mut self, encoding: CertEncoding, authorities: &[u8]) -> &mut Self {
        self.payload(PayloadType::CERTREQ, |out| CertReq { encoding, authorities }.emit(out))
    }

    /// Appends an AUTH payload.
    pub fn auth(&mut self, method: AuthMethodId, data: &[u8]) -> &mut Self {
        self.payload(PayloadType::AUTH, |out| Auth { method, data }.emit(out))
    }

    /// Appends a Nonce payload.
    pub fn nonce(&mut self, nonce: &[u8]) -> &mut Self {
        self.raw(PayloadType::NONCE, nonce)
    }

    /// Appends a Notify payload. If it concerns no SA, `protocol` should be [`ProtocolId::NONE`]
    /// and `spi` empty.
    pub fn notify(&mut self, protocol: ProtocolId, spi: &[u8], kind: NotifyType, data: &[u8]) -> &mut Self {
        self.payload(PayloadType::NOTIFY, |out| Notify { protocol, spi, kind, data }.emit(out))
    }

    /// Appends a Delete payload. All SPIs must have the same length; there are none for
    /// [`ProtocolId::IKE`].
    pub fn delete(&mut self, protocol: ProtocolId, spis: &[&[u8]]) -> &mut Self {
        self.payload(PayloadType::DELETE, |out| Delete::emit(protocol, spis, out))
    }

    /// Appends a TS payload, [`PayloadType::TSi`] or [`PayloadType::TSr`].
    pub fn ts(&mut self, payload: PayloadType, selectors: &[TrafficSelector]) -> &mut Self {
        // The count byte would wrap while all selectors are written.
        if selectors.len() > Ts::MAX_SELECTORS {
            self.overflowed = true;
            return self;
        }
        self.payload(payload, |out| Ts::emit(selectors, out))
    }

    /// Appends a CP payload.
    pub fn cfg(&mut self, kind: CfgType, attributes: &[(CfgAttr, &[u8])]) -> &mut Self {
        self.payload(PayloadType::CP, |out| Cfg::emit(kind, attributes, out))
    }

    /// Appends an EAP payload that is this EAP packet.
    pub fn eap(&mut self, packet: &[u8]) -> &mut Self {
        self.raw(PayloadType::EAP, packet)
    }

    /// Appends a Vendor ID payload.
    pub fn vendor(&mut self, id: &[u8]) -> &mut Self {
        self.raw(PayloadType::VENDOR, id)
    }
}
