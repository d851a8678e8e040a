//! The pcapng file format (draft-ietf-opsawg-pcapng): sections of blocks.

use super::{Input, LinkType, Order, Record, SNAP_LEN};
use crate::ParseError;

/// Limit of interfaces per section; 24 bytes each.
pub const MAX_INTERFACES: usize = 256;

/// Block type of a section header, the same in both byte orders.
pub(super) const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

const OPT_END: u16 = 0;
const OPT_TSRESOL: u16 = 9;
const OPT_TSOFFSET: u16 = 14;

#[derive(Clone, Copy, Debug)]
struct Interface {
    link_type: LinkType,
    snap_len: u32,
    /// Ticks per second: a power of 10, or of 2 with the top bit set.
    tsresol: u8,
    /// Seconds to add to every time.
    tsoffset_s: i64,
}

impl Interface {
    const UNKNOWN: Self = Self { link_type: LinkType(0), snap_len: 0, tsresol: 6, tsoffset_s: 0 };

    fn ts_ns(&self, ticks: u64) -> u64 {
        const NS: u128 = 1_000_000_000;
        let exponent = u32::from(self.tsresol & 0x7f);
        let base: u128 = if self.tsresol & 0x80 != 0 { 2 } else { 10 };
        // Ticks too fine for 128 bits are far below a nanosecond for any 64-bit count.
        let ns = base.checked_pow(exponent).map_or(0, |per_second| u128::from(ticks) * NS / per_second);
        let ns = ns as i128 + i128::from(self.tsoffset_s) * NS as i128;
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

/// The part of a file that is still to be read, and the interfaces of the section it is in.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    order: Order,
    interfaces: [Interface; MAX_INTERFACES],
    known: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a [u8]) -> Self {
        let interfaces = [Interface::UNKNOWN; MAX_INTERFACES];
        Self { rest: file, order: Order { big: false }, interfaces, known: 0 }
    }

    pub(super) fn next(&mut self) -> Result<Option<Record<'a>>, ParseError> {
        while !self.rest.is_empty() {
            let (kind, body) = self.block()?;
            match kind {
                // Interface IDs restart in each section.
                SECTION => self.known = 0,
                INTERFACE => self.interface(body)?,
                ENHANCED_PACKET => return self.enhanced(body).map(Some),
                OBSOLETE_PACKET => return self.obsolete(body).map(Some),
                SIMPLE_PACKET => return self.simple(body).map(Some),
                _ => {} // statistics, names, secrets, …
            }
        }
        Ok(None)
    }

    /// Takes one block off the file; a section header sets the byte order first.
    fn block(&mut self) -> Result<(u32, Input<'a>), ParseError> {
        const WHAT: &str = "pcapng block";
        let head: &[u8; 12] =
            self.rest.first_chunk().ok_or(ParseError::Truncated { what: WHAT, need: 12, have: self.rest.len() })?;
        let [kind, len, magic]: [[u8; 4]; 3] = zerocopy::transmute!(*head);
        // The length of a section header is in the byte order of that section, so that the magic is
        // read before the length.
        if kind == SECTION_HEADER {
            self.order.big = match (u32::from_be_bytes(magic), u32::from_le_bytes(magic)) {
                (BYTE_ORDER, _) => true,
                (_, BYTE_ORDER) => false,
                _ => return Err(ParseError::Malformed { what: "pcapng section", why: "byte-order magic is wrong" }),
            };
        }
        let len = self.order.u32(len) as usize;
        if len < 12 || !len.is_multiple_of(4) {
            return Err(ParseError::Malformed { what: WHAT, why: "length is below 12 or no multiple of 4" });
        }
        let have = self.rest.len();
        let (block, rest) =
            self.rest.split_at_checked(len).ok_or(ParseError::Truncated { what: WHAT, need: len, have })?;
        if block[4..8] != block[len - 4..] {
            return Err(ParseError::Malformed { what: WHAT, why: "the two lengths disagree" });
        }
        self.rest = rest;
        Ok((self.order.u32(kind), Input { what: WHAT, bytes: &block[8..len - 4], order: self.order }))
    }

    fn interface(&mut self, mut body: Input<'a>) -> Result<(), ParseError> {
        body.what = "pcapng interface";
        let link_type = LinkType(body.u16()?);
        body.u16()?;
        let mut interface = Interface { link_type, snap_len: body.u32()?, ..Interface::UNKNOWN };
        while !body.bytes.is_empty() {
            let (code, len) = (body.u16()?, usize::from(body.u16()?));
            if code == OPT_END {
                break;
            }
            let value = body.take(len)?;
            // The last option may come without its padding.
            body.take((len.next_multiple_of(4) - len).min(body.bytes.len()))?;
            match (code, value) {
                (OPT_TSRESOL, &[resolution]) => interface.tsresol = resolution,
                (OPT_TSOFFSET, value) => {
                    if let Ok(seconds) = value.try_into() {
                        interface.tsoffset_s = self.order.u64(seconds) as i64;
                    }
                }
                _ => {}
            }
        }
        let slot = self.interfaces.get_mut(self.known);
        *slot.ok_or(ParseError::Malformed { what: "pcapng section", why: "more than 256 interfaces" })? = interface;
        self.known += 1;
        Ok(())
    }

    fn known_interface(&self, id: usize) -> Result<&Interface, ParseError> {
        self.interfaces[..self.known]
            .get(id)
            .ok_or(ParseError::Malformed { what: "pcapng packet", why: "its interface is not described" })
    }

    fn enhanced(&self, mut body: Input<'a>) -> Result<Record<'a>, ParseError> {
        let id = body.u32()? as usize;
        self.packet(id, body)
    }

    fn obsolete(&self, mut body: Input<'a>) -> Result<Record<'a>, ParseError> {
        let id = usize::from(body.u16()?);
        body.u16()?; // packets dropped before this one
        self.packet(id, body)
    }

    fn packet(&self, id: usize, mut body: Input<'a>) -> Result<Record<'a>, ParseError> {
        body.what = "pcapng packet";
        let interface = self.known_interface(id)?;
        let ticks = u64::from(body.u32()?) << 32 | u64::from(body.u32()?);
        let (len, orig_len) = (body.u32()?, body.u32()?);
        // Padding and options after the data stay unread.
        let data = body.take(len as usize)?;
        Ok(Record { ts_ns: interface.ts_ns(ticks), link_type: interface.link_type, orig_len, data })
    }

    /// A simple packet has no time, belongs to the first interface, and was cut at its limit.
    fn simple(&self, mut body: Input<'a>) -> Result<Record<'a>, ParseError> {
        body.what = "pcapng packet";
        let interface = self.known_interface(0)?;
        let orig_len = body.u32()?;
        let kept = if interface.snap_len == 0 { orig_len } else { orig_len.min(interface.snap_len) };
        let data = body.take(kept as usize)?;
        Ok(Record { ts_ns: 0, link_type: interface.link_type, orig_len, data })
    }
}

/// Appends the header of a little-endian section of unknown length.
pub fn emit_ng_header(out: &mut Vec<u8>) {
    emit_block(out, SECTION, |out| {
        out.extend_from_slice(&BYTE_ORDER.to_le_bytes());
        out.extend_from_slice(&[1, 0, 0, 0]); // version 1.0
        out.extend_from_slice(&u64::MAX.to_le_bytes());
    });
}

/// Appends the description of an interface with times in ns; interfaces count from 0.
pub fn emit_ng_interface(out: &mut Vec<u8>, link_type: LinkType) {
    emit_block(out, INTERFACE, |out| {
        out.extend_from_slice(&u32::from(link_type.0).to_le_bytes());
        out.extend_from_slice(&SNAP_LEN.to_le_bytes());
        out.extend_from_slice(&[OPT_TSRESOL as u8, 0, 1, 0, 9, 0, 0, 0]);
        out.extend_from_slice(&[OPT_END as u8, 0, 0, 0]);
    });
}

/// Appends an enhanced packet block: `data` is what was kept of a packet of `orig_len` bytes.
pub fn emit_ng_packet(out: &mut Vec<u8>, interface: u32, ts_ns: u64, orig_len: u32, data: &[u8]) {
    emit_block(out, ENHANCED_PACKET, |out| {
        for field in [interface, (ts_ns >> 32) as u32, ts_ns as u32, data.len() as u32, orig_len] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(data);
    });
}

/// Appends a block with what `body` appends, padded, between its two lengths.
fn emit_block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let padded = (out.len() - start).next_multiple_of(4);
    out.resize(start + padded, 0);
    let len = ((padded + 4) as u32).to_le_bytes();
    out.extend_from_slice(&len);
    out[start + 4..start + 8].copy_from_slice(&len);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcap::{PcapFormat, PcapSlice};

    /// A block in either byte order; `body` is a multiple of 4 bytes.
    fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
        let number = |n: u32| if big { n.to_be_bytes() } else { n.to_le_bytes() };
        let len = number(body.len() as u32 + 12);
        [&number(kind), &len, body, &len].concat()
    }

    fn words(big: bool, words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| if big { word.to_be_bytes() } else { word.to_le_bytes() }).collect()
    }

    fn section(big: bool) -> Vec<u8> {
        block(big, SECTION, &words(big, &[BYTE_ORDER, if big { 0x1_0000 } else { 1 }, u32::MAX, u32::MAX]))
    }

    fn interface(big: bool, link_type: u16, snap_len: u32, options: &[u8]) -> Vec<u8> {
        let link_type = if big { link_type.to_be_bytes() } else { link_type.to_le_bytes() };
        block(big, INTERFACE, &[&link_type, &[0, 0][..], &words(big, &[snap_len]), options].concat())
    }

    #[test]
    fn every_kind_of_packet_is_read_in_both_orders() {
        for big in [false, true] {
            let half = |a: u16, b: u16| {
                if big { u32::from(a) << 16 | u32::from(b) } else { u32::from(b) << 16 | u32::from(a) }
            };
            let file = [
                section(big),
                interface(big, 101, 6, &[]),
                interface(big, 1, 0, &words(big, &[half(9, 1), if big { 9 << 24 } else { 9 }, 0])),
                block(big, 5, &[0; 8]), // statistics
                block(big, ENHANCED_PACKET, &[words(big, &[1, 0, 77, 3, 60]), b"abc\0".to_vec()].concat()),
                block(big, SIMPLE_PACKET, &[words(big, &[9]), b"simple\0\0".to_vec()].concat()),
                block(big, OBSOLETE_PACKET, &[words(big, &[half(0, 5), 0, 2, 4, 4]), b"old!".to_vec()].concat()),
                section(!big), // interface numbers restart, in the other byte order
                interface(!big, 228, 0, &[]),
                block(!big, ENHANCED_PACKET, &words(!big, &[0, 1, 0, 0, 0])),
            ]
            .concat();
            let record =
                |ts_ns, link_type, orig_len, data| Ok(Record { ts_ns, link_type: LinkType(link_type), orig_len, data });
            let records: Vec<_> = PcapSlice::records(&file).collect();
            assert_eq!(
                records,
                [
                    record(77, 1, 60, b"abc"),
                    record(0, 101, 9, b"simple"),
                    record(2000, 101, 4, b"old!"),
                    record((1 << 32) * 1000, 228, 0, b""),
                ]
            );
        }
    }

    #[test]
    fn times_have_many_resolutions() {
        let ts = |tsresol, tsoffset_s, ticks| Interface { tsresol, tsoffset_s, ..Interface::UNKNOWN }.ts_ns(ticks);
        assert_eq!(ts(6, 0, 5), 5000);
        assert_eq!(ts(9, 0, u64::MAX), u64::MAX);
        assert_eq!(ts(0, 0, 5), 5_000_000_000);
        assert_eq!(ts(12, 0, 5999), 5);
        assert_eq!(ts(0x80 | 10, 0, 1536), 1_500_000_000);
        assert_eq!(ts(0x80 | 127, 0, u64::MAX), 0);
        assert_eq!(ts(127, 0, u64::MAX), 0);
        assert_eq!(ts(0, 0, u64::MAX), u64::MAX);
        assert_eq!(ts(6, 10, 5), 10_000_005_000);
        assert_eq!(ts(6, -10, 5), 0);
        assert_eq!(ts(0xff, i64::MIN, u64::MAX), 0);
    }

    #[test]
    fn what_was_written_reads_back() {
        let mut out = Vec::new();
        emit_ng_header(&mut out);
        assert_eq!(PcapSlice::format(&out), Ok(PcapFormat::Ng));
        emit_ng_interface(&mut out, LinkType::RAW);
        for len in 0..9 {
            emit_ng_packet(&mut out, 0, 1_700_000_000_123_456_789 + len, 1500, &b"abcdefghi"[..len as usize]);
        }
        assert!(out.len().is_multiple_of(4));
        for (len, record) in PcapSlice::records(&out).enumerate() {
            let record = record.unwrap();
            assert_eq!((record.data, record.orig_len), (&b"abcdefghi"[..len], 1500));
            assert_eq!(record.ts_ns, 1_700_000_000_123_456_789 + len as u64);
        }
        assert_eq!(PcapSlice::records(&out).count(), 9);
    }

    #[test]
    fn a_cut_file_says_so_at_its_end() {
        let mut out = Vec::new();
        emit_ng_header(&mut out);
        emit_ng_interface(&mut out, LinkType::RAW);
        let whole = [0, out.len() - 32, out.len()];
        emit_ng_packet(&mut out, 0, 1, 3, b"abc");
        for len in 4..out.len() {
            let records: Vec<_> = PcapSlice::records(&out[..len]).collect();
            if whole.contains(&len) {
                assert_eq!(records, [], "{len}");
            } else {
                assert!(matches!(records[..], [Err(ParseError::Truncated { .. })]), "{len}: {records:?}");
            }
        }
    }

    #[test]
    fn broken_blocks_are_refused() {
        let start = [section(false), interface(false, 101, 0, &[])].concat();
        for (bad, why) in [
            (block(false, ENHANCED_PACKET, &words(false, &[1, 0, 0, 0, 0])), "interface"),
            (block(false, ENHANCED_PACKET, &words(false, &[0, 0, 0, 1, 1])), "data"),
            (block(false, ENHANCED_PACKET, &words(false, &[0, 0, 0, u32::MAX, 1])), "data"),
            (block(false, SIMPLE_PACKET, &words(false, &[1])), "data"),
            (words(false, &[6, 8, 8]), "length below 12"),
            (words(false, &[6, 13, 13, 13]), "length no multiple of 4"),
            (words(false, &[6, 16, 0, 20]), "lengths disagree"),
            (words(false, &[SECTION, 12, 12]), "byte order"),
            (interface(false, 101, 0, &[9, 0, 5, 0]), "option"),
        ] {
            let file = [start.clone(), bad].concat();
            let records: Vec<_> = PcapSlice::records(&file).collect();
            assert!(matches!(records[..], [Err(_)]), "{why}: {records:?}");
        }
        let many = [section(false), interface(false, 101, 0, &[]).repeat(MAX_INTERFACES)].concat();
        assert_eq!(PcapSlice::records(&many).count(), 0);
        let more = [many, interface(false, 101, 0, &[])].concat();
        assert!(matches!(PcapSlice::records(&more).next(), Some(Err(_))));
    }
}
