//! Fragments in any order: each chunk of the input is one packet, with the time since the last one
//! before it.

#![no_main]

use ipsec::{Reassembled, Reassembler};
use libfuzzer_sys::fuzz_target;
use wire::IpPacket;

fuzz_target!(|input: &[u8]| {
    let mut reassembler = Reassembler::new(2, 4096, 1000);
    let (mut input, mut now_ms) = (input, 0);
    while let Some(([wait, len], rest)) = input.split_first_chunk() {
        let (packet, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        input = rest;
        now_ms += u64::from(*wait) * 16;
        let Ok(ip) = IpPacket::parse(packet) else { continue };
        if let Ok(Reassembled::Whole(whole)) = reassembler.push(now_ms, &ip, packet) {
            assert!(whole.len() <= 4096);
            let ip = IpPacket::parse(whole).expect("a packet");
            assert_eq!((ip.fragment, ip.total_len), (None, whole.len()));
        }
    }
    reassembler.expire(now_ms + 1000);
});
