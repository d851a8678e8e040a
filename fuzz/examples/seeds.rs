//! Writes the seeds of the targets that need packets which verify: `cargo run --example seeds` in fuzz/. The files are
//! committed; run it again when keys or choices in `pair.rs` change.

#[path = "seeds/ike.rs"]
mod ike;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crypto::{DerivedKeys, Job, Keys};
use dataplane::port::{PcapFormat, PcapWriter};
use ipsec::{Frame, Mode, finish_out, fragment_v4, prepare_out};
use weir_fuzz::{Pair, inner_v4, inner_v6};
use wire::{IpPacket, SeqNo};

const ROOM: usize = 512;
/// Enough first bytes that every value of every decision occurs, few enough to stay small.
const CHOICES: [u8; 14] = [0, 1, 2, 4, 6, 8, 12, 16, 24, 33, 50, 76, 103, 180];

fn seal(pair: &Pair, packet: &[u8]) -> Option<Vec<u8>> {
    let ip = IpPacket::parse(packet).expect("inner packet");
    let common = &pair.out.common;
    if common.mode != Mode::Tunnel && common.outer.peer.local.is_ipv6() != ip.is_v6() {
        return None; // nobody's packet
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

fn main() {
    let mut seeds: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let inner = [inner_v4(b"weir"), inner_v6(b"weir")];
    let mut worker = vec![0];
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
    seeds.insert("worker/all".into(), worker);
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

    for (i, text) in
        ["10.1.0.0/16[tcp/80]", "fd00::/64[ipv6-icmp/128(0)]", "10.0.0.1-10.0.0.9[udp/1-2000]", "::/0[17/opaque]"]
            .iter()
            .enumerate()
    {
        seeds.insert(format!("selector/{i}"), text.as_bytes().to_vec());
    }
    // Every example of the documentation: what stands between two lines of three backticks.
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

    seeds.extend(ike::messages().map(|(name, message)| (format!("ike/{name}"), message)));

    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/seeds"));
    fs::create_dir_all(folder.join("pcap")).expect("folder");
    for (name, format) in [("pcap/classic", PcapFormat::Classic), ("pcap/ng", PcapFormat::Ng)] {
        let mut writer = PcapWriter::create(&folder.join(name), format).expect("capture");
        inner.iter().for_each(|packet| writer.write(1, packet).expect("record"));
        writer.finish().expect("capture");
    }
    for (name, bytes) in seeds {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("folder")).expect("folder");
        fs::write(path, bytes).expect("seed");
    }
}
