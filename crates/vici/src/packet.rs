//! Packets and the segments that carry them over a stream.
//!
//! A segment is a length of four bytes and as many bytes; they are one packet: its kind, for some
//! kinds a name, for some a message.

use std::io::{self, Read};

use zeroize::{Zeroize, Zeroizing};

use super::message::{EmitError, MAX_NAME, MAX_SEGMENT, Message};

/// Bytes of the length before a segment.
pub const HEADER_BYTES: usize = 4;

/// Type of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Kind {
    /// A command with its name and arguments.
    Request = 0,
    /// Reply to a command.
    Response = 1,
    /// Unknown command.
    UnknownCommand = 2,
    /// Registers for an event.
    Register = 3,
    /// Unregisters from an event.
    Unregister = 4,
    /// It is so.
    Confirm = 5,
    /// Unknown event.
    UnknownEvent = 6,
    /// An event with its name and message.
    Event = 7,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Request,
        Self::Response,
        Self::UnknownCommand,
        Self::Register,
        Self::Unregister,
        Self::Confirm,
        Self::UnknownEvent,
        Self::Event,
    ];

    const fn is_named(self) -> bool {
        matches!(self, Self::Request | Self::Register | Self::Unregister | Self::Event)
    }

    const fn has_message(self) -> bool {
        matches!(self, Self::Request | Self::Response | Self::Event)
    }
}

/// Reason why a segment is not a valid packet. The connection is unusable after such an error.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// Above [`MAX_SEGMENT`], by its own account.
    #[error("a segment of {0} bytes is announced; the limit is {MAX_SEGMENT}")]
    TooLong(u32),
    /// Fewer bytes than the length of the name, or none.
    #[error("the packet ends within its head")]
    Truncated,
    /// A kind other than 0 to 7.
    #[error("there is no packet type {0}")]
    UnknownKind(u8),
    /// A name that is not text.
    #[error("the packet's name is not UTF-8")]
    Name,
    /// Bytes after a kind of packet without a message.
    #[error("the packet is longer than its kind allows")]
    Trailing,
}

/// A packet over the bytes of its segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Packet<'a> {
    /// Type.
    pub kind: Kind,
    /// Command or event; empty for kinds without a name.
    pub name: &'a str,
    /// The message, to be parsed; empty for kinds without one.
    pub body: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads the packet that fills `segment`.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn parse(segment: &'a [u8]) -> Result<Self, PacketError> {
        let (kind, mut rest) = segment.split_first().ok_or(PacketError::Truncated)?;
        let kind = *Kind::ALL.get(usize::from(*kind)).ok_or(PacketError::UnknownKind(*kind))?;
        let mut name = "";
        if kind.is_named() {
            let (length, after) = rest.split_first().ok_or(PacketError::Truncated)?;
            let (bytes, after) = after.split_at_checked((*length).into()).ok_or(PacketError::Truncated)?;
            name = std::str::from_utf8(bytes).map_err(|_| PacketError::Name)?;
            rest = after;
        }
        if !kind.has_message() && !rest.is_empty() {
            return Err(PacketError::Trailing);
        }
        Ok(Self { kind, name, body: rest })
    }
}

/// Writes a packet with the length before it. The name counts for kinds that have one, the message
/// likewise.
///
/// # Errors
/// When a length does not fit.
pub fn segment(kind: Kind, name: &str, message: &Message) -> Result<Zeroizing<Vec<u8>>, EmitError> {
    let name = if kind.is_named() { name } else { "" };
    if name.len() > MAX_NAME {
        return Err(EmitError::LongName(name.chars().take(40).collect()));
    }
    let body = if kind.has_message() { message.emit()? } else { Zeroizing::default() };
    let length = 1 + usize::from(kind.is_named()) + name.len() + body.len();
    if length > MAX_SEGMENT {
        return Err(EmitError::TooLarge);
    }
    let mut out = Zeroizing::new(Vec::with_capacity(HEADER_BYTES + length));
    out.extend((length as u32).to_be_bytes());
    out.push(kind as u8);
    if kind.is_named() {
        out.push(name.len() as u8);
        out.extend(name.as_bytes());
    }
    out.extend(body.iter());
    Ok(out)
}

/// Collects one segment from a stream that may deliver it in pieces.
#[derive(Default)]
pub struct SegmentReader {
    header: [u8; HEADER_BYTES],
    header_filled: usize,
    /// Allocated once, for the announced length, so that no copy of a secret remains in freed
    /// memory.
    body: Zeroizing<Vec<u8>>,
}

/// Result of a read.
#[derive(Debug, Eq, PartialEq)]
pub enum Progress {
    /// A segment; the reader is empty again.
    Segment(Zeroizing<Vec<u8>>),
    /// More is to come.
    Partial,
    /// End of file.
    End,
}

impl SegmentReader {
    /// Reads once or twice, and never beyond the segment.
    ///
    /// # Errors
    /// Errors of the stream, among them `WouldBlock`, after which the caller should try again;
    /// `InvalidData` with a [`PacketError`] when the announced length is above the limit;
    /// `UnexpectedEof` within a segment.
    pub fn read(&mut self, stream: &mut impl Read) -> io::Result<Progress> {
        if self.header_filled < HEADER_BYTES {
            let count = retry(|| stream.read(&mut self.header[self.header_filled..]))?;
            if count == 0 {
                return if self.header_filled == 0 { Ok(Progress::End) } else { Err(eof()) };
            }
            self.header_filled += count;
            if self.header_filled < HEADER_BYTES {
                return Ok(Progress::Partial);
            }
            let length = u32::from_be_bytes(self.header);
            if length as usize > MAX_SEGMENT {
                return Err(io::Error::new(io::ErrorKind::InvalidData, PacketError::TooLong(length)));
            }
            self.body = Zeroizing::new(Vec::with_capacity(length as usize));
        }
        let length = u32::from_be_bytes(self.header) as usize;
        let mut piece = [0; 16 << 10];
        let wanted = (length - self.body.len()).min(piece.len());
        if wanted > 0 {
            let count = retry(|| stream.read(&mut piece[..wanted]))?;
            if count == 0 {
                return Err(eof());
            }
            self.body.extend_from_slice(&piece[..count]);
            piece[..count].zeroize();
        }
        if self.body.len() < length {
            return Ok(Progress::Partial);
        }
        self.header_filled = 0;
        Ok(Progress::Segment(std::mem::take(&mut self.body)))
    }
}

fn eof() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the stream ends within a segment")
}

/// Repeats a system call after an interruption by a signal.
pub(super) fn retry<T>(mut step: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match step() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::tests::any_message;
    use super::*;
    use proptest::prelude::*;

    /// Gives its bytes in pieces of the lengths, over and over.
    struct Pieces<'a>(&'a [u8], std::iter::Cycle<std::vec::IntoIter<usize>>);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.1.next().unwrap().min(into.len()).min(self.0.len());
            into[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    #[test]
    fn packets_by_hand() {
        let parse = Packet::parse;
        assert_eq!(parse(b"\x00\x05stats"), Ok(Packet { kind: Kind::Request, name: "stats", body: b"" }));
        assert_eq!(parse(b"\x01\x03"), Ok(Packet { kind: Kind::Response, name: "", body: b"\x03" }));
        assert_eq!(parse(b"\x05"), Ok(Packet { kind: Kind::Confirm, name: "", body: b"" }));
        assert_eq!(parse(b""), Err(PacketError::Truncated));
        assert_eq!(parse(b"\x00"), Err(PacketError::Truncated));
        assert_eq!(parse(b"\x00\x05stat"), Err(PacketError::Truncated));
        assert_eq!(parse(b"\x08"), Err(PacketError::UnknownKind(8)));
        assert_eq!(parse(b"\x03\x01\xff"), Err(PacketError::Name));
        assert_eq!(parse(b"\x03\x01ab"), Err(PacketError::Trailing));
        assert_eq!(&segment(Kind::Register, "log", &Message::new()).unwrap()[..], b"\0\0\0\x05\x03\x03log");
        assert_eq!(&segment(Kind::UnknownEvent, "log", &Message::new()).unwrap()[..], b"\0\0\0\x01\x06");
    }

    #[test]
    fn an_oversize_segment_is_refused_before_its_bytes() {
        let mut reader = SegmentReader::default();
        let error = reader.read(&mut &b"\x00\x08\x00\x01"[..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("524289"), "{error}");
        let mut reader = SegmentReader::default();
        assert_eq!(reader.read(&mut &b"\x00\x08\x00\x00"[..]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    proptest! {
        #[test]
        fn segments_survive_any_cutting(
            messages in proptest::collection::vec(any_message(), 1..4),
            lengths in proptest::collection::vec(1..40usize, 1..6),
        ) {
            let sent: Vec<_> = messages.iter().map(|m| segment(Kind::Event, "log", m).unwrap()).collect();
            let stream = sent.iter().flat_map(|s| s.to_vec()).collect::<Vec<u8>>();
            let mut pieces = Pieces(&stream, lengths.into_iter().cycle());
            let mut reader = SegmentReader::default();
            let mut received = Vec::new();
            loop {
                match reader.read(&mut pieces).unwrap() {
                    Progress::Segment(bytes) => {
                        let packet = Packet::parse(&bytes).unwrap();
                        prop_assert_eq!((packet.kind, packet.name), (Kind::Event, "log"));
                        received.push(Message::parse(packet.body).unwrap());
                    }
                    Progress::Partial => {}
                    Progress::End => break,
                }
            }
            prop_assert_eq!(received, messages);
        }

        #[test]
        fn any_bytes_are_a_packet_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(packet) = Packet::parse(&bytes) {
                prop_assert!(packet.body.len() < bytes.len());
            }
        }
    }
}
