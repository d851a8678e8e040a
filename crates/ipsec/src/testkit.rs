//! A loop in memory for tests: a packet through an outbound SA, an engine and an inbound SA.

use crypto::{DerivedKeys, Engine, Job, KeyTable, Keys};
use wire::{IpPacket, IpProto, SeqNo};

use crate::{DropReason, Frame, InboundSa, OutboundSa, finish_in, finish_out, prepare_in, prepare_out};

/// Room on either side of a packet; enough for every protocol's headers, trailers and padding.
const ROOM: usize = 2048;

/// An IPv4 UDP packet with `payload_len` bytes of recognisable payload and right checksums.
pub(crate) fn ipv4_udp(src: [u8; 4], dst: [u8; 4], payload_len: usize) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0xbe, 0xef, 0x40, 0, 64, 17, 0, 0];
    packet.extend(src.iter().chain(&dst));
    let total = (20 + 8 + payload_len) as u16;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    let sum = !ones_complement_sum(&packet, 0);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    append_udp(&mut packet, &[&src[..], &dst].concat(), payload_len);
    packet
}

/// An IPv6 UDP packet with `payload_len` bytes of recognisable payload and right checksum.
pub(crate) fn ipv6_udp(src: [u8; 16], dst: [u8; 16], payload_len: usize) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
    packet.extend(src.iter().chain(&dst));
    packet[4..6].copy_from_slice(&(8 + payload_len as u16).to_be_bytes());
    append_udp(&mut packet, &[src, dst].concat(), payload_len);
    packet
}

fn append_udp(packet: &mut Vec<u8>, addresses: &[u8], payload_len: usize) {
    let len = (8 + payload_len) as u16;
    let mut datagram = [40_000u16, 9, len, 0].map(u16::to_be_bytes).concat();
    datagram.extend((0..payload_len).map(|i| (i * 7 + 3) as u8));
    let pseudo = ones_complement_sum(addresses, len.wrapping_add(17));
    let sum = match !ones_complement_sum(&datagram, pseudo) {
        0 => 0xffff,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    packet.extend(datagram);
}

/// The sum of RFC 1071, slow and obvious.
pub(crate) fn ones_complement_sum(bytes: &[u8], start: u16) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum = words.fold(u32::from(start), |sum, word| (sum + word) % 0x1_0000 + (sum + word) / 0x1_0000);
    sum as u16
}

/// Panics unless the checksum of an IPv4 header is right; does nothing for IPv6.
pub(crate) fn assert_ipv4_checksum(packet: &[u8]) {
    if packet[0] >> 4 == 4 {
        let header = &packet[..usize::from(packet[0] & 15) * 4];
        assert_eq!(ones_complement_sum(header, 0), 0xffff, "IPv4 header checksum");
    }
}

/// Hexadecimal digits, blanks allowed, as bytes.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    assert_eq!(digits.len() % 2, 0);
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Both ends of an SA with their keys.
pub(crate) struct Loop {
    pub(crate) engine: Engine,
    pub(crate) keys: KeyTable,
    pub(crate) derived: DerivedKeys,
    pub(crate) out: OutboundSa,
    pub(crate) inn: InboundSa,
}

impl Loop {
    /// A loop through AWS-LC. `make` builds both ends, their keys go into one table.
    pub(crate) fn new<E: std::fmt::Debug>(
        make: impl FnOnce(Engine, &mut KeyTable) -> Result<(OutboundSa, InboundSa), E>,
    ) -> Self {
        let mut keys = KeyTable::default();
        let (out, inn) = make(Engine::best(), &mut keys).expect("specification of the test");
        Self { engine: Engine::best(), keys, derived: DerivedKeys::new(64), out, inn }
    }

    /// Protects `packet` with the next number of the first lane.
    pub(crate) fn seal(&mut self, packet: &[u8]) -> Result<Vec<u8>, DropReason> {
        self.seal_on(0, packet)
    }

    /// Protects `packet` with the next number of a lane.
    pub(crate) fn seal_on(&mut self, lane: usize, packet: &[u8]) -> Result<Vec<u8>, DropReason> {
        let range = self.out.lanes[lane].seq.reserve(1)?;
        self.seal_as(lane, SeqNo(range.first), packet)
    }

    /// Protects `packet` with a number of the caller's choice.
    pub(crate) fn seal_as(&mut self, lane: usize, seq: SeqNo, packet: &[u8]) -> Result<Vec<u8>, DropReason> {
        let ip = IpPacket::parse(packet)?;
        let mut buffer = with_room(packet);
        let mut frame = Frame::new(&mut buffer, ROOM..ROOM + packet.len())?;
        let (op, pending) = prepare_out(&self.out, &self.out.lanes[lane], seq, &ip, &mut frame)?;
        let mut jobs = [Job::new(op, frame.bytes_mut())];
        self.engine.seal(Keys { table: &self.keys, derived: &self.derived }, &mut jobs);
        assert!(jobs[0].sealed(), "the engine refused the operation");
        finish_out(&self.out, &mut frame, pending)?;
        Ok(frame.bytes().to_vec())
    }

    /// Opens a protected packet.
    pub(crate) fn open(&mut self, packet: &[u8]) -> Result<Vec<u8>, DropReason> {
        let outer = IpPacket::parse(packet)?;
        // What follows a UDP header is the protocol, whatever the ports.
        let at = if outer.upper == IpProto::UDP { outer.upper_at + 8 } else { outer.upper_at };
        let mut buffer = with_room(packet);
        let mut frame = Frame::new(&mut buffer, ROOM..ROOM + packet.len())?;
        self.derived.begin_batch();
        let (op, pending) = prepare_in(&self.inn, &outer, at, &mut frame, &mut self.derived)?;
        let mut jobs = [Job::new(op, frame.bytes_mut())];
        self.engine.open(Keys { table: &self.keys, derived: &self.derived }, &mut jobs);
        let ok = jobs[0].take_ok().ok_or(DropReason::BadIcv)?;
        finish_in(&self.inn, &mut frame, &pending, ok)?;
        let inner = IpPacket::parse(frame.bytes()).map_err(|_| DropReason::BadInner)?;
        assert_eq!(inner.total_len, frame.len(), "nothing follows the packet");
        Ok(frame.bytes().to_vec())
    }

    /// Highest number seen by each lane that has a window.
    pub(crate) fn tops(&self) -> Vec<Option<u64>> {
        self.inn.lanes.iter().map(|lane| lane.window.get().map(|w| w.top().0)).collect()
    }

    /// Seals `packet`, flips every single bit at the offsets for which `covered` holds, expects
    /// each to be refused without moving a window, and then opens the packet as it was.
    pub(crate) fn assert_flipped_bits_are_refused(&mut self, packet: &[u8], covered: impl Fn(usize) -> bool) {
        let sealed = self.seal(packet).expect("seal");
        let before = self.tops();
        for bit in (0..sealed.len() * 8).filter(|bit| covered(bit / 8)) {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 0x80 >> (bit % 8);
            assert!(self.open(&damaged).is_err(), "bit {bit} of {} was accepted flipped", sealed.len() * 8);
            assert_eq!(self.tops(), before, "bit {bit} moved a window");
        }
        assert_eq!(self.open(&sealed).as_deref(), Ok(packet));
        if self.inn.window > 0 {
            assert_eq!(self.open(&sealed), Err(DropReason::Replay));
        }
    }
}

fn with_room(packet: &[u8]) -> Vec<u8> {
    // Not zero, so that an unwritten byte is visible.
    let mut buffer = vec![0xa5; ROOM + packet.len() + ROOM];
    buffer[ROOM..ROOM + packet.len()].copy_from_slice(packet);
    buffer
}
