//! The header before every packet of a TUN queue with offloads (`struct virtio_net_hdr`), and the
//! completion of the packets after it: GSO packets are segmented, offloaded checksums computed.

use wire::checksum::Sum;
use wire::{IpPacket, IpProto};

use super::sum;

/// Maximum headers of a GSO packet: IPv6 with extension headers before TCP with options. Linux
/// segments packets with longer headers itself.
const HEAD_BYTES: usize = 256;
/// TCP flags that only the last segment keeps: FIN, PSH.
const LAST_ONLY: u8 = 0x09;
/// TCP flag that only the first segment keeps (RFC 3168 §6.1.2): CWR.
const FIRST_ONLY: u8 = 0x80;
const TCP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;

/// Offsets of the fields in their header.
pub(super) mod at {
    pub(crate) const V4_TOTAL_LEN: usize = 2;
    pub(crate) const V4_ID: usize = 4;
    pub(crate) const V4_CHECKSUM: usize = 10;
    pub(crate) const V6_PAYLOAD_LEN: usize = 4;
    pub(crate) const TCP_SEQ: usize = 4;
    pub(crate) const TCP_OFFSET: usize = 12;
    pub(crate) const TCP_FLAGS: usize = 13;
    pub(crate) const TCP_CHECKSUM: usize = 16;
    pub(crate) const UDP_LEN: usize = 4;
    pub(crate) const UDP_CHECKSUM: usize = 6;
}

/// Error: an invalid combination of virtio-net header and packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Unreadable;

/// GSO type: `gso_type` without its flags.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Gso {
    None,
    Tcp4,
    Tcp6,
    Udp,
}

/// `struct virtio_net_hdr`, in the byte order of the machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct VnetHeader {
    /// The checksum at `csum_start + csum_offset` is that of the pseudo header alone.
    pub(super) needs_csum: bool,
    pub(super) gso: Gso,
    /// The first segment has CWR.
    pub(super) ecn: bool,
    pub(super) head_len: u16,
    /// Payload of every segment but the last.
    pub(super) gso_size: u16,
    pub(super) csum_start: u16,
    pub(super) csum_offset: u16,
}

impl VnetHeader {
    pub(super) const LEN: usize = 10;
    /// Header of a packet without offloads.
    pub(super) const WHOLE: [u8; Self::LEN] = [0; Self::LEN];
    const NEEDS_CSUM: u8 = 1;
    const ECN: u8 = 0x80;
    const KINDS: [(u8, Gso); 4] = [(0, Gso::None), (1, Gso::Tcp4), (4, Gso::Tcp6), (5, Gso::Udp)];

    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, Unreadable> {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let kind = Self::KINDS.iter().find(|(value, _)| *value == bytes[1] & !Self::ECN).ok_or(Unreadable)?;
        Ok(Self {
            needs_csum: bytes[0] & Self::NEEDS_CSUM != 0,
            gso: kind.1,
            ecn: bytes[1] & Self::ECN != 0,
            head_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        })
    }

    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let kind = Self::KINDS.iter().find(|(_, gso)| *gso == self.gso).map_or(0, |(value, _)| *value);
        let mut bytes = [0; Self::LEN];
        bytes[0] = u8::from(self.needs_csum) * Self::NEEDS_CSUM;
        bytes[1] = kind | if self.ecn { Self::ECN } else { 0 };
        let words = [self.head_len, self.gso_size, self.csum_start, self.csum_offset];
        for (to, word) in bytes[2..].as_chunks_mut::<2>().0.iter_mut().zip(words) {
            *to = word.to_ne_bytes();
        }
        bytes
    }
}

/// Computes the offloaded checksum of `packet` from `start` on, and writes it at `start + offset`.
pub(super) fn finish_checksum(packet: &mut [u8], start: usize, offset: usize) -> Result<(), Unreadable> {
    if !start.is_multiple_of(2) || start + offset + 2 > packet.len() {
        return Err(Unreadable);
    }
    let sum = sum::add(Sum::default(), &packet[start..]).finish();
    packet[start + offset..][..2].copy_from_slice(&not_none(sum).to_be_bytes());
    Ok(())
}

/// In UDP 0 means "no checksum" (RFC 768), so a checksum of 0 is sent as 0xffff.
fn not_none(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// Segmentation of a GSO packet: its headers, and the common values of its segments.
pub(super) struct Segmentation {
    head: [u8; HEAD_BYTES],
    head_len: usize,
    /// Bytes of the IP header with extension headers.
    ip_len: usize,
    /// Payload of every segment but the last, and of all.
    size: usize,
    payload: usize,
    tcp: bool,
    v6: bool,
    /// Sum over addresses and protocol.
    pseudo: Sum,
}

impl Segmentation {
    /// Parses the headers at the start of a GSO packet of `len` bytes in total. `None` if it has
    /// only one segment.
    pub(super) fn plan(header: &VnetHeader, start: &[u8], len: usize) -> Result<Option<Self>, Unreadable> {
        let ip = IpPacket::parse_quoted(start).map_err(|_| Unreadable)?;
        let tcp = match (header.gso, ip.is_v6(), ip.upper) {
            (Gso::Tcp4, false, IpProto::TCP) | (Gso::Tcp6, true, IpProto::TCP) => true,
            (Gso::Udp, _, IpProto::UDP) => false,
            _ => return Err(Unreadable),
        };
        let ip_len = ip.upper_at;
        let upper = start.get(ip_len..).ok_or(Unreadable)?;
        let upper_len = match tcp {
            true => usize::from(upper.get(at::TCP_OFFSET).ok_or(Unreadable)? >> 4) * 4,
            false => UDP_HEADER,
        };
        let (head_len, size) = (ip_len + upper_len, usize::from(header.gso_size));
        if ip.fragment.is_some() || (tcp && upper_len < TCP_HEADER) || size == 0 || head_len > HEAD_BYTES {
            return Err(Unreadable);
        }
        let payload = len.checked_sub(head_len).ok_or(Unreadable)?;
        if payload <= size {
            return Ok(None);
        }
        let mut head = [0; HEAD_BYTES];
        head[..head_len].copy_from_slice(start.get(..head_len).ok_or(Unreadable)?);
        let field = ip_len + if tcp { at::TCP_CHECKSUM } else { at::UDP_CHECKSUM };
        let pseudo = if header.needs_csum {
            // The field holds the sum for the whole packet. It includes the last destination of a
            // routing header.
            let of_all = u16::from_be_bytes([head[field], head[field + 1]]);
            Sum::default().add_u16(of_all).add_u32(!((len - ip_len) as u32))
        } else {
            Sum::default().pseudo(ip.src, ip.dst, ip.upper, 0)
        };
        Ok(Some(Self { head, head_len, ip_len, size, payload, tcp, v6: ip.is_v6(), pseudo }))
    }

    pub(super) fn segments(&self) -> usize {
        self.payload.div_ceil(self.size)
    }

    pub(super) fn head_len(&self) -> usize {
        self.head_len
    }

    /// Range of the payload of segment `n` in that of the GSO packet.
    pub(super) fn payload_of(&self, n: usize) -> std::ops::Range<usize> {
        n * self.size..((n + 1) * self.size).min(self.payload)
    }

    /// Writes the headers of segment `n` to the start of `packet`, which is as long as the segment
    /// and has the payload in its place.
    pub(super) fn write_head(&self, n: usize, packet: &mut [u8]) {
        let len = packet.len();
        let (first, last) = (n == 0, n + 1 == self.segments());
        packet[..self.head_len].copy_from_slice(&self.head[..self.head_len]);
        let (ip, upper) = packet.split_at_mut(self.ip_len);
        if self.v6 {
            put(ip, at::V6_PAYLOAD_LEN, (len - wire::ip::IPV6_HEADER) as u16);
        } else {
            put(ip, at::V4_TOTAL_LEN, len as u16);
            let id = u16::from_be_bytes([ip[at::V4_ID], ip[at::V4_ID + 1]]).wrapping_add(n as u16);
            put(ip, at::V4_ID, id);
            put(ip, at::V4_CHECKSUM, 0);
            put(ip, at::V4_CHECKSUM, wire::checksum::checksum(ip));
        }
        let checksum_at = if self.tcp {
            let seq: [u8; 4] = [upper[4], upper[5], upper[6], upper[7]];
            let seq = u32::from_be_bytes(seq).wrapping_add((n * self.size) as u32);
            upper[at::TCP_SEQ..][..4].copy_from_slice(&seq.to_be_bytes());
            let gone = if first { 0 } else { FIRST_ONLY } | if last { 0 } else { LAST_ONLY };
            upper[at::TCP_FLAGS] &= !gone;
            at::TCP_CHECKSUM
        } else {
            put(upper, at::UDP_LEN, (len - self.ip_len) as u16);
            at::UDP_CHECKSUM
        };
        put(upper, checksum_at, 0);
        let sum = sum::add(self.pseudo.add_u32((len - self.ip_len) as u32), upper).finish();
        put(upper, checksum_at, if self.tcp { sum } else { not_none(sum) });
    }
}

/// Writes a number in network order.
pub(super) fn put(header: &mut [u8], at: usize, value: u16) {
    header[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
