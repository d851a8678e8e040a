//! The control socket: a stream of segments, the packets in them, and their messages. A parsed
//! message should be emitted to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vici::Message;
use vici::packet::{Packet, Progress, SegmentReader, segment};

fuzz_target!(|bytes: &[u8]| {
    let mut stream = bytes;
    let mut reader = SegmentReader::default();
    // A segment takes two reads: its length, then its bytes.
    for _ in 0..=bytes.len() {
        let bytes = match reader.read(&mut stream) {
            Ok(Progress::Segment(bytes)) => bytes,
            Ok(Progress::Partial) => continue,
            Ok(Progress::End) | Err(_) => break,
        };
        let Ok(packet) = Packet::parse(&bytes) else { continue };
        let Ok(message) = Message::parse(packet.body) else { continue };
        let again = segment(packet.kind, packet.name, &message).expect("it was parsed within the same limits");
        assert_eq!(again[4..], bytes[..]);
        let _ = (message.text("a.b"), message.list("a"), message.flag("a"), message.section("a.b.c"));
        let _ = format!("{message:?}");
    }
});
