//! An IPv4 packet cut to size: the fragments, put together again, are the packet.

#![no_main]

use ipsec::{DropReason, Reassembled, Reassembler, fragment_v4};
use libfuzzer_sys::fuzz_target;
use wire::IpPacket;

fuzz_target!(|input: &[u8]| {
    let Some(([mtu], packet)) = input.split_first_chunk() else { return };
    let mtu = 28 + usize::from(*mtu);
    let Ok(ip) = IpPacket::parse(packet) else { return };
    let mut fragments = Vec::new();
    let mut scratch = [0; 28 + 255];
    let result = fragment_v4(&ip, packet, mtu, &mut scratch, &mut |fragment| fragments.push(fragment.to_vec()));
    if let Err(why) = result {
        assert!(matches!(why, DropReason::TooBig | DropReason::Malformed), "{why:?}");
        assert!(fragments.is_empty());
        return;
    }
    let mut reassembler = Reassembler::new(1, 65_535, 1000);
    for (i, fragment) in fragments.iter().enumerate() {
        let part = IpPacket::parse(fragment).expect("a fragment is a packet");
        assert!(fragment.len() <= mtu && part.total_len == fragment.len());
        if ip.fragment.is_none() && part.fragment.is_some() {
            match reassembler.push(0, &part, fragment) {
                Ok(Reassembled::Whole(whole)) => {
                    assert_eq!(i + 1, fragments.len());
                    assert_eq!(whole[ip.upper_at..], packet[ip.upper_at..ip.total_len]);
                }
                Ok(Reassembled::Waiting) => assert!(i + 1 < fragments.len()),
                Err(why) => panic!("fragment {i} of {}: {why:?}", fragments.len()),
            }
        }
    }
});
