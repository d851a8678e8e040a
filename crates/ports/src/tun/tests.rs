//! Cutting and joining against slow models, over a datagram socket in place of the kernel's queue.

use std::io::Write;
use std::os::fd::AsFd;

use proptest::prelude::*;
use socket2::{Domain, Socket, Type};
use wire::checksum::Sum;
use wire::{IpPacket, IpProto, checksum};

use super::offload::Offload;
use super::vnet::{Gso, VnetHeader};
use super::*;
use crate::GsoCounts;

/// Common properties of all packets of a flow.
#[derive(Clone, Debug)]
struct Flow {
    v6: bool,
    tcp: bool,
    tos: u8,
    df: bool,
    ttl: u8,
    port: u16,
    ack: u32,
    window: u16,
    /// TCP options, a multiple of four bytes.
    options: Vec<u8>,
}

/// Properties that vary between packets.
#[derive(Clone, Debug)]
struct Piece {
    id: u16,
    seq: u32,
    flags: u8,
    payload: Vec<u8>,
}

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const FIN: u8 = 0x01;
const CWR: u8 = 0x80;
const ECE: u8 = 0x40;

impl Flow {
    fn plain(v6: bool, tcp: bool) -> Self {
        let options = vec![1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
        Self { v6, tcp, tos: 2, df: true, ttl: 64, port: 4000, ack: 77, window: 500, options }
    }

    /// The packet byte by byte; `partial` leaves the checksum of TCP or UDP to the device.
    fn packet(&self, piece: &Piece, partial: bool) -> Vec<u8> {
        let mut upper = [self.port.to_be_bytes(), 80_u16.to_be_bytes()].concat();
        let checksum_at = if self.tcp {
            upper.extend(piece.seq.to_be_bytes());
            upper.extend(self.ack.to_be_bytes());
            upper.extend([((20 + self.options.len()) << 2) as u8, piece.flags]);
            upper.extend(self.window.to_be_bytes());
            upper.extend([0, 0, 0, 0]);
            upper.extend(&self.options);
            16
        } else {
            upper.extend(((8 + piece.payload.len()) as u16).to_be_bytes());
            upper.extend([0, 0]);
            6
        };
        upper.extend(&piece.payload);
        let proto = if self.tcp { 6 } else { 17 };
        let addresses = if self.v6 { [[0xfd; 16], [0xfc; 16]].concat() } else { vec![192, 0, 2, 1, 192, 0, 2, 2] };
        let pseudo = Sum::default().add(&addresses).add_u32(upper.len() as u32).add_u16(proto.into());
        let sum = if partial { pseudo.fold() } else { pseudo.add(&upper).finish() };
        let sum = if !self.tcp && !partial && sum == 0 { 0xffff } else { sum };
        upper[checksum_at..checksum_at + 2].copy_from_slice(&sum.to_be_bytes());
        let mut packet = if self.v6 {
            let mut head = (6 << 28 | u32::from(self.tos) << 20 | 0x12345).to_be_bytes().to_vec();
            head.extend((upper.len() as u16).to_be_bytes());
            head.extend([proto, self.ttl]);
            head
        } else {
            let mut head = vec![0x45, self.tos];
            head.extend(((20 + upper.len()) as u16).to_be_bytes());
            head.extend(piece.id.to_be_bytes());
            head.extend([if self.df { 0x40 } else { 0 }, 0, self.ttl, proto, 0, 0]);
            head
        };
        packet.extend(addresses);
        if !self.v6 {
            let sum = checksum::checksum(&packet).to_be_bytes();
            packet[10..12].copy_from_slice(&sum);
        }
        packet.extend(upper);
        packet
    }

    fn head_len(&self) -> usize {
        (if self.v6 { 40 } else { 20 }) + if self.tcp { 20 + self.options.len() } else { 8 }
    }

    /// Software segmentation of Linux, one packet after the other.
    fn model(&self, whole: &Piece, size: usize) -> Vec<Vec<u8>> {
        let chunks: Vec<&[u8]> = whole.payload.chunks(size).collect();
        let (mut packets, mut seq) = (vec![], whole.seq);
        for (i, chunk) in chunks.iter().enumerate() {
            let mut flags = whole.flags;
            if i > 0 {
                flags &= !CWR;
            }
            if i + 1 < chunks.len() {
                flags &= !(FIN | PSH);
            }
            let id = whole.id.wrapping_add(i as u16);
            packets.push(self.packet(&Piece { id, seq, flags, payload: chunk.to_vec() }, false));
            seq = seq.wrapping_add(chunk.len() as u32);
        }
        packets
    }

    fn header(&self, size: usize) -> VnetHeader {
        let ip_len = if self.v6 { 40 } else { 20 };
        VnetHeader {
            needs_csum: true,
            gso: match (self.tcp, self.v6) {
                (true, false) => Gso::Tcp4,
                (true, true) => Gso::Tcp6,
                (false, _) => Gso::Udp,
            },
            ecn: false,
            head_len: 0,
            gso_size: size as u16,
            csum_start: ip_len,
            csum_offset: if self.tcp { 16 } else { 6 },
        }
    }
}

/// The kernel's end of a queue, and ours.
fn queue() -> (Socket, Socket) {
    let (kernel, ours) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    kernel.set_send_buffer_size(4 << 20).unwrap();
    kernel.set_nonblocking(true).unwrap();
    ours.set_nonblocking(true).unwrap();
    (kernel, ours)
}

/// Receives in batches of `room` until nothing is left.
fn receive(ours: &Socket, offload: &mut Offload, room: usize, refused: &mut PortDrops) -> Vec<Vec<u8>> {
    let (mut batch, mut got) = (Batch::new(room, 2048), vec![]);
    loop {
        offload.receive(ours.as_fd(), &mut batch, refused, &GsoCounters::default()).unwrap();
        if batch.is_empty() {
            return got;
        }
        got.extend(batch.packets().iter().map(|packet| packet.bytes().to_vec()));
        batch.clear();
    }
}

/// Packets received after `packets` were written as GSO packets, and the number of these.
fn through(packets: &[Vec<u8>], udp: bool) -> (Vec<Vec<u8>>, GsoCounts) {
    let (kernel, ours) = queue();
    let supers = GsoCounters::default();
    let mut batch = Batch::new(packets.len(), 2048);
    packets.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
    let mut refused = PortDrops::default();
    Offload::new(1500, udp).send(kernel.as_fd(), &mut batch, &mut refused, &supers).unwrap();
    let got = receive(&ours, &mut Offload::new(1500, true), 7, &mut refused);
    assert_eq!(refused, PortDrops::default());
    (got, supers.read())
}

fn super_packet(flow: &Flow, whole: &Piece, size: usize) -> Vec<u8> {
    [&flow.header(size).to_bytes()[..], &flow.packet(whole, true)].concat()
}

prop_compose! {
    fn flow()(v6: bool, tcp: bool, tos: u8, df: bool, ttl: u8, ack: u32, window: u16,
              options in prop_oneof![Just(0_usize), Just(12), Just(40)]) -> Flow {
        Flow { v6, tcp, tos, df, ttl, port: 4000, ack, window, options: vec![1; options] }
    }
}

prop_compose! {
    fn whole()(id in prop_oneof![any::<u16>(), 0xfff0..=0xffff_u16], seq in prop_oneof![any::<u32>(), 0xffff_f000..=u32::MAX],
               flags in prop_oneof![Just(ACK), Just(ACK | PSH), Just(ACK | FIN | PSH | CWR | ECE), Just(ACK | CWR)],
               len in prop_oneof![1..200_usize, 1000..60_000_usize], fill: u8) -> Piece {
        Piece { id, seq, flags, payload: (0..len).map(|i| (i % 251) as u8 ^ fill).collect() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn segments_are_those_of_the_kernel(flow in flow(), whole in whole(), size in 1..1400_usize, room in 1..90_usize,
                                        sizes in proptest::collection::vec(prop_oneof![Just(0_usize), 0..900_usize], 0..4)) {
        let least = whole.payload.len() / 64 + 1;
        let size = size.max(least);
        // Mostly like the first one, so that they are read to where the segments belong.
        let sizes: Vec<usize> = std::iter::once(size).chain(sizes.into_iter().map(|less| size.saturating_sub(less).max(least))).collect();
        let (kernel, ours) = queue();
        let mut offload = Offload::new(1500, true);
        // Other packets before and after: they must pass unchanged.
        let other = Flow::plain(false, false).packet(&Piece { id: 1, seq: 0, flags: 0, payload: vec![3; 33] }, false);
        let alone = [&VnetHeader::WHOLE[..], &other].concat();
        (&kernel).write_all(&alone).unwrap();
        let mut want = vec![other.clone()];
        for size in sizes {
            (&kernel).write_all(&super_packet(&flow, &whole, size)).unwrap();
            want.extend(flow.model(&whole, size));
        }
        (&kernel).write_all(&alone).unwrap();
        want.push(other);
        let mut refused = PortDrops::default();
        prop_assert_eq!(receive(&ours, &mut offload, room, &mut refused), want);
        prop_assert_eq!(refused, PortDrops::default());
    }

    #[test]
    fn joined_and_cut_again_is_the_same(
        flow in flow(),
        whole in whole(),
        size in 300..1400_usize,
        odd in proptest::collection::vec((0..64_usize, 0..14_u8), 0..6),
    ) {
        let whole = Piece { payload: whole.payload[..whole.payload.len().min(40 * size)].to_vec(), ..whole };
        let mut packets = flow.model(&whole, size);
        for (at, what) in odd {
            let at = at % packets.len();
            spoil(&mut packets, at, what, flow.head_len());
        }
        let got = through(&packets, true).0;
        if packets.windows(2).any(|two| without_id(&two[0]).is_some() && two[0][4..6] == two[1][4..6]) {
            // A constant identification with DF becomes a counter after segmentation.
            let all = |packets: &[Vec<u8>]| -> Vec<_> {
                packets.iter().map(|packet| without_id(packet).unwrap_or_else(|| packet.clone())).collect()
            };
            prop_assert_eq!(all(&got), all(&packets));
        } else {
            prop_assert_eq!(got, packets);
        }
    }

    #[test]
    fn flows_that_alternate_keep_their_order(count in 2..20_usize, ports in proptest::collection::vec(0..5_u16, 60)) {
        let plain = Flow::plain(false, true);
        let mut sent: Vec<Vec<Vec<u8>>> = vec![vec![]; 5];
        let mut all = vec![];
        for port in ports.into_iter().take(3 * count) {
            let n = sent[usize::from(port)].len();
            let piece = Piece { id: n as u16, seq: 100 * n as u32, flags: ACK, payload: vec![n as u8; 100] };
            let packet = Flow { port, ..plain.clone() }.packet(&piece, false);
            sent[usize::from(port)].push(packet.clone());
            all.push(packet);
        }
        let (got, _) = through(&all, true);
        for (port, sent) in sent.iter().enumerate() {
            let of_port: Vec<_> = got.iter().filter(|packet| packet[21] == port as u8).cloned().collect();
            prop_assert_eq!(&of_port, sent);
        }
    }

    #[test]
    fn whatever_the_kernel_says_nothing_breaks(header: [u8; 10], kind in 0..6_u8, flow in flow(), whole in whole(),
                                               cut in 0..120_usize, at in 0..60_usize, byte: u8) {
        let mut header = header;
        header[1] = kind;
        let mut packet = flow.packet(&whole, true);
        if packet.len() > at {
            packet[at] = byte;
        }
        packet.truncate(packet.len().min(cut * cut));
        let (kernel, ours) = queue();
        (&kernel).write_all(&[&header[..], &packet].concat()).unwrap();
        receive(&ours, &mut Offload::new(1500, true), 9, &mut PortDrops::default());
    }
}

/// An IPv4 packet with DF, less its identification and header checksum.
fn without_id(packet: &[u8]) -> Option<Vec<u8>> {
    let atomic = packet[0] >> 4 == 4 && packet[6] & 0x40 != 0;
    atomic.then(|| [&packet[..4], &packet[6..10], &packet[12..]].concat())
}

/// Changes packet `at` so that it must not be coalesced with adjacent packets.
fn spoil(packets: &mut Vec<Vec<u8>>, at: usize, what: u8, head_len: usize) {
    let v6 = packets[at][0] >> 4 == 6;
    let packet = &mut packets[at];
    let ip_len = if v6 { 40 } else { 20 };
    if packet.len() < ip_len + 20 {
        return;
    }
    match what {
        0 => packet[1] ^= 1,
        1 => packet[if v6 { 7 } else { 8 }] ^= 1,
        2 => packet[ip_len + 13] ^= PSH,
        3 => packet[ip_len + 13] ^= FIN,
        4 => packet[ip_len + 13] ^= CWR,
        5 => packet[ip_len + 13] ^= ECE,
        6 => packet[ip_len + 14] ^= 1,
        7 => packet[ip_len + 5] ^= 1,
        8 => packet[head_len - 1] ^= 1,
        9 if !v6 => packet[6] ^= 0x40,
        10 if !v6 => packet[5] ^= 0x80,
        // A fragment.
        11 if !v6 => packet[6] |= 0x20,
        12 => {
            let mut copy = packet.clone();
            if !v6 {
                copy[5] ^= 0x80;
                mend(&mut copy);
            }
            packets.insert(at, copy);
            return;
        }
        // A payload that does not fit its checksum stays as it is.
        _ => {
            *packet.last_mut().unwrap() ^= 1;
            return;
        }
    }
    mend(packet);
}

/// Puts the checksums right.
fn mend(packet: &mut [u8]) {
    let v6 = packet[0] >> 4 == 6;
    if !v6 {
        packet[10..12].fill(0);
        let sum = checksum::checksum(&packet[..20]).to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
    }
    let (ip_len, proto) = if v6 { (40, packet[6]) } else { (20, packet[9]) };
    let at = ip_len + if proto == 6 { 16 } else { 6 };
    packet[at..at + 2].fill(0);
    let addresses = if v6 { 8..40 } else { 12..20 };
    let sum = Sum::default().add(&packet[addresses]).add_u32((packet.len() - ip_len) as u32).add_u16(proto.into());
    let sum = sum.add(&packet[ip_len..]).finish().to_be_bytes();
    packet[at..at + 2].copy_from_slice(&sum);
}

#[test]
fn a_full_flow_goes_in_one_call() {
    for (v6, tcp) in [(false, true), (true, true), (false, false), (true, false)] {
        let flow = Flow::plain(v6, tcp);
        let payload: Vec<u8> = (0..20_000).map(|i| (i % 253) as u8).collect();
        let packets = flow.model(&Piece { id: 9, seq: 1, flags: ACK | PSH, payload }, 1300);
        assert_eq!(packets.len(), 16);
        let (got, count) = through(&packets, true);
        assert_eq!(got, packets);
        assert_eq!(count, GsoCounts { sent: 1, packets_sent: 16, ..GsoCounts::default() }, "v6 {v6} tcp {tcp}");
        let (got, count) = through(&packets, false);
        assert_eq!((got, count.sent), (packets, u64::from(tcp)));
    }
}

#[test]
fn a_run_holds_no_more_than_a_super_packet_may() {
    let flow = Flow::plain(false, true);
    let packets = flow.model(&Piece { id: 9, seq: 1, flags: ACK, payload: vec![1; 200 * 100] }, 100);
    let (got, count) = through(&packets, true);
    assert_eq!((got, count.sent, count.packets_sent), (packets, 4, 200));
}

#[test]
fn identifications_that_stay_are_joined_only_where_they_mean_nothing() {
    for (df, supers) in [(true, 1), (false, 0)] {
        let flow = Flow { df, ..Flow::plain(false, true) };
        let piece = |n: u32| Piece { id: 5, seq: 100 * n, flags: ACK, payload: vec![n as u8; 100] };
        let packets: Vec<_> = (0..3).map(|n| flow.packet(&piece(n), false)).collect();
        let (got, count) = through(&packets, true);
        assert_eq!((got.len(), count.sent), (3, supers));
    }
}

#[test]
fn checksums_left_to_the_device_are_finished() {
    for (v6, tcp) in [(false, true), (true, true), (false, false), (true, false)] {
        let flow = Flow::plain(v6, tcp);
        let piece = Piece { id: 1, seq: 2, flags: ACK | PSH, payload: vec![7; 101] };
        let (kernel, ours) = queue();
        let header = VnetHeader { gso: Gso::None, gso_size: 0, ..flow.header(0) };
        (&kernel).write_all(&[&header.to_bytes()[..], &flow.packet(&piece, true)].concat()).unwrap();
        let got = receive(&ours, &mut Offload::new(1500, true), 4, &mut PortDrops::default());
        assert_eq!(got, [flow.packet(&piece, false)]);
    }
}

#[test]
fn packets_larger_than_the_buffers_are_counted() {
    let flow = Flow::plain(false, true);
    let whole = Piece { id: 1, seq: 2, flags: ACK, payload: vec![7; 9000] };
    let (kernel, ours) = queue();
    (&kernel).write_all(&super_packet(&flow, &whole, 3000)).unwrap();
    (&kernel).write_all(&[&VnetHeader::WHOLE[..], &flow.packet(&whole, false)].concat()).unwrap();
    let small = Piece { payload: vec![7; 1900], ..whole };
    // Longer than the MTU was, but there is room.
    (&kernel).write_all(&[&VnetHeader::WHOLE[..], &flow.packet(&small, false)].concat()).unwrap();
    let mut refused = PortDrops::default();
    let got = receive(&ours, &mut Offload::new(1500, true), 4, &mut refused);
    // Three segments and a packet.
    assert_eq!((got, refused), (vec![flow.packet(&small, false)], PortDrops { cut_off: 4, ..PortDrops::default() }));
}

#[test]
fn longer_headers_with_segments_of_the_same_size_are_read() {
    let (short, long) = (Flow { options: Vec::new(), ..Flow::plain(false, true) }, Flow::plain(true, true));
    let whole = Piece { id: 1, seq: 2, flags: ACK, payload: vec![7; 50] };
    let (kernel, ours) = queue();
    // The first place has 40 and 8 bytes when the packet with headers of 72 bytes comes.
    for flow in [&short, &long] {
        (&kernel).write_all(&super_packet(flow, &whole, 8)).unwrap();
    }
    let mut refused = PortDrops::default();
    let got = receive(&ours, &mut Offload::new(1500, true), 90, &mut refused);
    assert_eq!((got, refused), ([short.model(&whole, 8), long.model(&whole, 8)].concat(), PortDrops::default()));
}

#[test]
fn what_is_read_is_ip_of_the_right_kind() {
    let flow = Flow::plain(false, true);
    let whole = Piece { id: 1, seq: 2, flags: ACK, payload: vec![7; 900] };
    let packet = flow.packet(&whole, false);
    let ip = IpPacket::parse(&packet).unwrap();
    assert_eq!((ip.upper, ip.total_len), (IpProto::TCP, packet.len()));
    let (kernel, ours) = queue();
    let wrong = VnetHeader { gso: Gso::Udp, ..flow.header(100) };
    (&kernel).write_all(&[&wrong.to_bytes()[..], &packet].concat()).unwrap();
    (&kernel).write_all(&[&VnetHeader::WHOLE[..], b"\x15 no IP"].concat()).unwrap();
    let mut refused = PortDrops::default();
    assert_eq!(receive(&ours, &mut Offload::new(1500, true), 4, &mut refused), [[0; 0]; 0]);
    assert_eq!(refused, PortDrops { unreadable: 1, ..PortDrops::default() });
}
