//! Records of pcap and pcapng captures, read from and written to byte slices.
//!
//! [`PcapSlice`] detects the format by the first bytes and then reads the file record by record, in
//! either format and byte order; `pcap/classic.rs` and `pcap/ng.rs` implement the formats,
//! `pcap/link.rs` finds the IP packet after a link-layer header.

mod classic;
mod link;
mod ng;

use crate::ParseError;

pub use classic::{emit_classic_header, emit_classic_record};
pub use link::{LinkError, LinkType, ip_payload};
pub use ng::{MAX_INTERFACES, emit_ng_header, emit_ng_interface, emit_ng_packet};

/// Largest packet that is written and that file headers announce, in bytes.
pub const SNAP_LEN: u32 = 262_144;

/// One packet of a capture.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Record<'a> {
    /// Time of capture in ns since 1970; 0 where the format has none (simple packet blocks).
    pub ts_ns: u64,
    /// Format of `data`.
    pub link_type: LinkType,
    /// Bytes that the packet had on the wire; more than `data` where the capture cut it.
    pub orig_len: u32,
    /// The bytes that were captured.
    pub data: &'a [u8],
}

impl Record<'_> {
    /// True when the capture did not keep the whole packet.
    pub fn is_cut(&self) -> bool {
        self.orig_len as usize > self.data.len()
    }
}

/// The two file formats.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PcapFormat {
    /// pcap, with times in µs or ns.
    Classic,
    /// pcapng.
    Ng,
}

/// A capture file that is completely in memory.
#[derive(Clone, Copy, Debug)]
pub struct PcapSlice;

impl PcapSlice {
    /// The format that the start of `file` names.
    ///
    /// # Errors
    /// [`ParseError`] when it is no capture.
    pub fn format(file: &[u8]) -> Result<PcapFormat, ParseError> {
        match file.first_chunk::<4>() {
            // This block type is a palindrome, so that it is found before the byte order is known.
            Some(&ng::SECTION_HEADER) => Ok(PcapFormat::Ng),
            _ => classic::Reader::new(file).map(|_| PcapFormat::Classic),
        }
    }

    /// The records of `file`. What is no capture, cut off or broken yields one error where it is,
    /// and nothing after it.
    pub fn records(file: &[u8]) -> Records<'_> {
        Records(match Self::format(file) {
            Ok(PcapFormat::Ng) => State::Ng(ng::Reader::new(file)),
            Ok(PcapFormat::Classic) => classic::Reader::new(file).map_or_else(State::Failed, State::Classic),
            Err(error) => State::Failed(error),
        })
    }
}

/// The records of a capture, see [`PcapSlice::records`].
#[derive(Clone, Debug)]
pub struct Records<'a>(State<'a>);

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "one per file; a box would be this crate's only allocation")]
enum State<'a> {
    Classic(classic::Reader<'a>),
    Ng(ng::Reader<'a>),
    Failed(ParseError),
    Ended,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = match &mut self.0 {
            State::Classic(reader) => reader.next().transpose(),
            State::Ng(reader) => reader.next().transpose(),
            State::Failed(error) => Some(Err(*error)),
            State::Ended => None,
        };
        // After an error the start of the next record is unknown.
        if !matches!(next, Some(Ok(_))) {
            self.0 = State::Ended;
        }
        next
    }
}

/// Numbers in the byte order that a file was written in.
#[derive(Clone, Copy, Debug)]
struct Order {
    big: bool,
}

impl Order {
    fn u16(self, bytes: [u8; 2]) -> u16 {
        if self.big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    }

    fn u32(self, bytes: [u8; 4]) -> u32 {
        if self.big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    fn u64(self, bytes: [u8; 8]) -> u64 {
        if self.big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
    }
}

/// Unread rest of a structure.
#[derive(Clone, Copy, Debug)]
struct Input<'a> {
    what: &'static str,
    bytes: &'a [u8],
    order: Order,
}

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], ParseError> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or(ParseError::Truncated {
            what: self.what,
            need: len,
            have: self.bytes.len(),
        })?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let cut = ParseError::Truncated { what: self.what, need: N, have: self.bytes.len() };
        let (taken, rest) = self.bytes.split_first_chunk().ok_or(cut)?;
        self.bytes = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16, ParseError> {
        Ok(self.order.u16(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, ParseError> {
        Ok(self.order.u32(self.array()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn starts() -> impl Strategy<Value = Vec<u8>> {
        let mut ng = Vec::new();
        emit_ng_header(&mut ng);
        emit_ng_interface(&mut ng, LinkType::RAW);
        emit_ng_packet(&mut ng, 0, 7, 3, b"abc");
        let mut classic = Vec::new();
        emit_classic_header(&mut classic, LinkType::RAW);
        emit_classic_record(&mut classic, 7, 3, b"abc");
        prop_oneof![Just(ng), Just(classic), Just(vec![])]
    }

    #[test]
    fn what_is_no_capture_says_so() {
        for file in [&b""[..], b"abc", b"#!/bin/sh, and so on for a while"] {
            assert!(PcapSlice::format(file).is_err());
            let records: Vec<_> = PcapSlice::records(file).collect();
            assert!(matches!(records[..], [Err(_)]), "{records:?}");
        }
    }

    proptest! {
        #[test]
        fn damaged_files_do_no_harm(
            start in starts(),
            tail in proptest::collection::vec(any::<u8>(), 0..80),
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let mut file = [start, tail].concat();
            for (at, value) in damage {
                if !file.is_empty() {
                    let at = at.index(file.len());
                    file[at] = value;
                }
            }
            let bytes = file.len();
            for (n, record) in PcapSlice::records(&file).enumerate() {
                prop_assert!(n <= bytes / 8);
                if let Ok(record) = record {
                    let _ = ip_payload(record.link_type, record.data);
                }
            }
        }
    }
}
