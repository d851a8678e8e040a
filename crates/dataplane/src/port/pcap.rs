//! Capture files as ports: pcap and pcapng, raw IP and Ethernet.
//!
//! A reader holds its file in memory and knows where each record lies; a writer knows the link
//! types of its input, so that what was captured on Ethernet is written as Ethernet again.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use wire::IpPacket;
use wire::pcap::{
    LinkError, PcapSlice, Record, emit_classic_header, emit_classic_record, emit_ng_header, emit_ng_interface,
    emit_ng_packet, ip_payload,
};
pub use wire::pcap::{LinkType, PcapFormat};

use crate::Batch;

/// Largest file that is read, in bytes; it is held in memory, with 40 bytes more per record.
pub const MAX_FILE_BYTES: u64 = 4 << 30;

/// Reads a capture file, one packet at a time.
pub struct PcapReader {
    file: Vec<u8>,
    format: PcapFormat,
    records: Vec<Place>,
    /// What is wrong behind the last record.
    fault: Option<String>,
    next: usize,
}

/// A record, by where it lies.
struct Place {
    ts_ns: u64,
    start: usize,
    len: u32,
    orig_len: u32,
    link_type: LinkType,
}

/// One record of a capture.
#[derive(Clone, Copy, Debug)]
pub struct CapturedPacket<'a> {
    /// Number in the file, from 1, as Wireshark counts.
    pub number: usize,
    /// Offset of the record's data in the file, in bytes.
    pub offset: usize,
    /// Time of capture in ns since 1970.
    pub ts_ns: u64,
    /// What the record starts with.
    pub link_type: LinkType,
    /// The link-layer header with VLAN tags; empty for raw IP, and when there is no IP packet.
    pub link_header: &'a [u8],
    /// The IP packet without link-layer padding, or why there is none. Only its lengths were looked
    /// at, and when they are wrong it is everything after the link-layer header.
    pub ip: Result<&'a [u8], LinkError>,
    /// Everything captured.
    pub data: &'a [u8],
    /// The capture kept less than the packet had on the wire.
    pub truncated: bool,
}

impl PcapReader {
    /// Opens a capture.
    ///
    /// # Errors
    /// The file's; `InvalidData` with what is wrong and at which byte when it does not start as a
    /// capture does, or is larger than [`MAX_FILE_BYTES`].
    pub fn open(path: &Path) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mut bytes = Vec::new();
        File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)).map_err(named)?;
        Self::from_bytes(bytes).map_err(named)
    }

    /// A capture that is in memory already.
    ///
    /// # Errors
    /// As [`PcapReader::open`].
    pub fn from_bytes(file: Vec<u8>) -> io::Result<Self> {
        if file.len() as u64 > MAX_FILE_BYTES {
            return Err(invalid(format!("larger than {MAX_FILE_BYTES} bytes; split it (editcap -c)")));
        }
        let format =
            PcapSlice::format(&file).map_err(|error| invalid(format!("no pcap or pcapng file: at byte 0: {error}")))?;
        let (mut records, mut fault, mut end) = (vec![], None, 0);
        for record in PcapSlice::records(&file) {
            match record {
                Ok(record) => {
                    let place = Place::of(&record, &file);
                    end = place.start + record.data.len();
                    records.push(place);
                }
                Err(error) => fault = Some(format!("broken or cut off at or after byte {end}: {error}")),
            }
        }
        if let (Some(fault), true) = (&fault, records.is_empty()) {
            return Err(invalid(fault.clone()));
        }
        Ok(Self { file, format, records, fault, next: 0 })
    }

    /// The format of the file.
    pub fn format(&self) -> PcapFormat {
        self.format
    }

    /// The link type of the first record, if there is one.
    pub fn link_type(&self) -> Option<LinkType> {
        self.records.first().map(|place| place.link_type)
    }

    /// The next packet; `None` at the end of the file.
    ///
    /// # Errors
    /// `InvalidData` where the file is cut off or broken, after the packets before that place.
    #[expect(clippy::should_implement_trait, reason = "lends from the reader")]
    pub fn next(&mut self) -> io::Result<Option<CapturedPacket<'_>>> {
        let Some(place) = self.records.get(self.next) else {
            return self.fault.clone().map_or(Ok(None), |fault| Err(invalid(fault)));
        };
        self.next += 1;
        Ok(Some(place.packet(&self.file, self.next)))
    }

    /// Fills `into` with the IP packets that come next; link headers are stripped, and records that
    /// carry something else are passed over. Nothing more to come leaves it as it is.
    ///
    /// # Errors
    /// As [`PcapReader::next`], and for a packet longer than those of the batch; packets before the
    /// fault were delivered.
    pub fn rx(&mut self, into: &mut Batch) -> io::Result<()> {
        while into.room() > 0 {
            let Some(packet) = self.next()? else { break };
            let Ok(ip) = packet.ip else { continue };
            if !into.push_with(|to| to.set(ip)) {
                let (number, offset, len) = (packet.number, packet.offset, ip.len());
                return Err(invalid(format!(
                    "packet {number} at byte {offset}: {len} bytes are too many for the batch"
                )));
            }
        }
        Ok(())
    }
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl Place {
    fn of(record: &Record<'_>, file: &[u8]) -> Self {
        Self {
            ts_ns: record.ts_ns,
            // The data is part of the file, also when it is empty.
            start: (record.data.as_ptr() as usize).saturating_sub(file.as_ptr() as usize).min(file.len()),
            len: record.data.len() as u32,
            orig_len: record.orig_len,
            link_type: record.link_type,
        }
    }

    fn packet<'a>(&self, file: &'a [u8], number: usize) -> CapturedPacket<'a> {
        let data = file.get(self.start..self.start + self.len as usize).unwrap_or_default();
        let payload = ip_payload(self.link_type, data);
        let trimmed =
            |ip: &'a [u8]| IpPacket::parse(ip).ok().and_then(|packet| ip.get(..packet.total_len)).unwrap_or(ip);
        CapturedPacket {
            number,
            offset: self.start,
            ts_ns: self.ts_ns,
            link_type: self.link_type,
            link_header: payload.as_ref().map_or(&[][..], |(len, _)| &data[..*len]),
            ip: payload.map(|(_, rest)| trimmed(rest)),
            data,
            truncated: self.orig_len > self.len,
        }
    }
}

/// Writes a capture file. Nothing is promised to be on disk before [`PcapWriter::finish`].
pub struct PcapWriter {
    out: io::BufWriter<Box<dyn Write + Send>>,
    format: PcapFormat,
    /// Link types in the file; pcapng numbers its interfaces by their place here.
    link_types: Vec<LinkType>,
    scratch: Vec<u8>,
    frame: Vec<u8>,
}

impl PcapWriter {
    /// A file of raw IP packets with times in ns.
    ///
    /// # Errors
    /// The file's.
    pub fn create(path: &Path, format: PcapFormat) -> io::Result<Self> {
        Self::create_as(path, format, LinkType::RAW)
    }

    /// A file in the format and with the link type of `input`.
    ///
    /// # Errors
    /// The file's.
    pub fn create_like(path: &Path, input: &PcapReader) -> io::Result<Self> {
        Self::create_as(path, input.format, input.link_type().unwrap_or(LinkType::RAW))
    }

    fn create_as(path: &Path, format: PcapFormat, link_type: LinkType) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = File::create(path).map_err(named)?;
        Self::to(Box::new(file), format, link_type).map_err(named)
    }

    /// A capture written to anything; a pcapng capture takes further link types as they come.
    ///
    /// # Errors
    /// The writer's.
    pub fn to(out: Box<dyn Write + Send>, format: PcapFormat, link_type: LinkType) -> io::Result<Self> {
        let (out, link_type) = (io::BufWriter::new(out), either_version(link_type));
        let mut writer = Self { out, format, link_types: vec![link_type], scratch: vec![], frame: vec![] };
        match format {
            PcapFormat::Classic => emit_classic_header(&mut writer.scratch, link_type),
            PcapFormat::Ng => {
                emit_ng_header(&mut writer.scratch);
                emit_ng_interface(&mut writer.scratch, link_type);
            }
        }
        writer.out.write_all(&writer.scratch)?;
        Ok(writer)
    }

    /// Writes an IP packet as raw IP, or with an empty header where the file has another link type.
    ///
    /// # Errors
    /// The file's.
    pub fn write(&mut self, ts_ns: u64, ip: &[u8]) -> io::Result<()> {
        let link_type = self.link_types.first().copied().unwrap_or(LinkType::RAW);
        self.put(ts_ns, link_type, &[], ip)
    }

    /// Writes `ip` in the place of the packet in `original`: with its time and its link-layer
    /// header, in which only the protocol follows the version of `ip`.
    ///
    /// # Errors
    /// The file's; `InvalidInput` when a pcap file would need a second link type.
    pub fn write_as(&mut self, original: &CapturedPacket<'_>, ip: &[u8]) -> io::Result<()> {
        self.put(original.ts_ns, original.link_type, original.link_header, ip)
    }

    /// Writes every packet of `from`, all with one time, and leaves it empty.
    ///
    /// # Errors
    /// The file's.
    pub fn tx(&mut self, ts_ns: u64, from: &mut Batch) -> io::Result<()> {
        let outcome = from.packets().iter().try_for_each(|packet| self.write(ts_ns, packet.bytes()));
        from.clear();
        outcome
    }

    /// Writes what is still buffered.
    ///
    /// # Errors
    /// The file's.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn put(&mut self, ts_ns: u64, link_type: LinkType, link_header: &[u8], ip: &[u8]) -> io::Result<()> {
        let link_type = either_version(link_type);
        self.frame.clear();
        link_header_for(link_type, link_header, ip, &mut self.frame);
        self.frame.extend_from_slice(ip);
        let len = self.frame.len() as u32;
        self.scratch.clear();
        let known = self.link_types.iter().position(|known| *known == link_type);
        match (self.format, known) {
            (PcapFormat::Classic, Some(_)) => emit_classic_record(&mut self.scratch, ts_ns, len, &self.frame),
            (PcapFormat::Classic, None) => {
                let why = format!("a pcap file has one link type, and this packet has {}: use pcapng", link_type.0);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            (PcapFormat::Ng, known) => {
                let interface = known.unwrap_or_else(|| {
                    emit_ng_interface(&mut self.scratch, link_type);
                    self.link_types.push(link_type);
                    self.link_types.len() - 1
                });
                emit_ng_packet(&mut self.scratch, interface as u32, ts_ns, len, &self.frame);
            }
        }
        self.out.write_all(&self.scratch)
    }
}

/// A tunnel may change the version of a packet, so a link type that allows one version becomes the
/// one that allows both.
fn either_version(link_type: LinkType) -> LinkType {
    match link_type {
        LinkType::IPV4 | LinkType::IPV6 | LinkType(12 | 14) => LinkType::RAW,
        other => other,
    }
}

/// Appends `original`, or an empty header where there is none, made to announce `ip`.
fn link_header_for(link_type: LinkType, original: &[u8], ip: &[u8], out: &mut Vec<u8>) {
    let v6 = ip.first().is_some_and(|byte| byte >> 4 == 6);
    let fixed_len = match link_type {
        LinkType::ETHERNET => 14,
        LinkType::LINUX_SLL => 16,
        LinkType::LINUX_SLL2 => 20,
        LinkType::NULL | LinkType::LOOP => 4,
        _ => 0,
    };
    out.extend_from_slice(original);
    if original.len() < fixed_len {
        out.resize(fixed_len, 0);
    }
    let ethertype = if v6 { [0x86, 0xdd] } else { [0x08, 0x00] };
    let len = out.len();
    match link_type {
        LinkType::LINUX_SLL2 if len == fixed_len => out[..2].copy_from_slice(&ethertype),
        // Also behind VLAN tags the type ends the header.
        LinkType::ETHERNET | LinkType::LINUX_SLL | LinkType::LINUX_SLL2 => out[len - 2..].copy_from_slice(&ethertype),
        LinkType::NULL | LinkType::LOOP => set_family(out, v6),
        _ => {}
    }
}

/// Sets the address family of a BSD loopback header in the byte order it has, unless it names the
/// right version already: IPv6 has several numbers.
fn set_family(header: &mut [u8], v6: bool) {
    let little = header[3] == 0 && header[0] != 0;
    let family = if little { header[0] } else { header[3] };
    let is_v6 = matches!(family, 10 | 24 | 28 | 30);
    if family == 0 || is_v6 != v6 {
        header[if little { 0 } else { 3 }] = if v6 { 30 } else { 2 };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;

    use super::*;

    const V4: [u8; 24] = [0x45, 0, 0, 24, 0, 0, 0, 0, 64, 253, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 1, 2, 3, 4];

    fn v6() -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 3, 59, 64];
        packet.extend([0x20; 32]);
        packet.extend([7, 8, 9]);
        packet
    }

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(format: PcapFormat, link_type: LinkType, body: impl FnOnce(&mut PcapWriter)) -> Vec<u8> {
        let out = Shared::default();
        let mut writer = PcapWriter::to(Box::new(out.clone()), format, link_type).unwrap();
        body(&mut writer);
        writer.finish().unwrap();
        out.0.lock().unwrap().clone()
    }

    const FORMATS: [PcapFormat; 2] = [PcapFormat::Classic, PcapFormat::Ng];

    #[test]
    fn what_is_written_is_read_back() {
        for format in FORMATS {
            for link_type in [0, 1, 101, 108, 113, 276].map(LinkType) {
                let file = written(format, link_type, |writer| {
                    writer.write(1_700_000_000_000_000_123, &V4).unwrap();
                    writer.write(1_700_000_001_000_000_000, &v6()).unwrap();
                });
                let mut reader = PcapReader::from_bytes(file).unwrap();
                assert_eq!((reader.format(), reader.link_type()), (format, Some(link_type)));
                let first = reader.next().unwrap().unwrap();
                assert_eq!((first.number, first.ts_ns, first.truncated), (1, 1_700_000_000_000_000_123, false));
                assert_eq!(first.ip, Ok(&V4[..]), "{link_type:?}");
                assert_eq!(reader.next().unwrap().unwrap().ip, Ok(&v6()[..]), "{link_type:?}");
                assert!(reader.next().unwrap().is_none());
            }
        }
    }

    #[test]
    fn link_headers_survive_a_change_of_version() {
        let vlan = [[0xaa; 12].as_slice(), &[0x81, 0, 0, 5, 0x08, 0]].concat();
        let cases = [
            (LinkType::ETHERNET, [[0xaa; 12].as_slice(), &[0x08, 0]].concat(), vec![(12, 0x86), (13, 0xdd)]),
            (LinkType::ETHERNET, vlan, vec![(16, 0x86), (17, 0xdd)]),
            (LinkType::LINUX_SLL, [[0xaa; 14].as_slice(), &[0x08, 0]].concat(), vec![(14, 0x86), (15, 0xdd)]),
            (LinkType::LINUX_SLL2, [&[0x08, 0], [0xaa; 18].as_slice()].concat(), vec![(0, 0x86), (1, 0xdd)]),
            (LinkType::NULL, vec![2, 0, 0, 0], vec![(0, 30)]),
            (LinkType::NULL, vec![0, 0, 0, 2], vec![(3, 30)]),
            (LinkType::LOOP, vec![0, 0, 0, 2], vec![(3, 30)]),
            (LinkType::IPV4, vec![], vec![]),
        ];
        for (format, (link_type, header, changes)) in FORMATS.into_iter().flat_map(|f| cases.clone().map(|c| (f, c))) {
            let mut expected = header.clone();
            for (at, value) in changes {
                expected[at] = value;
            }
            let original = CapturedPacket {
                number: 1,
                offset: 0,
                ts_ns: 5,
                link_type,
                link_header: &header,
                ip: Ok(&V4),
                data: &[],
                truncated: false,
            };
            let file = written(format, link_type, |writer| {
                writer.write_as(&original, &v6()).unwrap();
                writer.write_as(&original, &V4).unwrap();
            });
            let mut reader = PcapReader::from_bytes(file).unwrap();
            let changed = reader.next().unwrap().unwrap();
            assert_eq!((changed.link_header, changed.ip), (&expected[..], Ok(&v6()[..])));
            let same = reader.next().unwrap().unwrap();
            assert_eq!((same.link_header, same.ip), (&header[..], Ok(&V4[..])));
        }
    }

    #[test]
    fn ipv6_families_of_bsd_stay_as_they_are() {
        for family in [10, 24, 28, 30] {
            let mut header = [family, 0, 0, 0];
            set_family(&mut header, true);
            assert_eq!(header, [family, 0, 0, 0]);
            set_family(&mut header, false);
            assert_eq!(header, [2, 0, 0, 0]);
        }
    }

    #[test]
    fn padding_is_taken_off_and_a_second_link_type_is_refused() {
        let frame = [[0xaa; 12].as_slice(), &[0x08, 0], &V4, &[0; 22]].concat();
        let mut file = vec![];
        emit_classic_header(&mut file, LinkType::ETHERNET);
        emit_classic_record(&mut file, 1, 90, &frame);
        let mut reader = PcapReader::from_bytes(file).unwrap();
        let packet = reader.next().unwrap().unwrap();
        assert_eq!((packet.ip, packet.truncated, packet.data.len()), (Ok(&V4[..]), true, 60));
        written(PcapFormat::Classic, LinkType::RAW, |writer| {
            assert_eq!(writer.write_as(&packet, &V4).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        });
        let both = written(PcapFormat::Ng, LinkType::RAW, |writer| {
            writer.write(1, &V4).unwrap();
            writer.write_as(&packet, &V4).unwrap();
        });
        let mut reader = PcapReader::from_bytes(both).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().link_type, LinkType::RAW);
        assert_eq!(reader.next().unwrap().unwrap().link_type, LinkType::ETHERNET);
    }

    #[test]
    fn a_cut_file_gives_its_packets_and_then_says_where() {
        for format in FORMATS {
            let one = written(format, LinkType::RAW, |writer| writer.write(1, &V4).unwrap()).len();
            let file = written(format, LinkType::RAW, |writer| {
                writer.write(1, &V4).unwrap();
                writer.write(2, &V4).unwrap();
            });
            for len in one + 1..file.len() {
                let mut reader = PcapReader::from_bytes(file[..len].to_vec()).unwrap();
                let mut batch = Batch::new(4, 64);
                let error = reader.rx(&mut batch).unwrap_err();
                assert_eq!((batch.len(), error.kind()), (1, io::ErrorKind::InvalidData));
                assert!(error.to_string().contains("byte"), "{error}");
            }
        }
    }

    #[test]
    fn other_files_and_long_packets_are_explained() {
        let error = PcapReader::from_bytes(b"#!/bin/sh\necho not a capture\n".to_vec()).err().unwrap();
        assert!(error.to_string().contains("no pcap or pcapng file"), "{error}");
        let error = PcapReader::open(Path::new("/nonexistent.pcap")).err().unwrap();
        assert!(error.to_string().contains("/nonexistent.pcap"), "{error}");
        let file = written(PcapFormat::Classic, LinkType::RAW, |writer| writer.write(1, &V4).unwrap());
        let mut reader = PcapReader::from_bytes(file).unwrap();
        let error = reader.rx(&mut Batch::new(4, 20)).unwrap_err();
        assert!(error.to_string().contains("packet 1 at byte 40: 24 bytes"), "{error}");
    }

    #[test]
    fn batches_go_through_a_file_in_order() {
        let mut batch = Batch::new(3, 64);
        assert!(batch.push_with(|p| p.set(&V4)) && batch.push_with(|p| p.set(&v6())));
        let file = written(PcapFormat::Ng, LinkType::RAW, |writer| writer.tx(9, &mut batch).unwrap());
        assert!(batch.is_empty());
        PcapReader::from_bytes(file).unwrap().rx(&mut batch).unwrap();
        assert_eq!(batch.packets().iter().map(|p| p.bytes().to_vec()).collect::<Vec<_>>(), [V4.to_vec(), v6()]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(
            start in prop_oneof![Just(0), Just(1), Just(2)],
            tail in proptest::collection::vec(any::<u8>(), 0..200),
            damage in any::<prop::sample::Index>(),
            value in any::<u8>(),
        ) {
            let mut file = match start {
                0 => vec![],
                1 => written(PcapFormat::Classic, LinkType::ETHERNET, |writer| writer.write(1, &V4).unwrap()),
                _ => written(PcapFormat::Ng, LinkType::LINUX_SLL2, |writer| writer.write(1, &v6()).unwrap()),
            };
            file.extend(tail);
            if !file.is_empty() {
                let at = damage.index(file.len());
                file[at] = value;
            }
            let Ok(mut reader) = PcapReader::from_bytes(file) else { return Ok(()) };
            let mut writer = PcapWriter::to(Box::new(io::sink()), PcapFormat::Ng, LinkType::RAW).unwrap();
            while let Ok(Some(packet)) = reader.next() {
                if let Ok(ip) = packet.ip {
                    writer.write_as(&packet, ip).unwrap();
                }
            }
        }
    }
}
