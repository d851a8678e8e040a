//! Writes the seeds of the targets that need packets which verify: `cargo run --example seeds` in
//! fuzz/. The files are committed; run it again when keys or choices in `pair.rs` change.

#[path = "seeds/gateway.rs"]
mod gateway;
#[path = "seeds/ike.rs"]
mod ike;
#[path = "seeds/ikev1.rs"]
mod ikev1;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crypto::{DerivedKeys, Job, Keys};
use ipsec::{Frame, Mode, finish_out, fragment_v4, prepare_out};
use weir_fuzz::{Pair, inner_v4, inner_v6};
use wire::pcap::{self, LinkType};
use wire::{IpPacket, SeqNo};

const ROOM: usize = 512;
/// Enough first bytes that every value of every decision occurs, few enough to stay small.
const CHOICES: [u8; 14] = [0, 1, 2, 4, 6, 8, 12, 16, 24, 33, 50, 76, 103, 180];

fn seal(pair: &Pair, packet: &[u8]) -> Option<Vec<u8>> {
    let ip = IpPacket::parse(packet).expect("inner packet");
    let common = &pair.out.common;
    if common.mode != Mode::Tunnel && common.outer.peer.local.is_ipv6() != ip.is_v6() {
        return None; // invalid packet
    }
    let mut buffer = vec![0; ROOM + packet.len() + ROOM];
    buffer[ROOM..ROOM + packet.len()].copy_from_slice(packet);
    let mut frame = Frame::new(&mut buffer, ROOM..ROOM + packet.len()).expect("room");
    let (op, pending) = prepare_out(&pair.out, &pair.out.lanes[0], SeqNo(1), &ip, &mut frame).ok()?;
    let mut jobs = [Job::new(op, frame.bytes_mut())];
    pair.engine.seal(Keys { table: &pair.keys, derived: &DerivedKeys::new(4) }, &mut jobs);
    finish_out(&pair.out, &mut frame, pending).ok()?;
    Some(frame.bytes().to_vec())
}

/// Super-packets of each kind, whole packets, and packets as they are in a capture, for buffers of
/// each size.
fn supers() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (form, name) in [(2, "tcp4"), (3, "tcp6"), (0, "udp4"), (1, "udp6")] {
        for (shape, buffer) in [(1, "large"), (7, "small")] {
            let mut seed = vec![shape, 5, 0];
            for (whole, len, flags) in [(0, 9000_u16, 0x18), (0, 700, 0x90), (8, 100, 0x10)] {
                let (size, id, seq) = (599_u16, 0xfffe_u16, 0xffff_f000_u32);
                seed.extend([2, form | whole | 0x14]);
                seed.extend([size, len, id].map(u16::to_be_bytes).concat());
                seed.extend(seq.to_be_bytes());
                seed.extend([flags, 7]);
                // Another one of the same form.
                seed.push(1);
            }
            let packet = inner_v4(b"weir");
            seed.push(0);
            seed.extend((packet.len() as u16).to_be_bytes());
            seed.extend([[0; 10].to_vec(), packet].concat());
            weir_fuzz::gso_counters(&seed);
            seeds.push((format!("super_packets/{name}-{buffer}"), seed));
        }
    }
    seeds
}

/// The payloads of one host in `text`, with sequence number, time and length before each.
fn aggfrag(text: &str, host: &str) -> Vec<u8> {
    let mut seed = vec![3];
    for line in text.lines().filter(|line| line.starts_with(host)) {
        let (fields, payload) = line.rsplit_once(" : ").expect("a payload");
        let seq: u8 = fields.split(' ').nth(3).and_then(|seq| seq.parse().ok()).expect("a number");
        let digits: Vec<u8> = payload.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
        seed.extend([seq, 1]);
        seed.extend((digits.len() as u16 / 2).to_be_bytes());
        seed.extend(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]));
    }
    seed
}

fn main() {
    let mut seeds: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let inner = [inner_v4(b"weir"), inner_v6(b"weir")];
    let mut worker = Vec::new();
    for (name, pair) in [
        ("esp", weir_fuzz::esp as fn(u8) -> Pair),
        ("ah", weir_fuzz::ah),
        ("eesp", weir_fuzz::eesp),
        ("psp", weir_fuzz::psp),
    ] {
        for choice in CHOICES {
            for (family, packet) in inner.iter().enumerate() {
                let pair = pair(choice);
                let Some(sealed) = seal(&pair, packet) else { continue };
                weir_fuzz::open(&pair, &sealed).unwrap_or_else(|why| panic!("{name} {choice}: {why:?}"));
                if choice == 0 {
                    worker.push(sealed.len() as u8);
                    worker.extend(&sealed);
                }
                seeds.insert(
                    format!("open_{name}/choice-{choice}-v{}", 4 + 2 * family),
                    [vec![choice], sealed].concat(),
                );
            }
        }
    }
    for packet in &inner {
        worker.push(packet.len() as u8);
        worker.extend(packet);
    }
    seeds.extend(gateway::all());
    // Every engine with either scheduler.
    for how in 0..8 {
        let seed = [&[how, 0], &worker[..]].concat();
        weir_fuzz::worker(&seed);
        seeds.insert(format!("worker/all-{how}"), seed);
    }
    seeds.insert("ip/v4".into(), inner[0].clone());
    seeds.insert("ip/v6".into(), inner[1].clone());

    let mut large = inner_v4(&[7; 100]);
    large[6] = 0; // may be fragmented
    seeds.insert("fragment/v4".into(), [vec![20], large.clone()].concat());
    let mut fragments = Vec::new();
    let ip = IpPacket::parse(&large).expect("inner packet");
    fragment_v4(&ip, &large, 68, &mut [0; 68], &mut |fragment| {
        fragments.extend([1, fragment.len() as u8]);
        fragments.extend(fragment);
    })
    .expect("fragments");
    seeds.insert("reassembly/v4".into(), fragments);
    let aggregated = include_str!("../../crates/ipsec/src/aggfrag/linux.txt");
    for host in ["host1", "host2"] {
        seeds.insert(format!("aggfrag_receive/linux-{host}"), aggfrag(aggregated, host));
    }

    for (i, text) in
        ["10.1.0.0/16[tcp/80]", "fd00::/64[ipv6-icmp/128(0)]", "10.0.0.1-10.0.0.9[udp/1-2000]", "::/0[17/opaque]"]
            .iter()
            .enumerate()
    {
        seeds.insert(format!("selector/{i}"), text.as_bytes().to_vec());
    }
    // Every example of the documentation: the text between two lines of three backticks.
    let blocks = include_str!("../../docs/configuration.md").split("```\n").skip(1).step_by(2);
    for (i, text) in blocks.filter(|text| text.contains('{')).enumerate() {
        seeds.insert(format!("config/documented-{i}"), text.as_bytes().to_vec());
    }
    let eesp = &seeds["open_eesp/choice-2-v4"][21..];
    let (eesp, psp) = (eesp.to_vec(), seeds["open_psp/choice-4-v4"][29..].to_vec());
    let esp = seeds["open_esp/choice-0-v4"][21..].to_vec();
    let ah = seeds["open_ah/choice-0-v4"][21..].to_vec();
    seeds.extend(
        [("eesp/offset", eesp), ("psp/cookie", psp), ("headers/esp", esp), ("headers/ah", ah)]
            .map(|(n, b)| (n.into(), b)),
    );

    seeds.extend(supers());
    seeds.extend(ike::messages().map(|(name, message)| (format!("ike/{name}"), message)));
    seeds.extend(ikev1::all());

    let (mut classic, mut ng) = (Vec::new(), Vec::new());
    pcap::emit_classic_header(&mut classic, LinkType::RAW);
    pcap::emit_ng_header(&mut ng);
    pcap::emit_ng_interface(&mut ng, LinkType::RAW);
    for packet in &inner {
        pcap::emit_classic_record(&mut classic, 1, packet.len() as u32, packet);
        pcap::emit_ng_packet(&mut ng, 0, 1, packet.len() as u32, packet);
    }
    seeds.extend([("pcap/classic".into(), classic), ("pcap/ng".into(), ng)]);

    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/seeds"));
    for (name, bytes) in seeds {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("folder")).expect("folder");
        fs::write(path, bytes).expect("seed");
    }
}
