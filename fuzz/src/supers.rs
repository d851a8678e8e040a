//! Super-packets of the TUN queue: cut as the kernel describes them and joined again, compared with
//! a slow model.
//!
//! Three bytes choose buffers, room and offloads. Each item after them is a super-packet, built
//! from a few numbers and then changed, or given byte by byte. All of them go through the receiving
//! half; the received packets are sent through the sending half.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;

use dataplane::{Batch, Port, PortDrops};
use ports::SuperQueue;
use wire::{IpPacket, IpProto};

/// Bytes of `struct virtio_net_hdr`.
const VNET: usize = 10;
const NEEDS_CSUM: u8 = 1;
const TCP4: u8 = 1;
const TCP6: u8 = 4;
const UDP: u8 = 5;
const ITEMS: usize = 24;
/// Segments of one input, and bytes: more only cost time.
const SEGMENTS: usize = 3000;
const BYTES: usize = 400_000;
/// Packets that are sent together.
const SENT: usize = 80;

/// Bytes of the input, zeros behind its end.
struct Input<'i>(&'i [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, self.0), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    fn long(&mut self) -> u32 {
        u32::from(self.word()) << 16 | u32::from(self.word())
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes.to_vec()
    }
}

/// One message of the kernel.
#[derive(Clone)]
struct Item {
    /// Header and packet.
    message: Vec<u8>,
    /// It is well formed, and each of its packets fits a buffer: none may be lost.
    regular: bool,
}

/// Sum of 16-bit words in ones' complement (RFC 1071).
fn ones(start: u64, bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    let mut sum = start + words.sum::<u64>();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

fn put(packet: &mut [u8], at: usize, value: u16) {
    packet[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn word(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

/// A whole packet with the checksum that was left to the device.
fn finished(vnet: &[u8], packet: &[u8]) -> Option<Vec<u8>> {
    let mut packet = packet.to_vec();
    if vnet[0] & NEEDS_CSUM != 0 {
        let start = usize::from(u16::from_ne_bytes([vnet[6], vnet[7]]));
        let at = start + usize::from(u16::from_ne_bytes([vnet[8], vnet[9]]));
        if start % 2 == 1 || at + 2 > packet.len() {
            return None;
        }
        let sum = !ones(0, &packet[start..]);
        put(&mut packet, at, if sum == 0 { 0xffff } else { sum });
    }
    Some(packet)
}

/// What Linux makes of a message: packets, in order; `None` where it could not have sent it.
fn model(message: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (vnet, packet) = message.split_at_checked(VNET)?;
    let kind = vnet[1] & 0x7f;
    if !matches!(packet.first()? >> 4, 4 | 6) {
        return None;
    }
    if kind == 0 {
        return Some(vec![finished(vnet, packet)?]);
    }
    let ip = IpPacket::parse_quoted(packet).ok()?;
    let (v6, ip_len, size) = (ip.is_v6(), ip.upper_at, usize::from(u16::from_ne_bytes([vnet[4], vnet[5]])));
    let tcp = match (kind, v6, ip.upper) {
        (TCP4, false, IpProto::TCP) | (TCP6, true, IpProto::TCP) => true,
        (UDP, _, IpProto::UDP) => false,
        _ => return None,
    };
    let upper_len = if tcp { usize::from(*packet.get(ip_len + 12)? >> 4) * 4 } else { 8 };
    let head_len = ip_len + upper_len;
    if ip.fragment.is_some() || upper_len < if tcp { 20 } else { 8 } || size == 0 || packet.len() < head_len {
        return None;
    }
    let payload = &packet[head_len..];
    if payload.len() <= size {
        return Some(vec![finished(vnet, packet)?]);
    }
    let sum_at = ip_len + if tcp { 16 } else { 6 };
    let pseudo = if vnet[0] & NEEDS_CSUM != 0 {
        // The field sums up addresses, protocol and the length of the whole: take the length out.
        let len = ones(((packet.len() - ip_len) as u64 >> 16) + ((packet.len() - ip_len) as u64 & 0xffff), &[]);
        u64::from(word(packet, sum_at)) + u64::from(!len)
    } else {
        let octets = |addr: std::net::IpAddr| match addr {
            std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
            std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        u64::from(ones(u64::from(ip.upper.0), &[octets(ip.src), octets(ip.dst)].concat()))
    };
    let count = payload.len().div_ceil(size);
    let segment = |(n, chunk): (usize, &[u8])| {
        let mut one = [&packet[..head_len], chunk].concat();
        let (len, upper_len) = (one.len(), one.len() - ip_len);
        if v6 {
            put(&mut one, 4, (len - 40) as u16);
        } else {
            put(&mut one, 2, len as u16);
            let id = word(&one, 4).wrapping_add(n as u16);
            put(&mut one, 4, id);
            put(&mut one, 10, 0);
            let header = usize::from(one[0] & 15) * 4;
            let sum = !ones(0, &one[..header]);
            put(&mut one, 10, sum);
        }
        if tcp {
            let seq = u32::from_be_bytes([one[ip_len + 4], one[ip_len + 5], one[ip_len + 6], one[ip_len + 7]]);
            let seq = seq.wrapping_add((n * size) as u32);
            one[ip_len + 4..ip_len + 8].copy_from_slice(&seq.to_be_bytes());
            // CWR is for the first, FIN and PSH are for the last.
            let gone = if n > 0 { 0x80 } else { 0 } | if n + 1 < count { 0x09 } else { 0 };
            one[ip_len + 13] &= !gone;
        } else {
            put(&mut one, ip_len + 4, upper_len as u16);
        }
        put(&mut one, sum_at, 0);
        let sum = !ones(pseudo + upper_len as u64, &one[ip_len..]);
        put(&mut one, sum_at, if sum == 0 && !tcp { 0xffff } else { sum });
        one
    };
    Some(payload.chunks(size).enumerate().map(segment).collect())
}

/// A message built from numbers: mostly one that the kernel could have sent.
fn built(input: &mut Input<'_>, buffer: usize) -> Item {
    let form = input.byte();
    let (v6, tcp, df, whole) = (form & 1 != 0, form & 2 != 0, form & 4 != 0, form & 8 != 0);
    let options = [0, 12, 40, 20][usize::from(form >> 4 & 3)];
    let (size, len) = (usize::from(input.word() % 9000) + 1, usize::from(input.word()));
    let (id, seq, flags, fill) = (input.word(), input.long(), input.byte(), input.byte());
    let ip_len = if v6 { 40 } else { 20 };
    let head_len = ip_len + if tcp { 20 + options } else { 8 };
    let len = len.clamp(1, 65_535 - head_len);
    let size = size.max(len / 700 + 1);
    let mut packet = vec![0; head_len];
    let upper_len = head_len + len - ip_len;
    let proto = if tcp { 6 } else { 17 };
    if v6 {
        packet[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, proto, 64]);
        put(&mut packet, 4, upper_len as u16);
        packet[8..40].fill(0xfd);
    } else {
        packet[..2].copy_from_slice(&[0x45, flags & 3]);
        put(&mut packet, 2, (head_len + len) as u16);
        put(&mut packet, 4, id);
        packet[6] = if df { 0x40 } else { 0 };
        packet[8..10].copy_from_slice(&[64, proto]);
        packet[12..20].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
        let sum = !ones(0, &packet[..20]);
        put(&mut packet, 10, sum);
    }
    put(&mut packet, ip_len, 4000 + u16::from(form >> 6));
    put(&mut packet, ip_len + 2, 80);
    let sum_at = ip_len + if tcp { 16 } else { 6 };
    if tcp {
        packet[ip_len + 4..ip_len + 8].copy_from_slice(&seq.to_be_bytes());
        packet[ip_len + 12] = ((20 + options) << 2) as u8;
        packet[ip_len + 13] = flags;
        packet[ip_len + 20..head_len].fill(1);
    } else {
        put(&mut packet, ip_len + 4, upper_len as u16);
    }
    let addresses = if v6 { 8..40 } else { 12..20 };
    let pseudo = ones((u64::from(proto)) + upper_len as u64, &packet[addresses]);
    put(&mut packet, sum_at, pseudo);
    packet.extend((0..len).map(|i| (i % 251) as u8 ^ fill));
    let mut vnet = [0; VNET];
    vnet[0] = NEEDS_CSUM;
    vnet[6..8].copy_from_slice(&(ip_len as u16).to_ne_bytes());
    vnet[8..10].copy_from_slice(&((sum_at - ip_len) as u16).to_ne_bytes());
    let largest = if whole {
        head_len + len
    } else {
        vnet[1] = if !tcp { UDP } else { [TCP4, TCP6][usize::from(v6)] };
        vnet[4..6].copy_from_slice(&(size as u16).to_ne_bytes());
        head_len + len.min(size)
    };
    Item { message: [&vnet[..], &packet].concat(), regular: largest <= buffer }
}

fn items(input: &mut Input<'_>, buffer: usize) -> Vec<Item> {
    let (mut items, mut segments, mut bytes) = (Vec::<Item>::new(), 0, 0);
    while !input.0.is_empty() && items.len() < ITEMS {
        let what = input.byte();
        let mut item = match what & 3 {
            0 => {
                let len = VNET + usize::from(input.word() % 1000);
                Item { message: input.bytes(len), regular: false }
            }
            // Another one of the same form, so that it is read to where its segments belong.
            1 if !items.is_empty() => items[items.len() - 1].clone(),
            _ => built(input, buffer),
        };
        for _ in 0..what >> 4 & 3 {
            let (at, bits) = (usize::from(input.word() % 120), input.byte());
            if let Some(byte) = item.message.get_mut(at) {
                *byte ^= bits;
                item.regular &= bits == 0;
            }
        }
        segments += model(&item.message).map_or(0, |packets| packets.len());
        bytes += item.message.len();
        if segments > SEGMENTS || bytes > BYTES {
            break;
        }
        items.push(item);
    }
    items
}

/// Moves the packets of a batch to `got`.
fn take(batch: &mut Batch, got: &mut Vec<Vec<u8>>) {
    got.extend(batch.packets().iter().map(|packet| packet.bytes().to_vec()));
    batch.clear();
}

/// Writes a message; false when the queue is full.
fn write(kernel: &mut File, message: &[u8]) -> bool {
    match kernel.write(message) {
        Ok(len) => {
            assert_eq!(len, message.len(), "a message is written whole");
            true
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) || error.raw_os_error() == Some(105) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Receives all items, `room` packets at a time, and compares them with the model.
fn check_cut(items: &[Item], queue: &mut SuperQueue, kernel: OwnedFd, room: usize, buffer: usize) -> Vec<Vec<u8>> {
    let (mut kernel, mut batch, mut got) = (File::from(kernel), Batch::new(room, buffer), Vec::new());
    for (n, item) in items.iter().enumerate() {
        while !write(&mut kernel, &item.message) {
            queue.rx(&mut batch).expect("the queue is there");
            take(&mut batch, &mut got);
        }
        // Sometimes a batch is half full when a super-packet comes.
        if n % 3 == 0 {
            queue.rx(&mut batch).expect("the queue is there");
            if batch.room() == 0 {
                take(&mut batch, &mut got);
            }
        }
    }
    loop {
        queue.rx(&mut batch).expect("the queue is there");
        if batch.is_empty() {
            break;
        }
        take(&mut batch, &mut got);
    }
    let (mut at, mut lost) = (0, 0);
    for (n, item) in items.iter().enumerate() {
        match model(&item.message) {
            None => lost += 1,
            Some(packets) => {
                for (i, packet) in packets.iter().enumerate() {
                    if got.get(at) == Some(packet) {
                        at += 1;
                        continue;
                    }
                    let next = got.get(at).map(|packet| &packet[..packet.len().min(80)]);
                    assert!(
                        !item.regular,
                        "segment {i} of {} of item {n} is lost or changed: {:02x?}, there is {next:02x?}",
                        packets.len(),
                        &packet[..packet.len().min(80)],
                    );
                    lost += 1;
                }
            }
        }
    }
    assert!(at == got.len(), "packet {at} was not sent: {:02x?}", &got[at][..got[at].len().min(80)]);
    let refused = queue.drops();
    let refused = refused.cut_off + refused.unreadable;
    assert!(refused <= lost, "{refused} counted as refused, {lost} lost");
    // Data that is not an IP packet is not counted.
    let ip = items.iter().all(|item| item.message.get(VNET).is_some_and(|byte| matches!(byte >> 4, 4 | 6)));
    assert!(!ip || lost == 0 || refused > 0, "{lost} lost, none counted");
    got
}

/// A packet without the fields that segmentation may change if no host fragments: identification
/// and the checksum of the header.
fn normal(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet.len() >= 20 && packet[0] == 0x45 && packet[6] & 0x40 != 0 && ones(0, &packet[..20]) == 0xffff {
        packet[4..6].fill(0);
        packet[10..12].fill(0);
    }
    packet
}

/// Key of the packets of one flow; one flow for all that are of none.
fn flow(packet: &[u8]) -> Option<Vec<u8>> {
    let ip = IpPacket::parse(packet).ok().filter(|ip| ip.fragment.is_none())?;
    let ports = packet.get(ip.upper_at..ip.upper_at + 4)?;
    let is_flow = [IpProto::TCP, IpProto::UDP].contains(&ip.upper);
    is_flow.then(|| format!("{} {} {:?} {ports:?}", ip.src, ip.dst, ip.upper).into_bytes())
}

fn is_fragment(packet: &[u8]) -> bool {
    IpPacket::parse(packet).is_ok_and(|ip| ip.fragment.is_some())
}

fn sorted(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut packets = packets.to_vec();
    packets.sort_unstable();
    packets
}

/// Sends packets together; the kernel should segment it into the same packets, each flow in its
/// order.
fn check_joined(packets: &[Vec<u8>], udp: bool, buffer: usize) {
    let (mut queue, kernel) = SuperQueue::pair(1500, udp).expect("a socket");
    let mut batch = Batch::new(packets.len(), buffer);
    packets.iter().for_each(|packet| assert!(batch.push_with(|to| to.set(packet))));
    queue.tx(&mut batch).expect("the queue is there");
    assert_eq!(queue.drops(), PortDrops::default(), "the queue had room");
    let (mut kernel, mut message, mut got) = (File::from(kernel), vec![0; 70_000], Vec::new());
    while let Ok(len) = kernel.read(&mut message) {
        let message = &message[..len];
        let (vnet, packet) = message.split_at(VNET);
        assert!(packet.len() <= 65_535, "longer than any packet");
        let size = u16::from_ne_bytes([vnet[4], vnet[5]]);
        assert_eq!(vnet[1] == 0, size == 0, "a kind and a size, or neither");
        let cut = model(message).unwrap_or_else(|| vec![packet.to_vec()]);
        assert!(cut.len() <= 64, "more segments than Linux takes");
        assert!(vnet[1] == 0 || cut.len() > 1, "a super-packet of one packet");
        got.extend(cut.iter().map(|packet| normal(packet)));
    }
    let sent: Vec<_> = packets.iter().map(|packet| normal(packet)).collect();
    assert_eq!(sorted(&got), sorted(&sent), "other packets came than were sent");
    let of = |list: &[Vec<u8>], key: &Option<Vec<u8>>| -> Vec<Vec<u8>> {
        list.iter().filter(|packet| flow(packet) == *key).cloned().collect()
    };
    let mut keys: Vec<_> = sent.iter().map(|packet| flow(packet)).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in &keys {
        assert!(of(&got, key) == of(&sent, key), "a flow is out of order");
    }
    // Of which flow a fragment is cannot be seen: nothing passes it.
    for (i, fragment) in sent.iter().enumerate().filter(|(_, packet)| is_fragment(packet)) {
        let earlier = sent[..i].iter().filter(|packet| *packet == fragment).count();
        let at = got.iter().enumerate().filter(|(_, packet)| *packet == fragment).nth(earlier);
        let (at, _) = at.expect("it came");
        assert_eq!(sorted(&got[..at]), sorted(&sent[..i]), "a packet has passed a fragment");
    }
}

/// Runs one input.
///
/// # Panics
/// When packets are not those that the kernel would have sent or received.
pub fn gso_counters(input: &[u8]) {
    let mut input = Input(input);
    let (shape, room, mtu) = (input.byte(), usize::from(input.byte() % 90) + 1, input.byte());
    let buffer = [2048, 1600, 9216, 700][usize::from(shape >> 1 & 3)];
    let mtu = [1500, 1280, 9000, 576][usize::from(mtu & 3)].min(buffer);
    let udp = shape & 1 != 0;
    let items = items(&mut input, buffer);
    let (mut queue, kernel) = SuperQueue::pair(mtu, udp).expect("a socket");
    let got = check_cut(&items, &mut queue, kernel, room, buffer);
    // The sending half is given as much as one socket buffer holds.
    let mut rest = &got[..];
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |packet: &&Vec<u8>| {
            bytes += packet.len() + 1000;
            bytes < 100_000
        };
        let count = rest.iter().take(SENT).take_while(fits).count().max(1);
        check_joined(&rest[..count], udp, buffer);
        rest = &rest[count..];
    }
}
