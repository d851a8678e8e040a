//! Messages between the two hosts of the key service, inside TLS (`docs/psp-key-service.md`).
//!
//! Every message is a frame of type, length and body. The sender of packets requests an SPI with
//! [`Want`]; the receiver responds with [`Grant`], also unsolicited when its master keys change;
//! and the sender confirms the switch with [`Message::Using`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::psp::{PspSpi, PspVersion};
use wire::{AddrRange, IpProto, PortRange, TrafficSelector};
use zeroize::Zeroize;

/// Supported versions of this format, lowest and highest.
pub const VERSIONS: (u8, u8) = (1, 1);
/// ALPN name of this format.
pub const ALPN: &[u8] = b"weir-psp-keys";
/// Largest body of a frame, in bytes: a [`Want`] with all the selectors it may have.
pub const MAX_BODY: usize = 16 + 2 * MAX_SELECTORS * SELECTOR_LEN;
/// Most selectors of one side of a [`Want`].
pub const MAX_SELECTORS: usize = 16;
/// Most bytes in the text of a reason.
pub const MAX_TEXT: usize = 200;

/// Bytes of a frame header: type, zero, length of the body.
pub const HEADER_LEN: usize = 4;
const SELECTOR_LEN: usize = 40;
const MAGIC: &[u8; 4] = b"PSPK";
/// First of the message types that are ignored if unknown.
const OPTIONAL: u8 = 128;

/// A traffic key; one of 16 bytes is padded with zeros.
#[derive(Clone, Eq, PartialEq)]
pub struct TrafficKey(pub(crate) [u8; 32]);

impl TrafficKey {
    /// Pads `octets`, at most 32, with zeros.
    pub fn new(octets: &[u8]) -> Option<Self> {
        let mut key = Self([0; 32]);
        key.0.get_mut(..octets.len())?.copy_from_slice(octets);
        Some(key)
    }

    /// The octets that a version uses; all of them for a version that has no algorithm.
    pub fn octets(&self, version: PspVersion) -> &[u8] {
        &self.0[..version.key_len().unwrap_or(32).min(32)]
    }
}

impl Drop for TrafficKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for TrafficKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[key]")
    }
}

/// Mode of an association.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// The whole packet is inside.
    Tunnel,
    /// The payload of the IP header is protected.
    Transport,
}

/// Request of a sender for an SPI and a key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Want {
    /// Name of the association, chosen by the sender.
    pub id: u32,
    /// Mode.
    pub mode: Mode,
    /// The sender promises that its IVs count packets, so that the receiver may check for replays.
    pub counts: bool,
    /// PSP versions that it can send, 1 to 4 of them, in order of preference.
    pub versions: Vec<u8>,
    /// SPI in use that it requests to keep; `None` requests a new one.
    pub have: Option<PspSpi>,
    /// Traffic selectors of its own side.
    pub local: Vec<TrafficSelector>,
    /// Traffic selectors of the receiver's side.
    pub remote: Vec<TrafficSelector>,
}

/// SPI and key from a receiver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Grant {
    /// The association.
    pub id: u32,
    /// SPI.
    pub spi: PspSpi,
    /// Version.
    pub version: PspVersion,
    /// Largest crypt offset that the receiver accepts, in bytes.
    pub max_crypt_offset: u8,
    /// UDP destination port of the packets.
    pub port: u16,
    /// Seconds until its master key expires. A relative time, because the clocks of the hosts may
    /// differ.
    pub remaining_s: u32,
    /// The receiver checks for replays: IVs must count packets.
    pub window: bool,
    /// Key.
    pub key: TrafficKey,
}

/// Reason of a refusal or of the end of an association or connection.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Code(pub u16);

#[allow(missing_docs)]
impl Code {
    pub const NO_COMMON_FORMAT: Self = Self(1);
    pub const MALFORMED: Self = Self(2);
    pub const NOT_ADMITTED: Self = Self(3);
    pub const NO_ASSOCIATION: Self = Self(4);
    pub const OTHER_MODE: Self = Self(5);
    pub const NO_COMMON_VERSION: Self = Self(6);
    pub const LATER: Self = Self(7);
    pub const ENDED: Self = Self(8);
    pub const SPI_AGAIN: Self = Self(9);
    pub const LIMIT: Self = Self(10);

    /// Description.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::NO_COMMON_FORMAT => "no common version of the message format",
            Self::MALFORMED => "malformed message",
            Self::NOT_ADMITTED => "no connection matches this peer",
            Self::NO_ASSOCIATION => "no child has the mirrored selectors",
            Self::OTHER_MODE => "the child with these selectors has a different mode",
            Self::NO_COMMON_VERSION => "no common PSP version",
            Self::LATER => "no SPI available",
            Self::ENDED => "association ended",
            Self::SPI_AGAIN => "SPI was used before",
            Self::LIMIT => "too many",
            _ => "unknown reason",
        }
    }
}

/// A message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Message {
    /// The first message of each end.
    Hello {
        /// Lowest supported version of the format.
        min: u8,
        /// Highest supported version.
        max: u8,
        /// Random number of this start: a different one means that the host restarted and lost its
        /// keys.
        boot: u64,
    },
    /// Request of the sender.
    Want(Want),
    /// SPI and key from the receiver.
    Grant(Grant),
    /// The sender uses this SPI from now on.
    Using {
        /// Association.
        id: u32,
        /// SPI.
        spi: PspSpi,
    },
    /// The receiver refuses a request, or revokes a grant.
    Refuse {
        /// Association.
        id: u32,
        /// Reason.
        code: Code,
        /// Description.
        text: String,
    },
    /// The sender has stopped using the association.
    Release {
        /// Association.
        id: u32,
    },
    /// Liveness check.
    Ping,
    /// Response to a liveness check.
    Pong,
    /// The last message before the connection is closed.
    Fault {
        /// Reason.
        code: Code,
        /// Description.
        text: String,
    },
    /// A message of an unknown type that may be skipped.
    Unknown(u8),
}

/// Error of a malformed message.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum MessageFault {
    /// Longer than any message.
    #[error("message of {0} bytes exceeds the maximum")]
    TooLong(usize),
    /// The fields do not match the length.
    #[error("message of type {0} has an invalid length")]
    Length(u8),
    /// Invalid value of a field.
    #[error("message without a valid {0}")]
    Value(&'static str),
    /// Unknown type that must not be skipped.
    #[error("unknown message type {0}")]
    Type(u8),
}

/// Length of the first frame in `bytes`, header included; `None` while its header is not complete.
///
/// # Errors
/// The frame is longer than any message. The connection cannot be resynchronised after it.
pub fn frame_len(bytes: &[u8]) -> Result<Option<usize>, MessageFault> {
    let Some([_, _, high, low]) = bytes.first_chunk() else { return Ok(None) };
    let body = usize::from(u16::from_be_bytes([*high, *low]));
    if body > MAX_BODY { Err(MessageFault::TooLong(body)) } else { Ok(Some(HEADER_LEN + body)) }
}

impl Message {
    /// Reads one whole frame.
    ///
    /// # Errors
    /// [`MessageFault`].
    pub fn parse(frame: &[u8]) -> Result<Self, MessageFault> {
        let (&[kind, _, high, low], body) = frame.split_first_chunk().ok_or(MessageFault::Length(0))?;
        if usize::from(u16::from_be_bytes([high, low])) != body.len() {
            return Err(MessageFault::Length(kind));
        }
        if body.len() > MAX_BODY {
            return Err(MessageFault::TooLong(body.len()));
        }
        if kind >= OPTIONAL {
            return Ok(Self::Unknown(kind));
        }
        let mut reader = Reader(body);
        let message = Self::body(kind, &mut reader)?;
        if reader.0.is_empty() { Ok(message) } else { Err(MessageFault::Length(kind)) }
    }

    fn body(kind: u8, reader: &mut Reader<'_>) -> Result<Self, MessageFault> {
        let short = MessageFault::Length(kind);
        Ok(match kind {
            1 => {
                if reader.take::<4>().ok_or(short)? != *MAGIC {
                    return Err(MessageFault::Value("magic number"));
                }
                let [min, max, _, _] = reader.take().ok_or(short)?;
                Self::Hello { min, max, boot: u64::from_be_bytes(reader.take().ok_or(short)?) }
            }
            2 => Self::Want(reader.want(kind)?),
            3 => Self::Grant(reader.grant(kind)?),
            4 => Self::Using { id: reader.u32().ok_or(short)?, spi: spi(reader.u32().ok_or(short)?)? },
            5 => {
                let id = reader.u32().ok_or(short)?;
                let (code, text) = reader.reason(kind)?;
                Self::Refuse { id, code, text }
            }
            6 => Self::Release { id: reader.u32().ok_or(short)? },
            7 => Self::Ping,
            8 => Self::Pong,
            9 => {
                let (code, text) = reader.reason(kind)?;
                Self::Fault { code, text }
            }
            unknown => return Err(MessageFault::Type(unknown)),
        })
    }

    /// Writes the frame. The text of a reason is truncated to [`MAX_TEXT`] bytes, selectors to
    /// [`MAX_SELECTORS`].
    pub fn emit(&self) -> zeroize::Zeroizing<Vec<u8>> {
        let mut out = zeroize::Zeroizing::new(Vec::with_capacity(256));
        out.extend([self.kind(), 0, 0, 0]);
        match self {
            Self::Hello { min, max, boot } => {
                out.extend(MAGIC);
                out.extend([*min, *max, 0, 0]);
                out.extend(boot.to_be_bytes());
            }
            Self::Want(want) => want.emit(&mut out),
            Self::Grant(grant) => grant.emit(&mut out),
            Self::Using { id, spi } => {
                out.extend(id.to_be_bytes());
                out.extend(spi.to_be_bytes());
            }
            Self::Refuse { id, code, text } => {
                out.extend(id.to_be_bytes());
                emit_reason(*code, text, &mut out);
            }
            Self::Release { id } => out.extend(id.to_be_bytes()),
            Self::Ping | Self::Pong | Self::Unknown(_) => {}
            Self::Fault { code, text } => emit_reason(*code, text, &mut out),
        }
        let body = (out.len() - HEADER_LEN) as u16;
        out[2..4].copy_from_slice(&body.to_be_bytes());
        out
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => 1,
            Self::Want(_) => 2,
            Self::Grant(_) => 3,
            Self::Using { .. } => 4,
            Self::Refuse { .. } => 5,
            Self::Release { .. } => 6,
            Self::Ping => 7,
            Self::Pong => 8,
            Self::Fault { .. } => 9,
            Self::Unknown(kind) => *kind,
        }
    }
}

impl Want {
    fn emit(&self, out: &mut Vec<u8>) {
        let sides = [&self.local, &self.remote].map(|side| &side[..side.len().min(MAX_SELECTORS)]);
        out.extend(self.id.to_be_bytes());
        let mode = if self.mode == Mode::Tunnel { 1 } else { 2 };
        out.extend([mode, u8::from(self.counts), sides[0].len() as u8, sides[1].len() as u8]);
        let mut versions = [u8::MAX; 4];
        versions.iter_mut().zip(&self.versions).for_each(|(slot, version)| *slot = *version);
        out.extend(versions);
        out.extend(self.have.map_or(0, PspSpi::get).to_be_bytes());
        sides.into_iter().flatten().for_each(|selector| emit_selector(selector, out));
    }
}

impl Grant {
    fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.id.to_be_bytes());
        out.extend(self.spi.to_be_bytes());
        out.extend([self.version.get(), self.max_crypt_offset]);
        out.extend(self.port.to_be_bytes());
        out.extend(self.remaining_s.to_be_bytes());
        out.extend([u8::from(self.window), 0, 0, 0]);
        out.extend(&self.key.0);
    }
}

fn emit_selector(selector: &TrafficSelector, out: &mut Vec<u8>) {
    let octets = |addr: IpAddr| -> [u8; 16] {
        match addr {
            IpAddr::V4(addr) => {
                let mut octets = [0; 16];
                octets[..4].copy_from_slice(&addr.octets());
                octets
            }
            IpAddr::V6(addr) => addr.octets(),
        }
    };
    out.extend([if selector.addrs.is_v6() { 6 } else { 4 }, selector.proto.map_or(0, |proto| proto.0), 0, 0]);
    out.extend(selector.ports.start.to_be_bytes());
    out.extend(selector.ports.end.to_be_bytes());
    out.extend(octets(selector.addrs.start));
    out.extend(octets(selector.addrs.end));
}

fn emit_reason(code: Code, text: &str, out: &mut Vec<u8>) {
    out.extend(code.0.to_be_bytes());
    out.extend(truncate(text).as_bytes());
}

/// Truncates a text to [`MAX_TEXT`] bytes at a character boundary.
fn truncate(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn spi(raw: u32) -> Result<PspSpi, MessageFault> {
    PspSpi::try_from(raw).map_err(|_| MessageFault::Value("SPI"))
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn want(&mut self, kind: u8) -> Result<Want, MessageFault> {
        let short = MessageFault::Length(kind);
        let id = self.u32().ok_or(short)?;
        let [mode, flags, local, remote] = self.take().ok_or(short)?;
        let versions = self.take::<4>().ok_or(short)?;
        let have = self.u32().ok_or(short)?;
        if usize::from(local.max(remote)) > MAX_SELECTORS {
            return Err(MessageFault::Value("number of selectors"));
        }
        let versions: Vec<u8> = versions.into_iter().filter(|version| *version != u8::MAX).collect();
        if versions.is_empty() {
            return Err(MessageFault::Value("PSP version"));
        }
        Ok(Want {
            id,
            mode: match mode {
                1 => Mode::Tunnel,
                2 => Mode::Transport,
                _ => return Err(MessageFault::Value("mode")),
            },
            counts: flags & 1 == 1,
            versions,
            have: if have == 0 { None } else { Some(spi(have)?) },
            local: (0..local).map(|_| self.selector(kind)).collect::<Result<_, _>>()?,
            remote: (0..remote).map(|_| self.selector(kind)).collect::<Result<_, _>>()?,
        })
    }

    fn selector(&mut self, kind: u8) -> Result<TrafficSelector, MessageFault> {
        let short = MessageFault::Length(kind);
        let [family, proto, _, _] = self.take().ok_or(short)?;
        let start = u16::from_be_bytes(self.take().ok_or(short)?);
        let end = u16::from_be_bytes(self.take().ok_or(short)?);
        let (first, last) = (self.take::<16>().ok_or(short)?, self.take::<16>().ok_or(short)?);
        let addr = |octets: [u8; 16]| match family {
            4 => Some(IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]))),
            6 => Some(IpAddr::V6(Ipv6Addr::from(octets))),
            _ => None,
        };
        let range = addr(first).zip(addr(last)).and_then(|(start, end)| AddrRange::new(start, end));
        Ok(TrafficSelector {
            addrs: range.ok_or(MessageFault::Value("range of addresses"))?,
            proto: (proto != 0).then_some(IpProto(proto)),
            ports: PortRange { start, end },
        })
    }

    fn grant(&mut self, kind: u8) -> Result<Grant, MessageFault> {
        let short = MessageFault::Length(kind);
        let id = self.u32().ok_or(short)?;
        let spi = spi(self.u32().ok_or(short)?)?;
        let [version, max_crypt_offset, high, low] = self.take().ok_or(short)?;
        let remaining_s = self.u32().ok_or(short)?;
        let [flags, _, _, _] = self.take().ok_or(short)?;
        let version = PspVersion::try_from(version).ok().filter(|version| version.key_len().is_some());
        Ok(Grant {
            id,
            spi,
            version: version.ok_or(MessageFault::Value("PSP version"))?,
            max_crypt_offset,
            port: u16::from_be_bytes([high, low]),
            remaining_s,
            window: flags & 1 == 1,
            key: TrafficKey(self.take().ok_or(short)?),
        })
    }

    fn reason(&mut self, kind: u8) -> Result<(Code, String), MessageFault> {
        let code = Code(u16::from_be_bytes(self.take().ok_or(MessageFault::Length(kind))?));
        let text = std::mem::take(&mut self.0);
        // The text is logged: control characters must not start a new line or reach a terminal.
        let text = String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]);
        let printable: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        Ok((code, truncate(&printable).to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addrs() -> impl Strategy<Value = AddrRange> {
        let v4 = any::<(u32, u32)>().prop_map(|(a, b)| {
            AddrRange::new(Ipv4Addr::from_bits(a.min(b)).into(), Ipv4Addr::from_bits(a.max(b)).into()).unwrap()
        });
        let v6 = any::<(u128, u128)>().prop_map(|(a, b)| {
            AddrRange::new(Ipv6Addr::from_bits(a.min(b)).into(), Ipv6Addr::from_bits(a.max(b)).into()).unwrap()
        });
        prop_oneof![v4, v6]
    }

    fn selectors() -> impl Strategy<Value = Vec<TrafficSelector>> {
        let one = (addrs(), any::<u8>(), any::<(u16, u16)>()).prop_map(|(addrs, proto, (start, end))| {
            TrafficSelector { addrs, proto: (proto != 0).then_some(IpProto(proto)), ports: PortRange { start, end } }
        });
        prop::collection::vec(one, 0..=MAX_SELECTORS)
    }

    fn spis() -> impl Strategy<Value = PspSpi> {
        any::<u32>().prop_filter_map("low bits", |raw| PspSpi::try_from(raw).ok())
    }

    fn messages() -> impl Strategy<Value = Message> {
        let reason = (any::<u16>(), "[a-z é]{0,80}");
        prop_oneof![
            any::<(u8, u8, u64)>().prop_map(|(min, max, boot)| Message::Hello { min, max, boot }),
            (
                any::<(u32, bool, bool)>(),
                prop::collection::vec(0u8..16, 1..=4),
                prop::option::of(spis()),
                (selectors(), selectors())
            )
                .prop_map(|((id, tunnel, counts), versions, have, (local, remote))| {
                    let mode = if tunnel { Mode::Tunnel } else { Mode::Transport };
                    Message::Want(Want { id, mode, counts, versions, have, local, remote })
                }),
            (any::<(u32, u8, u16, u32, bool)>(), spis(), 0u8..4, any::<[u8; 32]>()).prop_map(
                |((id, max_crypt_offset, port, remaining_s, window), spi, version, key)| {
                    let version = PspVersion::try_from(version).unwrap();
                    let key = TrafficKey(key);
                    Message::Grant(Grant { id, spi, version, max_crypt_offset, port, remaining_s, window, key })
                }
            ),
            (any::<u32>(), spis()).prop_map(|(id, spi)| Message::Using { id, spi }),
            (any::<u32>(), reason).prop_map(|(id, (code, text))| Message::Refuse { id, code: Code(code), text }),
            any::<u32>().prop_map(|id| Message::Release { id }),
            Just(Message::Ping),
            Just(Message::Pong),
            reason.prop_map(|(code, text)| Message::Fault { code: Code(code), text }),
            (OPTIONAL..).prop_map(Message::Unknown),
        ]
    }

    proptest! {
        #[test]
        fn an_emitted_message_parses_to_the_same(message in messages()) {
            let frame = message.emit();
            prop_assert_eq!(frame_len(&frame), Ok(Some(frame.len())));
            prop_assert_eq!(Message::parse(&frame), Ok(message));
        }

        #[test]
        fn a_truncated_message_is_an_error(message in messages(), cut in any::<prop::sample::Index>()) {
            let frame = message.emit();
            let at = cut.index(frame.len());
            prop_assert!(Message::parse(&frame[..at]).is_err());
            prop_assert!(frame_len(&frame[..at]).is_ok());
        }

        #[test]
        fn a_parsed_message_survives_emit_and_parse(
            kind in 0u8..=130, body in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let frame = [&[kind, 0, 0, body.len() as u8], &body[..]].concat();
            if let Ok(message) = Message::parse(&frame) {
                prop_assert_eq!(Message::parse(&message.emit()), Ok(message));
            }
        }
    }

    #[test]
    fn a_length_above_the_maximum_is_refused_before_the_body_arrives() {
        assert_eq!(frame_len(&[2, 0, 0xff, 0xff]), Err(MessageFault::TooLong(65_535)));
        assert_eq!(frame_len(&[2, 0, 1]), Ok(None));
        assert_eq!(frame_len(&[2, 0, 1, 0]), Ok(Some(260)));
    }

    #[test]
    fn a_reason_that_is_not_utf8_is_truncated_like_any_other() {
        let frame = [&[9, 0, 0, 202, 0, 1][..], &[0xff; 200]].concat();
        let message = Message::parse(&frame).unwrap();
        assert_eq!(Message::parse(&message.emit()), Ok(message));
    }

    #[test]
    fn values_out_of_range_are_named() {
        let frame = |kind: u8, body: &[u8]| [&[kind, 0, 0, body.len() as u8], body].concat();
        let parse = |kind, body: &[u8]| Message::parse(&frame(kind, body)).unwrap_err();
        assert_eq!(parse(1, b"PSPX\x01\x01\0\0\0\0\0\0\0\0\0\0"), MessageFault::Value("magic number"));
        assert_eq!(parse(4, &[0, 0, 0, 1, 0x80, 0, 0, 0]), MessageFault::Value("SPI"));
        assert_eq!(parse(2, &[0, 0, 0, 1, 3, 0, 0, 0, 0, 255, 255, 255, 0, 0, 0, 0]), MessageFault::Value("mode"));
        assert_eq!(
            parse(2, &[0, 0, 0, 1, 1, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]),
            MessageFault::Value("PSP version")
        );
        assert_eq!(
            parse(2, &[0, 0, 0, 1, 1, 0, 17, 0, 0, 255, 255, 255, 0, 0, 0, 0]),
            MessageFault::Value("number of selectors")
        );
        assert_eq!(parse(10, &[]), MessageFault::Type(10));
        assert_eq!(parse(7, &[0]), MessageFault::Length(7));
    }

    /// The examples of docs/psp-key-service.md.
    #[test]
    fn documented_bytes() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let hello = Message::Hello { min: 1, max: 1, boot: 0x0123_4567_89ab_cdef };
        assert_eq!(hex(&hello.emit()), "010000105053504b010100000123456789abcdef");
        let ts = |text: &str| vec![text.parse().unwrap()];
        let want = Want {
            id: 1,
            mode: Mode::Tunnel,
            counts: true,
            versions: vec![1, 0],
            have: None,
            local: ts("10.1.0.0/16"),
            remote: ts("10.2.0.0/16"),
        };
        let selector = |addr: &str| format!("040000000000ffff{addr}0000{}{addr}ffff{}", "0".repeat(24), "0".repeat(24));
        let expected = format!("0200006000000001010101010100ffff00000000{}{}", selector("0a01"), selector("0a02"));
        assert_eq!(hex(&Message::Want(want).emit()), expected);
        let grant = Grant {
            id: 1,
            spi: PspSpi::try_from(0x1234_5678).unwrap(),
            version: PspVersion::AES_128_GCM,
            max_crypt_offset: 0,
            port: 1000,
            remaining_s: 86_400,
            window: true,
            key: TrafficKey::new(&[0xaa; 16]).unwrap(),
        };
        let key = format!("{}{}", "aa".repeat(16), "00".repeat(16));
        assert_eq!(
            hex(&Message::Grant(grant).emit()),
            format!("0300003400000001123456780000 03e8000151800100 0000{key}").replace(' ', "")
        );
        let refuse = Message::Refuse { id: 1, code: Code::NO_ASSOCIATION, text: "no".into() };
        assert_eq!(hex(&refuse.emit()), "050000080000000100046e6f");
    }
}
