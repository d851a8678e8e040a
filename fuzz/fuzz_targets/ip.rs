//! IPv4 and IPv6 headers, flow keys and ICMP errors.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::icmp::{TooBig, emit_too_big, may_answer, may_answer_too_big};
use wire::{FlowKey, IpPacket};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(ip) = IpPacket::parse_quoted(bytes) {
        let _ = FlowKey::of(&ip, bytes);
    }
    let Ok(ip) = IpPacket::parse(bytes) else { return };
    assert!(ip.upper_at <= ip.total_len && ip.total_len <= bytes.len() && ip.proto_at < ip.upper_at);
    assert_eq!(IpPacket::parse(&bytes[..ip.total_len]), Ok(ip), "bytes after the packet change nothing");

    let key = FlowKey::of(&ip, bytes);
    assert_eq!(key.reversed().reversed(), key);
    let _ = key.hash(1);

    let _ = TooBig::parse(&ip, &bytes[..ip.total_len]);
    let _ = may_answer(&ip, bytes);
    if may_answer_too_big(&ip, bytes) {
        let mut out = [0; 1280];
        let len = emit_too_big(&mut out, &ip, bytes, ip.dst, 1280).expect("an error for this packet");
        let error = IpPacket::parse(&out[..len]).expect("our own packet");
        let parsed = TooBig::parse(&error, &out[..len]).expect("our own error").expect("an error");
        assert_eq!((error.total_len, error.dst, parsed.mtu), (len, ip.src, 1280));
        assert!(!may_answer_too_big(&error, &out[..len]), "no error about an error");
    }
});
