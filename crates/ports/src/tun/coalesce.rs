//! Coalescing of packets into GSO packets, by the rules of Linux's GRO: segmentation must restore
//! exactly the same packets.
//!
//! The order within a flow is preserved; flows may be reordered among each other. Only packets of
//! one batch are coalesced, so that no packet waits.

use std::ops::Range;

use dataplane::Packet;
use wire::IpProto;
use wire::checksum::{self, Sum};
use wire::ip::{IPV4_HEADER, IPV6_HEADER};

use super::sum;
use super::vnet::{Gso, VnetHeader, at, put};

/// Limit of packets in one GSO packet; for UDP it is the limit of Linux before 6.9.
pub(super) const RUN_PACKETS: usize = 64;
/// Maximum size of a GSO packet in bytes.
const RUN_BYTES: usize = 65_535;
/// Number of concurrent flows, a power of two. Another flow with the same hash ends the burst.
const PLACES: usize = 128;
const NONE: u16 = u16::MAX;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const CWR: u8 = 0x80;
/// SYN, RST, URG: such packets must not be coalesced.
const ALONE: u8 = 0x26;
const DF: u16 = 0x4000;

/// Packets that go out in one call: `count` of them, `first` and those that `next` names one after
/// the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub(super) first: u16,
    pub(super) count: u16,
    last: u16,
    form: Form,
    /// The checksums of the first packet were verified.
    proven: bool,
    /// IPv4: increment of the identification between packets.
    id_step: u16,
    /// Payload of each packet but the last, and of all.
    size: u16,
    payload: u32,
}

/// Offsets in a packet that can be coalesced.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Form {
    v6: bool,
    tcp: bool,
    /// Bytes of IP header, and with that of TCP or UDP.
    ip_len: u16,
    head_len: u16,
}

/// Finds the bursts of a batch. Created once; takes 30 bytes per packet of a batch of up to 65,534
/// packets.
pub(super) struct Coalescer {
    runs: Vec<Burst>,
    next: Vec<u16>,
    places: Box<[u16; PLACES]>,
    pub(super) tcp: bool,
    pub(super) udp: bool,
}

impl Coalescer {
    /// Coalesces TCP, and UDP if enabled.
    pub(super) fn new(tcp: bool, udp: bool) -> Self {
        Self { runs: Vec::new(), next: Vec::new(), places: Box::new([NONE; PLACES]), tcp, udp }
    }

    /// Sorts `packets` into runs.
    pub(super) fn plan(&mut self, packets: &[Packet]) {
        self.runs.clear();
        self.next.clear();
        self.next.resize(packets.len(), NONE);
        self.places.fill(NONE);
        for (i, packet) in packets.iter().enumerate() {
            self.take(i as u16, packet.bytes(), packets);
        }
    }

    /// The runs, in the order in which they go out.
    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }

    pub(super) fn run(&self, i: usize) -> Burst {
        self.runs[i]
    }

    /// The packets of a run, in order.
    pub(super) fn members(&self, run: Burst) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(run.first), |i| Some(self.next[usize::from(*i)]).filter(|next| *next != NONE))
            .map(usize::from)
    }

    fn take(&mut self, i: u16, bytes: &[u8], packets: &[Packet]) {
        let alone = Burst {
            first: i,
            count: 1,
            last: i,
            form: Form { v6: false, tcp: false, ip_len: 0, head_len: 0 },
            proven: false,
            id_step: 0,
            size: 0,
            payload: 0,
        };
        let place = match kind(bytes) {
            Kind::Flow(form, place) if (form.tcp && self.tcp) || (!form.tcp && self.udp) => {
                let now = self.places[place];
                if let Some(run) = self.runs.get_mut(usize::from(now))
                    && run.takes(form, bytes, packets)
                {
                    self.next[usize::from(run.last)] = i;
                    run.last = i;
                    if run.is_over(bytes) {
                        self.places[place] = NONE;
                    }
                    return;
                }
                self.places[place] = NONE;
                if form.may_start(bytes) {
                    let payload = (bytes.len() - usize::from(form.head_len)) as u16;
                    let run = Burst { form, size: payload, payload: u32::from(payload), ..alone };
                    self.places[place] = self.runs.len() as u16;
                    self.runs.push(run);
                    return;
                }
                None
            }
            Kind::Flow(_, place) => Some(place),
            // Its flow is unknown, so no earlier packet may leave after it.
            Kind::Fragment => {
                self.places.fill(NONE);
                None
            }
            Kind::Other => None,
        };
        if let Some(place) = place {
            self.places[place] = NONE;
        }
        self.runs.push(alone);
    }
}

enum Kind {
    /// TCP or UDP, and its place in the table.
    Flow(Form, usize),
    Fragment,
    Other,
}

/// Parses the headers. Only a packet with a valid length field, without IPv4 options and IPv6
/// extension headers, belongs to a flow.
fn kind(bytes: &[u8]) -> Kind {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let (v6, ip_len, proto, addresses) = match bytes.first() {
        Some(0x45) if bytes.len() >= IPV4_HEADER && usize::from(word(at::V4_TOTAL_LEN)) == bytes.len() => {
            if word(6) & !DF != 0 {
                return Kind::Fragment;
            }
            (false, IPV4_HEADER, bytes[9], &bytes[12..20])
        }
        Some(byte) if byte >> 4 == 4 => return Kind::Fragment,
        Some(byte)
            if byte >> 4 == 6
                && bytes.len() >= IPV6_HEADER
                && usize::from(word(at::V6_PAYLOAD_LEN)) + IPV6_HEADER == bytes.len() =>
        {
            if IpProto(bytes[6]) == IpProto::FRAGMENT {
                return Kind::Fragment;
            }
            (true, IPV6_HEADER, bytes[6], &bytes[8..40])
        }
        _ => return Kind::Other,
    };
    let upper = &bytes[ip_len..];
    let (tcp, upper_len) = match IpProto(proto) {
        IpProto::TCP if upper.len() >= 20 => (true, usize::from(upper[at::TCP_OFFSET] >> 4) * 4),
        IpProto::UDP if upper.len() >= 8 => (false, 8),
        _ => return Kind::Other,
    };
    if upper_len > upper.len() || (tcp && upper_len < 20) {
        return Kind::Other;
    }
    let ports = u32::from_ne_bytes([upper[0], upper[1], upper[2], upper[3]]);
    let (words, _) = addresses.as_chunks::<4>();
    let mixed = words.iter().fold(ports, |sum, word| sum.rotate_left(5) ^ u32::from_ne_bytes(*word));
    let place = (mixed.wrapping_mul(0x9e37_79b1) >> (32 - PLACES.trailing_zeros())) as usize;
    let form = Form { v6, tcp, ip_len: ip_len as u16, head_len: (ip_len + upper_len) as u16 };
    Kind::Flow(form, place)
}

impl Form {
    /// Returns whether others may follow a packet of this form.
    fn may_start(self, bytes: &[u8]) -> bool {
        let upper = &bytes[usize::from(self.ip_len)..];
        let payload = bytes.len() - usize::from(self.head_len);
        payload > 0
            && if self.tcp {
                upper[at::TCP_FLAGS] & (ALONE | ACK | FIN | PSH) == ACK
            } else {
                // If the sender used no checksum, none is added.
                usize::from(upper[4]) << 8 | usize::from(upper[5]) == upper.len() && upper[6..8] != [0, 0]
            }
    }

    /// True if the checksums of the packet are correct: after coalescing an error could not be
    /// detected.
    fn is_valid(self, bytes: &[u8]) -> bool {
        let (ip, upper) = bytes.split_at(usize::from(self.ip_len));
        (self.v6 || checksum::is_valid(ip)) && sum::add(self.pseudo(bytes, upper.len()), upper).is_valid()
    }

    fn pseudo(self, bytes: &[u8], len: usize) -> Sum {
        let addresses = if self.v6 { &bytes[8..40] } else { &bytes[12..20] };
        let proto = if self.tcp { IpProto::TCP } else { IpProto::UDP };
        Sum::default().add(addresses).add_u32(len as u32).add_u16(u16::from(proto.0))
    }
}

impl Burst {
    /// Appends a packet if it continues the burst.
    fn takes(&mut self, form: Form, bytes: &[u8], packets: &[Packet]) -> bool {
        let head = usize::from(form.head_len);
        let first = packets[usize::from(self.first)].bytes();
        let payload = bytes.len() - head;
        if form != self.form
            || payload == 0
            || payload > usize::from(self.size)
            || usize::from(self.count) == RUN_PACKETS
            || head + self.payload as usize + payload > RUN_BYTES
            || !self.same_ip(first, bytes)
            || !self.same_upper(&first[usize::from(form.ip_len)..head], &bytes[usize::from(form.ip_len)..head], payload)
        {
            return false;
        }
        self.proven = self.proven || form.is_valid(first);
        if !self.proven || !form.is_valid(bytes) {
            return false;
        }
        if !form.v6 && self.count == 1 {
            self.id_step = id(bytes).wrapping_sub(id(first));
        }
        self.count += 1;
        self.payload += payload as u32;
        true
    }

    /// Returns whether the headers differ only in length, checksum and a consecutive
    /// identification.
    fn same_ip(&self, first: &[u8], bytes: &[u8]) -> bool {
        if self.form.v6 {
            return first[..4] == bytes[..4] && first[6..IPV6_HEADER] == bytes[6..IPV6_HEADER];
        }
        let step = id(bytes).wrapping_sub(id(first));
        let steps = match self.count {
            // With DF the identification has no meaning (RFC 6864 §4.1): some senders do not change
            // it.
            1 => step == 1 || (step == 0 && first[6] & (DF >> 8) as u8 != 0),
            count => step == self.id_step.wrapping_mul(count),
        };
        steps && first[..2] == bytes[..2] && first[6..10] == bytes[6..10] && first[12..20] == bytes[12..20]
    }

    fn same_upper(&self, first: &[u8], upper: &[u8], payload: usize) -> bool {
        if !self.form.tcp {
            let len = usize::from(upper[4]) << 8 | usize::from(upper[5]);
            return first[..4] == upper[..4] && len == 8 + payload && upper[6..8] != [0, 0];
        }
        let seq = |header: &[u8]| u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        seq(upper) == seq(first).wrapping_add(self.payload)
            && first[..4] == upper[..4]
            && first[8..13] == upper[8..13]
            && upper[at::TCP_FLAGS] & CWR == 0
            && (first[at::TCP_FLAGS] ^ upper[at::TCP_FLAGS]) & !(CWR | FIN | PSH) == 0
            && first[14..16] == upper[14..16]
            && first[18..] == upper[18..]
    }

    /// Returns true if no packet may follow the last one.
    fn is_over(&self, bytes: &[u8]) -> bool {
        let (ip_len, head_len) = (usize::from(self.form.ip_len), usize::from(self.form.head_len));
        bytes.len() - head_len < usize::from(self.size)
            || (self.form.tcp && bytes[ip_len + at::TCP_FLAGS] & (FIN | PSH) != 0)
    }

    /// The last of the packets.
    pub(super) fn last(&self) -> usize {
        self.last.into()
    }

    /// Bytes of the headers of each packet.
    pub(super) fn head_len(&self) -> usize {
        usize::from(self.form.head_len)
    }

    /// True for TCP, false for UDP.
    pub(super) fn is_tcp(&self) -> bool {
        self.form.tcp
    }

    /// Position of each packet's payload.
    pub(super) fn payload(&self, packet: &Packet) -> Range<usize> {
        self.head_len()..packet.len()
    }

    /// Changes the headers of the first packet, at the start of `first`, to those of the GSO
    /// packet, and returns its virtio-net header. `last_flags` are the TCP flags of the last
    /// packet.
    pub(super) fn join(&self, first: &mut [u8], last_flags: u8) -> VnetHeader {
        let Form { v6, tcp, ip_len, head_len } = self.form;
        let len = usize::from(head_len) + self.payload as usize;
        let upper_len = len - usize::from(ip_len);
        let pseudo = self.form.pseudo(first, upper_len);
        let (ip, upper) = first.split_at_mut(usize::from(ip_len));
        if v6 {
            put(ip, at::V6_PAYLOAD_LEN, upper_len as u16);
        } else {
            put(ip, at::V4_TOTAL_LEN, len as u16);
            put(ip, at::V4_CHECKSUM, 0);
            put(ip, at::V4_CHECKSUM, checksum::checksum(ip));
        }
        let csum_offset = if tcp {
            upper[at::TCP_FLAGS] |= last_flags & (FIN | PSH);
            at::TCP_CHECKSUM
        } else {
            put(upper, at::UDP_LEN, upper_len as u16);
            at::UDP_CHECKSUM
        };
        put(upper, csum_offset, pseudo.fold());
        VnetHeader {
            needs_csum: true,
            gso: match (tcp, v6) {
                (true, false) => Gso::Tcp4,
                (true, true) => Gso::Tcp6,
                (false, _) => Gso::Udp,
            },
            ecn: tcp && upper[at::TCP_FLAGS] & CWR != 0,
            head_len,
            gso_size: self.size,
            csum_start: ip_len,
            csum_offset: csum_offset as u16,
        }
    }

    /// TCP flags of a packet of the run; 0 for UDP.
    pub(super) fn flags(&self, packet: &[u8]) -> u8 {
        if self.form.tcp { packet[usize::from(self.form.ip_len) + at::TCP_FLAGS] } else { 0 }
    }
}

fn id(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[at::V4_ID], packet[at::V4_ID + 1]])
}
