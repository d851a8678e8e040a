//! EAP packets (RFC 3748 §4).

/// Bytes of a packet beyond which it is refused: the largest that fits an IKE payload.
const MAX_BYTES: usize = 65_500;

pub(super) const REQUEST: u8 = 1;
pub(super) const RESPONSE: u8 = 2;
pub(super) const SUCCESS: u8 = 3;
pub(super) const FAILURE: u8 = 4;

pub(super) const IDENTITY: u8 = 1;
pub(super) const NOTIFICATION: u8 = 2;
pub(super) const NAK: u8 = 3;
pub(super) const MD5_CHALLENGE: u8 = 4;
pub(super) const TLS: u8 = 13;
pub(super) const MSCHAPV2: u8 = 26;

/// A packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Packet<'a> {
    pub(super) code: u8,
    pub(super) id: u8,
    /// Type; 0 for Success and Failure, which have none.
    pub(super) kind: u8,
    pub(super) data: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a packet; bytes after its length are padding (RFC 3748 §4.1).
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let [code, id, l0, l1, ..] = *bytes else { return None };
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        let body = bytes.get(4..length).filter(|_| length <= MAX_BYTES)?;
        match code {
            REQUEST | RESPONSE => {
                let (kind, data) = body.split_first()?;
                (*kind != 0).then_some(Self { code, id, kind: *kind, data })
            }
            SUCCESS | FAILURE if body.is_empty() => Some(Self { code, id, kind: 0, data: &[] }),
            _ => None,
        }
    }
}

/// Writes a request or response.
pub(super) fn emit(code: u8, id: u8, kind: u8, data: &[u8]) -> Vec<u8> {
    let length = ((5 + data.len()) as u16).to_be_bytes();
    [&[code, id, length[0], length[1], kind], data].concat()
}

/// EAP-Success.
pub(super) fn success(id: u8) -> Vec<u8> {
    vec![SUCCESS, id, 0, 4]
}

/// EAP-Failure.
pub(super) fn failure(id: u8) -> Vec<u8> {
    vec![FAILURE, id, 0, 4]
}
