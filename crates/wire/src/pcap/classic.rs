//! The pcap file format (draft-ietf-opsawg-pcap).

use super::{Input, LinkType, Order, Record, SNAP_LEN};
use crate::ParseError;

const MAGIC_US: u32 = 0xa1b2_c3d4;
const MAGIC_NS: u32 = 0xa1b2_3c4d;

/// The part of a file that is still to be read.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    rest: Input<'a>,
    link_type: LinkType,
    ns_per_tick: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a [u8]) -> Result<Self, ParseError> {
        let magic: &[u8; 4] =
            file.first_chunk().ok_or(ParseError::Truncated { what: "capture file", need: 4, have: file.len() })?;
        let (big, ns_per_tick) = match (u32::from_be_bytes(*magic), u32::from_le_bytes(*magic)) {
            (MAGIC_US, _) => (true, 1000),
            (MAGIC_NS, _) => (true, 1),
            (_, MAGIC_US) => (false, 1000),
            (_, MAGIC_NS) => (false, 1),
            _ => return Err(ParseError::Malformed { what: "capture file", why: "is neither pcap nor pcapng" }),
        };
        let mut rest = Input { what: "pcap file header", bytes: file, order: Order { big } };
        rest.take(20)?;
        // The upper half may speak of the length of frame check sequences.
        let link_type = LinkType(rest.u32()? as u16);
        rest.what = "pcap record";
        Ok(Self { rest, link_type, ns_per_tick })
    }

    pub(super) fn next(&mut self) -> Result<Option<Record<'a>>, ParseError> {
        if self.rest.bytes.is_empty() {
            return Ok(None);
        }
        let (seconds, fraction) = (self.rest.u32()?, self.rest.u32()?);
        let (len, orig_len) = (self.rest.u32()?, self.rest.u32()?);
        let data = self.rest.take(len as usize)?;
        let ts_ns = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.ns_per_tick;
        Ok(Some(Record { ts_ns, link_type: self.link_type, orig_len, data }))
    }
}

/// Appends the header of a little-endian file with times in ns.
pub fn emit_classic_header(out: &mut Vec<u8>, link_type: LinkType) {
    out.extend_from_slice(&MAGIC_NS.to_le_bytes());
    out.extend_from_slice(&[2, 0, 4, 0]); // version 2.4
    out.extend_from_slice(&[0; 8]); // time zone and accuracy, unused
    out.extend_from_slice(&SNAP_LEN.to_le_bytes());
    out.extend_from_slice(&u32::from(link_type.0).to_le_bytes());
}

/// Appends a record: `data` is what was kept of a packet of `orig_len` bytes. Times from 2106 on
/// are written as the last second of the format.
pub fn emit_classic_record(out: &mut Vec<u8>, ts_ns: u64, orig_len: u32, data: &[u8]) {
    let seconds = u32::try_from(ts_ns / 1_000_000_000).unwrap_or(u32::MAX);
    for field in [seconds, (ts_ns % 1_000_000_000) as u32, data.len() as u32, orig_len] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    out.extend_from_slice(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcap::{PcapFormat, PcapSlice};

    fn file(magic: u32, big: bool) -> Vec<u8> {
        let words = [magic, 0x0002_0004, 0, 0, 65_535, 0x1400_0001, 1_700_000_000, 5, 3, 60];
        let mut file: Vec<u8> =
            words.iter().flat_map(|word| if big { word.to_be_bytes() } else { word.to_le_bytes() }).collect();
        file.extend_from_slice(b"abc");
        file
    }

    #[test]
    fn both_orders_and_resolutions_are_read() {
        for big in [false, true] {
            for (magic, fraction) in [(MAGIC_US, 5000), (MAGIC_NS, 5)] {
                let file = file(magic, big);
                let records: Vec<_> = PcapSlice::records(&file).collect();
                let expected = Record {
                    ts_ns: 1_700_000_000_000_000_000 + fraction,
                    link_type: LinkType::ETHERNET,
                    orig_len: 60,
                    data: b"abc",
                };
                assert_eq!(records, [Ok(expected)]);
                assert!(expected.is_cut());
            }
        }
    }

    #[test]
    fn a_cut_file_says_so_at_its_end() {
        let file = file(MAGIC_US, false);
        for len in 0..24 {
            assert!(
                matches!(PcapSlice::records(&file[..len]).next(), Some(Err(ParseError::Truncated { .. }))),
                "{len}"
            );
        }
        assert_eq!(PcapSlice::records(&file[..24]).next(), None);
        for len in 25..file.len() {
            let records: Vec<_> = PcapSlice::records(&file[..len]).collect();
            assert!(matches!(records[..], [Err(ParseError::Truncated { what: "pcap record", .. })]), "{len}");
        }
    }

    #[test]
    fn what_was_written_reads_back() {
        let mut out = Vec::new();
        emit_classic_header(&mut out, LinkType::RAW);
        assert_eq!(PcapSlice::format(&out), Ok(PcapFormat::Classic));
        emit_classic_record(&mut out, 1_700_000_000_123_456_789, 4, b"\x45abc");
        emit_classic_record(&mut out, 0, 9, b"");
        let records: Vec<_> = PcapSlice::records(&out).map(Result::unwrap).collect();
        assert_eq!((records[0].ts_ns, records[0].data), (1_700_000_000_123_456_789, &b"\x45abc"[..]));
        assert_eq!((records[1].orig_len, records[1].link_type, records.len()), (9, LinkType::RAW, 2));
    }
}
