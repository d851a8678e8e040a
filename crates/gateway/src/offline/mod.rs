//! `weir pcap`: protects and unprotects captures through the same path as a gateway.
//!
//! A capture is read whole, taken through one worker packet by packet, and written whole, under
//! another name that is exchanged at the end: a fault leaves no half of an output.

mod inspect;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use dataplane::{Batch, Snapshot, Worker, WorkerConfig};
use ipsec::DropReason;
use wire::IpPacket;
use wire::pcap::{self, LinkError, LinkType, PcapFormat, PcapSlice, Record};

use crate::config::Config;
use crate::config::problem::Problems;
use crate::negotiated::Negotiated;
use crate::tables::{self, HostContext};

pub(crate) use inspect::inspect;

/// Largest packet in bytes.
const PACKET_BYTES: usize = 65_535;
/// Packets that one packet may become: 64 KiB in fragments for a path of 576 bytes.
const MOST_FROM_ONE: usize = 128;

/// Direction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Direction {
    Seal,
    Open,
}

/// Result of a capture.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct CaptureResult {
    /// IP packets read.
    pub(crate) packets: u64,
    /// Packets written, those that are not IP among them.
    pub(crate) written: u64,
    /// Frames that are not IP and were copied.
    pub(crate) copied: u64,
    /// One line per refused packet.
    pub(crate) refused: Vec<String>,
}

/// A capture file and its path, for messages.
pub(crate) struct Capture {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Capture {
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self { path: path.to_owned(), bytes })
    }

    /// Every record, or the place and kind of the first fault.
    pub(crate) fn records(&self) -> anyhow::Result<Vec<Record<'_>>> {
        let mut records = Vec::new();
        for record in PcapSlice::records(&self.bytes) {
            let place = || match records.len() {
                0 => format!("{}: at its start", self.path.display()),
                n => format!("{}: after packet {n}", self.path.display()),
            };
            match record {
                Ok(record) => records.push(record),
                Err(why) => anyhow::bail!(
                    "{}: {why}; the file is truncated or not a pcap or pcapng capture: capture or copy it again, or repair it \
                     with 'editcap IN OUT'",
                    place()
                ),
            }
        }
        Ok(records)
    }

    fn format(&self) -> anyhow::Result<PcapFormat> {
        PcapSlice::format(&self.bytes).with_context(|| format!("{}", self.path.display()))
    }
}

/// Reason why a capture could not be processed.
pub(crate) enum Failure {
    Config(Problems),
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

/// Takes the capture `input` through the path and writes `output`.
pub(crate) fn run(
    config: &Config,
    direction: Direction,
    input: &Path,
    output: &Path,
) -> Result<CaptureResult, Failure> {
    let around =
        HostContext { now: std::time::Instant::now(), resume: None, path_mtu: &|_| PACKET_BYTES as u32, port_key: 0 };
    let mut keys = crypto::KeyTable::default();
    let tables = tables::build(config, None, &mut keys, &around).map_err(Failure::Config)?;
    let snapshot = tables::snapshot(config, &tables, &mut Negotiated::default(), &keys, Default::default())
        .map_err(Failure::Config)?;
    let capture = Capture::read(input)?;
    let records = capture.records()?;
    let mut writer = Writer::new(capture.format()?);
    let mut path = OfflinePath::new(direction, snapshot);
    let mut outcome = CaptureResult::default();
    for (index, record) in records.iter().enumerate() {
        path.take(index + 1, record, &mut writer, &mut outcome);
    }
    path.finish(&mut outcome);
    outcome.written = writer.count;
    let first_link = records.first().map_or(LinkType::RAW, |record| record.link_type);
    save(output, &writer.into_bytes(first_link)).with_context(|| format!("cannot write {}", output.display()))?;
    Ok(outcome)
}

/// Key that identifies the fragments of one packet.
type FragmentName = (IpAddr, IpAddr, u32);

struct OfflinePath {
    direction: Direction,
    snapshot: Snapshot,
    worker: Worker,
    /// Unused audit records: offline mode prints one line per dropped packet instead.
    _reports: dataplane::Reports,
    batch: Batch,
    replies: Batch,
    drops: [u64; DropReason::COUNT],
    /// Packets that wait for the rest of their fragments.
    waiting: HashMap<FragmentName, Vec<usize>>,
}

impl OfflinePath {
    fn new(direction: Direction, mut snapshot: Snapshot) -> Self {
        snapshot.generation = 1;
        let config = WorkerConfig { batch: MOST_FROM_ONE, packet_bytes: PACKET_BYTES, ..WorkerConfig::default() };
        let (worker, reports) = Worker::new(config);
        Self {
            direction,
            snapshot,
            worker,
            _reports: reports,
            batch: Batch::new(MOST_FROM_ONE, PACKET_BYTES),
            replies: Batch::new(4, PACKET_BYTES),
            drops: [0; DropReason::COUNT],
            waiting: HashMap::new(),
        }
    }

    fn take(&mut self, number: usize, record: &Record<'_>, writer: &mut Writer, outcome: &mut CaptureResult) {
        let (header, packet) = match pcap::ip_payload(record.link_type, record.data) {
            Ok((len, packet)) => (&record.data[..len], packet),
            Err(LinkError::NotIp(_)) => {
                outcome.copied += 1;
                writer.write(record.link_type, record.ts_ns, &[], record.data);
                return;
            }
            Err(why) => return outcome.refused.push(format!("packet {number}: truncated: {why}")),
        };
        outcome.packets += 1;
        if record.is_cut() {
            let (have, all) = (record.data.len(), record.orig_len);
            outcome.refused.push(format!("packet {number}: truncated: the capture contains {have} of {all} bytes"));
            return;
        }
        // Ethernet pads short packets.
        let packet = match IpPacket::parse(packet) {
            Ok(ip) => &packet[..ip.total_len.min(packet.len())],
            Err(_) => packet,
        };
        let fragment = fragment_name(packet).filter(|_| self.direction == Direction::Open);
        self.batch.clear();
        self.replies.clear();
        if !self.batch.push_with(|room| room.set(packet)) {
            let why = DropReason::NoRoom;
            return outcome.refused.push(format!("packet {number}: {}: {}", why.key(), why.meaning()));
        }
        self.worker.tick(record.ts_ns / 1_000_000);
        match self.direction {
            Direction::Seal => self.worker.outbound(&self.snapshot, &mut self.batch, &mut self.replies),
            Direction::Open => self.worker.inbound(&self.snapshot, &mut self.batch),
        }
        let reason = self.new_drop();
        for sent in self.batch.packets() {
            writer.write(record.link_type, record.ts_ns, header, sent.bytes());
        }
        match (reason, fragment) {
            (Some(why), _) => outcome.refused.push(format!("packet {number}: {}: {}", why.key(), why.meaning())),
            (None, Some(name)) if self.batch.is_empty() => self.waiting.entry(name).or_default().push(number),
            (None, Some(name)) => drop(self.waiting.remove(&name)),
            (None, None) => {}
        }
    }

    /// The reason that was counted since the last call.
    fn new_drop(&mut self) -> Option<DropReason> {
        let counters = self.worker.counters();
        let mut new = None;
        for reason in DropReason::ALL {
            let count = counters.drops[*reason as usize].load(std::sync::atomic::Ordering::Relaxed);
            if std::mem::replace(&mut self.drops[*reason as usize], count) != count {
                new = Some(*reason);
            }
        }
        new
    }

    fn finish(self, outcome: &mut CaptureResult) {
        let mut numbers: Vec<usize> = self.waiting.into_values().flatten().collect();
        numbers.sort_unstable();
        let why = DropReason::ReassemblyTimeout;
        outcome.refused.extend(numbers.iter().map(|n| format!("packet {n}: {}: {}", why.key(), why.meaning())));
    }
}

fn fragment_name(packet: &[u8]) -> Option<FragmentName> {
    let ip = IpPacket::parse(packet).ok()?;
    Some((ip.src, ip.dst, ip.fragment?.id))
}

/// Collects the records of an output.
struct Writer {
    format: PcapFormat,
    /// Link types in use; pcapng has an interface for each.
    links: Vec<LinkType>,
    body: Vec<u8>,
    count: u64,
}

impl Writer {
    fn new(format: PcapFormat) -> Self {
        Self { format, links: Vec::new(), body: Vec::new(), count: 0 }
    }

    fn write(&mut self, link: LinkType, ts_ns: u64, header: &[u8], packet: &[u8]) {
        // These promise one version; the plaintext may have the other one.
        let link = if matches!(link, LinkType::IPV4 | LinkType::IPV6) { LinkType::RAW } else { link };
        let mut data = Vec::with_capacity(header.len() + packet.len());
        data.extend_from_slice(header);
        let v6 = packet.first().is_some_and(|byte| byte >> 4 == 6);
        if !header.is_empty() {
            set_version(link, &mut data, v6);
        }
        data.extend_from_slice(packet);
        let len = data.len() as u32;
        match self.format {
            PcapFormat::Classic => {
                if self.links.is_empty() {
                    self.links.push(link);
                }
                pcap::emit_classic_record(&mut self.body, ts_ns, len, &data);
            }
            PcapFormat::Ng => {
                let interface = self.links.iter().position(|known| *known == link).unwrap_or_else(|| {
                    pcap::emit_ng_interface(&mut self.body, link);
                    self.links.push(link);
                    self.links.len() - 1
                });
                pcap::emit_ng_packet(&mut self.body, interface as u32, ts_ns, len, &data);
            }
        }
        self.count += 1;
    }

    /// The whole file; `link` for one without records.
    fn into_bytes(self, link: LinkType) -> Vec<u8> {
        let mut file = Vec::with_capacity(64 + self.body.len());
        match self.format {
            PcapFormat::Classic => pcap::emit_classic_header(&mut file, self.links.first().copied().unwrap_or(link)),
            PcapFormat::Ng => pcap::emit_ng_header(&mut file),
        }
        file.extend_from_slice(&self.body);
        file
    }
}

/// Makes a link-layer header announce the IP version of its payload.
fn set_version(link: LinkType, header: &mut [u8], v6: bool) {
    let len = header.len();
    let ethertype: [u8; 2] = if v6 { [0x86, 0xdd] } else { [0x08, 0x00] };
    match link {
        // The EtherType is the last field, also after VLAN tags.
        LinkType::ETHERNET | LinkType::LINUX_SLL if len >= 2 => header[len - 2..].copy_from_slice(&ethertype),
        LinkType::LINUX_SLL2 if len == 20 => header[..2].copy_from_slice(&ethertype),
        LinkType::LINUX_SLL2 if len > 20 => header[len - 2..].copy_from_slice(&ethertype),
        LinkType::NULL | LinkType::LOOP if len == 4 => {
            let was_v6 = header != [2, 0, 0, 0] && header != [0, 0, 0, 2];
            if was_v6 != v6 {
                let family: u32 = if v6 { 30 } else { 2 };
                let little = link == LinkType::NULL && header[0] != 0;
                header.copy_from_slice(&if little { family.to_le_bytes() } else { family.to_be_bytes() });
            }
        }
        _ => {}
    }
}

/// Writes under another name, then exchanges it.
fn save(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if !path.parent().is_none_or(|folder| folder.as_os_str().is_empty() || folder.is_dir()) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no such directory"));
    }
    // A device or a pipe cannot be exchanged.
    if path.exists() && !path.is_file() {
        return std::fs::write(path, bytes);
    }
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".part{}", std::process::id()));
    let part = PathBuf::from(part);
    std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, path)).inspect_err(|_| {
        let _ = std::fs::remove_file(&part);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_header_follows_the_version() {
        let mut ethernet = [0xaa; 14];
        set_version(LinkType::ETHERNET, &mut ethernet, true);
        assert_eq!(ethernet[12..], [0x86, 0xdd]);
        set_version(LinkType::ETHERNET, &mut ethernet, false);
        assert_eq!((ethernet[11], &ethernet[12..]), (0xaa, &[0x08, 0x00][..]));
        for (link, v4) in
            [(LinkType::NULL, [2, 0, 0, 0]), (LinkType::NULL, [0, 0, 0, 2]), (LinkType::LOOP, [0, 0, 0, 2])]
        {
            let mut header = v4;
            set_version(link, &mut header, true);
            assert!(pcap::ip_payload(link, &header).is_ok() && header != v4);
            set_version(link, &mut header, false);
            assert_eq!(header, v4);
        }
    }
}
